//! What kiln's tests draw inputs from and compare results with: random numbers and weights, arithmetic in float64, bounds
//! of rounding, references from files.
//!
//! A crate of its own, because it is optimised where tests are not: a reference in float64 costs more than the emulator
//! otherwise.

#![forbid(unsafe_code)]

pub mod compare;
pub mod dequantise;
pub mod int8;
pub mod json;
pub mod kv;
pub mod npy;
pub mod quantised;
pub mod random;
pub mod reference;
pub mod rounding;
#[path = "../../../examples/synth/model.rs"]
pub mod synth_model;
