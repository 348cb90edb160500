//! Loops over weights as NVIDIA's assembler makes them: instructions by pipe and bytes in flight, copied from
//! `codegen/loops.txt`. A test holds them to it.

use super::Program;
use crate::model::tiles::Tile;
use crate::shape::{Numerics, WeightType};

/// What a loop takes for a weight, in thread-instructions, and what it has in flight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loop {
    /// Of all kinds.
    pub all: f64,
    /// Integers and logic.
    pub alu: f64,
    /// Products of integers.
    pub heavy: f64,
    /// f32.
    pub fma: f64,
    /// f16.
    pub half: f64,
    /// Conversions and exchanges between lanes.
    pub sixteen: f64,
    /// Accesses to shared and to global memory.
    pub memory: f64,
    /// Resident warps of a multiprocessor.
    pub warps: f64,
    /// Bytes of weights in flight in a multiprocessor.
    pub flight: f64,
}

/// The programs whose loops were counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Text {
    Exact,
    /// The persistent decoder in exact numerics, which has fewer warps; counted for sm_90 only.
    ExactResident,
    Fast,
    /// What of the fast loop is left where weights already are in shared memory.
    FastShared,
    /// The loop of the persistent decoder with its ring; counted for sm_90 only.
    Ring,
}

use Text::{Exact, ExactResident, Fast, FastShared, Ring};
use WeightType::{Q4_K, Q6_K};

/// A type's loop for a target: weights of a warp's iteration; its instructions, of all kinds and those of alu, heavy, fma,
/// half, sixteen, shared and global; resident warps; KB in flight.
type Row = (Text, WeightType, u32, [u32; 9], u32, f64);

#[rustfmt::skip]
const LOOPS: &[Row] = &[
    (Exact, Q4_K, 75, [2048, 328, 73, 2, 162, 68, 8, 8, 6], 16, 36.9),
    (Exact, Q4_K, 80, [2048, 329, 73, 2, 162, 68, 8, 8, 6], 16, 36.9),
    (Exact, Q4_K, 89, [2048, 329, 73, 2, 162, 68, 8, 8, 6], 16, 36.9),
    (Exact, Q4_K, 90, [2048, 328, 73, 2, 162, 68, 8, 8, 6], 16, 36.9),
    (Exact, Q6_K, 75, [2048, 358, 167, 4, 156, 2, 4, 8, 12], 16, 53.8),
    (Exact, Q6_K, 80, [2048, 359, 169, 5, 156, 3, 4, 8, 12], 16, 53.8),
    (Exact, Q6_K, 89, [2048, 359, 174, 5, 156, 2, 0, 8, 12], 16, 53.8),
    (Exact, Q6_K, 90, [2048, 358, 175, 3, 156, 3, 0, 8, 12], 16, 53.8),
    (ExactResident, Q4_K, 90, [2048, 328, 67, 8, 162, 68, 8, 8, 6], 8, 18.4),
    (ExactResident, Q6_K, 90, [2048, 358, 154, 25, 156, 2, 0, 8, 12], 8, 26.9),
    (Fast, Q4_K, 75, [8192, 203, 87, 78, 4, 2, 2, 18, 9], 8, 36.9),
    (Fast, Q4_K, 80, [8192, 256, 104, 88, 4, 3, 2, 38, 9], 8, 36.9),
    (Fast, Q4_K, 89, [8192, 256, 107, 88, 4, 2, 0, 38, 9], 8, 36.9),
    (Fast, Q4_K, 90, [8192, 257, 108, 87, 4, 3, 0, 38, 9], 8, 36.9),
    (Fast, Q6_K, 75, [8192, 362, 161, 160, 3, 1, 1, 19, 14], 8, 26.9),
    (Fast, Q6_K, 80, [8192, 432, 183, 173, 3, 2, 1, 47, 14], 8, 53.8),
    (Fast, Q6_K, 89, [8192, 432, 185, 173, 3, 1, 0, 47, 14], 8, 53.8),
    (Fast, Q6_K, 90, [8192, 432, 183, 176, 3, 1, 0, 47, 14], 8, 53.8),
    (FastShared, Q4_K, 80, [8192, 202, 86, 78, 4, 2, 2, 27, 0], 8, 0.0),
    (FastShared, Q4_K, 89, [8192, 202, 88, 78, 4, 2, 0, 27, 0], 8, 0.0),
    (FastShared, Q4_K, 90, [8192, 202, 88, 78, 4, 2, 0, 27, 0], 8, 0.0),
    (FastShared, Q6_K, 80, [8192, 361, 157, 163, 3, 1, 1, 32, 0], 8, 0.0),
    (FastShared, Q6_K, 89, [8192, 361, 158, 163, 3, 1, 0, 32, 0], 8, 0.0),
    (FastShared, Q6_K, 90, [8192, 360, 155, 166, 3, 1, 0, 32, 0], 8, 0.0),
    (Ring, Q4_K, 90, [8192, 268, 120, 98, 5, 2, 0, 30, 0], 8, 161.0),
    (Ring, Q6_K, 90, [8192, 434, 184, 194, 4, 2, 0, 36, 0], 8, 0.0),
];

