//! Which driver calls a launch makes.

use std::sync::mpsc;
use std::time::Duration;

use half::f16;
use kiln::driver::GpuTensor;
use kiln::ops::{Gemv, Index, Norm, QkNormRope, Qkv, RopeTables};

use crate::common::table::{calls_of, held};
use crate::compare::assert_close;
use crate::random::Random;
use crate::scene::Scene;

/// Long enough for a launch on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a call that only enqueues must not do: wait, allocate, create, load, or hand text to the driver.
const FORBIDDEN: &[&str] = &[
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoD",
    "cuMemcpyDtoH",
    "cuMemcpyDtoD",
    "cuStreamCreate",
    "cuEventCreate",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncLoad",
    "cuFuncSetAttribute",
];

/// Runs `work`, which enqueues `launches` kernels and does nothing else of note.
#[track_caller]
fn only_enqueues<R>(launches: usize, work: impl FnOnce() -> kiln::Result<R>) -> R {
    let (result, calls) = calls_of(work);
    assert!(calls.iter().all(|call| !FORBIDDEN.contains(call)), "{calls:?}");
    assert_eq!(calls.iter().filter(|call| **call == "cuLaunchKernel").count(), launches, "{calls:?}");
    result.unwrap()
}

fn scene() -> Scene<f16> {
    Scene::new(4, 2, 64, 200, &mut Random::fresh())
}

#[test]
fn scatter_and_attention_on_a_stream_only_enqueue() {
    let scene = scene();
    let length = GpuTensor::from_host(&scene.device, &[5u32]).unwrap();
    for index in [Index::Value(5), Index::Device(&length)] {
        only_enqueues(1, || scene.scatter(&scene.stream, index));
        only_enqueues(1, || scene.ops.incremental_attention_on(&scene.stream, &scene.attention(index)));
    }
}

#[test]
fn attention_with_an_event_only_enqueues() {
    let scene = scene();
    for _ in 0..20 {
        let work = || scene.ops.incremental_attention_event(&scene.stream, &scene.attention(Index::Value(5)));
        only_enqueues(1, work).synchronize().unwrap();
    }
}

#[test]
fn flash_decoding_only_enqueues() {
    let scene = scene();
    let Scene { ops, stream, shape, k_cache, v_cache, q, out, error, .. } = &scene;
    let flash = ops.flash_decoding(4, *shape, &[k_cache], &[v_cache], 200).unwrap();
    let lengths = GpuTensor::from_host(&scene.device, &[200u32]).unwrap();
    only_enqueues(2, || flash.run(stream, q, &lengths, out, error));
}

#[test]
fn the_others_only_enqueue() {
    let scene = scene();
    let Scene { ops, stream, q, .. } = &scene;
    let w = ops.matrix(kiln::shape::WeightType::Q8_0, 3, 256, &[0; 3 * 8 * 34]).unwrap();
    let [y, gamma, normed] = [3, 64, 256].map(|len| GpuTensor::zeros(&scene.device, len).unwrap());
    only_enqueues(1, || ops.gemv(stream, &w, q, &y));
    only_enqueues(1, || ops.fused_rmsnorm_gemv(stream, &w, q, &normed, 0.5, &y));
    only_enqueues(1, || ops.per_head_rmsnorm(stream, q, &gamma, 0.5, &normed));
    only_enqueues(1, || ops.saxpy(stream, 0.5, q, &normed));
    let norm = Norm { gamma: &normed, eps: 0.5 };
    let [bias, residual, k, v] = [3; 4].map(|len| GpuTensor::zeros(&scene.device, len).unwrap());
    let gemv = Gemv { w: &w, x: q, norm: Some(norm), bias: Some(&bias), residual: Some(&residual), y: &y };
    only_enqueues(1, || ops.gemv_with(stream, &gemv));
    let qkv = Qkv { wq: &w, wk: &w, wv: &w, x: q, norm, biases: Some([&bias; 3]), q: &y, k: &k, v: &v };
    only_enqueues(1, || ops.fused_rmsnorm_qkv(stream, &qkv));
    only_enqueues(1, || ops.fused_rmsnorm_gate_up(stream, &w, &w, q, norm, &y));
    let tables = RopeTables::new(&scene.device, 200, 64, 1e6).unwrap();
    let norm = Norm { gamma: &gamma, eps: 0.5 };
    let rope = QkNormRope {
        heads: 4,
        shape: scene.shape,
        q,
        k: &scene.k,
        v: &scene.v,
        norms: Some([norm, norm]),
        tables: &tables,
        k_cache: &scene.k_cache,
        v_cache: &scene.v_cache,
        position: Index::Value(7),
        error: &scene.error,
    };
    only_enqueues(1, || ops.qk_norm_rope_kv_write(stream, &rope));
}

/// A thread that the driver keeps in a launch keeps no other from launching the same kernels on other tensors: neither
/// `Ops` nor what is under it has a lock for all.
#[test]
fn a_launch_held_up_in_the_driver_holds_up_no_other() {
    let mut random = Random::fresh();
    let scene = scene();
    random.next(); // other numbers than in the first scene
    let mut other = Scene::<f16>::on(scene.device.clone(), 4, 2, 64, 200, &mut random);
    let ops = &scene.ops;
    for (index, name) in ["cuLaunchKernel", "cuEventRecord"].into_iter().enumerate() {
        let (entered, inside) = mpsc::channel();
        let (release, go_on) = mpsc::channel();
        let (done, finished) = mpsc::channel();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                held(name, entered, go_on, || {
                    ops.incremental_attention_event(&scene.stream, &scene.attention(Index::Value(5))).unwrap();
                });
            });
            inside.recv_timeout(PATIENCE).expect("the launch came to the driver");
            threads.spawn(|| {
                let Scene { stream, shape, k, v, k_cache, v_cache, error, .. } = &other;
                ops.kv_cache_scatter(stream, *shape, k, v, k_cache, v_cache, Index::Value(6), error).unwrap();
                ops.incremental_attention_on(stream, &other.attention(Index::Value(7))).unwrap();
                ops.incremental_attention_event(stream, &other.attention(Index::Value(7))).unwrap();
                done.send(()).unwrap();
            });
            let in_time = finished.recv_timeout(PATIENCE);
            drop(release);
            in_time.unwrap_or_else(|_| panic!("{index}: held up by another thread's {name}"));
        });
    }
    other.write(6);
    assert_close("attention", &other.out.to_host().unwrap(), &other.expected(7), 3e-6);
}

#[test]
fn blocking_attention_synchronises_once() {
    let scene = scene();
    let (result, calls) = calls_of(|| scene.ops.incremental_attention(&scene.attention(Index::Value(5))));
    result.unwrap();
    let mut waits: Vec<_> = calls.iter().filter(|call| !call.starts_with("cuCtx")).collect();
    waits.dedup(); // it looks again and again
    assert_eq!(waits.iter().filter(|call| ***call == "cuEventQuery").count(), 1, "{waits:?}");
    assert!(
        calls.iter().filter(|call| !call.ends_with("Synchronize")).all(|call| !FORBIDDEN.contains(call)),
        "{calls:?}"
    );
    // Done already: reading waits for nothing but its own copy.
    assert!(scene.out.to_host().unwrap().iter().all(|x| x.is_finite()));
}
