//! Definedness of values, which travels with them through registers and memory as in
//! [memcheck](https://www.usenix.org/legacy/publications/library/proceedings/usenix05/tech/general/seward.html): a value
//! that nothing has written, or that was computed from one, is reported only where something depends on it.
//!
//! The unit is a register of a lane, and a byte of memory. The carry of extended-precision arithmetic counts as defined.

use super::inst::*;
use super::warp::Warp;
use super::{Cpu, Site};
use crate::machine::fault::{Fault, FaultKind, OrFault};
use crate::machine::lanes::lanes_where;

/// The origin of an undefined value: the load that read it, or the register that nothing has written.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Whence {
    #[default]
    Unknown,
    /// Index of a register.
    Register(u32),
    /// A load, and the first address that it read undefined.
    Load(u32, u64),
}

/// Definedness of a warp's registers and local memory. Empty where it is not checked.
#[derive(Debug, Default)]
pub(crate) struct Definedness {
    /// Lanes whose value is undefined, of each slot and then of each predicate.
    undefined: Vec<u32>,
    whence: Vec<Whence>,
    /// Number of registers that are undefined in some lane.
    count: usize,
    /// Written bytes of local memory, a bit each.
    local: Box<[u64]>,
}

impl Definedness {
    /// Of a warp at the kernel's start: what may be read before it is written is undefined.
    pub(crate) fn new(code: &Program, local: usize, live: u32) -> Definedness {
        let registers = code.register_count();
        let mut new = Definedness {
            undefined: vec![0; registers],
            whence: vec![Whence::Unknown; registers],
            count: 0,
            local: vec![0; local.div_ceil(64)].into_boxed_slice(),
        };
        for &r in &code.unset {
            new.set(code.index(r), live, live, Whence::Register(r));
        }
        new
    }

    /// Whether any register is undefined in any lane.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.count != 0
    }

    /// Lanes in which a register is undefined.
    pub(crate) fn lanes(&self, register: usize) -> u32 {
        self.undefined.get(register).copied().unwrap_or(0)
    }

    /// Lanes in which a slot, or a constant, is undefined.
    pub(crate) fn slot(&self, r: R) -> u32 {
        if r & CONST == 0 { self.lanes(r as usize) } else { 0 }
    }

    pub(crate) fn whence(&self, register: usize) -> Whence {
        self.whence.get(register).copied().unwrap_or_default()
    }

    /// Writes the definedness of a register for some lanes.
    pub(crate) fn set(&mut self, register: usize, lanes: u32, undefined: u32, whence: Whence) {
        let Some(now) = self.undefined.get_mut(register) else { return };
        let before = *now;
        *now = before & !lanes | undefined & lanes;
        self.count = self.count + usize::from(*now != 0) - usize::from(before != 0);
        if undefined & lanes != 0 {
            self.whence[register] = whence;
        }
    }

    /// Marks bytes of local memory as defined or not, by their index in all lanes' memory.
    pub(crate) fn mark_local(&mut self, from: usize, bytes: usize, defined: bool) {
        for at in from..from + bytes {
            let Some(word) = self.local.get_mut(at / 64) else { return };
            *word = if defined { *word | 1 << (at % 64) } else { *word & !(1 << (at % 64)) };
        }
    }

    /// Whether all these bytes of local memory are defined.
    pub(crate) fn is_defined_local(&self, from: usize, bytes: usize) -> bool {
        (from..from + bytes).all(|at| self.local.get(at / 64).is_none_or(|word| word >> (at % 64) & 1 == 1))
    }
}

/// Lanes whose result of a function of two predicates depends on an undefined one, given values and undefined lanes.
fn depends(lut: Lut, [x, y]: [u32; 2], [ux, uy]: [u32; 2]) -> u32 {
    let f = |x, y| lookup(lut, x, y);
    let by_x = ux & (f(0, y) ^ f(u32::MAX, y));
    let by_y = uy & (f(x, 0) ^ f(x, u32::MAX));
    let all = f(0, 0);
    let by_both = ux & uy & ((f(0, u32::MAX) ^ all) | (f(u32::MAX, 0) ^ all) | (f(u32::MAX, u32::MAX) ^ all));
    // Of one that is undefined, the other's value is as it stands.
    by_x & !uy | by_y & !ux | by_both
}

