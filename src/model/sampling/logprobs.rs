//! Log-probabilities of tokens, by the logits as the model gives them.

use super::chain::{id, keep_least, ranked};
use crate::shape::arithmetic::ln;
use crate::shape::choice::{mass_of, weight};

/// Natural logarithms of probabilities, at temperature 1 and before biases, penalties and filters.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Logprobs {
    /// Of the token that was chosen.
    pub chosen: f32,
    /// Of the likeliest tokens, the likeliest first, of equals the least id.
    pub top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// Of the chosen token alone.
    pub(crate) fn of_chosen(chosen: f32) -> Logprobs {
        Logprobs { chosen, top: Vec::new() }
    }

    /// Of the `chosen` id and the `count` likeliest, from logits of which none is NaN and the greatest finite. An id beyond
    /// the logits has -inf.
    pub fn new(logits: &[f32], chosen: u32, count: usize) -> Logprobs {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: u64 = logits.iter().map(|logit| mass_of(*logit, most)).sum();
        let total = ln(weight(total).max(1.0));
        let of = |logit: f32| (logit - most) - total;
        let logit = |id: u32| logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
        let mut likeliest: Vec<u64> = ranked(logits).collect();
        keep_least(&mut likeliest, count);
        likeliest.sort_unstable();
        let top = likeliest.into_iter().map(|key| (id(key), of(logit(id(key)))));
        Logprobs { chosen: of(logit(chosen)), top: top.collect() }
    }
}
