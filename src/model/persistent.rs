//! The persistent path: one cooperative launch decodes whole sequences; work and tokens pass through mapped memory.
//!
//! A launch is bounded: the kernel leaves when it has had no work for a while, when its time is up, when the ring is
//! full, or when asked to, its item kept in device memory. The host relaunches it when it finds it gone and something
//! undone. That is decided by one side alone, from what the stream says of the launch, so an item queued while the kernel
//! leaves is not lost: the next launch finds it.

use super::generation::End;
use super::kernels::{self, Kernel};
use super::path::{Item, Path, Step, Work};
use super::sequence::Sequence;
use super::{Inner, KvType, balance};
use crate::baked::DecoderPath;
use crate::driver::{Device, DeviceBuffer, Event, KernelParam, MappedBuffer, Resident, Stream};
use crate::shape::mailbox::{self, command, entry, item};
use crate::shape::table::KV_CHUNK;
use crate::{Error, Result};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the kernel waits for work before it leaves: longer than a host thread takes from one item to the next.
const IDLE_NANOSECONDS: u64 = 5_000_000;
/// How long a launch may run where display watchdogs kill kernels after some seconds.
const RUN_NANOSECONDS_WATCHED: u64 = 1_000_000_000;
/// How long a launch may run elsewhere.
const RUN_NANOSECONDS: u64 = 60_000_000_000;

/// What the host writes and the launch in flight: shared with whoever wants the kernel off the device.
struct Post {
    words: MappedBuffer<u32>,
    /// Happens when the launch in flight is over.
    launch: Mutex<Option<Event>>,
}

impl Post {
    fn word(&self, index: u32) -> Result<&AtomicU32> {
        self.words.words().get(index as usize).ok_or_else(|| Error::SizeOverflow {
            what: "the mailbox",
            found: format!("word {index}"),
            limit: u64::from(mailbox::WORDS),
        })
    }

    /// Whether a launch is in flight.
    fn is_running(&self) -> Result<bool> {
        let mut launch = self.launch.lock().unwrap_or_else(PoisonError::into_inner);
        match &*launch {
            None => Ok(false),
            Some(event) => {
                let over = event.has_happened()?;
                if over {
                    *launch = None;
                }
                Ok(!over)
            }
        }
    }
}

impl Resident for Post {
    fn park(&self) {
        let launch = self.launch.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(event), Ok(park)) = (&*launch, self.word(mailbox::PARK)) {
            park.store(1, Ordering::Release);
            // Where waiting fails the context is lost, and the caller's own call says so.
            let _ = event.synchronize();
            park.store(0, Ordering::Release);
        }
    }
}

/// Runs a sequence's tokens in a resident kernel.
pub(crate) struct PersistentPath {
    stream: Stream,
    kernel: Kernel,
    blocks: u32,
    post: Arc<Post>,
    /// As the device's hook holds it.
    _resident: Arc<dyn Resident>,
    ring: MappedBuffer<u64>,
    /// `[SLOTS, capacity]`: the ids of each item's prompt.
    ids: MappedBuffer<u32>,
    capacity: u32,
    shares: DeviceBuffer<u32>,
    commands: DeviceBuffer<u32>,
    /// The barrier's counter, then those of the KV heads.
    counters: DeviceBuffer<u32>,
    embeddings: DeviceBuffer<f32>,
    best_values: DeviceBuffer<f32>,
    best_indices: DeviceBuffer<u32>,
    /// `[events, blocks, mailbox::trace::WORDS]`, and the number of events, where the kernel traces.
    trace: Option<(DeviceBuffer<u64>, u32)>,
    /// Nanoseconds that a launch may run.
    run_limit: u64,
    /// Items submitted, and entries of the ring read.
    submitted: u32,
    read: u32,
    running: bool,
    work: Work,
}

