//! Products of 128 rows of quantised weights with 128 columns by products of warpgroups, `wgmma`: each of a block's two
//! warpgroups has 64 of the rows and all columns.
//!
//! Records of rows and columns of a super-block are copied to shared memory, to three or four stages in turn. Columns are
//! multiplied as they lie there. Rows are unpacked to registers, each weight times its sub-block's scale in two planes of
//! bytes (`formats::warpgroup`), so that tensor cores add a super-block up without anyone's help. What comes of the sums,
//! and the order of additions, are those of `fast`: a column has the bits that it has alone.
//!
//! # Order
//!
//! *Full.* A warp of the block copies a stage, another one each time: boxes of fragments of columns, of what stands beside
//! these, and of the records of two times 64 rows, by tensor maps. They lower what `full` expects; whoever has waited for
//! the phase sees all of them. Columns are written and multiplied by the async proxy. Rows, and what stands beside columns,
//! are read by ordinary loads and then overwritten by bulk copies behind an mbarrier, as others do without a fence: only the
//! mbarriers' initialisation has one.
//!
//! *Free.* A warp's lane arrives at `free` when all its lanes have read what they read of the stage, and its products with it
//! are there. Whoever copies the stage's next super-block has waited for that.
//!
//! *Turns.* A warpgroup begins with its products of a super-block when the other has issued all but two of its own of one: so
//! one unpacks and scales while the other's products take the tensor cores. The first warpgroup begins.
//!
//! *Tiles.* Two barriers of the block stand between two. The first super-blocks of a tile that goes on in the matrix of the
//! one before are copied with the last ones of that, to the stages behind: there they wait for the block. To the stage
//! that was read last the generic proxy may write meanwhile; a fence of the proxies puts that before its next copy, which
//! comes behind both barriers. Where a tile does not go on no stage is in use between the barriers, and it begins at the
//! first one. The mbarriers stay: `phases` says which phase of each is next, since tiles leave off at any stage.
//!
//! *Waits* have an end: each is for copies of the block's own, or for what its other warps do before, in the order of
//! super-blocks. Should one be in vain for a million polls, the launch ends by an error.

use super::gemm_tile::{Matrices, Sums};
use super::tensor::by_type;
use super::{rounded_columns, wait};
use crate::formats::{Columns, InShared, OfPlane, Rows, ScaleGroup, Warpgroup, format, mma};
use crate::ptx::{Builder, F32, Global, LoadKind, Pred, S32, Shared, U8, U32, U64, Val, Var, Work};
use kiln_shape::columns::{
    BESIDE_BYTES, BOX_EIGHTS, BOXES, FRAGMENT_BYTES, MAP_WORD, MAP_WORDS, OF_TWO, PLANE_BYTES, PLANES,
};
use kiln_shape::table::{BOX_ROWS, TENSOR_MAP_BYTES};
use kiln_shape::{SUPER_BLOCK, WeightType};

/// Rows of a tile. Of a pair half of them are either matrix's.
pub(crate) const ROWS: u32 = 128;
pub(crate) const HALF: u32 = ROWS / 2;
/// Rows of a warp in each half.
pub(crate) const OF_WARP: u32 = 8;
/// Eights of columns of a tile.
pub(crate) const EIGHTS: u32 = 16;
/// Pairs of columns that a warp rounds beside each other: the registers of sums are free then.
pub(crate) const ROUNDED: u32 = 2;
/// Warps of a block, and of a warpgroup.
pub(crate) const WARPS: u32 = HALF / OF_WARP;
const GROUP: u32 = WARPS / 2;
const _: () = assert!(BOX_ROWS == HALF && BOX_EIGHTS == EIGHTS, "a stage is four boxes");
/// Super-blocks in shared memory or on their way there at most, and the shared memory that a block has for them.
const STAGES: u32 = 4;
const ROOM: u32 = 225 << 10;
/// Super-blocks that copies are ahead: stages that neither of the warpgroups may have to read yet.
pub(crate) const AHEAD: u32 = 2;
/// Bytes at a multiple of which a pattern of eight columns begins.
const PATTERN: u32 = 512;
/// Twos of blocks of 32 of a super-block, and products of each: half of its depth each.
const TWOS: usize = 4;
const STEPS: usize = 2;
/// The product with which a warpgroup lets the other begin: the last ones cover the other's first.
const PASSED: usize = 5;
/// The product behind which copies begin: the last, while whose products nothing else is to be done.
const COPIED: usize = TWOS * STEPS - 1;

