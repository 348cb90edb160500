//! Neighbouring positions against the cache, each up to its own. A warp has rows of its own, the heads of some positions, and
//! goes through all chunks; the block's warps share keys and values in shared memory, where the next chunk's are on their way
//! meanwhile. Each row has the bits of decoding: its chunks' products are those of [`super::chunk`], in the order and cut of
//! its own length.
//!
//! A row's sums are in registers: those of its units, where these are chunks, and else those of its unit. In that case what
//! its units before come to stands where the result will, in device memory, and is added up there as each unit ends.
//!
//! Positions behind a row's own weigh nothing. Zero times what is not finite is not zero: where there is such at the last
//! position of some row or behind, each position's rows are weighed by themselves, and that one's values stand in for those
//! behind, as in decoding.

use super::chunk::{Place, SCORES, Weights, of_lane, two_halves};
use super::{FAST_CHUNK, ROWS};
use crate::blocks::attention::Heads;
use crate::blocks::kv::{Cache, Half};
use crate::blocks::rounded_columns::{self as columns, Rounded};
use crate::blocks::running::{Joined, Sums, quotient};
use crate::matrix;
use crate::ptx::{Builder, Compare, F32, Global, LoadKind, Pred, Shared, Size, U8, U32, U64, Val, Var};
use kiln_shape::units::BatchCut;
use kiln_shape::{SUPER_BLOCK, WeightType};

/// Positions or dimensions of an `mma`'s columns.
const COLUMNS: u32 = 8;
/// Bytes of a piece that a thread copies.
const PIECE: u32 = 16;

/// Attention of some positions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batch {
    heads: Heads,
    cut: BatchCut,
    /// Units of a KV head at most.
    most: u32,
    /// `[stages, 32]` keys, [`key_row`] apart, and as many values, [`value_row`] apart.
    stages: Shared<U8>,
}

/// Positions of a sequence, and their queries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Positions {
    pub(crate) cache: Cache,
    pub(crate) kv_head: Val<U32>,
    /// The block's number among those of the KV head.
    pub(crate) block: Val<U32>,
    /// The length of the sequence up to the first of them, and how many there are.
    pub(crate) length: Val<U32>,
    pub(crate) count: Val<U32>,
    /// The first one's queries of the KV head, and its results.
    pub(crate) q: Global<F32>,
    pub(crate) out: Global<F32>,
    /// Bytes to the next one's.
    pub(crate) q_apart: Size,
    pub(crate) out_apart: Size,
}

/// From a key to the next, in bytes: the 16-byte pieces of two rows lie in different banks.
const fn key_row(head_dim: u32) -> u32 {
    2 * head_dim + 64
}

/// From a value to the next: pieces of eight rows lie in different banks.
const fn value_row(head_dim: u32) -> u32 {
    2 * head_dim + PIECE
}

/// Bytes of a chunk.
const fn stage(head_dim: u32) -> u32 {
    FAST_CHUNK * (key_row(head_dim) + value_row(head_dim))
}

/// Threads of a block.
pub(crate) const BATCH_THREADS: u32 = 32 * 2 * BatchCut::WARPS;

/// Blocks that an SM must hold, by which the assembler limits registers.
pub(crate) const fn batch_blocks_per_sm(head_dim: u32) -> u32 {
    if head_dim <= 128 { 2 } else { 1 }
}

/// Words of keys, of each 8 positions.
type Keys = [[Val<U32>; 4]; SCORES / 2];

/// The lane's row: a head of a position.
struct Row {
    /// Whether it is there; where it is not, another stands in for it.
    there: Val<Pred>,
    /// The sequence up to its position, and its chunks.
    length: Val<U32>,
    chunks: Val<U32>,
    /// Chunks of a unit.
    each: Val<U32>,
    /// Its queries as the lane has them as A: of each 32 dimensions the words of high halves and of what these leave.
    query: Vec<[[Val<U32>; 4]; 2]>,
    /// Its results, from the lane's two of the first eight dimensions on.
    out: Global<F32>,
    /// The chunks so far, as [`crate::blocks::running`] puts them together: two of each eight dimensions.
    sums: Sums,
    values: Vec<[Var<F32>; 2]>,
    /// Chunks of the unit so far.
    inside: Var<U32>,
    /// The units before, whose values stand in `out`.
    units: Sums,
}

