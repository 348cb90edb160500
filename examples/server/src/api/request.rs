//! What clients ask for. Fields that change nothing here are passed over; those that would change the answer, and that
//! this server does not have, are refused by name.

use super::ApiError;
use crate::engine::{Form, Prompt, Wish};
use kiln::model::Sampling;
use kiln::text::{ChatMessage, ChatOptions};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

/// The most stop strings, and the most of the likeliest tokens that are told.
const STOP_STRINGS: usize = 16;
const TOP_LOGPROBS: u64 = 20;

/// What is to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    Text,
}

/// A request of either kind.
#[derive(Debug, Deserialize)]
pub(crate) struct Request {
    pub(crate) model: Option<String>,
    messages: Option<Vec<Message>>,
    prompt: Option<Given>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Option<BTreeMap<String, f32>>,
    seed: Option<i64>,
    stop: Option<Stop>,
    logprobs: Option<Told>,
    top_logprobs: Option<u64>,
    #[serde(default)]
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    chat_template_kwargs: Option<TemplateOptions>,
    response_format: Option<Format>,
    n: Option<u64>,
    best_of: Option<u64>,
    echo: Option<bool>,
    suffix: Option<String>,
    tools: Option<Vec<IgnoredAny>>,
    functions: Option<Vec<IgnoredAny>>,
}

#[derive(Debug, Deserialize)]
struct Message {
    role: String,
    content: Option<Content>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<IgnoredAny>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "text, or a list of parts")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "text, a list of token ids, or a list of one of these")]
enum Given {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    ManyIds(Vec<Vec<u32>>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "text, or a list of texts")]
enum Stop {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "true or false of a chat, a number of a text")]
enum Told {
    Whether(bool),
    Count(u64),
}

#[derive(Debug, Deserialize)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct TemplateOptions {
    enable_thinking: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Format {
    #[serde(rename = "type")]
    kind: String,
    json_schema: Option<JsonSchema>,
    pattern: Option<String>,
    grammar: Option<String>,
}

#[derive(Debug, Deserialize)]
struct JsonSchema {
    schema: Option<Value>,
}

impl Format {
    /// The form, if text of any will not do.
    fn form(self) -> Result<Option<Form>, ApiError> {
        let missing = |what: &str| ApiError::invalid(format!("{what} is missing"), format!("response_format.{what}"));
        Ok(Some(match self.kind.as_str() {
            "text" => return Ok(None),
            "json_object" => Form::JsonObject,
            "json_schema" => {
                let schema = self.json_schema.and_then(|named| named.schema);
                Form::JsonSchema(schema.ok_or_else(|| missing("json_schema.schema"))?.to_string())
            }
            "regex" => Form::Regex(self.pattern.ok_or_else(|| missing("pattern"))?),
            "lark" => Form::Lark(self.grammar.ok_or_else(|| missing("grammar"))?),
            other => {
                let message = format!("no form `{other}`; there are text, json_object, json_schema, regex and lark");
                return Err(ApiError::invalid(message, "response_format.type"));
            }
        }))
    }
}

