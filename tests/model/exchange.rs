//! The exchange of the persistent decoder: what bugs do to it that are planted in the emitted PTX, each found by what the
//! emulator checks, by the tokens, or by the limit of the blocks' waits. `tests/model/ring.rs` has the stream path's bits
//! under every schedule.

use crate::counters::Matrices;
use crate::random::Random;
use crate::synth_model::{Mix, SynthModel};
use crate::{bake, common};
use kiln::baked::{BakedModel, BakedModule, DecoderPath};
use kiln::model::{GenerateOptions, KvType, ModelFile, Numerics, PathChoice, Session, SessionOptions};
use kiln::{Error, Model};
use kiln_emulator::{Checks, DeviceConfig, FaultKind, Schedule};
use kiln_shape::exchange::EMPTY;
use kiln_shape::units::FAST_CHUNK;
use kiln_shape::{ModelShape, presets};
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;
use std::time::Duration;
use std::{process, thread};

const PROMPT: [u32; 2] = [120, 7];
const TOKENS: usize = 3;

/// A random model of two layers.
fn small() -> ModelFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny3-d64.Q4_K_M/model.gguf");
    ModelFile::open(path).expect("a model")
}

/// A random model of one layer.
fn of_one_layer() -> ModelFile {
    of_layers(1)
}

/// A random model of some layers.
pub(crate) fn of_layers(layers: u32) -> ModelFile {
    of_shape(ModelShape { layers, ..tiny() })
}

fn tiny() -> ModelShape {
    ModelShape { vocab: 650, ..presets::by_name("tiny").expect("a preset").shape }
}

/// A random model of a shape.
fn of_shape(shape: ModelShape) -> ModelFile {
    let (layers, group) = (shape.layers, shape.group());
    let name = format!("kiln-{layers}-layers-{group}-{}-{:?}.gguf", process::id(), thread::current().id());
    let path = std::env::temp_dir().join(name);
    let out = File::create(&path).expect("a temporary file");
    SynthModel { shape, mix: Mix::Q4KM, seed: 3 }.write(BufWriter::new(out), |_, _| {}).expect("it fits the disk");
    let file = ModelFile::open(&path).expect("a model");
    fs::remove_file(path).expect("it is there");
    file
}

/// A model on a device of three multiprocessors, with what is planted in the kernel that has a ring.
fn open(seed: u64, file: ModelFile, plant: impl Fn(&str) -> String) -> Model {
    let config = DeviceConfig { multiprocessors: 3, schedule: Schedule::Random, seed, ..DeviceConfig::default() };
    open_on(config, file, plant)
}

/// The same on any device of sm_90.
pub(crate) fn open_on(config: DeviceConfig, file: ModelFile, plant: impl Fn(&str) -> String) -> Model {
    let baked = bake::of(*file.shape(), file.types(), 90);
    let modules = baked.modules().iter().map(|module| match module.decoder {
        Some((DecoderPath::Persistent, Numerics::Fast)) => BakedModule { ptx: plant(module.ptx).leak(), ..*module },
        _ => *module,
    });
    let modules = modules.collect::<Vec<_>>().leak();
    // SAFETY: what is planted the emulator runs, and it checks every access.
    let planted = unsafe { BakedModel::new(baked.name(), *baked.shape(), baked.types(), modules) };
    Model::load(&common::device_with(config), Box::leak(Box::new(planted)), file, |_| {}).expect("it loads")
}

/// A cache and what stands in it before tokens are made.
struct Of {
    kv: KvType,
    prompt: Vec<u32>,
    tokens: usize,
}

impl Of {
    fn few() -> Of {
        Of { kv: KvType::F32, prompt: PROMPT.to_vec(), tokens: TOKENS }
    }

    /// Several units of a KV head, whose parts go through the exchange.
    fn several_units() -> Of {
        Of { kv: KvType::F16, prompt: (0..2 * FAST_CHUNK + 4).map(|id| 37 * id % 2048).collect(), tokens: 10 }
    }

    fn session(&self, model: &Model, path: PathChoice) -> Session {
        let options = SessionOptions::default().with_numerics(Numerics::Fast).with_kv(self.kv).with_path(path);
        model.session(options.with_capacity(128)).expect("a session")
    }

