//! A chunk by one warp: scores, their exponentials and the weighted sum of values, from registers to registers.

use super::batch::Lengths;
use super::{ROWS, Run, Workspace, query_row, sums_row};
use crate::blocks::kv::Half;
use crate::blocks::math;
use crate::matrix;
use crate::ptx::{Builder, F16, F32, Global, LoadKind, Pred, Size, U8, U32, Val, Var};
use kiln_shape::units::FAST_CHUNK;

/// Columns of an `mma`: positions or dimensions.
const COLUMNS: u32 = 8;
/// Of 16 positions those whose values a lane holds, behind twice its number.
const PLACES: [u32; 4] = [0, 1, COLUMNS, COLUMNS + 1];
/// 1.0 twice.
const ONES: u32 = 0x3c00_3c00;

impl Workspace {
    /// Attends to the chunk from position `first` on, by one warp, and leaves its result in a slot; each row to what is
    /// there of its own length, where rows have such.
    pub(super) fn chunk(&self, b: &mut Builder, run: Run, lengths: Option<Lengths>, first: Val<U32>, slot: Val<U32>) {
        let head_dim = self.heads.head_dim;
        let row_bytes = Size::Const(self.heads.row_bytes());
        let left = b.sub(run.end, first);
        let count = b.min::<U32>(left, FAST_CHUNK);
        let rows = [Half::Keys, Half::Values].map(|half| run.cache.row(b, half, run.kv_head, first, row_bytes));
        let lane = Lane::new(b, count);
        let keys = self.keys(b, lane, rows[0]);
        // Keys and values are under way together, 16 KB with heads of 128; longer rows, or the sums of many, would take all
        // registers. Without the barrier the assembler moves the loads of values behind the scores.
        let early = (head_dim <= 128 && lengths.is_none()).then(|| {
            let values = self.values(b, lane, rows[1]);
            b.bar_warp_sync();
            values
        });
        let all = self.blocks_of_rows();
        let weights: Vec<Weights> = (0..all)
            .map(|block| {
                let count = lengths.map_or(count, |lengths| {
                    let row = b.add(lane.group, block * ROWS);
                    let length = lengths.of_row(b, row);
                    let length = b.max::<U32>(length, first);
                    b.sub(length, first)
                });
                self.score(b, lane, count, block, &keys)
            })
            .collect();
        if let Some(lengths) = lengths {
            return self.weigh_batch(b, lane, rows[1], (first, lengths), slot, &weights);
        }
        let values = match early {
            Some(values) => values,
            None => self.values(b, lane, rows[1]),
        };
        for (block, weights) in weights.iter().enumerate() {
            let (kept, before) = (self.kept, block as u32 * ROWS);
            let row = b.mad::<U32>(slot, kept, lane.group);
            let row = b.add(row, before);
            let writes = (kept - before < ROWS).then(|| b.setp_lt(lane.group, kept - before));
            self.weigh_rows(b, lane, row, weights, &values, writes);
        }
    }

