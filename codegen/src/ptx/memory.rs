//! Loads, stores, atomics, fences and barriers.

use super::builder::Builder;
use super::ir::{Arg, Base, Uniformity};
use super::modifiers::{AtomicOp, LoadKind, LoadOrder, Order, Scope, StateSpace, StoreOrder, Type, Width};
use super::ops::ALL_LANES;
use super::table::Op;
use super::types::{Atomic, Element, Global, Operand, Pred, Ptr, PtrBase, Shared, Size, Space, U8, U32, U64, Val};
use kiln_shape::table::TENSOR_MAP_BYTES;

/// Bytes of a line of the L2 cache.
pub const LINE: u32 = 128;

impl Builder {
    /// Loads one element.
    #[track_caller]
    pub fn ld<S: Space, T: Element>(&mut self, ptr: Ptr<S, T>, kind: LoadKind) -> Val<T::Loaded> {
        let src = [self.mem(ptr)];
        self.emit(Op::Ld { space: S::SPACE, kind, width: Width::One, ty: T::MEMORY }, src)
    }

    /// Loads `N` (2 or 4) neighbouring elements at an address that is a multiple of their joint size, 16 bytes at most.
    #[track_caller]
    pub fn ld_vector<S: Space, T: Element, const N: usize>(
        &mut self,
        ptr: Ptr<S, T>,
        kind: LoadKind,
    ) -> [Val<T::Loaded>; N] {
        self.load_vector(ptr, |width| Op::Ld { space: S::SPACE, kind, width, ty: T::MEMORY })
    }

    #[track_caller]
    fn load_vector<S: Space, T: Element, const N: usize>(
        &mut self,
        ptr: Ptr<S, T>,
        op: impl FnOnce(Width) -> Op,
    ) -> [Val<T::Loaded>; N] {
        let width = const { Width::of::<N>(T::BYTES) };
        let values: [Val<T::Loaded>; N] = std::array::from_fn(|_| Val::new(self.fresh::<T::Loaded>()));
        let dst = [Arg::Vector(values.iter().map(|value| value.arg()).collect())];
        let src = [self.mem(ptr)];
        self.push(op(width), dst, src, None);
        values
    }

    /// Stores one element.
    #[track_caller]
    pub fn st<S: Space, T: Element>(&mut self, ptr: Ptr<S, T>, value: impl Operand<T::Loaded>) {
        let dst = [self.mem(ptr)];
        self.push(Op::St { space: S::SPACE, width: Width::One, ty: T::MEMORY }, dst, [value.arg()], None);
    }

    /// Stores `N` (2 or 4) neighbouring elements at an address that is a multiple of their joint size, 16 bytes at most.
    #[track_caller]
    pub fn st_vector<S: Space, T: Element, const N: usize>(&mut self, ptr: Ptr<S, T>, values: [Val<T::Loaded>; N]) {
        let width = const { Width::of::<N>(T::BYTES) };
        let dst = [self.mem(ptr)];
        let src = [Arg::Vector(values.iter().map(|value| value.arg()).collect())];
        self.push(Op::St { space: S::SPACE, width, ty: T::MEMORY }, dst, src, None);
    }

    /// A synchronising load: `ld.acquire.gpu`, `ld.relaxed.sys`.
    #[track_caller]
    pub fn ld_sync<T: Element>(&mut self, ptr: Global<T>, order: LoadOrder, scope: Scope) -> Val<T::Loaded> {
        let src = [self.mem(ptr)];
        self.emit(Op::LdSync { order, scope, width: Width::One, ty: T::MEMORY }, src)
    }

    /// As many of them as [`Builder::ld_vector`] loads, each a load of its own to the memory model.
    #[track_caller]
    pub fn ld_sync_vector<T: Element, const N: usize>(
        &mut self,
        ptr: Global<T>,
        order: LoadOrder,
        scope: Scope,
    ) -> [Val<T::Loaded>; N] {
        self.load_vector(ptr, |width| Op::LdSync { order, scope, width, ty: T::MEMORY })
    }

