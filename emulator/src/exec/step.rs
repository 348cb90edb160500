//! The interpreter: runs the parts of one warp, instruction by instruction, on 32-lane arrays.

use super::block::Common;
use super::inst::*;
use super::values::File;
use super::warp::{Part, State, Warp};
use super::{Cpu, Site};
use crate::machine::fault::{FaultKind, OrFault};
use crate::machine::layout::At;

/// Instructions after which a part gives the other parts of its warp a chance.
const SLICE: u32 = 1024;

/// What follows an instruction.
pub(crate) enum Next {
    /// The next one.
    Step,
    /// This one again, or (1) the next one, once the state allows.
    Park(State, u32),
    /// The lanes are in `parts` already.
    Scatter,
}

impl Site<'_> {
    /// Lanes whose guard is false go on; the others come back for the instruction.
    pub(crate) fn scatter(&mut self) -> Next {
        let pc = self.at.pc;
        self.warp.parts.extend([Part::new(pc + 1, self.all & !self.m), Part::new(pc, self.m)]);
        Next::Scatter
    }
}

impl Cpu<'_> {
    /// Runs a warp until it stops, or for `budget` instructions.
    pub(crate) fn run_warp(&mut self, common: &mut Common, warp: &mut Warp, mut budget: u32) -> OrFault<()> {
        let code = self.cx.code;
        let insts = &code.insts[..];
        let (regs, preds) = (warp.regs.as_mut_ptr(), warp.preds.as_mut_ptr());
        let file = File { regs, preds, consts: code.consts.as_ptr() };
        let split = self.cx.config.split_warps;
        let observed = self.observes_issue();
        // Waiters of a barrier that is complete go on before anything else.
        while budget != 0 && common.complete().is_none() {
            let Some((mut part, limit)) = warp.pick(split, self.now()) else {
                return self.check_members(warp);
            };
            let mut pc = part.pc;
            let all = part.mask;
            let rest = if warp.parts.is_empty() { 0 } else { budget.saturating_sub(SLICE) };
            macro_rules! park {
                ($state:expr) => {{
                    part.pc = pc;
                    part.state = $state;
                    warp.park(part);
                }};
            }
            'part: loop {
                if budget == rest || pc >= limit {
                    park!(State::Ready);
                    break 'part;
                }
                // SAFETY: `pc` is a branch target or the successor of an instruction that is not the last, which exits.
                let inst = unsafe { insts.get_unchecked(pc as usize) };
                let mut m = all;
                if inst.guard != NO_PRED {
                    let p = warp.preds[inst.guard as usize];
                    m &= if inst.negated { !p } else { p };
                }
                if inst.flags & TURN != 0 && m != 0 && !self.cx.free && part.state != State::Granted {
                    park!(State::Turn);
                    break 'part;
                }
                budget -= 1;
                self.steps += 1;
                if observed {
                    self.issues(pc, m);
                }
                if m == 0 {
                    pc += 1;
                    continue 'part;
                }
                macro_rules! site {
                    () => {{
                        let at = At { pc, warp: warp.id, ctaid: warp.ctaid };
                        Site { common: &mut *common, warp: &mut *warp, m, all, at }
                    }};
                }
                if inst.flags & (MAYBE_UNSET | TRACKED) != 0 && !warp.set.is_empty() {
                    self.check_set(&mut site!())?;
                }
                // SAFETY: slots and predicates are the decoder's; pointers to a slot are good for 32 elements (64-bit
                // operands have two slots), and the register file has no other user meanwhile.
                unsafe {
                    match &inst.op {
                        Op::Nop => {}
                        Op::Value(run, r) => run(r, file, m),
                        Op::Pred(lut, d, a, b) => {
                            let v = lookup(*lut, warp.preds[*a as usize], warp.preds[*b as usize]);
                            warp.set_pred(*d, v, m);
                        }
                        Op::Bra(target) => {
                            if m == all {
                                pc = *target;
                                continue 'part;
                            }
                            warp.parts.extend([Part::new(pc + 1, all & !m), Part::new(*target, m)]);
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
                            common.exit(warp, m);
                            for p in warp.parts.iter_mut().filter(|p| p.state == State::Members) {
                                p.state = State::Ready;
                            }
                            if m != all {
                                warp.parts.push(Part::new(pc + 1, all & !m));
                            }
                            break 'part;
                        }
                        op => match self.rare(&mut site!(), op)? {
                            Next::Step => {}
                            Next::Park(state, ahead) => {
                                pc += ahead;
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
        Ok(())
    }

    /// Instructions that are not worth a place in the loop.
    #[inline(never)]
    fn rare(&mut self, site: &mut Site<'_>, op: &Op) -> OrFault<Next> {
        match op {
            Op::Bar(op) => self.bar(site, op),
            Op::Warp(effect, mask) => self.warp_wide(site, effect.as_ref(), *mask),
            Op::Effect(run, _) => run(self, site),
            _ => Ok(Next::Step),
        }
    }

    /// Faults where a register is read that nothing has written; notes what is written now.
    #[cold]
    fn check_set(&self, site: &mut Site<'_>) -> OrFault<()> {
        let code = self.cx.code;
        let (inst, uses) = (&code.insts[site.at.pc as usize], &code.uses[site.at.pc as usize]);
        for &r in &uses.reads {
            let guard = inst.guard != NO_PRED && r == PRED_BASE + inst.guard;
            let unset = if guard { site.all } else { site.m } & !site.warp.set[code.index(r)];
            if unset != 0 {
                let name = code.reg_names.iter().find(|n| n.0 == r).map_or("?", |n| n.1.as_str());
                let lane = unset.trailing_zeros() as usize;
                let message = format!("{name} is read here but nothing on this path has written it");
                return Err(self.fault(FaultKind::UninitialisedRegister, &site.at, Some(lane), message));
            }
        }
        uses.writes.iter().for_each(|&w| site.warp.set[code.index(w)] |= site.m);
        Ok(())
    }
}
