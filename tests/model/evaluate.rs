//! What the `evaluate` example writes: logits at every position against float64, as an array that others read, and
//! perplexity.

#[path = "../../examples/evaluate/score.rs"]
pub(crate) mod score;
#[path = "../../examples/evaluate/npy.rs"]
mod write_npy;

use crate::json::Json;
use crate::npy::Npy;
use crate::{bake, common};
use kiln::Model;
use kiln::model::{KvType, ModelFile, PathChoice};
use kiln_emulator::{Checks, DeviceConfig};
use score::Perplexity;
use std::path::{Path, PathBuf};

fn load(path: impl AsRef<Path>) -> Model {
    // Kernels are checked elsewhere, on small shapes; here their numbers count.
    let device = common::device_with(DeviceConfig { checks: Checks::NONE, ..DeviceConfig::default() });
    let file = ModelFile::open(path).expect("a model");
    let baked = bake::model(&file, &device);
    Model::load(&device, baked, file, |_| {}).expect("it loads")
}

fn rows(model: &Model, kv: KvType, ids: &[u32], window: usize) -> Vec<Vec<f32>> {
    let options = common::exact().with_kv(kv).with_path(PathChoice::Stream).with_capacity(window as u32);
    let mut session = model.session(options).expect("a session");
    let mut rows = Vec::new();
    score::each_position(&mut session, ids, window, |position, logits| -> kiln::Result<()> {
        assert_eq!(position, rows.len());
        rows.push(logits.to_vec());
        Ok(())
    })
    .expect("it runs");
    rows
}

/// `|a - b| / |b|`.
fn relative(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let difference: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    (difference / b.iter().map(|b| b * b).sum::<f64>()).sqrt()
}

/// The models that are too large for the repository; the others' logits are compared whenever tests run.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn logits_of_the_larger_models_are_float64s() {
    let Some(folder) = std::env::var_os("KILN_TEST_DATA").map(PathBuf::from) else {
        eprintln!("SKIPPED: KILN_TEST_DATA does not name the folder with the larger reference models");
        return;
    };
    let long = common::is_long("the larger models' prompts behind their first ones");
    for (name, prompts) in [("demo.Q8_0", 5), ("demo.F16", 5), ("tiny3-d128.Q4_K_M", 2)] {
        let prompts = if long { prompts } else { 1 };
        let folder = folder.join(name);
        let model = load(folder.join("model.gguf"));
        for (kv, bounds) in [(KvType::F32, [1e-5, f64::INFINITY]), (KvType::F16, [1e-3, 2e-4])] {
            let (mut sums, mut positions) = ([0.0; 2], 0);
            for prompt in 0..prompts {
                let ids = Json::open(folder.join(format!("prompt{prompt}.json"))).get("ids").ids();
                let found = rows(&model, kv, &ids, 512);
                for (sum, kind) in sums.iter_mut().zip(["f64", "f64_f16kv"]) {
                    let expected = Npy::open(folder.join(format!("prompt{prompt}.{kind}.npy")));
                    assert_eq!((found.len(), found[0].len()), (expected.rows, expected.columns));
                    *sum += (0..found.len()).map(|row| relative(&found[row], &expected.row(row))).sum::<f64>();
                }
                positions += found.len();
            }
            let means = sums.map(|sum| sum / positions as f64);
            println!(
                "{name}, {kv:?} cache, {positions} positions: {:.2e} to f64, {:.2e} to f64_f16kv",
                means[0], means[1]
            );
            for (mean, bound) in means.iter().zip(bounds) {
                assert!(*mean <= bound, "{name}, {kv:?} cache: {mean:e} is more than {bound:e}");
            }
        }
    }
}

#[test]
fn a_window_begins_with_an_empty_cache() {
    let model = load(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny3-d64.Q4_K_M/model.gguf"));
    let ids = [5, 600, 7, 5, 600];
    let (cut, whole) = (rows(&model, KvType::F16, &ids, 3), rows(&model, KvType::F16, &ids, 5));
    assert_eq!(cut[..3], whole[..3]);
    assert_eq!(cut[3..], whole[..2], "the second window holds what the first began with");
    assert_ne!(whole[3..], whole[..2]);
}

#[test]
fn a_full_context_has_logits_on_every_path() {
    let model = load(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny3-d64.Q4_K_M/model.gguf"));
    let ids = [5, 600, 7];
    let run = |path, capacity| {
        let options = common::exact().with_path(path).with_capacity(capacity);
        let mut session = model.session(options).expect("a session");
        session.append(&ids).expect("it fits");
        session.logits().expect("logits")
    };
    let roomy = run(PathChoice::Stream, 64);
    for path in [PathChoice::Stream, PathChoice::Graph, PathChoice::Persistent] {
        assert_eq!(run(path, 3), roomy, "{path:?}");
    }
}

#[test]
fn perplexity_is_the_inverse_of_the_geometric_mean_of_probabilities() {
    let mut perplexity = Perplexity::default();
    assert_eq!(perplexity.value(), None);
    // Probabilities 1/4 and 1/2, from logits that would overflow if taken as they are.
    perplexity.add(&[1000.0; 4], 3);
    perplexity.add(&[-1000.0, -1000.0, f32::NEG_INFINITY], 1);
    let value = perplexity.value().expect("two tokens");
    assert!((value - 8f64.sqrt()).abs() < 1e-12, "{value}");
}

#[test]
fn arrays_come_back_as_they_were_written() {
    for (rows, columns) in [(1, 1), (3, 5), (1234, 7)] {
        let numbers: Vec<f32> = (0..rows * columns).map(|i| i as f32 / 3.0 - 7.5).collect();
        let mut bytes = Vec::new();
        write_npy::write_header(&mut bytes, rows, columns).expect("memory has room");
        assert_eq!((bytes.len() % 64, bytes.last()), (0, Some(&b'\n')), "as NumPy aligns it");
        numbers.chunks(columns).for_each(|row| write_npy::write_row(&mut bytes, row).expect("memory has room"));
        let path = std::env::temp_dir().join(format!("kiln-{}-{rows}.npy", std::process::id()));
        std::fs::write(&path, bytes).expect("a temporary file");
        let read = Npy::open(&path);
        std::fs::remove_file(&path).expect("it was there");
        assert_eq!(read, Npy { rows, columns, values: numbers });
    }
}
