use super::copy::{Asked, copy};
use super::{Copies, Deal, FIRST_ENTRY, Part, Ring, parity};
use crate::blocks::tensor::Tensor;
use crate::blocks::wait::Limit;
use crate::formats::format;
use crate::ptx::{Builder, Compare, LoadKind, Pred, U32, U64, Val, Var};
use kiln_shape::WeightType;
use kiln_shape::ring::{self, ENTRIES, UNIT_BYTES};

/// Records of a warp that may be under way at once: with seven warps 32 KB of Q4_K in a block. More wait in line before the L2
/// cache, and what the blocks hand each other behind them: with all of the ring under way, an H200 had the first words of
/// the FFN's vector after 2.6 us in a layer of Qwen3-8B, with 64 KB after 1.2. With these it decoded 659.7 tokens/s of Qwen3-8B and 1032.8 of Qwen2.5-3B, with 64 KB 655.5
/// and 1009.5, with 128 KB 630.6 and 993.8, on one machine.
const FLIGHT: u32 = 32;

/// The producer warp's end of the ring: lane w keeps the part of consumer warp w. No lane waits for another's consumer: a
/// lane that has no room asks again, while others go on. What lanes ask for is copied for each by itself or by all of them.
#[derive(Debug, Clone)]
pub(crate) struct Producer {
    ring: Ring,
    limit: Limit,
    part: Part,
    /// The number of the next entry, and the unit behind the one before.
    entry: Var<U32>,
    at: Var<U32>,
    /// The number of the first entry that was not yet seen empty.
    oldest: Var<U32>,
    /// Units that no entry has.
    free: Var<U32>,
    /// Units of the entries from the oldest on, with what was skipped for each, four bits an entry.
    sizes: Var<U32>,
    /// Entries that may be under way at once: four at most.
    most: Val<U32>,
    /// Tokens whose word was read.
    tokens: Var<U32>,
    /// 1 once the consumers leave.
    over: Var<U32>,
    /// What was taken and is not in the ring yet.
    taken: Taken,
}

/// Records, in registers.
#[derive(Debug, Clone, Copy)]
struct Taken {
    data: Var<U64>,
    plane: Var<U64>,
    ty: Var<U32>,
    /// First, left, each and step.
    deal: [Var<U32>; 4],
    begins: Var<U32>,
}

impl Taken {
    /// One of no records.
    fn none(b: &mut Builder) -> Taken {
        let [data, plane] = [(); 2].map(|()| b.var::<U64>(0u64));
        let [ty, begins] = [(); 2].map(|()| b.var::<U32>(0));
        Taken { data, plane, ty, deal: [(); 4].map(|()| b.var::<U32>(0)), begins }
    }

    fn set(&self, b: &mut Builder, of: &Records) {
        let (data, plane) = (b.address(of.tensor.data), b.address(of.tensor.plane));
        b.set(self.data, data);
        b.set(self.plane, plane);
        b.set(self.ty, of.tensor.ty);
        let Deal { first, left, each, step } = of.deal;
        self.deal.into_iter().zip([first, left, each, step]).for_each(|(own, of)| b.set(own, of));
        b.set(self.begins, of.begins);
    }

    fn get(&self, b: &mut Builder) -> Records {
        let [data, plane] = [self.data, self.plane].map(|address| {
            let address = b.get(address);
            b.global_ptr(address)
        });
        let tensor = Tensor { data, plane, ty: b.get(self.ty) };
        let [first, left, each, step] = self.deal.map(|own| b.get(own));
        Records { tensor, deal: Deal { first, left, each, step }, begins: b.get(self.begins) }
    }
}

/// Super-blocks of a matrix, for a lane's consumer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Records {
    pub(crate) tensor: Tensor,
    /// Which of them; may be none.
    pub(crate) deal: Deal,
    /// A word that is handed back once the records before these are in the ring; 0 for none.
    pub(crate) begins: Val<U32>,
}

/// What a type decides about its entries; the same in all lanes.
pub(super) struct Sizes {
    pub(super) data: Val<U32>,
    pub(super) stride: Val<U32>,
    pub(super) plane: Val<U32>,
    /// Of a record's number the bits by which its plane may lie behind a multiple of 16 bytes.
    pub(super) odd: Val<U32>,
    units: Val<U32>,
    /// Whether such weights go through the ring.
    pub(super) streams: Val<Pred>,
}

impl Sizes {
    pub(super) fn of(b: &mut Builder, ring: &Ring, types: &[WeightType], ty: Val<U32>) -> Sizes {
        let mut zero = || b.mov::<U32>(0);
        let (mut data, mut stride, mut plane, mut slack, mut odd) = (zero(), zero(), zero(), zero(), zero());
        for known in types.iter().filter(|ty| format(**ty).int8().is_some()) {
            let layout = known.layout();
            let is = b.setp_eq(ty, known.id());
            data = b.selp::<U32>(layout.data, data, is);
            stride = b.selp::<U32>(ring::stride(layout), stride, is);
            plane = b.selp::<U32>(layout.plane, plane, is);
            slack = b.selp::<U32>(ring::slack(layout), slack, is);
            odd = b.selp::<U32>(ring::records_of_slack(layout) - 1, odd, is);
        }
        let bytes = b.add::<U32>(stride, plane);
        let bytes = b.mad::<U32>(bytes, ring.records, slack);
        let bytes = b.add::<U32>(bytes, UNIT_BYTES - 1);
        let units = b.div::<U32>(bytes, UNIT_BYTES);
        Sizes { data, stride, plane, odd, units, streams: b.setp_ne(data, 0) }
    }
}

