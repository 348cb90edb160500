//! The choice of a token by kernels: the ids of the host's reference.

use kiln::driver::DeviceBuffer;
use kiln::model::{Logprobs, Sampler, Sampling, TokenSet};
use kiln::shape::choice::{self, memory, step};
use kiln::shape::mailbox::NO_TOKEN;
use kiln_codegen::kernels::Choose;

use crate::random::Random;
use crate::support::{Arg, Gpu, Loaded, Output, every_schedule, gpu};

/// The kernel, and the memory of its choices, which is used again.
struct Scene<'a> {
    gpu: &'a Gpu,
    kernel: Loaded<'a>,
    vocab: u32,
    memory: Output<u32>,
}

impl<'a> Scene<'a> {
    fn new(gpu: &'a Gpu, vocab: u32) -> Scene<'a> {
        let words = memory::words(vocab.div_ceil(Choose::ROWS), vocab);
        let memory = gpu.in_out(&vec![0u32; words as usize]);
        Scene { gpu, kernel: gpu.load(Choose), vocab, memory }
    }

    /// The token behind `tokens`, the logits as they are then, and the token's log-probability.
    fn choose(&self, sampling: &Sampling, logits: &[f32], tokens: &[u32]) -> (u32, Vec<f32>, f32) {
        let Sampling { logit_bias, banned, .. } = sampling;
        let plain = sampling.clone().with_logit_bias([]).with_banned([]);
        let mut words = plain.choice(self.vocab).expect("one that kernels make");
        let mut mask = TokenSet::all(self.vocab);
        banned.iter().for_each(|id| mask.remove(*id));
        let mask = (0..self.vocab.div_ceil(32))
            .map(|index| (0..32).filter(|bit| mask.contains(32 * index + bit)).map(|bit| 1u32 << bit).sum::<u32>());
        let pairs = logit_bias.iter().map(|(id, bias)| u64::from(bias.to_bits()) << 32 | u64::from(*id));
        let before = [0xaaaa_aaaa; choice::mask::BITS as usize];
        let mask: DeviceBuffer<u32> = self.gpu.input(&before.into_iter().chain(mask).collect::<Vec<u32>>());
        let biases: DeviceBuffer<u64> = self.gpu.input(&pairs.collect::<Vec<u64>>());
        words[choice::BIAS_COUNT as usize] = logit_bias.len() as u32;
        for (word, address) in [(choice::BIASES, biases.as_ptr().address()), (choice::MASK, mask.as_ptr().address())] {
            words[word as usize] = address as u32;
            words[word as usize + 1] = (address >> 32) as u32;
        }
        let flags = [
            (true, choice::LOGPROB),
            (!logit_bias.is_empty(), choice::HAS_BIASES),
            (!banned.is_empty(), choice::HAS_MASK),
        ];
        words[0] |= flags.into_iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum::<u32>();
        if words[0] & choice::TREATS != 0 {
            words[0] |= choice::KEEPS;
        }
        let length = tokens.len() as u32;
        let room: Vec<u32> = tokens.iter().copied().chain([0xaaaa_aaaa; 2]).collect();
        let (history, logits) = (self.gpu.in_out(&room), self.gpu.in_out(logits));
        let state = self.gpu.in_out(&[length.wrapping_sub(1), length, 0]);
        let choice: DeviceBuffer<u32> = self.gpu.input(&words);
        let draws = words[0] & choice::DRAWS != 0;
        let steps = [(true, step::TREAT), (true, step::WEIGH), (draws, step::SIFT), (true, step::SETTLE)];
        for (_, step) in steps.into_iter().filter(|(runs, _)| *runs) {
            let args = [
                Arg::from(&logits),
                Arg::from(self.vocab),
                Arg::from(&history),
                Arg::from(length + 1),
                Arg::from(&state),
                Arg::from(&choice),
                Arg::from(&self.memory),
                Arg::from(step),
            ];
            self.kernel.run([self.vocab.div_ceil(Choose::ROWS), 1, 1], &args);
        }
        assert_eq!(state.read(), [length, length + 1, 0]);
        let found = history.read();
        assert_eq!((&found[..tokens.len()], found[tokens.len() + 1]), (tokens, 0xaaaa_aaaa));
        let logprob = f32::from_bits(self.memory.read()[memory::LOGPROB as usize]);
        (found[tokens.len()], logits.read(), logprob)
    }

    /// Holds the kernel to the host.
    fn compare(&self, sampling: &Sampling, logits: &[f32], tokens: &[u32]) {
        let mut treated = logits.to_vec();
        let mut sampler = Sampler::new(sampling.clone(), self.vocab).expect("in range");
        let expected = sampler.choose(&mut treated, tokens).expect("a token");
        let (found, changed, logprob) = self.choose(sampling, logits, tokens);
        let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<u32>>();
        assert_eq!(bits(&changed), bits(&treated), "{sampling:?}, vocabulary {}, {}", self.vocab, self.gpu);
        assert_eq!(found, expected, "{sampling:?}, vocabulary {}, position {}, {}", self.vocab, tokens.len(), self.gpu);
        let given = Logprobs::new(logits, expected, 0).chosen;
        assert_eq!(logprob.to_bits(), given.to_bits(), "{sampling:?}: {logprob} for {given}, {}", self.gpu);
    }
}

/// Logits with a spread, some of them equal, some impossible.
fn logits(random: &mut Random, vocab: u32) -> Vec<f32> {
    let spread = [0.01, 3.0, 40.0, 1e4][random.below(4) as usize];
    let mut logits = random.floats(vocab as usize, spread);
    for _ in 0..vocab / 4 {
        let (from, to) = (random.below(vocab) as usize, random.below(vocab) as usize);
        logits[to] = logits[from];
    }
    for _ in 0..vocab / 16 {
        logits[random.below(vocab) as usize] = f32::NEG_INFINITY;
    }
    // One is possible.
    logits[random.below(vocab) as usize] = spread;
    logits
}

/// Any parameters, edges among them.
fn sampling(random: &mut Random, vocab: u32) -> Sampling {
    let mut one_of = |all: &[f32]| all[random.below(all.len() as u32) as usize];
    let temperature = one_of(&[0.0, 0.001, 0.7, 1.0, 1.0, 1.5, 1000.0]);
    let typical_p = one_of(&[1.0, 1.0, 1e-9, 0.2, 0.6, 0.9, 0.99, 0.999_999]);
    let (top_p, min_p) = (one_of(&[1.0, 1.0, 1e-30, 0.3, 0.9, 0.95, 0.999_999]), one_of(&[0.0, 0.0, 0.05, 1.0, 1e-12]));
    let penalties = [one_of(&[1.0, 1.0, 1.3, 0.5]), one_of(&[0.0, 0.0, 0.5, -2.0]), one_of(&[0.0, 0.25, 1e4])];
    let top_k = [0, 0, 1, 2, 7, 50, vocab / 2, vocab - 1, vocab, u32::MAX][random.below(10) as usize];
    let window = [None, Some(0), Some(1), Some(5), Some(1000)][random.below(5) as usize];
    let [repetition, presence, frequency] = penalties;
    // One is left, and no id has two biases.
    let left = random.below(vocab);
    let count = [0, 0, 1, 5, vocab][random.below(5) as usize];
    let banned: Vec<u32> = (0..count).map(|_| random.below(vocab)).filter(|id| *id != left).collect();
    let step = [1, 3, 7, vocab][random.below(4) as usize];
    let biases: Vec<(u32, f32)> = (0..vocab).step_by(step as usize).map(|id| (id, random.floats(1, 10.0)[0])).collect();
    let biases = if random.below(2) == 0 { Vec::new() } else { biases };
    Sampling::new(temperature, random.next())
        .with_top_k(top_k)
        .with_typical_p(typical_p)
        .with_top_p(top_p)
        .with_min_p(min_p)
        .with_penalties(repetition, presence, frequency)
        .with_penalty_window(window)
        .with_banned(banned)
        .with_logit_bias(biases)
}

#[test]
fn kernels_choose_as_the_host_does() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        for (vocab, choices) in [(1, 3), (33, 30), (1025, 8), (2501, 4)] {
            let scene = Scene::new(gpu, vocab);
            for _ in 0..choices {
                let (logits, sampling) = (logits(&mut random, vocab), sampling(&mut random, vocab));
                let tokens: Vec<u32> = (0..random.below(40)).map(|_| random.below(vocab.min(20))).collect();
                scene.compare(&sampling, &logits, &tokens);
            }
        }
    });
}

