//! Dot products of rows of weights with the staged vector, in f32.
//!
//! Eight lanes share a super-block of 256 weights; each takes two chunks of 16, a low and a high one, whose weights lie
//! together in its format's 16-byte pieces. Where a format packs small unsigned numbers, no conversion happens: a byte
//! `0x80 | q << s` under a constant upper byte *is* the float `2^e + q` (`prmt` puts it there, one instruction a weight),
//! and the sum over a chunk starts at `-2^e * sum(x)`, which `stage` keeps ready.

use super::matvec::Rows;
use super::stage::{CHUNKS, SUPER_BLOCK, Staged, swizzle, swizzle_of};
use super::tensor::Tensor;
use crate::ptx::{Builder, F16, F32, Global, LoadKind, Pred, Shared, Size, U8, U32, Val, Var};
use kiln_shape::TensorType;
use kiln_shape::table::lane_groups;

/// The activations a lane works with in one super-block.
struct Activations {
    low: [Val<F32>; 16],
    high: [Val<F32>; 16],
    /// `-16 * sum(low)`.
    low_sum: Val<F32>,
    /// `-16 * sum(high)`.
    high_sum: Val<F32>,
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
    sums: Shared<F32>,
    /// From the low chunk to the high one.
    distance: u32,
}

impl Reader {
    /// Both chunks whole.
    fn chunks(b: &mut Builder, staged: &Staged, chunks: &Chunks) -> Reader {
        let order = std::array::from_fn(|n| match n {
            0..4 => (n, 0),
            _ => ((n - 4) ^ chunks.flip as usize, chunks.distance * 16),
        });
        let swizzle = swizzle(b, chunks.low);
        Reader::new(b, staged, chunks.low, swizzle, order, chunks.distance)
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
        Reader::new(b, staged, chunk, quad, order, 0)
    }

    fn new(
        b: &mut Builder,
        staged: &Staged,
        chunk: Val<U32>,
        quad: Val<U32>,
        order: [(usize, u32); 8],
        distance: u32,
    ) -> Reader {
        let x = b.byte_index(staged.x, chunk, 64);
        let quads = std::array::from_fn(|k| {
            let quad = b.xor(quad, k as u32);
            b.byte_index(x, quad, 16)
        });
        Reader { quads, order, sums: b.byte_index(staged.sums, chunk, 4), distance }
    }

    fn read(&self, b: &mut Builder, super_block: Val<U32>) -> Activations {
        let at = self.quads.map(|quad| b.byte_index(quad, super_block, SUPER_BLOCK * 4));
        let sums = b.byte_index(self.sums, super_block, CHUNKS * 4);
        let quads: [[Val<F32>; 4]; 8] =
            self.order.map(|(k, further)| b.ld_vector(at[k].at(further), LoadKind::Ordinary));
        let half = |h: usize| std::array::from_fn(|i| quads[4 * h + i / 4][i % 4]);
        let (low_sum, high_sum) = (b.ld(sums, LoadKind::Ordinary), b.ld(sums.at(self.distance), LoadKind::Ordinary));
        Activations { low: half(0), high: half(1), low_sum, high_sum }
    }
}

/// `start + sum over i of float(byte i of words) * x[i]`, where a byte under `upper` (the float's highest byte) is a
/// whole float.
fn bytes_dot(b: &mut Builder, start: Val<F32>, words: [Val<U32>; 4], upper: Val<U32>, x: &[Val<F32>; 16]) -> Val<F32> {
    let mut sum = start;
    for (i, x) in x.iter().enumerate() {
        // Bytes of the result, lowest first: 0, 0, byte i % 4 of the word, the constant.
        let float = b.prmt(words[i / 4], upper, 0x7044 | ((i as u32 % 4) << 8));
        let float = b.mov_bits::<F32, U32>(float);
        sum = b.fma(float, *x, sum);
    }
    sum
}

/// What a lane needs to know once, per format.
enum Lane {
    Q4K {
        select: Val<U32>,
        shift: Val<U32>,
        high_bits: Val<U32>,
        low_bits: Val<U32>,
        quants: Val<U32>,
        upper: Val<U32>,
    },
    Q6K {
        shift: Val<U32>,
        ql: Val<U32>,
        qh: Val<U32>,
        scale: Val<U32>,
        upper: Val<U32>,
    },
    Q8_0 {
        low: Val<U32>,
        pair: Val<U32>,
    },
    Plain {
        first: Val<U32>,
    },
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
                    upper: b.mov(0x4100_0000u32),
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

