//! RMS normalisation.

use super::warp;
use crate::ptx::{Builder, F32, Operand, Size, U32, Val};

/// `1 / sqrt(sum_of_squares / count + eps)`, every step correctly rounded: the same bits on every device. NaN where the
/// sum of squares has overflowed, since 0 would pass for a result.
#[track_caller]
pub(crate) fn inverse_rms(
    b: &mut Builder,
    sum_of_squares: impl Operand<F32>,
    count: Size,
    eps: impl Operand<F32>,
) -> Val<F32> {
    let mean = match count {
        // The same bits, without a way for quotients out of range.
        Size::Const(count) if count.is_power_of_two() => b.mul(sum_of_squares, 1.0 / count as f32),
        Size::Const(count) => b.div(sum_of_squares, count as f32),
        Size::Reg(count) => {
            let count = b.cvt::<F32, U32>(count);
            b.div(sum_of_squares, count)
        }
    };
    let mean = b.add(mean, eps);
    let mean = b.fma(mean, 0.0, mean); // changes no bit of a finite one
    let root = b.sqrt(mean);
    b.rcp(root)
}

/// Epsilon: baked, or the launch parameter `eps`.
#[track_caller]
pub(crate) fn epsilon(b: &mut Builder, baked: Option<f32>) -> Val<F32> {
    match baked {
        Some(epsilon) => b.mov(epsilon),
        None => b.param::<F32>("eps"),
    }
}

/// `x[i] * rsqrt(mean(x^2) + eps) * gamma[i]` of one head held by a warp: lane l has elements l, l + 32, ...
/// `gamma` has the lane's elements.
#[track_caller]
pub(crate) fn per_head(b: &mut Builder, x: &[Val<F32>], gamma: &[Val<F32>], eps: impl Operand<F32>) -> Vec<Val<F32>> {
    let mut square = b.mul(x[0], x[0]);
    for value in &x[1..] {
        square = b.fma(*value, *value, square);
    }
    let square = warp::sum(b, square, 32);
    let inverse = inverse_rms(b, square, Size::Const(32 * x.len() as u32), eps);
    let scaled: Vec<_> = x.iter().map(|value| b.mul(*value, inverse)).collect();
    scaled.into_iter().zip(gamma).map(|(scaled, gamma)| b.mul(scaled, *gamma)).collect()
}
