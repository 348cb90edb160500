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

/// How neighbouring positions that attend together are dealt to blocks. A warp has up to [`BatchCut::ROWS`] query heads of a
/// KV head: of some positions, or a part of those of one. Four warps have a tile, and a block has two of them: one from the
/// front and one from the back, so that all blocks have as many positions before theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchCut {
    group: u32,
}

impl BatchCut {
    /// Query heads of a warp at most.
    pub const ROWS: u32 = 8;
    /// Warps of a tile, half of a block's.
    pub const WARPS: u32 = 4;

    /// Of so many query heads of a KV head, 1 to 16: what kernels are made for. Others are cut as the nearest of these.
    pub const fn of(group: u32) -> BatchCut {
        let group = match group {
            0 => 1,
            1..=16 => group,
            _ => 16,
        };
        BatchCut { group }
    }

    /// Positions of a warp: more than one where all their heads fit.
    pub const fn of_warp(self) -> u32 {
        if self.group > BatchCut::ROWS { 1 } else { BatchCut::ROWS / self.group }
    }

    /// Warps that share a position.
    pub const fn of_position(self) -> u32 {
        self.group.div_ceil(BatchCut::ROWS)
    }

    /// Positions of a tile.
    pub const fn positions(self) -> u32 {
        BatchCut::WARPS / self.of_position() * self.of_warp()
    }

    /// Blocks of each KV head for so many positions.
    pub const fn blocks(self, positions: u32) -> u32 {
        positions.div_ceil(self.positions()).div_ceil(2)
    }
}

/// Whether attention of neighbouring positions rounds its results to bytes: the heads of a KV head are whole super-blocks.
pub const fn batch_rounds(shape: &ModelShape) -> bool {
    (shape.group() * shape.head_dim).is_multiple_of(crate::SUPER_BLOCK)
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
    use super::{BatchCut, FAST_CHUNK, MOST, Units};
    use crate::presets;
    use crate::{KvType, Numerics};

    #[test]
    fn every_head_of_a_position_has_a_row() {
        for group in 1..=16 {
            let cut = BatchCut::of(group);
            assert!(cut.of_warp() * group <= 8 * cut.of_position(), "{group} heads");
            assert!(cut.blocks(1) == 1 && cut.blocks(2 * cut.positions()) == 1, "{group} heads");
            assert_eq!(cut.blocks(2 * cut.positions() + 1), 2, "{group} heads");
        }
        assert_eq!([1, 2, 4, 7, 8, 12].map(|group| BatchCut::of(group).positions()), [32, 16, 8, 4, 4, 2]);
    }

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
