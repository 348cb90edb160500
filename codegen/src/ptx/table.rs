//! The table of instructions: operands and results of each, its needs of a target, the uniformity of its result, the
//! threads that it needs converged, its effect on memory. What is not in the table cannot be built. The builder's
//! methods name rows, the verifier's rules read them, `mnemonic` writes them.
//!
//! Source: NVIDIA's PTX ISA manual, the "PTX ISA Notes" and "Target ISA Notes" of each instruction.

use super::ir::{Arg, Base, Class, Uniformity};
use super::modifiers::{
    AtomicOp, Compare, Depth, Half, LoadKind, LoadOrder, Order, Rounding, Scope, Shuffle, StateSpace, StoreOrder, Type,
    Width,
};
use crate::target::Target;
use Convergence::{Barrier, Block, Free, Warp};
use Effect::{Loads, LoadsConstant, Orders, Pure, Stores};
use Slot::{Address, Any, Constant, Parameter, Parts, Place, Value};
use Spread::{Exactly, Operands, Varies};
use StateSpace::Global;
use Type::{B32, F32, Pred, S32, U32, U64};

/// A place for an operand or a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// A register of a type; as an operand, also a constant.
    Value(Type),
    /// A register or constant of a type, a special register, the address of a shared variable.
    Any(Type),
    /// So many values in braces.
    Parts(u32, Type),
    /// An integer constant.
    Constant,
    /// The address of so many bytes in a space.
    Address(StateSpace, u32),
    /// The address of a tensor map, and a place in a tensor of so many dimensions.
    Place(u32),
    /// A kernel parameter.
    Parameter,
}

impl Slot {
    /// The same constant with the fewest digits: large 32-bit constants are small negative numbers.
    pub(crate) fn shortest(self, value: i64) -> i64 {
        let bits32 = match self {
            Value(ty) | Any(ty) => ty.bytes() == 4,
            Constant => true,
            Parts(..) | Address(..) | Place(_) | Parameter => false,
        };
        match u32::try_from(value) {
            Ok(value) if bits32 && value > u32::MAX - 1000 => i64::from(value as i32),
            _ => value,
        }
    }

    /// Whether `arg` can stand here as an operand.
    pub(crate) fn reads(self, arg: &Arg) -> bool {
        match (self, arg) {
            (Value(ty) | Any(ty), Arg::Int(_)) => !ty.is_float() && ty != Pred,
            (Value(ty) | Any(ty), Arg::F32(_)) => ty == F32,
            (Any(_), Arg::Special(_) | Arg::Address(_)) => true,
            (Parts(count, ty), Arg::Vector(parts)) => {
                parts.len() == count as usize && parts.iter().all(|part| Value(ty).reads(part))
            }
            (Place(rank), Arg::Box(map, parts)) => {
                map.class == Class::B64 && Parts(rank, S32).reads(&Arg::Vector(parts.clone()))
            }
            (Constant, arg) => matches!(arg, Arg::Int(_)),
            _ => self.writes(arg),
        }
    }

    /// Whether `arg` can stand here as a result.
    pub(crate) fn writes(self, arg: &Arg) -> bool {
        match (self, arg) {
            (Value(ty) | Any(ty), Arg::Reg(reg)) => ty.takes(reg.class),
            (Parts(count, ty), Arg::Vector(parts)) => {
                parts.len() == count as usize && parts.iter().all(|part| Value(ty).writes(part))
            }
            (Address(Global, _), Arg::Mem(base, _)) => matches!(base, Base::Reg(reg) if reg.class == Class::B64),
            (Address(StateSpace::Shared, _), Arg::Mem(base, _)) => {
                matches!(base, Base::Symbol(_)) || matches!(base, Base::Reg(reg) if reg.class == Class::B32)
            }
            (Parameter, arg) => matches!(arg, Arg::Mem(Base::Symbol(_), 0)),
            _ => false,
        }
    }
}

/// The needs of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Needs {
    /// The least PTX version.
    pub(crate) version: (u32, u32),
    /// The least compute capability.
    pub(crate) sm: u32,
    /// Whether no other compute capability has it: a target of that one's own.
    pub(crate) own: bool,
}

impl Needs {
    /// The needs that every target meets.
    pub(crate) const BASE: Needs = Needs { version: (6, 3), sm: 75, own: false };

