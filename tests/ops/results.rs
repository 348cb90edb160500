//! The general kernels through the safe functions, against float64.

use half::f16;
use kiln::baked::{BakedKernels, KERNELS};
use kiln::driver::GpuTensor;
use kiln::ops::{CacheShape, Index, Ops};
use kiln::shape::WeightType;
use kiln_codegen::kernels::{FlashDecodingChunk, FlashDecodingReduce, IncrementalAttention, PerHeadRmsNorm};
use kiln_codegen::{Kernel, KvType};

use crate::compare::{assert_close, assert_close_sums, assert_same_bits};
use crate::quantised::Matrix;
use crate::random::Random;
use crate::rounding;
use crate::scene::{Rounded, Scene};
use crate::{bake, common};

const BOUND: f64 = 3e-6;

#[test]
fn saxpy_adds() {
    let mut random = Random::fresh();
    let device = common::device();
    let (ops, stream) = (Ops::open(&device).unwrap(), device.stream().unwrap());
    for n in [0, 1, 1000] {
        let (x, y) = (random.floats(n, 1.0), random.floats(n, 1.0));
        let [px, py] = [&x, &y].map(|values| GpuTensor::from_host(&device, values).unwrap());
        ops.saxpy(&stream, 1.5, &px, &py).unwrap();
        let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 1.5f32.mul_add(*x, *y)).collect();
        assert_eq!(py.to_host().unwrap(), expected);
    }
}

#[test]
fn products_of_every_type_match_float64() {
    let mut random = Random::fresh();
    let device = common::device();
    let (ops, stream) = (Ops::open(&device).unwrap(), device.stream().unwrap());
    for &ty in WeightType::ALL {
        let (n, k, eps) = (37u32, 768u32, 0.125f32);
        let matrix = Matrix::random(ty, n as usize, k as usize, &mut random);
        let (x, gamma) = (random.floats(k as usize, 1.0), random.floats(k as usize, 1.0));
        let w = ops.matrix(ty, n, k, &matrix.bytes).unwrap();
        assert_eq!((w.weight_type(), w.rows(), w.columns()), (ty, n, k));
        let [px, pg] = [&x, &gamma].map(|values| GpuTensor::from_host(&device, values).unwrap());
        let y = GpuTensor::from_host(&device, &vec![f32::NAN; n as usize]).unwrap();

        let x: Vec<f64> = x.into_iter().map(f64::from).collect();
        ops.gemv(&stream, &w, &px, &y).unwrap();
        let check = |what: &str, x: &[f64], bound: f64| {
            let found = y.to_host().unwrap();
            assert_close_sums(&format!("{what}, {ty}"), &found, &matrix.times(x), &matrix.magnitudes(x), bound);
        };
        check("product", &x, rounding::product(k as usize));

        let mean = x.iter().map(|x| x * x).sum::<f64>() / f64::from(k);
        let inverse = (mean + f64::from(eps)).sqrt().recip();
        let normalised: Vec<f64> = x.iter().zip(&gamma).map(|(x, g)| x * inverse * f64::from(*g)).collect();
        ops.fused_rmsnorm_gemv(&stream, &w, &px, &pg, eps, &y).unwrap();
        check("norm and product", &normalised, rounding::normalised_product(k as usize));
    }
}

/// Four super-blocks of 2^24, sixteen of 0.5 and four of -2^24: a lane's sum of the second is below half a unit of its
/// sum of the first.
#[test]
fn small_parts_of_a_row_survive_beside_great_ones() {
    let device = common::device();
    let (ops, stream) = (Ops::open(&device).unwrap(), device.stream().unwrap());
    let weights = [(4, 16_777_216.0f32), (16, 0.5), (4, -16_777_216.0)];
    let bytes: Vec<u8> = weights.iter().flat_map(|(count, weight)| weight.to_le_bytes().repeat(count * 256)).collect();
    let k = (bytes.len() / 4) as u32;
    let w = ops.matrix(WeightType::F32, 1, k, &bytes).unwrap();
    let x = GpuTensor::from_host(&device, &vec![1.0f32; k as usize]).unwrap();
    let y = GpuTensor::from_host(&device, &[f32::NAN]).unwrap();
    ops.gemv(&stream, &w, &x, &y).unwrap();
    assert_eq!(y.to_host().unwrap(), [2048.0]);
}

