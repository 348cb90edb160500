//! The chain from logits to a token.

use super::{Sampling, TokenSet};
use crate::shape::arithmetic::exp;
use crate::shape::choice::{mass, moment, share, share_of};
use crate::shape::random::{bits, gumbel_at_most, gumbel_of};
use crate::{Error, Result};
use std::collections::BTreeMap;

/// Tokens that are first put in order where a share of probability is looked for, and how many times more next.
const FIRST_SORTED: usize = 64;
const MORE_SORTED: usize = 8;

/// Chooses tokens by one [`Sampling`]; keeps its working memory.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    /// What is added to the logits of ids.
    biases: BTreeMap<u32, f32>,
    /// The tokens that may be chosen, as [`key`] has them.
    pub(super) candidates: Vec<u64>,
    /// `e^(logit - most)` by id, where a filter asks for it.
    weights: Vec<f32>,
    recent: Vec<u32>,
}

/// An id behind a number, so that the least key has the least number, of equals the least id.
fn key(number: f32, id: u32) -> u64 {
    // Adding 0 makes -0 a 0: they are equal. Bits of negative numbers fall as the numbers rise.
    let bits = (number + 0.0).to_bits();
    let order = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    u64::from(order) << 32 | u64::from(id)
}

/// The id in a key.
pub(super) fn id(key: u64) -> u32 {
    key as u32
}

/// The keys of all logits but those of -inf: the greatest logit has the least.
pub(super) fn ranked(logits: &[f32]) -> impl Iterator<Item = u64> {
    let possible = logits.iter().zip(0..).filter(|(logit, _)| **logit > f32::NEG_INFINITY);
    possible.map(|(logit, id)| key(-logit, id))
}

/// Leaves the least keys, so many, in any order.
pub(super) fn keep_least(keys: &mut Vec<u64>, count: usize) {
    if count < keys.len() {
        keys.select_nth_unstable(count);
        keys.truncate(count);
    }
}

impl Sampler {
    /// A sampler for logits of `vocab` tokens.
    ///
    /// # Errors
    /// As [`Sampling::check`].
    pub fn new(sampling: Sampling, vocab: u32) -> Result<Sampler> {
        sampling.check(vocab)?;
        let biases = sampling.biases();
        Ok(Sampler { sampling, biases, candidates: Vec::new(), weights: Vec::new(), recent: Vec::new() })
    }

    /// The parameters.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Chooses the token behind `tokens` from its logits, `[vocab]`, which biases, bans and penalties change in place.
    ///
    /// # Errors
    /// [`Error::LogitsNotFinite`] for a NaN or +inf, or all -inf; [`Error::NoTokenAllowed`] if every token is banned.
    pub fn choose(&mut self, logits: &mut [f32], tokens: &[u32]) -> Result<u32> {
        self.choose_among(logits, tokens, None)
    }

