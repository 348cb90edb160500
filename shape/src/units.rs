//! The cut of attention over a cache into units, each a block's work for a KV head: by the sequence's length and the
//! model's shape alone, so that results depend on nothing else.

use crate::table::KV_CHUNK;
use crate::{KvType, ModelShape, Numerics};

/// Positions that tensor cores take together: a chunk of fast numerics, which has one maximum.
pub const FAST_CHUNK: u32 = 32;

/// Units of all KV heads together where each has several chunks, at most. There are more than half as many, and no chip
/// has more than 192 multiprocessors.
const MOST: u32 = 384;

/// The cut of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Units {
    /// A chunk of the cache each, [`KV_CHUNK`] positions.
    Chunks,
    /// A run of chunks of [`FAST_CHUNK`] positions each: one chunk up to so many units, and beyond the fewest chunks that
    /// make no more units than that.
    Runs {
        /// Units of a KV head at most.
        most: u32,
    },
}

impl Units {
    /// The cut of a model's attention. Tensor cores multiply an f16 cache in fast numerics; over an f32 cache fast numerics
    /// have the attention of exact ones.
    pub const fn of(numerics: Numerics, kv: KvType, kv_heads: u32) -> Units {
        match (numerics, kv) {
            (Numerics::Fast, KvType::F16) => {
                Units::Runs { most: MOST.div_ceil(if kv_heads == 0 { 1 } else { kv_heads }) }
            }
            (Numerics::Fast, KvType::F32) | (Numerics::Exact, _) => Units::Chunks,
        }
    }

    /// Positions of each unit of a sequence of `length` positions, but for the last.
    pub const fn positions(self, length: u32) -> u32 {
        match self {
            Units::Chunks => KV_CHUNK,
            Units::Runs { most } => {
                let runs = length.div_ceil(FAST_CHUNK).div_ceil(most);
                if runs == 0 { FAST_CHUNK } else { runs * FAST_CHUNK }
            }
        }
    }

    /// Units of a KV head for a sequence of `length` positions.
    pub const fn count(self, length: u32) -> u32 {
        length.div_ceil(self.positions(length))
    }

    /// Units of a KV head at most, for any sequence of up to `length` positions: longer runs are fewer.
    pub const fn up_to(self, length: u32) -> u32 {
        match self {
            Units::Chunks => length.div_ceil(KV_CHUNK),
            Units::Runs { most } => {
                let all = length.div_ceil(FAST_CHUNK);
                if all < most { all } else { most }
            }
        }
    }

    /// Floats of the partial result of a unit for a query head: the unnormalised sum, the maximum, the sum of
    /// exponentials. With runs, a multiple of 16 bytes.
    pub const fn partial(self, head_dim: u32) -> u32 {
        match self {
            Units::Chunks => head_dim + 2,
            Units::Runs { .. } => head_dim + 4,
        }
    }
}

/// Positions of a block where neighbouring ones attend together: their heads are up to 16 rows.
pub const fn batch_positions(group: u32) -> u32 {
    if group > 16 || group == 0 { 1 } else { 16 / group }
}

/// Floats that the partial results of a token's attention take with a cache of so many chunks.
pub fn partials_of(units: Units, shape: &ModelShape, chunks: u32) -> u64 {
    let kept = u64::from(units.up_to(chunks.saturating_mul(KV_CHUNK)));
    u64::from(shape.heads) * kept * u64::from(units.partial(shape.head_dim))
}

/// The same in either numerics.
pub fn partials(shape: &ModelShape, chunks: u32) -> u64 {
    let runs = Units::of(Numerics::Fast, KvType::F16, shape.kv_heads);
    partials_of(Units::Chunks, shape, chunks).max(partials_of(runs, shape, chunks))
}

#[cfg(test)]
mod tests {
    use super::{FAST_CHUNK, MOST, Units};
    use crate::presets;
    use crate::{KvType, Numerics};

    #[test]
    fn there_is_a_unit_for_every_block_that_has_a_chunk() {
        for kv_heads in presets::all().map(|preset| preset.shape.kv_heads) {
            let units = Units::of(Numerics::Fast, KvType::F16, kv_heads);
            let mut most = 0;
            for length in 1..20_000 {
                let (count, chunks) = (units.count(length), length.div_ceil(FAST_CHUNK));
                assert!(kv_heads * count >= (kv_heads * chunks).min(192), "{kv_heads} heads, {length} positions");
                most = most.max(count);
                assert!(most <= units.up_to(length) && units.up_to(length) <= MOST.div_ceil(kv_heads));
                assert!(count * units.positions(length) >= length && (count - 1) * units.positions(length) < length);
            }
        }
    }

    #[test]
    fn an_empty_cache_has_no_units() {
        for kv in [KvType::F16, KvType::F32] {
            assert_eq!(Units::of(Numerics::Fast, kv, 2).count(0), 0);
        }
    }
}
