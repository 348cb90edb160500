//! Resident work, which stays on a device until it is asked to leave, beside all other work.
//!
//! Two things keep other work from waiting for a resident kernel without an end. A **gate**: calls that may wait for
//! the whole device (allocate, free, load, unload) hold its exclusive side, with everything resident parked, until the
//! call has returned; a resident launch holds the shared side. **Turns**: whoever wants the multiprocessors, a resident
//! launch or any other kernel, waits in one line; the one in front asks the resident kernel to yield, and goes on when
//! it has left. Launches that end by themselves follow each other in one turn: a sequence on the stream path makes many
//! of them a token.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::patience::Patience;
use super::queue::Queue;
use crate::{Error, Result};

/// A request to resident work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wish {
    /// Leave the device as soon as possible with the state kept, and stay off until [`Wish::Stay`].
    Park,
    /// Leave at the end of the turn, since other work waits.
    Yield,
    /// Stay: earlier wishes are withdrawn.
    Stay,
}

/// Work that stays on a device until it is asked to leave, such as a kernel waiting for requests.
///
/// Allocating, freeing, loading and unloading may wait for everything on the device, so they would never return beside
/// it. [`Device::add_resident`](super::Device::add_resident) has them ask it to park and wait until it is off.
///
/// No method waits, allocates or frees on the device.
pub trait Resident: Send + Sync {
    /// Passes a wish to the work.
    fn ask(&self, wish: Wish);

    /// Whether the work is off the device.
    ///
    /// # Errors
    /// What the driver reports of the work.
    fn is_off(&self) -> Result<bool>;

    /// A number that changes with the work's progress. The limit of a wait for the work restarts with every change.
    fn progress(&self) -> u64 {
        0
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks a resident to park, and waits until it is off.
fn wait_until_off(resident: &dyn Resident, limit: Duration) -> Result<()> {
    let (mut patience, mut seen) = (Patience::new(limit), resident.progress());
    while !resident.is_off()? {
        let progress = resident.progress();
        if progress != seen {
            seen = progress;
            patience.progress();
        }
        patience.pause("parking the resident decoder")?;
    }
    Ok(())
}

/// The gate of a context.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
    residents: Mutex<Vec<Known>>,
}

/// Resident work. `hung_at` is its progress when it did not leave in time: until that changes it is polled once, not
/// waited for.
#[derive(Clone)]
struct Known {
    work: Weak<dyn Resident>,
    hung_at: Option<u64>,
}

#[derive(Default)]
struct GateState {
    /// The thread on the exclusive side, and the number of its guards.
    owner: Option<(ThreadId, u32)>,
    /// Number of times that the exclusive side was taken.
    closed: u64,
    /// Threads that wait for the exclusive side. They go before launches; where launches wait as well, only one of them
    /// does.
    closing: Queue,
    launching: u32,
    /// Launches that wait, and whether the first of them is let in before another thread takes the exclusive side.
    passing: Queue,
    admits: bool,
}

impl Gate {
    pub(crate) fn add(&self, resident: &Arc<dyn Resident>) {
        let mut residents = lock(&self.residents);
        residents.retain(|known| known.work.strong_count() > 0);
        residents.push(Known { work: Arc::downgrade(resident), hung_at: None });
    }

