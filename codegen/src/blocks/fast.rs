//! Dot products of rows of weights with a vector rounded to bytes: a lane a super-block, then a lane a row.
//!
//! A warp's tile is a run of rows. Its lanes take the tile's super-blocks in turn, each one f32, and put them into shared
//! memory ([`super::places`]); then lane r adds up those of row r from left to right, in one chain. So the bits of a row depend on
//! nothing but the row and the vector: not on the tile, or the grid. Where a vector is too long to be staged at once, what
//! is added to a row begins its chain instead of ending it.

use super::along::Along;
use super::company::{Column, OfTurn, Regions, Turn};
use super::dot::{self, Matrix, Products, Rows, Tile, fitting, may_be_cut};
use super::places::{Places, VALUES, loaded};
use super::ring::{Consumer, Deal};
use super::runs::Runs;
use super::slices::Slice;
use super::slot::{Run, Slot};
use super::stage::Staged;
use super::together::Together;
use crate::formats::{Form, Int8, Quantised, ScaleGroup, SuperBlock, Weights, form, format};
use crate::ptx::{Builder, F32, Global, LoadKind, Pred, Shared, Size, U8, U32, Val, Var, Work};
use kiln_shape::{Numerics, SUPER_BLOCK, WeightType};

/// The values of a warp's super-blocks.
#[derive(Debug, Clone)]
pub(crate) struct Values {
    /// The places of all warps, the warp's own, and how many each has.
    all: Shared<F32>,
    own: Shared<F32>,
    each: Size,
    along: Along,
    places: Places,
    /// Whether the vector is staged whole and rows follow each other in whole super-blocks.
    is_run: bool,
    /// The warp's place for weights on their way, where it brings them to shared memory itself.
    slot: Option<Slot>,
    /// The way along rows of so many super-blocks at a step, by lanes that share them or not.
    ways: Vec<((u32, bool), Way)>,
    /// The ring that weights come through, and the way along rows of an entry at a step.
    ring: Option<(Consumer, Way)>,
    /// The rows that the block's warps may work on together, and the first of them.
    together: Option<(Together, Val<U32>)>,
    /// The columns that weights are multiplied with, where there may be several.
    regions: Option<Regions>,
    /// What is staged of a vector that may be in slices, and the warp's first row.
    slice: Option<(Slice, Val<U32>)>,
}

impl Values {
    /// Takes the shared memory, for rows of `types` of which `along` super-blocks are staged, in so many bytes. Weights
    /// come through `ring`, where there is one; each column's values lie in its region, where there may be several.
    #[track_caller]
    pub(crate) fn new(
        b: &mut Builder,
        types: &[WeightType],
        along: &Along,
        is_run: bool,
        vector_bytes: u32,
        (ring, regions): (Option<Consumer>, Option<Regions>),
    ) -> Values {
        let (all, several) = match &regions {
            None => (b.dynamic_shared(VALUES * b.warps()), None),
            Some(regions) => {
                let (values, several) = regions.values();
                (values, Some(several))
            }
        };
        let each = Size::Const(VALUES);
        let each = several.map_or(each, |several| several.choose(b, Size::Const(several.values), each));
        let warp = b.warp_id();
        let beside = vector_bytes + 4 * VALUES * b.warps();
        let loads = ring.is_none() && b.target().sm() >= 80 && is_run;
        let slot = loads.then(|| Slot::new(b, types, beside));
        let places = Places::new(b, along, several);
        let mut ways: Vec<((u32, bool), Way)> = Vec::new();
        if let Some(slot) = &slot {
            for ty in types.iter().filter(|ty| format(**ty).int8().is_some()) {
                let records @ (step, by_two) = slot.records(*ty);
                if ways.iter().all(|(known, _)| *known != records) {
                    let lane = b.lane();
                    let lane = if by_two { b.and::<U32>(lane, step - 1) } else { lane };
                    ways.push((records, Way::new(b, along, lane, Size::Const(step))));
                }
            }
        }
        let ring = ring.map(|ring| {
            let lane = b.lane();
            (ring, Way::new(b, along, lane, Size::Reg(ring.records())))
        });
        let own = b.mul::<U32>(warp, each);
        let own = b.index(all, own);
        let along = along.clone();
        Values { all, own, each, along, places, is_run, slot, ways, ring, together: None, regions, slice: None }
    }

