//! Values of a template while it runs.

use std::cell::RefCell;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;

#[derive(Debug, Clone)]
pub(super) enum Value {
    Undefined,
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Arc<str>),
    List(Rc<List>),
    Map(Rc<Map>),
    /// What `namespace()` makes: the only value that changes. It is never within another.
    Namespace(Rc<RefCell<Entries>>),
    Loop(Rc<Loop>),
    /// A macro, by its place among the template's.
    Macro(usize),
    /// A function of the environment.
    Function(Function),
}

/// Values by their keys, in the order of their making.
pub(super) type Entries = Vec<(Arc<str>, Value)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Range,
    Namespace,
    Dict,
    RaiseException,
    /// The body that a macro is called with.
    Caller,
}

/// Values in order: a list, or a tuple, which is spelled otherwise and equals no list.
#[derive(Debug)]
pub(super) struct List {
    pub(super) items: Vec<Value>,
    pub(super) is_tuple: bool,
    pub(super) size: Size,
}

/// Entries, each key once.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) entries: Entries,
    pub(super) size: Size,
}

/// How deeply a value is nested, and the bytes that a walk through it looks at, about: what is in it twice counts twice.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Size {
    pub(super) depth: u32,
    pub(super) weight: usize,
}

/// What `loop` is in a loop.
#[derive(Debug)]
pub(super) struct Loop {
    pub(super) index: usize,
    pub(super) items: Rc<List>,
}

impl Value {
    pub(super) fn str(text: impl Into<Arc<str>>) -> Value {
        Value::Str(text.into())
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn size(&self) -> Size {
        match self {
            Value::List(list) => list.size,
            Value::Map(map) => map.size,
            Value::Str(text) => Size { depth: 0, weight: text.len() },
            _ => Size { depth: 0, weight: 8 },
        }
    }

    /// Python's truth.
    pub(super) fn holds(&self) -> bool {
        match self {
            Value::Undefined | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Str(text) => !text.is_empty(),
            Value::List(list) => !list.items.is_empty(),
            Value::Map(map) => !map.entries.is_empty(),
            Value::Namespace(_) | Value::Loop(_) | Value::Macro(_) | Value::Function(_) => true,
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Undefined => "undefined",
            Value::None => "none",
            Value::Bool(_) => "a truth value",
            Value::Int(_) | Value::Float(_) => "a number",
            Value::Str(_) => "a string",
            Value::List(list) if list.is_tuple => "a tuple",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
            Value::Namespace(_) => "a namespace",
            Value::Loop(_) => "a loop",
            Value::Macro(_) | Value::Function(_) => "a function",
        }
    }

    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Value::Bool(value) => Some(f64::from(u8::from(*value))),
            Value::Int(value) => Some(*value as f64),
            Value::Float(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn int(&self) -> Option<i64> {
        match self {
            Value::Bool(value) => Some(i64::from(*value)),
            Value::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// Python's equality.
    pub(super) fn equals(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
            (Value::Str(a), Value::Str(b)) => a == b,
            (Value::List(a), Value::List(b)) => {
                let alike = a.is_tuple == b.is_tuple && a.items.len() == b.items.len();
                alike && a.items.iter().zip(&b.items).all(|(a, b)| a.equals(b))
            }
            (Value::Map(a), Value::Map(b)) => {
                a.entries.len() == b.entries.len()
                    && a.entries.iter().all(|(key, value)| b.get(key).is_some_and(|other| value.equals(other)))
            }
            _ => match (self.int().zip(other.int()), self.number().zip(other.number())) {
                (Some((a, b)), _) => a == b,
                (None, Some((a, b))) => a == b,
                (None, None) => false,
            },
        }
    }

    /// Python's `str()`, or its `repr()` for what is within another value.
    pub(super) fn write(&self, out: &mut String, within: bool) {
        // Writing to a string cannot fail.
        let _ = match self {
            Value::Undefined => Ok(()),
            Value::None => write!(out, "None"),
            Value::Bool(value) => write!(out, "{}", if *value { "True" } else { "False" }),
            Value::Int(value) => write!(out, "{value}"),
            Value::Float(value) => write!(out, "{value:?}"),
            Value::Str(text) if within => {
                out.push('\'');
                for c in text.chars() {
                    match c {
                        '\\' | '\'' => out.extend(['\\', c]),
                        '\n' => out.push_str("\\n"),
                        '\t' => out.push_str("\\t"),
                        '\r' => out.push_str("\\r"),
                        c => out.push(c),
                    }
                }
                write!(out, "'")
            }
            Value::Str(text) => write!(out, "{text}"),
            Value::List(list) => {
                let (open, close) = match (list.is_tuple, list.items.len()) {
                    (false, _) => ('[', "]"),
                    (true, 1) => ('(', ",)"),
                    (true, _) => ('(', ")"),
                };
                out.push(open);
                for (index, item) in list.items.iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { ", " });
                    item.write(out, true);
                }
                out.write_str(close)
            }
            Value::Map(map) => {
                out.push('{');
                for (index, (key, value)) in map.entries.iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { ", " });
                    Value::Str(key.clone()).write(out, true);
                    out.push_str(": ");
                    value.write(out, true);
                }
                write!(out, "}}")
            }
            Value::Namespace(_) | Value::Loop(_) | Value::Macro(_) | Value::Function(_) => {
                write!(out, "<{}>", self.kind())
            }
        };
    }

    pub(super) fn to_text(&self) -> Arc<str> {
        match self {
            Value::Str(text) => text.clone(),
            other => {
                let mut out = String::new();
                other.write(&mut out, false);
                out.into()
            }
        }
    }
}

impl Map {
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.entries.iter().find(|(name, _)| **name == *key).map(|(_, value)| value)
    }
}

impl Loop {
    /// An attribute of `loop`.
    pub(super) fn get(&self, name: &str) -> Value {
        let (index, length) = (self.index, self.items.items.len());
        let number = |value: usize| Value::Int(value as i64);
        let at = |index: Option<usize>| index.and_then(|index| self.items.items.get(index)).cloned();
        match name {
            "index" => number(index + 1),
            "index0" => number(index),
            "revindex" => number(length - index),
            "revindex0" => number(length - index - 1),
            "first" => Value::Bool(index == 0),
            "last" => Value::Bool(index + 1 == length),
            "length" => number(length),
            "previtem" => at(index.checked_sub(1)).unwrap_or(Value::Undefined),
            "nextitem" => at(index.checked_add(1)).unwrap_or(Value::Undefined),
            _ => Value::Undefined,
        }
    }
}
