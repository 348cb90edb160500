//! Loads, stores, atomics, fences and barriers.

use super::builder::Builder;
use super::ir::{Arg, Convergence, Spread, Uniformity};
use super::types::{Element, Global, Operand, Pred, Ptr, PtrBase, S32, Scalar, Shared, Space, U32, U64, Val};

/// What a load may assume. It is an argument of the blocks that read device memory, because the same block serves short
/// kernels, to which everything written before is constant, and the persistent one, which writes what it later reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadKind {
    /// An ordinary load: the data may be written during the launch, ordered by barriers or fences.
    Ordinary,
    /// The data does not change: device memory during the whole launch (`.nc`, the read-only path), shared memory
    /// between the barriers around the load. The value at a uniform address is uniform.
    Constant,
    /// As `Constant`, read once: does not displace other data from L1.
    Streaming,
}

/// The threads among which an access or a fence orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The block.
    Cta,
    /// The device.
    Gpu,
    /// The devices and the host.
    Sys,
}

impl Scope {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Scope::Cta => "cta",
            Scope::Gpu => "gpu",
            Scope::Sys => "sys",
        }
    }
}

/// The strength of a synchronising load or store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Single-copy atomic, no order.
    Relaxed,
    /// Loads: what the releasing thread did before is visible after.
    Acquire,
    /// Stores: what was done before is visible to the acquiring thread.
    Release,
}

impl Order {
    const fn name(self) -> &'static str {
        match self {
            Order::Relaxed => "relaxed",
            Order::Acquire => "acquire",
            Order::Release => "release",
        }
    }
}

/// Read-modify-write operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicOp {
    /// Sum.
    Add,
    /// Maximum.
    Max,
    /// Bitwise or.
    Or,
    /// Exchange.
    Exch,
}

impl AtomicOp {
    const fn name(self) -> &'static str {
        match self {
            AtomicOp::Add => "add",
            AtomicOp::Max => "max",
            AtomicOp::Or => "or",
            AtomicOp::Exch => "exch",
        }
    }
}

impl Builder {
    fn load_mnemonic<S: Space>(&mut self, kind: LoadKind, vector: &str, ty: &str) -> (String, Spread) {
        let (modifier, spread) = match (kind, S::NAME) {
            (LoadKind::Constant, "global") => (".nc", Spread::Operands),
            // The cache hint needs PTX 7.4, which reaches drivers from 2021 on.
            (LoadKind::Streaming, "global") => (".nc.L1::no_allocate", Spread::Operands),
            // Shared memory that no thread writes between the barriers around the load.
            (LoadKind::Constant, _) => ("", Spread::Operands),
            // A value that may be written meanwhile is only as uniform as one thread's look at it.
            _ => ("", Spread::AtLeast(Uniformity::Lane)),
        };
        (format!("ld.{}{modifier}{vector}.{ty}", S::NAME), spread)
    }

    /// Loads one element.
    #[track_caller]
    pub fn ld<S: Space, T: Element>(&mut self, ptr: Ptr<S, T>, kind: LoadKind) -> Val<T::Loaded> {
        let (mnemonic, spread) = self.load_mnemonic::<S>(kind, "", T::NAME);
        let src = vec![self.mem(ptr)];
        self.emit_spread(mnemonic, src, spread)
    }

    /// Loads `N` (2 or 4) neighbouring elements at an address that is a multiple of their joint size.
    #[track_caller]
    pub fn ld_vector<S: Space, T: Element, const N: usize>(
        &mut self,
        ptr: Ptr<S, T>,
        kind: LoadKind,
    ) -> [Val<T::Loaded>; N] {
        let (mnemonic, spread) = self.load_mnemonic::<S>(kind, &format!(".v{N}"), T::NAME);
        let values: [Val<T::Loaded>; N] = std::array::from_fn(|_| Val::new(self.fresh::<T::Loaded>()));
        let dst = vec![Arg::Vector(values.iter().map(|value| value.arg()).collect())];
        let src = vec![self.mem(ptr)];
        self.push(mnemonic, dst, src, spread, Convergence::None);
        values
    }

    /// Stores one element.
    #[track_caller]
    pub fn st<S: Space, T: Element>(&mut self, ptr: Ptr<S, T>, value: impl Operand<T::Loaded>) {
        let dst = vec![self.mem(ptr)];
        let mnemonic = format!("st.{}.{}", S::NAME, T::NAME);
        self.push(mnemonic, dst, vec![value.arg()], Spread::Operands, Convergence::None);
    }

    /// Stores `N` (2 or 4) neighbouring elements at an address that is a multiple of their joint size.
    #[track_caller]
    pub fn st_vector<S: Space, T: Element, const N: usize>(&mut self, ptr: Ptr<S, T>, values: [Val<T::Loaded>; N]) {
        let dst = vec![self.mem(ptr)];
        let src = vec![Arg::Vector(values.iter().map(|value| value.arg()).collect())];
        let mnemonic = format!("st.{}.v{N}.{}", S::NAME, T::NAME);
        self.push(mnemonic, dst, src, Spread::Operands, Convergence::None);
    }

