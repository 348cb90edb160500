//! Python's methods of texts, maps and lists.

use super::budget::Budget;
use super::run::Given;
use super::value::Value;
use super::{Fault, limit};

/// Methods of maps: they come before entries of these names.
pub(super) const OF_MAPS: [&str; 4] = ["get", "keys", "values", "items"];

/// Calls a method.
pub(super) fn call(budget: &mut Budget, of: &Value, name: &str, given: Given<'_>) -> Result<Value, Fault> {
    match of {
        Value::Str(text) => of_text(budget, text, name, given),
        Value::Map(map) => match name {
            "get" => {
                let [key, default] = given.bind(["key", "default"])?;
                let key = key.as_ref().and_then(Value::as_str).unwrap_or_default();
                budget.charge(map.entries.len())?;
                Ok(map.get(key).cloned().or(default).unwrap_or(Value::None))
            }
            "keys" => budget.list(map.entries.iter().map(|(key, _)| Value::Str(key.clone())).collect()),
            "values" => budget.list(map.entries.iter().map(|(_, value)| value.clone()).collect()),
            "items" => {
                let pair = |(key, value): &(_, Value)| {
                    budget.tuple(vec![Value::Str(std::sync::Arc::clone(key)), value.clone()])
                };
                let pairs = map.entries.iter().map(pair).collect::<Result<Vec<_>, _>>()?;
                budget.list(pairs)
            }
            _ => Err(unknown(of, name)),
        },
        Value::List(list) if name == "index" || name == "count" => {
            let [wanted] = given.bind(["value"])?;
            let (wanted, mut count) = (wanted.unwrap_or(Value::Undefined), 0);
            for (index, item) in list.items.iter().enumerate() {
                if budget.equal(item, &wanted)? {
                    count += 1;
                    if name == "index" {
                        return Ok(Value::Int(index as i64));
                    }
                }
            }
            if name == "count" { Ok(Value::Int(count)) } else { Err(limit("the list does not have the value")) }
        }
        Value::Loop(repeated) if name == "cycle" && !given.places.is_empty() => {
            let count = given.places.len();
            Ok(given.places.into_iter().nth(repeated.index % count).unwrap_or(Value::Undefined))
        }
        Value::Undefined => Err(limit(format!("`{name}` of something undefined"))),
        other => Err(unknown(other, name)),
    }
}

fn unknown(of: &Value, name: &str) -> Fault {
    limit(format!("{} has no method `{name}` that kiln knows", of.kind()))
}

