//! Instructions that compute values lane by lane. Rows for integers, bits and plain floats stand in `exec::values`;
//! here stand the forms of floats with modifiers, of packed values and of conversions.

use super::text::Text;
use super::{Decoder, Res};
use crate::exec::float::{self, Round};
use crate::exec::inst::*;
use crate::exec::scalar::*;
use crate::exec::values::{Piece, VALUES, Value, ValueFn};
use crate::machine::lanes::Lanes;
use crate::machine::types::Ty::{self, *};

type Str = &'static str;

/// One form of an instruction.
struct Form {
    /// Opcode with the modifiers that distinguish the form.
    name: Str,
    /// Further modifiers, as far as the type allows them; `!` requires a rounding mode.
    flags: Str,
    types: &'static [Ty],
    /// Types of destination and sources, by the names that `types` reads.
    operands: Str,
    f: LaneFn,
}

impl Form {
    /// Whether both form and type allow a modifier.
    fn allows(&self, flag: &str, ty: Ty) -> bool {
        let of_type = match ty {
            F32 => "rn rz rm rp ftz sat",
            F64 => "rn rz rm rp",
            F16 => "rn ftz sat relu",
            BF16 => "rn relu",
            _ => self.flags,
        };
        [of_type, self.flags].iter().all(|flags| flags.split(' ').any(|f| f == flag))
    }
}

const fn form(name: Str, flags: Str, types: &'static [Ty], operands: Str, f: LaneFn) -> Form {
    Form { name, flags, types, operands, f }
}

/// An operation that computes a value.
enum Operation {
    Row(ValueFn),
    Form(LaneFn, Ctl),
}

/// Rounding modes.
pub(super) const ROUND: &[(&str, Round)] =
    &[("rn", Round::Near), ("rz", Round::Zero), ("rm", Round::Down), ("rp", Round::Up), ("rna", Round::Away)];

const FLOATS: &[Ty] = &[F32, F64, F16, BF16];
const BUT_F64: &[Ty] = &[F32, F16, BF16];
const FULL: &[Ty] = &[F32, F64];
const HALVES: &[Ty] = &[F16, BF16];

static FORMS: &[Form] = &[
    form("add", "rn rz rm rp ftz sat", FLOATS, "T T T", |c, a| float(c, a, |[x, y, _]| float::add(x, y))),
    form("sub", "rn rz rm rp ftz sat", FLOATS, "T T T", |c, a| float(c, a, |[x, y, _]| float::add(x, -y))),
    form("mul", "rn rz rm rp ftz sat", FLOATS, "T T T", |c, a| float(c, a, |[x, y, _]| float::mul(x, y))),
    // The product is exact in f64.
    form("fma", "! rn rz rm rp ftz sat relu", BUT_F64, "T T T T", |c, a| float(c, a, |[x, y, z]| float::add(x * y, z))),
    form("fma", "! rn rz rm rp", &[F64], "T T T T", |c, a| float(c, a, |[x, y, z]| float::fma(x, y, z))),
    form("mad", "rn rz rm rp ftz sat", &[F32], "T T T T", |c, a| float(c, a, |[x, y, z]| float::add(x * y, z))),
    form("div", "! rn rz rm rp ftz", FULL, "T T T", |c, a| float(c, a, |[x, y, _]| float::div(x, y))),
    form("rcp", "! rn rz rm rp ftz", FULL, "T T", |c, a| float(c, a, |[x, ..]| float::div(1.0, x))),
    form("sqrt", "! rn rz rm rp ftz", FULL, "T T", |c, a| float(c, a, |[x, ..]| float::sqrt(x))),
    form("rcp.approx", "ftz", &[F32], "T T", |c, a| approximately(c, a, |x, _| 1.0 / x)),
    form("sqrt.approx", "ftz", &[F32], "T T", |c, a| approximately(c, a, |x, _| x.sqrt())),
    form("rsqrt.approx", "ftz", &[F32], "T T", |c, a| approximately(c, a, |x, _| 1.0 / x.sqrt())),
    form("ex2.approx", "ftz", &[F32], "T T", |c, a| approximately(c, a, |x, _| x.exp2())),
    form("lg2.approx", "ftz", &[F32], "T T", |c, a| approximately(c, a, |x, _| x.log2())),
    form("sin.approx", "ftz", &[F32], "T T", |c, a| approximately(c, a, |x, _| x.sin())),
    form("cos.approx", "ftz", &[F32], "T T", |c, a| approximately(c, a, |x, _| x.cos())),
    form("tanh.approx", "", &[F32], "T T", |c, a| approximately(c, a, |x, _| x.tanh())),
    form("div.full", "ftz", &[F32], "T T T", |c, a| approximately(c, a, |x, y| x / y)),
    form("div.approx", "ftz", &[F32], "T T T", |c, a| approximately(c, a, div_approx)),
    form("rcp.approx.ftz", "", &[F64], "T T", |_, [x, ..]| rcp_approx_f64(x)),
    form("rsqrt.approx", "", &[F64], "T T", |_, [x, ..]| (1.0 / f64::from_bits(x).sqrt()).to_bits()),
    form("rsqrt.approx.ftz", "", &[F64], "T T", |_, [x, ..]| (1.0 / f64::from_bits(x).sqrt()).to_bits()),
    form("ex2.approx", "ftz", &[F16], "T T", |c, a| float(c, a, |[x, ..]| x.exp2().into())),
    form("ex2.approx.ftz", "", &[BF16], "T T", |c, a| float(c, a, |[x, ..]| x.exp2().into())),
    form("tanh.approx", "", HALVES, "T T", |c, a| float(c, a, |[x, ..]| x.tanh().into())),
    form("cvt.f32", "! rn rz relu", &[F16x2, BF16x2], "T f32 f32", cvt_pack),
    form("cvt.rn.satfinite.f32", "relu", &[E4M3x2, E5M2x2], "b16 f32 f32", cvt_pack),
    form("cvt.rn.e4m3x2", "relu", &[F16x2], "T b16", cvt_unpack8),
    form("cvt.rn.e5m2x2", "relu", &[F16x2], "T b16", cvt_unpack8),
    form("cvt.f32", "! rn rz rna relu", &[TF32], "b32 f32", cvt),
    form("cvt.pack.sat.s32", "", &[U16, S16], "b32 s32 s32", cvt_pack_sat),
    form("cvt.pack.sat.s32.b32", "", &[U8, S8], "b32 s32 s32 b32", cvt_pack_sat),
];

