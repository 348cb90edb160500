//! Which registers may be read before they are written, so that the interpreter checks only those; and slots for
//! registers: those that are never live together share one, so that a warp's register file stays in the cache.
//!
//! PTX has as many registers as its writer likes; unrolled kernels have thousands. Both questions are asked of the
//! control-flow graph: sets of registers spread over its blocks, forwards or backwards, and unite where paths meet.

use crate::exec::inst::{Code, NO_PRED, Op, PRED_BASE};
use std::collections::BTreeSet;

/// Whether each slot, and after the slots each predicate, is in it.
type Set = Vec<bool>;

/// Registers that may be read before they are written.
pub(super) struct Unset {
    slots: u32,
    /// Whether a register, by its index, is such a one.
    pub(super) registers: Set,
    /// What each instruction may read so.
    pub(super) reads: Vec<Vec<u32>>,
}

impl Unset {
    /// The index of a slot, or of a predicate.
    pub(super) fn index(&self, r: u32) -> usize {
        index(self.slots, r)
    }
}

fn index(slots: u32, r: u32) -> usize {
    (if r >= PRED_BASE { slots + r - PRED_BASE } else { r }) as usize
}

/// Finds reads of what some path has not written.
pub(super) fn unset(code: &Code) -> Unset {
    let count = (code.slots + code.preds) as usize;
    let mut found =
        Unset { slots: code.slots, registers: vec![false; count], reads: vec![Vec::new(); code.insts.len()] };
    for (block, mut set) in spread(code, false, vec![true; count], |i, set| remove_writes(code, i, set)) {
        for i in block {
            for &r in code.uses[i].reads.iter().filter(|r| set[index(code.slots, **r)]) {
                found.registers[index(code.slots, r)] = true;
                found.reads[i].push(r);
            }
            remove_writes(code, i, &mut set);
        }
    }
    found
}

/// A new slot for each slot, and how many there are then. Registers that may be read unwritten keep one to themselves.
pub(super) fn assign(code: &Code, widths: &[(u32, u32)], exclusive: &[bool]) -> (Vec<u32>, u32) {
    let ends = live_ranges(code, exclusive);
    // One interval a register, though it may have several slots.
    let mut registers: Vec<(usize, usize, u32, u32)> = Vec::new();
    for &(first, width) in widths {
        let parts = ends[first as usize..(first + width) as usize].iter();
        let (start, end) = parts.fold((usize::MAX, 0), |all, part| (all.0.min(part.0), all.1.max(part.1)));
        if start != usize::MAX {
            registers.push((start, end, first, width));
        }
    }
    registers.sort_unstable();
    let mut map: Vec<u32> = vec![0; code.slots as usize];
    (0..4).for_each(|s| map[s] = s as u32); // the sink
    let mut total = 4u32;
    let mut free: [Vec<u32>; 5] = Default::default();
    let mut active: Vec<(usize, u32, u32)> = Vec::new();
    for (start, end, first, width) in registers {
        for (_, slot, width) in active.extract_if(.., |(end, ..)| *end < start) {
            free[width as usize].push(slot);
        }
        let slot = free[width as usize].pop().unwrap_or_else(|| {
            total += width;
            total - width
        });
        active.push((end, slot, width));
        (0..width).for_each(|k| map[(first + k) as usize] = slot + k);
    }
    (map, total)
}

/// First and last instruction at which each register is live: intervals of the instruction order, widened over loops.
fn live_ranges(code: &Code, exclusive: &[bool]) -> Vec<(usize, usize)> {
    let everywhere = (0, code.insts.len());
    let mut ends: Vec<_> = exclusive.iter().map(|&e| if e { everywhere } else { (usize::MAX, 0) }).collect();
    let mut touch = |r: usize, at: usize| ends[r] = (ends[r].0.min(at), ends[r].1.max(at));
    for (i, uses) in code.uses.iter().enumerate() {
        uses.reads.iter().chain(&uses.writes).for_each(|&r| touch(index(code.slots, r), i));
    }
    let step = |i: usize, set: &mut Set| {
        remove_writes(code, i, set);
        code.uses[i].reads.iter().for_each(|&r| set[index(code.slots, r)] = true);
    };
    for (block, mut set) in spread(code, true, vec![false; exclusive.len()], step) {
        (0..set.len()).filter(|&r| set[r]).for_each(|r| touch(r, block[0] + 1));
        block.iter().for_each(|&i| step(i, &mut set));
        (0..set.len()).filter(|&r| set[r]).for_each(|r| touch(r, block[block.len() - 1]));
    }
    ends
}

/// A guarded write may not happen, so it counts for nothing.
fn remove_writes(code: &Code, i: usize, set: &mut Set) {
    if code.insts[i].guard == NO_PRED {
        code.uses[i].writes.iter().for_each(|&r| set[index(code.slots, r)] = false);
    }
}

/// Spreads sets over the basic blocks until nothing changes, from `first` where the walk begins: the instructions of
/// each block in the order of the walk, and the set before the first of them. `step` takes a set past an instruction.
fn spread(code: &Code, backwards: bool, first: Set, step: impl Fn(usize, &mut Set)) -> Vec<(Vec<usize>, Set)> {
    let mut starts = BTreeSet::from([0]);
    for i in 0..code.insts.len() {
        let next = successors(code, i);
        if next != [i + 1] {
            starts.extend(next.into_iter().chain([i + 1]));
        }
    }
    let starts: Vec<usize> = starts.into_iter().collect();
    let mut blocks: Vec<Vec<usize>> = starts.windows(2).map(|w| (w[0]..w[1]).collect()).collect();
    let last = blocks.len() - 1;
    let mut ways = vec![Vec::new(); blocks.len()];
    for from in 0..=last {
        for to in successors(code, starts[from + 1] - 1).iter().filter_map(|start| starts.binary_search(start).ok()) {
            if backwards { ways[last - to].push(last - from) } else { ways[from].push(to) }
        }
    }
    if backwards {
        blocks.reverse();
        blocks.iter_mut().for_each(|block| block.reverse());
    }
    let mut sets = vec![vec![false; first.len()]; blocks.len()];
    sets[0] = first;
    let mut changed = true;
    while changed {
        changed = false;
        for (b, block) in blocks.iter().enumerate() {
            let mut set = sets[b].clone();
            block.iter().for_each(|&i| step(i, &mut set));
            for &to in &ways[b] {
                for (there, here) in sets[to].iter_mut().zip(&set) {
                    changed |= *here & !*there;
                    *there |= *here;
                }
            }
        }
    }
    blocks.into_iter().zip(sets).collect()
}

fn successors(code: &Code, i: usize) -> Vec<usize> {
    let mut next = match &code.insts[i].op {
        Op::Bra(target) => vec![*target as usize],
        Op::Exit => Vec::new(),
        _ => vec![i + 1],
    };
    if code.insts[i].guard != NO_PRED && !next.contains(&(i + 1)) {
        next.push(i + 1);
    }
    next
}
