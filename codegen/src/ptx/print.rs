//! Prints verified kernels as PTX. Labels exist only here, numbered in order; a branch whose condition is the same for
//! the whole warp is `bra.uni`. `.loc` lines carry the kernel's own file and line to profilers and to the emulator.

use super::builder::DYNAMIC;
use super::ir::{Arg, Base, Class, Function, Inst, Node, Reg, Source, Uniformity};
use super::table::Needs;
use super::verify::Verified;
use crate::target::Target;
use std::fmt::Write;

/// What a module's text holds besides its version and target.
#[derive(Debug)]
pub(crate) struct Body {
    version: (u32, u32),
    text: String,
}

/// The body of a module of these kernels.
pub(crate) fn body(kernels: &[(Function, Verified)]) -> Body {
    let version = kernels.iter().map(|(_, verified)| verified.needs).fold(Needs::BASE, Needs::max).version;
    let mut files = Files::default();
    let mut bodies = String::new();
    for (function, verified) in kernels {
        kernel(&mut bodies, function, verified, &mut files);
    }
    let mut text = String::from(".address_size 64\n");
    for (index, file) in files.names.iter().enumerate() {
        line(&mut text, format_args!(".file {} \"{file}\"", index + 1));
    }
    if kernels.iter().any(|(function, _)| !function.dynamic.is_empty()) {
        line(&mut text, format_args!("\n.extern .shared .align 128 .b8 {DYNAMIC}[];"));
    }
    text.push_str(&bodies);
    Body { version, text }
}

/// A module for one target.
pub(crate) fn module(target: Target, body: &Body) -> String {
    let version = body.version.max(target.least_version());
    format!(".version {}.{}\n.target {target}\n{}", version.0, version.1, body.text)
}

/// Writing to a `String` does not fail.
fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
    out.push('\n');
}

/// The source files named by `.loc`, in order of first use.
#[derive(Default)]
struct Files {
    names: Vec<String>,
}

impl Files {
    fn number(&mut self, source: Source) -> usize {
        let name = portable(source.file());
        match self.names.iter().position(|known| *known == name) {
            Some(index) => index + 1,
            None => {
                self.names.push(name);
                self.names.len()
            }
        }
    }
}

/// A path that does not depend on where the crate was compiled: from its last `src` folder's parent on.
fn portable(path: &str) -> String {
    let path = path.replace('\\', "/");
    let tail = path.rfind("/src/").and_then(|at| path[..at].rfind('/')).map_or(path.as_str(), |at| &path[at + 1..]);
    if path.starts_with('/') || path.contains(":/") { tail.to_owned() } else { path.clone() }
}

fn kernel(out: &mut String, function: &Function, verified: &Verified, files: &mut Files) {
    line(out, format_args!("\n.visible .entry {}(", function.name));
    let last = function.params.len().saturating_sub(1);
    for (index, param) in function.params.iter().enumerate() {
        let comma = if index == last { "" } else { "," };
        line(out, format_args!("    .param .{} {}{comma}", param.ty, param.name));
    }
    line(out, format_args!(")\n.reqntid {}", function.block));
    if let Some(blocks) = function.blocks_per_sm {
        line(out, format_args!(".minnctapersm {blocks}"));
    }
    out.push_str("{\n");
    for (class, count) in Class::ALL.into_iter().zip(register_counts(function)) {
        if count > 0 {
            line(out, format_args!("    .reg {} {class}<{count}>;", class.declaration()));
        }
    }
    for var in &function.shared {
        line(out, format_args!("    .shared .align 16 .b8 {}[{}];", var.name, var.bytes));
    }
    let mut printer = Printer { out, verified, files, labels: 0, at: None };
    printer.nodes(&function.body);
    out.push_str("    ret;\n}\n");
}

fn register_counts(function: &Function) -> [u32; Class::ALL.len()] {
    let mut counts = [0; Class::ALL.len()];
    let mut see = |reg: Reg| {
        let count = &mut counts[reg.class as usize];
        *count = (*count).max(reg.index + 1);
    };
    function.instructions(&mut |inst| {
        inst.dst.iter().chain(&inst.src).for_each(|arg| arg.registers(&mut see));
    });
    counts
}

