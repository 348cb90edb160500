//! Products of a tile of rows of quantised weights with 64 columns by tensor cores, by a block: a warp has 32 of the rows.
//!
//! The block copies the next super-block of its rows and columns to shared memory while its warps multiply the one before.
//! A lane's sums stay in its registers, to which each super-block's value is added in its turn: the value, and the order of
//! additions, are those of `fast`, so a column has the bits that it has alone.

use super::tensor::Tensor;
use crate::formats::{Columns, Mma, OfPlane, Rows, ScaleGroup, format, mma};
use crate::ptx::{Builder, F32, Global, LoadKind, Pred, Shared, Size, U8, U32, Val, Var, Work};
use kiln_shape::columns::{PLANE_BYTES, PLANES, SCALES_OFFSET, TILE_EIGHTS as EIGHTS, tile_rows};
use kiln_shape::{SUPER_BLOCK, WeightType};

/// Warps of a block.
pub(crate) const WARPS: u32 = 4;
/// Sixteens of rows of a warp, and its rows.
const SIXTEENS: u32 = 2;
pub(crate) const ROWS: u32 = 16 * SIXTEENS;
/// Super-blocks in shared memory or on their way there.
const STAGES: u32 = 2;
/// Bytes of the columns of a stage.
const COLUMN_BYTES: u32 = EIGHTS * PLANE_BYTES;

/// A lane's sums: of each eight of columns, of the first 16 rows, then of the next, in the order of the result's registers.
pub(crate) type Sums = Vec<[Var<F32>; 4]>;

/// A block's shared memory.
#[derive(Debug, Clone)]
pub(crate) struct Tile {
    stages: Shared<U32>,
}

/// What a tile is a product of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    /// The matrices of the tile's rows.
    pub(crate) tensors: [Tensor; 2],
    /// Whether the second 16 of each warp's are of the second matrix, the same rows as the first of the first.
    pub(crate) is_pair: Val<Pred>,
    /// The tile's first row in them.
    pub(crate) first: Val<U32>,
    /// Rows of a matrix; its last stands in for those behind it.
    pub(crate) rows: Val<U32>,
    /// Weights in a row.
    pub(crate) k: Val<U32>,
    /// Whether rows may end within a super-block.
    pub(crate) is_cut: bool,
    /// The columns, with one scale for 256 and with one for each 32.
    pub(crate) of_256: Global<U8>,
    pub(crate) of_32: Global<U8>,
    /// The number of the tile's first eight among them.
    pub(crate) first_eight: Val<U32>,
}

/// Bytes of a record with those of its plane, where these are whole pieces: then the plane stands behind it.
const fn record(ty: WeightType) -> u32 {
    let layout = ty.layout();
    if layout.plane.is_multiple_of(16) { layout.data + layout.plane } else { layout.data }
}

/// From a record to the next: an odd number of pieces, so that lanes' reads of 16 bytes meet in no bank.
const fn stride(ty: WeightType) -> u32 {
    16 * ((record(ty) / 16) | 1)
}

/// Bytes of a stage.
const fn stage(ty: WeightType) -> u32 {
    COLUMN_BYTES + tile_rows(ty) * stride(ty)
}

