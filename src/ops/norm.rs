//! RMS norm per head.

use super::check;
use super::kernels::Ops;
use crate::Result;
use crate::driver::{GpuTensor, Stream};
use crate::launch::{In, Out, launch};

launch! {
    struct PerHeadRmsNorm<'a> {
        x: In<'a, f32>,
        gamma: In<'a, f32>,
        y: Out<'a, f32>,
        heads: u32,
        eps: f32,
    }
}

impl Ops {
    /// `y[h, i] = x[h, i] * rsqrt(mean(x[h]^2) + eps) * gamma[i]`: `x` and `y` are `[heads, head_dim]`, `gamma` is
    /// `[head_dim]`. A head whose sum of squares is beyond f32, as with an element of 1e20, becomes NaN.
    ///
    /// # Errors
    /// If `x` is not a whole number of heads, a length differs, a tensor is on another device, `y` is also an input, or
    /// no kernel was baked for this head size.
    pub fn per_head_rmsnorm(
        &self,
        stream: &Stream,
        x: &GpuTensor<f32>,
        gamma: &GpuTensor<f32>,
        eps: f32,
        y: &GpuTensor<f32>,
    ) -> Result<()> {
        let head_dim = check::length("gamma of per-head RMS norm", gamma)?;
        let expected = || "a multiple of 32 up to 256".to_owned();
        let fits = head_dim > 0 && head_dim <= 256 && head_dim.is_multiple_of(32);
        check::number("head_dim of per-head RMS norm, the length of gamma", head_dim, fits, expected)?;
        let all = check::length("x of per-head RMS norm", x)?;
        let heads = all.div_ceil(head_dim);
        let dims = [("heads", heads), ("head_dim", head_dim)];
        check::tensor("x of per-head RMS norm", x, &dims)?;
        check::tensor("y of per-head RMS norm", y, &dims)?;
        let bake = "PerHeadRmsNorm::general(head_dim)";
        let kernel = self.find_for::<PerHeadRmsNorm<'_>>("per_head_rmsnorm", head_dim, bake)?;
        let grid = heads.div_ceil(kernel.block() / 32).max(1);
        let launch = PerHeadRmsNorm { x: x.into(), gamma: gamma.into(), y: y.into(), heads, eps };
        // SAFETY: x and y have heads rows of head_dim elements, gamma has head_dim, as the kernel takes them.
        unsafe { kernel.enqueue(stream, [grid, 1, 1], &launch) }
    }
}
