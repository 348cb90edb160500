//! The persistent path: a resident kernel decodes whole sequences; work and tokens pass through mapped memory.
//!
//! `post` is the mailbox, `decoder` the kernel that a model's sessions share, and this file a session's part: it posts an
//! item, reads the item's ring, and grows the cache where the item has come to its end. Where it pays a prompt goes by a batch
//! first, as on the stream path, with the choice behind it: the decoder, which is off the device meanwhile, goes on with the
//! token that was chosen.

mod decoder;
mod post;

pub(crate) use decoder::{Decoder, Key};

use super::Inner;
use super::batches::Batches;
use super::choosing::Choosing;
use super::path::{End, Item, Path, Step, Work};
use super::sequence::Sequence;
use super::token::Head;
use crate::driver::{MappedBuffer, Patience, Resident};
use crate::shape::choice::{self, Choice};
use crate::shape::mailbox::{self, NO_TOKEN, entry, item};
use crate::{Error, Result};
use decoder::Launched;
use post::{Post, Seat};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The time after which a waiting host asks the driver whether the kernel has failed.
const ASK_DRIVER: Duration = Duration::from_millis(5);
/// Tokens that run by a batch, at least. A batch of 64 takes an H200 as long as 9 tokens of Qwen3-8B in the decoder, or 7 of
/// Qwen2.5-3B.
const BATCH: u32 = 8;
/// The same while other sessions have items: these may keep the device for a turn before the batch has it, in which the
/// decoder would run about as many tokens of a large model. Estimated.
const BATCH_IN_COMPANY: u32 = 64;
/// Ids that the first buffer of a session has room for.
const FIRST_IDS: usize = 1024;

/// Runs a sequence's tokens in the resident decoder.
pub(crate) struct PersistentPath {
    /// Nobody else holds it, so that its holders are the sessions that share it.
    decoder: Arc<Decoder>,
    /// The ids of the item's prompt.
    ids: Option<MappedBuffer<u32>>,
    /// Where items put logits that the host reads, as bits, `[vocab]`.
    logits: Option<MappedBuffer<u32>>,
    /// Where items put log-probabilities, as bits, `[mailbox::LOGPROBS]`.
    logprobs: Option<MappedBuffer<u32>>,
    /// The last token's.
    logprob: Option<f32>,
    /// Whether the item in the mailbox puts them there.
    to_host: bool,
    running: Option<Running>,
    /// The stream that prompts are read on; made for the first that is.
    batches: Option<Batches>,
    /// What a batch's choice takes, where it is not plainly the greatest logit's; made for the first such item.
    choosing: Option<Choosing>,
    /// What a batch has chosen, and what is to follow it.
    chosen: Option<(u32, Option<f32>)>,
    behind: Option<Behind>,
    /// The end of an item that nothing is to follow, which has not been told.
    ended: Option<End>,
    work: Work,
}

/// The item in the mailbox.
struct Running {
    seat: Seat,
    /// The first position after its prompt.
    end: u32,
    /// Tokens still wanted, and made.
    left: u32,
    made: u32,
    stop_ids: Vec<u32>,
    choice: Choice,
}

/// An item from the token on that a batch has chosen.
struct Behind {
    token: u32,
    position: u32,
    /// Tokens still wanted.
    left: u32,
    stop_ids: Vec<u32>,
    choice: Choice,
}

/// The host's patience with the kernel. It restarts with every token of any session, and with the first launches after
/// one.
struct Watch {
    patience: Patience,
    tokens: u32,
    /// Launches since the last token.
    launches: u32,
}

/// Launches without a token that count as progress: a launch runs a token where there is work, but one that was about
/// to leave may need a second.
const LAUNCHES: u32 = 2;

impl Watch {
    fn new(decoder: &Decoder) -> Watch {
        let patience = Patience::new(decoder.model.device.limits().wait);
        Watch { patience, tokens: decoder.post.tokens(), launches: 0 }
    }

    fn launched(&mut self) {
        self.launches += 1;
        if self.launches <= LAUNCHES {
            self.patience.progress();
        }
    }