    fn made(&self, model: &Model, path: PathChoice) -> kiln::Result<Vec<u32>> {
        let mut session = self.session(model, path);
        session.append(&self.prompt)?;
        session.generate(GenerateOptions::new(self.tokens)).collect()
    }

    /// The same, and the bits of the logits behind them.
    fn made_and_logits(&self, model: &Model, path: PathChoice) -> kiln::Result<(Vec<u32>, Vec<u32>)> {
        let mut session = self.session(model, path);
        session.append(&self.prompt)?;
        let made = session.generate(GenerateOptions::new(self.tokens)).collect::<kiln::Result<_>>()?;
        let logits = session.logits()?;
        Ok((made, logits.into_iter().map(f32::to_bits).collect()))
    }
}

/// What was seen of a bug.
#[derive(Debug, PartialEq)]
enum Seen {
    Fault(FaultKind),
    /// Of tokens, or of logits.
    WrongBits,
    NotFinite,
}

/// What is seen of a bug under some schedules.
fn seen(plant: impl Fn(&str) -> String) -> Option<Seen> {
    seen_in(small, &Of::few(), plant)
}

fn seen_in(file: impl Fn() -> ModelFile, of: &Of, plant: impl Fn(&str) -> String) -> Option<Seen> {
    (0..3).find_map(|seed| {
        let model = open(seed, file(), &plant);
        let expected = of.made_and_logits(&model, PathChoice::Stream).expect("the stream path has no bug");
        match (of.made_and_logits(&model, PathChoice::Persistent), kiln_emulator::last_fault(model.device().ordinal()))
        {
            (_, Some(fault)) => Some(Seen::Fault(fault.kind)),
            (Ok(made), None) => (made != expected).then_some(Seen::WrongBits),
            (Err(Error::LogitsNotFinite { .. }), None) => Some(Seen::NotFinite),
            (Err(error), None) => panic!("an error without a fault: {error}"),
        }
    })
}

/// The text with the lines that `rule` rewrites; it is given each with the one behind it.
pub(crate) fn rewrite(ptx: &str, mut rule: impl FnMut(&str, &str) -> Option<String>) -> String {
    let lines: Vec<&str> = ptx.lines().collect();
    let is_code = |line: &&&str| !matches!(line.trim_start().get(..2), None | Some("//" | ".l"));
    let mut planted = 0;
    let rewritten = lines.iter().enumerate().map(|(index, line)| {
        let next = lines[index + 1..].iter().find(is_code).map_or("", |line| line.trim());
        let new = if is_code(&line) { rule(line.trim(), next) } else { None };
        planted += u32::from(new.is_some());
        new.unwrap_or_else(|| (*line).to_owned())
    });
    let rewritten = rewritten.collect::<Vec<_>>().join("\n");
    assert!(planted > 0, "the place for the bug was not found");
    rewritten
}

#[track_caller]
fn finds(what: Seen, plant: impl Fn(&str) -> String) {
    finds_in(&Of::few(), what, plant);
}

