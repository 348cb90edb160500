//! Several vectors that are multiplied with quantised weights which pass by once: each column has a region of shared memory
//! for its vector and what becomes of it. The first has it where a single vector has it, and beside slices as many more as fit there;
//! the others behind all that the kernel takes.

use super::along::Along;
use super::places::{Places, ROWS_OF_COLUMN, Several, VALUES, of_column};
use super::wait::{self, Limit};
use crate::ptx::{Builder, Compare, F32, Global, LoadKind, Pred, Shared, Size, U8, U32, U64, Val, Var};
use kiln_shape::ring::ColumnMemory;

/// The columns of a launch, and the vectors of each.
#[derive(Clone, Copy)]
pub(crate) struct Company<'a> {
    /// How many there are, the same in the whole grid.
    pub(crate) count: Val<U32>,
    /// How many the launch has room for.
    pub(crate) most: Size,
    /// The shared memory for regions that do not lie with the first.
    pub(crate) rest: Shared<U8>,
    /// The vectors of a column.
    pub(crate) vectors: &'a dyn Fn(&mut Builder, Val<U32>) -> Vectors,
    pub(crate) ready: Ready,
}

/// When the norms' factors of a phase's columns are there. One warp computes them, which has the fewest rows, while the others
/// multiply: behind its arrival they are there for all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    mbarrier: Shared<U64>,
    /// The mbarrier's phases that have begun: those of the kernel that are normalised.
    phases: Shared<U32>,
    limit: Limit,
}

impl Ready {
    /// Takes the shared memory. By the whole block; a barrier of the block must follow.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, limit: Limit) -> Ready {
        let ready = Ready { mbarrier: b.shared("factors_ready", 1), phases: b.shared("normalised_phases", 1), limit };
        let tid = b.tid();
        let first = b.setp_eq(tid, 0);
        b.if_(first, |b| {
            b.mbarrier_init(ready.mbarrier, 1);
            b.st(ready.phases, 0);
        });
        ready
    }

    /// Begins a phase that is normalised, by one thread, between barriers of the block.
    #[track_caller]
    pub(crate) fn begin(&self, b: &mut Builder) {
        let before = b.ld(self.phases, LoadKind::Ordinary);
        let next = b.add::<U32>(before, 1);
        b.st(self.phases, next);
    }

    /// Says that the factors are there, by one thread that has seen them all.
    #[track_caller]
    pub(crate) fn arrive(&self, b: &mut Builder) {
        b.mbarrier_arrive(self.mbarrier);
    }

    /// Waits for the factors.
    #[track_caller]
    fn wait(&self, b: &mut Builder) {
        let phases = b.ld(self.phases, LoadKind::Ordinary);
        let parity = b.sub::<U32>(phases, 1);
        let parity = b.and::<U32>(parity, 1);
        wait::for_phase(b, self.limit, self.mbarrier, parity);
    }
}

/// Where a column's vectors lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vectors {
    /// The vector that is multiplied.
    pub(crate) x: Global<F32>,
    pub(crate) y: Global<F32>,
    pub(crate) residual: Global<F32>,
    /// Whether products are written, if not always; the same in the whole grid.
    pub(crate) writes: Option<Val<Pred>>,
}

/// A column, and how many bytes its region lies behind the first one's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) number: Val<U32>,
    pub(crate) shift: Val<U32>,
}

/// Whether a launch has room for several columns.
#[track_caller]
pub(crate) fn are_several(b: &mut Builder, most: Size) -> Val<Pred> {
    b.setp(Compare::Gt, most, 1u32)
}

/// Bytes by which a region is longer than a multiple of 128: lanes with the same row of neighbouring columns meet in no bank.
const APART: u32 = 16;

/// What a lane adds up next, found out before it is multiplied: what stands behind that delays whoever waits for the product.
pub(crate) struct Turn {
    row: Var<U32>,
    shift: Var<U32>,
}

impl Turn {
    /// The lane's row.
    pub(crate) fn row(&self, b: &mut Builder) -> Val<U32> {
        b.get(self.row)
    }

    /// How many bytes its column's region lies behind the first one's.
    pub(crate) fn shift(&self, b: &mut Builder) -> Val<U32> {
        b.get(self.shift)
    }
}

/// What a lane has of a turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OfTurn {
    /// Its row, or one behind all where no column is left for it.
    pub(crate) row: Val<U32>,
    /// How many bytes its column's region lies behind the first one's.
    pub(crate) shift: Val<U32>,
    pub(crate) is_first: Val<Pred>,
}

/// A row behind all.
const NO_ROW: u32 = u32::MAX;

