//! The rule of shared barriers: the roles of a block come to those they share in one order and equally often.
//!
//! The roles are walked together. A barrier is passed when every role that waits at it has come to it. A loop or branch
//! with shared barriers is entered when every role of these barriers has come to one like it. Where no role can go on,
//! the kernel may deadlock.
//!
//! Two loops run equally often if their conditions are computed by the same instructions, up to the numbers of
//! registers, from values of the whole block and from no memory that a role may write meanwhile.

use super::ir::{Arg, Base, Inst, Node, Reg, Source, Uniformity, instructions};
use super::modifiers::StateSpace;
use super::table::{Op, Opcode, Spread};
use super::uniform;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

/// A broken rule, and where.
pub(crate) type Problem = (String, Source);

/// The roles that wait at each barrier, by their place in the list.
pub(crate) type Waiting = BTreeMap<u32, BTreeSet<usize>>;

/// Holds the roles of a block to one order of the barriers that several of them wait at.
pub(crate) fn check(
    roles: &[(u32, Vec<Node>)],
    waiting: &Waiting,
    everywhere: &HashMap<Reg, u32>,
    uniformity: &uniform::Map,
    source: Source,
) -> Result<(), Problem> {
    let shared: Waiting =
        waiting.iter().filter(|(_, roles)| roles.len() > 1).map(|(barrier, roles)| (*barrier, roles.clone())).collect();
    if shared.is_empty() {
        return Ok(());
    }
    let meeting = Meeting { roles, shared, everywhere, uniformity, source };
    meeting.walk(roles.iter().enumerate().map(|(role, (_, body))| (role, meeting.steps(body))).collect())
}

/// How often each register is assigned in `nodes`.
pub(crate) fn definitions(nodes: &[Node]) -> HashMap<Reg, u32> {
    let mut count = HashMap::new();
    instructions(nodes, &mut |inst| inst.results(&mut |reg| *count.entry(reg).or_insert(0) += 1));
    count
}

struct Meeting<'a> {
    roles: &'a [(u32, Vec<Node>)],
    /// Barriers that several roles wait at, and these.
    shared: Waiting,
    /// Assignments of each register in the whole kernel.
    everywhere: &'a HashMap<Reg, u32>,
    uniformity: &'a uniform::Map,
    /// Where the block is split.
    source: Source,
}

/// The next step of a role.
#[derive(Clone, Copy)]
enum Step<'a> {
    Barrier(u32, Source),
    /// A loop or a branch with shared barriers inside.
    Control(&'a Node, Source),
}

impl<'a> Meeting<'a> {
    fn steps(&self, nodes: &'a [Node]) -> VecDeque<Step<'a>> {
        let step = |node: &'a Node| match node {
            Node::Inst(inst) => self.barrier(inst).map(|barrier| Step::Barrier(barrier, inst.source)),
            Node::If { source, .. } | Node::Loop { source, .. } | Node::Roles { source, .. } => {
                (!self.inside(node).is_empty()).then_some(Step::Control(node, source))
            }
        };
        nodes.iter().filter_map(step).collect()
    }

    fn barrier(&self, inst: &Inst) -> Option<u32> {
        inst.barrier().map(|(barrier, _)| barrier).filter(|barrier| self.shared.contains_key(barrier))
    }

    /// The shared barriers inside a node.
    fn inside(&self, node: &'a Node) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        instructions(std::slice::from_ref(node), &mut |inst| found.extend(self.barrier(inst)));
        found
    }

    /// The roles that wait at a barrier inside a node.
    fn company(&self, node: &'a Node) -> BTreeSet<usize> {
        self.inside(node).iter().flat_map(|barrier| &self.shared[barrier]).copied().collect()
    }

