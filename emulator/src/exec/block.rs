//! A block: its shared memory, barriers and warps, and how it uses one turn.

use super::barrier::Barrier;
use super::inst::{Address, MemSpace, Op, PRED_BASE};
use super::lanes::Slot;
use super::warp::{Part, State, Warp};
use super::{At, Cpu, Exec, LaunchCx};
use crate::launch::Schedule;

/// Instructions a warp runs before the next one has its chance.
const QUANTUM: u32 = 4096;
/// Instructions all warps of a block run in one turn.
pub(crate) const TURN: u64 = 200_000;

/// The parts of a block that all its warps share.
pub(crate) struct Common {
    pub(crate) ctaid: [u32; 3],
    pub(crate) sm: u32,
    pub(crate) shared: Box<[u64]>,
    pub(crate) shared_bytes: u32,
    pub(crate) barriers: [Barrier; 16],
    /// Barriers that are complete and whose waiters are to be released.
    pub(crate) complete: u16,
    /// Lanes of each warp that have not exited.
    pub(crate) live: Vec<u32>,
    /// mbarrier objects by their offset in shared memory.
    pub(crate) mbarriers: std::collections::HashMap<u64, super::mbarrier::Mbarrier>,
    /// Bulk copies into shared memory in flight.
    pub(crate) bulk: Vec<super::copy::BulkIn>,
    /// Picks the copy that lands next.
    pub(crate) random: u64,
    pub(crate) checks: crate::checks::BlockChecks,
}

/// A resident block.
pub(crate) struct Block {
    pub(crate) common: Common,
    pub(crate) warps: Vec<Warp>,
    /// Warp that goes first in the next round.
    first: usize,
    random: u64,
}

/// How a warp's run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The instructions it was given are used up.
    Budget,
    /// It wants the turn that blocks take.
    Turn,
    /// It waits for others, or sleeps.
    Blocked,
    /// All lanes have exited.
    Exited,
}

/// How a block's turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockStop {
    Exited,
    /// Some warp wants its turn or has more to do.
    Again,
    /// No warp can run until time passes (to this time) or, without one, ever.
    Blocked(Option<u64>),
}

fn next_random(s: &mut u64) -> u64 {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    *s
}

