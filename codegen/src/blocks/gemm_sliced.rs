//! Products of some rows of quantised weights with 64 columns by tensor cores, by a block whose warps have slices of the rows:
//! a warp has 32 of the rows, all columns or half of them, and one super-block of some.
//!
//! Few columns have few tiles, and a tile's rows are long. So a multiprocessor has one tile, and the warps that hide each
//! other's waits are those of its slices. Where shared memory has room for fewer slices than there could be warps, two of a
//! slice have half of the columns each: both unpack its rows. Slices take super-blocks in turn. A warp keeps nothing from one to the
//! next: sums lie in shared memory, and a super-block's value is added to them in its turn. The value, and the order of additions,
//! are those of `fast`: a column has the bits that it has alone.
//!
//! # Order
//!
//! *Full.* A super-block of the rows and all columns is copied to the next of the tile's stages, by the warps of the slice that
//! last read the stage; each thread's copies arrive at `full` when they have landed. Stages are more than slices: whoever waits
//! for a stage's next super-block has seen in its turns that the one before was added, so that no phase is taken for another.
//!
//! *Free.* A warp's first lane arrives at `free` when all its lanes have read what they read of the stage. Whoever copies to
//! the stage has waited for that.
//!
//! *Turns.* A warp that has added a super-block's value to its rows' sums arrives at the turn of the next slice's warp with the
//! same rows and columns, which waits for it before it loads them. A turn's phases follow each other one by one, since the next
//! but one needs what the next leaves.
//!
//! *Waits* have an end: each is for copies of the block's own, or for what its other warps do before, in the order of
//! super-blocks. Should one be in vain for a million polls, the launch ends by an error.

use super::gemm_tile::{Matrices, Sums, add_second_planes};
use super::row_copies::{RowCopies, RowSizes};
use super::tensor::by_type;
use super::wait;
use super::{dependent, rounded_columns};
use crate::formats::{Columns, InShared, Mma, OfPlane, Rows, ScaleGroup, format, mma};
use crate::matrix;
use crate::ptx::{Builder, F32, Global, LoadKind, Shared, Size, U8, U32, U64, Val, Work};
use kiln_shape::columns::{
    BESIDE_BYTES, COLUMNS, FRAGMENT_BYTES, OF_TWO, PLANE_BYTES, PLANES, SCALES_OFFSET, TILE_EIGHTS as EIGHTS,
    record_stride,
};
use kiln_shape::sliced::{COLUMNS_BYTES, MOST_ROW_WARPS, MOST_STAGES, OF_WARP, SUMS_BYTES, WARPS};
use kiln_shape::{SUPER_BLOCK, WeightType};

/// How a launch cuts tiles and shared memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// Warps that have the tile's rows between them.
    pub(crate) row_warps: Val<U32>,
    /// Slices: each has so many warps for each part of the columns.
    pub(crate) slices: Val<U32>,
    /// Stages, at most [`MOST_STAGES`].
    pub(crate) stages: Val<U32>,
}

/// A block's shared memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tile {
    cut: Cut,
    /// Warps that have the same rows: each has its part of the columns.
    parts: u32,
    /// `[row_warps, 2, EIGHTS, 32]` sums of four: a lane's, of the first 16 rows, then of the next, in the order of the result's
    /// registers.
    sums: Shared<F32>,
    /// `[stages]` of columns and the records of rows.
    stages: Shared<U8>,
    /// `[rows, 2]`: the addresses of each row and of its plane.
    rows: Shared<U64>,
    /// `[MOST_STAGES]` each, and one for each warp.
    full: Shared<U64>,
    free: Shared<U64>,
    turns: Shared<U64>,
}

/// What a tile is a product of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    /// The tile's rows. Of a pair each warp has 16 of either.
    pub(crate) of: Matrices,
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

/// The columns that a type meets, in device memory.
struct Source {
    all: Global<U8>,
    first_eight: Val<U32>,
    super_blocks: Val<U32>,
}

impl Source {
    fn new(product: &Product, group: ScaleGroup, super_blocks: Val<U32>) -> Source {
        let all = match group {
            ScaleGroup::Of256 => product.of_256,
            ScaleGroup::Of32 => product.of_32,
        };
        Source { all, first_eight: product.first_eight, super_blocks }
    }

