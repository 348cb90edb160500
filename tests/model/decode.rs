//! Whole models against float64: the ids they generate, and their logits, on every path.

use crate::json::Json;
use crate::npy::Npy;
use crate::{bake, common};
use kiln::Model;
use kiln::model::{GenerateOptions, KvType, ModelFile, PathChoice, Session};
use kiln_emulator::{Checks, DeviceConfig};
use std::path::{Path, PathBuf};

fn data(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(model)
}

/// A model on a device that checks nothing: what is looked at here is arithmetic, over hundreds of tokens. The same
/// kernels run with every check on in `kernels` and `persistent`.
fn open(model: &str) -> Model {
    open_on(DeviceConfig::default(), model)
}

/// The same on a device of this chip.
fn open_on(chip: DeviceConfig, model: &str) -> Model {
    let device = common::device_with(DeviceConfig { checks: Checks::NONE, multiprocessors: 7, ..chip });
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/demo.Q4_K_M.gguf");
    let path = if model == "demo.Q4_K_M" { demo } else { data(model).join("model.gguf") };
    let file = ModelFile::open(path).expect("a model");
    let baked = bake::model(&file, &device);
    Model::load(&device, baked, file, |_| {}).expect("it loads")
}

fn session(model: &Model, kv: KvType, path: PathChoice, blocks: Option<u32>) -> Session {
    model
        .session(common::exact().with_kv(kv).with_path(path).with_blocks(blocks).with_capacity(512))
        .expect("a session")
}

/// A prompt with what was made of it in float64.
struct Prompt {
    ids: Vec<u32>,
    greedy: Vec<u32>,
    gaps: Vec<f64>,
    f64: Npy,
    f64_f16kv: Npy,
}

fn prompts(model: &str) -> Vec<Prompt> {
    let folder = data(model);
    (0..)
        .map(|i| folder.join(format!("prompt{i}.json")))
        .take_while(|path| path.exists())
        .enumerate()
        .map(|(i, path)| {
            let json = Json::open(path);
            Prompt {
                ids: json.get("ids").ids(),
                greedy: json.get("greedy_f64").ids(),
                gaps: json.get("greedy_f64_gap").f64s(),
                f64: Npy::open(folder.join(format!("prompt{i}.f64.npy"))),
                f64_f16kv: Npy::open(folder.join(format!("prompt{i}.f64_f16kv.npy"))),
            }
        })
        .collect()
}

/// Ids up to the first place where the two best logits are closer than `gap`.
fn sure(prompt: &Prompt, gap: f64) -> &[u32] {
    let sure = prompt.gaps.iter().take_while(|found| **found >= gap).count();
    &prompt.greedy[..sure]
}

