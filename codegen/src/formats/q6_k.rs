//! Q6_K: `w = d * scale * (q - 32)`, six bits a weight, a signed byte as scale for every 16.
//!
//! | bytes of a super-block | what |
//! |---|---|
//! | 0..128 | low nibbles: 64 bytes for each half of the super-block |
//! | 128..192 | the upper two bits: 32 bytes for each half |
//! | 192..208 | scales, one for each chunk of 16 |
//! | plane 0..2 | `d`, f16 |
//!
//! A file's block is the same with `d` behind it, which leaves it aligned to 2 bytes only.

use super::activations::Chunks;
use super::int8::{Sums, masked_dot, of_sums};
use super::mma::{self, Two, Values, add_scaled, zeros};
use super::unpack::{bytes, chunk_dot};
use super::warpgroup::{self, Twos};
use super::{
    Activations, Columns, Dot, Format, Int8, Mma, Move, Place, Plane, Reader, Rows, ScaleGroup, SuperBlock, Warpgroup,
    Weights,
};
use crate::matrix;
use crate::ptx::{Builder, F32, S8, S32, Shared, U32, Val};

pub(super) struct Q6K;

impl Format for Q6K {
    fn repack(&self) -> &'static [Move] {
        const MOVES: &[Move] = &[
            Move { from: 0, to: 104, place: Place::Data },
            Move { from: 104, to: 105, place: Place::Plane { at: 0, stride: 0 } },
        ];
        MOVES
    }

    fn dot(&self, b: &mut Builder, x: Shared<F32>, g: Val<U32>) -> Dot {
        // Bytes 16g .. 16g + 16 of the nibbles hold chunk 8 (g / 4) + g % 4 and the chunk 4 further on.
        let half = b.shr(g, 2);
        let rest = b.and(g, 3);
        let chunks = Chunks { low: b.mad::<U32>(half, 8, rest), distance: 4, flip: 3 };
        let reader = Reader::chunks(b, x, &chunks);
        let shift = b.and(g, 2);
        let odd = b.and(g, 1);
        let qh = b.mad::<U32>(half, 2, odd);
        let (ql, qh) = (b.shl::<U32>(g, 4), b.shl::<U32>(qh, 4));
        let upper = b.mov(0x4200_0000u32);
        let part = Box::new(move |b: &mut Builder, block: &SuperBlock, x: &Activations| {
            let low_bits = block.quad(b, ql, 0);
            let high_bits = block.quad(b, qh, 128);
            let scale = b.byte_index(block.data.at(192), chunks.low, 1).cast::<S8>();
            let (low_scale, high_scale) = (b.ld(scale, block.kind), b.ld(scale.at(4), block.kind));
            let (low_scale, high_scale): (Val<F32>, Val<F32>) = (b.cvt(low_scale), b.cvt(high_scale));
            let d = block.half_of_plane(b, 0, 0);
            let high_bits = high_bits.map(|word| b.shr::<U32>(word, shift));
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
            let (low, high) = (bytes(b, low, upper, 96.0), bytes(b, high, upper, 96.0));
            let (low, high) = (chunk_dot(b, low, &x.low), chunk_dot(b, high, &x.high));
            let (low_scale, high_scale) = (b.mul(d, low_scale), b.mul(d, high_scale));
            let high = b.mul(high_scale, high);
            b.fma(low_scale, low, high)
        });
        Dot { reader, part }
    }

    fn int8(&self) -> Option<Int8> {
        Some(Int8 { group: ScaleGroup::Of256, sums: Some(Sums::Of16), dot: int8_dot, by_two: None })
    }

    fn mma(&self) -> Option<Mma> {
        Some(Mma { group: ScaleGroup::Of256, part: mma_part })
    }

    fn warpgroup(&self) -> Option<Warpgroup> {
        Some(Warpgroup { upper: warpgroup::UPPER, begin: planes, values: warpgroup_values })
    }

    fn eight(&self, b: &mut Builder, block: &SuperBlock, lane: Val<U32>) -> [Val<F32>; 8] {
        let (data, kind) = (block.data, block.kind);
        let d = block.half_of_plane(b, 0, 0);
        let chunk = b.shr(lane, 1);
        let scale = b.byte_index(data.at(192), chunk, 1);
        let scale = b.ld(scale.cast::<S8>(), kind);
        let scale = b.cvt(scale);
        let scale = b.mul(d, scale);
        // Half lane / 16; quarter lane % 16 / 4 of 32 weights each: quarters 0 and 2 share the bytes of ql, and 1 and 3;
        // qh gives each quarter two bits.
        let half = b.shr(lane, 4);
        let quarter = b.bfe::<U32>(lane, 2, 2);
        let piece = b.and(lane, 3);
        let odd = b.and(quarter, 1);
        let ql = b.byte_index(data, half, 64);
        let ql = b.byte_index(ql, odd, 32);
        let ql = b.byte_index(ql, piece, 8);
        let ql: [Val<U32>; 2] = b.ld_vector(ql.cast::<U32>(), kind);
        let qh = b.byte_index(data.at(128), half, 32);
        let qh = b.byte_index(qh, piece, 8);
        let qh: [Val<U32>; 2] = b.ld_vector(qh.cast::<U32>(), kind);
        let nibble = b.and(quarter, 2);
        let nibble = b.shl::<U32>(nibble, 1);
        let two = b.shl::<U32>(quarter, 1);
        let ql = ql.map(|word| b.shr::<U32>(word, nibble));
        let qh = qh.map(|word| b.shr::<U32>(word, two));
        std::array::from_fn(|i| {
            let byte = 8 * (i as u32 % 4);
            let low = b.bfe::<U32>(ql[i / 4], byte, 4);
            let high = b.bfe::<U32>(qh[i / 4], byte, 2);
            let quant = b.mad::<U32>(high, 16, low);
            let quant = b.cvt::<F32, U32>(quant);
            let quant = b.sub(quant, 32.0);
            b.mul(scale, quant)
        })
    }
}

