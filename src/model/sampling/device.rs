//! The words of a choice that the device makes.

use super::Sampling;
use crate::shape::choice::{self, Choice, MASS_OF_ONE, share, share_of};

impl Sampling {
    /// The words by which kernels choose from a vocabulary of that size, with the bits of [`Sampler`](super::Sampler).
    /// `None` where words are not enough: with biases or bans.
    pub fn choice(&self, vocab: u32) -> Option<Choice> {
        self.choice_with(vocab, None, false).filter(|_| self.logit_bias.is_empty() && self.banned.is_empty())
    }

    /// The same with biases and a mask, which is there for bans and for a constraint, but for their addresses; and with
    /// log-probabilities of the chosen token and of so many of the likeliest. `None` where only the host chooses: where
    /// log-probabilities of the likeliest are wanted.
    pub(crate) fn choice_with(&self, vocab: u32, logprobs: Option<usize>, constrained: bool) -> Option<Choice> {
        if logprobs.is_some_and(|likeliest| likeliest > 0) {
            return None;
        }
        let (logprob, has_biases) = (logprobs.is_some(), !self.logit_bias.is_empty());
        let has_mask = constrained || !self.banned.is_empty();
        let treats = self.penalises() || has_biases || has_mask;
        let mut words = [0; choice::WORDS as usize];
        let mut put = |word: u32, value: u32| words[word as usize] = value;
        let has_typical_p = self.typical_p < 1.0;
        // The likeliest may be no typical one.
        let draws = self.temperature != 0.0 || has_typical_p;
        // A draw of the likeliest alone, or the greatest logit, asks for no filter.
        let top_k = if draws && self.top_k < vocab { self.top_k } else { 0 };
        let has_p = draws && self.top_p < 1.0;
        let flags = [
            (draws, choice::DRAWS),
            (top_k > 0 || has_typical_p || has_p, choice::FILTERS),
            (has_typical_p, choice::HAS_TYPICAL_P),
            (has_p, choice::HAS_TOP_P),
            (self.penalises(), choice::PENALISES),
            (logprob, choice::LOGPROB),
            (has_biases, choice::HAS_BIASES),
            (has_mask, choice::HAS_MASK),
            (logprob && treats, choice::KEEPS),
        ];
        put(choice::FLAGS, flags.into_iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum());
        put(choice::TEMPERATURE, self.temperature.to_bits());
        put(choice::TOP_K, top_k);
        let window = self.penalty_window.and_then(|tokens| u32::try_from(tokens).ok());
        put(choice::PENALTY_WINDOW, window.unwrap_or(u32::MAX));
        put(choice::REPETITION, self.repetition_penalty.to_bits());
        put(choice::PRESENCE, self.presence_penalty.to_bits());
        put(choice::FREQUENCY, self.frequency_penalty.to_bits());
        // The likeliest token has all of a mass. Of the filters before this one a typical-p alone may take it away.
        let long = [
            (choice::LEAST, share_of(share(self.min_p), MASS_OF_ONE as u64)),
            (choice::TOP_P, if has_p { share(self.top_p) } else { 0 }),
            (choice::SEED, self.seed),
            (choice::TYPICAL_P, if has_typical_p { share(self.typical_p) } else { 0 }),
            (choice::MIN_P, share(self.min_p)),
        ];
        for (word, value) in long {
            put(word, value as u32);
            put(word + 1, (value >> 32) as u32);
        }
        Some(words)
    }
}
