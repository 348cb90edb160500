//! The builder: parameters, shared memory, variables and structured control flow. The instructions are in `ops`
//! (registers) and `memory` (loads, stores, barriers).

use super::ir::{Arg, Base, Class, Function, Inst, Node, Param, Reg, SharedVar, Source, Uniformity};
use super::modifiers::Special;
use super::table::Op;
use super::types::{
    Dim, Element, Operand, Pred, Ptr, PtrBase, Scalar, Shared, Size, Space, Stored, U32, U64, Val, Var, space,
};
use super::work::Work;
use crate::target::Target;
use kiln_shape::ParamType;
use std::panic::Location;

/// The name of the dynamic shared memory array in the printed PTX.
pub(crate) const DYNAMIC: &str = "dynamic_shared";
const DYNAMIC_INDEX: u32 = u32::MAX;
/// What stands for the dynamic shared memory behind all that the kernel takes of it.
pub(crate) const REST: &str = "dynamic_rest";
const REST_INDEX: u32 = u32::MAX - 1;

/// Writes one kernel. Every method that emits an instruction is named after its mnemonic and records the line that
/// called it.
#[derive(Debug)]
pub struct Builder {
    target: Target,
    /// Whether the kernel is one of a chain in a stream.
    pub(super) is_of_chain: bool,
    function: Function,
    /// Bodies being written, innermost last.
    open: Vec<Vec<Node>>,
    /// The work of an iteration of the loop being written, once it is said.
    work: Option<Work>,
    next: [u32; Class::ALL.len()],
    warp: Option<Val<U32>>,
    lane: Option<Val<U32>>,
    /// Bytes of dynamic shared memory taken so far.
    dynamic_bytes: u32,
    /// In a role that has a barrier of its own: its warps, and the barrier.
    team: Option<(u32, u32)>,
    /// The line to record instead of the caller's, for instructions that the builder adds to a loop.
    blame: Option<&'static Location<'static>>,
    /// First complaint about how the builder was used; reported by the verifier.
    pub(crate) misuse: Option<(String, &'static Location<'static>)>,
}

/// A kernel parameter's type: a scalar or a device pointer.
pub trait Parameter: Sized {
    /// Declares it and loads it.
    #[doc(hidden)]
    fn declare(b: &mut Builder, name: &str) -> Self::Value;
    /// What the kernel works with.
    type Value;
}

impl<T: Stored> Parameter for T {
    type Value = Val<T>;
    #[track_caller]
    fn declare(b: &mut Builder, name: &str) -> Val<T> {
        b.load_param::<T>(name, ParamType::Value(T::NUMBER))
    }
}

impl<T: Element> Parameter for Ptr<space::Global, T> {
    type Value = Self;
    #[track_caller]
    fn declare(b: &mut Builder, name: &str) -> Self {
        // A store through it makes it one to write.
        let address = b.load_param::<U64>(name, ParamType::Read(T::NUMBER));
        Ptr::new(PtrBase::Reg(address.reg), 0)
    }
}

impl Builder {
    /// A builder for the kernel `name` on `target`, with blocks of `block` threads in one dimension.
    #[track_caller]
    pub fn new(name: &str, target: Target, block: u32) -> Builder {
        Builder {
            target,
            is_of_chain: false,
            function: Function {
                name: name.to_owned(),
                params: Vec::new(),
                block,
                blocks_per_sm: None,
                shared: Vec::new(),
                dynamic_shared: 0,
                dynamic: Vec::new(),
                target_specific: false,
                body: Vec::new(),
                source: Location::caller(),
            },
            open: vec![Vec::new()],
            work: None,
            next: [0; Class::ALL.len()],
            warp: None,
            lane: None,
            dynamic_bytes: 0,
            team: None,
            blame: None,
            misuse: None,
        }
    }

    /// The target. A kernel that asks for it is built for each target anew; any other has one text for all.
    pub fn target(&mut self) -> Target {
        self.function.target_specific = true;
        self.target
    }

    /// Whether the kernel may begin before the one before it in its stream ends: one of a chain
    /// ([`Module::of_chain`](super::Module::of_chain)), from sm_90 on.
    pub fn begins_early(&mut self) -> bool {
        self.is_of_chain && self.target().sm() >= 90
    }

    /// Threads per block; in a role with a barrier of its own, the role's.
    pub fn block(&self) -> u32 {
        32 * self.warps()
    }

    /// Warps per block; in a role with a barrier of its own, the role's.
    pub fn warps(&self) -> u32 {
        self.team.map_or(self.function.block / 32, |(warps, _)| warps)
    }

