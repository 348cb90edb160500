//! Checked launches of single kernels, for people who bring their own model.
//!
//! [`Ops`] holds the general kernels on one device: sizes are launch parameters, so no model has to be baked. Its methods
//! take tensors that stay on the device, check every length, and enqueue on the caller's stream; nothing there
//! synchronises, allocates on the device or loads. Safe code cannot free or rewrite a tensor that a kernel in flight
//! uses: see [`driver`](crate::driver).
//!
//! - products: [`Ops::gemv`], [`Ops::fused_rmsnorm_gemv`], [`Ops::gemv_with`] for any of a norm, a bias and a residual,
//!   [`Ops::fused_rmsnorm_qkv`], [`Ops::fused_rmsnorm_gate_up`]; a [`Matrix`] has any type that kiln supports;
//! - heads: [`Ops::per_head_rmsnorm`], [`Ops::qk_norm_rope_kv_write`], [`Ops::kv_cache_scatter`];
//! - attention: [`Ops::incremental_attention`], [`Ops::flash_decoding`];
//! - many columns at once, by tensor cores from sm_80 on, with [`Ops::open_for_columns`]: [`Ops::quantise`] and
//!   [`Ops::gemm`], [`Ops::causal_attention`].
//!
//! Outputs are shared references, like cells: writes to a tensor follow the order of their streams. A call refuses an
//! output that is also another of its arguments.
//!
//! ```no_run
//! use kiln::driver::{Device, Driver, GpuTensor};
//! use kiln::ops::Ops;
//!
//! # fn main() -> kiln::Result<()> {
//! let device = Device::open(&Driver::load()?, 0)?;
//! let ops = Ops::open(&device)?;
//! let stream = device.stream()?;
//! let x = GpuTensor::from_host(&device, &[1.0f32, 2.0])?;
//! let y = GpuTensor::from_host(&device, &[10.0f32, 10.0])?;
//! ops.saxpy(&stream, 3.0, &x, &y)?;
//! assert_eq!(y.to_host()?, [13.0, 16.0]);
//! # Ok(())
//! # }
//! ```

mod attention;
mod causal_attention;
mod check;
mod columns;
mod flash_decoding;
mod kernels;
mod kv_cache;
mod layer;
mod matrix;
mod norm;
mod product;
mod rope;
mod saxpy;

pub use attention::IncrementalAttention;
pub use causal_attention::CausalAttention;
pub use columns::{Columns, Gemm};
pub use flash_decoding::FlashDecoding;
pub use kernels::Ops;
pub use kv_cache::{CacheShape, Index, KvElement};
pub use layer::Qkv;
pub use matrix::Matrix;
#[cfg(feature = "gguf")]
pub(crate) use matrix::RepackBlocks;
pub use product::{Gemv, Norm};
pub use rope::{QkNormRope, RopeTables};
