//! The types of the language: scalars, values, mutable variables, pointers. All are small `Copy` handles of registers,
//! so misuse (adding a pointer to a float, storing f32 through an f16 pointer) fails to compile.

use super::ir::{Arg, Class, Reg};
use super::modifiers::{StateSpace, Type};
use kiln_shape::NumberType;
use std::marker::PhantomData;

/// A scalar type that a register can hold.
pub trait Scalar: Copy + 'static {
    /// Its type in instructions.
    const TYPE: Type;
    /// Its type where only the bits count; floats keep theirs in registers of their own.
    const BITS: Type;
    /// The class of the registers that hold it.
    const CLASS: Class = Self::TYPE.class();
}

/// A scalar that can stand in memory. Some (bytes) are wider in registers than in memory.
pub trait Element: Copy + 'static {
    /// Its type in `ld` and `st`.
    const MEMORY: Type;
    /// Its type to those who launch.
    const NUMBER: NumberType;
    /// Its size in memory, in bytes.
    const BYTES: u32 = Self::MEMORY.bytes();
    /// What a load yields.
    type Loaded: Scalar;
}

/// A scalar that is the same in registers and in memory.
pub trait Stored: Scalar + Element<Loaded = Self> {}

macro_rules! scalars {
    ($($(#[$doc:meta])* $name:ident $bits:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name;
        impl Scalar for $name {
            const TYPE: Type = Type::$name;
            const BITS: Type = Type::$bits;
        }
    )*};
}

scalars! {
    /// A predicate.
    Pred Pred;
    /// 16-bit unsigned integer.
    U16 B16;
    /// 32-bit unsigned integer.
    U32 B32;
    /// 32-bit signed integer.
    S32 B32;
    /// 64-bit unsigned integer.
    U64 B64;
    /// Half precision.
    F16 B16;
    /// bfloat16.
    BF16 B16;
    /// Single precision.
    F32 F32;
    /// Double precision.
    F64 F64;
}

macro_rules! elements {
    ($($name:ident $ty:ident;)*) => {$(
        impl Element for $name {
            const MEMORY: Type = Type::$ty;
            const NUMBER: NumberType = NumberType::$name;
            type Loaded = $name;
        }
        impl Stored for $name {}
    )*};
}

elements! { U16 U16; U32 U32; S32 S32; U64 U64; F16 B16; BF16 B16; F32 F32; F64 F64; }

/// An unsigned byte in memory; a `u32` in a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct U8;
impl Element for U8 {
    const MEMORY: Type = Type::U8;
    const NUMBER: NumberType = NumberType::U8;
    type Loaded = U32;
}

/// A signed byte in memory; an `s32` in a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct S8;
impl Element for S8 {
    const MEMORY: Type = Type::S8;
    const NUMBER: NumberType = NumberType::S8;
    type Loaded = S32;
}

/// Types with `add`, `sub`, `mul`, `min`, `max` and comparisons.
pub trait Number: Stored {}
impl Number for U16 {}
impl Number for U32 {}
impl Number for S32 {}
impl Number for U64 {}
impl Number for F32 {}
impl Number for F64 {}

/// Integer types.
pub trait Integer: Number {}
impl Integer for U16 {}
impl Integer for U32 {}
impl Integer for S32 {}
impl Integer for U64 {}

/// Floating-point types with arithmetic.
pub trait Float: Number {}
impl Float for F32 {}
impl Float for F64 {}

/// Types with read-modify-write operations in memory: integers, whose sums do not depend on the order.
pub trait Atomic: Integer {}
impl Atomic for U32 {}
impl Atomic for S32 {}
impl Atomic for U64 {}

/// 32-bit register types, between which [`Builder::mov_bits`](super::Builder::mov_bits) reinterprets.
pub trait Bits32: Stored {}
impl Bits32 for U32 {}
impl Bits32 for S32 {}
impl Bits32 for F32 {}

/// 16-bit register types.
pub trait Bits16: Stored {}
impl Bits16 for U16 {}
impl Bits16 for F16 {}
impl Bits16 for BF16 {}

/// A value: an immutable virtual register of type `T`.
#[derive(Debug)]
pub struct Val<T> {
    pub(crate) reg: Reg,
    ty: PhantomData<T>,
}

impl<T> Clone for Val<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Val<T> {}

impl<T> Val<T> {
    pub(crate) fn new(reg: Reg) -> Self {
        Val { reg, ty: PhantomData }
    }
}

/// A mutable variable: the only thing that may be assigned more than once, as loops need.
#[derive(Debug)]
pub struct Var<T> {
    pub(crate) reg: Reg,
    ty: PhantomData<T>,
}

impl<T> Clone for Var<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Var<T> {}

impl<T> Var<T> {
    pub(crate) fn new(reg: Reg) -> Self {
        Var { reg, ty: PhantomData }
    }

    /// The register itself: its value where it is used, not here.
    pub(crate) fn now(self) -> Val<T> {
        Val::new(self.reg)
    }
}

/// A state space.
pub trait Space: Copy + 'static {
    /// Its word in instructions.
    const SPACE: StateSpace;
    /// The type of its addresses.
    type Address: Integer;
}

