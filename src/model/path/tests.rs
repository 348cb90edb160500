//! Items as every path runs them, below the sessions that look at the tokens themselves.

use super::{End, Item, Path, Step};
use crate::Model;
use crate::driver::{Device, Driver};
use crate::model::persistent::{Decoder, Key, PersistentPath};
use crate::model::sequence::Sequence;
use crate::model::stream::StreamPath;
use crate::model::{KvType, ModelFile, Numerics, PathChoice, SessionOptions};
use crate::shape::choice::PLAIN;
use crate::shape::mailbox::item::STOP_IDS_MAX;
use kiln_emulator::{Checks, DeviceConfig};

const PROMPT: &[u32] = &[120, 7, 300];
/// One that the persistent path reads by a batch in fast numerics.
const LONGER: &[u32] = &[120, 7, 300, 41, 5, 9, 77, 2, 640, 13];

/// The demo model on a device of three blocks, to be quick.
pub(in crate::model) fn model() -> Model {
    model_with(Checks { every_reader: false, ..Checks::ALL })
}

/// The same with these checks.
pub(in crate::model) fn model_with(checks: Checks) -> Model {
    let config = DeviceConfig { multiprocessors: 3, checks, ..DeviceConfig::default() };
    let ordinal = kiln_emulator::add_device(config);
    // SAFETY: the emulator's functions have NVIDIA's signatures.
    let driver = unsafe {
        Driver::from_resolver(|name| kiln_emulator::resolve(name).map_or(std::ptr::null(), |found| found.as_ptr()))
    };
    let device = Device::open(&driver.expect("the emulator is a driver"), ordinal).expect("the device was added");
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/demo.Q4_K_M.gguf");
    let file = ModelFile::open(demo).expect("the demo model");
    let baked = file.baked().expect("baked by the default features");
    Model::load(&device, baked, file, |_| {}).expect("it loads")
}

/// The stream path of a session of its own.
pub(in crate::model) fn stream_path(model: &Model, numerics: Numerics) -> StreamPath {
    let stream = model.inner.device.stream().expect("a stream");
    StreamPath::new(stream, model.inner.stream_kernels(numerics).expect("kernels"), numerics)
}

/// The tokens of an item behind a prompt, and its end.
fn run(
    path: &mut dyn Path,
    model: &Model,
    sequence: &mut Sequence,
    (ids, stop_ids): (&[u32], &[u32]),
) -> (Vec<u32>, End) {
    let item = Item { ids, position: 0, max_new: 4, stop_ids, choice: PLAIN };
    path.begin(&model.inner, sequence, &item).expect("it begins");
    let mut tokens = Vec::new();
    loop {
        match path.next(&model.inner, sequence).expect("no fault") {
            Step::Token(token) => tokens.push(token),
            Step::End(end) => return (tokens, end),
        }
    }
}

fn each_stop_id_ends_an_item(path: &mut dyn Path, model: &Model, prompt: &[u32]) {
    let mut sequence = Sequence::new(&model.inner, KvType::F16, 32).expect("a sequence");
    let (all, end) = run(path, model, &mut sequence, (prompt, &[]));
    assert_eq!((all.len(), end), (4, End::Length));
    let place = (1..all.len()).find(|place| !all[..*place].contains(&all[*place])).expect("a new token");
    let others = |count: u32| (0..).filter(|id| !all.contains(id)).take(count as usize);
    let last = STOP_IDS_MAX - 1;
    for (before, behind, place) in [(0, 2, place), (1, 1, place), (2, 0, place), (last, 0, place), (1, 1, 0)] {
        let mut stop_ids: Vec<u32> = others(before + behind).collect();
        stop_ids.insert(before as usize, all[place]);
        let expected = (all[..=place].to_vec(), End::StopId(all[place]));
        let found = run(path, model, &mut sequence, (prompt, &stop_ids));
        assert_eq!(found, expected, "{} after {before} others and before {behind}", path.name());
    }
}

#[test]
fn each_of_several_stop_ids_ends_an_item_on_the_stream_path() {
    let model = model();
    each_stop_id_ends_an_item(&mut stream_path(&model, Numerics::Exact), &model, PROMPT);
}

#[test]
fn each_of_several_stop_ids_ends_an_item_on_the_graph_path() {
    let model = model();
    each_stop_id_ends_an_item(&mut stream_path(&model, Numerics::Exact).with_graphs(), &model, PROMPT);
}

#[test]
fn each_of_several_stop_ids_ends_an_item_on_the_persistent_path() {
    let model = model();
    for (numerics, prompt) in [(Numerics::Exact, PROMPT), (Numerics::Fast, LONGER)] {
        let key = Key { numerics, kv: KvType::F16, blocks: None, events: None };
        let decoder = Decoder::shared(&model.inner, key).expect("a decoder");
        each_stop_id_ends_an_item(&mut PersistentPath::new(decoder), &model, prompt);
    }
}

#[test]
fn a_prompt_rests_between_its_batches() {
    let model = model_with(Checks::NONE);
    let options = SessionOptions::default().with_path(PathChoice::Stream).with_capacity(32);
    let mut session = model.session(options).expect("a session");
    session.append(&[7; 8]).expect("they fit");
    let mut told = Vec::new();
    for (all_ran, tokens) in [(false, 5), (true, 7)] {
        let rest = |ran, all| {
            told.push((ran, all));
            false
        };
        assert_eq!(session.prefill_by((5, 1), rest).expect("it runs"), all_ran);
        assert_eq!(session.work().tokens, tokens);
    }
    assert_eq!(told, [(5, 7), (7, 7)]);
}
