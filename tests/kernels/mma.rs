//! What attention in fast numerics assumes of `mma`, and the ISA does not say.

use kiln_codegen::Kernel;
use kiln_codegen::ptx::{Builder, F32, Global, LoadKind, U32, Val};

use crate::random::Random;
use crate::support::{Arg, every_schedule};

/// One `mma` of each depth that the target has, on the words given: `[32, 4]` of A, `[32, 2]` of B, `[32, 4]` of C.
#[derive(Debug)]
struct Product;

impl Kernel for Product {
    fn name(&self) -> &str {
        "product"
    }

    fn block(&self) -> u32 {
        32
    }

    fn build(&self, b: &mut Builder) {
        let a = b.param::<Global<U32>>("a");
        let k = b.param::<Global<U32>>("b");
        let c = b.param::<Global<F32>>("c");
        let d = b.param::<Global<F32>>("d"); // [32, 4]
        let lane = b.lane();
        let (a, k) = (b.byte_index(a, lane, 16), b.byte_index(k, lane, 8));
        let (c, d) = (b.byte_index(c, lane, 16), b.byte_index(d, lane, 16));
        let a: [Val<U32>; 4] = b.ld_vector(a, LoadKind::Constant);
        let k: [Val<U32>; 2] = b.ld_vector(k, LoadKind::Constant);
        let c = b.ld_vector(c, LoadKind::Constant);
        let product = if b.target().sm() >= 80 {
            b.mma_halves_k16(a, k, c)
        } else {
            let half = b.mma_halves_k8([a[0], a[1]], k[0], c);
            b.mma_halves_k8([a[2], a[3]], k[1], half)
        };
        b.st_vector(d, product);
    }
}

/// A word of two numbers of ordinary size in half precision.
fn pair(random: &mut Random) -> u32 {
    let mut half = || u32::from(half::f16::from_f32(random.symmetric() * 4.0).to_bits());
    half() | half() << 16
}

/// Whether a lane's element of A, C or the result lies in row `row`: the even ones (of C the first two) in row `lane / 4`,
/// the others 8 rows below.
fn in_row(lane: usize, below: bool, row: usize) -> bool {
    lane / 4 + if below { 8 } else { 0 } == row
}

/// Products of bytes as subnormal halves, times 2^24, with sums of 16 signed bytes: as those of mins with activations.
#[test]
fn subnormal_halves_are_multiplied_exactly() {
    let mut random = Random::fresh();
    let gpu = crate::support::gpu();
    let kernel = gpu.load(Product);
    let mut two = |most: u32, as_half: &dyn Fn(u32) -> u16| {
        let numbers = [random.below(most + 1), random.below(most + 1)];
        (numbers, u32::from(as_half(numbers[0])) | u32::from(as_half(numbers[1])) << 16)
    };
    let a: Vec<_> = (0..128).map(|_| two(63, &|byte| byte as u16)).collect();
    let sum = |of: u32| of as f32 - 2032.0;
    let b: Vec<_> = (0..64).map(|_| two(4064, &|of| half::f16::from_f32(sum(of)).to_bits())).collect();
    let [words_a, words_b] = [&a, &b].map(|of| gpu.input(&of.iter().map(|(_, word)| *word).collect::<Vec<_>>()));
    let (c, d) = (gpu.input(&[0.0f32; 128]), gpu.output::<f32>(128));
    kernel.run([1, 1, 1], &[Arg::from(&words_a), (&words_b).into(), (&c).into(), (&d).into()]);
    let found = d.read();
    for (row, column) in (0..16).flat_map(|row| (0..8).map(move |column| (row, column))) {
        let exact: f32 = (0..16)
            .map(|k| {
                let (lane, word) = (row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2);
                let (of_a, of_b) = (a[lane * 4 + word].0[k % 2], b[(column * 4 + k % 8 / 2) * 2 + k / 8].0[k % 2]);
                of_a as f32 * sum(of_b)
            })
            .sum();
        let at = (row % 8 * 4 + column / 2) * 4 + row / 8 * 2 + column % 2;
        assert_eq!(found[at] * (1 << 24) as f32, exact, "row {row}, column {column}");
    }
}

