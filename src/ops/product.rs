//! Gemv, fused with an RMS norm of the vector before it, a bias and a residual behind it.

use super::check;
use super::kernels::Ops;
use super::matrix::Matrix;
use crate::Result;
use crate::driver::{GpuTensor, Stream};
use crate::kernel::Kernel;
use crate::launch::{In, Launch, Out, launch};
use crate::shape::ROWS_TOGETHER;

launch! {
    /// Parameters of the gemv kernels: one for each type of weights, with and without the norm.
    struct Product<'a> {
        w: In<'a, u8>,
        w_scales: In<'a, u8>,
        x: In<'a, f32>,
        gamma: In<'a, f32>,
        bias: In<'a, f32>,
        residual: In<'a, f32>,
        y: Out<'a, f32>,
        k: u32,
        n: u32,
        eps: f32,
    }
}

/// An RMS norm of a vector: `x[i] * rsqrt(mean(x^2) + eps) * gamma[i]`. It is NaN where the sum of squares is beyond
/// f32, as with an element of 1e20.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// `[k]`, as long as the vector.
    pub gamma: &'a GpuTensor<f32>,
    /// Added under the root.
    pub eps: f32,
}

/// Arguments of a gemv: `y = W norm(x) + bias + residual`, of which all but `W x` may be left out.
#[derive(Debug, Clone, Copy)]
pub struct Gemv<'a> {
    /// `[n, k]`, of any type.
    pub w: &'a Matrix,
    /// `[k]`.
    pub x: &'a GpuTensor<f32>,
    /// The norm of `x` in front; gamma is `[k]`.
    pub norm: Option<Norm<'a>>,
    /// `[n]`, added.
    pub bias: Option<&'a GpuTensor<f32>>,
    /// `[n]`, added.
    pub residual: Option<&'a GpuTensor<f32>>,
    /// `[n]`, written.
    pub y: &'a GpuTensor<f32>,
}

impl Ops {
    /// `y[n] = sum_k W[n, k] * x[k]`.
    ///
    /// # Errors
    /// If a length is not the matrix's, a tensor is on another device, or `y` is also `x`.
    pub fn gemv(&self, stream: &Stream, w: &Matrix, x: &GpuTensor<f32>, y: &GpuTensor<f32>) -> Result<()> {
        self.gemv_with(stream, &Gemv { w, x, norm: None, bias: None, residual: None, y })
    }

    /// `y[n] = sum_k W[n, k] * x[k] * rsqrt(mean(x^2) + eps) * gamma[k]`, in one launch that reads `x` and `gamma` once
    /// for each block.
    ///
    /// # Errors
    /// As [`Ops::gemv`].
    pub fn fused_rmsnorm_gemv(
        &self,
        stream: &Stream,
        w: &Matrix,
        x: &GpuTensor<f32>,
        gamma: &GpuTensor<f32>,
        eps: f32,
        y: &GpuTensor<f32>,
    ) -> Result<()> {
        let norm = Some(Norm { gamma, eps });
        self.gemv_with(stream, &Gemv { w, x, norm, bias: None, residual: None, y })
    }

    /// Gemv with any of a norm before it, and a bias and a residual behind it, in one launch.
    ///
    /// # Errors
    /// If a length is not the matrix's, a tensor is on another device, or `y` is also another argument.
    pub fn gemv_with(&self, stream: &Stream, arguments: &Gemv<'_>) -> Result<()> {
        let &Gemv { w, x, norm, bias, residual, y } = arguments;
        let (fused, plain) = w.ty.gemv_entries();
        let kernel = match norm {
            Some(_) => self.find::<Product<'_>>(fused, "FusedRmsNormQ4KGemv::general().with_weights(..)")?,
            None => self.find(plain, "FusedRmsNormQ4KGemv::general().with_weights(..).without_norm()")?,
        };
        check::tensor("x of a product", x, &[("columns", w.k)])?;
        check::tensor("y of a product", y, &[("rows", w.n)])?;
        if let Some(norm) = norm {
            check::tensor("gamma of a product", norm.gamma, &[("columns", w.k)])?;
        }
        for (what, addend) in [("bias of a product", bias), ("residual of a product", residual)] {
            addend.map_or(Ok(()), |addend| check::tensor(what, addend, &[("rows", w.n)]))?;
        }
        let grid = grid(&kernel, w.n.div_ceil(ROWS_TOGETHER));
        let launch = Product {
            w: (&w.data).into(),
            w_scales: (&w.plane).into(),
            x: x.into(),
            gamma: norm.map(|norm| norm.gamma).into(),
            bias: bias.into(),
            residual: residual.into(),
            y: y.into(),
            k: w.k,
            n: w.n,
            eps: norm.map_or(0.0, |norm| norm.eps),
        };
        // SAFETY: the matrix has n rows of k weights with their scales, x and gamma have k elements, y and what is added
        // have n; what is null is not read.
        unsafe { kernel.enqueue(stream, [grid, 1, 1], &launch) }
    }
}

/// Blocks of a launch with a warp for each tile.
pub(super) fn grid<L: Launch>(kernel: &Kernel<L>, tiles: u32) -> u32 {
    tiles.div_ceil(kernel.block() / 32).clamp(1, kernel.resident())
}
