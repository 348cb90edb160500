//! Where the phases' vectors lie: in buffers that a grid barrier orders, or, beside a ring, in the exchange.

use super::trace::Ends;
use super::{Decoder, Pass, PersistentDecoder};
use crate::blocks::attend::Out;
use crate::blocks::company::{self, Ready};
use crate::blocks::exchange::{self, Exchange, First, Handed, Meeting, Slots};
use crate::kernels::phase::Phase;
use crate::kernels::products::Exchanged;
use crate::ptx::{Builder, F32, Global, LoadKind, Pred, Shared, U32, U64, Val};
use kiln_shape::exchange::{Slot, TURNS, words, words_of_column};
use kiln_shape::mailbox::item;

/// The exchange of a decoder's blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vectors {
    exchange: Exchange,
    /// `[columns, TURNS, words]`.
    slots: Global<F32>,
    /// `[blocks]`: the epoch up to which each has come.
    flags: Global<U32>,
    first: First,
    /// The address of the block's device memory for second planes of vectors.
    second_planes: Shared<U64>,
    /// When norms' factors are there.
    pub(super) ready: Ready,
}

/// How the vectors of a phase of fast numerics go from block to block.
pub(super) struct OfStep {
    pub(super) exchanged: Option<Exchanged>,
    pub(super) ends: Ends,
}

/// A step of a token in fast numerics.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) phase: Val<U32>,
    /// The number of layers for the head.
    pub(super) layer: Val<U32>,
    /// Whether it is the token's last.
    pub(super) is_last: Val<Pred>,
}

impl Vectors {
    /// Takes the launch's words. By the whole block; a barrier of the block must follow.
    pub(super) fn new(
        b: &mut Builder,
        exchange: Exchange,
        ready: Ready,
        flags: Global<U32>,
        layers: Val<U32>,
    ) -> Vectors {
        let (slots, first) = (b.param::<Global<F32>>("exchange"), First::new(b));
        let (all, each) = (b.param::<Global<U32>>("second_planes"), b.param::<U32>("second_planes_each"));
        let second_planes = b.shared("second_planes_address", 1);
        let vectors = Vectors { exchange, slots, flags, first, second_planes, ready };
        let tid = b.tid();
        let leads = b.setp_eq(tid, 0);
        b.if_(leads, |b| {
            first.begin(b, layers);
            let (block, all) = (b.ctaid_x(), b.address(all));
            let own = b.mad_wide(block, each, all);
            b.st(second_planes, own);
        });
        vectors
    }

    /// A column's words.
    fn of_column(&self, b: &mut Builder, kernel: &PersistentDecoder, column: Val<U32>) -> Global<F32> {
        b.byte_index(self.slots, column, 4 * words_of_column(&kernel.shape))
    }

    /// A vector's slots of a column, for a layer.
    fn slots_of(
        &self,
        b: &mut Builder,
        kernel: &PersistentDecoder,
        slot: Slot,
        (column, layer): (Val<U32>, Val<U32>),
    ) -> Slots {
        let of_turns = self.of_column(b, kernel, column).at(slot.first(&kernel.shape));
        Slots { of_turns, apart: 4 * words(&kernel.shape), first: self.first, layer }
    }

    /// The words of a layer, and of the one before it.
    fn of_layer(
        &self,
        b: &mut Builder,
        kernel: &PersistentDecoder,
        (column, layer): (Val<U32>, Val<U32>),
    ) -> [Global<F32>; 2] {
        let bytes = 4 * words(&kernel.shape);
        let own = self.first.turn(b, layer);
        let is_first = b.setp_eq(own, 0);
        let before = b.sub::<U32>(own, 1);
        let before = b.selp::<U32>(TURNS - 1, before, is_first);
        let slots = self.of_column(b, kernel, column);
        [b.byte_index(slots, own, bytes), b.byte_index(slots, before, bytes)]
    }
}

