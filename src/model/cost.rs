//! A model of the time per token, from bytes, instructions and latencies. A calculation, not a measurement: say so
//! wherever its figures are printed.
//!
//! A token is a sequence of phases. In each, every block reads its share of the weights or of the KV cache and works on
//! it. A phase takes as long as the heaviest block: its bytes at its part of the bandwidth, or its instructions at a
//! multiprocessor's issue rate, whichever takes longer. Between phases the path hands results on, by a launch, a node
//! of a graph or a grid-wide barrier. Phases do not overlap, except in [`Way::PersistentRing`], whose ring in shared
//! memory keeps the bandwidth busy.
//!
//! Left out: vectors between phases, which stay in the L2 cache; the read of `x` by every block; the host; clocks that
//! fall under load.

use crate::shape::table::{KV_CHUNK, rows_per_tile};
use crate::shape::{ModelShape, SUPER_BLOCK, WeightType};

/// A chip's figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chip {
    /// Its name.
    pub name: &'static str,
    /// Multiprocessors: the persistent path has a block on each.
    pub multiprocessors: u32,
    /// Bytes per second of its memory, by the vendor's data sheet.
    pub bandwidth: f64,
    /// Clock in Hz, under load.
    pub clock: f64,
    /// Bytes of a block's shared memory that could hold weights read ahead.
    pub ring_bytes: u32,
}

/// The chips of the table. Bandwidth and multiprocessors: NVIDIA's data sheets (H200 SXM, H100 SXM, GeForce RTX 4090,
/// Jetson AGX Orin 64 GB); clock of H100 and H200: 1.755 GHz, of the others the sheet's boost clock; ring: shared memory
/// per block of compute capability 9.0, 8.9 and 8.7, less 48 KB for everything else.
pub const CHIPS: [Chip; 4] = [
    Chip { name: "H200", multiprocessors: 132, bandwidth: 4.8e12, clock: 1.755e9, ring_bytes: 179 << 10 },
    Chip { name: "H100", multiprocessors: 132, bandwidth: 3.35e12, clock: 1.755e9, ring_bytes: 179 << 10 },
    Chip { name: "RTX 4090", multiprocessors: 128, bandwidth: 1.008e12, clock: 2.52e9, ring_bytes: 51 << 10 },
    Chip { name: "Orin", multiprocessors: 16, bandwidth: 2.048e11, clock: 1.3e9, ring_bytes: 115 << 10 },
];

/// The part of the bandwidth that plain streaming reads reach: 92 to 93 % in published measurements.
pub const STREAMING: f64 = 0.92;
/// Thread-instructions that a multiprocessor issues per clock: four schedulers of 32 lanes, on all chips of the table.
pub const LANES_PER_CLOCK: f64 = 128.0;
/// Seconds from one kernel of a stream to the next; published: 1.54 us.
pub const LAUNCH: f64 = 1.54e-6;
/// Seconds from one kernel node of a graph to the next; published: 0.83 us.
pub const GRAPH_NODE: f64 = 0.83e-6;
/// Seconds from a kernel's begin until its first loads have arrived, with the memory system busy: 0.6 to 1.0 us.
pub const FIRST_LOAD: f64 = 0.8e-6;
/// Seconds of a barrier over all multiprocessors with the first dependent loads behind it: 1 to 2 us.
pub const BARRIER: f64 = 1.5e-6;

/// A way of running a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// A launch for each fused kernel.
    Stream,
    /// The same kernels, captured once and replayed.
    Graph,
    /// One cooperative launch, a barrier for each dependency.
    Persistent,
    /// As that, with weights read ahead into shared memory while a barrier is waited for. Not built yet.
    PersistentRing,
}

impl Way {
    /// Every way.
    pub const ALL: [Way; 4] = [Way::Stream, Way::Graph, Way::Persistent, Way::PersistentRing];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Way::Stream => "stream",
            Way::Graph => "graph",
            Way::Persistent => "persistent",
            Way::PersistentRing => "persistent + ring",
        }
    }

    /// Seconds that are paid at the end of each phase.
    fn hand_over(self, chip: &Chip) -> f64 {
        match self {
            Way::Stream => LAUNCH + FIRST_LOAD,
            Way::Graph => GRAPH_NODE + FIRST_LOAD,
            Way::Persistent => BARRIER,
            Way::PersistentRing => {
                let ring = f64::from(chip.ring_bytes) * f64::from(chip.multiprocessors);
                (BARRIER - ring / (chip.bandwidth * STREAMING)).max(0.0)
            }
        }
    }
}

