//! Tensor maps: how a device's copies find boxes of a matrix in its memory.

use super::device::Device;
use super::pointer::DevicePtr;
use super::sys;
use crate::{Error, Result};

/// A map of a matrix of bytes, for `cp.async.bulk.tensor.2d` of compute capability 9.0: 128 bytes that only the driver and the
/// device understand. A kernel takes it by a parameter, or from device memory, where it begins at a multiple of 64.
#[derive(Debug, Clone, Copy)]
pub struct TensorMap {
    raw: sys::CUtensorMap,
}

impl TensorMap {
    /// Bytes of a map.
    pub const BYTES: usize = size_of::<sys::CUtensorMap>();

    /// Whether the device has copies that take maps, and its driver makes them: that of CUDA 12.0 is the first.
    pub fn is_supported(device: &Device) -> bool {
        device.sm() >= 90 && device.driver().api().table().cuTensorMapEncodeTiled.is_some()
    }

    /// The map of `rows` rows of `row_bytes` each that stand one behind the other from `data` on. A copy takes a box of
    /// `box_rows` rows of `box_bytes` each; of what is not in the matrix it makes zeros. It keeps nothing alive.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `data`, `row_bytes` or `box_bytes` is not a multiple of 16, if a row has 2^32 bytes or more,
    /// if there is no row or more than 2^32, or if a box has no or more than 256 bytes or rows;
    /// [`Error::MissingFunction`] if the driver is too old.
    ///
    /// Source: [`cuTensorMapEncodeTiled`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html).
    pub fn of_rows(
        device: &Device,
        data: DevicePtr<u8>,
        (row_bytes, rows): (u64, u64),
        (box_bytes, box_rows): (u32, u32),
    ) -> Result<TensorMap> {
        let sizes_fit = (1..=1 << 32).contains(&rows) && (16..1 << 32).contains(&row_bytes);
        let box_fits = (16..=256).contains(&box_bytes) && (1..=256).contains(&box_rows);
        let [address, row, piece] = [data.address(), row_bytes, box_bytes.into()];
        let is_aligned = [address, row, piece].iter().all(|bytes| bytes.is_multiple_of(16));
        if !(sizes_fit && box_fits && is_aligned) {
            return Err(Error::InvalidArgument {
                what: "matrix of a tensor map".to_owned(),
                found: format!(
                    "{rows} rows of {row} bytes at {address:#x}, boxes of {box_rows} rows of {box_bytes} bytes"
                ),
                expected:
                    "an address and bytes that are multiples of 16, rows of less than 2^32 bytes, at most 2^32 of \
                           them, and boxes of 1 to 256 rows and bytes"
                        .to_owned(),
            });
        }
        // SAFETY: the arrays have an entry for each dimension, the strides one less. The address is not followed.
        let raw = unsafe {
            device.driver().api().tensor_map_encode_tiled(
                sys::CU_TENSOR_MAP_DATA_TYPE_UINT8,
                2,
                address as *mut _,
                [row_bytes, rows].as_ptr(),
                [row_bytes].as_ptr(),
                [box_bytes, box_rows].as_ptr(),
                [1; 2].as_ptr(),
                sys::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CU_TENSOR_MAP_SWIZZLE_NONE,
                sys::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        Ok(TensorMap { raw: raw? })
    }

    /// What is to be copied to the device.
    pub fn to_bytes(&self) -> [u8; TensorMap::BYTES] {
        let mut bytes = [0; TensorMap::BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.raw.opaque) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}
