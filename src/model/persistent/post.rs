//! The mailbox from the host's side: words, rings, seats.

use crate::driver::{Device, MappedBuffer, Queue, Resident, Stream, Wish};
use crate::shape::mailbox::{self, entry, report};
use crate::{Error, Result};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The mapped memory of a resident decoder, and its launch in flight.
pub(super) struct Post {
    /// Words that the host writes, `[mailbox::WORDS]`.
    pub(super) words: MappedBuffer<u32>,
    /// Words that the device writes, `[report::WORDS]`.
    pub(super) report: MappedBuffer<u32>,
    /// `[SLOTS, RING_ENTRIES]`.
    pub(super) rings: MappedBuffer<u64>,
    pub(super) stream: Stream,
    /// The number of the last launch; 0 before the first.
    pub(super) launched: AtomicU32,
    seats: Mutex<Seats>,
    given_back: Condvar,
}

#[derive(Debug)]
struct Seats {
    free: Vec<Seat>,
    line: Queue,
}

/// A place in the line for a seat, until it is dropped.
pub(super) struct InLine<'a> {
    post: &'a Post,
    ticket: u64,
}

/// A slot of the mailbox, for one item at a time.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) slot: u32,
    /// The number of its last item.
    pub(super) number: u32,
    /// Entries of its ring that were read.
    read: u32,
}

impl Seat {
    /// The place of the log-probability that goes with the entry that was read last.
    pub(super) fn place_of_last(&self) -> usize {
        (self.read.wrapping_sub(1) % mailbox::LOGPROBS) as usize
    }
}

impl Post {
    pub(super) fn new(device: &Device) -> Result<Post> {
        let seats = (0..mailbox::SLOTS).rev().map(|slot| Seat { slot, number: 0, read: 0 });
        Ok(Post {
            words: MappedBuffer::zeroed(device, mailbox::WORDS as usize)?,
            report: MappedBuffer::zeroed(device, report::WORDS as usize)?,
            rings: MappedBuffer::zeroed(device, (mailbox::SLOTS * mailbox::RING_ENTRIES) as usize)?,
            stream: device.stream()?,
            launched: AtomicU32::new(0),
            seats: Mutex::new(Seats { free: seats.collect(), line: Queue::default() }),
            given_back: Condvar::new(),
        })
    }

    /// Writes a word of the host's.
    pub(super) fn put(&self, word: u32, value: u32, order: Ordering) {
        if let Some(place) = self.words.words().get(word as usize) {
            place.store(value, order);
        }
    }

    fn reported(&self, word: u32) -> u32 {
        self.report.words().get(word as usize).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Whether no launch is in flight, or the last has said that it leaves.
    pub(super) fn has_left(&self) -> bool {
        let launched = self.launched.load(Ordering::Acquire);
        launched == 0 || self.reported(report::LEFT) == launched
    }

    /// A number that changes with every token.
    pub(super) fn tokens(&self) -> u32 {
        self.reported(report::PROGRESS)
    }

    /// The error of a decoder whose blocks have given up waiting for each other.
    pub(super) fn check(&self) -> Result<()> {
        match self.reported(report::STALLED) {
            0 => Ok(()),
            block => Err(Error::DecoderStalled { block: block - 1 }),
        }
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Behind those who wait for a seat.
    pub(super) fn line_up(&self) -> InLine<'_> {
        InLine { post: self, ticket: self.seats().line.join() }
    }

    /// Seats that are taken.
    pub(super) fn taken(&self) -> u32 {
        mailbox::SLOTS - self.seats().free.len() as u32
    }

    pub(super) fn give_back(&self, seat: Seat) {
        self.seats().free.push(seat);
        self.given_back.notify_all();
    }

    /// Kind and payload of the next entry of the seat's item, if it has arrived. Entries of earlier items are skipped.
    pub(super) fn poll(&self, seat: &mut Seat) -> Option<(u32, u32)> {
        loop {
            let place = seat.slot * mailbox::RING_ENTRIES + seat.read % mailbox::RING_ENTRIES;
            let word = self.rings.words().get(place as usize)?.load(Ordering::Acquire);
            let (payload, tag) = (word as u32, (word >> 32) as u32);
            let kind = entry::kind(tag);
            let of = |item| entry::tag(kind, item, seat.read);
            // Whose it is says whether it counts; that it has arrived, its number alone.
            if kind == 0 || (tag ^ of(0)) & 0xf_ffff != 0 {
                return None;
            }
            let own = tag == of(seat.number);
            seat.read = seat.read.wrapping_add(1);
            self.put(mailbox::CONSUMED + seat.slot, seat.read, Ordering::Release);
            if own {
                return Some((kind, payload));
            }
        }
    }
}

impl InLine<'_> {
    /// A free seat in its turn, for which it waits a moment. [`Post::give_back`] returns it.
    pub(super) fn seat(&self) -> Option<Seat> {
        let mut seats = self.post.seats();
        let waits = |seats: &Seats| seats.free.is_empty() || !seats.line.is_first(self.ticket);
        if waits(&seats) {
            let waited = self.post.given_back.wait_timeout(seats, std::time::Duration::from_millis(20));
            seats = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if waits(&seats) { None } else { seats.free.pop() }
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.post.seats().line.leave(self.ticket);
        self.post.given_back.notify_all();
    }
}

impl Resident for Post {
    fn ask(&self, wish: Wish) {
        match wish {
            Wish::Park => self.put(mailbox::PARK, 1, Ordering::Release),
            Wish::Yield => self.put(mailbox::YIELD, 1, Ordering::Release),
            Wish::Stay => {
                self.put(mailbox::PARK, 0, Ordering::Release);
                self.put(mailbox::YIELD, 0, Ordering::Release);
            }
        }
    }

    fn is_off(&self) -> Result<bool> {
        if self.launched.load(Ordering::Acquire) == 0 { Ok(true) } else { self.stream.is_idle() }
    }

    fn progress(&self) -> u64 {
        let launched = u64::from(self.launched.load(Ordering::Acquire));
        launched << 32 | u64::from(self.tokens())
    }
}
