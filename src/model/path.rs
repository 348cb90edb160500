//! The ways of running a sequence: one trait, one result.

use super::Inner;
use super::sequence::Sequence;
use crate::Result;
use crate::shape::choice::Choice;
use std::ops::ControlFlow;

/// Tokens to run, and how to go on.
#[derive(Debug, Clone)]
pub(crate) struct Item<'a> {
    /// Ids to run, at least one.
    pub(crate) ids: &'a [u32],
    /// The position of the first of them.
    pub(crate) position: u32,
    /// Tokens to generate behind them.
    pub(crate) max_new: u32,
    /// Ids that end the item, as its last token.
    pub(crate) stop_ids: &'a [u32],
    /// How its tokens are chosen.
    pub(crate) choice: Choice,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// It has as many tokens as were asked for.
    Length,
    /// The model chose a stop id.
    StopId(u32),
    /// The text came to one of its stop strings, by its place among them.
    StopString(usize),
    /// The session has no room.
    ContextFull,
    /// It was cancelled.
    Cancelled,
}

/// What an item yields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The next token. Its key and value are not in the cache yet.
    Token(u32),
    /// The end; nothing follows.
    End(End),
}

/// A way of running a sequence. The cache has room for the item's ids and tokens.
pub(crate) trait Path: Send {
    /// Begins an item, of at most [`super::columns::MOST`] tokens to run; the one before has ended.
    fn begin(&mut self, model: &Inner, sequence: &mut Sequence, item: &Item<'_>) -> Result<()>;

    /// Begins an item of one token, whose logits the host reads when it has ended.
    fn begin_logits(&mut self, model: &Inner, sequence: &mut Sequence, item: &Item<'_>) -> Result<()> {
        self.begin(model, sequence, item)
    }

    /// Runs an item's tokens, at most [`super::columns::MOST`], several at once, and gives `each` the logits behind every
    /// one of them with its position, `[vocab]`, until it breaks. `false` where the path does not run tokens so: then none
    /// has run.
    fn every_logits(
        &mut self,
        _model: &Inner,
        _sequence: &mut Sequence,
        _item: &Item<'_>,
        _each: &mut dyn FnMut(u32, &[f32]) -> ControlFlow<()>,
    ) -> Result<bool> {
        Ok(false)
    }

    /// The item's next token, or its end.
    fn next(&mut self, model: &Inner, sequence: &mut Sequence) -> Result<Step>;

    /// Takes note that no part of a prompt follows for now.
    fn rest(&mut self) {}

    /// Whether an item may begin before the mask of its next token is there, as its choice then says.
    fn awaits_masks(&self) -> bool {
        false
    }

    /// Ends the item early, if there is one. The path may have run more tokens than it has yielded. After an error it
    /// may be called again.
    fn stop(&mut self) -> Result<()>;

    /// The logits of the item of [`Path::begin_logits`] that has ended, `[vocab]`.
    fn logits(&mut self, sequence: &Sequence) -> Result<Vec<f32>> {
        sequence.logits.to_host()
    }

    /// The log-probability of the token that the last step gave, where its item's choice wants one.
    fn logprob(&self) -> Option<f32>;

    /// Launches and other calls to the driver so far.
    fn work(&self) -> Work;

    /// Its name.
    fn name(&self) -> &'static str;

    /// The stamps of each block's phases, if they were asked for.
    #[cfg(feature = "trace")]
    fn trace(&self) -> Result<Option<super::trace::Trace>> {
        Ok(None)
    }
}

/// Counts of a path's driver calls and tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Work {
    /// Launches: of kernels, and on the graph path of graphs, one for each token.
    pub launches: u64,
    /// Graphs recorded, on the graph path: one for each length class and what follows the layers, prompt tokens and chosen
    /// ones, and again where the cache has grown.
    pub captures: u64,
    /// Tokens run, of prompts and generated.
    pub tokens: u64,
    /// Other calls: copies, fills, records and queries. How often a wait looks depends on time, and is not counted.
    pub other_calls: u64,
}

#[cfg(all(test, feature = "tiny"))]
pub(super) mod tests;
