//! saxpy, argmax, advance.

use kiln::shape::mailbox::NO_TOKEN;
use kiln_codegen::kernels::{Advance, Argmax, Saxpy};

use crate::random::Random;
use crate::support::{Arg, Gpu, every_schedule, gpu};

#[test]
fn saxpy_adds_on_every_length_and_grid() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        let saxpy = gpu.load(Saxpy);
        for (n, grid) in [(0usize, 1), (1, 1), (31, 2), (1000, 1), (1000, 3), (1000, 9)] {
            let (x, y, a) = (random.floats(n, 1.0), random.floats(n, 1.0), random.symmetric());
            let (px, py) = (gpu.input(&x), gpu.in_out(&y));
            saxpy.run([grid, 1, 1], &[Arg::from(&px), Arg::from(&py), Arg::from(a), Arg::from(n as u32)]);
            let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| a.mul_add(*x, *y)).collect();
            assert_eq!(py.read(), expected, "n {n}, grid {grid}, {gpu}");
        }
    });
}

/// What stands where no token was stored.
const UNTOUCHED: u32 = 0xaaaa_aaaa;

/// Launches argmax and returns the tokens and the state.
fn argmax(gpu: &Gpu, logits: &[f32], length: u32, capacity: u32) -> (Vec<u32>, Vec<u32>) {
    let tokens = gpu.in_out(&vec![UNTOUCHED; capacity as usize]);
    let state = gpu.in_out(&[length - 1, length, 0]);
    let vocab = logits.len() as u32;
    let logits = gpu.input(logits);
    let args = [Arg::from(&logits), Arg::from(vocab), Arg::from(&tokens), Arg::from(capacity), Arg::from(&state)];
    gpu.load(Argmax).run([1, 1, 1], &args);
    (tokens.read(), state.read())
}

/// The least index of the greatest number.
fn greatest(logits: &[f32]) -> u32 {
    let mut best = None;
    for (index, value) in logits.iter().enumerate() {
        if best.is_none_or(|(_, most)| *value > most) {
            best = Some((index as u32, *value));
        }
    }
    best.map_or(0, |(index, _)| index)
}

#[test]
fn argmax_finds_the_greatest_logit() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        for vocab in [1usize, 31, 1023, 2048] {
            let logits = random.floats(vocab, 20.0);
            let (tokens, state) = argmax(gpu, &logits, 3, 5);
            assert_eq!(tokens, [UNTOUCHED, UNTOUCHED, UNTOUCHED, greatest(&logits), UNTOUCHED], "vocab {vocab}, {gpu}");
            assert_eq!(state, [3, 4, 0]);
        }
    });
}

#[test]
fn argmax_reaches_the_whole_vocabulary_of_a_real_model() {
    let mut random = Random::fresh();
    let gpu = gpu();
    let vocab = 151_936;
    let mut logits = random.floats(vocab, 5.0);
    for at in [0, vocab - 1, random.below(vocab as u32) as usize] {
        let before = std::mem::replace(&mut logits[at], 6.0);
        assert_eq!(argmax(&gpu, &logits, 1, 2).0[1], at as u32);
        logits[at] = before;
    }
}

#[test]
fn argmax_takes_the_least_index_of_a_tie() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        let mut logits = vec![-1.0f32; 3000];
        // In one warp, in different warps, and in different rounds of the same thread.
        let first = random.below(900);
        for at in [first, first + 1, first + 40, first + 1024, first + 2048] {
            logits[at as usize] = 2.5;
        }
        assert_eq!(argmax(gpu, &logits, 1, 2).0[1], first, "{gpu}");
        assert_eq!(argmax(gpu, &[-0.0, 0.0, -0.0], 1, 2).0[1], 0, "{gpu}");
    });
}

#[test]
fn argmax_chooses_no_token_from_nan_or_an_infinite_maximum() {
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    let cases: [(&[f32], u32); 9] = [
        (&[-infinity, -3.0, -infinity, -2.0], 3),
        (&[f32::MAX, -infinity, f32::MIN], 0),
        (&[nan, -3.0, -2.0], NO_TOKEN),
        (&[7.0, -3.0, nan], NO_TOKEN),
        (&[-nan, 5.0], NO_TOKEN),
        (&[1.0, infinity, 2.0], NO_TOKEN),
        (&[nan, infinity, 1.0, -infinity], NO_TOKEN),
        (&[-infinity; 40], NO_TOKEN),
        (&[nan; 5], NO_TOKEN),
    ];
    every_schedule(&mut Random::fresh(), |gpu| {
        for (logits, expected) in cases {
            assert_eq!(argmax(gpu, logits, 1, 2).0[1], expected, "{logits:?}, {gpu}");
        }
    });
}

#[test]
fn argmax_sees_a_nan_in_every_place() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        let mut logits = random.floats(3000, 20.0);
        // The first and last of the first round of all threads, and of the last.
        for at in [0, 31, 1023, 2999, random.below(3000) as usize] {
            let before = std::mem::replace(&mut logits[at], f32::NAN);
            assert_eq!(argmax(gpu, &logits, 1, 2).0[1], NO_TOKEN, "NaN at {at}, {gpu}");
            logits[at] = before;
        }
        assert_eq!(argmax(gpu, &logits, 1, 2).0[1], greatest(&logits), "{gpu}");
    });
}

#[test]
fn argmax_stores_no_token_beyond_the_capacity() {
    let (tokens, state) = argmax(&gpu(), &[0.0, 1.0], 4, 4);
    assert_eq!(tokens, [UNTOUCHED; 4]);
    assert_eq!(state, [4, 5, 0]);
}

#[test]
fn advance_moves_a_sequence_by_one() {
    every_schedule(&mut Random::fresh(), |gpu| {
        let state = gpu.in_out(&[6u32, 7, 9]);
        gpu.load(Advance).run([1, 1, 1], &[Arg::from(&state)]);
        assert_eq!(state.read(), [7, 8, 9]);
    });
}
