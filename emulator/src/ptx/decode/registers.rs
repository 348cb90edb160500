//! Register allocation: registers share a slot if they are never live together, for the register file of an unrolled
//! kernel to stay in the cache. It also finds the registers that may be read unwritten, which are undefined at the start.
//!
//! Both come from walks back from each read of a register to its writes: the register is live on the way, and unwritten
//! if the way reaches the kernel's start.

use super::SINK;
use crate::exec::inst::{NO_PRED, Op, Program};
use std::collections::{BTreeMap, HashMap, HashSet};

/// End of a live range without end.
const ALWAYS: usize = usize::MAX;

/// Register allocation of a kernel.
#[derive(Default)]
pub(super) struct Registers {
    /// The slot of each slot of the first pass.
    pub(super) slots: Vec<u32>,
    /// Number of slots.
    pub(super) total: u32,
    /// Registers, by their numbers in `Uses`, that may be read before they are written.
    pub(super) unset: HashSet<u32>,
}

/// Allocates slots; `widths` holds the number of slots of each register.
pub(super) fn assign(code: &Program, widths: &HashMap<u32, u32>) -> Registers {
    let ranges = live_ranges(code);
    let unset = ranges.iter().filter(|range| range.1 == ALWAYS).map(|range| range.2).collect();
    // Registers that nothing uses have the sink's.
    let mut slots: Vec<u32> = (0..code.slots).map(|slot| if slot < SINK { slot } else { 0 }).collect();
    let mut total = SINK;
    // Width, first slot and the end of the last range there.
    let mut taken: Vec<(u32, u32, usize)> = Vec::new();
    for (start, end, r) in ranges {
        let Some(&width) = widths.get(&r) else { continue }; // a predicate
        let slot = match taken.iter_mut().find(|t| t.0 == width && t.2 < start) {
            Some((_, slot, until)) => {
                *until = end;
                *slot
            }
            None => {
                taken.push((width, total, end));
                total += width;
                total - width
            }
        };
        (0..width).for_each(|k| slots[(r + k) as usize] = slot + k);
    }
    Registers { slots, total, unset }
}

/// Live ranges, in order: first and last instruction, register. A register that may be read unwritten is always live.
fn live_ranges(code: &Program) -> Vec<(usize, usize, u32)> {
    let mut uses: BTreeMap<u32, [Vec<usize>; 2]> = BTreeMap::new();
    for (i, of) in code.registers.iter().enumerate() {
        of.reads.iter().for_each(|r| uses.entry(*r).or_default()[0].push(i));
        of.writes.iter().for_each(|r| uses.entry(*r).or_default()[1].push(i));
    }
    let before = predecessors(code);
    // A guarded write may not happen.
    let writes = |i: usize, r: u32| code.insts[i].guard == NO_PRED && code.registers[i].writes.contains(&r);
    // The register that came by an instruction last.
    let mut seen = vec![u32::MAX; code.insts.len()];
    let mut ranges = Vec::new();
    for (r, [mut live, mut touched]) in uses {
        while let Some(i) = live.pop() {
            if std::mem::replace(&mut seen[i], r) != r {
                touched.push(i);
                live.extend(before[i].iter().filter(|&&i| !writes(i, r)));
            }
        }
        let ends = touched.iter().min().zip(touched.iter().max());
        ranges.extend(ends.map(|(&start, &end)| if seen[0] == r { (0, ALWAYS, r) } else { (start, end, r) }));
    }
    ranges.sort_unstable();
    ranges
}

/// The predecessors of each instruction.
fn predecessors(code: &Program) -> Vec<Vec<usize>> {
    let mut before = vec![Vec::new(); code.insts.len()];
    for (i, inst) in code.insts.iter().enumerate() {
        if let Op::Bra(target) = inst.op {
            before[target as usize].push(i);
        }
        if !matches!(inst.op, Op::Bra(_) | Op::Exit) || inst.guard != NO_PRED {
            before[i + 1].push(i);
        }
    }
    before
}
