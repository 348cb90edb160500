//! Barriers and warp-wide operations.

use super::super::ast::Arg;
use super::super::types::Ty;
use super::operands::width;
use super::{Decoder, Res, Text};
use crate::exec::access::atom_fn;
use crate::exec::inst::*;

impl Decoder<'_> {
    pub(super) fn sync(&mut self, t: &mut Text<'_>) -> Res<bool> {
        let name = t.name;
        match name {
            "bar" if t.take("warp") => {
                t.require("sync")?;
                t.arity(1)?;
                self.warp_wide(t, WarpOp::Sync)?;
            }
            "bar" | "barrier" if !t.has("cluster") => self.barrier(t)?,
            "barrier" => return t.fail("barrier.cluster", "clusters of several blocks are not supported"),
            "activemask" => {
                t.expect(&[Ty::B32])?;
                t.arity(1)?;
                let d = self.dst(&t.args[0], Ty::B32)?;
                self.push(Op::Special(|r| r.active.into(), d, W::W32));
            }
            "shfl" => {
                t.require("sync")?;
                let mode = t.need(Shfl::NAMES)?;
                t.expect(&[Ty::B32])?;
                t.arity(5)?;
                let [(a, _), (b, _), (c, _), _] = self.sources(t, &[Ty::B32; 3])?;
                let (d, p) = self.pair_dst(&t.args[0])?;
                self.warp_wide(t, WarpOp::Shfl(ShflOp { mode, d, p, a, b, c }))?;
            }
            "vote" => {
                t.require("sync")?;
                let mode = t.need(Vote::NAMES)?;
                let ballot = mode == Vote::Ballot;
                t.expect(&[if ballot { Ty::B32 } else { Ty::Pred }])?;
                t.arity(3)?;
                let (a, negated) = self.pred(&t.args[1])?;
                let d = if ballot { self.dst(&t.args[0], Ty::B32)? } else { 0 };
                let p = if ballot { 0 } else { self.pred_dst(&t.args[0])? };
                self.warp_wide(t, WarpOp::Vote { mode, d, p, a, negated })?;
            }
            "match" => {
                let all = t.need(&[("any", false), ("all", true)])?;
                t.require("sync")?;
                let ty = t.expect(&[Ty::B32, Ty::B64])?;
                t.arity(3)?;
                let a = (self.src(&t.args[1], ty)?, width(ty));
                if !all && matches!(t.args[0], Arg::Pair(..)) {
                    return t.fail(t.name, "only .all has a predicate");
                }
                let (d, p) = self.pair_dst(&t.args[0])?;
                self.warp_wide(t, WarpOp::Match { all, d, p, a })?;
            }
            "redux" => {
                t.require("sync")?;
                let name = t.word("add min max and or xor")?;
                let ty = t.expect(&[Ty::U32, Ty::S32, Ty::B32])?;
                let Some(f) = atom_fn(name, ty) else {
                    return t.fail(format!("{name}.{ty:?}"), "operation that does not exist");
                };
                t.arity(3)?;
                let a = self.src(&t.args[1], ty)?;
                let d = self.dst(&t.args[0], ty)?;
                self.warp_wide(t, WarpOp::Redux { f, d, a })?;
            }
            "elect" => {
                t.require("sync")?;
                t.arity(2)?;
                if !matches!(t.args[0], Arg::Pair(..)) {
                    return t.fail(t.name, "the destination is a register and a predicate");
                }
                let (d, p) = self.pair_dst(&t.args[0])?;
                self.warp_wide(t, WarpOp::Elect { d, p })?;
            }
            "nanosleep" => {
                t.expect(&[Ty::U32])?;
                t.arity(1)?;
                let a = self.src(&t.args[0], Ty::U32)?;
                self.push(Op::NanoSleep(a));
            }
            "griddepcontrol" => {
                // Launches of a stream follow each other here: only the checks care.
                let waits = t.need(&[("wait", true), ("launch_dependents", false)])?;
                t.arity(0)?;
                self.push(Op::GridControl(waits));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Pushes an operation whose last operand is its member mask.
    fn warp_wide(&mut self, t: &Text<'_>, op: WarpOp) -> Res<()> {
        let mask = self.src(&t.args[t.args.len() - 1], Ty::B32)?;
        self.push(Op::Warp(Box::new(op), mask));
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
                let p = if popc { 0 } else { self.pred_dst(&t.args[0])? };
                let d = if popc { self.dst(&t.args[0], Ty::U32)? } else { 0 };
                Some((kind, input, negated, p, d))
            }
        };
        self.push(Op::Bar(Box::new(BarOp { id, count, waits: kind != "arrive", aligned, red })));
        Ok(())
    }
}
