//! Text to tokens and back, from a GGUF file's own metadata: byte-level BPE, special tokens, the chat template.
//!
//! Nothing here knows weights, devices or decoding.
//!
//! ```
//! use kiln::text::{ChatMessage, ChatOptions, ChatTemplate, Special, Tokenizer};
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/demo.Q4_K_M.gguf");
//! let gguf = kiln_shape::Gguf::open(path)?;
//! let tokenizer = Tokenizer::from_gguf(&gguf)?;
//! let ids = tokenizer.encode("What is ownership?", Special::Plain);
//! assert_eq!(tokenizer.decode(&ids, Special::Plain), "What is ownership?");
//!
//! let template = ChatTemplate::from_gguf(&gguf, &tokenizer)?;
//! let prompt = template.render(&[ChatMessage::new("user", "What is ownership?")], &ChatOptions::default())?;
//! let ids = tokenizer.encode(&prompt, Special::Parse);
//! # assert!(ids.len() > 10);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bpe;
mod byte_level;
mod chat;
mod decoder;
mod error;
mod jinja;
mod special;
mod splitter;
mod stop;
mod tokenizer;

pub use chat::{ChatMessage, ChatOptions, ChatTemplate};
pub use decoder::TokenDecoder;
pub use error::TextError;
pub use stop::StopStrings;
pub use tokenizer::{Special, Tokenizer};
