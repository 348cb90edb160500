use super::Kernel;
use super::epilogue::{Epilogue, ResultRow, Scaled};
use super::gemm::Launched;
use super::products::Chosen;
use super::tiles::{OfTile, Operands, TiledPhase, Tiles};
use crate::blocks::gemm_sliced::{Cut, Product, Tile};
use crate::ptx::{Builder, U32, Val};
use kiln_shape::columns::{COLUMNS, TILE_EIGHTS as EIGHTS};
use kiln_shape::sliced::{OF_WARP, WARPS};
use kiln_shape::{ModelShape, Numerics, SUPER_BLOCK, WeightType};

/// The phases of a layer, and the head, for up to some hundred columns: a block a tile of 64 columns and of as many rows as a
/// launch says, the tiles of each matrix on their own. Of gate and up, which must be of one type, a tile has half of its rows
/// each. Each column has the bits that [`super::Products`] gives it. Where the next phase takes the results they are rounded
/// to bytes for it, as [`super::Quantise`] does.
#[derive(Debug, Clone, PartialEq)]
pub struct GemmSliced {
    shape: ModelShape,
    types: Vec<WeightType>,
    /// Warps that have the same rows.
    parts: u32,
}

impl GemmSliced {
    /// For a model with matrices of those of `types` that fast numerics have for it.
    pub fn new(shape: ModelShape, types: &[WeightType]) -> GemmSliced {
        let types = types.iter().copied().filter(|ty| ty.is_quantised() && Numerics::Fast.takes(*ty, &shape)).collect();
        GemmSliced { shape, types, parts: 1 }
    }

    /// The same where two warps of a slice have the same rows, each with half of the columns: for launches whose shared memory
    /// has room for few slices.
    #[must_use]
    pub fn halved(self) -> GemmSliced {
        GemmSliced { parts: 2, ..self }
    }

    /// Whether rows may end within a super-block.
    fn is_cut(&self) -> bool {
        let ModelShape { hidden, ffn, .. } = self.shape;
        [hidden, ffn, self.shape.q_dim()].iter().any(|k| !k.is_multiple_of(SUPER_BLOCK))
    }

    /// The results of the block: a warp has an eight of columns of two sixteens of rows at a time.
    fn finish(
        &self,
        b: &mut Builder,
        operands: &Operands,
        (chosen, of): (&Chosen, &OfTile),
        (tile, row_warps): (&Tile, Val<U32>),
    ) {
        let (warp, lane) = (b.warp_id(), b.lane());
        let (group, pair) = (b.shr::<U32>(lane, 2), b.and::<U32>(lane, 3));
        let end = b.add::<U32>(of.first, of.rows_of_tile);
        let end = b.min::<U32>(end, of.rows);
        let last = b.sub::<U32>(operands.columns, 1);
        let no_pair = b.not_pred(chosen.is_gate_up);
        let Operands { table, y, rows, .. } = *operands;
        let epilogue = Epilogue { table, chosen, number: of.number, qkv_bias: self.shape.qkv_bias };
        let units = b.mul::<U32>(row_warps, EIGHTS);
        let warps = b.warps();
        b.for_range(warp, units, warps, |b, unit| {
            let (two, eight) = (b.shr::<U32>(unit, EIGHTS.trailing_zeros()), b.and::<U32>(unit, EIGHTS - 1));
            let each = b.selp::<U32>(OF_WARP / 2, OF_WARP, chosen.is_gate_up);
            let row = b.mad::<U32>(two, each, group);
            let row = b.add::<U32>(row, of.first);
            let in_phase = b.add::<U32>(of.from, row);
            let results = ResultRow::new(b, y, rows, in_phase);
            // The lane's rows, each eight behind the one before.
            let own = [0, 1, 2, 3].map(|eight: u32| {
                let row = b.add::<U32>(row, 8 * eight);
                let inside = b.setp_lt(row, end);
                (row, if eight < 2 { inside } else { b.and_pred(inside, no_pair) })
            });
            let column = b.add::<U32>(operands.first_eight, eight);
            let column = b.mul::<U32>(column, COLUMNS);
            let column = b.mad::<U32>(pair, 2, column);
            let columns = [0, 1].map(|next| b.add::<U32>(column, next));
            let inverses = columns.map(|column| {
                let column = b.min::<U32>(column, last);
                let at = b.index(operands.inverse, column);
                let kind = b.kind_of_earlier();
                b.ld(at, kind)
            });
            let columns = columns.map(|column| (results.of(b, column), b.setp_lt(column, operands.columns)));
            let first = b.shl::<U32>(two, 1);
            let scaled = [0, 1].map(|further| {
                let sixteen = b.add::<U32>(first, further);
                let sums = tile.sums(b, sixteen, eight);
                std::array::from_fn::<_, 4, _>(|i| b.mul(sums[i], inverses[i % 2]))
            });
            let products = Scaled::of_sixteens(b, &own, columns, &scaled);
            epilogue.write(b, &products);
        });
    }
}

impl Kernel for GemmSliced {
    fn name(&self) -> &str {
        if self.parts == 1 { "gemm_sliced" } else { "gemm_sliced_2" }
    }

    fn block(&self) -> u32 {
        32 * WARPS
    }

    fn check(&self) -> Result<(), String> {
        super::Gemm::wide(self.shape, &self.types).check()
    }

    fn build(&self, b: &mut Builder) {
        let launched = Launched::new(b);
        let cut = Cut {
            row_warps: b.param::<U32>("row_warps"), // each has 32 of a tile's rows
            slices: b.param::<U32>("slices"),       // of so many warps each, for each part of the columns
            stages: b.param::<U32>("stages"),       // of dynamic shared memory, more than slices
        };
        b.blocks_per_sm(1);
        let tiles = Tiles::new(b);
        let answer = b.shared::<U32>("answer", 1);
        let tile = Tile::new(b, cut, self.parts);
        let phase = |b: &mut Builder| TiledPhase::new(b, &self.shape, &launched, EIGHTS * COLUMNS);
        let warp = b.warp_id();
        let leads = b.setp_eq(warp, 0);
        b.if_(leads, |b| {
            let phase = phase(b);
            let rows = b.mul::<U32>(cut.row_warps, OF_WARP);
            tiles.note_own(b, &phase, rows);
        });
        b.bar_sync(); // the tile is noted, mbarriers are made, sums are zero
        let first = b.mov::<U32>(0);
        {
            let (TiledPhase { chosen, .. }, piece) = (phase(b), tiles.piece(b, first));
            let product = Product {
                of: piece.of.matrices(b, launched.table, &chosen),
                k: chosen.k,
                is_cut: self.is_cut(),
                of_256: launched.of_256,
                of_32: launched.of_32,
                first_eight: b.mul::<U32>(piece.group, EIGHTS),
            };
            tile.add(b, &self.types, &product);
        }
        b.bar_sync(); // all warps have added their values
        let (phase, piece) = (phase(b), tiles.piece(b, first));
        let operands = Operands::new(b, &launched, &phase, (&piece, EIGHTS));
        self.finish(b, &operands, (&phase.chosen, &piece.of), (&tile, cut.row_warps));
        let written = piece.of.written(b, &operands, piece.group, EIGHTS * COLUMNS);
        launched.next.round(b, &self.types, &written, (tile.room(), 1), answer);
    }
}
