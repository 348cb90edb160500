//! The ring of the persistent decoder's weights: the stream path's bits from rings of any depth, under any schedule, with
//! every type of weights, over several items and launches. With every check on: what `tests/mutations.txt` plants into the
//! ring is found here.

use crate::presets::{Cut, turn, wanted};
use crate::random::Random;
use crate::synth_model::{Mix, SynthModel};
use crate::{bake, common};
use half::f16;
use kiln::Model;
use kiln::baked::{BakedKernel, BakedModel, DecoderPath};
use kiln::driver::DeviceBuffer;
use kiln::model::{GenerateOptions, KvType, ModelFile, Numerics, PathChoice, Session, SessionOptions};
use kiln_emulator::{Checks, DeviceConfig, Schedule};
use kiln_shape::mailbox::command::COLUMNS;
use kiln_shape::ring::{Depth, UNIT_BYTES};
use kiln_shape::{Gguf, ModelShape, TensorRole, WeightType, presets};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{process, thread};

const PROMPT: [u32; 3] = [5, 600, 7];

const WHOLE: &str = "persistent_decoder";
const IN_SLICES: &str = "persistent_decoder_slices";

/// The decoder of that name whose weights come through a ring.
fn ringed(baked: &BakedModel, name: &str) -> Option<BakedKernel> {
    let fast = baked.modules().iter().filter(|of| of.decoder == Some((DecoderPath::Persistent, Numerics::Fast)));
    fast.flat_map(|module| module.kernels).find(|kernel| kernel.name == name).copied()
}

/// What is left of a block's shared memory beside a kernel.
fn left(kernel: &BakedKernel, limit: u32) -> u32 {
    limit - kernel.static_shared.next_multiple_of(128) - kernel.dynamic_shared
}

/// The rings of launches with one column, two and so on, where a block has so much shared memory; then those of launches with more
/// columns, whose FFN's vector comes in slices.
fn rings_in(baked: &BakedModel, limit: u32, types: &[WeightType]) -> [Vec<Depth>; 2] {
    let of = |kernel: &BakedKernel, columns| {
        Depth::for_columns(
            left(kernel, limit),
            (kernel.column_shared, columns),
            kernel.block / 32 - 1,
            types.iter().copied(),
        )
    };
    let whole = of(&ringed(baked, WHOLE).expect("it is baked"), 1..=COLUMNS);
    let further = whole.len() as u32 + 1..=COLUMNS;
    let in_slices = ringed(baked, IN_SLICES).map(|kernel| of(&kernel, further));
    [whole, in_slices.unwrap_or_default()]
}

/// The same where it has room for so many units a warp beside the rest of a launch with one column.
pub(crate) fn rings(file: &ModelFile, target: u32, units: u32) -> [Vec<Depth>; 2] {
    let baked = bake::of(*file.shape(), file.types(), target);
    let types: Vec<WeightType> = file.types().iter().collect();
    rings_in(baked, limit(baked, units), &types)
}

/// The shared memory of such a block.
fn limit(baked: &BakedModel, units: u32) -> u32 {
    let kernel = ringed(baked, WHOLE).expect("it is baked");
    let depth = units * UNIT_BYTES * (kernel.block / 32 - 1);
    kernel.static_shared.next_multiple_of(128) + kernel.dynamic_shared + depth
}

/// A device whose blocks have room for a ring of so many units a warp beside the rest; of a whole device's otherwise.
fn with_ring(baked: &BakedModel, units: Option<u32>, config: DeviceConfig) -> DeviceConfig {
    DeviceConfig { shared_per_block_optin: units.map(|units| limit(baked, units)), ..config }
}

/// A model on a device with such a ring.
pub(crate) fn open(file: ModelFile, units: Option<u32>, config: DeviceConfig) -> Model {
    // What waits for ever is to be seen soon.
    open_with(file, units, config, Duration::from_secs(60))
}

/// The same, with a wait of the host that ends, and one of the device that ends four times as soon.
fn open_with(file: ModelFile, units: Option<u32>, config: DeviceConfig, wait: Duration) -> Model {
    // Before sm_90, and before the chips whose text is their own, sm_80's runs.
    let target = match config.sm {
        (9.., _) => 90,
        (8, _) => 80,
        _ => 75,
    };
    let baked = bake::of(*file.shape(), file.types(), target);
    let device = common::device_with(with_ring(baked, units, config));
    device.set_limits(device.limits().with_device_wait(wait / 4).with_wait(wait));
    Model::load(&device, baked, file, |_| {}).expect("it loads")
}

