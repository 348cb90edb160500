//! Where the phases' vectors lie: in buffers that a grid barrier orders, or, beside a ring, in the exchange.

use super::trace::Ends;
use super::{Decoder, Pass, PersistentDecoder};
use crate::blocks::attend::{Attend, Out};
use crate::blocks::company::{self, Ready};
use crate::blocks::exchange::{self, Emptiers, Exchange, First, Handed, Meeting, Slots, Words};
use crate::blocks::parts::Parts;
use crate::kernels::phase::Phase;
use crate::kernels::products::Exchanged;
use crate::ptx::{Builder, Compare, F32, Global, LoadKind, Pred, Shared, Size, U32, U64, Val};
use kiln_shape::exchange::{Slot, TURNS, TURNS_OF_PARTS, words, words_of_column};
use kiln_shape::mailbox::command::COLUMNS;
use kiln_shape::mailbox::item;
use kiln_shape::{KvType, ModelShape, Units};

/// The exchange of a decoder's blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vectors {
    exchange: Exchange,
    /// `[columns, TURNS, words]`.
    slots: Global<F32>,
    /// `[blocks]`: the epoch up to which each has come.
    flags: Global<U32>,
    first: First,
    /// `[columns, TURNS_OF_PARTS, units, heads, row]`: parts of attention over a cache in f16, and bytes of a turn.
    parts: (Global<F32>, Val<U32>),
    /// `[COLUMNS]`: units that hand parts over, or 1.
    units: Shared<U32>,
    /// The addresses of the first column's vectors of the step that runs and of the next one, by the step's lowest bit: to find
    /// one out as its step begins would delay whoever waits for what becomes of it.
    next: Shared<U64>,
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
        let parts = (b.param::<Global<F32>>("parts"), b.param::<U32>("parts_each"));
        let units = b.shared("units", COLUMNS);
        let (all, each) = (b.param::<Global<U32>>("second_planes"), b.param::<U32>("second_planes_each"));
        let second_planes = b.shared("second_planes_address", 1);
        let vectors = Vectors {
            exchange,
            slots,
            flags,
            first,
            parts,
            units,
            next: b.shared("next_vectors", 2),
            second_planes,
            ready,
        };
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
        let apart = Size::Const(4 * words(&kernel.shape));
        Slots { of_turns, turns: TURNS, apart, first: self.first, layer }
    }

    /// The parts of a column's layer, of attention that is cut like this.
    fn parts_of(
        &self,
        b: &mut Builder,
        kernel: &PersistentDecoder,
        units: Units,
        (column, layer): (Val<U32>, Val<U32>),
    ) -> Parts {
        let (all, each) = self.parts;
        let before = b.mul::<U32>(column, TURNS_OF_PARTS);
        let all = b.address(all);
        let of_column = b.mad_wide(before, each, all);
        let (of_turns, apart) = (b.global_ptr(of_column), Size::Reg(each));
        let slots = Slots { of_turns, turns: TURNS_OF_PARTS, apart, first: self.first, layer };
        let ModelShape { heads, head_dim, .. } = kernel.shape;
        Parts { exchange: self.exchange, slots, heads, row: units.partial(head_dim) }
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
        let before = b.sub::<U32>(own, 1);
        let before = b.and::<U32>(before, TURNS - 1);
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

    /// Notes the vector of a token's first step, and how many units of each column hand parts over. Between barriers of the
    /// block.
    pub(super) fn begin_vectors(&self, b: &mut Builder, pass: &Pass) {
        let Some(vectors) = &self.vectors else { return };
        let tid = b.tid();
        let leads = b.setp_eq(tid, 0);
        let first = b.mov::<U32>(0);
        b.if_(leads, |b| {
            self.columns.each(b, pass, |b, column| {
                let position = self.columns.position(b, column);
                let length = b.add(position, 1);
                let (_, units) = Attend::cut(b, self.units(KvType::F16), length);
                let units = b.selp::<U32>(units, 1, self.half_cache);
                let to = self.columns.place(b, vectors.units, column);
                b.st(to, units);
            });
            let embedding = self.embedding_of(b, first);
            let embedding = b.address(embedding);
            b.st(vectors.next, embedding);
        });
    }

    /// What a block does while a step's vector is on its way: notes where the `next` one lies, and asks for what is read later.
    /// While attention runs, a warp empties words of layers before, and comes to the layer's meeting.
    pub(super) fn beside_vector(&self, b: &mut Builder, pass: &Pass, (at, next): (Step, Val<U32>)) {
        let Some(vectors) = &self.vectors else { return };
        let tid = b.tid();
        let leads = b.setp_eq(tid, 0);
        b.if_(leads, |b| {
            let first = b.mov::<U32>(0);
            let of_layers = b.mul::<U32>(self.layers, 4);
            let (layer, phase) = (b.shr::<U32>(next, 2), b.and::<U32>(next, 3));
            let is_head = b.setp_eq(next, of_layers);
            let phase = b.selp::<U32>(Phase::Head as u32, phase, is_head);
            let x = self.vector_of(b, vectors, Step { phase, layer, ..at }, first);
            let x = b.address(x);
            let parity = b.and::<U32>(next, 1);
            let to = b.index(vectors.next, parity);
            b.st(to, x);
        });
        let (is_qkv, is_output) =
            (b.setp_eq(at.phase, Phase::Qkv as u32), b.setp_eq(at.phase, Phase::AttentionOutput as u32));
        b.if_(is_output, |b| {
            self.bring_next_entries(b, at.layer);
            // The first warps have most to stage, the last one notes where results go.
            let warp = b.warp_id();
            let comes = b.setp_eq(warp, b.warps().saturating_sub(2));
            b.if_(comes, |b| {
                let (block, blocks, warp) = (self.block, self.barrier.blocks(), b.mov::<U32>(0));
                let by = Emptiers { block, blocks, warp, warps: 1 };
                self.empty(b, pass, at.layer, (TURNS - 1, Some(TURNS_OF_PARTS - 1)), &by);
                let (flag, epoch) = (b.index(vectors.flags, self.block), vectors.first.epoch(b, at.layer));
                exchange::come(b, flag, epoch);
            });
        });
        b.if_(is_qkv, |b| {
            let warp = b.warp_id();
            let asks = b.setp_eq(warp, b.warps() - 1);
            b.if_(asks, |b| self.columns.each(b, pass, |b, column| self.ask_for_place(b, (column, at.layer))));
        });
    }

    /// Empties the words of a token's last layers, behind the grid's barrier that ends it.
    pub(super) fn empty_last(&self, b: &mut Builder, pass: &Pass) {
        let by = Emptiers { block: self.block, blocks: self.barrier.blocks(), warp: b.warp_id(), warps: b.warps() };
        // The next token's first layer has the turn behind these, and begins without a meeting.
        for behind in 1..TURNS {
            let parts = Some(behind).filter(|behind| *behind < TURNS_OF_PARTS);
            self.empty(b, pass, self.layers, (behind, parts), &by);
        }
    }

    /// Where the address of device memory for second planes of vectors stands; none without a ring, where they are in shared
    /// memory.
    pub(super) fn second_planes(&self) -> Option<Shared<U64>> {
        self.vectors.as_ref().map(|vectors| vectors.second_planes)
    }

    /// Empties what a pass has filled so many layers behind this one, where there are such layers: words of vectors, and parts if
    /// they are asked for. All blocks must have read them.
    fn empty(
        &self,
        b: &mut Builder,
        pass: &Pass,
        layer: Val<U32>,
        (words_behind, parts_behind): (u32, Option<u32>),
        by: &Emptiers,
    ) {
        let Some(vectors) = &self.vectors else { return };
        let mut before = |behind: u32| (b.setp::<U32>(Compare::Ge, layer, behind), b.sub::<U32>(layer, behind));
        let ((has_words, of_words), of_parts) = (before(words_behind), parts_behind.map(before));
        self.columns.each(b, pass, |b, column| {
            b.if_(has_words, |b| {
                let [own, _] = vectors.of_layer(b, self.kernel, (column, of_words));
                exchange::empty(b, own, Size::Const(words(&self.kernel.shape)), by);
            });
            let Some((has_parts, of_parts)) = of_parts else { return };
            let units = self.columns.place(b, vectors.units, column);
            let units = b.ld(units, LoadKind::Ordinary);
            let several = b.setp_ne(units, 1);
            let several = b.and_pred(several, has_parts);
            b.if_(several, |b| {
                let parts = self.parts_of(b, self.units(KvType::F16), (column, of_parts));
                parts.iter().for_each(|parts| parts.empty(b, units, by));
            });
        });
    }

    /// The cut of attention over a cache of this type.
    pub(super) fn units(&self, ty: KvType) -> Units {
        Units::of(self.kernel.numerics, ty, self.kernel.shape.kv_heads)
    }

    /// Where units of a column that are runs hand their parts to each other, beside a ring.
    pub(super) fn parts_of(&self, b: &mut Builder, units: Units, at: (Val<U32>, Val<U32>)) -> Option<Parts> {
        let vectors = self.vectors.as_ref().filter(|_| matches!(units, Units::Runs { .. }))?;
        Some(vectors.parts_of(b, self.kernel, units, at))
    }

    /// How the vectors of a phase go from block to block.
    pub(super) fn ways_of(&self, b: &mut Builder, step: Step) -> OfStep {
        let Step { phase, layer, is_last } = step;
        let Some(vectors) = &self.vectors else { return OfStep { exchanged: None, ends: Ends::Grid } };
        let mut is = |which: Phase| b.setp_eq(phase, which as u32);
        let (is_qkv, is_head) = (is(Phase::Qkv), is(Phase::Head));
        let (is_output, is_down) = (is(Phase::AttentionOutput), is(Phase::Down));
        let is_first = b.setp_eq(layer, 0);
        let before_down = b.or_pred(is_qkv, is_output);
        // A layer is met as the next one begins, the last one in its own down.
        let epoch = vectors.first.epoch(b, layer);
        let before = b.sub::<U32>(epoch, 1);
        let awaited = b.selp::<U32>(before, epoch, is_qkv);
        let last = b.sub::<U32>(self.layers, 1);
        let ends_layers = b.setp_eq(layer, last);
        let ends_layers = b.and_pred(ends_layers, is_down);
        let of_embedding = b.and_pred(is_first, before_down);
        let is_plain = b.and_pred(is_first, is_qkv);
        let is_handed = b.not_pred(is_plain);
        let follows_layer = b.and_pred(is_qkv, is_handed);
        let waits = b.or_pred(follows_layer, ends_layers);
        let (flags, blocks) = (vectors.flags, self.barrier.blocks());
        let meeting = Meeting { waits, awaited, flags, blocks };
        let exchanged = Exchanged {
            x: Handed { exchange: vectors.exchange, is: is_handed, meeting },
            y: b.not_pred(is_head),
            residual: b.not_pred(of_embedding),
        };
        let ends = Ends::Of { is_last };
        OfStep { exchanged: Some(exchanged), ends }
    }

    /// The first column's vectors of a step; beside a ring only the one that is multiplied, where products are found otherwise.
    pub(super) fn vectors_of_first(&self, b: &mut Builder, at: Step, step: Val<U32>) -> company::Vectors {
        let Some(vectors) = &self.vectors else {
            let first = b.mov::<U32>(0);
            return self.vectors_of(b, at, first);
        };
        let parity = b.and::<U32>(step, 1);
        let from = b.index(vectors.next, parity);
        let x = b.ld(from, LoadKind::Ordinary);
        let x = b.global_ptr(x);
        company::Vectors { x, y: x, residual: x, writes: None }
    }

    /// The vector of a step that is multiplied.
    fn vector_of(&self, b: &mut Builder, vectors: &Vectors, step: Step, column: Val<U32>) -> Global<F32> {
        let Step { phase, layer, .. } = step;
        let [own, before] = vectors.of_layer(b, self.kernel, (column, layer));
        let slot = |of: Global<F32>, slot: Slot| of.at(slot.first(&self.kernel.shape));
        let embedding = self.embedding_of(b, column);
        let is_first = b.setp_eq(layer, 0);
        let stream = b.select_ptr(embedding, slot(before, Slot::Down), is_first);
        let of_phases = [
            (Phase::AttentionOutput, slot(own, Slot::Attention)),
            (Phase::GateUp, slot(own, Slot::AttentionOutput)),
            (Phase::Down, slot(own, Slot::Ffn)),
        ];
        of_phases.into_iter().fold(stream, |x, (of, vector)| {
            let is = b.setp_eq(phase, of as u32);
            b.select_ptr(vector, x, is)
        })
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
        let x = self.vector_of(b, vectors, step, column);
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

    /// Registers for a lane's elements of a head on their way.
    pub(super) fn words_of_head(&self, b: &mut Builder) -> Words {
        Words::new(b, self.kernel.shape.head_dim as usize / 32, 1)
    }

    /// Where a lane's elements `l, l + 32, ...` of a head of Q, K or V of a column are, whose first element has that number among
    /// those of all.
    fn places_of_head(
        &self,
        b: &mut Builder,
        (column, layer): (Val<U32>, Val<U32>),
        first: Val<U32>,
    ) -> Vec<Global<F32>> {
        let qkv = match &self.vectors {
            None => self.qkv,
            Some(vectors) => vectors.slots_of(b, self.kernel, Slot::Qkv, (column, layer)).own(b),
        };
        let lane = b.lane();
        let own = b.add::<U32>(first, lane);
        let from = b.index(qkv, own);
        (0..self.kernel.shape.head_dim / 32).map(|i| from.at(32 * i)).collect()
    }

    /// Asks for a head that comes through the exchange.
    pub(super) fn ask_head(&self, b: &mut Builder, words: &Words, at: (Val<U32>, Val<U32>), first: Val<U32>) {
        let at = self.places_of_head(b, at, first);
        words.ask(b, &at);
    }

    /// A lane's elements of a head, which was asked for in `words` if it comes through the exchange. By a whole warp.
    pub(super) fn head_of_qkv(
        &self,
        b: &mut Builder,
        words: Option<&Words>,
        at: (Val<U32>, Val<U32>),
        first: Val<U32>,
    ) -> Vec<Val<F32>> {
        let at = self.places_of_head(b, at, first);
        match (&self.vectors, words) {
            (Some(vectors), Some(words)) => vectors.exchange.wait_for(b, words, &at),
            _ => at.into_iter().map(|at| b.ld(at, LoadKind::Ordinary)).collect(),
        }
    }

    /// Where attention's result of a column goes.
    pub(super) fn attention_out(&self, b: &mut Builder, column: Val<U32>, layer: Val<U32>) -> Out {
        match &self.vectors {
            None => Out::Floats(self.attention),
            Some(vectors) => Out::Words(vectors.slots_of(b, self.kernel, Slot::Attention, (column, layer))),
        }
    }
}
