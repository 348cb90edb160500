//! A block: its shared memory, barriers and warps, and its part in a round.

use super::access::read;
use super::barrier::Barrier;
use super::inst::{Address, Op, PRED_BASE, Space};
use super::warp::{Part, State, Warp};
use super::{At, Cpu, Exec, LaunchCx, Random};
use crate::launch::Schedule;
use crate::memory::POISON;
use std::collections::HashMap;

/// Instructions a warp runs before the next one has its chance: all alike, or at most, at random.
const QUANTUM: u32 = 4096;
const RANDOM_QUANTUM: usize = 512;
/// Instructions all warps of a block run in one round.
const TURN: u64 = 200_000;

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
    pub(crate) mbarriers: HashMap<u64, super::mbarrier::Mbarrier>,
    /// Bulk copies into shared memory in flight.
    pub(crate) bulk: Vec<super::copy::BulkIn>,
    pub(crate) random: Random,
    pub(crate) checks: crate::checks::BlockChecks,
}

/// A resident block.
pub(crate) struct Block {
    common: Common,
    warps: Vec<Warp>,
    /// Its part in the last round: how it ended, whether it did more than poll, and the instructions it took.
    pub(crate) stop: Exec<Stop>,
    pub(crate) progress: bool,
    pub(crate) steps: u64,
}

/// How a block's part in a round ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Exited,
    /// Some warp wants its turn or has more to do.
    Again,
    /// No warp can run until time passes (to this time) or, without one, ever.
    Blocked(Option<u64>),
}

impl Block {
    /// A block ready to start.
    pub(crate) fn new(cx: &LaunchCx<'_>, number: u64) -> Block {
        let [gx, gy, _] = cx.launch.grid.map(u64::from);
        let live: Vec<u32> = (0..cx.warps).map(|id| u32::MAX >> (32 - (cx.threads - id * 32).min(32))).collect();
        let streams = 64 * number;
        let warps = (0..).zip(&live).map(|(id, &live)| Warp::new(cx, id, live, streams + 1 + u64::from(id))).collect();
        let common = Common {
            ctaid: [number % gx, number / gx % gy, number / gx / gy].map(|i| i as u32),
            sm: (number % u64::from(cx.config.multiprocessors.max(1))) as u32,
            shared: vec![POISON; (cx.shared as usize).div_ceil(16) * 2].into_boxed_slice(),
            shared_bytes: cx.shared,
            barriers: Default::default(),
            complete: 0,
            mbarriers: HashMap::new(),
            bulk: Vec::new(),
            random: Random::new(cx.config.seed, streams),
            checks: crate::checks::BlockChecks::new(cx, number, &live),
            live,
        };
        Block { common, warps, stop: Ok(Stop::Again), progress: false, steps: 0 }
    }

    /// Runs, one instruction each, what waits for its turn. Nothing else of the launch runs meanwhile.
    pub(crate) fn take_turn(&mut self, cpu: &mut Cpu<'_>) -> Exec<()> {
        cpu.cx.memory.refresh(&mut cpu.table);
        for warp in &mut self.warps {
            cpu.granted = warp.parts.iter().any(|p| p.state == State::Turn);
            if cpu.granted {
                cpu.run_warp(&mut self.common, warp, &mut 1)?;
            }
        }
        cpu.granted = false;
        Ok(())
    }

    /// Runs until every warp waits for something, or the round's instructions are used up.
    pub(crate) fn run(&mut self, cpu: &mut Cpu<'_>, now: u64) {
        let before = cpu.steps;
        cpu.set_time(now);
        cpu.progress = false;
        self.stop = self.run_warps(cpu);
        self.steps = cpu.steps - before;
        // A block that used up its instructions computes: one that polls comes to a turn or sleeps.
        self.progress = cpu.progress || self.steps >= TURN || matches!(self.stop, Ok(Stop::Exited));
    }

    fn run_warps(&mut self, cpu: &mut Cpu<'_>) -> Exec<Stop> {
        cpu.cx.memory.refresh(&mut cpu.table);
        let (n, start, schedule) = (self.warps.len(), cpu.steps, cpu.cx.config.schedule);
        // The adversary holds one warp back until no other can run.
        let held = (schedule == Schedule::Adversarial && n > 1).then(|| self.common.random.below(n));
        let mut before = u64::MAX;
        while cpu.steps != before && cpu.steps - start < TURN {
            before = cpu.steps;
            let first = if schedule == Schedule::RoundRobin { 0 } else { self.common.random.below(n) };
            for i in (first..n).chain(0..first).filter(|&i| Some(i) != held) {
                self.run_warp(cpu, i)?;
            }
            if let Some(held) = held.filter(|_| cpu.steps == before) {
                self.run_warp(cpu, held)?;
            }
        }
        if self.parts().next().is_none() {
            cpu.block_exit(&mut self.common, &mut self.warps)?;
            return Ok(Stop::Exited);
        }
        if self.parts().any(|(_, p)| matches!(p.state, State::Ready | State::Turn)) {
            return Ok(Stop::Again);
        }
        let wakes = |(_, p): (_, &Part)| if let State::Sleep(until) = p.state { Some(until) } else { None };
        Ok(Stop::Blocked(self.parts().filter_map(wakes).min()))
    }

