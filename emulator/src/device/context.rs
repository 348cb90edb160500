//! Contexts: a device's memory, streams and objects, a sticky error, and the host threads that have the context
//! current.

use super::command::{Buffer, Side};
use super::graph::Captures;
use super::launch::Grid;
use super::registry::Device;
use super::stream::{LEGACY, Queue};
use super::{Code, Handle, Leak, Outcome, StreamId, Ticket, handles, lock};
use crate::memory::{GLOBAL_BASE, Memory};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Distance between the first addresses of a device's contexts, and the number of contexts whose addresses differ.
const APART: u64 = 1 << 40;
const MOST: u64 = 64;

pub(crate) struct Context {
    pub(crate) handle: Handle,
    pub(crate) device: Arc<Device>,
    pub(crate) memory: Arc<Memory>,
    state: Mutex<State>,
    /// Notified whenever work has finished.
    pub(crate) changed: Condvar,
}

/// Mutable state of a context, under one lock.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) streams: BTreeMap<StreamId, Queue>,
    /// Number of streams created, without the legacy stream.
    pub(crate) opened: StreamId,
    pub(crate) captures: Captures,
    pub(crate) allocations: BTreeMap<(Side, u64), Buffer>,
    /// Room on the multiprocessors that running kernels take, see [`super::launch`].
    pub(crate) taken: u64,
    /// Cooperative launches that the host has not waited for, see [`Context::interleave`].
    pub(crate) grids: Vec<Grid>,
    /// The error of every call once the context is lost or destroyed.
    pub(crate) sticky: Option<Code>,
    pub(crate) settings: Settings,
    /// Host threads that have used the context, and may use it again until they end.
    threads: Vec<Weak<HostThread>>,
}

/// What a program sets and asks for, and nothing here heeds.
#[derive(Default)]
pub(crate) struct Settings {
    /// `CUctx_flags`
    pub(crate) flags: u32,
    /// Values of `CUlimit` that were set.
    pub(crate) limits: BTreeMap<u32, usize>,
    /// `CUfunc_cache` and `CUsharedconfig`
    pub(crate) preferences: [u32; 2],
}

