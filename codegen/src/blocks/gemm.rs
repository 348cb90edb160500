//! Products of 16 rows of quantised weights with eights of columns by tensor cores, by a block: its warps take the
//! super-blocks of the rows in turn, and a thread folds those of its row and column.
//!
//! Each warp copies its next records to its own shared memory while it works on those before. The value of a super-block
//! and the order of additions are those of `fast`: so a column has the bits that it has alone.

use super::rounded_columns;
use super::tensor::Tensor;
use crate::formats::{Columns, Mma, OfPlane, Rows, ScaleGroup, format, mma};
use crate::matrix;
use crate::ptx::{Builder, F32, Global, LoadKind, Shared, Size, U8, U32, Val, Var, Work};
use kiln_shape::columns::{PLANE_BYTES, PLANES};
use kiln_shape::{SUPER_BLOCK, WeightType};

/// Rows of a tile.
pub(crate) const ROWS: u32 = 16;
/// Warps of a block, and threads: one for each row and column of an eight.
pub(crate) const WARPS: u32 = 4;
/// Records of the 16 rows that a warp has in shared memory or on their way.
const STAGES: u32 = 3;
/// Values of super-blocks that wait to be folded: 32 of an eight of columns, or fewer where copies do not run on, which
/// leaves shared memory for more blocks.
const VALUES: u32 = 32;
const FEW_VALUES: u32 = 16;
/// Words from a column's values to the next column's, and from an eight's to the next's: lanes that store and lanes that add
/// up meet in no bank.
const COLUMN: u32 = ROWS + 4;
const EIGHT: u32 = 8 * COLUMN;

/// A block's shared memory, and where its columns are.
#[derive(Debug, Clone)]
pub(crate) struct Tiles {
    records: Shared<U32>,
    values: Shared<F32>,
    /// Eights of columns of the tile.
    eights: u32,
    /// Bytes of a stage, and how many there are: one where copies do not run on.
    stage: u32,
    stages: u32,
    /// Values of eights that wait to be folded.
    waiting: u32,
}

/// What a tile is a product of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    pub(crate) tensor: Tensor,
    /// The tile's first row in the matrix.
    pub(crate) first: Val<U32>,
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

/// From a record to the next: an odd number of pieces, so that lanes' reads of 16 bytes meet in no bank.
const fn stride(ty: WeightType) -> u32 {
    16 * ((ty.layout().data / 16) | 1)
}

