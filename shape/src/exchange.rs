//! The exchange of the persistent decoder: where its blocks hand vectors to each other, a word an element: its value, or
//! [`EMPTY`] before that is there. What its kernel and its host must agree on.

use crate::{KvType, ModelShape, Numerics, Units};

/// A word whose value is not there yet: a NaN, but none that arithmetic makes.
pub const EMPTY: u32 = u32::MAX;
/// Layers that follow each other and have words of their own.
pub const TURNS: u32 = 4;
/// Layers that follow each other and have parts of attention of their own.
pub const TURNS_OF_PARTS: u32 = 2;
const _: () =
    assert!(TURNS.is_power_of_two() && TURNS.is_multiple_of(TURNS_OF_PARTS), "a turn's lowest bits are taken");

/// Flags of blocks that are looked at together, 16 bytes: they begin at a multiple, and have room for one.
pub const FLAGS: u32 = 4;
/// Words before them: the grid barrier's, whether the grid gives up, and two that nobody uses.
pub const BEFORE_FLAGS: u32 = FLAGS;

/// A vector of the exchange, by the phase that makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// `[q_dim + 2 kv_dim]`, in its own order.
    Qkv,
    /// `[q_dim]`.
    Attention,
    /// The residual stream behind attention, `[hidden]`.
    AttentionOutput,
    /// What SwiGLU makes of gate and up, `[ffn]`.
    Ffn,
    /// The residual stream behind the FFN, `[hidden]`.
    Down,
}

impl Slot {
    /// The slot's first word among those of its layer.
    pub const fn first(self, shape: &ModelShape) -> u32 {
        let q_dim = shape.q_dim();
        let behind_qkv = q_dim + 2 * shape.kv_dim();
        match self {
            Slot::Qkv => 0,
            Slot::Attention => behind_qkv,
            Slot::AttentionOutput => behind_qkv + q_dim,
            Slot::Ffn => behind_qkv + q_dim + shape.hidden,
            Slot::Down => behind_qkv + q_dim + shape.hidden + shape.ffn,
        }
    }
}

/// Words of a layer, which every fourth shares.
pub const fn words(shape: &ModelShape) -> u32 {
    Slot::Down.first(shape) + shape.hidden
}

/// Words of a layer's parts of attention, `[units, heads, row]` ([`Units::partial`]), over a cache in f16 of up to so many positions.
pub const fn parts(shape: &ModelShape, positions: u32) -> u32 {
    let units = Units::of(Numerics::Fast, KvType::F16, shape.kv_heads);
    units.up_to(positions) * shape.heads * units.partial(shape.head_dim)
}

/// Words of a column.
pub const fn words_of_column(shape: &ModelShape) -> u32 {
    TURNS * words(shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets;

    #[test]
    fn slots_follow_each_other_without_sharing_a_word() {
        for preset in presets::all() {
            let shape = &preset.shape;
            let lengths = [shape.q_dim() + 2 * shape.kv_dim(), shape.q_dim(), shape.hidden, shape.ffn, shape.hidden];
            let slots = [Slot::Qkv, Slot::Attention, Slot::AttentionOutput, Slot::Ffn, Slot::Down];
            let mut end = 0;
            for (slot, length) in slots.into_iter().zip(lengths) {
                assert_eq!(slot.first(shape), end, "{}: {slot:?}", preset.feature);
                end += length;
            }
            assert_eq!((words(shape), words_of_column(shape)), (end, 4 * end));
            assert!(end.is_multiple_of(4), "{}: {end} words are emptied four at a time", preset.feature);
        }
    }
}
