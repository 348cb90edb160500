//! The products of a layer and of the head, with tensors of mixed types found through the table.

use kiln_codegen::kernels::{Phase, PhaseKernel};
use kiln_shape::TensorRole::{self, *};
use kiln_shape::{Family, ModelShape, WeightType};

use crate::compare::{assert_close_sums, assert_same_bits};
use crate::norm::rms_norm;
use crate::quantised::Matrix;
use crate::random::Random;
use crate::rounding;
use crate::support::{Arg, Gpu, Table, Weights, every_schedule, gpu};

const EPS: f32 = 0.0625;
const VOCAB: usize = 517;
const LAYERS: u32 = 2;
/// The layer that is run; the others' entries lead nowhere.
const LAYER: u32 = 1;

pub(crate) fn shape(family: Family, hidden: u32, heads: u32, kv_heads: u32, head_dim: u32, ffn: u32) -> ModelShape {
    ModelShape {
        qkv_bias: family.has_qkv_bias(),
        qk_norm: family.has_qk_norm(),
        rope: family.rope(),
        hidden,
        ffn,
        heads,
        kv_heads,
        head_dim,
        layers: LAYERS,
        vocab: VOCAB as u32,
        tied_head: false,
        rope_theta: 1e6,
        rms_eps: EPS,
        context: 64,
    }
}

/// A phase with its tensors: matrices in the order of use, the vectors that go with them.
pub(crate) struct Case {
    phase: Phase,
    shape: ModelShape,
    x: Vec<f32>,
    /// What is in the output before.
    y: Vec<f32>,
    gamma: Vec<f32>,
    matrices: Vec<(TensorRole, Matrix)>,
    biases: Vec<(TensorRole, Vec<f32>)>,
}

impl Case {
    /// Types are dealt to the matrices from a random place of the list on.
    pub(crate) fn new(phase: Phase, shape: ModelShape, random: &mut Random) -> Case {
        let ModelShape { hidden, ffn, .. } = shape;
        let (q_dim, kv_dim) = (shape.q_dim(), shape.kv_dim());
        let (k, roles): (u32, &[(TensorRole, u32)]) = match phase {
            Phase::Qkv => (hidden, &[(AttnQ, q_dim), (AttnK, kv_dim), (AttnV, kv_dim)]),
            Phase::AttentionOutput => (q_dim, &[(TensorRole::AttnOutput, hidden)]),
            Phase::GateUp => (hidden, &[(FfnGate, ffn), (FfnUp, ffn)]),
            Phase::Down => (ffn, &[(FfnDown, hidden)]),
            Phase::Head => (hidden, &[(TensorRole::Output, VOCAB as u32)]),
        };
        let first = random.below(WeightType::ALL.len() as u32) as usize;
        let types = WeightType::ALL.iter().cycle().skip(first).filter(|ty| k.is_multiple_of(ty.block_len()));
        let matrices: Vec<_> = roles
            .iter()
            .zip(types)
            .map(|(&(role, n), &ty)| (role, Matrix::random(ty, n as usize, k as usize, random)))
            .collect();
        let rows = matrices.iter().map(|(_, matrix)| matrix.n).sum::<usize>();
        let rows = if phase == Phase::GateUp { rows / 2 } else { rows };
        let biases = match (phase, shape.qkv_bias) {
            (Phase::Qkv, true) => vec![(AttnQBias, q_dim), (AttnKBias, kv_dim), (AttnVBias, kv_dim)],
            _ => Vec::new(),
        };
        Case {
            phase,
            shape,
            x: random.floats(k as usize, 1.0),
            y: random.floats(rows, 4.0),
            gamma: random.floats(k as usize, 1.0),
            matrices,
            biases: biases.into_iter().map(|(role, n)| (role, random.floats(n as usize, 4.0))).collect(),
        }
    }

    /// Bytes that a launch must read and write.
    pub(crate) fn bytes(&self) -> usize {
        let matrices: usize = self.matrices.iter().map(|(_, matrix)| matrix.bytes.len()).sum();
        let biases: usize = self.biases.iter().map(|(_, bias)| bias.len()).sum();
        let gamma = if self.norm().is_some() { self.gamma.len() } else { self.y.len() };
        matrices + 4 * (biases + self.x.len() + gamma + self.y.len())
    }

    fn norm(&self) -> Option<TensorRole> {
        match self.phase {
            Phase::Qkv => Some(AttnNorm),
            Phase::GateUp => Some(FfnNorm),
            Phase::Head => Some(OutputNorm),
            Phase::AttentionOutput | Phase::Down => None,
        }
    }

    pub(crate) fn expected(&self) -> Vec<f64> {
        self.expected_and_magnitudes().0
    }

    /// The result in float64, and the magnitudes of what its elements are sums of.
    fn expected_and_magnitudes(&self) -> (Vec<f64>, Vec<f64>) {
        let x: Vec<f64> = self.x.iter().map(|x| f64::from(*x)).collect();
        let x = if self.norm().is_some() { rms_norm(&x, &self.gamma, EPS.into()) } else { x };
        let products: Vec<Vec<f64>> = self.matrices.iter().map(|(_, matrix)| matrix.times(&x)).collect();
        let magnitudes: Vec<Vec<f64>> = self.matrices.iter().map(|(_, matrix)| matrix.magnitudes(&x)).collect();
        if let ([gate, up], [of_gate, of_up]) = (products.as_slice(), magnitudes.as_slice()) {
            let silu = gate.iter().map(|gate| gate / (1.0 + (-gate).exp()));
            // An error of either sum, as large as its terms let it be, through the product; SiLU is at most 1.1 steep.
            let terms = silu.zip(up).zip(of_gate.iter().zip(of_up));
            return terms
                .map(|((silu, up), (of_gate, of_up))| (silu * up, 1.1 * of_gate * up.abs() + silu.abs() * of_up))
                .unzip();
        }
        let (mut y, mut magnitudes) = (products.concat(), magnitudes.concat());
        let biases = self.biases.iter().flat_map(|(_, bias)| bias);
        let before = self.y.iter().filter(|_| self.norm().is_none());
        for addends in [biases.collect::<Vec<_>>(), before.collect()] {
            for ((y, magnitude), addend) in y.iter_mut().zip(&mut magnitudes).zip(addends) {
                *y += f64::from(*addend);
                *magnitude += f64::from(addend.abs());
            }
        }
        (y, magnitudes)
    }

