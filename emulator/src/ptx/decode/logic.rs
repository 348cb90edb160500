//! Comparisons, selections, logic of predicates, and arithmetic with a carry.

use super::super::ast::{Arg, Num};
use super::super::types::Ty;
use super::operands::width;
use super::{Decoder, Res, Text};
use crate::exec::inst::*;
use crate::exec::scalar::{self, carry};
use crate::exec::values::comparison;

/// Comparisons as unsigned numbers, whatever the type says.
const UNSIGNED: &[(&str, Cmp)] = &[("lo", Cmp::Lt), ("ls", Cmp::Le), ("hi", Cmp::Gt), ("hs", Cmp::Ge)];
/// Comparisons that hold if an operand is NaN.
const UNORDERED: &[(&str, Cmp)] =
    &[("equ", Cmp::Eq), ("neu", Cmp::Ne), ("ltu", Cmp::Lt), ("leu", Cmp::Le), ("gtu", Cmp::Gt), ("geu", Cmp::Ge)];

impl Decoder<'_> {
    pub(super) fn logic(&mut self, t: &mut Text<'_>) -> Res<bool> {
        let name = t.name;
        match name {
            "setp" | "set" => self.compare(t)?,
            "selp" => {
                let ty = t.ty()?;
                t.ensure(matches!(ty.bytes(), 2 | 4 | 8), "type that this instruction does not have")?;
                let [d, a, b, p, _] = self.slots(t, &[ty, ty, ty, Ty::Pred])?;
                self.push(Op::Selp(ty.bytes() == 8, [d, a, b], p));
            }
            "lop3" => {
                t.require("b32")?;
                let [d, a, b, c, _] = self.slots(t, &[Ty::B32; 5])?;
                let Arg::Num(Num::Int(lut @ 0..=255)) = t.args[4] else {
                    return t.fail("lop3", "the table must be a constant of 8 bits");
                };
                self.push(Op::Lop3(lut as u8, [d, a, b, c]));
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

    /// `add.cc`, `addc`, `sub.cc`, `subc`; `mad.cc` and `madc` make their product first.
    fn carry(&mut self, t: &mut Text<'_>, carry_in: bool) -> Res<()> {
        let carry_out = t.take("cc");
        let product = t.name.starts_with("mad");
        let upper = product && t.need(&[("lo", false), ("hi", true)])?;
        let ty = t.expect(&[Ty::U32, Ty::S32, Ty::U64, Ty::S64])?;
        t.arity(if product { 4 } else { 3 })?;
        let (mut a, mut b) = (self.src(&t.args[1], ty)?, self.src(&t.args[2], ty)?);
        if product {
            let addend = self.src(&t.args[3], ty)?;
            let temp = self.temp(ty);
            let d = self.write(temp);
            self.values(if upper { "mul.hi" } else { "mul.lo" }, ty, [d, a, b]);
            (a, b) = (self.read(temp), addend);
        }
        let w = width(ty);
        let carry_in = if carry_in { (CARRY, W::Pred) } else { (self.constant(0, false), W::W32) };
        let operands = |d| [d, (a, w), (b, w), carry_in, carry_in];
        let (sum, out): (LaneFn, LaneFn) = match t.name {
            "sub" | "subc" => (|c, a| carry(c, a, true).0, |c, a| carry(c, a, true).1),
            _ => (|c, a| carry(c, a, false).0, |c, a| carry(c, a, false).1),
        };
        // The carry is made before the sum overwrites an operand, and stored after the sum has used the old one.
        let carry = self.temp_pred()?;
        if carry_out {
            self.lane(out, Ctl::new(ty), operands((carry, W::Pred)));
        }
        let d = self.dst(t, ty)?;
        self.lane(sum, Ctl::new(ty), operands((d, w)));
        if carry_out {
            self.push(Op::Pred(FIRST, CARRY, carry, 0));
        }
        Ok(())
    }

    /// `setp`, and `set` as a `setp` whose truth becomes a value.
    fn compare(&mut self, t: &mut Text<'_>) -> Res<()> {
        let unsigned = t.pick(UNSIGNED);
        let unordered = t.pick(UNORDERED);
        let class = t.pick(&[("num", false), ("nan", true)]);
        let cmp = unsigned.or(unordered).or_else(|| t.pick(Cmp::NAMES));
        let combined = t.pick(LUTS);
        let ftz = t.take("ftz");
        let set = if t.name == "set" { Some(t.ty()?) } else { None };
        let ty = t.ty()?;
        let (from, float) = (ty.element(), ty.element().float());
        let legal = match ty {
            Ty::F32x2 | Ty::TF32 => false,
            Ty::B16 | Ty::B32 | Ty::B64 => matches!(cmp, Some(Cmp::Eq | Cmp::Ne)) && unsigned.or(unordered).is_none(),
            Ty::U16 | Ty::U32 | Ty::U64 => unordered.is_none(),
            _ if ty.integer() => unordered.or(unsigned).is_none(),
            _ => float && unsigned.is_none(),
        };
        let legal = legal && cmp.is_some() != class.is_some() && (float || class.is_none());
        t.ensure(legal, "comparison that this type does not have")?;
        t.arity(3 + usize::from(combined.is_some()))?;
        let (a, b) = (self.src(&t.args[1], ty)?, self.src(&t.args[2], ty)?);
        let with = if combined.is_some() { self.src(&t.args[3], Ty::Pred)? } else { 0 };
        let packed = from.bytes() < ty.bytes();
        let direct = set.is_none() && !packed && combined.is_none() && t.second.is_none();
        let truth = if direct { self.dst(t, Ty::Pred)? } else { self.temp_pred()? };
        // All lanes at once where NaN compares as in Rust.
        let nan = unordered.is_some() || class == Some(true);
        let plain = !float || (!ftz && nan == (cmp == Some(Cmp::Ne)));
        let ctl = Ctl { from, ftz, nan, cmp, ..Ctl::new(ty) };
        let operands = |p| [(p, W::Pred), (a, width(ty)), (b, width(ty)), (b, width(ty)), (b, width(ty))];
        match cmp.filter(|_| plain).and_then(|cmp| comparison(cmp, ty)) {
            Some(f) => self.push(Op::Setp(f, truth, a, b)),
            None => self.lane(scalar::compare, ctl, operands(truth)),
        }
        if direct {
            return Ok(());
        }
        let upper = if packed { Some(self.temp_pred()?) } else { None };
        if let Some(upper) = upper {
            self.lane(|c, a| scalar::compare(c, a.map(|v| v >> 16)), ctl, operands(upper));
        }
        let lut = combined.unwrap_or(FIRST);
        if let Some(to) = set {
            t.ensure(matches!(to.bytes(), 2 | 4 | 8), "type that this instruction does not have")?;
            [truth].into_iter().chain(upper).for_each(|p| self.push(Op::Pred(lut, p, p, with)));
            let zero = (self.constant(0, false), W::W32);
            let upper = upper.map_or(zero, |p| (p, W::Pred));
            let d = (self.dst(t, to)?, width(to));
            self.lane(truth_value, Ctl { from: ty, ..Ctl::new(to) }, [d, (truth, W::Pred), upper, zero, zero]);
            return Ok(());
        }
        let (p, q) = (self.dst(t, Ty::Pred)?, self.second(t)?);
        // q is the opposite, or the truth of the upper halves; whichever replaces the predicate combined with is last.
        let second = upper.map_or(Op::Pred(negate(lut, true), q, truth, with), |upper| Op::Pred(lut, q, upper, with));
        let mut both = [second, Op::Pred(lut, p, truth, with)];
        if q == with {
            both.reverse();
        }
        both.into_iter().for_each(|op| self.push(op));
        Ok(())
    }
}

/// What `set` makes of a truth value, or of one for each half.
fn truth_value(c: &Ctl, a: [u64; 4]) -> u64 {
    let one = match c.to.element() {
        Ty::F32 => 1f32.to_bits().into(),
        Ty::F16 => 0x3c00,
        Ty::BF16 => 0x3f80,
        _ if c.from.element() != c.from => 0xffff,
        ty => scalar::trunc(ty, u64::MAX),
    };
    (a[0] * one) | (a[1] * one) << 16
}
