//! The emulator's instruction table, row by row, on the device that `KILN_DEVICE` chooses: on a chip it tells whether the
//! table, and so the emulator, is right.
//!
//! A row that faults on a chip loses its process the context. So a child process, this program again, runs the rows and
//! tells what it found of each, and another one goes on behind a row that ended it.

mod common;
#[path = "../emulator/tests/table/mod.rs"]
mod table;

use kiln::driver::{Device, DeviceBuffer, DeviceRepr, KernelParam, LaunchConfig, Module, Stream};
use std::process::Command;
use table::{Row, warp};

/// What the newest instruction of the table needs: a chip before it is given each row in a module of its own.
const NEWEST: u32 = 90;

/// The variable that makes a process a child, and says which row is its first.
const FIRST: &str = "KILN_TABLE_FIRST";

/// What became of a row.
#[derive(Debug, PartialEq)]
enum Verdict {
    Held,
    Wrong(String),
    /// The chip does not have it.
    Unknown,
}

/// The rows of a test, opened on a device.
struct Rows {
    names: Vec<String>,
    /// Runs the row of a number. Behind an error nothing can be run.
    run: Box<dyn FnMut(usize) -> kiln::Result<Verdict>>,
}

/// What became of each row of a test, which children of its name run. `None` in a child.
fn verdicts(test: &str, open: impl FnOnce() -> Rows) -> Option<Vec<Verdict>> {
    if let Ok(first) = std::env::var(FIRST) {
        tell(first.parse().expect("a number"), open());
        return None;
    }
    let mut verdicts = Vec::new();
    loop {
        let first = verdicts.len();
        let mut child = Command::new(std::env::current_exe().expect("a path"));
        child.args([test, "--exact", "--nocapture"]).env(FIRST, first.to_string());
        let output = child.output().expect("it starts");
        let (told, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let rows = told.lines().find_map(|line| line.strip_prefix("rows: ")?.parse::<usize>().ok());
        let rows = rows.unwrap_or_else(|| panic!("{test} does not begin: {told}{errors}"));
        verdicts.extend(told.lines().filter_map(read));
        if verdicts.len() >= rows {
            return Some(verdicts);
        }
        if verdicts.len() == first {
            verdicts.push(Verdict::Wrong(format!("number {first} ended its process: {}", errors.trim())));
        }
    }
}

/// Runs the rows from `first` on, and tells the parent a line of each.
fn tell(first: usize, mut rows: Rows) {
    // The test harness has begun a line.
    println!("\nrows: {}", rows.names.len());
    for (index, name) in rows.names.iter().enumerate().skip(first) {
        let verdict = (rows.run)(index);
        match &verdict {
            Ok(Verdict::Held) => println!("row held"),
            Ok(Verdict::Unknown) => println!("row unknown"),
            Ok(Verdict::Wrong(what)) => println!("row wrong: {name} {}", what.replace('\n', " ")),
            Err(error) => println!("row wrong: {name}: {}", error.to_string().replace('\n', " ")),
        }
        if verdict.is_err() {
            return;
        }
    }
}

/// What a child's line tells of a row.
fn read(line: &str) -> Option<Verdict> {
    match line.strip_prefix("row ")? {
        "held" => Some(Verdict::Held),
        "unknown" => Some(Verdict::Unknown),
        other => other.strip_prefix("wrong: ").map(|what| Verdict::Wrong(what.to_owned())),
    }
}

/// How many rows held, what is wrong with others, and how many the chip does not have.
fn summary(verdicts: &[Verdict]) -> (usize, Vec<&str>, usize) {
    let (mut held, mut wrong, mut unknown) = (0, Vec::new(), 0);
    for verdict in verdicts {
        match verdict {
            Verdict::Held => held += 1,
            Verdict::Wrong(what) => wrong.push(what.as_str()),
            Verdict::Unknown => unknown += 1,
        }
    }
    (held, wrong, unknown)
}

fn module(device: &Device, kernels: &str) -> kiln::Result<Module> {
    let sm = device.sm().min(NEWEST);
    // What cvt to 8-bit floats and packed 16-bit integers need.
    Module::from_ptx_str(device, &format!(".version 8.1\n.target sm_{sm}\n.address_size 64\n{kernels}"))
}

/// What so many blocks of a warp of the kernel `name` make of `values`, a word for each lane.
fn launch<T: DeviceRepr>(
    stream: &Stream,
    module: &Module,
    name: &str,
    blocks: u32,
    values: &[T],
) -> kiln::Result<Vec<T>> {
    let input = DeviceBuffer::from_host(module.device(), values)?;
    let output = DeviceBuffer::<T>::zeroed(module.device(), 32 * blocks as usize)?;
    let function = module.function(name)?;
    let (from, to) = (input.as_ptr(), output.as_ptr());
    let params = [KernelParam::new(&from), KernelParam::new(&to)];
    let config = LaunchConfig::new([blocks, 1, 1], [32, 1, 1]);
    stream.enqueue([input.reads("in"), output.writes("out")], |stream| {
        // SAFETY: kernels of the tables read up to four words, those of a warp up to INPUTS, and write one a lane; both
        // buffers are that long.
        unsafe { function.launch(stream, &config, &params) }
    })?;
    output.to_host()
}

/// The programs of warps.
fn programs() -> Rows {
    let device = common::device();
    let stream = device.stream().expect("a stream");
    let values: Vec<u32> = (0..warp::INPUTS).map(warp::input).collect();
    let programs: Vec<_> = warp::programs(device.sm()).collect();
    let names = programs.iter().map(|program| program.name.to_owned()).collect();
    let run = move |index: usize| {
        let program = programs[index];
        let module = match module(&device, &program.kernel()) {
            Ok(module) => module,
            Err(error) => return Ok(Verdict::Wrong(format!("is not loaded: {error}"))),
        };
        let found = launch(&stream, &module, program.name, program.blocks, &values)?;
        let expected = program.results();
        let differs = || Verdict::Wrong(format!("gave {found:x?}, not {expected:x?}"));
        Ok(if found == expected { Verdict::Held } else { differs() })
    };
    Rows { names, run: Box::new(run) }
}

/// Rows of the table. Where one module has them all, they are compiled once.
fn of_table(rows: Vec<Row>) -> Rows {
    let device = common::device();
    let stream = device.stream().expect("a stream");
    let names = rows.iter().map(|row| format!("line {}: {}", row.line, row.text)).collect();
    let kernels: Vec<String> = rows.iter().enumerate().map(|(index, row)| table::kernel(index, row, "")).collect();
    let has_all = device.sm() >= NEWEST;
    let all = if has_all { module(&device, &kernels.concat()).ok() } else { None };
    let run = move |index: usize| {
        let row = &rows[index];
        let module = match &all {
            Some(all) => Ok(all.clone()),
            None => module(&device, &kernels[index]),
        };
        let module = match module {
            Ok(module) => module,
            Err(error) if has_all => return Ok(Verdict::Wrong(format!("is not loaded: {error}"))),
            Err(_) => return Ok(Verdict::Unknown),
        };
        let mut values: Vec<u64> = row.inputs.iter().map(|(_, value)| *value).collect();
        values.resize(4, 0);
        let results = launch(&stream, &module, &format!("row{index}"), 1, &values)?;
        // Results that name a lane differ between them.
        let lanes = if row.text.contains("%lane") { 1 } else { 32 };
        let differs = |result: &&u64| !table::matches(row, **result);
        let wrong = |result: &u64| Verdict::Wrong(format!("gave {result:x}, not {}", row.expected));
        Ok(results[..lanes].iter().find(differs).map_or(Verdict::Held, wrong))
    };
    Rows { names, run: Box::new(run) }
}

#[test]
fn programs_of_a_warp_find_what_the_isa_says() {
    let Some(verdicts) = verdicts("programs_of_a_warp_find_what_the_isa_says", programs) else { return };
    let (held, wrong, _) = summary(&verdicts);
    println!("programs of a warp: {held} held, {} wrong", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(held >= warp::PROGRAMS.len(), "{held} programs");
}

#[test]
fn every_row_of_the_instruction_table_holds() {
    let open = || of_table(table::rows());
    let Some(verdicts) = verdicts("every_row_of_the_instruction_table_holds", open) else { return };
    let (held, wrong, unknown) = summary(&verdicts);
    println!("instruction table: {held} rows held, {} wrong, {unknown} not on this chip", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(verdicts.len(), table::rows().len());
    assert!(unknown < verdicts.len() / 2, "{unknown} of {} rows are not known to the chip", verdicts.len());
}

/// The third row traps, which loses the context; the fifth ends the process, and the sixth is wrong.
#[test]
fn a_row_that_loses_the_context_or_ends_the_process_is_wrong_alone() {
    let row = |text: &str, expected: &str| Row {
        line: 0,
        text: text.to_owned(),
        inputs: vec![("32".to_owned(), 7)],
        output: "32".to_owned(),
        expected: expected.to_owned(),
    };
    let open = || {
        let texts = ["mov.b32 D, A", "mov.b32 D, A", "trap; mov.b32 D, A", "mov.b32 D, A", "mov.b32 D, A"];
        let rows = texts.iter().map(|text| row(text, "7")).chain([row("mov.b32 D, A", "8"), row("mov.b32 D, A", "7")]);
        let Rows { names, mut run } = of_table(rows.collect());
        let run = move |index| if index == 4 { std::process::exit(3) } else { run(index) };
        Rows { names, run: Box::new(run) }
    };
    let test = "a_row_that_loses_the_context_or_ends_the_process_is_wrong_alone";
    let Some(verdicts) = verdicts(test, open) else { return };
    let (held, wrong, unknown) = summary(&verdicts);
    assert_eq!((held, wrong.len(), unknown), (4, 3, 0), "{verdicts:?}");
    assert!(wrong[0].starts_with("line 0: trap; mov.b32 D, A: "), "{verdicts:?}");
    assert!(wrong[1].starts_with("number 4 ended its process"), "{verdicts:?}");
    assert_eq!(wrong[2], "line 0: mov.b32 D, A gave 7, not 8");
}
