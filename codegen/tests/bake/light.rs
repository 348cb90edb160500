//! Light text, which programs hold: the instructions of full text under other names, in less than half the bytes.

use kiln_codegen::bake::{DecoderPath, decoder, emit_as, general};
use kiln_codegen::ptx::Text;
use kiln_codegen::{Kernel, Numerics, Target};
use kiln_shape::{WeightType, presets};
use std::collections::{BTreeSet, HashMap};

fn target() -> Target {
    Target::new(90).expect("a target")
}

fn tiny(path: DecoderPath) -> Vec<Box<dyn Kernel>> {
    decoder(presets::by_name("tiny").expect("a preset").shape, WeightType::ALL, path, Numerics::Exact)
}

/// Full and light text of the same kernels.
fn texts(kernels: &[Box<dyn Kernel>]) -> [String; 2] {
    [Text::Full, Text::Light].map(|text| emit_as(target(), None, kernels, text).expect("valid").ptx)
}

/// A line of code: its opcode, the names in what it writes, and those in what it reads.
#[derive(Debug, Default)]
struct Line<'a> {
    opcode: &'a str,
    written: Vec<&'a str>,
    read: Vec<&'a str>,
    /// Everything that is no name of a register or label.
    rest: Vec<&'a str>,
    label: Option<&'a str>,
}

/// The bodies of a text's kernels, line by line, without what only tells where a line comes from.
fn bodies(text: &str) -> Vec<Vec<Line<'_>>> {
    let mut bodies: Vec<Vec<Line<'_>>> = Vec::new();
    let mut inside = false;
    for line in text.lines().map(str::trim) {
        match line {
            "{" => {
                inside = true;
                bodies.push(Vec::new());
            }
            "}" => inside = false,
            _ if !inside || [".loc", ".reg", ".shared", "//"].iter().any(|start| line.starts_with(start)) => {}
            _ => bodies.last_mut().expect("a body").push(parse(line)),
        }
    }
    bodies
}

fn parse(line: &str) -> Line<'_> {
    if let Some(label) = line.strip_suffix(':') {
        return Line { label: Some(label), ..Line::default() };
    }
    // The scope of a role's predicate.
    let line = line.strip_prefix("{ .reg .pred ").map_or(line, |rest| rest.split_once("; ").expect("a comparison").1);
    let (guard, line) = match line.strip_prefix('@') {
        Some(line) => line.split_once(' ').map(|(guard, line)| (Some(guard), line)).expect("an instruction"),
        None => (None, line),
    };
    let line = line.trim_end_matches(['}', ' ', ';']);
    let (opcode, operands) = line.split_once(' ').unwrap_or((line, ""));
    let mut parsed = Line { opcode, ..Line::default() };
    parsed.read.extend(guard.map(|guard| guard.trim_start_matches('!')));
    let writes = !["st", "red", "bar", "fence", "bra", "exit", "ret", "nanosleep"]
        .contains(&opcode.split('.').next().unwrap_or_default());
    // What is written stands first: a name, or names in braces.
    let first = match operands.find('}') {
        Some(end) if operands.starts_with('{') => end,
        _ => operands.find(',').unwrap_or(operands.len()),
    };
    for (at, word) in words(operands) {
        if opcode.starts_with("bra") {
            parsed.label = Some(word);
        } else if is_constant(word) {
            parsed.rest.push(word);
        } else if writes && at < first {
            parsed.written.push(word);
        } else {
            parsed.read.push(word);
        }
    }
    parsed
}

/// The words of operands, and where each begins.
fn words(operands: &str) -> impl Iterator<Item = (usize, &str)> {
    let between = |c: char| ", {}[]+".contains(c);
    operands
        .split(between)
        .map(|word| (word.as_ptr() as usize - operands.as_ptr() as usize, word))
        .filter(|(_, word)| !word.is_empty())
}

fn is_constant(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit() || c == '-') || word.contains('.') || word == "%globaltimer"
}

/// Walks both bodies together, loops twice, and holds every read of light text to the register that full text reads.
struct Walk<'a> {
    full: &'a [Line<'a>],
    light: &'a [Line<'a>],
    /// What each light name holds, by its name in full text.
    holds: HashMap<&'a str, &'a str>,
    /// Variables and parameters, which keep their names.
    fixed: HashMap<&'a str, &'a str>,
    /// The line of light text for each of full text: none for a move within a name.
    pairs: Vec<Option<usize>>,
}

