//! Figures of chips, each with where it stands published. None was measured here.

/// A figure of a chip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// What it is.
    pub value: f64,
    /// Where it is from.
    pub origin: Origin,
}

/// Where a figure is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Published, by whom.
    Published(&'static str),
    /// From published figures, how.
    Derived(&'static str),
    /// Nobody's figure, why.
    Guess(&'static str),
}

/// A chip's figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chip {
    /// Its name.
    pub name: &'static str,
    /// Its compute capability, 90 for 9.0.
    pub sm: u32,
    /// Multiprocessors: the persistent path has a block on each.
    pub multiprocessors: u32,
    /// GB/s of its memory on paper.
    pub peak: Figure,
    /// GB/s that reads reach.
    pub read: Figure,
    /// GHz.
    pub clock: Figure,
    /// Nanoseconds of a load from device memory, with nothing else under way.
    pub latency: Figure,
    /// Nanoseconds of a load from the L2 cache.
    pub l2_latency: Figure,
    /// GB/s of the L2 cache.
    pub l2: Figure,
    /// Microseconds from a kernel of a stream to the next.
    pub launch: Figure,
    /// Microseconds from a kernel node of a graph to the next.
    pub node: Figure,
    /// Microseconds of a barrier over all multiprocessors.
    pub barrier: Figure,
    /// Multiply-adds of bytes per clock and multiprocessor by `mma`.
    pub int8: Figure,
    /// The same of halves with f32 sums.
    pub half: Figure,
    /// KB of a block's shared memory that could hold weights read ahead.
    pub ring: Figure,
    /// The shares of the peak that whole models of 4-bit weights were published to reach at batch 1: least and most.
    pub reached: Option<(f64, f64)>,
}

impl Chip {
    /// Its figures by name.
    pub fn figures(&self) -> [(&'static str, Figure); 12] {
        [
            ("peak", self.peak),
            ("read", self.read),
            ("clock", self.clock),
            ("latency", self.latency),
            ("L2 latency", self.l2_latency),
            ("L2 bandwidth", self.l2),
            ("launch", self.launch),
            ("graph node", self.node),
            ("barrier", self.barrier),
            ("int8 products", self.int8),
            ("half products", self.half),
            ("ring", self.ring),
        ]
    }
}

const SHEET: Origin = Origin::Published("NVIDIA's data sheet");
/// Collected from several, who are not told apart there.
const READS: Origin = Origin::Published("read and copy microbenchmarks");
const BENCHES: Origin = Origin::Published("markdewing/AI_kernels, RRZE-HPC/gpu-benches, HPMLL, arabel1a");
/// Steps with 64 KB of traffic each, which is part of the figure.
const RRZE: Origin = Origin::Published("RRZE-HPC/gpu-benches");
const RING: Origin = Origin::Derived("what the ring of Qwen3-8B holds of Q4_K, counted");
const SHARED: Origin = Origin::Derived("the shared memory that a block may have, less 48 KB, at most 160 KB");
const HOPPER: Origin = Origin::Derived("H200's");
const LOAD: Origin = Origin::Derived("H100 PCIe's in microbenchmarks; others ran H100 SXM at up to 1.98");
/// `wgmma`, which prompts have on sm_90 only, reaches the rest.
const SYNC: Origin = Origin::Derived("64 % of the rated peak, which mma.sync reaches in microbenchmarks");
const TENSOR: Origin = Origin::Published("microbenchmarks of mma.sync");
const RATED: Origin = Origin::Derived("the sheet's dense peak by its clock");
const GUESS: Origin = Origin::Guess("no figure was found");

const fn of(value: f64, origin: Origin) -> Figure {
    Figure { value, origin }
}

/// The chips of the tables.
pub const CHIPS: [Chip; 9] = [
    Chip {
        name: "H200",
        sm: 90,
        multiprocessors: 132,
        peak: of(4800.0, SHEET),
        read: of(3888.0, READS),
        clock: of(1.755, LOAD),
        latency: of(690.0 / 1.98, Origin::Derived("GH200's 690 cycles at 1.98 GHz; RRZE-HPC/gpu-benches and others")),
        l2_latency: of(
            281.0 / 1.98,
            Origin::Derived("GH200's 281 cycles at 1.98 GHz; RRZE-HPC/gpu-benches and others"),
        ),
        l2: of(9500.0, READS),
        launch: of(2.5, RRZE),
        node: of(1.28, RRZE),
        barrier: of(1.04, RRZE),
        int8: of(2621.0, SYNC),
        half: of(1311.0, SYNC),
        ring: of(193.0, RING),
        reached: Some((0.27, 0.27)),
    },
    Chip {
        name: "H100 SXM",
        sm: 90,
        multiprocessors: 132,
        peak: of(3350.0, SHEET),
        read: of(3089.0, READS),
        clock: of(1.755, LOAD),
        latency: of(635.0 / 1.98, Origin::Derived("the middle of 570 to 700 cycles at 1.98 GHz; HPMLL and others")),
        l2_latency: of(275.0 / 1.98, Origin::Derived("the middle of 260 to 291 cycles at 1.98 GHz; HPMLL and others")),
        l2: of(5500.0, READS),
        launch: of(2.5, HOPPER),
        node: of(1.3, RRZE),
        barrier: of(1.04, HOPPER),
        int8: of(2621.0, SYNC),
        half: of(1311.0, SYNC),
        ring: of(193.0, RING),
        reached: Some((0.33, 0.37)),
    },
    Chip {
        name: "H100 PCIe",
        sm: 90,
        multiprocessors: 114,
        peak: of(2039.0, SHEET),
        read: of(1942.0, READS),
        clock: of(1.755, LOAD),
        latency: of(653.0 / 1.755, BENCHES),
        l2_latency: of(264.0 / 1.755, BENCHES),
        l2: of(7000.0, READS),
        launch: of(2.5, HOPPER),
        node: of(1.3, Origin::Derived("H100 SXM's")),
        barrier: of(1.04, HOPPER),
        int8: of(2621.0, SYNC),
        half: of(1311.0, SYNC),
        ring: of(193.0, RING),
        reached: None,
    },
    Chip {
        name: "A100-80",
        sm: 80,
        multiprocessors: 108,
        peak: of(2039.0, SHEET),
        read: of(1730.0, READS),
        clock: of(1.41, SHEET),
        latency: of(537.0 / 1.41, Origin::Derived("the middle of 504 to 571 cycles at 1.41 GHz; HPMLL and others")),
        l2_latency: of(
            302.0 / 1.41,
            Origin::Derived("the middle of its near and far halves; RRZE-HPC/gpu-benches and others"),
        ),
        l2: of(5100.0, READS),
        launch: of(2.6, RRZE),
        node: of(1.34, RRZE),
        barrier: of(1.34, RRZE),
        int8: of(2048.0, TENSOR),
        half: of(1024.0, TENSOR),
        ring: of(129.0, RING),
        reached: Some((0.38, 0.54)),
    },
    Chip {
        name: "RTX 5090",
        sm: 120,
        multiprocessors: 170,
        peak: of(1792.0, SHEET),
        read: of(1686.0, READS),
        clock: of(2.407, SHEET),
        latency: of(936.0 / 2.86, BENCHES),
        l2_latency: of(360.0 / 2.86, BENCHES),
        l2: of(5000.0, Origin::Guess("as the RTX 4090's")),
        launch: of(0.78, Origin::Derived("another chip of sm_120; RRZE-HPC/gpu-benches")),
        node: of(0.39, Origin::Derived("another chip of sm_120; RRZE-HPC/gpu-benches")),
        barrier: of(0.82, Origin::Derived("another chip of sm_120; RRZE-HPC/gpu-benches")),
        int8: of(1018.0, Origin::Derived("RTX 5070 Ti's in microbenchmarks")),
        half: of(256.0, Origin::Derived("RTX 5070 Ti's in microbenchmarks")),
        ring: of(64.0, RING),
        reached: Some((0.66, 0.77)),
    },
    Chip {
        name: "RTX 4090",
        sm: 89,
        multiprocessors: 128,
        peak: of(1008.0, SHEET),
        read: of(955.0, READS),
        clock: of(2.52, SHEET),
        latency: of(603.0 / 2.38, Origin::Derived("the middle of what several have; arabel1a and others")),
        l2_latency: of(290.0 / 2.38, Origin::Derived("the middle of what several have; arabel1a and others")),
        l2: of(5000.0, READS),
        launch: of(1.64, Origin::Derived("L40's; RRZE-HPC/gpu-benches")),
        node: of(0.96, Origin::Derived("L40's; RRZE-HPC/gpu-benches")),
        barrier: of(0.66, Origin::Derived("L40's; RRZE-HPC/gpu-benches")),
        int8: of(1060.0, TENSOR),
        half: of(512.0, TENSOR),
        ring: of(64.0, RING),
        reached: Some((0.78, 0.86)),
    },
    Chip {
        name: "RTX 3090",
        sm: 86,
        multiprocessors: 82,
        peak: of(936.0, SHEET),
        read: of(818.0, READS),
        clock: of(1.695, SHEET),
        latency: of(267.0, BENCHES),
        l2_latency: of(140.0, BENCHES),
        l2: of(2500.0, GUESS),
        launch: of(1.54, RRZE),
        node: of(0.83, RRZE),
        barrier: of(0.73, RRZE),
        int8: of(1024.0, RATED),
        half: of(256.0, RATED),
        ring: of(64.0, RING),
        reached: Some((0.66, 0.70)),
    },
    Chip {
        name: "T4",
        sm: 75,
        multiprocessors: 40,
        peak: of(320.0, SHEET),
        read: of(239.0, READS),
        clock: of(1.35, Origin::Guess("below the sheet's boost of 1.59, which 70 W do not hold")),
        latency: of(300.0, Origin::Guess("an RTX 2080 Super has 236 ns at a third more clock")),
        l2_latency: of(150.0, Origin::Guess("an RTX 2080 Super has 116 ns at a third more clock")),
        l2: of(1000.0, GUESS),
        launch: of(2.5, GUESS),
        node: of(1.3, GUESS),
        barrier: of(1.3, GUESS),
        int8: of(1024.0, RATED),
        half: of(512.0, RATED),
        ring: of(16.0, SHARED),
        reached: None,
    },
    Chip {
        name: "AGX Orin",
        sm: 87,
        multiprocessors: 16,
        peak: of(204.8, SHEET),
        read: of(188.0, Origin::Guess("92 % of the peak, as plain reads reach on other chips")),
        clock: of(1.3, SHEET),
        latency: of(500.0, GUESS),
        l2_latency: of(200.0, GUESS),
        l2: of(500.0, GUESS),
        launch: of(4.0, GUESS),
        node: of(2.0, GUESS),
        barrier: of(1.5, GUESS),
        int8: of(2048.0, RATED),
        half: of(1024.0, RATED),
        ring: of(129.0, RING),
        reached: Some((0.66, 0.66)),
    },
];

/// The chip of that name.
pub fn chip(name: &str) -> Option<&'static Chip> {
    CHIPS.iter().find(|chip| chip.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_units() {
        for chip in &CHIPS {
            let name = chip.name;
            for (figure, Figure { value, .. }) in chip.figures() {
                assert!(value.is_finite() && value > 0.0, "{name}: {figure}");
            }
            // GB/s: no memory is faster than its sheet says, no L2 cache slower than its memory.
            assert!((0.7..=1.0).contains(&(chip.read.value / chip.peak.value)), "{name}: read");
            assert!(chip.l2.value > 1.4 * chip.read.value, "{name}: L2");
            assert!((1.0..3.0).contains(&chip.clock.value), "{name}: GHz");
            assert!((200.0..600.0).contains(&chip.latency.value), "{name}: ns");
            assert!((1.5..4.0).contains(&(chip.latency.value / chip.l2_latency.value)), "{name}: ns of L2");
            // Microseconds: a barrier costs no more than a launch, or about as much.
            assert!((0.3..=5.0).contains(&chip.launch.value) && chip.node.value < chip.launch.value, "{name}: us");
            assert!(chip.barrier.value <= 1.06 * chip.launch.value, "{name}: barrier");
            assert!((10.0..=193.0).contains(&chip.ring.value), "{name}: KB");
        }
    }

    #[test]
    fn chips_have_names_of_their_own() {
        for one in &CHIPS {
            assert_eq!(chip(one.name), Some(one));
        }
    }
}