struct Printer<'a> {
    out: &'a mut String,
    verified: &'a Verified,
    files: &'a mut Files,
    labels: u32,
    at: Option<(usize, u32)>,
}

impl Printer<'_> {
    fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels - 1
    }

    fn nodes(&mut self, nodes: &[Node]) {
        for node in nodes {
            match node {
                Node::Inst(inst) => self.inst(inst),
                Node::If { cond, then, otherwise, source } => {
                    self.location(source);
                    let skip = self.label();
                    self.branch("!", *cond, skip);
                    self.nodes(then);
                    if otherwise.is_empty() {
                        line(self.out, format_args!("$L{skip}:"));
                    } else {
                        let end = self.label();
                        self.indent();
                        line(self.out, format_args!("bra $L{end};\n$L{skip}:"));
                        self.nodes(otherwise);
                        line(self.out, format_args!("$L{end}:"));
                    }
                }
                Node::Loop { body, again, source } => {
                    let top = self.label();
                    line(self.out, format_args!("$L{top}:"));
                    self.nodes(body);
                    self.location(source);
                    self.branch("", *again, top);
                }
                Node::Roles { warp, roles, source } => self.roles(*warp, roles, source),
            }
        }
    }

    /// A chain of comparisons of the warp's number, each with a predicate of its own scope.
    fn roles(&mut self, warp: Reg, roles: &[(u32, Vec<Node>)], source: Source) {
        self.location(source);
        let end = self.label();
        let mut below = 0;
        for (index, (warps, body)) in roles.iter().enumerate() {
            below += warps;
            let next = self.label();
            if index + 1 < roles.len() {
                self.indent();
                line(self.out, format_args!("{{ .reg .pred %role; setp.ge.u32 %role, {warp}, {below};"));
                self.indent();
                line(self.out, format_args!("@%role bra.uni $L{next}; }}"));
            }
            self.nodes(body);
            if index + 1 < roles.len() {
                self.indent();
                line(self.out, format_args!("bra.uni $L{end};"));
            }
            line(self.out, format_args!("$L{next}:"));
        }
        line(self.out, format_args!("$L{end}:"));
    }

    /// One space at any depth: the text is part of the program, and kernels go deep.
    fn indent(&mut self) {
        self.out.push(' ');
    }

    /// A branch taken where the condition holds or, with `not` as `!`, where it does not.
    fn branch(&mut self, not: &str, cond: Reg, label: u32) {
        let uniform = self.verified.uniformity.level(cond) <= Uniformity::Warp;
        self.indent();
        let uni = if uniform { ".uni" } else { "" };
        line(self.out, format_args!("@{not}{cond} bra{uni} $L{label};"));
    }

    fn location(&mut self, source: Source) {
        let at = (self.files.number(source), source.line());
        if self.at != Some(at) {
            self.at = Some(at);
            line(self.out, format_args!(" .loc {} {} {}", at.0, at.1, source.column()));
        }
    }

    fn inst(&mut self, inst: &Inst) {
        self.location(inst.source);
        self.indent();
        let _ = write!(self.out, "{}", inst.op);
        for (index, arg) in inst.dst.iter().chain(&inst.src).enumerate() {
            self.out.push_str(if index == 0 { " " } else { ", " });
            self.arg(arg);
        }
        self.out.push_str(";\n");
    }

    fn arg(&mut self, arg: &Arg) {
        let _ = match arg {
            Arg::Reg(reg) => write!(self.out, "{reg}"),
            Arg::Int(value) => write!(self.out, "{value}"),
            Arg::F32(bits) => write!(self.out, "0f{bits:08X}"),
            Arg::Special(register) => write!(self.out, "{register}"),
            Arg::Address(name) => write!(self.out, "{name}"),
            Arg::Mem(base, offset) => {
                let _ = match base {
                    Base::Reg(reg) => write!(self.out, "[{reg}"),
                    Base::Symbol(name) => write!(self.out, "[{name}"),
                };
                match offset {
                    0 => write!(self.out, "]"),
                    offset => write!(self.out, "+{offset}]"),
                }
            }
            Arg::Vector(parts) => {
                self.out.push('{');
                for (index, part) in parts.iter().enumerate() {
                    if index > 0 {
                        self.out.push_str(", ");
                    }
                    self.arg(part);
                }
                write!(self.out, "}}")
            }
        };
    }
}
