//! Python's side of Jinja templates: methods of `str` and `dict`, and `tojson` as `json.dumps` writes it.

use std::fmt::Write;

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, Value};

/// Calls `value.method(args)`; an unknown method is an error that names it.
pub(super) fn method(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => str_method(text, method, args),
        (None, ValueKind::Map) => dict_method(value, method, args),
        _ => Err(unknown(method)),
    }
}

fn unknown(method: &str) -> Error {
    Error::new(ErrorKind::UnknownMethod, format!("no method named `{method}`"))
}

fn str_method(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    // What `strip` and its sisters take away: the given characters, or whitespace.
    let strips = || -> Result<_, Error> {
        let (chars,): (Option<String>,) = from_args(args)?;
        Ok(move |c: char| chars.as_ref().map_or(c.is_whitespace(), |chars| chars.contains(c)))
    };
    let no_arguments = || from_args::<()>(args);
    Ok(match method {
        "startswith" => any_affix(args, |affix| text.starts_with(affix))?,
        "endswith" => any_affix(args, |affix| text.ends_with(affix))?,
        "strip" => text.trim_matches(strips()?).into(),
        "lstrip" => text.trim_start_matches(strips()?).into(),
        "rstrip" => text.trim_end_matches(strips()?).into(),
        "lower" => {
            no_arguments()?;
            text.to_lowercase().into()
        }
        "upper" => {
            no_arguments()?;
            text.to_uppercase().into()
        }
        "replace" => {
            let (from, to): (&str, &str) = from_args(args)?;
            text.replace(from, to).into()
        }
        "find" => {
            let (part,): (&str,) = from_args(args)?;
            text.find(part).map_or(Value::from(-1), |at| text[..at].chars().count().into())
        }
        "count" => {
            let (part,): (&str,) = from_args(args)?;
            text.matches(part).count().into()
        }
        "split" => {
            let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
            let pieces =
                limit.and_then(|limit| usize::try_from(limit).ok()).map_or(usize::MAX, |n| n.saturating_add(1));
            match separator {
                Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
                Some(separator) => text.splitn(pieces, separator).map(Value::from).collect(),
                None if pieces == usize::MAX => text.split_whitespace().map(Value::from).collect(),
                None => return Err(Error::new(ErrorKind::InvalidOperation, "split with a limit needs a separator")),
            }
        }
        _ => return Err(unknown(method)),
    })
}

/// `startswith` and `endswith` take a string or a tuple of them.
fn any_affix(args: &[Value], matches: impl Fn(&str) -> bool) -> Result<Value, Error> {
    let (affix,): (&Value,) = from_args(args)?;
    match affix.as_str() {
        Some(affix) => Ok(matches(affix).into()),
        None => Ok(affix.try_iter()?.any(|affix| affix.as_str().is_some_and(&matches)).into()),
    }
}

fn dict_method(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let entry = |key: Value| value.get_item(&key);
    Ok(match method {
        "get" => {
            let (key, default): (Value, Option<Value>) = from_args(args)?;
            match entry(key)? {
                found if !found.is_undefined() => found,
                _ => default.unwrap_or(Value::from(())),
            }
        }
        "keys" => value.try_iter()?.collect(),
        "values" => value.try_iter()?.map(entry).collect::<Result<Vec<_>, _>>()?.into_iter().collect(),
        "items" => value
            .try_iter()?
            .map(|key| Ok([key.clone(), entry(key)?].into_iter().collect::<Value>()))
            .collect::<Result<Vec<_>, Error>>()?
            .into_iter()
            .collect(),
        _ => return Err(unknown(method)),
    })
}

/// `json.dumps(value, ensure_ascii=False)`: a space after commas and colons, nothing escaped for HTML.
pub(super) fn to_json(value: &Value) -> Result<Value, Error> {
    let mut out = String::new();
    write_json(value, &mut out, 0)?;
    Ok(Value::from_safe_string(out))
}

fn write_json(value: &Value, out: &mut String, depth: u32) -> Result<(), Error> {
    if depth > 64 {
        return Err(Error::new(ErrorKind::BadSerialization, "a value nested more than 64 deep"));
    }
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&value.to_string()),
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                write_json_str(&key.to_string(), out);
                out.push_str(": ");
                write_json(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                write_json(&item, out, depth + 1)?;
            }
            out.push(']');
        }
        _ => match value.as_str() {
            Some(text) => write_json_str(text, out),
            None => return Err(Error::new(ErrorKind::BadSerialization, format!("no JSON for {}", value.kind()))),
        },
    }
    Ok(())
}

fn write_json_str(text: &str, out: &mut String) {
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
            // Writing to a string cannot fail.
            c if c < ' ' => drop(write!(out, "\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}