/// `d * sum of scale * (q . x - 32 sum(x))`, the sum exact, times the scale of `x`.
fn int8_dot(b: &mut Builder, weights: &Weights, x: &Plane) -> Val<F32> {
    let [nibble_quads, top_quads] =
        [0..8, 8..12].map(|quads| quads.map(|quad| weights.quad(b, quad)).collect::<Vec<_>>());
    let packed = weights.quad(b, 12);
    // Nibbles in the upper halves of bytes are 16 times as large.
    let (mut low, mut high) = (b.mov::<S32>(0), b.mov::<S32>(0));
    for chunk in 0..16 {
        // Quarters 0 and 2 of a half share the bytes of its low nibbles, and 1 and 3; the upper bits give each two.
        let (half, quarter, rest) = (chunk / 8, chunk / 2 % 4, chunk % 2);
        let x = [x.quad(b, chunk as u32)];
        let nibbles = [nibble_quads[4 * half + 2 * (quarter % 2) + rest]];
        let nibbles = masked_dot(b, &nibbles, if quarter < 2 { 0x0f0f_0f0f } else { 0xf0f0_f0f0 }, &x);
        let tops = [top_quads[2 * half + rest]];
        let tops = masked_dot(b, &tops, 0x0303_0303 << (2 * quarter), &x);
        // The two bits stand for `4^quarter`, and count 16 times their nibble's unit.
        let dot = b.mad::<S32>(tops, if quarter % 2 == 0 { 16 } else { 4 }, nibbles);
        let scale = scale_of(b, &packed, chunk);
        let sum = if quarter < 2 { &mut low } else { &mut high };
        *sum = b.mad::<S32>(scale, dot, *sum);
    }
    let high = b.shr::<S32>(high, 4);
    let dots = b.add::<S32>(low, high);
    scale_dots(b, weights, x, dots, packed)
}

