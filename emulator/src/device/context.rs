//! A context: one device's memory, streams and objects, its sticky error, and which host threads have it current.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::ThreadId;
use std::time::Duration;

use super::abi::{Handle, Outcome};
use super::codes::Code;
use super::handles::{self, Object};
use super::host::HostRange;
use super::machine::Memory;
use super::registry::{Device, Leak};
use super::stream::{LEGACY, Stream, StreamId, Ticket};
use super::{capture::Captures, lock};

/// A context of one device.
pub(crate) struct Context {
    pub(crate) handle: Handle,
    pub(crate) device: Arc<Device>,
    pub(crate) memory: Arc<Memory>,
    state: Mutex<State>,
    /// Tells host threads that wait whenever work was finished.
    pub(crate) changed: Condvar,
}

/// What changes in a context, under one lock.
pub(crate) struct State {
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    pub(crate) next_stream: StreamId,
    pub(crate) per_thread: HashMap<ThreadId, StreamId>,
    pub(crate) captures: Captures,
    /// `cuMemAlloc`: address to bytes.
    pub(crate) allocations: BTreeMap<u64, u64>,
    /// Page-locked host memory by host address.
    pub(crate) host: BTreeMap<usize, HostRange>,
    pub(crate) sticky: Option<Code>,
    destroyed: bool,
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
        Arc::new_cyclic(|weak| Context {
            handle: handles::insert(Object::Context(weak.clone())),
            device: device.clone(),
            memory: Arc::new(Memory::new(device.config.memory_bytes)),
            state: Mutex::new(State {
                streams: BTreeMap::from([(LEGACY, Stream::new(0, 0))]),
                next_stream: LEGACY + 1,
                per_thread: HashMap::new(),
                captures: Captures::default(),
                allocations: BTreeMap::new(),
                host: BTreeMap::new(),
                sticky: None,
                destroyed: false,
                threads: HashMap::new(),
            }),
            changed: Condvar::new(),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Whether a call may go on: the context lives and has no sticky error.
    pub(crate) fn check(&self) -> Outcome {
        let state = self.state();
        if state.destroyed {
            return Err(Code::CONTEXT_IS_DESTROYED);
        }
        state.sticky.map_or(Ok(()), Err)
    }

    /// Loses the context to an error of its work.
    pub(crate) fn poison(&self, code: Code) {
        self.state().sticky.get_or_insert(code);
        self.changed.notify_all();
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        self.state().destroyed
    }

    /// Blocks the calling thread until all of `tickets` are done, and counts on it: what the host does next comes after
    /// them. The context's sticky error if there is one by then.
    pub(crate) fn wait(&self, call: &'static str, tickets: &[Ticket]) -> Outcome {
        let outcome = self.block(call, tickets);
        self.memory.witness().host_waited(tickets.iter().map(|ticket| &*ticket.order));
        outcome
    }

    fn block(&self, call: &'static str, tickets: &[Ticket]) -> Outcome {
        if !tickets.iter().all(Ticket::is_done) {
            let thread = std::thread::current().id();
            let mut state = self.state();
            state.threads.entry(thread).or_default().blocked = Some(call);
            while !tickets.iter().all(Ticket::is_done) {
                // A ticket of another context is not announced here, hence the limit.
                state = self
                    .changed
                    .wait_timeout(state, Duration::from_millis(5))
                    .unwrap_or_else(std::sync::PoisonError::into_inner)
                    .0;
            }
            if let Some(entry) = state.threads.get_mut(&thread) {
                entry.blocked = None;
                if !entry.stays {
                    state.threads.remove(&thread);
                }
            }
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
        self.state().streams.values().map(Stream::last).collect()
    }

    /// Whether all of `tickets` are done; if so, the host counts on it.
    pub(crate) fn is_over(&self, tickets: &[Ticket]) -> bool {
        let over = tickets.iter().all(Ticket::is_done);
        if over {
            self.memory.witness().host_waited(tickets.iter().map(|ticket| &*ticket.order));
        }
        over
    }

    /// The calls in which host threads are blocked, if all that have used the context are, and no stream can go on.
    pub(crate) fn stuck(&self) -> Option<Vec<&'static str>> {
        let state = self.state();
        let calls: Vec<_> = state.threads.values().map(|thread| thread.blocked).collect::<Option<_>>()?;
        (!calls.is_empty() && state.is_stuck()).then_some(calls)
    }

    /// Ends the context as the last release does: waits for its work, frees what is left, says what that was.
    pub(crate) fn destroy(self: &Arc<Self>) -> Vec<Leak> {
        // An error of the work does not keep a context from being destroyed.
        let _ = self.wait_for_all("cuDevicePrimaryCtxRelease");
        let mut leaks = self.live();
        let host = {
            let mut state = self.state();
            state.destroyed = true;
            state.allocations.clear();
            std::mem::take(&mut state.host)
        };
        drop(host);
        for object in handles::remove_all_of(self.handle) {
            if let Some(leak) = Leak::of(&object) {
                leaks.push(leak);
            }
        }
        self.changed.notify_all();
        leaks
    }

    /// Memory that is alive now.
    pub(crate) fn live(&self) -> Vec<Leak> {
        let state = self.state();
        let device = state.allocations.iter().map(|(&address, &bytes)| Leak::DeviceMemory { address, bytes });
        let host = state.host.iter().map(|(&address, range)| Leak::HostMemory { address, bytes: range.bytes });
        device.chain(host).collect()
    }
}

/// The contexts that are current in this thread, the last one on top, and all that ever were. The thread's id is kept
/// beside them, since it cannot be asked for any more when the thread's own data is dropped.
struct Stack {
    thread: Option<ThreadId>,
    handles: Vec<Handle>,
    used: Vec<Handle>,
}

thread_local! {
    static STACK: RefCell<Stack> = const { RefCell::new(Stack { thread: None, handles: Vec::new(), used: Vec::new() }) };
}

impl Drop for Stack {
    fn drop(&mut self) {
        for context in self.used.drain(..).filter_map(|handle| handles::context(handle).ok()) {
            self.thread.map(|thread| context.state().threads.remove(&thread));
        }
    }
}

/// The handle of the thread's current context, 0 if there is none.
pub(crate) fn current_handle() -> Handle {
    STACK.with_borrow(|stack| stack.handles.last().copied().unwrap_or(0))
}

/// The thread's current context.
pub(crate) fn current() -> Outcome<Arc<Context>> {
    match current_handle() {
        0 => Err(Code::INVALID_CONTEXT),
        handle => handles::context(handle).map_err(|_| Code::CONTEXT_IS_DESTROYED),
    }
}

/// Puts a context on top of the thread's stack.
pub(crate) fn push(handle: Handle) -> Outcome {
    let context = handles::context(handle).map_err(|_| Code::INVALID_CONTEXT)?;
    let thread = std::thread::current().id();
    STACK.with_borrow_mut(|stack| {
        stack.thread = Some(thread);
        stack.handles.push(handle);
        if !stack.used.contains(&handle) {
            stack.used.push(handle);
            context.state().threads.entry(thread).or_default().stays = true;
        }
    });
    Ok(())
}

/// Takes the top context off the thread's stack.
pub(crate) fn pop() -> Outcome<Handle> {
    STACK.with_borrow_mut(|stack| stack.handles.pop()).ok_or(Code::INVALID_CONTEXT)
}
