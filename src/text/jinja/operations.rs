//! Operations on two values, as Python has them.

use super::ast::Operator;
use super::budget::Budget;
use super::value::Value;
use super::{Fault, limit};
use std::cmp::Ordering;

/// An operation on two values; `or` and `and` are not among them.
pub(super) fn binary(budget: &mut Budget, operator: Operator, left: &Value, right: &Value) -> Result<Value, Fault> {
    let of_kinds = || limit(format!("{operator:?} of {} and {}", left.kind(), right.kind()));
    Ok(match operator {
        Operator::Or | Operator::And => return Err(of_kinds()),
        Operator::Equal => Value::Bool(budget.equal(left, right)?),
        Operator::NotEqual => Value::Bool(!budget.equal(left, right)?),
        Operator::In => Value::Bool(contains(budget, right, left)?),
        Operator::NotIn => Value::Bool(!contains(budget, right, left)?),
        Operator::Less => Value::Bool(compare(budget, left, right)? == Some(Ordering::Less)),
        Operator::Greater => Value::Bool(compare(budget, left, right)? == Some(Ordering::Greater)),
        Operator::LessEqual => Value::Bool(compare(budget, left, right)?.is_some_and(Ordering::is_le)),
        Operator::GreaterEqual => Value::Bool(compare(budget, left, right)?.is_some_and(Ordering::is_ge)),
        Operator::Join => {
            let (left, right) = (budget.spelled(left)?, budget.spelled(right)?);
            return concat(budget, &left, &right);
        }
        Operator::Add => match (left, right) {
            (Value::Str(left), Value::Str(right)) => return concat(budget, left, right),
            (Value::List(left), Value::List(right)) if left.is_tuple == right.is_tuple => {
                budget.charge(super::budget::ITEM * (left.items.len() + right.items.len()))?;
                return budget.sequence(left.items.iter().chain(&right.items).cloned().collect(), left.is_tuple);
            }
            _ => arithmetic(operator, left, right).ok_or_else(of_kinds)??,
        },
        Operator::Multiply => match (left, right) {
            (Value::Str(text), times) | (times, Value::Str(text)) => {
                let times = times.int().ok_or_else(of_kinds)?;
                let times = usize::try_from(times).unwrap_or(0);
                budget.charge(text.len().saturating_mul(times))?;
                return budget.text(text.repeat(times));
            }
            _ => arithmetic(operator, left, right).ok_or_else(of_kinds)??,
        },
        _ => arithmetic(operator, left, right).ok_or_else(of_kinds)??,
    })
}

/// Two texts as one; it is paid for before it is made.
fn concat(budget: &mut Budget, left: &str, right: &str) -> Result<Value, Fault> {
    budget.charge(left.len() + right.len())?;
    budget.text([left, right].concat())
}

/// An operation on numbers; `None` for other values.
fn arithmetic(operator: Operator, left: &Value, right: &Value) -> Option<Result<Value, Fault>> {
    let overflow = || limit(format!("{operator:?} overflows"));
    let zero = || limit("a division by 0");
    if let (Some(a), Some(b)) = (left.int(), right.int()) {
        let divides = matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Remainder);
        if divides && b == 0 {
            return Some(Err(zero()));
        }
        let exact = match operator {
            Operator::Add => a.checked_add(b),
            Operator::Subtract => a.checked_sub(b),
            Operator::Multiply => a.checked_mul(b),
            // Python rounds down, and the remainder has the divisor's sign.
            Operator::FloorDivide => a.checked_div(b).map(|q| if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q }),
            Operator::Remainder => a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }),
            Operator::Power if b >= 0 => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
            Operator::Divide | Operator::Power => return Some(Ok(Value::Float(real(operator, a as f64, b as f64)?))),
            _ => return None,
        };
        return Some(exact.map(Value::Int).ok_or_else(overflow));
    }
    let (a, b) = (left.number()?, right.number()?);
    if matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Remainder) && b == 0.0 {
        return Some(Err(zero()));
    }
    Some(Ok(Value::Float(real(operator, a, b)?)))
}

fn real(operator: Operator, a: f64, b: f64) -> Option<f64> {
    Some(match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide => a / b,
        Operator::FloorDivide => (a / b).floor(),
        Operator::Remainder => a - b * (a / b).floor(),
        Operator::Power => a.powf(b),
        _ => return None,
    })
}

/// The order of two numbers or two texts.
pub(super) fn compare(budget: &mut Budget, left: &Value, right: &Value) -> Result<Option<Ordering>, Fault> {
    if let (Value::Str(left), Value::Str(right)) = (left, right) {
        budget.charge(left.len().min(right.len()))?;
        return Ok(Some(left.cmp(right)));
    }
    match (left.int().zip(right.int()), left.number().zip(right.number())) {
        (Some((left, right)), _) => Ok(Some(left.cmp(&right))),
        (None, Some((left, right))) => Ok(left.partial_cmp(&right)),
        (None, None) => Err(limit(format!("{} and {} have no order", left.kind(), right.kind()))),
    }
}

/// Whether a value is in another.
pub(super) fn contains(budget: &mut Budget, all: &Value, one: &Value) -> Result<bool, Fault> {
    match (all, one) {
        (Value::Str(text), Value::Str(part)) => {
            budget.charge(text.len() + part.len())?;
            Ok(text.contains(&**part))
        }
        (Value::List(list), one) => {
            for item in &list.items {
                budget.charge(1)?;
                if budget.equal(item, one)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Value::Map(map), Value::Str(key)) => {
            budget.charge(map.entries.len() + key.len())?;
            Ok(map.get(key).is_some())
        }
        (Value::Map(_) | Value::Undefined, _) => Ok(false),
        (all, one) => Err(limit(format!("{} cannot be in {}", one.kind(), all.kind()))),
    }
}

/// The places that a slice of so many items has: Python's start, stop and step.
pub(super) fn places(
    length: usize,
    [start, stop, step]: [Option<i64>; 3],
) -> Result<impl Iterator<Item = usize>, Fault> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(limit("a slice whose step is 0"));
    }
    let (least, most) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let clamp = |bound: Option<i64>, missing: i64| match bound {
        None => missing,
        Some(bound) if bound < 0 => bound.saturating_add(length).max(least),
        Some(bound) => bound.min(most),
    };
    let (start, stop) =
        if step > 0 { (clamp(start, 0), clamp(stop, length)) } else { (clamp(start, length - 1), clamp(stop, -1)) };
    let goes_on = move |at: &i64| if step > 0 { *at < stop } else { *at > stop };
    let places = std::iter::successors(Some(start).filter(goes_on), move |at| at.checked_add(step).filter(goes_on));
    Ok(places.filter_map(|place| usize::try_from(place).ok()))
}
