//! Modifiers of instructions: types, spaces, orders, scopes. `mnemonic` writes them.

use super::ir::{Class, Uniformity};

/// A type in an instruction's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Type {
    /// A predicate.
    Pred,
    /// An unsigned byte, in memory only.
    U8,
    /// A signed byte, in memory only.
    S8,
    /// 16 bits of any type.
    B16,
    /// 16-bit unsigned integer.
    U16,
    /// Half precision.
    F16,
    /// bfloat16.
    BF16,
    /// 32 bits of any type.
    B32,
    /// 32-bit unsigned integer.
    U32,
    /// 32-bit signed integer.
    S32,
    /// Single precision.
    F32,
    /// 64 bits of any type.
    B64,
    /// 64-bit unsigned integer.
    U64,
    /// Double precision.
    F64,
}

impl Type {
    /// Its size in memory, in bytes; a predicate has none.
    pub const fn bytes(self) -> u32 {
        match self {
            Type::Pred => 0,
            Type::U8 | Type::S8 => 1,
            Type::B16 | Type::U16 | Type::F16 | Type::BF16 => 2,
            Type::B32 | Type::U32 | Type::S32 | Type::F32 => 4,
            Type::B64 | Type::U64 | Type::F64 => 8,
        }
    }

    /// The class of the registers that hold it. Bytes are widened to 32 bits.
    pub const fn class(self) -> Class {
        match self {
            Type::Pred => Class::Pred,
            Type::B16 | Type::U16 | Type::F16 | Type::BF16 => Class::B16,
            Type::U8 | Type::S8 | Type::B32 | Type::U32 | Type::S32 => Class::B32,
            Type::F32 => Class::F32,
            Type::B64 | Type::U64 => Class::B64,
            Type::F64 => Class::F64,
        }
    }

    /// Whether it is a floating-point type, whose arithmetic rounds.
    pub const fn is_float(self) -> bool {
        match self {
            Type::F16 | Type::BF16 | Type::F32 | Type::F64 => true,
            Type::Pred | Type::U8 | Type::S8 | Type::B16 | Type::U16 => false,
            Type::B32 | Type::U32 | Type::S32 | Type::B64 | Type::U64 => false,
        }
    }

    /// Whether an instruction of this type takes registers of `class`: its own class and that of bits as wide; for
    /// bits, every class as wide.
    pub(crate) const fn takes(self, class: Class) -> bool {
        match class {
            Class::Pred => matches!(self, Type::Pred),
            Class::B16 => matches!(self.class(), Class::B16),
            Class::B32 => matches!(self.class(), Class::B32 | Class::F32),
            Class::B64 => matches!(self.class(), Class::B64 | Class::F64),
            Class::F32 => matches!(self, Type::F32 | Type::B32),
            Class::F64 => matches!(self, Type::F64 | Type::B64),
        }
    }
}

/// A state space that loads and stores name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StateSpace {
    /// Device memory.
    Global,
    /// The block's shared memory.
    Shared,
}

/// How many neighbouring elements an access moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Width {
    One,
    Two,
    Four,
}

impl Width {
    /// The width of `N` elements of `bytes` each; anything that no instruction moves at once does not compile.
    pub(crate) const fn of<const N: usize>(bytes: u32) -> Width {
        assert!(N as u32 * bytes <= 16, "at most 16 bytes at once");
        match N {
            1 => Width::One,
            2 => Width::Two,
            4 => Width::Four,
            _ => panic!("one, two or four elements at once"),
        }
    }

    pub(crate) const fn count(self) -> u32 {
        match self {
            Width::One => 1,
            Width::Two => 2,
            Width::Four => 4,
        }
    }
}

/// The assumption of a load. Blocks that read device memory take it as an argument: the input of a short kernel is
/// constant, that of the persistent kernel was written by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LoadKind {
    /// An ordinary load: the data may be written during the launch, ordered by barriers or fences.
    Ordinary,
    /// The data does not change: device memory during the whole launch (`.nc`, the read-only path), shared memory
    /// between the barriers around the load. The value at a uniform address is uniform.
    Constant,
    /// As `Constant`, read once: does not displace other data from L1.
    Streaming,
    /// As `Constant`, but of device memory that the launches before this one may have written: read behind the wait for
    /// them, through the path of ordinary loads.
    Settled,
}

/// The threads among which an access or a fence orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The block.
    Cta,
    /// The device.
    Gpu,
    /// The devices and the host.
    Sys,
}

/// The strength of a synchronising load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LoadOrder {
    /// Single-copy atomic, no order.
    Relaxed,
    /// What the releasing thread did before its release happens before what follows.
    Acquire,
}

/// The strength of a synchronising store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreOrder {
    /// Single-copy atomic, no order.
    Relaxed,
    /// What was done before happens before what follows the acquire that sees it.
    Release,
}

/// The strength of a read-modify-write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Single-copy atomic, no order.
    Relaxed,
    /// What the releasing thread did before its release happens before what follows.
    Acquire,
    /// What was done before happens before what follows the acquire that sees it.
    Release,
    /// Both.
    AcqRel,
}

/// What a read-modify-write computes from the old value and its operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// Sum.
    Add,
    /// Maximum.
    Max,
    /// Bitwise or.
    Or,
}

/// The two bytes of a word that `dp2a` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Half {
    /// The low two.
    Low,
    /// The high two.
    High,
}

/// The bytes of a row of A, and of a column of B, that one `mma` multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Depth {
    /// 16.
    Of16,
    /// 32.
    Of32,
}

impl Depth {
    /// How many they are.
    pub(crate) const fn bytes(self) -> u32 {
        match self {
            Depth::Of16 => 16,
            Depth::Of32 => 32,
        }
    }

    /// The words of A that a lane holds.
    pub(crate) const fn of_a(self) -> u32 {
        self.bytes() / 8
    }

    /// The words of B that a lane holds.
    pub(crate) const fn of_b(self) -> u32 {
        self.bytes() / 16
    }
}

/// How `setp` compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compare {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

/// How a conversion rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// To the nearest value, ties to even.
    Nearest,
    /// To the nearest integer, ties to even.
    NearestInteger,
    /// To an integer, towards zero.
    ZeroInteger,
}

/// The lane whose value `shfl` gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Shuffle {
    /// Lane `lane ^ mask`.
    Butterfly,
    /// One lane, the same for all.
    Index,
}

/// A register that the hardware sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Special {
    /// The thread's number in its block.
    Tid,
    /// The block's x in the grid.
    CtaidX,
    /// The block's y in the grid.
    CtaidY,
    /// The block's z in the grid.
    CtaidZ,
    /// Blocks of the grid in x.
    NctaidX,
    /// The device's clock.
    Globaltimer,
}

impl Special {
    /// The uniformity of its value.
    pub(crate) const fn uniformity(self) -> Uniformity {
        match self {
            Special::Tid | Special::Globaltimer => Uniformity::Lane,
            Special::CtaidX | Special::CtaidY | Special::CtaidZ | Special::NctaidX => Uniformity::Block,
        }
    }
}
