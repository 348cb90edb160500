//! The model behind the protocol. A request is a job: it waits in the `queue` for one of a few threads, which takes a
//! session off the `shelf`, `answers` by it, and sends what comes of that to whoever asked.

mod answers;
mod job;
mod queue;
mod shelf;

pub(crate) use job::{Event, Finish, Form, Job, Piece, Prompt, TokenLogprobs, Wish};
pub(crate) use queue::Refused;

use crate::metrics::Metrics;
use kiln::Model;
use kiln::grammar::Grammars;
use kiln::model::SessionOptions;
use kiln::text::{ChatTemplate, TextError, Tokenizer};
use queue::Queue;
use shelf::Shelf;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

/// What the engine is told.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The model's name in requests.
    pub(crate) name: String,
    pub(crate) session: SessionOptions,
    pub(crate) workers: usize,
    pub(crate) sessions: usize,
    pub(crate) queue: usize,
    pub(crate) max_tokens: usize,
}

/// The model, its threads, and what they share.
pub(crate) struct Engine {
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    pub(crate) queue: Queue,
    /// When it began to serve.
    pub(crate) since: SystemTime,
    model: Model,
    tokenizer: Tokenizer,
    template: Result<ChatTemplate, TextError>,
    shelf: Shelf,
    /// Made when the first answer is to have a form.
    grammars: OnceLock<kiln::Result<Grammars>>,
    /// Bytes of the longest token.
    longest: usize,
    /// Whether the last answer failed for a reason of the server's.
    ailing: AtomicBool,
    /// Whether answers are to end.
    ending: AtomicBool,
}

impl Engine {
    /// Begins to take jobs.
    ///
    /// # Errors
    /// If the file has no tokenizer that kiln knows, a session cannot be made, or the system has no threads left.
    pub(crate) fn start(model: Model, settings: Settings) -> Result<Arc<Engine>, Box<dyn std::error::Error>> {
        let tokenizer = Tokenizer::from_gguf(model.gguf())?;
        // A model without a template completes texts.
        let template = ChatTemplate::from_gguf(model.gguf(), &tokenizer);
        let longest = (0..tokenizer.vocab()).filter_map(|id| tokenizer.token_bytes(id).ok()).map(<[u8]>::len).max();
        let shelf = Shelf::new(&model, settings.session, settings.sessions)?;
        let engine = Arc::new(Engine {
            metrics: Metrics::default(),
            queue: Queue::new(settings.queue),
            since: SystemTime::now(),
            model,
            tokenizer,
            template,
            shelf,
            grammars: OnceLock::new(),
            longest: longest.unwrap_or(1),
            ailing: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            settings,
        });
        for number in 0..engine.settings.workers {
            let engine = engine.clone();
            std::thread::Builder::new().name(format!("answers-{number}")).spawn(move || engine.work())?;
        }
        Ok(engine)
    }

    /// Tokens of the model's vocabulary.
    pub(crate) fn vocab(&self) -> u32 {
        self.model.shape().vocab
    }

    /// Positions of a session.
    pub(crate) fn capacity(&self) -> usize {
        self.settings.session.capacity.unwrap_or(self.model.shape().context) as usize
    }

    /// Whether answers come as they should.
    pub(crate) fn is_well(&self) -> bool {
        !self.ailing.load(Ordering::Acquire) && self.queue.is_open()
    }

    /// Ends all answers at their next token.
    pub(crate) fn cancel_all(&self) {
        self.ending.store(true, Ordering::Release);
    }

    /// Sessions on the shelf.
    pub(crate) fn kept(&self) -> usize {
        self.shelf.len()
    }

    fn work(&self) {
        while let Some(job) = self.queue.take() {
            let _busy = self.metrics.running.enter();
            let events = job.events.clone();
            let outcome = catch_unwind(AssertUnwindSafe(|| self.answer(job)));
            let outcome =
                outcome.unwrap_or_else(|_| Err(crate::api::ApiError::server("the answer's thread has failed")));
            let is_ours = outcome.as_ref().is_err_and(crate::api::ApiError::is_ours);
            self.ailing.store(is_ours, Ordering::Release);
            if let Err(error) = outcome {
                if is_ours {
                    self.metrics.failures.add(1);
                    crate::note(format_args!("error: {}\n", error.message));
                }
                // Whoever asked may have left.
                let _ = events.send(Event::Failed(error));
            }
        }
    }
}
