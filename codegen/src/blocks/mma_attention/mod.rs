//! One query token against a run of chunks of an f16 cache by tensor cores, for all query heads of one KV head, by one
//! block: a warp a chunk of 32 positions, then all threads put the chunks together from left to right.
//!
//! `S = Q K^T` by `mma`, a head a row. The query, with 1 / sqrt(head_dim) in it, is two f16 numbers, the high half in row
//! `r` and what that leaves in row `r + 8`: a block of 16 rows holds 8 heads, and a score is the sum of two rows, nearly
//! that of an f32 query. Positions behind the sequence's end weigh nothing: the last row stands in for theirs, whose score
//! is -inf, so that what lies there is not read. `P = e^(S - m)` with the chunk's own maximum `m` is two f16 numbers in the
//! same two rows, which one f16 would leave half empty; the sum of exponentials is a column of ones beside V, so that
//! weights and their sum are added up alike; `O = P V` in f32, again the sum of two rows.
//!
//! **Order.** A lane reads 16 bytes of a key, so of each 32 dimensions one `mma` takes those with `d % 8 < 4` and the next
//! the others; values are multiplied in ascending positions, 16 at a time. Chunks are cut at multiples of 32 positions and
//! put together from left to right within a run, runs from left to right ([`kiln_shape::units`]). Nothing depends on the
//! warps of a block, or on which block has a run.
//!
//! **Assumption.** An element of an `mma`'s result depends on its row of A, its column of B and its element of C alone, not on
//! other rows and columns or on their places. The ISA does not say so; batches rest on it ([`batch`]), whose rows are other
//! positions, and whose columns are other dimensions of the values. `tests/kernels/mma.rs` tests it. What an `mma` adds up
//! inside is the chip's own, and sm_75 has one of half the depth: bits are promised per target.

mod batch;
mod chunk;

pub(crate) use batch::{BATCH_THREADS, Batch, Positions, batch_blocks_per_sm, batch_zeros};
pub(crate) use chunk::Asked;

use super::attention::Heads;
use super::kv::Cache;
use super::parts::Parts;
use super::running::{Part, Running};
use crate::ptx::{Builder, F16, F32, Global, LoadKind, Pred, Shared, U32, Val, Work};
use kiln_shape::units::FAST_CHUNK;

/// Threads of a stream kernel's block: a run has few chunks while a sequence is short, and a warp takes up to 255
/// registers.
pub(crate) const THREADS: u32 = 128;

/// Heads of a block of rows.
const ROWS: u32 = 8;
/// Chunks that a block works on at once, at most, and what their sums may take of shared memory. In a block of more warps
/// than a stream kernel's, the persistent decoder's, no more than products take besides: a ring has the rest. Of Qwen2.5-3B, with
/// eight heads a KV head, these are four chunks: with a fifth its ring would hold five entries of a warp instead of six.
const SLOTS: u32 = 8;
const SLOT_BYTES: u32 = 48 << 10;
const SLOT_BYTES_BESIDE_RING: u32 = 25 << 10;

/// What the heads must be: `Err` says what was found.
pub(crate) fn check(head_dim: u32) -> Result<(), String> {
    match head_dim {
        64 | 128 | 192 | 256 => Ok(()),
        other => Err(format!("head_dim is {other}: attention in fast numerics needs a multiple of 64 up to 256")),
    }
}

/// The shared memory of a run's work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workspace {
    heads: Heads,
    /// Rows of a slot.
    kept: u32,
    /// `[blocks of rows, 2 ROWS, head_dim]`, rows [`query_row`] apart.
    q: Shared<F16>,
    /// `[slots, kept, head_dim]`, rows [`sums_row`] apart, 16 dimensions 20 floats apart.
    sums: Shared<F32>,
    /// `[slots, kept]`: maximum and sum of exponentials.
    statistics: Shared<F32>,
    /// `[head_dim]`: the newest position's key.
    newest: Shared<F16>,
    slots: u32,
}

/// From a row of queries to the next, in elements: the 16-byte pieces of two rows lie in different banks.
const fn query_row(head_dim: u32) -> u32 {
    head_dim + 32
}

/// From a row of sums to the next, in floats: 16 more than a multiple of 32, so that the pieces of 16 dimensions of two
/// rows lie in different banks.
const fn sums_row(head_dim: u32) -> u32 {
    (head_dim / 16 * 20).next_multiple_of(32) + 16
}

/// Four neighbouring elements of a head that a thread puts together.
#[derive(Debug, Clone, Copy)]
struct Own {
    head: Val<U32>,
    dim: Val<U32>,
    /// Whether they are there, where threads are left over.
    there: Option<Val<Pred>>,
}

