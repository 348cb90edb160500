//! The FFN's vector of several columns in slices: shared memory holds a few super-blocks of each column at once, so that there is
//! room for more columns beside a ring.
//!
//! A warp's rows are multiplied with one slice after another, at most [`ROWS_OF_COLUMN`] of them between two stagings of the same
//! slice: so many sums a column and warp are kept. A row's chain of additions goes on where it stood behind the slice before, so
//! that its bits are those of a vector that is staged whole.
//!
//! The ring has its entries in that order: of a warp's next rows those of the first slice, an entry a row, then those of the second
//! one, and so on.

use super::places::ROWS_OF_COLUMN;
use super::ring::Deal;
use crate::ptx::{Builder, Pred, S32, Size, U32, Val, Var};

/// Super-blocks of a slice: so many lanes are busy with a row's. The longer ones where an entry holds them.
const SLICES: [u32; 2] = [16, 8];

/// Which vectors of a model come in slices: its longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InSlices {
    /// Its super-blocks, and those of the longest of the others.
    pub(crate) longest: u32,
    pub(crate) others: u32,
}

impl InSlices {
    /// The most super-blocks of a slice: the longer ones where the other vectors have more than the shorter ones.
    pub(crate) const fn most(self) -> u32 {
        if self.others > SLICES[1] { SLICES[0] } else { SLICES[1] }
    }

    /// Super-blocks of a vector or slice at most.
    pub(crate) fn room(self) -> u32 {
        self.others.max(self.most())
    }

    /// Whether there would be several.
    pub(crate) fn are_several(self) -> bool {
        self.longest > self.room()
    }

    /// The super-blocks that slices may have, but for the last one of a vector.
    pub(crate) fn counts(self) -> impl Iterator<Item = u32> {
        SLICES.into_iter().filter(move |slice| *slice <= self.most())
    }

    /// The super-blocks that any of them may have.
    pub(crate) fn all_counts(self) -> impl Iterator<Item = u32> {
        self.counts().flat_map(move |slice| [slice, self.longest % slice])
    }
}

/// How a phase's vector is staged; the same on both ends of a ring, and in the whole grid. What follows from a length is computed
/// where it is used: registers are short beside products.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slices {
    of: InSlices,
    /// Super-blocks of the vector, and of a slice.
    all: Val<U32>,
    slice: Val<U32>,
}

/// What of the vector is staged, and with which rows it is multiplied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slice {
    of: Slices,
    /// Its first super-block, in [`FIRST_BITS`], and above it the warp's rows before those that are multiplied with it.
    at: Var<U32>,
}

/// Bits of a super-block's number.
const FIRST_BITS: u32 = 8;

impl Slices {
    /// Those of a phase whose vector has `all` super-blocks, beside a ring whose entries have so many records at most.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, of: InSlices, records: Val<U32>, all: Size) -> Slices {
        Slices { of, all: b.mov::<U32>(all), slice: b.min::<U32>(records, of.most()) }
    }

    /// Whether the vector comes in slices.
    #[track_caller]
    pub(crate) fn are(&self, b: &mut Builder) -> Val<Pred> {
        b.setp_eq(self.all, self.of.longest)
    }

    /// From one slice's first super-block to the next one's; all where the vector is staged whole.
    #[track_caller]
    pub(crate) fn each(&self, b: &mut Builder) -> Val<U32> {
        let are = self.are(b);
        b.selp::<U32>(self.slice, self.all, are)
    }

    /// Super-blocks of a row.
    pub(crate) const fn all(&self) -> Val<U32> {
        self.all
    }

    /// The super-blocks that there is room for.
    #[track_caller]
    pub(crate) fn room(&self, b: &mut Builder) -> Size {
        Size::Reg(self.each(b))
    }

    /// Rows of a warp that are multiplied with all slices before the next ones are; so many where the vector is whole.
    #[track_caller]
    pub(crate) fn rows(&self, b: &mut Builder, whole: Size) -> Size {
        let are = self.are(b);
        Size::Reg(b.selp::<U32>(ROWS_OF_COLUMN, whole, are))
    }

    /// Super-blocks of the slice that begins with `first`.
    fn count(&self, b: &mut Builder, first: Val<U32>) -> Val<U32> {
        let (left, each) = (b.sub::<U32>(self.all, first), self.each(b));
        b.min::<U32>(left, each)
    }

    /// The super-blocks that a warp has of so many rows and the slice that begins with `first`, where `whole` are those of the rows:
    /// of a slice an entry a row. Without a branch, since it is found out behind the vector.
    #[track_caller]
    pub(crate) fn deal(&self, b: &mut Builder, whole: Deal, first: Val<U32>) -> Deal {
        let (count, are) = (self.count(b, first), self.are(b));
        let others = b.sub::<U32>(self.all, count);
        // None where there are no rows.
        let left = b.sub::<U32>(whole.left, others);
        let left = b.mov_bits::<S32, U32>(left);
        let left = b.max::<S32>(left, 0);
        Deal {
            first: b.add::<U32>(whole.first, first),
            left: b.mov_bits(left),
            each: b.selp::<U32>(count, whole.each, are),
            step: b.selp::<U32>(self.all, whole.step, are),
        }
    }

    /// The first slice.
    #[track_caller]
    pub(crate) fn begin(&self, b: &mut Builder) -> Slice {
        Slice { of: *self, at: b.var::<U32>(0) }
    }
}

