//! GeForce RTX 5070 Ti, 16 GB of GDDR7.

use super::rtx_5090::CHIP as RTX_5090;
use super::{BENCHES, BOOST, SHEET};
use crate::machine::chip::{ChipFile, Origin, of};

const TI: Origin = Origin::Published("notes on an RTX 5070 Ti");

/// The chip is the RTX 5090's with fewer multiprocessors and half the memory; most of that one's figures are from it.
pub(super) const CHIP: ChipFile = ChipFile {
    name: "rtx-5070-ti",
    multiprocessors: 70,
    clock: of(2.86, TI),
    tensor_clock: of(2.452, BOOST),
    l1: of(45.0, BENCHES),
    l2_bytes: of(48.0 * 1048576.0, SHEET),
    l2: [of(356.0 / 2.86, TI), of(700.0 / 2.86, TI)],
    l2_bandwidth: of(2500.0, Origin::Guess("half the RTX 5090's, which is a guess")),
    slices: of(32.0, Origin::Guess("half the RTX 5090's, which is a guess")),
    dram: of(770.0 / 2.86, BENCHES),
    dram_bandwidth: of(
        854.0,
        Origin::Published("95.3 % of the peak with 16 KB and more in flight: notes on an RTX 5070 Ti"),
    ),
    dram_peak: of(896.0, SHEET),
    channels: of(32.0, Origin::Derived("eight chips of four channels")),
    ..RTX_5090
};