impl Own {
    fn if_there(&self, b: &mut Builder, body: impl FnOnce(&mut Builder)) {
        match self.there {
            Some(there) => b.if_(there, body),
            None => body(b),
        }
    }
}

/// The chunks of a run, and the length of the sequence that they are of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) cache: Cache,
    pub(crate) kv_head: Val<U32>,
    /// The run's first position, a multiple of [`FAST_CHUNK`].
    pub(crate) first: Val<U32>,
    /// The position behind its last.
    pub(crate) end: Val<U32>,
}

/// Chunks of a run.
fn chunks(b: &mut Builder, run: Run) -> Val<U32> {
    let positions = b.sub(run.end, run.first);
    let chunks = b.add(positions, FAST_CHUNK - 1);
    b.shr(chunks, FAST_CHUNK.trailing_zeros())
}

impl Workspace {
    /// Takes the shared memory. Only the rows that have a head are kept: of a block of eight these are often four or two.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, heads: Heads) -> Workspace {
        let (rows, kept) = (heads.group.next_multiple_of(ROWS), heads.group);
        let slot = |rows: u32| rows * sums_row(heads.head_dim) * 4;
        let fitting =
            if b.warps() > THREADS / 32 { SLOT_BYTES_BESIDE_RING / slot(kept) } else { SLOT_BYTES / slot(rows) };
        let slots = b.warps().min(SLOTS).min(fitting.max(1));
        Workspace {
            heads,
            kept,
            q: b.dynamic_shared(rows * 2 * query_row(heads.head_dim)),
            sums: b.dynamic_shared(slots * kept * sums_row(heads.head_dim)),
            statistics: b.dynamic_shared(slots * kept * 2),
            newest: b.dynamic_shared(heads.head_dim),
            slots,
        }
    }

    /// Stores an element of a query, scaled, as its two halves. A barrier must follow.
    fn store(&self, b: &mut Builder, row: Shared<F16>, dim: Val<U32>, value: Val<F32>) {
        let value = b.mul(value, self.heads.scale());
        let high = b.cvt::<F16, F32>(value);
        let kept = b.cvt::<F32, F16>(high);
        let rest = b.sub(value, kept);
        let low = b.cvt::<F16, F32>(rest);
        let to = b.index(row, dim);
        b.st(to, high);
        b.st(to.at(ROWS * query_row(self.heads.head_dim)), low);
    }

    /// The row of a head's high halves.
    fn query(&self, b: &mut Builder, head: Val<U32>) -> Shared<F16> {
        let (block, row) = (b.div::<U32>(head, ROWS), b.rem::<U32>(head, ROWS));
        let row = b.mad::<U32>(block, 2 * ROWS, row);
        b.byte_index(self.q, row, query_row(self.heads.head_dim) * 2)
    }

    /// Brings `q`, `[group, head_dim]`, into shared memory, four elements a thread. A barrier must follow.
    #[track_caller]
    pub(crate) fn load_queries(&self, b: &mut Builder, q: Global<F32>, kind: LoadKind) {
        let (tid, Heads { group, head_dim, .. }) = (b.tid(), self.heads);
        b.for_range(tid, group * head_dim / 4, b.block(), |b, quad| {
            let from = b.byte_index(q, quad, 16);
            let values: [Val<F32>; 4] = b.ld_vector(from, kind);
            let (head, inside) = (b.div::<U32>(quad, head_dim / 4), b.rem::<U32>(quad, head_dim / 4));
            self.store_quad(b, head, inside, values);
        });
    }

    /// Stores four neighbouring elements of a row's query, scaled, as their halves.
    fn store_quad(&self, b: &mut Builder, row: Val<U32>, quad: Val<U32>, values: [Val<F32>; 4]) {
        let values = values.map(|value| b.mul(value, self.heads.scale()));
        let [first, second] = chunk::two_halves(b, [[values[0], values[1]], [values[2], values[3]]]);
        let to = self.query(b, row);
        let to = b.byte_index(to, quad, 8).cast::<U32>();
        b.st_vector(to, [first[0], second[0]]);
        b.st_vector(to.at(ROWS * query_row(self.heads.head_dim) / 2), [first[1], second[1]]);
    }

    /// Puts one head's query, held by a warp (lane l has elements l, l + 32, ...), into shared memory. A barrier must
    /// follow.
    #[track_caller]
    pub(crate) fn store_query(&self, b: &mut Builder, head: Val<U32>, lane: Val<U32>, values: &[Val<F32>]) {
        let row = self.query(b, head);
        for (i, value) in values.iter().enumerate() {
            self.store(b, row.at(32 * i as u32), lane, *value);
        }
    }

    /// Puts an element of the newest position's key into shared memory. A barrier must follow.
    #[track_caller]
    pub(crate) fn store_new(&self, b: &mut Builder, dim: Val<U32>, value: Val<F32>) {
        if !self.asks(b) {
            return;
        }
        let half = b.cvt::<F16, F32>(value);
        let to = b.index(self.newest, dim);
        b.st(to, half);
    }

    /// Whether keys are asked for before queries are there: before sm_90 ptxas would spill as many registers as they take.
    fn asks(&self, b: &mut Builder) -> bool {
        self.together() && b.target().sm() >= 90
    }

    /// Asks for the keys that each warp reads first of a run, where registers have room for them; of the newest position nothing,
    /// if it `has_new`.
    #[track_caller]
    pub(crate) fn ask(&self, b: &mut Builder, run: Run, has_new: Val<Pred>) -> Option<Asked> {
        self.asks(b).then(|| {
            let (warp, chunks) = (b.warp_id(), chunks(b, run));
            let works = self.works(b, warp, chunks);
            let first = b.mad::<U32>(warp, FAST_CHUNK, run.first);
            self.ask_chunk(b, run, (first, works), has_new)
        })
    }

    /// Whether a warp has that chunk of a round.
    fn works(&self, b: &mut Builder, chunk: Val<U32>, chunks: Val<U32>) -> Val<Pred> {
        let works = b.setp_lt(chunk, chunks);
        if b.warps() <= self.slots {
            return works;
        }
        let warp = b.warp_id();
        let has_slot = b.setp_lt(warp, self.slots);
        b.and_pred(works, has_slot)
    }

    /// Attends to a run, and gives each thread's elements of the result to `sink` as (head of the group, dimension, part).
    /// Begins with a barrier: queries are seen. Another must come before the workspace is used again.
    #[track_caller]
    pub(crate) fn run(
        &self,
        b: &mut Builder,
        (run, asked): (Run, Option<&Asked>),
        sink: impl Fn(&mut Builder, Val<U32>, Val<U32>, Part),
    ) {
        let chunks = chunks(b, run);
        let warp = b.warp_id();
        let owned = self.owned(b);
        let running: Vec<Running> = owned.iter().map(|_| Running::none(b)).collect();
        b.for_range(0, chunks, self.slots, |b, round| {
            b.each_iteration(Work::Read(2 * FAST_CHUNK * self.heads.head_dim / 32));
            b.bar_sync(); // queries are in shared memory, and what the slots held is put together
            let chunk = b.add(round, warp);
            let works = self.works(b, chunk, chunks);
            b.if_(works, |b| {
                let first = b.mad::<U32>(chunk, FAST_CHUNK, run.first);
                let is_first = b.setp_eq(round, 0);
                self.chunk(b, run, (first, is_first), warp, asked);
            });
            b.bar_sync(); // the chunks are in their slots
            let left = b.sub(chunks, round);
            let here = b.min::<U32>(left, self.slots);
            let begins = b.setp_eq(round, 0);
            let first = b.selp::<U32>(1, 0, begins);
            for (own, running) in owned.iter().zip(&running) {
                own.if_there(b, |b| {
                    b.if_(begins, |b| {
                        let slot = b.mov::<U32>(0);
                        let part = self.part(b, own, slot);
                        running.begin(b, part);
                    });
                    b.for_range(first, here, 1, |b, slot| {
                        b.each_iteration(Work::Few);
                        let part = self.part(b, own, slot);
                        running.add(b, part);
                    });
                });
            }
        });
        for (own, running) in owned.iter().zip(&running) {
            own.if_there(b, |b| {
                let part = running.part(b);
                sink(b, own.head, own.dim, part);
            });
        }
    }

    /// Puts runs together: rows of `head_dim` sums, maximum and sum of exponentials, `row` floats each, `runs` one behind
    /// the other, those of the group's heads `heads_apart` rows apart. Gives each thread's elements to `sink` as (head of
    /// the group, dimension, part).
    #[track_caller]
    pub(crate) fn join(
        &self,
        b: &mut Builder,
        partials: Global<F32>,
        row: u32,
        heads_apart: Val<U32>,
        runs: Val<U32>,
        sink: impl Fn(&mut Builder, Val<U32>, Val<U32>, Part),
    ) {
        /// Runs whose loads are under way together.
        const AHEAD: u32 = 8;
        let head_dim = self.heads.head_dim;
        let last = b.sub(runs, 1);
        for own in self.owned(b) {
            own.if_there(b, |b| {
                let first = b.mul::<U32>(own.head, heads_apart);
                let first = b.byte_index(partials, first, row * 4);
                let running = Running::none(b);
                b.for_range(0, runs, AHEAD, |b, run| {
                    b.each_iteration(Work::Read(AHEAD * 6)); // four sums, the maximum, the sum of exponentials
                    let mut parts = Vec::new();
                    for ahead in 0..AHEAD {
                        let own_run = b.add(run, ahead);
                        let there = b.setp_lt(own_run, runs);
                        let own_run = b.min::<U32>(own_run, last);
                        let from = b.byte_index(first, own_run, row * 4);
                        let values = b.index(from, own.dim);
                        let values = b.ld_vector(values, LoadKind::Ordinary);
                        let [max, sum] = b.ld_vector(from.at(head_dim), LoadKind::Ordinary);
                        parts.push((there, Part { max, sum, values }));
                    }
                    for (there, part) in parts {
                        b.if_(there, |b| running.add(b, part));
                    }
                });
                let part = running.part(b);
                sink(b, own.head, own.dim, part);
            });
        }
    }

    /// Puts runs together whose parts come through the exchange. The group's elements are cut into as many shares as there are
    /// `units`, of which this is number `unit`; the last ones may be empty. `head` is the group's first.
    #[track_caller]
    pub(crate) fn join_share(
        &self,
        b: &mut Builder,
        parts: &Parts,
        head: Val<U32>,
        (unit, units): (Val<U32>, Val<U32>),
        sink: impl FnOnce(&mut Builder, Val<U32>, Val<U32>, Part),
    ) {
        /// Runs that are waited for together.
        const AHEAD: u32 = 8;
        let (lane, warp, head_dim) = (b.lane(), b.warp_id(), self.heads.head_dim);
        let all = self.rows() * head_dim / 4;
        let each = b.add::<U32>(units, all - 1);
        let each = b.div::<U32>(each, units);
        let first = b.mul::<U32>(unit, each);
        let behind = b.add::<U32>(first, each);
        let behind = b.min::<U32>(behind, all);
        let (last, last_unit) = (b.sub::<U32>(behind, 1), b.sub::<U32>(units, 1));
        let layer = parts.of_layer(b);
        let first = b.mad::<U32>(warp, 32, first);
        // By whole warps: a lane without an element waits for that of the last one.
        b.for_range(first, behind, b.block(), |b, first| {
            let own = b.add::<U32>(first, lane);
            let there = b.setp_lt(own, behind);
            let own = b.min::<U32>(own, last);
            let (of_group, quad) = (b.div::<U32>(own, head_dim / 4), b.rem::<U32>(own, head_dim / 4));
            let dim = b.mul::<U32>(quad, 4);
            let head = b.add::<U32>(head, of_group);
            let running = Running::none(b);
            b.for_range(0, units, AHEAD, |b, run| {
                let (mut is_unit, mut numbers) = (Vec::new(), Vec::new());
                for ahead in 0..AHEAD {
                    let number = b.add(run, ahead);
                    is_unit.push(b.setp_lt(number, units));
                    numbers.push(b.min::<U32>(number, last_unit));
                }
                let found = parts.load(b, layer, &numbers, (head, dim));
                for (is_unit, part) in is_unit.into_iter().zip(found) {
                    b.if_(is_unit, |b| running.add(b, part));
                }
            });
            let part = running.part(b);
            b.if_(there, |b| sink(b, of_group, dim, part));
        });
    }

    /// Rows that have a head.
    const fn rows(&self) -> u32 {
        self.heads.group
    }

    /// Blocks that these take.
    const fn blocks_of_rows(&self) -> u32 {
        self.rows().div_ceil(ROWS)
    }

    /// The elements that the thread puts together.
    fn owned(&self, b: &mut Builder) -> Vec<Own> {
        let head_dim = self.heads.head_dim;
        let (tid, all, threads) = (b.tid(), self.rows() * head_dim / 4, b.block());
        let firsts = (0..all).step_by(threads as usize);
        firsts
            .map(|first| {
                let index = b.add(tid, first);
                let there = (first + threads > all).then(|| b.setp_lt(index, all));
                let (head, quad) = (b.div::<U32>(index, head_dim / 4), b.rem::<U32>(index, head_dim / 4));
                Own { head, dim: b.mul::<U32>(quad, 4), there }
            })
            .collect()
    }

    /// The thread's elements of the chunk in a slot.
    fn part(&self, b: &mut Builder, own: &Own, slot: Val<U32>) -> Part {
        let row = b.mad::<U32>(slot, self.kept, own.head);
        let statistics = b.byte_index(self.statistics, row, 8);
        let [max, sum] = b.ld_vector(statistics, LoadKind::Ordinary);
        let (piece, inside) = (b.div::<U32>(own.dim, 16), b.rem::<U32>(own.dim, 16));
        let at = b.byte_index(self.sums, row, sums_row(self.heads.head_dim) * 4);
        let at = b.byte_index(at, piece, 80);
        let at = b.index(at, inside);
        Part { max, sum, values: b.ld_vector(at, LoadKind::Ordinary) }
    }
}
