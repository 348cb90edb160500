//! Tensors: a device buffer and its shape.

use super::device::Device;
use super::in_flight::Use;
use super::memory::DeviceBuffer;
use super::pointer::{DevicePtr, DeviceRepr};
use super::stream::Stream;
use crate::{Error, Result};

/// A dense row-major tensor that stays on a device: the argument of checked launches.
///
/// Launches on it are asynchronous. Reading, rewriting and dropping wait for the last use:
///
/// ```no_run
/// # use kiln::driver::{Device, GpuTensor};
/// # fn example(device: &Device) -> kiln::Result<()> {
/// let x = GpuTensor::from_host(device, &[1.0f32, 2.0, 3.0])?;
/// assert_eq!(x.to_host()?, [1.0, 2.0, 3.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GpuTensor<T: DeviceRepr> {
    buffer: DeviceBuffer<T>,
    shape: Vec<usize>,
}

impl<T: DeviceRepr> GpuTensor<T> {
    /// Copies a vector to the device.
    pub fn from_host(device: &Device, source: &[T]) -> Result<GpuTensor<T>> {
        Ok(GpuTensor { shape: vec![source.len()], buffer: DeviceBuffer::from_host(device, source)? })
    }

    /// A vector of zeros.
    pub fn zeros(device: &Device, len: usize) -> Result<GpuTensor<T>> {
        Ok(GpuTensor { shape: vec![len], buffer: DeviceBuffer::zeroed(device, len)? })
    }

    /// A vector of whatever was in memory, to be written before it is read.
    pub fn uninitialized(device: &Device, len: usize) -> Result<GpuTensor<T>> {
        Ok(GpuTensor { shape: vec![len], buffer: DeviceBuffer::uninitialized(device, len)? })
    }

    /// The same elements under another shape, slowest dimension first.
    pub fn with_shape(mut self, shape: &[usize]) -> Result<GpuTensor<T>> {
        let elements = shape.iter().try_fold(1usize, |product, side| product.checked_mul(*side));
        if elements != Some(self.len()) {
            return Err(Error::InvalidArgument {
                what: "shape of a tensor".to_owned(),
                found: format!("{shape:?}"),
                expected: format!("dimensions whose product is {}", self.len()),
            });
        }
        self.shape = shape.to_vec();
        Ok(self)
    }

    /// All elements, after the last write; blocks.
    pub fn to_host(&self) -> Result<Vec<T>> {
        self.buffer.to_host()
    }

    /// Rewrites all elements, after the last use; blocks.
    pub fn copy_from_host(&mut self, source: &[T]) -> Result<()> {
        if source.len() != self.len() {
            return Err(Error::InvalidArgument {
                what: "source of a copy to a tensor".to_owned(),
                found: format!("{} elements", source.len()),
                expected: format!("{} elements, shape {:?}", self.len(), self.shape),
            });
        }
        self.buffer.copy_from_host(0, source)
    }

    /// Enqueues filling with zeros.
    pub fn clear(&mut self, stream: &Stream) -> Result<()> {
        self.buffer.fill_bytes(stream, 0)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Dimensions, slowest first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Device address of the first element.
    pub fn as_ptr(&self) -> DevicePtr<T> {
        self.buffer.as_ptr()
    }

    /// The device it is on.
    pub fn device(&self) -> &Device {
        self.buffer.device()
    }

    /// For [`Stream::enqueue`]: the work reads this tensor, called `name` in errors.
    pub fn reads(&self, name: &'static str) -> Use<'_> {
        self.buffer.reads(name)
    }

    /// For [`Stream::enqueue`]: the work writes, and may read, this tensor, called `name` in errors.
    pub fn writes(&self, name: &'static str) -> Use<'_> {
        self.buffer.writes(name)
    }

    /// The memory behind it.
    pub fn buffer(&self) -> &DeviceBuffer<T> {
        &self.buffer
    }

    /// The memory without the shape.
    pub fn into_buffer(self) -> DeviceBuffer<T> {
        self.buffer
    }
}

impl<T: DeviceRepr> From<DeviceBuffer<T>> for GpuTensor<T> {
    /// A vector.
    fn from(buffer: DeviceBuffer<T>) -> GpuTensor<T> {
        GpuTensor { shape: vec![buffer.len()], buffer }
    }
}
