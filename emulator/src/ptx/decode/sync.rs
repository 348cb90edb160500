//! Barriers and warp-wide operations.

use super::super::ast::Arg;
use super::super::types::Ty;
use super::operands::width;
use super::{Decoder, Res, Text};
use crate::exec::access::atom_fn;
use crate::exec::inst::*;
use crate::exec::lanes::Lanes;
use crate::exec::step::Next;
use crate::exec::warp::State;
use crate::exec::{Cpu, Exec, Site};

impl Decoder<'_> {
    pub(super) fn sync(&mut self, t: &mut Text<'_>) -> Res<bool> {
        let name = t.name;
        match name {
            "bar" | "barrier" if !t.has("warp") && !t.has("cluster") => self.barrier(t)?,
            "bar" if t.take("warp") => {
                t.require("sync")?;
                self.warp_wide(t, 1, None)?;
            }
            "barrier" if t.take("cluster") => {
                let waits = t.need(&[("arrive", false), ("wait", true)])?;
                t.skip("aligned");
                let relaxed = t.pick(Sem::NAMES) == Some(Sem::Relaxed);
                t.arity(0)?;
                if waits {
                    self.effect(|cpu, site| cpu.cluster_wait(site));
                } else {
                    self.effect(move |cpu, site| cpu.cluster_arrive(site, relaxed));
                }
            }
            "activemask" => {
                t.form(&[Ty::B32], 1)?;
                let d = self.dst(&t.args[0], Ty::B32)?;
                self.special_into(|_, site, _| site.m.into(), d, W::W32);
            }
            "shfl" => {
                t.require("sync")?;
                let mode = t.need(Shfl::NAMES)?;
                t.expect(&[Ty::B32])?;
                let [a, b, c, _] = self.sources(t, &[Ty::B32; 5])?.map(|s| s.0); // and the mask
                let d = self.pair(&t.args[0], Ty::B32)?;
                self.warp_wide(t, 5, Some(Box::new(move |cpu, site, g| cpu.shuffle(site, g, mode, d, [a, b, c]))))?;
            }
            "vote" => {
                t.require("sync")?;
                let mode = t.need(Vote::NAMES)?;
                let ballot = mode == Vote::Ballot;
                t.form(&[if ballot { Ty::B32 } else { Ty::Pred }], 3)?;
                let (a, negated) = self.pred(&t.args[1])?;
                let d = match ballot {
                    true => (self.dst(&t.args[0], Ty::B32)?, 0),
                    false => (0, self.dst(&t.args[0], Ty::Pred)?),
                };
                let vote: WarpEffect = Box::new(move |_, site, group| {
                    let votes = site.warp.pred(a, negated);
                    site.warp.vote(group, mode, d, votes);
                    Ok(())
                });
                self.warp_wide(t, 3, Some(vote))?;
            }
            "match" => {
                let all = t.need(&[("any", false), ("all", true)])?;
                t.require("sync")?;
                let ty = t.form(&[Ty::B32, Ty::B64], 3)?;
                let a = (self.src(&t.args[1], ty)?, width(ty));
                if !all && matches!(t.args[0], Arg::Pair(..)) {
                    return t.fail(t.name, "only .all has a predicate");
                }
                let d = self.pair(&t.args[0], Ty::B32)?;
                self.warp_wide(
                    t,
                    3,
                    Some(Box::new(move |cpu, site, group| {
                        site.warp.matching(cpu.cx.code, group, all, d, a);
                        Ok(())
                    })),
                )?;
            }
            "redux" => {
                t.require("sync")?;
                let name = t.word("add min max and or xor")?;
                let ty = t.expect(&[Ty::U32, Ty::S32, Ty::B32])?;
                let Some(f) = atom_fn(name, ty) else {
                    return t.fail(format!("{name}.{ty:?}"), "operation that does not exist");
                };
                t.arity(3)?;
                let (a, d) = (self.src(&t.args[1], ty)?, self.dst(&t.args[0], ty)?);
                self.warp_wide(
                    t,
                    3,
                    Some(Box::new(move |cpu, site, group| {
                        site.warp.reduce(cpu.cx.code, group, f, d, a);
                        Ok(())
                    })),
                )?;
            }
            "elect" => {
                t.require("sync")?;
                if !matches!(t.args.first(), Some(Arg::Pair(..))) {
                    return t.fail(t.name, "the destination is a register and a predicate");
                }
                let d = self.pair(&t.args[0], Ty::B32)?;
                self.warp_wide(
                    t,
                    2,
                    Some(Box::new(move |_, site, group| {
                        site.warp.elect(group, d);
                        Ok(())
                    })),
                )?;
            }
            "nanosleep" => {
                t.form(&[Ty::U32], 1)?;
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
                    true => drop(site.common.checks.warp(site.warp.id, |w| w.waited(site.m))),
                    false => cpu.cx.op.trigger(),
                });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Pushes what is not worth a place in the interpreter's loop.
    pub(super) fn effect(&mut self, run: impl Fn(&mut Cpu<'_>, &mut Site<'_>) -> Exec<Next> + Send + Sync + 'static) {
        self.push(Op::Effect(Box::new(run), None));
    }

    /// Pushes something that cannot fail.
    pub(super) fn act(&mut self, run: impl Fn(&mut Cpu<'_>, &mut Site<'_>) + Send + Sync + 'static) {
        self.effect(move |cpu, site| {
            run(cpu, site);
            Ok(Next::Step)
        });
    }

    /// Pushes an operation of `n` operands of which the last is its member mask.
    fn warp_wide(&mut self, t: &Text<'_>, n: usize, effect: Option<WarpEffect>) -> Res<()> {
        t.arity(n)?;
        let mask = self.src(&t.args[n - 1], Ty::B32)?;
        self.push(Op::Warp(effect, mask));
        Ok(())
    }

    fn barrier(&mut self, t: &mut Text<'_>) -> Res<()> {
        t.skip("cta");
        let kind = t.word("sync arrive red")?;
        let aligned = t.take("aligned") || t.name == "bar";
        let reduction = if kind == "red" { Some(t.need(BarRed::NAMES)?) } else { None };
        // A reduction has its destination first and its input last.
        let at = usize::from(reduction.is_some());
        let least = if kind == "arrive" { 2 } else { 1 + 2 * at };
        t.arities(least, 2 + 2 * at)?;
        let id = self.src(&t.args[at], Ty::U32)?;
        let count = if t.args.len() == 2 + 2 * at { self.src(&t.args[at + 1], Ty::U32)? } else { NONE };
        let red = match reduction {
            None => None,
            Some(kind) => {
                let popc = kind == BarRed::Popc;
                t.expect(&[if popc { Ty::U32 } else { Ty::Pred }])?;
                let (input, negated) = self.pred(&t.args[t.args.len() - 1])?;
                let p = if popc { 0 } else { self.dst(&t.args[0], Ty::Pred)? };
                let d = if popc { self.dst(&t.args[0], Ty::U32)? } else { 0 };
                Some((kind, input, negated, p, d))
            }
        };
        self.push(Op::Bar(Box::new(BarOp { id, count, waits: kind != "arrive", aligned, red })));
        Ok(())
    }
}
