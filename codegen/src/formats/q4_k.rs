//! Q4_K: `w = d * scale * q - dmin * min`, four bits a weight, scales and mins of six bits for every 32.
//!
//! | bytes of a super-block | what |
//! |---|---|
//! | 0..2, 2..4 | `d` and `dmin`, f16 |
//! | 4..16 | scales and mins of eight sub-blocks, packed |
//! | 16..144 | nibbles: chunk `2j` and, above it, the chunk 2 further on, 32 bytes for each two sub-blocks |
//!
//! Files have the same layout. Nibbles become floats without a conversion: in a half word they are the subnormal
//! `q * 2^-24` of f16, which is exact in f32.

use super::activations::Chunks;
use super::int8::{Sums, add_times_byte, masked_dot, of_sums};
use super::mma::{self, Mins, Two, Values, add_scaled, byte, zeros};
use super::unpack::chunk_dot;
use super::warpgroup::{self, Twos};
use super::{Columns, Dot, Format, Int8, Mma, Plane, Reader, Rows, ScaleGroup, SuperBlock, Warpgroup, Weights};
use crate::matrix;
use crate::ptx::{Builder, F16, F32, S32, Shared, U32, Val};

pub(super) struct Q4K;

/// Where the scales and mins of a lane's two sub-blocks stand in the packed twelve bytes.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    select: Val<U32>,
    shift: Val<U32>,
    high_bits: Val<U32>,
    low_bits: Val<U32>,
}

impl Scales {
    /// Lane `g` has sub-blocks 2c and 2c + 1 (c: g / 2): their scales and mins are two neighbouring bytes each.
    pub(super) fn new(b: &mut Builder, g: Val<U32>) -> Scales {
        let odd = b.and(g, 2);
        let odd = b.setp_ne(odd, 0);
        let select = b.selp::<U32>(0x7632, 0x5410, odd);
        let upper_half = b.setp_ge(g, 4);
        Scales {
            select,
            shift: b.selp::<U32>(2, 0, upper_half),
            high_bits: b.selp::<U32>(0x3030_3030, 0x3f3f_3f3f, upper_half),
            low_bits: b.selp::<U32>(0x0f0f_0f0f, 0, upper_half),
        }
    }

    /// `d * scale` of the low and the high sub-block, and `-dmin * min` of both, all of them exact. `units` are what the
    /// quants are multiples of, for the low ones and the high ones.
    pub(super) fn read(
        self,
        b: &mut Builder,
        header: [Val<U32>; 4],
        units: [f32; 2],
    ) -> ([Val<F32>; 2], [Val<F32>; 2]) {
        // Scales of the low and the high chunk, then their mins, a byte each.
        let six = b.prmt(header[1], header[2], self.select);
        let nibbles = b.shr::<U32>(header[3], 4);
        let four = b.prmt(header[3], nibbles, self.select);
        let six = b.shr(six, self.shift);
        let four = b.and::<U32>(four, self.low_bits);
        let scales = b.and_or(six, self.high_bits, four);
        let mut byte = |i: u32| {
            let byte = if i == 3 { b.shr(scales, 24) } else { b.bfe::<U32>(scales, 8 * i, 8) };
            b.cvt::<F32, U32>(byte)
        };
        let [low_scale, high_scale, low_min, high_min] = [byte(0), byte(1), byte(2), byte(3)];
        let [d, dmin] = b.unpack::<F16>(header[0]);
        let (d, dmin) = (b.cvt(d), b.cvt::<F32, F16>(dmin));
        let (low_d, high_d) = (b.mul(d, 1.0 / units[0]), b.mul(d, 1.0 / units[1]));
        let (low_scale, high_scale) = (b.mul(low_d, low_scale), b.mul(high_d, high_scale));
        let dmin = b.neg(dmin);
        let (low_min, high_min) = (b.mul(dmin, low_min), b.mul(dmin, high_min));
        ([low_scale, high_scale], [low_min, high_min])
    }
}

/// Two chunks for each lane: bytes `16g .. 16g + 16` of the nibbles hold chunk `4 (g / 2) + g % 2` in their low halves and
/// the chunk 2 further on in their high ones.
pub(super) fn chunks(b: &mut Builder, g: Val<U32>) -> Chunks {
    let pair = b.shr(g, 1);
    let odd = b.and(g, 1);
    Chunks { low: b.mad::<U32>(pair, 4, odd), distance: 2, flip: 1 }
}

