//! Structured control flow: branches, loops, and warps with roles.
//!
//! Methods that take a body are instantiated for each body. What does not depend on it is kept out of them, for the time
//! that the crate takes to build.

use super::builder::Builder;
use super::ir::{Arg, Inst, Node, Reg, Source};
use super::types::{Operand, Pred, U32, Val, Var};
use super::work::Work;
use std::panic::Location;

/// What is put back when a body ends. Cached special registers defined inside a body are not defined after it.
struct Outside {
    warp: Option<Val<U32>>,
    lane: Option<Val<U32>>,
}

/// A loop whose body is being written.
struct Loop {
    outside: Outside,
    /// The work of the loop around it, and whether that stays rolled.
    work: Option<Work>,
    rolled: bool,
    source: Source,
}

/// A loop over a range whose body is being written.
struct Range {
    i: Var<U32>,
    end: Arg,
    step: Arg,
    /// The test that guards the loop, unless it surely runs.
    enter: Option<(Reg, Outside)>,
    body: Loop,
}

impl Builder {
    fn begin(&mut self) -> Outside {
        self.open.push(Vec::new());
        Outside { warp: self.warp, lane: self.lane }
    }

    fn end(&mut self, outside: Outside) -> Vec<Node> {
        (self.warp, self.lane) = (outside.warp, outside.lane);
        self.open.pop().unwrap_or_default()
    }

    #[inline(never)]
    fn end_if(&mut self, cond: Reg, outside: Outside, source: Source) {
        let then = self.end(outside);
        self.node(Node::If { cond, then, otherwise: Vec::new(), source });
    }

    #[inline(never)]
    fn begin_loop(&mut self, source: Source) -> Loop {
        let (work, rolled) = (self.work.take(), std::mem::take(&mut self.rolled));
        Loop { outside: self.begin(), work, rolled, source }
    }

    #[inline(never)]
    fn end_loop(&mut self, ended: Loop, again: Reg) {
        let body = self.end(ended.outside);
        let work = std::mem::replace(&mut self.work, ended.work);
        let rolled = std::mem::replace(&mut self.rolled, ended.rolled);
        self.node(Node::Loop { body, again, work, rolled, source: ended.source });
    }

    #[inline(never)]
    fn begin_range(&mut self, start: Arg, end: Arg, step: Arg, source: Source) -> Range {
        let before = self.blame.replace(source);
        let i = self.var::<U32>(Given(start));
        let surely_runs = matches!((self.last_constant(), &end), (Some(start), Arg::Int(end)) if start < *end);
        let enter = (!surely_runs).then(|| {
            let enter = self.setp_lt::<U32>(i, Given(end.clone())).reg;
            (enter, self.begin())
        });
        self.blame = before;
        Range { i, end, step, enter, body: self.begin_loop(source) }
    }

    #[inline(never)]
    fn end_range(&mut self, ended: Range) {
        let Range { i, end, step, enter, body } = ended;
        let source = body.source;
        let before = self.blame.replace(source);
        let next = self.add::<U32>(i, Given(step));
        self.set(i, next);
        let again = self.setp_lt::<U32>(i, Given(end));
        self.blame = before;
        self.end_loop(body, again.reg);
        if let Some((enter, outside)) = enter {
            self.end_if(enter, outside, source);
        }
    }

    /// Runs `then` in the threads where `cond` holds.
    #[track_caller]
    pub fn if_(&mut self, cond: Val<Pred>, then: impl FnOnce(&mut Builder)) {
        let source = Location::caller();
        let outside = self.begin();
        then(self);
        self.end_if(cond.reg, outside, source);
    }

    /// Runs `then` where `cond` holds and `otherwise` where it does not.
    #[track_caller]
    pub fn if_else(&mut self, cond: Val<Pred>, then: impl FnOnce(&mut Builder), otherwise: impl FnOnce(&mut Builder)) {
        let source = Location::caller();
        let outside = self.begin();
        then(self);
        let then = self.end(outside);
        let outside = self.begin();
        otherwise(self);
        let otherwise = self.end(outside);
        self.node(Node::If { cond: cond.reg, then, otherwise, source });
    }