impl PersistentPath {
    /// With `events`, takes the kernel that traces, and keeps so many records of each block.
    pub(crate) fn new(
        model: &Inner,
        kv: KvType,
        capacity: u32,
        blocks: Option<u32>,
        events: Option<u32>,
    ) -> Result<PersistentPath> {
        let (device, shape) = (&model.device, model.file.shape());
        let module = kernels::choose(device, model.baked.modules, Some(DecoderPath::Persistent), model.baked.name)?;
        let loaded = kernels::load(device, module)?;
        let (trace, feature) = if events.is_some() { ("_trace", ",trace") } else { ("", "") };
        let name = format!("persistent_decoder_{}{trace}", kv.suffix());
        let kernel = Kernel::find(&loaded, module, &name, &format!("--features {}{feature}", model.baked.name))?;
        let blocks = grid(device, &kernel, blocks)?;
        let trace = match events {
            Some(events) => {
                let words = events as usize * (blocks * mailbox::trace::WORDS) as usize;
                Some((DeviceBuffer::zeroed(device, words)?, events))
            }
            None => None,
        };
        let post =
            Arc::new(Post { words: MappedBuffer::zeroed(device, mailbox::WORDS as usize)?, launch: Mutex::new(None) });
        let resident: Arc<dyn Resident> = post.clone();
        device.add_resident(&resident);
        let stride = blocks as usize;
        Ok(PersistentPath {
            stream: device.stream()?,
            kernel,
            blocks,
            post,
            _resident: resident,
            ring: MappedBuffer::zeroed(device, mailbox::RING_ENTRIES as usize)?,
            ids: MappedBuffer::zeroed(device, (mailbox::SLOTS * capacity) as usize)?,
            capacity,
            shares: DeviceBuffer::from_host(device, &balance::shares(&model.file, blocks)?)?,
            commands: DeviceBuffer::zeroed(device, command::WORDS as usize)?,
            counters: DeviceBuffer::zeroed(device, 1 + shape.kv_heads as usize)?,
            embeddings: DeviceBuffer::zeroed(device, stride * shape.hidden as usize)?,
            best_values: DeviceBuffer::zeroed(device, stride)?,
            best_indices: DeviceBuffer::zeroed(device, stride)?,
            trace,
            run_limit: if device.kills_long_kernels()? { RUN_NANOSECONDS_WATCHED } else { RUN_NANOSECONDS },
            submitted: 0,
            read: 0,
            running: false,
            work: Work::default(),
        })
    }

