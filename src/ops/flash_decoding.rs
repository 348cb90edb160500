//! One query token of each sequence of a batch against its cache, spread over chunks of the cache.

use super::attention::check_heads;
use super::check;
use super::kernels::Ops;
use super::kv_cache::{CacheShape, KvElement};
use crate::driver::{DeviceBuffer, GpuTensor, Stream};
use crate::kernel::Kernel;
use crate::launch::{Arguments, In, Out, launch};
use crate::shape::table::KV_CHUNK;
use crate::{Error, Result};

launch! {
    struct Chunk<'a> {
        q: In<'a, f32>,
        k_caches: In<'a, u64>,
        v_caches: In<'a, u64>,
        lengths: In<'a, u32>,
        partials: Out<'a, f32>,
        max_chunks: u32,
        error: Out<'a, u32>,
        max_seq_len: u32,
        heads: u32,
        group: u32,
    }
}

launch! {
    struct Reduce<'a> {
        partials: In<'a, f32>,
        lengths: In<'a, u32>,
        max_chunks: u32,
        out: Out<'a, f32>,
        heads: u32,
    }
}

/// Flash decoding for a batch of sequences: their caches, and room for the partial results. The result is that of
/// incremental attention, to rounding; where there are few heads and long caches, more of the device works on it.
///
/// It borrows the caches, since their addresses stand in device memory:
/// ```compile_fail,E0505
/// # use kiln::{driver::GpuTensor, ops::{CacheShape, Ops}};
/// # fn f(ops: &Ops, shape: CacheShape, k: GpuTensor<f32>, v: GpuTensor<f32>) -> kiln::Result<()> {
/// let flash = ops.flash_decoding(8, shape, &[&k], &[&v], 1000)?;
/// drop(k);
/// println!("{}", flash.num_chunks(1000));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FlashDecoding<'a, T: KvElement> {
    chunk: Kernel<Chunk<'static>>,
    /// Query heads that a block of it works on.
    heads_per_block: u32,
    reduce: Kernel<Reduce<'static>>,
    heads: u32,
    group: u32,
    shape: CacheShape,
    max_chunks: u32,
    k_caches: Vec<&'a GpuTensor<T>>,
    v_caches: Vec<&'a GpuTensor<T>>,
    /// `[batch]`: addresses of the caches.
    k_addresses: DeviceBuffer<u64>,
    v_addresses: DeviceBuffer<u64>,
    /// `[batch, heads, max_chunks, head_dim + 2]`.
    partials: DeviceBuffer<f32>,
}

impl Ops {
    /// Prepares flash decoding over caches `[kv_heads, max_seq_len, head_dim]`, one of keys and one of values for each
    /// sequence, for lengths up to `max_len`. Allocates; running does not.
    ///
    /// # Errors
    /// If the numbers of caches differ or are 0, a cache's length differs, `max_len` is 0 or beyond the caches, a size
    /// overflows 32 bits, a cache is on another device, or no kernel was baked for the head size.
    pub fn flash_decoding<'a, T: KvElement>(
        &'a self,
        heads: u32,
        shape: CacheShape,
        k_caches: &[&'a GpuTensor<T>],
        v_caches: &[&'a GpuTensor<T>],
        max_len: u32,
    ) -> Result<FlashDecoding<'a, T>> {
        let CacheShape { max_seq_len, head_dim, .. } = shape;
        let group = check_heads(heads, shape)?;
        let batch = u32::try_from(k_caches.len()).unwrap_or(u32::MAX);
        // The least limit of a grid's third dimension.
        let fits = batch > 0 && batch <= 65535 && v_caches.len() == k_caches.len();
        check::number("k_caches of flash decoding", batch, fits, || {
            format!("1 to 65535, and as many as v_caches, {}", v_caches.len())
        })?;
        check::number("max_len of flash decoding", max_len, max_len > 0 && max_len <= max_seq_len, || {
            format!("1 to max_seq_len, {max_seq_len}")
        })?;
        for (what, caches) in [("k_cache of flash decoding", k_caches), ("v_cache of flash decoding", v_caches)] {
            for cache in caches {
                shape.check(what, cache)?;
                if cache.device() != self.device() {
                    let (found, expected) = (cache.device().ordinal(), self.device().ordinal());
                    return Err(Error::WrongDevice { what, found, expected });
                }
            }
        }
        let max_chunks = max_len.div_ceil(KV_CHUNK);
        let dims = [("sequences", batch), ("heads", heads), ("chunks", max_chunks), ("head_dim + 2", head_dim + 2)];
        let partials = check::elements("partial results of flash decoding", &dims)?;
        let bake = "FlashDecodingChunk::general(head_dim, ..)";
        let (chunk, heads_per_block) = self.find_attention(T::FLASH, head_dim, group, bake)?;
        let bake = "FlashDecodingReduce::general(head_dim)";
        let reduce = self.find_for("flash_decoding_reduce", head_dim, bake)?;
        let addresses = |caches: &[&GpuTensor<T>]| {
            let addresses: Vec<u64> = caches.iter().map(|cache| cache.as_ptr().address()).collect();
            DeviceBuffer::from_host(self.device(), &addresses)
        };
        Ok(FlashDecoding {
            chunk,
            heads_per_block,
            reduce,
            heads,
            group,
            shape,
            max_chunks,
            k_caches: k_caches.to_vec(),
            v_caches: v_caches.to_vec(),
            k_addresses: addresses(k_caches)?,
            v_addresses: addresses(v_caches)?,
            partials: DeviceBuffer::uninitialized(self.device(), partials as usize)?,
        })
    }
}

