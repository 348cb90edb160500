//! An instruction as written, read piece by piece; what is left over at the end is an error.

use super::super::PtxError;
use super::super::ast::{Arg, Inst};
use super::Res;
use crate::machine::types::{Space, Ty};

/// What is said of an instruction with too few operands, too many, or others.
pub(super) const WRONG_OPERANDS: &str = "operands that this instruction does not have";

/// What of an instruction has not been read yet.
pub(super) struct Text<'a> {
    /// The opcode up to its first dot.
    pub(super) name: &'a str,
    /// The opcode with all modifiers.
    pub(super) opcode: &'a str,
    /// The modifiers that are left.
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

    /// An error of the instruction, unless something is there.
    pub(super) fn some<T>(&self, value: Option<T>, message: &str) -> Res<T> {
        value.map_or_else(|| self.fail(self.opcode, message), Ok)
    }

    /// An error of the instruction, unless something holds.
    pub(super) fn ensure(&self, holds: bool, message: &str) -> Res<()> {
        self.some(holds.then_some(()), message)
    }

    /// Whether a modifier is there.
    pub(super) fn has(&self, m: &str) -> bool {
        self.parts.contains(&m)
    }

    /// Consumes the next modifier that can be read so.
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

    /// Consumes whichever of several modifiers are there.
    pub(super) fn skip(&mut self, words: &str) {
        self.parts.retain(|p| words.split(' ').all(|w| w != *p));
    }

    /// Consumes cache and eviction hints: they change no result.
    pub(super) fn hints(&mut self) {
        self.skip("ca cg cs lu cv wb wt unified L2::64B L2::128B L2::256B L2::cache_hint");
        self.skip("L1::no_allocate L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last");
        self.skip("L2::evict_normal L2::evict_unchanged L2::evict_first L2::evict_last");
    }

    /// Consumes the next of several that is there.
    pub(super) fn pick<T: Copy>(&mut self, list: &[(&str, T)]) -> Option<T> {
        self.read(|p| list.iter().find(|(m, _)| *m == p).map(|(_, v)| *v))
    }

    /// Likewise; one must be there.
    pub(super) fn need<T: Copy>(&mut self, list: &[(&str, T)]) -> Res<T> {
        let words: Vec<&str> = list.iter().map(|(m, _)| *m).collect();
        self.pick(list).map_or_else(|| self.fail(self.name, format!("needs one of .{}", words.join(", ."))), Ok)
    }

    /// Consumes the next of several words; one must be there.
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

    /// Likewise, between two numbers.
    pub(super) fn arities(&self, least: usize, most: usize) -> Res<()> {
        self.ensure((least..=most).contains(&self.args.len()), WRONG_OPERANDS)
    }

    /// Everything must have been consumed.
    pub(super) fn finish(&self) -> Res<()> {
        match (self.parts.first(), self.second) {
            (Some(p), _) => self.fail(format!(".{p}"), "modifier that is not known for this instruction"),
            (_, Some(p)) => self.fail(format!("|{p}"), "second destination that this instruction does not have"),
            _ => Ok(()),
        }
    }
}
