//! Dot products of rows of weights with the staged vector, in f32.
//!
//! Eight lanes share a super-block of 256 weights; each takes two chunks of 16, a low and a high one, whose weights lie
//! together in its format's 16-byte pieces. A weight, or the integer it is a multiple of, is a float of its own before it
//! meets its activation: an offset in its place would be rounded with the activation's size, and a weight of zero would
//! not be zero. Integers become floats without a conversion from integers:
//!
//! - a nibble in a half word is the subnormal `q * 2^-24` of f16, and exact in f32;
//! - a byte under a constant upper byte is the float `2^e + q`, and subtracting `2^e` is exact.
//!
//! A product of a weight and an activation goes through at most 15 roundings, however long the row is:
//!
//! | roundings | where |
//! |---|---|
//! | 1 | the weight (Q4_K), or the chunk's scale (Q6_K, Q8_0) |
//! | 4 | chains of four |
//! | 3 | the tree over the eight chains of a super-block |
//! | 2 | the compensated sum over super-blocks |
//! | 5 | the tree over the lanes |

use super::matvec::Rows;
use super::stage::{SUPER_BLOCK, Staged, swizzle, swizzle_of};
use super::tensor::Tensor;
use crate::ptx::{Builder, F16, F32, Global, LoadKind, Pred, Shared, Size, U8, U32, Val, Var};
use kiln_shape::TensorType;
use kiln_shape::table::lane_groups;

/// The activations a lane works with in one super-block.
struct Activations {
    low: [Val<F32>; 16],
    high: [Val<F32>; 16],
}

/// Where a lane's two chunks lie in a super-block: the format's choice.
struct Chunks {
    low: Val<U32>,
    /// From the low chunk to the high one.
    distance: u32,
    /// How `swizzle` differs between the two.
    flip: u32,
}

impl Chunks {
    /// Q4_K and Q8_0: bytes `16g .. 16g + 16` of Q4_K's quants hold chunk
    /// `4 (g / 2) + g % 2` in their low nibbles and the chunk 2 further on in their high ones (g: lane % 8).
    fn by_32(b: &mut Builder, g: Val<U32>) -> Chunks {
        let pair = b.shr(g, 1);
        let odd = b.and(g, 1);
        Chunks { low: b.mad::<U32>(pair, 4, odd), distance: 2, flip: 1 }
    }

    /// Q6_K: bytes `16g .. 16g + 16` of `ql` hold chunk `8 (g / 4) + g % 4` and the chunk 4 further on.
    fn by_64(b: &mut Builder, g: Val<U32>) -> Chunks {
        let half = b.shr(g, 2);
        let rest = b.and(g, 3);
        Chunks { low: b.mad::<U32>(half, 8, rest), distance: 4, flip: 3 }
    }
}

/// Reads a lane's activations: eight quads, by four addresses.
struct Reader {
    quads: [Shared<F32>; 4],
    /// For each quad, which of the addresses, and how many floats further on.
    order: [(usize, u32); 8],
}

impl Reader {
    /// Both chunks whole.
    fn chunks(b: &mut Builder, staged: &Staged, chunks: &Chunks) -> Reader {
        let order = std::array::from_fn(|n| match n {
            0..4 => (n, 0),
            _ => ((n - 4) ^ chunks.flip as usize, chunks.distance * 16),
        });
        let swizzle = swizzle(b, chunks.low);
        Reader::new(b, staged, chunks.low, swizzle, order)
    }

    /// Pieces `8i + g` of a plain array, of 16 bytes or `quads` quads each, so that the eight lanes of a group load their
    /// i-th pieces from neighbouring addresses.
    fn pieces(b: &mut Builder, staged: &Staged, g: Val<U32>, quads: u32) -> Reader {
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
        Reader::new(b, staged, chunk, quad, order)
    }

