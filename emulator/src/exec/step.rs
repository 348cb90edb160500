//! The interpreter: runs the parts of one warp, instruction by instruction, on 32-lane arrays.
//!
//! One body, compiled twice: for processors with AVX2 and FMA, where the loops become vector instructions, and for any.

use super::block::{Common, set_index};
use super::fault::FaultKind;
use super::inst::*;
use super::lanes::Lanes;
use super::values::File;
use super::warp::{Part, State, Warp};
use super::{At, Cpu, Exec, Site};

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
    pub(crate) fn run_warp(&mut self, common: &mut Common, warp: &mut Warp, budget: &mut u32) -> Exec<()> {
        let code = self.cx.code;
        let insts = &code.insts[..];
        let (regs, preds) = (warp.regs.as_mut_ptr(), warp.preds.as_mut_ptr());
        let file = File { regs, preds, consts: code.consts.as_ptr() };
        let split = self.cx.config.split_warps;
        let counting = self.cx.config.counters;
        // The decoder's predicates are inside the file.
        macro_rules! pred {
            ($p:expr) => {
                *warp.preds.get_unchecked($p as usize)
            };
        }
        macro_rules! set_pred {
            ($p:expr, $m:expr, $v:expr) => {{
                let p = warp.preds.get_unchecked_mut($p as usize);
                *p = *p & !$m | $v & $m;
            }};
        }
        loop {
            let Some((mut part, limit)) = warp.pick(split, self.granted, self.now()) else {
                return self.check_members(common, warp);
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
                    return Ok(());
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
                        Op::Value(run, r) => run(r, file, m),
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
                            self.torn(&mut site!(), op, part.pieces)?;
                            part.pieces = (part.pieces + 1) % op.pieces();
                            if part.pieces != 0 {
                                park!(State::Turn);
                                break 'part;
                            }
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
                                return Ok(());
                            }
                            break 'part;
                        }
                        op => match self.rare(&mut site!(), op)? {
                            Next::Step => {}
                            Next::Park(state) => {
                                park!(state);
                                if state == State::Ready {
                                    // Time passed: let others run.
                                    return Ok(());
                                }
                                if common.complete != 0 {
                                    return Ok(());
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
            Op::Bar(op) => return self.bar(site, op),
            Op::Warp(effect, mask) => return self.warp_wide(site, effect.as_ref(), *mask),
            Op::Effect(run, _) => return run(self, site),
            _ => {}
        }
        Ok(Next::Step)
    }

    #[cold]
    fn check_set(&self, site: &mut Site<'_>) -> Exec<()> {
        let code = self.cx.code;
        let pc = site.at.pc as usize;
        let inst = &code.insts[pc];
        for &r in &code.uses[pc].reads {
            let guard = inst.guard != NO_PRED && r == PRED_BASE + inst.guard;
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
