//! The scheduler: runs blocks on the host's threads, reproducibly.
//!
//! Resident blocks run in rounds. In parallel, each runs up to an instruction by which blocks may communicate (atomics,
//! ordered and volatile accesses); then all execute theirs one after the other, in an order that the schedule decides.
//! Everything else is private to a block unless the kernel races, which is reported. So a seed gives the same run on
//! any number of cores, and spin loops end.
//!
//! Blocks of a kernel without such instructions have rounds of their own, each block on one thread.

use super::block::{Block, RoundEnd};
use super::{Cpu, LaunchCx, timed};
use crate::checks::counters::Counts;
use crate::machine::config::Schedule;
use crate::machine::fault::{FaultKind, OrFault};
use crate::machine::layout::At;
use crate::machine::lock::lock;
use crate::machine::random::Random;
use crate::timing::report::Timing;
use crate::timing::timekeeper::Timekeeper;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

/// Least resident blocks of a launch that is not cooperative.
const RESIDENT: u64 = 8;
/// Rounds without progress after which the adversary releases its block.
const PATIENCE: u64 = 4;
/// Rounds after which the adversary releases its block in any case, since resident blocks run eventually.
const HELD: u64 = 2000;
/// Warp instructions of a round below which the other threads are not woken.
const SMALL: u64 = 50_000;
/// Most blocks whose places a report lists.
const SHOWN: usize = 16;

/// Runs all blocks of a launch. Returns its warp instructions, counts and modelled time.
pub(crate) fn run(cx: &LaunchCx<'_>) -> OrFault<(u64, Counts, Option<Timing>)> {
    let total = cx.layout.grid.iter().map(|&g| u64::from(g)).product::<u64>() / u64::from(cx.layout.ranks);
    if let Some(chip) = cx.config.clock {
        let mut cpu = Cpu::new(cx);
        let shared = u64::from(cx.layout.shared) * u64::from(cx.per_multiprocessor);
        cpu.timekeeper = Some(Box::new(Timekeeper::new(chip, cx.code.costs(), shared, cx.memory.take_l2())));
        let outcome = timed::run(cx, total, &mut cpu);
        cpu.count_findings();
        outcome?;
        let report = cpu.timekeeper.take().map(|keeper| keeper.report());
        let timing = report.map(|(timing, l2)| {
            cx.memory.keep_l2(l2);
            timing
        });
        return Ok((cpu.steps, cpu.counters, timing));
    }
    // A thread for every few warps: starting one takes as long as running a small block.
    let useful = (total.saturating_mul(u64::from(cx.layout.warps)) / 4).clamp(1, total);
    let threads = cx.config.host_threads().clamp(1, useful as usize);
    let mut cpus: Vec<Cpu<'_>> = (0..threads).map(|_| Cpu::new(cx)).collect();
    let outcome = match cx.free {
        true => one_by_one(total, &mut cpus),
        false => Rounds::new(cx, 0..total).run(&mut cpus),
    };
    cpus.iter().for_each(Cpu::count_findings);
    outcome?;
    let mut counts = Counts::default();
    cpus.iter().for_each(|cpu| counts.add(&cpu.counters));
    Ok((cpus.iter().map(|cpu| cpu.steps).sum(), counts, None))
}

