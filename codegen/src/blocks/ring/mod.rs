//! Weights on their way from device memory to consumer warps, by a producer warp and a ring in shared memory that is never
//! drained while the kernel decodes.
//!
//! Each consumer warp has a part of the ring for itself ([`kiln_shape::ring`] has its layout), and a number that counts the
//! entries of its part since the launch began. Producer and consumer count alike, since both derive the entries from the
//! tables of shares and of tensors, the kernel's shape and the ring's depth: a warp without rows has no entries, and its
//! count stands still on both sides. Entry `e` has the mbarriers `full[e % 8]` and `empty[e % 8]`, and waits for phase
//! `e / 8` of either, that is parity `e / 8 % 2`. Numbers wrap, in 32 bits at one end and in 24 at the other: 16 divides
//! both, and nobody compares them but for equality. The first one is 16 before 0, so that every launch comes by there.
//!
//! # Order
//!
//! *Full.* With bulk copies the producer's lane arrives at `full` with the entry's bytes, and its copies lower them. Before
//! sm_90, which has none, the entry is copied by all lanes, 16 bytes each at a time, and each lane's copies arrive at
//! `full` once they have landed. Either way the phase ends when all bytes are there; each lane of the consumer waits for it
//! itself, so that it sees them.
//!
//! *Empty.* A warp barrier orders the reads of all lanes before the arrival of lane 0 at `empty`, which releases them. The
//! producer's lane acquires that before a copy overwrites what they read: it takes units for a new entry only from entries
//! whose `empty` it has seen, and these it takes in their order. Where other lanes copy, a warp barrier orders that
//! before their copies. So it never waits for a phase more than one ahead of the consumer, and a parity tells the phases
//! apart.
//!
//! *Flight.* Not all that has room is asked for at once: with bulk copies an entry waits until so many before it have landed
//! that its warp has the records under way that `FLIGHT` says: their `full` says so. Of the first entries the one before
//! has an odd phase that never was, which an mbarrier takes for over while its first phase lasts.
//!
//! *Async proxy.* Bulk copies write shared memory by the async proxy. Nobody else writes the ring; the mbarriers are
//! initialised by ordinary stores, which a proxy fence and the block's barrier bring before the first copy. Copies of lanes
//! belong to the generic proxy, and need no such fence.
//!
//! *Tokens.* The order of a token's entries depends on the item in one point, whether the head follows the layers. The
//! consumers write that into a word as the token begins, and arrive at `told`. The producer reads the word once it comes to
//! the head, and arrives at `heard`; behind that the next word may be written. Until then it holds back the last run of the
//! token's layers. That run is of the token that begins: the one before has all of its own, and its end waits for nothing.
//!
//! *End.* The consumers arrive at `leaving` once: as they leave with everything decoded, to park, or given up. The producer
//! looks at it whenever it has to wait for them, fills no more, waits for every copy that is under way, and ends.
//!
//! *Waits.* A consumer that has polled for longer than the limit sets the grid's abort word and goes on with what is there;
//! its block does not arrive at the grid's barrier that ends the token. The producer waits for its consumers until they
//! leave, and each of their own waits has an end. Copies that do not land within the limit, when it drains them, end the
//! context.

mod consumer;
mod copy;
mod producer;

pub(crate) use consumer::Consumer;
pub(crate) use producer::{Producer, Records};

use crate::ptx::{Builder, Shared, U8, U32, U64, Val};
use crate::target::Target;
use kiln_shape::Layout;
use kiln_shape::ring::{self, ENTRIES, UNIT_BYTES};

/// The number of the first entry: behind two rounds of a part's mbarriers it is 0.
const FIRST_ENTRY: u32 = 0u32.wrapping_sub(2 * ENTRIES);