    /// `do { body } while (body's result)`.
    #[track_caller]
    pub fn do_while(&mut self, body: impl FnOnce(&mut Builder) -> Val<Pred>) {
        let begun = self.begin_loop(Location::caller());
        let again = body(self);
        self.end_loop(begun, again.reg);
    }

    /// A lane's work in one iteration of the loop whose body is being written: what `.ci/assemble` divides the loop's
    /// instructions by.
    #[track_caller]
    pub fn each_iteration(&mut self, work: Work) {
        if self.work.replace(work).is_some() {
            self.complain("a loop's work is said twice".to_owned());
        }
    }

    /// Has the assembler leave the loop whose body is being written as it is. It unrolls short loops four times, which costs
    /// checks where there is one iteration.
    pub fn keep_rolled(&mut self) {
        self.rolled = true;
    }

    /// `while (cond) { body }`. The condition is emitted twice: before the loop, and at its end, where the back edge is.
    #[track_caller]
    pub fn while_(&mut self, cond: impl Fn(&mut Builder) -> Val<Pred>, body: impl FnOnce(&mut Builder)) {
        let source = Location::caller();
        let first = cond(self);
        let outside = self.begin();
        let begun = self.begin_loop(source);
        body(self);
        let again = cond(self);
        self.end_loop(begun, again.reg);
        self.end_if(first.reg, outside, source);
    }

    /// `for (i = start; i < end; i += step) body(i)`, on the GPU. (A Rust `for` unrolls instead.)
    /// `end + step` must not overflow 32 bits.
    #[track_caller]
    pub fn for_range(
        &mut self,
        start: impl Operand<U32>,
        end: impl Operand<U32>,
        step: impl Operand<U32>,
        body: impl FnOnce(&mut Builder, Val<U32>),
    ) {
        let range = self.begin_range(start.arg(), end.arg(), step.arg(), Location::caller());
        body(self, Val::new(range.i.reg));
        self.end_range(range);
    }

    /// The constant that the instruction just emitted has moved, if it was such a move.
    fn last_constant(&self) -> Option<i64> {
        match self.open.last()?.last()? {
            Node::Inst(Inst { src, .. }) => match src.as_slice() {
                [Arg::Int(value)] => Some(*value),
                _ => None,
            },
            _ => None,
        }
    }

    /// Splits the block by warps: for each role in order, that many consecutive warps run its body. A barrier inside
    /// must name its participants, [`Builder::bar_sync_threads`], and count those of the role alone or of several; one of a
    /// role with a barrier of its own is that.
    #[track_caller]
    pub fn roles(&mut self, roles: Vec<Role<'_>>) {
        let source = Location::caller();
        let warp = self.warp_id();
        let warps: u32 = roles.iter().map(|role| role.warps).sum();
        if warps != self.warps() {
            self.complain(format!("roles cover {warps} warps of a block of {}", self.warps()));
        }
        let roles = roles.into_iter().map(|role| {
            self.team = role.barrier.map(|barrier| (role.warps, barrier));
            let outside = self.begin();
            (role.body)(self);
            (role.warps, self.end(outside))
        });
        let roles = roles.collect();
        self.team = None;
        self.node(Node::Roles { warp: warp.reg, roles, source });
    }
}

/// An operand that is one already.
struct Given(Arg);

impl Operand<U32> for Given {
    fn arg(self) -> Arg {
        self.0
    }
}

/// Warps that do one job: see [`Builder::roles`].
pub struct Role<'a> {
    warps: u32,
    barrier: Option<u32>,
    body: Box<dyn FnOnce(&mut Builder) + 'a>,
}

impl<'a> Role<'a> {
    /// `warps` consecutive warps run `body`.
    pub fn new(warps: u32, body: impl FnOnce(&mut Builder) + 'a) -> Role<'a> {
        Role { warps, barrier: None, body: Box::new(body) }
    }

    /// The role with a barrier of its own, of that number from 1 on: its body is written as a block's is, with
    /// [`Builder::bar_sync`], [`Builder::warps`] and [`Builder::block`] for the role's warps.
    pub fn with_barrier(self, barrier: u32) -> Role<'a> {
        Role { barrier: Some(barrier), ..self }
    }
}
