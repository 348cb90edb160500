//! Chip files, one a chip. Values are published microbenchmarks and data sheets: latencies, rates, bandwidths that are
//! reached, clocks. Curves are kept out: they are what the clock is judged by.

mod a100;
mod agx_orin;
mod h100_pcie;
mod h100_sxm;
mod h200;
mod rtx_3090;
mod rtx_4090;
mod rtx_5090;
mod t4;

use crate::machine::chip::{ChipFile, Origin};

/// Every chip file.
const ALL: &[&ChipFile] = &[
    &h200::CHIP,
    &h100_sxm::CHIP,
    &h100_pcie::CHIP,
    &a100::CHIP,
    &rtx_5090::CHIP,
    &rtx_4090::CHIP,
    &rtx_3090::CHIP,
    &t4::CHIP,
    &agx_orin::CHIP,
];

/// Every chip file.
pub fn chip_files() -> &'static [&'static ChipFile] {
    ALL
}

/// The chip file of that name.
pub fn chip_file(name: &str) -> Option<&'static ChipFile> {
    ALL.iter().copied().find(|chip| chip.name == name)
}

const SHEET: Origin = Origin::Published("NVIDIA's data sheet");
const GUIDE: Origin = Origin::Published("CUDA C++ Programming Guide, arithmetic instructions");
const MICRO: Origin = Origin::Published("arabel1a/gpu-micro-bench, HPMLL/NVIDIA-Hopper-Benchmark");
const BENCHES: Origin = Origin::Published("markdewing/AI_kernels, RRZE-HPC/gpu-benches, HPMLL, arabel1a");
const READS: Origin = Origin::Published("read and copy microbenchmarks");
const RRZE: Origin = Origin::Published("RRZE-HPC/gpu-benches");
const UNIT: Origin = Origin::Published("a request every two clocks: notes on an RTX 5070 Ti");
const PORT: Origin = Origin::Published("NVIDIA, A100 whitepaper: 64 bytes a clock from L2 to a multiprocessor");
const TURN: &str =
    "RRZE-HPC/gpu-benches, gpu-stream: what the smallest blocks that only store take each, less 40 clocks of their own";
const NONE: Origin = Origin::Guess("no figure was found");
