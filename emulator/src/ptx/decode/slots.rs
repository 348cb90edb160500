//! Slots for registers: those that are never live together share one, so that a warp's register file stays in the cache.
//!
//! PTX has as many registers as its writer likes; unrolled kernels have thousands. Live ranges are intervals of the
//! instruction order, widened over loops by a liveness analysis, and slots are given out in one sweep.

use super::flow_graph::Blocks;
use crate::exec::inst::{Code, NO_PRED, PRED_BASE};

/// A new slot for each slot, and how many there are then. Registers that may be read unwritten keep one to themselves.
pub(super) fn assign(code: &Code, widths: &[(u32, u32)], exclusive: &[bool]) -> (Vec<u32>, u32) {
    let n = code.insts.len();
    let ends = live_ranges(code);
    // One interval a register, though it has several slots.
    let mut registers: Vec<(usize, usize, u32, u32)> = Vec::new();
    for &(first, width) in widths {
        let parts = first as usize..(first + width) as usize;
        let start = ends[parts.clone()].iter().map(|e| e.0).min().unwrap_or(usize::MAX);
        let end = ends[parts.clone()].iter().map(|e| e.1).max().unwrap_or(0);
        if start != usize::MAX {
            let alone = exclusive[parts].contains(&true);
            registers.push(if alone { (0, n, first, width) } else { (start, end, first, width) });
        }
    }
    registers.sort_unstable();
    let mut map: Vec<u32> = vec![0; code.slots as usize];
    (0..4).for_each(|s| map[s] = s as u32); // the sink
    let mut total = 4u32;
    let mut free: [Vec<u32>; 5] = Default::default();
    let mut active: Vec<(usize, u32, u32)> = Vec::new();
    for (start, end, first, width) in registers {
        active.retain(|&(e, slot, w)| {
            if e < start {
                free[w as usize].push(slot);
            }
            e >= start
        });
        let slot = free[width as usize].pop().unwrap_or_else(|| {
            total += width;
            total - width
        });
        active.push((end, slot, width));
        (0..width).for_each(|k| map[(first + k) as usize] = slot + k);
    }
    (map, total)
}

/// First and last instruction at which each slot is live.
fn live_ranges(code: &Code) -> Vec<(usize, usize)> {
    let blocks = Blocks::new(code);
    let words = (code.slots as usize).div_ceil(64);
    let count = blocks.starts.len();
    // Live at the start of each block, to a fixed point, backwards.
    let mut live_in = vec![0u64; words * count];
    let live_out = |live_in: &[u64], b: usize| {
        let mut out = vec![0u64; words];
        for &s in &blocks.next[b] {
            out.iter_mut().zip(&live_in[s * words..][..words]).for_each(|(o, i)| *o |= i);
        }
        out
    };
    let values = |list: &[u32]| list.iter().filter(|&&r| r < PRED_BASE).map(|&r| r as usize).collect::<Vec<_>>();
    let mut changed = true;
    while changed {
        changed = false;
        for b in (0..count).rev() {
            let mut live = live_out(&live_in, b);
            for i in blocks.range(b).rev() {
                if code.insts[i].guard == NO_PRED {
                    values(&code.uses[i].writes).into_iter().for_each(|w| live[w / 64] &= !(1 << (w % 64)));
                }
                values(&code.uses[i].reads).into_iter().for_each(|r| live[r / 64] |= 1 << (r % 64));
            }
            let into = &mut live_in[b * words..][..words];
            if into != &live[..] {
                into.copy_from_slice(&live);
                changed = true;
            }
        }
    }
    let mut ends = vec![(usize::MAX, 0usize); code.slots as usize];
    let mut touch = |s: usize, at: usize| ends[s] = (ends[s].0.min(at), ends[s].1.max(at));
    for (i, uses) in code.uses.iter().enumerate() {
        values(&uses.reads).into_iter().for_each(|s| touch(s, i));
        values(&uses.writes).into_iter().for_each(|s| touch(s, i));
    }
    for b in 0..count {
        let range = blocks.range(b);
        for (live, at) in [(&live_in[b * words..][..words], range.start), (&live_out(&live_in, b)[..], range.end)] {
            (0..code.slots as usize).filter(|s| live[s / 64] >> (s % 64) & 1 == 1).for_each(|s| touch(s, at));
        }
    }
    ends
}