/// Whether an instruction has a form for pairs of this type.
fn has_pairs(name: &str, ty: Ty) -> bool {
    match ty {
        F16x2 | BF16x2 => {
            matches!(name, "add" | "sub" | "mul" | "fma" | "neg" | "abs" | "min" | "max" | "ex2" | "tanh")
        }
        U16x2 | S16x2 => matches!(name, "add" | "min" | "max"),
        _ => false,
    }
}

/// The types of operands by name, as in `exec::values`: `T` and `F` are the instruction's own type, `W` an integer of
/// twice its size.
fn types(operands: impl Iterator<Item = Str>, ty: Ty) -> Vec<Ty> {
    let operand = |name| match name {
        "W" => Ty::sized(2 * ty.bytes(), ty.signed()),
        name => Ty::parse(name),
    };
    operands.map(|name| operand(name).unwrap_or(ty)).collect()
}

/// The row of a name and type, and its operands' types.
fn row(name: &str, ty: Ty) -> Option<(Operation, Vec<Ty>)> {
    let value = VALUES.get(&(name, ty))?;
    Some((Operation::Row(value.run), types(value.operands.iter().copied(), ty)))
}

/// All forms and rows of an instruction, with their types.
fn forms_of(name: &str) -> Vec<(Str, Ty)> {
    let forms = FORMS.iter().flat_map(|f| f.types.iter().map(|ty| (f.name, *ty)));
    VALUES.keys().copied().chain(forms).filter(|f| f.0.split('.').next() == Some(name)).collect()
}

/// Reads a form's modifiers. Returns the operation, a row where only `.ftz` is left, and its operands' types.
fn with_modifiers(t: &mut Text<'_>, form: &Form, ty: Ty) -> Res<(Operation, Vec<Ty>)> {
    form.name.split('.').skip(1).for_each(|part| _ = t.take(part));
    let mut flag = |name| form.allows(name, ty) && t.take(name);
    let (ftz, relu, sat) = (flag("ftz"), flag("relu"), flag("sat"));
    let round = ROUND.iter().find(|(name, _)| flag(name)).map(|(_, round)| *round);
    t.ensure(round.is_some() || !form.flags.contains('!'), "needs a rounding mode, such as .rn, or .approx")?;
    let round = round.unwrap_or(Round::Near);
    let plain = round == Round::Near && !(sat || relu);
    let name = format!("{}{}", form.name, if ftz { ".ftz" } else { "" });
    if let Some(row) = row(&name, ty).filter(|_| plain) {
        return Ok(row);
    }
    // A conversion's source is a part of its name.
    let from = form.name.split('.').find_map(Ty::parse).unwrap_or(ty);
    let ctl = Ctl { from, to: ty, round, ftz, sat, relu, integral: false, seed: None };
    Ok((Operation::Form(form.f, ctl), types(form.operands.split(' '), ty)))
}

