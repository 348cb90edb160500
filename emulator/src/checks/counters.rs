//! Counters of a launch: exact, the same on every run.

use crate::exec::LaunchCx;
use crate::exec::access::Access;
use crate::exec::inst::Space;
use crate::exec::lanes::Lanes;
use std::collections::{BTreeMap, HashMap};
use std::ops::AddAssign;

/// Bytes of a sector, the unit in which device memory moves.
const SECTOR: u64 = 32;

/// Counts per instruction, of one thread of the host.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    /// For each instruction its counts, and whether it writes to device memory.
    sites: Vec<(LineCounters, bool)>,
    /// Sectors touched, a bit each, by page of 4 KiB: read and written.
    touched: HashMap<u64, [u128; 2]>,
}

impl Counts {
    pub(crate) fn new(instructions: usize) -> Counts {
        Counts { sites: vec![Default::default(); instructions], touched: HashMap::new() }
    }

    /// An instruction ran for some lanes, or, its guard being false, for none.
    #[inline(always)]
    pub(crate) fn ran(&mut self, pc: u32, m: u32) {
        let (site, _) = &mut self.sites[pc as usize];
        site.warp_instructions += 1;
        site.lane_instructions += u64::from(m.count_ones());
    }

    /// A memory access.
    pub(crate) fn access(&mut self, pc: u32, space: Space, addr: &[u64; 32], m: u32, access: &Access) {
        let total = u64::from(access.bytes * access.count);
        let (site, write) = &mut self.sites[pc as usize];
        match space {
            Space::Global | Space::Generic => {
                let mut sectors: Vec<u64> = Vec::with_capacity(64);
                for l in Lanes(m) {
                    sectors.extend(addr[l] / SECTOR..=(addr[l] + total - 1) / SECTOR);
                }
                sectors.sort_unstable();
                sectors.dedup();
                for &s in &sectors {
                    let page = self.touched.entry(s / 128).or_default();
                    page[usize::from(access.write)] |= 1 << (s % 128);
                }
                site.bytes_used += total * u64::from(m.count_ones());
                site.sectors += sectors.len() as u64;
                *write = access.write;
            }
            Space::Shared => site.bank_conflicts += bank_conflicts(addr, m, total),
            _ => {}
        }
    }

    pub(crate) fn add(&mut self, other: &Counts) {
        self.sites.resize_with(self.sites.len().max(other.sites.len()), Default::default);
        for ((mine, write), (its, writes)) in self.sites.iter_mut().zip(&other.sites) {
            *mine += its;
            *write |= writes;
        }
        for (page, bits) in &other.touched {
            let mine = self.touched.entry(*page).or_default();
            mine.iter_mut().zip(bits).for_each(|(mine, bits)| *mine |= bits);
        }
    }
}

/// Extra passes that an access to shared memory takes because lanes meet in one of the 32 banks of 4 bytes; accesses of
/// 8 and 16 bytes are done for halves and quarters of a warp.
fn bank_conflicts(addr: &[u64; 32], m: u32, bytes: u64) -> u64 {
    let lanes_per_phase = match bytes {
        0..=4 => 32,
        5..=8 => 16,
        _ => 8,
    };
    let extra = |first: usize| {
        let mut banks: [Vec<u64>; 32] = Default::default();
        for l in (first..first + lanes_per_phase).filter(|l| m >> l & 1 == 1) {
            for w in addr[l] / 4..(addr[l] + bytes).div_ceil(4) {
                let bank = &mut banks[(w % 32) as usize];
                if !bank.contains(&w) {
                    bank.push(w);
                }
            }
        }
        banks.iter().map(Vec::len).max().unwrap_or(0).saturating_sub(1) as u64
    };
    (0..32).step_by(lanes_per_phase).map(extra).sum()
}

/// Counters of one line of source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineCounters {
    /// File and line, where the text tells.
    pub source: Option<(String, u32)>,
    /// Instructions, counted per warp.
    pub warp_instructions: u64,
    /// Instructions, counted per active lane.
    pub lane_instructions: u64,
    /// Bytes that lanes asked for in device memory.
    pub bytes_used: u64,
    /// Sectors of 32 bytes that this took.
    pub sectors: u64,
    /// Extra passes in shared memory because lanes met in a bank.
    pub bank_conflicts: u64,
}

