//! The ring of the persistent decoder's weights in shared memory: what its kernel and its host must agree on.
//!
//! Each consumer warp has a part of the ring, in units. An entry holds up to [`Depth::records`] super-blocks that follow
//! each other in a matrix: their records first, [`stride`] bytes apart, then their planes. It takes whole units, all of
//! them before the part's end: what is left there is skipped.

use crate::{Layout, WeightType};
use std::ops::RangeInclusive;

/// Bytes of a unit: eight records of Q4_K.
pub const UNIT_BYTES: u32 = 1152;
/// Entries of a warp's part that may be under way at once: a power of two.
pub const ENTRIES: u32 = 8;
/// Records that an entry may hold, most first: as many as lanes, or so many of them as leave a short part several entries.
const RECORDS: [u32; 3] = [32, 16, 8];
/// Bytes of a ring beside several columns at least, four units of each of seven warps, and twice as many where so much shared
/// memory is left as multiprocessors of data centres have.
const BESIDE_COLUMNS: u32 = 4 * 7 * UNIT_BYTES;
const WIDE_BYTES: u32 = 100 << 10;
/// The most units of a warp's part: what eight of the largest entries take.
const UNITS_MAX: u32 = 64;

/// Whether weights of a type come through the ring: those that are quantised.
pub const fn streams(ty: WeightType) -> bool {
    ty.block_len() > 1
}

/// Whether vectors may come in slices beside matrices of these types: their blocks have one length, so that a vector is rounded in one
/// way.
pub fn may_slice(types: impl IntoIterator<Item = WeightType>) -> bool {
    let mut lens = types.into_iter().filter(|ty| streams(*ty)).map(WeightType::block_len);
    let first = lens.next();
    lens.all(|len| Some(len) == first)
}

/// Bytes from a record of an entry to the next: an odd number of pieces of 16 bytes, so that lanes' reads meet in no bank.
pub const fn stride(layout: Layout) -> u32 {
    16 * ((layout.data / 16) | 1)
}

/// Bytes that the planes of an entry may take beyond those of its records: they are copied from a multiple of 16 bytes to
/// another.
pub const fn slack(layout: Layout) -> u32 {
    if layout.plane.is_multiple_of(16) { 0 } else { 16 }
}

/// Records after which planes lie at a multiple of 16 bytes again: a power of two, at most 8.
pub const fn records_of_slack(layout: Layout) -> u32 {
    if layout.plane.is_multiple_of(16) { 1 } else { 16 / layout.plane }
}

/// Units of an entry of so many records.
pub const fn units(layout: Layout, records: u32) -> u32 {
    (records * (stride(layout) + layout.plane) + slack(layout)).div_ceil(UNIT_BYTES)
}

/// The size of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depth {
    /// Units of a warp's part.
    pub units: u32,
    /// Records of an entry, at most: 8, 16 or 32.
    pub records: u32,
}

/// Shared memory that a kernel's columns take, where a launch may have several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnMemory {
    /// Bytes of a column.
    pub each: u32,
    /// Columns that lie within what the kernel takes; the others follow behind.
    pub home: u32,
}

impl ColumnMemory {
    /// That of a kernel which has one column.
    pub const NONE: ColumnMemory = ColumnMemory { each: 0, home: 1 };

    /// Bytes that so many columns take besides; none where they are too many to count.
    pub const fn bytes(self, columns: u32) -> Option<u32> {
        columns.saturating_sub(self.home).checked_mul(self.each)
    }
}

impl Depth {
    /// The least ring: two of the largest entries that there are, of eight records each.
    pub const LEAST: Depth = Depth { units: 4, records: 8 };

    /// The ring of so many warps in so many bytes, for matrices of `types`: with the longest entries of which a part holds
    /// two of any type, and one that was skipped for. None where eight records are too long.
    pub fn fitting(bytes: u32, warps: u32, types: impl IntoIterator<Item = WeightType>) -> Option<Depth> {
        let units_of_part = (bytes / UNIT_BYTES).checked_div(warps)?.min(UNITS_MAX);
        let types: Vec<WeightType> = types.into_iter().filter(|ty| streams(*ty)).collect();
        let largest = |records| types.iter().map(|ty| units(ty.layout(), records)).max().unwrap_or(1);
        let records = RECORDS.into_iter().find(|records| 2 * largest(*records) <= units_of_part)?;
        Some(Depth { units: units_of_part, records })
    }

