//! The intermediate representation: instructions in a tree of structured control flow. The builder makes it; verifier
//! and printer read it. Only the printer makes labels.

use super::modifiers::{Special, Type};
use super::table::{Convergence, Op, Opcode, Spread};
use super::work::Work;
use kiln_shape::ParamType;
use kiln_shape::ring::ColumnMemory;
use std::collections::BTreeSet;
use std::fmt;
use std::panic::Location;

/// Where an instruction was written: the line of the kernel or block that emitted it.
pub(crate) type Source = &'static Location<'static>;

/// Register classes, each a `.reg` declaration of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Predicates.
    Pred,
    /// 16-bit values of any type.
    B16,
    /// 32-bit integers and bit patterns.
    B32,
    /// 64-bit integers and generic or global addresses.
    B64,
    /// Single-precision floats.
    F32,
    /// Double-precision floats.
    F64,
}

impl Class {
    /// All classes in the order in which they are declared.
    pub const ALL: [Class; 6] = [Class::Pred, Class::B16, Class::B32, Class::B64, Class::F32, Class::F64];

    /// The type in the `.reg` declaration.
    pub const fn declaration(self) -> &'static str {
        match self {
            Class::Pred => ".pred",
            Class::B16 => ".b16",
            Class::B32 => ".b32",
            Class::B64 => ".b64",
            Class::F32 => ".f32",
            Class::F64 => ".f64",
        }
    }

    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Class::Pred => "%p",
            Class::B16 => "%h",
            Class::B32 => "%r",
            Class::B64 => "%rd",
            Class::F32 => "%f",
            Class::F64 => "%fd",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.prefix())
    }
}

/// A virtual register; its `Display` is its PTX name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg {
    pub(crate) class: Class,
    pub(crate) index: u32,
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.class, self.index)
    }
}

/// A map from registers, kept in vectors: numbers are dense.
#[derive(Debug, Clone, Default)]
pub(crate) struct RegMap<T> {
    of_class: [Vec<T>; Class::ALL.len()],
}

impl<T: Copy + Default> RegMap<T> {
    pub(crate) fn get(&self, reg: Reg) -> T {
        self.of_class[reg.class as usize].get(reg.index as usize).copied().unwrap_or_default()
    }

    pub(crate) fn entry(&mut self, reg: Reg) -> &mut T {
        let of_class = &mut self.of_class[reg.class as usize];
        let index = reg.index as usize;
        if index >= of_class.len() {
            of_class.resize(index + 1, T::default());
        }
        &mut of_class[index]
    }
}

/// The uniformity lattice: among which threads a value, or the control flow around an instruction, is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Uniformity {
    /// The same in every thread of the block.
    Block,
    /// The same in every lane of a warp.
    Warp,
    /// May differ from lane to lane.
    Lane,
}

impl fmt::Display for Uniformity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Uniformity::Block => "block-uniform",
            Uniformity::Warp => "warp-uniform",
            Uniformity::Lane => "lane-varying",
        })
    }
}

/// The base of an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Base {
    /// A register holding an address.
    Reg(Reg),
    /// A shared-memory variable or a kernel parameter, by name.
    Symbol(String),
}

/// An operand as it is printed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Arg {
    /// A register.
    Reg(Reg),
    /// An integer constant.
    Int(i64),
    /// A single-precision constant, by its bits.
    F32(u32),
    /// A special register.
    Special(Special),
    /// The address of a shared variable.
    Address(String),
    /// `[base + offset]`.
    Mem(Base, i64),
    /// `{a, b, ...}`.
    Vector(Vec<Arg>),
    /// `[map, {a, b, ...}]`: a tensor map's address, and where in the tensor a box of it begins.
    Box(Reg, Vec<Arg>),
}

impl Arg {
    /// The registers of this operand: read in a source, written in a destination that is a register or vector.
    pub(crate) fn registers(&self, visit: &mut impl FnMut(Reg)) {
        match self {
            Arg::Reg(reg) | Arg::Mem(Base::Reg(reg), _) => visit(*reg),
            Arg::Vector(parts) => parts.iter().for_each(|part| part.registers(visit)),
            Arg::Box(map, parts) => {
                visit(*map);
                parts.iter().for_each(|part| part.registers(visit));
            }
            _ => {}
        }
    }

