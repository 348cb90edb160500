//! The resident decoder of a model: one for each numerics, cache type and grid, shared by sessions.
//!
//! A launch is bounded: the kernel leaves when it has had no work for a while, when its turn or its time is up, or when
//! asked to; its items are kept in device memory. Whichever session waits for a token and finds it gone launches it
//! again. Whether it has left is told by a word of its own, so an item that is queued while it leaves is not lost: the
//! next launch finds it.

use super::post::Post;
use crate::driver::{Claim, DeviceBuffer, Resident, Stream, Wish};
use crate::kernel::Kernel;
use crate::launch::{Arguments, Launch, Out};
use crate::model::kernels::Persistent;
use crate::model::launches::{Exchange, PersistentDecoder, Trace};
use crate::model::{Inner, KvType, Numerics, balance};
use crate::shape::choice;
use crate::shape::exchange::{self, EMPTY};
use crate::shape::mailbox::{self, state};
use crate::shape::ring::Depth;
use crate::{Error, Result};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

/// How long the kernel waits for work before it leaves: longer than a host thread takes from one item to the next.
const IDLE: Duration = Duration::from_millis(5);

/// The longest wait that blocks count: their clock's ticks come round after 36 minutes.
const LONGEST_WAIT: Duration = Duration::from_secs(30 * 60);

/// What sessions share a decoder by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) numerics: Numerics,
    pub(crate) kv: KvType,
    /// Blocks of the grid; `None` for one on each multiprocessor.
    pub(crate) blocks: Option<u32>,
    /// Records of each block, where the kernel traces: such a decoder is a session's own.
    pub(crate) events: Option<u32>,
}

/// A resident decoder.
pub(crate) struct Decoder {
    pub(super) post: Arc<Post>,
    resident: Arc<dyn Resident>,
    kernel: Arc<Persistent>,
    pub(super) numerics: Numerics,
    kv: KvType,
    pub(super) blocks: u32,
    /// Columns of the last launch, and those that the next one is to have at least.
    columns: AtomicU32,
    wanted: AtomicU32,
    /// Freed only when the kernel is off the device.
    memory: Option<Memory>,
    /// Held over a launch.
    launching: Mutex<Launching>,
    /// Last, so that weights outlive the launch.
    pub(super) model: Arc<Inner>,
}

/// Device memory between the phases of a token, and between launches.
struct Memory {
    shares: DeviceBuffer<u32>,
    /// Of each block so many bytes, as many as it may have shared memory, and how many.
    second_planes: (DeviceBuffer<u32>, u32),
    state: DeviceBuffer<u32>,
    x: DeviceBuffer<f32>,
    qkv: DeviceBuffer<f32>,
    attention: DeviceBuffer<f32>,
    ffn: DeviceBuffer<f32>,
    embeddings: DeviceBuffer<f32>,
    /// What choices add up in, `[columns, choice::memory::words]`.
    choice: DeviceBuffer<u32>,
    /// `[events, blocks, mailbox::trace::WORDS]`, and the number of events, where the kernel traces.
    trace: Option<(DeviceBuffer<u64>, u32)>,
}

struct Launching {
    cleared: Option<Cleared>,
}

/// Device memory that is zero at a launch.
struct Cleared {
    /// The barrier's counter, the abort word, two words that nobody uses, a flag of each block with room for a multiple of
    /// [`exchange::FLAGS`], then of each column a counter of each KV head.
    counters: DeviceBuffer<u32>,
    /// The words of [`crate::shape::exchange`], of each column, and those of parts of attention, with a layer's bytes.
    exchange: DeviceBuffer<f32>,
    parts: (DeviceBuffer<f32>, u32),
}

/// What came of asking for a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Launched {
    /// It is on the device.
    Already,
    /// This call has launched it.
    Now,
    /// Another thread is at it.
    Elsewhere,
}

impl Decoder {
    /// The decoder of that key: the one that sessions of the model have, or a new one.
    pub(crate) fn shared(model: &Arc<Inner>, key: Key) -> Result<Arc<Decoder>> {
        if key.events.is_some() {
            return Ok(Arc::new(Decoder::new(model, key)?));
        }
        let mut decoders = model.decoders();
        decoders.retain(|(_, decoder)| decoder.upgrade().is_some_and(|decoder| decoder.post.check().is_ok()));
        if let Some(known) = decoders.iter().find(|(of, _)| *of == key).and_then(|(_, decoder)| decoder.upgrade()) {
            // With this session so many may have an item at once.
            known.kernel.make_room(&model.device, model.baked, Arc::strong_count(&known))?;
            return Ok(known);
        }
        let decoder = Arc::new(Decoder::new(model, key)?);
        decoders.push((key, Arc::downgrade(&decoder)));
        Ok(decoder)
    }

