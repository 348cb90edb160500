//! Several tokens of a prompt at once, in fast numerics: their products share a pass over the weights, and each has the
//! bits that it has alone.

use super::Inner;
use super::kernels::ColumnKernels;
use super::launches::{Gemm, Phase, Quantise};
use super::token::{Of, Run};
use crate::Result;
use crate::driver::{DeviceBuffer, DevicePtr, Stream, Use};
use crate::launch::{In, Out};
use crate::shape::columns::{COLUMNS, bytes};
use crate::shape::{ModelShape, TensorRole};
use std::sync::Arc;

/// Tokens at once, at most.
pub(crate) const MOST: u32 = 64;
/// Words of a column's state: position, length, error.
const STATE: usize = 3;

/// What tokens need beside their sequence: vectors of as many columns.
pub(crate) struct Columns {
    kernels: Arc<ColumnKernels>,
    /// `[MOST, hidden]`.
    x: DeviceBuffer<f32>,
    /// `[MOST, q_dim + 2 kv_dim]`.
    qkv: DeviceBuffer<f32>,
    /// `[MOST, q_dim]`.
    attention: DeviceBuffer<f32>,
    /// `[MOST, ffn]`.
    ffn: DeviceBuffer<f32>,
    /// The vectors of a phase rounded to bytes, with one scale for 256 and with one for each 32.
    of_256: DeviceBuffer<u8>,
    of_32: DeviceBuffer<u8>,
    /// `[MOST]`.
    inverse: DeviceBuffer<f32>,
    /// `[tokens of the prompt, 3]`.
    states: DeviceBuffer<u32>,
}

/// Tokens that go through the layers together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pass {
    /// The number of the first in its prompt.
    pub(crate) first: u32,
    /// Its position.
    pub(crate) position: u32,
    /// How many, at most [`MOST`].
    pub(crate) count: u32,
}

/// A phase of a layer.
struct Step {
    number: u32,
    matrices: &'static [TensorRole],
    norm: Option<TensorRole>,
    k: u32,
    rows: u32,
    x: DevicePtr<f32>,
    y: DevicePtr<f32>,
}

impl Columns {
    pub(crate) fn new(model: &Inner, kernels: Arc<ColumnKernels>) -> Result<Columns> {
        let (device, shape) = (&model.device, model.file.shape());
        let ModelShape { hidden, ffn, .. } = *shape;
        let floats = |of: u32| DeviceBuffer::<f32>::uninitialized(device, MOST as usize * of as usize);
        let rounded = || {
            let most = bytes(hidden.max(ffn).max(shape.q_dim()), MOST);
            DeviceBuffer::<u8>::uninitialized(device, most as usize)
        };
        Ok(Columns {
            kernels,
            x: floats(hidden)?,
            qkv: floats(shape.q_dim() + 2 * shape.kv_dim())?,
            attention: floats(shape.q_dim())?,
            ffn: floats(ffn)?,
            of_256: rounded()?,
            of_32: rounded()?,
            inverse: floats(1)?,
            states: DeviceBuffer::zeroed(device, STATE * MOST as usize)?,
        })
    }

    /// Prepares for a prompt of so many tokens from `position` on.
    pub(crate) fn begin(&mut self, model: &Inner, position: u32, tokens: u32) -> Result<()> {
        let states: Vec<u32> = (position..position + tokens).flat_map(|at| [at, at + 1, 0]).collect();
        if self.states.len() < states.len() {
            self.states = DeviceBuffer::zeroed(&model.device, states.len().next_power_of_two())?;
        }
        self.states.copy_from_host(0, &states)
    }

