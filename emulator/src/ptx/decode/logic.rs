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
        match t.name {
            "setp" | "set" => self.compare(t)?,
            "selp" => {
                let ty = t.ty()?;
                t.arity(4)?;
                if !matches!(ty.bytes(), 2 | 4 | 8) {
                    return t.wrong(ty);
                }
                let (a, b) = (self.src(&t.args[1], ty)?, self.src(&t.args[2], ty)?);
                let (p, negated) = self.pred(&t.args[3])?;
                let d = self.dst(&t.args[0], ty)?;
                self.push(Op::Selp(ty.bytes() == 8, if negated { [d, b, a] } else { [d, a, b] }, p));
            }
            "lop3" => {
                t.form(&[Ty::B32], 5)?;
                let Arg::Num(Num::Int(lut)) = t.args[4] else {
                    return t.fail("lop3", "the table must be a constant");
                };
                if lut > 255 {
                    return t.fail(lut.to_string(), "the table has 8 bits");
                }
                let [a, b, c, _] = self.reads(&t.args[1..], &[Ty::B32; 3])?.map(|s| s.0);
                let d = self.dst(&t.args[0], Ty::B32)?;
                self.push(Op::Lop3(lut as u8, [d, a, b, c]));
            }
            "and" | "or" | "xor" | "not" | "mov" if t.has("pred") => self.predicates(t)?,
            "addc" | "subc" | "madc" => self.carry(t, true)?,
            "add" | "sub" | "mad" if t.has("cc") => self.carry(t, false)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn predicates(&mut self, t: &mut Text<'_>) -> Res<()> {
        t.ty()?;
        let two = LUTS.iter().find(|(name, _)| *name == t.name);
        t.arity(if two.is_some() { 3 } else { 2 })?;
        let (a, negated) = self.pred(&t.args[1])?;
        let (lut, b) = match two {
            None if negated != (t.name == "not") => (negate(FIRST, true), 0),
            None => (FIRST, 0),
            Some((_, lut)) => {
                let (b, other) = self.pred(&t.args[2])?;
                if negated || other {
                    return t.fail("!", "predicate operands of this instruction are not negated");
                }
                (*lut, b)
            }
        };
        let d = self.dst(&t.args[0], Ty::Pred)?;
        self.push(Op::Pred(lut, d, a, b));
        Ok(())
    }

    /// `add.cc`, `addc`, `sub.cc`, `subc`; `mad.cc` and `madc` make their product first.
    fn carry(&mut self, t: &mut Text<'_>, carry_in: bool) -> Res<()> {
        let carry_out = t.take("cc");
        let product = t.name.starts_with("mad");
        let upper = product && t.need(&[("lo", false), ("hi", true)])?;
        let ty = t.expect(&[Ty::U32, Ty::S32, Ty::U64, Ty::S64])?;
        let (c, w) = (Ctl::new(ty), width(ty));
        let [mut a, mut b, addend, _] = self.sources(t, &[ty; 4][..if product { 4 } else { 3 }])?;
        if product {
            let temp = self.temp(ty);
            let d = self.write(temp);
            self.values(if upper { "mul.hi" } else { "mul.lo" }, ty, [d, a.0, b.0]);
            (a, b) = ((self.read(temp), w), addend);
            self.src(&t.args[3], ty)?;
        }
        let carry_in = if carry_in { (CARRY, W::Pred) } else { (self.constant(0, false), W::W32) };
        let src = [a, b, carry_in, carry_in];
        let (sum, out): (LaneFn, LaneFn) = match t.name {
            "sub" | "subc" => (|c, a| carry(c, a, true).0, |c, a| carry(c, a, true).1),
            _ => (|c, a| carry(c, a, false).0, |c, a| carry(c, a, false).1),
        };
        // The carry is made before the sum overwrites an operand, and stored after the sum has used the old one.
        let carry = self.temp_pred()?;
        if carry_out {
            let uses = self.cur.clone();
            self.lane(out, c, (carry, W::Pred), src);
            self.cur = uses;
        }
        let d = (self.dst(&t.args[0], ty)?, w);
        self.lane(sum, c, d, src);
        if carry_out {
            self.push(Op::Pred(FIRST, CARRY, carry, 0));
        }
        Ok(())
    }

    /// `setp`, and `set` as a `setp` and a `selp`.
    fn compare(&mut self, t: &mut Text<'_>) -> Res<()> {
        let unsigned = t.pick(UNSIGNED);
        let unordered = t.pick(UNORDERED);
        let class = t.pick(&[("num", false), ("nan", true)]);
        let cmp = unsigned.or(unordered).or_else(|| t.pick(Cmp::NAMES));
        if cmp.is_none() && class.is_none() {
            return t.fail(t.name, "comparison that is not known");
        }
        let lut = t.pick(LUTS);
        let ftz = t.take("ftz");
        let to = if t.name == "set" { Some(t.ty()?) } else { None };
        let ty = t.ty()?;
        let float = ty.element().float() && !matches!(ty, Ty::F32x2 | Ty::TF32);
        if !(float || ty.integer() || matches!(ty, Ty::B16 | Ty::B32 | Ty::B64)) {
            return t.wrong(ty);
        }
        if (unordered.is_some() || class.is_some()) && !float {
            return t.fail(t.opcode, "comparison of floats");
        }
        if unsigned.is_some() && !matches!(ty, Ty::U16 | Ty::U32 | Ty::U64) {
            return t.fail(t.opcode, "comparison of unsigned integers");
        }
        let equality = matches!(cmp, Some(Cmp::Eq | Cmp::Ne));
        if matches!(ty, Ty::B16 | Ty::B32 | Ty::B64) && !equality {
            return t.fail(t.opcode, "bits are compared by .eq and .ne only");
        }
        let from = ty.element();
        let c = Ctl { from, ftz, nan: unordered.is_some() || class == Some(true), cmp, ..Ctl::new(ty) };
        t.arity(if lut.is_some() { 4 } else { 3 })?;
        let src = self.reads(&t.args[1..], &[ty; 2])?;
        let (lut, with) = match lut {
            None => (FIRST, 0),
            Some(lut) => {
                let (p, negated) = self.pred(&t.args[3])?;
                (if negated { negate(lut, false) } else { lut }, p)
            }
        };
        let packed = from.bytes() < ty.bytes();
        let direct = to.is_none() && !packed && t.args.len() == 3 && !matches!(t.args[0], Arg::Pair(..));
        let truths = match direct {
            true => [self.dst(&t.args[0], Ty::Pred)?; 2],
            false => [self.temp_pred()?, self.temp_pred()?],
        };
        let uses = self.cur.clone();
        // All lanes at once where NaN compares as in Rust.
        let plain = !float || (!ftz && c.nan == (cmp == Some(Cmp::Ne)));
        if let Some(f) = cmp.filter(|_| plain).and_then(|cmp| comparison(cmp, ty)) {
            self.push(Op::Setp(f, truths[0], src[0].0, src[1].0));
        } else {
            self.lane(scalar::compare, c, (truths[0], W::Pred), src);
        }
        if packed {
            self.cur = uses.clone();
            let upper: LaneFn = |c, a| scalar::compare(c, a.map(|v| v >> 16));
            self.lane(upper, c, (truths[1], W::Pred), src);
        }
        if let Some(to) = to {
            truths.into_iter().for_each(|p| self.push(Op::Pred(lut, p, p, with)));
            return self.set(t, to, packed.then_some(truths[1]), truths[0]);
        }
        if !direct {
            self.cur = uses;
            let (p, q) = self.pair(&t.args[0], Ty::Pred)?;
            let uses = self.cur.clone();
            // q is the opposite, or the truth of the upper halves; whichever replaces the predicate combined with is last.
            let second = if packed { (lut, truths[1]) } else { (negate(lut, true), truths[0]) };
            let list = [(q, second.0, second.1), (p, lut, truths[0])];
            for (d, lut, truth) in if q == with { [list[1], list[0]] } else { list } {
                self.cur = uses.clone();
                self.push(Op::Pred(lut, d, truth, with));
            }
        }
        Ok(())
    }

    /// What `set` makes of truth values in its destination's type: of one, or of one a half.
    fn set(&mut self, t: &Text<'_>, ty: Ty, upper: Option<P>, p: P) -> Res<()> {
        if ty.bytes() < 2 || ty.bytes() > 8 {
            return t.wrong(ty);
        }
        let one = match (ty.element(), upper) {
            (Ty::F32, _) => u64::from(1f32.to_bits()),
            (Ty::F16, _) => 0x3c00,
            (Ty::BF16, _) => 0x3f80,
            (_, Some(_)) => 0xffff,
            (ty, None) => scalar::trunc(ty, u64::MAX),
        };
        let wide = ty.bytes() == 8;
        let (one, zero, high) = (self.constant(one, wide), self.constant(0, wide), self.constant(one << 16, wide));
        let Some(upper) = upper else {
            let d = self.dst(&t.args[0], ty)?;
            self.push(Op::Selp(wide, [d, one, zero], p));
            return Ok(());
        };
        let temps = [self.temp(Ty::B32), self.temp(Ty::B32)];
        for (temp, value, p) in [(temps[0], one, p), (temps[1], high, upper)] {
            let d = self.write(temp);
            self.push(Op::Selp(false, [d, value, zero], p));
        }
        let [a, b] = temps.map(|temp| self.read(temp));
        let d = self.dst(&t.args[0], ty)?;
        self.values("or", Ty::B32, [d, a, b]);
        Ok(())
    }
}
