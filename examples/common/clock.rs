//! How long launches would take on a chip, as a table: modelled, not measured, and the same on every run.

#![allow(dead_code)]

use crate::counters::{self, Matrices};
use kiln_emulator::{ChipFile, Figure, Stall, Timing};
use std::fmt::Write;

/// The launches of one name.
#[derive(Default)]
struct Row {
    name: String,
    launches: u32,
    microseconds: f64,
    /// Bytes that device memory moved, and those that had to be read.
    moved: f64,
    needed: f64,
    /// Shares of time, weighted by it, in the order of [`Stall::ALL`], and of issue slots.
    stalls: [f64; 4],
    issued: f64,
}

impl Row {
    fn add(&mut self, timing: &Timing, needed: u64) {
        let time = timing.nanoseconds / 1e3;
        self.launches += 1;
        self.microseconds += time;
        self.moved += timing.dram_bytes;
        self.needed += needed as f64;
        self.issued += timing.issued * time;
        self.stalls.iter_mut().zip(timing.stalls()).for_each(|(sum, share)| *sum += share * time);
    }

    fn write(&self, out: &mut String, chip: &ChipFile) {
        let share = |part: f64| 100.0 * part / self.microseconds.max(1e-9);
        let read = self.moved / 1e3 / self.microseconds.max(1e-9);
        let _ = write!(out, "{:32} {:8} {:10.2}", self.name, self.launches, self.microseconds);
        let _ = write!(out, " {read:8.0} {:6.0} %", 100.0 * read / chip.dram_bandwidth.value);
        for stall in self.stalls {
            let _ = write!(out, " {:8.0} %", share(stall));
        }
        let _ = writeln!(out, " {:6.0} %", share(self.issued));
    }
}

/// The table of a device's launches on a chip, by kernel.
pub(crate) fn table(ordinal: i32, matrices: &Matrices, chip: &ChipFile) -> String {
    let mut out = format!("time on `{}`: modelled, not measured (chip file {})\n", chip.name, chip.name);
    let timings = kiln_emulator::reports(ordinal);
    let launches = counters::launches(ordinal, matrices);
    let (mut rows, mut all) = (Vec::<Row>::new(), Row { name: "all launches".into(), ..Row::default() });
    for (launch, record) in launches.iter().zip(&timings) {
        let Some(timing) = &record.timing else { continue };
        let row = match rows.iter().position(|row| row.name == launch.name) {
            Some(row) => row,
            None => {
                rows.push(Row { name: launch.name.clone(), ..Row::default() });
                rows.len() - 1
            }
        };
        let needed = launch.needed.map_or(0, |needed| needed.bytes);
        rows[row].add(timing, needed);
        all.add(timing, needed);
    }
    let _ = write!(out, "{:32} {:>8} {:>10} {:>8} {:>8}", "kernel", "launches", "us", "GB/s", "of reads");
    for stall in Stall::ALL {
        let _ = write!(out, " {:>10}", stall.name());
    }
    let _ = writeln!(out, " {:>8}", "issued");
    rows.iter().for_each(|row| row.write(&mut out, chip));
    all.write(&mut out, chip);
    let around = |each: f64| all.microseconds + f64::from(all.launches) * each;
    let ways = [("launch of a stream", chip.launch), ("node of a graph", chip.node)];
    let ways = ways.into_iter().chain([("programmatic launch of a graph", chip.programmatic)]);
    let with =
        |(way, each): (&str, Figure)| format!("with {:.2} us for each {way} {:.1} us", each.value, around(each.value));
    let _ = writeln!(out, "{}", ways.map(with).collect::<Vec<_>>().join(", "));
    let copies = kiln_emulator::copies(ordinal);
    let _ = writeln!(
        out,
        "beside them {} copies between host and device, {} bytes: {:.1} us, with {:.2} us for each; a host's answer takes {:.1} us",
        copies.count,
        copies.bytes,
        copies.microseconds(chip),
        chip.copy.value,
        chip.answer.value,
    );
    out
}
