//! Values of expressions.

use super::ast::{Arguments, Expr, Operator};
use super::run::{Given, Run};
use super::value::Value;
use super::{Fault, filters, limit, methods, operations};

impl<'a> Run<'a> {
    /// The value of an expression.
    pub(super) fn value(&mut self, expr: &'a Expr) -> Result<Value, Fault> {
        self.budget.enter()?;
        let value = self.of_kind(expr)?;
        self.budget.leave();
        Ok(value)
    }

    fn of_kind(&mut self, expr: &'a Expr) -> Result<Value, Fault> {
        match expr {
            Expr::None => Ok(Value::None),
            Expr::Bool(value) => Ok(Value::Bool(*value)),
            Expr::Int(value) => Ok(Value::Int(*value)),
            Expr::Float(value) => Ok(Value::Float(*value)),
            Expr::Str(text) => Ok(Value::Str(text.clone())),
            Expr::Name(name) => self.lookup(name),
            Expr::List(items) => {
                let items = items.iter().map(|item| self.value(item)).collect::<Result<_, _>>()?;
                self.budget.list(items)
            }
            Expr::Tuple(items) => {
                let items = items.iter().map(|item| self.value(item)).collect::<Result<_, _>>()?;
                self.budget.tuple(items)
            }
            Expr::Map(entries) => self.map(entries),
            Expr::Attribute(of, name) => {
                let of = self.value(of)?;
                self.attribute(&of, name)
            }
            Expr::Item(of, index) => {
                let (of, index) = (self.value(of)?, self.value(index)?);
                self.item(&of, &index)
            }
            Expr::Slice(of, parts) => self.slice(of, parts),
            Expr::Call(called, arguments) => self.call(called, arguments),
            Expr::Filter(of, name, arguments) => {
                let of = self.value(of)?;
                let given = self.given(arguments)?;
                filters::filter(self, name, of, given)
            }
            Expr::Test(of, name, arguments, negated) => {
                let of = self.value(of)?;
                let given = self.given(arguments)?;
                Ok(Value::Bool(filters::test(self, name, &of, given)? != *negated))
            }
            Expr::Not(of) => Ok(Value::Bool(!self.value(of)?.holds())),
            Expr::Negate(of) => {
                let of = self.value(of)?;
                operations::binary(&mut self.budget, Operator::Subtract, &Value::Int(0), &of)
            }
            Expr::Binary(left, operator, right) => self.binary(left, *operator, right),
            Expr::Chain(first, rest) => self.chain(first, rest),
            Expr::Choice(value, condition, other) => match (self.value(condition)?.holds(), other) {
                (true, _) => self.value(value),
                (false, Some(other)) => self.value(other),
                (false, None) => Ok(Value::Undefined),
            },
        }
    }

