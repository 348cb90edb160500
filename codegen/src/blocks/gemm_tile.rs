//! Products of a tile of rows of quantised weights with 64 or 128 columns by tensor cores, by a block: a warp has 32 of the
//! rows and 64 of the columns, or 32 of them where copies do not run on and more warps are to wait for each other's.
//!
//! The block copies the next super-block of its rows to shared memory while its warps multiply the one before. Of the
//! columns shared memory has room for one super-block, in quarters of two blocks of 32: when all warps have used a quarter,
//! that of the next super-block is copied to its place. A lane's sums stay in its registers, to which each super-block's
//! value is added in its turn: the value, and the order of additions, are those of `fast`, so a column has the bits that it
//! has alone.

use super::rounded_columns;
use super::row_copies::{RowCopies, RowSizes};
use super::tensor::Tensor;
use crate::formats::{Columns, InShared, Mma, OfPlane, Rows, ScaleGroup, format, mma};
use crate::matrix;
use crate::ptx::{Builder, F32, Global, Pred, Shared, Size, U8, U32, U64, Val, Var, Work};
use kiln_shape::columns::{
    BESIDE_BYTES, FRAGMENT_BYTES, OF_TWO, PLANE_BYTES, PLANES, SCALES_OFFSET, TILE_EIGHTS as EIGHTS, record_stride,
    tile_rows,
};
use kiln_shape::{SUPER_BLOCK, WeightType};

/// Warps that have all rows of a tile between them.
const ROW_WARPS: u32 = 4;
/// Sixteens of rows of a warp, and its rows.
const SIXTEENS: u32 = 2;
pub(crate) const ROWS: u32 = 16 * SIXTEENS;
/// Super-blocks of rows in shared memory or on their way there, and of what stands beside the fragments of columns, where
/// copies run on; else one.
const STAGES: u32 = 2;
/// Bytes of a record whose products take all registers.
const LONG: u32 = 208;
/// The number of two blocks of 32 that the second half of a super-block begins with.
const SECOND_HALF: u32 = 2;

/// A lane's sums: of each eight of columns, of the first 16 rows, then of the next, in the order of the result's registers.
pub(crate) type Sums = Vec<[Var<F32>; 4]>;

/// How many columns a tile has: groups that warps have between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    /// 64, one group.
    Single,
    /// 64 in two groups.
    Halves,
    /// 128 in two groups.
    Double,
}

impl Width {
    const fn groups(self) -> u32 {
        match self {
            Width::Single => 1,
            Width::Halves | Width::Double => 2,
        }
    }

    /// Eights of columns of a warp.
    pub(crate) const fn own(self) -> u32 {
        match self {
            Width::Single | Width::Double => EIGHTS,
            Width::Halves => EIGHTS / 2,
        }
    }

    /// Warps of a block.
    pub(crate) const fn warps(self) -> u32 {
        ROW_WARPS * self.groups()
    }

    /// Bytes of a stage.
    const fn stage(self, ty: WeightType) -> u32 {
        all_records(ty) + self.eights() * BESIDE_BYTES
    }

    /// Eights of columns.
    pub(crate) const fn eights(self) -> u32 {
        self.own() * self.groups()
    }

    /// Eights of columns that a warp copies.
    const fn passes(self) -> u32 {
        self.eights() / self.warps()
    }
}

/// Which of a tile's rows and columns the warp has: the number of its 32 rows, and that of its first eight.
pub(crate) fn of_warp(b: &mut Builder, width: Width) -> (Val<U32>, Val<U32>) {
    let warp = b.warp_id();
    match width {
        Width::Single => (warp, b.mov(0)),
        Width::Halves | Width::Double => {
            let group = b.div::<U32>(warp, ROW_WARPS);
            (b.and::<U32>(warp, ROW_WARPS - 1), b.mul::<U32>(group, width.own()))
        }
    }
}

/// A block's shared memory.
#[derive(Debug, Clone)]
pub(crate) struct Tile {
    width: Width,
    /// `[4, eights]` fragments of two blocks of 32.
    fragments: Shared<U8>,
    /// `[stages]` records of all rows, and of each eight what stands beside the fragments.
    stages: Shared<U32>,
}

/// The rows of a tile: of one matrix, or by turns of two.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrices {
    pub(crate) tensors: [Tensor; 2],
    /// Whether both have rows here, each the same.
    pub(crate) is_pair: Val<Pred>,
    /// The tile's first row in them.
    pub(crate) first: Val<U32>,
    /// Rows of a matrix; its last stands in for those behind it.
    pub(crate) rows: Val<U32>,
}