/// A ring and its barriers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ring {
    /// `[warps, units]`.
    memory: Shared<U8>,
    /// `[warps, ENTRIES]`, of both kinds.
    full: Shared<U64>,
    told: Shared<U64>,
    heard: Shared<U64>,
    leaving: Shared<U64>,
    /// Whether the head follows a token's layers.
    head_follows: Shared<U32>,
    /// Tokens begun, for the consumers' first thread: registers are short beside attention.
    tokens: Shared<U32>,
    /// Units of a warp's part, and records of an entry, at most.
    units: Val<U32>,
    records: Val<U32>,
    /// Consumer warps.
    warps: u32,
    copies: Copies,
    /// The producer's: how the L2 cache keeps what bulk copies bring. None where lanes copy.
    policy: Option<Val<U64>>,
}

/// Who copies an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copies {
    /// The async proxy, for the lane that asks.
    Bulk,
    /// All lanes of the producer warp.
    Lanes,
}

impl Copies {
    /// Those of a target.
    const fn of(target: Target) -> Copies {
        if target.sm() >= 90 { Copies::Bulk } else { Copies::Lanes }
    }

    /// Arrivals at `full` in a phase.
    const fn arrivals(self) -> u32 {
        match self {
            Copies::Bulk => 1,
            Copies::Lanes => 32,
        }
    }
}

impl Ring {
    /// Whether a target has what a ring needs: mbarriers, and copies that arrive at them.
    pub(crate) const fn is_of(target: Target) -> bool {
        target.sm() >= 80
    }

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
            told: others,
            heard: others.at(1),
            leaving: others.at(2),
            head_follows: b.shared("head_follows", 1),
            tokens: b.shared("ring_tokens", 1),
            units,
            records,
            warps,
            copies: Copies::of(b.target()),
            policy: None,
        };
        let tid = b.tid();
        let first = b.setp_eq(tid, 0);
        b.if_(first, |b| b.st(ring.tokens, 0));
        b.for_range(tid, 2 * warps * ENTRIES + 3, 32 * b.warps(), |b, i| {
            let barrier = b.index(barriers, i);
            match ring.copies {
                Copies::Bulk => b.mbarrier_init(barrier, 1),
                Copies::Lanes => {
                    let is_full = b.setp_lt(i, warps * ENTRIES);
                    let arrivals = b.selp::<U32>(ring.copies.arrivals(), 1, is_full);
                    b.mbarrier_init(barrier, arrivals);
                }
            }
        });
        if ring.copies == Copies::Bulk {
            b.fence_proxy_async();
        }
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

    /// A warp's part.
    fn part(&self, b: &mut Builder, warp: Val<U32>) -> Part {
        let before = b.mul::<U32>(warp, self.units);
        Part {
            full: b.byte_index(self.full, warp, 8 * ENTRIES),
            empty_distance: self.warps * ENTRIES,
            memory: b.byte_index(self.memory, before, UNIT_BYTES),
        }
    }
}

/// The super-blocks of a matrix that a warp has: of `left`, `each` at most from the first on, and as many `step` further on, until
/// none is left. What it has at once is an entry of its part of the ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deal {
    /// The number of the first one in the matrix.
    pub(crate) first: Val<U32>,
    pub(crate) left: Val<U32>,
    pub(crate) each: Val<U32>,
    /// No less than `each`.
    pub(crate) step: Val<U32>,
}

/// A warp's part of a ring.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// `[ENTRIES]`.
    full: Shared<U64>,
    /// How many mbarriers on those for emptiness lie.
    empty_distance: u32,
    memory: Shared<U8>,
}

impl Part {
    /// The mbarrier that says whether an entry is full.
    fn full(&self, b: &mut Builder, entry: Val<U32>) -> Shared<U64> {
        let slot = b.and::<U32>(entry, ENTRIES - 1);
        b.index(self.full, slot)
    }

    /// The one beside it that says whether the entry is empty.
    fn empty(&self, full: Shared<U64>) -> Shared<U64> {
        full.at(self.empty_distance)
    }
}

/// The parity of an entry's phase.
fn parity(b: &mut Builder, entry: Val<U32>) -> Val<U32> {
    let phase = b.shr::<U32>(entry, ENTRIES.trailing_zeros());
    b.and::<U32>(phase, 1)
}
