//! Where keys and values lie: attention takes an address object, not a layout.

use crate::ptx::{Builder, F16, F32, Global, LoadKind, Operand, Size, U8, U32, U64, Val};
use kiln_shape::KvType;
use kiln_shape::table::KV_CHUNK;

/// Elements of a 16-byte piece.
pub(crate) const fn per_piece(ty: KvType) -> u32 {
    16 / ty.bytes()
}

/// The parameter of a contiguous cache of such elements.
#[track_caller]
pub(crate) fn cache_param(b: &mut Builder, name: &str, ty: KvType) -> Global<U8> {
    match ty {
        KvType::F16 => b.param::<Global<F16>>(name).cast(),
        KvType::F32 => b.param::<Global<F32>>(name).cast(),
    }
}

/// Keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    Keys,
    Values,
}

/// How the rows of a cache are found.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cache {
    /// `[kv_heads, max_seq, head_dim]`, keys and values apart.
    Contiguous { keys: Global<U8>, values: Global<U8>, max_seq: Size },
    /// Chunks of [`KV_CHUNK`] positions by a table of their addresses, each `[layer][K, V][kv_head][KV_CHUNK][head_dim]`.
    Chunked { table: Global<U64>, layer: Val<U32>, kv_heads: Size },
}

impl Cache {
    /// The row of position `chunk * KV_CHUNK` of `kv_head`; the chunk's other rows follow it.
    #[track_caller]
    pub(crate) fn chunk(
        &self,
        b: &mut Builder,
        half: Half,
        kv_head: Val<U32>,
        chunk: Val<U32>,
        row_bytes: Size,
    ) -> Global<U8> {
        let (base, row) = match *self {
            Cache::Contiguous { keys, values, max_seq } => {
                let base = if half == Half::Keys { keys } else { values };
                let first = b.mul::<U32>(kv_head, max_seq);
                (b.address(base), b.mad::<U32>(chunk, KV_CHUNK, first))
            }
            Cache::Chunked { table, layer, kv_heads } => {
                let at = b.index(table, chunk);
                let base = b.ld(at, LoadKind::Constant);
                let plane = b.mad::<U32>(layer, 2, u32::from(half == Half::Values));
                let head = b.mad::<U32>(plane, kv_heads, kv_head);
                (base, b.mul::<U32>(head, KV_CHUNK))
            }
        };
        let address = b.mad_wide(row, row_bytes, base);
        b.global_ptr(address)
    }

    /// What rows of `position` and its chunk are found by: the address of the chunk, where there is a table of them.
    #[track_caller]
    pub(crate) fn entry(&self, b: &mut Builder, position: Val<U32>) -> Val<U64> {
        match *self {
            Cache::Contiguous { .. } => b.mov::<U64>(0u64),
            Cache::Chunked { table, .. } => {
                let chunk = b.shr(position, KV_CHUNK.trailing_zeros());
                let at = b.index(table, chunk);
                b.ld(at, LoadKind::Constant)
            }
        }
    }

    /// The row of `position` of `kv_head`, with what is found by it.
    #[track_caller]
    pub(crate) fn row_of_entry(
        &self,
        b: &mut Builder,
        entry: Val<U64>,
        half: Half,
        kv_head: Val<U32>,
        position: Val<U32>,
        row_bytes: Size,
    ) -> Global<U8> {
        let (base, row) = match *self {
            Cache::Contiguous { keys, values, max_seq } => {
                let base = if half == Half::Keys { keys } else { values };
                (b.address(base), b.mad::<U32>(kv_head, max_seq, position))
            }
            Cache::Chunked { layer, kv_heads, .. } => {
                let plane = b.mad::<U32>(layer, 2, u32::from(half == Half::Values));
                let head = b.mad::<U32>(plane, kv_heads, kv_head);
                let inside = b.and(position, KV_CHUNK - 1);
                (entry, b.mad::<U32>(head, KV_CHUNK, inside))
            }
        };
        let address = b.mad_wide(row, row_bytes, base);
        b.global_ptr(address)
    }

    /// The row of `position` of `kv_head`.
    #[track_caller]
    pub(crate) fn row(
        &self,
        b: &mut Builder,
        half: Half,
        kv_head: Val<U32>,
        position: Val<U32>,
        row_bytes: Size,
    ) -> Global<U8> {
        let chunk = b.shr(position, KV_CHUNK.trailing_zeros());
        let first = self.chunk(b, half, kv_head, chunk, row_bytes);
        let inside = b.and(position, KV_CHUNK - 1);
        let base = b.address(first);
        let address = b.mad_wide(inside, row_bytes, base);
        b.global_ptr(address)
    }
}

/// Stores element `index` of a row, rounded to the cache's type.
#[track_caller]
pub(crate) fn store(b: &mut Builder, ty: KvType, row: Global<U8>, index: impl Operand<U32>, value: Val<F32>) {
    let at = b.byte_index(row, index, ty.bytes());
    match ty {
        KvType::F32 => b.st(at.cast::<F32>(), value),
        KvType::F16 => {
            let half = b.cvt::<F16, F32>(value);
            b.st(at.cast::<F16>(), half);
        }
    }
}

/// The elements of a 16-byte piece.
#[track_caller]
pub(crate) fn load_piece(b: &mut Builder, ty: KvType, at: Global<U8>, kind: LoadKind) -> Vec<Val<F32>> {
    match ty {
        KvType::F32 => b.ld_vector::<_, F32, 4>(at.cast(), kind).to_vec(),
        KvType::F16 => {
            let words: [Val<U32>; 4] = b.ld_vector(at.cast::<U32>(), kind);
            words.into_iter().flat_map(|word| b.unpack::<F16>(word).map(|half| b.cvt::<F32, F16>(half))).collect()
        }
    }
}

/// A length or position: a parameter, or in device memory where the other parameter points (graph replay changes no
/// parameters). Block-uniform.
#[track_caller]
pub(crate) fn value_or_memory(b: &mut Builder, value: Val<U32>, at: Global<U32>) -> Val<U32> {
    let given = b.var(value);
    let address = b.address(at);
    let points = b.setp_ne::<U64>(address, 0u64);
    b.if_(points, |b| {
        let loaded = b.ld(at, LoadKind::Constant);
        b.set(given, loaded);
    });
    b.get(given)
}
