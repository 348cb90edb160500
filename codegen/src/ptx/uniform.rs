//! The uniformity of each register, by data flow: a fixed point over the tree, from "the same in the whole block"
//! downwards. Loops and conditions count: a register assigned in a loop or branch is no more uniform than the
//! condition.
//!
//! Registers are compared among the warps of the block and, once more, among those of each role: a variable that one
//! role sets is uniform there, and differs between warps for the block.

use super::ir::{Arg, Function, Inst, Node, Reg, RegMap, Uniformity, Warps, by_warps};
use super::table::Spread;

/// Registers that are less than uniform.
#[derive(Debug)]
pub(crate) struct Map {
    /// For the block first, then for each role's warps.
    of_warps: Vec<(Warps, Levels)>,
}

impl Map {
    /// How far the register is the same among the block's threads.
    pub(crate) fn level(&self, reg: Reg) -> Uniformity {
        self.of_warps[0].1.level(reg)
    }

    /// How far the register is the same among the threads of `warps`, which are the block's or a role's.
    pub(crate) fn level_in(&self, warps: Warps, reg: Reg) -> Uniformity {
        let found = self.of_warps.iter().find(|(those, _)| *those == warps);
        found.map_or(Uniformity::Lane, |(_, levels)| levels.level(reg))
    }
}

#[derive(Debug, Default)]
struct Levels(RegMap<Option<Uniformity>>);

impl Levels {
    fn level(&self, reg: Reg) -> Uniformity {
        self.0.get(reg).unwrap_or(Uniformity::Block)
    }

    /// Raises a register's level; whether that changed anything.
    fn raise(&mut self, reg: Reg, level: Uniformity) -> bool {
        let changed = level > self.level(reg);
        if changed {
            *self.0.entry(reg) = Some(level);
        }
        changed
    }
}

/// The uniformity of every register of `function`.
pub(crate) fn of(function: &Function) -> Map {
    let mut definitions = RegMap::<u32>::default();
    function.instructions(&mut |inst| inst.results(&mut |reg| *definitions.entry(reg) += 1));
    let mut of_warps = vec![(function.warps(), Levels::default())];
    roles(&function.body, &mut |warps| {
        if of_warps.iter().all(|(those, _)| *those != warps) {
            of_warps.push((warps, Levels::default()));
        }
    });
    for (warps, levels) in &mut of_warps {
        let mut flow = Flow { warps: *warps, definitions: &definitions, levels };
        while flow.walk(&function.body, Uniformity::Block, Uniformity::Block) {}
    }
    Map { of_warps }
}

fn roles(nodes: &[Node], visit: &mut impl FnMut(Warps)) {
    for node in nodes {
        match node {
            Node::Inst(_) => {}
            Node::If { then, otherwise, .. } => {
                roles(then, visit);
                roles(otherwise, visit);
            }
            Node::Loop { body, .. } => roles(body, visit),
            Node::Roles { roles, .. } => by_warps(roles).for_each(|(warps, _)| visit(warps)),
        }
    }
}

/// The data flow among some warps.
struct Flow<'a> {
    warps: Warps,
    definitions: &'a RegMap<u32>,
    levels: &'a mut Levels,
}

impl Flow<'_> {
    fn walk(&mut self, nodes: &[Node], branch: Uniformity, looping: Uniformity) -> bool {
        let mut changed = false;
        for node in nodes {
            match node {
                Node::Inst(inst) => {
                    let value = match inst.spread() {
                        Spread::Exactly(level) => level,
                        Spread::Operands => self.operands(inst).max(looping),
                        Spread::Varies => Uniformity::Lane,
                    };
                    inst.results(&mut |reg| {
                        let assigned = if self.definitions.get(reg) > 1 { branch } else { value };
                        changed |= self.levels.raise(reg, value.max(assigned));
                    });
                }
                Node::If { cond, then, otherwise, .. } => {
                    let branch = branch.max(self.levels.level(*cond));
                    changed |= self.walk(then, branch, looping);
                    changed |= self.walk(otherwise, branch, looping);
                }
                Node::Loop { body, again, .. } => {
                    let level = self.levels.level(*again);
                    changed |= self.walk(body, branch.max(level), looping.max(level));
                }
                Node::Roles { roles, .. } => {
                    let own = self.warps;
                    for (warps, body) in by_warps(roles).filter(|(warps, _)| !warps.miss(own)) {
                        let some = if warps.contain(own) { Uniformity::Block } else { Uniformity::Warp };
                        changed |= self.walk(body, branch.max(some), looping);
                    }
                }
            }
        }
        changed
    }

    fn operands(&self, inst: &Inst) -> Uniformity {
        let mut level = Uniformity::Block;
        for arg in &inst.src {
            if let Arg::Special(register) = arg {
                level = level.max(register.uniformity());
            }
            arg.registers(&mut |reg| level = level.max(self.levels.level(reg)));
        }
        level
    }
}