    /// The barrier of the role that is being written, if it has one of its own, and its threads.
    pub(super) fn own_barrier(&self) -> Option<(u32, u32)> {
        self.team.map(|(warps, barrier)| (barrier, 32 * warps))
    }

    /// Asks the assembler to keep registers low enough for `blocks` resident blocks per SM (`.minnctapersm`).
    pub fn blocks_per_sm(&mut self, blocks: u32) {
        self.function.blocks_per_sm = Some(blocks);
    }

    /// Declares the next parameter and reads it.
    #[track_caller]
    pub fn param<P: Parameter>(&mut self, name: &str) -> P::Value {
        P::declare(self, name)
    }

    /// A dimension: a constant where it is baked, else the next `u32` parameter.
    #[track_caller]
    pub fn dim(&mut self, name: &str, dim: Dim) -> Size {
        match dim {
            Dim::Baked(value) => Size::Const(value),
            Dim::Param => Size::Reg(self.param::<U32>(name)),
        }
    }

    /// Parameters and shared variables share one space of names.
    #[track_caller]
    fn check_name(&mut self, name: &str) {
        let params = self.function.params.iter().map(|param| &param.name);
        if params.chain(self.function.shared.iter().map(|var| &var.name)).any(|taken| taken == name) {
            self.complain(format!("the name {name} is declared twice"));
        }
    }

    #[track_caller]
    fn load_param<T: Stored>(&mut self, name: &str, kind: ParamType) -> Val<T> {
        let ty = if T::CLASS == Class::B16 { T::BITS } else { T::TYPE };
        self.check_name(name);
        self.function.params.push(Param { name: name.to_owned(), ty: kind, loaded: ty });
        self.emit(Op::LdParam { ty }, vec![Arg::Mem(Base::Symbol(name.to_owned()), 0)])
    }

    /// `count` elements of static shared memory, aligned to 16 bytes, distinct from every other allocation.
    #[track_caller]
    pub fn shared<T: Element>(&mut self, name: &str, count: u32) -> Shared<T> {
        self.check_name(name);
        let bytes = count.checked_mul(T::BYTES).unwrap_or_else(|| {
            self.complain(format!("shared variable {name} of {count} elements does not fit 32 bits"));
            0
        });
        self.function.shared.push(SharedVar { name: name.to_owned(), bytes });
        Ptr::new(PtrBase::Shared(self.function.shared.len() as u32 - 1), 0)
    }

    /// `count` elements of dynamic shared memory, aligned to 128 bytes, after the dynamic memory taken before.
    /// This is what goes above 48 KB; the launch gives the size, [`Function::dynamic_shared`].
    #[track_caller]
    pub fn dynamic_shared<T: Element>(&mut self, count: u32) -> Shared<T> {
        let offset = self.dynamic_bytes;
        let end = count.checked_mul(T::BYTES).and_then(|bytes| offset.checked_add(bytes));
        match end.and_then(|end| end.checked_next_multiple_of(128)) {
            Some(end) => {
                self.function.dynamic.push((offset, end));
                self.dynamic_bytes = end;
            }
            None => self.complain(format!("dynamic shared memory of {count} elements does not fit 32 bits")),
        }
        self.function.dynamic_shared = self.function.dynamic_shared.max(self.dynamic_bytes);
        Ptr::new(PtrBase::Shared(DYNAMIC_INDEX), i64::from(offset))
    }

    /// The dynamic shared memory behind all that the kernel takes, at a multiple of 128 bytes: a launch that gives more than
    /// [`Function::dynamic_shared`] has it.
    pub fn dynamic_rest<T: Element>(&mut self) -> Shared<T> {
        self.function.dynamic.push((self.dynamic_bytes, self.dynamic_bytes));
        Ptr::new(PtrBase::Shared(REST_INDEX), 0)
    }

    /// Frees, at the end of `body`, the dynamic shared memory that `body` took: later allocations overlap it. A barrier
    /// must stand between the last use of the one and the first of the other.
    pub fn overlap<R>(&mut self, body: impl FnOnce(&mut Builder) -> R) -> R {
        let before = self.dynamic_bytes;
        let result = body(self);
        self.dynamic_bytes = before;
        result
    }

    pub(crate) fn base(&self, base: PtrBase) -> Base {
        match base {
            PtrBase::Reg(reg) => Base::Reg(reg),
            PtrBase::Shared(DYNAMIC_INDEX) => Base::Symbol(DYNAMIC.to_owned()),
            PtrBase::Shared(REST_INDEX) => Base::Symbol(REST.to_owned()),
            PtrBase::Shared(index) => Base::Symbol(self.function.shared[index as usize].name.clone()),
        }
    }

