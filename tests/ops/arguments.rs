//! What does not fit is refused before anything is launched, with what was found and what was expected.

use half::f16;
use kiln::baked::{BakedKernel, BakedKernels, BakedModule, NumberType, Param, ParamType};
use kiln::driver::GpuTensor;
use kiln::ops::{CacheShape, Gemv, IncrementalAttention, Index, Norm, Ops, QkNormRope, Qkv, RopeTables};
use kiln::shape::WeightType;
use kiln::{Error, Result};
use kiln_codegen::kernels::{QkNormRopeKvScatter, Saxpy};
use kiln_codegen::{Kernel, KvType, Target};

use crate::common::table::calls_of;
use crate::random::Random;
use crate::scene::Scene;
use crate::{bake, common};

fn scene() -> Scene<f16> {
    Scene::new(4, 2, 64, 9, &mut Random::fresh())
}

fn tensor(scene: &Scene<f16>, len: usize) -> GpuTensor<f32> {
    GpuTensor::zeros(&scene.device, len).unwrap()
}

/// The message of a call that must be refused without a launch.
#[track_caller]
fn refused<R: std::fmt::Debug>(call: impl FnOnce() -> Result<R>) -> String {
    let (result, calls) = calls_of(call);
    assert!(!calls.contains(&"cuLaunchKernel"), "{calls:?}");
    result.unwrap_err().to_string()
}

/// Attention with one argument changed.
#[track_caller]
fn attention<'a>(scene: &'a Scene<f16>, change: impl FnOnce(&mut IncrementalAttention<'a, f16>)) -> String {
    let mut arguments = scene.attention(Index::Value(3));
    change(&mut arguments);
    refused(|| scene.ops.incremental_attention_on(&scene.stream, &arguments))
}

#[track_caller]
fn holds(message: &str, parts: &[&str]) {
    assert!(parts.iter().all(|part| message.contains(part)), "{message}");
}

#[test]
fn queries_of_another_length_are_refused() {
    let scene = scene();
    let q = tensor(&scene, 255);
    holds(
        &attention(&scene, |a| a.q = &q),
        &["q of attention", "255 elements", "256 elements", "4 heads * 64 head_dim"],
    );
}

#[test]
fn results_of_another_length_are_refused() {
    let scene = scene();
    let out = tensor(&scene, 257);
    holds(&attention(&scene, |a| a.out = &out), &["out of attention", "257 elements", "256 elements"]);
}

#[test]
fn a_key_cache_of_another_length_is_refused() {
    let scene = scene();
    let cache = GpuTensor::zeros(&scene.device, 2 * 9 * 64 - 1).unwrap();
    let expected = ["k_cache", "1151 elements", "1152 elements", "2 kv_heads * 9 max_seq_len * 64 head_dim"];
    holds(&attention(&scene, |a| a.k_cache = &cache), &expected);
    let call = || {
        let Scene { stream, shape, k, v, v_cache, error, .. } = &scene;
        scene.ops.kv_cache_scatter(stream, *shape, k, v, &cache, v_cache, Index::Value(0), error)
    };
    holds(&refused(call), &expected);
}

#[test]
fn a_value_cache_of_another_length_is_refused() {
    let scene = scene();
    let cache = GpuTensor::zeros(&scene.device, 2 * 10 * 64).unwrap();
    holds(&attention(&scene, |a| a.v_cache = &cache), &["v_cache", "1280 elements", "1152 elements"]);
    let call = || {
        let Scene { stream, shape, k, v, k_cache, error, .. } = &scene;
        scene.ops.kv_cache_scatter(stream, *shape, k, v, k_cache, &cache, Index::Value(0), error)
    };
    holds(&refused(call), &["v_cache", "1280 elements", "1152 elements"]);
}

#[test]
fn a_source_of_another_length_is_refused() {
    let scene = scene();
    let source = tensor(&scene, 100);
    let Scene { stream, shape, k, v, k_cache, v_cache, error, .. } = &scene;
    let scatter =
        |k, v| refused(|| scene.ops.kv_cache_scatter(stream, *shape, k, v, k_cache, v_cache, Index::Value(0), error));
    let expected = ["100 elements", "128 elements", "2 kv_heads * 64 head_dim"];
    for (message, name) in [(scatter(&source, v), "k of a scatter"), (scatter(k, &source), "v of a scatter")] {
        holds(&message, &expected);
        holds(&message, &[name]);
    }
}

