//! Columns rounded to bytes, as phases hand them on.

use super::super::tiles::Tile;
use crate::Result;
use crate::driver::{Device, DeviceBuffer, DevicePtr, TensorMap, Use};
use crate::shape::columns::{BOX_EIGHTS, BOXES, COLUMNS, MAP_WORD, MAP_WORDS, bytes};
use crate::shape::{ModelShape, SUPER_BLOCK};

/// What a phase takes: columns rounded to bytes, with one scale for 256 and with one for each 32, and what its products are
/// multiplied with, `[columns]`.
pub(super) struct Rounded {
    pub(super) of_256: DeviceBuffer<u8>,
    pub(super) of_32: DeviceBuffer<u8>,
    pub(super) inverse: DeviceBuffer<f32>,
}

impl Rounded {
    /// For so many columns of `k` activations. What products and attention round does not write columns that are not there, nor
    /// a factor where there is no norm: factors are 1 from here on. Columns that are not there hold what was there before, zeros
    /// at first; results of theirs are not written.
    fn new(device: &Device, k: u32, columns: u32) -> Result<Rounded> {
        let rounded = || DeviceBuffer::<u8>::zeroed(device, bytes(k, columns) as usize);
        let inverse = DeviceBuffer::from_host(device, &vec![1.0; columns as usize])?;
        Ok(Rounded { of_256: rounded()?, of_32: rounded()?, inverse })
    }

    fn uses(&self) -> impl Iterator<Item = Use<'_>> {
        [
            self.of_256.writes("columns rounded to bytes"),
            self.of_32.writes("columns rounded to bytes"),
            self.inverse.writes("factors of columns"),
        ]
        .into_iter()
    }
}

/// What phases hand on.
pub(super) struct Handed {
    /// Of the residual stream, and of attention's results and the FFN's in turn: what a phase takes and what it leaves are
    /// never the same.
    rounded: [Rounded; 2],
    /// `[columns, super-blocks]`: sums of squares.
    pub(super) squares: DeviceBuffer<f32>,
    /// Zeros, in which blocks count what they have written.
    pub(super) arrivals: DeviceBuffer<u32>,
    /// `[blocks]` tiles' sums that one block begins and the next ends, and zeros, in which blocks say so.
    pub(super) begun: DeviceBuffer<f32>,
    pub(super) begun_words: DeviceBuffer<u32>,
    /// `[phases, boxes]` tensor maps of what they take with one scale for 256; a byte where no tile has use for them.
    maps: DeviceBuffer<u8>,
}

/// Bytes of the tensor maps of columns of one length.
const MAPS_BYTES: usize = BOXES.len() * TensorMap::BYTES;

impl Handed {
    /// For so many columns, and as many blocks that share tiles, whose columns are copied by maps or not.
    pub(super) fn new(device: &Device, shape: &ModelShape, columns: u32, blocks: u32, by_maps: bool) -> Result<Handed> {
        let [stream, between] = widths(shape);
        let [squares, arrivals] = words(shape, columns);
        let rounded = [Rounded::new(device, stream, columns)?, Rounded::new(device, between, columns)?];
        let maps = if by_maps { maps(device, shape, &rounded, columns)? } else { vec![0] };
        Ok(Handed {
            rounded,
            maps: DeviceBuffer::from_host(device, &maps)?,
            squares: DeviceBuffer::uninitialized(device, squares as usize)?,
            arrivals: DeviceBuffer::zeroed(device, arrivals as usize)?,
            begun: DeviceBuffer::uninitialized(device, blocks.max(1) as usize * Tile::SUMS as usize)?,
            begun_words: DeviceBuffer::zeroed(device, blocks.max(1) as usize)?,
        })
    }

    /// What the phase of that number takes.
    pub(super) fn to(&self, phase: u32) -> &Rounded {
        let [stream, between] = &self.rounded;
        if phase.is_multiple_of(2) { stream } else { between }
    }

    /// The tensor maps of what the phase of that number takes; those of the head are the first phase's.
    pub(super) fn maps_of(&self, phase: u32) -> DevicePtr<u8> {
        let before = phase as usize % PHASES * MAPS_BYTES;
        self.maps.as_ptr().add(if before < self.maps.len() { before } else { 0 })
    }

    /// Bytes of device memory for so many columns and blocks.
    pub(super) fn memory(shape: &ModelShape, columns: u32, blocks: u32) -> u64 {
        let rounded: u64 = widths(shape).iter().map(|k| 2 * bytes(*k, columns) + 4 * u64::from(columns)).sum();
        let begun = u64::from(blocks.max(1)) * u64::from(Tile::SUMS + 1);
        rounded
            + (PHASES * MAPS_BYTES) as u64
            + 4 * begun
            + 4 * words(shape, columns).iter().map(|words| u64::from(*words)).sum::<u64>()
    }

    pub(super) fn uses(&self) -> impl Iterator<Item = Use<'_>> {
        let beside = [
            self.squares.writes("squares of columns"),
            self.arrivals.writes("arrivals of tiles"),
            self.begun.writes("sums of tiles"),
            self.begun_words.writes("words of tiles"),
            self.maps.reads("tensor maps of columns"),
        ];
        self.rounded.iter().flat_map(Rounded::uses).chain(beside)
    }
}

/// Phases of a layer.
const PHASES: usize = 4;

/// The tensor maps of what each phase takes.
fn maps(device: &Device, shape: &ModelShape, [stream, between]: &[Rounded; 2], columns: u32) -> Result<Vec<u8>> {
    let of_phases: [_; PHASES] =
        [(stream, shape.hidden), (between, shape.q_dim()), (stream, shape.hidden), (between, shape.ffn)];
    let mut all = Vec::new();
    for (of, k) in of_phases {
        let row = u64::from(k.div_ceil(SUPER_BLOCK)) * u64::from(MAP_WORDS);
        for bytes in BOXES {
            let size = (row, u64::from(columns / COLUMNS));
            let map =
                TensorMap::of_rows::<u64>(device, of.of_256.as_ptr().cast(), size, (bytes / MAP_WORD, BOX_EIGHTS))?;
            all.extend(map.to_bytes());
        }
    }
    Ok(all)
}

/// Activations of a column of the residual stream, and of the longest one between its phases.
fn widths(shape: &ModelShape) -> [u32; 2] {
    [shape.hidden, shape.q_dim().max(shape.ffn)]
}

/// Words of squares and of arrivals: tiles have at least an eight of columns.
fn words(shape: &ModelShape, columns: u32) -> [u32; 2] {
    let longest = shape.hidden.max(shape.ffn).div_ceil(SUPER_BLOCK);
    [columns * shape.hidden.div_ceil(SUPER_BLOCK), columns.div_ceil(COLUMNS) * (longest + 1)]
}