    fn pause(&mut self, post: &Post, what: &'static str) -> Result<()> {
        let tokens = post.tokens();
        if tokens != self.tokens {
            (self.tokens, self.launches) = (tokens, 0);
            self.patience.progress();
        }
        self.patience.pause(what)
    }
}

impl PersistentPath {
    /// The path of one session over a decoder that others may share.
    pub(crate) fn new(decoder: Arc<Decoder>) -> PersistentPath {
        PersistentPath {
            decoder,
            ids: None,
            logits: None,
            logprobs: None,
            logprob: None,
            to_host: false,
            running: None,
            batches: None,
            choosing: None,
            chosen: None,
            behind: None,
            ended: None,
            work: Work::default(),
        }
    }

    /// A seat in the mailbox: first come, first served. Where all are taken it waits until another item has ended and its
    /// entries were read.
    fn seat(&mut self) -> Result<Seat> {
        let (post, mut watch) = (self.decoder.post.clone(), Watch::new(&self.decoder));
        let line = post.line_up();
        loop {
            if let Some(seat) = line.seat() {
                return Ok(seat);
            }
            post.check()?;
            // The items before may have been left in the mailbox when it parked.
            if post.has_left() && self.ensure_running()? != Launched::Already {
                watch.launched();
            }
            watch.pause(&post, "a seat of the resident decoder")?;
        }
    }

    /// Posts an item to the running seat, and launches the kernel if it has left.
    fn post(&mut self, sequence: &Sequence, item: &Item<'_>) -> Result<()> {
        self.ring(sequence, item);
        self.decoder.make_room();
        self.ensure_running().map(drop)
    }

    /// Writes an item to the running seat and rings its doorbell.
    fn ring(&mut self, sequence: &Sequence, item: &Item<'_>) {
        let (Some(running), Some(ids)) = (&mut self.running, &self.ids) else { return };
        let post = &self.decoder.post;
        for (word, id) in ids.words().iter().zip(item.ids) {
            word.store(*id, Ordering::Relaxed);
        }
        let seat = &mut running.seat;
        seat.number = seat.number.wrapping_add(1).max(1);
        let base = mailbox::ITEMS + seat.slot * mailbox::ITEM_WORDS;
        let put = |word: u32, value: u32| post.put(base + word, value, Ordering::Relaxed);
        let put64 = |word: u32, value: u64| {
            put(word, value as u32);
            put(word + 1, (value >> 32) as u32);
        };
        put(item::NUMBER, seat.number);
        put(item::PROMPT, item.ids.len() as u32);
        put(item::POSITION, item.position);
        put(item::FIRST_ID, item.ids.first().copied().unwrap_or(0));
        put(item::MAX_NEW, item.max_new);
        put(item::ROOM, sequence.room());
        put(item::MAX_CHUNKS, sequence.max_chunks());
        // What does not fit is looked at by the host, which then stops the item.
        let stop_ids = item.stop_ids.get(..item::STOP_IDS_MAX as usize).unwrap_or(item.stop_ids);
        put(item::STOP_COUNT, stop_ids.len() as u32);
        put64(item::TABLE, sequence.table.as_ptr().address());
        put64(item::IDS, ids.as_ptr().address());
        let logits = match &self.logits {
            Some(logits) if self.to_host => logits.as_ptr().address(),
            _ => sequence.logits.as_ptr().address(),
        };
        put64(item::LOGITS, logits);
        put64(item::PARTIALS, sequence.partials.as_ptr().address());
        put64(item::COS, sequence.rotary.cos.as_ptr().address());
        put64(item::SIN, sequence.rotary.sin.as_ptr().address());
        put64(item::HISTORY, sequence.tokens.as_ptr().address());
        let logprobs = self.logprobs.as_ref().map_or(0, |logprobs| logprobs.as_ptr().address());
        put64(item::LOGPROBS, logprobs);
        for (index, word) in item.choice.into_iter().enumerate() {
            put(item::CHOICE + index as u32, word);
        }
        for (index, id) in stop_ids.iter().enumerate() {
            put(item::STOP_IDS + index as u32, *id);
        }
        post.put(mailbox::DOORBELL + seat.slot, seat.number, Ordering::Release);
    }