    pub(crate) fn mem<S: Space, T>(&self, ptr: Ptr<S, T>) -> Arg {
        Arg::Mem(self.base(ptr.base), ptr.offset)
    }

    #[track_caller]
    pub(crate) fn complain(&mut self, what: String) {
        let at = Location::caller();
        self.misuse.get_or_insert((what, at));
    }

    pub(crate) fn fresh<T: Scalar>(&mut self) -> Reg {
        let index = &mut self.next[T::CLASS as usize];
        *index += 1;
        Reg { class: T::CLASS, index: *index - 1 }
    }

    #[track_caller]
    pub(crate) fn push(&mut self, op: Op, dst: Vec<Arg>, src: Vec<Arg>, known: Option<Uniformity>) {
        self.node(Node::Inst(Inst { op, dst, src, known, source: self.blame.unwrap_or(Location::caller()) }));
    }

    fn node(&mut self, node: Node) {
        if let Some(body) = self.open.last_mut() {
            body.push(node);
        }
    }

    /// Emits an instruction with one result.
    #[track_caller]
    pub(crate) fn emit<T: Scalar>(&mut self, op: Op, src: Vec<Arg>) -> Val<T> {
        let reg = self.fresh::<T>();
        self.push(op, vec![Arg::Reg(reg)], src, None);
        Val::new(reg)
    }

    /// Emits an instruction whose result is this uniform by construction.
    #[track_caller]
    pub(crate) fn emit_known<T: Scalar>(&mut self, op: Op, src: Vec<Arg>, known: Uniformity) -> Val<T> {
        let reg = self.fresh::<T>();
        self.push(op, vec![Arg::Reg(reg)], src, Some(known));
        Val::new(reg)
    }

    // ---- variables

    /// A variable with its first value.
    #[track_caller]
    pub fn var<T: Scalar>(&mut self, initial: impl Operand<T>) -> Var<T> {
        let var = Var::new(self.fresh::<T>());
        self.set(var, initial);
        var
    }

    /// Assigns. The move disappears if the value was computed just before and is used nowhere else.
    #[track_caller]
    pub fn set<T: Scalar>(&mut self, var: Var<T>, value: impl Operand<T>) {
        self.push(Op::Mov { ty: T::BITS }, vec![Arg::Reg(var.reg)], vec![value.arg()], None);
    }

    /// The variable's value now, kept when the variable changes.
    #[track_caller]
    pub fn get<T: Scalar>(&mut self, var: Var<T>) -> Val<T> {
        self.emit(Op::Mov { ty: T::BITS }, vec![Arg::Reg(var.reg)])
    }

    // ---- control flow

    fn nested(&mut self, body: impl FnOnce(&mut Builder)) -> Vec<Node> {
        // Cached special registers defined inside a body are not defined after it.
        let (warp, lane) = (self.warp, self.lane);
        self.open.push(Vec::new());
        body(self);
        (self.warp, self.lane) = (warp, lane);
        self.open.pop().unwrap_or_default()
    }

    /// Runs `then` in the threads where `cond` holds.
    #[track_caller]
    pub fn if_(&mut self, cond: Val<Pred>, then: impl FnOnce(&mut Builder)) {
        let source = Location::caller();
        let then = self.nested(then);
        self.node(Node::If { cond: cond.reg, then, otherwise: Vec::new(), source });
    }

    /// Runs `then` where `cond` holds and `otherwise` where it does not.
    #[track_caller]
    pub fn if_else(&mut self, cond: Val<Pred>, then: impl FnOnce(&mut Builder), otherwise: impl FnOnce(&mut Builder)) {
        let source = Location::caller();
        let then = self.nested(then);
        let otherwise = self.nested(otherwise);
        self.node(Node::If { cond: cond.reg, then, otherwise, source });
    }

    /// `do { body } while (body's result)`.
    #[track_caller]
    pub fn do_while(&mut self, body: impl FnOnce(&mut Builder) -> Val<Pred>) {
        let source = Location::caller();
        self.loop_(source, body);
    }

    /// A lane's work in one iteration of the loop whose body is being written: what `.ci/assemble` divides the loop's
    /// instructions by.
    #[track_caller]
    pub fn each_iteration(&mut self, work: Work) {
        if self.work.replace(work).is_some() {
            self.complain("a loop's work is said twice".to_owned());
        }
    }