/// llama.cpp's: instructions of all kinds by reading its code, others not told apart; 13.5 KB in flight.
const LLAMA_CPP: Loop = Loop {
    all: 4.94,
    alu: 0.0,
    heavy: 0.0,
    fma: 0.0,
    half: 0.0,
    sixteen: 0.0,
    memory: 0.0,
    warps: 16.0,
    flight: 13.5e3,
};

impl Loop {
    fn new((_, _, _, [units, counts @ ..], warps, kilobytes): &Row) -> Loop {
        let [all, alu, heavy, fma, half, sixteen, shared, global] =
            counts.map(|count| 32.0 * f64::from(count) / f64::from(*units));
        let memory = shared + global;
        Loop { all, alu, heavy, fma, half, sixteen, memory, warps: f64::from(*warps), flight: 1e3 * kilobytes }
    }

    /// The loop of a program over weights of a type, Q4_K or Q6_K, on a chip of compute capability `sm`. With a ring its
    /// weights come from shared memory, and what is in flight is the ring's.
    pub fn of(program: Program, ty: WeightType, sm: u32, is_resident: bool, has_ring: bool) -> Option<Loop> {
        let text = match program {
            Program::LlamaCpp if ty == Q6_K => return Some(Loop { all: 9.1, ..LLAMA_CPP }),
            Program::LlamaCpp => return Some(LLAMA_CPP),
            Program::Kiln(Numerics::Exact) => Exact,
            // On sm_75 weights come from global memory in any case.
            Program::Kiln(Numerics::Fast) if has_ring && sm > 75 => FastShared,
            Program::Kiln(Numerics::Fast) => Fast,
        };
        // Of chips whose multiprocessors are alike one was counted.
        let target = match sm {
            75 => 75,
            80 => 80,
            90 => 90,
            _ => 89,
        };
        let row = |text, target| LOOPS.iter().find(|row| (row.0, row.1, row.2) == (text, ty, target)).map(Loop::new);
        let found = row(text, target)?;
        Some(match text {
            Exact if is_resident => {
                let Loop { warps, flight, .. } = row(ExactResident, 90)?;
                Loop { warps, flight, ..found }
            }
            // What the ring takes besides.
            FastShared => found.with(&row(Ring, 90)?, &row(FastShared, 90)?),
            Exact | ExactResident | Fast | Ring => found,
        })
    }

    /// The loop with the instructions that `more` has beyond `less`.
    fn with(&self, more: &Loop, less: &Loop) -> Loop {
        let add = |of: fn(&Loop) -> f64| of(self) + of(more) - of(less);
        Loop {
            all: add(|of| of.all),
            alu: add(|of| of.alu),
            heavy: add(|of| of.heavy),
            fma: add(|of| of.fma),
            half: add(|of| of.half),
            sixteen: add(|of| of.sixteen),
            memory: add(|of| of.memory),
            ..*self
        }
    }
}

/// A tile's type of weights, and its instructions by target.
type OfTile = (&'static str, WeightType, &'static [(u32, f64)]);

