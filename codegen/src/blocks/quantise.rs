//! A super-block of activations rounded to bytes, by a warp: lane l has elements `8l .. 8l + 8`.
//!
//! The scale is the greatest magnitude over 127. Rounding adds 1.5 * 2^23, which leaves the integer in the lowest bits of
//! the float. A super-block has a second plane where few elements are as large as its scale says: where the squares of
//! `q` sum to less than 8 * 127^2 over 256, or 2.5 * 127^2 over any 32 with a scale of their own. The rule looks at that
//! super-block alone, so the bits of a dot product do not depend on what else is staged.

use super::warp;
use crate::formats::{Plane, Quantised, ScaleGroup};
use crate::ptx::{AtomicOp, Builder, Compare, F32, S32, U16, U32, Val};

/// The float whose lowest bits are an integer of up to 22 bits added to it.
const MAGIC: f32 = 12_582_912.0;
/// The bounds of a group's greatest magnitude. Below, its elements are off by so much at most; above, it counts as
/// infinite.
const LEAST: f32 = 1e-30;
const MOST: f32 = 1e30;
/// Units of the second plane in one of the first.
const FINER: f32 = 254.0;

/// The squares below whose sum a group of activations has a second plane.
const fn outliers(group: ScaleGroup) -> i32 {
    match group {
        ScaleGroup::Of256 => 8 * 127 * 127,
        ScaleGroup::Of32 => 5 * 127 * 127 / 2,
    }
}

/// Rounds the lanes' `values` and writes them to super-block `super_block` of `to`. A value that is not finite, or beyond
/// [`MOST`], makes the scale infinite.
#[track_caller]
pub(crate) fn super_block(
    b: &mut Builder,
    values: [Val<F32>; 8],
    to: &Quantised,
    super_block: Val<U32>,
    group: ScaleGroup,
) {
    let first = to.at(b, super_block);
    let greatest = greatest(b, &values, group);
    let divisor = b.max(greatest, LEAST);
    let divisor = b.min(divisor, MOST);
    let inverse = reciprocal(b, divisor);
    let inverse = b.mul(inverse, 127.0);
    let scale = b.mul(greatest, 1.0 / 127.0);
    let is_finite = b.setp(Compare::Le, greatest, MOST);
    let scale = b.selp::<F32>(scale, f32::INFINITY, is_finite);
    let rounded = values.map(|value| b.fma(value, inverse, MAGIC));
    let words = pack(b, rounded);
    write(b, words, first, group);
    let square = squares(b, words);
    let square = total(b, square, group);
    let few = b.setp_lt(square, outliers(group));
    // A group of zeros has no residuals.
    let some = b.setp_ne(square, 0);
    let few = b.and_pred(few, some);
    let few = b.vote_any(few);
    let later = b.selp::<U32>(1, 0, few);
    first.write_scales(b, group, scale, later);
    b.if_(few, |b| {
        let second = to.second(b, first);
        let (down, inverse) = (b.neg(scale), b.mul(inverse, FINER));
        let residuals = std::array::from_fn(|i| {
            let integer = b.sub(rounded[i], MAGIC);
            let residual = b.fma(integer, down, values[i]);
            b.fma(residual, inverse, MAGIC)
        });
        let words = pack(b, residuals);
        write(b, words, second, group);
        let scale = b.mul(scale, 1.0 / FINER);
        let none = b.mov::<U32>(0);
        second.write_scales(b, group, scale, none);
    });
}

/// `1 / x` to about an ulp, for `x` from [`LEAST`] to [`MOST`]: three steps of Newton's from a guess at the exponent. The
/// correctly rounded instruction calls a subroutine for numbers beyond.
fn reciprocal(b: &mut Builder, x: Val<F32>) -> Val<F32> {
    let bits = b.mov_bits::<U32, F32>(x);
    let guess = b.sub::<U32>(0x7ef1_27ea, bits);
    let guess = b.mov_bits::<F32, U32>(guess);
    let negative = b.neg(x);
    (0..3).fold(guess, |guess, _| {
        let error = b.fma(negative, guess, 1.0);
        b.fma(guess, error, guess)
    })
}

