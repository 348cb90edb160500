//! Jetson AGX Orin, 64 GB of LPDDR5 that its processor shares. Most of its figures are guesses.

use super::{GUIDE, NONE, PORT, SHEET, UNIT};
use crate::machine::chip::{ChipFile, Origin, of};

const AMPERE: Origin = Origin::Derived("Ampere's");

pub(super) const CHIP: ChipFile = ChipFile {
    name: "agx-orin",
    sm: (8, 7),
    multiprocessors: 16,
    clock: of(1.3, SHEET),
    fma: of(128.0, GUIDE),
    heavy: of(64.0, GUIDE),
    alu: of(64.0, GUIDE),
    double: of(2.0, GUIDE),
    half: of(128.0, GUIDE),
    convert: Some(of(64.0, Origin::Guess("I2FP on the ALU, as measured on Blackwell"))),
    sixteen: of(16.0, GUIDE),
    tensor_half: of(1024.0, Origin::Derived("the sheet's dense peak by its clock")),
    tensor_int8: of(2048.0, Origin::Derived("the sheet's dense peak by its clock")),
    latency: of(4.0, AMPERE),
    sixteen_latency: of(23.0, Origin::Derived("Turing's")),
    shuffle_latency: of(24.0, Origin::Derived("as a load from shared memory")),
    tensor_latency: of(33.0, Origin::Derived("H100's")),
    branch: of(10.0, NONE),
    barrier: of(20.0, NONE),
    turn: of(200.0, Origin::Guess("as other chips")),
    request: of(2.0, UNIT),
    shared: [of(24.0, AMPERE), of(24.0, AMPERE), of(26.0, AMPERE)],
    l1_bytes: of(192.0 * 1024.0, SHEET),
    l1: of(36.0, AMPERE),
    port: of(64.0, PORT),
    l2_bytes: of(4.0 * 1048576.0, SHEET),
    l2: [of(200.0, NONE), of(200.0, NONE)],
    l2_bandwidth: of(500.0, NONE),
    slices: of(16.0, NONE),
    dram: of(500.0, NONE),
    dram_bandwidth: of(188.0, Origin::Guess("92 % of the peak, as plain reads reach on other chips")),
    dram_peak: of(204.8, SHEET),
    channels: of(16.0, Origin::Derived("256 bits in channels of 16")),
    bulk: of(105.0, Origin::Derived("never used: there are no bulk copies")),
    atomic: of(2.0, NONE),
    launch: of(4.0, NONE),
    node: of(2.0, NONE),
};
