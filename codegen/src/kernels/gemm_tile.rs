use super::Kernel;
use super::epilogue::{Epilogue, ResultRow, Scaled};
use super::gemm::Launched;
use super::products::Chosen;
use crate::blocks::gemm_tile::{self, Matrices, Product, ROWS, Sums, Tile, Width};
use crate::blocks::next_columns::Written;
use crate::blocks::tensor::Tensor;
use crate::ptx::{Builder, F32, Global, LoadKind, Shared, U8, U32, Val, Var};
use kiln_shape::columns::{COLUMNS, tile_rows};
use kiln_shape::table::{LAYER_SLOTS, MODEL_SLOTS};
use kiln_shape::{ModelShape, Numerics, SUPER_BLOCK, WeightType};

/// Rows of the tiles of most types.
const MOST_ROWS: u32 = tile_rows(WeightType::Q4_K);

/// The phases of a layer, and the head, for many columns, in tiles of [`tile_rows`] rows and 64 or 128 columns: grid
/// `[columns / width, tiles of rows]`, rounded up, the tiles of each matrix on their own. Of gate and up, which must be of
/// one type, a tile has half of its rows each. Each column has the bits that [`super::Products`] gives it. Where the next
/// phase takes the results they are rounded to bytes for it, as [`super::Quantise`] does.
#[derive(Debug, Clone, PartialEq)]
pub struct GemmTile {
    shape: ModelShape,
    types: Vec<WeightType>,
    width: Width,
}

impl GemmTile {
    /// Tiles of 64 columns, for a model with matrices of those of `types` that fast numerics have for it.
    pub fn new(shape: ModelShape, types: &[WeightType]) -> GemmTile {
        let types = types.iter().copied().filter(|ty| ty.is_quantised() && Numerics::Fast.takes(*ty, &shape)).collect();
        GemmTile { shape, types, width: Width::Single }
    }

    /// The same by twice as many warps, of 32 columns each, for targets whose copies do not run on: while one waits for its
    /// share of them, others have theirs.
    #[must_use]
    pub fn by_more_warps(self) -> GemmTile {
        GemmTile { width: Width::Halves, ..self }
    }

    /// Tiles of 128 columns, whose weights are read half as often.
    #[must_use]
    pub fn double(self) -> GemmTile {
        GemmTile { width: Width::Double, ..self }
    }

    /// Rows of a tile of a matrix of type `ty`.
    fn rows_of_tile(&self, b: &mut Builder, ty: Val<U32>) -> Val<U32> {
        let most = b.mov::<U32>(MOST_ROWS);
        self.types.iter().filter(|ty| tile_rows(**ty) != MOST_ROWS).fold(most, |rows, other| {
            let is = b.setp_eq(ty, other.id());
            b.selp::<U32>(tile_rows(*other), rows, is)
        })
    }

    /// The results of a lane, an eight of columns after the other.
    fn finish(&self, b: &mut Builder, operands: &Operands, chosen: &Chosen, of: &OfTile, sums: &Sums) {
        let ((warp, own_eight), lane) = (gemm_tile::of_warp(b, self.width), b.lane());
        let (group, pair) = (b.shr::<U32>(lane, 2), b.and::<U32>(lane, 3));
        let each = b.selp::<U32>(ROWS / 2, ROWS, chosen.is_gate_up);
        let row = b.mul::<U32>(warp, each);
        let row = b.add::<U32>(row, group);
        let row = b.add::<U32>(row, of.first);
        let end = b.add::<U32>(of.first, of.rows_of_tile);
        let end = b.min::<U32>(end, of.rows);
        let first_eight = b.add::<U32>(operands.first_eight, own_eight);
        let first_column = b.mul::<U32>(first_eight, COLUMNS);
        let first_column = b.mad::<U32>(pair, 2, first_column);
        let last = b.sub::<U32>(operands.columns, 1);
        let no_pair = b.not_pred(chosen.is_gate_up);
        let Operands { table, y, rows, .. } = *operands;
        let epilogue = Epilogue { table, chosen, number: of.number, qkv_bias: self.shape.qkv_bias };
        let in_phase = b.add::<U32>(of.from, row);
        let results = ResultRow::new(b, y, rows, in_phase);
        // The lane's rows, each eight behind the one before.
        let own: Vec<_> = (0..ROWS / 8)
            .map(|eight| {
                let row = b.add::<U32>(row, 8 * eight);
                let inside = b.setp_lt(row, end);
                (row, if eight < 2 { inside } else { b.and_pred(inside, no_pair) })
            })
            .collect();
        b.for_range(0, self.width.own(), 1, |b, eight| {
            let column = b.mad::<U32>(eight, COLUMNS, first_column);
            let inverses = [0, 1].map(|next| {
                let column = b.add::<U32>(column, next);
                let column = b.min::<U32>(column, last);
                let at = b.index(operands.inverse, column);
                b.ld(at, LoadKind::Constant)
            });
            let sixteens: Vec<&[[Var<F32>; 4]]> = sums.chunks(self.width.own() as usize).collect();
            let scaled: Vec<[Val<F32>; 4]> =
                sixteens.iter().map(|of| std::array::from_fn(|i| b.mul(of[0][i], inverses[i % 2]))).collect();
            let columns = [0, 1].map(|next| {
                let column = b.add::<U32>(column, next);
                (results.of(b, column), b.setp_lt(column, operands.columns))
            });
            let mut products = Vec::new();
            for (number, values) in scaled.iter().enumerate() {
                for (i, value) in values.iter().enumerate() {
                    let eight = 2 * number + i / 2;
                    let ((row, in_rows), (column, in_columns)) = (own[eight], columns[i % 2]);
                    let there = b.and_pred(in_columns, in_rows);
                    let place = column.at(8 * eight as u32);
                    let value = b.var::<F32>(*value);
                    let pair = (number == 0).then(|| (value, scaled[1][i]));
                    products.push(Scaled { row, place, there, value, pair });
                }
            }
            epilogue.write(b, &products);
            for of in sixteens {
                let first = of[0].map(|sum| b.get(sum));
                gemm_tile::rotate(b, of, first);
            }
        });
    }
}

