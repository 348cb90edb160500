//! One query token against one chunk of the KV cache, for all query heads of one KV head, by one block.
//!
//! `s[g, t] = q[g] . k[t] / sqrt(head_dim)`, `m[g] = max_t s`, `l[g] = sum_t exp(s - m)`,
//! `acc[g] = sum_t exp(s - m) v[t]`: keys and values are read once for all heads of the group, in 16-byte pieces.
//! Four lanes share a key, so a dot product ends in two shuffles for eight keys at once; values are summed by threads
//! that own a piece of the row and every S-th position, and added up in shared memory. The order of every sum depends on
//! head_dim, the cache's type and the chunk's length only, not on the block's size: sums are cut for 256 workers, and a
//! smaller block gives its threads several workers' parts.

use super::kv;
use super::{math, warp};
use crate::ptx::{Builder, F32, Global, LINE, LoadKind, Pred, Shared, Size, U8, U32, Val, Var, Work};
use kiln_shape::KvType;
use kiln_shape::table::KV_CHUNK;

/// Workers that a sum over positions is cut for, whatever the block's size; also the threads of an attention kernel's
/// block.
pub(crate) const THREADS: u32 = 256;
/// Lanes that share a key.
const LANES: u32 = 4;

/// The model's heads, as attention needs them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    /// Query heads of a KV head.
    pub(crate) group: u32,
    /// Elements per head: a multiple of 16 up to 256.
    pub(crate) head_dim: u32,
    /// The cache's type.
    pub(crate) ty: KvType,
}

impl Heads {
    /// 16-byte pieces of a row.
    const fn pieces(&self) -> u32 {
        self.head_dim / kv::per_piece(self.ty)
    }

    /// Sets of positions whose values are summed apart.
    const fn subsets(&self) -> u32 {
        THREADS / self.pieces()
    }

    /// Heads whose sums are added up together: what 16 KB of shared memory holds.
    fn round(&self) -> u32 {
        (4096 / (self.subsets() * self.head_dim)).clamp(1, self.group)
    }

    /// What scores are multiplied with.
    pub(crate) fn scale(&self) -> f32 {
        (1.0 / f64::from(self.head_dim).sqrt()) as f32
    }

    /// Bytes of a row of the cache.
    pub(crate) const fn row_bytes(&self) -> u32 {
        self.head_dim * self.ty.bytes()
    }
}

/// Blocks of an attention kernel that an SM must hold, by which the assembler limits registers. Two leave a thread 128;
/// keys of 1 KB need more, since all their pieces are loaded ahead.
pub(crate) const fn blocks_per_sm(head_dim: u32, ty: KvType) -> u32 {
    if head_dim * ty.bytes() < 1024 { 2 } else { 1 }
}

/// Which query heads a block works on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    /// The KV head.
    pub(crate) kv_head: Val<U32>,
    /// The first query head.
    pub(crate) head: Val<U32>,
    /// The number of heads, where that may be less than the kernel is made for.
    pub(crate) present: Option<Val<U32>>,
}

impl Share {
    /// The share of block `x`: a KV head with its whole group, or with `group` a launch parameter, a part of it.
    #[track_caller]
    pub(crate) fn of_block(b: &mut Builder, heads: Heads, group: Option<Val<U32>>) -> Share {
        let block = b.ctaid_x();
        let Some(group) = group else {
            return Share { kv_head: block, head: b.mul::<U32>(block, heads.group), present: None };
        };
        let parts = b.size_div_ceil(Size::Reg(group), heads.group);
        let (kv_head, part) = (b.div::<U32>(block, parts), b.rem::<U32>(block, parts));
        let before = b.mul::<U32>(part, heads.group);
        let left = b.sub(group, before);
        let present = b.min::<U32>(left, heads.group);
        Share { kv_head, head: b.mad::<U32>(kv_head, group, before), present: Some(present) }
    }
}

/// Runs `body` where `head`, counted from the block's first, is one of the heads present.
#[track_caller]
pub(crate) fn if_present(b: &mut Builder, present: Option<Val<U32>>, head: Val<U32>, body: impl FnOnce(&mut Builder)) {
    match present {
        None => body(b),
        Some(present) => {
            let is = b.setp_lt(head, present);
            b.if_(is, body);
        }
    }
}

