//! The copies of an entry.

use super::producer::Sizes;
use super::{Copies, Part, Ring};
use crate::blocks::tensor::Tensor;
use crate::ptx::{AtomicOp, Builder, Global, Shared, U8, U32, U64, Val, Var};
use kiln_shape::ring::{ENTRIES, UNIT_BYTES};

/// Bits of an entry's records, and of its first unit.
const RECORD_BITS: u32 = 8;
const UNIT_BITS: u32 = 8;

/// The entry that a lane asks the warp to fill.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    /// Its records, its first unit above them, and above that its place among the barriers; 0 for none.
    entry: Var<U32>,
    /// The number of its first record.
    number: Var<U32>,
}

impl Asked {
    /// Nothing yet.
    pub(super) fn none(b: &mut Builder) -> Asked {
        Asked { entry: b.var::<U32>(0), number: b.var::<U32>(0) }
    }

    /// Asks for records from `number` on in entry `entry`, which begins at unit `begin`.
    pub(super) fn ask(
        &self,
        b: &mut Builder,
        (begin, entry): (Val<U32>, Val<U32>),
        (number, records): (Val<U32>, Val<U32>),
    ) {
        let slot = b.and::<U32>(entry, ENTRIES - 1);
        let above = b.mad::<U32>(slot, 1 << UNIT_BITS, begin);
        let word = b.mad::<U32>(above, 1 << RECORD_BITS, records);
        b.set(self.entry, word);
        b.set(self.number, number);
    }

    /// Fills the entries that lanes have asked for, one after another, by the whole warp.
    pub(super) fn serve(&self, b: &mut Builder, ring: &Ring, sizes: &Sizes, tensor: Tensor) {
        let asks = b.setp_ne(self.entry, 0);
        let any = b.vote_any(asks);
        b.if_(any, |b| self.serve_each(b, ring, sizes, tensor));
    }

    fn serve_each(&self, b: &mut Builder, ring: &Ring, sizes: &Sizes, tensor: Tensor) {
        b.bar_warp_sync(); // what a lane saw empty is empty for the lanes that copy
        b.for_range(0, ring.warps, 1, |b, warp| {
            let lane = b.lane();
            let asks = b.setp_eq(lane, warp);
            let of_lane = |b: &mut Builder, own: Var<U32>| {
                let own = b.selp::<U32>(own, 0, asks);
                b.redux(AtomicOp::Add, own)
            };
            let entry = of_lane(b, self.entry);
            let any = b.setp_ne(entry, 0);
            b.if_(any, |b| {
                let number = of_lane(b, self.number);
                let records = b.and::<U32>(entry, (1 << RECORD_BITS) - 1);
                let above = b.shr::<U32>(entry, RECORD_BITS);
                let begin = b.and::<U32>(above, (1 << UNIT_BITS) - 1);
                let slot = b.shr::<U32>(above, UNIT_BITS);
                let part = ring.part(b, warp);
                copy(b, ring, sizes, tensor, (part, begin, slot), (number, records));
            });
        });
    }
}

/// Copies the records from number `first` on into an entry of a part, from unit `begin` on: in one piece where they may lie
/// as they do in device memory, else one by one.
pub(super) fn copy(
    b: &mut Builder,
    ring: &Ring,
    sizes: &Sizes,
    tensor: Tensor,
    (part, begin, entry): (Part, Val<U32>, Val<U32>),
    (first, records): (Val<U32>, Val<U32>),
) {
    let place = b.byte_index(part.memory, begin, UNIT_BYTES);
    let full = part.full(b, entry);
    let bytes = b.mul::<U32>(records, sizes.data);
    let shift = b.and::<U32>(first, sizes.odd);
    let before_plane = b.sub::<U32>(first, shift);
    let plane_bytes = b.add::<U32>(records, shift);
    let plane_bytes = b.mul::<U32>(plane_bytes, sizes.plane);
    let plane_bytes = b.add::<U32>(plane_bytes, 15);
    let plane_bytes = b.and::<U32>(plane_bytes, !15u32);
    if ring.copies == Copies::Bulk {
        let all = b.add::<U32>(bytes, plane_bytes);
        b.mbarrier_arrive_expect_tx(full, all);
    }
    let dense = b.setp_eq(sizes.stride, sizes.data);
    let pieces = b.selp::<U32>(1, records, dense);
    let bytes = b.selp::<U32>(bytes, sizes.data, dense);
    let from = b.address(tensor.data);
    let from = b.mad_wide(first, sizes.data, from);
    let (to, from) = (b.var::<U32>(0), b.var::<U64>(from));
    b.for_range(0, pieces, 1, |b, _| {
        let into = b.byte_index(place, to, 1);
        let source = b.get(from);
        let source: Global<U8> = b.global_ptr(source);
        piece(b, ring, into, source, bytes, full);
        let next = b.add::<U32>(to, sizes.stride);
        b.set(to, next);
        let next = b.mad_wide(sizes.data, 1, from);
        b.set(from, next);
    });
    let has_plane = b.setp_ne(plane_bytes, 0);
    b.if_(has_plane, |b| {
        let before = b.mul::<U32>(ring.records, sizes.stride);
        let into = b.byte_index(place, before, 1);
        let source = b.address(tensor.plane);
        let source = b.mad_wide(before_plane, sizes.plane, source);
        let source: Global<U8> = b.global_ptr(source);
        piece(b, ring, into, source, plane_bytes, full);
    });
    if ring.copies == Copies::Lanes {
        // Each lane's, also of one that had nothing to copy.
        b.cp_async_mbarrier_arrive_noinc(full);
    }
}

/// Copies bytes that follow each other, a multiple of 16.
fn piece(b: &mut Builder, ring: &Ring, to: Shared<U8>, from: Global<U8>, bytes: Val<U32>, full: Shared<U64>) {
    match ring.policy {
        Some(policy) => b.cp_async_bulk(to, from, bytes, full, Some(policy)),
        None => {
            let lane = b.lane();
            let own = b.shl::<U32>(lane, 4);
            b.for_range(own, bytes, 16 * 32, |b, at| {
                let (to, from) = (b.byte_index(to, at, 1), b.byte_index(from, at, 1));
                b.cp_async(to, from, 16);
            });
        }
    }
}
