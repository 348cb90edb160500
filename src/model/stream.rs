//! The stream path, one launch for each fused kernel, and the graph path, one launch of a graph of them.

use super::batches::Batches;
use super::choosing::{Choosing, Steps};
use super::columns::Columns;
use super::graphs::Graphs;
use super::kernels::Kernels;
use super::path::{End, Item, Path, Step, Work};
use super::sequence::Sequence;
use super::token::{Head, Launches, Of, Then};
use super::{Inner, Numerics};
use crate::Result;
use crate::driver::Stream;
use crate::shape::choice;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Runs a sequence's tokens on a stream.
pub(crate) struct StreamPath {
    /// Its stream, and prompts of several tokens on it.
    pub(crate) batches: Batches,
    /// On the graph path, what is launched instead of kernels. Dropped before the kernels that are in them.
    graphs: Option<Graphs>,
    kernels: Arc<Kernels>,
    /// What tokens are chosen with, other than plainly the likeliest; made for the first such item. Graphs have its
    /// addresses: it stays.
    choosing: Option<Choosing>,
    work: Work,
    item: Option<Running>,
    logprob: Option<f32>,
}

/// The item being run.
struct Running {
    /// The position of the next token to run, behind which another is chosen.
    position: u32,
    /// The column that this token has gone through the layers in, as the last of its prompt.
    column: Option<u32>,
    /// Tokens still wanted.
    left: u32,
    /// How it ends after this.
    end: Option<End>,
    stop_ids: Vec<u32>,
    /// How tokens are chosen, where it is not plainly the likeliest.
    steps: Option<Steps>,
    /// Whether their log-probabilities are wanted.
    logprobs: bool,
}

impl Path for StreamPath {
    fn begin(&mut self, model: &Inner, sequence: &mut Sequence, item: &Item<'_>) -> Result<()> {
        let end = item.position + item.ids.len() as u32;
        sequence.grow(model, end, end + item.max_new.saturating_sub(1))?;
        sequence.write_tokens(item.position, item.ids)?;
        self.work.other_calls += 2;
        let steps = Choosing::prepare(&mut self.choosing, model, &item.choice)?;
        self.work.other_calls += u64::from(steps.is_some());
        // The choice of the next is behind the last.
        let position = if item.max_new == 0 { end } else { end - 1 };
        let count = end - item.position;
        let together = self.batches.run(model, sequence, (item.position, count), &mut self.work)?;
        let alone = if together { position } else { item.position };
        sequence.seek(alone)?;
        for position in alone..position {
            self.token(model, sequence, position, Then::Advance, None)?;
            self.batches.pace(&mut self.work)?;
        }
        let column = (item.max_new > 0 && together).then(|| count - 1);
        let end = (item.max_new == 0).then_some(End::Length);
        let logprobs = item.choice[choice::FLAGS as usize] & choice::LOGPROB != 0;
        self.item = Some(Running {
            position,
            column,
            left: item.max_new,
            end,
            stop_ids: item.stop_ids.to_vec(),
            steps,
            logprobs,
        });
        Ok(())
    }

    fn every_logits(
        &mut self,
        model: &Inner,
        sequence: &mut Sequence,
        item: &Item<'_>,
        each: &mut dyn FnMut(u32, &[f32]) -> ControlFlow<()>,
    ) -> Result<bool> {
        let count = item.ids.len() as u32;
        if !self.batches.make_columns(model, count)? {
            return Ok(false);
        }
        let end = item.position + count;
        sequence.grow(model, end, end)?;
        sequence.write_tokens(item.position, item.ids)?;
        self.work.other_calls += 1;
        self.batches.layers(model, sequence, (item.position, count), &mut self.work)?;
        let shape = model.file.shape();
        if let Some(columns) = self.batches.columns_mut() {
            columns.begin_logits(shape, count)?;
        }
        let vocab = shape.vocab as usize;
        let mut logits = vec![0.0; vocab * count.min(Columns::LOGITS) as usize];
        for first in (0..count).step_by(Columns::LOGITS as usize) {
            let here = (count - first).min(Columns::LOGITS);
            let head = |columns: &Columns, stream: &Stream, of: &Of<'_>| columns.head(stream, of, first, here);
            self.batches.piece(model, sequence, &mut self.work, head)?;
            let rows = logits.get_mut(..here as usize * vocab).unwrap_or_default();
            if let Some(from) = self.batches.columns().and_then(|columns| columns.logits.as_ref()) {
                from.copy_to_host(0, rows)?;
                self.work.other_calls += 1;
            }
            for (position, row) in (item.position + first..).zip(rows.chunks(vocab)) {
                if each(position, row).is_break() {
                    return Ok(true);
                }
            }
        }
        Ok(true)
    }

