//! What a bake emits, over every preset and target: it exists, it is the same every time, and it is made quickly.

use kiln_codegen::bake::{DecoderPath, decoder, emit, emit_for, fits, general};
use kiln_codegen::kernels::{FusedRmsNormQ4KGemv, Saxpy};
use kiln_codegen::ptx::Text;
use kiln_codegen::{Bake, Error, Kernel, Numerics, Target};
use kiln_shape::{WeightType, presets};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Set in the copies of this test program that write into a folder instead of comparing.
const EMIT_INTO: &str = "KILN_TEST_EMIT_INTO";

/// A fresh folder under the build's own scratch space.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a scratch folder");
    folder
}

fn files(folder: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(&path).expect("text"))
    };
    entries.map(read).collect()
}

fn preset(name: &str) -> kiln_shape::ModelShape {
    presets::by_name(name).expect("a preset").shape
}

fn bake_into(folder: &Path) {
    let bake = Bake::new().model("tiny", preset("tiny")).model("qwen3b", preset("qwen3b")).general_kernels();
    bake.targets(Target::DEFAULT).write(folder).expect("it bakes");
}

/// Hash seeds and addresses differ from process to process; what is baked may not.
#[test]
fn bakes_of_two_processes_are_byte_identical() {
    if let Some(folder) = std::env::var_os(EMIT_INTO) {
        bake_into(Path::new(&folder));
        return;
    }
    let (first, second) = (scratch("bake-0"), scratch("bake-1"));
    for folder in [&first, &second] {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.args(["--exact", "emission::bakes_of_two_processes_are_byte_identical"]).env(EMIT_INTO, folder);
        assert!(command.output().expect("it runs").status.success());
    }
    let (first, second) = (files(&first), files(&second));
    // Two models in two numerics, with a module for the persistent path and three for the stream's layers, head and choice; the
    // kernels, and those for loading. For sm_75 and for one later target each model's kernels that take several tokens, and of one
    // that is large enough those that begin early, and those of a chip's own; those for many columns for targets that have
    // them.
    let modules = 2 * 2 * 4 + 2;
    let of_columns = 2 * 2 + 2 + Target::DEFAULT.iter().filter(|target| target.sm() >= 80).count();
    assert_eq!(first.len(), modules * Target::DEFAULT.len() + of_columns + 1, "{:?}", first.keys());
    assert!(first.contains_key("kiln_baked.rs"), "{:?}", first.keys());
    assert!(first == second, "two bakes differ");
}

/// Every preset and the general kernels, for every target, path and numerics, each within the time a build may take.
#[test]
fn every_preset_is_emitted_for_every_target() {
    let began = Instant::now();
    let mut emitting = Duration::ZERO;
    let models = presets::all().flat_map(|preset| {
        let paths = DecoderPath::ALL.into_iter().flat_map(|path| Numerics::ALL.map(|numerics| (path, numerics)));
        paths.map(move |(path, numerics)| {
            let targets = Target::ALL
                .into_iter()
                .filter(|target| fits(&preset.shape, WeightType::ALL, *target, numerics))
                .collect();
            (preset.feature, Some((path, numerics)), decoder(preset.shape, WeightType::ALL, path, numerics), targets)
        })
    });
    let mut left_out = 0;
    for (name, of, kernels, targets) in models.chain([("general", None, general(), Target::ALL.to_vec())]) {
        let began = Instant::now();
        let targets: Vec<Target> = targets;
        left_out += Target::ALL.len() - targets.len();
        let modules = match emit_for(&targets, of, &kernels, Text::Full) {
            Ok(modules) => modules,
            Err(error) => panic!("{name}: {error}"),
        };
        emitting += began.elapsed();
        for (module, target) in modules.iter().zip(targets.iter().copied()) {
            assert!(module.ptx.contains(&format!("\n.target {target}\n")), "{name} for {target}");
            let names: BTreeSet<&str> = module.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
            assert_eq!(names.len(), kernels.len(), "{name}: an entry's name is taken twice");
            for kernel in &module.kernels {
                assert!(module.ptx.contains(&format!("\n.visible .entry {}(", kernel.name)), "{name}: {kernel:?}");
                let shared = kernel.static_shared + kernel.dynamic_shared;
                // A later chip that has less runs the text too.
                let least =
                    Target::ALL.into_iter().filter(|later| *later >= target).map(Target::shared_per_block).min();
                assert!(Some(shared) <= least, "{name} for {target}: {kernel:?}");
                assert!(kernel.static_shared <= 48 << 10, "{name}: static shared memory is 48 KiB at most: {kernel:?}");
                assert!(kernel.block % 32 == 0 && kernel.block <= 1024, "{name}: {kernel:?}");
            }
        }
        assert_eq!(modules.len(), targets.len());
    }
    // The 32B's FFN vector, on both paths of fast numerics, has no place on sm_75.
    assert_eq!(left_out, 2);
    eprintln!("emitting all presets for all targets took {emitting:.2?}, of {:.2?} in all", began.elapsed());
    // Two seconds for either numerics on an idle machine, and some for one that is not.
    assert!(emitting <= Duration::from_secs(24), "{emitting:?}");
}