    fn registers_mut(&mut self, visit: &mut impl FnMut(&mut Reg)) {
        match self {
            Arg::Reg(reg) | Arg::Mem(Base::Reg(reg), _) => visit(reg),
            Arg::Vector(parts) => parts.iter_mut().for_each(|part| part.registers_mut(visit)),
            Arg::Box(map, parts) => {
                visit(map);
                parts.iter_mut().for_each(|part| part.registers_mut(visit));
            }
            _ => {}
        }
    }
}

/// One PTX instruction.
#[derive(Debug, Clone)]
pub(crate) struct Inst {
    pub(crate) op: Op,
    pub(crate) dst: Vec<Arg>,
    pub(crate) src: Vec<Arg>,
    /// How uniform its result is by construction, where the builder knows more than the table.
    pub(crate) known: Option<Uniformity>,
    pub(crate) source: Source,
}

impl Inst {
    /// How the uniformity of its result follows from its operands'.
    pub(crate) fn spread(&self) -> Spread {
        self.known.map_or(self.op.row().spread, Spread::Exactly)
    }

    /// The barrier it waits at: its number, and how many threads it counts; `None` for the whole block.
    pub(crate) fn barrier(&self) -> Option<(u32, Option<u32>)> {
        if self.op.row().convergence != Convergence::Barrier {
            return None;
        }
        let constant = |arg: &Arg| match arg {
            Arg::Int(value) => u32::try_from(*value).ok(),
            _ => None,
        };
        Some((self.src.first().and_then(constant)?, self.src.get(1).and_then(constant)))
    }

    /// The registers it writes.
    pub(crate) fn results(&self, visit: &mut impl FnMut(Reg)) {
        self.dst.iter().filter(|arg| !matches!(arg, Arg::Mem(..))).for_each(|arg| arg.registers(visit));
    }

    /// The registers it reads, those of the address it stores to included.
    pub(crate) fn operands(&self, visit: &mut impl FnMut(Reg)) {
        let address = self.dst.iter().filter(|arg| matches!(arg, Arg::Mem(..)));
        self.src.iter().chain(address).for_each(|arg| arg.registers(visit));
    }

    /// The same registers, to be changed.
    pub(crate) fn operands_mut(&mut self, visit: &mut impl FnMut(&mut Reg)) {
        let address = self.dst.iter_mut().filter(|arg| matches!(arg, Arg::Mem(..)));
        self.src.iter_mut().chain(address).for_each(|arg| arg.registers_mut(visit));
    }
}

/// A piece of a kernel's body.
#[derive(Debug, Clone)]
pub(crate) enum Node {
    /// One instruction.
    Inst(Inst),
    /// `if (cond) { then } else { otherwise }`.
    If {
        /// The condition.
        cond: Reg,
        /// Runs where the condition holds.
        then: Vec<Node>,
        /// Runs where it does not.
        otherwise: Vec<Node>,
        /// Where it was written.
        source: Source,
    },
    /// `do { body } while (again)`.
    Loop {
        /// Runs at least once.
        body: Vec<Node>,
        /// The predicate of the back edge, computed in the body.
        again: Reg,
        /// A lane's work in one iteration, where the kernel says it.
        work: Option<Work>,
        /// Whether the assembler must not unroll it.
        rolled: bool,
        /// Where it was written.
        source: Source,
    },
    /// The block split by warps: `warps` consecutive warps run each body, in order.
    Roles {
        /// The number of the executing warp.
        warp: Reg,
        /// Warps and what they run.
        roles: Vec<(u32, Vec<Node>)>,
        /// Where it was written.
        source: Source,
    },
}

/// Consecutive warps of a block: all of it, or those of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Warps {
    /// The first.
    pub(crate) first: u32,
    /// The first after them.
    pub(crate) end: u32,
}

impl Warps {
    /// Whether all of `other` are among them.
    pub(crate) const fn contain(self, other: Warps) -> bool {
        self.first <= other.first && other.end <= self.end
    }