    /// Takes everything resident off the device and keeps it off as long as the guard lives. The thread that has the
    /// guard may take another.
    pub(crate) fn close(&self, limit: Duration) -> Result<Quiet<'_>> {
        let me = std::thread::current().id();
        let mut state = lock(&self.state);
        if let Some((owner, depth)) = &mut state.owner
            && *owner == me
        {
            *depth += 1;
            return Ok(Quiet { gate: self, parked: Vec::new() });
        }
        let (mut patience, mut seen) = (Patience::new(limit), state.closed);
        let ticket = state.closing.join();
        while state.owner.is_some()
            || state.launching > 0
            || state.admits && !state.passing.is_empty()
            || !state.closing.is_first(ticket)
        {
            state = self.wait(state, &mut patience, &mut seen);
            if patience.left().is_zero() {
                state.closing.leave(ticket);
                self.changed.notify_all();
                return Err(Error::Stalled { what: "another thread's driver call", waited: limit });
            }
        }
        state.closing.leave(ticket);
        state.closed += 1;
        state.owner = Some((me, 1));
        drop(state);
        let mut quiet = Quiet { gate: self, parked: Vec::new() };
        // Collected first: asking takes its time.
        let known = lock(&self.residents).clone();
        let residents: Vec<_> = known.iter().filter_map(|known| Some((known.work.upgrade()?, known.hung_at))).collect();
        residents.iter().for_each(|(resident, _)| resident.ask(Wish::Park));
        let mut off = Ok(());
        for (resident, hung_at) in &residents {
            let hangs = *hung_at == Some(resident.progress());
            let left = wait_until_off(&**resident, if hangs { Duration::ZERO } else { limit });
            self.remember(resident, matches!(left, Err(Error::Stalled { .. })));
            // All are waited for, also behind one that failed.
            off = off.and(left);
        }
        quiet.parked.extend(residents.into_iter().map(|(resident, _)| resident));
        off.map(|()| quiet)
    }

    fn remember(&self, resident: &Arc<dyn Resident>, hangs: bool) {
        let mut residents = lock(&self.residents);
        if let Some(known) = residents.iter_mut().find(|known| Weak::ptr_eq(&known.work, &Arc::downgrade(resident))) {
            known.hung_at = hangs.then(|| resident.progress());
        }
    }

    /// Keeps the gate open for a launch of resident work.
    #[cfg(feature = "gguf")]
    pub(crate) fn pass(&self, limit: Duration) -> Result<Pass<'_>> {
        let mut state = lock(&self.state);
        let (mut patience, mut seen) = (Patience::new(limit), state.closed);
        let ticket = state.passing.join();
        while state.owner.is_some() || !state.closing.is_empty() && !state.admits || !state.passing.is_first(ticket) {
            state = self.wait(state, &mut patience, &mut seen);
            if patience.left().is_zero() {
                state.passing.leave(ticket);
                self.changed.notify_all();
                return Err(Error::Stalled { what: "another thread's driver call", waited: limit });
            }
        }
        state.passing.leave(ticket);
        state.admits = false;
        state.launching += 1;
        drop(state);
        self.changed.notify_all(); // whoever is first now
        Ok(Pass { gate: self })
    }

    /// Waits for a change. Another call that has its turn at the gate is progress.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, GateState>,
        patience: &mut Patience,
        seen: &mut u64,
    ) -> MutexGuard<'a, GateState> {
        let state = self.changed.wait_timeout(state, patience.left()).unwrap_or_else(PoisonError::into_inner).0;
        if state.closed != *seen {
            *seen = state.closed;
            patience.progress();
        }
        state
    }
}

/// The guard of the gate's exclusive side: no resident work is on the device, and none is launched.
pub(crate) struct Quiet<'a> {
    gate: &'a Gate,
    /// The work that this guard has asked to park; empty for a guard inside another.
    parked: Vec<Arc<dyn Resident>>,
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        self.parked.iter().for_each(|resident| resident.ask(Wish::Stay));
        let mut state = lock(&self.gate.state);
        state.owner = state.owner.and_then(|(owner, depth)| (depth > 1).then_some((owner, depth - 1)));
        state.admits = state.owner.is_none() && !state.passing.is_empty();
        drop(state);
        self.gate.changed.notify_all();
    }
}

/// The guard of the gate's shared side.
#[cfg(feature = "gguf")]
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
}

#[cfg(feature = "gguf")]
impl Drop for Pass<'_> {
    fn drop(&mut self) {
        lock(&self.gate.state).launching -= 1;
        self.gate.changed.notify_all();
    }
}