impl Matrices {
    /// The matrix of row `row` of the tile, and the row's number there. Of a pair so many rows, a power of two, are the first
    /// one's, then as many the second one's.
    pub(crate) fn locate(&self, b: &mut Builder, row: Val<U32>, each: u32) -> (Tensor, Val<U32>) {
        let [first, second] = self.tensors;
        let odd = b.and::<U32>(row, each);
        let is_odd = b.setp_ne(odd, 0);
        let is_second = b.and_pred(is_odd, self.is_pair);
        let data = b.select_ptr(second.data, first.data, is_second);
        let plane = b.select_ptr(second.plane, first.plane, is_second);
        let (before, inside) = (b.shr::<U32>(row, (2 * each).trailing_zeros()), b.and::<U32>(row, each - 1));
        let of_pair = b.mad::<U32>(before, each, inside);
        let row = b.selp::<U32>(of_pair, row, self.is_pair);
        let row = b.add::<U32>(row, self.first);
        let last = b.sub::<U32>(self.rows, 1);
        (Tensor { data, plane, ty: first.ty }, b.min::<U32>(row, last))
    }
}

/// What a tile is a product of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    /// The tile's rows. Of a pair each warp has 16 of either.
    pub(crate) of: Matrices,
    /// Weights in a row.
    pub(crate) k: Val<U32>,
    /// Super-blocks that are multiplied: the first, and the one behind them.
    pub(crate) from: Val<U32>,
    pub(crate) to: Val<U32>,
    /// Whether rows may end within a super-block.
    pub(crate) is_cut: bool,
    /// The columns, with one scale for 256 and with one for each 32.
    pub(crate) of_256: Global<U8>,
    pub(crate) of_32: Global<U8>,
    /// The number of the tile's first eight among them.
    pub(crate) first_eight: Val<U32>,
}

/// Bytes of the records of a stage.
const fn all_records(ty: WeightType) -> u32 {
    tile_rows(ty) * record_stride(ty)
}