    /// The uses of everything here by work that decodes.
    pub(crate) fn uses(&self) -> impl Iterator<Item = Use<'_>> {
        [
            self.x.writes("columns"),
            self.qkv.writes("qkv of columns"),
            self.attention.writes("attention of columns"),
            self.ffn.writes("ffn of columns"),
            self.of_256.writes("columns rounded to bytes"),
            self.of_32.writes("columns rounded to bytes"),
            self.inverse.writes("factors of columns"),
            self.states.writes("states of columns"),
        ]
        .into_iter()
    }

    /// Launches the embeddings of a pass; gives the number of launches.
    pub(crate) fn embed(&self, stream: &Stream, of: &Of<'_>, pass: Pass) -> Result<u64> {
        let ModelShape { hidden, vocab, .. } = *of.model.file.shape();
        let mut run = Run { stream, vocab, launches: 0 };
        for column in 0..pass.count {
            of.embed(&mut run, self.state(pass, column), self.x.as_ptr().add(column as usize * hidden as usize))?;
        }
        Ok(run.launches)
    }

    /// Launches a layer of a pass; gives the number of launches.
    pub(crate) fn layer(&self, stream: &Stream, of: &Of<'_>, pass: Pass, layer: u32) -> Result<u64> {
        let shape = of.model.file.shape();
        let ModelShape { hidden, ffn, vocab, .. } = *shape;
        let mut run = Run { stream, vocab, launches: 0 };
        let (q, qkv_rows) = (shape.q_dim(), shape.q_dim() + 2 * shape.kv_dim());
        let units = of.kernels.of_cache(of.sequence.kv).units;
        let (x, qkv) = (self.x.as_ptr(), self.qkv.as_ptr());
        let (attention, ffn_at) = (self.attention.as_ptr(), self.ffn.as_ptr());
        let at = |of: DevicePtr<f32>, column: u32, each: u32| of.add(column as usize * each as usize);
        use TensorRole::*;
        let matrices = &[AttnQ, AttnK, AttnV];
        let step = Step { number: 0, matrices, norm: Some(AttnNorm), k: hidden, rows: qkv_rows, x, y: qkv };
        self.product(&mut run, of, layer, pass.count, &step)?;
        for column in 0..pass.count {
            of.write(&mut run, layer, self.state(pass, column), at(qkv, column, qkv_rows))?;
        }
        for column in 0..pass.count {
            let vectors = (at(qkv, column, qkv_rows), at(attention, column, q));
            let units = units.count(pass.position + column + 1);
            of.attend(&mut run, layer, self.state(pass, column), vectors, units)?;
        }
        for step in [
            Step { number: 1, matrices: &[AttnOutput], norm: None, k: q, rows: hidden, x: attention, y: x },
            Step { number: 2, matrices: &[FfnGate, FfnUp], norm: Some(FfnNorm), k: hidden, rows: ffn, x, y: ffn_at },
            Step { number: 3, matrices: &[FfnDown], norm: None, k: ffn, rows: hidden, x: ffn_at, y: x },
        ] {
            self.product(&mut run, of, layer, pass.count, &step)?;
        }
        Ok(run.launches)
    }

    fn state(&self, pass: Pass, column: u32) -> DevicePtr<u32> {
        self.states.as_ptr().add(STATE * (pass.first + column) as usize)
    }

    /// A phase of all columns: by tensor cores where its matrices are quantised, else a column at a time.
    fn product(&self, run: &mut Run<'_>, of: &Of<'_>, layer: u32, count: u32, step: &Step) -> Result<()> {
        let Of { model, kernels, .. } = *of;
        let shape = model.file.shape();
        let (table, eps) = (In::noted(model.weights.table.as_ptr()), shape.rms_eps);
        let &Step { number: phase, matrices, norm, k, rows, x, y } = step;
        let types: Vec<_> = matrices.iter().filter_map(|role| model.weights.ty(*role, layer)).collect();
        if types.iter().any(|ty| !ty.is_quantised()) {
            for column in 0..count as usize {
                let (x, y) = (In::noted(x.add(column * k as usize)), Out::noted(y.add(column * rows as usize)));
                let launch = Phase { table, layer, x, y, eps, vocab: shape.vocab, phase };
                // In fast numerics all phases are one kernel.
                run.launch_rows(&kernels.qkv, rows, &launch)?;
            }
            return Ok(());
        }
        let (kernel, width) =
            if count <= COLUMNS { (&self.kernels.narrow, COLUMNS) } else { (&self.kernels.wide, 2 * COLUMNS) };
        let padded = count.next_multiple_of(width);
        let (of_256, of_32) = (self.of_256.as_ptr(), self.of_32.as_ptr());
        for (block_len, to) in [(256, of_256), (32, of_32)] {
            let wanted = types.iter().filter(|ty| ty.block_len() == block_len).fold(0, |bits, ty| bits | 1 << ty.id());
            if wanted != 0 {
                let quantise = Quantise {
                    table,
                    norm: norm.map_or(0, |role| role.table_index(layer)),
                    x: In::noted(x),
                    k,
                    eps,
                    columns: count,
                    wanted,
                    to: Out::noted(to),
                    inverse: Out::noted(self.inverse.as_ptr()),
                };
                run.launch_grid(&self.kernels.quantise, [padded, 1, 1], &quantise)?;
            }
        }
        let gemm = Gemm {
            table,
            layer,
            phase,
            of_256: In::noted(of_256),
            of_32: In::noted(of_32),
            inverse: In::noted(self.inverse.as_ptr()),
            columns: count,
            y: Out::noted(y),
        };
        run.launch_grid(kernel, [rows / 16, padded / width, 1], &gemm)
    }
}
