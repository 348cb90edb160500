//! kiln's emulator as `libcuda.so.1`.
//!
//! Exports every symbol of the driver API under its versioned name (`symbols`, by `entry`). The functions are the
//! emulator's; `own` has what only a library has: `cuInit`, which reads `KILN_EMULATOR_*` (`config`), and
//! `cuGetProcAddress`. What is not implemented returns `CUDA_ERROR_NOT_SUPPORTED` and is named once (`log`). What was found
//! is reported when the library is unloaded or the process ends (`report`).

mod config;
mod entry;
mod log;
mod own;
mod report;
mod symbols;

use std::ffi::CString;
use std::sync::atomic::Ordering;

/// Runs when the library is loaded.
#[used]
// SAFETY: a section of pointers to functions without arguments, of which this is one.
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = fill_slots;

/// Runs when the library is unloaded or the process ends.
#[used]
// SAFETY: as above.
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = report::at_end;

/// Fills the slots of all functions that there are.
extern "C" fn fill_slots() {
    for symbol in symbols::SYMBOLS {
        let emulated = || kiln_emulator::resolve(&CString::new(symbol.name).ok()?);
        if let Some(function) = own::find(symbol.name).or_else(emulated) {
            symbol.slot.store(function.as_ptr(), Ordering::Release);
        }
    }
}