impl Tile {
    /// Takes the shared memory for rows of `types`.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, types: &[WeightType], width: Width) -> Tile {
        let most = types.iter().map(|ty| width.stage(*ty)).max().unwrap_or(0);
        let fragments = width.eights() * FRAGMENT_BYTES;
        let stages = if matrix::copies_run_on(b) { STAGES } else { 1 };
        let all = b.dynamic_shared::<U8>(fragments + stages * most);
        Tile { width, fragments: all, stages: all.at(fragments).cast() }
    }

    /// Shared memory that nothing is in once sums are there, and a barrier is behind them.
    pub(crate) fn room(&self) -> Shared<U32> {
        const { assert!(EIGHTS * FRAGMENT_BYTES / 4 >= 8 * rounded_columns::words(1)) };
        self.fragments.cast()
    }

    /// The sums of the lane's rows and columns before the first super-block.
    pub(crate) fn zeros(&self, b: &mut Builder) -> Sums {
        (0..SIXTEENS * self.width.own()).map(|_| [(); 4].map(|()| b.var(0.0))).collect()
    }

    /// Adds the values of super-blocks to the sums, in order.
    #[track_caller]
    pub(crate) fn add(&self, b: &mut Builder, types: &[WeightType], product: &Product, sums: &Sums) {
        for ty in types {
            let Some(mma) = format(*ty).mma() else { continue };
            if types.len() == 1 {
                self.of_type(b, product, (*ty, mma), sums);
            } else {
                let is = b.setp_eq(product.of.tensors[0].ty, ty.id());
                b.if_(is, |b| self.of_type(b, product, (*ty, mma), sums));
            }
        }
    }

    fn of_type(&self, b: &mut Builder, product: &Product, (ty, mma): (WeightType, Mma), sums: &Sums) {
        let lane = b.lane();
        let (warp, own_eight) = of_warp(b, self.width);
        // Where a tile has rows for fewer warps, the last ones multiply the same: their quarter of the multiprocessor would
        // rest.
        let warp = b.min::<U32>(warp, tile_rows(ty) / ROWS - 1);
        let super_blocks = b.size_div_ceil(Size::Reg(product.k), SUPER_BLOCK);
        let super_blocks = b.mov::<U32>(super_blocks);
        let copies = Copies::new(b, self, product, (ty, mma), super_blocks);
        let zero = b.mov::<U32>(0);
        let runs_on = matrix::copies_run_on(b);
        if runs_on {
            copies.rows(b, zero, product.from);
            copies.beside(b, zero);
            copies.half(b, 0);
            b.cp_async_commit_group();
        }
        let planes = (ty.layout().plane == 2).then(|| {
            let own = b.mul::<U32>(warp, ROWS);
            let group = b.shr::<U32>(lane, 2);
            let own = b.add::<U32>(own, group);
            [0, 16].map(|first| {
                [0, 8].map(|further| {
                    let row = b.add::<U32>(own, first + further);
                    let (_, row) = product.of.locate(b, row, 16);
                    b.mul::<U32>(row, super_blocks)
                })
            })
        });
        let stage = b.var::<U32>(0);
        b.for_range(product.from, product.to, 1, |b, sb| {
            b.each_iteration(Work::Tile(ty, SIXTEENS * self.width.own() * SUPER_BLOCK / 32));
            let here = b.get(stage);
            let (next, other) = (b.add::<U32>(sb, 1), b.xor::<U32>(here, self.width.stage(ty)));
            let goes_on = b.setp_lt(next, product.to);
            // Copies take the load and store unit. Where registers suffice they come behind the first fragments of a half.
            let amid = mma.group == ScaleGroup::Of256 && ty.layout().data < LONG;
            let second_half = |b: &mut Builder| {
                copies.half(b, 1);
                b.cp_async_commit_group();
            };
            let next_one = |b: &mut Builder| {
                if amid {
                    // Behind the last super-block that one is copied again, and not read: a branch would cost more here.
                    let step = b.selp::<U32>(PLANES * PLANE_BYTES, 0, goes_on);
                    copies.go_on(b, Size::Reg(step));
                    let next = b.selp::<U32>(next, sb, goes_on);
                    copies.rows(b, other, next);
                    copies.beside(b, other);
                } else {
                    copies.go_on(b, Size::Const(PLANES * PLANE_BYTES));
                    b.if_(goes_on, |b| {
                        copies.rows(b, other, next);
                        copies.beside(b, other);
                    });
                }
                b.cp_async_commit_group();
            };
            let first_half = |b: &mut Builder| {
                if amid {
                    copies.half(b, 0)
                } else {
                    b.if_(goes_on, |b| copies.half(b, 0))
                }
                b.cp_async_commit_group();
            };
            if runs_on {
                b.cp_async_wait_group(0);
                b.bar_sync(); // the first half is in shared memory, and the super-block before has been read
                if !amid {
                    second_half(b);
                    next_one(b);
                }
            } else {
                b.bar_sync(); // the super-block before has been read
                copies.whole(b, sb);
                b.bar_sync(); // this one is in shared memory
            }
            let here = b.byte_index(self.stages, here, 1);
            let records = b.byte_index(here, warp, ROWS * record_stride(ty));
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
                    let records = records.byte_offset(i64::from(16 * sixteen * record_stride(ty)));
                    Rows::new(b, (records, record_stride(ty)), plane)
                })
                .collect();
            let beside = here.byte_offset(i64::from(all_records(ty))).cast::<U8>();
            let columns = InShared {
                fragments: b.byte_index(self.fragments, own_eight, OF_TWO),
                beside: b.byte_index(beside, own_eight, BESIDE_BYTES),
                apart: self.width.eights() * OF_TWO,
                eights_apart: [OF_TWO, BESIDE_BYTES],
                before: &|b, pair, eight| match (pair, eight) {
                    _ if !runs_on => {}
                    (0, 1) if amid => second_half(b),
                    (1, 1) if amid => next_one(b),
                    (SECOND_HALF, 0) => {
                        b.cp_async_wait_group(1);
                        b.bar_sync(); // the second half is in shared memory, and the first has been read
                        if !amid {
                            first_half(b);
                        }
                    }
                    (SECOND_HALF, 1) if amid => first_half(b),
                    _ => {}
                },
            };
            self.super_block(b, mma, &rows, &columns, (&copies, own_eight, sb), sums);
            if runs_on {
                b.set(stage, other);
            }
        });
        if runs_on {
            b.cp_async_wait_group(0);
        }
    }

    /// Adds the value of a super-block: of the first plane, plus that of the second where a column has one.
    fn super_block(
        &self,
        b: &mut Builder,
        mma: Mma,
        rows: &[Rows],
        columns: &InShared<'_>,
        (copies, own_eight, sb): (&Copies, Val<U32>, Val<U32>),
        sums: &Sums,
    ) {
        let last = mma::last_plane_of(b, columns.beside, (self.width.own(), BESIDE_BYTES));
        let counted = self.width == Width::Halves;
        let columns = Columns::in_shared(b, (self.width.own(), mma.group), columns).counted(counted);
        let values = mma.part(b, rows, &columns);
        let values: Sums = values.into_iter().map(|values| values.map(|value| b.var(value))).collect();
        let has_second = b.setp_ne(last, 0);
        b.if_(has_second, |b| {
            let eight_at = |b: &mut Builder, eight: Val<U32>| {
                let eight = b.add::<U32>(own_eight, eight);
                copies.eight_at(b, eight, sb)
            };
            add_second_planes(b, (mma, rows), &values, (self.width.own(), counted), eight_at);
        });
        for (sum, value) in sums.iter().flatten().zip(values.iter().flatten()) {
            let next = b.add(*sum, *value);
            b.set(*sum, next);
        }
    }
}