    fn ensure_running(&mut self) -> Result<Launched> {
        let launched = self.decoder.ensure_running()?;
        if launched == Launched::Now {
            self.work.launches += 1;
            // The counters' fill, and the query behind the launch.
            self.work.other_calls += 2;
        }
        Ok(launched)
    }

    /// Runs what an item has to run by a batch, where that pays; gives the number of tokens that have run. Where the host
    /// reads no logits it chooses the next token behind them.
    fn read(&mut self, model: &Inner, sequence: &mut Sequence, item: &Item<'_>) -> Result<u32> {
        let least = if self.decoder.post.taken() == 0 { BATCH } else { BATCH_IN_COMPANY };
        let (chooses, numerics) = (item.max_new > 0 && !self.to_host, self.decoder.numerics);
        // The decoder gives logits to the host, of a token that it runs.
        let last = usize::from(item.max_new > 0 && !chooses);
        let ids = item.ids.get(..item.ids.len() - last.min(item.ids.len())).unwrap_or_default();
        let count = ids.len() as u32;
        // Who traces asks for the decoder's phases.
        if count < least || self.decoder.traces() || model.column_kernels(numerics)?.is_none() {
            return Ok(0);
        }
        let batches = match &mut self.batches {
            Some(batches) => batches,
            none => none.insert(Batches::new(model.device.stream()?, numerics)),
        };
        let mut prepare = || {
            batches.make_columns(model, count)?;
            let choosing = &mut self.choosing;
            let mut head = || Ok((model.head_kernels(numerics)?, Choosing::prepare(choosing, model, &item.choice)?));
            chooses.then(&mut head).transpose()
        };
        let head = match prepare() {
            // The decoder needs no memory for it.
            Err(Error::OutOfMemory { .. }) => {
                batches.release();
                return Ok(0);
            }
            prepared => prepared?,
        };
        sequence.write_tokens(item.position, ids)?;
        self.work.other_calls += 1;
        let end = item.position + count;
        if chooses {
            sequence.seek(end - 1)?;
            self.work.other_calls += 2;
        }
        if !batches.run(model, sequence, (item.position, count), &mut self.work)? {
            return Ok(0);
        }
        // The rest is posted behind the batch's end: a decoder that is there for other sessions takes it at once.
        self.work.other_calls += 1;
        match head {
            None => sequence.check(&batches.stream)?,
            Some((kernels, steps)) => {
                let choosing = self.choosing.as_ref().zip(steps);
                let head = Head { kernels: &kernels, model, sequence, choosing };
                batches.choose(&head, count - 1, &mut self.work)?;
                let token = sequence.token(&batches.stream, end)?;
                let choosing = self.choosing.as_ref().filter(|_| wants_logprobs(&item.choice));
                self.chosen = Some((token, choosing.map(Choosing::logprob).transpose()?));
            }
        }
        if item.max_new > 0 {
            // The decoder is next; behind a part of a prompt another batch may be.
            self.rest();
        }
        Ok(count)
    }

    /// Posts an item behind what fits it: cache, ids, seat.
    fn start(&mut self, model: &Inner, sequence: &mut Sequence, item: &Item<'_>) -> Result<()> {
        (self.chosen, self.behind, self.ended) = (None, None, None);
        self.decoder.post.check()?;
        let end = item.position + item.ids.len() as u32;
        sequence.grow(model, end, end + item.max_new.saturating_sub(1))?;
        let ran = self.read(model, sequence, item);
        if ran.is_err() {
            self.rest();
        }
        let ran = ran?;
        let ids = item.ids.get(ran as usize..).unwrap_or_default();
        let Some((token, _)) = self.chosen else {
            if ran > 0 && ids.is_empty() {
                self.ended = Some(End::Length);
                return Ok(());
            }
            return self.seat_and_post(model, sequence, &Item { ids, position: item.position + ran, ..*item });
        };
        let left = item.max_new - 1;
        let stop_ids = item.stop_ids.to_vec();
        match () {
            () if token == NO_TOKEN => {}
            () if stop_ids.contains(&token) => self.ended = Some(End::StopId(token)),
            () if left == 0 => self.ended = Some(End::Length),
            () if end >= sequence.capacity => self.ended = Some(End::ContextFull),
            () => self.behind = Some(Behind { token, position: end, left, stop_ids, choice: item.choice }),
        }
        Ok(())
    }

