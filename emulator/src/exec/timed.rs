//! The scheduler of a launch whose time is modelled: one host thread runs, of all resident warps, the one that is furthest
//! behind, until it is half a microsecond ahead of the next. Of equals the lowest number goes first, so that a launch takes
//! the same time on every run.
//!
//! A warp whose looks are in vain stands still in time; it looks again when the others are further on.

use super::block::Block;
use super::inst::{Op, Program};
use super::warp::State;
use super::{Cpu, LaunchCx};
use crate::machine::fault::{FaultKind, OrFault};
use crate::machine::layout::At;
use crate::timing::fold::{Cost, Sketch, costs};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Nanoseconds by which a warp may be ahead.
const AHEAD: u64 = 500;
/// Clocks after which a look in vain is repeated.
const AGAIN: u64 = 256;
/// Most instructions of a warp at once.
const BUDGET: u32 = 256;
/// Picks between two looks at the watch.
const WATCH: u64 = 1024;
/// Most blocks whose places a report lists.
const SHOWN: usize = 16;

impl Program {
    /// Costs of its instructions.
    pub(crate) fn costs(&self) -> &[Cost] {
        self.costs.get_or_init(|| {
            let sketches: Vec<Sketch<'_>> = (self.insts.iter().zip(&self.origins).zip(&self.registers))
                .map(|((inst, origin), uses)| Sketch {
                    opcode: &origin.opcode,
                    first: origin.first,
                    rolled: origin.rolled,
                    guarded: inst.guard != super::inst::NO_PRED,
                    reads: uses.reads.iter().map(|&r| self.index(r) as u32).collect(),
                    writes: uses.writes.iter().map(|&r| self.index(r) as u32).collect(),
                    target: if let Op::Bra(target) = inst.op { Some(target) } else { None },
                })
                .collect();
            costs(&sketches, self.register_count())
        })
    }

    /// Number of slots and predicates.
    pub(crate) fn register_count(&self) -> usize {
        (self.slots + self.preds) as usize
    }
}

/// A resident block, or cluster of blocks.
struct Resident {
    block: Block,
    number: u64,
    /// The multiprocessor of its first block.
    place: u32,
    /// Clocks before which each warp need not be looked at.
    not_before: Vec<u64>,
    steps: u64,
}

/// A launch as it runs.
struct Run<'a> {
    cx: &'a LaunchCx<'a>,
    residents: Vec<Option<Resident>>,
    /// Next clock of each resident that can go on.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    waiting: Range<u64>,
    picks: u64,
    /// Looks in vain since anything happened.
    idle: u64,
}

/// Runs `total` blocks, or clusters of blocks, to their ends.
pub(super) fn run<'a>(cx: &'a LaunchCx<'a>, total: u64, cpu: &mut Cpu<'a>) -> OrFault<()> {
    let ranks = u64::from(cx.layout.ranks);
    let most = u64::from(cx.per_multiprocessor) * u64::from(cx.config.multiprocessors) / ranks;
    let resident = total.min(most.max(1));
    let (queue, waiting) = (BinaryHeap::new(), resident..total);
    let mut run = Run { cx, residents: Vec::new(), queue, waiting, picks: 0, idle: 0 };
    for number in 0..resident {
        let place = (number * ranks % u64::from(cx.config.multiprocessors.max(1))) as u32;
        run.residents.push(None);
        run.begin(cpu, number as usize, (number, place), 0);
    }
    while let Some(Reverse((_, slot))) = run.queue.pop() {
        run.pick(cpu, slot)?;
    }
    match run.residents.iter().any(Option::is_some) {
        true => run.fail(cpu, FaultKind::Deadlock, "no warp of any resident block can go on".into()),
        false => Ok(()),
    }
}

impl<'a> Run<'a> {
    /// Begins a block at a clock.
    fn begin(&mut self, cpu: &mut Cpu<'a>, slot: usize, (number, place): (u64, u32), at: u64) {
        let mut block = Block::new(self.cx, number);
        let layout = &self.cx.layout;
        let shape = (layout.ranks, layout.warps);
        let registers = self.cx.code.register_count();
        block.common.observers.time =
            cpu.timekeeper.as_mut().map(|keeper| Box::new(keeper.block(place, shape, registers, at)));
        let not_before = vec![0; block.warps.len()];
        self.residents[slot] = Some(Resident { block, number, place, not_before, steps: 0 });
        self.queue.push(Reverse((at, slot)));
    }

