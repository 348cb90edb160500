//! Holds a kernel to the rules that an assembler cannot check or reports without the kernel's line:
//!
//! 1. a block has 32 to 1024 threads, in whole warps;
//! 2. every register is defined before use on every path;
//! 3. an instruction has the operands and results of its row in the table, and accesses to memory have constant offsets
//!    that are multiples of their size;
//! 4. static shared memory fits 48 KB, and with the dynamic memory the target's limit;
//! 5. a barrier stands only under control flow as uniform as its participants, and so do exchanges between lanes; the
//!    whole block leaves together, or a whole role that shares no barrier with others, behind which the block has none;
//! 6. inside `roles` a barrier names its participants, and the roles that wait at it add up to its count; outside, its
//!    count is the block's;
//! 7. roles come to the barriers they share in one order and equally often, and a barrier's number means the same warps
//!    in the whole kernel;
//! 8. what is loaded as constant is stored to nowhere in the kernel, or, in shared memory, beyond a barrier;
//! 9. the target has every instruction;
//! 10. a kernel of a programmatic chain waits for the launches before it outside branches and loops, and before that it
//!     writes no device memory, loads nothing by the kind that is for what they may have written, and ends no thread. What
//!     it copies to shared memory is not looked at.

use super::ir::{self, Arg, Function, Inst, Node, Reg, RegMap, Source, Uniformity, Warps, by_warps};
use super::modifiers::{LoadKind, StateSpace};
use super::table::{Convergence, Effect, Needs, Op, Row, Slot};
use super::{constant, rendezvous, uniform};
use crate::error::{Error, Result};
use crate::target::Target;
use std::collections::{BTreeMap, BTreeSet};

/// What the verifier learned on the way: what the printer needs.
#[derive(Debug)]
pub(crate) struct Verified {
    pub(crate) uniformity: uniform::Map,
    /// What all the instructions need together.
    pub(crate) needs: Needs,
    /// The instruction that needs the newest compute capability, if one needs more than every target has.
    newest: Option<(Op, Source)>,
    /// The places of the parameters through which it stores.
    pub(crate) written: BTreeSet<usize>,
}

/// Checks `function` for `target`.
pub(crate) fn verify(function: &Function, target: Target) -> Result<Verified> {
    let fault = |what: String, source: Source| Err(Error::Kernel { kernel: function.name.clone(), what, source });
    shared_memory(function, target)?;
    if function.block < 32 || function.block > 1024 || !function.block.is_multiple_of(32) {
        let what = format!("a block of {} threads: needs whole warps, 32 to 1024 threads", function.block);
        return fault(what, function.source);
    }
    let uniformity = uniform::of(function);
    let mut check = Check {
        function,
        uniformity: &uniformity,
        warps: function.warps(),
        left: None,
        barriers: BTreeMap::new(),
        defined: RegMap::default(),
        needs: Needs::BASE,
        newest: None,
        target,
        problem: None,
    };
    check.nodes(&function.body, Uniformity::Block, None);
    if let Some((what, source)) = check.problem {
        return fault(what, source);
    }
    if let Err((what, source)) = chain(&function.body) {
        return fault(what, source);
    }
    let (needs, newest) = (check.needs, check.newest);
    let written = match constant::check(function, &uniformity) {
        Ok(written) => written,
        Err((what, source)) => return fault(what, source),
    };
    Ok(Verified { uniformity, needs, newest, written })
}

/// Rule 4.
fn shared_memory(function: &Function, target: Target) -> Result<()> {
    let fault = |what: String, source: Source| Err(Error::Kernel { kernel: function.name.clone(), what, source });
    let (stat, dynamic) = (function.static_shared(), function.dynamic_shared());
    if stat > 48 << 10 {
        let what = format!("{stat} bytes of static shared memory: at most 49152, take dynamic shared memory instead");
        return fault(what, function.source);
    }
    if stat.saturating_add(dynamic) > target.shared_per_block() {
        let limit = target.shared_per_block();
        let what = format!("{stat} + {dynamic} bytes of shared memory: {target} has {limit} per block");
        return Err(Error::SharedMemory { kernel: function.name.clone(), what, source: function.source });
    }
    Ok(())
}

/// Rule 10.
fn chain(body: &[Node]) -> std::result::Result<(), (String, Source)> {
    let (wait, trigger) = (Op::GriddepcontrolWait, Op::GriddepcontrolLaunchDependents);
    let is_settled = |inst: &Inst| matches!(inst.op, Op::Ld { kind: LoadKind::Settled, .. });
    let mut first = None;
    ir::instructions(body, &mut |inst| {
        if inst.op == wait || inst.op == trigger || is_settled(inst) {
            first.get_or_insert(inst);
        }
    });
    let Some(first) = first else { return Ok(()) };
    let Some(at) = body.iter().position(|node| matches!(node, Node::Inst(inst) if inst.op == wait)) else {
        return Err((format!("{} without a {wait} outside branches and loops", first.op), first.source));
    };
    let mut early = None;
    ir::instructions(&body[..at], &mut |inst| {
        let row = inst.op.row();
        // A copy to shared memory reads device memory.
        let copies = row.results.iter().any(|slot| matches!(slot, Slot::Address(StateSpace::Shared, _)));
        let stores = row.effect == Effect::Stores && !copies;
        let writes = stores && row.results.iter().chain(row.operands.iter()).any(is_of_device);
        if writes || is_settled(inst) || inst.op == Op::Exit {
            early.get_or_insert(inst);
        }
    });
    early.map_or(Ok(()), |inst| Err((format!("{} before the {wait} that all threads come to", inst.op), inst.source)))
}

