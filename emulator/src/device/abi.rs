//! The C side of every call: argument types that hold the C caller's promise, and the guard around each function.
//!
//! The pointers here come from C callers only (the fields are private and there is no constructor), so the promise of
//! each driver function, "null, or valid for one value of this type", is stated once, at the accessor.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::codes::Code;
use super::context::{Context, current};

/// `CUcontext`, `CUstream`, `CUevent`, `CUmodule`, ...: numbers from the handle table, never dereferenced.
pub(crate) type Handle = usize;

/// The outcome of a driver call before it becomes a `CUresult`.
pub(crate) type Outcome<T = ()> = Result<T, Code>;

static INITIALISED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Set while a stream's worker runs a host function, in which driver calls are not permitted.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// A pointer that receives one value.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Makes the value only when there is a place for it, so that nothing is created and lost.
    pub(crate) fn fill(self, make: impl FnOnce() -> Outcome<T>) -> Outcome {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let value = make()?;
        // SAFETY: not null, so the C caller made it valid for one write of T.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Replaces the value that the caller put there.
    pub(crate) fn update(self, change: impl FnOnce(T) -> Outcome<T>) -> Outcome
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so the C caller made it valid and put a value there.
        let old = unsafe { self.0.read() };
        self.fill(|| change(old))
    }

    /// Writes the value if the caller asked for it.
    pub(crate) fn offer(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so the C caller made it valid for one write of T.
            unsafe { self.0.write(value) };
        }
    }
}

/// A pointer to one or several values to read.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct In<T>(*const T);

impl<T> In<T> {
    pub(crate) const fn null() -> In<T> {
        In(std::ptr::null())
    }
}

impl<T: Copy> In<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn get(self) -> Outcome<T> {
        self.at(0)
    }

    /// Element `index` of an array that the call's own arguments say is long enough.
    pub(crate) fn at(self, index: usize) -> Outcome<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so the C caller made it valid for as many elements as the call's arguments announce.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }
}

impl In<u8> {
    /// `bytes` bytes from here.
    pub(crate) fn bytes<'a>(self, bytes: usize) -> Outcome<&'a [u8]> {
        if self.0.is_null() {
            return if bytes == 0 { Ok(&[]) } else { Err(Code::INVALID_VALUE) };
        }
        // SAFETY: not null, so the C caller made it valid for the `bytes` that its arguments announce, during the call.
        Ok(unsafe { std::slice::from_raw_parts(self.0, bytes) })
    }

    pub(crate) fn from_address(address: usize) -> In<u8> {
        In(address as *const u8)
    }
}

/// An array of pointer-sized slots that are read and written.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Slots(*mut usize);

impl Slots {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn get(self, index: usize) -> Outcome<usize> {
        In(self.0.cast_const()).at(index)
    }

    pub(crate) fn set(self, index: usize, value: usize) -> Outcome {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so the C caller made it valid for as many slots as the call's arguments announce.
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }
}

/// A NUL-terminated string.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn get<'a>(self) -> Outcome<&'a CStr> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so the C caller made it a NUL-terminated string that lives during the call.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }
}

/// A character buffer of a length given beside it.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct TextOut(*mut c_char);

impl TextOut {
    pub(crate) fn from_address(address: usize) -> TextOut {
        TextOut(address as *mut c_char)
    }

    /// Writes as much of `text` as fits with its NUL; says how many bytes were written, NUL included.
    pub(crate) fn write(self, text: &str, capacity: usize) -> usize {
        if self.0.is_null() || capacity == 0 {
            return 0;
        }
        let length = text.len().min(capacity - 1);
        // SAFETY: not null, so the C caller made it valid for `capacity` bytes, and length + 1 <= capacity.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), self.0.cast::<u8>(), length);
            self.0.add(length).write(0);
        }
        length + 1
    }
}

/// `void (*)(void *)` and its argument, as `cuLaunchHostFunc` takes them.
#[derive(Clone, Copy)]
pub(crate) struct HostFunction {
    pub(crate) function: extern "C" fn(*mut c_void),
    pub(crate) data: usize,
}

impl HostFunction {
    /// Runs it on this thread, with driver calls refused meanwhile.
    pub(crate) fn run(self) {
        IN_HOST_FUNCTION.set(true);
        (self.function)(self.data as *mut c_void);
        IN_HOST_FUNCTION.set(false);
    }
}

pub(crate) fn mark_initialised() {
    INITIALISED.store(true, Ordering::Release);
}

/// A call that needs no context. A panic in the emulator must not unwind into C.
pub(crate) fn always(body: impl FnOnce() -> Outcome) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.raw(),
        Err(_) => Code::UNKNOWN.raw(),
    }
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

/// A call in the current context, refused with the context's sticky error if there is one.
pub(crate) fn in_context(body: impl FnOnce(&Arc<Context>) -> Outcome) -> u32 {
    initialised(|| {
        let context = current()?;
        context.check()?;
        body(&context)
    })
}
