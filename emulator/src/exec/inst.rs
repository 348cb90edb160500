//! Decoded instructions: what the interpreter runs.
//!
//! Every value operand is a slot of the warp's register file or of the kernel's constant table; nothing is looked up by
//! name while a kernel runs.

use super::access::Access;
use super::float::Round;
use super::vector::{Kind, Vector};
use crate::ptx::types::{Ty, named};

/// A slot of 32 lanes times 32 bits; 64-bit values take two, 128-bit values four. Bit 31: the constant table.
pub(crate) type R = u32;
/// Marks a slot of the constant table.
pub(crate) const CONST: u32 = 1 << 31;
/// No register: a sink, or an operand that is not there.
pub(crate) const NONE: u32 = u32::MAX;
/// A predicate register.
pub(crate) type P = u16;
/// No predicate.
pub(crate) const NO_PRED: u16 = u16::MAX;
/// Predicate 0 is the sink; this one holds the carry.
pub(crate) const CARRY: P = 1;

/// How a slot is read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum W {
    /// 32 bits and less, zero-extended.
    W32,
    /// 64 bits.
    W64,
    /// A predicate, as 0 or 1.
    Pred,
}

named! {
    /// Comparisons, the NaN of floats apart.
    Cmp { Eq = "eq", Ne = "ne", Lt = "lt", Le = "le", Gt = "gt", Ge = "ge" }
}

/// A boolean function of two predicates: bit 2x + y is its value.
pub(crate) type Lut = u8;
/// The first of them.
pub(crate) const FIRST: Lut = 0b1100;
/// Functions by name.
pub(crate) const LUTS: &[(&str, Lut)] = &[("and", 0b1000), ("or", 0b1110), ("xor", 0b0110)];

/// The same function with its second argument (or, given `first`, its first) negated.
pub(crate) fn negate(lut: Lut, first: bool) -> Lut {
    if first { lut >> 2 | lut << 2 & 0b1100 } else { lut >> 1 & 0b0101 | lut << 1 & 0b1010 }
}

/// A boolean function on masks.
#[inline(always)]
pub(crate) fn lookup(lut: Lut, x: u32, y: u32) -> u32 {
    let bit = |i: u32| 0u32.wrapping_sub(u32::from(lut) >> i & 1);
    bit(0) & !x & !y | bit(1) & !x & y | bit(2) & x & !y | bit(3) & x & y
}

/// How a truth value is combined and stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Truth {
    pub(crate) p: P,
    /// Gets the negated truth value, combined likewise.
    pub(crate) q: P,
    /// Function of the value and of predicate `c`.
    pub(crate) lut: Lut,
    pub(crate) c: P,
}

impl Truth {
    /// Stored as it is.
    pub(crate) fn plain(p: P) -> Truth {
        Truth { p, q: 0, lut: FIRST, c: 0 }
    }
}

/// Modifiers of a scalar operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ctl {
    pub(crate) from: Ty,
    pub(crate) to: Ty,
    pub(crate) round: Round,
    /// Subnormals become zero.
    pub(crate) ftz: bool,
    /// Clamps: floats to [0, 1], integers to their range.
    pub(crate) sat: bool,
    /// Negative results become zero.
    pub(crate) relu: bool,
    /// NaN in, NaN out; of a comparison: true where one operand is NaN.
    pub(crate) nan: bool,
    /// `.xorsign.abs`
    pub(crate) xorsign: bool,
    /// Rounds to an integral value.
    pub(crate) integral: bool,
    /// What a comparison asks; without it, whether the operands are ordered at all.
    pub(crate) cmp: Option<Cmp>,
}

impl Ctl {
    /// No modifiers.
    pub(crate) fn new(ty: Ty) -> Ctl {
        let (ftz, sat, relu, nan, xorsign, integral) = (false, false, false, false, false, false);
        Ctl { from: ty, to: ty, round: Round::Near, ftz, sat, relu, nan, xorsign, integral, cmp: None }
    }
}

/// A scalar operation, applied lane by lane.
pub(crate) type LaneFn = fn(&Ctl, [u64; 4]) -> u64;

/// Where a scalar operation's result goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Dst {
    Reg(R, W),
    Truth(Truth),
}

