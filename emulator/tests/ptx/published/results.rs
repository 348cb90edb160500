//! What the kernels compute, on a few blocks: a time says something only of work that is done.

use super::sums::{self, Take};
use super::{moves, norms, products};
use crate::rig::{Rig, ptx};

fn load(text: String) -> Rig {
    Rig::new(&ptx(80, &text))
}

/// Numbers between -1 and 1 with seven bits, which are bf16 as well.
fn floats(count: usize) -> Vec<f32> {
    let mut state = 7u32;
    let mut next = || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 25) as f32 / 64.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// As bf16, two a word.
fn halves(values: &[f32]) -> Vec<u32> {
    values.chunks(2).map(|pair| pair[0].to_bits() >> 16 | pair[1].to_bits() & 0xffff_0000).collect()
}

fn read_halves(rig: &Rig, at: u64, count: usize) -> Vec<f32> {
    let words = rig.read_u32s(at, count / 2);
    words.iter().flat_map(|&word| [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)]).collect()
}

/// Whether values are as expected but for rounding: `share` of 1 and of themselves.
fn near(found: &[f32], expected: impl Iterator<Item = f64>, share: f64) {
    let mut count = 0;
    for (&found, expected) in found.iter().zip(expected) {
        assert!((f64::from(found) - expected).abs() <= share * (1.0 + expected.abs()), "{found} for {expected}");
        count += 1;
    }
    assert_eq!(count, found.len());
}

#[test]
fn sums_are_sums() {
    for (take, redux) in [(Take::One, false), (Take::Strided(12), false), (Take::Vectors(3), true)] {
        let rig = load(sums::tree(take, redux));
        let values: Vec<u32> = (0..2 * 512 * take.numbers()).map(|i| i.wrapping_mul(2654435761)).collect();
        let (from, to) = (rig.u32s(&values), rig.u32s(&[5]));
        rig.launch("kernel", 2, 512, &[from, to, 0, 0]).unwrap();
        assert_eq!(rig.read_u32s(to, 1)[0], values.iter().fold(5, |sum: u32, &value| sum.wrapping_add(value)));
    }
    for take in [Take::One, Take::Vectors(1)] {
        let rig = load(sums::shuffles(take));
        let values = floats(2 * 256 * take.numbers() as usize);
        let (from, to) = (rig.f32s(&values), rig.f32s(&[0.0; 2]));
        rig.launch("kernel", 2, 256, &[from, to, 0, 0]).unwrap();
        let blocks = values.chunks(values.len() / 2).map(|block| block.iter().map(|&value| f64::from(value)).sum());
        near(&rig.read_f32s(to, 2), blocks, 1e-5);
    }
}

#[test]
fn elements_and_rows_are_moved() {
    let values = floats(2 * 1024);
    for add in [true, false] {
        let rig = load(moves::elements(add));
        let [a, b, c] = [0; 3].map(|_| rig.f32s(&values));
        rig.launch("kernel", 2, 256, &[a, b, c, 0]).unwrap();
        let expected = values.iter().map(|&value| f64::from(if add { value + value } else { value.max(0.0) }));
        near(&rig.read_f32s(c, values.len()), expected, 0.0);
    }
    for pitch in [32, 33] {
        let rig = load(moves::transpose(pitch));
        // The first 128 blocks are the first 32 rows.
        let values = floats(32 * 4096);
        let (from, to) = (rig.f32s(&values), rig.f32s(&vec![0.0; 4096 * 4096]));
        rig.launch("kernel", 128, 1024, &[from, to, 0, 0]).unwrap();
        let found = rig.read_f32s(to, 4096 * 4096);
        assert!((0..32 * 4096).all(|i| values[i] == found[i % 4096 * 4096 + i / 4096]));
    }
    let rig = load(moves::embed());
    let (table, positions) = (floats(4 * 768), floats(1024 * 768));
    let tokens: Vec<u32> = (0..32).map(|i| i * 3 % 4).collect();
    let [rows, at, places, to] =
        [halves(&table), tokens.clone(), halves(&positions), vec![0; 32 * 384]].map(|words| rig.u32s(&words));
    rig.launch("kernel", 3, 1024, &[rows, at, places, to]).unwrap();
    let expected = (0..32 * 768).map(|i| f64::from(table[tokens[i / 768] as usize * 768 + i % 768] + positions[i]));
    near(&read_halves(&rig, to, 32 * 768), expected, 1.0 / 256.0);
}