impl Producer {
    /// By the producer warp.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, ring: Ring, limit: Limit) -> Producer {
        let lane = b.lane();
        let own = b.min::<U32>(lane, ring.warps - 1);
        let part = ring.part(b, own);
        let policy = (ring.copies == Copies::Bulk).then(|| b.evict_first());
        let ring = Ring { policy, ..ring };
        let free = b.var::<U32>(ring.units);
        let most = b.div::<U32>(FLIGHT, ring.records);
        let [entry, oldest] = [(); 2].map(|()| b.var::<U32>(FIRST_ENTRY));
        let [at, sizes, tokens, over] = [(); 4].map(|()| b.var::<U32>(0));
        Producer { ring, limit, part, entry, at, oldest, free, sizes, most, tokens, over, taken: Taken::none(b) }
    }

    /// Consumer warps.
    pub(crate) const fn warps(&self) -> u32 {
        self.ring.warps
    }

    /// Super-blocks of an entry, at most.
    pub(crate) const fn records(&self) -> Val<U32> {
        self.ring.records
    }

    /// Whether the consumers have not left, the same in all lanes.
    #[track_caller]
    pub(crate) fn stays(&self, b: &mut Builder) -> Val<Pred> {
        let over = b.setp_ne(self.over, 0);
        let over = b.vote_any(over);
        b.not_pred(over)
    }

    /// Takes each lane's next records, and fills entries with those before them, in their order; no more once the
    /// consumers have left. Then hands back, where it is not 0, the word of the records behind those.
    #[track_caller]
    pub(crate) fn fill(
        &self,
        b: &mut Builder,
        types: &[WeightType],
        next: &Records,
        begins: impl FnOnce(&mut Builder, Val<U32>),
    ) {
        let of = self.taken.get(b);
        let Records { tensor, deal: Deal { first, left, each, step }, .. } = of;
        let sizes = Sizes::of(b, &self.ring, types, tensor.ty);
        let done = b.var::<U32>(0);
        let more = |b: &mut Builder| {
            let (more, stays) = (b.setp_lt::<U32>(done, left), b.setp_eq(self.over, 0));
            let more = b.and_pred(more, stays);
            b.vote_any(more)
        };
        b.while_(more, |b| {
            let asked = (self.ring.copies == Copies::Lanes).then(|| Asked::none(b));
            self.take_back(b);
            let begin = b.get(self.at);
            let end = b.add::<U32>(begin, sizes.units);
            let fits = b.setp_ge(self.ring.units, end);
            let skipped = b.sub::<U32>(self.ring.units, begin);
            let skipped = b.selp::<U32>(0, skipped, fits);
            let taken = b.add::<U32>(sizes.units, skipped);
            let begin = b.selp::<U32>(begin, 0, fits);
            let (entry, oldest) = (b.get(self.entry), b.get(self.oldest));
            let under_way = b.sub::<U32>(entry, oldest);
            let (has_more, has_room) = (b.setp_lt::<U32>(done, left), b.setp_ge::<U32>(self.free, taken));
            let has_place = b.setp_ne(under_way, ENTRIES);
            let may = b.and_pred(has_room, has_place);
            let may = b.and_pred(may, has_more);
            let may = match self.ring.copies {
                Copies::Bulk => {
                    let landed = self.has_landed(b, entry);
                    b.and_pred(may, landed)
                }
                Copies::Lanes => may,
            };
            b.if_(may, |b| {
                let free = b.sub::<U32>(self.free, taken);
                b.set(self.free, free);
                let place = b.shl::<U32>(under_way, 2);
                let size = b.shl::<U32>(taken, place);
                let all = b.or::<U32>(self.sizes, size);
                b.set(self.sizes, all);
                let end = b.add::<U32>(begin, sizes.units);
                b.set(self.at, end);
                let next = b.add::<U32>(entry, 1);
                b.set(self.entry, next);
                let left = b.sub::<U32>(left, done);
                let records = b.min::<U32>(left, each);
                let number = b.add::<U32>(first, done);
                let next = b.add::<U32>(done, step);
                b.set(done, next);
                match &asked {
                    Some(asked) => asked.ask(b, (begin, entry), (number, records)),
                    None => copy(b, &self.ring, &sizes, tensor, (self.part, begin, entry), (number, records)),
                }
            });
            if let Some(asked) = &asked {
                asked.serve(b, &self.ring, &sizes, tensor);
            }
            let any = b.vote_any(may);
            let none = b.not_pred(any);
            b.if_(none, |b| self.look_at_end(b));
        });
        // The next records' table entry is used behind the loop alone, so that it may be on its way meanwhile.
        let of_next = Sizes::of(b, &self.ring, types, next.tensor.ty);
        let deal = Deal { left: b.selp::<U32>(next.deal.left, 0, of_next.streams), ..next.deal };
        let next = Records { deal, ..*next };
        self.taken.set(b, &next);
        let word = b.get(self.taken.begins);
        let any = b.setp_ne(word, 0);
        b.if_(any, |b| begins(b, word));
    }

    /// Whether no more copies than may be are under way before an entry.
    fn has_landed(&self, b: &mut Builder, entry: Val<U32>) -> Val<Pred> {
        let before = b.sub::<U32>(entry, self.most);
        let (full, of_before) = (self.part.full(b, before), parity(b, before));
        b.mbarrier_test_wait(full, of_before)
    }

    /// Takes the oldest entry's units back, if it is empty. In all lanes alike, so that the warp goes one way.
    fn take_back(&self, b: &mut Builder) {
        let oldest = b.get(self.oldest);
        let full = self.part.full(b, oldest);
        let (empty, of_oldest) = (self.part.empty(full), parity(b, oldest));
        let is_empty = b.mbarrier_test_wait(empty, of_oldest);
        let is_entry = b.setp_ne(oldest, self.entry);
        let is_empty = b.and_pred(is_empty, is_entry);
        let size = b.and::<U32>(self.sizes, 15);
        let size = b.selp::<U32>(size, 0, is_empty);
        let free = b.add::<U32>(self.free, size);
        b.set(self.free, free);
        let rest = b.shr::<U32>(self.sizes, 4);
        let rest = b.selp::<U32>(rest, self.sizes, is_empty);
        b.set(self.sizes, rest);
        let one = b.selp::<U32>(1, 0, is_empty);
        let next = b.add::<U32>(oldest, one);
        b.set(self.oldest, next);
    }

    /// Looks whether the consumers leave, and sleeps for a moment.
    fn look_at_end(&self, b: &mut Builder) {
        let leaving = b.mbarrier_test_wait(self.ring.leaving, 0);
        let over = b.selp::<U32>(1, 0, leaving);
        b.set(self.over, over);
        b.nanosleep(32);
    }

    /// Waits for the word of the token whose layers are filled; whether its head follows, the same in all lanes. Not where
    /// the consumers leave.
    #[track_caller]
    pub(crate) fn head_follows(&self, b: &mut Builder) -> Val<Pred> {
        let Ring { told, heard, head_follows, .. } = self.ring;
        let parity = b.and::<U32>(self.tokens, 1);
        let is_told = b.var::<U32>(0);
        b.do_while(|b| {
            let over = b.mbarrier_test_wait(told, parity);
            let now = b.selp::<U32>(1, 0, over);
            b.set(is_told, now);
            let waits = b.not_pred(over);
            b.if_(waits, |b| self.look_at_end(b));
            let stays = b.setp_eq(self.over, 0);
            let waits = b.and_pred(waits, stays);
            b.vote_any(waits)
        });
        // Lanes may have seen different things: all of them go on with the word, or none.
        let missed = b.setp_eq(is_told, 0);
        let missed = b.vote_any(missed);
        let follows = b.var::<U32>(0);
        b.if_else(
            missed,
            |b| b.set(self.over, 1),
            |b| {
                let word = b.ld(head_follows, LoadKind::Ordinary);
                b.set(follows, word);
                b.bar_warp_sync(); // every lane has read the word
                let lane = b.lane();
                let leads = b.setp_eq(lane, 0);
                b.if_(leads, |b| b.mbarrier_arrive(heard));
            },
        );
        let next = b.add::<U32>(self.tokens, 1);
        b.set(self.tokens, next);
        let follows = b.setp(Compare::Ne, follows, 0u32);
        b.vote_any(follows)
    }

    /// Waits for every copy under way. A copy that does not land within the limit is the end of the context, by a trap: its
    /// block cannot leave.
    #[track_caller]
    pub(crate) fn drain(&self, b: &mut Builder) {
        let lane = b.lane();
        let fills = b.setp_lt(lane, self.ring.warps);
        b.if_(fills, |b| {
            let (oldest, entry) = (b.get(self.oldest), b.get(self.entry));
            let under_way = b.sub::<U32>(entry, oldest);
            b.for_range(0, under_way, 1, |b, behind| {
                let entry = b.add::<U32>(oldest, behind);
                let (full, parity) = (self.part.full(b, entry), parity(b, entry));
                let since = b.globaltimer();
                b.do_while(|b| {
                    let landed = b.mbarrier_test_wait(full, parity);
                    let waits = b.not_pred(landed);
                    b.if_(waits, |b| {
                        b.nanosleep(32);
                        let now = b.globaltimer();
                        let waited = b.sub(now, since);
                        let long = b.setp(Compare::Gt, waited, self.limit.nanoseconds);
                        b.if_(long, Builder::trap);
                    });
                    waits
                });
            });
        });
    }
}