impl Request {
    /// Reads a body.
    pub(crate) fn parse(body: &[u8]) -> Result<Request, ApiError> {
        let mut json = serde_json::Deserializer::from_slice(body);
        let request = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let path = error.path().to_string();
            match path.as_str() {
                "." => ApiError::malformed(error.into_inner()),
                _ => ApiError::invalid(format!("{path}: {}", error.into_inner()), path),
            }
        })?;
        json.end().map_err(ApiError::malformed)?;
        Ok(request)
    }

    /// The prompt and how it is answered, in at most `most` tokens of a vocabulary.
    pub(crate) fn into_wish(mut self, kind: Kind, most: usize, vocab: u32) -> Result<(Prompt, Wish), ApiError> {
        self.refuse()?;
        let logprobs = self.likeliest(kind)?;
        let max_tokens = match (self.max_completion_tokens, self.max_tokens) {
            (Some(0), _) | (None, Some(0)) => return Err(ApiError::invalid("at least 1 token", "max_tokens")),
            (None, None) => most,
            (Some(wanted), _) | (None, Some(wanted)) if wanted <= most as u64 => wanted as usize,
            _ => return Err(ApiError::invalid(format!("answers have at most {most} tokens here"), "max_tokens")),
        };
        let stop = match self.stop.take() {
            None => Vec::new(),
            Some(Stop::One(text)) => vec![text],
            Some(Stop::Several(texts)) => texts,
        };
        if stop.len() > STOP_STRINGS || stop.iter().any(String::is_empty) {
            return Err(ApiError::invalid(format!("at most {STOP_STRINGS} texts, none of them empty"), "stop"));
        }
        let sampling = self.sampling()?;
        sampling.check(vocab)?;
        let form = self.response_format.take().map_or(Ok(None), Format::form)?;
        let prompt = match kind {
            Kind::Chat => self.chat()?,
            Kind::Text => self.text()?,
        };
        Ok((prompt, Wish { max_tokens, sampling, stop, logprobs, form }))
    }

    /// What would change the answer, and is not here.
    fn refuse(&self) -> Result<(), ApiError> {
        let some = |list: &Option<Vec<IgnoredAny>>| list.as_ref().is_some_and(|list| !list.is_empty());
        let refused = [
            ("n", self.n.is_some_and(|n| n != 1), "one answer each; ask several times"),
            ("best_of", self.best_of.is_some_and(|n| n != 1), "one answer each"),
            ("echo", self.echo == Some(true), "prompts are not repeated in answers"),
            ("suffix", self.suffix.as_ref().is_some_and(|text| !text.is_empty()), "answers go on from a prompt only"),
            ("tools", some(&self.tools), "tools are not called here"),
            ("functions", some(&self.functions), "tools are not called here"),
        ];
        match refused.iter().find(|(_, is_asked, _)| *is_asked) {
            Some((name, _, why)) => Err(ApiError::unsupported(format!("{name} is not supported: {why}"), name)),
            None => Ok(()),
        }
    }

    /// The number of likeliest tokens to tell, if any logprobs are asked for.
    fn likeliest(&self, kind: Kind) -> Result<Option<usize>, ApiError> {
        let count = match (kind, &self.logprobs) {
            (Kind::Chat, Some(Told::Whether(true))) => Some(self.top_logprobs.unwrap_or(0)),
            (Kind::Chat, None | Some(Told::Whether(false))) if self.top_logprobs.unwrap_or(0) > 0 => {
                return Err(ApiError::invalid("top_logprobs goes with logprobs: true", "top_logprobs"));
            }
            (_, None | Some(Told::Whether(false))) => None,
            (Kind::Text, Some(Told::Count(count))) => Some(*count),
            (Kind::Chat, Some(Told::Count(_))) => return Err(ApiError::invalid("true or false", "logprobs")),
            (Kind::Text, Some(Told::Whether(true))) => return Err(ApiError::invalid("a number", "logprobs")),
        };
        match count {
            Some(count) if count > TOP_LOGPROBS => {
                Err(ApiError::invalid(format!("at most {TOP_LOGPROBS} of the likeliest"), "top_logprobs"))
            }
            count => Ok(count.map(|count| count as usize)),
        }
    }

    fn sampling(&self) -> Result<Sampling, ApiError> {
        let mut bias = Vec::new();
        for (id, value) in self.logit_bias.iter().flatten() {
            let id: u32 = id.parse().map_err(|_| ApiError::invalid(format!("`{id}` is no token id"), "logit_bias"))?;
            bias.push((id, *value));
        }
        // Who names no seed gets another one each time.
        let seed = self.seed.map_or_else(|| RandomState::new().hash_one(0), |seed| seed as u64);
        let (presence, frequency) = (self.presence_penalty.unwrap_or(0.0), self.frequency_penalty.unwrap_or(0.0));
        Ok(Sampling::new(self.temperature.unwrap_or(1.0), seed)
            .with_top_p(self.top_p.unwrap_or(1.0))
            .with_top_k(self.top_k.unwrap_or(0))
            .with_min_p(self.min_p.unwrap_or(0.0))
            .with_typical_p(self.typical_p.unwrap_or(1.0))
            .with_penalties(self.repetition_penalty.unwrap_or(1.0), presence, frequency)
            .with_logit_bias(bias))
    }

    fn chat(self) -> Result<Prompt, ApiError> {
        let messages = self.messages.unwrap_or_default();
        if messages.is_empty() {
            return Err(ApiError::invalid("messages: there must be at least one", "messages"));
        }
        let messages: Result<Vec<_>, _> = messages.into_iter().enumerate().map(|(at, of)| of.message(at)).collect();
        let thinking = self.chat_template_kwargs.and_then(|options| options.enable_thinking);
        Ok(Prompt::Chat(messages?, ChatOptions::default().with_thinking(thinking)))
    }

    fn text(self) -> Result<Prompt, ApiError> {
        let one = |count: usize| match count {
            1 => Ok(()),
            _ => Err(ApiError::unsupported("one prompt each; ask several times", "prompt")),
        };
        match self.prompt {
            None => Err(ApiError::invalid("prompt is missing", "prompt")),
            Some(Given::Text(text)) => Ok(Prompt::Text(text)),
            Some(Given::Ids(ids)) => Ok(Prompt::Ids(ids)),
            Some(Given::Texts(texts)) => one(texts.len()).map(|()| Prompt::Text(texts.concat())),
            Some(Given::ManyIds(ids)) => one(ids.len()).map(|()| Prompt::Ids(ids.concat())),
        }
    }
}

impl Message {
    fn message(self, at: usize) -> Result<ChatMessage, ApiError> {
        let role = match self.role.as_str() {
            "developer" => "system",
            role @ ("system" | "user" | "assistant" | "tool") => role,
            other => {
                let message = format!("no role `{other}`; there are system, developer, user, assistant and tool");
                return Err(ApiError::invalid(message, format!("messages[{at}].role")));
            }
        };
        if self.tool_calls.is_some_and(|calls| !calls.is_empty()) {
            return Err(ApiError::unsupported("tools are not called here", &format!("messages[{at}].tool_calls")));
        }
        let content = match self.content {
            None => String::new(),
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => {
                let texts = parts.into_iter().map(|part| match part.kind.as_str() {
                    "text" => Ok(part.text.unwrap_or_default()),
                    kind => Err(ApiError::unsupported(
                        format!("parts of type `{kind}` are not read here, only text"),
                        &format!("messages[{at}].content"),
                    )),
                });
                texts.collect::<Result<String, _>>()?
            }
        };
        let message = ChatMessage::new(role, content);
        Ok(match self.reasoning_content {
            Some(reasoning) => message.with_reasoning(reasoning),
            None => message,
        })
    }
}
