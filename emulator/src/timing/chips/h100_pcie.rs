//! H100 PCIe, 80 GB of HBM2e.

use super::h100_sxm::CHIP as H100;
use super::{BENCHES, READS, SHEET, TURN, WHITEPAPER};
use crate::machine::chip::{ChipFile, Origin, of};

/// The chip is the H100 SXM's with fewer multiprocessors, the memory is not.
pub(super) const CHIP: ChipFile = ChipFile {
    name: "h100-pcie",
    multiprocessors: 114,
    clock: of(1.755, BENCHES),
    tensor_clock: of(1.62, WHITEPAPER),
    turn: of(256.0 - 40.0 / 1.755, Origin::Derived(TURN)),
    l1: of(33.0, BENCHES),
    l2: [of(264.0 / 1.755, BENCHES), of(403.0 / 1.755, BENCHES)],
    l2_bandwidth: of(7000.0, READS),
    dram: of(653.0 / 1.755, BENCHES),
    dram_bandwidth: of(1942.0, READS),
    dram_peak: of(2039.0, SHEET),
    node: of(1.3, Origin::Derived("H100 SXM's")),
    ..H100
};