/// The tile of a warp, and the warp's number in it.
pub(crate) struct Tile {
    /// Its first position, and the one behind its last.
    first: Val<U32>,
    end: Val<U32>,
    warp: Val<U32>,
}

/// The block's and the warp's part of the positions.
struct Share {
    tile: Tile,
    /// The position behind the block's last, in the sequence.
    end: Val<U32>,
    /// The warp's first among the positions, and the length up to it; of some other where the warp has none.
    first: Val<U32>,
    shortest: Val<U32>,
    /// The length up to the warp's last position; 0 where it has none.
    longest: Val<U32>,
    /// The warp's number among those that share a position.
    part: Val<U32>,
}

impl Batch {
    /// Takes the shared memory.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, heads: Heads, most: u32) -> Batch {
        let stages = if matrix::copies_run_on(b) { 2 } else { 1 };
        let stages = b.dynamic_shared((stages * stage(heads.head_dim)).max(BATCH_THREADS / 32 * 4 * columns::words(1)));
        Batch { heads, cut: BatchCut::of(heads.group), most, stages }
    }

    /// Attends, and writes the results. Gives the warp's tile.
    #[track_caller]
    pub(crate) fn attend(&self, b: &mut Builder, of: &Positions) -> Tile {
        let share = self.share(b, of);
        let all = chunks(b, share.end);
        let runs_on = matrix::copies_run_on(b);
        let bytes = stage(self.heads.head_dim);
        let last = b.sub::<U32>(all, 1);
        let first = b.mov::<U32>(0);
        // What the next chunk is found by, read before it is waited for.
        let entry = of.cache.entry(b, first);
        let entry = b.var::<U64>(entry);
        let copy = |b: &mut Builder, chunk: Val<U32>, to: Shared<U8>| {
            self.copy(b, of, (share.end, chunk), entry, to);
            let next = b.add::<U32>(chunk, 1);
            let next = b.min::<U32>(next, last);
            let next = b.mul::<U32>(next, FAST_CHUNK);
            let next = of.cache.entry(b, next);
            b.set(entry, next);
        };
        if runs_on {
            copy(b, first, self.stages);
            matrix::commit(b);
        }
        let row = self.row(b, of, &share);
        b.for_range(0, all, 1, |b, chunk| {
            let (at, keys) = if runs_on {
                let odd = b.and::<U32>(chunk, 1);
                let here = b.byte_index(self.stages, odd, bytes);
                let even = b.xor::<U32>(odd, 1);
                let other = b.byte_index(self.stages, even, bytes);
                b.cp_async_wait_group(0);
                b.bar_sync(); // the chunk is in shared memory, and the one before has been read
                let keys = self.keys(b, here);
                let first = keys(b, 0);
                let next = b.add::<U32>(chunk, 1);
                let goes_on = b.setp_lt(next, all);
                b.if_(goes_on, |b| copy(b, next, other));
                b.cp_async_commit_group();
                (here, first)
            } else {
                b.bar_sync(); // the chunk before has been read
                copy(b, chunk, self.stages);
                b.bar_sync(); // this one is in shared memory
                let keys = self.keys(b, self.stages);
                (self.stages, keys(b, 0))
            };
            let first = b.mul::<U32>(chunk, FAST_CHUNK);
            let works = b.setp_lt(first, share.longest);
            b.if_(works, |b| self.chunk(b, (&share, &row), (at, &keys), chunk));
        });
        self.finish(b, &row);
        share.tile
    }

    /// Rounds results of the warp's tile, `[columns, q_dim]` from `y` on, for products with weights of some types. The heads
    /// of a KV head are whole super-blocks.
    #[track_caller]
    pub(crate) fn round(
        &self,
        b: &mut Builder,
        (y, q_dim, kv_head): (Global<F32>, u32, Val<U32>),
        tile: &Tile,
        (to, types): (Rounded, &[WeightType]),
    ) {
        let wants = b.setp_ne(to.wanted, 0);
        b.if_(wants, |b| {
            b.bar_sync(); // results are written, and the last chunk has been read
            let (rows, super_blocks) = (b.mov::<U32>(q_dim), b.mov::<U32>(q_dim / SUPER_BLOCK));
            let each = self.heads.group * self.heads.head_dim / SUPER_BLOCK;
            let warp = b.warp_id();
            let room = b.byte_index(self.stages, warp, 4 * columns::words(1)).cast();
            let own = b.add::<U32>(tile.first, tile.warp);
            let share = columns::Share { y, rows, own, end: tile.end, apart: BatchCut::WARPS };
            let first = b.mul::<U32>(kv_head, each);
            let end = b.add::<U32>(first, each);
            // The second tile of a block may be none, and a warp without a column.
            let has_column = b.setp_lt(own, tile.end);
            b.if_(has_column, |b| {
                b.for_range(first, end, 1, |b, sb| {
                    to.super_block(b, types, &share, [sb, super_blocks], (room, 1), |_, _, _| {});
                });
            });
        });
    }

    fn share(&self, b: &mut Builder, of: &Positions) -> Share {
        let cut = self.cut;
        let tiles = b.size_div_ceil(Size::Reg(of.count), cut.positions());
        let last_tile = b.sub::<U32>(tiles, 1);
        let back = b.sub::<U32>(last_tile, of.block);
        let warp = b.warp_id();
        let is_back = b.setp_ge(warp, BatchCut::WARPS);
        let tile = b.selp::<U32>(back, of.block, is_back);
        let before = b.selp::<U32>(BatchCut::WARPS, 0, is_back);
        let warp = b.sub::<U32>(warp, before);
        let (number, part) = (b.div::<U32>(warp, cut.of_position()), b.rem::<U32>(warp, cut.of_position()));
        let tile = b.mul::<U32>(tile, cut.positions());
        let first = b.mad::<U32>(number, cut.of_warp(), tile);
        // The tile in the middle is of the front.
        let front_only = b.setp_ge(of.block, back);
        let is_twice = b.and_pred(is_back, front_only);
        let count = b.selp::<U32>(0, of.count, is_twice);
        let works = b.setp_lt(first, count);
        let last = b.sub::<U32>(of.count, 1);
        let of_warp = b.add::<U32>(first, cut.of_warp() - 1);
        let of_warp = b.min::<U32>(of_warp, last);
        let longest = b.add::<U32>(of.length, of_warp);
        let longest = b.selp::<U32>(longest, 0, works);
        let first = b.min::<U32>(first, last);
        let shortest = b.add::<U32>(of.length, first);
        let end = b.mad::<U32>(back, cut.positions(), cut.positions() - 1);
        let end = b.min::<U32>(end, last);
        let behind = b.add::<U32>(tile, cut.positions());
        let tile = Tile { first: tile, end: b.min::<U32>(behind, count), warp };
        Share { tile, end: b.add::<U32>(of.length, end), first, shortest, longest, part }
    }

    fn row(&self, b: &mut Builder, of: &Positions, share: &Share) -> Row {
        let Heads { group, head_dim, .. } = self.heads;
        let (lane, rows) = (b.lane(), self.cut.of_warp() * group);
        let (number, member) = (b.shr::<U32>(lane, 2), b.and::<U32>(lane, 3));
        let (position, head, inside) = if self.cut.of_position() == 1 {
            let inside = b.setp_lt(number, rows);
            let number = b.min::<U32>(number, rows - 1);
            let own = b.div::<U32>(number, group);
            (b.add::<U32>(share.first, own), b.rem::<U32>(number, group), inside)
        } else {
            let head = b.mad::<U32>(share.part, ROWS, number);
            let inside = b.setp_lt(head, group);
            (share.first, b.min::<U32>(head, group - 1), inside)
        };
        let there = b.setp_lt(position, of.count);
        let there = b.and_pred(there, inside);
        let works = b.setp_ne(share.longest, 0);
        let there = b.and_pred(there, works);
        let last = b.sub::<U32>(of.count, 1);
        let position = b.min::<U32>(position, last);
        let length = b.add::<U32>(of.length, position);
        let chunks = chunks(b, length);
        let each = b.add::<U32>(chunks, self.most - 1);
        let each = b.div::<U32>(each, self.most);
        let own = |b: &mut Builder, base: Global<F32>, apart: Size| {
            let at = row_of(b, base, position, apart);
            b.byte_index(at, head, head_dim * 4)
        };
        let q = own(b, of.q, of.q_apart);
        let q = b.byte_index(q, member, 32);
        let kind = b.kind_of_earlier();
        let quads: Vec<[[Val<F32>; 4]; 2]> =
            (0..head_dim / 32).map(|i| [0, 4].map(|at| b.ld_vector(q.at(32 * i + at), kind))).collect();
        let query = quads
            .into_iter()
            .map(|quads| {
                let [[a, c, d, e], [f, g, h, i]] =
                    quads.map(|values| values.map(|value| b.mul(value, self.heads.scale())));
                let words = two_halves(b, [[a, c], [d, e], [f, g], [h, i]]);
                [0, 1].map(|half| words.map(|word| word[half]))
            })
            .collect();
        let out = own(b, of.out, of.out_apart);
        let out = b.byte_index(out, member, 8);
        let values = (0..head_dim / COLUMNS).map(|_| [(); 2].map(|()| b.var(0.0))).collect();
        let (sums, units) = (Sums::none(b), Sums::none(b));
        let row = Row { there, length, chunks, each, query, out, sums, values, inside: b.var(0), units };
        let adds = row.adds_units(b);
        let adds = b.and_pred(adds, there);
        b.if_(adds, |b| {
            let zero = b.mov::<F32>(0.0);
            (0..head_dim / COLUMNS).for_each(|eight| b.st_vector(row.out.at(COLUMNS * eight), [zero; 2]));
        });
        row
    }

    /// Starts the thread's copies of a chunk's keys and values. Behind the block's last position that one's stand in.
    fn copy(
        &self,
        b: &mut Builder,
        of: &Positions,
        (end, chunk): (Val<U32>, Val<U32>),
        entry: Var<U64>,
        to: Shared<U8>,
    ) {
        let head_dim = self.heads.head_dim;
        let pieces = 2 * head_dim / PIECE;
        let row_bytes = self.heads.row_bytes();
        let tid = b.tid();
        let first = b.mul::<U32>(chunk, FAST_CHUNK);
        let left = b.sub::<U32>(end, first);
        let last = b.sub::<U32>(left, 1);
        let values = to.at(FAST_CHUNK * key_row(head_dim));
        let entry = b.get(entry);
        for (half, to, apart) in [(Half::Keys, to, key_row(head_dim)), (Half::Values, values, value_row(head_dim))] {
            let from = of.cache.row_of_entry(b, entry, half, of.kv_head, first, Size::Const(row_bytes));
            for before in (0..FAST_CHUNK * pieces).step_by(BATCH_THREADS as usize) {
                let piece = b.add::<U32>(tid, before);
                let copy = |b: &mut Builder| {
                    let (row, inside) = (b.div::<U32>(piece, pieces), b.rem::<U32>(piece, pieces));
                    let to = b.byte_index(to, row, apart);
                    let to = b.byte_index(to, inside, PIECE);
                    let row = b.min::<U32>(row, last);
                    let from = b.byte_index(from, row, row_bytes);
                    let from = b.byte_index(from, inside, PIECE);
                    matrix::copy(b, to, from, Size::Const(PIECE));
                };
                if before + BATCH_THREADS > FAST_CHUNK * pieces {
                    let there = b.setp_lt(piece, FAST_CHUNK * pieces);
                    b.if_(there, copy);
                } else {
                    copy(b);
                }
            }
        }
    }

    /// Attends to a chunk that is in shared memory, by one warp.
    fn chunk(
        &self,
        b: &mut Builder,
        (share, row): (&Share, &Row),
        (at, first_keys): (Shared<U8>, &Keys),
        chunk: Val<U32>,
    ) {
        let values = at.at(FAST_CHUNK * key_row(self.heads.head_dim));
        let first = b.mul::<U32>(chunk, FAST_CHUNK);
        let left = b.sub::<U32>(row.length, first);
        let takes = b.setp_lt(chunk, row.chunks);
        let left = b.selp::<U32>(left, 0, takes);
        let at_begin = b.setp_eq(row.inside, 0);
        let apart = row.begins(b);
        let begins = b.and_pred(at_begin, apart);
        let is_cut = b.setp_lt(left, FAST_CHUNK);
        let own = b.or_pred(begins, is_cut);
        let slow = b.vote_any(own);
        let scores = self.scores(b, row, at, first_keys);
        b.if_(slow, |b| {
            let lane = b.lane();
            let member = b.and::<U32>(lane, 3);
            for (score, place) in &scores {
                let position = place.of(b, member);
                let inside = b.setp_lt(position, left);
                let kept = b.selp::<F32>(*score, f32::NEG_INFINITY, inside);
                b.set(*score, kept);
            }
        });
        let scores = scores.map(|(score, _)| b.get(score));
        let weights = Weights::of(b, scores);
        let sum = weights.sum(b);
        let joined = row.sums.joined(b, weights.max, sum);
        b.if_else(
            slow,
            |b| {
                self.weigh_apart(b, (share, row), (&weights, joined), values, first, [takes, begins]);
                let (max, sum) =
                    (b.selp::<F32>(weights.max, joined.max, begins), b.selp::<F32>(sum, joined.sum, begins));
                let (max, sum) = (b.selp::<F32>(max, row.sums.max, takes), b.selp::<F32>(sum, row.sums.sum, takes));
                b.set(row.sums.max, max);
                b.set(row.sums.sum, sum);
            },
            |b| {
                let lane = b.lane();
                let at = row_of_values(b, values, lane, self.heads.head_dim);
                weigh(b, &weights, at, row, |b, sum, part| joined.value(b, sum, part));
                b.set(row.sums.max, joined.max);
                b.set(row.sums.sum, joined.sum);
            },
        );
        row.end_unit(b, chunk, takes);
    }

    /// Reads keys of a chunk as the lane has them as B: of each 8 positions the words of one of each 32 dimensions.
    fn keys(&self, b: &mut Builder, at: Shared<U8>) -> impl Fn(&mut Builder, u32) -> Keys + use<> {
        let lane = b.lane();
        let (number, member) = (b.shr::<U32>(lane, 2), b.and::<U32>(lane, 3));
        let apart = key_row(self.heads.head_dim);
        let own = b.byte_index(at, number, apart);
        let own = b.byte_index(own, member, PIECE).cast::<U32>();
        move |b, dims| {
            [0, 1, 2, 3].map(|eight| b.ld_vector(own.at((eight * COLUMNS * apart + 64 * dims) / 4), LoadKind::Ordinary))
        }
    }

    /// The lane's scores of its row. Further keys are on their way while some are multiplied.
    fn scores(&self, b: &mut Builder, row: &Row, at: Shared<U8>, first: &Keys) -> [(Var<F32>, Place); SCORES] {
        let keys = self.keys(b, at);
        let zero = b.mov::<F32>(0.0);
        let mut scores = [[zero; 4]; SCORES / 2];
        let mut coming = *first;
        for ([high, low], next) in row.query.iter().zip(1..) {
            let of = coming;
            if next < self.heads.head_dim / 32 {
                coming = keys(b, next);
            }
            for half in [0, 2] {
                let a = [high[half], low[half], high[half + 1], low[half + 1]];
                for (scores, keys) in scores.iter_mut().zip(&of) {
                    *scores = matrix::halves_k16(b, a, [keys[half], keys[half + 1]], *scores);
                }
            }
        }
        of_lane(b, scores).map(|(score, place)| (b.var(score), place))
    }

    /// Weighs the values of a chunk that begins a unit of some rows, or that some have not wholly.
    fn weigh_apart(
        &self,
        b: &mut Builder,
        (share, row): (&Share, &Row),
        (weights, joined): (&Weights, Joined),
        values: Shared<U8>,
        first: Val<U32>,
        [takes, begins]: [Val<Pred>; 2],
    ) {
        let lane = b.lane();
        // A lane looks at the values of a position.
        let at = row_of_values(b, values, lane, self.heads.head_dim);
        let position = b.add::<U32>(first, lane);
        let found = b.var::<U32>(0);
        let next = b.add::<U32>(position, 1);
        let behind = b.setp_ge(next, share.shortest);
        b.if_(behind, |b| {
            let mut any = b.mov::<U32>(0);
            for piece in 0..2 * self.heads.head_dim / PIECE {
                let words: [Val<U32>; 4] = b.ld_vector(at.at(PIECE / 4 * piece), LoadKind::Ordinary);
                any = words.iter().fold(any, |any, word| {
                    // An exponent of ones carries into the place of the sign.
                    let size = b.and::<U32>(*word, 0x7fff_7fff);
                    let carried = b.add::<U32>(size, 0x0400_0400);
                    b.or::<U32>(any, carried)
                });
            }
            let any = b.and::<U32>(any, 0x8000_8000);
            b.set(found, any);
        });
        let found = b.setp_ne(found, 0);
        let apart = b.vote_any(found);
        let length = b.var(share.shortest);
        b.do_while(|b| {
            // Of a row that ends before the chunk nothing is taken here.
            let last = b.sub::<U32>(length, first);
            let last = b.sub::<U32>(last, 1);
            let last = b.min::<U32>(last, FAST_CHUNK - 1);
            let last = b.selp::<U32>(last, FAST_CHUNK - 1, apart);
            let lane = b.min::<U32>(lane, last);
            let at = row_of_values(b, values, lane, self.heads.head_dim);
            let own = b.setp_eq(row.length, length);
            let together = b.not_pred(apart);
            let own = b.or_pred(own, together);
            let own = b.and_pred(own, takes);
            weigh(b, weights, at, row, |b, sum, part| {
                let both = joined.value(b, sum, part);
                let both = b.selp::<F32>(part, both, begins);
                b.selp::<F32>(both, sum, own)
            });
            let next = b.add::<U32>(length, 1);
            b.set(length, next);
            let more = b.setp::<U32>(Compare::Le, next, share.longest);
            b.and_pred(apart, more)
        });
    }

    /// Divides a row's sums, and writes them.
    fn finish(&self, b: &mut Builder, row: &Row) {
        let adds = row.adds_units(b);
        let adds = b.and_pred(adds, row.there);
        b.if_(adds, |b| {
            b.set(row.sums.sum, row.units.sum);
            for (eight, values) in (0..).zip(&row.values) {
                let before: [Val<F32>; 2] = b.ld_vector(row.out.at(COLUMNS * eight), LoadKind::Ordinary);
                values.iter().zip(before).for_each(|(value, before)| b.set(*value, before));
            }
        });
        b.if_(row.there, |b| {
            let sum = b.get(row.sums.sum);
            for (eight, values) in (0..).zip(&row.values) {
                let values = values.map(|value| quotient(b, value, sum));
                b.st_vector(row.out.at(COLUMNS * eight), values);
            }
        });
    }
}

