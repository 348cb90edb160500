//! A token: the forward pass, the choice of the next token, and what follows from it.

use super::exchange::{OfStep, Step};
use super::queue::{Current, Look};
use super::trace::Ends;
use super::{CHOSEN, Decoder, Item, Next};
use crate::blocks::argmax;
use crate::blocks::choose::Share;
use crate::blocks::dequantize;
use crate::blocks::tensor::Tensor;
use crate::kernels::phase::{Operands, Phase};
use crate::kernels::products::AnyOperands;
use crate::ptx::{Builder, F32, Global, LoadKind, Pred, Scope, Size, StoreOrder, U32, Val, Var};
use kiln_shape::mailbox::{command, entry, item, report, state, trace};
use kiln_shape::table::{LAYER_SLOTS, MODEL_SLOTS};
use kiln_shape::{Numerics, TensorRole};

impl Decoder<'_> {
    /// Runs the next token of an item, and finds what is next.
    pub(super) fn run_token(&self, b: &mut Builder, next: &Next) {
        let item = self.item(b);
        let slot = b.get(next.slot);
        let position = b.add::<U32>(item.first, next.step);
        let step = b.add::<U32>(next.step, 1);
        let chooses = b.setp_ge(step, item.prompt);
        let wants = b.setp_ne(item.max_new, 0);
        let chooses = b.and_pred(chooses, wants);
        let current = Current { slot, chooses };
        let token = b.get(next.token);
        self.remember(b, position, token);
        let look = self.look(b, step, item.prompt);
        let stops = self.forward(b, &item, next, position, &look, current);
        self.draw(b, item.logits, position, chooses);
        self.read_command(b, 1, |b| self.read_best(b, chooses));
        let token = self.next_token(b, chooses);
        let made = b.selp::<U32>(1, 0, chooses);
        let made = b.add::<U32>(made, next.made);
        let ran = Ran { slot, position, step, token, made, chooses };
        let end = self.ends(b, &item, &ran);
        self.tell(b, &ran, end, stops);
        self.go_on(b, next, &ran, end);
    }

    // ---- the forward pass

    /// Embedding, layers and, where a token is to be chosen, the head. Ends with the token's last barrier, before which
    /// the leader publishes what is next; returns whether the item is to stop, for the leader.
    fn forward(
        &self,
        b: &mut Builder,
        item: &Item,
        next: &Next,
        position: Val<U32>,
        look: &Look,
        current: Current,
    ) -> Var<U32> {
        self.begin_trace(b);
        self.embed(b, next);
        let stops = b.var::<U32>(0);
        match self.kernel.numerics {
            Numerics::Exact => self.forward_exact(b, item, position, look, current, stops),
            Numerics::Fast => self.forward_fast(b, item, position, look, current, stops),
        }
        stops
    }

    /// The layers and the head, each phase a text of its own.
    fn forward_exact(
        &self,
        b: &mut Builder,
        item: &Item,
        position: Val<U32>,
        look: &Look,
        current: Current,
        stops: Var<U32>,
    ) {
        let last = b.sub(self.layers, 1);
        b.for_range(0, self.layers, 1, |b, layer| {
            let first = b.setp_eq(layer, 0);
            let stream = b.select_ptr(self.embedding, self.x, first);
            self.product(b, Phase::Qkv, layer, stream, self.qkv, self.qkv);
            self.end_phase(b, trace::QKV, layer, position);
            self.attend(b, item, layer, position);
            self.end_phase(b, trace::ATTENTION, layer, position);
            self.product(b, Phase::AttentionOutput, layer, self.attention, self.x, stream);
            self.end_phase(b, trace::ATTENTION_OUTPUT, layer, position);
            self.product(b, Phase::GateUp, layer, self.x, self.ffn, self.ffn);
            self.end_phase(b, trace::GATE_UP, layer, position);
            self.product(b, Phase::Down, layer, self.ffn, self.x, self.x);
            let ends = b.setp_eq(layer, last);
            b.if_(ends, |b| {
                let published = self.publish(b, look, current);
                b.set(stops, published);
            });
            self.end_phase(b, trace::DOWN, layer, position);
        });
        b.if_(current.chooses, |b| {
            let none = b.mov::<U32>(0);
            let rows = self.product(b, Phase::Head, none, self.x, item.logits, item.logits);
            self.best_of_block(b, item, position, rows);
            self.end_phase(b, trace::HEAD, self.layers, position);
        });
    }

    /// The same, all phases in one text: a step is a phase, four a layer, and the head.
    fn forward_fast(
        &self,
        b: &mut Builder,
        item: &Item,
        position: Val<U32>,
        look: &Look,
        current: Current,
        stops: Var<U32>,
    ) {
        const { assert!(Phase::Down as u32 == 3 && Phase::Head as u32 == 4, "four phases a layer, then the head") };
        const { assert!(trace::ATTENTION == 1 && trace::HEAD == 5, "the stamp of a phase is the next number") };
        if let Some(ring) = &self.ring {
            ring.begin_token(b, current.chooses);
        }
        let products = self.kernel.products();
        let of_layers = b.mul::<U32>(self.layers, 4);
        let head = b.selp::<U32>(1, 0, current.chooses);
        let steps = b.add::<U32>(of_layers, head);
        let last = b.sub::<U32>(of_layers, 1);
        b.for_range(0, steps, 1, |b, step| {
            let (layer, phase) = (b.shr::<U32>(step, 2), b.and::<U32>(step, 3));
            let is_head = b.setp_eq(step, of_layers);
            let phase = b.selp::<U32>(Phase::Head as u32, phase, is_head);
            let is_qkv = b.setp_eq(phase, Phase::Qkv as u32);
            let next = b.add::<U32>(step, 1);
            let is_last = b.setp_eq(next, steps);
            if self.ring.is_some() {
                let first = b.warp_id();
                let first = b.setp_eq(first, 0);
                let asks = b.and_pred(first, is_qkv);
                b.if_(asks, |b| self.ask_for_place(b, item, position));
            }
            let vectors = self.vectors_of(b, Step { phase, layer, is_last }, item.logits);
            let OfStep { x, y, residual, exchanged, ends } = vectors;
            let (first, end) = self.share(b, step);
            let (table, eps, kind) = (self.table, self.eps, LoadKind::Ordinary);
            let layer_at = b.mad::<U32>(layer, LAYER_SLOTS, MODEL_SLOTS);
            let of = Operands { table, layer: layer_at, x, y, residual, eps, kind };
            let operands = AnyOperands { phase, of, ring: self.ring, exchanged };
            b.overlap(|b| products.run(b, &operands, first, end));
            b.if_(is_qkv, |b| {
                let ends = if exchanged.is_some() { Ends::Open } else { Ends::Grid };
                self.end_step(b, trace::QKV, layer, position, ends);
                self.attend(b, item, layer, position);
            });
            let is_last_down = b.setp_eq(step, last);
            b.if_(is_last_down, |b| {
                let published = self.publish(b, look, current);
                b.set(stops, published);
            });
            b.if_(is_head, |b| self.best_of_block(b, item, position, (first, end)));
            let stamp = b.add::<U32>(phase, 1);
            self.end_step(b, stamp, layer, position, ends);
        });
    }

    /// The block's best logit behind penalties, for the merge behind the head's barrier.
    fn best_of_block(&self, b: &mut Builder, item: &Item, position: Val<U32>, (first, end): (Val<U32>, Val<U32>)) {
        self.treat(b, position, Share { logits: item.logits, first, end });
        let best = argmax::of_block(b, self.scratch, item.logits, first, end, LoadKind::Ordinary);
        let tid = b.tid();
        let writes = b.setp_eq(tid, 0);
        let (value, index) = (b.index(self.best_values, self.block), b.index(self.best_indices, self.block));
        b.if_(writes, |b| {
            b.st(value, best.value);
            b.st(index, best.index);
        });
    }

    /// The token's embedding, in this block's own copy.
    fn embed(&self, b: &mut Builder, next: &Next) {
        let tensor = Tensor::from_table(b, self.table, TensorRole::TokenEmbedding.slot());
        let row = dequantize::Row { tensor, types: &self.kernel.types, k: Size::Const(self.kernel.shape.hidden) };
        let (warp, warps, token) = (b.warp_id(), b.warps(), b.get(next.token));
        b.bar_sync(); // nobody reads the token before any more
        self.begin_epochs(b);
        row.write(b, token, self.embedding, warp, warps);
        b.bar_sync(); // every warp's part is written
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
        let (table, eps) = (self.table, self.eps);
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

    // ---- behind the token's last barrier

    /// The blocks' best, merged by the first warp.
    fn read_best(&self, b: &mut Builder, chooses: Val<Pred>) {
        let tid = b.tid();
        b.if_(chooses, |b| {
            let token = self.token_of_all(b);
            let first = b.setp_eq(tid, 0);
            b.if_(first, |b| b.st(self.command.at(CHOSEN), token));
        });
    }

    /// The item's next token, chosen or of its prompt.
    fn next_token(&self, b: &mut Builder, chooses: Val<Pred>) -> Val<U32> {
        let of_prompt = b.ld(self.command.at(command::NEXT_ID), LoadKind::Constant);
        let token = b.var(of_prompt);
        b.if_(chooses, |b| {
            let chosen = b.ld(self.command.at(CHOSEN), LoadKind::Constant);
            b.set(token, chosen);
        });
        b.get(token)
    }

    /// The kind of the entry that ends the item after this token, or 0.
    fn ends(&self, b: &mut Builder, item: &Item, ran: &Ran) -> Val<U32> {
        let end = b.var::<U32>(0);
        // What is set later overrides what was set before.
        let position = b.add(ran.position, 1);
        let full = b.setp_ge(position, item.room);
        b.if_(full, |b| b.set(end, entry::CONTEXT_FULL));
        let unknown = b.setp_ge::<U32>(ran.token, self.vocab);
        b.if_else(
            ran.chooses,
            |b| {
                let enough = b.setp_ge(ran.made, item.max_new);
                b.if_(enough, |b| b.set(end, entry::LENGTH));
                let count = b.ld(self.item.at(item::STOP_COUNT), LoadKind::Constant);
                let count = b.min(count, item::STOP_IDS_MAX);
                b.for_range(0, count, 1, |b, i| {
                    let id = b.index(self.item.at(item::STOP_IDS), i);
                    let id = b.ld(id, LoadKind::Constant);
                    let stops = b.setp_eq(id, ran.token);
                    b.if_(stops, |b| b.set(end, entry::STOP_ID));
                });
                b.if_(unknown, |b| b.set(end, entry::NOT_FINITE));
            },
            |b| {
                b.if_(unknown, |b| b.set(end, entry::REJECTED));
                let over = b.setp_ge(ran.step, item.prompt);
                b.if_(over, |b| b.set(end, entry::LENGTH));
            },
        );
        b.get(end)
    }

    /// The leader keeps where the item is, and tells the host.
    fn tell(&self, b: &mut Builder, ran: &Ran, end: Val<U32>, stops: Var<U32>) {
        let Ran { slot, token, .. } = *ran;
        b.if_(self.leader, |b| {
            self.keep(b, state::STEP, slot, ran.step);
            self.keep(b, state::TOKEN, slot, token);
            self.keep(b, state::MADE, slot, ran.made);
            b.st(self.kept.at(state::LAST), slot);
            let known = b.setp_lt::<U32>(token, self.vocab);
            let gives = b.and_pred(ran.chooses, known);
            b.if_(gives, |b| {
                self.tell_logprob(b, slot, token);
                let kind = b.mov::<U32>(entry::TOKEN);
                self.emit(b, slot, kind, token, StoreOrder::Relaxed);
            });
            let open = b.setp_eq(end, 0);
            let stopped = b.setp_ne(stops, 0);
            let stopped = b.and_pred(open, stopped);
            let kind = b.selp::<U32>(entry::STOPPED, end, stopped);
            let over = b.setp_ne(kind, 0);
            b.if_(over, |b| {
                let unusable = b.setp_eq(kind, entry::NOT_FINITE);
                let payload = b.selp::<U32>(ran.position, token, unusable);
                self.end(b, slot, kind, payload);
            });
            let tokens = b.ld(self.kept.at(state::PROGRESS), LoadKind::Ordinary);
            let tokens = b.add(tokens, 1);
            b.st(self.kept.at(state::PROGRESS), tokens);
            b.st_sync(self.report.at(report::PROGRESS), tokens, StoreOrder::Relaxed, Scope::Sys);
        });
    }

    /// Takes up the command published with the token: the same item's next token, another item's, or to wait or leave.
    fn go_on(&self, b: &mut Builder, next: &Next, ran: &Ran, end: Val<U32>) {
        let kind = b.ld(self.command.at(command::KIND), LoadKind::Constant);
        let slot = b.ld(self.command.at(command::SLOT), LoadKind::Constant);
        let runs = b.setp_eq(kind, command::RUN);
        let same = b.setp_eq(slot, ran.slot);
        let same = b.and_pred(same, runs);
        b.set(next.kind, kind);
        b.if_else(
            same,
            |b| {
                b.set(next.step, ran.step);
                b.set(next.token, ran.token);
                b.set(next.made, ran.made);
                let ended = b.setp_ne(end, 0);
                b.if_(ended, |b| b.set(next.kind, command::WAIT));
            },
            |b| b.if_(runs, |b| self.take(b, next)),
        );
    }
}

/// A token that has run.
struct Ran {
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
}
