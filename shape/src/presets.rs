//! Published models by the name of the cargo feature that bakes them.

use crate::{Family, ModelShape, RopePairing, WeightType, WeightTypes};

/// A named shape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Preset {
    /// Name of the cargo feature.
    pub feature: &'static str,
    /// Other names of the same feature.
    pub aliases: &'static [&'static str],
    /// Name of the model as its publisher writes it.
    pub model: &'static str,
    /// Its shape.
    pub shape: ModelShape,
    /// The types of matrices that kernels are baked for: those of the publisher's quantised files. Cargo features add
    /// others: see [`feature_of`].
    pub types: WeightTypes,
}

/// The K-quants and Q8_0.
const QUANTS: WeightTypes = WeightTypes::of(&[WeightType::Q4_K, WeightType::Q5_K, WeightType::Q6_K, WeightType::Q8_0]);

/// The cargo feature that adds a type to every preset; none where every preset has it.
pub const fn feature_of(ty: WeightType) -> Option<&'static str> {
    match ty {
        WeightType::Q4_0 | WeightType::Q5_0 => Some("legacy-quants"),
        WeightType::F16 | WeightType::BF16 | WeightType::F32 => Some("float-weights"),
        WeightType::Q4_K | WeightType::Q5_K | WeightType::Q6_K | WeightType::Q8_0 => None,
    }
}

/// Every preset, published models first.
pub const PRESETS: &[Preset] = &[
    qwen2("qwen3b", &["qwen2-5-3b"], "Qwen2.5-3B", 2048, 36, 16, 2, 11008),
    QWEN2_5_0_5B,
    qwen2("qwen2-5-1-5b", &[], "Qwen2.5-1.5B", 1536, 28, 12, 2, 8960),
    Preset { shape: ModelShape { vocab: 152_064, tied_head: false, ..QWEN2_5_7B.shape }, ..QWEN2_5_7B },
    qwen3("qwen3-0-6b", "Qwen3-0.6B", true, 1024, 28, 16, 8, 3072),
    qwen3("qwen3-1-7b", "Qwen3-1.7B", true, 2048, 28, 16, 8, 6144),
    qwen3("qwen3-4b", "Qwen3-4B", true, 2560, 36, 32, 8, 9728),
    qwen3("qwen3-8b", "Qwen3-8B", false, 4096, 36, 32, 8, 12288),
    qwen3("qwen3-14b", "Qwen3-14B", false, 5120, 40, 40, 8, 17408),
    qwen3("qwen3-32b", "Qwen3-32B", false, 5120, 64, 64, 8, 25600),
    tiny("tiny", "the demo model", Family::Qwen3, 4, 64, 768, 2048, true),
    tiny("tiny2-d64", "random Qwen2.5 for tests", Family::Qwen2, 2, 64, 512, 2048, true),
    tiny("tiny3-d64", "random Qwen3 for tests", Family::Qwen3, 2, 64, 512, 2048, true),
    tiny("tiny3-d128", "random Qwen3 for tests, untied", Family::Qwen3, 4, 128, 768, 4096, false),
];

const QWEN2_5_7B: Preset = qwen2("qwen2-5-7b", &[], "Qwen2.5-7B", 3584, 28, 28, 4, 18944);

/// 896 is no multiple of 256: where others have Q4_K and Q6_K, files of this model have Q5_0 and Q8_0.
const QWEN2_5_0_5B: Preset = {
    let preset = qwen2("qwen2-5-0-5b", &[], "Qwen2.5-0.5B", 896, 24, 14, 2, 4864);
    Preset { shape: ModelShape { head_dim: 64, ..preset.shape }, types: QUANTS.with(WeightType::Q5_0), ..preset }
};

/// Every preset, published models first.
pub fn all() -> impl Iterator<Item = &'static Preset> {
    PRESETS.iter()
}

/// The preset with this feature name or alias.
pub fn by_name(name: &str) -> Option<&'static Preset> {
    all().find(|preset| preset.feature == name || preset.aliases.contains(&name))
}

/// The presets whose baked values are those of `shape`: the features to build with for a file of that shape.
pub fn fitting(shape: &ModelShape) -> impl Iterator<Item = &'static Preset> {
    all().filter(move |preset| preset.shape.baked_differences(shape).is_empty())
}

#[allow(clippy::too_many_arguments)] // a row of the table
const fn qwen2(
    feature: &'static str,
    aliases: &'static [&'static str],
    model: &'static str,
    hidden: u32,
    layers: u32,
    heads: u32,
    kv_heads: u32,
    ffn: u32,
) -> Preset {
    let shape = ModelShape {
        qkv_bias: true,
        qk_norm: false,
        rope: RopePairing::Halves,
        hidden,
        ffn,
        heads,
        kv_heads,
        head_dim: 128,
        layers,
        vocab: 151_936,
        tied_head: true,
        rope_theta: 1e6,
        rms_eps: 1e-6,
        context: 32768,
    };
    Preset { feature, aliases, model, shape, types: QUANTS }
}

#[allow(clippy::too_many_arguments)] // a row of the table
const fn qwen3(
    feature: &'static str,
    model: &'static str,
    tied_head: bool,
    hidden: u32,
    layers: u32,
    heads: u32,
    kv_heads: u32,
    ffn: u32,
) -> Preset {
    let shape = ModelShape {
        qkv_bias: false,
        qk_norm: true,
        rope: RopePairing::Halves,
        hidden,
        ffn,
        heads,
        kv_heads,
        head_dim: 128,
        layers,
        vocab: 151_936,
        tied_head,
        rope_theta: 1e6,
        rms_eps: 1e-6,
        context: 40960,
    };
    Preset { feature, aliases: &[], model, shape, types: QUANTS }
}

#[allow(clippy::too_many_arguments)] // a row of the table
const fn tiny(
    feature: &'static str,
    model: &'static str,
    family: Family,
    layers: u32,
    head_dim: u32,
    ffn: u32,
    vocab: u32,
    tied_head: bool,
) -> Preset {
    let shape = ModelShape {
        qkv_bias: family.has_qkv_bias(),
        qk_norm: family.has_qk_norm(),
        rope: family.rope(),
        hidden: 256,
        ffn,
        heads: 4,
        kv_heads: 2,
        head_dim,
        layers,
        vocab,
        tied_head,
        rope_theta: 1e6,
        rms_eps: 1e-6,
        context: 4096,
    };
    Preset { feature, aliases: &[], model, shape, types: WeightTypes::ALL }
}
