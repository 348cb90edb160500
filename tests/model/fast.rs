//! Fast numerics of whole models: as near to float64 as llama.cpp, whose activations are rounded alike, and the same bits
//! on every path, grid and chip.

use crate::json::Json;
use crate::npy::Npy;
use crate::random::Random;
use crate::{bake, common, presets};
use kiln::Model;
use kiln::driver::{Device, Driver};
use kiln::model::{GenerateOptions, KvType, ModelFile, Numerics, PathChoice, Session, SessionOptions};
use kiln_emulator::{Checks, DeviceConfig, Schedule};
use std::ffi::CStr;
use std::path::{Path, PathBuf};

/// The models in the repository, and llama.cpp's mean relative distance to float64 on their prompts, as
/// `tests/data/README.md` has it.
const MODELS: [(&str, f64); 3] = [("demo.Q4_K_M", 0.016), ("tiny3-d64.Q4_K_M", 0.030), ("tiny2-d64.Q4_K_M", 0.024)];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn open(path: &Path, config: DeviceConfig) -> Model {
    let device = common::device_with(config);
    let file = ModelFile::open(path).expect("a model");
    let baked = bake::model(&file, &device);
    Model::load(&device, baked, file, |_| {}).expect("it loads")
}

/// A model of the repository on a device that checks nothing, since its kernels are checked elsewhere.
fn quick(name: &str, config: DeviceConfig) -> Model {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/demo.Q4_K_M.gguf");
    let path = if name == "demo.Q4_K_M" { demo } else { folder(name).join("model.gguf") };
    open(&path, DeviceConfig { checks: Checks::NONE, ..config })
}

fn session(model: &Model, path: PathChoice, blocks: Option<u32>) -> Session {
    let options = SessionOptions::default().with_numerics(Numerics::Fast).with_path(path).with_blocks(blocks);
    model.session(options.with_capacity(256)).expect("a session")
}

/// Logits behind each of some ids, given one by one.
fn rows(session: &mut Session, ids: &[u32]) -> Vec<Vec<f32>> {
    let mut row = |id: &u32| {
        session.append(&[*id]).expect("it fits");
        session.logits().expect("logits")
    };
    ids.iter().map(&mut row).collect()
}

fn relative(a: impl IntoIterator<Item = f64>, b: &[f64]) -> f64 {
    let difference: f64 = a.into_iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
    (difference / b.iter().map(|b| b * b).sum::<f64>()).sqrt()
}

fn best(row: impl IntoIterator<Item = f64>) -> usize {
    let of = |(index, value), best: (usize, f64)| if value > best.1 { (index, value) } else { best };
    row.into_iter().enumerate().fold((0, f64::NEG_INFINITY), |best, new| of(new, best)).0
}

/// How far float64's best logit is ahead of its second.
fn lead(expected: &[f64]) -> f64 {
    let first = best(expected.iter().copied());
    let others = expected.iter().enumerate().filter(|(id, _)| *id != first);
    expected[first] - others.fold(f64::NEG_INFINITY, |most, (_, logit)| most.max(*logit))
}

/// Mean distance to float64, positions whose best id is float64's, those where it is not although that leads by more than
/// rounding decides, and positions.
struct Distance {
    sum: f64,
    agree: usize,
    missed: usize,
    positions: usize,
}

impl Distance {
    /// `noise`: the lead that rounding may turn.
    fn add(&mut self, row: impl IntoIterator<Item = f64> + Clone, expected: &[f64], noise: f64) {
        self.sum += relative(row.clone(), expected);
        let agrees = best(row) == best(expected.iter().copied());
        self.agree += usize::from(agrees);
        self.missed += usize::from(!agrees && lead(expected) > noise);
        self.positions += 1;
    }

    fn mean(&self) -> f64 {
        self.sum / self.positions as f64
    }
}

const NONE: Distance = Distance { sum: 0.0, agree: 0, missed: 0, positions: 0 };

