use super::Kernel;
use super::epilogue::{Epilogue, ResultRow, Scaled};
use super::gemm::Launched;
use super::products::Chosen;
use super::tiles::{Kind, OfTile, Operands, Piece, TiledPhase, Tiles};
use crate::blocks::begun::{Begun, LOOKS};
use crate::blocks::gemm_tile::{self, Sums};
use crate::blocks::gemm_warpgroups::{
    AHEAD, Begin, EIGHTS, HALF, OF_WARP, Product, ROUNDED, ROWS, Tile, WARPS, own_row,
};
use crate::blocks::tensor::by_type;
use crate::formats::format;
use crate::ptx::{Builder, F32, LoadKind, Pred, Shared, U32, Val, Var};
use kiln_shape::columns::COLUMNS;
use kiln_shape::{ModelShape, Numerics, SUPER_BLOCK, WeightType};

/// The time of a super-block of a tile: instructions of a warp for each two `m16n8k32`, as `codegen/loops.txt` counts them.
const fn cost(ty: WeightType) -> u32 {
    match ty {
        WeightType::Q4_K => 15,
        WeightType::Q5_K => 20,
        _ => 18,
    }
}

/// Eights of columns whose results a lane has at once.
const AT_ONCE: u32 = 8;

/// The phases of a layer for many columns, in tiles of 128 rows and 128 columns by products of warpgroups, which a chip of
/// compute capability 9.0 has: any number of blocks, as [`super::GemmTile`] has it, and the same bits. Takes phases whose matrices
/// are all of types with integer scales.
#[derive(Debug, Clone, PartialEq)]
pub struct GemmWarpgroups {
    shape: ModelShape,
    types: Vec<WeightType>,
    looks: u32,
    /// Those that results may meet in the next phase.
    next: Vec<WeightType>,
}

impl GemmWarpgroups {
    /// Tiles for a model with matrices of those of `types` that it takes.
    pub fn new(shape: ModelShape, types: &[WeightType]) -> GemmWarpgroups {
        let next = types.iter().copied().filter(|ty| ty.is_quantised() && Numerics::Fast.takes(*ty, &shape)).collect();
        let types = types.iter().copied().filter(|ty| format(*ty).warpgroup().is_some()).collect();
        GemmWarpgroups { shape, types, looks: LOOKS, next }
    }

    /// The same, as [`super::GemmTile::with_looks`] has it.
    #[must_use]
    pub fn with_looks(self, looks: u32) -> GemmWarpgroups {
        GemmWarpgroups { looks, ..self }
    }

