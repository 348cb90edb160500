//! The C functions, under the versioned names that libcuda exports, and their resolver.
//!
//! Those that kiln uses stand here, what other programs use in the files beside.
//! A function here turns handles and pointers into values, and leaves every decision to the module it calls. In a
//! context with a sticky error functions still free what they are given, and then return the error.
#![allow(non_snake_case)]

use super::abi::{HostFunction, INITIALISED, always, initialised};
use super::command::End::{Device, Host, Pattern};
use super::command::Side;
use super::context;
use super::graph::{Graph, GraphExec};
use super::launch::Shape;
use super::module::{Function, LoadedModule};
use super::registry::{device, device_count};
use super::stream::{Event, LEGACY};
use super::{Code, Command, Context, Handle, KernelLaunch, Leak, Outcome, Ptr, Stream, handles};
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Defines driver functions, with the C signatures of NVIDIA's header, and `find`, which finds them by name.
macro_rules! api {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) => $body:expr;)*) => {
        $($(#[$doc])* extern "C" fn $name($($arg: $type),*) -> u32 { $body })*

        /// The function of that name, if it is one of these.
        pub(super) fn find(name: &str) -> Option<*mut std::ffi::c_void> {
            Some(match name {
                $(stringify!($name) => $name as *mut std::ffi::c_void,)*
                _ => return None,
            })
        }
    };
}

mod contexts;
mod fills;
mod memory;
mod modules;
mod pools;
mod streams;
mod tensors;
mod words;

/// Finds a driver function by its versioned symbol name, such as `c"cuMemAlloc_v2"`; `None` if this driver lacks it. The
/// bare names of versioned functions are the old ABI and not offered.
///
/// The pointer is that of an `extern "C"` function with the signature of NVIDIA's `cuda.h` 13.0.
pub fn resolve(name: &CStr) -> Option<NonNull<c_void>> {
    let name = name.to_str().ok()?;
    let parts = [
        find,
        contexts::find,
        fills::find,
        memory::find,
        modules::find,
        pools::find,
        streams::find,
        tensors::find,
        words::find,
    ];
    NonNull::new(parts.into_iter().find_map(|part| part(name))?)
}

/// A call on a stream, in that stream's context. Synchronous copies and fills are calls on the legacy stream.
fn on_stream(handle: Handle, body: impl FnOnce(&Stream) -> Outcome) -> u32 {
    initialised(|| {
        let stream = Stream::resolve(handle)?;
        // Refused with the context's sticky error if there is one.
        stream.context.check()?;
        body(&stream)
    })
}

/// A call in the current context.
fn in_context(body: impl FnOnce(&Arc<Context>) -> Outcome) -> u32 {
    on_stream(0, |stream| body(&stream.context))
}

/// `CUlaunchConfig`
#[repr(C)]
#[derive(Clone, Copy)]
struct LaunchConfig {
    shape: Shape,
    stream: Handle,
    /// `CUlaunchAttribute`: a number, padding, 16 words of value.
    attributes: Ptr<[u32; 18]>,
    attribute_count: c_uint,
}

const _: () = assert!(size_of::<LaunchConfig>() == 56);

/// The identity of a device.
fn uuid(ordinal: c_int) -> [u8; 16] {
    let mut bytes = *b"kiln emulate\0\0\0\0";
    bytes[12..].copy_from_slice(&ordinal.to_be_bytes());
    bytes
}

api! {
    // Initialisation and devices.

    fn cuInit(flags: c_uint) => always(|| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if device_count() == 0 {
            return Err(Code::NO_DEVICE);
        }
        INITIALISED.store(true, Ordering::Release);
        Ok(())
    });

    /// The CUDA release whose driver this behaves like.
    fn cuDriverGetVersion(version: Ptr<c_int>) => always(|| version.set(0, 13000));

    fn cuDeviceGetCount(count: Ptr<c_int>) => initialised(|| count.fill(|| Ok(device_count() as c_int)));
    fn cuDeviceGet(handle: Ptr<c_int>, ordinal: c_int) => initialised(|| handle.fill(|| Ok(device(ordinal)?.ordinal)));

    fn cuDeviceGetName(name: Ptr<u8>, length: c_int, ordinal: c_int) => initialised(|| {
        let capacity = usize::try_from(length).map_err(|_| Code::INVALID_VALUE)?;
        name.write_text(&device(ordinal)?.config.name, capacity).map(drop)
    });

    fn cuDeviceGetAttribute(value: Ptr<c_int>, attribute: c_int, ordinal: c_int) => initialised(|| {
        let device = device(ordinal)?;
        value.fill(|| device.config.attribute(attribute).ok_or(Code::INVALID_VALUE))
    });

    fn cuDeviceTotalMem_v2(bytes: Ptr<usize>, ordinal: c_int) =>
        initialised(|| bytes.fill(|| Ok(device(ordinal)?.config.memory_bytes as usize)));

    fn cuDeviceGetUuid(bytes: Ptr<[u8; 16]>, ordinal: c_int) =>
        initialised(|| bytes.fill(|| Ok(uuid(device(ordinal)?.ordinal))));
    fn cuDeviceGetUuid_v2(bytes: Ptr<[u8; 16]>, ordinal: c_int) =>
        initialised(|| bytes.fill(|| Ok(uuid(device(ordinal)?.ordinal))));

    // Primary contexts, and the one that is current in the thread.

    fn cuDevicePrimaryCtxRetain(handle: Ptr<Handle>, ordinal: c_int) =>
        initialised(|| handle.fill(|| Ok(device(ordinal)?.retain())));
    fn cuDevicePrimaryCtxRelease_v2(ordinal: c_int) => initialised(|| device(ordinal)?.release());
    fn cuCtxSetCurrent(handle: Handle) => initialised(|| context::set_current(handle));
    fn cuCtxGetCurrent(handle: Ptr<Handle>) => initialised(|| handle.set(0, context::CURRENT.get()));

    fn cuCtxSynchronize() => in_context(|context| {
        context.state().captures.refuse(Code::STREAM_CAPTURE_UNSUPPORTED, |_| true)?;
        context.wait_for_all("cuCtxSynchronize")
    });

    // Memory, copies, fills.

    fn cuMemGetInfo_v2(free: Ptr<usize>, total: Ptr<usize>) => in_context(|context| {
        let limit = context.device.config.memory_bytes;
        free.set(0, limit.saturating_sub(context.memory.used()) as usize)?;
        total.set(0, limit as usize)
    });

    fn cuMemAlloc_v2(address: Ptr<u64>, bytes: usize) =>
        in_context(|context| address.fill(|| context.allocate("cuMemAlloc", Side::Device, bytes, 0)));
    fn cuMemFree_v2(address: u64) => initialised(|| match address {
        0 => Ok(()),
        _ => context::current()?.free("cuMemFree", Side::Device, address),
    });

    fn cuMemHostAlloc(address: Ptr<u64>, bytes: usize, flags: c_uint) => in_context(|context| {
        // 1: seen by all contexts, of which a device has one; 2: mapped, as all of it is; 4: not cached by the host.
        if flags > 7 {
            return Err(Code::INVALID_VALUE);
        }
        address.fill(|| context.allocate("cuMemHostAlloc", Side::Host, bytes, flags))
    });

    fn cuMemFreeHost(address: u64) =>
        initialised(|| context::current()?.free("cuMemFreeHost", Side::Host, address));

    fn cuMemHostGetDevicePointer_v2(address: Ptr<u64>, host: usize, flags: c_uint) => in_context(|context| {
        let seen = context.state().pinned(host, 1).filter(|_| flags == 0);
        address.fill(|| seen.ok_or(Code::INVALID_VALUE))
    });

    fn cuMemcpyHtoD_v2(to: u64, from: usize, bytes: usize) =>
        on_stream(0, |stream| stream.copy(Device(to), Host(from), bytes, true));
    fn cuMemcpyDtoH_v2(to: usize, from: u64, bytes: usize) =>
        on_stream(0, |stream| stream.copy(Host(to), Device(from), bytes, true));
    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) =>
        on_stream(0, |stream| stream.copy(Device(to), Device(from), bytes, true));
    fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: usize, stream: Handle) =>
        on_stream(stream, |stream| stream.copy(Device(to), Host(from), bytes, false));
    fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: usize, stream: Handle) =>
        on_stream(stream, |stream| stream.copy(Host(to), Device(from), bytes, false));
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) =>
        on_stream(stream, |stream| stream.copy(Device(to), Device(from), bytes, false));

    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) =>
        on_stream(stream, |stream| stream.copy(Device(to), Pattern(value.into(), 1), count, false));
    fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: Handle) =>
        on_stream(stream, |stream| stream.copy(Device(to), Pattern(value, 4), count.saturating_mul(4), false));

    // Modules, functions, occupancy.

    /// The size of a log is passed in the option's value itself: the capacity goes in, the number of bytes written comes
    /// back. Options other than logs (3 information, 5 errors, each followed by its size) tune a compiler that is not here.
    fn cuModuleLoadDataEx(handle: Ptr<Handle>, image: Ptr<u8>, count: c_uint, options: Ptr<u32>, values: Ptr<usize>) =>
        in_context(|context| {
            let image = image.text()?.to_bytes();
            let index_of = |option: u32| (0..count as usize).find(|&index| options.get(index) == Ok(option));
            let write_log = |option: u32, text: &str| {
                let (Some(buffer), Some(size)) = (index_of(option), index_of(option + 1)) else { return Ok(()) };
                let capacity = values.get(size)? & u32::MAX as usize;
                let written = Ptr::from_address(values.get(buffer)?).write_text(text, capacity);
                values.set(size, if text.is_empty() { 0 } else { written.unwrap_or(0) })
            };
            write_log(3, "")?;
            handle.fill(|| match LoadedModule::load(context, image) {
                Ok(handle) => write_log(5, "").map(|()| handle),
                Err((code, log)) => write_log(5, &log).and(Err(code)),
            })
        });

    fn cuModuleUnload(module: Handle) => initialised(|| handles::get::<LoadedModule>(module)?.unload(module));

    fn cuModuleGetFunction(function: Ptr<Handle>, module: Handle, name: Ptr<u8>) => in_context(|_| {
        let module = handles::get::<LoadedModule>(module)?;
        let name = name.text()?.to_str().map_err(|_| Code::NOT_FOUND)?;
        function.fill(|| module.function(name))
    });

    fn cuModuleGetGlobal_v2(address: Ptr<u64>, bytes: Ptr<usize>, module: Handle, name: Ptr<u8>) => in_context(|_| {
        let module = handles::get::<LoadedModule>(module)?;
        let name = name.text()?.to_str().map_err(|_| Code::NOT_FOUND)?;
        let (found, length) = module.module.global(name).ok_or(Code::NOT_FOUND)?;
        address.set(0, found)?;
        bytes.set(0, length as usize)
    });

    fn cuFuncGetAttribute(value: Ptr<c_int>, attribute: c_uint, function: Handle) =>
        in_context(|_| value.fill(|| handles::get::<Function>(function)?.attribute(attribute)));
    fn cuFuncSetAttribute(function: Handle, attribute: c_uint, value: c_int) =>
        in_context(|_| handles::get::<Function>(function)?.set_attribute(attribute, value));

    /// Loads a function ahead of its launch. Does nothing: [`cuModuleGetFunction`] has loaded it.
    fn cuFuncLoad(function: Handle) => in_context(|_| handles::get::<Function>(function).map(drop));

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Ptr<c_int>, function: Handle, block_size: c_int, dynamic_shared: usize
    ) => in_context(|_| {
        let Function { module, info, .. } = &*handles::get::<Function>(function)?;
        let threads = u32::try_from(block_size).ok().filter(|&threads| threads > 0).ok_or(Code::INVALID_VALUE)?;
        let shared = u32::try_from(dynamic_shared).unwrap_or(u32::MAX);
        blocks.set(0, info.occupancy(&module.context.device.config, threads, shared) as c_int)
    });

    // Launches of kernels and host functions.

    fn cuLaunchKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, dynamic_shared: c_uint, stream: Handle, pointers: Ptr<Ptr<u8>>, extra: usize
    ) => in_context(|_| {
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], dynamic_shared };
        KernelLaunch::new(function, shape, pointers, extra)?.queue(stream)
    });

    fn cuLaunchCooperativeKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, dynamic_shared: c_uint, stream: Handle, pointers: Ptr<Ptr<u8>>
    ) => in_context(|_| {
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], dynamic_shared };
        KernelLaunch { cooperative: true, ..KernelLaunch::new(function, shape, pointers, 0)? }.queue(stream)
    });

    fn cuLaunchKernelEx(
        config: Ptr<LaunchConfig>, function: Handle, pointers: Ptr<Ptr<u8>>, extra: usize
    ) => in_context(|_| {
        let config = config.get(0)?;
        let mut launch = KernelLaunch::new(function, config.shape, pointers, extra)?;
        for index in 0..config.attribute_count as usize {
            let [id, _, x, y, z, ..] = config.attributes.get(index)?;
            match id {
                2 => launch.cooperative = x != 0,
                4 => launch.cluster = Some([x, y, z]),
                6 => launch.programmatic = x != 0,
                _ => return Err(Code::INVALID_VALUE),
            }
        }
        launch.queue(config.stream)
    });

    fn cuLaunchHostFunc(stream: Handle, function: Option<HostFunction>, data: usize) => on_stream(stream, |stream| {
        stream.enqueue(Command::Call(function.ok_or(Code::INVALID_VALUE)?, data), None).map(drop)
    });

    // Streams.

    fn cuStreamCreate(handle: Ptr<Handle>, flags: c_uint) => in_context(|context| {
        handle.fill(|| Ok(handles::insert(context.handle, Some(Leak::Stream), Stream::create(context, flags)?)))
    });

    fn cuStreamDestroy_v2(stream: Handle) => initialised(|| {
        let stream = handles::remove::<Stream>(stream)?;
        stream.close();
        stream.context.check()
    });

    fn cuStreamSynchronize(stream: Handle) =>
        on_stream(stream, |stream| stream.context.wait("cuStreamSynchronize", &stream.pending()?));
    fn cuStreamQuery(stream: Handle) => on_stream(stream, |stream| stream.context.query(&stream.pending()?));

    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) => on_stream(stream, |stream| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        handles::get::<Event>(event)?.hold(stream)
    });

    // Events.

    fn cuEventCreate(handle: Ptr<Handle>, flags: c_uint) => in_context(|context| {
        handle.fill(|| Ok(handles::insert(context.handle, Some(Leak::Event), Event::new(context, flags)?)))
    });

    fn cuEventRecord(event: Handle, stream: Handle) =>
        on_stream(stream, |stream| handles::get::<Event>(event)?.record(stream));

    fn cuEventQuery(event: Handle) => initialised(|| {
        let event = handles::get::<Event>(event)?;
        event.context.query(event.ticket()?.as_slice())
    });

    fn cuEventSynchronize(event: Handle) => initialised(|| {
        let event = handles::get::<Event>(event)?;
        event.context.wait("cuEventSynchronize", event.ticket()?.as_slice())
    });

    fn cuEventElapsedTime(milliseconds: Ptr<f32>, start: Handle, end: Handle) => initialised(|| {
        milliseconds.fill(|| handles::get::<Event>(start)?.elapsed(&*handles::get::<Event>(end)?))
    });


    fn cuEventDestroy_v2(event: Handle) => initialised(|| handles::remove::<Event>(event)?.context.check());

    // Stream capture and graphs.

    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) => on_stream(stream, |stream| {
        if stream.id == LEGACY {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        let mut state = stream.context.state();
        state.queue(stream.id)?;
        state.captures.begin(stream.id, mode)
    });

    fn cuStreamEndCapture(stream: Handle, handle: Ptr<Handle>) => on_stream(stream, |stream| {
        let nodes = stream.context.state().captures.end(stream.id);
        handle.set(0, 0)?;
        let graph = Graph { context: stream.context.clone(), nodes: nodes? };
        handle.set(0, handles::insert(stream.context.handle, Some(Leak::Graph), graph))
    });

    fn cuGraphInstantiateWithFlags(handle: Ptr<Handle>, graph: Handle, flags: u64) => in_context(|_| {
        GraphExec::check_flags(flags)?;
        handle.fill(|| {
            let exec = GraphExec { graph: handles::get(graph)?, last: Mutex::default() };
            Ok(handles::insert(exec.graph.context.handle, Some(Leak::GraphExec), exec))
        })
    });

    fn cuGraphLaunch(exec: Handle, stream: Handle) =>
        on_stream(stream, |stream| handles::get::<GraphExec>(exec)?.launch(stream));

    fn cuGraphExecDestroy(exec: Handle) => initialised(|| handles::remove::<GraphExec>(exec)?.graph.context.check());
    fn cuGraphDestroy(graph: Handle) => initialised(|| handles::remove::<Graph>(graph)?.context.check());
}
