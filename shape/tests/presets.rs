//! Presets against each other and against real files.

use kiln_shape::{Family, Gguf, ModelShape, WeightType, WeightTypes, presets};

fn real_file(path: &str) -> Gguf {
    let path = format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"));
    Gguf::open(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn every_name_and_alias_finds_one_preset() {
    let mut names: Vec<&str> = presets::all().flat_map(|p| p.aliases.iter().copied().chain([p.feature])).collect();
    for name in &names {
        assert!(presets::by_name(name).is_some_and(|p| p.feature == *name || p.aliases.contains(name)));
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "_-+".contains(c)), "{name} is no feature name");
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert_eq!(presets::by_name("qwen3b"), presets::by_name("qwen2-5-3b"));
    assert_eq!(presets::by_name("llama"), None);
}

#[test]
fn cache_bytes_per_token_are_the_published_ones() {
    let table = [
        ("qwen3b", 36864),
        ("qwen2-5-0-5b", 12288),
        ("qwen2-5-1-5b", 28672),
        ("qwen2-5-7b", 57344),
        ("qwen3-0-6b", 114688),
        ("qwen3-1-7b", 114688),
        ("qwen3-4b", 147456),
        ("qwen3-8b", 147456),
        ("qwen3-14b", 163840),
        ("qwen3-32b", 262144),
        ("tiny", 2048),
    ];
    for (name, bytes) in table {
        assert_eq!(presets::by_name(name).unwrap().shape.kv_bytes_per_token(2), bytes, "{name}");
    }
}

#[test]
fn a_file_has_the_shape_of_its_preset() {
    let files = [
        ("examples/data/demo.Q4_K_M.gguf", "tiny"),
        ("tests/data/tiny2-d64.Q4_K_M/model.gguf", "tiny2-d64"),
        ("tests/data/tiny3-d64.Q4_K_M/model.gguf", "tiny3-d64"),
    ];
    for (path, name) in files {
        let gguf = real_file(path);
        let shape = ModelShape::from_gguf(&gguf).unwrap();
        assert_eq!(shape, presets::by_name(name).unwrap().shape, "{path}");
        let types = shape.check_tensors(&gguf).unwrap();
        assert_eq!(types, WeightTypes::of(&[WeightType::Q4_K, WeightType::Q6_K]));
        assert_eq!(presets::fitting(&shape).map(|p| p.feature).collect::<Vec<_>>(), [name]);
    }
}

#[test]
fn only_baked_values_count_as_differences() {
    let tiny = presets::by_name("tiny").unwrap().shape;
    let launch =
        ModelShape { layers: 9, vocab: 7, tied_head: false, rope_theta: 5e6, rms_eps: 1e-5, context: 8, ..tiny };
    assert_eq!(tiny.baked_differences(&launch), []);

    let qwen2 = presets::by_name("tiny2-d64").unwrap().shape;
    let lines: Vec<String> = tiny.baked_differences(&qwen2).iter().map(ToString::to_string).collect();
    assert_eq!(lines, ["ffn: baked 768, file 512", "qkv_bias: baked no, file yes", "qk_norm: baked yes, file no"]);
}

#[test]
fn every_baked_value_counts_as_a_difference() {
    let tiny = presets::by_name("tiny").unwrap().shape;
    let changed = [
        ("hidden", ModelShape { hidden: 512, ..tiny }),
        ("ffn", ModelShape { ffn: 512, ..tiny }),
        ("heads", ModelShape { heads: 8, ..tiny }),
        ("kv_heads", ModelShape { kv_heads: 1, ..tiny }),
        ("head_dim", ModelShape { head_dim: 128, ..tiny }),
        ("qkv_bias", ModelShape { qkv_bias: true, ..tiny }),
        ("qk_norm", ModelShape { qk_norm: false, ..tiny }),
    ];
    for (name, shape) in changed {
        assert_eq!(tiny.baked_differences(&shape).iter().map(|d| d.name).collect::<Vec<_>>(), [name]);
    }
}

/// The mix that llama.cpp writes: what a token reads is every matrix once, one embedding row of an untied model aside.
#[test]
fn weight_bytes_per_token_are_the_published_ones() {
    let more_bits = |i: u32, n: u32| i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
    for (name, gigabytes) in [
        ("qwen3b", 1.924),
        ("qwen2-5-7b", 4.371),
        ("qwen3-0-6b", 0.391),
        ("qwen3-1-7b", 1.102),
        ("qwen3-4b", 2.491),
        ("qwen3-8b", 4.672),
        ("qwen3-14b", 8.558),
    ] {
        use kiln_shape::TensorRole::*;
        let shape = presets::by_name(name).unwrap().shape;
        let bytes: u64 = shape
            .tensors()
            .filter(|spec| spec.role != TokenEmbedding || shape.tied_head)
            .map(|spec| {
                let ty = match (spec.role, spec.layer) {
                    (TokenEmbedding | Output, _) => WeightType::Q6_K,
                    (AttnV | FfnDown, Some(layer)) if more_bits(layer, shape.layers) => WeightType::Q6_K,
                    (role, _) if role.is_matrix() => WeightType::Q4_K,
                    _ => WeightType::F32,
                };
                ty.tensor_bytes(&spec.dims).unwrap()
            })
            .sum();
        let published = gigabytes * 1e9; // given to a thousandth
        assert!((bytes as f64 - published).abs() < 1e6, "{name}: {bytes} bytes, published {published}");
    }
}

#[test]
fn a_shape_tells_its_family_by_its_fields() {
    for preset in presets::all() {
        let family = Family::of(&preset.shape).expect("a preset is of a family");
        assert_eq!(family == Family::Qwen2, preset.shape.qkv_bias, "{}", preset.feature);
    }
    let neither = ModelShape { qkv_bias: true, qk_norm: true, ..presets::by_name("tiny").expect("a preset").shape };
    assert_eq!(Family::of(&neither), None);
}
