//! Norms of Q and K, RoPE and the write to the caches, in one launch between the projections and attention.

use super::check;
use super::kernels::Ops;
use super::kv_cache::{CacheShape, Index, KvElement};
use super::product::Norm;
use crate::driver::{Device, GpuTensor, Stream};
use crate::launch::{In, Out, launch};
use crate::rope;
use crate::{Error, Result};

launch! {
    struct Rope<'a, T: KvElement> {
        q: Out<'a, f32>,
        k: In<'a, f32>,
        v: In<'a, f32>,
        q_gamma: In<'a, f32>,
        k_gamma: In<'a, f32>,
        cos: In<'a, f32>,
        sin: In<'a, f32>,
        k_cache: Out<'a, T>,
        v_cache: Out<'a, T>,
        position: u32,
        position_at: In<'a, u32>,
        error: Out<'a, u32>,
        heads: u32,
        kv_heads: u32,
        max_seq_len: u32,
        eps: f32,
    }
}

/// Cosines and sines of rotary position embedding on a device, computed in f64.
#[derive(Debug)]
pub struct RopeTables {
    positions: u32,
    head_dim: u32,
    /// `[positions, head_dim / 2]`.
    cos: GpuTensor<f32>,
    sin: GpuTensor<f32>,
}

impl RopeTables {
    /// Tables for positions below `positions`: pair i of a head turns by `position * theta^(-2i / head_dim)`.
    ///
    /// # Errors
    /// If `head_dim` is 0 or odd, `theta` is not a number above 0, the size overflows 32 bits, or there is no memory.
    pub fn new(device: &Device, positions: u32, head_dim: u32, theta: f64) -> Result<RopeTables> {
        let even = head_dim > 0 && head_dim.is_multiple_of(2);
        check::number("head_dim of RoPE tables", head_dim, even, || "an even number of elements".to_owned())?;
        if !(theta.is_finite() && theta > 0.0) {
            return Err(Error::InvalidArgument {
                what: "theta of RoPE tables".to_owned(),
                found: theta.to_string(),
                expected: "a number above 0".to_owned(),
            });
        }
        check::elements("RoPE tables", &[("positions", positions), ("head_dim / 2", head_dim / 2)])?;
        let (cos, sin) = rope::tables(positions, head_dim, theta);
        let (cos, sin) = (GpuTensor::from_host(device, &cos)?, GpuTensor::from_host(device, &sin)?);
        Ok(RopeTables { positions, head_dim, cos, sin })
    }
}

/// Arguments of [`Ops::qk_norm_rope_kv_write`].
#[derive(Debug, Clone, Copy)]
pub struct QkNormRope<'a, T: KvElement> {
    /// Query heads.
    pub heads: u32,
    /// Dimensions of the caches.
    pub shape: CacheShape,
    /// `[heads, head_dim]`, normalised and turned in place.
    pub q: &'a GpuTensor<f32>,
    /// `[kv_heads, head_dim]`.
    pub k: &'a GpuTensor<f32>,
    /// `[kv_heads, head_dim]`.
    pub v: &'a GpuTensor<f32>,
    /// The norms of Q and K, gammas `[head_dim]`, with one epsilon; `None` for models without.
    pub norms: Option<[Norm<'a>; 2]>,
    /// For at least `max_seq_len` positions.
    pub tables: &'a RopeTables,
    /// `[kv_heads, max_seq_len, head_dim]`, one position written.
    pub k_cache: &'a GpuTensor<T>,
    /// `[kv_heads, max_seq_len, head_dim]`, one position written.
    pub v_cache: &'a GpuTensor<T>,
    /// The token's position, below `max_seq_len`.
    pub position: Index<'a>,
    /// One word, set to 2 if a position in device memory is beyond the caches (nothing else is written then), else not
    /// touched.
    pub error: &'a GpuTensor<u32>,
}

impl Ops {
    /// Normalises each head of Q and K, turns it by the angles of its position, and writes K and V into the caches, where
    /// they are rounded to their type.
    ///
    /// # Errors
    /// If a length differs, the position given is beyond the caches, tables are for fewer positions or another head size,
    /// the two norms have different epsilons, a size overflows 32 bits, a tensor is on another device, one that is
    /// written is also another argument, the head size is not a multiple of 64 up to 256, or no kernel was baked for it.
    pub fn qk_norm_rope_kv_write<T: KvElement>(&self, stream: &Stream, arguments: &QkNormRope<'_, T>) -> Result<()> {
        let &QkNormRope { heads, shape, q, k, v, norms, tables, k_cache, v_cache, position, error } = arguments;
        let CacheShape { kv_heads, max_seq_len, head_dim } = shape;
        let source = [("kv_heads", kv_heads), ("head_dim", head_dim)];
        check::tensor("q of RoPE", q, &[("heads", heads), ("head_dim", head_dim)])?;
        check::tensor("k of RoPE", k, &source)?;
        check::tensor("v of RoPE", v, &source)?;
        shape.check("k_cache of RoPE", k_cache)?;
        shape.check("v_cache of RoPE", v_cache)?;
        check::tensor("error word of RoPE", error, &[("word", 1)])?;
        if let Some([q_norm, k_norm]) = norms {
            check::tensor("q_gamma of RoPE", q_norm.gamma, &[("head_dim", head_dim)])?;
            check::tensor("k_gamma of RoPE", k_norm.gamma, &[("head_dim", head_dim)])?;
            if q_norm.eps.to_bits() != k_norm.eps.to_bits() {
                return Err(Error::InvalidArgument {
                    what: "eps of the norm of K".to_owned(),
                    found: k_norm.eps.to_string(),
                    expected: format!("that of the norm of Q, {}", q_norm.eps),
                });
            }
        }
        let same = || format!("head_dim of the caches, {head_dim}");
        check::number("head_dim of RoPE tables", tables.head_dim, tables.head_dim == head_dim, same)?;
        let enough = || format!("at least max_seq_len, {max_seq_len}");
        check::number("positions of RoPE tables", tables.positions, tables.positions >= max_seq_len, enough)?;
        position.check("position of RoPE", |position| position < max_seq_len, max_seq_len)?;
        let fits = head_dim <= 256 && head_dim.is_multiple_of(64);
        check::number("head_dim of RoPE", head_dim, fits, || "a multiple of 64 up to 256".to_owned())?;
        let bake = "QkNormRopeKvScatter::general(head_dim, ..)";
        let kernel = self.find_for::<Rope<'_, T>>(T::ROPE, head_dim, bake)?;
        // Fits: each head has 64 elements at least, and all of them fit 32 bits.
        let warps = heads + 2 * kv_heads;
        if warps == 0 {
            return Ok(());
        }
        let grid = warps.div_ceil(kernel.block() / 32);
        let (position, position_at) = position.params();
        let [q_gamma, k_gamma] = [0, 1].map(|i| In::from(norms.map(|norms| norms[i].gamma)));
        let launch = Rope {
            q: q.into(),
            k: k.into(),
            v: v.into(),
            q_gamma,
            k_gamma,
            cos: (&tables.cos).into(),
            sin: (&tables.sin).into(),
            k_cache: k_cache.into(),
            v_cache: v_cache.into(),
            position,
            position_at,
            error: error.into(),
            heads,
            kv_heads,
            max_seq_len,
            eps: norms.map_or(0.0, |[q, _]| q.eps),
        };
        // SAFETY: all tensors have the lengths the kernel takes them to have, the tables reach as far as the caches, and it
        // checks the position.
        unsafe { kernel.enqueue(stream, [grid, 1, 1], &launch) }
    }
}