impl Cpu<'_> {
    /// Carries definedness from an instruction's sources to its results, or faults where it depends on an undefined one.
    #[cold]
    #[inline(never)]
    pub(crate) fn carry(&self, site: &mut Site<'_>) -> OrFault<()> {
        let (code, pc, m) = (self.cx.code, site.at.pc as usize, site.m);
        let (inst, uses) = (&code.insts[pc], &code.registers[pc]);
        let d = &site.warp.defined;
        let predicate = |p: P| code.index(PRED_BASE + p);
        let of_guard = inst.guard != NO_PRED;
        let guard = if of_guard { d.lanes(predicate(inst.guard)) & site.all } else { 0 };
        let union = || uses.reads.iter().fold(0, |all, &r| all | d.lanes(code.index(r)));
        let undefined = match &inst.op {
            Op::Nop => return Ok(()),
            Op::Value(_, r) if inst.flags & SELECTS != 0 => {
                let (chosen, p) = (site.warp.preds[r[3] as usize], d.lanes(predicate(r[3])));
                guard | p | d.slot(r[1]) & chosen | d.slot(r[2]) & !chosen
            }
            Op::Pred(lut, _, a, b) if [a, b].iter().all(|p| uses.reads.contains(&(PRED_BASE + **p))) => {
                let values = [a, b].map(|p| site.warp.preds[*p as usize]);
                guard | depends(*lut, values, [a, b].map(|p| d.lanes(predicate(*p))))
            }
            Op::Value(..) | Op::Pred(..) => union(),
            Op::Effect(..) if inst.flags & CARRIES != 0 => union(),
            // Their values are the instruction's own business.
            Op::Mem(op) => {
                if op.address.base != NONE {
                    self.depend(site, &[op.address.base], m, "the address")?;
                }
                if !op.access.write && guard != 0 {
                    for r in &uses.writes {
                        site.warp.defined.set(code.index(*r), guard, guard, Whence::Unknown);
                    }
                    return Ok(());
                }
                return self.depend(site, if of_guard { &uses.reads[..1] } else { &[] }, site.all, "the guard");
            }
            Op::Warp(_, mask) => {
                let mask = if mask & CONST == 0 { std::slice::from_ref(mask) } else { &[] };
                self.depend(site, mask, m, "the member mask")?;
                return self.depend(site, if of_guard { &uses.reads[..1] } else { &[] }, site.all, "the guard");
            }
            Op::Bra(_) => return self.depend(site, &uses.reads, site.all, "this branch"),
            Op::Exit => return self.depend(site, &uses.reads, site.all, "this exit"),
            Op::Bar(_) | Op::Effect(..) => {
                self.depend(site, &uses.reads, if guard != 0 { site.all } else { m }, "this instruction")?;
                for r in &uses.writes {
                    site.warp.defined.set(code.index(*r), m, 0, Whence::Unknown);
                }
                return Ok(());
            }
        };
        let sources = uses.reads.iter().map(|&r| code.index(r));
        let whence = sources.filter(|&r| d.lanes(r) != 0).map(|r| d.whence(r)).next_back().unwrap_or_default();
        for r in &uses.writes {
            site.warp.defined.set(code.index(*r), m | guard, undefined, whence);
        }
        Ok(())
    }

    /// Faults where one of some registers is undefined in one of some lanes.
    fn depend(&self, site: &Site<'_>, registers: &[u32], lanes: u32, what: &str) -> OrFault<()> {
        let code = self.cx.code;
        let d = &site.warp.defined;
        let found = registers.iter().find(|&&r| d.lanes(code.index(r)) & lanes != 0);
        found.map_or(Ok(()), |&r| self.report_undefined(site, r, d.lanes(code.index(r)) & lanes, what))
    }

    /// The report that something depends on an undefined register.
    pub(crate) fn report_undefined(&self, site: &Site<'_>, r: u32, lanes: u32, what: &str) -> OrFault<()> {
        let lane = lanes.trailing_zeros() as usize;
        let name = |r: u32| self.cx.code.reg_names.iter().find(|n| n.0 == r).map_or("a register", |n| n.1.as_str());
        let line = |pc: u32| self.cx.code.origins[pc as usize].line;
        let mut earlier_line = 0;
        let (kind, address, message) = match site.warp.defined.whence(self.cx.code.index(r)) {
            Whence::Load(pc, address) => {
                let load = self.cx.describe(pc);
                earlier_line = line(pc);
                let message = format!("{what} depends on what {load} read at {address:#x}, which nothing has written");
                (FaultKind::UninitialisedMemory, Some(address), message)
            }
            Whence::Register(r) => {
                let message = format!("{what} depends on {}, which nothing on this path has written", name(r));
                (FaultKind::UninitialisedRegister, None, message)
            }
            Whence::Unknown => {
                let message = format!("{what} depends on a value that is undefined");
                (FaultKind::UninitialisedRegister, None, message)
            }
        };
        let fault = match address {
            Some(address) => self.fault_at(kind, &site.at, lane, address, message),
            None => self.fault(kind, &site.at, Some(lane), message),
        };
        self.find(Box::new(Fault { earlier_line, ..*fault }))
    }

    /// Of a store the lanes whose elements are undefined; of a load none yet.
    pub(crate) fn elements(&self, warp: &Warp, op: &MemOp) -> [u32; 4] {
        let mut undefined = [0; 4];
        if op.access.write && warp.defined.any() {
            for (element, &(r, w)) in undefined.iter_mut().zip(&op.regs) {
                let index = if w == W::Pred { self.cx.code.index(PRED_BASE + r) } else { r as usize };
                *element = if w != W::Pred && r & CONST != 0 { 0 } else { warp.defined.lanes(index) };
            }
        }
        undefined
    }

    /// A load has written registers, of which some lanes are undefined.
    pub(crate) fn loaded(&self, warp: &mut Warp, op: &MemOp, m: u32, pc: u32, address: u64) {
        let guard = match self.cx.code.insts[pc as usize].guard {
            NO_PRED => 0,
            p => warp.defined.lanes(self.cx.code.index(PRED_BASE + p)),
        };
        for (&(r, _), undefined) in op.regs.iter().zip(self.undefined) {
            warp.defined.set(r as usize, m, undefined | guard, Whence::Load(pc, address));
        }
    }

    /// Lanes of a group get the same: undefined where any lane's source is.
    pub(crate) fn share(&self, site: &mut Site<'_>, group: u32) {
        let (code, uses) = (self.cx.code, &self.cx.code.registers[site.at.pc as usize]);
        let d = &site.warp.defined;
        let of = |&r: &u32| d.lanes(code.index(r)) & group != 0;
        let source = uses.reads.iter().find(|r| of(r)).map(|&r| d.whence(code.index(r)));
        let undefined = if source.is_some() { group } else { 0 };
        for r in &uses.writes {
            site.warp.defined.set(code.index(*r), group, undefined, source.unwrap_or_default());
        }
    }

    /// A register and a predicate that `shfl` has written, from a value in other lanes, by a lane and a clamp.
    pub(crate) fn taken(&self, site: &mut Site<'_>, (d, p): (R, P), [a, b, c]: [R; 3], group: u32, from: &[usize; 32]) {
        let [source, b, c] = [a, b, c].map(|r| site.warp.defined.slot(r));
        let undefined = b | c | lanes_where(group, |l| source >> from[l] & 1 == 1);
        let whence = if a & CONST == 0 { site.warp.defined.whence(a as usize) } else { Whence::Unknown };
        site.warp.defined.set(d as usize, group, undefined, whence);
        site.warp.defined.set(self.cx.code.index(PRED_BASE + p), group, b | c, whence);
    }
}
