//! Functions that only the library has.
#![allow(non_snake_case)]

use crate::entry::Symbol;
use crate::symbols::SYMBOLS;
use crate::{config, log};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};

const SUCCESS: u32 = 0;
const INVALID_VALUE: u32 = 1;
const NOT_FOUND: u32 = 500;

/// `CUdriverProcAddressQueryResult`
const FOUND: c_int = 0;
const NO_SUCH_SYMBOL: c_int = 1;
const TOO_OLD: c_int = 2;

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
const PER_THREAD: u64 = 2;

/// The newest CUDA version that may be asked for.
const NEWEST: c_int = 13050;

/// The function of that name, if it is one of these.
pub(crate) fn find(name: &str) -> Option<NonNull<c_void>> {
    NonNull::new(match name {
        "cuInit" => cuInit as *mut c_void,
        "cuGetProcAddress" => cuGetProcAddress as *mut c_void,
        "cuGetProcAddress_v2" => cuGetProcAddress_v2 as *mut c_void,
        _ => return None,
    })
}

/// Adds the device that the variables describe, the first time, and initialises the emulator.
extern "C" fn cuInit(flags: c_uint) -> u32 {
    if let Err(error) = config::add_device() {
        log::once(error.clone());
        return INVALID_VALUE;
    }
    let Some(function) = kiln_emulator::resolve(c"cuInit") else { return NOT_FOUND };
    // SAFETY: the emulator's functions have the signatures of NVIDIA's header.
    let function: extern "C" fn(c_uint) -> u32 = unsafe { std::mem::transmute(function.as_ptr()) };
    function(flags)
}

/// A base name, and whether the symbol is a form for per-thread streams: those of `cuMemcpy_ptds` are `cuMemcpy` and
/// true.
fn base(symbol: &str) -> (&str, bool) {
    let plain = symbol.strip_suffix("_ptsz").or_else(|| symbol.strip_suffix("_ptds"));
    let (name, per_thread) = (plain.unwrap_or(symbol), plain.is_some());
    let unversioned = name.rsplit_once("_v").filter(|(_, digits)| digits.parse::<u32>().is_ok());
    (unversioned.map_or(name, |(name, _)| name), per_thread)
}

/// The newest ABI of a function that a CUDA version has.
fn search(name: &str, version: c_int, flags: u64) -> Result<&'static Symbol, c_int> {
    let of_name = |per_thread| move |symbol: &&Symbol| base(symbol.name) == (name, per_thread);
    let named = |per_thread| SYMBOLS.iter().filter(of_name(per_thread));
    let per_thread = flags & PER_THREAD != 0 && named(true).next().is_some();
    if named(per_thread).next().is_none() {
        return Err(NO_SUCH_SYMBOL);
    }
    let old_enough = |symbol: &&Symbol| i64::from(symbol.since) <= i64::from(version);
    named(per_thread).filter(old_enough).max_by_key(|symbol| (symbol.since, symbol.name)).ok_or(TOO_OLD)
}

/// Finds an exported function by its base name and a CUDA version. What is not found is null, and a success with the
/// reason as `status`.
extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> u32 {
    if symbol.is_null() || function.is_null() || version > NEWEST || flags > 3 {
        return INVALID_VALUE;
    }
    // SAFETY: not null, so the caller's string.
    let name = unsafe { CStr::from_ptr(symbol) };
    let found = name.to_str().map_err(|_| NO_SUCH_SYMBOL).and_then(|name| search(name, version, flags));
    // SAFETY: not null, so the caller's to write to.
    unsafe { function.write(found.as_ref().map_or(null_mut(), |symbol| symbol.entry as *mut c_void)) };
    if !status.is_null() {
        // SAFETY: as above.
        unsafe { status.write(found.err().unwrap_or(FOUND)) };
    }
    SUCCESS
}

/// The form of CUDA 11.3: what is not found is an error.
extern "C" fn cuGetProcAddress(symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64) -> u32 {
    let mut status = FOUND;
    match cuGetProcAddress_v2(symbol, function, version, flags, &raw mut status) {
        SUCCESS if status != FOUND => NOT_FOUND,
        code => code,
    }
}
