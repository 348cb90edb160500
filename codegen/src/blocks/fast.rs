//! Dot products of rows of weights with a vector rounded to bytes: a lane a super-block, then a lane a row.
//!
//! A warp's tile is a run of rows. Its lanes take the tile's super-blocks in turn, each one f32, and put them into shared
//! memory; then lane r adds up those of row r from left to right, in one chain. So the bits of a row depend on nothing
//! but the row and the vector: not on the tile, the grid, or the part of the vector that is staged at once.

use super::dot::{self, Matrix, Products, Rows, Tile, fitting, may_be_cut};
use super::slot::{Run, Slot};
use super::stage::Staged;
use crate::formats::{Form, Int8, SuperBlock, Weights, form, format};
use crate::ptx::{Builder, F32, Global, LoadKind, Shared, Size, U8, U32, Val, Var, Work};
use kiln_shape::{Numerics, SUPER_BLOCK, WeightType};

/// Floats in shared memory that a warp puts the values of super-blocks into.
const VALUES: u32 = 256;

/// The most rows of a tile over a vector of which so many super-blocks, at most, are staged.
pub(crate) const fn tile_rows(super_blocks: u32) -> u32 {
    let rows = VALUES / stride(super_blocks);
    if rows < 32 { rows } else { 32 }
}

/// From a row's values to the next row's: odd, so that the lanes that fold rows meet in no bank.
const fn stride(super_blocks: u32) -> u32 {
    super_blocks | 1
}

/// The values of a warp's super-blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Values {
    own: Shared<F32>,
    /// Super-blocks of a row that are staged at once, at most.
    most: u32,
    /// The warp's place for weights on their way, where they go through shared memory.
    slot: Option<Slot>,
}

