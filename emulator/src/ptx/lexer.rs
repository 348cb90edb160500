//! PTX text to tokens, each with its line; comments that name a source position are kept aside.

use super::PtxError;
use std::collections::HashMap;

/// What a token is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Tok {
    /// An opcode with its modifiers, a directive, an identifier or a register: `ld.global.v4.f32`, `.reg`, `%tid.x`.
    Word(String),
    /// An integer literal; the flag says that it was written with a `U` suffix.
    Int(u64),
    /// `0f3f800000`: the bits of a float.
    F32(u32),
    /// `0d3ff0000000000000` or a decimal floating-point literal.
    F64(f64),
    /// A string literal.
    Str(String),
    /// One character of punctuation.
    Punct(char),
    /// End of the text.
    End,
}

impl Tok {
    /// The token as it reads in a message.
    pub(crate) fn show(&self) -> String {
        match self {
            Tok::Word(w) => w.clone(),
            Tok::Int(i) => i.to_string(),
            Tok::F32(b) => format!("0f{b:08x}"),
            Tok::F64(v) => v.to_string(),
            Tok::Str(s) => format!("\"{s}\""),
            Tok::Punct(c) => c.to_string(),
            Tok::End => "end of text".into(),
        }
    }
}

/// All tokens of a text.
pub(crate) struct Tokens {
    /// Tokens with their 1-based lines.
    pub(crate) toks: Vec<(Tok, u32)>,
    /// Lines whose trailing comment reads `// file:line`.
    pub(crate) provenance: HashMap<u32, (String, u32)>,
}

fn word_start(c: u8) -> bool {
    c.is_ascii_alphabetic() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

fn word_part(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

/// `// kernels/norm.rs:41` names the line of source that an instruction comes from.
fn provenance(comment: &str) -> Option<(String, u32)> {
    let word = comment.split_whitespace().last()?;
    let mut parts = word.rsplitn(3, ':');
    let last: u32 = parts.next()?.parse().ok()?;
    let middle = parts.next()?;
    match (middle.parse::<u32>(), parts.next()) {
        (Ok(line), Some(file)) if !file.is_empty() => Some((file.into(), line)), // file:line:column
        (Err(_), None) if middle.contains('.') => Some((middle.into(), last)),
        (Err(_), Some(rest)) => Some((format!("{rest}:{middle}"), last)),
        _ => None,
    }
}

/// Splits a text into tokens.
pub(crate) fn lex(text: &str) -> Result<Tokens, PtxError> {
    let s = text.as_bytes();
    let mut toks = Vec::new();
    let mut notes = HashMap::new();
    let (mut i, mut line) = (0usize, 1u32);
    while i < s.len() {
        let c = s[i];
        if c == b'\n' {
            line += 1;
            i += 1;
        } else if c.is_ascii_whitespace() {
            i += 1;
        } else if c == 0 {
            break; // the driver's text is NUL-terminated
        } else if s[i..].starts_with(b"//") {
            let end = s[i..].iter().position(|&c| c == b'\n').map_or(s.len(), |n| i + n);
            if let Some(p) = std::str::from_utf8(&s[i + 2..end]).ok().and_then(provenance) {
                notes.insert(line, p);
            }
            i = end;
        } else if s[i..].starts_with(b"/*") {
            let end = s[i + 2..].windows(2).position(|w| w == b"*/").map_or(s.len(), |n| i + 2 + n + 2);
            line += s[i..end].iter().filter(|&&c| c == b'\n').count() as u32;
            i = end;
        } else if c == b'"' {
            let end = s[i + 1..].iter().position(|&c| c == b'"').map(|n| i + 1 + n);
            let end = end.ok_or_else(|| PtxError::new(line, "\"", "string is not closed"))?;
            toks.push((Tok::Str(String::from_utf8_lossy(&s[i + 1..end]).into_owned()), line));
            i = end + 1;
        } else if c.is_ascii_digit() {
            let (tok, next) = number(s, i, line)?;
            toks.push((tok, line));
            i = next;
        } else if word_start(c) {
            let start = i;
            while i < s.len() {
                if word_part(s[i]) {
                    i += 1;
                } else if s[i] == b':' && s.get(i + 1) == Some(&b':') && s.get(i + 2).is_some_and(|&c| word_part(c)) {
                    i += 2; // L2::cache_hint, shared::cta
                } else {
                    break;
                }
            }
            toks.push((Tok::Word(text[start..i].to_string()), line));
        } else if b"{}()[],;:+-!@=<>|*~^&/?".contains(&c) {
            toks.push((Tok::Punct(c as char), line));
            i += 1;
        } else {
            let shown = text[i..].chars().next().map(String::from).unwrap_or_default();
            return Err(PtxError::new(line, shown, "character that PTX does not have"));
        }
    }
    toks.push((Tok::End, line));
    Ok(Tokens { toks, provenance: notes })
}

fn number(s: &[u8], start: usize, line: u32) -> Result<(Tok, usize), PtxError> {
    let run = |from: usize, ok: fn(&u8) -> bool| from + s[from..].iter().take_while(|c| ok(c)).count();
    let text = |a: usize, b: usize| String::from_utf8_lossy(&s[a..b]).into_owned();
    let bad = |end: usize| PtxError::new(line, text(start, end.max(start + 1)), "number that cannot be read");
    let second = s.get(start + 1).copied().unwrap_or(0);
    if s[start] == b'0' && matches!(second, b'f' | b'F' | b'd' | b'D') {
        let end = run(start + 2, u8::is_ascii_hexdigit);
        let bits = u64::from_str_radix(&text(start + 2, end), 16).map_err(|_| bad(end))?;
        return match (second.to_ascii_lowercase(), end - start - 2) {
            (b'f', 8) => Ok((Tok::F32(bits as u32), end)),
            (b'd', 16) => Ok((Tok::F64(f64::from_bits(bits)), end)),
            _ => Err(bad(end)),
        };
    }
    let (radix, from) = match second {
        b'x' | b'X' if s[start] == b'0' => (16, start + 2),
        b'b' | b'B' if s[start] == b'0' => (2, start + 2),
        _ => (10, start),
    };
    let mut end = run(from, if radix == 16 { u8::is_ascii_hexdigit } else { u8::is_ascii_digit });
    let fraction = s.get(end) == Some(&b'.') || matches!(s.get(end), Some(b'e' | b'E'));
    if radix == 10 && fraction {
        end = run(end + usize::from(s[end] == b'.'), u8::is_ascii_digit);
        if matches!(s.get(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(s.get(end + 1), Some(b'+' | b'-')));
            end = run(end + 1 + sign, u8::is_ascii_digit);
        }
        return text(start, end).parse().map(|v| (Tok::F64(v), end)).map_err(|_| bad(end));
    }
    let digits = text(from, end);
    let octal = radix == 10 && digits.len() > 1 && digits.starts_with('0');
    let value = u64::from_str_radix(&digits, if octal { 8 } else { radix }).map_err(|_| bad(end))?;
    if s.get(end) == Some(&b'U') {
        end += 1;
    }
    if s.get(end).is_some_and(|&c| word_part(c)) {
        return Err(bad(run(end, |c| word_part(*c))));
    }
    Ok((Tok::Int(value), end))
}
