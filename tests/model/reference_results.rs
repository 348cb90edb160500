//! The float64 reference that the tests use, against two results that others computed.

use crate::json::Json;
use crate::npy::Npy;
use crate::reference::{Cache, Reference, relative_l2, round_to_f16};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn agrees_on(model: &str, file: &str, prompts: usize) {
    let reference = Reference::open(format!("{ROOT}/{file}"));
    for prompt in 0..prompts {
        let stem = format!("{ROOT}/tests/data/{model}/prompt{prompt}");
        let json = Json::open(format!("{stem}.json"));
        for (cache, name) in [(Cache::F64, "f64"), (Cache::F16, "f64_f16kv")] {
            let expected = Npy::open(format!("{stem}.{name}.npy"));
            let logits = reference.logits(&json.get("ids").ids(), cache);
            assert_eq!((logits.len(), logits[0].len()), (expected.rows, expected.columns));
            for (position, logits) in logits.iter().enumerate() {
                let error = relative_l2(logits, &expected.row(position));
                assert!(error <= 1e-6, "{model} prompt {prompt} {name} position {position}: {error:e}");
            }
        }
        let expected = Npy::open(format!("{stem}.f64.npy"));
        let last = expected.row(expected.rows - 1);
        let best = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
        assert_eq!(best as u32, json.get("greedy_f64").ids()[0], "the first generated token");
    }
}

#[test]
fn reference_agrees_on_the_demo_model() {
    agrees_on("demo.Q4_K_M", "examples/data/demo.Q4_K_M.gguf", 5);
}

#[test]
fn reference_agrees_on_qwen2() {
    agrees_on("tiny2-d64.Q4_K_M", "tests/data/tiny2-d64.Q4_K_M/model.gguf", 2);
}

#[test]
fn reference_agrees_on_qwen3() {
    agrees_on("tiny3-d64.Q4_K_M", "tests/data/tiny3-d64.Q4_K_M/model.gguf", 2);
}

/// Other types and an untied head, where the whole data folder is at hand.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn reference_agrees_on_q8_0_f16_and_an_untied_head() {
    let Some(folder) = std::env::var_os("KILN_TEST_DATA") else {
        eprintln!("SKIPPED: KILN_TEST_DATA does not name the folder with the larger reference models");
        return;
    };
    let folder = folder.to_string_lossy();
    for (model, prompts) in [("demo.Q8_0", 5), ("demo.F16", 5), ("tiny3-d128.Q4_K_M", 2)] {
        let reference = Reference::open(format!("{folder}/{model}/model.gguf"));
        for prompt in 0..prompts {
            let stem = format!("{folder}/{model}/prompt{prompt}");
            let expected = Npy::open(format!("{stem}.f64.npy"));
            let logits = reference.logits(&Json::open(format!("{stem}.json")).get("ids").ids(), Cache::F64);
            let worst = (0..expected.rows).map(|i| relative_l2(&logits[i], &expected.row(i))).fold(0.0, f64::max);
            assert!(worst <= 1e-6, "{model} prompt {prompt}: {worst:e}");
        }
    }
}

#[test]
fn rounding_to_f16_is_to_nearest_even() {
    let cases = [
        (1.0, 1.0),
        (1.0 + 1.0 / 2048.0, 1.0),                // half a step: to even
        (1.0 + 3.0 / 2048.0, 1.0 + 2.0 / 1024.0), // half a step: to even, upwards
        (-0.1, -0.0999755859375),
        (65504.0, 65504.0),
        (65520.0, f64::INFINITY),
        (65519.9, 65504.0),
        (2f64.powi(-24), 2f64.powi(-24)),
        (2f64.powi(-25), 0.0),
        (2f64.powi(-25) * 1.01, 2f64.powi(-24)),
        (0.0, 0.0),
    ];
    for (x, rounded) in cases {
        assert_eq!(round_to_f16(x), rounded, "{x}");
    }
}
