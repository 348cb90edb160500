//! The cut of attention over a cache into pieces, each a block's work for a KV head: by the sequence's length and the
//! model's shape alone, so that results depend on nothing else.

use crate::table::KV_CHUNK;
use crate::{KvType, ModelShape, Numerics};

/// Positions that tensor cores take together: a chunk of fast numerics, which has one maximum.
pub const FAST_CHUNK: u32 = 32;

/// Pieces of all KV heads together where each has several chunks, at most. There are more than half as many, and no chip
/// has more than 192 multiprocessors.
const MOST: u32 = 384;

/// The cut of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pieces {
    /// A chunk of the cache each, [`KV_CHUNK`] positions.
    Chunks,
    /// A run of chunks of [`FAST_CHUNK`] positions each: one chunk up to so many pieces, and beyond the fewest chunks that
    /// make no more pieces than that.
    Runs {
        /// Pieces of a KV head at most.
        most: u32,
    },
}

impl Pieces {
    /// The cut of a model's attention. Tensor cores multiply an f16 cache in fast numerics; over an f32 cache fast numerics
    /// have the attention of exact ones.
    pub const fn of(numerics: Numerics, kv: KvType, kv_heads: u32) -> Pieces {
        match (numerics, kv) {
            (Numerics::Fast, KvType::F16) => {
                Pieces::Runs { most: MOST.div_ceil(if kv_heads == 0 { 1 } else { kv_heads }) }
            }
            (Numerics::Fast, KvType::F32) | (Numerics::Exact, _) => Pieces::Chunks,
        }
    }

    /// Positions of each piece of a sequence of `length` positions, but for the last.
    pub const fn positions(self, length: u32) -> u32 {
        match self {
            Pieces::Chunks => KV_CHUNK,
            Pieces::Runs { most } => {
                let runs = length.div_ceil(FAST_CHUNK).div_ceil(most);
                if runs == 0 { FAST_CHUNK } else { runs * FAST_CHUNK }
            }
        }
    }

    /// Pieces of a KV head for a sequence of `length` positions.
    pub const fn count(self, length: u32) -> u32 {
        length.div_ceil(self.positions(length))
    }

    /// Pieces of a KV head that results are kept of, in a cache of so many chunks.
    pub const fn kept(self, chunks: u32) -> u32 {
        match self {
            Pieces::Chunks => chunks,
            Pieces::Runs { most } => {
                let all = chunks.saturating_mul(KV_CHUNK / FAST_CHUNK);
                if all < most { all } else { most }
            }
        }
    }

    /// Floats of the partial result of a piece for a query head: the unnormalised sum, the maximum, the sum of
    /// exponentials. With runs, a multiple of 16 bytes.
    pub const fn partial(self, head_dim: u32) -> u32 {
        match self {
            Pieces::Chunks => head_dim + 2,
            Pieces::Runs { .. } => head_dim + 4,
        }
    }
}

/// Floats that the partial results of a session's attention take, in either numerics and with a cache of so many chunks.
pub fn partials(shape: &ModelShape, chunks: u32) -> u64 {
    let of = |pieces: Pieces| u64::from(pieces.kept(chunks)) * u64::from(pieces.partial(shape.head_dim));
    let runs = Pieces::of(Numerics::Fast, KvType::F16, shape.kv_heads);
    u64::from(shape.heads) * of(Pieces::Chunks).max(of(runs))
}

#[cfg(test)]
mod tests {
    use super::{FAST_CHUNK, MOST, Pieces};
    use crate::presets;
    use crate::table::KV_CHUNK;
    use crate::{KvType, Numerics};

    #[test]
    fn there_is_a_piece_for_every_block_that_has_a_chunk() {
        for kv_heads in presets::all().map(|preset| preset.shape.kv_heads) {
            let pieces = Pieces::of(Numerics::Fast, KvType::F16, kv_heads);
            for length in (1..40_000).step_by(7) {
                let (count, chunks) = (pieces.count(length), length.div_ceil(FAST_CHUNK));
                assert!(kv_heads * count >= (kv_heads * chunks).min(192), "{kv_heads} heads, {length} positions");
                assert!(count <= MOST.div_ceil(kv_heads) && count <= pieces.kept(length.div_ceil(KV_CHUNK)));
                assert!(count * pieces.positions(length) >= length && (count - 1) * pieces.positions(length) < length);
            }
        }
    }

    #[test]
    fn an_empty_cache_has_no_pieces() {
        for kv in [KvType::F16, KvType::F32] {
            assert_eq!(Pieces::of(Numerics::Fast, kv, 2).count(0), 0);
        }
    }
}
