//! A chunk by one warp: scores, their exponentials and the weighted sum of values, from registers to registers.

use super::{ROWS, Run, Workspace, query_row, sums_row};
use crate::blocks::kv::Half;
use crate::blocks::math;
use crate::matrix;
use crate::ptx::{Builder, F16, F32, Global, LoadKind, Pred, Ptr, Size, Space, U8, U32, Val, Var};
use kiln_shape::units::FAST_CHUNK;

/// Columns of an `mma`: positions or dimensions.
const COLUMNS: u32 = 8;
/// Of 16 positions those whose values a lane holds, behind twice its number.
const PLACES: [u32; 4] = [0, 1, COLUMNS, COLUMNS + 1];
/// A lane's scores of a row and a chunk: two of each 8 positions.
pub(super) const SCORES: usize = (2 * FAST_CHUNK / COLUMNS) as usize;
/// 1.0 twice.
const ONES: u32 = 0x3c00_3c00;

/// Words of a row that a lane holds: of each 32 dimensions of a key four, of each 64 dimensions of a value.
type Pieces<T> = Vec<[T; 4]>;

/// The keys of a warp's first chunk on their way to registers, of each 8 positions a row, but for the newest position's, which its
/// block brings to shared memory meanwhile. Values are asked for behind the block's barrier: the scores hide their way.
pub(crate) struct Asked {
    keys: Vec<Pieces<Var<U32>>>,
    /// Whether the newest position is the run's last.
    has_new: Val<Pred>,
}

impl Asked {
    fn set(&self, b: &mut Builder, found: &[Pieces<Val<U32>>]) {
        self.keys.iter().zip(found).for_each(|(own, found)| take(b, own, found));
    }

    fn get(&self, b: &mut Builder) -> Vec<Pieces<Val<U32>>> {
        self.keys.iter().map(|row| row.iter().map(|words| words.map(|word| b.get(word))).collect()).collect()
    }
}

impl Workspace {
    /// Whether keys and values of a chunk are under way together, 16 KB with heads of 128; longer rows would take all registers.
    pub(super) const fn together(&self) -> bool {
        self.heads.head_dim <= 128
    }

    /// Asks for the keys of a warp's first chunk of a run, whose first position is `first`, where it has one as `works` says. Of
    /// the newest position, if it `has_new`, nothing is read.
    pub(super) fn ask_chunk(
        &self,
        b: &mut Builder,
        run: Run,
        (first, works): (Val<U32>, Val<Pred>),
        has_new: Val<Pred>,
    ) -> Asked {
        let row = |b: &mut Builder| (0..self.heads.head_dim / 32).map(|_| [(); 4].map(|()| b.var::<U32>(0))).collect();
        let asked = Asked { keys: (0..FAST_CHUNK / COLUMNS).map(|_| row(b)).collect(), has_new };
        let newest = b.selp::<U32>(1, 0, has_new);
        let closed = b.sub::<U32>(run.end, newest);
        let any = b.setp_lt(first, closed);
        let asks = b.and_pred(works, any);
        b.if_(asks, |b| {
            let lane = Lane::of_chunk(b, first, closed);
            let keys = self.cached(b, run, Half::Keys, first);
            let keys = self.keys(b, lane, keys);
            asked.set(b, &keys);
        });
        asked
    }

    /// The first row of a chunk's keys or values.
    fn cached(&self, b: &mut Builder, run: Run, half: Half, first: Val<U32>) -> Global<U8> {
        run.cache.row(b, half, run.kv_head, first, Size::Const(self.heads.row_bytes()))
    }