/// Kernels that do not look at their target are built once for all: that is the same text as one by one.
#[test]
fn emitting_for_all_targets_is_emitting_for_each() {
    let kernels = general();
    let together = emit_for(&Target::ALL, None, &kernels, Text::Full).expect("valid");
    for (module, target) in together.iter().zip(Target::ALL) {
        assert!(*module == emit(target, None, &kernels).expect("valid"), "{target}");
    }
}

/// A program holds a text once: where a newer target has the same, the older one's module serves both.
#[test]
fn targets_of_one_text_share_the_oldest_ones_module() {
    for targets in [&Target::DEFAULT[..], &Target::DEFAULT[2..]] {
        let folder = scratch("shared");
        Bake::new().model("tiny", preset("tiny")).targets(targets.iter().copied()).write(&folder).expect("it bakes");
        let mut files = files(&folder);
        let program = files.remove("kiln_baked.rs").expect("it is written");
        let body = |ptx: &str| ptx.split_once(".address_size").expect("a header").1.to_owned();
        let mut held = 0;
        for (name, ptx) in &files {
            let target = targets.iter().position(|target| name.contains(&target.to_string())).expect("a target's file");
            // Not every target has every module.
            let of = |other: &Target| files.get(&name.replace(&targets[target].to_string(), &other.to_string()));
            let is_new = targets[..target].iter().filter_map(of).all(|older| body(older) != body(ptx));
            assert_eq!(program.contains(&format!("/{name}\"")), is_new, "{name}");
            held += usize::from(is_new);
        }
        assert_eq!(held, program.matches("BakedModule {").count(), "a module for each text");
        assert!(targets.len() == 1 || held < files.len(), "no text is shared");
    }
}

/// A second bake into the same folder writes nothing, so that nothing is rebuilt.
#[test]
fn unchanged_files_are_left_alone() {
    let folder = scratch("twice");
    let bake = || Bake::new().kernel(Saxpy).targets(Target::DEFAULT).write(&folder);
    let times = || -> Vec<std::time::SystemTime> {
        let entries = std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry"));
        entries.map(|entry| entry.metadata().and_then(|data| data.modified()).expect("a time")).collect()
    };
    bake().expect("it bakes");
    let before = times();
    assert_eq!(before.len(), Target::DEFAULT.len() + 1);
    std::thread::sleep(Duration::from_millis(20));
    bake().expect("it bakes");
    assert_eq!(before, times());
}

/// What a bake that must be refused says; it writes nothing.
fn refusal(folder: &str, bake: Bake) -> String {
    let folder = scratch(folder);
    let error = bake.targets(Target::DEFAULT).write(&folder).expect_err("a refusal");
    assert!(files(&folder).is_empty(), "a refused bake writes nothing");
    error.to_string()
}