#[test]
fn equal_logits_are_cut_and_drawn_as_the_host_does() {
    let scene_gpu = gpu();
    let vocab = 1500;
    let scene = Scene::new(&scene_gpu, vocab);
    // Zeros of either sign are equal.
    for values in [[0.0, -0.0], [-7.5; 2], [3e38; 2]] {
        let logits: Vec<f32> = values.into_iter().cycle().take(vocab as usize).collect();
        for base in [Sampling::new(1.0, 3), Sampling::new(0.8, 4).with_min_p(0.5)] {
            let sampled = [base.clone(), base.clone().with_top_k(700), base.clone().with_top_p(0.5)];
            let typical = [1e-9, 0.3].map(|share| base.clone().with_typical_p(share));
            let sampled = sampled.into_iter().chain(typical);
            for sampling in sampled.chain([base.with_top_k(1200).with_top_p(0.25)]) {
                scene.compare(&sampling, &logits, &[1, 2, 3]);
            }
        }
    }
    let mut far = vec![-1e38; vocab as usize];
    far[1111] = 3e38;
    for sampling in [Sampling::new(1000.0, 1), Sampling::new(0.001, 1).with_top_k(900).with_top_p(0.99)] {
        scene.compare(&sampling, &far, &[]);
    }
}

/// Logits as a model gives them: few far above many, whose probabilities fall as a power of their rank; at times some have
/// no mass, or the likeliest is far ahead of all others.
fn ranked(random: &mut Random, vocab: u32) -> Vec<f32> {
    let power = [0.3, 1.0, 2.0, 6.0][random.below(4) as usize];
    let ahead = [0.0, 0.0, 3.0, 9.0, 30.0][random.below(5) as usize];
    let noise = random.floats(vocab as usize, 0.5);
    let mut ranks: Vec<u32> = (0..vocab).collect();
    (1..vocab).rev().for_each(|last| ranks.swap(last as usize, random.below(last + 1) as usize));
    let logit = |(rank, noise): (u32, f32)| if rank == 0 { ahead } else { noise - power * (rank as f32).ln() };
    ranks.into_iter().zip(noise).map(logit).collect()
}