/// The shared memory of a chunk's work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workspace {
    /// `[group, head_dim]`: queries, scaled.
    q: Shared<F32>,
    /// `[group, KV_CHUNK]`: scores, then their exponentials.
    scores: Shared<F32>,
    /// `[group]`: the chunk's maximum.
    pub(crate) max: Shared<F32>,
    /// `[group]`: the chunk's sum of exponentials.
    pub(crate) sum: Shared<F32>,
    /// `[round, subsets, head_dim]`.
    partial: Shared<F32>,
    /// Whether the passes over the keys are a loop: less text, and fewer loads in flight.
    compact: bool,
}

impl Workspace {
    /// Takes the shared memory.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, heads: Heads) -> Workspace {
        Workspace {
            q: b.dynamic_shared(heads.group * heads.head_dim),
            scores: b.dynamic_shared(heads.group * KV_CHUNK),
            max: b.dynamic_shared(heads.group),
            sum: b.dynamic_shared(heads.group),
            partial: b.dynamic_shared(heads.round() * heads.subsets() * heads.head_dim),
            compact: false,
        }
    }

    /// The same workspace for half the text: the passes over a chunk's keys are a loop, so the loads of one start after
    /// the sums of the one before.
    pub(crate) fn compact(self) -> Workspace {
        Workspace { compact: true, ..self }
    }

    /// Brings `q`, `[group, head_dim]`, into shared memory, scaled. A barrier must follow. Where there are only
    /// `present` heads, zeros stand in for those that are missing.
    #[track_caller]
    pub(crate) fn load_queries(
        &self,
        b: &mut Builder,
        heads: Heads,
        q: Global<F32>,
        present: Option<Val<U32>>,
        kind: LoadKind,
    ) {
        let tid = b.tid();
        let count = heads.group * heads.head_dim;
        b.for_range(tid, count, b.block(), |b, i| {
            let from = b.index(q, i);
            let value = b.var::<F32>(0.0);
            let head = match present {
                None => i,
                Some(_) => b.div::<U32>(i, heads.head_dim),
            };
            if_present(b, present, head, |b| {
                let loaded = b.ld(from, kind);
                b.set(value, loaded);
            });
            let value = b.get(value);
            let value = b.mul(value, heads.scale());
            let to = b.index(self.q, i);
            b.st(to, value);
        });
    }

    /// Puts one head's query, held by a warp (lane l has elements l, l + 32, ...), into shared memory, scaled. A barrier
    /// must follow.
    #[track_caller]
    pub(crate) fn store_query(
        &self,
        b: &mut Builder,
        heads: Heads,
        head: Val<U32>,
        lane: Val<U32>,
        values: &[Val<F32>],
    ) {
        let to = b.byte_index(self.q, head, heads.head_dim * 4);
        let to = b.index(to, lane);
        for (i, value) in values.iter().enumerate() {
            let value = b.mul(*value, heads.scale());
            b.st(to.at(32 * i as u32), value);
        }
    }

    /// Attends to `count` (1 to `KV_CHUNK`, the same in the whole block) rows from `keys` and `values` on. Leaves `max`
    /// and `sum`, and gives each element of `acc` once to `sink` as (head of the group, dimension, value). Begins and
    /// ends with a barrier: queries are seen, and the workspace may be used again.
    #[track_caller]
    pub(crate) fn chunk(
        &self,
        b: &mut Builder,
        heads: Heads,
        keys: Global<U8>,
        values: Global<U8>,
        count: Val<U32>,
        sink: impl Fn(&mut Builder, Val<U32>, Val<U32>, Val<F32>),
    ) {
        let bytes = b.mul::<U32>(count, heads.row_bytes());
        ask_for(b, values, bytes);
        b.bar_sync();
        self.score(b, heads, keys, count);
        b.bar_sync(); // every score of the chunk is in shared memory
        self.soften(b, heads);
        b.bar_sync(); // exponentials, maxima and sums are
        self.weigh(b, heads, values, count, sink);
    }

    /// `scores[g, t]`, and -inf from `count` on.
    fn score(&self, b: &mut Builder, heads: Heads, keys: Global<U8>, count: Val<U32>) {
        let (warp, lane) = (b.warp_id(), b.lane());
        let part = b.and(lane, LANES - 1);
        let in_warp = b.shr(lane, LANES.trailing_zeros());
        let at_once = b.block() / LANES;
        let own = b.mad::<U32>(warp, 32 / LANES, in_warp);
        let last = b.sub(count, 1);
        let leader = b.setp_eq(part, 0);
        let elements = kv::per_piece(heads.ty);
        let pass = |b: &mut Builder, position: Val<U32>, end: u32| {
            let row = b.min(position, last);
            let row = b.byte_index(keys, row, heads.row_bytes());
            let mut sums: Vec<Val<F32>> = (0..heads.group).map(|_| b.mov(0.0)).collect();
            for step in 0..heads.pieces().div_ceil(LANES) {
                let piece = b.add(part, step * LANES);
                let ragged = (step + 1) * LANES > heads.pieces();
                let safe = if ragged { b.min(piece, heads.pieces() - 1) } else { piece };
                let from = b.byte_index(row, safe, 16);
                let mut key = kv::load_piece(b, heads.ty, from, LoadKind::Ordinary);
                if ragged {
                    let inside = b.setp_lt(piece, heads.pieces());
                    key = key.into_iter().map(|k| b.selp::<F32>(k, 0.0, inside)).collect();
                }
                let q = b.byte_index(self.q, safe, elements * 4);
                for (head, sum) in sums.iter_mut().enumerate() {
                    let q = q.at(head as u32 * heads.head_dim);
                    for quad in 0..elements / 4 {
                        let q: [Val<F32>; 4] = b.ld_vector(q.at(4 * quad), LoadKind::Ordinary);
                        for (q, k) in q.into_iter().zip(&key[4 * quad as usize..]) {
                            *sum = b.fma(q, *k, *sum);
                        }
                    }
                }
            }
            let inside = b.setp_lt(position, count);
            let writes = if end > KV_CHUNK {
                let in_chunk = b.setp_lt(position, KV_CHUNK);
                b.and_pred(leader, in_chunk)
            } else {
                leader
            };
            let to = b.index(self.scores, position);
            for (head, sum) in sums.into_iter().enumerate() {
                let sum = warp::sum(b, sum, LANES);
                let score = b.selp::<F32>(sum, f32::NEG_INFINITY, inside);
                b.if_(writes, |b| b.st(to.at(head as u32 * KV_CHUNK), score));
            }
        };
        let end = KV_CHUNK.next_multiple_of(at_once);
        if self.compact {
            return b.for_range(0, end, at_once, |b, first| {
                let position = b.add(own, first);
                pass(b, position, end);
            });
        }
        for first in (0..end).step_by(at_once as usize) {
            let position = b.add(own, first);
            pass(b, position, first + at_once);
        }
    }

    /// Scores to exponentials, a warp a head.
    fn soften(&self, b: &mut Builder, heads: Heads) {
        let (warp, lane, warps) = (b.warp_id(), b.lane(), b.warps());
        b.for_range(warp, heads.group, warps, |b, head| {
            let at = b.byte_index(self.scores, head, KV_CHUNK * 4);
            let at = b.index(at, lane);
            let scores: Vec<Val<F32>> = (0..KV_CHUNK / 32).map(|i| b.ld(at.at(32 * i), LoadKind::Ordinary)).collect();
            let max = scores[1..].iter().fold(scores[0], |max, score| b.max(max, *score));
            let max = warp::max(b, max, 32);
            let mut sum = b.mov(0.0);
            for (i, score) in scores.into_iter().enumerate() {
                let below = b.sub(score, max);
                let weight = math::exp(b, below);
                b.st(at.at(32 * i as u32), weight);
                sum = b.add(sum, weight);
            }
            let sum = warp::sum(b, sum, 32);
            let (max_to, sum_to) = (b.index(self.max, head), b.index(self.sum, head));
            let leader = b.setp_eq(lane, 0);
            b.if_(leader, |b| {
                b.st(max_to, max);
                b.st(sum_to, sum);
            });
        });
    }

    /// `acc[g] = sum_t weight[g, t] v[t]`.
    fn weigh(
        &self,
        b: &mut Builder,
        heads: Heads,
        values: Global<U8>,
        count: Val<U32>,
        sink: impl Fn(&mut Builder, Val<U32>, Val<U32>, Val<F32>),
    ) {
        let (pieces, subsets, elements) = (heads.pieces(), heads.subsets(), kv::per_piece(heads.ty));
        let tid = b.tid();
        let workers: Vec<Worker> = (0..pieces * subsets)
            .step_by(b.block() as usize)
            .map(|before| {
                let index = b.add(tid, before);
                let subset = b.div::<U32>(index, pieces);
                let piece = b.rem::<U32>(index, pieces);
                let working = b.setp_lt(index, pieces * subsets);
                let column = b.byte_index(values, piece, 16);
                let sums: Vec<Var<F32>> = (0..heads.group * elements).map(|_| b.var(0.0)).collect();
                b.if_(working, |b| {
                    b.for_range(subset, count, subsets, |b, position| {
                        // Of f32 the assembler makes one loop within another, which cannot be counted.
                        if heads.ty == KvType::F16 {
                            b.each_iteration(Work::Read(elements));
                        }
                        let from = b.byte_index(column, position, heads.row_bytes());
                        let value = kv::load_piece(b, heads.ty, from, LoadKind::Ordinary);
                        let weight = b.index(self.scores, position);
                        for (head, sums) in sums.chunks(elements as usize).enumerate() {
                            let weight = b.ld(weight.at(head as u32 * KV_CHUNK), LoadKind::Ordinary);
                            for (sum, value) in sums.iter().zip(&value) {
                                let next = b.fma(weight, *value, *sum);
                                b.set(*sum, next);
                            }
                        }
                    });
                });
                let own = b.mul::<U32>(subset, heads.head_dim);
                let own = b.mad::<U32>(piece, elements, own);
                Worker { sums, own: b.index(self.partial, own), working }
            })
            .collect();
        let round = heads.round();
        for first in (0..heads.group).step_by(round as usize) {
            let heads_now = round.min(heads.group - first);
            for Worker { sums, own, working } in &workers {
                b.if_(*working, |b| {
                    for head in 0..heads_now {
                        let sums = &sums[((first + head) * elements) as usize..];
                        for quad in 0..elements / 4 {
                            let values = std::array::from_fn::<_, 4, _>(|i| b.get(sums[4 * quad as usize + i]));
                            b.st_vector(own.at(head * subsets * heads.head_dim + 4 * quad), values);
                        }
                    }
                });
            }
            b.bar_sync(); // the round's partial sums are in shared memory
            b.for_range(tid, heads_now * heads.head_dim, b.block(), |b, i| {
                let head = b.div::<U32>(i, heads.head_dim);
                let dim = b.rem::<U32>(i, heads.head_dim);
                let from = b.byte_index(self.partial, head, subsets * heads.head_dim * 4);
                let from = b.index(from, dim);
                let mut total = b.ld(from, LoadKind::Ordinary);
                for subset in 1..subsets {
                    let part = b.ld(from.at(subset * heads.head_dim), LoadKind::Ordinary);
                    total = b.add(total, part);
                }
                let head = b.add(head, first);
                sink(b, head, dim, total);
            });
            b.bar_sync(); // read: the next round, or chunk, may overwrite them
        }
    }
}

