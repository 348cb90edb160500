//! Moves and conversions.

use super::super::ast::Arg;
use super::super::types::{Space, Ty};
use super::operands::width;
use super::{Decoder, Res, Text};
use crate::exec::float::Round;
use crate::exec::inst::*;
use crate::exec::scalar::{self, in_space};
use crate::exec::special::special;
use crate::exec::vector::Vector;
use crate::memory::{LOCAL_BASE, PARAM_BASE, SHARED_BASE};

/// Rounding to integral values.
const INTEGRAL: &[(&str, Round)] =
    &[("rni", Round::Near), ("rzi", Round::Zero), ("rmi", Round::Down), ("rpi", Round::Up)];

impl Decoder<'_> {
    pub(super) fn convert(&mut self, t: &mut Text<'_>) -> Res<bool> {
        let name = t.name;
        match name {
            "mov" => self.mov(t)?,
            "cvt" if t.take("pack") => {
                t.require("sat")?;
                let from = t.expect(&[Ty::U16, Ty::S16, Ty::U8, Ty::S8])?;
                t.expect(&[Ty::S32])?;
                let bytes = from.bits() == 8;
                if bytes {
                    t.expect(&[Ty::B32])?;
                }
                let types = [Ty::S32, Ty::S32, Ty::B32];
                self.cvt_lane(t, scalar::cvt_pack_sat, Ctl::new(from), Ty::B32, &types[..2 + usize::from(bytes)])?;
            }
            "cvt" => self.cvt(t)?,
            "cvta" => {
                let to = t.take("to");
                let base = match self.space(t) {
                    Space::Generic => return t.fail(t.name, "needs a state space"),
                    Space::Global | Space::Const => None,
                    Space::Shared => Some(SHARED_BASE),
                    Space::Local => Some(LOCAL_BASE),
                    Space::Param => Some(PARAM_BASE),
                };
                t.expect(&[Ty::U64])?;
                t.arity(2)?;
                let a = match self.address_of(&t.args[1])? {
                    Some(address) => self.constant(address, true),
                    None => self.src(&t.args[1], Ty::U64)?,
                };
                let b = self.constant(base.unwrap_or(0), true);
                let d = self.dst(&t.args[0], Ty::U64)?;
                let op = match base {
                    None => Vector::Mov64,
                    Some(_) if to => Vector::Sub64,
                    Some(_) => Vector::Add64,
                };
                self.push(Op::Vector(op, [d, a, b, 0]));
            }
            "isspacep" => {
                let f: LaneFn = match self.space(t) {
                    Space::Generic => return t.fail(t.name, "needs a state space"),
                    Space::Global => |_, a| in_space(a[0], Space::Global).into(),
                    Space::Shared => |_, a| in_space(a[0], Space::Shared).into(),
                    Space::Local => |_, a| in_space(a[0], Space::Local).into(),
                    Space::Param => |_, a| in_space(a[0], Space::Param).into(),
                    Space::Const => |_, _| 0,
                };
                t.arity(2)?;
                let src = self.sources(t, &[Ty::U64])?;
                let p = self.pred_dst(&t.args[0])?;
                self.lane(f, Ctl::new(Ty::U64), Dst::Truth(Truth::plain(p)), src);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The address of a variable named by an operand, in its own space.
    fn address_of(&mut self, arg: &Arg) -> Res<Option<u64>> {
        let (name, offset) = match arg {
            Arg::Word(n) => (n, 0),
            Arg::Offset(n, o) => (n, *o),
            _ => return Ok(None),
        };
        let found = self.symbol(name)?;
        if found.is_none() && matches!(arg, Arg::Offset(..)) {
            return self.fail(name, "offset of something that is not a variable");
        }
        Ok(found.map(|(_, a)| a.wrapping_add_signed(offset)))
    }

    fn mov(&mut self, t: &mut Text<'_>) -> Res<()> {
        let ty = t.ty()?;
        t.arity(2)?;
        let [d, a] = t.args else { return t.arity(2) };
        match (d, a) {
            (_, Arg::Vector(parts)) => return self.pack(t, ty, d, parts),
            (Arg::Vector(parts), _) => return self.unpack(t, ty, parts, a),
            (_, Arg::Word(name)) if matches!(ty.bytes(), 2 | 4 | 8) && !ty.float() => {
                if let Some(s) = special(name).filter(|_| self.named(name).is_none()) {
                    let d = self.dst(d, ty)?;
                    self.push(Op::Special(s, d, width(ty)));
                    return Ok(());
                }
            }
            _ => {}
        }
        let a = match self.address_of(a)? {
            Some(address) if matches!(ty.bytes(), 4 | 8) && !ty.float() => {
                if ty.bytes() == 4 && address >> 32 != 0 {
                    return t.fail("mov", "the address needs 64 bits");
                }
                self.constant(address, ty.bytes() == 8)
            }
            _ => self.src(a, ty)?,
        };
        let d = self.dst(d, ty)?;
        self.copy(t, ty, d, a)
    }

    /// Moves a value of any size.
    fn copy(&mut self, t: &Text<'_>, ty: Ty, d: R, a: R) -> Res<()> {
        match ty.bytes() {
            2 | 4 => self.push(Op::Vector(Vector::Mov, [d, a, 0, 0])),
            8 => self.push(Op::Vector(Vector::Mov64, [d, a, 0, 0])),
            16 => {
                let uses = self.cur.clone();
                self.push(Op::Vector(Vector::Mov64, [d, a, 0, 0]));
                self.cur = uses;
                self.push(Op::Vector(Vector::Mov64, [d + 2, a + 2, 0, 0]));
            }
            _ => return t.wrong(ty),
        }
        Ok(())
    }

    /// The type of one of `n` parts.
    fn part(&self, ty: Ty, n: usize) -> Res<Ty> {
        match (ty.bytes() as usize).checked_div(n) {
            Some(8) => Ok(Ty::B64),
            Some(4) => Ok(Ty::B32),
            Some(2) => Ok(Ty::B16),
            Some(1) => Ok(Ty::B8),
            _ => self.fail(format!("{n} parts"), "number of parts that does not divide the type"),
        }
    }

    /// `mov.b64 d, {a, b}`
    fn pack(&mut self, t: &Text<'_>, ty: Ty, d: &Arg, parts: &[Arg]) -> Res<()> {
        let part = self.part(ty, parts.len())?;
        if parts.len() > 4 || (ty.bytes() == 16 && parts.len() != 2) {
            return t.fail("mov", "128 bits are packed from two halves, others from four parts at most");
        }
        let zero = self.constant(0, false);
        let mut src = [(zero, W::W32); 4];
        for (slot, arg) in src.iter_mut().zip(parts) {
            let (r, w, have) = self.loose(arg, part, false)?;
            if have.bytes() != part.bytes() {
                return self.fail(format!("{have:?}"), format!("a part of {} bytes is needed", part.bytes()));
            }
            *slot = (r, w);
        }
        let d = self.dst(d, ty)?;
        if ty.bytes() == 16 {
            let uses = self.cur.clone();
            self.push(Op::Vector(Vector::Mov64, [d, src[0].0, 0, 0]));
            self.cur = uses;
            self.push(Op::Vector(Vector::Mov64, [d + 2, src[1].0, 0, 0]));
        } else if ty.bytes() == 8 && parts.len() == 2 {
            self.push(Op::Vector(Vector::Join, [d, src[0].0, src[1].0, 0]));
        } else {
            let f: LaneFn = |c, a| a.iter().rev().fold(0, |v, part| (v << (c.from.bits() % 64)) | part);
            self.lane(f, Ctl { from: part, ..Ctl::new(ty) }, Dst::Reg(d, width(ty)), src);
        }
        Ok(())
    }

    /// `mov.b64 {d, e}, a`
    fn unpack(&mut self, t: &Text<'_>, ty: Ty, parts: &[Arg], a: &Arg) -> Res<()> {
        let part = self.part(ty, parts.len())?;
        let src = self.src(a, ty)?;
        // The source may be one of the destinations only as the last to be written; a copy avoids the question.
        let temp = self.temp(ty);
        let copy = self.write(temp);
        self.copy(t, ty, copy, src)?;
        for (i, arg) in parts.iter().enumerate() {
            if matches!(arg, Arg::Word(w) if w == "_") {
                continue;
            }
            self.read(temp);
            let shift = self.constant(u64::from(part.bits()) * i as u64, false);
            let d = self.dst(arg, part)?;
            match (ty.bytes(), part.bytes()) {
                (16, 8) => self.push(Op::Vector(Vector::Mov64, [d, copy + 2 * i as u32, 0, 0])),
                (8, 4) => {
                    let op = if i == 1 { Vector::High } else { Vector::Low };
                    self.push(Op::Vector(op, [d, copy, 0, 0]));
                }
                _ => {
                    let f: LaneFn = |c, a| scalar::trunc(c.to, a[0] >> (a[1] & 63));
                    let src = [(copy, width(ty)), (shift, W::W32), (shift, W::W32), (shift, W::W32)];
                    self.lane(f, Ctl::new(part), Dst::Reg(d, W::W32), src);
                }
            }
        }
        Ok(())
    }

    /// A conversion as a scalar operation.
    fn cvt_lane(&mut self, t: &Text<'_>, f: LaneFn, c: Ctl, to: Ty, from: &[Ty]) -> Res<()> {
        t.arity(1 + from.len())?;
        let src = self.sources(t, from)?;
        let d = self.dst(&t.args[0], to)?;
        self.lane(f, c, Dst::Reg(d, width(to)), src);
        Ok(())
    }

    fn cvt(&mut self, t: &mut Text<'_>) -> Res<()> {
        let integral = t.pick(INTEGRAL);
        let away = t.take("rna");
        let round = if away { Some(Round::Away) } else { t.round() };
        let (ftz, relu, satfinite, sat) = (t.take("ftz"), t.take("relu"), t.take("satfinite"), t.take("sat"));
        let (to, from) = (t.ty()?, t.ty()?);
        let mut c = Ctl { from, to, ftz, relu, sat: sat || satfinite, ..Ctl::new(to) };
        c.round = integral.or(round).unwrap_or(Round::Near);
        c.integral = integral.is_some();
        match (to, from) {
            (Ty::F16x2 | Ty::BF16x2, Ty::F32) if matches!(round, Some(Round::Near | Round::Zero)) => {
                return self.cvt_lane(t, scalar::cvt_pack, c, to, &[Ty::F32; 2]);
            }
            (Ty::E4M3x2 | Ty::E5M2x2, Ty::F32) if round == Some(Round::Near) && satfinite => {
                return self.cvt_lane(t, scalar::cvt_pack, c, Ty::B16, &[Ty::F32; 2]);
            }
            (Ty::F16x2, Ty::E4M3x2 | Ty::E5M2x2) if round == Some(Round::Near) => {
                return self.cvt_lane(t, scalar::cvt_unpack8, c, to, &[Ty::B16]);
            }
            (Ty::TF32, Ty::F32) => return self.cvt_lane(t, scalar::cvt, c, Ty::B32, &[Ty::F32]),
            (Ty::F16x2 | Ty::BF16x2, Ty::F32) => return t.fail("cvt", "needs .rn or .rz"),
            (Ty::E4M3x2 | Ty::E5M2x2, Ty::F32) => return t.fail("cvt", "needs .rn.satfinite"),
            (Ty::F16x2, Ty::E4M3x2 | Ty::E5M2x2) => return t.fail("cvt", "needs .rn"),
            _ => {}
        }
        let scalar_type = |t: Ty| t.integer() || (t.float() && t != Ty::TF32);
        if !scalar_type(to) || !scalar_type(from) || satfinite && !to.float() {
            return t.fail(format!("{to:?} from {from:?}"), "conversion that is not known");
        }
        if relu && !matches!(to, Ty::F16 | Ty::BF16) {
            return t.fail(".relu", "modifier that this conversion does not have");
        }
        let narrowing = to.bytes() < from.bytes() || to == Ty::BF16;
        let wants = match (from.float(), to.float()) {
            (false, false) => round.is_none() && integral.is_none(),
            (true, false) => integral.is_some(),
            (false, true) => round.is_some() && !away,
            (true, true) if to == from => round.is_none(),
            (true, true) => (round.is_some() || !narrowing) && integral.is_none(),
        };
        if !wants {
            return t.fail("cvt", "rounding modifier is missing, or not one of this conversion");
        }
        t.arity(2)?;
        let (a, aw, source) = self.loose(&t.args[1], from, false)?;
        let (d, dw, have) = self.loose(&t.args[0], to, true)?;
        // The vectorised forms are those without further modifiers, between registers of the types' own sizes (a source
        // may be wider within its slot).
        let exact = have.bytes() == to.bytes() && (source.bytes() == from.bytes() || aw == W::W32 && from.bytes() <= 4);
        match Vector::select(t.opcode, to).filter(|_| exact) {
            Some(op) => self.push(Op::Vector(op, [d, a, 0, 0])),
            None => {
                // A destination wider than the type is extended as the type says.
                let extends = have.bytes() > to.bytes() && to.signed();
                let f: LaneFn = if extends { scalar::cvt_extended } else { scalar::cvt };
                self.lane(f, c, Dst::Reg(d, dw), [(a, aw), (a, aw), (a, aw), (a, aw)]);
            }
        }
        Ok(())
    }
}
