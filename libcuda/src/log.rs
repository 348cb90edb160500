//! The log, on standard error: each line once.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// `CUDA_ERROR_NOT_SUPPORTED`
const NOT_SUPPORTED: u32 = 801;

/// Writes a line unless it was written before. Returns whether it was new.
pub(crate) fn once(line: String) -> bool {
    static WRITTEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    let new = !written.contains(&line);
    if new {
        write(&line);
        written.insert(line);
    }
    new
}

/// Writes a line. A standard error that is closed is no reason to fail.
pub(crate) fn write(line: &str) {
    let _ = writeln!(std::io::stderr(), "kiln-libcuda: {line}");
}

/// Names a function that is not implemented, and returns the code for it.
pub(crate) fn not_supported(function: &str) -> u32 {
    once(format!("{function} is not implemented: CUDA_ERROR_NOT_SUPPORTED"));
    NOT_SUPPORTED
}
