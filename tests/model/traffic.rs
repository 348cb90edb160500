//! A token's products in fast numerics move what they must, once: two layers and a small head of a published shape, by the
//! emulator's counters.
//!
//! `KILN_TEST_PRESETS=1 cargo test --release -p kiln --test model traffic` counts the large shapes too.

use crate::common;
use crate::counters::{self, Launch, Matrices};
use crate::presets::{Cut, turn, wanted};
use kiln::model::{KvType, ModelFile, PathChoice, SessionOptions};
use kiln::shape::presets;
use kiln_emulator::{Checks, Counters, DeviceConfig};
use std::collections::BTreeSet;

/// Bytes moved for a byte needed, at most.
const MOST: f64 = 1.03;
/// Bytes of the ring of a block with 227 KB of shared memory, at most: its producer fills it for a next token too.
const AHEAD: u64 = 189 << 10;
/// Lines in which lanes meet in banks: activations where a row of a number of super-blocks that is no multiple of 8 ends
/// between lanes, attention's sums of a chunk, a producer's look at its entries, values of several rows that are put down at once.
const MEETING: [&str; 4] = ["formats/plane.rs", CHUNKS, "blocks/ring/", "blocks/fast.rs"];
const CHUNKS: &str = "mma_attention/mod.rs";
/// Further passes of a weight in these lines, at most.
const FURTHER: f64 = 0.01;

/// The launches of one token and its logits on a chip like an H200.
fn token(cut: &Cut, path: PathChoice) -> Vec<Launch> {
    let matrices = Matrices::of(&ModelFile::open(&cut.0).expect("a model")).expect("its matrices");
    let model = cut.load(DeviceConfig { counters: true, checks: Checks::NONE, ..DeviceConfig::h200() });
    let ordinal = model.device().ordinal();
    kiln_emulator::clear_reports(ordinal);
    let options = SessionOptions::default().with_kv(KvType::F16).with_path(path).with_capacity(64);
    let mut session = model.session(options).expect("a session");
    session.append(&[640]).expect("it fits");
    session.logits().expect("logits");
    drop(session);
    drop(model);
    counters::launches(ordinal, &matrices)
}

/// Bytes in sectors that lines of that file of the source asked for.
fn asked_for_by(counters: &Counters, file: &str) -> u64 {
    let lines = counters.lines.values();
    let of_file = lines.filter(|line| line.source.as_ref().is_some_and(|(name, _)| name.contains(file)));
    of_file.map(|line| 32 * line.sectors).sum()
}

fn moves_what_it_needs(feature: &str, paths: &[PathChoice]) {
    let _turn = turn();
    let cut = Cut::write(feature);
    for path in paths {
        let launches = token(&cut, *path);
        let names: Vec<&str> = launches.iter().filter_map(|launch| launch.name.split(", ").nth(1)).collect();
        let layer = ["qkv", "attention output", "gate and up", "down"];
        match path {
            PathChoice::Persistent => assert_eq!(launches.len(), 1),
            _ => assert_eq!(names, [&layer[..], &layer, &["head"]].concat()),
        }
        for Launch { name, needed, counters } in &launches {
            let Some(needed) = needed else { continue };
            // Each block of the resident decoder has the embedding for itself, which stays in the L2 cache.
            let hidden = presets::by_name(feature).expect("a preset").shape.hidden;
            let embeddings = if *path == PathChoice::Persistent { u64::from(132 * hidden * 4) } else { 0 };
            let moved = counters.read_bytes_distinct - embeddings;
            let ratio = |bytes: u64| bytes as f64 / needed.bytes as f64;
            let of_ring = asked_for_by(counters, "blocks/ring/copy.rs");
            let weights = asked_for_by(counters, "blocks/slot.rs") + of_ring;
            let ahead = if of_ring > 0 { 132 * AHEAD } else { 0 };
            let further = counters.bank_conflicts as f64 / needed.weights as f64;
            println!(
                "{feature}, {name}: {} needed, {:.3} moved, {:.3} asked for, {further:.4} further passes a weight",
                needed.bytes,
                ratio(moved),
                ratio(weights)
            );
            let (least, most) = (ratio(weights), ratio(weights.saturating_sub(ahead)));
            assert!(least >= 1.0 && most <= MOST, "{feature}, {name}: {weights} asked for of {needed:?}");
            assert!((1.0..=MOST).contains(&ratio(moved)), "{feature}, {name}: {moved} moved of {needed:?}");
            let lines = counters.lines.values().filter(|line| line.bank_conflicts > 0);
            let lines = lines.filter_map(|line| line.source.as_ref().map(|source| source.0.clone()));
            let others: Vec<String> = lines.filter(|file| !MEETING.iter().any(|known| file.contains(known))).collect();
            assert!(others.is_empty(), "{feature}, {name}: lanes meet in banks in {others:?}");
            assert!(further <= FURTHER, "{feature}, {name}: {further} further passes a weight");
        }
    }
}

