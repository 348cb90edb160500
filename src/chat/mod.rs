//! Sessions and text together: text as it is generated, and conversations.
//!
//! `stream` is text behind a session's tokens; this file keeps a conversation and runs only what is new of it.

mod stream;

pub use stream::{Lent, TextStream};

use crate::model::{End, GenerateOptions, Model, Session, SessionOptions};
use crate::text::{ChatMessage, ChatOptions, ChatTemplate, Special, StopStrings, Tokenizer};
use crate::{Error, Result};

/// A conversation with a model: its messages, and a session that holds as much of them as has run.
///
/// ```no_run
/// # fn talk(model: kiln::Model) -> kiln::Result<()> {
/// use kiln::chat::Chat;
/// use kiln::model::{GenerateOptions, SessionOptions};
///
/// let mut chat = Chat::new(&model, SessionOptions::default())?.with_system("Be brief.");
/// for piece in chat.say("What is ownership?", GenerateOptions::new(200))? {
///     print!("{}", piece?);
/// }
/// println!("{} messages", chat.messages().len());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Chat {
    session: Session,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    options: ChatOptions,
    stop: StopStrings,
    messages: Vec<ChatMessage>,
}

impl Chat {
    /// An empty conversation, in a session of its own.
    ///
    /// # Errors
    /// [`TextError`](crate::text::TextError) if the model's file has no tokenizer or chat template that kiln knows; as
    /// [`Model::session`].
    pub fn new(model: &Model, options: SessionOptions) -> Result<Chat> {
        let tokenizer = Tokenizer::from_gguf(model.gguf())?;
        let template = ChatTemplate::from_gguf(model.gguf(), &tokenizer)?;
        Ok(Chat::with_parts(model.session(options)?, tokenizer, template))
    }

    /// An empty conversation of these parts; what the session holds is used where it begins as the conversation does.
    pub fn with_parts(session: Session, tokenizer: Tokenizer, template: ChatTemplate) -> Chat {
        let (options, stop, messages) = (ChatOptions::default(), StopStrings::default(), Vec::new());
        Chat { session, tokenizer, template, options, stop, messages }
    }

    /// With a message of the system's, before all others.
    #[must_use]
    pub fn with_system(mut self, content: impl Into<String>) -> Chat {
        self.messages.retain(|message| message.role != "system");
        self.messages.insert(0, ChatMessage::new("system", content));
        self
    }

    /// With other variables of the template: thinking, tools.
    #[must_use]
    pub fn with_options(mut self, options: ChatOptions) -> Chat {
        self.options = options;
        self
    }

    /// With strings that end an answer and are left out of it.
    #[must_use]
    pub fn with_stop(mut self, strings: StopStrings) -> Chat {
        self.stop = strings;
        self
    }

    /// The messages so far.
    pub fn messages(&self) -> &[ChatMessage] {
        &self.messages
    }

    /// Other messages in place of those so far. What they have in common with them does not run again.
    pub fn set_messages(&mut self, messages: impl Into<Vec<ChatMessage>>) {
        self.messages = messages.into();
    }

    /// Forgets all messages but the system's.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message.role == "system");
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The variables of the template.
    pub fn options(&self) -> &ChatOptions {
        &self.options
    }

    /// Appends a message of the user's, and answers it.
    ///
    /// # Errors
    /// As [`Chat::answer`]; then the message is not appended.
    pub fn say(&mut self, content: impl Into<String>, options: GenerateOptions) -> Result<Answer<'_>> {
        self.reply(ChatMessage::new("user", content), options)
    }

    /// Appends a message, such as a tool's, and answers it.
    ///
    /// # Errors
    /// As [`Chat::answer`]; then the message is not appended.
    pub fn reply(&mut self, message: ChatMessage, options: GenerateOptions) -> Result<Answer<'_>> {
        self.messages.push(message);
        if let Err(error) = self.bring() {
            self.messages.pop();
            return Err(error);
        }
        Ok(self.begin(options))
    }

    /// Answers the messages so far. The answer becomes a message when it is dropped.
    ///
    /// # Errors
    /// If the template refuses the messages, or they do not fit the session; then nothing has changed.
    pub fn answer(&mut self, options: GenerateOptions) -> Result<Answer<'_>> {
        self.bring()?;
        Ok(self.begin(options))
    }

    /// Brings the session to the prompt of the messages: what it holds of it stays, the rest is appended.
    fn bring(&mut self) -> Result<()> {
        let prompt = self.template.render(&self.messages, &self.options)?;
        let (held, tokens) = (self.tokenizer.decode(self.session.tokens(), Special::Parse), self.session.tokens());
        if !held.is_empty()
            && let Some(new) = prompt.strip_prefix(&held).filter(|new| !new.is_empty())
        {
            // The model may have spelled its answer in other tokens than the tokenizer would.
            return self.session.append(&self.tokenizer.encode(new, Special::Parse));
        }
        let ids = self.tokenizer.encode(&prompt, Special::Parse);
        let common = ids.iter().zip(tokens).take_while(|(id, token)| id == token).count();
        let (before, capacity) = (tokens.len(), self.session.capacity() as usize);
        if ids.len() > capacity {
            // Nothing is lost: what the session holds stays for shorter messages.
            return Err(Error::ContextFull { used: common, more: ids.len() - common, capacity });
        }
        if common < before {
            self.session.truncate(common);
        }
        self.session.append(&ids[common..])
    }

    fn begin(&mut self, options: GenerateOptions) -> Answer<'_> {
        let Chat { session, tokenizer, stop, messages, .. } = self;
        let stream = session.text(tokenizer, options).until(stop.clone());
        Answer { stream, messages, text: String::new() }
    }
}

/// An answer as it is generated: an iterator over its text. Whatever was generated becomes a message of the conversation
/// when it is dropped, also where it was cancelled.
#[derive(Debug)]
pub struct Answer<'a> {
    stream: TextStream<Lent<'a>>,
    messages: &'a mut Vec<ChatMessage>,
    text: String,
}

impl Answer<'_> {
    /// A handle that cancels the answer.
    pub fn cancel_handle(&self) -> crate::model::CancelHandle {
        self.stream.cancel_handle()
    }

    /// Why it ended, once it has.
    pub fn end(&self) -> Option<End> {
        self.stream.end()
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The tokens so far.
    pub fn ids(&self) -> &[u32] {
        self.stream.ids()
    }
}

impl Iterator for Answer<'_> {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Result<String>> {
        let piece = self.stream.next()?;
        if let Ok(piece) = &piece {
            self.text.push_str(piece);
        }
        Some(piece)
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        // Where the model has said nothing, and did not mean to, there is no answer.
        let said_nothing = matches!(self.stream.end(), None | Some(End::Cancelled)) && self.text.is_empty();
        if !said_nothing {
            self.messages.push(ChatMessage::new("assistant", std::mem::take(&mut self.text)));
        }
    }
}
