//! Weights on the device: one allocation, and the tensor table.

use super::file::ModelFile;
use crate::baked::LOADING;
use crate::driver::{Device, DeviceBuffer, DevicePtr, PinnedBuffer, Stream, TensorMap, Use};
use crate::kernel::{Kernel, LoadedModule};
use crate::launch::{Arguments, Out};
use crate::ops::RepackBlocks;
use crate::shape::table::{
    BOX_ROWS, DATA_OFFSET, ENTRY_BYTES, LAYER_SLOTS, MAP_OFFSET, MODEL_SLOTS, PLANE_OFFSET, TENSOR_MAP_BYTES,
    TYPE_OFFSET,
};
use crate::shape::{ModelShape, SUPER_BLOCK, TensorRole, WeightType};
use crate::{Error, Result};

/// The progress of loading.
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
    /// The tensor table, and the tensor maps of compute capability 9.0.
    pub tables: u64,
    /// Bytes that are taken during loading only: types that are split into planes pass through them.
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

/// Where a tensor goes: offsets in the allocation.
struct Place {
    name: String,
    role: TensorRole,
    layer: u32,
    ty: WeightType,
    /// Blocks of a row, and rows.
    row_blocks: u32,
    rows: u64,
    data: u64,
    plane: Option<u64>,
    /// Whether the plane ends within 16 bytes, which bulk copies take whole: the rest is to be zero.
    is_padded: bool,
}

impl Place {
    /// Whether rows end within a super-block of the plane, whose rest is to be zero.
    fn is_cut(&self) -> bool {
        self.plane.is_some() && !(self.row_blocks * self.ty.block_len()).is_multiple_of(SUPER_BLOCK)
    }

    /// The tensor map of a matrix whose blocks are whole super-blocks, for products of warpgroups.
    fn map(&self, device: &Device, weights: DevicePtr<u8>) -> Result<Option<TensorMap>> {
        if !self.role.is_matrix() || self.ty.block_len() != SUPER_BLOCK {
            return Ok(None);
        }
        let bytes = self.ty.layout().data;
        let data = weights.add(host_size("a tensor", self.data)?);
        let row_bytes = u64::from(self.row_blocks) * u64::from(bytes);
        TensorMap::of_rows(device, data, (row_bytes, self.rows), (bytes, BOX_ROWS)).map(Some)
    }
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
        let (ty, _) = file.weights(&spec.name)?;
        let row = spec.dims.first().copied().unwrap_or(0);
        let rows = spec.dims.get(1).copied().unwrap_or(1);
        let sizes =
            if spec.role.is_matrix() { ty.matrix_bytes(row, rows) } else { row.checked_mul(4).map(|data| (data, 0)) };
        let place = sizes.and_then(|(data, plane)| {
            let data = take(&mut end, data)?;
            let padded = plane.checked_next_multiple_of(16)?;
            Some((data, if plane == 0 { None } else { Some(take(&mut end, padded)?) }, padded != plane))
        });
        let (data, plane, is_padded) = place.ok_or_else(|| Error::SizeOverflow {
            what: "the weights",
            found: format!("{end} bytes and tensor {}", spec.name),
            limit: u64::MAX,
        })?;
        let (role, layer) = (spec.role, spec.layer.unwrap_or(0));
        // Both fit 32 bits: dimensions are checked against the shape's.
        let row_blocks = (row / u64::from(ty.block_len())) as u32;
        places.push(Place { name: spec.name, role, layer, ty, row_blocks, rows, data, plane, is_padded });
    }
    Ok((places, end))
}

/// Bytes of a file's tensors together.
fn total(file: &ModelFile) -> u64 {
    file.shape().tensors().map(|spec| file.weights(&spec.name).map_or(0, |(_, data)| data.len() as u64)).sum()
}

/// Bytes copied at once of so many: [`PIECE`], or all of a small model.
fn piece(total: u64) -> usize {
    usize::try_from(total).unwrap_or(PIECE).clamp(1, PIECE).next_multiple_of(4096)
}

