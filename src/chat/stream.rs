//! Text as it is generated.

use crate::model::{CancelHandle, Constraint, End, GenerateOptions, Logprobs, Running, Session};
use crate::text::{Special, StopStrings, TokenDecoder, Tokenizer};
use crate::{Error, Result};
use std::borrow::{Borrow, BorrowMut};

/// An iterator over text as it is generated: pieces of whole characters, which no stop string begins in. It ends at the
/// tokenizer's end-of-generation tokens as well as at those of the options; control tokens are left out.
///
/// Over a session of its own it can be sent to another thread, and gives the session back.
///
/// ```no_run
/// # fn write(session: kiln::Session, tokenizer: kiln::text::Tokenizer) -> kiln::Result<()> {
/// use kiln::model::GenerateOptions;
///
/// let text = session.into_text(&tokenizer, GenerateOptions::new(40)).with_stop(["\n\n"])?;
/// let worker = std::thread::spawn(move || text.collect::<kiln::Result<String>>());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TextStream<S: BorrowMut<Session> = Session> {
    session: S,
    running: Running,
    decoder: TokenDecoder,
    stop: StopStrings,
    ids: Vec<u32>,
    end: Option<End>,
    /// What failed behind the last text.
    error: Option<Error>,
}

/// A session that a stream works on and whose item ends with it.
#[derive(Debug)]
pub struct Lent<'a>(&'a mut Session);

impl Borrow<Session> for Lent<'_> {
    fn borrow(&self) -> &Session {
        self.0
    }
}

impl BorrowMut<Session> for Lent<'_> {
    fn borrow_mut(&mut self) -> &mut Session {
        self.0
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // What failed is reported by the session's next call.
        let _ = self.0.end_item();
    }
}

impl Session {
    /// Generates text behind the tokens so far.
    pub fn text(&mut self, tokenizer: &Tokenizer, options: GenerateOptions) -> TextStream<Lent<'_>> {
        TextStream::new(Lent(self), tokenizer, options)
    }

    /// As [`Session::text`], by a stream that has the session for its own.
    pub fn into_text(self, tokenizer: &Tokenizer, options: GenerateOptions) -> TextStream {
        TextStream::new(self, tokenizer, options)
    }
}

impl TextStream {
    /// Ends the text, and gives the session back with the tokens so far.
    pub fn into_session(mut self) -> Session {
        self.running.leave(&mut self.session);
        self.session
    }
}

impl<S: BorrowMut<Session>> TextStream<S> {
    fn new(session: S, tokenizer: &Tokenizer, mut options: GenerateOptions) -> TextStream<S> {
        options.stop_ids.extend_from_slice(tokenizer.end_of_generation());
        TextStream {
            session,
            running: Running::new(options),
            decoder: tokenizer.decoder(Special::Plain),
            stop: StopStrings::default(),
            ids: Vec::new(),
            end: None,
            error: None,
        }
    }

    /// With strings that end the text; the one that does is left out of it. The session keeps its tokens.
    ///
    /// # Errors
    /// [`TextError::EmptyStopString`](crate::text::TextError::EmptyStopString).
    pub fn with_stop<T: Into<String>>(mut self, strings: impl IntoIterator<Item = T>) -> Result<TextStream<S>> {
        self.stop = StopStrings::new(strings)?;
        Ok(self)
    }

    /// With these stop strings.
    pub(super) fn until(mut self, stop: StopStrings) -> TextStream<S> {
        self.stop = stop;
        self
    }

    /// With tokens that a constraint allows. The tokenizer's end-of-generation tokens are to be allowed where the text may
    /// end.
    #[must_use]
    pub fn with_constraint(mut self, constraint: impl Constraint + 'static) -> TextStream<S> {
        self.running.constrain(Box::new(constraint));
        self
    }

    /// With control tokens written out, or left out.
    #[must_use]
    pub fn with_special(mut self, special: Special) -> TextStream<S> {
        self.decoder = self.decoder.tokenizer().decoder(special);
        self
    }

    /// A handle that cancels this generation.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.running.cancel_handle()
    }

    /// Why it ended, once it has.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// The tokens so far, without one that has ended the text.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Log-probabilities of the last token, where they were asked for.
    pub fn logprobs(&self) -> Option<&Logprobs> {
        self.running.logprobs()
    }

    /// The session.
    pub fn session(&self) -> &Session {
        self.session.borrow()
    }

    /// Generates a token, and appends to `text` what is sure with it; at the end, and before an error, what was held back.
    /// `None` behind the last token.
    pub fn step(&mut self, text: &mut String) -> Option<Result<u32>> {
        if self.end.is_some() {
            return None;
        }
        let (session, mut piece) = (self.session.borrow_mut(), String::new());
        match self.running.next(session) {
            Some(Ok(id)) => {
                self.ids.push(id);
                self.decoder.push(id, &mut piece);
                let stopped = self.stop.push(&piece, text).map(End::StopString);
                if let Some(end) = stopped {
                    self.end = Some(end);
                    if let Err(error) = self.running.stop(session, end) {
                        return Some(Err(error));
                    }
                }
                Some(Ok(id))
            }
            last => {
                self.decoder.finish(&mut piece);
                let stopped = self.stop.push(&piece, text).map(End::StopString);
                if stopped.is_none() {
                    self.stop.finish(text);
                }
                self.end = stopped.or(self.running.end()).or(Some(End::Cancelled));
                last
            }
        }
    }
}

impl<S: BorrowMut<Session>> Iterator for TextStream<S> {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Result<String>> {
        if let Some(error) = self.error.take() {
            return Some(Err(error));
        }
        let mut text = String::new();
        loop {
            match self.step(&mut text) {
                Some(Ok(_)) if text.is_empty() => {}
                Some(Err(error)) if text.is_empty() => return Some(Err(error)),
                Some(Err(error)) => {
                    self.error = Some(error);
                    return Some(Ok(text));
                }
                None if text.is_empty() => return None,
                Some(Ok(_)) | None => return Some(Ok(text)),
            }
        }
    }
}
