//! The chain against float64: distributions by chi-square, filters by the tokens they leave, parameters that are refused.

use super::{Logprobs, Sampler, Sampling};
use crate::Error;

const LOGITS: [f32; 12] = [1.5, -0.25, 3.0, 2.0, 2.0, -4.0, 0.0, 2.75, 1.0, -1.5, 0.5, -30.0];

fn sampler(sampling: Sampling) -> Sampler {
    Sampler::new(sampling, LOGITS.len() as u32).expect("parameters in their ranges")
}

/// The token for a position, whose number of tokens before is all that counts.
fn choose(sampler: &mut Sampler, position: usize) -> u32 {
    sampler.choose(&mut LOGITS.clone(), &vec![0; position]).expect("finite logits")
}

/// Probabilities of the tokens by the chain, in float64 and by plain sorting.
fn expected(sampling: &Sampling) -> Vec<f64> {
    let softmax = |ids: &[usize], temperature: f64| -> Vec<(usize, f64)> {
        let weight = |id: &usize| ((f64::from(LOGITS[*id]) - 3.0) / temperature).exp();
        let total: f64 = ids.iter().map(weight).sum();
        ids.iter().map(|id| (*id, weight(id) / total)).collect()
    };
    let mut ids: Vec<usize> = (0..LOGITS.len()).collect();
    ids.sort_by(|a, b| LOGITS[*b].total_cmp(&LOGITS[*a]).then(a.cmp(b)));
    if sampling.top_k > 0 {
        ids.truncate(sampling.top_k as usize);
    }
    let first = |mut all: Vec<(usize, f64)>, share: f32, key: &dyn Fn(f64) -> f64| -> Vec<usize> {
        all.sort_by(|a, b| key(a.1).total_cmp(&key(b.1)).then(a.0.cmp(&b.0)));
        let mut sum = 0.0;
        let kept = all.iter().take_while(|(_, p)| {
            let keeps = sum < f64::from(share);
            sum += p;
            keeps
        });
        kept.map(|(id, _)| *id).collect()
    };
    if sampling.typical_p < 1.0 {
        let all = softmax(&ids, 1.0);
        let entropy: f64 = all.iter().map(|(_, p)| -p * p.ln()).sum();
        ids = first(all, sampling.typical_p, &|p| (-p.ln() - entropy).abs());
    }
    if sampling.top_p < 1.0 {
        ids = first(softmax(&ids, 1.0), sampling.top_p, &|p| -p);
    }
    let all = softmax(&ids, 1.0);
    let most = all.iter().map(|(_, p)| *p).fold(0.0, f64::max);
    ids = all.iter().filter(|(_, p)| *p >= f64::from(sampling.min_p) * most).map(|(id, _)| *id).collect();
    let mut probabilities = vec![0.0; LOGITS.len()];
    for (id, p) in softmax(&ids, f64::from(sampling.temperature)) {
        probabilities[id] = p;
    }
    probabilities
}

/// Chi-square of so many draws, and the tokens it is over, less one. Tokens that are hardly expected count together.
fn chi_square(sampling: &Sampling, draws: usize) -> (f64, usize) {
    let probabilities = expected(sampling);
    let mut sampler = sampler(sampling.clone());
    let mut counts = vec![0u32; LOGITS.len()];
    let tokens = vec![0; draws];
    for position in 0..draws {
        let id = sampler.choose(&mut LOGITS.clone(), &tokens[..position]).expect("finite logits");
        counts[id as usize] += 1;
    }
    let (mut sum, mut classes, mut rare) = (0.0, 0, (0.0, 0.0));
    for (p, count) in probabilities.iter().zip(counts) {
        let (wanted, found) = (p * draws as f64, f64::from(count));
        assert!(*p > 0.0 || count == 0, "a token that {sampling:?} takes out was drawn");
        if wanted < 10.0 {
            rare = (rare.0 + wanted, rare.1 + found);
        } else {
            (sum, classes) = (sum + (found - wanted).powi(2) / wanted, classes + 1);
        }
    }
    if rare.0 > 1.0 {
        (sum, classes) = (sum + (rare.1 - rare.0).powi(2) / rare.0, classes + 1);
    }
    (sum, classes - 1)
}

