//! Control flow: branches, returns, traps.

use super::super::ast::Arg;
use super::{Decoder, Entity, Res, Text};
use crate::exec::inst::*;
use crate::machine::fault::FaultKind;

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
            // A count of a profiler.
            ("pmevent", [Arg::Num(_)]) => {
                t.take("mask");
                self.push(Op::Nop);
            }
            ("call", _) => self.call(t)?,
            ("brx", [index, Arg::Word(list)]) => self.branch_by_index(t, index, list)?,
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
}
