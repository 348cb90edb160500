use super::Kernel;
use super::epilogue::{Epilogue, ResultRow, Scaled};
use super::products::Chosen;
use crate::blocks::begun::{Begun, LOOKS};
use crate::blocks::dependent;
use crate::blocks::gemm::{Product, ROWS, Tiles, WARPS, of_thread};
use crate::blocks::next_columns::{Next, Written};
use crate::blocks::rounded_columns::Rounded;
use crate::blocks::tensor::Tensor;
use crate::ptx::{Builder, F32, Global, U8, U32, Val, Var};
use kiln_shape::columns::COLUMNS;
use kiln_shape::table::{LAYER_SLOTS, MODEL_SLOTS};
use kiln_shape::{ModelShape, Numerics, SUPER_BLOCK, WeightType};

/// The phases of a layer for several columns at once, by tensor cores, in one text: which phase it is, a launch says. Grid
/// `[columns / width, rows / 16]`, rounded up: blocks of the same rows run beside each other and share what they read of
/// the weights. Each column has the bits that [`super::Products`] gives it. Where the next phase takes the results they are
/// rounded to bytes for it, as [`super::Quantise`] does.
#[derive(Debug, Clone, PartialEq)]
pub struct Gemm {
    shape: ModelShape,
    types: Vec<WeightType>,
    /// Eights of columns of a tile.
    eights: u32,
}

impl Gemm {
    /// Tiles of eight columns: for a few sequences, or the end of a prompt.
    pub fn narrow(shape: ModelShape, types: &[WeightType]) -> Gemm {
        Gemm::new(shape, types, 1)
    }

    /// Tiles of 16 columns.
    pub fn wide(shape: ModelShape, types: &[WeightType]) -> Gemm {
        Gemm::new(shape, types, 2)
    }

    fn new(shape: ModelShape, types: &[WeightType], eights: u32) -> Gemm {
        let types = types.iter().copied().filter(|ty| ty.is_quantised() && Numerics::Fast.takes(*ty, &shape)).collect();
        Gemm { shape, types, eights }
    }

    /// An error unless tiles of 16 rows lie in one matrix each.
    pub(super) fn check_rows(shape: &ModelShape) -> Result<(), String> {
        let ModelShape { hidden, ffn, .. } = *shape;
        match [hidden, ffn, shape.q_dim(), shape.kv_dim()].into_iter().find(|rows| *rows == 0 || rows % 32 != 0) {
            Some(rows) => Err(format!("a matrix has {rows} rows or columns: needs a multiple of 32")),
            None => Ok(()),
        }
    }

    /// The results of a thread: of its row and a column of each eight.
    fn finish(&self, b: &mut Builder, operands: &Operands, chosen: &Chosen, matrix: &InPhase, sums: &[Val<F32>]) {
        let (row, column) = of_thread(b);
        let Operands { table, y, rows, .. } = *operands;
        let epilogue = Epilogue { table, chosen, number: matrix.number, qkv_bias: self.shape.qkv_bias };
        let in_phase = b.add::<U32>(operands.first_row, row);
        let results = ResultRow::new(b, y, rows, in_phase);
        let row = b.add::<U32>(matrix.first, row);
        let last = b.sub::<U32>(operands.columns, 1);
        let writes = b.setp_ge(matrix.number, chosen.unwritten);
        let each = sums.iter().zip(operands.gates.iter().zip(0..)).map(|(sum, (gate, eight))| {
            let eight = b.add::<U32>(operands.first_eight, eight);
            let column = b.mad::<U32>(eight, COLUMNS, column);
            let is_there = b.setp_lt(column, operands.columns);
            let factor = b.min::<U32>(column, last);
            let factor = b.index(operands.inverse, factor);
            let kind = b.kind_of_earlier();
            let factor = b.ld(factor, kind);
            let scaled = b.mul(*sum, factor);
            let place = results.of(b, column);
            let there = b.and_pred(is_there, writes);
            (Scaled { row, place, there, value: b.var::<F32>(scaled), pair: Some((*gate, scaled)) }, *gate, scaled)
        });
        let each: Vec<_> = each.collect();
        let products: Vec<Scaled> = each.iter().map(|(product, ..)| *product).collect();
        epilogue.write(b, &products);
        each.iter().for_each(|(_, gate, scaled)| b.set(*gate, *scaled));
    }
}

/// What a launch works on.
struct Operands {
    table: Global<U8>,
    inverse: Global<F32>,
    y: Global<F32>,
    /// Columns that are there.
    columns: Val<U32>,
    /// Rows of the phase, from a column's results to the next column's.
    rows: Val<U32>,
    first_row: Val<U32>,
    first_eight: Val<U32>,
    /// The products with the matrix before.
    gates: Vec<Var<F32>>,
}

/// What launches of any tile give.
pub(super) struct Launched {
    pub(super) table: Global<U8>,
    pub(super) layer: Val<U32>,
    pub(super) phase: Val<U32>,
    pub(super) of_256: Global<U8>,
    pub(super) of_32: Global<U8>,
    /// Tensor maps of `of_256`, one for each of `columns::BOXES`, where the launch has them.
    pub(super) maps: Global<U8>,
    pub(super) inverse: Global<F32>,
    pub(super) columns: Val<U32>,
    pub(super) y: Global<F32>,
    pub(super) vocab: Val<U32>,
    pub(super) next: Next,
    pub(super) begun: Begun,
}