/// Distances of kiln, and of llama.cpp where `llama` says that its logits are there, over the prompts of a folder.
fn distances(model: &Model, folder: &Path, llama: bool) -> [Distance; 2] {
    let mut found = [NONE, NONE];
    for prompt in (0..).map(|i| folder.join(format!("prompt{i}.json"))).take_while(|path| path.exists()) {
        let ids = Json::open(&prompt).get("ids").ids();
        let expected = Npy::open(prompt.with_extension("f64.npy"));
        let other = llama.then(|| Npy::open(prompt.with_extension("llama.npy")));
        let mut session = session(model, PathChoice::Stream, None);
        for (position, logits) in rows(&mut session, &ids).iter().enumerate() {
            let expected = expected.row(position);
            let other = other.as_ref().map(|other| other.row(position));
            // Two logits that are each off by llama.cpp's root mean square, twice their difference's.
            let noise = other.as_ref().map_or(0.0, |other| {
                let squares: f64 = other.iter().zip(&expected).map(|(one, other)| (one - other).powi(2)).sum();
                2.0 * (2.0 * squares / expected.len() as f64).sqrt()
            });
            found[0].add(logits.iter().map(|logit| f64::from(*logit)), &expected, noise);
            if let Some(other) = other {
                found[1].add(other, &expected, noise);
            }
        }
    }
    found
}

#[test]
fn fast_logits_are_as_near_to_float64_as_llama_cpp() {
    for (name, llama) in MODELS {
        let [fast, _] = distances(&quick(name, DeviceConfig::default()), &folder(name), false);
        println!("{name}: {:.4} from float64, llama.cpp {llama}; {} of {}", fast.mean(), fast.agree, fast.positions);
        assert!(fast.mean() <= 1.1 * llama, "{name}: {:e}", fast.mean());
        assert!(fast.mean() > 1e-4, "{name}: {:e} is exact numerics' distance", fast.mean());
    }
}

/// With llama.cpp's own logits: of every reference model that is at hand. Where float64's first two ids are nearer to each
/// other than rounding moves them, either may come first.
#[test]
fn fast_logits_choose_float64s_id_as_often_as_llama_cpp() {
    if !common::is_long("every reference model's logits in fast numerics") {
        return;
    }
    let Some(data) = std::env::var_os("KILN_TEST_DATA").map(PathBuf::from) else {
        eprintln!("SKIPPED: KILN_TEST_DATA does not name the folder with the larger reference models");
        return;
    };
    for name in ["demo.Q4_K_M", "demo.Q8_0", "demo.F16", "tiny3-d64.Q4_K_M", "tiny3-d128.Q4_K_M", "tiny2-d64.Q4_K_M"] {
        let folder = data.join(name);
        let model = open(&folder.join("model.gguf"), DeviceConfig { checks: Checks::NONE, ..DeviceConfig::default() });
        let [fast, llama] = distances(&model, &folder, true);
        let ratio = fast.mean() / llama.mean();
        println!(
            "{name}: {:.5} from float64, llama.cpp {:.5}, {ratio:.2} times; best id {} and {} of {}, missed {} and {}",
            fast.mean(),
            llama.mean(),
            fast.agree,
            llama.agree,
            fast.positions,
            fast.missed,
            llama.missed
        );
        assert!(ratio <= 1.1, "{name}: {ratio}");
        assert!(fast.missed <= llama.missed, "{name}: {} and {}", fast.missed, llama.missed);
        assert!(fast.agree >= llama.agree, "{name}: {} and {}", fast.agree, llama.agree);
    }
}

/// Bits of attention over an f16 cache are promised per target: sm_75 has an `mma` of half the depth.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn fast_logits_have_the_same_bits_on_every_path_grid_and_chip_of_a_target() {
    let mut random = Random::fresh();
    let ids: Vec<u32> = (0..3).map(|_| random.below(2048)).collect();
    for name in ["tiny3-d64.Q4_K_M", "tiny2-d64.Q4_K_M"] {
        for chips in [[(7, 5); 2], [(8, 0), (9, 0)]] {
            let first = DeviceConfig::with_sm(chips[0].0, chips[0].1);
            let expected = rows(&mut session(&quick(name, first), PathChoice::Stream, None), &ids);
            let (schedule, seed) = (Schedule::Random, random.next());
            let chip = DeviceConfig::with_sm(chips[1].0, chips[1].1);
            let model = quick(name, DeviceConfig { multiprocessors: 7, schedule, seed, ..chip });
            for (path, blocks) in [
                (PathChoice::Stream, None),
                (PathChoice::Graph, None),
                (PathChoice::Persistent, Some(1)),
                (PathChoice::Persistent, Some(2)),
                (PathChoice::Persistent, Some(7)),
            ] {
                let found = rows(&mut session(&model, path, blocks), &ids);
                assert_eq!(found, expected, "{name}, {chips:?}, {path:?}, {blocks:?}");
            }
        }
    }
}

