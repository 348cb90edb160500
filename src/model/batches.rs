//! Prompts by batches: several tokens go through the layers at once, on a stream. The stream path and the graph path read
//! prompts so on their own stream, the persistent path on one beside the resident decoder.

use super::columns::{self, Columns, Pass};
use super::path::Work;
use super::sequence::Sequence;
use super::token::{Head, Of};
use super::{Inner, Numerics};
use crate::Result;
use crate::driver::{Event, Keeper, Stream};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Pieces of a prompt, a token or a layer of several, that are enqueued ahead of the one being run.
const AHEAD: usize = 2;

/// What a prompt took that has run, until the next one takes it or memory lacks for something else.
#[derive(Default)]
pub(crate) struct Spare(Mutex<Option<Columns>>);

impl Keeper for Spare {
    fn give_up(&self) -> bool {
        self.take().is_some()
    }
}

impl Spare {
    /// What is there.
    fn take(&self) -> Option<Columns> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps `columns`, or what is there if that has as much room; gives the other.
    fn keep(&self, columns: Columns) -> Option<Columns> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some(other) if other.has_room_of(&columns) => Some(columns),
            _ => kept.replace(columns),
        }
    }
}

/// A stream, and what several tokens of a prompt take at once on it.
pub(crate) struct Batches {
    pub(crate) stream: Stream,
    numerics: Numerics,
    /// From the first batch of a prompt until it has run.
    columns: Option<Columns>,
    /// Where they come from and go to: the model's.
    spare: Arc<Spare>,
    /// Behind the last pieces of a prompt, so that no more of them are under way.
    ahead: VecDeque<Event>,
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.release();
    }
}

impl Batches {
    pub(crate) fn new(stream: Stream, numerics: Numerics) -> Batches {
        Batches { stream, numerics, columns: None, spare: Arc::default(), ahead: VecDeque::new() }
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
            self.spare = model.spare.clone();
            match self.spare.take() {
                Some(columns) if columns.fits(count) => self.columns = Some(columns),
                shorter => {
                    // What is resident parks once for all that is freed and allocated.
                    let _quiet = model.device.context().quiesce()?;
                    // The memory of shorter prompts is free before that of a longer one is taken.
                    (self.columns, _) = (None, drop(shorter));
                    self.columns = Some(Columns::new(model, kernels, count)?);
                }
            }
        }
        Ok(self.columns.is_some())
    }

    /// Gives up what a prompt took that has run: the next one takes it, of whichever session.
    pub(crate) fn release(&mut self) {
        let Some(mut columns) = self.columns.take() else { return };
        // Few prompts want logits behind each of their tokens.
        let freed = (columns.logits.take(), self.spare.keep(columns));
        if freed.0.is_some() || freed.1.is_some() {
            // What is resident parks once for all of it.
            let _quiet = self.stream.inner.context.quiesce();
            drop(freed);
        }
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

    /// The choice of the next token behind a column that has gone through the layers, to whose position the sequence's state
    /// points.
    pub(crate) fn choose(&mut self, head: &Head<'_>, column: u32, work: &mut Work) -> Result<()> {
        let Some(columns) = &self.columns else { return Ok(()) };
        let x = columns.residual(column, head.model.file.shape());
        self.stream.enqueue_many(head.uses().chain(columns.uses()), |stream| {
            work.launches += head.launch(stream, x)?;
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