/// Whether a slot is an address in device memory.
fn is_of_device(slot: Slot) -> bool {
    matches!(slot, Slot::Address(StateSpace::Global, _))
}

/// Checks a function that was verified for one target, and did not look at it, for another: rules 4 and 9.
pub(crate) fn fits(function: &Function, verified: &Verified, target: Target) -> Result<()> {
    shared_memory(function, target)?;
    match verified.newest {
        Some((op, source)) if !op.row().needs.met_by(target) => {
            Err(Error::Kernel { kernel: function.name.clone(), what: lacking(op, target), source })
        }
        _ => Ok(()),
    }
}

fn lacking(op: Op, target: Target) -> String {
    format!("{op} needs sm_{}: {target} lacks it", op.row().needs.sm)
}

struct Check<'a> {
    function: &'a Function,
    uniformity: &'a uniform::Map,
    /// The warps that run what is being checked.
    warps: Warps,
    /// Where a role ends threads.
    left: Option<Source>,
    /// The warps that wait at each barrier, and where.
    barriers: BTreeMap<u32, (Vec<Warps>, Source)>,
    defined: RegMap<bool>,
    needs: Needs,
    newest: Option<(Op, Source)>,
    target: Target,
    problem: Option<(String, Source)>,
}

/// The role an instruction stands in: its threads, and where the threads at each barrier are added up.
struct RoleContext<'a> {
    threads: u32,
    waiting: &'a mut BTreeMap<u32, (u32, BTreeSet<usize>, Source)>,
    /// Where it ends threads.
    leaves: Option<Source>,
    role: usize,
}

