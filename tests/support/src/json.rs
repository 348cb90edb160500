//! Reads the JSON of the test data: enough of a parser that no crate is compiled for it.

use std::iter::Peekable;
use std::str::Chars;

/// A JSON value. Getters panic with what they found: a test wants to stop there.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(f64),
    String(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads a file.
    pub fn open(path: impl AsRef<std::path::Path>) -> Json {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Json::parse(&text)
    }

    pub fn parse(text: &str) -> Json {
        let mut chars = text.chars().peekable();
        let value = parse_value(&mut chars);
        skip_space(&mut chars);
        assert_eq!(chars.next(), None, "text after the value");
        value
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> &Json {
        match self {
            Json::Object(entries) => {
                entries.iter().find(|(k, _)| k == key).map(|(_, v)| v).unwrap_or_else(|| panic!("no key `{key}`"))
            }
            other => panic!("no object but {other:?}"),
        }
    }

    pub fn list(&self) -> &[Json] {
        match self {
            Json::List(items) => items,
            other => panic!("no list but {other:?}"),
        }
    }

    pub fn str(&self) -> &str {
        match self {
            Json::String(text) => text,
            other => panic!("no string but {other:?}"),
        }
    }

    pub fn f64(&self) -> f64 {
        match self {
            Json::Number(number) => *number,
            other => panic!("no number but {other:?}"),
        }
    }

    /// A list of token ids.
    pub fn ids(&self) -> Vec<u32> {
        self.list().iter().map(|id| id.f64() as u32).collect()
    }

    /// A list of numbers.
    pub fn f64s(&self) -> Vec<f64> {
        self.list().iter().map(Json::f64).collect()
    }
}

fn skip_space(chars: &mut Peekable<Chars>) {
    while chars.next_if(|c| c.is_ascii_whitespace()).is_some() {}
}

fn expect(chars: &mut Peekable<Chars>, wanted: &str) {
    wanted.chars().for_each(|c| assert_eq!(chars.next(), Some(c)));
}

fn parse_value(chars: &mut Peekable<Chars>) -> Json {
    skip_space(chars);
    match chars.peek() {
        Some('n') => {
            expect(chars, "null");
            Json::Null
        }
        Some('t') => {
            expect(chars, "true");
            Json::Bool(true)
        }
        Some('f') => {
            expect(chars, "false");
            Json::Bool(false)
        }
        Some('"') => Json::String(parse_string(chars)),
        Some('[') => Json::List(parse_items(chars, ']', parse_value)),
        Some('{') => Json::Object(parse_items(chars, '}', |chars| {
            skip_space(chars);
            let key = parse_string(chars);
            skip_space(chars);
            expect(chars, ":");
            (key, parse_value(chars))
        })),
        _ => {
            let mut text = String::new();
            while let Some(c) = chars.next_if(|c| c.is_ascii_alphanumeric() || "+-.".contains(*c)) {
                text.push(c);
            }
            Json::Number(text.parse().unwrap_or_else(|_| panic!("no number: {text:?}")))
        }
    }
}

fn parse_items<T>(chars: &mut Peekable<Chars>, end: char, item: impl Fn(&mut Peekable<Chars>) -> T) -> Vec<T> {
    chars.next();
    let mut items = Vec::new();
    skip_space(chars);
    if chars.next_if_eq(&end).is_some() {
        return items;
    }
    loop {
        items.push(item(chars));
        skip_space(chars);
        match chars.next() {
            Some(',') => {}
            Some(c) if c == end => return items,
            other => panic!("expected `,` or `{end}`, found {other:?}"),
        }
    }
}

fn parse_string(chars: &mut Peekable<Chars>) -> String {
    expect(chars, "\"");
    let mut units: Vec<u16> = Vec::new(); // escapes are UTF-16
    loop {
        match chars.next().expect("a string ends") {
            '"' => return String::from_utf16(&units).expect("whole surrogate pairs"),
            '\\' => match chars.next().expect("an escape") {
                'u' => {
                    let digits: String = chars.by_ref().take(4).collect();
                    units.push(u16::from_str_radix(&digits, 16).expect("four hex digits"));
                }
                c => units.push(match c {
                    'n' => 10,
                    'r' => 13,
                    't' => 9,
                    'b' => 8,
                    'f' => 12,
                    c => c as u16,
                }),
            },
            c => units.extend(c.encode_utf16(&mut [0; 2]).iter()),
        }
    }
}
