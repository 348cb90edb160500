//! A pass: the forward pass of its columns' tokens, the choice of the next ones, and what follows from them.

use super::column::word;
use super::exchange::{OfStep, Step};
use super::queue::Look;
use super::trace::Ends;
use super::{Decoder, Pass};
use crate::blocks::company::{Company, Vectors};
use crate::blocks::dequantize;
use crate::blocks::tensor::Tensor;
use crate::kernels::phase::{Operands, Phase};
use crate::kernels::products::AnyOperands;
use crate::ptx::{Builder, F32, Global, LoadKind, Pred, Scope, Size, StoreOrder, U32, Val};
use kiln_shape::mailbox::{AWAITED, command, entry, item, report, state, trace};
use kiln_shape::table::{LAYER_SLOTS, MODEL_SLOTS};
use kiln_shape::{Numerics, TensorRole};

impl Decoder<'_> {
    /// Runs the next token of each column.
    pub(super) fn run_pass(&self, b: &mut Builder, pass: &Pass) {
        self.remember(b, pass);
        let look = self.look(b, pass);
        self.forward(b, pass, &look);
        self.empty_last(b, pass);
        self.draw(b, pass);
    }

    // ---- the forward pass

    /// Embedding, layers and, where a token is to be chosen, the head. Ends with the pass's last barrier, before which
    /// the leader publishes what is next.
    fn forward(&self, b: &mut Builder, pass: &Pass, look: &Look) {
        self.begin_trace(b);
        self.embed(b, pass);
        let chooses = self.chooses(b, pass);
        match self.kernel.numerics {
            Numerics::Exact => self.forward_exact(b, pass, look, chooses),
            Numerics::Fast => self.forward_fast(b, pass, look, chooses),
        }
    }

    /// Whether a token is chosen in any column.
    fn chooses(&self, b: &mut Builder, pass: &Pass) -> Val<Pred> {
        let any = b.var::<U32>(0);
        self.columns.each(b, pass, |b, column| {
            let own = self.columns.chooses(b, column);
            b.if_(own, |b| b.set(any, 1));
        });
        b.setp_ne(any, 0)
    }

    /// The layers and the head, each phase a text of its own.
    fn forward_exact(&self, b: &mut Builder, pass: &Pass, look: &Look, chooses: Val<Pred>) {
        let last = b.sub(self.layers, 1);
        b.for_range(0, self.layers, 1, |b, layer| {
            let first = b.setp_eq(layer, 0);
            let stream = b.select_ptr(self.embedding, self.x, first);
            self.product(b, Phase::Qkv, layer, stream, self.qkv, self.qkv);
            self.end_phase(b, trace::QKV, layer);
            self.attend(b, pass, layer);
            self.end_phase(b, trace::ATTENTION, layer);
            self.product(b, Phase::AttentionOutput, layer, self.attention, self.x, stream);
            self.end_phase(b, trace::ATTENTION_OUTPUT, layer);
            self.product(b, Phase::GateUp, layer, self.x, self.ffn, self.ffn);
            self.end_phase(b, trace::GATE_UP, layer);
            self.product(b, Phase::Down, layer, self.ffn, self.x, self.x);
            let ends = b.setp_eq(layer, last);
            b.if_(ends, |b| self.publish(b, look, pass));
            self.end_phase(b, trace::DOWN, layer);
        });
        b.if_(chooses, |b| {
            let none = b.mov::<U32>(0);
            let logits = self.columns.pointer(b, none, item::LOGITS);
            let rows = self.product(b, Phase::Head, none, self.x, logits, logits);
            self.bests(b, pass, rows);
            self.end_phase(b, trace::HEAD, self.layers);
        });
    }

    /// The same, all phases in one text: a step is a phase, four a layer, and the head.
    fn forward_fast(&self, b: &mut Builder, pass: &Pass, look: &Look, chooses: Val<Pred>) {
        const { assert!(Phase::Down as u32 == 3 && Phase::Head as u32 == 4, "four phases a layer, then the head") };
        const { assert!(trace::ATTENTION == 1 && trace::HEAD == 5, "the stamp of a phase is the next number") };
        if let Some(ring) = &self.ring {
            ring.begin_token(b, chooses);
        }
        let products = self.kernel.products();
        let of_layers = b.mul::<U32>(self.layers, 4);
        let head = b.selp::<U32>(1, 0, chooses);
        let steps = b.add::<U32>(of_layers, head);
        let last = b.sub::<U32>(of_layers, 1);
        b.for_range(0, steps, 1, |b, step| {
            let (layer, phase) = (b.shr::<U32>(step, 2), b.and::<U32>(step, 3));
            let is_head = b.setp_eq(step, of_layers);
            let phase = b.selp::<U32>(Phase::Head as u32, phase, is_head);
            let is_qkv = b.setp_eq(phase, Phase::Qkv as u32);
            let next = b.add::<U32>(step, 1);
            let is_last = b.setp_eq(next, steps);
            let at = Step { phase, layer, is_last };
            let OfStep { exchanged, ends } = self.ways_of(b, at);
            let Vectors { x, y, residual, .. } = self.vectors_of_first(b, at, step);
            let (first, end) = self.share(b, step);
            let (eps, kind) = (self.eps, LoadKind::Ordinary);
            let (table, layer_at) = self.entries_of(b, layer);
            let of = Operands { table, layer: layer_at, x, y, residual, eps, kind };
            let vectors = |b: &mut Builder, column: Val<U32>| self.vectors_of(b, at, column);
            let company = self.ring.zip(self.vectors).map(|(ring, of)| {
                let rest = ring.rest(b);
                Company {
                    count: b.get(pass.count),
                    most: self.columns.limit(),
                    rest,
                    vectors: &vectors,
                    ready: of.ready,
                }
            });
            let apart = self.second_planes();
            let beside = |b: &mut Builder| self.beside_vector(b, pass, (at, next));
            let operands = AnyOperands { phase, of, ring: self.ring, exchanged, company, apart, beside: Some(&beside) };
            b.overlap(|b| products.run(b, &operands, first, end));
            b.if_(is_qkv, |b| {
                let ends = if exchanged.is_some() { Ends::Open } else { Ends::Grid };
                self.end_step(b, trace::QKV, layer, ends, None);
                self.attend(b, pass, layer);
            });
            let is_down = b.setp_eq(phase, Phase::Down as u32);
            let is_rare = b.or_pred(is_down, is_head);
            b.if_(is_rare, |b| {
                self.entries_are_there(b);
                let is_last_down = b.setp_eq(step, last);
                b.if_(is_last_down, |b| self.publish(b, look, pass));
                b.if_(is_head, |b| self.bests(b, pass, (first, end)));
            });
            let stamp = b.add::<U32>(phase, 1);
            // Without a ring nothing else keeps memory busy while blocks wait for each other.
            let ask = |b: &mut Builder| {
                let next = b.selp::<U32>(0, next, is_last);
                let (layer, phase) = (b.shr::<U32>(next, 2), b.and::<U32>(next, 3));
                let is_head = b.setp_eq(next, of_layers);
                let phase = b.selp::<U32>(Phase::Head as u32, phase, is_head);
                let layer = b.mad::<U32>(layer, LAYER_SLOTS, MODEL_SLOTS);
                let rows = self.share(b, next);
                products.ask_for_share(b, self.table, (phase, layer), rows);
            };
            let beside: Option<&dyn Fn(&mut Builder)> = if self.ring.is_none() { Some(&ask) } else { None };
            self.end_step(b, stamp, layer, ends, beside);
        });
    }

    /// The block's best logit of each column behind what changes them, for the merge behind the head's barrier.
    fn bests(&self, b: &mut Builder, pass: &Pass, rows: (Val<U32>, Val<U32>)) {
        self.columns.each(b, pass, |b, column| {
            let chooses = self.columns.chooses(b, column);
            b.if_(chooses, |b| self.best_of_block(b, column, rows));
        });
    }

    /// The embeddings of the columns' tokens, in this block's own copy.
    fn embed(&self, b: &mut Builder, pass: &Pass) {
        let tensor = Tensor::from_table(b, self.table, TensorRole::TokenEmbedding.slot());
        let row = dequantize::Row { tensor, types: &self.kernel.types, k: Size::Const(self.kernel.shape.hidden) };
        let (warp, warps) = (b.warp_id(), b.warps());
        b.bar_sync(); // nobody reads the tokens before any more
        self.begin_epochs(b);
        self.begin_vectors(b, pass);
        self.bring_first_entries(b);
        self.columns.each(b, pass, |b, column| {
            let token = self.columns.get(b, word::TOKEN, column);
            let embedding = self.embedding_of(b, column);
            row.write(b, token, embedding, warp, warps);
        });
        self.entries_are_there(b);
        b.bar_sync(); // every warp's part is written, and the entries are there
    }

    /// This block's share of a phase: its first row and the row after its last.
    fn product(
        &self,
        b: &mut Builder,
        phase: Phase,
        layer: Val<U32>,
        x: Global<F32>,
        y: Global<F32>,
        residual: Global<F32>,
    ) -> (Val<U32>, Val<U32>) {
        let kernel = self.kernel.phase(phase);
        let index = match phase {
            Phase::Head => b.mul::<U32>(self.layers, 4),
            phase => b.mad::<U32>(layer, 4, phase as u32),
        };
        let (first, end) = self.share(b, index);
        let layer = b.mad::<U32>(layer, LAYER_SLOTS, MODEL_SLOTS);
        let (table, eps) = (self.table.into(), self.eps);
        let operands = Operands { table, layer, x, y, residual, eps, kind: LoadKind::Ordinary };
        b.overlap(|b| kernel.run(b, &operands, first, end));
        (first, end)
    }

    /// This block's first row of phase number `index` of all layers, and the row after its last.
    pub(super) fn share(&self, b: &mut Builder, index: Val<U32>) -> (Val<U32>, Val<U32>) {
        let stride = b.size_add(self.barrier.blocks(), 1);
        let at = b.mad::<U32>(index, stride, self.block);
        let at = b.index(self.shares, at);
        (b.ld(at, LoadKind::Constant), b.ld(at.at(1), LoadKind::Constant))
    }

    // ---- behind the pass's last barrier, by warp 0 of each block

    /// The columns' tokens of the blocks' best.
    pub(super) fn read_best(&self, b: &mut Builder, pass: &Pass) {
        let tid = b.tid();
        let first = b.setp_eq(tid, 0);
        self.columns.each(b, pass, |b, column| {
            let chooses = self.columns.chooses(b, column);
            b.if_(chooses, |b| {
                let token = self.token_of_all(b, column);
                let to = b.index(self.columns.chosen, column);
                b.if_(first, |b| b.st(to, token));
            });
        });
        b.bar_warp_sync(); // they are in shared memory
    }

    /// Goes on to each column's next token, a lane a column: chosen or of its prompt. The leader's warp tells the host.
    pub(super) fn go_on(&self, b: &mut Builder, pass: &Pass) {
        let (columns, lane) = (self.columns.changing(), b.lane());
        let runs = b.setp_lt::<U32>(lane, pass.count);
        b.if_(runs, |b| {
            let (position, chooses) = (columns.position(b, lane), columns.chooses(b, lane));
            let of_prompt = columns.said(b, command::NEXT_ID, lane);
            let token = b.var(of_prompt);
            b.if_(chooses, |b| {
                let at = b.index(columns.chosen, lane);
                let chosen = b.ld(at, LoadKind::Ordinary);
                b.set(token, chosen);
            });
            // Where no mask is there yet the token runs again.
            let awaits = b.setp_eq::<U32>(token, AWAITED);
            let awaits = b.and_pred(awaits, chooses);
            let (same, is_there) = (columns.get(b, word::TOKEN, lane), b.not_pred(awaits));
            let token = b.selp::<U32>(same, token, awaits);
            let chooses = b.and_pred(chooses, is_there);
            let (slot, step) = (columns.get(b, word::SLOT, lane), columns.get(b, word::STEP, lane));
            let (made, one) = (columns.get(b, word::MADE, lane), b.selp::<U32>(1, 0, chooses));
            let goes_on = b.selp::<U32>(0, 1, awaits);
            let (step, made) = (b.add::<U32>(step, goes_on), b.add::<U32>(made, one));
            let ran = Ran { column: lane, slot, position, step, token, made, chooses, awaits };
            let end = self.ends(b, &ran);
            let end = b.selp::<U32>(0, end, awaits);
            b.if_(self.leads, |b| self.tell(b, pass, &ran, end));
            for (word, value) in [(word::STEP, step), (word::TOKEN, token), (word::MADE, made), (word::END, end)] {
                columns.set(b, word, lane, value);
            }
        });
        b.bar_warp_sync(); // their words are in shared memory
    }

    /// The kind of the entry that ends a column's item after its token, or 0.
    fn ends(&self, b: &mut Builder, ran: &Ran) -> Val<U32> {
        let item = self.columns.item(b, ran.column);
        let word = |b: &mut Builder, word: u32| b.ld(item.at(word), LoadKind::Constant);
        let end = b.var::<U32>(0);
        // What is set later overrides what was set before.
        let (position, room) = (b.add(ran.position, 1), word(b, item::ROOM));
        let full = b.setp_ge(position, room);
        b.if_(full, |b| b.set(end, entry::CONTEXT_FULL));
        let unknown = b.setp_ge::<U32>(ran.token, self.vocab);
        b.if_else(
            ran.chooses,
            |b| {
                let max_new = word(b, item::MAX_NEW);
                let enough = b.setp_ge(ran.made, max_new);
                b.if_(enough, |b| b.set(end, entry::LENGTH));
                let count = word(b, item::STOP_COUNT);
                let count = b.min(count, item::STOP_IDS_MAX);
                b.for_range(0, count, 1, |b, i| {
                    let id = b.index(item.at(item::STOP_IDS), i);
                    let id = b.ld(id, LoadKind::Constant);
                    let stops = b.setp_eq(id, ran.token);
                    b.if_(stops, |b| b.set(end, entry::STOP_ID));
                });
                b.if_(unknown, |b| b.set(end, entry::NOT_FINITE));
            },
            |b| {
                b.if_(unknown, |b| b.set(end, entry::REJECTED));
                let prompt = word(b, item::PROMPT);
                let over = b.setp_ge(ran.step, prompt);
                b.if_(over, |b| b.set(end, entry::LENGTH));
            },
        );
        b.get(end)
    }

    /// The leader's warp keeps where a column's item is, and tells the host.
    fn tell(&self, b: &mut Builder, pass: &Pass, ran: &Ran, end: Val<U32>) {
        let Ran { column, slot, token, .. } = *ran;
        let kept = b.index(self.kept, slot);
        for (word, value) in [(state::STEP, ran.step), (state::TOKEN, token), (state::MADE, ran.made)] {
            b.st(kept.at(word), value);
        }
        let active = b.selp::<U32>(state::AWAITS_MASK, 1, ran.awaits);
        b.st(kept.at(state::ACTIVE), active);
        let known = b.setp_lt::<U32>(token, self.vocab);
        let gives = b.and_pred(ran.chooses, known);
        b.if_(gives, |b| {
            self.tell_logprob(b, column, slot, token);
            let kind = b.mov::<U32>(entry::TOKEN);
            self.emit(b, slot, kind, token, StoreOrder::Relaxed);
        });
        let open = b.setp_eq(end, 0);
        let stops = b.index(self.columns.stops, column);
        let stops = b.ld(stops, LoadKind::Ordinary);
        let stopped = b.setp_ne(stops, 0);
        let stopped = b.and_pred(open, stopped);
        let kind = b.selp::<U32>(entry::STOPPED, end, stopped);
        let over = b.setp_ne(kind, 0);
        b.if_(over, |b| {
            let unusable = b.setp_eq(kind, entry::NOT_FINITE);
            let payload = b.selp::<U32>(ran.position, token, unusable);
            self.end(b, slot, kind, payload);
        });
        b.if_(self.leader, |b| {
            let last = b.sub::<U32>(pass.count, 1);
            let last = self.columns.changing().get(b, word::SLOT, last);
            b.st(self.kept.at(state::LAST), last);
            let tokens = b.ld(self.kept.at(state::PROGRESS), LoadKind::Ordinary);
            let tokens = b.add::<U32>(tokens, pass.count);
            b.st(self.kept.at(state::PROGRESS), tokens);
            b.st_sync(self.report.at(report::PROGRESS), tokens, StoreOrder::Relaxed, Scope::Sys);
        });
    }
}

/// A column's token that has run.
struct Ran {
    column: Val<U32>,
    slot: Val<U32>,
    position: Val<U32>,
    /// Ids and tokens of the item that have run.
    step: Val<U32>,
    /// The token behind it.
    token: Val<U32>,
    /// Tokens made.
    made: Val<U32>,
    /// Whether the token behind it was chosen.
    chooses: Val<Pred>,
    /// Whether it would have been, with a mask that is not there yet.
    awaits: Val<Pred>,
}
