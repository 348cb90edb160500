//! A session's memory on the device: the KV cache in chunks, the ids, and the vectors between kernels.

use super::edits::Edits;
use super::rotary::Rotary;
use super::{Inner, KvType};
use crate::driver::{Device, DeviceBuffer, PinnedBuffer, Stream};
use crate::shape::table::KV_CHUNK;
use crate::shape::{ModelShape, units};
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Chunks that a cache begins with, where so many are wanted.
const FIRST_CHUNKS: usize = 4;

/// Words of the state that kernels read and move on: position, length, error.
const STATE: usize = 3;

/// Errors that kernels report in the state's last word.
const ERRORS: [&str; 3] = [
    "a token id is outside the vocabulary, or a position outside the session",
    "a position is outside the KV cache",
    "a length is beyond the KV cache",
];

/// Number of sequences so far.
static SEQUENCES: AtomicU64 = AtomicU64::new(1);

/// A sequence's memory on the device.
pub(crate) struct Sequence {
    /// Number of the sequence, never used twice in a process, and never 0.
    pub(crate) number: u64,
    pub(crate) kv: KvType,
    /// Positions it may grow to.
    pub(crate) capacity: u32,
    /// `[capacity + 1]` ids by position, of all tokens in the cache: one may be chosen behind the last position.
    pub(crate) tokens: DeviceBuffer<u32>,
    /// `[position, length, error]`: the position being worked on, and that plus one.
    pub(crate) state: DeviceBuffer<u32>,
    /// `[capacity / KV_CHUNK]` addresses of chunks.
    pub(crate) table: DeviceBuffer<u64>,
    /// Those that other sequences share are not written any more.
    chunks: Vec<Arc<DeviceBuffer<u8>>>,
    /// The residual stream, `[hidden]`.
    pub(crate) x: DeviceBuffer<f32>,
    /// `[q_dim + 2 kv_dim]`.
    pub(crate) qkv: DeviceBuffer<f32>,
    /// `[q_dim]`.
    pub(crate) attention: DeviceBuffer<f32>,
    /// `[ffn]`.
    pub(crate) ffn: DeviceBuffer<f32>,
    /// `[vocab]`.
    pub(crate) logits: DeviceBuffer<f32>,
    /// The partial results of attention, in either numerics.
    pub(crate) partials: DeviceBuffer<f32>,
    /// `[kv_heads]` zeros, in which blocks of attention count units that are finished.
    pub(crate) arrivals: DeviceBuffer<u32>,
    /// Angles of at least `capacity` positions.
    pub(crate) rotary: Arc<Rotary>,
    /// What changes logits before a choice.
    pub(crate) edits: Edits,
    /// Where the host reads the chosen id and the state.
    host: PinnedBuffer<u32>,
}

impl Sequence {
    pub(crate) fn new(model: &Inner, kv: KvType, capacity: u32) -> Result<Sequence> {
        let (device, shape) = (&model.device, model.file.shape());
        let slots = capacity.div_ceil(KV_CHUNK) as usize;
        let table = DeviceBuffer::<u64>::zeroed(device, slots)?;
        let partials = units::partials(shape, capacity.div_ceil(KV_CHUNK));
        let partials = usize::try_from(partials).map_err(|_| Error::SizeOverflow {
            what: "the partial results of attention",
            found: format!("{slots} chunks of {} heads", shape.heads),
            limit: usize::MAX as u64,
        })?;
        let qkv = shape.q_dim() as usize + 2 * shape.kv_dim() as usize;
        Ok(Sequence {
            number: SEQUENCES.fetch_add(1, Ordering::Relaxed),
            kv,
            capacity,
            tokens: DeviceBuffer::zeroed(device, capacity as usize + 1)?,
            state: DeviceBuffer::from_host(device, &[0, 1, 0])?,
            table,
            chunks: Vec::new(),
            x: DeviceBuffer::zeroed(device, shape.hidden as usize)?,
            qkv: DeviceBuffer::zeroed(device, qkv)?,
            attention: DeviceBuffer::zeroed(device, shape.q_dim() as usize)?,
            ffn: DeviceBuffer::zeroed(device, shape.ffn as usize)?,
            logits: DeviceBuffer::zeroed(device, shape.vocab as usize)?,
            partials: DeviceBuffer::zeroed(device, partials)?,
            arrivals: DeviceBuffer::zeroed(device, shape.kv_heads as usize)?,
            rotary: model.rotary(capacity)?,
            edits: Edits::default(),
            host: PinnedBuffer::zeroed(device, STATE + 1)?,
        })
    }

