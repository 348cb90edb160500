//! Instructions that make values of values, lane by lane. What integers, bits and plain floats do stands in
//! `exec::values`; here are the forms of floats, with what modifiers each may have, of packed values and conversions.

use super::super::types::Ty::{self, *};
use super::text::Text;
use super::{Decoder, Res};
use crate::exec::float::{self, Exact, Round};
use crate::exec::inst::*;
use crate::exec::scalar::*;
use crate::exec::values::VALUES;
use std::collections::HashSet;
use std::num::FpCategory::{Infinite, Nan, Normal, Subnormal};
use std::sync::LazyLock;

type Str = &'static str;

/// One form of an instruction.
pub(super) struct Form {
    /// Its name and the modifiers that make it this form.
    name: Str,
    /// Modifiers that it may have, as far as the type does; `rnd` is any rounding mode, `!`: there must be one.
    flags: Str,
    types: &'static [Ty],
    /// Destination, then sources, as `operand` knows them.
    operands: Str,
    f: LaneFn,
    /// `f` leaves the rounding of its result to the interpreter.
    approximate: bool,
}

impl Form {
    fn allows(&self, flag: &str, ty: Ty) -> bool {
        let listed = |name: &str| self.flags.split([' ', '!']).any(|f| f == name);
        match flag {
            "rn" => listed("rn") || listed("rnd"),
            "rz" | "rm" | "rp" => listed(flag) || listed("rnd") && matches!(ty, F32 | F32x2 | F64),
            "ftz" | "sat" => listed(flag) && matches!(ty.element(), F32 | F16),
            "relu" => listed(flag) && (ty.element().bytes() == 2 || ty == TF32),
            "NaN" | "xorsign" => listed(flag) && ty != F64,
            _ => listed(flag),
        }
    }
}

const fn form(name: Str, flags: Str, types: &'static [Ty], operands: Str, f: LaneFn) -> Form {
    Form { name, flags, types, operands, f, approximate: false }
}

/// An approximate function of f32.
const fn approximate(name: Str, flags: Str, operands: Str, f: LaneFn) -> Form {
    Form { name, flags, types: &[F32], operands, f, approximate: true }
}

/// Rounding modes.
pub(super) const ROUND: &[(&str, Round)] =
    &[("rn", Round::Near), ("rz", Round::Zero), ("rm", Round::Down), ("rp", Round::Up), ("rna", Round::Away)];

const ALL: &[Ty] = &[F32, F32x2, F64, F16, F16x2, BF16, BF16x2];
const BUT_F32X2: &[Ty] = &[F32, F64, F16, F16x2, BF16, BF16x2];
const HALVES: &[Ty] = &[F16, F16x2, BF16, BF16x2];
const FLOATS: &[Ty] = &[F32, F64];
const PACKED: &[Ty] = &[U16x2, S16x2];

