//! Generation: an iterator of tokens.

use super::session::Session;
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// When to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerateOptions {
    /// The most tokens to generate.
    pub max_tokens: usize,
    /// Ids that end the text; they are generated, not given out. A tokenizer knows those of a model.
    pub stop_ids: Vec<u32>,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// It has as many tokens as were asked for.
    Length,
    /// The model chose a stop id.
    StopId(u32),
    /// The session has no room.
    ContextFull,
    /// It was cancelled.
    Cancelled,
}

/// Cancels a generation from another thread, before its next token.
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

/// Tokens as they are generated. After the last, [`Generation::end`] says why it was the last.
#[derive(Debug)]
pub struct Generation<'a> {
    session: &'a mut Session,
    options: GenerateOptions,
    cancel: CancelHandle,
    made: usize,
    end: Option<End>,
    failed: bool,
}

impl<'a> Generation<'a> {
    pub(super) fn new(session: &'a mut Session, options: GenerateOptions) -> Generation<'a> {
        Generation { session, options, cancel: CancelHandle::default(), made: 0, end: None, failed: false }
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
                self.end = Some(End::Cancelled);
                break;
            }
        }
        Ok(self.end.unwrap_or(End::Cancelled))
    }

    fn ended(&mut self, end: End) -> Option<Result<u32>> {
        self.end = Some(end);
        None
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<u32>;

    fn next(&mut self) -> Option<Result<u32>> {
        if self.end.is_some() || self.failed {
            return None;
        }
        if self.made >= self.options.max_tokens {
            return self.ended(End::Length);
        }
        if self.cancel.is_cancelled() {
            return self.ended(End::Cancelled);
        }
        match self.session.next_token() {
            Ok(token) if self.options.stop_ids.contains(&token) => self.ended(End::StopId(token)),
            Ok(token) => {
                self.made += 1;
                Some(Ok(token))
            }
            Err(Error::ContextFull { .. }) => self.ended(End::ContextFull),
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }
}