    /// Super-block `sb` of the tile's eight `number`.
    fn eight_at(&self, b: &mut Builder, number: Val<U32>, sb: Val<U32>) -> Global<U8> {
        let eight = b.add::<U32>(self.first_eight, number);
        let at = b.mad::<U32>(eight, self.super_blocks, sb);
        b.byte_index(self.all, at, PLANES * PLANE_BYTES)
    }
}

impl Tile {
    /// Takes the shared memory, makes its mbarriers and clears the sums. By the whole block; a barrier of it must follow.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, cut: Cut, parts: u32) -> Tile {
        let sums = b.dynamic_rest::<F32>();
        let before = b.mul::<U32>(cut.row_warps, SUMS_BYTES);
        let full = b.shared::<U64>("tile_barriers", 2 * MOST_STAGES + b.warps());
        let tile = Tile {
            cut,
            parts,
            sums,
            stages: b.byte_index(sums.cast::<U8>(), before, 1),
            rows: b.shared::<U64>("tile_rows", 2 * OF_WARP * MOST_ROW_WARPS),
            full,
            free: full.at(MOST_STAGES),
            turns: full.at(2 * MOST_STAGES),
        };
        let tid = b.tid();
        let leads = b.setp_eq(tid, 0);
        b.if_(leads, |b| {
            let of_slice = tile.warps_of_slice(b);
            let threads = b.mul::<U32>(of_slice, 32);
            for stage in 0..MOST_STAGES {
                b.mbarrier_init(tile.full.at(stage), threads);
                b.mbarrier_init(tile.free.at(stage), of_slice);
            }
            (0..b.warps()).for_each(|warp| b.mbarrier_init(tile.turns.at(warp), 1));
        });
        let (end, threads) = (b.shr::<U32>(before, 4), 32 * b.warps());
        b.for_range(tid, end, threads, |b, four| {
            b.each_iteration(Work::Few);
            let to = b.byte_index(sums, four, 16);
            let zeros = [(); 4].map(|()| b.mov::<F32>(0.0));
            b.st_vector(to, zeros);
        });
        tile
    }

    /// Shared memory that nothing is in once all sums are there, and a barrier of the block is behind that.
    pub(crate) fn room(&self) -> Shared<U32> {
        const { assert!(4 * WARPS * rounded_columns::words(1) <= 2 * COLUMNS_BYTES, "two stages hold what warps round") }
        self.stages.cast()
    }

    /// The lane's sums of an eight of columns and of 16 rows, by their number, once all warps have added theirs, and a barrier
    /// of the block is behind that.
    pub(crate) fn sums(&self, b: &mut Builder, sixteen: Val<U32>, eight: Val<U32>) -> [Val<F32>; 4] {
        let number = b.mad::<U32>(sixteen, EIGHTS, eight);
        let lane = b.lane();
        let four = b.mad::<U32>(number, 32, lane);
        let from = b.byte_index(self.sums, four, 16);
        b.ld_vector(from, LoadKind::Ordinary)
    }

    /// Adds the values of all super-blocks to the sums, in order. By the whole block, behind a barrier of it.
    #[track_caller]
    pub(crate) fn add(&self, b: &mut Builder, types: &[WeightType], product: &Product) {
        let Cut { row_warps, slices, .. } = self.cut;
        let ty = product.of.tensors[0].ty;
        let super_blocks = b.size_div_ceil(Size::Reg(product.k), SUPER_BLOCK);
        let super_blocks = b.mov::<U32>(super_blocks);
        let data = by_type(b, ty, types, |ty| ty.layout().data);
        let plane = by_type(b, ty, types, |ty| ty.layout().plane);
        let sizes = RowSizes::new(b, [product.k, super_blocks], (data, plane));
        let (tid, threads) = (b.tid(), 32 * b.warps());
        let rows = b.mul::<U32>(row_warps, OF_WARP);
        b.for_range(tid, rows, threads, |b, row| {
            b.each_iteration(Work::Few);
            let addresses = sizes.addresses(b, &product.of, row);
            let to = b.byte_index(self.rows, row, 16);
            b.st_vector(to, addresses);
        });
        b.bar_sync(); // where rows are is noted
        let warp = b.warp_id();
        let of_slice = self.warps_of_slice(b);
        let slice = b.div::<U32>(warp, of_slice);
        let has_slice = b.setp_lt(slice, slices);
        let before = b.mul::<U32>(slice, of_slice);
        let number = b.sub::<U32>(warp, before);
        // Warps with the same rows have neighbouring numbers.
        let own = Own { number, rows: b.div::<U32>(number, self.parts), part: b.and::<U32>(number, self.parts - 1) };
        let each_type = |b: &mut Builder, body: &dyn Fn(&mut Builder, &Copies<'_>, Mma)| {
            b.if_(has_slice, |b| {
                for of in types {
                    let Some(mma) = format(*of).mma() else { continue };
                    let source = Source::new(product, mma.group, super_blocks);
                    let bytes = (product.is_cut && of.block_len() < SUPER_BLOCK).then_some(sizes.row);
                    let copies = Copies { tile: self, bytes, source, own, ty: *of, group: mma.group };
                    if types.len() == 1 {
                        body(b, &copies, mma);
                    } else {
                        let is = b.setp_eq(ty, of.id());
                        b.if_(is, |b| body(b, &copies, mma));
                    }
                }
            });
        };
        // Weights are on their way before the launch that leaves the columns ends.
        if b.begins_early() {
            each_type(b, &|b, copies, _| self.each_first(b, slice, |b, stage| copies.rows(b, stage, stage)));
            dependent::wait(b);
        }
        each_type(b, &|b, copies, mma| self.slice(b, slice, copies, mma));
    }

    /// Goes through the slice's first super-blocks, each for the stage of its number.
    fn each_first(&self, b: &mut Builder, slice: Val<U32>, body: impl FnOnce(&mut Builder, Val<U32>)) {
        let Cut { slices, stages, .. } = self.cut;
        b.for_range(slice, stages, slices, |b, stage| {
            b.each_iteration(Work::Few);
            body(b, stage);
        });
    }

    /// Adds the values of a slice's super-blocks to the sums of the warp's rows.
    fn slice(&self, b: &mut Builder, slice: Val<U32>, copies: &Copies<'_>, mma: Mma) {
        let Cut { slices, stages, .. } = self.cut;
        let Copies { source, own, ty, .. } = copies;
        let has_rows = b.begins_early();
        self.each_first(b, slice, |b, stage| {
            if !has_rows {
                copies.rows(b, stage, stage);
            }
            copies.columns(b, stage, stage);
        });
        let lane = b.lane();
        // The first slice's first turn is there from the beginning.
        let is_first = b.setp_eq(slice, 0);
        let turn = b.selp::<U32>(1, 0, is_first);
        let turn = b.var::<U32>(turn);
        let leads = b.setp_eq(lane, 0);
        let (stage, parity) = (b.var::<U32>(slice), b.var::<U32>(0));
        b.for_range(slice, source.super_blocks, slices, |b, sb| {
            b.each_iteration(Work::Tile(*ty, 2 * self.eights() * SUPER_BLOCK / 32));
            let (here, phase) = (b.get(stage), b.get(parity));
            let at = self.stage(b, here, *ty);
            let full = b.byte_index(self.full, here, 8);
            wait::within_block(b, full, phase);
            let rows = self.rows(b, at, own.rows, (*ty, sb));
            let values = self.values(b, (mma, &rows), (at, own.part), (source, sb));
            b.bar_warp_sync(); // all lanes have read what they read of the stage
            let free = b.byte_index(self.free, here, 8);
            b.if_(leads, |b| b.mbarrier_arrive(free));
            let ((own_turn, next_turn), of_turn) = (self.turns(b), b.get(turn));
            wait::within_block(b, own_turn, of_turn);
            self.add_values(b, own, &values);
            b.bar_warp_sync(); // all lanes have added
            b.if_(leads, |b| b.mbarrier_arrive(next_turn));
            let other = b.xor::<U32>(of_turn, 1);
            b.set(turn, other);
            let ahead = b.add::<U32>(sb, stages);
            let goes_on = b.setp_lt(ahead, source.super_blocks);
            b.if_(goes_on, |b| {
                wait::within_block(b, free, phase);
                copies.rows(b, here, ahead);
                copies.columns(b, here, ahead);
            });
            let next = b.add::<U32>(here, slices);
            let over = b.setp_ge(next, stages);
            let less = b.sub::<U32>(next, stages);
            let next = b.selp::<U32>(less, next, over);
            b.set(stage, next);
            let turns = b.selp::<U32>(1, 0, over);
            let next = b.xor::<U32>(phase, turns);
            b.set(parity, next);
        });
    }

    /// Warps of a slice.
    fn warps_of_slice(&self, b: &mut Builder) -> Val<U32> {
        b.mul::<U32>(self.cut.row_warps, self.parts)
    }

    /// Eights of columns of a warp.
    const fn eights(&self) -> u32 {
        EIGHTS / self.parts
    }

    /// A stage, by its number.
    fn stage(&self, b: &mut Builder, number: Val<U32>, ty: WeightType) -> Shared<U8> {
        let bytes = b.mad::<U32>(self.cut.row_warps, OF_WARP * record_stride(ty), COLUMNS_BYTES);
        let before = b.mul::<U32>(number, bytes);
        b.byte_index(self.stages, before, 1)
    }

    /// The turn of the warp, and that of the next slice's with the same rows.
    fn turns(&self, b: &mut Builder) -> (Shared<U64>, Shared<U64>) {
        let (warp, of_slice) = (b.warp_id(), self.warps_of_slice(b));
        let all = b.mul::<U32>(of_slice, self.cut.slices);
        let further = b.add::<U32>(warp, of_slice);
        let over = b.setp_ge(further, all);
        let less = b.sub::<U32>(further, all);
        let next = b.selp::<U32>(less, further, over);
        (b.byte_index(self.turns, warp, 8), b.byte_index(self.turns, next, 8))
    }

    /// The warp's rows of super-block `sb` in a stage, the first 16 and the next.
    fn rows(&self, b: &mut Builder, at: Shared<U8>, own: Val<U32>, (ty, sb): (WeightType, Val<U32>)) -> [Rows; 2] {
        let [plane, further] = [0, 16].map(|first| {
            if ty.layout().plane != 2 {
                return OfPlane::Behind(ty.layout().data);
            }
            let lane = b.lane();
            let group = b.shr::<U32>(lane, 2);
            let row = b.mad::<U32>(own, OF_WARP, group);
            let planes = [0, 8].map(|eight| {
                let from = b.byte_index(self.rows, row, 16);
                let address = b.ld(from.at(2 * (first + eight) + 1), LoadKind::Constant);
                let plane = b.global_ptr::<U8>(address);
                b.byte_index(plane, sb, 2)
            });
            OfPlane::load(b, planes, 2)
        });
        let records = at.at(COLUMNS_BYTES).cast::<U32>();
        let records = b.byte_index(records, own, OF_WARP * record_stride(ty));
        let rows = Rows::new(b, (records, record_stride(ty)), plane);
        let next = rows.after(16 * record_stride(ty), further);
        [rows, next]
    }

    /// The values of a super-block: of the first plane, plus that of the second where a column has one.
    fn values(
        &self,
        b: &mut Builder,
        (mma, rows): (Mma, &[Rows]),
        (stage, part): (Shared<U8>, Val<U32>),
        (source, sb): (&Source, Val<U32>),
    ) -> Sums {
        let eights = self.eights();
        let at = b.byte_index(stage, part, eights * PLANE_BYTES);
        let columns = InShared {
            fragments: at,
            beside: at.at(FRAGMENT_BYTES),
            apart: OF_TWO,
            eights_apart: [PLANE_BYTES; 2],
            before: &|_, _, _| {},
        };
        let last = mma::last_plane_of(b, columns.beside, (eights, PLANE_BYTES));
        let columns = Columns::in_shared(b, (eights, mma.group), &columns);
        let values = mma.part(b, rows, &columns);
        let values: Sums = values.into_iter().map(|values| values.map(|value| b.var(value))).collect();
        let has_second = b.setp_ne(last, 0);
        b.if_(has_second, |b| {
            let eight_at = |b: &mut Builder, eight: Val<U32>| {
                let eight = b.mad::<U32>(part, eights, eight);
                source.eight_at(b, eight, sb)
            };
            add_second_planes(b, (mma, rows), &values, (eights, false), eight_at);
        });
        values
    }

    /// Adds a super-block's values to the sums of the warp's rows.
    fn add_values(&self, b: &mut Builder, own: &Own, values: &Sums) {
        let (lane, eights) = (b.lane(), self.eights());
        let before = b.mul::<U32>(own.rows, 2 * EIGHTS);
        let before = b.mad::<U32>(own.part, eights, before);
        let four = b.mad::<U32>(before, 32, lane);
        let sums = b.byte_index(self.sums, four, 16);
        for (values, number) in values.iter().zip(0..) {
            let (sixteen, eight) = (number / eights, number % eights);
            let at = sums.at(4 * 32 * (sixteen * EIGHTS + eight));
            let sums: [Val<F32>; 4] = b.ld_vector(at, LoadKind::Ordinary);
            let next: [Val<F32>; 4] = std::array::from_fn(|i| b.add(sums[i], values[i]));
            b.st_vector(at, next);
        }
    }
}

