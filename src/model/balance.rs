//! How the rows of every matrix are shared among the persistent decoder's blocks: contiguous runs of tiles, balanced by
//! the bytes that they take to read.

use super::file::ModelFile;
use crate::Result;
use crate::shape::TensorRole;
use crate::shape::table::rows_per_tile;

/// Tiles of one matrix, or of two that are worked on together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    tiles: u32,
    /// Bytes of weights in a tile.
    bytes: u64,
}

/// The phases of a layer, in the order of the table of shares, then the head.
const PHASES: [&[&[TensorRole]]; 4] = [
    &[&[TensorRole::AttnQ], &[TensorRole::AttnK], &[TensorRole::AttnV]],
    &[&[TensorRole::AttnOutput]],
    &[&[TensorRole::FfnGate, TensorRole::FfnUp]],
    &[&[TensorRole::FfnDown]],
];

/// The table of shares: for each layer and phase, then for the head, `blocks + 1` tile numbers; block b has the tiles
/// from the b-th to the next.
pub(super) fn shares(file: &ModelFile, blocks: u32) -> Result<Vec<u32>> {
    let shape = file.shape();
    let mut table = Vec::new();
    for layer in 0..shape.layers {
        for phase in PHASES {
            table.extend(boundaries(&segments(file, phase, layer)?, blocks));
        }
    }
    let head = if shape.tied_head { TensorRole::TokenEmbedding } else { TensorRole::Output };
    table.extend(boundaries(&segments(file, &[&[head]], 0)?, blocks));
    Ok(table)
}

fn segments(file: &ModelFile, phase: &[&[TensorRole]], layer: u32) -> Result<Vec<Segment>> {
    let mut segments = Vec::new();
    for together in phase {
        let (mut tiles, mut bytes) = (0, 0);
        for role in *together {
            let (info, data) = file.tensor(&role.tensor_name(layer))?;
            let (k, n) = (info.dims()[0] as u32, info.dims()[1] as u32);
            let rows = rows_per_tile(k);
            tiles = n.div_ceil(rows);
            bytes += data.len() as u64 / u64::from(n.max(1)) * u64::from(rows);
        }
        segments.push(Segment { tiles, bytes });
    }
    Ok(segments)
}

/// Boundaries between the blocks' runs: each where the bytes before it come nearest to the block's part of all.
fn boundaries(segments: &[Segment], blocks: u32) -> Vec<u32> {
    let tiles: u32 = segments.iter().map(|segment| segment.tiles).sum();
    let total: u64 = segments.iter().map(|segment| u64::from(segment.tiles) * segment.bytes).sum();
    (0..=blocks)
        .map(|block| match block {
            0 => 0,
            block if block == blocks => tiles,
            block => nearest(segments, total as u128 * u128::from(block), u128::from(blocks)),
        })
        .collect()
}

/// The number of tiles whose bytes come nearest to `wanted / of`.
fn nearest(segments: &[Segment], wanted: u128, of: u128) -> u32 {
    let (mut before, mut bytes) = (0, 0u128);
    for segment in segments {
        let tile = u128::from(segment.bytes.max(1));
        let inside = u128::from(segment.tiles) * tile;
        if wanted < (bytes + inside) * of {
            let tiles = ((wanted - bytes * of) * 2 + tile * of) / (2 * tile * of);
            return before + tiles.min(u128::from(segment.tiles)) as u32;
        }
        before += segment.tiles;
        bytes += inside;
    }
    before
}

#[cfg(test)]
mod tests {
    use super::{Segment, boundaries};
    use crate::shape::table::rows_per_tile;
    use crate::shape::{ModelShape, TensorType, presets};

    fn segment(k: u32, n: u32, types: &[TensorType]) -> Segment {
        let rows = rows_per_tile(k);
        let bytes: u64 = types.iter().filter_map(|ty| ty.row_bytes(u64::from(k))).sum();
        Segment { tiles: n.div_ceil(rows), bytes: bytes * u64::from(rows) }
    }

    fn phases(shape: &ModelShape, ffn_down: TensorType) -> Vec<(&'static str, u32, Vec<Segment>)> {
        use TensorType::{Q4_K, Q6_K};
        let (hidden, q_dim, kv_dim) = (shape.hidden, shape.q_dim(), shape.kv_dim());
        let v = ffn_down;
        vec![
            (
                "qkv",
                hidden,
                vec![segment(hidden, q_dim, &[Q4_K]), segment(hidden, kv_dim, &[Q4_K]), segment(hidden, kv_dim, &[v])],
            ),
            ("output", q_dim, vec![segment(q_dim, hidden, &[Q4_K])]),
            ("gate and up", hidden, vec![segment(hidden, shape.ffn, &[Q4_K, Q4_K])]),
            ("down", shape.ffn, vec![segment(shape.ffn, hidden, &[ffn_down])]),
            ("head", hidden, vec![segment(hidden, shape.vocab, &[Q6_K])]),
        ]
    }

    /// Bytes of tiles `first..end`.
    fn bytes(segments: &[Segment], first: u32, end: u32) -> u64 {
        let mut at = 0;
        let mut sum = 0;
        for segment in segments {
            let inside = end.clamp(at, at + segment.tiles) - first.clamp(at, at + segment.tiles);
            sum += u64::from(inside) * segment.bytes;
            at += segment.tiles;
        }
        sum
    }

    /// Within 3 % of the mean, but for QKV with V in Q6_K: where a block's part is 10.1 tiles of Q's rows, as in the
    /// smaller model, 11 are 6.3 % more. Shares in rows instead of tiles would mend that.
    #[test]
    fn no_block_reads_much_more_than_the_mean() {
        for name in ["qwen3b", "qwen3-8b"] {
            let shape = presets::by_name(name).expect("a preset").shape;
            for down in [TensorType::Q4_K, TensorType::Q6_K] {
                for (phase, k, segments) in phases(&shape, down) {
                    let at = boundaries(&segments, 132);
                    // A block reads its weights, and the whole vector.
                    let read: Vec<u64> =
                        at.windows(2).map(|run| bytes(&segments, run[0], run[1]) + 4 * u64::from(k)).collect();
                    let mean = read.iter().sum::<u64>() as f64 / 132.0;
                    let most = *read.iter().max().expect("blocks") as f64;
                    let coarse = phase == "qkv" && down == TensorType::Q6_K;
                    let bound = if coarse { 1.065 } else { 1.03 };
                    assert!(most <= bound * mean, "{name} {phase}: {:.4} of the mean", most / mean);
                }
            }
        }
    }

    #[test]
    fn every_tile_belongs_to_one_block() {
        let segments = [Segment { tiles: 7, bytes: 100 }, Segment { tiles: 3, bytes: 1000 }];
        for blocks in 1..=200 {
            let at = boundaries(&segments, blocks);
            assert_eq!((at.len(), at[0], at[blocks as usize]), (blocks as usize + 1, 0, 10));
            assert!(at.windows(2).all(|run| run[0] <= run[1]), "{blocks} blocks: {at:?}");
        }
        // By bytes, not by tiles: the three heavy tiles are 3000 of 3700.
        assert_eq!(boundaries(&segments, 2), [0, 8, 10]);
    }
}