impl Row {
    /// Whether its units are several chunks, and there are several: what comes of a unit is added to those before.
    fn adds_units(&self, b: &mut Builder) -> Val<Pred> {
        let several = b.setp_ge(self.each, 2);
        let units = b.setp_lt(self.each, self.chunks);
        b.and_pred(several, units)
    }

    /// Whether a unit takes its first chunk as it is: a chunk that is one unit of several is added to those before.
    fn begins(&self, b: &mut Builder) -> Val<Pred> {
        let several = b.setp_ge(self.each, 2);
        let single = b.setp_ge(self.each, self.chunks);
        b.or_pred(several, single)
    }

    /// Counts a chunk that is in the sums, and adds the unit to those before where it ends.
    fn end_unit(&self, b: &mut Builder, chunk: Val<U32>, takes: Val<Pred>) {
        let inside = b.add::<U32>(self.inside, 1);
        let next = b.add::<U32>(chunk, 1);
        let full = b.setp_ge(inside, self.each);
        let is_last = b.setp_ge(next, self.chunks);
        let ends = b.or_pred(full, is_last);
        let inside = b.selp::<U32>(0, inside, ends);
        b.set(self.inside, inside);
        let adds = self.adds_units(b);
        let adds = b.and_pred(adds, ends);
        let adds = b.and_pred(adds, takes);
        let adds = b.and_pred(adds, self.there);
        b.if_(adds, |b| {
            let joined = self.units.joined(b, self.sums.max, self.sums.sum);
            b.set(self.units.max, joined.max);
            b.set(self.units.sum, joined.sum);
            for (eight, values) in (0..).zip(&self.values) {
                let at = self.out.at(COLUMNS * eight);
                let before: [Val<F32>; 2] = b.ld_vector(at, LoadKind::Ordinary);
                let both = [0, 1].map(|i| {
                    let unit = b.get(values[i]);
                    joined.value(b, before[i], unit)
                });
                b.st_vector(at, both);
            }
        });
    }
}

