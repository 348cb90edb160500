//! Blocks: shared memory, barriers and warps, and the instructions of one round. A cluster is one block here, with the
//! warps, barriers and shared memory of all its blocks, rank after rank.

use super::access::generic;
use super::barrier::Barrier;
use super::checked::Observers;
use super::copy::{Pieces, Transfer};
use super::inst::{Address, Op};
use super::mbarrier::{CLUSTER, Mbarrier};
use super::repeats::Repeats;
use super::warp::{Part, State, Warp};
use super::{Cpu, LaunchCx};
use crate::machine::config::Schedule;
use crate::machine::fault::OrFault;
use crate::machine::layout::At;
use crate::machine::mix::MixMap;
use crate::machine::random::Random;
use crate::machine::types::Space;
use crate::memory::POISON;

/// Instructions that a warp runs before the next: exactly under round robin, at most under the other schedules.
const QUANTUM: u32 = 4096;
const RANDOM_QUANTUM: usize = 512;
/// Instructions of all warps of a block in one round.
const TURN: u64 = 200_000;

/// State that the warps of a block share.
pub(crate) struct Common {
    /// Number of its first block.
    pub(crate) block: u64,
    /// Warps of a block.
    pub(crate) warps: u32,
    pub(crate) shared: Box<[u64]>,
    /// Sixteen barriers per rank.
    pub(crate) barriers: Vec<Barrier>,
    /// Live lanes of each warp.
    pub(crate) live: Vec<u32>,
    /// mbarrier objects by their offset in shared memory.
    pub(crate) mbarriers: MixMap<u64, Mbarrier>,
    /// The lowest of their bytes and the end of the last, the cluster's apart.
    pub(crate) mbarriers_in: (u64, u64),
    /// Copies in flight, in the order in which they were issued.
    pub(crate) transfers: Vec<Transfer>,
    /// Of copies that have landed, to be used again.
    #[expect(clippy::vec_box, reason = "copies in flight have them boxed")]
    pub(crate) spare: Vec<Box<Pieces>>,
    pub(crate) random: Random,
    pub(crate) observers: Observers,
    /// Whether an mbarrier has moved on in this round.
    pub(crate) moved: bool,
}

/// A resident block.
pub(crate) struct Block {
    pub(super) common: Common,
    pub(super) warps: Vec<Warp>,
    /// Its last round: the end, whether it did more than poll, and its instructions.
    pub(crate) stop: OrFault<RoundEnd>,
    pub(crate) progress: bool,
    pub(crate) steps: u64,
    /// What its warps repeat, where nothing but the block can change memory.
    pub(crate) repeats: Repeats,
}

/// End of a block's round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoundEnd {
    Exited,
    /// Some warp waits for its turn or can run on.
    Again,
    /// No warp can run: until this time, or ever without one.
    Blocked(Option<u64>),
}

impl Block {
    /// The blocks of a cluster, ready to start.
    pub(crate) fn new(cx: &LaunchCx<'_>, cluster: u64) -> Block {
        let (block, ranks) = (cluster * u64::from(cx.layout.ranks), cx.layout.ranks as usize);
        let one = (0..cx.layout.warps).map(|id| u32::MAX >> (32 - (cx.layout.threads - id * 32).min(32)));
        let live: Vec<u32> = one.collect::<Vec<_>>().repeat(ranks);
        let streams = 64 * block;
        let warp = |(id, &live): (u32, &u32)| {
            let ctaid = cx.layout.ctaid(block + u64::from(id / cx.layout.warps));
            Warp::new(cx, id, ctaid, live, streams + 1 + u64::from(id))
        };
        let warps: Vec<Warp> = (0..).zip(&live).map(warp).collect();
        let common = Common {
            block,
            warps: cx.layout.warps,
            shared: vec![POISON; cx.layout.cluster_shared() / 8].into_boxed_slice(),
            barriers: (0..16 * ranks).map(|_| Barrier::default()).collect(),
            mbarriers: MixMap::default(),
            mbarriers_in: (u64::MAX, 0),
            transfers: Vec::new(),
            spare: Vec::new(),
            random: Random::new(cx.config.seed, streams),
            observers: Observers::new(cx, block, &live),
            live,
            moved: false,
        };
        let repeats = Repeats::new(warps.len());
        Block { common, warps, stop: Ok(RoundEnd::Again), progress: false, steps: 0, repeats }
    }