/// The random model of two layers.
pub(crate) fn tiny() -> ModelFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny3-d64.Q4_K_M/model.gguf");
    ModelFile::open(path).expect("a model")
}

fn session(model: &Model, path: PathChoice, blocks: Option<u32>) -> Session {
    let options = SessionOptions::default().with_numerics(Numerics::Fast).with_kv(KvType::F32).with_path(path);
    model.session(options.with_blocks(blocks).with_capacity(64)).expect("a session")
}

/// Tokens behind some ids, then the logits' bits.
fn results(session: &mut Session, ids: &[u32], count: usize) -> (Vec<u32>, Vec<u32>) {
    session.append(ids).expect("they fit");
    let tokens = session.generate(GenerateOptions::new(count)).collect::<kiln::Result<_>>().expect("it generates");
    let logits = session.logits().expect("logits");
    (tokens, logits.into_iter().map(f32::to_bits).collect())
}

/// A model on a whole device that checks nothing, for the stream path.
pub(crate) fn whole(file: ModelFile) -> Model {
    open(file, None, DeviceConfig { checks: Checks::NONE, ..DeviceConfig::default() })
}

/// Holds grids of the persistent path to the stream path of the same file.
fn is_the_streams(model: &Model, stream: &Model, what: &str, grids: &[u32], count: usize) {
    let expected = results(&mut session(stream, PathChoice::Stream, None), &PROMPT, count);
    for blocks in grids {
        let found = results(&mut session(model, PathChoice::Persistent, Some(*blocks)), &PROMPT, count);
        assert_eq!(found, expected, "{what}, {blocks} blocks");
    }
}

/// Each ring goes round several times a token with one block; with seven some warps have no rows in some phases, and a whole
/// device's has room for a token's layers, so that its producer comes to the head first.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn the_rings_bits_are_the_streams_under_every_schedule() {
    let of = |schedule, seed| DeviceConfig { schedule, seed, multiprocessors: 7, ..DeviceConfig::default() };
    let stream = whole(tiny());
    let split = DeviceConfig { split_warps: true, ..of(Schedule::Random, 2) };
    let cases = [
        ("round robin", of(Schedule::RoundRobin, 0), Some(4), &[1, 7][..]),
        ("random", of(Schedule::Random, 1), None, &[2, 7]),
        ("split warps", split, Some(8), &[2]),
        ("adversarial", of(Schedule::Adversarial, 3), Some(4), &[7]),
    ];
    for (what, config, units, grids) in Random::fresh().some_of(2, cases) {
        is_the_streams(&open(tiny(), units, config), &stream, what, grids, 2);
    }
}

/// The same where lanes copy: on chips of 163 KB a block and of 99.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn copies_of_lanes_bring_the_streams_bits_under_every_schedule() {
    let of = |sm, schedule, seed| DeviceConfig { sm, schedule, seed, multiprocessors: 7, ..DeviceConfig::default() };
    let stream = whole(tiny());
    let split = DeviceConfig { split_warps: true, ..of((8, 7), Schedule::Random, 2) };
    let cases = [
        ("round robin", of((8, 0), Schedule::RoundRobin, 0), Some(4), &[1, 7][..]),
        ("random", of((8, 6), Schedule::Random, 1), None, &[2]),
        ("split warps", split, Some(8), &[2]),
        ("adversarial", of((8, 9), Schedule::Adversarial, 3), Some(4), &[7]),
    ];
    for (what, config, units, grids) in Random::fresh().some_of(2, cases) {
        is_the_streams(&open(tiny(), units, config), &stream, what, grids, 2);
    }
}

/// One block, two and seven under each schedule, with bulk copies and with copies of lanes.
#[test]
#[ignore = "minutes; .ci/long runs it"]
fn many_grids_have_the_streams_bits_under_every_schedule() {
    let stream = whole(tiny());
    for sm in [(9, 0), (8, 0)] {
        for (schedule, split_warps) in [
            (Schedule::RoundRobin, false),
            (Schedule::Random, false),
            (Schedule::Random, true),
            (Schedule::Adversarial, false),
        ] {
            let config =
                DeviceConfig { sm, schedule, split_warps, seed: 4, multiprocessors: 7, ..DeviceConfig::default() };
            let what = format!("{sm:?}, {schedule:?}, split warps: {split_warps}");
            is_the_streams(&open(tiny(), Some(4), config), &stream, &what, &[1, 2, 7], 2);
        }
    }
}

