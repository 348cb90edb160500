//! Control flow: branches, calls (expanded in place), returns.

use super::super::ast::{Arg, Function};
use super::super::types::{Space, Ty};
use super::{Decoder, Entity, Res, Text};
use crate::exec::fault::FaultKind;
use crate::exec::inst::*;
use std::rc::Rc;

/// Calls inside calls: more is taken for recursion.
const MAX_DEPTH: u32 = 32;
/// Instructions of a kernel with all its calls expanded.
const MAX_CODE: usize = 1 << 20;

impl Decoder<'_> {
    pub(super) fn flow(&mut self, t: &mut Text<'_>) -> Res<bool> {
        match t.name {
            "bra" => {
                t.skip("uni");
                t.arity(1)?;
                let Arg::Word(target) = &t.args[0] else { return t.fail("bra", "expected a label") };
                let label = self.label(target)?;
                self.branch(label);
            }
            "brx" => {
                t.require("idx")?;
                t.skip("uni");
                t.arity(2)?;
                let targets = match &t.args[1] {
                    Arg::Word(table) => self.lookup(table),
                    _ => None,
                };
                let Some(Entity::Targets(list)) = targets else {
                    return t.fail(format!("{:?}", t.args[1]), "not a .branchtargets label");
                };
                let list = list.iter().map(|t| self.label(t).map(|l| l as u32)).collect::<Res<Box<[u32]>>>()?;
                let index = self.src(&t.args[0], Ty::U32)?;
                self.patches.push(self.code.insts.len());
                self.push(Op::BrxIdx(index, list));
            }
            "ret" => {
                t.skip("uni");
                t.arity(0)?;
                match self.return_label {
                    Some(label) => self.branch(label),
                    None => self.push(Op::Exit),
                }
            }
            "exit" => {
                t.arity(0)?;
                self.push(Op::Exit);
            }
            "trap" => self.effect(|cpu, site| {
                let lane = Some(site.m.trailing_zeros() as usize);
                Err(cpu.fault(FaultKind::IllegalInstruction, &site.at, lane, "the kernel executed a trap"))
            }),
            "nop" | "brkpt" | "pmevent" => self.push(Op::Nop),
            "call" => {
                t.skip("uni");
                self.call(t.args)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn label(&self, name: &str) -> Res<usize> {
        match self.lookup(name) {
            Some(Entity::Label(l)) => Ok(l),
            _ => self.fail(name, "label that is not declared"),
        }
    }

    fn branch(&mut self, label: usize) {
        self.patches.push(self.code.insts.len());
        self.push(Op::Bra(label as u32));
    }

    fn call(&mut self, args: &[Arg]) -> Res<()> {
        let list = |a: Option<&Arg>| match a {
            Some(Arg::List(l)) => l.clone(),
            _ => Vec::new(),
        };
        let at = args.iter().position(|a| matches!(a, Arg::Word(_)));
        let Some(at) = at else { return self.fail("call", "indirect calls are not supported") };
        let Arg::Word(name) = &args[at] else { return self.fail("call", "expected a function") };
        let Some(f) = self.functions.get(name).filter(|f| !f.entry).cloned() else {
            return self.fail(name, "function without a body in this module");
        };
        let returns = if at == 1 { list(args.first()) } else { Vec::new() };
        let params = list(args.get(at + 1));
        if returns.len() != f.returns.len() || params.len() != f.params.len() {
            return self.fail(name, "number of arguments differs from the function's parameters");
        }
        if self.depth >= MAX_DEPTH {
            return self.fail(name, "calls nested too deeply; recursion is not supported");
        }
        if self.code.insts.len() > MAX_CODE {
            return self.fail(name, "the kernel is too large with its calls expanded");
        }
        self.expand(&f, &returns, &params)
    }

    /// Decodes a function's body here. Its parameters are other names for the caller's variables.
    fn expand(&mut self, f: &Rc<Function>, returns: &[Arg], params: &[Arg]) -> Res<()> {
        let mut scope = std::collections::HashMap::new();
        let formals = f.returns.iter().chain(&f.params);
        for (formal, actual) in formals.zip(returns.iter().chain(params)) {
            let Arg::Word(name) = actual else {
                return self.fail(format!("{actual:?}"), "arguments are .param variables");
            };
            match self.lookup(name) {
                Some(Entity::Var { space: Space::Local, address }) => {
                    scope.insert(formal.name.clone(), Entity::Var { space: Space::Local, address });
                }
                _ => return self.fail(name, "arguments are .param variables"),
            }
        }
        let (origin, opcode) = (self.origin, self.opcode);
        let end = self.new_label();
        if self.guard.0 != NO_PRED {
            // A guarded call is a branch around it.
            self.guard.1 = !self.guard.1;
            self.branch(end);
            self.guard = (NO_PRED, false);
        }
        let outer_scopes = std::mem::replace(&mut self.scopes, vec![scope]);
        let outer_return = self.return_label.replace(end);
        self.depth += 1;
        self.block(&f.body)?;
        self.depth -= 1;
        self.return_label = outer_return;
        self.scopes = outer_scopes;
        (self.origin, self.opcode, self.guard) = (origin, opcode, (NO_PRED, false));
        self.labels[end] = Some(self.code.insts.len() as u32);
        // Something must stand at the label.
        self.push(Op::Nop);
        Ok(())
    }
}
