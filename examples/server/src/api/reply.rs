//! What clients get: whole answers, and the chunks of streams.

use super::Kind;
use crate::engine::{Finish, Piece, TokenLogprobs};
use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// What stands for a probability of zero, which JSON has no logarithm of.
const LEAST: f32 = -9999.0;

/// What all replies to one request have in common.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
    /// Whether log-probabilities were asked for.
    logprobs: bool,
    /// Whether a stream ends with its usage.
    pub(crate) usage: bool,
}

/// Seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Ask {
    pub(crate) fn new(kind: Kind, model: &str, logprobs: bool, usage: bool) -> Ask {
        static ASKED: AtomicU64 = AtomicU64::new(0);
        let (number, created) = (ASKED.fetch_add(1, Ordering::Relaxed), seconds(SystemTime::now()));
        let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        let id = format!("{prefix}-{created:x}{number:08x}");
        Ask { kind, id, created, model: model.to_owned(), logprobs, usage }
    }

    fn object(&self, is_chunk: bool, choices: Value, usage: Option<Value>) -> Value {
        let object = match (self.kind, is_chunk) {
            (Kind::Chat, false) => "chat.completion",
            (Kind::Chat, true) => "chat.completion.chunk",
            (Kind::Text, _) => "text_completion",
        };
        let mut all = json!({"id": self.id, "object": object, "created": self.created, "model": self.model});
        all["choices"] = choices;
        if let Some(usage) = usage {
            all["usage"] = usage;
        }
        all
    }

    fn chunk(&self, delta: Value, text: &str, logprobs: &[TokenLogprobs], finish: Option<Finish>) -> Value {
        let (logprobs, finish) = (self.told(logprobs), finish.map(Finish::name));
        let choice = match self.kind {
            Kind::Chat => json!({"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}),
            Kind::Text => json!({"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}),
        };
        self.object(true, json!([choice]), self.usage.then_some(Value::Null))
    }

    /// The chunk before all text; text completions have none.
    pub(crate) fn opening(&self) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": ""});
        (self.kind == Kind::Chat).then(|| self.chunk(delta, "", &[], None))
    }

    /// The chunk of some text.
    pub(crate) fn piece(&self, piece: &Piece) -> Value {
        self.chunk(json!({"content": piece.text}), &piece.text, &piece.logprobs, None)
    }

    /// The chunk behind all text.
    pub(crate) fn closing(&self, finish: Finish) -> Value {
        self.chunk(json!({}), "", &[], Some(finish))
    }

    /// The last chunk, where it was asked for.
    pub(crate) fn usage_chunk(&self, usage: Value) -> Value {
        self.object(true, json!([]), Some(usage))
    }

    fn told(&self, logprobs: &[TokenLogprobs]) -> Value {
        match self.kind {
            _ if !self.logprobs => Value::Null,
            Kind::Chat => json!({"content": logprobs.iter().map(of_chat).collect::<Value>(), "refusal": null}),
            Kind::Text => of_text(logprobs),
        }
    }
}

/// The usage object.
pub(crate) fn usage(prompt: usize, cached: usize, completion: usize) -> Value {
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn of_chat(token: &TokenLogprobs) -> Value {
    let one = |(bytes, logprob): &(Vec<u8>, f32)| -> Map<String, Value> {
        let fields = [("token", json!(text(bytes))), ("logprob", json!(logprob.max(LEAST))), ("bytes", json!(bytes))];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    };
    let mut all = one(&token.chosen);
    let top = token.top.iter().map(|top| Value::Object(one(top))).collect();
    all.insert("top_logprobs".to_owned(), Value::Array(top));
    Value::Object(all)
}

fn of_text(tokens: &[TokenLogprobs]) -> Value {
    let top = |token: &TokenLogprobs| -> Map<String, Value> {
        token.top.iter().map(|(bytes, logprob)| (text(bytes), json!(logprob.max(LEAST)))).collect()
    };
    json!({
        "tokens": tokens.iter().map(|token| text(&token.chosen.0)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| token.chosen.1.max(LEAST)).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": tokens.iter().map(|token| token.offset).collect::<Vec<_>>(),
    })
}

/// An answer that is told as a whole.
#[derive(Default)]
pub(crate) struct Answer {
    text: String,
    logprobs: Vec<TokenLogprobs>,
}

impl Answer {
    pub(crate) fn push(&mut self, piece: Piece) {
        self.text.push_str(&piece.text);
        self.logprobs.extend(piece.logprobs);
    }

    pub(crate) fn whole(self, ask: &Ask, finish: Finish, usage: Value) -> Value {
        let (logprobs, finish) = (ask.told(&self.logprobs), finish.name());
        let choice = match ask.kind {
            Kind::Chat => {
                let message = json!({"role": "assistant", "content": self.text});
                json!({"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish})
            }
            Kind::Text => json!({"index": 0, "text": self.text, "logprobs": logprobs, "finish_reason": finish}),
        };
        ask.object(false, json!([choice]), Some(usage))
    }
}
