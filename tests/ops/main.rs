//! Checked launches: right against float64, refusing what does not fit, and leaving nothing in flight unguarded.

#[path = "../common/bake.rs"]
mod bake;
#[path = "../common/mod.rs"]
mod common;

use kiln_testing::{compare, int8, quantised, random, rounding};

mod arguments;
mod calls;
mod columns;
mod fused;
mod in_flight;
mod results;
mod scene;
mod traffic;