/// Asks the L2 cache for `bytes` bytes of values while keys are scored, a thread a line: their loop has one load of a
/// thread under way.
#[track_caller]
fn ask_for(b: &mut Builder, values: Global<U8>, bytes: Val<U32>) {
    let tid = b.tid();
    let first = b.mul::<U32>(tid, LINE);
    b.for_range(first, bytes, b.block() * LINE, |b, byte| {
        let at = b.index(values, byte);
        b.prefetch_l2(at);
    });
}

/// A worker's part of the sums over positions: an accumulator for each head and element of its piece, and where the
/// first head's go.
struct Worker {
    sums: Vec<Var<F32>>,
    own: Shared<F32>,
    working: Val<Pred>,
}

/// Writes maximum and sum behind the accumulators of each head of the group, a thread a head.
#[track_caller]
pub(crate) fn statistics(
    b: &mut Builder,
    heads: Heads,
    present: Option<Val<U32>>,
    partial: Global<F32>,
    stride: Val<U32>,
    of: impl Fn(&mut Builder, Val<U32>) -> (Val<F32>, Val<F32>),
) {
    let tid = b.tid();
    b.for_range(tid, heads.group, b.block(), |b, head| {
        let (max, sum) = of(b, head);
        let at = b.mul::<U32>(head, stride);
        let at = b.index(partial, at);
        if_present(b, present, head, |b| {
            b.st(at.at(heads.head_dim), max);
            b.st(at.at(heads.head_dim + 1), sum);
        });
    });
}

