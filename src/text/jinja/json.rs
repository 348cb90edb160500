//! JSON: text to values, and values as Python's `json.dumps(value, ensure_ascii=False)` writes them.

use super::budget::Budget;
use super::value::Value;
use super::{Fault, limit};
use std::fmt::Write;
use std::sync::Arc;

/// Writes a value; `indent` is the blanks of a level, where lines are wanted.
pub(super) fn write(value: &Value, indent: Option<usize>, budget: &mut Budget) -> Result<String, Fault> {
    let mut out = String::new();
    write_value(value, indent, 0, &mut out, budget)?;
    Ok(out)
}

fn write_value(
    value: &Value,
    indent: Option<usize>,
    level: usize,
    out: &mut String,
    budget: &mut Budget,
) -> Result<(), Fault> {
    budget.charge(8)?;
    match value {
        Value::Undefined | Value::None => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Int(_) | Value::Float(_) => value.write(out, false),
        Value::Str(text) => write_text(text, out, budget)?,
        Value::List(list) => {
            out.push('[');
            for (index, item) in list.items.iter().enumerate() {
                separate(index, indent, level + 1, out, budget)?;
                write_value(item, indent, level + 1, out, budget)?;
            }
            close(list.items.is_empty(), indent, level, out, budget)?;
            out.push(']');
        }
        Value::Map(map) => {
            out.push('{');
            for (index, (key, value)) in map.entries.iter().enumerate() {
                separate(index, indent, level + 1, out, budget)?;
                write_text(key, out, budget)?;
                out.push_str(": ");
                write_value(value, indent, level + 1, out, budget)?;
            }
            close(map.entries.is_empty(), indent, level, out, budget)?;
            out.push('}');
        }
        other => return Err(limit(format!("there is no JSON for {}", other.kind()))),
    }
    Ok(())
}

fn separate(
    index: usize,
    indent: Option<usize>,
    level: usize,
    out: &mut String,
    budget: &mut Budget,
) -> Result<(), Fault> {
    match indent {
        None => out.push_str(if index == 0 { "" } else { ", " }),
        Some(_) => {
            out.push_str(if index == 0 { "" } else { "," });
            line(indent, level, out, budget)?;
        }
    }
    Ok(())
}

fn close(empty: bool, indent: Option<usize>, level: usize, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
    if !empty && indent.is_some() {
        line(indent, level, out, budget)?;
    }
    Ok(())
}

fn line(indent: Option<usize>, level: usize, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
    let blanks = indent.unwrap_or(0).saturating_mul(level);
    budget.charge(blanks)?;
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', blanks));
    Ok(())
}

fn write_text(text: &str, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
    budget.charge(text.len())?;
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => {
                budget.charge(5)?;
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    Ok(())
}

/// The value of a JSON text.
pub(super) fn parse(text: &str, budget: &mut Budget) -> Result<Value, Fault> {
    budget.charge(text.len())?;
    let mut reader = Reader { text, at: 0, budget };
    let value = reader.value(0)?;
    reader.blanks();
    match reader.at == text.len() {
        true => Ok(value),
        false => Err(reader.wrong("the end")),
    }
}

struct Reader<'a, 'b> {
    text: &'a str,
    at: usize,
    budget: &'b mut Budget,
}

impl Reader<'_, '_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn wrong(&self, needed: &str) -> Fault {
        let found: String = self.rest().chars().take(10).collect();
        limit(format!("JSON at byte {}: found `{found}`, needed {needed}", self.at))
    }

    fn blanks(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    fn takes(&mut self, word: &str) -> bool {
        self.blanks();
        let found = self.rest().starts_with(word);
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn value(&mut self, level: u32) -> Result<Value, Fault> {
        if level > 64 {
            return Err(limit("JSON is nested more than 64 deep"));
        }
        if self.takes("{") {
            let mut entries = Vec::new();
            while !self.takes("}") {
                if !entries.is_empty() && !self.takes(",") {
                    return Err(self.wrong("a comma"));
                }
                self.blanks();
                let key = self.string()?;
                if !self.takes(":") {
                    return Err(self.wrong("a colon"));
                }
                entries.push((key, self.value(level + 1)?));
            }
            return self.budget.map(entries);
        }
        if self.takes("[") {
            let mut items = Vec::new();
            while !self.takes("]") {
                if !items.is_empty() && !self.takes(",") {
                    return Err(self.wrong("a comma"));
                }
                items.push(self.value(level + 1)?);
            }
            return self.budget.list(items);
        }
        for (word, value) in [("null", Value::None), ("true", Value::Bool(true)), ("false", Value::Bool(false))] {
            if self.takes(word) {
                return Ok(value);
            }
        }
        if self.rest().starts_with('"') {
            return self.string().map(Value::Str);
        }
        let length = self.rest().find(|c: char| !matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E'));
        let number = &self.rest()[..length.unwrap_or(self.rest().len())];
        let value = number.parse().map(Value::Int).or_else(|_| number.parse().map(Value::Float));
        let value = value.map_err(|_| self.wrong("a value"))?;
        self.at += number.len();
        Ok(value)
    }

    fn string(&mut self) -> Result<Arc<str>, Fault> {
        if !self.takes("\"") {
            return Err(self.wrong("a string"));
        }
        let mut out = String::new();
        loop {
            let Some(c) = self.rest().chars().next() else { return Err(self.wrong("the end of a string")) };
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(out.into()),
                '\\' => {
                    let Some(c) = self.rest().chars().next() else { return Err(self.wrong("an escape")) };
                    self.at += c.len_utf8();
                    match c {
                        'n' => out.push('\n'),
                        't' => out.push('\t'),
                        'r' => out.push('\r'),
                        'b' => out.push('\u{8}'),
                        'f' => out.push('\u{c}'),
                        '"' | '\\' | '/' => out.push(c),
                        'u' => out.push(self.escaped()?),
                        _ => return Err(self.wrong("an escape that JSON has")),
                    }
                }
                c if c < ' ' => return Err(self.wrong("an escape of a control character")),
                c => out.push(c),
            }
        }
    }

    /// The character behind `\u`; halves of a pair that stand alone are U+FFFD.
    fn escaped(&mut self) -> Result<char, Fault> {
        let first = self.hex()?;
        if (0xd800..0xdc00).contains(&first) && self.rest().starts_with("\\u") {
            let back = self.at;
            self.at += 2;
            let second = self.hex()?;
            if (0xdc00..0xe000).contains(&second) {
                let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = back;
        }
        Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex(&mut self) -> Result<u32, Fault> {
        let digits = self.rest().get(..4).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let code = code.ok_or_else(|| self.wrong("four hexadecimal digits"))?;
        self.at += 4;
        Ok(code)
    }
}