#[track_caller]
fn finds_in(of: &Of, what: Seen, plant: impl Fn(&str) -> String) {
    if common::is_left_out_on_gpu("a planted bug is for the emulator to find") {
        return;
    }
    assert_eq!(seen_in(small, of, plant), Some(what));
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn nothing_planted_is_not_found() {
    assert_eq!(seen(str::to_owned), None);
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn elements_stored_plainly_are_found() {
    finds(Seen::Fault(FaultKind::Race), |ptx| ptx.replace("st.relaxed.gpu.global.f32", "st.global.f32"));
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn elements_polled_plainly_are_found() {
    finds(Seen::Fault(FaultKind::Race), |ptx| ptx.replace("ld.relaxed.gpu.global.v4.f32", "ld.global.v4.f32"));
}

/// Sequences of several units, of which each block of a KV head puts a share together.
#[test]
fn units_that_are_put_together_have_the_streams_bits() {
    for seed in 0..2 {
        let (model, of) = (open(seed, small(), str::to_owned), Of::several_units());
        let [expected, found] = [PathChoice::Stream, PathChoice::Persistent]
            .map(|path| of.made_and_logits(&model, path).expect("it generates"));
        assert_eq!(found, expected, "seed {seed}");
    }
}

/// Eight heads of a KV head, its key and its value are two rounds of seven warps.
#[test]
fn heads_of_two_rounds_have_the_streams_bits() {
    for of in [Of::few(), Of::several_units()] {
        let file = of_shape(ModelShape { heads: 8, kv_heads: 1, layers: 2, vocab: 2048, ..tiny() });
        let model = open(1, file, str::to_owned);
        let [expected, found] = [PathChoice::Stream, PathChoice::Persistent]
            .map(|path| of.made_and_logits(&model, path).expect("it generates"));
        assert_eq!(found, expected, "{:?}", of.kv);
    }
}

/// Parts of units stay in their words: while a block is late with its own, others put those of two layers before together.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn parts_that_are_not_emptied_are_found() {
    if common::is_left_out_on_gpu("a planted bug is for the emulator to find") {
        return;
    }
    assert_eq!(seen_in(small, &Of::several_units(), late), None);
    finds_in(&Of::several_units(), Seen::WrongBits, |ptx| {
        let mut emptied = 0;
        rewrite(&late(ptx), |line, _| {
            let is_emptied = empties(line);
            emptied += u32::from(is_emptied);
            // The first such line is of vectors, the second of parts; so are those of a token's last layer.
            (is_emptied && [2, 4].contains(&emptied)).then(|| "// left as they are".to_owned())
        })
    });
}

/// What a part says once a row, its maximum and its sum of exponentials, is told from an attention's result by the zeros behind it.
#[test]
fn parts_stored_plainly_are_found() {
    finds_in(&Of::several_units(), Seen::Fault(FaultKind::Race), |ptx| {
        rewrite(ptx, |line, _| {
            let rest = line.strip_prefix("st.relaxed.gpu.global.v4.f32")?;
            let mut values = rest.trim_end_matches("};").rsplit(", ");
            (values.next() == values.next()).then(|| format!("st.global.v4.f32{rest}"))
        })
    });
}

/// Models of fewer and of more layers than words have turns: a layer's are emptied while a later one waits for its vector. With vectors of its
/// own, over a cache in f32, and with parts of several units.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn layers_that_share_words_have_the_streams_bits() {
    let ids = |of: Of| Of { prompt: of.prompt.iter().map(|id| id % 650).collect(), tokens: 4, ..of };
    let cases =
        [3, 4, 5, 6].into_iter().flat_map(|layers| [Of::few(), Of::several_units()].map(|of| (layers, ids(of))));
    for (layers, of) in Random::fresh().some_of(2, cases) {
        assert_eq!(seen_in(|| of_layers(layers), &of, str::to_owned), None, "{layers} layers");
    }
}

/// Of such a model blocks find the words of four layers before, of its vectors, or of two before, of parts, while one of them is late.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn words_that_later_layers_do_not_empty_are_found() {
    if common::is_left_out_on_gpu("a planted bug is for the emulator to find") {
        return;
    }
    let mut of = Of::several_units();
    of.prompt.iter_mut().for_each(|id| *id %= 650);
    // The first such line is of vectors, the second of parts; those behind them are of a token's last layers.
    for line_of in Random::fresh().some_of(1, [1, 2]) {
        let plant = |ptx: &str| {
            let mut emptied = 0;
            rewrite(&late(ptx), |line, _| {
                let is_emptied = empties(line);
                emptied += u32::from(is_emptied);
                (is_emptied && emptied == line_of).then(|| "// left as they are".to_owned())
            })
        };
        assert_eq!(seen_in(|| of_layers(5), &of, plant), Some(Seen::WrongBits), "line {line_of}");
    }
}

/// The text whose second block is late with what it hands over of attention.
fn late(ptx: &str) -> String {
    rewrite(ptx, |line, _| {
        line.starts_with("st.relaxed.gpu.global.v4.f32").then(|| {
            format!(
                "{{ .reg .pred %late; .reg .b32 %of; mov.u32 %of, %ctaid.x; setp.eq.u32 %late, %of, 1; \
                 @%late nanosleep.u32 20000; }}\n{line}"
            )
        })
    })
}

/// No word counts as empty, though it is a NaN.
#[test]
fn elements_taken_before_they_are_there_are_found() {
    finds(Seen::NotFinite, |ptx| {
        rewrite(ptx, |line, _| {
            let (compare, number) = line.strip_suffix(';')?.rsplit_once(", ")?;
            let looks = compare.starts_with("setp.eq.u32") && [EMPTY.to_string().as_str(), "-1"].contains(&number);
            looks.then(|| format!("{compare}, 0;"))
        })
    });
}