    /// Runs one instruction of each warp that waits for its turn. Nothing else of the launch runs meanwhile.
    pub(crate) fn take_turn(&mut self, cpu: &mut Cpu<'_>) -> OrFault<()> {
        cpu.table = cpu.cx.memory.table();
        for warp in &mut self.warps {
            if let Some(part) = warp.parts.iter_mut().find(|p| p.state == State::Turn) {
                part.state = State::Granted;
                cpu.run_warp(&mut self.common, warp, 1)?;
            }
        }
        Ok(())
    }

    /// Runs until every warp waits for something, or the round's instructions are used up.
    pub(crate) fn run(&mut self, cpu: &mut Cpu<'_>, now: u64) {
        let before = cpu.steps;
        cpu.set_time(now);
        (cpu.progress, cpu.wrote, self.common.moved) = (false, false, false);
        self.stop = self.run_warps(cpu);
        self.steps = cpu.steps - before;
        // A block that used up its instructions computes: one that polls comes to a turn or sleeps.
        let works = cpu.progress || self.common.moved || self.steps >= TURN;
        self.progress = works || matches!(self.stop, Ok(RoundEnd::Exited));
        if cpu.cx.alone {
            self.repeats.look(&self.warps, cpu.wrote || self.common.moved);
        }
    }

    fn run_warps(&mut self, cpu: &mut Cpu<'_>) -> OrFault<RoundEnd> {
        cpu.table = cpu.cx.memory.table();
        let (n, start, schedule) = (self.warps.len(), cpu.steps, cpu.cx.config.schedule);
        // The adversary holds one warp back until no other can run.
        let held = (schedule == Schedule::Adversarial && n > 1).then(|| self.common.random.below(n));
        let mut before = u64::MAX;
        while cpu.steps != before && cpu.steps - start < TURN {
            before = cpu.steps;
            let first = if schedule == Schedule::RoundRobin { 0 } else { self.common.random.below(n) };
            for i in (first..n).chain(0..first).filter(|&i| Some(i) != held) {
                let budget = self.budget(cpu);
                self.run_warp(cpu, i, budget)?;
            }
            if let Some(held) = held.filter(|_| cpu.steps == before) {
                let budget = self.budget(cpu);
                self.run_warp(cpu, held, budget)?;
            }
        }
        if self.parts().next().is_none() {
            cpu.block_exit(&mut self.common)?;
            return Ok(RoundEnd::Exited);
        }
        if self.parts().any(|(_, p)| matches!(p.state, State::Ready | State::Turn)) {
            return Ok(RoundEnd::Again);
        }
        let wakes = |(_, p): (_, &Part)| match p.state {
            State::Sleep(until) | State::Cluster(until) => Some(until),
            _ => None,
        };
        Ok(RoundEnd::Blocked(self.parts().filter_map(wakes).min()))
    }

    /// Instructions that a warp may run before the next.
    fn budget(&mut self, cpu: &Cpu<'_>) -> u32 {
        match cpu.cx.config.schedule {
            Schedule::RoundRobin => QUANTUM,
            _ => 1 + self.common.random.below(RANDOM_QUANTUM) as u32,
        }
    }

