//! What the emulator's clock takes PTX for, against what NVIDIA's assembler made of it: every basic block of every kernel of
//! qwen3-8b, whether its loops say their work or not.
//!
//! `codegen/basic_blocks.txt` has instructions of each block by pipe, counted in SASS (`.ci/basic_blocks.py`). The clock
//! folds the same text by a table. `docs/CLOCK.md` has both by kernel and by class, in a table that is held to what is
//! counted; `KILN_BLESS=1` rewrites it.

use crate::folding::hold;
use kiln_codegen::bake::{self, DecoderPath};
use kiln_codegen::ptx::Text;
use kiln_codegen::{Numerics, Target};
use kiln_emulator::{Memory, Module};
use kiln_shape::presets;
use std::collections::{BTreeMap, BTreeSet};

/// Most that a kernel's work may be off, as a share; small kernels may be off by so many instructions.
const SHARE: f64 = 0.15;
const FEW: f64 = 3.0;
const TARGETS: [&str; 3] = ["sm_75", "sm_80", "sm_90"];
const MODULES: [(&str, DecoderPath, Numerics); 4] = [
    ("qwen3-8b.stream", DecoderPath::Stream, Numerics::Exact),
    ("qwen3-8b.stream_fast", DecoderPath::Stream, Numerics::Fast),
    ("qwen3-8b.persistent", DecoderPath::Persistent, Numerics::Exact),
    ("qwen3-8b.persistent_fast", DecoderPath::Persistent, Numerics::Fast),
];
/// The first five are a kernel's work. Of moves between registers and of what branches take besides, PTX says nothing.
const CLASSES: [&str; 7] = ["integers", "floats", "sixteen lanes", "memory", "tensor cores", "control", "moves"];

const WORK: usize = 5;

/// Instructions of a block, or of more, by class.
type Counts = [f64; CLASSES.len()];

/// The class of a pipe, by its name in SASS or in the clock.
fn class(pipe: &str) -> Option<usize> {
    Some(match pipe {
        "alu" | "heavy" | "uniform" => 0,
        "fma" | "half" | "double" => 1,
        "sixteen" => 2,
        "shared" | "global" | "memory" => 3,
        "tensor" => 4,
        "control" => 5,
        "moves" => 6,
        "folded" => return None,
        _ => panic!("no pipe {pipe}"),
    })
}

/// Instructions of SASS by module, kernel, target and block; of a block that was copied those of one copy.
fn recorded() -> BTreeMap<[String; 3], BTreeMap<u32, Counts>> {
    let mut found: BTreeMap<_, BTreeMap<u32, Counts>> = BTreeMap::new();
    let mut key: [String; 3] = Default::default();
    for line in include_str!("../../codegen/basic_blocks.txt").lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        if !line.starts_with(|first: char| first.is_ascii_digit()) {
            key = std::array::from_fn(|i| words[i].to_owned());
            continue;
        }
        let (block, copies) = words[0].split_once('x').unwrap_or((words[0], "1"));
        let copies: f64 = copies.parse().unwrap();
        let counts = found.entry(key.clone()).or_default().entry(block.parse().unwrap()).or_default();
        for pair in words[1..].chunks(2) {
            counts[class(pair[0]).unwrap()] += pair[1].parse::<f64>().unwrap() / copies;
        }
    }
    found
}

/// The basic block of each line of a module's text, as `.ci/basic_blocks.py` numbers them.
fn blocks(text: &str) -> Vec<Option<u32>> {
    const ENDS: [&str; 6] = ["bra", "brx", "call", "exit", "ret", "trap"];
    let (mut number, mut opens) = (0, true);
    let block = |line: &str| {
        let line = line.trim();
        if line == "{" {
            (number, opens) = (0, true);
        }
        if line.is_empty() || line.ends_with(':') || line.starts_with(['.', '{', '}']) || line.starts_with("//") {
            opens |= line.ends_with(':');
            return None;
        }
        number += u32::from(opens);
        opens = line.split_whitespace().any(|word| ENDS.contains(&word.split(['.', ';']).next().unwrap()));
        Some(number)
    };
    text.lines().map(block).collect()
}

