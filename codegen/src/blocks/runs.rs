//! A block's rows as its warps have them: runs of equal length that follow each other, the same on both ends of a ring.
//!
//! Where all warps would have a part of one entry of the ring, a run is as many whole rows as an entry has room for. The block
//! then has fewer entries, and warps without one load no activations. Where the rows of two matrices meet in a block, the first
//! run is shorter, if the warps suffice, so that the second matrix begins with a run: a warp with rows of both would multiply
//! twice, and all blocks wait for it.

use super::along::Along;
use crate::ptx::{Builder, Compare, U32, Val};

/// The runs of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Runs {
    first: Val<U32>,
    end: Val<U32>,
    /// Rows of a run, and how many fewer the first one has.
    each: Val<U32>,
    fewer: Val<U32>,
}

impl Runs {
    /// Those of rows `first` to `end` of `along` super-blocks for so many warps, whose entries have so many `records`. `border` is
    /// where a matrix begins; it may lie outside.
    #[track_caller]
    pub(crate) fn new(
        b: &mut Builder,
        (first, end): (Val<U32>, Val<U32>),
        border: Val<U32>,
        along: &Along,
        (warps, records): (u32, Val<U32>),
    ) -> Runs {
        let rows = b.sub::<U32>(end, first);
        let least = b.add::<U32>(rows, warps - 1);
        let least = b.div::<U32>(least, warps);
        let super_blocks = b.mul::<U32>(least, along.size());
        let is_part = b.setp_lt(super_blocks, records);
        let of_entry = along.row(b, records);
        let each = b.selp::<U32>(of_entry, least, is_part);
        let each = b.max::<U32>(each, 1);
        let before = b.sub::<U32>(border, first);
        let inside = b.setp_lt(before, rows);
        // So many runs go so many rows beyond the border: the least of these, without a division. A number below 0 is a great one
        // here, and never the least.
        let fewer = (1..=warps).fold(b.sub::<U32>(0, before), |fewer, runs| {
            let of_runs = b.mul::<U32>(each, runs);
            let more = b.sub::<U32>(of_runs, before);
            b.min::<U32>(fewer, more)
        });
        let all = b.mul::<U32>(each, warps);
        let left = b.sub::<U32>(all, rows);
        let suffices = b.setp(Compare::Ge, left, fewer);
        let aligns = b.and_pred(inside, suffices);
        let fewer = b.selp::<U32>(fewer, 0, aligns);
        Runs { first, end, each, fewer }
    }

    /// All rows.
    #[track_caller]
    pub(crate) fn rows(&self, b: &mut Builder) -> Val<U32> {
        b.sub::<U32>(self.end, self.first)
    }

    /// Rows of a run, at most.
    pub(crate) const fn each(&self) -> Val<U32> {
        self.each
    }

    /// A warp's first row, and the one behind its last; one that is not greater where it has none.
    #[track_caller]
    pub(crate) fn of_warp(&self, b: &mut Builder, warp: Val<U32>) -> (Val<U32>, Val<U32>) {
        let before = b.mul::<U32>(warp, self.each);
        let behind = b.add::<U32>(before, self.each);
        let before = b.max::<U32>(before, self.fewer);
        let [begin, end] = [before, behind].map(|rows| {
            let rows = b.sub::<U32>(rows, self.fewer);
            b.add::<U32>(self.first, rows)
        });
        (begin, b.min::<U32>(end, self.end))
    }
}

#[cfg(test)]
mod tests {
    use super::{Along, Runs};
    use crate::Target;
    use crate::blocks::together::Together;
    use crate::ptx::{Global, LoadKind, Module, Size, U32};
    use kiln_emulator::{Checks, DeviceConfig, Launch, Memory};

    const WARPS: u32 = 7;
    const RECORDS: u32 = 32;
    const COUNTS: [u32; 5] = [4, 8, 16, 43, 48];
    /// Words of a case: those given, then of each warp its run, its part of the block's super-blocks, and whether warps work
    /// together and a lane's super-block stays.
    const GIVEN: u32 = 4;
    const OF_WARP: u32 = 8;
    const WORDS: u32 = GIVEN + OF_WARP * WARPS;

    type OfWarp = [u32; OF_WARP as usize];

