//! What a Qwen model is: shapes, presets and a hardened GGUF header reader.
//!
//! Used at build time, to decide which kernels are generated, and at run time, to decide whether a file fits them.
//! No dependencies, no `unsafe`, and no weight is ever read: the header says where each tensor's bytes lie.
//!
//! ```
//! use kiln_shape::{presets, ModelShape};
//!
//! let qwen3_8b: &ModelShape = &presets::by_name("qwen3-8b").unwrap().shape;
//! assert_eq!((qwen3_8b.hidden, qwen3_8b.q_dim(), qwen3_8b.kv_dim()), (4096, 4096, 1024));
//! ```
#![forbid(unsafe_code)]

pub mod arithmetic;
pub mod choice;
pub mod columns;
pub mod exchange;
mod from_gguf;
mod ggml_type;
pub mod gguf;
pub mod launch;
pub mod mailbox;
mod numerics;
pub mod presets;
pub mod random;
pub mod ring;
mod shape;
pub mod sliced;
pub mod table;
mod tensors;
pub mod units;
mod weight_type;

pub use from_gguf::ShapeError;
pub use ggml_type::GgmlType;
pub use gguf::{Gguf, GgufError};
pub use launch::{DecoderPath, Grid, KvType, NumberType, Param, ParamType};
pub use numerics::{Numerics, ROWS_TOGETHER, STAGED_MAX};
pub use presets::Preset;
pub use shape::{Difference, Family, ModelShape, RopePairing};
pub use tensors::{TensorRole, TensorSpec};
pub use units::Units;
pub use weight_type::{Layout, SUPER_BLOCK, WeightType, WeightTypes};
