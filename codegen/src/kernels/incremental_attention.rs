use super::{Grid, Kernel};
use crate::blocks::attention::{self, Heads, Share, Workspace};
use crate::blocks::kv::{self, Cache, Half, value_or_memory};
use crate::blocks::leader;
use crate::blocks::math;
use crate::ptx::{Builder, Dim, F32, Global, LoadKind, Size, U32, U64, Val};
use kiln_shape::KvType;
use kiln_shape::table::KV_CHUNK;

/// One query token against a whole cache, a block for each KV head, which walks over the cache chunk by chunk:
/// `out[h] = softmax(q[h] . K^T / sqrt(head_dim)) V`. Keys and values are read once for all query heads of a KV head.
/// An empty cache gives zeros; a length above `max_seq_len` gives zeros and the error word 3.
#[derive(Debug, Clone, PartialEq)]
pub struct IncrementalAttention {
    /// Positions the cache has room for.
    pub max_seq_len: Dim,
    /// Elements per head, a multiple of 16 up to 256.
    pub head_dim: u32,
    /// Query heads, a multiple of `kv_heads`; with a parameter the launch gives the heads of a group instead.
    pub heads: Dim,
    /// Query heads that a block is made for where the heads are a parameter.
    pub heads_per_block: u32,
    /// Key and value heads.
    pub kv_heads: Dim,
    /// The cache's type.
    pub kv: KvType,
    /// Whether the cache is found through a table of chunks, and its capacity a parameter.
    pub chunked: bool,
    name: String,
}

impl IncrementalAttention {
    /// For a contiguous f32 cache `[heads, max_seq_len, head_dim]`.
    pub fn new(max_seq_len: u32, head_dim: u32, heads: u32) -> IncrementalAttention {
        let (max_seq_len, heads, kv) = (Dim::Baked(max_seq_len), Dim::Baked(heads), KvType::F32);
        let heads_per_block = NARROW_GROUP;
        let name = name(kv);
        IncrementalAttention {
            max_seq_len,
            head_dim,
            heads,
            heads_per_block,
            kv_heads: heads,
            kv,
            chunked: false,
            name,
        }
    }

    /// For contiguous caches of this type, with heads and room as launch parameters: `incremental_attention_f16_64` for
    /// head_dim 64. A block has up to 4 query heads of a KV head: grid `kv_heads * ceil(group / 4)`, so a wider group
    /// reads the cache more than once.
    pub fn general(head_dim: u32, kv: KvType) -> IncrementalAttention {
        let (max_seq_len, heads, kv_heads) = (Dim::Param, Dim::Param, Dim::Param);
        let (name, heads_per_block) = (format!("{}_{head_dim}", name(kv)), NARROW_GROUP);
        IncrementalAttention { max_seq_len, head_dim, heads, heads_per_block, kv_heads, kv, chunked: false, name }
    }

    /// For groups of up to 8 query heads in a block, with heads as launch parameters:
    /// `incremental_attention_f16_64_group8`.
    pub fn with_wide_groups(self) -> IncrementalAttention {
        let name = format!("{}_{}_group{WIDE_GROUP}", name(self.kv), self.head_dim);
        IncrementalAttention { heads_per_block: WIDE_GROUP, name, ..self }
    }

    /// With fewer KV heads than query heads.
    pub fn with_kv_heads(self, kv_heads: u32) -> IncrementalAttention {
        IncrementalAttention { kv_heads: Dim::Baked(kv_heads), ..self }
    }

    /// With another cache type.
    pub fn with_kv_type(self, kv: KvType) -> IncrementalAttention {
        IncrementalAttention { kv, name: name(kv), ..self }
    }

    /// For the chunked cache of a model.
    pub fn with_chunked_cache(self) -> IncrementalAttention {
        IncrementalAttention { chunked: true, ..self }
    }

    fn geometry(&self) -> Heads {
        let group = group(self.heads, self.kv_heads).unwrap_or(self.heads_per_block);
        Heads { group, head_dim: self.head_dim, ty: self.kv }
    }
}

/// Query heads that a block of a general kernel is made for: sums of heads that are not there are computed all the same,
/// and those of many heads take many registers.
pub(super) const NARROW_GROUP: u32 = 4;
/// The same for wide groups.
pub(super) const WIDE_GROUP: u32 = 8;

fn name(kv: KvType) -> String {
    format!("incremental_attention_{}", kv.suffix())
}