    /// Walks roles from step to step until all are through.
    fn walk(&self, mut ahead: BTreeMap<usize, VecDeque<Step<'a>>>) -> Result<(), Problem> {
        while ahead.values().any(|steps| !steps.is_empty()) {
            let ready = ahead.iter().find_map(|(role, steps)| {
                let first = *steps.front()?;
                let company = match first {
                    Step::Barrier(barrier, _) => self.shared[&barrier].clone(),
                    Step::Control(node, _) => self.company(node),
                };
                let come = |other| ahead.get(other).and_then(VecDeque::front).is_some_and(|step| like(&first, step));
                company.iter().all(come).then_some((*role, first, company))
            });
            let Some((first, step, company)) = ready else {
                return Err(self.stuck(&ahead));
            };
            let all: Vec<(usize, Step<'a>)> =
                company.iter().filter_map(|role| Some((*role, ahead.get_mut(role)?.pop_front()?))).collect();
            if let Step::Control(node, source) = step {
                self.enter(first, node, source, &all)?;
            }
        }
        Ok(())
    }

    /// Walks loops or branches that roles have come to together.
    fn enter(&self, first: usize, node: &'a Node, source: Source, all: &[(usize, Step<'a>)]) -> Result<(), Problem> {
        let (mut bodies, mut others) = (BTreeMap::new(), BTreeMap::new());
        for (role, step) in all {
            let Step::Control(theirs, _) = step else { continue };
            if *role != first && !self.alike((first, node), (*role, theirs)) {
                let what = format!(
                    "the conditions of roles {first} and {role} around a barrier they share may differ: compute one before \
                     the roles, or both by the same instructions without shared memory"
                );
                return Err((what, source));
            }
            match theirs {
                Node::Loop { body, .. } => {
                    bodies.insert(*role, self.steps(body));
                }
                Node::If { then, otherwise, .. } => {
                    bodies.insert(*role, self.steps(then));
                    others.insert(*role, self.steps(otherwise));
                }
                Node::Inst(_) | Node::Roles { .. } => {}
            }
        }
        self.walk(bodies)?;
        self.walk(others)
    }

    /// The error where every role waits for another.
    fn stuck(&self, ahead: &BTreeMap<usize, VecDeque<Step<'a>>>) -> Problem {
        let mut source = self.source;
        let mut at = Vec::new();
        for (role, steps) in ahead {
            at.push(match steps.front() {
                Some(Step::Barrier(barrier, _)) => format!("role {role} comes to barrier {barrier}"),
                Some(Step::Control(node, _)) => {
                    let kind = if matches!(node, Node::Loop { .. }) { "loop" } else { "branch" };
                    let barriers: Vec<String> = self.inside(node).iter().map(u32::to_string).collect();
                    format!("role {role} to a {kind} with barrier {}", barriers.join(", "))
                }
                None => format!("role {role} to its end"),
            });
            if let Some(Step::Barrier(_, here) | Step::Control(_, here)) = steps.front() {
                source = here;
            }
        }
        let what = format!(
            "{}: roles must come to the barriers they share in one order, equally often, in like loops and branches",
            at.join(", ")
        );
        (what, source)
    }

    /// Whether the conditions of two nodes, each in its role, take the same values one after the other.
    fn alike(&self, one: (usize, &'a Node), other: (usize, &'a Node)) -> bool {
        let [one, other] = [one, other].map(|(role, node)| Slice::of(&self.roles[role].1, node));
        let mut pairing =
            Pairing { meeting: self, one: &one, other: &other, of_one: HashMap::new(), of_other: HashMap::new() };
        pairing.nodes(one.body, other.body)
    }
}

/// Whether two roles may take these steps together.
fn like(one: &Step<'_>, other: &Step<'_>) -> bool {
    match (one, other) {
        (Step::Barrier(one, _), Step::Barrier(other, _)) => one == other,
        (Step::Control(one, _), Step::Control(other, _)) => {
            std::mem::discriminant(*one) == std::mem::discriminant(*other)
        }
        _ => false,
    }
}

/// The slice of a condition: the instructions of a role's body that it depends on, and the control flow around them.
struct Slice<'a> {
    body: &'a [Node],
    /// The node whose condition it is.
    node: &'a Node,
    needed: HashSet<Reg>,
    /// Assignments in the role.
    assigned: HashMap<Reg, u32>,
}

impl<'a> Slice<'a> {
    fn of(body: &'a [Node], node: &'a Node) -> Slice<'a> {
        let mut slice = Slice { body, node, needed: HashSet::new(), assigned: definitions(body) };
        let mut before = usize::MAX;
        while before != slice.needed.len() {
            before = slice.needed.len();
            slice.grow(body);
        }
        slice
    }

    /// Adds what the nodes' part of the slice reads; whether there is such a part.
    fn grow(&mut self, nodes: &[Node]) -> bool {
        let mut any = false;
        for node in nodes {
            let (inside, condition) = match node {
                Node::Inst(inst) => {
                    let inside = self.has(inst);
                    if inside {
                        inst.operands(&mut |reg| _ = self.needed.insert(reg));
                    }
                    (inside, None)
                }
                Node::If { cond, then, otherwise, .. } => (self.grow(then) | self.grow(otherwise), Some(*cond)),
                Node::Loop { body, again, .. } => (self.grow(body), Some(*again)),
                Node::Roles { .. } => (false, None),
            };
            let inside = inside || std::ptr::eq(node, self.node);
            if inside {
                self.needed.extend(condition);
            }
            any |= inside;
        }
        any
    }

    fn has(&self, inst: &Inst) -> bool {
        let mut has = false;
        inst.results(&mut |reg| has |= self.needed.contains(&reg));
        has
    }

    fn holds(&self, node: &Node) -> bool {
        std::ptr::eq(node, self.node)
            || match node {
                Node::Inst(inst) => self.has(inst),
                Node::If { then, otherwise, .. } => then.iter().chain(otherwise).any(|node| self.holds(node)),
                Node::Loop { body, .. } => body.iter().any(|node| self.holds(node)),
                Node::Roles { .. } => false,
            }
    }
}