/// A row of a chunk's values, whose pieces are rows of eight matrices.
fn row_of_values(b: &mut Builder, values: Shared<U8>, row: Val<U32>, head_dim: u32) -> Shared<U32> {
    b.byte_index(values, row, value_row(head_dim)).cast()
}

/// Eights of dimensions whose products are under way together.
const TOGETHER: usize = 2;

/// Weighs a chunk's values, of which the lane reads the row `at`; what comes of a sum so far and the chunk's part by `join` is
/// the new one. The next values are on their way while some are multiplied, and those before are joined meanwhile.
fn weigh(
    b: &mut Builder,
    weights: &Weights,
    at: Shared<U32>,
    row: &Row,
    join: impl Fn(&mut Builder, Val<F32>, Val<F32>) -> Val<F32>,
) {
    type Words = Vec<[Val<U32>; 4]>;
    let load = |b: &mut Builder, first: usize| -> Words {
        let eights = first..(first + TOGETHER).min(row.values.len());
        eights.map(|eight| b.ldmatrix_transposed(at.at(PIECE / 4 * eight as u32))).collect()
    };
    let finish = |b: &mut Builder, (first, sums): (usize, Vec<[Val<F32>; 4]>)| {
        for (own, sums) in row.values[first..].iter().zip(sums) {
            for (i, own) in own.iter().enumerate() {
                let part = b.add(sums[i], sums[i + 2]);
                let before = b.get(*own);
                let next = join(b, before, part);
                b.set(*own, next);
            }
        }
    };
    let multiply = |b: &mut Builder, step: usize, words: &Words, sums: &mut Vec<[Val<F32>; 4]>| {
        for (sums, words) in sums.iter_mut().zip(words) {
            *sums = matrix::halves_k16(b, weights.a(step), [words[2 * step], words[2 * step + 1]], *sums);
        }
    };
    let zero = b.mov::<F32>(0.0);
    let mut coming = load(b, 0);
    // Those that are multiplied with the first 16 positions, and those that wait for their last sums.
    let (mut half, mut whole) = (None, None);
    for first in (0..row.values.len()).step_by(TOGETHER) {
        let words = std::mem::replace(&mut coming, load(b, first + TOGETHER));
        let mut sums = vec![[zero; 4]; words.len()];
        multiply(b, 0, &words, &mut sums);
        if let Some((first, words, mut sums)) = half.replace((first, words, sums)) {
            multiply(b, 1, &words, &mut sums);
            if let Some(whole) = whole.replace((first, sums)) {
                finish(b, whole);
            }
        }
    }
    if let Some((first, words, mut sums)) = half {
        multiply(b, 1, &words, &mut sums);
        if let Some(whole) = whole.replace((first, sums)) {
            finish(b, whole);
        }
    }
    if let Some(whole) = whole {
        finish(b, whole);
    }
}

