//! The builder: parameters, shared memory, variables and structured control flow. The instructions are in `ops`
//! (registers) and `memory` (loads, stores, barriers).

use super::ir::{Arg, Base, Class, Function, Inst, Node, Param, Reg, SharedVar, Source, Uniformity};
use super::modifiers::{LoadKind, Special};
use super::names::is_identifier;
use super::table::Op;
use super::types::{
    Dim, Element, Operand, Ptr, PtrBase, Scalar, Shared, Size, Space, Stored, U32, U64, Val, Var, space,
};
use super::work::Work;
use crate::target::Target;
use kiln_shape::ParamType;
use kiln_shape::ring::ColumnMemory;
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
    pub(super) open: Vec<Vec<Node>>,
    /// The work of an iteration of the loop being written, once it is said.
    pub(super) work: Option<Work>,
    /// Whether the loop being written stays rolled.
    pub(super) rolled: bool,
    next: [u32; Class::ALL.len()],
    pub(super) warp: Option<Val<U32>>,
    pub(super) lane: Option<Val<U32>>,
    /// Bytes of dynamic shared memory taken so far.
    dynamic_bytes: u32,
    /// In a role that has a barrier of its own: its warps, and the barrier.
    pub(super) team: Option<(u32, u32)>,
    /// The line to record instead of the caller's, for instructions that the builder adds to a loop.
    pub(super) blame: Option<Source>,
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

#[inline(never)]
fn listed<const N: usize>(args: [Arg; N]) -> Vec<Arg> {
    args.into()
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
                column_shared: ColumnMemory::NONE,
                dynamic: Vec::new(),
                target_specific: false,
                body: Vec::new(),
                source: Location::caller(),
            },
            open: vec![Vec::new()],
            work: None,
            rolled: false,
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

    /// The kind of loads by which what earlier launches wrote can be read, where the kernel begins early behind its wait for
    /// them.
    pub fn kind_of_earlier(&mut self) -> LoadKind {
        if self.begins_early() { LoadKind::Settled } else { LoadKind::Constant }
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
        if !is_identifier(name) {
            self.complain(format!("the name {name:?} needs a letter or `_`, then letters, digits and `_`"));
        }
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
        self.emit(Op::LdParam { ty }, [Arg::Mem(Base::Symbol(name.to_owned()), 0)])
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

    /// The dynamic shared memory behind all that the kernel takes, at a multiple of 128 bytes: a launch that gives more
    /// than [`Function::dynamic_shared`] has it.
    pub fn dynamic_rest<T: Element>(&mut self) -> Shared<T> {
        self.function.dynamic.push((self.dynamic_bytes, self.dynamic_bytes));
        Ptr::new(PtrBase::Shared(REST_INDEX), 0)
    }

    /// Bytes of dynamic shared memory that are taken here.
    pub(crate) const fn dynamic_taken(&self) -> u32 {
        self.dynamic_bytes
    }

    /// Says what shared memory a launch gives, behind all others, for columns.
    pub(crate) const fn shared_of_columns(&mut self, of: ColumnMemory) {
        self.function.column_shared = of;
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
        self.register(T::CLASS)
    }

    fn register(&mut self, class: Class) -> Reg {
        let index = &mut self.next[class as usize];
        *index += 1;
        Reg { class, index: *index - 1 }
    }

    #[track_caller]
    pub(crate) fn push<const D: usize, const S: usize>(
        &mut self,
        op: Op,
        dst: [Arg; D],
        src: [Arg; S],
        known: Option<Uniformity>,
    ) {
        self.inst(op, listed(dst), listed(src), known, Location::caller());
    }

    // Methods that emit are instantiated for each kind of operand and called from everywhere: what all of them do is kept
    // out of line, for the time that the crate takes to build.
    #[inline(never)]
    fn inst(&mut self, op: Op, dst: Vec<Arg>, src: Vec<Arg>, known: Option<Uniformity>, caller: Source) {
        self.node(Node::Inst(Inst { op, dst, src, known, source: self.blame.unwrap_or(caller) }));
    }

    #[inline(never)]
    pub(super) fn node(&mut self, node: Node) {
        if let Some(body) = self.open.last_mut() {
            body.push(node);
        }
    }

    /// Emits an instruction with one result.
    #[track_caller]
    pub(crate) fn emit<T: Scalar, const S: usize>(&mut self, op: Op, src: [Arg; S]) -> Val<T> {
        Val::new(self.result(T::CLASS, op, listed(src), None, Location::caller()))
    }

    /// Emits an instruction whose result is this uniform by construction.
    #[track_caller]
    pub(crate) fn emit_known<T: Scalar, const S: usize>(&mut self, op: Op, src: [Arg; S], known: Uniformity) -> Val<T> {
        Val::new(self.result(T::CLASS, op, listed(src), Some(known), Location::caller()))
    }

    #[inline(never)]
    fn result(&mut self, class: Class, op: Op, src: Vec<Arg>, known: Option<Uniformity>, caller: Source) -> Reg {
        let reg = self.register(class);
        self.inst(op, vec![Arg::Reg(reg)], src, known, caller);
        reg
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
        self.push(Op::Mov { ty: T::BITS }, [Arg::Reg(var.reg)], [value.arg()], None);
    }

    /// The variable's value now, kept when the variable changes.
    #[track_caller]
    pub fn get<T: Scalar>(&mut self, var: Var<T>) -> Val<T> {
        self.emit(Op::Mov { ty: T::BITS }, [Arg::Reg(var.reg)])
    }

    // ---- where am I

    #[track_caller]
    fn special<T: Scalar>(&mut self, register: Special) -> Val<T> {
        self.emit(Op::Mov { ty: T::TYPE }, [Arg::Special(register)])
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
        let warp = self.emit_known(shift, [tid.arg(), Arg::Int(5)], Uniformity::Warp);
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
        if self.rolled {
            self.complain("there is no loop to keep rolled".to_owned());
        }
        self.function.body = self.open.pop().unwrap_or_default();
        super::repeat::remove(&mut self.function);
        super::coalesce::moves(&mut self.function);
        (self.function, self.misuse)
    }
}