/// A warp of a slice.
#[derive(Clone, Copy)]
struct Own {
    /// Its number there.
    number: Val<U32>,
    /// Which 32 of the tile's rows it has, and which part of the columns.
    rows: Val<U32>,
    part: Val<U32>,
}

/// A warp's copies: its rows, or half of them where another warp has the same, and its share of the eights of columns.
struct Copies<'a> {
    tile: &'a Tile,
    /// A row's bytes, where it may end within a super-block.
    bytes: Option<Val<U32>>,
    source: Source,
    own: Own,
    ty: WeightType,
    group: ScaleGroup,
}

impl Copies<'_> {
    /// Starts those of super-block `sb` of the rows, if there is one, to a stage that is free.
    fn rows(&self, b: &mut Builder, stage: Val<U32>, sb: Val<U32>) {
        let there = b.setp_lt(sb, self.source.super_blocks);
        b.if_(there, |b| {
            let at = self.tile.stage(b, stage, self.ty);
            let lane = b.lane();
            let two = b.shr::<U32>(lane, 1);
            let row = matrix::row_of_two(b, two);
            let row = b.mad::<U32>(self.own.rows, OF_WARP, row);
            let sixteen = b.mul::<U32>(self.own.part, 16);
            let row = b.add::<U32>(row, sixteen);
            for further in (0..2).step_by(self.tile.parts as usize) {
                let row = b.add::<U32>(row, 16 * further);
                let from = b.byte_index(self.tile.rows, row, 16);
                let addresses = b.ld_vector(from, LoadKind::Constant);
                let copies = RowCopies::new(b, (self.ty, self.bytes), row, addresses);
                copies.start(b, at.at(COLUMNS_BYTES).cast(), sb, self.ty);
            }
        });
    }

    /// The same of the columns; when they have landed, and the rows that were started before, the stage is full.
    fn columns(&self, b: &mut Builder, stage: Val<U32>, sb: Val<U32>) {
        let there = b.setp_lt(sb, self.source.super_blocks);
        b.if_(there, |b| {
            let (at, lane) = (self.tile.stage(b, stage, self.ty), b.lane());
            // A scale for each 32 has no sums beside it.
            let beside = match self.group {
                ScaleGroup::Of256 => BESIDE_BYTES / 16,
                ScaleGroup::Of32 => (SCALES_OFFSET + 32 * COLUMNS - FRAGMENT_BYTES) / 16,
            };
            let has_beside = b.setp_lt(lane, beside);
            let own = b.byte_index(at, lane, 16);
            let of_slice = self.tile.warps_of_slice(b);
            b.for_range(self.own.number, EIGHTS, of_slice, |b, eight| {
                b.each_iteration(Work::Few);
                let from = self.source.eight_at(b, eight, sb);
                let from = b.byte_index(from, lane, 16);
                let to = b.byte_index(own, eight, PLANE_BYTES);
                for piece in 0..FRAGMENT_BYTES / 512 {
                    matrix::copy(b, to.at(512 * piece), from.at(512 * piece), Size::Const(16));
                }
                b.if_(has_beside, |b| {
                    matrix::copy(b, to.at(FRAGMENT_BYTES), from.at(FRAGMENT_BYTES), Size::Const(16));
                });
            });
            let full = b.byte_index(self.tile.full, stage, 8);
            b.cp_async_mbarrier_arrive_noinc(full);
        });
    }
}
