//! The launches of a token: one for each fused kernel, in the order of the mathematics.

use super::Inner;
use super::choosing::{Choosing, Steps};
use super::kernels::{HeadKernels, Kernels};
use super::launches::{Advance, Argmax, Attention, Choose, EmbeddingRow, Phase, QkNormRopeKvWrite};
use super::sequence::Sequence;
use crate::Result;
use crate::driver::{DevicePtr, Stream, Use};
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
    /// The length that attention has blocks for, at least the token's: what lies beyond that costs a look at it, and
    /// changes no bit.
    pub(crate) length: u32,
    pub(crate) then: Then,
    /// The choice, where it is not plainly that of the greatest logit.
    pub(crate) choosing: Option<(&'a Choosing, Steps)>,
}

impl<'a> Launches<'a> {
    /// The uses of all buffers, to be noted by whoever enqueues.
    pub(crate) fn uses(&self) -> impl Iterator<Item = Use<'a>> {
        self.head().uses()
    }

    /// Launches all, within work that notes the uses or within a capture; gives their number.
    pub(crate) fn launch(&self, stream: &Stream) -> Result<u64> {
        let mut run = Run { stream, vocab: self.model.file.shape().vocab, launches: 0 };
        self.layers(&mut run)?;
        match self.then {
            Then::Advance => self.advance(&mut run)?,
            Then::Choose => self.head().run(&mut run, self.sequence.x.as_ptr())?,
        }
        Ok(run.launches)
    }

    /// The head and the choice.
    fn head(&self) -> Head<'a> {
        let Launches { kernels, model, sequence, choosing, .. } = *self;
        Head { kernels: &kernels.of_head, model, sequence, choosing }
    }

    /// Embedding and layers. Leaves the residual stream in `sequence.x`.
    fn layers(&self, run: &mut Run<'_>) -> Result<()> {
        let Launches { kernels, model, sequence, .. } = *self;
        let shape = model.file.shape();
        let table = In::noted(model.weights.table.as_ptr());
        let (state, x, qkv) = (sequence.state.as_ptr(), sequence.x.as_ptr(), sequence.qkv.as_ptr());
        let (attention, ffn) = (sequence.attention.as_ptr(), sequence.ffn.as_ptr());
        let (vocab, eps) = (shape.vocab, shape.rms_eps);
        let phase = |phase, layer, x, y| Phase { table, layer, x: In::noted(x), y: Out::noted(y), eps, vocab, phase };
        let qkv_rows = shape.q_dim() + 2 * shape.kv_dim();
        let units = kernels.of_cache(sequence.kv).units.up_to(self.length);
        self.embed(run, state, x)?;
        for layer in 0..shape.layers {
            run.launch_rows(&kernels.qkv, qkv_rows, &phase(0, layer, x, qkv))?;
            self.write(run, layer, state, qkv)?;
            self.attend(run, layer, state, (qkv, attention), units)?;
            run.launch_rows(&kernels.attention_output, shape.hidden, &phase(1, layer, attention, x))?;
            run.launch_rows(&kernels.gate_up, shape.ffn, &phase(2, layer, x, ffn))?;
            run.launch_rows(&kernels.down, shape.hidden, &phase(3, layer, ffn, x))?;
        }
        Ok(())
    }

    /// The embedding to `x`, `[hidden]`.
    fn embed(&self, run: &mut Run<'_>, state: DevicePtr<u32>, x: DevicePtr<f32>) -> Result<()> {
        let embedding = EmbeddingRow {
            table: In::noted(self.model.weights.table.as_ptr()),
            tokens: In::noted(self.sequence.tokens.as_ptr()),
            capacity: self.sequence.capacity,
            vocab: self.model.file.shape().vocab,
            state: Out::noted(state),
            x: Out::noted(x),
        };
        run.launch(&self.kernels.embedding_row, &embedding)
    }

    /// Key and value to the cache, the query turned in place: `qkv`, `[q_dim + 2 kv_dim]`.
    fn write(&self, run: &mut Run<'_>, layer: u32, state: DevicePtr<u32>, qkv: DevicePtr<f32>) -> Result<()> {
        let sequence = self.sequence;
        let write = QkNormRopeKvWrite {
            table: In::noted(self.model.weights.table.as_ptr()),
            layer,
            qkv: Out::noted(qkv),
            cos: In::noted(sequence.rotary.cos.as_ptr()),
            sin: In::noted(sequence.rotary.sin.as_ptr()),
            eps: self.model.file.shape().rms_eps,
            chunks: In::noted(sequence.table.as_ptr()),
            capacity: sequence.room(),
            state: Out::noted(state),
        };
        run.launch(&self.kernels.of_cache(sequence.kv).qk_norm_rope_kv_write, &write)
    }

    /// Attention over the cache, by blocks for so many units: from the query at `q` to `out`, both `[q_dim]`.
    fn attend(
        &self,
        run: &mut Run<'_>,
        layer: u32,
        state: DevicePtr<u32>,
        (q, out): (DevicePtr<f32>, DevicePtr<f32>),
        units: u32,
    ) -> Result<()> {
        let sequence = self.sequence;
        let attend = Attention {
            q: In::noted(q),
            chunks: In::noted(sequence.table.as_ptr()),
            layer,
            capacity: sequence.room(),
            out: Out::noted(out),
            partials: Out::noted(sequence.partials.as_ptr()),
            max_chunks: sequence.max_chunks(),
            arrivals: Out::noted(sequence.arrivals.as_ptr()),
            length_at: In::noted(state.add(1)),
            error: Out::noted(state.add(2)),
        };
        let grid = [self.model.file.shape().kv_heads, units, 1];
        run.launch_grid(&self.kernels.of_cache(sequence.kv).attention, grid, &attend)
    }

    /// Moves on to the next position, whose id is known.
    fn advance(&self, run: &mut Run<'_>) -> Result<()> {
        run.launch(&self.kernels.advance, &Advance { state: Out::noted(self.sequence.state.as_ptr()) })
    }
}

