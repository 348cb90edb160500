//! Arithmetic, logic, comparison and selection.

use super::super::ast::Arg;
use super::super::types::Ty;
use super::{Decoder, Mods, Res};
use crate::exec::float::Round;
use crate::exec::inst::*;
use crate::exec::scalar::{self, IntOp};

impl Decoder<'_> {
    pub(super) fn arith(&mut self, name: &str, m: &mut Mods, args: &[Arg]) -> Res<bool> {
        match name {
            "add" | "sub" | "mul" if self.is_float(m) => self.float2(name, m, args)?,
            "add" | "sub" => self.add_sub(name == "sub", m, args)?,
            "addc" | "subc" => self.carry(name == "subc", true, m, args)?,
            "mul" => self.mul(m, args)?,
            "mad" | "fma" if self.is_float(m) => self.fma(m, args)?,
            "mad" => self.mad(m, args)?,
            "madc" => self.mad_carry(true, m, args)?,
            "mul24" | "mad24" => {
                let hi = m.take("hi");
                if !hi && !m.take("lo") {
                    return self.fail(name, "needs .hi or .lo");
                }
                let ty = self.int32(m)?;
                let c = Ctl { imm: u32::from(hi), ..self.ctl(ty) };
                let sources = if name == "mul24" { &[ty; 2][..] } else { &[ty; 3] };
                self.lane(scalar::mul24, c, args, ty, sources)?;
            }
            "div" => self.div(m, args)?,
            "rem" => {
                let ty = self.int_type(m)?;
                self.lane(scalar::int(IntOp::Rem), self.ctl(ty), args, ty, &[ty; 2])?;
            }
            "neg" | "abs" => self.neg_abs(name == "neg", m, args)?,
            "min" | "max" => self.min_max(name == "max", m, args)?,
            "and" | "or" | "xor" => self.logic(name, m, args)?,
            "not" => {
                let ty = m.ty()?;
                if ty == Ty::Pred {
                    self.arity(args, 2)?;
                    let (a, negated) = self.pred(&args[1])?;
                    let d = self.pred_dst(&args[0])?;
                    self.push(if negated { Op::MovPred(d, a) } else { Op::PredNot(d, a) });
                } else if ty == Ty::B32 {
                    self.un32(U32::Not, args, ty, ty)?;
                } else {
                    self.bits_only(ty)?;
                    self.lane(scalar::not, self.ctl(ty), args, ty, &[ty])?;
                }
            }
            "cnot" => {
                let ty = m.ty()?;
                self.bits_only(ty)?;
                self.lane(scalar::cnot, self.ctl(ty), args, ty, &[ty])?;
            }
            "lop3" => self.lop3(m, args)?,
            "shl" | "shr" => self.shift(name == "shl", m, args)?,
            "shf" => {
                let left = m.take("l");
                if !left && !m.take("r") {
                    return self.fail(name, "needs .l or .r");
                }
                let wrap = m.take("wrap");
                if !wrap && !m.take("clamp") {
                    return self.fail(name, "needs .wrap or .clamp");
                }
                self.expect(m, &[Ty::B32])?;
                if wrap {
                    self.tern32(if left { T32::Shfl } else { T32::Shfr }, args, Ty::B32, Ty::U32)?;
                } else {
                    let c = Ctl { imm: u32::from(left), ..self.ctl(Ty::B32) };
                    let f: LaneFn = |c, a| {
                        let n = a[2].min(32) as u32;
                        let both = a[1] << 32 | a[0];
                        (if c.imm == 1 { (u128::from(both) << n >> 32) as u64 } else { both >> n }) & 0xffff_ffff
                    };
                    self.lane(f, c, args, Ty::B32, &[Ty::B32, Ty::B32, Ty::U32])?;
                }
            }
            "bfe" => {
                let ty = self.expect(m, &[Ty::U32, Ty::S32, Ty::U64, Ty::S64])?;
                if ty == Ty::U32 {
                    self.tern32_mixed(T32::BfeU, args)?;
                } else {
                    self.lane(scalar::bfe, self.ctl(ty), args, ty, &[ty, Ty::U32, Ty::U32])?;
                }
            }
            "bfi" => {
                let ty = self.expect(m, &[Ty::B32, Ty::B64])?;
                self.lane(scalar::bfi, self.ctl(ty), args, ty, &[ty, ty, Ty::U32, Ty::U32])?;
            }
            "bfind" => {
                let shift = m.take("shiftamt");
                let ty = self.expect(m, &[Ty::U32, Ty::S32, Ty::U64, Ty::S64])?;
                self.lane(scalar::bfind, Ctl { imm: u32::from(shift), ..self.ctl(ty) }, args, Ty::U32, &[ty])?;
            }
            "brev" => {
                let ty = self.expect(m, &[Ty::B32, Ty::B64])?;
                self.lane(scalar::brev, self.ctl(ty), args, ty, &[ty])?;
            }
            "popc" => {
                let ty = self.expect(m, &[Ty::B32, Ty::B64])?;
                if ty == Ty::B32 {
                    self.un32(U32::Popc, args, Ty::U32, ty)?;
                } else {
                    self.lane(scalar::popc, self.ctl(ty), args, Ty::U32, &[ty])?;
                }
            }
            "clz" => {
                let ty = self.expect(m, &[Ty::B32, Ty::B64])?;
                self.lane(scalar::clz, self.ctl(ty), args, Ty::U32, &[ty])?;
            }
            "fns" => {
                self.expect(m, &[Ty::B32])?;
                self.lane(scalar::fns, self.ctl(Ty::B32), args, Ty::B32, &[Ty::B32, Ty::B32, Ty::S32])?;
            }
            "bmsk" | "szext" => {
                let wrap = m.take("wrap");
                if !wrap && !m.take("clamp") {
                    return self.fail(name, "needs .wrap or .clamp");
                }
                let ty = self.expect(m, &[Ty::B32, Ty::U32, Ty::S32])?;
                let f = if name == "bmsk" { scalar::bmsk } else { scalar::szext };
                self.lane(f, Ctl { imm: u32::from(wrap), ..self.ctl(ty) }, args, ty, &[ty, Ty::U32])?;
            }
            "prmt" => {
                self.expect(m, &[Ty::B32])?;
                match m.one_of(&["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"]) {
                    None => self.tern32(T32::Prmt, args, Ty::B32, Ty::U32)?,
                    Some(mode) => {
                        let modes = ["", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"];
                        let imm = modes.iter().position(|x| *x == mode).unwrap_or(0) as u32;
                        let c = Ctl { imm, ..self.ctl(Ty::B32) };
                        self.lane(scalar::prmt_mode, c, args, Ty::B32, &[Ty::B32, Ty::B32, Ty::U32])?;
                    }
                }
            }
            "sad" => {
                let ty = self.int_type(m)?;
                let unsigned = match ty {
                    Ty::S16 => Ty::U16,
                    Ty::S32 => Ty::U32,
                    Ty::S64 => Ty::U64,
                    t => t,
                };
                self.lane(scalar::int(IntOp::Sad), self.ctl(ty), args, unsigned, &[ty, ty, unsigned])?;
            }
            "dp4a" => {
                let (a, b) = (m.ty()?, m.ty()?);
                let op = match (a, b) {
                    (Ty::S32, Ty::S32) => T32::Dp4aSS,
                    (Ty::U32, Ty::U32) => T32::Dp4aUU,
                    (Ty::S32, Ty::U32) => T32::Dp4aSU,
                    (Ty::U32, Ty::S32) => T32::Dp4aUS,
                    _ => return self.fail(name, "types are .s32 or .u32"),
                };
                self.tern32(op, args, Ty::B32, Ty::B32)?;
            }
            "dp2a" => {
                let hi = m.take("hi");
                if !hi && !m.take("lo") {
                    return self.fail(name, "needs .hi or .lo");
                }
                let (a, b) = (self.int32(m)?, self.int32(m)?);
                let imm = u32::from(hi) | u32::from(a.signed()) << 1 | u32::from(b.signed()) << 2;
                self.lane(scalar::dp2a, Ctl { imm, ..self.ctl(Ty::B32) }, args, Ty::B32, &[Ty::B32; 3])?;
            }
            "setp" | "set" => self.compare(name == "setp", m, args)?,
            "selp" => self.selp(m, args)?,
            "slct" => {
                let ftz = m.take("ftz");
                let (ty, sel) = (m.ty()?, m.ty()?);
                if !matches!(sel, Ty::S32 | Ty::F32) || ty.bytes() < 2 {
                    return self.fail(name, "selector is .s32 or .f32");
                }
                let c = Ctl { imm: u32::from(sel == Ty::F32), ftz, ..self.ctl(ty) };
                self.lane(scalar::slct, c, args, ty, &[ty, ty, sel])?;
            }
            "testp" => {
                let list = ["finite", "infinite", "number", "notanumber", "normal", "subnormal"];
                let Some(kind) = m.one_of(&list) else { return self.fail(name, "property that is not known") };
                let ty = self.expect(m, &[Ty::F32, Ty::F64])?;
                let imm = list.iter().position(|x| *x == kind).unwrap_or(0) as u32;
                self.arity(args, 2)?;
                let op = self.lane_op(scalar::testp, Ctl { imm, ..self.ctl(ty) }, &args[1..], &[ty])?;
                let p = self.pred_dst(&args[0])?;
                self.push(Op::LanePred(Box::new(op), SetpDst { p, q: 0, combine: None }));
            }
            "copysign" => {
                let ty = self.expect(m, &[Ty::F32, Ty::F64])?;
                self.lane(scalar::copysign, self.ctl(ty), args, ty, &[ty; 2])?;
            }
            "rcp" | "sqrt" => {
                let approx = m.take("approx");
                let (round, ftz) = (m.round(), m.take("ftz"));
                let ty = self.expect(m, &[Ty::F32, Ty::F64])?;
                if approx == round.is_some() {
                    return self.fail(name, "needs either .approx or a rounding mode");
                }
                let c = Ctl { ftz, round: round.unwrap_or(Round::Near), ..self.ctl(ty) };
                match (approx, name) {
                    (true, "rcp") if ty == Ty::F64 => self.rcp_approx_f64(c, args)?,
                    (true, "rcp") => self.approximate(scalar::rcp_approx, c, args, 1)?,
                    (true, _) => self.approximate(scalar::sqrt_approx, c, args, 1)?,
                    (false, "rcp") if ty == Ty::F32 && !ftz && c.round == Round::Near => {
                        self.un32(U32::RcpF, args, ty, ty)?;
                    }
                    (false, "rcp") => self.lane(scalar::frcp, c, args, ty, &[ty])?,
                    (false, _) if ty == Ty::F32 && !ftz && c.round == Round::Near => {
                        self.un32(U32::SqrtF, args, ty, ty)?;
                    }
                    (false, _) => self.lane(scalar::fsqrt, c, args, ty, &[ty])?,
                }
            }
            "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" => self.transcendental(name, m, args)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn is_float(&self, m: &Mods) -> bool {
        let ty = m.parts.iter().find_map(|p| Ty::parse(p));
        ty.is_some_and(|t| t.float() || matches!(t, Ty::F16x2 | Ty::BF16x2 | Ty::F32x2))
    }

    /// The type, which must be one of a list.
    pub(super) fn expect(&self, m: &mut Mods, list: &[Ty]) -> Res<Ty> {
        let ty = m.ty()?;
        if list.contains(&ty) {
            Ok(ty)
        } else {
            self.fail(format!("{ty:?}"), "type that this instruction does not have")
        }
    }

    fn int_type(&self, m: &mut Mods) -> Res<Ty> {
        self.expect(m, &[Ty::U16, Ty::U32, Ty::U64, Ty::S16, Ty::S32, Ty::S64])
    }

    fn int32(&self, m: &mut Mods) -> Res<Ty> {
        self.expect(m, &[Ty::U32, Ty::S32])
    }

    fn bits_only(&self, ty: Ty) -> Res<()> {
        if matches!(ty, Ty::B16 | Ty::B32 | Ty::B64) {
            Ok(())
        } else {
            self.fail(format!("{ty:?}"), "type that this instruction does not have")
        }
    }

    fn add_sub(&mut self, sub: bool, m: &mut Mods, args: &[Arg]) -> Res<()> {
        if m.take("cc") {
            return self.carry_with(sub, false, true, m, args);
        }
        let sat = m.take("sat");
        let ty = m.ty()?;
        match ty {
            Ty::U32 | Ty::S32 if !sat => self.bin32(if sub { B32::Sub } else { B32::Add }, args, ty, ty),
            Ty::U64 | Ty::S64 if !sat => self.bin64(if sub { B64::Sub } else { B64::Add }, args, ty),
            Ty::S32 | Ty::U16 | Ty::S16 | Ty::U16x2 | Ty::S16x2 if !sat || ty == Ty::S32 => {
                let f = scalar::int(if sub { IntOp::Sub } else { IntOp::Add });
                self.lane(f, Ctl { sat, ..self.ctl(ty) }, args, ty, &[ty; 2])
            }
            _ => self.fail(format!("{ty:?}"), "type that this instruction does not have"),
        }
    }

    fn carry(&mut self, sub: bool, carry_in: bool, m: &mut Mods, args: &[Arg]) -> Res<()> {
        let out = m.take("cc");
        self.carry_with(sub, carry_in, out, m, args)
    }

    fn carry_with(&mut self, sub: bool, carry_in: bool, carry_out: bool, m: &mut Mods, args: &[Arg]) -> Res<()> {
        let ty = self.expect(m, &[Ty::U32, Ty::S32, Ty::U64, Ty::S64])?;
        self.arity(args, 3)?;
        let (a, b) = (self.src(&args[1], ty)?, self.src(&args[2], ty)?);
        let d = self.dst(&args[0], ty)?;
        self.push(Op::Carry(Box::new(CarryOp {
            d,
            a,
            b,
            wide: ty.bytes() == 8,
            subtract: sub,
            carry_in,
            carry_out,
            cc: 1,
        })));
        Ok(())
    }

    /// `mad.cc`, `madc`: the product first, then an addition with carry.
    fn mad_carry(&mut self, carry_in: bool, m: &mut Mods, args: &[Arg]) -> Res<()> {
        let carry_out = m.take("cc");
        let hi = m.take("hi");
        if !hi && !m.take("lo") {
            return self.fail("mad", "needs .hi or .lo");
        }
        let ty = self.expect(m, &[Ty::U32, Ty::S32, Ty::U64, Ty::S64])?;
        self.arity(args, 4)?;
        let op = self.lane_op(
            scalar::int(if hi { IntOp::MulHi } else { IntOp::Mul }),
            self.ctl(ty),
            &args[1..3],
            &[ty, ty],
        )?;
        let t = self.temp(ty);
        self.writes(t, ty);
        let w = if ty.bytes() == 8 { W::W64 } else { W::W32 };
        self.push(Op::Lane(Box::new(LaneOp { d: t, dw: w, ..op })));
        self.reads(t, ty);
        let b = self.src(&args[3], ty)?;
        let d = self.dst(&args[0], ty)?;
        let wide = ty.bytes() == 8;
        self.push(Op::Carry(Box::new(CarryOp { d, a: t, b, wide, subtract: false, carry_in, carry_out, cc: 1 })));
        Ok(())
    }

    fn mul(&mut self, m: &mut Mods, args: &[Arg]) -> Res<()> {
        let Some(part) = m.one_of(&["lo", "hi", "wide"]) else { return self.fail("mul", "needs .lo, .hi or .wide") };
        let ty = self.int_type(m)?;
        match (part, ty) {
            ("lo", Ty::U32 | Ty::S32) => self.bin32(B32::Mul, args, ty, ty),
            ("lo", Ty::U64 | Ty::S64) => self.bin64(B64::Mul, args, ty),
            ("hi", Ty::U32) => self.bin32(B32::MulHiU, args, ty, ty),
            ("hi", Ty::S32) => self.bin32(B32::MulHiS, args, ty, ty),
            ("lo", _) => self.lane(scalar::int(IntOp::Mul), self.ctl(ty), args, ty, &[ty; 2]),
            ("hi", _) => self.lane(scalar::int(IntOp::MulHi), self.ctl(ty), args, ty, &[ty; 2]),
            (_, Ty::U32 | Ty::S32) => {
                self.arity(args, 3)?;
                let (a, b) = (self.src(&args[1], ty)?, self.src(&args[2], ty)?);
                let d = self.dst(&args[0], self.wider(ty)?)?;
                self.push(Op::MulWide(ty.signed(), d, a, b));
                Ok(())
            }
            _ => {
                let to = self.wider(ty)?;
                let c = Ctl { to, ..self.ctl(ty) };
                let f: LaneFn = |c, a| scalar::int(IntOp::MulWide)(c, a) & 0xffff_ffff;
                self.lane(f, c, args, to, &[ty; 2])
            }
        }
    }

    fn wider(&self, ty: Ty) -> Res<Ty> {
        Ok(match ty {
            Ty::U16 => Ty::U32,
            Ty::S16 => Ty::S32,
            Ty::U32 => Ty::U64,
            Ty::S32 => Ty::S64,
            _ => return self.fail(format!("{ty:?}"), ".wide takes 16- and 32-bit types"),
        })
    }

    fn mad(&mut self, m: &mut Mods, args: &[Arg]) -> Res<()> {
        if m.parts.contains(&"cc") {
            return self.mad_carry(false, m, args);
        }
        let Some(part) = m.one_of(&["lo", "hi", "wide"]) else { return self.fail("mad", "needs .lo, .hi or .wide") };
        let sat = m.take("sat");
        let ty = self.int_type(m)?;
        if sat && (part != "hi" || ty != Ty::S32) {
            return self.fail(".sat", "only .hi.s32 saturates");
        }
        match (part, ty) {
            ("lo", Ty::U32 | Ty::S32) => self.tern32(T32::Mad, args, ty, ty),
            ("lo", Ty::U64 | Ty::S64) => {
                self.arity(args, 4)?;
                let (a, b, c) = (self.src(&args[1], ty)?, self.src(&args[2], ty)?, self.src(&args[3], ty)?);
                let d = self.dst(&args[0], ty)?;
                self.push(Op::Mad64(d, a, b, c));
                Ok(())
            }
            ("lo", _) => self.lane(scalar::int(IntOp::MadLo), self.ctl(ty), args, ty, &[ty; 3]),
            ("hi", _) => self.lane(scalar::int(IntOp::MadHi), Ctl { sat, ..self.ctl(ty) }, args, ty, &[ty; 3]),
            (_, Ty::U32 | Ty::S32) => {
                self.arity(args, 4)?;
                let to = self.wider(ty)?;
                let (a, b, c) = (self.src(&args[1], ty)?, self.src(&args[2], ty)?, self.src(&args[3], to)?);
                let d = self.dst(&args[0], to)?;
                self.push(Op::MadWide(ty.signed(), d, a, b, c));
                Ok(())
            }
            _ => {
                let to = self.wider(ty)?;
                let f: LaneFn = |c, a| scalar::int(IntOp::MadWide)(c, a) & 0xffff_ffff;
                self.lane(f, Ctl { to, ..self.ctl(ty) }, args, to, &[ty, ty, to])
            }
        }
    }

    /// Float modifiers: rounding, `.ftz`, `.sat`.
    fn float_ctl(&mut self, m: &mut Mods) -> Res<(Ctl, bool)> {
        let round = m.round();
        let (ftz, sat, relu) = (m.take("ftz"), m.take("sat"), m.take("relu"));
        let ty = m.ty()?;
        let f32s = matches!(ty, Ty::F32 | Ty::F32x2);
        let halves = matches!(ty, Ty::F16 | Ty::F16x2);
        let bfloats = matches!(ty, Ty::BF16 | Ty::BF16x2);
        if ((ftz || sat) && !(f32s || halves)) || (relu && !(halves || bfloats)) {
            return self.fail(format!("{ty:?}"), "modifier that this type does not have");
        }
        if round.is_some_and(|r| r != Round::Near) && !f32s && ty != Ty::F64 {
            return self.fail(format!("{ty:?}"), "rounding mode that this type does not have");
        }
        let plain = !sat && !relu && round.unwrap_or(Round::Near) == Round::Near;
        Ok((Ctl { round: round.unwrap_or(Round::Near), ftz, sat, relu, ..self.ctl(ty) }, plain))
    }

    fn float2(&mut self, name: &str, m: &mut Mods, args: &[Arg]) -> Res<()> {
        let (c, plain) = self.float_ctl(m)?;
        let ty = c.to;
        let fast = match (name, c.ftz) {
            ("add", false) => B32::AddF,
            ("sub", false) => B32::SubF,
            (_, false) => B32::MulF,
            ("add", true) => B32::AddFtz,
            ("sub", true) => B32::SubFtz,
            (_, true) => B32::MulFtz,
        };
        match ty {
            Ty::F32 if plain => self.bin32(fast, args, ty, ty),
            Ty::F64 if plain => {
                let op = match name {
                    "add" => B64::AddF,
                    "sub" => B64::SubF,
                    _ => B64::MulF,
                };
                self.bin64(op, args, ty)
            }
            _ => {
                let f = match name {
                    "add" => scalar::fadd,
                    "sub" => scalar::fsub,
                    _ => scalar::fmul,
                };
                self.lane(f, c, args, ty, &[ty; 2])
            }
        }
    }

    fn fma(&mut self, m: &mut Mods, args: &[Arg]) -> Res<()> {
        let (c, plain) = self.float_ctl(m)?;
        let ty = c.to;
        match ty {
            Ty::F32 if plain => self.tern32(if c.ftz { T32::FmaFtz } else { T32::Fma }, args, ty, ty),
            Ty::F64 if plain => {
                self.arity(args, 4)?;
                let (a, b, c) = (self.src(&args[1], ty)?, self.src(&args[2], ty)?, self.src(&args[3], ty)?);
                let d = self.dst(&args[0], ty)?;
                self.push(Op::Fma64(d, a, b, c));
                Ok(())
            }
            _ => self.lane(scalar::ffma, c, args, ty, &[ty; 3]),
        }
    }

    fn div(&mut self, m: &mut Mods, args: &[Arg]) -> Res<()> {
        if !self.is_float(m) {
            let ty = self.int_type(m)?;
            return self.lane(scalar::int(IntOp::Div), self.ctl(ty), args, ty, &[ty; 2]);
        }
        let (approx, full) = (m.take("approx"), m.take("full"));
        let (round, ftz) = (m.round(), m.take("ftz"));
        let ty = self.expect(m, &[Ty::F32, Ty::F64])?;
        if u32::from(approx) + u32::from(full) + u32::from(round.is_some()) != 1 {
            return self.fail("div", "needs one of .approx, .full or a rounding mode");
        }
        let c = Ctl { ftz, round: round.unwrap_or(Round::Near), ..self.ctl(ty) };
        if approx || full {
            return self.approximate(if approx { scalar::div_approx } else { scalar::div_full }, c, args, 2);
        }
        if ty == Ty::F32 && !ftz && c.round == Round::Near {
            return self.bin32(B32::DivF, args, ty, ty);
        }
        self.lane(scalar::fdiv, c, args, ty, &[ty; 2])
    }

    /// `rcp.approx.ftz.f64` keeps the upper 20 bits of the significand.
    fn rcp_approx_f64(&mut self, c: Ctl, args: &[Arg]) -> Res<()> {
        if !c.ftz {
            return self.fail("rcp", ".approx.f64 needs .ftz");
        }
        let f: LaneFn = |_, a| {
            let x = f64::from_bits(a[0] & 0xffff_ffff_0000_0000);
            let x = if x.is_subnormal() { x * 0.0 } else { x };
            let r = 1.0 / x;
            (if r.is_subnormal() { r * 0.0 } else { r }).to_bits() & 0xffff_ffff_0000_0000
        };
        self.lane(f, c, args, Ty::F64, &[Ty::F64])
    }

    /// An approximate f32 (or half) function.
    fn approximate(&mut self, f: LaneFn, c: Ctl, args: &[Arg], n: usize) -> Res<()> {
        self.arity(args, 1 + n)?;
        if c.to == Ty::F64 {
            return self.fail("f64", "type that this approximation does not have");
        }
        let op = self.lane_op(f, c, &args[1..], &vec![c.to; n])?;
        let d = self.dst(&args[0], c.to)?;
        self.push(Op::Lane(Box::new(LaneOp { d, dw: W::W32, approximate: true, ..op })));
        Ok(())
    }

    fn transcendental(&mut self, name: &str, m: &mut Mods, args: &[Arg]) -> Res<()> {
        if !m.take("approx") {
            return self.fail(name, "needs .approx");
        }
        let ftz = m.take("ftz");
        let ty = m.ty()?;
        let c = Ctl { ftz, ..self.ctl(ty) };
        let f: LaneFn = match (name, ty) {
            ("ex2" | "tanh", Ty::F16 | Ty::F16x2 | Ty::BF16 | Ty::BF16x2) => {
                let c = Ctl { imm: u32::from(name == "tanh"), ..c };
                return self.lane(scalar::half_approx, c, args, ty, &[ty]);
            }
            ("rsqrt", Ty::F64) => {
                let f: LaneFn = |_, a| (1.0 / f64::from_bits(a[0]).sqrt()).to_bits();
                return self.lane(f, c, args, ty, &[ty]);
            }
            ("rsqrt", Ty::F32) => scalar::rsqrt_approx,
            ("ex2", Ty::F32) => scalar::ex2_approx,
            ("lg2", Ty::F32) => scalar::lg2_approx,
            ("sin", Ty::F32) => scalar::sin_approx,
            ("cos", Ty::F32) => scalar::cos_approx,
            ("tanh", Ty::F32) if !ftz => scalar::tanh_approx,
            _ => return self.fail(format!("{ty:?}"), "type that this instruction does not have"),
        };
        self.approximate(f, c, args, 1)
    }

    fn neg_abs(&mut self, neg: bool, m: &mut Mods, args: &[Arg]) -> Res<()> {
        let ftz = m.take("ftz");
        let ty = m.ty()?;
        match ty {
            Ty::F32 if !ftz => self.un32(if neg { U32::NegF } else { U32::AbsF }, args, ty, ty),
            Ty::S32 => self.un32(if neg { U32::Neg } else { U32::Abs }, args, ty, ty),
            Ty::S16 | Ty::S64 => {
                self.lane(scalar::int(if neg { IntOp::Neg } else { IntOp::Abs }), self.ctl(ty), args, ty, &[ty])
            }
            Ty::F32 | Ty::F64 | Ty::F16 | Ty::F16x2 | Ty::BF16 | Ty::BF16x2 => {
                let f = if neg { scalar::fneg } else { scalar::fabs };
                self.lane(f, Ctl { ftz, ..self.ctl(ty) }, args, ty, &[ty])
            }
            _ => self.fail(format!("{ty:?}"), "type that this instruction does not have"),
        }
    }

    fn min_max(&mut self, max: bool, m: &mut Mods, args: &[Arg]) -> Res<()> {
        let (ftz, nan, relu) = (m.take("ftz"), m.take("NaN"), m.take("relu"));
        let xorsign = m.take("xorsign") && m.take("abs");
        let ty = m.ty()?;
        let plain = !ftz && !nan && !relu && !xorsign;
        let fast = match (ty, max) {
            (Ty::U32, false) => Some(B32::MinU),
            (Ty::U32, true) => Some(B32::MaxU),
            (Ty::S32, false) => Some(B32::MinS),
            (Ty::S32, true) => Some(B32::MaxS),
            (Ty::F32, false) => Some(B32::MinF),
            (Ty::F32, true) => Some(B32::MaxF),
            _ => None,
        };
        if let (Some(op), true) = (fast, plain) {
            return self.bin32(op, args, ty, ty);
        }
        let c = Ctl { ftz, nan, relu, imm: u32::from(xorsign), ..self.ctl(ty) };
        if ty.float() || matches!(ty, Ty::F16x2 | Ty::BF16x2) {
            if args.len() == 4 && ty == Ty::F32 {
                return self.fail("3 inputs", "three-input minimum and maximum are not supported");
            }
            return self.lane(if max { scalar::fmax } else { scalar::fmin }, c, args, ty, &[ty; 2]);
        }
        if !ty.integer() && !matches!(ty, Ty::U16x2 | Ty::S16x2) || ty.bytes() == 1 || ftz || nan || xorsign {
            return self.fail(format!("{ty:?}"), "type that this instruction does not have");
        }
        self.lane(scalar::int(if max { IntOp::Max } else { IntOp::Min }), c, args, ty, &[ty; 2])
    }

    fn logic(&mut self, name: &str, m: &mut Mods, args: &[Arg]) -> Res<()> {
        let ty = m.ty()?;
        match ty {
            Ty::Pred => {
                self.arity(args, 3)?;
                let op = match name {
                    "and" => Bool::And,
                    "or" => Bool::Or,
                    _ => Bool::Xor,
                };
                let (a, na) = self.pred(&args[1])?;
                let (b, nb) = self.pred(&args[2])?;
                if na || nb {
                    return self.fail("!", "predicate operands of this instruction are not negated");
                }
                let d = self.pred_dst(&args[0])?;
                self.push(Op::PredBool(op, d, a, b));
                Ok(())
            }
            Ty::B32 => {
                let op = match name {
                    "and" => B32::And,
                    "or" => B32::Or,
                    _ => B32::Xor,
                };
                self.bin32(op, args, ty, ty)
            }
            Ty::B64 => {
                let op = match name {
                    "and" => B64::And,
                    "or" => B64::Or,
                    _ => B64::Xor,
                };
                self.bin64(op, args, ty)
            }
            Ty::B16 => {
                let f = match name {
                    "and" => scalar::and,
                    "or" => scalar::or,
                    _ => scalar::xor,
                };
                self.lane(f, self.ctl(ty), args, ty, &[ty; 2])
            }
            _ => self.fail(format!("{ty:?}"), "type that this instruction does not have"),
        }
    }

    fn lop3(&mut self, m: &mut Mods, args: &[Arg]) -> Res<()> {
        self.expect(m, &[Ty::B32])?;
        self.arity(args, 5)?;
        let Arg::Num(super::Num::Int(lut)) = args[4] else {
            return self.fail("lop3", "the table must be a constant");
        };
        if lut > 255 {
            return self.fail(lut.to_string(), "the table has 8 bits");
        }
        let (a, b, c) = (self.src(&args[1], Ty::B32)?, self.src(&args[2], Ty::B32)?, self.src(&args[3], Ty::B32)?);
        let d = self.dst(&args[0], Ty::B32)?;
        self.push(Op::Lop3(lut as u8, d, a, b, c));
        Ok(())
    }

    fn shift(&mut self, left: bool, m: &mut Mods, args: &[Arg]) -> Res<()> {
        let ty = m.ty()?;
        let ok = if left { matches!(ty, Ty::B16 | Ty::B32 | Ty::B64) } else { ty.bytes() >= 2 && !ty.float() };
        if !ok || ty.bytes() > 8 {
            return self.fail(format!("{ty:?}"), "type that this instruction does not have");
        }
        match (ty.bytes(), left, ty.signed()) {
            (4, true, _) => self.bin32(B32::Shl, args, ty, Ty::U32),
            (4, false, false) => self.bin32(B32::ShrU, args, ty, Ty::U32),
            (4, false, true) => self.bin32(B32::ShrS, args, ty, Ty::U32),
            (8, true, _) | (8, false, false) => {
                self.arity(args, 3)?;
                let (a, b) = (self.src(&args[1], ty)?, self.src(&args[2], Ty::U32)?);
                let d = self.dst(&args[0], ty)?;
                self.push(if left { Op::Shl64(d, a, b) } else { Op::ShrU64(d, a, b) });
                Ok(())
            }
            _ => self.lane(if left { scalar::shl } else { scalar::shr }, self.ctl(ty), args, ty, &[ty, Ty::U32]),
        }
    }

    /// `bfe.u32`: position and length are 32-bit.
    fn tern32_mixed(&mut self, op: T32, args: &[Arg]) -> Res<()> {
        self.arity(args, 4)?;
        let (a, b, c) = (self.src(&args[1], Ty::U32)?, self.src(&args[2], Ty::U32)?, self.src(&args[3], Ty::U32)?);
        let d = self.dst(&args[0], Ty::U32)?;
        self.push(Op::Tern32(op, d, a, b, c));
        Ok(())
    }

    fn compare(&mut self, setp: bool, m: &mut Mods, args: &[Arg]) -> Res<()> {
        const LIST: [&str; 18] = [
            "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu",
            "num", "nan",
        ];
        let Some(cmp) = m.one_of(&LIST) else { return self.fail("setp", "comparison that is not known") };
        let combine = m.one_of(&["and", "or", "xor"]).map(|b| match b {
            "and" => Bool::And,
            "or" => Bool::Or,
            _ => Bool::Xor,
        });
        let ftz = m.take("ftz");
        let dty = if setp { Ty::Pred } else { m.ty()? };
        let ty = m.ty()?;
        let packed = matches!(ty, Ty::F16x2 | Ty::BF16x2);
        let float = ty.float() || packed;
        if !(float || ty.integer() || matches!(ty, Ty::B16 | Ty::B32 | Ty::B64)) {
            return self.fail(format!("{ty:?}"), "type that this instruction does not have");
        }
        let unordered = cmp.len() == 3 && cmp.ends_with('u');
        if (unordered || matches!(cmp, "num" | "nan")) && !float {
            return self.fail(cmp, "comparison of floats");
        }
        // lo, ls, hi, hs compare as unsigned, whatever the type says.
        let as_unsigned = matches!(cmp, "lo" | "ls" | "hi" | "hs");
        let code = match cmp {
            "eq" => 0,
            "ne" => 1,
            "lt" | "lo" => 2,
            "le" | "ls" => 3,
            "gt" | "hi" => 4,
            "ge" | "hs" => 5,
            "num" => 6,
            "nan" => 7,
            "equ" => 8,
            "neu" => 9,
            "ltu" => 10,
            "leu" => 11,
            "gtu" => 12,
            _ => 13,
        };
        let compared = match ty {
            Ty::S16 if as_unsigned => Ty::U16,
            Ty::S32 if as_unsigned => Ty::U32,
            Ty::S64 if as_unsigned => Ty::U64,
            t => t,
        };
        let c = Ctl { from: compared, to: dty, ftz, imm: code, ..self.ctl(ty) };
        self.arity(args, if combine.is_some() { 4 } else { 3 })?;
        let combination = match combine {
            None => None,
            Some(op) => {
                let (p, negated) = self.pred(&args[3])?;
                Some((op, p, negated))
            }
        };
        if !setp {
            return self.set(c, combination, &args[..3], ty, dty);
        }
        let (p, q) = match &args[0] {
            Arg::Pair(p, q) => (self.pred_dst_name(p)?, self.pred_dst_name(q)?),
            a => (self.pred_dst(a)?, 0),
        };
        let dst = SetpDst { p, q, combine: combination };
        if packed {
            // p for the lower halves, q for the upper ones; each is combined.
            let low = self.lane_op(scalar::compare_low, c, &args[1..3], &[ty, ty])?;
            let high = LaneOp { f: scalar::compare_high, ..low.clone() };
            let saved = self.cur.clone();
            self.push(Op::LanePred(Box::new(low), SetpDst { q: 0, ..dst }));
            self.cur = saved;
            self.push(Op::LanePred(Box::new(high), SetpDst { p: q, q: 0, ..dst }));
            return Ok(());
        }
        let fast = match (code, compared, ftz) {
            (_, Ty::F64 | Ty::F32, true) => None,
            (0, Ty::F32 | Ty::F64, _) => Some(Cmp::EqF),
            (2, Ty::F32 | Ty::F64, _) => Some(Cmp::LtF),
            (3, Ty::F32 | Ty::F64, _) => Some(Cmp::LeF),
            (4, Ty::F32 | Ty::F64, _) => Some(Cmp::GtF),
            (5, Ty::F32 | Ty::F64, _) => Some(Cmp::GeF),
            (9, Ty::F32 | Ty::F64, _) => Some(Cmp::NeF),
            (_, t, _) if t.float() || t.bytes() < 4 => None,
            (0, ..) => Some(Cmp::Eq),
            (1, ..) => Some(Cmp::Ne),
            (2, t, _) => Some(if t.signed() { Cmp::LtS } else { Cmp::LtU }),
            (3, t, _) => Some(if t.signed() { Cmp::LeS } else { Cmp::LeU }),
            (4, t, _) => Some(if t.signed() { Cmp::GtS } else { Cmp::GtU }),
            (5, t, _) => Some(if t.signed() { Cmp::GeS } else { Cmp::GeU }),
            _ => None,
        };
        let Some(cmp) = fast else {
            let op = self.lane_op(scalar::compare, c, &args[1..3], &[ty, ty])?;
            self.push(Op::LanePred(Box::new(op), dst));
            return Ok(());
        };
        let (a, b) = (self.src(&args[1], ty)?, self.src(&args[2], ty)?);
        let wide = ty.bytes() == 8;
        self.push(match (combination, q, wide) {
            (None, 0, false) => Op::Setp32(cmp, p, a, b),
            (None, 0, true) => Op::Setp64(cmp, p, a, b),
            _ => Op::SetpEx(Box::new((cmp, wide, a, b, dst))),
        });
        Ok(())
    }

    fn set(&mut self, c: Ctl, combine: Option<(Bool, P, bool)>, args: &[Arg], ty: Ty, dty: Ty) -> Res<()> {
        if dty == Ty::Pred || dty.bytes() == 1 {
            return self.fail(format!("{dty:?}"), "destination type that this instruction does not have");
        }
        let Some((op, p, negated)) = combine else { return self.lane(scalar::set, c, args, dty, &[ty; 2]) };
        let kind = match op {
            Bool::And => 1,
            Bool::Or => 2,
            Bool::Xor => 3,
        };
        let c = Ctl { imm: c.imm | (kind | u32::from(negated) << 2) << 4, ..c };
        let mut lane = self.lane_op(scalar::set_combined, c, &args[1..], &[ty; 2])?;
        lane.src[2] = (u32::from(p), W::Pred);
        lane.n = 3;
        let d = self.dst(&args[0], dty)?;
        let dw = if dty.bytes() == 8 { W::W64 } else { W::W32 };
        self.push(Op::Lane(Box::new(LaneOp { d, dw, ..lane })));
        Ok(())
    }

    fn selp(&mut self, m: &mut Mods, args: &[Arg]) -> Res<()> {
        let ty = m.ty()?;
        self.arity(args, 4)?;
        if !matches!(ty.bytes(), 2 | 4 | 8) {
            return self.fail(format!("{ty:?}"), "type that this instruction does not have");
        }
        let (a, b) = (self.src(&args[1], ty)?, self.src(&args[2], ty)?);
        let (p, negated) = self.pred(&args[3])?;
        let (a, b) = if negated { (b, a) } else { (a, b) };
        let d = self.dst(&args[0], ty)?;
        self.push(if ty.bytes() == 8 { Op::Selp64(d, a, b, p) } else { Op::Selp32(d, a, b, p) });
        Ok(())
    }
}