    /// Runs a warp for a while, then lets the waiters of barriers that it completed go on.
    fn run_warp(&mut self, cpu: &mut Cpu<'_>, i: usize) -> Exec<()> {
        let mut budget = match cpu.cx.config.schedule {
            Schedule::RoundRobin => QUANTUM,
            _ => 1 + self.common.random.below(RANDOM_QUANTUM) as u32,
        };
        cpu.run_warp(&mut self.common, &mut self.warps[i], &mut budget)?;
        while self.common.complete != 0 {
            let id = self.common.complete.trailing_zeros() as usize;
            self.common.complete &= self.common.complete - 1;
            let barrier = std::mem::take(&mut self.common.barriers[id]);
            self.common.checks.complete(id, &barrier);
            for w in &mut self.warps {
                for k in 0..w.parts.len() {
                    let part = w.parts[k];
                    if part.state == State::Barrier(id as u8) {
                        cpu.barrier_result(w, &part, &barrier);
                        w.parts[k] = Part { state: State::Ready, pc: part.pc + 1, ..part };
                    }
                }
            }
        }
        Ok(())
    }

    /// The parts of all warps.
    fn parts(&self) -> impl Iterator<Item = (&Warp, &Part)> {
        self.warps.iter().flat_map(|w| w.parts.iter().map(move |p| (w, p)))
    }

    /// Where the first warp that is not done stands.
    pub(crate) fn stands(&self) -> Option<At> {
        self.parts().next().map(|(w, p)| At { pc: p.pc, warp: w.id, ctaid: self.common.ctaid })
    }

    /// Where each warp stands and what it waits for, for deadlock reports.
    pub(crate) fn describe(&self, cx: &LaunchCx<'_>) -> String {
        let [x, y, z] = self.common.ctaid;
        let line = |(w, p): (&Warp, &Part)| {
            // A sleeping part stands behind the instruction that sent it to sleep.
            let pc = if matches!(p.state, State::Sleep(_)) { p.pc - 1 } else { p.pc };
            let (what, site) = (self.waits_for(cx, w, p, pc), cx.describe(pc));
            format!("\n  block ({x}, {y}, {z}) warp {} lanes {:08x} {what} at {site}", w.id, p.mask)
        };
        self.parts().map(line).collect()
    }

    fn waits_for(&self, cx: &LaunchCx<'_>, warp: &Warp, part: &Part, pc: u32) -> String {
        let lane = part.mask.trailing_zeros() as usize;
        match (part.state, &cx.code.insts[pc as usize].op) {
            (State::Members, _) => format!("waits for lanes {:08x} of its warp", warp.live & !part.mask),
            (State::Barrier(id), _) => {
                let b = &self.common.barriers[usize::from(id)];
                let missing = self.warps.iter().filter(|w| w.live != 0 && b.parties.iter().all(|p| p.0 != w.id));
                let missing: Vec<_> = missing.map(|w| w.id.to_string()).collect();
                let missing = if missing.is_empty() { "none".into() } else { missing.join(", ") };
                let (arrived, expected) = (b.arrived(&self.common), b.expected(&self.common));
                format!("waits at barrier {id} ({arrived} of {expected} threads arrived; not there: warps {missing})")
            }
            (_, Op::Effect(_, Some(word))) => {
                let offset = warp.address(cx.code, &word.0, lane) & 0xffff_ffff;
                match self.common.mbarriers.get(&offset) {
                    Some(b) => format!("waits for the mbarrier at {offset:#x} ({})", b.describe()),
                    None => self.polls(cx, warp, &word.0, lane, word.1),
                }
            }
            (State::Sleep(_), _) => "sleeps".into(),
            (_, Op::Mem(op)) if !op.access.write => self.polls(cx, warp, &op.address, lane, op.access.bytes),
            _ => "runs".into(),
        }
    }

    /// The word that a polling warp looks at.
    fn polls(&self, cx: &LaunchCx<'_>, warp: &Warp, at: &Address, lane: usize, bytes: u32) -> String {
        let (address, size) = (warp.address(cx.code, at, lane), u64::from(bytes));
        let word = |data: *const u8, offset: u64| read(data.wrapping_add(offset as usize).cast_mut(), bytes, false);
        let shared = |address: u64| address.saturating_add(size) <= self.common.shared_bytes.into();
        let value = match at.space {
            _ if !address.is_multiple_of(size) => None,
            Space::Shared => shared(address).then(|| word(self.common.shared.as_ptr().cast(), address)),
            Space::Global | Space::Generic => {
                cx.memory.range(address, size).ok().map(|(a, offset)| word(a.data, offset))
            }
            _ => None,
        };
        let holds = |v| format!("polls the word at {address:#x}, which holds {v:#x},");
        value.map_or_else(|| format!("accesses {address:#x}"), holds)
    }
}

/// Index of a register in `Warp::set`.
pub(crate) fn set_index(slots: u32, r: u32) -> usize {
    (if r >= PRED_BASE { slots + r - PRED_BASE } else { r }) as usize
}
