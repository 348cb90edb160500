//! Shares of the persistent decoder's blocks in the rows of every matrix: contiguous runs, balanced by bytes.

use super::file::ModelFile;
use crate::Result;
use crate::shape::TensorRole;
use crate::shape::table::rows_per_tile;

/// Rows of one matrix, or of two that are worked on together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    rows: u32,
    /// Bytes of weights in a row.
    bytes: u64,
}

/// A phase, the work between two grid-wide dependencies: segments one after another, and the vector they are multiplied
/// with.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Phase {
    segments: Vec<Segment>,
    /// Elements of the vector, which every block reads.
    k: u32,
}

/// The phases of a layer, in the order of the table of shares, then the head.
const PHASES: [&[&[TensorRole]]; 4] = [
    &[&[TensorRole::AttnQ], &[TensorRole::AttnK], &[TensorRole::AttnV]],
    &[&[TensorRole::AttnOutput]],
    &[&[TensorRole::FfnGate, TensorRole::FfnUp]],
    &[&[TensorRole::FfnDown]],
];

/// The table of shares: for each layer and phase, then for the head, `blocks + 1` row numbers; block b has the rows from
/// the b-th to the next.
pub(super) fn shares(file: &ModelFile, blocks: u32) -> Result<Vec<u32>> {
    let shape = file.shape();
    let mut table = Vec::new();
    for layer in 0..shape.layers {
        for roles in PHASES {
            let phase = phase(file, roles, layer)?;
            // The first blocks attend for a KV head each, however short the cache is.
            let late = if *roles == [&[TensorRole::AttnOutput]] { shape.kv_heads } else { 0 };
            table.extend(phase.boundaries_behind(late, blocks));
        }
    }
    let head = if shape.tied_head { TensorRole::TokenEmbedding } else { TensorRole::Output };
    table.extend(phase(file, &[&[head]], 0)?.boundaries(blocks));
    Ok(table)
}

fn phase(file: &ModelFile, roles: &[&[TensorRole]], layer: u32) -> Result<Phase> {
    let mut phase = Phase { segments: Vec::new(), k: 0 };
    for together in roles {
        let (mut rows, mut bytes) = (0, 0);
        for role in *together {
            let (info, data) = file.tensor(&role.tensor_name(layer))?;
            (phase.k, rows) = (info.dims()[0] as u32, info.dims()[1] as u32);
            bytes += data.len() as u64 / u64::from(rows.max(1));
        }
        phase.segments.push(Segment { rows, bytes });
    }
    Ok(phase)
}

impl Phase {
    /// Boundaries between the blocks' runs, at whole tiles if no block then has over 2 % more than the mean, or if rows
    /// would balance no better.
    fn boundaries(&self, blocks: u32) -> Vec<u32> {
        let tiles = self.cut(blocks, rows_per_tile(self.k));
        let most = self.most(&tiles);
        if most <= 1.02 {
            return tiles;
        }
        let rows = self.cut_rows(blocks);
        if self.most(&rows) < most { rows } else { tiles }
    }

    /// The same where the first `late` blocks come to the phase behind the others. They have the rows that the others leave. No
    /// block has more rows than the most that one has without that.
    fn boundaries_behind(&self, late: u32, blocks: u32) -> Vec<u32> {
        let boundaries = self.boundaries(blocks);
        if late == 0 || late >= blocks {
            return boundaries;
        }
        let (rows, most) = (boundaries[blocks as usize], boundaries.windows(2).map(|run| run[1] - run[0]).max());
        let before = |block: u32| rows.saturating_sub(most.unwrap_or(0).saturating_mul(blocks - block));
        let of_late = (0..late).map(|block| before(late) * block / late);
        of_late.chain((late..=blocks).map(before)).collect()
    }

    /// Boundaries at any rows: those of [`Phase::cut`], but where rows differ and a block would have more than the least that
    /// whole rows allow.
    fn cut_rows(&self, blocks: u32) -> Vec<u32> {
        let mut boundaries = self.cut(blocks, 1);
        let least = self.least(blocks);
        // Of each boundary the first row at which the blocks behind it have no more than that.
        let mut first = boundaries.clone();
        for block in (1..blocks as usize).rev() {
            let before = self.bytes(0, first[block + 1]).saturating_sub(least);
            first[block] = before.checked_sub(1).map_or(0, |less| self.rows_within(less) + 1);
        }
        for block in 1..blocks as usize {
            let last = self.rows_within(self.bytes(0, boundaries[block - 1]) + least);
            boundaries[block] = boundaries[block].max(first[block]).min(last);
        }
        boundaries
    }