/// A block's shared memory.
#[derive(Debug, Clone)]
pub(crate) struct Tile {
    /// `[STAGES]` of fragments of columns, what stands beside these, and records of rows.
    stages: Shared<U8>,
    /// `[STAGES]` mbarriers each, and one for each warpgroup.
    full: Shared<U64>,
    free: Shared<U64>,
    turns: Shared<U64>,
    /// The tensor maps of both halves of the rows, of fragments of columns, and of what stands beside them.
    maps: Shared<U64>,
    /// `[2, 4]`: of the tile at hand and of the next, where this goes on, the rows that both halves begin with, the first
    /// eight of columns, and whether there is such a tile.
    places: Shared<U32>,
    /// The parity of the next phase of each stage, which `full` and `free` have in common; above them that of the number of
    /// super-blocks, and the number of the next stage. They outlive a tile.
    phases: Var<U32>,
}

/// The bit of [`Tile::phases`] that turns follow.
const TURN: u32 = STAGES;
/// Where there the number of the next stage begins, and its bits.
const NEXT: u32 = 8;
const NEXT_BITS: u32 = 2;
const _: () = assert!(STAGES <= 1 << NEXT_BITS && TURN < NEXT);

/// Where a tile's boxes begin: the rows of both halves, and the first eight of columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begin {
    pub(crate) rows: [Val<U32>; 2],
    pub(crate) eight: Val<U32>,
}

/// What a tile is a product of.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    /// The type of its rows, and how their matrices are found.
    pub(crate) ty: Val<U32>,
    pub(crate) of: &'a dyn Fn(&mut Builder) -> Matrices,
    /// Super-blocks of a row, the first that is multiplied, and the one behind the last.
    pub(crate) super_blocks: Val<U32>,
    pub(crate) from: Val<U32>,
    pub(crate) to: Val<U32>,
    /// The columns, with one scale for 256, and the number of the tile's first eight among them.
    pub(crate) columns: Global<U8>,
    pub(crate) first_eight: Val<U32>,
    /// Whether the first [`AHEAD`] super-blocks were copied with the tile before.
    pub(crate) goes_on: Val<Pred>,
}

/// From a record to the next: an odd number of pieces.
const fn stride(ty: WeightType) -> u32 {
    let bytes = ty.layout().data;
    assert!(bytes / 16 % 2 == 1, "records stand one behind the other");
    assert!((HALF * bytes).is_multiple_of(BOX_ALIGNED), "boxes stand one behind the other");
    bytes
}

/// Bytes of a stage.
const fn stage(ty: WeightType) -> u32 {
    (RECORDS + ROWS * stride(ty)).next_multiple_of(PATTERN)
}

/// Stages that there is room for.
const fn stages(ty: WeightType) -> u32 {
    let fit = ROOM / stage(ty);
    assert!(fit > AHEAD, "a stage is read while others are filled");
    if fit < STAGES { fit } else { STAGES }
}

/// Where what stands beside fragments begins in a stage, and where the records.
const BESIDE: u32 = EIGHTS * FRAGMENT_BYTES;
const RECORDS: u32 = BESIDE + EIGHTS * BESIDE_BYTES;
const _: () = assert!(RECORDS.is_multiple_of(BOX_ALIGNED) && PATTERN.is_multiple_of(BOX_ALIGNED));
/// Bytes at a multiple of which a box begins.
const BOX_ALIGNED: u32 = 128;