impl Format for Q4K {
    fn dot(&self, b: &mut Builder, x: Shared<F32>, g: Val<U32>) -> Dot {
        let chunks = chunks(b, g);
        let reader = Reader::chunks(b, x, &chunks);
        let scales = Scales::new(b, g);
        let quants_at = b.shl::<U32>(g, 4);
        let part = Box::new(move |b: &mut Builder, block: &SuperBlock, x: &super::Activations| {
            let header: [Val<U32>; 4] = b.ld_vector(block.data.cast::<U32>(), block.kind);
            let quants = block.quad(b, quants_at, 16);
            // Nibbles are 2^-24 times their number where they stand lowest in a half word, and 2^-20 times above.
            let units = [1.0 / (1 << 24) as f32, 1.0 / (1 << 20) as f32];
            let (scale, min) = scales.read(b, header, units);
            // `scale * q` is exact: a weight is rounded once.
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
            let low = weights(0x000f_000f, scale[0], min[0]);
            let high = weights(0x00f0_00f0, scale[1], min[1]);
            let (low, high) = (chunk_dot(b, low, &x.low), chunk_dot(b, high, &x.high));
            b.add(low, high)
        });
        Dot { reader, part }
    }

    fn int8(&self) -> Option<Int8> {
        Some(Int8 { group: ScaleGroup::Of256, sums: Some(Sums::Of32), dot: int8_dot, by_two: None })
    }

    fn mma(&self) -> Option<Mma> {
        Some(Mma { group: ScaleGroup::Of256, part: mma_part })
    }

    fn warpgroup(&self) -> Option<Warpgroup> {
        Some(Warpgroup { upper: 8, begin: digits, values: warpgroup_values })
    }

    fn eight(&self, b: &mut Builder, block: &SuperBlock, lane: Val<U32>) -> [Val<F32>; 8] {
        let (scale, min) = scale_and_min(b, block, lane);
        // Piece lane / 8 of 64 weights: bytes (lane % 4) * 8 on, low nibbles for its first half, then high ones.
        let chunk = b.shr(lane, 3);
        let piece = b.and(lane, 3);
        let from = b.byte_index(block.data.at(16), chunk, 32);
        let from = b.byte_index(from, piece, 8);
        let words: [Val<U32>; 2] = b.ld_vector(from.cast::<U32>(), block.kind);
        let second = b.and(lane, 4);
        let words = words.map(|word| b.shr::<U32>(word, second));
        std::array::from_fn(|i| {
            let quant = b.bfe::<U32>(words[i / 4], 8 * (i as u32 % 4), 4);
            let quant = b.cvt::<F32, U32>(quant);
            b.fma(scale, quant, min)
        })
    }
}

/// `d * scale` and `-dmin * min` of sub-block `lane / 4`.
pub(super) fn scale_and_min(b: &mut Builder, block: &SuperBlock, lane: Val<U32>) -> (Val<F32>, Val<F32>) {
    let (data, kind) = (block.data, block.kind);
    let header = b.ld(data.cast::<U32>(), kind);
    let [d, dmin] = b.unpack::<F16>(header).map(|half| b.cvt::<F32, F16>(half));
    // Sub-block j has its scale and min in bytes j and j + 4, or (from 4 on) in pieces.
    let j = b.shr(lane, 2);
    let upper = b.setp_ge(j, 4);
    let scales = b.byte_index(data.at(4), j, 1);
    let (own, next) = (b.ld(scales, kind), b.ld(scales.at(4), kind));
    let back = b.selp::<U32>(4, 0, upper);
    let back = b.sub(j, back);
    let before = b.byte_index(data.at(4), back, 1);
    let before = b.ld(before, kind);
    let low = (b.and(own, 63), b.and(next, 63));
    let (scale_top, min_top) = (b.shr::<U32>(before, 2), b.shr::<U32>(own, 2));
    let (scale_low, min_low) = (b.and(next, 15), b.shr::<U32>(next, 4));
    let scale = b.and_or(scale_top, 0x30, scale_low);
    let min = b.and_or(min_top, 0x30, min_low);
    let scale = b.selp::<U32>(scale, low.0, upper);
    let min = b.selp::<U32>(min, low.1, upper);
    let (scale, min): (Val<F32>, Val<F32>) = (b.cvt(scale), b.cvt(min));
    let (scale, min) = (b.mul(d, scale), b.mul(dmin, min));
    (scale, b.neg(min))
}

