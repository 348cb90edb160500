//! The choice of a token, as the host's reference and the kernels have it: masses as integers, the words of a choice's
//! parameters, and the memory between its steps.
//!
//! Offsets are in 32-bit words.

use crate::arithmetic::exp;

/// Parts of the likeliest token's probability in which masses are counted: a vocabulary of 2^24 tokens has less than 2^64.
pub const MASS_OF_ONE: f32 = (1u64 << 39) as f32;

/// A number from 0 to 1 as an integer: its sums have no order.
pub fn mass(weight: f32) -> u64 {
    (weight * MASS_OF_ONE) as u64
}

/// The mass of a logit beside the greatest one.
pub fn mass_of(logit: f32, most: f32) -> u64 {
    mass(exp(logit - most))
}

/// A mass times what its logit lacks of the greatest one: the sum of them is the mean of what logits lack, times their mass.
pub fn moment(weight: f32, lack: f32) -> u64 {
    mass(weight * lack.min(MOST_LACK))
}

/// What a logit may lack for its moment: of none that has a mass is it more, and no infinity has one.
pub const MOST_LACK: f32 = 128.0;

/// An integer in units of [`mass`] as a number.
pub fn weight(mass: u64) -> f32 {
    mass as f32 / MASS_OF_ONE
}

/// A share of at most 1, in parts of 2^64; what of 1 does not fit is one of them.
pub fn share(share: f32) -> u64 {
    (f64::from(share) * (1u128 << 64) as f64) as u64
}

/// That [`share`] of a mass, rounded down, unless less than one part in 2^64 of the mass is missing to the next integer: of
/// 1 that is the mass itself.
pub fn share_of(share: u64, mass: u64) -> u64 {
    (((u128::from(share) + 1) * u128::from(mass)) >> 64) as u64
}

/// The words of a choice that the device makes; zeros take the greatest logit.
pub type Choice = [u32; WORDS as usize];
/// The choice of the greatest logit.
pub const PLAIN: Choice = [0; WORDS as usize];
/// Words of a choice.
pub const WORDS: u32 = 22;
/// What is to be done: the flags below.
pub const FLAGS: u32 = 0;
/// The temperature, a float, if it draws.
pub const TEMPERATURE: u32 = 1;
/// The most tokens to draw from; 0 for all.
pub const TOP_K: u32 = 2;
/// The number of last tokens that penalties look at.
pub const PENALTY_WINDOW: u32 = 3;
/// The least mass of a token to draw, 64 bits.
pub const LEAST: u32 = 4;
/// The [`share`] of the mass to draw from, 64 bits, if it has one.
pub const TOP_P: u32 = 6;
/// The seed, 64 bits.
pub const SEED: u32 = 8;
/// The repetition penalty, a float.
pub const REPETITION: u32 = 10;
/// The presence penalty, a float.
pub const PRESENCE: u32 = 11;
/// The frequency penalty, a float.
pub const FREQUENCY: u32 = 12;
/// The number of biases.
pub const BIAS_COUNT: u32 = 13;
/// The address of the biases, 64 bits: of 64 bits each, an id in the lower half and a float in the upper one. No two have
/// the same id.
pub const BIASES: u32 = 14;
/// The address of the mask, 64 bits, whose words are those of [`mask`].
pub const MASK: u32 = 16;
/// The [`share`] of the mass that tokens of typical surprise have, 64 bits, if it has one.
pub const TYPICAL_P: u32 = 18;
/// The [`share`] of the likeliest token's mass that a token needs, 64 bits, beside a typical-p, which may leave the
/// likeliest of all out.
pub const MIN_P: u32 = 20;

/// The flag of a draw; without it the greatest logit is taken.
pub const DRAWS: u32 = 1;
/// The flag of a draw from some of the tokens: a top-k, a typical-p or a top-p.
pub const FILTERS: u32 = 2;
/// The flag of a top-p.
pub const HAS_TOP_P: u32 = 4;
/// The flag of penalties.
pub const PENALISES: u32 = 8;
/// The flag of a log-probability that is wanted of the token, by logits as the model gives them.
pub const LOGPROB: u32 = 16;
/// The flag of biases.
pub const HAS_BIASES: u32 = 32;
/// The flag of a mask.
pub const HAS_MASK: u32 = 64;
/// Flags of what changes logits before the choice.
pub const TREATS: u32 = PENALISES | HAS_BIASES | HAS_MASK;
/// The flag of logits that are kept as the model gives them: one of [`TREATS`] beside [`LOGPROB`].
pub const KEEPS: u32 = 128;
/// The flag of a typical-p. Of the tokens that it leaves a draw of temperature 0 takes the likeliest.
pub const HAS_TYPICAL_P: u32 = 512;

