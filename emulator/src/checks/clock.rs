//! Vector clocks whose threads are lanes. They are compressed: one number for all lanes of a warp, and one per lane
//! only where lanes differ, as in [BARRACUDA](https://doi.org/10.1145/3062341.3062342).
//!
//! A warp's clock counts its releases and fences. An access happens before a thread's next one if the thread's entry
//! for the accessing warp (or lane) is greater than the clock at the access.

use super::frontier::Frontier;
use super::record::{BLOCK, CLOCK, LANE, LATEST, Record, WARP};
use crate::machine::access::Scope;
use crate::machine::lanes::Lanes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Clock entry of one warp.
#[derive(Debug, Clone, Default)]
struct Entry {
    all: u32,
    lanes: Option<Arc<[u32; 32]>>,
}

impl Entry {
    #[inline(always)]
    fn knows(&self, lane: u32, clock: u32) -> bool {
        self.all > clock || self.lanes.as_ref().is_some_and(|l| l[lane as usize] > clock)
    }

    fn raise(&mut self, mask: u32, full: u32, clock: u32) {
        if mask == full {
            self.all = self.all.max(clock);
            self.lanes.take_if(|l| l.iter().all(|&c| c <= self.all));
            return;
        }
        let lanes = Arc::make_mut(self.lanes.get_or_insert_with(|| Arc::new([0; 32])));
        Lanes(mask).for_each(|l| lanes[l] = lanes[l].max(clock));
    }

    fn join(&mut self, other: &Entry) {
        self.all = self.all.max(other.all);
        match (&mut self.lanes, &other.lanes) {
            (None, theirs) => self.lanes = theirs.clone(),
            (Some(mine), Some(theirs)) if !Arc::ptr_eq(mine, theirs) => {
                Arc::make_mut(mine).iter_mut().zip(theirs.iter()).for_each(|(a, b)| *a = (*a).max(*b));
            }
            _ => {}
        }
    }
}

/// A launch and one of its blocks.
type Key = (u32, u32);
type Warps = Arc<[Entry]>;

/// A vector clock over all warps of all launches.
#[derive(Debug, Clone)]
pub(crate) struct Clocks {
    block: Key,
    own: Warps,
    foreign: Arc<BTreeMap<Key, Warps>>,
}

impl Clocks {
    /// Whether an access of a launch happened before.
    #[inline(always)]
    pub(crate) fn know(&self, launch: u32, access: Record) -> bool {
        let block = (launch, access.get(BLOCK));
        let warps = if block == self.block { Some(&self.own) } else { self.of(block) };
        warps.is_some_and(|w| w[access.get(WARP) as usize].knows(access.get(LANE), access.get(CLOCK)))
    }

    /// Entries of another block. Not inlined, to keep the check of a block's own accesses small.
    #[inline(never)]
    fn of(&self, block: Key) -> Option<&Warps> {
        self.foreign.get(&block)
    }

    /// Whether there is an entry for any warp of another block.
    pub(crate) fn has_others(&self) -> bool {
        !self.foreign.is_empty()
    }

    /// Whether there is an entry for any warp of a launch.
    pub(crate) fn has_met(&self, launch: u32) -> bool {
        self.foreign.range((launch, 0)..=(launch, u32::MAX)).next().is_some()
    }

    fn join(&mut self, other: &Clocks) {
        self.join_block(other.block, &other.own);
        if !Arc::ptr_eq(&self.foreign, &other.foreign) {
            other.foreign.iter().for_each(|(block, warps)| self.join_block(*block, warps));
        }
    }

    fn join_block(&mut self, block: Key, warps: &Warps) {
        let mine = if block == self.block {
            &mut self.own
        } else {
            Arc::make_mut(&mut self.foreign).entry(block).or_insert_with(|| warps.clone())
        };
        if !Arc::ptr_eq(mine, warps) {
            Arc::make_mut(mine).iter_mut().zip(warps.iter()).for_each(|(a, b)| a.join(b));
        }
    }
}

/// Knowledge of a thread: all that happened before its next access.
#[derive(Debug, Clone)]
pub(crate) struct Vc {
    /// Accesses that happened before.
    pub(crate) known: Clocks,
    /// Accesses that happened before and were made visible to the async proxy.
    pub(crate) proxied: Clocks,
    /// Operations that are over.
    pub(crate) over: Arc<Frontier>,
}

impl Vc {
    /// Knowledge of a thread at its start.
    pub(crate) fn new(block: Key, warps: u32, over: &Arc<Frontier>) -> Vc {
        let own = vec![Entry::default(); warps as usize].into();
        let known = Clocks { block, own, foreign: Arc::default() };
        Vc { proxied: known.clone(), known, over: over.clone() }
    }

    /// The thread's launch and block.
    pub(crate) fn block(&self) -> Key {
        self.known.block
    }

    /// Forgets launches.
    pub(crate) fn forget(&mut self, is_over: impl Fn(u32) -> bool) {
        for clocks in [&mut self.known, &mut self.proxied] {
            Arc::make_mut(&mut clocks.foreign).retain(|block, _| !is_over(block.0));
        }
    }

