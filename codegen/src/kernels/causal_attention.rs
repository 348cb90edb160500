use super::Kernel;
use crate::blocks::attention::Heads;
use crate::blocks::kv::{self, Cache, value_or_memory};
use crate::blocks::mma_attention::{self, Batch, Positions, row_of};
use crate::ptx::{Builder, Compare, F32, Global, Size, U32};
use kiln_shape::KvType;
use kiln_shape::units::batch_positions;

/// Query tokens at neighbouring positions against a contiguous f16 cache, each up to its own, by tensor cores: grid
/// `[heads, columns / 16]`, rounded up, a query head and 16 positions a block. A last position beyond the cache gives
/// zeros, and sets the error word to 3.
#[derive(Debug, Clone, PartialEq)]
pub struct CausalAttention {
    head_dim: u32,
    name: String,
}

impl CausalAttention {
    /// For heads of `head_dim`, a multiple of 64 up to 256: `causal_attention_f16_128`.
    pub fn new(head_dim: u32) -> CausalAttention {
        CausalAttention { head_dim, name: format!("causal_attention_f16_{head_dim}") }
    }

    /// Positions of a block.
    pub const POSITIONS: u32 = batch_positions(1);
}

impl Kernel for CausalAttention {
    fn name(&self) -> &str {
        &self.name
    }

    fn block(&self) -> u32 {
        mma_attention::THREADS
    }

    fn check(&self) -> Result<(), String> {
        mma_attention::check(self.head_dim)
    }

    fn build(&self, b: &mut Builder) {
        /// A chunk a unit: partial results are put together one by one.
        const UNITS: u32 = 1 << 20;
        let head_dim = self.head_dim;
        b.blocks_per_sm(2);
        let q = b.param::<Global<F32>>("q"); // [columns, heads, head_dim]
        let keys = kv::cache_param(b, "k_cache", KvType::F16); // [kv_heads, max_seq_len, head_dim]
        let values = kv::cache_param(b, "v_cache", KvType::F16); // [kv_heads, max_seq_len, head_dim]
        let max_seq_len = b.param::<U32>("max_seq_len");
        let out = b.param::<Global<F32>>("out"); // [columns, heads, head_dim]
        let columns = b.param::<U32>("columns");
        let position = b.param::<U32>("position"); // of the first of them
        let position_at = b.param::<Global<U32>>("position_at"); // the same in device memory, or null
        let error = b.param::<Global<U32>>("error"); // [1]
        let heads = b.param::<U32>("heads");
        let group = b.param::<U32>("group"); // query heads of a KV head

        let (head, tile, tid) = (b.ctaid_x(), b.ctaid_y(), b.tid());
        let kv_head = b.div::<U32>(head, group);
        let first = b.mul::<U32>(tile, CausalAttention::POSITIONS);
        let left = b.sub(columns, first);
        let count = b.min::<U32>(left, CausalAttention::POSITIONS);
        let position = value_or_memory(b, position, position_at);
        // A position near 2^32 has no columns behind it.
        let room = b.sub::<U32>(max_seq_len, columns);
        let has_room = b.setp::<U32>(Compare::Le, columns, max_seq_len);
        let fits = b.setp::<U32>(Compare::Le, position, room);
        let fits = b.and_pred(has_room, fits);
        let row = b.mul::<U32>(heads, head_dim * 4);
        let mut own = |base: Global<F32>| {
            let at = row_of(b, base, first, Size::Reg(row));
            b.byte_index(at, head, head_dim * 4)
        };
        let (q, out) = (own(q), own(out));
        let batch = Batch::new(b, Heads { group: 1, head_dim, ty: KvType::F16 }, UNITS, CausalAttention::POSITIONS);
        let cache = Cache::Contiguous { keys, values, max_seq: Size::Reg(max_seq_len) };
        let length = b.add(position, first);
        let length = b.add(length, 1);
        let of = Positions { cache, kv_head, length, count, q, apart: Size::Reg(row) };
        b.if_else(
            fits,
            |b| {
                batch.attend(b, &of, |b, position, _, dim, values| {
                    let to = row_of(b, out, position, Size::Reg(row));
                    let to = b.index(to, dim);
                    b.st_vector(to, values);
                });
            },
            |b| {
                let all = b.mul::<U32>(count, head_dim);
                b.for_range(tid, all, b.block(), |b, i| {
                    let (position, inside) = (b.div::<U32>(i, head_dim), b.rem::<U32>(i, head_dim));
                    let to = row_of(b, out, position, Size::Reg(row));
                    let to = b.index(to, inside);
                    b.st(to, 0.0);
                });
                let leader = b.or::<U32>(tid, head);
                let leader = b.or::<U32>(leader, tile);
                let leader = b.setp_eq(leader, 0);
                b.if_(leader, |b| b.st(error, 3));
            },
        );
    }
}
