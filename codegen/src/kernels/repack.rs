use super::Kernel;
use crate::ptx::{Builder, Global, LoadKind, U8, U16, U32};

/// Splits GGUF's Q6_K blocks of 210 bytes, which are only 2-byte aligned, into records of 208 bytes (ql, qh, scales) and
/// a plane of the f16 `d`: `records[i] = blocks[i][..208]`, `scales[i] = blocks[i][208..]`. Any grid; `blocks` and
/// `records` may not overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RepackQ6K;

/// Splits GGUF's Q8_0 blocks of 34 bytes into a plane of quants, 32 bytes a block, and a plane of the f16 `d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RepackQ8_0;

/// Moves 16-bit words: word `w` of block `i` is the scale if it is word `scale`, and else the next of the record.
fn split(b: &mut Builder, block_words: u32, scale: u32) {
    let blocks = b.param::<Global<U8>>("blocks");
    let records = b.param::<Global<U8>>("records");
    let scales = b.param::<Global<U8>>("scales");
    let count = b.param::<U32>("count"); // blocks
    let (block, grid, warp, lane, warps) = (b.ctaid_x(), b.nctaid_x(), b.warp_id(), b.lane(), b.warps());
    let first = b.mad::<U32>(block, warps, warp);
    let step = b.mul::<U32>(grid, warps);
    // A warp a block: sizes in bytes of a whole tensor may exceed 32 bits, sizes in blocks do not.
    b.for_range(first, count, step, |b, i| {
        let from = b.byte_index(blocks, i, block_words * 2).cast::<U16>();
        let record = b.byte_index(records, i, (block_words - 1) * 2).cast::<U16>();
        let scale_to = b.byte_index(scales, i, 2).cast::<U16>();
        b.for_range(lane, block_words, 32, |b, word| {
            let at = b.index(from, word);
            let value = b.ld(at, LoadKind::Constant);
            let is_scale = b.setp_eq(word, scale);
            b.if_else(
                is_scale,
                |b| b.st(scale_to, value),
                |b| {
                    let after = b.setp_ge(word, scale);
                    let shift = b.selp::<U32>(1, 0, after);
                    let word = b.sub(word, shift);
                    let to = b.index(record, word);
                    b.st(to, value);
                },
            );
        });
    });
}

impl Kernel for RepackQ6K {
    fn name(&self) -> &str {
        "repack_q6k"
    }

    fn build(&self, b: &mut Builder) {
        split(b, 105, 104);
    }
}

impl Kernel for RepackQ8_0 {
    fn name(&self) -> &str {
        "repack_q8_0"
    }

    fn build(&self, b: &mut Builder) {
        split(b, 17, 0);
    }
}