/// Tiles of many columns: instructions of a warp for each `m16n8k32`, by kernel, type and target. Within 2 % of those
/// recorded.
const TILES: [OfTile; 14] = [
    ("gemm_8", Q4_K, &[(80, 29.6), (89, 29.6), (90, 30.1)]),
    ("gemm_8", Q6_K, &[(80, 44.0), (89, 44.0), (90, 44.3)]),
    ("gemm_16", Q4_K, &[(75, 22.6), (80, 20.8), (89, 20.8), (90, 20.9)]),
    ("gemm_16", Q6_K, &[(75, 30.6), (80, 29.8), (89, 29.8), (90, 29.9)]),
    ("gemm_sliced", Q4_K, &[(80, 11.5), (89, 11.1), (90, 11.1)]),
    ("gemm_sliced", Q6_K, &[(80, 16.9), (89, 16.6), (90, 16.8)]),
    ("gemm_sliced_2", Q4_K, &[(80, 13.5), (89, 13.5), (90, 13.8)]),
    ("gemm_sliced_2", Q6_K, &[(80, 20.9), (89, 20.9), (90, 20.9)]),
    ("gemm_tile", Q4_K, &[(75, 16.2)]),
    ("gemm_tile", Q6_K, &[(75, 23.8)]),
    ("gemm_tile_128", Q4_K, &[(80, 10.3), (89, 10.3), (90, 10.3)]),
    ("gemm_tile_128", Q6_K, &[(80, 15.9), (89, 15.8), (90, 15.9)]),
    ("gemm_warpgroups", Q4_K, &[(90, 6.6)]),
    ("gemm_warpgroups", Q6_K, &[(90, 7.9)]),
];

/// The loop of a tile of many columns.
pub(super) struct TileLoop;

impl TileLoop {
    /// Instructions of a warp for each `m16n8k32` of a product with weights of a type, Q4_K or Q6_K, on a chip of compute
    /// capability `sm`; not a number where the chip lacks the tile.
    pub(super) fn of(tile: Tile, ty: WeightType, sm: u32) -> f64 {
        let target = if [75, 80, 90].contains(&sm) { sm } else { 89 };
        let rows = TILES.iter().filter(|(of, known, _)| *of == tile.kernel() && *known == ty);
        let mut counts = rows.flat_map(|(.., counts)| *counts);
        counts.find(|(of, _)| *of == target).map_or(f64::NAN, |(_, count)| *count)
    }
}

/// Thread-instructions for an element of a vector that a block stages.
pub(super) fn staging(program: Program, is_normalised: bool) -> f64 {
    match program {
        // Kernels of its own quantise it.
        Program::LlamaCpp => 0.0,
        Program::Kiln(Numerics::Exact) if is_normalised => EXACT_STAGING[0],
        Program::Kiln(Numerics::Exact) => EXACT_STAGING[1],
        Program::Kiln(Numerics::Fast) => FAST_STAGING,
    }
}