/// The scale of a chunk: a signed byte of `packed`.
fn scale_of(b: &mut Builder, packed: &[Val<U32>], chunk: usize) -> Val<S32> {
    let scale = b.prmt(packed[chunk / 4], 0, 0x1111 * (8 | (chunk as u32 % 4)) - 8);
    b.mov_bits::<S32, U32>(scale)
}

/// `d * (dots - 32 * sum of scale * sum(x))`, as f32, times the scale of `x`.
fn scale_dots(b: &mut Builder, weights: &Weights, x: &Plane, dots: Val<S32>, packed: [Val<U32>; 4]) -> Val<F32> {
    let sums = x.sums_of_16(b);
    let scales = packed.map(|word| b.mov_bits::<S32, U32>(word));
    let offsets = of_sums::<S32>(b, &sums, &scales);
    let dots = b.mad::<S32>(offsets, -32, dots);
    let dots: Val<F32> = b.cvt(dots);
    let d = weights.half(b);
    let sum = b.mul(d, dots);
    let scale = x.scale(b);
    b.mul(sum, scale)
}

/// The sums of [`int8_dot`], many rows and some eights of columns at once: `d * sum of scale * ((q - 32) . x)`.
fn mma_part(b: &mut Builder, rows: &[Rows], columns: &Columns<'_>) -> Vec<Values> {
    let (mut dots, none) = zeros(b, rows, columns);
    let mut half = Vec::new();
    columns.each_two(b, |b, two| {
        if !matches!(two, Two::Known(number) if number % 2 == 1) {
            half = rows.iter().map(|rows| Half::load(b, rows, two)).collect();
        }
        let pair = match two {
            Two::Known(number) => number % 2,
            Two::Counted(_) => 0,
        };
        let quants: Vec<_> =
            half.iter().map(|half| [0, 1].map(|at| quarter(b, &half.bits, 2 * pair as u32 + at))).collect();
        for eight in 0..columns.len() {
            let x = columns.fragments(b, eight, two);
            for at in 0..4 {
                // Of two blocks the first half, then the second.
                let (block, rest) = (at / 2, at % 2);
                let chunk = 4 * pair + at;
                for ((half, quants), dots) in half.iter().zip(&quants).zip(&mut dots) {
                    let a = [quants[block][2 * rest], quants[block][2 * rest + 1]];
                    let dot = matrix::bytes_k16::<S32>(b, a, x[block][rest], none);
                    let scales = half.scales.map(|words| scale_of(b, &words, chunk));
                    add_scaled(b, &mut dots[eight], scales, dot);
                }
            }
        }
    });
    let dots = mma::values(b, &dots);
    // The bytes are four times as large.
    let d: Vec<_> = rows.iter().map(|rows| rows.half(b).map(|d| b.mul(d, 0.25))).collect();
    let mut values = vec![Vec::new(); rows.len()];
    for eight in 0..columns.len() {
        let scales = columns.scales(b, eight);
        for ((values, d), dots) in values.iter_mut().zip(&d).zip(&dots) {
            values.push(scaled(b, *d, dots[eight], scales));
        }
    }
    values.concat()
}

/// `d * dot * scale of x`.
fn scaled(b: &mut Builder, d: [Val<F32>; 2], dots: mma::Sums, scales: [Val<F32>; 2]) -> Values {
    std::array::from_fn(|i| {
        let dots: Val<F32> = b.cvt(dots[i]);
        let sum = b.mul(d[i / 2], dots);
        b.mul(sum, scales[i % 2])
    })
}

/// Half a super-block of 16 rows: low bits of two quarters and of the other two above them, the upper bits of all four, and
/// the scales. Where twos are counted the second two stand where the first do.
struct Half {
    bits: [[Val<U32>; 4]; 3],
    scales: [[Val<U32>; 2]; 2],
}

