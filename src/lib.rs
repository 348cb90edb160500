//! Decodes Qwen language models on NVIDIA GPUs with kernels that were generated, checked and specialised
//! to the model's shape while the crate was compiled.

#[cfg(feature = "text")]
pub mod text;
