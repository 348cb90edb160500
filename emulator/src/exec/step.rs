//! The interpreter: runs the parts of one warp, instruction by instruction, on 32-lane arrays.

use super::block::Common;
use super::inst::*;
use super::values::File;
use super::warp::{Part, State, Warp};
use super::{Cpu, Site};
use crate::machine::fault::OrFault;
use crate::machine::layout::At;

/// Instructions after which a part yields to the other parts of its warp.
const SLICE: u32 = 1024;

/// Control flow after an instruction.
pub(crate) enum Flow {
    /// On to the next instruction.
    Next,
    /// The lanes wait, at this instruction or (1) behind it, until their state changes.
    Park(State, u32),
    /// The lanes have split up into `parts`, or have exited.
    Scatter,
}

impl Site<'_> {
    /// Lanes whose guard is false go on; the others come back for the instruction.
    pub(crate) fn scatter(&mut self) -> Flow {
        self.part_ways(self.at.pc)
    }

    /// Lanes whose guard is true go on at an instruction, the others behind this one.
    fn part_ways(&mut self, target: u32) -> Flow {
        self.warp.parts.extend([Part::new(self.at.pc + 1, self.all & !self.m), Part::new(target, self.m)]);
        Flow::Scatter
    }

    /// Lanes with a true guard exit. Parts in wait for members of the warp become ready, to look for the lanes left.
    fn exit(&mut self) -> Flow {
        self.common.exit(self.warp, self.m);
        self.warp.parts.iter_mut().filter(|p| p.state == State::Members).for_each(|p| p.state = State::Ready);
        if self.m != self.all {
            self.warp.parts.push(Part::new(self.at.pc + 1, self.all & !self.m));
        }
        Flow::Scatter
    }
}

impl Cpu<'_> {
    /// Runs a warp until it stops, or for `budget` instructions.
    pub(crate) fn run_warp(&mut self, common: &mut Common, warp: &mut Warp, mut budget: u32) -> OrFault<()> {
        // Waiters of a barrier that is complete go on before anything else.
        while budget != 0 && common.complete().is_none() {
            let Some((part, limit)) = warp.pick(self.cx.config.split_warps, self.now()) else {
                return self.check_members(warp);
            };
            let rest = if warp.parts.is_empty() { 0 } else { budget.saturating_sub(SLICE) };
            budget = self.run_part(common, warp, part, limit, (budget, rest))?;
        }
        Ok(())
    }

    /// Runs a part of a warp until it waits, splits, exits, reaches instruction `limit`, or has only `rest` of its
    /// budget left. Returns the remaining budget.
    #[inline(always)]
    fn run_part(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        mut part: Part,
        limit: u32,
        (mut budget, rest): (u32, u32),
    ) -> OrFault<u32> {
        let (code, observed) = (self.cx.code, self.observes_issue());
        let file = File { regs: warp.regs.as_mut_ptr(), preds: warp.preds.as_mut_ptr(), consts: code.consts.as_ptr() };
        let (mut pc, all) = (part.pc, part.mask);
        let (end, state) = loop {
            if budget == rest || pc >= limit {
                break (pc, State::Ready);
            }
            // SAFETY: `pc` is a branch target or the successor of an instruction that is not the last, which exits.
            let inst = unsafe { code.insts.get_unchecked(pc as usize) };
            let mut m = all;
            if inst.guard != NO_PRED {
                let p = warp.preds[inst.guard as usize];
                m &= if inst.negated { !p } else { p };
            }
            if inst.flags & TURN != 0 && m != 0 && !self.cx.free && part.state != State::Granted {
                break (pc, State::Turn);
            }
            budget -= 1;
            self.steps += 1;
            macro_rules! site {
                () => {{
                    let at = At { pc, warp: warp.id, ctaid: warp.ctaid };
                    Site { common: &mut *common, warp: &mut *warp, m, all, at }
                }};
            }
            if observed {
                // Who is too far ahead of others gives way.
                budget = if self.issues(&mut common.observers, warp.id, pc, m) { rest } else { budget };
                if warp.defined.any() {
                    self.carry(&mut site!())?;
                }
            }
            if m == 0 {
                pc += 1;
                continue;
            }
            match &inst.op {
                Op::Nop => {}
                // SAFETY: slots and predicates are the decoder's; pointers to a slot are good for 32 elements (64-bit
                // operands have two slots), and the register file has no other user meanwhile.
                Op::Value(run, r) => unsafe { run(r, file, m) },
                Op::Pred(lut, d, a, b) => {
                    let v = lookup(*lut, warp.preds[*a as usize], warp.preds[*b as usize]);
                    warp.set_pred(*d, v, m);
                }
                Op::Bra(target) if m == all => {
                    pc = *target;
                    continue;
                }
                Op::Mem(op) if inst.flags & TURN == 0 || !self.tears(op) => self.access(&mut site!(), op)?,
                op => match self.rare(&mut site!(), op, &mut part.pieces)? {
                    Flow::Next => {
                        if let Some(vain) = self.tried.take() {
                            part.vain = vain;
                            if vain && warp.parts.iter().any(|p| p.state == State::Ready && !p.vain) {
                                break (pc + 1, State::Ready);
                            }
                        }
                    }
                    Flow::Park(state, ahead) => break (pc + ahead, state),
                    Flow::Scatter => return Ok(budget),
                },
            }
            pc += 1;
        };
        warp.park(Part { pc: end, state, ..part });
        Ok(budget)
    }

    /// Executes an instruction outside the loop. `pieces` counts the executed pieces of a torn vector access.
    #[inline(never)]
    fn rare(&mut self, site: &mut Site<'_>, op: &Op, pieces: &mut u8) -> OrFault<Flow> {
        match op {
            Op::Bar(op) => self.bar(site, op),
            Op::Warp(effect, mask) => self.warp_wide(site, effect.as_ref(), *mask),
            Op::Effect(run, _) => run(self, site),
            Op::Bra(target) => Ok(site.part_ways(*target)),
            Op::Exit => {
                self.exits_with_products(site)?;
                Ok(site.exit())
            }
            Op::Mem(op) => {
                self.torn(site, op, *pieces)?;
                *pieces = (*pieces + 1) % op.pieces();
                Ok(if *pieces == 0 { Flow::Next } else { Flow::Park(State::Turn, 0) })
            }
            Op::Nop | Op::Value(..) | Op::Pred(..) => Ok(Flow::Next),
        }
    }
}
