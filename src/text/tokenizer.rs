//! The tokenizer of a GGUF file.

use std::collections::HashMap;
use std::sync::Arc;

use kiln_shape::Gguf;

use super::bpe::{Bpe, Work};
use super::special::{Fragment, SpecialTokens};
use super::splitter::Splitter;
use super::{TextError, TokenDecoder, byte_level};

/// The treatment of control tokens such as `<|im_end|>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// Encoding: text that spells one becomes that token. Decoding: it is written out.
    ///
    /// For rendered chat templates only: text that is parsed so can end a turn.
    Parse,
    /// Encoding: text that spells one stays text. Decoding: it is left out.
    Plain,
}

// Values of `tokenizer.ggml.token_type`.
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// Tokens that end an answer in Qwen's chat format, whatever `eos_token_id` says.
const END_OF_GENERATION: [&str; 2] = ["<|im_end|>", "<|endoftext|>"];

/// Byte-level BPE with the `qwen2` splitter: text to token ids and back.
///
/// Text is not normalised: `decode(encode(text)) == text`. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    splitter: Splitter,
    bpe: Bpe,
    /// The bytes of all tokens, end to end, and where each ends.
    spelled: Vec<u8>,
    ends: Vec<u32>,
    types: Vec<i32>,
    control: SpecialTokens,
    user_defined: SpecialTokens,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    end_of_generation: Vec<u32>,
}

impl Tokenizer {
    /// Builds the tokenizer that a file describes; refuses one of another kind by name.
    pub fn from_gguf(gguf: &Gguf) -> Result<Tokenizer, TextError> {
        let model = gguf.str("tokenizer.ggml.model")?;
        if model != "gpt2" {
            return Err(TextError::UnsupportedTokenizer { found: model.into() });
        }
        let splitter = match gguf.str("tokenizer.ggml.pre")? {
            "qwen2" => Splitter::qwen2()?,
            found => return Err(TextError::UnsupportedPreTokenizer { found: found.into() }),
        };

        let tokens = gguf.strings("tokenizer.ggml.tokens")?;
        let vocab = tokens.len() as u32; // at most 2^24, by the reader's limit
        let types = match gguf.optional::<&[i32]>("tokenizer.ggml.token_type")? {
            Some(types) if types.len() == tokens.len() => types.to_vec(),
            Some(types) => return Err(TextError::TokenTypeCount { tokens: tokens.len(), found: types.len() }),
            None => vec![1; tokens.len()],
        };
        let ids: HashMap<&str, u32> = tokens.iter().zip(0..).collect();
        let bpe = Bpe::new(&ids, vocab, gguf.strings("tokenizer.ggml.merges")?)?;

        let mut spelled = Vec::new();
        let mut ends = Vec::with_capacity(tokens.len());
        for (text, &ty) in tokens.iter().zip(&types) {
            match ty {
                UNKNOWN | CONTROL | USER_DEFINED => spelled.extend(text.as_bytes()),
                UNUSED => {}
                _ => byte_level::decode_into(text, &mut spelled),
            }
            ends.push(spelled.len() as u32); // the reader's limit on a header is 2^28 bytes
        }

        let of_types = |wanted: &[i32]| {
            let typed = tokens.iter().zip(&types).zip(0..);
            SpecialTokens::new(typed.filter(|((_, ty), _)| wanted.contains(ty)).map(|((text, _), id)| (text, id)))
        };
        let named = |key: &str| -> Result<Option<u32>, TextError> {
            match gguf.optional::<u32>(key)? {
                Some(id) if id >= vocab => Err(TextError::TokenOutOfRange { what: key.into(), id, vocab }),
                id => Ok(id),
            }
        };
        let eos = named("tokenizer.ggml.eos_token_id")?;
        let end_of_turn = named("tokenizer.ggml.eot_token_id")?;
        let known_ends = END_OF_GENERATION.iter().filter_map(|text| ids.get(text).copied());
        let mut end_of_generation: Vec<u32> = eos.into_iter().chain(end_of_turn).chain(known_ends).collect();
        end_of_generation.sort_unstable();
        end_of_generation.dedup();

        let inner = Inner {
            control: of_types(&[UNKNOWN, CONTROL, USER_DEFINED]),
            user_defined: of_types(&[USER_DEFINED]),
            bos: named("tokenizer.ggml.bos_token_id")?,
            add_bos: gguf.optional("tokenizer.ggml.add_bos_token")?.unwrap_or(false),
            eos,
            end_of_generation,
            splitter,
            bpe,
            spelled,
            ends,
            types,
        };
        Ok(Tokenizer { inner: Arc::new(inner) })
    }

    /// The ids of `text`. No token is put in front unless the file asks for it (`add_bos_token`).
    ///
    /// User-defined tokens such as `<think>` are parsed in both modes.
    pub fn encode(&self, text: &str, special: Special) -> Vec<u32> {
        let mut ids: Vec<u32> = self.inner.bos.filter(|_| self.inner.add_bos).into_iter().collect();
        let mut work = Work::default();
        let tokens = match special {
            Special::Parse => &self.inner.control,
            Special::Plain => &self.inner.user_defined,
        };
        for fragment in tokens.split(text) {
            match fragment {
                Fragment::Token(id) => ids.push(id),
                Fragment::Text(text) => {
                    self.inner
                        .splitter
                        .words(text)
                        .for_each(|word| self.inner.bpe.encode(word.as_bytes(), &mut work, &mut ids));
                }
            }
        }
        ids
    }

    /// The text of `ids`. Bytes that are not UTF-8, which a model may write, become U+FFFD, and so do ids beyond the
    /// tokenizer's.
    pub fn decode(&self, ids: &[u32], special: Special) -> String {
        let mut decoder = self.decoder(special);
        let mut text = String::new();
        for &id in ids {
            decoder.push(id, &mut text);
        }
        decoder.finish(&mut text);
        text
    }

    /// A decoder for ids that come one by one.
    pub fn decoder(&self, special: Special) -> TokenDecoder {
        TokenDecoder::new(self, special)
    }

    /// The bytes a token stands for: not always whole UTF-8 characters, and nothing for an unused token.
    ///
    /// # Errors
    /// [`TextError::TokenOutOfRange`] for an id beyond [`Tokenizer::vocab`].
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], TextError> {
        let out_of_range = || TextError::TokenOutOfRange { what: "token".into(), id, vocab: self.vocab() };
        let end = *self.inner.ends.get(id as usize).ok_or_else(out_of_range)? as usize;
        let start = id.checked_sub(1).map_or(0, |before| self.inner.ends[before as usize] as usize);
        Ok(&self.inner.spelled[start..end])
    }

    /// Whether a token is one of those that [`Special::Plain`] leaves out of decoded text.
    pub fn is_control(&self, id: u32) -> bool {
        self.inner.types.get(id as usize).is_some_and(|ty| matches!(*ty, UNKNOWN | CONTROL))
    }

    /// Whether generation ends at this token: `eos_token_id`, `eot_token_id`, `<|im_end|>` or `<|endoftext|>`.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.inner.end_of_generation.binary_search(&id).is_ok()
    }

    /// The tokens that end generation, by rising id.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.inner.end_of_generation
    }

    /// The end-of-sequence token, if the file names one.
    pub fn eos(&self) -> Option<u32> {
        self.inner.eos
    }

    /// The beginning-of-sequence token, if the file names one.
    pub fn bos(&self) -> Option<u32> {
        self.inner.bos
    }

    /// Number of tokens. A model's embedding may have more rows.
    pub fn vocab(&self) -> u32 {
        self.inner.ends.len() as u32
    }
}