/// Rows of the phase.
pub(super) fn rows_of_phase(b: &mut Builder, shape: &ModelShape, chosen: &Chosen, vocab: Val<U32>) -> Val<U32> {
    let (q, kv) = (shape.q_dim(), shape.kv_dim());
    let rows = b.selp::<U32>(q + 2 * kv, shape.hidden, chosen.is_qkv);
    let rows = b.selp::<U32>(shape.ffn, rows, chosen.is_gate_up);
    b.selp::<U32>(vocab, rows, chosen.is_head)
}

/// What a launch works on.
pub(super) struct Operands {
    pub(super) table: Global<U8>,
    pub(super) inverse: Global<F32>,
    pub(super) y: Global<F32>,
    /// Columns that are there.
    pub(super) columns: Val<U32>,
    /// Rows of the phase, from a column's results to the next column's.
    pub(super) rows: Val<U32>,
    pub(super) first_eight: Val<U32>,
}

/// A tile of a matrix of the phase.
pub(super) struct OfTile {
    pub(super) number: Val<U32>,
    /// The matrix's first row in the phase, and its rows.
    pub(super) from: Val<U32>,
    pub(super) rows: Val<U32>,
    /// The tile's first row in the matrix, and its rows there.
    pub(super) first: Val<U32>,
    pub(super) rows_of_tile: Val<U32>,
}

impl OfTile {
    pub(super) const WORDS: u32 = 5;

    /// The block's tile, of so many rows of the phase: those of each matrix come before those of the one before. Of Q, K and
    /// V llama.cpp's mixes give the last the most bits, and blocks that take longest are best begun first.
    pub(super) fn find(
        b: &mut Builder,
        shape: &ModelShape,
        table: Global<U8>,
        chosen: &Chosen,
        rows: Val<U32>,
        rows_of_tile: impl Fn(&mut Builder, Val<U32>) -> Val<U32>,
    ) -> OfTile {
        let tile = b.ctaid_y();
        let zero = b.mov::<U32>(0);
        let none = OfTile { number: zero, from: zero, rows: zero, first: zero, rows_of_tile: zero };
        let found = none.words().map(|word| b.var::<U32>(word));
        let before = b.var::<U32>(0);
        let matrices = b.selp::<U32>(3, 1, chosen.is_qkv);
        let last = b.sub::<U32>(matrices, 1);
        b.for_range(0, matrices, 1, |b, earlier| {
            let number = b.sub::<U32>(last, earlier);
            let (from, to) = chosen.rows_of(b, shape, number);
            let to = b.min::<U32>(to, rows);
            let in_matrix = b.sub::<U32>(to, from);
            let entry = b.add::<U32>(chosen.weight, number);
            let ty = Tensor::from_table(b, table, entry).ty;
            let rows_of_tile = rows_of_tile(b, ty);
            let half = b.shr::<U32>(rows_of_tile, 1);
            let each = b.selp::<U32>(half, rows_of_tile, chosen.is_gate_up);
            let up = b.add::<U32>(in_matrix, each);
            let up = b.sub::<U32>(up, 1);
            let count = b.div::<U32>(up, each);
            let own = b.sub::<U32>(tile, before);
            // A tile before these wraps round.
            let is_own = b.setp_lt(own, count);
            b.if_(is_own, |b| {
                let first = b.mul::<U32>(own, each);
                let of = OfTile { number, from, rows: in_matrix, first, rows_of_tile: each };
                found.iter().zip(of.words()).for_each(|(to, word)| b.set(*to, word));
            });
            let after = b.add::<U32>(before, count);
            b.set(before, after);
        });
        OfTile::of(found.map(|word| b.get(word)))
    }

