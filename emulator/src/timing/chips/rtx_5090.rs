//! GeForce RTX 5090, 32 GB of GDDR7.

use super::{ANSWER, ATOMIC, BARRIER, BENCHES, BOOST, COPY, GUIDE, HOST, LINK, NONE, PORT, READS, SHEET, UNIT};
use crate::machine::chip::{ChipFile, Origin, of};

const TI: Origin = Origin::Published("notes on an RTX 5070 Ti");
const OTHER: Origin = Origin::Derived("another chip of sm_120; RRZE-HPC/gpu-benches");

pub(super) const CHIP: ChipFile = ChipFile {
    name: "rtx-5090",
    sm: (12, 0),
    multiprocessors: 170,
    clock: of(2.407, SHEET),
    tensor_clock: of(2.407, BOOST),
    fma: of(122.7, TI),
    heavy: of(63.0, TI),
    alu: of(63.0, TI),
    double: of(2.0, GUIDE),
    half: of(64.0, GUIDE),
    convert: Some(of(63.6, TI)),
    sixteen: of(16.0, TI),
    tensor_half: of(256.0, TI),
    tensor_int8: of(1018.0, TI),
    latency: of(4.0, Origin::Derived("as all since Turing")),
    sixteen_latency: of(23.0, Origin::Derived("Turing's")),
    shuffle_latency: of(34.0, Origin::Derived("as a load from shared memory")),
    tensor_latency: of(35.0, TI),
    branch: of(10.0, NONE),
    barrier: BARRIER,
    fence: None,
    turn: of(200.0, Origin::Guess("as other chips")),
    request: of(2.0, UNIT),
    shared: [of(34.0, TI), of(34.0, TI), of(34.0, Origin::Derived("as of smaller ones"))],
    l1_bytes: of(128.0 * 1024.0, SHEET),
    l1: of(44.0, BENCHES),
    port: of(64.0, PORT),
    l2_bytes: of(96.0 * 1048576.0, SHEET),
    l2: [of(360.0 / 2.86, BENCHES), of(700.0 / 2.86, Origin::Derived("an RTX 5070 Ti's far half"))],
    l2_bandwidth: of(5000.0, Origin::Guess("as the RTX 4090's")),
    slices: of(64.0, NONE),
    dram: of(936.0 / 2.86, BENCHES),
    dram_bandwidth: of(1686.0, READS),
    dram_peak: of(1792.0, SHEET),
    channels: of(64.0, Origin::Derived("sixteen chips of four channels")),
    bulk: of(105.0, Origin::Derived("H800's")),
    atomic: ATOMIC,
    host: HOST,
    answer: ANSWER,
    launch: of(0.78, OTHER),
    node: of(0.39, OTHER),
    programmatic: of(0.30, OTHER),
    copy: COPY,
    link: of(64.0, LINK),
};