#[test]
fn a_length_beyond_the_cache_is_refused() {
    let scene = scene();
    let message = attention(&scene, |a| a.length = Index::Value(10));
    holds(&message, &["length of attention", "found 10", "max_seq_len, 9"]);
    scene.ops.incremental_attention(&scene.attention(Index::Value(9))).unwrap();
}

#[test]
fn a_position_beyond_the_cache_is_refused() {
    let scene = scene();
    let message = refused(|| scene.scatter(&scene.stream, Index::Value(9)));
    holds(&message, &["position of a scatter", "found 9", "max_seq_len, 9"]);
    scene.scatter(&scene.stream, Index::Value(8)).unwrap();
}

#[test]
fn an_index_without_an_element_is_refused() {
    let scene = scene();
    let empty = GpuTensor::zeros(&scene.device, 0).unwrap();
    holds(&attention(&scene, |a| a.length = Index::Device(&empty)), &["length", "found 0", "at least one element"]);
    let message = refused(|| scene.scatter(&scene.stream, Index::Device(&empty)));
    holds(&message, &["position", "found 0", "at least one element"]);
}

#[test]
fn sizes_beyond_32_bits_are_refused() {
    let scene = scene();
    let shape = CacheShape { kv_heads: 2, max_seq_len: 1 << 25, head_dim: 64 };
    let expected = ["k_cache", "overflows", "2 kv_heads * 33554432 max_seq_len * 64 head_dim", "4294967296"];
    holds(&attention(&scene, |a| a.shape = shape), &expected);
    let Scene { stream, k, v, k_cache, v_cache, error, .. } = &scene;
    let call = || scene.ops.kv_cache_scatter(stream, shape, k, v, k_cache, v_cache, Index::Value(0), error);
    holds(&refused(call), &expected);
}

#[test]
fn a_tensor_of_another_device_is_refused() {
    if common::is_left_out_on_gpu("it needs two devices") {
        return;
    }
    let (scene, other) = (scene(), scene());
    let wrong = |result: Result<()>| matches!(result, Err(Error::WrongDevice { .. }));
    let Scene { ops, stream, shape, k, v, k_cache, v_cache, error, .. } = &scene;
    let mut arguments = scene.attention(Index::Value(3));
    arguments.v_cache = &other.v_cache;
    assert!(wrong(ops.incremental_attention_on(stream, &arguments)));
    assert!(wrong(ops.kv_cache_scatter(stream, *shape, k, v, &other.k_cache, v_cache, Index::Value(0), error)));
    assert!(wrong(ops.kv_cache_scatter(stream, *shape, k, v, k_cache, v_cache, Index::Device(&other.error), error)));
    assert!(wrong(ops.saxpy(stream, 1.0, k, &other.k)));
    assert!(wrong(ops.saxpy(&other.stream, 1.0, k, v)), "a stream of another device");
    let flash = ops.flash_decoding(4, *shape, &[&other.k_cache], &[v_cache], 9);
    assert!(matches!(flash, Err(Error::WrongDevice { .. })));
}

#[test]
fn an_output_that_is_also_an_input_is_refused() {
    let scene = scene();
    let message = attention(&scene, |a| a.out = a.q);
    holds(&message, &["out and q are the same buffer"]);
    let Scene { ops, stream, shape, k, v, k_cache, error, .. } = &scene;
    let same = |call: &dyn Fn() -> Result<()>| matches!(call(), Err(Error::Aliasing { .. }));
    assert!(same(&|| ops.kv_cache_scatter(stream, *shape, k, v, k_cache, k_cache, Index::Value(0), error)));
    assert!(same(&|| ops.saxpy(stream, 1.0, k, k)));
    let length = IncrementalAttention { length: Index::Device(error), ..scene.attention(Index::Value(0)) };
    assert!(same(&|| ops.incremental_attention_on(stream, &length)), "the error word as length");
    let w = ops.matrix(WeightType::F32, 256, 256, &vec![0; 256 * 1024]).unwrap();
    let x = tensor(&scene, 256);
    assert!(same(&|| ops.gemv(stream, &w, &x, &x)));
    let gamma = tensor(&scene, 64);
    assert!(same(&|| ops.per_head_rmsnorm(stream, &x, &gamma, 0.0, &x)));
}

#[test]
fn heads_that_do_not_divide_are_refused() {
    let scene = scene();
    holds(&attention(&scene, |a| a.heads = 3), &["heads of attention", "found 3", "a multiple of kv_heads, 2"]);
    holds(&attention(&scene, |a| a.shape.kv_heads = 0), &["heads of attention", "kv_heads, 0"]);
    holds(&attention(&scene, |a| a.shape.head_dim = 72), &["head_dim", "found 72", "a multiple of 16 up to 256"]);
}

