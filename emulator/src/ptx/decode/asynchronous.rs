//! Asynchronous copies and mbarriers.

use super::super::ast::{Arg, Num};
use super::super::types::{Space, Ty};
use super::{Decoder, Res, Text};
use crate::exec::inst::*;
use crate::exec::mbarrier::MbarrierKind::{self, *};
use crate::exec::step::Next;

/// Operations on an mbarrier: what each does, and how many operands it has after the address, at least and at most.
const MBARRIER: &[(&str, (MbarrierKind, usize, usize))] = &[
    ("init", (Init, 1, 1)),
    ("inval", (Invalidate, 0, 0)),
    ("arrive", (Arrive, 0, 1)),
    ("arrive_drop", (Drop, 0, 1)),
    ("test_wait", (WaitState, 1, 1)),
    // A time may follow.
    ("try_wait", (WaitState, 1, 2)),
    ("expect_tx", (Expect, 1, 1)),
    ("complete_tx", (Complete, 1, 1)),
];

impl Decoder<'_> {
    pub(super) fn asynchronous(&mut self, t: &mut Text<'_>) -> Res<bool> {
        let name = t.name;
        match name {
            "cp" if t.take("async") => {
                let bulk = t.take("bulk");
                if t.take("commit_group") {
                    t.arity(0)?;
                    self.act(move |cpu, site| cpu.commit(site, bulk));
                } else if !bulk && t.take("wait_all") {
                    t.arity(0)?;
                    self.act(|cpu, site| cpu.wait_group(site, false, None, false));
                } else if t.take("wait_group") {
                    let read = bulk && t.take("read");
                    t.arity(1)?;
                    let keep = Some(self.literal(&t.args[0])?);
                    let run: Effect = Box::new(move |cpu, site| {
                        cpu.wait_group(site, bulk, keep, read);
                        Ok(Next::Step)
                    });
                    self.push_turn(Op::Effect(run, None), bulk);
                } else if bulk {
                    self.bulk(t)?;
                } else {
                    self.copy_async(t)?;
                }
            }
            "mbarrier" => self.mbarrier(t)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A count written as a literal.
    fn literal(&self, arg: &Arg) -> Res<u32> {
        match arg {
            Arg::Num(Num::Int(v)) if *v <= u64::from(u32::MAX) => Ok(*v as u32),
            _ => self.fail("count", "expected a constant"),
        }
    }

    /// An address in shared memory, which is a generic one if the opcode does not say `.shared`.
    fn shared_address(&mut self, t: &mut Text<'_>, at: usize) -> Res<Address> {
        let generic = self.space(t) != Space::Shared;
        let named = matches!(&t.args[at], Arg::Address(Some(name), _) if self.named(name).is_none());
        self.address(&t.args[at], if generic && !named { Space::Generic } else { Space::Shared })
    }

    fn copy_async(&mut self, t: &mut Text<'_>) -> Res<()> {
        if t.take("mbarrier") {
            t.require("arrive")?;
            let noinc = t.take("noinc");
            t.form(&[Ty::B64], 1)?;
            let address = self.shared_address(t, 0)?;
            self.effect(move |cpu, site| cpu.arrive_after_copies(site, &address, noinc));
            return Ok(());
        }
        let cg = t.need(&[("ca", false), ("cg", true)])?;
        if self.space(t) != Space::Global || self.space(t) != Space::Shared {
            return t.fail("cp.async", "copies from .global to .shared");
        }
        t.skip("L2::64B L2::128B L2::256B");
        let policy = usize::from(t.take("L2::cache_hint"));
        t.arities(3 + policy, 4 + policy)?;
        let bytes = self.literal(&t.args[2])?;
        if !matches!((cg, bytes), (false, 4 | 8 | 16) | (true, 16)) {
            return t.fail(bytes.to_string(), "copies of 4, 8 or 16 bytes with .ca, of 16 with .cg");
        }
        let source = if t.args.len() == 4 + policy { self.src(&t.args[3], Ty::U32)? } else { NONE };
        let (dst, src) = (self.address(&t.args[0], Space::Shared)?, self.address(&t.args[1], Space::Global)?);
        self.effect(move |cpu, site| cpu.copy_async(site, [&dst, &src], bytes, source));
        Ok(())
    }

    fn bulk(&mut self, t: &mut Text<'_>) -> Res<()> {
        let prefetch = t.take("prefetch");
        // The destination's space comes first.
        let spaces: Vec<_> = t.parts.iter().filter(|p| p.starts_with("shared::") || **p == "global").copied().collect();
        t.skip("shared::cluster shared::cta global");
        let policy = usize::from(t.take("L2::cache_hint"));
        if prefetch {
            t.skip("L2");
            t.arity(2 + policy)?;
            self.address(&t.args[0], Space::Global)?;
            self.src(&t.args[1], Ty::U32)?;
            self.push(Op::Nop);
            return Ok(());
        }
        let inward = match spaces[..] {
            [to, "global"] if to != "global" => true,
            ["global", from] if from != "global" => false,
            _ => return t.fail("cp.async.bulk", "copies between .global and shared memory"),
        };
        t.require(if inward { "mbarrier::complete_tx::bytes" } else { "bulk_group" })?;
        t.arity(if inward { 4 } else { 3 } + policy)?;
        let (to, from) = if inward { (Space::Shared, Space::Global) } else { (Space::Global, Space::Shared) };
        let (dst, src) = (self.address(&t.args[0], to)?, self.address(&t.args[1], from)?);
        let bytes = self.src(&t.args[2], Ty::U32)?;
        let barrier = if inward { Some(self.address(&t.args[3], Space::Shared)?) } else { None };
        self.effect(move |cpu, site| cpu.bulk(site, [&dst, &src], bytes, barrier.as_ref()));
        Ok(())
    }

    fn mbarrier(&mut self, t: &mut Text<'_>) -> Res<()> {
        if t.take("pending_count") {
            t.expect(&[Ty::B64])?;
            // A state holds the pending count in its upper half.
            let [a, ..] = self.sources(t, &[Ty::U32, Ty::B64])?;
            let d = self.dst(&t.args[0], Ty::U32)?;
            self.values("upper half", Ty::U32, [d, a.0, 0]);
            return Ok(());
        }
        let (mut kind, mut least, most) = t.need(MBARRIER)?;
        let (arrives, waits) = (matches!(kind, Arrive | Drop), kind == WaitState);
        if arrives && t.take("noComplete") {
            least = 1;
        }
        if kind == Arrive && t.take("expect_tx") {
            (kind, least) = (ArriveExpect, 1);
        }
        if waits && t.take("parity") {
            kind = WaitParity;
        }
        let relaxed = t.pick(Sem::NAMES) == Some(Sem::Relaxed);
        t.pick(Scope::NAMES);
        t.expect(&[Ty::B64])?;
        let returns = waits || (arrives && !matches!(t.args.first(), Some(Arg::Address(..))));
        let at = usize::from(returns);
        t.arities(at + 1 + least, at + 1 + most)?;
        let address = self.shared_address(t, at)?;
        let (ty, w) = if kind == WaitState { (Ty::B64, W::W64) } else { (Ty::U32, W::W32) };
        let value = match t.args.get(at + 1) {
            Some(arg) => self.src(arg, ty)?,
            None => self.constant(1, false),
        };
        if let Some(hint) = t.args.get(at + 2) {
            self.src(hint, Ty::U32)?;
        }
        let p = if waits { self.dst(&t.args[0], Ty::Pred)? } else { 0 };
        let d = if returns && !waits { self.dst(&t.args[0], Ty::B64)? } else { NONE };
        let run: Effect = Box::new(move |cpu, site| cpu.mbarrier(site, (kind, relaxed), &address, (value, w), (d, p)));
        self.push(Op::Effect(run, Some(Box::new((address, 8)))));
        Ok(())
    }
}
