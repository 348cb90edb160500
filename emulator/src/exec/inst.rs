//! Decoded instructions: what the interpreter runs.
//!
//! Every value operand is a slot of the warp's register file or of the kernel's constant table; nothing is looked up by
//! name while a kernel runs.

use super::float::Round;
use crate::ptx::types::Ty;

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

/// A scalar operation, applied lane by lane.
pub(crate) type LaneFn = fn(&Ctl, [u64; 4]) -> u64;

/// Two-operand operations that are vectorised, on 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum B32 {
    Add,
    Sub,
    Mul,
    MulHiU,
    MulHiS,
    And,
    Or,
    Xor,
    Shl,
    ShrU,
    ShrS,
    MinU,
    MinS,
    MaxU,
    MaxS,
    AddF,
    SubF,
    MulF,
    MinF,
    MaxF,
    AddFtz,
    SubFtz,
    MulFtz,
    DivF,
}

/// Two-operand operations on 64 bits. Shift counts are 32-bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum B64 {
    Add,
    Sub,
    Mul,
    And,
    Or,
    Xor,
    AddF,
    SubF,
    MulF,
}

/// Three-operand operations on 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum T32 {
    Mad,
    Fma,
    FmaFtz,
    BfeU,
    Shfl,
    Shfr,
    Prmt,
    Dp4aSS,
    Dp4aUU,
    Dp4aSU,
    Dp4aUS,
}

/// One-operand operations that are vectorised, among them the frequent conversions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum U32 {
    Not,
    Neg,
    Abs,
    NegF,
    AbsF,
    FromSigned,
    FromUnsigned,
    ToSigned,
    FromF16,
    ToF16,
    FromBf16,
    Low8,
    Low16,
    Ext8,
    Ext16,
    SqrtF,
    RcpF,
    Popc,
}

/// Comparisons that are vectorised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum Cmp {
    Eq,
    Ne,
    LtU,
    LeU,
    GtU,
    GeU,
    LtS,
    LeS,
    GtS,
    GeS,
    EqF,
    NeF,
    LtF,
    LeF,
    GtF,
    GeF,
}

/// Boolean operations on predicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum Bool {
    And,
    Or,
    Xor,
}

impl Bool {
    /// On masks.
    pub(crate) fn apply(self, a: u32, b: u32) -> u32 {
        match self {
            Bool::And => a & b,
            Bool::Or => a | b,
            Bool::Xor => a ^ b,
        }
    }
}

/// How a comparison's result is combined and stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SetpDst {
    pub(crate) p: P,
    pub(crate) q: P,
    /// Operation, predicate, negated.
    pub(crate) combine: Option<(Bool, P, bool)>,
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
    /// NaN in, NaN out.
    pub(crate) nan: bool,
    /// A number the operation needs: a table, a mode, a comparison.
    pub(crate) imm: u32,
}

/// A scalar operation with its operands.
#[derive(Debug, Clone)]
pub(crate) struct LaneOp {
    pub(crate) f: LaneFn,
    pub(crate) ctl: Ctl,
    pub(crate) d: R,
    pub(crate) dw: W,
    pub(crate) src: [(R, W); 4],
    pub(crate) n: u8,
    /// The result is an f64 still to be rounded, in a direction that may be perturbed.
    pub(crate) approximate: bool,
}

/// Memory ordering of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sem {
    /// Ordinary.
    Weak,
    /// `.volatile`: as relaxed at system scope.
    Volatile,
    /// `.relaxed`
    Relaxed,
    /// `.acquire`
    Acquire,
    /// `.release`
    Release,
    /// `.acq_rel`
    AcqRel,
    /// `fence.sc`
    Sc,
}

/// Scope of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    Cta,
    Cluster,
    Gpu,
    Sys,
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
}

/// A load or a store.
#[derive(Debug, Clone)]
pub(crate) struct MemOp {
    pub(crate) space: MemSpace,
    /// Bytes of one element.
    pub(crate) bytes: u8,
    pub(crate) signed: bool,
    pub(crate) regs: Vec<(R, W)>,
    pub(crate) address: Address,
    pub(crate) sem: Sem,
    pub(crate) scope: Scope,
    /// Through the non-coherent path.
    pub(crate) nc: bool,
    /// `ld.const`: read-only data.
    pub(crate) constant: bool,
}

impl MemOp {
    /// Pieces of 64 bits.
    pub(crate) fn pieces(&self) -> u8 {
        (self.regs.len() * usize::from(self.bytes)).div_ceil(8) as u8
    }

    /// One of them, in one of two orders; a later one is checked and ordered like the first.
    pub(crate) fn piece(&self, k: u8, order: u64) -> MemOp {
        let n = self.pieces();
        let k = usize::from(if order & 1 == 1 { n - 1 - k } else { k });
        let each = (8 / usize::from(self.bytes)).max(1);
        let regs = self.regs[each * k..(each * (k + 1)).min(self.regs.len())].to_vec();
        let offset = self.address.offset.wrapping_add((each * k * usize::from(self.bytes)) as i64);
        MemOp { regs, address: Address { offset, ..self.address }, ..self.clone() }
    }
}

