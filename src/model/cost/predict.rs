//! Phases, a chip and a way to seconds.

use super::counted::{Loop, staging};
use super::phases::{Behind, WARPS};
use super::{Chip, Phase, Program, Way};
use crate::shape::{Numerics, WeightType};

/// Warp-instructions that a multiprocessor issues per clock.
pub(super) const ISSUED: f64 = 4.0;
/// Cycles until a warp issues what depends on its instruction before.
const DEPENDENT: f64 = 4.0;
/// Kernels of llama.cpp's for a layer, and around the layers.
const LLAMA_CPP_NODES: [u32; 2] = [19, 6];
/// Bytes of the cache in flight in a multiprocessor while it attends, as `codegen/loops.txt` has them: a chunk's values of
/// two blocks in exact numerics, what eight warps have copied ahead in fast ones.
const ATTENTION_FLIGHT: f64 = 64000.0;
/// KB of Q4_K that a ring's bulk copies have under way: of each of seven warps the 32 records that the producer's `FLIGHT` says.
const RING_FLIGHT: f64 = 32.0;
/// Bytes of weights that a warp asks for before it waits for the launch before its own, where it begins early:
/// `codegen/src/blocks/dependent.rs`.
const AHEAD: f64 = 16384.0;
/// A warp's cycles of an access to shared or global memory of 16 bytes a lane, at 128 bytes per clock. All are taken to
/// be as wide.
const WIDE_ACCESS: f64 = 4.0;

/// What most of a token's time is spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bound {
    /// The bandwidth that reads reach.
    Bandwidth,
    /// Bytes in flight.
    Flight,
    /// A pipe of the multiprocessors, or their issue.
    Pipe(&'static str),
    /// Launches or barriers, the ramp behind them, and the exchange of vectors.
    Dependencies,
    /// Norms and rounding of the vector, in every block.
    Staging,
}

impl Bound {
    /// In a word or two.
    pub const fn name(self) -> &'static str {
        match self {
            Bound::Bandwidth => "bandwidth",
            Bound::Flight => "bytes in flight",
            Bound::Pipe(name) => name,
            Bound::Dependencies => "dependencies",
            Bound::Staging => "staging",
        }
    }
}

/// The modelled time of a token.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Prediction {
    /// Launches, nodes or barriers.
    pub hand_overs: u32,
    /// Barriers of the grid among them.
    pub barriers: u32,
    /// Seconds by what they are spent on.
    parts: Vec<(Bound, f64)>,
}

impl Prediction {
    /// Seconds of a token.
    pub fn seconds(&self) -> f64 {
        self.parts.iter().map(|part| part.1).sum()
    }

    /// Seconds spent on that.
    pub fn spent_on(&self, bound: Bound) -> f64 {
        self.parts.iter().filter(|part| part.0 == bound).map(|part| part.1).sum()
    }

    /// Seconds of work: all but dependencies and staging.
    pub fn work(&self) -> f64 {
        self.seconds() - self.spent_on(Bound::Dependencies) - self.spent_on(Bound::Staging)
    }

    /// What takes most of the time.
    pub fn bound(&self) -> Bound {
        self.parts.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(Bound::Bandwidth, |most| most.0)
    }

    fn add(&mut self, bound: Bound, seconds: f64) {
        match self.parts.iter_mut().find(|part| part.0 == bound) {
            Some(part) => part.1 += seconds,
            None => self.parts.push((bound, seconds)),
        }
    }
}

/// Bytes per second of reads with so many bytes in flight in a multiprocessor.
pub fn bandwidth(chip: &Chip, flight: f64) -> f64 {
    let littles = f64::from(chip.multiprocessors) * flight / (chip.latency.value * 1e-9);
    together(&[1.0 / (chip.read.value * 1e9), 1.0 / littles]).recip()
}

/// Times of resources that are busy side by side.
pub(super) fn together(times: &[f64]) -> f64 {
    times.iter().map(|time| time * time).sum::<f64>().sqrt()
}

/// The line that others drew through published times of 4-bit models: seconds for so many bytes.
pub fn trivial(bytes: u64, chip: &Chip) -> f64 {
    1.111 * bytes as f64 / (chip.peak.value * 1e9) + 3.58e-3 / chip.clock.value
}