impl AddAssign<&LineCounters> for LineCounters {
    fn add_assign(&mut self, other: &LineCounters) {
        self.source = self.source.take().or_else(|| other.source.clone());
        self.warp_instructions += other.warp_instructions;
        self.lane_instructions += other.lane_instructions;
        self.bytes_used += other.bytes_used;
        self.sectors += other.sectors;
        self.bank_conflicts += other.bank_conflicts;
    }
}

/// Counters of a launch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Instructions, counted per warp.
    pub warp_instructions: u64,
    /// Instructions, counted per active lane.
    pub lane_instructions: u64,
    /// Warp instructions by opcode without modifiers.
    pub by_opcode: BTreeMap<String, u64>,
    /// Bytes that lanes asked for when reading device memory.
    pub read_bytes_used: u64,
    /// Sectors of 32 bytes read.
    pub read_sectors: u64,
    /// Bytes of distinct sectors read.
    pub read_bytes_distinct: u64,
    /// Bytes that lanes wrote to device memory.
    pub write_bytes_used: u64,
    /// Sectors of 32 bytes written.
    pub write_sectors: u64,
    /// Bytes of distinct sectors written.
    pub write_bytes_distinct: u64,
    /// Extra passes in shared memory because lanes met in a bank.
    pub bank_conflicts: u64,
    /// Barriers, counted per warp.
    pub barriers: u64,
    /// Atomic operations, counted per lane.
    pub atomics: u64,
    /// Fences, counted per warp.
    pub fences: u64,
    /// By PTX line.
    pub lines: BTreeMap<u32, LineCounters>,
}

impl Counters {
    pub(crate) fn new(cx: &LaunchCx<'_>, counts: &Counts) -> Counters {
        let distinct =
            |way: usize| SECTOR * counts.touched.values().map(|b| u64::from(b[way].count_ones())).sum::<u64>();
        let mut all =
            Counters { read_bytes_distinct: distinct(0), write_bytes_distinct: distinct(1), ..Counters::default() };
        for (pc, (site, write)) in counts.sites.iter().enumerate().filter(|(_, (site, _))| site.warp_instructions > 0) {
            let mut line = site.clone();
            let origin = &cx.code.origins[pc];
            if !origin.first {
                // A further part of what the text says in one instruction.
                (line.warp_instructions, line.lane_instructions) = (0, 0);
            }
            let name = origin.opcode.split('.').next().unwrap_or("");
            let of = |names: &[&str], n: u64| if names.contains(&name) { n } else { 0 };
            let mut one = Counters {
                warp_instructions: line.warp_instructions,
                lane_instructions: line.lane_instructions,
                by_opcode: [(name.to_string(), line.warp_instructions)].into(),
                bank_conflicts: line.bank_conflicts,
                barriers: of(&["bar", "barrier"], line.warp_instructions),
                atomics: of(&["atom", "red"], line.lane_instructions),
                fences: of(&["membar", "fence"], line.warp_instructions),
                ..Counters::default()
            };
            if *write {
                (one.write_bytes_used, one.write_sectors) = (line.bytes_used, line.sectors);
            } else {
                (one.read_bytes_used, one.read_sectors) = (line.bytes_used, line.sectors);
            }
            line.source = cx.source(pc as u32).cloned();
            one.lines.insert(origin.line, line);
            all.add(&one);
        }
        all
    }

    /// Adds another launch's counters; distinct bytes are added, too.
    pub fn add(&mut self, other: &Counters) {
        self.warp_instructions += other.warp_instructions;
        self.lane_instructions += other.lane_instructions;
        self.read_bytes_used += other.read_bytes_used;
        self.read_sectors += other.read_sectors;
        self.read_bytes_distinct += other.read_bytes_distinct;
        self.write_bytes_used += other.write_bytes_used;
        self.write_sectors += other.write_sectors;
        self.write_bytes_distinct += other.write_bytes_distinct;
        self.bank_conflicts += other.bank_conflicts;
        self.barriers += other.barriers;
        self.atomics += other.atomics;
        self.fences += other.fences;
        for (name, n) in &other.by_opcode {
            *self.by_opcode.entry(name.clone()).or_default() += n;
        }
        for (line, its) in &other.lines {
            *self.lines.entry(*line).or_default() += its;
        }
    }
}
