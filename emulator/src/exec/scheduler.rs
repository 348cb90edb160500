//! Blocks over the host's threads, reproducibly.
//!
//! Blocks that do not communicate run freely, each to its end on one thread. If the kernel has instructions by which
//! blocks may communicate (atomics, ordered and volatile accesses), the blocks run in rounds: in parallel up to such an
//! instruction, which all of them then execute one after the other in an order that the schedule decides. What happens
//! between two of these is private to the block unless the kernel races, and races are reported; so a seed gives the
//! same run on any number of cores, and spin loops see what they wait for.

use super::block::{Block, BlockStop};
use super::fault::{Fault, FaultKind};
use super::{Cpu, Exec, LaunchCx};
use crate::launch::Schedule;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Blocks resident at a time when they need not all be.
const RESIDENT: u64 = 8;
/// Rounds without any change after which the adversary lets go of the block it holds back.
const PATIENCE: u32 = 4;
/// Rounds after which it lets go in any case: a resident block runs at some time.
const HELD: u32 = 2000;

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Slot {
    block: Option<Block>,
    stop: BlockStop,
    fault: Option<Box<Fault>>,
}

/// Runs all blocks of a launch.
pub(crate) fn run(cx: &LaunchCx<'_>) -> Result<Outcome, Box<Fault>> {
    let total: u64 = cx.launch.grid.iter().map(|&g| u64::from(g)).product();
    // A thread for every few warps: starting one takes as long as running a small block.
    let useful = (total.saturating_mul(u64::from(cx.warps)) / 4).clamp(1, total);
    let threads = cx.config.host_threads().min(usize::try_from(useful).unwrap_or(usize::MAX));
    if cx.free { free(cx, total, threads) } else { rounds(cx, total, threads) }
}

/// What a launch leaves behind.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) counts: crate::checks::counters::Counts,
    pub(crate) steps: u64,
}

