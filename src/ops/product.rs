//! Matrix-vector products, with or without an RMS norm of the vector.

use super::check;
use super::kernels::{Loaded, Ops};
use super::matrix::Matrix;
use crate::Result;
use crate::driver::{DevicePtr, GpuTensor, KernelParam, Stream};
use crate::shape::TensorType;

/// Rows that a warp works on at once.
const ROWS_PER_WARP: u32 = 2;
/// Bytes of the parameters.
const PARAMS: [u32; 10] = [8, 8, 8, 8, 8, 8, 8, 4, 4, 4];

impl Ops {
    /// `y[n] = sum_k W[n, k] * x[k]`.
    ///
    /// # Errors
    /// If a length is not the matrix's, a tensor is on another device, or `y` is also `x`.
    pub fn gemv(&self, stream: &Stream, w: &Matrix, x: &GpuTensor<f32>, y: &GpuTensor<f32>) -> Result<()> {
        let bake = "FusedRmsNormQ4KGemv::general().with_weights(..).without_norm()";
        let kernel = self.find(names(w.ty).1, &PARAMS, bake)?;
        self.product(stream, kernel, w, x, None, y)
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
        let bake = "FusedRmsNormQ4KGemv::general().with_weights(..)";
        let kernel = self.find(names(w.ty).0, &PARAMS, bake)?;
        check::tensor("gamma of a product", gamma, &[("columns", w.k)])?;
        self.product(stream, kernel, w, x, Some((gamma, eps)), y)
    }

    fn product(
        &self,
        stream: &Stream,
        kernel: &Loaded,
        w: &Matrix,
        x: &GpuTensor<f32>,
        norm: Option<(&GpuTensor<f32>, f32)>,
        y: &GpuTensor<f32>,
    ) -> Result<()> {
        check::tensor("x of a product", x, &[("columns", w.k)])?;
        check::tensor("y of a product", y, &[("rows", w.n)])?;
        let (gamma, eps) = norm.map_or((x, 0.0), |(gamma, eps)| (gamma, eps));
        let rows = ROWS_PER_WARP * kernel.block() / 32;
        let grid = w.n.div_ceil(rows).clamp(1, kernel.resident);
        let (data, scales, none) = (w.data.as_ptr(), w.scales.as_ptr(), DevicePtr::<f32>::NULL);
        let (px, pg, py) = (x.as_ptr(), gamma.as_ptr(), y.as_ptr());
        let params = [
            KernelParam::new(&data),
            KernelParam::new(&scales),
            KernelParam::new(&px),
            KernelParam::new(&pg),
            KernelParam::new(&none), // bias
            KernelParam::new(&none), // residual
            KernelParam::new(&py),
            KernelParam::new(&w.k),
            KernelParam::new(&w.n),
            KernelParam::new(&eps),
        ];
        let uses = [w.data.reads("w"), w.scales.reads("w"), x.reads("x"), gamma.reads("gamma"), y.writes("y")];
        stream.enqueue(uses, |stream| {
            // SAFETY: the matrix has n rows of k weights with their scales, x and gamma have k elements, y has n; without
            // the norm gamma is not read, and bias and residual never are.
            unsafe { kernel.launch(stream, [grid, 1, 1], &params) }
        })
    }
}

/// Entry names with and without the norm.
fn names(ty: TensorType) -> (&'static str, &'static str) {
    match ty {
        TensorType::Q4_K => ("fused_rmsnorm_q4k_gemv", "q4k_gemv"),
        TensorType::Q6_K => ("fused_rmsnorm_q6k_gemv", "q6k_gemv"),
        TensorType::Q8_0 => ("fused_rmsnorm_q80_gemv", "q80_gemv"),
        TensorType::F16 => ("fused_rmsnorm_f16_gemv", "f16_gemv"),
        TensorType::BF16 => ("fused_rmsnorm_bf16_gemv", "bf16_gemv"),
        // A matrix has a supported type.
        _ => ("fused_rmsnorm_f32_gemv", "f32_gemv"),
    }
}
