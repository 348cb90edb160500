//! Tokens that a constraint allows, on the demo model.

use crate::random::Random;
use crate::rules::{BANNED, Few};
use crate::text::model;
use kiln::model::{Constraint, End, GenerateOptions, Numerics, PathChoice, Sampling, SessionOptions, TokenSet};
use kiln::text::Special;
use kiln::{Error, Session};
use std::sync::{Arc, Mutex};

/// Allows these ids in turn, one list for each token, and notes what was chosen.
#[derive(Debug)]
struct Listed {
    lists: Vec<Vec<u32>>,
    chosen: Arc<Mutex<Vec<u32>>>,
}

impl Constraint for Listed {
    fn restrict(&mut self, allowed: &mut TokenSet) -> kiln::Result<()> {
        let list = self.lists.get(self.chosen.lock().expect("no panic").len()).cloned().unwrap_or_default();
        (0..allowed.vocab()).filter(|id| !list.contains(id)).for_each(|id| allowed.remove(id));
        Ok(())
    }

    fn accept(&mut self, id: u32) -> kiln::Result<()> {
        self.chosen.lock().expect("no panic").push(id);
        Ok(())
    }
}

#[test]
fn only_what_is_allowed_is_chosen_and_what_must_come_is_not_run_for() {
    let (model, tokenizer) = model();
    let options = SessionOptions::default().with_path(PathChoice::Stream).with_capacity(128);
    let prompt = tokenizer.encode("The borrow checker", Special::Plain);
    let session = || {
        let mut session = model.session(options).expect("a session");
        session.append(&prompt).expect("it fits");
        session
    };
    let lists = vec![vec![5], vec![6], vec![7, 300], vec![8], vec![]];
    let run = |session: &mut Session, sampling: Sampling| {
        let chosen = Arc::default();
        let rules = Listed { lists: lists.clone(), chosen: Arc::clone(&chosen) };
        let options = GenerateOptions::new(9).with_sampling(sampling);
        let mut generation = session.generate(options).with_constraint(rules);
        let made: Vec<_> = generation.by_ref().collect();
        assert_eq!(generation.end(), Some(End::Cancelled));
        drop(generation);
        let ids: Vec<u32> = made.iter().filter_map(|token| token.as_ref().ok().copied()).collect();
        assert!(matches!(made.last(), Some(Err(Error::NoTokenAllowed { position })) if *position == prompt.len() + 4));
        assert_eq!(ids, *chosen.lock().expect("no panic"));
        ids
    };
    let mut constrained = session();
    let ids = run(&mut constrained, Sampling::GREEDY);
    assert_eq!((&ids[..2], ids[3]), (&[5, 6][..], 8));
    // The one choice that there was is that of the logits behind what was forced.
    let mut plain = session();
    plain.append(&ids[..2]).expect("it fits");
    let logits = plain.logits().expect("it runs");
    assert_eq!(ids[2], if logits[7] >= logits[300] { 7 } else { 300 });
    // The prompt and both forced tokens ran once, and the last tokens have not.
    assert_eq!(constrained.work().tokens, prompt.len() as u64 + 2);
    assert_eq!(constrained.logits().expect("it runs"), {
        plain.append(&ids[2..]).expect("it fits");
        plain.logits().expect("it runs")
    });
    // A draw keeps to it as well, and biases do not lead out.
    let drawn = Sampling::new(1.5, 3).with_logit_bias([(9, 1000.0)]);
    assert!([7, 300].contains(&run(&mut session(), drawn)[2]));
}

#[test]
fn devices_choose_from_what_is_allowed_as_the_host_does() {
    let (model, tokenizer) = model();
    let prompt = tokenizer.encode("The borrow checker", Special::Plain);
    let mut random = Random::fresh();
    let drawn = Sampling::new(1.2, random.next()).with_top_p(0.9).with_penalties(1.2, 0.0, 0.3);
    let sampling = drawn.with_banned(BANNED).with_logit_bias([(8, 2.0), (300, -1.0)]);
    for numerics in random.some_of(1, [Numerics::Exact, Numerics::Fast]) {
        let rules = Few(random.fork());
        let generate = |path, logprobs| {
            let options = SessionOptions::default().with_path(path).with_capacity(128).with_numerics(numerics);
            let mut session = model.session(options).expect("a session");
            session.append(&prompt).expect("it fits");
            let options = GenerateOptions::new(8).with_sampling(sampling.clone()).with_logprobs(logprobs);
            let mut generation = session.generate(options).with_constraint(rules.clone());
            let mut made = Vec::new();
            while let Some(token) = generation.next() {
                let logprob = generation.logprobs().map(|found| found.chosen.to_bits());
                made.push((token.expect("no fault"), logprob));
            }
            assert_eq!(generation.end(), Some(End::Length));
            made
        };
        // Beside the likeliest tokens' log-probabilities the host chooses.
        let expected = generate(PathChoice::Stream, Some(1));
        for path in [PathChoice::Stream, PathChoice::Graph, PathChoice::Persistent] {
            assert_eq!(generate(path, Some(0)), expected, "{path:?}, {numerics:?}, {sampling:?}");
            let tokens = |made: Vec<(u32, Option<u32>)>| made.into_iter().map(|(token, _)| token).collect::<Vec<u32>>();
            assert_eq!(tokens(generate(path, None)), tokens(expected.clone()), "{path:?}, {numerics:?}, {sampling:?}");
        }
    }
}

#[test]
fn sets_of_tokens_are_masks() {
    let mut set = TokenSet::all(70);
    assert!(set.contains(0) && set.contains(69) && !set.contains(70) && !set.contains(500));
    set.keep(&[0b101, 0, u32::MAX]);
    set.remove(64);
    let mut logits = [1.0; 70];
    set.mask(&mut logits);
    let left: Vec<usize> = (0..70).filter(|id| logits[*id] == 1.0).collect();
    assert_eq!((left, set.only()), (vec![0, 2, 65, 66, 67, 68, 69], None));
    set.keep(&[0b100]);
    assert_eq!(set.only(), Some(2));
    set.keep(&[]);
    assert_eq!((set.only(), set.contains(2)), (None, false));
}