impl Check<'_> {
    fn complain(&mut self, what: String, source: Source) {
        self.problem.get_or_insert((what, source));
    }

    fn nodes(&mut self, nodes: &[Node], control: Uniformity, mut role: Option<&mut RoleContext<'_>>) -> Vec<Reg> {
        let mut added = Vec::new();
        for node in nodes {
            match node {
                Node::Inst(inst) => self.instruction(inst, control, role.as_deref_mut(), &mut added),
                Node::If { cond, then, otherwise, source } => {
                    self.used(*cond, source);
                    let control = control.max(self.uniformity.level_in(self.warps, *cond));
                    let first = self.nodes(then, control, role.as_deref_mut());
                    self.forget(&first);
                    let second = self.nodes(otherwise, control, role.as_deref_mut());
                    self.forget(&second);
                    for reg in first.into_iter().filter(|reg| second.contains(reg)) {
                        self.define(reg, &mut added);
                    }
                }
                Node::Loop { body, again, source, .. } => {
                    let control = control.max(self.uniformity.level_in(self.warps, *again));
                    let inner = self.nodes(body, control, role.as_deref_mut());
                    self.used(*again, source);
                    added.extend(inner);
                }
                Node::Roles { warp, roles, source } => {
                    self.used(*warp, source);
                    if control != Uniformity::Block || role.is_some() {
                        self.complain("roles must be split in code that the whole block runs".to_owned(), source);
                    }
                    self.roles(roles, source);
                }
            }
        }
        added
    }

    fn roles(&mut self, roles: &[(u32, Vec<Node>)], source: Source) {
        let mut waiting = BTreeMap::new();
        let mut leaving = Vec::new();
        for (index, (warps, body)) in by_warps(roles).enumerate() {
            let threads = warps.threads();
            let mut context = RoleContext { threads, waiting: &mut waiting, leaves: None, role: index };
            let outside = std::mem::replace(&mut self.warps, warps);
            let inner = self.nodes(body, Uniformity::Block, Some(&mut context));
            leaving.extend(context.leaves.map(|source| (index, source)));
            self.warps = outside;
            self.forget(&inner);
        }
        for (role, source) in leaving {
            self.left.get_or_insert(source);
            if let Some((barrier, _)) = waiting.iter().find(|(_, (_, at, _))| at.contains(&role) && at.len() > 1) {
                self.complain(format!("a role ends that shares barrier {barrier} with others"), source);
            }
        }
        let ranges: Vec<Warps> = by_warps(roles).map(|(warps, _)| warps).collect();
        for (barrier, (threads, at, source)) in &waiting {
            let arriving: u32 = at.iter().map(|role| ranges[*role].threads()).sum();
            if arriving != *threads {
                let what =
                    format!("barrier {barrier} counts {threads} threads, but the roles that wait have {arriving}");
                self.complain(what, source);
            }
            self.meaning(*barrier, at.iter().map(|role| ranges[*role]), source);
        }
        let waiting = waiting.into_iter().map(|(barrier, (_, at, _))| (barrier, at)).collect();
        let everywhere = rendezvous::definitions(&self.function.body);
        if let Err((what, source)) = rendezvous::check(roles, &waiting, &everywhere, self.uniformity, source) {
            self.complain(what, source);
        }
    }

    /// Holds a barrier's number to the warps that it was first used by: others could come to it before these are through.
    fn meaning(&mut self, barrier: u32, warps: impl Iterator<Item = Warps>, source: Source) {
        let mut joined: Vec<Warps> = Vec::new();
        for warps in warps {
            match joined.last_mut() {
                Some(last) if last.end == warps.first => last.end = warps.end,
                _ => joined.push(warps),
            }
        }
        let (first, at) = self.barriers.entry(barrier).or_insert_with(|| (joined.clone(), source));
        if *first != joined {
            let [here, there] = [&joined, first].map(|all| {
                let ranges: Vec<String> =
                    all.iter().map(|warps| format!("{} to {}", warps.first, warps.end - 1)).collect();
                ranges.join(", ")
            });
            let what = format!(
                "barrier {barrier} is for warps {here} here and for warps {there} at {at}: take another number"
            );
            self.complain(what, source);
        }
    }

    fn instruction(
        &mut self,
        inst: &Inst,
        control: Uniformity,
        role: Option<&mut RoleContext<'_>>,
        added: &mut Vec<Reg>,
    ) {
        let source = inst.source;
        inst.operands(&mut |reg| self.used(reg, source));
        inst.results(&mut |reg| self.define(reg, added));
        let row = inst.op.row();
        self.shape(inst, &row);
        if row.needs.sm > self.needs.sm {
            self.newest = Some((inst.op, source));
        }
        self.needs = self.needs.max(row.needs);
        if !row.needs.met_by(self.target) {
            self.complain(lacking(inst.op, self.target), source);
        }
        match row.convergence {
            Convergence::Free => {}
            Convergence::Warp if control > Uniformity::Warp => {
                self.complain(format!("{} under lane-varying control flow", inst.op), source);
            }
            Convergence::Warp => {}
            Convergence::Block | Convergence::Barrier if control > Uniformity::Block => {
                self.complain(format!("{} under {control} control flow", inst.op), source);
            }
            Convergence::Block => match role {
                Some(role) if inst.op == Op::Exit => role.leaves = role.leaves.or(Some(source)),
                Some(_) => self.complain(format!("{} inside a role: the others would wait for it", inst.op), source),
                None => {}
            },
            Convergence::Barrier => self.barrier(inst, role),
        }
    }

    /// Rule 6.
    fn barrier(&mut self, inst: &Inst, role: Option<&mut RoleContext<'_>>) {
        let source = inst.source;
        let Some((barrier, threads)) = inst.barrier() else { return };
        match (role, threads) {
            (None, threads) => {
                if let Some(left) = self.left {
                    let what = format!("a barrier of the block behind roles of which one ends at {left}");
                    self.complain(what, source);
                }
                let block = self.function.block;
                if threads.is_some_and(|threads| threads != block) {
                    let what = format!("barrier {barrier} outside roles: the whole block waits, {block} threads");
                    self.complain(what, source);
                }
                self.meaning(barrier, std::iter::once(self.function.warps()), source);
            }
            (Some(_), None) => {
                self.complain("a barrier inside a role must name its participants".to_owned(), source);
            }
            (Some(role), Some(threads)) => {
                let entry = role.waiting.entry(barrier).or_insert((threads, BTreeSet::new(), source));
                entry.1.insert(role.role);
                if entry.0 != threads || threads < role.threads {
                    let what = format!("barrier {barrier} is waited at with different counts: {threads}");
                    self.complain(what, source);
                }
            }
        }
    }

    /// Rule 3.
    fn shape(&mut self, inst: &Inst, row: &Row) {
        if !row.results.hold(&inst.dst, Slot::writes) || !row.operands.hold(&inst.src, Slot::reads) {
            let what = format!("{} with other operands or results than its row in the table", inst.op);
            self.complain(what, inst.source);
        }
        let slots = row.results.iter().chain(row.operands.iter());
        for (arg, slot) in inst.dst.iter().chain(&inst.src).zip(slots) {
            if let (Arg::Mem(_, offset), Slot::Address(_, size)) = (arg, slot)
                && offset % i64::from(size) != 0
            {
                let what = format!("{} at offset {offset}, which is not a multiple of {size}", inst.op);
                self.complain(what, inst.source);
            }
        }
    }

    fn used(&mut self, reg: Reg, source: Source) {
        if !self.defined.get(reg) {
            self.complain(format!("{reg} is used where it is not defined on every path"), source);
        }
    }

    fn define(&mut self, reg: Reg, added: &mut Vec<Reg>) {
        let defined = self.defined.entry(reg);
        if !*defined {
            *defined = true;
            added.push(reg);
        }
    }

    fn forget(&mut self, regs: &[Reg]) {
        regs.iter().for_each(|reg| *self.defined.entry(*reg) = false);
    }
}
