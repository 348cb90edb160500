//! Every published shape decodes: a cut to two layers and a small vocabulary, random weights in the Q4_K_M mix, against
//! float64; and with the same bits on both paths, and of prompts as of their tokens one by one.
//!
//! `KILN_TEST_PRESETS=1 cargo test --release -p kiln --test model presets` runs all of them; without the variable only the
//! smallest.

use crate::random::Random;
use crate::reference::{Cache, Reference, relative_l2};
use crate::synth_model::{Mix, SynthModel};
use crate::{bake, common};
use kiln::Model;
use kiln::driver::Device;
use kiln::model::{KvType, ModelFile, Numerics, PathChoice, SessionOptions};
use kiln_emulator::{Checks, DeviceConfig};
use kiln_shape::{ModelShape, presets};
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The tokens that are run.
const IDS: [u32; 3] = [1999, 3, 640];
/// Mean relative distance to float64 that exact numerics with an f32 cache may have.
const TOLERANCE: f64 = 1e-5;
/// The presets that every run of the tests includes: the smallest, and the one whose rows end within a super-block.
const SMALLEST: [&str; 2] = ["qwen3-0-6b", "qwen2-5-0-5b"];

/// One at a time: each uses every core, and hundreds of megabytes.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the large presets are run; says so where they are not.
pub(crate) fn wanted(feature: &str) -> bool {
    let all = std::env::var("KILN_TEST_PRESETS").is_ok_and(|value| value == "1");
    if !all {
        eprintln!("SKIPPED: {feature}: real shapes are run with KILN_TEST_PRESETS=1");
    }
    all
}

/// A file with two layers of a preset; removed when dropped.
pub(crate) struct Cut(pub(crate) PathBuf);

impl Cut {
    pub(crate) fn write(feature: &str) -> Cut {
        let preset = presets::by_name(feature).expect("a preset");
        let shape = ModelShape { layers: 2, vocab: 2048, ..preset.shape };
        let cut = Cut(std::env::temp_dir().join(format!("kiln-cut-{feature}-{}.gguf", std::process::id())));
        let file = BufWriter::with_capacity(1 << 20, File::create(&cut.0).expect("a temporary file"));
        SynthModel { shape, mix: Mix::Q4KM, seed: 1 }.write(file, |_, _| {}).expect("it fits the disk");
        cut
    }

    pub(crate) fn load(&self, config: DeviceConfig) -> Model {
        self.load_on(&common::device_with(config))
    }

