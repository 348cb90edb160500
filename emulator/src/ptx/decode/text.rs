//! Instructions as written, consumed piece by piece. A piece that nothing consumes is an error.

use super::super::PtxError;
use super::super::ast::{Arg, Inst};
use super::Res;
use crate::machine::types::{Space, Ty};

/// Message for operands of the wrong number or form.
pub(super) const WRONG_OPERANDS: &str = "operands that this instruction does not have";

/// The unread rest of an instruction.
pub(super) struct Text<'a> {
    /// The opcode up to its first dot.
    pub(super) name: &'a str,
    /// The opcode with all modifiers.
    pub(super) opcode: &'a str,
    /// The unread modifiers.
    pub(super) parts: Vec<&'a str>,
    pub(super) args: &'a [Arg],
    /// The predicate of a destination `d|p`, until it is read.
    pub(super) second: Option<&'a str>,
    pub(super) line: u32,
}

impl<'a> Text<'a> {
    pub(super) fn new(i: &'a Inst, line: u32) -> Text<'a> {
        let mut parts = i.op.split('.');
        let name = parts.next().unwrap_or("");
        Text { name, opcode: &i.op, parts: parts.collect(), args: &i.args, second: i.second.as_deref(), line }
    }

    pub(super) fn fail<T>(&self, token: impl Into<String>, message: impl Into<String>) -> Res<T> {
        Err(PtxError::new(self.line, token, message))
    }

    /// The value, or an error of the instruction.
    pub(super) fn some<T>(&self, value: Option<T>, message: &str) -> Res<T> {
        value.map_or_else(|| self.fail(self.opcode, message), Ok)
    }

    /// An error of the instruction unless `holds`.
    pub(super) fn ensure(&self, holds: bool, message: &str) -> Res<()> {
        self.some(holds.then_some(()), message)
    }

    /// Whether a modifier is there.
    pub(super) fn has(&self, m: &str) -> bool {
        self.parts.contains(&m)
    }

    /// Consumes the next modifier that `parse` accepts.
    pub(super) fn read<T>(&mut self, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (i, v) = self.parts.iter().enumerate().find_map(|(i, p)| parse(p).map(|v| (i, v)))?;
        self.parts.remove(i);
        Some(v)
    }

    /// Consumes a modifier if it is there.
    pub(super) fn take(&mut self, m: &str) -> bool {
        self.read(|p| (p == m).then_some(())).is_some()
    }

    /// Consumes modifiers that must be there: `sync.aligned`.
    pub(super) fn require(&mut self, modifiers: &str) -> Res<()> {
        match modifiers.split('.').find(|m| !self.take(m)) {
            Some(missing) => self.fail(self.name, format!("needs .{missing}")),
            None => Ok(()),
        }
    }

    /// Consumes all of several modifiers that are there.
    pub(super) fn skip(&mut self, words: &str) {
        self.parts.retain(|p| words.split(' ').all(|w| w != *p));
    }

    /// Consumes cache and eviction hints: they change no result.
    pub(super) fn hints(&mut self) {
        self.skip("ca cg cs lu cv wb wt unified L2::64B L2::128B L2::256B L2::cache_hint");
        self.skip("L1::no_allocate L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last");
        self.skip("L2::evict_normal L2::evict_unchanged L2::evict_first L2::evict_last");
    }

    /// Consumes the first modifier that is in a list.
    pub(super) fn pick<T: Copy>(&mut self, list: &[(&str, T)]) -> Option<T> {
        self.read(|p| list.iter().find(|(m, _)| *m == p).map(|(_, v)| *v))
    }

    /// Consumes the first modifier of a list; an error if the text has none of them.
    pub(super) fn need<T: Copy>(&mut self, list: &[(&str, T)]) -> Res<T> {
        let words: Vec<&str> = list.iter().map(|(m, _)| *m).collect();
        self.pick(list).map_or_else(|| self.fail(self.name, format!("needs one of .{}", words.join(", ."))), Ok)
    }

    /// Consumes the first modifier among several words; an error if the text has none of them.
    pub(super) fn word(&mut self, words: &'static str) -> Res<&'static str> {
        self.need(&words.split(' ').map(|word| (word, word)).collect::<Vec<_>>())
    }

    /// Consumes a state space; addresses without one are generic.
    pub(super) fn space(&mut self) -> Space {
        self.read(Space::parse).unwrap_or(Space::Generic)
    }

    /// Consumes the next type.
    pub(super) fn ty(&mut self) -> Res<Ty> {
        let ty = self.read(Ty::parse);
        self.some(ty, "the instruction's type is missing")
    }

    /// Consumes the next type, which must be one of a list.
    pub(super) fn expect(&mut self, list: &[Ty]) -> Res<Ty> {
        let ty = self.ty()?;
        self.ensure(list.contains(&ty), "type that this instruction does not have").map(|()| ty)
    }

    /// Checks the number of operands.
    pub(super) fn arity(&self, n: usize) -> Res<()> {
        self.arities(n, n)
    }

    /// Checks that the number of operands lies between two numbers.
    pub(super) fn arities(&self, least: usize, most: usize) -> Res<()> {
        self.ensure((least..=most).contains(&self.args.len()), WRONG_OPERANDS)
    }

    /// Checks that everything was consumed.
    pub(super) fn finish(&self) -> Res<()> {
        match (self.parts.first(), self.second) {
            (Some(p), _) => self.fail(format!(".{p}"), "modifier that is not known for this instruction"),
            (_, Some(p)) => self.fail(format!("|{p}"), "second destination that this instruction does not have"),
            _ => Ok(()),
        }
    }
}
