//! Gemv, with and without the norm in front.

use kiln_codegen::kernels::FusedRmsNormQ4KGemv;
use kiln_codegen::ptx::Dim;
use kiln_shape::WeightType;

use crate::compare::{assert_close_sums, assert_same_bits, relative_l2};
use crate::quantised::Matrix;
use crate::random::Random;
use crate::rounding;
use crate::support::{Arg, Gpu, NULL, every_schedule, gpu};

/// The inputs of a product, and its result in float64.
pub(crate) struct Case {
    pub(crate) kernel: FusedRmsNormQ4KGemv,
    pub(crate) matrix: Matrix,
    pub(crate) x: Vec<f32>,
    pub(crate) gamma: Vec<f32>,
    pub(crate) bias: Vec<f32>,
    pub(crate) residual: Vec<f32>,
    pub(crate) eps: f32,
}

impl Case {
    pub(crate) fn new(kernel: FusedRmsNormQ4KGemv, k: usize, n: usize, random: &mut Random) -> Case {
        let matrix = Matrix::random(kernel.weights, n, k, random);
        // A vector of one sign: the sums that mins and offsets are multiplied with must not cancel.
        let lift = random.symmetric();
        let x = random.floats(k, 1.0).into_iter().map(|x| x + lift).collect();
        let gamma = random.floats(k, 0.5).into_iter().map(|gamma| gamma + 1.0).collect();
        // Large enough to be seen.
        let eps = kernel.epsilon.unwrap_or(0.125);
        Case { kernel, matrix, x, gamma, bias: random.floats(n, 2.0), residual: random.floats(n, 2.0), eps }
    }

    /// The same inputs for another kernel of the same weights.
    pub(crate) fn with_kernel(&self, kernel: FusedRmsNormQ4KGemv) -> Case {
        let Case { matrix, x, gamma, bias, residual, eps, .. } = self;
        let [x, gamma, bias, residual] = [x, gamma, bias, residual].map(Vec::clone);
        Case { kernel, matrix: matrix.clone(), x, gamma, bias, residual, eps: *eps }
    }

    /// The result in float64, and the magnitudes of its sums.
    pub(crate) fn expected(&self) -> (Vec<f64>, Vec<f64>) {
        let x: Vec<f64> = self.x.iter().map(|x| f64::from(*x)).collect();
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let inverse = (mean + f64::from(self.eps)).sqrt().recip();
        let normalised = x.iter().zip(&self.gamma).map(|(x, gamma)| x * inverse * f64::from(*gamma));
        let x = if self.kernel.norm { normalised.collect() } else { x };
        let (mut y, mut magnitudes) = (self.matrix.times(&x), self.matrix.magnitudes(&x));
        for (wanted, addend) in [(self.kernel.bias, &self.bias), (self.kernel.residual, &self.residual)] {
            for ((y, magnitude), addend) in y.iter_mut().zip(&mut magnitudes).zip(addend).filter(|_| wanted) {
                *y += f64::from(*addend);
                *magnitude += f64::from(addend.abs());
            }
        }
        (y, magnitudes)
    }

    pub(crate) fn run(&self, gpu: &Gpu, grid: u32) -> Vec<f32> {
        let loaded = gpu.load(self.kernel.clone());
        let weights = gpu.matrix(&self.matrix);
        let [x, gamma, bias, residual] = [&self.x, &self.gamma, &self.bias, &self.residual].map(|v| gpu.input(v));
        let y = gpu.output::<f32>(self.matrix.n);
        let given = |wanted: bool, arg: Arg| if wanted { arg } else { NULL };
        let mut args = vec![Arg::from(&weights.data), Arg::from(&weights.plane), Arg::from(&x)];
        args.push(given(self.kernel.norm, Arg::from(&gamma)));
        args.push(given(self.kernel.bias, Arg::from(&bias)));
        args.push(given(self.kernel.residual, Arg::from(&residual)));
        args.push(Arg::from(&y));
        if self.kernel.k == Dim::Param {
            args.push(Arg::from(self.matrix.k as u32));
        }
        if self.kernel.n == Dim::Param {
            args.push(Arg::from(self.matrix.n as u32));
        }
        if self.kernel.epsilon.is_none() {
            args.push(Arg::from(self.eps));
        }
        loaded.run([grid, 1, 1], &args);
        y.read()
    }

    /// Runs it on grids of 1, 3 and 8 blocks, holds the first to float64 and the others to the first.
    #[track_caller]
    fn check(&self, gpu: &Gpu) {
        let Matrix { ty, n, k, .. } = self.matrix;
        let dim = if self.kernel.k == Dim::Param { "general" } else { "baked" };
        let what = format!("{}, {ty}, k {k}, n {n}, {dim}, {gpu}", kiln_codegen::Kernel::name(&self.kernel));
        let one = self.run(gpu, 1);
        let (expected, magnitudes) = self.expected();
        let bound = if self.kernel.norm { rounding::normalised_product(k) } else { rounding::product(k) };
        assert_close_sums(&what, &one, &expected, &magnitudes, bound);
        for grid in [3, 8] {
            assert_same_bits(&format!("{what}, grid {grid}"), &self.run(gpu, grid), &one);
        }
    }
}

#[test]
fn products_of_every_type_match_float64() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        for &ty in WeightType::ALL {
            for (k, n) in [(256, 3), (512, 17), (768, 1), (1024, 64), (1536, 17)] {
                let kernel = FusedRmsNormQ4KGemv::new(k, n).with_weights(ty);
                Case::new(kernel, k as usize, n as usize, &mut random).check(gpu);
            }
        }
    });
}