/// A live host thread: the context and the driver call that it is blocked in, if any.
type HostThread = Mutex<Option<(Handle, &'static str)>>;

thread_local! {
    static THREAD: Arc<HostThread> = Arc::default();
    /// The handle of the context that is current in this thread, or 0.
    pub(crate) static CURRENT: Cell<Handle> = const { Cell::new(0) };
    /// The contexts below it, the last pushed at the end.
    static BELOW: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}

impl State {
    /// Counts the calling thread among those that use the context.
    fn meet_thread(&mut self) {
        THREAD.with(|thread| {
            if self.threads.iter().all(|known| known.as_ptr() != Arc::as_ptr(thread)) {
                self.threads.retain(|known| known.strong_count() > 0);
                self.threads.push(Arc::downgrade(thread));
            }
        });
    }
}

impl Context {
    /// A context of a device. `number` counts the device's contexts, so that each has addresses of its own.
    pub(crate) fn create(device: &Arc<Device>, number: u64, flags: u32) -> Arc<Context> {
        let base = GLOBAL_BASE + number % MOST * APART;
        let state = State {
            streams: BTreeMap::from([(LEGACY, Queue::default())]),
            settings: Settings { flags, ..Settings::default() },
            ..State::default()
        };
        Arc::new_cyclic(|context: &Weak<Context>| Context {
            handle: handles::insert(0, None, context.clone()),
            device: device.clone(),
            memory: Arc::new(Memory::beginning_at(base, device.config.memory_bytes)),
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    pub(crate) fn from_handle(handle: Handle) -> Outcome<Arc<Context>> {
        handles::get::<Weak<Context>>(handle)?.upgrade().ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Checks that the context lives and has no sticky error.
    pub(crate) fn check(&self) -> Outcome {
        self.state().sticky.map_or(Ok(()), Err)
    }

    /// Blocks the calling thread until all of `tickets` are done; they happen before the host's next action. Fails
    /// with the context's sticky error, if any by then.
    pub(crate) fn wait(&self, call: &'static str, tickets: &[Ticket]) -> Outcome {
        let outcome = self.block(call, tickets);
        self.count_on(tickets);
        outcome
    }

    fn count_on(&self, tickets: &[Ticket]) {
        self.memory.witness().host_waited(tickets.iter().map(|ticket| &*ticket.order));
        self.forget_streams(&mut self.state());
    }

    /// Blocks like `wait`, for calls that do not promise to: it orders nothing.
    pub(crate) fn block(&self, call: &'static str, tickets: &[Ticket]) -> Outcome {
        self.ask(tickets);
        let over = || tickets.iter().all(Ticket::is_done);
        if !over() {
            let mut state = self.state();
            state.meet_thread();
            THREAD.with(|thread| *lock(thread) = Some((self.handle, call)));
            while !over() {
                // A ticket of another context is not announced here, hence the limit.
                let woken = self.changed.wait_timeout(state, Duration::from_millis(5));
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
            }
            THREAD.with(|thread| *lock(thread) = None);
        }
        self.check()
    }

    /// Asks about tickets: work that was held back until then begins.
    fn ask(&self, tickets: &[Ticket]) {
        tickets.iter().for_each(Ticket::ask);
        if self.device.config.deferred_submission {
            self.changed.notify_all();
        }
    }

    /// Blocks until everything asked of the context so far is done, as calls that synchronise do.
    pub(crate) fn wait_for_all(&self, call: &'static str) -> Outcome {
        self.wait(call, &self.everything())
    }

    pub(crate) fn everything(&self) -> Vec<Ticket> {
        self.state().streams.values().filter_map(|queue| queue.last.clone()).collect()
    }

    /// Checks that all of `tickets` are done. If so, they happen before what the host does next.
    pub(crate) fn query(&self, tickets: &[Ticket]) -> Outcome {
        self.ask(tickets);
        if !tickets.iter().all(Ticket::is_done) {
            return Err(Code::NOT_READY);
        }
        self.count_on(tickets);
        Ok(())
    }

    /// The driver calls that block the host threads of the context, if all are blocked and no stream can go on.
    pub(crate) fn stuck(&self) -> Option<Vec<&'static str>> {
        let state = self.state();
        let threads = state.threads.iter().filter_map(Weak::upgrade);
        let blocked_here = |thread: Arc<HostThread>| lock(&thread).filter(|(context, _)| *context == self.handle);
        let calls: Vec<_> = threads.map(|thread| Some(blocked_here(thread)?.1)).collect::<Option<_>>()?;
        let deferred = self.device.config.deferred_submission;
        (!calls.is_empty() && state.streams.values().all(|queue| queue.is_stuck(deferred))).then_some(calls)
    }

    /// Destroys the context: waits for its work, frees the objects left in it, and returns them as leaks.
    pub(crate) fn destroy(&self) -> Vec<Leak> {
        // An error of the work does not keep a context from being destroyed.
        let _ = self.wait_for_all("cuDevicePrimaryCtxRelease");
        let leaks = self.leaks();
        let mut state = self.state();
        state.sticky = Some(Code::CONTEXT_IS_DESTROYED);
        state.allocations.clear();
        drop(state);
        handles::remove_all_of(self.handle);
        self.changed.notify_all();
        leaks
    }

    /// All objects and allocations that are alive.
    pub(crate) fn leaks(&self) -> Vec<Leak> {
        let state = self.state();
        let memory = state.allocations.iter().map(|(&(side, address), &Buffer { bytes, .. })| match side {
            Side::Device => Leak::DeviceMemory { address, bytes: bytes as u64 },
            Side::Host => Leak::HostMemory { address: address as usize, bytes },
        });
        memory.chain(handles::leaks_of(self.handle)).collect()
    }
}

pub(crate) fn current() -> Outcome<Arc<Context>> {
    match CURRENT.get() {
        0 => Err(Code::INVALID_CONTEXT),
        handle => Context::from_handle(handle).map_err(|_| Code::CONTEXT_IS_DESTROYED),
    }
}

/// Makes a context the thread's current one, in the place of the one before; 0 takes that away.
pub(crate) fn set_current(handle: Handle) -> Outcome {
    if handle == 0 {
        CURRENT.set(BELOW.with_borrow_mut(Vec::pop).unwrap_or(0));
        return Ok(());
    }
    meet(handle)?;
    CURRENT.set(handle);
    Ok(())
}

fn meet(handle: Handle) -> Outcome {
    if handle != CURRENT.get() {
        Context::from_handle(handle).map_err(|_| Code::INVALID_CONTEXT)?.state().meet_thread();
    }
    Ok(())
}

/// Makes a context the thread's current one, above the one before.
pub(crate) fn push_current(handle: Handle) -> Outcome {
    Context::from_handle(handle).map_err(|_| Code::INVALID_CONTEXT)?.state().meet_thread();
    let before = CURRENT.replace(handle);
    if before != 0 {
        BELOW.with_borrow_mut(|below| below.push(before));
    }
    Ok(())
}

/// Takes the thread's current context away, and returns it.
pub(crate) fn pop_current() -> Outcome<Handle> {
    match CURRENT.get() {
        0 => Err(Code::INVALID_CONTEXT),
        top => set_current(0).map(|()| top),
    }
}
