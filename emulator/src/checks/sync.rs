//! What lanes know of each other, and the locations through which they pass it on.

use super::clock::Vc;
use crate::exec::access::Access;
use crate::exec::inst::{Scope, Sem};
use std::collections::HashMap;
use std::sync::Arc;

/// What a lane has learned and is ready to pass on.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub(crate) vc: Arc<Vc>,
    /// State at the last fence of any scope, and of gpu scope or wider: clock and knowledge.
    released: [Option<(u32, Arc<Vc>)>; 2],
    /// Read from strong locations since the last fence: for readers of any scope, of gpu scope or wider.
    pending: Vec<(Arc<Vc>, bool)>,
}

/// The clocks of one warp.
#[derive(Debug)]
pub(crate) struct WarpClock {
    pub(crate) clock: u32,
    pub(crate) full: u32,
    pub(crate) lanes: Vec<Lane>,
}

/// A location through which threads synchronise: what its value carries within a block, and further, by launch.
#[derive(Debug, Default)]
pub(crate) struct SyncLocation {
    cta: Option<((u32, u32), Arc<Vc>)>,
    gpu: Vec<Arc<Vc>>,
}

impl SyncLocation {
    /// Forgets what operations told that are over for everybody; whether anything is left.
    pub(crate) fn settle(&mut self, is_over: impl Fn(u32) -> bool) -> bool {
        self.cta.take_if(|(key, _)| is_over(key.0));
        self.gpu.retain(|vc| !is_over(vc.launch()));
        self.cta.is_some() || !self.gpu.is_empty()
    }
}

/// Locations by address.
pub(crate) type SyncLocations = HashMap<u64, SyncLocation>;

fn join_arc(a: &mut Arc<Vc>, b: &Arc<Vc>) {
    if !Arc::ptr_eq(a, b) {
        Arc::make_mut(a).join(b);
    }
}

impl WarpClock {
    pub(crate) fn new(vc: &Arc<Vc>, full: u32) -> WarpClock {
        let lane = Lane { vc: vc.clone(), released: [None, None], pending: Vec::new() };
        WarpClock { clock: 0, full, lanes: vec![lane; 32] }
    }

    /// What lanes know together, themselves included; their later accesses are not part of it.
    pub(crate) fn gather(&mut self, warp: u32, mask: u32) -> Arc<Vc> {
        let mut lanes = crate::exec::lanes::Lanes(mask);
        let first = lanes.next().unwrap_or(0);
        let mut vc = self.lanes[first].vc.clone();
        for l in lanes {
            let other = self.lanes[l].vc.clone();
            join_arc(&mut vc, &other);
        }
        Arc::make_mut(&mut vc).raise(warp, mask, self.full, self.clock + 1);
        self.clock += 1;
        vc
    }

    /// Lanes learn something.
    pub(crate) fn learn(&mut self, mask: u32, vc: &Arc<Vc>) {
        let mut made: Option<(Arc<Vc>, Arc<Vc>)> = None;
        for l in crate::exec::lanes::Lanes(mask) {
            let lane = &mut self.lanes[l].vc;
            // Lanes that knew the same know the same afterwards.
            match &made {
                Some((before, after)) if Arc::ptr_eq(before, lane) => *lane = after.clone(),
                _ => {
                    let before = lane.clone();
                    join_arc(lane, vc);
                    made = Some((before, lane.clone()));
                }
            }
        }
    }

    /// Lanes know exactly this from now on; it includes what they knew.
    pub(crate) fn adopt(&mut self, mask: u32, vc: &Arc<Vc>) {
        crate::exec::lanes::Lanes(mask).for_each(|l| self.lanes[l].vc = vc.clone());
    }

    /// A fence: what was read before it is learned, what was done before it is released by later writes.
    pub(crate) fn fence(&mut self, mask: u32, scope: Scope) {
        let wide = scope >= Scope::Cluster;
        for l in crate::exec::lanes::Lanes(mask) {
            let lane = &mut self.lanes[l];
            for (vc, needs_wide) in std::mem::take(&mut lane.pending) {
                if wide || !needs_wide {
                    join_arc(&mut lane.vc, &vc);
                } else {
                    lane.pending.push((vc, needs_wide));
                }
            }
            let state = (self.clock, lane.vc.clone());
            lane.released[0] = Some(state.clone());
            if wide {
                lane.released[1] = Some(state);
            }
        }
        self.clock += 1;
    }

    /// What a lane's strong write carries: within its block, and further.
    pub(crate) fn carried(&mut self, warp: u32, lane: u32, access: &Access) -> [Option<Arc<Vc>>; 2] {
        let wide = access.scope >= Scope::Cluster;
        if access.sem >= Sem::Release {
            let vc = self.gather(warp, 1 << lane);
            return [Some(vc.clone()), wide.then_some(vc)];
        }
        let full = self.full;
        let state = |s: &Option<(u32, Arc<Vc>)>| {
            s.as_ref().map(|(clock, vc)| {
                let mut vc = vc.clone();
                Arc::make_mut(&mut vc).raise(warp, 1 << lane, full, clock + 1);
                vc
            })
        };
        let released = &self.lanes[lane as usize].released;
        [state(&released[0]), if wide { state(&released[1]) } else { None }]
    }

    /// A lane's strong access to a synchronising location. `known` are operations that ended before this one began.
    pub(crate) fn strong(
        &mut self,
        at: &mut SyncLocation,
        block: (u32, u32),
        warp: u32,
        lane: u32,
        access: &Access,
        known: impl Fn(u32) -> bool,
    ) {
        let wide = access.scope >= Scope::Cluster;
        let reads = !access.write || access.atomic;
        if reads {
            let acquires = matches!(access.sem, Sem::Acquire | Sem::AcqRel);
            let near = at.cta.as_ref().filter(|(b, _)| *b == block).map(|(_, vc)| (vc, false));
            let far = at.gpu.iter().filter(|vc| wide && !known(vc.launch())).map(|vc| (vc, true));
            let lane = &mut self.lanes[lane as usize];
            for (vc, needs_wide) in near.into_iter().chain(far) {
                if acquires {
                    join_arc(&mut lane.vc, vc);
                } else if !lane.pending.iter().any(|p| Arc::ptr_eq(&p.0, vc)) {
                    lane.pending.push((vc.clone(), needs_wide));
                }
            }
        }
        if access.write {
            let [near, far] = self.carried(warp, lane, access);
            if access.atomic {
                // A read-modify-write continues what it read.
                match (&mut at.cta, near) {
                    (Some((b, vc)), Some(n)) if *b == block => join_arc(vc, &n),
                    (slot, Some(n)) => *slot = Some((block, n)),
                    _ => {}
                }
                if let Some(far) = far {
                    match at.gpu.iter_mut().find(|vc| vc.launch() == block.0) {
                        Some(vc) => join_arc(vc, &far),
                        None => at.gpu.push(far),
                    }
                }
            } else {
                at.cta = near.map(|n| (block, n));
                at.gpu.clear();
                at.gpu.extend(far);
            }
        }
    }
}