/// The line in front of a device's multiprocessors. Resident work has its turn alone; other launches share theirs.
#[derive(Default)]
pub(crate) struct Turns {
    state: Mutex<Line>,
    changed: Condvar,
}

#[derive(Default)]
struct Line {
    queue: Queue,
    /// Launches that share a turn now, the streams that they were of lately with the last one's time, and until when more
    /// may join while others wait.
    sharing: u32,
    joined: Vec<(u64, Instant)>,
    joinable: Option<Instant>,
    /// The resident work of the last turn, which may still be on the device.
    resident: Option<Weak<dyn Resident>>,
}

/// The kind of work that a turn is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// A launch that ends by itself, on the stream of that number.
    Shared(u64),
    /// Work that stays.
    Resident,
}

/// The end of a time that begins now, thirty years at most: an `Instant` may overflow.
fn end_of(time: Duration) -> Instant {
    Instant::now() + time.min(Duration::from_secs(1 << 30))
}

impl Line {
    /// Notes a launch of a stream that shares the turn.
    fn join(&mut self, stream: u64, turn: Duration) {
        self.sharing += 1;
        self.joined.retain(|(other, at)| *other != stream && at.elapsed() < turn / 4);
        self.joined.push((stream, Instant::now()));
    }

    /// Whether launches share a turn that is not over. A pause of a quarter of a turn ends it.
    fn is_shared(&self, turn: Duration) -> bool {
        let follow = self.joined.iter().any(|(_, at)| at.elapsed() < turn / 4);
        self.sharing > 0 || follow && self.joinable.is_some_and(|end| Instant::now() < end)
    }
}

impl Turns {
    /// Waits for a turn: first come, first served. Resident work that has the device is asked to yield. `turn` is how
    /// long launches may follow each other in a turn while others wait, `limit` how long a wait without progress lasts.
    pub(crate) fn take(&self, claim: Claim, turn: Duration, limit: Duration) -> Result<Turn<'_>> {
        let mut line = lock(&self.state);
        if let Claim::Shared(stream) = claim
            && line.resident.is_none()
        {
            let joinable = line.joinable.is_some_and(|end| Instant::now() < end);
            if line.queue.is_empty() || joinable && line.is_shared(turn) {
                line.join(stream, turn);
                return Ok(Turn { turns: self, ticket: None });
            }
        }
        if claim == Claim::Resident && line.queue.is_empty() {
            // Who came before keeps the turn for its time.
            line.joinable = Some(end_of(turn));
        }
        let ticket = line.queue.join();
        drop(line);
        let mut taken = Turn { turns: self, ticket: Some(ticket) };
        let mut patience = Patience::new(limit);
        let mut seen = (0, 0);
        loop {
            let line = lock(&self.state);
            let front = line.queue.front().unwrap_or(ticket);
            let waits = front != ticket || claim == Claim::Resident && line.is_shared(turn);
            let resident = line.resident.as_ref().and_then(Weak::upgrade);
            let progress = (front, resident.as_ref().map_or(0, |resident| resident.progress()));
            if progress != seen {
                seen = progress;
                patience.progress();
            }
            if waits {
                // Who goes announces it.
                let left = patience.left().min(Duration::from_millis(5));
                drop(self.changed.wait_timeout(line, left));
                if patience.left().is_zero() {
                    return Err(Error::Stalled { what: "the turn on the device", waited: limit });
                }
                continue;
            }
            drop(line);
            match resident {
                None => break,
                Some(resident) if resident.is_off()? => break,
                Some(resident) => resident.ask(Wish::Yield),
            }
            patience.pause("the turn on the device")?;
        }
        let mut line = lock(&self.state);
        line.resident = None;
        line.joinable = None;
        if let Claim::Shared(stream) = claim {
            line.join(stream, turn);
            taken.ticket = None;
            line.joinable = Some(end_of(turn));
            line.queue.leave(ticket);
        }
        drop(line);
        self.changed.notify_all();
        Ok(taken)
    }

    /// Takes note that no launch of the stream follows for now, so that nobody waits for one.
    #[cfg(feature = "gguf")]
    pub(crate) fn leave(&self, stream: u64) {
        lock(&self.state).joined.retain(|(other, _)| *other != stream);
        self.changed.notify_all();
    }
}