/// The greatest magnitude of a group, in its lanes. As integers the bits of magnitudes have the order of the numbers, and
/// those of NaN come last.
fn greatest(b: &mut Builder, values: &[Val<F32>; 8], group: ScaleGroup) -> Val<F32> {
    let magnitudes = values.map(|value| {
        let bits = b.mov_bits::<U32, F32>(value);
        b.and::<U32>(bits, 0x7fff_ffff)
    });
    let greatest = magnitudes[1..].iter().fold(magnitudes[0], |greatest, value| b.max::<U32>(greatest, *value));
    let greatest = match group {
        ScaleGroup::Of256 => warp::reduce(b, AtomicOp::Max, greatest),
        ScaleGroup::Of32 => [1, 2].into_iter().fold(greatest, |greatest, distance| {
            let other = b.shfl_bfly(greatest, distance);
            b.max::<U32>(greatest, other)
        }),
    };
    b.mov_bits(greatest)
}

/// The lowest bytes of eight words in two.
fn pack(b: &mut Builder, words: [Val<F32>; 8]) -> [Val<U32>; 2] {
    let words = words.map(|word| b.mov_bits::<U32, F32>(word));
    [0, 4].map(|i| {
        let (low, high) = (b.prmt(words[i], words[i + 1], 0x0040), b.prmt(words[i + 2], words[i + 3], 0x0040));
        b.prmt(low, high, 0x5410)
    })
}

/// Writes a lane's activations, and the sums of those that several lanes have.
fn write(b: &mut Builder, words: [Val<U32>; 2], to: Plane, group: ScaleGroup) {
    let lane = b.lane();
    let at = to.lane(b, lane);
    b.st_vector(at, words);
    let zero = b.mov::<S32>(0);
    let sum = words.into_iter().fold(zero, |sum, word| {
        let word = b.mov_bits::<S32, U32>(word);
        b.dp4a::<S32>(word, 0x0101_0101u32, sum)
    });
    let store = |b: &mut Builder, lanes: u32, at, sum: Val<S32>| {
        let leads = b.and(lane, lanes - 1);
        let leads = b.setp_eq(leads, 0);
        let sum = b.mov_bits::<U32, S32>(sum);
        let sum = b.cvt::<U16, U32>(sum);
        b.if_(leads, |b| b.st(at, sum));
    };
    let beside = b.shfl_bfly(sum, 1);
    let of_16 = b.add::<S32>(sum, beside);
    if group == ScaleGroup::Of256 {
        let at = to.sum_of_16(b, lane);
        store(b, 2, at, of_16);
    }
    let beside = b.shfl_bfly(of_16, 2);
    let of_32 = b.add::<S32>(of_16, beside);
    let at = to.sum_of_32(b, lane);
    store(b, 4, at, of_32);
}

/// The sum of the squares of a lane's eight.
fn squares(b: &mut Builder, words: [Val<U32>; 2]) -> Val<S32> {
    let zero = b.mov::<S32>(0);
    words.into_iter().fold(zero, |sum, word| {
        let signed = b.mov_bits::<S32, U32>(word);
        b.dp4a::<S32>(signed, word, sum)
    })
}

/// The sum over a group's lanes, in each of them.
fn total(b: &mut Builder, value: Val<S32>, group: ScaleGroup) -> Val<S32> {
    match group {
        ScaleGroup::Of256 => warp::reduce(b, AtomicOp::Add, value),
        ScaleGroup::Of32 => [1, 2].into_iter().fold(value, |sum, distance| {
            let other = b.shfl_bfly(sum, distance);
            b.add::<S32>(sum, other)
        }),
    }
}
