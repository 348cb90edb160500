//! Decodes Qwen language models on NVIDIA GPUs with kernels that were generated, checked and specialised
//! to the model's shape while the crate was compiled.
//!
//! A [`Model`] is a GGUF file on a [`Device`], a [`Session`] a sequence of tokens with its KV cache, a [`Generation`] an
//! iterator over what follows. A cargo feature chooses a model's kernels: `tiny`, of the demo model, makes the static
//! `baked::TINY`, `qwen3-8b` makes `baked::QWEN3_8B`.
//!
//! ```no_run
//! # #[cfg(all(feature = "gguf", feature = "text", feature = "tiny"))]
//! # fn main() -> kiln::Result<()> {
//! use kiln::driver::Driver;
//! use kiln::model::{GenerateOptions, SessionOptions};
//! use kiln::text::{Special, Tokenizer};
//! use kiln::{Device, Model, baked};
//!
//! let device = Device::open(&Driver::load()?, 0)?;
//! let model = Model::open(&device, &baked::TINY, "examples/data/demo.Q4_K_M.gguf")?;
//! let tokenizer = Tokenizer::from_gguf(model.gguf())?;
//!
//! let mut session = model.session(SessionOptions::default())?;
//! session.append(&tokenizer.encode("The", Special::Plain))?;
//! for text in session.text(&tokenizer, GenerateOptions::new(40)) {
//!     print!("{}", text?);
//! }
//! # Ok(())
//! # }
//! # #[cfg(not(all(feature = "gguf", feature = "text", feature = "tiny")))]
//! # fn main() {}
//! ```
//!
//! Without any model, [`driver`] is a safe layer over the GPU's driver, and [`ops`] launches single kernels. Both run on
//! kiln's emulator as well, which programs take for their tests: its functions stand where the driver's would.
//!
//! ```
//! use kiln::Device;
//! use kiln::driver::{Driver, GpuTensor};
//! use kiln::ops::Ops;
//! use kiln_emulator::{DeviceConfig, add_device, resolve};
//!
//! # fn main() -> kiln::Result<()> {
//! let ordinal = add_device(DeviceConfig::with_sm(9, 0));
//! // SAFETY: the emulator's functions have NVIDIA's signatures and behaviour.
//! let driver = unsafe { Driver::from_resolver(|name| resolve(name).map_or(std::ptr::null(), |found| found.as_ptr())) }?;
//! let device = Device::open(&driver, ordinal)?;
//!
//! let (ops, stream) = (Ops::open(&device)?, device.stream()?);
//! let x = GpuTensor::from_host(&device, &[1.0f32, 2.0])?;
//! let y = GpuTensor::from_host(&device, &[10.0f32, 10.0])?;
//! ops.saxpy(&stream, 3.0, &x, &y)?;
//! assert_eq!(y.to_host()?, [13.0, 16.0]);
//! # Ok(())
//! # }
//! ```

pub mod baked;
#[cfg(all(feature = "gguf", feature = "text"))]
pub mod chat;
pub mod driver;
mod error;
#[cfg(feature = "grammar")]
pub mod grammar;
pub mod kernel;
pub mod launch;
#[cfg(feature = "gguf")]
pub mod model;
pub mod ops;
mod rope;
#[cfg(feature = "text")]
pub mod text;

pub use driver::Device;
pub use error::{Error, Result};
/// Shapes, presets and the GGUF header reader: what a model is.
pub use kiln_shape as shape;
#[cfg(feature = "gguf")]
pub use model::{Generation, Model, Session};