#[test]
fn the_general_kernel_matches_float64() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        for &ty in WeightType::ALL {
            let kernel = FusedRmsNormQ4KGemv::general().with_weights(ty);
            for (k, n) in [(256, 3), (768, 17), (1280, 1)] {
                Case::new(kernel.clone(), k, n, &mut random).check(gpu);
            }
        }
    });
}

/// Rows that end within a super-block, or are shorter than one, in baked and in general kernels; a row that is staged in
/// parts of which the last is cut.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn rows_that_end_within_a_super_block_match_float64() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        for &ty in WeightType::ALL.iter().filter(|ty| ty.block_len() <= 32) {
            let general = FusedRmsNormQ4KGemv::general().with_weights(ty);
            for (k, n) in [(32, 3), (96, 17), (224, 5), (288, 1), (544, 9), (896, 7), (1120, 4)] {
                let baked = FusedRmsNormQ4KGemv::new(k as u32, n as u32).with_weights(ty);
                Case::new(baked, k, n, &mut random).check(gpu);
                Case::new(general.clone(), k, n, &mut random).check(gpu);
            }
        }
    });
    let gpu = gpu();
    for &ty in WeightType::ALL.iter().filter(|ty| ty.block_len() <= 32) {
        let (k, n) = (12288 + 96, 3);
        Case::new(FusedRmsNormQ4KGemv::new(k as u32, n as u32).with_weights(ty), k, n, &mut random).check(&gpu);
        Case::new(FusedRmsNormQ4KGemv::general().with_weights(ty), k, n, &mut random).check(&gpu);
    }
}

#[test]
fn norm_bias_and_residual_come_in_every_combination() {
    let mut random = Random::fresh();
    let gpu = gpu();
    for combination in 0..8 {
        for general in [false, true] {
            let mut kernel = match general {
                false => FusedRmsNormQ4KGemv::new(512, 17).with_epsilon(0.5),
                true => FusedRmsNormQ4KGemv::general(),
            };
            if combination & 1 != 0 {
                kernel = kernel.without_norm();
            }
            if combination & 2 != 0 {
                kernel = kernel.with_bias();
            }
            if combination & 4 != 0 {
                kernel = kernel.with_residual();
            }
            Case::new(kernel, 512, 17, &mut random).check(&gpu);
        }
    }
}

#[test]
fn many_rows_match_float64() {
    let mut random = Random::fresh();
    let gpu = gpu();
    for ty in [WeightType::Q4_K, WeightType::Q6_K] {
        let kernel = FusedRmsNormQ4KGemv::new(2048, 257).with_weights(ty);
        Case::new(kernel, 2048, 257, &mut random).check(&gpu);
    }
}

#[test]
fn wide_rows_match_float64() {
    let mut random = Random::fresh();
    let gpu = gpu();
    for &ty in WeightType::ALL {
        // 25600 is staged in three parts, 11008 is 43 super-blocks, 12288 the widest that is staged at once.
        for (k, n) in [(11008, 3), (12288, 2), (25600, 3)] {
            let kernel = FusedRmsNormQ4KGemv::new(k, n).with_weights(ty);
            Case::new(kernel, k as usize, n as usize, &mut random).check(&gpu);
        }
        let kernel = FusedRmsNormQ4KGemv::general().with_weights(ty);
        Case::new(kernel, 25600, 3, &mut random).check(&gpu);
    }
}

#[test]
fn rows_staged_in_parts_take_bias_and_residual_once() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        let kernel = FusedRmsNormQ4KGemv::new(12288 + 256, 5).with_bias().with_residual();
        Case::new(kernel.clone(), 12288 + 256, 5, &mut random).check(gpu);
        Case::new(kernel.without_norm(), 12288 + 256, 5, &mut random).check(gpu);
    });
}

/// One activation of 1e2 to 1e6 among small ones, as feed-forward layers of real models have them. Half of the rows have
/// no weight there: what stands in the weight's place must not be multiplied by the activation.
#[test]
fn rows_keep_their_accuracy_beside_a_large_activation() {
    let mut random = Random::fresh();
    let gpu = gpu();
    for &ty in WeightType::ALL {
        for (k, n) in [(256usize, 6usize), (1024, 16), (4096, 8), (11008, 4)] {
            for large in [1e2, 1e4, 1e6] {
                let kernel = FusedRmsNormQ4KGemv::new(k as u32, n as u32).with_weights(ty).without_norm();
                let mut case = Case::new(kernel, k, n, &mut random);
                let at = random.below(k as u32) as usize;
                case.x = random.floats(k, 1.0);
                case.x[at] = large * (1.5 + 0.5 * random.symmetric());
                for row in 0..n / 2 {
                    case.matrix.clear(row, at, &mut random);
                }
                let (expected, magnitudes) = case.expected();
                let found = case.run(&gpu, 1);
                let what = format!("{ty}, k {k}, n {n}, {large:e} at {at}");
                assert_close_sums(&what, &found, &expected, &magnitudes, 5e-7);
                let error = relative_l2(&found, &expected);
                assert!(error <= 1e-6, "{what}: relative error {error:.2e} of all rows together");
            }
        }
    }
}

#[test]
fn sizes_that_no_kernel_takes_are_refused() {
    use kiln_codegen::{Kernel, Target};
    let refused = |kernel: FusedRmsNormQ4KGemv| kernel.emit_ptx(Target::DEFAULT[0]).unwrap_err().to_string();
    assert!(refused(FusedRmsNormQ4KGemv::new(300, 4)).contains("k is 300"));
    assert!(refused(FusedRmsNormQ4KGemv::new(0, 4)).contains("k is 0"));
    assert!(refused(FusedRmsNormQ4KGemv::new(49408, 4)).contains("k is 49408"));
    assert!(refused(FusedRmsNormQ4KGemv::new(256, 0)).contains("n is 0"));
}