impl Launched {
    /// Declares the parameters.
    pub(super) fn new(b: &mut Builder) -> Launched {
        let table = b.param::<Global<U8>>("table"); // the tensor table
        Launched {
            table,
            layer: b.param::<U32>("layer"),             // its number
            phase: b.param::<U32>("phase"),             // which one; the head for tiles that take it
            of_256: b.param::<Global<U8>>("of_256"),    // the columns, as `quantise` writes them
            of_32: b.param::<Global<U8>>("of_32"),      // the same with a scale for each 32
            maps: b.param::<Global<U8>>("maps"),        // of `of_256`, for tiles that copy by them
            inverse: b.param::<Global<F32>>("inverse"), // [columns]
            columns: b.param::<U32>("columns"),         // those that are there
            y: b.param::<Global<F32>>("y"),             // [columns, rows of the phase]
            vocab: b.param::<U32>("vocab"),             // rows of the head, for tiles that take it
            next: next(b, table),
            begun: Begun {
                sums: b.param::<Global<F32>>("begun"), // [blocks, a tile], for tiles that blocks begin and end
                words: b.param::<Global<U32>>("begun_words"), // [blocks], zeros before and after
                looks: LOOKS,
            },
        }
    }
}

/// What becomes of a phase's results, as launches give it.
fn next(b: &mut Builder, table: Global<U8>) -> Next {
    Next {
        table,
        rounded: rounded(b),
        norm: b.param::<U32>("next_norm"), // the entry of the gamma before that, or 0 for none
        eps: b.param::<F32>("eps"),        // of the norm
        squares: b.param::<Global<F32>>("squares"), // [columns, rows / 256]
        inverse: b.param::<Global<F32>>("next_inverse"), // [columns]
        arrivals: b.param::<Global<U32>>("arrivals"), // [columns / width, rows / 256 + 1], zeros before and after
    }
}

/// Where results are rounded to, as launches give it.
pub(super) fn rounded(b: &mut Builder) -> Rounded {
    Rounded {
        wanted: b.param::<U32>("next_types"), // of each type that the results meet its bit; 0: they are not rounded
        of_256: b.param::<Global<U8>>("next_256"), // [columns, rows] rounded, as `quantise` writes them
        of_32: b.param::<Global<U8>>("next_32"), // the same with a scale for each 32
    }
}

/// A matrix of the phase.
struct InPhase {
    number: Val<U32>,
    /// The tile's first row in it.
    first: Val<U32>,
}

impl Kernel for Gemm {
    fn name(&self) -> &str {
        if self.eights == 1 { "gemm_8" } else { "gemm_16" }
    }

    fn block(&self) -> u32 {
        32 * WARPS
    }

    fn check(&self) -> Result<(), String> {
        if self.types.is_empty() {
            return Err("no quantised type of weights: needs at least one".to_owned());
        }
        Gemm::check_rows(&self.shape)
    }

    fn build(&self, b: &mut Builder) {
        let Launched { table, layer, phase, of_256, of_32, inverse, columns, y, next, .. } = Launched::new(b);
        let answer = b.shared::<U32>("answer", 1);
        b.blocks_per_sm(if self.eights == 1 { 4 } else { 3 });
        let layer = b.mad::<U32>(layer, LAYER_SLOTS, MODEL_SLOTS);
        let chosen = Chosen::new(b, &self.shape, phase, layer);
        let ModelShape { hidden, ffn, .. } = self.shape;
        let q = self.shape.q_dim();
        let rows = chosen.rows(b, &self.shape, None);
        let (group, tile) = (b.ctaid_x(), b.ctaid_y());
        let first_row = b.mul::<U32>(tile, ROWS);
        let first_eight = b.mul::<U32>(group, self.eights);
        let gates = (0..self.eights).map(|_| b.var(0.0)).collect();
        let operands = Operands { table, inverse, y, columns, rows, first_row, first_eight, gates };
        let tiles = Tiles::new(b, &self.types, self.eights);
        dependent::wait(b);
        b.for_range(0, chosen.matrices, 1, |b, number| {
            let (from, to) = chosen.rows_of(b, &self.shape, number);
            let (above, below) = (b.setp_ge(first_row, from), b.setp_lt(first_row, to));
            let own = b.and_pred(above, below);
            b.if_(own, |b| {
                let entry = b.add::<U32>(chosen.weight, number);
                let tensor = Tensor::from_table(b, table, entry);
                let first = b.sub::<U32>(first_row, from);
                let is_cut = [hidden, ffn, q].iter().any(|k| !k.is_multiple_of(SUPER_BLOCK));
                let product = Product { tensor, first, k: chosen.k, is_cut, of_256, of_32, first_eight };
                let sums = tiles.sums(b, &self.types, &product);
                self.finish(b, &operands, &chosen, &InPhase { number, first }, &sums);
            });
        });
        let end = b.add::<U32>(first_row, ROWS);
        let end = b.min::<U32>(end, rows);
        let width = self.eights * COLUMNS;
        let written = Written { y, columns, rows, first: first_row, end, tile: group, width };
        next.round(b, &self.types, &written, (tiles.room(), 1), answer);
    }
}