    /// What a device finds for the first and last row of a block, the border, and the super-blocks of a row.
    fn found(cases: &[[u32; 4]]) -> Vec<[OfWarp; WARPS as usize]> {
        let mut module = Module::new(Target::new(90).expect("a target"));
        let built = module.kernel("runs", 32, |b| {
            let cases = b.param::<Global<U32>>("cases");
            let case = b.ctaid_x();
            let case = b.byte_index(cases, case, 4 * WORDS);
            let [first, end, border, along] = [0, 1, 2, 3].map(|word| b.ld(case.at(word), LoadKind::Ordinary));
            let along = Along::one_of(b, Size::Reg(along), COUNTS);
            let records = b.mov::<U32>(RECORDS);
            let runs = Runs::new(b, (first, end), border, &along, (WARPS, records));
            let alone = b.setp_eq(border, 0);
            let together = Together::new(b, &runs, &along, Size::Const(32), (WARPS, records), alone);
            let warp = b.lane();
            let (run, part) = (runs.of_warp(b, warp), together.of_warp(b, warp));
            let is_warp = b.setp_lt(warp, WARPS);
            let to = b.byte_index(case.at(GIVEN), warp, 4 * OF_WARP);
            let stays = together.stays(b);
            let [is, stays] = [together.is, stays].map(|is| b.selp::<U32>(1, 0, is));
            b.if_(is_warp, |b| {
                for (word, value) in (0..).zip([run.0, run.1, part.first, part.left, part.each, part.step, is, stays]) {
                    b.st(to.at(word), value);
                }
            });
        });
        built.expect("a valid kernel");
        let memory = Memory::new(8 << 20);
        let module = kiln_emulator::Module::load(&module.ptx(), &memory).expect("valid text");
        let given = |case: &[u32; 4]| [&case[..], &[0; (OF_WARP * WARPS) as usize]].concat();
        let words: Vec<u8> = cases.iter().flat_map(given).flat_map(u32::to_le_bytes).collect();
        let at = memory.alloc(words.len() as u64).expect("memory");
        memory.write(at, &words).expect("it is there");
        let launch = Launch {
            module: &module,
            kernel: "runs",
            grid: [cases.len() as u32, 1, 1],
            block: [32, 1, 1],
            dynamic_shared: 0,
            params: &at.to_le_bytes(),
            cooperative: false,
            cluster: None,
        };
        let config = DeviceConfig { checks: Checks::ALL, ..DeviceConfig::h200() };
        kiln_emulator::run(&launch, &memory, &config).unwrap_or_else(|fault| panic!("{fault}"));
        let mut bytes = vec![0; words.len()];
        memory.read(at, &mut bytes).expect("the results are there");
        let words = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect::<Vec<_>>();
        let of_case = |case: &[u32]| std::array::from_fn(|warp| case[GIVEN as usize..].as_chunks().0[warp]);
        words.chunks(WORDS as usize).map(of_case).collect()
    }

    /// Borders within a block and outside.
    fn cases() -> Vec<[u32; 4]> {
        let of_rows =
            |rows: u32| [0, 5, 100, 101, 100 + rows / 3, 100 + rows - 1, 100 + rows].map(|border| (rows, border));
        let all = [0, 1, 2, 3, 7, 15, 16, 19, 20, 31, 63, 84, 150].into_iter().flat_map(of_rows);
        all.flat_map(|(rows, border)| COUNTS.map(|along| [100, 100 + rows, border, along])).collect()
    }

    #[test]
    fn runs_of_warps_follow_each_other_and_fill_entries() {
        let cases = cases();
        for ([first, end, border, along], warps) in cases.iter().zip(found(&cases)) {
            let what = format!("rows {first} to {end} of {along}, border {border}: {warps:?}");
            let runs = warps.map(|[begin, behind, ..]| (begin, behind.max(begin)));
            let last = runs.iter().filter(|run| run.0 < run.1).fold(*first, |before, run| {
                assert_eq!(run.0, before, "{what}");
                run.1
            });
            assert_eq!(last, *end, "{what}");
            let least = (end - first).div_ceil(WARPS);
            let each = if least * along < RECORDS { RECORDS / along } else { least };
            let rows: Vec<u32> = runs.iter().map(|run| run.1 - run.0).filter(|rows| *rows > 0).collect();
            let is_inside = first < border && border < end;
            if let [one, whole @ .., rest] = &rows[..] {
                assert!(whole.iter().all(|rows| *rows == each) && (1..=each).contains(rest), "{what}");
                assert!(*one == each || is_inside && *one == (border - first) % each, "{what}");
            } else {
                assert!(rows.iter().all(|rows| (1..=each).contains(rows)), "{what}");
            }
            // A warp has rows of both sides alone where runs that end at the border would not suffice.
            let crosses = runs.iter().any(|run| run.0 < *border && *border < run.1);
            let before = border.saturating_sub(*first).div_ceil(each.max(1));
            let behind = end.saturating_sub(*border).div_ceil(each.max(1));
            assert!(!crosses || before + behind > WARPS, "{what}");
        }
    }

    /// The numbers of each warp's entries in what it has of a block.
    fn entries(warp: &OfWarp) -> Vec<std::ops::Range<u32>> {
        let [_, _, first, left, each, step, ..] = *warp;
        let firsts = (0..).map(|turn| turn * step).take_while(|before| *before < left);
        firsts.map(|before| first + before..first + left.min(before + each)).collect()
    }

    #[test]
    fn parts_of_warps_are_each_super_block_once_and_no_more_entries_than_runs_have() {
        let cases = cases();
        let (mut turns, mut evenly) = (0, 0);
        for ([first, end, _, along], warps) in cases.iter().zip(found(&cases)) {
            let all = (end - first) * along;
            let of_warps = warps.each_ref().map(entries);
            let what = format!("rows {first} to {end} of {along}: {of_warps:?}");
            let mut numbers: Vec<u32> = of_warps.iter().flatten().cloned().flatten().collect();
            numbers.sort_unstable();
            assert_eq!(numbers, (0..all).collect::<Vec<_>>(), "{what}");
            let most = of_warps.iter().map(Vec::len).max().unwrap_or(0);
            let [.., is, stays] = warps[0];
            assert!(warps.iter().all(|warp| warp[6..] == [is, stays]), "{what}");
            for of_warp in of_warps.iter().filter(|_| stays == 1) {
                let places = |entry: &std::ops::Range<u32>| entry.start % along;
                assert!(of_warp.iter().all(|entry| places(entry) == places(&of_warp[0])), "{what}");
            }
            if is == 1 {
                let rows = (end - first).div_ceil(WARPS).max(1);
                let by_rows = (rows * along).div_ceil(RECORDS) as usize;
                assert!(most < by_rows || most == by_rows && most > 1 && stays == 1, "{what}");
                (turns, evenly) = (turns + stays, evenly + 1 - stays);
            }
        }
        // Both ways are among the cases.
        assert!(turns > 0 && evenly > 0, "{turns} by turns, {evenly} evenly");
    }
}