impl Tile {
    /// Takes the shared memory for rows of `types`, and makes its mbarriers. By the whole block; a barrier of it must follow.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, types: &[WeightType]) -> Tile {
        let most = types.iter().map(|ty| stages(*ty) * stage(*ty)).max().unwrap_or(0);
        let all = b.dynamic_shared::<U8>(most + PATTERN);
        let address = b.shared_address(all);
        let zero = b.mov::<U32>(0);
        let before = b.sub::<U32>(zero, address);
        let before = b.and::<U32>(before, PATTERN - 1);
        let full = b.shared::<U64>("tile_barriers", 2 * STAGES + WARPS / GROUP);
        let tile = Tile {
            stages: b.byte_index(all, before, 1),
            full,
            free: full.at(STAGES),
            turns: full.at(2 * STAGES),
            maps: b.shared("maps_of_tile", 4),
            places: b.shared("places", 8),
            phases: b.var(0),
        };
        let tid = b.tid();
        let leads = b.setp_eq(tid, 0);
        b.if_(leads, |b| {
            for stage in 0..STAGES {
                b.mbarrier_init(tile.full.at(stage), 1);
                b.mbarrier_init(tile.free.at(stage), WARPS);
            }
            (0..WARPS / GROUP).for_each(|group| b.mbarrier_init(tile.turns.at(group), GROUP));
            b.fence_proxy_async();
        });
        tile
    }

    /// Notes the tensor maps of both halves of the rows, and those of columns, which stand one behind the other. By one
    /// thread; a barrier of the block must follow.
    pub(crate) fn note_maps(&self, b: &mut Builder, rows: [Global<U8>; 2], columns: Global<U8>) {
        let beside = columns.at(TENSOR_MAP_BYTES);
        let [first, second] = rows;
        for (map, at) in [first, second, columns, beside].into_iter().zip(0..) {
            b.fence_proxy_tensormap(map);
            let address = b.address(map);
            b.st(self.maps.at(at), address);
        }
    }

    /// Notes where the boxes of the tile at hand begin, and those of the next, where this goes on. By one thread; a barrier of
    /// the block must follow.
    pub(crate) fn note_begin(&self, b: &mut Builder, own: Begin, next: Begin, goes_on: Val<Pred>) {
        let (one, there) = (b.mov::<U32>(1), b.selp::<U32>(1, 0, goes_on));
        for (Begin { rows: [first, second], eight }, there, at) in [(own, one, 0), (next, there, 4)] {
            b.st_vector(self.places.at(at), [first, second, eight, there]);
        }
    }

    /// The stage that was read last, which nothing is in once sums are there, and a barrier of the block is behind them:
    /// until then the other warpgroup may read it. For a tile of type `ty`, one of `types`.
    pub(crate) fn room(&self, b: &mut Builder, types: &[WeightType], ty: Val<U32>) -> Shared<U32> {
        const { assert!(BESIDE / 4 >= WARPS * rounded_columns::words(ROUNDED)) };
        let [count, bytes] = [stages, stage].map(|of| by_type(b, ty, types, of));
        let next = b.bfe::<U32>(self.phases, NEXT, NEXT_BITS);
        let is_first = b.setp_eq(next, 0);
        let behind = b.selp::<U32>(count, next, is_first);
        let last = b.sub::<U32>(behind, 1);
        let before = b.mul::<U32>(last, bytes);
        b.byte_index(self.stages, before, 1).cast()
    }

    /// The sums of the lane's rows and columns before the first super-block.
    pub(crate) fn zeros(b: &mut Builder) -> Sums {
        (0..EIGHTS).map(|_| [(); 4].map(|()| b.var(0.0))).collect()
    }

    /// Adds the values of super-blocks to the sums, in order. Behind a barrier of the block, behind which no stage is in use
    /// but those of a tile that goes on.
    #[track_caller]
    pub(crate) fn add(&self, b: &mut Builder, types: &[WeightType], product: &Product<'_>, sums: &Sums) {
        let planes = [(); 2].map(|()| b.wgmma_sums(EIGHTS));
        for ty in types {
            let Some(of) = format(*ty).warpgroup() else { continue };
            if types.len() == 1 {
                self.of_type(b, product, (*ty, of), (&planes, sums));
            } else {
                let is = b.setp_eq(product.ty, ty.id());
                b.if_(is, |b| self.of_type(b, product, (*ty, of), (&planes, sums)));
            }
        }
    }

    fn of_type(
        &self,
        b: &mut Builder,
        product: &Product<'_>,
        (ty, of): (WeightType, Warpgroup),
        ([lower, upper], sums): (&[Vec<[Var<S32>; 4]>; 2], &Sums),
    ) {
        let warp = b.warp_id();
        let leads = b.elect();
        let all = product.super_blocks;
        let (count, bytes) = (stages(ty), stage(ty));
        let begins = b.not_pred(product.goes_on);
        b.if_(begins, |b| {
            let first = b.and::<U32>(self.phases, (1 << NEXT) - 1);
            b.set(self.phases, first);
            let sb = b.add::<U32>(product.from, warp);
            let (is_ahead, is_there) = (b.setp_lt(warp, AHEAD), b.setp_lt(sb, product.to));
            let copies = b.and_pred(is_ahead, is_there);
            b.if_(copies, |b| {
                let (begin, _) = self.begin(b, self.places);
                self.copy(b, ty, warp, (begin, sb));
            });
        });
        let group = b.div::<U32>(warp, GROUP);
        let own_turn = b.byte_index(self.turns, group, 8);
        let other = b.xor::<U32>(group, 1);
        let other_turn = b.byte_index(self.turns, other, 8);
        let planes = (ty.layout().plane == 2).then(|| {
            let of = (product.of)(b);
            let own = own_row(b);
            let own = b.mad::<U32>(warp, OF_WARP, own);
            [0, HALF].map(|further| {
                let row = b.add::<U32>(own, further);
                let (tensor, row) = of.locate(b, row, HALF);
                let before = b.mul::<U32>(row, all);
                b.byte_index(tensor.plane, before, 2)
            })
        });
        b.for_range(product.from, product.to, 1, |b, sb| {
            b.each_iteration(Work::Tile(ty, EIGHTS * SUPER_BLOCK / 32));
            let phases = b.get(self.phases);
            let here = b.bfe::<U32>(phases, NEXT, NEXT_BITS);
            let at = b.byte_index(self.stages, here, bytes);
            let full = b.byte_index(self.full, here, 8);
            let phase = bit(b, phases, here);
            wait::within_block(b, full, phase);
            let records = b.byte_index(at.at(RECORDS).cast::<U32>(), warp, OF_WARP * stride(ty));
            let plane = match planes {
                Some(planes) => {
                    let planes = planes.map(|of| b.byte_index(of, sb, 2));
                    OfPlane::load(b, planes, 2)
                }
                None => OfPlane::Behind(ty.layout().data),
            };
            let rows = Rows::apart(b, (records, stride(ty)), HALF, plane);
            let beside = at.at(BESIDE);
            let columns = InShared {
                fragments: at,
                beside,
                apart: OF_TWO,
                eights_apart: [OF_TWO, BESIDE_BYTES],
                before: &|_, _, _| {},
            };
            let columns = Columns::in_shared(b, (EIGHTS, ScaleGroup::Of256), &columns);
            let turn = b.bfe::<U32>(phases, TURN, 1);
            let turn = b.xor::<U32>(turn, 1);
            let turn = b.xor::<U32>(turn, group);
            let amid = |b: &mut Builder, number: usize| match number {
                PASSED => b.if_(leads, |b| b.mbarrier_arrive(other_turn)),
                COPIED => {
                    let copier = b.and::<U32>(sb, WARPS - 1);
                    let copies = b.setp_eq(copier, warp);
                    b.if_(copies, |b| self.copy_ahead(b, ty, (here, phases), (sb, product.to)));
                }
                _ => {}
            };
            multiply(b, (of, &rows), at, (own_turn, turn), [lower, upper], &amid);
            let has_second = mma::has_second_plane(b, beside, EIGHTS);
            b.wgmma_wait_group(0);
            let values = of.values(b, &rows, &columns, [lower, upper]);
            let values: Sums = values.into_iter().map(|values| values.map(|value| b.var(value))).collect();
            let any = b.vote_any(has_second);
            b.if_(any, |b| {
                let at = |b: &mut Builder, eight: Val<U32>| product.eight_at(b, eight, sb);
                add_second_planes(b, ty, &rows, &values, has_second, at);
            });
            for (sum, value) in sums.iter().flatten().zip(values.iter().flatten()) {
                let next = b.add(*sum, *value);
                b.set(*sum, next);
            }
            b.bar_warp_sync(); // all lanes have read what they read of the stage
            let free = b.byte_index(self.free, here, 8);
            b.if_(leads, |b| b.mbarrier_arrive(free));
            let next = b.add::<U32>(here, 1);
            let over = b.setp_eq(next, count);
            let next = b.selp::<U32>(0, next, over);
            let own = b.shl::<U32>(1, here);
            let own = b.or::<U32>(own, 1 << TURN);
            let flipped = b.xor::<U32>(phases, own);
            let parities = b.and::<U32>(flipped, (1 << NEXT) - 1);
            let next = b.mad::<U32>(next, 1 << NEXT, parities);
            b.set(self.phases, next);
        });
    }

    /// Copies what comes so many super-blocks later, if it does, once both warpgroups have left its stage. By a warp.
    fn copy_ahead(
        &self,
        b: &mut Builder,
        ty: WeightType,
        (here, phases): (Val<U32>, Val<U32>),
        (sb, end): (Val<U32>, Val<U32>),
    ) {
        let next = b.add::<U32>(sb, AHEAD);
        let of_next = b.sub::<U32>(next, end);
        let inside = b.setp_lt(next, end);
        let sb = b.selp::<U32>(next, of_next, inside);
        let which = b.selp::<U32>(0, 4, inside);
        let places = b.index(self.places, which);
        let (begin, there) = self.begin(b, places);
        b.if_(there, |b| {
            let further = stages(ty) - AHEAD;
            let is_over = b.setp_ge(here, further);
            let by = b.selp::<U32>(further.wrapping_neg(), AHEAD, is_over);
            let number = b.add::<U32>(here, by);
            // It is freed from the phase before its next one.
            let phase = bit(b, phases, number);
            let freed = b.xor::<U32>(phase, 1);
            let free = b.byte_index(self.free, number, 8);
            wait::within_block(b, free, freed);
            b.bar_warp_sync(); // every lane has seen that it is free
            self.copy(b, ty, number, (begin, sb));
        });
    }

    /// Where the boxes of a tile begin, and whether there is one.
    fn begin(&self, b: &mut Builder, places: Shared<U32>) -> (Begin, Val<Pred>) {
        let [first, second, eight, there] = b.ld_vector(places, LoadKind::Constant);
        (Begin { rows: [first, second], eight }, b.setp_ne(there, 0))
    }

    /// Copies super-block `sb` of a tile to stage `number`, which is free. By a warp.
    fn copy(&self, b: &mut Builder, ty: WeightType, number: Val<U32>, (begin, sb): (Begin, Val<U32>)) {
        let bytes = ty.layout().data;
        let stage = b.byte_index(self.stages, number, stage(ty));
        let full = b.byte_index(self.full, number, 8);
        let leads = b.elect();
        b.if_(leads, |b| {
            b.mbarrier_arrive_expect_tx(full, EIGHTS * PLANE_BYTES + ROWS * bytes);
            let x = b.mul::<U32>(sb, MAP_WORDS);
            let beside = b.add::<U32>(x, BOXES[0] / MAP_WORD);
            let row = b.mul::<U32>(sb, bytes);
            let [first, second] = begin.rows;
            let boxes = [
                (stage, 2, [x, begin.eight]),
                (stage.at(RECORDS), 0, [row, first]),
                (stage.at(RECORDS + HALF * bytes), 1, [row, second]),
                (stage.at(BESIDE), 3, [beside, begin.eight]),
            ];
            for (to, map, at) in boxes {
                let map = b.ld(self.maps.at(map), LoadKind::Constant);
                let map = b.global_ptr::<U8>(map);
                b.cp_async_bulk_tensor(to, map, at, full);
            }
        });
    }
}

