//! Super-blocks of columns that a block has written: its warps read them back and round them to bytes, in the order that
//! tensor cores read them in.

use super::quantise::{self, Rare};
use super::stage::{Wanted, eight};
use crate::formats::{Form, Quantised, ScaleGroup, form, mma};
use crate::ptx::{Builder, F32, Global, LoadKind, Shared, Size, U8, U32, Val, Var};
use kiln_shape::columns::{COLUMNS, PLANE_BYTES, PLANES};
use kiln_shape::{Numerics, SUPER_BLOCK, WeightType};

/// Columns of a pair.
const PAIR: u32 = 2;

/// Words of shared memory that a warp takes which rounds so many pairs of columns beside each other.
pub(crate) const fn words(pairs: u32) -> u32 {
    pairs * PAIR * Quantised::WORDS + Quantised::PADDING
}

/// Where rounded columns go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rounded {
    /// The types that they meet, of each its bit; 0 where none are rounded.
    pub(crate) wanted: Val<U32>,
    /// The columns, with one scale for 256 and with one for each 32.
    pub(crate) of_256: Global<U8>,
    pub(crate) of_32: Global<U8>,
}

/// A warp's share of columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    /// `[columns, rows]`.
    pub(crate) y: Global<F32>,
    pub(crate) rows: Val<U32>,
    /// The warp's first one, the one behind the last of all, and from one of the warp's to its next.
    pub(crate) own: Val<U32>,
    pub(crate) end: Val<U32>,
    pub(crate) apart: u32,
}

impl Rounded {
    /// Rounds super-block `sb` of the warp's columns, for products with weights of `types`, one or two pairs of them beside each
    /// other. `scale` may change values of a pair before that. `room` is [`words`] of shared memory that nobody else has.
    #[track_caller]
    pub(crate) fn super_block(
        &self,
        b: &mut Builder,
        types: &[WeightType],
        of: &Share,
        [sb, super_blocks]: [Val<U32>; 2],
        (room, pairs): (Shared<U32>, u32),
        scale: impl Fn(&mut Builder, [Val<U32>; 2], [[Var<F32>; 8]; 2]),
    ) {
        let mut forms: Vec<Form> = types.iter().map(|ty| form(*ty, Numerics::Fast)).collect();
        forms.sort();
        forms.dedup();
        let staged = Quantised::new(b, room, Size::Const(pairs * PAIR), None);
        let lane = b.lane();
        let at = b.mul::<U32>(lane, 8);
        let at = b.mad::<U32>(sb, SUPER_BLOCK, at);
        let inside = Some(b.setp_lt(at, of.rows));
        let row_bytes = b.shl::<U32>(of.rows, 2);
        let last = b.sub::<U32>(of.end, 1);
        let all = |b: &mut Builder, column: Val<U32>| -> Vec<[Val<U32>; 2]> {
            let own = |number| if number == 0 { column } else { b.add::<U32>(column, number * of.apart) };
            let all: Vec<_> = (0..pairs * PAIR).map(own).collect();
            all.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect()
        };
        let load = |b: &mut Builder, column: Val<U32>| -> Vec<[[Val<F32>; 8]; 2]> {
            let columns = all(b, column);
            let mut own = |column: Val<U32>| {
                let column = b.min::<U32>(column, last);
                let row = b.address(of.y);
                let row = b.mad_wide(column, row_bytes, row);
                let row = b.global_ptr::<F32>(row);
                let from = b.index(row, at);
                eight(b, from, inside, LoadKind::Ordinary)
            };
            columns.into_iter().map(|pair| pair.map(&mut own)).collect()
        };
        // The next columns' values are on their way while these are rounded.
        let coming = load(b, of.own);
        let coming: Vec<_> = coming.into_iter().map(|pair| pair.map(|of| of.map(|value| b.var(value)))).collect();
        let apart = pairs * PAIR * of.apart;
        b.for_range(of.own, of.end, apart, |b, column| {
            let columns = all(b, column);
            let mut own = |value: Var<F32>| {
                let value = b.get(value);
                b.var(value)
            };
            let values: Vec<_> = coming.iter().map(|pair| pair.map(|of| of.map(&mut own))).collect();
            let next = b.add::<U32>(column, apart);
            let next = load(b, next);
            for (to, value) in coming.iter().flatten().flatten().zip(next.into_iter().flatten().flatten()) {
                b.set(*to, value);
            }
            columns.iter().zip(&values).for_each(|(columns, values)| scale(b, *columns, *values));
            let values: Vec<_> = values.iter().map(|pair| pair.map(|of| of.map(|value| b.get(value)))).collect();
            for form in &forms {
                let Form::Int8(group) = *form else { continue };
                let round = |b: &mut Builder| {
                    let own = staged.own(b, group, PAIR as usize);
                    let begun: Vec<_> = (0..)
                        .zip(&values)
                        .map(|(pair, values)| quantise::begin(b, *values, own.further(PAIR * pair), group))
                        .collect();
                    begun.iter().for_each(|begun| begun.finish(b, &staged, Rare::Within));
                    b.bar_warp_sync(); // the super-blocks are in shared memory
                    for (column, number) in columns.iter().flatten().zip(0..) {
                        let there = b.setp_lt(*column, of.end);
                        b.if_(there, |b| self.write(b, &staged, number, group, *column, [sb, super_blocks]));
                    }
                    b.bar_warp_sync(); // they have been read
                };
                match Wanted::OfTypes(self.wanted).of(b, *form) {
                    Some(wanted) => b.if_(wanted, round),
                    None => round(b),
                }
            }
        });
    }

    /// Writes a column's super-block, staged as number `number`.
    fn write(
        &self,
        b: &mut Builder,
        staged: &Quantised,
        number: u32,
        group: ScaleGroup,
        column: Val<U32>,
        [sb, super_blocks]: [Val<U32>; 2],
    ) {
        let to = match group {
            ScaleGroup::Of256 => self.of_256,
            ScaleGroup::Of32 => self.of_32,
        };
        let (eight, inside) = (b.div::<U32>(column, COLUMNS), b.and::<U32>(column, COLUMNS - 1));
        let place = b.mad::<U32>(eight, super_blocks, sb);
        let number = b.mov::<U32>(number);
        let first = staged.at(b, number);
        let second = staged.second(b, first);
        let to = b.byte_index(to, place, PLANES * PLANE_BYTES);
        mma::write(b, to, inside, group, [first, second]);
    }
}
