//! Asynchronous copies and their groups.

use super::super::ast::{Arg, Num};
use super::text::{Text, WRONG_OPERANDS};
use super::{Decoder, Res};
use crate::exec::tensor::TensorCopy;
use crate::machine::types::{Space, Ty};

impl Decoder<'_> {
    pub(super) fn asynchronous(&mut self, t: &mut Text<'_>) -> Res<bool> {
        match (t.name, t.args) {
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
                let (from, bytes) = (self.address(address, Space::Global)?, self.src(bytes, Ty::U32)?);
                self.effect(move |cpu, site| cpu.prefetch(site, &from, bytes));
            }
            ("cp", [count]) if t.take("async") => {
                let (bulk, keep) = (t.take("bulk"), Some(self.count(count)?));
                t.require("wait_group")?;
                let read = bulk && t.take("read");
                self.act(move |cpu, site| cpu.wait_group(site, bulk, keep, read));
                self.turn(bulk);
            }
            ("cp", _) if t.take("async") => match t.take("bulk") {
                true if t.take("tensor") => self.copy_tensor(t)?,
                true => self.copy_bulk(t)?,
                false => self.copy_async(t)?,
            },
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A count written as a literal.
    pub(super) fn count(&self, arg: &Arg) -> Res<u32> {
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

    /// `cp.async.bulk` into shared memory with an mbarrier, or out of it in a group.
    fn copy_bulk(&mut self, t: &mut Text<'_>) -> Res<()> {
        let (to, from) = (t.space(), t.space());
        let (guard, operands) = match (to, from) {
            (Space::Shared, Space::Global) => ("mbarrier::complete_tx::bytes", 4),
            (Space::Global, Space::Shared) => ("bulk_group", 3),
            _ => return t.fail(t.opcode, "copies between .global and .shared"),
        };
        t.require(guard)?;
        let policy = self.hints(t, operands)?;
        let (dst, src) = (self.address(&t.args[0], to)?, self.address(&t.args[1], from)?);
        let bytes = self.src(&t.args[2], Ty::U32)?;
        let barrier = t.args[..operands].get(3).map(|arg| self.address(arg, Space::Shared)).transpose()?;
        self.effect(move |cpu, site| cpu.bulk(site, [&dst, &src], (bytes, policy), barrier.as_ref()));
        Ok(())
    }

    /// `cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [dst], [map, {x, y}], [mbarrier];`
    fn copy_tensor(&mut self, t: &mut Text<'_>) -> Res<()> {
        let rank = t.need(&[("1d", 1), ("2d", 2), ("3d", 3), ("4d", 4), ("5d", 5)])?;
        let (to, from) = (t.space(), t.space());
        t.ensure((to, from) == (Space::Shared, Space::Global), "copies from .global to .shared")?;
        t.require("mbarrier::complete_tx::bytes")?;
        t.take("tile");
        let policy = self.hints(t, 3)?;
        let [dst, Arg::Place(map, offset, place), barrier, ..] = t.args else {
            return t.fail(t.opcode, WRONG_OPERANDS);
        };
        let [Arg::Vector(coordinates)] = &place[..] else { return t.fail(t.opcode, WRONG_OPERANDS) };
        t.ensure(coordinates.len() == rank, "another number of coordinates than the tensor has dimensions")?;
        let copy = TensorCopy {
            dst: self.address(dst, to)?,
            map: self.address(&Arg::Address(map.clone(), *offset), Space::Generic)?,
            coordinates: coordinates.iter().map(|arg| self.src(arg, Ty::S32)).collect::<Res<_>>()?,
            mbarrier: self.address(barrier, Space::Shared)?,
            policy,
        };
        self.effect(move |cpu, site| cpu.copy_tensor(site, &copy));
        Ok(())
    }
}