/// As many blocks as an H200 has, most of whose warps have no rows in some phases. With every check on, which takes a minute a
/// token.
#[test]
#[ignore = "minutes; .ci/long runs it"]
fn many_blocks_have_the_streams_bits_under_every_schedule() {
    let of = |model: &Model, path, blocks| results(&mut session(model, path, blocks), &PROMPT[..1], 1);
    let expected = of(&whole(tiny()), PathChoice::Stream, None);
    for (schedule, split_warps) in [
        (Schedule::RoundRobin, false),
        (Schedule::Random, false),
        (Schedule::Random, true),
        (Schedule::Adversarial, false),
    ] {
        let config = DeviceConfig { multiprocessors: 132, schedule, split_warps, seed: 5, ..DeviceConfig::default() };
        let model = open_with(tiny(), Some(4), config, Duration::from_secs(600));
        let found = of(&model, PathChoice::Persistent, Some(132));
        assert_eq!(found, expected, "{schedule:?}, split warps: {split_warps}");
    }
}

/// The same without checks: blocks without rows of a phase go on beside those that have some.
#[test]
fn blocks_without_rows_have_the_streams_bits() {
    if common::is_left_out_on_gpu("no GPU has room for as many blocks at once") {
        return;
    }
    let (stream, blocks) = (whole(tiny()), 300);
    assert!(tiny().shape().hidden < blocks, "each block has a row");
    for sm in [(9, 0), (8, 0)] {
        let config = DeviceConfig { sm, multiprocessors: blocks, checks: Checks::NONE, ..DeviceConfig::default() };
        is_the_streams(&open(tiny(), Some(4), config), &stream, &format!("{sm:?}"), &[blocks], 2);
    }
}

/// sm_75 has no ring: there warps ask the L2 cache for their first weights of the next phase while the grid is waited for.
/// These are read anyway, so that hardly more bytes are touched than by a ring that asks for nothing ahead.
#[test]
fn without_a_ring_the_next_weights_are_asked_for_at_barriers() {
    if common::is_left_out_on_gpu("a GPU does not count") {
        return;
    }
    let run = |sm: (u32, u32)| {
        let config = DeviceConfig {
            counters: true,
            checks: Checks::NONE,
            multiprocessors: 2,
            l2_bytes: 0,
            sm,
            ..Default::default()
        };
        let model = open(tiny(), None, config);
        let ordinal = model.device().ordinal();
        kiln_emulator::clear_reports(ordinal);
        let found = results(&mut session(&model, PathChoice::Persistent, None), &PROMPT, 2);
        drop(model);
        let reports = kiln_emulator::reports(ordinal);
        let decoder = reports.iter().max_by_key(|report| report.counters.warp_instructions).expect("a launch");
        // A lane asks for a line of 128 bytes; what lanes load is less.
        let asked = decoder.counters.lines.values().filter(|line| {
            let here = line.source.as_ref().is_some_and(|(name, _)| name.contains("kernels/products.rs"));
            here && line.bytes_used > 0 && line.bytes_used == 128 * line.lane_instructions
        });
        (found, asked.map(|line| line.bytes_used).sum::<u64>(), decoder.counters.read_bytes_distinct)
    };
    let (with, without) = (run((7, 5)), run((8, 0)));
    println!("{} bytes asked for ahead, {} and {} distinct bytes", with.1, with.2, without.2);
    assert_eq!(with.0, without.0, "results");
    assert!(with.1 > 0 && without.1 == 0, "{} and {} bytes asked for", with.1, without.1);
    assert!(with.2 < without.2 + without.2 / 50, "{} distinct bytes, {} by a ring", with.2, without.2);
}

