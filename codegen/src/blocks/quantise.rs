//! Super-blocks of activations rounded to bytes, by a warp, one or two at a time, and two such pairs beside each other: lane l has
//! elements `8l .. 8l + 8` of each.
//!
//! The scale is the greatest magnitude over 127. Rounding adds 1.5 * 2^23, which leaves the integer in the lowest bits of
//! the float. A super-block has a second plane where a few outliers set its scale: where the magnitudes of `q` are less than
//! 4 on the mean, or less than 9 over any 32 with a scale of their own. So up to seven elements of 256 that are as large as
//! each other leave the others their bits, and two of 32; of the super-blocks of 256 that SwiGLU makes of normal numbers one
//! in a thousand has a second plane. The rule looks at that super-block alone, so the bits of a dot product do not depend on
//! what else is staged.

use super::{math, warp};
use crate::formats::{Own, Quantised, ScaleGroup, Second};
use crate::ptx::{AtomicOp, Bits32, Builder, F32, Integer, Pred, Ptr, S32, Space, U16, U32, Val, Work};

/// The float whose lowest bits are an integer of up to 22 bits added to it.
const MAGIC: f32 = 12_582_912.0;
/// The least scale that has a reciprocal: elements of a group with a lower one are off by 127 times this at most.
const LEAST: f32 = 1e-32;
/// Units of the second plane in one of the first.
const FINER: f32 = 254.0;

/// The sum of magnitudes below which a group of activations has a second plane.
const fn outliers(group: ScaleGroup) -> u32 {
    match group {
        ScaleGroup::Of256 => 4 * 256,
        ScaleGroup::Of32 => 9 * 32,
    }
}

/// Rounds the lanes' `values` of one super-block, or of two that follow each other, and writes them to the super-blocks of
/// `to` from that on where `first` is the lane's own. A value that is not finite makes a scale that is not finite.
///
/// Of two, even lanes compute what there is once for a group of the first, odd lanes that of the second.
pub(crate) fn super_blocks<const N: usize>(
    b: &mut Builder,
    values: [[Val<F32>; 8]; N],
    to: &Quantised,
    first: Own,
    group: ScaleGroup,
    rare: Rare,
) {
    begin(b, values, first, group).finish(b, to, rare);
}

/// The same but for second planes, so that others may be rounded beside it.
pub(crate) fn begin<const N: usize>(
    b: &mut Builder,
    values: [[Val<F32>; 8]; N],
    first: Own,
    group: ScaleGroup,
) -> Begun<N> {
    const { assert!(N == 1 || N == 2) };
    let greatest = values.map(|values| greatest_of_lane(b, &values));
    let greatest = over_group(b, AtomicOp::Max, greatest, group);
    let greatest = b.mov_bits(greatest);
    let scale = b.mul(greatest, 1.0 / 127.0);
    let divisor = b.max(scale, LEAST);
    let inverse = reciprocal(b, divisor);
    let inverses: [_; N] = of_each(b, inverse);
    let planes: [_; N] = std::array::from_fn(|n| {
        let rounded = values[n].map(|value| b.fma(value, inverses[n], MAGIC));
        pack(b, rounded)
    });
    // What is found out over lanes comes before stores by some of them, so that its chains run beside each other.
    let sums = sums(b, planes);
    let (any, later) = has_later(b, planes, group);
    write(b, planes, (scale, sums), first, group);
    first.write_last(b, (group == ScaleGroup::Of256).then_some(scale), later);
    Begun { rounded: Rounded { values, scale, inverses, later }, any, first, group }
}

/// Super-blocks that have their first planes.
pub(crate) struct Begun<const N: usize> {
    rounded: Rounded<N>,
    /// Whether one of them has a second plane.
    any: Val<Pred>,
    first: Own,
    group: ScaleGroup,
}

impl<const N: usize> Begun<N> {
    /// Writes the planes behind the first.
    pub(crate) fn finish(&self, b: &mut Builder, to: &Quantised, rare: Rare) {
        b.if_(self.any, |b| later_planes(b, &self.rounded, to, self.first, self.group, rare));
    }
}

/// The lane's own and its neighbour's of the values that there are of each super-block.
fn own_and_other<const N: usize, T: Bits32>(b: &mut Builder, of: [Val<T>; N]) -> [Val<T>; 2] {
    let [first, second] = of[..] else { return [of[0]; 2] };
    let odd = is_odd(b);
    [b.selp::<T>(second, first, odd), b.selp::<T>(first, second, odd)]
}

/// The values of each super-block, of which a lane has its own.
fn of_each<const N: usize>(b: &mut Builder, own: Val<F32>) -> [Val<F32>; N] {
    if N == 1 {
        return [own; N];
    }
    let other = b.shfl_bfly(own, 1);
    let odd = is_odd(b);
    std::array::from_fn(|n| if n == 0 { b.selp::<F32>(other, own, odd) } else { b.selp::<F32>(own, other, odd) })
}