/// The refusal of saxpy with the kernel of a bake whose descriptor was changed.
fn saxpy_of(change: impl FnOnce(&mut Vec<Param>)) -> String {
    let mut scene = scene();
    let module = bake::module(scene.device.sm(), None, &[Box::new(Saxpy)]);
    let mut params = module.kernels[0].params.to_vec();
    change(&mut params);
    let kernel = BakedKernel { params: params.leak(), ..module.kernels[0] };
    let modules = vec![BakedModule { kernels: vec![kernel].leak(), ..module }].leak();
    let own: &'static BakedKernels = Box::leak(Box::new(BakedKernels { modules }));
    // SAFETY: what kiln's generator made, under other parameters: nothing is launched.
    scene.ops = unsafe { Ops::with_kernels(&scene.device, &[own]) }.unwrap();
    let [x, y] = [8; 2].map(|len| tensor(&scene, len));
    refused(|| scene.ops.saxpy(&scene.stream, 1.0, &x, &y))
}

#[test]
fn a_kernel_with_other_parameters_than_its_launch_is_refused() {
    let message = saxpy_of(|params| params.swap(0, 1));
    holds(&message, &["`saxpy` at `x`", "found `y`, address of f32 to write", "needed `x`, address of f32 to read"]);
    let message = saxpy_of(|params| params.truncate(3));
    holds(&message, &["`saxpy` at `n`", "found no further parameter", "needed `n`, u32"]);
    let message = saxpy_of(|params| params.push(Param::value("m", NumberType::U32)));
    holds(&message, &["`saxpy` at `m`", "found `m`, u32", "needed no further parameter"]);
    let message = saxpy_of(|params| params[2].ty = ParamType::Value(NumberType::U32));
    holds(&message, &["`saxpy` at `a`", "found `a`, u32", "needed `a`, f32"]);
}

#[test]
fn a_head_size_without_a_kernel_names_what_bakes_it() {
    let scene = Scene::<f16>::new(8, 1, 112, 4, &mut Random::fresh());
    let setting = ["was not baked", "Bake::kernel(", "::general(head_dim", "Ops::with_kernels"];
    let message = refused(|| scene.ops.incremental_attention(&scene.attention(Index::Value(1))));
    holds(&message, &setting);
    holds(&message, &["incremental_attention_f16_112", ".with_wide_groups()"]);
    let (k, v) = (&scene.k_cache, &scene.v_cache);
    let message = refused(|| scene.ops.flash_decoding(8, scene.shape, &[k], &[v], 4));
    holds(&message, &["flash_decoding_chunk_f16_112"]);
    holds(&message, &setting);
}

#[test]
fn matrices_that_no_kernel_takes_are_refused() {
    let scene = scene();
    let matrix = |ty, n, k, bytes: usize| refused(|| scene.ops.matrix(ty, n, k, &vec![0; bytes]));
    holds(
        &matrix(WeightType::Q4_K, 1, 32, 18),
        &["columns of a matrix", "32", "a multiple of 256 up to 49152 for Q4_K"],
    );
    holds(&matrix(WeightType::Q4_K, 1, 49152 + 256, 193 * 144), &["columns of a matrix", "49408"]);
    holds(&matrix(WeightType::Q4_K, 0, 256, 0), &["rows of a matrix", "found 0"]);
    holds(&matrix(WeightType::Q4_K, 2, 256, 144), &["bytes of a matrix", "found 144", "288: 2 rows of 256 Q4_K"]);
}

#[test]
fn vectors_that_do_not_fit_a_matrix_are_refused() {
    let scene = scene();
    let Scene { ops, stream, .. } = &scene;
    let w = ops.matrix(WeightType::Q4_K, 3, 256, &[0; 3 * 144]).unwrap();
    let [x, y, other] = [256, 3, 255].map(|len| tensor(&scene, len));
    holds(&refused(|| ops.gemv(stream, &w, &other, &y)), &["x of a product", "255 elements", "256 columns"]);
    holds(&refused(|| ops.gemv(stream, &w, &x, &other)), &["y of a product", "255 elements", "3 rows"]);
    let call = || ops.fused_rmsnorm_gemv(stream, &w, &x, &other, 0.0, &y);
    holds(&refused(call), &["gamma of a product", "255 elements", "256 columns"]);
    holds(&refused(|| ops.saxpy(stream, 1.0, &x, &other)), &["y of saxpy", "255 elements", "256 elements"]);
}

