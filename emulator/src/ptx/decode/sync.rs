//! What lanes do together: barriers, exchange within a warp, asynchronous copies and their mbarriers.

use super::super::ast::{Arg, Num};
use super::operands::width;
use super::text::{Text, WRONG_OPERANDS};
use super::{Decoder, Res};
use crate::exec::access::atom_fn;
use crate::exec::inst::*;
use crate::exec::mbarrier::MbarrierKind::*;
use crate::exec::step::Next;
use crate::exec::warp::State;
use crate::exec::{Cpu, Site};
use crate::machine::access::{Scope, Sem};
use crate::machine::fault::OrFault;
use crate::machine::lanes::Lanes;
use crate::machine::types::{Space, Ty};

impl Decoder<'_> {
    pub(super) fn sync(&mut self, t: &mut Text<'_>) -> Res<bool> {
        match (t.name, t.args) {
            ("bar", [mask]) if t.take("warp") => {
                t.require("sync")?;
                let mask = self.src(mask, Ty::B32)?;
                self.push(Op::Warp(None, mask));
            }
            ("barrier", []) if t.take("cluster") => {
                let waits = t.need(&[("arrive", false), ("wait", true)])?;
                t.skip("aligned");
                let relaxed = t.pick(Sem::NAMES) == Some(Sem::Relaxed);
                self.effect(move |cpu, site| match waits {
                    true => cpu.cluster_wait(site),
                    false => cpu.cluster_arrive(site, relaxed),
                });
            }
            ("bar" | "barrier", _) => self.barrier(t)?,
            ("activemask", _) => {
                t.require("b32")?;
                let [d, ..] = self.slots(t, &[Ty::B32])?;
                self.special(|_, site, _| site.m.into(), d, W::W32);
            }
            ("shfl", _) => {
                t.require("sync.b32")?;
                let mode = t.need(Shfl::NAMES)?;
                let [d, a, b, c, mask] = self.slots(t, &[Ty::B32; 5])?;
                let d = (d, self.second(t)?);
                let run: WarpEffect = Box::new(move |cpu, site, group| cpu.shuffle(site, group, mode, d, [a, b, c]));
                self.push(Op::Warp(Some(run), mask));
            }
            ("vote", _) => {
                t.require("sync")?;
                let mode = t.need(Vote::NAMES)?;
                let ballot = mode == Vote::Ballot;
                let ty = t.expect(&[if ballot { Ty::B32 } else { Ty::Pred }])?;
                let [d, a, mask, ..] = self.slots(t, &[ty, Ty::Pred, Ty::B32])?;
                let d = if ballot { (d, 0) } else { (0, d) };
                self.warp_wide(mask, move |_, site, group| {
                    let votes = site.warp.preds[a as usize];
                    site.warp.vote(group, mode, d, votes);
                });
            }
            ("match", _) => {
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
            ("redux", _) => {
                t.require("sync")?;
                let name = t.word("add min max and or xor")?;
                let ty = t.expect(&[Ty::U32, Ty::S32, Ty::B32])?;
                let f = t.some(atom_fn(name, ty), "operation that does not exist")?;
                let [d, a, mask, ..] = self.slots(t, &[ty, ty, Ty::B32])?;
                self.warp_wide(mask, move |cpu, site, group| site.warp.reduce(cpu.cx.code, group, f, d, a));
            }
            ("elect", _) => {
                t.require("sync")?;
                t.ensure(t.second.is_some(), "the destination is a register and a predicate")?;
                let [d, mask, ..] = self.slots(t, &[Ty::B32; 2])?;
                let d = (d, self.second(t)?);
                self.warp_wide(mask, move |_, site, group| site.warp.elect(group, d));
            }
            ("nanosleep", [time]) => {
                t.require("u32")?;
                let time = self.src(time, Ty::U32)?;
                self.effect(move |cpu, site| {
                    let longest = Lanes(site.m).map(|l| site.warp.lane32(cpu.cx.code, time, l)).max().unwrap_or(0);
                    let until = cpu.now().wrapping_add(longest.max(1).into());
                    Ok(if site.m == site.all { Next::Park(State::Sleep(until), 1) } else { Next::Step })
                });
            }
            ("griddepcontrol", []) => {
                // Launches of a stream follow each other here: only the checks care.
                let waits = t.need(&[("wait", true), ("launch_dependents", false)])?;
                self.act(move |cpu, site| match waits {
                    true => site.common.observers.grid_wait(cpu.cx, site.warp.id, site.m),
                    false => site.common.observers.grid_trigger(cpu.cx),
                });
            }
            ("cp", []) if t.take("async") => {
                let bulk = t.take("bulk");
                match t.word(if bulk { "commit_group" } else { "commit_group wait_all" })? {
                    "wait_all" => self.act(move |cpu, site| cpu.wait_group(site, bulk, None, false)),
                    _ => self.act(move |cpu, site| cpu.commit(site, bulk)),
                }
            }
            ("cp", [address]) if t.has("mbarrier") => {
                t.require("async.mbarrier.arrive.b64")?;
                let (noinc, space) = (t.take("noinc"), t.space());
                let address = self.address(address, space)?;
                self.effect(move |cpu, site| cpu.arrive_after_copies(site, &address, noinc));
            }
            ("cp", [address, bytes, ..]) if t.has("prefetch") => {
                t.require("async.bulk.prefetch.L2.global")?;
                self.hints(t, 2)?;
                self.address(address, Space::Global)?;
                self.src(bytes, Ty::U32)?;
                self.push(Op::Nop);
            }
            ("cp", [count]) if t.take("async") => {
                let (bulk, keep) = (t.take("bulk"), Some(self.count(count)?));
                t.require("wait_group")?;
                let read = bulk && t.take("read");
                self.act(move |cpu, site| cpu.wait_group(site, bulk, keep, read));
                self.turn(bulk);
            }
            ("cp", _) if t.take("async") => match t.take("bulk") {
                true => self.copy_bulk(t)?,
                false => self.copy_async(t)?,
            },
            ("mbarrier", _) => self.mbarrier(t)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Pushes what is not worth a place in the interpreter's loop.
    pub(super) fn effect(
        &mut self,
        run: impl Fn(&mut Cpu<'_>, &mut Site<'_>) -> OrFault<Next> + Send + Sync + 'static,
    ) {
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
        let (id, count, input) = match (kind, t.args) {
            ("sync", [id]) => (id, None, None),
            ("sync" | "arrive", [id, count]) => (id, Some(count), None),
            ("red", [_, id, input]) => (id, None, Some(input)),
            ("red", [_, id, count, input]) => (id, Some(count), Some(input)),
            _ => return t.fail(t.opcode, WRONG_OPERANDS),
        };
        let (id, count) = (self.src(id, Ty::U32)?, self.optional(count, Ty::U32)?);
        let mut red = None;
        if let (Some(kind), Some(input)) = (reduction, input) {
            let ty = t.expect(&[if kind == BarRed::Popc { Ty::U32 } else { Ty::Pred }])?;
            let (input, d) = (self.src(input, Ty::Pred)?, self.dst(t, ty)?);
            let (p, d) = if ty == Ty::Pred { (d, 0) } else { (0, d) };
            red = Some((kind, input, p, d));
        }
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

    /// `cp.async.ca.shared.global [dst], [src], bytes, source;`
    fn copy_async(&mut self, t: &mut Text<'_>) -> Res<()> {
        let cg = t.need(&[("ca", false), ("cg", true)])?;
        let (to, from) = (t.space(), t.space());
        t.ensure((to, from) == (Space::Shared, Space::Global), "copies from .global to .shared")?;
        let own = t.args.len() - usize::from(t.has("L2::cache_hint")).min(t.args.len());
        self.hints(t, own)?;
        t.ensure(matches!(own, 3 | 4), WRONG_OPERANDS)?;
        let bytes = self.count(&t.args[2])?;
        let possible = matches!((cg, bytes), (false, 4 | 8 | 16) | (true, 16));
        t.ensure(possible, "copies of 4, 8 or 16 bytes with .ca, of 16 with .cg")?;
        let source = self.optional(t.args[..own].get(3), Ty::U32)?;
        let (dst, src) = (self.address(&t.args[0], to)?, self.address(&t.args[1], from)?);
        self.effect(move |cpu, site| cpu.copy_async(site, [&dst, &src], bytes, source));
        Ok(())
    }

    /// `cp.async.bulk` into shared memory, where an mbarrier waits for it, or out of it.
    fn copy_bulk(&mut self, t: &mut Text<'_>) -> Res<()> {
        let (to, from) = (t.space(), t.space());
        let (guard, operands) = match (to, from) {
            (Space::Shared, Space::Global) => ("mbarrier::complete_tx::bytes", 4),
            (Space::Global, Space::Shared) => ("bulk_group", 3),
            _ => return t.fail(t.opcode, "copies between .global and .shared"),
        };
        t.require(guard)?;
        self.hints(t, operands)?;
        let (dst, src) = (self.address(&t.args[0], to)?, self.address(&t.args[1], from)?);
        let bytes = self.src(&t.args[2], Ty::U32)?;
        let barrier = t.args[..operands].get(3).map(|arg| self.address(arg, Space::Shared)).transpose()?;
        self.effect(move |cpu, site| cpu.bulk(site, [&dst, &src], bytes, barrier.as_ref()));
        Ok(())
    }

    /// `mbarrier.try_wait.parity.shared.b64 p, [address], parity;`
    fn mbarrier(&mut self, t: &mut Text<'_>) -> Res<()> {
        let kind = match t.word("init inval arrive arrive_drop expect_tx complete_tx test_wait try_wait")? {
            "init" => Init,
            "inval" => Invalidate,
            "arrive" if t.take("expect_tx") => ArriveExpect,
            "arrive" => Arrive,
            "arrive_drop" => Drop,
            "expect_tx" => Expect,
            "complete_tx" => Complete,
            _ if t.take("parity") => WaitParity,
            _ => WaitState,
        };
        let waits = matches!(kind, WaitState | WaitParity);
        if matches!(kind, Arrive | Drop) {
            t.take("noComplete");
        }
        let relaxed = t.pick(Sem::NAMES) == Some(Sem::Relaxed);
        let order = Some(t.pick(Scope::NAMES).unwrap_or(Scope::Cta)).filter(|_| !relaxed);
        let space = t.space();
        t.require("b64")?;
        let ty = if kind == WaitState { Ty::B64 } else { Ty::U32 };
        // A wait has a result, an arrival may have one: the state before it.
        let arrives = matches!(kind, Arrive | ArriveExpect | Drop);
        let returns = waits || arrives && !matches!(t.args.first(), Some(Arg::Address(..)));
        let (address, value) = match (kind, t.args.get(usize::from(returns)..)) {
            (Arrive | Drop | Invalidate, Some([address])) => (address, self.constant(1, false)),
            (WaitState | WaitParity, Some([address, value, time])) => {
                self.src(time, Ty::U32)?;
                (address, self.src(value, ty)?)
            }
            (_, Some([address, value])) if kind != Invalidate => (address, self.src(value, ty)?),
            _ => return t.fail(t.opcode, WRONG_OPERANDS),
        };
        t.ensure(matches!(space, Space::Generic | Space::Shared), "an mbarrier lies in shared memory")?;
        let address = self.address(address, space)?;
        let (d, p) = match (returns, waits) {
            (false, _) => (NONE, 0),
            (true, false) => (self.dst(t, Ty::B64)?, 0),
            (true, true) => (NONE, self.dst(t, Ty::Pred)?),
        };
        let value = (value, width(ty));
        let run: Effect = Box::new(move |cpu, site| cpu.mbarrier(site, (kind, order), &address, value, (d, p)));
        self.push(Op::Effect(run, Some(Box::new((address, 8)))));
        Ok(())
    }
}