    #[track_caller]
    fn loop_(&mut self, source: Source, body: impl FnOnce(&mut Builder) -> Val<Pred>) {
        let mut again = None;
        let before = self.work.take();
        let body = self.nested(|b| again = Some(body(b)));
        let work = std::mem::replace(&mut self.work, before);
        if let Some(again) = again {
            self.node(Node::Loop { body, again: again.reg, work, source });
        }
    }

    /// `while (cond) { body }`. The condition is emitted twice: before the loop, and at its end, where the back edge is.
    #[track_caller]
    pub fn while_(&mut self, cond: impl Fn(&mut Builder) -> Val<Pred>, body: impl FnOnce(&mut Builder)) {
        let source = Location::caller();
        let first = cond(self);
        let inner = self.nested(|b| {
            b.loop_(source, |b| {
                body(b);
                cond(b)
            });
        });
        self.node(Node::If { cond: first.reg, then: inner, otherwise: Vec::new(), source });
    }

    /// `for (i = start; i < end; i += step) body(i)`, on the GPU. (A Rust `for` unrolls instead.)
    /// `end + step` must not overflow 32 bits.
    #[track_caller]
    pub fn for_range(
        &mut self,
        start: impl Operand<U32>,
        end: impl Operand<U32> + Copy,
        step: impl Operand<U32> + Copy,
        body: impl FnOnce(&mut Builder, Val<U32>),
    ) {
        let source = Location::caller();
        let i = self.var::<U32>(start);
        let (start, end_arg) = (self.last_constant(), end.arg());
        let surely_runs = matches!((start, end_arg), (Some(start), Arg::Int(end)) if start < end);
        let make_loop = |b: &mut Builder| {
            b.loop_(source, |b| {
                body(b, Val::new(i.reg));
                let before = b.blame.replace(source);
                let next = b.add(i, step);
                b.set(i, next);
                let again = b.setp_lt(i, end);
                b.blame = before;
                again
            });
        };
        if surely_runs {
            make_loop(self);
        } else {
            let enter = self.setp_lt(i, end);
            self.if_(enter, make_loop);
        }
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
            (role.warps, self.nested(role.body))
        });
        let roles = roles.collect();
        self.team = None;
        self.node(Node::Roles { warp: warp.reg, roles, source });
    }

    // ---- where am I

    #[track_caller]
    fn special<T: Scalar>(&mut self, register: Special) -> Val<T> {
        self.emit(Op::Mov { ty: T::TYPE }, vec![Arg::Special(register)])
    }

    /// The thread's number in its block.
    #[track_caller]
    pub fn tid(&mut self) -> Val<U32> {
        self.special(Special::Tid)
    }

    /// The lane's number in its warp.
    #[track_caller]
    pub fn lane(&mut self) -> Val<U32> {
        if let Some(lane) = self.lane {
            return lane;
        }
        let tid = self.tid();
        let lane = self.and(tid, 31);
        self.lane = Some(lane);
        lane
    }

    /// The warp's number in its block: `tid / 32`, warp-uniform by construction.
    #[track_caller]
    pub fn warp_id(&mut self) -> Val<U32> {
        if let Some(warp) = self.warp {
            return warp;
        }
        let tid = self.tid();
        let shift = Op::Shr { ty: U32::TYPE };
        let warp = self.emit_known(shift, vec![tid.arg(), Arg::Int(5)], Uniformity::Warp);
        self.warp = Some(warp);
        warp
    }

    /// The block's x in the grid.
    #[track_caller]
    pub fn ctaid_x(&mut self) -> Val<U32> {
        self.special(Special::CtaidX)
    }

    /// The block's y in the grid.
    #[track_caller]
    pub fn ctaid_y(&mut self) -> Val<U32> {
        self.special(Special::CtaidY)
    }

    /// The block's z in the grid.
    #[track_caller]
    pub fn ctaid_z(&mut self) -> Val<U32> {
        self.special(Special::CtaidZ)
    }

    /// Nanoseconds of the device's clock, which moves in steps of its own.
    #[track_caller]
    pub fn globaltimer(&mut self) -> Val<U64> {
        self.special(Special::Globaltimer)
    }

    /// Blocks of the grid in x.
    #[track_caller]
    pub fn nctaid_x(&mut self) -> Val<U32> {
        self.special(Special::NctaidX)
    }

    /// Closes the kernel.
    pub(crate) fn finish(mut self) -> (Function, Option<(String, &'static Location<'static>)>) {
        if self.work.is_some() {
            self.complain("work of an iteration is said outside of every loop".to_owned());
        }
        self.function.body = self.open.pop().unwrap_or_default();
        super::coalesce::moves(&mut self.function);
        (self.function, self.misuse)
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
