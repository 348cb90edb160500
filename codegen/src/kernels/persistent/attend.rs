//! Attention over a sequence's chunks, and the write of the position's key and value.

use super::{Decoder, Item};
use crate::blocks::attention::{self, Heads, Workspace};
use crate::blocks::kv::{self, Cache, Half};
use crate::blocks::qk::{self, Angles};
use crate::blocks::tensor::vector_from_table;
use crate::ptx::{AtomicOp, Builder, F32, Global, LoadKind, Order, Pred, Scope, Shared, Size, StoreOrder, U32, Val};
use kiln_shape::table::{KV_CHUNK, LAYER_SLOTS, MODEL_SLOTS};
use kiln_shape::{KvType, ModelShape, RopePairing, TensorRole};

impl Decoder<'_> {
    /// Attention over a cache of the launch's type.
    pub(super) fn attend(&self, b: &mut Builder, item: &Item, layer: Val<U32>, position: Val<U32>) {
        b.if_else(
            self.half_cache,
            |b| self.attend_over(b, KvType::F16, item, layer, position),
            |b| self.attend_over(b, KvType::F32, item, layer, position),
        );
    }

    /// Attention, an item for each KV head and chunk. The block that has the position's chunk writes its key and value.
    fn attend_over(&self, b: &mut Builder, ty: KvType, item: &Item, layer: Val<U32>, position: Val<U32>) {
        let ModelShape { kv_heads, head_dim, .. } = self.kernel.shape;
        let heads = Heads { group: self.kernel.shape.group(), head_dim, ty };
        let length = b.add(position, 1);
        let chunks = b.add(position, KV_CHUNK);
        let chunks = b.shr(chunks, KV_CHUNK.trailing_zeros());
        let own_chunk = b.shr(position, KV_CHUNK.trailing_zeros());
        let items = b.mul::<U32>(chunks, kv_heads);
        let cache = Cache::Chunked { table: item.table, layer, kv_heads: Size::Const(kv_heads) };
        let angles = Angles::at(b, item.cos, item.sin, position, head_dim);
        let single = b.setp_eq(chunks, 1);
        let row_bytes = Size::Const(heads.row_bytes());
        b.overlap(|b| {
            let work = Workspace::new(b, heads);
            let sums = b.dynamic_shared::<F32>(attention::reduce_floats(head_dim));
            let arrived = b.dynamic_shared::<U32>(1);
            b.for_range(self.block, items, self.barrier.blocks(), |b, index| {
                let chunk = b.div::<U32>(index, kv_heads);
                let kv_head = b.rem::<U32>(index, kv_heads);
                b.bar_sync(); // the item before is done with the workspace
                self.queries(b, &work, heads, layer, kv_head, angles);
                let owns = b.setp_eq(chunk, own_chunk);
                b.if_(owns, |b| self.write_kv(b, ty, cache, layer, kv_head, position, angles));
                let first = b.mul::<U32>(chunk, KV_CHUNK);
                let left = b.sub(length, first);
                let count = b.min(left, KV_CHUNK);
                let keys = cache.chunk(b, Half::Keys, kv_head, chunk, row_bytes);
                let values = cache.chunk(b, Half::Values, kv_head, chunk, row_bytes);
                let head = b.mul::<U32>(kv_head, heads.group);
                let out = b.byte_index(self.attention, head, head_dim * 4);
                let row = b.mad::<U32>(head, item.max_chunks, chunk);
                let partial = b.byte_index(item.partials, row, (head_dim + 2) * 4);
                let stride = b.mul::<U32>(item.max_chunks, head_dim + 2);
                work.chunk(b, heads, keys, values, count, |b, head, dim, value| {
                    b.if_else(
                        single,
                        |b| {
                            let sum = b.index(work.sum, head);
                            let sum = b.ld(sum, LoadKind::Ordinary);
                            let value = b.div(value, sum);
                            let to = b.mad::<U32>(head, head_dim, dim);
                            let to = b.index(out, to);
                            b.st(to, value);
                        },
                        |b| {
                            let to = b.mad::<U32>(head, stride, dim);
                            let to = b.index(partial, to);
                            b.st(to, value);
                        },
                    );
                });
                let several = b.not_pred(single);
                b.if_(several, |b| {
                    attention::statistics(b, heads, None, partial, stride, |b, head| {
                        let (max, sum) = (b.index(work.max, head), b.index(work.sum, head));
                        (b.ld(max, LoadKind::Ordinary), b.ld(sum, LoadKind::Ordinary))
                    });
                    let last = self.arrive(b, arrived, kv_head, chunks);
                    b.if_(last, |b| {
                        b.for_range(0, heads.group, 1, |b, g| {
                            let head = b.add(head, g);
                            let row = b.mul::<U32>(head, item.max_chunks);
                            let first = b.byte_index(item.partials, row, (head_dim + 2) * 4);
                            let out = b.byte_index(self.attention, head, head_dim * 4);
                            b.bar_sync(); // the head before is done with the sums
                            attention::reduce(b, head_dim, first, chunks, sums, out, LoadKind::Ordinary);
                        });
                    });
                });
            });
        });
    }

    /// Whether this block is the last to finish a chunk of a KV head: then all partial results are visible to it. It
    /// resets the counter to 0, which happens before the next layer by a grid barrier.
    fn arrive(&self, b: &mut Builder, slot: Shared<U32>, kv_head: Val<U32>, chunks: Val<U32>) -> Val<Pred> {
        b.bar_sync(); // every thread's part of the partial result is written
        let tid = b.tid();
        let first = b.setp_eq(tid, 0);
        b.if_(first, |b| {
            let counter = b.index(self.arrivals, kv_head);
            b.fence_acq_rel(Scope::Gpu);
            let before = b.atom(AtomicOp::Add, Order::Relaxed, counter, 1u32, Scope::Gpu);
            b.fence_acq_rel(Scope::Gpu);
            let missing = b.sub::<U32>(chunks, before);
            let last = b.setp_eq(missing, 1);
            b.if_(last, |b| b.st_sync(counter, 0u32, StoreOrder::Relaxed, Scope::Gpu));
            let last = b.selp::<U32>(1, 0, last);
            b.st(slot, last);
        });
        b.bar_sync(); // the answer is in shared memory
        let last = b.ld(slot, LoadKind::Constant);
        b.setp_ne(last, 0)
    }

    /// The group's queries, normalised, turned and scaled, into the workspace: a warp a head.
    fn queries(
        &self,
        b: &mut Builder,
        work: &Workspace,
        heads: Heads,
        layer: Val<U32>,
        kv_head: Val<U32>,
        angles: Angles,
    ) {
        let gamma = self.gamma(b, layer, TensorRole::AttnQNorm);
        let (warp, warps, lane) = (b.warp_id(), b.warps(), b.lane());
        let first = b.mul::<U32>(kv_head, heads.group);
        b.for_range(warp, heads.group, warps, |b, g| {
            let head = b.add(first, g);
            let x = b.byte_index(self.qkv, head, heads.head_dim * 4);
            let values = qk::head(b, heads.head_dim, x, gamma, angles, LoadKind::Ordinary);
            work.store_query(b, heads, g, lane, &values);
        });
    }

    /// The position's key, by warp 0, and value, by warp 1, into the cache.
    #[allow(clippy::too_many_arguments)]
    fn write_kv(
        &self,
        b: &mut Builder,
        ty: KvType,
        cache: Cache,
        layer: Val<U32>,
        kv_head: Val<U32>,
        position: Val<U32>,
        angles: Angles,
    ) {
        let ModelShape { heads, kv_heads, head_dim, rope: RopePairing::Halves, .. } = self.kernel.shape;
        let gamma = self.gamma(b, layer, TensorRole::AttnKNorm);
        let (warp, lane) = (b.warp_id(), b.lane());
        let row_bytes = Size::Const(head_dim * ty.bytes());
        let keys = b.byte_index(self.qkv, kv_head, head_dim * 4).at(heads * head_dim);
        let values = keys.at(kv_heads * head_dim);
        let is_key = b.setp_eq(warp, 0);
        b.if_(is_key, |b| {
            let key = qk::head(b, head_dim, keys, gamma, angles, LoadKind::Ordinary);
            let row = cache.row(b, Half::Keys, kv_head, position, row_bytes);
            for (i, value) in key.into_iter().enumerate() {
                let at = b.add(lane, 32 * i as u32);
                kv::store(b, ty, row, at, value);
            }
        });
        let is_value = b.setp_eq(warp, 1);
        b.if_(is_value, |b| {
            let from = b.index(values, lane);
            let row = cache.row(b, Half::Values, kv_head, position, row_bytes);
            for i in 0..head_dim / 32 {
                let value = b.ld(from.at(32 * i), LoadKind::Ordinary);
                let at = b.add(lane, 32 * i);
                kv::store(b, ty, row, at, value);
            }
        });
    }

    fn gamma(&self, b: &mut Builder, layer: Val<U32>, role: TensorRole) -> Option<(Global<F32>, Val<F32>)> {
        self.kernel.shape.qk_norm.then(|| {
            let entry = b.mad::<U32>(layer, LAYER_SLOTS, MODEL_SLOTS + role.slot());
            (vector_from_table::<F32>(b, self.table, entry), self.eps)
        })
    }
}
