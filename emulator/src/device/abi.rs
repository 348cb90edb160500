//! The C side of every call: pointers that hold the C caller's promise, and the guard around each function.

use super::Code;
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// `CUcontext`, `CUstream`, `CUevent`, `CUmodule`, ...: numbers from the handle table, never dereferenced.
pub(crate) type Handle = usize;

/// The outcome of a driver call before it becomes a `CUresult`.
pub(crate) type Outcome<T = ()> = Result<T, Code>;

/// `void (*)(void *)`, as `cuLaunchHostFunc` takes it.
pub(crate) type HostFunction = extern "C" fn(*mut c_void);

/// A pointer that the C caller passed. The contract of every driver function stands here once: it is null, or valid
/// during the call for reads and writes of as many values as the other arguments say.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Ptr<T>(*mut T);

impl<T: Copy> Ptr<T> {
    /// A pointer that the C caller passed as a number.
    pub(crate) fn from_address(address: usize) -> Ptr<T> {
        Ptr(address as *mut T)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn is_aligned(self, bytes: usize) -> bool {
        self.0.addr().is_multiple_of(bytes)
    }

    fn valid(self) -> Outcome<*mut T> {
        if self.0.is_null() { Err(Code::INVALID_VALUE) } else { Ok(self.0) }
    }

    pub(crate) fn get(self, index: usize) -> Outcome<T> {
        // SAFETY: not null, so the promise above holds.
        self.valid().map(|pointer| unsafe { pointer.add(index).read_unaligned() })
    }

    pub(crate) fn set(self, index: usize, value: T) -> Outcome {
        // SAFETY: not null, so the promise above holds.
        self.valid().map(|pointer| unsafe { pointer.add(index).write_unaligned(value) })
    }

    /// Makes and writes a value, unless the pointer is null: nothing is created and lost.
    pub(crate) fn fill(self, make: impl FnOnce() -> Outcome<T>) -> Outcome {
        self.valid()?;
        self.set(0, make()?)
    }
}

impl Ptr<u8> {
    pub(crate) fn bytes<'a>(self, bytes: usize) -> Outcome<&'a [u8]> {
        // SAFETY: not null, so the promise above holds.
        self.valid().map(|pointer| unsafe { std::slice::from_raw_parts(pointer, bytes) })
    }

    /// A string that ends in NUL.
    pub(crate) fn text<'a>(self) -> Outcome<&'a CStr> {
        // SAFETY: not null, so the promise above holds.
        self.valid().map(|pointer| unsafe { CStr::from_ptr(pointer.cast()) })
    }

    /// Writes as much of `text` as `capacity` holds, with a NUL. Returns the bytes written, NUL included.
    pub(crate) fn write_text(self, text: &str, capacity: usize) -> Outcome<usize> {
        let length = text.len().min(capacity.checked_sub(1).ok_or(Code::INVALID_VALUE)?);
        for (index, byte) in text.bytes().take(length).chain([0]).enumerate() {
            self.set(index, byte)?;
        }
        Ok(length + 1)
    }
}

/// Whether `cuInit` has succeeded.
pub(crate) static INITIALISED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Set while a stream's worker runs a host function, in which driver calls are not permitted.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Runs a host function on this thread; driver calls are refused meanwhile.
pub(crate) fn call_host(function: HostFunction, data: usize) {
    IN_HOST_FUNCTION.set(true);
    function(data as *mut c_void);
    IN_HOST_FUNCTION.set(false);
}

/// A call that needs no context. A panic in the emulator must not unwind into C.
pub(crate) fn always(body: impl FnOnce() -> Outcome) -> u32 {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Code::UNKNOWN));
    outcome.map_or_else(Code::raw, |()| 0)
}

/// A call that needs `cuInit` but no context.
pub(crate) fn initialised(body: impl FnOnce() -> Outcome) -> u32 {
    always(|| {
        if !INITIALISED.load(Ordering::Acquire) {
            return Err(Code::NOT_INITIALIZED);
        }
        if IN_HOST_FUNCTION.get() {
            return Err(Code::NOT_PERMITTED);
        }
        body()
    })
}