    /// The bytes that the block with the most of them has at least, whose runs are whole rows.
    fn least(&self, blocks: u32) -> u64 {
        let rows = self.segments.iter().map(|segment| segment.rows).sum();
        let fits = |bytes| (0..blocks).fold(0, |end, _| self.rows_within(self.bytes(0, end) + bytes)) == rows;
        let (mut too_few, mut enough) = (0, self.bytes(0, rows));
        while enough - too_few > 1 {
            let middle = too_few.midpoint(enough);
            if fits(middle) { enough = middle } else { too_few = middle }
        }
        enough
    }

    /// The most rows, from the first on, of so many bytes.
    fn rows_within(&self, bytes: u64) -> u32 {
        let (mut rows, mut left) = (0, bytes);
        for segment in &self.segments {
            let inside = (left / segment.bytes.max(1)).min(u64::from(segment.rows)) as u32;
            (rows, left) = (rows + inside, left - u64::from(inside) * segment.bytes);
            if inside < segment.rows {
                break;
            }
        }
        rows
    }

    /// Boundaries at multiples of `unit` rows: boundary b is where the bytes before it come nearest to `b / blocks` of
    /// all.
    fn cut(&self, blocks: u32, unit: u32) -> Vec<u32> {
        let rows: u32 = self.segments.iter().map(|segment| segment.rows).sum();
        let total = self.bytes(0, rows);
        (0..=blocks)
            .map(|block| match block {
                0 => 0,
                block if block == blocks => rows,
                block => self.nearest(u128::from(total) * u128::from(block), u128::from(blocks), unit),
            })
            .collect()
    }

    /// The number of rows, in steps of `unit`, whose bytes come nearest to `wanted / of`.
    fn nearest(&self, wanted: u128, of: u128, unit: u32) -> u32 {
        let (mut before, mut bytes) = (0, 0u128);
        for segment in &self.segments {
            let step = u128::from(segment.bytes.max(1)) * u128::from(unit);
            let inside = u128::from(segment.rows) * u128::from(segment.bytes.max(1));
            if wanted < (bytes + inside) * of {
                let steps = ((wanted - bytes * of) * 2 + step * of) / (2 * step * of);
                let rows = (steps as u64).saturating_mul(u64::from(unit));
                return before + rows.min(u64::from(segment.rows)) as u32;
            }
            before += segment.rows;
            bytes += inside;
        }
        before
    }

    /// Bytes of weights in rows `first..end`.
    fn bytes(&self, first: u32, end: u32) -> u64 {
        let (mut at, mut sum) = (0, 0);
        for segment in &self.segments {
            let inside = end.clamp(at, at + segment.rows) - first.clamp(at, at + segment.rows);
            sum += u64::from(inside) * segment.bytes;
            at += segment.rows;
        }
        sum
    }

