//! Instructions that make values of values, lane by lane. What integers, bits and plain floats do stands in
//! `exec::values`; here are the forms of floats, with what modifiers each may have, and of packed values.

use super::super::ast::Arg;
use super::super::types::Ty::{self, *};
use super::operands::width;
use super::text::Text;
use super::{Decoder, Res};
use crate::exec::float::{self, Exact, Round};
use crate::exec::inst::*;
use crate::exec::scalar::*;
use crate::exec::values::VALUES;
use std::collections::HashSet;
use std::num::FpCategory;
use std::sync::LazyLock;

/// One form of an instruction.
struct Form {
    /// Its name and the modifiers that make it this form.
    name: &'static str,
    /// Modifiers that it may have, as far as the type does; `rnd!`: a rounding mode that it must have.
    flags: &'static str,
    types: &'static [Ty],
    /// Destination, then sources, each a letter that `operand` knows.
    operands: &'static str,
    f: LaneFn,
    /// `f` leaves the rounding of its result to the interpreter.
    approximate: bool,
}

impl Form {
    fn parts(&self) -> impl Iterator<Item = &'static str> {
        self.name.split('.')
    }

    fn allows(&self, flag: &str, ty: Ty) -> bool {
        let of_type = match flag {
            "ftz" | "sat" => matches!(ty.element(), F32 | F16),
            "rz" | "rm" | "rp" => matches!(ty, F32 | F32x2 | F64),
            "relu" => ty.element().bytes() == 2,
            "NaN" | "xorsign" => ty != F64,
            _ => true,
        };
        let name = if matches!(flag, "rn" | "rz" | "rm" | "rp") { "rnd" } else { flag };
        of_type && self.flags.split([' ', '!']).any(|f| f == name)
    }
}

const fn form(
    name: &'static str,
    flags: &'static str,
    types: &'static [Ty],
    operands: &'static str,
    f: LaneFn,
) -> Form {
    Form { name, flags, types, operands, f, approximate: false }
}

/// An approximate function of f32.
const fn approximate(name: &'static str, flags: &'static str, operands: &'static str, f: LaneFn) -> Form {
    Form { name, flags, types: &[F32], operands, f, approximate: true }
}

const ALL: &[Ty] = &[F32, F32x2, F64, F16, F16x2, BF16, BF16x2];
const BUT_F32X2: &[Ty] = &[F32, F64, F16, F16x2, BF16, BF16x2];
const HALVES: &[Ty] = &[F16, F16x2, BF16, BF16x2];
const FLOATS: &[Ty] = &[F32, F64];
const PACKED: &[Ty] = &[U16x2, S16x2];

