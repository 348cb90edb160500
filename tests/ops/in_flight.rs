//! Tensors outlive the kernels that use them, whatever safe code does.

use half::f16;
use kiln::driver::GpuTensor;
use kiln::ops::{IncrementalAttention, Index};

use crate::common::{Gate, blocks_until_open, fault};
use crate::compare::assert_close;
use crate::random::Random;
use crate::scene::Scene;

fn scene() -> Scene<f16> {
    Scene::new(4, 2, 64, 9, &mut Random::fresh())
}

#[test]
fn a_cache_is_not_freed_while_attention_reads_it() {
    let mut scene = scene();
    let expected = scene.expected(9);
    let gate = Gate::close(&scene.stream);
    scene.ops.incremental_attention_on(&scene.stream, &scene.attention(Index::Value(9))).unwrap();
    let cache = std::mem::replace(&mut scene.k_cache, GpuTensor::zeros(&scene.device, 0).unwrap());
    blocks_until_open(&gate, || drop(cache));
    assert_close("attention", &scene.out.to_host().unwrap(), &expected, 3e-6);
    assert_eq!(fault(&scene.device), None);
}

#[test]
fn a_cache_is_not_freed_when_the_arguments_are_forgotten() {
    let mut scene = scene();
    let expected = scene.expected(9);
    let gate = Gate::close(&scene.stream);
    let event = scene.ops.incremental_attention_event(&scene.stream, &scene.attention(Index::Value(9))).unwrap();
    // No guard keeps the tensors alive, so none can be forgotten.
    std::mem::forget(event);
    let cache = std::mem::replace(&mut scene.v_cache, GpuTensor::zeros(&scene.device, 0).unwrap());
    blocks_until_open(&gate, || drop(cache));
    assert_close("attention", &scene.out.to_host().unwrap(), &expected, 3e-6);
    assert_eq!(fault(&scene.device), None);
}

#[test]
fn a_result_is_not_read_before_it_is_written() {
    let scene = scene();
    let gate = Gate::close(&scene.stream);
    scene.ops.incremental_attention_on(&scene.stream, &scene.attention(Index::Value(9))).unwrap();
    let found = blocks_until_open(&gate, || scene.out.to_host().unwrap());
    assert_close("attention", &found, &scene.expected(9), 3e-6);
}

#[test]
fn queries_are_not_rewritten_while_they_are_read() {
    let mut scene = scene();
    let gate = Gate::close(&scene.stream);
    scene.ops.incremental_attention_on(&scene.stream, &scene.attention(Index::Value(9))).unwrap();
    blocks_until_open(&gate, || scene.q.copy_from_host(&[0.0; 256]).unwrap());
    assert_close("attention", &scene.out.to_host().unwrap(), &scene.expected(9), 3e-6);
}

#[test]
fn a_length_in_device_memory_is_not_freed_while_it_is_read() {
    let scene = scene();
    let length = GpuTensor::from_host(&scene.device, &[9u32]).unwrap();
    let gate = Gate::close(&scene.stream);
    let arguments = IncrementalAttention { length: Index::Device(&length), ..scene.attention(Index::Value(0)) };
    scene.ops.incremental_attention_on(&scene.stream, &arguments).unwrap();
    blocks_until_open(&gate, || drop(length));
    assert_close("attention", &scene.out.to_host().unwrap(), &scene.expected(9), 3e-6);
    assert_eq!(fault(&scene.device), None);
}

#[test]
fn attention_on_another_stream_waits_for_the_scatter() {
    let mut scene = scene();
    let other = scene.device.stream().unwrap();
    let gate = Gate::close(&scene.stream);
    scene.scatter(&scene.stream, Index::Value(8)).unwrap();
    scene.ops.incremental_attention_on(&other, &scene.attention(Index::Value(9))).unwrap();
    let found = blocks_until_open(&gate, || scene.out.to_host().unwrap());
    scene.write(8);
    assert_close("attention", &found, &scene.expected(9), 3e-6);
}

#[test]
fn partial_results_are_not_freed_while_they_are_read() {
    let scene = scene();
    let expected = scene.expected(9);
    let lengths = GpuTensor::from_host(&scene.device, &[9u32]).unwrap();
    let flash = scene.ops.flash_decoding(4, scene.shape, &[&scene.k_cache], &[&scene.v_cache], 9).unwrap();
    let gate = Gate::close(&scene.stream);
    flash.run(&scene.stream, &scene.q, &lengths, &scene.out, &scene.error).unwrap();
    blocks_until_open(&gate, || drop(flash));
    assert_close("flash decoding", &scene.out.to_host().unwrap(), &expected, 3e-6);
    assert_eq!(fault(&scene.device), None);
}
