//! Values of metadata keys.

use std::fmt;

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // named after the format's types
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of metadata values, all of one type.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // named after the format's types
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Strings),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::String(v) => v.len(),
            Array::Array(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F64(v) => v.len(),
        }
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn element_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "u8",
            Array::I8(_) => "i8",
            Array::U16(_) => "u16",
            Array::I16(_) => "i16",
            Array::U32(_) => "u32",
            Array::I32(_) => "i32",
            Array::F32(_) => "f32",
            Array::Bool(_) => "bool",
            Array::String(_) => "string",
            Array::Array(_) => "array",
            Array::U64(_) => "u64",
            Array::I64(_) => "i64",
            Array::F64(_) => "f64",
        }
    }
}

impl Value {
    /// Type and, where it is short, the value: for messages.
    pub(super) fn describe(&self) -> String {
        match self {
            Value::U8(v) => format!("the u8 {v}"),
            Value::I8(v) => format!("the i8 {v}"),
            Value::U16(v) => format!("the u16 {v}"),
            Value::I16(v) => format!("the i16 {v}"),
            Value::U32(v) => format!("the u32 {v}"),
            Value::I32(v) => format!("the i32 {v}"),
            Value::F32(v) => format!("the f32 {v}"),
            Value::Bool(v) => format!("the bool {v}"),
            Value::String(_) => "a string".into(),
            Value::Array(array) => format!("an array of {} {}", array.len(), array.element_name()),
            Value::U64(v) => format!("the u64 {v}"),
            Value::I64(v) => format!("the i64 {v}"),
            Value::F64(v) => format!("the f64 {v}"),
        }
    }
}

/// An array of strings, stored end to end: a vocabulary has hundreds of thousands of short ones.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Strings {
    text: String,
    ends: Vec<u32>,
}

impl Strings {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)? as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        self.text.get(start..end)
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let string = &self.text[start..end as usize];
            start = end as usize;
            string
        })
    }

    /// Appends a string; false, and nothing is appended, if all of them together would pass 4 GiB.
    pub(super) fn push(&mut self, string: &str) -> bool {
        let Ok(end) = u32::try_from(self.text.len() + string.len()) else { return false };
        self.text.push_str(string);
        self.ends.push(end);
        true
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    /// Strings beyond the first 4 GiB of text are left out.
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Strings {
        let mut all = Strings::default();
        strings.into_iter().take_while(|string| all.push(string.as_ref())).for_each(drop);
        all
    }
}

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A Rust type that a metadata value may be asked for as.
pub trait FromValue<'a>: Sized {
    /// What a message calls it.
    const NEEDED: &'static str;

    /// The value as this type, `None` if it is of another.
    fn from_value(value: &'a Value) -> Option<Self>;
}

impl FromValue<'_> for u32 {
    const NEEDED: &'static str = "an integer from 0 to 2^32 - 1";

    fn from_value(value: &Value) -> Option<u32> {
        match *value {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v),
            Value::U64(v) => v.try_into().ok(),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }
}

impl FromValue<'_> for f32 {
    const NEEDED: &'static str = "a floating-point number";

    fn from_value(value: &Value) -> Option<f32> {
        match *value {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        }
    }
}

impl FromValue<'_> for bool {
    const NEEDED: &'static str = "a bool";

    fn from_value(value: &Value) -> Option<bool> {
        match *value {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }
}

/// Implements both directions for a borrowed type that one variant holds.
macro_rules! borrowed {
    ($($ty:ty, $needed:literal, $pattern:pat => $out:expr;)*) => {
        $(impl<'a> FromValue<'a> for &'a $ty {
            const NEEDED: &'static str = $needed;

            fn from_value(value: &'a Value) -> Option<&'a $ty> {
                match value {
                    $pattern => Some($out),
                    _ => None,
                }
            }
        })*
    };
}

borrowed! {
    str, "a string", Value::String(v) => v;
    Strings, "an array of strings", Value::Array(Array::String(v)) => v;
    [i32], "an array of i32", Value::Array(Array::I32(v)) => v;
    [f32], "an array of f32", Value::Array(Array::F32(v)) => v;
}

/// What a writer may be handed for a value.
macro_rules! into_value {
    ($($ty:ty, $v:ident => $out:expr;)*) => {
        $(impl From<$ty> for Value {
            fn from($v: $ty) -> Value {
                $out
            }
        })*
    };
}

into_value! {
    u32, v => Value::U32(v);
    u64, v => Value::U64(v);
    i32, v => Value::I32(v);
    f32, v => Value::F32(v);
    bool, v => Value::Bool(v);
    &str, v => Value::String(v.into());
    String, v => Value::String(v);
    Strings, v => Value::Array(Array::String(v));
    Vec<i32>, v => Value::Array(Array::I32(v));
    Vec<f32>, v => Value::Array(Array::F32(v));
}