    /// The needs of both.
    pub(crate) fn max(self, other: Needs) -> Needs {
        Needs { version: self.version.max(other.version), sm: self.sm.max(other.sm), own: self.own || other.own }
    }

    /// Whether `target` has it. A target's version is no limit: a module's is raised to what its kernels need.
    pub(crate) fn met_by(self, target: Target) -> bool {
        if self.own { target.is_own() && self.sm == target.sm() } else { self.sm <= target.sm() }
    }
}

const BASE: Needs = Needs::BASE;
/// What came with compute capability 8.0.
const SM_80: Needs = Needs { version: (7, 0), sm: 80, own: false };
/// What came with compute capability 9.0 and the first PTX that knows it.
const SM_90: Needs = Needs { version: (7, 8), sm: 90, own: false };
/// What came to mbarriers after compute capability 8.0: waits for a parity, and waits that sleep.
const SM_80_PARITY: Needs = Needs { version: (7, 1), sm: 80, own: false };
const SM_80_POLICY: Needs = Needs { version: (7, 4), sm: 80, own: false };
/// Products of warpgroups, which no later chip has.
const SM_90_OWN: Needs = Needs { version: (8, 0), sm: 90, own: true };
/// Bulk copies of compute capability 9.0.
const SM_90_BULK: Needs = Needs { version: (8, 0), sm: 90, own: false };
/// Tensor maps in device memory.
const SM_90_MAPS: Needs = Needs { version: (8, 3), sm: 90, own: false };

/// The uniformity of an instruction's result, given its operands'.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spread {
    /// As uniform as the least uniform operand.
    Operands,
    /// Varies with the lane: ordinary loads and atomics, whose value may change between the accesses of two threads.
    Varies,
    /// Exactly this whatever the operands.
    Exactly(Uniformity),
}

/// The threads that an instruction needs to be converged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Convergence {
    /// None.
    Free,
    /// All lanes of the warp.
    Warp,
    /// All threads of the block, wherever they stand; of a warpgroup's products those of the warpgroup.
    Block,
    /// Those that the barrier of its operands counts: all of the block, or of a role when inside `roles`.
    Barrier,
}

/// The effect of an instruction on memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing that the verifier follows.
    Pure,
    /// Reads what may be written meanwhile.
    Loads,
    /// Reads what nobody writes meanwhile.
    LoadsConstant,
    /// Writes, or reads and writes.
    Stores,
    /// Orders the accesses of the threads that come together at it.
    Orders,
}

/// The effect of a load.
const fn loads(kind: LoadKind) -> Effect {
    match kind {
        LoadKind::Ordinary => Loads,
        LoadKind::Constant | LoadKind::Streaming | LoadKind::Settled => LoadsConstant,
    }
}

/// The uniformity of a loaded value: one that may be written meanwhile varies with the lane.
const fn seen(kind: LoadKind) -> Spread {
    match kind {
        LoadKind::Ordinary => Varies,
        LoadKind::Constant | LoadKind::Streaming | LoadKind::Settled => Operands,
    }
}

/// The cache hint came with PTX 7.4, which reaches drivers from 2021 on.
const fn hint(space: StateSpace, kind: LoadKind) -> Needs {
    match (space, kind) {
        (StateSpace::Global, LoadKind::Streaming) => Needs { version: (7, 4), sm: 75, own: false },
        _ => BASE,
    }
}

/// `m16n8k8` came with compute capability 7.5, `m16n8k16` with 8.0.
const fn multiplies(depth: Depth) -> Needs {
    match depth {
        Depth::Of16 => Needs { version: (6, 5), sm: 75, own: false },
        Depth::Of32 => SM_80,
    }
}

/// The values of an access.
const fn moved(width: Width, ty: Type) -> Slot {
    match width {
        Width::One => Value(ty),
        Width::Two | Width::Four => Parts(width.count(), ty),
    }
}

/// The place of an access.
const fn place(space: StateSpace, width: Width, ty: Type) -> Slot {
    Address(space, width.count() * ty.bytes())
}

/// The uniformity of an exchange: a butterfly varies with the lane, one lane's value is the warp's.
const fn shuffled(mode: Shuffle) -> Spread {
    match mode {
        Shuffle::Butterfly => Varies,
        Shuffle::Index => Exactly(Uniformity::Warp),
    }
}

