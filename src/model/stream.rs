//! The stream path: one launch for each fused kernel, in the order of the mathematics.

use super::Inner;
use super::kernels::Kernels;
use super::launches::{Advance, Argmax, Attention, EmbeddingRow, Phase, QkNormRopeKvWrite};
use super::path::{End, Item, Path, Step, Work};
use super::sequence::Sequence;
use crate::Result;
use crate::driver::{Event, Stream};
use crate::kernel::Kernel;
use crate::launch::{In, Launch, Out};
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
        let table = In::noted(weights.table.as_ptr());
        let (cos, sin) = (In::noted(sequence.rotary.cos.as_ptr()), In::noted(sequence.rotary.sin.as_ptr()));
        let (state, tokens) = (sequence.state.as_ptr(), In::noted(sequence.tokens.as_ptr()));
        let (length_at, error) = (In::noted(state.add(1)), Out::noted(state.add(2)));
        let (x, qkv) = (sequence.x.as_ptr(), sequence.qkv.as_ptr());
        let (attention, ffn) = (sequence.attention.as_ptr(), sequence.ffn.as_ptr());
        let partials = sequence.partials.as_ptr();
        let (capacity, room, vocab, eps) = (sequence.capacity, sequence.room(), shape.vocab, shape.rms_eps);
        let phase = |phase, layer, x, y| Phase { table, layer, x: In::noted(x), y: Out::noted(y), eps, vocab, phase };
        let qkv_rows = shape.q_dim() + 2 * shape.kv_dim();
        let mut run = Run { vocab, launches: 0 };
        self.enqueue(model, sequence, |stream| {
            let embedding = EmbeddingRow { table, tokens, capacity, vocab, state: Out::noted(state), x: Out::noted(x) };
            run.launch(stream, &kernels.embedding_row, &embedding)?;
            for layer in 0..shape.layers {
                run.launch_rows(stream, &kernels.qkv, qkv_rows, &phase(0, layer, x, qkv))?;
                let chunks = In::noted(sequence.table.as_ptr());
                let write = QkNormRopeKvWrite {
                    table,
                    layer,
                    qkv: Out::noted(qkv),
                    cos,
                    sin,
                    eps,
                    chunks,
                    capacity: room,
                    state: Out::noted(state),
                };
                run.launch(stream, &of_cache.qk_norm_rope_kv_write, &write)?;
                let attend = Attention {
                    q: In::noted(qkv),
                    chunks,
                    layer,
                    capacity: room,
                    out: Out::noted(attention),
                    partials: Out::noted(partials),
                    max_chunks: sequence.max_chunks(),
                    arrivals: Out::noted(sequence.arrivals.as_ptr()),
                    length_at,
                    error,
                };
                // A block for each unit of each KV head; more would do nothing.
                let grid = [shape.kv_heads, of_cache.units.count(position + 1), 1];
                run.launch_grid(stream, &of_cache.attention, grid, &attend)?;
                run.launch_rows(stream, &kernels.attention_output, shape.hidden, &phase(1, layer, attention, x))?;
                run.launch_rows(stream, &kernels.gate_up, shape.ffn, &phase(2, layer, x, ffn))?;
                run.launch_rows(stream, &kernels.down, shape.hidden, &phase(3, layer, ffn, x))?;
            }
            Ok(())
        })?;
        let launches = run.launches;
        self.work.launches += launches;
        self.work.tokens += 1;
        Ok(())
    }

    /// Logits of the residual stream.
    fn head(&mut self, model: &Inner, sequence: &Sequence) -> Result<()> {
        let shape = model.file.shape();
        let head = Phase {
            table: In::noted(model.weights.table.as_ptr()),
            layer: 0,
            x: In::noted(sequence.x.as_ptr()),
            y: Out::noted(sequence.logits.as_ptr()),
            eps: shape.rms_eps,
            vocab: shape.vocab,
            phase: 4,
        };
        self.one(model, sequence, |kernels| &kernels.head, &head)
    }

    /// Chooses the greatest logit's id, puts it behind the position worked on, and moves on to it.
    fn argmax(&mut self, model: &Inner, sequence: &Sequence) -> Result<()> {
        let argmax = Argmax {
            logits: In::noted(sequence.logits.as_ptr()),
            vocab: model.file.shape().vocab,
            tokens: Out::noted(sequence.tokens.as_ptr()),
            capacity: sequence.capacity + 1,
            state: Out::noted(sequence.state.as_ptr()),
        };
        self.one(model, sequence, |kernels| &kernels.argmax, &argmax)
    }

    /// Moves on to the next position, whose id is known.
    fn advance(&mut self, model: &Inner, sequence: &Sequence) -> Result<()> {
        let advance = Advance { state: Out::noted(sequence.state.as_ptr()) };
        self.one(model, sequence, |kernels| &kernels.advance, &advance)
    }

    /// One launch as work of its own.
    fn one<L: Launch>(
        &mut self,
        model: &Inner,
        sequence: &Sequence,
        kernel: impl Fn(&Kernels) -> &Kernel<L>,
        launch: &L::At<'_>,
    ) -> Result<()> {
        let mut run = Run { vocab: model.file.shape().vocab, launches: 0 };
        self.enqueue(model, sequence, |stream| run.launch(stream, kernel(&self.kernels), launch))?;
        self.work.launches += run.launches;
        Ok(())
    }

    fn enqueue(&self, model: &Inner, sequence: &Sequence, work: impl FnOnce(&Stream) -> Result<()>) -> Result<()> {
        let weights = &model.weights;
        let shared = [weights.data.reads("weights"), weights.table.reads("tensor table")];
        self.stream.enqueue_many(shared.into_iter().chain(sequence.uses()), work)
    }
}

/// Launches within one piece of work, counted.
struct Run {
    vocab: u32,
    launches: u64,
}

impl Run {
    /// Launches with the grid of the bake.
    fn launch<L: Launch>(&mut self, stream: &Stream, kernel: &Kernel<L>, launch: &L::At<'_>) -> Result<()> {
        self.launch_grid(stream, kernel, kernel.grid(self.vocab), launch)
    }

    /// Launches with the grid of the bake for so many rows.
    fn launch_rows<L: Launch>(
        &mut self,
        stream: &Stream,
        kernel: &Kernel<L>,
        rows: u32,
        launch: &L::At<'_>,
    ) -> Result<()> {
        self.launch_grid(stream, kernel, kernel.grid(rows), launch)
    }

    fn launch_grid<L: Launch>(
        &mut self,
        stream: &Stream,
        kernel: &Kernel<L>,
        grid: [u32; 3],
        launch: &L::At<'_>,
    ) -> Result<()> {
        self.launches += 1;
        // SAFETY: buffers have the lengths of the shape that the kernels were baked for, which `ModelFile::check_baked`
        // held the file to, and of the sequence's capacity, and `StreamPath::enqueue` notes them as used.
        unsafe { kernel.launch(stream, grid, launch) }
    }
}