/// Rows of one, two and five super-blocks: planes of two bytes a record begin anywhere.
#[test]
#[ignore = "minutes; .ci/long runs it"]
fn every_type_comes_through_rings_of_any_depth() {
    let tiny = presets::by_name("tiny").expect("a preset").shape;
    let shape = ModelShape { hidden: 512, ffn: 1280, layers: 3, vocab: 650, tied_head: false, ..tiny };
    let written = Cut(std::env::temp_dir().join(format!("kiln-ring-{}.gguf", process::id())));
    let out = File::create(&written.0).expect("a temporary file");
    SynthModel { shape, mix: Mix::InTurn, seed: 3 }.write(BufWriter::new(out), |_, _| {}).expect("it fits the disk");
    let file = || ModelFile::open(&written.0).expect("a model");
    let stream = whole(file());
    // The deeper one is as deep as a multiprocessor has room for.
    for (sm, deeper) in [((9, 0), 17), ((8, 0), 12)] {
        for units in [Some(4), Some(9), Some(deeper), None] {
            let config = DeviceConfig { multiprocessors: 3, sm, ..DeviceConfig::default() };
            is_the_streams(&open(file(), units, config), &stream, &format!("{units:?} units, {sm:?}"), &[3], 1);
        }
    }
}

/// A random model whose norms make one channel of every second super-block ten thousand times as large as the others: vectors
/// of rows of so many super-blocks, of which some have a second plane.
pub(crate) fn with_outliers(super_blocks: u32) -> ModelFile {
    let tiny = presets::by_name("tiny").expect("a preset").shape;
    let shape = ModelShape { hidden: 256 * super_blocks, ffn: 512, layers: 3, vocab: 650, ..tiny };
    let mut file = Vec::new();
    SynthModel { shape, mix: Mix::InTurn, seed: 11 }.write(&mut file, |_, _| {}).expect("memory has room");
    let gguf = Gguf::from_bytes(&file).expect("a GGUF file");
    let norms = [TensorRole::AttnNorm, TensorRole::FfnNorm];
    let at = |layer: u32, role: TensorRole| {
        gguf.required_tensor(&role.tensor_name(layer)).expect("it was written").offset() as usize
    };
    let places: Vec<usize> = (0..shape.layers).flat_map(|layer| norms.map(|role| at(layer, role))).collect();
    for place in places {
        for super_block in (0..super_blocks as usize).step_by(2) {
            let channel = place + 4 * (256 * super_block + 77);
            file[channel..channel + 4].copy_from_slice(&1e4f32.to_le_bytes());
        }
    }
    let written = Cut(std::env::temp_dir().join(format!("kiln-outliers-{super_blocks}-{}.gguf", process::id())));
    std::fs::write(&written.0, file).expect("the disk has room");
    ModelFile::open(&written.0).expect("a model")
}

/// Lanes that meet the same super-block in each entry, whose activations stay in registers, and lanes that do not; beside
/// others that have no second plane.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn super_blocks_with_a_second_plane_have_the_streams_bits() {
    // Of 16, which take a round less by fours, a warp rounds four together.
    let cases = [2, 5, 16].into_iter().flat_map(|super_blocks| [(8, 0), (9, 0)].map(|sm| (super_blocks, sm)));
    for (super_blocks, sm) in Random::fresh().some_of(2, cases) {
        let stream = whole(with_outliers(super_blocks));
        let config = DeviceConfig { sm, multiprocessors: 2, ..DeviceConfig::default() };
        let model = open(with_outliers(super_blocks), None, config);
        is_the_streams(&model, &stream, &format!("{super_blocks} super-blocks, {sm:?}"), &[2], 1);
    }
}

/// Sixteen rows of 33 super-blocks a block in `down`, which seven warps share by super-blocks.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn few_long_rows_that_warps_share_have_the_streams_bits() {
    let stream = whole(long_rows());
    for schedule in Random::fresh().some_of(1, [Schedule::RoundRobin, Schedule::Random]) {
        let config = DeviceConfig { schedule, seed: 7, multiprocessors: 16, ..DeviceConfig::default() };
        is_the_streams(&open(long_rows(), None, config), &stream, &format!("{schedule:?}"), &[16], 1);
    }
}

/// The same of types whose activations are kept in registers, Q4_K in one layer and Q6_K in another one: with 33 super-blocks from
/// turn to turn, and planes that lie elsewhere in each entry; with 38, whose turns would leave a warp idle, for an entry.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn few_long_rows_of_k_quants_have_the_streams_bits() {
    for super_blocks in Random::fresh().some_of(1, [33, 38]) {
        let model = || long_rows_of(super_blocks, Mix::Q4KM, 2);
        let (stream, config) = (whole(model()), DeviceConfig { multiprocessors: 16, ..DeviceConfig::default() });
        is_the_streams(&open(model(), None, config), &stream, &format!("{super_blocks} super-blocks"), &[16], 1);
    }
}

