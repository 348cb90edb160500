//! The part of Jinja that chat templates use, as Hugging Face's `apply_chat_template` sets it up, with Python's methods.
//!
//! A template comes from a file that nobody vouches for. `lex` and `parse` make a tree of bounded depth; whatever walks
//! over it pays for each step, and for each byte that it looks at or makes, out of a `budget`. So its time, memory and
//! output are bounded, and nothing in it panics. `run` goes through statements, `call` through macros, `expression` and
//! `operations` through values, `filters` and `methods` have what templates call.

mod ast;
mod budget;
mod call;
mod expression;
mod filters;
mod json;
mod lex;
mod methods;
mod operations;
mod parse;
mod run;
mod value;

use ast::{Macro, Node};
use budget::Budget;
use run::Run;
use std::sync::Arc;
use value::Value;

/// A template, read and checked.
#[derive(Debug)]
pub(super) struct Template {
    nodes: Vec<Node>,
    macros: Vec<Macro>,
}

/// What is wrong with a template, and the line if it is known.
#[derive(Debug)]
pub(super) struct Fault {
    line: Option<u32>,
    what: String,
}

impl Fault {
    fn at(self, line: u32) -> Fault {
        Fault { line: self.line.or(Some(line)), ..self }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

fn fault(line: u32, what: impl Into<String>) -> Fault {
    Fault { line: Some(line), what: what.into() }
}

/// A fault where the line is not known yet.
fn limit(what: impl Into<String>) -> Fault {
    Fault { line: None, what: what.into() }
}

/// A variable for a template.
#[derive(Debug, Clone, Copy)]
pub(super) enum Variable<'a> {
    Bool(bool),
    Text(&'a str),
    /// JSON, which is read for each rendering.
    Json(&'a str),
    /// Maps, such as messages.
    Maps(&'a [Vec<(&'static str, Variable<'a>)>]),
}

impl Template {
    pub(super) fn new(source: &str) -> Result<Template, Fault> {
        let (nodes, macros) = parse::Parser::new(lex::tokens(source)?).template()?;
        Ok(Template { nodes, macros })
    }

    /// What it writes with these variables, for at most so much work: a step or a byte each.
    pub(super) fn render(&self, variables: &[(&'static str, Variable<'_>)], work: u64) -> Result<String, Fault> {
        let mut budget = Budget::new(work);
        let globals = variables.iter().map(|(name, variable)| Ok((*name, made(variable, &mut budget)?)));
        let globals = globals.collect::<Result<_, Fault>>()?;
        Run::new(&self.macros, globals, budget).into_text(&self.nodes)
    }
}

/// A variable's value.
fn made(variable: &Variable<'_>, budget: &mut Budget) -> Result<Value, Fault> {
    match variable {
        Variable::Bool(value) => Ok(Value::Bool(*value)),
        Variable::Text(text) => budget.text(*text),
        Variable::Json(text) => json::parse(text, budget),
        Variable::Maps(maps) => {
            let map = |entries: &Vec<(&'static str, Variable<'_>)>| {
                let entry =
                    |(key, variable): &(&'static str, Variable<'_>)| Ok((Arc::from(*key), made(variable, budget)?));
                let entries = entries.iter().map(entry).collect::<Result<Vec<_>, Fault>>()?;
                budget.map(entries)
            };
            let items = maps.iter().map(map).collect::<Result<Vec<_>, Fault>>()?;
            budget.list(items)
        }
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
