//! What all multiprocessors share: ports to L2, its slices, channels of device memory.

use super::cache::{Cache, SECTOR};
use super::calendar::Calendar;
use crate::machine::chip::ChipFile;

/// Bytes of the least transfer of device memory: two sectors.
const BURST: u32 = 64;

/// Lines of a page of device memory, which lie in one channel: opening it for one line only would cost more than the line.
const PAGE: u64 = 8;

/// L2 and device memory, as they are during a launch.
pub(super) struct Hierarchy {
    ports: Vec<Calendar>,
    slices: Vec<Calendar>,
    /// Atomic operations of each slice, one behind the other.
    atomics: Vec<Calendar>,
    channels: Vec<Calendar>,
    /// Clocks from a multiprocessor to a slice and back, in its own half and in the other.
    trip: [u64; 2],
    /// Clocks of a fence.
    pub(super) fence: u64,
    /// Clocks from a slice to memory and back.
    beyond: u64,
    /// What L2 holds outlives a launch.
    pub(super) l2: Cache,
}

impl Hierarchy {
    pub(super) fn new(chip: &ChipFile, l2: Option<Cache>) -> Hierarchy {
        let clock = chip.clock.value;
        let calendars = |count: f64, rate: f64| (0..count as usize).map(|_| Calendar::new(rate)).collect();
        let (slices, channels) = (chip.slices.value, chip.channels.value);
        let trip = [0, 1].map(|half| chip.clocks(chip.l2[half].value));
        // A load from memory is published without telling halves apart.
        let middle = (trip[0] + trip[1]) / 2;
        let mut l2 = l2.unwrap_or_else(|| Cache::new(chip.l2_bytes.value as u64, 16));
        l2.settle();
        Hierarchy {
            ports: calendars(f64::from(chip.multiprocessors), chip.port.value),
            slices: calendars(slices, chip.l2_bandwidth.value / clock / slices),
            atomics: calendars(slices, 1.0 / chip.atomic.value),
            channels: calendars(channels, chip.dram_bandwidth.value / clock / channels),
            trip,
            fence: chip.fence.map_or(middle, |fence| chip.clocks(fence.value)),
            beyond: chip.clocks(chip.dram.value).saturating_sub(middle),
            l2,
        }
    }

    /// The slice and the channel of a line. Lines that follow each other go to different ones, all of them in turn.
    fn place(&self, line: u64) -> (usize, usize) {
        let turn = |unit: u64, count: u64| {
            let run = unit / count;
            let start = run.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
            ((unit + start) % count) as usize
        };
        (turn(line, self.slices.len() as u64), turn(line / PAGE, self.channels.len() as u64))
    }

    /// Clocks to the slice of a line and back: a multiprocessor and a slice lie in one half or not.
    pub(super) fn trip(&self, multiprocessor: usize, line: u64) -> u64 {
        let slice = self.place(line).0;
        self.trip[usize::from(multiprocessor % 2 != 2 * slice / self.slices.len())]
    }

    /// Sectors of a line are looked up in L2 from clock `at` on, `fetched` with them if they are missed; the slice moves
    /// `moved` of them. Returns when they are there, at the slice.
    fn look(&mut self, line: u64, (sectors, fetched): (u8, u8), at: u64, write: bool, moved: u32) -> u64 {
        let (slice, channel) = self.place(line);
        let (_, served) = self.slices[slice].reserve(at, SECTOR as u32 * moved);
        // A read takes whole bursts out of memory, and L2 keeps what they bring.
        let brought = if write { 0 } else { (sectors & 0b0101) << 1 | (sectors & 0b1010) >> 1 };
        let found = self.l2.look(line, sectors | fetched | brought, write);
        let mut there = served.max(found.ready);
        // A write brings its own bytes.
        if found.missing & sectors != 0 && !write {
            let bytes = (SECTOR as u32 * found.missing.count_ones()).next_multiple_of(BURST);
            let (_, came) = self.channels[channel].reserve(served + self.beyond / 2, bytes);
            there = came + self.beyond - self.beyond / 2;
            self.l2.filled(line, there);
        }
        if found.evicted > 0 {
            self.channels[channel].reserve(there, (SECTOR as u32 * found.evicted).next_multiple_of(BURST));
        }
        there
    }

    /// Reads sectors of a line for a multiprocessor that asks at clock `at`. Returns when they have come there.
    pub(super) fn read(&mut self, multiprocessor: usize, line: u64, (sectors, fetched): (u8, u8), at: u64) -> u64 {
        let trip = self.trip(multiprocessor, line);
        let there = self.look(line, (sectors, fetched), at + trip / 2, false, sectors.count_ones());
        let (_, came) = self.ports[multiprocessor].reserve(there, SECTOR as u32 * sectors.count_ones());
        came + trip - trip / 2
    }

    /// Asks L2 for sectors of a line, which come no further: the slice looks them up, as if it moved one.
    pub(super) fn ask(&mut self, multiprocessor: usize, line: u64, sectors: u8, at: u64) {
        let trip = self.trip(multiprocessor, line);
        self.look(line, (sectors, 0), at + trip / 2, false, 1);
    }

    /// Writes sectors of a line. Returns when they are in L2, and when the multiprocessor knows.
    pub(super) fn write(&mut self, multiprocessor: usize, line: u64, sectors: u8, at: u64) -> (u64, u64) {
        let trip = self.trip(multiprocessor, line);
        let there = self.look(line, (sectors, 0), at + trip / 2, true, sectors.count_ones());
        (there, there + trip - trip / 2)
    }

    /// The slice of a line makes an atomic operation from clock `at` on. Returns when its result is there.
    pub(super) fn operate(&mut self, line: u64, at: u64) -> u64 {
        let slice = self.place(line).0;
        self.atomics[slice].reserve(at, 1).1
    }

    /// Bytes that the slices, and the channels, have moved.
    pub(super) fn moved(&self) -> [f64; 2] {
        [&self.slices, &self.channels].map(|all| all.iter().map(Calendar::units).sum())
    }
}
