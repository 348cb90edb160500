use super::Kernel;
use super::incremental_attention::{self, NARROW_GROUP, WIDE_GROUP};
use crate::blocks::attention::{self, Heads, Share, Workspace};
use crate::blocks::kv::{Cache, Half};
use crate::blocks::leader;
use crate::ptx::{Builder, Compare, Dim, F32, Global, LoadKind, Scope, Size, StoreOrder, U8, U32, U64, Val};
use kiln_shape::KvType;
use kiln_shape::table::KV_CHUNK;

/// One query token of each sequence of a batch against its cache, a block for each KV head, chunk and sequence: grid
/// `(kv_heads, chunks, batch)`. Writes partial results for [`FlashDecodingReduce`]: `[batch, heads, max_chunks,
/// head_dim + 2]`, the unnormalised sum of `exp(s - m) V`, then `m`, then the sum of `exp(s - m)`. A chunk beyond a
/// sequence's length gets `m = -inf` and sum 0; its accumulator is not written. A length above `max_seq_len`, or beyond
/// `max_chunks`, counts as 0 and sets the error word to 3.
#[derive(Debug, Clone, PartialEq)]
pub struct FlashDecodingChunk {
    /// Positions each cache has room for.
    pub max_seq_len: Dim,
    /// Elements per head, a multiple of 16 up to 256.
    pub head_dim: u32,
    /// Query heads, a multiple of `kv_heads`. As a parameter, followed by the heads of a group.
    pub heads: Dim,
    /// Query heads that a block is made for where the heads are a parameter.
    pub heads_per_block: u32,
    /// Key and value heads.
    pub kv_heads: Dim,
    /// Sequences. Not in the text: the launch's grid decides.
    pub batch: Dim,
    /// Positions of a chunk: a property of the cache, the same for every shape.
    pub chunk_size: u32,
    /// The cache's type.
    pub kv: KvType,
    /// Whether the cache is found through tables of chunks, and its capacity a parameter.
    pub chunked: bool,
    name: String,
}

impl FlashDecodingChunk {
    /// For contiguous f32 caches `[kv_heads, max_seq_len, head_dim]`.
    pub fn new(max_seq_len: u32, head_dim: u32, heads: u32, kv_heads: u32, batch: u32) -> FlashDecodingChunk {
        let kv = KvType::F32;
        let name = chunk_name(kv);
        let [max_seq_len, heads, kv_heads, batch] = [max_seq_len, heads, kv_heads, batch].map(Dim::Baked);
        FlashDecodingChunk {
            max_seq_len,
            head_dim,
            heads,
            heads_per_block: NARROW_GROUP,
            kv_heads,
            batch,
            chunk_size: KV_CHUNK,
            kv,
            chunked: false,
            name,
        }
    }

    /// For contiguous caches of this type, with heads and room as launch parameters: `flash_decoding_chunk_f16_64` for
    /// head_dim 64. A block has up to 4 query heads of a KV head: grid `(kv_heads * ceil(group / 4), chunks, batch)`, so
    /// a wider group reads the cache more than once.
    pub fn general(head_dim: u32, kv: KvType) -> FlashDecodingChunk {
        let [max_seq_len, heads, kv_heads, batch] = [Dim::Param; 4];
        let name = format!("{}_{head_dim}", chunk_name(kv));
        let of_one = FlashDecodingChunk::new(1, head_dim, 1, 1, 1);
        FlashDecodingChunk { max_seq_len, heads, kv_heads, batch, kv, name, ..of_one }
    }

    /// For groups of up to 8 query heads in a block, with heads as launch parameters:
    /// `flash_decoding_chunk_f16_64_group8`.
    pub fn with_wide_groups(self) -> FlashDecodingChunk {
        let name = format!("{}_{}_group{WIDE_GROUP}", chunk_name(self.kv), self.head_dim);
        FlashDecodingChunk { heads_per_block: WIDE_GROUP, name, ..self }
    }

    /// With another cache type.
    pub fn with_kv_type(self, kv: KvType) -> FlashDecodingChunk {
        FlashDecodingChunk { kv, name: chunk_name(kv), ..self }
    }

    /// For the chunked cache of a model.
    pub fn with_chunked_cache(self) -> FlashDecodingChunk {
        FlashDecodingChunk { chunked: true, ..self }
    }

    /// Chunks of a sequence of `len` positions.
    pub const fn num_chunks(&self, len: u32) -> u32 {
        len.div_ceil(self.chunk_size)
    }

