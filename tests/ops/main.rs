//! Checked launches: right against float64, refusing what does not fit, and leaving nothing in flight unguarded.

#[path = "../common/bake.rs"]
mod bake;
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

mod arguments;
mod calls;
mod columns;
mod fused;
mod in_flight;
mod results;
mod scene;
mod traffic;