/// Adds to the values of so many eights, of their first planes, those of their second: an eight at a time from device memory,
/// where it is at `eight_at`. Each round the next one's values come first.
pub(crate) fn add_second_planes(
    b: &mut Builder,
    (mma, rows): (Mma, &[Rows]),
    values: &Sums,
    (eights, counted): (u32, bool),
    eight_at: impl Fn(&mut Builder, Val<U32>) -> Global<U8>,
) {
    b.for_range(0, eights, 1, |b, eight| {
        b.each_iteration(Work::Few);
        let (none, one) = (b.mov::<U32>(0), b.mov::<U32>(1));
        let first = eight_at(b, eight);
        let columns = Columns::new(b, (1, mma.group), first, [none, none], one).counted(counted);
        b.bar_warp_sync(); // else the assembler keeps unpacked weights in registers
        let part = mma.part(b, rows, &columns);
        for (values, part) in values.chunks(eights as usize).zip(part) {
            let first = std::array::from_fn(|i| b.add(values[0][i], part[i]));
            rotate(b, values, first);
        }
    });
}

/// Moves each value `by` places to the left, and the first ones behind the last.
pub(crate) fn rotate_by(b: &mut Builder, values: &[Var<F32>], by: usize) {
    let first: Vec<Val<F32>> = values[..by].iter().map(|value| b.get(*value)).collect();
    for (to, from) in values.iter().zip(&values[by..]) {
        b.set(*to, *from);
    }
    for (to, value) in values[values.len() - by..].iter().zip(first) {
        b.set(*to, value);
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
        let Matrices { tensors: [first, second], is_pair, .. } = self.of;
        if sixteen == 0 { first.plane } else { b.select_ptr(second.plane, first.plane, is_pair) }
    }
}

/// A thread's copies: every second piece of 16 bytes of a row, or of two; of two eights every 32nd.
struct Copies {
    /// Each with whether it is one of the tile's, where some are not.
    rows: Vec<(RowCopies, Option<Val<Pred>>)>,
    /// All columns of the type's form, and the number of the tile's first eight.
    columns: Global<U8>,
    first_eight: Val<U32>,
    super_blocks: Val<U32>,
    /// The thread's part of its two eights, in the super-block that is copied.
    eights: Vec<Var<U64>>,
    tile: Tile,
    ty: WeightType,
    group: ScaleGroup,
}

impl Copies {
    fn new(
        b: &mut Builder,
        tile: &Tile,
        product: &Product,
        (ty, mma): (WeightType, Mma),
        super_blocks: Val<U32>,
    ) -> Copies {
        let tid = b.tid();
        let own = b.shr::<U32>(tid, 1);
        let own = matrix::row_of_two(b, own);
        let sizes = RowSizes::new(b, [product.k, super_blocks], (ty.layout().data, ty.layout().plane));
        let bytes = (product.is_cut && ty.block_len() < SUPER_BLOCK).then_some(sizes.row);
        let together = tile.width.warps() * 16;
        let rows = (0..tile_rows(ty).div_ceil(together)).map(|pass| {
            let own = b.add::<U32>(own, pass * together);
            let addresses = sizes.addresses(b, &product.of, own);
            let row = RowCopies::new(b, (ty, bytes), own, addresses);
            (row, (pass * together + together > tile_rows(ty)).then(|| b.setp_lt(own, tile_rows(ty))))
        });
        let rows = rows.collect();
        let columns = match mma.group {
            ScaleGroup::Of256 => product.of_256,
            ScaleGroup::Of32 => product.of_32,
        };
        let first_eight = product.first_eight;
        let (warp, lane) = (b.warp_id(), b.lane());
        let eights = (0..tile.width.passes()).map(|pass| {
            let number = b.add::<U32>(warp, pass * tile.width.warps());
            let number = b.add::<U32>(number, first_eight);
            let at = b.mad::<U32>(number, super_blocks, product.from);
            let eight = b.byte_index(columns, at, PLANES * PLANE_BYTES);
            let own = b.byte_index(eight, lane, 16);
            let own = b.address(own);
            b.var(own)
        });
        let eights = eights.collect();
        Copies { rows, columns, first_eight, super_blocks, eights, tile: tile.clone(), ty, group: mma.group }
    }