/// Floats of shared memory that [`reduce`] takes.
pub(crate) const fn reduce_floats(head_dim: u32) -> u32 {
    THREADS / head_dim * head_dim
}

/// Puts together the partial results of a head's chunks: rows of `head_dim + 2` floats from `first` on, each the
/// unnormalised sum, then `m`, then the sum of exponentials. `out = sum_c w_c acc_c / sum_c w_c sum_c` with
/// `w_c = exp(m_c - max m)`; zeros where there are no chunks. By the whole block, with a barrier inside; another must
/// come before `sums` is used again.
#[track_caller]
pub(crate) fn reduce(
    b: &mut Builder,
    head_dim: u32,
    first: Global<F32>,
    chunks: Val<U32>,
    sums: Shared<F32>,
    kind: LoadKind,
    sink: impl FnOnce(&mut Builder, Val<U32>, Val<F32>),
) {
    let row = (head_dim + 2) * 4;
    let lane = b.lane();
    let max = b.var::<F32>(f32::NEG_INFINITY);
    b.for_range(lane, chunks, 32, |b, chunk| {
        let at = b.byte_index(first, chunk, row);
        let value = b.ld(at.at(head_dim), kind);
        let next = b.max(max, value);
        b.set(max, next);
    });
    let max = b.get(max);
    let max = warp::max(b, max, 32);
    // A length beyond the cache counts as 0: all its chunks are empty, and have no accumulators to be read.
    let none = b.setp_eq(max, f32::NEG_INFINITY);
    let chunks = b.selp::<U32>(0, chunks, none);
    let weight = |b: &mut Builder, at: Global<F32>| {
        let own = b.ld(at.at(head_dim), kind);
        let below = b.sub(own, max);
        math::exp(b, below)
    };
    let sum = b.var::<F32>(0.0);
    b.for_range(lane, chunks, 32, |b, chunk| {
        let at = b.byte_index(first, chunk, row);
        let weight = weight(b, at);
        let part = b.ld(at.at(head_dim + 1), kind);
        let next = b.fma(weight, part, sum);
        b.set(sum, next);
    });
    let sum = b.get(sum);
    let sum = warp::sum(b, sum, 32);

    // Worker w has dimension w % head_dim of every subsets-th chunk.
    let subsets = THREADS / head_dim;
    let tid = b.tid();
    b.for_range(tid, subsets * head_dim, b.block(), |b, worker| {
        let (subset, dim) = (b.div::<U32>(worker, head_dim), b.rem::<U32>(worker, head_dim));
        let column = b.index(first, dim);
        let own = b.index(sums, worker);
        let acc = b.var::<F32>(0.0);
        b.for_range(subset, chunks, subsets, |b, chunk| {
            let at = b.byte_index(first, chunk, row);
            let weight = weight(b, at);
            let at = b.byte_index(column, chunk, row);
            let part = b.ld(at, kind);
            let next = b.fma(weight, part, acc);
            b.set(acc, next);
        });
        b.st(own, acc);
    });
    b.bar_sync(); // every subset's sums are in shared memory
    b.for_range(tid, head_dim, b.block(), |b, dim| {
        let own = b.index(sums, dim);
        let mut total = b.ld(own, LoadKind::Ordinary);
        for subset in 1..subsets {
            let part = b.ld(own.at(subset * head_dim), LoadKind::Ordinary);
            total = b.add(total, part);
        }
        let empty = b.setp_eq(sum, 0.0);
        let value = b.div(total, sum);
        let value = b.selp::<F32>(0.0, value, empty);
        sink(b, dim, value);
    });
}