    /// Notes where a piece's copies begin, and those of the next piece where this goes on. By the whole block, of which a thread
    /// of the last warp does it; a barrier of the block must follow.
    fn note_copies(
        &self,
        b: &mut Builder,
        launched: &Launched,
        (tiles, tile): (&Tiles, &Tile),
        (phase, [place, number]): (&TiledPhase<'_>, [Val<U32>; 2]),
        goes_on: Val<Pred>,
    ) {
        let warp = b.warp_id();
        let is_last = b.setp_eq(warp, WARPS - 1);
        b.if_(is_last, |b| {
            let leads = b.elect();
            b.if_(leads, |b| {
                let is_pair = phase.chosen.is_gate_up;
                let begin = |b: &mut Builder, piece: &Piece| {
                    let second = b.add::<U32>(piece.of.first, HALF);
                    let second = b.selp::<U32>(piece.of.first, second, is_pair);
                    Begin { rows: [piece.of.first, second], eight: b.mul::<U32>(piece.group, EIGHTS) }
                };
                let piece = tiles.piece(b, place);
                let own = begin(b, &piece);
                let next = b.add::<U32>(number, 1);
                let follows = tiles.goes_on(b, next, AHEAD);
                // Where none goes on this piece stands for it.
                let further = b.selp::<U32>(1, 0, follows);
                let next = b.add::<U32>(place, further);
                let next = tiles.piece(b, next);
                let next = begin(b, &next);
                tile.note_begin(b, own, next, follows);
                let begins = b.not_pred(goes_on);
                b.if_(begins, |b| {
                    let maps = piece.of.maps(b, launched.table, &phase.chosen);
                    tile.note_maps(b, maps, launched.maps);
                });
            });
        });
    }

    /// The results of a lane, some eights of columns after others.
    fn finish(
        &self,
        b: &mut Builder,
        (operands, inverses): (&Operands, Shared<F32>),
        chosen: &Chosen,
        of: &OfTile,
        sums: &Sums,
    ) {
        let (warp, lane) = (b.warp_id(), b.lane());
        let (own, pair) = (own_row(b), b.and::<U32>(lane, 3));
        let row = b.mad::<U32>(warp, OF_WARP, own);
        let row = b.add::<U32>(row, of.first);
        let end = b.add::<U32>(of.first, of.rows_of_tile);
        let end = b.min::<U32>(end, of.rows);
        let first_column = b.mul::<U32>(operands.first_eight, COLUMNS);
        let first_column = b.mad::<U32>(pair, 2, first_column);
        let inverses = b.byte_index(inverses, pair, 8);
        let no_pair = b.not_pred(chosen.is_gate_up);
        let Operands { table, y, rows, .. } = *operands;
        let epilogue = Epilogue { table, chosen, number: of.number, qkv_bias: self.shape.qkv_bias };
        let in_phase = b.add::<U32>(of.from, row);
        let results = ResultRow::new(b, y, rows, in_phase);
        // Of gate and up the second half of the rows are the other matrix's.
        let upper = b.add::<U32>(row, HALF);
        let [in_rows, has_upper] = [row, upper].map(|row| b.setp_lt(row, end));
        let has_upper = b.and_pred(has_upper, no_pair);
        let own = [(row, in_rows), (upper, has_upper)];
        b.for_range(0, EIGHTS / AT_ONCE, 1, |b, some| {
            let column = b.mad::<U32>(some, AT_ONCE * COLUMNS, first_column);
            let inverses = b.byte_index(inverses, some, 4 * AT_ONCE * COLUMNS);
            let mut products = Vec::new();
            for (values, number) in sums.iter().take(AT_ONCE as usize).zip(0..) {
                let columns = [0, 1].map(|next| {
                    let column = b.add::<U32>(column, number * COLUMNS + next);
                    (results.of(b, column), b.setp_lt(column, operands.columns))
                });
                // Constant from the first barrier on.
                let inverses: [Val<F32>; 2] = b.ld_vector(inverses.at(number * COLUMNS), LoadKind::Constant);
                let scaled: [Val<F32>; 4] = std::array::from_fn(|i| b.mul(values[i], inverses[i % 2]));
                for (i, value) in scaled.into_iter().enumerate() {
                    let ((row, in_rows), (column, in_columns)) = (own[i / 2], columns[i % 2]);
                    let there = b.and_pred(in_columns, in_rows);
                    let place = column.at(HALF * (i / 2) as u32);
                    let value = b.var::<F32>(value);
                    let pair = (i < 2).then(|| (value, scaled[i + 2]));
                    products.push(Scaled { row, place, there, value, pair });
                }
            }
            epilogue.write(b, &products);
            let sums: Vec<Var<F32>> = sums.iter().flatten().copied().collect();
            gemm_tile::rotate_by(b, &sums, 4 * AT_ONCE as usize);
        });
    }
}

impl Kernel for GemmWarpgroups {
    fn name(&self) -> &str {
        "gemm_warpgroups"
    }

    fn block(&self) -> u32 {
        32 * WARPS
    }

