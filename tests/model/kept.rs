//! Prompts that are kept: chunks that sessions share, and sessions in files. What follows is what would follow anyway.

use crate::{bake, common};
use kiln::model::{GenerateOptions, KvType, ModelFile, PathChoice, Session, SessionOptions};
use kiln::{Error, Model};
use kiln_emulator::{Checks, DeviceConfig};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A whole chunk of the cache, and some of a second.
const LONG: usize = 128 + 5;

/// The random model of two layers; what its kernels do is looked at elsewhere.
fn model() -> Model {
    let config = DeviceConfig { multiprocessors: 3, checks: Checks::NONE, ..DeviceConfig::default() };
    let device = common::device_with(config);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny3-d64.Q4_K_M/model.gguf");
    let file = ModelFile::open(file).expect("a model");
    let baked = bake::model(&file, &device);
    Model::load(&device, baked, file, |_| {}).expect("it loads")
}

/// The paths that are looked at: they have the cache's memory in common.
fn paths() -> &'static [PathChoice] {
    match common::is_long("kept prompts on the persistent path") {
        true => &[PathChoice::Stream, PathChoice::Persistent],
        false => &[PathChoice::Stream],
    }
}

fn options(path: PathChoice) -> SessionOptions {
    SessionOptions::default().with_path(path).with_capacity(512)
}

fn ids(count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| (index * 37 + 11) % 1000).collect()
}

/// A session of which all but the last token has run.
fn filled(model: &Model, path: PathChoice, ids: &[u32]) -> Session {
    let mut session = model.session(options(path)).expect("a session");
    session.append(ids).expect("they fit");
    session.prefill().expect("it runs");
    session
}

fn tokens(session: &mut Session, count: usize) -> Vec<u32> {
    session.generate(GenerateOptions::new(count)).collect::<kiln::Result<_>>().expect("it generates")
}

fn free(model: &Model) -> u64 {
    model.device().memory_info().expect("the device tells").0
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn copies_share_whole_chunks_and_write_to_none_that_is_shared() {
    let model = model();
    let ids = ids(LONG);
    // A session's own buffers, and one chunk.
    let chunk = 128 * model.shape().kv_bytes_per_token(KvType::F16.bytes());
    let before = free(&model);
    let empty = model.session(options(PathChoice::Stream)).expect("a session");
    let own = before - free(&model);
    drop(empty);
    // Logits tell of a single position that differs.
    let logits = |session: &mut Session| session.logits().expect("logits");
    let expected = |ids: &[u32]| logits(&mut filled(&model, PathChoice::Stream, ids));
    let (right, other) = (expected(&ids), expected(&[&ids[..100], &[7, 8]].concat()));
    let at_edge = expected(&ids[..128]);
    for path in paths().iter().copied() {
        let mut first = filled(&model, path, &ids);
        let before = free(&model);
        let mut copy = first.fork().expect("it fits");
        let taken = before - free(&model);
        assert!(taken < own + 2 * chunk, "{path:?}: {taken} bytes, a session has {own}, a chunk {chunk}");
        // From within the first chunk, which both have, another text.
        first.truncate(100);
        first.append(&[7, 8]).expect("they fit");
        assert!(logits(&mut first) == other, "{path:?}, the session");
        assert!(logits(&mut copy) == right, "{path:?}, the copy");
        // At the edge of a chunk nothing is copied.
        let mut edge = copy.fork().expect("it fits");
        drop(first);
        edge.truncate(128);
        assert!(logits(&mut edge) == at_edge, "{path:?}, the edge");
        edge.append(&[7]).expect("it fits");
        logits(&mut edge);
        assert!(logits(&mut copy) == right, "{path:?}, the copy again");
    }
}

/// A file that goes with the test.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn scratch(name: &str) -> Scratch {
    Scratch(std::env::temp_dir().join(format!("kiln-{}-{name}", std::process::id())))
}

fn refusal(model: &Model, options: SessionOptions, path: &Path) -> String {
    match model.load_session(options, path) {
        Err(Error::SessionFile { path: named, what }) => {
            assert_eq!(named, path);
            what
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was loaded"),
    }
}

#[test]
fn a_session_from_a_file_goes_on_as_it_would_have() {
    let model = model();
    let (ids, file) = (ids(LONG), scratch("session"));
    for path in paths().iter().copied() {
        let mut first = filled(&model, path, &ids);
        tokens(&mut first, 1);
        first.save(&file.0).expect("it is written");
        let mut again = model.load_session(options(path), &file.0).expect("it is read");
        assert_eq!(again.tokens(), first.tokens());
        let ran = again.work().tokens;
        assert_eq!(tokens(&mut again, 3), tokens(&mut first, 3), "{path:?}");
        let ran = again.work().tokens - ran;
        assert!(ran < 16, "{path:?}: {ran} tokens ran; whole chunks came from the file");
    }
    let mut short = model.session(options(PathChoice::Stream)).expect("a session");
    short.append(&[5]).expect("it fits");
    short.save(&file.0).expect("it is written");
    let again = model.load_session(options(PathChoice::Stream), &file.0).expect("it is read");
    assert_eq!(again.tokens(), [5]);
}

#[test]
fn a_file_that_does_not_fit_or_is_damaged_is_refused() {
    let (model, file, other) = (model(), scratch("kept"), scratch("damaged"));
    let fast = options(PathChoice::Stream);
    filled(&model, PathChoice::Stream, &ids(140)).save(&file.0).expect("it is written");
    for wrong in [fast.with_numerics(kiln::model::Numerics::Exact), fast.with_kv(KvType::F32)] {
        assert!(refusal(&model, wrong, &file.0).contains("numerics"));
    }
    let small = model.load_session(fast.with_capacity(139), &file.0).err();
    assert!(matches!(small, Some(Error::ContextFull { .. })), "{small:?}");
    assert!(refusal(&model, fast, Path::new("no-such-session")).contains("os error 2"));
    let bytes = std::fs::read(&file.0).expect("it was written");
    // A byte of each part: kind, model, bits, tokens, chunks, bytes of a chunk, ids, the cache, the checksum.
    let last = bytes.len() - 1;
    for at in [3, 8, 16, 24, 31, 32, 39, 40, 47, 50, 48 + 4 * 139, 5000, last - 8, last] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x40;
        std::fs::write(&other.0, &damaged).expect("a file");
        match model.load_session(fast, &other.0) {
            // An id may be none of the vocabulary's.
            Err(Error::SessionFile { .. } | Error::InvalidArgument { .. }) => {}
            outcome => panic!("byte {at}: {:?}", outcome.err()),
        }
    }
    for length in [0, 7, 30, 600, last] {
        std::fs::write(&other.0, &bytes[..length]).expect("a file");
        refusal(&model, fast, &other.0);
    }
}

