//! Instructions of several lanes together: barriers, shuffles, votes, matches, reductions.
//!
//! A part that lacks members of its mask waits; the others join it when they come. Lanes that have exited are not
//! waited for.

use super::access::combine;
use super::block::Common;
use super::inst::*;
use super::lanes::Lanes;
use super::step::Next;
use super::warp::{State, Warp};
use super::{At, Cpu, Exec, FaultKind};

impl Cpu<'_> {
    /// `bar` and `barrier`.
    pub(crate) fn bar(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        op: &BarOp,
        m: u32,
        all: u32,
        at: &At,
    ) -> Exec<Next> {
        if op.aligned && self.cx.config.checks.synccheck {
            if m != all {
                let lane = (all & !m).trailing_zeros() as usize;
                let message = "a barrier whose guard differs between the lanes of a warp";
                return Err(self.fault(FaultKind::DivergentBarrier, at, Some(lane), message));
            }
            if m != warp.live {
                return Ok(Next::Park(State::Members));
            }
        }
        if m != all {
            // Lanes that do not take part go on.
            let rest = all & !m;
            warp.parts.push(super::warp::Part { pc: at.pc + 1, mask: rest, state: State::Ready, last: 0, pieces: 0 });
            warp.parts.push(super::warp::Part { pc: at.pc, mask: m, state: State::Ready, last: 0, pieces: 0 });
            return Ok(Next::Scatter);
        }
        self.check_arrive(common, warp, op, m, at)?;
        let id = self.arrive(common, warp, m, op, at)?;
        if op.waits {
            return Ok(Next::Park(State::Barrier(id)));
        }
        if common.complete != 0 {
            return Ok(Next::StepAndPark(State::Ready));
        }
        Ok(Next::Step)
    }

    /// All parts wait: say so if that can never end.
    pub(crate) fn check_members(&self, common: &Common, warp: &Warp) -> Exec<()> {
        let members: Vec<_> = warp.parts.iter().filter(|p| p.state == State::Members).collect();
        let Some(first) = members.first() else { return Ok(()) };
        if warp.parts.iter().any(|p| matches!(p.state, State::Ready | State::Turn | State::Sleep(_))) {
            return Ok(());
        }
        let at = At { pc: first.pc, warp: warp.id, ctaid: common.ctaid };
        let barrier = |pc: u32| matches!(self.cx.code.insts[pc as usize].op, Op::Bar(_));
        let lane = Some(first.mask.trailing_zeros() as usize);
        // Parts that arrived at a barrier of the block may still be released, unless this part is what it waits for.
        if let Some(other) = warp.parts.iter().find(|p| p.pc != first.pc) {
            let message = format!(
                "lanes {:08x} of the warp wait here for its other lanes, of which {:08x} wait at {}",
                first.mask,
                other.mask,
                self.cx.describe(other.pc)
            );
            let released = warp.parts.iter().any(|p| matches!(p.state, State::Barrier(_)));
            if barrier(first.pc) || !released {
                return Err(self.fault(FaultKind::DivergentBarrier, &at, lane, message));
            }
            return Ok(());
        }
        let message = format!("lanes {:08x} of the warp wait here for lanes that are not coming", first.mask);
        Err(self.fault(FaultKind::DivergentBarrier, &at, lane, message))
    }

    /// Operations with a member mask.
    pub(crate) fn warp_wide(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        op: &(WarpOp, R),
        m: u32,
        all: u32,
        at: &At,
    ) -> Exec<Next> {
        let code = self.cx.code;
        if m != all {
            let rest = all & !m;
            warp.parts.push(super::warp::Part { pc: at.pc + 1, mask: rest, state: State::Ready, last: 0, pieces: 0 });
            warp.parts.push(super::warp::Part { pc: at.pc, mask: m, state: State::Ready, last: 0, pieces: 0 });
            return Ok(Next::Scatter);
        }
        // Lanes with different masks are different groups.
        let mut left = m;
        let mut groups = Vec::new();
        let synccheck = self.cx.config.checks.synccheck;
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            let mask = warp.lane32(code, op.1, lane);
            let group = Lanes(left).filter(|&l| warp.lane32(code, op.1, l) == mask).fold(0, |g, l| g | 1u32 << l);
            if group & !mask != 0 {
                let lane = (group & !mask).trailing_zeros() as usize;
                let message = format!("the executing lane is not in its member mask {mask:08x}");
                if synccheck {
                    return Err(self.fault(FaultKind::InvalidSync, at, Some(lane), message));
                }
            }
            if mask & warp.live & !m != 0 {
                // Members elsewhere: wait for them. A warp barrier may be met at different instructions.
                if let WarpOp::Sync = op.0 {
                    let waiting = warp
                        .parts
                        .iter()
                        .filter(|p| {
                            p.state == State::Members
                                && matches!(&code.insts[p.pc as usize].op, Op::Warp(o) if matches!(o.0, WarpOp::Sync)
                                    && Lanes(p.mask).all(|l| warp.lane32(code, o.1, l) == mask))
                        })
                        .fold(m, |g, p| g | p.mask);
                    if waiting & mask & warp.live == mask & warp.live {
                        self.warp_synced(common, warp, waiting & mask, at);
                        for p in &mut warp.parts {
                            if p.state == State::Members && p.mask & mask != 0 {
                                p.state = State::Ready;
                                p.pc += 1;
                            }
                        }
                        return Ok(Next::Step);
                    }
                }
                return Ok(Next::Park(State::Members));
            }
            groups.push((mask, group));
            left &= !group;
        }
        for (mask, group) in groups {
            self.warp_op(common, warp, &op.0, mask, group, at)?;
        }
        Ok(Next::Step)
    }

    fn warp_op(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        op: &WarpOp,
        mask: u32,
        group: u32,
        at: &At,
    ) -> Exec<()> {
        let code = self.cx.code;
        let set = |warp: &mut Warp, p: P, v: u32| {
            let r = &mut warp.preds[usize::from(p)];
            *r = *r & !group | v & group;
        };
        let truth = |t: bool| if t { u32::MAX } else { 0 };
        match op {
            WarpOp::Sync => self.warp_synced(common, warp, group, at),
            WarpOp::Shfl(s) => self.shuffle(warp, s, group, at)?,
            WarpOp::Vote { mode, d, p, a, negated } => {
                let v = warp.preds[usize::from(*a)];
                let v = if *negated { !v } else { v } & group;
                match mode {
                    Vote::All => set(warp, *p, truth(v == group)),
                    Vote::Any => set(warp, *p, truth(v != 0)),
                    Vote::Uni => set(warp, *p, truth(v == 0 || v == group)),
                    Vote::Ballot => Lanes(group).for_each(|l| warp.set_lane(*d, W::W32, l, u64::from(v))),
                }
            }
            WarpOp::Match { all, d, p, a, wide } => {
                let w = if *wide { W::W64 } else { W::W32 };
                let values: Vec<(usize, u64)> = Lanes(group).map(|l| (l, warp.lane(code, (*a, w), l))).collect();
                if *all {
                    let same = values.windows(2).all(|v| v[0].1 == v[1].1);
                    for &(l, _) in &values {
                        warp.set_lane(*d, W::W32, l, if same { u64::from(group) } else { 0 });
                    }
                    set(warp, *p, truth(same));
                } else {
                    for &(l, v) in &values {
                        let same = values.iter().filter(|x| x.1 == v).fold(0u32, |g, x| g | 1 << x.0);
                        warp.set_lane(*d, W::W32, l, u64::from(same));
                    }
                }
            }
            WarpOp::Redux { kind, d, a } => {
                let mut lanes = Lanes(group).map(|l| u64::from(warp.lane32(code, *a, l)));
                let first = lanes.next().unwrap_or(0);
                let v = lanes.fold(first, |x, y| combine(*kind, 4, x, y, 0));
                Lanes(group).for_each(|l| warp.set_lane(*d, W::W32, l, v));
            }
            WarpOp::Elect { d, p } => {
                let leader = group.trailing_zeros();
                Lanes(group).for_each(|l| warp.set_lane(*d, W::W32, l, u64::from(leader)));
                set(warp, *p, 1 << leader);
            }
            WarpOp::Matrix(op) => self.matrix(common, warp, op, mask, group, at)?,
        }
        Ok(())
    }

    fn shuffle(&mut self, warp: &mut Warp, s: &ShflOp, group: u32, at: &At) -> Exec<()> {
        let code = self.cx.code;
        let mut values = [0u32; 32];
        (0..32).for_each(|l| values[l] = warp.lane32(code, s.a, l));
        let mut inside = 0u32;
        let mut out = [0u32; 32];
        for l in Lanes(group) {
            let (b, c) = (warp.lane32(code, s.b, l), warp.lane32(code, s.c, l));
            let lane = l as i32;
            let (b, clamp, segment) = ((b & 31) as i32, (c & 31) as i32, (c >> 8 & 31) as i32);
            let max = lane & segment | clamp & !segment;
            let min = lane & segment;
            let (j, ok) = match s.mode {
                Shfl::Up => (lane - b, lane - b >= max),
                Shfl::Down => (lane + b, lane + b <= max),
                Shfl::Bfly => (lane ^ b, (lane ^ b) <= max),
                Shfl::Idx => (min | b & !segment, (min | b & !segment) <= max),
            };
            let j = if ok { j } else { lane } as usize;
            if group >> j & 1 == 0 && self.cx.config.checks.synccheck {
                let message =
                    format!("the value is taken from lane {j}, which does not take part (lanes {group:08x} do)");
                return Err(self.fault(FaultKind::InvalidSync, at, Some(l), message));
            }
            out[l] = values[j];
            inside |= u32::from(ok) << l;
        }
        for l in Lanes(group) {
            warp.set_lane(s.d, W::W32, l, u64::from(out[l]));
        }
        let p = &mut warp.preds[usize::from(s.p)];
        *p = *p & !group | inside & group;
        Ok(())
    }
}
