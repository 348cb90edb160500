//! Attention over a sequence's chunks, and the write of the position's key and value.

use super::{Decoder, Pass};
use crate::blocks::attend::{Attend, Sequence};
use crate::blocks::attention::Heads;
use crate::blocks::kv::{self, Cache, Half};
use crate::blocks::qk::{Angles, Turn};
use crate::blocks::tensor::vector_from_table;
use crate::ptx::{Builder, F32, Global, Size, U32, Val, Var};
use kiln_shape::mailbox::item;
use kiln_shape::{KvType, ModelShape, RopePairing, TensorRole, Units};

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
            let attend = Attend::new(b, heads, Units::of(self.kernel.numerics, ty, kv_heads));
            let (positions, units) = attend.cut(b, length);
            let all = b.mul::<U32>(units, kv_heads);
            let last = b.sub(units, 1);
            let sequence = Sequence { cache, length, units, partials, max_chunks, arrivals, out };
            let first = self.deal(b, all, dealt);
            b.for_range(first, all, self.barrier.blocks(), |b, index| {
                let unit = b.div::<U32>(index, kv_heads);
                let kv_head = b.rem::<U32>(index, kv_heads);
                b.bar_sync(); // the pair before is done with the workspace
                self.queries(b, &attend, heads, at, kv_head, angles);
                let owns = b.setp_eq(unit, last);
                b.if_(owns, |b| self.write_kv(b, ty, cache, at, kv_head, position, angles));
                attend.unit(b, &sequence, kv_head, unit, positions);
            });
        });
    }

    /// The group's queries of a column and layer, normalised, turned and scaled, into the workspace: a warp a head.
    fn queries(
        &self,
        b: &mut Builder,
        attend: &Attend,
        heads: Heads,
        at: (Val<U32>, Val<U32>),
        kv_head: Val<U32>,
        angles: Angles,
    ) {
        let gamma = self.gamma(b, at.1, TensorRole::AttnQNorm);
        let (warp, warps, lane) = (b.warp_id(), b.warps(), b.lane());
        // Asked for before Q is waited for.
        let turn = Turn::load(b, heads.head_dim, gamma, angles);
        let first = b.mul::<U32>(kv_head, heads.group);
        b.for_range(warp, heads.group, warps, |b, g| {
            let head = b.add(first, g);
            let first = b.mul::<U32>(head, heads.head_dim);
            let query = self.head_of_qkv(b, at, first);
            let values = turn.apply(b, &query);
            attend.store_query(b, g, lane, &values);
        });
    }

    /// The position's key, by warp 0, and value, by warp 1, into the cache.
    #[allow(clippy::too_many_arguments)]
    fn write_kv(
        &self,
        b: &mut Builder,
        ty: KvType,
        cache: Cache,
        at: (Val<U32>, Val<U32>),
        kv_head: Val<U32>,
        position: Val<U32>,
        angles: Angles,
    ) {
        let ModelShape { heads, kv_heads, head_dim, rope: RopePairing::Halves, .. } = self.kernel.shape;
        let gamma = self.gamma(b, at.1, TensorRole::AttnKNorm);
        let (warp, lane) = (b.warp_id(), b.lane());
        let row_bytes = Size::Const(head_dim * ty.bytes());
        let first_key = b.mad::<U32>(kv_head, head_dim, heads * head_dim);
        let first_value = b.add::<U32>(first_key, kv_heads * head_dim);
        let is_key = b.setp_eq(warp, 0);
        b.if_(is_key, |b| {
            let turn = Turn::load(b, head_dim, gamma, angles);
            let key = self.head_of_qkv(b, at, first_key);
            let key = turn.apply(b, &key);
            let row = cache.row(b, Half::Keys, kv_head, position, row_bytes);
            for (i, value) in key.into_iter().enumerate() {
                let at = b.add(lane, 32 * i as u32);
                kv::store(b, ty, row, at, value);
            }
        });
        let is_value = b.setp_eq(warp, 1);
        b.if_(is_value, |b| {
            let value = self.head_of_qkv(b, at, first_value);
            let row = cache.row(b, Half::Values, kv_head, position, row_bytes);
            for (i, value) in value.into_iter().enumerate() {
                let at = b.add(lane, 32 * i as u32);
                kv::store(b, ty, row, at, value);
            }
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