impl Slice {
    /// Whether it may be a part of the vector.
    #[track_caller]
    pub(crate) fn is_part(&self, b: &mut Builder) -> Val<Pred> {
        self.of.are(b)
    }

    /// The vectors that come so.
    pub(crate) const fn of(&self) -> InSlices {
        self.of.of
    }

    /// Whether nothing was staged before it.
    #[track_caller]
    pub(crate) fn is_first(&self, b: &mut Builder) -> Val<Pred> {
        b.setp_eq(self.at, 0)
    }

    /// The super-blocks that there is room for.
    #[track_caller]
    pub(crate) fn room(&self, b: &mut Builder) -> Size {
        self.of.room(b)
    }

    /// Its first super-block.
    #[track_caller]
    pub(crate) fn first(&self, b: &mut Builder) -> Val<U32> {
        b.and::<U32>(self.at, (1 << FIRST_BITS) - 1)
    }

    /// The warp's rows before those that are multiplied with it.
    fn rows_before(&self, b: &mut Builder) -> Val<U32> {
        b.shr::<U32>(self.at, FIRST_BITS)
    }

    /// Its super-blocks.
    #[track_caller]
    pub(crate) fn count(&self, b: &mut Builder) -> Val<U32> {
        let first = self.first(b);
        self.of.count(b, first)
    }

    /// Whether others come before it, and whether others follow.
    #[track_caller]
    pub(crate) fn neighbours(&self, b: &mut Builder) -> (Val<Pred>, Val<Pred>) {
        let (first, each) = (self.first(b), self.of.each(b));
        let left = b.sub::<U32>(self.of.all, first);
        (b.setp_ne(first, 0), b.setp_lt::<U32>(each, left))
    }

    /// The number of a row among those that are multiplied with it, where the warp's first one is `first`.
    #[track_caller]
    pub(crate) fn row(&self, b: &mut Builder, row: Val<U32>, first: Val<U32>) -> Val<U32> {
        let (of_warp, before) = (b.sub::<U32>(row, first), self.rows_before(b));
        b.sub::<U32>(of_warp, before)
    }

    /// The super-blocks that a warp has of some rows, where `whole` are those of the rows: of a slice an entry a row.
    #[track_caller]
    pub(crate) fn deal(&self, b: &mut Builder, whole: Deal) -> Deal {
        let first = self.first(b);
        self.of.deal(b, whole, first)
    }

    /// Of a warp's rows, of which there are `most` at most, those that are multiplied: from the first on, below the second.
    #[track_caller]
    pub(crate) fn rows(&self, b: &mut Builder, most: Val<U32>) -> (Val<U32>, Val<U32>) {
        let before = self.rows_before(b);
        let at_once = self.of.rows(b, Size::Reg(most));
        let end = b.add::<U32>(before, at_once);
        (before, b.min::<U32>(end, most))
    }

    /// Goes on to the next slice, or to the next rows behind the last one, of `most` that a warp has at most. Whether there is one; the
    /// same in the whole block.
    #[track_caller]
    pub(crate) fn go_on(&self, b: &mut Builder, most: Val<U32>) -> Val<Pred> {
        let (more, are) = (b.var::<U32>(0), self.of.are(b));
        b.if_(are, |b| {
            let (first, rows) = (self.first(b), self.rows_before(b));
            let next = b.add::<U32>(first, self.of.slice);
            let over = b.setp_ge::<U32>(next, self.of.all);
            let next = b.selp::<U32>(0, next, over);
            let further = b.add::<U32>(rows, ROWS_OF_COLUMN);
            let rows = b.selp::<U32>(further, rows, over);
            let at = b.mad::<U32>(rows, 1 << FIRST_BITS, next);
            b.set(self.at, at);
            let follows = b.setp_lt::<U32>(rows, most);
            let follows = b.selp::<U32>(1, 0, follows);
            b.set(more, follows);
        });
        b.setp_ne(more, 0)
    }
}