/// Two slices that are the same but for the numbers of registers, as far as compared.
struct Pairing<'a> {
    meeting: &'a Meeting<'a>,
    one: &'a Slice<'a>,
    other: &'a Slice<'a>,
    of_one: HashMap<Reg, Reg>,
    of_other: HashMap<Reg, Reg>,
}

impl Pairing<'_> {
    fn nodes(&mut self, one: &[Node], other: &[Node]) -> bool {
        let (first, second) = (self.one, self.other);
        let one: Vec<&Node> = one.iter().filter(|node| first.holds(node)).collect();
        let other: Vec<&Node> = other.iter().filter(|node| second.holds(node)).collect();
        one.len() == other.len() && one.into_iter().zip(other).all(|(one, other)| self.node(one, other))
    }

    fn node(&mut self, one: &Node, other: &Node) -> bool {
        if std::ptr::eq(one, self.one.node) != std::ptr::eq(other, self.other.node) {
            return false;
        }
        match (one, other) {
            (Node::Inst(one), Node::Inst(other)) => self.inst(one, other),
            (
                Node::If { cond, then, otherwise, .. },
                Node::If { cond: theirs, then: their_then, otherwise: their_otherwise, .. },
            ) => {
                self.register(*cond, *theirs) && self.nodes(then, their_then) && self.nodes(otherwise, their_otherwise)
            }
            (Node::Loop { body, again, .. }, Node::Loop { body: their_body, again: theirs, .. }) => {
                self.register(*again, *theirs) && self.nodes(body, their_body)
            }
            _ => false,
        }
    }

    fn inst(&mut self, one: &Inst, other: &Inst) -> bool {
        let known = match one.spread() {
            Spread::Operands => !matches!(one.op, Op::Ld { space: StateSpace::Shared, .. }),
            Spread::Exactly(_) => one.op.opcode() == Opcode::LdParam,
            Spread::Varies => false,
        };
        known
            && one.op == other.op
            && one.known == other.known
            && self.arguments(&one.dst, &other.dst)
            && self.arguments(&one.src, &other.src)
    }

    fn arguments(&mut self, one: &[Arg], other: &[Arg]) -> bool {
        one.len() == other.len() && one.iter().zip(other).all(|(one, other)| self.argument(one, other))
    }

    fn argument(&mut self, one: &Arg, other: &Arg) -> bool {
        match (one, other) {
            (Arg::Reg(one), Arg::Reg(other)) => self.register(*one, *other),
            (Arg::Mem(Base::Reg(one), at), Arg::Mem(Base::Reg(other), theirs)) => {
                at == theirs && self.register(*one, *other)
            }
            (Arg::Vector(one), Arg::Vector(other)) => self.arguments(one, other),
            (Arg::Box(map, one), Arg::Box(theirs, other)) => self.register(*map, *theirs) && self.arguments(one, other),
            (Arg::Special(register), _) if register.uniformity() != Uniformity::Block => false,
            _ => one == other,
        }
    }

    /// Whether two registers correspond: one of the whole block is itself, one of a role has one counterpart in the
    /// other role.
    fn register(&mut self, one: Reg, other: Reg) -> bool {
        match (self.one.assigned.get(&one), self.other.assigned.get(&other)) {
            (None, None) => one == other && self.meeting.uniformity.level(one) == Uniformity::Block,
            (Some(own), Some(theirs)) => {
                let everywhere = self.meeting.everywhere;
                everywhere.get(&one) == Some(own)
                    && everywhere.get(&other) == Some(theirs)
                    && *self.of_one.entry(one).or_insert(other) == other
                    && *self.of_other.entry(other).or_insert(one) == one
            }
            _ => false,
        }
    }
}