impl Block {
    /// A block ready to start.
    pub(crate) fn new(cx: &LaunchCx<'_>, linear: u64) -> Block {
        let [gx, gy, _] = cx.launch.grid.map(u64::from);
        let ctaid = [(linear % gx) as u32, (linear / gx % gy) as u32, (linear / gx / gy) as u32];
        let seed = (cx.config.seed ^ linear.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1;
        let tracked = if cx.config.checks.initcheck { (cx.code.slots + cx.code.preds) as usize } else { 0 };
        let local = (cx.code.local as usize).next_multiple_of(16) * 32 / 8;
        let mut live = Vec::new();
        let warps = (0..cx.warps)
            .map(|id| {
                let lanes = (cx.threads - id * 32).min(32);
                let mask = if lanes == 32 { u32::MAX } else { (1 << lanes) - 1 };
                live.push(mask);
                Warp {
                    id,
                    regs: vec![Slot([0; 32]); cx.code.slots as usize + 8].into_boxed_slice(),
                    preds: vec![0; cx.code.preds as usize].into_boxed_slice(),
                    set: vec![0; tracked],
                    local: vec![0xa5a5_a5a5_a5a5_a5a5; local].into_boxed_slice(),
                    parts: vec![Part::new(0, mask)],
                    live: mask,
                    clock: 0,
                    waiting: 0,
                    random: seed ^ u64::from(id) << 32,
                    groups: [[0; 32]; 2],
                    copies: Vec::new(),
                }
            })
            .collect();
        let common = Common {
            ctaid,
            sm: (linear % u64::from(cx.config.multiprocessors.max(1))) as u32,
            shared: vec![0xa5a5_a5a5_a5a5_a5a5; (cx.shared as usize).div_ceil(16) * 2].into_boxed_slice(),
            shared_bytes: cx.shared,
            barriers: Default::default(),
            complete: 0,
            mbarriers: Default::default(),
            bulk: Vec::new(),
            random: seed,
            checks: crate::checks::BlockChecks::new(cx, linear, &live),
            live,
        };
        Block { common, warps, first: 0, random: seed }
    }

    /// Runs, one instruction each, what waits for its turn. Nothing else of the launch runs meanwhile.
    pub(crate) fn take_turn(&mut self, cpu: &mut Cpu<'_>) -> Exec<()> {
        cpu.refresh();
        for i in 0..self.warps.len() {
            if self.warps[i].parts.iter().any(|p| p.state == State::Turn) {
                cpu.granted = true;
                let mut budget = 1;
                let r = cpu.run_warp(&mut self.common, &mut self.warps[i], &mut budget);
                cpu.granted = false;
                r?;
            }
        }
        Ok(())
    }

    /// Runs until every warp waits for something, or the turn's instructions are used up.
    pub(crate) fn run(&mut self, cpu: &mut Cpu<'_>) -> Exec<BlockStop> {
        cpu.refresh();
        let n = self.warps.len();
        let start = cpu.steps;
        let schedule = cpu.cx.config.schedule;
        // The adversary holds one warp back until no other can run.
        let held = match schedule {
            Schedule::Adversarial if n > 1 => Some((next_random(&mut self.random) % n as u64) as usize),
            _ => None,
        };
        loop {
            let mut ran = false;
            if schedule != Schedule::RoundRobin {
                self.first = (next_random(&mut self.random) % n as u64) as usize;
            }
            for k in 0..=n {
                let i = if k == n { held.filter(|_| !ran).unwrap_or(n) } else { (self.first + k) % n };
                if i == n || (k < n && held == Some(i)) {
                    continue;
                }
                let mut budget = match schedule {
                    Schedule::RoundRobin => QUANTUM,
                    _ => 1 + (next_random(&mut self.random) % 512) as u32,
                };
                let before = cpu.steps;
                let stop = cpu.run_warp(&mut self.common, &mut self.warps[i], &mut budget)?;
                ran |= cpu.steps != before || stop == Stop::Budget;
                if self.common.complete != 0 {
                    self.release(cpu)?;
                    ran = true;
                }
            }
            if !ran || cpu.steps - start >= TURN {
                break;
            }
        }
        if self.warps.iter().all(|w| w.parts.is_empty()) {
            self.finish(cpu)?;
            return Ok(BlockStop::Exited);
        }
        let mut wake = None;
        for p in self.warps.iter().flat_map(|w| &w.parts) {
            match p.state {
                State::Ready | State::Turn => return Ok(BlockStop::Again),
                State::Sleep(until) => wake = Some(wake.map_or(until, |w: u64| w.min(until))),
                _ => {}
            }
        }
        Ok(BlockStop::Blocked(wake))
    }

    /// Lets the waiters of complete barriers go on.
    fn release(&mut self, cpu: &mut Cpu<'_>) -> Exec<()> {
        for id in 0..16u8 {
            if self.common.complete >> id & 1 == 0 {
                continue;
            }
            let barrier = std::mem::take(&mut self.common.barriers[usize::from(id)]);
            self.common.checks.complete(usize::from(id), &barrier);
            for w in &mut self.warps {
                for i in 0..w.parts.len() {
                    if w.parts[i].state == State::Barrier(id) {
                        let part = w.parts[i];
                        cpu.barrier_result(w, &part, &barrier);
                        w.parts[i].state = State::Ready;
                        w.parts[i].pc += 1;
                    }
                }
            }
        }
        self.common.complete = 0;
        Ok(())
    }

    fn finish(&mut self, cpu: &mut Cpu<'_>) -> Exec<()> {
        cpu.block_exit(&mut self.common, &mut self.warps)
    }

    /// Where each warp stands and what it waits for, for deadlock reports.
    pub(crate) fn describe(&self, cx: &LaunchCx<'_>, out: &mut String) {
        use std::fmt::Write;
        let [x, y, z] = self.common.ctaid;
        for w in &self.warps {
            for p in &w.parts {
                // A sleeping part stands behind the instruction that sent it to sleep.
                let pc = if matches!(p.state, State::Sleep(_)) { p.pc - 1 } else { p.pc };
                let (what, site) = (self.waits_for(cx, w, p, pc), cx.describe(pc));
                let _ = write!(out, "\n  block ({x}, {y}, {z}) warp {} lanes {:08x} {what} at {site}", w.id, p.mask);
                if let Some((file, line)) = cx.source(pc) {
                    let _ = write!(out, ", {file}:{line}");
                }
            }
        }
    }

    fn waits_for(&self, cx: &LaunchCx<'_>, warp: &Warp, part: &Part, pc: u32) -> String {
        let lane = part.mask.trailing_zeros() as usize;
        match (part.state, &cx.code.insts[pc as usize].op) {
            (State::Members, _) => format!("waits for lanes {:08x} of its warp", warp.live & !part.mask),
            (State::Barrier(id), _) => {
                let b = &self.common.barriers[usize::from(id)];
                let expected = b.expected(&self.common);
                let is_missing = |w: &&Warp| w.live != 0 && b.parties.iter().all(|p| p.0 != w.id);
                let missing: Vec<_> = self.warps.iter().filter(is_missing).map(|w| w.id.to_string()).collect();
                let missing = if missing.is_empty() { "none".into() } else { missing.join(", ") };
                let arrived = b.arrived(&self.common);
                format!("waits at barrier {id} ({arrived} of {expected} threads arrived; not there: warps {missing})")
            }
            (_, Op::Mbarrier(op)) => {
                let at = warp.address(cx.code, &op.address, lane) & 0xffff_ffff;
                let state = self.common.mbarriers.get(&at).map_or("not initialised".into(), |b| b.describe());
                format!("waits for the mbarrier at {at:#x} ({state})")
            }
            (State::Sleep(_), _) => "sleeps".into(),
            (_, Op::Mem(op)) if !op.access.write => self.polls(cx, warp, &op.address, lane, op.access.bytes),
            (_, Op::Atom(op)) => self.polls(cx, warp, &op.address, lane, op.access.bytes),
            _ => "runs".into(),
        }
    }

    /// The word that a polling warp looks at.
    fn polls(&self, cx: &LaunchCx<'_>, warp: &Warp, at: &Address, lane: usize, bytes: u32) -> String {
        let (table, address) = (cx.memory.table(), warp.address(cx.code, at, lane));
        let place = match at.space {
            MemSpace::Shared => {
                let fits = address + u64::from(bytes) <= u64::from(self.common.shared_bytes);
                fits.then(|| self.common.shared.as_ptr().cast::<u8>().wrapping_add(address as usize).cast_mut())
            }
            MemSpace::Global | MemSpace::Generic => table.find(address).and_then(|i| {
                let (a, offset) = (&table.live[i], address - table.live[i].base);
                (offset + u64::from(bytes) <= a.size).then(|| a.data.wrapping_add(offset as usize))
            }),
            _ => None,
        };
        match place {
            Some(p) if address.is_multiple_of(u64::from(bytes)) => {
                format!("polls the word at {address:#x}, which holds {:#x},", super::access::read(p, bytes, false))
            }
            _ => format!("accesses {address:#x}"),
        }
    }

    /// Where the first warp that is not done stands.
    pub(crate) fn stands(&self) -> Option<At> {
        let w = self.warps.iter().find(|w| !w.parts.is_empty())?;
        Some(At { pc: w.parts[0].pc, warp: w.id, ctaid: self.common.ctaid })
    }
}

/// Index of a register in `Warp::set`.
pub(crate) fn set_index(slots: u32, r: u32) -> usize {
    (if r >= PRED_BASE { slots + r - PRED_BASE } else { r }) as usize
}