    /// As [`Sampler::choose`], from some of the ids. The others are as if they were banned.
    ///
    /// # Errors
    /// As [`Sampler::choose`].
    pub fn choose_among<'a>(
        &mut self,
        logits: &mut [f32],
        tokens: &[u32],
        allowed: impl Into<Option<&'a TokenSet>>,
    ) -> Result<u32> {
        let (position, infinite) = (tokens.len(), f32::INFINITY);
        let numbers = logits.iter().all(|logit| *logit < infinite);
        if !numbers || logits.iter().all(|logit| *logit == -infinite) {
            return Err(Error::LogitsNotFinite { position: position.saturating_sub(1) });
        }
        if let Some(allowed) = allowed.into() {
            allowed.mask(logits);
        }
        self.treat(logits, tokens);
        self.candidates.clear();
        self.candidates.extend(ranked(logits));
        let most = logits.iter().copied().fold(-infinite, f32::max);
        self.filter(logits, most);
        let chosen = match self.sampling.temperature {
            0.0 => self.candidates.iter().min().map(|key| id(*key)),
            temperature => self.draw(logits, most, temperature, position as u32),
        };
        chosen.ok_or(Error::NoTokenAllowed { position })
    }

    /// Biases, bans and penalties.
    fn treat(&mut self, logits: &mut [f32], tokens: &[u32]) {
        let sampling = &self.sampling;
        for (id, bias) in &self.biases {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit += bias;
            }
        }
        for id in &sampling.banned {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        if !sampling.penalises() {
            return;
        }
        let window = sampling.penalty_window.unwrap_or(tokens.len());
        self.recent.clear();
        self.recent.extend_from_slice(&tokens[tokens.len().saturating_sub(window)..]);
        self.recent.sort_unstable();
        for same in self.recent.chunk_by(|a, b| a == b) {
            let found = same.first().and_then(|id| logits.get_mut(*id as usize));
            let Some(logit) = found.filter(|logit| logit.is_finite()) else { continue };
            let factor = sampling.repetition_penalty;
            let scaled = if *logit > 0.0 { *logit / factor } else { *logit * factor };
            let present = scaled - sampling.presence_penalty;
            let penalised = (-sampling.frequency_penalty).mul_add(same.len() as f32, present);
            // What overflows is the greatest float: a penalty bans no token.
            *logit = penalised.clamp(-f32::MAX, f32::MAX);
        }
    }

    /// Leaves the candidates that pass every filter; of several at least one.
    fn filter(&mut self, logits: &[f32], most: f32) {
        let Sampler { sampling, candidates, weights, .. } = self;
        if sampling.top_k > 0 {
            keep_least(candidates, sampling.top_k as usize);
        }
        if sampling.typical_p == 1.0 && sampling.top_p == 1.0 && sampling.min_p == 0.0 {
            return;
        }
        weights.resize(logits.len(), 0.0);
        for key in candidates.iter() {
            weights[id(*key) as usize] = exp(logits[id(*key) as usize] - most);
        }
        let mass_of = |key: &u64| mass(weights[id(*key) as usize]);
        if sampling.typical_p < 1.0 {
            let total: u64 = candidates.iter().map(mass_of).sum();
            // Surprises, -ln p, differ from their mean as what logits lack of the greatest does from its own.
            let lacks = |id: u32| most - logits[id as usize];
            let moment_of = |key: &u64| moment(weights[id(*key) as usize], lacks(id(*key)));
            let mean = candidates.iter().map(moment_of).sum::<u64>() as f32 / total as f32;
            for candidate in candidates.iter_mut() {
                *candidate = key((lacks(id(*candidate)) - mean).abs(), id(*candidate));
            }
            keep_share(candidates, share_of(share(sampling.typical_p), total), mass_of);
            for candidate in candidates.iter_mut() {
                *candidate = key(-logits[id(*candidate) as usize], id(*candidate));
            }
        }
        if sampling.top_p < 1.0 {
            let total = candidates.iter().map(mass_of).sum();
            keep_share(candidates, share_of(share(sampling.top_p), total), mass_of);
        }
        if sampling.min_p > 0.0 {
            let most = candidates.iter().min().map_or(0, mass_of);
            let least = share_of(share(sampling.min_p), most);
            candidates.retain(|key| mass_of(key) >= least);
        }
    }

    /// The candidate with the greatest `(logit - most) / temperature + gumbel`, of equals the least id: a draw by softmax.
    fn draw(&self, logits: &[f32], most: f32, temperature: f32, position: u32) -> Option<u32> {
        let (mut best, mut least) = (None, f32::NEG_INFINITY);
        for id in self.candidates.iter().map(|candidate| id(*candidate)) {
            let scaled = (logits[id as usize] - most) / temperature;
            let bits = bits(self.sampling.seed, position, id);
            // Most are out of the question before their logarithms are taken.
            if scaled + gumbel_at_most(bits) < least {
                continue;
            }
            let value = scaled + gumbel_of(bits);
            best = best.into_iter().chain([key(-value, id)]).min();
            least = least.max(value);
        }
        best.map(id)
    }
}

/// Keeps the least keys, as few as have the mass that is wanted, and at least one.
fn keep_share(keys: &mut Vec<u64>, wanted: u64, mass_of: impl Fn(&u64) -> u64) {
    let mut looked = FIRST_SORTED;
    while looked < keys.len() {
        let (first, ..) = keys.select_nth_unstable(looked);
        if first.iter().map(&mass_of).sum::<u64>() >= wanted {
            keys.truncate(looked);
            break;
        }
        looked *= MORE_SORTED;
    }
    keys.sort_unstable();
    let mut before = 0;
    let kept = keys.iter().take_while(|key| {
        let keeps = before < wanted.max(1);
        before += mass_of(key);
        keeps
    });
    let kept = kept.count();
    keys.truncate(kept);
}