impl Tile {
    /// Takes the shared memory for rows of `types`.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, types: &[WeightType]) -> Tile {
        let most = types.iter().map(|ty| stage(*ty)).max().unwrap_or(0);
        Tile { stages: b.dynamic_shared::<U32>(STAGES * most / 4) }
    }

    /// Shared memory that nothing is in once sums are there, and a barrier is behind them.
    pub(crate) fn room(&self) -> Shared<U32> {
        self.stages
    }

    /// The sums of the lane's rows and columns.
    #[track_caller]
    pub(crate) fn sums(&self, b: &mut Builder, types: &[WeightType], product: &Product) -> Sums {
        let sums: Sums = (0..SIXTEENS * EIGHTS).map(|_| [(); 4].map(|()| b.var(0.0))).collect();
        for ty in types {
            let Some(mma) = format(*ty).mma() else { continue };
            if types.len() == 1 {
                self.of_type(b, product, (*ty, mma), &sums);
            } else {
                let is = b.setp_eq(product.tensors[0].ty, ty.id());
                b.if_(is, |b| self.of_type(b, product, (*ty, mma), &sums));
            }
        }
        sums
    }

    fn of_type(&self, b: &mut Builder, product: &Product, (ty, mma): (WeightType, Mma), sums: &Sums) {
        let (warp, lane) = (b.warp_id(), b.lane());
        let super_blocks = b.size_div_ceil(Size::Reg(product.k), SUPER_BLOCK);
        let super_blocks = b.mov::<U32>(super_blocks);
        let copies = Copies::new(b, product, (ty, mma), super_blocks);
        let zero = b.mov::<U32>(0);
        copies.start(b, self.stages, zero);
        let planes = (ty.layout().plane == 2).then(|| {
            let own = b.mul::<U32>(warp, ROWS);
            let group = b.shr::<U32>(lane, 2);
            let own = b.add::<U32>(own, group);
            [0, 16].map(|first| {
                [0, 8].map(|further| {
                    let row = b.add::<U32>(own, first + further);
                    let (_, row) = product.locate(b, row);
                    b.mul::<U32>(row, super_blocks)
                })
            })
        });
        let works = b.setp_lt(warp, tile_rows(ty) / ROWS);
        let number = b.var::<U32>(0);
        b.for_range(0, super_blocks, 1, |b, sb| {
            b.each_iteration(Work::Tile(ty, SIXTEENS * EIGHTS * SUPER_BLOCK / 32));
            b.cp_async_wait_group(STAGES - 2);
            b.bar_sync(); // the super-block is in shared memory, and the one before has been read
            let next = b.add::<U32>(sb, 1);
            let other = b.xor::<U32>(number, 1);
            let to = b.byte_index(self.stages, other, stage(ty));
            copies.start(b, to, next);
            let here = b.byte_index(self.stages, number, stage(ty));
            let multiply = |b: &mut Builder| {
                let records = b.byte_index(here, warp, ROWS * stride(ty)).byte_offset(i64::from(COLUMN_BYTES));
                let rows: Vec<Rows> = (0..SIXTEENS)
                    .map(|sixteen| {
                        let plane = match planes {
                            Some(planes) => {
                                let of = product.plane_of(b, sixteen);
                                let planes = planes[sixteen as usize].map(|row| {
                                    let at = b.add::<U32>(row, sb);
                                    b.byte_index(of, at, 2)
                                });
                                OfPlane::load(b, planes, 2)
                            }
                            None => OfPlane::Behind(ty.layout().data),
                        };
                        let records = records.byte_offset(i64::from(16 * sixteen * stride(ty)));
                        Rows::new(b, (records, stride(ty)), plane)
                    })
                    .collect();
                self.super_block(b, mma, &rows, here.cast(), (&copies, sb), sums);
            };
            if tile_rows(ty) == WARPS * ROWS {
                multiply(b)
            } else {
                b.if_(works, multiply)
            }
            b.set(number, other);
        });
        b.cp_async_wait_group(0);
    }

    /// Adds the value of a super-block: of the first plane, plus that of the second where a column has one.
    fn super_block(
        &self,
        b: &mut Builder,
        mma: Mma,
        rows: &[Rows],
        here: Shared<U8>,
        (copies, sb): (&Copies, Val<U32>),
        sums: &Sums,
    ) {
        let lane = b.lane();
        let own = b.and::<U32>(lane, EIGHTS - 1);
        let later = b.byte_index(here, own, PLANE_BYTES);
        let later: [Val<U32>; 4] = b.ld_vector(mma::later_in_shared(later), LoadKind::Ordinary);
        let last = mma::last_plane(b, &[later]);
        let columns = Columns::in_shared(b, (EIGHTS, mma.group), here);
        let values = mma.part(b, rows, &columns);
        let values: Sums = values.into_iter().map(|values| values.map(|value| b.var(value))).collect();
        let has_second = b.setp_ne(last, 0);
        b.if_(has_second, |b| {
            // An eight at a time from device memory; each round the next one's values come first.
            b.for_range(0, EIGHTS, 1, |b, eight| {
                b.each_iteration(Work::Few);
                let (none, one) = (b.mov::<U32>(0), b.mov::<U32>(1));
                let first = copies.eight_at(b, eight, sb);
                let columns = Columns::new(b, (1, mma.group), first, [none, none], one);
                b.bar_warp_sync(); // else the assembler keeps unpacked weights in registers
                let part = mma.part(b, rows, &columns);
                for (values, part) in values.chunks(EIGHTS as usize).zip(part) {
                    let first = std::array::from_fn(|i| b.add(values[0][i], part[i]));
                    rotate(b, values, first);
                }
            });
        });
        for (sum, value) in sums.iter().flatten().zip(values.iter().flatten()) {
            let next = b.add(*sum, *value);
            b.set(*sum, next);
        }
    }
}

