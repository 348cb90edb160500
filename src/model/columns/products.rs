//! The products of several columns: of a layer's phases, and of the head.

use super::super::launches::{Gemm, Phase, Quantise};
use super::super::tiles::Tile;
use super::super::token::{Of, Run};
use super::{Columns, LEAST};
use crate::Result;
use crate::driver::{DeviceBuffer, DevicePtr, Stream};
use crate::launch::{In, Out};
use crate::shape::{ModelShape, TensorRole};

/// The number of the head among the phases.
const HEAD: u32 = 4;

/// A phase of a layer, or the head.
pub(super) struct Step {
    pub(super) number: u32,
    pub(super) matrices: &'static [TensorRole],
    pub(super) norm: Option<TensorRole>,
    pub(super) k: u32,
    pub(super) rows: u32,
    pub(super) x: DevicePtr<f32>,
    pub(super) y: DevicePtr<f32>,
}

/// The rows of each matrix.
fn rows_of<'a>(shape: &'a ModelShape, matrices: &'a [TensorRole]) -> impl Iterator<Item = u32> + 'a {
    use TensorRole::{AttnK, AttnQ, AttnV, FfnGate, FfnUp};
    matrices.iter().map(|role| match role {
        AttnQ => shape.q_dim(),
        AttnK | AttnV => shape.kv_dim(),
        FfnGate | FfnUp => shape.ffn,
        _ => shape.hidden,
    })
}

impl Columns {
    /// Columns whose logits are there at once, at most.
    pub(crate) const LOGITS: u32 = LEAST;

    /// Has room for the logits of some columns, at most [`Columns::LOGITS`].
    pub(crate) fn begin_logits(&mut self, of: &ModelShape, columns: u32) -> Result<()> {
        let needed = of.vocab as usize * columns.min(Columns::LOGITS) as usize;
        if self.logits.as_ref().is_none_or(|logits| logits.len() < needed) {
            self.logits = None;
            self.logits = Some(DeviceBuffer::uninitialized(self.x.device(), needed)?);
        }
        Ok(())
    }

    /// Launches the head of columns `first..first + count` of a pass that has gone through the layers; gives the number of
    /// launches.
    pub(crate) fn head(&self, stream: &Stream, of: &Of<'_>, first: u32, count: u32) -> Result<u64> {
        let ModelShape { hidden, vocab, .. } = *of.model.file.shape();
        let mut run = Run { stream, vocab, launches: 0 };
        let Some(logits) = &self.logits else { return Ok(0) };
        let (x, y) = (self.x.as_ptr().add(first as usize * hidden as usize), logits.as_ptr());
        let (matrices, norm) = (&[TensorRole::Output], Some(TensorRole::OutputNorm));
        self.product(&mut run, of, 0, count, &Step { number: HEAD, matrices, norm, k: hidden, rows: vocab, x, y })?;
        Ok(run.launches)
    }

    /// A phase of all columns: by tensor cores where its matrices are quantised, else a column at a time.
    pub(super) fn product(&self, run: &mut Run<'_>, of: &Of<'_>, layer: u32, count: u32, step: &Step) -> Result<()> {
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
        let (tile, tiles) = match types.as_slice() {
            [ty] if phase == HEAD => Tile::of_head(*ty, rows),
            types => {
                let matrices: Vec<_> = types.iter().copied().zip(rows_of(shape, matrices)).collect();
                Tile::choose(&matrices, count, model.device.multiprocessors())
            }
        };
        let kernel = match tile {
            Tile::Narrow => &self.kernels.narrow,
            Tile::Wide => &self.kernels.wide,
            Tile::Large => &self.kernels.tile,
        };
        let width = tile.columns();
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
            vocab: shape.vocab,
        };
        run.launch_grid(kernel, [tiles, padded / width, 1], &gemm)
    }
}
