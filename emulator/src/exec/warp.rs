//! Warps: registers, and the parts that a warp has split into.
//!
//! A part is a set of lanes at one instruction. The part furthest behind runs, and joins others where it meets them, so
//! lanes reconverge where control flow does; nothing relies on that. Now and then the part that has waited longest
//! runs, so a spinning part cannot starve the one it waits for; and a part whose atomic changed nothing goes last.

use super::LaunchCx;
use super::definedness::Definedness;
use super::inst::{Address, CONST, NONE, P, Program, R, W};
use super::warpgroup::Product;
use crate::machine::lanes::Slot;
use crate::machine::random::Random;
use crate::memory::POISON;

/// One in so many picks is for the part that has waited longest.
const FAIR: u32 = 16;

/// State of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Can run.
    Ready,
    /// Stands at an instruction that takes turns with other blocks.
    Turn,
    /// Stands at such an instruction and has its turn.
    Granted,
    /// Waits at an instruction for other lanes of the warp.
    Members,
    /// Waits at a barrier of the block.
    Barrier(u8),
    /// Sleeps until a time, behind its `nanosleep` or failed wait.
    Sleep(u64),
    /// Waits at the cluster's barrier until a time, to look again.
    Cluster(u64),
}

/// A set of lanes at one instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) pc: u32,
    pub(crate) mask: u32,
    pub(crate) state: State,
    /// Executed pieces of a torn vector access.
    pub(crate) pieces: u8,
    /// Whether its last atomic left memory as it was: it may be trying for a lock that another part holds.
    pub(crate) vain: bool,
}

impl Part {
    pub(crate) fn new(pc: u32, mask: u32) -> Part {
        Part { pc, mask, state: State::Ready, pieces: 0, vain: false }
    }
}

/// A warp.
pub(crate) struct Warp {
    /// Number among the warps of all blocks of the cluster.
    pub(crate) id: u32,
    /// Its block in the grid.
    pub(crate) ctaid: [u32; 3],
    pub(crate) regs: Box<[Slot]>,
    pub(crate) preds: Box<[u32]>,
    pub(crate) defined: Definedness,
    pub(crate) local: Box<[u64]>,
    /// Parts, in the order in which they last ran.
    pub(crate) parts: Vec<Part>,
    /// Counts picks, for fairness between parts.
    picks: u32,
    /// Picks parts when warps are to be split.
    random: Random,
    /// Copy groups committed by each lane: of `cp.async`, and bulk.
    pub(crate) groups: [[u32; 32]; 2],
    /// Products under way, and their groups committed so far.
    pub(crate) products: Vec<Product>,
    pub(crate) product_groups: u32,
    /// Per lane, the phase of the cluster's barrier that ends its wait, counted from 1; 0 where it has not arrived.
    pub(crate) cluster: [u32; 32],
}

impl Warp {
    /// A warp with the lanes in `live` at the kernel's start.
    pub(crate) fn new(cx: &LaunchCx<'_>, id: u32, ctaid: [u32; 3], live: u32, stream: u64) -> Warp {
        let (slots, preds) = (cx.code.slots as usize, cx.code.preds as usize);
        let local = (cx.code.local as usize).next_multiple_of(16) * 32;
        let checked = cx.config.checks.initcheck;
        Warp {
            id,
            ctaid,
            regs: vec![Slot([0; 32]); slots + 8].into_boxed_slice(),
            preds: vec![0; preds].into_boxed_slice(),
            defined: if checked { Definedness::new(cx.code, local, live) } else { Definedness::default() },
            local: vec![POISON; local / 8].into_boxed_slice(),
            parts: vec![Part::new(0, live)],
            picks: 0,
            random: Random::new(cx.config.seed, stream),
            groups: [[0; 32]; 2],
            products: Vec::new(),
            product_groups: 0,
            cluster: [0; 32],
        }
    }

