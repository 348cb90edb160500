//! The GPU as a safe Rust library: devices, streams, events, modules, launches, graphs and memory.
//!
//! Three levels, each over the one before. [`sys`] is the table of function pointers that `shim.c` fills. [`Api`] calls
//! them and returns results. The rest owns what it makes: a [`Device`] holds a primary context, a [`Stream`] orders work,
//! buffers free themselves. Nothing here knows of models, and nothing is linked: a program starts without CUDA and
//! [`Driver::load`] returns [`Error::DriverNotFound`](crate::Error::DriverNotFound).
//!
//! **Soundness.** Launches are asynchronous, and a borrow ends when the launch returns, not when the kernel does. So
//! buffers remember their last uses: [`Stream::enqueue`] notes the buffers that the work reads and writes, and lets the
//! stream wait for uses on other streams; freeing a buffer, or touching it from the host, waits for its last use. That
//! needs no guard and no scope, so [`std::mem::forget`] cannot break it. Enqueueing allocates nothing on the device. It
//! waits for two things: a resident kernel, which is asked to make room, and another thread's copy between the host and
//! one of the same buffers.
//!
//! **Waiting.** The host polls, and gives up with [`Error::Stalled`](crate::Error::Stalled) after [`Limits::wait`]
//! without progress. One wait has no limit: that of a blocking copy from or to borrowed host memory. A drop never
//! waits for longer: it leaks memory that may still be in use. A [`Resident`], work that stays on the device, makes room
//! for the rest: calls that may wait for the whole device hold it off. Other launches wait for a turn, which it yields
//! within [`Limits::turn`].
//!
//! ```no_run
//! use kiln::driver::{Device, Driver, GpuTensor, KernelParam, LaunchConfig, Module};
//!
//! # fn main() -> kiln::Result<()> {
//! # const SAXPY: &std::ffi::CStr = c"";
//! let device = Device::open(&Driver::load()?, 0)?;
//! let saxpy = Module::from_ptx(&device, SAXPY)?.function("saxpy")?;
//! let stream = device.stream()?;
//!
//! let x = GpuTensor::from_host(&device, &[1.0f32; 1000])?;
//! let y = GpuTensor::from_host(&device, &[2.0f32; 1000])?;
//! let (n, a, px, py) = (1000u32, 3.0f32, x.as_ptr(), y.as_ptr());
//! let params = [KernelParam::new(&n), KernelParam::new(&a), KernelParam::new(&px), KernelParam::new(&py)];
//! stream.enqueue([x.reads("x"), y.writes("y")], |stream| {
//!     // SAFETY: `saxpy` takes n, a, x, y; it reads n elements of x and writes n of y, and both are that long.
//!     unsafe { saxpy.launch(stream, &LaunchConfig::linear(8, 128), &params) }
//! })?;
//! drop(x); // waits until the kernel has read it
//! assert_eq!(y.to_host()?[0], 5.0);
//! # Ok(())
//! # }
//! ```
//!
//! **What is not tracked**: work enqueued by unsafe calls outside [`Stream::enqueue`], and replays of graphs.
//!
//! **A lost context.** After the codes 226, 700, 702, 710, 714 to 719, 721 and 810 of
//! [`Error::code`](crate::Error::code) every call on the device fails, in the whole process: a kernel accessed memory
//! that is not its own (700), ran longer than the display allows (702), or failed otherwise (719). Buffers are not
//! freed then. Start the process anew; of other processes only clients of the same MPS server are concerned.
//!
//! **Page-locked memory under confidential computing.** The driver moves and encrypts it. Copies from and to a
//! [`PinnedBuffer`] are slower. Nobody has tried whether a running kernel and the host see each other's words in a
//! [`MappedBuffer`].
//!
//! **`CUDA_LAUNCH_BLOCKING=1`** lets a launch return when its kernel has ended. A kernel that waits for the host then
//! waits until it leaves by itself.

mod api;
mod codes;
mod context;
mod device;
mod event;
mod event_pool;
mod function;
mod graph;
mod in_flight;
mod library;
mod memory;
#[cfg(doctest)]
mod misuse;
mod module;
mod page_locked;
mod patience;
mod pointer;
mod queue;
mod resident;
mod stream;
pub mod sys;
mod tensor;
mod tensor_map;

pub use api::Api;
#[cfg(feature = "gguf")]
pub(crate) use context::Keeper;
pub use context::{Limits, ModuleLoads};
pub use device::Device;
pub use event::Event;
pub use function::{Function, KernelParam, LaunchConfig};
pub use graph::{Graph, GraphExec};
pub use in_flight::Use;
pub use library::{Driver, Symbol, symbols};
pub use memory::DeviceBuffer;
pub use module::Module;
pub use page_locked::{MappedBuffer, MappedWord, PinnedBuffer};
#[cfg(feature = "gguf")]
pub(crate) use patience::Patience;
pub use pointer::{DevicePtr, DeviceRepr};
#[cfg(feature = "gguf")]
pub(crate) use queue::Queue;
#[cfg(feature = "gguf")]
pub(crate) use resident::Claim;
pub use resident::{Resident, Wish};
pub use stream::Stream;
pub use tensor::GpuTensor;
pub use tensor_map::TensorMap;
