//! What the emulator's clock takes PTX for, against what NVIDIA's assembler made of the same loops.
//!
//! `codegen/loops.txt` has instructions of each loop whose kernel says its work, counted in SASS. The clock knows no
//! assembler: it folds instructions by a table. Both count the same text here. `docs/CLOCK.md` has
//! both by kernel, in a table that is held to what is counted; `KILN_BLESS=1` rewrites it.

use kiln_codegen::bake::{self, DecoderPath};
use kiln_codegen::ptx::Text;
use kiln_codegen::{Kernel, Numerics, Target};
use kiln_emulator::{Memory, Module};
use kiln_shape::presets;
use std::collections::BTreeMap;

/// Most that a loop may be off, as a share; small loops may be off by so many instructions.
const SHARE: f64 = 0.15;
const FEW: u64 = 3;
const TARGETS: [&str; 4] = ["sm_75", "sm_80", "sm_89", "sm_90"];

/// A module: its name, its path and numerics if it is a decoder's, its kernels.
type Named<'a> = (&'a str, Option<(DecoderPath, Numerics)>, Vec<Box<dyn Kernel>>);

/// SASS instructions of loops by kernel and name, of a module and target.
fn recorded(module: &str, target: &str) -> BTreeMap<(String, String), u64> {
    let rows = include_str!("../../codegen/loops.txt").lines().filter(|line| !line.starts_with('#'));
    let fields = rows.map(|row| row.split_whitespace().collect::<Vec<_>>());
    fields
        // Those that read the cache or logits the assembler unrolls by itself.
        .filter(|row| row[0] == module && row[3] == target && !row[2].starts_with("read"))
        .map(|row| ((row[1].to_owned(), row[2].to_owned()), row[6].parse().unwrap()))
        .collect()
}

/// Instructions of marked loops by kernel and name, as the clock folds them.
fn folded(text: &str) -> BTreeMap<(String, String), u64> {
    let module = Module::load(text, &Memory::new(1 << 30)).unwrap_or_else(|error| panic!("{error}"));
    let lines: Vec<&str> = text.lines().collect();
    let (mut found, mut kernel): (BTreeMap<_, Vec<(usize, u64)>>, _) = (BTreeMap::new(), "");
    // Loops on rare ways, which the gate leaves out of those around them.
    let mut rare = Vec::new();
    // Loops that go round so often in each iteration of those around them.
    let mut again: Vec<(String, std::ops::RangeInclusive<usize>, u64)> = Vec::new();
    let mut counts = Vec::new();
    let mut names: BTreeMap<String, u32> = BTreeMap::new();
    for (at, line) in lines.iter().enumerate() {
        if let Some(entry) = line.strip_prefix(".visible .entry ") {
            kernel = entry.trim_end_matches('(');
            counts = module.instructions(kernel);
            names.clear();
        }
        let Some(work) = line.trim().strip_prefix("// each iteration of a warp: ") else { continue };
        let label = lines[at - 1].trim().trim_end_matches(':');
        let end = lines[at..].iter().position(|line| *line == "}").unwrap() + at;
        let ends =
            |line: &&str| line.ends_with(&format!("bra {label};")) || line.ends_with(&format!("bra.uni {label};"));
        let end = at + lines[at..end].iter().rposition(ends).unwrap();
        // As `.ci/loop_gate.py` names them.
        let words: Vec<&str> = work.split([' ', ',']).collect();
        let mut name = match words[..] {
            [_, "weights", "of", of, "in", "shared", ..] => format!("{of}@shared"),
            [_, "weights", "of", of, ..] => of.to_owned(),
            [_, "products", "of", of, ..] => of.to_owned(),
            [_, "of", "few", ..] => {
                rare.push((kernel.to_owned(), at..=end));
                continue;
            }
            [_, "of", rounds, "rounds"] => {
                again.push((kernel.to_owned(), at..=end, rounds.parse().unwrap()));
                continue;
            }
            [_, "elements", kind, ..] => kind.to_owned(),
            _ => "elements".to_owned(),
        };
        let count = names.entry(name.clone()).or_default();
        *count += 1;
        if *count > 1 {
            name += &format!("/{count}");
        }
        let inside = counts.iter().filter(|(line, ..)| (at..=end).contains(&(*line as usize - 1)));
        let inside = inside.map(|(line, .., n)| (*line as usize - 1, u64::from(*n))).collect();
        found.insert((kernel.to_owned(), name), inside);
    }
    let common = |kernel: &str, instructions: Vec<(usize, u64)>| {
        let is_rare = |line: usize| rare.iter().any(|(of, lines)| of == kernel && lines.contains(&line));
        let rounds = |line: usize| {
            let around = again.iter().filter(|(of, lines, _)| of == kernel && lines.contains(&line));
            around.map(|(.., rounds)| rounds).product::<u64>()
        };
        instructions.into_iter().filter(|(line, _)| !is_rare(*line)).map(|(line, n)| rounds(line) * n).sum()
    };
    found.into_iter().map(|(key, inside)| (key.clone(), common(&key.0, inside))).collect()
}

