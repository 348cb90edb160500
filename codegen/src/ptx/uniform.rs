//! The data flow that finds how uniform each register is: a fixed point over the tree, from "the same in the whole
//! block" downwards. Loops and conditions count: what a lane-varying loop leaves behind varies with the lane, and a
//! variable assigned in a branch is no more uniform than the branch.

use super::ir::{Arg, Function, Inst, Node, Reg, RegMap, Spread, Uniformity};

/// Registers that are less than block-uniform.
#[derive(Debug, Default)]
pub(crate) struct Map {
    levels: RegMap<Option<Uniformity>>,
}

impl Map {
    pub(crate) fn level(&self, reg: Reg) -> Uniformity {
        self.levels.get(reg).unwrap_or(Uniformity::Block)
    }

    /// Raises a register's level; whether that changed anything.
    fn raise(&mut self, reg: Reg, level: Uniformity) -> bool {
        let changed = level > self.level(reg);
        if changed {
            *self.levels.entry(reg) = Some(level);
        }
        changed
    }
}

/// The uniformity of every register of `function`.
pub(crate) fn of(function: &Function) -> Map {
    let mut definitions = RegMap::<u32>::default();
    function.instructions(&mut |inst| results(inst, &mut |reg| *definitions.entry(reg) += 1));
    let mut map = Map::default();
    while walk(&function.body, Uniformity::Block, Uniformity::Block, &definitions, &mut map) {}
    map
}

fn results(inst: &Inst, visit: &mut impl FnMut(Reg)) {
    inst.dst.iter().filter(|arg| !matches!(arg, Arg::Mem(..))).for_each(|arg| arg.registers(visit));
}

fn walk(nodes: &[Node], branch: Uniformity, looping: Uniformity, definitions: &RegMap<u32>, map: &mut Map) -> bool {
    let mut changed = false;
    for node in nodes {
        match node {
            Node::Inst(inst) => {
                let value = match inst.spread {
                    Spread::Exactly(level) => level,
                    Spread::Operands => operands(inst, map).max(looping),
                    Spread::AtLeast(level) => operands(inst, map).max(level),
                };
                results(inst, &mut |reg| {
                    let assigned = if definitions.get(reg) > 1 { branch } else { value };
                    changed |= map.raise(reg, value.max(assigned));
                });
            }
            Node::If { cond, then, otherwise, .. } => {
                let branch = branch.max(map.level(cond.reg));
                changed |= walk(then, branch, looping, definitions, map);
                changed |= walk(otherwise, branch, looping, definitions, map);
            }
            Node::Loop { body, again, .. } => {
                let level = map.level(again.reg);
                changed |= walk(body, branch.max(level), looping.max(level), definitions, map);
            }
            Node::Roles { roles, .. } => {
                for (_, body) in roles {
                    changed |= walk(body, branch, looping, definitions, map);
                }
            }
        }
    }
    changed
}

fn operands(inst: &Inst, map: &Map) -> Uniformity {
    let mut level = Uniformity::Block;
    for arg in &inst.src {
        if let Arg::Special(_, uniformity) = arg {
            level = level.max(*uniformity);
        }
        arg.registers(&mut |reg| level = level.max(map.level(reg)));
    }
    level
}
