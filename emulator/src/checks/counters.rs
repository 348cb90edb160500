//! Counters of a launch: exact, the same on every run.

use crate::exec::LaunchCx;
use crate::exec::access::Access;
use crate::exec::inst::MemSpace;
use crate::exec::lanes::Lanes;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// Bytes of a sector, the unit in which device memory moves.
const SECTOR: u64 = 32;

/// Counts of one instruction.
#[derive(Debug, Clone, Default)]
struct Site {
    warps: u64,
    lanes: u64,
    /// Accesses to device memory: bytes the lanes asked for, sectors touched.
    used: u64,
    sectors: u64,
    /// Accesses to shared memory: passes, and passes without conflicts.
    passes: u64,
    ideal: u64,
    write: bool,
}

/// Counts per instruction, of one thread of the host.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    sites: Vec<Site>,
    /// Sectors touched, a bit each, by page of 4 KiB: read and written.
    touched: HashMap<u64, [u128; 2]>,
}

impl Counts {
    pub(crate) fn new(instructions: usize) -> Counts {
        Counts { sites: vec![Site::default(); instructions], touched: HashMap::new() }
    }

    /// An instruction ran for some lanes.
    #[inline(always)]
    pub(crate) fn ran(&mut self, pc: u32, m: u32) {
        let s = &mut self.sites[pc as usize];
        s.warps += 1;
        s.lanes += u64::from(m.count_ones());
    }

    /// An instruction was issued with its guard false in all lanes.
    #[inline(always)]
    pub(crate) fn skipped(&mut self, pc: u32) {
        self.sites[pc as usize].warps += 1;
    }

    /// A memory access.
    pub(crate) fn access(&mut self, pc: u32, space: MemSpace, addr: &[u64; 32], m: u32, access: &Access) {
        let total = u64::from(access.bytes * access.count);
        match space {
            MemSpace::Global | MemSpace::Generic => {
                let mut sectors: Vec<u64> = Vec::with_capacity(64);
                for l in Lanes(m) {
                    let (first, last) = (addr[l] / SECTOR, (addr[l] + total - 1) / SECTOR);
                    sectors.extend(first..=last);
                }
                sectors.sort_unstable();
                sectors.dedup();
                for &s in &sectors {
                    let page = self.touched.entry(s / 128).or_default();
                    page[usize::from(access.write)] |= 1 << (s % 128);
                }
                let site = &mut self.sites[pc as usize];
                site.used += total * u64::from(m.count_ones());
                site.sectors += sectors.len() as u64;
                site.write = access.write;
            }
            MemSpace::Shared => {
                let (passes, ideal) = bank_passes(addr, m, total);
                let site = &mut self.sites[pc as usize];
                site.passes += passes;
                site.ideal += ideal;
            }
            _ => {}
        }
    }

    pub(crate) fn add(&mut self, other: &Counts) {
        if self.sites.len() < other.sites.len() {
            self.sites.resize(other.sites.len(), Site::default());
        }
        for (a, b) in self.sites.iter_mut().zip(&other.sites) {
            a.warps += b.warps;
            a.lanes += b.lanes;
            a.used += b.used;
            a.sectors += b.sectors;
            a.passes += b.passes;
            a.ideal += b.ideal;
            a.write |= b.write;
        }
        for (page, bits) in &other.touched {
            let mine = self.touched.entry(*page).or_default();
            mine[0] |= bits[0];
            mine[1] |= bits[1];
        }
    }
}