    /// A synchronising store: `st.release.gpu`, `st.relaxed.sys`.
    #[track_caller]
    pub fn st_sync<T: Element>(
        &mut self,
        ptr: Global<T>,
        value: impl Operand<T::Loaded>,
        order: StoreOrder,
        scope: Scope,
    ) {
        let dst = [self.mem(ptr)];
        self.push(Op::StSync { order, scope, width: Width::One, ty: T::MEMORY }, dst, [value.arg()], None);
    }

    /// As many of them as [`Builder::st_vector`] stores, each a store of its own to the memory model.
    #[track_caller]
    pub fn st_sync_vector<T: Element, const N: usize>(
        &mut self,
        ptr: Global<T>,
        values: [Val<T::Loaded>; N],
        order: StoreOrder,
        scope: Scope,
    ) {
        let width = const { Width::of::<N>(T::BYTES) };
        let dst = [self.mem(ptr)];
        let src = [Arg::Vector(values.iter().map(|value| value.arg()).collect())];
        self.push(Op::StSync { order, scope, width, ty: T::MEMORY }, dst, src, None);
    }

    /// A relaxed read-modify-write whose old value is not wanted.
    #[track_caller]
    pub fn red<T: Atomic>(&mut self, op: AtomicOp, ptr: Global<T>, value: impl Operand<T>, scope: Scope) {
        let dst = [self.mem(ptr)];
        self.push(Op::Red { op, scope, ty: atomic_type::<T>(op) }, dst, [value.arg()], None);
    }

    /// A read-modify-write that gives the old value.
    #[track_caller]
    pub fn atom<T: Atomic>(
        &mut self,
        op: AtomicOp,
        order: Order,
        ptr: Global<T>,
        value: impl Operand<T>,
        scope: Scope,
    ) -> Val<T> {
        let src = [self.mem(ptr), value.arg()];
        self.emit(Op::Atom { op, order, scope, ty: atomic_type::<T>(op) }, src)
    }

    /// Stores a value and gives the old one, in one step.
    #[track_caller]
    pub fn atom_exch<T: Atomic>(
        &mut self,
        order: Order,
        ptr: Global<T>,
        value: impl Operand<T>,
        scope: Scope,
    ) -> Val<T> {
        let src = [self.mem(ptr), value.arg()];
        self.emit(Op::AtomExch { order, scope, ty: T::BITS }, src)
    }

    /// Orders all accesses of this thread before it against all after it, as seen within `scope`.
    #[track_caller]
    pub fn fence_acq_rel(&mut self, scope: Scope) {
        self.push(Op::Fence { scope }, [], [], None);
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

    /// The address `index * stride` bytes on, in shared memory, for a stride that may be a launch's.
    #[track_caller]
    pub(crate) fn mad_index<T>(&mut self, ptr: Shared<T>, index: Val<U32>, stride: Size) -> Shared<T> {
        match stride {
            Size::Const(stride) => self.byte_index(ptr, index, stride),
            Size::Reg(stride) => {
                let bytes = self.mul::<U32>(index, stride);
                self.byte_index(ptr, bytes, 1)
            }
        }
    }

    #[track_caller]
    fn byte_index_arg<S: Space, T>(&mut self, ptr: Ptr<S, T>, index: Arg, stride: u32) -> Ptr<S, T> {
        let stride = Arg::Int(i64::from(stride));
        let low = Op::Mad { ty: Type::U32 };
        let address = match (S::SPACE, ptr.base) {
            (StateSpace::Global, PtrBase::Reg(base)) => {
                self.emit::<U64, _>(Op::MadWide, [index, stride, Arg::Reg(base)]).reg
            }
            (StateSpace::Shared, PtrBase::Reg(base)) => self.emit::<U32, _>(low, [index, stride, Arg::Reg(base)]).reg,
            (_, base @ PtrBase::Shared(_)) => {
                let name = match self.base(base) {
                    Base::Symbol(name) => name,
                    Base::Reg(reg) => reg.to_string(),
                };
                let base = self.emit::<U32, _>(Op::Mov { ty: Type::U32 }, [Arg::Address(name)]);
                self.emit::<U32, _>(low, [index, stride, base.arg()]).reg
            }
        };
        Ptr::new(PtrBase::Reg(address), ptr.offset)
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
            (PtrBase::Reg(reg), offset) => self.emit(Op::Add { ty: Type::U64 }, [Arg::Reg(reg), Arg::Int(offset)]),
            (PtrBase::Shared(_), _) => {
                self.complain("a shared variable has no global address".to_owned());
                self.mov(0u64)
            }
        }
    }