/// Blocks find the values of layers before.
#[test]
fn words_that_are_not_emptied_are_found() {
    finds(Seen::WrongBits, |ptx| rewrite(ptx, |line, _| empties(line).then(|| "// left as they are".to_owned())));
}

/// Whether a line empties words.
fn empties(line: &str) -> bool {
    let four = line.strip_prefix("st.global.v4.f32 ").and_then(|line| line.split_once('{'));
    let Some(values) = four.and_then(|(_, values)| values.strip_suffix("};")) else { return false };
    let mut values = values.split(", ");
    let first = values.next();
    values.all(|value| Some(value) == first)
}

/// Every token's only layer has the same words: they are polled while another block empties them.
#[test]
fn turns_of_the_token_before_are_found() {
    let plant = |ptx: &str| {
        let mut stores = 0;
        rewrite(ptx, |line, _| {
            let (store, _) =
                line.split_once("[first_epoch+4], ").filter(|(store, _)| store.starts_with("st.shared"))?;
            stores += 1;
            // The first is that of the launch's begin.
            (stores == 2).then(|| format!("{store}[first_epoch+4], 0;"))
        })
    };
    if common::is_left_out_on_gpu("a planted bug is for the emulator to find") {
        return;
    }
    assert_eq!(seen_in(of_one_layer, &Of::few(), str::to_owned), None);
    assert_eq!(seen_in(of_one_layer, &Of::few(), plant), Some(Seen::Fault(FaultKind::Race)));
}

/// A launch whose epochs go by 2^31 goes on.
#[test]
fn epochs_that_wrap_around_are_no_end() {
    if common::is_left_out_on_gpu("a changed text is for the emulator to run") {
        return;
    }
    let late = |ptx: &str| {
        let mut stores = 0;
        rewrite(ptx, |line, _| {
            let (store, _) = line.split_once("[first_epoch], ").filter(|(store, _)| store.starts_with("st.shared"))?;
            stores += 1;
            (stores == 1).then(|| format!("{store}[first_epoch], {};", (1u32 << 31) - 5))
        })
    };
    let model = open(0, small(), late);
    let mut session = Of::few().session(&model, PathChoice::Persistent);
    session.append(&PROMPT).expect("it fits");
    let made: kiln::Result<Vec<u32>> = session.generate(GenerateOptions::new(TOKENS)).collect();
    assert_eq!(made.expect("it generates"), Of::few().made(&model, PathChoice::Stream).expect("it generates"));
    assert_eq!(session.work().launches, 1);
}

/// No block waits for the flags of the others: a token's command is written while a block may read the one before.
#[test]
fn flags_that_are_not_waited_for_are_found() {
    finds(Seen::Fault(FaultKind::Race), |ptx| {
        let mut flags = 0;
        rewrite(ptx, |line, _| {
            if let Some(load) = line.strip_prefix("ld.acquire.gpu.global.v4.u32 {") {
                flags = 4;
                let (come, _) = load.split_once('}')?;
                return Some(come.split(", ").map(|come| format!("mov.u32 {come}, 0; ")).collect());
            }
            // What each of them lacks.
            let (lacks, _) = line.strip_prefix("sub.u32 ").filter(|_| flags > 0)?.split_once(", ")?;
            flags -= 1;
            Some(format!("mov.u32 {lacks}, 0;"))
        })
    });
}

#[test]
fn a_flag_without_a_fence_is_found() {
    finds(Seen::Fault(FaultKind::Race), |ptx| {
        let flag = ptx.find("st.relaxed.gpu.global.u32").expect("a flag is stored");
        let fence = ptx[..flag].rfind("fence.acq_rel.gpu;").expect("a fence stands before it");
        ptx[..fence].to_owned() + ptx[fence..].split_once(';').expect("it ends").1
    });
}

/// One block's elements never come: every block leaves, the host gets a typed error, and the device is free. Nothing but
/// the kernel's own limit ends it.
#[test]
fn elements_that_never_come_end_the_launch() {
    never_comes("st.relaxed.gpu.global.f32");
}

/// The same of its flag.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn a_flag_that_never_comes_ends_the_launch() {
    never_comes("st.relaxed.gpu.global.u32");
}

