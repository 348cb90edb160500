//! Lexer: PTX text to tokens, one at a time.

use super::PtxError;
use super::ast::Num;

/// A token as written, and its 1-based line. The last token is empty.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) line: u32,
}

impl Token<'_> {
    pub(super) fn error(self, message: impl Into<String>) -> PtxError {
        PtxError::new(self.line, if self.text.is_empty() { "end of text" } else { self.text }, message)
    }

    /// Whether it is an opcode with modifiers, a directive, an identifier or a register: `ld.global.v4.f32`, `%tid.x`.
    pub(super) fn is_word(self) -> bool {
        word(self.text) > 0 && !self.is_number()
    }

    pub(super) fn is_number(self) -> bool {
        self.text.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit())
    }

    /// The value of a literal.
    pub(super) fn number(self) -> Result<Num, PtxError> {
        let text = self.text.strip_prefix('-').unwrap_or(self.text);
        let minus = text.len() < self.text.len();
        let bits = |digits: &str, radix| u64::from_str_radix(digits.strip_suffix('U').unwrap_or(digits), radix).ok();
        let int = |value: u64| Num::Int(if minus { value.wrapping_neg() } else { value });
        let float = |value: f64| Num::F64(if minus { -value } else { value });
        let number = match text.split_at_checked(2) {
            _ if !self.is_number() => None,
            Some(("0f" | "0F", hex)) if hex.len() == 8 => {
                bits(hex, 16).map(|b| Num::F32(b as u32 ^ u32::from(minus) << 31))
            }
            Some(("0d" | "0D", hex)) if hex.len() == 16 => bits(hex, 16).map(|b| float(f64::from_bits(b))),
            Some(("0x" | "0X", hex)) => bits(hex, 16).map(int),
            _ if text.contains(['.', 'e', 'E']) => text.parse().ok().map(float),
            _ => bits(text, if text.starts_with('0') { 8 } else { 10 }).map(int),
        };
        number.ok_or_else(|| self.error("expected a number"))
    }
}

/// The unread rest of a text.
pub(super) struct Lexer<'a> {
    rest: &'a str,
    line: u32,
    /// The last comment with a source position: the comment's line, then file and line of the source.
    pub(super) comment: (u32, &'a str, u32),
}

impl<'a> Lexer<'a> {
    /// A lexer of a text up to its first NUL.
    pub(super) fn new(text: &'a str) -> Lexer<'a> {
        Lexer { rest: text.split('\0').next().unwrap_or(text), line: 1, comment: (0, "", 0) }
    }

    /// Refuses characters that are not ASCII wherever they stand, as the driver 580 does on an H200. The PTX ISA's source
    /// format is ASCII; ptxas 13.5 refuses others in the names of files, and passes over them in comments.
    pub(super) fn check_characters(&self) -> Result<(), PtxError> {
        let Some((at, found)) = self.rest.char_indices().find(|(_, found)| !found.is_ascii()) else { return Ok(()) };
        let line = self.line + self.rest[..at].matches('\n').count() as u32;
        Err(PtxError::new(line, found, "unexpected non-ASCII character"))
    }

    pub(super) fn next(&mut self) -> Token<'a> {
        loop {
            self.pass(self.rest.len() - self.rest.trim_ascii_start().len());
            if self.rest.starts_with("//") {
                let comment = self.pass(self.rest.find('\n').unwrap_or(self.rest.len()));
                self.comment = position(comment).map_or(self.comment, |(file, line)| (self.line, file, line));
            } else if let Some((comment, _)) = self.rest.strip_prefix("/*").and_then(|rest| rest.split_once("*/")) {
                self.pass(comment.len() + 4);
            } else {
                break;
            }
        }
        let length = match self.rest.chars().next() {
            Some('"') => self.rest[1..].find('"').map_or(1, |length| length + 2),
            Some('-') => 1 + word(&self.rest[1..]),
            // NVIDIA's headers write `.reg.b32`.
            Some('.') => 1 + self.rest[1..word(self.rest)].find('.').unwrap_or(word(self.rest) - 1),
            Some(first) => word(self.rest).max(first.len_utf8()),
            None => 0,
        };
        let line = self.line;
        Token { text: self.pass(length), line }
    }

    fn pass(&mut self, length: usize) -> &'a str {
        let (passed, rest) = self.rest.split_at(length);
        self.rest = rest;
        self.line += passed.matches('\n').count() as u32;
        passed
    }
}

/// Length of the word or number at the start of a text.
fn word(text: &str) -> usize {
    let bytes = text.as_bytes();
    let number = text.starts_with(|c: char| c.is_ascii_digit());
    let part = |&at: &usize| match bytes[at] {
        b':' => at > 0 && (bytes[at - 1] == b':' || bytes.get(at + 1) == Some(&b':')), // shared::cta
        b'+' | b'-' => number && matches!(bytes[at - 1], b'e' | b'E') && !text.starts_with("0x"), // 1.5e-3
        c => c.is_ascii_alphanumeric() || b"_$%.".contains(&c),
    };
    (0..bytes.len()).find(|at| !part(at)).unwrap_or(bytes.len())
}

/// The source position in a comment such as `// kernels/norm.rs:41`.
fn position(comment: &str) -> Option<(&str, u32)> {
    let (file, line) = comment.split_whitespace().last()?.rsplit_once(':')?;
    line.parse().ok().filter(|_| file.contains('.')).map(|line| (file, line))
}
