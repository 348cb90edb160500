//! Tesla T4, 16 GB of GDDR6.

use super::{ANSWER, BARRIER, COPY, EARLIER, GUIDE, HOST, LINK, NONE, PORT, READS, SHEET, UNIT};
use crate::machine::chip::{ChipFile, Origin, of};

const TURING: Origin = Origin::Published("microbenchmarks of Turing; arabel1a/gpu-micro-bench and others");
const SUPER: &str = "an RTX 2080 Super's, at a third more clock";

pub(super) const CHIP: ChipFile = ChipFile {
    name: "t4",
    sm: (7, 5),
    multiprocessors: 40,
    clock: of(1.35, Origin::Guess("below the sheet's boost of 1.59, which 70 W do not hold")),
    tensor_clock: of(1.35, Origin::Guess("as while tokens are decoded: 70 W bound both")),
    fma: of(64.0, GUIDE),
    heavy: of(64.0, GUIDE),
    alu: of(64.0, GUIDE),
    double: of(2.0, GUIDE),
    half: of(64.0, GUIDE),
    convert: Some(of(16.0, GUIDE)),
    sixteen: of(16.0, GUIDE),
    tensor_half: of(512.0, Origin::Derived("the sheet's dense peak by its clock")),
    tensor_int8: of(1024.0, Origin::Derived("the sheet's dense peak by its clock")),
    warpgroup_int8: None,
    latency: of(4.0, TURING),
    sixteen_latency: of(23.0, TURING),
    shuffle_latency: of(24.0, Origin::Derived("as a load from shared memory")),
    tensor_latency: of(33.0, Origin::Derived("H100's")),
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
    l1_bytes: of(96.0 * 1024.0, SHEET),
    l1: of(32.0, Origin::Guess("as other chips")),
    port: of(64.0, PORT),
    l2_bytes: of(4.0 * 1048576.0, SHEET),
    l2: [of(150.0, Origin::Guess(SUPER)), of(150.0, Origin::Guess(SUPER))],
    l2_bandwidth: of(1000.0, NONE),
    slices: of(32.0, NONE),
    dram: of(300.0, Origin::Guess(SUPER)),
    dram_bandwidth: of(239.0, READS),
    dram_peak: of(320.0, SHEET),
    channels: of(16.0, Origin::Derived("eight chips of two channels")),
    bulk: of(105.0, Origin::Derived("never used: there are no bulk copies")),
    atomic: of(2.0, Origin::Guess("as other chips")),
    host: HOST,
    answer: ANSWER,
    launch: of(2.5, NONE),
    node: of(1.3, NONE),
    programmatic: of(1.3, EARLIER),
    copy: COPY,
    link: of(16.0, LINK),
};