#[test]
fn heads_that_do_not_fit_gamma_are_refused() {
    let scene = scene();
    let [x, gamma, odd] = [256, 64, 60].map(|len| tensor(&scene, len));
    let norm = |x: &_, gamma: &_, y: &_| refused(|| scene.ops.per_head_rmsnorm(&scene.stream, x, gamma, 0.0, y));
    holds(&norm(&x, &odd, &x), &["head_dim", "found 60", "a multiple of 32 up to 256"]);
    let (long, short) = (tensor(&scene, 300), tensor(&scene, 200));
    holds(&norm(&long, &gamma, &x), &["x of per-head RMS norm", "300 elements", "5 heads * 64 head_dim"]);
    holds(&norm(&x, &gamma, &short), &["y of per-head RMS norm", "200 elements", "4 heads * 64 head_dim"]);
}

#[test]
fn a_batch_that_does_not_fit_is_refused() {
    let scene = scene();
    let Scene { ops, stream, shape, k_cache: k, v_cache: v, q, out, error, .. } = &scene;
    let small = GpuTensor::zeros(&scene.device, 64).unwrap();
    let flash = |k: &[&GpuTensor<f16>], v: &[&GpuTensor<f16>], max_len| {
        refused(|| ops.flash_decoding(4, *shape, k, v, max_len).map(drop))
    };
    holds(&flash(&[], &[], 9), &["k_caches", "found 0"]);
    holds(&flash(&[k, k], &[v], 9), &["k_caches", "found 2", "v_caches, 1"]);
    holds(&flash(&[&small], &[v], 9), &["k_cache of flash decoding", "64 elements", "1152 elements"]);
    holds(&flash(&[k], &[&small], 9), &["v_cache of flash decoding", "64 elements", "1152 elements"]);
    holds(&flash(&[k], &[v], 0), &["max_len", "found 0"]);
    holds(&flash(&[k], &[v], 10), &["max_len", "found 10", "max_seq_len, 9"]);
    let batch = ops.flash_decoding(4, *shape, &[k, k], &[v, v], 9).unwrap();
    let [q2, out2] = [512, 512].map(|len| tensor(&scene, len));
    let [one, two] = [1, 2].map(|len| GpuTensor::<u32>::zeros(&scene.device, len).unwrap());
    holds(&refused(|| batch.run(stream, q, &two, &out2, error)), &["q of flash decoding", "256 elements", "512"]);
    holds(&refused(|| batch.run(stream, &q2, &one, &out2, error)), &["lengths", "1 elements", "2 sequences"]);
    holds(&refused(|| batch.run(stream, &q2, &two, out, error)), &["out of flash decoding", "256 elements", "512"]);
    holds(&refused(|| batch.run(stream, &q2, &two, &out2, &two)), &["error word", "2 elements"]);
    holds(&refused(|| batch.run(stream, &q2, &two, &q2, error)), &["same buffer"]);
}

#[test]
fn addends_that_do_not_fit_a_matrix_are_refused() {
    let scene = scene();
    let Scene { ops, stream, .. } = &scene;
    let w = ops.matrix(WeightType::Q4_K, 3, 256, &[0; 3 * 144]).unwrap();
    let [x, y, other] = [256, 3, 4].map(|len| tensor(&scene, len));
    let plain = Gemv { w: &w, x: &x, norm: None, bias: None, residual: None, y: &y };
    let gemv = |change: Gemv<'_>| refused(|| ops.gemv_with(stream, &change));
    holds(&gemv(Gemv { bias: Some(&other), ..plain }), &["bias of a product", "4 elements", "3 rows"]);
    holds(&gemv(Gemv { residual: Some(&other), ..plain }), &["residual of a product", "4 elements", "3 rows"]);
    holds(&gemv(Gemv { bias: Some(&y), ..plain }), &["y and bias are the same buffer"]);
    holds(&gemv(Gemv { residual: Some(&y), ..plain }), &["y and residual are the same buffer"]);
    holds(
        &gemv(Gemv { norm: Some(Norm { gamma: &other, eps: 0.0 }), ..plain }),
        &["gamma of a product", "256 columns"],
    );
}

