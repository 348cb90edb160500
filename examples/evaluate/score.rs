//! Logits at every position of a text, and how well they foretell it.

use kiln::model::Session;

/// Runs `ids` through `session`, window by window, each beginning with an empty cache, and gives `row` the logits at every
/// position: what follows `ids[..=position]`, as far as the window reaches back.
pub(crate) fn each_position<E: From<kiln::Error>>(
    session: &mut Session,
    ids: &[u32],
    window: usize,
    mut row: impl FnMut(usize, &[f32]) -> Result<(), E>,
) -> Result<(), E> {
    for (first, part) in (0..).step_by(window).zip(ids.chunks(window)) {
        session.truncate(0);
        session.append(part)?;
        session.each_logits(|position, logits| row(first + position, logits))?;
    }
    Ok(())
}

/// The surprise at the tokens of a text.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Perplexity {
    /// Sum of `-ln p(token)`.
    surprise: f64,
    /// Tokens that were foretold.
    pub(crate) tokens: usize,
}

impl Perplexity {
    /// Adds a token, of which these are the logits.
    pub(crate) fn add(&mut self, logits: &[f32], token: u32) {
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = logits.iter().map(|logit| f64::from(logit - highest).exp()).sum();
        // A token outside the vocabulary has no probability; a session refuses it before it comes here.
        let logit = logits.get(token as usize).map_or(f64::NEG_INFINITY, |logit| f64::from(logit - highest));
        self.surprise += total.ln() - logit;
        self.tokens += 1;
    }

    /// `exp` of the mean surprise, if there was a token.
    pub(crate) fn value(&self) -> Option<f64> {
        (self.tokens > 0).then(|| (self.surprise / self.tokens as f64).exp())
    }
}