/// A scalar operation with its operands.
#[derive(Debug, Clone)]
pub(crate) struct LaneOp {
    pub(crate) f: LaneFn,
    pub(crate) ctl: Ctl,
    pub(crate) d: Dst,
    pub(crate) src: [(R, W); 4],
    /// The result is an f64 still to be rounded, in a direction that may be perturbed.
    pub(crate) approximate: bool,
}

named! {
    /// Memory ordering of an access, from the weakest; `.volatile` is relaxed at system scope, only fences are `.sc`.
    Sem {
        Weak = "weak", Volatile = "volatile", Relaxed = "relaxed", Acquire = "acquire", Release = "release",
        AcqRel = "acq_rel", Sc = "sc",
    }
}

named! {
    /// Scope of an access.
    Scope { Cta = "cta", Cluster = "cluster", Gpu = "gpu", Sys = "sys" }
}

/// State space of a decoded access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemSpace {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

/// An address operand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    /// Base register, `NONE` for an absolute address.
    pub(crate) base: R,
    /// Whether the base has 64 bits.
    pub(crate) wide: bool,
    pub(crate) offset: i64,
    pub(crate) space: MemSpace,
}

/// A load or a store.
#[derive(Debug, Clone)]
pub(crate) struct MemOp {
    pub(crate) address: Address,
    pub(crate) access: Access,
    /// Values are extended by their sign.
    pub(crate) signed: bool,
    pub(crate) regs: Vec<(R, W)>,
}

impl MemOp {
    /// Pieces of 64 bits.
    pub(crate) fn pieces(&self) -> u8 {
        (self.access.count * self.access.bytes).div_ceil(8) as u8
    }

    /// One of them, in one of two orders; a later one is checked and ordered like the first.
    pub(crate) fn piece(&self, k: u8, order: u64) -> MemOp {
        let n = self.pieces();
        let k = usize::from(if order & 1 == 1 { n - 1 - k } else { k });
        let bytes = self.access.bytes as usize;
        let each = (8 / bytes).max(1);
        let regs = self.regs[each * k..(each * (k + 1)).min(self.regs.len())].to_vec();
        let offset = self.address.offset.wrapping_add((each * k * bytes) as i64);
        let access = Access { count: regs.len() as u32, ..self.access };
        MemOp { regs, access, address: Address { offset, ..self.address }, ..*self }
    }
}

/// The new value of an atomic operation from the old one and two operands, in 64 bits.
pub(crate) type AtomFn = fn(u64, u64, u64) -> u64;

/// `atom` and `red`.
#[derive(Debug, Clone)]
pub(crate) struct AtomOp {
    pub(crate) address: Address,
    pub(crate) access: Access,
    pub(crate) f: AtomFn,
    /// `NONE` for `red`.
    pub(crate) d: R,
    pub(crate) b: R,
    pub(crate) c: R,
    /// How the registers are read and written.
    pub(crate) w: W,
}

named! {
    /// Reduction of a barrier.
    BarRed { Popc = "popc", And = "and", Or = "or" }
}

/// `bar` and `barrier`.
#[derive(Debug, Clone)]
pub(crate) struct BarOp {
    /// Barrier number.
    pub(crate) id: R,
    /// Participating threads, `NONE` for all of the block.
    pub(crate) count: R,
    /// Waits (`.sync`, `.red`) or only arrives.
    pub(crate) waits: bool,
    /// All lanes of the warp must execute it together.
    pub(crate) aligned: bool,
    /// Reduction, its input predicate (negated) and destination (predicate or register).
    pub(crate) red: Option<(BarRed, P, bool, P, R)>,
}

/// `shfl.sync`.
#[derive(Debug, Clone)]
pub(crate) struct ShflOp {
    pub(crate) mode: Shfl,
    pub(crate) d: R,
    pub(crate) p: P,
    pub(crate) a: R,
    pub(crate) b: R,
    pub(crate) c: R,
}

named! {
    /// Modes of `shfl`.
    Shfl { Up = "up", Down = "down", Bfly = "bfly", Idx = "idx" }
}

named! {
    /// Modes of `vote`.
    Vote { All = "all", Any = "any", Uni = "uni", Ballot = "ballot" }
}