    /// Starts those of the rows' super-block `sb` to the stage so many bytes on.
    fn rows(&self, b: &mut Builder, stage: Val<U32>, sb: Val<U32>) {
        let to = b.byte_index(self.tile.stages, stage, 1);
        for (row, there) in &self.rows {
            match there {
                None => row.start(b, to, sb, self.ty),
                Some(there) => b.if_(*there, |b| row.start(b, to, sb, self.ty)),
            }
        }
    }

    /// Super-block `sb` of the tile's eight `number`.
    fn eight_at(&self, b: &mut Builder, number: Val<U32>, sb: Val<U32>) -> Global<U8> {
        let eight = b.add::<U32>(self.first_eight, number);
        let at = b.mad::<U32>(eight, self.super_blocks, sb);
        b.byte_index(self.columns, at, PLANES * PLANE_BYTES)
    }

    /// Copies all of super-block `sb` to the only stage.
    fn whole(&self, b: &mut Builder, sb: Val<U32>) {
        let stage = b.mov::<U32>(0);
        self.rows(b, stage, sb);
        self.beside(b, stage);
        self.half(b, 0);
        self.half(b, 1);
        self.go_on(b, Size::Const(PLANES * PLANE_BYTES));
    }

    /// Has the columns' copies be those so many bytes on.
    fn go_on(&self, b: &mut Builder, step: Size) {
        for &eight in &self.eights {
            let next = match step {
                Size::Const(bytes) => b.add::<U64>(eight, u64::from(bytes)),
                Size::Reg(bytes) => {
                    let bytes = b.cvt::<U64, U32>(bytes);
                    b.add::<U64>(eight, bytes)
                }
            };
            b.set(eight, next);
        }
    }

    /// Starts those of the first or second half of the columns' fragments: a warp copies two blocks of an eight at once.
    fn half(&self, b: &mut Builder, half: u32) {
        let (tid, eights) = (b.tid(), self.tile.width.eights());
        let to = b.byte_index(self.tile.fragments, tid, 16);
        for (&from, pass) in self.eights.iter().zip(0..) {
            let from = b.get(from);
            let from = b.global_ptr::<U8>(from);
            for pair in SECOND_HALF * half..SECOND_HALF * (half + 1) {
                let to = to.at(OF_TWO * (eights * pair + self.tile.width.warps() * pass));
                matrix::copy(b, to, from.at(OF_TWO * pair), Size::Const(16));
            }
        }
    }

    /// Starts those of what stands beside the columns' fragments, to that stage.
    fn beside(&self, b: &mut Builder, stage: Val<U32>) {
        let pieces = match self.group {
            ScaleGroup::Of256 => BESIDE_BYTES / 16,
            ScaleGroup::Of32 => (SCALES_OFFSET + 256 - FRAGMENT_BYTES) / 16,
        };
        let (warp, lane) = (b.warp_id(), b.lane());
        let to = self.tile.stages.cast::<U8>().at(all_records(self.ty));
        let to = b.byte_index(to, warp, BESIDE_BYTES);
        let to = b.byte_index(to, lane, 16);
        let to = b.byte_index(to, stage, 1);
        let there = b.setp_lt(lane, pieces);
        b.if_(there, |b| {
            for (&from, pass) in self.eights.iter().zip(0..) {
                let from = b.get(from);
                let from = b.global_ptr::<U8>(from).at(FRAGMENT_BYTES);
                matrix::copy(b, to.at(self.tile.width.warps() * pass * BESIDE_BYTES), from, Size::Const(16));
            }
        });
    }
}
