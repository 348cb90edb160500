//! Moves and conversions.

use super::super::ast::{Arg, Num};
use super::super::types::{Space, Ty};
use super::{Decoder, Mods, Res};
use crate::exec::float::Round;
use crate::exec::inst::*;
use crate::exec::scalar;
use crate::memory::{LOCAL_BASE, PARAM_BASE, SHARED_BASE};

/// Where a state space begins in the generic address space; global and constant memory are generic already.
fn window(space: &str) -> Option<u64> {
    Some(match space {
        "shared" | "shared::cta" | "shared::cluster" => SHARED_BASE,
        "local" => LOCAL_BASE,
        "param" | "param::entry" => PARAM_BASE,
        "global" | "const" => 0,
        _ => return None,
    })
}

const SPACES: [&str; 8] =
    ["shared", "shared::cta", "shared::cluster", "local", "param", "param::entry", "global", "const"];

impl Decoder<'_> {
    pub(super) fn convert(&mut self, name: &str, m: &mut Mods, args: &[Arg]) -> Res<bool> {
        match name {
            "mov" => self.mov(m, args)?,
            "cvt" => self.cvt(m, args)?,
            "cvta" => {
                let to = m.take("to");
                let Some(space) = m.one_of(&SPACES) else { return self.fail(name, "needs a state space") };
                self.expect(m, &[Ty::U64])?;
                self.arity(args, 2)?;
                let base = window(space).unwrap_or(0);
                let a = match self.address_of(&args[1])? {
                    Some((_, address)) => self.constant(address, true),
                    None => self.src(&args[1], Ty::U64)?,
                };
                let d = self.dst(&args[0], Ty::U64)?;
                if base == 0 {
                    self.push(Op::Mov64(d, a));
                } else {
                    let b = self.constant(base, true);
                    self.push(Op::Bin64(if to { B64::Sub } else { B64::Add }, d, a, b));
                }
            }
            "isspacep" => {
                let Some(space) = m.one_of(&SPACES) else { return self.fail(name, "needs a state space") };
                let imm = match space {
                    "global" => 0,
                    "local" => 2,
                    "const" => 3,
                    "param" | "param::entry" => 4,
                    _ => 1,
                };
                self.arity(args, 2)?;
                let c = Ctl { imm, ..self.ctl(Ty::U64) };
                let op = self.lane_op(scalar::isspacep, c, &args[1..], &[Ty::U64])?;
                let p = self.pred_dst(&args[0])?;
                self.push(Op::LanePred(Box::new(op), SetpDst { p, q: 0, combine: None }));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The address of a variable named by an operand, in its own space.
    fn address_of(&mut self, arg: &Arg) -> Res<Option<(Space, u64)>> {
        let (name, offset) = match arg {
            Arg::Word(n) => (n, 0),
            Arg::Offset(n, o) => (n, *o),
            _ => return Ok(None),
        };
        let found = self.symbol(name)?;
        if found.is_none() && matches!(arg, Arg::Offset(..)) {
            return self.fail(name, "offset of something that is not a variable");
        }
        Ok(found.map(|(s, a)| (s, a.wrapping_add_signed(offset))))
    }

    fn mov(&mut self, m: &mut Mods, args: &[Arg]) -> Res<()> {
        let ty = m.ty()?;
        self.arity(args, 2)?;
        if let Arg::Vector(parts) = &args[1] {
            return self.pack(ty, &args[0], parts);
        }
        if let Arg::Vector(parts) = &args[0] {
            return self.unpack(ty, parts, &args[1]);
        }
        if ty == Ty::Pred {
            if let Arg::Num(Num::Int(v)) = args[1] {
                let p = self.pred_dst(&args[0])?;
                self.push(Op::PredSet(p, v != 0));
                return Ok(());
            }
            let (a, negated) = self.pred(&args[1])?;
            let d = self.pred_dst(&args[0])?;
            self.push(if negated { Op::PredNot(d, a) } else { Op::MovPred(d, a) });
            return Ok(());
        }
        let a = match self.address_of(&args[1])? {
            Some((_, address)) if matches!(ty.bytes(), 4 | 8) && !ty.float() => {
                if ty.bytes() == 4 && address >> 32 != 0 {
                    return self.fail("mov", "the address needs 64 bits");
                }
                self.constant(address, ty.bytes() == 8)
            }
            _ => self.src(&args[1], ty)?,
        };
        let d = self.dst(&args[0], ty)?;
        match ty.bytes() {
            8 => self.push(Op::Mov64(d, a)),
            2 | 4 => self.push(Op::Mov32(d, a)),
            16 => {
                let (uses, _) = (self.cur.clone(), ());
                self.push(Op::Mov64(d, a));
                self.cur = uses;
                self.push(Op::Mov64(d + 2, a + 2));
            }
            _ => return self.fail(format!("{ty:?}"), "type that this instruction does not have"),
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
    fn pack(&mut self, ty: Ty, d: &Arg, parts: &[Arg]) -> Res<()> {
        let part = self.part(ty, parts.len())?;
        let f: LaneFn = |c, a| {
            let bits = c.imm;
            let each = |i: usize| a[i].checked_shl(bits * i as u32).unwrap_or(0);
            (0..(64 / bits as usize).min(4)).fold(0, |v, i| v | each(i))
                & if c.to.bytes() == 4 { 0xffff_ffff } else { u64::MAX }
        };
        let mut src = [(0, W::W32); 4];
        if ty.bytes() == 16 {
            if parts.len() != 2 {
                return self.fail("mov", "128 bits are packed from two halves");
            }
            let (a, b) = (self.src(&parts[0], Ty::B64)?, self.src(&parts[1], Ty::B64)?);
            let d = self.dst(d, ty)?;
            let uses = self.cur.clone();
            self.push(Op::Mov64(d, a));
            self.cur = uses;
            self.push(Op::Mov64(d + 2, b));
            return Ok(());
        }
        for (slot, arg) in src.iter_mut().zip(parts) {
            let (r, w, have) = self.loose(arg, part, false)?;
            if have.bytes() != part.bytes() {
                return self.fail(format!("{have:?}"), format!("a part of {} bytes is needed", part.bytes()));
            }
            *slot = (r, w);
        }
        let d = self.dst(d, ty)?;
        if ty.bytes() == 8 && parts.len() == 2 {
            self.push(Op::Join(d, src[0].0, src[1].0));
            return Ok(());
        }
        let n = parts.len() as u8;
        let dw = if ty.bytes() == 8 { W::W64 } else { W::W32 };
        let ctl = Ctl { imm: part.bits(), ..self.ctl(ty) };
        self.push(Op::Lane(Box::new(LaneOp { f, ctl, d, dw, src, n, approximate: false })));
        Ok(())
    }

    /// `mov.b64 {d, e}, a`
    fn unpack(&mut self, ty: Ty, parts: &[Arg], a: &Arg) -> Res<()> {
        let part = self.part(ty, parts.len())?;
        let f: LaneFn = |c, a| a[0] >> c.imm & ((1u64 << c.to.bits()) - 1);
        let src = self.src(a, ty)?;
        let reads = self.cur.reads.clone();
        // The source may be one of the destinations only as the last to be written; a copy avoids the question.
        let copy = self.temp(ty);
        self.writes(copy, ty);
        match ty.bytes() {
            4 | 2 => self.push(Op::Mov32(copy, src)),
            8 => self.push(Op::Mov64(copy, src)),
            _ => {
                self.push(Op::Mov64(copy, src));
                self.cur.reads = reads;
                self.push(Op::Mov64(copy + 2, src + 2));
            }
        }
        for (i, arg) in parts.iter().enumerate() {
            if matches!(arg, Arg::Word(w) if w == "_") {
                continue;
            }
            self.reads(copy, ty);
            let d = self.dst(arg, part)?;
            match (ty.bytes(), part.bytes()) {
                (16, 8) => self.push(Op::Mov64(d, copy + 2 * i as u32)),
                (8, 4) => self.push(Op::Half(i == 1, d, copy)),
                _ => {
                    let w = if ty.bytes() == 8 { W::W64 } else { W::W32 };
                    let ctl = Ctl { imm: part.bits() * i as u32, ..self.ctl(part) };
                    let src = [(copy, w), (0, W::W32), (0, W::W32), (0, W::W32)];
                    self.push(Op::Lane(Box::new(LaneOp { f, ctl, d, dw: W::W32, src, n: 1, approximate: false })));
                }
            }
        }
        Ok(())
    }

    fn cvt(&mut self, m: &mut Mods, args: &[Arg]) -> Res<()> {
        if m.take("pack") {
            if !m.take("sat") {
                return self.fail("cvt.pack", "needs .sat");
            }
            let to = self.expect(m, &[Ty::U16, Ty::S16, Ty::U8, Ty::S8])?;
            self.expect(m, &[Ty::S32])?;
            let c = self.ctl(to);
            if to.bits() == 8 {
                self.expect(m, &[Ty::B32])?;
                return self.lane(scalar::cvt_pack_sat, c, args, Ty::B32, &[Ty::S32, Ty::S32, Ty::B32]);
            }
            return self.lane(scalar::cvt_pack_sat, c, args, Ty::B32, &[Ty::S32, Ty::S32]);
        }
        let integral = [("rni", Round::Near), ("rzi", Round::Zero), ("rmi", Round::Down), ("rpi", Round::Up)];
        let integral = integral.into_iter().find(|(n, _)| m.take(n)).map(|(_, r)| r);
        let away = m.take("rna");
        let round = if away { Some(Round::Away) } else { m.round() };
        let (ftz, relu) = (m.take("ftz"), m.take("relu"));
        let satfinite = m.take("satfinite");
        let sat = m.take("sat");
        let (to, from) = (m.ty()?, m.ty()?);
        let c = Ctl {
            from,
            to,
            round: integral.or(round).unwrap_or(Round::Near),
            ftz,
            sat: sat || satfinite,
            relu,
            nan: false,
            imm: u32::from(integral.is_some()),
        };
        match (to, from) {
            (Ty::F16x2 | Ty::BF16x2, Ty::F32) => {
                if !matches!(round, Some(Round::Near | Round::Zero)) {
                    return self.fail("cvt", "needs .rn or .rz");
                }
                return self.lane(scalar::cvt_pack, c, args, to, &[Ty::F32, Ty::F32]);
            }
            (Ty::E4M3x2 | Ty::E5M2x2, Ty::F32) => {
                if round != Some(Round::Near) || !satfinite {
                    return self.fail("cvt", "needs .rn.satfinite");
                }
                return self.lane(scalar::cvt_pack, c, args, Ty::B16, &[Ty::F32, Ty::F32]);
            }
            (Ty::F16x2, Ty::E4M3x2 | Ty::E5M2x2) => {
                if round != Some(Round::Near) {
                    return self.fail("cvt", "needs .rn");
                }
                return self.lane(scalar::cvt_unpack8, c, args, Ty::F16x2, &[Ty::B16]);
            }
            (Ty::TF32, Ty::F32) => return self.lane(scalar::cvt, c, args, Ty::B32, &[Ty::F32]),
            _ => {}
        }
        let scalar_type = |t: Ty| t.integer() || (t.float() && t != Ty::TF32);
        if !scalar_type(to) || !scalar_type(from) || satfinite && !to.float() {
            return self.fail(format!("{to:?} from {from:?}"), "conversion that is not known");
        }
        if relu && !matches!(to, Ty::F16 | Ty::BF16) {
            return self.fail(".relu", "modifier that this conversion does not have");
        }
        let (narrowing, same) = (to.bytes() < from.bytes() || to == Ty::BF16, to == from);
        let wants = match (from.float(), to.float()) {
            (false, false) => round.is_none() && integral.is_none(),
            (true, false) => integral.is_some(),
            (false, true) => round.is_some() && !away,
            (true, true) if same => round.is_none(),
            (true, true) => (round.is_some() || !narrowing) && integral.is_none(),
        };
        if !wants {
            return self.fail("cvt", "rounding modifier is missing, or not one of this conversion");
        }
        self.arity(args, 2)?;
        let (a, aw, _) = self.loose(&args[1], from, false)?;
        let (d, dw, have) = self.loose(&args[0], to, true)?;
        let plain = !c.sat && !ftz && !relu && have.bytes() <= 4 && aw == W::W32;
        let exact = have.bytes() == to.bytes();
        let fast = match (to, from, c.round) {
            (Ty::F32, Ty::S32, Round::Near) if exact => Some(U32::FromSigned),
            (Ty::F32, Ty::U32, Round::Near) if exact => Some(U32::FromUnsigned),
            (Ty::S32, Ty::F32, Round::Zero) if exact => Some(U32::ToSigned),
            (Ty::F32, Ty::F16, _) if exact => Some(U32::FromF16),
            (Ty::F16, Ty::F32, Round::Near) if exact => Some(U32::ToF16),
            (Ty::F32, Ty::BF16, _) if exact => Some(U32::FromBf16),
            (Ty::U32 | Ty::S32, Ty::U8, _) if exact => Some(U32::Low8),
            (Ty::U32 | Ty::S32, Ty::S8, _) if exact => Some(U32::Ext8),
            (Ty::U32 | Ty::S32, Ty::U16, _) if exact => Some(U32::Low16),
            (Ty::U32 | Ty::S32, Ty::S16, _) if exact => Some(U32::Ext16),
            (Ty::U16, Ty::U32 | Ty::S32 | Ty::U16 | Ty::S16, _) if exact => Some(U32::Low16),
            _ => None,
        };
        match (fast, to, from) {
            (Some(op), ..) if plain => self.push(Op::Un32(op, d, a)),
            (_, Ty::U64 | Ty::S64, Ty::U32 | Ty::S32) if !c.sat && aw == W::W32 && dw == W::W64 => {
                self.push(Op::Extend(from.signed(), d, a));
            }
            (_, Ty::U32 | Ty::S32, Ty::U64 | Ty::S64) if !c.sat && aw == W::W64 && dw == W::W32 => {
                self.push(Op::Half(false, d, a));
            }
            _ => {
                // A destination wider than the type is extended as the type says.
                let (f, ctl): (LaneFn, Ctl) = if have.bytes() > to.bytes() && to.signed() {
                    let imm = c.imm | have.bits() << 8;
                    (
                        |c, a| {
                            let inner = Ctl { imm: c.imm & 0xff, ..*c };
                            let v = scalar::extend(c.to, scalar::cvt(&inner, a)) as u64;
                            if c.imm >> 8 == 64 { v } else { v & ((1 << (c.imm >> 8)) - 1) }
                        },
                        Ctl { imm, ..c },
                    )
                } else {
                    (scalar::cvt, c)
                };
                let src = [(a, aw), (0, W::W32), (0, W::W32), (0, W::W32)];
                self.push(Op::Lane(Box::new(LaneOp { f, ctl, d, dw, src, n: 1, approximate: false })));
            }
        }
        Ok(())
    }
}
