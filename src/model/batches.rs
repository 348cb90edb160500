//! Prompts by batches: several tokens go through the layers at once, on a stream. The stream path and the graph path read
//! prompts so on their own stream, the persistent path on one beside the resident decoder.

use super::columns::{self, Columns, Pass};
use super::path::Work;
use super::sequence::Sequence;
use super::token::Of;
use super::{Inner, Numerics};
use crate::Result;
use crate::driver::{Event, Stream};
use std::collections::VecDeque;

/// Pieces of a prompt, a token or a layer of several, that are enqueued ahead of the one being run.
const AHEAD: usize = 2;

/// A stream, and what several tokens of a prompt take at once on it.
pub(crate) struct Batches {
    pub(crate) stream: Stream,
    numerics: Numerics,
    /// Made for the first prompt of several tokens.
    columns: Option<Columns>,
    /// Behind the last pieces of a prompt, so that no more of them are under way.
    ahead: VecDeque<Event>,
}

impl Batches {
    pub(crate) fn new(stream: Stream, numerics: Numerics) -> Batches {
        Batches { stream, numerics, columns: None, ahead: VecDeque::new() }
    }

    /// What tokens at once take, where some have run.
    pub(crate) fn columns(&self) -> Option<&Columns> {
        self.columns.as_ref()
    }

    /// The same, to be prepared for more.
    pub(crate) fn columns_mut(&mut self) -> Option<&mut Columns> {
        self.columns.as_mut()
    }

    /// Runs `count` tokens from `position` on at once, where there are kernels for it: whether it has. Their ids are in
    /// `sequence.tokens`, and its cache has room.
    pub(crate) fn run(
        &mut self,
        model: &Inner,
        sequence: &Sequence,
        (position, count): (u32, u32),
        work: &mut Work,
    ) -> Result<bool> {
        let runs = (2..=columns::MOST).contains(&count) && self.make_columns(model, count)?;
        if runs {
            self.layers(model, sequence, (position, count), work)?;
        }
        Ok(runs)
    }

    /// Has room for `count` tokens at once; whether there are kernels for it.
    pub(crate) fn make_columns(&mut self, model: &Inner, count: u32) -> Result<bool> {
        let fits = self.columns.as_ref().is_some_and(|columns| columns.fits(count));
        if !fits && let Some(kernels) = model.column_kernels(self.numerics)? {
            // What is resident parks once for all that is freed and allocated.
            let _quiet = model.device.context().quiesce()?;
            // The memory of a shorter prompt is free before that of a longer one is taken.
            self.columns = None;
            self.columns = Some(Columns::new(model, kernels, count)?);
        }
        Ok(self.columns.is_some())
    }

    /// Runs `count` tokens from `position` on through the layers, several at once.
    pub(crate) fn layers(
        &mut self,
        model: &Inner,
        sequence: &Sequence,
        (position, count): (u32, u32),
        work: &mut Work,
    ) -> Result<()> {
        if let Some(columns) = &mut self.columns {
            columns.begin(model, sequence.kv, position, count)?;
            work.other_calls += 1;
        }
        let pass = Pass { position, count };
        self.piece(model, sequence, work, |columns, stream, of| columns.embed(stream, of, pass))?;
        // A layer is a piece of work of its own: the driver has room for some launches, and waits without a limit where it
        // has none.
        for layer in 0..model.file.shape().layers {
            self.piece(model, sequence, work, |columns, stream, of| columns.layer(stream, of, pass, layer))?;
        }
        work.tokens += u64::from(count);
        Ok(())
    }

    /// A piece of work on several tokens, and a wait for those before it.
    pub(crate) fn piece(
        &mut self,
        model: &Inner,
        sequence: &Sequence,
        work: &mut Work,
        launch: impl FnOnce(&Columns, &Stream, &Of<'_>) -> Result<u64>,
    ) -> Result<()> {
        let Some(columns) = &self.columns else { return Ok(()) };
        let of = Of { model, sequence };
        let uses = model.weights.uses().chain(sequence.uses()).chain(columns.uses());
        self.stream.enqueue_many(uses, |stream| {
            work.launches += launch(columns, stream, &of)?;
            Ok(())
        })?;
        self.pace(work)
    }

    /// Waits until few pieces of the prompt are under way: each wait is for the work of a few tokens, or layers, at most.
    pub(crate) fn pace(&mut self, work: &mut Work) -> Result<()> {
        self.ahead.push_back(self.stream.record()?);
        work.other_calls += 1;
        if self.ahead.len() > AHEAD
            && let Some(event) = self.ahead.pop_front()
        {
            event.synchronize()?;
        }
        Ok(())
    }
}
