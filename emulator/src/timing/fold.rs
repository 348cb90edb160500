//! What an instruction of PTX is to an assembler: which pipe it takes, how many instructions it becomes, and which it is
//! folded into.
//!
//! The table, by opcode, is in [`opcodes`](super::opcodes). Beyond it, within a basic block, an instruction whose only use is the next one
//! of the rows below becomes part of that:
//!
//! | PTX | SASS |
//! |---|---|
//! | `and`, `or`, `xor`, `not` into another of them, three inputs in all | `LOP3` |
//! | `add`, `sub` into `add`, `sub`, 32 bits | `IADD3` |
//! | `shl` by a constant into `add`, 32 bits | `LEA` |
//! | `mul.lo` into `add`, `mul.wide` into a 64-bit `add` | `IMAD`, `IMAD.WIDE` |
//! | a 64-bit `add` of a constant into addresses | their offset |
//! | `setp` into `and.pred`, `or.pred` | its third operand |
//! | a narrow load into the `cvt` that widens it | the load |
//!
//! Moves, conversions to generic addresses, parameters, negation and absolute values of floats, and what widens or narrows
//! an unsigned integer between 32 and 64 bits, are operands of others and take nothing. Neither does arithmetic in a loop
//! on what the loop does not change, unless the loop has a `bar.warp.sync`: an assembler has it before the loop.
//!
//! A loop of one block with a load is unrolled by four where a counter that grows by a constant ends it, so that loads of
//! four iterations overlap. Barriers, exchanges between lanes, atomics and strong accesses prevent it, more than 46
//! instructions, and `.pragma "nounroll"`. So ptxas 13.5 has it at sm_75 and sm_90.

use super::opcodes::{Pipe, Shape, Words};
use std::collections::{HashMap, HashSet};

/// Iterations that an assembler makes one of.
pub(crate) const UNROLLED: u32 = 4;
/// Instructions of PTX beyond which it does not.
const LONG: usize = 46;

/// What an instruction does beyond its registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Branch,
    /// Waits for others of its block.
    Barrier,
    /// Waits until stores are seen.
    Fence,
    Load,
    Store,
    Atomic,
    /// Copies for each lane.
    Copy,
    Bulk,
    Mbarrier,
    /// Looks whether a phase of an mbarrier is over.
    Look,
    /// Another that nothing moves across.
    Ordered,
}

/// An instruction as decoded. Registers are numbers that are the same for the same register.
pub(crate) struct Sketch<'a> {
    pub(crate) opcode: &'a str,
    /// Whether it is the first operation of what the text says in one instruction.
    pub(crate) first: bool,
    /// Whether the text asks for the loop that begins here not to be unrolled.
    pub(crate) rolled: bool,
    pub(crate) guarded: bool,
    pub(crate) reads: Vec<u32>,
    pub(crate) writes: Vec<u32>,
    pub(crate) target: Option<u32>,
}

/// Cost of an instruction.
#[derive(Debug, Clone)]
pub(crate) struct Cost {
    pub(crate) pipe: Pipe,
    pub(crate) kind: Kind,
    /// Instructions on its pipe, and others around them on the ALU.
    pub(crate) count: u32,
    pub(crate) extra: u32,
    /// Whether a basic block begins with it.
    pub(crate) leads: bool,
    /// The branch of the unrolled loop that begins with it.
    pub(crate) again: Option<u32>,
    /// Whether nothing moves across it.
    pub(crate) ordered: bool,
    /// Whether stores before it must have been seen, and whether what follows waits for its result.
    pub(crate) releases: bool,
    pub(crate) acquires: bool,
    /// Whether a load passes L1 by, and whether stores before it do not hold it.
    pub(crate) bypasses: bool,
    pub(crate) constant: bool,
    /// Whether it loads from shared memory, which an assembler puts few instructions before what waits for it.
    pub(crate) near: bool,
    /// Sectors of a line, or of two, that a miss brings at least.
    pub(crate) fetches: u8,
    pub(crate) reads: Box<[u32]>,
    pub(crate) writes: Box<[u32]>,
}

