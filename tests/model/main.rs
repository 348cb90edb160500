//! Whole models: their numbers against float64, and sessions on every path.

#[path = "../common/bake.rs"]
mod bake;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../examples/common/counters.rs"]
mod counters;
#[path = "../common/int8.rs"]
mod int8;
#[path = "../common/json.rs"]
#[allow(dead_code)] // each test program uses a part
mod json;
#[path = "../common/npy.rs"]
mod npy;
#[path = "../common/quantised.rs"]
mod quantised;
#[path = "../common/random.rs"]
mod random;
#[path = "../common/reference.rs"]
mod reference;
#[path = "../../examples/synth/model.rs"]
mod synth_model;

/// Where the other common files look for it.
mod dequantise {
    pub(crate) use crate::reference::dequantise;
}

#[cfg(feature = "text")]
mod chat;
mod decode;
mod evaluate;
mod fast;
mod graph;
mod kept;
mod not_finite;
mod numerics;
mod outliers;
#[cfg(feature = "text")]
mod perplexity;
mod persistent;
mod presets;
mod reference_results;
mod ring;
mod sampling;
mod sessions;
mod sharing;
#[cfg(feature = "text")]
mod synth;
#[cfg(feature = "text")]
mod text;
mod traffic;