/// The columns' regions. Where a launch has room for several, each has room for fewer rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Regions {
    count: Val<U32>,
    /// From a region to the next one, those that follow the first so, and from the first to those that lie elsewhere.
    each: u32,
    home: u32,
    to_rest: Val<U32>,
    /// Whether the columns have norms' factors.
    normalised: Val<Pred>,
    /// Of the first column: the norm's factor.
    factor: Shared<F32>,
    ready: Ready,
    /// Of the first column: the address that its products go to, or 0, and that of its residual.
    result: Shared<U64>,
    /// Of the first column: `[warps, rows]`, the values of super-blocks, and then products of the gate.
    values: Shared<F32>,
    several: Several,
    gates: Shared<F32>,
    rows: Size,
}

/// Floats in front of the values: the norm's factor and two addresses.
const BESIDE: u32 = 8;

impl Regions {
    /// The first column's region begins at `base`, `before` bytes into dynamic shared memory, with its vector; this takes the rest
    /// of it. A single column has room for more values than one of several. Where vectors come in slices, and a whole one would
    /// take `whole` bytes, no column is a single one: as many regions as the room of a single one holds lie in it.
    #[track_caller]
    pub(crate) fn new(
        b: &mut Builder,
        company: &Company<'_>,
        normalised: Val<Pred>,
        (base, before): (Shared<F32>, u32),
        (along, whole): (&Along, Option<u32>),
    ) -> Regions {
        let warps = b.warps();
        let vector = b.dynamic_taken() - before;
        let of_several = of_column(along, whole.is_some());
        let each = (vector + 4 * (BESIDE + (of_several + ROWS_OF_COLUMN) * warps)).next_multiple_of(128) + APART;
        let of_single = BESIDE + (VALUES + 32) * warps;
        let home = whole.map_or(1, |vector| ((vector + 4 * of_single) / each).max(1));
        let factor = b.dynamic_shared::<F32>(if whole.is_some() { (home * each - vector) / 4 } else { of_single });
        let values = factor.at(BESIDE);
        b.shared_of_columns(ColumnMemory { each, home });
        let (rest, base) = (b.shared_address(company.rest), b.shared_address(base));
        let to_rest = b.sub::<U32>(rest, base);
        let several = Several { are: whole.is_none().then(|| are_several(b, company.most)), values: of_several };
        let gates = several.choose(b, Size::Const(of_several * warps), Size::Const(VALUES * warps));
        Regions {
            count: company.count,
            normalised,
            each,
            home,
            to_rest: b.add::<U32>(to_rest, APART),
            factor,
            ready: company.ready,
            result: factor.at(4).cast(),
            values,
            several,
            gates: b.index(values, gates),
            rows: several.choose(b, Size::Const(ROWS_OF_COLUMN), Size::Const(32)),
        }
    }

    /// The first column's values, and whether the launch has room for several.
    #[track_caller]
    pub(crate) const fn values(&self) -> (Shared<F32>, Several) {
        (self.values, self.several)
    }

    /// Runs `body` for each column: in the whole block, or in a whole warp.
    #[track_caller]
    pub(crate) fn each(&self, b: &mut Builder, body: impl FnOnce(&mut Builder, Column)) {
        let (number, shift) = (b.var::<U32>(0), b.var::<U32>(0));
        b.do_while(|b| {
            let column = Column { number: b.get(number), shift: b.get(shift) };
            body(b, column);
            let further = self.further(b, column);
            b.set(shift, further);
            let next = b.add::<U32>(column.number, 1);
            b.set(number, next);
            b.setp_lt::<U32>(next, self.count)
        });
    }

    /// The lane's first turn in a tile that begins with row `first`, as `places` deals lanes to columns.
    #[track_caller]
    pub(crate) fn first_turn(&self, b: &mut Builder, places: &Places, first: Val<U32>) -> Turn {
        let before = b.mov::<U32>(0);
        let (row, shift) = self.turn(b, places, before, first);
        Turn { row: b.var(row), shift: b.var(shift) }
    }

    /// Runs `body` for all columns by turns, each with those that have lanes at once, in a whole warp: with what the lane has
    /// of it, and whether it is the first.
    #[track_caller]
    pub(crate) fn by_turns(
        &self,
        b: &mut Builder,
        (places, turn): (&Places, &Turn),
        first_row: Val<U32>,
        body: impl FnOnce(&mut Builder, OfTurn),
    ) {
        let before = b.var::<U32>(0);
        b.do_while(|b| {
            let first = b.get(before);
            let of = OfTurn { row: b.get(turn.row), shift: b.get(turn.shift), is_first: b.setp_eq(first, 0) };
            body(b, of);
            let at_once = places.columns(b);
            let next = b.add::<U32>(first, at_once);
            b.set(before, next);
            let more = b.setp_lt::<U32>(next, self.count);
            b.if_(more, |b| {
                let (row, shift) = self.turn(b, places, next, first_row);
                b.set(turn.row, row);
                b.set(turn.shift, shift);
            });
            more
        });
    }