#[test]
fn draws_have_the_distribution_of_float64() {
    let each = |seed: u64| {
        let drawn = Sampling::new(1.0, seed);
        [
            drawn.clone(),
            drawn.clone().with_temperature(2.5),
            drawn.clone().with_temperature(0.4).with_top_k(7),
            drawn.clone().with_top_p(0.8),
            drawn.clone().with_min_p(0.1).with_temperature(1.3),
            drawn.clone().with_typical_p(0.6),
            drawn.with_top_k(9).with_typical_p(0.95).with_top_p(0.9).with_min_p(0.05).with_temperature(0.8),
        ]
    };
    for (seed, draws, kinds) in [(1, 100_000, 7), (0xdead_beef_0000_0001, 20_000, 2)] {
        for sampling in each(seed).into_iter().take(kinds) {
            let (sum, freedom) = chi_square(&sampling, draws);
            // Beyond by one run in 10^5, by the normal approximation of Wilson and Hilferty; seeds are fixed.
            let spread = 2.0 / (9.0 * freedom as f64);
            let limit = freedom as f64 * (1.0 - spread + 4.27 * spread.sqrt()).powi(3);
            println!("{draws} draws: chi-square {sum:.2} of {freedom} degrees of freedom, the limit is {limit:.2}");
            assert!(sum < limit, "{sum} with {freedom} degrees of freedom: {sampling:?}");
            assert!(freedom >= 2, "{sampling:?}");
        }
    }
}

#[test]
fn each_filter_leaves_what_its_sentence_says() {
    let left = |sampling: Sampling| {
        let mut sampler = sampler(sampling.with_temperature(1.0));
        sampler.choose(&mut LOGITS.clone(), &[]).expect("finite logits");
        let mut ids: Vec<u32> = sampler.candidates.iter().map(|candidate| *candidate as u32).collect();
        ids.sort_unstable();
        ids
    };
    let all = Sampling::GREEDY;
    assert_eq!(left(all.clone()).len(), 12);
    assert_eq!(left(all.clone().with_top_k(1)), [2]);
    assert_eq!(left(all.clone().with_top_k(3)), [2, 3, 7], "of equals the lesser id");
    assert_eq!(left(all.clone().with_top_k(100)).len(), 12);
    assert_eq!(left(all.clone().with_top_p(1e-9)), [2]);
    // 0.35, 0.27, then 0.13 twice.
    assert_eq!(left(all.clone().with_top_p(0.5)), [2, 7]);
    assert_eq!(left(all.clone().with_top_p(0.7)), [2, 3, 7]);
    assert_eq!(left(all.clone().with_min_p(1.0)), [2]);
    // e^-0.25 is 0.78, e^-1 is 0.37.
    assert_eq!(left(all.clone().with_min_p(0.7)), [2, 7]);
    assert_eq!(left(all.clone().with_min_p(0.36)), [2, 3, 4, 7]);
    // The expected surprise lies near that of the third and fourth: the likeliest is not typical.
    assert_eq!(left(all.clone().with_typical_p(0.2)), [3, 4]);
    assert_eq!(left(all.clone().with_typical_p(1e-9)), [3]);
    assert_eq!(left(all.with_banned([2, 3])).len(), 10);
    let flat = |sampling: Sampling| {
        let mut sampler = Sampler::new(sampling.with_temperature(1.0), 5000).expect("in range");
        sampler.choose(&mut [0.25; 5000], &[]).expect("finite logits");
        sampler.candidates.iter().map(|candidate| *candidate as u32).collect::<Vec<u32>>()
    };
    assert_eq!(flat(Sampling::GREEDY.with_top_p(0.5)), (0..2500).collect::<Vec<u32>>(), "ties go by id");
    assert_eq!(flat(Sampling::GREEDY.with_typical_p(0.125)), (0..625).collect::<Vec<u32>>());
}

