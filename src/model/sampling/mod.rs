//! Sampling: how a token is chosen from logits.
//!
//! `chain` is the choice itself, `constraint` what may be chosen, `logprobs` what it was among, `device` what kernels
//! choose by. This is the reference for any other implementation: masses are sums of 64-bit integers, which have no order,
//! ties go to the lesser id, and every operation on floats rounds alike everywhere.

mod chain;
mod constraint;
mod device;
mod logprobs;

pub use chain::Sampler;
pub(crate) use constraint::Constrained;
pub use constraint::{Constraint, TokenSet};
pub use logprobs::Logprobs;

use crate::{Error, Result};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;

/// Temperatures besides 0: what is divided by one is still a finite number.
const TEMPERATURES: RangeInclusive<f32> = 0.001..=1000.0;
/// What is multiplied with or added to a logit.
const FACTORS: RangeInclusive<f32> = 0.01..=100.0;
const SUMMANDS: RangeInclusive<f32> = -1e4..=1e4;

/// Parameters of the choice: [`Sampling::GREEDY`] and what `with_` changes of it.
///
/// They apply in this order: biases and bans, penalties, top-k, typical-p, top-p, min-p, temperature, draw. Shares of
/// probability are of what is left at that point, at temperature 1. The same seed gives the same tokens: a draw depends on
/// seed, position and logits only.
///
/// # Mathematics
/// Of logits `l` and their greatest, `m`, the mass of a token is the integer below `2^39 e^(l - m)`, by
/// [`exp`](crate::shape::arithmetic::exp); sums of masses have no order. Tokens are ordered by falling `l`, equals by rising
/// id. Top-k keeps the first k of that order; typical-p the fewest whose mass is at least its share of the mass that is
/// left, rounded down, and at least 1, in the order of `|m - l - mean|`, equals by rising id; top-p the same in the order of
/// logits; min-p those whose mass is at least its share of the first one's. The mean is that of `m - l` by mass: the sum of
/// the integers below `2^39 e^(l - m) min(m - l, 128)` as an f32, divided by that of the masses as one. The draw is
/// the token with the greatest `(l - m) / T + g`, of equals the least id, where `g` is
/// [`gumbel(seed, position, id)`](crate::shape::random::gumbel) of Philox4x32-10 and the token's position. Penalties change
/// finite logits, which stay finite: `l / r` where `l > 0`, else `l r`, less the presence penalty, less the frequency
/// penalty times the number of times (rounded together). Every operation is of f32 and rounds to nearest.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Sampling {
    /// 0 takes the likeliest token; else 0.001 to 1000, by which logits are divided before the draw.
    pub temperature: f32,
    /// The number of tokens to draw from; 0 for all.
    pub top_k: u32,
    /// The share of probability of those whose surprise is nearest to the expected one, above 0; 1 for all.
    pub typical_p: f32,
    /// The share of probability of the likeliest, above 0; 1 for all.
    pub top_p: f32,
    /// The least probability, as a share of the likeliest token's; 0 for none.
    pub min_p: f32,
    /// Divides positive logits of tokens that have occurred, and multiplies negative ones: 0.01 to 100; 1 for none.
    pub repetition_penalty: f32,
    /// Taken off logits of tokens that have occurred: at most 10000 either way; 0 for none.
    pub presence_penalty: f32,
    /// Taken off a token's logit for each time it has occurred: at most 10000 either way; 0 for none.
    pub frequency_penalty: f32,
    /// The number of last tokens, prompt included, that penalties look at; `None` for all of the session.
    pub penalty_window: Option<usize>,
    /// Numbers added to the logits of ids, those of one id together: at most 10000 either way.
    pub logit_bias: Vec<(u32, f32)>,
    /// Ids that are never chosen.
    pub banned: Vec<u32>,
    /// The seed of the draws.
    pub seed: u64,
}