/// `d * sum of scale * (q . x) - dmin * sum of min * sum(x)`, both sums exact, times the scale of `x`.
fn int8_dot(b: &mut Builder, weights: &Weights, x: &Plane) -> Val<F32> {
    let header = weights.quad(b, 0);
    let [scales, mins] = packed_scales(b, header);
    // Nibbles in the upper halves of bytes are 16 times as large.
    let [mut low, mut high] = [(); 2].map(|()| b.mov::<S32>(0));
    for chunk in 0..4 {
        let quants = [weights.quad(b, 1 + 2 * chunk), weights.quad(b, 2 + 2 * chunk)];
        let first = 4 * chunk as u32;
        let of_low = [x.quad(b, first), x.quad(b, first + 1)];
        let dot = masked_dot(b, &quants, 0x0f0f_0f0f, &of_low);
        low = add_times_byte(b, scales, 2 * chunk, dot, low);
        let of_high = [x.quad(b, first + 2), x.quad(b, first + 3)];
        let dot = masked_dot(b, &quants, 0xf0f0_f0f0, &of_high);
        high = add_times_byte(b, scales, 2 * chunk + 1, dot, high);
    }
    let high = b.shr::<S32>(high, 4);
    let dots = b.add::<S32>(low, high);
    scale_and_subtract(b, header[0], x, dots, mins)
}

/// The eight scales and the eight mins of six bits, a byte each.
pub(super) fn packed_scales(b: &mut Builder, header: [Val<U32>; 4]) -> [[Val<U32>; 2]; 2] {
    let [_, first, second, last] = header;
    let nibbles = b.shr::<U32>(last, 4);
    [(first, last), (second, nibbles)].map(|(six, four)| eight_of_six(b, six, four))
}

/// Eight numbers of six bits, a byte each: `six` has four of them and the top bits of the others, `four` the rest of these.
fn eight_of_six(b: &mut Builder, six: Val<U32>, four: Val<U32>) -> [Val<U32>; 2] {
    let low = b.and::<U32>(six, 0x3f3f_3f3f);
    let top = b.shr::<U32>(six, 2);
    let top = b.and::<U32>(top, 0x3030_3030);
    [low, b.and_or(four, 0x0f0f_0f0f, top)]
}

/// `(d * dots - dmin * sum of min * sum(x)) * scale of x`, as f32.
pub(super) fn scale_and_subtract(
    b: &mut Builder,
    d_and_dmin: Val<U32>,
    x: &Plane,
    dots: Val<S32>,
    mins: [Val<U32>; 2],
) -> Val<F32> {
    let sums = x.sums_of_32(b);
    let offsets = of_sums::<U32>(b, &sums, &mins);
    let [d, dmin] = b.unpack::<F16>(d_and_dmin).map(|half| b.cvt::<F32, F16>(half));
    let (dots, offsets): (Val<F32>, Val<F32>) = (b.cvt(dots), b.cvt(offsets));
    let offsets = b.mul(dmin, offsets);
    let offsets = b.neg(offsets);
    let sum = b.fma(d, dots, offsets);
    let scale = x.scale(b);
    b.mul(sum, scale)
}

/// The sums of [`int8_dot`], many rows and some eights of columns at once.
fn mma_part(b: &mut Builder, rows: &[Rows], columns: &Columns<'_>) -> Vec<Values> {
    let (mins, scales): (Vec<_>, Vec<_>) = rows.iter().map(|rows| scales_and_mins(b, rows)).unzip();
    // Nibbles in the upper halves of bytes are 16 times as large, and so are here the scales of the others: 16 times the
    // sum fits 30 bits.
    let larger: Vec<_> = scales
        .iter()
        .map(|scales| {
            scales.map(|words| {
                words.map(|word| {
                    let even = b.and::<U32>(word, 0x00ff_00ff);
                    b.shl::<U32>(even, 4)
                })
            })
        })
        .collect();
    let (mut dots, none) = zeros(b, rows, columns);
    columns.each_two(b, |b, two| {
        let halves: Vec<_> = rows
            .iter()
            .zip(scales.iter().zip(&larger))
            .map(|(rows, (scales, larger))| {
                let quants = rows.fragment_of(b, 16, two.times(32));
                let low = quants.map(|word| b.and::<U32>(word, 0x0f0f_0f0f));
                let high = quants.map(|word| b.and::<U32>(word, 0xf0f0_f0f0));
                let scales = match two {
                    Two::Known(chunk) => {
                        let low = larger.map(|words| {
                            let two = b.prmt(words[chunk / 2], 0, if chunk % 2 == 0 { 0x4410u32 } else { 0x4432 });
                            b.mov_bits::<S32, U32>(two)
                        });
                        [low, scales.map(|scales| byte(b, scales, 2 * chunk + 1))]
                    }
                    Two::Counted(number) => {
                        let two = scales.map(|scales| mma::two_bytes(b, scales, number));
                        let low = two.map(|[low, _]| b.shl::<S32>(low, 4));
                        [low, two.map(|[_, high]| high)]
                    }
                };
                [(low, scales[0]), (high, scales[1])]
            })
            .collect();
        multiply(b, columns, two, &halves, &mut dots, none);
    });
    let dots = mma::values(b, &dots);
    mma::scale_and_subtract(b, columns, &mins, (&dots, 16.0))
}

