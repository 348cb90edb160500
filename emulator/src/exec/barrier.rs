//! Barriers of a block, as since Volta: arrivals count in warps, and a warp arrives with the last of its lanes.

use super::block::Common;
use super::inst::{BarOp, BarRed, NONE, Op, W};
use super::mbarrier::CLUSTER;
use super::step::Flow;
use super::warp::{Part, State, Warp};
use super::{Cpu, Site};
use crate::machine::fault::{FaultKind, OrFault};
use crate::machine::lanes::Lanes;

/// A barrier, one of a block's sixteen.
#[derive(Debug, Default)]
pub(crate) struct Barrier {
    /// Thread count, if the instructions give one.
    pub(crate) count: Option<u32>,
    /// Arrivals in order: warp, lanes, and whether they wait.
    pub(crate) parties: Vec<(u32, u32, bool)>,
    /// Lanes of a reduction, and the votes for true among them.
    lanes: u32,
    votes: u32,
}

impl Barrier {
    /// Threads that have arrived; a warp counts 32 once all its live lanes have.
    pub(crate) fn arrived(&self, common: &Common) -> u32 {
        let (mut warps, mut partial) = (0, [0u32; 32]);
        let first = self.parties.first().map_or(0, |p| p.0 / common.warps * common.warps);
        for &(warp, mask, _) in &self.parties {
            let everyone = || self.parties.iter().filter(|p| p.0 == warp).fold(0, |m, p| m | p.1);
            let live = common.live[warp as usize];
            let needed = if live == 0 { everyone() } else { live };
            let here = &mut partial[(warp - first) as usize];
            *here |= mask;
            // Parts that are complete together are one arrival.
            if *here & needed == needed {
                (warps, *here) = (warps + 1, 0);
            }
        }
        32 * warps
    }
}

impl Common {
    /// A complete barrier with waiters to release.
    pub(crate) fn complete(&self) -> Option<usize> {
        (0..self.barriers.len()).find(|&id| {
            let b = &self.barriers[id];
            !b.parties.is_empty() && (1..=b.arrived(self)).contains(&self.expected(id))
        })
    }

    /// Lanes exit. Barriers no longer expect them.
    pub(crate) fn exit(&mut self, warp: &Warp, lanes: u32) {
        self.live[warp.id as usize] &= !lanes;
        for l in Lanes(lanes) {
            if self.mbarriers.get_mut(&CLUSTER).is_some_and(|b| b.leave(warp.cluster[l])) {
                self.observers.mbarrier_complete(CLUSTER);
            }
        }
    }

    /// Threads that a barrier expects.
    pub(crate) fn expected(&self, id: usize) -> u32 {
        let warps = self.live.chunks(self.warps as usize).nth(id / 16).unwrap_or_default();
        self.barriers[id].count.unwrap_or_else(|| 32 * warps.iter().filter(|&&l| l != 0).count() as u32)
    }
}

impl Cpu<'_> {
    /// `bar` and `barrier`.
    pub(crate) fn bar(&mut self, site: &mut Site<'_>, op: &BarOp) -> OrFault<Flow> {
        let (m, all, warp) = (site.m, site.all, site.warp.id);
        if op.aligned && self.cx.config.checks.synccheck {
            if m != all {
                let lane = (all & !m).trailing_zeros() as usize;
                let message = "a barrier whose guard differs between the lanes of a warp";
                return Err(self.fault(FaultKind::DivergentBarrier, &site.at, Some(lane), message));
            }
            if m != site.common.live[warp as usize] {
                return Ok(Flow::Park(State::Members, 0));
            }
        }
        if m != all {
            return Ok(site.scatter());
        }
        let lane = m.trailing_zeros() as usize;
        let fail = |kind, message: String| Err(self.fault(kind, &site.at, Some(lane), message));
        let uniform = |r: u32| {
            let v = site.warp.lane32(self.cx.code, r, lane);
            Lanes(m).all(|l| site.warp.lane32(self.cx.code, r, l) == v).then_some(v)
        };
        let count = if op.count == NONE { Some(None) } else { uniform(op.count).map(Some) };
        let (Some(id), Some(count)) = (uniform(op.id), count) else {
            let message = "the lanes of a warp give different barriers or thread counts";
            return fail(FaultKind::DivergentBarrier, message.into());
        };
        if id >= 16 {
            return fail(FaultKind::InvalidSync, format!("barrier {id}: there are 16"));
        }
        let most = self.cx.layout.warps * 32;
        if let Some(count) = count.filter(|&n| n == 0 || n % 32 != 0 || n > most) {
            let message =
                format!("thread count {count} of a barrier: a multiple of 32 up to the block's {most} is needed");
            return fail(FaultKind::InvalidSync, message);
        }
        let own = 16 * (warp / self.cx.layout.warps) + id;
        let b = &mut site.common.barriers[own as usize];
        if !b.parties.is_empty() && b.count != count {
            let [some, others] = [b.count, count].map(|c| c.map_or("all".into(), |c| c.to_string()));
            let message = format!("barrier {id} is waited for with {some} threads by some and with {others} by others");
            return fail(FaultKind::DivergentBarrier, message);
        }
        b.count = count;
        b.parties.push((warp, m, op.waits));
        if let Some((_, p, ..)) = op.red {
            b.lanes += m.count_ones();
            b.votes += (site.warp.preds[p as usize] & m).count_ones();
        }
        site.common.observers.barrier_arrive(warp, m, own as usize);
        Ok(match op.waits {
            true => Flow::Park(State::Barrier(own as u8), 0),
            false if site.common.complete().is_some() => Flow::Park(State::Ready, 1),
            false => Flow::Next,
        })
    }

    /// Writes the result of `bar.red` for a released part.
    pub(crate) fn barrier_result(&mut self, warp: &mut Warp, part: &Part, b: &Barrier) {
        let Op::Bar(op) = &self.cx.code.insts[part.pc as usize].op else { return };
        let Some((kind, _, p, d)) = op.red else { return };
        let value = match kind {
            BarRed::Popc => {
                return Lanes(part.mask).for_each(|l| warp.set_lane(d, W::W32, l, u64::from(b.votes)));
            }
            BarRed::And => b.votes == b.lanes,
            BarRed::Or => b.votes != 0,
        };
        warp.set_pred(p, if value { part.mask } else { 0 }, part.mask);
    }
}