/// The state spaces.
pub mod space {
    use super::{Space, StateSpace, U32, U64};

    /// Device memory.
    #[derive(Debug, Clone, Copy)]
    pub struct Global;
    impl Space for Global {
        const SPACE: StateSpace = StateSpace::Global;
        type Address = U64;
    }

    /// The block's shared memory.
    #[derive(Debug, Clone, Copy)]
    pub struct Shared;
    impl Space for Shared {
        const SPACE: StateSpace = StateSpace::Shared;
        type Address = U32;
    }
}

/// A pointer into space `S` at elements of type `T`: a base and a constant byte offset that costs nothing.
#[derive(Debug)]
pub struct Ptr<S, T> {
    pub(crate) base: PtrBase,
    pub(crate) offset: i64,
    ty: PhantomData<(S, T)>,
}

/// A base that is `Copy`: a register, or a shared variable by its number in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PtrBase {
    Reg(Reg),
    Shared(u32),
}

impl<S, T> Clone for Ptr<S, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S, T> Copy for Ptr<S, T> {}

/// A pointer into device memory.
pub type Global<T> = Ptr<space::Global, T>;
/// A pointer into shared memory.
pub type Shared<T> = Ptr<space::Shared, T>;

impl<S, T> Ptr<S, T> {
    pub(crate) fn new(base: PtrBase, offset: i64) -> Self {
        Ptr { base, offset, ty: PhantomData }
    }

    /// The same address, its memory seen as elements of another type.
    pub fn cast<U>(self) -> Ptr<S, U> {
        Ptr::new(self.base, self.offset)
    }

    /// The address `bytes` further on.
    pub fn byte_offset(self, bytes: i64) -> Self {
        Ptr::new(self.base, self.offset + bytes)
    }
}

impl<S, T: Element> Ptr<S, T> {
    /// The address `elements` elements further on: a constant, folded into the instruction.
    pub fn at(self, elements: u32) -> Self {
        self.byte_offset(i64::from(elements) * i64::from(T::BYTES))
    }
}

/// What can stand where an instruction reads a `T`: values, variables, constants, dimensions.
pub trait Operand<T> {
    /// The operand as it is printed.
    fn arg(self) -> Arg;
}

impl<T> Operand<T> for Val<T> {
    fn arg(self) -> Arg {
        Arg::Reg(self.reg)
    }
}
impl<T> Operand<T> for Var<T> {
    fn arg(self) -> Arg {
        Arg::Reg(self.reg)
    }
}
impl Operand<U32> for u32 {
    fn arg(self) -> Arg {
        Arg::Int(i64::from(self))
    }
}
impl Operand<S32> for i32 {
    fn arg(self) -> Arg {
        Arg::Int(i64::from(self))
    }
}
impl Operand<U16> for u16 {
    fn arg(self) -> Arg {
        Arg::Int(i64::from(self))
    }
}
impl Operand<U64> for u64 {
    fn arg(self) -> Arg {
        Arg::Int(self as i64)
    }
}
impl Operand<F32> for f32 {
    fn arg(self) -> Arg {
        Arg::F32(self.to_bits())
    }
}

/// A dimension of a kernel: baked into its text, or a parameter of its launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A constant.
    Baked(u32),
    /// A `u32` launch parameter.
    Param,
}

impl Dim {
    /// The baked value, if there is one.
    pub const fn baked(self) -> Option<u32> {
        match self {
            Dim::Baked(value) => Some(value),
            Dim::Param => None,
        }
    }
}

impl From<u32> for Dim {
    fn from(value: u32) -> Dim {
        Dim::Baked(value)
    }
}

/// A dimension inside a kernel: what [`Dim`] became there. Arithmetic on constants happens while the kernel is built.
#[derive(Debug, Clone, Copy)]
pub enum Size {
    /// Known while the kernel is built.
    Const(u32),
    /// Known at launch, the same in every thread.
    Reg(Val<U32>),
}

impl Operand<U32> for Size {
    fn arg(self) -> Arg {
        match self {
            Size::Const(value) => value.arg(),
            Size::Reg(value) => value.arg(),
        }
    }
}

impl From<u32> for Size {
    fn from(value: u32) -> Size {
        Size::Const(value)
    }
}

impl From<Val<U32>> for Size {
    fn from(value: Val<U32>) -> Size {
        Size::Reg(value)
    }
}
