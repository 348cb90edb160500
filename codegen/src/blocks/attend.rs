//! Attention of one position over its sequence, dealt to blocks by KV head and unit of the cache. The block that is the
//! last to finish a unit of a KV head puts all of them together, so that one launch, or one phase, is enough; or blocks have
//! each other's parts through the exchange, and each puts a share together.

use super::attention::{self, Heads};
use super::exchange::Slots;
use super::kv::{Cache, Half};
use super::mma_attention::{Asked, Run};
use super::parts::Parts;
use super::running::Part;
use super::{arrival, exchange, mma_attention};
use crate::ptx::{Builder, F32, Global, LoadKind, Pred, Shared, Size, U32, Val};
use kiln_shape::Units;
use kiln_shape::table::KV_CHUNK;
use kiln_shape::units::FAST_CHUNK;

/// Attention of a model's heads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attend {
    heads: Heads,
    units: Units,
    way: Way,
    /// Whether the block was the last to arrive.
    arrived: Shared<U32>,
}

/// The way of a unit, with its shared memory.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// A chunk of the cache in f32, and what chunks are put together with.
    Chunk(attention::Workspace, Shared<F32>),
    /// A run of chunks by tensor cores.
    Run(mma_attention::Workspace),
}

/// The sequence that is attended to, up to the position itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sequence {
    pub(crate) cache: Cache,
    pub(crate) length: Val<U32>,
    /// Units of each KV head.
    pub(crate) units: Val<U32>,
    /// `[heads, kept units, partial]`, as [`Units`] counts them.
    pub(crate) partials: Global<F32>,
    /// Chunks that the cache may have.
    pub(crate) max_chunks: Val<U32>,
    /// `[kv_heads]`, zeros before and after; a grid barrier or a meeting stands between that and the next attention.
    pub(crate) arrivals: Global<U32>,
    /// Where runs' partial results go instead, for [`Attend::join`] to put them together.
    pub(crate) parts: Option<Parts>,
    pub(crate) out: Out,
}

/// A unit of a KV head, and positions of every one but the last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(crate) kv_head: Val<U32>,
    pub(crate) unit: Val<U32>,
    pub(crate) positions: Size,
}

impl Sequence {
    /// The positions of a unit.
    fn run(&self, b: &mut Builder, At { kv_head, unit, positions }: At) -> Run {
        let first = b.mul::<U32>(unit, positions);
        let left = b.sub(self.length, first);
        let count = b.min::<U32>(left, positions);
        Run { cache: self.cache, kv_head, first, end: b.add(first, count) }
    }
}

/// Where the result goes, `[heads, head_dim]`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Out {
    Floats(Global<F32>),
    /// Through the exchange.
    Words(Slots),
}

/// The result of a group's heads.
#[derive(Debug, Clone, Copy)]
enum OfGroup {
    Floats(Global<F32>),
    /// With the group's first element.
    Words(Slots, Val<U32>),
}

impl Out {
    fn of_group(self, b: &mut Builder, head: Val<U32>, head_dim: u32) -> OfGroup {
        match self {
            Out::Floats(out) => OfGroup::Floats(b.byte_index(out, head, head_dim * 4)),
            Out::Words(slots) => OfGroup::Words(slots, b.mul::<U32>(head, head_dim)),
        }
    }
}

impl OfGroup {
    /// The result of one of its heads.
    fn of_head(self, b: &mut Builder, head: Val<U32>, head_dim: u32) -> OfGroup {
        match self {
            OfGroup::Floats(out) => OfGroup::Floats(b.byte_index(out, head, head_dim * 4)),
            OfGroup::Words(slots, first) => OfGroup::Words(slots, b.mad::<U32>(head, head_dim, first)),
        }
    }

    /// Stores neighbouring elements from element `at` of the group on, whose number is a multiple of theirs, at most 8.
    fn store<const N: usize>(&self, b: &mut Builder, at: Val<U32>, values: [Val<F32>; N]) {
        match *self {
            OfGroup::Floats(out) => {
                let to = b.index(out, at);
                if N == 1 {
                    values.into_iter().for_each(|value| b.st(to, value));
                } else {
                    b.st_vector(to, values);
                }
            }
            OfGroup::Words(slots, first) => {
                let element = b.add::<U32>(first, at);
                let place = exchange::place(b, element);
                let out = slots.own(b);
                let to = b.index(out, place);
                let (fours, others) = values.as_chunks::<4>();
                for (number, four) in (0..).zip(fours) {
                    exchange::store_four(b, to.at(number * exchange::FOURS), *four);
                }
                for (number, value) in (0..).zip(others) {
                    exchange::store(b, to.at(number), *value);
                }
            }
        }
    }
}

/// Threads of a stream kernel's block.
pub(crate) const fn threads(units: Units) -> u32 {
    match units {
        Units::Chunks => attention::THREADS,
        Units::Runs { .. } => mma_attention::THREADS,
    }
}

