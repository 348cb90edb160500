//! One access, packed into 64 bits.

/// The identity of the host among operations.
pub(crate) const HOST: u32 = 0x7fff_ffff;

/// A part of a record: its first bit and its width.
type Part = (u32, u32);
pub(crate) const BLOCK: Part = (48, 16);
pub(crate) const WARP: Part = (43, 5);
pub(crate) const LANE: Part = (38, 5);
/// 0 for weak accesses, else 1, 2 or 3 for scope cta, gpu or sys.
pub(crate) const STRENGTH: Part = (36, 2);
/// Mask of the cell's bytes.
pub(crate) const BYTES: Part = (32, 4);
/// The parts that are kept once the operation is over: bytes and strength.
pub(crate) const KEPT: Part = (32, 6);
/// Made by the async proxy.
pub(crate) const PROXY: Part = (31, 1);
pub(crate) const CLOCK: Part = (12, 19);
/// The instruction.
pub(crate) const SITE: Part = (0, 12);

/// The largest value of a part.
const fn most(part: Part) -> u32 {
    (1 << part.1) - 1
}

/// The clock of a copy in flight, which happens before nothing.
pub(crate) const IN_FLIGHT: u32 = most(CLOCK);
/// The last clock. Accesses from here on share it, so races among them are missed.
pub(crate) const LATEST: u32 = IN_FLIGHT - 1;
/// The last instruction that is told apart; later ones share its number.
pub(crate) const SITES: u32 = most(SITE);
/// Blocks from here on are not checked.
pub(crate) const MAX_BLOCK: u32 = most(BLOCK);

/// One access, packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Record(pub(super) u64);

impl Record {
    /// Sets a part that is zero so far. The value must fit.
    #[inline(always)]
    pub(crate) fn with(self, part: Part, value: u32) -> Record {
        Record(self.0 | u64::from(value) << part.0)
    }

    #[inline(always)]
    pub(crate) fn get(self, part: Part) -> u32 {
        (self.0 >> part.0) as u32 & most(part)
    }

    /// Without one of its parts.
    pub(crate) fn without(self, part: Part) -> Record {
        Record(self.0 & !(u64::from(most(part)) << part.0))
    }

    pub(crate) fn is_in_flight(self) -> bool {
        self.get(CLOCK) == IN_FLIGHT
    }

    /// Merges the byte masks of two accesses by one lane at one clock.
    #[inline(always)]
    pub(super) fn with_bytes_of(self, earlier: Record) -> Record {
        let all = |part: Part| u64::from(most(part)) << part.0;
        let alike = (self.0 ^ earlier.0) & !(all(BYTES) | all(SITE)) == 0;
        Record(self.0 | if alike { earlier.0 & all(BYTES) } else { 0 })
    }
}