    fn map(&mut self, entries: &'a [(Expr, Expr)]) -> Result<Value, Fault> {
        let mut made = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let (key, value) = (self.value(key)?, self.value(value)?);
            let key = self.budget.spelled(&key)?;
            made.push((key, value));
        }
        self.budget.map(made)
    }

    fn binary(&mut self, left: &'a Expr, operator: Operator, right: &'a Expr) -> Result<Value, Fault> {
        let left = self.value(left)?;
        match (operator, left.holds()) {
            (Operator::Or, true) | (Operator::And, false) => return Ok(left),
            (Operator::Or | Operator::And, _) => return self.value(right),
            _ => {}
        }
        let right = self.value(right)?;
        operations::binary(&mut self.budget, operator, &left, &right)
    }

    /// Whether all comparisons of a chain hold. Each value is made once, and none behind a comparison that does not hold.
    fn chain(&mut self, first: &'a Expr, rest: &'a [(Operator, Expr)]) -> Result<Value, Fault> {
        let mut left = self.value(first)?;
        for (operator, right) in rest {
            let right = self.value(right)?;
            if !operations::binary(&mut self.budget, *operator, &left, &right)?.holds() {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    /// An attribute, which is an entry where there is no other.
    pub(super) fn attribute(&mut self, of: &Value, name: &str) -> Result<Value, Fault> {
        match of {
            Value::Undefined => Err(limit(format!("`{name}` of something undefined"))),
            Value::Map(map) => {
                self.budget.charge(map.entries.len())?;
                Ok(map.get(name).cloned().unwrap_or(Value::Undefined))
            }
            Value::Namespace(entries) => {
                let entries = entries.borrow();
                self.budget.charge(entries.len())?;
                let found = entries.iter().find(|(known, _)| **known == *name);
                Ok(found.map_or(Value::Undefined, |(_, value)| value.clone()))
            }
            Value::Loop(repeated) => Ok(repeated.get(name)),
            _ => Ok(Value::Undefined),
        }
    }

    fn item(&mut self, of: &Value, index: &Value) -> Result<Value, Fault> {
        let at = |length: usize| {
            let index = index.int()?;
            let index = if index < 0 { index.checked_add(length as i64)? } else { index };
            usize::try_from(index).ok()
        };
        match (of, index) {
            (Value::Undefined, _) => Err(limit("an item of something undefined")),
            (Value::List(list), _) => {
                Ok(at(list.items.len()).and_then(|at| list.items.get(at)).cloned().unwrap_or(Value::Undefined))
            }
            (Value::Str(text), Value::Int(_) | Value::Bool(_)) => {
                self.budget.charge(2 * text.len())?;
                let found = at(text.chars().count()).and_then(|at| text.chars().nth(at));
                found.map_or(Ok(Value::Undefined), |found| self.budget.text(found.to_string()))
            }
            (of, Value::Str(name)) => self.attribute(of, name),
            _ => Ok(Value::Undefined),
        }
    }

    fn slice(&mut self, of: &'a Expr, parts: &'a [Option<Expr>; 3]) -> Result<Value, Fault> {
        let of = self.value(of)?;
        let mut bounds = [None; 3];
        for (bound, part) in bounds.iter_mut().zip(parts) {
            let Some(part) = part else { continue };
            let value = self.value(part)?;
            *bound = match value {
                Value::None => None,
                value => Some(value.int().ok_or_else(|| limit(format!("{} bounds a slice", value.kind())))?),
            };
        }
        match &of {
            Value::Str(text) => {
                self.budget.charge(5 * text.len())?;
                let chars: Vec<char> = text.chars().collect();
                let places = operations::places(chars.len(), bounds)?;
                let text: String = places.filter_map(|place| chars.get(place)).collect();
                self.budget.text(text)
            }
            Value::List(list) => {
                self.budget.charge(list.items.len())?;
                let places = operations::places(list.items.len(), bounds)?;
                let items = places.filter_map(|place| list.items.get(place)).cloned().collect();
                self.budget.sequence(items, list.is_tuple)
            }
            other => Err(limit(format!("a slice of {}", other.kind()))),
        }
    }

    pub(super) fn given(&mut self, arguments: &'a Arguments) -> Result<Given<'a>, Fault> {
        let places = arguments.places.iter().map(|value| self.value(value)).collect::<Result<_, _>>()?;
        let names = arguments.names.iter().map(|(name, value)| Ok((name.as_str(), self.value(value)?)));
        Ok(Given { places, names: names.collect::<Result<_, _>>()? })
    }

    fn call(&mut self, called: &'a Expr, arguments: &'a Arguments) -> Result<Value, Fault> {
        let function = match called {
            Expr::Attribute(of, name) => {
                let of = self.value(of)?;
                // A method comes before an entry of its name, as in Python.
                let entry = match &of {
                    Value::Str(_) | Value::List(_) => Value::Undefined,
                    Value::Map(_) if methods::OF_MAPS.contains(&name.as_str()) => Value::Undefined,
                    Value::Loop(_) if name == "cycle" => Value::Undefined,
                    other => self.attribute(other, name)?,
                };
                if matches!(entry, Value::Undefined) {
                    let given = self.given(arguments)?;
                    return methods::call(&mut self.budget, &of, name, given);
                }
                entry
            }
            other => self.value(other)?,
        };
        let given = self.given(arguments)?;
        match function {
            Value::Macro(index) => self.call_macro(index, given, None),
            Value::Function(function) => self.call_function(function, given),
            other => Err(limit(match called {
                Expr::Name(name) => format!("`{name}` is {}, and cannot be called", other.kind()),
                _ => format!("{} cannot be called", other.kind()),
            })),
        }
    }

    /// The values that a loop or a filter goes through.
    pub(super) fn items(&mut self, over: &Value) -> Result<Vec<Value>, Fault> {
        match over {
            Value::Undefined => Ok(Vec::new()),
            Value::List(list) => {
                self.budget.charge(super::budget::ITEM * list.items.len())?;
                Ok(list.items.clone())
            }
            Value::Map(map) => {
                self.budget.charge(super::budget::ITEM * map.entries.len())?;
                Ok(map.entries.iter().map(|(key, _)| Value::Str(key.clone())).collect())
            }
            Value::Str(text) => {
                self.budget.charge(super::budget::ITEM * text.len())?;
                Ok(text.chars().map(|c| Value::str(c.to_string())).collect())
            }
            other => Err(limit(format!("{} has no items", other.kind()))),
        }
    }
}
