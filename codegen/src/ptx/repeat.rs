//! Removes arithmetic that stands a second time between two branches: whoever reads its result reads the first one's. The
//! assembler would do the same; here it makes the text shorter for readers, programs and the emulator.

use super::ir::{Arg, Class, Function, Inst, Node, Reg, RegMap, Uniformity};
use super::modifiers::Special;
use super::table::{Convergence, Effect, Op};
use std::collections::HashMap;

/// Removes every such instruction of `function`.
pub(crate) fn remove(function: &mut Function) {
    let mut repeats = Repeats::default();
    function.instructions(&mut |inst| inst.results(&mut |reg| *repeats.definitions.entry(reg) += 1));
    repeats.walk(&mut function.body);
}

/// What makes two results equal: the instruction, its operands, how often each of these was written before, the result's
/// class, and how uniform the builder knows it to be.
type Key = (Op, Vec<Arg>, Vec<u32>, Class, Option<Uniformity>);

#[derive(Default)]
struct Repeats {
    /// Instructions that write a register.
    definitions: RegMap<u32>,
    /// Those that were met.
    written: RegMap<u32>,
    /// What is read instead of a register.
    instead: RegMap<Option<Reg>>,
}

impl Repeats {
    fn walk(&mut self, nodes: &mut Vec<Node>) {
        let mut first: HashMap<Key, Reg> = HashMap::new();
        nodes.retain_mut(|node| {
            let Node::Inst(inst) = node else {
                first.clear();
                self.branch(node);
                return true;
            };
            inst.operands_mut(&mut |reg| self.rename(reg));
            let repeated = self.result(inst).and_then(|result| {
                let known = *first.entry(self.key(inst, result.class)).or_insert(result);
                (known != result).then_some((result, known))
            });
            if let Some((result, known)) = repeated {
                *self.instead.entry(result) = Some(known);
                return false;
            }
            inst.results(&mut |reg| *self.written.entry(reg) += 1);
            true
        });
    }

    fn branch(&mut self, node: &mut Node) {
        match node {
            Node::Inst(_) => {}
            Node::If { cond, then, otherwise, .. } => {
                self.rename(cond);
                self.walk(then);
                self.walk(otherwise);
            }
            Node::Loop { body, again, .. } => {
                self.walk(body);
                self.rename(again);
            }
            Node::Roles { warp, roles, .. } => {
                self.rename(warp);
                roles.iter_mut().for_each(|(_, body)| self.walk(body));
            }
        }
    }

    fn rename(&self, reg: &mut Reg) {
        if let Some(known) = self.instead.get(*reg) {
            *reg = known;
        }
    }

    /// The result of an instruction that gives the same for the same operands, if nothing else writes it.
    fn result(&self, inst: &Inst) -> Option<Reg> {
        let row = inst.op.row();
        let [Arg::Reg(result)] = inst.dst[..] else { return None };
        let changes = |arg: &Arg| matches!(arg, Arg::Special(Special::Globaltimer));
        let pure = row.effect == Effect::Pure && row.convergence == Convergence::Free;
        (pure && self.definitions.get(result) == 1 && !inst.src.iter().any(changes)).then_some(result)
    }

    fn key(&self, inst: &Inst, class: Class) -> Key {
        let mut before = Vec::new();
        inst.operands(&mut |reg| before.push(self.written.get(reg)));
        (inst.op, inst.src.clone(), before, class, inst.known)
    }
}