fn free(cx: &LaunchCx<'_>, total: u64, threads: usize) -> Result<Outcome, Box<Fault>> {
    let next = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    // Of several faults, that of the lowest block is reported, so that it does not depend on timing.
    let fault: Mutex<Option<(u64, Box<Fault>)>> = Mutex::new(None);
    let outcome = Mutex::new(Outcome::default());
    let steps = AtomicU64::new(0);
    let worker = || {
        let mut cpu = Cpu::new(cx);
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= total || failed.load(Ordering::Relaxed) {
                break;
            }
            if let Err(f) = whole(cx, &mut cpu, i, &steps) {
                failed.store(true, Ordering::Relaxed);
                let mut slot = lock(&fault);
                if slot.as_ref().is_none_or(|(b, _)| i < *b) {
                    *slot = Some((i, f));
                }
                break;
            }
        }
        lock(&outcome).add(cpu);
    };
    in_parallel(threads, &worker);
    match fault.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, f)) => Err(f),
        None => Ok(outcome.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

impl Outcome {
    fn add(&mut self, cpu: Cpu<'_>) {
        self.steps += cpu.steps;
        self.counts.add(&cpu.counters);
    }
}

/// Runs one block to its end.
fn whole(cx: &LaunchCx<'_>, cpu: &mut Cpu<'_>, linear: u64, steps: &AtomicU64) -> Exec<()> {
    let mut block = Block::new(cx, linear);
    cpu.time = 0u64.wrapping_sub(cpu.steps);
    let mut idle = 0;
    loop {
        let before = cpu.steps;
        cpu.progress = false;
        let stop = block.run(cpu)?;
        let taken = steps.fetch_add(cpu.steps - before, Ordering::Relaxed) + cpu.steps - before;
        // Without ordered accesses it cannot be waiting for anybody, so it computes.
        let progress = cpu.progress || !cx.code.takes_turns;
        if let Some((kind, message)) = cx.watch.stop(progress, cpu.steps - before) {
            return Err(deadlock(cx, &[&block], kind, &message));
        }
        limit(cx, &[&block], taken)?;
        match stop {
            BlockStop::Exited => return Ok(()),
            BlockStop::Again => idle = 0,
            BlockStop::Blocked(Some(wake)) => {
                idle += 1;
                if cx.config.livelock_rounds.is_some_and(|limit| idle > limit) {
                    let message = format!("{idle} times in a row every warp has only polled in vain");
                    return Err(deadlock(cx, &[&block], FaultKind::Deadlock, &message));
                }
                cpu.time = wake.wrapping_sub(cpu.steps);
            }
            BlockStop::Blocked(None) => return Err(deadlock(cx, &[&block], FaultKind::Deadlock, "no warp can go on")),
        }
    }
}

fn limit(cx: &LaunchCx<'_>, blocks: &[&Block], steps: u64) -> Exec<()> {
    match cx.config.step_limit {
        Some(limit) if steps > limit => {
            let message = format!("the launch took more than {limit} warp instructions");
            Err(deadlock(cx, blocks, FaultKind::StepLimit, &message))
        }
        _ => Ok(()),
    }
}

/// A report of where every warp stands.
fn deadlock(cx: &LaunchCx<'_>, blocks: &[&Block], kind: FaultKind, message: &str) -> Box<Fault> {
    let mut text = String::from(message);
    for (shown, b) in blocks.iter().enumerate() {
        if shown == 16 {
            text.push_str("\n  ...");
            break;
        }
        b.describe(cx, &mut text);
    }
    let at = blocks.iter().find_map(|b| b.stands());
    let cpu = Cpu::new(cx);
    match at {
        Some(at) => cpu.fault(kind, &at, None, text),
        None => cpu.fault(kind, &super::At { pc: u32::MAX, warp: 0, ctaid: [0; 3] }, None, text),
    }
}

/// Runs `worker` on the caller's thread and `threads - 1` others.
fn in_parallel(threads: usize, worker: &(dyn Fn() + Sync)) {
    std::thread::scope(|s| {
        for _ in 1..threads {
            s.spawn(worker);
        }
        worker();
    });
}

/// Warp instructions of a round below which it is not worth waking the other threads for the next.
const SMALL: u64 = 20_000;

/// A barrier between the host's threads that does not sleep at once: rounds are short.
struct Meet {
    threads: usize,
    arrived: AtomicUsize,
    generation: AtomicUsize,
}

impl Meet {
    /// The last to arrive runs `f` while the others wait.
    fn wait(&self, f: impl FnOnce()) {
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            f();
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.fetch_add(1, Ordering::Release);
            return;
        }
        let mut spins = 0;
        while self.generation.load(Ordering::Acquire) == generation {
            spins += 1;
            if spins < 200 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

/// Lets the other threads go if this one panics.
struct Abandon<'a>(&'a Rounds, &'a Meet);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.done.store(true, Ordering::Release);
            self.1.generation.fetch_add(1, Ordering::Release);
        }
    }
}

/// What the threads of a launch in rounds share.
struct Rounds {
    slots: Vec<Mutex<Slot>>,
    next: AtomicUsize,
    done: AtomicBool,
    /// Virtual time at the start of the round.
    time: AtomicU64,
    /// Most steps one block took in the round, and all together.
    longest: AtomicU64,
    all: AtomicU64,
    progress: AtomicBool,
    /// The block that is held back.
    held: AtomicUsize,
}