    fn check(&self) -> Result<(), String> {
        let ModelShape { hidden, ffn, .. } = self.shape;
        if let Some(k) = [hidden, ffn, self.shape.q_dim()].into_iter().find(|k| !k.is_multiple_of(SUPER_BLOCK)) {
            return Err(format!("a matrix has {k} weights in a row: needs whole super-blocks of {SUPER_BLOCK}"));
        }
        if self.types.is_empty() {
            return Err("no type of weights with integer scales: needs at least one of Q4_K, Q5_K, Q6_K".to_owned());
        }
        super::Gemm::wide(self.shape, &self.types).check()
    }

    fn build(&self, b: &mut Builder) {
        let launched = Launched::new(b);
        let begun = Begun { looks: self.looks, ..launched.begun };
        b.blocks_per_sm(1);
        let tiles = Tiles::new(b);
        let answer = b.shared::<U32>("answer", 1);
        let inverses = b.shared::<F32>("inverses", EIGHTS * COLUMNS);
        let tile = Tile::new(b, &self.types);
        let phase = |b: &mut Builder| TiledPhase::new(b, &self.shape, &launched, EIGHTS * COLUMNS);
        let kind =
            |b: &mut Builder, ty: Val<U32>| Kind { rows: b.mov::<U32>(ROWS), cost: by_type(b, ty, &self.types, cost) };
        tiles.each(b, phase, kind, |b, place, number| {
            let sums = Tile::zeros(b);
            {
                let (phase, piece) = (phase(b), tiles.piece(b, place));
                let goes_on = tiles.goes_on(b, number, AHEAD);
                self.note_copies(b, &launched, (&tiles, &tile), (&phase, [place, number]), goes_on);
                note_inverses(b, &launched, piece.group, inverses);
                let from = begun.go_on(b, piece.from, &sums, answer);
                b.bar_sync(); // where copies begin, and the columns' factors, are noted
                let product = Product {
                    ty: tiles.ty(b, piece.of.number),
                    of: &|b| piece.of.matrices(b, launched.table, &phase.chosen),
                    super_blocks: phase.super_blocks,
                    from,
                    to: piece.to,
                    columns: launched.of_256,
                    first_eight: b.mul::<U32>(piece.group, EIGHTS),
                    goes_on,
                };
                tile.add(b, &self.types, &product, &sums);
            }
            // What the sums were computed with takes no registers meanwhile. A warpgroup goes on while the other one
            // multiplies.
            b.bar_warp_sync();
            let (phase, piece) = (phase(b), tiles.piece(b, place));
            let is_end = b.setp_eq(piece.to, phase.super_blocks);
            b.if_else(
                is_end,
                |b| {
                    let operands = Operands::new(b, &launched, &phase, (&piece, EIGHTS));
                    self.finish(b, (&operands, inverses), &phase.chosen, &piece.of, &sums);
                    let written = piece.of.written(b, &operands, piece.group, EIGHTS * COLUMNS);
                    let ty = tiles.ty(b, piece.of.number);
                    let room = tile.room(b, &self.types, ty);
                    launched.next.round(b, &self.next, &written, (room, ROUNDED), answer);
                },
                |b| begun.leave(b, &sums),
            );
            b.fence_proxy_async(); // what rounding wrote to a stage comes before its next copy
        });
    }
}

/// Puts the factors of a tile's columns in shared memory; of columns that are not there the last one's. By the whole block.
fn note_inverses(b: &mut Builder, launched: &Launched, group: Val<U32>, to: Shared<F32>) {
    let tid = b.tid();
    let has_column = b.setp_lt(tid, EIGHTS * COLUMNS);
    b.if_(has_column, |b| {
        let last = b.sub::<U32>(launched.columns, 1);
        let column = b.mad::<U32>(group, EIGHTS * COLUMNS, tid);
        let column = b.min::<U32>(column, last);
        let at = b.index(launched.inverse, column);
        let kind = b.kind_of_earlier();
        let factor = b.ld(at, kind);
        let to = b.index(to, tid);
        b.st(to, factor);
    });
}
