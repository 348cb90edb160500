//! Checks of arguments; their errors name what was found and expected.

use crate::driver::{DeviceRepr, GpuTensor};
use crate::{Error, Result};

/// A dimension by name.
pub(super) type Dim = (&'static str, u32);

/// The product of dimensions; an error beyond 32 bits, in which kernels count.
pub(super) fn elements(what: &'static str, dims: &[Dim]) -> Result<u32> {
    let product = dims.iter().try_fold(1u32, |product, (_, dim)| product.checked_mul(*dim));
    product.ok_or_else(|| Error::SizeOverflow { what, found: listed(dims), limit: 1 << 32 })
}

/// A tensor of exactly these dimensions.
pub(super) fn tensor<T: DeviceRepr>(what: &'static str, tensor: &GpuTensor<T>, dims: &[Dim]) -> Result<()> {
    let expected = elements(what, dims)?;
    if tensor.len() == expected as usize {
        return Ok(());
    }
    Err(Error::InvalidArgument {
        what: what.to_owned(),
        found: format!("{} elements, shape {:?}", tensor.len(), tensor.shape()),
        expected: format!("{expected} elements: {}", listed(dims)),
    })
}

/// A number that must hold a condition.
pub(super) fn number(what: &str, found: u32, holds: bool, expected: impl FnOnce() -> String) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::InvalidArgument { what: what.to_owned(), found: found.to_string(), expected: expected() })
}

/// The length of a vector, as kernels count.
pub(super) fn length<T: DeviceRepr>(what: &'static str, tensor: &GpuTensor<T>) -> Result<u32> {
    // Loops count beyond the end by less than a grid's threads.
    let limit = 1u64 << 31;
    u32::try_from(tensor.len()).ok().filter(|len| u64::from(*len) < limit).ok_or_else(|| Error::SizeOverflow {
        what,
        found: format!("{} elements", tensor.len()),
        limit,
    })
}

fn listed(dims: &[Dim]) -> String {
    let dims: Vec<String> = dims.iter().map(|(name, dim)| format!("{dim} {name}")).collect();
    dims.join(" * ")
}
