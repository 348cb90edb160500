//! kiln's kernels, and the typed PTX language they are written in.
#![forbid(unsafe_code)]

mod assembler;
pub mod bake;
mod blocks;
mod error;
mod formats;
pub mod kernels;
mod launches;
mod matrix;
mod model_file;
pub mod ptx;
mod target;

pub use assembler::Assembler;
pub use bake::Bake;
pub use error::{Error, FileFault, Result};
pub use kernels::Kernel;
pub use kiln_shape::{KvType, Numerics};
pub use model_file::ModelFile;
pub use target::{Target, UnknownTarget};