    /// A synchronising load: `ld.acquire.gpu`, `ld.relaxed.sys`.
    #[track_caller]
    pub fn ld_sync<T: Element>(&mut self, ptr: Global<T>, order: Order, scope: Scope) -> Val<T::Loaded> {
        let src = vec![self.mem(ptr)];
        let mnemonic = format!("ld.{}.{}.global.{}", order.name(), scope.name(), T::NAME);
        self.emit_spread(mnemonic, src, Spread::AtLeast(Uniformity::Lane))
    }

    /// A synchronising store: `st.release.gpu`, `st.relaxed.sys`.
    #[track_caller]
    pub fn st_sync<T: Element>(&mut self, ptr: Global<T>, value: impl Operand<T::Loaded>, order: Order, scope: Scope) {
        let dst = vec![self.mem(ptr)];
        let mnemonic = format!("st.{}.{}.global.{}", order.name(), scope.name(), T::NAME);
        self.push(mnemonic, dst, vec![value.arg()], Spread::Operands, Convergence::None);
    }

    /// A relaxed read-modify-write whose old value is not wanted.
    #[track_caller]
    pub fn red<T: Element>(&mut self, op: AtomicOp, ptr: Global<T>, value: impl Operand<T::Loaded>, scope: Scope) {
        let dst = vec![self.mem(ptr)];
        let ty = if op == AtomicOp::Or { <T::Loaded as Scalar>::BITS } else { T::NAME };
        let mnemonic = format!("red.relaxed.{}.global.{}.{ty}", scope.name(), op.name());
        self.push(mnemonic, dst, vec![value.arg()], Spread::Operands, Convergence::None);
    }

    /// A read-modify-write that gives the old value; `semantics` is `relaxed`, `acquire`, `release` or `acq_rel`.
    #[track_caller]
    pub fn atom<T: Element>(
        &mut self,
        op: AtomicOp,
        semantics: &str,
        ptr: Global<T>,
        value: impl Operand<T::Loaded>,
        scope: Scope,
    ) -> Val<T::Loaded> {
        let src = vec![self.mem(ptr), value.arg()];
        let ty = if matches!(op, AtomicOp::Or | AtomicOp::Exch) { <T::Loaded as Scalar>::BITS } else { T::NAME };
        let mnemonic = format!("atom.{semantics}.{}.global.{}.{ty}", scope.name(), op.name());
        self.emit_spread(mnemonic, src, Spread::AtLeast(Uniformity::Lane))
    }

    /// Orders all accesses of this thread before it against all after it, as seen within `scope`.
    #[track_caller]
    pub fn fence_acq_rel(&mut self, scope: Scope) {
        self.push(format!("fence.acq_rel.{}", scope.name()), vec![], vec![], Spread::Operands, Convergence::None);
    }

    // ---- addresses

    /// The address `index` elements on.
    #[track_caller]
    pub fn index<S: Space, T: Element>(&mut self, ptr: Ptr<S, T>, index: impl Operand<U32>) -> Ptr<S, T> {
        let scale = T::BYTES;
        match index.arg() {
            Arg::Int(elements) => ptr.byte_offset(elements * i64::from(scale)),
            index => self.byte_index_arg(ptr, index, scale),
        }
    }

    /// The address `index * stride` bytes on.
    #[track_caller]
    pub fn byte_index<S: Space, T>(&mut self, ptr: Ptr<S, T>, index: impl Operand<U32>, stride: u32) -> Ptr<S, T> {
        match index.arg() {
            Arg::Int(index) => ptr.byte_offset(index * i64::from(stride)),
            index => self.byte_index_arg(ptr, index, stride),
        }
    }

    #[track_caller]
    fn byte_index_arg<S: Space, T>(&mut self, ptr: Ptr<S, T>, index: Arg, stride: u32) -> Ptr<S, T> {
        let stride = Arg::Int(i64::from(stride));
        let address = match (S::NAME, ptr.base) {
            ("global", PtrBase::Reg(base)) => self.emit::<U64>("mad.wide.u32", vec![index, stride, Arg::Reg(base)]).reg,
            (_, PtrBase::Reg(base)) => self.emit::<U32>("mad.lo.u32", vec![index, stride, Arg::Reg(base)]).reg,
            (_, base @ PtrBase::Shared(_)) => {
                let base = self.address_of(base);
                self.emit::<U32>("mad.lo.u32", vec![index, stride, base.arg()]).reg
            }
        };
        Ptr::new(PtrBase::Reg(address), ptr.offset)
    }

    #[track_caller]
    fn address_of(&mut self, base: PtrBase) -> Val<U32> {
        match base {
            PtrBase::Reg(reg) => Val::new(reg),
            shared @ PtrBase::Shared(_) => {
                let name = match self.base(shared) {
                    super::ir::Base::Symbol(name) => name,
                    super::ir::Base::Reg(reg) => reg.to_string(),
                };
                self.emit("mov.u32", vec![Arg::Address(name)])
            }
        }
    }

