//! A job from prompt to end.

use super::{Engine, Event, Finish, Form, Job, Piece, Prompt, TokenLogprobs, Wish};
use crate::api::ApiError;
use kiln::grammar::{Grammar, Grammars};
use kiln::model::{End, GenerateOptions, Logprobs, Session};
use kiln::text::{Special, TokenDecoder};
use kiln::{Error, Result};
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;

/// How an answer ended: with these tokens, or since nobody wants it any more.
enum Ended {
    By(Finish, usize),
    Left,
    ServerEnds,
}

impl Engine {
    /// Answers a job. What goes wrong is the client's or ours, as the error says.
    pub(super) fn answer(&self, job: Job) -> Result<(), ApiError> {
        let begin = Instant::now();
        let ids = self.ids(&job.prompt)?;
        let grammar = job.wish.form.as_ref().map(|form| self.grammar(form)).transpose()?;
        let (mut session, common) = self.shelf.lend(&ids)?;
        // The last token runs again for what follows it.
        let cached = common.min(ids.len().saturating_sub(1));
        self.metrics.prompt_tokens.add(ids.len() as u64);
        self.metrics.cached_tokens.add(cached as u64);
        let _ = job.events.send(Event::Begun { prompt: ids.len(), cached });
        session.append(&ids[common..])?;
        let ended = self.generate(&mut session, job.wish, grammar, &job.events, begin)?;
        self.shelf.keep(session);
        self.metrics.answer_seconds.note(begin.elapsed());
        match ended {
            Ended::By(finish, tokens) => {
                let _ = job.events.send(Event::Ended(finish, tokens));
            }
            Ended::Left => self.metrics.cancelled.add(1),
            Ended::ServerEnds => return Err(ApiError::ending()),
        }
        Ok(())
    }

    /// What an answer of that form is held to.
    fn grammar(&self, form: &Form) -> Result<Grammar, ApiError> {
        let grammars = self.grammars.get_or_init(|| Grammars::new(&self.tokenizer)).as_ref();
        let grammars = grammars.map_err(|error| ApiError::unsupported(error, "response_format"))?;
        Ok(match form {
            Form::JsonObject => grammars.json_object(),
            Form::JsonSchema(schema) => grammars.json_schema(schema),
            Form::Regex(expression) => grammars.regex(expression),
            Form::Lark(grammar) => grammars.lark(grammar),
        }?)
    }

    /// The tokens of a prompt, which leave room for an answer.
    fn ids(&self, prompt: &Prompt) -> Result<Vec<u32>, ApiError> {
        let capacity = self.capacity();
        let encode = |text: &str| {
            // Far too long a text is not worth its tokens.
            match text.len() / self.longest {
                least if least >= capacity => Err(ApiError::too_long(least, capacity)),
                _ => Ok(self.tokenizer.encode(text, Special::Parse)),
            }
        };
        let ids = match prompt {
            Prompt::Chat(messages, options) => {
                let template = self.template.as_ref().map_err(|error| ApiError::unsupported(error, "messages"))?;
                let text = template.render(messages, options);
                encode(&text.map_err(|error| ApiError::invalid(error.to_string(), "messages"))?)?
            }
            Prompt::Text(text) => encode(text)?,
            Prompt::Ids(ids) => ids.clone(),
        };
        let vocab = self.vocab();
        if let Some(id) = ids.iter().find(|id| **id >= vocab) {
            let message = format!("token {id} is outside the vocabulary: ids are 0 to {}", vocab - 1);
            return Err(ApiError::invalid(message, "prompt"));
        }
        match ids.len() {
            0 => Err(ApiError::invalid("the prompt is empty, and nothing can follow nothing", "prompt")),
            length if length >= capacity => Err(ApiError::too_long(length, capacity)),
            _ => Ok(ids),
        }
    }

    /// Generates behind the session's tokens.
    fn generate(
        &self,
        session: &mut Session,
        wish: Wish,
        grammar: Option<Grammar>,
        events: &UnboundedSender<Event>,
        begin: Instant,
    ) -> Result<Ended, ApiError> {
        let given_up = || match events.is_closed() {
            true => Some(Ended::Left),
            false => self.ending.load(Ordering::Acquire).then_some(Ended::ServerEnds),
        };
        let wanted = |_, _| given_up().is_none();
        match session.prefill_by_batches(wanted) {
            // What is kept for others makes room.
            Err(Error::OutOfMemory { .. }) if self.shelf.clear() => session.prefill_by_batches(wanted),
            prefilled => prefilled,
        }?;
        let options = GenerateOptions::new(wish.max_tokens).with_sampling(wish.sampling).with_logprobs(wish.logprobs);
        let mut stream = session.text(&self.tokenizer, options).with_stop(wish.stop)?;
        if let Some(grammar) = grammar {
            stream = stream.with_constraint(grammar);
        }
        let mut told = wish.logprobs.map(|_| Told::new(self.tokenizer.decoder(Special::Plain)));
        let (mut sent, mut text) = (0, String::new());
        loop {
            if let Some(ended) = given_up() {
                return Ok(ended);
            }
            let step = stream.step(&mut text).transpose()?;
            if let (Some(id), Some(told), Some(logprobs)) = (step, &mut told, stream.logprobs()) {
                let bytes = |id| self.tokenizer.token_bytes(id).unwrap_or_default().to_vec();
                told.push(id, logprobs, bytes);
            }
            if stream.ids().len() == 1 && step.is_some() {
                self.metrics.first_token_seconds.note(begin.elapsed());
            }
            self.metrics.generated_tokens.add(u64::from(step.is_some()));
            sent += text.len();
            let is_whole = stream.end().is_some() && !matches!(stream.end(), Some(End::StopString(_)));
            let logprobs = told.as_mut().map_or(Vec::new(), |told| told.take(if is_whole { usize::MAX } else { sent }));
            if !text.is_empty() || !logprobs.is_empty() {
                let _ = events.send(Event::Text(Piece { text: std::mem::take(&mut text), logprobs }));
            }
            if let Some(end) = stream.end() {
                let finish = match end {
                    End::Length | End::ContextFull => Finish::Length,
                    End::StopId(_) | End::StopString(_) => Finish::Stop,
                    End::Cancelled => return Ok(Ended::Left),
                };
                return Ok(Ended::By(finish, stream.ids().len()));
            }
        }
    }
}

/// Log-probabilities that wait for the text of their tokens to be sure.
struct Told {
    decoder: TokenDecoder,
    text: String,
    waiting: Vec<TokenLogprobs>,
}

impl Told {
    fn new(decoder: TokenDecoder) -> Told {
        Told { decoder, text: String::new(), waiting: Vec::new() }
    }

    fn push(&mut self, id: u32, logprobs: &Logprobs, bytes: impl Fn(u32) -> Vec<u8>) {
        let top = logprobs.top.iter().map(|(id, logprob)| (bytes(*id), *logprob)).collect();
        self.waiting.push(TokenLogprobs { chosen: (bytes(id), logprobs.chosen), top, offset: self.text.len() });
        self.decoder.push(id, &mut self.text);
    }

    /// Those of tokens that begin before that byte of the text.
    fn take(&mut self, sent: usize) -> Vec<TokenLogprobs> {
        let count = self.waiting.iter().take_while(|token| token.offset < sent).count();
        self.waiting.drain(..count).collect()
    }
}
