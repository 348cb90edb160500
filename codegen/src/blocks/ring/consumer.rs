use super::{Deal, FIRST_ENTRY, Part, Ring};
use crate::blocks::wait::{self, Limit};
use crate::formats::Weights;
use crate::ptx::{Builder, F16, LoadKind, Pred, Shared, U8, U32, U64, Val, Var, Work};
use kiln_shape::ring::{self, ENTRIES, UNIT_BYTES};
use kiln_shape::{Layout, SUPER_BLOCK, WeightType};

/// A consumer warp's end of the ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Consumer {
    ring: Ring,
    limit: Limit,
    /// The unit behind the last entry, in eight bits, and above it the next entry's number, in one register: they are short
    /// beside attention.
    at: Var<U32>,
}

/// Bits of the unit.
const UNIT_BITS: u32 = 8;
const MBARRIER_BYTES: u32 = 8;

/// From one entry of a run to the next.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// The last unit at which an entry may begin.
    last: Val<U32>,
    /// What `at` goes on by: the entry's units, and one in its number.
    on: Val<U32>,
}

impl Consumer {
    /// The end of the warp that runs it.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, ring: Ring, limit: Limit) -> Consumer {
        Consumer { ring, limit, at: b.var::<U32>(FIRST_ENTRY << UNIT_BITS) }
    }

    /// Tells the producer whether the head follows the layers of the token that begins. By every thread of the consumers.
    #[track_caller]
    pub(crate) fn begin_token(&self, b: &mut Builder, head_follows: Val<Pred>) {
        let Ring { told, heard, head_follows: word, tokens, .. } = self.ring;
        let tid = b.tid();
        let first = b.setp_eq(tid, 0);
        b.if_(first, |b| {
            let before = b.ld(tokens, LoadKind::Ordinary);
            // The word of the token before was read.
            let any = b.setp_ne(before, 0);
            b.if_(any, |b| {
                let parity = b.sub::<U32>(before, 1);
                let parity = b.and::<U32>(parity, 1);
                wait::for_phase(b, self.limit, heard, parity);
            });
            let follows = b.selp::<U32>(1, 0, head_follows);
            b.st(word, follows);
            b.mbarrier_arrive(told);
            let next = b.add::<U32>(before, 1);
            b.st(tokens, next);
        });
    }

    /// Tells the producer that nobody takes entries any more. By every thread of the consumers.
    #[track_caller]
    pub(crate) fn leave(&self, b: &mut Builder) {
        let tid = b.tid();
        let first = b.setp_eq(tid, 0);
        b.if_(first, |b| b.mbarrier_arrive(self.ring.leaving));
    }

    /// The shared memory behind the ring.
    #[track_caller]
    pub(crate) fn rest(&self, b: &mut Builder) -> Shared<U8> {
        let units = b.mul::<U32>(self.ring.units, self.ring.warps);
        b.byte_index(self.ring.memory, units, UNIT_BYTES)
    }

    /// Super-blocks that lanes work on at once.
    pub(crate) const fn records(&self) -> Val<U32> {
        self.ring.records
    }

    /// Runs `body` in all lanes for the warp's next super-blocks of a matrix, of which it must have some, with whether the lane
    /// has one of its own, and that one's weights; a lane that has none sees another's.
    ///
    /// From sm_90 on weights come to registers at once, behind which the entry is empty: the next one is on its way while this
    /// one is multiplied, and the warp waits for shared memory once an entry. Before, registers are short.
    #[track_caller]
    pub(crate) fn each(
        &self,
        b: &mut Builder,
        ty: WeightType,
        deal: &Deal,
        body: impl FnOnce(&mut Builder, Val<Pred>, &Weights),
    ) {
        let layout = ty.layout();
        let (lane, warp, records) = (b.lane(), b.warp_id(), self.ring.records);
        // Here rather than once: attention has no register left for it.
        let part = self.ring.part(b, warp);
        let units = self.ring.units_of(b, layout);
        let planes = b.mul::<U32>(records, ring::stride(layout));
        // Copies of planes begin at a multiple of 16 bytes.
        let slack = ring::records_of_slack(layout);
        let number = (slack > 1).then(|| b.var::<U32>(deal.first));
        let most = b.sub::<U32>(deal.each, 1);
        let leads = b.setp_eq(lane, 0);
        let step = Step { last: b.sub::<U32>(self.ring.units, units), on: b.add::<U32>(units, 1 << UNIT_BITS) };
        let behind = b.sub::<U32>(deal.left, 1);
        let behind = b.var::<U32>(behind);
        b.do_while(|b| {
            b.each_iteration(Work::Weights(ty, SUPER_BLOCK));
            let last = b.min::<U32>(behind, most);
            let has = b.setp_ge(last, lane);
            let own = b.min::<U32>(lane, last);
            let (place, full) = self.take(b, part, step);
            let at_once = b.target().sm() >= 90;
            let planes = match number {
                None => planes,
                Some(number) => {
                    let before = b.and::<U32>(number, slack - 1);
                    let next = b.add::<U32>(number, deal.step);
                    b.set(number, next);
                    b.mad::<U32>(before, layout.plane, planes)
                }
            };
            let weights = weights(b, layout, place, planes, own, at_once);
            let read = |b: &mut Builder| {
                b.bar_warp_sync(); // every lane has read its record
                b.if_(leads, |b| b.mbarrier_arrive(part.empty(full)));
            };
            if at_once {
                read(b);
            }
            let more = b.setp_ge::<U32>(behind, deal.step);
            let next = b.sub::<U32>(behind, deal.step);
            b.set(behind, next);
            body(b, has, &weights);
            if !at_once {
                read(b);
            }
            more
        });
    }

    /// Waits for the next entry, and gives its place and the mbarrier that says it is full.
    fn take(&self, b: &mut Builder, part: Part, step: Step) -> (Shared<U8>, Shared<U64>) {
        let at = b.get(self.at);
        let unit = b.and::<U32>(at, (1 << UNIT_BITS) - 1);
        let fits = b.setp_ge(step.last, unit);
        let begin = b.selp::<U32>(unit, 0, fits);
        let entry = b.sub::<U32>(at, unit);
        let next = b.add::<U32>(entry, begin);
        let next = b.add::<U32>(next, step.on);
        b.set(self.at, next);
        // The number stands above the unit in `at`.
        let slot = b.shr::<U32>(at, UNIT_BITS - MBARRIER_BYTES.trailing_zeros());
        let slot = b.and::<U32>(slot, MBARRIER_BYTES * (ENTRIES - 1));
        let full = b.byte_index(part.full, slot, 1);
        let phase = b.shr::<U32>(at, UNIT_BITS + ENTRIES.trailing_zeros());
        let parity = b.and::<U32>(phase, 1);
        wait::for_phase(b, self.limit, full, parity);
        (b.byte_index(part.memory, begin, UNIT_BYTES), full)
    }
}

/// The weights of record `own` of an entry, whose planes begin `planes` bytes behind its place: the data in registers, if all
/// are wanted at once.
fn weights(
    b: &mut Builder,
    layout: Layout,
    place: Shared<U8>,
    planes: Val<U32>,
    own: Val<U32>,
    at_once: bool,
) -> Weights {
    let quads = |b: &mut Builder, from: Shared<U8>, bytes: u32| -> Vec<[Val<U32>; 4]> {
        (0..bytes / 16).map(|i| b.ld_vector(from.at(16 * i).cast::<U32>(), LoadKind::Ordinary)).collect()
    };
    let data = b.byte_index(place, own, ring::stride(layout));
    let held = if at_once { quads(b, data, layout.data) } else { Vec::new() };
    let (mut plane, mut half) = (Vec::new(), None);
    if layout.plane > 0 {
        let at = b.byte_index(place, planes, 1);
        let at = b.byte_index(at, own, layout.plane);
        plane = quads(b, at, layout.plane);
        half = (layout.plane == 2).then(|| b.ld(at.cast::<F16>(), LoadKind::Ordinary));
    }
    if at_once {
        Weights::Held { quads: held, plane, half }
    } else {
        Weights::Shared { data: data.cast(), plane, half }
    }
}
