//! A context: one device's memory, streams and objects, its sticky error, and which host threads have it current.

use super::graph::Captures;
use super::registry::Device;
use super::stream::{LEGACY, Queue};
use super::work::HostRange;
use super::{Code, Handle, Leak, Outcome, StreamId, Ticket, handles, lock};
use crate::memory::Memory;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;
use std::time::Duration;

pub(crate) struct Context {
    pub(crate) handle: Handle,
    pub(crate) device: Arc<Device>,
    pub(crate) memory: Arc<Memory>,
    state: Mutex<State>,
    /// Tells all who wait whenever work was finished.
    pub(crate) changed: Condvar,
}

/// What changes in a context, under one lock.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) streams: BTreeMap<StreamId, Queue>,
    /// Streams made so far, besides the legacy one.
    pub(crate) opened: StreamId,
    pub(crate) per_thread: HashMap<ThreadId, StreamId>,
    pub(crate) captures: Captures,
    /// `cuMemAlloc`: address to bytes.
    pub(crate) allocations: BTreeMap<u64, u64>,
    /// Page-locked host memory by host address.
    pub(crate) host: BTreeMap<usize, HostRange>,
    /// Room that running kernels take of the multiprocessors, see [`super::launch`].
    pub(crate) taken: u64,
    /// What every call returns since it was lost or destroyed.
    pub(crate) sticky: Option<Code>,
    threads: HashMap<ThreadId, HostThread>,
}

/// A host thread that has had the context current, or waits in it.
#[derive(Default)]
struct HostThread {
    /// It may come back, until it ends.
    stays: bool,
    /// The driver call it is blocked in.
    blocked: Option<&'static str>,
}

impl Context {
    pub(crate) fn create(device: &Arc<Device>) -> Arc<Context> {
        Arc::new_cyclic(|context: &Weak<Context>| Context {
            handle: handles::insert(0, None, context.clone()),
            device: device.clone(),
            memory: Arc::new(Memory::new(device.config.memory_bytes)),
            state: Mutex::new(State { streams: BTreeMap::from([(LEGACY, Queue::default())]), ..State::default() }),
            changed: Condvar::new(),
        })
    }

    pub(crate) fn from_handle(handle: Handle) -> Outcome<Arc<Context>> {
        handles::get::<Weak<Context>>(handle)?.upgrade().ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Whether a call may go on: the context lives and has no sticky error.
    pub(crate) fn check(&self) -> Outcome {
        self.state().sticky.map_or(Ok(()), Err)
    }

    /// Blocks the calling thread until all of `tickets` are done, and counts on it: what the host does next comes after
    /// them. The context's sticky error if there is one by then.
    pub(crate) fn wait(&self, call: &'static str, tickets: &[Ticket]) -> Outcome {
        let outcome = self.block(call, tickets);
        self.count_on(tickets);
        outcome
    }

    fn count_on(&self, tickets: &[Ticket]) {
        self.memory.witness().host_waited(tickets.iter().map(|ticket| &*ticket.order));
    }

    fn block(&self, call: &'static str, tickets: &[Ticket]) -> Outcome {
        let over = || tickets.iter().all(Ticket::is_done);
        if !over() {
            let thread = std::thread::current().id();
            let mut state = self.state();
            state.threads.entry(thread).or_default().blocked = Some(call);
            while !over() {
                // A ticket of another context is not announced here, hence the limit.
                let woken = self.changed.wait_timeout(state, Duration::from_millis(5));
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
            }
            state.threads.entry(thread).or_default().blocked = None;
            state.threads.retain(|&other, entry| other != thread || entry.stays);
        }
        self.check()
    }

    /// Blocks until everything asked of the context so far is done, as calls that synchronise do.
    pub(crate) fn wait_for_all(&self, call: &'static str) -> Outcome {
        let tickets = self.everything();
        self.wait(call, &tickets)
    }

    /// As `wait_for_all`, for calls that may synchronise but do not promise it.
    pub(crate) fn drain(&self, call: &'static str) -> Outcome {
        let tickets = self.everything();
        self.block(call, &tickets)
    }

    fn everything(&self) -> Vec<Ticket> {
        self.state().streams.values().filter_map(|queue| queue.last.clone()).collect()
    }

    /// Whether all of `tickets` are done; if so, the host counts on it.
    pub(crate) fn query(&self, tickets: &[Ticket]) -> Outcome {
        if !tickets.iter().all(Ticket::is_done) {
            return Err(Code::NOT_READY);
        }
        self.count_on(tickets);
        Ok(())
    }

    /// The calls in which host threads are blocked, if all that have used the context are, and no stream can go on.
    pub(crate) fn stuck(&self) -> Option<Vec<&'static str>> {
        let state = self.state();
        let calls: Vec<_> = state.threads.values().map(|thread| thread.blocked).collect::<Option<_>>()?;
        (!calls.is_empty() && state.streams.values().all(Queue::is_stuck)).then_some(calls)
    }

