//! Times of a block's warps, registers and barriers.

use super::report::Stall;
use crate::machine::mix::MixMap;

/// Polls that a warp's loops are told apart by.
const POLLS: usize = 64;

/// Instructions by which a load from shared memory comes before what waits for it: in ptxas 13.5's code for sm_90 it is 32 to
/// 46 in the median of 18 of 20 stretches of a tile's and the persistent decoder's text, 9 and 19 in that of the others.
const AHEAD: usize = 40;

/// Time of a warp, in clocks.
#[derive(Debug, Default)]
pub(crate) struct WarpTime {
    /// Nothing issues before this.
    pub(super) floor: u64,
    /// The last issue so far.
    pub(super) latest: u64,
    /// The issue of the instruction at hand.
    pub(super) now: u64,
    /// When each register's value is there, and what who waits for it waits for.
    pub(super) ready: Vec<(u64, Stall)>,
    recent: Recent,
    /// The instruction before.
    pub(super) before: u32,
    /// Iterations of an unrolled loop that are one so far.
    pub(super) turns: u32,
    /// Issue of the last store: a load may not go before it.
    pub(super) stored: u64,
    /// When the copies that the instruction at hand issued have landed.
    pub(super) copied: u64,
    /// When the last product of its warpgroup that it issued is there.
    pub(super) product: u64,
    /// When tensor cores can begin with the next one.
    pub(super) products_begin: u64,
    /// Words that it has looked at since it last did anything.
    pub(super) polls: Vec<Poll>,
    /// Whether its last look was in vain.
    pub(super) vain: bool,
    /// Whether it looks at the host's memory in vain: such looks take no slots, as many as the host's own time makes them.
    pub(super) asks: bool,
    /// Clocks waited, in the order of [`Stall::ALL`].
    pub(super) stalls: [u64; 4],
}

/// The last issues, and the place of the next one, which has that of the first of them.
#[derive(Debug)]
struct Recent {
    next: usize,
    issues: [u64; AHEAD],
}

impl Default for Recent {
    fn default() -> Recent {
        Recent { next: 0, issues: [0; AHEAD] }
    }
}

/// A word that a warp has looked at.
#[derive(Debug)]
pub(super) struct Poll {
    pub(super) key: u64,
    /// The time of the first look, and what the warp had waited by then.
    first: u64,
    stalls: [u64; 4],
    /// The issue of the last look, before time went back, and the clocks from the result of one to the issue of the next.
    pub(super) last: Option<u64>,
    pub(super) between: u64,
    /// The last look whose bytes were charged.
    pub(super) charged: u64,
}

impl WarpTime {
    /// Nothing goes before clock `at`: the warp waits for it.
    pub(super) fn wait(&mut self, at: u64, stall: Stall) {
        self.stalls[stall as usize] += at.saturating_sub(self.latest);
        self.latest = self.latest.max(at);
        self.floor = self.floor.max(self.latest);
    }

    /// Notes the issue of an instruction.
    pub(super) fn issued(&mut self, at: u64) {
        let Recent { next, issues } = &mut self.recent;
        issues[*next] = at;
        *next = (*next + 1) % AHEAD;
    }

    /// The issue of the instruction that a load from shared memory does not come before.
    pub(super) fn far_back(&self) -> u64 {
        self.recent.issues[self.recent.next]
    }

    /// The warp has done something that others may see.
    pub(super) fn acts(&mut self) {
        self.polls.clear();
        self.asks = false;
    }

    /// Registers have what memory brings no earlier than at a clock.
    pub(super) fn brings(&mut self, registers: &[u32], at: u64, stall: Stall) {
        for &r in registers {
            let ready = &mut self.ready[r as usize];
            *ready = (ready.0.max(at), stall);
        }
    }

    /// The warp looks at something by a key, into registers. If it did so before and has done nothing since, that look was
    /// in vain: time goes back to it. Returns the time of the look.
    pub(super) fn looks(&mut self, key: u64, registers: &[u32]) -> u64 {
        let known = self.polls.len();
        match self.polls.iter_mut().find(|poll| poll.key == key) {
            Some(poll) => {
                let Poll { first, stalls, .. } = *poll;
                poll.between = poll.last.map_or(0, |last| self.now.saturating_sub(last));
                poll.last = Some(self.now);
                self.vain = true;
                (self.now, self.latest, self.floor) = (first, first, first);
                self.stalls = stalls;
                registers.iter().for_each(|&r| self.ready[r as usize].0 = first);
            }
            None if known < POLLS => {
                let (first, stalls) = (self.now, self.stalls);
                self.polls.push(Poll { key, first, stalls, last: None, between: 0, charged: first });
            }
            None => {}
        }
        self.now
    }
}

/// Arrivals at an mbarrier: of the phase at hand, and of the last one.
#[derive(Debug, Default)]
struct Phases {
    arriving: u64,
    passed: u64,
}