#[test]
fn heads_are_normalised() {
    let mut random = Random::fresh();
    let device = common::device();
    let (ops, stream) = (Ops::open(&device).unwrap(), device.stream().unwrap());
    for (head_dim, heads) in [(32, 3), (64, 1), (96, 2), (128, 7), (160, 1), (192, 2), (224, 3), (256, 5)] {
        let (x, gamma) = (random.floats(heads * head_dim, 1.0), random.floats(head_dim, 1.0));
        let [px, pg] = [&x, &gamma].map(|values| GpuTensor::from_host(&device, values).unwrap());
        let y = GpuTensor::from_host(&device, &vec![f32::NAN; x.len()]).unwrap();
        ops.per_head_rmsnorm(&stream, &px, &pg, 0.25, &y).unwrap();
        let expected: Vec<f64> = x
            .chunks(head_dim)
            .flat_map(|x| {
                let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / head_dim as f64;
                let inverse = (mean + 0.25).sqrt().recip();
                x.iter().zip(&gamma).map(move |(x, g)| f64::from(*x) * inverse * f64::from(*g)).collect::<Vec<_>>()
            })
            .collect();
        let magnitudes: Vec<f64> = expected.iter().map(|y: &f64| y.abs()).collect();
        let (what, found) = (format!("{heads} heads of {head_dim}"), y.to_host().unwrap());
        assert_close_sums(&what, &found, &expected, &magnitudes, rounding::normalised_head(head_dim));
    }
}

/// Scatters a position, attends to everything up to it, on one stream; then the same through flash decoding.
fn scatter_then_attend<T: Rounded>(heads: u32, kv_heads: u32, head_dim: u32, length: u32, random: &mut Random) {
    attend(Scene::<T>::new(heads, kv_heads, head_dim, length + 3, random), length);
}

fn attend<T: Rounded>(mut scene: Scene<T>, length: u32) {
    let (heads, CacheShape { kv_heads, head_dim, .. }) = (scene.heads, scene.shape);
    let what = format!("{heads}/{kv_heads} heads of {head_dim}, length {length}");
    scene.scatter(&scene.stream, Index::Value(length - 1)).unwrap();
    scene.ops.incremental_attention_on(&scene.stream, &scene.attention(Index::Value(length))).unwrap();
    let found = scene.out.to_host().unwrap();
    scene.write(length - 1);
    let expected = scene.expected(length);
    assert_close(&what, &found, &expected, BOUND);

    let (q, lengths) = (&scene.q, GpuTensor::from_host(&scene.device, &[length]).unwrap());
    let room = scene.shape.max_seq_len;
    let flash = scene.ops.flash_decoding(heads, scene.shape, &[&scene.k_cache], &[&scene.v_cache], room).unwrap();
    let out = GpuTensor::from_host(&scene.device, &vec![f32::NAN; found.len()]).unwrap();
    flash.run(&scene.stream, q, &lengths, &out, &scene.error).unwrap();
    let flash = out.to_host().unwrap();
    assert_close(&format!("flash decoding: {what}"), &flash, &expected, BOUND);
    if length <= 128 {
        assert_same_bits(&what, &flash, &found);
    }
    assert_eq!(scene.error.to_host().unwrap(), [0]);
}

#[test]
fn what_is_scattered_is_attended_to() {
    let mut random = Random::fresh();
    // Every head size; groups narrow and wide, within a block, on its edge, and over several blocks.
    for (heads, kv_heads, head_dim, length) in [
        (1, 1, 64, 1),
        (6, 2, 64, 130),
        (8, 2, 128, 40),
        (5, 1, 128, 129),
        (14, 2, 64, 100),
        (8, 1, 256, 70),
        (3, 1, 80, 33),
        (12, 2, 80, 131),
        (2, 2, 96, 129),
        (7, 1, 96, 65),
        (9, 1, 64, 20),
        (16, 1, 80, 20),
    ] {
        scatter_then_attend::<f16>(heads, kv_heads, head_dim, length, &mut random);
        scatter_then_attend::<f32>(heads, kv_heads, head_dim, length, &mut random);
    }
}