/// What an atomic does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum AtomKind {
    Add,
    MinU,
    MinS,
    MaxU,
    MaxS,
    And,
    Or,
    Xor,
    Inc,
    Dec,
    Exch,
    Cas,
    AddF32,
    AddF64,
    AddF16x2,
    AddBf16x2,
    AddF16,
    AddBf16,
}

/// `atom` and `red`.
#[derive(Debug, Clone)]
pub(crate) struct AtomOp {
    pub(crate) space: MemSpace,
    pub(crate) kind: AtomKind,
    pub(crate) bytes: u8,
    /// `NONE` for `red`.
    pub(crate) d: R,
    pub(crate) dw: W,
    pub(crate) address: Address,
    pub(crate) b: (R, W),
    pub(crate) c: (R, W),
    pub(crate) sem: Sem,
    pub(crate) scope: Scope,
}

/// Reduction of a barrier, vote or match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum BarRed {
    Popc,
    And,
    Or,
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

/// Modes of `shfl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum Shfl {
    Up,
    Down,
    Bfly,
    Idx,
}

/// Modes of `vote`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum Vote {
    All,
    Any,
    Uni,
    Ballot,
}

/// Warp-wide operations with a member mask.
#[derive(Debug, Clone)]
pub(crate) enum WarpOp {
    /// `bar.warp.sync`
    Sync,
    /// `vote.sync`
    Vote { mode: Vote, d: R, p: P, a: P, negated: bool },
    /// `match.any.sync` and `match.all.sync`
    Match { all: bool, d: R, p: P, a: R, wide: bool },
    /// `redux.sync`
    Redux { kind: AtomKind, d: R, a: R },
    /// `elect.sync`
    Elect { d: R, p: P },
    /// `shfl.sync`
    Shfl(ShflOp),
    /// `mma`, `ldmatrix`, ...: all 32 lanes together.
    Matrix(Box<super::matrix::MatrixOp>),
}

/// Special registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    GridId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    Clock,
    Clock64,
    GlobalTimer,
    GlobalTimerLo,
    GlobalTimerHi,
    DynamicShared,
    TotalShared,
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterRank,
    ClusterSize,
    Zero,
    One,
}

/// What an instruction does.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Nop,
    Mov32(R, R),
    Mov64(R, R),
    MovPred(P, P),
    Un32(U32, R, R),
    Bin32(B32, R, R, R),
    Tern32(T32, R, R, R, R),
    Lop3(u8, R, R, R, R),
    Bin64(B64, R, R, R),
    Fma64(R, R, R, R),
    Shl64(R, R, R),
    ShrU64(R, R, R),
    MulWide(bool, R, R, R),
    MadWide(bool, R, R, R, R),
    Mad64(R, R, R, R),
    /// Zero- or sign-extends 32 to 64 bits.
    Extend(bool, R, R),
    /// Takes the low (false) or high 32 bits of 64.
    Half(bool, R, R),
    /// Joins two 32-bit values into 64 bits.
    Join(R, R, R),
    /// Add or subtract with carry: destination, sources, carry-in, subtract, carry-out, slot of the carry, wide.
    Carry(Box<CarryOp>),
    Lane(Box<LaneOp>),
    /// A scalar operation whose result is a predicate.
    LanePred(Box<LaneOp>, SetpDst),
    Setp32(Cmp, P, R, R),
    Setp64(Cmp, P, R, R),
    /// As above, with a combination or a second destination.
    SetpEx(Box<(Cmp, bool, R, R, SetpDst)>),
    Selp32(R, R, R, P),
    Selp64(R, R, R, P),
    /// Operation on predicates: destination, sources.
    PredBool(Bool, P, P, P),
    PredNot(P, P),
    /// Sets a predicate to a constant.
    PredSet(P, bool),
    Special(Special, R, W),
    Bra(u32),
    BrxIdx(R, Box<[u32]>),
    Exit,
    Trap,
    Ld(Box<MemOp>),
    St(Box<MemOp>),
    Atom(Box<AtomOp>),
    Fence(Sem, Scope),
    FenceProxy(Proxy),
    Bar(Box<BarOp>),
    Warp(Box<(WarpOp, R)>),
    ActiveMask(R),
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
    /// `fence.mbarrier_init`
    MbarrierInit,
}

/// Operands of `add.cc`, `addc`, `sub.cc`, `subc`, `madc` parts.
#[derive(Debug, Clone)]
pub(crate) struct CarryOp {
    pub(crate) d: R,
    pub(crate) a: R,
    pub(crate) b: R,
    pub(crate) wide: bool,
    pub(crate) subtract: bool,
    pub(crate) carry_in: bool,
    pub(crate) carry_out: bool,
    /// Predicate that holds the carry.
    pub(crate) cc: P,
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
#[derive(Debug)]
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
