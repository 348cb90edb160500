//! Filters and tests.

use super::ast::Operator;
use super::run::{Given, Run};
use super::value::Value;
use super::{Fault, json, limit, methods, operations};

/// Runs a filter.
pub(super) fn filter(run: &mut Run<'_>, name: &str, of: Value, given: Given<'_>) -> Result<Value, Fault> {
    match name {
        "default" | "d" => {
            let [default, falsy] = given.bind(["default_value", "boolean"])?;
            let missing = matches!(of, Value::Undefined) || (falsy.is_some_and(|falsy| falsy.holds()) && !of.holds());
            Ok(if missing { default.unwrap_or(Value::str("")) } else { of })
        }
        "tojson" => {
            let [indent] = given.bind(["indent"])?;
            let indent = indent.and_then(|indent| indent.int()).and_then(|indent| usize::try_from(indent).ok());
            let text = json::write(&of, indent, &mut run.budget)?;
            run.budget.text(text)
        }
        "length" | "count" => {
            let [] = given.bind([])?;
            let length = match &of {
                Value::Str(text) => {
                    run.budget.charge(text.len())?;
                    text.chars().count()
                }
                Value::List(list) => list.items.len(),
                Value::Map(map) => map.entries.len(),
                Value::Undefined => 0,
                other => return Err(limit(format!("{} has no length", other.kind()))),
            };
            Ok(Value::Int(length as i64))
        }
        "trim" => {
            let [chars] = given.bind(["chars"])?;
            let text = run.budget.spelled(&of)?;
            let chars = chars.as_ref().and_then(Value::as_str);
            run.budget.charge(text.len().saturating_mul(chars.map_or(1, str::len)))?;
            run.budget.text(methods::strip(&text, "strip", chars))
        }
        "upper" | "lower" | "capitalize" | "title" => {
            let [] = given.bind([])?;
            let text = run.budget.spelled(&of)?;
            run.budget.charge(6 * text.len())?;
            run.budget.text(methods::cased(&text, name))
        }
        "replace" => {
            let [from, to, count] = given.bind(["old", "new", "count"])?;
            let (from, to) = (from.unwrap_or(Value::Undefined), to.unwrap_or(Value::Undefined));
            let text = run.budget.spelled(&of)?;
            methods::replaced(&mut run.budget, &text, &from, &to, count.and_then(|count| count.int()))
        }
        "indent" => indent(run, of, given),
        "string" => Ok(Value::Str(run.budget.spelled(&of)?)),
        // Nothing is escaped.
        "safe" => Ok(of),
        "int" | "float" | "abs" => number(name, &of, given),
        _ => of_items(run, name, of, given),
    }
}

/// Lines behind the first moved to the right.
fn indent(run: &mut Run<'_>, of: Value, given: Given<'_>) -> Result<Value, Fault> {
    let [width, first] = given.bind(["width", "first"])?;
    let text = run.budget.spelled(&of)?;
    let width = width.and_then(|width| width.int()).and_then(|width| usize::try_from(width).ok()).unwrap_or(4);
    let lines = text.split('\n').count();
    run.budget.charge(text.len().saturating_add(width.saturating_mul(lines + 1)))?;
    let blanks = " ".repeat(width);
    let mut out = String::new();
    for (index, line) in text.split('\n').enumerate() {
        out.push_str(if index == 0 { "" } else { "\n" });
        let moved = if index == 0 { first.as_ref().is_some_and(Value::holds) } else { !line.is_empty() };
        out.push_str(if moved { &blanks } else { "" });
        out.push_str(line);
    }
    run.budget.text(out)
}

fn number(name: &str, of: &Value, given: Given<'_>) -> Result<Value, Fault> {
    let [default] = given.bind(["default"])?;
    let read = of.as_str().and_then(|text| text.trim().parse::<f64>().ok()).or(of.number());
    let exact = of.int().or_else(|| of.as_str().and_then(|text| text.trim().parse().ok()));
    Ok(match (name, exact, read) {
        ("float", _, read) => read.map_or(default.unwrap_or(Value::Float(0.0)), Value::Float),
        ("abs", Some(value), _) => Value::Int(value.checked_abs().ok_or_else(|| limit("abs overflows"))?),
        ("abs", None, Some(value)) => Value::Float(value.abs()),
        ("abs", None, None) => return Err(limit(format!("{} has no absolute value", of.kind()))),
        (_, Some(value), _) => Value::Int(value),
        (_, None, Some(value)) => Value::Int(value as i64),
        (_, None, None) => default.unwrap_or(Value::Int(0)),
    })
}

