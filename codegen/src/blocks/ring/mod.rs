//! Weights on their way from device memory to consumer warps, by a producer warp and a ring in shared memory that is never
//! drained while the kernel decodes.
//!
//! Each consumer warp has a part of the ring for itself ([`kiln_shape::ring`] has its layout), and a number that counts the
//! entries of its part since the launch began. Producer and consumer count alike, since both derive the entries from the
//! tables of shares and of tensors, the kernel's shape and the ring's depth: a warp without rows has no entries, and its count
//! stands still on both sides. Entry `e` has the mbarriers `full[e % 8]` and `empty[e % 8]`, and waits for phase `e / 8` of
//! either, that is parity `e / 8 % 2`.
//!
//! # Order
//!
//! *Full.* The producer's lane arrives at `full` with the entry's bytes, and its copies lower them. The phase ends when all
//! bytes are there; each lane of the consumer waits for it itself, so that it sees them.
//!
//! *Empty.* A warp barrier orders the reads of all lanes before the arrival of lane 0 at `empty`, which releases them. The
//! producer's lane acquires that before a copy overwrites what they read: it takes units for a new entry only from entries
//! whose `empty` it has seen, and these it takes in their order. So it never waits for a phase more than one ahead of the
//! consumer, and a parity tells the phases apart.
//!
//! *Async proxy.* Copies write shared memory by the async proxy. Nobody else writes the ring; the mbarriers are initialised by
//! ordinary stores, which a proxy fence and the block's barrier bring before the first copy.
//!
//! *Tokens.* The order of a token's entries depends on the item in one point, whether the head follows the layers. The
//! consumers say so in a word as the token begins, by `told`; the producer, which may have filled the layers of that token
//! before, reads it when it comes to the head, and answers by `heard`, behind which the next word may be written.
//!
//! *End.* The consumers arrive at `leaving` once: as they leave with everything decoded, to park, or given up. The producer
//! looks at it whenever it has to wait for them, fills no more, waits for every copy that is under way, and ends.

mod consumer;
mod producer;

pub(crate) use consumer::Consumer;
pub(crate) use producer::{Producer, Records};

use crate::ptx::{Builder, Shared, U8, U32, U64, Val};
use kiln_shape::Layout;
use kiln_shape::ring::{self, ENTRIES, UNIT_BYTES};

/// A ring and its barriers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ring {
    /// `[warps, units]`.
    memory: Shared<U8>,
    /// `[warps, ENTRIES]` each.
    full: Shared<U64>,
    empty: Shared<U64>,
    told: Shared<U64>,
    heard: Shared<U64>,
    leaving: Shared<U64>,
    /// Whether the head follows a token's layers.
    head_follows: Shared<U32>,
    /// Units of a warp's part, and records of an entry, at most.
    units: Val<U32>,
    records: Val<U32>,
    /// Consumer warps.
    warps: u32,
}

impl Ring {
    /// The ring of the block's first `warps` warps, whose depth a launch gives, with the shared memory for it. By the whole
    /// block; a barrier of the block must follow.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, warps: u32) -> Ring {
        let (units, records) = (b.param::<U32>("ring_units"), b.param::<U32>("ring_records"));
        let barriers = b.shared::<U64>("ring_barriers", 2 * warps * ENTRIES + 4);
        let others = barriers.at(2 * warps * ENTRIES);
        let ring = Ring {
            memory: b.dynamic_rest(),
            full: barriers,
            empty: barriers.at(warps * ENTRIES),
            told: others,
            heard: others.at(1),
            leaving: others.at(2),
            head_follows: b.shared("head_follows", 1),
            units,
            records,
            warps,
        };
        let tid = b.tid();
        b.for_range(tid, 2 * warps * ENTRIES + 3, 32 * b.warps(), |b, i| {
            let barrier = b.index(barriers, i);
            b.mbarrier_init(barrier, 1);
        });
        b.fence_proxy_async();
        ring
    }

    /// Where threads that leave arrive, one of them.
    pub(crate) const fn leaving(&self) -> Shared<U64> {
        self.leaving
    }

    /// Units of an entry.
    fn units_of(&self, b: &mut Builder, layout: Layout) -> Val<U32> {
        let bytes = ring::stride(layout) + layout.plane;
        let bytes = b.mad::<U32>(self.records, bytes, ring::slack(layout) + UNIT_BYTES - 1);
        b.div::<U32>(bytes, UNIT_BYTES)
    }

    /// Of a warp's `barriers` the one of entry `entry`, and the parity to wait for.
    fn barrier(&self, b: &mut Builder, barriers: Shared<U64>, entry: Val<U32>) -> (Shared<U64>, Val<U32>) {
        let slot = b.and::<U32>(entry, ENTRIES - 1);
        let parity = b.shr::<U32>(entry, ENTRIES.trailing_zeros());
        let parity = b.and::<U32>(parity, 1);
        (b.index(barriers, slot), parity)
    }

    /// A warp's barriers, of `full` or `empty`, and its memory.
    fn part(&self, b: &mut Builder, warp: Val<U32>) -> (Shared<U64>, Shared<U64>, Shared<U8>) {
        let before = b.mul::<U32>(warp, self.units);
        (
            b.byte_index(self.full, warp, 8 * ENTRIES),
            b.byte_index(self.empty, warp, 8 * ENTRIES),
            b.byte_index(self.memory, before, UNIT_BYTES),
        )
    }
}