#[test]
fn tokens_of_typical_surprise_are_those_of_the_host() {
    let mut random = Random::fresh();
    let gpu = gpu();
    for (vocab, choices) in [(40, 40), (1025, 15), (3000, 5)] {
        let scene = Scene::new(&gpu, vocab);
        for _ in 0..choices {
            let logits = ranked(&mut random, vocab);
            let mut one_of = |all: &[f32]| all[random.below(all.len() as u32) as usize];
            let typical_p = one_of(&[1e-9, 0.05, 0.2, 0.5, 0.7, 0.9, 0.95, 0.999]);
            let (top_p, min_p) = (one_of(&[1.0, 0.3, 0.9, 0.99]), one_of(&[0.0, 0.0, 0.02, 0.7, 1.0]));
            let (temperature, share) = (one_of(&[0.0, 0.7, 1.0, 50.0]), one_of(&[0.0, 0.0, 0.002, 0.05, 0.6]));
            let sampling = Sampling::new(temperature, random.next())
                .with_typical_p(typical_p)
                .with_top_p(top_p)
                .with_min_p(min_p)
                .with_top_k((share * vocab as f32).ceil() as u32);
            scene.compare(&sampling, &logits, &[]);
        }
    }
}

/// Ids whose surprise is the mean itself, and logits whose masses fall where they rise.
#[test]
fn tokens_of_typical_surprise_are_cut_to_one() {
    let gpu = gpu();
    // Neighbouring floats: of the greater one the mass is less.
    let above = -0.031_027_52_f32;
    let (above, below) = (above.next_up(), above);
    assert!(choice::mass_of(above, 0.0) < choice::mass_of(below, 0.0), "other ones are needed");
    let all: [&[f32]; 5] =
        [&[5.0; 2], &[3.0, 3.0, -30.0, -40.0], &[0.0, 0.0, -5.66], &[0.0, above, below, below, above], &[-1.0, 9.0]];
    for logits in all {
        let scene = Scene::new(&gpu, logits.len() as u32);
        for (typical_p, min_p, top_k) in [(0.3, 0.0, 0), (0.34, 0.0, 2), (0.5, 1.0, 0), (0.7, 1.0, 0), (0.7, 1.0, 4)] {
            for (temperature, seed) in [(0.0, 0), (1.0, 1), (1.0, 2), (1.0, 3), (1.0, 4)] {
                let sampling = Sampling::new(temperature, seed).with_typical_p(typical_p);
                scene.compare(&sampling.with_min_p(min_p).with_top_k(top_k), logits, &[]);
            }
        }
    }
}

#[test]
fn no_token_is_drawn_from_nan_or_an_infinite_maximum() {
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    let gpu = gpu();
    let vocab = 1100;
    let scene = Scene::new(&gpu, vocab);
    let filtered = Sampling::new(1.0, 1).with_top_k(9).with_top_p(0.9).with_penalties(1.5, 1.0, 1.0);
    // Bans do not hide what is no number.
    let banned = Sampling::GREEDY.with_banned([0, 3, 1024, 1099]).with_logit_bias([(3, -1e4), (7, 1.0)]);
    for sampling in [Sampling::new(1.0, 1), filtered.clone(), filtered.clone().with_temperature(0.0), banned] {
        for (at, value) in [(0, nan), (1099, nan), (1024, infinity), (3, nan), (3, infinity)] {
            let mut logits = vec![0.5; vocab as usize];
            logits[at] = value;
            assert_eq!(scene.choose(&sampling, &logits, &[3, 3]).0, NO_TOKEN, "{value} at {at}, {sampling:?}");
        }
        assert_eq!(scene.choose(&sampling, &vec![-infinity; vocab as usize], &[3]).0, NO_TOKEN, "{sampling:?}");
        scene.compare(&sampling, &vec![0.5; vocab as usize], &[3, 3]);
    }
}

#[test]
fn the_whole_vocabulary_of_a_real_model_is_drawn_from() {
    let mut random = Random::fresh();
    let gpu = gpu();
    let vocab = 151_936;
    let scene = Scene::new(&gpu, vocab);
    let logits = random.floats(vocab as usize, 12.0);
    let sampling = Sampling::new(0.8, random.next());
    scene.compare(&sampling, &logits, &[5, 7]);
    scene.compare(&sampling.clone().with_top_k(40).with_top_p(0.95), &logits, &[5, 7]);
    let ranked = ranked(&mut random, vocab);
    scene.compare(&sampling.with_typical_p(0.9).with_top_p(0.9).with_min_p(1e-4), &ranked, &[5, 7]);
}