/// The slots of an instruction's operands or results.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slots {
    slots: [Option<Slot>; 4],
}

impl Slots {
    fn new<const N: usize>(slots: [Slot; N]) -> Slots {
        const { assert!(N <= 4, "at most four slots") };
        Slots { slots: std::array::from_fn(|index| slots.get(index).copied()) }
    }

    /// The slots in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        self.slots.iter().map_while(|slot| *slot)
    }

    /// Whether each of `args` can stand in its slot.
    pub(crate) fn hold(&self, args: &[Arg], fits: impl Fn(Slot, &Arg) -> bool) -> bool {
        self.iter().count() == args.len() && self.iter().zip(args).all(|(slot, arg)| fits(slot, arg))
    }
}

/// An instruction's row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) results: Slots,
    pub(crate) operands: Slots,
    pub(crate) needs: Needs,
    pub(crate) spread: Spread,
    pub(crate) convergence: Convergence,
    pub(crate) effect: Effect,
}

impl Row {
    /// The bytes at the address it accesses, if it accesses one.
    pub(crate) fn bytes(&self) -> Option<u32> {
        self.results.iter().chain(self.operands.iter()).find_map(|slot| match slot {
            Address(_, bytes) => Some(bytes),
            Value(_) | Any(_) | Parts(..) | Place(_) | Constant | Parameter => None,
        })
    }
}