/// Query heads for each KV head, where that is baked.
pub(super) fn group(heads: Dim, kv_heads: Dim) -> Option<u32> {
    heads.baked()?.checked_div(kv_heads.baked()?)
}

/// What attention kernels need of their dimensions.
pub(super) fn check(head_dim: u32, heads: Dim, kv_heads: Dim) -> Result<(), String> {
    if head_dim == 0 || head_dim > 256 || !head_dim.is_multiple_of(16) {
        return Err(format!("head_dim is {head_dim}: needs a multiple of 16 up to 256"));
    }
    let (heads, kv_heads) = match (heads, kv_heads) {
        (Dim::Baked(heads), Dim::Baked(kv_heads)) => (heads, kv_heads),
        (Dim::Param, Dim::Param) => return Ok(()),
        _ => return Err("heads and KV heads: needs both baked or both as parameters".to_owned()),
    };
    if kv_heads == 0 || heads == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(format!("{heads} query heads over {kv_heads} KV heads: needs a whole number for each"));
    }
    if heads / kv_heads > 16 {
        return Err(format!("{} query heads for each KV head: at most 16", heads / kv_heads));
    }
    Ok(())
}

impl Kernel for IncrementalAttention {
    fn name(&self) -> &str {
        &self.name
    }

    fn block(&self) -> u32 {
        attention::THREADS
    }

    fn grid(&self) -> Grid {
        self.kv_heads.baked().map_or(Grid::Launch, Grid::Blocks)
    }

    fn check(&self) -> Result<(), String> {
        if self.chunked && self.kv_heads == Dim::Param {
            return Err("a chunked cache: needs baked heads".to_owned());
        }
        check(self.head_dim, self.heads, self.kv_heads)
    }

    fn build(&self, b: &mut Builder) {
        // Wide groups hold many sums: more registers instead of spills.
        b.blocks_per_sm(attention::blocks_per_sm(self.head_dim, self.kv));
        let q = b.param::<Global<F32>>("q"); // [heads, head_dim]
        let (cache, capacity) = if self.chunked {
            let table = b.param::<Global<U64>>("chunks"); // addresses of the cache's chunks
            let layer = b.param::<U32>("layer");
            let capacity = b.param::<U32>("capacity"); // positions the chunks have
            let kv_heads = Size::Const(self.kv_heads.baked().unwrap_or(0));
            (Cache::Chunked { table, layer, kv_heads }, Size::Reg(capacity))
        } else {
            let keys = kv::cache_param(b, "k_cache", self.kv); // [kv_heads, max_seq_len, head_dim]
            let values = kv::cache_param(b, "v_cache", self.kv); // [kv_heads, max_seq_len, head_dim]
            let max_seq = b.dim("max_seq_len", self.max_seq_len);
            (Cache::Contiguous { keys, values, max_seq }, max_seq)
        };
        let out = b.param::<Global<F32>>("out"); // [heads, head_dim]
        let length = b.param::<U32>("length");
        let length_at = b.param::<Global<U32>>("length_at"); // the length in device memory, or null
        let error = b.param::<Global<U32>>("error"); // [1]
        let group = match self.heads {
            Dim::Baked(_) => None,
            Dim::Param => Some(b.param::<U32>("group")), // query heads for each KV head
        };

        let heads = self.geometry();
        let share = Share::of_block(b, heads, group);
        let kv_head = share.kv_head;
        let length = value_or_memory(b, length, length_at);
        let fits = b.setp(crate::ptx::Compare::Le, length, capacity);
        let length = b.selp::<U32>(length, 0, fits);
        let work = Workspace::new(b, heads);
        let work = if group.is_some() { work.compact() } else { work };
        let running = Running::new(b, heads);
        let row_of = |b: &mut Builder, base: Global<F32>| b.byte_index(base, share.head, heads.head_dim * 4);
        let (q, out) = (row_of(b, q), row_of(b, out));
        work.load_queries(b, heads, q, share.present, LoadKind::Constant);
        running.clear(b, heads);
        let row_bytes = Size::Const(heads.row_bytes());
        b.for_range(0, length, KV_CHUNK, |b, first| {
            let left = b.sub(length, first);
            let count = b.min(left, KV_CHUNK);
            let chunk = b.shr(first, KV_CHUNK.trailing_zeros());
            let keys = cache.chunk(b, Half::Keys, kv_head, chunk, row_bytes);
            let values = cache.chunk(b, Half::Values, kv_head, chunk, row_bytes);
            work.chunk(b, heads, keys, values, count, |b, head, dim, value| {
                running.add(b, heads, &work, head, dim, value);
            });
            running.advance(b, heads, &work);
        });
        b.bar_sync(); // the sums of the last chunk, or the zeros, are in shared memory
        running.store(b, heads, share, out);
        let (tid, block) = (b.tid(), b.ctaid_x());
        let leader = leader::of_grid(b, tid, &[block]);
        let over = b.not_pred(fits);
        let reports = b.and_pred(leader, over);
        b.if_(reports, |b| b.st(error, 3));
    }
}