/// Instructions of a module's kernels by block, as the clock folds them.
fn folded(text: &str) -> BTreeMap<String, BTreeMap<u32, Counts>> {
    let module = Module::load(text, &Memory::new(1 << 30)).unwrap_or_else(|error| panic!("{error}"));
    let blocks = blocks(text);
    let of = |kernel: &str| {
        let mut found: BTreeMap<u32, Counts> = BTreeMap::new();
        for (line, pipe, count) in module.instructions(kernel) {
            if let (Some(block), Some(class)) = (blocks[line as usize - 1], class(pipe)) {
                found.entry(block).or_default()[class] += f64::from(count);
            }
        }
        found
    };
    module.kernel_names().map(|kernel| (kernel.to_owned(), of(kernel))).collect()
}

/// What of a kernel, or of a class, both count, and how much of it lies in blocks that are close.
#[derive(Default, Clone, Copy)]
struct Compared {
    blocks: usize,
    sass: f64,
    clock: f64,
    close: f64,
}

fn close(sass: f64, clock: f64) -> bool {
    (sass - clock).abs() <= (SHARE * sass).max(FEW)
}

impl Compared {
    fn add(&mut self, sass: f64, clock: f64) {
        self.blocks += 1;
        self.sass += sass;
        self.clock += clock;
        self.close += if close(sass, clock) { sass } else { 0.0 };
    }

    fn cell(&self) -> String {
        if self.blocks == 0 {
            return "none".to_owned();
        }
        let [off, close] = [self.clock / self.sass - 1.0, self.close / self.sass].map(|share| 100.0 * share);
        format!("{}: {:.0}, {:.0}, {off:+.0} %, {close:.0} %", self.blocks, self.sass, self.clock)
    }
}

#[test]
fn every_kernel_folds_to_what_the_assembler_makes_of_its_blocks() {
    let model = presets::by_name("qwen3-8b").unwrap();
    let types: Vec<_> = model.types.iter().collect();
    let mut recorded = recorded();
    let mut rows: BTreeMap<String, [Compared; TARGETS.len()]> = BTreeMap::new();
    let mut wrong = String::new();
    let mut by_class = [[Compared::default(); TARGETS.len()]; CLASSES.len()];
    for (column, name) in TARGETS.into_iter().enumerate() {
        let target: Target = name.parse().unwrap();
        for (module, path, numerics) in MODULES {
            let mut kernels = bake::decoder(model.shape, &types, path, numerics);
            if (path, numerics) == (DecoderPath::Stream, Numerics::Fast) {
                kernels.extend(bake::columns(model.shape, &types, target));
            }
            let text = bake::emit_as(target, Some((path, numerics)), &kernels, Text::default()).unwrap().ptx;
            for (kernel, clock) in folded(&text) {
                let sass = recorded.remove(&[module, &kernel, name].map(str::to_owned));
                let sass = sass.unwrap_or_else(|| panic!("{module} {kernel} {name} is not recorded"));
                let row =
                    &mut rows.entry(format!("{} {kernel}", module.split_once('.').unwrap().1)).or_default()[column];
                let all: BTreeSet<u32> = sass.keys().chain(clock.keys()).copied().collect();
                for block in all {
                    let of = |counts: &BTreeMap<u32, Counts>| counts.get(&block).copied().unwrap_or_default();
                    let (sass, clock) = (of(&sass), of(&clock));
                    row.add(sass[..WORK].iter().sum(), clock[..WORK].iter().sum());
                    for class in 0..CLASSES.len() {
                        by_class[class][column].add(sass[class], clock[class]);
                    }
                }
                if !close(row.sass, row.clock) {
                    wrong += &format!("\n{module} {kernel} {name}: {} for {}", row.clock, row.sass);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "these are off:{wrong}");
    assert!(recorded.is_empty(), "recorded, but not in the text: {:?}", recorded.keys());
    let mut text = format!("| kernel or class | {} |\n|{}\n", TARGETS.join(" | "), "---|".repeat(TARGETS.len() + 1));
    let mut row = |name: &str, columns: &[Compared]| {
        let cells: Vec<String> = columns.iter().map(Compared::cell).collect();
        text += &format!("| {name} | {} |\n", cells.join(" | "));
    };
    rows.iter().for_each(|(kernel, columns)| row(kernel, columns));
    CLASSES.iter().zip(&by_class).for_each(|(class, columns)| row(&format!("all, {class}"), columns));
    hold("basic blocks", &text);
}
