//! The leader's side of the mailbox: the first warp of the grid, a lane for every second slot.
//!
//! Once a pass, while the pass runs, it reads all doorbells, stop words and ring positions together. Before the pass's last
//! barrier it takes new items, ends stopped ones, and chooses the next pass's columns: the first slots behind the last
//! that have an item, no mask to wait for, and room in their rings. So no item waits for more than one token of each other.

use super::column::word;
use super::{Decoder, Pass};
use crate::ptx::{Builder, Compare, LoadKind, LoadOrder, Operand, Pred, Scope, StoreOrder, U32, U64, Val, Var};
use kiln_shape::choice;
use kiln_shape::mailbox::{self, SLOTS, command, entry, item, report, state};

/// Slots of a lane.
const EACH: u32 = SLOTS / 32;
const _: () =
    assert!(mailbox::ITEM_WORDS > 64 && mailbox::ITEM_WORDS <= 96, "a lane takes two or three words of an item");
/// No slot: greater than every distance between two.
const NONE: u32 = u32::MAX;

/// The host's words as a lane has read them: those of its slots, and those of the whole mailbox.
pub(super) struct Look {
    doorbell: [Var<U32>; EACH as usize],
    stop: [Var<U32>; EACH as usize],
    consumed: [Var<U32>; EACH as usize],
    park: Var<U32>,
    yields: Var<U32>,
    /// The next id of the prompt of the lane's column.
    next_id: Var<U32>,
}

impl Look {
    fn new(b: &mut Builder) -> Look {
        let mut zero = || b.var::<U32>(0);
        Look {
            doorbell: [zero(), zero()],
            stop: [zero(), zero()],
            consumed: [zero(), zero()],
            park: zero(),
            yields: zero(),
            next_id: zero(),
        }
    }
}