    /// The lane's row and the shift of its column, in the turn behind so many columns.
    fn turn(&self, b: &mut Builder, places: &Places, before: Val<U32>, first_row: Val<U32>) -> (Val<U32>, Val<U32>) {
        let (row, number) = places.of_lane(b);
        let (row, number) = (b.add::<U32>(first_row, row), b.add::<U32>(before, number));
        let there = b.setp_lt::<U32>(number, self.count);
        let shift = self.of(b, number).shift;
        (b.selp::<U32>(row, NO_ROW, there), shift)
    }

    /// How many bytes behind the first region the one behind a column's lies.
    fn further(&self, b: &mut Builder, column: Column) -> Val<U32> {
        let further = b.add::<U32>(column.shift, self.each);
        let leaves_home = b.setp_eq(column.number, self.home - 1);
        b.selp::<U32>(self.to_rest, further, leaves_home)
    }

    /// Whether another column follows, and how many bytes from a column's region the next one's lies, or the first one's behind
    /// the last.
    #[track_caller]
    pub(crate) fn next(&self, b: &mut Builder, column: Column) -> (Val<Pred>, Val<U32>) {
        let next = b.add::<U32>(column.number, 1);
        let more = b.setp_lt::<U32>(next, self.count);
        let further = self.further(b, column);
        let further = b.selp::<U32>(further, 0, more);
        (more, b.sub::<U32>(further, column.shift))
    }

    /// Whether there are several.
    #[track_caller]
    pub(crate) fn are_several(&self, b: &mut Builder) -> Val<Pred> {
        b.setp(Compare::Gt, self.count, 1u32)
    }

    /// The column of that number, which a lane has for itself, or the last one where there is none.
    #[track_caller]
    pub(crate) fn of(&self, b: &mut Builder, number: Val<U32>) -> Column {
        let last = b.sub::<U32>(self.count, 1);
        let number = b.min::<U32>(number, last);
        let before = b.sub::<U32>(number, self.home);
        let further = b.mad::<U32>(before, self.each, self.to_rest);
        let at_home = if self.home == 1 { b.mov::<U32>(0) } else { b.mul::<U32>(number, self.each) };
        let is_at_home = b.setp_lt::<U32>(number, self.home);
        Column { number, shift: b.selp::<U32>(at_home, further, is_at_home) }
    }

    /// Keeps the norm's factor of each lane's column for all warps, by a whole one.
    #[track_caller]
    pub(crate) fn set_factor(&self, b: &mut Builder, column: Column, factor: Val<F32>) {
        let lane = b.lane();
        let owns = b.setp_eq(lane, column.number);
        let to = b.byte_index(self.factor, column.shift, 1);
        b.if_(owns, |b| b.st(to, factor));
        b.bar_warp_sync(); // every lane has stored its own
        let leads = b.setp_eq(lane, 0);
        b.if_(leads, |b| self.ready.arrive(b));
    }

    /// The norm's factor of the column whose region lies so far behind the first one's, once it is there; 1 where there is none.
    #[track_caller]
    pub(crate) fn factor(&self, b: &mut Builder, shift: Val<U32>) -> Val<F32> {
        let factor = b.var::<F32>(1.0);
        b.if_(self.normalised, |b| {
            self.ready.wait(b);
            let at = b.byte_index(self.factor, shift, 1);
            let found = b.ld(at, LoadKind::Ordinary);
            b.set(factor, found);
        });
        b.get(factor)
    }

    /// Keeps where a column's products go and its residual is, by one thread; a barrier of the block must follow. To find it
    /// out behind the products would delay whoever waits for them.
    #[track_caller]
    pub(crate) fn set_result(&self, b: &mut Builder, column: Column, of: &Vectors) {
        let address = b.address(of.y);
        let address = match of.writes {
            Some(writes) => b.selp::<U64>(address, 0u64, writes),
            None => address,
        };
        let to = b.byte_index(self.result, column.shift, 1);
        let residual = b.address(of.residual);
        b.st_vector(to, [address, residual]);
    }

    /// Its residual.
    #[track_caller]
    pub(crate) fn residual(&self, b: &mut Builder, shift: Val<U32>) -> Global<F32> {
        let at = b.byte_index(self.result, shift, 1);
        let address = b.ld(at.at(1), LoadKind::Ordinary);
        b.global_ptr(address)
    }

    /// Where its products go, and whether they are written.
    #[track_caller]
    pub(crate) fn result(&self, b: &mut Builder, shift: Val<U32>) -> (Global<F32>, Val<Pred>) {
        let at = b.byte_index(self.result, shift, 1);
        let address = b.ld(at, LoadKind::Ordinary);
        (b.global_ptr(address), b.setp_ne::<U64>(address, 0u64))
    }

    /// Its place for the gate of a row of the warp's tile.
    #[track_caller]
    pub(crate) fn gate(&self, b: &mut Builder, shift: Val<U32>, row: Val<U32>) -> Shared<F32> {
        let warp = b.warp_id();
        let row = b.mad::<U32>(warp, self.rows, row);
        let at = b.index(self.gates, row);
        b.byte_index(at, shift, 1)
    }
}
