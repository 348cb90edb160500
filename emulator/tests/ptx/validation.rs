//! The clock beside published microbenchmarks that no chip file was made from: every point of `docs/CLOCK.md`'s first
//! table is modelled here, and the table held to it. `KILN_BLESS=1` has the long test rewrite the table.

use crate::points::{self, Point};
use crate::rig::Rig;
use kiln_emulator::{ChipFile, DeviceConfig, Figure, chip_file};

/// The programs of `nvcc/clock.cu` as NVIDIA's compiler has them, by `nvcc/make.sh`.
const TEXTS: [(u32, &str); 3] = [
    (90, include_str!("../nvcc/clock.sm_90.ptx")),
    (80, include_str!("../nvcc/clock.sm_80.ptx")),
    (75, include_str!("../nvcc/clock.sm_75.ptx")),
];

fn named(name: &str) -> &'static ChipFile {
    chip_file(name).unwrap()
}

/// A rig with the programs as they were compiled for the chip, or for one before it.
fn rig(chip: &'static ChipFile) -> Rig {
    let (_, text) = TEXTS.into_iter().find(|text| text.0 <= 10 * chip.sm.0 + chip.sm.1).unwrap();
    let mut rig = Rig::new(text);
    rig.config = DeviceConfig { step_limit: None, ..DeviceConfig::clocked(chip) };
    rig
}

/// GB/s of all multiprocessors, each with a ring of so many bytes in flight.
fn ring(chip: &'static ChipFile, bytes: u64) -> f64 {
    let rig = rig(chip);
    let (blocks, rounds) = (u64::from(chip.multiprocessors), (96 << 10) / bytes.min(32 << 10) + 8);
    let from = rig.memory.alloc(blocks * bytes / 2 * rounds).unwrap();
    let time = rig.time("ring", blocks as u32, 1, &[from, bytes / 2, rounds]);
    (blocks * bytes / 2 * rounds) as f64 / time.nanoseconds
}

/// GB/s of a stream kernel with two blocks of so many threads on each multiprocessor.
fn streamed(chip: &'static ChipFile, kind: &str, threads: u32) -> f64 {
    // Of the 1 GB that each array has, a few MB are run, and of L2 as much less is there to keep what was written.
    let chip = Box::leak(Box::new(ChipFile { l2_bytes: Figure { value: 1e6, ..chip.l2_bytes }, ..*chip }));
    let mut rig = rig(chip);
    // What keeps a third block out.
    rig.dynamic_shared = if chip.sm.0 >= 9 { 90 << 10 } else { 70 << 10 };
    let blocks = 16 * chip.multiprocessors;
    let n = u64::from(blocks * threads);
    let [a, b, c] = [0; 3].map(|_| rig.memory.alloc(8 * n).unwrap());
    let time = rig.time(&format!("stream_{kind}"), blocks, threads, &[a, b, c, n]);
    let streams = match kind {
        "init" | "read" => 1,
        "scale" => 2,
        _ => 3,
    };
    (streams * 8 * n) as f64 / time.nanoseconds
}

/// Microseconds of so many blocks of 1024 threads that read memory once.
fn sweep(chip: &'static ChipFile, blocks: u32, megabytes: f64) -> f64 {
    let rig = rig(chip);
    let each = f64::from(blocks) * 16384.0;
    let rounds = (megabytes * 1e6 / each).round().max(1.0) as u64;
    let from = rig.memory.alloc(u64::from(blocks) * 16384 * rounds).unwrap();
    rig.time("sweep", blocks, 1024, &[from, rounds, from]).nanoseconds / 1e3
}

/// Microseconds from a barrier of the grid to the next, while 4096 elements are scaled, one a thread.
fn meet(chip: &'static ChipFile, by_atomics: bool, threads: u32) -> f64 {
    let mut rig = rig(chip);
    rig.cooperative = true;
    let elements = 4096;
    let time = |rounds: u64| {
        let counts = rig.u32s(&[0; 16]);
        let [a, b] = [0; 2].map(|_| rig.memory.alloc(8 * elements).unwrap());
        let grid = elements as u32 / threads;
        let time = match by_atomics {
            true => rig.time("meet_by_atomics", grid, threads, &[counts, a, b, elements, rounds]),
            false => rig.time("meet_as_a_group", grid, threads, &[a, b, elements, rounds]),
        };
        time.nanoseconds / 1e3
    };
    (time(9) - time(1)) / 8.0
}

