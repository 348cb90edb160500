//! Large activations behind SwiGLU, as real models have them, and what the second plane of rounded activations is for.
//!
//! In one layer a channel of the FFN's vector is made large by its row of `up`, beside others of about 1; its weights in
//! `down` are 0, so that float64's logits are the same however large it is, and only what rounding takes from the others
//! shows.

use crate::random::Random;
use crate::reference::{Cache, Reference, relative_l2};
use crate::synth_model::{Mix, SynthModel};
use crate::{bake, common, int8, quantised};
use half::f16;
use kiln::Model;
use kiln::model::{KvType, ModelFile, Numerics, PathChoice, SessionOptions};
use kiln_emulator::{Checks, DeviceConfig};
use kiln_shape::{Gguf, ModelShape, TensorRole, WeightType, presets};
use std::sync::{Arc, Mutex};

const IDS: [u32; 4] = [300, 7, 41, 255];
/// The layer whose `down` is in Q6_K, and the channel.
const LAYER: u32 = 1;
const CHANNEL: usize = 77;

/// The mean magnitude of what is behind SwiGLU in that layer, as it is drawn.
const USUAL: f64 = 0.13;

/// A tiny model whose channels in that layer are `others` times as large as drawn, and one of them `factor` times more.
fn planted(others: f32, factor: f32) -> Vec<u8> {
    let shape = ModelShape { vocab: 512, layers: 2, ..presets::by_name("tiny").expect("a preset").shape };
    let mut file = Vec::new();
    SynthModel { shape, mix: Mix::Q4KM, seed: 5 }.write(&mut file, |_, _| {}).expect("memory has room");
    let gguf = Gguf::from_bytes(&file).expect("a GGUF file");
    let place = |role: TensorRole| {
        let tensor = gguf.required_tensor(&role.tensor_name(LAYER)).expect("it was written");
        let ty = WeightType::from_ggml(tensor.ty()).expect("a known type");
        (ty, tensor.offset() as usize..(tensor.offset() + tensor.bytes()) as usize)
    };
    let [hidden, ffn] = [shape.hidden as usize, shape.ffn as usize];
    let (ty, up) = place(TensorRole::FfnUp);
    assert_eq!(ty, WeightType::Q4_K);
    let row = hidden / 256 * 144;
    let scale = |scale: &mut [u8], factor: f32| {
        let scaled = f16::from_le_bytes([scale[0], scale[1]]).to_f32() * factor;
        scale.copy_from_slice(&f16::from_f32(scaled).to_le_bytes());
    };
    for (channel, row) in file[up].chunks_mut(row).enumerate() {
        let factor = others * if channel == CHANNEL { factor } else { 1.0 };
        let scales = row.chunks_mut(144).flat_map(|block| block[..4].chunks_mut(2));
        scales.for_each(|bytes| scale(bytes, factor));
    }
    let (ty, down) = place(TensorRole::FfnDown);
    assert_eq!(ty, WeightType::Q6_K, "whose weights can be 0 beside others");
    let mut matrix = quantised::Matrix::of(ty, hidden, ffn, &file[down.clone()]);
    let mut random = Random::fresh();
    (0..hidden).for_each(|row| matrix.clear(row, CHANNEL, &mut random));
    // What comes out of the layer stays as large as it was drawn.
    matrix.bytes.chunks_mut(210).for_each(|block| scale(&mut block[208..], others.recip()));
    file[down].copy_from_slice(&matrix.bytes);
    file
}

/// How the reference rounds activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rounding {
    None,
    OnePlane,
    AsKernels,
}