/// Runs each block to its end. Of several faults the lowest block's is reported, whatever the timing.
fn one_by_one(total: u64, cpus: &mut [Cpu<'_>]) -> OrFault<()> {
    let faults = Mutex::new(BTreeMap::new());
    // Blocks begin in order: once there is a fault, those that have not begun cannot be lower.
    let numbers = (0..total).take_while(|_| lock(&faults).is_empty());
    share(cpus, numbers, |cpu, i| {
        if let Err(fault) = Rounds::new(cpu.cx, i..i + 1).run(std::slice::from_mut(cpu)) {
            lock(&faults).insert(i, fault);
        }
    });
    let lowest = lock(&faults).pop_first();
    lowest.map_or(Ok(()), |(_, fault)| Err(fault))
}

/// Shares work between the caller's thread and one more per further `Cpu`.
fn share<'a, T>(
    cpus: &mut [Cpu<'a>],
    work: impl IntoIterator<IntoIter: Send, Item = T>,
    run: impl Fn(&mut Cpu<'a>, T) + Sync,
) {
    let left = Mutex::new(work.into_iter());
    let next = || lock(&left).next();
    let work = |cpu: &mut Cpu<'a>| {
        while let Some(item) = next() {
            run(cpu, item);
        }
    };
    let Some((own, others)) = cpus.split_first_mut() else { return };
    std::thread::scope(|scope| {
        for cpu in others {
            scope.spawn(|| work(cpu));
        }
        work(own);
    });
}

/// Some of a launch's blocks, as they run in rounds.
struct Rounds<'a> {
    cx: &'a LaunchCx<'a>,
    /// Resident blocks; `None` once no more blocks wait.
    slots: Vec<Option<Block>>,
    /// The slots in the order of their turns.
    order: Vec<usize>,
    /// Blocks that have not begun.
    waiting: Range<u64>,
    random: Random,
    /// Virtual time at the start of the round, and the instructions of the longest block so far.
    time: u64,
    steps: u64,
    /// Rounds in which nothing changed.
    idle: u64,
    /// The slot that the adversary holds back, and for how many rounds.
    held: Option<usize>,
    held_for: u64,
    /// Whether the last round was so short that the next begins on one thread.
    small: bool,
}