impl Product<'_> {
    /// Super-block `sb` of the tile's eight `number`.
    fn eight_at(&self, b: &mut Builder, number: Val<U32>, sb: Val<U32>) -> Global<U8> {
        let eight = b.add::<U32>(self.first_eight, number);
        let at = b.mad::<U32>(eight, self.super_blocks, sb);
        b.byte_index(self.columns, at, PLANES * PLANE_BYTES)
    }
}

/// A stage's bit.
fn bit(b: &mut Builder, bits: Val<U32>, number: Val<U32>) -> Val<U32> {
    let bits = b.shr::<U32>(bits, number);
    b.and::<U32>(bits, 1)
}

/// The products of a super-block, once it is the warpgroup's turn: under way when all are issued.
fn multiply(
    b: &mut Builder,
    (of, rows): (Warpgroup, &Rows),
    stage: Shared<U8>,
    (turn, parity): (Shared<U64>, Val<U32>),
    [lower, upper]: [&[[Var<S32>; 4]]; 2],
    amid: &dyn Fn(&mut Builder, usize),
) {
    let twos = of.begin(b, rows);
    let mut steps = twos(b, 0);
    let mut planes = steps(b, 0);
    let address = b.shared_address(stage);
    let address = b.shr::<U32>(address, 4);
    // Two units on are two pieces of 16 bytes, half of the depth of two blocks.
    let (none, one) = (b.mov::<U32>(0), b.mov::<U32>(1));
    let [first, later] = [none, one].map(|adds| b.setp_ne(adds, 0));
    wait::within_block(b, turn, parity);
    for number in 0..TWOS * STEPS {
        let (two, step) = (number / STEPS, number % STEPS);
        let low = b.add::<U32>(address, (two as u32 * OF_TWO + step as u32 * 32) / 16);
        let descriptor = b.pack64(low, DESCRIPTOR);
        let adds = if number == 0 { first } else { later };
        b.wgmma_bytes(&[(upper, planes[1]), (lower, planes[0])], descriptor, adds);
        amid(b, number);
        if number + 1 == TWOS * STEPS {
            break;
        }
        if step == STEPS - 1 {
            steps = twos(b, two + 1);
        }
        b.wgmma_wait_group(1);
        planes = steps(b, (step + 1) % STEPS);
    }
}