/// Moves each eight's values one to the left, and puts `last` behind them.
pub(crate) fn rotate(b: &mut Builder, values: &[[Var<F32>; 4]], last: [Val<F32>; 4]) {
    for two in values.windows(2) {
        two[0].iter().zip(two[1]).for_each(|(to, from)| b.set(*to, from));
    }
    if let Some(end) = values.last() {
        end.iter().zip(last).for_each(|(to, value)| b.set(*to, value));
    }
}

impl Product {
    /// The plane of the matrix of each warp's first or second 16 rows.
    fn plane_of(&self, b: &mut Builder, sixteen: u32) -> Global<U8> {
        let [first, second] = self.tensors;
        if sixteen == 0 { first.plane } else { b.select_ptr(second.plane, first.plane, self.is_pair) }
    }

    /// The matrix of row `row` of the tile, and the row's number there.
    fn locate(&self, b: &mut Builder, row: Val<U32>) -> (Tensor, Val<U32>) {
        let [first, second] = self.tensors;
        let odd = b.and::<U32>(row, 16);
        let is_odd = b.setp_ne(odd, 0);
        let is_second = b.and_pred(is_odd, self.is_pair);
        let data = b.select_ptr(second.data, first.data, is_second);
        let plane = b.select_ptr(second.plane, first.plane, is_second);
        let (before, inside) = (b.shr::<U32>(row, 5), b.and::<U32>(row, 15));
        let of_pair = b.mad::<U32>(before, 16, inside);
        let row = b.selp::<U32>(of_pair, row, self.is_pair);
        let row = b.add::<U32>(row, self.first);
        let last = b.sub::<U32>(self.rows, 1);
        (Tensor { data, plane, ty: first.ty }, b.min::<U32>(row, last))
    }
}

/// A thread's copies: of rows `tid / 2` and 64 further on every second piece of 16 bytes, and of two eights, whose numbers
/// are its warp's and 4 more, every 32nd.
struct Copies {
    rows: Vec<Row>,
    /// All columns of the type's form, and the number of the tile's first eight.
    columns: Global<U8>,
    first_eight: Val<U32>,
    super_blocks: Val<U32>,
    ty: WeightType,
    group: ScaleGroup,
}

/// A row that a thread copies.
struct Row {
    data: Global<U8>,
    plane: Global<U8>,
    /// Bytes of the row from there on, where rows may end within a super-block.
    left: Option<Val<U32>>,
    /// Where it goes in a stage.
    to: Val<U32>,
    /// Whether it is one of the tile's, where some are not.
    there: Option<Val<Pred>>,
}

impl Copies {
    fn new(b: &mut Builder, product: &Product, (ty, mma): (WeightType, Mma), super_blocks: Val<U32>) -> Copies {
        let tid = b.tid();
        let (own, odd) = (b.shr::<U32>(tid, 1), b.and::<U32>(tid, 1));
        let blocks = b.div::<U32>(product.k, 32);
        let row_bytes = b.mul::<U32>(blocks, ty.layout().data / 8);
        let plane_bytes = b.mul::<U32>(super_blocks, ty.layout().plane);
        let is_cut = product.is_cut && ty.block_len() < SUPER_BLOCK;
        let before = b.shl::<U32>(odd, 4);
        let together = WARPS * 16;
        let rows = (0..tile_rows(ty).div_ceil(together)).map(|pass| {
            let own = b.add::<U32>(own, pass * together);
            let (tensor, row) = product.locate(b, own);
            let mut part = |from: Global<U8>, bytes: Val<U32>| {
                let at = b.address(from);
                let at = b.mad_wide(row, bytes, at);
                b.global_ptr::<U8>(at)
            };
            let (data, plane) = (part(tensor.data, row_bytes), part(tensor.plane, plane_bytes));
            let to = b.mad::<U32>(own, stride(ty), before);
            Row {
                data: b.byte_index(data, odd, 16),
                plane,
                left: is_cut.then(|| b.sub::<U32>(row_bytes, before)),
                to: b.add::<U32>(to, COLUMN_BYTES),
                there: (pass * together + together > tile_rows(ty)).then(|| b.setp_lt(own, tile_rows(ty))),
            }
        });
        let rows = rows.collect();
        let columns = match mma.group {
            ScaleGroup::Of256 => product.of_256,
            ScaleGroup::Of32 => product.of_32,
        };
        Copies { rows, columns, first_eight: product.first_eight, super_blocks, ty, group: mma.group }
    }

