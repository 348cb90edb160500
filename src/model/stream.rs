//! The stream path, one launch for each fused kernel, and the graph path, one launch of a graph of them.

use super::choosing::{Choosing, Steps};
use super::columns::{self, Columns, Pass};
use super::graphs::Graphs;
use super::kernels::Kernels;
use super::path::{End, Item, Path, Step, Work};
use super::sequence::Sequence;
use super::token::{Launches, Of, Then};
use super::{Inner, Numerics};
use crate::Result;
use crate::driver::{Event, Stream};
use crate::shape::choice;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Runs a sequence's tokens on a stream.
pub(crate) struct StreamPath {
    pub(crate) stream: Stream,
    /// On the graph path, what is launched instead of kernels. Dropped before the kernels that are in them.
    graphs: Option<Graphs>,
    kernels: Arc<Kernels>,
    numerics: Numerics,
    /// What several tokens of a prompt take at once; made for the first such prompt.
    columns: Option<Columns>,
    /// What tokens are chosen with, other than plainly the likeliest; made for the first such item. Graphs have its
    /// addresses: it stays.
    choosing: Option<Choosing>,
    work: Work,
    item: Option<Running>,
    logprob: Option<f32>,
    /// Behind the last pieces of a prompt, so that no more of them are under way.
    ahead: VecDeque<Event>,
}