impl Decoder<'_> {
    /// Goes on to the epochs of the next token. Between barriers of the block.
    pub(super) fn begin_epochs(&self, b: &mut Builder) {
        let Some(vectors) = &self.vectors else { return };
        let tid = b.tid();
        let leads = b.setp_eq(tid, 0);
        b.if_(leads, |b| vectors.first.go_on(b, self.layers));
    }

    /// Where the address of device memory for second planes of vectors stands; none without a ring, where they are in shared
    /// memory.
    pub(super) fn second_planes(&self) -> Option<Shared<U64>> {
        self.vectors.as_ref().map(|vectors| vectors.second_planes)
    }

    /// Empties the words of a layer of the columns of a pass. All blocks must have read them.
    pub(super) fn empty(&self, b: &mut Builder, pass: &Pass, layer: Val<U32>) {
        let Some(vectors) = &self.vectors else { return };
        self.columns.each(b, pass, |b, column| {
            let [own, _] = vectors.of_layer(b, self.kernel, (column, layer));
            exchange::empty(b, own, words(&self.kernel.shape), (self.block, self.barrier.blocks()));
        });
    }

    /// How the vectors of a phase go from block to block.
    pub(super) fn ways_of(&self, b: &mut Builder, step: Step) -> OfStep {
        let Step { phase, layer, is_last } = step;
        let Some(vectors) = &self.vectors else { return OfStep { exchanged: None, ends: Ends::Grid } };
        let mut is = |which: Phase| b.setp_eq(phase, which as u32);
        let (is_qkv, is_gate_up, is_head) = (is(Phase::Qkv), is(Phase::GateUp), is(Phase::Head));
        let (is_output, is_down) = (is(Phase::AttentionOutput), is(Phase::Down));
        let is_first = b.setp_eq(layer, 0);
        let before_down = b.or_pred(is_qkv, is_output);
        let epoch = vectors.first.epoch(b, layer);
        let of_embedding = b.and_pred(is_first, before_down);
        let is_plain = b.and_pred(is_first, is_qkv);
        let (flags, blocks) = (vectors.flags, self.barrier.blocks());
        let meeting = Meeting { comes: is_gate_up, waits: is_down, flags, block: self.block, blocks };
        let exchanged = Exchanged {
            x: Handed { exchange: vectors.exchange, is: b.not_pred(is_plain), epoch, meeting },
            y: b.not_pred(is_head),
            residual: b.not_pred(of_embedding),
        };
        let ends = Ends::Of { is_last };
        OfStep { exchanged: Some(exchanged), ends }
    }

    /// A column's vectors of a phase. Its logits are written where a token is chosen.
    pub(super) fn vectors_of(&self, b: &mut Builder, step: Step, column: Val<U32>) -> company::Vectors {
        let Step { phase, layer, .. } = step;
        let shape = &self.kernel.shape;
        let mut is = |which: Phase| b.setp_eq(phase, which as u32);
        let (is_qkv, is_gate_up, is_head) = (is(Phase::Qkv), is(Phase::GateUp), is(Phase::Head));
        let (is_output, is_down) = (is(Phase::AttentionOutput), is(Phase::Down));
        let is_first = b.setp_eq(layer, 0);
        let logits = self.columns.pointer(b, column, item::LOGITS);
        let embedding = self.embedding_of(b, column);
        let Some(vectors) = &self.vectors else {
            let before_down = b.or_pred(is_qkv, is_output);
            let stream = b.select_ptr(embedding, self.x, is_first);
            let residual = b.select_ptr(stream, self.x, before_down);
            let x = b.select_ptr(stream, self.x, is_qkv);
            let x = b.select_ptr(self.attention, x, is_output);
            let x = b.select_ptr(self.ffn, x, is_down);
            let y = b.select_ptr(self.qkv, self.x, is_qkv);
            let y = b.select_ptr(self.ffn, y, is_gate_up);
            let y = b.select_ptr(logits, y, is_head);
            return company::Vectors { x, y, residual, writes: None };
        };
        let [own, before] = vectors.of_layer(b, self.kernel, (column, layer));
        let slot = |of: Global<F32>, slot: Slot| of.at(slot.first(shape));
        let stream = b.select_ptr(embedding, slot(before, Slot::Down), is_first);
        let behind_attention = slot(own, Slot::AttentionOutput);
        let residual = b.select_ptr(stream, behind_attention, is_output);
        let begins = b.or_pred(is_qkv, is_head);
        let x = b.select_ptr(stream, behind_attention, begins);
        let x = b.select_ptr(slot(own, Slot::Attention), x, is_output);
        let x = b.select_ptr(slot(own, Slot::Ffn), x, is_down);
        let y = b.select_ptr(slot(own, Slot::Qkv), slot(own, Slot::Down), is_qkv);
        let y = b.select_ptr(behind_attention, y, is_output);
        let y = b.select_ptr(slot(own, Slot::Ffn), y, is_gate_up);
        let y = b.select_ptr(logits, y, is_head);
        let chooses = self.columns.chooses(b, column);
        let before_head = b.not_pred(is_head);
        company::Vectors { x, y, residual, writes: Some(b.or_pred(chooses, before_head)) }
    }

    /// A column's embedding, in the block's own copy.
    pub(super) fn embedding_of(&self, b: &mut Builder, column: Val<U32>) -> Global<F32> {
        match self.columns.most() {
            1 => self.embedding,
            _ => {
                let before = b.mul::<U32>(column, self.barrier.blocks());
                b.byte_index(self.embedding, before, self.kernel.shape.hidden * 4)
            }
        }
    }

    /// A lane's elements `l, l + 32, ...` of a head of Q, K or V of a column, whose first element has that number among those of all.
    /// By a whole warp.
    pub(super) fn head_of_qkv(
        &self,
        b: &mut Builder,
        (column, layer): (Val<U32>, Val<U32>),
        first: Val<U32>,
    ) -> Vec<Val<F32>> {
        let each = self.kernel.shape.head_dim / 32;
        let lane = b.lane();
        let own = b.add::<U32>(first, lane);
        let Some(vectors) = &self.vectors else {
            let from = b.index(self.qkv, own);
            return (0..each).map(|i| b.ld(from.at(32 * i), LoadKind::Ordinary)).collect();
        };
        let slots = vectors.slots_of(b, self.kernel, Slot::Qkv, (column, layer));
        let from = slots.own(b);
        let from = b.index(from, own);
        let at: Vec<_> = (0..each).map(|i| from.at(32 * i)).collect();
        vectors.exchange.load(b, &at)
    }

    /// Where attention's result of a column goes.
    pub(super) fn attention_out(&self, b: &mut Builder, column: Val<U32>, layer: Val<U32>) -> Out {
        match &self.vectors {
            None => Out::Floats(self.attention),
            Some(vectors) => Out::Words(vectors.slots_of(b, self.kernel, Slot::Attention, (column, layer))),
        }
    }
}
