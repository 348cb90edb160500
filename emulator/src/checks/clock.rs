//! Vector clocks whose threads are lanes, kept small: per warp one number for all its lanes, and numbers per lane only
//! where lanes differ.
//!
//! A warp's clock counts its synchronising steps. An access is known to a thread if the thread's entry for the accessing
//! warp (or lane) is greater than the warp's clock at the access.

use super::race::Record;
use crate::exec::lanes::Lanes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is known of one warp.
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
type Warps = Arc<Vec<Entry>>;

/// What is known of every warp.
#[derive(Debug, Clone)]
struct Clocks {
    block: Key,
    own: Warps,
    foreign: Arc<BTreeMap<Key, Warps>>,
}

impl Clocks {
    #[inline(always)]
    fn know(&self, launch: u32, r: Record) -> bool {
        let block = (launch, r.block());
        let warps = if block == self.block { Some(&self.own) } else { self.foreign.get(&block) };
        warps.is_some_and(|w| w[r.warp() as usize].knows(r.lane(), r.clock()))
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

/// What a thread knows.
#[derive(Debug, Clone)]
pub(crate) struct Vc {
    known: Clocks,
    /// Known, and made visible to the async proxy.
    proxied: Clocks,
    /// The kernel before this one is known to be over.
    pub(crate) waited: bool,
}

impl Vc {
    /// A thread that knows nothing.
    pub(crate) fn new(block: Key, warps: u32) -> Vc {
        let own = Arc::new(vec![Entry::default(); warps as usize]);
        let known = Clocks { block, own, foreign: Arc::default() };
        Vc { proxied: known.clone(), known, waited: false }
    }

    /// The thread's launch and block.
    #[inline(always)]
    pub(crate) fn block(&self) -> Key {
        self.known.block
    }

    /// Whether an access of a launch happened before.
    pub(crate) fn knows(&self, launch: u32, access: Record) -> bool {
        self.known.know(launch, access)
    }

    /// Whether an access of its own launch happened before.
    #[inline(always)]
    pub(crate) fn knows_own(&self, access: Record) -> bool {
        self.known.know(self.block().0, access)
    }

    /// Whether an access of its launch happened before and was made visible to the async proxy since.
    pub(crate) fn knows_proxied(&self, access: Record) -> bool {
        self.proxied.know(self.block().0, access)
    }

    /// Whether anything is known of another launch.
    pub(crate) fn has_met(&self, launch: u32) -> bool {
        self.known.foreign.range((launch, 0)..=(launch, u32::MAX)).next().is_some()
    }

    /// Forgets launches.
    pub(crate) fn forget(&mut self, is_over: impl Fn(u32) -> bool) {
        for clocks in [&mut self.known, &mut self.proxied] {
            Arc::make_mut(&mut clocks.foreign).retain(|block, _| !is_over(block.0));
        }
    }

    /// Learns all that another thread knows.
    pub(crate) fn join(&mut self, other: &Vc) {
        self.waited |= other.waited && self.block().0 == other.block().0;
        self.known.join(&other.known);
        self.proxied.join(&other.proxied);
    }

    /// Learns of some lanes of a warp of its own block, up to a clock.
    pub(crate) fn raise(&mut self, warp: u32, mask: u32, full: u32, clock: u32) {
        Arc::make_mut(&mut self.known.own)[warp as usize].raise(mask, full, clock);
    }

    /// A proxy fence: all that is known is visible to the async proxy.
    pub(crate) fn proxy_fence(&mut self) {
        self.proxied = self.known.clone();
    }
}