/// Thread-instructions per weight of a matrix-vector product, unpacking included: counted, not guessed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Instructions {
    /// Of Q4_K.
    pub q4_k: f64,
    /// Of Q6_K.
    pub q6_k: f64,
    /// Of an element of a vector that a block stages: normalised, and rounded in fast numerics.
    pub staging: f64,
}

impl Instructions {
    /// Those of fast numerics at sm_90. Products as NVIDIA's assembler makes them (`codegen/loops.txt`, held by a test);
    /// staging without the second plane, which few super-blocks have, counted in the same text by hand.
    pub const FAST: Instructions = Instructions { q4_k: 1.035, q6_k: 1.723, staging: 10.0 };
}

/// One phase of a token: work between two dependencies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phase {
    /// Its name.
    pub name: &'static str,
    /// Bytes that all blocks read together.
    pub bytes: u64,
    /// Weights in Q4_K among them.
    pub q4_k: u64,
    /// Weights in Q6_K among them.
    pub q6_k: u64,
    /// Elements of the vector that every block stages.
    pub staged: u32,
    /// Pieces that are not divided between blocks: tiles of rows, or chunks of a KV head.
    pub pieces: u64,
    /// Whether it is a phase on the persistent path too, where blocks recompute what small kernels do elsewhere.
    pub persistent: bool,
}

impl Phase {
    /// Bytes of the block that has most of them.
    pub fn heaviest_block(&self, blocks: u32) -> f64 {
        self.bytes as f64 * self.heaviest_part(blocks)
    }

    /// The heaviest block's part of the whole.
    fn heaviest_part(&self, blocks: u32) -> f64 {
        match self.pieces {
            0 => 0.0,
            pieces => pieces.div_ceil(u64::from(blocks.max(1))) as f64 / pieces as f64,
        }
    }
}

/// Whether llama.cpp's Q4_K_M has `attn_v` and `ffn_down` of this layer in Q6_K.
fn more_bits(layer: u32, layers: u32) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// The type that llama.cpp stores instead where rows are not whole super-blocks.
fn mixed(ty: WeightType, k: u32) -> WeightType {
    match ty {
        WeightType::Q4_K if !k.is_multiple_of(SUPER_BLOCK) => WeightType::Q5_0,
        WeightType::Q6_K if !k.is_multiple_of(SUPER_BLOCK) => WeightType::Q8_0,
        ty => ty,
    }
}

/// Adds matrices of `[k, n]` to a phase.
fn matrices(name: &'static str, of: &[(u32, u32, WeightType)]) -> Phase {
    let staged = of.first().map_or(0, |(k, ..)| *k);
    let mut phase = Phase { name, bytes: 0, q4_k: 0, q6_k: 0, staged, pieces: 0, persistent: true };
    for &(k, n, ty) in of {
        let ty = mixed(ty, k);
        let weights = u64::from(k) * u64::from(n);
        phase.bytes += ty.ggml().row_bytes(u64::from(k)).unwrap_or(0) * u64::from(n);
        if ty == WeightType::Q6_K {
            phase.q6_k += weights
        } else {
            phase.q4_k += weights
        }
        phase.pieces += u64::from(n.div_ceil(rows_per_tile(k)));
    }
    phase
}

/// The phases of the token at `position`, in order, for a model in llama.cpp's Q4_K_M mix and a cache with elements of
/// `kv_bytes` bytes.
pub fn phases(shape: &ModelShape, position: u32, kv_bytes: u32) -> Vec<Phase> {
    use WeightType::{Q4_K, Q6_K};
    let ModelShape { hidden, ffn, layers, kv_heads, head_dim, .. } = *shape;
    let (q_dim, kv_dim) = (shape.q_dim(), shape.kv_dim());
    let small = |name| Phase { name, bytes: 0, q4_k: 0, q6_k: 0, staged: 0, pieces: 1, persistent: false };
    let length = u64::from(position) + 1;
    let chunks = length.div_ceil(u64::from(KV_CHUNK));
    let attention = Phase {
        bytes: length * 2 * u64::from(kv_heads) * u64::from(head_dim) * u64::from(kv_bytes),
        pieces: chunks * u64::from(kv_heads),
        persistent: true,
        ..small("attention")
    };
    let mut all = vec![small("embedding")];
    for layer in 0..layers {
        let some = if more_bits(layer, layers) { Q6_K } else { Q4_K };
        all.push(matrices("qkv", &[(hidden, q_dim, Q4_K), (hidden, kv_dim, Q4_K), (hidden, kv_dim, some)]));
        all.push(small("qk-norm, rope, kv write"));
        all.push(attention);
        if chunks > 1 {
            all.push(small("attention, reduce"));
        }
        all.push(matrices("attention output", &[(q_dim, hidden, Q4_K)]));
        let mut gate_up = matrices("gate and up", &[(hidden, ffn, Q4_K), (hidden, ffn, Q4_K)]);
        gate_up.pieces /= 2; // rows of both are worked on together
        all.push(gate_up);
        all.push(matrices("down", &[(ffn, hidden, some)]));
    }
    all.push(matrices("head", &[(hidden, shape.vocab, Q6_K)]));
    all.push(small("argmax"));
    all
}

