//! Instructions that make values of values, lane by lane: one table says what each may look like and what it does, and
//! one routine decodes them all.

use super::super::types::Ty::{self, *};
use super::operands::width;
use super::text::{Text, alternatives};
use super::{Decoder, Res};
use crate::exec::float::{self, Exact, Round};
use crate::exec::inst::*;
use crate::exec::scalar::*;
use crate::exec::vector::Vector;
use std::collections::HashMap;
use std::sync::LazyLock;

/// One form of an instruction.
struct Row {
    /// Its name and the modifiers that make it this form.
    name: &'static str,
    /// Modifiers that it may have; `rnd!`: a rounding mode that it must have.
    flags: &'static str,
    types: &'static [Ty],
    /// The types of a second type modifier, if it has one.
    second: &'static [Ty],
    /// Destination, then sources. `T` is the instruction's type, `S` its second one, `W` an integer twice as wide, `U`
    /// the unsigned integer of its size, `c` a count of 32 bits, `p` a predicate.
    operands: &'static str,
    /// What it does; nothing for one that is vectorised in all its types.
    f: Option<LaneFn>,
    /// `f` leaves the rounding of its result to the interpreter.
    approximate: bool,
}

impl Row {
    /// The modifiers that make it this form.
    fn modifiers(&self) -> impl Iterator<Item = &'static str> {
        self.name.split('.').skip(1)
    }

    fn allows(&self, flag: &str) -> bool {
        self.flags.split(' ').any(|f| f == flag)
    }
}

const INTS: &[Ty] = &[U16, U32, U64, S16, S32, S64];
const INTS_32_64: &[Ty] = &[U32, U64, S32, S64];
const BITS: &[Ty] = &[B16, B32, B64];
const FLOATS: &[Ty] = &[F32, F64];
const INTS_32: &[Ty] = &[U32, S32];

/// The forms by name, those with more modifiers first.
static ROWS: LazyLock<HashMap<&str, Vec<Row>>> = LazyLock::new(|| {
    let mut rows = Rows::default();
    rows.integers();
    rows.bits();
    rows.floats();
    rows.approximations();
    for list in rows.0.values_mut() {
        list.sort_by_key(|r| std::cmp::Reverse(r.modifiers().count()));
    }
    rows.0
});

