use super::Kernel;
use crate::blocks::kv::{self, Cache, Half, value_or_memory};
use crate::blocks::leader;
use crate::ptx::{Builder, Dim, F32, Global, LoadKind, U32};
use kiln_shape::KvType;

/// `k_cache[h, position] = k[h]`, `v_cache[h, position] = v[h]` for every head: grid `kv_heads`, a block a head.
/// The caches are `[kv_heads, max_seq_len, head_dim]`, f32 or f16. A position outside them sets the error word to 2 and
/// writes nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct KvCacheScatter {
    /// Key and value heads.
    pub num_kv_heads: Dim,
    /// Elements per head.
    pub head_dim: Dim,
    /// Positions the cache has room for.
    pub max_seq_len: Dim,
    /// The cache's type.
    pub kv: KvType,
    name: String,
}

impl KvCacheScatter {
    /// For f32 caches.
    pub fn new(num_kv_heads: u32, head_dim: u32, max_seq_len: u32) -> KvCacheScatter {
        let [num_kv_heads, head_dim, max_seq_len] = [num_kv_heads, head_dim, max_seq_len].map(Dim::Baked);
        let kv = KvType::F32;
        KvCacheScatter { num_kv_heads, head_dim, max_seq_len, kv, name: name(kv) }
    }

    /// For caches of this type, with all sizes as launch parameters.
    pub fn general(kv: KvType) -> KvCacheScatter {
        let [num_kv_heads, head_dim, max_seq_len] = [Dim::Param; 3];
        KvCacheScatter { num_kv_heads, head_dim, max_seq_len, kv, name: name(kv) }
    }

    /// With another cache type.
    pub fn with_kv_type(self, kv: KvType) -> KvCacheScatter {
        KvCacheScatter { kv, name: name(kv), ..self }
    }
}

fn name(kv: KvType) -> String {
    format!("kv_cache_scatter_{}", kv.suffix())
}

impl Kernel for KvCacheScatter {
    fn name(&self) -> &str {
        &self.name
    }

    fn block(&self) -> u32 {
        128
    }

    fn check(&self) -> Result<(), String> {
        if [self.num_kv_heads, self.head_dim, self.max_seq_len].contains(&Dim::Baked(0)) {
            return Err("a cache without heads, dimensions or positions".to_owned());
        }
        Ok(())
    }

    fn build(&self, b: &mut Builder) {
        let k = b.param::<Global<F32>>("k"); // [kv_heads, head_dim]
        let v = b.param::<Global<F32>>("v"); // [kv_heads, head_dim]
        let keys = kv::cache_param(b, "k_cache", self.kv); // [kv_heads, max_seq_len, head_dim]
        let values = kv::cache_param(b, "v_cache", self.kv); // [kv_heads, max_seq_len, head_dim]
        let position = b.param::<U32>("position");
        let position_at = b.param::<Global<U32>>("position_at"); // the position in device memory, or null
        let error = b.param::<Global<U32>>("error"); // [1]
        let head_dim = b.dim("head_dim", self.head_dim);
        let max_seq = b.dim("max_seq_len", self.max_seq_len);

        let head = b.ctaid_x();
        let position = value_or_memory(b, position, position_at);
        let inside = b.setp_lt::<U32>(position, max_seq);
        let cache = Cache::Contiguous { keys, values, max_seq };
        let row_bytes = b.size_mul(head_dim, self.kv.bytes());
        let first = b.mul::<U32>(head, head_dim);
        let tid = b.tid();
        b.if_else(
            inside,
            |b| {
                for (half, from) in [(Half::Keys, k), (Half::Values, v)] {
                    let from = b.index(from, first);
                    let row = cache.row(b, half, head, position, row_bytes);
                    let threads = b.block();
                    b.for_range(tid, head_dim, threads, |b, i| {
                        let at = b.index(from, i);
                        let value = b.ld(at, LoadKind::Constant);
                        kv::store(b, self.kv, row, i, value);
                    });
                }
            },
            |b| {
                let leader = leader::of_grid(b, tid, &[head]);
                b.if_(leader, |b| b.st(error, 2));
            },
        );
    }
}
