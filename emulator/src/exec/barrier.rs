//! Barriers of a block, as since Volta: counted in warps, a warp having arrived when all its lanes have.

use super::block::Common;
use super::inst::{BarOp, BarRed, NONE, Op, W};
use super::lanes::Lanes;
use super::mbarrier::CLUSTER;
use super::warp::{Part, Warp};
use super::{Cpu, Exec, FaultKind, Site};

/// One of a block's sixteen barriers.
#[derive(Debug, Default)]
pub(crate) struct Barrier {
    /// Threads expected, if the instructions say so.
    pub(crate) count: Option<u32>,
    /// Warps and lanes that arrived, in order, and whether they wait.
    pub(crate) parties: Vec<(u32, u32, bool)>,
    /// Reductions so far.
    popc: u32,
    all: bool,
    any: bool,
    reduced: bool,
}

impl Barrier {
    /// Threads that arrived, counted in warps: one whose lanes come in parts has arrived with the last that is alive.
    pub(crate) fn arrived(&self, common: &Common) -> u32 {
        let everyone = |warp: u32| self.parties.iter().filter(|p| p.0 == warp).fold(0, |m, p| m | p.1);
        let live = |warp: u32| match common.live[warp as usize] {
            0 => everyone(warp),
            live => live,
        };
        let (mut warps, mut partial) = (0, [0u32; 32]);
        for &(warp, mask, _) in &self.parties {
            let live = live(warp);
            let before = partial[warp as usize];
            // Parts that are complete together are one arrival.
            let together = (before | mask) & live == live;
            warps += u32::from(together);
            partial[warp as usize] = if together { 0 } else { before | mask };
        }
        32 * warps
    }

    /// Threads whose arrival completes the barrier.
    pub(crate) fn expected(&self, common: &Common) -> u32 {
        self.count.unwrap_or_else(|| 32 * common.live.iter().filter(|&&l| l != 0).count() as u32)
    }
}

impl Cpu<'_> {
    /// Arrival of a part at a barrier. The barrier may then be complete.
    pub(crate) fn arrive(&mut self, site: &mut Site<'_>, op: &BarOp) -> Exec<u8> {
        let Site { common, warp, m: mask, at, .. } = site;
        let (mask, lane) = (*mask, mask.trailing_zeros() as usize);
        let uniform = |r: u32| {
            let v = warp.lane32(self.cx.code, r, lane);
            Lanes(mask).all(|l| warp.lane32(self.cx.code, r, l) == v).then_some(v)
        };
        let given = op.count != NONE;
        let (Some(id), Some(count)) = (uniform(op.id), if given { uniform(op.count) } else { Some(0) }) else {
            let message = "the lanes of a warp give different barriers or thread counts";
            return Err(self.fault(FaultKind::DivergentBarrier, at, Some(lane), message));
        };
        if id >= 16 {
            return Err(self.fault(FaultKind::InvalidSync, at, Some(lane), format!("barrier {id}: there are 16")));
        }
        if given && (count == 0 || count % 32 != 0 || count > self.cx.warps * 32) {
            let most = self.cx.warps * 32;
            let message =
                format!("thread count {count} of a barrier: a multiple of 32 up to the block's {most} is needed");
            return Err(self.fault(FaultKind::InvalidSync, at, Some(lane), message));
        }
        let count = given.then_some(count);
        let b = &mut common.barriers[id as usize];
        if !b.parties.is_empty() && b.count != count {
            let [some, others] = [b.count, count].map(|c| c.map_or("all".into(), |c| c.to_string()));
            let message = format!("barrier {id} is waited for with {some} threads by some and with {others} by others");
            return Err(self.fault(FaultKind::DivergentBarrier, at, Some(lane), message));
        }
        b.count = count;
        b.parties.push((warp.id, mask, op.waits));
        if let Some((_, p, negated, _, _)) = op.red {
            let v = warp.pred(p, negated) & mask;
            if !b.reduced {
                (b.all, b.any, b.popc, b.reduced) = (true, false, 0, true);
            }
            b.popc += v.count_ones();
            b.all &= v == mask;
            b.any |= v != 0;
        }
        self.check_barrier(common, id as usize);
        Ok(id as u8)
    }

    fn check_barrier(&mut self, common: &mut Common, id: usize) {
        let b = &common.barriers[id];
        let expected = b.expected(common);
        if !b.parties.is_empty() && expected > 0 && b.arrived(common) >= expected {
            common.complete |= 1 << id;
        }
    }

    /// Lanes have exited: barriers may be complete without them.
    pub(crate) fn lanes_exited(&mut self, common: &mut Common, warp: &Warp) {
        let gone = std::mem::replace(&mut common.live[warp.id as usize], warp.live) & !warp.live;
        if let Some(b) = common.mbarriers.get_mut(&CLUSTER) {
            Lanes(gone).for_each(|l| b.leave(warp.cluster[l]));
        }
        for id in 0..16 {
            self.check_barrier(common, id);
        }
    }

    /// Writes the result of `bar.red` for a part that is released.
    pub(crate) fn barrier_result(&mut self, warp: &mut Warp, part: &Part, b: &Barrier) {
        let Op::Bar(op) = &self.cx.code.insts[part.pc as usize].op else { return };
        let Some((kind, _, _, p, d)) = op.red else { return };
        let value = match kind {
            BarRed::Popc => {
                return Lanes(part.mask).for_each(|l| warp.set_lane(d, W::W32, l, u64::from(b.popc)));
            }
            BarRed::And => b.all,
            BarRed::Or => b.any,
        };
        warp.set_pred(p, if value { part.mask } else { 0 }, part.mask);
    }
}