static FORMS: &[Form] = &[
    form("add", "rnd ftz sat", ALL, "T T T", |c, a| float(c, a, |[x, y, ..]| float::add(x, y))),
    form("sub", "rnd ftz sat", ALL, "T T T", |c, a| float(c, a, |[x, y, ..]| float::add(x, -y))),
    form("mul", "rnd ftz sat", ALL, "T T T", |c, a| float(c, a, |[x, y, ..]| float::mul(x, y))),
    form("fma", "rnd ftz sat relu", ALL, "T T T T", |c, a| float(c, a, |[x, y, z, _]| float::fma(x, y, z))),
    form("mad", "rnd ftz sat", ALL, "T T T T", |c, a| float(c, a, |[x, y, z, _]| float::fma(x, y, z))),
    form("div", "rnd! ftz", FLOATS, "T T T", |c, a| float(c, a, |[x, y, ..]| float::div(x, y))),
    form("rcp", "rnd! ftz", FLOATS, "T T", |c, a| float(c, a, |[x, ..]| float::div(1.0, x))),
    form("sqrt", "rnd! ftz", FLOATS, "T T", |c, a| float(c, a, |[x, ..]| float::sqrt(x))),
    form("neg", "ftz", BUT_F32X2, "T T", |c, a| sign(c, a, |s| !s)),
    form("abs", "ftz", BUT_F32X2, "T T", |c, a| sign(c, a, |_| false)),
    form("min", "ftz NaN xorsign", BUT_F32X2, "T T T", |c, a| min_max(c, a, false)),
    form("max", "ftz NaN xorsign", BUT_F32X2, "T T T", |c, a| min_max(c, a, true)),
    form("testp.finite", "", FLOATS, "p T", |c, a| (!matches!(class(c, a), Nan | Infinite)).into()),
    form("testp.infinite", "", FLOATS, "p T", |c, a| (class(c, a) == Infinite).into()),
    form("testp.number", "", FLOATS, "p T", |c, a| (class(c, a) != Nan).into()),
    form("testp.notanumber", "", FLOATS, "p T", |c, a| (class(c, a) == Nan).into()),
    form("testp.normal", "", FLOATS, "p T", |c, a| (class(c, a) == Normal).into()),
    form("testp.subnormal", "", FLOATS, "p T", |c, a| (class(c, a) == Subnormal).into()),
    approximate("rcp.approx", "ftz", "T T", |c, a| approximately(c, a, |x, _| 1.0 / x)),
    approximate("sqrt.approx", "ftz", "T T", |c, a| approximately(c, a, |x, _| x.sqrt())),
    approximate("rsqrt.approx", "ftz", "T T", |c, a| approximately(c, a, |x, _| 1.0 / x.sqrt())),
    approximate("ex2.approx", "ftz", "T T", |c, a| approximately(c, a, |x, _| x.exp2())),
    approximate("lg2.approx", "ftz", "T T", |c, a| approximately(c, a, |x, _| x.log2())),
    approximate("sin.approx", "ftz", "T T", |c, a| approximately(c, a, |x, _| x.sin())),
    approximate("cos.approx", "ftz", "T T", |c, a| approximately(c, a, |x, _| x.cos())),
    approximate("tanh.approx", "", "T T", |c, a| approximately(c, a, |x, _| x.tanh())),
    approximate("div.full", "ftz", "T T T", |c, a| approximately(c, a, |x, y| x / y)),
    approximate("div.approx", "ftz", "T T T", |c, a| approximately(c, a, div_approx)),
    form("rcp.approx.ftz", "", &[F64], "T T", rcp_approx_f64),
    form("rsqrt.approx", "", &[F64], "T T", |_, a| (1.0 / f64::from_bits(a[0]).sqrt()).to_bits()),
    form("rsqrt.approx.ftz", "", &[F64], "T T", |_, a| (1.0 / f64::from_bits(a[0]).sqrt()).to_bits()),
    form("ex2.approx", "ftz", HALVES, "T T", |c, a| float(c, a, |[x, ..]| Exact::from(x.exp2()))),
    form("ex2.approx.ftz", "", &[BF16, BF16x2], "T T", |c, a| float(c, a, |[x, ..]| Exact::from(x.exp2()))),
    form("tanh.approx", "", HALVES, "T T", |c, a| float(c, a, |[x, ..]| Exact::from(x.tanh()))),
    form("cvt.f32", "rn! rz relu satfinite", &[F16x2, BF16x2], "T f32 f32", cvt_pack),
    form("cvt.rn.satfinite.f32", "relu", &[E4M3x2, E5M2x2], "b16 f32 f32", |c, a| {
        cvt_pack(&Ctl { sat: true, ..*c }, a)
    }),
    form("cvt.rn.e4m3x2", "relu", &[F16x2], "T b16", cvt_unpack8),
    form("cvt.rn.e5m2x2", "relu", &[F16x2], "T b16", cvt_unpack8),
    form("cvt.f32", "rn! rz rna relu", &[TF32], "b32 f32", cvt),
    form("cvt.pack.sat.s32", "", &[U16, S16], "b32 s32 s32", cvt_pack_sat),
    form("cvt.pack.sat.s32.b32", "", &[U8, S8], "b32 s32 s32 b32", cvt_pack_sat),
    form("add", "", PACKED, "T T T", |c, a| int(c, a, |x, y| x + y)),
    form("sub", "", PACKED, "T T T", |c, a| int(c, a, |x, y| x - y)),
    form("min", "relu", PACKED, "T T T", |c, a| int(c, a, i128::min)),
    form("max", "relu", PACKED, "T T T", |c, a| int(c, a, i128::max)),
];

/// The instructions of this kind by name. Moves and conversions have rules of their own.
static NAMES: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    let names = VALUES.keys().map(|v| v.0).chain(FORMS.iter().map(|f| f.name));
    names.filter_map(|name| name.split('.').next()).filter(|name| !matches!(*name, "mov" | "cvt")).collect()
});

