//! The staged vector as the lanes of a super-block read it.
//!
//! Element `k` lies in super-block `k / 256`, chunk `k / 16 % 16`, quad `k / 4 % 4`. Eight lanes read one quad each, of
//! eight different chunks; to keep those reads in eight different groups of banks, the quads of a chunk are permuted by
//! XOR with [`swizzle`] of the chunk's number.

use crate::ptx::{Builder, F32, LoadKind, Shared, U32, Val};
use kiln_shape::SUPER_BLOCK;

/// What a chunk's quads are permuted with: two bits that differ between any two chunks that the eight lanes of a group
/// read together, whichever of the chunk's upper three bits their format holds fixed.
pub(crate) fn swizzle(b: &mut Builder, chunk: Val<U32>) -> Val<U32> {
    let (b1, b2, b3) = (b.shr(chunk, 1), b.shr(chunk, 2), b.shr(chunk, 3));
    let (low, high) = (b.xor::<U32>(b1, b2), b.xor::<U32>(b3, b2));
    let low = b.and(low, 1);
    let high = b.shl::<U32>(high, 1);
    b.and_or(high, 2, low)
}

/// The same of a known chunk. The swizzle of `a ^ b` is that of a XOR that of b.
const fn swizzle_of(chunk: u32) -> u32 {
    (chunk >> 1 ^ chunk >> 2) & 1 | ((chunk >> 3 ^ chunk >> 2) & 1) << 1
}

/// The activations a lane works with in one super-block: two chunks of 16.
pub(crate) struct Activations {
    pub(super) low: [Val<F32>; 16],
    pub(super) high: [Val<F32>; 16],
}

/// Where a lane's two chunks lie in a super-block: the format's choice.
pub(super) struct Chunks {
    pub(super) low: Val<U32>,
    /// From the low chunk to the high one.
    pub(super) distance: u32,
    /// How `swizzle` differs between the two.
    pub(super) flip: u32,
}

/// A block of 32 for each lane, in two halves of 16. Every other lane begins with the second half, so that the lanes of a
/// super-block read activations from all groups of banks.
#[derive(Clone, Copy)]
pub(super) struct BlockOf32 {
    /// The chunks of both halves.
    chunks: [Val<U32>; 2],
    /// For each half, by how much nibbles and fifth bits are shifted down.
    nibbles: [Val<U32>; 2],
    bits: [Val<U32>; 2],
}

impl BlockOf32 {
    pub(super) fn new(b: &mut Builder, g: Val<U32>) -> BlockOf32 {
        let odd = b.and(g, 1);
        let even = b.xor::<U32>(odd, 1);
        let halves = [odd, even];
        BlockOf32 {
            chunks: halves.map(|half| b.mad::<U32>(g, 2, half)),
            nibbles: halves.map(|half| b.shl::<U32>(half, 2)),
            bits: halves.map(|half| b.shl::<U32>(half, 4)),
        }
    }

    /// The nibbles of both halves, each in bits 2 to 5 of a byte.
    pub(super) fn nibbles(&self, b: &mut Builder, quants: [Val<U32>; 4]) -> [[Val<U32>; 4]; 2] {
        self.nibbles.map(|shift| {
            quants.map(|word| {
                let nibbles = b.shr::<U32>(word, shift);
                let nibbles = b.shl::<U32>(nibbles, 2);
                b.and(nibbles, 0x3c3c_3c3c)
            })
        })
    }

    /// The sixteen bits that each half has of a word, lowest.
    pub(super) fn bits(&self, b: &mut Builder, word: Val<U32>) -> [Val<U32>; 2] {
        self.bits.map(|shift| b.shr::<U32>(word, shift))
    }
}

/// Reads a lane's activations: eight quads, by four addresses or eight.
pub(crate) struct Reader {
    quads: Vec<Shared<F32>>,
    /// For each quad, which of the addresses, and how many floats further on.
    order: [(usize, u32); 8],
}

impl Reader {
    /// Both chunks whole; the high one lies a fixed distance behind the low one.
    pub(super) fn chunks(b: &mut Builder, x: Shared<F32>, chunks: &Chunks) -> Reader {
        let order = std::array::from_fn(|n| match n {
            0..4 => (n, 0),
            _ => ((n - 4) ^ chunks.flip as usize, chunks.distance * 16),
        });
        let swizzle = swizzle(b, chunks.low);
        Reader::new(b, x, chunks.low, swizzle, order)
    }

    /// Pieces `8i + g` of a plain array, of 16 bytes or `quads` quads each, so that the eight lanes of a group load their
    /// i-th pieces from neighbouring addresses.
    pub(super) fn pieces(b: &mut Builder, x: Shared<F32>, g: Val<U32>, quads: u32) -> Reader {
        let first = b.shl::<U32>(g, quads - 1);
        let chunk = b.shr(first, 2);
        let quad = b.and(first, 3);
        let swizzle = swizzle(b, chunk);
        let quad = b.xor::<U32>(quad, swizzle);
        // A lane's pieces lie whole multiples of `2 * quads` chunks apart: their swizzles differ by a constant.
        let order = std::array::from_fn(|n| {
            let (i, j) = (n as u32 / quads, n as u32 % quads);
            let chunks = 2 * quads * i;
            ((j ^ swizzle_of(chunks)) as usize, chunks * 16)
        });
        Reader::new(b, x, chunk, quad, order)
    }

    /// Both halves of a block.
    pub(super) fn block(b: &mut Builder, x: Shared<F32>, block: &BlockOf32) -> Reader {
        // Two chunks of one block have the same swizzle.
        let swizzle = swizzle(b, block.chunks[0]);
        let quads = block.chunks.into_iter().flat_map(|chunk| chunk_quads(b, x, chunk, swizzle)).collect();
        Reader { quads, order: std::array::from_fn(|n| (n, 0)) }
    }

    fn new(b: &mut Builder, x: Shared<F32>, chunk: Val<U32>, quad: Val<U32>, order: [(usize, u32); 8]) -> Reader {
        Reader { quads: chunk_quads(b, x, chunk, quad).to_vec(), order }
    }

    pub(crate) fn read(&self, b: &mut Builder, super_block: Val<U32>) -> Activations {
        self.behind(b, super_block).read_behind(b, 0)
    }

    /// One of what lies so many super-blocks behind.
    pub(crate) fn behind(&self, b: &mut Builder, super_blocks: Val<U32>) -> Reader {
        let quads = self.quads.iter().map(|quad| b.byte_index(*quad, super_blocks, SUPER_BLOCK * 4)).collect();
        Reader { quads, order: self.order }
    }

    /// Those of the super-block of that number.
    pub(crate) fn read_behind(&self, b: &mut Builder, super_blocks: u32) -> Activations {
        let before = super_blocks * SUPER_BLOCK;
        let quads: [[Val<F32>; 4]; 8] =
            self.order.map(|(k, further)| b.ld_vector(self.quads[k].at(before + further), LoadKind::Ordinary));
        let half = |h: usize| std::array::from_fn(|i| quads[4 * h + i / 4][i % 4]);
        Activations { low: half(0), high: half(1) }
    }
}

/// The addresses of a chunk's quads `quad ^ 0` to `quad ^ 3`.
fn chunk_quads(b: &mut Builder, x: Shared<F32>, chunk: Val<U32>, quad: Val<U32>) -> [Shared<F32>; 4] {
    let x = b.byte_index(x, chunk, 64);
    std::array::from_fn(|k| {
        let quad = b.xor(quad, k as u32);
        b.byte_index(x, quad, 16)
    })
}
