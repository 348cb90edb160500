//! Sessions: a sequence of tokens with its KV cache.

use super::generation::{GenerateOptions, Generation};
use super::sequence::{self, Sequence};
use super::stream::StreamPath;
use super::{KvType, Model};
use crate::{Error, Result};

/// What a session is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SessionOptions {
    /// The cache's type.
    pub kv: KvType,
    /// Positions it may grow to; `None` for all that the model was trained for.
    pub capacity: Option<u32>,
}

/// A sequence of tokens and its KV cache, which grows by need. Sessions of one model share its weights, and may run in
/// different threads.
pub struct Session {
    model: Model,
    path: StreamPath,
    sequence: Sequence,
    /// Every token, by position.
    tokens: Vec<u32>,
    cursor: Cursor,
}

/// Where the device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cursor {
    /// The last token was run: its residual stream is there, and the state points at it.
    Ran,
    /// The state points at the last token, which was chosen and not yet run.
    Chosen,
    /// Elsewhere.
    Lost,
}

impl Session {
    pub(super) fn new(model: &Model, options: SessionOptions) -> Result<Session> {
        let inner = &model.inner;
        let context = inner.file.shape().context;
        let capacity = options.capacity.unwrap_or(context);
        if capacity == 0 || capacity > context {
            return Err(Error::InvalidArgument {
                what: "capacity of a session".to_owned(),
                found: capacity.to_string(),
                expected: format!("1 to {context}, the model's context"),
            });
        }
        sequence::check_memory(&inner.device, inner.file.shape(), options.kv)?;
        let sequence = Sequence::new(inner, options.kv, capacity)?;
        let path = StreamPath { stream: inner.device.stream()?, launches: 0 };
        Ok(Session { model: model.clone(), path, sequence, tokens: Vec::new(), cursor: Cursor::Lost })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Every token so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Positions that the session may grow to.
    pub fn capacity(&self) -> u32 {
        self.sequence.capacity
    }

    /// Kernels launched so far.
    pub fn launches(&self) -> u64 {
        self.path.launches
    }

    /// The most bytes of device memory that a session takes, its cache full.
    pub fn memory_need(model: &Model, options: SessionOptions) -> u64 {
        let shape = model.shape();
        sequence::bytes(shape, options.kv, options.capacity.unwrap_or(shape.context))
    }

    /// Runs the model over `ids`, behind the tokens so far.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an id outside the vocabulary, [`Error::ContextFull`] if they do not fit; then
    /// nothing has changed. What the driver reports.
    pub fn append(&mut self, ids: &[u32]) -> Result<()> {
        let vocab = self.model.shape().vocab;
        if let Some(id) = ids.iter().find(|id| **id >= vocab) {
            return Err(Error::InvalidArgument {
                what: "token id".to_owned(),
                found: id.to_string(),
                expected: format!("less than the vocabulary of {vocab}"),
            });
        }
        let (used, capacity) = (self.tokens.len(), self.sequence.capacity as usize);
        if ids.len() > capacity - used {
            return Err(Error::ContextFull { used, more: ids.len(), capacity });
        }
        if ids.is_empty() {
            return Ok(());
        }
        if used > 0 {
            self.run_last()?;
        }
        self.sequence.grow(&self.model.inner, (used + ids.len()) as u32)?;
        self.sequence.write_tokens(used as u32, ids)?;
        for id in ids {
            match self.cursor {
                Cursor::Ran => self.path.advance(&self.model.inner, &self.sequence)?,
                _ => self.sequence.seek(self.tokens.len() as u32)?,
            }
            self.tokens.push(*id);
            self.cursor = Cursor::Chosen;
            self.run_last()?;
        }
        self.sequence.check(&self.path.stream)
    }

    /// The logits after the last token, `[vocab]`.
    ///
    /// # Errors
    /// [`Error::EmptySession`] before the first token; what the driver reports.
    pub fn logits(&mut self) -> Result<Vec<f32>> {
        self.run_last()?;
        self.path.head(&self.model.inner, &self.sequence)?;
        self.sequence.logits.to_host()
    }

    /// Chooses the next token greedily and appends it.
    ///
    /// # Errors
    /// [`Error::EmptySession`] before the first token, [`Error::ContextFull`] where there is no room; what the driver
    /// reports.
    pub fn next_token(&mut self) -> Result<u32> {
        let (used, capacity) = (self.tokens.len(), self.sequence.capacity as usize);
        if used == capacity {
            return Err(Error::ContextFull { used, more: 1, capacity });
        }
        self.run_last()?;
        self.path.head(&self.model.inner, &self.sequence)?;
        self.cursor = Cursor::Lost;
        self.path.argmax(&self.model.inner, &self.sequence)?;
        let token = self.sequence.token(&self.path.stream, used as u32)?;
        self.tokens.push(token);
        self.cursor = Cursor::Chosen;
        Ok(token)
    }

    /// Has the last token be run.
    fn run_last(&mut self) -> Result<()> {
        let Some(last) = self.tokens.len().checked_sub(1) else {
            return Err(Error::EmptySession);
        };
        if self.cursor == Cursor::Ran {
            return Ok(());
        }
        if self.cursor == Cursor::Lost {
            self.sequence.seek(last as u32)?;
        }
        self.cursor = Cursor::Lost;
        self.sequence.grow(&self.model.inner, last as u32 + 1)?;
        self.path.forward(&self.model.inner, &self.sequence, last as u32)?;
        self.cursor = Cursor::Ran;
        Ok(())
    }

    /// Forgets all tokens from position `len` on.
    pub fn truncate(&mut self, len: usize) {
        if len < self.tokens.len() {
            self.tokens.truncate(len);
            self.cursor = Cursor::Lost;
        }
    }

    /// A copy that goes on by itself.
    ///
    /// # Errors
    /// If the copy does not fit the device's memory; what the driver reports.
    pub fn fork(&self) -> Result<Session> {
        let inner = &self.model.inner;
        let path = StreamPath { stream: inner.device.stream()?, launches: 0 };
        let sequence = self.sequence.fork(inner, &path.stream, self.tokens.len() as u32)?;
        let (model, tokens) = (self.model.clone(), self.tokens.clone());
        Ok(Session { model, path, sequence, tokens, cursor: self.cursor })
    }

    /// Generates tokens behind those so far.
    pub fn generate(&mut self, options: GenerateOptions) -> Generation<'_> {
        Generation::new(self, options)
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("tokens", &self.tokens.len())
            .field("capacity", &self.sequence.capacity)
            .finish_non_exhaustive()
    }
}
