//! Columns rounded to bytes for the next product, by the blocks that finish them.
//!
//! Rows of a product are activations of the next. The block that writes the last rows of a super-block reads those of its
//! tile's columns back, and rounds them as `quantise_columns` does. Where the next product has a norm, the block that
//! rounds the last super-block of some columns adds up their squares.

use super::rounded_columns::{self as columns, Rounded, Share};
use super::stage::{eight, squares};
use super::tensor::vector_from_table;
use super::{arrival, norm};
use crate::ptx::{Builder, F32, Global, LoadKind, Shared, Size, U8, U32, Val};
use kiln_shape::{SUPER_BLOCK, WeightType};

/// What the columns become, and where they go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Next {
    pub(crate) table: Global<U8>,
    pub(crate) rounded: Rounded,
    /// The entry of the norm's gamma; 0 for none.
    pub(crate) norm: Val<U32>,
    pub(crate) eps: Val<F32>,
    /// `[columns, super-blocks]`: the sums of squares, where there is a norm.
    pub(crate) squares: Global<F32>,
    /// `[columns]`: what products are multiplied with; not written without a norm.
    pub(crate) inverse: Global<F32>,
    /// `[tiles of columns, super-blocks + 1]`, zeros before and after: rows of each super-block that are written, and
    /// super-blocks that are rounded.
    pub(crate) arrivals: Global<U32>,
}

/// What a block has written of a product.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    /// `[columns, rows]`.
    pub(crate) y: Global<F32>,
    pub(crate) columns: Val<U32>,
    pub(crate) rows: Val<U32>,
    /// The block's rows, and the one behind them; the same in the whole block.
    pub(crate) first: Val<U32>,
    pub(crate) end: Val<U32>,
    /// The number of the tile of columns, and its columns.
    pub(crate) tile: Val<U32>,
    pub(crate) width: u32,
}

impl Next {
    /// Rounds what the block has finished, for products with weights of `types`. `room` is shared memory that nothing is in
    /// behind a barrier of the block, with which an arrival begins, for so many pairs of columns that a warp rounds beside each
    /// other; `answer` is a word of it elsewhere.
    #[track_caller]
    pub(crate) fn round(
        &self,
        b: &mut Builder,
        types: &[WeightType],
        of: &Written,
        (room, pairs): (Shared<U32>, u32),
        answer: Shared<U32>,
    ) {
        let wants = b.setp_ne(self.rounded.wanted, 0);
        b.if_(wants, |b| {
            let super_blocks = b.size_div_ceil(Size::Reg(of.rows), SUPER_BLOCK);
            let super_blocks = b.mov::<U32>(super_blocks);
            let each = b.add::<U32>(super_blocks, 1);
            let before = b.mul::<U32>(of.tile, each);
            let arrivals = b.index(self.arrivals, before);
            let first = b.div::<U32>(of.first, SUPER_BLOCK);
            let end = b.size_div_ceil(Size::Reg(of.end), SUPER_BLOCK);
            b.for_range(first, end, 1, |b, sb| {
                let from = b.mul::<U32>(sb, SUPER_BLOCK);
                let to = b.add::<U32>(from, SUPER_BLOCK);
                let to = b.min::<U32>(to, of.rows);
                let (own_from, own_to) = (b.max::<U32>(of.first, from), b.min::<U32>(of.end, to));
                let (own, all) = (b.sub::<U32>(own_to, own_from), b.sub::<U32>(to, from));
                let arrived = b.index(arrivals, sb);
                let finished = arrival::last_with(b, arrived, own, all, answer);
                b.if_(finished, |b| {
                    self.super_block(b, types, of, [sb, super_blocks], (room, pairs));
                    let normalised = b.setp_ne(self.norm, 0);
                    b.if_(normalised, |b| {
                        let arrived = b.index(arrivals, super_blocks);
                        let finished = arrival::last(b, arrived, super_blocks, answer);
                        b.if_(finished, |b| self.inverses(b, of, super_blocks));
                    });
                });
            });
        });
    }

    /// Rounds super-block `sb` of the tile's columns.
    fn super_block(
        &self,
        b: &mut Builder,
        types: &[WeightType],
        of: &Written,
        [sb, super_blocks]: [Val<U32>; 2],
        (room, pairs): (Shared<U32>, u32),
    ) {
        let (warp, lane) = (b.warp_id(), b.lane());
        let room = b.byte_index(room, warp, 4 * columns::words(pairs));
        let first = b.mul::<U32>(of.tile, of.width);
        let end = b.add::<U32>(first, of.width);
        let end = b.min::<U32>(end, of.columns);
        let own = b.add::<U32>(first, warp);
        let gamma = vector_from_table::<F32>(b, self.table, self.norm);
        let at = b.mul::<U32>(lane, 8);
        let at = b.mad::<U32>(sb, SUPER_BLOCK, at);
        let inside = Some(b.setp_lt(at, of.rows));
        let gamma = b.index(gamma, at);
        let normalised = b.setp_ne(self.norm, 0);
        // Lanes 0 and 16 write what is once of a column.
        let upper = b.setp_ge(lane, 16);
        let inside_half = b.and::<U32>(lane, 15);
        let leads = b.setp_eq(inside_half, 0);
        let share = Share { y: of.y, rows: of.rows, own, end, apart: b.warps() };
        self.rounded.super_block(b, types, &share, [sb, super_blocks], (room, pairs), |b, columns, values| {
            b.if_(normalised, |b| {
                let own = values.map(|of| of.map(|value| b.get(value)));
                let sum = squares(b, own);
                let column = b.selp::<U32>(columns[1], columns[0], upper);
                let there = b.setp_lt(column, end);
                let writes = b.and_pred(leads, there);
                let to = b.mad::<U32>(column, super_blocks, sb);
                let to = b.index(self.squares, to);
                b.if_(writes, |b| b.st(to, sum));
                let gamma = eight(b, gamma, inside, LoadKind::Constant);
                for (to, own) in values.iter().zip(own) {
                    for ((to, value), gamma) in to.iter().zip(own).zip(gamma) {
                        let scaled = b.mul(value, gamma);
                        b.set(*to, scaled);
                    }
                }
            });
        });
    }

    /// `1 / sqrt(mean(x^2) + eps)` of the tile's columns, a thread a column.
    fn inverses(&self, b: &mut Builder, of: &Written, super_blocks: Val<U32>) {
        let tid = b.tid();
        let column = b.mad::<U32>(of.tile, of.width, tid);
        let (own, there) = (b.setp_lt(tid, of.width), b.setp_lt(column, of.columns));
        let there = b.and_pred(own, there);
        b.if_(there, |b| {
            let from = b.mul::<U32>(column, super_blocks);
            let from = b.index(self.squares, from);
            let total = b.var::<F32>(0.0);
            b.for_range(0, super_blocks, 1, |b, sb| {
                let at = b.index(from, sb);
                let square = b.ld(at, LoadKind::Ordinary);
                let next = b.add(total, square);
                b.set(total, next);
            });
            let total = b.get(total);
            let inverse = norm::inverse_rms(b, total, Size::Reg(of.rows), self.eps);
            let to = b.index(self.inverse, column);
            b.st(to, inverse);
        });
    }
}
