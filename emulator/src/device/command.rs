//! Commands of streams and graphs, and memory as the host sees it: allocations, copies and fills, with the driver's
//! rules on what is asynchronous to the host. Source: CUDA Driver API, "API synchronization behavior".

use super::abi::{HostFunction, call_host};
use super::context::State;
use super::graph::Graph;
use super::{Call, Code, Context, KernelLaunch, Outcome, Ptr, Stream, Ticket};
use crate::checks::order::{Operation, Place};
use crate::machine::fault::{Fault, FaultKind};
use crate::memory::{Memory, MemoryError};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A command of a stream or graph.
pub(crate) enum Command {
    /// Nothing: a place to wait for.
    Nothing,
    /// An injected failure.
    Fail(Code),
    Launch(KernelLaunch),
    Copy {
        to: End,
        from: End,
        bytes: usize,
    },
    Call(HostFunction, usize),
    Graph(Arc<Graph>),
}

/// Source or destination of a copy.
pub(crate) enum End {
    Device(u64),
    /// Host memory, accessed when the copy executes. The C caller keeps it valid until then.
    Host(usize),
    /// Contents of host memory at the time of the call.
    Staged(Box<[u8]>),
    /// The low bytes of a value, as many as given, repeated.
    Pattern(u32, usize),
}

impl Command {
    pub(crate) fn is_launch(&self) -> bool {
        matches!(self, Command::Launch(_))
    }

    /// Whether it is a programmatic launch, which may begin before the kernel before it ends.
    pub(crate) fn is_programmatic(&self) -> bool {
        matches!(self, Command::Launch(launch) if launch.programmatic)
    }

    /// The cooperative launches that it executes.
    pub(crate) fn cooperative(&self) -> Vec<&KernelLaunch> {
        match self {
            Command::Launch(launch) if launch.cooperative => vec![launch],
            Command::Graph(graph) => graph.nodes.iter().flat_map(|node| node.work.cooperative()).collect(),
            Command::Nothing | Command::Fail(_) | Command::Launch(_) | Command::Copy { .. } | Command::Call(..) => {
                Vec::new()
            }
        }
    }

    /// Executes it on the calling thread. `idle` counts its instructions of polling in vain.
    pub(crate) fn run(&self, context: &Arc<Context>, place: &Place, idle: &AtomicU64) -> Outcome {
        match self {
            Command::Nothing => Ok(()),
            Command::Fail(code) => Err(*code),
            Command::Launch(launch) => launch.run(context, place, idle),
            Command::Graph(graph) => graph.replay(place, idle),
            Command::Copy { to, from, bytes } => {
                witness(context, place, to, from, *bytes)?;
                reaches_host(context, to, from, *bytes)?;
                copy(&context.memory, to, from, *bytes).map_err(|_| Code::ILLEGAL_ADDRESS)
            }
            Command::Call(function, data) => {
                // What the function does comes after what is ordered before it.
                context.memory.witness().host_waited(std::iter::once(&*place.before));
                call_host(*function, *data);
                Ok(())
            }
        }
    }
}

/// Tells the race check which bytes a copy or fill touches.
fn witness(context: &Context, place: &Place, to: &End, from: &End, bytes: usize) -> Outcome {
    if !context.device.config.checks.racecheck {
        return Ok(());
    }
    let what = match (to, from) {
        (End::Host(_), _) => "a copy to the host",
        (_, End::Device(_)) => "a copy within the device",
        (_, End::Pattern(..)) => "a fill",
        _ => "a copy from the host",
    };
    let op = Arc::new(Operation::new(what.into(), place.clone()));
    for (end, write) in [(from, false), (to, true)] {
        // Page-locked memory is touched under its device address, other memory of the host is not seen.
        let seen = match *end {
            End::Device(address) => Some(address),
            End::Host(address) => context.state().pinned(address, bytes),
            _ => None,
        };
        let touched = seen.map_or(Ok(()), |address| context.memory.touched(&op, address, bytes as u64, write));
        touched.or_else(|fault| context.device.find(fault))?;
    }
    Ok(())
}

