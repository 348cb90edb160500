//! What lanes know of each other, and the locations through which they pass it on.

use super::clock::Vc;
use super::order::{HOST, Operation};
use super::race::LATEST;
use crate::exec::access::Access;
use crate::exec::inst::{Scope, Sem};
use crate::exec::lanes::Lanes;
use std::collections::HashMap;
use std::sync::Arc;

/// What a lane has learned and is ready to pass on.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub(crate) vc: Arc<Vc>,
    /// What its relaxed writes pass on: its knowledge at the last fence, of any scope, and of gpu scope or wider.
    released: [Option<Arc<Vc>>; 2],
    /// Read from strong locations since the last fence, and whether that must be of gpu scope or wider.
    pending: Vec<(Arc<Vc>, bool)>,
}

/// The clocks of one warp.
#[derive(Debug)]
pub(crate) struct WarpClock {
    warp: u32,
    clock: u32,
    /// Lanes that the warp has.
    full: u32,
    pub(crate) lanes: Vec<Lane>,
}

fn join_arc(a: &mut Arc<Vc>, b: &Arc<Vc>) {
    if !Arc::ptr_eq(a, b) {
        Arc::make_mut(a).join(b);
    }
}

impl WarpClock {
    pub(crate) fn new(vc: &Arc<Vc>, warp: u32, full: u32) -> WarpClock {
        let lane = Lane { vc: vc.clone(), released: [None, None], pending: Vec::new() };
        WarpClock { warp, clock: 0, full, lanes: vec![lane; 32] }
    }

    /// The clock of what happens now.
    pub(crate) fn now(&self) -> u32 {
        self.clock.min(LATEST)
    }

    /// What lanes know together, themselves included; their later accesses are not part of it.
    pub(crate) fn gather(&mut self, mask: u32) -> Arc<Vc> {
        let mut lanes = Lanes(mask);
        let mut vc = self.lanes[lanes.next().unwrap_or(0)].vc.clone();
        lanes.for_each(|l| join_arc(&mut vc, &self.lanes[l].vc));
        self.clock += 1;
        Arc::make_mut(&mut vc).raise(self.warp, mask, self.full, self.clock);
        vc
    }

    /// A lane learns something.
    pub(crate) fn learn(&mut self, lane: usize, vc: &Arc<Vc>) {
        join_arc(&mut self.lanes[lane].vc, vc);
    }

    /// Lanes know exactly this from now on; it includes what they knew.
    pub(crate) fn adopt(&mut self, mask: u32, vc: &Arc<Vc>) {
        Lanes(mask).for_each(|l| self.lanes[l].vc = vc.clone());
    }

    /// A fence: what was read before it is learned, what was done before it is released by later writes.
    pub(crate) fn fence(&mut self, mask: u32, scope: Scope) {
        let wide = scope >= Scope::Cluster;
        self.clock += 1;
        for l in Lanes(mask) {
            let Lane { vc, released, pending } = &mut self.lanes[l];
            pending.extract_if(.., |p| wide || !p.1).for_each(|(read, _)| join_arc(vc, &read));
            let mut told = vc.clone();
            Arc::make_mut(&mut told).raise(self.warp, 1 << l, self.full, self.clock);
            if wide {
                released[1] = Some(told.clone());
            }
            released[0] = Some(told);
        }
    }

    /// A fence between the ordinary and the async proxy.
    pub(crate) fn proxy_fence(&mut self, mask: u32) {
        self.clock += 1;
        for l in Lanes(mask) {
            let vc = Arc::make_mut(&mut self.lanes[l].vc);
            vc.raise(self.warp, 1 << l, self.full, self.clock);
            vc.proxy_fence();
        }
    }
}

/// A location through which threads synchronise: what its value carries within a block, and further, by launch.
#[derive(Debug, Default)]
struct SyncLocation {
    near: Option<Arc<Vc>>,
    far: Vec<Arc<Vc>>,
}

/// Locations by address, and the operations that use them and are not over for everybody.
#[derive(Debug, Default)]
pub(crate) struct SyncLocations {
    locations: HashMap<u64, SyncLocation>,
    pub(crate) operations: HashMap<u32, Arc<Operation>>,
}

impl SyncLocations {
    /// A lane's strong access.
    pub(crate) fn strong(&mut self, op: &Operation, warp: &mut WarpClock, lane: usize, address: u64, access: &Access) {
        let at = self.locations.entry(address).or_default();
        let wide = access.scope >= Scope::Cluster;
        if !access.write || access.atomic {
            let Lane { vc, pending, .. } = &mut warp.lanes[lane];
            let me = vc.block();
            // What ended before `op` began, by the program's own order, is known to it as a whole.
            let is_news = |launch: u32| {
                let other = || self.operations.get(&launch).is_some_and(|other| !op.follows(other));
                launch == op.id || launch == HOST || other()
            };
            let near = at.near.iter().filter(|vc| vc.block() == me).map(|vc| (vc, false));
            let far = at.far.iter().filter(|vc| wide && is_news(vc.block().0)).map(|vc| (vc, true));
            for (read, needs_wide) in near.chain(far) {
                if matches!(access.sem, Sem::Acquire | Sem::AcqRel) {
                    join_arc(vc, read);
                } else if !pending.iter().any(|p| Arc::ptr_eq(&p.0, read)) {
                    pending.push((read.clone(), needs_wide));
                }
            }
        }
        if access.write {
            let [near, far] = if access.sem >= Sem::Release {
                let told = warp.gather(1 << lane);
                [Some(told.clone()), Some(told)]
            } else {
                warp.lanes[lane].released.clone()
            };
            // A read-modify-write continues what it read.
            if !access.atomic {
                *at = SyncLocation::default();
            }
            if let Some(told) = near {
                match &mut at.near {
                    Some(vc) if vc.block() == told.block() => join_arc(vc, &told),
                    slot => *slot = Some(told),
                }
            }
            if let Some(told) = far.filter(|_| wide) {
                match at.far.iter_mut().find(|vc| vc.block().0 == told.block().0) {
                    Some(vc) => join_arc(vc, &told),
                    None => at.far.push(told),
                }
            }
        }
    }

    /// Forgets operations that are over for everybody.
    pub(crate) fn forget(&mut self, is_over: impl Fn(u32) -> bool) {
        self.locations.retain(|_, at| {
            at.near.take_if(|vc| is_over(vc.block().0));
            at.far.retain(|vc| !is_over(vc.block().0));
            at.near.is_some() || !at.far.is_empty()
        });
    }
}