/// Where attention has several units, and at the first position of one: the last positions of a class of lengths that a
/// graph is captured for, and the first of the next.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn fast_attention_has_the_same_bits_on_every_path_and_grid() {
    let mut random = Random::fresh();
    let ids: Vec<u32> = (0..130).map(|_| random.below(2048)).collect();
    let [few, many] = [7, 132]
        .map(|multiprocessors| quick("tiny3-d64.Q4_K_M", DeviceConfig { multiprocessors, ..DeviceConfig::default() }));
    for border in [64, 128] {
        let found = |model: &Model, path, blocks| {
            let mut session = session(model, path, blocks);
            session.append(&ids[..border - 1]).expect("it fits");
            rows(&mut session, &ids[border - 1..border + 2])
        };
        let expected = found(&few, PathChoice::Stream, None);
        assert_eq!(found(&few, PathChoice::Graph, None), expected, "graph, {border}");
        for blocks in [1, 2, 7] {
            assert_eq!(found(&few, PathChoice::Persistent, Some(blocks)), expected, "{blocks} blocks, {border}");
        }
        for path in [PathChoice::Stream, PathChoice::Graph] {
            assert_eq!(found(&many, path, None), expected, "{path:?} on 132 multiprocessors, {border}");
        }
        assert_eq!(found(&many, PathChoice::Persistent, Some(132)), expected, "132 blocks, {border}");
    }
}

/// Each position of a whole batch, and of what is left behind it.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn every_position_of_a_batch_has_the_logits_it_has_alone() {
    let mut random = Random::fresh();
    let ids: Vec<u32> = (0..Session::BATCH as u32 + 9).map(|_| random.below(2048)).collect();
    let model = quick("tiny3-d64.Q4_K_M", DeviceConfig { multiprocessors: 7, ..DeviceConfig::default() });
    let options = SessionOptions::default().with_numerics(Numerics::Fast).with_path(PathChoice::Stream);
    let begun = || model.session(options.with_capacity(ids.len() as u32)).expect("a session");
    let alone = rows(&mut begun(), &ids);
    let (mut together, mut seen) = (begun(), 0);
    together.append(&ids).expect("they fit");
    together
        .each_logits(|position, logits| -> kiln::Result<()> {
            assert!(logits == alone[position], "position {position}");
            seen += 1;
            Ok(())
        })
        .expect("logits");
    assert_eq!(seen, ids.len());
}

/// Beyond the first chunk of the cache too, in either numerics.
#[test]
fn a_layer_of_the_stream_path_takes_six_launches() {
    let model = quick("tiny3-d64.Q4_K_M", DeviceConfig::default());
    let layers = u64::from(model.shape().layers);
    for numerics in Numerics::ALL {
        let options = SessionOptions::default().with_numerics(numerics).with_path(PathChoice::Stream);
        let mut session = model.session(options.with_capacity(256)).expect("a session");
        session.append(&[7; 129]).expect("it fits");
        session.prefill().expect("all but the last run");
        let before = session.work().launches;
        session.logits().expect("logits");
        // The embedding, the layers, the head and the choice.
        let found = session.work().launches - before;
        assert_eq!(found, 6 * layers + 3, "{numerics}: {:?}", session.work());
    }
}

/// A sequence split into appends at random, with tokens chosen in between, has the logits of one append.
#[test]
fn fast_logits_do_not_depend_on_how_a_prompt_was_given() {
    let mut random = Random::fresh();
    let model = quick("tiny3-d64.Q4_K_M", DeviceConfig { multiprocessors: 3, ..DeviceConfig::default() });
    let ids: Vec<u32> = (0..40).map(|_| random.below(2048)).collect();
    let mut whole = session(&model, PathChoice::Stream, None);
    whole.append(&ids).expect("it fits");
    let expected = whole.logits().expect("logits");
    for path in [PathChoice::Stream, PathChoice::Graph, PathChoice::Persistent] {
        let mut session = session(&model, path, None);
        let mut rest = &ids[..];
        while !rest.is_empty() {
            let (part, later) = rest.split_at(1 + random.below(rest.len() as u32) as usize);
            session.append(part).expect("it fits");
            let here = ids.len() - later.len();
            session.generate(GenerateOptions::new(2)).collect::<kiln::Result<Vec<u32>>>().expect("it generates");
            session.truncate(here);
            rest = later;
        }
        assert_eq!(session.logits().expect("logits"), expected, "{path:?}");
    }
}

