//! Sessions of either numerics: each takes the modules baked for its own, also its copies, and both go on beside each
//! other on one model.

use crate::bake;
use crate::common::{self, table};
use crate::synth_model::{Mix, SynthModel};
use kiln::baked::BakedModel;
use kiln::model::{GenerateOptions, KvType, ModelFile, Numerics, PathChoice, Session, SessionOptions};
use kiln::shape::{ModelShape, WeightTypes, presets};
use kiln::{Error, Model};
use kiln_emulator::DeviceConfig;
use std::path::Path;

const PROMPT: &[u32] = &[120, 7, 300];
const PATHS: [PathChoice; 3] = [PathChoice::Stream, PathChoice::Graph, PathChoice::Persistent];

/// The random model of two layers on a device of three blocks, in these numerics only.
fn model(of: &[Numerics]) -> Model {
    let device = common::device_with(DeviceConfig { multiprocessors: 3, ..DeviceConfig::default() });
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny3-d64.Q4_K_M/model.gguf");
    let file = ModelFile::open(file).expect("a model");
    let all = bake::model(&file, &device);
    let is_of = |numerics: Option<Numerics>| numerics.is_some_and(|numerics| of.contains(&numerics));
    let modules = all.modules().iter().filter(|module| is_of(module.decoder.map(|(_, numerics)| numerics)));
    let modules = modules.copied().collect::<Vec<_>>().leak();
    // SAFETY: the modules are some of those that were baked for this shape and these types.
    let baked = unsafe { BakedModel::new(all.name(), *all.shape(), all.types(), modules) };
    Model::load(&device, Box::leak(Box::new(baked)), file, |_| {}).expect("it loads")
}

fn options(path: PathChoice, numerics: Numerics) -> SessionOptions {
    SessionOptions::default().with_numerics(numerics).with_path(path).with_capacity(64)
}

/// A session behind the prompt, of which nothing has run.
fn session(model: &Model, path: PathChoice, numerics: Numerics) -> Session {
    let mut session = model.session(options(path, numerics)).expect("a session");
    session.append(PROMPT).expect("it fits");
    session
}

fn tokens(session: &mut Session, count: usize) -> Vec<u32> {
    session.generate(GenerateOptions::new(count)).collect::<kiln::Result<_>>().expect("it generates")
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn a_session_and_its_copies_take_the_modules_of_their_numerics() {
    for (numerics, other) in [(Numerics::Exact, Numerics::Fast), (Numerics::Fast, Numerics::Exact)] {
        let model = model(&[numerics]);
        for path in PATHS {
            let mut first = session(&model, path, numerics);
            assert_eq!(first.numerics(), numerics);
            let mut copy = first.fork().expect("the copy's kernels are those of the first");
            assert_eq!(copy.numerics(), numerics);
            assert_eq!(tokens(&mut copy, 1), tokens(&mut first, 1), "{path:?}, {numerics}");
        }
        for path in [PathChoice::Auto].into_iter().chain(PATHS) {
            let error = model.session(options(path, other)).expect_err("it was not baked");
            let Error::KernelNotBaked { kernel, setting } = &error else { panic!("{path:?}: {error}") };
            assert!(kernel.contains(other.name()) && setting.contains(numerics.name()), "{path:?}: {error}");
        }
    }
}

#[test]
fn a_session_is_fast_unless_it_is_told_otherwise() {
    assert_eq!(SessionOptions::default().numerics, Numerics::Fast);
    assert_eq!(
        model(&[Numerics::Fast]).session(SessionOptions::default()).expect("a session").numerics(),
        Numerics::Fast
    );
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn sessions_of_either_numerics_go_on_beside_each_other() {
    for path in PATHS {
        let both = model(&Numerics::ALL);
        let alone = Numerics::ALL.map(|numerics| tokens(&mut session(&model(&[numerics]), path, numerics), 3));
        let (mut beside, calls) = table::calls_of(|| Numerics::ALL.map(|numerics| session(&both, path, numerics)));
        let loads = calls.iter().filter(|call| **call == "cuModuleLoadDataEx");
        // On a stream that of the layers, that of the head, and that of the choice.
        let each = if path == PathChoice::Persistent { 1 } else { 3 };
        assert_eq!(loads.count(), 2 * each, "{path:?}: each has modules of its own");
        for turn in 0..3 {
            for (session, alone) in beside.iter_mut().zip(&alone) {
                assert_eq!(tokens(session, 1), alone[turn..=turn], "{path:?}, {}, token {turn}", session.numerics());
            }
        }
    }
}

/// Kernels of fast numerics have no place for long rows of floats: a session in them would have no product for such a
/// matrix.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn fast_sessions_refuse_long_rows_of_floats() {
    let shape = ModelShape { layers: 1, vocab: 2048, ffn: 12288 + 256, ..presets::by_name("tiny").expect("it").shape };
    let path = std::env::temp_dir().join(format!("kiln-floats-{}.gguf", std::process::id()));
    let file = std::fs::File::create(&path).expect("a temporary file");
    SynthModel { shape, mix: Mix::F16, seed: 1 }.write(file, |_, _| {}).expect("it fits the disk");
    let device = common::device_with(DeviceConfig { multiprocessors: 3, ..DeviceConfig::default() });
    let file = ModelFile::open(&path).expect("a model");
    std::fs::remove_file(&path).expect("it was there");
    let baked = bake::of(shape, WeightTypes::ALL, device.sm());
    let model = Model::load(&device, baked, file, |_| {}).expect("it loads");
    for path in [PathChoice::Auto].into_iter().chain(PATHS) {
        let error = model.session(options(path, Numerics::Fast)).expect_err("no products for it");
        assert!(error.to_string().contains("F16") && error.to_string().contains("12544"), "{error}");
        let mut exact = model.session(options(path, Numerics::Exact)).expect("a session");
        exact.append(PROMPT).expect("it fits");
        assert_eq!(tokens(&mut exact, 1).len(), 1, "{path:?}");
    }
}

/// Hashes of exact logits behind the prompt, over a cache of each type, that the emulator computed: a GPU computes the same
/// bits, and so does every text to come that keeps the order of addition.
const RECORDED: [(KvType, u64); 2] = [(KvType::F32, 0x1761_535a_e6f7_5418), (KvType::F16, 0x9c50_0b04_d45e_4127)];

/// FNV-1a, 64 bits.
fn hash(logits: &[f32]) -> u64 {
    let bytes = logits.iter().flat_map(|value| value.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[test]
fn exact_logits_have_the_recorded_bits_on_every_device() {
    let model = model(&[Numerics::Exact]);
    for (kv, recorded) in RECORDED {
        for path in PATHS {
            let mut session = model.session(options(path, Numerics::Exact).with_kv(kv)).expect("a session");
            session.append(PROMPT).expect("it fits");
            let found = hash(&session.logits().expect("logits"));
            assert_eq!(found, recorded, "{kv:?}, {path:?}: {found:#018x}");
        }
    }
}
