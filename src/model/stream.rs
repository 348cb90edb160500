//! The stream path: one launch for each fused kernel, in the order of the mathematics.

use super::Inner;
use super::generation::End;
use super::kernels::{Kernel, Kernels};
use super::path::{Item, Path, Step, Work};
use super::sequence::Sequence;
use crate::Result;
use crate::driver::{DevicePtr, Event, KernelParam, Stream};
use crate::shape::table::KV_CHUNK;
use std::collections::VecDeque;
use std::sync::Arc;

/// Runs a sequence's tokens on a stream.
pub(crate) struct StreamPath {
    pub(crate) stream: Stream,
    kernels: Arc<Kernels>,
    work: Work,
    item: Option<Running>,
    /// Behind the last tokens of a prompt, so that no more of them are under way.
    ahead: VecDeque<Event>,
}

/// Tokens of a prompt that are enqueued ahead of the one being run.
const AHEAD: usize = 2;

/// The item being run.
struct Running {
    /// The position of the last token run or chosen.
    position: u32,
    /// Whether that token was chosen and not yet run.
    chosen: bool,
    /// Tokens still wanted.
    left: u32,
    /// How it ends after this.
    end: Option<End>,
    stop_ids: Vec<u32>,
}

impl Path for StreamPath {
    fn begin(&mut self, model: &Inner, sequence: &mut Sequence, item: &Item<'_>) -> Result<()> {
        let end = item.position + item.ids.len() as u32;
        sequence.grow(model, end, end + item.max_new.saturating_sub(1))?;
        sequence.write_tokens(item.position, item.ids)?;
        sequence.seek(item.position)?;
        self.work.other_calls += 2;
        for (index, _) in item.ids.iter().enumerate() {
            if index > 0 {
                self.advance(model, sequence)?;
            }
            self.forward(model, sequence, item.position + index as u32)?;
            self.pace()?;
        }
        let position = item.position + item.ids.len() as u32 - 1;
        let end = (item.max_new == 0).then_some(End::Length);
        let stop_ids = item.stop_ids.to_vec();
        self.item = Some(Running { position, chosen: false, left: item.max_new, end, stop_ids });
        Ok(())
    }

    fn next(&mut self, model: &Inner, sequence: &mut Sequence) -> Result<Step> {
        let Some(mut item) = self.item.take() else {
            return Ok(Step::End(End::Cancelled));
        };
        if let Some(end) = item.end {
            sequence.check(&self.stream)?;
            self.work.other_calls += 1;
            return Ok(Step::End(end));
        }
        if item.chosen {
            if item.position >= sequence.room() {
                self.grow(model, sequence, &item)?;
            }
            self.forward(model, sequence, item.position)?;
        }
        self.head(model, sequence)?;
        self.argmax(model, sequence)?;
        item.position += 1;
        let token = sequence.token(&self.stream, item.position)?;
        self.work.other_calls += 2;
        item.chosen = true;
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

    fn work(&self) -> Work {
        self.work
    }

    fn name(&self) -> &'static str {
        "stream"
    }
}

/// Params are read at the launch: a list of references to values.
macro_rules! params {
    ($($value:expr),* $(,)?) => { [$(KernelParam::new(&$value)),*] };
}

impl StreamPath {
    pub(crate) fn new(stream: Stream, kernels: Arc<Kernels>) -> StreamPath {
        StreamPath { stream, kernels, work: Work::default(), item: None, ahead: VecDeque::new() }
    }

    /// Waits until few tokens of the prompt are under way: each wait is for the work of a few tokens at most.
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

