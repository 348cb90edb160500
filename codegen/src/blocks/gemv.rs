//! A block's part of `y = W x`: stages the vector, normalised or not, and walks over tiles of rows, a warp a tile.
//!
//! A vector too long for shared memory is staged in parts; the partial sums then wait in `y`, which the same lane reads
//! again, so no barrier is needed for them.

use super::dot::{self, Matrix, Rows, Tile, may_be_cut};
use super::stage::Staged;
use crate::ptx::{Builder, F32, Global, LoadKind, Pred, Size, U32, U64, Val};
use kiln_shape::SUPER_BLOCK;

/// Elements of a vector that are staged at once: with the sums of squares they take 49 KB, which every target has.
pub(crate) const STAGED_MAX: u32 = 12288;

/// The vector.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input {
    /// `[k]`.
    pub(crate) x: Global<F32>,
    /// For RMS normalisation: gamma `[k]` and epsilon.
    pub(crate) norm: Option<(Global<F32>, Val<F32>)>,
    /// Its length, a multiple of 32.
    pub(crate) k: Size,
    /// What loads of `x` may assume.
    pub(crate) kind: LoadKind,
}

/// The rows a block works on, in tiles, its warps side by side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    /// The first row of tile 0.
    origin: Size,
    /// One past the last row.
    end: Size,
    /// The block's first tile, one past the last tile of all, and the distance between a warp's tiles.
    tiles: (Size, Size, Size),
    /// Rows of a tile: what a warp works on at once.
    tile: u32,
}

impl Share {
    /// All `rows` in tiles dealt round to the blocks of the grid.
    #[track_caller]
    pub(crate) fn of_grid(b: &mut Builder, rows: Size, tile: u32) -> Share {
        let (block, grid, warps) = (b.ctaid_x(), b.nctaid_x(), b.warps());
        let first = b.mul::<U32>(block, warps);
        let step = b.mul::<U32>(grid, warps);
        let count = b.size_div_ceil(rows, tile);
        Share { origin: Size::Const(0), end: rows, tiles: (Size::Reg(first), count, Size::Reg(step)), tile }
    }

    /// The run of rows from `first` to `end`; none if `end` is not greater.
    pub(crate) fn run(b: &mut Builder, first: Val<U32>, end: Val<U32>, tile: u32) -> Share {
        let end = b.max(end, first);
        let rows = b.sub(end, first);
        let count = b.size_div_ceil(Size::Reg(rows), tile);
        let tiles = (Size::Const(0), count, Size::Const(b.warps()));
        Share { origin: Size::Reg(first), end: Size::Reg(end), tiles, tile }
    }

    /// Runs `body` for each of the warp's tiles.
    #[track_caller]
    pub(crate) fn each(&self, b: &mut Builder, body: impl FnOnce(&mut Builder, Rows)) {
        let (first, count, step) = self.tiles;
        let warp = b.warp_id();
        let first = b.add::<U32>(warp, first);
        b.for_range(first, count, step, |b, tile| {
            let first = b.mad::<U32>(tile, self.tile, self.origin);
            body(b, Rows { first, end: self.end });
        });
    }
}

/// A vector in shared memory, or a part of one.
pub(crate) struct Pass {
    pub(crate) staged: Staged,
    pub(crate) tile: Tile,
    /// `1 / rms` of the whole vector, where it is to be normalised; correct in the last part only.
    pub(crate) scale: Option<Val<F32>>,
    /// Where there are several parts: whether this is the first, and whether it is the last.
    pub(crate) ends: Option<(Val<Pred>, Val<Pred>)>,
}

/// Stages `input` and runs `body` on it, once for each part. Barriers stand around the staging: after it, every warp
/// sees the vector, and no warp still reads the part before.
pub(crate) fn staged(b: &mut Builder, input: &Input, rows_per_lane: u32, body: impl FnOnce(&mut Builder, &Pass)) {
    const PART: u32 = STAGED_MAX / SUPER_BLOCK;
    let gamma = input.norm.map(|(gamma, _)| gamma);
    let whole = Tile::new(b, input.k, rows_per_lane);
    let super_blocks = b.size_div_ceil(input.k, SUPER_BLOCK);
    let is_cut = may_be_cut(input.k);
    if let Size::Const(count @ 0..=PART) = super_blocks {
        let staged = Staged::new(b, count * SUPER_BLOCK);
        let left = is_cut.then(|| b.mov::<U32>(input.k));
        staged.fill(b, input.x, gamma, super_blocks, left, input.kind);
        b.bar_sync();
        let scale = input.norm.map(|(_, eps)| staged.inverse_rms(b, super_blocks, input.k, eps));
        return body(b, &Pass { staged, tile: whole, scale, ends: None });
    }
    let staged = Staged::new(b, STAGED_MAX);
    // The sums of squares of all parts: a super-block each, up to 4 times the part.
    let squares = b.dynamic_shared::<F32>(4 * PART);
    b.for_range(0, super_blocks, PART, |b, first| {
        let left = b.sub::<U32>(super_blocks, first);
        let count = b.min::<U32>(left, PART);
        let staged = Staged { squares: b.index(squares, first), ..staged };
        let x = b.byte_index(input.x, first, SUPER_BLOCK * 4);
        let gamma = gamma.map(|gamma| b.byte_index(gamma, first, SUPER_BLOCK * 4));
        let left = is_cut.then(|| {
            let before = b.mul::<U32>(first, SUPER_BLOCK);
            b.sub::<U32>(input.k, before)
        });
        b.bar_sync();
        staged.fill(b, x, gamma, Size::Reg(count), left, input.kind);
        b.bar_sync();
        let done = b.add(first, count);
        let all = Staged { squares, ..staged };
        let scale = input.norm.map(|(_, eps)| {
            // Before the last part the result is not used, but squares not yet written must not be read.
            all.inverse_rms(b, Size::Reg(done), input.k, eps)
        });
        let ends = (b.setp_eq::<U32>(first, 0), b.setp_eq::<U32>(done, super_blocks));
        let tile = whole.part(Size::Reg(first), Size::Reg(count));
        body(b, &Pass { staged, tile, scale, ends: Some(ends) });
    });
}