/// Nanoseconds of a load by one thread, whose address is what the load before it brought, from a list of so many lines:
/// those that it did not come to before, or those that it did.
fn chase(chip: &'static ChipFile, lines: u64, again: bool) -> f64 {
    let rig = rig(chip);
    let (list, out) = (rig.memory.alloc(128 * lines).unwrap(), rig.memory.alloc(8).unwrap());
    for line in 0..lines {
        // An odd stride comes to every line.
        let next = list + 128 * ((line + 4097) % lines);
        rig.memory.write(list + 128 * line, &next.to_le_bytes()).unwrap();
    }
    let time = |hops: u64| rig.time("chase", 1, 1, &[list, hops, out]).nanoseconds;
    match again {
        true => {
            time(lines);
            (time(2 * lines) - time(lines)) / lines as f64
        }
        false => time(1024) / 1024.0,
    }
}

/// Lanes of an instruction in a clock, of a multiprocessor with 32 warps.
fn rate(chip: &'static ChipFile, name: &str) -> f64 {
    let rig = rig(chip);
    let out = rig.memory.alloc(4096).unwrap();
    let time = |rounds: u64| rig.time(&format!("rate_{name}"), 1, 1024, &[out, rounds, 3, 5]).nanoseconds;
    let operations = 1024.0 * 64.0 * 16.0;
    operations / (chip.clock.value * (time(20) - time(4)))
}

/// Clocks of a barrier or a fence of a block of so many threads.
fn waiting(chip: &'static ChipFile, name: &str, threads: u32) -> f64 {
    let rig = rig(chip);
    let time = |rounds: u64| rig.time(name, 1, threads, &[rounds]).nanoseconds;
    chip.clock.value * (time(12) - time(4)) / (8.0 * 16.0)
}

fn points() -> Vec<Point> {
    let mut all = Vec::new();
    let mut add = |what: String, chip: &'static str, unit, published, model: Box<dyn Fn() -> f64>| {
        all.push(Point { what, source: None, chip, unit, published, memory: false, model });
    };
    for (kilobytes, published) in
        [(1, 223.0), (2, 430.0), (4, 815.0), (8, 1300.0), (12, 1510.0), (16, 1720.0), (24, 1811.0), (64, 1826.0)]
    {
        let model = Box::new(move || ring(named("h100-pcie"), kilobytes << 10));
        add(format!("bulk copies, {kilobytes} KB in flight"), "h100-pcie", "GB/s", published, model);
    }
    // Shares of the peak of 896 GB/s; that of 16 KB and more is an input.
    for (kilobytes, published) in [(4, 0.81 * 896.0), (8, 0.945 * 896.0)] {
        let model = Box::new(move || ring(named("rtx-5070-ti"), kilobytes << 10));
        add(format!("bulk copies, {kilobytes} KB in flight"), "rtx-5070-ti", "GB/s", f64::round(published), model);
    }
    // The reachable bandwidths of H100 PCIe and H200 are from the same tables: their rows of all threads are left out.
    for (chip, threads, read, scale, triad) in [
        ("h100-pcie", 32, 96.0, 183.0, 254.0),
        ("h100-pcie", 128, 368.0, 607.0, 821.0),
        ("h100-pcie", 512, 1261.0, 1583.0, 1675.0),
        ("h200", 32, 123.0, 240.0, 334.0),
        ("h200", 128, 485.0, 852.0, 1129.0),
        ("h200", 512, 1707.0, 2263.0, 2919.0),
        ("a100", 32, 85.0, 157.0, 221.0),
        ("a100", 128, 325.0, 581.0, 799.0),
        ("a100", 512, 1122.0, 1577.0, 1659.0),
    ] {
        for (kind, published) in [("read", read), ("scale", scale), ("triad", triad)] {
            let model = Box::new(move || streamed(named(chip), kind, threads));
            add(format!("{kind}, two blocks of {threads} threads"), chip, "GB/s", published, model);
        }
    }
    // That of 32 threads, the smallest, is an input.
    for (chip, threads, published) in [
        ("h100-pcie", 96, 676.0),
        ("h100-pcie", 224, 1495.0),
        ("h200", 128, 1163.0),
        ("h200", 256, 2196.0),
        ("a100", 128, 792.0),
        ("a100", 256, 1488.0),
    ] {
        let model = Box::new(move || streamed(named(chip), "init", threads));
        add(format!("init, two blocks of {threads} threads"), chip, "GB/s", published, model);
    }
    // A kernel that does nothing is published too: 0.95 us with 32 blocks and less, 1.24 with 128 and more.
    for (megabytes, published) in [(4.19, 3.34), (8.39, 5.18), (16.78, 8.21), (33.55, 14.26)] {
        let model = Box::new(move || 1.24 + sweep(named("h100-sxm"), 128, megabytes));
        add(format!("cold read of {megabytes} MB"), "h100-sxm", "us", published, model);
    }
    // Between 32 and 128 blocks a kernel that does nothing is taken to lie between the two.
    for (blocks, nothing, published) in [(16, 0.95, 471.0), (32, 0.95, 773.0), (64, 1.05, 1090.0)] {
        let model = Box::new(move || 4.19e3 / (nothing + sweep(named("h100-sxm"), blocks, 4.19)));
        add(format!("cold read of 4.19 MB by {blocks} blocks"), "h100-sxm", "GB/s", published, model);
    }
    for (blocks, published) in [(32, 0.95), (128, 1.24)] {
        let chip = named("h100-sxm");
        let model = Box::new(move || chip.node.value + rig(chip).time("nothing", blocks, 32, &[]).nanoseconds / 1e3);
        add(format!("nothing, {blocks} blocks, a node of a graph"), "h100-sxm", "us", published, model);
    }
    // Published as GB/s of 64 KB, by threads of a block: as many blocks as have 4096 elements.
    for (chip, by_atomics, rates) in [
        ("h200", true, [(32, 57.0), (256, 63.0), (1024, 50.0)]),
        ("h200", false, [(32, 52.0), (256, 52.0), (1024, 53.0)]),
        ("a100", false, [(32, 40.0), (256, 49.0), (1024, 45.0)]),
    ] {
        for (threads, rate) in rates {
            let model = Box::new(move || meet(named(chip), by_atomics, threads));
            let barrier = if by_atomics { "a barrier by one atomic" } else { "a cooperative grid's barrier" };
            let what = format!("{barrier}, {} blocks of {threads}", 4096 / threads);
            add(what, chip, "us", f64::round(6553.6 / rate) / 100.0, model);
        }
    }
    let what = "a cooperative grid's barrier, 16 blocks of 256".into();
    add(what, "rtx-3090", "us", 0.73, Box::new(|| meet(named("rtx-3090"), false, 256)));
    all
}