    /// The rings of launches with so many columns, in so many bytes that these take of. They end with the last number that leaves room
    /// for a ring. Several leave one whose entries keep at least half of a warp's lanes busy, or a quarter where shared memory is
    /// short: memory of such chips brings less to a multiprocessor, so that lanes have more time.
    pub fn for_columns(
        bytes: u32,
        (memory, counts): (ColumnMemory, RangeInclusive<u32>),
        warps: u32,
        types: impl IntoIterator<Item = WeightType>,
    ) -> Vec<Depth> {
        let types: Vec<WeightType> = types.into_iter().collect();
        let (least, shortest) = match bytes {
            WIDE_BYTES.. => (2 * BESIDE_COLUMNS, RECORDS[1]),
            _ => (BESIDE_COLUMNS, RECORDS[2]),
        };
        let ring = |columns: u32| {
            let left = bytes.checked_sub(memory.bytes(columns)?)?;
            let depth = Depth::fitting(left, warps, types.iter().copied())?;
            let is_good = depth.bytes(warps) >= least && depth.records >= shortest;
            (columns == 1 || is_good).then_some(depth)
        };
        counts.map_while(ring).collect()
    }

    /// Bytes of shared memory for so many warps.
    pub const fn bytes(self, warps: u32) -> u32 {
        self.units * UNIT_BYTES * warps
    }
}

#[cfg(test)]
mod tests {
    use super::{ColumnMemory, Depth, ENTRIES, may_slice, streams, units};
    use crate::WeightType;

    #[test]
    fn an_entry_and_what_is_skipped_for_it_count_in_four_bits() {
        for ty in WeightType::ALL.iter().filter(|ty| streams(**ty)) {
            let units = units(ty.layout(), 32);
            assert!(2 * units - 1 < 16, "{ty}: {units} units");
        }
        const { assert!(ENTRIES * 4 <= 32) };
    }

    #[test]
    fn several_columns_leave_a_good_ring() {
        let with_home = |bytes, each, home, counts| {
            Depth::for_columns(bytes, (ColumnMemory { each, home }, counts), 7, [WeightType::Q4_K, WeightType::Q6_K])
        };
        let rings = |bytes, each| with_home(bytes, each, 1, 1..=8);
        let wide = rings(180 << 10, 40 << 10);
        assert_eq!(wide.len(), 3);
        assert!(wide.iter().all(|ring| ring.bytes(7) >= 64_000), "{wide:?}");
        assert!(wide.windows(2).all(|pair| pair[0].units > pair[1].units), "{wide:?}");
        let narrow = rings(60 << 10, 10 << 10);
        assert_eq!(narrow.len(), 3);
        assert!(narrow.iter().all(|ring| ring.bytes(7) >= 32_000), "{narrow:?}");
        assert_eq!(rings(180 << 10, 2 << 10).len(), 8);
        assert_eq!((rings(40 << 10, 40 << 10).len(), rings(1 << 10, 0).len()), (1, 0));
        assert_eq!(with_home(180 << 10, 40 << 10, 1, 3..=8), wide[2..]);
        let at_home = with_home(60 << 10, 10 << 10, 3, 1..=8);
        assert_eq!((at_home.len(), at_home[0], at_home[2], at_home[4]), (5, narrow[0], narrow[0], narrow[2]));
    }

    #[test]
    fn vectors_come_in_slices_where_they_are_rounded_in_one_way() {
        // Norms are floats, and come through no ring.
        assert!(may_slice([WeightType::F32, WeightType::Q4_K, WeightType::Q6_K]));
        assert!(!may_slice([WeightType::Q4_K, WeightType::Q8_0]));
    }

    #[test]
    fn entries_are_shorter_where_there_is_less_room() {
        let types = || [WeightType::Q4_K, WeightType::Q6_K];
        let fitting = |bytes| Depth::fitting(bytes, 8, types());
        assert_eq!(fitting(190 << 10), Some(Depth { units: 21, records: 32 }));
        assert_eq!(fitting(59 << 10), Some(Depth { units: 6, records: 16 }));
        assert_eq!(fitting(40 << 10), Some(Depth { units: 4, records: 8 }));
        assert_eq!(fitting(30 << 10), None);
        assert_eq!(Depth::fitting(1 << 20, 0, types()), None);
    }
}
