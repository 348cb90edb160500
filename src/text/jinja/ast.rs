//! The tree of a template.

use std::sync::Arc;

/// A statement or text, and its line.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) line: u32,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    Text(Arc<str>),
    Print(Expr),
    /// Conditions with what follows, then what follows where none holds.
    If(Vec<(Expr, Vec<Node>)>, Vec<Node>),
    For(Box<For>),
    Set(Vec<Target>, Expr),
    /// A name for what a body writes.
    Capture(String, Vec<Node>),
    /// A macro, by its place among the template's.
    Macro(usize),
    /// A macro that is called with a body, which is one itself, by its place among the template's.
    Call(usize, Expr, Arguments),
    Break,
    Continue,
}

/// What is assigned to: a name, or a namespace's attribute.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) attribute: Option<String>,
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) names: Vec<String>,
    pub(super) over: Expr,
    pub(super) filter: Option<Expr>,
    pub(super) body: Vec<Node>,
    pub(super) otherwise: Vec<Node>,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: String,
    pub(super) parameters: Vec<(String, Option<Expr>)>,
    pub(super) body: Vec<Node>,
    /// Whether it runs the body that it is called with.
    pub(super) runs_caller: bool,
}

#[derive(Debug)]
pub(super) enum Expr {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Arc<str>),
    Name(String),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    Attribute(Box<Expr>, String),
    Item(Box<Expr>, Box<Expr>),
    Slice(Box<Expr>, Box<[Option<Expr>; 3]>),
    Call(Box<Expr>, Arguments),
    Filter(Box<Expr>, String, Arguments),
    /// A test, and whether it must not hold.
    Test(Box<Expr>, String, Arguments, bool),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    Binary(Box<Expr>, Operator, Box<Expr>),
    /// Comparisons that hold together, each with the value before: `a < b <= c`.
    Chain(Box<Expr>, Vec<(Operator, Expr)>),
    /// Value, condition, other value.
    Choice(Box<Expr>, Box<Expr>, Option<Box<Expr>>),
}

/// Arguments by place and by name.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) places: Vec<Expr>,
    pub(super) names: Vec<(String, Expr)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Or,
    And,
    In,
    NotIn,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Add,
    Subtract,
    Join,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
}

impl Operator {
    /// How strongly it binds, from 1 on.
    pub(super) fn strength(self) -> u32 {
        use Operator::*;
        match self {
            Or => 1,
            And => 2,
            In | NotIn | Equal | NotEqual | Less | LessEqual | Greater | GreaterEqual => COMPARISON,
            Add | Subtract => 5,
            Join => 6,
            Multiply | Divide | FloorDivide | Remainder => 7,
            Power => 8,
        }
    }
}

/// The strength of comparisons, which make chains.
pub(super) const COMPARISON: u32 = 4;

/// The strength of `not`, between `and` and comparisons.
pub(super) const NOT: u32 = 3;
