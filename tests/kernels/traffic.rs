//! What is read from device memory, by the emulator's counters: a fused kernel that reads its inputs again for every row
//! or head gives the right results, and saves nothing.

use kiln_codegen::KvType;
use kiln_codegen::kernels::FusedRmsNormQ4KGemv;
use kiln_emulator::Counters;
use kiln_shape::{Numerics, WeightType};

use crate::attention::{Batch, Case};
use crate::common;
use crate::gemv;
use crate::kv::KV_TYPES;
use crate::one_launch::Launch;
use crate::random::Random;
use crate::support::Gpu;

/// The counters of each launch of `work`.
pub(crate) fn counted(work: impl FnOnce(&Gpu)) -> Vec<(String, Counters)> {
    let gpu = Gpu::counting();
    work(&gpu);
    let reports = kiln_emulator::reports(gpu.device.ordinal());
    reports.into_iter().map(|report| (report.kernel, report.counters)).collect()
}

/// Bytes that lanes asked for in lines of a file of the kernel's source.
fn asked_for_by(counters: &Counters, file: &str) -> u64 {
    let lines = counters.lines.values();
    let of_file = lines.filter(|line| line.source.as_ref().is_some_and(|(name, _)| name.contains(file)));
    of_file.map(|line| line.bytes_used).sum()
}

#[test]
fn a_block_reads_the_vector_and_gamma_once_whatever_its_rows() {
    if common::is_left_out_on_gpu("a GPU does not count") {
        return;
    }
    let mut random = Random::fresh();
    for (k, n, grid) in [(1024u32, 100u32, 3u32), (25600, 40, 1)] {
        let case = gemv::Case::new(FusedRmsNormQ4KGemv::new(k, n), k as usize, n as usize, &mut random);
        let reports = counted(|gpu| drop(case.run(gpu, grid)));
        let [(_, counters)] = reports.as_slice() else { panic!("one launch, not {}", reports.len()) };
        assert_eq!(asked_for_by(counters, "blocks/stage.rs"), u64::from(grid * 2 * k * 4), "k {k}, n {n}");
        let needed = u64::from(n * k / 256 * 144 + 2 * k * 4);
        let distinct = counters.read_bytes_distinct;
        // Sectors at the ends, and partial sums of a vector that is staged in parts.
        let more = 3 * 32 + u64::from(4 * n);
        assert!(distinct >= needed && distinct <= needed + more, "{distinct} bytes, {needed} needed");
    }
}

#[test]
fn weights_are_asked_for_once() {
    if common::is_left_out_on_gpu("a GPU does not count") {
        return;
    }
    let mut random = Random::fresh();
    for &ty in WeightType::ALL {
        let kernel = FusedRmsNormQ4KGemv::new(2048, 16).with_weights(ty).without_norm();
        let case = gemv::Case::new(kernel, 2048, 16, &mut random);
        let reports = counted(|gpu| drop(case.run(gpu, 1)));
        // A header of 16 bytes, or scales, go to each of the eight lanes of a super-block: that is broadcast, not read.
        let headers = match ty {
            WeightType::Q4_K => 7 * 16,
            // Fifth bits go to the four lanes that have the same half of sub-blocks.
            WeightType::Q5_K => 7 * 16 + 3 * 32,
            WeightType::Q6_K => 8 * (2 + 2 + 16) - 16 - 2 - 64,
            WeightType::Q8_0 => 8 * 4 - 16,
            WeightType::Q4_0 | WeightType::Q5_0 | WeightType::F16 | WeightType::BF16 | WeightType::F32 => 0,
        };
        let blocks = u64::from(16u32 * 2048 / 256);
        let needed = ty.tensor_bytes(&[2048, 16]).expect("a size") + blocks * headers;
        let asked = asked_for_by(&reports[0].1, "formats/");
        assert_eq!(asked, needed, "{ty}");
        // Of eight super-blocks of a row a warp has four at a time, and asks L2 for the lines of the other four.
        let lines = u64::from(ty.layout().data.div_ceil(128));
        let ahead = if ty.block_len() == 1 { 0 } else { 16 * 4 * lines * 128 };
        assert_eq!(asked_for_by(&reports[0].1, "blocks/dot.rs"), ahead, "{ty}");
    }
}

#[test]
fn keys_and_values_are_read_once_for_all_heads_of_a_group_and_values_asked_for_ahead() {
    if common::is_left_out_on_gpu("a GPU does not count") {
        return;
    }
    let mut random = Random::fresh();
    for kv in KV_TYPES {
        let case = [Case::new(2, 8, 128, kv, 1000, &mut random)];
        let element = if kv == KvType::F16 { 2 } else { 4 };
        let (cache, q) = (2 * 2 * 1000 * 128 * element, 16 * 128 * 4);
        let incremental = counted(|gpu| drop(case[0].run(gpu, false, false)));
        let flash = counted(|gpu| drop(Batch::new(&case, 0).run(gpu, false)));
        // Each of the eight chunks reads the queries.
        for ((name, counters), queries) in [(&incremental[0], q), (&flash[0], 8 * q)] {
            let moved = 32 * counters.read_sectors - queries;
            assert!(moved as f64 <= 1.03 * cache as f64, "{name}: {moved} bytes moved of {cache}");
            assert!(moved >= cache, "{name}: {moved} bytes moved of {cache}");
            // Values, half of the cache, are asked for ahead: a warp asks for 32 lines.
            let ahead = 32 * 128 * counters.by_opcode.get("prefetch").copied().unwrap_or(0);
            let values = cache / 2;
            assert!(ahead >= values && ahead as f64 <= 1.03 * values as f64, "{name}: {ahead} bytes ahead of {values}");
        }
    }
}

#[test]
fn tensor_cores_attend_in_fewer_instructions() {
    if common::is_left_out_on_gpu("a GPU does not count") {
        return;
    }
    let mut random = Random::fresh();
    for (place, group) in [1, 2, 4, 8].into_iter().enumerate() {
        let case = Case::new(2, group, 128, KvType::F16, 1024, &mut random);
        let cache = 2 * 2 * 1024 * 128 * 2;
        let each = Numerics::ALL.map(|numerics| {
            let reports = counted(|gpu| drop(Launch::of(&case, numerics).run(gpu)));
            let [(_, counters)] = reports.as_slice() else { panic!("one launch, not {}", reports.len()) };
            let each = counters.warp_instructions as f64 / (2.0 * 1024.0);
            println!(
                "group of {group}, {numerics}: {each:.1} instructions of a warp for a position of a KV head, {} conflicts, \
                 {} bytes for {cache} of cache",
                counters.bank_conflicts,
                32 * counters.read_sectors
            );
            if numerics == Numerics::Fast {
                let asked = asked_for_by(counters, "mma_attention/chunk.rs");
                // Beside keys and values the addresses of chunks, which all lanes ask for.
                assert!(asked >= cache && asked as f64 <= 1.04 * cache as f64, "{asked} bytes of {cache}");
            }
            each
        });
        assert!(each[1] <= [33.0, 37.0, 44.0, 59.0][place], "a group of {group}: {each:?}");
    }
}
