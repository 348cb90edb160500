//! A super-block of activations rounded to bytes, by a warp: lane l has elements `8l .. 8l + 8`.
//!
//! The scale is the greatest magnitude over 127. Rounding adds 1.5 * 2^23, which leaves the integer in the lowest bits of
//! the float. A super-block has a second plane where few elements are as large as its scale says: where the squares of
//! `q` sum to less than 8 * 127^2 over 256, or 2.5 * 127^2 over any 32 with a scale of their own. The rule looks at that
//! super-block alone, so the bits of a dot product do not depend on what else is staged.

use super::warp;
use crate::formats::{Own, Quantised, ScaleGroup};
use crate::ptx::{AtomicOp, Builder, F32, S32, U16, U32, Val, Work};

/// The float whose lowest bits are an integer of up to 22 bits added to it.
const MAGIC: f32 = 12_582_912.0;
/// The bounds of a group's greatest magnitude. Below, its elements are off by so much at most; from 2^100 on, it counts as
/// infinite.
const LEAST: f32 = 1e-30;
/// What takes that bound beyond f32.
const OVER: f32 = (1 << 28) as f32;
/// Units of the second plane in one of the first.
const FINER: f32 = 254.0;

/// The squares below whose sum a group of activations has a second plane.
const fn outliers(group: ScaleGroup) -> i32 {
    match group {
        ScaleGroup::Of256 => 8 * 127 * 127,
        ScaleGroup::Of32 => 5 * 127 * 127 / 2,
    }
}

/// Rounds the lanes' `values` and writes them to the super-block of `to` where `first` is the lane's own. A value that is
/// not finite, or beyond 2^100, makes a scale that is not finite.
#[track_caller]
pub(crate) fn super_block(
    b: &mut Builder,
    values: [Val<F32>; 8],
    to: &Quantised,
    first: Own,
    group: ScaleGroup,
    rare: Rare,
) {
    let greatest = greatest(b, &values, group);
    let divisor = b.max(greatest, LEAST);
    let inverse = reciprocal(b, divisor);
    let inverse = b.mul(inverse, 127.0);
    // What is beyond the bound overflows on the way to its scale.
    let scale = b.mul(greatest, OVER);
    let scale = b.mul(scale, 1.0 / 127.0 / OVER);
    let rounded = values.map(|value| b.fma(value, inverse, MAGIC));
    let words = pack(b, rounded);
    write(b, words, first, group);
    let square = squares(b, words);
    let square = total(b, square, group);
    let few = b.setp_lt(square, outliers(group));
    // A group of zeros has no residuals.
    let some = b.setp_ne(square, 0);
    let few = b.and_pred(few, some);
    // All lanes know the sum of 256.
    let few = if group == ScaleGroup::Of256 && b.target().sm() >= 80 { few } else { b.vote_any(few) };
    let later = b.selp::<U32>(1, 0, few);
    first.write_scales(b, group, scale, later);
    let of = Rounded { values, scale, inverse, later };
    b.if_(few, |b| later_planes(b, &of, to, first, group, rare));
}

/// How the text of a second plane, which few super-blocks have, stands in that of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rare {
    /// As a loop of one round, which the assembler places apart and which is counted apart.
    Apart,
    /// Behind a branch, where a loop would spill registers.
    Within,
}

/// A plane's values, their scale, and what they were multiplied with.
struct Rounded {
    values: [Val<F32>; 8],
    scale: Val<F32>,
    inverse: Val<F32>,
    /// Planes behind it.
    later: Val<U32>,
}

/// Rounds what `first` leaves to the plane behind it. What a round begins with is the last one's, or the assembler would
/// take it out of the loop.
fn later_planes(b: &mut Builder, of: &Rounded, to: &Quantised, first: Own, group: ScaleGroup, rare: Rare) {
    let values = of.values.map(|value| b.var(value));
    let (scale, inverse, left) = (b.var(of.scale), b.var(of.inverse), b.var::<U32>(of.later));
    let round = |b: &mut Builder| {
        let second = first.second(b, to);
        let before = b.get(scale);
        let down = b.neg(before);
        let coarse = b.get(inverse);
        let finer = b.mul(coarse, FINER);
        b.set(inverse, finer);
        let rounded = values.map(|value| {
            let word = b.fma(value, coarse, MAGIC);
            let integer = b.sub(word, MAGIC);
            let residual = b.fma(integer, down, value);
            b.set(value, residual);
            b.fma(residual, finer, MAGIC)
        });
        let packed = pack(b, rounded);
        write(b, packed, second, group);
        let own = b.mul(before, 1.0 / FINER);
        b.set(scale, own);
        let behind = b.sub::<U32>(left, 1);
        b.set(left, behind);
        second.write_scales(b, group, own, behind);
        behind
    };
    match rare {
        Rare::Apart => b.do_while(|b| {
            b.each_iteration(Work::Few);
            let behind = round(b);
            let more = b.setp_ne(behind, 0);
            b.vote_any(more)
        }),
        Rare::Within => {
            round(b);
        }
    }
}

/// `1 / x` to about an ulp, for `x` from [`LEAST`] to 2^100: three steps of Newton's from a guess at the exponent. The
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
    let greatest = greatest_of_lane(b, values);
    let greatest = match group {
        ScaleGroup::Of256 => warp::reduce(b, AtomicOp::Max, greatest),
        ScaleGroup::Of32 => [1, 2].into_iter().fold(greatest, |greatest, distance| {
            let other = b.shfl_bfly(greatest, distance);
            b.max::<U32>(greatest, other)
        }),
    };
    b.mov_bits(greatest)
}

/// The bits of the greatest magnitude of a lane's eight, or of a NaN.
fn greatest_of_lane(b: &mut Builder, values: &[Val<F32>; 8]) -> Val<U32> {
    // There an instruction takes two magnitudes and hands NaN on.
    if b.target().sm() >= 80 {
        let magnitudes = values.map(|value| b.abs(value));
        let greatest = magnitudes[1..].iter().fold(magnitudes[0], |greatest, value| b.max_nan(greatest, *value));
        return b.mov_bits(greatest);
    }
    let magnitudes = values.map(|value| {
        let bits = b.mov_bits::<U32, F32>(value);
        b.and::<U32>(bits, 0x7fff_ffff)
    });
    magnitudes[1..].iter().fold(magnitudes[0], |greatest, value| b.max::<U32>(greatest, *value))
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
fn write(b: &mut Builder, words: [Val<U32>; 2], to: Own, group: ScaleGroup) {
    let lane = b.lane();
    b.st_vector(to.activations, words);
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
        store(b, 2, to.sum_of_16(), of_16);
    }
    let beside = b.shfl_bfly(of_16, 2);
    let of_32 = b.add::<S32>(of_16, beside);
    store(b, 4, to.sum_of_32, of_32);
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