/// Finds where the host gets bytes that nothing has written.
fn reaches_host(context: &Context, to: &End, from: &End, bytes: usize) -> Outcome {
    let (End::Host(_), &End::Device(from)) = (to, from) else { return Ok(()) };
    if !context.device.config.checks.initcheck {
        return Ok(());
    }
    match context.memory.first_undefined(from, bytes as u64) {
        Some(address) => {
            let message = "the host gets bytes that are undefined: nothing has written them, or a kernel wrote an undefined value";
            let fault = Fault::new(FaultKind::UninitialisedMemory, "a copy to the host", message);
            context.device.find(Box::new(Fault { address: Some(address), ..fault }))
        }
        None => Ok(()),
    }
}

fn copy(memory: &Memory, to: &End, from: &End, bytes: usize) -> Result<(), MemoryError> {
    match (to, from) {
        (&End::Device(to), &End::Device(from)) => memory.copy(to, from, bytes as u64),
        (&End::Device(to), End::Staged(data)) => memory.write(to, data),
        (&End::Device(to), &End::Pattern(value, width)) => {
            memory.fill(to, &value.to_le_bytes()[..width], (bytes / width) as u64)
        }
        (&End::Device(to), &End::Host(from)) => {
            // SAFETY: the C caller keeps the source valid until the copy is done.
            memory.write(to, unsafe { std::slice::from_raw_parts(from as *const u8, bytes) })
        }
        (&End::Host(to), &End::Device(from)) => {
            // SAFETY: the C caller keeps the destination valid, and to itself, until the copy is done.
            memory.read(from, unsafe { std::slice::from_raw_parts_mut(to as *mut u8, bytes) })
        }
        _ => Ok(()), // no call copies within the host
    }
}

/// Most bytes of a pageable copy that is staged: its call returns before the device has the data.
const STAGED: usize = 64 << 10;

impl Stream {
    /// Enqueues a command, unless an injection makes it fail at once or on execution.
    pub(crate) fn submit(&self, call: Call, work: Command, after: Option<Ticket>) -> Outcome<Option<Ticket>> {
        match self.context.device.injected(call) {
            Err(code) if code.is_sticky() => self.enqueue(Command::Fail(code), after),
            outcome => outcome.and_then(|()| self.enqueue(work, after)),
        }
    }

    /// Copies or fills, by a synchronous or asynchronous call.
    pub(crate) fn copy(&self, to: End, mut from: End, bytes: usize, synchronous: bool) -> Outcome {
        if bytes == 0 {
            return Ok(());
        }
        let context = &self.context;
        // A capture keeps the host's pointer, page-locked or not.
        let capturing = context.state().captures.of(self.id).is_some();
        let mut pageable = false;
        for end in [&to, &from] {
            match *end {
                End::Host(0) => return Err(Code::INVALID_VALUE),
                End::Host(address) => pageable = !capturing && context.state().pinned(address, bytes).is_none(),
                End::Device(address) => {
                    context.memory.range(address, bytes as u64).map_err(|_| Code::INVALID_VALUE)?;
                }
                End::Staged(_) | End::Pattern(..) => {}
            }
        }
        // The call to wait in, if any.
        let wait = match (&to, &from) {
            // The asynchronous form waits too where it writes pageable memory.
            (End::Host(_), _) if synchronous => Some("cuMemcpyDtoH"),
            (End::Host(_), _) => pageable.then_some("cuMemcpyDtoHAsync"),
            (_, &End::Host(address)) => {
                if synchronous && pageable {
                    context.wait("cuMemcpyHtoD", &self.pending()?)?;
                }
                // A pageable source is read before the call returns, a pinned one when its turn comes.
                let staged = pageable && (!synchronous || bytes <= STAGED);
                if staged {
                    from = End::Staged(Ptr::from_address(address).bytes(bytes)?.into());
                }
                (synchronous && !staged).then_some("cuMemcpyHtoD")
            }
            (&End::Device(to), &End::Pattern(_, width)) if !to.is_multiple_of(width as u64) => {
                return Err(Code::INVALID_VALUE);
            }
            _ => None,
        };
        let ticket = self.submit(Call::Copy, Command::Copy { to, from, bytes }, None)?;
        ticket.zip(wait).map_or(Ok(()), |(ticket, call)| context.wait(call, &[ticket]))
    }
}