fn of_text(budget: &mut Budget, text: &str, name: &str, given: Given<'_>) -> Result<Value, Fault> {
    budget.charge(text.len())?;
    match name {
        "startswith" | "endswith" => {
            let [affix] = given.bind(["affix"])?;
            let affixes = match affix {
                Some(Value::List(list)) => list.items.clone(),
                other => other.into_iter().collect(),
            };
            let fits = |affix: &str| if name == "startswith" { text.starts_with(affix) } else { text.ends_with(affix) };
            budget.charge(affixes.len())?;
            Ok(Value::Bool(affixes.iter().any(|affix| affix.as_str().is_some_and(fits))))
        }
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = given.bind(["chars"])?;
            let chars = chars.as_ref().and_then(Value::as_str);
            budget.charge(text.len().saturating_mul(chars.map_or(0, str::len)))?;
            budget.text(strip(text, name, chars))
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = given.bind(["affix"])?;
            let affix = affix.as_ref().and_then(Value::as_str).unwrap_or_default();
            let rest = if name == "removeprefix" { text.strip_prefix(affix) } else { text.strip_suffix(affix) };
            budget.text(rest.unwrap_or(text))
        }
        "lower" | "upper" | "capitalize" | "title" => {
            let [] = given.bind([])?;
            // A character may become three.
            budget.charge(6 * text.len())?;
            budget.text(cased(text, name))
        }
        "replace" => {
            let [from, to, count] = given.bind(["old", "new", "count"])?;
            let (from, to) = (from.unwrap_or(Value::Undefined), to.unwrap_or(Value::Undefined));
            replaced(budget, text, &from, &to, count.and_then(|count| count.int()))
        }
        "find" | "count" => {
            let [part] = given.bind(["part"])?;
            let part = part.as_ref().and_then(Value::as_str).ok_or_else(|| limit("a text to look for"))?;
            budget.charge(text.len() + part.len())?;
            Ok(Value::Int(match name {
                "count" => text.matches(part).count() as i64,
                _ => text.find(part).map_or(-1, |at| text[..at].chars().count() as i64),
            }))
        }
        "split" | "rsplit" => {
            let [separator, most] = given.bind(["sep", "maxsplit"])?;
            let most = most.and_then(|most| most.int()).and_then(|most| usize::try_from(most).ok());
            let pieces = most.map_or(usize::MAX, |most| most.saturating_add(1));
            let separator = separator.as_ref().and_then(Value::as_str);
            budget.charge(text.len() + super::budget::ITEM * text.len().min(pieces))?;
            let parts: Vec<Value> = match separator {
                Some("") => return Err(limit("an empty separator")),
                Some(separator) if name == "split" => text.splitn(pieces, separator).map(Value::str).collect(),
                Some(separator) => {
                    let mut parts: Vec<Value> = text.rsplitn(pieces, separator).map(Value::str).collect();
                    parts.reverse();
                    parts
                }
                None if pieces == usize::MAX => text.split_whitespace().map(Value::str).collect(),
                None => return Err(limit("a split with a limit needs a separator")),
            };
            budget.list(parts)
        }
        "splitlines" => {
            budget.charge(super::budget::ITEM * text.len())?;
            budget.list(text.lines().map(Value::str).collect())
        }
        "join" => {
            let [parts] = given.bind(["parts"])?;
            match parts {
                Some(Value::List(list)) => joined(budget, &list.items, text),
                other => Err(limit(format!("{} has nothing to join", other.unwrap_or(Value::Undefined).kind()))),
            }
        }
        "isdigit" => Ok(Value::Bool(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()))),
        _ => Err(unknown(&Value::str(""), name)),
    }
}

/// A text without these characters, or whitespace, at its ends.
pub(super) fn strip<'t>(text: &'t str, name: &str, chars: Option<&str>) -> &'t str {
    let goes = |c: char| chars.map_or(c.is_whitespace(), |chars| chars.contains(c));
    match name {
        "lstrip" => text.trim_start_matches(goes),
        "rstrip" => text.trim_end_matches(goes),
        _ => text.trim_matches(goes),
    }
}

/// A text in another case.
pub(super) fn cased(text: &str, name: &str) -> String {
    match name {
        "lower" => text.to_lowercase(),
        "upper" => text.to_uppercase(),
        _ => {
            let (mut out, mut begins) = (String::with_capacity(text.len()), true);
            for c in text.chars() {
                match begins {
                    true => out.extend(c.to_uppercase()),
                    false => out.extend(c.to_lowercase()),
                }
                begins = name == "title" && !c.is_alphabetic();
            }
            out
        }
    }
}

/// A text with one part in another's place; its length is paid for before it is made.
pub(super) fn replaced(
    budget: &mut Budget,
    text: &str,
    from: &Value,
    to: &Value,
    most: Option<i64>,
) -> Result<Value, Fault> {
    let (Some(from), Some(to)) = (from.as_str(), to.as_str()) else {
        return Err(limit(format!("{} in {}'s place", to.kind(), from.kind())));
    };
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    budget.charge(text.len() + from.len())?;
    let count = text.matches(from).take(most).count();
    budget.charge(text.len().saturating_add(count.saturating_mul(to.len())))?;
    budget.text(text.replacen(from, to, most))
}

/// Texts of values with a separator between them.
pub(super) fn joined(budget: &mut Budget, items: &[Value], separator: &str) -> Result<Value, Fault> {
    let mut out = String::new();
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            budget.charge(separator.len())?;
            out.push_str(separator);
        }
        let text = budget.spelled(item)?;
        budget.charge(text.len() + 1)?;
        out.push_str(&text);
    }
    budget.text(out)
}
