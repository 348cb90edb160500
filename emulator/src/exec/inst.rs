//! Decoded instructions: what the interpreter runs.
//!
//! Every value operand is a slot of the warp's register file or of the kernel's constant table; nothing is looked up by
//! name while a kernel runs.

use super::step::Flow;
use super::values::ValueFn;
use super::{Cpu, Site};
use crate::machine::access::Access;
use crate::machine::fault::OrFault;
use crate::machine::origin::Origin;
use crate::machine::types::{Space, named};
use crate::timing::fold::Cost;
use std::sync::OnceLock;

/// A slot: 32 lanes of 32 bits. Values of 64 bits take two, of 128 bits four. Bit 31 marks the constant table.
pub(crate) type R = u32;
/// Marks a slot of the constant table.
pub(crate) const CONST: u32 = 1 << 31;
/// No register: a sink, or an absent operand.
pub(crate) const NONE: u32 = u32::MAX;
/// A predicate register: a bit per lane.
pub(crate) type P = u32;
/// No predicate.
pub(crate) const NO_PRED: P = P::MAX;
/// Most predicates of a kernel.
pub(crate) const MAX_PREDICATES: u32 = 1 << 16;
/// Predicate 0 is the sink; this one holds the carry.
pub(crate) const CARRY: P = 1;

/// The cache policy by which L2 gives up first what was read, as `createpolicy` makes it.
pub(crate) const EVICT_FIRST: u64 = 1;

/// Width in which a slot is read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum W {
    /// 32 bits and less, zero-extended.
    W32,
    /// 64 bits.
    W64,
    /// A predicate, as 0 or 1.
    Pred,
}

/// A boolean function of two predicates: bit 2x + y is its value for x and y.
pub(crate) type Lut = u8;
/// The function whose value is x.
pub(crate) const FIRST: Lut = 0b1100;
/// Boolean functions by name.
pub(crate) const LUTS: &[(&str, Lut)] = &[("and", 0b1000), ("or", 0b1110), ("xor", 0b0110)];

/// A function with its second argument negated, or with its first if `first`.
pub(crate) fn negate(lut: Lut, first: bool) -> Lut {
    if first { lut >> 2 | lut << 2 & 0b1100 } else { lut >> 1 & 0b0101 | lut << 1 & 0b1010 }
}

/// A boolean function applied to masks.
#[inline(always)]
pub(crate) fn lookup(lut: Lut, x: u32, y: u32) -> u32 {
    let bit = |i: u32| 0u32.wrapping_sub(u32::from(lut) >> i & 1);
    bit(0) & !x & !y | bit(1) & !x & y | bit(2) & x & !y | bit(3) & x & y
}

/// An address operand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    /// Base register, `NONE` for an absolute address.
    pub(crate) base: R,
    /// Whether the base has 64 bits.
    pub(crate) wide: bool,
    pub(crate) offset: i64,
    /// State space; constant memory counts as `Global`.
    pub(crate) space: Space,
}

/// A load or a store.
#[derive(Clone)]
pub(crate) struct MemOp {
    pub(crate) address: Address,
    pub(crate) access: Access,
    /// Whether loaded values are sign-extended.
    pub(crate) signed: bool,
    pub(crate) regs: Vec<(R, W)>,
}

/// The new value of an atomic operation from the old one and two operands, in 64 bits.
pub(crate) type AtomFn = fn(u64, u64, u64) -> u64;

named! {
    /// Reduction of a barrier.
    BarRed { Popc = "popc", And = "and", Or = "or" }
}

/// `bar` and `barrier`.
pub(crate) struct BarOp {
    /// Barrier number.
    pub(crate) id: R,
    /// Thread count; `NONE` for all threads of the block.
    pub(crate) count: R,
    /// Whether it waits (`.sync`, `.red`) or only arrives.
    pub(crate) waits: bool,
    /// Whether all lanes of the warp must execute it together.
    pub(crate) aligned: bool,
    /// Reduction, its input predicate and destination (predicate or register).
    pub(crate) red: Option<(BarRed, P, P, R)>,
}

