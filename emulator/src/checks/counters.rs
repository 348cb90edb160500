//! Counters of a launch: exact, the same on every run.

use crate::machine::access::Access;
use crate::machine::banks::passes;
use crate::machine::lanes::Lanes;
use crate::machine::mix::MixMap;
use crate::machine::origin::Origin;
use crate::machine::types::Space;
use std::collections::BTreeMap;
use std::ops::AddAssign;

/// Bytes of a sector, the unit in which device memory moves.
const SECTOR: u64 = 32;

/// What an instruction does with device memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Way {
    #[default]
    Reads,
    Writes,
    /// L2 is to have it: sectors come from device memory, and are read by whoever loads them.
    AsksAhead,
}

/// Counts per instruction, of one thread of the host.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    sites: Vec<(LineCounters, Way)>,
    /// Sectors read and written, a bit each, by page of 4 KiB.
    touched: MixMap<u64, [u128; 2]>,
    /// Bytes of bulk copies into shared memory that a block had under way at once, at most.
    under_way: u64,
}

impl Counts {
    pub(crate) fn new(instructions: usize) -> Counts {
        Counts { sites: vec![Default::default(); instructions], touched: MixMap::default(), under_way: 0 }
    }

    /// A warp issues an instruction for the lanes in `m`: none, where its guard is false.
    #[inline(always)]
    pub(crate) fn issue(&mut self, pc: u32, m: u32) {
        let (site, _) = &mut self.sites[pc as usize];
        site.warp_instructions += 1;
        site.lane_instructions += u64::from(m.count_ones());
    }

    /// Counts a bulk copy from device memory, or into it: each sector once, whatever pieces the emulator moves it in.
    pub(crate) fn bulk(&mut self, pc: u32, device: (u64, u64), write: bool) {
        self.span(pc, device, if write { Way::Writes } else { Way::Reads });
    }

    /// Notes how many bytes of bulk copies a block has under way.
    pub(crate) fn under_way(&mut self, bytes: u64) {
        self.under_way = self.under_way.max(bytes);
    }

    /// Counts what L2 is asked for ahead.
    pub(crate) fn ask(&mut self, pc: u32, device: (u64, u64)) {
        self.span(pc, device, Way::AsksAhead);
    }

    /// Counts bytes from an address on.
    fn span(&mut self, pc: u32, (address, bytes): (u64, u64), way: Way) {
        let sectors = address / SECTOR..(address + bytes).div_ceil(SECTOR);
        let (site, known) = &mut self.sites[pc as usize];
        site.bytes_used += bytes;
        site.sectors += sectors.end - sectors.start;
        *known = way;
        sectors.for_each(|s| self.touch(s, way == Way::Writes));
    }

    /// Notes that a sector is read, or written.
    fn touch(&mut self, sector: u64, write: bool) {
        let page = self.touched.entry(sector / 128).or_default();
        page[usize::from(write)] |= 1 << (sector % 128);
    }

    /// Counts a memory access by lanes themselves.
    pub(crate) fn access(&mut self, pc: u32, space: Space, addr: &[u64; 32], m: u32, access: &Access) {
        let total = u64::from(access.bytes * access.count);
        let (site, way) = &mut self.sites[pc as usize];
        match space {
            Space::Global | Space::Generic => {
                let sectors = units(addr, m, total, SECTOR);
                site.bytes_used += total * u64::from(m.count_ones());
                site.sectors += sectors.len() as u64;
                *way = if access.write { Way::Writes } else { Way::Reads };
                sectors.into_iter().for_each(|s| self.touch(s, access.write));
            }
            Space::Shared => site.bank_conflicts += u64::from(passes(addr, m, total).1),
            _ => {}
        }
    }

    pub(crate) fn add(&mut self, other: &Counts) {
        self.sites.resize_with(self.sites.len().max(other.sites.len()), Default::default);
        for ((mine, way), (its, known)) in self.sites.iter_mut().zip(&other.sites) {
            *mine += its;
            // Who has not run it has it as a read.
            *way = if *known == Way::Reads { *way } else { *known };
        }
        for (page, bits) in &other.touched {
            let mine = self.touched.entry(*page).or_default();
            mine.iter_mut().zip(bits).for_each(|(mine, bits)| *mine |= bits);
        }
        self.under_way(other.under_way);
    }
}