fn is_odd(b: &mut Builder) -> Val<Pred> {
    let lane = b.lane();
    let odd = b.and::<U32>(lane, 1);
    b.setp_ne(odd, 0)
}

/// The sum or maximum over the lanes of a group, of the lane's own super-block.
fn over_group<const N: usize, T>(b: &mut Builder, op: AtomicOp, of: [Val<T>; N], group: ScaleGroup) -> Val<T>
where
    T: Integer + Bits32,
{
    if group == ScaleGroup::Of256 && b.target().sm() >= 80 {
        let all = of.map(|value| b.redux(op, value));
        return own_and_other(b, all)[0];
    }
    let [own, other] = own_and_other(b, of);
    let other = b.shfl_bfly(other, 1);
    let own = warp::combine(b, op, own, other);
    let distances = match group {
        ScaleGroup::Of256 => [2, 4, 8, 16].as_slice(),
        ScaleGroup::Of32 => &[2],
    };
    distances.iter().fold(own, |own, distance| {
        let other = b.shfl_bfly(own, *distance);
        warp::combine(b, op, own, other)
    })
}

/// Whether any super-block has a second plane, and the number of planes behind the first of the lane's own.
fn has_later<const N: usize>(b: &mut Builder, planes: [[Val<U32>; 2]; N], group: ScaleGroup) -> (Val<Pred>, Val<U32>) {
    let magnitudes = planes.map(|words| magnitudes_of_lane(b, words));
    let magnitude = over_group(b, AtomicOp::Add, magnitudes, group);
    let few = b.setp_lt(magnitude, outliers(group));
    // A group of zeros has no residuals.
    let some = b.setp_ne(magnitude, 0);
    let few = b.and_pred(few, some);
    if N == 1 && group == ScaleGroup::Of256 && b.target().sm() >= 80 {
        // All lanes know the sum.
        return (few, b.selp::<U32>(1, 0, few));
    }
    // A super-block has one where one of its groups has.
    let lanes = b.vote_ballot(few);
    let own = match N {
        1 => lanes,
        _ => {
            let odd = is_odd(b);
            let own = b.selp::<U32>(0xaaaa_aaaa, 0x5555_5555, odd);
            b.and::<U32>(lanes, own)
        }
    };
    let own = b.setp_ne(own, 0);
    (b.setp_ne(lanes, 0), b.selp::<U32>(1, 0, own))
}

/// How the text of a second plane, which few super-blocks have, stands in that of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rare {
    /// As a loop of one round, which the assembler places apart and which is counted apart.
    Apart,
    /// Behind a branch, where a loop would spill registers.
    Within,
}

/// What was rounded to a first plane.
struct Rounded<const N: usize> {
    values: [[Val<F32>; 8]; N],
    /// The scale of the lane's own super-block.
    scale: Val<F32>,
    /// What the values were multiplied with.
    inverses: [Val<F32>; N],
    /// The number of planes behind it, of the lane's own super-block.
    later: Val<U32>,
}

