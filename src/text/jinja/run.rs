//! Statements.

use super::ast::{For, Kind, Macro, Node, Target};
use super::budget::Budget;
use super::call::Caller;
use super::value::{Function, Loop, Value};
use super::{Fault, limit};
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
    pub(super) macros: &'a [Macro],
    pub(super) budget: Budget,
    /// Names, of the template first, then of each loop and call that it is in.
    pub(super) scopes: Vec<Vec<(&'a str, Value)>>,
    /// The first scope of the macro that is called, besides the template's.
    pub(super) base: usize,
    /// The body that this macro was called with.
    pub(super) caller: Option<Rc<Caller<'a>>>,
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
        Run { macros, budget, scopes: vec![globals], base: 0, caller: None, out: String::new() }
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
            "caller" if self.caller.is_some() => Value::Function(Function::Caller),
            _ => Value::Undefined,
        })
    }

    pub(super) fn assign(&mut self, name: &'a str, value: Value) -> Result<(), Fault> {
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

    pub(super) fn body(&mut self, nodes: &'a [Node]) -> Result<Flow, Fault> {
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
            Kind::Call(body, called, arguments) => self.call_with_body(*body, called, arguments)?,
            Kind::Break => return Ok(Flow::Break),
            Kind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    pub(super) fn emit(&mut self, text: &str) -> Result<(), Fault> {
        self.budget.charge(text.len())?;
        self.out.push_str(text);
        Ok(())
    }

    /// What a part writes, apart from the rest.
    pub(super) fn captured(&mut self, part: impl FnOnce(&mut Self) -> Result<(), Fault>) -> Result<String, Fault> {
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
}