    /// Takes out the part to run next. The second value is the instruction at which it meets another part.
    pub(crate) fn pick(&mut self, split: bool, time: u64) -> Option<(Part, u32)> {
        for p in &mut self.parts {
            if matches!(p.state, State::Sleep(until) | State::Cluster(until) if time >= until) {
                p.state = State::Ready;
            }
        }
        let at = |state| self.parts.iter().position(|p| p.state == state);
        if let Some(i) = at(State::Granted) {
            return Some((self.parts.remove(i), u32::MAX));
        }
        self.picks = self.picks.wrapping_add(1);
        let fair = self.picks.is_multiple_of(FAIR);
        // Who tries in vain lets the others of its warp go on.
        let held_up = |p: &Part| p.vain && self.parts.iter().any(|q| q.state == State::Ready && !q.vain);
        if at(State::Turn).is_some_and(|i| !fair && !held_up(&self.parts[i])) {
            return None;
        }
        let mut ready = self.parts.iter().enumerate().filter(|(_, p)| p.state == State::Ready);
        let (i, _) = if split {
            let among = ready.clone().count().max(1);
            ready.nth(self.random.below(among))
        } else if fair {
            ready.next()
        } else {
            ready.min_by_key(|(_, p)| (p.vain, p.pc))
        }?;
        let mut p = self.parts.remove(i);
        let mut limit = u32::MAX;
        if !split {
            // Join those that stand at the same instruction.
            for q in self.parts.extract_if(.., |q| q.state == State::Ready && q.pc == p.pc) {
                p.mask |= q.mask;
                p.vain &= q.vain;
            }
            let ahead = self.parts.iter().filter(|q| q.state == State::Ready && q.pc > p.pc);
            limit = ahead.map(|q| q.pc).min().unwrap_or(limit);
        }
        Some((p, limit))
    }

    /// Puts a part back. One in wait for members joins the part that waits at the same instruction, and becomes ready.
    #[inline(always)]
    pub(crate) fn park(&mut self, mut p: Part) {
        if p.state == State::Members
            && let Some(i) = self.parts.iter().position(|q| q.state == State::Members && q.pc == p.pc)
        {
            p.mask |= self.parts.swap_remove(i).mask;
            p.state = State::Ready;
        }
        self.parts.push(p);
    }

    /// A register of 32 bits of all lanes.
    pub(crate) fn words<'a>(&'a self, code: &'a Program, r: R) -> &'a [u32; 32] {
        let slots = if r & CONST != 0 { &code.consts[..] } else { &self.regs[..] };
        &slots[(r & !CONST) as usize].0
    }

    /// Writes one.
    pub(crate) fn set_words(&mut self, r: R, words: &[u32; 32]) {
        self.regs[r as usize].0 = *words;
    }

    pub(crate) fn lane32(&self, code: &Program, r: R, lane: usize) -> u32 {
        let slots = if r & CONST != 0 { &code.consts[..] } else { &self.regs[..] };
        slots[(r & !CONST) as usize].0[lane]
    }

    /// Addresses of all lanes.
    #[inline(always)]
    pub(crate) fn addresses(&self, a: &Address) -> [u64; 32] {
        let mut out = [a.offset as u64; 32];
        if a.base != NONE && a.wide {
            let p = self.regs[a.base as usize..a.base as usize + 2].as_ptr().cast::<[u64; 32]>();
            // SAFETY: two slots are 32 values of 64 bits.
            let base = unsafe { &*p };
            for i in 0..32 {
                out[i] = base[i].wrapping_add(a.offset as u64);
            }
        } else if a.base != NONE {
            let base = &self.regs[a.base as usize].0;
            for i in 0..32 {
                out[i] = u64::from(base[i].wrapping_add(a.offset as u32));
            }
        }
        out
    }

    pub(crate) fn lane(&self, code: &Program, (r, w): (R, W), lane: usize) -> u64 {
        match w {
            W::W32 => u64::from(self.lane32(code, r, lane)),
            W::W64 => {
                let half = |i: usize| u64::from(self.lane32(code, r + lane as u32 / 16, (2 * lane + i) % 32));
                half(0) | half(1) << 32
            }
            W::Pred => u64::from(self.preds[r as usize] >> lane & 1),
        }
    }

    pub(crate) fn set_lane(&mut self, r: R, w: W, lane: usize, v: u64) {
        match w {
            W::W32 => self.regs[r as usize].0[lane] = v as u32,
            W::W64 => {
                let slot = &mut self.regs[r as usize + lane / 16].0;
                slot[2 * lane % 32] = v as u32;
                slot[2 * lane % 32 + 1] = (v >> 32) as u32;
            }
            W::Pred => self.set_pred(r, (v as u32 & 1) << lane, 1 << lane),
        }
    }

    /// Writes a predicate for the lanes in `m`.
    pub(crate) fn set_pred(&mut self, p: P, v: u32, m: u32) {
        let p = &mut self.preds[p as usize];
        *p = *p & !m | v & m;
    }
}
