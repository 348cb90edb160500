//! D = A B + C of bytes and of halves, most of what prompts multiply: by whole rows of C.
//!
//! A register of A is eight rows, four words each, and a register of B eight columns. A row of C lies in four lanes of two
//! registers, whose columns take turns.

use super::float::{canonical, f16_to_f32};

/// A register of all lanes.
pub(super) type Words = [u32; 32];

/// The columns of C as they follow each other in a row's lanes of one register, then of the other.
const COLUMNS: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// The bytes of a register by twos, each two as halves of a word: the even ones, then the odd ones.
#[inline(always)]
fn by_twos(register: &Words, signed: bool) -> [Words; 2] {
    let mut twos = [*register, register.map(|word| word >> 8)];
    for word in twos.as_flattened_mut() {
        *word &= 0x00ff_00ff;
        // Ones above a byte whose sign is set, up to the next byte.
        let sign = if signed { *word & 0x0080_0080 } else { 0 };
        *word |= (sign << 9).wrapping_sub(sign << 1);
    }
    twos
}

/// Adds to sums of eight columns the products of a row's two numbers with theirs.
#[inline(always)]
fn add_twos(sums: [i32; 8], row: u32, columns: &[u32; 8]) -> [i32; 8] {
    let [low, high] = [|two: u32| i32::from(two as i16), |two: u32| two as i32 >> 16];
    std::array::from_fn(|i| sums[i] + low(row) * low(columns[i]) + high(row) * high(columns[i]))
}