/// Head sizes that kiln does not bake, as somebody's build script would; groups wider than what was baked for them are
/// spread over blocks.
#[test]
fn kernels_of_another_bake_are_found_by_their_head_size() {
    let mut random = Random::fresh();
    let kernels: [Box<dyn Kernel>; 7] = [
        Box::new(IncrementalAttention::general(112, KvType::F16)),
        Box::new(FlashDecodingChunk::general(112, KvType::F16)),
        Box::new(FlashDecodingReduce::general(112)),
        Box::new(IncrementalAttention::general(192, KvType::F16).with_wide_groups()),
        Box::new(FlashDecodingChunk::general(192, KvType::F16).with_wide_groups()),
        Box::new(FlashDecodingReduce::general(192)),
        Box::new(PerHeadRmsNorm::general(64)),
    ];
    for (heads, kv_heads, head_dim) in [(3, 1, 112), (14, 2, 112), (2, 1, 192), (8, 1, 192)] {
        let mut scene = Scene::<f16>::new(heads, kv_heads, head_dim, 150, &mut random);
        let module = bake::module(scene.device.sm(), None, &kernels);
        let own: &'static BakedKernels = Box::leak(Box::new(BakedKernels { modules: Box::leak(Box::new([module])) }));
        // SAFETY: both are what kiln's generator made.
        scene.ops = unsafe { Ops::with_kernels(&scene.device, &[&KERNELS, own]) }.unwrap();
        attend(scene, 147);
    }
}

#[test]
fn an_empty_cache_gives_zeros() {
    let scene = Scene::<f16>::new(4, 2, 64, 5, &mut Random::fresh());
    scene.ops.incremental_attention(&scene.attention(Index::Value(0))).unwrap();
    assert_eq!(scene.out.to_host().unwrap(), [0.0; 256]);
}

#[test]
fn positions_and_lengths_may_come_from_device_memory() {
    let mut scene = Scene::<f32>::new(4, 2, 64, 9, &mut Random::fresh());
    let [position, length] = [5u32, 6].map(|at| GpuTensor::from_host(&scene.device, &[at]).unwrap());
    scene.scatter(&scene.stream, Index::Device(&position)).unwrap();
    let event = scene.ops.incremental_attention_event(&scene.stream, &scene.attention(Index::Device(&length))).unwrap();
    event.synchronize().unwrap();
    let found = scene.out.to_host().unwrap();
    scene.write(5);
    assert_close("device memory", &found, &scene.expected(6), BOUND);
}

#[test]
fn indices_in_device_memory_beyond_the_cache_set_the_error_word() {
    let scene = Scene::<f32>::new(4, 2, 64, 9, &mut Random::fresh());
    let [position, length] = [9u32, 10].map(|at| GpuTensor::from_host(&scene.device, &[at]).unwrap());
    scene.scatter(&scene.stream, Index::Device(&position)).unwrap();
    assert_eq!(scene.error.to_host().unwrap(), [2]);
    assert_eq!(scene.k_cache.to_host().unwrap(), scene.floats.keys);
    scene.ops.incremental_attention(&scene.attention(Index::Device(&length))).unwrap();
    assert_eq!(scene.error.to_host().unwrap(), [3]);
    assert_eq!(scene.out.to_host().unwrap(), [0.0; 256]);
}

#[test]
fn flash_decoding_reports_lengths_it_has_no_chunks_for() {
    let scene = Scene::<f32>::new(2, 1, 64, 300, &mut Random::fresh());
    let flash = scene.ops.flash_decoding(2, scene.shape, &[&scene.k_cache], &[&scene.v_cache], 128).unwrap();
    assert_eq!((flash.chunk_size(), flash.num_chunks(129)), (128, 2));
    let lengths = GpuTensor::from_host(&scene.device, &[129u32]).unwrap();
    flash.run(&scene.stream, &scene.q, &lengths, &scene.out, &scene.error).unwrap();
    assert_eq!(scene.error.to_host().unwrap(), [3]);
    assert_eq!(scene.out.to_host().unwrap(), [0.0; 128]);
}