    /// Posts what follows the token that a batch has chosen.
    fn follow(&mut self, model: &Inner, sequence: &mut Sequence, behind: &Behind) -> Result<()> {
        let Behind { token, position, left, ref stop_ids, choice } = *behind;
        sequence.grow(model, position + 1, position + left)?;
        let item = Item { ids: &[token], position, max_new: left, stop_ids, choice };
        self.seat_and_post(model, sequence, &item)
    }

    /// Posts an item whose tokens the decoder runs, once it has a seat.
    fn seat_and_post(&mut self, model: &Inner, sequence: &Sequence, item: &Item<'_>) -> Result<()> {
        let end = item.position + item.ids.len() as u32;
        if self.ids.as_ref().is_none_or(|ids| ids.len() < item.ids.len()) {
            let room = item.ids.len().next_power_of_two().max(FIRST_IDS);
            self.ids = Some(MappedBuffer::zeroed(&model.device, room)?);
        }
        if wants_logprobs(&item.choice) && self.logprobs.is_none() {
            self.logprobs = Some(MappedBuffer::zeroed(&model.device, mailbox::LOGPROBS as usize)?);
        }
        let seat = self.seat()?;
        let stop_ids = item.stop_ids.to_vec();
        self.running = Some(Running { seat, end, left: item.max_new, made: 0, stop_ids, choice: item.choice });
        self.work.tokens += item.ids.len() as u64;
        self.post(sequence, item)
    }

    /// Waits for the item's next entry; launches the kernel again if it has left without writing one.
    fn wait(&mut self) -> Result<(u32, u32)> {
        let (post, mut watch) = (self.decoder.post.clone(), Watch::new(&self.decoder));
        let mut asked = Instant::now();
        loop {
            // Looked at before the ring: what the kernel has said before it left is there then.
            let left = post.has_left();
            let Some(running) = &mut self.running else { return Ok((entry::STOPPED, 0)) };
            if let Some(found) = post.poll(&mut running.seat) {
                return Ok(found);
            }
            post.check()?;
            if left && self.ensure_running()? != Launched::Already {
                watch.launched();
            }
            if asked.elapsed() > ASK_DRIVER {
                asked = Instant::now();
                // A kernel that died says nothing; the stream does.
                post.is_off()?;
            }
            watch.pause(&post, "a token of the resident decoder")?;
        }
    }

    /// Takes note that the item has ended.
    fn end(&mut self) {
        if let Some(running) = self.running.take() {
            self.decoder.post.give_back(running.seat);
        }
    }

    /// Grows the cache of an item that has come to its end, and posts the rest as a new item. `token` has not run.
    fn go_on(&mut self, model: &Inner, sequence: &mut Sequence, token: u32) -> Result<()> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let position = running.end + running.made - 1;
        let (left, stop_ids, choice) = (running.left, running.stop_ids.clone(), running.choice);
        (running.end, running.made) = (position + 1, 0);
        let item = Item { ids: &[token], position, max_new: left, stop_ids: &stop_ids, choice };
        match sequence.grow(model, position + 1, position + 1 + left) {
            Ok(()) => self.post(sequence, &item),
            Err(error) => {
                self.end();
                Err(error)
            }
        }
    }
}

impl Path for PersistentPath {
    fn begin(&mut self, model: &Inner, sequence: &mut Sequence, item: &Item<'_>) -> Result<()> {
        self.to_host = false;
        self.start(model, sequence, item)
    }

    /// The kernel writes logits to page-locked memory, and stays on the device while the host reads them.
    fn begin_logits(&mut self, model: &Inner, sequence: &mut Sequence, item: &Item<'_>) -> Result<()> {
        if self.logits.is_none() {
            self.logits = Some(MappedBuffer::zeroed(&model.device, model.file.shape().vocab as usize)?);
        }
        self.to_host = true;
        self.start(model, sequence, item)
    }

