//! Prints verified kernels as PTX. Labels exist only here, numbered in order; a branch whose condition is the same for
//! the whole warp is `bra.uni`. In full text `.loc` lines carry the kernel's own file and line to profilers and to the
//! emulator, and comments say the dynamic shared memory of kernels and the work of loops to `.ci/loop_gate.py`.

use super::ir::{Arg, Base, Class, Function, Inst, Node, Reg, Source, Uniformity};
use super::live::moved;
use super::names::{Names, dynamic};
use super::table::Needs;
use super::verify::Verified;
use crate::target::Target;
use std::fmt::Write;

/// The amount of text of a module beyond its instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Text {
    /// For readers: the source line of every instruction, and names as the kernel gives them.
    #[default]
    Full,
    /// For programs: nothing that the driver does not need. Instructions and their order are the same.
    Light,
}

/// A module's text without its version and target.
#[derive(Debug)]
pub(crate) struct Body {
    version: (u32, u32),
    text: String,
}

/// The body of a module of these kernels.
pub(crate) fn body(kernels: &[(Function, Verified)], style: Text) -> Body {
    let version = kernels.iter().map(|(_, verified)| verified.needs).fold(Needs::BASE, Needs::max).version;
    let mut files = Files::default();
    let mut bodies = String::new();
    for (function, verified) in kernels {
        kernel(&mut bodies, function, verified, &mut files, style);
    }
    let mut text = String::from(".address_size 64\n");
    for (index, file) in files.names.iter().enumerate() {
        line(&mut text, format_args!(".file {} \"{file}\"", index + 1));
    }
    if kernels.iter().any(|(function, _)| !function.dynamic.is_empty()) {
        let gap = if style == Text::Full { "\n" } else { "" };
        line(&mut text, format_args!("{gap}.extern .shared .align 128 .b8 {}[];", dynamic(style)));
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

/// A path that does not depend on where the crate was compiled: from its last `src` folder's parent on. It stands in
/// quotes, where PTX has printable ASCII only: `?` is for the rest.
fn portable(path: &str) -> String {
    let path = path.replace('\\', "/");
    let tail = path.rfind("/src/").and_then(|at| path[..at].rfind('/')).map_or(path.as_str(), |at| &path[at + 1..]);
    let name = if path.starts_with('/') || path.contains(":/") { tail } else { &path };
    name.replace(|c: char| c == '"' || !(c == ' ' || c.is_ascii_graphic()), "?")
}

fn kernel(out: &mut String, function: &Function, verified: &Verified, files: &mut Files, style: Text) {
    let names = Names::new(style, function);
    // What full text is laid out with.
    let (gap, indent, end) = match style {
        Text::Full => ("\n", "    ", "\n"),
        Text::Light => ("", "", ""),
    };
    let _ = write!(out, "{gap}.visible .entry {}({end}", function.name);
    let last = function.params.len().saturating_sub(1);
    for (index, param) in function.params.iter().enumerate() {
        let comma = if index == last { "" } else { "," };
        let _ = write!(out, "{indent}.param .{} {}{comma}{end}", param.loaded, names.symbol(&param.name));
    }
    line(out, format_args!(")\n.reqntid {}", function.block));
    if let Some(blocks) = function.blocks_per_sm {
        line(out, format_args!(".minnctapersm {blocks}"));
    }
    out.push_str("{\n");
    for class in Class::ALL {
        if let Some(names) = names.declared(class) {
            line(out, format_args!("{indent}.reg {} {names};", class.declaration()));
        }
    }
    for var in &function.shared {
        line(out, format_args!("{indent}.shared .align 16 .b8 {}[{}];", names.symbol(&var.name), var.bytes));
    }
    if style == Text::Full && function.dynamic_shared > 0 {
        line(out, format_args!("{indent}// dynamic shared memory: {} bytes", function.dynamic_shared));
    }
    let mut printer = Printer { out, names: &names, verified, files, style, labels: 0, at: None };
    printer.nodes(&function.body, None);
    line(out, format_args!("{indent}ret;\n}}"));
}

struct Printer<'a> {
    out: &'a mut String,
    names: &'a Names<'a>,
    verified: &'a Verified,
    files: &'a mut Files,
    style: Text,
    labels: u32,
    at: Option<(usize, u32)>,
}

impl Printer<'_> {
    fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels - 1
    }

    /// A line of code. All have one indentation: kernels nest deeply.
    fn code(&mut self, text: std::fmt::Arguments<'_>) {
        self.indent();
        line(self.out, text);
    }

    fn place(&mut self, label: u32) {
        line(self.out, format_args!("{}:", self.names.label(label)));
    }

    /// Nodes that end where a label stands, if one does: conditions at their end share it.
    fn nodes(&mut self, nodes: &[Node], behind: Option<u32>) {
        for (index, node) in nodes.iter().enumerate() {
            match node {
                Node::Inst(inst) => self.inst(inst),
                Node::If { cond, then, otherwise, source } => {
                    self.location(source);
                    let shared = behind.filter(|_| index + 1 == nodes.len());
                    let end = shared.unwrap_or_else(|| self.label());
                    if otherwise.is_empty() {
                        self.branch("!", *cond, end);
                        self.nodes(then, Some(end));
                    } else {
                        let skip = self.label();
                        self.branch("!", *cond, skip);
                        self.nodes(then, None);
                        self.code(format_args!("bra {};", self.names.label(end)));
                        self.place(skip);
                        self.nodes(otherwise, Some(end));
                    }
                    if shared.is_none() {
                        self.place(end);
                    }
                }
                Node::Loop { body, again, work, rolled, source } => {
                    let top = self.label();
                    self.place(top);
                    if *rolled {
                        self.code(format_args!(".pragma \"nounroll\";"));
                    }
                    if let (Some(work), Text::Full) = (work, self.style) {
                        self.code(format_args!("// each iteration of a warp: {work}"));
                    }
                    self.nodes(body, None);
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
                let (role, warp, label) = (self.names.role(), self.names.reg(warp), self.names.label(next));
                self.code(format_args!("{{ .reg .pred {role}; setp.ge.u32 {role}, {warp}, {below};"));
                self.code(format_args!("@{role} bra.uni {label}; }}"));
            }
            self.nodes(body, None);
            if index + 1 < roles.len() {
                self.code(format_args!("bra.uni {};", self.names.label(end)));
            }
            self.place(next);
        }
        self.place(end);
    }

    fn indent(&mut self) {
        if self.style == Text::Full {
            self.out.push(' ');
        }
    }

    /// Between operands.
    fn comma(&mut self) {
        self.out.push_str(if self.style == Text::Full { ", " } else { "," });
    }

    /// A branch taken where the condition holds or, with `not` as `!`, where it does not.
    fn branch(&mut self, not: &str, cond: Reg, label: u32) {
        let uniform = self.verified.uniformity.level(cond) <= Uniformity::Warp;
        let uni = if uniform { ".uni" } else { "" };
        let (cond, label) = (self.names.reg(cond), self.names.label(label));
        self.code(format_args!("@{not}{cond} bra{uni} {label};"));
    }

    fn location(&mut self, source: Source) {
        if self.style == Text::Light {
            return;
        }
        let at = (self.files.number(source), source.line());
        if self.at != Some(at) {
            self.at = Some(at);
            self.code(format_args!(".loc {} {} {}", at.0, at.1, source.column()));
        }
    }

    fn inst(&mut self, inst: &Inst) {
        if self.style == Text::Light && moved(inst).is_some_and(|[to, from]| self.names.same(to, from)) {
            return;
        }
        self.location(inst.source);
        self.indent();
        let _ = write!(self.out, "{}", inst.op);
        let row = inst.op.row();
        let slots = row.results.iter().chain(row.operands.iter());
        for (index, (arg, slot)) in inst.dst.iter().chain(&inst.src).zip(slots).enumerate() {
            if index == 0 {
                self.out.push(' ');
            } else {
                self.comma();
            }
            match (arg, self.style) {
                (Arg::Int(value), Text::Light) => {
                    let _ = write!(self.out, "{}", slot.shortest(*value));
                }
                (Arg::F32(bits), Text::Light) => self.out.push_str(&shortest(*bits)),
                _ => self.arg(arg),
            }
        }
        self.out.push_str(";\n");
    }

    fn arg(&mut self, arg: &Arg) {
        let _ = match arg {
            Arg::Reg(reg) => write!(self.out, "{}", self.names.reg(*reg)),
            Arg::Int(value) => write!(self.out, "{value}"),
            Arg::F32(bits) => write!(self.out, "0f{bits:08X}"),
            Arg::Special(register) => write!(self.out, "{register}"),
            Arg::Address(name) => {
                let _ = write!(self.out, "{}", self.names.symbol(name));
                match self.names.distance(name) {
                    0 => Ok(()),
                    offset => write!(self.out, "+{offset}"),
                }
            }
            Arg::Mem(base, offset) => {
                let offset = match base {
                    Base::Reg(_) => *offset,
                    Base::Symbol(name) => offset + self.names.distance(name),
                };
                let base = match base {
                    Base::Reg(reg) => self.names.reg(*reg),
                    Base::Symbol(name) => self.names.symbol(name),
                };
                match offset {
                    0 => write!(self.out, "[{base}]"),
                    offset => write!(self.out, "[{base}+{offset}]"),
                }
            }
            Arg::Vector(parts) => {
                self.braces(parts);
                Ok(())
            }
            Arg::Box(map, parts) => {
                let _ = write!(self.out, "[{}", self.names.reg(*map));
                self.comma();
                self.braces(parts);
                self.out.push(']');
                Ok(())
            }
        };
    }

    fn braces(&mut self, parts: &[Arg]) {
        self.out.push('{');
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                self.comma();
            }
            self.arg(part);
        }
        self.out.push('}');
    }
}