/// The flag of a mask that comes later than the item: a token is chosen once the mask is of its position.
pub const AWAITS: u32 = 256;

/// The words of a mask of allowed ids.
pub mod mask {
    /// The position of the token that it is for, written last, where a choice awaits its mask.
    pub const POSITION: u32 = 0;
    /// A bit for each id of the vocabulary, the least id in the lowest bit of the first word: a line behind the position.
    pub const BITS: u32 = 32;
}

/// Bins of logits, by how far they are below the greatest; the last has all that are farther.
pub const BINS: u32 = 512;
/// Bins of a unit: those of masses other than 0 are less than 28 units.
pub const BINS_OF_UNIT: u32 = 16;

/// Logits of a block where each step is a launch.
pub const ROWS: u32 = 1024;

/// The steps, by number, where each is a launch.
pub mod step {
    /// What changes logits, and each block's greatest logit.
    pub const TREAT: u32 = 0;
    /// The sums of bins, where tokens are drawn from some of all.
    pub const WEIGH: u32 = 1;
    /// The draws, where there are any.
    pub const SIFT: u32 = 2;
    /// The token.
    pub const SETTLE: u32 = 3;
}

/// The memory between the steps of a choice, for the blocks of a grid; zeros before the first choice.
pub mod memory {
    use super::BINS;

    /// Sums over each bin's logits, `[3, BINS]` of 64 bits: those below.
    pub const SUMS: u32 = 0;
    /// How many logits it has.
    pub const COUNTS: u32 = 0;
    /// Their mass.
    pub const MASSES: u32 = 1;
    /// Their moments.
    pub const MOMENTS: u32 = 2;
    /// How many logits are in the list.
    pub const LISTED: u32 = 6 * BINS;
    /// The upper half of the list's greatest key.
    pub const GREATEST: u32 = LISTED + 1;
    /// The complement of the upper half of the list's least key.
    pub const LEAST: u32 = LISTED + 2;
    /// The mass of all logits, 64 bits, where a log-probability is wanted.
    pub const TOTAL: u32 = LISTED + 4;
    /// Words that a choice begins with as zeros.
    pub const CLEARED: u32 = LISTED + 6;
    /// The token's log-probability, where a launch of its own leaves one.
    pub const LOGPROB: u32 = LISTED + 8;
    /// Each block's best of the stages below: values, and then their ids, `[3, 2, grid]`.
    pub const BESTS: u32 = LISTED + 32;
    /// The stage of the greatest logit as the model gives them, where they are kept.
    pub const GIVEN: u32 = 0;
    /// The stage of the greatest logit that a token is chosen by.
    pub const TREATED: u32 = 1;
    /// The stage of the best draw.
    pub const DRAWN: u32 = 2;

    /// Words that each block takes behind [`BESTS`].
    pub const OF_BLOCK: u32 = 6;
    /// Words that each id of the vocabulary takes behind them.
    pub const OF_ID: u32 = 4;
    /// Words that the memory of a choice is a multiple of: of several each begins at a line.
    pub const LINE: u32 = 32;

    /// Keys of logits that may or may not be drawn from, `[vocab]` of 64 bits.
    pub const fn list(grid: u32) -> u32 {
        BESTS + OF_BLOCK * grid
    }

    /// How often each id has occurred, `[vocab]`: zeros between choices. Behind `list`, of twice the vocabulary. Behind
    /// them lie logits as the model gives them, where they are kept, `[vocab]`.
    pub const fn words(grid: u32, vocab: u32) -> u64 {
        (list(grid) as u64 + OF_ID as u64 * vocab as u64).next_multiple_of(LINE as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::{MASS_OF_ONE, mass, mass_of, share, share_of};

    #[test]
    fn masses_and_shares_are_rounded_down() {
        assert_eq!((mass(1.0), mass_of(2.5, 2.5), mass_of(f32::NEG_INFINITY, 0.0)), (1 << 39, 1 << 39, 0));
        assert_eq!((mass(1.9 / MASS_OF_ONE), mass(0.9 / MASS_OF_ONE)), (1, 0));
        assert_eq!((share(0.5), share_of(share(0.5), 7), share_of(share(0.75), 1 << 57)), (1 << 63, 3, 3 << 55));
        assert_eq!((share_of(share(1.0), 1 << 39), share_of(share(1.0), u64::MAX)), (1 << 39, u64::MAX));
        assert_eq!(share_of(share(1e-30), u64::MAX), 0);
    }
}
