//! `y += a x`.

use super::check;
use super::kernels::Ops;
use crate::Result;
use crate::driver::{GpuTensor, KernelParam, Stream};

impl Ops {
    /// `y[i] += a * x[i]`.
    ///
    /// # Errors
    /// If the lengths differ, a tensor is on another device, or `x` is `y`.
    pub fn saxpy(&self, stream: &Stream, a: f32, x: &GpuTensor<f32>, y: &GpuTensor<f32>) -> Result<()> {
        let n = check::length("x of saxpy", x)?;
        check::tensor("y of saxpy", y, &[("elements of x", n)])?;
        let kernel = self.find("saxpy", &[8, 8, 4, 4], "Saxpy")?;
        let grid = n.div_ceil(kernel.block()).clamp(1, kernel.resident);
        let (px, py) = (x.as_ptr(), y.as_ptr());
        let params = [KernelParam::new(&px), KernelParam::new(&py), KernelParam::new(&a), KernelParam::new(&n)];
        stream.enqueue([x.reads("x"), y.writes("y")], |stream| {
            // SAFETY: the kernel reads n elements of x and y and writes n of y; both have n.
            unsafe { kernel.launch(stream, [grid, 1, 1], &params) }
        })
    }
}