/// The shortest text of a float's bits. A decimal is of 64 bits to PTX, and rounded to 32 where it is used.
fn shortest(bits: u32) -> String {
    let (hex, decimal) = (format!("0f{bits:08X}"), format!("{:?}", f32::from_bits(bits)));
    let rounded = decimal.parse::<f64>().map(|value| (value as f32).to_bits());
    let is_plain = decimal.bytes().all(|byte| byte.is_ascii_digit() || b"-.".contains(&byte));
    if is_plain && rounded == Ok(bits) && decimal.len() < hex.len() { decimal } else { hex }
}

#[cfg(test)]
mod tests {
    use super::{portable, shortest};

    #[test]
    fn floats_are_written_in_as_few_characters_as_have_their_bits() {
        for (value, text) in [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (-48.25, "-48.25"),
            (12582912.0, "0f4B400000"),
            (0.1, "0.1"),
            (std::f32::consts::LOG2_E, "1.442695"),
            (1.0 / 3.0, "0f3EAAAAAB"),
            (1e-7, "0f33D6BF95"),
            (-0.0, "-0.0"),
            (f32::NEG_INFINITY, "0fFF800000"),
            (f32::NAN, "0f7FC00000"),
        ] {
            assert_eq!(shortest(f32::to_bits(value)), text);
        }
    }

    #[test]
    fn names_of_files_are_printable_ascii_from_their_crate_on() {
        for (path, name) in [
            ("src/kernels/norm.rs", "src/kernels/norm.rs"),
            ("/home/j\u{f6}rg/mine/src/norm.rs", "mine/src/norm.rs"),
            ("/home/mine/src/gr\u{f6}\u{df}e \"1\".rs", "mine/src/gr??e ?1?.rs"),
            ("C:\\\u{65e5}\\src\\norm.rs", "?/src/norm.rs"),
        ] {
            assert_eq!(portable(path), name);
        }
    }
}
