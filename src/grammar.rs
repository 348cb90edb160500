//! Answers in a given form: JSON of a schema, text of a regular expression, or of a grammar in the form of
//! [Lark](https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md), by the `llguidance` crate.
//!
//! ```no_run
//! # fn write(model: kiln::Model) -> kiln::Result<()> {
//! use kiln::grammar::Grammars;
//! use kiln::model::{GenerateOptions, SessionOptions};
//! use kiln::text::{Special, Tokenizer};
//!
//! let tokenizer = Tokenizer::from_gguf(model.gguf())?;
//! let grammars = Grammars::new(&tokenizer)?;
//! let schema = r#"{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}"#;
//!
//! let mut session = model.session(SessionOptions::default())?;
//! session.append(&tokenizer.encode("A crate:", Special::Plain))?;
//! for text in session.text(&tokenizer, GenerateOptions::new(100)).with_constraint(grammars.json_schema(schema)?) {
//!     print!("{}", text?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Masks are computed on the host before each choice, by tries over the vocabulary. A grammar ends with one of the
//! tokenizer's end-of-generation tokens. Where the token limit comes first, the text is a beginning of what it was to be.

use crate::model::{Constraint, TokenSet};
use crate::text::{Special, Tokenizer};
use crate::{Error, Result};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory, TokenParser};
use serde_json::Value;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The most bytes of a schema, expression or grammar, and the stack of the thread that compiles it: a chain of rules is as
/// many calls deep as it is long.
const LONGEST: usize = 64 << 10;
const STACK: usize = 256 << 20;
/// How long a compilation is waited for, and how many there may be. A schema of a few lines can take hours, in which its
/// thread cannot be stopped.
const WAIT: Duration = Duration::from_secs(5);
const COMPILERS: usize = 8;

/// Makes grammars for the texts of one tokenizer. Cheap to clone.
#[derive(Clone)]
pub struct Grammars {
    shared: Arc<Shared>,
}

struct Shared {
    factory: ParserFactory,
    /// Held by each compilation while it runs.
    compilers: Arc<()>,
}

/// A form of a text, and how much of it has been written. Clones go on by themselves.
#[derive(Clone)]
pub struct Grammar {
    matcher: Matcher,
}

/// The tokenizer, as the matcher sees it.
struct Tokens {
    trie: TokTrie,
    tokenizer: Tokenizer,
}

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let tokenize = |text: &str| self.tokenizer.encode(text, Special::Plain);
        self.trie.tokenize_with_greedy_fallback(bytes, tokenize)
    }

    /// What the model writes may be spelled in other tokens than the tokenizer would take.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

fn error(what: impl Display) -> Error {
    // Behind the first line stands the parser's state.
    let what = what.to_string();
    Error::Grammar { what: what.lines().next().unwrap_or_default().to_owned() }
}

fn check_length(source: &str) -> Result<()> {
    match source.len() {
        0..=LONGEST => Ok(()),
        length => Err(error(format_args!("it has {length} bytes, more than {LONGEST}; shorten it"))),
    }
}

/// What a call gives, or what it has panicked with.
fn caught<T, E: Display>(call: impl FnOnce() -> Result<T, E>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(outcome) => outcome.map_err(error),
        Err(_) => Err(error("its compiler has failed")),
    }
}

impl Grammars {
    /// For texts of a tokenizer; takes about a second for 150 000 tokens.
    ///
    /// # Errors
    /// [`Error::Grammar`] if no token of the tokenizer's ends a text.
    pub fn new(tokenizer: &Tokenizer) -> Result<Grammars> {
        let ends = tokenizer.end_of_generation();
        let first = *ends.first().ok_or_else(|| error("no token of the tokenizer's ends a text"))?;
        let words = (0..tokenizer.vocab()).map(|id| word(tokenizer, id)).collect::<Vec<_>>();
        caught(|| {
            let trie = TokTrie::from(&TokRxInfo::new(tokenizer.vocab(), first), &words).with_eos_tokens(ends);
            let tokens: TokEnv = Arc::new(Tokens { trie, tokenizer: tokenizer.clone() });
            ParserFactory::new_simple(&tokens).map(|mut factory| {
                factory.quiet().limits_mut().verbose_errors = false;
                Grammars { shared: Arc::new(Shared { factory, compilers: Arc::default() }) }
            })
        })
    }

