//! The tables of rotary angles on the device.

use crate::driver::{Device, DeviceBuffer};
use crate::shape::ModelShape;
use crate::{Result, rope};

/// The tables of rotary angles, which sessions share.
pub(crate) struct Rotary {
    /// `[positions, head_dim / 2]`.
    pub(crate) cos: DeviceBuffer<f32>,
    /// `[positions, head_dim / 2]`.
    pub(crate) sin: DeviceBuffer<f32>,
    pub(crate) positions: u32,
}

impl Rotary {
    pub(crate) fn new(device: &Device, shape: &ModelShape, positions: u32) -> Result<Rotary> {
        let (cos, sin) = rope::tables(positions, shape.head_dim, shape.rope_theta);
        let (cos, sin) = (DeviceBuffer::from_host(device, &cos)?, DeviceBuffer::from_host(device, &sin)?);
        Ok(Rotary { cos, sin, positions })
    }
}
