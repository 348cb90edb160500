//! Several tokens of a prompt at once, in fast numerics: their products share a pass over the weights, and each has the
//! bits that it has alone.

mod products;
mod rounded;

use super::Inner;
use super::kernels::{ColumnKernels, TileKernels};
use super::launches::{Attention, AttentionBatch, EmbeddingRow, QkNormRopeKvWrite};
use super::sequence::Sequence;
use super::tiles::Tile;
use super::token::{Of, Run};
use crate::Result;
use crate::driver::{DeviceBuffer, DevicePtr, Stream, Use};
use crate::launch::{In, Out};
use crate::shape::columns::STATE_BYTES;
use crate::shape::table::KV_CHUNK;
use crate::shape::units::BatchCut;
use crate::shape::{KvType, ModelShape, Numerics, Units, units};
use products::Step;
use rounded::Handed;
use std::sync::Arc;

/// Tokens at once, at most.
pub(crate) const MOST: u32 = 512;
/// Words of a column's state: position, length, error.
const STATE: usize = STATE_BYTES as usize / 4;
/// Floats for partial results of attention, unless one column needs more: 64 MB.
const PARTIALS: u64 = 16 << 20;

/// Columns that there is room for, at least: a large tile's.
const LEAST: u32 = 64;

/// What tokens need beside their sequence: vectors of as many columns.
pub(crate) struct Columns {
    kernels: Arc<ColumnKernels>,
    /// Tokens at once.
    room: u32,
    /// `[room, hidden]`.
    x: DeviceBuffer<f32>,
    /// `[room, q_dim + 2 kv_dim]`.
    qkv: DeviceBuffer<f32>,
    /// `[room, q_dim]`.
    attention: DeviceBuffer<f32>,
    /// `[room, ffn]`.
    ffn: DeviceBuffer<f32>,
    /// The columns rounded to bytes, of the phase being run and of the next.
    handed: Handed,
    /// `[tokens of the prompt, 3]`.
    states: DeviceBuffer<u32>,
    /// The partial results of attention, for some columns.
    partials: DeviceBuffer<f32>,
    /// `[room, kv_heads]` zeros.
    arrivals: DeviceBuffer<u32>,
    /// `[columns, vocab]`, where logits of several columns were asked for.
    pub(crate) logits: Option<DeviceBuffer<f32>>,
}

/// Floats of the partial results of a column's attention over a cache of so many chunks.
fn partials(shape: &ModelShape, kv: KvType, chunks: u32) -> u64 {
    units::partials_of(Units::of(Numerics::Fast, kv, shape.kv_heads), shape, chunks).max(1)
}

/// The same of up to so many columns: as many as are to go together.
fn all_partials(shape: &ModelShape, kv: KvType, chunks: u32, columns: u32) -> u64 {
    let each = partials(shape, kv, chunks);
    (PARTIALS / each).clamp(1, u64::from(columns)) * each
}

/// Bytes of device memory that prompts take in a session of so many positions, at most.
pub(crate) fn memory(shape: &ModelShape, kv: KvType, capacity: u32, multiprocessors: u32) -> u64 {
    let room = room(capacity);
    let partials = all_partials(shape, kv, capacity.div_ceil(KV_CHUNK), capacity.min(MOST));
    let states = u64::from(room) * STATE as u64;
    let words = u64::from(room) * floats(shape).iter().map(|of| u64::from(*of)).sum::<u64>();
    4 * (words + states + u64::from(room * shape.kv_heads) + partials)
        + Handed::memory(shape, room, sharing(room, multiprocessors))
}

/// Floats of a column's residual stream, queries with keys and values, attention, and FFN.
fn floats(shape: &ModelShape) -> [u32; 4] {
    [shape.hidden, shape.q_dim() + 2 * shape.kv_dim(), shape.q_dim(), shape.ffn]
}

/// Columns that a prompt of so many tokens has room for.
fn room(tokens: u32) -> u32 {
    tokens.clamp(LEAST, MOST).next_power_of_two()
}

/// Blocks that share tiles, where there is room for so many columns.
fn sharing(room: u32, multiprocessors: u32) -> u32 {
    if room < Tile::Double.columns() { 0 } else { multiprocessors }
}

/// Whether so many columns go through the cache together, where it is of f16: a chunk of it takes a warp about as long as
/// chunks of so many columns take a multiprocessor one by one, as estimated.
pub(crate) fn attend_together(shape: &ModelShape, columns: u32, multiprocessors: u32) -> bool {
    const COLUMNS: u32 = 3;
    columns * shape.kv_heads >= COLUMNS * multiprocessors
}

