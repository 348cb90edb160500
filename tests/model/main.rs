//! Whole models: their numbers against float64, and sessions on every path.

#[path = "../common/bake.rs"]
mod bake;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../examples/common/counters.rs"]
mod counters;

use kiln_testing::{int8, json, npy, quantised, random, reference, synth_model};

#[cfg(feature = "text")]
mod chat;
mod company;
#[cfg(feature = "text")]
mod constraint;
mod decode;
mod dependencies;
mod evaluate;
mod exchange;
mod fast;
mod graph;
mod kept;
mod masks;
mod not_finite;
mod numerics;
mod outliers;
#[cfg(feature = "text")]
mod perplexity;
mod persistent;
mod presets;
mod prompts;
mod reference_results;
mod ring;
mod rules;
mod sampling;
mod sessions;
mod sharing;
mod storm;
#[cfg(feature = "text")]
mod synth;
#[cfg(feature = "text")]
mod text;
mod traffic;
