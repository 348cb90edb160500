//! What the checked launches read from device memory, by the emulator's counters.

use half::f16;
use kiln::driver::GpuTensor;
use kiln::ops::Index;
use kiln_emulator::{Counters, DeviceConfig};

use crate::common;
use crate::random::Random;
use crate::scene::{Rounded, Scene};

/// The counters of each launch of `work`.
fn counted<T: Rounded>(scene: &Scene<T>, work: impl FnOnce()) -> Vec<(String, Counters)> {
    kiln_emulator::clear_reports(scene.device.ordinal());
    work();
    let reports = kiln_emulator::reports(scene.device.ordinal());
    reports.into_iter().map(|report| (report.kernel, report.counters)).collect()
}

/// Bytes moved by incremental attention and by the chunks of flash decoding over a cache of `length` positions, without
/// those of the queries, and the bytes of the keys and values.
fn moved<T: Rounded>(group: u32, head_dim: u32, length: u32, random: &mut Random) -> ([u64; 2], u64) {
    let device = common::device_with(DeviceConfig { counters: true, threads: 1, ..DeviceConfig::default() });
    let scene = Scene::<T>::on(device, 2 * group, 2, head_dim, length, random);
    let (queries, cache) = (2 * group * head_dim * 4, 2 * 2 * length * head_dim * size_of::<T>() as u32);
    let read = |reports: &[(String, Counters)], times: u32| {
        let (_, counters) = &reports[0];
        32 * counters.read_sectors - u64::from(times * queries)
    };
    let incremental =
        counted(&scene, || scene.ops.incremental_attention(&scene.attention(Index::Value(length))).unwrap());
    let lengths = GpuTensor::from_host(&scene.device, &[length]).unwrap();
    let flash =
        scene.ops.flash_decoding(scene.heads, scene.shape, &[&scene.k_cache], &[&scene.v_cache], length).unwrap();
    let chunks = flash.num_chunks(length);
    let flash = counted(&scene, || {
        flash.run(&scene.stream, &scene.q, &lengths, &scene.out, &scene.error).unwrap();
        scene.stream.synchronize().unwrap();
    });
    // Each chunk reads the queries.
    ([read(&incremental, 1), read(&flash, chunks)], cache.into())
}

#[test]
fn query_heads_of_a_group_of_up_to_eight_share_one_read_of_keys_and_values() {
    if common::is_left_out_on_gpu("a GPU does not count") {
        return;
    }
    let mut random = Random::fresh();
    // Published shapes have 8, 7, 6 and 5 query heads for each KV head, or 4 and fewer.
    for (group, head_dim) in [(8, 128), (7, 128), (5, 64), (8, 256), (8, 80), (6, 96), (2, 64)] {
        for (name, (reads, cache)) in [
            ("f16", moved::<f16>(group, head_dim, 512, &mut random)),
            ("f32", moved::<f32>(group, head_dim, 512, &mut random)),
        ] {
            for moved in reads {
                let what = format!("groups of {group}, head_dim {head_dim}, {name}: {moved} bytes moved of {cache}");
                assert!(moved >= cache && moved as f64 <= 1.03 * cache as f64, "{what}");
            }
        }
    }
}