    fn new(b: &mut Builder, staged: &Staged, chunk: Val<U32>, quad: Val<U32>, order: [(usize, u32); 8]) -> Reader {
        let x = b.byte_index(staged.x, chunk, 64);
        let quads = std::array::from_fn(|k| {
            let quad = b.xor(quad, k as u32);
            b.byte_index(x, quad, 16)
        });
        Reader { quads, order }
    }

    fn read(&self, b: &mut Builder, super_block: Val<U32>) -> Activations {
        let at = self.quads.map(|quad| b.byte_index(quad, super_block, SUPER_BLOCK * 4));
        let quads: [[Val<F32>; 4]; 8] =
            self.order.map(|(k, further)| b.ld_vector(at[k].at(further), LoadKind::Ordinary));
        let half = |h: usize| std::array::from_fn(|i| quads[4 * h + i / 4][i % 4]);
        Activations { low: half(0), high: half(1) }
    }
}

/// `sum over i of weights[i] * x[i]`: four chains of four and a tree over them.
fn chunk_dot(b: &mut Builder, weights: [Val<F32>; 16], x: &[Val<F32>; 16]) -> Val<F32> {
    let [c0, c1, c2, c3] = std::array::from_fn(|chain| {
        let first = 4 * chain;
        let sum = b.mul(weights[first], x[first]);
        (first + 1..first + 4).fold(sum, |sum, i| b.fma(weights[i], x[i], sum))
    });
    let (low, high) = (b.add(c0, c1), b.add(c2, c3));
    b.add(low, high)
}

/// `q` of every byte of four words as a float: under `upper`, the float's highest byte, byte and all are `offset + q`.
fn bytes(b: &mut Builder, words: [Val<U32>; 4], upper: Val<U32>, offset: f32) -> [Val<F32>; 16] {
    std::array::from_fn(|i| {
        // Bytes of the result, lowest first: 0, 0, byte i % 4 of the word, the constant.
        let float = b.prmt(words[i / 4], upper, 0x7044 | ((i as u32 % 4) << 8));
        let float = b.mov_bits::<F32, U32>(float);
        b.sub(float, offset)
    })
}

/// What a lane needs to know once, per format.
enum Lane {
    Q4K { select: Val<U32>, shift: Val<U32>, high_bits: Val<U32>, low_bits: Val<U32>, quants: Val<U32> },
    Q6K { shift: Val<U32>, ql: Val<U32>, qh: Val<U32>, scale: Val<U32>, upper: Val<U32> },
    Q8_0 { low: Val<U32>, pair: Val<U32> },
    Plain { first: Val<U32> },
}

/// The dot product of some rows, all of one format.
struct Format {
    ty: TensorType,
    lane: Lane,
    reader: Reader,
}

impl Format {
    fn new(b: &mut Builder, ty: TensorType, staged: &Staged) -> Format {
        let lane = b.lane();
        let g = b.and(lane, 7);
        let chunks = match ty {
            TensorType::Q6_K => Chunks::by_64(b, g),
            _ => Chunks::by_32(b, g),
        };
        let reader = match ty {
            TensorType::F32 => Reader::pieces(b, staged, g, 1),
            TensorType::F16 | TensorType::BF16 => Reader::pieces(b, staged, g, 2),
            _ => Reader::chunks(b, staged, &chunks),
        };
        let lane = match ty {
            TensorType::Q4_K => {
                // Sub-blocks 2c and 2c + 1 (c: lane % 8 / 2): their scales and mins are two neighbouring bytes each.
                let odd = b.and(g, 2);
                let odd = b.setp_ne(odd, 0);
                let select = b.selp::<U32>(0x7632, 0x5410, odd);
                let upper_half = b.setp_ge(g, 4);
                Lane::Q4K {
                    select,
                    shift: b.selp::<U32>(2, 0, upper_half),
                    high_bits: b.selp::<U32>(0x3030_3030, 0x3f3f_3f3f, upper_half),
                    low_bits: b.selp::<U32>(0x0f0f_0f0f, 0, upper_half),
                    quants: b.shl::<U32>(g, 4),
                }
            }
            TensorType::Q6_K => {
                let two = b.and(g, 2);
                let half = b.shr(g, 2);
                let odd = b.and(g, 1);
                let qh = b.mad::<U32>(half, 2, odd);
                Lane::Q6K {
                    shift: two,
                    ql: b.shl::<U32>(g, 4),
                    qh: b.shl::<U32>(qh, 4),
                    scale: chunks.low,
                    upper: b.mov(0x4200_0000u32),
                }
            }
            TensorType::Q8_0 => {
                let low = b.shl::<U32>(chunks.low, 4);
                // The f16 scales of blocks 2c and 2c + 1 are one aligned word.
                let pair = b.shr(g, 1);
                Lane::Q8_0 { low, pair: b.shl::<U32>(pair, 2) }
            }
            _ => Lane::Plain { first: b.shl::<U32>(g, 4) },
        };
        Format { ty, lane, reader }
    }

