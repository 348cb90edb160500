//! Registers of a kernel that can share a name: those of a class whose spans do not overlap. A span reaches from the
//! first instruction in text order that names the register to the last, and over every loop into which the register is
//! alive. Nothing else is carried from one iteration to the next, since registers are defined before use on every path.
//!
//! Floats are in bits' class: an instruction of any type takes registers of bits (PTX ISA, "Operand Type Checking Rules").
//! What is moved to a register from one that ends there keeps the name, and the move is no line of the text.
//!
//! Where a kernel has products of warpgroups, registers of bits share none: for shared ones the assembler spilled 1.3 KB of 32
//! bits, and had 32 moves more in the loop over super-blocks for those of 64.

use super::ir::{Arg, Class, Function, Inst, Node, Reg, RegMap};
use super::table::Op;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The class whose names a register of `class` shares.
pub(crate) const fn pool(class: Class) -> Class {
    match class {
        Class::F32 => Class::B32,
        Class::Pred | Class::B16 | Class::B32 | Class::B64 | Class::F64 => class,
    }
}

/// A name's place in its class, for each register, and how often each name stands in the text.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    places: RegMap<u32>,
    /// By class and place.
    uses: [Vec<u32>; Class::ALL.len()],
}

impl Shared {
    /// The place of a register's name.
    pub(crate) fn place(&self, reg: Reg) -> u32 {
        self.places.get(reg)
    }

    /// How often each name of a class is used, by place.
    pub(crate) fn uses(&self, class: Class) -> &[u32] {
        &self.uses[class as usize]
    }

    /// The names of a kernel's registers.
    pub(crate) fn of(function: &Function) -> Shared {
        let mut walk = Walk::default();
        walk.nodes(&function.body);
        let mut registers: Vec<(Span, Reg)> =
            walk.met.iter().filter_map(|reg| Some((walk.spans.get(*reg)?, *reg))).collect();
        registers.sort_by_key(|(span, reg)| (span.first, *reg));
        registers.dedup();
        let mut shared = Shared::default();
        let mut classes: [Names; Class::ALL.len()] = Default::default();
        for (span, reg) in registers {
            let uses = &mut shared.uses[pool(reg.class) as usize];
            let names = &mut classes[pool(reg.class) as usize];
            let ends = |from: &Reg| walk.spans.get(*from).is_some_and(|from| from.last == span.first);
            let moved = walk.moves.get(reg).filter(|_| span.last > span.first).filter(ends);
            // Taken to the end of the text, it is nobody else's.
            let alone = walk.has_warpgroups && matches!(reg.class, Class::B32 | Class::B64);
            let span = if alone { Span { last: u32::MAX, ..span } } else { span };
            let place = match moved {
                Some(from) => names.keep(span, shared.places.get(from)),
                None => names.take(span, uses.len() as u32),
            };
            *shared.places.entry(reg) = place;
            match uses.get_mut(place as usize) {
                Some(uses) => *uses += span.uses,
                None => uses.push(span.uses),
            }
        }
        shared
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    first: u32,
    last: u32,
    uses: u32,
}

/// The walk over a kernel's text.
#[derive(Default)]
struct Walk {
    at: u32,
    spans: RegMap<Option<Span>>,
    /// What a register is a move of where it is named first.
    moves: RegMap<Option<Reg>>,
    /// Registers in the order in which they are named.
    met: Vec<Reg>,
    /// Whether there are products of warpgroups.
    has_warpgroups: bool,
    /// Rows of products under way, each with the groups made since it began.
    under_way: Vec<(Reg, u32)>,
}

impl Walk {
    fn meet(&mut self, reg: Reg) {
        let at = self.at;
        let span = self.spans.entry(reg).get_or_insert(Span { first: at, last: at, uses: 0 });
        (span.last, span.uses) = (at, span.uses + 1);
        self.met.push(reg);
    }

    /// Rows of a warpgroup's product are read until the wait that ends it: nothing has their names before.
    fn products(&mut self, inst: &Inst) {
        match (inst.op, inst.src.as_slice()) {
            (Op::Wgmma { .. }, [rows, ..]) => {
                self.has_warpgroups = true;
                rows.registers(&mut |reg| self.under_way.push((reg, 0)));
            }
            (Op::WgmmaCommitGroup, _) => self.under_way.iter_mut().for_each(|(_, groups)| *groups += 1),
            (Op::WgmmaWaitGroup, [Arg::Int(keep)]) => {
                let (keep, at) = (*keep, self.at);
                for (reg, _) in self.under_way.extract_if(.., |(_, groups)| i64::from(*groups) > keep) {
                    self.spans.entry(reg).iter_mut().for_each(|span| span.last = at);
                }
            }
            _ => {}
        }
    }

    fn nodes(&mut self, nodes: &[Node]) {
        for node in nodes {
            self.at += 1;
            match node {
                Node::Inst(inst) => {
                    if let Some([to, from]) = moved(inst)
                        && self.spans.get(to).is_none()
                    {
                        *self.moves.entry(to) = Some(from);
                    }
                    inst.dst.iter().chain(&inst.src).for_each(|arg| arg.registers(&mut |reg| self.meet(reg)));
                    self.products(inst);
                }
                Node::If { cond, then, otherwise, .. } => {
                    self.meet(*cond);
                    self.nodes(then);
                    self.nodes(otherwise);
                }
                Node::Loop { body, again, .. } => {
                    let (begin, met) = (self.at, self.met.len());
                    self.nodes(body);
                    self.at += 1;
                    self.meet(*again);
                    for reg in &self.met[met..] {
                        if let Some(span) = self.spans.entry(*reg)
                            && span.first < begin
                        {
                            span.last = self.at;
                        }
                    }
                }
                Node::Roles { warp, roles, .. } => {
                    for (_, body) in roles {
                        self.meet(*warp);
                        self.nodes(body);
                        self.at += 1;
                    }
                }
            }
        }
    }
}

/// The registers of a move between those that share names.
pub(crate) fn moved(inst: &Inst) -> Option<[Reg; 2]> {
    match (&inst.op, inst.dst.as_slice(), inst.src.as_slice()) {
        (Op::Mov { .. }, &[Arg::Reg(to)], &[Arg::Reg(from)]) => {
            (pool(to.class) == pool(from.class)).then_some([to, from])
        }
        _ => None,
    }
}

/// The names of one class: those taken, by the end of the span, and those free.
#[derive(Default)]
struct Names {
    taken: BinaryHeap<Reverse<(u32, u32)>>,
    free: BinaryHeap<Reverse<u32>>,
    /// The end of the last span of each.
    ends: Vec<u32>,
}

impl Names {
    /// The lowest name that no register has in the span; `fresh` if all do.
    fn take(&mut self, span: Span, fresh: u32) -> u32 {
        while let Some(Reverse((last, place))) = self.taken.peek().copied()
            && last < span.first
        {
            self.taken.pop();
            // One that was kept is taken for longer.
            if self.ends[place as usize] == last {
                self.free.push(Reverse(place));
            }
        }
        let place = self.free.pop().map_or(fresh, |Reverse(place)| place);
        self.keep(span, place)
    }

    /// The name at `place`, whose register's span ends where this one begins.
    fn keep(&mut self, span: Span, place: u32) -> u32 {
        let needed = self.ends.len().max(place as usize + 1);
        self.ends.resize(needed, 0);
        self.ends[place as usize] = span.last;
        self.taken.push(Reverse((span.last, place)));
        place
    }
}