    /// Attends to the chunk from position `first` on, by one warp, and leaves its result in a slot. Where keys were asked for, they
    /// are there if it is the warp's first.
    pub(super) fn chunk(
        &self,
        b: &mut Builder,
        run: Run,
        (first, is_first): (Val<U32>, Val<Pred>),
        slot: Val<U32>,
        asked: Option<&Asked>,
    ) {
        let lane = Lane::of_chunk(b, first, run.end);
        let rows = [Half::Keys, Half::Values].map(|half| self.cached(b, run, half, first));
        let keys = match asked {
            None => self.keys(b, lane, rows[0]),
            Some(asked) => {
                let is_later = b.not_pred(is_first);
                b.if_(is_later, |b| {
                    let keys = self.keys(b, lane, rows[0]);
                    asked.set(b, &keys);
                });
                let behind = b.add::<U32>(first, FAST_CHUNK);
                let is_last = b.setp_ge::<U32>(behind, run.end);
                let has_new = b.and_pred(is_last, asked.has_new);
                b.if_(has_new, |b| self.take_new(b, lane, asked));
                asked.get(b)
            }
        };
        // Without the barrier the assembler moves the loads of values behind the scores.
        let early = self.together().then(|| {
            let values = self.values(b, lane, rows[1]);
            b.bar_warp_sync();
            values
        });
        let weights = self.scores(b, lane, &keys);
        let values = match early {
            Some(values) => values,
            None => self.values(b, lane, rows[1]),
        };
        self.weigh(b, lane, slot, &weights, &values);
    }

    /// Takes the newest position's key, which also stands in for those behind it.
    fn take_new(&self, b: &mut Builder, lane: Lane, asked: &Asked) {
        let new = b.byte_index(self.newest, lane.member, 16).cast::<U32>();
        for (first, own) in (0..FAST_CHUNK).step_by(COLUMNS as usize).zip(&asked.keys) {
            let row = b.add::<U32>(lane.group, first);
            let is_new = b.setp_ge(row, lane.last);
            b.if_(is_new, |b| {
                let found = key_pieces(b, self.heads.head_dim, new);
                take(b, own, &found);
            });
        }
    }

    /// What the positions of a chunk weigh for each block of rows.
    fn scores(&self, b: &mut Builder, lane: Lane, keys: &[Pieces<Val<U32>>]) -> Vec<Weights> {
        let count = b.add::<U32>(lane.last, 1);
        (0..self.blocks_of_rows()).map(|block| self.score(b, lane, count, block, keys)).collect()
    }

    /// The weighted sums of all blocks of rows, into a slot.
    fn weigh(
        &self,
        b: &mut Builder,
        lane: Lane,
        slot: Val<U32>,
        weights: &[Weights],
        values: &[[Pieces<Val<U32>>; 4]],
    ) {
        for (block, weights) in weights.iter().enumerate() {
            let (kept, before) = (self.kept, block as u32 * ROWS);
            let row = b.mad::<U32>(slot, kept, lane.group);
            let row = b.add(row, before);
            let writes = (kept - before < ROWS).then(|| b.setp_lt(lane.group, kept - before));
            self.weigh_rows(b, lane, row, weights, values, writes);
        }
    }

    /// Keys as the lane holds them.
    fn keys(&self, b: &mut Builder, lane: Lane, rows: Global<U8>) -> Vec<Pieces<Val<U32>>> {
        let at = b.byte_index(rows, lane.member, 16).cast::<U32>();
        (0..FAST_CHUNK)
            .step_by(COLUMNS as usize)
            .map(|first| {
                let row = b.add(lane.group, first);
                let row = b.min::<U32>(row, lane.last);
                let at = b.byte_index(at, row, self.heads.row_bytes());
                key_pieces(b, self.heads.head_dim, at)
            })
            .collect()
    }

    /// Values as the lane holds them.
    fn values(&self, b: &mut Builder, lane: Lane, rows: Global<U8>) -> Vec<[Pieces<Val<U32>>; 4]> {
        let at = b.byte_index(rows, lane.group, 16).cast::<U32>();
        (0..FAST_CHUNK)
            .step_by(2 * COLUMNS as usize)
            .map(|first| {
                PLACES.map(|place| {
                    let row = b.mad::<U32>(lane.member, 2, first + place);
                    let row = b.min::<U32>(row, lane.last);
                    let at = b.byte_index(at, row, self.heads.row_bytes());
                    (0..self.heads.head_dim / 64).map(|i| b.ld_vector(at.at(32 * i), LoadKind::Ordinary)).collect()
                })
            })
            .collect()
    }