impl Decoder<'_> {
    // ---- the leader's words, in shared memory during a launch

    /// Loads the words kept by the launch before.
    pub(super) fn wake(&self, b: &mut Builder) {
        self.resume_trace(b);
        b.if_(self.leads, |b| {
            let lane = b.lane();
            b.for_range(lane, state::KEPT, 32, |b, i| {
                let (from, to) = (b.index(self.state, i), b.index(self.kept, i));
                let word = b.ld(from, LoadKind::Ordinary);
                b.st(to, word);
            });
            b.bar_warp_sync(); // the words are in shared memory
        });
    }

    /// Stores the kept words for the next launch, and tells the host that this one has left.
    pub(super) fn sleep(&self, b: &mut Builder) {
        b.if_(self.leader, |b| self.keep_trace(b));
        b.if_(self.leads, |b| {
            b.bar_warp_sync(); // the leader's last words are in shared memory
            let lane = b.lane();
            b.for_range(lane, state::KEPT, 32, |b, i| {
                let (from, to) = (b.index(self.kept, i), b.index(self.state, i));
                let word = b.ld(from, LoadKind::Ordinary);
                b.st(to, word);
            });
        });
        b.if_(self.leader, |b| b.st_sync(self.report.at(report::LEFT), self.launch, StoreOrder::Release, Scope::Sys));
    }

    /// A kept word of a slot.
    fn kept(&self, b: &mut Builder, word: u32, slot: impl Operand<U32>) -> Val<U32> {
        let at = b.index(self.kept.at(word), slot);
        b.ld(at, LoadKind::Ordinary)
    }

    /// Sets a kept word of a slot.
    pub(super) fn keep(&self, b: &mut Builder, word: u32, slot: impl Operand<U32>, value: impl Operand<U32>) {
        let at = b.index(self.kept.at(word), slot);
        b.st(at, value);
    }

    /// The place of the log-probability that goes with the next entry of a slot's ring.
    pub(super) fn next_logprob(&self, b: &mut Builder, slot: Val<U32>) -> Val<U32> {
        let number = self.kept(b, state::EMITTED, slot);
        b.and(number, mailbox::LOGPROBS - 1)
    }

    /// Writes an entry of a slot's ring. A token's store may be relaxed, since its tag says that it has arrived. An
    /// item's end is a release: a host that acquires it sees all that the item has written.
    pub(super) fn emit(&self, b: &mut Builder, slot: Val<U32>, kind: Val<U32>, payload: Val<U32>, order: StoreOrder) {
        let kept = b.index(self.kept, slot);
        let number = b.ld(kept.at(state::EMITTED), LoadKind::Ordinary);
        let next = b.add(number, 1);
        b.st(kept.at(state::EMITTED), next);
        let place = b.and(number, mailbox::RING_ENTRIES - 1);
        let place = b.mad::<U32>(slot, mailbox::RING_ENTRIES, place);
        let to = b.index(self.rings, place);
        let item = b.ld(kept.at(state::NUMBER), LoadKind::Ordinary);
        let item = b.and(item, 0xff);
        let item = b.shl::<U32>(item, 20);
        let low = b.and(next, 0xf_ffff);
        let tag = b.mad::<U32>(kind, 1 << 28, item);
        let tag = b.or(tag, low);
        let word = b.pack64(payload, tag);
        b.st_sync(to, word, order, Scope::Sys);
    }

    /// Ends a slot's item.
    pub(super) fn end(&self, b: &mut Builder, slot: Val<U32>, kind: Val<U32>, payload: Val<U32>) {
        self.emit(b, slot, kind, payload, StoreOrder::Release);
        self.keep(b, state::ACTIVE, slot, 0);
    }

    // ---- the host's words

    /// The leader's loads of the host's words, once a pass: their latency overlaps the pass's work.
    pub(super) fn look(&self, b: &mut Builder, pass: &Pass) -> Look {
        let look = Look::new(b);
        b.if_(self.leads, |b| {
            self.look_at_slots(b, &look);
            let (columns, lane) = (&self.columns, b.lane());
            let runs = b.setp_lt::<U32>(lane, pass.count);
            b.if_(runs, |b| {
                let (step, prompt) = (columns.get(b, word::STEP, lane), columns.of_item(b, lane, item::PROMPT));
                let next = b.add::<U32>(step, 1);
                let in_prompt = b.setp_lt(next, prompt);
                b.if_(in_prompt, |b| {
                    let ids = columns.pointer::<U32>(b, lane, item::IDS);
                    let at = b.index(ids, next);
                    let id = b.ld_sync(at, LoadOrder::Relaxed, Scope::Sys);
                    b.set(look.next_id, id);
                });
            });
        });
        look
    }

    fn look_at_slots(&self, b: &mut Builder, look: &Look) {
        let lane = b.lane();
        let at = b.index(self.mailbox, lane);
        let see = |b: &mut Builder, word: u32| b.ld_sync(at.at(word), LoadOrder::Relaxed, Scope::Sys);
        for half in 0..EACH {
            let index = half as usize;
            let doorbell = see(b, mailbox::DOORBELL + 32 * half);
            let stop = see(b, mailbox::STOP + 32 * half);
            let consumed = see(b, mailbox::CONSUMED + 32 * half);
            b.set(look.doorbell[index], doorbell);
            b.set(look.stop[index], stop);
            b.set(look.consumed[index], consumed);
        }
        let park = b.ld_sync(self.mailbox.at(mailbox::PARK), LoadOrder::Relaxed, Scope::Sys);
        let yields = b.ld_sync(self.mailbox.at(mailbox::YIELD), LoadOrder::Relaxed, Scope::Sys);
        b.set(look.park, park);
        b.set(look.yields, yields);
    }

    /// Takes new items, as many as a pass has columns at most: so that none waits behind those whose slots come before its
    /// own again and again, each is of the first slot behind that of the one before.
    fn take_new(&self, b: &mut Builder, look: &Look) {
        let left = b.var::<U32>(self.columns.limit());
        b.do_while(|b| {
            let last = b.ld(self.kept.at(state::TAKEN), LoadKind::Ordinary);
            let taken = self.take_one(b, look, last);
            let next = b.sub::<U32>(left, 1);
            b.set(left, next);
            let more = b.setp_ne(next, 0);
            b.and_pred(more, taken)
        });
    }

    /// Takes the item of the first slot behind `last` that has a new one: its words come from the host in one round trip.
    /// Returns whether there was one, the same in the whole warp.
    fn take_one(&self, b: &mut Builder, look: &Look, last: Val<U32>) -> Val<Pred> {
        let lane = b.lane();
        let mut nearest = b.mov::<U32>(NONE);
        for half in 0..EACH {
            let slot = b.add(lane, 32 * half);
            let number = self.kept(b, state::NUMBER, slot);
            let active = self.kept(b, state::ACTIVE, slot);
            let rung = b.setp_ne::<U32>(look.doorbell[half as usize], number);
            let free = b.setp_eq(active, 0);
            let new = b.and_pred(rung, free);
            let distance = distance_behind(b, slot, last);
            let distance = b.selp::<U32>(distance, NONE, new);
            nearest = b.min(nearest, distance);
        }
        let nearest = least(b, nearest);
        let some = b.setp_ne(nearest, NONE);
        let slot = slot_behind(b, last, nearest);
        b.if_(some, |b| {
            b.fence_acq_rel(Scope::Sys); // the doorbell was seen: so are the words that were written before it
            b.bar_warp_sync(); // by one lane, and read by all
            let from = b.byte_index(self.mailbox.at(mailbox::ITEMS), slot, mailbox::ITEM_WORDS * 4);
            let to = b.byte_index(self.state.at(state::ITEMS), slot, mailbox::ITEM_WORDS * 4);
            let (from, to) = (b.index(from, lane), b.index(to, lane));
            let (has_last, last) = (b.setp_lt(lane, mailbox::ITEM_WORDS - 64), b.var::<U32>(0));
            b.if_(has_last, |b| {
                let word = b.ld_sync(from.at(64), LoadOrder::Relaxed, Scope::Sys);
                b.set(last, word);
            });
            let low = b.ld_sync(from, LoadOrder::Relaxed, Scope::Sys);
            let high = b.ld_sync(from.at(32), LoadOrder::Relaxed, Scope::Sys);
            b.st(to, low);
            b.st(to.at(32), high);
            b.if_(has_last, |b| b.st(to.at(64), last));
            let mut word = |word| b.shfl_idx(low, word);
            let (number, prompt, room) = (word(item::NUMBER), word(item::PROMPT), word(item::ROOM));
            let (position, id) = (word(item::POSITION), word(item::FIRST_ID));
            let first = b.setp_eq(lane, 0);
            b.bar_warp_sync(); // every lane has read its slots' words
            b.if_(first, |b| {
                b.st(self.kept.at(state::TAKEN), slot);
                let kept = b.index(self.kept, slot);
                b.st(kept.at(state::NUMBER), number);
                b.st(kept.at(state::STEP), 0);
                b.st(kept.at(state::TOKEN), id);
                b.st(kept.at(state::MADE), 0);
                b.st(kept.at(state::ACTIVE), 1);
                let end = b.var::<U32>(0);
                let full = b.setp_ge(position, room);
                b.if_(full, |b| b.set(end, entry::CONTEXT_FULL));
                let unknown = b.setp_ge::<U32>(id, self.vocab);
                let empty = b.setp_eq(prompt, 0);
                let bad = b.or_pred(unknown, empty);
                b.if_(bad, |b| b.set(end, entry::REJECTED));
                let ends = b.setp_ne(end, 0);
                b.if_(ends, |b| {
                    let kind = b.get(end);
                    self.end(b, slot, kind, id);
                });
            });
        });
        b.bar_warp_sync(); // the slot's words are in shared memory
        some
    }

    /// The column of the pass that runs a slot's item, or [`NONE`].
    fn column_of(&self, b: &mut Builder, running: Option<&Pass>, slot: Val<U32>) -> Val<U32> {
        let found = b.var::<U32>(NONE);
        if let Some(pass) = running {
            self.columns.each(b, pass, |b, column| {
                let own = self.columns.get(b, word::SLOT, column);
                let is = b.setp_eq(own, slot);
                b.if_(is, |b| b.set(found, column));
            });
        }
        b.get(found)
    }

    /// Ends the stopped items of a lane's slots; of those in the pass that runs their columns take note.
    fn end_stopped(&self, b: &mut Builder, look: &Look, running: Option<&Pass>) {
        each_half(b, |b, half, slot| {
            let number = self.kept(b, state::NUMBER, slot);
            let active = self.kept(b, state::ACTIVE, slot);
            let stop = of_half(b, &look.stop, half);
            let asked = b.setp_eq::<U32>(stop, number);
            let active = b.setp_ne(active, 0);
            let stops = b.and_pred(asked, active);
            b.if_(stops, |b| {
                let column = self.column_of(b, running, slot);
                let runs = b.setp_ne(column, NONE);
                b.if_else(
                    runs,
                    |b| {
                        let to = self.columns.place(b, self.columns.stops, column);
                        b.st(to, 1);
                    },
                    |b| {
                        let (kind, none) = (b.mov::<U32>(entry::STOPPED), b.mov::<U32>(0));
                        self.end(b, slot, kind, none);
                    },
                );
            });
        });
        b.bar_warp_sync(); // what has ended is in shared memory
    }

    /// Whether the mask for the next token of a slot's item is not there. It is looked for as late as can be: the trip to the
    /// host's memory is short beside the pass that its item would wait for besides.
    fn awaits_mask(&self, b: &mut Builder, slot: Val<U32>) -> Val<Pred> {
        let item = b.byte_index(self.state.at(state::ITEMS), slot, 4 * mailbox::ITEM_WORDS);
        let mask = b.ld(item.at(item::CHOICE + choice::MASK).cast::<U64>(), LoadKind::Ordinary);
        let at = b.global_ptr::<U32>(mask).at(choice::mask::POSITION);
        let found = b.ld_sync(at, LoadOrder::Relaxed, Scope::Sys);
        let (first, step) = (b.ld(item.at(item::POSITION), LoadKind::Ordinary), self.kept(b, state::STEP, slot));
        let next = b.add::<U32>(first, step);
        let next = b.add::<U32>(next, 1);
        b.setp_ne(found, next)
    }

    /// How far a slot of a lane is behind `last`, if it has an item, no mask to wait for, and room in its ring, or `NONE`.
    fn distance(
        &self,
        b: &mut Builder,
        look: &Look,
        (half, slot): (Val<U32>, Val<U32>),
        last: Val<U32>,
        running: Option<&Pass>,
    ) -> Val<U32> {
        let active = self.kept(b, state::ACTIVE, slot);
        let emitted = self.kept(b, state::EMITTED, slot);
        let runs = b.var(active);
        let awaits = b.setp_eq(active, state::AWAITS_MASK);
        b.if_(awaits, |b| {
            let is_late = self.awaits_mask(b, slot);
            b.if_(is_late, |b| b.set(runs, 0));
        });
        // A token and the item's end must fit.
        let needed = b.var::<U32>(2);
        if running.is_some() {
            let column = self.column_of(b, running, slot);
            let own = b.setp_ne(column, NONE);
            b.if_(own, |b| {
                let chooses = self.columns.chooses(b, column);
                let one = b.selp::<U32>(3, 2, chooses);
                b.set(needed, one);
                let stops = self.columns.place(b, self.columns.stops, column);
                let stops = b.ld(stops, LoadKind::Ordinary);
                let stops = b.setp_ne(stops, 0);
                b.if_(stops, |b| b.set(runs, 0));
            });
        }
        let consumed = of_half(b, &look.consumed, half);
        let unread = b.sub::<U32>(emitted, consumed);
        let unread = b.add::<U32>(unread, needed);
        let fits = b.setp(Compare::Le, unread, mailbox::RING_ENTRIES);
        let runs = b.setp_ne(runs, 0);
        let runs = b.and_pred(runs, fits);
        let distance = distance_behind(b, slot, last);
        b.selp::<U32>(distance, NONE, runs)
    }

    /// Writes the columns of a command: of the slots behind `last` the first that [`distance`](Self::distance) finds.
    /// Returns how many there are, in every lane.
    fn choose(&self, b: &mut Builder, which: u32, look: &Look, last: Val<U32>, running: Option<&Pass>) -> Val<U32> {
        let distances = [(); EACH as usize].map(|()| b.var::<U32>(NONE));
        each_half(b, |b, half, slot| {
            let distance = self.distance(b, look, (half, slot), last, running);
            for (number, own) in (0..).zip(distances) {
                let is = b.setp_eq::<U32>(half, number);
                let value = b.selp::<U32>(distance, own, is);
                b.set(own, value);
            }
        });
        let (from, count) = (b.var::<U32>(0), b.var::<U32>(0));
        b.do_while(|b| {
            let none = b.mov::<U32>(NONE);
            let nearest = distances.iter().fold(none, |nearest, distance| {
                let is_later = b.setp_ge::<U32>(*distance, from);
                let distance = b.selp::<U32>(*distance, NONE, is_later);
                b.min(nearest, distance)
            });
            let nearest = least(b, nearest);
            let some = b.setp_ne(nearest, NONE);
            b.if_(some, |b| {
                b.if_(self.leader, |b| {
                    let (slot, column) = (slot_behind(b, last, nearest), b.get(count));
                    self.command_column(b, which, column, slot);
                });
                let (next, behind) = (b.add::<U32>(count, 1), b.add::<U32>(nearest, 1));
                b.set(count, next);
                b.set(from, behind);
            });
            let more = b.setp_lt::<U32>(count, self.columns.limit());
            b.and_pred(some, more)
        });
        b.get(count)
    }

    /// Writes a column of a command, for the leader: a slot's next token.
    fn command_column(&self, b: &mut Builder, which: u32, column: Val<U32>, slot: Val<U32>) {
        let to = b.index(self.state.at(state::COMMANDS + which * command::WORDS), column);
        b.st(to.at(command::SLOT), slot);
        let kept = b.index(self.kept, slot);
        for (word, of) in [(command::STEP, state::STEP), (command::TOKEN, state::TOKEN), (command::MADE, state::MADE)] {
            let value = b.ld(kept.at(of), LoadKind::Ordinary);
            b.st(to.at(word), value);
        }
    }

    /// Writes the rest of a command, for the leader.
    fn command(&self, b: &mut Builder, which: u32, kind: Val<U32>, count: Val<U32>) {
        let to = self.state.at(state::COMMANDS + which * command::WORDS);
        let runs = b.setp_eq(kind, command::RUN);
        let count = b.selp::<U32>(count, 0, runs);
        b.st(to.at(command::KIND), kind);
        b.st(to.at(command::COUNT), count);
    }

    /// Nanoseconds since the launch began, against a limit.
    fn is_over(&self, b: &mut Builder, limit: Val<U64>) -> Val<Pred> {
        let now = b.globaltimer();
        let ran = b.sub(now, self.begin);
        b.setp(Compare::Gt, ran, limit)
    }

    /// Waits for work, a request to leave, or the limit, and writes the first command. Work comes before a request to
    /// leave: so an item progresses by a token in every launch, however often the decoder is parked, or by nothing in one that
    /// comes before its mask.
    pub(super) fn look_for_work(&self, b: &mut Builder) {
        b.bar_warp_sync(); // what was told of the last token is in shared memory
        let idle_since = b.globaltimer();
        let look = Look::new(b);
        let (kind, count) = (b.var::<U32>(command::WAIT), b.var::<U32>(0));
        b.do_while(|b| {
            self.look_at_slots(b, &look);
            let last = b.ld(self.kept.at(state::LAST), LoadKind::Ordinary);
            self.take_new(b, &look);
            self.end_stopped(b, &look, None);
            let chosen = self.choose(b, 0, &look, last, None);
            b.set(count, chosen);
            let now = b.globaltimer();
            let idle = b.sub(now, idle_since);
            let idle = b.setp(Compare::Gt, idle, self.idle_limit);
            let late = self.is_over(b, self.run_limit);
            let asked = b.or::<U32>(look.park, look.yields);
            let asked = b.setp_ne(asked, 0);
            let leaves = b.or_pred(idle, late);
            let leaves = b.or_pred(leaves, asked);
            let leaves = b.selp::<U32>(command::LEAVE, command::WAIT, leaves);
            let runs = b.setp_ne(chosen, 0);
            let decided = b.selp::<U32>(command::RUN, leaves, runs);
            // Clocks differ from lane to lane; one lane's decision is everybody's.
            let decided = b.shfl_idx(decided, 0);
            b.set(kind, decided);
            let waits = b.setp_eq(decided, command::WAIT);
            b.if_(waits, |b| b.nanosleep(500));
            waits
        });
        b.if_(self.leader, |b| {
            let (kind, count) = (b.get(kind), b.get(count));
            self.command(b, 0, kind, count);
        });
    }

    /// Decides, before the pass's last barrier, what comes behind it. The command before was read by every block before
    /// the barriers of this pass.
    pub(super) fn publish(&self, b: &mut Builder, look: &Look, pass: &Pass) {
        b.if_(self.leads, |b| {
            let (columns, lane) = (&self.columns, b.lane());
            let last = b.sub::<U32>(pass.count, 1);
            let last = columns.get(b, word::SLOT, last);
            let runs = b.setp_lt::<U32>(lane, pass.count);
            b.if_(runs, |b| {
                let stops = b.index(columns.stops, lane);
                b.st(stops, 0);
                let to = self.state.at(state::COMMANDS + command::WORDS + command::NEXT_ID);
                let to = b.index(to, lane);
                b.st(to, look.next_id);
            });
            self.take_new(b, look);
            self.end_stopped(b, look, Some(pass));
            let count = self.choose(b, 1, look, last, Some(pass));
            b.if_(self.leader, |b| {
                let some = b.setp_ne(count, 0);
                let kind = b.selp::<U32>(command::RUN, command::WAIT, some);
                let late = self.is_over(b, self.run_limit);
                let turn = self.is_over(b, self.turn_limit);
                let asked = b.setp_ne(look.yields, 0);
                let yields = b.and_pred(turn, asked);
                let parks = b.setp_ne(look.park, 0);
                let leaves = b.or_pred(late, yields);
                let leaves = b.or_pred(leaves, parks);
                let kind = b.selp::<U32>(command::LEAVE, kind, leaves);
                self.command(b, 1, kind, count);
            });
        });
    }
}

