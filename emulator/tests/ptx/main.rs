//! PTX text, loaded and launched without a driver.

#![allow(clippy::needless_range_loop)]

mod rig;
#[path = "../table/mod.rs"]
mod table;

mod clusters;
mod execution;
mod memory;
mod nvcc;
mod races;
mod rounding;
mod text;
mod truth;
