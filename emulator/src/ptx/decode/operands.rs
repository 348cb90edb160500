//! Operands: names and literals to slots, with what the instruction at hand reads and writes.

use super::super::ast::{Arg, Num};
use super::super::types::{Space, Ty};
use super::{Decoder, Entity, Global, Res};
use crate::exec::inst::*;
use crate::exec::lanes::{Lanes, Slot};
use crate::exec::special::{Special, special};

/// A register that no text names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Temp(u32, Ty);

/// How a type stands in a register.
pub(super) fn width(ty: Ty) -> W {
    match ty.bytes() {
        0 => W::Pred,
        8 => W::W64,
        _ => W::W32,
    }
}

/// The elements of a vector operand, or the one operand.
pub(super) fn list(arg: &Arg) -> &[Arg] {
    match arg {
        Arg::Vector(v) => v,
        one => std::slice::from_ref(one),
    }
}

impl Decoder<'_> {
    /// The address of a variable, in its own space.
    pub(super) fn symbol(&mut self, name: &str) -> Res<Option<(Space, u64)>> {
        match self.lookup(name) {
            Some(Entity::Var { space, address }) => return Ok(Some((space, address))),
            Some(_) => return Ok(None),
            None => {}
        }
        match self.globals.get(name) {
            None => Ok(None),
            Some(Global::Memory { address, constant }) => {
                Ok(Some((if *constant { Space::Const } else { Space::Global }, *address)))
            }
            Some(Global::Shared(v)) => {
                if let Some(at) = self.shared.get(name) {
                    return Ok(Some((Space::Shared, *at)));
                }
                let at = self.place_shared(v)?;
                self.shared.insert(name.to_string(), at);
                Ok(Some((Space::Shared, at)))
            }
        }
    }

    /// A constant, the same in all lanes.
    pub(super) fn constant(&mut self, bits: u64, wide: bool) -> R {
        let bits = if wide { bits } else { bits & 0xffff_ffff };
        if let Some(r) = self.consts.get(&(bits, wide)) {
            return *r;
        }
        let at = self.code.consts.len() as u32 | CONST;
        let halves = [bits as u32, if wide { (bits >> 32) as u32 } else { bits as u32 }];
        let slot = Slot(std::array::from_fn(|i| halves[i % 2]));
        self.code.consts.extend(std::iter::repeat_n(slot, if wide { 2 } else { 1 }));
        self.consts.insert((bits, wide), at);
        at
    }

    fn number_bits(&self, n: Num, ty: Ty) -> Res<u64> {
        let bits = match (n, ty) {
            (Num::Int(i), _) if !ty.float() || matches!(ty, Ty::F16 | Ty::BF16) => i,
            (Num::F32(b), Ty::F32 | Ty::B32) => u64::from(b),
            (Num::F32(b), Ty::F64 | Ty::B64) => f64::from(f32::from_bits(b)).to_bits(),
            (Num::F64(v), Ty::F32) => u64::from((v as f32).to_bits()),
            (Num::F64(v), Ty::F64 | Ty::B64) => v.to_bits(),
            _ => return self.fail(format!("{n:?}"), "literal that does not fit the operand's type"),
        };
        Ok(if ty.bits() < 64 { bits & ((1u64 << ty.bits()) - 1) } else { bits })
    }

    /// Notes that the instruction at hand reads or writes a register, and gives its slot.
    fn note(&mut self, slot: u32, ty: Ty, write: bool) -> R {
        let list = if write { &mut self.cur.writes } else { &mut self.cur.reads };
        if ty == Ty::Pred {
            list.push(PRED_BASE + slot);
            return slot;
        }
        list.extend((0..ty.bytes().div_ceil(4)).map(|i| slot + i));
        self.plan.slots.get(slot as usize).copied().unwrap_or(slot)
    }

    /// A register by name, with its type.
    pub(super) fn named(&self, name: &str) -> Option<(u32, Ty)> {
        match self.lookup(name)? {
            Entity::Reg(slot, ty) => Some((slot, ty)),
            _ => None,
        }
    }

    /// A source of exactly this type: a register, a literal or a special register.
    pub(super) fn src(&mut self, arg: &Arg, ty: Ty) -> Res<R> {
        match arg {
            Arg::Num(n) => {
                let bits = self.number_bits(*n, ty)?;
                Ok(self.constant(bits, ty.bytes() == 8))
            }
            Arg::Word(name) => {
                if let Some((slot, have)) = self.named(name) {
                    if !ty.accepts(have) {
                        return self.fail(name, format!("a {have:?} register where the instruction wants {ty:?}"));
                    }
                    return Ok(self.note(slot, have, false));
                }
                if let Some(s) = special(name) {
                    return self.special(name, s, ty);
                }
                if name == "WARP_SZ" {
                    return Ok(self.constant(32, ty.bytes() == 8));
                }
                self.fail(name, "operand that is not declared")
            }
            _ => self.fail(format!("{arg:?}"), "operand form that this instruction does not have"),
        }
    }

    /// Reads a special register into a temporary.
    fn special(&mut self, name: &str, s: Special, ty: Ty) -> Res<R> {
        if !matches!(ty.bytes(), 2 | 4 | 8) || ty.float() {
            return self.fail(name, "special registers are integers");
        }
        let t = self.temp(ty);
        self.aside(|d| {
            let slot = d.write(t);
            d.special_into(s, slot, width(ty));
        });
        Ok(self.read(t))
    }

    /// Reads a special register.
    pub(super) fn special_into(&mut self, s: Special, d: R, w: W) {
        self.act(move |cpu, site| {
            for l in Lanes(site.m) {
                let v = s(cpu, site, l);
                site.warp.set_lane(d, w, l, v);
            }
        });
    }

    /// Pushes what has to come before the instruction at hand.
    fn aside(&mut self, f: impl FnOnce(&mut Self)) {
        let saved = std::mem::take(&mut self.cur);
        f(self);
        self.cur = saved;
    }

    /// A temporary register.
    pub(super) fn temp(&mut self, ty: Ty) -> Temp {
        let slot = self.code.slots;
        let width = ty.bytes().div_ceil(4).max(1);
        self.widths.push((slot, width));
        self.code.slots += width;
        Temp(slot, ty)
    }

    /// The next instruction reads a temporary.
    pub(super) fn read(&mut self, t: Temp) -> R {
        self.note(t.0, t.1, false)
    }

    /// The next instruction writes a temporary.
    pub(super) fn write(&mut self, t: Temp) -> R {
        self.note(t.0, t.1, true)
    }

    /// A destination of exactly this type; `_` goes to the sink.
    pub(super) fn dst(&mut self, arg: &Arg, ty: Ty) -> Res<R> {
        match arg {
            Arg::Word(name) => self.dst_named(name, ty),
            _ => self.fail(format!("{arg:?}"), "destination must be a register"),
        }
    }

    fn dst_named(&mut self, name: &str, ty: Ty) -> Res<R> {
        match self.named(name) {
            _ if name == "_" => Ok(0),
            Some((slot, have)) if ty.accepts(have) => Ok(self.note(slot, have, true)),
            Some((_, have)) => self.fail(name, format!("a {have:?} register where the instruction wants {ty:?}")),
            None => self.fail(name, "destination that is not a declared register"),
        }
    }

    /// A register at least as wide as the type, as loads, stores and conversions allow; with its own type.
    pub(super) fn loose(&mut self, arg: &Arg, ty: Ty, write: bool) -> Res<(R, W, Ty)> {
        let name = match arg {
            Arg::Word(name) if name == "_" && write => return Ok((0, width(ty), ty)),
            Arg::Word(name) if self.named(name).is_some() => name,
            _ if !write => return Ok((self.src(arg, ty)?, width(ty), ty)),
            _ => return self.fail(format!("{arg:?}"), "destination that is not a declared register"),
        };
        let (slot, have) = self.named(name).unwrap_or((0, ty));
        // A float register may also hold a `.b` value of its own size.
        let floats = |t: Ty| matches!(t, Ty::F32 | Ty::F64 | Ty::F16);
        let fits = ty.accepts(have) || (have.bytes() >= ty.bytes() && !floats(have) && !floats(ty));
        if have == Ty::Pred || !fits {
            return self.fail(name, format!("a {have:?} register where the instruction wants {ty:?}"));
        }
        Ok((self.note(slot, have, write), width(have), have))
    }

    /// A predicate source, perhaps negated.
    pub(super) fn pred(&mut self, arg: &Arg) -> Res<(P, bool)> {
        let (name, negated) = match arg {
            Arg::Word(n) => (n, false),
            Arg::Not(n) => (n, true),
            Arg::Num(Num::Int(v)) => {
                // A constant predicate is a temporary that is set first.
                let p = self.temp_pred()?;
                self.aside(|d| d.push(Op::Pred(if *v != 0 { 0b1111 } else { 0 }, p, 0, 0)));
                return Ok((p, false));
            }
            _ => return self.fail(format!("{arg:?}"), "expected a predicate"),
        };
        match self.named(name) {
            Some((p, Ty::Pred)) => Ok((self.note(p, Ty::Pred, false), negated)),
            _ => self.fail(name, "expected a predicate"),
        }
    }

    /// A temporary predicate, of which no account is kept: it is written before it is read.
    pub(super) fn temp_pred(&mut self) -> Res<P> {
        self.code.preds += 1;
        match self.code.preds {
            n if n <= MAX_PREDICATES => Ok(n - 1),
            _ => self.fail("predicate", "more predicates than the emulator allows"),
        }
    }

    /// A destination `d` or `d|p`: a register (or predicate) and a predicate.
    pub(super) fn pair(&mut self, arg: &Arg, ty: Ty) -> Res<(R, P)> {
        match arg {
            Arg::Pair(d, p) => Ok((self.dst_named(d, ty)?, self.dst_named(p, Ty::Pred)?)),
            d => Ok((self.dst(d, ty)?, 0)),
        }
    }

    /// An address operand; the space may be narrowed by what the operand names.
    pub(super) fn address(&mut self, arg: &Arg, space: Space) -> Res<Address> {
        let Arg::Address(base, offset) = arg else {
            return self.fail(format!("{arg:?}"), "expected an address in brackets");
        };
        let mem = if space == Space::Const { Space::Global } else { space };
        let mut address = Address { base: NONE, wide: true, offset: *offset, space: mem };
        let Some(name) = base else { return Ok(address) };
        if let Some((slot, ty)) = self.named(name) {
            if !matches!(ty.bytes(), 4 | 8) || ty.float() {
                return self.fail(name, "an address is a 32-bit or 64-bit integer");
            }
            address.wide = ty.bytes() == 8;
            if !address.wide && matches!(mem, Space::Generic | Space::Global) {
                return self.fail(name, "an address in this state space has 64 bits");
            }
            address.base = self.note(slot, ty, false);
            return Ok(address);
        }
        let Some((found, at)) = self.symbol(name)? else {
            return self.fail(name, "address of something that is not declared");
        };
        match (mem, found) {
            // Parameters of functions live in local memory.
            (Space::Param, Space::Local) => address.space = Space::Local,
            (Space::Param, Space::Param)
            | (Space::Shared, Space::Shared)
            | (Space::Local, Space::Local)
            | (Space::Global | Space::Generic, Space::Global | Space::Const) => {}
            _ => return self.fail(name, format!("a variable in {found:?} space, accessed as {space:?}")),
        }
        address.offset = offset.wrapping_add(at as i64);
        Ok(address)
    }
}