#[test]
fn a_file_that_is_not_finished_takes_no_others_place() {
    let (model, file) = (model(), scratch("atomic"));
    let mut session = filled(&model, PathChoice::Stream, &ids(3));
    session.save(&file.0).expect("it is written");
    let old = std::fs::read(&file.0).expect("it was written");
    // What a process that ended in the middle leaves behind.
    let mut part = file.0.clone().into_os_string();
    part.push(".part");
    std::fs::write(&part, &old[..old.len() / 2]).expect("a file");
    assert!(model.load_session(options(PathChoice::Stream), &file.0).is_ok());
    // A file that cannot be made: the name is a folder's, or in none.
    for path in [std::env::temp_dir(), file.0.join("below")] {
        assert!(matches!(session.save(&path), Err(Error::SessionFile { .. })), "{}", path.display());
    }
    assert_eq!(std::fs::read(&file.0).expect("it is there"), old);
    session.append(&[9]).expect("it fits");
    session.save(&file.0).expect("it is written");
    assert!(!Path::new(&part).exists(), "the part has become the file");
    let again = model.load_session(options(PathChoice::Stream), &file.0).expect("it is read");
    assert_eq!(again.tokens(), session.tokens());
}

/// Set in the copies of this test program that save a session until they are killed: where.
const SAVE_INTO: &str = "KILN_TEST_SAVE_INTO";

/// Saves the session of a file there again and again, a token longer each time.
fn save_until_killed(path: &Path) {
    let model = model();
    let mut session = model.load_session(options(PathChoice::Stream), path).expect("it is read");
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(30) {
        let count = session.tokens().len();
        match count {
            500.. => session.truncate(LONG),
            _ => session.append(&ids(count + 1)[count..]).expect("it fits"),
        }
        session.save(path).expect("it is written");
    }
}

/// Kills a process that saves, by a signal that it cannot see, so many times: the file is that of a save that was done.
fn is_whole_after_kills(test: &str, kills: u32) {
    let (model, file) = (model(), scratch(test));
    let part = Scratch(file.0.with_file_name(format!("kiln-{}-{test}.part", std::process::id())));
    filled(&model, PathChoice::Stream, &ids(LONG)).save(&file.0).expect("it is written");
    let mut within = 0;
    for _ in 0..kills {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", &format!("kept::{test}"), "--include-ignored"])
            .env(SAVE_INTO, &file.0)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it runs");
        let begun = Instant::now();
        while !part.0.exists() {
            assert!(begun.elapsed() < Duration::from_secs(120), "nothing was saved");
            assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
            std::thread::sleep(Duration::from_micros(200));
        }
        // A save takes some milliseconds.
        let moment = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").subsec_nanos();
        std::thread::sleep(Duration::from_micros(u64::from(moment / 7 % 20_000)));
        child.kill().expect("it is killed");
        child.wait().expect("it is gone");
        within += u32::from(part.0.exists());
        let again = model.load_session(options(PathChoice::Stream), &file.0).expect("the file is whole");
        let count = again.tokens().len();
        assert!(count >= LONG && again.tokens() == ids(count), "{count} tokens");
    }
    println!("{within} of {kills} kills came within a save");
    // What a killed process left is in nobody's way.
    let mut again = model.load_session(options(PathChoice::Stream), &file.0).expect("the file is whole");
    again.save(&file.0).expect("it is written");
    assert!(!part.0.exists());
    assert!(kills < 20 || within > 0, "none of {kills} kills came within a save");
}

#[test]
fn a_kill_within_a_save_leaves_the_older_file() {
    match std::env::var_os(SAVE_INTO) {
        Some(path) => save_until_killed(Path::new(&path)),
        None => is_whole_after_kills("a_kill_within_a_save_leaves_the_older_file", 2),
    }
}

#[test]
#[ignore = "a minute in a debug build; .ci/long runs it in a release build"]
fn many_kills_within_saves_leave_the_older_file() {
    match std::env::var_os(SAVE_INTO) {
        Some(path) => save_until_killed(Path::new(&path)),
        None => is_whole_after_kills("many_kills_within_saves_leave_the_older_file", 100),
    }
}
