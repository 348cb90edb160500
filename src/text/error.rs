//! What can go wrong between a file's tokenizer and text.

use kiln_shape::GgufError;

/// Why a tokenizer or chat template cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the fields' meaning is in each variant's message
pub enum TextError {
    /// A key is missing or of the wrong type.
    #[error(transparent)]
    Gguf(#[from] GgufError),

    /// Another kind of tokenizer.
    #[error("tokenizer.ggml.model is `{found}`; supported: `gpt2` (byte-level BPE)")]
    UnsupportedTokenizer { found: String },

    /// Another way of splitting text into words.
    #[error("tokenizer.ggml.pre is `{found}`; supported: `qwen2`")]
    UnsupportedPreTokenizer { found: String },

    /// `tokenizer.ggml.token_type` does not go with the vocabulary.
    #[error("tokenizer.ggml.token_type has {found} entries for {tokens} tokens")]
    TokenTypeCount { tokens: usize, found: usize },

    /// A byte that no token stands for, so that text holding it has no ids.
    #[error("the vocabulary has no token for byte {byte:#04x}; byte-level BPE needs all 256")]
    MissingByte { byte: u8 },

    /// A merge rule that is not two parts with a space between them.
    #[error("merge {index} of tokenizer.ggml.merges is `{text}`; needed: two parts with a space between them")]
    InvalidMerge { index: usize, text: String },

    /// A token id beyond the vocabulary.
    #[error("{what} {id} is outside the vocabulary of {vocab} tokens")]
    TokenOutOfRange { what: String, id: u32, vocab: u32 },

    /// The file has no chat template.
    #[error("the file has no tokenizer.chat_template; give the prompt as plain text")]
    NoChatTemplate,

    /// The chat template has an error, or refused the messages.
    #[error("chat template: {message}")]
    Template { message: String },

    /// A stop string that ends every text.
    #[error("a stop string is empty, and would end every text before it begins; leave it out")]
    EmptyStopString,

    /// The splitter's regular expression was not accepted.
    #[error("splitter: {message}")]
    Splitter { message: String },
}