    /// Deals the rows of `block` to its warps, and lets them work together where that is faster, the matrix is `alone`, and the
    /// vector is not in slices; another one begins at `border`. None without a ring.
    #[track_caller]
    pub(crate) fn deal(
        &mut self,
        b: &mut Builder,
        block: (Val<U32>, Val<U32>),
        (border, alone): (Val<U32>, Val<Pred>),
        slice: Option<Slice>,
    ) -> Option<Runs> {
        let (ring, way) = self.ring.as_mut()?;
        let of = (b.warps(), ring.records());
        let runs = Runs::new(b, block, border, &self.along, of);
        let alone = match slice {
            None => alone,
            Some(slice) => {
                let is_part = slice.is_part(b);
                let whole = b.not_pred(is_part);
                b.and_pred(alone, whole)
            }
        };
        let together = Together::new(b, &runs, &self.along, self.places.rows(), of, alone);
        way.step_together(b, &together);
        if let Some(slice) = slice {
            let is_part = slice.is_part(b);
            way.step_by_rows(b, is_part);
        }
        self.slice = slice.map(|slice| {
            let warp = b.warp_id();
            (slice, runs.of_warp(b, warp).0)
        });
        self.together = Some((together, block.0));
        Some(runs)
    }

    /// The most rows of a tile.
    pub(crate) const fn tile_rows(&self) -> Size {
        self.places.rows()
    }

    /// The lane's first turn in a tile that begins with row `first`.
    #[track_caller]
    pub(crate) fn first_turn(&self, b: &mut Builder, regions: &Regions, first: Val<U32>) -> Turn {
        regions.first_turn(b, &self.places, first)
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
        self.multiply(b, matrix, staged, tile, rows);
        let lane = b.lane();
        let row = b.add::<U32>(rows.first, lane);
        let products = self.fold(b, matrix, tile, rows, before, (row, None));
        self.meet(b); // the values have been read
        products
    }

    /// The same for all columns, by turns: a lane has a row and a column. `first` is the lane's first turn. Of a vector in slices
    /// `body` has those of the last slice, which go on from the sums of those before.
    #[track_caller]
    pub(crate) fn rows_of_columns(
        &self,
        b: &mut Builder,
        matrix: Matrix<'_>,
        (staged, tile): (&Staged, Tile),
        rows: Rows,
        (regions, first): (&Regions, &Turn),
        body: impl FnOnce(&mut Builder, OfTurn, Products),
    ) {
        self.multiply(b, matrix, staged, tile, rows);
        // A warp may have no rows of a matrix, but super-blocks of others' rows.
        let any = b.setp_lt::<U32>(rows.first, rows.end);
        b.if_(any, |b| {
            regions.by_turns(b, (&self.places, first), rows.first, |b, turn| {
                let Some((slice, first)) = &self.slice else {
                    let zero = b.mov(0.0);
                    let products = self.fold(b, matrix, tile, rows, zero, (turn.row, Some(turn.shift)));
                    return body(b, turn, products);
                };
                let place = |b: &mut Builder| {
                    let row = slice.row(b, turn.row, *first);
                    regions.gate(b, turn.shift, row)
                };
                let before = b.var::<F32>(0.0);
                let (inside, (follows, _)) = (b.setp_lt::<U32>(turn.row, rows.end), slice.neighbours(b));
                let goes_on = b.and_pred(inside, follows);
                b.if_(goes_on, |b| {
                    let at = place(b);
                    let sum = b.ld(at, LoadKind::Ordinary);
                    b.set(before, sum);
                });
                let before = b.get(before);
                let Products { rows: of_lane, sums, leader } =
                    self.fold(b, matrix, tile, rows, before, (turn.row, Some(turn.shift)));
                let (_, goes_on) = slice.neighbours(b);
                let (ends, keeps) = (b.not_pred(goes_on), b.and_pred(leader, goes_on));
                let sum = sums[0];
                b.if_(keeps, |b| {
                    let at = place(b);
                    b.st(at, sum);
                });
                // Nobody has a result before the last slice.
                let leader = b.and_pred(leader, ends);
                body(b, turn, Products { rows: of_lane, sums, leader });
            });
        });
        self.meet(b); // the values have been read
    }

