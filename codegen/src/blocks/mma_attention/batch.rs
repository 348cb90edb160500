//! Neighbouring positions against the cache, whose keys and values they share: the rows of a block are their heads, and
//! each row is that of decoding. Positions behind a row's own weigh nothing; the cut into units is that of its own length.
//!
//! A row's chunks come in their order, so one thread puts an element's together: those of a unit, and units as they end.

use super::{FAST_CHUNK, ROWS, Run, THREADS, Workspace};
use crate::blocks::attention::Heads;
use crate::blocks::kv::Cache;
use crate::blocks::running::{Part, Running};
use crate::ptx::{Builder, F32, Global, LoadKind, Size, U32, Val};

/// Attention of some positions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batch {
    work: Workspace,
    /// Units of a KV head at most.
    most: u32,
}

/// The lengths of rows: the sequence up to each position.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lengths {
    pub(super) first: Val<U32>,
    /// That of the last position.
    last: Val<U32>,
    /// Rows of a position.
    group: u32,
}

impl Lengths {
    pub(super) fn of_row(&self, b: &mut Builder, row: Val<U32>) -> Val<U32> {
        let position = b.div::<U32>(row, self.group);
        let length = b.add(position, self.first);
        b.min::<U32>(length, self.last)
    }
}

/// Positions of a sequence, and their queries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Positions {
    pub(crate) cache: Cache,
    pub(crate) kv_head: Val<U32>,
    /// The length of the sequence up to the first of them, and how many there are.
    pub(crate) length: Val<U32>,
    pub(crate) count: Val<U32>,
    /// The first one's queries of the KV head, and bytes to the next one's.
    pub(crate) q: Global<F32>,
    pub(crate) apart: Size,
}

impl Batch {
    /// Takes the shared memory for so many positions.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, heads: Heads, most: u32, positions: u32) -> Batch {
        let rows = (positions * heads.group).next_multiple_of(ROWS);
        Batch { work: Workspace::of_positions(b, heads, positions, rows), most }
    }

    /// Attends, and gives each thread's elements of the result to `sink` as (position, head of the group, dimension,
    /// softmax).
    #[track_caller]
    pub(crate) fn attend(
        &self,
        b: &mut Builder,
        of: &Positions,
        sink: impl Fn(&mut Builder, Val<U32>, Val<U32>, Val<U32>, [Val<F32>; 4]),
    ) {
        let (work, group) = (self.work, self.work.heads.group);
        let last = b.sub(of.count, 1);
        self.load_queries(b, of, last);
        let end = b.add(of.length, last);
        let lengths = Lengths { first: of.length, last: end, group };
        let zero = b.mov::<U32>(0);
        let run = Run { cache: of.cache, kv_head: of.kv_head, first: zero, end };
        let all = chunks(b, end);
        let warp = b.warp_id();
        let owned = work.owned(b);
        let folds: Vec<Fold> = owned
            .iter()
            .map(|own| {
                let length = lengths.of_row(b, own.head);
                let chunks = chunks(b, length);
                let each = b.add(chunks, self.most - 1);
                let each = b.div::<U32>(each, self.most);
                let each = b.max::<U32>(each, 1);
                Fold { chunks, each, inside: b.var(0), unit: Running::none(b), units: Running::none(b) }
            })
            .collect();
        b.for_range(0, all, work.slots, |b, round| {
            b.bar_sync(); // queries are in shared memory, and what the slots held is put together
            let chunk = b.add(round, warp);
            let works = b.setp_lt(chunk, all);
            let works = if THREADS / 32 > work.slots {
                let has_slot = b.setp_lt(warp, work.slots);
                b.and_pred(works, has_slot)
            } else {
                works
            };
            b.if_(works, |b| {
                let first = b.mul::<U32>(chunk, FAST_CHUNK);
                work.chunk(b, run, Some(lengths), first, warp);
            });
            b.bar_sync(); // the chunks are in their slots
            for (own, fold) in owned.iter().zip(&folds) {
                own.if_there(b, |b| {
                    let left = b.sub(fold.chunks, round);
                    let ended = b.setp_lt(fold.chunks, round);
                    let left = b.selp::<U32>(0, left, ended);
                    let here = b.min::<U32>(left, work.slots);
                    b.for_range(0, here, 1, |b, slot| {
                        let part = work.part(b, own, slot);
                        let number = b.add(round, slot);
                        fold.add(b, number, part);
                    });
                });
            }
        });
        for (own, fold) in owned.iter().zip(&folds) {
            let (position, head) = (b.div::<U32>(own.head, group), b.rem::<U32>(own.head, group));
            own.if_there(b, |b| {
                let there = b.setp_lt(position, of.count);
                b.if_(there, |b| {
                    let values = fold.units.part(b).divided(b);
                    sink(b, position, head, own.dim, values);
                });
            });
        }
    }

    /// Brings all queries into shared memory; the last position's stand in for those that are missing.
    fn load_queries(&self, b: &mut Builder, of: &Positions, last: Val<U32>) {
        let Heads { group, head_dim, .. } = self.work.heads;
        let tid = b.tid();
        b.for_range(tid, self.work.rows() * head_dim / 4, b.block(), |b, quad| {
            let (row, inside) = (b.div::<U32>(quad, head_dim / 4), b.rem::<U32>(quad, head_dim / 4));
            let (position, head) = (b.div::<U32>(row, group), b.rem::<U32>(row, group));
            let position = b.min::<U32>(position, last);
            let from = row_of(b, of.q, position, of.apart);
            let from = b.byte_index(from, head, head_dim * 4);
            let from = b.byte_index(from, inside, 16);
            let values = b.ld_vector(from, LoadKind::Constant);
            self.work.store_quad(b, row, inside, values);
        });
    }
}

/// Row `number` of so many bytes each.
pub(crate) fn row_of(b: &mut Builder, base: Global<F32>, number: Val<U32>, bytes: Size) -> Global<F32> {
    match bytes {
        Size::Const(bytes) => b.byte_index(base, number, bytes),
        Size::Reg(bytes) => {
            let base = b.address(base);
            let at = b.mad_wide(number, bytes, base);
            b.global_ptr(at)
        }
    }
}

/// Chunks of a sequence.
fn chunks(b: &mut Builder, length: Val<U32>) -> Val<U32> {
    let up = b.add(length, FAST_CHUNK - 1);
    b.shr(up, FAST_CHUNK.trailing_zeros())
}

/// An element's chunks that are put together: as a run puts its own together, and as `join` does runs.
struct Fold {
    /// Chunks of the row, and of each of its units.
    chunks: Val<U32>,
    each: Val<U32>,
    /// Those of the unit so far.
    inside: crate::ptx::Var<U32>,
    unit: Running,
    units: Running,
}

impl Fold {
    /// Adds the row's chunk `number`, the next.
    fn add(&self, b: &mut Builder, number: Val<U32>, part: Part) {
        let begins = b.setp_eq(self.inside, 0);
        b.if_else(begins, |b| self.unit.begin(b, part), |b| self.unit.add(b, part));
        let inside = b.add(self.inside, 1);
        let next = b.add(number, 1);
        let full = b.setp_ge(inside, self.each);
        let is_last = b.setp_ge(next, self.chunks);
        let ends = b.or_pred(full, is_last);
        b.if_(ends, |b| {
            let unit = self.unit.part(b);
            let single = b.setp_ge(self.each, self.chunks);
            b.if_else(single, |b| self.units.begin(b, unit), |b| self.units.add(b, unit));
        });
        let inside = b.selp::<U32>(0, inside, ends);
        b.set(self.inside, inside);
    }
}
