//! An instruction as written, read piece by piece; what is left over at the end is an error.

use super::super::PtxError;
use super::super::ast::Arg;
use super::super::types::Ty;
use super::Res;

/// What of an instruction has not been read yet.
pub(super) struct Text<'a> {
    /// The opcode up to its first dot.
    pub(super) name: &'a str,
    /// The opcode with all modifiers.
    pub(super) opcode: &'a str,
    /// The modifiers that are left.
    pub(super) parts: Vec<&'a str>,
    pub(super) args: &'a [Arg],
    pub(super) line: u32,
}

impl<'a> Text<'a> {
    pub(super) fn new(opcode: &'a str, args: &'a [Arg], line: u32) -> Text<'a> {
        let mut parts = opcode.split('.');
        Text { name: parts.next().unwrap_or(""), opcode, parts: parts.collect(), args, line }
    }

    pub(super) fn fail<T>(&self, token: impl Into<String>, message: impl Into<String>) -> Res<T> {
        Err(PtxError::new(self.line, token, message))
    }

    /// An error of a type.
    pub(super) fn wrong<T>(&self, ty: impl std::fmt::Debug) -> Res<T> {
        self.fail(format!("{ty:?}"), "type that this instruction does not have")
    }

    /// Whether a modifier is there.
    pub(super) fn has(&self, m: &str) -> bool {
        self.parts.contains(&m)
    }

    /// Consumes a modifier if it is there.
    pub(super) fn take(&mut self, m: &str) -> bool {
        let at = self.parts.iter().position(|p| *p == m);
        at.map(|i| self.parts.remove(i)).is_some()
    }

    /// Consumes a modifier that must be there.
    pub(super) fn require(&mut self, m: &str) -> Res<()> {
        if self.take(m) { Ok(()) } else { self.fail(self.name, format!("needs .{m}")) }
    }

    /// Consumes whichever of several modifiers are there.
    pub(super) fn skip(&mut self, words: &str) {
        self.parts.retain(|p| words.split(' ').all(|w| w != *p));
    }

    /// Consumes the first of several words that is there; one must be.
    pub(super) fn word(&mut self, words: &'static str) -> Res<&'static str> {
        match words.split(' ').find(|w| self.take(w)) {
            Some(word) => Ok(word),
            None => self.fail(self.name, format!("needs {}", alternatives(words.split(' ')))),
        }
    }

    /// Consumes the first of several that is there.
    pub(super) fn pick<T: Copy>(&mut self, list: &[(&str, T)]) -> Option<T> {
        list.iter().find(|(m, _)| self.take(m)).map(|(_, v)| *v)
    }

    /// Likewise; one must be there.
    pub(super) fn need<T: Copy>(&mut self, list: &[(&str, T)]) -> Res<T> {
        match self.pick(list) {
            Some(v) => Ok(v),
            None => self.fail(self.name, format!("needs {}", alternatives(list.iter().map(|(m, _)| *m)))),
        }
    }

    /// The types that are left.
    pub(super) fn types(&self) -> Vec<Ty> {
        self.parts.iter().filter_map(|p| Ty::parse(p)).collect()
    }

    /// Consumes the next type.
    pub(super) fn ty(&mut self) -> Res<Ty> {
        match self.parts.iter().enumerate().find_map(|(i, p)| Ty::parse(p).map(|t| (i, t))) {
            Some((i, ty)) => {
                self.parts.remove(i);
                Ok(ty)
            }
            None => self.fail(self.parts.join("."), "the instruction's type is missing"),
        }
    }

    /// Consumes the next type, which must be one of a list.
    pub(super) fn expect(&mut self, list: &[Ty]) -> Res<Ty> {
        let ty = self.ty()?;
        if list.contains(&ty) { Ok(ty) } else { self.wrong(ty) }
    }

    /// Consumes the next type, one of a list, and checks the number of operands.
    pub(super) fn form(&mut self, list: &[Ty], operands: usize) -> Res<Ty> {
        let ty = self.expect(list)?;
        self.arity(operands).map(|()| ty)
    }

    /// Checks the number of operands.
    pub(super) fn arity(&self, n: usize) -> Res<()> {
        self.arities(n, n)
    }

    /// Likewise, between two numbers.
    pub(super) fn arities(&self, least: usize, most: usize) -> Res<()> {
        let n = self.args.len();
        if (least..=most).contains(&n) {
            return Ok(());
        }
        let range = if least == most { least.to_string() } else { format!("{least} to {most}") };
        self.fail(format!("{n} operands"), format!("the instruction takes {range} operands"))
    }

    /// Everything must have been consumed.
    pub(super) fn finish(&self) -> Res<()> {
        match self.parts.first() {
            None => Ok(()),
            Some(p) => self.fail(format!(".{p}"), "modifier that is not known for this instruction"),
        }
    }
}

/// `.a, .b or .c`
pub(super) fn alternatives<'s>(names: impl Iterator<Item = &'s str>) -> String {
    let names: Vec<String> = names.map(|n| format!(".{n}")).collect();
    match &names[..] {
        [rest @ .., last] if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        all => all.concat(),
    }
}
