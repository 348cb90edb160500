//! Every kernel against float64, on the emulator under several schedules with all checks on, or on a GPU with
//! `KILN_DEVICE=cuda`: odd sizes, fresh random inputs, outputs poisoned before the launch.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/compare.rs"]
mod compare;
#[path = "../common/dequantise.rs"]
mod dequantise;
#[path = "../common/int8.rs"]
mod int8;
#[path = "../common/quantised.rs"]
mod quantised;
#[path = "../common/random.rs"]
mod random;
#[path = "../common/rounding.rs"]
mod rounding;

mod support;

mod attention;
mod elementwise;
mod embedding;
mod fast;
mod gemm;
mod gemv;
mod kv;
mod mma;
mod norm;
mod one_launch;
mod phases;
mod repack;
mod table;
mod traffic;
