//! Tokens to text as they come, in whole characters.

use super::{Special, Tokenizer};

/// U+FFFD, in UTF-8.
const UNKNOWN_ID: &[u8] = "\u{fffd}".as_bytes();

/// Turns ids that come one by one into text. A token may end inside a character; its bytes wait for the rest.
///
/// ```
/// # use kiln::text::{Special, Tokenizer};
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/demo.Q4_K_M.gguf");
/// # let tokenizer = Tokenizer::from_gguf(&kiln_shape::Gguf::open(path)?)?;
/// let mut decoder = tokenizer.decoder(Special::Plain);
/// let mut shown = String::new();
/// for id in tokenizer.encode("🦀", Special::Plain) {
///     decoder.push(id, &mut shown); // print what was appended
///     assert!(shown.is_empty() || shown == "🦀");
/// }
/// decoder.finish(&mut shown);
/// assert_eq!(shown, "🦀");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TokenDecoder {
    tokenizer: Tokenizer,
    special: Special,
    waiting: Vec<u8>,
}

impl TokenDecoder {
    pub(super) fn new(tokenizer: &Tokenizer, special: Special) -> Self {
        TokenDecoder { tokenizer: tokenizer.clone(), special, waiting: Vec::new() }
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Takes a token and appends the characters that are now whole. Bytes that can no longer become one are U+FFFD, and
    /// so is an id beyond the tokenizer's: a model's embedding may have more rows.
    pub fn push(&mut self, id: u32, text: &mut String) {
        if self.special == Special::Parse || !self.tokenizer.is_control(id) {
            self.waiting.extend(self.tokenizer.token_bytes(id).unwrap_or(UNKNOWN_ID));
            self.take_whole(text);
        }
    }

    /// Ends the text: bytes still waiting are U+FFFD. The decoder can be used again.
    pub fn finish(&mut self, text: &mut String) {
        text.push_str(&String::from_utf8_lossy(&self.waiting));
        self.waiting.clear();
    }

    fn take_whole(&mut self, text: &mut String) {
        let mut done = 0;
        for chunk in self.waiting.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            let ends_here = done + invalid.len() == self.waiting.len();
            if ends_here && could_become_a_character(invalid) {
                break;
            }
            if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
            done += invalid.len();
        }
        self.waiting.drain(..done);
    }
}

fn could_become_a_character(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}