    /// Launches the kernel, if it is not on the device.
    fn ensure_running(&mut self, model: &Inner, sequence: &Sequence) -> Result<()> {
        self.work.other_calls += 1;
        if self.post.is_running()? {
            return Ok(());
        }
        self.counters.fill_bytes(&self.stream, 0)?;
        let (shape, weights) = (model.file.shape(), &model.weights);
        let uses = [
            weights.data.reads("weights"),
            weights.table.reads("tensor table"),
            weights.cos.reads("cosines"),
            weights.sin.reads("sines"),
            self.shares.reads("shares"),
            self.commands.writes("commands"),
            self.counters.writes("counters"),
            self.embeddings.writes("embeddings"),
            self.best_values.writes("best values"),
            self.best_indices.writes("best indices"),
            self.post.words.reads("mailbox"),
            self.ring.writes("ring"),
            self.ids.reads("ids"),
        ];
        let table = weights.table.as_ptr();
        let (shares, cos, sin) = (self.shares.as_ptr(), weights.cos.as_ptr(), weights.sin.as_ptr());
        let (x, embeddings, qkv) = (sequence.x.as_ptr(), self.embeddings.as_ptr(), sequence.qkv.as_ptr());
        let (attention, ffn, logits) = (sequence.attention.as_ptr(), sequence.ffn.as_ptr(), sequence.logits.as_ptr());
        let (best_values, best_indices) = (self.best_values.as_ptr(), self.best_indices.as_ptr());
        let (partials, counter) = (sequence.partials.as_ptr(), self.counters.as_ptr());
        let (arrivals, commands) = (counter.add(1), self.commands.as_ptr());
        let (words, ring) = (self.post.words.as_ptr(), self.ring.as_ptr());
        let (layers, vocab, eps) = (shape.layers, shape.vocab, shape.rms_eps);
        let max_chunks = sequence.capacity.div_ceil(KV_CHUNK);
        let (idle, run) = (IDLE_NANOSECONDS, self.run_limit);
        let trace = self.trace.as_ref().map(|(buffer, events)| (buffer.as_ptr(), *events));
        let mut params = vec![
            KernelParam::new(&table),
            KernelParam::new(&shares),
            KernelParam::new(&cos),
            KernelParam::new(&sin),
            KernelParam::new(&x),
            KernelParam::new(&embeddings),
            KernelParam::new(&qkv),
            KernelParam::new(&attention),
            KernelParam::new(&ffn),
            KernelParam::new(&logits),
            KernelParam::new(&best_values),
            KernelParam::new(&best_indices),
            KernelParam::new(&partials),
            KernelParam::new(&arrivals),
            KernelParam::new(&counter),
            KernelParam::new(&commands),
            KernelParam::new(&words),
            KernelParam::new(&ring),
            KernelParam::new(&layers),
            KernelParam::new(&vocab),
            KernelParam::new(&eps),
            KernelParam::new(&max_chunks),
            KernelParam::new(&idle),
            KernelParam::new(&run),
        ];
        if let Some((buffer, events)) = &trace {
            params.extend([KernelParam::new(buffer), KernelParam::new(events)]);
        }
        let records = self.trace.as_ref().map(|(buffer, _)| buffer.writes("trace"));
        let (kernel, blocks) = (&self.kernel, self.blocks);
        self.stream.enqueue_many(uses.into_iter().chain(records).chain(sequence.uses()), |stream| {
            // SAFETY: the parameters are the kernel's, in its order; buffers have the lengths of the shape it was baked
            // for and of this grid, and are noted as used. What an item names, its ids and chunks, is checked by `begin`.
            unsafe { kernel.launch_cooperative(stream, blocks, &params) }
        })?;
        *self.post.launch.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.stream.record()?);
        self.work.launches += 1;
        self.work.other_calls += 2;
        Ok(())
    }

    /// The next entry of the ring, if it has arrived.
    fn poll(&mut self) -> Result<Option<(u32, u32)>> {
        let index = (self.read % mailbox::RING_ENTRIES) as usize;
        let Some(slot) = self.ring.words().get(index) else {
            return Ok(None);
        };
        let word = slot.load(Ordering::Acquire);
        let (payload, tag) = (word as u32, (word >> 32) as u32);
        let kind = tag >> 24;
        if kind == 0 || tag != entry::tag(kind, self.read) {
            return Ok(None);
        }
        self.read = self.read.wrapping_add(1);
        self.post.word(mailbox::CONSUMED)?.store(self.read, Ordering::Release);
        Ok(Some((kind, payload)))
    }

    /// Waits for the next entry, and relaunches the kernel if it has left before.
    fn wait(&mut self, model: &Inner, sequence: &Sequence) -> Result<(u32, u32)> {
        let mut looked = Instant::now();
        let mut spins = 0u32;
        loop {
            if let Some(found) = self.poll()? {
                return Ok(found);
            }
            spins += 1;
            if spins < 100 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
            if looked.elapsed() > Duration::from_millis(5) {
                self.work.other_calls += 1;
                if !self.post.is_running()? {
                    // It may have answered just before it left.
                    if let Some(found) = self.poll()? {
                        return Ok(found);
                    }
                    self.ensure_running(model, sequence)?;
                }
                looked = Instant::now();
            }
        }
    }

    fn slot(&self) -> u32 {
        self.submitted.wrapping_sub(1) % mailbox::SLOTS
    }
}

