//! Many query tokens against a cache, each up to its own position, in one launch.

use super::attention::check_heads;
use super::check;
use super::kernels::Ops;
use super::kv_cache::{CacheShape, Index};
use crate::Result;
use crate::driver::{GpuTensor, Stream};
use crate::launch::{In, Out, launch};
use crate::shape::units::BatchCut;
use half::f16;

launch! {
    struct Causal<'a> {
        q: In<'a, f32>,
        k_cache: In<'a, f16>,
        v_cache: In<'a, f16>,
        max_seq_len: u32,
        out: Out<'a, f32>,
        columns: u32,
        position: u32,
        position_at: In<'a, u32>,
        error: Out<'a, u32>,
        heads: u32,
        group: u32,
    }
}

/// Arguments of causal attention: `out[c, h] = softmax(q[c, h] . K^T / sqrt(head_dim)) V` over positions 0 to
/// `position + c`, where head h uses KV head `h / (heads / kv_heads)`. Tensor cores multiply an f16 cache, whose keys and
/// values of these positions are written before.
#[derive(Debug, Clone, Copy)]
pub struct CausalAttention<'a> {
    /// Query heads: a multiple of the cache's heads.
    pub heads: u32,
    /// Query tokens.
    pub columns: u32,
    /// Dimensions of the caches; head_dim is 64 or 128, or another multiple of 64 up to 256 that was baked.
    pub shape: CacheShape,
    /// `[columns, heads, head_dim]`.
    pub q: &'a GpuTensor<f32>,
    /// `[kv_heads, max_seq_len, head_dim]`.
    pub k_cache: &'a GpuTensor<f16>,
    /// `[kv_heads, max_seq_len, head_dim]`.
    pub v_cache: &'a GpuTensor<f16>,
    /// The position of the first of them; that of the last is within `max_seq_len`.
    pub position: Index<'a>,
    /// `[columns, heads, head_dim]`, written.
    pub out: &'a GpuTensor<f32>,
    /// One word, set to 3 if a position in device memory is such that the last is beyond the cache (`out` is zeros then),
    /// else not touched.
    pub error: &'a GpuTensor<u32>,
}

impl Ops {
    /// Enqueues causal attention on `stream`.
    ///
    /// # Errors
    /// If a length differs, the head size is no multiple of 64 or beyond 256, the last position is beyond the cache, there is
    /// no column or more than four million, a size overflows 32 bits, a tensor is on another device, or one that is written is
    /// also another argument;
    /// [`Error::KernelNotBaked`](crate::Error::KernelNotBaked) for another head size, and unless the kernels for many
    /// columns are loaded: see [`Ops::open_for_columns`].
    pub fn causal_attention(&self, stream: &Stream, arguments: &CausalAttention<'_>) -> Result<()> {
        /// Blocks along a grid's second dimension.
        const MOST_BLOCKS: u32 = 65535;
        let &CausalAttention { heads, columns, shape, q, k_cache, v_cache, position, out, error } = arguments;
        let CacheShape { max_seq_len, head_dim, .. } = shape;
        let group = check_heads(heads, shape)?;
        let cut = BatchCut::of(1);
        let most = MOST_BLOCKS * 2 * cut.positions();
        check::number("columns of attention", columns, (1..=most).contains(&columns), || format!("1 to {most}"))?;
        let rows = [("columns", columns), ("heads", heads), ("head_dim", head_dim)];
        check::tensor("q of attention", q, &rows)?;
        shape.check("k_cache of attention", k_cache)?;
        shape.check("v_cache of attention", v_cache)?;
        check::tensor("out of attention", out, &rows)?;
        check::tensor("error word of attention", error, &[("word", 1)])?;
        let fits = |position: u32| position.checked_add(columns).is_some_and(|end| end <= max_seq_len);
        position.check("position of attention, the first of its columns'", fits, max_seq_len)?;
        let has_kernel = head_dim <= 256 && head_dim.is_multiple_of(64);
        check::number("head_dim of attention", head_dim, has_kernel, || "a multiple of 64 up to 256".to_owned())?;
        let bake = "CausalAttention::new(head_dim)";
        let kernel = self.find_for::<Causal<'_>>("causal_attention_f16", head_dim, bake)?;
        let (position, position_at) = position.params();
        let launch = Causal {
            q: q.into(),
            k_cache: k_cache.into(),
            v_cache: v_cache.into(),
            max_seq_len,
            out: out.into(),
            columns,
            position,
            position_at,
            error: error.into(),
            heads,
            group,
        };
        // SAFETY: all tensors have the lengths the kernel takes them to have, and it checks the position.
        unsafe { kernel.enqueue(stream, [heads, cut.blocks(columns), 1], &launch) }
    }
}
