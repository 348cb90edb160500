//! The random numbers of sampling: the bits of [`kiln_shape::random`].

use super::math;
use crate::ptx::{Builder, F32, U32, U64, Val};
use kiln_shape::random::{KEY_STEPS, MULTIPLIERS, ROUNDS};

/// The first two words of Philox4x32-10 of the counter `[id, position, 0, 0]` and a key.
fn philox(b: &mut Builder, counter: [Val<U32>; 2], key: [Val<U32>; 2]) -> [Val<U32>; 2] {
    let zero = b.mov::<U32>(0);
    let (mut counter, mut key) = ([counter[0], counter[1], zero, zero], key);
    for round in 0..ROUNDS {
        let product = |b: &mut Builder, which: usize, word: Val<U32>| {
            let whole = b.mad_wide(word, MULTIPLIERS[which], 0u64);
            let high = b.shr::<U64>(whole, 32);
            (b.cvt::<U32, _>(high), b.cvt::<U32, _>(whole))
        };
        let ((first_high, first), (second_high, second)) = (product(b, 0, counter[0]), product(b, 1, counter[2]));
        let (low, high) = (b.xor::<U32>(second_high, counter[1]), b.xor::<U32>(first_high, counter[3]));
        counter = [b.xor(low, key[0]), second, b.xor(high, key[1]), first];
        if round + 1 < ROUNDS {
            key = [b.add(key[0], KEY_STEPS[0]), b.add(key[1], KEY_STEPS[1])];
        }
    }
    [counter[0], counter[1]]
}

/// [`gumbel(seed, position, id)`](kiln_shape::random::gumbel), the seed's low half first.
#[track_caller]
pub(crate) fn gumbel(b: &mut Builder, seed: [Val<U32>; 2], position: Val<U32>, id: Val<U32>) -> Val<F32> {
    const UNIT: f32 = 1.0 / (1u128 << 64) as f32;
    let [low, high] = philox(b, [id, position], seed);
    // Of small numbers the logarithm of 1 less them, which has all their digits; of others that of what is left.
    let small = b.setp_lt(high, 1u32 << 30);
    let mask = b.selp::<U32>(0, u32::MAX, small);
    let (low, high) = (b.xor(low, mask), b.xor(high, mask));
    let low = b.or::<U32>(low, 1);
    let bits = b.pack64(low, high);
    let share = b.cvt::<F32, U64>(bits);
    let share = b.mul(share, UNIT);
    let rest = math::Factors::of(b, share);
    let less = b.neg(share);
    let (exponent, part) = (b.selp::<F32>(0.0, rest.exponent, small), b.selp::<F32>(less, rest.part, small));
    let exponential = math::Factors { exponent, part }.ln(b);
    let exponential = b.neg(exponential);
    let ln = math::ln(b, exponential);
    b.neg(ln)
}