/// The device memory that a model takes.
pub(super) fn memory_need(file: &ModelFile) -> Result<MemoryNeed> {
    let (places, weights) = places(file)?;
    let shape = file.shape();
    let tables = table_bytes(entries(shape)) as u64;
    let staging = if places.iter().any(|place| place.plane.is_some()) { piece(total(file)) as u64 } else { 0 };
    Ok(MemoryNeed { weights, tables, staging })
}

/// Refuses a model that would take more memory than is free.
pub(super) fn check_memory(device: &Device, file: &ModelFile) -> Result<()> {
    let need = memory_need(file)?.total();
    let (free, total) = device.context().memory_for(need)?;
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
    /// The types of the tensors, by their entries in the table.
    types: Vec<Option<WeightType>>,
}

impl Weights {
    pub(crate) fn upload(device: &Device, file: &ModelFile, mut progress: impl FnMut(Progress)) -> Result<Weights> {
        let shape = *file.shape();
        let (places, bytes) = places(file)?;
        let memory = MemoryNeed { staging: 0, ..memory_need(file)? };
        let size = host_size("the weights", bytes)?;
        let mut data = match places.iter().any(|place| place.is_cut() || place.is_padded) {
            true => DeviceBuffer::<u8>::zeroed(device, size)?,
            false => DeviceBuffer::<u8>::uninitialized(device, size)?,
        };
        let mut types = vec![None; entries(&shape) as usize];
        let mut table = vec![0u8; table_bytes(entries(&shape))];
        let mut on_device = DeviceBuffer::<u8>::uninitialized(device, table.len())?;
        let maps = on_device.as_ptr().address() + u64::from(maps_at(entries(&shape)));
        let has_maps = TensorMap::is_supported(device);
        let total = total(file);
        let mut done = 0;
        let mut feed = Feed::new(device, total)?;
        let mut repack = None;
        for place in &places {
            let (_, source) = file.weights(&place.name)?;
            let mut report = |bytes: usize| {
                done += bytes as u64;
                progress(Progress { done, total });
            };
            match place.plane {
                None => {
                    let mut at = host_size("a tensor", place.data)?;
                    for piece in source.chunks(feed.piece()) {
                        feed.copy(&mut data, at, piece)?;
                        at += piece.len();
                        report(piece.len());
                    }
                }
                Some(plane) => {
                    let repack = match &mut repack {
                        Some(repack) => repack,
                        none => none.insert(Repack::new(device, feed.piece())?),
                    };
                    repack.tensor(&mut feed, &data, source, place, plane, &mut report)?;
                }
            }
            let base = data.as_ptr().address();
            let map = if has_maps { place.map(device, data.as_ptr())? } else { None };
            let own = place.role.table_index(place.layer);
            let is_tied = place.role == TensorRole::TokenEmbedding && shape.tied_head;
            for index in [own].into_iter().chain(is_tied.then_some(TensorRole::Output.table_index(0))) {
                entry(&mut table, index, base, place);
                if let Some(map) = &map {
                    let at = index * TENSOR_MAP_BYTES;
                    put(&mut table, maps_at(entries(&shape)) + at, &map.to_bytes());
                    put(&mut table, index * ENTRY_BYTES + MAP_OFFSET, &(maps + u64::from(at)).to_le_bytes());
                }
                if let Some(ty) = types.get_mut(index as usize) {
                    *ty = Some(place.ty);
                }
            }
        }
        feed.stream.synchronize()?;
        // A decoder that a session launches next need not look out for more.
        feed.stream.inner.leave_turn();
        on_device.copy_from_host(0, &table)?;
        Ok(Weights { data, table: on_device, memory, types })
    }

    pub(crate) fn memory(&self) -> MemoryNeed {
        self.memory
    }

    /// The uses of all of it by work that decodes.
    pub(crate) fn uses(&self) -> impl Iterator<Item = Use<'_>> {
        [self.data.reads("weights"), self.table.reads("tensor table")].into_iter()
    }

    /// The types of its tensors.
    pub(crate) fn types(&self) -> impl Iterator<Item = WeightType> {
        self.types.iter().copied().flatten()
    }

    /// The type of a layer's tensor, or of one of the model's; none where the model has no such tensor.
    pub(crate) fn ty(&self, role: TensorRole, layer: u32) -> Option<WeightType> {
        self.types.get(role.table_index(layer) as usize).copied().flatten()
    }
}

