//! The draw: the greatest `(l - most) / T + gumbel` of the tokens that are drawn from.

use super::cut::{Cuts, Listed};
use super::{Choose, Draw, Share};
use crate::blocks::argmax::Best;
use crate::blocks::random;
use crate::ptx::{AtomicOp, Builder, F32, LoadKind, Order, Pred, Scope, U32, U64, Val, Var};
use kiln_shape::choice::{self, memory};

impl Choose {
    /// The best draw: where it `sifts`, of the block's logits that are surely drawn from, which is stored among those of the
    /// grid, and those that may be go to the list; else of the list's tokens, of which the cuts leave some, which becomes
    /// `found` in every lane of warp 0. Barriers stand inside.
    #[track_caller]
    pub(crate) fn best_draw(&self, b: &mut Builder, share: Share, by: Draw, sifts: Val<Pred>, found: &Best) {
        let (tid, threads) = (b.tid(), b.block());
        let begin = b.add::<U32>(share.first, tid);
        let (begin, end) = (b.var::<U32>(begin), b.var::<U32>(share.end));
        let cuts = Cuts::none(b, self);
        let settles = b.not_pred(sifts);
        b.if_(settles, |b| {
            self.add_up(b, &by.window);
            let listed = self.said(b, memory::LISTED);
            self.cut(b, &cuts, listed, by);
            b.set(begin, tid);
            b.set(end, listed);
        });
        let (best, list) = (Best::none(b), self.list(b));
        b.for_range(begin, end, threads, |b, i| {
            let (logit, id, takes) = (b.var::<F32>(0.0), b.var::<U32>(i), b.var::<U32>(0));
            b.if_else(
                sifts,
                |b| {
                    let at = b.index(share.logits, i);
                    let own = b.ld(at, LoadKind::Ordinary);
                    b.set(logit, own);
                    let possible = super::possible(b, own);
                    b.if_(possible, |b| {
                        let bin = super::bin(b, own, by.most);
                        let class = by.window.class(b, bin);
                        b.if_(class.sure, |b| b.set(takes, 1));
                        b.if_(class.listed, |b| self.note(b, own, i));
                    });
                },
                |b| {
                    let at = b.index(list, i);
                    let key = b.ld(at, LoadKind::Ordinary);
                    let token = Listed::new(b, key, by.most, &cuts);
                    let stays = cuts.leave(b, &token);
                    b.set(logit, token.logit);
                    b.set(id, token.id);
                    b.if_(stays, |b| b.set(takes, 1));
                },
            );
            let takes = b.setp_ne(takes, 0);
            b.if_(takes, |b| {
                let token = (b.get(logit), b.get(id));
                self.draw(b, &best, by, token, cuts.least);
            });
        });
        b.bar_sync(); // nobody reads the bests of warps before any more
        best.over_block(b, self.scratch);
        b.if_else(
            sifts,
            |b| self.store(b, &best, memory::DRAWN),
            |b| {
                b.set(found.value, best.value);
                b.set(found.index, best.index);
            },
        );
    }

    /// Takes a token's draw, if it has the mass for it. At a temperature of 0 that is its logit.
    fn draw(&self, b: &mut Builder, best: &Best, by: Draw, (logit, id): (Val<F32>, Val<U32>), least: Var<U64>) {
        let mass = super::mass(b, logit, by.most);
        let enough = b.setp_ge::<U64>(mass, least);
        b.if_(enough, |b| {
            let below = b.sub(logit, by.most);
            let temperature = self.float(b, choice::TEMPERATURE);
            let scaled = b.div(below, temperature);
            let mut seed = |word| b.ld(self.words.at(choice::SEED + word), LoadKind::Constant);
            let seed = [seed(0), seed(1)];
            let gumbel = random::gumbel(b, seed, by.position, id);
            let value = b.add(scaled, gumbel);
            let draws = b.setp_ne(temperature, 0.0);
            let value = b.selp::<F32>(value, logit, draws);
            best.take(b, value, id);
        });
    }

    /// Puts a token into the list.
    fn note(&self, b: &mut Builder, logit: Val<F32>, id: Val<U32>) {
        let order = super::order(b, logit);
        let place = b.atom(AtomicOp::Add, Order::Relaxed, self.memory.at(memory::LISTED), 1u32, Scope::Gpu);
        b.red(AtomicOp::Max, self.memory.at(memory::GREATEST), order, Scope::Gpu);
        let lack = b.xor(order, u32::MAX);
        b.red(AtomicOp::Max, self.memory.at(memory::LEAST), lack, Scope::Gpu);
        let key = b.pack64(id, order);
        let list = self.list(b);
        let to = b.index(list, place);
        b.st(to, key);
    }
}