/// The form of floats or packed values that an instruction has: of those that fit, the one that says most.
pub(super) fn form_of(t: &Text<'_>, ty: Ty) -> Option<&'static Form> {
    let fits = |f: &&Form| f.types.contains(&ty) && f.name.split('.').all(|p| p == t.name || t.has(p));
    let own = FORMS.iter().filter(|f| f.name.split('.').next() == Some(t.name));
    own.filter(fits).max_by_key(|f| f.name.len())
}

/// The types of operands by their names: `T` is the instruction's own, as `exec::values` has it.
fn types(operands: impl Iterator<Item = Str>, ty: Ty) -> Vec<Ty> {
    let operand = |name| match name {
        "T" | "F" => Some(ty),
        "W" => Ty::sized(2 * ty.bytes(), ty.signed()),
        "U" => Ty::sized(ty.bytes(), false),
        "p" => Some(Pred),
        name => Ty::parse(name),
    };
    operands.map(|name| operand(name).unwrap_or(ty)).collect()
}

impl Decoder<'_> {
    /// Decodes an instruction of the tables.
    pub(super) fn value(&mut self, t: &mut Text<'_>) -> Res<bool> {
        if !NAMES.contains(t.name) || t.has("cc") || t.has("pred") {
            return Ok(false);
        }
        let ty = t.ty()?;
        if let Some(form) = form_of(t, ty) {
            self.form(t, form, ty)?;
            return Ok(true);
        }
        let name = [t.name].into_iter().chain(t.parts.drain(..)).collect::<Vec<_>>().join(".");
        if self.row(t, &name, ty)? {
            return Ok(true);
        }
        let near = VALUES.keys().filter(|v| v.1 == ty && v.0.split('.').next() == Some(t.name));
        let near: Vec<&str> = near.map(|v| v.0).collect();
        let token = name.split_once('.').map_or(t.opcode.into(), |(_, rest)| format!(".{rest}"));
        t.fail(token, format!("modifiers that make no form; of type {ty:?} there are: {}", near.join(", ")))
    }

    /// A vectorised operation with its operands, if there is one.
    fn row(&mut self, t: &Text<'_>, name: &str, ty: Ty) -> Res<bool> {
        let Some(value) = VALUES.get(&(name, ty)) else { return Ok(false) };
        let slots = self.slots(t, &types(value.operands.iter().copied(), ty))?;
        self.push(Op::Value(value.run, slots));
        Ok(true)
    }

    /// A form with the modifiers that it has and may have, vectorised if it has no others than `.ftz`.
    pub(super) fn form(&mut self, t: &mut Text<'_>, form: &Form, ty: Ty) -> Res<()> {
        t.parts.retain(|p| form.name.split('.').all(|m| m != *p));
        let mut flag = |name| form.allows(name, ty) && t.take(name);
        let (ftz, relu, nan, xorsign) = (flag("ftz"), flag("relu"), flag("NaN"), flag("xorsign"));
        let sat = flag("sat") || flag("satfinite");
        let round = ROUND.iter().find(|(name, _)| flag(name)).map(|(_, round)| *round);
        t.ensure(round.is_some() || !form.flags.contains('!'), "needs a rounding mode, such as .rn, or .approx")?;
        if xorsign {
            t.require("abs")?;
        }
        let round = round.unwrap_or(Round::Near);
        let plain = round == Round::Near && !(sat || relu || nan || xorsign);
        if plain && self.row(t, &format!("{}{}", form.name, if ftz { ".ftz" } else { "" }), ty)? {
            return Ok(());
        }
        // A conversion's source is a part of its name.
        let from = form.name.split('.').find_map(Ty::parse).unwrap_or(ty);
        let ctl = Ctl { from, ftz, sat, relu, nan, xorsign, round, ..Ctl::new(ty) };
        let operands = self.operands(t, &types(form.operands.split(' '), ty))?;
        self.lane_op(form.f, ctl, operands, form.approximate);
        Ok(())
    }

    /// Pushes an operation of `exec::values`.
    pub(super) fn values(&mut self, name: &str, ty: Ty, [d, a, b]: [R; 3]) {
        if let Some(value) = VALUES.get(&(name, ty)) {
            self.push(Op::Value(value.run, [d, a, b, 0, 0]));
        }
    }

    /// Pushes a scalar operation: its destination and sources.
    pub(super) fn lane(&mut self, f: LaneFn, ctl: Ctl, operands: [(R, W); 5]) {
        self.lane_op(f, ctl, operands, false);
    }

    fn lane_op(&mut self, f: LaneFn, ctl: Ctl, [d, src @ ..]: [(R, W); 5], approximate: bool) {
        self.push(Op::Lane(Box::new(LaneOp { f, ctl, d, src, approximate })));
    }
}
