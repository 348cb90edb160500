//! Warp-wide instructions: warp barriers, shuffles, votes, matches, reductions.
//!
//! A part without all members of its mask waits until the others join it. Exited lanes are not waited for.

use super::inst::*;
use super::step::Flow;
use super::warp::{Part, State, Warp};
use super::{Cpu, Site};
use crate::machine::fault::{FaultKind, OrFault};
use crate::machine::lanes::{Lanes, groups};
use crate::machine::layout::At;

impl Cpu<'_> {
    /// Faults where no part can run again because parts wait for members that cannot come.
    pub(crate) fn check_members(&self, warp: &Warp) -> OrFault<()> {
        let op = |p: &Part| &self.cx.code.insts[p.pc as usize].op;
        let exchanges = |p: &Part| matches!(op(p), Op::Warp(Some(_), _));
        let waiting = warp.parts.iter().filter(|p| p.state == State::Members);
        let Some(first) = waiting.min_by_key(|p| !exchanges(p)) else { return Ok(()) };
        let barrier = matches!(op(first), Op::Bar(_));
        let goes_on = |p: &Part| match p.state {
            State::Members => false,
            // It may be released, unless this part is what the barrier waits for.
            State::Barrier(_) => !barrier,
            _ => true,
        };
        if warp.parts.iter().any(goes_on) {
            return Ok(());
        }
        let what = match warp.parts.iter().find(|p| p.pc != first.pc) {
            Some(p) => format!("its other lanes, of which {:08x} wait at {}", p.mask, self.cx.describe(p.pc)),
            None => "lanes that are not coming".into(),
        };
        let message = format!("lanes {:08x} of the warp wait here for {what}", first.mask);
        let at = At { pc: first.pc, warp: warp.id, ctaid: warp.ctaid };
        let kind = if exchanges(first) { FaultKind::InvalidSync } else { FaultKind::DivergentBarrier };
        Err(self.fault(kind, &at, Some(first.mask.trailing_zeros() as usize), message))
    }

    /// Executes a warp-wide instruction; without an effect it is `bar.warp.sync`.
    pub(crate) fn warp_wide(&mut self, site: &mut Site<'_>, effect: Option<&WarpEffect>, members: R) -> OrFault<Flow> {
        let code = self.cx.code;
        let m = site.m;
        if m != site.all {
            return Ok(site.scatter());
        }
        let Site { common, warp, .. } = site;
        // Lanes with different masks are different groups. Mostly there is one, and a constant is the same in all lanes.
        let (first, others) = match members & CONST {
            0 => {
                let mut masks = groups(m, |l| warp.lane32(code, members, l));
                (masks.next(), masks.collect())
            }
            _ => (Some((warp.lane32(code, members, 0), m)), Vec::new()),
        };
        for &(mask, group) in first.iter().chain(&others) {
            if group & !mask != 0 && self.cx.config.checks.synccheck {
                let lane = (group & !mask).trailing_zeros() as usize;
                let message = format!("the executing lane is not in its member mask {mask:08x}");
                return Err(self.fault(FaultKind::InvalidSync, &site.at, Some(lane), message));
            }
            let needed = mask & common.live[warp.id as usize];
            if needed & !m == 0 {
                continue;
            }
            // Members elsewhere: wait for them. A warp barrier may be met at different instructions.
            let meets = |p: &Part| {
                p.state == State::Members
                    && matches!(&code.insts[p.pc as usize].op, Op::Warp(None, r)
                        if Lanes(p.mask).all(|l| warp.lane32(code, *r, l) == mask))
            };
            let waiting = warp.parts.iter().filter(|p| meets(p)).fold(m, |g, p| g | p.mask);
            if effect.is_some() || waiting & needed != needed {
                return Ok(Flow::Park(State::Members, 0));
            }
            common.observers.warp_barrier(warp.id, waiting & mask);
            for p in warp.parts.iter_mut().filter(|p| p.state == State::Members && p.mask & mask != 0) {
                (p.state, p.pc) = (State::Ready, p.pc + 1);
            }
            return Ok(Flow::Next);
        }
        for (_, group) in first.into_iter().chain(others) {
            match effect {
                Some(run) => run(self, site, group)?,
                None => site.common.observers.warp_barrier(site.warp.id, group),
            }
        }
        Ok(Flow::Next)
    }

    /// `shfl.sync`: value, lane and clamp from a, b, c.
    pub(crate) fn shuffle(
        &mut self,
        site: &mut Site<'_>,
        group: u32,
        mode: Shfl,
        (d, p): (R, P),
        [a, b, c]: [R; 3],
    ) -> OrFault<()> {
        let (code, warp) = (self.cx.code, &mut *site.warp);
        let mut inside = 0u32;
        let mut out = [0u32; 32];
        let mut from = [0; 32];
        for l in Lanes(group) {
            let (b, c) = (warp.lane32(code, b, l), warp.lane32(code, c, l));
            let lane = l as i32;
            let (b, clamp, segment) = ((b & 31) as i32, (c & 31) as i32, (c >> 8 & 31) as i32);
            let max = lane & segment | clamp & !segment;
            let j = match mode {
                Shfl::Up => lane - b,
                Shfl::Down => lane + b,
                Shfl::Bfly => lane ^ b,
                Shfl::Idx => lane & segment | b & !segment,
            };
            let ok = if mode == Shfl::Up { j >= max } else { j <= max };
            let j = if ok { j } else { lane } as usize;
            if group >> j & 1 == 0 && self.cx.config.checks.synccheck {
                let message =
                    format!("the value is taken from lane {j}, which does not take part (lanes {group:08x} do)");
                return Err(self.fault(FaultKind::InvalidSync, &site.at, Some(l), message));
            }
            out[l] = warp.lane32(code, a, j);
            from[l] = j;
            inside |= u32::from(ok) << l;
        }
        Lanes(group).for_each(|l| warp.set_lane(d, W::W32, l, u64::from(out[l])));
        warp.set_pred(p, inside, group);
        if warp.defined.any() {
            self.taken(site, (d, p), [a, b, c], group, &from);
        }
        Ok(())
    }
}