impl Path for PersistentPath {
    fn begin(&mut self, model: &Inner, sequence: &mut Sequence, item: &Item<'_>) -> Result<()> {
        let slot = self.submitted % mailbox::SLOTS;
        let first = slot as usize * self.capacity as usize;
        for (word, id) in self.ids.words().iter().skip(first).zip(item.ids) {
            word.store(*id, Ordering::Relaxed);
        }
        let base = mailbox::ITEMS + slot * mailbox::ITEM_WORDS;
        let put = |word: u32, value: u32| -> Result<()> {
            self.post.word(base + word)?.store(value, Ordering::Relaxed);
            Ok(())
        };
        let put64 = |word: u32, value: u64| -> Result<()> {
            put(word, value as u32)?;
            put(word + 1, (value >> 32) as u32)
        };
        put(item::PROMPT, item.ids.len() as u32)?;
        put(item::POSITION, item.position)?;
        put(item::MAX_NEW, item.max_new)?;
        put(item::ROOM, sequence.room())?;
        let stop_ids = item.stop_ids.get(..item::STOP_IDS_MAX as usize).unwrap_or(item.stop_ids);
        put(item::STOP_COUNT, stop_ids.len() as u32)?;
        put64(item::TABLE, sequence.table.as_ptr().address())?;
        put64(item::IDS, self.ids.as_ptr().add(first).address())?;
        for (index, id) in stop_ids.iter().enumerate() {
            put(item::STOP_IDS + index as u32, *id)?;
        }
        self.post.word(mailbox::STOP + slot)?.store(0, Ordering::Relaxed);
        self.submitted = self.submitted.wrapping_add(1);
        self.post.word(mailbox::SUBMITTED)?.store(self.submitted, Ordering::Release);
        self.running = true;
        self.work.tokens += item.ids.len() as u64;
        self.ensure_running(model, sequence)
    }

    fn next(&mut self, model: &Inner, sequence: &mut Sequence) -> Result<Step> {
        if !self.running {
            return Ok(Step::End(End::Cancelled));
        }
        let (kind, payload) = self.wait(model, sequence)?;
        if kind == entry::TOKEN {
            self.work.tokens += 1;
            return Ok(Step::Token(payload));
        }
        self.running = false;
        match kind {
            entry::LENGTH => Ok(Step::End(End::Length)),
            entry::STOP_ID => Ok(Step::End(End::StopId(payload))),
            entry::STOPPED => Ok(Step::End(End::Cancelled)),
            entry::CONTEXT_FULL => Ok(Step::End(End::ContextFull)),
            _ => Err(Error::Kernel { what: "an item was rejected: an id outside the vocabulary, or none", code: kind }),
        }
    }

    fn stop(&mut self, model: &Inner, sequence: &mut Sequence) -> Result<()> {
        if self.running {
            self.post.word(mailbox::STOP + self.slot())?.store(1, Ordering::Release);
            while self.running && matches!(self.next(model, sequence)?, Step::Token(_)) {}
        }
        Ok(())
    }

    fn leave(&mut self) {
        self.post.park();
    }

    fn work(&self) -> Work {
        self.work
    }

    fn name(&self) -> &'static str {
        "persistent"
    }

    #[cfg(feature = "trace")]
    fn trace(&self) -> Result<Option<super::trace::Trace>> {
        self.post.park();
        match &self.trace {
            Some((buffer, _)) => Ok(Some(super::trace::Trace::from_words(self.blocks, &buffer.to_host()?))),
            None => Ok(None),
        }
    }
}

impl Drop for PersistentPath {
    fn drop(&mut self) {
        self.post.park();
    }
}

/// Blocks of the grid: as asked for, or one on each multiprocessor.
fn grid(device: &Device, kernel: &Kernel, wish: Option<u32>) -> Result<u32> {
    if !device.supports_cooperative_launch()? {
        return Err(Error::InvalidArgument {
            what: "persistent path".to_owned(),
            found: "a device without cooperative launch".to_owned(),
            expected: "one that has it; take the stream path".to_owned(),
        });
    }
    let resident = kernel.resident();
    let blocks = wish.unwrap_or(device.multiprocessors());
    if blocks == 0 || blocks > resident {
        return Err(Error::InvalidArgument {
            what: "blocks of the persistent path".to_owned(),
            found: blocks.to_string(),
            expected: format!("1 to {resident}, which fit the device together"),
        });
    }
    Ok(blocks)
}

#[cfg(all(test, feature = "tiny"))]
mod tests;
