//! Kernels that other people wrote, with all checks, against references in float64 and [`expected.txt`](expected.txt):
//! see the README beside this file.
//!
//! ```text
//! cargo run --release -p kiln-emulator --example foreign -- FOLDER [SET]... [--verbose]
//! ```

mod calm;
mod llama;
mod llmc;
mod rig;
mod samples;

use kiln_emulator::Schedule;
use rig::{Res, Rig};
use std::collections::BTreeSet;
use std::path::Path;

/// A kernel's name, the text it is in, and a run that compares its results.
type Case = (&'static str, &'static str, fn(&Rig) -> Res<()>);

const SETS: [(&str, &[Case]); 4] =
    [("samples", samples::CASES), ("calm", calm::CASES), ("llmc", llmc::CASES), ("llama", llama::CASES)];

/// What is found of a kernel whose results are not those of its reference.
const WRONG: &str = "WrongResult";

/// Runs a kernel under two schedules. Returns what was found.
fn run(folder: &Path, (kernel, text, case): Case, verbose: bool) -> Res<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for schedule in [Schedule::RoundRobin, Schedule::Adversarial] {
        let rig = Rig::new(&folder.join(format!("{text}.ptx")), schedule)?;
        if let Err(error) = case(&rig) {
            println!("{kernel}, {schedule:?}: {error}");
            found.insert(WRONG.to_owned());
        }
        if verbose {
            print!("{}", rig.memory.findings());
        }
        found.extend(rig.found());
    }
    Ok(found)
}

/// Expected findings of a kernel; an indented line is the reason of what stands above it.
fn expected(set: &str, kernel: &str) -> BTreeSet<String> {
    let lines = include_str!("expected.txt").lines().filter(|line| !line.starts_with(['#', ' ']));
    lines.filter_map(|line| line.strip_prefix(&format!("{set} {kernel} ")).map(str::to_owned)).collect()
}

fn main() -> Res<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let verbose =
        arguments.iter().position(|argument| argument == "--verbose").map(|at| arguments.remove(at)).is_some();
    let (folder, chosen) = arguments.split_first().ok_or("give the folder that compile.py made")?;
    let mut fine = true;
    for (set, cases) in SETS.into_iter().filter(|set| chosen.is_empty() || chosen.iter().any(|name| name == set.0)) {
        for &case in cases {
            let found = run(&Path::new(&folder).join(set), case, verbose)?;
            let expected = expected(set, case.0);
            let right = if found.contains(WRONG) { "wrong" } else { "right" };
            println!(
                "{set} {}: {right}, findings at {} lines",
                case.0,
                found.iter().filter(|&line| line != WRONG).count()
            );
            found.difference(&expected).for_each(|finding| println!("  not expected: {set} {} {finding}", case.0));
            expected.difference(&found).for_each(|finding| println!("  missing: {set} {} {finding}", case.0));
            fine &= found == expected;
        }
    }
    if fine { Ok(()) } else { Err("not as expected".into()) }
}