    fn next(&mut self, model: &Inner, sequence: &mut Sequence) -> Result<Step> {
        if let Some((token, logprob)) = self.chosen.take() {
            self.logprob = logprob;
            return Ok(Step::Token(token));
        }
        if let Some(behind) = self.behind.take() {
            self.follow(model, sequence, &behind)?;
        }
        loop {
            if self.running.is_none() {
                return Ok(Step::End(self.ended.take().unwrap_or(End::Cancelled)));
            }
            let (kind, payload) = self.wait()?;
            if kind == entry::TOKEN {
                if let Some(running) = &mut self.running {
                    // The entry was acquired, and its log-probability is ordered before it.
                    let place = running.seat.place_of_last();
                    let word = self.logprobs.as_ref().and_then(|all| all.words().get(place));
                    let word = word.filter(|_| wants_logprobs(&running.choice));
                    self.logprob = word.map(|word| f32::from_bits(word.load(Ordering::Relaxed)));
                    running.made += 1;
                    running.left = running.left.saturating_sub(1);
                    // The last one does not run.
                    let runs = running.left > 0 && !running.stop_ids.contains(&payload);
                    self.work.tokens += u64::from(runs);
                }
                return Ok(Step::Token(payload));
            }
            if kind == entry::CONTEXT_FULL && sequence.room() < sequence.capacity {
                self.go_on(model, sequence, payload)?;
                continue;
            }
            self.end();
            return match kind {
                entry::LENGTH => Ok(Step::End(End::Length)),
                entry::STOP_ID => Ok(Step::End(End::StopId(payload))),
                entry::STOPPED => Ok(Step::End(End::Cancelled)),
                entry::CONTEXT_FULL => Ok(Step::End(End::ContextFull)),
                entry::NOT_FINITE => Err(Error::LogitsNotFinite { position: payload as usize }),
                _ => Err(Error::Kernel {
                    what: "an item was rejected: an id outside the vocabulary, or none",
                    code: kind,
                }),
            };
        }
    }

    fn awaits_masks(&self) -> bool {
        true
    }

    /// The decoder does not look out for another batch.
    fn rest(&mut self) {
        if let Some(batches) = &mut self.batches {
            batches.release();
            batches.stream.inner.leave_turn();
        }
    }

    fn stop(&mut self) -> Result<()> {
        (self.chosen, self.behind, self.ended) = (None, None, None);
        while let Some(running) = &self.running {
            let Seat { slot, number, .. } = running.seat;
            self.decoder.post.put(mailbox::STOP + slot, number, Ordering::Release);
            match self.wait() {
                Ok((entry::TOKEN, _)) => {}
                Ok(_) => self.end(),
                // Once all blocks have left nothing uses the item any more, and no launch follows.
                Err(Error::DecoderStalled { .. }) if self.decoder.model.device.context().quiesce().is_ok() => {
                    self.running = None
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn logits(&mut self, _: &Sequence) -> Result<Vec<f32>> {
        // The item's end, which was acquired, is released behind them.
        let words = self.logits.as_ref().map(MappedBuffer::words).unwrap_or_default();
        Ok(words.iter().map(|word| f32::from_bits(word.load(Ordering::Relaxed))).collect())
    }

    fn logprob(&self) -> Option<f32> {
        self.logprob
    }

    fn work(&self) -> Work {
        self.work
    }

    fn name(&self) -> &'static str {
        "persistent"
    }

    #[cfg(feature = "trace")]
    fn trace(&self) -> Result<Option<super::trace::Trace>> {
        self.decoder.trace()
    }
}

/// Whether an item gives log-probabilities of its tokens.
fn wants_logprobs(choice: &Choice) -> bool {
    choice[choice::FLAGS as usize] & choice::LOGPROB != 0
}

impl Drop for PersistentPath {
    fn drop(&mut self) {
        if self.running.is_some() && self.stop().is_err() {
            // The kernel may still read them.
            std::mem::forget((self.ids.take(), self.logits.take(), self.logprobs.take()));
        }
    }
}

#[cfg(all(test, feature = "tiny"))]
mod tests;