/// Adds to the values of first planes those of second planes, for the eights that have some: from device memory, where an
/// eight is at `eight_at`; `of_lane` says it of that of the lane's number. A second plane that a column does not have is zeros.
fn add_second_planes(
    b: &mut Builder,
    ty: WeightType,
    rows: &Rows,
    values: &Sums,
    of_lane: Val<Pred>,
    eight_at: impl Fn(&mut Builder, Val<U32>) -> Global<U8>,
) {
    let Some(mma) = format(ty).mma() else { return };
    b.for_range(0, EIGHTS, 1, |b, eight| {
        b.each_iteration(Work::Few);
        let eights = b.vote_ballot(of_lane);
        let bits = b.shr::<U32>(eights, eight);
        let bit = b.and::<U32>(bits, 1);
        let has = b.setp_ne(bit, 0);
        b.if_(has, |b| {
            let (none, one) = (b.mov::<U32>(0), b.mov::<U32>(1));
            let first = eight_at(b, eight);
            let columns = Columns::new(b, (1, ScaleGroup::Of256), first, [none, none], one);
            let part = mma.part(b, std::slice::from_ref(rows), &columns);
            let Some(part) = part.first() else { return };
            for (values, number) in values.iter().zip(0..) {
                let is = b.setp_eq(eight, number);
                for (value, part) in values.iter().zip(part) {
                    let more = b.selp::<F32>(*part, 0.0, is);
                    let both = b.add(*value, more);
                    b.set(*value, both);
                }
            }
        });
    });
}

/// Which of each eight rows the lane has. Rows stand in order; lanes that read 16 bytes each of a record, two of them of
/// neighbouring fragments' rows at once, meet in no bank where these are four records apart.
pub(crate) fn own_row(b: &mut Builder) -> Val<U32> {
    let lane = b.lane();
    let (odd, even) = (b.bfe::<U32>(lane, 2, 1), b.bfe::<U32>(lane, 3, 2));
    b.mad::<U32>(odd, 4, even)
}

/// The upper half of the columns' descriptor: so many bytes from eight columns to the next eight, and a pattern of 64 bytes.
const DESCRIPTOR: u32 = (2 << 30) | (FRAGMENT_BYTES / 16);