impl Decoder<'_> {
    /// Decodes an instruction of `FORMS` or of `exec::values`.
    pub(super) fn value(&mut self, t: &mut Text<'_>) -> Res<bool> {
        let whole = t.read(Ty::parse).unwrap_or(Pred);
        let pair = has_pairs(t.name, whole);
        let ty = if pair { whole.element() } else { whole };
        // Of the forms that fit, the one that says most.
        let fits = |f: &&Form| {
            let modifiers = f.name.strip_prefix(t.name).filter(|rest| rest.is_empty() || rest.starts_with('.'));
            modifiers.is_some_and(|parts| parts.split('.').skip(1).all(|p| t.has(p))) && f.types.contains(&ty)
        };
        let (operation, types) = match FORMS.iter().filter(fits).max_by_key(|f| f.name.len()) {
            Some(form) => with_modifiers(t, form, ty)?,
            None if t.name == "cvt" => return self.cvt(t, ty).map(|()| true),
            None => {
                let ftz = t.take("ftz").then_some("ftz");
                let parts: Vec<&str> = t.parts.drain(..).chain(ftz).collect();
                let name = [&[t.name], &parts[..]].concat().join(".");
                match row(&name, ty) {
                    Some(row) => row,
                    None if forms_of(t.name).is_empty() => return Ok(false),
                    None => {
                        let mut forms: Vec<&str> = forms_of(t.name).iter().filter(|f| f.1 == ty).map(|f| f.0).collect();
                        forms.sort_unstable();
                        let list = forms.join(", ");
                        let message = format!("modifiers that make no form; of type {ty:?} there are: {list}");
                        return t.fail(format!(".{}", parts.join(".")), message);
                    }
                }
            }
        };
        if pair {
            self.pair(t, &operation, whole, types.len())?;
        } else {
            let operands = self.operands(t, &types)?;
            self.operation(&operation, operands);
            if t.name == "selp" {
                self.flag(SELECTS);
            }
        }
        Ok(true)
    }

    /// Pushes an operation with its destination and sources.
    fn operation(&mut self, operation: &Operation, operands: [(R, W); 5]) {
        match *operation {
            Operation::Row(run) => self.push(Op::Value(run, operands.map(|(slot, _)| slot))),
            Operation::Form(f, ctl) => self.lane(move |seed, a| f(&Ctl { seed, ..ctl }, a), operands),
        }
    }

    /// Pushes an operation on packed pairs: unpacks the sources, operates on both halves, packs the results.
    fn pair(&mut self, t: &Text<'_>, operation: &Operation, ty: Ty, n: usize) -> Res<()> {
        t.arity(n)?;
        let sources = t.args[1..].iter().map(|arg| self.src(arg, ty)).collect::<Res<Vec<R>>>()?;
        let mut halves = [0; 2];
        for (made, half) in halves.iter_mut().zip([Piece::LowerHalf, Piece::UpperHalf]) {
            let mut operands = [(0, W::W32); 5];
            for (operand, source) in operands[1..].iter_mut().zip(&sources) {
                operand.0 = self.made(B16, |decoder, d| decoder.piece(half, B32, &[d, *source]))?;
            }
            *made = self.made(B16, |decoder, d| {
                operands[0].0 = d;
                decoder.operation(operation, operands);
                Ok(())
            })?;
        }
        let [low, high] = halves;
        let d = self.dst(t, ty)?;
        self.piece(Piece::Halves, B32, &[d, low, high])
    }

    /// A temporary register with the result of what `push` appends.
    pub(super) fn made(&mut self, ty: Ty, push: impl FnOnce(&mut Self, R) -> Res<()>) -> Res<R> {
        let temp = self.temp(ty);
        let d = self.write(temp);
        push(self, d)?;
        Ok(self.read(temp))
    }

    /// Pushes a piece: its destination and sources.
    pub(super) fn piece(&mut self, piece: Piece, ty: Ty, slots: &[R]) -> Res<()> {
        match piece.row(ty) {
            Some(value) => self.row(value, slots),
            None => return self.fail(piece.name(), format!("the emulator has no such operation of {ty:?}")),
        }
        Ok(())
    }

    /// Pushes a row of `exec::values`: its destination and sources.
    pub(super) fn row(&mut self, value: &Value, slots: &[R]) {
        let mut r = [0; 5];
        r[..slots.len()].copy_from_slice(slots);
        self.push(Op::Value(value.run, r));
    }

    /// Pushes an operation on one lane at a time. It gets the seed of perturbations, if they are on.
    pub(super) fn lane(
        &mut self,
        f: impl Fn(Option<u64>, [u64; 3]) -> u64 + Send + Sync + 'static,
        [d, a, b, c, _]: [(R, W); 5],
    ) {
        self.act(move |cpu, site| {
            let seed = cpu.cx.config.perturb.then_some(cpu.cx.config.seed);
            for l in Lanes(site.m) {
                let v = f(seed, [a, b, c].map(|source| site.warp.lane(cpu.cx.code, source, l)));
                site.warp.set_lane(d.0, d.1, l, v);
            }
        });
        self.flag(CARRIES);
    }
}
