//! The chat template of a GGUF file: messages to a prompt.

use kiln_shape::Gguf;

use super::jinja::{Template, Variable};
use super::{Special, TextError, Tokenizer};

/// Steps and bytes that a template may take, and how many more for each message and each byte of them.
const WORK: u64 = 10_000_000;
const WORK_PER_MESSAGE: u64 = 50_000;
const WORK_PER_BYTE: u64 = 200;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChatMessage {
    /// Who speaks: `system`, `user`, `assistant`, or `tool` for what a tool gave back.
    pub role: String,
    /// What is said.
    pub content: String,
    /// What was thought before it, where the template shows that.
    pub reasoning: Option<String>,
    /// Calls of tools, as a JSON array.
    pub tool_calls: Option<String>,
}

impl ChatMessage {
    /// A message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> ChatMessage {
        ChatMessage { role: role.into(), content: content.into(), reasoning: None, tool_calls: None }
    }

    /// With what was thought before it: `reasoning_content` of templates.
    #[must_use]
    pub fn with_reasoning(mut self, reasoning: impl Into<String>) -> ChatMessage {
        self.reasoning = Some(reasoning.into());
        self
    }

    /// With calls of tools, a JSON array.
    #[must_use]
    pub fn with_tool_calls(mut self, json: impl Into<String>) -> ChatMessage {
        self.tool_calls = Some(json.into());
        self
    }

    fn bytes(&self) -> usize {
        let more = [&self.reasoning, &self.tool_calls].map(|text| text.as_ref().map_or(0, String::len));
        self.role.len() + self.content.len() + more.into_iter().sum::<usize>()
    }

    fn variables(&self) -> Vec<(&'static str, Variable<'_>)> {
        let always = [("role", Variable::Text(&self.role)), ("content", Variable::Text(&self.content))];
        let reasoning = self.reasoning.as_deref().map(|text| ("reasoning_content", Variable::Text(text)));
        let calls = self.tool_calls.as_deref().map(|json| ("tool_calls", Variable::Json(json)));
        always.into_iter().chain(reasoning).chain(calls).collect()
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
    /// Tools that may be called, as a JSON array of their descriptions.
    pub tools: Option<String>,
}

impl ChatOptions {
    /// With a prompt that ends where the answer begins, or with the last message.
    #[must_use]
    pub fn with_generation_prompt(mut self, add: bool) -> ChatOptions {
        self.add_generation_prompt = add;
        self
    }

    /// With thinking before the answer, or without; `None` leaves it to the template.
    #[must_use]
    pub fn with_thinking(mut self, enable: impl Into<Option<bool>>) -> ChatOptions {
        self.enable_thinking = enable.into();
        self
    }

    /// With tools that may be called, a JSON array of their descriptions.
    #[must_use]
    pub fn with_tools(mut self, json: impl Into<String>) -> ChatOptions {
        self.tools = Some(json.into());
        self
    }
}

impl Default for ChatOptions {
    fn default() -> Self {
        ChatOptions { add_generation_prompt: true, enable_thinking: None, tools: None }
    }
}

/// A Jinja template as Hugging Face's `apply_chat_template` runs it, with Python's string methods.
///
/// It comes from a file, and is held to time, memory and output that grow with the messages alone.
#[derive(Debug)]
pub struct ChatTemplate {
    template: Template,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// The template in `tokenizer.chat_template`.
    ///
    /// # Errors
    /// [`TextError::NoChatTemplate`] if there is none; as [`ChatTemplate::new`].
    pub fn from_gguf(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<ChatTemplate, TextError> {
        let source = gguf.optional::<&str>("tokenizer.chat_template")?.ok_or(TextError::NoChatTemplate)?;
        let text = |id: Option<u32>| id.map_or(String::new(), |id| tokenizer.decode(&[id], Special::Parse));
        ChatTemplate::new(source, text(tokenizer.bos()), text(tokenizer.eos()))
    }

    /// A template from its source and the texts of the two tokens that it may write.
    ///
    /// # Errors
    /// [`TextError::Template`], naming the line, for what is not Jinja or what kiln does not know of it.
    pub fn new(source: impl AsRef<str>, bos: String, eos: String) -> Result<ChatTemplate, TextError> {
        let template = Template::new(source.as_ref()).map_err(template_error)?;
        Ok(ChatTemplate { template, bos, eos })
    }

    /// The prompt for `messages`, to be encoded with [`Special::Parse`].
    ///
    /// A control token spelled in a message is parsed as one: filter text that you do not trust.
    ///
    /// # Errors
    /// [`TextError::Template`] if the template refuses the messages, or takes more work than they give it.
    pub fn render(&self, messages: &[ChatMessage], options: &ChatOptions) -> Result<String, TextError> {
        let turns: Vec<_> = messages.iter().map(ChatMessage::variables).collect();
        let always = [
            ("messages", Variable::Maps(&turns)),
            ("add_generation_prompt", Variable::Bool(options.add_generation_prompt)),
            ("bos_token", Variable::Text(&self.bos)),
            ("eos_token", Variable::Text(&self.eos)),
        ];
        let thinking = options.enable_thinking.map(|enable| ("enable_thinking", Variable::Bool(enable)));
        let tools = options.tools.as_deref().map(|json| ("tools", Variable::Json(json)));
        let variables: Vec<_> = always.into_iter().chain(thinking).chain(tools).collect();
        let bytes =
            messages.iter().map(ChatMessage::bytes).sum::<usize>() + options.tools.as_ref().map_or(0, String::len);
        let work = WORK + WORK_PER_MESSAGE * messages.len() as u64 + WORK_PER_BYTE * bytes as u64;
        self.template.render(&variables, work).map_err(template_error)
    }
}

fn template_error(error: impl std::fmt::Display) -> TextError {
    TextError::Template { message: error.to_string() }
}
