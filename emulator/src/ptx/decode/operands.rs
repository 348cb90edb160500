//! Operands: names and literals to slots, noting which registers the instruction reads and writes.
//!
//! Sources are decoded before destinations: a source may push operations of its own, and the next pushed operation
//! takes the noted writes.

use super::super::ast::{Arg, Num, Var};
use super::text::{Text, WRONG_OPERANDS};
use super::{Decoder, Entity, Register, Res};
use crate::exec::inst::*;
use crate::exec::special::{Special, special};
use crate::machine::lanes::{Lanes, Slot};
use crate::machine::types::{Space, Ty};

/// Names of the shared memory that the system keeps for itself, where libraries of the toolkit find room; and its bytes.
const RESERVED: &str = "%reserved_smem_offset_";
const RESERVED_BYTES: u64 = 1024;

/// Width of a type in a register.
pub(super) fn width(ty: Ty) -> W {
    match ty.bytes() {
        0 => W::Pred,
        8 => W::W64,
        _ => W::W32,
    }
}

/// The elements of a vector operand, or the operand itself.
pub(super) fn list(arg: &Arg) -> &[Arg] {
    match arg {
        Arg::Vector(v) => v,
        one => std::slice::from_ref(one),
    }
}

impl Decoder<'_> {
    /// The address of a variable, in its own space.
    fn symbol(&mut self, name: &str) -> Res<Option<(Space, u64)>> {
        match self.lookup(name) {
            Some(Entity::Var { space, address }) => Ok(Some((space, address))),
            Some(Entity::Shared(v)) => {
                let address = self.place_shared(&v)?;
                self.globals.insert(name.to_string(), Entity::Var { space: Space::Shared, address });
                Ok(Some((Space::Shared, address)))
            }
            _ => Ok(None),
        }
    }

    /// The value of `%reserved_smem_offset_*`. The region is placed as a variable of the kernels that ask for it.
    fn reserved(&mut self, asked: &str) -> Res<u64> {
        let size = 64 + RESERVED_BYTES;
        let Some((_, base)) = self.symbol(RESERVED)? else {
            let name = RESERVED.to_owned();
            let (space, ty, init, line) = (Space::Shared, Ty::B8, Vec::new(), self.origin.line);
            let v = Var { space, ty, align: 64, name: name.clone(), count: Some(size), init, line };
            self.globals.insert(name, Entity::Shared(v));
            return self.reserved(asked);
        };
        match &asked[RESERVED.len()..] {
            "begin" | "0" => Ok(base),
            "1" => Ok(base + 64),
            "end" => Ok(base + size),
            "cap" => Ok(size),
            _ => self.fail(asked, "operand that is not declared"),
        }
    }

    /// The slot of a constant, the same in all lanes.
    pub(super) fn constant(&mut self, bits: u64, wide: bool) -> R {
        let bits = if wide { bits } else { bits & 0xffff_ffff };
        if let Some(r) = self.consts.get(&(bits, wide)) {
            return *r;
        }
        let at = self.code.consts.len() as u32 | CONST;
        let halves = [bits as u32, (if wide { bits >> 32 } else { bits }) as u32];
        let slot = Slot(std::array::from_fn(|i| halves[i % 2]));
        self.code.consts.extend(std::iter::repeat_n(slot, if wide { 2 } else { 1 }));
        self.consts.insert((bits, wide), at);
        at
    }

    /// A literal as an operand of a type.
    fn literal(&mut self, n: Num, ty: Ty) -> Res<R> {
        let bits = match (n, ty) {
            (Num::Int(i), Ty::Pred) => {
                let p = self.temp_pred()?;
                self.push(Op::Pred(if i != 0 { 0b1111 } else { 0 }, p, 0, 0));
                return Ok(p);
            }
            (Num::Int(i), _) if !matches!(ty, Ty::F32 | Ty::F64 | Ty::TF32) => i,
            (Num::F32(b), Ty::F32 | Ty::B32) => u64::from(b),
            (Num::F64(v), Ty::F32) => u64::from((v as f32).to_bits()),
            (Num::F64(v), Ty::F64 | Ty::B64) => v.to_bits(),
            _ => return self.fail(n.to_string(), "literal that does not fit the operand's type"),
        };
        Ok(self.constant(if ty.bits() < 64 { bits & ((1 << ty.bits()) - 1) } else { bits }, ty.bytes() == 8))
    }

    /// The number of a register in this pass.
    pub(super) fn find(&self, (r, _): Register) -> u32 {
        self.plan.as_ref().and_then(|plan| plan.slots.get(r as usize).copied()).unwrap_or(r)
    }

    /// Notes that the instruction, and so each of its operations, reads a register.
    pub(super) fn read(&mut self, register: Register) -> R {
        let r = self.find(register);
        self.uses.reads.push(r);
        r & !PRED_BASE
    }

    /// Notes that the next operation writes a register.
    pub(super) fn write(&mut self, register: Register) -> R {
        let r = self.find(register);
        self.uses.writes.push(r);
        r & !PRED_BASE
    }

    /// A register by name, with its type.
    pub(super) fn named(&self, name: &str) -> Option<Register> {
        match self.lookup(name)? {
            Entity::Register(register) => Some(register),
            _ => None,
        }
    }

    /// Pushes the read of a special register.
    pub(super) fn special(&mut self, s: Special, d: R, w: W) {
        self.act(move |cpu, site| {
            for l in Lanes(site.m) {
                let v = s(cpu, site, l);
                site.warp.set_lane(d, w, l, v);
            }
        });
        self.flag(CARRIES);
    }

    /// A temporary register.
    pub(super) fn temp(&mut self, ty: Ty) -> Register {
        let slot = self.code.slots;
        let width = ty.bytes().div_ceil(4).max(1);
        self.widths.insert(slot, width);
        self.code.slots += width;
        (slot, ty)
    }

    /// A temporary predicate. Its uses are not noted, since it is written before it is read.
    pub(super) fn temp_pred(&mut self) -> Res<P> {
        self.code.preds += 1;
        match self.code.preds {
            n if n <= MAX_PREDICATES => Ok(n - 1),
            _ => self.fail("predicate", "more predicates than the emulator allows"),
        }
    }

    fn mismatch<T>(&self, name: &str, have: Ty, want: Ty) -> Res<T> {
        self.fail(name, format!("a register of type .{} where the instruction wants .{}", have.name(), want.name()))
    }

    /// A source of exactly this type: a register, a literal, a special register, or a negated predicate.
    pub(super) fn src(&mut self, arg: &Arg, ty: Ty) -> Res<R> {
        let name = match arg {
            Arg::Num(n) => return self.literal(*n, ty),
            Arg::Word(name) => name,
            Arg::Not(name) if ty == Ty::Pred => name,
            _ => return self.fail(arg.to_string(), "operand form that this instruction does not have"),
        };
        if let Some(register) = self.named(name) {
            if !ty.accepts(register.1) {
                return self.mismatch(name, register.1, ty);
            }
            let r = self.read(register);
            if matches!(arg, Arg::Word(_)) {
                return Ok(r);
            }
            let opposite = self.temp_pred()?;
            self.push(Op::Pred(negate(FIRST, true), opposite, r, 0));
            return Ok(opposite);
        }
        match special(name) {
            Some(_) if (name == "%is_explicit_cluster") != (ty == Ty::Pred) => {
                self.fail(name, "only %is_explicit_cluster is a predicate")
            }
            Some(special) if ty == Ty::Pred => {
                let d = self.temp_pred()?;
                self.special(special, d, W::Pred);
                Ok(d)
            }
            Some(_) if !matches!(ty.bytes(), 2 | 4 | 8) || ty.float() => {
                self.fail(name, "special registers are integers")
            }
            None if name.starts_with(RESERVED) => {
                let address = self.reserved(name)?;
                Ok(self.constant(address, ty.bytes() == 8))
            }
            Some(special) => {
                self.code.workspace |= name.starts_with("%envreg");
                let temp = self.temp(ty);
                let d = self.write(temp);
                self.special(special, d, width(ty));
                Ok(self.read(temp))
            }
            None if name == "WARP_SZ" && ty.bytes() >= 4 && !ty.float() => self.literal(Num::Int(32), ty),
            None => self.fail(name, "operand that is not declared"),
        }
    }

    /// A source that may be missing.
    pub(super) fn optional(&mut self, arg: Option<&Arg>, ty: Ty) -> Res<R> {
        arg.map_or(Ok(NONE), |arg| self.src(arg, ty))
    }

    /// A source that may also be the address of a function, or of a variable in its own space.
    pub(super) fn pointer(&mut self, arg: &Arg, ty: Ty) -> Res<R> {
        let (name, offset) = match arg {
            Arg::Word(name) => (name, 0),
            Arg::Offset(name, offset) => (name, *offset),
            _ => return self.src(arg, ty),
        };
        let base = match self.symbol(name)? {
            Some((_, base)) => base,
            None if self.lookup(name).is_some() => return self.src(arg, ty),
            None => match self.function(name) {
                Some(f) => f.address,
                None => return self.src(arg, ty),
            },
        };
        let address = base.wrapping_add_signed(offset);
        let wide = Ty::U64.accepts(ty);
        if !wide && (!Ty::U32.accepts(ty) || address >> 32 != 0) {
            return self.fail(name, "the address does not fit the type");
        }
        Ok(self.constant(address, wide))
    }

    /// The first operand, a destination of exactly this type.
    pub(super) fn dst(&mut self, t: &Text<'_>, ty: Ty) -> Res<R> {
        self.element(t.some(t.args.first(), WRONG_OPERANDS)?, ty, true)
    }

    /// The predicate of a destination `d|p`, or the sink.
    pub(super) fn second(&mut self, t: &mut Text<'_>) -> Res<P> {
        t.second.take().map_or(Ok(0), |name| self.destination(name, Ty::Pred))
    }

    /// A source, or a destination.
    pub(super) fn element(&mut self, arg: &Arg, ty: Ty, write: bool) -> Res<R> {
        match arg {
            _ if !write => self.src(arg, ty),
            Arg::Word(name) => self.destination(name, ty),
            _ => self.fail(arg.to_string(), "destination must be a register"),
        }
    }

    /// A destination register; `_` is the sink.
    fn destination(&mut self, name: &str, ty: Ty) -> Res<R> {
        match self.named(name) {
            _ if name == "_" => Ok(0),
            Some(register) if ty.accepts(register.1) => Ok(self.write(register)),
            Some((_, have)) => self.mismatch(name, have, ty),
            None => self.fail(name, "destination that is not a declared register"),
        }
    }

    /// A register at least as wide as the type, as loads, stores and conversions allow; with its own type.
    pub(super) fn loose(&mut self, arg: &Arg, ty: Ty, write: bool) -> Res<(R, Ty)> {
        if let Arg::Word(name) = arg
            && let Some(register @ (_, have)) = self.named(name)
        {
            // A float register may also hold a `.b` value of its own size.
            let floats = |t: Ty| matches!(t, Ty::F32 | Ty::F64 | Ty::F16);
            if !ty.accepts(have) && (have.bytes() < ty.bytes() || floats(have) || floats(ty)) {
                return self.mismatch(name, have, ty);
            }
            return Ok((if write { self.write(register) } else { self.read(register) }, have));
        }
        Ok((self.element(arg, ty, write)?, ty))
    }

    /// The operands of an instruction with a destination and sources of these types.
    pub(super) fn operands(&mut self, t: &Text<'_>, types: &[Ty]) -> Res<[(R, W); 5]> {
        t.arity(types.len())?;
        let mut operands = [(0, W::W32); 5];
        for (i, ty) in types.iter().enumerate().skip(1) {
            operands[i] = (self.src(&t.args[i], *ty)?, width(*ty));
        }
        operands[0] = (self.dst(t, types[0])?, width(types[0]));
        Ok(operands)
    }

    /// The slots of such operands.
    pub(super) fn slots(&mut self, t: &Text<'_>, types: &[Ty]) -> Res<[R; 5]> {
        Ok(self.operands(t, types)?.map(|(slot, _)| slot))
    }

    /// An address operand.
    pub(super) fn address(&mut self, arg: &Arg, space: Space) -> Res<Address> {
        let Arg::Address(name, offset) = arg else {
            return self.fail(arg.to_string(), "expected an address in brackets");
        };
        let mem = if space == Space::Const { Space::Global } else { space };
        if let Some(base @ (_, ty)) = self.named(name) {
            let wide = Ty::U64.accepts(ty);
            if !wide && (!Ty::U32.accepts(ty) || matches!(mem, Space::Generic | Space::Global)) {
                return self.fail(name, "an address is an integer of 64 bits, or of 32 in a block's own spaces");
            }
            return Ok(Address { base: self.read(base), wide, offset: *offset, space: mem });
        }
        let Some((found, at)) = self.symbol(name)? else {
            return self.fail(name, "address of something that is not declared");
        };
        let space = match (mem, found) {
            // Parameters of functions live in local memory.
            (Space::Param, Space::Local) => found,
            (Space::Global | Space::Generic, Space::Global | Space::Const) => mem,
            _ if mem == found => mem,
            _ => return self.fail(name, format!("a variable in {found:?} space, accessed as {space:?}")),
        };
        Ok(Address { base: NONE, wide: true, offset: offset.wrapping_add_unsigned(at), space })
    }
}
