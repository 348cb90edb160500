//! Removes the move of `t = op ...; var = t` where `t` is used nowhere else: `var = op ...`. The assembler would do the
//! same; here it makes the text shorter for readers and the emulator.

use super::ir::{Arg, Function, Node, Reg, RegMap};
use super::table::{Opcode, Slot};

/// Coalesces every such pair in `function`.
pub(crate) fn moves(function: &mut Function) {
    let mut uses = RegMap::<u32>::default();
    let mut count = |reg: Reg| *uses.entry(reg) += 1;
    function.instructions(&mut |inst| {
        inst.operands(&mut count);
    });
    conditions(&function.body, &mut count);
    walk(&mut function.body, &uses);
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

fn walk(nodes: &mut Vec<Node>, uses: &RegMap<u32>) {
    let mut kept: Vec<Node> = Vec::with_capacity(nodes.len());
    for mut node in nodes.drain(..) {
        match &mut node {
            Node::Inst(inst) => {
                if let (Opcode::Mov, [Arg::Reg(_)], [Arg::Reg(value)]) =
                    (inst.op.opcode(), inst.dst.as_slice(), inst.src.as_slice())
                    && uses.get(*value) == 1
                    && let Some(Node::Inst(before)) = kept.last_mut()
                    && before.dst == [Arg::Reg(*value)]
                    // Bits that are seen as another type may be in a register that the instruction cannot write.
                    && before.op.row().results.hold(&inst.dst, Slot::writes)
                {
                    before.dst.clone_from(&inst.dst);
                    continue;
                }
            }
            Node::If { then, otherwise, .. } => {
                walk(then, uses);
                walk(otherwise, uses);
            }
            Node::Loop { body, .. } => walk(body, uses),
            Node::Roles { roles, .. } => roles.iter_mut().for_each(|(_, body)| walk(body, uses)),
        }
        kept.push(node);
    }
    *nodes = kept;
}