impl Half {
    /// The one that these blocks begin, or are in.
    fn load(b: &mut Builder, rows: &Rows, two: Two) -> Half {
        match two {
            Two::Known(number) => {
                let half = number as u32 / 2;
                let scales = rows.pairs(b, 192 + 8 * half);
                let bits = [64 * half, 64 * half + 32, 128 + 32 * half].map(|at| rows.fragment(b, at));
                Half { bits, scales }
            }
            Two::Counted(number) => {
                let [half, odd] = [b.shr::<U32>(number, 1), b.and::<U32>(number, 1)];
                let shift = b.shl::<U32>(odd, 2);
                let of_half = Two::Counted(half);
                let bits = [(0, 64), (32, 64), (128, 32)].map(|(at, apart)| {
                    let words = rows.fragment_of(b, at, of_half.times(apart));
                    words.map(|word| b.shr::<U32>(word, shift))
                });
                let scales = rows.word_of(b, 192, two.times(4));
                Half { bits, scales: scales.map(|word| [word, word]) }
            }
        }
    }
}

/// Four times `q - 32`, signed bytes, of a quarter of a half super-block: from the low nibbles of two quarters, and of the
/// other two above them, and the upper bits of all four.
fn quarter(b: &mut Builder, bits: &[[Val<U32>; 4]; 3], quarter: u32) -> [Val<U32>; 4] {
    std::array::from_fn(|i| {
        // The two bits stand at `2 * quarter`, and go to the top.
        let top = if quarter == 3 { bits[2][i] } else { b.shl::<U32>(bits[2][i], 6 - 2 * quarter) };
        let top = b.lop3(top, 0xc0c0_c0c0, 0x8080_8080, (0xf0 & 0xcc) ^ 0xaa);
        let word = bits[quarter as usize % 2][i];
        let nibble = if quarter < 2 { b.shl::<U32>(word, 2) } else { b.shr::<U32>(word, 2) };
        b.and_or(nibble, 0x3c3c_3c3c, top)
    })
}

/// Weights times scales, cut into bytes.
fn planes(b: &mut Builder, rows: &Rows) -> Twos {
    let (half, block) = warpgroup::own(b);
    let rows = rows.clone();
    Box::new(move |b, two| {
        let (lane, two) = (b.lane(), two as u32);
        let (own, bits) = (b.and::<U32>(lane, 3), b.shl::<U32>(block, 1));
        let (low, top) = (rows.pieces(b, 64 * (two / 2), own), rows.pieces(b, 128 + 32 * (two / 2), half));
        let quants: [[Val<U32>; 4]; 2] = std::array::from_fn(|row| {
            std::array::from_fn(|i| {
                let nibble = if two % 2 == 0 { low[row][i] } else { b.shr::<U32>(low[row][i], 4) };
                let nibble = b.and::<U32>(nibble, 0x0f0f_0f0f);
                // Of the first quarter's two bits, or the third's, and then the next one's.
                let top = b.shr::<U32>(top[row][i], bits);
                let top = if two % 2 == 0 { b.shl::<U32>(top, 4) } else { top };
                b.and_or(top, 0x3030_3030, nibble)
            })
        });
        let bytes = b.mad::<U32>(own, 0x1111, 0x8880);
        let scales = rows.word_of(b, 192 + 4 * two, mma::Place::Known(0)).map(|word| b.prmt(word, 0, bytes));
        let addends = scales.map(|scale| b.mad::<U32>(scale, (-32 * 0x0001_0001i32) as u32, warpgroup::RAISED));
        Box::new(move |b, step| {
            warpgroup::fragments(b, &quants, step, |b, row, word| warpgroup::cut(b, word, scales[row], addends[row]))
        })
    })
}

/// A super-block's values: the floats of [`mma_part`].
fn warpgroup_values(b: &mut Builder, rows: &Rows, columns: &Columns<'_>, dots: &warpgroup::Dots<'_>) -> Vec<Values> {
    let d = rows.half(b);
    warpgroup::in_steps(
        b,
        columns.len(),
        |b, eight| columns.scales(b, eight),
        |_, _, _| (),
        |b, eight, scales, ()| {
            let dots = dots(b, eight);
            scaled(b, d, dots, *scales)
        },
    )
}