    /// Grows the cache to `needed` positions. Where chunks are missing their number doubles, up to that of `wanted`
    /// positions, so that a long answer grows it a few times only. Resident work is off the device meanwhile: a launch
    /// sees one table.
    pub(crate) fn grow(&mut self, model: &Inner, needed: u32, wanted: u32) -> Result<()> {
        let chunks = |positions: u32| positions.min(self.capacity).div_ceil(KV_CHUNK) as usize;
        let (have, needed) = (self.chunks.len(), chunks(needed));
        if needed <= have {
            return Ok(());
        }
        let target = needed.max(chunks(wanted).min((2 * have).max(FIRST_CHUNKS)));
        let bytes = chunk_bytes(model.file.shape(), self.kv)?;
        let _quiet = model.device.context().quiesce()?;
        let mut fresh = Vec::with_capacity(target - have);
        while have + fresh.len() < target {
            match DeviceBuffer::<u8>::uninitialized(&model.device, bytes) {
                Ok(chunk) => fresh.push(Arc::new(chunk)),
                // What was only wanted may be missing.
                Err(_) if have + fresh.len() >= needed => break,
                Err(error) => return Err(error),
            }
        }
        let addresses: Vec<u64> = fresh.iter().map(|chunk| chunk.as_ptr().address()).collect();
        self.table.copy_from_host(have, &addresses)?;
        self.chunks.append(&mut fresh);
        Ok(())
    }

    /// Writes to every chunk what `content` gives for its number of bytes.
    #[cfg(all(test, feature = "tiny"))]
    pub(crate) fn fill_cache(&mut self, content: impl Fn(usize) -> Vec<u8>) {
        for chunk in &mut self.chunks {
            let bytes = content(chunk.len());
            Arc::get_mut(chunk).expect("of this sequence alone").copy_from_host(0, &bytes).expect("a copy");
        }
    }

    /// The chunks that `length` positions fill.
    pub(crate) fn whole_chunks(&self, length: usize) -> impl Iterator<Item = &DeviceBuffer<u8>> {
        self.chunks.iter().take(length / KV_CHUNK as usize).map(|chunk| &**chunk)
    }

    /// Writes whole chunks for `length` positions, each by what `content` puts into its bytes.
    pub(crate) fn write_chunks(
        &mut self,
        model: &Inner,
        length: u32,
        mut content: impl FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        self.grow(model, length, length)?;
        let mut bytes = vec![0; chunk_bytes(model.file.shape(), self.kv)?];
        for chunk in self.chunks.iter_mut().take((length / KV_CHUNK) as usize).filter_map(Arc::get_mut) {
            content(&mut bytes)?;
            let _quiet = model.device.context().quiesce()?;
            chunk.copy_from_host(0, &bytes)?;
        }
        Ok(())
    }

    /// Has the chunks from that of `position` on for this sequence alone, before work that writes from there on. Resident
    /// work is off the device where that takes a copy.
    pub(crate) fn own(&mut self, model: &Inner, position: u32) -> Result<()> {
        let first = (position / KV_CHUNK) as usize;
        if self.chunks.iter().skip(first).all(|chunk| Arc::strong_count(chunk) == 1) {
            return Ok(());
        }
        let _quiet = model.device.context().quiesce()?;
        let stream = model.device.stream()?;
        for (index, chunk) in self.chunks.iter_mut().enumerate().skip(first) {
            if Arc::strong_count(chunk) == 1 {
                continue;
            }
            let mut own = DeviceBuffer::uninitialized(&model.device, chunk.len())?;
            // Behind the first nothing counts any more.
            if index == first && !position.is_multiple_of(KV_CHUNK) {
                own.copy_from_device(&stream, 0, chunk, 0..chunk.len())?;
                // A resident kernel does not wait for streams.
                stream.synchronize()?;
            }
            self.table.copy_from_host(index, &[own.as_ptr().address()])?;
            *chunk = Arc::new(own);
        }
        Ok(())
    }

    /// Positions that the chunks have room for.
    pub(crate) fn room(&self) -> u32 {
        (self.chunks.len() as u32).saturating_mul(KV_CHUNK).min(self.capacity)
    }

    /// Chunks that the cache may have.
    pub(crate) fn max_chunks(&self) -> u32 {
        self.capacity.div_ceil(KV_CHUNK)
    }

