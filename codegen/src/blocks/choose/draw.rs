//! The draw: the greatest `(l - most) / T + gumbel` of the tokens that are drawn from.

use super::{Choose, Draw, Share};
use crate::blocks::argmax::Best;
use crate::blocks::random;
use crate::ptx::{AtomicOp, Builder, Compare, F32, LoadKind, Order, Scope, U32, U64, Val};
use kiln_shape::choice::{self, memory};

impl Choose {
    /// The best draw of the block's logits before the window, in every lane of warp 0; those in the window go to the list.
    /// Barriers stand inside.
    #[track_caller]
    pub(crate) fn sift(&self, b: &mut Builder, share: Share, by: Draw) -> Best {
        let (tid, threads) = (b.tid(), b.block());
        let best = Best::none(b);
        let first = b.add::<U32>(share.first, tid);
        b.for_range(first, share.end, threads, |b, id| {
            let at = b.index(share.logits, id);
            let logit = b.ld(at, LoadKind::Ordinary);
            let possible = super::possible(b, logit);
            b.if_(possible, |b| {
                let bin = super::bin(b, logit, by.most);
                let sure = b.setp_lt(bin, by.window.low);
                b.if_else(
                    sure,
                    |b| self.draw(b, &best, by, logit, id),
                    |b| {
                        let may = b.setp(Compare::Le, bin, by.window.high);
                        b.if_(may, |b| self.note(b, logit, id));
                    },
                );
            });
        });
        b.bar_sync(); // nobody reads the bests of warps before any more
        best.over_block(b, self.scratch);
        best
    }

    /// The best draw of the list's tokens before the cut, in every lane of warp 0. Barriers stand inside.
    #[track_caller]
    pub(crate) fn settle(&self, b: &mut Builder, by: Draw) -> Best {
        let (tid, threads) = (b.tid(), b.block());
        let first = b.setp_eq(tid, 0);
        let listed = b.var::<U32>(0);
        b.if_(first, |b| {
            let count = b.ld(self.memory.at(memory::LISTED), LoadKind::Ordinary);
            b.set(listed, count);
        });
        b.bar_sync(); // nobody reads what was said before any more
        let listed = b.get(listed);
        let listed = b.broadcast(self.room.said, listed);
        let cut = self.cut(b, listed, by);
        let best = Best::none(b);
        let list = self.list(b);
        b.for_range(tid, listed, threads, |b, i| {
            let at = b.index(list, i);
            let key = b.ld(at, LoadKind::Ordinary);
            let before = b.setp(Compare::Le, key, cut);
            b.if_(before, |b| {
                let order = b.shr::<U64>(key, 32);
                let (order, id) = (b.cvt::<U32, U64>(order), b.cvt::<U32, U64>(key));
                let logit = super::logit_of(b, order);
                self.draw(b, &best, by, logit, id);
            });
        });
        b.bar_sync(); // nobody reads the bests of warps before any more
        best.over_block(b, self.scratch);
        best
    }

    /// Takes a token's draw, if it has the mass for it.
    fn draw(&self, b: &mut Builder, best: &Best, by: Draw, logit: Val<F32>, id: Val<U32>) {
        let mass = super::mass(b, logit, by.most);
        let least = self.long(b, choice::LEAST);
        let enough = b.setp_ge(mass, least);
        b.if_(enough, |b| {
            let below = b.sub(logit, by.most);
            let temperature = self.float(b, choice::TEMPERATURE);
            let scaled = b.div(below, temperature);
            let mut seed = |word| b.ld(self.words.at(choice::SEED + word), LoadKind::Constant);
            let seed = [seed(0), seed(1)];
            let gumbel = random::gumbel(b, seed, by.position, id);
            let value = b.add(scaled, gumbel);
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
