use super::{Grid, Kernel};
use crate::blocks::dependent;
use crate::blocks::kv::{self, Cache, Half, value_or_memory};
use crate::blocks::leader;
use crate::blocks::norm;
use crate::blocks::qk::{self, Angles};
use crate::blocks::tensor::vector_from_table;
use crate::ptx::{Builder, Dim, F32, Global, LoadKind, Size, U8, U32, U64, Val};
use kiln_shape::columns::STATE_BYTES;
use kiln_shape::table::{LAYER_SLOTS, MODEL_SLOTS};
use kiln_shape::{KvType, ModelShape, RopePairing, TensorRole};

/// The step after the QKV projection, a warp a head: RMS norm per head (where the model has it) and RoPE for each head
/// of Q (in place) and of K, and the write of K and V into the chunked cache at `state`'s position. A position outside
/// `capacity` sets `state[2]` to 2 and writes nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct QkNormRopeKvWrite {
    /// The model: heads, head_dim (a multiple of 64 up to 256), qk-norm or not.
    pub shape: ModelShape,
    /// The cache's type.
    pub kv: KvType,
    columns: bool,
    name: String,
}

impl QkNormRopeKvWrite {
    /// The kernel for a model and a cache type.
    pub fn new(shape: ModelShape, kv: KvType) -> QkNormRopeKvWrite {
        QkNormRopeKvWrite { shape, kv, columns: false, name: format!("qk_norm_rope_kv_write_{}", kv.suffix()) }
    }

    /// The same for several tokens, grid `[blocks, columns]`: of each its state, `[columns, 3]`, and its row of `qkv`:
    /// `qk_norm_rope_kv_write_columns_f16`.
    pub fn of_columns(self) -> QkNormRopeKvWrite {
        let name = format!("qk_norm_rope_kv_write_columns_{}", self.kv.suffix());
        QkNormRopeKvWrite { columns: true, name, ..self }
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
        check_head_dim(self.shape.head_dim)
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

        let ModelShape { heads, kv_heads, head_dim, rope: RopePairing::Halves, .. } = self.shape;
        let (qkv, state) = if self.columns {
            let column = b.ctaid_y();
            let rows = (heads + 2 * kv_heads) * head_dim;
            (b.byte_index(qkv, column, rows * 4), b.byte_index(state, column, STATE_BYTES))
        } else {
            (qkv, state)
        };
        let kind = dependent::wait(b);
        let position = b.ld(state, kind);
        let inside = b.setp_lt(position, capacity);
        let (block, warp, warps) = (b.ctaid_x(), b.warp_id(), b.warps());
        let head = b.mad::<U32>(block, warps, warp);
        let entries = b.mad::<U32>(layer, LAYER_SLOTS, MODEL_SLOTS);
        let mut gamma = |role: TensorRole| {
            self.shape.qk_norm.then(|| {
                let entry = b.add(entries, role.slot());
                (vector_from_table::<F32>(b, table, entry), eps)
            })
        };
        let (q_gamma, k_gamma) = (gamma(TensorRole::AttnQNorm), gamma(TensorRole::AttnKNorm));
        let cache = Cache::Chunked { table: chunks, layer, kv_heads: Size::Const(kv_heads) };
        let rows = |b: &mut Builder, before: u32| b.index(qkv, before * head_dim);
        let (k, v) = (rows(b, heads), rows(b, heads + kv_heads));
        let heads = Heads { q: qkv, k, v, q_heads: Size::Const(heads), kv_heads: Size::Const(kv_heads), head_dim };
        let gammas = q_gamma.zip(k_gamma);
        b.if_else(
            inside,
            |b| {
                let angles = Angles::at(b, cos, sin, position, head_dim);
                heads.turn(b, head, gammas, angles, cache, self.kv, position);
            },
            |b| {
                let tid = b.tid();
                let leader = leader::of_grid(b, tid, &[block]);
                b.if_(leader, |b| b.st(state.at(2), 2));
            },
        );
    }
}