    fn next(&mut self, model: &Inner, sequence: &mut Sequence) -> Result<Step> {
        self.logprob = None;
        let Some(mut item) = self.item.take() else {
            return Ok(Step::End(End::Cancelled));
        };
        if let Some(end) = item.end {
            sequence.check(&self.batches.stream)?;
            self.work.other_calls += 1;
            return Ok(Step::End(end));
        }
        if item.position >= sequence.room() {
            self.grow(model, sequence, &item)?;
        }
        let column = item.column.take();
        match column {
            None => self.token(model, sequence, item.position, Then::Choose, item.steps)?,
            Some(column) => {
                let choosing = self.choosing.as_ref().zip(item.steps);
                let head = Head { kernels: &self.kernels.of_head, model, sequence, choosing };
                self.batches.choose(&head, column, &mut self.work)?;
            }
        }
        item.position += 1;
        let token = sequence.token(&self.batches.stream, item.position)?;
        self.work.other_calls += 2;
        if column.is_some() {
            self.batches.release();
        }
        if let Some(choosing) = self.choosing.as_ref().filter(|_| item.logprobs) {
            self.logprob = Some(choosing.logprob()?);
            self.work.other_calls += 1;
        }
        item.left -= 1;
        item.end = match () {
            () if item.stop_ids.contains(&token) => Some(End::StopId(token)),
            () if item.left == 0 => Some(End::Length),
            () if item.position >= sequence.capacity => Some(End::ContextFull),
            () => None,
        };
        self.item = Some(item);
        Ok(Step::Token(token))
    }

    fn rest(&mut self) {
        self.batches.release();
    }

    fn stop(&mut self) -> Result<()> {
        self.batches.release();
        self.item = None;
        Ok(())
    }

    fn logprob(&self) -> Option<f32> {
        self.logprob
    }

    fn work(&self) -> Work {
        Work { captures: self.graphs.as_ref().map_or(0, Graphs::captures), ..self.work }
    }

    fn name(&self) -> &'static str {
        if self.graphs.is_some() { "graph" } else { "stream" }
    }
}

impl StreamPath {
    pub(crate) fn new(stream: Stream, kernels: Arc<Kernels>, numerics: Numerics) -> StreamPath {
        let (batches, work) = (Batches::new(stream, numerics), Work::default());
        StreamPath { batches, graphs: None, kernels, choosing: None, work, item: None, logprob: None }
    }

    /// The graph path.
    pub(crate) fn with_graphs(self) -> StreamPath {
        StreamPath { graphs: Some(Graphs::new(self.batches.stream.clone())), ..self }
    }

    /// Has the cache grow for the tokens that are still wanted.
    fn grow(&mut self, model: &Inner, sequence: &mut Sequence, item: &Running) -> Result<()> {
        let needed = item.position + 1;
        sequence.grow(model, needed, needed.saturating_add(item.left))
    }

    /// Runs the token at `position`, whose id is in `sequence.tokens` and to which its state points.
    fn token(
        &mut self,
        model: &Inner,
        sequence: &Sequence,
        position: u32,
        then: Then,
        steps: Option<Steps>,
    ) -> Result<()> {
        let choosing = self.choosing.as_ref().zip(steps);
        let launches = Launches { kernels: &self.kernels, model, sequence, length: position + 1, then, choosing };
        let count = &mut self.work.launches;
        let graph = self.graphs.as_mut().map(|graphs| graphs.of(launches)).transpose()?;
        self.batches.stream.enqueue_many(launches.uses(), |stream| {
            *count += match graph {
                None => launches.launch(stream)?,
                Some(graph) => {
                    // SAFETY: the path holds the kernels, and what was recorded uses the buffers that are noted here.
                    unsafe { graph.launch(stream)? };
                    1
                }
            };
            Ok(())
        })?;
        self.work.tokens += 1;
        Ok(())
    }
}
