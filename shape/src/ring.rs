//! The ring of the persistent decoder's weights in shared memory: what its kernel and its host must agree on.
//!
//! Each consumer warp has a part of the ring, in units. An entry holds up to [`Depth::records`] super-blocks that follow
//! each other in a matrix: their records first, [`stride`] bytes apart, then their planes. It takes whole units, all of
//! them before the part's end: what is left there is skipped.

use crate::{Layout, WeightType};

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
/// Super-blocks that there may be room for of a long vector in slices: so many lanes are busy with a row's.
pub const SLICES: [u32; 2] = [16, 8];

/// Whether weights of a type come through the ring: those that are quantised.
pub const fn streams(ty: WeightType) -> bool {
    ty.block_len() > 1
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

/// The size of a ring, and what is multiplied with its weights at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depth {
    /// Units of a warp's part.
    pub units: u32,
    /// Records of an entry, at most: 8, 16 or 32.
    pub records: u32,
    /// Super-blocks of a slice, in which the FFN's vector is staged: one of [`SLICES`], and no more than records. 0 where it is
    /// staged whole.
    pub slice: u32,
}

/// Where a launch has its columns: a region of shared memory each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Regions {
    /// Bytes of a region.
    pub each: u32,
    /// Regions that lie where a single column has its memory; the others follow behind all that the kernel takes.
    pub home: u32,
    /// Bytes by which the memory of a vector is shorter than that of the FFN's whole one.
    pub shorter: u32,
}

/// Shared memory that a kernel's columns take, where a launch may have several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnMemory {
    /// With vectors that are staged whole.
    pub whole: Regions,
    /// With the FFN's vector in slices of so many super-blocks as [`SLICES`] says, and all matrices of types of blocks of one
    /// length. None where the kernel has no slices.
    pub sliced: Option<[Regions; 2]>,
}

impl Regions {
    /// Bytes behind all that the kernel takes, for so many columns. None where they are too many to count.
    const fn bytes(self, columns: u32) -> Option<u32> {
        columns.saturating_sub(self.home).checked_mul(self.each)
    }
}

impl ColumnMemory {
    /// That of a kernel which has one column.
    pub const NONE: ColumnMemory = ColumnMemory { whole: Regions { each: 0, home: 1, shorter: 0 }, sliced: None };

    /// The regions of a launch with such slices, or 0.
    pub fn regions(&self, slice: u32) -> Regions {
        let sliced = SLICES.into_iter().zip(self.sliced.into_iter().flatten());
        sliced.into_iter().find(|(of, _)| *of == slice).map_or(self.whole, |(_, regions)| regions)
    }
}

impl Depth {
    /// The least ring: two of the largest entries that there are, of eight records each.
    pub const LEAST: Depth = Depth { units: 4, records: 8, slice: 0 };

    /// The ring of so many warps in so many bytes, for matrices of `types`: with the longest entries of which a part holds
    /// two of any type, and one that was skipped for. None where eight records are too long.
    pub fn fitting(bytes: u32, warps: u32, types: impl IntoIterator<Item = WeightType>) -> Option<Depth> {
        let units_of_part = (bytes / UNIT_BYTES).checked_div(warps)?.min(UNITS_MAX);
        let types: Vec<WeightType> = types.into_iter().filter(|ty| streams(*ty)).collect();
        let largest = |records| types.iter().map(|ty| units(ty.layout(), records)).max().unwrap_or(1);
        let records = RECORDS.into_iter().find(|records| 2 * largest(*records) <= units_of_part)?;
        Some(Depth { units: units_of_part, records, slice: 0 })
    }

    /// The rings of launches with one column, two and so on, up to `most`, in so many bytes beside `columns`; the FFN's vectors are
    /// in slices where whole ones leave no good ring. Empty where not even one column leaves room for a ring. Several leave one
    /// whose entries keep at least half of a warp's lanes busy, or a quarter where shared memory is short: memory of such chips
    /// brings less to a multiprocessor, so that lanes have more time.
    pub fn for_columns(
        bytes: u32,
        (columns, most): (ColumnMemory, u32),
        warps: u32,
        types: impl IntoIterator<Item = WeightType>,
    ) -> Vec<Depth> {
        let types: Vec<WeightType> = types.into_iter().collect();
        let (least, shortest) = match bytes {
            WIDE_BYTES.. => (2 * BESIDE_COLUMNS, RECORDS[1]),
            _ => (BESIDE_COLUMNS, RECORDS[2]),
        };
        let ring = |count: u32, slice: u32| {
            let left = bytes.checked_sub(columns.regions(slice).bytes(count)?)?;
            let depth = Depth::fitting(left, warps, types.iter().copied())?;
            let is_good = depth.bytes(warps) >= least && depth.records >= shortest.max(slice);
            (count == 1 || is_good).then_some(Depth { slice, ..depth })
        };
        // Beside slices there is room for vectors rounded in one way.
        let mut lens = types.iter().filter(|ty| streams(**ty)).map(|ty| ty.block_len());
        let first = lens.next();
        let are_alike = lens.all(|len| Some(len) == first);
        let slices = columns.sliced.filter(|_| are_alike).map_or(&[][..], |_| &SLICES);
        let sliced = |count: u32| slices.iter().find_map(|slice| ring(count, *slice));
        (1..=most).map_while(|count| ring(count, 0).or_else(|| sliced(count))).collect()
    }