/// How a part of a sequence is run.
#[derive(Debug, Clone, Copy)]
enum Run {
    /// All but its last token.
    Prefill,
    /// With the logits of every token.
    Each,
    /// With those of the last one.
    Last,
    /// With so many tokens chosen behind it, which belong to the sequence.
    Generate(usize),
}

/// A sequence of at least `count` tokens in random parts: each way with a few tokens, with some, and with so many as have
/// tiles, before one comes again.
fn parts(random: &mut Random, count: usize) -> Vec<(Vec<u32>, Run)> {
    let (mut parts, mut len, mut left) = (Vec::new(), 0, Vec::new());
    while len < count {
        if left.is_empty() {
            left.extend(0..12);
        }
        let kind: usize = left.swap_remove(random.below(left.len() as u32) as usize);
        let most = [3, 20, 70][kind % 3].min(count - len);
        let ids: Vec<u32> = (0..1 + random.below(most as u32)).map(|_| random.below(2048)).collect();
        let run = match kind / 3 {
            0 => Run::Prefill,
            1 => Run::Each,
            2 => Run::Last,
            _ => Run::Generate(1 + random.below(5) as usize),
        };
        len += ids.len() + if let Run::Generate(made) = run { made } else { 0 };
        parts.push((ids, run));
    }
    parts
}

