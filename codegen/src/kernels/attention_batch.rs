use super::gemm::rounded;
use super::{Attention, Kernel};
use crate::blocks::attention::Heads;
use crate::blocks::dependent;
use crate::blocks::kv::Cache;
use crate::blocks::leader;
use crate::blocks::mma_attention::{self, Batch, Positions, batch_zeros};
use crate::ptx::{Builder, Compare, F32, Global, Size, U32, U64};
use kiln_shape::units::batch_rounds;
use kiln_shape::{KvType, ModelShape, Numerics, Units, WeightType};

/// Query tokens at neighbouring positions against an f16 cache, in fast numerics: grid `(kv_heads, blocks)`, as
/// [`BatchCut`](kiln_shape::units::BatchCut) deals the columns to blocks. Each has the bits that [`Attention`] gives it. A
/// length above `capacity` gives zeros, rounds nothing, and sets the error word to 3. Where the next phase takes the results
/// they are rounded to bytes for it, as [`super::Quantise`] does.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionBatch {
    shape: ModelShape,
    /// Those that results may meet in the next phase.
    next: Vec<WeightType>,
}

impl AttentionBatch {
    /// For a model's heads, KV heads and head_dim, and matrices of `types`.
    pub fn new(shape: ModelShape, types: &[WeightType]) -> AttentionBatch {
        let next = types.iter().copied().filter(|ty| ty.is_quantised() && Numerics::Fast.takes(*ty, &shape)).collect();
        AttentionBatch { shape, next }
    }
}

impl Kernel for AttentionBatch {
    fn name(&self) -> &str {
        "attention_batch_f16"
    }

    fn block(&self) -> u32 {
        mma_attention::BATCH_THREADS
    }

    fn check(&self) -> Result<(), String> {
        Attention::new(self.shape, KvType::F16, Numerics::Fast).check()
    }

    fn build(&self, b: &mut Builder) {
        let ModelShape { head_dim, kv_heads, .. } = self.shape;
        let heads = Heads { group: self.shape.group(), head_dim, ty: KvType::F16 };
        b.blocks_per_sm(mma_attention::batch_blocks_per_sm(head_dim));
        let q = b.param::<Global<F32>>("q"); // [columns, q_dim + 2 kv_dim]
        let table = b.param::<Global<U64>>("chunks"); // addresses of the cache's chunks
        let layer = b.param::<U32>("layer");
        let capacity = b.param::<U32>("capacity"); // positions the chunks have
        let out = b.param::<Global<F32>>("out"); // [columns, q_dim]
        let columns = b.param::<U32>("columns"); // those that are there
        let length_at = b.param::<Global<U32>>("length_at"); // [1]: up to the first of them
        let error = b.param::<Global<U32>>("error"); // [1]
        let rounded = rounded(b);

        let (q_dim, kv_dim) = (self.shape.q_dim(), self.shape.kv_dim());
        let (kv_head, block, tid) = (b.ctaid_x(), b.ctaid_y(), b.tid());
        let kind = dependent::wait(b);
        let length = b.ld(length_at, kind);
        // A length near 2^32 has no columns behind it.
        let behind = b.sub::<U32>(columns, 1);
        let room = b.sub::<U32>(capacity, behind);
        let has_room = b.setp::<U32>(Compare::Le, behind, capacity);
        let fits = b.setp::<U32>(Compare::Le, length, room);
        let fits = b.and_pred(has_room, fits);
        let of_head = heads.group * head_dim * 4;
        let y = out;
        let [q, out] = [q, out].map(|base| b.byte_index(base, kv_head, of_head));
        let most = match Units::of(Numerics::Fast, KvType::F16, kv_heads) {
            Units::Runs { most } => most,
            Units::Chunks => 1,
        };
        let batch = Batch::new(b, heads, most);
        let cache = Cache::Chunked { table, layer, kv_heads: Size::Const(kv_heads) };
        let (q_apart, out_apart) = (Size::Const((q_dim + 2 * kv_dim) * 4), Size::Const(q_dim * 4));
        let of = Positions { cache, kv_head, block, length, count: columns, q, out, q_apart, out_apart };
        b.if_else(
            fits,
            |b| {
                let tile = batch.attend(b, &of);
                if batch_rounds(&self.shape) {
                    batch.round(b, (y, q_dim, kv_head), &tile, (rounded, &self.next));
                }
            },
            |b| {
                batch_zeros(b, &of, heads);
                let leader = leader::of_grid(b, tid, &[kv_head, block]);
                b.if_(leader, |b| b.st(error, 3));
            },
        );
    }
}
