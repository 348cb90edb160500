//! How tokens are chosen, and where the text ends, as commands are told.

#![allow(dead_code)]

use clap::Args;
use kiln::model::Sampling;
use std::time::{SystemTime, UNIX_EPOCH};

/// The arguments of the choice; tokens are the likeliest where none is given.
#[derive(Args, Clone)]
pub(crate) struct Choice {
    /// 0 takes the likeliest token, 1 draws by the model's own probabilities
    #[arg(long, default_value_t = 0.0)]
    pub(crate) temperature: f32,
    /// Draw from that many of the likeliest tokens; 0 for all
    #[arg(long, default_value_t = 0)]
    pub(crate) top_k: u32,
    /// Draw from the likeliest tokens that have this share of probability
    #[arg(long, default_value_t = 1.0)]
    pub(crate) top_p: f32,
    /// Draw from tokens at least this share as likely as the likeliest
    #[arg(long, default_value_t = 0.0)]
    pub(crate) min_p: f32,
    /// Draw from the tokens of typical surprise that have this share of probability
    #[arg(long, default_value_t = 1.0)]
    pub(crate) typical_p: f32,
    /// Divides logits of tokens that have occurred
    #[arg(long, default_value_t = 1.0)]
    pub(crate) repetition_penalty: f32,
    /// Taken off logits of tokens that have occurred
    #[arg(long, default_value_t = 0.0)]
    pub(crate) presence_penalty: f32,
    /// Taken off a token's logit for each time it has occurred
    #[arg(long, default_value_t = 0.0)]
    pub(crate) frequency_penalty: f32,
    /// Last tokens that penalties look at; all where not given
    #[arg(long)]
    pub(crate) penalty_window: Option<usize>,
    /// The same seed gives the same text; another one each time where not given
    #[arg(long)]
    pub(crate) seed: Option<u64>,
}

impl Choice {
    pub(crate) fn sampling(&self) -> Sampling {
        Sampling::new(self.temperature, self.seed.unwrap_or_else(by_the_clock))
            .with_top_k(self.top_k)
            .with_typical_p(self.typical_p)
            .with_top_p(self.top_p)
            .with_min_p(self.min_p)
            .with_penalties(self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
            .with_penalty_window(self.penalty_window)
    }
}

/// Which choice it was, for a closing line.
pub(crate) fn described(sampling: &Sampling) -> String {
    match sampling.temperature {
        0.0 => "greedy".to_owned(),
        temperature => format!("temperature {temperature}, seed {}", sampling.seed),
    }
}

fn by_the_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::from(since.subsec_micros()) ^ since.as_secs() << 20) % 1_000_000_007
}
