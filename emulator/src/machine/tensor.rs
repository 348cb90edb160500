//! Tensor maps: what a copy of a box out of a tensor in device memory is told by 128 bytes that `cuTensorMapEncodeTiled`
//! makes. Their format is the emulator's own.

use std::array;
use std::ops::Range;

/// Most dimensions.
pub(crate) const MAX_RANK: usize = 5;
/// What a map begins with.
const MAGIC: u64 = u64::from_le_bytes(*b"kilnTMAP");

/// A tensor, and the box that a copy takes from it. Dimension 0 is dense; what is beyond the rank is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TensorMap {
    /// Number of dimensions.
    pub(crate) rank: usize,
    /// Bytes of an element.
    pub(crate) element: u64,
    /// Address of element 0.
    pub(crate) address: u64,
    /// Elements.
    pub(crate) dims: [u64; MAX_RANK],
    /// Bytes from an element to the next one in dimensions 1 and up.
    pub(crate) strides: [u64; MAX_RANK - 1],
    /// Elements of the box.
    pub(crate) extent: [u64; MAX_RANK],
}

/// A row of a box: its bytes that lie in the tensor, and the address of the first of these.
pub(crate) struct Row {
    pub(crate) inside: Range<u64>,
    pub(crate) address: u64,
}

impl TensorMap {
    /// Whether the driver's manual allows it.
    pub(crate) fn is_valid(&self) -> bool {
        let used = |list: &[u64], rank: usize, allowed: &dyn Fn(u64) -> bool| {
            list.iter().enumerate().all(|(d, &value)| if d < rank { allowed(value) } else { value == 0 })
        };
        (1..=MAX_RANK).contains(&self.rank)
            && matches!(self.element, 1 | 2 | 4 | 8)
            && self.address.is_multiple_of(16)
            && used(&self.dims, self.rank, &|elements| (1..=1 << 32).contains(&elements))
            && used(&self.strides, self.rank - 1, &|bytes| bytes.is_multiple_of(16) && bytes < 1 << 40)
            && used(&self.extent, self.rank, &|elements| (1..=256).contains(&elements))
            && self.row_bytes().is_multiple_of(16)
    }

    pub(crate) fn encode(&self) -> [u8; 128] {
        let mut words = [0; 16];
        words[..3].copy_from_slice(&[MAGIC, self.rank as u64 | self.element << 32, self.address]);
        words[3..8].copy_from_slice(&self.dims);
        words[8..12].copy_from_slice(&self.strides);
        // None is more than 256.
        words[12] = (0..).zip(self.extent).map(|(d, elements)| elements << (12 * d)).sum();
        let mut bytes = [0; 128];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(eight, word)| eight.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// The map that bytes are, if any.
    pub(crate) fn decode(bytes: &[u8; 128]) -> Option<TensorMap> {
        let word = |i: usize| (0..8).map(|k| u64::from(bytes[8 * i + k]) << (8 * k)).sum::<u64>();
        let map = TensorMap {
            rank: word(1) as u32 as usize,
            element: word(1) >> 32,
            address: word(2),
            dims: array::from_fn(|d| word(3 + d)),
            strides: array::from_fn(|d| word(8 + d)),
            extent: array::from_fn(|d| word(12) >> (12 * d) & 0xfff),
        };
        (word(0) == MAGIC && map.is_valid()).then_some(map)
    }

    /// Bytes of a row of the box.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.extent[0] * self.element
    }

    /// The rows of the box whose first element has these coordinates, in the order in which shared memory gets them.
    pub(crate) fn rows(&self, corner: [i64; MAX_RANK]) -> impl Iterator<Item = Row> {
        let map = *self;
        (0..map.extent[1..map.rank].iter().product()).map(move |number| map.row(corner, number))
    }

    fn row(&self, corner: [i64; MAX_RANK], mut number: u64) -> Row {
        let (mut is_inside, mut address) = (true, self.address);
        let outer = corner.iter().zip(&self.extent).zip(&self.dims).take(self.rank).skip(1).zip(&self.strides);
        for (((first, extent), &elements), &stride) in outer {
            let at = first + (number % extent) as i64;
            number /= extent;
            is_inside &= (0..elements as i64).contains(&at);
            address = address.wrapping_add((at as u64).wrapping_mul(stride));
        }
        let first = corner[0].max(0);
        let end = (corner[0] + self.extent[0] as i64).min(self.dims[0] as i64);
        if !is_inside || first >= end {
            return Row { inside: 0..0, address };
        }
        let [first_byte, end_byte] = [first, end].map(|at| (at - corner[0]) as u64 * self.element);
        Row { inside: first_byte..end_byte, address: address.wrapping_add(first as u64 * self.element) }
    }
}
