//! H200 SXM, 141 GB of HBM3e.

use super::h100_sxm::CHIP as H100;
use super::{READS, RRZE, SHARE, SHEET, TURN};
use crate::machine::chip::{ChipFile, Origin, of};

const CYCLES: Origin = Origin::Derived("GH200's cycles at 1.98 GHz; RRZE-HPC/gpu-benches and others");

/// The chip is the H100's, the memory is not.
pub(super) const CHIP: ChipFile = ChipFile {
    name: "h200",
    turn: of(228.0 - 40.0 / 1.98, Origin::Derived(TURN)),
    l2: [of(281.0 / 1.98, CYCLES), of(281.0 / 1.98, CYCLES)],
    l2_bandwidth: of(9500.0, READS),
    dram: of(690.0 / 1.98, CYCLES),
    dram_bandwidth: of(3888.0, READS),
    dram_peak: of(4800.0, SHEET),
    channels: of(96.0, Origin::Derived("six stacks of sixteen channels")),
    launch: of(2.5, RRZE),
    node: of(1.28, RRZE),
    programmatic: of(0.98, SHARE),
    ..H100
};