macro_rules! instructions {
    ($(
        $(#[$doc:meta])* $name:ident $({ $($field:ident: $of:ty),* })?:
        [$($result:expr),*] <- [$($operand:expr),*], $needs:expr, $spread:expr, $convergence:expr, $effect:expr;
    )*) => {
        /// An instruction with its modifiers; its `Display` is its PTX name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(crate) enum Op {
            $($(#[$doc])* $name $({ $($field: $of),* })?,)*
        }

        /// A row of the table of instructions, whatever the modifiers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Opcode {
            $($(#[$doc])* $name,)*
        }

        impl Opcode {
            /// Every row.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name,)*];
        }

        impl Op {
            pub(crate) const fn opcode(self) -> Opcode {
                match self {
                    $(Op::$name { .. } => Opcode::$name,)*
                }
            }

            #[allow(unused_variables)] // not every column depends on every modifier
            pub(crate) fn row(self) -> Row {
                match self {
                    $(Op::$name $({ $($field),* })? => Row {
                        results: Slots::new([$($result),*]),
                        operands: Slots::new([$($operand),*]),
                        needs: $needs,
                        spread: $spread,
                        convergence: $convergence,
                        effect: $effect,
                    },)*
                }
            }
        }
    };
}

instructions! {
    // Results and operands, needs, uniformity, who comes together, effect.

    /// `a + b`.
    Add { ty: Type }: [Value(ty)] <- [Value(ty), Value(ty)], BASE, Operands, Free, Pure;
    /// `a - b`.
    Sub { ty: Type }: [Value(ty)] <- [Value(ty), Value(ty)], BASE, Operands, Free, Pure;
    /// `a * b`, the low half for integers.
    Mul { ty: Type }: [Value(ty)] <- [Value(ty), Value(ty)], BASE, Operands, Free, Pure;
    /// `a * b + c`, the low half.
    Mad { ty: Type }: [Value(ty)] <- [Value(ty), Value(ty), Value(ty)], BASE, Operands, Free, Pure;
    /// The upper half of `a * b`, and `c`.
    MadHi: [Value(U32)] <- [Value(U32), Value(U32), Value(U32)], BASE, Operands, Free, Pure;
    /// `a * b + c` of two `u32` and a `u64`.
    MadWide: [Value(U64)] <- [Value(U32), Value(U32), Value(U64)], BASE, Operands, Free, Pure;
    /// `a * b + c`, rounded once.
    Fma { ty: Type }: [Value(ty)] <- [Value(ty), Value(ty), Value(ty)], BASE, Operands, Free, Pure;
    /// `a / b`.
    Div { ty: Type }: [Value(ty)] <- [Value(ty), Value(ty)], BASE, Operands, Free, Pure;
    /// `a % b`.
    Rem { ty: Type }: [Value(ty)] <- [Value(ty), Value(ty)], BASE, Operands, Free, Pure;
    /// The lesser.
    Min { ty: Type }: [Value(ty)] <- [Value(ty), Value(ty)], BASE, Operands, Free, Pure;
    /// The greater.
    Max { ty: Type }: [Value(ty)] <- [Value(ty), Value(ty)], BASE, Operands, Free, Pure;
    /// The greater of two f32, NaN where one is.
    MaxNan: [Value(F32)] <- [Value(F32), Value(F32)], SM_80, Operands, Free, Pure;
    /// `-a`.
    Neg { ty: Type }: [Value(ty)] <- [Value(ty)], BASE, Operands, Free, Pure;
    /// `|a|`.
    Abs { ty: Type }: [Value(ty)] <- [Value(ty)], BASE, Operands, Free, Pure;
    /// `1 / a`, correctly rounded.
    Rcp { ty: Type }: [Value(ty)] <- [Value(ty)], BASE, Operands, Free, Pure;
    /// The square root, correctly rounded.
    Sqrt { ty: Type }: [Value(ty)] <- [Value(ty)], BASE, Operands, Free, Pure;
    /// `2^a`, approximately.
    Ex2: [Value(F32)] <- [Value(F32)], BASE, Operands, Free, Pure;
    /// The dot product of four bytes, signed or not, with four signed ones, added to `c`.
    Dp4a { bytes: Type }: [Value(S32)] <- [Value(B32), Value(B32), Value(S32)], BASE, Operands, Free, Pure;
    /// The distances of four signed bytes from four others, added to `c`.
    Vabsdiff4: [Value(U32)] <- [Value(B32), Value(B32), Value(U32)], BASE, Operands, Free, Pure;
    /// The dot product of two signed half words with two bytes, signed or not, added to `c`.
    Dp2a { half: Half, bytes: Type }:
        [Value(S32)] <- [Value(B32), Value(B32), Value(S32)], BASE, Operands, Free, Pure;

    /// `a & b`.
    And { ty: Type }: [Value(ty)] <- [Value(ty), Value(ty)], BASE, Operands, Free, Pure;
    /// `a | b`.
    Or { ty: Type }: [Value(ty)] <- [Value(ty), Value(ty)], BASE, Operands, Free, Pure;
    /// `a ^ b`.
    Xor { ty: Type }: [Value(ty)] <- [Value(ty), Value(ty)], BASE, Operands, Free, Pure;
    /// `!a`.
    Not { ty: Type }: [Value(ty)] <- [Value(ty)], BASE, Operands, Free, Pure;
    /// `a << bits`.
    Shl { ty: Type }: [Value(ty)] <- [Value(ty), Value(U32)], BASE, Operands, Free, Pure;
    /// `a >> bits`.
    Shr { ty: Type }: [Value(ty)] <- [Value(ty), Value(U32)], BASE, Operands, Free, Pure;
    /// Any function of three bits, by its truth table.
    Lop3: [Value(B32)] <- [Value(B32), Value(B32), Value(B32), Constant], BASE, Operands, Free, Pure;
    /// Four of the eight bytes of `b:a`.
    Prmt: [Value(B32)] <- [Value(B32), Value(B32), Value(B32)], BASE, Operands, Free, Pure;
    /// Some bits of `a`.
    Bfe { ty: Type }: [Value(ty)] <- [Value(ty), Value(U32), Value(U32)], BASE, Operands, Free, Pure;

    /// A value as another type.
    Cvt { to: Type, from: Type, rounding: Option<Rounding> }: [Value(to)] <- [Value(from)], BASE, Operands, Free, Pure;
    /// Two numbers as halves of a word, the second in the low half.
    CvtF16x2: [Value(B32)] <- [Value(F32), Value(F32)], SM_80, Operands, Free, Pure;
    /// `a`.
    Mov { ty: Type }: [Value(ty)] <- [Any(ty)], BASE, Operands, Free, Pure;
    /// The halves of a register.
    Unpack { whole: Type, half: Type }: [Parts(2, half)] <- [Value(whole)], BASE, Operands, Free, Pure;
    /// A register of two halves.
    Pack { whole: Type, half: Type }: [Value(whole)] <- [Parts(2, half)], BASE, Operands, Free, Pure;
    /// A comparison.
    Setp { how: Compare, ty: Type }: [Value(Pred)] <- [Value(ty), Value(ty)], BASE, Operands, Free, Pure;
    /// `c ? a : b`.
    Selp { ty: Type }: [Value(ty)] <- [Value(ty), Value(ty), Value(Pred)], BASE, Operands, Free, Pure;

    /// Another lane's value.
    Shfl { mode: Shuffle }:
        [Value(B32)] <- [Value(B32), Constant, Constant, Constant], BASE, shuffled(mode), Warp, Pure;
    /// The lanes' values together.
    Redux { op: AtomicOp, ty: Type }:
        [Value(ty)] <- [Value(ty), Constant], SM_80, Exactly(Uniformity::Warp), Warp, Pure;
    /// Whether a predicate holds in any lane.
    VoteAny: [Value(Pred)] <- [Value(Pred), Constant], BASE, Exactly(Uniformity::Warp), Warp, Pure;
    /// One of the lanes.
    Elect: [Value(Pred)] <- [Constant], SM_90_BULK, Varies, Warp, Pure;
    /// The lanes where a predicate is true.
    VoteBallot: [Value(U32)] <- [Value(Pred), Constant], BASE, Exactly(Uniformity::Warp), Warp, Pure;

    /// A product of f16 matrices added to one of f32, over the warp.
    MmaHalves { depth: Depth }:
        [Parts(4, F32)] <- [Parts(depth.of_a(), B32), Parts(depth.of_b(), B32), Parts(4, F32)],
        multiplies(depth), Varies, Warp, Pure;
    /// `A B + C` of a matrix of 16 rows of bytes, signed or not, and eight columns of signed ones, in a warp's registers.
    MmaBytes { depth: Depth, bytes: Type }:
        [Parts(4, S32)] <- [Parts(depth.of_a(), B32), Parts(depth.of_b(), B32), Parts(4, S32)], SM_80, Varies, Warp,
        Pure;

    /// The same of eight rows of 16 bytes.
    MmaEightRows { bytes: Type }:
        [Parts(2, S32)] <- [Parts(1, B32), Parts(1, B32), Parts(2, S32)], multiplies(Depth::Of16), Varies, Warp, Pure;

    /// A product of a warpgroup's 64 rows of signed bytes with so many columns in shared memory, or its sum with what is
    /// there; nobody waits for it here.
    Wgmma { columns: u32 }:
        [Parts(columns / 2, S32)] <- [Parts(4, B32), Value(U64), Value(Pred)], SM_90_OWN, Varies, Block, Loads;
    /// Orders accesses to registers of sums and rows before the products that follow.
    WgmmaFence: [] <- [], SM_90_OWN, Operands, Block, Pure;
    /// Makes a group of the warp's products since the last one.
    WgmmaCommitGroup: [] <- [], SM_90_OWN, Operands, Block, Pure;
    /// Waits until at most so many of the warp's groups are under way.
    WgmmaWaitGroup: [] <- [Constant], SM_90_OWN, Operands, Block, Pure;

    /// A parameter's value.
    LdParam { ty: Type }: [Value(ty)] <- [Parameter], BASE, Exactly(Uniformity::Block), Free, Loads;
    /// A load.
    Ld { space: StateSpace, kind: LoadKind, width: Width, ty: Type }:
        [moved(width, ty)] <- [place(space, width, ty)], hint(space, kind), seen(kind), Free, loads(kind);
    /// A store.
    St { space: StateSpace, width: Width, ty: Type }:
        [place(space, width, ty)] <- [moved(width, ty)], BASE, Operands, Free, Stores;
    /// Four matrices of eight rows of 16 bytes, a row a lane's address, each as `MmaBytes` has its rows.
    LdMatrix: [Parts(4, B32)] <- [Address(StateSpace::Shared, 16)], BASE, Varies, Warp, Loads;
    /// The same, transposed as they are read.
    LdMatrixTransposed: [Parts(4, B32)] <- [Address(StateSpace::Shared, 16)], BASE, Varies, Warp, Loads;
    /// A copy of 16 bytes to shared memory that is not waited for; so many are read, the others are zeros.
    CpAsync: [Address(StateSpace::Shared, 16)] <- [Address(Global, 16), Constant, Value(U32)], SM_80, Operands, Free,
        Stores;
    /// Makes a group of the thread's copies since the last one.
    CpAsyncCommitGroup: [] <- [], SM_80, Operands, Free, Pure;
    /// Waits until at most so many of the thread's groups are under way.
    CpAsyncWaitGroup: [] <- [Constant], SM_80, Operands, Free, Pure;
    /// An arrival of this thread at an mbarrier once all its copies have landed.
    CpAsyncMbarrierArriveNoinc: [] <- [Address(StateSpace::Shared, 8)], SM_80, Operands, Free, Stores;
    /// A hint that the line at an address will be read.
    PrefetchL2: [] <- [Address(Global, 4)], BASE, Operands, Free, Pure;
    /// A hint that so many bytes will be read, a multiple of 16.
    CpAsyncBulkPrefetch: [] <- [Address(Global, 16), Value(U32)], SM_90_BULK, Operands, Free, Pure;
    /// The policy of what is read once: L2 gives its lines up before others.
    CreatePolicyEvictFirst: [Value(U64)] <- [], SM_80_POLICY, Operands, Free, Pure;
    /// A copy of so many bytes to shared memory, a multiple of 16, that lowers what an mbarrier expects; with a policy of L2.
    CpAsyncBulk: [Address(StateSpace::Shared, 16)] <-
        [Address(Global, 16), Value(U32), Address(StateSpace::Shared, 8), Value(U64)],
        SM_90_BULK, Operands, Free, Stores;
    /// The same without a policy.
    CpAsyncBulkOrdinary: [Address(StateSpace::Shared, 16)] <-
        [Address(Global, 16), Value(U32), Address(StateSpace::Shared, 8)], SM_90_BULK, Operands, Free, Stores;
    /// A copy of a box of a matrix to shared memory that lowers what an mbarrier expects: the tensor map knows its size.
    CpAsyncBulkTensor: [Address(StateSpace::Shared, 128)] <- [Place(2), Address(StateSpace::Shared, 8)], SM_90_BULK,
        Operands, Free, Stores;
    /// Makes an mbarrier whose phases end after so many arrivals.
    MbarrierInit: [Address(StateSpace::Shared, 8)] <- [Value(U32)], SM_80, Operands, Free, Stores;
    /// Arrives at an mbarrier, and releases; its state before.
    MbarrierArrive: [Value(U64)] <- [Address(StateSpace::Shared, 8)], SM_80, Varies, Free, Stores;
    /// The same, once the phase expects so many more bytes.
    MbarrierArriveExpectTx:
        [Value(U64)] <- [Address(StateSpace::Shared, 8), Value(U32)], SM_90_BULK, Varies, Free, Stores;
    /// Whether the phase of a parity is over, and acquires.
    MbarrierTestWait:
        [Value(Pred)] <- [Address(StateSpace::Shared, 8), Value(U32)], SM_80_PARITY, Varies, Free, Loads;
    /// The same, after a while of sleep if it is not.
    MbarrierTryWait: [Value(Pred)] <- [Address(StateSpace::Shared, 8), Value(U32)], SM_90, Varies, Free, Loads;
    /// A synchronising load.
    LdSync { order: LoadOrder, scope: Scope, width: Width, ty: Type }:
        [moved(width, ty)] <- [place(Global, width, ty)], BASE, Varies, Free, Loads;
    /// A synchronising store.
    StSync { order: StoreOrder, scope: Scope, width: Width, ty: Type }:
        [place(Global, width, ty)] <- [moved(width, ty)], BASE, Operands, Free, Stores;
    /// A read-modify-write without a result.
    Red { op: AtomicOp, scope: Scope, ty: Type }:
        [place(Global, Width::One, ty)] <- [Value(ty)], BASE, Operands, Free, Stores;
    /// A read-modify-write that gives the old value.
    Atom { op: AtomicOp, order: Order, scope: Scope, ty: Type }:
        [Value(ty)] <- [place(Global, Width::One, ty), Value(ty)], BASE, Varies, Free, Stores;
    /// An exchange that gives the old value.
    AtomExch { order: Order, scope: Scope, ty: Type }:
        [Value(ty)] <- [place(Global, Width::One, ty), Value(ty)], BASE, Varies, Free, Stores;
    /// Orders the accesses of one thread.
    Fence { scope: Scope }: [] <- [], BASE, Operands, Free, Pure;

    /// Orders one thread's ordinary accesses to shared memory against those of asynchronous copies.
    FenceProxyAsync: [] <- [], SM_90_BULK, Operands, Free, Pure;
    /// Has the block see a tensor map, of so many bytes, as device memory has it.
    FenceProxyTensormap: [] <- [Address(Global, 128), Constant], SM_90_MAPS, Operands, Free, Pure;

    /// The block's barrier.
    BarSync: [] <- [Constant], BASE, Operands, Barrier, Orders;
    /// A barrier of some of the block's warps.
    BarSyncThreads: [] <- [Constant, Constant], BASE, Operands, Barrier, Orders;
    /// The warp's barrier.
    BarWarpSync: [] <- [Constant], BASE, Operands, Warp, Orders;
    /// Waits until the launches before this one are over and their writes are seen.
    GriddepcontrolWait: [] <- [], SM_90, Operands, Block, Pure;
    /// Lets the launch behind this one begin.
    GriddepcontrolLaunchDependents: [] <- [], SM_90, Operands, Free, Pure;
    /// Sleeps.
    Nanosleep: [] <- [Constant], BASE, Operands, Free, Pure;
    /// Ends the launch by an error.
    Trap: [] <- [], BASE, Operands, Free, Pure;
    /// Ends the thread.
    Exit: [] <- [], BASE, Operands, Block, Pure;
}

#[cfg(test)]
mod tests {
    use super::{Needs, Op, Slot};
    use crate::Target;
    use crate::ptx::ir::{Arg, Base, Class, Reg};
    use crate::ptx::modifiers::{LoadKind, StateSpace, Type, Width};

    #[test]
    fn a_row_takes_its_own_operands_and_no_others() {
        let reg = |class| Arg::Reg(Reg { class, index: 0 });
        let (word, number, long) = (reg(Class::B32), reg(Class::F32), reg(Class::B64));
        let sum = |ty, args: &[Arg]| Op::Add { ty }.row().operands.hold(args, Slot::reads);
        assert!(sum(Type::U32, &[word.clone(), Arg::Int(1)]));
        // Registers of bits hold any type as wide; those of floats hold floats only.
        assert!(sum(Type::F32, &[word.clone(), number.clone()]));
        assert!(!sum(Type::U32, &[word.clone(), number.clone()]));
        assert!(!sum(Type::U32, &[word.clone(), long.clone()]));
        assert!(!sum(Type::U32, std::slice::from_ref(&word)));
        assert!(!sum(Type::F32, &[number, Arg::Int(1)]));
        let store = Op::St { space: StateSpace::Global, width: Width::Two, ty: Type::U32 }.row();
        let at = |class| [Arg::Mem(Base::Reg(Reg { class, index: 0 }), 0)];
        assert!(store.results.hold(&at(Class::B64), Slot::writes));
        assert!(!store.results.hold(&at(Class::B32), Slot::writes));
        let pair = |parts: &[Arg]| store.operands.hold(&[Arg::Vector(parts.to_vec())], Slot::reads);
        assert!(pair(&[word.clone(), word.clone()]) && !pair(std::slice::from_ref(&word)) && !pair(&[word, long]));
        assert_eq!(store.bytes(), Some(8));
    }

    #[test]
    fn constants_of_32_bits_are_written_with_few_digits() {
        assert_eq!(Slot::Value(Type::U32).shortest(0xffff_ffff), -1);
        assert_eq!(Slot::Value(Type::U64).shortest(0xffff_ffff), 0xffff_ffff);
        assert_eq!(Slot::Constant.shortest(31), 31);
    }

    #[test]
    fn a_cache_hint_of_device_memory_raises_what_a_load_needs() {
        let needs = |space, kind| Op::Ld { space, kind, width: Width::Four, ty: Type::U32 }.row().needs;
        assert_eq!(needs(StateSpace::Global, LoadKind::Constant), Needs::BASE);
        assert_eq!(needs(StateSpace::Global, LoadKind::Streaming).version, (7, 4));
        assert_eq!(needs(StateSpace::Shared, LoadKind::Streaming), Needs::BASE);
    }

    #[test]
    fn a_target_has_what_older_ones_have() {
        let both = Needs { version: (8, 0), sm: 75, own: false }.max(Needs { version: (7, 0), sm: 80, own: false });
        assert_eq!(both, Needs { version: (8, 0), sm: 80, own: false });
        let having: Vec<u32> = Target::ALL.into_iter().filter(|t| both.met_by(*t)).map(Target::sm).collect();
        assert_eq!(having, [80, 86, 87, 89, 90, 100, 120]);
    }
}
