//! The interpreter: runs the parts of one warp, instruction by instruction, on 32-lane arrays.
//!
//! One body, compiled twice: for processors with AVX2 and FMA, where the loops become vector instructions, and for any.

use super::block::{Common, Stop, set_index};
use super::fault::FaultKind;
use super::inst::*;
use super::lanes::{Lanes, map, select};
use super::special::Reader;
use super::vector::{self, File};
use super::warp::{Part, State, Warp};
use super::{At, Cpu, Exec, Site, scalar};

/// What follows an instruction.
pub(crate) enum Next {
    /// The next one.
    Step,
    /// This one again, once the state allows.
    Park(State),
    /// The next one, once the state allows.
    StepAndPark(State),
    /// The lanes are in `parts` already.
    Scatter,
}

impl Cpu<'_> {
    /// Runs a warp until it stops; `budget` is what is left of its instructions.
    pub(crate) fn run_warp(&mut self, common: &mut Common, warp: &mut Warp, budget: &mut u32) -> Exec<Stop> {
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("fma")
            && std::is_x86_feature_detected!("f16c")
        {
            // SAFETY: the processor has these features.
            return unsafe { self.run_avx2(common, warp, budget) };
        }
        self.interpret::<false>(common, warp, budget)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt")]
    fn run_avx2(&mut self, common: &mut Common, warp: &mut Warp, budget: &mut u32) -> Exec<Stop> {
        self.interpret::<true>(common, warp, budget)
    }

    #[inline(always)]
    fn interpret<const FMA: bool>(&mut self, common: &mut Common, warp: &mut Warp, budget: &mut u32) -> Exec<Stop> {
        let code = self.cx.code;
        let insts = &code.insts[..];
        let file = File { regs: warp.regs.as_mut_ptr(), consts: code.consts.as_ptr() };
        let split = self.cx.config.split_warps;
        let counting = self.cx.config.counters;
        // The decoder's predicates are inside the file.
        macro_rules! pred {
            ($p:expr) => {
                *warp.preds.get_unchecked(usize::from($p))
            };
        }
        macro_rules! set_pred {
            ($p:expr, $m:expr, $v:expr) => {{
                let p = warp.preds.get_unchecked_mut(usize::from($p));
                *p = *p & !$m | $v & $m;
            }};
        }
        loop {
            let Some((mut part, limit)) = warp.pick(split, self.granted, self.now()) else {
                return Ok(if warp.parts.is_empty() {
                    Stop::Exited
                } else if warp.parts.iter().any(|p| p.state == State::Turn) {
                    Stop::Turn
                } else {
                    self.check_members(common, warp)?;
                    Stop::Blocked
                });
            };
            let mut pc = part.pc;
            let all = part.mask;
            // A warp that has split gives its other parts a chance.
            let mut slice = if warp.parts.is_empty() { u32::MAX } else { 1024 };
            macro_rules! park {
                ($state:expr) => {{
                    part.pc = pc;
                    part.state = $state;
                    warp.park(part);
                }};
            }
            'part: loop {
                if *budget == 0 {
                    park!(State::Ready);
                    return Ok(Stop::Budget);
                }
                if pc >= limit || slice == 0 {
                    park!(State::Ready);
                    break 'part;
                }
                *budget -= 1;
                slice -= 1;
                self.steps += 1;
                // SAFETY: `pc` is a branch target or the successor of an instruction that is not the last, which exits.
                let inst = unsafe { insts.get_unchecked(pc as usize) };
                let mut m = all;
                if inst.guard != NO_PRED {
                    // SAFETY: the decoder's predicates are inside the file.
                    let p = unsafe { pred!(inst.guard) };
                    m &= if inst.negated { !p } else { p };
                    if m == 0 {
                        if counting {
                            self.counters.ran(pc, 0);
                        }
                        pc += 1;
                        continue 'part;
                    }
                }
                macro_rules! site {
                    () => {{
                        let at = At { pc, warp: warp.id, ctaid: common.ctaid };
                        Site { common: &mut *common, warp: &mut *warp, m, all, at }
                    }};
                }
                if inst.flags != 0 {
                    if inst.flags & TURN != 0 && !self.cx.free {
                        if !self.granted {
                            self.steps -= 1;
                            *budget += 1;
                            park!(State::Turn);
                            break 'part;
                        }
                        self.granted = false;
                        *budget = 0;
                    }
                    if !warp.set.is_empty() {
                        if inst.flags & MAYBE_UNSET != 0 {
                            self.check_set(&mut site!())?;
                        }
                        if inst.flags & TRACKED != 0 {
                            for &w in &code.uses[pc as usize].writes {
                                warp.set[set_index(code.slots, w)] |= m;
                            }
                        }
                    }
                }
                if counting {
                    self.counters.ran(pc, m);
                }
                // SAFETY: slots and predicates are the decoder's; pointers to a slot are good for 32 elements (64-bit
                // operands have two slots), and the register file has no other user meanwhile.
                unsafe {
                    match &inst.op {
                        Op::Nop => {}
                        Op::Vector(op, r) => op.run::<FMA>(r, file, m),
                        Op::Lop3(lut, r) => {
                            let bit = |i: u32| 0u32.wrapping_sub(u32::from(lut >> i & 1));
                            let t: [u32; 8] = std::array::from_fn(|i| bit(i as u32));
                            let sources = (file.src(r[1]), file.src(r[2]), file.src(r[3]));
                            map(file.dst(r[0]), sources, m, |x: u32, y: u32, z: u32| {
                                let low = |i: usize| t[i] & !z | t[i + 1] & z;
                                let (n, p) = (low(0) & !y | low(2) & y, low(4) & !y | low(6) & y);
                                n & !x | p & x
                            });
                        }
                        Op::Setp(cmp, kind, a, b, truth) => {
                            let v = vector::compare(*cmp, *kind, *a, *b, file);
                            warp.set_truth(*truth, v, m);
                        }
                        Op::Selp(false, [d, a, b], p) => {
                            select::<u32>(file.dst(*d), file.src(*a), file.src(*b), pred!(*p), m);
                        }
                        Op::Selp(true, [d, a, b], p) => {
                            select::<u64>(file.dst(*d), file.src(*a), file.src(*b), pred!(*p), m);
                        }
                        Op::Pred(lut, d, a, b) => {
                            let v = lookup(*lut, pred!(*a), pred!(*b));
                            set_pred!(*d, m, v);
                        }
                        Op::Bra(target) => {
                            if m == all {
                                pc = *target;
                                continue 'part;
                            }
                            part.mask = all & !m;
                            pc += 1;
                            warp.parts.push(Part { last: part.last, ..Part::new(*target, m) });
                            park!(State::Ready);
                            break 'part;
                        }
                        Op::Mem(op) if inst.flags & TURN != 0 && self.tears(op) => {
                            let piece = op.piece(part.pieces, warp.random);
                            self.torn(&mut site!(), &piece)?;
                            part.pieces += 1;
                            if part.pieces < op.pieces() {
                                park!(State::Turn);
                                break 'part;
                            }
                            part.pieces = 0;
                        }
                        Op::Mem(op) => self.access(&mut site!(), op)?,
                        Op::Exit => {
                            warp.live &= !m;
                            part.mask = all & !m;
                            self.lanes_exited(common, warp);
                            if part.mask != 0 {
                                pc += 1;
                                park!(State::Ready);
                            }
                            if common.complete != 0 {
                                return Ok(Stop::Blocked);
                            }
                            break 'part;
                        }
                        op => match self.rare(&mut site!(), op)? {
                            Next::Step => {}
                            Next::Park(state) => {
                                park!(state);
                                if state == State::Ready {
                                    // Time passed: let others run.
                                    return Ok(Stop::Budget);
                                }
                                if common.complete != 0 {
                                    return Ok(Stop::Blocked);
                                }
                                break 'part;
                            }
                            Next::StepAndPark(state) => {
                                pc += 1;
                                park!(state);
                                break 'part;
                            }
                            Next::Scatter => break 'part,
                        },
                    }
                }
                pc += 1;
            }
        }
    }

    /// Instructions that are not worth a place in the loop.
    #[inline(never)]
    fn rare(&mut self, site: &mut Site<'_>, op: &Op) -> Exec<Next> {
        let code = self.cx.code;
        let m = site.m;
        match op {
            Op::Lane(op) => {
                let seed = self.cx.config.perturb.then_some(self.cx.config.seed);
                let mut truth = 0;
                for l in Lanes(m) {
                    let mut v = (op.f)(&op.ctl, op.src.map(|s| site.warp.lane(code, s, l)));
                    if op.approximate {
                        v = scalar::finish_approximate(&op.ctl, v, seed);
                    }
                    match op.d {
                        Dst::Reg(r, w) => site.warp.set_lane(r, w, l, v),
                        Dst::Truth(_) => truth |= (v as u32 & 1) << l,
                    }
                }
                if let Dst::Truth(t) = op.d {
                    site.warp.set_truth(t, truth, m);
                }
            }
            Op::Special(special, d, w) => {
                for lane in Lanes(m) {
                    let now = self.now();
                    let v =
                        special(&Reader { cx: self.cx, common: site.common, warp: site.at.warp, lane, active: m, now });
                    site.warp.set_lane(*d, *w, lane, v);
                }
            }
            Op::BrxIdx(index, list) => {
                let mut parts: Vec<Part> = Vec::new();
                let mut add = |pc, lanes: u32| match parts.iter_mut().find(|p| p.pc == pc) {
                    Some(p) => p.mask |= lanes,
                    None => parts.push(Part::new(pc, lanes)),
                };
                if site.all != m {
                    add(site.at.pc + 1, site.all & !m);
                }
                for l in Lanes(m) {
                    let i = site.warp.lane32(code, *index, l) as usize;
                    let Some(&target) = list.get(i) else {
                        let message = format!("branch index {i}: the table has {} targets", list.len());
                        return Err(self.fault(FaultKind::IllegalInstruction, &site.at, Some(l), message));
                    };
                    add(target, 1 << l);
                }
                site.warp.parts.append(&mut parts);
                return Ok(Next::Scatter);
            }
            Op::Trap => {
                let lane = Some(m.trailing_zeros() as usize);
                return Err(self.fault(FaultKind::IllegalInstruction, &site.at, lane, "the kernel executed a trap"));
            }
            Op::Atom(op) => self.atomic(site, op)?,
            Op::Fence(scope) => {
                site.common.checks.warp(site.warp.id, |w| w.fence(m, *scope));
            }
            Op::FenceProxy(Proxy::Async) => {
                site.common.checks.warp(site.warp.id, |w| w.proxy_fence(m));
            }
            Op::FenceProxy(Proxy::Alias) => {}
            Op::Bar(op) => return self.bar(site, op),
            Op::Warp(op, mask) => return self.warp_wide(site, op, *mask),
            Op::Async(op) => self.asynchronous(site, op)?,
            Op::Mbarrier(op) => return self.mbarrier(site, op),
            Op::GridControl(true) => {
                site.common.checks.warp(site.warp.id, |w| w.waited(m));
            }
            Op::GridControl(false) => self.cx.op.trigger(),
            Op::NanoSleep(r) => {
                let longest = Lanes(m).map(|l| site.warp.lane32(code, *r, l)).max().unwrap_or(0);
                if m == site.all {
                    return Ok(Next::StepAndPark(State::Sleep(self.now().wrapping_add(u64::from(longest.max(1))))));
                }
            }
            _ => {}
        }
        Ok(Next::Step)
    }

    /// Whether the pieces of a vector access arrive one by one: only 64 bits are sure to arrive together.
    fn tears(&self, op: &MemOp) -> bool {
        !self.cx.free && self.cx.config.schedule != crate::launch::Schedule::RoundRobin && op.pieces() > 1
    }

    /// A piece of a vector access, or one whose time does not matter.
    #[cold]
    fn torn(&mut self, site: &mut Site<'_>, op: &MemOp) -> Exec<()> {
        self.access(site, op)
    }

    #[cold]
    fn check_set(&self, site: &mut Site<'_>) -> Exec<()> {
        let code = self.cx.code;
        let pc = site.at.pc as usize;
        let inst = &code.insts[pc];
        for &r in &code.uses[pc].reads {
            let guard = inst.guard != NO_PRED && r == PRED_BASE + u32::from(inst.guard);
            let unset = if guard { site.all } else { site.m } & !site.warp.set[set_index(code.slots, r)];
            if unset != 0 {
                let name = code.reg_names.iter().find(|n| n.0 == r).map_or("?", |n| n.1.as_str());
                let lane = unset.trailing_zeros() as usize;
                let message = format!("{name} is read here but nothing on this path has written it");
                return Err(self.fault(FaultKind::UninitialisedRegister, &site.at, Some(lane), message));
            }
        }
        Ok(())
    }
}