impl Cost {
    /// Its instructions by pipe, and those around it.
    pub(crate) fn instructions(&self) -> [(&'static str, u32); 2] {
        let pipe = match self.pipe {
            Pipe::Folded => "folded",
            Pipe::Control => "control",
            Pipe::Fma => "fma",
            Pipe::Heavy => "heavy",
            Pipe::Alu | Pipe::Convert => "alu",
            Pipe::Half => "half",
            Pipe::Double => "double",
            Pipe::Sixteen | Pipe::Shuffle => "sixteen",
            Pipe::Tensor { .. } | Pipe::Warpgroup { .. } => "tensor",
            Pipe::Memory => "memory",
        };
        [(pipe, self.count), ("alu", self.extra)]
    }

    fn new(sketch: &Sketch<'_>) -> Cost {
        let words = Words::of(sketch.opcode);
        let Shape { pipe, count, extra } = if sketch.first {
            Shape::of(&words, sketch.reads.len())
        } else {
            Shape { pipe: Pipe::Folded, count: 0, extra: 0 }
        };
        let global = !words.has("shared") && !words.has("shared::cta");
        let acquires = words.has("acquire") || words.has("acq_rel");
        let releases = words.has("release") || words.has("acq_rel");
        let strong = acquires || releases || words.has("relaxed") || words.has("volatile");
        let kind = match words.name {
            "bra" | "ret" | "exit" | "call" => Kind::Branch,
            "bar" | "barrier" if words.has("warp") => Kind::Ordered,
            "bar" | "barrier" => Kind::Barrier,
            "membar" | "fence" if words.has("proxy") || words.has("cta") => Kind::Ordered,
            "membar" | "fence" => Kind::Fence,
            "ld" | "ldu" | "ldmatrix" => Kind::Load,
            "st" | "stmatrix" => Kind::Store,
            "atom" | "red" => Kind::Atomic,
            "mbarrier" if words.has("try_wait") || words.has("test_wait") => Kind::Look,
            "mbarrier" => Kind::Mbarrier,
            "cp" if words.has("bulk") && pipe == Pipe::Memory => Kind::Bulk,
            "cp" if pipe == Pipe::Memory && !words.has("mbarrier") => Kind::Copy,
            "wgmma" if !words.has("wait_group") => Kind::Plain,
            "cp" | "nanosleep" | "griddepcontrol" | "wgmma" => Kind::Ordered,
            _ => Kind::Plain,
        };
        let ordered = match kind {
            Kind::Barrier | Kind::Fence | Kind::Look | Kind::Ordered | Kind::Mbarrier | Kind::Atomic => true,
            Kind::Load | Kind::Store => strong,
            _ => false,
        };
        Cost {
            pipe,
            kind,
            count,
            extra,
            leads: false,
            again: None,
            ordered,
            releases: releases && global && !words.has("cta") || kind == Kind::Fence,
            acquires: acquires && global,
            bypasses: strong || words.has("L1::no_allocate") || words.has("cg") || words.has("cv"),
            constant: words.has("nc") || words.has("const"),
            near: kind == Kind::Load && (!global || words.name == "ldmatrix"),
            fetches: if words.has("L2::128B") || words.has("L2::256B") { 15 } else { 0 },
            reads: sketch.reads.clone().into(),
            writes: sketch.writes.clone().into(),
        }
    }
}

/// Costs of a kernel's instructions, whose registers have numbers below `registers`.
pub(crate) fn costs(sketches: &[Sketch<'_>], registers: usize) -> Vec<Cost> {
    let mut costs: Vec<Cost> = sketches.iter().map(Cost::new).collect();
    for (pc, sketch) in sketches.iter().enumerate() {
        if let Some(target) = sketch.target {
            costs[target as usize].leads = true;
        }
        if pc == 0 || costs[pc - 1].kind == Kind::Branch {
            costs[pc].leads = true;
        }
    }
    let starts: Vec<usize> = (0..costs.len()).filter(|&pc| costs[pc].leads).collect();
    let ends = starts.iter().skip(1).copied().chain([costs.len()]);
    let blocks: Vec<(usize, usize)> = starts.iter().copied().zip(ends).collect();
    for &(head, end) in &blocks {
        if is_unrolled(&sketches[head..end], &costs[head..end], head) {
            costs[head].again = Some(end as u32 - 1);
        }
    }
    hoist(sketches, &mut costs, &blocks);
    let live = live_out(sketches, &blocks, registers);
    for (block, live) in blocks.iter().zip(&live) {
        fold(&sketches[block.0..block.1], &mut costs[block.0..block.1], live);
    }
    costs
}

/// Whether a block that begins at `head` is a loop that an assembler unrolls.
fn is_unrolled(sketches: &[Sketch<'_>], costs: &[Cost], head: usize) -> bool {
    let Some((last, body)) = sketches.split_last().filter(|_| !sketches[0].rolled) else { return false };
    let loads = |cost: &Cost| cost.kind == Kind::Load && cost.pipe == Pipe::Memory;
    let stays =
        |cost: &Cost| !cost.ordered && !matches!(cost.kind, Kind::Copy | Kind::Bulk) && cost.pipe != Pipe::Shuffle;
    if last.target != Some(head as u32) || !last.guarded || !costs.iter().any(loads) || !costs.iter().all(stays) {
        return false;
    }
    let writers = |r: u32| body.iter().filter(move |sketch| sketch.writes.contains(&r));
    let steps = |sketch: &Sketch<'_>| {
        matches!(Words::of(sketch.opcode).name, "add" | "sub") && sketch.reads == sketch.writes && !sketch.guarded
    };
    let counts = |r: u32| writers(r).count() == 1 && writers(r).all(steps);
    let test = last.reads.iter().find_map(|&guard| writers(guard).next_back());
    body.iter().filter(|sketch| sketch.first).count() < LONG
        && test.is_some_and(|test| {
            Words::of(test.opcode).name == "setp"
                && test.reads.iter().any(|&r| counts(r))
                && test.reads.iter().all(|&r| counts(r) || writers(r).next().is_none())
        })
}

/// Takes arithmetic on what an innermost loop does not change out of it.
fn hoist(sketches: &[Sketch<'_>], costs: &mut [Cost], blocks: &[(usize, usize)]) {
    let backs = sketches.iter().enumerate().filter_map(|(pc, sketch)| Some((sketch.target? as usize, pc + 1)));
    let loops: Vec<(usize, usize)> = backs.filter(|(head, end)| head < end).collect();
    let inner = |&(head, end): &(usize, usize)| {
        loops.iter().all(|&(other, to)| (other, to) == (head, end) || other < head || to > end)
    };
    // Behind a barrier of the warp an assembler has such arithmetic anew: kernels use it for that.
    let anew = |&(head, end): &(usize, usize)| sketches[head..end].iter().any(|of| of.opcode == "bar.warp.sync");
    for &(head, end) in loops.iter().filter(|of| inner(of) && !anew(of)) {
        let changed: HashSet<u32> =
            sketches[head..end].iter().flat_map(|sketch| sketch.writes.iter().copied()).collect();
        for &(start, stop) in blocks.iter().filter(|block| block.0 >= head && block.1 <= end) {
            // Whether the last value of a register in this block is the same in every iteration.
            let mut same: HashMap<u32, bool> = HashMap::new();
            for pc in start..stop {
                let (sketch, cost) = (&sketches[pc], &mut costs[pc]);
                let fixed = |r: &u32| same.get(r).copied().unwrap_or(!changed.contains(r));
                let arithmetic = cost.kind == Kind::Plain && !matches!(cost.pipe, Pipe::Control | Pipe::Shuffle);
                let hoisted = arithmetic && !sketch.guarded && sketch.reads.iter().all(fixed);
                if hoisted {
                    (cost.pipe, cost.count, cost.extra) = (Pipe::Folded, 0, 0);
                }
                same.extend(sketch.writes.iter().map(|&r| (r, hoisted)));
            }
        }
    }
}

/// Of each block the registers that are read behind it before they are written, a bit each.
fn live_out(sketches: &[Sketch<'_>], blocks: &[(usize, usize)], registers: usize) -> Vec<Vec<u64>> {
    let words = registers.div_ceil(64);
    let mut block_of = vec![usize::MAX; sketches.len()];
    blocks.iter().enumerate().for_each(|(number, block)| block_of[block.0] = number);
    let (mut ins, mut outs) = (vec![vec![0u64; words]; blocks.len()], vec![vec![0u64; words]; blocks.len()]);
    let mut changed = true;
    while changed {
        changed = false;
        for (number, &(start, end)) in blocks.iter().enumerate().rev() {
            let last = &sketches[end - 1];
            let falls = last.guarded || last.target.is_none();
            let next = (falls && number + 1 < blocks.len()).then_some(number + 1);
            let target = last.target.map(|target| block_of[target as usize]);
            let mut live = vec![0u64; words];
            for after in [next, target].into_iter().flatten() {
                live.iter_mut().zip(&ins[after]).for_each(|(live, it)| *live |= it);
            }
            outs[number].clone_from(&live);
            for sketch in sketches[start..end].iter().rev() {
                if !sketch.guarded {
                    sketch.writes.iter().for_each(|&r| live[r as usize / 64] &= !(1 << (r % 64)));
                }
                sketch.reads.iter().for_each(|&r| live[r as usize / 64] |= 1 << (r % 64));
            }
            changed |= live != ins[number];
            ins[number] = live;
        }
    }
    outs
}

/// Folds the instructions of a basic block behind which the registers in `live` are read.
fn fold(sketches: &[Sketch<'_>], costs: &mut [Cost], live: &[u64]) {
    let free = |cost: &mut Cost| (cost.pipe, cost.count, cost.extra) = (Pipe::Folded, 0, 0);
    for at in 0..sketches.len() {
        let (sketch, words) = (&sketches[at], Words::of(sketches[at].opcode));
        let [written] = sketch.writes[..] else { continue };
        if !sketch.first || sketch.guarded || costs[at].pipe == Pipe::Folded {
            continue;
        }
        let behind = &sketches[at + 1..];
        let end = behind.iter().position(|next| next.writes.contains(&written) && !next.guarded);
        let dead = end.is_some() || live[written as usize / 64] >> (written % 64) & 1 == 0;
        let span = end.map_or(behind.len(), |end| end + 1);
        let users: Vec<usize> = (0..span).filter(|&i| behind[i].reads.contains(&written)).map(|i| at + 1 + i).collect();
        if !dead || users.is_empty() {
            continue;
        }
        let addresses = |user: &usize| {
            let last = sketches[*user].reads.last() == Some(&written);
            Words::of(sketches[*user].opcode).addresses() && (last || sketches[*user].reads.len() == 1)
        };
        if words.name == "add" && words.is_wide() && sketch.reads.len() == 1 && users.iter().all(addresses) {
            free(&mut costs[at]);
            continue;
        }
        let &[user] = &users[..] else { continue };
        let (other, whole) = (Words::of(sketches[user].opcode), !sketches[user].guarded && sketches[user].first);
        // What has taken one in already has no operand left.
        let room = costs[user].count > 0 && costs[user].reads.len() == sketches[user].reads.len();
        let takes = match (words.name, other.name) {
            _ if !whole || !room => false,
            _ if words.is_logic() && other.is_logic() => sketch.reads.len() <= 2,
            ("add" | "sub", "add" | "sub") => words.is_sum() && other.is_sum(),
            ("shl", "add") => words.last() == "b32" && sketch.reads.len() == 1 && other.is_sum(),
            ("setp", "and" | "or") => other.has("pred"),
            _ => false,
        };
        if takes {
            // The one that is left reads what both read.
            let mut reads: Vec<u32> = costs[user].reads.iter().copied().filter(|&r| r != written).collect();
            reads.extend(&costs[at].reads);
            let pipe = costs[at].pipe;
            costs[user].reads = reads.into();
            costs[user].pipe = pipe;
            free(&mut costs[at]);
            continue;
        }
        let absorbed = match (words.name, other.name) {
            _ if !whole => false,
            ("mul", "add") if words.has("lo") => other.is_sum() && !words.is_wide(),
            ("mul", "add") => words.has("wide") && other.is_wide() && !other.is_float(),
            ("ld", "cvt") => costs[user].pipe == Pipe::Alu && !words.is_float(),
            _ => false,
        };
        if absorbed {
            free(&mut costs[user]);
        }
    }
}