/// A model with rows of 33 super-blocks in `down`.
pub(crate) fn long_rows() -> ModelFile {
    long_rows_of(33, Mix::InTurn, 1)
}

pub(crate) fn long_rows_of(super_blocks: u32, mix: Mix, layers: u32) -> ModelFile {
    long_rows_beside(presets::by_name("tiny").expect("a preset").shape, super_blocks, mix, layers)
}

/// The same with rows of ten super-blocks in attention's output.
pub(crate) fn two_long_rows(mix: Mix, layers: u32) -> ModelFile {
    let tiny = presets::by_name("tiny").expect("a preset").shape;
    long_rows_beside(ModelShape { heads: 40, kv_heads: 8, ..tiny }, 33, mix, layers)
}

/// The first in Q4_K and Q6_K, whose vector has in every second super-block of `down` a channel ten thousand times as large as
/// the others, by its row of `up`: these have a second plane.
pub(crate) fn long_rows_with_outliers() -> ModelFile {
    let shape = presets::by_name("tiny").expect("a preset").shape;
    long_rows_edited((shape, 33, Mix::Q4KM, 2), |file, gguf, shape| {
        for layer in 0..shape.layers {
            let up = gguf.required_tensor(&TensorRole::FfnUp.tensor_name(layer)).expect("it was written");
            assert_eq!(WeightType::from_ggml(up.ty()), Some(WeightType::Q4_K));
            let (begin, row) = (up.offset() as usize, (shape.hidden / 256 * 144) as usize);
            for channel in (77..shape.ffn as usize).step_by(512) {
                let scales = &mut file[begin + channel * row..][..4];
                for scale in scales.chunks_mut(2) {
                    let scaled = f16::from_le_bytes([scale[0], scale[1]]).to_f32() * 1e4;
                    scale.copy_from_slice(&f16::from_f32(scaled).to_le_bytes());
                }
            }
        }
    })
}

fn long_rows_beside(of: ModelShape, super_blocks: u32, mix: Mix, layers: u32) -> ModelFile {
    long_rows_edited((of, super_blocks, mix, layers), |_, _, _| ())
}

/// Such a file, whose bytes are changed by what is in it.
fn long_rows_edited(
    (of, super_blocks, mix, layers): (ModelShape, u32, Mix, u32),
    edit: impl FnOnce(&mut [u8], &Gguf, &ModelShape),
) -> ModelFile {
    let shape = ModelShape { hidden: 256, ffn: super_blocks * 256, layers, vocab: 650, ..of };
    let mut file = Vec::new();
    SynthModel { shape, mix, seed: 5 }.write(&mut file, |_, _| {}).expect("memory has room");
    let gguf = Gguf::from_bytes(&file).expect("a GGUF file");
    edit(&mut file, &gguf, &shape);
    let written =
        Cut(std::env::temp_dir().join(format!("kiln-long-rows-{}-{:?}.gguf", process::id(), thread::current().id())));
    std::fs::write(&written.0, file).expect("the disk has room");
    ModelFile::open(&written.0).expect("a model")
}

/// Two items in turn, one of which ends first, a prompt whose tokens have no head, and launches between them: allocations
/// park the kernel.
fn goes_on(sm: (u32, u32)) {
    let config =
        DeviceConfig { multiprocessors: 2, sm, schedule: Schedule::Random, seed: 9, ..DeviceConfig::default() };
    let model = open(tiny(), Some(6), config);
    let ids: Vec<u32> = (0..9).map(|i| i * 191 % 2048).collect();
    let stream = whole(tiny());
    let streams: Vec<_> =
        [5, 3].map(|count| results(&mut session(&stream, PathChoice::Stream, None), &ids[count..], count)).into();
    let mut both = [5, 3].map(|count| (session(&model, PathChoice::Persistent, None), count));
    thread::scope(|scope| {
        let (model, ids) = (&model, &ids);
        let found: Vec<_> = both
            .iter_mut()
            .map(|(session, count)| scope.spawn(move || results(session, &ids[*count..], *count)))
            .collect();
        for _ in 0..3 {
            drop(DeviceBuffer::<u32>::zeroed(model.device(), 64).expect("memory"));
        }
        let found: Vec<_> = found.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        assert_eq!(found, streams);
    });
}

