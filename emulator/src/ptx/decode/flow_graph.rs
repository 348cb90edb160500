//! The control-flow graph, and which registers may be read before they are written: a data-flow analysis, so that the
//! interpreter checks only those.

use crate::exec::inst::{Code, NO_PRED, Op, PRED_BASE};
use std::ops::Range;

/// Successors of an instruction.
fn successors(code: &Code, i: usize, out: &mut Vec<usize>) {
    out.clear();
    let inst = &code.insts[i];
    let guarded = inst.guard != NO_PRED;
    match &inst.op {
        Op::Bra(t) => out.push(*t as usize),
        Op::BrxIdx(_, list) => out.extend(list.iter().map(|&t| t as usize)),
        Op::Exit => {}
        _ => out.push(i + 1),
    }
    if guarded && !out.contains(&(i + 1)) {
        out.push(i + 1);
    }
}

/// Basic blocks.
pub(super) struct Blocks {
    /// First instructions.
    pub(super) starts: Vec<usize>,
    /// Successors.
    pub(super) next: Vec<Vec<usize>>,
    end: usize,
}

impl Blocks {
    pub(super) fn new(code: &Code) -> Blocks {
        let n = code.insts.len();
        let mut leader = vec![false; n + 1];
        leader[0] = true;
        let mut next = Vec::new();
        for i in 0..n {
            successors(code, i, &mut next);
            if next[..] != [i + 1] {
                next.iter().for_each(|&t| leader[t] = true);
                leader[i + 1] = true;
            }
        }
        let starts: Vec<usize> = (0..n).filter(|&i| leader[i]).collect();
        let mut blocks = Blocks { next: Vec::with_capacity(starts.len()), starts, end: n };
        for b in 0..blocks.starts.len() {
            successors(code, blocks.range(b).end - 1, &mut next);
            let list = next.iter().filter_map(|&t| blocks.starts.binary_search(&t).ok()).collect();
            blocks.next.push(list);
        }
        blocks
    }

    /// Instructions of a block.
    pub(super) fn range(&self, b: usize) -> Range<usize> {
        self.starts[b]..self.starts.get(b + 1).copied().unwrap_or(self.end)
    }
}

/// Registers that may be read before they are written.
pub(super) struct Unset {
    slots: u32,
    /// Whether a register, by its index, is such a one.
    pub(super) registers: Vec<bool>,
    /// What each instruction may read so.
    pub(super) reads: Vec<Vec<u32>>,
}

impl Unset {
    /// The index of a slot, or of a predicate.
    pub(super) fn index(&self, r: u32) -> usize {
        (if r >= PRED_BASE { self.slots + r - PRED_BASE } else { r }) as usize
    }
}

/// Finds reads of what some path has not written.
pub(super) fn unset(code: &Code) -> Unset {
    let n = (code.slots + code.preds) as usize;
    let mut found = Unset { slots: code.slots, registers: vec![false; n], reads: vec![Vec::new(); code.insts.len()] };
    let words = n.div_ceil(64);
    let blocks = Blocks::new(code);
    let count = blocks.starts.len();
    // A guarded write may not happen, so it defines nothing.
    let define = |found: &Unset, i: usize, state: &mut [u64]| {
        if code.insts[i].guard == NO_PRED {
            for r in code.uses[i].writes.iter().map(|&r| found.index(r)) {
                state[r / 64] |= 1 << (r % 64);
            }
        }
    };
    // Definitely written at the entry of each block: all, until a path says otherwise.
    let mut entry = vec![u64::MAX; words * count];
    entry[..words].fill(0);
    let mut work: Vec<usize> = (0..count).rev().collect();
    let mut queued = vec![true; count];
    while let Some(b) = work.pop() {
        queued[b] = false;
        let mut state = entry[b * words..][..words].to_vec();
        blocks.range(b).for_each(|i| define(&found, i, &mut state));
        for &s in &blocks.next[b] {
            let into = &mut entry[s * words..][..words];
            let mut changed = false;
            for (w, have) in into.iter_mut().zip(&state) {
                changed |= *w & have != *w;
                *w &= have;
            }
            if changed && !queued[s] {
                queued[s] = true;
                work.push(s);
            }
        }
    }
    for b in 0..count {
        let mut state = entry[b * words..][..words].to_vec();
        for i in blocks.range(b) {
            for &slot in &code.uses[i].reads {
                let r = found.index(slot);
                if state[r / 64] >> (r % 64) & 1 == 0 {
                    found.registers[r] = true;
                    found.reads[i].push(slot);
                }
            }
            define(&found, i, &mut state);
        }
    }
    found
}
