//! Device addresses, and the types that lie behind them.

use std::marker::PhantomData;
use std::ops::Range;

use super::sys::CUdeviceptr;
use crate::{Error, Result};

/// Types that are the same bytes on host and device.
///
/// # Safety
/// Every pattern of bits is a value, there is no padding, and nothing in it means anything only on the host.
pub unsafe trait DeviceRepr: Copy + Send + Sync + 'static {}

macro_rules! device_repr {
    ($($type:ty),*) => {$(
        // SAFETY: a number: every pattern is a value, and there is no padding.
        unsafe impl DeviceRepr for $type {}
    )*};
}
device_repr!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64, half::f16, half::bf16);

// SAFETY: elements follow one another without padding.
unsafe impl<T: DeviceRepr, const N: usize> DeviceRepr for [T; N] {}

// SAFETY: a number to the host.
unsafe impl<T: DeviceRepr> DeviceRepr for DevicePtr<T> {}

/// A device address of elements of `T`: a kernel's argument, and a number to the host.
#[repr(transparent)]
pub struct DevicePtr<T> {
    address: CUdeviceptr,
    element: PhantomData<fn() -> T>,
}

impl<T> DevicePtr<T> {
    /// The address 0, for arguments that a kernel is told not to use.
    pub const NULL: DevicePtr<T> = DevicePtr::new(0);

    /// An address as the driver gave it.
    pub const fn new(address: CUdeviceptr) -> DevicePtr<T> {
        DevicePtr { address, element: PhantomData }
    }

    /// The address.
    pub const fn address(self) -> CUdeviceptr {
        self.address
    }

    /// The address of element `index`; wraps, and means something only inside the buffer.
    #[must_use]
    pub const fn add(self, index: usize) -> DevicePtr<T> {
        DevicePtr::new(self.address.wrapping_add((index as u64).wrapping_mul(size_of::<T>() as u64)))
    }

    /// The same address of elements of another type.
    pub const fn cast<U>(self) -> DevicePtr<U> {
        DevicePtr::new(self.address)
    }
}

impl<T> Clone for DevicePtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DevicePtr<T> {}

impl<T> PartialEq for DevicePtr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address
    }
}

impl<T> Eq for DevicePtr<T> {}

impl<T> std::fmt::Debug for DevicePtr<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.address)
    }
}

/// `at..at + len`, checked to lie in `0..limit`.
pub(crate) fn check_range(what: &str, at: usize, len: usize, limit: usize) -> Result<Range<usize>> {
    match at.checked_add(len) {
        Some(end) if end <= limit => Ok(at..end),
        _ => Err(Error::InvalidArgument {
            what: what.to_owned(),
            found: format!("{len} elements from {at}"),
            expected: format!("a range within {limit} elements"),
        }),
    }
}