named! {
    /// Modes of `shfl`.
    Shfl { Up = "up", Down = "down", Bfly = "bfly", Idx = "idx" }
}

named! {
    /// Modes of `vote`.
    Vote { All = "all", Any = "any", Uni = "uni", Ballot = "ballot" }
}

/// The effect of an instruction outside the interpreter's loop.
pub(crate) type Effect = Box<dyn Fn(&mut Cpu<'_>, &mut Site<'_>) -> OrFault<Flow> + Send + Sync>;
/// The effect of a warp-wide instruction on the lanes of one member mask.
pub(crate) type WarpEffect = Box<dyn Fn(&mut Cpu<'_>, &mut Site<'_>, u32) -> OrFault<()> + Send + Sync>;

/// An operation.
pub(crate) enum Op {
    Nop,
    /// A row of `values`: destination, sources, and the table of `lop3`.
    Value(ValueFn, [R; 5]),
    /// A function of two predicates: destination, sources.
    Pred(Lut, P, P, P),
    Bra(u32),
    Exit,
    Mem(Box<MemOp>),
    Bar(Box<BarOp>),
    /// A warp-wide effect and the register of its member mask; none is `bar.warp.sync`.
    Warp(Option<WarpEffect>, R),
    /// An effect, with the address and size of the word it may be polling.
    Effect(Effect, Option<Box<(Address, u32)>>),
}

/// Flag: may communicate with other blocks, so it takes turns with their instructions.
pub(crate) const TURN: u8 = 1;
/// Flag: its third source chooses between the first two.
pub(crate) const SELECTS: u8 = 2;
/// Flag: an effect whose results are undefined where a source is, and which depends on none.
pub(crate) const CARRIES: u8 = 4;

/// A decoded instruction.
pub(crate) struct Inst {
    pub(crate) op: Op,
    pub(crate) guard: P,
    pub(crate) negated: bool,
    pub(crate) flags: u8,
}

/// Registers that an instruction reads and writes, by their first slots; predicates count from `PRED_BASE`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Uses {
    pub(crate) reads: Vec<u32>,
    pub(crate) writes: Vec<u32>,
}

/// Number of predicate 0 in `Uses`.
pub(crate) const PRED_BASE: u32 = 1 << 30;

/// A kernel, ready to run.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) insts: Vec<Inst>,
    pub(crate) origins: Vec<Origin>,
    /// Registers of each instruction.
    pub(crate) registers: Vec<Uses>,
    /// Registers that may be read before they are written.
    pub(crate) unset: Vec<u32>,
    /// Slots of a warp's register file.
    pub(crate) slots: u32,
    pub(crate) preds: u32,
    pub(crate) consts: Vec<crate::machine::lanes::Slot>,
    /// Bytes of local memory per thread.
    pub(crate) local: u32,
    /// Bytes of static shared memory.
    pub(crate) shared: u32,
    /// Alignment of dynamic shared memory.
    pub(crate) shared_align: u32,
    /// Whether it reads the address of a cooperative grid's workspace.
    pub(crate) workspace: bool,
    /// Whether any instruction has `TURN`.
    pub(crate) takes_turns: bool,
    /// Names of registers by slot, for messages.
    pub(crate) reg_names: Vec<(u32, String)>,
    /// Costs of its instructions, once something asked for them.
    pub(crate) costs: OnceLock<Vec<Cost>>,
}

impl Program {
    /// Index of a register, as `Uses` has it, among slots and then predicates.
    pub(crate) fn index(&self, r: u32) -> usize {
        (if r >= PRED_BASE { self.slots + r - PRED_BASE } else { r }) as usize
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("instructions", &self.insts.len()).finish_non_exhaustive()
    }
}