#[test]
fn projections_that_do_not_go_together_are_refused() {
    let scene = scene();
    let Scene { ops, stream, .. } = &scene;
    let matrix = |n: u32, k: u32| ops.matrix(WeightType::Q4_K, n, k, &vec![0; (n * k / 256 * 144) as usize]).unwrap();
    let (wq, wk, wv) = (matrix(5, 256), matrix(2, 256), matrix(2, 256));
    let (wide, tall) = (matrix(2, 512), matrix(3, 256));
    let [x, gamma] = [256; 2].map(|len| tensor(&scene, len));
    let [q, k, v, other] = [5, 2, 2, 7].map(|len| tensor(&scene, len));
    let norm = Norm { gamma: &gamma, eps: 0.0 };
    let (wq, wk, wv, x, q, k, v) = (&wq, &wk, &wv, &x, &q, &k, &v);
    let fits = Qkv { wq, wk, wv, x, norm, biases: None, q, k, v };
    let qkv = |change: Qkv<'_>| refused(|| ops.fused_rmsnorm_qkv(stream, &change));
    holds(&qkv(Qkv { wk: &wide, ..fits }), &["columns of wk", "found 512", "columns of wq, 256"]);
    holds(&qkv(Qkv { wv: &wide, ..fits }), &["columns of wv", "found 512", "columns of wq, 256"]);
    holds(&qkv(Qkv { wv: &tall, ..fits }), &["rows of wv", "found 3", "rows of wk, 2"]);
    holds(&qkv(Qkv { x: &other, ..fits }), &["x of QKV", "7 elements", "256 columns"]);
    holds(&qkv(Qkv { norm: Norm { gamma: &other, eps: 0.0 }, ..fits }), &["gamma of QKV", "7 elements"]);
    holds(&qkv(Qkv { q: &other, ..fits }), &["q of QKV", "7 elements", "5 rows of wq"]);
    holds(&qkv(Qkv { k: &other, ..fits }), &["k of QKV", "7 elements", "2 rows of wk"]);
    holds(&qkv(Qkv { v: &other, ..fits }), &["v of QKV", "7 elements", "2 rows of wv"]);
    let [q_bias, kv_bias] = [5, 2].map(|len| tensor(&scene, len));
    let biased = |biases| qkv(Qkv { biases: Some(biases), ..fits });
    holds(&biased([&other, &kv_bias, &kv_bias]), &["q_bias of QKV", "7 elements", "5 rows"]);
    holds(&biased([&q_bias, &other, &kv_bias]), &["k_bias of QKV", "7 elements", "2 rows"]);
    holds(&biased([&q_bias, &kv_bias, &other]), &["v_bias of QKV", "7 elements", "2 rows"]);
    holds(&qkv(Qkv { v: k, ..fits }), &["same buffer"]);
    holds(&biased([&q_bias, k, &kv_bias]), &["k and k_bias are the same buffer"]);

    let (gate, up, y) = (&tall, &tall, tensor(&scene, 3));
    let gate_up = |gate, up, x, norm, y| refused(|| ops.fused_rmsnorm_gate_up(stream, gate, up, x, norm, y));
    holds(&gate_up(gate, &wide, x, norm, &y), &["columns of up", "found 512", "columns of gate, 256"]);
    holds(&gate_up(gate, wq, x, norm, &y), &["rows of up", "found 5", "rows of gate, 3"]);
    holds(&gate_up(gate, up, &other, norm, &y), &["x of gate and up", "7 elements", "256 columns"]);
    holds(&gate_up(gate, up, x, Norm { gamma: &y, eps: 0.0 }, &y), &["gamma of gate and up", "3 elements"]);
    holds(&gate_up(gate, up, x, norm, &other), &["y of gate and up", "7 elements", "3 rows"]);
    holds(&gate_up(gate, up, x, norm, x), &["y of gate and up", "256 elements"]);
    let long = matrix(1, 12288 + 256);
    holds(&gate_up(&long, &long, x, norm, &y), &["columns of gate", "found 12544", "at most 12288"]);
}

