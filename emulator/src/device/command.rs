//! Commands of streams and graphs, and memory as the host sees it: allocations, copies and fills, with the driver's
//! rules on what is asynchronous to the host. Source: CUDA Driver API, "API synchronization behavior".

use super::abi::{HostFunction, call_host};
use super::context::State;
use super::graph::Graph;
use super::{Call, Code, Context, KernelLaunch, Outcome, Ptr, Stream, Ticket, lock};
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
    /// Gives an allocation back.
    Free(u64),
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
            Command::Nothing
            | Command::Fail(_)
            | Command::Launch(_)
            | Command::Copy { .. }
            | Command::Call(..)
            | Command::Free(_) => Vec::new(),
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
                count(context, to, from, *bytes);
                reaches_host(context, to, from, *bytes)?;
                copy(&context.memory, to, from, *bytes).map_err(|_| Code::ILLEGAL_ADDRESS)
            }
            Command::Free(address) => {
                context.state().allocations.remove(&(Side::Device, *address));
                Ok(())
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

/// Counts a copy between the host and the device, while the device has a clock that runs.
fn count(context: &Context, to: &End, from: &End, bytes: usize) {
    let crosses =
        matches!((to, from), (End::Host(_), End::Device(_)) | (End::Device(_), End::Host(_) | End::Staged(_)));
    let mut control = lock(&context.device.control);
    if crosses && context.device.config.clock.is_some() && !control.untimed {
        control.copies.count += 1;
        control.copies.bytes += bytes as u64;
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
        (&End::Host(to), &End::Host(from)) => {
            // SAFETY: the C caller keeps both valid until the copy is done. They may overlap.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
            Ok(())
        }
        _ => Ok(()), // no call fills the host's memory
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
                End::Host(address) => pageable |= !capturing && context.state().pinned(address, bytes).is_none(),
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

/// Origin of memory that a program may name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The driver's: device memory, or page-locked memory.
    Allocated,
    /// The program's own, registered.
    Registered,
    /// Managed: both sides see it at the same address.
    Managed,
    /// A stream will give it back.
    Leaving,
}

/// An allocation of the program, freed on drop.
pub(crate) struct Buffer {
    memory: Arc<Memory>,
    /// Device address.
    pub(crate) device: u64,
    pub(crate) bytes: usize,
    pub(crate) origin: Origin,
    /// The flags that it was asked for with.
    pub(crate) flags: u32,
    /// Host memory behind it; empty on the device's side, and where it is the program's own.
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

impl State {
    /// The allocation that holds an address of the device or of the host: its side, its address there, and itself.
    pub(crate) fn holding(&self, address: u64) -> Option<(Side, u64, &Buffer)> {
        let below = |side| self.allocations.range((side, 0)..=(side, address)).next_back();
        let holds = |start: u64, buffer: &Buffer| address.wrapping_sub(start) < buffer.bytes as u64;
        let named = [Side::Device, Side::Host].into_iter().filter_map(below);
        let named = named.map(|(&(side, start), buffer)| (side, start, buffer));
        let seen = self.allocations.iter().map(|(&(side, start), buffer)| (side, start, buffer));
        let mut named = named.filter(|&(_, start, buffer)| holds(start, buffer));
        named.next().or_else(|| seen.into_iter().find(|(_, _, buffer)| holds(buffer.device, buffer)))
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
    pub(crate) fn allocate(&self, call: &'static str, side: Side, bytes: usize, flags: u32) -> Outcome<u64> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        self.settle(call, Call::Allocate)?;
        match side {
            Side::Device => self.allocate_at_once(bytes),
            Side::Host => {
                let mut pages = pages(bytes)?;
                let pointer: *mut u8 = pages.as_mut_ptr().cast();
                // SAFETY: the pages live until the allocation is dropped, which unmaps them first. How the host
                // accesses them while kernels run is the C caller's part.
                let device = unsafe { self.memory.map_host(pointer, bytes as u64) };
                self.keep(side, pointer as u64, device, bytes, Origin::Allocated, flags, pages)
            }
        }
    }

    /// Device memory, without waiting for anything.
    fn allocate_at_once(&self, bytes: usize) -> Outcome<u64> {
        let device = self.memory.alloc(bytes as u64).map_err(|_| Code::OUT_OF_MEMORY)?;
        self.keep(Side::Device, device, device, bytes, Origin::Allocated, 0, Vec::new())
    }

    #[allow(clippy::too_many_arguments)] // the fields of a buffer
    fn keep(
        &self,
        side: Side,
        address: u64,
        device: u64,
        bytes: usize,
        origin: Origin,
        flags: u32,
        pages: Vec<Page>,
    ) -> Outcome<u64> {
        let buffer = Buffer { memory: self.memory.clone(), device, bytes, origin, flags, _pages: pages };
        self.state().allocations.insert((side, address), buffer);
        Ok(address)
    }

    /// `cuMemAllocManaged`
    pub(crate) fn allocate_managed(&self, bytes: usize, flags: u32) -> Outcome<u64> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        self.settle("cuMemAllocManaged", Call::Allocate)?;
        let mut pages = pages(bytes)?;
        let pointer: *mut u8 = pages.as_mut_ptr().cast();
        // SAFETY: as for page-locked memory.
        let shared = unsafe { self.memory.share_host(pointer, bytes as u64) };
        let address = shared.map_err(|_| Code::OUT_OF_MEMORY)?;
        self.keep(Side::Device, address, address, bytes, Origin::Managed, flags, pages)
    }

    /// `cuMemHostRegister`
    pub(crate) fn register(&self, host: usize, bytes: usize, flags: u32) -> Outcome {
        let end = host.checked_add(bytes).filter(|_| host != 0 && bytes != 0).ok_or(Code::INVALID_VALUE)?;
        self.settle("cuMemHostRegister", Call::Allocate)?;
        let overlaps = |(&(_, start), buffer): (&(Side, u64), &Buffer)| {
            (start as usize) < end && host < start as usize + buffer.bytes
        };
        let pinned = (Side::Host, 0)..=(Side::Host, u64::MAX);
        if self.state().allocations.range(pinned).any(overlaps) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        // SAFETY: the C caller keeps the memory until it unregisters it.
        let device = unsafe { self.memory.map_host(host as *mut u8, bytes as u64) };
        self.keep(Side::Host, host as u64, device, bytes, Origin::Registered, flags, Vec::new()).map(drop)
    }

    /// `cuMemHostUnregister`
    pub(crate) fn unregister(&self, host: usize) -> Outcome {
        let key = (Side::Host, host as u64);
        match self.state().allocations.get(&key) {
            Some(buffer) if buffer.origin == Origin::Registered => {}
            Some(_) => return Err(Code::INVALID_VALUE),
            None => return Err(Code::HOST_MEMORY_NOT_REGISTERED),
        }
        self.state().captures.refuse_unsafe()?;
        let waited = self.wait_for_all("cuMemHostUnregister");
        self.state().allocations.remove(&key);
        waited
    }

    /// `cuMemFree` and `cuMemFreeHost`, which wait for all work of the context.
    pub(crate) fn free(&self, call: &'static str, side: Side, address: u64) -> Outcome {
        self.state().captures.refuse_unsafe()?;
        let key = (side, address);
        let may = |buffer: &Buffer| matches!(buffer.origin, Origin::Allocated | Origin::Managed);
        if !self.state().allocations.get(&key).is_some_and(may) {
            return Err(Code::INVALID_VALUE);
        }
        let waited = self.wait_for_all(call);
        self.state().allocations.remove(&key);
        waited
    }
}

/// Fresh page-locked memory.
fn pages(bytes: usize) -> Outcome<Vec<Page>> {
    let mut pages = Vec::new();
    let count = bytes.div_ceil(size_of::<Page>());
    pages.try_reserve_exact(count).map_err(|_| Code::OUT_OF_MEMORY)?;
    pages.resize(count, FRESH);
    Ok(pages)
}

impl Stream {
    /// `cuMemAllocAsync`. The memory is there at once; what uses it before its turn is not told from what may.
    pub(crate) fn allocate(&self, bytes: usize) -> Outcome<u64> {
        let context = &self.context;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        // A capture would make it a node.
        if context.state().captures.of(self.id).is_some() {
            return Err(Code::NOT_SUPPORTED);
        }
        context.device.injected(Call::Allocate)?;
        context.allocate_at_once(bytes)
    }

    /// `cuMemFreeAsync`: gives memory back when the stream comes to it.
    pub(crate) fn free(&self, address: u64) -> Outcome {
        let context = &self.context;
        let key = (Side::Device, address);
        let may = |buffer: &Buffer| matches!(buffer.origin, Origin::Allocated | Origin::Managed);
        {
            let state = &mut *context.state();
            if state.captures.of(self.id).is_some() {
                return Err(Code::NOT_SUPPORTED);
            }
            let buffer = state.allocations.get_mut(&key).filter(|buffer| may(buffer)).ok_or(Code::INVALID_VALUE)?;
            buffer.origin = Origin::Leaving;
        }
        self.enqueue(Command::Free(address), None).map(drop)
    }
}
