//! Control flow: branches, calls (expanded in place), returns.

use super::super::ast::Arg;
use super::{Decoder, Entity, Names, Res, Text};
use crate::exec::inst::*;
use crate::machine::fault::FaultKind;
use crate::machine::origin::Origin;
use crate::machine::types::Space;

/// Most nested calls; more count as recursion.
const MAX_DEPTH: usize = 32;
/// Most instructions of a kernel with all calls expanded.
const MAX_CODE: usize = 1 << 20;

impl Decoder<'_> {
    pub(super) fn flow(&mut self, t: &mut Text<'_>) -> Res<bool> {
        let name = t.name;
        if matches!(name, "bra" | "ret" | "call") {
            t.take("uni");
        }
        match (name, t.args) {
            ("bra", [Arg::Word(target)]) => {
                let label = self.label(target)?;
                self.push(Op::Bra(label));
            }
            ("ret", []) => match self.returns.last() {
                Some(end) => self.push(Op::Bra(*end)),
                None => self.push(Op::Exit),
            },
            ("exit", []) => self.push(Op::Exit),
            ("trap", []) => self.effect(|cpu, site| {
                let lane = Some(site.m.trailing_zeros() as usize);
                Err(cpu.fault(FaultKind::IllegalInstruction, &site.at, lane, "the kernel executed a trap"))
            }),
            ("call", [Arg::Vector(returns), Arg::Word(name), Arg::Vector(params)]) => {
                self.call(name, returns, params)?
            }
            ("call", [Arg::Vector(returns), Arg::Word(name)]) => self.call(name, returns, &[])?,
            ("call", [Arg::Word(name), Arg::Vector(params)]) => self.call(name, &[], params)?,
            ("call", [Arg::Word(name)]) => self.call(name, &[], &[])?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(super) fn label(&self, name: &str) -> Res<u32> {
        match self.lookup(name) {
            Some(Entity::Label(label)) => Ok(label),
            _ => self.fail(name, "label that is not declared"),
        }
    }

    /// Expands a call: decodes the function's body in place, its parameters bound to the caller's variables.
    fn call(&mut self, name: &str, returns: &[Arg], params: &[Arg]) -> Res<()> {
        let Some(f) = self.functions.iter().find(|f| f.info.name == name && !f.entry) else {
            return self.fail(name, "function without a body in this module");
        };
        if returns.len() != f.returns.len() || params.len() != f.params.len() {
            return self.fail(name, "number of arguments differs from the function's parameters");
        }
        if self.returns.len() >= MAX_DEPTH || self.code.insts.len() > MAX_CODE {
            return self.fail(name, "calls nested too deeply (recursion is not supported), or too large when expanded");
        }
        let mut scope = Names::new();
        for (formal, actual) in f.returns.iter().chain(&f.params).zip(returns.iter().chain(params)) {
            let variable = if let Arg::Word(name) = actual { self.lookup(name) } else { None };
            let Some(entity @ Entity::Var { space: Space::Local, .. }) = variable else {
                return self.fail(format!("{actual:?}"), "arguments are .param variables");
            };
            scope.insert(formal.name.clone(), entity);
        }
        let end = self.new_label();
        if self.guard.0 != NO_PRED {
            // A guarded call is a branch around it.
            self.guard.1 = !self.guard.1;
            self.push(Op::Bra(end));
        }
        let origin = Origin { first: false, ..self.origin.clone() };
        let outer = std::mem::replace(&mut self.scopes, vec![scope]);
        self.returns.push(end);
        self.block(&f.body)?;
        self.returns.pop();
        self.scopes = outer;
        self.start(origin);
        self.place_label(end);
        // Something must stand at the label.
        self.push(Op::Nop);
        Ok(())
    }
}
