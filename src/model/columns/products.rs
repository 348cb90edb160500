//! The products of several columns: of a layer's phases, and of the head.

use super::super::kernels::{ColumnKernels, TileKernels};
use super::super::launches::{Gemm, GemmFloats, Phase, Quantise};
use super::super::tiles::{Room, Tile};
use super::super::token::{Of, Run};
use super::super::{Inner, Numerics};
use super::{Columns, LEAST};
use crate::Result;
use crate::driver::{DeviceBuffer, DevicePtr, Stream};
use crate::kernel::Kernel;
use crate::launch::{In, Out};
use crate::shape::columns::COLUMNS;
use crate::shape::sliced::Cut;
use crate::shape::{ModelShape, TensorRole, WeightType};

/// The number of the head among the phases.
const HEAD: u32 = 4;
/// Rows of a block where weights are floats.
const FLOAT_ROWS: u32 = 16;

/// A phase of a layer, or the head: its number, the columns it takes, and its results.
pub(super) struct Step {
    pub(super) number: u32,
    pub(super) x: DevicePtr<f32>,
    pub(super) y: DevicePtr<f32>,
    /// Whether the columns are rounded already.
    pub(super) rounded: bool,
}

/// A phase's matrices and the norm before it.
fn tensors(phase: u32) -> (&'static [TensorRole], Option<TensorRole>) {
    use TensorRole::*;
    match phase {
        0 => (&[AttnQ, AttnK, AttnV], Some(AttnNorm)),
        1 => (&[AttnOutput], None),
        2 => (&[FfnGate, FfnUp], Some(FfnNorm)),
        3 => (&[FfnDown], None),
        _ => (&[Output], Some(OutputNorm)),
    }
}

