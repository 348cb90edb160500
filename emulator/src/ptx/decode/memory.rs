//! Loads, stores, atomics, fences and prefetches.

use super::super::ast::{Arg, Num};
use super::operands::{list, width};
use super::text::WRONG_OPERANDS;
use super::{Decoder, Res, Text};
use crate::exec::access::atom_fn;
use crate::exec::inst::*;
use crate::machine::access::{Access, Scope, Sem};
use crate::machine::types::{Space, Ty};

impl Decoder<'_> {
    pub(super) fn memory(&mut self, t: &mut Text<'_>) -> Res<bool> {
        match (t.name, t.args) {
            ("ld" | "ldu", _) => self.access(t, false)?,
            ("st", _) if t.take("async") => self.store_async(t)?,
            ("st", _) => self.access(t, true)?,
            ("atom", _) => self.atomic(t, true)?,
            ("red", _) => self.atomic(t, false)?,
            ("prefetch", [place]) => {
                let space = t.space();
                t.word("L1 L2 L2::evict_last L2::evict_normal")?;
                t.ensure(matches!(space, Space::Generic | Space::Global | Space::Local), "memory that has no cache")?;
                let place = self.address(place, space)?;
                match space {
                    Space::Local => self.push(Op::Nop),
                    _ => self.act(move |cpu, site| cpu.prefetch_lines(site, &place)),
                }
            }
            // What is discarded may still be there.
            ("discard", [place, bytes]) => {
                let space = t.space();
                t.require("L2")?;
                let possible = matches!(space, Space::Generic | Space::Global);
                t.ensure(possible && matches!(bytes, Arg::Num(Num::Int(128))), "128 bytes of .global are discarded")?;
                self.address(place, space)?;
                self.push(Op::Nop);
            }
            // No policy changes a result; one of them changes modelled time.
            ("createpolicy", [_] | [_, _]) => {
                t.require("fractional.b64")?;
                // Not where it is the second priority, behind another one.
                let others = ["L2::evict_last", "L2::evict_normal", "L2::evict_unchanged"];
                let is_first = t.has("L2::evict_first") && !others.iter().any(|other| t.has(other));
                let policy = if is_first { EVICT_FIRST } else { 0 };
                t.hints();
                let (d, policy) = (self.dst(t, Ty::B64)?, self.constant(policy, true));
                self.copy(Ty::B64, d, policy)?;
            }
            ("fence", []) if t.has("tensormap::generic") => {
                t.require("proxy.tensormap::generic.release")?;
                let scope = t.need(Scope::NAMES)?;
                self.fence(scope);
            }
            ("fence", [map, bytes]) => {
                t.require("proxy.tensormap::generic.acquire")?;
                t.ensure(matches!(bytes, Arg::Num(Num::Int(128))), "a fence is of the 128 bytes of a tensor map")?;
                // It orders accesses by tensor maps only.
                t.need(Scope::NAMES)?;
                let map = self.address(map, Space::Generic)?;
                self.effect(move |cpu, site| cpu.acquire_tensor_map(site, &map));
            }
            ("fence", []) if t.take("proxy") => {
                t.require("async")?;
                t.skip("global shared::cta shared::cluster");
                self.act(|_, site| site.common.observers.proxy_fence(site.warp.id, site.m));
            }
            ("fence", []) => {
                if t.take("mbarrier_init") {
                    self.act(|_, site| site.common.observers.mbarrier_init_fence(&site.at, site.m));
                }
                t.pick(&[("sc", ()), ("acq_rel", ()), ("acquire", ()), ("release", ())]);
                let scope = t.need(Scope::NAMES)?;
                self.fence(scope);
            }
            ("membar", []) => {
                let scope = t.need(&[("cta", Scope::Cta), ("gl", Scope::Gpu), ("sys", Scope::Sys)])?;
                self.fence(scope);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn fence(&mut self, scope: Scope) {
        self.act(move |cpu, site| site.common.observers.fence(site.warp.id, site.m, cpu.cx.layout.reach(scope)));
    }

    /// Ordering and scope of an access.
    fn order(&self, t: &mut Text<'_>) -> Res<(Sem, Scope)> {
        let sem = t.pick(Sem::NAMES).unwrap_or(Sem::Weak);
        match (sem, t.pick(Scope::NAMES)) {
            (Sem::Weak, None) => Ok((sem, Scope::Cta)),
            (Sem::Volatile, None) => Ok((sem, Scope::Sys)),
            (Sem::Weak | Sem::Volatile, _) | (_, None) => {
                t.fail(t.opcode, "ordered accesses, and only they, have a scope")
            }
            (_, Some(scope)) => Ok((sem, scope)),
        }
    }

    /// Consumes cache hints, and checks for `n` operands and perhaps a policy, which it gives.
    pub(super) fn hints(&mut self, t: &mut Text<'_>, n: usize) -> Res<Option<R>> {
        let policy = t.take("L2::cache_hint");
        t.hints();
        t.arity(n + usize::from(policy))?;
        t.args.get(n).map(|arg| self.src(arg, Ty::B64)).transpose()
    }

    /// The registers of an access, one per element.
    fn elements(&mut self, t: &mut Text<'_>, arg: &Arg, ty: Ty, write: bool) -> Res<Vec<(R, W)>> {
        let (list, count) = (list(arg), t.pick(&[("v2", 2), ("v4", 4)]).unwrap_or(1));
        t.ensure(list.len() == count, "another number of registers than the access has elements")?;
        t.ensure(matches!(ty.bytes(), 1..=8) && ty.bytes() * count as u32 <= 16, "access that is too wide")?;
        list.iter().map(|a| self.loose(a, ty, write).map(|(r, have)| (r, width(have)))).collect()
    }

    /// `ld` and `st`
    fn access(&mut self, t: &mut Text<'_>, write: bool) -> Res<()> {
        let (sem, scope) = self.order(t)?;
        let space = t.space();
        let nc = !write && t.take("nc");
        self.hints(t, 2)?;
        let ty = t.ty()?;
        let ordered = sem <= Sem::Relaxed || sem == if write { Sem::Release } else { Sem::Acquire };
        t.ensure(ordered, "a load is .relaxed or .acquire, a store is .relaxed or .release")?;
        let (place, value) = if write { (0, 1) } else { (1, 0) };
        let address = self.address(&t.args[place], space)?;
        let regs = self.elements(t, &t.args[value], ty, !write)?;
        t.ensure(!write || space != Space::Const, "constant memory is only read")?;
        let access = Access { sem, scope, nc, carries: true, ..Access::new(ty.bytes(), regs.len() as u32, write) };
        self.push(Op::Mem(Box::new(MemOp { address, access, signed: !write && ty.signed(), regs })));
        self.turn(sem != Sem::Weak && matches!(address.space, Space::Generic | Space::Global));
        Ok(())
    }

    /// `st.async`, into shared memory with an mbarrier.
    fn store_async(&mut self, t: &mut Text<'_>) -> Res<()> {
        t.skip("weak");
        t.require("mbarrier::complete_tx::bytes")?;
        let space = t.space();
        let ty = t.expect(&[Ty::B32, Ty::U32, Ty::S32, Ty::F32, Ty::B64, Ty::U64, Ty::S64, Ty::F64])?;
        t.arity(3)?;
        let (address, barrier) = (self.address(&t.args[0], space)?, self.address(&t.args[2], space)?);
        let regs = self.elements(t, &t.args[1], ty, false)?;
        self.effect(move |cpu, site| cpu.store_async(site, [&address, &barrier], &regs, ty.bytes()));
        Ok(())
    }

    fn atomic(&mut self, t: &mut Text<'_>, returns: bool) -> Res<()> {
        let sem = t.pick(Sem::NAMES).unwrap_or(Sem::Relaxed);
        let scope = t.pick(Scope::NAMES).unwrap_or(Scope::Gpu);
        let space = t.space();
        let name = t.word("add min max inc dec exch cas and or xor")?;
        let noftz = t.take("noftz");
        let ty = t.ty()?;
        let count = t.pick(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1);
        let whole = count as u32 * ty.bytes();
        t.ensure(count == 1 || name == "add" && ty.element().float() && whole <= 16, "vector that no atomic has")?;
        t.ensure((Sem::Relaxed..Sem::Sc).contains(&sem), "an atomic is .relaxed, .acquire, .release or .acq_rel")?;
        // What is for its old value is no reduction; halves have no form that flushes.
        let possible = (returns || !matches!(name, "exch" | "cas"))
            && noftz == (ty.element().float() && ty.element().bytes() == 2);
        let f = t.some(atom_fn(name, ty).filter(|_| possible), "atomic operation that does not exist")?;
        let at = usize::from(returns);
        self.hints(t, 2 + at + usize::from(name == "cas"))?;
        let address = self.address(&t.args[at], space)?;
        let shared = address.space == Space::Shared;
        let place = matches!(space, Space::Generic | Space::Global | Space::Shared);
        t.ensure(place, "atomics work on global and shared memory")?;
        let access = Access { atomic: true, sem, scope, ..Access::new(ty.bytes(), 1, true) };
        // Elements of a vector are atomics of their own.
        let values = list(&t.args[at + 1]);
        t.ensure(values.len() == count, "another number of registers than the access has elements")?;
        let sources = values.iter().map(|value| self.src(value, ty)).collect::<Res<Vec<R>>>()?;
        let c = if name == "cas" { self.src(&t.args[at + 2], ty)? } else { sources[0] };
        for (k, b) in sources.into_iter().enumerate() {
            let d = match returns {
                true => self.element(t.some(list(&t.args[0]).get(k), WRONG_OPERANDS)?, ty, true)?,
                false => NONE,
            };
            let address = Address { offset: address.offset + (k as u32 * ty.bytes()) as i64, ..address };
            let run: Effect = Box::new(move |cpu, site| cpu.atomic(site, (&address, &access), f, [d, b, c]));
            self.push(Op::Effect(run, Some(Box::new((address, ty.bytes())))));
            self.turn(!shared);
        }
        Ok(())
    }
}
