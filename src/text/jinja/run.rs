//! Statements.

use super::ast::{For, Kind, Macro, Node, Target};
use super::budget::Budget;
use super::value::{Function, Loop, Value};
use super::{Fault, limit};
use std::cell::RefCell;
use std::rc::Rc;

/// What comes after a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    On,
    Break,
    Continue,
}

/// A template that runs.
pub(super) struct Run<'a> {
    macros: &'a [Macro],
    pub(super) budget: Budget,
    /// Names, of the template first, then of each loop and call that it is in.
    scopes: Vec<Vec<(&'a str, Value)>>,
    /// The first scope of the macro that is called, besides the template's.
    base: usize,
    out: String,
}

/// Values that a function is called with.
#[derive(Debug, Default)]
pub(super) struct Given<'a> {
    pub(super) places: Vec<Value>,
    pub(super) names: Vec<(&'a str, Value)>,
}

impl Given<'_> {
    /// The values of these parameters, those that are given.
    pub(super) fn bind<const N: usize>(self, names: [&str; N]) -> Result<[Option<Value>; N], Fault> {
        if self.places.len() > N {
            return Err(limit(format!("{} arguments where {N} are taken", self.places.len())));
        }
        let mut values = [const { None }; N];
        for (place, value) in values.iter_mut().zip(self.places) {
            *place = Some(value);
        }
        for (name, value) in self.names {
            let place = names.iter().position(|known| *known == name);
            match place.and_then(|place| values.get_mut(place)) {
                Some(place) => *place = Some(value),
                None => return Err(limit(format!("no argument is named `{name}`"))),
            }
        }
        Ok(values)
    }
}