#[test]
fn a_ring_goes_on_over_items_and_launches() {
    goes_on((9, 0));
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn a_ring_that_lanes_fill_goes_on_over_items_and_launches() {
    goes_on((8, 0));
}

/// A device without room for the least ring takes an older target's kernel.
#[test]
fn a_block_without_room_for_a_ring_decodes_without() {
    decodes_without(90, (9, 0));
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn a_block_of_an_older_chip_without_room_decodes_without() {
    decodes_without(80, (8, 6));
}

fn decodes_without(target: u32, sm: (u32, u32)) {
    let file = tiny();
    let new = bake::of(*file.shape(), file.types(), target);
    let config = with_ring(new, Some(2), DeviceConfig { multiprocessors: 2, sm, ..DeviceConfig::default() });
    let modules = [bake::of(*file.shape(), file.types(), 75), new].map(|baked| baked.modules());
    // SAFETY: the modules are those of two bakes of one shape.
    let baked = unsafe { BakedModel::new("test", *file.shape(), new.types(), modules.concat().leak()) };
    let model = Model::load(&common::device_with(config), Box::leak(Box::new(baked)), file, |_| {}).expect("it loads");
    is_the_streams(&model, &whole(tiny()), "no ring", &[2], 1);
}

/// Rows of 16, 43 and 48 super-blocks: with all checks under every schedule in few blocks, which takes most of a minute a
/// token, and without any, three tokens behind a prompt among them, in as many blocks as a chip has.
fn cut(feature: &str, sm: (u32, u32), few: u32, many: u32) {
    if !wanted(feature) {
        return;
    }
    let _turn = turn();
    let cut = Cut::write(feature);
    let on = |blocks, checks, (schedule, split_warps)| {
        let config = DeviceConfig { multiprocessors: blocks, sm, checks, ..DeviceConfig::default() };
        let model = cut.load(DeviceConfig { schedule, split_warps, seed: 8, ..config });
        let (device, wait) = (model.device(), Duration::from_secs(600));
        device.set_limits(device.limits().with_device_wait(wait / 4).with_wait(wait));
        model
    };
    let round_robin = (Schedule::RoundRobin, false);
    let stream = on(many, Checks::NONE, round_robin);
    let checked = if feature == "qwen3b" { 3 } else { 1 };
    for (blocks, checks, schedule, ids, count) in [
        (few, Checks::ALL, round_robin, 1, checked),
        (few, Checks::ALL, (Schedule::Random, true), 1, 1),
        (few, Checks::ALL, (Schedule::Adversarial, false), 1, 1),
        (many, Checks::NONE, round_robin, PROMPT.len(), 3),
        (many, Checks::NONE, (Schedule::Random, false), 1, 1),
    ] {
        let begin = Instant::now();
        let expected = results(&mut session(&stream, PathChoice::Stream, None), &PROMPT[..ids], count);
        let model = on(blocks, checks, schedule);
        let found = results(&mut session(&model, PathChoice::Persistent, Some(blocks)), &PROMPT[..ids], count);
        assert_eq!(found, expected, "{feature}, {sm:?}, {blocks} blocks, {schedule:?}");
        println!("{feature}, {sm:?}, {blocks} blocks, {schedule:?}: {:.1?}", begin.elapsed());
    }
}

#[test]
fn a_cut_of_qwen3b_has_the_streams_bits() {
    cut("qwen3b", (9, 0), 2, 132);
}

#[test]
#[ignore = "longer; .ci/long runs it"]
fn a_cut_of_qwen3b_has_the_streams_bits_where_lanes_copy() {
    cut("qwen3b", (8, 0), 2, 108);
}

#[test]
#[ignore = "longer; .ci/long runs it"]
fn a_cut_of_qwen3_8b_has_the_streams_bits_where_lanes_copy() {
    cut("qwen3-8b", (8, 9), 7, 128);
}

#[test]
fn a_cut_of_qwen3_8b_has_the_streams_bits() {
    cut("qwen3-8b", (9, 0), 7, 132);
}

/// Bulk copies into the 99 KB that a block of such a chip may have.
#[test]
fn a_cut_of_qwen3_8b_has_the_streams_bits_in_99_kb() {
    cut("qwen3-8b", (12, 0), 7, 170);
}

/// Chips of sm_120 run the text with bulk copies in 99 KB of shared memory.
#[test]
fn a_ring_in_99_kb_has_the_streams_bits() {
    let of = |schedule| DeviceConfig { sm: (12, 0), schedule, seed: 6, multiprocessors: 2, ..DeviceConfig::default() };
    let stream = whole(tiny());
    for schedule in [Schedule::RoundRobin, Schedule::Random] {
        let model = open(tiny(), None, of(schedule));
        assert_eq!(model.device().shared_memory_per_block(), 99 << 10);
        is_the_streams(&model, &stream, &format!("{schedule:?}"), &[2], 2);
    }
}

/// Bytes of Q4_K in the ring of a block of a preset that may have so much shared memory, and the columns that it has room
/// for, where it is baked for the types of its preset.
fn in_ring(preset: &str, target: u32, limit: u32) -> (u32, usize) {
    let preset = presets::by_name(preset).expect("a preset");
    let baked = bake::of(preset.shape, preset.types, target);
    let kernel = ringed(baked, WHOLE).expect("it is baked");
    let (warps, left) = (kernel.block / 32 - 1, left(&kernel, limit));
    let types = [WeightType::Q4_K, WeightType::Q6_K];
    let depth = Depth::fitting(left, warps, types).expect("it has room");
    let units = kiln_shape::ring::units(types[0].layout(), depth.records);
    let bytes = depth.units / units * units * UNIT_BYTES * warps;
    let rings = rings_in(baked, limit, &types);
    let columns = rings.iter().map(Vec::len).sum();
    println!("{} on sm_{target}: {bytes} bytes of Q4_K of {left}, {columns} columns: {rings:?}", preset.feature);
    let least = if left > 100 << 10 { 64_000 } else { 32_000 };
    for (ring, beside) in rings.iter().flatten().zip(1..) {
        assert!(ring.bytes(warps) >= least, "{} on sm_{target}: {ring:?} beside {beside} columns", preset.feature);
    }
    (bytes, columns)
}

/// Records of a warp that are under way at once, at most, and the warps that have them.
const FLIGHT: u64 = 32;
const WARPS: u64 = 7;

/// A copy lands as late as it may on the emulator, so that a block has as much under way as it ever may. More of it is what
/// blocks hand to each other waits behind.
#[test]
fn a_block_has_as_many_records_under_way_as_may_be() {
    if common::is_left_out_on_gpu("a GPU does not count") {
        return;
    }
    let config = DeviceConfig { counters: true, checks: Checks::NONE, multiprocessors: 1, ..DeviceConfig::default() };
    let model = open(tiny(), None, config);
    let ordinal = model.device().ordinal();
    kiln_emulator::clear_reports(ordinal);
    results(&mut session(&model, PathChoice::Persistent, None), &PROMPT, 2);
    drop(model);
    let reports = kiln_emulator::reports(ordinal);
    let under_way = reports.iter().map(|report| report.counters.bulk_bytes_under_way).max().expect("a launch");
    // Planes of two bytes are copied from a multiple of 16 to another.
    let records = |ty: WeightType| {
        let layout = ty.layout();
        WARPS
            * (FLIGHT * u64::from(layout.data + layout.plane) + u64::from(kiln_shape::ring::slack(layout)) * FLIGHT / 8)
    };
    let (least, most) = (records(WeightType::Q4_K), records(WeightType::Q6_K));
    println!("{under_way} bytes under way; of Q4_K alone it would be {least}, of Q6_K {most}");
    assert!((least..=most).contains(&under_way), "{under_way} bytes");
}

#[test]
fn a_ring_of_an_h200_holds_160_kb_or_more_and_one_of_99_kb_64() {
    for (preset, limit, least, expected) in [
        ("qwen3-8b", 227 << 10, 190_000, 8),
        ("qwen3-8b", 99 << 10, 64_000, 8),
        ("qwen3b", 227 << 10, 190_000, 8),
        ("qwen3b", 99 << 10, 64_000, 8),
        ("qwen3-0-6b", 99 << 10, 64_000, 8),
    ] {
        let (bytes, columns) = in_ring(preset, 90, limit);
        assert!(bytes >= least && columns == expected, "{preset}: {bytes} bytes, {columns} columns");
    }
}

#[test]
fn a_ring_that_lanes_fill_is_as_full_as_one_of_bulk_copies() {
    for (preset, limit, least, expected) in
        [("qwen3-8b", 163 << 10, 128_000, 8), ("qwen3-8b", 99 << 10, 64_000, 8), ("qwen3b", 99 << 10, 64_000, 8)]
    {
        let (bytes, columns) = in_ring(preset, 80, limit);
        assert!(bytes >= least && columns == expected, "{preset}: {bytes} bytes, {columns} columns");
    }
}
