//! Calls: of macros, of the bodies that they are called with, and of the environment's functions.

use super::ast::{Arguments, Expr, Macro};
use super::run::{Given, Run};
use super::value::{Function, Value};
use super::{Fault, limit};
use std::cell::RefCell;
use std::rc::Rc;

/// A body that a macro is called with, and the names that it sees: those where it stands.
pub(super) struct Caller<'a> {
    body: &'a Macro,
    base: usize,
    scopes: usize,
    caller: Option<Rc<Caller<'a>>>,
}

impl<'a> Run<'a> {
    /// Calls a macro with a body for its `caller()`.
    pub(super) fn call_with_body(
        &mut self,
        body: usize,
        called: &'a Expr,
        arguments: &'a Arguments,
    ) -> Result<(), Fault> {
        let function = self.value(called)?;
        let given = self.given(arguments)?;
        let (Value::Macro(index), Some(body)) = (function, self.macros.get(body)) else {
            return Err(limit("`call` takes a macro of the template"));
        };
        if let Some(called) = self.macros.get(index).filter(|called| !called.runs_caller) {
            return Err(limit(format!("`{}` does not take a body: it has no `caller()`", called.name)));
        }
        let caller = Caller { body, base: self.base, scopes: self.scopes.len(), caller: self.caller.clone() };
        let written = self.call_macro(index, given, Some(Rc::new(caller)))?;
        let text = self.budget.spelled(&written)?;
        self.emit(&text)
    }

    /// Runs the body that the macro was called with, and gives what it writes.
    fn call_caller(&mut self, given: Given<'a>) -> Result<Value, Fault> {
        let Some(caller) = self.caller.clone() else { return Err(limit("`caller` outside a macro that has a body")) };
        // The macro's own names are not the body's.
        self.budget.charge(self.scopes.len())?;
        let hidden = self.scopes.split_off(caller.scopes.min(self.scopes.len()));
        let base = std::mem::replace(&mut self.base, caller.base);
        let inner = std::mem::replace(&mut self.caller, caller.caller.clone());
        let written = self.run_macro(caller.body, given)?;
        (self.base, self.caller) = (base, inner);
        self.scopes.extend(hidden);
        Ok(written)
    }

    /// Calls a macro, and gives what it writes.
    pub(super) fn call_macro(
        &mut self,
        index: usize,
        given: Given<'a>,
        caller: Option<Rc<Caller<'a>>>,
    ) -> Result<Value, Fault> {
        let Some(called) = self.macros.get(index) else { return Ok(Value::Undefined) };
        let base = std::mem::replace(&mut self.base, self.scopes.len());
        let outer = std::mem::replace(&mut self.caller, caller);
        let written = self.run_macro(called, given)?;
        (self.base, self.caller) = (base, outer);
        Ok(written)
    }

    /// Runs a macro's body in a scope of its own.
    fn run_macro(&mut self, called: &'a Macro, given: Given<'a>) -> Result<Value, Fault> {
        let Given { places, names } = given;
        if places.len() > called.parameters.len() {
            return Err(limit(format!("`{}` takes {} arguments", called.name, called.parameters.len())));
        }
        if let Some((name, _)) = names.iter().find(|(name, _)| called.parameters.iter().all(|(known, _)| known != name))
        {
            return Err(limit(format!("`{}` has no argument `{name}`", called.name)));
        }
        self.budget.enter()?;
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
            Function::Caller => self.call_caller(given),
            Function::Dict => self.budget.map(entries(given)),
            Function::RaiseException => {
                let [message] = given.bind(["message"])?;
                let message = self.budget.spelled(&message.unwrap_or(Value::Undefined))?;
                Err(limit(message.to_string()))
            }
        }
    }
}
