//! Which registers may be read before they are written: a data-flow analysis, so that the interpreter checks only those.

use crate::exec::inst::{Code, MAYBE_UNSET, Op, PRED_BASE, TRACKED};

/// Successors of an instruction.
fn successors(code: &Code, i: usize, out: &mut Vec<usize>) {
    out.clear();
    let inst = &code.insts[i];
    let guarded = inst.guard != crate::exec::inst::NO_PRED;
    match &inst.op {
        Op::Bra(t) => {
            out.push(*t as usize);
            if guarded {
                out.push(i + 1);
            }
        }
        Op::BrxIdx(_, list) => {
            out.extend(list.iter().map(|&t| t as usize));
            if guarded {
                out.push(i + 1);
            }
        }
        Op::Exit | Op::Trap if !guarded => {}
        _ => out.push(i + 1),
    }
}

/// Marks instructions that may read what no path has written, and those that write such registers.
pub(super) fn prepare(code: &mut Code) {
    let n = code.insts.len();
    let slots = code.slots;
    let index = move |slot: u32| if slot >= PRED_BASE { slots + slot - PRED_BASE } else { slot } as usize;
    let registers = (code.slots + code.preds) as usize;
    let words = registers.div_ceil(64);
    // Blocks: leaders are targets and what follows a branch.
    let mut leader = vec![false; n + 1];
    leader[0] = true;
    let mut next = Vec::new();
    for i in 0..n {
        successors(code, i, &mut next);
        if next.len() != 1 || next[0] != i + 1 {
            next.iter().for_each(|&t| leader[t] = true);
            leader[i + 1] = true;
        }
    }
    let starts: Vec<usize> = (0..n).filter(|&i| leader[i]).collect();
    let mut block_of = vec![0usize; n];
    for (b, &s) in starts.iter().enumerate() {
        let end = starts.get(b + 1).copied().unwrap_or(n);
        block_of[s..end].fill(b);
    }
    // Definitely written at the entry of each block: all, until a path says otherwise.
    let mut entry = vec![u64::MAX; words * starts.len()];
    entry[..words].fill(0);
    let mut work: Vec<usize> = (0..starts.len()).rev().collect();
    let mut queued = vec![true; starts.len()];
    while let Some(b) = work.pop() {
        queued[b] = false;
        let mut state = entry[b * words..][..words].to_vec();
        let end = starts.get(b + 1).copied().unwrap_or(n);
        for i in starts[b]..end {
            define(code, i, &mut state, &index);
        }
        successors(code, end - 1, &mut next);
        for &t in next.iter().filter(|&&t| t < n) {
            let s = block_of[t];
            let into = &mut entry[s * words..][..words];
            let mut changed = false;
            for (w, have) in into.iter_mut().zip(&state) {
                let new = *w & have;
                changed |= new != *w;
                *w = new;
            }
            if changed && !queued[s] {
                queued[s] = true;
                work.push(s);
            }
        }
    }
    let mut tracked = vec![false; registers];
    let mut unset = vec![false; n];
    let mut reads: Vec<Vec<u32>> = vec![Vec::new(); n];
    for (b, &s) in starts.iter().enumerate() {
        let mut state = entry[b * words..][..words].to_vec();
        let end = starts.get(b + 1).copied().unwrap_or(n);
        for i in s..end {
            for &slot in &code.uses[i].reads {
                let r = index(slot);
                if state[r / 64] >> (r % 64) & 1 == 0 {
                    tracked[r] = true;
                    unset[i] = true;
                    reads[i].push(slot);
                }
            }
            define(code, i, &mut state, &index);
        }
    }
    let writes: Vec<bool> = (0..n).map(|i| code.uses[i].writes.iter().any(|&r| tracked[index(r)])).collect();
    for (i, inst) in code.insts.iter_mut().enumerate() {
        inst.flags |= if unset[i] { MAYBE_UNSET } else { 0 } | if writes[i] { TRACKED } else { 0 };
    }
    // Kept: what has to be looked at when the instruction runs.
    for (u, reads) in code.uses.iter_mut().zip(reads) {
        u.reads = reads;
        u.writes.retain(|&r| tracked[index(r)]);
    }
}

/// A guarded write may not happen, so it defines nothing.
fn define(code: &Code, i: usize, state: &mut [u64], index: &dyn Fn(u32) -> usize) {
    if code.insts[i].guard == crate::exec::inst::NO_PRED {
        for &r in &code.uses[i].writes {
            let r = index(r);
            state[r / 64] |= 1 << (r % 64);
        }
    }
}