/// Times of a block, or of all blocks of a cluster.
#[derive(Debug, Default)]
pub(crate) struct BlockTime {
    /// The multiprocessors of its ranks, with the number of the first warp there, and warps of each.
    pub(super) places: Vec<(u32, u32)>,
    pub(super) each: u32,
    pub(super) begin: u64,
    pub(super) warps: Vec<WarpTime>,
    /// The last arrival at each barrier.
    barriers: Vec<u64>,
    mbarriers: MixMap<u64, Phases>,
    /// When all its stores so far are known to have been seen.
    pub(super) stores: u64,
    /// Clocks from a barrier's last arrival to what follows, and besides for each of its warps.
    barrier: [u64; 2],
}

impl BlockTime {
    /// A block whose warps begin at clock `begin`.
    pub(crate) fn new(places: Vec<(u32, u32)>, each: u32, registers: usize, begin: u64, barrier: [u64; 2]) -> Self {
        let warp = || WarpTime {
            floor: begin,
            latest: begin,
            ready: vec![(0, Stall::Dependency); registers],
            ..WarpTime::default()
        };
        let count = places.len() * each as usize;
        BlockTime {
            begin,
            barrier,
            warps: (0..count).map(|_| warp()).collect(),
            barriers: vec![0; 16 * places.len()],
            places,
            each,
            ..BlockTime::default()
        }
    }

    /// The multiprocessor of a warp.
    pub(super) fn place(&self, warp: u32) -> usize {
        self.places[(warp / self.each) as usize].0 as usize
    }

    /// A warp's number among those of its multiprocessor.
    pub(super) fn number(&self, warp: u32) -> u32 {
        self.places[(warp / self.each) as usize].1.wrapping_add(warp % self.each)
    }

    /// A warp's time.
    pub(crate) fn time(&self, warp: u32) -> u64 {
        self.warps[warp as usize].latest
    }

    /// Whether a warp's last look was in vain, which is forgotten.
    pub(crate) fn take_vain(&mut self, warp: u32) -> bool {
        std::mem::take(&mut self.warps[warp as usize].vain)
    }

    /// A warp has slept until a clock.
    pub(crate) fn slept(&mut self, warp: u32, until: u64) {
        self.warps[warp as usize].wait(until, Stall::Barrier);
    }

    /// A warp arrives at a barrier.
    pub(crate) fn arrive(&mut self, warp: u32, barrier: usize) {
        let time = &mut self.warps[warp as usize];
        time.acts();
        self.barriers[barrier] = self.barriers[barrier].max(time.latest);
    }

    /// A barrier completes: its waiters go on after the last arrival.
    pub(crate) fn complete(&mut self, barrier: usize, waiters: impl Iterator<Item = u32> + Clone) {
        let [least, each] = self.barrier;
        let at = std::mem::take(&mut self.barriers[barrier]) + least + each * waiters.clone().count() as u64;
        waiters.for_each(|warp| self.warps[warp as usize].wait(at, Stall::Barrier));
    }

    /// A warp arrives at an mbarrier.
    pub(crate) fn arrive_at_mbarrier(&mut self, warp: u32, mbarrier: u64) {
        let at = self.warps[warp as usize].now;
        self.tell_mbarrier(mbarrier, at);
    }

    /// Something arrives at an mbarrier at a clock.
    pub(crate) fn tell_mbarrier(&mut self, mbarrier: u64, at: u64) {
        let phases = self.mbarriers.entry(mbarrier).or_default();
        phases.arriving = phases.arriving.max(at);
    }

    /// The phase of an mbarrier completes.
    pub(crate) fn end_phase(&mut self, mbarrier: u64) {
        let phases = self.mbarriers.entry(mbarrier).or_default();
        phases.passed = std::mem::take(&mut phases.arriving);
    }

    /// A warp has seen the end of an mbarrier's last phase.
    pub(crate) fn pass_mbarrier(&mut self, warp: u32, mbarrier: u64) {
        let at = self.mbarriers.get(&mbarrier).map_or(0, |phases| phases.passed);
        let time = &mut self.warps[warp as usize];
        time.acts();
        time.wait(at, Stall::Barrier);
    }

    /// When the copies that a warp has just issued land.
    pub(crate) fn copied(&self, warp: u32) -> u64 {
        self.warps[warp as usize].copied
    }

    /// When the product that a warp has just issued is there.
    pub(crate) fn product(&self, warp: u32) -> u64 {
        self.warps[warp as usize].product
    }

    /// A warp waits for products that are there at a clock.
    pub(crate) fn wait_for_products(&mut self, warp: u32, at: u64) {
        self.warps[warp as usize].wait(at, Stall::Dependency);
    }

    /// A warp waits for copies that land at a clock.
    pub(crate) fn wait_for_copies(&mut self, warp: u32, at: u64) {
        self.warps[warp as usize].wait(at, Stall::Memory);
    }

    /// The last issue of any warp.
    pub(super) fn end(&self) -> u64 {
        self.warps.iter().map(|warp| warp.latest).max().unwrap_or(self.begin)
    }

    /// Clocks that its warps waited on the mean, by stall.
    pub(super) fn stalls(&self) -> [f64; 4] {
        let mean = |k: usize| self.warps.iter().map(|warp| warp.stalls[k] as f64).sum::<f64>();
        std::array::from_fn(|k| mean(k) / self.warps.len().max(1) as f64)
    }
}