/// Blocks of a stream kernel that an SM must hold, by which the assembler limits registers.
pub(crate) const fn blocks_per_sm(units: Units, heads: Heads) -> u32 {
    match units {
        Units::Chunks => attention::blocks_per_sm(heads.head_dim, heads.ty),
        Units::Runs { .. } => 2,
    }
}

impl Attend {
    /// Takes the shared memory.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, heads: Heads, units: Units) -> Attend {
        let way = match units {
            Units::Chunks => {
                let work = attention::Workspace::new(b, heads);
                Way::Chunk(work, b.dynamic_shared(attention::reduce_floats(heads.head_dim)))
            }
            Units::Runs { .. } => Way::Run(mma_attention::Workspace::new(b, heads)),
        };
        Attend { heads, units, way, arrived: b.dynamic_shared(1) }
    }

    /// Positions of a unit of a sequence of `length` positions, and its units for each KV head.
    #[track_caller]
    pub(crate) fn cut(b: &mut Builder, units: Units, length: Val<U32>) -> (Size, Val<U32>) {
        match units {
            Units::Chunks => {
                let units = b.add(length, KV_CHUNK - 1);
                (Size::Const(KV_CHUNK), b.shr(units, KV_CHUNK.trailing_zeros()))
            }
            Units::Runs { most } => {
                let chunks = b.add(length, FAST_CHUNK - 1);
                let chunks = b.shr(chunks, FAST_CHUNK.trailing_zeros());
                let each = b.add(chunks, most - 1);
                let each = b.div::<U32>(each, most);
                let each = b.max::<U32>(each, 1);
                let units = b.add(chunks, each);
                let units = b.sub(units, 1);
                let positions = b.shl(each, FAST_CHUNK.trailing_zeros());
                (Size::Reg(positions), b.div::<U32>(units, each))
            }
        }
    }

    /// Units of a query head for which there is room among the partial results of a cache of up to so many chunks.
    #[track_caller]
    pub(crate) fn kept(&self, b: &mut Builder, max_chunks: Val<U32>) -> Val<U32> {
        match self.units {
            Units::Chunks => max_chunks,
            Units::Runs { most } => {
                let all = b.mul::<U32>(max_chunks, KV_CHUNK / FAST_CHUNK);
                b.min::<U32>(all, most)
            }
        }
    }

    /// Brings the group's queries, `[group, head_dim]`, into shared memory.
    #[track_caller]
    pub(crate) fn load_queries(&self, b: &mut Builder, q: Global<F32>, kind: LoadKind) {
        match &self.way {
            Way::Chunk(work, _) => work.load_queries(b, self.heads, q, None, kind),
            Way::Run(work) => work.load_queries(b, q, kind),
        }
    }

    /// Puts one head's query, held by a warp (lane l has elements l, l + 32, ...), into shared memory.
    #[track_caller]
    pub(crate) fn store_query(&self, b: &mut Builder, head: Val<U32>, lane: Val<U32>, values: &[Val<F32>]) {
        match &self.way {
            Way::Chunk(work, _) => work.store_query(b, self.heads, head, lane, values),
            Way::Run(work) => work.store_query(b, head, lane, values),
        }
    }

    /// Puts an element of the newest position's key where [`Attend::unit`] takes it from if keys were asked for.
    #[track_caller]
    pub(crate) fn store_new(&self, b: &mut Builder, dim: Val<U32>, value: Val<F32>) {
        if let Way::Run(work) = &self.way {
            work.store_new(b, dim, value);
        }
    }

    /// Asks for the keys that each warp reads first of a unit, while its queries are on their way. Of the newest position, which
    /// is the unit's last if it `has_new`, nothing is asked for.
    #[track_caller]
    pub(crate) fn ask(&self, b: &mut Builder, sequence: &Sequence, at: At, has_new: Val<Pred>) -> Option<Asked> {
        let Way::Run(work) = &self.way else { return None };
        let run = sequence.run(b, at);
        work.ask(b, run, has_new)
    }

    /// Attends to a unit, and writes the group's result where that finishes the KV head's last unit, or hands over its part.
    /// Begins with a barrier: queries are seen. Another must come before the next unit.
    #[track_caller]
    pub(crate) fn unit(&self, b: &mut Builder, sequence: &Sequence, at: At, asked: Option<&Asked>) {
        let Heads { group, head_dim, .. } = self.heads;
        let At { kv_head, unit, .. } = at;
        let head = b.mul::<U32>(kv_head, group);
        let out = sequence.out.of_group(b, head, head_dim);
        let row = self.units.partial(head_dim);
        let kept = self.kept(b, sequence.max_chunks);
        let of_group = b.mul::<U32>(head, kept);
        let of_group = b.byte_index(sequence.partials, of_group, row * 4);
        let partial = b.byte_index(of_group, unit, row * 4);
        let single = b.setp_eq(sequence.units, 1);
        let counter = b.index(sequence.arrivals, kv_head);
        match self.way {
            Way::Chunk(work, sums) => {
                let run = sequence.run(b, at);
                let count = b.sub(run.end, run.first);
                let row_bytes = Size::Const(self.heads.row_bytes());
                let [keys, values] =
                    [Half::Keys, Half::Values].map(|half| sequence.cache.chunk(b, half, kv_head, unit, row_bytes));
                let stride = b.mul::<U32>(kept, row);
                work.chunk(b, self.heads, keys, values, count, |b, head, dim, value| {
                    b.if_else(
                        single,
                        |b| {
                            let sum = b.index(work.sum, head);
                            let sum = b.ld(sum, LoadKind::Ordinary);
                            let value = b.div(value, sum);
                            let to = b.mad::<U32>(head, head_dim, dim);
                            out.store(b, to, [value]);
                        },
                        |b| {
                            let to = b.mad::<U32>(head, stride, dim);
                            let to = b.index(partial, to);
                            b.st(to, value);
                        },
                    );
                });
                self.if_last(
                    b,
                    sequence,
                    single,
                    counter,
                    |b| {
                        attention::statistics(b, self.heads, None, partial, stride, |b, head| {
                            let (max, sum) = (b.index(work.max, head), b.index(work.sum, head));
                            (b.ld(max, LoadKind::Ordinary), b.ld(sum, LoadKind::Ordinary))
                        });
                    },
                    |b| {
                        b.for_range(0, group, 1, |b, g| {
                            let of_head = b.mul::<U32>(g, kept);
                            let first = b.byte_index(of_group, of_head, row * 4);
                            let out = out.of_head(b, g, head_dim);
                            b.bar_sync(); // the head before is done with the sums
                            let sink = |b: &mut Builder, dim, value| out.store(b, dim, [value]);
                            attention::reduce(b, head_dim, first, sequence.units, sums, LoadKind::Ordinary, sink);
                        });
                    },
                );
            }
            Way::Run(work) => {
                let run = (sequence.run(b, at), asked);
                let write = |b: &mut Builder, head, dim, part: Part| self.write(b, out, (head, dim), part);
                if let Some(parts) = &sequence.parts {
                    return work.run(b, run, |b, of_group, dim, part| {
                        b.if_else(
                            single,
                            |b| write(b, of_group, dim, part),
                            |b| {
                                let head = b.add::<U32>(head, of_group);
                                parts.store(b, unit, (head, dim), &part);
                            },
                        );
                    });
                }
                work.run(b, run, |b, head, dim, part| {
                    b.if_else(
                        single,
                        |b| write(b, head, dim, part),
                        |b| {
                            let to = b.mul::<U32>(head, kept);
                            let to = b.byte_index(partial, to, row * 4);
                            let values = b.index(to, dim);
                            b.st_vector(values, part.values);
                            let leads = b.setp_eq(dim, 0);
                            b.if_(leads, |b| b.st_vector(to.at(head_dim), [part.max, part.sum]));
                        },
                    );
                });
                self.if_last(
                    b,
                    sequence,
                    single,
                    counter,
                    |_| {},
                    |b| work.join(b, of_group, row, kept, sequence.units, write),
                );
            }
        }
    }

    /// Writes a thread's elements of the result of a group's head.
    fn write(&self, b: &mut Builder, out: OfGroup, (head, dim): (Val<U32>, Val<U32>), part: Part) {
        let values = part.divided(b);
        let to = b.mad::<U32>(head, self.heads.head_dim, dim);
        out.store(b, to, values);
    }

    /// Puts the runs of a KV head together whose partial results go through the exchange, of which there are several: the share
    /// of the elements that a unit's block has, for each of its units. Behind all of the block's units of the sequence.
    #[track_caller]
    pub(crate) fn join(&self, b: &mut Builder, sequence: &Sequence, At { kv_head, unit, .. }: At) {
        let (Way::Run(work), Some(parts)) = (&self.way, &sequence.parts) else { return };
        let Heads { group, head_dim, .. } = self.heads;
        let head = b.mul::<U32>(kv_head, group);
        let out = sequence.out.of_group(b, head, head_dim);
        work.join_share(b, parts, head, (unit, sequence.units), |b, head, dim, part| {
            self.write(b, out, (head, dim), part);
        });
    }

    /// Where there are several units: writes the `rest` of this one's, and runs `join` if it was the last to be finished.
    fn if_last(
        &self,
        b: &mut Builder,
        sequence: &Sequence,
        single: Val<Pred>,
        counter: Global<U32>,
        rest: impl FnOnce(&mut Builder),
        join: impl FnOnce(&mut Builder),
    ) {
        let several = b.not_pred(single);
        b.if_(several, |b| {
            rest(b);
            let last = arrival::last(b, counter, sequence.units, self.arrived);
            b.if_(last, join);
        });
    }
}
