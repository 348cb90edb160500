use super::{Grid, Kernel};
use crate::blocks::kv::{self, Cache, Half, KvType};
use crate::blocks::qk::{self, Angles};
use crate::blocks::tensor::vector_from_table;
use crate::ptx::{Builder, F32, Global, LoadKind, Size, U8, U32, U64};
use kiln_shape::table::{LAYER_SLOTS, MODEL_SLOTS};
use kiln_shape::{ModelShape, TensorRole};

/// What follows the QKV projection, a warp a head: RMS norm per head (where the model has it) and RoPE for each head of Q
/// (in place) and of K, and the write of K and V into the chunked cache at `state`'s position. A position outside
/// `capacity` sets `state[2]` to 2 and writes nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct QkNormRopeKvWrite {
    /// The model: heads, head_dim (a multiple of 64 up to 256), qk-norm or not.
    pub shape: ModelShape,
    /// The cache's type.
    pub kv: KvType,
    name: String,
}

impl QkNormRopeKvWrite {
    /// The kernel for a model and a cache type.
    pub fn new(shape: ModelShape, kv: KvType) -> QkNormRopeKvWrite {
        QkNormRopeKvWrite { shape, kv, name: format!("qk_norm_rope_kv_write_{}", kv.suffix()) }
    }

    fn row_bytes(&self) -> Size {
        Size::Const(self.shape.head_dim * self.kv.bytes())
    }
}

impl Kernel for QkNormRopeKvWrite {
    fn name(&self) -> &str {
        &self.name
    }

    fn block(&self) -> u32 {
        128
    }

    fn grid(&self) -> Grid {
        Grid::Blocks((self.shape.heads + 2 * self.shape.kv_heads).div_ceil(self.block() / 32))
    }

    fn check(&self) -> Result<(), String> {
        match self.shape.head_dim {
            64 | 128 | 192 | 256 => Ok(()),
            other => Err(format!("head_dim is {other}: RoPE needs a multiple of 64 up to 256")),
        }
    }

    fn build(&self, b: &mut Builder) {
        let table = b.param::<Global<U8>>("table"); // the tensor table
        let layer = b.param::<U32>("layer");
        let qkv = b.param::<Global<F32>>("qkv"); // [heads + 2 kv_heads, head_dim]
        let cos = b.param::<Global<F32>>("cos"); // [capacity, head_dim / 2]
        let sin = b.param::<Global<F32>>("sin"); // [capacity, head_dim / 2]
        let eps = b.param::<F32>("eps");
        let chunks = b.param::<Global<U64>>("chunks"); // addresses of the cache's chunks
        let capacity = b.param::<U32>("capacity"); // positions the chunks and tables have
        let state = b.param::<Global<U32>>("state"); // [position, length, error]

        let ModelShape { heads, kv_heads, head_dim, .. } = self.shape;
        let position = b.ld(state, LoadKind::Constant);
        let inside = b.setp_lt(position, capacity);
        let (block, warp, warps) = (b.ctaid_x(), b.warp_id(), b.warps());
        let head = b.mad::<U32>(block, warps, warp);
        let entries = b.mad::<U32>(layer, LAYER_SLOTS, MODEL_SLOTS);
        let mut gamma = |role: TensorRole| {
            self.shape.qk_norm().then(|| {
                let entry = b.add(entries, role.slot());
                (vector_from_table::<F32>(b, table, entry), eps)
            })
        };
        let (q_gamma, k_gamma) = (gamma(TensorRole::AttnQNorm), gamma(TensorRole::AttnKNorm));
        let cache = Cache::Chunked { table: chunks, layer, kv_heads: Size::Const(kv_heads) };
        let x = b.byte_index(qkv, head, head_dim * 4);
        let lane = b.lane();
        b.if_else(
            inside,
            |b| {
                let angles = Angles::at(b, cos, sin, position, head_dim);
                let is_q = b.setp_lt(head, heads);
                b.if_(is_q, |b| {
                    let turned = qk::head(b, head_dim, x, q_gamma, angles, LoadKind::Ordinary);
                    let to = b.index(x, lane);
                    for (i, value) in turned.into_iter().enumerate() {
                        b.st(to.at(32 * i as u32), value);
                    }
                });
                let kv_head = b.sub(head, heads);
                let is_k = b.setp_lt(kv_head, kv_heads);
                b.if_(is_k, |b| {
                    let turned = qk::head(b, head_dim, x, k_gamma, angles, LoadKind::Constant);
                    let row = cache.row(b, Half::Keys, kv_head, position, self.row_bytes());
                    for (i, value) in turned.into_iter().enumerate() {
                        let at = b.add(lane, 32 * i as u32);
                        kv::store(b, self.kv, row, at, value);
                    }
                });
                let kv_head = b.sub(kv_head, kv_heads);
                let is_v = b.setp_lt(kv_head, kv_heads);
                b.if_(is_v, |b| {
                    let from = b.index(x, lane);
                    let row = cache.row(b, Half::Values, kv_head, position, self.row_bytes());
                    for i in 0..head_dim / 32 {
                        let value = b.ld(from.at(32 * i), LoadKind::Constant);
                        let at = b.add(lane, 32 * i);
                        kv::store(b, self.kv, row, at, value);
                    }
                });
            },
            |b| {
                let tid = b.tid();
                let leader = b.or::<U32>(tid, block);
                let leader = b.setp_eq(leader, 0);
                b.if_(leader, |b| b.st(state.at(2), 2));
            },
        );
    }
}