/// The line of light text for each of full text. It has no move to a register that is named first there, from one that is
/// named last there.
fn pairs(full: &[Line<'_>], starts: &HashMap<&str, usize>) -> Vec<Option<usize>> {
    let mut spans: HashMap<&str, (usize, usize)> = HashMap::new();
    for (at, line) in full.iter().enumerate() {
        for name in line.read.iter().chain(&line.written) {
            spans.entry(name).or_insert((at, at)).1 = at;
        }
    }
    let back = |(end, line): (usize, &Line<'_>)| {
        let top = *starts.get(line.label.filter(|_| !line.opcode.is_empty())?)?;
        (top < end).then_some((top, end))
    };
    let loops: Vec<(usize, usize)> = full.iter().enumerate().filter_map(back).collect();
    let is_within = |(at, line): (usize, &Line<'_>)| {
        let ([to], [from]) = (line.written.as_slice(), line.read.as_slice()) else { return false };
        let ((first, last), (before, end)) = (spans[to], spans[from]);
        let outlives = loops.iter().any(|(top, end)| (top..end).contains(&&at) && before < *top);
        let named = full[before].written.contains(from) && !from.starts_with("%p");
        line.opcode.starts_with("mov.")
            && line.rest.is_empty()
            && named
            && first == at
            && end == at
            && last > at
            && !outlives
    };
    let mut next = 0..;
    full.iter().enumerate().map(|line| if is_within(line) { None } else { next.next() }).collect()
}

impl<'a> Walk<'a> {
    fn through(&mut self, from: usize, to: usize, starts: &HashMap<&'a str, usize>) {
        let mut at = from;
        while at < to {
            let full = &self.full[at];
            let Some(pair) = self.pairs[at] else {
                let held = self.holds.values_mut().find(|held| **held == full.read[0]);
                *held.unwrap_or_else(|| panic!("{full:?} moves what no name holds")) = full.written[0];
                at += 1;
                continue;
            };
            let light = &self.light[pair];
            assert_eq!(full.opcode, light.opcode);
            assert_eq!((full.written.len(), full.read.len()), (light.written.len(), light.read.len()), "{full:?}");
            for (constant, short) in full.rest.iter().zip(&light.rest) {
                let value = |word: &str| {
                    let of_float = || word.contains('.').then(|| word.parse().map(f32::to_bits).ok()).flatten();
                    let of_hex = || u32::from_str_radix(word.strip_prefix("0f")?, 16).ok();
                    let of_integer = || word.parse::<i64>().map(|value| value as u32).ok();
                    of_hex().or_else(of_float).or_else(of_integer).ok_or_else(|| word.to_owned())
                };
                assert!(constant == short || value(constant) == value(short), "{full:?} is {light:?}");
            }
            for (name, short) in full.read.iter().zip(&light.read) {
                match self.holds.get(short) {
                    Some(held) => assert_eq!(held, name, "{full:?} is {light:?}"),
                    None => assert_eq!(self.fixed.entry(short).or_insert(name), name, "{full:?} is {light:?}"),
                }
            }
            for (name, short) in full.written.iter().zip(&light.written) {
                self.holds.insert(short, name);
            }
            // A branch backwards, at the end of a loop that has not been walked twice.
            if let (false, Some(label)) = (full.opcode.is_empty(), full.label)
                && let Some(top) = starts.get(label).copied()
                && (from..at).contains(&top)
            {
                self.through(top + 1, at, starts);
            }
            at += 1;
        }
    }
}

#[test]
fn light_text_reads_the_registers_that_full_text_reads() {
    for kernels in [general(), tiny(DecoderPath::Stream), tiny(DecoderPath::Persistent)] {
        let [full, light] = texts(&kernels);
        let (full, light) = (bodies(&full), bodies(&light));
        assert_eq!(full.len(), kernels.len());
        assert_eq!(light.len(), kernels.len());
        let mut reused = 0;
        for (full, light) in full.iter().zip(&light) {
            let labels = full.iter().enumerate().filter(|(_, line)| line.opcode.is_empty());
            let starts: HashMap<&str, usize> = labels.filter_map(|(at, line)| Some((line.label?, at))).collect();
            let pairs = pairs(full, &starts);
            assert_eq!(pairs.iter().flatten().count(), light.len());
            let mut walk = Walk { full, light, holds: HashMap::new(), fixed: HashMap::new(), pairs };
            walk.through(0, full.len(), &starts);
            let written = full.iter().flat_map(|line| &line.written).collect::<BTreeSet<_>>();
            reused += written.len() - walk.holds.len();
        }
        assert!(reused > 0, "names are shared");
    }
}

#[test]
fn a_models_light_text_is_at_most_half_of_the_full_one() {
    let [mut full, mut light] = [0, 0];
    for path in DecoderPath::ALL {
        let texts = texts(&tiny(path));
        full += texts[0].lines().map(|line| line.trim_start().len() + 1).sum::<usize>();
        light += texts[1].len();
    }
    assert!(2 * light <= full, "{light} bytes of {full}");
}
