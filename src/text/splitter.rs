//! Splits text into words before merging: the `qwen2` pre-tokenizer.
//!
//! Its pattern ends in `\s+(?!\S)|\s+`: a run of whitespace leaves its last character to a word that follows. That
//! look-ahead is the only one. It is applied to the matches of the pattern without it, so that time stays linear.

use regex::Regex;

use super::TextError;

const PATTERN: &str = concat!(
    r"\A(?:",
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]",
    r"|[^\r\n\p{L}\p{N}]?\p{L}+",
    r"|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+",
    r"|\s+",
    r")",
);

#[derive(Debug)]
pub(super) struct Splitter {
    pattern: Regex,
}

impl Splitter {
    pub(super) fn qwen2() -> Result<Splitter, TextError> {
        let pattern = Regex::new(PATTERN).map_err(|error| TextError::Splitter { message: error.to_string() })?;
        Ok(Splitter { pattern })
    }

    /// The words of `text`, which together are `text`.
    pub(super) fn words<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            // Letters, numbers, whitespace and the rest each have an alternative: something always matches.
            let matched = self.pattern.find(rest).map_or(rest, |found| found.as_str());
            let (word, after) = rest.split_at(word_len(matched, rest.len() == matched.len()));
            rest = after;
            Some(word)
        })
    }
}

/// The length of the word in `matched`: the look-ahead may take its last character off.
fn word_len(matched: &str, at_end: bool) -> usize {
    match matched.char_indices().next_back() {
        // Only the last alternative ends in whitespace other than a line break; what follows its run is no whitespace.
        Some((last_at, last)) if last_at > 0 && !at_end && last.is_whitespace() && !matches!(last, '\r' | '\n') => {
            last_at
        }
        _ => matched.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_published_pattern() {
        let splitter = Splitter::qwen2().unwrap();
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            ("Hello, world!", &["Hello", ",", " world", "!"]),
            ("a   b", &["a", "  ", " b"]),
            ("a  ", &["a", "  "]),
            ("a  1", &["a", " ", " ", "1"]),
            ("a \n  b", &["a", " \n", " ", " b"]),
            ("a\n\n  \n\tb", &["a", "\n\n  \n", "\tb"]),
            ("x\u{a0}\u{a0}y", &["x", "\u{a0}", "\u{a0}y"]),
            ("  --\r\n\r\nz", &[" ", " --\r\n\r\n", "z"]),
            ("12 3", &["1", "2", " ", "3"]),
            ("I'm WE'LL 'tis 'S", &["I", "'m", " WE", "'LL", " '", "tis", " '", "S"]),
            ("it'ſ", &["it", "'ſ"]),
            ("x² ⅷ", &["x", "²", " ", "ⅷ"]),
            ("日本語。ok", &["日本語", "。ok"]),
        ];
        for (text, words) in cases {
            assert_eq!(splitter.words(text).collect::<Vec<_>>(), *words, "{text:?}");
        }
    }
}