    /// The address of a pointer into shared memory, for differences and variables.
    #[track_caller]
    pub fn shared_address<T>(&mut self, ptr: Shared<T>) -> Val<U32> {
        let base = match self.base(ptr.base) {
            Base::Reg(reg) => Val::new(reg),
            Base::Symbol(name) => self.emit::<U32, _>(Op::Mov { ty: Type::U32 }, [Arg::Address(name)]),
        };
        match ptr.offset {
            0 => base,
            offset => self.emit(Op::Add { ty: Type::U32 }, [base.arg(), Arg::Int(offset)]),
        }
    }

    /// The pointer into shared memory that has an address.
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

    /// `bar.sync 0`: all threads of the block arrive; memory of the block is ordered. In a role with a barrier of its own,
    /// that one: all threads of the role arrive.
    #[track_caller]
    pub fn bar_sync(&mut self) {
        if let Some((barrier, threads)) = self.own_barrier() {
            return self.bar_sync_threads(barrier, threads);
        }
        self.push(Op::BarSync, [], [Arg::Int(0)], None);
    }

    /// `bar.sync barrier, threads`: the named barrier of some of the block's warps.
    #[track_caller]
    pub fn bar_sync_threads(&mut self, barrier: u32, threads: u32) {
        if threads == 0 || !threads.is_multiple_of(32) || barrier > 15 {
            self.complain(format!("barrier {barrier} of {threads} threads: whole warps, barriers 0 to 15"));
        }
        let src = [Arg::Int(i64::from(barrier)), Arg::Int(i64::from(threads))];
        self.push(Op::BarSyncThreads, [], src, None);
    }

    /// `bar.warp.sync`: all lanes arrive; memory of the warp is ordered.
    #[track_caller]
    pub fn bar_warp_sync(&mut self) {
        self.push(Op::BarWarpSync, [], [ALL_LANES], None);
    }

    /// Thread 0's value in every thread: thread 0 writes it to `slot`, all read it after a barrier. Block-uniform by
    /// construction. A barrier before the write lets slow readers of the slot's last value finish.
    #[track_caller]
    pub fn broadcast<T: Element>(&mut self, slot: Shared<T>, value: Val<T::Loaded>) -> Val<T::Loaded> {
        self.bar_sync();
        let tid = self.tid();
        let first = self.setp_eq(tid, 0);
        self.if_(first, |b| b.st(slot, value));
        self.bar_sync();
        let src = [self.mem(slot)];
        let load = Op::Ld { space: StateSpace::Shared, kind: LoadKind::Ordinary, width: Width::One, ty: T::MEMORY };
        self.emit_known(load, src, Uniformity::Block)
    }

    /// Asks the L2 cache for the [`LINE`] that an element lies in. Nobody waits for it.
    #[track_caller]
    pub fn prefetch_l2<T>(&mut self, from: Global<T>) {
        let src = [self.mem(from)];
        self.push(Op::PrefetchL2, [], src, None);
    }

