//! Dimensions that no kernel can work with are refused with what was found and what is needed, before anything is built.

use kiln_codegen::bake::{DecoderPath, decoder, emit};
use kiln_codegen::kernels::{
    FlashDecodingChunk, FusedRmsNormQ4KGemv, IncrementalAttention, KvCacheScatter, PerHeadRmsNorm,
};
use kiln_codegen::{Bake, Error, Kernel, Numerics, Target};
use kiln_shape::{ModelShape, WeightType, presets};

/// What the kernel says against its dimensions; every target says the same.
#[track_caller]
fn refusal(kernel: &impl Kernel) -> String {
    let mut said = Target::ALL.map(|target| match kernel.emit_ptx(target) {
        Err(Error::Dimension { kernel: name, what }) if name == kernel.name() => what,
        other => panic!("{} for {target}: {other:?}", kernel.name()),
    });
    let [first, rest @ ..] = &mut said;
    assert!(rest.iter().all(|what| what == first), "{rest:?}");
    std::mem::take(first)
}

#[track_caller]
fn refused(kernel: &impl Kernel, found: &str, needed: &str) {
    let what = refusal(kernel);
    assert!(what.contains(found) && what.contains(needed), "{what}");
}

#[track_caller]
fn accepted(kernel: &impl Kernel) {
    for target in Target::ALL {
        if let Err(error) = kernel.emit_ptx(target) {
            panic!("{} for {target}: {error}", kernel.name());
        }
    }
}

#[test]
fn gemv_takes_whole_blocks_of_its_type() {
    for k in [32, 224, 288, 896] {
        refused(&FusedRmsNormQ4KGemv::new(k, 8), &format!("k is {k}"), "Q4_K needs a multiple of 256");
        accepted(&FusedRmsNormQ4KGemv::new(k, 8).with_weights(WeightType::Q8_0));
    }
    for k in [0, 1, 255, 257] {
        refused(&FusedRmsNormQ4KGemv::new(k, 8).with_weights(WeightType::F16), &format!("k is {k}"), "multiple of 32");
    }
    refused(&FusedRmsNormQ4KGemv::new(256 * 1_000_000, 8), "k is 256000000", "at most");
    for k in [256, 3584, 9728, 11008, 25600] {
        accepted(&FusedRmsNormQ4KGemv::new(k, 7));
    }
}

#[test]
fn gemv_needs_rows_and_a_type_with_a_kernel() {
    refused(&FusedRmsNormQ4KGemv::new(256, 0), "n is 0", "at least one row");
    for ty in WeightType::ALL {
        let kernel = FusedRmsNormQ4KGemv::new(256, 8).with_weights(*ty);
        if WeightType::ALL.contains(ty) {
            accepted(&kernel);
        } else {
            refused(&kernel, ty.name(), "no kernel");
        }
    }
}

#[test]
fn per_head_norm_takes_whole_warps_up_to_256() {
    for head_dim in [0, 16, 33, 72, 80, 288] {
        refused(&PerHeadRmsNorm::new(head_dim, 4), &format!("head_dim is {head_dim}"), "multiple of 32 up to 256");
    }
    for head_dim in [32, 64, 96, 128, 160, 192, 224, 256] {
        accepted(&PerHeadRmsNorm::new(head_dim, 4));
    }
}

#[test]
fn attention_takes_every_published_head_dim_and_refuses_others() {
    for head_dim in [0, 8, 72, 100, 257, 272] {
        let found = format!("head_dim is {head_dim}");
        refused(&IncrementalAttention::new(128, head_dim, 4), &found, "multiple of 16 up to 256");
        refused(&FlashDecodingChunk::new(128, head_dim, 4, 2, 1), &found, "multiple of 16 up to 256");
    }
    for head_dim in [64, 80, 96, 128, 256] {
        accepted(&IncrementalAttention::new(128, head_dim, 4));
        accepted(&FlashDecodingChunk::new(128, head_dim, 4, 2, 1));
    }
}

#[test]
fn query_heads_are_shared_out_evenly() {
    let needed = "a whole number for each";
    for (heads, kv_heads) in [(4, 3), (2, 4), (4, 0), (0, 4)] {
        let found = format!("{heads} query heads over {kv_heads} KV heads");
        refused(&IncrementalAttention::new(128, 64, heads).with_kv_heads(kv_heads), &found, needed);
        refused(&FlashDecodingChunk::new(128, 64, heads, kv_heads, 1), &found, needed);
    }
}

#[test]
fn a_cache_has_heads_dimensions_and_positions() {
    for kernel in [KvCacheScatter::new(0, 64, 8), KvCacheScatter::new(2, 0, 8), KvCacheScatter::new(2, 64, 0)] {
        refused(&kernel, "without", "cache");
    }
    accepted(&KvCacheScatter::new(2, 64, 8));
}

fn with(change: impl FnOnce(&mut ModelShape)) -> ModelShape {
    let mut shape = presets::by_name("tiny").expect("a preset").shape;
    change(&mut shape);
    shape
}

/// A model is refused by its name, with the dimension, and nothing is written.
#[test]
fn a_model_that_no_kernel_fits_is_refused_by_name() {
    let cases = [
        (with(|shape| shape.hidden = 880), "hidden is 880"),
        (with(|shape| shape.ffn = 4864 + 16), "ffn is 4880"),
        (with(|shape| shape.head_dim = 76), "heads * head_dim is 304"),
        (with(|shape| (shape.head_dim, shape.heads) = (96, 8)), "head_dim is 96"),
        (with(|shape| shape.kv_heads = 3), "4 query heads over 3 KV heads"),
    ];
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("refused");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a scratch folder");
    for (shape, found) in cases {
        let error = Bake::new().model("mine", shape).targets(Target::DEFAULT).write(&folder);
        match error {
            Err(Error::Shape { model, what }) => {
                assert_eq!(model, "mine");
                assert!(what.contains(found), "{what}");
            }
            other => panic!("{found}: {other:?}"),
        }
        let kernels = decoder(shape, WeightType::ALL, DecoderPath::Stream, Numerics::Exact);
        assert!(matches!(emit(Target::ALL[0], None, &kernels), Err(Error::Dimension { .. })), "{found}");
    }
    assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 0);
}
