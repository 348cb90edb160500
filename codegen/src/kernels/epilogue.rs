use super::products::Chosen;
use crate::blocks::math;
use crate::blocks::tensor::vector_from_table;
use crate::ptx::{Builder, F32, Global, LoadKind, Pred, U8, U32, Val, Var};

/// What several columns' products become: a bias is added, or the residual, or gate and up become one.
pub(super) struct Epilogue<'a> {
    /// The tensor table.
    pub(super) table: Global<U8>,
    pub(super) chosen: &'a Chosen,
    /// The number of the products' matrix in the phase.
    pub(super) number: Val<U32>,
    /// Whether matrices of the phase `qkv` have biases.
    pub(super) qkv_bias: bool,
}

/// Where results of a row go, and stand before where the phase has a residual: `[columns, rows]`.
#[derive(Clone, Copy)]
pub(super) struct ResultRow {
    first: Global<F32>,
    /// Bytes from a column to the next.
    apart: Val<U32>,
}

impl ResultRow {
    /// That of row `row` of the phase, which has `rows`.
    pub(super) fn new(b: &mut Builder, y: Global<F32>, rows: Val<U32>, row: Val<U32>) -> ResultRow {
        ResultRow { first: b.index(y, row), apart: b.shl::<U32>(rows, 2) }
    }

    /// The place of a column's result. Results of a batch may be more than 32 bits count.
    pub(super) fn of(self, b: &mut Builder, column: Val<U32>) -> Global<F32> {
        let first = b.address(self.first);
        let at = b.mad_wide(column, self.apart, first);
        b.global_ptr(at)
    }
}

/// A product with its column's factor in it.
#[derive(Clone, Copy)]
pub(super) struct Scaled {
    /// Its row in the matrix.
    pub(super) row: Val<U32>,
    pub(super) place: Global<F32>,
    /// Whether its result is written.
    pub(super) there: Val<Pred>,
    pub(super) value: Var<F32>,
    /// The products with gate and up, where this may be their result.
    pub(super) pair: Option<(Var<F32>, Val<F32>)>,
}

impl Scaled {
    /// Those of an eight of columns with two sixteens of rows, of a pair one of either, in the order of the result's registers.
    /// A lane has four rows, each with whether it is there, and two columns: the place of the first row's result in each.
    pub(super) fn of_sixteens(
        b: &mut Builder,
        rows: &[(Val<U32>, Val<Pred>)],
        columns: [(Global<F32>, Val<Pred>); 2],
        scaled: &[[Val<F32>; 4]],
    ) -> Vec<Scaled> {
        let mut products = Vec::new();
        for (sixteen, values) in scaled.iter().enumerate() {
            for (i, value) in values.iter().enumerate() {
                let eight = 2 * sixteen + i / 2;
                let ((row, in_rows), (column, in_columns)) = (rows[eight], columns[i % 2]);
                let there = b.and_pred(in_columns, in_rows);
                let place = column.at(8 * eight as u32);
                let value = b.var::<F32>(*value);
                let pair = (sixteen == 0).then(|| (value, scaled[1][i]));
                products.push(Scaled { row, place, there, value, pair });
            }
        }
        products
    }
}

impl Epilogue<'_> {
    /// Makes a lane's products with one matrix results, and writes those that are there. What is added to them is loaded for
    /// all before the first waits for it.
    pub(super) fn write(&self, b: &mut Builder, products: &[Scaled]) {
        if self.qkv_bias {
            b.if_(self.chosen.is_qkv, |b| {
                let entry = b.add::<U32>(self.chosen.bias, self.number);
                let bias = vector_from_table::<F32>(b, self.table, entry);
                add(b, products, |b, Scaled { row, there, .. }| {
                    let row = b.selp::<U32>(row, 0, there);
                    b.index(bias, row)
                });
            });
        }
        b.if_(self.chosen.has_residual, |b| {
            // For a result that is not there some word that nobody writes is loaded.
            let none = self.table.cast::<F32>();
            add(b, products, |b, Scaled { place, there, .. }| b.select_ptr(place, none, there));
        });
        b.if_(self.chosen.is_gate_up, |b| {
            let pairs: Vec<_> =
                products.iter().filter_map(|of| of.pair.map(|(gate, up)| (of.value, gate, up))).collect();
            let (fours, rest) = pairs.as_chunks::<4>();
            fours.iter().for_each(|four| activate(b, *four));
            rest.iter().for_each(|one| activate(b, [*one]));
        });
        for product in products {
            b.if_(product.there, |b| b.st(product.place, product.value));
        }
    }
}

/// Makes products with gate and up one, some side by side.
fn activate<const N: usize>(b: &mut Builder, of: [(Var<F32>, Var<F32>, Val<F32>); N]) {
    let gates = of.map(|(_, gate, _)| b.get(gate));
    let activated = math::silus(b, gates);
    for ((value, _, up), activated) in of.into_iter().zip(activated) {
        let product = b.mul(activated, up);
        b.set(value, product);
    }
}

/// Adds to each product what stands at its place.
fn add(b: &mut Builder, products: &[Scaled], mut from: impl FnMut(&mut Builder, Scaled) -> Global<F32>) {
    let mut load = |product: &Scaled| {
        let at = from(b, *product);
        b.ld(at, LoadKind::Ordinary)
    };
    let addends: Vec<Val<F32>> = products.iter().map(&mut load).collect();
    for (product, addend) in products.iter().zip(addends) {
        let sum = b.add(product.value, addend);
        b.set(product.value, sum);
    }
}