/// The bound of a token's time: what most of it is spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bound {
    /// Reading weights and cache.
    Bandwidth,
    /// Issuing instructions.
    Issue,
    /// Launches or barriers, and the latency behind them.
    Latency,
}

impl Bound {
    /// In a word.
    pub const fn name(self) -> &'static str {
        match self {
            Bound::Bandwidth => "bandwidth",
            Bound::Issue => "issue",
            Bound::Latency => "latency",
        }
    }
}

/// The modelled time of a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Seconds of phases that reading bounds.
    pub bandwidth: f64,
    /// Seconds of phases that instructions bound.
    pub issue: f64,
    /// Seconds between phases.
    pub latency: f64,
    /// Launches, nodes or barriers.
    pub hand_overs: u32,
}

impl Prediction {
    /// Seconds of a token.
    pub fn seconds(&self) -> f64 {
        self.bandwidth + self.issue + self.latency
    }

    /// What takes most of the time.
    pub fn bound(&self) -> Bound {
        let of = [(Bound::Bandwidth, self.bandwidth), (Bound::Issue, self.issue), (Bound::Latency, self.latency)];
        of.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(Bound::Bandwidth, |most| most.0)
    }
}

/// The model: the time of a token with these phases.
pub fn predict(phases: &[Phase], chip: &Chip, way: Way, instructions: Instructions) -> Prediction {
    let persistent = matches!(way, Way::Persistent | Way::PersistentRing);
    let blocks = f64::from(chip.multiprocessors);
    let mut sum = Prediction { bandwidth: 0.0, issue: 0.0, latency: 0.0, hand_overs: 0 };
    for phase in phases.iter().filter(|phase| phase.persistent || !persistent) {
        let part = phase.heaviest_part(chip.multiprocessors);
        let read = phase.bytes as f64 * part / (chip.bandwidth * STREAMING / blocks);
        let count = phase.q4_k as f64 * instructions.q4_k + phase.q6_k as f64 * instructions.q6_k;
        let issue = count * part / (LANES_PER_CLOCK * chip.clock);
        if issue > read {
            sum.issue += issue;
        } else {
            sum.bandwidth += read;
        }
        sum.latency += way.hand_over(chip);
        // Weights wait for the vector, but in a ring.
        if way != Way::PersistentRing {
            sum.latency += f64::from(phase.staged) * instructions.staging / (LANES_PER_CLOCK * chip.clock);
        }
        sum.hand_overs += 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::presets;

    fn preset(name: &str) -> ModelShape {
        presets::by_name(name).expect("a preset").shape
    }

    const FREE: Instructions = Instructions { q4_k: 0.0, q6_k: 0.0, staging: 0.0 };

    #[test]
    fn weights_of_a_token_have_the_published_bytes() {
        let published = [
            ("qwen3b", 1.924e9),
            ("qwen2-5-7b", 4.371e9),
            ("qwen3-0-6b", 0.391e9),
            ("qwen3-1-7b", 1.102e9),
            ("qwen3-4b", 2.491e9),
            ("qwen3-8b", 4.672e9),
            ("qwen3-14b", 8.558e9),
        ];
        for (name, expected) in published {
            let phases = phases(&preset(name), 0, 2);
            let bytes: u64 = phases.iter().filter(|phase| phase.name != "attention").map(|phase| phase.bytes).sum();
            let error = bytes as f64 / expected - 1.0;
            assert!(error.abs() < 0.01, "{name}: {bytes} bytes, {:.2} % off", 100.0 * error);
        }
    }

    #[test]
    fn memory_and_disk_in_the_readme_are_those_of_the_shapes() {
        let readme = include_str!("../../README.md");
        let mut rows = 0;
        for preset in presets::all().filter(|preset| preset.model.starts_with("Qwen")) {
            let shape = preset.shape;
            let of_token = phases(&shape, 0, 2).into_iter().filter(|phase| phase.name != "attention");
            let [hidden, vocab] = [shape.hidden, shape.vocab].map(u64::from);
            let embedding = mixed(WeightType::Q4_K, shape.hidden).tensor_bytes(&[hidden, vocab]).expect("whole blocks");
            let file = of_token.map(|phase| phase.bytes).sum::<u64>() + if shape.tied_head { 0 } else { embedding };
            let cache = |tokens: u32| (u64::from(tokens) * shape.kv_bytes_per_token(2)) as f64;
            let (file, some, full) = (file as f64 / 1e9, cache(1024) / 1e6, cache(shape.context) / 1e9);
            let row = format!("| {} | {file:.1} GB | {some:.0} MB | {full:.1} GB |", preset.model);
            assert!(readme.contains(&row), "{row}");
            rows += 1;
        }
        assert_eq!(rows, 10);
    }

    #[test]
    fn cache_bytes_grow_with_the_position() {
        let shape = preset("qwen3-8b");
        for position in [0, 1, 127, 128, 1000] {
            let phases = phases(&shape, position, 2);
            let cache: u64 = phases.iter().filter(|phase| phase.name == "attention").map(|phase| phase.bytes).sum();
            assert_eq!(cache, u64::from(position + 1) * 147_456);
        }
    }

    #[test]
    fn five_dependencies_a_layer_and_one_for_the_head() {
        let shape = preset("qwen3b");
        let prediction = predict(&phases(&shape, 500, 2), &CHIPS[0], Way::Persistent, FREE);
        assert_eq!(prediction.hand_overs, 5 * shape.layers + 1);
        let expected = f64::from(prediction.hand_overs) * 1.5e-6;
        assert!((prediction.latency / expected - 1.0).abs() < 1e-12);
    }

    #[test]
    fn no_way_is_faster_than_the_bandwidth() {
        for chip in &CHIPS {
            let phases = phases(&preset("qwen3-8b"), 100, 2);
            let bytes: u64 = phases.iter().map(|phase| phase.bytes).sum();
            let least = bytes as f64 / (chip.bandwidth * STREAMING);
            for way in Way::ALL {
                let prediction = predict(&phases, chip, way, FREE);
                assert!(prediction.seconds() >= least, "{} {}", chip.name, way.name());
                // Shares that are not even cost something, but not much.
                assert!(prediction.bandwidth < 1.1 * least, "{} {}", chip.name, way.name());
            }
        }
    }

    #[test]
    fn issue_bounds_where_instructions_take_longer_than_bytes() {
        // H200: 132 * 128 * 1.755e9 instructions for 4.8e12 / 0.5625 weights of Q4_K a second are 3.5 for each.
        let one = [matrices("one", &[(4096, 132 * 2 * 64, WeightType::Q4_K)])];
        let balance = LANES_PER_CLOCK * 132.0 * 1.755e9 / (4.8e12 * STREAMING / (144.0 / 256.0));
        assert!((balance * STREAMING - 3.47).abs() < 0.01, "{balance}");
        for (factor, bound) in [(0.99, Bound::Bandwidth), (1.01, Bound::Issue)] {
            let instructions = Instructions { q4_k: balance * factor, ..FREE };
            let prediction = predict(&one, &CHIPS[0], Way::Persistent, instructions);
            assert_eq!(prediction.bound(), bound, "{factor} of the balance");
        }
    }

    #[test]
    fn fast_instructions_are_those_recorded_of_the_assembler() {
        let recorded = include_str!("../../codegen/loops.txt");
        for (ty, expected) in [("Q4_K", Instructions::FAST.q4_k), ("Q6_K", Instructions::FAST.q6_k)] {
            let row = recorded
                .lines()
                .map(|line| line.split_whitespace().collect::<Vec<_>>())
                .find(|cells| cells.starts_with(&["qwen3-8b.stream_fast", "products", ty, "sm_90"]));
            // From the end: each, warps, waits, KB.
            let each: f64 = row.and_then(|cells| cells.iter().rev().nth(3)?.parse().ok()).expect("a row of products");
            assert_eq!(each, expected, "{ty}");
        }
    }

    #[test]
    fn the_heaviest_block_has_whole_pieces() {
        let phase = Phase { name: "a", bytes: 1000, q4_k: 0, q6_k: 0, staged: 0, pieces: 10, persistent: true };
        assert_eq!(phase.heaviest_block(1), 1000.0);
        assert_eq!(phase.heaviest_block(3), 400.0);
        assert_eq!(phase.heaviest_block(10), 100.0);
        assert_eq!(phase.heaviest_block(132), 100.0);
    }

    #[test]
    fn a_deep_ring_hides_the_barrier_where_it_lasts_as_long() {
        // 5 us of an H200's bandwidth are more than a barrier.
        assert_eq!(Way::PersistentRing.hand_over(&CHIPS[0]), 0.0);
        let shallow = Chip { ring_bytes: 1 << 10, ..CHIPS[0] };
        let hidden = 132.0 * 1024.0 / (4.8e12 * STREAMING);
        assert!((Way::PersistentRing.hand_over(&shallow) - (1.5e-6 - hidden)).abs() < 1e-12);
    }
}
