//! Generation: an iterator of tokens.

use super::path::{End, Step};
use super::sampling::{Constrained, Constraint, Logprobs, Sampler, Sampling, TokenSet};
use super::session::Session;
use crate::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Limits of a generation, and how its tokens are chosen.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// The most tokens to generate.
    pub max_tokens: usize,
    /// Ids that end the text. The one that does is appended to the session but not yielded. A model's are known to its
    /// tokenizer.
    pub stop_ids: Vec<u32>,
    /// How tokens are chosen. The device chooses, without the host reading logits, unless there is a typical-p, a bias, a
    /// ban, a constraint, or a wish for log-probabilities of more than the chosen token or beside penalties: then the host,
    /// which reads the logits of every token. The tokens
    /// are the same.
    pub sampling: Sampling,
    /// The number of likeliest tokens whose log-probabilities [`Generation::logprobs`] gives besides the chosen one's;
    /// `None` for none at all. For the chosen one's alone, 0, the host reads no logits, unless there are penalties.
    pub logprobs: Option<usize>,
}

impl GenerateOptions {
    /// At most that many tokens, each the likeliest, and no stop ids.
    pub const fn new(max_tokens: usize) -> GenerateOptions {
        GenerateOptions { max_tokens, stop_ids: Vec::new(), sampling: Sampling::GREEDY, logprobs: None }
    }

    /// With ids that end the text.
    #[must_use]
    pub fn with_stop_ids(mut self, stop_ids: impl Into<Vec<u32>>) -> GenerateOptions {
        self.stop_ids = stop_ids.into();
        self
    }

    /// With tokens chosen in another way.
    #[must_use]
    pub fn with_sampling(mut self, sampling: Sampling) -> GenerateOptions {
        self.sampling = sampling;
        self
    }

    /// With log-probabilities of the chosen tokens and of so many of the likeliest.
    #[must_use]
    pub fn with_logprobs(mut self, likeliest: impl Into<Option<usize>>) -> GenerateOptions {
        self.logprobs = likeliest.into();
        self
    }
}

/// Cancels a generation from another thread, before its next token or the next batch of its prompt.
#[derive(Debug, Clone, Default)]
pub struct CancelHandle(Arc<AtomicBool>);

impl CancelHandle {
    /// Cancels.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// An iterator of tokens as they are generated. After the last, [`Generation::end`] gives the reason. Dropping it stops
/// the generation; the session keeps the tokens that were yielded.
#[derive(Debug)]
pub struct Generation<'a> {
    session: &'a mut Session,
    running: Running,
}

/// A generation beside its session.
#[derive(Debug)]
pub(crate) struct Running {
    options: GenerateOptions,
    cancel: CancelHandle,
    begun: bool,
    /// Whether the session's room, not the wish, limits the number of tokens.
    short: bool,
    /// The host's choice, and how many tokens it has chosen; the device's choice where there is none.
    sampler: Option<(Sampler, usize)>,
    /// What the host may choose, if not all.
    constraint: Option<Constrained>,
    logprobs: Option<Logprobs>,
    end: Option<End>,
}

impl Session {
    /// Generates tokens behind those so far. Options that cannot be are the iterator's first and only item.
    pub fn generate(&mut self, options: GenerateOptions) -> Generation<'_> {
        Generation { session: self, running: Running::new(options) }
    }
}

impl Generation<'_> {
    /// With tokens that a constraint allows, chosen by the host. Stop ids are to be allowed where the text may end.
    #[must_use]
    pub fn with_constraint(mut self, constraint: impl Constraint + 'static) -> Self {
        self.running.constrain(Box::new(constraint));
        self
    }

    /// A handle that cancels this generation.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.running.cancel_handle()
    }

    /// Why it ended, once it has.
    pub fn end(&self) -> Option<End> {
        self.running.end()
    }

    /// Log-probabilities of the last token, where they were asked for.
    pub fn logprobs(&self) -> Option<&Logprobs> {
        self.running.logprobs()
    }

    /// Calls `on_token` for each token until it returns false; gives the reason of the end.
    ///
    /// # Errors
    /// As the iterator's items.
    pub fn for_each_token(mut self, mut on_token: impl FnMut(u32) -> bool) -> Result<End> {
        while let Some(token) = self.next() {
            if !on_token(token?) {
                self.running.stop(self.session, End::Cancelled)?;
                break;
            }
        }
        Ok(self.end().unwrap_or(End::Cancelled))
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<u32>;

    fn next(&mut self) -> Option<Result<u32>> {
        self.running.next(self.session)
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        self.running.leave(self.session);
    }
}

impl Running {
    pub(crate) fn new(options: GenerateOptions) -> Running {
        let cancel = CancelHandle::default();
        let (sampler, constraint) = (None, None);
        Running { options, cancel, begun: false, short: false, sampler, constraint, logprobs: None, end: None }
    }