/// A row less its mean, if `centred`, by the root of the mean of its squares, by weights.
fn norm(row: &[f32], weights: &[f32], centred: bool) -> Vec<f64> {
    let count = row.len() as f64;
    let mean = if centred { row.iter().map(|&x| f64::from(x)).sum::<f64>() / count } else { 0.0 };
    let squares = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
    row.iter().zip(weights).map(|(&x, &w)| (f64::from(x) - mean) / (squares + 1e-5).sqrt() * f64::from(w)).collect()
}

#[test]
fn norms_are_norms() {
    let rig = load(norms::add_rms(4096));
    let (values, weights) = (floats(2 * 4096), floats(4096));
    let (x, gamma, residual) = (rig.u32s(&halves(&values)), rig.u32s(&halves(&weights)), rig.u32s(&halves(&values)));
    rig.launch("kernel", 2, 512, &[x, gamma, residual, 0]).unwrap();
    let sums: Vec<f32> = values.iter().map(|value| value + value).collect();
    near(&read_halves(&rig, residual, 8192), sums.iter().map(|&sum| f64::from(sum)), 0.0);
    let expected = sums.chunks(4096).flat_map(|row| norm(row, &weights, false));
    near(&read_halves(&rig, x, 8192), expected, 1.0 / 128.0);
    for vectors in [false, true] {
        let rig = load(norms::rms(vectors));
        let [x, gamma, y] = [&values, &weights, &values].map(|values| rig.f32s(values));
        rig.launch("kernel", 2, 512, &[x, gamma, y, 0]).unwrap();
        let expected = values.chunks(4096).flat_map(|row| norm(row, &weights, false));
        near(&rig.read_f32s(y, 8192), expected, 1e-4);
    }
    let texts = [
        (norms::by_warps(), 16, 32),
        (norms::by_blocks(), 16, 256),
        (norms::in_shared(1), 16, 32),
        (norms::in_shared(8), 2, 256),
    ];
    for (text, blocks, threads) in texts {
        let rig = load(text);
        let (values, weights) = (floats(16 * 768), floats(768));
        let [x, y, gamma, beta] = [&values, &values, &weights, &weights].map(|values| rig.f32s(values));
        rig.launch("kernel", blocks, threads, &[x, y, gamma, beta]).unwrap();
        let rows = values.chunks(768).flat_map(|row| norm(row, &weights, true));
        near(&rig.read_f32s(y, 16 * 768), rows.zip(weights.iter().cycle()).map(|(y, &b)| y + f64::from(b)), 1e-4);
    }
}

#[test]
fn products_are_products() {
    for (bits, columns) in [(2, 2048), (3, 4096), (4, 5120), (5, 2048)] {
        let rig = load(products::book(bits, columns));
        let (groups, rows) = ((columns / products::GROUP) as usize, 3);
        let words: Vec<u32> =
            (1..=rows * groups * bits as usize).map(|i| (i as u32).wrapping_mul(2654435761)).collect();
        let scales: Vec<u8> = (0..rows * groups).map(|i| 0x90 + (i * 37 % 64) as u8).collect();
        // 1 or -1/2 as f16, and a book of odd numbers.
        let x: Vec<u32> = (0..columns / 2).map(|i| if i % 3 == 0 { 0x3c00_b800 } else { 0xb800_3c00 }).collect();
        let book: Vec<f32> = (0..1 << bits).map(|i| (2 * i - (1 << bits) + 1) as f32 / 32.0).collect();
        let mut behind = book.clone();
        behind.resize(64 + rows, 0.0);
        let (x_at, words_at, y) = (rig.u32s(&x), rig.u32s(&words), rig.f32s(&behind));
        let scales_at = rig.buffer(&scales);
        rig.launch("kernel", rows as u32, products::THREADS, &[x_at, words_at, scales_at, y]).unwrap();
        let element = |i: usize| if x[i / 2] >> (16 * (i % 2)) & 0xffff == 0x3c00 { 1.0 } else { -0.5 };
        let row = |row: usize| -> f64 {
            let weight = |i: usize| {
                let group = row * groups + i / 32;
                let planes = &words[group * bits as usize..];
                let entry: u32 = (0..bits).map(|bit| (planes[bit as usize] >> (i % 32) & 1) << bit).sum();
                let scale = f64::from(16 + (scales[group] & 15)) / 16.0 * f64::from(scales[group] >> 4).exp2() / 2048.0;
                f64::from(book[entry as usize]) * scale
            };
            (0..columns as usize).map(|i| weight(i) * element(i)).sum()
        };
        near(&rig.read_f32s(y + 256, rows), (0..rows).map(row), 1e-4);
    }
}
