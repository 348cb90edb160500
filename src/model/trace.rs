//! Stamps of the persistent path: when each block was in which phase.

use crate::shape::mailbox::trace;

/// A block in one phase. Times are the device's: nanoseconds on a GPU, steps in the emulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// How many phases the block had gone through before.
    pub event: u32,
    /// The block.
    pub block: u32,
    /// The phase, an index into [`Trace::PHASES`].
    pub phase: u32,
    /// The layer; the number of layers for the head.
    pub layer: u32,
    /// The token's position.
    pub position: u32,
    /// When it began.
    pub begin: u64,
    /// When the block had done its part and began to wait for the others.
    pub wait: u64,
    /// When the wait was over.
    pub end: u64,
}

/// Stamps in the order of events, then of blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Blocks of the grid.
    pub blocks: u32,
    /// Every stamp.
    pub stamps: Vec<Stamp>,
}

impl Trace {
    /// Names of the phases.
    pub const PHASES: [&'static str; 6] = trace::PHASES;

    /// The trace from the kernel's records; those that it did not write are zero.
    pub(super) fn from_words(blocks: u32, words: &[u64]) -> Trace {
        let records = words.chunks_exact(trace::WORDS as usize).zip(0u32..);
        let stamps = records.filter_map(|(record, index)| match *record {
            [what, begin, wait, end] if end != 0 => Some(Stamp {
                event: index / blocks.max(1),
                block: index % blocks.max(1),
                phase: what as u32 & 0xff,
                layer: what as u32 >> 8,
                position: (what >> 32) as u32,
                begin,
                wait,
                end,
            }),
            _ => None,
        });
        Trace { blocks, stamps: stamps.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::{Stamp, Trace};

    #[test]
    fn records_are_of_blocks_within_events() {
        let what = 9u64 << 32 | 5 << 8 | 3;
        let words = [what, 1, 2, 3, what, 4, 5, 6, what, 7, 8, 9, 0, 0, 0, 0];
        let trace = Trace::from_words(2, &words);
        assert_eq!(trace.stamps.len(), 3);
        let expected = Stamp { event: 1, block: 0, phase: 3, layer: 5, position: 9, begin: 7, wait: 8, end: 9 };
        assert_eq!(trace.stamps[2], expected);
    }
}