    pub(crate) fn constrain(&mut self, constraint: Box<dyn Constraint>) {
        self.constraint = Some(Constrained::new(constraint));
    }

    pub(crate) fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    pub(crate) fn end(&self) -> Option<End> {
        self.end
    }

    pub(crate) fn logprobs(&self) -> Option<&Logprobs> {
        self.logprobs.as_ref()
    }

    /// The next token, appended to the session; `None` behind the last one, or an error.
    pub(crate) fn next(&mut self, session: &mut Session) -> Option<Result<u32>> {
        if self.end.is_some() {
            return None;
        }
        self.logprobs = None;
        let step = self.step(session);
        if step.is_err() {
            self.end = Some(End::Cancelled);
        }
        step.transpose()
    }

    /// Ends it.
    pub(crate) fn stop(&mut self, session: &mut Session, end: End) -> Result<()> {
        self.end = Some(end);
        session.end_item()
    }

    /// Ends it, if it has not ended. What fails is reported by the session's next call.
    pub(crate) fn leave(&mut self, session: &mut Session) {
        if self.begun && self.end.is_none() {
            let _ = self.stop(session, End::Cancelled);
        }
    }

    fn step(&mut self, session: &mut Session) -> Result<Option<u32>> {
        if self.options.max_tokens == 0 {
            self.end = Some(End::Length);
            return Ok(None);
        }
        if self.cancel.is_cancelled() {
            self.stop(session, End::Cancelled)?;
            return Ok(None);
        }
        if !self.begun {
            self.begun = true;
            self.begin(session)?;
        }
        let step = match (&mut self.sampler, self.end) {
            (_, Some(_)) => return Ok(None),
            (None, None) => {
                let step = session.next_step()?;
                let given = session.logprob().filter(|_| matches!(step, Step::Token(_)));
                self.logprobs = given.map(|chosen| Logprobs { chosen, top: Vec::new() });
                step
            }
            (Some((sampler, left)), None) => {
                let (step, logprobs) = choose(session, sampler, &mut self.constraint, left, self.options.logprobs)?;
                self.logprobs = logprobs;
                step
            }
        };
        match step {
            Step::Token(token) if self.options.stop_ids.contains(&token) => {
                self.stop(session, End::StopId(token))?;
                Ok(None)
            }
            Step::Token(token) => Ok(Some(token)),
            Step::End(end) => {
                self.end = Some(if end == End::Length && self.short { End::ContextFull } else { end });
                Ok(None)
            }
        }
    }

    fn begin(&mut self, session: &mut Session) -> Result<()> {
        let (vocab, room) = (session.model().shape().vocab, session.room());
        self.options.sampling.check(vocab)?;
        if room == 0 {
            self.end = Some(End::ContextFull);
            return Ok(());
        }
        // A prompt of more than a batch is cancelled between its batches.
        let batches = session.pending() > Session::BATCH;
        if batches && !session.prefill_by_batches(|_, _| !self.cancel.is_cancelled())? {
            return self.stop(session, End::Cancelled);
        }
        self.short = room < self.options.max_tokens;
        let most = self.options.max_tokens.min(room);
        let is_free = self.constraint.is_none();
        let choice = self.options.sampling.choice_with(vocab, self.options.logprobs);
        if let Some(choice) = choice.filter(|_| is_free) {
            return session.begin_generation(most, &self.options.stop_ids, choice);
        }
        self.sampler = Some((Sampler::new(self.options.sampling.clone(), vocab)?, most));
        Ok(())
    }
}

/// A token that the host chooses, by an item of its own. Where only one is allowed it is not run for: it runs with those
/// that follow.
fn choose(
    session: &mut Session,
    sampler: &mut Sampler,
    constraint: &mut Option<Constrained>,
    left: &mut usize,
    likeliest: Option<usize>,
) -> Result<(Step, Option<Logprobs>)> {
    if *left == 0 {
        return Ok((Step::End(End::Length), None));
    }
    let (vocab, position) = (session.model().shape().vocab, session.tokens().len());
    let allowed = constraint.as_mut().map(|constraint| constraint.allowed(vocab, position)).transpose()?;
    let forced = allowed.and_then(TokenSet::only).filter(|_| likeliest.is_none());
    let (token, logprobs) = match forced {
        Some(token) => (token, None),
        None => {
            let mut logits = session.logits()?;
            let given = likeliest.map(|likeliest| (logits.clone(), likeliest));
            let token = sampler.choose_among(&mut logits, session.tokens(), allowed)?;
            (token, given.map(|(logits, likeliest)| Logprobs::new(&logits, token, likeliest)))
        }
    };
    if let Some(constraint) = constraint {
        constraint.accept(token)?;
    }
    *left -= 1;
    session.push(token);
    Ok((Step::Token(token), logprobs))
}