impl Tiles {
    /// Takes the shared memory for records of `types`.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, types: &[WeightType], eights: u32) -> Tiles {
        let stage = types.iter().map(|ty| ROWS * stride(*ty)).max().unwrap_or(0);
        let (stages, waiting) = if matrix::copies_run_on(b) { (STAGES, VALUES) } else { (1, FEW_VALUES) };
        let records = b.dynamic_shared::<U32>(WARPS * stages * stage / 4);
        let warp = b.warp_id();
        let records = b.byte_index(records, warp, stages * stage);
        Tiles { records, values: b.dynamic_shared(waiting * EIGHT), eights, stage, stages, waiting }
    }

    /// Shared memory that nothing is in once sums are there.
    pub(crate) fn room(&self) -> Shared<U32> {
        const { assert!(FEW_VALUES * EIGHT >= WARPS * rounded_columns::words(1)) };
        self.values.cast()
    }

    /// The sums of the thread's row with its column of each eight, as [`of_thread`] has them.
    #[track_caller]
    pub(crate) fn sums(&self, b: &mut Builder, types: &[WeightType], product: &Product) -> Vec<Val<F32>> {
        let sums: Vec<Var<F32>> = (0..self.eights).map(|_| b.var(0.0)).collect();
        for ty in types {
            let Some(mma) = format(*ty).mma() else { continue };
            if types.len() == 1 {
                self.of_type(b, product, *ty, mma, &sums);
            } else {
                let is = b.setp_eq(product.tensor.ty, ty.id());
                b.if_(is, |b| self.of_type(b, product, *ty, mma, &sums));
            }
        }
        sums.into_iter().map(|sum| b.get(sum)).collect()
    }

    fn of_type(&self, b: &mut Builder, product: &Product, ty: WeightType, mma: Mma, sums: &[Var<F32>]) {
        let (warp, layout) = (b.warp_id(), ty.layout());
        let super_blocks = b.size_div_ceil(Size::Reg(product.k), SUPER_BLOCK);
        let super_blocks = b.mov::<U32>(super_blocks);
        let copies = Copies::new(b, product, ty);
        for stage in 0..self.stages - 1 {
            let sb = b.add::<U32>(warp, WARPS * stage);
            let to = self.records.at(self.stage / 4 * stage);
            copies.start(b, to, sb, super_blocks);
        }
        let plane_bytes = b.mul::<U32>(super_blocks, layout.plane);
        let lane = b.lane();
        let own = b.shr::<U32>(lane, 2);
        let planes = [0, 8].map(|further| {
            let row = b.add::<U32>(own, further);
            let row = b.add::<U32>(row, product.first);
            let at = b.address(product.tensor.plane);
            let at = b.mad_wide(row, plane_bytes, at);
            b.global_ptr::<U8>(at)
        });
        let all = match mma.group {
            ScaleGroup::Of256 => product.of_256,
            ScaleGroup::Of32 => product.of_32,
        };
        let before = b.mul::<U32>(product.first_eight, super_blocks);
        let columns = b.byte_index(all, before, PLANES * PLANE_BYTES);
        let stage = b.var::<U32>(0);
        let round = self.waiting / self.eights;
        b.for_range(0, super_blocks, round, |b, first| {
            let end = b.add::<U32>(first, round);
            let end = b.min::<U32>(end, super_blocks);
            let own = b.add::<U32>(first, warp);
            b.for_range(own, end, WARPS, |b, sb| {
                b.each_iteration(Work::Weights(ty, ROWS * SUPER_BLOCK / 32));
                let records = b.byte_index(self.records, stage, self.stage);
                let planes = planes.map(|plane| b.byte_index(plane, sb, layout.plane));
                let plane = OfPlane::load(b, planes, layout.plane);
                let rows = Rows::new(b, (records, stride(ty)), plane);
                if self.stages == 1 {
                    b.bar_warp_sync(); // the records before have been read
                    copies.start(b, records, sb, super_blocks);
                    b.bar_warp_sync(); // the records are there
                } else {
                    b.cp_async_wait_group(STAGES - 2);
                    b.bar_warp_sync(); // the records are there, and those before them have been read
                    let ahead = b.add::<U32>(sb, WARPS * (STAGES - 1));
                    let free = b.add::<U32>(stage, STAGES - 1);
                    let free = wrapped(b, free);
                    let to = b.byte_index(self.records, free, self.stage);
                    copies.start(b, to, ahead, super_blocks);
                }
                let values = self.super_block(b, (ty, mma), &rows, columns, [sb, super_blocks]);
                let at = b.sub::<U32>(sb, first);
                self.put(b, at, &values);
                if self.stages > 1 {
                    let next = b.add::<U32>(stage, 1);
                    let next = wrapped(b, next);
                    b.set(stage, next);
                }
            });
            b.bar_sync(); // the values of the round are in shared memory
            let count = b.sub::<U32>(end, first);
            self.fold(b, count, sums);
            b.bar_sync(); // they have been read
        });
    }

    /// The values of a super-block: of the first plane, plus those of the second where a column has one.
    fn super_block(
        &self,
        b: &mut Builder,
        (ty, format): (WeightType, Mma),
        rows: &Rows,
        first: Global<U8>,
        at: [Val<U32>; 2],
    ) -> Vec<[Var<F32>; 4]> {
        let plane = b.var::<U32>(0);
        let own = b.byte_index(first, at[0], PLANES * PLANE_BYTES);
        let later = (0..self.eights).map(|number| {
            let before = b.mul::<U32>(at[1], number);
            let eight = b.byte_index(own, before, PLANES * PLANE_BYTES);
            let kind = b.kind_of_earlier();
            b.ld_vector(mma::later(eight), kind)
        });
        let later: Vec<[Val<U32>; 4]> = later.collect();
        // From sm_80 on asked behind the products, which would else wait for the answer; the number of the plane keeps it there.
        let before = (b.target().sm() < 80).then(|| {
            let first = b.mov::<U32>(0);
            mma::last_plane(b, first, &later)
        });
        let values: Vec<[Var<F32>; 4]> = (0..self.eights).map(|_| [(); 4].map(|()| b.var(0.0))).collect();
        b.do_while(|b| {
            b.each_iteration(Work::Shared(ty, ROWS * SUPER_BLOCK / 32));
            // With a barrier weights are unpacked anew for the second plane: the assembler would else keep them in
            // registers.
            b.bar_warp_sync();
            let number = b.get(plane);
            let columns = Columns::new(b, (self.eights, format.group), first, at, number);
            let parts = format.part(b, std::slice::from_ref(rows), &columns);
            for (value, part) in values.iter().flatten().zip(parts.into_iter().flatten()) {
                let sum = b.add(*value, part);
                b.set(*value, sum);
            }
            let last = before.unwrap_or_else(|| mma::last_plane(b, number, &later));
            let next = b.add(plane, 1);
            b.set(plane, next);
            b.setp_ge(last, next)
        });
        values
    }

    /// Puts the values of super-block `at` of the round where they are folded.
    fn put(&self, b: &mut Builder, at: Val<U32>, values: &[[Var<F32>; 4]]) {
        let lane = b.lane();
        let (row, pair) = (b.shr::<U32>(lane, 2), b.and::<U32>(lane, 3));
        let to = b.byte_index(self.values, at, 4 * EIGHT * self.eights);
        let to = b.byte_index(to, pair, 4 * 2 * COLUMN);
        let to = b.index(to, row);
        for (eight, values) in values.iter().enumerate() {
            for (i, value) in values.iter().enumerate() {
                let i = i as u32;
                b.st(to.at(EIGHT * eight as u32 + COLUMN * (i % 2) + 8 * (i / 2)), *value);
            }
        }
    }

    /// Adds `count` values to the thread's sums, from left to right.
    fn fold(&self, b: &mut Builder, count: Val<U32>, sums: &[Var<F32>]) {
        let (row, column) = of_thread(b);
        let own = b.mad::<U32>(column, COLUMN, row);
        let own = b.index(self.values, own);
        b.for_range(0, count, 1, |b, at| {
            let from = b.byte_index(own, at, 4 * EIGHT * self.eights);
            for (eight, sum) in sums.iter().enumerate() {
                let value = b.ld(from.at(EIGHT * eight as u32), LoadKind::Ordinary);
                let next = b.add(*sum, value);
                b.set(*sum, next);
            }
        });
    }
}

