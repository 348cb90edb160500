//! Words that a bake and its host share about launches: which path a kernel is for, how many blocks it has, what its
//! parameters are, what it caches.

use std::fmt;

/// The ways of running a decoder that kernels are baked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DecoderPath {
    /// One launch for each fused kernel, or one of a graph of them.
    Stream,
    /// One cooperative launch for whole sequences.
    Persistent,
}

impl DecoderPath {
    /// Every path.
    pub const ALL: [DecoderPath; 2] = [DecoderPath::Stream, DecoderPath::Persistent];

    /// As it stands in the names of files.
    pub const fn name(self) -> &'static str {
        match self {
            DecoderPath::Stream => "stream",
            DecoderPath::Persistent => "persistent",
        }
    }
}

/// How many blocks a kernel is launched with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grid {
    /// Exactly so many.
    Blocks(u32),
    /// At most N blocks are of use; fewer will do.
    UpTo(u32),
    /// One block per N output rows is enough; the row count is a launch parameter.
    PerRows(u32),
    /// What the launching function says: it depends on lengths and batch.
    Launch,
}

/// The type of a number, in a parameter or in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // PTX's names
pub enum NumberType {
    U8,
    S8,
    U16,
    U32,
    S32,
    U64,
    F16,
    BF16,
    F32,
    F64,
}

impl NumberType {
    /// Its size.
    pub const fn bytes(self) -> u32 {
        match self {
            NumberType::U8 | NumberType::S8 => 1,
            NumberType::U16 | NumberType::F16 | NumberType::BF16 => 2,
            NumberType::U32 | NumberType::S32 | NumberType::F32 => 4,
            NumberType::U64 | NumberType::F64 => 8,
        }
    }

    /// As PTX spells it.
    pub const fn name(self) -> &'static str {
        match self {
            NumberType::U8 => "u8",
            NumberType::S8 => "s8",
            NumberType::U16 => "u16",
            NumberType::U32 => "u32",
            NumberType::S32 => "s32",
            NumberType::U64 => "u64",
            NumberType::F16 => "f16",
            NumberType::BF16 => "bf16",
            NumberType::F32 => "f32",
            NumberType::F64 => "f64",
        }
    }
}

impl fmt::Display for NumberType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The type of a kernel's parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ParamType {
    /// A number.
    Value(NumberType),
    /// The address of numbers that the kernel does not write through it.
    Read(NumberType),
    /// The address of numbers that the kernel writes, and may read.
    Write(NumberType),
}

impl ParamType {
    /// Its size.
    pub const fn bytes(self) -> u32 {
        match self {
            ParamType::Value(number) => number.bytes(),
            ParamType::Read(_) | ParamType::Write(_) => 8,
        }
    }
}

impl fmt::Display for ParamType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParamType::Value(number) => write!(f, "{number}"),
            ParamType::Read(number) => write!(f, "address of {number} to read"),
            ParamType::Write(number) => write!(f, "address of {number} to write"),
        }
    }
}

/// A parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    /// Its name in the kernel's definition.
    pub name: &'static str,
    /// Its type.
    pub ty: ParamType,
}

impl Param {
    /// A number.
    pub const fn value(name: &'static str, number: NumberType) -> Param {
        Param { name, ty: ParamType::Value(number) }
    }

    /// The address of numbers to read.
    pub const fn read(name: &'static str, number: NumberType) -> Param {
        Param { name, ty: ParamType::Read(number) }
    }

    /// The address of numbers to write.
    pub const fn write(name: &'static str, number: NumberType) -> Param {
        Param { name, ty: ParamType::Write(number) }
    }
}

/// The type of cached keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KvType {
    /// Half precision.
    #[default]
    F16,
    /// Single precision: twice the memory, nothing rounded.
    F32,
}

impl KvType {
    /// Bytes of an element.
    pub const fn bytes(self) -> u32 {
        match self {
            KvType::F16 => 2,
            KvType::F32 => 4,
        }
    }

    /// As it ends kernel names.
    pub const fn suffix(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::F32 => "f32",
        }
    }
}