/// The time of a token with these phases.
pub fn predict(phases: &[Phase], chip: &Chip, way: Way, program: Program) -> Prediction {
    let mut sum = Prediction::default();
    for phase in phases.iter().filter(|phase| phase.persistent || !way.is_resident()) {
        // llama.cpp's nodes are added below.
        if program == Program::LlamaCpp && !phase.is_product() && phase.bytes == 0 {
            continue;
        }
        add_phase(&mut sum, phase, chip, way, program);
    }
    if program == Program::LlamaCpp {
        let layers = phases.iter().filter(|phase| phase.name == "down").count() as u32;
        let [of_layer, around] = LLAMA_CPP_NODES;
        let more = (of_layer * layers + around).saturating_sub(sum.hand_overs);
        sum.hand_overs += more;
        sum.add(Bound::Dependencies, f64::from(more) * hand_over(chip, way));
    }
    sum
}

/// Seconds from a phase to the next where neither has anything to do.
fn hand_over(chip: &Chip, way: Way) -> f64 {
    1e-6 * match way {
        Way::Stream => chip.launch.value,
        Way::Graph => chip.node.value,
        Way::Persistent | Way::PersistentRing => chip.barrier.value,
    }
}

fn add_phase(sum: &mut Prediction, phase: &Phase, chip: &Chip, way: Way, program: Program) {
    let clock = chip.clock.value * 1e9;
    let multiprocessors = f64::from(chip.multiprocessors);
    let has_ring = way == Way::PersistentRing;
    let of_type = |ty| Loop::of(program, ty, chip.sm, way.is_resident(), has_ring);
    let (Some(q4_k), Some(q6_k)) = (of_type(WeightType::Q4_K), of_type(WeightType::Q6_K)) else { return };
    let beside = (q4_k.warps / f64::from(WARPS)).max(1.0);
    let most = chip.multiprocessors * beside as u32;
    let (blocks, part) = phase.shares(program, way.is_resident(), most, chip.multiprocessors);
    let beside = beside.min(f64::from(blocks.div_ceil(chip.multiprocessors)));

    let ramp = if phase.bytes > 0 { 2.0 * chip.latency.value * 1e-9 } else { chip.l2_latency.value * 1e-9 };
    // A trip to the L2 cache publishes an element, and the trip that finds it reads it.
    let behind = if has_ring { phase.behind } else { Behind::Barrier };
    let trip = chip.l2_latency.value * 1e-9;
    let hand_over = match behind {
        Behind::Barrier => hand_over(chip, way),
        Behind::Elements => trip,
    };
    let of_element = 4.0 + if phase.is_normalised { 4.0 } else { 0.0 };
    let exchange = match phase.staged {
        0 if behind == Behind::Elements => trip,
        0 => 0.0,
        staged => trip + f64::from(blocks) * f64::from(staged) * of_element / (chip.l2.value * 1e9),
    };
    // Of a warp each instruction depends on the one before.
    let issued = ISSUED.min(beside * f64::from(WARPS) / DEPENDENT);
    let staged = beside * f64::from(phase.staged) * staging(program, phase.is_normalised) / 32.0;
    let staging = staged / (issued * clock);
    let before = [(Bound::Dependencies, hand_over + ramp + exchange), (Bound::Staging, staging)];

    let weights = (phase.q4_k + phase.q6_k).max(1) as f64;
    let mean = |of: fn(&Loop) -> f64| (phase.q4_k as f64 * of(&q4_k) + phase.q6_k as f64 * of(&q6_k)) / weights;
    let flight = match (phase.is_product(), has_ring) {
        // Of what a ring by bulk copies has room for, the producer has so much under way.
        (_, true) if chip.sm >= 90 => 1e3 * chip.ring.value.min(RING_FLIGHT),
        (_, true) => 1e3 * chip.ring.value,
        (true, false) => mean(|of| of.flight),
        (false, false) => ATTENTION_FLIGHT,
    };
    let read = phase.bytes as f64 / (chip.read.value * 1e9);
    let littles = phase.bytes as f64 * part / flight * chip.latency.value * 1e-9;
    let (pipe, pipes) = busiest_pipe(phase, &q4_k, &q6_k, chip);
    let pipes = pipes * part / clock;
    let work = together(&[read, littles, pipes]);
    let of_work = [(Bound::Bandwidth, read), (Bound::Flight, littles), (Bound::Pipe(pipe), pipes)];
    let most = of_work.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(Bound::Bandwidth, |most| most.0);

    sum.hand_overs += 1;
    sum.barriers += u32::from(way.is_resident() && behind == Behind::Barrier);
    if !has_ring {
        before.into_iter().for_each(|(bound, seconds)| sum.add(bound, seconds));
        // Weights that were asked for arrive while the vector is fetched and rounded.
        let begins_early = !way.is_resident() && chip.sm >= 90 && program == Program::Kiln(Numerics::Fast);
        let ahead = if begins_early && phase.is_product() { AHEAD * f64::from(WARPS) * multiprocessors } else { 0.0 };
        let hidden = (ahead / (chip.read.value * 1e9)).min(exchange + staging).min(read);
        return sum.add(most, work - hidden);
    }
    // The ring fills while blocks wait and stage. What it cannot hold is waited for, and what it holds is still worked on.
    let waited: f64 = before.iter().map(|part| part.1).sum();
    let held = chip.ring.value * 1e3 * multiprocessors / (chip.read.value * 1e9);
    let (of_stream, of_block) = (work + (waited - held).max(0.0), waited + pipes);
    sum.add(most, work);
    let more = of_stream.max(of_block) - work;
    before.into_iter().for_each(|(bound, seconds)| sum.add(bound, more * seconds / waited));
}

