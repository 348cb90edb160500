//! One launch against many: what the decoder's paths ask of the driver for a token, and how fast they are on a GPU.

use kiln::Model;
use kiln::model::{GenerateOptions, PathChoice, SessionOptions};
use std::error::Error;
use std::time::Instant;

/// What a path took for a prompt and the tokens it generated behind it.
pub(crate) struct PathCost {
    pub(crate) name: &'static str,
    /// Tokens run, of the prompt and generated.
    pub(crate) tokens: u64,
    pub(crate) launches: u64,
    pub(crate) driver_calls: u64,
    /// Tokens generated in a second, without the prompt and the first of them, which warms up.
    pub(crate) rate: f64,
    pub(crate) ids: Vec<u32>,
}

/// Generates `tokens` tokens behind a short prompt on a path.
pub(crate) fn run(model: &Model, path: PathChoice, tokens: usize) -> Result<PathCost, Box<dyn Error>> {
    let capacity = Some(model.shape().context.min(tokens as u32 + 16));
    let mut session = model.session(SessionOptions { path, capacity, ..SessionOptions::default() })?;
    session.append(&[1, 2, 3])?;
    let mut begin = None;
    let mut ids = Vec::new();
    for id in session.generate(GenerateOptions { max_tokens: tokens, stop_ids: Vec::new() }) {
        ids.push(id?);
        begin.get_or_insert_with(Instant::now);
    }
    let seconds = begin.map_or(0.0, |begin| begin.elapsed().as_secs_f64());
    let (name, work) = (session.path().0, session.work());
    Ok(PathCost {
        name,
        tokens: work.tokens,
        launches: work.launches,
        driver_calls: work.launches + work.other_calls,
        rate: ids.len().saturating_sub(1) as f64 / seconds.max(1e-9),
        ids,
    })
}