    /// Scores of a block of rows, and what their exponentials weigh.
    fn score(&self, b: &mut Builder, lane: Lane, count: Val<U32>, block: u32, keys: &[Pieces<Val<U32>>]) -> Weights {
        let head_dim = self.heads.head_dim;
        // Where there are fewer rows, the last fills the block.
        let present = (self.rows() - block * ROWS).min(ROWS);
        let row = if present < ROWS { b.min::<U32>(lane.group, present - 1) } else { lane.group };
        let high = b.byte_index(self.q, row, query_row(head_dim) * 2).at(block * 2 * ROWS * query_row(head_dim));
        let high = b.byte_index(high, lane.member, 16).cast::<U32>();
        let low = high.at(ROWS * query_row(head_dim) / 2);
        let zero = b.mov::<F32>(0.0);
        let mut scores = [[zero; 4]; SCORES / 2];
        for i in 0..head_dim / 32 {
            let high: [Val<U32>; 4] = b.ld_vector(high.at(16 * i), LoadKind::Ordinary);
            let low: [Val<U32>; 4] = b.ld_vector(low.at(16 * i), LoadKind::Ordinary);
            for half in [0, 2] {
                let a = [high[half], low[half], high[half + 1], low[half + 1]];
                for (scores, keys) in scores.iter_mut().zip(keys) {
                    let keys = keys[i as usize];
                    *scores = matrix::halves_k16(b, a, [keys[half], keys[half + 1]], *scores);
                }
            }
        }
        let scores = of_lane(b, scores);
        let scores = scores.map(|(score, position)| {
            let position = position.of(b, lane.member);
            let inside = b.setp_lt(position, count);
            b.selp::<F32>(score, f32::NEG_INFINITY, inside)
        });
        Weights::of(b, scores)
    }

    /// The sums of a block of rows into row `row` of the slots, of the rows that a lane writes, where it does not write all.
    fn weigh_rows(
        &self,
        b: &mut Builder,
        lane: Lane,
        row: Val<U32>,
        weights: &Weights,
        values: &[[Pieces<Val<U32>>; 4]],
        writes: Option<Val<Pred>>,
    ) {
        let zero = b.mov::<F32>(0.0);
        let sum = weights.sum(b);
        let to = b.byte_index(self.sums, row, sums_row(self.heads.head_dim) * 4);
        let to = b.byte_index(to, lane.member, 80);
        for i in 0..self.heads.head_dim / 64 {
            let mut sums = [[zero; 4]; COLUMNS as usize];
            for (step, rows) in values.iter().enumerate() {
                for (column, sums) in sums.iter_mut().enumerate() {
                    // Halves of two rows become neighbours: columns lie 8 dimensions apart.
                    let halves = if column % 2 == 0 { 0x5410u32 } else { 0x7632 };
                    let mut pair = |first: usize| {
                        let [one, other] = [first, first + 1].map(|row| rows[row][i as usize][column / 2]);
                        b.prmt(one, other, halves)
                    };
                    let pairs = [pair(0), pair(2)];
                    *sums = matrix::halves_k16(b, weights.a(step), pairs, *sums);
                }
            }
            // The lane has two neighbouring columns, 16 dimensions in all.
            let to = to.at(80 * i);
            let store = |b: &mut Builder| {
                for (quad, sums) in sums.chunks(4).enumerate() {
                    let to = to.at(4 * quad as u32);
                    for column in [0, 1] {
                        let both: [Val<F32>; 4] =
                            std::array::from_fn(|at| b.add(sums[at][column], sums[at][column + 2]));
                        b.st_vector(to.at(8 * column as u32), both);
                    }
                }
            };
            match writes {
                None => store(b),
                Some(writes) => b.if_(writes, store),
            }
        }
        let statistics = b.byte_index(self.statistics, row, 8);
        let leads = b.setp_eq(lane.member, 0);
        let leads = match writes {
            None => leads,
            Some(writes) => b.and_pred(leads, writes),
        };
        b.if_(leads, |b| b.st_vector(statistics, [weights.max, sum]));
    }
}

/// The lane's place in fragments, and what there is of the chunk.
#[derive(Debug, Clone, Copy)]
struct Lane {
    /// Its group of four: a row of A and C, a column of B.
    group: Val<U32>,
    /// Its number among these.
    member: Val<U32>,
    /// The chunk's last position.
    last: Val<U32>,
}