    /// Weighs the values of a chunk by rows that have lengths of their own. Behind a row's end weights are zeros, and zero
    /// times what is not finite is not zero: where there is such behind the end of some row, each position's rows are
    /// weighed by themselves, with zeros for values behind theirs.
    fn weigh_batch(
        &self,
        b: &mut Builder,
        lane: Lane,
        at: Global<U8>,
        (first, lengths): (Val<U32>, Lengths),
        slot: Val<U32>,
        weights: &[Weights],
    ) {
        let end = b.add(first, lane.last);
        let ends_early = b.setp_ge(end, lengths.first);
        let position = b.var::<U32>(0);
        b.do_while(|b| {
            b.bar_warp_sync(); // else the assembler moves these loads before the scores
            let loaded = self.values(b, lane, at);
            let values: Vec<[Vec<[Var<U32>; 4]>; 4]> = loaded
                .iter()
                .map(|rows| rows.each_ref().map(|row| row.iter().map(|words| words.map(|word| b.var(word))).collect()))
                .collect();
            let found = b.var::<U32>(0);
            b.if_(ends_early, |b| {
                let mut any = b.mov::<U32>(0);
                for (step, rows) in loaded.iter().enumerate() {
                    for (place, row) in rows.iter().enumerate() {
                        let at = lane.position(b, step, place);
                        let at = b.add(at, first);
                        let behind = b.setp_ge(at, lengths.first);
                        let own = not_finite(b, row.iter().flatten());
                        let own = b.selp::<U32>(own, 0, behind);
                        any = b.or::<U32>(any, own);
                    }
                }
                b.set(found, any);
            });
            let found = b.setp_ne(found, 0);
            let apart = b.vote_any(found);
            b.if_(apart, |b| {
                let end = b.add(lengths.first, position);
                for (step, rows) in values.iter().enumerate() {
                    for (place, row) in rows.iter().enumerate() {
                        let at = lane.position(b, step, place);
                        let at = b.add(at, first);
                        let inside = b.setp_lt(at, end);
                        for word in row.iter().flatten() {
                            let kept = b.selp::<U32>(*word, 0, inside);
                            b.set(*word, kept);
                        }
                    }
                }
            });
            let values: Vec<[Vec<[Val<U32>; 4]>; 4]> = values
                .iter()
                .map(|rows| rows.each_ref().map(|row| row.iter().map(|words| words.map(|word| b.get(word))).collect()))
                .collect();
            let together = b.not_pred(apart);
            for (block, weights) in weights.iter().enumerate() {
                let own = b.add(lane.group, block as u32 * ROWS);
                let of = b.div::<U32>(own, self.heads.group);
                let is_own = b.setp_eq(of, position);
                let writes = b.or_pred(is_own, together);
                let row = b.mad::<U32>(slot, self.kept, own);
                self.weigh_rows(b, lane, row, weights, &values, Some(writes));
            }
            let next = b.add(position, 1);
            b.set(position, next);
            let more = b.setp_lt(next, self.positions);
            b.and_pred(apart, more)
        });
    }

    /// Keys as the lane holds them as B: of each 8 positions the words of each 32 dimensions.
    fn keys(&self, b: &mut Builder, lane: Lane, rows: Global<U8>) -> Vec<Vec<[Val<U32>; 4]>> {
        let at = b.byte_index(rows, lane.member, 16).cast::<U32>();
        (0..FAST_CHUNK)
            .step_by(COLUMNS as usize)
            .map(|first| {
                let row = b.add(lane.group, first);
                let row = b.min::<U32>(row, lane.last);
                let at = b.byte_index(at, row, self.heads.row_bytes());
                (0..self.heads.head_dim / 32).map(|i| b.ld_vector(at.at(16 * i), LoadKind::Ordinary)).collect()
            })
            .collect()
    }