/// What each way of running tokens gives, and what it leaves for the next: logits behind every position, where they are asked
/// for, and those of every position behind what stands in the cache in the end.
fn has_one_by_ones_logits_in_any_mix(random: &mut Random, kv: KvType) {
    const LEAST: usize = 300;
    let parts = parts(random, LEAST);
    let model = quick("tiny3-d64.Q4_K_M", DeviceConfig { multiprocessors: 3, ..DeviceConfig::default() });
    let options = SessionOptions::default().with_numerics(Numerics::Fast).with_kv(kv).with_capacity(LEAST as u32 + 5);
    let begun = |path| model.session(options.with_path(path)).expect("a session");
    let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();

    let (mut alone, mut expected) = (begun(PathChoice::Stream), Vec::new());
    for (ids, run) in &parts {
        expected.extend(rows(&mut alone, ids));
        for _ in 0..if let Run::Generate(made) = run { *made } else { 0 } {
            let chosen = best(expected[expected.len() - 1].iter().map(|logit| f64::from(*logit)));
            expected.extend(rows(&mut alone, &[chosen as u32]));
        }
    }
    let expected: Vec<_> = expected.iter().map(|row| bits(row)).collect();

    for path in [PathChoice::Stream, PathChoice::Graph, PathChoice::Persistent] {
        let what = format!("{path:?}, {kv:?}");
        let mut session = begun(path);
        for (ids, run) in &parts {
            session.append(ids).expect("they fit");
            match *run {
                Run::Prefill => session.prefill().expect("it runs"),
                Run::Each => {
                    let mut last = 0;
                    session
                        .each_logits(|position, logits| -> kiln::Result<()> {
                            assert!(bits(logits) == expected[position], "{what}: position {position} of {parts:?}");
                            last = position;
                            Ok(())
                        })
                        .expect("logits");
                    assert_eq!(last + 1, session.tokens().len(), "{what}");
                }
                Run::Last => {
                    let (found, position) = (session.logits().expect("logits"), session.tokens().len() - 1);
                    assert!(bits(&found) == expected[position], "{what}: position {position} of {parts:?}");
                }
                Run::Generate(made) => {
                    let made = session.generate(GenerateOptions::new(made));
                    made.collect::<kiln::Result<Vec<u32>>>().expect("it generates");
                }
            }
        }
        assert_eq!(session.tokens(), alone.tokens(), "{what}: {parts:?}");
        for position in (0..expected.len()).rev() {
            session.truncate(position + 1);
            let found = session.logits().expect("logits");
            assert!(bits(&found) == expected[position], "{what}: position {position} behind {parts:?}");
        }
    }
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn parts_that_are_run_in_different_ways_have_the_logits_of_one_by_one() {
    has_one_by_ones_logits_in_any_mix(&mut Random::fresh(), KvType::F16);
}

#[test]
#[ignore = "most of a minute; .ci/long runs it"]
fn many_mixes_of_ways_to_run_have_the_logits_of_one_by_one() {
    let mut random = Random::fresh();
    for kv in [KvType::F16, KvType::F32, KvType::F16, KvType::F16] {
        has_one_by_ones_logits_in_any_mix(&mut random, kv);
    }
}

/// Seconds that 64 tokens take at once, and one by one: the best of some rounds.
fn seconds(model: &Model, ids: &[u32], rounds: usize) -> [f64; 2] {
    let mut best = [f64::MAX; 2];
    for _ in 0..rounds {
        for (best, together) in best.iter_mut().zip([ids.len(), 1]) {
            let mut session = session(model, PathChoice::Stream, None);
            session.append(&ids[..1]).expect("it fits");
            session.logits().expect("logits");
            session.truncate(0);
            let begin = std::time::Instant::now();
            for some in ids.chunks(together) {
                session.append(some).expect("it fits");
                session.logits().expect("logits");
            }
            *best = best.min(begin.elapsed().as_secs_f64());
        }
    }
    let [together, alone] = best;
    println!("{} tokens at once {together:.4} s, one by one {alone:.4} s: {:.1} times", ids.len(), alone / together);
    best
}

/// Times within one run, with all checks as tests have them, and with none. `-- --ignored --nocapture` prints them.
#[test]
#[ignore = "a ratio of times, which tests beside it change; .ci/long runs it alone"]
fn a_prompt_is_emulated_many_times_as_fast_as_its_tokens() {
    let mut random = Random::fresh();
    let ids: Vec<u32> = (0..64).map(|_| random.below(512)).collect();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/demo.Q4_K_M.gguf");
    let [together, alone] = seconds(&open(&demo, DeviceConfig::default()), &ids, 2);
    assert!(alone > 8.0 * together, "with all checks {together} and {alone} s");
    let [together, alone] = seconds(&quick("demo.Q4_K_M", DeviceConfig::default()), &ids, 9);
    assert!(alone > 6.0 * together, "without checks {together} and {alone} s");
}

/// Tokens of a prompt go several at once: what a token has one launch for has one then too, and attention another for the
/// rounding of its results. The first layer's is the embedding's.
#[test]
fn tokens_of_a_prompt_share_their_launches() {
    shares_launches(DeviceConfig::default());
}

/// By the instructions of sm_75, which has no copies that run on, and products of half the size.
#[test]
fn tokens_of_a_prompt_share_their_launches_on_sm_75() {
    shares_launches(DeviceConfig::with_sm(7, 5));
}

fn shares_launches(chip: DeviceConfig) {
    let mut random = Random::fresh();
    let model = quick("tiny3-d64.Q4_K_M", chip);
    let ids: Vec<u32> = (0..71).map(|_| random.below(2048)).collect();
    let launches = |parts: &mut dyn Iterator<Item = &[u32]>| {
        let mut session = session(&model, PathChoice::Stream, None);
        for part in parts {
            session.append(part).expect("it fits");
            session.prefill().expect("it runs");
        }
        let logits = session.logits().expect("logits");
        assert_eq!(session.work().tokens, 71);
        (logits, session.work().launches)
    };
    let (expected, alone) = launches(&mut ids.chunks(1));
    let layers = u64::from(model.shape().layers);
    let last = 6 * layers + 3;
    assert_eq!(alone, 70 * (6 * layers + 2) + last);
    // A long prompt's tiles, and after a prefix, whose room it has not.
    for parts in [vec![&ids[..]], vec![&ids[..3], &ids[3..]]] {
        let passes = parts.len() as u64;
        let (found, together) = launches(&mut parts.into_iter());
        assert_eq!(found, expected);
        assert_eq!(together, passes * (7 * layers + 2) + last);
    }
    // Where the choice is asked for with them the last token is one of them, and only the head and the choice come behind.
    for prefix in [0, 3] {
        let mut session = session(&model, PathChoice::Stream, None);
        session.append(&ids[..prefix]).expect("it fits");
        session.prefill().expect("it runs");
        session.append(&ids[prefix..]).expect("it fits");
        let before = session.work().launches;
        assert_eq!(session.logits().expect("logits"), expected);
        assert_eq!(session.work().launches - before, 7 * layers + 2 + 2);
    }
}

/// A prompt of more than a batch: at once, by batches, ended between them, and in other parts; on a chip that its attention
/// fills, and on one that takes it in units.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn batches_of_a_prompt_have_the_bits_of_its_parts() {
    let mut random = Random::fresh();
    let ids: Vec<u32> = (0..Session::BATCH as u32 + 90).map(|_| random.below(2048)).collect();
    let [few, many] = [2, 1000].map(|multiprocessors| batches(&ids, multiprocessors));
    assert_eq!(few, many);
}