    /// Puts the values of all super-blocks of rows into shared memory.
    fn multiply(&self, b: &mut Builder, matrix: Matrix<'_>, staged: &Staged, tile: Tile, rows: Rows) {
        let types = fitting(matrix.types, tile.k());
        let values = |b: &mut Builder, ty: WeightType| match (format(ty).int8(), &self.regions) {
            (Some(int8), _) => self.of_bytes(b, matrix, staged, tile, rows, (ty, int8)),
            (None, None) => self.of_floats(b, matrix, staged, tile, rows, ty, None),
            (None, Some(regions)) => regions.each(b, |b, column| {
                let staged = staged.behind(b, column.shift);
                self.of_floats(b, matrix, &staged, tile, rows, ty, Some(column));
            }),
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
        self.meet(b); // the values are in shared memory
    }

    /// Adds up the values of a lane's row, if that is one of the tile, in the region that lies so far behind the first one.
    fn fold(
        &self,
        b: &mut Builder,
        matrix: Matrix<'_>,
        tile: Tile,
        rows: Rows,
        before: Val<F32>,
        (row, shift): (Val<U32>, Option<Val<U32>>),
    ) -> Products {
        let is_row = b.setp_lt::<U32>(row, rows.end);
        let types = fitting(matrix.types, tile.k());
        let sum = b.var(before);
        let (of_tile, _) = self.places.of_lane(b);
        let from = self.at(b, rows, of_tile);
        let from = in_region(b, from, shift);
        let is_float = |ty: &&WeightType| form(**ty, Numerics::Fast) == Form::Float;
        let floats: Vec<WeightType> = types.iter().filter(is_float).copied().collect();
        let staged = match &self.slice {
            None => tile.staged(),
            Some((slice, _)) => Size::Reg(slice.count(b)),
        };
        let fold = |b: &mut Builder, count: Size| {
            b.if_(is_row, |b| {
                let add = |b: &mut Builder, value: Val<F32>| {
                    let next = b.add(sum, value);
                    b.set(sum, next);
                };
                match count {
                    Size::Const(count @ 0..=16) => {
                        loaded(b, from, count).into_iter().for_each(|value| add(b, value));
                    }
                    // The chain waits for shared memory once in 16.
                    count => {
                        let (all, mut done) = (b.mov::<U32>(count), b.mov::<U32>(0));
                        // Of a vector that is staged in parts the last may have any length.
                        let of_slices: Vec<u32> =
                            self.slice.iter().flat_map(|(slice, _)| slice.of().all_counts()).collect();
                        let steps = match self.is_run {
                            true => self.along.steps([16, 8, 4, 2, 1], &of_slices),
                            false => vec![16, 4, 1],
                        };
                        for step in steps {
                            let whole = b.and::<U32>(all, !(step - 1));
                            b.for_range(done, whole, step, |b, i| {
                                b.keep_rolled();
                                let at = b.index(from, i);
                                loaded(b, at, step).into_iter().for_each(|value| add(b, value));
                            });
                            done = whole;
                        }
                    }
                }
            });
        };
        if floats.is_empty() {
            fold(b, staged);
        } else if floats.len() == types.len() {
            fold(b, Size::Const(1));
        } else {
            let bit = b.shl::<U32>(1u32, matrix.tensor.ty);
            let mask = floats.iter().fold(0, |mask, ty| mask | 1 << ty.id());
            let bit = b.and::<U32>(bit, mask);
            let is_float = b.setp_ne(bit, 0);
            b.if_else(is_float, |b| fold(b, Size::Const(1)), |b| fold(b, staged));
        }
        Products { rows: vec![row], sums: vec![b.get(sum)], leader: is_row }
    }

    /// Waits for the lanes that values are exchanged with: the warp's, or the block's.
    fn meet(&self, b: &mut Builder) {
        b.bar_warp_sync();
        if let Some((together, _)) = &self.together {
            b.if_(together.is, Builder::bar_sync);
        }
    }

    /// The place of the warp's values: of the block's, where warps work together.
    fn base(&self, b: &mut Builder, together: &Together) -> Shared<F32> {
        let warp = b.warp_id();
        let before = b.mul::<U32>(warp, self.each);
        let before = b.selp::<U32>(0, before, together.is);
        b.index(self.all, before)
    }

    /// Where the values of a row of a tile begin.
    fn at(&self, b: &mut Builder, tile: Rows, row: Val<U32>) -> Shared<F32> {
        let Some((together, first)) = &self.together else {
            let before = self.places.of_row(b, row);
            return b.index(self.own, before);
        };
        let before = b.sub::<U32>(tile.first, *first);
        let before = b.selp::<U32>(before, 0, together.is);
        let row = b.add::<U32>(row, before);
        let before = self.places.of_row(b, row);
        let base = self.base(b, together);
        b.index(base, before)
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
        let is_cut = !self.is_run && may_be_cut(k) && ty.block_len() < SUPER_BLOCK;
        let mut first_row = |base: Global<U8>, row_bytes: Size| {
            let base = b.address(base);
            let row = b.mad_wide(rows.first, row_bytes, base);
            b.global_ptr::<U8>(row)
        };
        let data = first_row(tensor.data, row_bytes);
        let plane = if layout.plane == 0 { tensor.plane } else { first_row(tensor.plane, plane_bytes) };
        let x = staged.quantised(b, int8.group);
        if let Some((ring, way)) = &self.ring {
            let first = b.mul::<U32>(rows.first, along);
            let records = ring.records();
            let deal = Deal { first, left: tasks, each: records, step: b.mov::<U32>(way.step) };
            let deal = match &self.slice {
                None => deal,
                Some((slice, _)) => slice.deal(b, deal),
            };
            return self.through_ring(b, (*ring, way), (ty, deal), int8, &x);
        }
        let run = Run { data, plane, ty, tasks };
        if let Some(slot) = self.slot {
            let records @ (step, by_two) = slot.records(ty);
            let Some((_, way)) = self.ways.iter().find(|(known, _)| *known == records) else { return };
            let place = way.begin(b);
            let half = by_two.then(|| x.half(b));
            return slot.each(b, &run, |b, has, weights| {
                let super_block = b.get(place.super_block);
                let work = Work::Shared(ty, SUPER_BLOCK * step / 32);
                let value = match &half {
                    Some(half) => int8.dot_by_two(b, weights, (&x, half), super_block, work),
                    None => int8.dot(b, weights, &x, super_block, work),
                };
                let number = b.get(place.number);
                let to = self.places.of(b, number);
                let to = b.index(self.own, to);
                b.if_(has, |b| b.st(to, value));
                way.go_on(b, &place);
            });
        }
        let lane = b.lane();
        let last = b.sub::<U32>(tasks, 1);
        b.for_range(0, tasks, 32, |b, first| {
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
            let value = int8.dot(b, &weights, &x, super_block, Work::Weights(ty, SUPER_BLOCK));
            // Of a vector staged in parts the last may be shorter: its rows lie as far apart as those of the others.
            let to = if self.is_run {
                self.places.of(b, task)
            } else {
                let begin = self.places.of_row(b, row);
                b.add::<U32>(begin, super_block)
            };
            let to = b.index(self.own, to);
            b.if_(has, |b| b.st(to, value));
        });
    }

    /// The values of super-blocks that come through a ring, as they are dealt to warps with rows of their own.
    fn through_ring(
        &self,
        b: &mut Builder,
        (ring, way): (Consumer, &Way),
        (ty, deal): (WeightType, Deal),
        int8: Int8,
        x: &Quantised,
    ) {
        let place = way.begin(b);
        let (deal, base) = match &self.together {
            None => (deal, self.own),
            Some(of) => self.part(b, of, deal, (way, &place)),
        };
        // A warp without super-blocks would read activations for nothing.
        let any = b.setp_ne(deal.left, 0);
        b.if_(any, |b| {
            let first = b.get(place.super_block);
            // With eight scales a super-block, and before sm_90, a lane has no registers left for activations.
            let holds = int8.group == ScaleGroup::Of256 && b.target().sm() >= 90;
            let held = holds.then(|| int8.hold(b, x, first));
            // Whether others' activations are needed each time: in a row of other super-blocks, and for several columns.
            let changes = way.changes(b);
            let changes = match &self.regions {
                None => changes,
                Some(regions) => {
                    let several = regions.are_several(b);
                    b.or_pred(changes, several)
                }
            };
            ring.each(b, ty, &deal, |b, has, weights| {
                let super_block = b.get(place.super_block);
                let number = b.get(place.number);
                let to = self.places.of(b, number);
                way.go_on(b, &place);
                let work = Work::Shared(ty, SUPER_BLOCK);
                let keep = |b: &mut Builder, column: Option<Column>, value: Val<F32>| {
                    let to = b.index(base, to);
                    let to = in_region(b, to, column.map(|column| column.shift));
                    b.if_(has, |b| b.st(to, value));
                };
                let dot = |b: &mut Builder, column: Option<Column>| {
                    let Some(held) = &held else {
                        let x = column.map_or(*x, |column| x.behind(b, column.shift));
                        let value = int8.dot(b, weights, &x, super_block, work);
                        return keep(b, column, value);
                    };
                    let value = held.dot(b, weights, x);
                    keep(b, column, value);
                    // What comes next: another column's of this super-block, or the next one's.
                    b.if_(changes, |b| {
                        let next = b.get(place.super_block);
                        let further = b.sub::<U32>(next, super_block);
                        match (column, &self.regions) {
                            (Some(column), Some(regions)) => {
                                let (more, bytes) = regions.next(b, column);
                                let further = b.selp::<U32>(0, further, more);
                                held.go_on(b, further, Some(bytes));
                            }
                            _ => held.go_on(b, further, None),
                        }
                    });
                };
                match &self.regions {
                    None => dot(b, None),
                    Some(regions) => regions.each(b, |b, column| {
                        b.each_iteration(Work::Columns);
                        dot(b, Some(column));
                    }),
                }
            });
        });
    }

    /// What the warp has where warps work together, and where values go; sets the lane's place.
    fn part(
        &self,
        b: &mut Builder,
        (together, block): &(Together, Val<U32>),
        alone: Deal,
        (way, place): (&Way, &At),
    ) -> (Deal, Shared<F32>) {
        let [first, left, each] = [alone.first, alone.left, alone.each].map(|of| b.var::<U32>(of));
        b.if_(together.is, |b| {
            let (warp, lane) = (b.warp_id(), b.lane());
            let part = together.of_warp(b, warp);
            b.set(left, part.left);
            b.set(each, part.each);
            let number = b.mad::<U32>(*block, way.along.size(), part.first);
            b.set(first, number);
            let own = b.add::<U32>(part.first, lane);
            let super_block = way.along.within(b, own);
            b.set(place.super_block, super_block);
            b.set(place.number, own);
        });
        let base = self.base(b, together);
        (Deal { first: b.get(first), left: b.get(left), each: b.get(each), ..alone }, base)
    }

    /// The products of weights that are floats, one value a row, as the exact kernels have them.
    #[allow(clippy::too_many_arguments)]
    fn of_floats(
        &self,
        b: &mut Builder,
        matrix: Matrix<'_>,
        staged: &Staged,
        way: Tile,
        tile: Rows,
        ty: WeightType,
        column: Option<Column>,
    ) {
        let types = [ty];
        let matrix = Matrix { types: &types, ..matrix };
        b.for_range(tile.first, tile.end, way.rows(), |b, first| {
            let products = dot::rows(b, matrix, staged, way, Rows { first, end: tile.end });
            for (row, sum) in products.rows.into_iter().zip(products.sums) {
                let inside = b.setp_lt::<U32>(row, tile.end);
                let writes = b.and_pred(inside, products.leader);
                b.if_(writes, |b| {
                    let row = b.sub::<U32>(row, tile.first);
                    let to = self.at(b, tile, row);
                    let to = in_region(b, to, column.map(|column| column.shift));
                    b.st(to, sum);
                });
            }
        });
    }
}

/// The place in the region that lies so many bytes behind the first one.
fn in_region<T>(b: &mut Builder, place: Shared<T>, shift: Option<Val<U32>>) -> Shared<T> {
    match shift {
        None => place,
        Some(shift) => b.byte_index(place, shift, 1),
    }
}

/// A lane's way through a run of rows, so many super-blocks at a step.
#[derive(Debug, Clone)]
struct Way {
    /// The lane's first super-block, counted in the run and within its row.
    number: Val<U32>,
    super_block: Val<U32>,
    along: Along,
    /// A step, and how far it goes on within a row.
    step: Size,
    further: Size,
}

/// Where a lane is on its way.
struct At {
    number: Var<U32>,
    super_block: Var<U32>,
}

impl Way {
    /// The way of a lane that begins at the super-block of that number.
    fn new(b: &mut Builder, along: &Along, number: Val<U32>, step: Size) -> Way {
        let super_block = along.within(b, number);
        let further = match (along.size(), step) {
            (Size::Const(along), Size::Const(step)) => Size::Const(step % along),
            _ => {
                let step = b.mov::<U32>(step);
                Size::Reg(along.within(b, step))
            }
        };
        Way { number, super_block, along: along.clone(), step, further }
    }

