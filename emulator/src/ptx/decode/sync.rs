//! Barriers, warp-wide operations, asynchronous copies.

use super::super::ast::Arg;
use super::super::types::Ty;
use super::{Decoder, Mods, Res};
use crate::exec::inst::*;

impl Decoder<'_> {
    pub(super) fn sync(&mut self, name: &str, m: &mut Mods, args: &[Arg]) -> Res<bool> {
        match name {
            "bar" if m.take("warp") => {
                if !m.take("sync") {
                    return self.fail(name, "needs .sync");
                }
                self.arity(args, 1)?;
                let mask = self.src(&args[0], Ty::B32)?;
                self.push(Op::Warp(Box::new((WarpOp::Sync, mask))));
            }
            "bar" | "barrier" if !m.parts.contains(&"cluster") => self.barrier(name == "bar", m, args)?,
            "barrier" => {
                // A cluster of one block: the barrier is the block's own.
                let _ = (m.take("cluster"), m.take("aligned"));
                return self.fail("barrier.cluster", "clusters of several blocks are not supported");
            }
            "activemask" => {
                self.expect(m, &[Ty::B32])?;
                self.arity(args, 1)?;
                let d = self.dst(&args[0], Ty::B32)?;
                self.push(Op::ActiveMask(d));
            }
            "shfl" => self.shfl(m, args)?,
            "vote" => self.vote(m, args)?,
            "match" => self.match_(m, args)?,
            "redux" => self.redux(m, args)?,
            "elect" => {
                if !m.take("sync") {
                    return self.fail(name, "needs .sync");
                }
                self.arity(args, 2)?;
                let mask = self.src(&args[1], Ty::B32)?;
                let (d, p) = match &args[0] {
                    Arg::Pair(d, p) => (self.dst(&Arg::Word(d.clone()), Ty::B32)?, self.pred_dst_name(p)?),
                    _ => return self.fail(name, "the destination is a register and a predicate"),
                };
                self.push(Op::Warp(Box::new((WarpOp::Elect { d, p }, mask))));
            }
            "nanosleep" => {
                self.expect(m, &[Ty::U32])?;
                self.arity(args, 1)?;
                let a = self.src(&args[0], Ty::U32)?;
                self.push(Op::NanoSleep(a));
            }
            "griddepcontrol" => {
                // Launches of a stream follow each other here: only the checks care.
                let Some(kind) = m.one_of(&["wait", "launch_dependents"]) else {
                    return self.fail(name, "needs .wait or .launch_dependents");
                };
                self.arity(args, 0)?;
                self.push(Op::GridControl(kind == "wait"));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn barrier(&mut self, bar: bool, m: &mut Mods, args: &[Arg]) -> Res<()> {
        let _ = m.take("cta");
        let Some(kind) = m.one_of(&["sync", "arrive", "red"]) else {
            return self.fail("bar", "needs .sync, .arrive or .red");
        };
        let aligned = m.take("aligned") || bar;
        if kind == "red" {
            return self.barrier_red(aligned, m, args);
        }
        if args.is_empty() || args.len() > 2 {
            return self.arity(args, 1);
        }
        let id = self.src(&args[0], Ty::U32)?;
        let count = match args.get(1) {
            Some(a) => self.src(a, Ty::U32)?,
            None if kind == "arrive" => return self.fail("arrive", "needs the number of threads"),
            None => NONE,
        };
        self.push(Op::Bar(Box::new(BarOp { id, count, waits: kind == "sync", aligned, red: None })));
        Ok(())
    }

    fn barrier_red(&mut self, aligned: bool, m: &mut Mods, args: &[Arg]) -> Res<()> {
        let kind = match m.one_of(&["popc", "and", "or"]) {
            Some("popc") => BarRed::Popc,
            Some("and") => BarRed::And,
            Some(_) => BarRed::Or,
            None => return self.fail("red", "needs .popc, .and or .or"),
        };
        self.expect(m, &[if kind == BarRed::Popc { Ty::U32 } else { Ty::Pred }])?;
        if args.len() != 3 && args.len() != 4 {
            return self.arity(args, 3);
        }
        let id = self.src(&args[1], Ty::U32)?;
        let count = if args.len() == 4 { self.src(&args[2], Ty::U32)? } else { NONE };
        let (input, negated) = self.pred(&args[args.len() - 1])?;
        let (p, d) =
            if kind == BarRed::Popc { (0, self.dst(&args[0], Ty::U32)?) } else { (self.pred_dst(&args[0])?, 0) };
        let red = Some((kind, input, negated, p, d));
        self.push(Op::Bar(Box::new(BarOp { id, count, waits: true, aligned, red })));
        Ok(())
    }

    fn shfl(&mut self, m: &mut Mods, args: &[Arg]) -> Res<()> {
        if !m.take("sync") {
            return self.fail("shfl", "needs .sync");
        }
        let mode = match m.one_of(&["up", "down", "bfly", "idx"]) {
            Some("up") => Shfl::Up,
            Some("down") => Shfl::Down,
            Some("bfly") => Shfl::Bfly,
            Some(_) => Shfl::Idx,
            None => return self.fail("shfl", "needs a mode"),
        };
        self.expect(m, &[Ty::B32])?;
        self.arity(args, 5)?;
        let a = self.src(&args[1], Ty::B32)?;
        let (b, c) = (self.src(&args[2], Ty::B32)?, self.src(&args[3], Ty::B32)?);
        let mask = self.src(&args[4], Ty::B32)?;
        let (d, p) = match &args[0] {
            Arg::Pair(d, p) => (self.dst(&Arg::Word(d.clone()), Ty::B32)?, self.pred_dst_name(p)?),
            d => (self.dst(d, Ty::B32)?, 0),
        };
        self.push(Op::Warp(Box::new((WarpOp::Shfl(ShflOp { mode, d, p, a, b, c }), mask))));
        Ok(())
    }

    fn vote(&mut self, m: &mut Mods, args: &[Arg]) -> Res<()> {
        if !m.take("sync") {
            return self.fail("vote", "needs .sync");
        }
        let mode = match m.one_of(&["all", "any", "uni", "ballot"]) {
            Some("all") => Vote::All,
            Some("any") => Vote::Any,
            Some("uni") => Vote::Uni,
            Some(_) => Vote::Ballot,
            None => return self.fail("vote", "needs a mode"),
        };
        self.expect(m, &[if mode == Vote::Ballot { Ty::B32 } else { Ty::Pred }])?;
        self.arity(args, 3)?;
        let (a, negated) = self.pred(&args[1])?;
        let mask = self.src(&args[2], Ty::B32)?;
        let (d, p) =
            if mode == Vote::Ballot { (self.dst(&args[0], Ty::B32)?, 0) } else { (0, self.pred_dst(&args[0])?) };
        self.push(Op::Warp(Box::new((WarpOp::Vote { mode, d, p, a, negated }, mask))));
        Ok(())
    }

    fn match_(&mut self, m: &mut Mods, args: &[Arg]) -> Res<()> {
        let Some(kind) = m.one_of(&["any", "all"]) else { return self.fail("match", "needs .any or .all") };
        if !m.take("sync") {
            return self.fail("match", "needs .sync");
        }
        let ty = self.expect(m, &[Ty::B32, Ty::B64])?;
        self.arity(args, 3)?;
        let a = self.src(&args[1], ty)?;
        let mask = self.src(&args[2], Ty::B32)?;
        let (d, p) = match &args[0] {
            Arg::Pair(d, p) if kind == "all" => (self.dst(&Arg::Word(d.clone()), Ty::B32)?, self.pred_dst_name(p)?),
            d => (self.dst(d, Ty::B32)?, 0),
        };
        let op = WarpOp::Match { all: kind == "all", d, p, a, wide: ty.bytes() == 8 };
        self.push(Op::Warp(Box::new((op, mask))));
        Ok(())
    }

    fn redux(&mut self, m: &mut Mods, args: &[Arg]) -> Res<()> {
        if !m.take("sync") {
            return self.fail("redux", "needs .sync");
        }
        let Some(name) = m.one_of(&["add", "min", "max", "and", "or", "xor"]) else {
            return self.fail("redux", "operation that is not known");
        };
        let ty = self.expect(m, &[Ty::U32, Ty::S32, Ty::B32])?;
        let kind = match (name, ty) {
            ("add", Ty::U32 | Ty::S32) => AtomKind::Add,
            ("min", Ty::U32) => AtomKind::MinU,
            ("min", Ty::S32) => AtomKind::MinS,
            ("max", Ty::U32) => AtomKind::MaxU,
            ("max", Ty::S32) => AtomKind::MaxS,
            ("and", Ty::B32) => AtomKind::And,
            ("or", Ty::B32) => AtomKind::Or,
            ("xor", Ty::B32) => AtomKind::Xor,
            _ => return self.fail(format!("{name}.{ty:?}"), "operation that does not exist"),
        };
        self.arity(args, 3)?;
        let a = self.src(&args[1], ty)?;
        let mask = self.src(&args[2], Ty::B32)?;
        let d = self.dst(&args[0], ty)?;
        self.push(Op::Warp(Box::new((WarpOp::Redux { kind, d, a }, mask))));
        Ok(())
    }
}