    fn new(model: &Arc<Inner>, key: Key) -> Result<Decoder> {
        let (device, shape) = (&model.device, model.file.shape());
        let kernel = model.persistent_kernel(key.numerics, key.events.is_some())?;
        let blocks = grid(model, &kernel, key.blocks)?;
        let (stride, columns) = (blocks as usize, kernel.most_columns() as usize);
        let trace = match key.events {
            Some(events) => {
                let words = events as usize * (blocks * mailbox::trace::WORDS) as usize;
                Some((DeviceBuffer::zeroed(device, words)?, events))
            }
            None => None,
        };
        let post = Arc::new(Post::new(device)?);
        let resident: Arc<dyn Resident> = post.clone();
        let second_planes = if kernel.has_ring() { device.shared_memory_per_block() } else { 0 };
        let of_block = second_planes.max(16).next_multiple_of(16);
        let memory = Memory {
            second_planes: (DeviceBuffer::zeroed(device, stride * of_block as usize / 4)?, of_block),
            shares: DeviceBuffer::from_host(device, &balance::shares(&model.file, blocks)?)?,
            state: DeviceBuffer::zeroed(device, state::WORDS as usize)?,
            x: DeviceBuffer::zeroed(device, shape.hidden as usize)?,
            qkv: DeviceBuffer::zeroed(device, shape.q_dim() as usize + 2 * shape.kv_dim() as usize)?,
            attention: DeviceBuffer::zeroed(device, shape.q_dim() as usize)?,
            ffn: DeviceBuffer::zeroed(device, shape.ffn as usize)?,
            embeddings: DeviceBuffer::zeroed(device, columns * stride * shape.hidden as usize)?,
            choice: DeviceBuffer::zeroed(device, columns * choice::memory::words(blocks, shape.vocab) as usize)?,
            trace,
        };
        let hands_parts = kernel.has_ring() && key.kv == KvType::F16;
        let of_layer = if hands_parts { exchange::parts(shape, shape.context) } else { 0 };
        let parts = columns * (exchange::TURNS_OF_PARTS * of_layer) as usize;
        let flags = exchange::BEFORE_FLAGS as usize + stride.next_multiple_of(exchange::FLAGS as usize);
        let cleared = Cleared {
            counters: DeviceBuffer::zeroed(device, flags + columns * shape.kv_heads as usize)?,
            exchange: DeviceBuffer::zeroed(device, columns * exchange::words_of_column(shape) as usize)?,
            parts: (DeviceBuffer::zeroed(device, parts.max(1))?, 4 * of_layer),
        };
        device.add_resident(&resident);
        let launching = Mutex::new(Launching { cleared: Some(cleared) });
        Ok(Decoder {
            post,
            resident,
            kernel,
            numerics: key.numerics,
            kv: key.kv,
            blocks,
            columns: AtomicU32::new(0),
            wanted: AtomicU32::new(0),
            memory: Some(memory),
            launching,
            model: model.clone(),
        })
    }

    /// Launches the kernel, if it has left the device.
    pub(super) fn ensure_running(&self) -> Result<Launched> {
        let mut launching = match self.launching.try_lock() {
            Ok(launching) => launching,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(Launched::Elsewhere),
        };
        self.post.check()?;
        if !self.post.has_left() {
            return Ok(Launched::Already);
        }
        let (Some(memory), Some(cleared)) = (&self.memory, &mut launching.cleared) else {
            return Ok(Launched::Already);
        };
        let context = self.model.device.context();
        let turn = context.turn(Claim::Resident)?;
        let pass = context.pass()?;
        // Again: it may have said so while this thread waited, and sessions have given up what their items name.
        self.post.check()?;
        // What other streams have under way ends first: beside the decoder it may find no room.
        self.post.stream.inner.order_behind_all()?;
        self.post.ask(Wish::Stay);
        cleared.counters.fill_bytes(&self.post.stream, 0)?;
        const { assert!(EMPTY == u32::from_ne_bytes([u8::MAX; 4])) };
        cleared.exchange.fill_bytes(&self.post.stream, u8::MAX)?;
        cleared.parts.0.fill_bytes(&self.post.stream, u8::MAX)?;
        let number = self.post.launched.load(Ordering::Acquire).wrapping_add(1).max(1);
        // Between its tokens a session whose host chooses has no item: what was asked for counts as well.
        let wanted = self.post.taken().max(self.wanted.swap(0, Ordering::AcqRel));
        let columns = wanted.clamp(1, self.kernel.columns());
        self.columns.store(columns, Ordering::Release);
        self.launch(memory, cleared, number, columns)?;
        self.post.launched.store(number, Ordering::Release);
        drop(pass);
        turn.leave_resident(&self.resident);
        // For items that came meanwhile.
        self.make_room();
        // Some drivers submit work only when they are asked about it.
        self.post.stream.is_idle()?;
        Ok(Launched::Now)
    }

    /// Asks the launch in flight to leave where it has fewer columns than there are items, and the next one may have more. A
    /// launch keeps what it has until it ends, also where items have become fewer.
    pub(super) fn make_room(&self) {
        let wanted = self.post.taken().min(self.kernel.columns());
        if !self.post.has_left() && self.columns.load(Ordering::Acquire) < wanted {
            self.wanted.fetch_max(wanted, Ordering::AcqRel);
            self.post.ask(Wish::Park);
        }
    }

