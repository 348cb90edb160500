//! The place for the text that kernels print.

use super::lock::lock;
use std::io::{Write, stdout};
use std::sync::{Arc, Mutex};

/// Where `printf` of device code prints, at the end of its launch.
#[derive(Debug, Clone, Default)]
pub enum Output {
    /// To the program's standard output, as a driver does it.
    #[default]
    Standard,
    /// Into a buffer, which clones share.
    Kept(Arc<Mutex<Vec<u8>>>),
}

impl Output {
    /// An empty buffer.
    pub fn kept() -> Output {
        Output::Kept(Arc::default())
    }

    /// The text kept so far, with what is no UTF-8 replaced; empty for standard output.
    pub fn text(&self) -> String {
        match self {
            Output::Standard => String::new(),
            Output::Kept(text) => String::from_utf8_lossy(&lock(text)).into_owned(),
        }
    }

    pub(crate) fn write(&self, text: &[u8]) {
        match self {
            _ if text.is_empty() => {}
            // Who has closed it does not want to know.
            Output::Standard => _ = stdout().write_all(text).and_then(|()| stdout().flush()),
            Output::Kept(kept) => lock(kept).extend_from_slice(text),
        }
    }
}