    /// Asks the L2 cache for `bytes` bytes, a multiple of 16, from a multiple of 16 on. Nobody waits for them. All of them
    /// lie in one allocation.
    #[track_caller]
    pub fn cp_async_bulk_prefetch<T>(&mut self, from: Global<T>, bytes: impl Operand<U32>) {
        let src = [self.mem(from), bytes.arg()];
        self.push(Op::CpAsyncBulkPrefetch, [], src, None);
    }

    // ---- mbarriers and bulk copies

    /// `createpolicy` of `L2::evict_first`, for copies of what is read once: the L2 cache gives it up before what others
    /// read again.
    #[track_caller]
    pub fn evict_first(&mut self) -> Val<U64> {
        self.emit(Op::CreatePolicyEvictFirst, [])
    }

    /// `cp.async.bulk`: copies `bytes` bytes, a multiple of 16, from a multiple of 16 on. Once they are there, they lower
    /// what the phase of `mbarrier` expects; whoever has waited for that phase sees them. `policy`, if any, is that of their
    /// lines in the L2 cache.
    #[track_caller]
    pub fn cp_async_bulk<T, U>(
        &mut self,
        to: Shared<T>,
        from: Global<U>,
        bytes: impl Operand<U32>,
        mbarrier: Shared<U64>,
        policy: Option<Val<U64>>,
    ) {
        let dst = [self.mem(to)];
        let [from, bytes, mbarrier] = [self.mem(from), bytes.arg(), self.mem(mbarrier)];
        match policy {
            Some(policy) => self.push(Op::CpAsyncBulk, dst, [from, bytes, mbarrier, policy.arg()], None),
            None => self.push(Op::CpAsyncBulkOrdinary, dst, [from, bytes, mbarrier], None),
        }
    }

    /// `cp.async.bulk.tensor.2d`: copies a box of a matrix, as large as the tensor map says, from byte `x` of row `y` on, to a
    /// multiple of 128: row after row, zeros where the matrix has none. For the mbarrier it is as
    /// [`Builder::cp_async_bulk`] is. The block has seen the map, by [`Builder::fence_proxy_tensormap`].
    #[track_caller]
    pub fn cp_async_bulk_tensor<T>(
        &mut self,
        to: Shared<T>,
        map: Global<U8>,
        [x, y]: [Val<U32>; 2],
        mbarrier: Shared<U64>,
    ) {
        let map = self.address(map);
        let dst = [self.mem(to)];
        let src = [Arg::Box(map.reg, vec![x.arg(), y.arg()]), self.mem(mbarrier)];
        self.push(Op::CpAsyncBulkTensor, dst, src, None);
    }

    /// `fence.proxy.tensormap`: tensor copies of this block behind it find a map as device memory has it. A map in device
    /// memory needs one in each block that uses it, of the system's scope, since the host wrote it there.
    #[track_caller]
    pub fn fence_proxy_tensormap(&mut self, map: Global<U8>) {
        let src = [self.mem(map), Arg::Int(i64::from(TENSOR_MAP_BYTES))];
        self.push(Op::FenceProxyTensormap, [], src, None);
    }

    /// `mbarrier.init`: an mbarrier whose phases end after `arrivals` arrivals, and all bytes that they expect. Other
    /// threads use it behind a barrier, and bulk copies behind a [`Builder::fence_proxy_async`] before that.
    #[track_caller]
    pub fn mbarrier_init(&mut self, mbarrier: Shared<U64>, arrivals: impl Operand<U32>) {
        let dst = [self.mem(mbarrier)];
        self.push(Op::MbarrierInit, dst, [arrivals.arg()], None);
    }

    /// `mbarrier.arrive`: what this thread did before happens before what those do who have waited for the phase.
    #[track_caller]
    pub fn mbarrier_arrive(&mut self, mbarrier: Shared<U64>) {
        let src = [self.mem(mbarrier)];
        let _state = self.emit::<U64, _>(Op::MbarrierArrive, src);
    }