/// A turn on the device.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    /// The place in the line; none for a turn that is shared.
    ticket: Option<u64>,
}

#[cfg(feature = "gguf")]
impl Turn<'_> {
    /// Ends the turn with work on the device that stays there until it is asked to yield.
    pub(crate) fn leave_resident(self, resident: &Arc<dyn Resident>) {
        lock(&self.turns.state).resident = Some(Arc::downgrade(resident));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut line = lock(&self.turns.state);
        match self.ticket {
            Some(ticket) => line.queue.leave(ticket),
            None => line.sharing -= 1,
        }
        drop(line);
        self.turns.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::{Claim, Turns};
    use crate::Error;
    use std::time::{Duration, Instant};

    #[test]
    fn resident_work_waits_for_launches_that_share_a_turn() {
        let (turns, turn, limit) = (Turns::default(), Duration::ZERO, Duration::from_millis(50));
        let shared = [(); 2].map(|()| turns.take(Claim::Shared(0), turn, limit).expect("nobody has the device"));
        for one in shared {
            assert!(matches!(turns.take(Claim::Resident, turn, limit), Err(Error::Stalled { .. })));
            drop(one);
        }
        drop(turns.take(Claim::Resident, turn, limit).expect("the others have gone"));
    }

    /// A sequence on the stream path has its turn as a resident decoder has: for its time, not for one launch.
    #[test]
    fn launches_follow_each_other_in_a_turn_while_resident_work_waits() {
        let (turns, turn, limit) = (Turns::default(), Duration::from_millis(200), Duration::from_secs(20));
        drop(turns.take(Claim::Shared(0), turn, limit).expect("nobody has the device"));
        std::thread::scope(|scope| {
            let begin = Instant::now();
            let turns = &turns;
            let resident = scope.spawn(move || {
                drop(turns.take(Claim::Resident, turn, limit).expect("its turn comes"));
                begin.elapsed()
            });
            while turns.state.lock().expect("no panic").queue.is_empty() {
                std::thread::yield_now();
            }
            let mut launches = 0;
            while !resident.is_finished() {
                let joined = turns.take(Claim::Shared(0), turn, limit).expect("in its turn, or behind the other");
                launches += u32::from(!resident.is_finished());
                drop(joined);
                std::thread::sleep(Duration::from_millis(1));
            }
            let waited = resident.join().expect("no panic");
            assert!(launches >= 10, "{launches} launches in {waited:?}");
            assert!((turn..turn * 20).contains(&waited), "{waited:?}");
        });
        // A pause ends a turn: nobody waits for launches that do not come.
        drop(turns.take(Claim::Shared(0), turn * 50, limit).expect("nobody has the device"));
        std::thread::sleep(turn);
        let begin = Instant::now();
        drop(turns.take(Claim::Resident, turn, limit).expect("nobody has the device"));
        assert!(begin.elapsed() < turn / 2, "{:?}", begin.elapsed());
    }

    #[test]
    #[cfg(feature = "gguf")]
    fn nobody_waits_for_launches_of_a_stream_that_has_left() {
        let (turns, turn, limit) = (Turns::default(), Duration::from_secs(20), Duration::from_millis(50));
        let launch = |stream| drop(turns.take(Claim::Shared(stream), turn, limit).expect("nobody has the device"));
        launch(1);
        launch(2);
        turns.leave(1);
        assert!(matches!(turns.take(Claim::Resident, turn, limit), Err(Error::Stalled { .. })), "the other may go on");
        turns.leave(2);
        drop(turns.take(Claim::Resident, turn, limit).expect("nobody has the device"));
    }
}