    /// A pointer from a 64-bit address, as read from a table in device memory.
    pub fn global_ptr<T: Element>(&mut self, address: Val<U64>) -> Global<T> {
        Ptr::new(PtrBase::Reg(address.reg), 0)
    }

    /// The 64-bit address of a pointer.
    #[track_caller]
    pub fn address<T>(&mut self, ptr: Global<T>) -> Val<U64> {
        match (ptr.base, ptr.offset) {
            (PtrBase::Reg(reg), 0) => Val::new(reg),
            (PtrBase::Reg(reg), offset) => self.emit("add.u64", vec![Arg::Reg(reg), Arg::Int(offset)]),
            (PtrBase::Shared(_), _) => {
                self.complain("a shared variable has no global address".to_owned());
                self.mov(0u64)
            }
        }
    }

    /// The 32-bit address of a pointer into shared memory.
    #[track_caller]
    pub fn shared_address<T>(&mut self, ptr: Shared<T>) -> Val<U32> {
        let base = self.address_of(ptr.base);
        if ptr.offset == 0 { base } else { self.emit("add.u32", vec![base.arg(), Arg::Int(ptr.offset)]) }
    }

    /// A pointer into shared memory from its 32-bit address.
    pub fn shared_ptr<T: Element>(&mut self, address: Val<U32>) -> Shared<T> {
        Ptr::new(PtrBase::Reg(address.reg), 0)
    }

    /// `cond ? a : b` for pointers into device memory.
    #[track_caller]
    pub fn select_ptr<T: Element>(&mut self, a: Global<T>, b: Global<T>, cond: Val<Pred>) -> Global<T> {
        let (a, b) = (self.address(a), self.address(b));
        let address = self.selp::<U64>(a, b, cond);
        self.global_ptr(address)
    }

    // ---- barriers

    /// `bar.sync 0`: all threads of the block arrive; memory of the block is ordered.
    #[track_caller]
    pub fn bar_sync(&mut self) {
        let convergence = Convergence::Participants { barrier: 0, threads: None };
        self.push("bar.sync", vec![], vec![Arg::Int(0)], Spread::Operands, convergence);
    }

    /// `bar.sync barrier, threads`: the named barrier of some of the block's warps.
    #[track_caller]
    pub fn bar_sync_threads(&mut self, barrier: u32, threads: u32) {
        if threads == 0 || !threads.is_multiple_of(32) || barrier > 15 {
            self.complain(format!("barrier {barrier} of {threads} threads: whole warps, barriers 0 to 15"));
        }
        let src = vec![Arg::Int(i64::from(barrier)), Arg::Int(i64::from(threads))];
        let convergence = Convergence::Participants { barrier, threads: Some(threads) };
        self.push("bar.sync", vec![], src, Spread::Operands, convergence);
    }

    /// `bar.warp.sync`: all lanes arrive; memory of the warp is ordered.
    #[track_caller]
    pub fn bar_warp_sync(&mut self) {
        self.push("bar.warp.sync", vec![], vec![Arg::Int(0xffff_ffff)], Spread::Operands, Convergence::Warp);
    }

    /// One thread's value, made known to all: written by thread 0 to `slot`, read by all after a barrier. Block-uniform
    /// by construction. The barrier before the write keeps slow readers of the slot's last value safe.
    #[track_caller]
    pub fn broadcast<T: Element>(&mut self, slot: Shared<T>, value: Val<T::Loaded>) -> Val<T::Loaded> {
        self.bar_sync();
        let tid = self.tid();
        let first = self.setp_eq(tid, 0);
        self.if_(first, |b| b.st(slot, value));
        self.bar_sync();
        let src = vec![self.mem(slot)];
        self.emit_spread(format!("ld.shared.{}", T::NAME), src, Spread::Exactly(Uniformity::Block))
    }

    /// `dp4a`: the dot product of four signed bytes with four signed bytes, added to `c`.
    #[track_caller]
    pub fn dp4a(&mut self, a: impl Operand<U32>, b: impl Operand<U32>, c: impl Operand<S32>) -> Val<S32> {
        self.emit("dp4a.s32.s32", vec![a.arg(), b.arg(), c.arg()])
    }

    /// Ends the thread; under block-uniform control flow only, so that nobody waits for it.
    #[track_caller]
    pub fn exit(&mut self) {
        self.push("exit", vec![], vec![], Spread::Operands, Convergence::Block);
    }

    /// Sleeps about `nanoseconds`: backoff while polling.
    #[track_caller]
    pub fn nanosleep(&mut self, nanoseconds: u32) {
        let src = vec![Arg::Int(i64::from(nanoseconds))];
        self.push("nanosleep.u32", vec![], src, Spread::Operands, Convergence::None);
    }
}
