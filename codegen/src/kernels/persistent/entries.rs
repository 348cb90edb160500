//! The tensor table's entries of the layer that runs, in shared memory. In device memory they would be a trip to the L2 cache
//! away at every phase, since each layer has entries of its own.

use super::Decoder;
use crate::blocks::tensor::Table;
use crate::ptx::{Builder, Operand, Shared, U8, U32, Val};
use kiln_shape::table::{ENTRY_BYTES, LAYER_SLOTS, MODEL_SLOTS};

/// Bytes that a thread copies.
const PIECE: u32 = 16;
const _: () = assert!((MODEL_SLOTS + LAYER_SLOTS) * ENTRY_BYTES / PIECE <= 64, "beside a ring two warps at least copy");

/// A block's copy: the model's entries, those of even layers, those of odd layers.
///
/// The next layer's are asked for while attention's output waits for its vector, and waited for as `down` ends: barriers of the
/// block stand between the copy and whoever reads the same place, two layers before and one layer later. No copy is under way where
/// a block may give up at a meeting: the next layer begins behind this one's `down`, and the last layer asks for none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entries(Shared<U8>);

impl Entries {
    pub(super) fn new(b: &mut Builder) -> Entries {
        Entries(b.shared("entries", (MODEL_SLOTS + 2 * LAYER_SLOTS) * ENTRY_BYTES))
    }

    /// Asks for `count` entries from number `from` on, which go to the copy's from number `to` on. By the whole block.
    fn ask(&self, b: &mut Builder, decoder: &Decoder<'_>, (from, to): (Val<U32>, Val<U32>), count: u32) {
        let tid = b.tid();
        let is_piece = b.setp_lt(tid, count * ENTRY_BYTES / PIECE);
        b.if_(is_piece, |b| {
            let from = b.byte_index(decoder.table, from, ENTRY_BYTES);
            let to = b.byte_index(self.0, to, ENTRY_BYTES);
            let (from, to) = (b.byte_index(from, tid, PIECE), b.byte_index(to, tid, PIECE));
            b.cp_async(to, from, PIECE);
        });
        b.cp_async_commit_group();
    }
}

impl Decoder<'_> {
    /// The table that the phases of a layer read, and the layer's first entry in it.
    pub(super) fn entries_of(&self, b: &mut Builder, layer: Val<U32>) -> (Table, Val<U32>) {
        match self.entries {
            None => (self.table.into(), first_of(b, layer)),
            Some(Entries(copy)) => {
                let odd = b.and::<U32>(layer, 1);
                (Table::Copy(copy), first_of(b, odd))
            }
        }
    }

    /// Asks for the model's entries and the first layer's, behind a barrier of the block since the token before.
    pub(super) fn bring_first_entries(&self, b: &mut Builder) {
        if let Some(entries) = &self.entries {
            let first = b.mov::<U32>(0);
            entries.ask(b, self, (first, first), MODEL_SLOTS + LAYER_SLOTS);
        }
    }

    /// Waits for what was asked for; a barrier of the block must follow.
    pub(super) fn entries_are_there(&self, b: &mut Builder) {
        if self.entries.is_some() {
            b.cp_async_wait_group(0);
        }
    }

    /// Asks for the entries of the layer behind this one, if there is one.
    pub(super) fn bring_next_entries(&self, b: &mut Builder, layer: Val<U32>) {
        let Some(entries) = &self.entries else { return };
        let next = b.add::<U32>(layer, 1);
        let is_layer = b.setp_lt::<U32>(next, self.layers);
        b.if_(is_layer, |b| {
            let odd = b.and::<U32>(next, 1);
            let places = (first_of(b, next), first_of(b, odd));
            entries.ask(b, self, places, LAYER_SLOTS);
        });
    }
}

/// The number of a layer's first entry.
fn first_of(b: &mut Builder, layer: impl Operand<U32>) -> Val<U32> {
    b.mad::<U32>(layer, LAYER_SLOTS, MODEL_SLOTS)
}
