//! Comparisons, selections, logic of predicates, and arithmetic with a carry.

use super::super::ast::{Arg, Num};
use super::convert::bits;
use super::{Decoder, Res, Text};
use crate::exec::inst::*;
use crate::exec::values::{Piece, VALUES};
use crate::machine::types::Ty;

impl Decoder<'_> {
    pub(super) fn logic(&mut self, t: &mut Text<'_>) -> Res<bool> {
        let name = t.name;
        match name {
            "setp" | "set" => self.compare(t)?,
            "lop3" => {
                t.require("b32")?;
                let [d, a, b, c, _] = self.slots(t, &[Ty::B32; 5])?;
                let Arg::Num(Num::Int(lut @ 0..=255)) = t.args[4] else {
                    return t.fail("lop3", "the table must be a constant of 8 bits");
                };
                self.piece(Piece::Lop3, Ty::B32, &[d, a, b, c, lut as R])?;
            }
            "and" | "or" | "xor" | "not" | "mov" if t.take("pred") => {
                let two = LUTS.iter().find(|(name, _)| *name == t.name);
                let negated = t.args.iter().any(|a| matches!(a, Arg::Not(_)));
                t.ensure(!negated, "predicate operands of this instruction are not negated")?;
                let [d, a, b, ..] = self.slots(t, &[Ty::Pred; 3][..if two.is_some() { 3 } else { 2 }])?;
                let one = if t.name == "not" { negate(FIRST, true) } else { FIRST };
                self.push(Op::Pred(two.map_or(one, |(_, lut)| *lut), d, a, b));
            }
            "addc" | "subc" | "madc" => self.carry(t, true)?,
            "add" | "sub" | "mad" if t.has("cc") => self.carry(t, false)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// `add.cc`, `addc`, `sub.cc`, `subc`; `mad.cc` and `madc` compute their product first.
    fn carry(&mut self, t: &mut Text<'_>, carry_in: bool) -> Res<()> {
        let carry_out = t.take("cc");
        let product = t.name.starts_with("mad");
        let upper = product && t.need(&[("lo", false), ("hi", true)])?;
        let ty = t.expect(&[Ty::U32, Ty::S32, Ty::U64, Ty::S64])?;
        t.arity(if product { 4 } else { 3 })?;
        let (mut a, mut b) = (self.src(&t.args[1], ty)?, self.src(&t.args[2], ty)?);
        if product {
            let addend = self.src(&t.args[3], ty)?;
            let piece = if upper { Piece::MulHi } else { Piece::MulLo };
            (a, b) = (self.made(ty, |decoder, d| decoder.piece(piece, ty, &[d, a, b]))?, addend);
        }
        let carry_in = if carry_in { CARRY } else { self.src(&Arg::Num(Num::Int(0)), Ty::Pred)? };
        let (result, carry) = match t.name {
            "sub" | "subc" => (Piece::DifferenceWithBorrow, Piece::BorrowOfDifference),
            _ => (Piece::SumWithCarry, Piece::CarryOfSum),
        };
        // The carry is made before the sum overwrites an operand, and stored after the sum has used the old one.
        let carry_out = if carry_out { Some(self.temp_pred()?) } else { None };
        if let Some(p) = carry_out {
            self.piece(carry, bits(ty), &[p, a, b, carry_in])?;
        }
        let d = self.dst(t, ty)?;
        self.piece(result, bits(ty), &[d, a, b, carry_in])?;
        if let Some(p) = carry_out {
            self.push(Op::Pred(FIRST, CARRY, p, 0));
        }
        Ok(())
    }

    /// `setp`, and `set` as a `setp` whose result selects a value.
    fn compare(&mut self, t: &mut Text<'_>) -> Res<()> {
        let combined = t.pick(LUTS);
        let ftz = t.take("ftz");
        let set = if t.name == "set" { Some(t.ty()?) } else { None };
        let ty = t.ty()?;
        let name = format!("setp.{}{}", t.parts.drain(..).collect::<Vec<_>>().join("."), if ftz { ".ftz" } else { "" });
        let pair = matches!(ty, Ty::F16x2 | Ty::BF16x2);
        let of = if pair { ty.element() } else { ty };
        let comparison = t.some(VALUES.get(&(&*name, of)), "comparison that this type does not have")?;
        t.ensure(set.is_some() || !pair || t.second.is_some(), "a comparison of pairs has two results")?;
        t.arity(3 + usize::from(combined.is_some()))?;
        let sources = [self.src(&t.args[1], ty)?, self.src(&t.args[2], ty)?];
        let with = if combined.is_some() { self.src(&t.args[3], Ty::Pred)? } else { 0 };
        let direct = set.is_none() && combined.is_none() && t.second.is_none();
        let lut = combined.unwrap_or(FIRST);
        // One truth value, or one for each half.
        let mut truths = Vec::new();
        for half in [Piece::LowerHalf, Piece::UpperHalf].into_iter().take(if pair { 2 } else { 1 }) {
            let mut take = |source| self.made(Ty::B16, |decoder, d| decoder.piece(half, Ty::B32, &[d, source]));
            let [a, b] = if pair { [take(sources[0])?, take(sources[1])?] } else { sources };
            let truth = if direct { self.dst(t, Ty::Pred)? } else { self.temp_pred()? };
            self.row(comparison, &[truth, a, b]);
            truths.push(truth);
        }
        if let Some(to) = set {
            let one = match to.element() {
                Ty::F32 if !pair => 1f32.to_bits(),
                Ty::F16 if !pair && to == Ty::F16 || to == ty => 0x3c00,
                Ty::BF16 if !pair && to == Ty::BF16 || to == ty => 0x3f80,
                Ty::U32 | Ty::S32 if !pair => u32::MAX,
                Ty::U16 | Ty::S16 if !pair && to == to.element() => 0xffff,
                Ty::U32 | Ty::S32 => 0xffff,
                _ => return t.fail(t.opcode, "type that this instruction does not have"),
            };
            let (one, zero) = (self.constant(one.into(), false), self.constant(0, false));
            let mut value = |truth| {
                self.push(Op::Pred(lut, truth, truth, with));
                self.made(Ty::B32, |decoder, d| decoder.piece(Piece::Select, Ty::B32, &[d, one, zero, truth]))
            };
            let values = truths.into_iter().map(&mut value).collect::<Res<Vec<R>>>()?;
            let d = self.dst(t, to)?;
            match values[..] {
                [low, high] => self.piece(Piece::Halves, Ty::B32, &[d, low, high])?,
                _ => self.copy(to, d, values[0])?,
            }
        } else if !direct {
            let (p, q) = (self.dst(t, Ty::Pred)?, self.second(t)?);
            // q is the opposite, or the truth of the upper halves; whichever replaces the predicate combined with is last.
            let second = match truths[..] {
                [_, upper] => Op::Pred(lut, q, upper, with),
                _ => Op::Pred(negate(lut, true), q, truths[0], with),
            };
            let mut both = [second, Op::Pred(lut, p, truths[0], with)];
            if q == with {
                both.reverse();
            }
            both.into_iter().for_each(|op| self.push(op));
        }
        Ok(())
    }
}