/// Runs `body` for each of a lane's slots, with the slot's place among them: a loop, since its text is long.
fn each_half(b: &mut Builder, body: impl FnOnce(&mut Builder, Val<U32>, Val<U32>)) {
    let lane = b.lane();
    b.for_range(0, EACH, 1, |b, half| {
        let slot = b.mad::<U32>(half, 32, lane);
        body(b, half, slot);
    });
}

/// What a lane has read for one of its slots.
fn of_half(b: &mut Builder, words: &[Var<U32>; EACH as usize], half: Val<U32>) -> Val<U32> {
    let is_first = b.setp_eq(half, 0);
    b.selp::<U32>(words[0], words[1], is_first)
}

/// How far a slot is behind `last`: 0 for the next one, 63 for `last` itself.
fn distance_behind(b: &mut Builder, slot: Val<U32>, last: Val<U32>) -> Val<U32> {
    let distance = b.sub(slot, last);
    let distance = b.sub(distance, 1);
    b.and(distance, SLOTS - 1)
}

/// The slot at that distance.
fn slot_behind(b: &mut Builder, last: Val<U32>, distance: Val<U32>) -> Val<U32> {
    let slot = b.add(last, distance);
    let slot = b.add(slot, 1);
    b.and(slot, SLOTS - 1)
}

/// The least of the lanes' values, in every lane.
fn least(b: &mut Builder, value: Val<U32>) -> Val<U32> {
    let mut least = value;
    for distance in [16, 8, 4, 2, 1] {
        let other = b.shfl_bfly(least, distance);
        least = b.min(least, other);
    }
    b.shfl_idx(least, 0)
}