    fn launch(&self, memory: &Memory, cleared: &Cleared, number: u32, columns: u32) -> Result<()> {
        let (shape, weights, post) = (self.model.file.shape(), &self.model.weights, &self.post);
        let limits = self.model.device.limits();
        let device_wait = limits.device_wait.min(LONGEST_WAIT);
        // The blocks wait for the leader while it waits for work.
        let idle = IDLE.min(device_wait / 4);
        let [idle_limit, turn_limit, run_limit, wait_limit] =
            [idle, limits.turn, limits.run, device_wait].map(nanoseconds);
        let decoder = PersistentDecoder {
            table: (&weights.table).into(),
            shares: (&memory.shares).into(),
            x: (&memory.x).into(),
            embeddings: (&memory.embeddings).into(),
            qkv: (&memory.qkv).into(),
            attention: (&memory.attention).into(),
            ffn: (&memory.ffn).into(),
            choice: (&memory.choice).into(),
            counters: (&cleared.counters).into(),
            state: (&memory.state).into(),
            mailbox: (&post.words).into(),
            report: (&post.report).into(),
            rings: (&post.rings).into(),
            layers: shape.layers,
            vocab: shape.vocab,
            eps: shape.rms_eps,
            launch: number,
            idle_limit,
            turn_limit,
            run_limit,
            wait_limit,
            kv: self.kv.bytes(),
        };
        let trace = || match &memory.trace {
            Some((trace, events)) => Trace { trace: trace.into(), trace_capacity: *events },
            None => Trace { trace: Out::NULL, trace_capacity: 0 },
        };
        let (second_planes, of_block) = &memory.second_planes;
        let exchange = || Exchange {
            exchange: (&cleared.exchange).into(),
            parts: (&cleared.parts.0).into(),
            parts_each: cleared.parts.1,
            second_planes: second_planes.into(),
            second_planes_each: *of_block,
            columns,
        };
        let at = columns as usize - 1;
        let ring = |rings: &[Depth]| rings.get(at).copied().unwrap_or(Depth::LEAST);
        match &*self.kernel {
            Persistent::Plain(kernel) => self.enqueue(kernel, &decoder),
            Persistent::Tracing(kernel) => self.enqueue(kernel, &(decoder, trace())),
            Persistent::Ring(kernel, rings, in_slices) => {
                let (kernel, ring) = match in_slices.as_ref().and_then(|of| of.of(at.checked_sub(rings.len())?)) {
                    Some(of_slices) => of_slices,
                    None => (kernel, ring(rings)),
                };
                self.enqueue(kernel, &((decoder, ring), exchange()))
            }
            Persistent::TracingRing(kernel, rings) => {
                self.enqueue(kernel, &(((decoder, trace()), ring(rings)), exchange()))
            }
        }
    }

    /// Enqueues the launch, for whoever has a turn on the device.
    fn enqueue<L: Launch>(&self, kernel: &Kernel<L>, launch: &L::At<'_>) -> Result<()> {
        let weights = self.model.weights.data.reads("weights");
        let uses = Arguments::of(launch).uses().into_iter().flatten().chain([weights]);
        self.post.stream.enqueue_in_turn(uses, |stream: &Stream| {
            // SAFETY: buffers have the lengths of the shape it was baked for and of this grid, and are noted as used. What
            // an item names belongs to a session, which keeps it until the item has ended; ids and chunks are checked by
            // the kernel against the item's room.
            unsafe { kernel.launch_cooperative(stream, self.blocks, launch) }
        })
    }

    /// Whether the kernel stamps its phases.
    pub(super) fn traces(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.trace.is_some())
    }

    /// The stamps of a kernel that traces.
    #[cfg(feature = "trace")]
    pub(super) fn trace(&self) -> Result<Option<crate::model::trace::Trace>> {
        let Some((buffer, _)) = self.memory.as_ref().and_then(|memory| memory.trace.as_ref()) else { return Ok(None) };
        let _quiet = self.model.device.context().quiesce()?;
        Ok(Some(crate::model::trace::Trace::from_words(self.blocks, &buffer.to_host()?)))
    }

    /// Ids and tokens that have run in a slot's item of that number; none where it has not been taken.
    #[cfg(test)]
    pub(super) fn steps(&self, slot: u32, number: u32) -> Result<u32> {
        let _quiet = self.model.device.context().quiesce()?;
        let words = self.memory.as_ref().map(|memory| memory.state.to_host()).transpose()?;
        let word = |at: u32| words.as_ref().and_then(|words| words.get((at + slot) as usize).copied());
        Ok(word(state::STEP).filter(|_| word(state::NUMBER) == Some(number)).unwrap_or(0))
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        let parked = self.model.device.context().quiesce().is_ok();
        if !parked && !matches!(self.post.is_off(), Ok(true)) {
            // The kernel may still run: what it uses stays as it is.
            std::mem::forget((self.memory.take(), self.post.clone(), self.model.clone(), self.kernel.clone()));
            let launching = self.launching.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
            std::mem::forget(launching.cleared.take());
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Blocks of the grid: as asked for, or one on each multiprocessor.
fn grid(model: &Inner, kernel: &Persistent, wish: Option<u32>) -> Result<u32> {
    let device = &model.device;
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
