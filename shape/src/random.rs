//! The random numbers of sampling: a value of seed, position and token id, whoever computes it and in whatever order.

use crate::arithmetic::{ln, ln_1p};

/// Rounds of [`philox`].
pub const ROUNDS: u32 = 10;
/// Multipliers of a round.
pub const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
/// What a round adds to the key.
pub const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011: four random words of a counter
/// and a key.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let [first, second] = [(0, 0), (1, 2)].map(|(of, word)| u64::from(MULTIPLIERS[of]) * u64::from(counter[word]));
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

/// A Gumbel-distributed number for a token that may come to stand at a position. The token with the greatest `l + gumbel`
/// of several is a draw by the softmax of their `l`.
pub fn gumbel(seed: u64, position: u32, id: u32) -> f32 {
    gumbel_of(bits(seed, position, id))
}

/// The random bits of a token that may come to stand at a position.
pub fn bits(seed: u64, position: u32, id: u32) -> u64 {
    let [low, high, ..] = philox([id, position, 0, 0], [seed as u32, (seed >> 32) as u32]);
    u64::from(high) << 32 | u64::from(low)
}

/// The number that [`gumbel`] makes of its bits.
pub fn gumbel_of(bits: u64) -> f32 {
    -ln(exponential(bits))
}

/// A number that [`gumbel_of`] these bits does not exceed, for less work: `-ln(1 - v)` is at least `v`.
pub fn gumbel_at_most(bits: u64) -> f32 {
    // A thousandth above ln 2, for what is rounded.
    (bits.leading_zeros() + 1).min(64) as f32 * 0.694
}

/// `-ln(1 - v)` of `v = bits / 2^64`, at least 2^-64: exponentially distributed where bits are random. Small numbers have
/// all digits of a float, since they decide who is drawn.
fn exponential(bits: u64) -> f32 {
    const UNIT: f32 = 1.0 / (1u128 << 64) as f32;
    let share = |bits: u64| (bits | 1) as f32 * UNIT;
    if bits < 1 << 62 { -ln_1p(-share(bits)) } else { -ln(share(!bits)) }
}

#[cfg(test)]
mod tests {
    use super::{bits, exponential, gumbel, gumbel_at_most, gumbel_of, philox};

    /// The known answers that the authors publish with Random123.
    #[test]
    fn philox_has_its_published_answers() {
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        for (counter, key, words) in [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (pi, [0xa409_3822, 0x299f_31d0], [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]),
        ] {
            assert_eq!(philox(counter, key), words);
        }
    }

    #[test]
    fn exponentials_are_those_of_their_bits() {
        let samples = (0..1000).map(|i: u64| (i * i * i).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for bits in samples.chain([0, 1, (1 << 62) - 1, 1 << 62, u64::MAX >> 1]) {
            let exact = -(-((bits | 1) as f64) / 2f64.powi(64)).ln_1p();
            let error = (f64::from(exponential(bits)) / exact - 1.0).abs();
            assert!(error < 3e-7, "{bits:#x}: {error:e}");
        }
        assert!(exponential(u64::MAX) > 44.0 && exponential(0) == 1.0 / 2f32.powi(64));
    }

    #[test]
    fn a_gumbel_does_not_exceed_its_bound() {
        let powers = (0..64).flat_map(|shift| [1u64 << shift, (1 << shift) - 1, (1 << shift) + 1, !(1 << shift)]);
        for bits in powers.chain((0..100_000).map(|id| bits(5, 1, id))) {
            let (found, most) = (gumbel_of(bits), gumbel_at_most(bits));
            assert!(found <= most, "{bits:#x}: {found}, at most {most}");
        }
    }

    #[test]
    fn gumbels_have_their_mean_and_variance() {
        let values: Vec<f64> = (0..200_000).map(|id| f64::from(gumbel(7, 3, id))).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        // Euler's constant and pi^2 / 6, within five standard errors.
        assert!((mean - 0.577_215_66).abs() < 5.0 * 1.28 / 447.0, "{mean}");
        assert!((variance - 1.644_934).abs() < 5.0 * 3.5 / 447.0, "{variance}");
        assert!(gumbel(7, 3, 1) != gumbel(8, 3, 1) && gumbel(7, 3, 1) != gumbel(7, 4, 1));
        assert!(gumbel(7 << 32, 3, 1) != gumbel(7, 3, 1), "both halves of the seed count");
    }
}