impl<T: KvElement> FlashDecoding<'_, T> {
    /// Positions of a chunk.
    pub const fn chunk_size(&self) -> u32 {
        KV_CHUNK
    }

    /// Chunks of a sequence of `len` positions.
    pub const fn num_chunks(&self, len: u32) -> u32 {
        len.div_ceil(KV_CHUNK)
    }

    /// Enqueues both launches on `stream`: `q` and `out` are `[batch, heads, head_dim]`, `lengths` is `[batch]` in device
    /// memory. A length of 0 gives zeros; one beyond the cache, or beyond the chunks there is room for, gives zeros and
    /// sets `error[0]` to 3, which is not touched otherwise.
    ///
    /// # Errors
    /// If a length differs, a tensor is on another device, or one that is written is also another argument.
    pub fn run(
        &self,
        stream: &Stream,
        q: &GpuTensor<f32>,
        lengths: &GpuTensor<u32>,
        out: &GpuTensor<f32>,
        error: &GpuTensor<u32>,
    ) -> Result<()> {
        let FlashDecoding { heads, group, max_chunks, .. } = *self;
        let CacheShape { kv_heads, max_seq_len, head_dim } = self.shape;
        let batch = self.k_caches.len() as u32;
        let rows = [("sequences", batch), ("heads", heads), ("head_dim", head_dim)];
        check::tensor("q of flash decoding", q, &rows)?;
        check::tensor("lengths of flash decoding", lengths, &[("sequences", batch)])?;
        check::tensor("out of flash decoding", out, &rows)?;
        check::tensor("error word of flash decoding", error, &[("word", 1)])?;
        let chunk = Chunk {
            q: q.into(),
            k_caches: (&self.k_addresses).into(),
            v_caches: (&self.v_addresses).into(),
            lengths: lengths.into(),
            partials: (&self.partials).into(),
            max_chunks,
            error: error.into(),
            max_seq_len,
            heads,
            group,
        };
        // What both launches use is noted once.
        let reduce = Reduce {
            partials: In::noted(self.partials.as_ptr()),
            lengths: In::noted(lengths.as_ptr()),
            max_chunks,
            out: out.into(),
            heads,
        };
        let own = [Arguments::of(&chunk).uses(), Arguments::of(&reduce).uses()];
        let caches = self.k_caches.iter().map(|cache| cache.reads("k_cache"));
        let caches = caches.chain(self.v_caches.iter().map(|cache| cache.reads("v_cache")));
        let grid = [kv_heads * group.div_ceil(self.heads_per_block), max_chunks, batch];
        stream.enqueue_many(own.into_iter().flatten().flatten().chain(caches), |stream| {
            // SAFETY: all tensors have the lengths the kernels take them to have, the addresses are those of the caches
            // named here, and the kernels check the lengths.
            unsafe {
                self.chunk.launch(stream, grid, &chunk)?;
                self.reduce.launch(stream, [heads, batch, 1], &reduce)
            }
        })
    }
}