impl Warp {
    /// Writes the same value for all lanes of a group.
    fn put(&mut self, d: R, group: u32, v: u32) {
        Lanes(group).for_each(|l| self.set_lane(d, W::W32, l, v.into()));
    }

    /// `vote.sync` of a predicate's mask.
    pub(crate) fn vote(&mut self, group: u32, mode: Vote, (d, p): (R, P), votes: u32) {
        let v = votes & group;
        let truth = match mode {
            Vote::All => v == group,
            Vote::Any => v != 0,
            Vote::Uni => v == 0 || v == group,
            Vote::Ballot => return self.put(d, group, v),
        };
        self.set_pred(p, if truth { group } else { 0 }, group);
    }

    /// `match.sync`: each lane gets the mask of lanes with its value; given `all`, the group's mask if all lanes agree.
    pub(crate) fn matching(&mut self, code: &Program, group: u32, all: bool, (d, p): (R, P), a: (R, W)) {
        let alike: Vec<_> = groups(group, |l| self.lane(code, a, l)).collect();
        if all {
            let everyone = if alike.len() == 1 { group } else { 0 };
            self.put(d, group, everyone);
            self.set_pred(p, everyone, group);
        } else {
            alike.into_iter().for_each(|(_, lanes)| self.put(d, lanes, lanes));
        }
    }

    /// `redux.sync`
    pub(crate) fn reduce(&mut self, code: &Program, group: u32, f: AtomFn, d: R, a: R) {
        let lanes = Lanes(group).map(|l| u64::from(self.lane32(code, a, l)));
        let v = lanes.reduce(|x, y| f(x, y, 0) & 0xffff_ffff).unwrap_or(0);
        self.put(d, group, v as u32);
    }

    /// `elect.sync`: the lowest lane.
    pub(crate) fn elect(&mut self, group: u32, (d, p): (R, P)) {
        let leader = group.trailing_zeros();
        self.put(d, group, leader);
        self.set_pred(p, 1 << leader, group);
    }
}