    /// The step where warps may work together.
    fn step_together(&mut self, b: &mut Builder, together: &Together) {
        let (step, stays) = (together.step(b), together.stays(b));
        self.step = Size::Reg(b.selp::<U32>(step, self.step, together.is));
        self.further = Size::Reg(b.selp::<U32>(0, self.further, stays));
    }

    /// The step where a row's slice is an entry.
    fn step_by_rows(&mut self, b: &mut Builder, is: Val<Pred>) {
        self.step = Size::Reg(b.selp::<U32>(self.along.size(), self.step, is));
        self.further = Size::Reg(b.selp::<U32>(0, self.further, is));
    }

    /// Whether a lane's super-block is another one after a step.
    fn changes(&self, b: &mut Builder) -> Val<Pred> {
        let further = b.mov::<U32>(self.further);
        b.setp_ne(further, 0)
    }

    fn begin(&self, b: &mut Builder) -> At {
        At { number: b.var(self.number), super_block: b.var(self.super_block) }
    }

    fn go_on(&self, b: &mut Builder, at: &At) {
        let number = b.add::<U32>(at.number, self.step);
        b.set(at.number, number);
        if matches!(self.further, Size::Const(0)) {
            return;
        }
        let next = b.add::<U32>(at.super_block, self.further);
        let over = b.setp_ge::<U32>(next, self.along.size());
        let wrapped = b.sub::<U32>(next, self.along.size());
        let next = b.selp::<U32>(wrapped, next, over);
        b.set(at.super_block, next);
    }
}
