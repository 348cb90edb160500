//! The chat template of a GGUF file: messages to a prompt.

use kiln_shape::Gguf;
use minijinja::{Environment, ErrorKind, Value};

use super::{Special, TextError, Tokenizer, python};

/// Steps a template may take, and for each message more: a file's template must not run for ever.
const FUEL: u64 = 1_000_000;
const FUEL_PER_MESSAGE: u64 = 10_000;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl ChatMessage {
    /// A message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> ChatMessage {
        ChatMessage { role: role.into(), content: content.into() }
    }
}

/// Variables of a template besides the messages.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChatOptions {
    /// Ends the prompt where the assistant's answer begins. On by default.
    pub add_generation_prompt: bool,
    /// Qwen3's switch for thinking before the answer; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        ChatOptions { add_generation_prompt: true, enable_thinking: None }
    }
}

/// A Jinja template as Hugging Face's `apply_chat_template` runs it, with Python's string methods.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// The template in `tokenizer.chat_template`.
    pub fn from_gguf(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<ChatTemplate, TextError> {
        let source = gguf.optional::<&str>("tokenizer.chat_template")?.ok_or(TextError::NoChatTemplate)?;
        let text = |id: Option<u32>| id.map_or(String::new(), |id| tokenizer.decode(&[id], Special::Parse));
        ChatTemplate::new(source, text(tokenizer.bos()), text(tokenizer.eos()))
    }

    /// A template from its source and the texts of the two tokens that it may write.
    pub fn new(source: impl Into<String>, bos: String, eos: String) -> Result<ChatTemplate, TextError> {
        let source = source.into();
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(|_, value, method, args| python::method(value, method, args));
        environment.add_filter("tojson", python::to_json);
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.template_from_str(&source).map_err(template_error)?;
        Ok(ChatTemplate { source, environment, bos, eos })
    }

    /// The prompt for `messages`, to be encoded with [`Special::Parse`].
    ///
    /// A control token spelled in a message is parsed as one: filter text that you do not trust.
    pub fn render(&self, messages: &[ChatMessage], options: &ChatOptions) -> Result<String, TextError> {
        let turns: Value = messages
            .iter()
            .map(|message| -> Value {
                [("role", message.role.as_str()), ("content", message.content.as_str())].into_iter().collect()
            })
            .collect();
        let always = [
            ("messages", turns),
            ("add_generation_prompt", options.add_generation_prompt.into()),
            ("bos_token", self.bos.as_str().into()),
            ("eos_token", self.eos.as_str().into()),
        ];
        let thinking = options.enable_thinking.map(|enable| ("enable_thinking", Value::from(enable)));
        let context: Value = always.into_iter().chain(thinking).collect();

        let mut environment = self.environment.clone();
        environment.set_fuel(Some(FUEL + FUEL_PER_MESSAGE * messages.len() as u64));
        environment.render_str(&self.source, context).map_err(template_error)
    }
}

fn template_error(error: minijinja::Error) -> TextError {
    TextError::Template { message: error.to_string() }
}