#[test]
fn biases_bans_and_penalties_change_logits_in_their_order() {
    let treated = |sampling: Sampling, tokens: &[u32]| {
        let mut logits = LOGITS;
        let chosen = sampler(sampling).choose(&mut logits, tokens).expect("finite logits");
        (logits, chosen)
    };
    let (logits, chosen) = treated(Sampling::GREEDY.with_logit_bias([(5, 9.0), (2, -1.0)]), &[]);
    assert_eq!((logits[5], logits[2], chosen), (5.0, 2.0, 5));
    // Those of one id are added up first: 1e4 + 1e-3 - 1e4 is less than 1e-3.
    let several = Sampling::GREEDY.with_logit_bias([(2, 1e4), (5, 1.0), (2, 1e-3), (2, -1e4)]);
    assert_eq!(treated(several, &[]).0[2], 3.0 + ((1e4 + 1e-3) - 1e4));
    let (logits, chosen) = treated(Sampling::GREEDY.with_banned([2]).with_logit_bias([(2, 100.0)]), &[]);
    assert_eq!((logits[2], chosen), (f32::NEG_INFINITY, 7));
    let penalties = Sampling::GREEDY.with_penalties(2.0, 0.5, 0.25);
    let (logits, chosen) = treated(penalties.clone(), &[2, 5, 2, 2]);
    assert_eq!((logits[2], logits[5], logits[7], chosen), (1.5 - 0.5 - 0.75, -8.0 - 0.5 - 0.25, 2.75, 7));
    let (logits, _) = treated(penalties.clone().with_penalty_window(1), &[2, 5, 2, 2]);
    assert_eq!((logits[2], logits[5]), (1.5 - 0.5 - 0.25, -4.0));
    assert_eq!(treated(penalties.clone().with_penalty_window(0), &[2]).0, LOGITS);
    let extreme = |logit: f32, penalties: Sampling| {
        let mut logits = [0.0, logit];
        Sampler::new(penalties, 2)
            .expect("in range")
            .choose(&mut logits, &[1])
            .map(|_| logits[1])
            .expect("one finite logit")
    };
    let (sharp, blunt) =
        (penalties.clone().with_penalties(100.0, 0.0, 0.0), penalties.clone().with_penalties(0.01, 0.0, 0.0));
    assert_eq!(
        (extreme(-3e38, sharp), extreme(3e38, blunt.clone())),
        (-f32::MAX, f32::MAX),
        "finite logits stay finite"
    );
    assert_eq!(extreme(f32::NEG_INFINITY, blunt), f32::NEG_INFINITY);
    let (logits, _) = treated(penalties.with_logit_bias([(2, -5.0)]), &[2]);
    assert_eq!(logits[2], -4.0 - 0.75, "the bias comes before the penalty");
}

#[test]
fn a_draw_depends_on_seed_and_position_and_on_nothing_else() {
    let draw = |seed, position| choose(&mut sampler(Sampling::new(1.5, seed)), position);
    let text = |seed| (0..64).map(|position| draw(seed, position)).collect::<Vec<u32>>();
    assert_eq!(text(3), text(3));
    assert_ne!(text(3), text(4));
    let mut used = sampler(Sampling::new(1.5, 3));
    let mut backwards: Vec<u32> = (0..64).rev().map(|position| choose(&mut used, position)).collect();
    backwards.reverse();
    assert_eq!(backwards, text(3), "in any order");
    let other: Vec<u32> = (0..64).map(|i| i % 12).collect();
    let among = sampler(Sampling::new(1.5, 3)).choose(&mut LOGITS.clone(), &other).expect("finite");
    assert_eq!(among, draw(3, 64), "the ids before do not count");
}

