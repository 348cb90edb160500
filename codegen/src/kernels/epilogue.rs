use super::products::Chosen;
use crate::blocks::math;
use crate::blocks::tensor::vector_from_table;
use crate::ptx::{Builder, F32, Global, LoadKind, Pred, U8, U32, U64, Val, Var};

/// What several columns' products become: a bias is added, or the residual, or gate and up become one.
pub(super) struct Epilogue<'a> {
    /// The tensor table.
    pub(super) table: Global<U8>,
    /// `[columns, rows]`: results, and before them the residual where the phase has one.
    pub(super) y: Global<F32>,
    /// Rows of the phase, from a column's results to the next column's.
    pub(super) rows: Val<U32>,
    pub(super) chosen: &'a Chosen,
    /// Whether matrices of the phase `qkv` have biases.
    pub(super) qkv_bias: bool,
}

/// Whose product it is.
#[derive(Clone, Copy)]
pub(super) struct Of {
    /// The number of its matrix in the phase.
    pub(super) number: Val<U32>,
    /// Its row, to which `in_matrix` and `in_phase` are added where there they are.
    pub(super) row: Val<U32>,
    pub(super) in_matrix: Option<Val<U32>>,
    pub(super) in_phase: Val<U32>,
    pub(super) column: Val<U32>,
}

/// A product with its column's factor in it.
#[derive(Clone, Copy)]
pub(super) struct Scaled {
    pub(super) of: Of,
    /// Whether its result is written.
    pub(super) there: Val<Pred>,
    pub(super) value: Var<F32>,
    /// The products with gate and up, where this may be their result.
    pub(super) pair: Option<(Var<F32>, Val<F32>)>,
}

impl Epilogue<'_> {
    /// Makes a lane's products with one matrix results, and writes those that are there. What is added to them is loaded for
    /// all before the first waits for it.
    pub(super) fn write(&self, b: &mut Builder, products: &[Scaled]) {
        let Some(first) = products.first() else { return };
        if self.qkv_bias {
            b.if_(self.chosen.is_qkv, |b| {
                let entry = b.add::<U32>(self.chosen.bias, first.of.number);
                let bias = vector_from_table::<F32>(b, self.table, entry);
                add(b, products, |b, Scaled { of, there, .. }| {
                    let row = of.in_matrix.map_or(of.row, |first| b.add::<U32>(first, of.row));
                    let row = b.selp::<U32>(row, 0, there);
                    b.index(bias, row)
                });
            });
        }
        let places: Vec<_> = products.iter().map(|product| self.place(b, product.of)).collect();
        b.if_(self.chosen.has_residual, |b| {
            // For a result that is not there some word that nobody writes is loaded.
            let none = self.table.cast::<F32>();
            let mut places = places.iter();
            add(b, products, |b, product| {
                let own = places.next().copied().unwrap_or(none);
                b.select_ptr(own, none, product.there)
            });
        });
        b.if_(self.chosen.is_gate_up, |b| {
            let pairs: Vec<_> = products.iter().filter_map(|of| of.pair.map(|pair| (of.value, pair))).collect();
            let (fours, rest) = pairs.as_chunks::<4>();
            fours.iter().for_each(|four| activate(b, *four));
            rest.iter().for_each(|one| activate(b, [*one]));
        });
        for (product, place) in products.iter().zip(places) {
            b.if_(product.there, |b| b.st(place, product.value));
        }
    }

    /// The place of a result. Results of a batch may be more than 32 bits count.
    fn place(&self, b: &mut Builder, of: Of) -> Global<F32> {
        let row = b.add::<U32>(of.in_phase, of.row);
        let before = b.mad_wide(of.column, self.rows, 0u64);
        let own = b.cvt(row);
        let at = b.add::<U64>(before, own);
        let bytes = b.shl::<U64>(at, 2);
        let y = b.address(self.y);
        let y = b.add::<U64>(y, bytes);
        b.global_ptr::<F32>(y)
    }
}

/// Makes products with gate and up one, some side by side.
fn activate<const N: usize>(b: &mut Builder, of: [(Var<F32>, (Var<F32>, Val<F32>)); N]) {
    let gates = of.map(|(_, (gate, _))| b.get(gate));
    let activated = math::silus(b, gates);
    for ((value, (_, up)), activated) in of.into_iter().zip(activated) {
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