/// The length of a phase's columns, and its rows.
fn sizes(shape: &ModelShape, phase: u32) -> (u32, u32) {
    let ModelShape { hidden, ffn, vocab, .. } = *shape;
    match phase {
        0 => (hidden, shape.q_dim() + 2 * shape.kv_dim()),
        1 => (shape.q_dim(), hidden),
        2 => (hidden, ffn),
        3 => (ffn, hidden),
        _ => (hidden, vocab),
    }
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

/// What rounds a phase's results: the types that they meet, of each its bit, and the entry of the norm before that.
#[derive(Debug, Clone, Copy, Default)]
struct Rounding {
    wanted: u32,
    norm: u32,
}

/// The types of a phase's matrices, where tensor cores take all of them.
fn quantised(model: &Inner, layer: u32, phase: u32) -> Option<Vec<WeightType>> {
    let types = tensors(phase).0.iter().map(|role| model.weights.ty(*role, layer).filter(|ty| ty.is_quantised()));
    types.collect()
}

/// Whether all of a phase's matrices are of floats.
fn is_of_floats(model: &Inner, layer: u32, phase: u32) -> bool {
    let mut types = tensors(phase).0.iter().map(|role| model.weights.ty(*role, layer));
    types.all(|ty| ty.is_some_and(|ty| !ty.is_quantised()))
}

/// Loads the kernel that takes a column at a time, where layers have matrices for it: not within work that is enqueued.
pub(super) fn load_for_single_columns(model: &Inner, kernels: &ColumnKernels) -> Result<()> {
    let mut phases = (0..model.file.shape().layers).flat_map(|layer| (0..HEAD).map(move |phase| (layer, phase)));
    let is_left = |(layer, phase)| {
        let is_taken = match quantised(model, layer, phase) {
            Some(_) => kernels.tiles.is_some(),
            None => kernels.floats.is_some() && is_of_floats(model, layer, phase),
        };
        !is_taken
    };
    if phases.any(is_left) {
        model.stream_kernels(Numerics::Fast)?;
    }
    Ok(())
}

/// How the products of a phase round their results for the next; none where that takes floats, or where nothing takes them
/// as they are: attention comes behind Q, K and V, and what follows the last layer is not known here.
fn rounded_for_next(of: &Of<'_>, layer: u32, phase: u32) -> Option<Rounding> {
    let (layers, own) = (of.model.file.shape().layers, quantised(of.model, layer, phase));
    let (next_layer, next) = match phase {
        1 | 2 => (layer, phase + 1),
        3 if layer + 1 < layers => (layer + 1, 0),
        _ => return None,
    };
    own?;
    let wanted = Some(wanted(of, next_layer, next)).filter(|wanted| *wanted != 0)?;
    let norm = tensors(next).1.map_or(0, |role| role.table_index(next_layer));
    Some(Rounding { wanted, norm })
}

/// The types that a phase's columns meet, of each its bit, where tensor cores take all of its matrices; else 0.
pub(super) fn wanted(of: &Of<'_>, layer: u32, phase: u32) -> u32 {
    quantised(of.model, layer, phase).iter().flatten().fold(0, |bits, ty| bits | 1 << ty.id())
}

/// Whether the product before has rounded what a phase takes.
pub(super) fn is_rounded(of: &Of<'_>, layer: u32, phase: u32) -> bool {
    let before = match phase {
        0 => layer.checked_sub(1).map(|before| (before, 3)),
        2 | 3 => Some((layer, phase - 1)),
        _ => None,
    };
    before.is_some_and(|(layer, phase)| rounded_for_next(of, layer, phase).is_some())
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
        let x = self.x.as_ptr().add(first as usize * hidden as usize);
        self.product(&mut run, of, 0, count, &Step { number: HEAD, x, y: logits.as_ptr(), rounded: false })?;
        Ok(run.launches)
    }

    /// A phase of all columns: by tensor cores where its matrices are quantised, else a column at a time.
    pub(super) fn product(&self, run: &mut Run<'_>, of: &Of<'_>, layer: u32, count: u32, step: &Step) -> Result<()> {
        let shape = of.model.file.shape();
        let &Step { number: phase, x, y, rounded } = step;
        let (k, rows) = sizes(shape, phase);
        let table = In::noted(of.model.weights.table.as_ptr());
        let (eps, vocab) = (shape.rms_eps, shape.vocab);
        if let Some(kernel) = self.kernels.floats.as_ref().filter(|_| is_of_floats(of.model, layer, phase)) {
            let (x, y) = (In::noted(x), Out::noted(y));
            let gemm = GemmFloats { table, layer, phase, x, columns: count, y, eps, vocab };
            return run.launch_grid(kernel, [count.div_ceil(COLUMNS), rows.div_ceil(FLOAT_ROWS), 1], &gemm);
        }
        // A head goes by tiles of 64 columns.
        let tiled = |tiles: &&TileKernels| phase != HEAD || tiles.tile.is_some() || tiles.sliced.is_some();
        let kernels = self.kernels.tiles.as_ref().filter(tiled);
        let Some((types, kernels)) = quantised(of.model, layer, phase).zip(kernels) else {
            let kernels = of.model.stream_kernels(Numerics::Fast)?;
            for column in 0..count as usize {
                let (x, y) = (In::noted(x.add(column * k as usize)), Out::noted(y.add(column * rows as usize)));
                // In fast numerics all phases are one kernel.
                run.launch_rows(&kernels.qkv, rows, &Phase { table, layer, x, y, eps, vocab, phase })?;
            }
            return Ok(());
        };
        // A head has at most 64 columns at once.
        let takes = |tile| self.has(kernels, tile) && (phase != HEAD || matches!(tile, Tile::Sliced(_) | Tile::Large));
        let rows_of = match types.as_slice() {
            [_] if phase == HEAD => vec![rows],
            _ => rows_of(shape, tensors(phase).0).collect(),
        };
        let matrices: Vec<_> = types.iter().copied().zip(rows_of).collect();
        let device = &of.model.device;
        let shared = kernels.sliced.as_ref().map_or(0, Kernel::dynamic_shared_left);
        let room = Room { multiprocessors: device.multiprocessors(), shared };
        let (tile, tiles) = Tile::choose(takes, &matrices, count, room);
        let TileKernels { wide, narrow, tile: large, double, warpgroups, .. } = kernels;
        let (tile, kernel) = match (tile, narrow, large, double) {
            // Its kernel takes more, and is launched below.
            (Tile::Sliced(_), ..) => (tile, wide),
            (Tile::Narrow, Some(narrow), ..) => (tile, narrow),
            (Tile::Double, .., Some(double)) => (tile, double),
            (Tile::Large, _, Some(large), _) => (tile, large),
            _ => match (tile, warpgroups) {
                (Tile::Warpgroups, Some(warpgroups)) => (tile, warpgroups),
                _ => (Tile::Wide, wide),
            },
        };
        let width = tile.columns();
        let padded = count.next_multiple_of(width);
        if !rounded {
            self.quantise(run, of, layer, (count, padded), step, (kernels, &types))?;
        }
        let (taken, left) = (self.handed.to(phase), self.handed.to(phase + 1));
        let Rounding { wanted, norm } = rounded_for_next(of, layer, phase).unwrap_or_default();
        let gemm = Gemm {
            table,
            layer,
            phase,
            of_256: In::noted(taken.of_256.as_ptr()),
            of_32: In::noted(taken.of_32.as_ptr()),
            maps: In::noted(self.handed.maps_of(phase)),
            inverse: In::noted(taken.inverse.as_ptr()),
            columns: count,
            y: Out::noted(y),
            vocab,
            next_types: wanted,
            next_256: Out::noted(left.of_256.as_ptr()),
            next_32: Out::noted(left.of_32.as_ptr()),
            next_norm: norm,
            eps,
            squares: Out::noted(self.handed.squares.as_ptr()),
            next_inverse: Out::noted(left.inverse.as_ptr()),
            arrivals: Out::noted(self.handed.arrivals.as_ptr()),
            begun: Out::noted(self.handed.begun.as_ptr()),
            begun_words: Out::noted(self.handed.begun_words.as_ptr()),
        };
        let sliced = [&kernels.sliced, &kernels.halved];
        if let Tile::Sliced(cut) = tile
            && let Some(sliced) = sliced[cut.parts as usize - 1]
        {
            let more = types.iter().map(|ty| cut.bytes(*ty)).max().unwrap_or(0);
            return run.launch_with(sliced, [padded / width * tiles, 1, 1], more, &(gemm, cut));
        }
        let grid = tile.grid([padded / width, tiles], of.model.device.multiprocessors());
        run.launch_grid(kernel, grid, &gemm)
    }

    /// Whether a tile has a kernel, and its columns room.
    fn has(&self, kernels: &TileKernels, tile: Tile) -> bool {
        let kernel = match tile {
            Tile::Narrow => kernels.narrow.is_some(),
            Tile::Wide => true,
            Tile::Sliced(Cut { parts: 1, .. }) => kernels.sliced.is_some(),
            Tile::Sliced(_) => kernels.halved.is_some(),
            Tile::Large => kernels.tile.is_some(),
            Tile::Double => kernels.double.is_some(),
            Tile::Warpgroups => kernels.warpgroups.is_some(),
        };
        kernel && tile.columns() <= self.room
    }

    /// Rounds the columns that a phase takes, `count` of them and zeros up to `padded`.
    fn quantise(
        &self,
        run: &mut Run<'_>,
        of: &Of<'_>,
        layer: u32,
        (count, padded): (u32, u32),
        step: &Step,
        (kernels, types): (&TileKernels, &[WeightType]),
    ) -> Result<()> {
        let shape = of.model.file.shape();
        let to = self.handed.to(step.number);
        for (block_len, to_form) in [(256, &to.of_256), (32, &to.of_32)] {
            let wanted = types.iter().filter(|ty| ty.block_len() == block_len).fold(0, |bits, ty| bits | 1 << ty.id());
            if wanted != 0 {
                let quantise = Quantise {
                    table: In::noted(of.model.weights.table.as_ptr()),
                    norm: tensors(step.number).1.map_or(0, |role| role.table_index(layer)),
                    x: In::noted(step.x),
                    k: sizes(shape, step.number).0,
                    eps: shape.rms_eps,
                    columns: count,
                    wanted,
                    to: Out::noted(to_form.as_ptr()),
                    inverse: Out::noted(to.inverse.as_ptr()),
                };
                run.launch_grid(&kernels.quantise, [padded, 1, 1], &quantise)?;
            }
        }
        Ok(())
    }
}
