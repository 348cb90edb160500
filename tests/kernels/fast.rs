//! Matrix-vector products in fast numerics: integer dot products with activations rounded to bytes.

use kiln_codegen::kernels::FusedRmsNormQ4KGemv;
use kiln_shape::{Numerics, WeightType};

use crate::compare::{assert_close_sums, assert_same_bits, relative_l2};
use crate::gemv::Case;
use crate::int8;
use crate::random::Random;
use crate::rounding;
use crate::support::{Gpu, every_schedule, gpu};

impl Case {
    /// The result in float64 with activations as the kernel rounds them, and the magnitude that its error is bounded by.
    fn expected_fast(&self) -> (Vec<f64>, Vec<f64>) {
        let Some(group) = int8::group(self.matrix.ty) else { return self.expected() };
        let x: Vec<f32> = match self.kernel.norm {
            true => self.x.iter().zip(&self.gamma).map(|(x, gamma)| x * gamma).collect(),
            false => self.x.clone(),
        };
        let (x, _) = int8::rounded(&x, group);
        let mean = self.x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / self.x.len() as f64;
        let factor = if self.kernel.norm { (mean + f64::from(self.eps)).sqrt().recip() } else { 1.0 };
        // A weight is the difference of two terms of at most 2 and 3; their sums are rounded one by one.
        let magnitude = 5.0 * factor * x.iter().map(|x| x.abs()).sum::<f64>();
        let mut y: Vec<f64> = self.matrix.times(&x).into_iter().map(|y| y * factor).collect();
        for (wanted, addend) in [(self.kernel.bias, &self.bias), (self.kernel.residual, &self.residual)] {
            y.iter_mut().zip(addend).filter(|_| wanted).for_each(|(y, addend)| *y += f64::from(*addend));
        }
        let magnitudes = vec![magnitude + 4.0; y.len()];
        (y, magnitudes)
    }

    /// Runs it on grids of 1, 3 and 8 blocks, holds the first to float64 and the others to the first; gives its bits.
    #[track_caller]
    fn check_fast(&self, gpu: &Gpu) -> Vec<f32> {
        let (ty, n, k) = (self.matrix.ty, self.matrix.n, self.matrix.k);
        let what = format!("{}, {ty}, k {k}, n {n}, {gpu}", kiln_codegen::Kernel::name(&self.kernel));
        let one = self.run(gpu, 1);
        let (expected, magnitudes) = self.expected_fast();
        assert_close_sums(&what, &one, &expected, &magnitudes, rounding::fast_product(k));
        for grid in [3, 8] {
            assert_same_bits(&format!("{what}, grid {grid}"), &self.run(gpu, grid), &one);
        }
        one
    }
}

fn kernel(ty: WeightType, k: u32, n: u32) -> FusedRmsNormQ4KGemv {
    FusedRmsNormQ4KGemv::new(k, n).with_weights(ty).with_numerics(Numerics::Fast)
}

fn general(ty: WeightType) -> FusedRmsNormQ4KGemv {
    FusedRmsNormQ4KGemv::general().with_weights(ty).with_numerics(Numerics::Fast)
}

#[test]
fn fast_products_of_every_type_match_float64_with_rounded_activations() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        for &ty in WeightType::ALL {
            // The last one's super-blocks are one more than the warps of a block round in a turn.
            for (k, n) in [(256, 3), (512, 17), (768, 1), (1024, 70), (4352, 9)] {
                Case::new(kernel(ty, k, n), k as usize, n as usize, &mut random).check_fast(gpu);
            }
        }
    });
}

#[test]
fn fast_rows_that_end_within_a_super_block_match_float64() {
    let mut random = Random::fresh();
    let gpu = gpu();
    for &ty in WeightType::ALL.iter().filter(|ty| ty.block_len() <= 32) {
        for (k, n) in [(32, 3), (96, 17), (224, 5), (896, 7), (1120, 4)] {
            Case::new(kernel(ty, k as u32, n as u32), k, n, &mut random).check_fast(&gpu);
            Case::new(general(ty), k, n, &mut random).check_fast(&gpu);
        }
    }
}

