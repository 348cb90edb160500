//! A kernel of one's own, baked beside a model, with a launch that safe code may call.

use kiln::driver::{Device, GpuTensor, Stream};
use kiln::kernel::Kernel;
use kiln::{Error, Result};

/// What the bake wrote: the statics `DEMO`, `MODELS` and `KERNELS`, and the launch `SoftmaxRows`.
pub mod baked {
    include!(concat!(env!("OUT_DIR"), "/kiln_baked.rs"));
}

use baked::SoftmaxRows;

/// Softmax of rows on a device.
pub struct Softmax {
    kernel: Kernel<SoftmaxRows<'static>>,
}

impl Softmax {
    /// Loads the kernel, of the newest target that the device runs.
    ///
    /// # Errors
    /// [`Error::KernelNotBaked`] or [`Error::DeviceTooOld`] if it was baked for none, and what the driver says of it.
    pub fn open(device: &Device) -> Result<Softmax> {
        Ok(Softmax { kernel: baked::KERNELS.load(device)?.kernel::<SoftmaxRows<'_>>()? })
    }

    /// Enqueues `y = softmax(x)`, row by row of `n` elements.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `x` is whole rows, of at most 2^31 elements, and `y` another tensor as long;
    /// what the driver says of the launch.
    pub fn run(&self, stream: &Stream, x: &GpuTensor<f32>, y: &GpuTensor<f32>, n: u32) -> Result<()> {
        let refuse = |what: &str, found: String, expected: &str| {
            Err(Error::InvalidArgument { what: what.to_owned(), found, expected: expected.to_owned() })
        };
        if n == 0 || !x.len().is_multiple_of(n as usize) || x.len() > 1 << 31 {
            return refuse("x of softmax", format!("{} elements in rows of {n}", x.len()), "whole rows, 2^31 at most");
        }
        if y.len() != x.len() || y.as_ptr() == x.as_ptr() {
            return refuse("y of softmax", format!("{} elements", y.len()), "as many as x, in another tensor");
        }
        let rows = (x.len() / n as usize) as u32;
        if rows == 0 {
            return Ok(());
        }
        let launch = SoftmaxRows { x: x.into(), y: y.into(), rows, n };
        // SAFETY: the kernel reads `rows * n` elements of x and writes as many of y; both have them.
        unsafe { self.kernel.enqueue(stream, self.kernel.grid(rows), &launch) }
    }
}