    /// Whether none of `other` is among them.
    pub(crate) const fn miss(self, other: Warps) -> bool {
        self.end <= other.first || other.end <= self.first
    }

    pub(crate) const fn threads(self) -> u32 {
        32 * (self.end - self.first)
    }
}

/// Each role's warps and body.
pub(crate) fn by_warps(roles: &[(u32, Vec<Node>)]) -> impl Iterator<Item = (Warps, &[Node])> {
    roles.iter().scan(0, |next, (warps, body)| {
        let first = *next;
        *next += warps;
        Some((Warps { first, end: *next }, body.as_slice()))
    })
}

/// A kernel parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Its name in the kernel.
    pub name: String,
    /// Its type, whose size is also its alignment.
    pub ty: ParamType,
    /// The type it is loaded as.
    pub(crate) loaded: Type,
}

/// A shared-memory variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SharedVar {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u32,
}

/// A kernel ready to be verified and printed.
#[derive(Debug, Clone)]
pub struct Function {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
    pub(crate) block: u32,
    pub(crate) blocks_per_sm: Option<u32>,
    pub(crate) shared: Vec<SharedVar>,
    /// Bytes of dynamic shared memory.
    pub(crate) dynamic_shared: u32,
    /// Dynamic shared memory more for columns, where a launch has several.
    pub(crate) column_shared: ColumnMemory,
    /// First byte of each allocation of dynamic shared memory, and the first after it.
    pub(crate) dynamic: Vec<(u32, u32)>,
    /// Whether the kernel asked for its target.
    pub(crate) target_specific: bool,
    pub(crate) body: Vec<Node>,
    pub(crate) source: Source,
}

impl Function {
    /// The entry's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Threads per block (`.reqntid`).
    pub fn block(&self) -> u32 {
        self.block
    }

    /// Parameters in order.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// Bytes of static shared memory.
    pub fn static_shared(&self) -> u32 {
        self.shared.iter().map(|var| var.bytes.next_multiple_of(16)).sum()
    }

    /// Bytes of dynamic shared memory.
    pub fn dynamic_shared(&self) -> u32 {
        self.dynamic_shared
    }

    /// Dynamic shared memory that a launch gives for columns, where it may have several.
    pub fn column_shared(&self) -> ColumnMemory {
        self.column_shared
    }

    /// Whether it waits for the launches before it by `griddepcontrol.wait`, so that it may begin before they end.
    pub fn begins_early(&self) -> bool {
        self.body.iter().any(|node| matches!(node, Node::Inst(inst) if inst.op == Op::GriddepcontrolWait))
    }

    /// The rows of the table of instructions that it uses.
    pub fn opcodes(&self) -> BTreeSet<Opcode> {
        let mut used = BTreeSet::new();
        self.instructions(&mut |inst| _ = used.insert(inst.op.opcode()));
        used
    }

    /// Notes which parameters are addresses to write.
    pub(crate) fn note_written(&mut self, places: &BTreeSet<usize>) {
        for place in places {
            if let Some(Param { ty, .. }) = self.params.get_mut(*place)
                && let ParamType::Read(number) = *ty
            {
                *ty = ParamType::Write(number);
            }
        }
    }

    /// The block's warps.
    pub(crate) fn warps(&self) -> Warps {
        Warps { first: 0, end: self.block / 32 }
    }

    /// Visits every instruction.
    pub(crate) fn instructions<'a>(&'a self, visit: &mut impl FnMut(&'a Inst)) {
        instructions(&self.body, visit);
    }
}

/// Visits every instruction of `nodes`.
pub(crate) fn instructions<'a>(nodes: &'a [Node], visit: &mut impl FnMut(&'a Inst)) {
    for node in nodes {
        match node {
            Node::Inst(inst) => visit(inst),
            Node::If { then, otherwise, .. } => {
                instructions(then, visit);
                instructions(otherwise, visit);
            }
            Node::Loop { body, .. } => instructions(body, visit),
            Node::Roles { roles, .. } => roles.iter().for_each(|(_, body)| instructions(body, visit)),
        }
    }
}
