//! Q5_K: `w = d * scale * q - dmin * min`, five bits a weight, scales and mins of six bits for every 32.
//!
//! | bytes of a super-block | what |
//! |---|---|
//! | 0..2, 2..4 | `d` and `dmin`, f16 |
//! | 4..16 | scales and mins of eight sub-blocks, packed as in Q4_K |
//! | 16..48 | fifth bits: bit `j` of byte `l` is that of weight `l` of sub-block `j` |
//! | 48..176 | nibbles as in Q4_K |
//!
//! Files have the same layout.

use super::int8::{Sums, add_times_byte, masked_dot};
use super::mma::{self, Two, Values, byte, nibbles, zeros};
use super::q4_k::{self, Scales, chunks, packed_scales, scale_and_min, scale_and_subtract, scales_and_mins};
use super::unpack::chunk_dot;
use super::warpgroup::{self, Twos};
use super::{
    Activations, Columns, Dot, Format, Int8, Mma, Plane, Reader, Rows, ScaleGroup, SuperBlock, Warpgroup, Weights,
};
use crate::ptx::{Builder, F16, F32, S32, Shared, U32, Val};

pub(super) struct Q5K;

impl Format for Q5K {
    fn dot(&self, b: &mut Builder, x: Shared<F32>, g: Val<U32>) -> Dot {
        let chunks = chunks(b, g);
        let reader = Reader::chunks(b, x, &chunks);
        let scales = Scales::new(b, g);
        let quants_at = b.shl::<U32>(g, 4);
        // Sub-blocks 2c and 2c + 1, and the half of each that the lane has.
        let sub_block = b.and(g, 6);
        let half = b.and(g, 1);
        let fifth_at = b.shl::<U32>(half, 4);
        let part = Box::new(move |b: &mut Builder, block: &SuperBlock, x: &Activations| {
            let header: [Val<U32>; 4] = b.ld_vector(block.data.cast::<U32>(), block.kind);
            let fifth = block.quad(b, fifth_at, 16).map(|word| b.shr::<U32>(word, sub_block));
            let quants = block.quad(b, quants_at, 48);
            // In a half word an integer is as many times 2^-24, as a subnormal of f16.
            let unit = 1.0 / (1 << 24) as f32;
            let (scale, min) = scales.read(b, header, [unit, unit]);
            // `scale * q` is exact: a weight is rounded once.
            let mut weights = |high: bool| -> [Val<F32>; 16] {
                let pairs: [[[Val<F16>; 2]; 2]; 4] = std::array::from_fn(|i| {
                    let nibbles = if high { b.shr::<U32>(quants[i], 4) } else { quants[i] };
                    let nibbles = b.and(nibbles, 0x0f0f_0f0f);
                    let top = b.shl::<U32>(fifth[i], if high { 3 } else { 4 });
                    let even = b.and_or(top, 0x1010_1010, nibbles);
                    let odd = b.shr::<U32>(even, 8);
                    [even, odd].map(|word| {
                        let pair = b.and(word, 0x00ff_00ff);
                        b.unpack::<F16>(pair)
                    })
                });
                let (scale, min) = (scale[usize::from(high)], min[usize::from(high)]);
                std::array::from_fn(|i| {
                    let quant = b.cvt::<F32, F16>(pairs[i / 4][i % 2][i / 2 % 2]);
                    b.fma(scale, quant, min)
                })
            };
            let (low, high) = (weights(false), weights(true));
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
        Some(Warpgroup { upper: warpgroup::UPPER, begin: planes, values: q4_k::warpgroup_values })
    }

    fn eight(&self, b: &mut Builder, block: &SuperBlock, lane: Val<U32>) -> [Val<F32>; 8] {
        let (scale, min) = scale_and_min(b, block, lane);
        let (pair, piece, sub_block) = (b.shr(lane, 3), b.and(lane, 3), b.shr::<U32>(lane, 2));
        let from = b.byte_index(block.data.at(48), pair, 32);
        let from = b.byte_index(from, piece, 8);
        let words: [Val<U32>; 2] = b.ld_vector(from.cast::<U32>(), block.kind);
        let fifth = b.byte_index(block.data.at(16), piece, 8);
        let fifth: [Val<U32>; 2] = b.ld_vector(fifth.cast::<U32>(), block.kind);
        let high = b.and(lane, 4);
        let words = words.map(|word| b.shr::<U32>(word, high));
        let fifth = fifth.map(|word| b.shr::<U32>(word, sub_block));
        std::array::from_fn(|i| {
            let at = 8 * (i as u32 % 4);
            let low = b.bfe::<U32>(words[i / 4], at, 4);
            let top = b.bfe::<U32>(fifth[i / 4], at, 1);
            let quant = b.mad::<U32>(top, 16, low);
            let quant = b.cvt::<F32, U32>(quant);
            b.fma(scale, quant, min)
        })
    }
}

/// As that of Q4_K, the fifth bits by a dot product of their own.
fn int8_dot(b: &mut Builder, weights: &Weights, x: &Plane) -> Val<F32> {
    let header = weights.quad(b, 0);
    let [scales, mins] = packed_scales(b, header);
    let fifths = [weights.quad(b, 1), weights.quad(b, 2)];
    // Nibbles in the upper halves of bytes are 16 times as large.
    let [mut low, mut high] = [(); 2].map(|()| b.mov::<S32>(0));
    for chunk in 0..4 {
        let quants = [weights.quad(b, 3 + 2 * chunk), weights.quad(b, 4 + 2 * chunk)];
        // A fifth bit counts 16 times its nibble's unit, and stands for `2^sub_block`.
        let mut sub_block = |at: usize, mask: u32, unit: i32| {
            let x = [x.quad(b, 2 * at as u32), x.quad(b, 2 * at as u32 + 1)];
            let nibbles = masked_dot(b, &quants, mask, &x);
            let tops = masked_dot(b, &fifths, 0x0101_0101 << at, &x);
            let (wanted, found) = (16 * unit, 1 << at);
            if wanted >= found {
                b.mad::<S32>(tops, wanted / found, nibbles)
            } else {
                let tops = b.shr::<S32>(tops, (found / wanted).trailing_zeros());
                b.add::<S32>(tops, nibbles)
            }
        };
        let dots = [sub_block(2 * chunk, 0x0f0f_0f0f, 1), sub_block(2 * chunk + 1, 0xf0f0_f0f0, 16)];
        low = add_times_byte(b, scales, 2 * chunk, dots[0], low);
        high = add_times_byte(b, scales, 2 * chunk + 1, dots[1], high);
    }
    let high = b.shr::<S32>(high, 4);
    let dots = b.add::<S32>(low, high);
    scale_and_subtract(b, header[0], x, dots, mins)
}

/// The sums of [`int8_dot`], many rows and some eights of columns at once.
fn mma_part(b: &mut Builder, rows: &[Rows], columns: &Columns<'_>) -> Vec<Values> {
    let (mins, scales): (Vec<_>, Vec<_>) = rows.iter().map(|rows| scales_and_mins(b, rows)).unzip();
    let fifths: Vec<_> = rows.iter().map(|rows| rows.fragment(b, 16)).collect();
    let (mut dots, none) = zeros(b, rows, columns);
    columns.each_two(b, |b, two| {
        let halves: Vec<_> = (0..rows.len())
            .map(|tile| {
                let quants = rows[tile].fragment_of(b, 48, two.times(32));
                // Bits of the two blocks, and the number of the first.
                let (fifths, first) = match two {
                    Two::Known(number) => (fifths[tile], 2 * number),
                    Two::Counted(number) => {
                        let first = b.shl::<U32>(number, 1);
                        (fifths[tile].map(|word| b.shr::<U32>(word, first)), 0)
                    }
                };
                let scales = match two {
                    Two::Known(_) => [0, 1].map(|at| scales[tile].map(|scales| byte(b, scales, first + at))),
                    Two::Counted(number) => {
                        let two = scales[tile].map(|scales| mma::two_bytes(b, scales, number));
                        [0, 1].map(|at| two.map(|two| two[at]))
                    }
                };
                [false, true].map(|high| {
                    let nibbles = nibbles(b, quants, high);
                    let quants: [_; 4] = std::array::from_fn(|i| {
                        // A fifth bit stands at the number of its block, and counts 16.
                        let fifth = match first as u32 + u32::from(high) {
                            at @ 0..4 => b.shl::<U32>(fifths[i], 4 - at),
                            at => b.shr::<U32>(fifths[i], at - 4),
                        };
                        b.and_or(fifth, 0x1010_1010, nibbles[i])
                    });
                    (quants, scales[usize::from(high)])
                })
            })
            .collect();
        q4_k::multiply(b, columns, two, &halves, &mut dots, none);
    });
    let dots = mma::values(b, &dots);
    mma::scale_and_subtract(b, columns, &mins, (&dots, 1.0))
}

/// Weights times scales, cut into bytes.
fn planes(b: &mut Builder, rows: &Rows) -> Twos {
    let (half, block, scales) = q4_k::scales_of_lane(b, rows);
    let rows = rows.clone();
    Box::new(move |b, two| {
        let shift = b.shl::<U32>(block, 2);
        let (nibbles, fifths) = (rows.pieces(b, 48 + 32 * two as u32, half), rows.pieces(b, 16, half));
        let quants: [[Val<U32>; 4]; 2] = std::array::from_fn(|row| {
            std::array::from_fn(|i| {
                let nibble = b.shr::<U32>(nibbles[row][i], shift);
                let nibble = b.and::<U32>(nibble, 0x0f0f_0f0f);
                // A fifth bit stands at the number of its block, and counts 16.
                let fifth = b.shr::<U32>(fifths[row][i], block);
                let fifth = match 2 * two as u32 {
                    at @ 0..4 => b.shl::<U32>(fifth, 4 - at),
                    at => b.shr::<U32>(fifth, at - 4),
                };
                b.and_or(fifth, 0x1010_1010, nibble)
            })
        });
        let scales = scales.map(|words| b.bfe::<U32>(words[two / 2], 16 * (two as u32 % 2), 8));
        let addend = b.mov::<U32>(warpgroup::RAISED);
        Box::new(move |b, step| {
            warpgroup::fragments(b, &quants, step, |b, row, word| warpgroup::cut(b, word, scales[row], addend))
        })
    })
}