/// In exact numerics at sm_90, with a norm and without; on other targets they differ by less than 5 %.
const EXACT_STAGING: [f64; 2] = [5.625, 1.375];
/// The same in fast numerics at sm_90 for Q4_K, without the second plane, which few super-blocks have. What is not normalised
/// is multiplied with 1 and squared all the same.
const FAST_STAGING: f64 = 10.688;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tiles;

    const RECORDED: &str = include_str!("../../../codegen/loops.txt");

    fn recorded(module: &str, kernel: &str, name: &str, target: u32) -> Vec<&'static str> {
        // Of a chip's own kernels.
        let own = if kernel == "gemm_warpgroups" { "a" } else { "" };
        let target = format!("sm_{target}{own}");
        let key = [module, kernel, name, &target];
        let mut rows = RECORDED.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.find(|cells| cells.starts_with(&key)).unwrap_or_else(|| panic!("no loop {key:?}"))
    }

    #[test]
    fn loops_are_those_recorded_of_the_assembler() {
        let mut rows = String::new();
        for (text, module, kernel, targets) in [
            (Exact, "qwen3-8b.stream", "rmsnorm_gate_up_swiglu", &[75, 80, 89, 90][..]),
            (ExactResident, "qwen3-8b.persistent", "persistent_decoder", &[90]),
            (Fast, "qwen3-8b.stream_fast", "products", &[75, 80, 89, 90]),
            (FastShared, "qwen3-8b.stream_fast", "products", &[80, 89, 90]),
            (Ring, "qwen3-8b.persistent_fast", "persistent_decoder", &[90]),
        ] {
            for (ty, target) in [Q4_K, Q6_K].into_iter().flat_map(|ty| targets.iter().map(move |target| (ty, *target)))
            {
                let suffix = if text == FastShared { "@shared" } else { "" };
                let cells = recorded(module, kernel, &format!("{ty}{suffix}"), target);
                let counts = cells[5..14].join(", ");
                let [.., warps, _, kilobytes] = cells[..] else { panic!("{cells:?}") };
                let kilobytes = if kilobytes == "-" { "0.0" } else { kilobytes };
                rows += &format!("    ({text:?}, {ty}, {target}, [{counts}], {warps}, {kilobytes}),\n");
            }
        }
        let own = include_str!("counted.rs");
        assert!(
            own.contains(&format!("&[\n{rows}];")),
            "codegen/loops.txt has other loops; these are its rows:\n{rows}"
        );
    }

    /// Instructions of a warp for each product of a tile.
    fn of_a_product(kernel: &str, ty: WeightType, target: u32) -> f64 {
        let cells = recorded("qwen3-8b.stream_fast", kernel, &ty.to_string(), target);
        let [units, all] = [5, 6].map(|cell| cells[cell].parse::<f64>().expect("a number"));
        // Of a warp's iteration 4096 weights meet an eight of columns, or two; or units are products of 32 lanes.
        let products = match kernel {
            "gemm_8" => units / 512.0,
            "gemm_16" => units * 2.0 / 512.0,
            _ => units / 32.0,
        };
        all / products
    }

    #[test]
    fn tiles_are_those_recorded_of_the_assembler() {
        for (kernel, ty, counts) in TILES {
            for &(target, expected) in counts {
                let found = of_a_product(kernel, ty, target);
                assert!((found / expected - 1.0).abs() < 0.02, "{kernel}, {ty}, sm_{target}: {found}");
            }
        }
    }

    /// What the choice of tiles goes by. sm_90 has no large tiles, and those of warpgroups are chosen for what the clock says.
    #[test]
    fn tiles_are_chosen_by_what_the_assembler_makes_of_them() {
        let costs =
            tiles::COST.into_iter().filter(|(tile, _)| matches!(tile, Tile::Narrow | Tile::Wide | Tile::Double));
        let costs = costs.map(|(tile, cost)| (tile.kernel(), cost));
        let sliced = [("gemm_sliced", tiles::SLICED), ("gemm_sliced_2", tiles::SLICED * tiles::HALVED)];
        for (kernel, cost) in costs.chain(sliced) {
            let found = of_a_product(kernel, Q4_K, 90);
            assert!((found / cost - 1.0).abs() < 0.02, "{kernel}: {found}, and {cost} is what tiles are chosen by");
        }
    }

    #[test]
    fn staging_is_that_recorded_of_the_assembler() {
        for (kernel, expected) in [("rmsnorm_gate_up_swiglu", EXACT_STAGING[0]), ("down_residual", EXACT_STAGING[1])] {
            for target in [75, 80, 89, 90] {
                let cells = recorded("qwen3-8b.stream", kernel, "elements", target);
                // From the end: each, warps, waits, KB.
                let each: f64 = cells[cells.len() - 4].parse().expect("a number");
                assert!((each / expected - 1.0).abs() < 0.05, "{kernel}, sm_{target}: {each}");
                assert!(target != 90 || each == expected, "{kernel}: {each}");
            }
        }
        let cells = recorded("Q4_K.stream_fast", "products", "rounded", 90);
        assert_eq!(cells[cells.len() - 4].parse(), Ok(FAST_STAGING));
    }

    #[test]
    fn every_program_has_loops_on_every_chip() {
        for program in Program::ALL {
            for (ty, sm) in [Q4_K, Q6_K].into_iter().flat_map(|ty| [75, 80, 86, 87, 89, 90, 120].map(|sm| (ty, sm))) {
                let found = Loop::of(program, ty, sm, false, false).expect("a loop");
                let resident = Loop::of(program, ty, sm, true, false).expect("a loop");
                assert!(resident.flight <= found.flight && found.flight >= 9e3, "{program:?}, {ty}, sm_{sm}");
                let pipes = found.alu + found.heavy + found.fma + found.half + found.sixteen + found.memory;
                assert!(pipes <= found.all, "{program:?}, {ty}, sm_{sm}: each instruction has one pipe");
                let shared = Loop::of(program, ty, sm, true, true).expect("a loop");
                // To take an entry and go round the columns costs about what it costs to bring the records; and what stands
                // before a second plane, which few entries come to, is counted for all.
                assert!(shared.all <= 1.06 * found.all, "{program:?}, {ty}, sm_{sm}");
                let takes = LOOPS.iter().find(|row| (row.0, row.1) == (FastShared, ty)).map(Loop::new).expect("a row");
                let rings = program == Program::Kiln(Numerics::Fast) && sm > 75;
                assert!(
                    !rings || shared.all - takes.all > 0.16,
                    "{ty}, sm_{sm}: the ring takes instructions of its own"
                );
            }
        }
    }
}