    /// Ends the context as the last release does: waits for its work, frees what is left, says what that was.
    pub(crate) fn destroy(&self) -> Vec<Leak> {
        // An error of the work does not keep a context from being destroyed.
        let _ = self.wait_for_all("cuDevicePrimaryCtxRelease");
        let leaks = self.leaks();
        let mut state = self.state();
        state.sticky = Some(Code::CONTEXT_IS_DESTROYED);
        state.allocations.clear();
        let host = std::mem::take(&mut state.host);
        drop(state);
        drop(host);
        handles::remove_all_of(self.handle);
        self.changed.notify_all();
        leaks
    }

    /// What is alive now.
    pub(crate) fn leaks(&self) -> Vec<Leak> {
        let state = self.state();
        let device = state.allocations.iter().map(|(&address, &bytes)| Leak::DeviceMemory { address, bytes });
        let host = state.host.iter().map(|(&address, range)| Leak::HostMemory { address, bytes: range.bytes });
        device.chain(host).chain(handles::leaks_of(self.handle)).collect()
    }
}

/// The contexts that are current in this thread, the last one on top, and all that ever were. The thread's id is kept
/// with them, since it cannot be asked for any more when the thread's own data is dropped.
struct Stack {
    current: Vec<Handle>,
    used: Vec<(Handle, ThreadId)>,
}

thread_local! {
    static STACK: RefCell<Stack> = const { RefCell::new(Stack { current: Vec::new(), used: Vec::new() }) };
}

impl Drop for Stack {
    fn drop(&mut self) {
        for (handle, thread) in self.used.drain(..) {
            if let Ok(context) = Context::from_handle(handle) {
                context.state().threads.remove(&thread);
            }
        }
    }
}

/// The handle of the thread's current context, 0 if there is none.
pub(crate) fn current_handle() -> Handle {
    STACK.with_borrow(|stack| stack.current.last().copied().unwrap_or(0))
}

pub(crate) fn current() -> Outcome<Arc<Context>> {
    match current_handle() {
        0 => Err(Code::INVALID_CONTEXT),
        handle => Context::from_handle(handle).map_err(|_| Code::CONTEXT_IS_DESTROYED),
    }
}

pub(crate) fn push(handle: Handle) -> Outcome {
    let context = Context::from_handle(handle).map_err(|_| Code::INVALID_CONTEXT)?;
    let thread = std::thread::current().id();
    STACK.with_borrow_mut(|stack| {
        stack.current.push(handle);
        if !stack.used.contains(&(handle, thread)) {
            stack.used.push((handle, thread));
            context.state().threads.entry(thread).or_default().stays = true;
        }
    });
    Ok(())
}

/// Replaces the top context of the thread's stack, 0: by nothing, if the new one is valid.
pub(crate) fn set_current(handle: Handle) -> Outcome {
    if handle == current_handle() {
        return Ok(());
    }
    if handle != 0 {
        Context::from_handle(handle).map_err(|_| Code::INVALID_CONTEXT)?;
    }
    let _ = pop(); // there may be none
    if handle == 0 { Ok(()) } else { push(handle) }
}

pub(crate) fn pop() -> Outcome<Handle> {
    STACK.with_borrow_mut(|stack| stack.current.pop()).ok_or(Code::INVALID_CONTEXT)
}