    /// Bytes of one super-block of a row.
    fn super_block_bytes(&self) -> u32 {
        match self.ty {
            TensorType::Q4_K => 144,
            TensorType::Q6_K => 208,
            TensorType::Q8_0 => 256,
            TensorType::F32 => 1024,
            _ => 512,
        }
    }

    /// Bytes of one super-block of a row in the plane of scales.
    fn plane_bytes(&self) -> u32 {
        match self.ty {
            TensorType::Q6_K => 2,
            TensorType::Q8_0 => 16,
            _ => 0,
        }
    }

    /// This lane's part of a super-block.
    fn dot(&self, b: &mut Builder, data: Global<U8>, plane: Global<U8>, x: &Activations, kind: LoadKind) -> Val<F32> {
        match &self.lane {
            Lane::Q4K { select, shift, high_bits, low_bits, quants } => {
                let header: [Val<U32>; 4] = b.ld_vector(data.cast::<U32>(), kind);
                let quants = b.byte_index(data.at(16), *quants, 1);
                let quants: [Val<U32>; 4] = b.ld_vector(quants.cast::<U32>(), kind);
                // Scales of the low and the high chunk, then their mins, a byte each.
                let six = b.prmt(header[1], header[2], *select);
                let nibbles = b.shr::<U32>(header[3], 4);
                let four = b.prmt(header[3], nibbles, *select);
                let six = b.shr(six, *shift);
                let four = b.and::<U32>(four, *low_bits);
                let scales = b.and_or(six, *high_bits, four);
                let mut byte = |i: u32| {
                    let byte = if i == 3 { b.shr(scales, 24) } else { b.bfe::<U32>(scales, 8 * i, 8) };
                    b.cvt::<F32, U32>(byte)
                };
                let [low_scale, high_scale, low_min, high_min] = [byte(0), byte(1), byte(2), byte(3)];
                let [d, dmin] = b.unpack::<F16>(header[0]);
                let (d, dmin) = (b.cvt(d), b.cvt::<F32, F16>(dmin));
                // Nibbles are 2^-24 times their number where they stand lowest in a half word, and 2^-20 times above.
                let (low_d, high_d) = (b.mul(d, (1 << 24) as f32), b.mul(d, (1 << 20) as f32));
                let (low_scale, high_scale) = (b.mul(low_d, low_scale), b.mul(high_d, high_scale));
                let dmin = b.neg(dmin);
                let (low_min, high_min) = (b.mul(dmin, low_min), b.mul(dmin, high_min));
                // Scales and mins are exact, and so is `scale * q`: a weight is rounded once.
                let odd = quants.map(|word| b.shr::<U32>(word, 8));
                let mut weights = |mask: u32, scale: Val<F32>, min: Val<F32>| -> [Val<F32>; 16] {
                    let pairs: [[[Val<F16>; 2]; 2]; 4] = std::array::from_fn(|i| {
                        [quants[i], odd[i]].map(|word| {
                            let pair = b.and(word, mask);
                            b.unpack::<F16>(pair)
                        })
                    });
                    std::array::from_fn(|i| {
                        let quant = b.cvt::<F32, F16>(pairs[i / 4][i % 2][i / 2 % 2]);
                        b.fma(scale, quant, min)
                    })
                };
                let low = weights(0x000f_000f, low_scale, low_min);
                let high = weights(0x00f0_00f0, high_scale, high_min);
                let (low, high) = (chunk_dot(b, low, &x.low), chunk_dot(b, high, &x.high));
                b.add(low, high)
            }
            Lane::Q6K { shift, ql, qh, scale, upper } => {
                let low_bits = b.byte_index(data, *ql, 1);
                let low_bits: [Val<U32>; 4] = b.ld_vector(low_bits.cast::<U32>(), kind);
                let high_bits = b.byte_index(data.at(128), *qh, 1);
                let high_bits: [Val<U32>; 4] = b.ld_vector(high_bits.cast::<U32>(), kind);
                let scale = b.byte_index(data.at(192), *scale, 1).cast::<crate::ptx::S8>();
                let (low_scale, high_scale) = (b.ld(scale, kind), b.ld(scale.at(4), kind));
                let (low_scale, high_scale): (Val<F32>, Val<F32>) = (b.cvt(low_scale), b.cvt(high_scale));
                let d = b.ld(plane.cast::<F16>(), kind);
                let d = b.cvt::<F32, F16>(d);
                let high_bits = high_bits.map(|word| b.shr::<U32>(word, *shift));
                let low: [Val<U32>; 4] = std::array::from_fn(|i| {
                    let nibble = b.shl::<U32>(low_bits[i], 1);
                    let nibble = b.and_or(nibble, 0x1e1e_1e1e, 0x8080_8080);
                    let two = b.shl::<U32>(high_bits[i], 5);
                    b.and_or(two, 0x6060_6060, nibble)
                });
                let high: [Val<U32>; 4] = std::array::from_fn(|i| {
                    let nibble = b.shr::<U32>(low_bits[i], 3);
                    let nibble = b.and_or(nibble, 0x1e1e_1e1e, 0x8080_8080);
                    let two = b.shl::<U32>(high_bits[i], 1);
                    b.and_or(two, 0x6060_6060, nibble)
                });
                // The floats are 64 + q, and the weights multiples of q - 32.
                let (low, high) = (bytes(b, low, *upper, 96.0), bytes(b, high, *upper, 96.0));
                let (low, high) = (chunk_dot(b, low, &x.low), chunk_dot(b, high, &x.high));
                let (low_scale, high_scale) = (b.mul(d, low_scale), b.mul(d, high_scale));
                let high = b.mul(high_scale, high);
                b.fma(low_scale, low, high)
            }
            Lane::Q8_0 { low, pair } => {
                let quants = b.byte_index(data, *low, 1);
                let low: [Val<U32>; 4] = b.ld_vector(quants.cast::<U32>(), kind);
                let high: [Val<U32>; 4] = b.ld_vector(quants.at(32).cast::<U32>(), kind);
                let scales = b.byte_index(plane, *pair, 1);
                let scales = b.ld(scales.cast::<U32>(), kind);
                let [low_scale, high_scale] = b.unpack::<F16>(scales).map(|scale| b.cvt::<F32, F16>(scale));
                let (low, high) = (signed_bytes(b, low), signed_bytes(b, high));
                let (low, high) = (chunk_dot(b, low, &x.low), chunk_dot(b, high, &x.high));
                let high = b.mul(high_scale, high);
                b.fma(low_scale, low, high)
            }
            Lane::Plain { first } => {
                let first = b.byte_index(data, *first, 1);
                let second = first.at(self.super_block_bytes() / 2);
                let (low, high) = (plain(b, self.ty, first, kind), plain(b, self.ty, second, kind));
                let (low, high) = (chunk_dot(b, low, &x.low), chunk_dot(b, high, &x.high));
                b.add(low, high)
            }
        }
    }
}