#[test]
fn heads_caches_and_tables_that_do_not_go_together_are_refused() {
    let scene = scene();
    let Scene { ops, stream, heads, shape, k, v, k_cache, v_cache, error, .. } = &scene;
    let (q, gamma, other) = (tensor(&scene, 256), tensor(&scene, 64), tensor(&scene, 60));
    let tables = |positions, head_dim| RopeTables::new(&scene.device, positions, head_dim, 1e6).unwrap();
    let (enough, few, wide) = (tables(9, 64), tables(8, 64), tables(9, 128));
    let norm = Norm { gamma: &gamma, eps: 0.0 };
    let fits = QkNormRope {
        heads: *heads,
        shape: *shape,
        q: &q,
        k,
        v,
        norms: Some([norm, norm]),
        tables: &enough,
        k_cache,
        v_cache,
        position: Index::Value(8),
        error,
    };
    let rope = |change: QkNormRope<'_, f16>| refused(|| ops.qk_norm_rope_kv_write(stream, &change));
    holds(&rope(QkNormRope { q: &other, ..fits }), &["q of RoPE", "60 elements", "4 heads * 64 head_dim"]);
    holds(&rope(QkNormRope { k: &other, ..fits }), &["k of RoPE", "60 elements", "2 kv_heads * 64 head_dim"]);
    holds(&rope(QkNormRope { v: &other, ..fits }), &["v of RoPE", "60 elements", "2 kv_heads * 64 head_dim"]);
    let small = GpuTensor::zeros(&scene.device, 64).unwrap();
    holds(&rope(QkNormRope { k_cache: &small, ..fits }), &["k_cache of RoPE", "64 elements", "1152"]);
    holds(&rope(QkNormRope { v_cache: &small, ..fits }), &["v_cache of RoPE", "64 elements", "1152"]);
    let (short, uneven) = (Norm { gamma: &other, eps: 0.0 }, Norm { gamma: &gamma, eps: 0.5 });
    holds(&rope(QkNormRope { norms: Some([short, norm]), ..fits }), &["q_gamma of RoPE", "60 elements"]);
    holds(&rope(QkNormRope { norms: Some([norm, short]), ..fits }), &["k_gamma of RoPE", "60 elements"]);
    holds(&rope(QkNormRope { norms: Some([norm, uneven]), ..fits }), &["eps of the norm of K", "found 0.5"]);
    holds(&rope(QkNormRope { tables: &few, ..fits }), &["positions of RoPE tables", "found 8", "max_seq_len, 9"]);
    holds(&rope(QkNormRope { tables: &wide, ..fits }), &["head_dim of RoPE tables", "found 128", "64"]);
    holds(&rope(QkNormRope { position: Index::Value(9), ..fits }), &["position of RoPE", "found 9", "max_seq_len, 9"]);
    let shape = CacheShape { max_seq_len: 1 << 25, ..*shape };
    holds(&rope(QkNormRope { shape, ..fits }), &["k_cache of RoPE", "overflows"]);
    holds(&rope(QkNormRope { q: k, heads: 2, ..fits }), &["same buffer"]);
    holds(&rope(QkNormRope { v_cache: k_cache, ..fits }), &["same buffer"]);
    holds(&refused(|| RopeTables::new(&scene.device, 1, 63, 1e6)), &["head_dim of RoPE tables", "found 63", "even"]);
    for theta in [0.0, -1e6, f64::NAN, f64::INFINITY] {
        holds(&refused(|| RopeTables::new(&scene.device, 1, 64, theta)), &["theta of RoPE tables", "above 0"]);
    }
}

/// The refusal of RoPE for heads of `head_dim` elements.
fn rope_of(head_dim: u32) -> String {
    let scene = Scene::<f16>::new(1, 1, head_dim, 4, &mut Random::fresh());
    let tables = RopeTables::new(&scene.device, 4, head_dim, 1e6).unwrap();
    let Scene { ops, stream, shape, q, k, v, k_cache, v_cache, error, .. } = &scene;
    let (tables, position) = (&tables, Index::Value(0));
    let arguments =
        QkNormRope { heads: 1, shape: *shape, q, k, v, norms: None, tables, k_cache, v_cache, position, error };
    refused(|| ops.qk_norm_rope_kv_write(stream, &arguments))
}

#[test]
fn rope_advises_a_bake_only_where_there_can_be_one() {
    for head_dim in [80, 96] {
        let kernel = QkNormRopeKvScatter::general(head_dim, KvType::F16);
        assert!(kernel.emit_ptx(Target::DEFAULT[0]).is_err(), "{head_dim}");
        holds(&rope_of(head_dim), &["head_dim of RoPE", &format!("found {head_dim}"), "a multiple of 64 up to 256"]);
    }
    assert!(QkNormRopeKvScatter::general(192, KvType::F16).emit_ptx(Target::DEFAULT[0]).is_ok());
    let expected = ["qk_norm_rope_kv_scatter_f16_192", "Bake::kernel(QkNormRopeKvScatter::general(head_dim, ..))"];
    holds(&rope_of(192), &expected);
}