/// Rounds what the first planes leave to those behind them. What a round begins with is the last one's, or the assembler
/// would take it out of the loop.
fn later_planes<const N: usize>(
    b: &mut Builder,
    of: &Rounded<N>,
    to: &Quantised,
    first: Own,
    group: ScaleGroup,
    rare: Rare,
) {
    let values = of.values.map(|values| values.map(|value| b.var(value)));
    let inverses = of.inverses.map(|inverse| b.var(inverse));
    let (scale, left) = (b.var(of.scale), b.var::<U32>(of.later));
    let round = |b: &mut Builder| {
        let before = b.get(scale);
        let scales: [_; N] = of_each(b, before);
        let planes: [_; N] = std::array::from_fn(|n| {
            let down = b.neg(scales[n]);
            let coarse = b.get(inverses[n]);
            let finer = b.mul(coarse, FINER);
            b.set(inverses[n], finer);
            let rounded = values[n].map(|value| {
                let word = b.fma(value, coarse, MAGIC);
                let integer = b.sub(word, MAGIC);
                let residual = b.fma(integer, down, value);
                b.set(value, residual);
                b.fma(residual, finer, MAGIC)
            });
            pack(b, rounded)
        });
        let own = b.mul(before, 1.0 / FINER);
        b.set(scale, own);
        let behind = b.shr::<U32>(left, 1);
        b.set(left, behind);
        let sums = sums(b, planes);
        let last = (group == ScaleGroup::Of256).then_some(own);
        match first.second(b, to) {
            Second::Behind(second) => {
                write(b, planes, (own, sums), second, group);
                second.write_last(b, last, behind);
            }
            Second::Apart(second) => {
                write(b, planes, (own, sums), second, group);
                second.write_last(b, last, behind);
            }
        }
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

/// `1 / x` to about an ulp, for `x` from [`LEAST`] to 2^122: a cubic step and one of Newton's from a guess at the exponent
/// that is off by an eighth at most. The correctly rounded instruction calls a subroutine for numbers beyond.
fn reciprocal(b: &mut Builder, x: Val<F32>) -> Val<F32> {
    let bits = b.mov_bits::<U32, F32>(x);
    let guess = b.sub::<U32>(0x7ef3_d800, bits);
    let guess = b.mov_bits::<F32, U32>(guess);
    let negative = b.neg(x);
    let error = b.fma(negative, guess, 1.0);
    let further = b.fma(error, error, error);
    let guess = b.fma(guess, further, guess);
    let error = b.fma(negative, guess, 1.0);
    b.fma(guess, error, guess)
}

/// The bits of the greatest magnitude of a lane's eight, or of a NaN. As integers the bits of magnitudes have the order of
/// the numbers, and those of NaN come last.
fn greatest_of_lane(b: &mut Builder, values: &[Val<F32>; 8]) -> Val<U32> {
    // There an instruction takes two magnitudes and hands NaN on.
    if b.target().sm() >= 80 {
        let magnitudes = values.map(|value| b.abs(value));
        let greatest = math::by_pairs(magnitudes.to_vec(), |one, other| b.max_nan(one, other));
        return b.mov_bits(greatest);
    }
    let magnitudes = values.map(|value| {
        let bits = b.mov_bits::<U32, F32>(value);
        b.and::<U32>(bits, 0x7fff_ffff)
    });
    math::by_pairs(magnitudes.to_vec(), |one, other| b.max::<U32>(one, other))
}

/// The lowest bytes of eight words in two.
fn pack(b: &mut Builder, words: [Val<F32>; 8]) -> [Val<U32>; 2] {
    let words = words.map(|word| b.mov_bits::<U32, F32>(word));
    [0, 4].map(|i| {
        let (low, high) = (b.prmt(words[i], words[i + 1], 0x0040), b.prmt(words[i + 2], words[i + 3], 0x0040));
        b.prmt(low, high, 0x5410)
    })
}

/// The sums of the 16 and of the 32 elements of its own super-block that a lane has some of.
fn sums<const N: usize>(b: &mut Builder, planes: [[Val<U32>; 2]; N]) -> [Val<S32>; 2] {
    let sums = planes.map(|words| sum_of_lane(b, words));
    let [own, other] = own_and_other(b, sums);
    let other = b.shfl_bfly(other, 1);
    let of_16 = b.add::<S32>(own, other);
    let other = b.shfl_bfly(of_16, 2);
    [of_16, b.add::<S32>(of_16, other)]
}

/// Writes planes of super-blocks, and what stands beside the lane's own but for its last words: sums, and scales of each 32,
/// each by the first of the lanes that have it.
fn write<const N: usize, S: Space>(
    b: &mut Builder,
    planes: [[Val<U32>; 2]; N],
    (scale, [of_16, of_32]): (Val<F32>, [Val<S32>; 2]),
    to: Own<S>,
    group: ScaleGroup,
) {
    for (n, words) in planes.into_iter().enumerate() {
        b.st_vector(to.activations(n), words);
    }
    let lane = b.lane();
    let store = |b: &mut Builder, at: Ptr<S, U16>, sum: Val<S32>| {
        let sum = b.mov_bits::<U32, S32>(sum);
        let sum = b.cvt::<U16, U32>(sum);
        b.st(at, sum);
    };
    let leads = |b: &mut Builder, others: u32| {
        let place = b.and::<U32>(lane, others);
        b.setp_eq(place, 0)
    };
    match (group, N) {
        (ScaleGroup::Of32, _) => {}
        // Each lane of a pair has a sum of its own.
        (ScaleGroup::Of256, 2) => store(b, to.sum_of_16(), of_16),
        (ScaleGroup::Of256, _) => {
            let leads = leads(b, 1);
            b.if_(leads, |b| store(b, to.sum_of_16(), of_16));
        }
    }
    let leads = leads(b, if N == 2 { 2 } else { 3 });
    b.if_(leads, |b| {
        store(b, to.sum_of_32, of_32);
        if group == ScaleGroup::Of32 {
            b.st(to.scale_of_32(), scale);
        }
    });
}

/// The sum of a lane's eight.
fn sum_of_lane(b: &mut Builder, words: [Val<U32>; 2]) -> Val<S32> {
    let zero = b.mov::<S32>(0);
    words.into_iter().fold(zero, |sum, word| {
        let word = b.mov_bits::<S32, U32>(word);
        b.dp4a::<S32>(word, 0x0101_0101u32, sum)
    })
}

/// The sum of the magnitudes of a lane's eight.
fn magnitudes_of_lane(b: &mut Builder, words: [Val<U32>; 2]) -> Val<U32> {
    let zero = b.mov::<U32>(0);
    words.into_iter().fold(zero, |sum, word| b.vabsdiff4(word, zero, sum))
}