/// Logits behind a prompt on a chip.
fn batches(ids: &[u32], multiprocessors: u32) -> Vec<f32> {
    let model = quick("tiny3-d64.Q4_K_M", DeviceConfig { multiprocessors, ..DeviceConfig::default() });
    let options = SessionOptions::default().with_numerics(Numerics::Fast).with_path(PathChoice::Stream);
    let begun = |ids: &[u32]| {
        let mut session = model.session(options.with_capacity(Session::BATCH as u32 + 90)).expect("a session");
        session.append(ids).expect("it fits");
        session
    };
    let mut in_parts = begun(&ids[..250]);
    for part in ids[250..].chunks(250) {
        in_parts.prefill().expect("it runs");
        in_parts.append(part).expect("it fits");
    }
    let expected = in_parts.logits().expect("logits");
    let mut at_once = begun(ids);
    assert_eq!(at_once.logits().expect("logits"), expected);
    assert_eq!(at_once.work().launches, 2 * (7 * u64::from(model.shape().layers) + 2) + 2);
    // The last batch runs with the choice.
    let (mut by_batches, mut told) = (begun(ids), Vec::new());
    let tell = |ran, all| {
        told.push((ran, all));
        false
    };
    assert!(by_batches.prefill_by_batches(tell).expect("it runs"), "all have run that are to run here");
    assert_eq!(told, [(90, 90)]);
    assert_eq!(by_batches.logits().expect("logits"), expected);
    expected
}

/// Tiles by products of warpgroups, which are the fastest where few multiprocessors share large matrices: a prompt has the
/// logits that it has by tiles of eight columns.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn a_prompt_by_products_of_warpgroups_has_the_bits_of_its_parts() {
    if common::is_left_out_on_gpu("a GPU does not tell which kernels ran") {
        return;
    }
    let _turn = presets::turn();
    let mut random = Random::fresh();
    let ids: Vec<u32> = (0..150).map(|_| random.below(2048)).collect();
    let cut = presets::Cut::write("qwen3-0-6b");
    let config = DeviceConfig { counters: true, checks: Checks::NONE, multiprocessors: 2, ..Default::default() };
    let model = cut.load(config.clone());
    let logits = |model: &Model, each: usize| {
        let ordinal = model.device().ordinal();
        let mut session = session(model, PathChoice::Stream, None);
        kiln_emulator::clear_reports(ordinal);
        for part in ids.chunks(each) {
            session.append(part).expect("it fits");
            session.prefill().expect("it runs");
        }
        let found = session.logits().expect("logits");
        (found, kiln_emulator::reports(ordinal).iter().any(|report| report.kernel == "gemm_warpgroups"))
    };
    let (expected, by_warpgroups) = logits(&model, 8);
    assert!(!by_warpgroups, "tiles of eight columns take no warpgroups");
    let (found, by_warpgroups) = logits(&model, ids.len());
    assert!(by_warpgroups, "a prompt of 150 tokens goes by products of warpgroups");
    assert_eq!(found, expected);

    // A driver that makes no tensor maps.
    let resolve = |name: &CStr| match name.to_bytes() {
        b"cuTensorMapEncodeTiled" => std::ptr::null(),
        _ => kiln_emulator::resolve(name).map_or(std::ptr::null(), |found| found.as_ptr()),
    };
    // SAFETY: the emulator's functions have NVIDIA's signatures.
    let old = unsafe { Driver::from_resolver(resolve) }.expect("the others are there");
    let device = Device::open(&old, kiln_emulator::add_device(config)).expect("the device was added");
    let (found, by_warpgroups) = logits(&cut.load_on(&device), ids.len());
    assert!(!by_warpgroups, "rows come by tensor maps");
    assert_eq!(found, expected);
}

