//! Warp-wide instructions: those with a member mask.

use super::operands::width;
use super::text::Text;
use super::{Decoder, Res};
use crate::exec::access::atom_fn;
use crate::exec::inst::*;
use crate::exec::{Cpu, Site};
use crate::machine::types::Ty;

impl Decoder<'_> {
    pub(super) fn warp(&mut self, t: &mut Text<'_>) -> Res<bool> {
        match (t.name, t.args) {
            ("bar", [mask]) if t.take("warp") => {
                t.require("sync")?;
                let mask = self.src(mask, Ty::B32)?;
                self.push(Op::Warp(None, mask));
            }
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
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Pushes a warp-wide effect that cannot fault.
    fn warp_wide(&mut self, mask: R, run: impl Fn(&mut Cpu<'_>, &mut Site<'_>, u32) + Send + Sync + 'static) {
        let effect: WarpEffect = Box::new(move |cpu, site, group| {
            run(cpu, site, group);
            if site.warp.defined.any() {
                cpu.share(site, group);
            }
            Ok(())
        });
        self.push(Op::Warp(Some(effect), mask));
    }
}