#[test]
fn a_row_of_a_product_depends_on_no_other_row() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        let kernel = gpu.load(Product);
        let words: Vec<u32> = (0..64).map(|_| pair(&mut random)).collect();
        let b = gpu.input(&words);
        let product = |a: &[u32], c: &[f32]| {
            let (a, c, d) = (gpu.input(a), gpu.input(c), gpu.output::<f32>(128));
            kernel.run([1, 1, 1], &[Arg::from(&a), (&b).into(), (&c).into(), (&d).into()]);
            d.read()
        };
        let a: Vec<u32> = (0..128).map(|_| pair(&mut random)).collect();
        let c = random.floats(128, 30.0);
        let expected = product(&a, &c);
        for row in 0..16 {
            // Other rows hold other numbers, or what is none.
            for other in [None, Some(0x7e00_7c00u32), Some(0x7bff_fbff), Some(0)] {
                let mut word = |own: u32, at: usize| match in_row(at / 4, at % 2 == 1, row) {
                    true => own,
                    false => other.unwrap_or_else(|| pair(&mut random)),
                };
                let others: Vec<u32> = a.iter().enumerate().map(|(at, own)| word(*own, at)).collect();
                let mut number = |own: f32, at: usize| match in_row(at / 4, at % 4 > 1, row) {
                    true => own,
                    false => other.map_or_else(|| random.symmetric() * 1e6, f32::from_bits),
                };
                let more: Vec<f32> = c.iter().enumerate().map(|(at, own)| number(*own, at)).collect();
                let found = product(&others, &more);
                for at in (0..128).filter(|at| in_row(at / 4, at % 4 > 1, row)) {
                    let bits = (found[at].to_bits(), expected[at].to_bits());
                    assert_eq!(bits.0, bits.1, "row {row}, element {at} beside {other:x?}, {gpu}");
                }
            }
        }
    });
}

/// Of B a column's words are the same at its other places; C has one number in each row.
#[test]
fn a_column_of_a_product_depends_on_no_other_column_and_not_on_its_place() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        let kernel = gpu.load(Product);
        let a: Vec<u32> = (0..128).map(|_| pair(&mut random)).collect();
        let of_row: Vec<f32> = random.floats(16, 30.0);
        let c: Vec<f32> = (0..128).map(|at| of_row[at / 16 + at % 4 / 2 * 8]).collect();
        let (a, c) = (gpu.input(&a), gpu.input(&c));
        let product = |b: &[u32]| {
            let (b, d) = (gpu.input(b), gpu.output::<f32>(128));
            kernel.run([1, 1, 1], &[Arg::from(&a), (&b).into(), (&c).into(), (&d).into()]);
            d.read()
        };
        // Element of a result in a row and column.
        let at = |row: usize, column: usize| (row % 8 * 4 + column / 2) * 4 + row / 8 * 2 + column % 2;
        let b: Vec<u32> = (0..64).map(|_| pair(&mut random)).collect();
        let expected = product(&b);
        for (column, place) in (0..8).flat_map(|column| (0..8).map(move |place| (column, place))) {
            for other in [None, Some(0x7e00_7c00u32), Some(0)] {
                let mut words: Vec<u32> = (0..64).map(|_| other.unwrap_or_else(|| pair(&mut random))).collect();
                words[8 * place..8 * place + 8].copy_from_slice(&b[8 * column..8 * column + 8]);
                let found = product(&words);
                for row in 0..16 {
                    let bits = (found[at(row, place)].to_bits(), expected[at(row, column)].to_bits());
                    assert_eq!(bits.0, bits.1, "row {row}, column {column} at {place} beside {other:x?}, {gpu}");
                }
            }
        }
    });
}
