//! What lanes do together: barriers, exchange within a warp, asynchronous copies and their mbarriers.

use super::super::ast::{Arg, Num};
use super::super::types::{Space, Ty};
use super::operands::width;
use super::{Decoder, Res, Text};
use crate::exec::access::atom_fn;
use crate::exec::inst::*;
use crate::exec::lanes::Lanes;
use crate::exec::mbarrier::MbarrierKind::{self, *};
use crate::exec::step::Next;
use crate::exec::warp::State;
use crate::exec::{Cpu, Exec, Site};

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
    pub(super) fn sync(&mut self, t: &mut Text<'_>) -> Res<bool> {
        let name = t.name;
        match name {
            "bar" if t.take("warp") => {
                t.require("sync")?;
                t.arity(1)?;
                let mask = self.src(&t.args[0], Ty::B32)?;
                self.push(Op::Warp(None, mask));
            }
            "barrier" if t.take("cluster") => {
                let waits = t.need(&[("arrive", false), ("wait", true)])?;
                t.skip("aligned");
                let relaxed = t.pick(Sem::NAMES) == Some(Sem::Relaxed);
                t.arity(0)?;
                self.effect(move |cpu, site| match waits {
                    true => cpu.cluster_wait(site),
                    false => cpu.cluster_arrive(site, relaxed),
                });
            }
            "bar" | "barrier" => self.barrier(t)?,
            "activemask" => {
                t.require("b32")?;
                let [d, ..] = self.slots(t, &[Ty::B32])?;
                self.special(|_, site, _| site.m.into(), d, W::W32);
            }
            "shfl" => {
                t.require("sync.b32")?;
                let mode = t.need(Shfl::NAMES)?;
                let [d, a, b, c, mask] = self.slots(t, &[Ty::B32; 5])?;
                let d = (d, self.second(t)?);
                let run: WarpEffect = Box::new(move |cpu, site, group| cpu.shuffle(site, group, mode, d, [a, b, c]));
                self.push(Op::Warp(Some(run), mask));
            }
            "vote" => {
                t.require("sync")?;
                let mode = t.need(Vote::NAMES)?;
                let ballot = mode == Vote::Ballot;
                let ty = t.expect(&[if ballot { Ty::B32 } else { Ty::Pred }])?;
                let [d, a, mask, ..] = self.slots(t, &[ty, Ty::Pred, Ty::B32])?;
                let d = if ballot { (d, 0) } else { (0, d) };
                self.warp_wide(mask, move |_, site, group| {
                    let votes = site.warp.pred(a, false);
                    site.warp.vote(group, mode, d, votes);
                });
            }
            "match" => {
                t.require("sync")?;
                let all = t.need(&[("any", false), ("all", true)])?;
                let ty = t.expect(&[Ty::B32, Ty::B64])?;
                let [d, a, mask, ..] = self.slots(t, &[Ty::B32, ty, Ty::B32])?;
                // Only .all has a predicate.
                let d = (d, if all { self.second(t)? } else { 0 });
                self.warp_wide(mask, move |cpu, site, group| {
                    site.warp.matching(cpu.cx.code, group, all, d, (a, width(ty)));
                });
            }
            "redux" => {
                t.require("sync")?;
                let name = t.word("add min max and or xor")?;
                let ty = t.expect(&[Ty::U32, Ty::S32, Ty::B32])?;
                let f = t.some(atom_fn(name, ty), "operation that does not exist")?;
                let [d, a, mask, ..] = self.slots(t, &[ty, ty, Ty::B32])?;
                self.warp_wide(mask, move |cpu, site, group| site.warp.reduce(cpu.cx.code, group, f, d, a));
            }
            "elect" => {
                t.require("sync")?;
                t.ensure(t.second.is_some(), "the destination is a register and a predicate")?;
                let [d, mask, ..] = self.slots(t, &[Ty::B32; 2])?;
                let d = (d, self.second(t)?);
                self.warp_wide(mask, move |_, site, group| site.warp.elect(group, d));
            }
            "nanosleep" => {
                t.require("u32")?;
                t.arity(1)?;
                let a = self.src(&t.args[0], Ty::U32)?;
                self.effect(move |cpu, site| {
                    let longest = Lanes(site.m).map(|l| site.warp.lane32(cpu.cx.code, a, l)).max().unwrap_or(0);
                    let until = cpu.now().wrapping_add(longest.max(1).into());
                    Ok(if site.m == site.all { Next::StepAndPark(State::Sleep(until)) } else { Next::Step })
                });
            }
            "griddepcontrol" => {
                // Launches of a stream follow each other here: only the checks care.
                let waits = t.need(&[("wait", true), ("launch_dependents", false)])?;
                t.arity(0)?;
                self.act(move |cpu, site| match waits {
                    true => drop(site.common.checks.warp(site.warp.id, |w| w.waited(site.m, &cpu.cx.op.place.before))),
                    false => cpu.cx.op.trigger(),
                });
            }
            "cp" if t.take("async") => {
                let bulk = t.take("bulk");
                let all = !bulk && t.take("wait_all");
                if t.take("commit_group") {
                    t.arity(0)?;
                    self.act(move |cpu, site| cpu.commit(site, bulk));
                } else if all || t.take("wait_group") {
                    let read = bulk && t.take("read");
                    t.arity(usize::from(!all))?;
                    let keep = if all { None } else { Some(self.count(&t.args[0])?) };
                    self.act(move |cpu, site| cpu.wait_group(site, bulk, keep, read));
                    self.turn(bulk);
                } else if bulk {
                    self.copy_bulk(t)?;
                } else if t.take("mbarrier") {
                    t.require("arrive.b64")?;
                    let noinc = t.take("noinc");
                    t.arity(1)?;
                    let address = self.shared_address(t, 0)?;
                    self.effect(move |cpu, site| cpu.arrive_after_copies(site, &address, noinc));
                } else {
                    self.copy_async(t)?;
                }
            }
            "mbarrier" if t.take("pending_count") => {
                t.require("b64")?;
                // A state holds the pending count in its upper half.
                let [d, a, ..] = self.slots(t, &[Ty::U32, Ty::B64])?;
                self.values("upper half", Ty::U32, [d, a, 0]);
            }
            "mbarrier" => self.mbarrier(t)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Pushes what is not worth a place in the interpreter's loop.
    pub(super) fn effect(&mut self, run: impl Fn(&mut Cpu<'_>, &mut Site<'_>) -> Exec<Next> + Send + Sync + 'static) {
        self.push(Op::Effect(Box::new(run), None));
    }

    /// Pushes something that cannot fail.
    pub(super) fn act<T>(&mut self, run: impl Fn(&mut Cpu<'_>, &mut Site<'_>) -> T + Send + Sync + 'static) {
        self.effect(move |cpu, site| {
            run(cpu, site);
            Ok(Next::Step)
        });
    }

    /// Pushes what the lanes of a member mask do together, which cannot fail.
    fn warp_wide(&mut self, mask: R, run: impl Fn(&mut Cpu<'_>, &mut Site<'_>, u32) + Send + Sync + 'static) {
        let effect: WarpEffect = Box::new(move |cpu, site, group| {
            run(cpu, site, group);
            Ok(())
        });
        self.push(Op::Warp(Some(effect), mask));
    }

    fn barrier(&mut self, t: &mut Text<'_>) -> Res<()> {
        t.skip("cta");
        let kind = t.word("sync arrive red")?;
        let aligned = t.take("aligned") || t.name == "bar";
        let reduction = if kind == "red" { Some(t.need(BarRed::NAMES)?) } else { None };
        // A reduction has its destination first and its input last.
        let at = usize::from(reduction.is_some());
        t.arities(if kind == "arrive" { 2 } else { 1 + 2 * at }, 2 + 2 * at)?;
        let id = self.src(&t.args[at], Ty::U32)?;
        let count = if t.args.len() == 2 + 2 * at { self.src(&t.args[at + 1], Ty::U32)? } else { NONE };
        let red = match reduction {
            None => None,
            Some(kind) => {
                let ty = t.expect(&[if kind == BarRed::Popc { Ty::U32 } else { Ty::Pred }])?;
                let input = self.src(&t.args[t.args.len() - 1], Ty::Pred)?;
                let d = self.dst(t, ty)?;
                let (p, d) = if ty == Ty::Pred { (d, 0) } else { (0, d) };
                Some((kind, input, false, p, d))
            }
        };
        self.push(Op::Bar(Box::new(BarOp { id, count, waits: kind != "arrive", aligned, red })));
        Ok(())
    }

    /// A count written as a literal.
    fn count(&self, arg: &Arg) -> Res<u32> {
        match arg {
            Arg::Num(Num::Int(v)) if *v <= u64::from(u32::MAX) => Ok(*v as u32),
            _ => self.fail("count", "expected a constant"),
        }
    }

    /// An address in shared memory, which is a generic one if the opcode does not say `.shared`.
    fn shared_address(&mut self, t: &mut Text<'_>, at: usize) -> Res<Address> {
        let generic = t.space() != Space::Shared;
        let named = matches!(&t.args[at], Arg::Address(Some(name), _) if self.named(name).is_none());
        self.address(&t.args[at], if generic && !named { Space::Generic } else { Space::Shared })
    }

    fn copy_async(&mut self, t: &mut Text<'_>) -> Res<()> {
        let cg = t.need(&[("ca", false), ("cg", true)])?;
        let (to, from) = (t.space(), t.space());
        t.ensure((to, from) == (Space::Shared, Space::Global), "copies from .global to .shared")?;
        t.skip("L2::64B L2::128B L2::256B");
        let policy = usize::from(t.take("L2::cache_hint"));
        t.arities(3 + policy, 4 + policy)?;
        let bytes = self.count(&t.args[2])?;
        let possible = matches!((cg, bytes), (false, 4 | 8 | 16) | (true, 16));
        t.ensure(possible, "copies of 4, 8 or 16 bytes with .ca, of 16 with .cg")?;
        let source = if t.args.len() == 4 + policy { self.src(&t.args[3], Ty::U32)? } else { NONE };
        let (dst, src) = (self.address(&t.args[0], to)?, self.address(&t.args[1], from)?);
        self.effect(move |cpu, site| cpu.copy_async(site, [&dst, &src], bytes, source));
        Ok(())
    }

    fn copy_bulk(&mut self, t: &mut Text<'_>) -> Res<()> {
        let policy = usize::from(t.take("L2::cache_hint"));
        if t.take("prefetch") {
            t.require("L2.global")?;
            t.arity(2 + policy)?;
            self.address(&t.args[0], Space::Global)?;
            self.src(&t.args[1], Ty::U32)?;
            self.push(Op::Nop);
            return Ok(());
        }
        let (to, from) = (t.space(), t.space());
        let inward = (to, from) == (Space::Shared, Space::Global);
        t.ensure(inward || (to, from) == (Space::Global, Space::Shared), "copies between .global and .shared")?;
        t.require(if inward { "mbarrier::complete_tx::bytes" } else { "bulk_group" })?;
        t.arity(if inward { 4 } else { 3 } + policy)?;
        let (dst, src) = (self.address(&t.args[0], to)?, self.address(&t.args[1], from)?);
        let bytes = self.src(&t.args[2], Ty::U32)?;
        let barrier = if inward { Some(self.address(&t.args[3], Space::Shared)?) } else { None };
        self.effect(move |cpu, site| cpu.bulk(site, [&dst, &src], bytes, barrier.as_ref()));
        Ok(())
    }

    fn mbarrier(&mut self, t: &mut Text<'_>) -> Res<()> {
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
        t.require("b64")?;
        let returns = waits || (arrives && !matches!(t.args.first(), Some(Arg::Address(..))));
        let at = usize::from(returns);
        t.arities(at + 1 + least, at + 1 + most)?;
        let address = self.shared_address(t, at)?;
        let ty = if kind == WaitState { Ty::B64 } else { Ty::U32 };
        let value = match t.args.get(at + 1) {
            Some(arg) => self.src(arg, ty)?,
            None => self.constant(1, false),
        };
        if let Some(hint) = t.args.get(at + 2) {
            self.src(hint, Ty::U32)?;
        }
        let (d, p) = match (returns, waits) {
            (false, _) => (NONE, 0),
            (true, false) => (self.dst(t, Ty::B64)?, 0),
            (true, true) => (NONE, self.dst(t, Ty::Pred)?),
        };
        let value = (value, width(ty));
        let run: Effect = Box::new(move |cpu, site| cpu.mbarrier(site, (kind, relaxed), &address, value, (d, p)));
        self.push(Op::Effect(run, Some(Box::new((address, 8)))));
        Ok(())
    }
}
