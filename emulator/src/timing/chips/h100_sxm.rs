//! H100 SXM5, 80 GB of HBM3.

use super::{GUIDE, MICRO, NONE, PORT, READS, RRZE, SHEET, UNIT};
use crate::machine::chip::{ChipFile, Origin, of};

const CYCLES: Origin = Origin::Derived("the middle of published cycles at 1.98 GHz; HPMLL and others");

pub(super) const CHIP: ChipFile = ChipFile {
    name: "h100-sxm",
    sm: (9, 0),
    multiprocessors: 132,
    clock: of(1.755, Origin::Derived("H100 PCIe's in microbenchmarks; others ran H100 SXM at up to 1.98")),
    fma: of(128.0, GUIDE),
    heavy: of(64.0, GUIDE),
    alu: of(64.0, GUIDE),
    double: of(64.0, GUIDE),
    half: of(128.0, GUIDE),
    convert: Some(of(64.0, Origin::Guess("I2FP on the ALU, as measured on Blackwell"))),
    sixteen: of(16.0, GUIDE),
    tensor_half: of(1311.0, Origin::Derived("64 % of the 2048 that are rated; HPMLL has 63 to 65 %")),
    tensor_int8: of(2621.0, Origin::Derived("64 % of the 4096 that are rated; HPMLL has 63 to 65 %")),
    latency: of(4.0, MICRO),
    sixteen_latency: of(23.0, Origin::Derived("Turing's")),
    shuffle_latency: of(24.0, Origin::Derived("as a load from shared memory")),
    tensor_latency: of(33.0, Origin::Published("HPMLL/NVIDIA-Hopper-Benchmark")),
    branch: of(10.0, NONE),
    barrier: of(20.0, NONE),
    turn: of(228.0 - 40.0 / 1.98, Origin::Derived("H200's")),
    request: of(2.0, UNIT),
    shared: [
        of(28.6, MICRO),
        of(28.6, Origin::Derived("as of 4 bytes, which Ampere has alike")),
        of(30.6, Origin::Derived("2 more than of 4 bytes, as on Ampere")),
    ],
    l1_bytes: of(256.0 * 1024.0, SHEET),
    l1: of(40.0, RRZE),
    port: of(64.0, PORT),
    l2_bytes: of(50.0 * 1048576.0, SHEET),
    l2: [of(260.0 / 1.98, CYCLES), of(291.0 / 1.98, CYCLES)],
    l2_bandwidth: of(5500.0, READS),
    slices: of(80.0, Origin::Derived("A100's")),
    dram: of(635.0 / 1.98, CYCLES),
    dram_bandwidth: of(3089.0, READS),
    dram_peak: of(3350.0, SHEET),
    channels: of(80.0, Origin::Derived("five stacks of sixteen channels")),
    bulk: of(105.0, Origin::Published("microbenchmarks of an H800")),
    atomic: of(2.0, NONE),
    launch: of(2.5, Origin::Derived("H200's; RRZE-HPC/gpu-benches")),
    node: of(1.3, RRZE),
};