impl<'a> Run<'a> {
    pub(super) fn new(macros: &'a [Macro], globals: Vec<(&'a str, Value)>, budget: Budget) -> Run<'a> {
        Run { macros, budget, scopes: vec![globals], base: 0, out: String::new() }
    }

    /// What the whole template writes.
    pub(super) fn into_text(mut self, nodes: &'a [Node]) -> Result<String, Fault> {
        self.body(nodes)?;
        Ok(self.out)
    }

    // ---- names

    pub(super) fn lookup(&mut self, name: &str) -> Result<Value, Fault> {
        let own = self.scopes.get(self.base..).unwrap_or_default().iter().rev();
        let template = self.scopes.iter().take(usize::from(self.base > 0));
        for scope in own.chain(template) {
            self.budget.charge(scope.len())?;
            if let Some((_, value)) = scope.iter().find(|(known, _)| *known == name) {
                return Ok(value.clone());
            }
        }
        Ok(match name {
            "range" => Value::Function(Function::Range),
            "namespace" => Value::Function(Function::Namespace),
            "dict" => Value::Function(Function::Dict),
            "raise_exception" => Value::Function(Function::RaiseException),
            _ => Value::Undefined,
        })
    }

    fn assign(&mut self, name: &'a str, value: Value) -> Result<(), Fault> {
        let Some(scope) = self.scopes.last_mut() else { return Ok(()) };
        self.budget.charge(scope.len() + 1)?;
        match scope.iter_mut().find(|(known, _)| *known == name) {
            Some(known) => known.1 = value,
            None => scope.push((name, value)),
        }
        Ok(())
    }

    fn assign_to(&mut self, target: &'a Target, value: Value) -> Result<(), Fault> {
        let Some(attribute) = &target.attribute else { return self.assign(&target.name, value) };
        match self.lookup(&target.name)? {
            Value::Namespace(_) if matches!(value, Value::Namespace(_)) => {
                Err(limit("a namespace cannot be within another value"))
            }
            Value::Namespace(entries) => {
                let mut entries = entries.borrow_mut();
                self.budget.charge(entries.len() + 1)?;
                match entries.iter_mut().find(|(known, _)| **known == **attribute) {
                    Some(known) => known.1 = value,
                    None => entries.push((attribute.as_str().into(), value)),
                }
                Ok(())
            }
            other => {
                Err(limit(format!("`{}` is {}, and only a namespace's attributes are set", target.name, other.kind())))
            }
        }
    }

    /// Names for a value: one for all of it, several for its items.
    fn unpack(&mut self, names: &'a [String], value: Value) -> Result<(), Fault> {
        match (names, value) {
            ([name], value) => self.assign(name, value),
            (names, Value::List(list)) if list.items.len() == names.len() => {
                names.iter().zip(&list.items).try_for_each(|(name, item)| self.assign(name, item.clone()))
            }
            (names, other) => Err(limit(format!("{} does not give {} names a value each", other.kind(), names.len()))),
        }
    }

    // ---- statements

    fn body(&mut self, nodes: &'a [Node]) -> Result<Flow, Fault> {
        self.budget.enter()?;
        for node in nodes {
            let flow = self.statement(&node.kind).map_err(|fault| fault.at(node.line))?;
            if flow != Flow::On {
                self.budget.leave();
                return Ok(flow);
            }
        }
        self.budget.leave();
        Ok(Flow::On)
    }

    fn statement(&mut self, kind: &'a Kind) -> Result<Flow, Fault> {
        self.budget.charge(1)?;
        match kind {
            Kind::Text(text) => self.emit(text)?,
            Kind::Print(value) => {
                let value = self.value(value)?;
                let text = self.budget.spelled(&value)?;
                self.emit(&text)?;
            }
            Kind::If(branches, otherwise) => {
                for (condition, body) in branches {
                    if self.value(condition)?.holds() {
                        return self.body(body);
                    }
                }
                return self.body(otherwise);
            }
            Kind::For(repeated) => self.repeat(repeated)?,
            Kind::Set(targets, value) => {
                let value = self.value(value)?;
                match (targets.as_slice(), value) {
                    ([target], value) => self.assign_to(target, value)?,
                    (targets, Value::List(list)) if list.items.len() == targets.len() => {
                        for (target, item) in targets.iter().zip(&list.items) {
                            self.assign_to(target, item.clone())?;
                        }
                    }
                    (_, other) => {
                        return Err(limit(format!("{} does not give several names a value each", other.kind())));
                    }
                }
            }
            Kind::Capture(name, body) => {
                let text = self.captured(|run| run.body(body).map(drop))?;
                let value = self.budget.text(text)?;
                self.assign(name, value)?;
            }
            Kind::Macro(index) => {
                let name = self.macros.get(*index).map_or("", |defined| &defined.name);
                self.assign(name, Value::Macro(*index))?;
            }
            Kind::Break => return Ok(Flow::Break),
            Kind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    fn emit(&mut self, text: &str) -> Result<(), Fault> {
        self.budget.charge(text.len())?;
        self.out.push_str(text);
        Ok(())
    }

    /// What a part writes, apart from the rest.
    fn captured(&mut self, part: impl FnOnce(&mut Self) -> Result<(), Fault>) -> Result<String, Fault> {
        let outer = std::mem::take(&mut self.out);
        let done = part(self);
        let text = std::mem::replace(&mut self.out, outer);
        done.map(|()| text)
    }

    fn repeat(&mut self, repeated: &'a For) -> Result<(), Fault> {
        let over = self.value(&repeated.over)?;
        let mut items = self.items(&over)?;
        if let Some(filter) = &repeated.filter {
            let mut kept = Vec::new();
            for item in items {
                self.scopes.push(Vec::new());
                self.unpack(&repeated.names, item.clone())?;
                if self.value(filter)?.holds() {
                    kept.push(item);
                }
                self.scopes.pop();
            }
            items = kept;
        }
        let Value::List(items) = self.budget.list(items)? else { return Ok(()) };
        for (index, item) in items.items.iter().enumerate() {
            self.scopes.push(Vec::new());
            self.unpack(&repeated.names, item.clone())?;
            self.assign("loop", Value::Loop(Rc::new(Loop { index, items: items.clone() })))?;
            let flow = self.body(&repeated.body)?;
            self.scopes.pop();
            if flow == Flow::Break {
                break;
            }
        }
        if items.items.is_empty() {
            self.body(&repeated.otherwise)?;
        }
        Ok(())
    }

    /// Calls a macro, and gives what it writes.
    pub(super) fn call_macro(&mut self, index: usize, given: Given<'a>) -> Result<Value, Fault> {
        let Some(called) = self.macros.get(index) else { return Ok(Value::Undefined) };
        let Given { places, names } = given;
        if places.len() > called.parameters.len() {
            return Err(limit(format!("`{}` takes {} arguments", called.name, called.parameters.len())));
        }
        if let Some((name, _)) = names.iter().find(|(name, _)| called.parameters.iter().all(|(known, _)| known != name))
        {
            return Err(limit(format!("`{}` has no argument `{name}`", called.name)));
        }
        self.budget.enter()?;
        let base = std::mem::replace(&mut self.base, self.scopes.len());
        self.scopes.push(Vec::new());
        let mut places = places.into_iter();
        for (name, default) in &called.parameters {
            let named = names.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
            let value = match (places.next().or(named), default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.value(default)?,
                (None, None) => Value::Undefined,
            };
            self.assign(name, value)?;
        }
        let text = self.captured(|run| run.body(&called.body).map(drop))?;
        self.scopes.pop();
        self.base = base;
        self.budget.leave();
        self.budget.text(text)
    }

    /// Calls a function of the environment.
    pub(super) fn call_function(&mut self, function: Function, given: Given<'a>) -> Result<Value, Fault> {
        let entries = |given: Given<'a>| given.names.into_iter().map(|(name, value)| (name.into(), value)).collect();
        match function {
            Function::Range => {
                let [a, b, step] = given.bind(["start", "stop", "step"])?;
                let int = |value: Option<Value>| match value {
                    None => Ok(None),
                    Some(value) => value.int().map(Some).ok_or_else(|| limit(format!("{} in a range", value.kind()))),
                };
                let (start, stop) = match (int(a)?, int(b)?) {
                    (Some(stop), None) => (0, stop),
                    (Some(start), Some(stop)) => (start, stop),
                    _ => return Err(limit("a range without an end")),
                };
                let step = int(step)?.unwrap_or(1);
                let count = match step {
                    0 => return Err(limit("a range whose step is 0")),
                    1.. => i128::from(stop) - i128::from(start),
                    _ => i128::from(start) - i128::from(stop),
                };
                let count = (count.max(0) as u128).div_ceil(u128::from(step.unsigned_abs()));
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                self.budget.charge(count.saturating_mul(super::budget::ITEM))?;
                let items = (0..count).map(|index| Value::Int(start.wrapping_add(step.wrapping_mul(index as i64))));
                let items = items.collect();
                self.budget.list(items)
            }
            Function::Namespace => {
                let entries: Vec<_> = entries(given);
                if entries.iter().any(|(_, value)| matches!(value, Value::Namespace(_))) {
                    return Err(limit("a namespace cannot be within another value"));
                }
                Ok(Value::Namespace(Rc::new(RefCell::new(entries))))
            }
            Function::Dict => self.budget.map(entries(given)),
            Function::RaiseException => {
                let [message] = given.bind(["message"])?;
                let message = self.budget.spelled(&message.unwrap_or(Value::Undefined))?;
                Err(limit(message.to_string()))
            }
        }
    }
}