#[test]
fn products_of_the_smallest_shape_move_what_they_need() {
    if common::is_left_out_on_gpu("a GPU does not count") {
        return;
    }
    moves_what_it_needs("qwen3-0-6b", &[PathChoice::Stream]);
}

/// Lanes of a prompt's kernels meet in no bank of shared memory, but where attention of a few columns puts chunks together: by the
/// instructions of three targets, and each kind of tile on one of them at least.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn prompts_have_no_bank_conflicts() {
    if common::is_left_out_on_gpu("a GPU does not count") {
        return;
    }
    let _turn = turn();
    let cut = Cut::write("qwen3-0-6b");
    let mut launched = BTreeSet::new();
    let chips = [(DeviceConfig::with_sm(7, 5), 202), (DeviceConfig::with_sm(8, 0), 202), (DeviceConfig::h200(), 458)];
    for (chip, many) in chips {
        let name = chip.name.clone();
        let model = cut.load(DeviceConfig { counters: true, checks: Checks::NONE, ..chip });
        let ordinal = model.device().ordinal();
        kiln_emulator::clear_reports(ordinal);
        // The last two end within a tile. The last token waits until its logits are asked for.
        for tokens in [8, 13, many] {
            let ids: Vec<u32> = (0..tokens).map(|token| 7 * token % 2048).collect();
            let options = SessionOptions::default().with_kv(KvType::F16).with_path(PathChoice::Stream);
            let mut session = model.session(options.with_capacity(512)).expect("a session");
            session.append(&ids).expect("it fits");
            session.prefill().expect("it runs");
        }
        for launch in kiln_emulator::reports(ordinal) {
            let meeting = launch.counters.lines.values().filter(|line| line.bank_conflicts > 0);
            let known = |file: &str| launch.kernel.starts_with("attention_columns") && file.contains(CHUNKS);
            let sources = meeting.filter(|line| !line.source.as_ref().is_some_and(|(file, _)| known(file)));
            let sources: Vec<_> = sources.map(|line| (&line.source, line.bank_conflicts)).collect();
            assert!(sources.is_empty(), "{name}: {} has further passes in {sources:?}", launch.kernel);
            launched.insert(launch.kernel);
        }
    }
    for kernel in ["gemm_8", "gemm_16", "gemm_sliced", "gemm_tile", "gemm_tile_128", "gemm_warpgroups"] {
        assert!(launched.contains(kernel), "{kernel} is none of {launched:?}");
    }
}

#[test]
fn products_of_the_large_shapes_move_what_they_need() {
    if common::is_left_out_on_gpu("a GPU does not count") {
        return;
    }
    for feature in ["qwen3b", "qwen3-8b"] {
        if wanted(feature) {
            moves_what_it_needs(feature, &[PathChoice::Stream, PathChoice::Persistent]);
        }
    }
}

/// Bytes that the blocks of an H200 exchange through the L2 cache in two layers: looks at words and flags, as many as there are
/// by the clock, and words that are emptied. A look at each word of each vector by each block is needed.
fn exchange_through_l2(feature: &str) {
    let _turn = turn();
    let cut = Cut::write(feature);
    let chip = kiln_emulator::chip_file("h200").expect("a chip");
    let model = cut.load(DeviceConfig { counters: true, ..DeviceConfig::clocked(chip) });
    let ordinal = model.device().ordinal();
    kiln_emulator::clear_reports(ordinal);
    let options = SessionOptions::default().with_kv(KvType::F16).with_path(PathChoice::Persistent).with_capacity(64);
    let mut session = model.session(options).expect("a session");
    session.append(&[640]).expect("it fits");
    session.logits().expect("logits");
    drop(session);
    drop(model);
    let shape = presets::by_name(feature).expect("a preset").shape;
    // The first layer has the embedding instead of a vector, the head one more.
    let needed = 2 * 132 * 4 * u64::from(2 * shape.hidden + shape.q_dim() + shape.ffn);
    let reports = kiln_emulator::reports(ordinal);
    let decoder = reports.iter().max_by_key(|report| report.counters.warp_instructions).expect("a launch");
    let found = asked_for_by(&decoder.counters, "blocks/exchange.rs");
    println!("{feature}: {found} bytes exchanged in two layers, {needed} needed");
    assert!((needed..=2 * needed).contains(&found), "{feature}: {found} bytes exchanged, {needed} needed");
}

#[test]
fn blocks_of_the_large_shapes_look_at_a_word_twice_at_most() {
    if common::is_left_out_on_gpu("a GPU does not count") {
        return;
    }
    for feature in ["qwen3b", "qwen3-8b"] {
        if wanted(feature) {
            exchange_through_l2(feature);
        }
    }
}
