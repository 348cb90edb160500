//! Barriers of blocks and clusters, mbarriers, and other waits.

use super::super::ast::Arg;
use super::operands::width;
use super::text::{Text, WRONG_OPERANDS};
use super::{Decoder, Res};
use crate::exec::inst::*;
use crate::exec::mbarrier::MbarrierKind::*;
use crate::exec::step::Flow;
use crate::exec::values::Piece;
use crate::exec::warp::State;
use crate::machine::access::{Scope, Sem};
use crate::machine::lanes::Lanes;
use crate::machine::types::{Space, Ty};

impl Decoder<'_> {
    pub(super) fn sync(&mut self, t: &mut Text<'_>) -> Res<bool> {
        match (t.name, t.args) {
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
            ("nanosleep", [time]) => {
                t.require("u32")?;
                let time = self.src(time, Ty::U32)?;
                self.effect(move |cpu, site| {
                    let longest = Lanes(site.m).map(|l| site.warp.lane32(cpu.cx.code, time, l)).max().unwrap_or(0);
                    let until = cpu.now().wrapping_add(longest.max(1).into());
                    Ok(if site.m == site.all { Flow::Park(State::Sleep(until), 1) } else { Flow::Next })
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
            ("mbarrier", [_, _]) if t.take("pending_count") => {
                t.require("b64")?;
                let [d, state, ..] = self.slots(t, &[Ty::U32, Ty::B64])?;
                // A state holds the count in its upper half.
                self.piece(Piece::UpperHalf, Ty::B64, &[d, state])?;
            }
            ("mbarrier", _) => self.mbarrier(t)?,
            _ => return Ok(false),
        }
        Ok(true)
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