/// A row's bits are those of the general kernel and of one that has the vector in parts.
#[test]
fn fast_bits_do_not_depend_on_how_the_vector_is_staged() {
    let mut random = Random::fresh();
    let gpu = gpu();
    for &ty in WeightType::ALL.iter().filter(|ty| int8::group(**ty).is_some()) {
        for (k, n) in [(512, 33), (11008, 5), (12288, 3), (18944, 5), (25600, 3)] {
            let case = Case::new(kernel(ty, k as u32, n as u32).with_epsilon(0.125), k, n, &mut random);
            let bits = case.check_fast(&gpu);
            let general = case.with_kernel(general(ty)).check_fast(&gpu);
            assert_same_bits(&format!("{ty}, general, k {k}"), &general, &bits);
        }
    }
}

#[test]
fn fast_norm_bias_and_residual_come_in_every_combination() {
    let mut random = Random::fresh();
    let gpu = gpu();
    for combination in 0..8 {
        let mut kernel = kernel(WeightType::Q4_K, 512, 17).with_epsilon(0.5);
        if combination & 1 != 0 {
            kernel = kernel.without_norm();
        }
        if combination & 2 != 0 {
            kernel = kernel.with_bias();
        }
        if combination & 4 != 0 {
            kernel = kernel.with_residual();
        }
        Case::new(kernel, 512, 17, &mut random).check_fast(&gpu);
    }
}

/// A few activations of 1e2 to 1e6 among small ones leave the others their bits.
#[test]
fn outliers_get_a_second_plane() {
    let mut random = Random::fresh();
    let gpu = gpu();
    for &ty in WeightType::ALL.iter().filter(|ty| int8::group(**ty).is_some()) {
        for (outlier, count) in [(1e2f32, 1), (1e4, 1), (1e4, 5), (1e5, 7), (1e6, 2)] {
            let mut case = Case::new(kernel(ty, 1024, 9).without_norm(), 1024, 9, &mut random);
            // All in a super-block, and at most two in a block of 32: three as large as each other are not few there.
            let (super_block, first) = (random.below(4), random.below(8));
            for i in 0..count {
                let block = 8 * super_block + (first + 3 * (i / 2)) % 8;
                case.x[(32 * block + 16 * (i % 2) + random.below(16)) as usize] = outlier;
            }
            let result = case.check_fast(&gpu);
            let (exact, _) = case.expected();
            let (_, seconds) = int8::rounded(&case.x, int8::group(ty).expect("a quantised type"));
            assert!(seconds >= 1, "{ty}, {outlier}: a second plane");
            // One plane is off by 1 / 254 of the outlier in each small activation: by 1 to 4 % in all.
            let off = relative_l2(&result, &exact);
            assert!(off < 5e-3, "{ty}, {count} of {outlier}: {off:.1e}");
        }
    }
}

#[test]
fn what_is_not_finite_in_the_vector_is_not_finite_in_the_result() {
    let mut random = Random::fresh();
    let gpu = gpu();
    for &ty in WeightType::ALL {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for norm in [true, false] {
                let kernel = kernel(ty, 512, 9);
                let kernel = if norm { kernel } else { kernel.without_norm() };
                let mut case = Case::new(kernel, 512, 9, &mut random);
                case.x[random.below(512) as usize] = bad;
                let finite = case.run(&gpu, 2).into_iter().filter(|y| y.is_finite()).count();
                assert_eq!(finite, 0, "{ty}, {bad}, norm {norm}");
            }
        }
    }
}

#[test]
fn large_floats_are_rounded_as_others() {
    let mut random = Random::fresh();
    let gpu = gpu();
    for &ty in WeightType::ALL.iter().filter(|ty| int8::group(**ty).is_some()) {
        // Times a weight of up to 5 a float still.
        for large in [1e30f32, 1e37] {
            let mut case = Case::new(kernel(ty, 768, 9).without_norm(), 768, 9, &mut random);
            case.x[random.below(768) as usize] = large;
            case.check_fast(&gpu);
        }
    }
}

#[test]
fn a_vector_of_zeros_gives_zeros() {
    let mut random = Random::fresh();
    let gpu = gpu();
    for &ty in WeightType::ALL {
        for tiny in [0.0f32, 1e-38, 1e-45] {
            let mut case = Case::new(kernel(ty, 512, 9).without_norm(), 512, 9, &mut random);
            case.x.fill(tiny);
            let y = case.run(&gpu, 2);
            assert!(y.iter().all(|y| y.abs() < 1e-30), "{ty}, {tiny}: {y:?}");
        }
    }
}