/// Writes an entry of the tensor table.
fn entry(table: &mut [u8], index: u32, base: u64, place: &Place) {
    let at = index * ENTRY_BYTES;
    put(table, at + DATA_OFFSET, &(base + place.data).to_le_bytes());
    put(table, at + PLANE_OFFSET, &place.plane.map_or(0, |plane| base + plane).to_le_bytes());
    put(table, at + TYPE_OFFSET, &place.ty.id().to_le_bytes());
}

fn put(table: &mut [u8], at: u32, bytes: &[u8]) {
    let start = at as usize;
    if let Some(slot) = table.get_mut(start..start + bytes.len()) {
        slot.copy_from_slice(bytes);
    }
}

/// Entries of a model's table.
const fn entries(shape: &ModelShape) -> u32 {
    MODEL_SLOTS + shape.layers * LAYER_SLOTS
}

/// Where the tensor maps of so many entries begin behind them.
const fn maps_at(entries: u32) -> u32 {
    (entries * ENTRY_BYTES).next_multiple_of(TENSOR_MAP_BYTES)
}

/// Bytes of a table with a tensor map for each entry.
const fn table_bytes(entries: u32) -> usize {
    (maps_at(entries) + entries * TENSOR_MAP_BYTES) as usize
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
        let piece = piece(total);
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

/// Brings blocks into the layout of the kernels on the device, a piece at a time.
struct Repack {
    staging: DeviceBuffer<u8>,
    module: LoadedModule,
    kernels: Vec<(WeightType, Kernel<RepackBlocks<'static>>)>,
}

impl Repack {
    fn new(device: &Device, piece: usize) -> Result<Repack> {
        let module = LOADING.load(device)?;
        Ok(Repack { staging: DeviceBuffer::uninitialized(device, piece)?, module, kernels: Vec::new() })
    }

    fn tensor(
        &mut self,
        feed: &mut Feed,
        data: &DeviceBuffer<u8>,
        source: &[u8],
        place: &Place,
        plane: u64,
        report: &mut impl FnMut(usize),
    ) -> Result<()> {
        let ty = place.ty;
        let known = self.kernels.iter().position(|(of, _)| *of == ty);
        let index = match known {
            Some(index) => index,
            None => {
                let name = format!("repack_{}", ty.in_entries());
                self.kernels.push((ty, self.module.find(&name, "the general kernels")?));
                self.kernels.len() - 1
            }
        };
        let kernel = &self.kernels[index].1;
        let base = data.as_ptr().address();
        let (to, plane) = (DevicePtr::<u8>::new(base + place.data), DevicePtr::<u8>::new(base + plane));
        let (block, row_blocks, mut first) = (ty.block_bytes() as usize, place.row_blocks, 0u32);
        for piece in source.chunks(feed.piece() / block * block) {
            feed.copy(&mut self.staging, 0, piece)?;
            let count = (piece.len() / block) as u32;
            let launch = RepackBlocks {
                blocks: (&self.staging).into(),
                data: Out::noted(to),
                plane: Out::noted(plane),
                count,
                first,
                row_blocks,
            };
            let uses = Arguments::of(&launch).uses().into_iter().flatten().chain([data.writes("weights")]);
            feed.stream.enqueue_many(uses, |stream| {
                // SAFETY: `count` blocks are in the staging buffer, from block `first` of the tensor on; all its blocks
                // have their places in the weights, as `places` laid them out.
                unsafe { kernel.launch(stream, kernel.grid(count.div_ceil(8).min(1024)), &launch) }
            })?;
            first += count;
            report(piece.len());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_model_stages_no_more_than_it_has() {
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/demo.Q4_K_M.gguf");
        let file = ModelFile::open(demo).expect("the demo model");
        let need = memory_need(&file).expect("it is counted");
        // Some of its matrices have planes, and pass through the staging buffer.
        assert!((1..=total(&file) + 4096).contains(&need.staging), "{need:?}");
        assert_eq!([piece(0), piece(5000), piece(u64::MAX)], [4096, 8192, PIECE]);
    }
}