fn never_comes(store: &str) {
    stalls(|ptx| {
        rewrite(ptx, |line, _| {
            // Arrivals are set back to 0 by such a store as well.
            (line.starts_with(store) && !line.ends_with(" 0;")).then(|| {
                format!(
                    "{{ .reg .pred %comes; .reg .b32 %of; mov.u32 %of, %ctaid.x; setp.ne.u32 %comes, %of, 1; \
                     @%comes {line} }}"
                )
            })
        })
    });
}

/// One block's weights never come.
#[test]
fn weights_that_never_come_end_the_launch() {
    stalls(|ptx| rewrite(ptx, |line, _| never(line, "mbarrier.try_wait", 1)));
}

/// While one block waits for its first weights in vain, and the others for it, rings take the rest of the token's weights, and
/// then the next token's: its layer's but those of `down`, behind which the word about the head comes. A producer that had its
/// ring emptied as a token ends would have none of them.
#[test]
fn rings_go_on_over_the_end_of_a_token() {
    if common::is_left_out_on_gpu("a GPU does not count") {
        return;
    }
    let file = of_layers(1);
    let matrices = Matrices::of(&file).expect("its matrices");
    let (all, head) = (matrices.all().bytes, matrices.head().bytes);
    // So many that a ring has room for its block's part of two tokens.
    let config = DeviceConfig { multiprocessors: 48, counters: true, checks: Checks::NONE, ..DeviceConfig::default() };
    let model = open_on(config, file, |ptx| rewrite(ptx, |line, _| never(line, "mbarrier.try_wait", 1)));
    let limits = model.device().limits();
    model.device().set_limits(limits.with_device_wait(Duration::from_micros(500)));
    let ordinal = model.device().ordinal();
    kiln_emulator::clear_reports(ordinal);
    let mut session = Of::few().session(&model, PathChoice::Persistent);
    session.append(&PROMPT[..1]).expect("it fits");
    let first = session.generate(GenerateOptions::new(2)).next();
    assert!(matches!(first, Some(Err(Error::DecoderStalled { .. }))), "{first:?}");
    drop(session);
    let reports = kiln_emulator::reports(ordinal);
    let lines = reports.iter().flat_map(|report| report.counters.lines.values());
    let of_ring = |name: &str| name.contains("blocks/ring/copy.rs");
    let lines = lines.filter(|line| line.source.as_ref().is_some_and(|(name, _)| of_ring(name)));
    let copied = lines.map(|line| line.bytes_used).sum::<u64>();
    println!("{copied} bytes of weights were copied; a token has {all}, and its head {head} of them");
    assert!(copied > all + (all - head) / 2, "{copied} bytes of weights were copied");
}

/// From some wait of each of a block's warps on its weights never come, and neither the other blocks nor the host see that
/// it gives up: the others wait for it until they give up too, and nobody takes a token that was made without weights. The
/// last wait that ends the launch is for the head's.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn weights_that_never_come_make_no_token() {
    if common::is_left_out_on_gpu("a planted bug is for the emulator to find") {
        return;
    }
    let first = |waits: u32| {
        let model = open(0, small(), |ptx| if waits == u32::MAX { ptx.to_owned() } else { some_come(ptx, waits) });
        let limits = model.device().limits();
        // Nobody tells the host, who gives up by its own limit.
        let host = Duration::from_millis(1500);
        model.device().set_limits(limits.with_device_wait(Duration::from_micros(500)).with_wait(host));
        let mut session = Of::few().session(&model, PathChoice::Persistent);
        session.append(&PROMPT[..1]).expect("it fits");
        session.generate(GenerateOptions::new(1)).next().expect("a token or an error")
    };
    let right = first(u32::MAX).expect("a token");
    let ends = |waits: u32| match first(waits) {
        Ok(token) => {
            assert_eq!(token, right, "after {waits} waits");
            false
        }
        Err(Error::DecoderStalled { .. } | Error::Stalled { .. }) => true,
        Err(error) => panic!("after {waits} waits: {error}"),
    };
    let (mut stalled, mut went) = (0, 1 << 8);
    assert!(ends(stalled) && !ends(went));
    while went - stalled > 1 {
        let middle = (stalled + went) / 2;
        if ends(middle) { stalled = middle } else { went = middle }
    }
}