/// Two blocks' quants and scales of each 16 rows.
pub(super) type OfTwo = [([Val<U32>; 4], [Val<S32>; 2]); 2];

/// Adds the products of two blocks with all columns.
pub(super) fn multiply(
    b: &mut Builder,
    columns: &Columns<'_>,
    two: Two,
    blocks: &[OfTwo],
    dots: &mut [Vec<mma::Growing<S32>>],
    none: mma::Sums,
) {
    for eight in 0..columns.len() {
        let x = columns.fragments(b, eight, two);
        for (block, x) in x.into_iter().enumerate() {
            for (blocks, dots) in blocks.iter().zip(dots.iter_mut()) {
                let (quants, scales) = blocks[block];
                let dot = matrix::bytes_k32::<U32>(b, quants, x, none);
                add_scaled(b, &mut dots[eight], scales, dot);
            }
        }
    }
}

/// What of a lane's two rows is neither scales nor quants; and the eight scales of both.
pub(super) fn scales_and_mins(b: &mut Builder, rows: &Rows) -> (Mins, [[Val<U32>; 2]; 2]) {
    let headers = rows.quads(b, 0);
    let [first, second] = headers.map(|header| packed_scales(b, header));
    let mins = Mins { d_and_dmin: headers.map(|header| header[0]), mins: [first[1], second[1]] };
    (mins, [first[0], second[0]])
}

/// A lane's half and its block of two, and of each row the scales of the lane's blocks: in the first and third byte of two words.
pub(super) fn scales_of_lane(b: &mut Builder, rows: &Rows) -> (Val<U32>, Val<U32>, [[Val<U32>; 2]; 2]) {
    let (half, block) = warpgroup::own(b);
    let bits = b.shl::<U32>(block, 3);
    // Of the header only the words that have scales.
    let [first, last] = [4, 12].map(|at| rows.word_of(b, at, mma::Place::Known(0)));
    let scales = [0, 1].map(|row| eight_of_six(b, first[row], last[row]).map(|word| b.shr::<U32>(word, bits)));
    (half, block, scales)
}

/// The scales of six bits as two digits of three: a nibble times either fits seven bits, four of them are one product.
fn digits(b: &mut Builder, rows: &Rows) -> Twos {
    let (half, block, scales) = scales_of_lane(b, rows);
    let rows = rows.clone();
    Box::new(move |b, two| {
        let shift = b.shl::<U32>(block, 2);
        let quants = rows.pieces(b, 16 + 32 * two as u32, half);
        let quants = quants.map(|words| {
            words.map(|word| {
                let word = b.shr::<U32>(word, shift);
                b.and::<U32>(word, 0x0f0f_0f0f)
            })
        });
        let at = 16 * (two as u32 % 2);
        let digits = scales.map(|words| [at, at + 3].map(|at| b.bfe::<U32>(words[two / 2], at, 3)));
        Box::new(move |b, step| {
            warpgroup::fragments(b, &quants, step, |b, row, word| digits[row].map(|digit| b.mul::<U32>(word, digit)))
        })
    })
}

/// A super-block's values: the floats of [`mma::scale_and_subtract`].
pub(super) fn warpgroup_values(
    b: &mut Builder,
    rows: &Rows,
    columns: &Columns<'_>,
    dots: &warpgroup::Dots<'_>,
) -> Vec<Values> {
    let (mins, _) = scales_and_mins(b, rows);
    let (units, a) = mins.units(b, 1.0);
    let none = b.mov::<F32>(0.0);
    warpgroup::in_steps(
        b,
        columns.len(),
        |b, eight| (columns.scales(b, eight), columns.sums(b, eight)),
        |b, _, (_, sums)| matrix::halves_k16(b, a, *sums, [none; 4]),
        |b, eight, (scales, _), offsets| {
            let dots = dots(b, eight);
            std::array::from_fn(|i| mma::value(b, units[i / 2], (dots[i], offsets[i]), scales[i % 2]))
        },
    )
}
