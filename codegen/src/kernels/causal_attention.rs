use super::Kernel;
use crate::blocks::attention::Heads;
use crate::blocks::kv::{self, Cache, value_or_memory};
use crate::blocks::leader;
use crate::blocks::mma_attention::{self, Batch, Positions, batch_zeros};
use crate::ptx::{Builder, Compare, F32, Global, Size, U32};
use kiln_shape::KvType;

/// Query tokens at neighbouring positions against a contiguous f16 cache, each up to its own, by tensor cores: grid
/// `[heads, blocks]`, as [`BatchCut`](kiln_shape::units::BatchCut) deals the columns of a query head to blocks. A last
/// position beyond the cache gives zeros, and sets the error word to 3.
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
}

impl Kernel for CausalAttention {
    fn name(&self) -> &str {
        &self.name
    }

    fn block(&self) -> u32 {
        mma_attention::BATCH_THREADS
    }

    fn check(&self) -> Result<(), String> {
        mma_attention::check(self.head_dim)
    }

    fn build(&self, b: &mut Builder) {
        /// A chunk a unit: partial results are put together one by one.
        const UNITS: u32 = 1 << 20;
        let head_dim = self.head_dim;
        b.blocks_per_sm(mma_attention::batch_blocks_per_sm(head_dim));
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

        let (head, block, tid) = (b.ctaid_x(), b.ctaid_y(), b.tid());
        let kv_head = b.div::<U32>(head, group);
        let position = value_or_memory(b, position, position_at);
        // A position near 2^32 has no columns behind it.
        let room = b.sub::<U32>(max_seq_len, columns);
        let has_room = b.setp::<U32>(Compare::Le, columns, max_seq_len);
        let fits = b.setp::<U32>(Compare::Le, position, room);
        let fits = b.and_pred(has_room, fits);
        let row = b.mul::<U32>(heads, head_dim * 4);
        let [q, out] = [q, out].map(|base| b.byte_index(base, head, head_dim * 4));
        let heads = Heads { group: 1, head_dim, ty: KvType::F16 };
        let batch = Batch::new(b, heads, UNITS);
        let cache = Cache::Contiguous { keys, values, max_seq: Size::Reg(max_seq_len) };
        let length = b.add(position, 1);
        let (q_apart, out_apart) = (Size::Reg(row), Size::Reg(row));
        let of = Positions { cache, kv_head, block, length, count: columns, q, out, q_apart, out_apart };
        b.if_else(
            fits,
            |b| {
                batch.attend(b, &of);
            },
            |b| {
                batch_zeros(b, &of, heads);
                let leader = leader::of_grid(b, tid, &[head, block]);
                b.if_(leader, |b| b.st(error, 3));
            },
        );
    }
}