    /// Runs the warp of a resident that is furthest behind.
    fn pick(&mut self, cpu: &mut Cpu<'a>, slot: usize) -> OrFault<()> {
        self.picks += 1;
        let Some(resident) = &mut self.residents[slot] else { return Ok(()) };
        let (Some((at, warp)), second) = resident.next() else { return Ok(()) };
        let next = second.min(self.queue.peek().map_or(u64::MAX, |next| next.0.0));
        if let Some(keeper) = &mut cpu.timekeeper {
            keeper.horizon = next.max(at).saturating_add(keeper.clocks(AHEAD));
        }
        if self.picks % 64 == 1 {
            cpu.table = self.cx.memory.table();
        }
        let before = cpu.steps;
        cpu.progress = false;
        let vain = resident.run(cpu, warp, at)?;
        resident.steps += cpu.steps - before;
        self.idle = if vain && !cpu.progress { self.idle + 1 } else { 0 };
        if resident.block.is_over() {
            cpu.block_exit(&mut resident.block.common)?;
            let (number, place) = (resident.number * u64::from(self.cx.layout.ranks), resident.place);
            let time = resident.block.common.observers.time.take();
            let end = match (&mut cpu.timekeeper, time) {
                (Some(keeper), Some(time)) => keeper.finish(number, &time),
                _ => at,
            };
            self.residents[slot] = None;
            if let Some(number) = self.waiting.next() {
                self.begin(cpu, slot, (number, place), end);
            }
        } else if let (Some(next), _) = resident.next() {
            self.queue.push(Reverse((next.0, slot)));
        }
        self.judge(cpu, slot)
    }

    /// Faults where the launch may not go on.
    fn judge(&mut self, cpu: &Cpu<'a>, slot: usize) -> OrFault<()> {
        let config = self.cx.config;
        if self.picks.is_multiple_of(WATCH) || self.idle > WATCH {
            if let Some((kind, message)) = self.cx.watch.and_then(|watch| watch(self.idle < WATCH, u64::from(BUDGET))) {
                return self.fail(cpu, kind, message);
            }
            if self.idle > WATCH {
                std::thread::yield_now();
            }
        }
        let steps = self.residents[slot].as_ref().map_or(0, |resident| resident.steps);
        if let Some(limit) = config.step_limit.filter(|&limit| steps > limit) {
            let message = format!("a block took more than {limit} warp instructions");
            return self.fail(cpu, FaultKind::StepLimit, message);
        }
        let alive = self.queue.len() as u64 + 1;
        match config.livelock_rounds.filter(|&limit| self.idle / alive > limit) {
            Some(limit) => {
                let message = format!("for {limit} rounds every warp has only polled what nobody changes");
                self.fail(cpu, FaultKind::Deadlock, message)
            }
            None => Ok(()),
        }
    }

    /// A fault that lists the place of every warp.
    fn fail(&self, cpu: &Cpu<'a>, kind: FaultKind, mut message: String) -> OrFault<()> {
        let blocks: Vec<&Block> = self.residents.iter().flatten().map(|resident| &resident.block).collect();
        blocks.iter().take(SHOWN).for_each(|block| message += &block.describe(self.cx));
        let first = blocks.iter().find_map(|block| block.stands());
        Err(cpu.fault(kind, &first.unwrap_or(At { pc: u32::MAX, warp: 0, ctaid: [0; 3] }), None, message))
    }
}

impl Resident {
    /// The warp furthest behind of those that can go on, with its clock, and the clock of the next one.
    fn next(&self) -> (Option<(u64, usize)>, u64) {
        let time = self.block.common.observers.time.as_deref();
        let (mut first, mut second) = (None, u64::MAX);
        for (warp, of) in self.block.warps.iter().enumerate() {
            if of.parts.iter().all(|part| matches!(part.state, State::Members | State::Barrier(_))) {
                continue;
            }
            let clock = time.map_or(0, |time| time.time(warp as u32)).max(self.not_before[warp]);
            match first {
                Some((least, _)) if clock >= least => second = second.min(clock),
                Some((least, _)) => (first, second) = (Some((clock, warp)), least),
                None => first = Some((clock, warp)),
            }
        }
        (first, second)
    }

    /// Runs a warp from a clock on. Returns whether it only looked in vain.
    fn run(&mut self, cpu: &mut Cpu<'_>, warp: usize, at: u64) -> OrFault<bool> {
        let Block { common, warps, .. } = &mut self.block;
        for part in &mut warps[warp].parts {
            if let State::Sleep(until) | State::Cluster(until) = part.state {
                part.state = State::Ready;
                if let (Some(keeper), Some(time)) = (&cpu.timekeeper, &mut common.observers.time) {
                    time.slept(warp as u32, keeper.clocks(until));
                }
            }
        }
        if let (Some(keeper), Some(time)) = (&cpu.timekeeper, &common.observers.time) {
            cpu.set_time(keeper.nanoseconds(time.time(warp as u32)));
        }
        self.block.run_warp(cpu, warp, BUDGET)?;
        let vain = self.block.common.observers.time.as_mut().is_some_and(|time| time.take_vain(warp as u32));
        self.not_before[warp] = if vain { at + AGAIN } else { 0 };
        Ok(vain)
    }
}
