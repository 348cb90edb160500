//! Attention over a sequence's chunks, and the write of the position's key and value.

use super::{Decoder, Pass};
use crate::blocks::attend::{At, Attend, Sequence};
use crate::blocks::attention::Heads;
use crate::blocks::exchange::Words;
use crate::blocks::kv::{self, Cache, Half};
use crate::blocks::qk::{Angles, Turn};
use crate::blocks::tensor::vector_from_table;
use crate::ptx::{Builder, Compare, F32, Global, Pred, Size, U32, Val, Var};
use kiln_shape::mailbox::item;
use kiln_shape::{KvType, ModelShape, RopePairing, TensorRole};

/// A KV head of the position that runs.
struct Newest {
    /// The column and the layer.
    at: (Val<U32>, Val<U32>),
    kv_head: Val<U32>,
    /// Whether the block writes its key and value.
    owns: Val<Pred>,
    cache: Cache,
    position: Val<U32>,
    angles: Angles,
}

impl Decoder<'_> {
    /// Attention over caches of the launch's type. A column's pairs are dealt from the block on behind that which has the
    /// last pair of the column before.
    pub(super) fn attend(&self, b: &mut Builder, pass: &Pass, layer: Val<U32>) {
        let dealt = (self.columns.most() > 1).then(|| b.var::<U32>(0));
        self.columns.each(b, pass, |b, column| {
            b.if_else(
                self.half_cache,
                |b| self.attend_over(b, KvType::F16, (column, layer), dealt),
                |b| self.attend_over(b, KvType::F32, (column, layer), dealt),
            );
        });
    }

    /// The first pair of a block, where so many were dealt before; with these all are dealt behind it.
    fn deal(&self, b: &mut Builder, all: Val<U32>, dealt: Option<Var<U32>>) -> Val<U32> {
        let Some(dealt) = dealt else { return self.block };
        let (blocks, before) = (self.barrier.blocks(), b.get(dealt));
        let first = b.sub::<U32>(self.block, before);
        let wrapped = b.add::<U32>(first, blocks);
        let is_before = b.setp_lt(self.block, before);
        let next = b.add::<U32>(before, all);
        let next = b.rem::<U32>(next, blocks);
        b.set(dealt, next);
        b.selp::<U32>(wrapped, first, is_before)
    }

    /// Attention of a column, a pair of KV head and unit after the other. The block that has the position's unit, the last,
    /// writes its key and value.
    fn attend_over(&self, b: &mut Builder, ty: KvType, at: (Val<U32>, Val<U32>), dealt: Option<Var<U32>>) {
        let (column, layer) = at;
        let (columns, position) = (&self.columns, self.columns.position(b, column));
        let ModelShape { kv_heads, head_dim, .. } = self.kernel.shape;
        let heads = Heads { group: self.kernel.shape.group(), head_dim, ty };
        let length = b.add(position, 1);
        let table = columns.pointer(b, column, item::TABLE);
        let cache = Cache::Chunked { table, layer, kv_heads: Size::Const(kv_heads) };
        let [cos, sin] = [item::COS, item::SIN].map(|word| columns.pointer(b, column, word));
        let angles = Angles::at(b, cos, sin, position, head_dim);
        let (partials, out) = (columns.pointer(b, column, item::PARTIALS), self.attention_out(b, column, layer));
        let arrivals = match columns.most() {
            1 => self.arrivals,
            _ => b.byte_index(self.arrivals, column, 4 * kv_heads),
        };
        let max_chunks = columns.of_item(b, column, item::MAX_CHUNKS);
        b.overlap(|b| {
            let cut = self.units(ty);
            let attend = Attend::new(b, heads, cut);
            let (positions, units) = Attend::cut(b, cut, length);
            let all = b.mul::<U32>(units, kv_heads);
            let last = b.sub(units, 1);
            let parts = self.parts_of(b, cut, at);
            let sequence = Sequence { cache, length, units, partials, max_chunks, arrivals, parts, out };
            let first = self.deal(b, all, dealt);
            let pair = |b: &mut Builder, index: Val<U32>| {
                let (unit, kv_head) = (b.div::<U32>(index, kv_heads), b.rem::<U32>(index, kv_heads));
                At { kv_head, unit, positions }
            };
            b.for_range(first, all, self.barrier.blocks(), |b, index| {
                let unit = pair(b, index);
                let owns = b.setp_eq(unit.unit, last);
                let asked = self.vectors.as_ref().and_then(|_| attend.ask(b, &sequence, unit, owns));
                b.bar_sync(); // the pair before is done with the workspace
                self.heads(b, &attend, heads, &Newest { at, kv_head: unit.kv_head, owns, cache, position, angles });
                attend.unit(b, &sequence, unit, asked.as_ref());
            });
            if parts.is_some() {
                let several = b.setp_ne(units, 1);
                b.if_(several, |b| {
                    b.for_range(first, all, self.barrier.blocks(), |b, index| {
                        let unit = pair(b, index);
                        attend.join(b, &sequence, unit);
                    });
                });
            }
        });
    }

    /// The group's queries, normalised, turned and scaled, into the workspace, and where the block owns the position its key and
    /// value into the cache: a warp a head, from the last warp on: the first ones have keys on their way. A warp's first two heads are
    /// asked for at once: the ways of their elements to the L2 cache and back run beside each other.
    fn heads(&self, b: &mut Builder, attend: &Attend, heads: Heads, of: &Newest) {
        let ModelShape { heads: all, kv_heads, rope: RopePairing::Halves, .. } = self.kernel.shape;
        let Heads { group, head_dim, ty } = heads;
        let (layer, lane, warps) = (of.at.1, b.lane(), b.warps());
        let gammas = [TensorRole::AttnQNorm, TensorRole::AttnKNorm].map(|role| self.gamma(b, layer, role));
        let row_bytes = Size::Const(head_dim * ty.bytes());
        let warp = b.warp_id();
        let first = b.sub::<U32>(warps - 1, warp);
        let further = b.selp::<U32>(2, 0, of.owns);
        let count = b.add::<U32>(further, group);
        // The group's queries, then the key, then the value: heads of Q, K and V follow each other.
        let first_query = b.mul::<U32>(of.kv_head, group);
        let first_of_kv = b.add::<U32>(of.kv_head, all);
        let place = |b: &mut Builder, number: Val<U32>| {
            let query = b.add::<U32>(first_query, number);
            let is_value = b.setp::<U32>(Compare::Gt, number, group);
            let of_kv = b.selp::<U32>(kv_heads, 0, is_value);
            let of_kv = b.add::<U32>(of_kv, first_of_kv);
            let is_query = b.setp_lt(number, group);
            let head = b.selp::<U32>(query, of_kv, is_query);
            b.mul::<U32>(head, head_dim)
        };
        let through_exchange = self.vectors.is_some();
        // Two of a warp's heads are on their way, where it may have several.
        let several = through_exchange && group + 2 > warps;
        let words = through_exchange.then(|| self.words_of_head(b));
        let later = several.then(|| self.words_of_head(b));
        let ask = |b: &mut Builder, words: &Words, number: Val<U32>| {
            let works = b.setp_lt(number, count);
            b.if_(works, |b| {
                let at = place(b, number);
                self.ask_head(b, words, of.at, at);
            });
        };
        for (number, words) in (0..).zip(words.iter().chain(&later)) {
            let number = b.add::<U32>(first, number * warps);
            ask(b, words, number);
        }
        b.for_range(first, count, warps, |b, number| {
            b.keep_rolled();
            let (is_query, is_key) = (b.setp_lt(number, group), b.setp_eq(number, group));
            let gamma = gammas.map(|gamma| gamma.map(|(gamma, _)| gamma));
            let gamma = match gamma {
                [Some(query), Some(key)] => Some((b.select_ptr(query, key, is_query), self.eps)),
                _ => None,
            };
            // Asked for before the head is waited for.
            let turn = Turn::load(b, head_dim, gamma, of.angles);
            let at = place(b, number);
            let values = self.head_of_qkv(b, words.as_ref(), of.at, at);
            if let (Some(words), Some(later)) = (&words, &later) {
                words.take(b, later);
                if group + 2 > 2 * warps {
                    let number = b.add::<U32>(number, 2 * warps);
                    ask(b, later, number);
                }
            }
            let turned = turn.apply(b, &values);
            b.if_else(
                is_query,
                |b| attend.store_query(b, number, lane, &turned),
                |b| {
                    let rows = [Half::Keys, Half::Values]
                        .map(|half| of.cache.row(b, half, of.kv_head, of.position, row_bytes));
                    let row = b.select_ptr(rows[0], rows[1], is_key);
                    for (i, (turned, value)) in (0..).zip(turned.iter().zip(&values)) {
                        let at = b.add(lane, 32 * i);
                        let value = b.selp::<F32>(*turned, *value, is_key);
                        kv::store(b, ty, row, at, value);
                    }
                    b.if_(is_key, |b| {
                        for (i, key) in (0..).zip(&turned) {
                            let at = b.add(lane, 32 * i);
                            attend.store_new(b, at, *key);
                        }
                    });
                },
            );
        });
    }

    fn gamma(&self, b: &mut Builder, layer: Val<U32>, role: TensorRole) -> Option<(Global<F32>, Val<F32>)> {
        self.kernel.shape.qk_norm.then(|| {
            let (table, first) = self.entries_of(b, layer);
            let entry = b.add::<U32>(first, role.slot());
            (vector_from_table::<F32>(b, table, entry), self.eps)
        })
    }
}
