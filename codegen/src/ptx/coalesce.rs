//! Removes the move of `t = op ...; ...; var = t` where `t` is used nowhere else and nothing between them names `var`:
//! `var = op ...`. The assembler would do the same; here it makes the text shorter for readers and the emulator.

use super::ir::{Arg, Function, Node, Reg, RegMap, instructions};
use super::table::{Opcode, Slot};

/// Coalesces every such pair in `function`.
pub(crate) fn moves(function: &mut Function) {
    let mut uses = RegMap::<u32>::default();
    let mut count = |reg: Reg| *uses.entry(reg) += 1;
    function.instructions(&mut |inst| {
        inst.operands(&mut count);
    });
    conditions(&function.body, &mut count);
    walk(&mut function.body, &uses, &mut Places::default());
}

fn conditions(nodes: &[Node], count: &mut impl FnMut(Reg)) {
    for node in nodes {
        match node {
            Node::Inst(_) => {}
            Node::If { cond, then, otherwise, .. } => {
                count(*cond);
                conditions(then, count);
                conditions(otherwise, count);
            }
            Node::Loop { body, again, .. } => {
                count(*again);
                conditions(body, count);
            }
            Node::Roles { warp, roles, .. } => {
                count(*warp);
                roles.iter().for_each(|(_, body)| conditions(body, count));
            }
        }
    }
}

/// Where in a sequence of nodes registers were last named, and last written by an instruction of the sequence itself.
#[derive(Default)]
struct Places {
    named: RegMap<Place>,
    written: RegMap<Place>,
    sequences: u32,
}

/// A sequence's number, from 1 on, and a place in it.
type Place = (u32, usize);

impl Places {
    /// Notes what the node at `place` names.
    fn note(&mut self, node: &Node, place: Place) {
        if let Node::Inst(inst) = node {
            inst.results(&mut |reg| *self.written.entry(reg) = place);
        }
        let node = std::slice::from_ref(node);
        let mut note = |reg: Reg| *self.named.entry(reg) = place;
        instructions(node, &mut |inst| {
            inst.results(&mut note);
            inst.operands(&mut note);
        });
        conditions(node, &mut note);
    }

    /// The place in the sequence where `value` was written, if nothing behind it names `value` or `variable`.
    fn of_move(&self, sequence: u32, value: Reg, variable: Reg) -> Option<usize> {
        let written = self.written.get(value);
        let is_last = self.named.get(value) == written;
        let (of, variable) = self.named.get(variable);
        let is_free = of != sequence || variable <= written.1;
        (written.0 == sequence && is_last && is_free).then_some(written.1)
    }
}

fn walk(nodes: &mut Vec<Node>, uses: &RegMap<u32>, places: &mut Places) {
    places.sequences += 1;
    let sequence = places.sequences;
    let mut kept: Vec<Node> = Vec::with_capacity(nodes.len());
    for mut node in nodes.drain(..) {
        match &mut node {
            Node::Inst(inst) => {
                if let (Opcode::Mov, [Arg::Reg(variable)], [Arg::Reg(value)]) =
                    (inst.op.opcode(), inst.dst.as_slice(), inst.src.as_slice())
                    && uses.get(*value) == 1
                    && let Some(place) = places.of_move(sequence, *value, *variable)
                    && let Some(Node::Inst(before)) = kept.get_mut(place)
                    && before.dst == [Arg::Reg(*value)]
                    // Bits that are seen as another type may be in a register that the instruction cannot write.
                    && before.op.row().results.hold(&inst.dst, Slot::writes)
                {
                    before.dst.clone_from(&inst.dst);
                    *places.written.entry(*variable) = (sequence, place);
                    *places.named.entry(*variable) = (sequence, place);
                    continue;
                }
            }
            Node::If { then, otherwise, .. } => {
                walk(then, uses, places);
                walk(otherwise, uses, places);
            }
            Node::Loop { body, .. } => walk(body, uses, places),
            Node::Roles { roles, .. } => roles.iter_mut().for_each(|(_, body)| walk(body, uses, places)),
        }
        places.note(&node, (sequence, kept.len()));
        kept.push(node);
    }
    *nodes = kept;
}