/// Points that chip files are made from, whose programs give them back.
fn inputs() -> Vec<Point> {
    let mut all = Vec::new();
    let mut add = |what: String, chip: &'static str, unit, published, model: Box<dyn Fn() -> f64>| {
        all.push(Point { what, source: None, chip, unit, published, memory: false, model });
    };
    for name in ["h200", "h100-sxm", "a100", "rtx-5090", "rtx-4090", "rtx-3090", "t4"] {
        let chip = named(name);
        let l1 = chip.l1.value / chip.clock.value;
        add("a load that hits L1".into(), name, "ns", l1, Box::new(move || chase(chip, 128, true)));
        let l2 = (chip.l2[0].value + chip.l2[1].value) / 2.0;
        // 4 MB.
        add("a load that hits L2".into(), name, "ns", l2, Box::new(move || chase(chip, 32768, true)));
        let dram = chip.dram.value;
        add("a load from memory".into(), name, "ns", dram, Box::new(move || chase(chip, 8192, false)));
    }
    // Barriers were measured on a B300.
    for (threads, published) in [(128, 20.0), (256, 28.0), (512, 45.0), (1024, 77.0)] {
        let model = Box::new(move || waiting(named("h100-sxm"), "barriers", threads));
        add(format!("a barrier of {threads} threads"), "h100-sxm", "clocks", published, model);
    }
    let (chip, model) = (named("h100-sxm"), |chip| waiting(chip, "fences", 256) / chip.clock.value);
    add("a fence by each of 256 threads".into(), "h100-sxm", "ns", 929.0 / 1.98, Box::new(move || model(chip)));
    // Lanes a clock: of an H100 what the programming guide has, but 111.5 that were measured; of an RTX 5070 Ti measured.
    let hopper = [("ffma", 111.5), ("imad", 64.0), ("dp4a", 64.0), ("lop3", 64.0), ("popc", 16.0), ("shfl", 16.0)];
    let blackwell = [("ffma", 122.7), ("imad", 63.0), ("dp4a", 63.0), ("lop3", 63.0), ("popc", 16.0), ("shfl", 16.0)];
    for (chip, rates) in [("h100-sxm", hopper), ("rtx-5070-ti", blackwell)] {
        for (name, published) in rates {
            let model = Box::new(move || rate(named(chip), name));
            add(name.to_uppercase(), chip, "lanes", published, model);
        }
    }
    all
}

#[test]
fn some_rows_of_the_table_are_what_the_clock_says() {
    points::hold(points().iter().chain(&inputs()).step_by(7));
}

#[test]
fn barriers_cost_by_their_warps_and_fences_what_was_published() {
    let chip = named("h100-sxm");
    let [few, many] = [128, 1024].map(|threads| waiting(chip, "barriers", threads));
    assert!((18.0..=23.0).contains(&few) && (73.0..=81.0).contains(&many), "{few} and {many} clocks");
    let fence = waiting(chip, "fences", 256) / chip.clock.value;
    assert!((460.0..=480.0).contains(&fence), "{fence} ns");
}

#[test]
#[ignore = "seconds even on an idle machine; .ci/long runs it in a release build"]
fn the_table_is_what_the_clock_says() {
    points::hold_table("microbenchmarks", "program", &points());
    points::hold_table("inputs", "program", &inputs());
}