/// The step between the products and attention in one launch: RMS norm per head (where gammas are given) and RoPE for
/// each head of Q (in place) and of K, and the write of K and V into contiguous caches, a warp a head. A position
/// outside them sets the error word to 2 and writes nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct QkNormRopeKvScatter {
    /// Positions that the caches and the tables of angles have room for.
    pub max_seq_len: Dim,
    /// Elements per head: a multiple of 64 up to 256.
    pub head_dim: u32,
    /// Query heads.
    pub heads: Dim,
    /// Key and value heads.
    pub kv_heads: Dim,
    /// Epsilon under the root; `None` makes it a launch parameter.
    pub epsilon: Option<f32>,
    /// The cache's type.
    pub kv: KvType,
    name: String,
}

impl QkNormRopeKvScatter {
    /// For f32 caches `[kv_heads, max_seq_len, head_dim]`, with epsilon 1e-6.
    pub fn new(max_seq_len: u32, head_dim: u32, heads: u32, kv_heads: u32) -> QkNormRopeKvScatter {
        let [max_seq_len, heads, kv_heads] = [max_seq_len, heads, kv_heads].map(Dim::Baked);
        let (epsilon, kv) = (Some(1e-6), KvType::F32);
        QkNormRopeKvScatter { max_seq_len, head_dim, heads, kv_heads, epsilon, kv, name: scatter_name(kv) }
    }

    /// With heads, room and epsilon as launch parameters: `qk_norm_rope_kv_scatter_f16_64` for head_dim 64.
    pub fn general(head_dim: u32, kv: KvType) -> QkNormRopeKvScatter {
        let [max_seq_len, heads, kv_heads] = [Dim::Param; 3];
        let name = format!("{}_{head_dim}", scatter_name(kv));
        QkNormRopeKvScatter { max_seq_len, head_dim, heads, kv_heads, epsilon: None, kv, name }
    }

    /// Another epsilon.
    pub fn with_epsilon(self, epsilon: f32) -> QkNormRopeKvScatter {
        QkNormRopeKvScatter { epsilon: Some(epsilon), ..self }
    }

    /// With another cache type.
    pub fn with_kv_type(self, kv: KvType) -> QkNormRopeKvScatter {
        QkNormRopeKvScatter { kv, name: scatter_name(kv), ..self }
    }
}

fn scatter_name(kv: KvType) -> String {
    format!("qk_norm_rope_kv_scatter_{}", kv.suffix())
}

/// Each pair of RoPE lies in one lane.
fn check_head_dim(head_dim: u32) -> Result<(), String> {
    match head_dim {
        64 | 128 | 192 | 256 => Ok(()),
        other => Err(format!("head_dim is {other}: RoPE needs a multiple of 64 up to 256")),
    }
}

impl Kernel for QkNormRopeKvScatter {
    fn name(&self) -> &str {
        &self.name
    }

    fn block(&self) -> u32 {
        128
    }

    fn check(&self) -> Result<(), String> {
        if [self.heads, self.kv_heads, self.max_seq_len].contains(&Dim::Baked(0)) {
            return Err("a cache without heads or positions".to_owned());
        }
        check_head_dim(self.head_dim)
    }