/// Row `number` of so many bytes each.
fn row_of(b: &mut Builder, base: Global<F32>, number: Val<U32>, bytes: Size) -> Global<F32> {
    match bytes {
        Size::Const(bytes) => b.byte_index(base, number, bytes),
        Size::Reg(bytes) => {
            let base = b.address(base);
            let at = b.mad_wide(number, bytes, base);
            b.global_ptr(at)
        }
    }
}

/// Zeros for the results of some positions: each block has its share of them, in their order.
pub(crate) fn batch_zeros(b: &mut Builder, of: &Positions, heads: Heads) {
    let each = 2 * BatchCut::of(heads.group).positions();
    let first = b.mul::<U32>(of.block, each);
    let end = b.add::<U32>(first, each);
    let end = b.min::<U32>(end, of.count);
    let tid = b.tid();
    b.for_range(first, end, 1, |b, position| {
        let to = row_of(b, of.out, position, of.out_apart);
        b.for_range(tid, heads.group * heads.head_dim, b.block(), |b, i| {
            let to = b.index(to, i);
            b.st(to, 0.0);
        });
    });
}

/// Chunks of a sequence.
fn chunks(b: &mut Builder, length: Val<U32>) -> Val<U32> {
    let up = b.add(length, FAST_CHUNK - 1);
    b.shr(up, FAST_CHUNK.trailing_zeros())
}
