//! Generation: an iterator of tokens.

use super::path::{End, Step};
use super::session::Session;
use crate::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Limits of a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// The most tokens to generate.
    pub max_tokens: usize,
    /// Ids that end the text. The one that does is appended to the session but not yielded. A model's are known to its
    /// tokenizer.
    pub stop_ids: Vec<u32>,
}

impl GenerateOptions {
    /// At most that many tokens, and no stop ids.
    pub const fn new(max_tokens: usize) -> GenerateOptions {
        GenerateOptions { max_tokens, stop_ids: Vec::new() }
    }

    /// With ids that end the text.
    #[must_use]
    pub fn with_stop_ids(mut self, stop_ids: impl Into<Vec<u32>>) -> GenerateOptions {
        self.stop_ids = stop_ids.into();
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
    options: GenerateOptions,
    cancel: CancelHandle,
    begun: bool,
    /// Whether the session's room, not the wish, limits the number of tokens.
    short: bool,
    end: Option<End>,
}

impl Session {
    /// Generates tokens behind those so far.
    pub fn generate(&mut self, options: GenerateOptions) -> Generation<'_> {
        Generation::new(self, options)
    }
}

impl<'a> Generation<'a> {
    fn new(session: &'a mut Session, options: GenerateOptions) -> Generation<'a> {
        Generation { session, options, cancel: CancelHandle::default(), begun: false, short: false, end: None }
    }

    /// A handle that cancels this generation.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// Why it ended, once it has.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Calls `on_token` for each token until it returns false; gives the reason of the end.
    ///
    /// # Errors
    /// As the iterator's items.
    pub fn for_each_token(mut self, mut on_token: impl FnMut(u32) -> bool) -> Result<End> {
        while let Some(token) = self.next() {
            if !on_token(token?) {
                self.stop(End::Cancelled)?;
                break;
            }
        }
        Ok(self.end.unwrap_or(End::Cancelled))
    }

    fn stop(&mut self, end: End) -> Result<()> {
        self.end = Some(end);
        self.session.end_item()
    }

    fn step(&mut self) -> Result<Option<u32>> {
        if self.options.max_tokens == 0 {
            self.end = Some(End::Length);
            return Ok(None);
        }
        if self.cancel.is_cancelled() {
            self.stop(End::Cancelled)?;
            return Ok(None);
        }
        if !self.begun {
            self.begun = true;
            if self.session.tokens().len() >= self.session.capacity() as usize {
                self.end = Some(End::ContextFull);
                return Ok(None);
            }
            // A prompt of more than a batch is cancelled between its batches.
            let batches = self.session.pending() > Session::BATCH;
            if batches && !self.session.prefill_by_batches(|_, _| !self.cancel.is_cancelled())? {
                self.stop(End::Cancelled)?;
                return Ok(None);
            }
            let room = self.session.begin_generation(self.options.max_tokens, &self.options.stop_ids)?;
            self.short = room.is_some();
        }
        match self.session.next_step()? {
            Step::Token(token) if self.options.stop_ids.contains(&token) => {
                self.stop(End::StopId(token))?;
                Ok(None)
            }
            Step::Token(token) => Ok(Some(token)),
            Step::End(end) => {
                self.end = Some(if end == End::Length && self.short { End::ContextFull } else { end });
                Ok(None)
            }
        }
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<u32>;

    fn next(&mut self) -> Option<Result<u32>> {
        if self.end.is_some() {
            return None;
        }
        let step = self.step();
        if step.is_err() {
            self.end = Some(End::Cancelled);
        }
        step.transpose()
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        if self.begun && self.end.is_none() {
            // What failed is reported by the session's next call.
            let _ = self.session.end_item();
        }
    }
}