    /// The uses of everything here by work that decodes.
    pub(crate) fn uses(&self) -> impl Iterator<Item = crate::driver::Use<'_>> {
        [
            self.tokens.writes("tokens"),
            self.state.writes("state"),
            self.table.reads("table of chunks"),
            self.x.writes("residual stream"),
            self.qkv.writes("qkv"),
            self.attention.writes("attention"),
            self.ffn.writes("ffn"),
            self.logits.writes("logits"),
            self.partials.writes("partials"),
            self.arrivals.writes("arrivals"),
            self.rotary.cos.reads("cosines"),
            self.rotary.sin.reads("sines"),
        ]
        .into_iter()
        .chain(self.edits.uses())
        .chain(self.chunks.iter().map(|chunk| match Arc::strong_count(chunk) {
            1 => chunk.writes("kv cache"),
            _ => chunk.reads("kv cache"),
        }))
    }

    /// Puts `ids` at positions `at..`.
    pub(crate) fn write_tokens(&mut self, at: u32, ids: &[u32]) -> Result<()> {
        self.tokens.copy_from_host(at as usize, ids)
    }

    /// Sets the position to work on next.
    pub(crate) fn seek(&mut self, position: u32) -> Result<()> {
        self.state.copy_from_host(0, &[position, position + 1, 0])
    }

    /// Waits for the stream's work, and reads the id at `position`.
    pub(crate) fn token(&mut self, stream: &Stream, position: u32) -> Result<u32> {
        let at = position as usize;
        self.tokens.copy_to_pinned(stream, at..at + 1, &mut self.host, STATE)?;
        self.check(stream)?;
        Ok(self.host.as_slice()?.get(STATE).copied().unwrap_or(0))
    }

    /// Waits for the stream's work; an error if a kernel has set the error word.
    pub(crate) fn check(&mut self, stream: &Stream) -> Result<()> {
        self.state.copy_to_pinned(stream, 0..STATE, &mut self.host, 0)?;
        match self.host.as_slice()?.get(2).copied().unwrap_or(0) {
            0 => Ok(()),
            code => Err(Error::Kernel {
                what: ERRORS.get(code as usize - 1).copied().unwrap_or("an unknown error word"),
                code,
            }),
        }
    }

    /// Takes over the cache of another sequence's first `length` positions, before it has any of its own: chunks that they
    /// fill are shared, the last one is copied.
    pub(crate) fn copy_cache(&mut self, model: &Inner, from: &Sequence, stream: &Stream, length: u32) -> Result<()> {
        let _quiet = model.device.context().quiesce()?;
        let shared = (length / KV_CHUNK) as usize;
        self.chunks = from.chunks.iter().take(shared).cloned().collect();
        let addresses: Vec<u64> = self.chunks.iter().map(|chunk| chunk.as_ptr().address()).collect();
        self.table.copy_from_host(0, &addresses)?;
        self.grow(model, length, length)?;
        for (to, from) in self.chunks.iter_mut().zip(&from.chunks).skip(shared) {
            if let Some(to) = Arc::get_mut(to) {
                to.copy_from_device(stream, 0, from, 0..from.len())?;
            }
        }
        // A resident kernel does not wait for streams.
        stream.synchronize()
    }
}

/// Bytes of a chunk: keys and values of all layers.
fn chunk_bytes(shape: &ModelShape, kv: KvType) -> Result<usize> {
    let bytes = shape.kv_bytes_per_token(kv.bytes()).checked_mul(u64::from(KV_CHUNK));
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| Error::SizeOverflow {
        what: "a chunk of the KV cache",
        found: format!("{KV_CHUNK} positions of {} layers", shape.layers),
        limit: usize::MAX as u64,
    })
}

/// Bytes of device memory that a session takes, its cache full.
pub(crate) fn bytes(shape: &ModelShape, kv: KvType, capacity: u32) -> u64 {
    let slots = u64::from(capacity.div_ceil(KV_CHUNK));
    let chunks = slots.saturating_mul(u64::from(KV_CHUNK)).saturating_mul(shape.kv_bytes_per_token(kv.bytes()));
    let vectors = u64::from(shape.hidden) + 2 * u64::from(shape.q_dim()) + 2 * u64::from(shape.kv_dim());
    let vectors = vectors + u64::from(shape.ffn) + u64::from(shape.vocab) + u64::from(capacity) + 1;
    let vectors = vectors + u64::from(capacity) * u64::from(shape.head_dim);
    let partials = units::partials(shape, capacity.div_ceil(KV_CHUNK)) + u64::from(shape.kv_heads);
    chunks.saturating_add(4 * (vectors + partials)).saturating_add(8 * slots)
}

/// Refuses a session that would take more memory than is free.
pub(crate) fn check_memory(device: &Device, shape: &ModelShape, kv: KvType) -> Result<()> {
    // The cache grows by need; what must be there is the first chunk.
    let need = bytes(shape, kv, KV_CHUNK);
    let (free, total) = device.context().memory_for(need)?;
    if need > free {
        return Err(Error::OutOfMemory { what: "a session", needed: need, free, total });
    }
    Ok(())
}

#[cfg(all(test, feature = "tiny"))]
mod tests {
    use super::Sequence;
    use crate::model::KvType;
    use crate::model::path::tests::model;
    use crate::shape::table::KV_CHUNK;
    use std::sync::Arc;

    #[test]
    fn a_copy_has_every_chunk_of_the_cache() {
        let model = model();
        let sequence = || Sequence::new(&model.inner, KvType::F16, 3 * KV_CHUNK).expect("a sequence");
        let (mut from, mut to) = (sequence(), sequence());
        from.grow(&model.inner, 3 * KV_CHUNK, 3 * KV_CHUNK).expect("chunks");
        for (chunk, byte) in from.chunks.iter_mut().zip(1..) {
            let bytes = vec![byte; chunk.len()];
            Arc::get_mut(chunk).expect("of this sequence alone").copy_from_host(0, &bytes).expect("a copy");
        }
        let stream = model.inner.device.stream().expect("a stream");
        to.copy_cache(&model.inner, &from, &stream, 2 * KV_CHUNK + 1).expect("a copy");
        assert_eq!(to.chunks.len(), 3);
        for (to, byte) in to.chunks.iter().zip(1u8..) {
            assert!(to.to_host().expect("a copy").iter().all(|found| *found == byte), "chunk {byte}");
        }
    }
}
