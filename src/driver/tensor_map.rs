//! Tensor maps: how a device's copies find boxes of a matrix in its memory.

use super::device::Device;
use super::pointer::{DevicePtr, DeviceRepr};
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

    /// The map of `rows` rows of so many elements each, of one byte or of eight, that stand one behind the other from `data`
    /// on. A copy takes a box of `box_rows` rows of `box_elements` each; of what is not in the matrix it makes zeros. It keeps
    /// nothing alive.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if elements have neither one byte nor eight, if `data` or the bytes of a row or of a box's
    /// row are not a multiple of 16, if there is no element, more than 2^32 in a row, no row or more than 2^32, if a row has
    /// 2^40 bytes or more, or if a box has no or more than 256 elements in a row or rows; [`Error::MissingFunction`] if the
    /// driver is too old.
    ///
    /// Source: [`cuTensorMapEncodeTiled`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html).
    pub fn of_rows<T: DeviceRepr>(
        device: &Device,
        data: DevicePtr<T>,
        (elements, rows): (u64, u64),
        (box_elements, box_rows): (u32, u32),
    ) -> Result<TensorMap> {
        let element = match size_of::<T>() {
            1 => Some(sys::CU_TENSOR_MAP_DATA_TYPE_UINT8),
            8 => Some(sys::CU_TENSOR_MAP_DATA_TYPE_UINT64),
            _ => None,
        };
        let each = size_of::<T>() as u64;
        let [address, row, piece] = [data.address(), elements.saturating_mul(each), u64::from(box_elements) * each];
        let sizes_fit = [elements, rows].iter().all(|size| (1..=1 << 32).contains(size)) && row < 1 << 40;
        let box_fits = [box_elements, box_rows].iter().all(|size| (1..=256).contains(size));
        let is_aligned = [address, row, piece].iter().all(|bytes| bytes.is_multiple_of(16));
        let Some(element) = element.filter(|_| sizes_fit && box_fits && is_aligned) else {
            return Err(Error::InvalidArgument {
                what: "matrix of a tensor map".to_owned(),
                found: format!(
                    "{rows} rows of {elements} elements of {each} bytes at {address:#x}, boxes of {box_rows} rows of \
                     {box_elements}"
                ),
                expected:
                    "elements of 1 or 8 bytes, an address and bytes of rows that are multiples of 16, at most 2^32 rows \
                           of less than 2^40 bytes and at most 2^32 elements, and boxes of 1 to 256 rows and elements"
                        .to_owned(),
            });
        };
        // SAFETY: the arrays have an entry for each dimension, the strides one less. The address is not followed.
        let raw = unsafe {
            device.driver().api().tensor_map_encode_tiled(
                element,
                2,
                address as *mut _,
                [elements, rows].as_ptr(),
                [row].as_ptr(),
                [box_elements, box_rows].as_ptr(),
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
