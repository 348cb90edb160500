//! How well fast numerics foretell a text, against exact ones: perplexity within half a percent.

use crate::evaluate::score::{self, Perplexity};
use crate::{bake, common};
use kiln::Model;
use kiln::model::{ModelFile, Numerics, PathChoice, SessionOptions};
use kiln::text::{Special, Tokenizer};
use kiln_emulator::{Checks, DeviceConfig};
use std::path::{Path, PathBuf};

/// The difference that fast numerics may make.
const BOUND: f64 = 0.005;
/// Tokens of a text in a context of its own.
const WINDOW: usize = 128;

/// The perplexity of the first `tokens` tokens of a text in each of these numerics.
fn perplexities(path: &Path, text: &str, tokens: usize, numerics: &[Numerics]) -> Vec<f64> {
    let device = common::device_with(DeviceConfig { checks: Checks::NONE, ..DeviceConfig::default() });
    let file = ModelFile::open(path).expect("a model");
    let mut ids = Tokenizer::from_gguf(file.gguf()).expect("a tokenizer").encode(text, Special::Plain);
    assert!(ids.len() >= tokens, "the text has {} tokens", ids.len());
    ids.truncate(tokens);
    // This program has kernels for the demo model, unless it was built without the feature `tiny`.
    let baked = file.baked().unwrap_or_else(|_| bake::model(&file, &device));
    let model = Model::load(&device, baked, file, |_| {}).expect("it loads");
    let of = |numerics: &Numerics| {
        let options = SessionOptions::default().with_numerics(*numerics).with_path(PathChoice::Stream);
        let mut session = model.session(options.with_capacity(WINDOW as u32)).expect("a session");
        let mut perplexity = Perplexity::default();
        score::each_position(&mut session, &ids, WINDOW, |position, logits| -> kiln::Result<()> {
            if let Some(next) = ids.get(position + 1).filter(|_| !(position + 1).is_multiple_of(WINDOW)) {
                perplexity.add(logits, *next);
            }
            Ok(())
        })
        .expect("it runs");
        perplexity.value().expect("some tokens")
    };
    numerics.iter().map(of).collect()
}

fn is_near(name: &str, tokens: usize, exact: f64, fast: f64) {
    let off = fast / exact - 1.0;
    println!("{name}, {tokens} tokens: {exact:.4} exact, {fast:.4} fast, {:+.2} %", 100.0 * off);
    assert!(off.abs() <= BOUND, "{name}: {exact} exact, {fast} fast");
}

fn both_are_near(name: &str, path: &Path, tokens: usize) {
    let found = perplexities(path, &text(), tokens, &[Numerics::Exact, Numerics::Fast]);
    is_near(name, tokens, found[0], found[1]);
}

/// Text of the kind that the demo model was trained on.
fn text() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("LICENSE-APACHE");
    std::fs::read_to_string(file).expect("the licence")
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/demo.Q4_K_M.gguf")
}

/// Tokens of the short form, and exact numerics' perplexity of them, which takes the emulator longer than fast numerics'.
const SHORT: (usize, f64) = (60, 33.1311);

#[test]
fn fast_perplexity_is_exact_perplexity_within_half_a_percent() {
    let (tokens, exact) = SHORT;
    let fast = perplexities(&demo(), &text(), tokens, &[Numerics::Fast]);
    is_near("demo.Q4_K_M", tokens, exact, fast[0]);
    if common::is_long("exact perplexity, and all but 60 tokens of the text") {
        let found = perplexities(&demo(), &text(), tokens, &[Numerics::Exact]);
        assert!((found[0] / exact - 1.0).abs() < 1e-5, "exact perplexity of {tokens} tokens is {}", found[0]);
        both_are_near("demo.Q4_K_M", &demo(), 1024);
    }
}

#[test]
fn fast_perplexity_of_the_larger_models_is_exact_perplexity_within_half_a_percent() {
    let Some(folder) = std::env::var_os("KILN_TEST_DATA").map(PathBuf::from) else {
        eprintln!("SKIPPED: KILN_TEST_DATA does not name the folder with the larger reference models");
        return;
    };
    if common::is_long("perplexity of the larger models") {
        for name in ["demo.Q8_0", "demo.F16"] {
            both_are_near(name, &folder.join(name).join("model.gguf"), 512);
        }
    }
}