#[test]
fn greedy_takes_the_first_of_equals_and_low_temperatures_come_near_it() {
    let mut logits = [1.0, 5.0, -0.0, 5.0];
    assert_eq!(Sampler::new(Sampling::GREEDY, 4).expect("in range").choose(&mut logits, &[]).expect("finite"), 1);
    let mut zeros = [-0.0, 0.0, -1.0];
    assert_eq!(Sampler::new(Sampling::GREEDY, 3).expect("in range").choose(&mut zeros, &[]).expect("finite"), 0);
    let mut cold = sampler(Sampling::new(0.001, 9));
    assert!((0..200).all(|position| choose(&mut cold, position) == 2));
}

#[test]
fn odd_parameters_are_refused_by_name() {
    let refused = |sampling: Sampling, name: &str| match Sampler::new(sampling, 12) {
        Err(Error::InvalidArgument { what, .. }) => assert!(what.contains(name), "{what}: no `{name}`"),
        other => panic!("{name}: {other:?}"),
    };
    for odd in [f32::NAN, f32::INFINITY, -1.0, 1e-9, 1e9] {
        refused(Sampling::GREEDY.with_temperature(odd), "temperature");
    }
    for odd in [f32::NAN, f32::INFINITY, -0.5, 0.0, 1.5] {
        refused(Sampling::GREEDY.with_top_p(odd), "top_p");
        refused(Sampling::GREEDY.with_typical_p(odd), "typical_p");
    }
    for odd in [f32::NAN, f32::NEG_INFINITY, -0.5, 1.5] {
        refused(Sampling::GREEDY.with_min_p(odd), "min_p");
        refused(Sampling::GREEDY.with_penalties(odd, 0.0, 0.0).with_penalties(odd.min(0.0), 0.0, 0.0), "repetition");
    }
    for odd in [f32::NAN, f32::INFINITY, 1e5] {
        refused(Sampling::GREEDY.with_penalties(1.0, odd, 0.0), "presence");
        refused(Sampling::GREEDY.with_penalties(1.0, 0.0, odd), "frequency");
        refused(Sampling::GREEDY.with_logit_bias([(3, odd)]), "bias of token 3");
    }
    refused(Sampling::GREEDY.with_logit_bias([(12, 1.0)]), "token id");
    refused(Sampling::GREEDY.with_banned([u32::MAX]), "token id");
}

#[test]
fn logits_to_choose_from_are_numbers_of_which_one_is_allowed() {
    let choose = |mut logits: [f32; 3], sampling: Sampling| {
        Sampler::new(sampling, 3).expect("in range").choose(&mut logits, &[7, 8])
    };
    for logits in [[0.0, f32::NAN, 1.0], [0.0, 1.0, f32::INFINITY], [f32::NEG_INFINITY; 3]] {
        for sampling in [Sampling::GREEDY, Sampling::new(1.0, 1)] {
            let found = choose(logits, sampling);
            assert!(matches!(found, Err(Error::LogitsNotFinite { position: 1 })), "{logits:?}: {found:?}");
        }
    }
    let one = [f32::NEG_INFINITY, 0.5, f32::NEG_INFINITY];
    assert_eq!(choose(one, Sampling::new(1.0, 1)).expect("one is allowed"), 1);
    let none = choose([0.0, 1.0, 2.0], Sampling::new(1.0, 1).with_banned([0, 1, 2]));
    assert!(matches!(none, Err(Error::NoTokenAllowed { position: 2 })), "{none:?}");
}

#[test]
fn log_probabilities_are_float64s() {
    let total: f64 = LOGITS.iter().map(|logit| f64::from(*logit).exp()).sum();
    let exact = |id: u32| f64::from(LOGITS[id as usize]) - total.ln();
    let found = Logprobs::new(&LOGITS, 5, 4);
    assert!((f64::from(found.chosen) - exact(5)).abs() < 1e-6);
    assert_eq!(found.top.iter().map(|(id, _)| *id).collect::<Vec<u32>>(), [2, 7, 3, 4]);
    assert!(found.top.iter().all(|(id, p)| (f64::from(*p) - exact(*id)).abs() < 1e-6), "{found:?}");
    assert_eq!((Logprobs::new(&LOGITS, 0, 0).top.len(), Logprobs::new(&LOGITS, 0, 99).top.len()), (0, 12));
}