    fn build(&self, b: &mut Builder) {
        let q = b.param::<Global<F32>>("q"); // [heads, head_dim], in place
        let k = b.param::<Global<F32>>("k"); // [kv_heads, head_dim]
        let v = b.param::<Global<F32>>("v"); // [kv_heads, head_dim]
        let q_gamma = b.param::<Global<F32>>("q_gamma"); // [head_dim], or null: no norm
        let k_gamma = b.param::<Global<F32>>("k_gamma"); // [head_dim]; not read without the other
        let cos = b.param::<Global<F32>>("cos"); // [max_seq_len, head_dim / 2]
        let sin = b.param::<Global<F32>>("sin"); // [max_seq_len, head_dim / 2]
        let keys = kv::cache_param(b, "k_cache", self.kv); // [kv_heads, max_seq_len, head_dim]
        let values = kv::cache_param(b, "v_cache", self.kv); // [kv_heads, max_seq_len, head_dim]
        let position = b.param::<U32>("position");
        let position_at = b.param::<Global<U32>>("position_at"); // the position in device memory, or null
        let error = b.param::<Global<U32>>("error"); // [1]
        let q_heads = b.dim("heads", self.heads);
        let kv_heads = b.dim("kv_heads", self.kv_heads);
        let max_seq = b.dim("max_seq_len", self.max_seq_len);
        let eps = norm::epsilon(b, self.epsilon);

        let position = value_or_memory(b, position, position_at);
        let inside = b.setp_lt::<U32>(position, max_seq);
        let (block, warp, warps) = (b.ctaid_x(), b.warp_id(), b.warps());
        let head = b.mad::<U32>(block, warps, warp);
        let heads = Heads { q, k, v, q_heads, kv_heads, head_dim: self.head_dim };
        let cache = Cache::Contiguous { keys, values, max_seq };
        let address = b.address(q_gamma);
        let has_norm = b.setp_ne::<U64>(address, 0u64);
        b.if_else(
            inside,
            |b| {
                let angles = Angles::at(b, cos, sin, position, self.head_dim);
                let gammas = ((q_gamma, eps), (k_gamma, eps));
                b.if_else(
                    has_norm,
                    |b| heads.turn(b, head, Some(gammas), angles, cache, self.kv, position),
                    |b| heads.turn(b, head, None, angles, cache, self.kv, position),
                );
            },
            |b| {
                let tid = b.tid();
                let leader = leader::of_grid(b, tid, &[block]);
                b.if_(leader, |b| b.st(error, 2));
            },
        );
    }
}

/// The heads of a token.
#[derive(Debug, Clone, Copy)]
struct Heads {
    /// `[q_heads, head_dim]`.
    q: Global<F32>,
    /// `[kv_heads, head_dim]`.
    k: Global<F32>,
    /// `[kv_heads, head_dim]`.
    v: Global<F32>,
    q_heads: Size,
    kv_heads: Size,
    head_dim: u32,
}

/// A norm's gamma and epsilon.
type Norm = (Global<F32>, Val<F32>);

impl Heads {
    /// What the warp of head `head`, counted over Q, K and V, does: normalises and turns it, or writes it as it is.
    #[allow(clippy::too_many_arguments)] // which head, how it is turned, where it goes
    fn turn(
        &self,
        b: &mut Builder,
        head: Val<U32>,
        gammas: Option<(Norm, Norm)>,
        angles: Angles,
        cache: Cache,
        kv: KvType,
        position: Val<U32>,
    ) {
        let Heads { q, k, v, q_heads, kv_heads, head_dim } = *self;
        let (lane, row_bytes) = (b.lane(), Size::Const(head_dim * kv.bytes()));
        let is_q = b.setp_lt::<U32>(head, q_heads);
        b.if_(is_q, |b| {
            let x = b.byte_index(q, head, head_dim * 4);
            let turned = qk::head(b, head_dim, x, gammas.map(|(q, _)| q), angles, LoadKind::Ordinary);
            let to = b.index(x, lane);
            for (i, value) in turned.into_iter().enumerate() {
                b.st(to.at(32 * i as u32), value);
            }
        });
        let kv_head = b.sub::<U32>(head, q_heads);
        let is_k = b.setp_lt::<U32>(kv_head, kv_heads);
        b.if_(is_k, |b| {
            let x = b.byte_index(k, kv_head, head_dim * 4);
            let turned = qk::head(b, head_dim, x, gammas.map(|(_, k)| k), angles, LoadKind::Ordinary);
            let row = cache.row(b, Half::Keys, kv_head, position, row_bytes);
            for (i, value) in turned.into_iter().enumerate() {
                let at = b.add(lane, 32 * i as u32);
                kv::store(b, kv, row, at, value);
            }
        });
        let kv_head = b.sub::<U32>(kv_head, kv_heads);
        let is_v = b.setp_lt::<U32>(kv_head, kv_heads);
        b.if_(is_v, |b| {
            let x = b.byte_index(v, kv_head, head_dim * 4);
            let from = b.index(x, lane);
            let row = cache.row(b, Half::Values, kv_head, position, row_bytes);
            for i in 0..head_dim / 32 {
                let value = b.ld(from.at(32 * i), LoadKind::Ordinary);
                let at = b.add(lane, 32 * i);
                kv::store(b, kv, row, at, value);
            }
        });
    }
}
