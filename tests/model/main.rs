//! Whole models: their numbers against float64, and sessions on every path.

#[path = "../common/bake.rs"]
mod bake;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/json.rs"]
#[allow(dead_code)] // each test program uses a part
mod json;
#[path = "../common/npy.rs"]
mod npy;
#[path = "../common/random.rs"]
mod random;
#[path = "../common/reference.rs"]
mod reference;
#[path = "../../examples/synth/model.rs"]
mod synth_model;

mod decode;
mod evaluate;
mod fast;
mod graph;
mod not_finite;
mod numerics;
mod persistent;
mod presets;
mod reference_results;
mod sessions;
mod sharing;
#[cfg(feature = "text")]
mod synth;