    /// Values as the lane holds them: of each 16 positions four rows, in the order of [`Weights`], and of each its words of
    /// each 64 dimensions.
    fn values(&self, b: &mut Builder, lane: Lane, rows: Global<U8>) -> Vec<[Vec<[Val<U32>; 4]>; 4]> {
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
    fn score(&self, b: &mut Builder, lane: Lane, count: Val<U32>, block: u32, keys: &[Vec<[Val<U32>; 4]>]) -> Weights {
        let head_dim = self.heads.head_dim;
        // Where there are fewer rows, the last fills the block.
        let present = (self.rows() - block * ROWS).min(ROWS);
        let row = if present < ROWS { b.min::<U32>(lane.group, present - 1) } else { lane.group };
        let high = b.byte_index(self.q, row, query_row(head_dim) * 2).at(block * 2 * ROWS * query_row(head_dim));
        let high = b.byte_index(high, lane.member, 16).cast::<U32>();
        let low = high.at(ROWS * query_row(head_dim) / 2);
        let zero = b.mov::<F32>(0.0);
        let mut scores = vec![[zero; 4]; keys.len()];
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
        let mut exponents = Vec::with_capacity(2 * scores.len());
        for (eight, [one, other, one_rest, other_rest]) in scores.into_iter().enumerate() {
            for (next, high, low) in [(0, one, one_rest), (1, other, other_rest)] {
                let score = b.add(high, low);
                let position = b.mad::<U32>(lane.member, 2, COLUMNS * eight as u32 + next);
                let inside = b.setp_lt(position, count);
                exponents.push(b.selp::<F32>(score, f32::NEG_INFINITY, inside));
            }
        }
        let mut max = exponents[0];
        for exponent in &exponents[1..] {
            max = b.max(max, *exponent);
        }
        // The four lanes of a row.
        for distance in [1, 2] {
            let other = b.shfl_bfly(max, distance);
            max = b.max(max, other);
        }
        let words = exponents
            .chunks(2)
            .map(|pair| {
                let exps = [pair[0], pair[1]].map(|exponent| {
                    let below = b.sub(exponent, max);
                    math::exp(b, below)
                });
                two_halves(b, exps)
            })
            .collect();
        Weights { max, words }
    }

    /// The sums of a block of rows into row `row` of the slots, of the rows that a lane writes, where it does not write all.
    fn weigh_rows(
        &self,
        b: &mut Builder,
        lane: Lane,
        row: Val<U32>,
        weights: &Weights,
        values: &[[Vec<[Val<U32>; 4]>; 4]],
        writes: Option<Val<Pred>>,
    ) {
        let (zero, ones) = (b.mov::<F32>(0.0), b.mov::<U32>(ONES));
        let a = |step: usize| {
            let [first, second] = [2 * step, 2 * step + 1].map(|eight| weights.words[eight]);
            [first[0], first[1], second[0], second[1]]
        };
        let mut sum = [zero; 4];
        for step in 0..values.len() {
            sum = matrix::halves_k16(b, a(step), [ones; 2], sum);
        }
        let statistics = b.byte_index(self.statistics, row, 8);
        let leads = b.setp_eq(lane.member, 0);
        let leads = match writes {
            None => leads,
            Some(writes) => b.and_pred(leads, writes),
        };
        let sum = b.add(sum[0], sum[2]);
        b.if_(leads, |b| b.st_vector(statistics, [weights.max, sum]));
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
                    *sums = matrix::halves_k16(b, a(step), pairs, *sums);
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
    fn new(b: &mut Builder, count: Val<U32>) -> Lane {
        let lane = b.lane();
        Lane { group: b.shr(lane, 2), member: b.and(lane, 3), last: b.sub(count, 1) }
    }

    /// The position in the chunk of the row of values at `place` of 16 positions' four.
    fn position(&self, b: &mut Builder, step: usize, place: usize) -> Val<U32> {
        let first = 2 * COLUMNS * step as u32 + PLACES[place];
        let row = b.mad::<U32>(self.member, 2, first);
        b.min::<U32>(row, self.last)
    }
}

/// Exponentials of a block of rows: the maximum of the lane's row, and of each 8 positions those of the lane's two as a
/// word of their high halves and one of what these leave.
struct Weights {
    max: Val<F32>,
    words: Vec<[Val<U32>; 2]>,
}

/// Two numbers as a word of their f16 and a word of what these leave.
pub(super) fn two_halves(b: &mut Builder, numbers: [Val<F32>; 2]) -> [Val<U32>; 2] {
    let word = matrix::halves(b, numbers[0], numbers[1]);
    let [first, second] = b.unpack::<F16>(word).map(|half| b.cvt::<F32, F16>(half));
    let (first, second) = (b.sub(numbers[0], first), b.sub(numbers[1], second));
    [word, matrix::halves(b, first, second)]
}

/// Not 0 where a half of some words is infinite or NaN.
fn not_finite<'a>(b: &mut Builder, words: impl Iterator<Item = &'a Val<U32>>) -> Val<U32> {
    let none = b.mov::<U32>(0);
    // An exponent of ones carries into the place of the sign.
    let any = words.fold(none, |any, word| {
        let size = b.and::<U32>(*word, 0x7fff_7fff);
        let carried = b.add::<U32>(size, 0x0400_0400);
        b.or::<U32>(any, carried)
    });
    b.and::<U32>(any, 0x8000_8000)
}
