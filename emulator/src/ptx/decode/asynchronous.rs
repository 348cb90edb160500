//! Asynchronous copies and mbarriers.

use super::super::ast::{Arg, Num};
use super::super::types::{Space, Ty};
use super::{Decoder, Mods, Res};
use crate::exec::copy::AsyncOp;
use crate::exec::inst::*;
use crate::exec::mbarrier::{MbarrierKind, MbarrierOp};

impl Decoder<'_> {
    pub(super) fn asynchronous(&mut self, name: &str, m: &mut Mods, args: &[Arg]) -> Res<bool> {
        match name {
            "cp" if m.take("async") => {
                if m.take("bulk") {
                    self.bulk(m, args)?;
                } else {
                    self.copy(m, args)?;
                }
            }
            "mbarrier" => self.mbarrier(m, args)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A count written as a literal.
    fn literal(&self, arg: Option<&Arg>) -> Res<u32> {
        match arg {
            Some(Arg::Num(Num::Int(v))) if *v <= u64::from(u32::MAX) => Ok(*v as u32),
            _ => self.fail("count", "expected a constant"),
        }
    }

    /// An address in shared memory, perhaps given as a generic one.
    fn shared_address(&mut self, arg: &Arg, generic: bool) -> Res<(Address, MemSpace)> {
        let space = match arg {
            Arg::Address(Some(name), _) if self.named(name).is_none() => Space::Shared,
            _ if generic => Space::Generic,
            _ => Space::Shared,
        };
        self.address(arg, space)
    }

    fn copy(&mut self, m: &mut Mods, args: &[Arg]) -> Res<()> {
        if m.take("commit_group") {
            self.arity(args, 0)?;
            self.push(Op::Async(Box::new(AsyncOp::Commit { bulk: false })));
        } else if m.take("wait_all") {
            self.arity(args, 0)?;
            self.push(Op::Async(Box::new(AsyncOp::Wait { bulk: false, keep: 0, all: true, read: false })));
        } else if m.take("wait_group") {
            self.arity(args, 1)?;
            let keep = self.literal(args.first())?;
            self.push(Op::Async(Box::new(AsyncOp::Wait { bulk: false, keep, all: false, read: false })));
        } else if m.take("mbarrier") {
            if !m.take("arrive") {
                return self.fail("cp.async.mbarrier", "needs .arrive");
            }
            let noinc = m.take("noinc");
            let generic = m.one_of(&["shared", "shared::cta"]).is_none();
            self.expect(m, &[Ty::B64])?;
            self.arity(args, 1)?;
            let (address, space) = self.shared_address(&args[0], generic)?;
            self.push(Op::Async(Box::new(AsyncOp::Arrive { address, space, noinc })));
        } else {
            let Some(cache) = m.one_of(&["ca", "cg"]) else { return self.fail("cp.async", "needs .ca or .cg") };
            let to_shared = m.one_of(&["shared", "shared::cta"]).is_some();
            if !to_shared || !m.take("global") {
                return self.fail("cp.async", "copies from .global to .shared");
            }
            while m.one_of(&["L2::64B", "L2::128B", "L2::256B"]).is_some() {}
            let policy = usize::from(m.take("L2::cache_hint"));
            let sizes = args.len().saturating_sub(policy);
            if !(3..=4).contains(&sizes) {
                return self.arity(args, 3);
            }
            let bytes = self.literal(args.get(2))?;
            if !matches!((cache, bytes), ("ca", 4 | 8 | 16) | ("cg", 16)) {
                return self.fail(bytes.to_string(), "copies of 4, 8 or 16 bytes with .ca, of 16 with .cg");
            }
            let source = if sizes == 4 { self.src(&args[3], Ty::U32)? } else { NONE };
            let (dst, _) = self.address(&args[0], Space::Shared)?;
            let (src, _) = self.address(&args[1], Space::Global)?;
            self.push(Op::Async(Box::new(AsyncOp::Copy { dst, src, bytes, source })));
        }
        Ok(())
    }

    fn bulk(&mut self, m: &mut Mods, args: &[Arg]) -> Res<()> {
        if m.take("commit_group") {
            self.arity(args, 0)?;
            self.push(Op::Async(Box::new(AsyncOp::Commit { bulk: true })));
            return Ok(());
        }
        if m.take("wait_group") {
            let read = m.take("read");
            self.arity(args, 1)?;
            let keep = self.literal(args.first())?;
            self.push_turn(Op::Async(Box::new(AsyncOp::Wait { bulk: true, keep, all: false, read })));
            return Ok(());
        }
        if m.take("prefetch") {
            let _ = (m.take("L2"), m.take("global"));
            let policy = usize::from(m.take("L2::cache_hint"));
            self.arity(args, 2 + policy)?;
            self.address(&args[0], Space::Global)?;
            self.src(&args[1], Ty::U32)?;
            self.push(Op::Nop);
            return Ok(());
        }
        let shared = |p: &&str| matches!(*p, "shared::cluster" | "shared::cta");
        let (Some(s), Some(g)) = (m.parts.iter().position(shared), m.parts.iter().position(|p| *p == "global")) else {
            return self.fail("cp.async.bulk", "copies between .global and shared memory");
        };
        let inward = s < g;
        let _ = (m.one_of(&["shared::cluster", "shared::cta"]), m.take("global"));
        let policy = usize::from(m.take("L2::cache_hint"));
        if inward {
            if !m.take("mbarrier::complete_tx::bytes") {
                return self.fail("cp.async.bulk", "needs .mbarrier::complete_tx::bytes");
            }
            self.arity(args, 4 + policy)?;
            let (dst, _) = self.address(&args[0], Space::Shared)?;
            let (src, _) = self.address(&args[1], Space::Global)?;
            let bytes = self.src(&args[2], Ty::U32)?;
            let (barrier, _) = self.address(&args[3], Space::Shared)?;
            self.push(Op::Async(Box::new(AsyncOp::BulkIn { dst, src, bytes, barrier })));
        } else {
            if !m.take("bulk_group") {
                return self.fail("cp.async.bulk", "needs .bulk_group");
            }
            self.arity(args, 3 + policy)?;
            let (dst, _) = self.address(&args[0], Space::Global)?;
            let (src, _) = self.address(&args[1], Space::Shared)?;
            let bytes = self.src(&args[2], Ty::U32)?;
            self.push(Op::Async(Box::new(AsyncOp::BulkOut { dst, src, bytes })));
        }
        Ok(())
    }

    fn mbarrier(&mut self, m: &mut Mods, args: &[Arg]) -> Res<()> {
        let list = [
            "init",
            "inval",
            "arrive",
            "arrive_drop",
            "expect_tx",
            "complete_tx",
            "test_wait",
            "try_wait",
            "pending_count",
        ];
        let Some(name) = m.parts.first().and_then(|p| list.iter().find(|x| *x == p)).copied() else {
            return self.fail("mbarrier", "operation that is not known");
        };
        m.take(name);
        if name == "pending_count" {
            self.expect(m, &[Ty::B64])?;
            // A state holds the pending count in its upper half.
            self.arity(args, 2)?;
            let a = self.src(&args[1], Ty::B64)?;
            let d = self.dst(&args[0], Ty::U32)?;
            self.push(Op::Half(true, d, a));
            return Ok(());
        }
        let expect = matches!(name, "arrive" | "arrive_drop") && m.take("expect_tx");
        let no_complete = matches!(name, "arrive" | "arrive_drop") && m.take("noComplete");
        let parity = matches!(name, "test_wait" | "try_wait") && m.take("parity");
        let sem = match m.one_of(&["acquire", "release", "relaxed"]) {
            Some("relaxed") => Sem::Relaxed,
            _ => Sem::AcqRel,
        };
        let _ = self.scope(m);
        let generic = m.one_of(&["shared", "shared::cta", "shared::cluster"]).is_none();
        self.expect(m, &[Ty::B64])?;
        let waits = matches!(name, "test_wait" | "try_wait");
        let returns =
            waits || (matches!(name, "arrive" | "arrive_drop") && !matches!(args.first(), Some(Arg::Address(..))));
        let at = usize::from(returns);
        let Some(target) = args.get(at) else { return self.arity(args, at + 1) };
        let (address, space) = self.shared_address(target, generic)?;
        let rest = &args[at + 1..];
        let one = self.constant(1, false);
        let (mut value, mut wide) = (one, false);
        match (name, rest.len()) {
            ("init" | "expect_tx" | "complete_tx", 1) => value = self.src(&rest[0], Ty::U32)?,
            ("inval", 0) => {}
            ("arrive" | "arrive_drop", 0) if !expect && !no_complete => {}
            ("arrive" | "arrive_drop", 1) => value = self.src(&rest[0], Ty::U32)?,
            ("test_wait", 1) | ("try_wait", 1 | 2) => {
                wide = !parity;
                value = self.src(&rest[0], if parity { Ty::U32 } else { Ty::B64 })?;
                if let Some(hint) = rest.get(1) {
                    self.src(hint, Ty::U32)?;
                }
            }
            _ => {
                return self
                    .fail(format!("{} operands", args.len()), "number of operands that this operation does not take");
            }
        }
        let (mut d, mut p) = (NONE, 0);
        if waits {
            p = self.pred_dst(&args[0])?;
        } else if returns {
            d = self.dst(&args[0], Ty::B64)?;
        }
        let kind = match name {
            "init" => MbarrierKind::Init,
            "inval" => MbarrierKind::Invalidate,
            "arrive" if expect => MbarrierKind::ArriveExpect,
            "arrive" => MbarrierKind::Arrive,
            "arrive_drop" if expect => return self.fail("arrive_drop", ".expect_tx is not supported here"),
            "arrive_drop" => MbarrierKind::Drop,
            "expect_tx" => MbarrierKind::Expect,
            "complete_tx" => MbarrierKind::Complete,
            _ if parity => MbarrierKind::WaitParity,
            _ => MbarrierKind::WaitState,
        };
        let op = MbarrierOp { kind, address, space, value, wide, d, p, sem };
        self.push(Op::Mbarrier(Box::new(op)));
        Ok(())
    }
}
