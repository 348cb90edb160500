//! What is asked of the engine, and what it says.

use crate::api::ApiError;
use kiln::model::Sampling;
use kiln::text::{ChatMessage, ChatOptions};
use tokio::sync::mpsc::UnboundedSender;

/// A request as the engine takes it.
pub(crate) struct Job {
    pub(crate) prompt: Prompt,
    pub(crate) wish: Wish,
    /// Where its events go. It is closed when the client has left.
    pub(crate) events: UnboundedSender<Event>,
}

/// What an answer follows.
pub(crate) enum Prompt {
    Chat(Vec<ChatMessage>, ChatOptions),
    Text(String),
    Ids(Vec<u32>),
}

/// How it is answered.
pub(crate) struct Wish {
    pub(crate) max_tokens: usize,
    pub(crate) sampling: Sampling,
    /// Text that ends the answer; none is empty.
    pub(crate) stop: Vec<String>,
    /// The number of likeliest tokens to tell of besides each chosen one.
    pub(crate) logprobs: Option<usize>,
    pub(crate) form: Option<Form>,
}

/// The form of an answer.
#[derive(Debug)]
pub(crate) enum Form {
    JsonObject,
    JsonSchema(String),
    Regex(String),
    Lark(String),
}

/// What happens to a job, in this order; nothing follows an end or a failure.
pub(crate) enum Event {
    /// It is answered: tokens of the prompt, and how many of them had run before.
    Begun {
        prompt: usize,
        cached: usize,
    },
    /// More text.
    Text(Piece),
    /// The end, and the tokens that were generated.
    Ended(Finish, usize),
    Failed(ApiError),
}

/// Text, and the log-probabilities of the tokens that begin in it where they were asked for.
#[derive(Default)]
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) logprobs: Vec<TokenLogprobs>,
}

/// A token's bytes and log-probability, and those of the likeliest in its place.
pub(crate) struct TokenLogprobs {
    pub(crate) chosen: (Vec<u8>, f32),
    pub(crate) top: Vec<(Vec<u8>, f32)>,
    /// Where it begins in the answer, in bytes.
    pub(crate) offset: usize,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    Length,
}

impl Finish {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
        }
    }
}
