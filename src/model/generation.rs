//! Generation: an iterator of tokens.

use super::path::{End, Step};
use super::sampling::{Constrained, Constraint, Logprobs, Sampler, Sampling, TokenSet};
use super::session::Session;
use crate::shape::choice::{self, Choice};
use crate::{Error, Result};
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
    /// How tokens are chosen. The device chooses, without the host reading logits, unless there is a wish for
    /// log-probabilities of more than the chosen token: then the host, which reads the logits of every token. The tokens are
    /// the same.
    pub sampling: Sampling,
    /// The number of likeliest tokens whose log-probabilities [`Generation::logprobs`] gives besides the chosen one's;
    /// `None` for none at all. For the chosen one's alone, 0, the host reads no logits.
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

/// How tokens are chosen.
#[derive(Debug)]
enum Chooser {
    /// By the device, one behind the other.
    Together,
    /// One by one, since the host has a say in each; so many are left.
    ByOne(By, usize),
}

/// Who chooses a single token.
#[derive(Debug)]
enum By {
    /// The device, from what a constraint allows.
    Device(Masked),
    Host(Box<Sampler>),
}

/// A choice from what a mask allows.
#[derive(Debug)]
struct Masked {
    choice: Choice,
    /// Whether an item is under way, which awaits the masks of its tokens.
    is_open: bool,
    /// Tokens in a row that were the only ones allowed.
    forced: u32,
}

/// Tokens in a row that are chosen in the item that is under way though nothing else is allowed. Behind them it ends, and
/// what must come runs at once with what follows: the token that was under way runs once more, and a batch takes about as
/// long as a few tokens. Estimated.
const PATIENCE: u32 = 3;

/// A generation beside its session.
#[derive(Debug)]
pub(crate) struct Running {
    options: GenerateOptions,
    cancel: CancelHandle,
    begun: bool,
    /// Whether the session's room, not the wish, limits the number of tokens.
    short: bool,
    chooser: Chooser,
    /// What may be chosen, if not all.
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
    /// With tokens that a constraint allows: each is asked for when the one before is known. Stop ids are to be allowed where
    /// the text may end.
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
        let (chooser, constraint) = (Chooser::Together, None);
        Running { options, cancel, begun: false, short: false, chooser, constraint, logprobs: None, end: None }
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
            if matches!(&self.chooser, Chooser::ByOne(By::Device(Masked { is_open: true, .. }), _)) {
                // The mask that the item awaits does not come.
                let _ = session.end_item();
            }
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
        if self.end.is_some() {
            return Ok(None);
        }
        let step = match &mut self.chooser {
            Chooser::Together => {
                let step =
                    session.next_step().map_err(|error| explained(session, &self.options.sampling, None, error))?;
                let given = session.logprob().filter(|_| matches!(step, Step::Token(_)));
                self.logprobs = given.map(Logprobs::of_chosen);
                step
            }
            Chooser::ByOne(_, 0) => {
                session.end_item()?;
                Step::End(End::Length)
            }
            Chooser::ByOne(by, left) => {
                let (step, logprobs) = choose(session, &self.options, by, *left, self.constraint.as_mut())?;
                *left -= 1;
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
        let (sampling, is_free) = (&self.options.sampling, self.constraint.is_none());
        let Some(choice) = sampling.choice_with(vocab, self.options.logprobs, !is_free) else {
            self.chooser = Chooser::ByOne(By::Host(Box::new(Sampler::new(sampling.clone(), vocab)?)), most);
            return Ok(());
        };
        let choice = session.prepare_choice(sampling, !is_free, choice)?;
        if is_free {
            return session.begin_generation(most, &self.options.stop_ids, choice);
        }
        let masked = Masked { choice, is_open: false, forced: 0 };
        self.chooser = Chooser::ByOne(By::Device(masked), most);
        Ok(())
    }
}

/// The next token, which is appended. Where only one is allowed and no item is under way it is not run for: it runs with
/// those that follow.
fn choose(
    session: &mut Session,
    options: &GenerateOptions,
    by: &mut By,
    left: usize,
    mut constraint: Option<&mut Constrained>,
) -> Result<(Step, Option<Logprobs>)> {
    let (vocab, position) = (session.model().shape().vocab, session.tokens().len());
    let banned = &options.sampling.banned;
    let allowed = constraint.as_mut().map(|constraint| constraint.allowed(vocab, banned, position)).transpose()?;
    let forced = allowed.and_then(TokenSet::only).filter(|_| options.logprobs.is_none());
    let (token, logprobs) = match (forced, by) {
        (Some(token), By::Device(Masked { is_open: false, .. }) | By::Host(_)) => {
            session.push(token);
            (token, None)
        }
        (Some(token), By::Device(masked)) if masked.forced == PATIENCE => {
            masked.close(session)?;
            session.push(token);
            (token, None)
        }
        (_, By::Device(masked)) => {
            masked.forced = if forced.is_some() { masked.forced + 1 } else { 0 };
            match (masked.next(session, options, left, allowed), forced) {
                // Elsewhere the model is not asked either.
                (Err(Error::LogitsNotFinite { .. }), Some(token)) => {
                    masked.close(session)?;
                    session.push(token);
                    (token, None)
                }
                (Err(error), _) => return Err(explained(session, &options.sampling, allowed, error)),
                (Ok(Step::Token(token)), _) => (token, session.logprob().map(Logprobs::of_chosen)),
                (Ok(step), _) => return Ok((step, None)),
            }
        }
        (None, By::Host(sampler)) => {
            let mut logits = session.logits()?;
            let given = options.logprobs.map(|likeliest| (logits.clone(), likeliest));
            let token = sampler.choose_among(&mut logits, session.tokens(), allowed)?;
            session.push(token);
            (token, given.map(|(logits, likeliest)| Logprobs::new(&logits, token, likeliest)))
        }
    };
    let accepted = constraint.map_or(Ok(()), |constraint| constraint.accept(token));
    if accepted.is_err() {
        session.truncate(position);
    }
    accepted.map(|()| (Step::Token(token), logprobs))
}

impl Masked {
    /// Ends the item that is under way.
    fn close(&mut self, session: &mut Session) -> Result<()> {
        self.is_open = false;
        session.end_item()
    }

    /// The next token, one of those allowed.
    fn next(
        &mut self,
        session: &mut Session,
        options: &GenerateOptions,
        left: usize,
        allowed: Option<&TokenSet>,
    ) -> Result<Step> {
        let awaits = session.awaits_masks();
        if !self.is_open {
            session.end_item()?;
        }
        if let Some(allowed) = allowed {
            session.allow(allowed);
        }
        if !self.is_open {
            let mut choice = self.choice;
            choice[choice::FLAGS as usize] |= if awaits { choice::AWAITS } else { 0 };
            session.begin_generation(if awaits { left } else { 1 }, &options.stop_ids, choice)?;
            self.is_open = awaits;
        }
        session.next_step()
    }
}

/// The error of a choice. The device does not say whether logits were no numbers or the mask has left none: the host looks.
fn explained(session: &mut Session, sampling: &Sampling, allowed: Option<&TokenSet>, error: Error) -> Error {
    let masked = allowed.is_some() || !sampling.banned.is_empty();
    if !masked || !matches!(error, Error::LogitsNotFinite { .. }) {
        return error;
    }
    let vocab = session.model().shape().vocab;
    let chosen = session.logits().and_then(|mut logits| {
        Sampler::new(sampling.clone(), vocab)?.choose_among(&mut logits, session.tokens(), allowed)
    });
    chosen.err().unwrap_or(error)
}