    /// Starts those of super-block `sb` to the stage `to`, where there is one, as the thread's next group.
    fn start(&self, b: &mut Builder, to: Shared<U32>, sb: Val<U32>) {
        let is_there = b.setp_lt(sb, self.super_blocks);
        b.if_(is_there, |b| {
            for row in &self.rows {
                match row.there {
                    None => self.row(b, row, to, sb),
                    Some(there) => b.if_(there, |b| self.row(b, row, to, sb)),
                }
            }
            let (warp, lane) = (b.warp_id(), b.lane());
            let to = b.byte_index(to, warp, PLANE_BYTES);
            let to = b.byte_index(to, lane, 16);
            for pass in 0..EIGHTS / WARPS {
                let number = b.add::<U32>(warp, pass * WARPS);
                let from = self.eight_at(b, number, sb);
                let from = b.byte_index(from, lane, 16);
                self.eight(b, to.byte_offset(i64::from(pass * WARPS * PLANE_BYTES)), from);
            }
        });
        b.cp_async_commit_group();
    }

    fn row(&self, b: &mut Builder, row: &Row, stage: Shared<U32>, sb: Val<U32>) {
        let (tid, bytes) = (b.tid(), self.ty.layout().data);
        let to = b.byte_index(stage, row.to, 1);
        let from = b.byte_index(row.data, sb, bytes);
        let odd = b.and::<U32>(tid, 1);
        let is_first = b.setp_eq(odd, 0);
        let before = row.left.map(|left| (left, b.mul::<U32>(sb, bytes)));
        for piece in (0..bytes / 16).step_by(2) {
            let copy = |b: &mut Builder| {
                let at = 16 * piece;
                let read = match before {
                    None => Size::Const(16),
                    Some((left, before)) => {
                        let end = b.add::<U32>(before, at);
                        let inside = b.setp_lt(end, left);
                        Size::Reg(b.selp::<U32>(16, 0, inside))
                    }
                };
                b.cp_async(to.at(at / 4), from.at(at), read);
            };
            // The last of an odd number of pieces has no second.
            if piece + 1 == bytes / 16 { b.if_(is_first, copy) } else { copy(b) }
        }
        let beside = record(self.ty) - bytes;
        if beside > 0 {
            let from = b.byte_index(row.plane, sb, beside);
            b.if_(is_first, |b| {
                for piece in 0..beside / 16 {
                    b.cp_async(to.at((bytes + 16 * piece) / 4), from.at(16 * piece), Size::Const(16));
                }
            });
        }
    }

    /// Super-block `sb` of the tile's eight `number`.
    fn eight_at(&self, b: &mut Builder, number: Val<U32>, sb: Val<U32>) -> Global<U8> {
        let eight = b.add::<U32>(self.first_eight, number);
        let at = b.mad::<U32>(eight, self.super_blocks, sb);
        b.byte_index(self.columns, at, PLANES * PLANE_BYTES)
    }

    /// An eight is one run of pieces.
    fn eight(&self, b: &mut Builder, to: Shared<U32>, from: Global<U8>) {
        let pieces = match self.group {
            ScaleGroup::Of256 => PLANE_BYTES / 16,
            ScaleGroup::Of32 => (SCALES_OFFSET + 256) / 16,
        };
        let lane = b.lane();
        for first in (0..pieces).step_by(32) {
            let copy = |b: &mut Builder| b.cp_async(to.at(4 * first), from.at(16 * first), Size::Const(16));
            if first + 32 <= pieces {
                copy(b);
            } else {
                let there = b.setp_lt(lane, pieces - first);
                b.if_(there, copy);
            }
        }
    }
}