/// The softmax over the chunks so far, kept in shared memory.
struct Running {
    max: crate::ptx::Shared<F32>,
    sum: crate::ptx::Shared<F32>,
    acc: crate::ptx::Shared<F32>,
}

impl Running {
    fn new(b: &mut Builder, heads: Heads) -> Running {
        Running {
            max: b.dynamic_shared(heads.group),
            sum: b.dynamic_shared(heads.group),
            acc: b.dynamic_shared(heads.group * heads.head_dim),
        }
    }

    fn clear(&self, b: &mut Builder, heads: Heads) {
        let tid = b.tid();
        b.for_range(tid, heads.group * heads.head_dim, attention::THREADS, |b, i| {
            let at = b.index(self.acc, i);
            b.st(at, 0.0);
        });
        b.for_range(tid, heads.group, attention::THREADS, |b, i| {
            let (max, sum) = (b.index(self.max, i), b.index(self.sum, i));
            b.st(max, f32::NEG_INFINITY);
            b.st(sum, 0.0);
        });
    }

    /// What the sums so far and the chunk's are multiplied by, to stand under the greater of the two maxima.
    fn factors(&self, b: &mut Builder, work: &Workspace, head: Val<U32>) -> (Val<F32>, Val<F32>, Val<F32>) {
        let (old, new) = (b.index(self.max, head), b.index(work.max, head));
        let (old, new) = (b.ld(old, LoadKind::Ordinary), b.ld(new, LoadKind::Ordinary));
        let max = b.max(old, new);
        let (old, new) = (b.sub(old, max), b.sub(new, max));
        (max, math::exp(b, old), math::exp(b, new))
    }

    fn add(&self, b: &mut Builder, heads: Heads, work: &Workspace, head: Val<U32>, dim: Val<U32>, value: Val<F32>) {
        let (_, old, new) = self.factors(b, work, head);
        let at = b.byte_index(self.acc, head, heads.head_dim * 4);
        let at = b.index(at, dim);
        let before = b.ld(at, LoadKind::Ordinary);
        let added = b.mul(value, new);
        let after = b.fma(before, old, added);
        b.st(at, after);
    }

    /// After all of the chunk was added, behind a barrier.
    fn advance(&self, b: &mut Builder, heads: Heads, work: &Workspace) {
        let tid = b.tid();
        b.for_range(tid, heads.group, attention::THREADS, |b, head| {
            let (max, old, new) = self.factors(b, work, head);
            let (sum_at, chunk_at, max_at) =
                (b.index(self.sum, head), b.index(work.sum, head), b.index(self.max, head));
            let (sum, chunk) = (b.ld(sum_at, LoadKind::Ordinary), b.ld(chunk_at, LoadKind::Ordinary));
            let added = b.mul(chunk, new);
            let sum = b.fma(sum, old, added);
            b.st(sum_at, sum);
            b.st(max_at, max);
        });
    }

    fn store(&self, b: &mut Builder, heads: Heads, share: Share, out: Global<F32>) {
        let tid = b.tid();
        b.for_range(tid, heads.group * heads.head_dim, attention::THREADS, |b, i| {
            let head = b.div::<U32>(i, heads.head_dim);
            let (sum, acc) = (b.index(self.sum, head), b.index(self.acc, i));
            let (sum, acc) = (b.ld(sum, LoadKind::Ordinary), b.ld(acc, LoadKind::Ordinary));
            let empty = b.setp_eq(sum, 0.0);
            let value = b.div(acc, sum);
            let value = b.selp::<F32>(0.0, value, empty);
            let to = b.index(out, i);
            attention::if_present(b, share.present, head, |b| b.st(to, value));
        });
    }
}