    /// The bytes, of weights and vector, of the block that reads most, as a multiple of the mean.
    fn most(&self, boundaries: &[u32]) -> f64 {
        let read = |run: &[u32]| self.bytes(run[0], run[1]) + 4 * u64::from(self.k);
        let (mut most, mut sum) = (0, 0);
        for run in boundaries.windows(2) {
            (most, sum) = (most.max(read(run)), sum + read(run));
        }
        most as f64 * (boundaries.len() - 1) as f64 / sum.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::{Phase, Segment};
    use crate::shape::{ModelShape, WeightType, presets};

    fn segment(k: u32, rows: u32, types: &[WeightType]) -> Segment {
        Segment { rows, bytes: types.iter().filter_map(|ty| ty.ggml().row_bytes(u64::from(k))).sum() }
    }

    fn phases(shape: &ModelShape, more: WeightType) -> Vec<(&'static str, Phase)> {
        use WeightType::{Q4_K, Q6_K};
        let (hidden, q_dim, kv_dim) = (shape.hidden, shape.q_dim(), shape.kv_dim());
        let one = |k, rows, types: &[WeightType]| Phase { segments: vec![segment(k, rows, types)], k };
        let qkv =
            vec![segment(hidden, q_dim, &[Q4_K]), segment(hidden, kv_dim, &[Q4_K]), segment(hidden, kv_dim, &[more])];
        vec![
            ("qkv", Phase { segments: qkv, k: hidden }),
            ("output", one(q_dim, hidden, &[Q4_K])),
            ("gate and up", one(hidden, shape.ffn, &[Q4_K, Q4_K])),
            ("down", one(shape.ffn, hidden, &[more])),
            ("head", one(hidden, shape.vocab, &[Q6_K])),
        ]
    }

    /// The bytes of weights, without the vector, of the block that reads most, as a multiple of the mean.
    fn heaviest(phase: &Phase, boundaries: &[u32]) -> f64 {
        let most = boundaries.windows(2).map(|run| phase.bytes(run[0], run[1])).max().unwrap_or(0);
        let all = phase.bytes(0, boundaries[boundaries.len() - 1]);
        most as f64 * (boundaries.len() - 1) as f64 / all as f64
    }

    /// The least that it may be with whole rows, one run of them a block.
    fn least(phase: &Phase, blocks: u32) -> f64 {
        let all: u64 = phase.segments.iter().map(|segment| u64::from(segment.rows) * segment.bytes).sum();
        // Blocks that take as many rows as fit into so many bytes each.
        let fits = |bytes: u64| {
            let (mut runs, mut left) = (1, bytes);
            for segment in &phase.segments {
                for _ in 0..segment.rows {
                    if segment.bytes > left {
                        (runs, left) = (runs + 1, bytes);
                    }
                    let Some(rest) = left.checked_sub(segment.bytes) else { return false };
                    left = rest;
                }
            }
            runs <= blocks
        };
        let (mut too_few, mut enough) = (0, all);
        while enough - too_few > 1 {
            let middle = too_few.midpoint(enough);
            if fits(middle) { enough = middle } else { too_few = middle }
        }
        enough as f64 * f64::from(blocks) / all as f64
    }

    /// Of weights alone, since the vector is read from L2; by blocks of the chips' multiprocessors. Where whole rows allow no
    /// three percent, a block has the least that they allow.
    #[test]
    fn no_block_reads_over_three_percent_more_than_the_mean_where_rows_allow() {
        use WeightType::{Q4_K, Q6_K};
        for name in ["qwen3b", "qwen3-8b"] {
            let shape = presets::by_name(name).expect("a preset").shape;
            for (more, blocks) in
                [Q4_K, Q6_K].into_iter().flat_map(|ty| [170, 132, 128, 108, 82, 16].map(|of| (ty, of)))
            {
                for (phase, what) in phases(&shape, more) {
                    let (most, least) = (heaviest(&what, &what.boundaries(blocks)), least(&what, blocks));
                    println!("{name} {phase} {more}, {blocks} blocks: {most:.4}, {least:.4} at least");
                    assert!(
                        most <= least.max(1.03) + 1e-9,
                        "{name} {phase} {more}, {blocks} blocks: {most:.4} of the mean"
                    );
                }
            }
        }
    }

    /// Blocks that come later to attention's output have fewer of its rows, none where the others have room, and no block has
    /// more than without.
    #[test]
    fn blocks_that_attend_have_fewer_rows_of_the_output() {
        for (name, blocks, of_late) in [("qwen3b", 132, 0), ("qwen3-8b", 132, 16), ("qwen3-0-6b", 132, 4)] {
            let shape = presets::by_name(name).expect("a preset").shape;
            let (_, output) = phases(&shape, WeightType::Q4_K).swap_remove(1);
            let (evenly, behind) = (output.boundaries(blocks), output.boundaries_behind(shape.kv_heads, blocks));
            let rows = |of: &[u32]| of.windows(2).map(|run| run[1] - run[0]).collect::<Vec<_>>();
            let (evenly, behind) = (rows(&evenly), rows(&behind));
            assert_eq!(behind.iter().sum::<u32>(), shape.hidden);
            assert_eq!(behind.iter().max(), evenly.iter().max());
            assert!(behind[..shape.kv_heads as usize].iter().all(|rows| *rows == of_late), "{name}: {behind:?}");
        }
    }

    #[test]
    fn every_row_belongs_to_one_block() {
        let segments = vec![Segment { rows: 14, bytes: 50 }, Segment { rows: 5, bytes: 500 }];
        let phase = Phase { segments, k: 1024 };
        for blocks in 1..=200 {
            let whole = [1, 2].map(|unit| phase.cut(blocks, unit));
            let behind = [0, 1, 3, 8, 200].map(|late| phase.boundaries_behind(late, blocks));
            for at in [phase.boundaries(blocks), phase.cut_rows(blocks)].into_iter().chain(whole).chain(behind) {
                assert_eq!((at.len(), at[0], at[blocks as usize]), (blocks as usize + 1, 0, 19));
                assert!(at.windows(2).all(|run| run[0] <= run[1]), "{blocks} blocks: {at:?}");
            }
        }
        // By bytes, not by rows: the five heavy rows are 2500 of 3200.
        assert_eq!(phase.cut(2, 1), [0, 16, 19]);
        assert_eq!(phase.cut(2, 2), [0, 16, 19]);
    }
}