/// As [`bytes`] for signed bytes: `2^23 + 128 + q` is exact, and so is the subtraction that leaves `q`.
fn signed_bytes(b: &mut Builder, words: [Val<U32>; 4]) -> [Val<F32>; 16] {
    let upper = b.mov(0x4b00_0000u32);
    let words = words.map(|word| b.xor::<U32>(word, 0x8080_8080));
    std::array::from_fn(|i| {
        let float = b.prmt(words[i / 4], upper, 0x7440 | (i as u32 % 4));
        let float = b.mov_bits::<F32, U32>(float);
        b.sub(float, 8_388_736.0)
    })
}

/// Sixteen weights of a plain array, in pieces of 16 bytes; between two of them are those of the other seven lanes.
fn plain(b: &mut Builder, ty: TensorType, at: Global<U8>, kind: LoadKind) -> [Val<F32>; 16] {
    if ty == TensorType::F32 {
        let quads: [[Val<F32>; 4]; 4] = std::array::from_fn(|i| b.ld_vector(at.at(128 * i as u32).cast::<F32>(), kind));
        return std::array::from_fn(|i| quads[i / 4][i % 4]);
    }
    let words: [[Val<U32>; 4]; 2] = std::array::from_fn(|i| b.ld_vector(at.at(128 * i as u32).cast::<U32>(), kind));
    let mut weights = Vec::with_capacity(16);
    for word in words.into_iter().flatten() {
        weights.extend(halves(b, ty, word));
    }
    std::array::from_fn(|i| weights[i])
}