/// The busiest pipe of a multiprocessor that would do the whole phase, and its cycles.
fn busiest_pipe(phase: &Phase, q4_k: &Loop, q6_k: &Loop, chip: &Chip) -> (&'static str, f64) {
    let of = |of: fn(&Loop) -> f64| (phase.q4_k as f64 * of(q4_k) + phase.q6_k as f64 * of(q6_k)) / 32.0;
    let (all, alu, heavy) = (of(|of| of.all) + phase.other as f64 / 32.0, of(|of| of.alu), of(|of| of.heavy));
    let (fma, half) = (of(|of| of.fma), of(|of| of.half));
    // Floats have 64 lanes with the integers' products up to sm_80, and 128 later, with halves.
    let (floats, halves) =
        if chip.sm <= 80 { ((fma + heavy) / 2.0, half / 2.0) } else { ((fma + heavy + half) / 4.0, 0.0) };
    [
        ("issue", all / ISSUED),
        ("alu", alu / 2.0),
        ("integer products", heavy / 2.0),
        ("floats", floats.max(halves)),
        ("conversions", of(|of| of.sixteen) * 2.0),
        ("shared memory", of(|of| of.memory) * WIDE_ACCESS),
    ]
    .into_iter()
    .max_by(|a, b| a.1.total_cmp(&b.1))
    .unwrap_or(("issue", 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cost::{CHIPS, Figure, Origin, chip, phases};
    use crate::shape::{ModelShape, presets};

    const FAST: Program = Program::Kiln(Numerics::Fast);

    fn preset(name: &str) -> ModelShape {
        presets::by_name(name).expect("a preset").shape
    }

    fn named(name: &str) -> Chip {
        *chip(name).expect("a chip")
    }

    fn figure(value: f64) -> Figure {
        Figure { value, origin: Origin::Guess("a test's") }
    }

    fn bytes(phases: &[Phase]) -> u64 {
        phases.iter().map(|phase| phase.bytes).sum()
    }

    fn everything(mut each: impl FnMut(&Chip, Way, Program)) {
        for chip in &CHIPS {
            for way in Way::ALL {
                Program::ALL.into_iter().for_each(|program| each(chip, way, program));
            }
        }
    }

    #[test]
    fn no_token_is_faster_than_its_bytes() {
        for name in ["qwen3b", "qwen3-8b"] {
            let phases = phases(&preset(name), 511, 2);
            everything(|chip, way, program| {
                let seconds = predict(&phases, chip, way, program).seconds();
                let least = bytes(&phases) as f64 / (chip.read.value * 1e9);
                assert!(seconds >= least, "{name}, {}, {}, {program:?}: {seconds}", chip.name, way.name());
                assert!(seconds < 30.0 * least, "{name}, {}, {}, {program:?}: {seconds}", chip.name, way.name());
            });
        }
    }

    #[test]
    fn nothing_better_makes_a_token_slower() {
        let [short, long] = [0, 2000].map(|position| phases(&preset("qwen3b"), position, 2));
        everything(|chip, way, program| {
            let seconds = |phases: &[Phase], chip: &Chip| predict(phases, chip, way, program).seconds();
            let before = seconds(&short, chip);
            assert!(seconds(&long, chip) > before, "{}: a longer cache", chip.name);
            let better = |what: &str, better: Chip| {
                let now = seconds(&short, &better);
                // Parts that cancel each other are rounded.
                let most = before * (1.0 + 1e-12);
                assert!(now <= most, "{}, {}, {program:?}, {what}: {now} after {before}", chip.name, way.name());
            };
            let (more, less) = (|of: Figure| figure(1.1 * of.value), |of: Figure| figure(0.9 * of.value));
            better("read", Chip { read: more(chip.read), ..*chip });
            better("clock", Chip { clock: more(chip.clock), ..*chip });
            better("latency", Chip { latency: less(chip.latency), ..*chip });
            better("L2 latency", Chip { l2_latency: less(chip.l2_latency), ..*chip });
            better("L2", Chip { l2: more(chip.l2), ..*chip });
            better("launch", Chip { launch: less(chip.launch), ..*chip });
            better("node", Chip { node: less(chip.node), ..*chip });
            better("barrier", Chip { barrier: less(chip.barrier), ..*chip });
        });
    }

    #[test]
    fn a_gigabyte_takes_a_millisecond_at_a_terabyte_a_second() {
        let free = figure(1e-6);
        let fast = figure(1e9);
        let chip = Chip {
            read: figure(1000.0),
            clock: fast,
            latency: free,
            l2_latency: free,
            l2: fast,
            barrier: free,
            ..named("H200")
        };
        let all = phases(&preset("qwen3-8b"), 0, 2);
        let seconds = predict(&all, &chip, Way::Persistent, FAST).seconds();
        assert!((seconds * 1e12 / bytes(&all) as f64 - 1.0).abs() < 1e-3, "{seconds}");
    }

    #[test]
    fn five_dependencies_a_layer_and_one_for_the_head() {
        let shape = preset("qwen3b");
        let all = phases(&shape, 500, 2);
        for way in [Way::Persistent, Way::PersistentRing] {
            assert_eq!(predict(&all, &CHIPS[0], way, FAST).hand_overs, 5 * shape.layers + 1);
        }
        let barriers = |way| predict(&all, &CHIPS[0], way, FAST).barriers;
        assert_eq!(barriers(Way::Persistent), 5 * shape.layers + 1);
        assert_eq!(barriers(Way::PersistentRing), 1);
        assert_eq!(barriers(Way::Graph), 0);
        assert_eq!(predict(&all, &CHIPS[0], Way::Stream, FAST).hand_overs, 6 * shape.layers + 3);
        assert_eq!(predict(&all, &CHIPS[0], Way::Graph, Program::LlamaCpp).hand_overs, 690);
    }

    #[test]
    fn a_ring_saves_waiting_and_no_more() {
        for name in ["qwen3b", "qwen3-8b"] {
            let all = phases(&preset(name), 511, 2);
            for chip in &CHIPS {
                let [without, with] =
                    [Way::Persistent, Way::PersistentRing].map(|way| predict(&all, chip, way, FAST).seconds());
                assert!(with < without, "{name}, {}: {with}, without a ring {without}", chip.name);
            }
        }
    }

    #[test]
    fn figures_in_the_documentation_are_the_models() {
        let row = |chip: &Chip| {
            let cell = |name: &str, way: Way| {
                let all = phases(&preset(name), 511, 2);
                let seconds = predict(&all, chip, way, FAST).seconds();
                let share = 100.0 * bytes(&all) as f64 / seconds / (chip.read.value * 1e9);
                format!(" {:.0}, {share:.0} % |", seconds.recip())
            };
            let cells = ["qwen3b", "qwen3-8b"].iter().flat_map(|name| Way::ALL.map(|way| cell(name, way)));
            format!("| {} |{}\n", chip.name, cells.collect::<String>())
        };
        let rows: String = CHIPS.iter().map(row).collect();
        assert!(
            include_str!("../../../docs/FIGURES.md").contains(&rows),
            "docs/FIGURES.md has other rows than\n{rows}"
        );
    }

    /// Whole models of 4 bits by llama.cpp: shares of the peak that this model and the trivial one give, and those
    /// published. Off is by how much a share is greater than the middle of what was published.
    #[test]
    fn whole_models_in_the_documentation_are_the_models() {
        let all = phases(&preset("qwen3-8b"), 511, 2);
        let (mut rows, mut errors) = (String::new(), [[0.0f64; 2]; 2]);
        let reached = || CHIPS.iter().filter_map(|chip| chip.reached.map(|reached| (chip, reached)));
        for (chip, (least, most)) in reached() {
            let seconds = [predict(&all, chip, Way::Graph, Program::LlamaCpp).seconds(), trivial(bytes(&all), chip)];
            let shares = seconds.map(|seconds| bytes(&all) as f64 / seconds / (chip.peak.value * 1e9));
            let off = shares.map(|share| 2.0 * share / (least + most) - 1.0);
            for ([mean, worst], off) in errors.iter_mut().zip(off) {
                *mean += 100.0 * off.abs() / reached().count() as f64;
                *worst = worst.max(100.0 * off.abs());
            }
            let cells: String = shares
                .iter()
                .zip(off)
                .map(|(share, off)| format!(" {:.0} %, {:+.0} % |", 100.0 * share, 100.0 * off))
                .collect();
            let published = match least == most {
                true => format!("{:.0} %", 100.0 * most),
                false => format!("{:.0}-{:.0} %", 100.0 * least, 100.0 * most),
            };
            rows += &format!("| {} |{cells} {published} |\n", chip.name);
        }
        let [model, line] = errors.map(|[mean, worst]| format!(" {mean:.0} % and {worst:.0} % |"));
        rows += &format!("| off in the mean, and most |{model}{line} |\n");
        assert!(
            include_str!("../../../docs/FIGURES.md").contains(&rows),
            "docs/FIGURES.md has other rows than\n{rows}"
        );
    }

    /// An H800 by bytes in flight with bulk copies, which take 105 cycles more than a load; its own greatest bandwidth.
    #[test]
    fn bandwidth_follows_published_bytes_in_flight() {
        let h800 = Chip { read: figure(1826.0), latency: figure((653.0 + 105.0) / 1.755), ..named("H100 PCIe") };
        let published = [(1, 223.0), (2, 430.0), (4, 815.0), (8, 1300.0), (12, 1510.0), (16, 1720.0), (24, 1811.0)];
        for (kilobytes, published) in published {
            let modelled = bandwidth(&h800, f64::from(kilobytes) * 1024.0) / 1e9;
            let error = modelled / published - 1.0;
            println!(
                "H800, {kilobytes} KB in flight: {modelled:.0} GB/s modelled, {published:.0} published, {:+.0} %",
                100.0 * error
            );
            // Below, latency alone counts, which whoever measured it had in other clocks.
            assert!(error.abs() < if kilobytes < 8 { 0.22 } else { 0.10 }, "{kilobytes} KB: {modelled}");
        }
    }

    /// Cold reads of an H100, in launches of their own: an empty kernel takes 1.24 us.
    #[test]
    fn a_launch_ramps_up_as_published() {
        let h100 = named("H100 SXM");
        for (megabytes, published) in [(4.19, 3.34), (8.39, 5.18), (16.78, 8.21), (33.55, 14.26)] {
            let modelled = 1.24 + 2.0 * h100.latency.value * 1e-3 + megabytes * 1e6 / bandwidth(&h100, 64e3) * 1e6;
            let error = modelled / published - 1.0;
            println!(
                "H100, {megabytes} MB cold: {modelled:.2} us modelled, {published} published, {:+.0} %",
                100.0 * error
            );
            assert!(error.abs() < 0.12, "{megabytes} MB: {modelled}");
        }
    }

    /// llama.cpp with what was counted of it, against the shares of the peak that were published for models of 4 bits;
    /// nothing was fitted to them.
    #[test]
    fn llama_cpp_comes_out_near_what_was_published() {
        let all = phases(&preset("qwen3-8b"), 127, 2);
        let (mut errors, mut points) = (0.0, 0.0);
        for chip in &CHIPS {
            let Some((least, most)) = chip.reached else { continue };
            let seconds = predict(&all, chip, Way::Graph, Program::LlamaCpp).seconds();
            let share = bytes(&all) as f64 / seconds / (chip.peak.value * 1e9);
            let error = share / share.clamp(least, most) - 1.0;
            println!(
                "{}: {share:.2} of the peak modelled, {least} to {most} published, {:+.0} %",
                chip.name,
                100.0 * error
            );
            assert!(error.abs() < 0.25, "{}: {share}", chip.name);
            errors += error.abs();
            points += 1.0;
        }
        println!("mean error of {points} chips: {:.0} %", 100.0 * errors / points);
        assert!(errors / points < 0.10);
    }
}
