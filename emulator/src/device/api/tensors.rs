//! Tensor maps, which the host makes without a device.
#![allow(non_snake_case)]

use super::super::abi::{Ptr, initialised};
use super::super::{Code, Outcome};
use crate::machine::tensor::{MAX_RANK, TensorMap};
use std::ffi::c_uint;

/// Bytes of the elements of a `CUtensorMapDataType`. Types that are changed by a copy, or packed, are not here.
fn element(ty: c_uint) -> Outcome<u64> {
    match ty {
        0 => Ok(1),         // UINT8
        1 | 6 | 9 => Ok(2), // UINT16, FLOAT16, BFLOAT16
        2 | 3 | 7 => Ok(4), // UINT32, INT32, FLOAT32
        4 | 5 | 8 => Ok(8), // UINT64, INT64, FLOAT64
        10..=15 => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// The first values of a list, and 0 for the others.
fn list<T: Copy + Into<u64>, const N: usize>(from: Ptr<T>, count: usize) -> Outcome<[u64; N]> {
    let mut values = [0; N];
    values.iter_mut().take(count).enumerate().try_for_each(|(d, value)| from.get(d).map(|got| *value = got.into()))?;
    Ok(values)
}

api! {
    fn cuTensorMapEncodeTiled(
        map: Ptr<[u8; 128]>, ty: c_uint, rank: c_uint, address: u64, dims: Ptr<u64>, strides: Ptr<u64>,
        extent: Ptr<c_uint>, steps: Ptr<c_uint>, interleave: c_uint, swizzle: c_uint, promotion: c_uint, fill: c_uint
    ) => initialised(|| {
        let rank = rank as usize;
        let modes = [(interleave, 2), (swizzle, 6), (promotion, 3), (fill, 1)];
        if !map.is_aligned(64) || !(1..=MAX_RANK).contains(&rank) || modes.iter().any(|&(mode, last)| mode > last) {
            return Err(Code::INVALID_VALUE);
        }
        let steps: [u64; MAX_RANK] = list(steps, rank)?;
        let tensor = TensorMap {
            rank,
            element: element(ty)?,
            address,
            dims: list(dims, rank)?,
            strides: list(strides, rank - 1)?,
            extent: list(extent, rank)?,
        };
        if !tensor.is_valid() || steps[..rank].iter().any(|step| !(1..=8).contains(step)) {
            return Err(Code::INVALID_VALUE);
        }
        // The manual ignores the step of dimension 0; a promotion to L2 changes no result.
        if interleave != 0 || swizzle != 0 || fill != 0 || steps[1..rank].iter().any(|&step| step != 1) {
            return Err(Code::NOT_SUPPORTED);
        }
        map.set(0, tensor.encode())
    });
}
