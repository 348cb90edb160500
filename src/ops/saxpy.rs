//! `y += a x`.

use super::check;
use super::kernels::Ops;
use crate::Result;
use crate::driver::{GpuTensor, Stream};
use crate::launch::{In, Out, launch};

launch! {
    struct Saxpy<'a> {
        x: In<'a, f32>,
        y: Out<'a, f32>,
        a: f32,
        n: u32,
    }
}

impl Ops {
    /// `y[i] += a * x[i]`.
    ///
    /// # Errors
    /// If the lengths differ, a tensor is on another device, or `x` is `y`.
    pub fn saxpy(&self, stream: &Stream, a: f32, x: &GpuTensor<f32>, y: &GpuTensor<f32>) -> Result<()> {
        let n = check::length("x of saxpy", x)?;
        check::tensor("y of saxpy", y, &[("elements of x", n)])?;
        let kernel = self.find::<Saxpy<'_>>("saxpy", "Saxpy")?;
        let grid = n.div_ceil(kernel.block()).clamp(1, kernel.resident());
        let launch = Saxpy { x: x.into(), y: y.into(), a, n };
        // SAFETY: the kernel reads n elements of x and y and writes n of y; both have n.
        unsafe { kernel.enqueue(stream, [grid, 1, 1], &launch) }
    }
}
