//! Synthetic models are valid files whose logits are not degenerate.

use crate::reference::{Cache, Reference, relative_l2};
use crate::synth_model::{LEAST_VOCAB, Mix, SynthModel};
use kiln::text::{ChatMessage, ChatOptions, ChatTemplate, Special, Tokenizer};
use kiln_shape::{ModelShape, TensorRole, WeightType, presets};

fn written(model: SynthModel) -> Vec<u8> {
    let mut file = Vec::new();
    let bytes = model.write(&mut file, |done, all| assert!(done <= all)).unwrap();
    assert!(file.len() as u64 > bytes);
    file
}

fn tiny(name: &str) -> ModelShape {
    presets::by_name(name).unwrap().shape
}

fn deviation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / values.len() as f64).sqrt()
}

#[test]
fn logits_are_spread_and_depend_on_token_context_and_seed() {
    let ids = [300, 7, 7, 41, 300];
    for name in ["tiny2-d64", "tiny3-d128"] {
        for mix in [Mix::Q4KM, Mix::Q8_0, Mix::F16] {
            let shape = ModelShape { vocab: 512, ..tiny(name) };
            let logits =
                |seed| Reference::from_bytes(written(SynthModel { shape, mix, seed })).logits(&ids, Cache::F64);
            let (one, other) = (logits(1), logits(2));
            for row in &one {
                assert!((1.0..8.0).contains(&deviation(row)), "{name} {mix:?}: {}", deviation(row));
            }
            assert!(relative_l2(&one[1], &one[3]) > 0.1, "{name} {mix:?}: another token");
            assert!(relative_l2(&one[1], &one[2]) > 0.01, "{name} {mix:?}: another position");
            assert!(relative_l2(&one[0], &one[4]) > 0.05, "{name} {mix:?}: another context");
            assert!(relative_l2(&one[0], &other[0]) > 0.5, "{name} {mix:?}: another seed");
        }
    }
}

#[test]
fn every_preset_gives_the_shape_and_types_it_names() {
    for preset in presets::all() {
        // The header and a cut of each real shape: one layer of the largest has half a billion weights.
        let shape = ModelShape { layers: 1, vocab: LEAST_VOCAB, ..preset.shape };
        let size: u64 = shape.tensors().map(|spec| spec.dims.iter().product::<u64>()).sum();
        if size > 40_000_000 {
            continue;
        }
        let model = Reference::from_bytes(written(SynthModel { shape, mix: Mix::Q4KM, seed: 0 }));
        assert_eq!(model.shape, shape, "{}", preset.feature);
        let types = [TensorRole::AttnQ, TensorRole::AttnV, TensorRole::AttnNorm].map(|role| model.tensor(role, 0).0);
        let [less, more] = match shape.hidden.is_multiple_of(256) {
            true => [WeightType::Q4_K, WeightType::Q6_K],
            false => [WeightType::Q5_0, WeightType::Q8_0],
        };
        assert_eq!(types, [less, more, WeightType::F32], "{}", preset.feature);
    }
}

#[test]
fn weights_have_mean_zero_and_the_asked_for_spread() {
    let shape = tiny("tiny3-d64");
    for mix in [Mix::Q4KM, Mix::Q8_0, Mix::F16] {
        let model = Reference::from_bytes(written(SynthModel { shape, mix, seed: 3 }));
        for (role, layer, gain) in
            [(TensorRole::FfnUp, 0, 1.0), (TensorRole::AttnV, 0, 1.0), (TensorRole::AttnV, 1, 1.0)]
        {
            let k = role.dims(&shape)[0] as f64;
            let weights = model.vector(role, layer);
            let (mean, spread) = (weights.iter().sum::<f64>() / weights.len() as f64, deviation(&weights));
            let wanted = gain / k.sqrt();
            assert!((spread / wanted - 1.0).abs() < 0.05, "{mix:?} {role:?}: {spread} instead of {wanted}");
            assert!(mean.abs() < 0.02 * wanted, "{mix:?} {role:?}: mean {mean}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_file_and_a_cut_keeps_its_layers() {
    let model = SynthModel { shape: tiny("tiny3-d64"), mix: Mix::Q8_0, seed: 9 };
    assert_eq!(written(model), written(model));
    let cut = SynthModel { shape: ModelShape { layers: 1, ..model.shape }, ..model };
    let (whole, cut) = (Reference::from_bytes(written(model)), Reference::from_bytes(written(cut)));
    assert_eq!(whole.tensor(TensorRole::AttnK, 0), cut.tensor(TensorRole::AttnK, 0));
}

#[test]
fn the_tokenizer_section_works_at_every_size() {
    for vocab in [LEAST_VOCAB, 300, 2048, 151_936] {
        let shape = ModelShape { vocab, layers: 1, ..tiny("tiny3-d64") };
        let file = written(SynthModel { shape, mix: Mix::Q8_0, seed: 0 });
        let gguf = kiln_shape::Gguf::from_bytes(&file).unwrap();
        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
        assert_eq!((tokenizer.vocab(), tokenizer.end_of_generation()), (vocab, &[vocab - 3, vocab - 1][..]));
        let text = "Any text — 日本 🦀\n\tcomes back.";
        let ids = tokenizer.encode(text, Special::Parse);
        assert_eq!(tokenizer.decode(&ids, Special::Parse), text);
        assert_eq!(ids.len() < text.len(), vocab >= 2048, "pairs are merged where there is room for them");

        let chat = ChatTemplate::from_gguf(&gguf, &tokenizer).unwrap();
        let prompt = chat.render(&[ChatMessage::new("user", "hi")], &ChatOptions::default()).unwrap();
        assert_eq!(prompt, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
        assert_eq!(tokenizer.encode(&prompt, Special::Parse)[0], vocab - 2);
    }
}
