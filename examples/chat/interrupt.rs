//! Ctrl-C: it stops an answer, and ends the program where there is none.

use std::sync::atomic::{AtomicBool, Ordering};

static ANSWERING: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicBool = AtomicBool::new(false);

/// While it lives, Ctrl-C asks for the end of an answer.
pub(crate) struct Answering(());

impl Answering {
    pub(crate) fn begin() -> Answering {
        ASKED.store(false, Ordering::Release);
        ANSWERING.store(true, Ordering::Release);
        Answering(())
    }

    /// Whether the end was asked for.
    pub(crate) fn asked(&self) -> bool {
        ASKED.load(Ordering::Acquire)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        ANSWERING.store(false, Ordering::Release);
    }
}

/// Takes the signal over. Elsewhere than on Unix it ends the program.
pub(crate) fn watch() {
    #[cfg(unix)]
    unix::watch();
}

#[cfg(unix)]
mod unix {
    use super::{ANSWERING, ASKED};
    use std::ffi::c_int;
    use std::sync::atomic::Ordering;

    const SIGINT: c_int = 2;

    unsafe extern "C" {
        fn signal(number: c_int, handler: extern "C" fn(c_int)) -> usize;
        fn _exit(code: c_int) -> !;
    }

    /// Calls nothing but what a signal handler may call.
    extern "C" fn handle(_: c_int) {
        if ANSWERING.load(Ordering::Acquire) {
            ASKED.store(true, Ordering::Release);
        } else {
            // SAFETY: it ends the process at once.
            unsafe { _exit(130) }
        }
    }

    pub(super) fn watch() {
        // SAFETY: the handler is of the type that C asks for, and lives as long as the program.
        unsafe { signal(SIGINT, handle) };
    }
}
