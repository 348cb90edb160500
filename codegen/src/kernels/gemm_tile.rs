use super::Kernel;
use super::epilogue::{Epilogue, ResultRow, Scaled};
use super::gemm::Launched;
use super::products::Chosen;
use super::tiles::{Kind, OfTile, Operands, Piece, TiledPhase, Tiles};
use crate::blocks::begun::{Begun, LOOKS};
use crate::blocks::gemm_tile::{self, Product, ROWS, Sums, Tile, Width};
use crate::blocks::tensor::by_type;
use crate::ptx::{Builder, F32, U32, Val, Var};
use kiln_shape::columns::{COLUMNS, tile_rows};
use kiln_shape::{ModelShape, Numerics, SUPER_BLOCK, WeightType};

/// The time of a super-block of a tile: instructions of a warp for each `m16n8k32`, as `codegen/loops.txt` counts them of
/// these; others are taken to be as Q4_K.
const fn cost(ty: WeightType) -> u32 {
    match ty {
        WeightType::Q6_K => 16,
        WeightType::Q8_0 => 12,
        WeightType::Q5_K => 11,
        _ => 10,
    }
}

/// Eights of columns whose results a lane has at once: factors and residuals come together. Text of tiles of 64 columns,
/// which every model has, is shorter so.
const fn at_once(width: Width) -> u32 {
    match width {
        Width::Single | Width::Halves => 1,
        Width::Double => 4,
    }
}

/// The phases of a layer, and the head, for many columns, in tiles of [`tile_rows`] rows and 64 or 128 columns, the tiles of
/// each matrix on their own. Of gate and up, which must be of one type, a tile has half of its rows each. Any number of blocks
/// have equal shares of all tiles, or, if they are as many as these, one each. Each column has the bits that
/// [`super::Products`] gives it. Where the next phase takes the results they are rounded to bytes for it, as
/// [`super::Quantise`] does.
#[derive(Debug, Clone, PartialEq)]
pub struct GemmTile {
    shape: ModelShape,
    types: Vec<WeightType>,
    width: Width,
    looks: u32,
}

impl GemmTile {
    /// Tiles of 64 columns, for a model with matrices of those of `types` that fast numerics have for it.
    pub fn new(shape: ModelShape, types: &[WeightType]) -> GemmTile {
        let types = types.iter().copied().filter(|ty| ty.is_quantised() && Numerics::Fast.takes(*ty, &shape)).collect();
        GemmTile { shape, types, width: Width::Single, looks: LOOKS }
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

    /// The same, whose blocks look so often for what another one begins, at least once, before they do it themselves.
    #[must_use]
    pub fn with_looks(self, looks: u32) -> GemmTile {
        GemmTile { looks, ..self }
    }

    /// Whether rows may end within a super-block.
    fn is_cut(&self) -> bool {
        let ModelShape { hidden, ffn, .. } = self.shape;
        [hidden, ffn, self.shape.q_dim()].iter().any(|k| !k.is_multiple_of(SUPER_BLOCK))
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
        let at_once = at_once(self.width);
        b.for_range(0, self.width.own() / at_once, 1, |b, some| {
            let column = b.mad::<U32>(some, at_once * COLUMNS, first_column);
            let sixteens: Vec<&[[Var<F32>; 4]]> = sums.chunks(self.width.own() as usize).collect();
            let mut products = Vec::new();
            for number in 0..at_once {
                let columns = [0, 1].map(|next| b.add::<U32>(column, number * COLUMNS + next));
                let inverses = columns.map(|column| {
                    let column = b.min::<U32>(column, last);
                    let at = b.index(operands.inverse, column);
                    let kind = b.kind_of_earlier();
                    b.ld(at, kind)
                });
                let columns = columns.map(|column| (results.of(b, column), b.setp_lt(column, operands.columns)));
                let scaled = sixteens.iter().map(|of| of[number as usize]);
                let scaled: Vec<[Val<F32>; 4]> =
                    scaled.map(|of| std::array::from_fn(|i| b.mul(of[i], inverses[i % 2]))).collect();
                products.extend(Scaled::of_sixteens(b, &own, columns, &scaled));
            }
            epilogue.write(b, &products);
            for of in sixteens {
                let of: Vec<Var<F32>> = of.iter().flatten().copied().collect();
                gemm_tile::rotate_by(b, &of, 4 * at_once as usize);
            }
        });
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
        let begun = Begun { looks: self.looks, ..launched.begun };
        b.blocks_per_sm(1);
        let tiles = Tiles::new(b);
        let answer = b.shared::<U32>("answer", 1);
        let tile = Tile::new(b, &self.types, self.width);
        let phase = |b: &mut Builder| TiledPhase::new(b, &self.shape, &launched, self.width.eights() * COLUMNS);
        let kind = |b: &mut Builder, ty: Val<U32>| {
            let [rows, cost] = [tile_rows, cost].map(|of| by_type(b, ty, &self.types, of));
            Kind { rows, cost }
        };
        tiles.each(b, phase, kind, |b, place, _| {
            let sums = tile.zeros(b);
            {
                let (TiledPhase { chosen, .. }, Piece { of, group, from, to }) = (phase(b), tiles.piece(b, place));
                let from = begun.go_on(b, from, &sums, answer);
                let product = Product {
                    of: of.matrices(b, launched.table, &chosen),
                    k: chosen.k,
                    from,
                    to,
                    is_cut: self.is_cut(),
                    of_256: launched.of_256,
                    of_32: launched.of_32,
                    first_eight: b.mul::<U32>(group, self.width.eights()),
                };
                tile.add(b, &self.types, &product, &sums);
            }
            // What the sums were computed with takes no registers meanwhile.
            b.bar_sync();
            let (phase, piece) = (phase(b), tiles.piece(b, place));
            let is_end = b.setp_eq(piece.to, phase.super_blocks);
            b.if_else(
                is_end,
                |b| {
                    let operands = Operands::new(b, &launched, &phase, (&piece, self.width.eights()));
                    self.finish(b, &operands, &phase.chosen, &piece.of, &sums);
                    let written = piece.of.written(b, &operands, piece.group, self.width.eights() * COLUMNS);
                    launched.next.round(b, &self.types, &written, (tile.room(), 1), answer);
                },
                |b| begun.leave(b, &sums),
            );
        });
    }
}