#[test]
fn loops_fold_to_what_the_assembler_makes_of_them() {
    let model = presets::by_name("qwen3-8b").unwrap();
    let types: Vec<_> = model.types.iter().collect();
    let mut compared = 0;
    let mut wrong = String::new();
    let mut rows: BTreeMap<String, [Vec<(u64, u64)>; TARGETS.len()]> = BTreeMap::new();
    for (column, name) in TARGETS.into_iter().enumerate() {
        let target: Target = name.parse().unwrap();
        let decoder = |path, numerics| bake::decoder(model.shape, &types, path, numerics);
        let mut fast = decoder(DecoderPath::Stream, Numerics::Fast);
        fast.extend(bake::columns(model.shape, &types, target));
        let mut modules: Vec<Named<'_>> = vec![
            ("general", None, bake::general()),
            (
                "qwen3-8b.stream",
                Some((DecoderPath::Stream, Numerics::Exact)),
                decoder(DecoderPath::Stream, Numerics::Exact),
            ),
            ("qwen3-8b.stream_fast", Some((DecoderPath::Stream, Numerics::Fast)), fast),
        ];
        // Recorded of one target.
        if name == "sm_90" {
            for (module, numerics) in
                [("qwen3-8b.persistent", Numerics::Exact), ("qwen3-8b.persistent_fast", Numerics::Fast)]
            {
                let path = DecoderPath::Persistent;
                modules.push((module, Some((path, numerics)), decoder(path, numerics)));
            }
        }
        for (module, decoder, kernels) in modules {
            let found = folded(&bake::emit_as(target, decoder, &kernels, Text::default()).unwrap().ptx);
            for (key, sass) in recorded(module, name) {
                let Some(&clock) = found.get(&key) else { panic!("{module} {name}: {key:?} is not in the text") };
                compared += 1;
                let row = format!("{module} {}", key.0);
                rows.entry(row).or_default()[column].push((sass, clock));
                if clock.abs_diff(sass) as f64 > (SHARE * sass as f64).max(FEW as f64) {
                    wrong += &format!("\n{module} {name} {} {}: {clock} for {sass}", key.0, key.1);
                }
            }
        }
    }
    assert!(compared > 250, "{compared} loops");
    assert!(wrong.is_empty(), "of {compared} loops these are off:{wrong}");
    hold("folding", &table(&rows));
}

/// A kernel's loops: how many, their instructions in SASS and by the clock, how far off they are in the mean, the worst.
fn cell(loops: &[(u64, u64)]) -> String {
    if loops.is_empty() {
        return "none".to_owned();
    }
    let sum = |of: fn(&(u64, u64)) -> u64| loops.iter().map(of).sum::<u64>();
    let off = || loops.iter().map(|&(sass, clock)| 100.0 * clock.abs_diff(sass) as f64 / sass as f64);
    let (count, mean, worst) = (loops.len(), off().sum::<f64>() / loops.len() as f64, off().fold(0.0, f64::max));
    format!("{count}: {}, {}, {mean:.0} %, {worst:.0} %", sum(|pair| pair.0), sum(|pair| pair.1))
}

fn table(rows: &BTreeMap<String, [Vec<(u64, u64)>; TARGETS.len()]>) -> String {
    let mut text = format!("| kernel | {} |\n|{}\n", TARGETS.join(" | "), "---|".repeat(TARGETS.len() + 1));
    let all =
        std::array::from_fn::<_, { TARGETS.len() }, _>(|i| rows.values().flat_map(|row| row[i].clone()).collect());
    for (kernel, columns) in rows.iter().chain([(&"all".to_owned(), &all)]) {
        let cells: Vec<String> = columns.iter().map(|loops| cell(loops)).collect();
        text += &format!("| {kernel} | {} |\n", cells.join(" | "));
    }
    text
}

/// Holds the page's table of that name to `found`.
pub(crate) fn hold(name: &str, found: &str) {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/CLOCK.md");
    let text = std::fs::read_to_string(page).unwrap();
    let begin = format!("<!-- {name} -->\n");
    let (before, rest) = text.split_once(&begin).unwrap();
    let (known, after) = rest.split_once("<!-- end -->").unwrap();
    if std::env::var_os("KILN_BLESS").is_some() {
        std::fs::write(page, format!("{before}{begin}{found}<!-- end -->{after}")).unwrap();
        return;
    }
    assert_eq!(known, found, "KILN_BLESS=1 rewrites the table");
}