    /// Floats of the partial results of one head of one sequence.
    pub const fn partials_size_per_head(&self, max_chunks: u32) -> u64 {
        max_chunks as u64 * (self.head_dim as u64 + 2)
    }
}

fn chunk_name(kv: KvType) -> String {
    format!("flash_decoding_chunk_{}", kv.suffix())
}

impl Kernel for FlashDecodingChunk {
    fn name(&self) -> &str {
        &self.name
    }

    fn block(&self) -> u32 {
        attention::THREADS
    }

    fn check(&self) -> Result<(), String> {
        if self.chunk_size != KV_CHUNK {
            return Err(format!("chunk_size is {}: chunks of the cache have {KV_CHUNK} positions", self.chunk_size));
        }
        if self.chunked && self.kv_heads == Dim::Param {
            return Err("a chunked cache: needs baked heads".to_owned());
        }
        incremental_attention::check(self.head_dim, self.heads, self.kv_heads)
    }

    fn build(&self, b: &mut Builder) {
        // Wide groups hold many sums: more registers instead of spills.
        b.blocks_per_sm(attention::blocks_per_sm(self.head_dim, self.kv));
        let q = b.param::<Global<F32>>("q"); // [batch, heads, head_dim]
        let keys = b.param::<Global<U64>>("k_caches"); // [batch]: addresses of caches, or of tables of chunks
        let values = b.param::<Global<U64>>("v_caches"); // [batch]; not read where caches are chunked
        let lengths = b.param::<Global<U32>>("lengths"); // [batch]
        let partials = b.param::<Global<F32>>("partials"); // [batch, heads, max_chunks, head_dim + 2]
        let max_chunks = b.param::<U32>("max_chunks"); // chunks of the grid
        let error = b.param::<Global<U32>>("error"); // [1]
        let (layer, capacity) = if self.chunked {
            (Some(b.param::<U32>("layer")), Size::Reg(b.param::<U32>("capacity")))
        } else {
            (None, b.dim("max_seq_len", self.max_seq_len))
        };
        let all_heads = b.dim("heads", self.heads);
        let group = match self.heads {
            Dim::Baked(_) => None,
            Dim::Param => Some(b.param::<U32>("group")), // query heads for each KV head
        };

        let made_for = incremental_attention::group(self.heads, self.kv_heads).unwrap_or(self.heads_per_block);
        let heads = Heads { group: made_for, head_dim: self.head_dim, ty: self.kv };
        let share = Share::of_block(b, heads, group);
        let (kv_head, chunk, sequence) = (share.kv_head, b.ctaid_y(), b.ctaid_z());
        let length_at = b.index(lengths, sequence);
        let length = b.ld(length_at, LoadKind::Constant);
        // Neither beyond the cache nor beyond the chunks that are worked on.
        let reached = b.mul::<U32>(max_chunks, KV_CHUNK);
        let most = b.min::<U32>(reached, capacity);
        let fits = b.setp::<U32>(Compare::Le, length, most);
        let length = b.selp::<U32>(length, 0, fits);
        let first = b.mul::<U32>(chunk, KV_CHUNK);
        let some = b.setp_lt(first, length);
        let work = Workspace::new(b, heads);
        let work = if group.is_some() { work.compact() } else { work };
        let head = b.mad::<U32>(sequence, all_heads, share.head);
        let partial = partial_of(b, partials, head, max_chunks, chunk, heads.head_dim);
        let stride = b.mul::<U32>(max_chunks, heads.head_dim + 2);
        b.if_else(
            some,
            |b| {
                let keys_at = b.index(keys, sequence);
                let keys = b.ld(keys_at, LoadKind::Constant);
                let cache = match layer {
                    Some(layer) => {
                        let table = b.global_ptr::<U64>(keys);
                        Cache::Chunked { table, layer, kv_heads: Size::Const(self.kv_heads.baked().unwrap_or(0)) }
                    }
                    None => {
                        let values_at = b.index(values, sequence);
                        let values = b.ld(values_at, LoadKind::Constant);
                        let (keys, values) = (b.global_ptr::<U8>(keys), b.global_ptr::<U8>(values));
                        Cache::Contiguous { keys, values, max_seq: capacity }
                    }
                };
                let row_bytes = Size::Const(heads.row_bytes());
                let keys = cache.chunk(b, Half::Keys, kv_head, chunk, row_bytes);
                let values = cache.chunk(b, Half::Values, kv_head, chunk, row_bytes);
                let left = b.sub(length, first);
                let count = b.min(left, KV_CHUNK);
                let q = b.byte_index(q, head, heads.head_dim * 4);
                work.load_queries(b, heads, q, share.present, LoadKind::Constant);
                work.chunk(b, heads, keys, values, count, |b, head, dim, value| {
                    let at = b.mad::<U32>(head, stride, dim);
                    let at = b.index(partial, at);
                    attention::if_present(b, share.present, head, |b| b.st(at, value));
                });
                attention::statistics(b, heads, share.present, partial, stride, |b, head| {
                    let (max, sum) = (b.index(work.max, head), b.index(work.sum, head));
                    (b.ld(max, LoadKind::Ordinary), b.ld(sum, LoadKind::Ordinary))
                });
            },
            |b| {
                attention::statistics(b, heads, share.present, partial, stride, |b, _| {
                    (b.mov(f32::NEG_INFINITY), b.mov(0.0))
                });
            },
        );
        let (tid, block) = (b.tid(), b.ctaid_x());
        let leader = leader::of_grid(b, tid, &[block, chunk]);
        let over = b.not_pred(fits);
        let reports = b.and_pred(leader, over);
        // Blocks of several sequences may report at once.
        b.if_(reports, |b| b.st_sync(error, 3, StoreOrder::Relaxed, Scope::Gpu));
    }
}