impl Values {
    /// Takes the shared memory, for rows of `types` of which at most so many super-blocks are staged at once, in so many
    /// bytes.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, types: &[WeightType], most: u32, vector_bytes: u32) -> Values {
        let all = b.dynamic_shared::<F32>(VALUES * b.warps());
        let warp = b.warp_id();
        let beside = vector_bytes + 4 * VALUES * b.warps();
        let slot = (b.target().sm() >= 80).then(|| Slot::new(b, types, beside));
        Values { own: b.byte_index(all, warp, VALUES * 4), most, slot }
    }

    /// The most rows of a tile.
    pub(crate) const fn tile_rows(&self) -> u32 {
        tile_rows(self.most)
    }

    /// The dot products of rows `rows.first` to `rows.end`, at most [`Values::tile_rows`] of them, each added to its
    /// lane's `before`: lane r has that of row r.
    #[track_caller]
    pub(crate) fn rows(
        &self,
        b: &mut Builder,
        matrix: Matrix<'_>,
        staged: &Staged,
        tile: Tile,
        rows: Rows,
        before: Val<F32>,
    ) -> Products {
        let lane = b.lane();
        let row = b.add::<U32>(rows.first, lane);
        let is_row = b.setp_lt::<U32>(row, rows.end);
        let types = fitting(matrix.types, tile.k());
        let values = |b: &mut Builder, ty: WeightType| match format(ty).int8() {
            Some(int8) => self.of_bytes(b, matrix, staged, tile, rows, (ty, int8)),
            None => self.of_floats(b, matrix, staged, tile, rows, ty),
        };
        match types[..] {
            [ty] => values(b, ty),
            ref types => {
                for ty in types {
                    let is = b.setp_eq::<U32>(matrix.tensor.ty, ty.id());
                    b.if_(is, |b| values(b, *ty));
                }
            }
        }
        b.bar_warp_sync(); // the values are in shared memory
        let sum = b.var(before);
        let from = b.byte_index(self.own, lane, 4 * stride(self.most));
        let is_float = |ty: &&WeightType| form(**ty, Numerics::Fast) == Form::Float;
        let floats: Vec<WeightType> = types.iter().filter(is_float).copied().collect();
        let fold = |b: &mut Builder, count: Size| {
            b.if_(is_row, |b| {
                let add = |b: &mut Builder, at: Shared<F32>| {
                    let value = b.ld(at, LoadKind::Ordinary);
                    let next = b.add(sum, value);
                    b.set(sum, next);
                };
                match count {
                    Size::Const(count @ 0..=16) => (0..count).for_each(|i| add(b, from.at(i))),
                    count => b.for_range(0, count, 1, |b, i| {
                        let at = b.index(from, i);
                        add(b, at);
                    }),
                }
            });
        };
        if floats.is_empty() {
            fold(b, tile.staged());
        } else if floats.len() == types.len() {
            fold(b, Size::Const(1));
        } else {
            let bit = b.shl::<U32>(1u32, matrix.tensor.ty);
            let mask = floats.iter().fold(0, |mask, ty| mask | 1 << ty.id());
            let bit = b.and::<U32>(bit, mask);
            let is_float = b.setp_ne(bit, 0);
            b.if_else(is_float, |b| fold(b, Size::Const(1)), |b| fold(b, tile.staged()));
        }
        b.bar_warp_sync(); // the values have been read
        Products { rows: vec![row], sums: vec![b.get(sum)], leader: is_row }
    }

    /// The values of quantised weights, one for each super-block that is staged.
    fn of_bytes(
        &self,
        b: &mut Builder,
        matrix: Matrix<'_>,
        staged: &Staged,
        tile: Tile,
        rows: Rows,
        of: (WeightType, Int8),
    ) {
        let (ty, int8) = of;
        let (layout, tensor, k) = (ty.layout(), matrix.tensor, tile.k());
        let along = tile.staged();
        let row_bytes = match k {
            Size::Const(k) => Size::Const(k / 32 * (layout.data / 8)),
            Size::Reg(_) => {
                let blocks = b.size_div(k, 32);
                b.size_mul(blocks, layout.data / 8)
            }
        };
        let super_blocks = b.size_div_ceil(k, SUPER_BLOCK);
        let plane_bytes = b.size_mul(super_blocks, layout.plane);
        let count = b.sub::<U32>(rows.end, rows.first);
        let tasks = b.mul::<U32>(count, along);
        let is_cut = may_be_cut(k) && ty.block_len() < SUPER_BLOCK;
        let mut first_row = |base: Global<U8>, row_bytes: Size| {
            let base = b.address(base);
            let row = b.mad_wide(rows.first, row_bytes, base);
            b.global_ptr::<U8>(row)
        };
        let data = first_row(tensor.data, row_bytes);
        let plane = if layout.plane == 0 { tensor.plane } else { first_row(tensor.plane, plane_bytes) };
        let x = staged.quantised(b, int8.group);
        let is_run = matches!((along, super_blocks), (Size::Const(along), Size::Const(all)) if along == all) && !is_cut;
        if let (Some(slot), Size::Const(along), true) = (self.slot, along, is_run) {
            let run = Run { data, plane, ty, tasks };
            let place = Walk::new(b, along, slot.records(layout), stride(self.most));
            return slot.each(b, &run, |b, has, weights| {
                let super_block = place.super_block(b);
                let value = int8.dot(b, weights, &x, super_block);
                let to = b.index(self.own, place.to);
                b.if_(has, |b| b.st(to, value));
                place.go_on(b);
            });
        }
        let lane = b.lane();
        let last = b.sub::<U32>(tasks, 1);
        b.for_range(0, tasks, 32, |b, first| {
            b.each_iteration(Work::Weights(ty, SUPER_BLOCK));
            let task = b.add::<U32>(first, lane);
            let has = b.setp_lt(task, tasks);
            let task = b.min::<U32>(task, last);
            let row = b.div::<U32>(task, along);
            let before = b.mul::<U32>(row, along);
            let super_block = b.sub::<U32>(task, before);
            let in_row = b.add::<U32>(super_block, tile.first());
            let mut at = |base, row_bytes, bytes| {
                let base = b.address(base);
                let row = b.mad_wide(row, row_bytes, base);
                let row = b.global_ptr::<U8>(row);
                b.byte_index(row, in_row, bytes)
            };
            let data = at(data, row_bytes, layout.data);
            let plane = if layout.plane == 0 { plane } else { at(plane, plane_bytes, layout.plane) };
            let left = is_cut.then(|| {
                let before = b.mul::<U32>(in_row, layout.data);
                b.sub::<U32>(row_bytes, before)
            });
            // Neighbouring lanes read neighbouring records: the L1 cache holds what each reads of a line for the others.
            let weights = Weights::Global(SuperBlock { data, plane, left, kind: LoadKind::Constant });
            let value = int8.dot(b, &weights, &x, super_block);
            let to = b.mad::<U32>(row, stride(self.most), super_block);
            let to = b.index(self.own, to);
            b.if_(has, |b| b.st(to, value));
        });
    }

    /// The products of weights that are floats, one value a row, as the exact kernels have them.
    fn of_floats(&self, b: &mut Builder, matrix: Matrix<'_>, staged: &Staged, tile: Tile, rows: Rows, ty: WeightType) {
        let types = [ty];
        let matrix = Matrix { types: &types, ..matrix };
        b.for_range(rows.first, rows.end, tile.rows(), |b, first| {
            let products = dot::rows(b, matrix, staged, tile, Rows { first, end: rows.end });
            for (row, sum) in products.rows.into_iter().zip(products.sums) {
                let inside = b.setp_lt::<U32>(row, rows.end);
                let writes = b.and_pred(inside, products.leader);
                b.if_(writes, |b| {
                    let row = b.sub::<U32>(row, rows.first);
                    let to = b.byte_index(self.own, row, 4 * stride(self.most));
                    b.st(to, sum);
                });
            }
        });
    }
}

/// A lane's way through a run of rows, so many super-blocks at a step.
struct Walk {
    /// The super-block within its row.
    super_block: Var<U32>,
    /// The place of its value.
    to: Var<U32>,
    along: u32,
    step: u32,
    stride: u32,
}

impl Walk {
    fn new(b: &mut Builder, along: u32, step: u32, stride: u32) -> Walk {
        let lane = b.lane();
        let row = b.div::<U32>(lane, along);
        let before = b.mul::<U32>(row, along);
        let super_block = b.sub::<U32>(lane, before);
        let to = b.mad::<U32>(row, stride, super_block);
        Walk { super_block: b.var(super_block), to: b.var(to), along, step, stride }
    }

    fn super_block(&self, b: &mut Builder) -> Val<U32> {
        b.get(self.super_block)
    }

    fn go_on(&self, b: &mut Builder) {
        let (rows, further) = (self.step / self.along, self.step % self.along);
        let to = b.add::<U32>(self.to, rows * self.stride + further);
        if further == 0 {
            return b.set(self.to, to);
        }
        let next = b.add::<U32>(self.super_block, further);
        let over = b.setp_ge(next, self.along);
        let wrapped = b.sub::<U32>(next, self.along);
        let next = b.selp::<U32>(wrapped, next, over);
        b.set(self.super_block, next);
        let wrapped = b.add::<U32>(to, self.stride - self.along);
        let to = b.selp::<U32>(wrapped, to, over);
        b.set(self.to, to);
    }
}