    /// Embedding and layers for the token at `position`, whose id is in `sequence.tokens` and to which its state points.
    /// Leaves the residual stream in `sequence.x`.
    fn forward(&mut self, model: &Inner, sequence: &Sequence, position: u32) -> Result<()> {
        let (shape, kernels, weights) = (model.file.shape(), &self.kernels, &model.weights);
        let of_cache = kernels.of_cache(sequence.kv);
        let table = weights.table.as_ptr();
        let (cos, sin) = (sequence.rotary.cos.as_ptr(), sequence.rotary.sin.as_ptr());
        let (tokens, state) = (sequence.tokens.as_ptr(), sequence.state.as_ptr());
        let (length_at, error) = (state.add(1), state.add(2));
        let (x, qkv) = (sequence.x.as_ptr(), sequence.qkv.as_ptr());
        let (attention, ffn) = (sequence.attention.as_ptr(), sequence.ffn.as_ptr());
        let (chunks, tables) = (sequence.table.as_ptr(), sequence.tables.as_ptr());
        let partials = sequence.partials.as_ptr();
        let (capacity, room, vocab, eps) = (sequence.capacity, sequence.room(), shape.vocab, shape.rms_eps);
        let length = position + 1;
        let chunk_count = length.div_ceil(KV_CHUNK);
        let (no_values, no_length) = (DevicePtr::<u64>::NULL, 0u32);
        let mut launches = 0;
        self.enqueue(model, sequence, |stream| {
            let mut run = |kernel: &Kernel, params: &[KernelParam<'_>]| {
                launches += 1;
                // SAFETY: parameters are each kernel's own, in its order; buffers have the lengths of the shape that
                // the kernels were baked for, which `ModelFile::check_baked` held the file to, and are noted as used.
                unsafe { kernel.launch(stream, vocab, params) }
            };
            run(&kernels.embedding_row, &params![table, tokens, capacity, vocab, state, x])?;
            for layer in 0..shape.layers {
                run(&kernels.qkv, &params![table, layer, x, qkv, eps, vocab])?;
                run(&of_cache.qk_norm_rope_kv_write, &params![table, layer, qkv, cos, sin, eps, chunks, room, state])?;
                // For one chunk flash decoding would have the same blocks and one launch more; for two it has twice the
                // blocks. So it pays from the second chunk on: by count of blocks and launches, not by a measurement.
                if chunk_count <= 1 {
                    run(
                        &of_cache.incremental_attention,
                        &params![qkv, chunks, layer, room, attention, no_length, length_at, error],
                    )?;
                } else {
                    let params = params![qkv, tables, no_values, length_at, partials, chunk_count, error, layer, room];
                    let grid = [shape.kv_heads, chunk_count, 1];
                    // SAFETY: as above; `partials` has room for the chunks of the capacity.
                    unsafe { of_cache.flash_decoding_chunk.launch_grid(stream, grid, &params)? };
                    let params = params![partials, length_at, chunk_count, attention];
                    // SAFETY: as above.
                    unsafe { kernels.flash_decoding_reduce.launch_grid(stream, [shape.heads, 1, 1], &params)? };
                }
                run(&kernels.attention_output, &params![table, layer, attention, x, eps, vocab])?;
                run(&kernels.gate_up, &params![table, layer, x, ffn, eps, vocab])?;
                run(&kernels.down, &params![table, layer, ffn, x, eps, vocab])?;
            }
            if chunk_count > 1 {
                launches += 2 * u64::from(shape.layers);
            }
            Ok(())
        })?;
        self.work.launches += launches;
        self.work.tokens += 1;
        Ok(())
    }

    /// Logits of the residual stream.
    fn head(&mut self, model: &Inner, sequence: &Sequence) -> Result<()> {
        let (shape, table) = (model.file.shape(), model.weights.table.as_ptr());
        let (x, logits, layer) = (sequence.x.as_ptr(), sequence.logits.as_ptr(), 0u32);
        let (eps, vocab) = (shape.rms_eps, shape.vocab);
        self.work.launches += 1;
        self.enqueue(model, sequence, |stream| {
            let params = params![table, layer, x, logits, eps, vocab];
            // SAFETY: as in `forward`.
            unsafe { self.kernels.head.launch(stream, vocab, &params) }
        })
    }

    /// Chooses the greatest logit's id, puts it behind the position worked on, and moves on to it.
    fn argmax(&mut self, model: &Inner, sequence: &Sequence) -> Result<()> {
        let (logits, vocab) = (sequence.logits.as_ptr(), model.file.shape().vocab);
        let (tokens, places, state) = (sequence.tokens.as_ptr(), sequence.capacity + 1, sequence.state.as_ptr());
        self.work.launches += 1;
        self.enqueue(model, sequence, |stream| {
            let params = params![logits, vocab, tokens, places, state];
            // SAFETY: as in `forward`.
            unsafe { self.kernels.argmax.launch(stream, vocab, &params) }
        })
    }

    /// Moves on to the next position, whose id is known.
    fn advance(&mut self, model: &Inner, sequence: &Sequence) -> Result<()> {
        let state = sequence.state.as_ptr();
        self.work.launches += 1;
        self.enqueue(model, sequence, |stream| {
            // SAFETY: as in `forward`.
            unsafe { self.kernels.advance.launch(stream, 1, &params![state]) }
        })
    }

    fn enqueue(&self, model: &Inner, sequence: &Sequence, work: impl FnOnce(&Stream) -> Result<()>) -> Result<()> {
        let weights = &model.weights;
        let shared = [weights.data.reads("weights"), weights.table.reads("tensor table")];
        self.stream.enqueue_many(shared.into_iter().chain(sequence.uses()), work)
    }
}