impl<'a> Rounds<'a> {
    fn new(cx: &'a LaunchCx<'a>, mut waiting: Range<u64>) -> Rounds<'a> {
        let total = waiting.end - waiting.start;
        let resident = if cx.cooperative { total } else { total.min(RESIDENT.max(cx.resident.into())) };
        let first = waiting.by_ref().take(resident as usize);
        let slots: Vec<_> = first.map(|number| Some(Block::new(cx, number))).collect();
        let (order, random) = ((0..slots.len()).collect(), Random::new(cx.config.seed, u64::MAX));
        let (time, steps, idle, held, held_for, small) = (0, 0, 0, None, 0, false);
        Rounds { cx, slots, order, waiting, random, time, steps, idle, held, held_for, small }
    }

    /// Runs all the blocks to their ends.
    fn run(mut self, cpus: &mut [Cpu<'a>]) -> OrFault<()> {
        self.hold();
        while self.slots.iter().any(Option::is_some) {
            self.parallel(cpus);
            self.serial(&mut cpus[0])?;
        }
        Ok(())
    }

    /// The adversary picks a block to hold back.
    fn hold(&mut self) {
        let holds = self.cx.config.schedule == Schedule::Adversarial && self.slots.len() > 1;
        self.held = holds.then(|| self.random.below(self.slots.len()));
        self.held_for = 0;
    }

    /// The blocks that are not held back.
    fn running(&mut self) -> impl Iterator<Item = &mut Block> {
        let held = self.held;
        let slots = self.slots.iter_mut().enumerate().filter(move |(i, _)| Some(*i) != held);
        slots.filter_map(|(_, slot)| slot.as_mut())
    }

    /// Runs blocks until each stands at an instruction that takes turns.
    fn parallel(&mut self, cpus: &mut [Cpu<'a>]) {
        let (now, alone) = (self.time, if self.small { SMALL } else { 0 });
        let mut blocks: Vec<_> = self.running().collect();
        let end = cpus[0].steps + alone;
        while cpus[0].steps < end
            && let Some(block) = blocks.pop()
        {
            block.run(&mut cpus[0], now);
        }
        let threads = blocks.len().min(cpus.len());
        share(&mut cpus[..threads], blocks, |cpu, block| block.run(cpu, now));
    }

    /// Executes the instructions that take turns, starts new blocks, and faults where the launch may not go on.
    fn serial(&mut self, cpu: &mut Cpu<'a>) -> OrFault<()> {
        let (mut longest, mut all, mut progress, mut repeats) = (1, 0, false, false);
        for block in self.running() {
            if let Err(fault) = &block.stop {
                return Err(fault.clone());
            }
            (longest, all) = (block.steps.max(longest), all + block.steps);
            repeats |= block.repeats.all();
            progress |= block.progress;
        }
        self.small = all < SMALL;
        self.time += longest;
        self.steps += longest;
        if self.cx.config.schedule != Schedule::RoundRobin {
            for i in (1..self.order.len()).rev() {
                self.order.swap(i, self.random.below(i + 1));
            }
        }
        cpu.progress = progress;
        cpu.set_time(self.time);
        let (mut ran, mut wake) = (false, None);
        for &i in self.order.iter().filter(|&&i| Some(i) != self.held) {
            let slot = &mut self.slots[i];
            let Some(block) = slot else { continue };
            match block.stop {
                Ok(RoundEnd::Blocked(until)) => {
                    wake = [wake, until].into_iter().flatten().min();
                    continue;
                }
                Ok(RoundEnd::Exited) => {
                    *slot = self.waiting.next().map(|number| Block::new(self.cx, number));
                    cpu.progress = true;
                }
                _ => block.take_turn(cpu)?,
            }
            ran = true;
        }
        self.idle = if cpu.progress { 0 } else { self.idle + 1 };
        self.held_for += 1;
        if !ran && self.held.take().is_some() {
            // Nothing moves without the held block: let it go, and hold another one later.
            return Ok(());
        }
        let tired = self.idle.min(self.held_for) >= PATIENCE || self.held_for > HELD;
        if self.held.map_or(cpu.progress, |_| tired) {
            self.hold();
        }
        if !ran {
            self.time = self.time.max(wake.unwrap_or(0));
        }
        if repeats {
            let message = "the block's warps repeat themselves: they poll what nobody changes".into();
            return self.report(cpu, FaultKind::Deadlock, message);
        }
        if let Some((kind, message)) = self.verdict(ran || wake.is_some(), cpu.progress, longest) {
            return self.report(cpu, kind, message);
        }
        if !cpu.progress {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// The fault that ends the launch after a round, if any.
    fn verdict(&self, moves: bool, progress: bool, steps: u64) -> Option<(FaultKind, String)> {
        let config = self.cx.config;
        if !moves {
            return Some((FaultKind::Deadlock, "no warp of any resident block can go on".into()));
        }
        if let Some(found) = self.cx.watch.and_then(|watch| watch(progress, steps)) {
            return Some(found);
        }
        if let Some(limit) = config.step_limit.filter(|&limit| self.steps > limit) {
            return Some((FaultKind::StepLimit, format!("a block took more than {limit} warp instructions")));
        }
        let limit = config.livelock_rounds.filter(|&limit| self.idle > limit)?;
        let message = format!("for {limit} rounds every warp has only polled what nobody changes");
        Some((FaultKind::Deadlock, message))
    }

    /// A fault that lists the place of every warp.
    fn report(&mut self, cpu: &mut Cpu<'a>, kind: FaultKind, mut message: String) -> OrFault<()> {
        // On to where each warp stands next: polling shows at the load, not at what follows it.
        self.slots.iter_mut().flatten().for_each(|block| block.run(cpu, self.time));
        let blocks: Vec<&Block> = self.slots.iter().flatten().collect();
        blocks.iter().take(SHOWN).for_each(|block| message += &block.describe(self.cx));
        if blocks.len() > SHOWN {
            message += "\n  ...";
        }
        let first = blocks.iter().find_map(|block| block.stands());
        Err(cpu.fault(kind, &first.unwrap_or(At { pc: u32::MAX, warp: 0, ctaid: [0; 3] }), None, message))
    }
}