/// Pieces of a prompt, a token or a layer of several, that are enqueued ahead of the one being run.
const AHEAD: usize = 2;

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
        let steps = self.prepare(model, item)?;
        // The choice of the next is behind the last.
        let position = if item.max_new == 0 { end } else { end - 1 };
        let together = self.together(model, sequence, item.position, end - item.position)?;
        let alone = if together == 0 { item.position } else { position };
        sequence.seek(alone)?;
        for position in alone..position {
            self.token(model, sequence, position, Then::Advance, None)?;
            self.pace()?;
        }
        let column = (item.max_new > 0 && together > 0).then(|| together - 1);
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
        if !self.make_columns(model, count)? {
            return Ok(false);
        }
        let end = item.position + count;
        sequence.grow(model, end, end)?;
        sequence.write_tokens(item.position, item.ids)?;
        self.work.other_calls += 1;
        self.layers(model, sequence, item.position, count)?;
        let shape = model.file.shape();
        if let Some(columns) = &mut self.columns {
            columns.begin_logits(shape, count)?;
        }
        let vocab = shape.vocab as usize;
        let mut logits = vec![0.0; vocab * count.min(Columns::LOGITS) as usize];
        for first in (0..count).step_by(Columns::LOGITS as usize) {
            let here = (count - first).min(Columns::LOGITS);
            self.piece(model, sequence, |columns, stream, of| columns.head(stream, of, first, here))?;
            let rows = logits.get_mut(..here as usize * vocab).unwrap_or_default();
            if let Some(from) = self.columns.as_ref().and_then(|columns| columns.logits.as_ref()) {
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
            sequence.check(&self.stream)?;
            self.work.other_calls += 1;
            return Ok(Step::End(end));
        }
        if item.position >= sequence.room() {
            self.grow(model, sequence, &item)?;
        }
        match item.column.take() {
            None => self.token(model, sequence, item.position, Then::Choose, item.steps)?,
            Some(column) => self.choose(model, sequence, (item.position, column), item.steps)?,
        }
        item.position += 1;
        let token = sequence.token(&self.stream, item.position)?;
        self.work.other_calls += 2;
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

    fn stop(&mut self) -> Result<()> {
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
        let (work, ahead) = (Work::default(), VecDeque::new());
        StreamPath {
            stream,
            kernels,
            numerics,
            graphs: None,
            columns: None,
            choosing: None,
            work,
            item: None,
            logprob: None,
            ahead,
        }
    }

    /// The graph path.
    pub(crate) fn with_graphs(self) -> StreamPath {
        StreamPath { graphs: Some(Graphs::new(self.stream.clone())), ..self }
    }

    /// Has what an item's tokens are chosen with on the device; gives the steps, where it is not plainly the likeliest.
    fn prepare(&mut self, model: &Inner, item: &Item<'_>) -> Result<Option<Steps>> {
        let Some(steps) = Steps::of(&item.choice) else { return Ok(None) };
        let choosing = match &mut self.choosing {
            Some(choosing) => choosing,
            none => none.insert(Choosing::new(model)?),
        };
        choosing.words.copy_from_host(0, &item.choice)?;
        self.work.other_calls += 1;
        Ok(Some(steps))
    }

    /// Runs tokens from `position` on several at once, where there are kernels for it; gives the number of those that it
    /// has run, of `count`, none or all.
    fn together(&mut self, model: &Inner, sequence: &mut Sequence, position: u32, count: u32) -> Result<u32> {
        if !(2..=columns::MOST).contains(&count) || !self.make_columns(model, count)? {
            return Ok(0);
        }
        self.layers(model, sequence, position, count)?;
        Ok(count)
    }

    /// Has room for `count` tokens at once; whether there are kernels for it.
    fn make_columns(&mut self, model: &Inner, count: u32) -> Result<bool> {
        // The memory of a shorter prompt is free before that of a longer one is taken.
        self.columns.take_if(|columns| !columns.fits(count));
        if self.columns.is_none() {
            let kernels = model.column_kernels(self.numerics)?;
            self.columns = kernels.map(|kernels| Columns::new(model, kernels, count)).transpose()?;
        }
        Ok(self.columns.is_some())
    }

    /// Runs `count` tokens from `position` on through the layers, several at once.
    fn layers(&mut self, model: &Inner, sequence: &Sequence, position: u32, count: u32) -> Result<()> {
        if let Some(columns) = &mut self.columns {
            columns.begin(model, sequence.kv, position, count)?;
            self.work.other_calls += 1;
        }
        let pass = Pass { position, count };
        self.piece(model, sequence, |columns, stream, of| columns.embed(stream, of, pass))?;
        // A layer is a piece of work of its own: the driver has room for some launches, and waits without a limit where it
        // has none.
        for layer in 0..model.file.shape().layers {
            self.piece(model, sequence, |columns, stream, of| columns.layer(stream, of, pass, layer))?;
        }
        self.work.tokens += u64::from(count);
        Ok(())
    }

    /// Chooses behind the token at `position`, which has gone through the layers in `column`.
    fn choose(
        &mut self,
        model: &Inner,
        sequence: &Sequence,
        (position, column): (u32, u32),
        steps: Option<Steps>,
    ) -> Result<()> {
        let Some(columns) = &self.columns else { return Ok(()) };
        let choosing = self.choosing.as_ref().zip(steps);
        let (length, then) = (position + 1, Then::Choose);
        let launches = Launches { kernels: &self.kernels, model, sequence, length, then, choosing };
        let x = columns.residual(column, model.file.shape());
        let count = &mut self.work.launches;
        self.stream.enqueue_many(launches.uses().chain(columns.uses()), |stream| {
            *count += launches.choose(stream, x)?;
            Ok(())
        })?;
        self.pace()
    }

    /// A piece of work on several tokens, and a wait for those before it.
    fn piece(
        &mut self,
        model: &Inner,
        sequence: &Sequence,
        work: impl FnOnce(&Columns, &Stream, &Of<'_>) -> Result<u64>,
    ) -> Result<()> {
        let Some(columns) = &self.columns else { return Ok(()) };
        let of = Of { model, kernels: &self.kernels, sequence };
        let uses = model.weights.uses().chain(sequence.uses()).chain(columns.uses());
        let launches = &mut self.work.launches;
        self.stream.enqueue_many(uses, |stream| {
            *launches += work(columns, stream, &of)?;
            Ok(())
        })?;
        self.pace()
    }

    /// Waits until few pieces of the prompt are under way: each wait is for the work of a few tokens, or layers, at most.
    fn pace(&mut self) -> Result<()> {
        self.ahead.push_back(self.stream.record()?);
        self.work.other_calls += 1;
        if self.ahead.len() > AHEAD
            && let Some(event) = self.ahead.pop_front()
        {
            event.synchronize()?;
        }
        Ok(())
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
        self.stream.enqueue_many(launches.uses(), |stream| {
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
