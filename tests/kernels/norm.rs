//! RMS norm per head.

use kiln_codegen::kernels::PerHeadRmsNorm;
use kiln_codegen::{Kernel, Target};

use crate::compare::assert_close_sums;
use crate::random::Random;
use crate::rounding;
use crate::support::{Arg, Gpu, every_schedule};

/// `x * rsqrt(mean(x^2) + eps) * gamma`.
pub(crate) fn rms_norm(x: &[f64], gamma: &[f32], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let inverse = (mean + eps).sqrt().recip();
    x.iter().zip(gamma).map(|(x, gamma)| x * inverse * f64::from(*gamma)).collect()
}

fn check(gpu: &Gpu, kernel: PerHeadRmsNorm, heads: u32, eps: f32, scale: f32, random: &mut Random) {
    let head_dim = kernel.head_dim as usize;
    let (x, gamma) = (random.floats(heads as usize * head_dim, scale), random.floats(head_dim, 1.0));
    let expected: Vec<f64> = x
        .chunks(head_dim)
        .flat_map(|x| rms_norm(&x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), &gamma, eps.into()))
        .collect();
    let (from, gamma, to) = (gpu.input(&x), gpu.input(&gamma), gpu.output::<f32>(x.len()));
    let general = kernel.epsilon.is_none();
    let kernel = gpu.load(kernel);
    let mut args = vec![Arg::from(&from), Arg::from(&gamma), Arg::from(&to)];
    if general {
        args.extend([Arg::from(heads), eps.into()]);
    }
    kernel.run([heads.div_ceil(4), 1, 1], &args);
    let what = format!("{heads} heads of {head_dim}, {gpu}");
    let magnitudes: Vec<f64> = expected.iter().map(|y| y.abs()).collect();
    assert_close_sums(&what, &to.read(), &expected, &magnitudes, rounding::normalised_head(head_dim));
    // In place.
    let both = gpu.in_out(&x);
    args[0] = Arg::from(&both);
    args[2] = Arg::from(&both);
    kernel.run([heads.div_ceil(4), 1, 1], &args);
    assert_eq!(both.read(), to.read(), "{what}, in place");
}

#[test]
fn each_head_is_normalised_by_itself() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        for head_dim in (32..=256).step_by(32) {
            let heads = 1 + random.below(9);
            check(gpu, PerHeadRmsNorm::new(head_dim, heads), heads, 1e-6, 1.0, &mut random);
            check(gpu, PerHeadRmsNorm::general(head_dim), heads, 0.25, 1.0, &mut random);
        }
    });
}

#[test]
fn epsilon_decides_where_the_head_is_small() {
    let mut random = Random::fresh();
    let gpu = crate::support::gpu();
    check(&gpu, PerHeadRmsNorm::new(128, 3).with_epsilon(1e-2), 3, 1e-2, 1e-3, &mut random);
    check(&gpu, PerHeadRmsNorm::new(128, 3), 3, 1e-6, 1e-4, &mut random);
    check(&gpu, PerHeadRmsNorm::new(128, 3), 3, 1e-6, 0.0, &mut random);
}

#[test]
fn a_sum_of_squares_beyond_f32_is_nan_and_not_zero() {
    let mut random = Random::fresh();
    let gpu = crate::support::gpu();
    // Squares of 1e36 have a sum of at most 1.3e38.
    check(&gpu, PerHeadRmsNorm::new(128, 3), 3, 1e-6, 1e18, &mut random);
    let norm = gpu.load(PerHeadRmsNorm::new(128, 3));
    let (mut x, gamma) = (random.floats(3 * 128, 1.0), random.floats(128, 1.0));
    x[128 + random.below(128) as usize] = 1e30;
    let (from, gamma, to) = (gpu.input(&x), gpu.input(&gamma), gpu.output::<f32>(x.len()));
    norm.run([1, 1, 1], &[Arg::from(&from), Arg::from(&gamma), Arg::from(&to)]);
    for (head, y) in to.read().chunks(128).enumerate() {
        assert!(y.iter().all(|y| y.is_nan() == (head == 1)), "head {head}: {y:?}");
    }
}

#[test]
fn head_sizes_that_no_kernel_takes_are_refused() {
    for head_dim in [0, 16, 80, 288] {
        let error = PerHeadRmsNorm::new(head_dim, 1).emit_ptx(Target::DEFAULT[0]).unwrap_err().to_string();
        assert!(error.contains(&format!("head_dim is {head_dim}")), "{error}");
    }
}