/// Side whose address names an allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Device,
    /// Page-locked memory.
    Host,
}

#[derive(Clone)]
#[repr(align(4096))]
#[expect(dead_code, reason = "accessed through pointers only")]
struct Page([u8; 4096]);

/// Contents of fresh page-locked memory: not zeros, which the driver does not promise.
const FRESH: Page = Page([0xcd; 4096]);

/// An allocation of the program, freed on drop.
pub(crate) struct Buffer {
    memory: Arc<Memory>,
    /// Device address.
    device: u64,
    pub(crate) bytes: usize,
    /// Host memory behind it; empty on the device's side.
    _pages: Vec<Page>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let _ = self.memory.free(self.device); // live since it was made
    }
}

impl State {
    /// Device address of host memory `address..address + bytes`, if one page-locked allocation holds all of it.
    pub(crate) fn pinned(&self, address: usize, bytes: usize) -> Option<u64> {
        let (first, last) = ((Side::Host, 0), (Side::Host, address as u64));
        let (&(_, start), found) = self.allocations.range(first..=last).next_back()?;
        let offset = address - start as usize;
        (bytes <= found.bytes.checked_sub(offset)?).then(|| found.device + offset as u64)
    }
}

impl Context {
    /// Begins a call that may synchronise on a GPU, and so always does here: a program that makes it while a kernel
    /// waits for the host must not work by luck.
    pub(crate) fn settle(&self, call: &'static str, kind: Call) -> Outcome {
        self.state().captures.refuse_unsafe()?;
        self.device.injected(kind)?;
        self.block(call, &self.everything())
    }

    /// `cuMemAlloc` and `cuMemHostAlloc`. Returns the address on that side.
    pub(crate) fn allocate(&self, call: &'static str, side: Side, bytes: usize) -> Outcome<u64> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        self.settle(call, Call::Allocate)?;
        let mut pages = Vec::new();
        let (address, device) = match side {
            Side::Device => {
                let device = self.memory.alloc(bytes as u64).map_err(|_| Code::OUT_OF_MEMORY)?;
                (device, device)
            }
            Side::Host => {
                let count = bytes.div_ceil(size_of::<Page>());
                pages.try_reserve_exact(count).map_err(|_| Code::OUT_OF_MEMORY)?;
                pages.resize(count, FRESH);
                let pointer: *mut u8 = pages.as_mut_ptr().cast();
                // SAFETY: the pages live until the allocation is dropped, which unmaps them first. How the host
                // accesses them while kernels run is the C caller's part.
                (pointer as u64, unsafe { self.memory.map_host(pointer, bytes as u64) })
            }
        };
        let allocation = Buffer { memory: self.memory.clone(), device, bytes, _pages: pages };
        self.state().allocations.insert((side, address), allocation);
        Ok(address)
    }

    /// `cuMemFree` and `cuMemFreeHost`, which wait for all work of the context.
    pub(crate) fn free(&self, call: &'static str, side: Side, address: u64) -> Outcome {
        self.state().captures.refuse_unsafe()?;
        if !self.state().allocations.contains_key(&(side, address)) {
            return Err(Code::INVALID_VALUE);
        }
        let waited = self.wait_for_all(call);
        self.state().allocations.remove(&(side, address));
        waited
    }
}