    /// The matrices of its rows: of gate and up both.
    pub(super) fn matrices(&self, b: &mut Builder, table: Global<U8>, chosen: &Chosen) -> Matrices {
        let is_pair = chosen.is_gate_up;
        let entry = b.add::<U32>(chosen.weight, self.number);
        let further = b.selp::<U32>(1, 0, is_pair);
        let next = b.add::<U32>(entry, further);
        let tensors = [entry, next].map(|entry| Tensor::from_table(b, table, entry));
        Matrices { tensors, is_pair, first: self.first, rows: self.rows }
    }

    /// What is written of the phase when its results of tile `tile` of columns, so many, are.
    pub(super) fn written(&self, b: &mut Builder, of: &Operands, tile: Val<U32>, width: u32) -> Written {
        let end = b.add::<U32>(self.first, self.rows_of_tile);
        let end = b.min::<U32>(end, self.rows);
        let (first, end) = (b.add::<U32>(self.from, self.first), b.add::<U32>(self.from, end));
        Written { y: of.y, columns: of.columns, rows: of.rows, first, end, tile, width }
    }

    const fn words(&self) -> [Val<U32>; 5] {
        [self.number, self.from, self.rows, self.first, self.rows_of_tile]
    }

    const fn of([number, from, rows, first, rows_of_tile]: [Val<U32>; 5]) -> OfTile {
        OfTile { number, from, rows, first, rows_of_tile }
    }

    /// Puts it where the block finds it again behind a barrier.
    pub(super) fn keep(&self, b: &mut Builder, to: Shared<U32>) {
        let tid = b.tid();
        let leads = b.setp_eq(tid, 0);
        b.if_(leads, |b| {
            for (word, at) in self.words().into_iter().zip(0..) {
                b.st(to.at(at), word);
            }
        });
    }

    pub(super) fn kept(b: &mut Builder, from: Shared<U32>) -> OfTile {
        // Constant from that barrier on.
        OfTile::of([0, 1, 2, 3, 4].map(|at| b.ld(from.at(at), LoadKind::Constant)))
    }
}

impl Kernel for GemmTile {
    fn name(&self) -> &str {
        match self.width {
            Width::Single | Width::Halves => "gemm_tile",
            Width::Double => "gemm_tile_128",
        }
    }

    fn block(&self) -> u32 {
        32 * self.width.warps()
    }

    fn check(&self) -> Result<(), String> {
        super::Gemm::wide(self.shape, &self.types).check()
    }

    fn build(&self, b: &mut Builder) {
        let launched = Launched::new(b);
        let Launched { table, layer, phase, of_256, of_32, inverse, columns, y, vocab, .. } = launched;
        b.blocks_per_sm(1);
        let layer = b.mad::<U32>(layer, LAYER_SLOTS, MODEL_SLOTS);
        let group = b.ctaid_x();
        let first_eight = b.mul::<U32>(group, self.width.eights());
        let kept = b.shared::<U32>("tile", OfTile::WORDS);
        let answer = b.shared::<U32>("answer", 1);
        let tiles = Tile::new(b, &self.types, self.width);
        {
            let chosen = Chosen::new(b, &self.shape, phase, layer);
            let rows = rows_of_phase(b, &self.shape, &chosen, vocab);
            let of = OfTile::find(b, &self.shape, table, &chosen, rows, |b, ty| self.rows_of_tile(b, ty));
            of.keep(b, kept);
            let of_tile = of.matrices(b, table, &chosen);
            let ModelShape { hidden, ffn, .. } = self.shape;
            let is_cut = [hidden, ffn, self.shape.q_dim()].iter().any(|k| !k.is_multiple_of(SUPER_BLOCK));
            let product = Product { of: of_tile, k: chosen.k, is_cut, of_256, of_32, first_eight };
            let sums = tiles.sums(b, &self.types, &product);
            // What the sums were computed with takes no registers meanwhile.
            b.bar_sync();
            let chosen = Chosen::new(b, &self.shape, phase, layer);
            let rows = rows_of_phase(b, &self.shape, &chosen, vocab);
            let operands = Operands { table, inverse, y, columns, rows, first_eight };
            let of = OfTile::kept(b, kept);
            self.finish(b, &operands, &chosen, &of, &sums);
            let written = of.written(b, &operands, group, self.width.eights() * COLUMNS);
            launched.next.round(b, &self.types, &written, tiles.room(), answer);
        }
    }
}