/// Where results go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    /// `[n]`.
    pub(crate) y: Global<F32>,
    /// `[n]`, added to each result.
    pub(crate) bias: Option<Global<F32>>,
    /// `[n]`, added to each result; may be `y` where the vector is not normalised.
    pub(crate) residual: Option<Global<F32>>,
}

/// A vector that is added to results.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addend {
    /// `[n]`.
    pub(crate) at: Global<F32>,
    /// Whether the vector is there, where the launch decides; the same in the whole grid.
    pub(crate) given: Option<Val<Pred>>,
}

impl Addend {
    /// One that is there unless the pointer is null.
    #[track_caller]
    pub(crate) fn unless_null(b: &mut Builder, at: Global<F32>) -> Addend {
        let address = b.address(at);
        Addend { at, given: Some(b.setp_ne::<U64>(address, 0u64)) }
    }

    fn load(&self, b: &mut Builder, row: Val<U32>) -> Val<F32> {
        let at = b.index(self.at, row);
        let Some(given) = self.given else {
            return b.ld(at, LoadKind::Ordinary);
        };
        let value = b.var::<F32>(0.0);
        b.if_(given, |b| {
            let loaded = b.ld(at, LoadKind::Ordinary);
            b.set(value, loaded);
        });
        b.get(value)
    }
}

/// `y[n] = scale * (W x)[n] + bias[n] + residual[n]` for one tile.
pub(crate) fn store_tile(b: &mut Builder, matrix: Matrix<'_>, pass: &Pass, rows: Rows, output: Output) {
    let addends = [output.bias, output.residual].into_iter().flatten().map(|at| Addend { at, given: None });
    let addends: Vec<Addend> = addends.collect();
    store_sums(b, matrix, pass, rows, output.y, &addends);
}

/// `y[n] = scale * (W x)[n]` plus all `addends[n]`, in their order, for one tile.
pub(crate) fn store_sums(
    b: &mut Builder,
    matrix: Matrix<'_>,
    pass: &Pass,
    rows: Rows,
    y: Global<F32>,
    addends: &[Addend],
) {
    let result = dot::rows(b, matrix, &pass.staged, pass.tile, rows);
    for (row, sum) in result.rows.into_iter().zip(result.sums) {
        let inside = b.setp_lt::<U32>(row, rows.end);
        let writes = b.and_pred(inside, result.leader);
        b.if_(writes, |b| {
            let y = b.index(y, row);
            let addends: Vec<Val<F32>> = addends.iter().map(|addend| addend.load(b, row)).collect();
            let total = match (pass.ends, pass.scale) {
                (None, None) => addends.into_iter().fold(sum, |sum, addend| b.add(sum, addend)),
                (None, Some(scale)) => {
                    let scaled = b.mul(sum, scale);
                    addends.into_iter().fold(scaled, |sum, addend| b.add(sum, addend))
                }
                (Some((first, last)), scale) => {
                    let total = b.var(sum);
                    b.if_else(
                        first,
                        |b| {
                            if scale.is_none() {
                                let sum = addends.iter().fold(sum, |sum, addend| b.add(sum, *addend));
                                b.set(total, sum);
                            }
                        },
                        |b| {
                            let before = b.ld(y, LoadKind::Ordinary);
                            let next = b.add(before, sum);
                            b.set(total, next);
                        },
                    );
                    if let Some(scale) = scale {
                        b.if_(last, |b| {
                            let scaled = b.mul(total, scale);
                            let next = addends.iter().fold(scaled, |sum, addend| b.add(sum, *addend));
                            b.set(total, next);
                        });
                    }
                    b.get(total)
                }
            };
            b.st(y, total);
        });
    }
}