/// Tokens that go through the layers together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pass {
    /// The position of the first.
    pub(crate) position: u32,
    /// How many, at most [`MOST`].
    pub(crate) count: u32,
}

impl Columns {
    /// For a prompt of so many tokens.
    pub(crate) fn new(model: &Inner, kernels: Arc<ColumnKernels>, tokens: u32) -> Result<Columns> {
        products::load_for_single_columns(model, &kernels)?;
        let (device, shape, room) = (&model.device, model.file.shape(), room(tokens));
        let columns = |of: u32| DeviceBuffer::<f32>::uninitialized(device, room as usize * of as usize);
        let [x, qkv, attention, ffn] = floats(shape);
        let has = |has: fn(&TileKernels) -> bool| kernels.tiles.as_ref().is_some_and(has);
        let shares = has(|tiles| tiles.double.is_some() || tiles.warpgroups.is_some());
        let blocks = if shares { sharing(room, device.multiprocessors()) } else { 0 };
        let by_maps = has(|tiles| tiles.warpgroups.is_some()) && room >= Tile::Warpgroups.columns();
        Ok(Columns {
            kernels,
            room,
            x: columns(x)?,
            qkv: columns(qkv)?,
            attention: columns(attention)?,
            ffn: columns(ffn)?,
            handed: Handed::new(device, shape, room, blocks, by_maps)?,
            states: DeviceBuffer::zeroed(device, STATE * room as usize)?,
            partials: DeviceBuffer::uninitialized(device, 1)?,
            arrivals: DeviceBuffer::zeroed(device, room as usize * shape.kv_heads as usize)?,
            logits: None,
        })
    }

    /// Whether there is room for as many tokens at once as a prompt of so many has.
    pub(crate) fn fits(&self, tokens: u32) -> bool {
        room(tokens) <= self.room
    }

    /// Whether there is room for all that others have room for.
    pub(crate) fn has_room_of(&self, others: &Columns) -> bool {
        self.room >= others.room
    }

    /// Prepares for a prompt of so many tokens from `position` on.
    pub(crate) fn begin(&mut self, model: &Inner, kv: KvType, position: u32, tokens: u32) -> Result<()> {
        let chunks = (position + tokens).div_ceil(KV_CHUNK);
        let partials = all_partials(model.file.shape(), kv, chunks, tokens);
        let partials = usize::try_from(partials).unwrap_or(usize::MAX);
        if self.partials.len() < partials {
            self.partials = DeviceBuffer::uninitialized(&model.device, partials)?;
        }
        let states: Vec<u32> = (position..position + tokens).flat_map(|at| [at, at + 1, 0]).collect();
        self.states.copy_from_host(0, &states)
    }

