//! The chain from logits to a token.

use super::Sampling;
use crate::shape::arithmetic::exp;
use crate::shape::random::gumbel;
use crate::{Error, Result};
use std::cmp::Ordering;

/// Parts of the likeliest token's probability in which masses are counted: a vocabulary of 2^24 tokens has less than 2^64.
const MASS_OF_ONE: f32 = (1u64 << 39) as f32;

/// Tokens that are first put in order where a share of probability is looked for, and how many times more next.
const FIRST_SORTED: usize = 64;
const MORE_SORTED: usize = 8;

/// Chooses tokens by one [`Sampling`]; keeps its working memory.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    pub(super) candidates: Vec<Candidate>,
    recent: Vec<u32>,
}

/// A token that may be chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) id: u32,
    logit: f32,
    /// `e^(logit - most)`, where a filter asks for it.
    weight: f32,
}

impl Candidate {
    /// The weight as an integer: its sums have no order.
    fn mass(&self) -> u64 {
        mass(self.weight)
    }

    /// The likeliest first, of equals the least id.
    fn rank(&self, other: &Candidate) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.id.cmp(&other.id))
    }
}

/// A number from 0 to 1 as an integer.
pub(super) fn mass(weight: f32) -> u64 {
    (weight * MASS_OF_ONE) as u64
}

/// An integer in units of [`mass`] as a number.
pub(super) fn weight(mass: u64) -> f32 {
    mass as f32 / MASS_OF_ONE
}

/// That share, below 1, of a mass.
fn share_of(share: f32, mass: u64) -> u64 {
    let share = (f64::from(share) * (1u128 << 64) as f64) as u64;
    ((u128::from(share) * u128::from(mass)) >> 64) as u64
}

impl Sampler {
    /// A sampler for logits of `vocab` tokens.
    ///
    /// # Errors
    /// As [`Sampling::check`].
    pub fn new(sampling: Sampling, vocab: u32) -> Result<Sampler> {
        sampling.check(vocab)?;
        Ok(Sampler { sampling, candidates: Vec::new(), recent: Vec::new() })
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
        let (position, infinite) = (tokens.len(), f32::INFINITY);
        let numbers = logits.iter().all(|logit| *logit < infinite);
        if !numbers || logits.iter().all(|logit| *logit == -infinite) {
            return Err(Error::LogitsNotFinite { position: position.saturating_sub(1) });
        }
        self.treat(logits, tokens);
        // Adding 0 makes -0 a 0: they are equal.
        let all = logits.iter().zip(0..).map(|(logit, id)| Candidate { id, logit: logit + 0.0, weight: 0.0 });
        self.candidates.clear();
        self.candidates.extend(all.filter(|candidate| candidate.logit > -infinite));
        let most = self.candidates.iter().map(|candidate| candidate.logit).fold(-infinite, f32::max);
        self.filter(most);
        let chosen = match self.sampling.temperature {
            0.0 => self.candidates.iter().copied().min_by(Candidate::rank),
            temperature => self.draw(most, temperature, position as u32),
        };
        chosen.map(|candidate| candidate.id).ok_or(Error::NoTokenAllowed { position })
    }

    /// Biases, bans and penalties.
    fn treat(&mut self, logits: &mut [f32], tokens: &[u32]) {
        let sampling = &self.sampling;
        for (id, bias) in &sampling.logit_bias {
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
            let Some(logit) = same.first().and_then(|id| logits.get_mut(*id as usize)) else { continue };
            let factor = sampling.repetition_penalty;
            let scaled = if *logit > 0.0 { *logit / factor } else { *logit * factor };
            let present = scaled - sampling.presence_penalty;
            // A product that overflows is the greatest float.
            *logit = (-sampling.frequency_penalty).mul_add(same.len() as f32, present).min(f32::MAX);
        }
    }

    /// Leaves the candidates that pass every filter; of several at least one.
    fn filter(&mut self, most: f32) {
        let (sampling, candidates) = (&self.sampling, &mut self.candidates);
        let top_k = sampling.top_k as usize;
        if (1..candidates.len()).contains(&top_k) {
            candidates.select_nth_unstable_by(top_k, Candidate::rank);
            candidates.truncate(top_k);
        }
        if sampling.typical_p == 1.0 && sampling.top_p == 1.0 && sampling.min_p == 0.0 {
            return;
        }
        for candidate in candidates.iter_mut() {
            candidate.weight = exp(candidate.logit - most);
        }
        if sampling.typical_p < 1.0 {
            let total = total(candidates);
            // Surprises, -ln p, differ from their mean as what logits lack of the greatest does from its own.
            let lacks = |candidate: &Candidate| most - candidate.logit;
            let moment: u64 =
                candidates.iter().map(|candidate| mass(candidate.weight * lacks(candidate).min(128.0))).sum();
            let mean = moment as f32 / total as f32;
            let distance = |candidate: &Candidate| (lacks(candidate) - mean).abs();
            keep(candidates, share_of(sampling.typical_p, total), |a, b| {
                distance(a).total_cmp(&distance(b)).then(a.id.cmp(&b.id))
            });
        }
        if sampling.top_p < 1.0 {
            let wanted = share_of(sampling.top_p, total(candidates));
            keep(candidates, wanted, Candidate::rank);
        }
        if sampling.min_p > 0.0 {
            let most = candidates.iter().map(Candidate::mass).max().unwrap_or(0);
            let least = if sampling.min_p < 1.0 { share_of(sampling.min_p, most) } else { most };
            candidates.retain(|candidate| candidate.mass() >= least);
        }
    }

    /// The candidate with the greatest `(logit - most) / temperature + gumbel`, of equals the least id: a draw by softmax.
    fn draw(&self, most: f32, temperature: f32, position: u32) -> Option<Candidate> {
        let value = |candidate: &Candidate| {
            (candidate.logit - most) / temperature + gumbel(self.sampling.seed, position, candidate.id)
        };
        let valued = self.candidates.iter().map(|candidate| (value(candidate), candidate));
        let best = valued.max_by(|(a, of_a), (b, of_b)| a.total_cmp(b).then(of_b.id.cmp(&of_a.id)));
        best.map(|(_, candidate)| *candidate)
    }
}

fn total(candidates: &[Candidate]) -> u64 {
    candidates.iter().map(Candidate::mass).sum()
}

/// Keeps the first candidates in an order, as few as have the mass that is wanted, and at least one.
fn keep(candidates: &mut Vec<Candidate>, wanted: u64, order: impl Fn(&Candidate, &Candidate) -> Ordering) {
    let mut looked = FIRST_SORTED;
    while looked < candidates.len() {
        let (first, ..) = candidates.select_nth_unstable_by(looked, &order);
        if total(first) >= wanted {
            candidates.truncate(looked);
            break;
        }
        looked *= MORE_SORTED;
    }
    candidates.sort_unstable_by(&order);
    let mut before = 0;
    let kept = candidates.iter().take_while(|candidate| {
        let keeps = before < wanted.max(1);
        before += candidate.mass();
        keeps
    });
    let kept = kept.count();
    candidates.truncate(kept);
}
