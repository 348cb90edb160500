//! GeForce RTX 4090, 24 GB of GDDR6X.

use super::{ANSWER, ATOMIC, BARRIER, BOOST, COPY, EARLIER, GUIDE, HOST, LINK, MICRO, NONE, PORT, READS, SHEET, UNIT};
use crate::machine::chip::{ChipFile, Origin, of};

const CYCLES: Origin = Origin::Derived("the middle of published cycles at 2.38 GHz; arabel1a and others");
const L40: Origin = Origin::Derived("L40's; RRZE-HPC/gpu-benches");

pub(super) const CHIP: ChipFile = ChipFile {
    name: "rtx-4090",
    sm: (8, 9),
    multiprocessors: 128,
    clock: of(2.52, SHEET),
    tensor_clock: of(2.52, BOOST),
    fma: of(128.0, GUIDE),
    heavy: of(64.0, GUIDE),
    alu: of(64.0, GUIDE),
    double: of(2.0, GUIDE),
    half: of(64.0, GUIDE),
    convert: Some(of(64.0, Origin::Guess("I2FP on the ALU, as measured on Blackwell"))),
    sixteen: of(16.0, GUIDE),
    tensor_half: of(512.0, MICRO),
    tensor_int8: of(1060.0, MICRO),
    warpgroup_int8: None,
    latency: of(4.0, MICRO),
    sixteen_latency: of(23.0, Origin::Derived("Turing's")),
    shuffle_latency: of(24.0, Origin::Derived("as a load from shared memory")),
    tensor_latency: of(35.0, Origin::Derived("an RTX 5070 Ti's")),
    branch: of(10.0, NONE),
    barrier: BARRIER,
    fence: None,
    turn: of(200.0, Origin::Guess("as other chips")),
    request: of(2.0, UNIT),
    shared: [
        of(24.0, Origin::Derived("Ampere's")),
        of(24.0, Origin::Derived("Ampere's")),
        of(26.0, Origin::Derived("Ampere's")),
    ],
    l1_bytes: of(128.0 * 1024.0, SHEET),
    l1: of(38.0, Origin::Derived("the middle of 36 to 40; arabel1a and others")),
    port: of(64.0, PORT),
    l2_bytes: of(72.0 * 1048576.0, SHEET),
    l2: [of(290.0 / 2.38, CYCLES), of(290.0 / 2.38, CYCLES)],
    l2_bandwidth: of(5000.0, READS),
    slices: of(48.0, NONE),
    dram: of(603.0 / 2.38, CYCLES),
    dram_bandwidth: of(955.0, READS),
    dram_peak: of(1008.0, SHEET),
    channels: of(24.0, Origin::Derived("twelve chips of two channels")),
    bulk: of(105.0, Origin::Derived("never used: there are no bulk copies")),
    atomic: ATOMIC,
    host: HOST,
    answer: ANSWER,
    launch: of(1.64, L40),
    node: of(0.96, L40),
    programmatic: of(0.96, EARLIER),
    copy: COPY,
    link: of(32.0, LINK),
};
