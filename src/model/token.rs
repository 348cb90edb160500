//! The launches of a token: one for each fused kernel, in the order of the mathematics.

use super::Inner;
use super::kernels::Kernels;
use super::launches::{Advance, Argmax, Attention, EmbeddingRow, Phase, QkNormRopeKvWrite};
use super::sequence::Sequence;
use crate::Result;
use crate::driver::{Stream, Use};
use crate::kernel::Kernel;
use crate::launch::{In, Launch, Out};

/// What follows a token's layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Then {
    /// Moving on to the next token, whose id is known.
    Advance,
    /// The head, and the choice of the next token.
    Choose,
}

/// The launches of a token of `sequence`. Its id and position are in device memory: which token it is does not show here
/// but for the blocks of attention.
#[derive(Clone, Copy)]
pub(crate) struct Launches<'a> {
    pub(crate) kernels: &'a Kernels,
    pub(crate) model: &'a Inner,
    pub(crate) sequence: &'a Sequence,
    /// The length that attention has blocks for, at least the token's: what lies beyond that costs a look at it, and changes
    /// no bit.
    pub(crate) length: u32,
    pub(crate) then: Then,
}

impl<'a> Launches<'a> {
    /// The uses of all buffers, to be noted by whoever enqueues.
    pub(crate) fn uses(&self) -> impl Iterator<Item = Use<'a>> {
        let weights = &self.model.weights;
        [weights.data.reads("weights"), weights.table.reads("tensor table")].into_iter().chain(self.sequence.uses())
    }

    /// Launches all, within work that notes the uses or within a capture; gives their number.
    pub(crate) fn launch(&self, stream: &Stream) -> Result<u64> {
        let mut run = Run { stream, vocab: self.model.file.shape().vocab, launches: 0 };
        self.layers(&mut run)?;
        match self.then {
            Then::Advance => self.advance(&mut run)?,
            Then::Choose => {
                self.head(&mut run)?;
                self.argmax(&mut run)?;
            }
        }
        Ok(run.launches)
    }

    /// Embedding and layers. Leaves the residual stream in `sequence.x`.
    fn layers(&self, run: &mut Run<'_>) -> Result<()> {
        let Launches { kernels, model, sequence, .. } = *self;
        let (shape, weights) = (model.file.shape(), &model.weights);
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
        let embedding = EmbeddingRow { table, tokens, capacity, vocab, state: Out::noted(state), x: Out::noted(x) };
        run.launch(&kernels.embedding_row, &embedding)?;
        for layer in 0..shape.layers {
            run.launch_rows(&kernels.qkv, qkv_rows, &phase(0, layer, x, qkv))?;
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
            run.launch(&of_cache.qk_norm_rope_kv_write, &write)?;
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
            run.launch_grid(&of_cache.attention, [shape.kv_heads, of_cache.units.up_to(self.length), 1], &attend)?;
            run.launch_rows(&kernels.attention_output, shape.hidden, &phase(1, layer, attention, x))?;
            run.launch_rows(&kernels.gate_up, shape.ffn, &phase(2, layer, x, ffn))?;
            run.launch_rows(&kernels.down, shape.hidden, &phase(3, layer, ffn, x))?;
        }
        Ok(())
    }

    /// Logits of the residual stream.
    fn head(&self, run: &mut Run<'_>) -> Result<()> {
        let shape = self.model.file.shape();
        let head = Phase {
            table: In::noted(self.model.weights.table.as_ptr()),
            layer: 0,
            x: In::noted(self.sequence.x.as_ptr()),
            y: Out::noted(self.sequence.logits.as_ptr()),
            eps: shape.rms_eps,
            vocab: shape.vocab,
            phase: 4,
        };
        run.launch(&self.kernels.head, &head)
    }

    /// Chooses the greatest logit's id, puts it behind the position worked on, and moves on to it.
    fn argmax(&self, run: &mut Run<'_>) -> Result<()> {
        let argmax = Argmax {
            logits: In::noted(self.sequence.logits.as_ptr()),
            vocab: self.model.file.shape().vocab,
            tokens: Out::noted(self.sequence.tokens.as_ptr()),
            capacity: self.sequence.capacity + 1,
            state: Out::noted(self.sequence.state.as_ptr()),
        };
        run.launch(&self.kernels.argmax, &argmax)
    }

    /// Moves on to the next position, whose id is known.
    fn advance(&self, run: &mut Run<'_>) -> Result<()> {
        run.launch(&self.kernels.advance, &Advance { state: Out::noted(self.sequence.state.as_ptr()) })
    }
}

/// Launches on a stream, counted.
pub(crate) struct Run<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) vocab: u32,
    pub(crate) launches: u64,
}

impl Run<'_> {
    /// Launches with the grid of the bake.
    pub(crate) fn launch<L: Launch>(&mut self, kernel: &Kernel<L>, launch: &L::At<'_>) -> Result<()> {
        self.launch_grid(kernel, kernel.grid(self.vocab), launch)
    }

    /// Launches with the grid of the bake for so many rows.
    pub(crate) fn launch_rows<L: Launch>(&mut self, kernel: &Kernel<L>, rows: u32, launch: &L::At<'_>) -> Result<()> {
        self.launch_grid(kernel, kernel.grid(rows), launch)
    }

    pub(crate) fn launch_grid<L: Launch>(
        &mut self,
        kernel: &Kernel<L>,
        grid: [u32; 3],
        launch: &L::At<'_>,
    ) -> Result<()> {
        self.launches += 1;
        // SAFETY: buffers have the lengths of the shape that the kernels were baked for, which `ModelFile::check_baked`
        // held the file to, and of the sequence's capacity; what enqueues this, or the graph it is recorded in, notes
        // them as used.
        unsafe { kernel.launch(self.stream, grid, launch) }
    }
}
