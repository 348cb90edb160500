//! Weights on the device: one allocation, and the tensor table.

use super::file::ModelFile;
use super::kernels::{self, Kernel};
use crate::baked::LOADING;
use crate::driver::{Device, DeviceBuffer, DevicePtr, KernelParam, PinnedBuffer, Stream};
use crate::shape::table::{DATA_OFFSET, ENTRY_BYTES, LAYER_SLOTS, MODEL_SLOTS, PLANE_OFFSET, TYPE_OFFSET};
use crate::shape::{TensorRole, TensorType};
use crate::{Error, Result};

/// How far loading is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes of the file's tensors on the device.
    pub done: u64,
    /// Bytes of all tensors.
    pub total: u64,
}

/// Device memory of a model, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryNeed {
    /// Weights.
    pub weights: u64,
    /// The tensor table.
    pub tables: u64,
    /// For a while, at loading: types that are split into planes go through it.
    pub staging: u64,
}

impl MemoryNeed {
    /// All of it.
    pub const fn total(&self) -> u64 {
        self.weights.saturating_add(self.tables).saturating_add(self.staging)
    }
}

/// Alignment of each tensor, and of each plane.
const ALIGNMENT: u64 = 256;
/// Bytes copied at once: between two of them the callback is called.
const PIECE: usize = 16 << 20;

/// A type that is split into records and a plane of f16 scales when it is loaded.
struct Split {
    kernel: &'static str,
    block: usize,
    record: u64,
}

const fn split(ty: TensorType) -> Option<Split> {
    match ty {
        TensorType::Q6_K => Some(Split { kernel: "repack_q6k", block: 210, record: 208 }),
        TensorType::Q8_0 => Some(Split { kernel: "repack_q8_0", block: 34, record: 32 }),
        _ => None,
    }
}

/// Where a tensor goes: offsets in the allocation.
struct Place {
    name: String,
    role: TensorRole,
    layer: u32,
    ty: TensorType,
    data: u64,
    plane: Option<u64>,
}

/// Every tensor's place, and what they take together.
fn places(file: &ModelFile) -> Result<(Vec<Place>, u64)> {
    let mut end = 0u64;
    let take = |end: &mut u64, bytes: u64| {
        let at = end.checked_next_multiple_of(ALIGNMENT)?;
        *end = at.checked_add(bytes)?;
        Some(at)
    };
    let mut places = Vec::new();
    for spec in file.shape().tensors() {
        let (info, data) = file.tensor(&spec.name)?;
        let split = split(info.ty());
        let blocks = split.as_ref().map_or(0, |split| (data.len() / split.block) as u64);
        let bytes = split.as_ref().map_or(data.len() as u64, |split| blocks * split.record);
        let place = take(&mut end, bytes).and_then(|data| {
            let plane = if split.is_some() { Some(take(&mut end, blocks * 2)?) } else { None };
            Some((data, plane))
        });
        let (data, plane) = place.ok_or_else(|| Error::SizeOverflow {
            what: "the weights",
            found: format!("{end} bytes and tensor {}", spec.name),
            limit: u64::MAX,
        })?;
        let (role, layer, ty) = (spec.role, spec.layer.unwrap_or(0), info.ty());
        places.push(Place { name: spec.name, role, layer, ty, data, plane });
    }
    Ok((places, end))
}

/// What a model takes on a device.
pub(super) fn memory_need(file: &ModelFile) -> Result<MemoryNeed> {
    let (places, weights) = places(file)?;
    let shape = file.shape();
    let entries = u64::from(MODEL_SLOTS) + u64::from(shape.layers) * u64::from(LAYER_SLOTS);
    let staging = if places.iter().any(|place| place.plane.is_some()) { PIECE as u64 } else { 0 };
    Ok(MemoryNeed { weights, tables: entries * u64::from(ENTRY_BYTES), staging })
}

/// Compares what a model takes with what is free.
pub(super) fn check_memory(device: &Device, file: &ModelFile) -> Result<()> {
    let need = memory_need(file)?.total();
    let (free, total) = device.memory_info()?;
    if need > free {
        return Err(Error::OutOfMemory {
            what: "the model's weights, its tensor table and staging",
            needed: need,
            free,
            total,
        });
    }
    Ok(())
}

/// The weights.
pub(crate) struct Weights {
    pub(crate) data: DeviceBuffer<u8>,
    pub(crate) table: DeviceBuffer<u8>,
    memory: MemoryNeed,
}

