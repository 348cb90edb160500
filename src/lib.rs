//! Decodes Qwen language models on NVIDIA GPUs with kernels that were generated, checked and specialised
//! to the model's shape while the crate was compiled.

pub mod driver;
mod error;

pub use error::{Error, Result};
