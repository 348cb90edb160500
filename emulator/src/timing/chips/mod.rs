//! Chip files, one a chip. Values are published microbenchmarks and data sheets: latencies, rates, bandwidths that are
//! reached, clocks. Curves are kept out: they are what the clock is judged by.

mod a100;
mod agx_orin;
mod h100_pcie;
mod h100_sxm;
mod h200;
mod rtx_3090;
mod rtx_4090;
mod rtx_5070_ti;
mod rtx_5090;
mod t4;

use crate::machine::chip::{ChipFile, Figure, Origin, of};

/// Every chip file.
const ALL: &[&ChipFile] = &[
    &h200::CHIP,
    &h100_sxm::CHIP,
    &h100_pcie::CHIP,
    &a100::CHIP,
    &rtx_5090::CHIP,
    &rtx_5070_ti::CHIP,
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
const WHITEPAPER: Origin = Origin::Published("NVIDIA, whitepaper: the boost clock that its tensor peaks are of");
const BOOST: Origin = Origin::Derived("the boost clock that the data sheet's tensor peak is of");
const SHARE: Origin = Origin::Derived("of a node what RTX 50 has: 0.30 of 0.39 us, notes on an RTX 5070 Ti");
const LINK: Origin = Origin::Derived("sixteen lanes of PCIe in one direction, on paper");
const EARLIER: Origin = Origin::Derived("a node: there are no programmatic launches before sm_90");
const NONE: Origin = Origin::Guess("no figure was found");

/// Barriers of a block with nothing between them: of a B300 20, 28, 45 and 77 clocks by 4, 8, 16 and 32 warps. Two a warp
/// are also what an H100's and a V100's grow by (hotneutron/amora).
const BARRIER: [Figure; 2] = [
    of(12.0, Origin::Derived("a B300's, less two clocks a warp; ademeure/QuickRunCUDA")),
    of(2.0, Origin::Published("ademeure/QuickRunCUDA of a B300, hotneutron/amora of an H100 and a V100")),
];
const ATOMIC: Figure = of(2.4, Origin::Derived("a B300's slice; ademeure/QuickRunCUDA"));
/// A loop of `__threadfence` by 256 threads. Of other chips it was published by single warps: about a trip to L2 on a B300
/// (272 to 292 clocks, ademeure/QuickRunCUDA).
const HOPPER_FENCE: Figure = of(929.0 / 1.98, Origin::Derived("an H100 SXM's cycles at 1.98 GHz; hotneutron/amora"));
/// Loads from the host's memory, over PCIe.
const HOST: Figure = of(1000.0, Origin::Guess("as network cards read it; none was found of a GPU"));
const ANSWER: Figure = of(3.0, Origin::Guess("three such trips: the word to the host, its look, the word back"));
const COPY: Figure = of(6.0, Origin::Derived("the middle of 5 to 7, Wu et al., arXiv 2602.21548"));