fn greedy_ids(path: PathChoice, kv: KvType, gap: f64) {
    let model = open("demo.Q4_K_M");
    let prompts = prompts("demo.Q4_K_M");
    assert_eq!(prompts.len(), 5);
    let long = common::is_long("three of the five prompts, and 40 of the 64 tokens behind each");
    let (some, most) = if long { (5, 64) } else { (2, 24) };
    for (i, prompt) in prompts[..some].iter().enumerate() {
        let expected = sure(prompt, gap);
        let expected = &expected[..expected.len().min(most)];
        assert!(expected.len() > 4, "prompt {i} says too little");
        let mut session = session(&model, kv, path, Some(2));
        session.append(&prompt.ids).expect("the prompt fits");
        let options = GenerateOptions::new(expected.len());
        let ids: Vec<u32> = session.generate(options).collect::<kiln::Result<_>>().expect("it generates");
        assert_eq!(ids, expected, "prompt {i}");
    }
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn ids_equal_float64_on_the_stream_path_with_f16_cache() {
    greedy_ids(PathChoice::Stream, KvType::F16, 1e-3);
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn ids_equal_float64_on_the_stream_path_with_f32_cache() {
    greedy_ids(PathChoice::Stream, KvType::F32, 1e-4);
}

#[test]
fn ids_equal_float64_on_the_persistent_path_with_f16_cache() {
    greedy_ids(PathChoice::Persistent, KvType::F16, 1e-3);
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn ids_equal_float64_on_the_persistent_path_with_f32_cache() {
    greedy_ids(PathChoice::Persistent, KvType::F32, 1e-4);
}

/// `|a - b| / |b|`.
fn relative(a: &[f32], b: &[f64]) -> f64 {
    let difference: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    let norm: f64 = b.iter().map(|b| b * b).sum();
    (difference / norm).sqrt()
}

/// Mean distances to float64, and to float64 with an f16 cache, over all positions of some prompts.
fn distances(name: &str, kv: KvType) -> (f64, f64) {
    let model = open(name);
    let enough = if common::is_long("positions beyond the first prompts") { usize::MAX } else { 24 };
    let (mut exact, mut rounded, mut positions) = (0.0, 0.0, 0);
    for prompt in prompts(name) {
        let mut session = session(&model, kv, PathChoice::Stream, None);
        for (position, id) in prompt.ids.iter().enumerate() {
            session.append(&[*id]).expect("it fits");
            let logits = session.logits().expect("logits");
            exact += relative(&logits, &prompt.f64.row(position));
            rounded += relative(&logits, &prompt.f64_f16kv.row(position));
            positions += 1;
        }
        if positions >= enough {
            break;
        }
    }
    assert!(positions >= enough.min(48), "{positions} positions");
    (exact / positions as f64, rounded / positions as f64)
}

fn logits_within_tolerance(name: &str) {
    let (exact, _) = distances(name, KvType::F32);
    println!("{name}, f32 cache: {exact:.2e} to float64");
    assert!(exact <= 1e-5, "f32 cache: {exact:e}");
    let (exact, rounded) = distances(name, KvType::F16);
    println!("{name}, f16 cache: {exact:.2e} to float64, {rounded:.2e} to float64 with f16 cache");
    assert!(rounded <= 2e-4 && exact <= 1e-3, "f16 cache: {rounded:e}, {exact:e}");
}

#[test]
fn logits_of_the_demo_model_are_float64s() {
    logits_within_tolerance("demo.Q4_K_M");
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn logits_of_a_qwen2_model_are_float64s() {
    logits_within_tolerance("tiny2-d64.Q4_K_M");
}

#[test]
fn logits_of_a_qwen3_model_are_float64s() {
    logits_within_tolerance("tiny3-d64.Q4_K_M");
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn logits_have_the_same_bits_on_every_path_and_grid() {
    let model = open("tiny3-d64.Q4_K_M");
    let prompt = &prompts("tiny3-d64.Q4_K_M")[0];
    let ids = &prompt.ids[..4];
    let run = |path, blocks| -> Vec<Vec<u32>> {
        let mut session = session(&model, KvType::F16, path, blocks);
        let mut all = Vec::new();
        for id in ids {
            session.append(&[*id]).expect("it fits");
            all.push(bits(&session.logits().expect("logits")));
        }
        all
    };
    let stream = run(PathChoice::Stream, None);
    assert!(run(PathChoice::Graph, None) == stream, "graphs");
    for blocks in [1, 2, 7] {
        assert!(run(PathChoice::Persistent, Some(blocks)) == stream, "{blocks} blocks");
    }
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn ids_and_logits_have_the_same_bits_on_every_chip() {
    let ids = &prompts("demo.Q4_K_M")[0].ids[..4];
    let run = |chip: DeviceConfig| -> Vec<(Vec<u32>, Vec<u32>)> {
        let model = open_on(chip, "demo.Q4_K_M");
        let of = |path| {
            let mut session = session(&model, KvType::F16, path, None);
            session.append(ids).expect("it fits");
            let made = session.generate(GenerateOptions::new(4)).collect::<kiln::Result<_>>().expect("it generates");
            (made, bits(&session.logits().expect("logits")))
        };
        [PathChoice::Stream, PathChoice::Graph, PathChoice::Persistent].map(of).into()
    };
    // Approximate instructions err by the seed, as they do by the chip.
    let perturbed = |seed, chip| DeviceConfig { perturb: true, seed, ..chip };
    let first = run(perturbed(1, DeviceConfig::with_sm(9, 0)));
    assert!(first.iter().all(|found| *found == first[0]), "the paths");
    for (seed, (major, minor)) in [(2, (9, 0)), (3, (8, 0)), (4, (7, 5))] {
        let found = run(perturbed(seed, DeviceConfig::with_sm(major, minor)));
        assert!(found == first, "seed {seed}, sm_{major}{minor}");
    }
}