    /// `mbarrier.arrive.expect_tx`: the same, where the phase does not end before `bytes` more bytes have been copied.
    #[track_caller]
    pub fn mbarrier_arrive_expect_tx(&mut self, mbarrier: Shared<U64>, bytes: impl Operand<U32>) {
        let src = [self.mem(mbarrier), bytes.arg()];
        let _state = self.emit::<U64, _>(Op::MbarrierArriveExpectTx, src);
    }

    /// `mbarrier.test_wait.parity`: whether the last phase of that parity, 0 for the first one, is over.
    #[track_caller]
    pub fn mbarrier_test_wait(&mut self, mbarrier: Shared<U64>, parity: impl Operand<U32>) -> Val<Pred> {
        let src = [self.mem(mbarrier), parity.arg()];
        self.emit(Op::MbarrierTestWait, src)
    }

    /// `mbarrier.try_wait.parity`: the same, where the thread may sleep for a while before the answer is no.
    #[track_caller]
    pub fn mbarrier_try_wait(&mut self, mbarrier: Shared<U64>, parity: impl Operand<U32>) -> Val<Pred> {
        let src = [self.mem(mbarrier), parity.arg()];
        self.emit(Op::MbarrierTryWait, src)
    }

    /// Whether the last phase of a parity is over: asleep for a while before the answer is no, where the target has that.
    #[track_caller]
    pub(crate) fn mbarrier_poll(&mut self, mbarrier: Shared<U64>, parity: Val<U32>) -> Val<Pred> {
        match Op::MbarrierTryWait.row().needs.met_by(self.target()) {
            true => self.mbarrier_try_wait(mbarrier, parity),
            false => self.mbarrier_test_wait(mbarrier, parity),
        }
    }

    /// `fence.proxy.async`: what this thread stored to shared memory comes before what bulk copies do there behind it.
    #[track_caller]
    pub fn fence_proxy_async(&mut self) {
        self.push(Op::FenceProxyAsync, [], [], None);
    }

    // ---- programmatic dependent launch

    /// `griddepcontrol.wait`: waits until the launches that this one may overlap are over, and sees what they wrote.
    /// Stands outside branches and loops, before the kernel's first write to device memory. What those launches wrote is
    /// read behind it by [`LoadKind::Ordinary`]: it has changed during this launch.
    #[track_caller]
    pub fn griddepcontrol_wait(&mut self) {
        self.push(Op::GriddepcontrolWait, [], [], None);
    }

    /// `griddepcontrol.launch_dependents`: the next launch of the stream, if it is programmatic, may begin once every
    /// block has come to this or has ended. Promises nothing of what this launch has written. The kernel waits as well:
    /// else that launch could run beside those before this one.
    #[track_caller]
    pub fn griddepcontrol_launch_dependents(&mut self) {
        self.push(Op::GriddepcontrolLaunchDependents, [], [], None);
    }

    /// Ends the thread; under block-uniform control flow only, so that no barrier waits for it, or in a role under control
    /// flow as uniform as that, which shares no barrier with others.
    #[track_caller]
    pub fn exit(&mut self) {
        self.push(Op::Exit, [], [], None);
    }

    /// Ends the launch by an error that costs the context: the last resort where a thread can neither go on nor leave.
    #[track_caller]
    pub fn trap(&mut self) {
        self.push(Op::Trap, [], [], None);
    }

    /// Sleeps about `nanoseconds`: backoff while polling.
    #[track_caller]
    pub fn nanosleep(&mut self, nanoseconds: u32) {
        let src = [Arg::Int(i64::from(nanoseconds))];
        self.push(Op::Nanosleep, [], src, None);
    }
}

/// The type of a read-modify-write: that of bits where only these count.
fn atomic_type<T: Atomic>(op: AtomicOp) -> Type {
    match op {
        AtomicOp::Add | AtomicOp::Max => T::TYPE,
        AtomicOp::Or => T::BITS,
    }
}
