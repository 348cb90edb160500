//! One query token against a cache, in one launch.

use super::check;
use super::kernels::Ops;
use super::kv_cache::{CacheShape, Index, KvElement};
use crate::Result;
use crate::driver::{Event, GpuTensor, Stream};
use crate::launch::{In, Out, launch};

launch! {
    struct Attention<'a, T: KvElement> {
        q: In<'a, f32>,
        k_cache: In<'a, T>,
        v_cache: In<'a, T>,
        max_seq_len: u32,
        out: Out<'a, f32>,
        length: u32,
        length_at: In<'a, u32>,
        error: Out<'a, u32>,
        group: u32,
    }
}

/// Arguments of incremental attention: `out[h] = softmax(q[h] . K^T / sqrt(head_dim)) V` over the first `length` positions,
/// where head h uses KV head `h / (heads / kv_heads)`. A length of 0 gives zeros. Up to 8 query heads of a KV head share
/// one read of its keys and values.
#[derive(Debug, Clone, Copy)]
pub struct IncrementalAttention<'a, T: KvElement> {
    /// Query heads: a multiple of the cache's heads.
    pub heads: u32,
    /// Dimensions of the caches.
    pub shape: CacheShape,
    /// `[heads, head_dim]`.
    pub q: &'a GpuTensor<f32>,
    /// `[kv_heads, max_seq_len, head_dim]`.
    pub k_cache: &'a GpuTensor<T>,
    /// `[kv_heads, max_seq_len, head_dim]`.
    pub v_cache: &'a GpuTensor<T>,
    /// Positions that count, up to `max_seq_len`.
    pub length: Index<'a>,
    /// `[heads, head_dim]`, written.
    pub out: &'a GpuTensor<f32>,
    /// One word, set to 3 if a length in device memory is beyond the cache (`out` is zeros then), else not touched.
    pub error: &'a GpuTensor<u32>,
}

impl Ops {
    /// Runs attention and waits for it.
    ///
    /// # Errors
    /// If a length differs, `length` is beyond the cache, a size overflows 32 bits, a tensor is on another device, one
    /// that is written is also another argument, or no kernel was baked for the head size.
    pub fn incremental_attention<T: KvElement>(&self, arguments: &IncrementalAttention<'_, T>) -> Result<()> {
        self.incremental_attention_on(&self.stream, arguments)?;
        self.stream.synchronize()
    }

    /// Enqueues attention on `stream`.
    ///
    /// # Errors
    /// As [`Ops::incremental_attention`].
    pub fn incremental_attention_on<T: KvElement>(
        &self,
        stream: &Stream,
        arguments: &IncrementalAttention<'_, T>,
    ) -> Result<()> {
        let &IncrementalAttention { heads, shape, q, k_cache, v_cache, length, out, error } = arguments;
        let CacheShape { max_seq_len, head_dim, .. } = shape;
        let group = check_heads(heads, shape)?;
        let rows = [("heads", heads), ("head_dim", head_dim)];
        check::tensor("q of attention", q, &rows)?;
        shape.check("k_cache of attention", k_cache)?;
        shape.check("v_cache of attention", v_cache)?;
        check::tensor("out of attention", out, &rows)?;
        check::tensor("error word of attention", error, &[("word", 1)])?;
        length.check("length of attention", |length| length <= max_seq_len, max_seq_len)?;
        let bake = "IncrementalAttention::general(head_dim, ..)";
        let (kernel, heads_per_block) = self.find_attention::<Attention<'_, T>>(T::ATTENTION, head_dim, group, bake)?;
        let grid = shape.kv_heads * group.div_ceil(heads_per_block);
        let (length, length_at) = length.params();
        let launch = Attention {
            q: q.into(),
            k_cache: k_cache.into(),
            v_cache: v_cache.into(),
            max_seq_len,
            out: out.into(),
            length,
            length_at,
            error: error.into(),
            group,
        };
        // SAFETY: all tensors have the lengths the kernel takes them to have, and it checks the length.
        unsafe { kernel.enqueue(stream, [grid, 1, 1], &launch) }
    }

    /// Enqueues attention on `stream`, and gives the event that happens when it is done.
    ///
    /// # Errors
    /// As [`Ops::incremental_attention`].
    pub fn incremental_attention_event<T: KvElement>(
        &self,
        stream: &Stream,
        arguments: &IncrementalAttention<'_, T>,
    ) -> Result<Event> {
        self.incremental_attention_on(stream, arguments)?;
        stream.record()
    }
}

/// Query heads of a KV head.
pub(super) fn check_heads(heads: u32, shape: CacheShape) -> Result<u32> {
    let CacheShape { kv_heads, head_dim, .. } = shape;
    let fits = head_dim > 0 && head_dim <= 256 && head_dim.is_multiple_of(16);
    check::number("head_dim of attention", head_dim, fits, || "a multiple of 16 up to 256".to_owned())?;
    let divides = heads > 0 && kv_heads > 0 && heads.is_multiple_of(kv_heads);
    check::number("heads of attention", heads, divides, || format!("a multiple of kv_heads, {kv_heads}"))?;
    Ok(heads / kv_heads)
}