    pub(crate) fn run(&self, gpu: &Gpu, grid: u32) -> Vec<f32> {
        let (phase, shape, types) = (self.phase, self.shape, WeightType::ALL.to_vec());
        let kernel = PhaseKernel { phase, shape, types };
        let kernel = gpu.load(kernel);
        let mut table = Table::new(LAYERS);
        let weights: Vec<Weights> = self.matrices.iter().map(|(_, matrix)| gpu.matrix(matrix)).collect();
        for ((role, _), weights) in self.matrices.iter().zip(&weights) {
            table.matrix(*role, LAYER, weights);
        }
        let biases: Vec<_> = self.biases.iter().map(|(role, bias)| (role, gpu.input(bias))).collect();
        for (role, bias) in &biases {
            table.vector(**role, LAYER, bias);
        }
        let gamma = gpu.input(&self.gamma);
        if let Some(role) = self.norm() {
            table.vector(role, LAYER, &gamma);
        }
        let (table, x) = (table.upload(gpu), gpu.input(&self.x));
        let y = if self.norm().is_some() { gpu.output(self.y.len()) } else { gpu.in_out(&self.y) };
        let vocab = VOCAB as u32;
        let phase = self.phase as u32;
        let args = [Arg::from(&table), LAYER.into(), (&x).into(), (&y).into(), EPS.into(), vocab.into(), phase.into()];
        kernel.run([grid, 1, 1], &args);
        y.read()
    }

    #[track_caller]
    fn check(&self, gpu: &Gpu) {
        let types: Vec<WeightType> = self.matrices.iter().map(|(_, matrix)| matrix.ty).collect();
        let what = format!("{:?}, {types:?}, {gpu}", self.phase);
        let one = self.run(gpu, 1);
        let (expected, magnitudes) = self.expected_and_magnitudes();
        let bound = match (self.phase, self.norm()) {
            (Phase::GateUp, _) => rounding::swiglu(self.x.len()),
            (_, Some(_)) => rounding::normalised_product(self.x.len()),
            (_, None) => rounding::product(self.x.len()),
        };
        assert_close_sums(&what, &one, &expected, &magnitudes, bound);
        for grid in [3, 7] {
            assert_same_bits(&format!("{what}, grid {grid}"), &self.run(gpu, grid), &one);
        }
    }
}

#[test]
fn every_phase_matches_float64_with_mixed_types() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        for phase in Phase::ALL {
            for family in [Family::Qwen2, Family::Qwen3] {
                Case::new(phase, shape(family, 256, 4, 2, 64, 768), &mut random).check(gpu);
            }
        }
    });
}

#[test]
fn phases_of_a_published_width_match_float64() {
    let mut random = Random::fresh();
    let gpu = gpu();
    for phase in Phase::ALL {
        // Qwen2.5-1.5B, but for the width of the feed-forward layer.
        Case::new(phase, shape(Family::Qwen2, 1536, 12, 2, 128, 1280), &mut random).check(&gpu);
    }
}

/// Qwen2.5-0.5B: 896 is three and a half super-blocks.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn phases_of_rows_that_end_within_a_super_block_match_float64() {
    let mut random = Random::fresh();
    let gpu = gpu();
    for phase in Phase::ALL {
        Case::new(phase, shape(Family::Qwen2, 896, 14, 2, 64, 4864), &mut random).check(&gpu);
    }
}

#[test]
fn attention_may_be_wider_than_the_residual_stream() {
    let mut random = Random::fresh();
    let gpu = gpu();
    for phase in [Phase::Qkv, Phase::AttentionOutput] {
        Case::new(phase, shape(Family::Qwen3, 512, 8, 4, 128, 512), &mut random).check(&gpu);
    }
}

#[test]
fn a_feed_forward_layer_too_wide_to_be_staged_at_once_is_added_once() {
    let mut random = Random::fresh();
    Case::new(Phase::Down, shape(Family::Qwen3, 256, 4, 2, 64, 12288 + 512), &mut random).check(&gpu());
}

/// `e^-x` overflows for gates below -88: the product is 0 there, and no NaN.
#[test]
fn gates_far_from_zero_saturate() {
    let mut random = Random::fresh();
    let gpu = gpu();
    let mut case = Case::new(Phase::GateUp, shape(Family::Qwen3, 256, 4, 2, 64, 256), &mut random);
    case.gamma.iter_mut().for_each(|gamma| *gamma *= 40.0);
    let gates = case.matrices[0].1.times(&rms_norm(
        &case.x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(),
        &case.gamma,
        EPS.into(),
    ));
    assert!(
        gates.iter().any(|gate| *gate < -110.0) && gates.iter().any(|gate| *gate > 110.0),
        "the test tests nothing"
    );
    case.check(&gpu);
}