static FORMS: &[Form] = &[
    form("add", "rnd ftz sat", ALL, "TTT", |c, a| float(c, a, |[x, y, ..]| float::add(x, y))),
    form("sub", "rnd ftz sat", ALL, "TTT", |c, a| float(c, a, |[x, y, ..]| float::add(x, -y))),
    form("mul", "rnd ftz sat", ALL, "TTT", |c, a| float(c, a, |[x, y, ..]| float::mul(x, y))),
    form("fma", "rnd ftz sat relu", ALL, "TTTT", |c, a| float(c, a, |[x, y, z, _]| float::fma(x, y, z))),
    form("mad", "rnd ftz sat", ALL, "TTTT", |c, a| float(c, a, |[x, y, z, _]| float::fma(x, y, z))),
    form("div", "rnd! ftz", FLOATS, "TTT", |c, a| float(c, a, |[x, y, ..]| float::div(x, y))),
    form("rcp", "rnd! ftz", FLOATS, "TT", |c, a| float(c, a, |[x, ..]| float::div(1.0, x))),
    form("sqrt", "rnd! ftz", FLOATS, "TT", |c, a| float(c, a, |[x, ..]| float::sqrt(x))),
    form("neg", "ftz", BUT_F32X2, "TT", |c, a| sign(c, a, |s| !s)),
    form("abs", "ftz", BUT_F32X2, "TT", |c, a| sign(c, a, |_| false)),
    form("min", "ftz NaN xorsign", BUT_F32X2, "TTT", |c, a| min_max(c, a, false)),
    form("max", "ftz NaN xorsign", BUT_F32X2, "TTT", |c, a| min_max(c, a, true)),
    form("testp.finite", "", FLOATS, "pT", |c, a| {
        (!matches!(class(c, a), FpCategory::Nan | FpCategory::Infinite)).into()
    }),
    form("testp.infinite", "", FLOATS, "pT", |c, a| (class(c, a) == FpCategory::Infinite).into()),
    form("testp.number", "", FLOATS, "pT", |c, a| (class(c, a) != FpCategory::Nan).into()),
    form("testp.notanumber", "", FLOATS, "pT", |c, a| (class(c, a) == FpCategory::Nan).into()),
    form("testp.normal", "", FLOATS, "pT", |c, a| (class(c, a) == FpCategory::Normal).into()),
    form("testp.subnormal", "", FLOATS, "pT", |c, a| (class(c, a) == FpCategory::Subnormal).into()),
    approximate("rcp.approx", "ftz", "TT", |c, a| approximately(c, a, |x, _| 1.0 / x)),
    approximate("sqrt.approx", "ftz", "TT", |c, a| approximately(c, a, |x, _| x.sqrt())),
    approximate("rsqrt.approx", "ftz", "TT", |c, a| approximately(c, a, |x, _| 1.0 / x.sqrt())),
    approximate("ex2.approx", "ftz", "TT", |c, a| approximately(c, a, |x, _| x.exp2())),
    approximate("lg2.approx", "ftz", "TT", |c, a| approximately(c, a, |x, _| x.log2())),
    approximate("sin.approx", "ftz", "TT", |c, a| approximately(c, a, |x, _| x.sin())),
    approximate("cos.approx", "ftz", "TT", |c, a| approximately(c, a, |x, _| x.cos())),
    approximate("tanh.approx", "", "TT", |c, a| approximately(c, a, |x, _| x.tanh())),
    approximate("div.full", "ftz", "TTT", |c, a| approximately(c, a, |x, y| x / y)),
    approximate("div.approx", "ftz", "TTT", |c, a| approximately(c, a, div_approx)),
    form("rcp.approx.ftz", "", &[F64], "TT", rcp_approx_f64),
    form("rsqrt.approx", "", &[F64], "TT", |_, a| (1.0 / f64::from_bits(a[0]).sqrt()).to_bits()),
    form("rsqrt.approx.ftz", "", &[F64], "TT", |_, a| (1.0 / f64::from_bits(a[0]).sqrt()).to_bits()),
    form("ex2.approx", "ftz", HALVES, "TT", |c, a| float(c, a, |[x, ..]| Exact::from(x.exp2()))),
    form("ex2.approx.ftz", "", &[BF16, BF16x2], "TT", |c, a| float(c, a, |[x, ..]| Exact::from(x.exp2()))),
    form("tanh.approx", "", HALVES, "TT", |c, a| float(c, a, |[x, ..]| Exact::from(x.tanh()))),
    form("add", "", PACKED, "TTT", |c, a| int(c, a, |x, y| x + y)),
    form("sub", "", PACKED, "TTT", |c, a| int(c, a, |x, y| x - y)),
    form("min", "relu", PACKED, "TTT", |c, a| int(c, a, i128::min)),
    form("max", "relu", PACKED, "TTT", |c, a| int(c, a, i128::max)),
];

/// The instructions of this kind by name. Moves and conversions have rules of their own.
static NAMES: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    let names = VALUES.keys().map(|v| v.0).chain(FORMS.iter().map(|f| f.name));
    names.map(|name| name.split('.').next().unwrap_or(name)).filter(|&name| name != "mov" && name != "cvt").collect()
});

