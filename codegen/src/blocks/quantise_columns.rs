//! A column of activations rounded to bytes in device memory, by a block: staged as every product stages its vector, then
//! copied in the order that tensor cores read it in.

use super::stage::{Factors, Forms, One, Source, Staged, Wanted};
use super::tensor::vector_from_table;
use crate::formats::{Form, form, mma};
use crate::ptx::{Builder, F32, Global, Size, U8, U32, U64, Val};
use kiln_shape::columns::{COLUMNS, PLANE_BYTES, PLANES};
use kiln_shape::{Numerics, SUPER_BLOCK, WeightType};

/// What the columns are, and where they go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operands {
    pub(crate) gamma: Gamma,
    /// `[columns, k]`.
    pub(crate) x: Global<F32>,
    pub(crate) k: Val<U32>,
    pub(crate) eps: Val<F32>,
    /// Columns that are there.
    pub(crate) columns: Val<U32>,
    /// The types that they meet, of each its bit, all of one form; none where there is one form only.
    pub(crate) wanted: Option<Val<U32>>,
    /// The columns as they are rounded for those types.
    pub(crate) to: Global<U8>,
    /// `[columns]`.
    pub(crate) inverse: Global<F32>,
}

/// Where the norm's gamma is found.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Gamma {
    /// By its entry in the table; 0 for none.
    Entry { table: Global<U8>, norm: Val<U32> },
    /// There, `[k]`, or nowhere.
    Given(Global<F32>),
}

/// Rounds the column whose number the block has, of at most `most` activations.
#[track_caller]
pub(crate) fn column(b: &mut Builder, types: &[WeightType], most: u32, operands: &Operands) {
    let Operands { x, k, eps, columns, .. } = *operands;
    let mut all: Vec<Form> = types.iter().map(|ty| form(*ty, Numerics::Fast)).collect();
    all.sort();
    all.dedup();
    let forms = Forms::new(all, One::Always);
    let super_blocks = b.size_div_ceil(Size::Reg(k), SUPER_BLOCK);
    let most = most.div_ceil(SUPER_BLOCK);
    let staged = Staged::new(b, &forms, forms.words(most, true), super_blocks, most);
    let column = b.ctaid_x();
    let is_there = b.setp_lt(column, columns);
    let address = b.address(x);
    let bytes = b.shl::<U32>(k, 2);
    let own = b.mad_wide(column, bytes, address);
    let x = b.global_ptr::<F32>(own);
    let (normalised, gamma) = match operands.gamma {
        Gamma::Entry { table, norm } => (b.setp_ne(norm, 0), vector_from_table::<F32>(b, table, norm)),
        Gamma::Given(gamma) => {
            let address = b.address(gamma);
            (b.setp_ne::<U64>(address, 0u64), gamma)
        }
    };
    let gamma = Some(Factors { gamma, given: Some(normalised) });
    // A column that is not there ends before it begins.
    let left = Some(b.selp::<U32>(k, 0, is_there));
    let wanted = operands.wanted.map_or(Wanted::All, Wanted::OfTypes);
    let kind = b.kind_of_earlier();
    let asked = staged.ask(b, &Source { x, gamma, left, kind, handed: None }, super_blocks);
    staged.fill(b, &asked, wanted);
    b.bar_sync(); // the column is staged
    let scale = b.var::<F32>(1.0);
    b.if_(normalised, |b| {
        let inverse = staged.inverse_rms(b, super_blocks, Size::Reg(k), eps);
        b.set(scale, inverse);
    });
    let tid = b.tid();
    let writes = b.setp_eq(tid, 0);
    let writes = b.and_pred(writes, is_there);
    let to = b.index(operands.inverse, column);
    b.if_(writes, |b| b.st(to, scale));
    for form in &forms.all {
        let Form::Int8(group) = *form else { continue };
        let copy = |b: &mut Builder| {
            let from = staged.quantised(b, group);
            let (eight, column) = (b.div::<U32>(column, COLUMNS), b.and::<U32>(column, COLUMNS - 1));
            let first = b.mul::<U32>(eight, super_blocks);
            let (warp, warps) = (b.warp_id(), b.warps());
            b.for_range(warp, super_blocks, warps, |b, sb| {
                let at = b.add::<U32>(first, sb);
                let to = b.byte_index(operands.to, at, PLANES * PLANE_BYTES);
                let plane = from.at(b, sb);
                let second = from.second(b, plane);
                mma::write(b, to, column, group, [plane, second]);
            });
        };
        match wanted.of(b, *form) {
            Some(wanted) => b.if_(wanted, copy),
            None => copy(b),
        }
    }
}
