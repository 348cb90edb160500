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

/// Reads a lane's activations: eight quads, by four addresses.
pub(crate) struct Reader {
    quads: [Shared<F32>; 4],
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

    fn new(b: &mut Builder, x: Shared<F32>, chunk: Val<U32>, quad: Val<U32>, order: [(usize, u32); 8]) -> Reader {
        let x = b.byte_index(x, chunk, 64);
        let quads = std::array::from_fn(|k| {
            let quad = b.xor(quad, k as u32);
            b.byte_index(x, quad, 16)
        });
        Reader { quads, order }
    }

    pub(crate) fn read(&self, b: &mut Builder, super_block: Val<U32>) -> Activations {
        let at = self.quads.map(|quad| b.byte_index(quad, super_block, SUPER_BLOCK * 4));
        let quads: [[Val<F32>; 4]; 8] =
            self.order.map(|(k, further)| b.ld_vector(at[k].at(further), LoadKind::Ordinary));
        let half = |h: usize| std::array::from_fn(|i| quads[4 * h + i / 4][i % 4]);
        Activations { low: half(0), high: half(1) }
    }
}