/// The form of floats or packed values that an instruction has.
fn form_of(t: &Text<'_>, ty: Ty) -> Option<&'static Form> {
    let fits = |f: &&Form| f.types.contains(&ty) && f.name.split('.').all(|p| p == t.name || t.has(p));
    FORMS.iter().filter(|f| f.parts().next() == Some(t.name)).filter(fits).max_by_key(|f| f.parts().count())
}

/// Consumes the modifiers that a form has and may have.
fn modifiers(form: &Form, t: &mut Text<'_>, ty: Ty) -> Res<Ctl> {
    t.parts.retain(|p| form.parts().skip(1).all(|m| m != *p));
    let mut flag = |name| form.allows(name, ty) && t.take(name);
    let mut c = Ctl { ftz: flag("ftz"), sat: flag("sat"), relu: flag("relu"), nan: flag("NaN"), ..Ctl::new(ty) };
    let modes = [("rn", Round::Near), ("rz", Round::Zero), ("rm", Round::Down), ("rp", Round::Up)];
    let round = modes.into_iter().find(|(name, _)| flag(name));
    if round.is_none() && form.flags.starts_with("rnd!") {
        return t.fail(t.name, "needs .rn, .rz, .rm, .rp or .approx");
    }
    c.round = round.map_or(Round::Near, |r| r.1);
    c.xorsign = form.allows("xorsign", ty) && t.take("xorsign") && t.take("abs");
    Ok(c)
}

impl Decoder<'_> {
    /// Decodes an instruction of the tables.
    pub(super) fn value(&mut self, t: &mut Text<'_>) -> Res<bool> {
        if !NAMES.contains(t.name) || t.has("cc") || t.has("pred") {
            return Ok(false);
        }
        let ty = t.ty()?;
        let form = form_of(t, ty);
        let c = form.map_or(Ok(Ctl::new(ty)), |form| modifiers(form, t, ty))?;
        let name = match form {
            Some(form) if c.ftz => format!("{}.ftz", form.name),
            Some(form) => form.name.into(),
            None => [t.name].into_iter().chain(t.parts.drain(..)).collect::<Vec<_>>().join("."),
        };
        let plain = c.round == Round::Near && !(c.sat || c.relu || c.nan || c.xorsign);
        if let Some(value) = VALUES.get(&(&*name, ty)).filter(|_| plain) {
            let types: Vec<Ty> = value.operands.iter().map(|o| operand(o, ty)).collect();
            let [a, b, c, d] = self.sources(t, &types)?;
            let r = [self.dst(&t.args[0], types[0])?, a.0, b.0, c.0, d.0];
            self.push(Op::Value(value.run, r));
        } else if let Some(form) = form {
            let operands = form.operands;
            let types: Vec<Ty> = (0..operands.len()).map(|i| operand(&operands[i..=i], ty)).collect();
            let src = self.sources(t, &types)?;
            let d = match types[0] {
                Pred => (self.dst(&t.args[0], Ty::Pred)?, W::Pred),
                ty => (self.dst(&t.args[0], ty)?, width(ty)),
            };
            let op = LaneOp { f: form.f, ctl: c, d, src, approximate: form.approximate };
            self.push(Op::Lane(Box::new(op)));
        } else {
            let near = VALUES.keys().filter(|v| v.1 == ty && v.0.split('.').next() == Some(t.name));
            let near: Vec<&str> = near.map(|v| v.0).collect();
            let token = name.split_once('.').map_or(t.opcode.into(), |(_, rest)| format!(".{rest}"));
            let message = format!("modifiers that make no form; of type {ty:?} there are: {}", near.join(", "));
            return t.fail(token, message);
        }
        Ok(true)
    }

    /// The operands after the first as sources, by the types of all operands.
    pub(super) fn sources(&mut self, t: &Text<'_>, types: &[Ty]) -> Res<[(R, W); 4]> {
        t.arity(types.len())?;
        self.reads(&t.args[1..], &types[1..])
    }

    /// Some operands as sources.
    pub(super) fn reads(&mut self, args: &[Arg], types: &[Ty]) -> Res<[(R, W); 4]> {
        let mut src = [(0, W::W32); 4];
        for (s, (arg, ty)) in src.iter_mut().zip(args.iter().zip(types)) {
            *s = (self.src(arg, *ty)?, width(*ty));
        }
        Ok(src)
    }

    /// A scalar operation.
    pub(super) fn lane(&mut self, f: LaneFn, ctl: Ctl, d: (R, W), src: [(R, W); 4]) {
        self.push(Op::Lane(Box::new(LaneOp { f, ctl, d, src, approximate: false })));
    }
}

/// The type of an operand of an instruction of this type.
fn operand(name: &str, ty: Ty) -> Ty {
    match name {
        "T" | "F" => ty,
        "W" => ty.wider(),
        "U" => ty.unsigned(),
        "p" => Pred,
        "f32" => F32,
        _ => U32,
    }
}