/// The launches behind a token's layers: the head, and the choice of the next token.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) kernels: &'a HeadKernels,
    pub(crate) model: &'a Inner,
    pub(crate) sequence: &'a Sequence,
    /// The choice, where it is not plainly that of the greatest logit.
    pub(crate) choosing: Option<(&'a Choosing, Steps)>,
}

impl<'a> Head<'a> {
    /// The uses of all buffers, to be noted by whoever enqueues.
    pub(crate) fn uses(self) -> impl Iterator<Item = Use<'a>> {
        let choosing = self.choosing.into_iter().flat_map(|(choosing, _)| choosing.uses());
        self.model.weights.uses().chain(self.sequence.uses()).chain(choosing)
    }

    /// Launches all behind a residual stream, `[hidden]`, that has gone through the layers; gives their number.
    pub(crate) fn launch(&self, stream: &Stream, x: DevicePtr<f32>) -> Result<u64> {
        let mut run = Run { stream, vocab: self.model.file.shape().vocab, launches: 0 };
        self.run(&mut run, x)?;
        Ok(run.launches)
    }

    fn run(&self, run: &mut Run<'_>, x: DevicePtr<f32>) -> Result<()> {
        self.logits(run, x)?;
        match self.choosing {
            None => self.argmax(run),
            Some((choosing, steps)) => self.sample(run, choosing, steps),
        }
    }

    /// Logits of the residual stream `x`.
    fn logits(&self, run: &mut Run<'_>, x: DevicePtr<f32>) -> Result<()> {
        let shape = self.model.file.shape();
        let head = Phase {
            table: In::noted(self.model.weights.table.as_ptr()),
            layer: 0,
            x: In::noted(x),
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

    /// Chooses by the chain of `Sampling`, and moves on as `argmax` does.
    fn sample(&self, run: &mut Run<'_>, choosing: &Choosing, steps: Steps) -> Result<()> {
        for step in steps.each() {
            let choose = Choose {
                logits: Out::noted(self.sequence.logits.as_ptr()),
                vocab: self.model.file.shape().vocab,
                tokens: Out::noted(self.sequence.tokens.as_ptr()),
                capacity: self.sequence.capacity + 1,
                state: Out::noted(self.sequence.state.as_ptr()),
                choice: In::noted(choosing.words.as_ptr()),
                memory: Out::noted(choosing.memory.as_ptr()),
                step,
            };
            run.launch(&self.kernels.choose, &choose)?;
        }
        Ok(())
    }
}

/// What tokens are of.
#[derive(Clone, Copy)]
pub(crate) struct Of<'a> {
    pub(crate) model: &'a Inner,
    pub(crate) sequence: &'a Sequence,
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
        self.launch_with(kernel, grid, 0, launch)
    }

    /// Launches with so many bytes of shared memory more than the kernel was found with.
    pub(crate) fn launch_with<L: Launch>(
        &mut self,
        kernel: &Kernel<L>,
        grid: [u32; 3],
        more: u32,
        launch: &L::At<'_>,
    ) -> Result<()> {
        self.launches += 1;
        // SAFETY: buffers have the lengths of the shape that the kernels were baked for, which `ModelFile::check_baked`
        // held the file to, and of the sequence's capacity; what enqueues this, or the graph it is recorded in, notes
        // them as used.
        unsafe { kernel.launch_with(self.stream, grid, more, launch) }
    }
}