    /// Runs a warp for a number of instructions, then releases the waiters of barriers that it completed.
    pub(super) fn run_warp(&mut self, cpu: &mut Cpu<'_>, i: usize, budget: u32) -> OrFault<()> {
        cpu.run_warp(&mut self.common, &mut self.warps[i], budget)?;
        while let Some(id) = self.common.complete() {
            let barrier = std::mem::take(&mut self.common.barriers[id]);
            let waiters = barrier.parties.iter().filter(|p| p.2).map(|p| (p.0, p.1));
            self.common.observers.barrier_complete(id, waiters);
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

    /// Whether all its warps have exited.
    pub(super) fn is_over(&self) -> bool {
        self.parts().next().is_none()
    }

    /// The place of the first warp that has not exited.
    pub(crate) fn stands(&self) -> Option<At> {
        self.parts().next().map(|(w, p)| At { pc: p.pc, warp: w.id, ctaid: w.ctaid })
    }

    /// The place of each warp and what it waits for, for reports of deadlocks.
    pub(crate) fn describe(&self, cx: &LaunchCx<'_>) -> String {
        let line = |(w, p): (&Warp, &Part)| {
            // A sleeping part stands behind the instruction that sent it to sleep.
            let pc = if matches!(p.state, State::Sleep(_)) { p.pc - 1 } else { p.pc };
            let (what, site) = (self.waits_for(cx, w, p, pc), cx.describe(pc));
            let ([x, y, z], warp) = (w.ctaid, w.id % cx.layout.warps);
            format!("\n  block ({x}, {y}, {z}) warp {warp} lanes {:08x} {what} at {site}", p.mask)
        };
        self.parts().map(line).collect()
    }

    fn waits_for(&self, cx: &LaunchCx<'_>, warp: &Warp, part: &Part, pc: u32) -> String {
        let polls = |at: &Address, bytes| {
            self.polls(cx, warp, at, warp.addresses(at)[part.mask.trailing_zeros() as usize], bytes)
        };
        match (part.state, &cx.code.insts[pc as usize].op) {
            (State::Members, _) => {
                let missing = self.common.live[warp.id as usize] & !part.mask;
                format!("waits for lanes {missing:08x} of its warp")
            }
            (State::Barrier(id), _) => {
                let b = &self.common.barriers[usize::from(id)];
                let first = u32::from(id) / 16 * cx.layout.warps;
                let live = (first..first + cx.layout.warps).filter(|&id| self.common.live[id as usize] != 0);
                let missing = live.filter(|id| b.parties.iter().all(|p| p.0 != *id));
                let missing: Vec<_> = missing.map(|id| (id % cx.layout.warps).to_string()).collect();
                let missing = if missing.is_empty() { "none".into() } else { missing.join(", ") };
                let (arrived, expected) = (b.arrived(&self.common), self.common.expected(id.into()));
                let id = id % 16;
                format!("waits at barrier {id} ({arrived} of {expected} threads arrived; not there: warps {missing})")
            }
            (_, Op::Effect(_, Some(word))) => polls(&word.0, word.1),
            (State::Cluster(_), _) => {
                let b = self.common.mbarriers.get(&CLUSTER).map(Mbarrier::describe).unwrap_or_default();
                format!("waits at the cluster's barrier ({b})")
            }
            (State::Sleep(_), _) => "sleeps".into(),
            (_, Op::Mem(op)) if !op.access.write => polls(&op.address, op.access.bytes),
            _ => "runs".into(),
        }
    }

    /// The word that a polling warp reads.
    fn polls(&self, cx: &LaunchCx<'_>, warp: &Warp, at: &Address, address: u64, bytes: u32) -> String {
        let (space, base) = if at.space == Space::Generic { generic(address) } else { (at.space, 0) };
        let address = match space {
            Space::Shared => cx.layout.in_cluster(warp.id / cx.layout.warps, address - base),
            _ => address - base,
        };
        let mut word = [0; 8];
        let value = match space {
            Space::Shared => match self.common.mbarriers.get(&address) {
                Some(b) => return format!("waits for the mbarrier at {address:#x} ({})", b.describe()),
                None => {
                    let index = cx.layout.shared_index(address);
                    self.common.shared.get(index as usize / 8).map(|v| v >> (8 * (index % 8)))
                }
            },
            Space::Global => {
                let read = cx.memory.read(address, &mut word[..bytes as usize]);
                read.ok().map(|()| u64::from_le_bytes(word))
            }
            _ => None,
        };
        match value.map(|v| v & u64::MAX >> (64 - 8 * bytes)) {
            Some(v) => format!("polls the word at {address:#x}, which holds {v:#x},"),
            None => format!("accesses {address:#x}"),
        }
    }
}