/// Filters that go through items.
fn of_items(run: &mut Run<'_>, name: &str, of: Value, given: Given<'_>) -> Result<Value, Fault> {
    match name {
        "list" => {
            let items = run.items(&of)?;
            run.budget.list(items)
        }
        "items" => methods::call(&mut run.budget, &of, "items", given),
        "first" => Ok(run.items(&of)?.into_iter().next().unwrap_or(Value::Undefined)),
        "last" => Ok(run.items(&of)?.pop().unwrap_or(Value::Undefined)),
        "reverse" => {
            let mut items = run.items(&of)?;
            items.reverse();
            match of {
                Value::Str(_) => methods::joined(&mut run.budget, &items, ""),
                _ => run.budget.list(items),
            }
        }
        "join" => {
            let [separator, attribute] = given.bind(["d", "attribute"])?;
            let separator = run.budget.spelled(&separator.unwrap_or(Value::Undefined))?;
            let mut items = run.items(&of)?;
            if let Some(attribute) = attribute.as_ref().and_then(Value::as_str) {
                for item in &mut items {
                    *item = run.attribute(item, attribute)?;
                }
            }
            methods::joined(&mut run.budget, &items, &separator)
        }
        "unique" => {
            let mut kept: Vec<Value> = Vec::new();
            for item in run.items(&of)? {
                let mut known = false;
                for other in &kept {
                    known = known || run.budget.equal(other, &item)?;
                }
                if !known {
                    kept.push(item);
                }
            }
            run.budget.list(kept)
        }
        "map" => {
            let mut items = run.items(&of)?;
            let attribute = given.names.iter().find(|(name, _)| *name == "attribute").map(|(_, value)| value.clone());
            let mut places = given.places.into_iter();
            let by = attribute.is_none().then(|| places.next()).flatten();
            for item in &mut items {
                let given = Given { places: places.clone().collect(), names: Vec::new() };
                *item = match (attribute.as_ref().and_then(Value::as_str), by.as_ref().and_then(Value::as_str)) {
                    (Some(attribute), _) => run.attribute(item, attribute)?,
                    // A filter that maps could map again, without an end.
                    (None, Some("map" | "select" | "reject" | "selectattr" | "rejectattr")) | (None, None) => {
                        return Err(limit("map needs an attribute, or a filter of single values"));
                    }
                    (None, Some(by)) => filter(run, by, item.clone(), given)?,
                };
            }
            run.budget.list(items)
        }
        "select" | "reject" | "selectattr" | "rejectattr" => {
            let mut places = given.places.into_iter();
            let attribute = if name.ends_with("attr") { places.next() } else { None };
            let by = places.next();
            let mut kept = Vec::new();
            for item in run.items(&of)? {
                let looked = match attribute.as_ref().and_then(Value::as_str) {
                    Some(attribute) => run.attribute(&item, attribute)?,
                    None => item.clone(),
                };
                let given = Given { places: places.clone().collect(), names: Vec::new() };
                let holds = match by.as_ref().and_then(Value::as_str) {
                    Some(by) => test(run, by, &looked, given)?,
                    None => looked.holds(),
                };
                if holds == name.starts_with("select") {
                    kept.push(item);
                }
            }
            run.budget.list(kept)
        }
        _ => Err(limit(format!("`{name}` is no filter that kiln knows"))),
    }
}

/// Whether a test holds.
pub(super) fn test(run: &mut Run<'_>, name: &str, of: &Value, given: Given<'_>) -> Result<bool, Fault> {
    run.budget.charge(1)?;
    let alone = match name {
        "defined" => !matches!(of, Value::Undefined),
        "undefined" => matches!(of, Value::Undefined),
        "none" => matches!(of, Value::None),
        "string" => matches!(of, Value::Str(_)),
        "boolean" => matches!(of, Value::Bool(_)),
        "true" => matches!(of, Value::Bool(true)),
        "false" => matches!(of, Value::Bool(false)),
        "integer" => matches!(of, Value::Int(_)),
        "float" => matches!(of, Value::Float(_)),
        "number" => matches!(of, Value::Bool(_) | Value::Int(_) | Value::Float(_)),
        "mapping" => matches!(of, Value::Map(_)),
        "sequence" | "iterable" => matches!(of, Value::Undefined | Value::Str(_) | Value::List(_) | Value::Map(_)),
        "callable" => matches!(of, Value::Macro(_) | Value::Function(_)),
        "odd" => of.int().is_some_and(|value| value % 2 != 0),
        "even" => of.int().is_some_and(|value| value % 2 == 0),
        _ => return compared(run, name, of, given),
    };
    let [] = given.bind([])?;
    Ok(alone)
}

/// Tests with another value.
fn compared(run: &mut Run<'_>, name: &str, of: &Value, given: Given<'_>) -> Result<bool, Fault> {
    let operator = match name {
        "eq" | "equalto" | "==" | "sameas" => Operator::Equal,
        "ne" | "!=" => Operator::NotEqual,
        "lt" | "<" | "lessthan" => Operator::Less,
        "le" | "<=" => Operator::LessEqual,
        "gt" | ">" | "greaterthan" => Operator::Greater,
        "ge" | ">=" => Operator::GreaterEqual,
        "in" => Operator::In,
        "divisibleby" => Operator::Remainder,
        _ => return Err(limit(format!("`{name}` is no test that kiln knows"))),
    };
    let [other] = given.bind(["other"])?;
    let value = operations::binary(&mut run.budget, operator, of, &other.unwrap_or(Value::Undefined))?;
    Ok(value.holds() != (operator == Operator::Remainder))
}