impl Sampling {
    /// The likeliest token, always.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        typical_p: 1.0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        penalty_window: None,
        logit_bias: Vec::new(),
        banned: Vec::new(),
        seed: 0,
    };

    /// Draws by this temperature and seed from all tokens.
    pub fn new(temperature: f32, seed: u64) -> Sampling {
        Sampling { temperature, seed, ..Sampling::GREEDY }
    }

    /// With another temperature; 0 takes the likeliest token.
    #[must_use]
    pub fn with_temperature(mut self, temperature: f32) -> Sampling {
        self.temperature = temperature;
        self
    }

    /// From that many of the likeliest tokens; 0 for all.
    #[must_use]
    pub fn with_top_k(mut self, top_k: u32) -> Sampling {
        self.top_k = top_k;
        self
    }

    /// From the tokens of typical surprise that have this share of probability; 1 for all.
    #[must_use]
    pub fn with_typical_p(mut self, typical_p: f32) -> Sampling {
        self.typical_p = typical_p;
        self
    }

    /// From the likeliest tokens that have this share of probability; 1 for all.
    #[must_use]
    pub fn with_top_p(mut self, top_p: f32) -> Sampling {
        self.top_p = top_p;
        self
    }

    /// From tokens at least this share as likely as the likeliest; 0 for all.
    #[must_use]
    pub fn with_min_p(mut self, min_p: f32) -> Sampling {
        self.min_p = min_p;
        self
    }

    /// With penalties for tokens that have occurred: repetition (1 for none), presence and frequency (0 for none).
    #[must_use]
    pub fn with_penalties(mut self, repetition: f32, presence: f32, frequency: f32) -> Sampling {
        (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) = (repetition, presence, frequency);
        self
    }

    /// With penalties for the last tokens only; `None` for all of the session.
    #[must_use]
    pub fn with_penalty_window(mut self, tokens: impl Into<Option<usize>>) -> Sampling {
        self.penalty_window = tokens.into();
        self
    }

    /// With numbers added to the logits of ids.
    #[must_use]
    pub fn with_logit_bias(mut self, bias: impl Into<Vec<(u32, f32)>>) -> Sampling {
        self.logit_bias = bias.into();
        self
    }

    /// Without these ids.
    #[must_use]
    pub fn with_banned(mut self, ids: impl Into<Vec<u32>>) -> Sampling {
        self.banned = ids.into();
        self
    }

    /// With another seed.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Sampling {
        self.seed = seed;
        self
    }

    /// Whether every choice is that of the greatest logit, as the model gives it.
    pub fn is_plain(&self) -> bool {
        let treats = !self.logit_bias.is_empty() || !self.banned.is_empty() || self.penalises();
        self.temperature == 0.0 && self.typical_p == 1.0 && !treats
    }

    /// What is added to the logit of each id, by rising id.
    pub(crate) fn biases(&self) -> BTreeMap<u32, f32> {
        let mut biases = BTreeMap::new();
        for (id, bias) in &self.logit_bias {
            *biases.entry(*id).or_insert(0.0) += bias;
        }
        biases
    }

    fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Checks every parameter, for a vocabulary of that size.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], naming the parameter; a NaN is never right.
    pub fn check(&self, vocab: u32) -> Result<()> {
        let within = |what: &str, value: f32, range: &RangeInclusive<f32>| {
            let expected = || format!("{} to {}", range.start(), range.end());
            refuse_unless(range.contains(&value), what, value, expected)
        };
        let temperature = self.temperature == 0.0 || TEMPERATURES.contains(&self.temperature);
        refuse_unless(temperature, "temperature", self.temperature, || {
            format!("0, which is greedy, or {} to {}", TEMPERATURES.start(), TEMPERATURES.end())
        })?;
        for (what, share) in [("typical_p", self.typical_p), ("top_p", self.top_p)] {
            refuse_unless(share > 0.0 && share <= 1.0, what, share, || "above 0 and at most 1".to_owned())?;
        }
        within("min_p", self.min_p, &(0.0..=1.0))?;
        within("repetition penalty", self.repetition_penalty, &FACTORS)?;
        within("presence penalty", self.presence_penalty, &SUMMANDS)?;
        within("frequency penalty", self.frequency_penalty, &SUMMANDS)?;
        for (id, bias) in &self.logit_bias {
            within(&format!("bias of token {id}"), *bias, &SUMMANDS)?;
        }
        let ids = self.logit_bias.iter().map(|(id, _)| id).chain(&self.banned);
        for id in ids {
            refuse_unless(*id < vocab, "token id of a bias or ban", id, || {
                format!("less than the vocabulary of {vocab}")
            })?;
        }
        Ok(())
    }
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling::GREEDY
    }
}

fn refuse_unless(right: bool, what: &str, found: impl Display, expected: impl FnOnce() -> String) -> Result<()> {
    match right {
        true => Ok(()),
        false => Err(Error::InvalidArgument { what: what.to_owned(), found: found.to_string(), expected: expected() }),
    }
}

#[cfg(test)]
mod tests;