    /// The uses of everything here by work that decodes.
    pub(crate) fn uses(&self) -> impl Iterator<Item = Use<'_>> {
        [
            self.x.writes("columns"),
            self.qkv.writes("qkv of columns"),
            self.attention.writes("attention of columns"),
            self.ffn.writes("ffn of columns"),
            self.states.writes("states of columns"),
            self.partials.writes("partials of columns"),
            self.arrivals.writes("arrivals of columns"),
        ]
        .into_iter()
        .chain(self.handed.uses())
        .chain(self.logits.as_ref().map(|logits| logits.writes("logits of columns")))
    }

    /// Launches the embeddings of a pass; gives the number of launches.
    pub(crate) fn embed(&self, stream: &Stream, of: &Of<'_>, pass: Pass) -> Result<u64> {
        let vocab = of.model.file.shape().vocab;
        let mut run = Run { stream, vocab, launches: 0 };
        let kernel = &self.kernels.embedding_rows;
        let embedding = EmbeddingRow {
            table: In::noted(of.model.weights.table.as_ptr()),
            tokens: In::noted(of.sequence.tokens.as_ptr()),
            capacity: of.sequence.capacity,
            vocab,
            state: Out::noted(self.state(0)),
            x: Out::noted(self.x.as_ptr()),
        };
        let [blocks, ..] = kernel.grid(vocab);
        run.launch_grid(kernel, [blocks, pass.count, 1], &embedding)?;
        Ok(run.launches)
    }

    /// Launches a layer of a pass; gives the number of launches.
    pub(crate) fn layer(&self, stream: &Stream, of: &Of<'_>, pass: Pass, layer: u32) -> Result<u64> {
        let shape = of.model.file.shape();
        let mut run = Run { stream, vocab: shape.vocab, launches: 0 };
        let (x, qkv) = (self.x.as_ptr(), self.qkv.as_ptr());
        let (attention, ffn_at) = (self.attention.as_ptr(), self.ffn.as_ptr());
        let step = |number, x, y| Step { number, x, y, rounded: products::is_rounded(of, layer, number) };
        self.product(&mut run, of, layer, pass.count, &step(0, x, qkv))?;
        self.write(&mut run, of, pass, layer)?;
        let rounded = self.attend(&mut run, of, pass, layer)?;
        let output = Step { rounded, ..step(1, attention, x) };
        for step in [output, step(2, x, ffn_at), step(3, ffn_at, x)] {
            self.product(&mut run, of, layer, pass.count, &step)?;
        }
        Ok(run.launches)
    }

    /// Keys and values to the cache, queries turned in place.
    fn write(&self, run: &mut Run<'_>, of: &Of<'_>, pass: Pass, layer: u32) -> Result<()> {
        let sequence: &Sequence = of.sequence;
        let write = QkNormRopeKvWrite {
            table: In::noted(of.model.weights.table.as_ptr()),
            layer,
            qkv: Out::noted(self.qkv.as_ptr()),
            cos: In::noted(sequence.rotary.cos.as_ptr()),
            sin: In::noted(sequence.rotary.sin.as_ptr()),
            eps: of.model.file.shape().rms_eps,
            chunks: In::noted(sequence.table.as_ptr()),
            capacity: sequence.room(),
            state: Out::noted(self.state(0)),
        };
        let kernel = &self.kernels.of_cache(sequence.kv).qk_norm_rope_kv_write;
        let [blocks, ..] = kernel.grid(1);
        run.launch_grid(kernel, [blocks, pass.count, 1], &write)
    }

    /// Attention of all columns. Where there are enough of them, neighbouring ones share what they read of an f16 cache, and
    /// each goes through all of it before it; else they are cut into units, in one launch but where partial results have no
    /// room for all. Says whether the results are rounded for the next phase.
    fn attend(&self, run: &mut Run<'_>, of: &Of<'_>, pass: Pass, layer: u32) -> Result<bool> {
        let (sequence, shape): (&Sequence, _) = (of.sequence, of.model.file.shape());
        if sequence.kv == KvType::F16 && attend_together(shape, pass.count, of.model.device.multiprocessors()) {
            let blocks = BatchCut::of(shape.group()).blocks(pass.count);
            let (state, left) = (self.state(0), self.handed.to(1));
            let wanted = if units::batch_rounds(shape) { products::wanted(of, layer, 1) } else { 0 };
            let attend = AttentionBatch {
                q: In::noted(self.qkv.as_ptr()),
                chunks: In::noted(sequence.table.as_ptr()),
                layer,
                capacity: sequence.room(),
                out: Out::noted(self.attention.as_ptr()),
                columns: pass.count,
                length_at: In::noted(state.add(1)),
                error: Out::noted(state.add(2)),
                next_types: wanted,
                next_256: Out::noted(left.of_256.as_ptr()),
                next_32: Out::noted(left.of_32.as_ptr()),
            };
            run.launch_grid(&self.kernels.attention_batch, [shape.kv_heads, blocks, 1], &attend)?;
            return Ok(wanted != 0);
        }
        let kernels = self.kernels.of_cache(sequence.kv);
        let chunks = (pass.position + pass.count).div_ceil(KV_CHUNK);
        let room = self.partials.len() as u64 / partials(shape, sequence.kv, chunks);
        let together = room.clamp(1, u64::from(pass.count)) as u32;
        let [_, qkv, out, _] = floats(shape).map(|of| of as usize);
        for first in (0..pass.count).step_by(together as usize) {
            let (state, count) = (self.state(first), together.min(pass.count - first));
            let attend = Attention {
                q: In::noted(self.qkv.as_ptr().add(first as usize * qkv)),
                chunks: In::noted(sequence.table.as_ptr()),
                layer,
                capacity: sequence.room(),
                out: Out::noted(self.attention.as_ptr().add(first as usize * out)),
                partials: Out::noted(self.partials.as_ptr()),
                max_chunks: chunks,
                arrivals: Out::noted(self.arrivals.as_ptr()),
                length_at: In::noted(state.add(1)),
                error: Out::noted(state.add(2)),
            };
            // Longer sequences have fewer units where their runs become longer.
            let units = kernels.units.up_to(pass.position + first + count);
            run.launch_grid(&kernels.attention, [shape.kv_heads, units, count], &attend)?;
        }
        Ok(false)
    }

    /// The residual stream of a column, `[hidden]`.
    pub(crate) fn residual(&self, column: u32, shape: &ModelShape) -> DevicePtr<f32> {
        self.x.as_ptr().add(column as usize * shape.hidden as usize)
    }

    fn state(&self, column: u32) -> DevicePtr<u32> {
        self.states.as_ptr().add(STATE * column as usize)
    }
}