impl Lane {
    /// In the chunk from position `first` on, of those before `end`.
    fn of_chunk(b: &mut Builder, first: Val<U32>, end: Val<U32>) -> Lane {
        let left = b.sub(end, first);
        let count = b.min::<U32>(left, FAST_CHUNK);
        let lane = b.lane();
        Lane { group: b.shr(lane, 2), member: b.and(lane, 3), last: b.sub(count, 1) }
    }
}

/// A lane's words of a key, from its first on.
fn key_pieces<S: Space>(b: &mut Builder, head_dim: u32, at: Ptr<S, U32>) -> Pieces<Val<U32>> {
    (0..head_dim / 32).map(|i| b.ld_vector(at.at(16 * i), LoadKind::Ordinary)).collect()
}

fn take(b: &mut Builder, own: &Pieces<Var<U32>>, found: &Pieces<Val<U32>>) {
    own.iter().flatten().zip(found.iter().flatten()).for_each(|(own, word)| b.set(*own, *word));
}

/// Exponentials of a block of rows: the maximum of the lane's row, and of each 8 positions those of the lane's two as a
/// word of their high halves and one of what these leave.
pub(super) struct Weights {
    pub(super) max: Val<F32>,
    words: [[Val<U32>; 2]; SCORES / 2],
}

impl Weights {
    /// Of a lane's scores.
    pub(super) fn of(b: &mut Builder, scores: [Val<F32>; SCORES]) -> Weights {
        let mut max = scores[0];
        for score in &scores[1..] {
            max = b.max(max, *score);
        }
        // The four lanes of a row.
        for distance in [1, 2] {
            let other = b.shfl_bfly(max, distance);
            max = b.max(max, other);
        }
        let below = scores.map(|score| b.sub(score, max));
        let exps = math::exps(b, below);
        let pairs: [[Val<F32>; 2]; SCORES / 2] = std::array::from_fn(|i| [exps[2 * i], exps[2 * i + 1]]);
        Weights { max, words: two_halves(b, pairs) }
    }

    /// Those of 16 positions, as the lane holds them as A.
    pub(super) fn a(&self, step: usize) -> [Val<U32>; 4] {
        let [first, second] = [2 * step, 2 * step + 1].map(|eight| self.words[eight]);
        [first[0], first[1], second[0], second[1]]
    }

    /// Their sum for the lane's row.
    pub(super) fn sum(&self, b: &mut Builder) -> Val<F32> {
        let (zero, ones) = (b.mov::<F32>(0.0), b.mov::<U32>(ONES));
        let steps = 0..self.words.len() / 2;
        let sum = steps.fold([zero; 4], |sum, step| matrix::halves_k16(b, self.a(step), [ones; 2], sum));
        b.add(sum[0], sum[2])
    }
}

/// A score's position in the chunk, behind twice the lane's number among the four of its row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place(u32);

impl Place {
    pub(super) fn of(self, b: &mut Builder, member: Val<U32>) -> Val<U32> {
        b.mad::<U32>(member, 2, self.0)
    }
}

/// A lane's scores of its row, of the products with each 8 positions: the sums of both halves' rows.
pub(super) fn of_lane(b: &mut Builder, products: [[Val<F32>; 4]; SCORES / 2]) -> [(Val<F32>, Place); SCORES] {
    std::array::from_fn(|number| {
        let (eight, next) = (number / 2, number % 2);
        let score = b.add(products[eight][next], products[eight][next + 2]);
        (score, Place(COLUMNS * eight as u32 + next as u32))
    })
}

/// Pairs of numbers, each as a word of their f16 and a word of what these leave.
pub(super) fn two_halves<const N: usize>(b: &mut Builder, pairs: [[Val<F32>; 2]; N]) -> [[Val<U32>; 2]; N] {
    let words = pairs.map(|[first, second]| matrix::halves(b, first, second));
    let kept = words.map(|word| b.unpack::<F16>(word).map(|half| b.cvt::<F32, F16>(half)));
    let rest: [[Val<F32>; 2]; N] = std::array::from_fn(|i| [0, 1].map(|at| b.sub(pairs[i][at], kept[i][at])));
    let rest = rest.map(|[first, second]| matrix::halves(b, first, second));
    std::array::from_fn(|i| [words[i], rest[i]])
}
