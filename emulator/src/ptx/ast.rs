//! The syntax tree of PTX text.

use super::{PtxError, Res};
use crate::machine::kernel::KernelInfo;
use crate::machine::types::{Space, Ty};
use std::fmt;
use std::sync::Arc;

/// Syntax tree of a module.
#[derive(Debug, Default)]
pub(crate) struct Ast {
    /// `.target sm_NN`.
    pub(crate) sm: u32,
    /// Module-scope variables.
    pub(crate) vars: Vec<Var>,
    /// Kernels and functions with a body.
    pub(crate) functions: Vec<Function>,
}

/// A literal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Num {
    /// An integer, two's complement.
    Int(u64),
    /// `0f3f800000`: the bits of a float.
    F32(u32),
    /// `0d3ff0000000000000` or a decimal literal.
    F64(f64),
}

/// A variable.
#[derive(Debug, Clone)]
pub(crate) struct Var {
    pub(crate) space: Space,
    pub(crate) ty: Ty,
    pub(crate) align: u32,
    pub(crate) name: String,
    /// Number of elements; `None` for `.extern .shared x[]` and for variables defined elsewhere.
    pub(crate) count: Option<u64>,
    /// Initial values: numbers and addresses of variables.
    pub(crate) init: Vec<Arg>,
    pub(crate) line: u32,
}

impl Var {
    /// Size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.count.unwrap_or(0).saturating_mul(u64::from(self.ty.bytes()))
    }

    /// Places it behind the `used` bytes of its state space, and returns the address. Fails beyond `most` bytes.
    pub(crate) fn place(&self, used: &mut u32, most: u32) -> Res<u32> {
        let at = used.next_multiple_of(self.align);
        let end = self.bytes().saturating_add(at.into());
        if end > most.into() {
            return Err(self.error(format!("more than {most} bytes of {:?} variables", self.space)));
        }
        *used = end as u32;
        Ok(at)
    }

    pub(crate) fn error(&self, message: impl Into<String>) -> PtxError {
        PtxError::new(self.line, &self.name, message)
    }
}

/// A kernel (`.entry`) or a device function (`.func`).
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) entry: bool,
    pub(crate) returns: Vec<Var>,
    pub(crate) params: Vec<Var>,
    pub(crate) body: Body,
    /// A function's address, which no memory has.
    pub(crate) address: u64,
    /// Whether anything of the module takes it.
    pub(crate) taken: bool,
    /// Why its body is not understood.
    pub(crate) refused: Option<PtxError>,
    pub(crate) line: u32,
    /// Name and directives. Sizes are filled in by the decoder.
    pub(crate) info: KernelInfo,
}

/// Statements with their lines.
pub(crate) type Body = Vec<(u32, Stmt)>;

/// A statement of a body.
#[derive(Debug, Clone)]
pub(crate) enum Stmt {
    Label(String),
    Inst(Inst),
    /// `.reg .b32 %r<count>, %x`
    Registers(Ty, Vec<(String, Option<u32>)>),
    Variables(Vec<Var>),
    Block(Body),
    /// `name: .callprototype (results) _ (parameters);`
    Prototype(String, Arc<(Vec<Var>, Vec<Var>)>),
    /// `name: .calltargets f, g;` or `name: .branchtargets a, b;`
    Targets(String, Arc<[String]>),
}

/// An instruction as written.
#[derive(Debug, Clone)]
pub(crate) struct Inst {
    /// The predicate, and whether it is negated.
    pub(crate) guard: Option<(String, bool)>,
    pub(crate) op: Arc<str>,
    pub(crate) args: Vec<Arg>,
    /// The predicate of a destination `d|p`.
    pub(crate) second: Option<String>,
    /// File and line of its source.
    pub(crate) source: Option<Arc<(String, u32)>>,
    /// Whether `.pragma "nounroll"` stands before it.
    pub(crate) rolled: bool,
}

/// An operand as written.
#[derive(Debug, Clone)]
pub(crate) enum Arg {
    Word(String),
    Num(Num),
    /// `!p`
    Not(String),
    /// `{a, b}`, or `(a, b)` of a call.
    Vector(Vec<Arg>),
    /// `[base+offset]`
    Address(String, i64),
    /// `symbol+offset`
    Offset(String, i64),
    /// `[map+offset, {x, y}]`, of tensor maps and textures.
    Place(String, i64, Vec<Arg>),
}

impl fmt::Display for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |args: &[Arg]| args.iter().map(Arg::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Arg::Word(name) => f.write_str(name),
            Arg::Num(number) => write!(f, "{number}"),
            Arg::Not(name) => write!(f, "!{name}"),
            Arg::Vector(args) => write!(f, "{{{}}}", list(args)),
            Arg::Address(name, 0) => write!(f, "[{name}]"),
            Arg::Address(name, offset) => write!(f, "[{name}{offset:+}]"),
            Arg::Offset(name, offset) => write!(f, "{name}{offset:+}"),
            Arg::Place(name, 0, args) => write!(f, "[{name}, {}]", list(args)),
            Arg::Place(name, offset, args) => write!(f, "[{name}{offset:+}, {}]", list(args)),
        }
    }
}

impl fmt::Display for Num {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Num::Int(value) => write!(f, "{}", *value as i64),
            Num::F32(bits) => write!(f, "0f{bits:08x}"),
            Num::F64(value) => write!(f, "{value}"),
        }
    }
}
