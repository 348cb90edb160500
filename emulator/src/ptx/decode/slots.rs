//! Slots for registers: those that are never live together share one, so that a warp's register file stays in the cache.
//!
//! PTX has as many registers as its writer likes; unrolled kernels have thousands. Live ranges are intervals of the
//! instruction order, widened over loops by a liveness analysis, and slots are given out in one sweep.

use super::flow_graph::Blocks;
use crate::exec::copy::AsyncOp;
use crate::exec::inst::*;
use crate::exec::matrix::MatrixOp;

/// Gives slots anew. Registers that may be read unwritten keep one to themselves.
pub(super) fn assign(
    code: &mut Code,
    widths: &[(u32, u32)],
    reads: &[Vec<u32>],
    writes: &[Vec<u32>],
    exclusive: &[bool],
) {
    let n = code.insts.len();
    let blocks = Blocks::new(code);
    let words = (code.slots as usize).div_ceil(64);
    let slot_bit = |s: u32| (s as usize / 64, 1u64 << (s % 64));
    // Live at the start of each block, to a fixed point, backwards.
    let count = blocks.starts.len();
    let mut live_in = vec![0u64; words * count];
    let mut ends = vec![(usize::MAX, 0usize); code.slots as usize];
    let mut touch = |s: u32, at: usize| {
        let e = &mut ends[s as usize];
        *e = (e.0.min(at), e.1.max(at));
    };
    let live_out = |live_in: &[u64], b: usize| {
        let mut out = vec![0u64; words];
        for &s in &blocks.next[b] {
            out.iter_mut().zip(&live_in[s * words..][..words]).for_each(|(o, i)| *o |= i);
        }
        out
    };
    let mut changed = true;
    while changed {
        changed = false;
        for b in (0..count).rev() {
            let mut live = live_out(&live_in, b);
            for i in blocks.range(b).rev() {
                if code.insts[i].guard == NO_PRED {
                    for &w in writes[i].iter().filter(|&&w| w < PRED_BASE) {
                        let (word, bit) = slot_bit(w);
                        live[word] &= !bit;
                    }
                }
                for &r in reads[i].iter().filter(|&&r| r < PRED_BASE) {
                    let (word, bit) = slot_bit(r);
                    live[word] |= bit;
                }
            }
            let into = &mut live_in[b * words..][..words];
            if into != &live[..] {
                into.copy_from_slice(&live);
                changed = true;
            }
        }
    }
    for i in 0..n {
        for &s in reads[i].iter().chain(&writes[i]).filter(|&&s| s < PRED_BASE) {
            touch(s, i);
        }
    }
    for b in 0..count {
        let range = blocks.range(b);
        let out = live_out(&live_in, b);
        for s in 0..code.slots {
            let (word, bit) = slot_bit(s);
            if live_in[b * words + word] & bit != 0 {
                touch(s, range.start);
            }
            if out[word] & bit != 0 {
                touch(s, range.end);
            }
        }
    }
    // One interval a register, though it has several slots.
    let mut registers: Vec<(usize, usize, u32, u32)> = Vec::new();
    for &(first, width) in widths {
        let parts = &ends[first as usize..(first + width) as usize];
        let start = parts.iter().map(|e| e.0).min().unwrap_or(usize::MAX);
        let end = parts.iter().map(|e| e.1).max().unwrap_or(0);
        if start != usize::MAX {
            let alone = exclusive[first as usize..(first + width) as usize].iter().any(|&x| x);
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
    for inst in &mut code.insts {
        each(&mut inst.op, &mut |r| {
            if *r & CONST == 0 {
                *r = map[*r as usize];
            }
        });
    }
    let moved = |s: &mut u32| {
        if *s < PRED_BASE {
            *s = map[*s as usize];
        }
    };
    for u in &mut code.uses {
        u.reads.iter_mut().for_each(moved);
        u.writes.iter_mut().for_each(moved);
    }
    code.reg_names.retain(|(s, _)| *s >= PRED_BASE || exclusive.get(*s as usize) == Some(&true));
    code.reg_names.iter_mut().for_each(|(s, _)| moved(s));
    code.slots = total;
}

/// Every register that an operation names.
fn each(op: &mut Op, f: &mut impl FnMut(&mut R)) {
    let mut all = |list: &mut [&mut R]| {
        for r in list.iter_mut().filter(|r| ***r != NONE) {
            f(r);
        }
    };
    match op {
        Op::Mov32(d, a) | Op::Mov64(d, a) | Op::Un32(_, d, a) | Op::Extend(_, d, a) | Op::Half(_, d, a) => {
            all(&mut [d, a]);
        }
        Op::Bin32(_, d, a, b) | Op::Bin64(_, d, a, b) | Op::MulWide(_, d, a, b) => all(&mut [d, a, b]),
        Op::Shl64(d, a, b) | Op::ShrU64(d, a, b) | Op::Join(d, a, b) => all(&mut [d, a, b]),
        Op::Selp32(d, a, b, _) | Op::Selp64(d, a, b, _) => all(&mut [d, a, b]),
        Op::Tern32(_, d, a, b, c) | Op::Lop3(_, d, a, b, c) | Op::MadWide(_, d, a, b, c) => all(&mut [d, a, b, c]),
        Op::Fma64(d, a, b, c) | Op::Mad64(d, a, b, c) => all(&mut [d, a, b, c]),
        Op::Carry(c) => all(&mut [&mut c.d, &mut c.a, &mut c.b]),
        Op::Lane(l) => {
            all(&mut [&mut l.d]);
            lane(l, &mut all);
        }
        Op::LanePred(l, _) => lane(l, &mut all),
        Op::Setp32(_, _, a, b) | Op::Setp64(_, _, a, b) => all(&mut [a, b]),
        Op::SetpEx(x) => all(&mut [&mut x.2, &mut x.3]),
        Op::Special(_, d, _) | Op::BrxIdx(d, _) | Op::ActiveMask(d) | Op::NanoSleep(d) => all(&mut [d]),
        Op::Ld(m) | Op::St(m) => {
            all(&mut [&mut m.address.base]);
            m.regs.iter_mut().for_each(|r| all(&mut [&mut r.0]));
        }
        Op::Atom(a) => all(&mut [&mut a.address.base, &mut a.d, &mut a.b.0, &mut a.c.0]),
        Op::Bar(b) => {
            all(&mut [&mut b.id, &mut b.count]);
            if let Some(red) = &mut b.red {
                all(&mut [&mut red.4]);
            }
        }
        Op::Warp(w) => {
            all(&mut [&mut w.1]);
            match &mut w.0 {
                WarpOp::Sync => {}
                WarpOp::Vote { d, .. } | WarpOp::Elect { d, .. } => all(&mut [d]),
                WarpOp::Match { d, a, .. } | WarpOp::Redux { d, a, .. } => all(&mut [d, a]),
                WarpOp::Shfl(s) => all(&mut [&mut s.d, &mut s.a, &mut s.b, &mut s.c]),
                WarpOp::Matrix(m) => match &mut **m {
                    MatrixOp::Rows { regs, address, .. } => {
                        all(&mut [&mut address.base]);
                        regs.iter_mut().for_each(|r| all(&mut [r]));
                    }
                    MatrixOp::Fragment { regs, address, stride, .. } => {
                        all(&mut [&mut address.base, stride]);
                        regs.iter_mut().for_each(|r| all(&mut [r]));
                    }
                    MatrixOp::Mma { d, a, b, c, .. } | MatrixOp::Wmma { d, a, b, c, .. } => {
                        for r in d.iter_mut().chain(a).chain(b).chain(c) {
                            all(&mut [r]);
                        }
                    }
                },
            }
        }
        Op::Async(a) => match &mut **a {
            AsyncOp::Copy { dst, src, source, .. } => all(&mut [&mut dst.base, &mut src.base, source]),
            AsyncOp::Commit { .. } | AsyncOp::Wait { .. } => {}
            AsyncOp::Arrive { address, .. } => all(&mut [&mut address.base]),
            AsyncOp::BulkIn { dst, src, bytes, barrier } => {
                all(&mut [&mut dst.base, &mut src.base, bytes, &mut barrier.base]);
            }
            AsyncOp::BulkOut { dst, src, bytes } => all(&mut [&mut dst.base, &mut src.base, bytes]),
        },
        Op::Mbarrier(b) => all(&mut [&mut b.address.base, &mut b.value, &mut b.d]),
        Op::Nop | Op::GridControl(_) | Op::MovPred(..) | Op::PredBool(..) | Op::PredNot(..) | Op::PredSet(..) => {}
        Op::Bra(_) | Op::Exit | Op::Trap | Op::Fence(..) | Op::FenceProxy(_) => {}
    }
}

fn lane(l: &mut LaneOp, all: &mut impl FnMut(&mut [&mut R])) {
    for (r, w) in &mut l.src[..usize::from(l.n)] {
        if *w != W::Pred {
            all(&mut [r]);
        }
    }
}