/// The text in which only so many waits of each warp of a block end, and nobody else sees when it gives up.
fn some_come(ptx: &str, waits: u32) -> String {
    // Each wait polls once, then in a loop.
    let (mut polls, mut begun) = (0, false);
    rewrite(ptx, |line, next| {
        let abort = line.strip_prefix("ld.relaxed.gpu.global.u32 ").and_then(|rest| rest.split(',').next());
        if let Some(abort) = abort.filter(|_| next.starts_with("setp.ne.u32") && next.ends_with(", 0;")) {
            return Some(format!(
                "{{ .reg .pred %sees; .reg .b32 %of; {line} mov.u32 %of, %ctaid.x; setp.eq.u32 %sees, %of, 1; \
                 selp.b32 {abort}, {abort}, 0, %sees; }}"
            ));
        }
        if line.starts_with("st.relaxed.sys.global.u32") {
            return Some(format!(
                "{{ .reg .pred %tells; .reg .b32 %of; mov.u32 %of, %ctaid.x; setp.ne.u32 %tells, %of, 1; @%tells {line} }}"
            ));
        }
        if line.starts_with(".reg") && !std::mem::replace(&mut begun, true) {
            return Some(format!(".reg .b32 %waits; mov.u32 %waits, 0; {line}"));
        }
        let line = never(line, "mbarrier.try_wait", 1)?;
        polls += 1;
        let counts = if polls % 2 == 1 { "add.u32 %waits, %waits, 1;" } else { "" };
        let more = format!("setp.ne.u32 %comes, %of, 1; setp.le.or.u32 %comes, %waits, {waits}, %comes;");
        Some(line.replace("setp.ne.u32 %comes, %of, 1;", &format!("{counts} {more}")))
    })
}

/// The line of an instruction that gives a predicate first, which is false in one block.
fn never(line: &str, instruction: &str, block: u32) -> Option<String> {
    let predicate = line.strip_prefix(instruction)?.split_once(' ')?.1.split(',').next()?;
    Some(format!(
        "{{ .reg .pred %comes; .reg .b32 %of; {line} mov.u32 %of, %ctaid.x; setp.ne.u32 %comes, %of, {block}; \
         and.pred {predicate}, {predicate}, %comes; }}"
    ))
}

/// A kernel that cannot leave, since its copies have not landed, ends with an error.
#[test]
fn a_copy_that_never_lands_is_an_error() {
    if common::is_left_out_on_gpu("it would take the context, which all tests share, with it") {
        return;
    }
    // The last of these waits is that before the producer's end.
    let model = open(0, small(), |ptx| {
        let drain = ptx.lines().rfind(|line| line.contains("mbarrier.test_wait")).expect("it waits");
        rewrite(ptx, |line, _| if line == drain.trim() { never(line, "mbarrier.test_wait", 1) } else { None })
    });
    let limits = model.device().limits();
    model.device().set_limits(limits.with_device_wait(Duration::from_micros(500)));
    let mut session = Of::few().session(&model, PathChoice::Persistent);
    session.append(&PROMPT).expect("it fits");
    let made = session.generate(GenerateOptions::new(TOKENS)).collect::<kiln::Result<Vec<u32>>>();
    drop(session);
    assert!(model.device().synchronize().is_err(), "after {made:?}");
    let fault = kiln_emulator::last_fault(model.device().ordinal()).expect("a trap");
    assert_eq!(fault.kind, FaultKind::IllegalInstruction);
}

/// Every block leaves, the host gets a typed error, and the device is free.
#[track_caller]
fn stalls(plant: impl Fn(&str) -> String) {
    if common::is_left_out_on_gpu("a planted bug is for the emulator to find") {
        return;
    }
    let model = open(0, small(), plant);
    let limits = model.device().limits();
    model.device().set_limits(limits.with_device_wait(Duration::from_micros(500)));
    let mut session = Of::few().session(&model, PathChoice::Persistent);
    session.append(&PROMPT).expect("it fits");
    for round in 0..2 {
        let first = session.generate(GenerateOptions::new(TOKENS)).next();
        assert!(matches!(first, Some(Err(Error::DecoderStalled { .. }))), "round {round}: {first:?}");
    }
    drop(session);
    model.device().synchronize().expect("nothing is on the device, and nothing went wrong there");
    assert_eq!(kiln_emulator::last_fault(model.device().ordinal()), None);
    assert_eq!(Of::few().made(&model, PathChoice::Stream).expect("it goes on").len(), TOKENS);
}