    /// Bytes of shared memory for so many warps, and for so many columns beside them.
    pub fn bytes_beside(self, warps: u32, columns: ColumnMemory, count: u32) -> Option<u32> {
        match columns.regions(self.slice).bytes(count) {
            Some(of_columns) => of_columns.checked_add(self.bytes(warps)),
            None => None,
        }
    }

    /// Bytes of shared memory for so many warps.
    pub const fn bytes(self, warps: u32) -> u32 {
        self.units * UNIT_BYTES * warps
    }
}

#[cfg(test)]
mod tests {
    use super::{ColumnMemory, Depth, ENTRIES, Regions, streams, units};
    use crate::WeightType;

    #[test]
    fn an_entry_and_what_is_skipped_for_it_count_in_four_bits() {
        for ty in WeightType::ALL.iter().filter(|ty| streams(**ty)) {
            let units = units(ty.layout(), 32);
            assert!(2 * units - 1 < 16, "{ty}: {units} units");
        }
        const { assert!(ENTRIES * 4 <= 32) };
    }

    const fn regions(each: u32, home: u32) -> Regions {
        Regions { each, home, shorter: 0 }
    }

    /// The rings of launches with up to eight columns.
    fn rings(bytes: u32, columns: ColumnMemory) -> Vec<Depth> {
        // Norms are floats, and come through no ring.
        Depth::for_columns(bytes, (columns, 8), 7, [WeightType::F32, WeightType::Q4_K, WeightType::Q6_K])
    }

    #[test]
    fn several_columns_leave_a_good_ring() {
        let rings = |bytes, each| rings(bytes, ColumnMemory { whole: regions(each, 1), sliced: None });
        let wide = rings(180 << 10, 40 << 10);
        assert_eq!(wide.len(), 3);
        assert!(wide.iter().all(|ring| ring.bytes(7) >= 64_000), "{wide:?}");
        assert!(wide.windows(2).all(|pair| pair[0].units > pair[1].units), "{wide:?}");
        let narrow = rings(60 << 10, 10 << 10);
        assert_eq!(narrow.len(), 3);
        assert!(narrow.iter().all(|ring| ring.bytes(7) >= 32_000), "{narrow:?}");
        assert_eq!(rings(180 << 10, 2 << 10).len(), 8);
        assert_eq!((rings(40 << 10, 40 << 10).len(), rings(1 << 10, 0).len()), (1, 0));
    }

    #[test]
    fn vectors_are_in_slices_where_whole_ones_leave_no_good_ring() {
        let sliced = Some([regions(8 << 10, 3), regions(6 << 10, 4)]);
        let columns = ColumnMemory { whole: regions(20 << 10, 1), sliced };
        let found = rings(60 << 10, columns);
        let slices: Vec<u32> = found.iter().map(|ring| ring.slice).collect();
        assert_eq!(slices, [0, 0, 16, 16, 8, 8, 8, 8]);
        assert!(found.iter().all(|ring| ring.slice <= ring.records && ring.bytes(7) >= 32_000), "{found:?}");
        let all = |count: u32| found[count as usize - 1].bytes_beside(7, columns, count);
        assert!((1..=8).all(|count| all(count).is_some_and(|bytes| bytes <= 60 << 10)), "{found:?}");
        assert_eq!(rings(60 << 10, ColumnMemory { sliced: None, ..columns }).len(), 2);
        let mixed = Depth::for_columns(60 << 10, (columns, 8), 7, [WeightType::Q4_K, WeightType::Q8_0]);
        assert!(mixed.len() <= 2 && mixed.iter().all(|ring| ring.slice == 0), "{mixed:?}");
    }

    #[test]
    fn entries_are_shorter_where_there_is_less_room() {
        let types = || [WeightType::Q4_K, WeightType::Q6_K];
        let fitting = |bytes| Depth::fitting(bytes, 8, types());
        assert_eq!(fitting(190 << 10), Some(Depth { units: 21, records: 32, slice: 0 }));
        assert_eq!(fitting(59 << 10), Some(Depth { units: 6, records: 16, slice: 0 }));
        assert_eq!(fitting(40 << 10), Some(Depth { units: 4, records: 8, slice: 0 }));
        assert_eq!(fitting(30 << 10), None);
        assert_eq!(Depth::fitting(1 << 20, 0, types()), None);
    }
}
