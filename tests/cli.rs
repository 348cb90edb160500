//! The examples as a person runs them: text on success, and one clear line, exit code 1 and no panic on anything wrong.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// An example's program, which `cargo test` builds beside the tests.
fn example(name: &str, arguments: &[&str]) -> Command {
    let tests = std::env::current_exe().expect("this program");
    let folder = tests.parent().and_then(Path::parent).expect("a target folder");
    let program = folder.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(program.exists(), "{} is built by `cargo test`", program.display());
    let mut command = Command::new(program);
    command.args(arguments).env("KILN_DEVICE", "emulator").env("RUST_BACKTRACE", "0");
    command
}

fn generate(arguments: &[&str]) -> Output {
    example("generate", arguments).output().expect("it runs")
}

fn refusal(arguments: &[&str]) -> String {
    let output = generate(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors}");
    assert_eq!(errors.trim_end().lines().count(), 1, "one line: {errors}");
    assert!(errors.starts_with("error: ") && !errors.contains("panicked"), "{errors}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    errors
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/demo.Q4_K_M.gguf")
}

/// A file of these bytes that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Scratch {
        let path = std::env::temp_dir().join(format!("kiln-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).expect("a temporary file");
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a plain path")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Whoever leaves the path to the program reads which one it is, and why.
#[test]
fn the_last_line_says_why_a_path_was_taken() {
    let output = generate(&["--ids", "5", "--tokens", "1"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("; path: stream (auto: the emulator runs it faster); "), "{errors}");
}

#[test]
fn text_goes_to_standard_output_and_ids_to_standard_error() {
    let arguments = ["--ids", "438,1245,361", "--tokens", "3", "--print-ids", "--path", "stream", "--timings"];
    let output = generate(&arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    assert!(!output.stdout.is_empty());
    let ids = errors.lines().find_map(|line| line.strip_prefix("ids: ")).expect("a line of ids");
    assert_eq!(ids.split(',').filter(|id| id.parse::<u32>().is_ok()).count(), 3, "{ids}");
    let timings = errors.lines().find_map(|line| line.strip_prefix("timings: ")).expect("a line of timings");
    let seconds = |part: &str| {
        let found = timings.split_once(part).unwrap_or_else(|| panic!("{part} in {timings}")).1;
        found.split(' ').next().and_then(|number| number.parse::<f64>().ok()).unwrap_or_else(|| panic!("{timings}"))
    };
    let parts = ["file ", "driver ", "upload ", "prompt ", "modules "].map(seconds);
    let before = if cfg!(target_os = "linux") { seconds("process ") } else { 0.0 };
    let sum = before + parts.iter().sum::<f64>();
    assert!((sum - seconds("first token after ")).abs() < 0.01 && parts.iter().all(|part| *part >= 0.0), "{timings}");
    // The kernels that load, and those of the path; the emulator compiles.
    assert!(seconds("modules ") > 0.0 && timings.contains("compiled, 0 of machine code"), "{timings}");
    let closing = errors.lines().last().expect("a closing line");
    for part in ["device: ", "path: stream (asked for)", "numerics: fast", "launches: ", "tokens/s", "loaded in "] {
        assert!(closing.contains(part), "{part} in {closing}");
    }
}

#[test]
fn the_same_seed_writes_the_same_text_on_every_path_and_odd_parameters_are_refused() {
    let run = |path: &str, seed: &str| {
        let sampling = ["--temperature", "0.9", "--top-p", "0.95", "--seed", seed];
        let output = generate(&[&["--tokens", "3", "--print-ids", "--path", path][..], &sampling].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        assert!(errors.contains(&format!("choice: temperature 0.9, seed {seed};")), "{errors}");
        errors.lines().find(|line| line.starts_with("ids: ")).expect("a line of ids").to_owned()
    };
    let ids = run("stream", "7");
    assert_eq!(run("graph", "7"), ids);
    assert_eq!(run("persistent", "7"), ids);
    assert_ne!(run("stream", "8"), ids);
    for (name, value, part) in [
        ("--temperature", "nan", "temperature"),
        ("--temperature", "-1", "temperature"),
        ("--top-p", "0", "top_p"),
        ("--min-p", "2", "min_p"),
        ("--repetition-penalty", "0", "repetition"),
        ("--stop", "", "stop string"),
    ] {
        let line = refusal(&[&format!("{name}={value}")]);
        assert!(line.contains(part), "{line}");
    }
}

#[test]
fn a_chat_in_a_pipe_answers_saves_and_goes_on() {
    let file = std::env::temp_dir().join(format!("kiln-{}-chat", std::process::id()));
    let name = file.to_str().expect("a plain path");
    let talk = |input: String| {
        let mut command =
            example("chat", &["--tokens", "3", "--path", "stream", "--capacity", "128", "--system", "Brief."]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        let mut stdin = child.stdin.take().expect("a pipe");
        std::io::Write::write_all(&mut stdin, input.as_bytes()).expect("it reads");
        drop(stdin);
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{output:?}");
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text"))
    };
    let [answers, notes] =
        talk(format!("Hello \\\nyou\n/save {name}\n/set top-p 7\n/set temperature 0.5\n/nothing\nMore\n"));
    assert_eq!(answers.lines().count(), 2, "{answers:?}");
    assert!(notes.contains("top_p: found 7") && notes.contains("`/nothing` is no command"), "{notes}");
    let first = answers.lines().next().expect("an answer");
    let saved = std::fs::read_to_string(&file).expect("it was saved");
    assert!(saved.starts_with("kiln chat 1\nsystem 6\nBrief.\nuser 10\nHello \nyou\nassistant "), "{saved:?}");
    assert!(saved.contains(first), "{saved:?} holds {first:?}");
    let [_, notes] = talk(format!("/load {name}\n/load no-such-file\n/clear\n/save {name}\n/quit\nnot said\n"));
    assert!(notes.contains("3 messages") && notes.contains("no-such-file: "), "{notes}");
    assert_eq!(std::fs::read_to_string(&file).expect("it was saved"), "kiln chat 1\nsystem 6\nBrief.\n");
    let _ = std::fs::remove_file(file);
}

#[test]
fn numerics_are_those_asked_for_and_stand_in_the_report() {
    let runs: [(&str, &[&str], &str); 3] = [
        ("generate", &["--tokens", "1", "--numerics", "exact"], "exact"),
        ("evaluate", &[], "exact"),
        ("evaluate", &["--numerics", "fast"], "fast"),
    ];
    for (name, arguments, numerics) in runs {
        let output = example(name, arguments).args(["--ids", "5,7", "--path", "stream"]).output().expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{name}: {errors}");
        let closing = errors.lines().last().expect("a closing line");
        assert!(closing.contains(&format!("numerics: {numerics};")), "{name} {arguments:?}: {closing}");
    }
    for name in ["generate", "evaluate", "bench"] {
        let output = example(name, &["--numerics", "approximate"]).output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{name}");
    }
}

#[test]
fn counters_are_a_table_by_kernel_and_by_line() {
    let table = |numerics| {
        let arguments =
            ["--ids", "5", "--tokens", "1", "--path", "stream", "--counters-by-line", "--numerics", numerics];
        let output = generate(&arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        errors
    };
    let (exact, fast) = (table("exact"), table("fast"));
    // One kernel has all products in fast numerics, and rows by phase all the same.
    for (errors, name, instructions) in
        [(&exact, "rmsnorm_gate_up_swiglu ", 2.0..20.0), (&fast, "products, gate and up ", 1.0..10.0)]
    {
        let row = errors.lines().find(|line| line.starts_with(name)).expect("a kernel's row");
        let numbers = row[name.len()..].split_whitespace().map(|number| number.parse().expect("a number"));
        let numbers: Vec<f64> = numbers.collect();
        // One token through four layers, each of which reads two matrices of 256 by 768 in Q4_K, whole.
        let [launches, _, each, needed, moved, ratio, asked, _, _] = numbers[..] else { panic!("{row}") };
        assert_eq!((launches, needed), (4.0, 4.0 * 2.0 * 256.0 * 768.0 * 0.5625), "{row}");
        assert!(instructions.contains(&each), "instructions a weight: {row}");
        assert!(moved >= needed && moved <= asked && (ratio - moved / needed).abs() < 1e-3, "{row}");
    }
    let heads = fast.lines().filter(|line| line.starts_with("products, head "));
    assert_eq!(heads.count(), 1, "{fast}");
    // Programs hold light text, unless they were built with provenance.
    let by_ptx = exact.contains("_q6k, PTX line ") && exact.contains("KILN_PROVENANCE=1");
    assert!(by_ptx || exact.contains("codegen/src/blocks/dot.rs:"), "{exact}");
}

#[test]
fn time_on_a_chip_is_a_table_by_kernel_and_the_same_on_every_run() {
    let table = |path| {
        let output = generate(&["--ids", "5", "--tokens", "1", "--path", path, "--clock", "agx-orin"]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        let lines = errors.lines().skip_while(|line| !line.starts_with("time on `agx-orin`: modelled, not measured"));
        lines.take_while(|line| !line.starts_with("device:")).map(str::to_owned).collect::<Vec<_>>()
    };
    let rows = table("stream");
    let row = |name: &str| {
        let row = rows.iter().find(|row| row.starts_with(name)).unwrap_or_else(|| panic!("no {name}: {rows:?}"));
        let numbers = row[name.len()..].split_whitespace().filter_map(|number| number.parse().ok());
        numbers.collect::<Vec<f64>>()
    };
    let (down, all) = (row("products, down "), row("all launches "));
    // Launches, microseconds, GB/s; then shares of time.
    assert!(down[0] == 4.0 && down[1] > 0.0 && all[0] > 20.0 && all[1] > 2.0 * down[1], "{rows:?}");
    for said in
        [" us for each launch of a stream ", " us for each programmatic launch ", " copies between host and device"]
    {
        assert!(rows.iter().any(|row| row.contains(said)), "{said}: {rows:?}");
    }
    assert_eq!(rows, table("stream"), "another run");
    let unknown = generate(&["--clock", "h999"]);
    let errors = String::from_utf8_lossy(&unknown.stderr);
    assert!(!unknown.status.success() && errors.contains("no chip file `h999`; there are h200, "), "{errors}");
}

#[test]
fn asking_for_a_gpu_where_there_is_no_driver_says_so() {
    // A machine with a driver has nothing to refuse.
    if kiln::driver::Driver::load().is_ok() {
        eprintln!("SKIPPED: this machine has a CUDA driver");
        return;
    }
    assert!(refusal(&["--device", "cuda"]).contains("no CUDA driver"));
}

#[test]
fn a_missing_file_is_named() {
    assert!(refusal(&["--model", "no-such-model.gguf"]).contains("no-such-model.gguf"));
}

#[test]
fn a_folder_and_an_empty_file_are_not_models() {
    assert!(refusal(&["--model", env!("CARGO_MANIFEST_DIR")]).contains("not a file"));
    let empty = Scratch::new("empty.gguf", b"");
    assert!(refusal(&["--model", empty.path()]).contains("not a file with anything in it"));
}

#[test]
fn a_truncated_file_is_refused() {
    let bytes = std::fs::read(demo()).expect("the demo model");
    for part in [10, 1000, bytes.len() / 2, bytes.len() - 1] {
        let cut = Scratch::new(&format!("cut-{part}.gguf"), &bytes[..part]);
        refusal(&["--model", cut.path()]);
    }
}

#[test]
fn a_file_of_random_bytes_is_refused() {
    let mut state = 1u64;
    let bytes: Vec<u8> = (0..100_000)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    let random = Scratch::new("random.gguf", &bytes);
    refusal(&["--model", random.path()]);
}

#[test]
fn a_model_that_was_not_baked_names_the_feature_to_build_with() {
    let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny2-d64.Q4_K_M/model.gguf");
    let baked = kiln::baked::MODELS.iter().any(|model| model.name() == "tiny2-d64");
    if baked {
        eprintln!("SKIPPED: tiny2-d64 is baked into this build");
        return;
    }
    let line = refusal(&["--model", other.to_str().expect("a plain path")]);
    assert!(line.contains("--features tiny2-d64"), "{line}");
}

#[test]
fn an_id_outside_the_vocabulary_is_refused() {
    let line = refusal(&["--ids", "1,2048"]);
    assert!(line.contains("2048") && line.contains("0 to 2047"), "{line}");
}

#[test]
fn a_prompt_longer_than_the_context_is_refused() {
    let ids = vec!["1"; 4097].join(",");
    let line = refusal(&["--ids", &ids]);
    assert!(line.contains("4097") && line.contains("4096"), "{line}");
}

#[test]
fn an_empty_prompt_and_words_it_does_not_know_are_refused() {
    assert!(refusal(&["--prompt", ""]).contains("empty"));
    let output = generate(&["--device", "abacus"]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn blocks_without_a_persistent_path_are_refused() {
    for path in ["stream", "graph"] {
        let line = refusal(&["--path", path, "--blocks", "2"]);
        assert!(line.contains("--blocks"), "{line}");
    }
}

#[test]
fn help_is_of_the_example_and_arguments_that_it_does_not_take_are_refused() {
    let examples = [
        ("generate", "Generates text from a prompt"),
        ("chat", "Talks with a Qwen model"),
        ("evaluate", "Perplexity of a text"),
        ("bench", "What kiln's fusions"),
        ("synth", "Writes a GGUF file"),
        ("cost", "Prints how long a token should take"),
        ("emulator_speed", "Measures how fast the emulator runs"),
        #[cfg(feature = "trace")]
        ("trace", "Shows what the blocks of the persistent path do"),
    ];
    for (name, own) in examples {
        let help = example(name, &["--help"]).output().expect("it runs");
        let text = String::from_utf8_lossy(&help.stdout).into_owned();
        assert!(help.status.success() && text.starts_with(own), "{name}: {text}");
        let wrong = example(name, &["--no-such-argument"]).output().expect("it runs");
        assert_eq!(wrong.status.code(), Some(1), "{name}");
    }
}

/// Something to write to that takes nothing: its reader is gone, or it is full.
#[cfg(target_os = "linux")]
fn takes_nothing() -> [Stdio; 2] {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a device that is always full");
    [writer.into(), full.into()]
}

#[test]
#[cfg(target_os = "linux")]
fn a_standard_error_that_takes_nothing_changes_no_result() {
    for stderr in takes_nothing() {
        let good = ["--ids", "5", "--tokens", "2", "--path", "stream", "--print-ids", "--counters"];
        let output = example("generate", &good).stderr(stderr).output().expect("it runs");
        assert!(output.status.success() && !output.stdout.is_empty(), "{output:?}");
    }
    let wrong: [(&str, &[&str]); 4] = [
        ("generate", &["--model", "no-such-model.gguf"]),
        ("evaluate", &["--ids", "1,4000"]),
        ("synth", &["--model", "no-such-model", "--out", "no-such-folder/file"]),
        ("cost", &["--no-such-argument"]),
    ];
    for (name, arguments) in wrong {
        for stderr in takes_nothing() {
            let output = example(name, arguments).stderr(stderr).output().expect("it runs");
            assert_eq!(output.status.code(), Some(1), "{name}: {output:?}");
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_standard_output_that_takes_nothing_ends_an_example_without_a_panic() {
    let arguments: [(&str, &[&str]); 2] =
        [("generate", &["--ids", "5", "--tokens", "2", "--path", "stream"]), ("evaluate", &["--ids", "5,7"])];
    for (name, arguments) in arguments {
        // Who read it has had enough; a full disk is an error.
        for (stdout, code) in takes_nothing().into_iter().zip([0, 1]) {
            let output = example(name, arguments).stdout(stdout).stderr(Stdio::piped()).output().expect("it runs");
            assert_eq!(output.status.code(), Some(code), "{name}: {output:?}");
        }
    }
}

#[test]
fn errors_of_a_file_name_it() {
    let folder = std::env::temp_dir().join(format!("kiln-{}-no-such-folder", std::process::id()));
    let file = folder.join("file.gguf");
    let path = file.to_str().expect("a plain path");
    let output = example("synth", &["--model", "tiny", "--out", path]).output().expect("it runs");
    assert!(String::from_utf8_lossy(&output.stderr).contains(path), "{output:?}");

    // A tokenizer of another kind, in a file that is a model otherwise.
    let bytes = std::fs::read(demo()).expect("the demo model");
    let kind = b"gpt2";
    let at = bytes.windows(kind.len()).position(|window| window == kind).expect("the tokenizer's kind");
    let mut other = bytes;
    other[at..at + kind.len()].copy_from_slice(b"bert");
    let other = Scratch::new("bert.gguf", &other);
    let line = refusal(&["--model", other.path()]);
    assert!(line.contains(other.path()) && line.contains("`bert`"), "{line}");
}