impl Weights {
    pub(crate) fn upload(device: &Device, file: &ModelFile, mut progress: impl FnMut(Progress)) -> Result<Weights> {
        let shape = *file.shape();
        let (places, bytes) = places(file)?;
        let memory = MemoryNeed { staging: 0, ..memory_need(file)? };
        let mut data = DeviceBuffer::<u8>::uninitialized(device, host_size("the weights", bytes)?)?;
        let mut table = vec![0u8; (ENTRY_BYTES * (MODEL_SLOTS + shape.layers * LAYER_SLOTS)) as usize];
        let total = shape.tensors().map(|spec| file.tensor(&spec.name).map_or(0, |(_, data)| data.len() as u64)).sum();
        let mut done = 0;
        let mut feed = Feed::new(device, total)?;
        let mut repack = None;
        for place in &places {
            let (_, source) = file.tensor(&place.name)?;
            let mut report = |bytes: usize| {
                done += bytes as u64;
                progress(Progress { done, total });
            };
            match place.plane.zip(split(place.ty)) {
                None => {
                    let mut at = host_size("a tensor", place.data)?;
                    for piece in source.chunks(feed.piece()) {
                        feed.copy(&mut data, at, piece)?;
                        at += piece.len();
                        report(piece.len());
                    }
                }
                Some((plane, split)) => {
                    let repack = match &mut repack {
                        Some(repack) => repack,
                        none => none.insert(Repack::new(device, feed.piece())?),
                    };
                    repack.tensor(&mut feed, &data, source, place.data, plane, &split, &mut report)?;
                }
            }
            let base = data.as_ptr().address();
            entry(&mut table, place.role.table_index(place.layer), base, place);
            if place.role == TensorRole::TokenEmbedding && shape.tied_head {
                entry(&mut table, TensorRole::Output.table_index(0), base, place);
            }
        }
        feed.stream.synchronize()?;
        Ok(Weights { data, table: DeviceBuffer::from_host(device, &table)?, memory })
    }

    pub(crate) fn memory(&self) -> MemoryNeed {
        self.memory
    }
}

/// Writes an entry of the tensor table.
fn entry(table: &mut [u8], index: u32, base: u64, place: &Place) {
    let at = (index * ENTRY_BYTES) as usize;
    let mut put = |offset: u32, bytes: &[u8]| {
        let start = at + offset as usize;
        if let Some(slot) = table.get_mut(start..start + bytes.len()) {
            slot.copy_from_slice(bytes);
        }
    };
    put(DATA_OFFSET, &(base + place.data).to_le_bytes());
    put(PLANE_OFFSET, &place.plane.map_or(0, |plane| base + plane).to_le_bytes());
    put(TYPE_OFFSET, &place.ty.id().to_le_bytes());
}

fn host_size(what: &'static str, bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| Error::SizeOverflow {
        what,
        found: format!("{bytes} bytes"),
        limit: usize::MAX as u64,
    })
}

/// Copies to the device through two page-locked buffers in turn: one is filled while the other is copied.
struct Feed {
    stream: Stream,
    pinned: [PinnedBuffer<u8>; 2],
    next: usize,
}

impl Feed {
    fn new(device: &Device, total: u64) -> Result<Feed> {
        let piece = usize::try_from(total).unwrap_or(PIECE).clamp(1, PIECE).next_multiple_of(4096);
        let pinned = [PinnedBuffer::zeroed(device, piece)?, PinnedBuffer::zeroed(device, piece)?];
        Ok(Feed { stream: device.stream()?, pinned, next: 0 })
    }

    /// Bytes copied at once.
    fn piece(&self) -> usize {
        self.pinned[0].len()
    }

    /// Enqueues a copy of `piece` to bytes `at..`; returns once the piece may change.
    fn copy(&mut self, to: &mut DeviceBuffer<u8>, at: usize, piece: &[u8]) -> Result<()> {
        let buffer = &mut self.pinned[self.next];
        self.next ^= 1;
        buffer.as_mut_slice()?[..piece.len()].copy_from_slice(piece);
        to.copy_from_pinned(&self.stream, at, buffer, 0..piece.len())
    }
}

/// Splits blocks into records and scales on the device, a piece at a time.
struct Repack {
    staging: DeviceBuffer<u8>,
    q6_k: Kernel,
    q8_0: Kernel,
}

impl Repack {
    fn new(device: &Device, piece: usize) -> Result<Repack> {
        let module = kernels::choose(device, LOADING.modules, None, "repack")?;
        let loaded = kernels::load(device, module)?;
        let find = |ty: TensorType| {
            let name = split(ty).map_or("", |split| split.kernel);
            Kernel::find(&loaded, module, name, "the general kernels")
        };
        Ok(Repack {
            staging: DeviceBuffer::uninitialized(device, piece)?,
            q6_k: find(TensorType::Q6_K)?,
            q8_0: find(TensorType::Q8_0)?,
        })
    }

    #[allow(clippy::too_many_arguments)]
    fn tensor(
        &mut self,
        feed: &mut Feed,
        data: &DeviceBuffer<u8>,
        source: &[u8],
        records: u64,
        plane: u64,
        split: &Split,
        report: &mut impl FnMut(usize),
    ) -> Result<()> {
        let kernel = if split.block == 210 { &self.q6_k } else { &self.q8_0 };
        let base = data.as_ptr().address();
        let mut first = 0u64;
        for piece in source.chunks(feed.piece() / split.block * split.block) {
            feed.copy(&mut self.staging, 0, piece)?;
            let count = (piece.len() / split.block) as u32;
            let blocks = self.staging.as_ptr();
            let records = DevicePtr::<u8>::new(base + records + first * split.record);
            let scales = DevicePtr::<u8>::new(base + plane + first * 2);
            feed.stream.enqueue([self.staging.reads("blocks"), data.writes("weights")], |stream| {
                let params = [
                    KernelParam::new(&blocks),
                    KernelParam::new(&records),
                    KernelParam::new(&scales),
                    KernelParam::new(&count),
                ];
                // SAFETY: `count` blocks are in the staging buffer; their records and scales have their places in the
                // weights, as `places` laid them out.
                unsafe { kernel.launch(stream, count.div_ceil(8).min(1024), &params) }
            })?;
            first += u64::from(count);
            report(piece.len());
        }
        Ok(())
    }
}
