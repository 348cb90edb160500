use super::{Attention, Kernel};
use crate::blocks::attention::Heads;
use crate::blocks::kv::Cache;
use crate::blocks::leader;
use crate::blocks::mma_attention::{self, Batch, Positions};
use crate::ptx::{Builder, Compare, F32, Global, LoadKind, Size, U32, U64};
use kiln_shape::{KvType, ModelShape, Numerics, Units};

/// Query tokens at neighbouring positions against an f16 cache, in fast numerics: grid `(kv_heads, columns / positions)`,
/// rounded up, a block for each KV head and [`AttentionBatch::positions`]. Each has the bits that [`Attention`] gives it. A
/// length above `capacity` gives zeros, and sets the error word to 3.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionBatch {
    /// The model: heads, KV heads, head_dim.
    pub shape: ModelShape,
}

impl AttentionBatch {
    /// Positions of a block.
    pub const fn positions(&self) -> u32 {
        kiln_shape::units::batch_positions(self.shape.group())
    }
}

impl Kernel for AttentionBatch {
    fn name(&self) -> &str {
        "attention_batch_f16"
    }

    fn block(&self) -> u32 {
        mma_attention::THREADS
    }

    fn check(&self) -> Result<(), String> {
        Attention::new(self.shape, KvType::F16, Numerics::Fast).check()
    }

    fn build(&self, b: &mut Builder) {
        let ModelShape { head_dim, kv_heads, .. } = self.shape;
        let heads = Heads { group: self.shape.group(), head_dim, ty: KvType::F16 };
        b.blocks_per_sm(2);
        let q = b.param::<Global<F32>>("q"); // [columns, q_dim + 2 kv_dim]
        let table = b.param::<Global<U64>>("chunks"); // addresses of the cache's chunks
        let layer = b.param::<U32>("layer");
        let capacity = b.param::<U32>("capacity"); // positions the chunks have
        let out = b.param::<Global<F32>>("out"); // [columns, q_dim]
        let columns = b.param::<U32>("columns"); // those that are there
        let length_at = b.param::<Global<U32>>("length_at"); // [1]: up to the first of them
        let error = b.param::<Global<U32>>("error"); // [1]

        let (q_dim, kv_dim) = (self.shape.q_dim(), self.shape.kv_dim());
        let (kv_head, tile, tid) = (b.ctaid_x(), b.ctaid_y(), b.tid());
        let first = b.mul::<U32>(tile, self.positions());
        let left = b.sub(columns, first);
        let count = b.min::<U32>(left, self.positions());
        let length = b.ld(length_at, LoadKind::Constant);
        let last = b.add(length, columns);
        let last = b.sub(last, 1);
        let fits = b.setp::<U32>(Compare::Le, last, capacity);
        let q = b.byte_index(q, first, (q_dim + 2 * kv_dim) * 4);
        let q = b.byte_index(q, kv_head, heads.group * head_dim * 4);
        let out = b.byte_index(out, first, q_dim * 4);
        let out = b.byte_index(out, kv_head, heads.group * head_dim * 4);
        let most = match Units::of(Numerics::Fast, KvType::F16, kv_heads) {
            Units::Runs { most } => most,
            Units::Chunks => 1,
        };
        let batch = Batch::new(b, heads, most, self.positions());
        let cache = Cache::Chunked { table, layer, kv_heads: Size::Const(kv_heads) };
        let length = b.add(length, first);
        let of = Positions { cache, kv_head, length, count, q, apart: Size::Const((q_dim + 2 * kv_dim) * 4) };
        b.if_else(
            fits,
            |b| {
                batch.attend(b, &of, |b, position, head, dim, values| {
                    let to = b.byte_index(out, position, q_dim * 4);
                    let to = b.byte_index(to, head, head_dim * 4);
                    let to = b.index(to, dim);
                    b.st_vector(to, values);
                });
            },
            |b| {
                let of_position = heads.group * head_dim;
                let all = b.mul::<U32>(count, of_position);
                b.for_range(tid, all, b.block(), |b, i| {
                    let (position, inside) = (b.div::<U32>(i, of_position), b.rem::<U32>(i, of_position));
                    let to = b.byte_index(out, position, q_dim * 4);
                    let to = b.index(to, inside);
                    b.st(to, 0.0);
                });
                let leader = leader::of_grid(b, tid, &[kv_head, tile]);
                b.if_(leader, |b| b.st(error, 3));
            },
        );
    }
}