#[test]
fn two_kernels_of_one_name_are_refused_by_name() {
    let sizes = Bake::new().kernel(FusedRmsNormQ4KGemv::new(256, 7)).kernel(FusedRmsNormQ4KGemv::new(512, 9));
    let error = refusal("twice", sizes);
    for part in ["`fused_rmsnorm_q4k_gemv`", "k: Baked(256), n: Baked(7)", "k: Baked(512), n: Baked(9)", "kernel_as"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    let error = refusal("general", Bake::new().general_kernels().kernel(FusedRmsNormQ4KGemv::new(256, 7)));
    assert!(error.contains("k: Param, n: Param") && error.contains("k: Baked(256)"), "{error}");
}

#[test]
fn two_sizes_of_one_family_may_have_names_of_their_own() {
    let folder = scratch("renamed");
    let bake = Bake::new().kernel(FusedRmsNormQ4KGemv::new(256, 7));
    let bake = bake.kernel_as("wide_gemv", FusedRmsNormQ4KGemv::new(512, 9)).targets(Target::DEFAULT);
    bake.write(&folder).expect("it bakes");
    let ptx = &files(&folder)["kiln_kernels_sm_75.ptx"];
    assert!(ptx.contains(".entry fused_rmsnorm_q4k_gemv(") && ptx.contains(".entry wide_gemv("));
    let error = refusal("misnamed", Bake::new().kernel_as("wide gemv", Saxpy));
    assert!(error.contains("\"wide gemv\""), "{error}");
}

#[test]
fn a_models_name_makes_a_static_of_its_own() {
    let tiny = || preset("tiny");
    for name in ["", "8b", "-", "__", "7.5b", "日本"] {
        let error = refusal("model", Bake::new().model(name, tiny()));
        assert!(error.contains(&format!("{name:?}")), "{error}");
    }
    let error = refusal("model", Bake::new().model("my-model", tiny()).model("my.model", tiny()));
    assert!(error.contains("\"my.model\"") && error.contains("model \"my-model\""), "{error}");
    let error = refusal("model", Bake::new().model("kernels", tiny()));
    assert!(error.contains("`KERNELS`") && error.contains("the single kernels"), "{error}");
}

#[test]
fn a_bake_needs_targets_and_each_once() {
    let folder = scratch("targets");
    let bake = |targets: &[Target]| Bake::new().kernel(Saxpy).targets(targets.iter().copied()).write(&folder);
    let [first, second, ..] = Target::ALL;
    assert!(matches!(bake(&[]), Err(Error::Targets(found)) if found.is_empty()));
    assert!(matches!(bake(&[first, second, first]), Err(Error::Targets(found)) if found.len() == 3));
    assert!(files(&folder).is_empty(), "a refused bake writes nothing");
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let folder = scratch("missing").join("nowhere");
    match Bake::new().kernel(Saxpy).targets(Target::DEFAULT).write(&folder) {
        Err(Error::Write { path, .. }) => assert!(path.starts_with(&folder), "{}", path.display()),
        other => panic!("{other:?}"),
    }
}

/// The instructions a reader sees, without the source lines, which move with every edit. `KILN_BLESS=1` writes it anew.
#[test]
fn saxpy_is_printed_as_recorded() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/saxpy.sm_80.ptx");
    let ptx = Saxpy.emit_ptx(Target::new(80).expect("a target")).expect("it is emitted");
    let moves = |line: &&str| line.trim_start().starts_with(".loc") || line.starts_with(".file");
    let ptx: String = ptx.lines().filter(|line| !moves(line)).map(|line| format!("{line}\n")).collect();
    if std::env::var_os("KILN_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, &ptx).expect("the snapshot can be written");
    }
    let recorded = std::fs::read_to_string(&path).expect("a snapshot; KILN_BLESS=1 writes it").replace("\r\n", "\n");
    assert!(ptx == recorded, "differs from {}; if it should, KILN_BLESS=1\n{ptx}", path.display());
}
