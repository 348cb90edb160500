//! Warps that repeat themselves: where nothing but its block can change memory, and has not, a warp whose registers and
//! places are as they were before does the same again for ever.

use super::warp::{State, Warp};

/// What the warps of a block repeat.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    /// Rounds since memory was last written.
    rounds: u64,
    /// A state of each warp since then, and whether it has come again.
    seen: Vec<(u64, bool)>,
}

impl Repeats {
    pub(crate) fn new(warps: usize) -> Repeats {
        Repeats { rounds: 0, seen: vec![(0, false); warps] }
    }

    /// Looks at the warps at the end of a round, in which memory was written or not.
    pub(crate) fn look(&mut self, warps: &[Warp], wrote: bool) {
        self.rounds = if wrote { 0 } else { self.rounds + 1 };
        for (warp, (seen, again)) in warps.iter().zip(&mut self.seen) {
            *again &= !wrote;
            if self.rounds == 0 || *again {
                continue;
            }
            let now = state(warp);
            *again = self.rounds > 1 && now == *seen;
            // Kept for ever longer, so that a long repetition is met as well.
            if self.rounds.is_power_of_two() {
                *seen = now;
            }
        }
    }

    /// Whether every warp has repeated itself.
    pub(crate) fn all(&self) -> bool {
        !self.seen.is_empty() && self.seen.iter().all(|warp| warp.1)
    }
}

/// A hash of a warp's registers and places.
fn state(warp: &Warp) -> u64 {
    let mut hash = 0u64;
    let mut mix = |word: u64| hash = (hash.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut parts: Vec<_> = warp.parts.iter().map(|part| (part.pc, part.mask, part.pieces)).collect();
    parts.sort_unstable();
    parts.iter().for_each(|part| mix(u64::from(part.0) << 32 | u64::from(part.1) ^ u64::from(part.2) << 60));
    warp.parts.iter().for_each(|part| mix(u64::from(matches!(part.state, State::Barrier(_) | State::Members))));
    warp.preds.iter().for_each(|&word| mix(word.into()));
    warp.regs.iter().flat_map(|slot| slot.0).for_each(|word| mix(word.into()));
    hash
}
