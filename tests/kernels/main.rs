//! Every kernel against float64, on the emulator under several schedules with all checks on, or on a GPU with
//! `KILN_DEVICE=cuda`: odd sizes, fresh random inputs, outputs poisoned before the launch.

#[path = "../common/mod.rs"]
mod common;

use kiln_testing::{compare, int8, quantised, random, rounding};

mod support;

mod attention;
mod choose;
mod elementwise;
mod embedding;
mod fast;
mod gemm;
mod gemm_floats;
mod gemv;
mod kv;
mod mma;
mod norm;
mod one_launch;
mod phases;
mod repack;
mod table;
mod traffic;
