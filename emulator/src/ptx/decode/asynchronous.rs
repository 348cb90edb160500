//! Asynchronous copies and mbarriers.

use super::super::ast::{Arg, Num};
use super::super::types::{Space, Ty};
use super::{Decoder, Res, Text};
use crate::exec::copy::AsyncOp;
use crate::exec::inst::*;
use crate::exec::mbarrier::{MbarrierKind, MbarrierOp};
use crate::exec::vector::Vector;

impl Decoder<'_> {
    pub(super) fn asynchronous(&mut self, t: &mut Text<'_>) -> Res<bool> {
        let name = t.name;
        match name {
            "cp" if t.take("async") => {
                let bulk = t.take("bulk");
                if t.take("commit_group") {
                    t.arity(0)?;
                    self.push(Op::Async(Box::new(AsyncOp::Commit { bulk })));
                } else if !bulk && t.take("wait_all") {
                    t.arity(0)?;
                    self.push(Op::Async(Box::new(AsyncOp::Wait { bulk, keep: None, read: false })));
                } else if t.take("wait_group") {
                    let read = bulk && t.take("read");
                    t.arity(1)?;
                    let keep = Some(self.literal(&t.args[0])?);
                    self.push_turn(Op::Async(Box::new(AsyncOp::Wait { bulk, keep, read })), bulk);
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
    fn shared_address(&mut self, arg: &Arg, generic: bool) -> Res<Address> {
        let named = matches!(arg, Arg::Address(Some(name), _) if self.named(name).is_none());
        self.address(arg, if generic && !named { Space::Generic } else { Space::Shared })
    }

    fn copy_async(&mut self, t: &mut Text<'_>) -> Res<()> {
        if t.take("mbarrier") {
            t.require("arrive")?;
            let noinc = t.take("noinc");
            let generic = self.space(t) != Space::Shared;
            t.expect(&[Ty::B64])?;
            t.arity(1)?;
            let address = self.shared_address(&t.args[0], generic)?;
            self.push(Op::Async(Box::new(AsyncOp::Arrive { address, noinc })));
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
        let dst = self.address(&t.args[0], Space::Shared)?;
        let src = self.address(&t.args[1], Space::Global)?;
        self.push(Op::Async(Box::new(AsyncOp::Copy { dst, src, bytes, source })));
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
        let dst = self.address(&t.args[0], to)?;
        let src = self.address(&t.args[1], from)?;
        let bytes = self.src(&t.args[2], Ty::U32)?;
        let barrier = if inward { Some(self.address(&t.args[3], Space::Shared)?) } else { None };
        self.push(Op::Async(Box::new(AsyncOp::Bulk { dst, src, bytes, barrier })));
        Ok(())
    }

    fn mbarrier(&mut self, t: &mut Text<'_>) -> Res<()> {
        const OPERATIONS: &[(&str, MbarrierKind)] = &[
            ("init", MbarrierKind::Init),
            ("inval", MbarrierKind::Invalidate),
            ("arrive", MbarrierKind::Arrive),
            ("arrive_drop", MbarrierKind::Drop),
            ("test_wait", MbarrierKind::WaitState),
            ("try_wait", MbarrierKind::WaitState),
            ("expect_tx", MbarrierKind::Expect),
            ("complete_tx", MbarrierKind::Complete),
        ];
        if t.take("pending_count") {
            t.expect(&[Ty::B64])?;
            // A state holds the pending count in its upper half.
            t.arity(2)?;
            let a = self.src(&t.args[1], Ty::B64)?;
            let d = self.dst(&t.args[0], Ty::U32)?;
            self.push(Op::Vector(Vector::High, [d, a, 0, 0]));
            return Ok(());
        }
        let timed = t.has("try_wait");
        let mut kind = t.need(OPERATIONS)?;
        let (arrives, waits) =
            (matches!(kind, MbarrierKind::Arrive | MbarrierKind::Drop), kind == MbarrierKind::WaitState);
        let no_complete = arrives && t.take("noComplete");
        if arrives && t.take("expect_tx") {
            if kind == MbarrierKind::Drop {
                return t.fail("arrive_drop", ".expect_tx is not supported here");
            }
            kind = MbarrierKind::ArriveExpect;
        }
        if waits && t.take("parity") {
            kind = MbarrierKind::WaitParity;
        }
        let sem = if self.sem(t) == Some(Sem::Relaxed) { Sem::Relaxed } else { Sem::AcqRel };
        self.scope(t);
        let generic = self.space(t) != Space::Shared;
        t.expect(&[Ty::B64])?;
        let returns = waits || (arrives && !matches!(t.args.first(), Some(Arg::Address(..))));
        let at = usize::from(returns);
        // A count, bytes, a parity or a state; arriving, it may be left out, and waiting, a time may follow.
        let least = match kind {
            MbarrierKind::Invalidate => 0,
            MbarrierKind::Arrive | MbarrierKind::Drop if !no_complete => 0,
            _ => 1,
        };
        let most = if timed { 2 } else { usize::from(kind != MbarrierKind::Invalidate) };
        t.arities(at + 1 + least, at + 1 + most)?;
        let address = self.shared_address(&t.args[at], generic)?;
        let (ty, w) = if kind == MbarrierKind::WaitState { (Ty::B64, W::W64) } else { (Ty::U32, W::W32) };
        let value = match t.args.get(at + 1) {
            Some(arg) => self.src(arg, ty)?,
            None => self.constant(1, false),
        };
        if let Some(hint) = t.args.get(at + 2) {
            self.src(hint, Ty::U32)?;
        }
        let p = if waits { self.pred_dst(&t.args[0])? } else { 0 };
        let d = if returns && !waits { self.dst(&t.args[0], Ty::B64)? } else { NONE };
        self.push(Op::Mbarrier(Box::new(MbarrierOp { kind, address, value: (value, w), d, p, sem })));
        Ok(())
    }
}
