//! Kernels, a file each, made of `blocks`. A kernel is a plain value: it knows its mathematics and its grid, not who
//! launches it.

mod advance;
mod argmax;
mod attention;
mod attention_batch;
mod causal_attention;
mod choose;
mod embedding;
mod epilogue;
mod flash_decoding;
mod fused_rmsnorm_gate_up;
mod fused_rmsnorm_gemv;
mod fused_rmsnorm_qkv;
mod gemm;
mod gemm_floats;
mod gemm_sliced;
mod gemm_tile;
mod gemm_warpgroups;
mod incremental_attention;
mod kv_cache_scatter;
mod matrix_columns;
mod per_head_rmsnorm;
mod persistent;
mod phase;
mod products;
mod qk_norm_rope_kv_write;
mod quantise;
mod repack;
mod round_columns;
mod saxpy;
mod tiles;

pub use advance::Advance;
pub use argmax::Argmax;
pub use attention::Attention;
pub use attention_batch::AttentionBatch;
pub use causal_attention::CausalAttention;
pub use choose::Choose;
pub use embedding::{EmbeddingRow, EmbeddingRows};
pub use flash_decoding::{FlashDecodingChunk, FlashDecodingReduce};
pub use fused_rmsnorm_gate_up::FusedRmsNormGateUp;
pub use fused_rmsnorm_gemv::FusedRmsNormQ4KGemv;
pub use fused_rmsnorm_qkv::FusedRmsNormQkv;
pub use gemm::Gemm;
pub use gemm_floats::GemmFloats;
pub use gemm_sliced::GemmSliced;
pub use gemm_tile::GemmTile;
pub use gemm_warpgroups::GemmWarpgroups;
pub use incremental_attention::IncrementalAttention;
pub use kv_cache_scatter::KvCacheScatter;
pub use matrix_columns::MatrixColumns;
pub use per_head_rmsnorm::PerHeadRmsNorm;
pub use persistent::PersistentDecoder;
pub use phase::{Phase, PhaseKernel};
pub use products::Products;
pub use qk_norm_rope_kv_write::{QkNormRopeKvScatter, QkNormRopeKvWrite};
pub use quantise::Quantise;
pub use repack::Repack;
pub use round_columns::RoundColumns;
pub use saxpy::Saxpy;

use crate::error::{Error, Result};
use crate::ptx::{Builder, Module};
use crate::target::Target;
pub use kiln_shape::Grid;
use std::fmt;

/// A kernel as a value: configure it, then emit it or bake it.
pub trait Kernel: fmt::Debug {
    /// The entry's name.
    fn name(&self) -> &str;

    /// Threads per block.
    fn block(&self) -> u32 {
        256
    }

    /// Blocks of its grid.
    fn grid(&self) -> Grid {
        Grid::Launch
    }

    /// Whether the dimensions are ones the kernel can work with: `Err` says what was found and what is needed.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Writes the kernel.
    fn build(&self, b: &mut Builder);

    /// The kernel alone in a module.
    ///
    /// # Errors
    /// [`Error::Dimension`] if a dimension does not fit, [`Error::Kernel`] if the target cannot run it.
    fn emit_ptx(&self, target: Target) -> Result<String>
    where
        Self: Sized,
    {
        let mut module = Module::new(target);
        add(&mut module, self)?;
        Ok(module.ptx())
    }
}

/// Adds `kernel` to `module`.
///
/// # Errors
/// As [`Kernel::emit_ptx`].
pub fn add(module: &mut Module, kernel: &dyn Kernel) -> Result<()> {
    kernel.check().map_err(|what| Error::Dimension { kernel: kernel.name().to_owned(), what })?;
    module.kernel(kernel.name(), kernel.block(), |b| kernel.build(b))?;
    Ok(())
}