/// Passes that an access to shared memory takes, and would take without conflicts: 32 banks of 4 bytes, 8- and 16-byte
/// accesses in halves and quarters of a warp.
fn bank_passes(addr: &[u64; 32], m: u32, bytes: u64) -> (u64, u64) {
    let lanes_per_phase = match bytes {
        0..=4 => 32,
        5..=8 => 16,
        _ => 8,
    };
    let (mut passes, mut ideal) = (0, 0);
    for first in (0..32).step_by(lanes_per_phase) {
        let mut banks: [Vec<u64>; 32] = Default::default();
        for l in (first..first + lanes_per_phase).filter(|l| m >> l & 1 == 1) {
            for w in addr[l] / 4..(addr[l] + bytes).div_ceil(4) {
                let bank = &mut banks[(w % 32) as usize];
                if !bank.contains(&w) {
                    bank.push(w);
                }
            }
        }
        let most = banks.iter().map(Vec::len).max().unwrap_or(0) as u64;
        passes += most;
        ideal += u64::from(most > 0);
    }
    (passes, ideal)
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
    /// Extra passes in shared memory.
    pub bank_conflicts: u64,
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
        let mut c = Counters::default();
        for (pc, s) in counts.sites.iter().enumerate().filter(|(_, s)| s.warps > 0) {
            let full = cx.code.opcode.get(pc).and_then(|&i| cx.code.names.get(i as usize)).map_or("", String::as_str);
            let name = full.split('.').next().unwrap_or("");
            let first = cx.code.first.get(pc) == Some(&true);
            let (warps, lanes) = if first { (s.warps, s.lanes) } else { (0, 0) };
            c.warp_instructions += warps;
            c.lane_instructions += lanes;
            *c.by_opcode.entry(name.to_string()).or_default() += warps;
            let (used, sectors) = if s.write {
                (&mut c.write_bytes_used, &mut c.write_sectors)
            } else {
                (&mut c.read_bytes_used, &mut c.read_sectors)
            };
            *used += s.used;
            *sectors += s.sectors;
            c.bank_conflicts += s.passes - s.ideal;
            match name {
                "bar" | "barrier" => c.barriers += warps,
                "atom" | "red" => c.atomics += lanes,
                "membar" | "fence" => c.fences += warps,
                _ => {}
            }
            let origin = cx.code.origins.get(pc).copied().unwrap_or_default();
            let line = c.lines.entry(origin.line).or_default();
            line.source = origin.source.checked_sub(1).and_then(|i| cx.module.sources.get(i as usize)).cloned();
            line.warp_instructions += warps;
            line.lane_instructions += lanes;
            line.bytes_used += s.used;
            line.sectors += s.sectors;
            line.bank_conflicts += s.passes - s.ideal;
        }
        for bits in counts.touched.values() {
            c.read_bytes_distinct += SECTOR * u64::from(bits[0].count_ones());
            c.write_bytes_distinct += SECTOR * u64::from(bits[1].count_ones());
        }
        c
    }

    /// Adds another launch's counters; distinct bytes are added, too.
    pub fn add(&mut self, o: &Counters) {
        self.warp_instructions += o.warp_instructions;
        self.lane_instructions += o.lane_instructions;
        for (name, n) in &o.by_opcode {
            *self.by_opcode.entry(name.clone()).or_default() += n;
        }
        self.read_bytes_used += o.read_bytes_used;
        self.read_sectors += o.read_sectors;
        self.read_bytes_distinct += o.read_bytes_distinct;
        self.write_bytes_used += o.write_bytes_used;
        self.write_sectors += o.write_sectors;
        self.write_bytes_distinct += o.write_bytes_distinct;
        self.bank_conflicts += o.bank_conflicts;
        self.barriers += o.barriers;
        self.atomics += o.atomics;
        self.fences += o.fences;
        for (line, l) in &o.lines {
            let mine = self.lines.entry(*line).or_default();
            mine.source = mine.source.take().or_else(|| l.source.clone());
            mine.warp_instructions += l.warp_instructions;
            mine.lane_instructions += l.lane_instructions;
            mine.bytes_used += l.bytes_used;
            mine.sectors += l.sectors;
            mine.bank_conflicts += l.bank_conflicts;
        }
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "warp instructions   {:>14}", self.warp_instructions)?;
        writeln!(f, "lane instructions   {:>14}", self.lane_instructions)?;
        writeln!(
            f,
            "read                {:>14} bytes used, {} in sectors, {} distinct",
            self.read_bytes_used,
            self.read_sectors * SECTOR,
            self.read_bytes_distinct
        )?;
        writeln!(
            f,
            "written             {:>14} bytes used, {} in sectors, {} distinct",
            self.write_bytes_used,
            self.write_sectors * SECTOR,
            self.write_bytes_distinct
        )?;
        writeln!(f, "bank conflicts      {:>14}", self.bank_conflicts)?;
        writeln!(f, "barriers (warps)    {:>14}", self.barriers)?;
        writeln!(f, "atomics (lanes)     {:>14}", self.atomics)?;
        writeln!(f, "fences (warps)      {:>14}", self.fences)?;
        let mut ops: Vec<_> = self.by_opcode.iter().collect();
        ops.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
        for (name, n) in ops {
            writeln!(f, "  {name:<18}{n:>14}")?;
        }
        Ok(())
    }
}