    /// JSON that a schema describes, without white space but behind commas and colons. What of a schema cannot be held to
    /// is an error. An integer may be written `-0`, which `serde_json` reads as a float.
    ///
    /// # Errors
    /// [`Error::Grammar`] for what is no schema, or one that is longer than 64 KiB or takes too much work.
    pub fn json_schema(&self, schema: &str) -> Result<Grammar> {
        check_length(schema)?;
        let mut schema: Value = serde_json::from_str(schema).map_err(error)?;
        if let Some(fields) = schema.as_object_mut() {
            // A model may go on with spaces for ever.
            let options = JsonCompileOptions { whitespace_flexible: false, ..JsonCompileOptions::default() };
            let options = JsonCompileOptions { item_separator: ", ".into(), key_separator: ": ".into(), ..options };
            let options = serde_json::to_value(options).map_err(error)?;
            fields.entry("x-guidance").or_insert(options);
        }
        self.grammar(TopLevelGrammar::from_json_schema(schema))
    }

    /// Any JSON object.
    ///
    /// # Errors
    /// As [`Grammars::json_schema`].
    pub fn json_object(&self) -> Result<Grammar> {
        self.json_schema(r#"{"type": "object"}"#)
    }

    /// Text that a regular expression matches as a whole, in the syntax of the `regex` crate, without look-around.
    ///
    /// # Errors
    /// [`Error::Grammar`] for what is none, or one that takes too much work.
    pub fn regex(&self, expression: &str) -> Result<Grammar> {
        check_length(expression)?;
        self.grammar(TopLevelGrammar::from_regex(expression))
    }

    /// Text of a grammar in Lark's form, from its rule `start`.
    ///
    /// # Errors
    /// [`Error::Grammar`] for what is none, or one that takes too much work.
    pub fn lark(&self, grammar: &str) -> Result<Grammar> {
        check_length(grammar)?;
        self.grammar(TopLevelGrammar::from_lark(grammar.to_owned()))
    }

    fn grammar(&self, grammar: TopLevelGrammar) -> Result<Grammar> {
        let (shared, running, (sender, receiver)) = (self.shared.clone(), self.shared.compilers.clone(), channel());
        if Arc::strong_count(&running) > 1 + COMPILERS {
            return Err(error(format_args!("{COMPILERS} others are compiled, which take long; try again later")));
        }
        let compile = move || {
            // Nobody receives what took too long.
            let _ = sender.send(caught(|| shared.factory.create_parser(grammar)));
            drop(running);
        };
        std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK).spawn(compile).map_err(error)?;
        let parser: TokenParser = match receiver.recv_timeout(WAIT) {
            Ok(compiled) => compiled?,
            Err(RecvTimeoutError::Timeout) => return Err(error(format_args!("compiling it takes more than {WAIT:?}"))),
            Err(RecvTimeoutError::Disconnected) => return Err(error("its compiler has failed")),
        };
        let matcher = Matcher::new(Ok(parser));
        match matcher.get_error() {
            Some(what) => Err(error(what)),
            None => Ok(Grammar { matcher }),
        }
    }
}

/// The bytes of a token; of a control token its text behind a mark; of one that stands for nothing none.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    match bytes.first() {
        _ if tokenizer.is_control(id) => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
        // No character of UTF-8 begins so.
        Some(&TokTrie::SPECIAL_TOKEN_MARKER) => Vec::new(),
        _ => bytes.to_vec(),
    }
}

impl Constraint for Grammar {
    fn restrict(&mut self, allowed: &mut TokenSet) -> Result<()> {
        allowed.keep(self.matcher.compute_mask_or_eos().map_err(error)?.as_slice());
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<()> {
        // Behind its end only the end can come.
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            return Ok(());
        }
        self.matcher.consume_token(id).map_err(error)
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("stopped", &self.matcher.is_stopped()).finish_non_exhaustive()
    }
}
