//! Contiguous caches of keys and values, and writing into them.

use super::check;
use super::kernels::Ops;
use crate::Result;
use crate::driver::{DeviceRepr, GpuTensor, Stream};
use crate::launch::{In, Out, launch};

launch! {
    struct Scatter<'a, T: KvElement> {
        k: In<'a, f32>,
        v: In<'a, f32>,
        k_cache: Out<'a, T>,
        v_cache: Out<'a, T>,
        position: u32,
        position_at: In<'a, u32>,
        error: Out<'a, u32>,
        head_dim: u32,
        max_seq_len: u32,
    }
}

/// The type of cached keys and values: `f32` or `half::f16`.
pub trait KvElement: DeviceRepr + sealed::Named {}

impl KvElement for f32 {}
impl KvElement for half::f16 {}

mod sealed {
    /// Names of the kernels for a type.
    pub trait Named: crate::launch::Number {
        /// Of the scatter.
        const SCATTER: &'static str;
        /// Of attention, without the head size.
        const ATTENTION: &'static str;
        /// Of flash decoding, without the head size.
        const FLASH: &'static str;
        /// Of RoPE with the write, without the head size.
        const ROPE: &'static str;
    }

    impl Named for f32 {
        const SCATTER: &'static str = "kv_cache_scatter_f32";
        const ATTENTION: &'static str = "incremental_attention_f32";
        const FLASH: &'static str = "flash_decoding_chunk_f32";
        const ROPE: &'static str = "qk_norm_rope_kv_scatter_f32";
    }

    impl Named for half::f16 {
        const SCATTER: &'static str = "kv_cache_scatter_f16";
        const ATTENTION: &'static str = "incremental_attention_f16";
        const FLASH: &'static str = "flash_decoding_chunk_f16";
        const ROPE: &'static str = "qk_norm_rope_kv_scatter_f16";
    }
}

/// Dimensions of a cache `[kv_heads, max_seq_len, head_dim]`; keys and values have one each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    /// Key and value heads.
    pub kv_heads: u32,
    /// Positions there is room for.
    pub max_seq_len: u32,
    /// Elements per head.
    pub head_dim: u32,
}

impl CacheShape {
    /// Checks a cache.
    pub(super) fn check<T: KvElement>(&self, what: &'static str, cache: &GpuTensor<T>) -> Result<()> {
        check::tensor(what, cache, &self.dims())
    }

    pub(super) fn dims(&self) -> [check::Dim; 3] {
        [("kv_heads", self.kv_heads), ("max_seq_len", self.max_seq_len), ("head_dim", self.head_dim)]
    }
}

/// A position or length: given now, or element 0 of a tensor when the kernel runs, so that a captured graph can be
/// replayed for the next token. What is read there and lies beyond the cache sets the error word.
#[derive(Debug, Clone, Copy)]
pub enum Index<'a> {
    /// Given now, and checked now.
    Value(u32),
    /// In device memory.
    Device(&'a GpuTensor<u32>),
}

impl<'a> Index<'a> {
    /// The value and the address that kernels take.
    pub(super) fn params(&self) -> (u32, In<'a, u32>) {
        match self {
            Index::Value(value) => (*value, In::NULL),
            Index::Device(at) => (0, (*at).into()),
        }
    }

    /// Checks a value against its bound, and that a tensor has an element.
    pub(super) fn check(&self, what: &'static str, fits: impl Fn(u32) -> bool, max_seq_len: u32) -> Result<()> {
        match self {
            Index::Value(value) => {
                check::number(what, *value, fits(*value), || format!("one within max_seq_len, {max_seq_len}"))
            }
            Index::Device(at) => {
                let found = check::length(what, at)?;
                check::number(what, found, found > 0, || "a tensor with at least one element".to_owned())
            }
        }
    }
}

impl Ops {
    /// `k_cache[h, position] = k[h]`, `v_cache[h, position] = v[h]`: `k` and `v` are `[kv_heads, head_dim]`, rounded to the
    /// cache's type. A position in device memory beyond the cache writes nothing and sets `error[0]` to 2; else `error` is
    /// not touched.
    ///
    /// # Errors
    /// If a length differs, the position given is beyond the cache, a size overflows 32 bits, a tensor is on another
    /// device, or one that is written is also another argument.
    #[allow(clippy::too_many_arguments)] // two sources, two caches, where, and what went wrong
    pub fn kv_cache_scatter<T: KvElement>(
        &self,
        stream: &Stream,
        shape: CacheShape,
        k: &GpuTensor<f32>,
        v: &GpuTensor<f32>,
        k_cache: &GpuTensor<T>,
        v_cache: &GpuTensor<T>,
        position: Index<'_>,
        error: &GpuTensor<u32>,
    ) -> Result<()> {
        let CacheShape { kv_heads, max_seq_len, head_dim } = shape;
        shape.check("k_cache of a scatter", k_cache)?;
        shape.check("v_cache of a scatter", v_cache)?;
        let source = [("kv_heads", kv_heads), ("head_dim", head_dim)];
        check::tensor("k of a scatter", k, &source)?;
        check::tensor("v of a scatter", v, &source)?;
        check::tensor("error word of a scatter", error, &[("word", 1)])?;
        position.check("position of a scatter", |position| position < max_seq_len, max_seq_len)?;
        if kv_heads == 0 {
            return Ok(());
        }
        let bake = "KvCacheScatter::general(..)";
        let kernel = self.find::<Scatter<'_, T>>(T::SCATTER, bake)?;
        let (position, position_at) = position.params();
        let launch = Scatter {
            k: k.into(),
            v: v.into(),
            k_cache: k_cache.into(),
            v_cache: v_cache.into(),
            position,
            position_at,
            error: error.into(),
            head_dim,
            max_seq_len,
        };
        // SAFETY: sources and caches have the lengths the kernel takes them to have, and it checks the position.
        unsafe { kernel.enqueue(stream, [kv_heads, 1, 1], &launch) }
    }
}