    /// `sum` plus this lane's part of a super-block.
    fn accumulate(
        &self,
        b: &mut Builder,
        sum: Var<F32>,
        data: Global<U8>,
        plane: Global<U8>,
        x: &Activations,
        kind: LoadKind,
    ) -> Val<F32> {
        match &self.lane {
            Lane::Q4K { select, shift, high_bits, low_bits, quants, upper } => {
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
                // The sums are -16 times: the mins' sign is in them already.
                let dmin = b.mul(dmin, 1.0 / 16.0);
                let low = quants.map(|word| {
                    let word = b.shl::<U32>(word, 3);
                    b.and_or(word, 0x7878_7878, 0x8080_8080)
                });
                let high = quants.map(|word| {
                    let word = b.shr::<U32>(word, 1);
                    b.and_or(word, 0x7878_7878, 0x8080_8080)
                });
                let low = bytes_dot(b, x.low_sum, low, *upper, &x.low);
                let high = bytes_dot(b, x.high_sum, high, *upper, &x.high);
                let (low_scale, high_scale) = (b.mul(d, low_scale), b.mul(d, high_scale));
                let (low_min, high_min) = (b.mul(dmin, low_min), b.mul(dmin, high_min));
                let sum = b.fma(low_scale, low, sum);
                let sum = b.fma(low_min, x.low_sum, sum);
                let sum = b.fma(high_scale, high, sum);
                b.fma(high_min, x.high_sum, sum)
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
                // The floats are 64 + q and the weights q - 32: 96 = 6 * 16 times the sum goes off.
                let (low_start, high_start) = (b.mul(x.low_sum, 6.0), b.mul(x.high_sum, 6.0));
                let low = bytes_dot(b, low_start, low, *upper, &x.low);
                let high = bytes_dot(b, high_start, high, *upper, &x.high);
                let (low_scale, high_scale) = (b.mul(d, low_scale), b.mul(d, high_scale));
                let sum = b.fma(low_scale, low, sum);
                b.fma(high_scale, high, sum)
            }
            Lane::Q8_0 { low, pair } => {
                let quants = b.byte_index(data, *low, 1);
                let low: [Val<U32>; 4] = b.ld_vector(quants.cast::<U32>(), kind);
                let high: [Val<U32>; 4] = b.ld_vector(quants.at(32).cast::<U32>(), kind);
                let scales = b.byte_index(plane, *pair, 1);
                let scales = b.ld(scales.cast::<U32>(), kind);
                let [low_scale, high_scale] = b.unpack::<F16>(scales).map(|scale| b.cvt::<F32, F16>(scale));
                let low = signed_bytes_dot(b, low, &x.low);
                let high = signed_bytes_dot(b, high, &x.high);
                let sum = b.fma(low_scale, low, sum);
                b.fma(high_scale, high, sum)
            }
            Lane::Plain { first } => {
                let first = b.byte_index(data, *first, 1);
                let second = first.at(self.super_block_bytes() / 2);
                let mut sum = b.get(sum);
                for (at, x) in [(first, &x.low), (second, &x.high)] {
                    let weights = plain(b, self.ty, at, kind);
                    for (weight, x) in weights.into_iter().zip(x) {
                        sum = b.fma(weight, *x, sum);
                    }
                }
                sum
            }
        }
    }
}

/// As [`bytes_dot`] for signed bytes: `2^23 + 128 + q` is exact, and so is the subtraction that leaves `q`.
fn signed_bytes_dot(b: &mut Builder, words: [Val<U32>; 4], x: &[Val<F32>; 16]) -> Val<F32> {
    let upper = b.mov(0x4b00_0000u32);
    let words = words.map(|word| b.xor::<U32>(word, 0x8080_8080));
    let mut sum = b.mov(0.0);
    for (i, x) in x.iter().enumerate() {
        let float = b.prmt(words[i / 4], upper, 0x7440 | (i as u32 % 4));
        let float = b.mov_bits::<F32, U32>(float);
        let weight = b.sub(float, 8_388_736.0);
        sum = b.fma(weight, *x, sum);
    }
    sum
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
    let sums: Vec<Var<F32>> = rows.iter().map(|_| b.var(0.0)).collect();
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
                let next = format.accumulate(b, *sum, data, plane, &x, kind);
                b.set(*sum, next);
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
            let sum = b.get(sum);
            super::warp::sum(b, sum, width)
        })
        .collect();
    let in_group = b.and(lane, width - 1);
    Products { rows, sums, leader: b.setp_eq(in_group, 0) }
}