/// The two 16-bit floats of a word.
pub(crate) fn halves(b: &mut Builder, ty: TensorType, word: Val<U32>) -> [Val<F32>; 2] {
    if ty == TensorType::BF16 {
        let low = b.shl::<U32>(word, 16);
        let high = b.and(word, 0xffff_0000);
        return [b.mov_bits(low), b.mov_bits(high)];
    }
    b.unpack::<F16>(word).map(|half| b.cvt(half))
}

/// How a warp is laid over rows: groups of eight lanes side by side along `k`, and what is left over rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tile {
    /// Super-blocks in a row.
    row: Size,
    /// The first super-block that is staged.
    first: Size,
    /// How many are staged.
    staged: Size,
    /// Lane groups along `k`.
    split: u32,
    /// Rows that each lane works on at once, sharing its activations.
    rows_per_lane: u32,
}

impl Tile {
    /// The tile for rows of `super_blocks` super-blocks, all staged: short rows are put side by side in a warp.
    pub(crate) fn new(super_blocks: Size, rows_per_lane: u32) -> Tile {
        let split = match super_blocks {
            Size::Const(super_blocks) => lane_groups(super_blocks),
            Size::Reg(_) => 4,
        };
        Tile { row: super_blocks, first: Size::Const(0), staged: super_blocks, split, rows_per_lane }
    }

    /// The same tile where only `staged` super-blocks from `first` on are in shared memory.
    pub(crate) fn part(self, first: Size, staged: Size) -> Tile {
        Tile { first, staged, ..self }
    }

    /// Rows of a tile: what a warp works on at once.
    pub(crate) const fn rows(&self) -> u32 {
        4 / self.split * self.rows_per_lane
    }
}

/// A matrix to be multiplied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    /// Where it is.
    pub(crate) tensor: Tensor,
    /// The types it may have.
    pub(crate) types: &'a [TensorType],
    /// What loads of it may assume.
    pub(crate) kind: LoadKind,
}