/// Registers of bytes, and whether these are signed.
pub(super) type Bytes<'a> = (&'a [&'a Words], bool);

#[inline(always)]
fn add_bytes(
    [(rows, row_signed), (columns, column_signed)]: [Bytes<'_>; 2],
    sums: &mut [Words; 4],
    sat: bool,
    add: impl Fn([i32; 8], u32, &[u32; 8]) -> [i32; 8],
) {
    let mut twos_of_columns = [[[[0; 8]; 2]; 4]; 2];
    for (twos, register) in twos_of_columns.iter_mut().zip(columns) {
        let halves = by_twos(register, column_signed);
        for (word, twos) in twos.iter_mut().enumerate() {
            *twos = std::array::from_fn(|half| COLUMNS.map(|column| halves[half][4 * column + word]));
        }
    }
    let mut twos_of_rows = [[[0; 32]; 2]; 4];
    twos_of_rows.iter_mut().zip(rows).for_each(|(twos, register)| *twos = by_twos(register, row_signed));
    let plus = |x: u32, y: i32| match sat {
        true => (x as i32).saturating_add(y) as u32,
        false => x.wrapping_add(y as u32),
    };
    let eights = rows.len() / columns.len();
    for (eight, [first, second]) in sums.as_chunks_mut().0.iter_mut().take(eights).enumerate() {
        for row in 0..8 {
            let mut sums = [0; 8];
            for (k, columns) in twos_of_columns.iter().take(columns.len()).enumerate() {
                let [evens, odds] = &twos_of_rows[eight + eights * k];
                for (word, [of_evens, of_odds]) in columns.iter().enumerate() {
                    sums = add(sums, evens[4 * row + word], of_evens);
                    sums = add(sums, odds[4 * row + word], of_odds);
                }
            }
            for i in 0..4 {
                first[4 * row + i] = plus(first[4 * row + i], sums[i]);
                second[4 * row + i] = plus(second[4 * row + i], sums[4 + i]);
            }
        }
    }
}

/// The same by AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_bytes_by_avx2(factors: [Bytes<'_>; 2], sums: &mut [Words; 4], sat: bool) {
    use std::arch::x86_64::{__m256i, _mm256_add_epi32, _mm256_madd_epi16, _mm256_set1_epi32};
    use std::mem::transmute;
    add_bytes(factors, sums, sat, |sums, row, columns| {
        // SAFETY: all are 32 bytes of integers.
        unsafe {
            let columns = transmute::<[u32; 8], __m256i>(*columns);
            let products = _mm256_madd_epi16(_mm256_set1_epi32(row as i32), columns);
            transmute::<__m256i, [i32; 8]>(_mm256_add_epi32(transmute::<[i32; 8], __m256i>(sums), products))
        }
    });
}

/// Adds to C's registers the products of A's and B's, whose elements are bytes.
pub(super) fn of_bytes(factors: [Bytes<'_>; 2], sums: &mut [Words; 4], sat: bool) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has it.
        return unsafe { add_bytes_by_avx2(factors, sums, sat) };
    }
    add_bytes(factors, sums, sat, add_twos);
}

/// The numbers of a register of halves, two of each lane.
fn numbers(register: &Words) -> [f32; 64] {
    std::array::from_fn(|x| f16_to_f32(register[x / 2] >> (16 * (x % 2)) & 0xffff))
}

#[inline(always)]
fn add_halves(
    [rows, columns]: [&[&Words]; 2],
    sums: &mut [Words; 4],
    numbers: impl Fn(&Words) -> [f32; 64],
    add: impl Fn([f64; 8], f64, &[f64; 8]) -> [f64; 8],
) {
    let mut values_of_columns = [[[0.0; 8]; 8]; 2];
    for (values, register) in values_of_columns.iter_mut().zip(columns) {
        let numbers = numbers(register);
        for (x, values) in values.iter_mut().enumerate() {
            *values = COLUMNS.map(|column| f64::from(numbers[8 * column + x]));
        }
    }
    let mut values_of_rows = [[0.0; 64]; 4];
    for (values, register) in values_of_rows.iter_mut().zip(rows) {
        *values = numbers(register).map(f64::from);
    }
    let plus = |before: u32, sum: f64| canonical((f64::from(f32::from_bits(before)) + sum) as f32);
    let eights = rows.len() / columns.len();
    for (eight, [first, second]) in sums.as_chunks_mut().0.iter_mut().take(eights).enumerate() {
        for row in 0..8 {
            let mut sums = [0.0; 8];
            for (k, columns) in values_of_columns.iter().take(columns.len()).enumerate() {
                let row = &values_of_rows[eight + eights * k][8 * row..8 * row + 8];
                for (x, columns) in row.iter().zip(columns) {
                    sums = add(sums, *x, columns);
                }
            }
            for i in 0..4 {
                first[4 * row + i] = plus(first[4 * row + i], sums[i]);
                second[4 * row + i] = plus(second[4 * row + i], sums[4 + i]);
            }
        }
    }
}

/// The same by AVX2, and by instructions that convert eight halves, and that multiply and add. Products of halves are exact in
/// f64, so that to multiply and add at once rounds the same.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,fma")]
fn add_halves_by_avx2(factors: [&[&Words]; 2], sums: &mut [Words; 4]) {
    use std::arch::x86_64::{__m128i, __m256, _mm256_cvtph_ps};
    use std::mem::transmute;
    let numbers = |register: &Words| {
        let mut numbers = [0.0; 64];
        for (to, from) in numbers.as_chunks_mut::<8>().0.iter_mut().zip(register.as_chunks::<4>().0) {
            // SAFETY: these are 16 bytes of integers and 32 of floats.
            *to = unsafe { transmute::<__m256, [f32; 8]>(_mm256_cvtph_ps(transmute::<[u32; 4], __m128i>(*from))) };
        }
        numbers
    };
    add_halves(factors, sums, numbers, |sums, x, columns| std::array::from_fn(|i| x.mul_add(columns[i], sums[i])));
}

/// Adds to C's registers, of f32, the products of A's and B's, whose elements are halves.
pub(super) fn of_halves(factors: [&[&Words]; 2], sums: &mut [Words; 4]) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2")
        && std::is_x86_feature_detected!("f16c")
        && std::is_x86_feature_detected!("fma")
    {
        // SAFETY: the processor has them.
        return unsafe { add_halves_by_avx2(factors, sums) };
    }
    add_halves(factors, sums, numbers, |sums, x, columns| std::array::from_fn(|i| sums[i] + x * columns[i]));
}
