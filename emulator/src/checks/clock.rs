//! Vector clocks whose threads are lanes, kept small: per warp one number for all its lanes, and numbers per lane only
//! where lanes differ.
//!
//! A warp's clock counts its synchronising steps. An access is known to a thread if the thread's entry for the accessing
//! warp (or lane) is greater than the warp's clock at the access.

use std::sync::Arc;

/// What is known of one warp.
#[derive(Debug, Clone, Default)]
pub(crate) struct Entry {
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
            if self.lanes.as_ref().is_some_and(|l| l.iter().all(|&c| c <= self.all)) {
                self.lanes = None;
            }
            return;
        }
        let lanes = Arc::make_mut(self.lanes.get_or_insert_with(|| Arc::new([0; 32])));
        for l in crate::exec::lanes::Lanes(mask) {
            lanes[l] = lanes[l].max(clock);
        }
    }

    fn join(&mut self, other: &Entry) {
        self.all = self.all.max(other.all);
        match (&mut self.lanes, &other.lanes) {
            (_, None) => {}
            (None, Some(o)) => self.lanes = Some(o.clone()),
            (Some(a), Some(o)) if Arc::ptr_eq(a, o) => {}
            (Some(a), Some(o)) => {
                let a = Arc::make_mut(a);
                a.iter_mut().zip(o.iter()).for_each(|(a, o)| *a = (*a).max(*o));
            }
        }
    }
}

type Warps = Arc<Vec<Entry>>;
/// A launch and one of its blocks.
type Key = (u32, u32);

/// What is known of every warp.
#[derive(Debug, Clone)]
pub(crate) struct Clocks {
    own: Warps,
    /// Other blocks, by launch and number, in order.
    foreign: Arc<Vec<(Key, Warps)>>,
}

fn join_warps(a: &mut Warps, b: &Warps) {
    if !Arc::ptr_eq(a, b) {
        Arc::make_mut(a).iter_mut().zip(b.iter()).for_each(|(a, b)| a.join(b));
    }
}

impl Clocks {
    fn new(warps: u32) -> Clocks {
        Clocks { own: Arc::new(vec![Entry::default(); warps as usize]), foreign: Arc::default() }
    }

    fn of(&self, me: Key, block: Key) -> Option<&Warps> {
        if block == me {
            return Some(&self.own);
        }
        self.foreign.binary_search_by_key(&block, |f| f.0).ok().map(|i| &self.foreign[i].1)
    }

    fn join_block(&mut self, me: Key, block: Key, warps: &Warps) {
        if block == me {
            join_warps(&mut self.own, warps);
            return;
        }
        let list = Arc::make_mut(&mut self.foreign);
        match list.binary_search_by_key(&block, |f| f.0) {
            Ok(i) => join_warps(&mut list[i].1, warps),
            Err(i) => list.insert(i, (block, warps.clone())),
        }
    }

    fn join(&mut self, me: Key, other: &Clocks, other_block: Key) {
        self.join_block(me, other_block, &other.own);
        if me == other_block && Arc::ptr_eq(&self.foreign, &other.foreign) {
            return;
        }
        for (block, warps) in other.foreign.iter() {
            self.join_block(me, *block, warps);
        }
    }
}

/// What a thread knows.
#[derive(Debug, Clone)]
pub(crate) struct Vc {
    block: Key,
    known: Clocks,
    /// Known, and made visible to the async proxy.
    proxied: Clocks,
    /// The kernel before this one is known to be over.
    pub(crate) waited: bool,
}

impl Vc {
    /// A thread that knows nothing.
    pub(crate) fn new(block: Key, warps: u32) -> Vc {
        Vc { block, known: Clocks::new(warps), proxied: Clocks::new(warps), waited: false }
    }

    /// Whether an access happened before.
    #[inline(always)]
    pub(crate) fn knows(&self, block: u32, warp: u32, lane: u32, clock: u32) -> bool {
        if block == self.block.1 {
            return self.known.own[warp as usize].knows(lane, clock);
        }
        self.knows_of(self.block.0, block, warp, lane, clock)
    }

    /// The same of any launch.
    pub(crate) fn knows_of(&self, launch: u32, block: u32, warp: u32, lane: u32, clock: u32) -> bool {
        self.known.of(self.block, (launch, block)).is_some_and(|w| w[warp as usize].knows(lane, clock))
    }

    /// Whether anything is known of a launch.
    pub(crate) fn has_met(&self, launch: u32) -> bool {
        self.known.foreign.iter().any(|f| f.0.0 == launch)
    }

    /// Forgets launches.
    pub(crate) fn forget(&mut self, is_over: impl Fn(u32) -> bool) {
        for clocks in [&mut self.known, &mut self.proxied] {
            if clocks.foreign.iter().any(|f| is_over(f.0.0)) {
                Arc::make_mut(&mut clocks.foreign).retain(|f| !is_over(f.0.0));
            }
        }
    }

    pub(crate) fn launch(&self) -> u32 {
        self.block.0
    }

    /// Whether an access happened before and was made visible to the async proxy since.
    pub(crate) fn proxied(&self, block: u32, warp: u32, lane: u32, clock: u32) -> bool {
        self.proxied.of(self.block, (self.block.0, block)).is_some_and(|w| w[warp as usize].knows(lane, clock))
    }

    /// Learns all that another thread knows.
    pub(crate) fn join(&mut self, other: &Vc) {
        self.waited |= other.waited && self.block.0 == other.block.0;
        self.known.join(self.block, &other.known, other.block);
        self.proxied.join(self.block, &other.proxied, other.block);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knowledge_passes_through_a_chain_of_blocks() {
        let (mut a, mut b, mut c) = (Vc::new((9, 1), 2), Vc::new((9, 2), 2), Vc::new((9, 3), 2));
        a.raise(1, 1 << 4, u32::MAX, 7);
        b.join(&a);
        c.join(&b);
        assert!(c.knows(1, 1, 4, 6));
        assert!(!c.knows(1, 1, 4, 7), "an access at the clock of the release is later than it");
        assert!(!c.knows(1, 1, 5, 6), "other lanes released nothing");
        assert!(!c.knows(1, 0, 4, 0));
        assert!(!c.proxied(1, 1, 4, 6));
        c.proxy_fence();
        assert!(c.proxied(1, 1, 4, 6));
    }
}
