//! Decodes Qwen language models on NVIDIA GPUs with kernels that were generated, checked and specialised
//! to the model's shape while the crate was compiled.

pub mod baked;
pub mod driver;
mod error;
mod kernel;
mod launch;
#[cfg(feature = "gguf")]
pub mod model;
pub mod ops;
mod rope;
#[cfg(feature = "text")]
pub mod text;

pub use driver::Device;
pub use error::{Error, Result};
/// What a model is: shapes, presets and the GGUF header reader.
pub use kiln_shape as shape;
#[cfg(feature = "gguf")]
pub use model::{Generation, Model, Session};