#[derive(Default)]
struct Rows(HashMap<&'static str, Vec<Row>>);

impl Rows {
    fn row(
        &mut self,
        name: &'static str,
        flags: &'static str,
        types: &'static [Ty],
        operands: &'static str,
        f: LaneFn,
    ) {
        self.push(Row { name, flags, types, second: &[], operands, f: Some(f), approximate: false });
    }

    /// With a second type.
    fn row2(
        &mut self,
        name: &'static str,
        types: &'static [Ty],
        second: &'static [Ty],
        operands: &'static str,
        f: Option<LaneFn>,
    ) {
        self.push(Row { name, flags: "", types, second, operands, f, approximate: false });
    }

    fn push(&mut self, row: Row) {
        let head = row.name.split('.').next().unwrap_or(row.name);
        self.0.entry(head).or_default().push(row);
    }

    fn integers(&mut self) {
        self.row("add", "", INTS, "TTT", |c, a| int(c, a, |x, y, _| x + y));
        self.row("sub", "", INTS, "TTT", |c, a| int(c, a, |x, y, _| x - y));
        self.row("add.sat", "", &[S32], "TTT", |c, a| int(c, a, |x, y, _| x + y));
        self.row("sub.sat", "", &[S32], "TTT", |c, a| int(c, a, |x, y, _| x - y));
        self.row("add", "", &[U16x2, S16x2], "TTT", |c, a| int(c, a, |x, y, _| x + y));
        self.row("sub", "", &[U16x2, S16x2], "TTT", |c, a| int(c, a, |x, y, _| x - y));
        self.row("mul.lo", "", INTS, "TTT", |c, a| int(c, a, |x, y, _| x.wrapping_mul(y)));
        self.row("mul.hi", "", INTS, "TTT", |c, a| int(c, a, |x, y, _| high(c, x, y)));
        self.row("mul.wide", "", &[U16, S16, U32, S32], "WTT", |c, a| int(c, a, |x, y, _| x * y));
        self.row("mad.lo", "", INTS, "TTTT", |c, a| int(c, a, |x, y, z| x.wrapping_mul(y).wrapping_add(z)));
        self.row("mad.hi", "", INTS, "TTTT", |c, a| int(c, a, |x, y, z| high(c, x, y) + z));
        self.row("mad.hi.sat", "", &[S32], "TTTT", |c, a| int(c, a, |x, y, z| high(c, x, y) + z));
        self.row("mad.wide", "", &[U16, S16, U32, S32], "WTTW", |c, a| int(c, a, |x, y, z| x * y + z));
        self.row("mul24.lo", "", INTS_32, "TTT", |c, a| mul24(c, a, false));
        self.row("mul24.hi", "", INTS_32, "TTT", |c, a| mul24(c, a, true));
        self.row("mad24.lo", "", INTS_32, "TTTT", |c, a| mul24(c, a, false));
        self.row("mad24.hi", "", INTS_32, "TTTT", |c, a| mul24(c, a, true));
        // Division by zero has no defined result; all ones is what the hardware gives for 32 bits.
        self.row("div", "", INTS, "TTT", |c, a| int(c, a, |x, y, _| x.checked_div(y).unwrap_or(-1)));
        self.row("rem", "", INTS, "TTT", |c, a| int(c, a, |x, y, _| x.checked_rem(y).unwrap_or(x)));
        self.row("neg", "", &[S16, S32, S64], "TT", |c, a| int(c, a, |x, _, _| -x));
        self.row("abs", "", &[S16, S32, S64], "TT", |c, a| int(c, a, |x, _, _| x.abs()));
        self.row("min", "relu", &[S32, S16x2], "TTT", |c, a| int(c, a, |x, y, _| x.min(y)));
        self.row("max", "relu", &[S32, S16x2], "TTT", |c, a| int(c, a, |x, y, _| x.max(y)));
        self.row("min", "", &[U16, U32, U64, S16, S64, U16x2], "TTT", |c, a| int(c, a, |x, y, _| x.min(y)));
        self.row("max", "", &[U16, U32, U64, S16, S64, U16x2], "TTT", |c, a| int(c, a, |x, y, _| x.max(y)));
        self.row("sad", "", INTS, "UTTU", |c, a| int(c, a, |x, y, z| z + (x - y).abs()));
        self.row2("dp4a", INTS_32, INTS_32, "cccc", None);
        self.row2("dp2a.lo", INTS_32, INTS_32, "cccc", Some(|c, a| dp2a(a, (c.from, c.to), false)));
        self.row2("dp2a.hi", INTS_32, INTS_32, "cccc", Some(|c, a| dp2a(a, (c.from, c.to), true)));
    }

    fn bits(&mut self) {
        self.row("and", "", BITS, "TTT", |_, a| a[0] & a[1]);
        self.row("or", "", BITS, "TTT", |_, a| a[0] | a[1]);
        self.row("xor", "", BITS, "TTT", |_, a| a[0] ^ a[1]);
        self.row("not", "", BITS, "TT", |c, a| trunc(c.to, !a[0]));
        self.row("cnot", "", BITS, "TT", |_, a| u64::from(a[0] == 0));
        self.row("shl", "", BITS, "TTc", |c, a| trunc(c.to, a[0].checked_shl(a[1] as u32).unwrap_or(0)));
        self.row("shr", "", &[B16, B32, B64, U16, U32, U64, S16, S32, S64], "TTc", shr);
        self.row2("shf.l.wrap", &[B32], &[], "TTTc", None);
        self.row2("shf.r.wrap", &[B32], &[], "TTTc", None);
        self.row("shf.l.clamp", "", &[B32], "TTTc", |_, a| {
            (u128::from(a[1] << 32 | a[0]) << a[2].min(32)) as u64 >> 32
        });
        self.row("shf.r.clamp", "", &[B32], "TTTc", |c, a| trunc(c.to, (a[1] << 32 | a[0]) >> a[2].min(32)));
        self.row("bfe", "", INTS_32_64, "TTcc", bfe);
        self.row("bfi", "", &[B32, B64], "TTTcc", bfi);
        self.row("bfind", "", INTS_32_64, "cT", |c, a| bfind(c, a, false));
        self.row("bfind.shiftamt", "", INTS_32_64, "cT", |c, a| bfind(c, a, true));
        self.row("brev", "", &[B32, B64], "TT", |c, a| a[0].reverse_bits() >> (64 - c.to.bits()));
        self.row("popc", "", &[B32, B64], "cT", |_, a| u64::from(a[0].count_ones()));
        self.row("clz", "", &[B32, B64], "cT", |c, a| u64::from(a[0].leading_zeros() + c.from.bits() - 64));
        self.row("fns", "", &[B32], "TTTc", fns);
        self.row("bmsk.clamp", "", &[B32], "TTc", |_, a| bmsk(a[0], a[1]));
        self.row("bmsk.wrap", "", &[B32], "TTc", |_, a| bmsk(a[0] & 31, a[1] & 31));
        self.row("szext.clamp", "", INTS_32, "TTc", |c, a| szext(c, a[0], a[1].min(32)));
        self.row("szext.wrap", "", INTS_32, "TTc", |c, a| szext(c, a[0], a[1] & 31));
        self.row2("prmt", &[B32], &[], "TTTc", None);
        self.row("prmt.f4e", "", &[B32], "TTTc", |_, a| prmt(a, |i, n| n + i));
        self.row("prmt.b4e", "", &[B32], "TTTc", |_, a| prmt(a, |i, n| (n + 8 - i) % 8));
        self.row("prmt.rc8", "", &[B32], "TTTc", |_, a| prmt(a, |_, n| n));
        self.row("prmt.ecl", "", &[B32], "TTTc", |_, a| prmt(a, |i, n| i.max(n)));
        self.row("prmt.ecr", "", &[B32], "TTTc", |_, a| prmt(a, |i, n| i.min(n)));
        self.row("prmt.rc16", "", &[B32], "TTTc", |_, a| prmt(a, |i, n| (n & 1) * 2 + i % 2));
        let any = &[B16, B32, B64, U16, U32, U64, S16, S32, S64, F16, BF16, F32, F64];
        let (flags, second, operands) = ("ftz", &[S32, F32], "TTTS");
        self.push(Row { name: "slct", flags, types: any, second, operands, f: Some(slct), approximate: false });
    }

    fn floats(&mut self) {
        self.float("add", "", "TTT", |c, a| float(c, a, |[x, y, ..]| float::add(x, y)));
        self.float("sub", "", "TTT", |c, a| float(c, a, |[x, y, ..]| float::add(x, -y)));
        self.float("mul", "", "TTT", |c, a| float(c, a, |[x, y, ..]| float::mul(x, y)));
        self.float("fma", "relu", "TTTT", |c, a| float(c, a, |[x, y, z, _]| float::fma(x, y, z)));
        self.float("mad", "", "TTTT", |c, a| float(c, a, |[x, y, z, _]| float::fma(x, y, z)));
        self.row("div", "rnd! ftz", &[F32], "TTT", |c, a| float(c, a, |[x, y, ..]| float::div(x, y)));
        self.row("div", "rnd!", &[F64], "TTT", |c, a| float(c, a, |[x, y, ..]| float::div(x, y)));
        self.row("rcp", "rnd! ftz", FLOATS, "TT", |c, a| float(c, a, |[x, ..]| float::div(1.0, x)));
        self.row("sqrt", "rnd! ftz", FLOATS, "TT", |c, a| float(c, a, |[x, ..]| float::sqrt(x)));
        self.row("neg", "ftz", &[F32, F16, F16x2], "TT", |c, a| sign(c, a, |s| !s));
        self.row("neg", "", &[F64, BF16, BF16x2], "TT", |c, a| sign(c, a, |s| !s));
        self.row("abs", "ftz", &[F32, F16, F16x2], "TT", |c, a| sign(c, a, |_| false));
        self.row("abs", "", &[F64, BF16, BF16x2], "TT", |c, a| sign(c, a, |_| false));
        self.row("min", "ftz NaN xorsign", &[F32, F16, F16x2], "TTT", |c, a| min_max(c, a, false));
        self.row("max", "ftz NaN xorsign", &[F32, F16, F16x2], "TTT", |c, a| min_max(c, a, true));
        self.row("min", "NaN xorsign", &[BF16, BF16x2], "TTT", |c, a| min_max(c, a, false));
        self.row("max", "NaN xorsign", &[BF16, BF16x2], "TTT", |c, a| min_max(c, a, true));
        self.row("min", "", &[F64], "TTT", |c, a| min_max(c, a, false));
        self.row("max", "", &[F64], "TTT", |c, a| min_max(c, a, true));
        self.row("copysign", "", FLOATS, "TTT", |c, a| {
            let s = format(c.to).sign();
            a[0] & s | a[1] & !s
        });
        use std::num::FpCategory as C;
        self.row("testp.finite", "", FLOATS, "pT", |c, a| (!matches!(class(c, a), C::Nan | C::Infinite)).into());
        self.row("testp.infinite", "", FLOATS, "pT", |c, a| (class(c, a) == C::Infinite).into());
        self.row("testp.number", "", FLOATS, "pT", |c, a| (class(c, a) != C::Nan).into());
        self.row("testp.notanumber", "", FLOATS, "pT", |c, a| (class(c, a) == C::Nan).into());
        self.row("testp.normal", "", FLOATS, "pT", |c, a| (class(c, a) == C::Normal).into());
        self.row("testp.subnormal", "", FLOATS, "pT", |c, a| (class(c, a) == C::Subnormal).into());
    }

    /// An operation that all float types have, each with its modifiers.
    fn float(&mut self, name: &'static str, relu: &'static str, operands: &'static str, f: LaneFn) {
        self.row(name, "rnd ftz sat", &[F32, F32x2], operands, f);
        self.row(name, "rnd", &[F64], operands, f);
        self.row(name, if relu.is_empty() { "rn ftz sat" } else { "rn ftz sat relu" }, &[F16, F16x2], operands, f);
        self.row(name, if relu.is_empty() { "rn" } else { "rn relu" }, &[BF16, BF16x2], operands, f);
    }

    fn approximations(&mut self) {
        self.approximate("rcp.approx", "ftz", "TT", |c, a| approximate(c, a, |x, _| 1.0 / x));
        self.approximate("sqrt.approx", "ftz", "TT", |c, a| approximate(c, a, |x, _| x.sqrt()));
        self.approximate("rsqrt.approx", "ftz", "TT", |c, a| approximate(c, a, |x, _| 1.0 / x.sqrt()));
        self.approximate("ex2.approx", "ftz", "TT", |c, a| approximate(c, a, |x, _| x.exp2()));
        self.approximate("lg2.approx", "ftz", "TT", |c, a| approximate(c, a, |x, _| x.log2()));
        self.approximate("sin.approx", "ftz", "TT", |c, a| approximate(c, a, |x, _| x.sin()));
        self.approximate("cos.approx", "ftz", "TT", |c, a| approximate(c, a, |x, _| x.cos()));
        self.approximate("tanh.approx", "", "TT", |c, a| approximate(c, a, |x, _| x.tanh()));
        self.approximate("div.full", "ftz", "TTT", |c, a| approximate(c, a, |x, y| x / y));
        self.approximate("div.approx", "ftz", "TTT", |c, a| approximate(c, a, div_approx));
        self.row("rcp.approx.ftz", "", &[F64], "TT", rcp_approx_f64);
        self.row("rsqrt.approx", "ftz", &[F64], "TT", |_, a| (1.0 / f64::from_bits(a[0]).sqrt()).to_bits());
        const HALVES: &[Ty] = &[F16, F16x2, BF16, BF16x2];
        self.row("ex2.approx", "ftz", HALVES, "TT", |c, a| float(c, a, |[x, ..]| Exact::from(x.exp2())));
        self.row("tanh.approx", "", HALVES, "TT", |c, a| float(c, a, |[x, ..]| Exact::from(x.tanh())));
    }

    /// An approximate function of f32.
    fn approximate(&mut self, name: &'static str, flags: &'static str, operands: &'static str, f: LaneFn) {
        self.push(Row { name, flags, types: &[F32], second: &[], operands, f: Some(f), approximate: true });
    }
}

/// The form that an instruction has, and its type; its modifiers are consumed.
fn form(t: &mut Text<'_>) -> Res<Option<(&'static Row, Ty)>> {
    let types = t.types();
    // Predicate logic and carries are not of this kind.
    let Some(rows) = ROWS.get(t.name).filter(|_| !t.has("cc") && types.first() != Some(&Pred)) else {
        return Ok(None);
    };
    let Some(&ty) = types.first() else { return t.ty().map(|_| None) };
    let named: Vec<&Row> = rows.iter().filter(|r| r.modifiers().all(|m| t.has(m))).collect();
    match named.iter().find(|r| r.types.contains(&ty)) {
        Some(row) => {
            t.parts.retain(|p| row.modifiers().all(|m| m != *p));
            Ok(Some((row, t.ty()?)))
        }
        None if named.is_empty() => t.fail(t.name, format!("needs {}", alternatives(others(rows, ty)))),
        None => t.wrong(ty),
    }
}

/// Modifiers of the forms that a type has.
fn others(rows: &'static [Row], ty: Ty) -> impl Iterator<Item = &'static str> {
    rows.iter().filter(move |r| r.types.contains(&ty)).flat_map(Row::modifiers)
}

/// Consumes the modifiers that a form may have.
fn modifiers(row: &'static Row, t: &mut Text<'_>, ty: Ty) -> Res<Ctl> {
    let mut c = Ctl::new(ty);
    let near = row.allows("rn") && t.take("rn");
    let round = if row.flags.starts_with("rnd") { t.round() } else { near.then_some(Round::Near) };
    if row.allows("rnd!") && round.is_none() {
        let others = others(&ROWS[t.name], ty);
        return t.fail(t.name, format!("needs {}", alternatives(["rn", "rz", "rm", "rp"].into_iter().chain(others))));
    }
    c.round = round.unwrap_or(Round::Near);
    let mut flag = |name| row.allows(name) && t.take(name);
    (c.ftz, c.sat, c.relu, c.nan) = (flag("ftz"), flag("sat"), flag("relu"), flag("NaN"));
    c.xorsign = flag("xorsign") && t.take("abs");
    Ok(c)
}

impl Decoder<'_> {
    /// Decodes an instruction of the table.
    pub(super) fn value(&mut self, t: &mut Text<'_>) -> Res<bool> {
        let Some((row, ty)) = form(t)? else { return Ok(false) };
        let second = if row.second.is_empty() { ty } else { t.expect(row.second)? };
        let mut c = modifiers(row, t, ty)?;
        let kinds: Vec<Ty> = row.operands.chars().map(|k| operand(k, ty, second)).collect();
        t.arity(kinds.len())?;
        let name = if row.second.is_empty() { row.name } else { t.opcode };
        let vector = if c.ftz { Vector::select(&format!("{name}.ftz"), ty) } else { Vector::select(name, ty) };
        if let Some(vector) = vector.filter(|_| c.round == Round::Near && !(c.sat || c.relu || c.nan || c.xorsign)) {
            let mut r = [0; 4];
            for (r, (arg, ty)) in r[1..].iter_mut().zip(t.args[1..].iter().zip(&kinds[1..])) {
                *r = self.src(arg, *ty)?;
            }
            r[0] = self.dst(&t.args[0], kinds[0])?;
            self.push(Op::Vector(vector, r));
            return Ok(true);
        }
        let Some(f) = row.f else { return t.wrong(ty) };
        c.sat |= row.modifiers().any(|m| m == "sat");
        (c.from, c.to) = match (row.second.is_empty(), row.name) {
            (true, _) => (ty, kinds[0]),
            (false, "slct") => (second, ty),
            _ => (ty, second),
        };
        let src = self.sources(t, &kinds[1..])?;
        let d = match kinds[0] {
            Pred => Dst::Truth(Truth::plain(self.pred_dst(&t.args[0])?)),
            ty => Dst::Reg(self.dst(&t.args[0], ty)?, width(ty)),
        };
        self.push(Op::Lane(Box::new(LaneOp { f, ctl: c, d, src, approximate: row.approximate })));
        Ok(true)
    }

    /// The operands after the first as sources of a scalar operation.
    pub(super) fn sources(&mut self, t: &Text<'_>, types: &[Ty]) -> Res<[(R, W); 4]> {
        let mut src = [(0, W::W32); 4];
        for (s, (arg, ty)) in src.iter_mut().zip(t.args[1..].iter().zip(types)) {
            *s = (self.src(arg, *ty)?, width(*ty));
        }
        Ok(src)
    }

    /// A scalar operation.
    pub(super) fn lane(&mut self, f: LaneFn, ctl: Ctl, d: Dst, src: [(R, W); 4]) {
        self.push(Op::Lane(Box::new(LaneOp { f, ctl, d, src, approximate: false })));
    }
}

/// The type of an operand.
fn operand(kind: char, ty: Ty, second: Ty) -> Ty {
    match kind {
        'T' => ty,
        'S' => second,
        'W' => ty.wider(),
        'U' => ty.unsigned(),
        'p' => Pred,
        _ => U32,
    }
}
