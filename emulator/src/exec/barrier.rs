//! Barriers of a block, as since Volta: counted in warps, a warp having arrived when all its lanes have.

use super::block::Common;
use super::inst::{BarOp, BarRed, Op, W};
use super::warp::{Part, Warp};
use super::{At, Cpu, Exec, FaultKind};

/// One of a block's sixteen barriers.
#[derive(Debug, Default)]
pub(crate) struct Barrier {
    /// Threads that arrived, counted in warps.
    pub(crate) arrived: u32,
    /// Threads expected, if the instructions say so.
    pub(crate) count: Option<u32>,
    /// Lanes that arrived of warps that are not complete yet.
    pub(crate) partial: Vec<(u32, u32)>,
    /// Warps and lanes that arrived, in order, and whether they wait.
    pub(crate) parties: Vec<(u32, u32, bool)>,
    /// Reductions so far.
    popc: u32,
    all: bool,
    any: bool,
    reduced: bool,
}

impl Barrier {
    /// Threads whose arrival completes the barrier.
    pub(crate) fn expected(&self, common: &Common) -> u32 {
        self.count.unwrap_or_else(|| 32 * common.live.iter().filter(|&&l| l != 0).count() as u32)
    }
}

impl Cpu<'_> {
    /// Arrival of a part at a barrier. The barrier may then be complete.
    pub(crate) fn arrive(&mut self, common: &mut Common, warp: &Warp, mask: u32, op: &BarOp, at: &At) -> Exec<u8> {
        let lane = mask.trailing_zeros() as usize;
        let uniform = |r: u32| {
            let v = warp.lane32(self.cx.code, r, lane);
            super::lanes::Lanes(mask).all(|l| warp.lane32(self.cx.code, r, l) == v).then_some(v)
        };
        let (Some(id), Some(count)) =
            (uniform(op.id), if op.count == super::inst::NONE { Some(0) } else { uniform(op.count) })
        else {
            let message = "the lanes of a warp give different barriers or thread counts";
            return Err(self.fault(FaultKind::DivergentBarrier, at, Some(lane), message));
        };
        if id >= 16 {
            return Err(self.fault(FaultKind::InvalidSync, at, Some(lane), format!("barrier {id}: there are 16")));
        }
        let given = op.count != super::inst::NONE;
        if given && (count == 0 || count % 32 != 0 || count > self.cx.warps * 32) {
            let message = format!(
                "thread count {count} of a barrier: a multiple of 32 up to the block's {} is needed",
                self.cx.warps * 32
            );
            return Err(self.fault(FaultKind::InvalidSync, at, Some(lane), message));
        }
        let count = given.then_some(count);
        let b = &mut common.barriers[id as usize];
        if !b.parties.is_empty() && b.count != count {
            let message = format!(
                "barrier {id} is waited for with {} threads by some and with {} by others",
                b.count.map_or("all".into(), |c| c.to_string()),
                count.map_or("all".into(), |c| c.to_string())
            );
            return Err(self.fault(FaultKind::DivergentBarrier, at, Some(lane), message));
        }
        b.count = count;
        b.parties.push((warp.id, mask, op.waits));
        if let Some((_, p, negated, _, _)) = op.red {
            let v = warp.preds[usize::from(p)];
            let v = if negated { !v } else { v } & mask;
            if !b.reduced {
                (b.all, b.any, b.popc, b.reduced) = (true, false, 0, true);
            }
            b.popc += v.count_ones();
            b.all &= v == mask;
            b.any |= v != 0;
        }
        let live = warp.live;
        if mask == live {
            b.arrived += 32;
        } else {
            let slot = match b.partial.iter().position(|p| p.0 == warp.id) {
                Some(i) => i,
                None => {
                    b.partial.push((warp.id, 0));
                    b.partial.len() - 1
                }
            };
            b.partial[slot].1 |= mask;
            if b.partial[slot].1 & live == live {
                b.partial.swap_remove(slot);
                b.arrived += 32;
            }
        }
        self.check_barrier(common, id as usize);
        Ok(id as u8)
    }

    fn check_barrier(&mut self, common: &mut Common, id: usize) {
        let b = &common.barriers[id];
        let expected = b.expected(common);
        if !b.parties.is_empty() && b.arrived >= expected && expected > 0 {
            common.complete |= 1 << id;
        }
    }

    /// Lanes have exited: barriers may be complete without them.
    pub(crate) fn lanes_exited(&mut self, common: &mut Common, warp: &Warp) {
        common.live[warp.id as usize] = warp.live;
        for id in 0..16 {
            let b = &mut common.barriers[id];
            if b.parties.is_empty() {
                continue;
            }
            if let Some(i) = b.partial.iter().position(|p| p.0 == warp.id && p.1 & warp.live == warp.live)
                && warp.live != 0
            {
                b.partial.swap_remove(i);
                b.arrived += 32;
            }
            self.check_barrier(common, id);
        }
    }

    /// Writes the result of `bar.red` for a part that is released.
    pub(crate) fn barrier_result(&mut self, warp: &mut Warp, part: &Part, b: &Barrier) {
        let Op::Bar(op) = &self.cx.code.insts[part.pc as usize].op else { return };
        let Some((kind, _, _, p, d)) = op.red else { return };
        let value = match kind {
            BarRed::Popc => {
                for l in super::lanes::Lanes(part.mask) {
                    warp.set_lane(d, W::W32, l, u64::from(b.popc));
                }
                return;
            }
            BarRed::And => b.all,
            BarRed::Or => b.any,
        };
        let v = &mut warp.preds[usize::from(p)];
        *v = if value { *v | part.mask } else { *v & !part.mask };
    }
}