impl Rounds {
    /// Runs blocks until each stands at an instruction that takes turns.
    fn parallel(&self, cpu: &mut Cpu<'_>) {
        let now = self.time.load(Ordering::Relaxed);
        let skip = self.held.load(Ordering::Relaxed);
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(slot) = self.slots.get(i) else { break };
            if i == skip {
                continue;
            }
            let mut slot = lock(slot);
            let slot = &mut *slot;
            let Some(block) = &mut slot.block else { continue };
            let before = cpu.steps;
            cpu.time = now.wrapping_sub(before);
            cpu.progress = false;
            match block.run(cpu) {
                Ok(stop) => slot.stop = stop,
                Err(f) => slot.fault = Some(f),
            }
            // A block that used up its instructions computes: one that polls comes to a turn or sleeps.
            let computed = cpu.steps - before >= super::block::TURN || slot.stop == BlockStop::Exited;
            if cpu.progress || computed {
                self.progress.store(true, Ordering::Relaxed);
            }
            self.longest.fetch_max(cpu.steps - before, Ordering::Relaxed);
            self.all.fetch_add(cpu.steps - before, Ordering::Relaxed);
        }
    }
}

fn rounds(cx: &LaunchCx<'_>, total: u64, threads: usize) -> Result<Outcome, Box<Fault>> {
    let resident = if cx.launch.cooperative { total } else { total.min(RESIDENT.max(u64::from(cx.resident))) };
    let slots: Vec<Mutex<Slot>> = (0..resident)
        .map(|i| Mutex::new(Slot { block: Some(Block::new(cx, i)), stop: BlockStop::Again, fault: None }))
        .collect();
    let threads = threads.min(slots.len());
    let meet = Meet { threads, arrived: AtomicUsize::new(0), generation: AtomicUsize::new(0) };
    let mut leader = Leader {
        cx,
        next_block: resident,
        total,
        order: (0..slots.len()).collect(),
        random: cx.config.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        idle: 0,
        idle_total: 0,
        held: None,
        held_for: 0,
    };
    let shared = Rounds {
        slots,
        next: AtomicUsize::new(0),
        done: AtomicBool::new(false),
        time: AtomicU64::new(0),
        longest: AtomicU64::new(0),
        all: AtomicU64::new(0),
        progress: AtomicBool::new(false),
        held: AtomicUsize::new(usize::MAX),
    };
    leader.choose_held(&shared);
    let leader = Mutex::new(leader);
    let outcome = Mutex::new(Outcome::default());
    let result: Mutex<Option<Box<Fault>>> = Mutex::new(None);
    let worker = || {
        let _abandon = Abandon(&shared, &meet);
        let mut cpu = Cpu::new(cx);
        while !shared.done.load(Ordering::Acquire) {
            shared.parallel(&mut cpu);
            meet.wait(|| {
                let mut leader = lock(&leader);
                loop {
                    let more = leader.serial(&shared, &mut cpu);
                    let small = shared.all.swap(0, Ordering::Relaxed) < SMALL;
                    shared.next.store(0, Ordering::Relaxed);
                    match more {
                        Ok(true) if small => shared.parallel(&mut cpu),
                        Ok(true) => break,
                        Ok(false) => {
                            shared.done.store(true, Ordering::Release);
                            break;
                        }
                        Err(f) => {
                            *lock(&result) = Some(f);
                            shared.done.store(true, Ordering::Release);
                            break;
                        }
                    }
                }
            });
        }
        lock(&outcome).add(cpu);
    };
    in_parallel(threads, &worker);
    match result.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(f) => Err(f),
        None => Ok(outcome.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// State of the serial part of a round.
struct Leader<'a> {
    cx: &'a LaunchCx<'a>,
    next_block: u64,
    total: u64,
    order: Vec<usize>,
    random: u64,
    /// Rounds in which nothing changed.
    idle: u32,
    idle_total: u64,
    held: Option<usize>,
    /// Rounds since it is.
    held_for: u32,
}

impl Leader<'_> {
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// The adversary picks a block to hold back.
    fn choose_held(&mut self, shared: &Rounds) {
        self.held_for = 0;
        self.held = match self.cx.config.schedule {
            Schedule::Adversarial if self.order.len() > 1 => Some(self.random() as usize % self.order.len()),
            _ => None,
        };
        shared.held.store(self.held.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// Executes the instructions that take turns, starts new blocks, and decides whether there is more to do.
    fn serial(&mut self, shared: &Rounds, cpu: &mut Cpu<'_>) -> Exec<bool> {
        let slots = &shared.slots;
        let advanced = shared.longest.swap(0, Ordering::Relaxed).max(1);
        let now = shared.time.fetch_add(advanced, Ordering::Relaxed) + advanced;
        let moved = shared.progress.swap(false, Ordering::Relaxed);
        for slot in slots {
            if let Some(f) = lock(slot).fault.take() {
                return Err(f);
            }
        }
        if self.cx.config.schedule != Schedule::RoundRobin {
            for i in (1..self.order.len()).rev() {
                let j = self.random() as usize % (i + 1);
                self.order.swap(i, j);
            }
        }
        cpu.progress = moved;
        cpu.time = now.wrapping_sub(cpu.steps);
        let (mut ran, mut live, mut wake) = (false, false, None::<u64>);
        for &i in &self.order {
            let mut slot = lock(&slots[i]);
            let slot = &mut *slot;
            let Some(block) = &mut slot.block else { continue };
            live = true;
            if self.held == Some(i) {
                continue;
            }
            match slot.stop {
                BlockStop::Exited => {
                    cpu.progress = true;
                    slot.block = (self.next_block < self.total).then(|| Block::new(self.cx, self.next_block));
                    self.next_block += u64::from(slot.block.is_some());
                    slot.stop = BlockStop::Again;
                    ran = true;
                }
                BlockStop::Again => {
                    block.take_turn(cpu)?;
                    ran = true;
                }
                BlockStop::Blocked(Some(w)) => wake = Some(wake.map_or(w, |x| x.min(w))),
                BlockStop::Blocked(None) => {}
            }
        }
        if !live {
            return Ok(false);
        }
        self.idle = if cpu.progress { 0 } else { self.idle + 1 };
        self.idle_total = if cpu.progress { 0 } else { self.idle_total + 1 };
        self.held_for += 1;
        if self.held.is_some() && (!ran || self.idle >= PATIENCE || self.held_for > HELD) {
            // Nothing moves without the held block: let it go, and hold another one later.
            self.idle = 0;
            self.choose_held(shared);
            if self.order.len() > 1 && !ran {
                self.held = None;
                shared.held.store(usize::MAX, Ordering::Relaxed);
            }
            return Ok(true);
        }
        if self.held.is_none() && self.cx.config.schedule == Schedule::Adversarial && cpu.progress {
            self.choose_held(shared);
        }
        let progress = cpu.progress;
        let mut report = |kind, message: &str| {
            let mut guards: Vec<_> = slots.iter().map(lock).collect();
            // On to where each warp stands next: polling shows at the load, not at what follows it.
            for block in guards.iter_mut().filter_map(|g| g.block.as_mut()) {
                block.run(cpu)?;
            }
            let blocks: Vec<&Block> = guards.iter().filter_map(|g| g.block.as_ref()).collect();
            Err(deadlock(self.cx, &blocks, kind, message))
        };
        if !ran {
            match wake {
                Some(w) => {
                    shared.time.fetch_max(w, Ordering::Relaxed);
                }
                None => return report(FaultKind::Deadlock, "no warp of any resident block can go on"),
            }
        }
        if let Some((kind, message)) = self.cx.watch.stop(progress, advanced) {
            return report(kind, &message);
        }
        if let Some(limit) = self.cx.config.step_limit
            && now > limit
        {
            return report(FaultKind::StepLimit, &format!("a block took more than {limit} warp instructions"));
        }
        if let Some(limit) = self.cx.config.livelock_rounds
            && self.idle_total > limit
        {
            let message = format!("for {limit} rounds every warp has only polled what nobody changes");
            return report(FaultKind::Deadlock, &message);
        }
        if !progress {
            std::thread::yield_now();
        }
        Ok(true)
    }
}