/// The results of a tile as a lane sees them.
pub(crate) struct Products {
    /// The lane's rows, one for each of its sums.
    pub(crate) rows: Vec<Val<U32>>,
    /// Dot products, the same in every lane of a group.
    pub(crate) sums: Vec<Val<F32>>,
    /// Whether this lane is the one that writes its group's results.
    pub(crate) leader: Val<Pred>,
}

/// A sum whose error does not grow with the number of its terms (Kahan, <https://doi.org/10.1145/363707.363723>).
struct Sum {
    total: Var<F32>,
    /// What the last rounding of `total` has added.
    excess: Var<F32>,
}

impl Sum {
    fn add(&self, b: &mut Builder, term: Val<F32>) {
        let term = b.sub(term, self.excess);
        let next = b.add(self.total, term);
        let step = b.sub(next, self.total);
        let excess = b.sub(step, term);
        b.set(self.total, next);
        b.set(self.excess, excess);
    }
}

/// The dot products of a tile of a matrix. Those from `rows.end` on are of the row before it and must not be written.
pub(crate) fn rows(b: &mut Builder, matrix: Matrix<'_>, staged: &Staged, shape: Tile, rows: Rows) -> Products {
    let Matrix { tensor, types, kind } = matrix;
    let lane = b.lane();
    let group = b.shr(lane, 3);
    let first_super_block = b.and(group, shape.split - 1);
    let rows_before = b.shr(group, shape.split.trailing_zeros());
    let first = b.mad::<U32>(rows_before, shape.rows_per_lane, rows.first);
    let last = match rows.end {
        Size::Const(end) => Size::Const(end.saturating_sub(1)),
        Size::Reg(end) => Size::Reg(b.sub(end, 1)),
    };
    let rows: Vec<Val<U32>> = (0..shape.rows_per_lane).map(|row| b.add(first, row)).collect();
    let sums: Vec<Sum> = rows.iter().map(|_| Sum { total: b.var(0.0), excess: b.var(0.0) }).collect();
    let one_type = |b: &mut Builder, ty: TensorType| {
        let format = Format::new(b, ty, staged);
        let mut bases = Vec::new();
        let row_bytes = b.size_mul(shape.row, format.super_block_bytes());
        let plane_bytes = b.size_mul(shape.row, format.plane_bytes());
        for row in &rows {
            let row = b.min::<U32>(*row, last);
            let data = b.address(tensor.data);
            let data = b.mad_wide(row, row_bytes, data);
            let plane = b.address(tensor.plane);
            let plane = if format.plane_bytes() == 0 { plane } else { b.mad_wide(row, plane_bytes, plane) };
            let (data, plane) = (b.global_ptr::<U8>(data), b.global_ptr::<U8>(plane));
            let data = b.byte_index(data, shape.first, format.super_block_bytes());
            bases.push((data, b.byte_index(plane, shape.first, format.plane_bytes())));
        }
        b.for_range(first_super_block, shape.staged, shape.split, |b, super_block| {
            let x = format.reader.read(b, super_block);
            for ((data, plane), sum) in bases.iter().zip(&sums) {
                let data = b.byte_index(*data, super_block, format.super_block_bytes());
                let plane = match format.plane_bytes() {
                    0 => *plane,
                    bytes => b.byte_index(*plane, super_block, bytes),
                };
                let part = format.dot(b, data, plane, &x, kind);
                sum.add(b, part);
            }
        });
    };
    match types {
        [ty] => one_type(b, *ty),
        _ => {
            for ty in types {
                let is = b.setp_eq::<U32>(tensor.ty, ty.id());
                b.if_(is, |b| one_type(b, *ty));
            }
        }
    }
    let width = 8 * shape.split;
    let sums = sums
        .into_iter()
        .map(|sum| {
            let sum = b.get(sum.total);
            super::warp::sum(b, sum, width)
        })
        .collect();
    let in_group = b.and(lane, width - 1);
    Products { rows, sums, leader: b.setp_eq(in_group, 0) }
}
