//! Source to text, tags and their words, with Jinja's rules for whitespace: a line break behind a block's tag and blanks in
//! front of one that begins a line are left out, and `-` takes all whitespace on its side.

use super::{Fault, fault};
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Text(Arc<str>),
    /// The beginning and end of `{{ }}`, and of `{% %}`.
    PrintBegin,
    PrintEnd,
    BlockBegin,
    BlockEnd,
    Name(String),
    Str(Arc<str>),
    Int(i64),
    Float(f64),
    Sign(&'static str),
}

/// Signs, longer ones before those they begin with.
const SIGNS: [&str; 26] = [
    "**", "//", "==", "!=", "<=", ">=", "<", ">", "=", "+", "-", "*", "/", "%", "~", "|", ".", ",", ":", "(", ")", "[",
    "]", "{", "}", ";",
];

/// The tokens of a template, each with its line.
pub(super) fn tokens(source: &str) -> Result<Vec<(Token, u32)>, Fault> {
    let source = source.replace("\r\n", "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    Lexer { source, at: 0, line: 1, line_begins: true, out: Vec::new() }.run()
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: u32,
    /// Whether only a line break, or nothing, stands before the next text.
    line_begins: bool,
    out: Vec<(Token, u32)>,
}

impl Lexer<'_> {
    fn rest(&self) -> &str {
        self.source.get(self.at..).unwrap_or_default()
    }

    fn advance(&mut self, bytes: usize) {
        let passed = self.rest().get(..bytes).unwrap_or_default();
        let lines = passed.bytes().filter(|byte| *byte == b'\n').count();
        self.line += lines as u32;
        self.at += bytes;
    }

    fn push(&mut self, token: Token) {
        self.out.push((token, self.line));
    }

    fn run(mut self) -> Result<Vec<(Token, u32)>, Fault> {
        while !self.rest().is_empty() {
            let tag = self.rest().match_indices('{').find_map(|(at, _)| {
                let begin = self.rest().get(at..at + 2)?;
                ["{{", "{%", "{#"].into_iter().find(|tag| *tag == begin).map(|tag| (at, tag))
            });
            let Some((before, tag)) = tag else {
                let text = Arc::from(self.rest());
                self.push(Token::Text(text));
                break;
            };
            self.text(before, tag);
            self.advance(2);
            let sign = self.rest().starts_with(['-', '+']);
            self.advance(usize::from(sign));
            match tag {
                "{#" => self.comment()?,
                "{{" => self.inside(Token::PrintBegin, "}}", Token::PrintEnd)?,
                _ if self.raw()? => {}
                _ => self.inside(Token::BlockBegin, "%}", Token::BlockEnd)?,
            }
        }
        Ok(self.out)
    }

    /// The text in front of a tag.
    fn text(&mut self, length: usize, tag: &str) {
        let whole = self.rest().get(..length).unwrap_or_default();
        let sign = self.rest().get(length + 2..).and_then(|rest| rest.chars().next());
        let last_line = whole.rfind('\n').map(|at| at + 1);
        let text = match sign {
            Some('-') => whole.trim_end(),
            Some('+') => whole,
            _ if tag == "{{" => whole,
            _ => match last_line.or(self.line_begins.then_some(0)) {
                Some(line) if whole[line..].chars().all(char::is_whitespace) => &whole[..line],
                _ => whole,
            },
        };
        if !text.is_empty() {
            let text = Arc::from(text);
            self.push(Token::Text(text));
        }
        self.advance(length);
    }

    /// Whitespace behind a tag that goes with it: all of it behind a `-`, else, if the tag is a block's, a line break.
    fn trim(&mut self, minus: bool, block: bool) {
        let rest = self.rest();
        let taken = match (minus, block) {
            (true, _) => rest.len() - rest.trim_start().len(),
            (false, true) => usize::from(rest.starts_with('\n')),
            (false, false) => 0,
        };
        self.line_begins = rest[..taken].ends_with('\n');
        self.advance(taken);
    }

    fn comment(&mut self) -> Result<(), Fault> {
        let Some(length) = self.rest().find("#}") else { return Err(fault(self.line, "a comment has no end")) };
        let minus = self.rest()[..length].ends_with('-');
        self.advance(length + 2);
        self.trim(minus, true);
        Ok(())
    }

    /// `{% raw %}`, whose text ends at `{% endraw %}` only.
    fn raw(&mut self) -> Result<bool, Fault> {
        let Some(rest) = self.rest().trim_start().strip_prefix("raw") else { return Ok(false) };
        let rest = rest.trim_start();
        let minus = rest.starts_with('-');
        let Some(rest) = rest.trim_start_matches(['-', '+']).strip_prefix("%}") else { return Ok(false) };
        let skipped = self.rest().len() - rest.len();
        self.advance(skipped);
        self.trim(minus, true);
        let mut from = 0;
        while let Some(at) = self.rest()[from..].find("{%") {
            let (begin, inner) = (from + at, &self.rest()[from + at + 2..]);
            let word = inner.trim_start_matches(['-', '+']).trim_start();
            let end = word.strip_prefix("endraw").map(|rest| rest.trim_start());
            if let Some(end) = end.and_then(|end| end.trim_start_matches(['-', '+']).strip_prefix("%}")) {
                let length = self.rest().len() - end.len();
                self.text(begin, "{%");
                let minus = self.rest()[..length - begin].ends_with("-%}");
                self.advance(length - begin);
                self.trim(minus, true);
                return Ok(true);
            }
            from = begin + 2;
        }
        Err(fault(self.line, "raw has no end"))
    }

    /// The words of a tag.
    fn inside(&mut self, begin: Token, closing: &str, end: Token) -> Result<(), Fault> {
        self.push(begin);
        let mut open = 0u32;
        loop {
            let blanks = self.rest().len() - self.rest().trim_start().len();
            self.advance(blanks);
            let signed = self.rest().strip_prefix(['-', '+']).is_some_and(|rest| rest.starts_with(closing));
            if signed || (open == 0 && self.rest().starts_with(closing)) {
                let minus = self.rest().starts_with('-');
                let plus = signed && !minus;
                self.push(end);
                self.advance(closing.len() + usize::from(signed));
                self.trim(minus, closing == "%}" && !plus);
                return Ok(());
            }
            let Some(first) = self.rest().chars().next() else { return Err(fault(self.line, "a tag has no end")) };
            if first == '"' || first == '\'' {
                self.string(first)?;
            } else if first.is_ascii_digit() {
                self.number()?;
            } else if first == '_' || first.is_alphabetic() {
                let end = self.rest().find(|c: char| c != '_' && !c.is_alphanumeric());
                let word = self.rest()[..end.unwrap_or(self.rest().len())].to_owned();
                let length = word.len();
                self.push(Token::Name(word));
                self.advance(length);
            } else {
                let sign = SIGNS.into_iter().find(|sign| self.rest().starts_with(sign));
                let sign = sign.ok_or_else(|| fault(self.line, format!("`{first}` means nothing in a tag")))?;
                match sign {
                    "{" => open += 1,
                    "}" => open = open.saturating_sub(1),
                    _ => {}
                }
                self.push(Token::Sign(sign));
                self.advance(sign.len());
            }
        }
    }

    fn string(&mut self, quote: char) -> Result<(), Fault> {
        let (mut text, mut length, mut escaped) = (String::new(), None, false);
        for (at, c) in self.rest().char_indices().skip(1) {
            match c {
                _ if escaped => {
                    escaped = false;
                    match c {
                        'n' => text.push('\n'),
                        't' => text.push('\t'),
                        'r' => text.push('\r'),
                        '\\' | '"' | '\'' => text.push(c),
                        other => text.extend(['\\', other]),
                    }
                }
                '\\' => escaped = true,
                c if c == quote => {
                    length = Some(at + 1);
                    break;
                }
                c => text.push(c),
            }
        }
        let length = length.ok_or_else(|| fault(self.line, "a string has no end"))?;
        self.push(Token::Str(text.into()));
        self.advance(length);
        Ok(())
    }

    fn number(&mut self) -> Result<(), Fault> {
        let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
        let rest = self.rest();
        let mut length = digits(rest);
        let fraction = rest[length..].strip_prefix('.').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        let is_float = fraction.is_some();
        length += fraction.map_or(0, |fraction| 1 + digits(fraction));
        let text = rest[..length].replace('_', "");
        let token = if is_float { text.parse().ok().map(Token::Float) } else { text.parse().ok().map(Token::Int) };
        let token = token.ok_or_else(|| fault(self.line, format!("the number {text} is too great")))?;
        self.push(token);
        self.advance(length);
        Ok(())
    }
}
