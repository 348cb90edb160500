//! Moves and conversions.

use super::super::ast::Arg;
use super::super::types::{Space, Ty};
use super::operands::width;
use super::{Decoder, Res, Text};
use crate::exec::fault::FaultKind;
use crate::exec::float::Round;
use crate::exec::inst::*;
use crate::exec::lanes::Lanes;
use crate::exec::scalar::{self, in_space};
use crate::exec::special::special;
use crate::exec::step::Next;
use crate::exec::values::VALUES;
use crate::memory::{LOCAL_BASE, PARAM_BASE, SHARED_BASE};

/// Rounding modes, and those that give integral values.
const ROUND: &[(&str, Round)] =
    &[("rn", Round::Near), ("rna", Round::Away), ("rz", Round::Zero), ("rm", Round::Down), ("rp", Round::Up)];
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
                let types = [Ty::B32, Ty::S32, Ty::S32, Ty::B32];
                self.cvt_lane(t, scalar::cvt_pack_sat, Ctl::new(from), &types[..3 + usize::from(bytes)])?;
            }
            "cvt" => self.cvt(t)?,
            "cvta" => {
                let to = t.take("to");
                let base = match self.space(t) {
                    Space::Generic => return t.fail(t.name, "needs a state space"),
                    Space::Global | Space::Const => 0,
                    Space::Shared => SHARED_BASE,
                    Space::Local => LOCAL_BASE,
                    Space::Param => PARAM_BASE,
                };
                t.form(&[Ty::U64], 2)?;
                let a = match self.address_of(&t.args[1])? {
                    Some(address) => self.constant(address, true),
                    None => self.src(&t.args[1], Ty::U64)?,
                };
                let b = self.constant(base, true);
                let d = self.dst(&t.args[0], Ty::U64)?;
                self.values(if to { "sub" } else { "add" }, Ty::U64, [d, a, b]);
            }
            // Clusters have one block, of rank 0: its own shared memory is what it sees.
            "mapa" | "getctarank" => {
                let maps = t.name == "mapa";
                t.skip("shared::cluster");
                let ty = t.form(&[Ty::U32, Ty::U64], if maps { 3 } else { 2 })?;
                let a = match self.address_of(&t.args[1])? {
                    Some(address) => self.constant(address, ty == Ty::U64),
                    None => self.src(&t.args[1], ty)?,
                };
                let rank = if maps { self.src(&t.args[2], Ty::U32)? } else { self.constant(0, false) };
                let d = self.dst(&t.args[0], if maps { ty } else { Ty::U32 })?;
                self.effect(move |cpu, site| {
                    let other = Lanes(site.m).find(|&l| site.warp.lane32(cpu.cx.code, rank, l) != 0);
                    if let Some(l) = other {
                        let message = "the rank of a block that the cluster does not have: clusters here have one";
                        return Err(cpu.fault(FaultKind::IllegalInstruction, &site.at, Some(l), message));
                    }
                    for l in Lanes(site.m) {
                        let v = site.warp.lane(cpu.cx.code, (a, width(ty)), l);
                        site.warp.set_lane(d, width(ty), l, if maps { v } else { 0 });
                    }
                    Ok(Next::Step)
                });
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
                let src = self.sources(t, &[Ty::Pred, Ty::U64])?;
                let p = self.dst(&t.args[0], Ty::Pred)?;
                self.lane(f, Ctl::new(Ty::U64), (p, W::Pred), src);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Pushes an operation of `exec::values`.
    pub(super) fn values(&mut self, name: &str, ty: Ty, [d, a, b]: [R; 3]) {
        if let Some(value) = VALUES.get(&(name, ty)) {
            self.push(Op::Value(value.run, [d, a, b, 0, 0]));
        }
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
        let [d, a] = t.args else { return t.arity(2) };
        if !matches!(ty.bytes(), 2 | 4 | 8 | 16) {
            return t.wrong(ty);
        }
        match (d, a) {
            (_, Arg::Vector(parts)) => return self.pack(t, ty, d, parts),
            (Arg::Vector(parts), _) => return self.unpack(ty, parts, a),
            (_, Arg::Word(name)) if ty.bytes() <= 8 && !ty.float() && self.named(name).is_none() => {
                if let Some(s) = special(name) {
                    let d = self.dst(d, ty)?;
                    self.special_into(s, d, width(ty));
                    return Ok(());
                }
            }
            _ => {}
        }
        let a = match self.address_of(a)? {
            Some(address) if ty.bytes() == 8 && !ty.float() => self.constant(address, true),
            Some(address) if ty.bytes() == 4 && !ty.float() && address >> 32 == 0 => self.constant(address, false),
            Some(_) => return t.fail(t.opcode, "the address does not fit the type"),
            None => self.src(a, ty)?,
        };
        let d = self.dst(d, ty)?;
        self.copy(ty, d, a);
        Ok(())
    }

    /// Moves a value of 2 to 16 bytes.
    pub(super) fn copy(&mut self, ty: Ty, d: R, a: R) {
        let uses = self.cur.clone();
        let part = if ty.bytes() >= 8 { Ty::B64 } else { Ty::B32 };
        self.values("mov", part, [d, a, 0]);
        if ty.bytes() == 16 {
            self.cur = uses;
            self.values("mov", part, [d + 2, a + 2, 0]);
        }
    }

    /// The type of one of `n` parts.
    fn part(&self, ty: Ty, n: usize) -> Res<Ty> {
        match (ty.bytes() as usize).checked_div(n).filter(|bytes| bytes * n == ty.bytes() as usize) {
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
        let [a, b] = [src[0].0, src[1].0];
        match (ty.bytes(), parts.len()) {
            (16, _) => {
                let uses = self.cur.clone();
                self.values("mov", Ty::B64, [d, a, 0]);
                self.cur = uses;
                self.values("mov", Ty::B64, [d + 2, b, 0]);
            }
            (8, 2) => self.values("halves", Ty::U64, [d, a, b]),
            _ => {
                let f: LaneFn = |c, a| a.iter().rev().fold(0, |v, part| (v << (c.from.bits() % 64)) | part);
                self.lane(f, Ctl { from: part, ..Ctl::new(ty) }, (d, width(ty)), src);
            }
        }
        Ok(())
    }

    /// `mov.b64 {d, e}, a`
    fn unpack(&mut self, ty: Ty, parts: &[Arg], a: &Arg) -> Res<()> {
        let part = self.part(ty, parts.len())?;
        let src = self.src(a, ty)?;
        // The source may be one of the destinations only as the last to be written; a copy avoids the question.
        let temp = self.temp(ty);
        let copy = self.write(temp);
        self.copy(ty, copy, src);
        for (i, arg) in parts.iter().enumerate().filter(|(_, arg)| !matches!(arg, Arg::Word(w) if w == "_")) {
            self.read(temp);
            let shift = self.constant(u64::from(part.bits()) * i as u64, false);
            let d = self.dst(arg, part)?;
            match (ty.bytes(), part.bytes()) {
                (16, 8) => self.values("mov", Ty::B64, [d, copy + 2 * i as u32, 0]),
                (8, 4) if i == 1 => self.values("upper half", Ty::U32, [d, copy, 0]),
                (8, 4) => self.values("cvt.u32.u64", Ty::U32, [d, copy, 0]),
                _ => {
                    let f: LaneFn = |c, a| scalar::trunc(c.to, a[0] >> (a[1] & 63));
                    let src = [(copy, width(ty)), (shift, W::W32), (shift, W::W32), (shift, W::W32)];
                    self.lane(f, Ctl::new(part), (d, W::W32), src);
                }
            }
        }
        Ok(())
    }

    /// A conversion as a scalar operation: the types of its operands.
    fn cvt_lane(&mut self, t: &Text<'_>, f: LaneFn, c: Ctl, types: &[Ty]) -> Res<()> {
        let src = self.sources(t, types)?;
        let d = self.dst(&t.args[0], types[0])?;
        self.lane(f, c, (d, width(types[0])), src);
        Ok(())
    }

    fn cvt(&mut self, t: &mut Text<'_>) -> Res<()> {
        let (integral, round) = (t.pick(INTEGRAL), t.pick(ROUND));
        let away = round == Some(Round::Away);
        let (ftz, relu, satfinite, sat) = (t.take("ftz"), t.take("relu"), t.take("satfinite"), t.take("sat"));
        let (to, from) = (t.ty()?, t.ty()?);
        let mut c = Ctl { from, to, ftz, relu, sat: sat || satfinite, ..Ctl::new(to) };
        c.round = integral.or(round).unwrap_or(Round::Near);
        c.integral = integral.is_some();
        let near = round == Some(Round::Near);
        match (to, from) {
            (Ty::F16x2 | Ty::BF16x2, Ty::F32) if near || round == Some(Round::Zero) => {
                return self.cvt_lane(t, scalar::cvt_pack, c, &[to, Ty::F32, Ty::F32]);
            }
            (Ty::E4M3x2 | Ty::E5M2x2, Ty::F32) if near && satfinite => {
                return self.cvt_lane(t, scalar::cvt_pack, c, &[Ty::B16, Ty::F32, Ty::F32]);
            }
            (Ty::F16x2, Ty::E4M3x2 | Ty::E5M2x2) if near => {
                return self.cvt_lane(t, scalar::cvt_unpack8, c, &[to, Ty::B16]);
            }
            (Ty::TF32, Ty::F32) => return self.cvt_lane(t, scalar::cvt, c, &[Ty::B32, Ty::F32]),
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
            (true, false) => integral.is_some() && round.is_none(),
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
        if exact && VALUES.contains_key(&(t.opcode, to)) {
            self.values(t.opcode, to, [d, a, 0]);
            return Ok(());
        }
        // A destination wider than the type is extended as the type says.
        let extends = have.bytes() > to.bytes() && to.signed();
        let f: LaneFn = if extends { |c, a| scalar::extend(c.to, scalar::cvt(c, a)) as u64 } else { scalar::cvt };
        self.lane(f, c, (d, dw), [(a, aw); 4]);
        Ok(())
    }
}
