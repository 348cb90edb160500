//! The one-to-one map between bytes and printable characters in which byte-level vocabularies are written.
//!
//! Printable Latin-1 bytes stand for themselves; the others, in order, for the characters from U+0100 on.

use std::sync::LazyLock;

const FIRST_MOVED: u32 = 0x100;

fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

static MOVED: LazyLock<Vec<u8>> = LazyLock::new(|| (0..=255).filter(|&byte| !stands_for_itself(byte)).collect());

/// The character that stands for `byte`.
pub(super) fn char_of(byte: u8) -> char {
    match MOVED.binary_search(&byte) {
        // At most U+0143: always a character.
        Ok(index) => char::from_u32(FIRST_MOVED + index as u32).unwrap_or_default(),
        Err(_) => char::from(byte),
    }
}

/// The byte that `c` stands for, if it stands for one.
fn byte_of(c: char) -> Option<u8> {
    match u8::try_from(c) {
        Ok(byte) => stands_for_itself(byte).then_some(byte),
        Err(_) => MOVED.get((c as u32 - FIRST_MOVED) as usize).copied(),
    }
}

/// Appends the bytes that a token's text stands for. Characters outside the map are taken as they are.
pub(super) fn decode_into(text: &str, out: &mut Vec<u8>) {
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => out.push(byte),
            None => out.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_characters_are_one_to_one() {
        let chars: std::collections::BTreeSet<char> = (0..=255).map(char_of).collect();
        assert_eq!(chars.len(), 256);
        assert!(chars.iter().all(|c| !c.is_whitespace() && !c.is_control()));
        assert!((0..=255).all(|byte| byte_of(char_of(byte)) == Some(byte)));
        assert_eq!((char_of(0xac), char_of(0xad), char_of(0xae)), ('¬', 'Ń', '®'));
        assert_eq!((char_of(b' '), char_of(b'\n'), byte_of(' '), byte_of('日')), ('Ġ', 'Ċ', None, None));
    }
}
