//! Sessions that nobody uses, kept for prompts that begin as theirs do.
//!
//! Which session a prompt gets never shows in its answer: what is kept has the bits that it would have if it ran anew.

use kiln::model::{Session, SessionOptions};
use kiln::{Error, Model, Result};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tokens in common from which on a fork shares memory: a chunk of the cache.
const CHUNK: usize = 128;

/// The shelf, the session that was used last at its end.
pub(super) struct Shelf {
    model: Model,
    options: SessionOptions,
    kept: Mutex<Vec<Session>>,
    most: usize,
}

impl Shelf {
    /// With one session, which shows that there can be one.
    ///
    /// # Errors
    /// As [`Model::session`].
    pub(super) fn new(model: &Model, options: SessionOptions, most: usize) -> Result<Shelf> {
        let first = model.session(options)?;
        Ok(Shelf { model: model.clone(), options, kept: Mutex::new(vec![first]), most })
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Session>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.kept().len()
    }

    /// A session for a prompt, and how many of the prompt's first tokens it holds; it holds no others.
    ///
    /// # Errors
    /// As [`Model::session`].
    pub(super) fn lend(&self, ids: &[u32]) -> Result<(Session, usize)> {
        let common = |session: &Session| session.tokens().iter().zip(ids).take_while(|(a, b)| a == b).count();
        let mut kept = self.kept();
        let best = kept.iter().map(common).enumerate().max_by_key(|(_, common)| *common);
        let (index, forks) = match best {
            // The prompt goes on where the session ended.
            Some((index, common)) if common == kept[index].tokens().len() => (index, false),
            // Another conversation with the same beginning: both go on.
            Some((index, common)) if common >= CHUNK => (index, true),
            // Nobody's beginning: in the place of the one that was used least recently, unless they are few.
            Some(_) if kept.len() >= self.most => (0, false),
            _ => {
                drop(kept);
                return Ok((self.another()?, 0));
            }
        };
        let mut session = kept.remove(index);
        drop(kept);
        if forks {
            let fork = session.fork();
            self.keep(session);
            session = match fork {
                Err(Error::OutOfMemory { .. }) => return Ok((self.another()?, 0)),
                fork => fork?,
            };
        }
        let common = common(&session);
        session.truncate(common);
        Ok((session, common))
    }

    /// A new session; where memory does not suffice, in the place of those that are kept.
    fn another(&self) -> Result<Session> {
        match self.model.session(self.options) {
            Err(Error::OutOfMemory { .. }) if self.clear() => self.model.session(self.options),
            session => session,
        }
    }

    /// Keeps a session.
    pub(super) fn keep(&self, session: Session) {
        let mut kept = self.kept();
        kept.push(session);
        let least = (kept.len() > self.most).then(|| kept.remove(0));
        drop(kept);
        // Freeing may wait for the device.
        drop(least);
    }

    /// Frees what is kept; whether there was anything.
    pub(super) fn clear(&self) -> bool {
        let kept = std::mem::take(&mut *self.kept());
        !kept.is_empty()
    }
}