/// The partial result of `head` (counted over the batch) and `chunk`.
fn partial_of(
    b: &mut Builder,
    partials: Global<F32>,
    head: Val<U32>,
    max_chunks: Val<U32>,
    chunk: Val<U32>,
    head_dim: u32,
) -> Global<F32> {
    let index = b.mad::<U32>(head, max_chunks, chunk);
    b.byte_index(partials, index, (head_dim + 2) * 4)
}

/// Puts the partial results of [`FlashDecodingChunk`] together, a block for each head and sequence, grid
/// `(heads, batch)`: `out = sum_c exp(m_c - M) acc_c / sum_c exp(m_c - M) sum_c` with `M = max_c m_c`. Chunks beyond a
/// sequence's length are not read; an empty sequence gives zeros.
#[derive(Debug, Clone, PartialEq)]
pub struct FlashDecodingReduce {
    /// Elements per head, a multiple of 16 up to 256.
    pub head_dim: u32,
    /// Query heads.
    pub heads: Dim,
    name: String,
}

impl FlashDecodingReduce {
    /// For the partial results of `heads` heads.
    pub fn new(head_dim: u32, heads: u32) -> FlashDecodingReduce {
        FlashDecodingReduce { head_dim, heads: Dim::Baked(heads), name: "flash_decoding_reduce".to_owned() }
    }

    /// With the heads as a launch parameter: `flash_decoding_reduce_64` for head_dim 64.
    pub fn general(head_dim: u32) -> FlashDecodingReduce {
        FlashDecodingReduce { head_dim, heads: Dim::Param, name: format!("flash_decoding_reduce_{head_dim}") }
    }
}

impl Kernel for FlashDecodingReduce {
    fn name(&self) -> &str {
        &self.name
    }

    fn block(&self) -> u32 {
        attention::THREADS
    }

    fn check(&self) -> Result<(), String> {
        incremental_attention::check(self.head_dim, self.heads, self.heads)
    }

    fn build(&self, b: &mut Builder) {
        let partials = b.param::<Global<F32>>("partials"); // [batch, heads, max_chunks, head_dim + 2]
        let lengths = b.param::<Global<U32>>("lengths"); // [batch]
        let max_chunks = b.param::<U32>("max_chunks");
        let out = b.param::<Global<F32>>("out"); // [batch, heads, head_dim]
        let heads = b.dim("heads", self.heads);
        let (head, sequence) = (b.ctaid_x(), b.ctaid_y());
        let head = b.mad::<U32>(sequence, heads, head);
        let length_at = b.index(lengths, sequence);
        let length = b.ld(length_at, LoadKind::Constant);
        let chunks = b.add(length, KV_CHUNK - 1);
        let chunks = b.shr(chunks, KV_CHUNK.trailing_zeros());
        // A length beyond the cache was reported by the chunks; none of them has a result.
        let chunks = b.min(chunks, max_chunks);
        let row = (self.head_dim + 2) * 4;
        let first = b.mul::<U32>(head, max_chunks);
        let first = b.byte_index(partials, first, row);

        let sums = b.shared::<F32>("sums", attention::reduce_floats(self.head_dim));
        let out = b.byte_index(out, head, self.head_dim * 4);
        attention::reduce(b, self.head_dim, first, chunks, sums, LoadKind::Constant, |b, dim, value| {
            let to = b.index(out, dim);
            b.st(to, value);
        });
    }
}