/// Warp-wide operations with a member mask.
#[derive(Debug, Clone)]
pub(crate) enum WarpOp {
    /// `bar.warp.sync`
    Sync,
    /// `vote.sync`
    Vote { mode: Vote, d: R, p: P, a: P, negated: bool },
    /// `match.any.sync` and `match.all.sync`
    Match { all: bool, d: R, p: P, a: (R, W) },
    /// `redux.sync`
    Redux { f: AtomFn, d: R, a: R },
    /// `elect.sync`
    Elect { d: R, p: P },
    /// `shfl.sync`
    Shfl(ShflOp),
    /// `mma`, `ldmatrix`, ...: all 32 lanes together.
    Matrix(super::matrix::MatrixOp),
}

/// What an instruction does.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Nop,
    /// A vectorised operation: destination, sources.
    Vector(Vector, [R; 4]),
    /// `lop3`, by its table.
    Lop3(u8, [R; 4]),
    Lane(Box<LaneOp>),
    /// A vectorised comparison.
    Setp(Cmp, Kind, R, R, Truth),
    /// Selects between registers of 32 or (true) 64 bits: destination, sources.
    Selp(bool, [R; 3], P),
    /// A function of two predicates: destination, sources.
    Pred(Lut, P, P, P),
    Special(super::special::Special, R, W),
    Bra(u32),
    BrxIdx(R, Box<[u32]>),
    Exit,
    Trap,
    Mem(Box<MemOp>),
    Atom(Box<AtomOp>),
    Fence(Scope),
    FenceProxy(Proxy),
    Bar(Box<BarOp>),
    /// With its member mask.
    Warp(Box<WarpOp>, R),
    NanoSleep(R),
    /// `griddepcontrol`: `.wait`, or `.launch_dependents`.
    GridControl(bool),
    Async(Box<super::copy::AsyncOp>),
    Mbarrier(Box<super::mbarrier::MbarrierOp>),
}

/// Fences between proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proxy {
    /// Generic and async proxies.
    Async,
    /// Accesses through different virtual addresses.
    Alias,
}

/// The instruction may touch what other blocks see; it takes turns with theirs.
pub(crate) const TURN: u8 = 1;
/// Some source may never have been written; checked when it runs.
pub(crate) const MAYBE_UNSET: u8 = 2;
/// Writes a register that some instruction may read unwritten.
pub(crate) const TRACKED: u8 = 4;

/// A decoded instruction.
#[derive(Debug, Clone)]
pub(crate) struct Inst {
    pub(crate) op: Op,
    pub(crate) guard: P,
    pub(crate) negated: bool,
    pub(crate) flags: u8,
}

/// Where an instruction comes from.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Origin {
    pub(crate) line: u32,
    /// Index into the module's sources, plus one.
    pub(crate) source: u32,
}

/// Registers an instruction reads and writes, as slots (predicates above `PRED_BASE`).
#[derive(Debug, Clone, Default)]
pub(crate) struct Uses {
    pub(crate) reads: Vec<u32>,
    pub(crate) writes: Vec<u32>,
}

/// Predicates in `Uses` start here.
pub(crate) const PRED_BASE: u32 = 1 << 30;

/// A kernel, ready to run.
#[derive(Debug, Default)]
pub(crate) struct Code {
    pub(crate) insts: Vec<Inst>,
    pub(crate) origins: Vec<Origin>,
    /// Opcodes as written, for messages and counters: index per instruction into `names`.
    pub(crate) opcode: Vec<u32>,
    pub(crate) names: Vec<String>,
    /// Whether an instruction is the first that a PTX instruction became: that one is counted.
    pub(crate) first: Vec<bool>,
    pub(crate) uses: Vec<Uses>,
    /// Slots of a warp's register file.
    pub(crate) slots: u32,
    pub(crate) preds: u32,
    pub(crate) consts: Vec<super::lanes::Slot>,
    /// Bytes of local memory per thread.
    pub(crate) local: u32,
    /// Bytes of static shared memory.
    pub(crate) shared: u32,
    /// Alignment that dynamic shared memory needs.
    pub(crate) shared_align: u32,
    /// Whether any instruction has `TURN`.
    pub(crate) takes_turns: bool,
    /// Names of the registers by slot, for messages.
    pub(crate) reg_names: Vec<(u32, String)>,
}