    /// Joins another thread's knowledge.
    pub(crate) fn join(&mut self, other: &Vc) {
        self.known.join(&other.known);
        self.proxied.join(&other.proxied);
        self.learn_over(&other.over);
    }

    /// Learns that operations are over.
    pub(crate) fn learn_over(&mut self, order: &Arc<Frontier>) {
        if Arc::ptr_eq(&self.over, order) || self.over.includes(order) {
            return;
        }
        match order.includes(&self.over) {
            true => self.over = order.clone(),
            false => Arc::make_mut(&mut self.over).join(order),
        }
    }
}

/// Joins knowledge; often both are one allocation.
pub(crate) fn join(a: &mut Arc<Vc>, b: &Arc<Vc>) {
    if !Arc::ptr_eq(a, b) {
        Arc::make_mut(a).join(b);
    }
}

/// Knowledge, and its number, which is also that of later knowledge that continues it and so has all of it.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) vc: Arc<Vc>,
    pub(crate) number: u64,
}

/// Knowledge that relaxed reads of a lane have met since its last fence; whether only a fence of gpu scope or wider acquires
/// it.
#[derive(Debug, Clone)]
pub(crate) struct Met {
    pub(crate) told: Told,
    pub(crate) wide: bool,
}

impl Met {
    /// Joins it to what the lane knows.
    pub(crate) fn join_to(&self, vc: &mut Arc<Vc>) {
        join(vc, &self.told.vc);
    }
}

/// Knowledge of a lane, and what its fences have prepared.
#[derive(Debug, Clone)]
pub(crate) struct LaneClock {
    pub(crate) vc: Arc<Vc>,
    /// Knowledge that relaxed writes release: at the last fence of any scope, and of gpu scope or wider.
    pub(crate) released: [Option<Arc<Vc>>; 2],
    /// What relaxed reads have met since the last fence.
    pub(crate) pending: Vec<Met>,
}

/// The clocks of one warp.
#[derive(Debug)]
pub(crate) struct WarpClock {
    warp: u32,
    clock: u32,
    /// Mask of the lanes that the warp has.
    full: u32,
    pub(crate) lanes: Vec<LaneClock>,
}

impl WarpClock {
    pub(crate) fn new(vc: &Arc<Vc>, warp: u32, full: u32) -> WarpClock {
        let lane = LaneClock { vc: vc.clone(), released: [None, None], pending: Vec::new() };
        WarpClock { warp, clock: 0, full, lanes: vec![lane; 32] }
    }

    /// The present clock.
    pub(crate) fn now(&self) -> u32 {
        self.clock.min(LATEST)
    }

    /// The joined knowledge of lanes, with their own accesses up to now.
    fn told(&self, mask: u32) -> Arc<Vc> {
        let mut lanes = Lanes(mask);
        let mut vc = self.lanes[lanes.next().unwrap_or(0)].vc.clone();
        lanes.for_each(|l| join(&mut vc, &self.lanes[l].vc));
        let own = &mut Arc::make_mut(&mut vc).known.own;
        Arc::make_mut(own)[self.warp as usize].raise(mask, self.full, self.clock);
        vc
    }

    /// A release by lanes: their joined knowledge, without their later accesses.
    pub(crate) fn gather(&mut self, mask: u32) -> Arc<Vc> {
        self.clock += 1;
        self.told(mask)
    }

    pub(crate) fn learn(&mut self, lane: usize, vc: &Arc<Vc>) {
        join(&mut self.lanes[lane].vc, vc);
    }

    /// Lanes synchronise with each other.
    pub(crate) fn synced(&mut self, mask: u32) {
        let vc = self.gather(mask);
        self.adopt(mask, &vc);
    }

    /// Replaces the knowledge of lanes by one that includes it.
    pub(crate) fn adopt(&mut self, mask: u32, vc: &Arc<Vc>) {
        Lanes(mask).for_each(|l| self.lanes[l].vc = vc.clone());
    }

    /// A fence: acquires through earlier relaxed reads, and lets later relaxed writes release.
    pub(crate) fn fence(&mut self, mask: u32, scope: Scope) {
        let wide = scope >= Scope::Gpu;
        self.clock += 1;
        for l in Lanes(mask) {
            let LaneClock { vc, pending, .. } = &mut self.lanes[l];
            pending.extract_if(.., |met| wide || !met.wide).for_each(|met| met.join_to(vc));
            let told = self.told(1 << l);
            self.lanes[l].released[..=usize::from(wide)].fill(Some(told));
        }
    }

    /// A fence between the ordinary and the async proxy.
    pub(crate) fn proxy_fence(&mut self, mask: u32) {
        self.clock += 1;
        for l in Lanes(mask) {
            let mut told = self.told(1 << l);
            let vc = Arc::make_mut(&mut told);
            vc.proxied = vc.known.clone();
            self.lanes[l].vc = told;
        }
    }

    /// Lanes have waited for operations.
    pub(crate) fn waited(&mut self, mask: u32, order: &Arc<Frontier>) {
        Lanes(mask).for_each(|l| Arc::make_mut(&mut self.lanes[l].vc).learn_over(order));
    }
}
