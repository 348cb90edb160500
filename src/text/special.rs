//! Special tokens in a text, such as `<|im_end|>`.

use std::cmp::Reverse;
use std::collections::HashMap;

/// Special tokens by their first byte, longest first.
#[derive(Debug, Default)]
pub(super) struct SpecialTokens {
    by_first_byte: HashMap<u8, Vec<(Vec<u8>, u32)>>,
}

/// A stretch of text between special tokens, or one of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    Text(&'a str),
    Token(u32),
}

impl SpecialTokens {
    pub(super) fn new<'a>(tokens: impl Iterator<Item = (&'a str, u32)>) -> SpecialTokens {
        let mut by_first_byte: HashMap<u8, Vec<(Vec<u8>, u32)>> = HashMap::new();
        for (text, id) in tokens {
            if let Some(first) = text.bytes().next() {
                by_first_byte.entry(first).or_default().push((text.into(), id));
            }
        }
        for tokens in by_first_byte.values_mut() {
            tokens.sort_by_key(|(text, _)| Reverse(text.len()));
        }
        SpecialTokens { by_first_byte }
    }

    /// Takes out every occurrence: of the longest token first, then from left to right.
    pub(super) fn split<'a>(&self, text: &'a str) -> Vec<Fragment<'a>> {
        let bytes = text.as_bytes();
        let mut found = Vec::new();
        for (start, byte) in bytes.iter().enumerate() {
            for (token, id) in self.by_first_byte.get(byte).into_iter().flatten() {
                if bytes[start..].starts_with(token) {
                    found.push((start, start + token.len(), *id));
                }
            }
        }
        found.sort_by_key(|&(start, end, _)| (start.wrapping_sub(end), start));

        // Those before were at least as long: an overlap covers the first or the last byte.
        let mut taken = vec![false; if found.is_empty() { 0 } else { bytes.len() }];
        found.retain(|&(start, end, _)| {
            let free = !taken[start] && !taken[end - 1];
            if free {
                taken[start..end].fill(true);
            }
            free
        });
        found.sort_unstable_by_key(|&(start, ..)| start);

        let mut fragments = Vec::with_capacity(2 * found.len() + 1);
        let mut done = 0;
        for (start, end, id) in found {
            fragments.extend((done < start).then(|| Fragment::Text(&text[done..start])));
            fragments.push(Fragment::Token(id));
            done = end;
        }
        fragments.extend((done < text.len()).then(|| Fragment::Text(&text[done..])));
        fragments
    }
}

#[cfg(test)]
mod tests {
    use super::Fragment::{Text, Token};
    use super::*;

    #[test]
    fn longer_tokens_win_then_those_further_left() {
        let tokens = SpecialTokens::new([("ab", 0), ("bcd", 1), ("aa", 2), ("é", 3)].into_iter());
        assert_eq!(tokens.split("abcd"), [Text("a"), Token(1)]);
        assert_eq!(tokens.split("aaa b"), [Token(2), Text("a b")]);
        assert_eq!(tokens.split("xéabé"), [Text("x"), Token(3), Token(0), Token(3)]);
        assert_eq!(tokens.split("nothing"), [Text("nothing")]);
        assert_eq!(tokens.split(""), []);
    }
}