    pub(crate) fn load_on(&self, device: &Device) -> Model {
        let file = ModelFile::open(&self.0).expect("a model");
        let baked = bake::model(&file, device);
        Model::load(device, baked, file, |_| {}).expect("it loads")
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Logits after each of `ids`.
fn logits(model: &Model, ids: &[u32], path: PathChoice, blocks: Option<u32>) -> Vec<Vec<f32>> {
    logits_in(Numerics::Exact, model, ids, path, blocks)
}

fn logits_in(numerics: Numerics, model: &Model, ids: &[u32], path: PathChoice, blocks: Option<u32>) -> Vec<Vec<f32>> {
    let options = SessionOptions::default().with_numerics(numerics).with_kv(KvType::F32);
    let options = options.with_path(path).with_blocks(blocks).with_capacity(64);
    let mut session = model.session(options).expect("a session");
    let mut next = |id: &u32| {
        session.append(&[*id]).expect("it fits");
        session.logits().unwrap_or_else(|error| panic!("{error}: {:?}", common::fault(model.device())))
    };
    ids.iter().map(&mut next).collect()
}

fn is_float64s(feature: &str) {
    let _turn = turn();
    let begin = Instant::now();
    let cut = Cut::write(feature);
    let written = begin.elapsed();
    let expected = Reference::open(&cut.0).logits(&IDS, Cache::F64);
    let computed = begin.elapsed() - written;
    // What the emulator checks is checked on small shapes; here the numbers count.
    let model = cut.load(DeviceConfig { checks: Checks::NONE, ..DeviceConfig::default() });
    let found = logits(&model, &IDS, PathChoice::Stream, None);
    let ran = begin.elapsed() - written - computed;
    let mean = |found: &[Vec<f32>]| {
        let found = found.iter().map(|row| row.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>());
        let errors: Vec<f64> = found.zip(&expected).map(|(found, expected)| relative_l2(&found, expected)).collect();
        errors.iter().sum::<f64>() / errors.len() as f64
    };
    let exact = mean(&found);
    let before_fast = begin.elapsed();
    let fast_logits = logits_in(Numerics::Fast, &model, &IDS, PathChoice::Stream, None);
    let (fast, fast_ran) = (mean(&fast_logits), begin.elapsed() - before_fast);
    println!(
        "{feature}: {exact:.2e} to float64, fast {fast:.2e}; written in {written:.1?}, float64 {computed:.1?}, kernels \
         {ran:.1?}, fast {fast_ran:.1?}"
    );
    assert!(exact <= TOLERANCE, "{feature}: {exact:e} to float64");
    // An activation is off by 0.4 % of the greatest near it, at most; a model of random weights by some such.
    assert!((1e-4..=0.05).contains(&fast), "{feature}: fast {fast:e} to float64");
    let persistent = logits_in(Numerics::Fast, &model, &IDS[..1], PathChoice::Persistent, Some(7));
    assert_eq!(persistent[..], fast_logits[..1], "{feature}: both paths of fast numerics");
}

/// Lengths of prompts: few tokens, and more than a tile has columns.
const PROMPTS: [usize; 2] = [9, 70];

/// In fast numerics over the default cache, on a chip of few multiprocessors and on one of many: tiles and attention are
/// chosen by their number.
fn reads_prompts_with_the_bits_of_one_by_one(feature: &str) {
    let _turn = turn();
    let mut random = Random::fresh();
    let ids: Vec<u32> = (0..PROMPTS[1]).map(|_| random.below(2048)).collect();
    let cut = Cut::write(feature);
    let options = SessionOptions::default().with_numerics(Numerics::Fast).with_path(PathChoice::Stream);
    let begun = |model: &Model| model.session(options.with_capacity(128)).expect("a session");
    let load =
        |multiprocessors| cut.load(DeviceConfig { multiprocessors, checks: Checks::NONE, ..DeviceConfig::default() });
    let model = load(8);
    let begin = Instant::now();
    let mut alone = begun(&model);
    let mut next = |id: &u32| {
        alone.append(&[*id]).expect("it fits");
        bits(&alone.logits().expect("logits"))
    };
    let expected: Vec<_> = ids.iter().map(&mut next).collect();
    println!("{feature}: {} ids one by one in {:.1?}", ids.len(), begin.elapsed());
    for model in [model, load(132)] {
        let multiprocessors = model.device().multiprocessors();
        for count in PROMPTS {
            let begin = Instant::now();
            let mut at_once = begun(&model);
            at_once.append(&ids[..count]).expect("they fit");
            let found = bits(&at_once.logits().expect("logits"));
            let what = format!("{feature}, {count} ids, {multiprocessors} multiprocessors");
            println!("{what}: at once in {:.1?}", begin.elapsed());
            let differing = found.iter().zip(&expected[count - 1]).filter(|(one, other)| one != other).count();
            assert_eq!(differing, 0, "{what}: so many logits differ");
            // One by one each token has six launches for a layer.
            let launches = at_once.work().launches;
            assert!(launches <= 30, "{what}: {launches} launches are no batch's");
        }
    }
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

macro_rules! presets {
    ($($(#[$attribute:meta])* $test:ident $(#[$of_prompts:meta])* $prompts:ident $feature:literal)*) => {
        $(
            #[test]
            $(#[$attribute])*
            fn $test() {
                if SMALLEST.contains(&$feature) || wanted($feature) {
                    is_float64s($feature);
                }
            }

            #[test]
            $(#[$of_prompts])*
            fn $prompts() {
                if SMALLEST.contains(&$feature) || wanted($feature) {
                    reads_prompts_with_the_bits_of_one_by_one($feature);
                }
            }
        )*

        #[test]
        fn no_published_preset_is_left_out() {
            let published = presets::all().filter(|preset| preset.shape.vocab > 100_000);
            assert_eq!(published.map(|preset| preset.feature).collect::<Vec<_>>(), [$($feature),*]);
        }
    };
}

presets! {
    qwen2_5_3b_is_float64s qwen2_5_3b_reads_prompts_with_the_bits_of_one_by_one "qwen3b"
    qwen2_5_0_5b_is_float64s
    #[ignore = "longer; .ci/run runs it"]
    qwen2_5_0_5b_reads_prompts_with_the_bits_of_one_by_one "qwen2-5-0-5b"
    qwen2_5_1_5b_is_float64s qwen2_5_1_5b_reads_prompts_with_the_bits_of_one_by_one "qwen2-5-1-5b"
    qwen2_5_7b_is_float64s qwen2_5_7b_reads_prompts_with_the_bits_of_one_by_one "qwen2-5-7b"
    #[ignore = "longer; .ci/run runs it"]
    qwen3_0_6b_is_float64s
    #[ignore = "longer; .ci/run runs it"]
    qwen3_0_6b_reads_prompts_with_the_bits_of_one_by_one "qwen3-0-6b"
    qwen3_1_7b_is_float64s qwen3_1_7b_reads_prompts_with_the_bits_of_one_by_one "qwen3-1-7b"
    qwen3_4b_is_float64s qwen3_4b_reads_prompts_with_the_bits_of_one_by_one "qwen3-4b"
    qwen3_8b_is_float64s qwen3_8b_reads_prompts_with_the_bits_of_one_by_one "qwen3-8b"
    qwen3_14b_is_float64s qwen3_14b_reads_prompts_with_the_bits_of_one_by_one "qwen3-14b"
    qwen3_32b_is_float64s qwen3_32b_reads_prompts_with_the_bits_of_one_by_one "qwen3-32b"
}

fn has_the_same_bits_on_both_paths(feature: &str) {
    if !wanted(feature) {
        return;
    }
    let _turn = turn();
    let cut = Cut::write(feature);
    // All checks are on: that blocks wait for each other where they must is what is at stake.
    let model = cut.load(DeviceConfig::h200());
    let begin = Instant::now();
    let stream = bits(&logits(&model, &IDS[..2], PathChoice::Stream, None).concat());
    println!("{feature}: stream in {:.1?}", begin.elapsed());
    for blocks in [7, 132] {
        if blocks > model.device().multiprocessors() {
            eprintln!("SKIPPED: {feature} with {blocks} blocks: the device has not as many multiprocessors");
            continue;
        }
        let begin = Instant::now();
        let persistent = bits(&logits(&model, &IDS[..2], PathChoice::Persistent, Some(blocks)).concat());
        println!("{feature}: persistent, {blocks} blocks, in {:.1?}", begin.elapsed());
        assert_eq!(stream.len(), persistent.len());
        let differing = stream.iter().zip(&persistent).filter(|(stream, persistent)| stream != persistent).count();
        assert_eq!(differing, 0, "{feature}, {blocks} blocks: so many of {} logits differ", stream.len());
    }
    assert_eq!(common::fault(model.device()), None);
}

#[test]
fn qwen2_5_0_5b_has_the_same_bits_on_both_paths() {
    has_the_same_bits_on_both_paths("qwen2-5-0-5b");
}

#[test]
fn qwen2_5_3b_has_the_same_bits_on_both_paths() {
    has_the_same_bits_on_both_paths("qwen3b");
}

#[test]
fn qwen3_8b_has_the_same_bits_on_both_paths() {
    has_the_same_bits_on_both_paths("qwen3-8b");
}