/// `stage`, less than twice [`STAGES`], of them.
fn wrapped(b: &mut Builder, stage: Val<U32>) -> Val<U32> {
    let over = b.setp_ge(stage, STAGES);
    let less = b.sub::<U32>(stage, STAGES);
    b.selp::<U32>(less, stage, over)
}

/// The thread's row of the tile, and its column of each eight: a warp has two that are four apart, whose values meet in no bank.
pub(crate) fn of_thread(b: &mut Builder) -> (Val<U32>, Val<U32>) {
    let (tid, warp) = (b.tid(), b.warp_id());
    let second = b.bfe::<U32>(tid, 4, 1);
    (b.and::<U32>(tid, ROWS - 1), b.mad::<U32>(second, WARPS, warp))
}

/// A lane's copies of records: of its row every second piece of 16 bytes.
struct Copies {
    from: Global<U8>,
    /// Bytes of the row from there on, where rows may end within a super-block.
    left: Option<Val<U32>>,
    /// Where they go in a stage.
    to: Val<U32>,
    ty: WeightType,
}

impl Copies {
    fn new(b: &mut Builder, product: &Product, ty: WeightType) -> Copies {
        let lane = b.lane();
        let (two, odd) = (b.shr::<U32>(lane, 1), b.and::<U32>(lane, 1));
        let row = matrix::row_of_two(b, two);
        let to = b.shl::<U32>(odd, 4);
        let to = b.mad::<U32>(row, stride(ty), to);
        let blocks = b.div::<U32>(product.k, 32);
        let row_bytes = b.mul::<U32>(blocks, ty.layout().data / 8);
        let row = b.add::<U32>(row, product.first);
        let from = b.address(product.tensor.data);
        let from = b.mad_wide(row, row_bytes, from);
        let from = b.global_ptr::<U8>(from);
        let is_cut = product.is_cut && ty.block_len() < SUPER_BLOCK;
        let left = is_cut.then(|| {
            let before = b.shl::<U32>(odd, 4);
            b.sub::<U32>(row_bytes, before)
        });
        Copies { from: b.byte_index(from, odd, 16), left, to, ty }
    }

    /// Starts those of super-block `sb` to the stage `to`, where there is one, as the thread's next group.
    fn start(&self, b: &mut Builder, to: Shared<U32>, sb: Val<U32>, super_blocks: Val<U32>) {
        let (lane, bytes) = (b.lane(), self.ty.layout().data);
        let odd = b.and::<U32>(lane, 1);
        let is_there = b.setp_lt(sb, super_blocks);
        b.if_(is_there, |b| {
            let to = b.byte_index(to, self.to, 1);
            let before = b.mul::<U32>(sb, bytes);
            let from = b.byte_index(self.from, sb, bytes);
            let is_first = b.setp_eq(odd, 0);
            for piece in (0..bytes / 16).step_by(2) {
                let copy = |b: &mut Builder| {
                    let at = 16 * piece;
                    let read = match self.left {
                        None => Size::Const(16),
                        Some(left) => {
                            let end = b.add::<U32>(before, at);
                            let inside = b.setp_lt(end, left);
                            Size::Reg(b.selp::<U32>(16, 0, inside))
                        }
                    };
                    matrix::copy(b, to.at(at / 4), from.at(at), read);
                };
                // The last of an odd number of pieces has no second.
                if piece + 1 == bytes / 16 { b.if_(is_first, copy) } else { copy(b) }
            }
        });
        matrix::commit(b);
    }
}