/// The distinct units of `unit` bytes that lanes touch.
fn units(addr: &[u64; 32], m: u32, bytes: u64, unit: u64) -> Vec<u64> {
    let mut units = Vec::with_capacity(64);
    Lanes(m).for_each(|l| units.extend(addr[l] / unit..(addr[l] + bytes).div_ceil(unit)));
    units.sort_unstable();
    units.dedup();
    units
}

/// Counters of one line of source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineCounters {
    /// File and line of the source, where the PTX names them.
    pub source: Option<(String, u32)>,
    /// Instructions, counted per warp.
    pub warp_instructions: u64,
    /// Instructions, counted per active lane.
    pub lane_instructions: u64,
    /// Bytes that lanes asked for in device memory, for themselves or ahead for L2.
    pub bytes_used: u64,
    /// Sectors of 32 bytes that lanes touched, or had L2 touch, summed over warp instructions.
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
    /// Bytes that lanes asked for when reading device memory, for themselves or ahead for L2.
    pub read_bytes_used: u64,
    /// Sectors of 32 bytes read by lanes themselves.
    pub read_sectors: u64,
    /// Bytes of distinct sectors read, or that L2 was asked for.
    pub read_bytes_distinct: u64,
    /// Bytes that lanes wrote to device memory.
    pub write_bytes_used: u64,
    /// Sectors of 32 bytes written.
    pub write_sectors: u64,
    /// Bytes of distinct sectors written.
    pub write_bytes_distinct: u64,
    /// Extra passes in shared memory because lanes met in a bank.
    pub bank_conflicts: u64,
    /// Bytes of bulk copies into shared memory that a block had under way at once, at most, each of which lands as late as
    /// it may: behind a wait that sees it.
    pub bulk_bytes_under_way: u64,
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
    pub(crate) fn new(origins: &[Origin], counts: &Counts) -> Counters {
        let touched = |way: usize| counts.touched.values().map(move |page| u64::from(page[way].count_ones()));
        let distinct = |way: usize| SECTOR * touched(way).sum::<u64>();
        let (read_bytes_distinct, write_bytes_distinct) = (distinct(0), distinct(1));
        let bulk_bytes_under_way = counts.under_way;
        let mut all =
            Counters { read_bytes_distinct, write_bytes_distinct, bulk_bytes_under_way, ..Counters::default() };
        for (pc, (site, way)) in counts.sites.iter().enumerate().filter(|(_, (site, _))| site.warp_instructions > 0) {
            let origin = &origins[pc];
            let mut line = LineCounters { source: origin.source.as_deref().cloned(), ..site.clone() };
            if !origin.first {
                // A further part of what the text says in one instruction.
                (line.warp_instructions, line.lane_instructions) = (0, 0);
            }
            let name = origin.opcode.split('.').next().unwrap_or("");
            let of = |names: [&str; 2], n: u64| if names.contains(&name) { n } else { 0 };
            let moved = |by: Way| if by == *way { (line.bytes_used, line.sectors) } else { (0, 0) };
            let (reads, writes, asked) = (moved(Way::Reads), moved(Way::Writes), moved(Way::AsksAhead));
            all.add(&Counters {
                warp_instructions: line.warp_instructions,
                lane_instructions: line.lane_instructions,
                by_opcode: [(name.to_string(), line.warp_instructions)].into(),
                read_bytes_used: reads.0 + asked.0,
                read_sectors: reads.1,
                write_bytes_used: writes.0,
                write_sectors: writes.1,
                bank_conflicts: line.bank_conflicts,
                barriers: of(["bar", "barrier"], line.warp_instructions),
                atomics: of(["atom", "red"], line.lane_instructions),
                fences: of(["membar", "fence"], line.warp_instructions),
                lines: [(origin.line, line)].into(),
                ..Counters::default()
            });
        }
        all
    }

    /// Adds another launch's counters. Distinct bytes are summed as well; of bytes under way it is the most.
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
        self.bulk_bytes_under_way = self.bulk_bytes_under_way.max(other.bulk_bytes_under_way);
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