/// Behind a prefix that has run, in whole batches and their rests; one by one where a path has no batches.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn logits_of_every_token_are_those_of_one_by_one() {
    let mut random = Random::fresh();
    let ids: Vec<u32> = (0..71).map(|_| random.below(2048)).collect();
    for name in ["tiny3-d64.Q4_K_M", "tiny2-d64.Q4_K_M"] {
        let model = quick(name, DeviceConfig { multiprocessors: 7, ..DeviceConfig::default() });
        let expected = rows(&mut session(&model, PathChoice::Stream, None), &ids);
        for (path, count, in_batches) in
            [(PathChoice::Stream, 71, true), (PathChoice::Graph, 71, true), (PathChoice::Persistent, 6, false)]
        {
            let mut session = session(&model, path, None);
            session.append(&ids[..3]).expect("it fits");
            session.prefill().expect("all but the last run");
            session.append(&ids[3..count]).expect("it fits");
            let mut found = Vec::new();
            let launches = session.work().launches;
            session
                .each_logits(|position, logits| -> kiln::Result<()> {
                    assert_eq!(position, 2 + found.len());
                    found.push(logits.to_vec());
                    Ok(())
                })
                .expect("it runs");
            assert_eq!(found, expected[2..count], "{name}, {path:?}");
            let (launches, layers) = (session.work().launches - launches, u64::from(model.shape().layers));
            if in_batches {
                // The embeddings, the layers, and a head of 64 and of the rest, each after rounding.
                assert!(launches <= 7 * layers + 6, "{name}, {path:?}: {launches} launches");
            }
            session.each_logits(|_, _| -> kiln::Result<()> { panic!("all have run") }).expect("nothing to run");
        }
    }
}

/// What a caller returns ends it, and the session goes on from what has run.
#[test]
fn logits_of_every_token_end_where_the_caller_fails() {
    let model = quick("tiny3-d64.Q4_K_M", DeviceConfig::default());
    let mut random = Random::fresh();
    let ids: Vec<u32> = (0..9).map(|_| random.below(2048)).collect();
    let expected = rows(&mut session(&model, PathChoice::Stream, None), &ids);
    let mut session = session(&model, PathChoice::Stream, None);
    session.append(&ids).expect("it fits");
    let mut seen = 0;
    let failed = session.each_logits(|position, _| {
        seen += 1;
        if position == 4 { Err(kiln::Error::EmptySession) } else { Ok(()) }
    });
    assert!(matches!(failed, Err(kiln::Error::EmptySession)), "{failed:?}");
    assert_eq!(seen, 5);
    assert_eq!(session.logits().expect("logits"), expected[8]);
}

/// With every check on: races, uninitialised memory, bounds.
#[test]
fn fast_ids_are_the_streams_with_every_check_on() {
    let path = folder("tiny3-d64.Q4_K_M").join("model.gguf");
    let schedules = [Schedule::RoundRobin, Schedule::Adversarial];
    for (kv, schedule) in [KvType::F16, KvType::F32].into_iter().zip(schedules) {
        let model = open(&path, DeviceConfig { multiprocessors: 2, schedule, ..DeviceConfig::default() });
        let ids = |path| {
            let options = SessionOptions::default().with_kv(kv).with_path(path).with_capacity(64);
            let mut session = model.session(options).expect("a session");
            session.append(&[5, 600, 7]).expect("it fits");
            session.generate(GenerateOptions::new(3)).collect::<kiln::Result<Vec<u32>>>().expect("it generates")
        };
        let expected = ids(PathChoice::Stream);
        for path in [PathChoice::Graph, PathChoice::Persistent] {
            assert_eq!(ids(path), expected, "{kv:?}, {path:?}");
        }
    }
}