/// Logits in float64 of rounded activations, and the mean magnitude of the channel.
fn reference(file: &[u8], rounding: Rounding) -> (Vec<Vec<f64>>, f64) {
    let seen = Arc::new(Mutex::new(0.0));
    let mut reference = Reference::from_bytes(file.to_vec());
    let sum = Arc::clone(&seen);
    reference.activations = Box::new(move |role, layer, ty, x| {
        if (role, layer) == (TensorRole::FfnDown, LAYER) {
            *sum.lock().expect("no panic") += x[CHANNEL].abs();
        }
        let group = int8::group(ty).expect("a quantised type");
        let single: Vec<f32> = x.iter().map(|x| *x as f32).collect();
        match rounding {
            Rounding::None => x.to_vec(),
            Rounding::OnePlane => int8::rounded_to_one_plane(&single, group),
            Rounding::AsKernels => int8::rounded(&single, group).0,
        }
    });
    let logits = reference.logits(&IDS, Cache::F64);
    let mean = *seen.lock().expect("no panic") / IDS.len() as f64;
    (logits, mean)
}

/// Logits of the kernels.
fn kernels(file: &[u8], numerics: Numerics) -> Vec<Vec<f64>> {
    let path = std::env::temp_dir().join(format!("kiln-outliers-{}.gguf", std::process::id()));
    std::fs::write(&path, file).expect("a temporary file");
    let device = common::device_with(DeviceConfig { checks: Checks::NONE, ..DeviceConfig::default() });
    let opened = ModelFile::open(&path).expect("a model");
    std::fs::remove_file(&path).expect("it was there");
    // This program has kernels for the shape, unless it was built without the feature `tiny`.
    let baked = opened.baked().unwrap_or_else(|_| bake::model(&opened, &device));
    let model = Model::load(&device, baked, opened, |_| {}).expect("it loads");
    let options = SessionOptions::default().with_numerics(numerics).with_kv(KvType::F32).with_capacity(64);
    let mut session = model.session(options.with_path(PathChoice::Stream)).expect("a session");
    let mut next = |id: &u32| {
        session.append(&[*id]).expect("it fits");
        session.logits().expect("logits").into_iter().map(f64::from).collect()
    };
    IDS.iter().map(&mut next).collect()
}

/// The mean distance of logits.
fn distance(found: &[Vec<f64>], expected: &[Vec<f64>]) -> f64 {
    let each = found.iter().zip(expected).map(|(found, expected)| relative_l2(found, expected));
    each.sum::<f64>() / expected.len() as f64
}

#[test]
fn a_large_activation_costs_the_others_nothing_with_a_second_plane() {
    let mut before = None;
    println!(
        "| others | channel | exact | fast | fast, in float64 | one plane, in float64 |\n|---|---|---|---|---|---|"
    );
    // Behind 1e4 the second plane has steps of 0.3, which others of 0.13 fall below.
    let cases = [(1.0, 1.0, 1.0), (1.0, 1e3, 1.05), (1.0, 1e4, 1.3), (USUAL, 1e4, 3.0)];
    let cases = if common::is_long("an outlier beside small others") { &cases[..] } else { &cases[..3] };
    for &(others, channel, most) in cases {
        let file = planted((others / USUAL) as f32, (channel / others) as f32);
        let (expected, mean) = reference(&file, Rounding::None);
        let [exact, fast] = [Numerics::Exact, Numerics::Fast].map(|of| distance(&kernels(&file, of), &expected));
        let [two, one] =
            [Rounding::AsKernels, Rounding::OnePlane].map(|of| distance(&reference(&file, of).0, &expected));
        println!("| {others} | {mean:.2} | {exact:.1e} | {fast:.4} | {two:.4} | {one:.4} |");
        assert!((0.7..1.4).contains(&(mean / channel)), "{mean} instead of {channel}");
        assert!(exact < 1e-5, "exact numerics: {exact:e}");
        assert!((fast / two - 1.0).abs() < 0.1, "the kernels round as the reference does: {fast}, not {two}");
        let without = *before.get_or_insert(fast);
        assert!(fast <= most * without, "{channel}: {fast}, without outliers {without}");
        if channel > 1.0 {
            assert!(one > 3.0 * without, "{channel}: one plane alone would do, {one} after {without}");
        }
    }
}
