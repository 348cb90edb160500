//! kiln's kernels, and the typed PTX language they are written in.
#![forbid(unsafe_code)]

mod error;
pub mod ptx;
mod target;

pub use error::{Error, Result};
pub use target::{Target, UnknownTarget};
