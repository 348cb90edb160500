use crate::ptx::{Builder, U8, U32, U64, Val, Var};

/// How far a lane has asked the L2 cache for weights that the ring has no room for yet. What the ring takes from there is made
/// up for at once, or memory would rest while the ring takes the rest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ahead {
    /// The run that it asks for, of those behind the one that fills the ring, and how many of its super-blocks it has asked for.
    run: Var<U32>,
    asked: Var<U32>,
    /// Bytes that it has asked for ahead of the ring.
    bytes: Var<U32>,
}

/// Runs behind the one that fills the ring, which are asked for ahead: behind `down` those up to the next layer's gate.
pub(crate) const BEHIND: usize = 5;

/// Super-blocks that a lane asks for at once: few, so that what others ask for meanwhile does not wait behind them.
const PIECE: u32 = 8;

/// A run as far as it matters here.
#[derive(Clone, Copy)]
pub(super) struct Run {
    /// The address of the matrix, and the number of the run's first super-block in it.
    pub(super) data: Val<U64>,
    pub(super) first: Val<U32>,
    /// Bytes of a super-block.
    pub(super) bytes: Val<U32>,
    /// Super-blocks that come through the ring.
    pub(super) count: Val<U32>,
}

impl Ahead {
    /// Nothing yet.
    pub(super) fn none(b: &mut Builder) -> Ahead {
        Ahead { run: b.var::<U32>(0), asked: b.var::<U32>(0), bytes: b.var::<U32>(0) }
    }

    /// The first run behind becomes the one that fills the ring.
    pub(super) fn go_on(&self, b: &mut Builder) {
        let is_behind = b.setp_ne(self.run, 0);
        let before = b.sub::<U32>(self.run, 1);
        let run = b.selp::<U32>(before, 0, is_behind);
        let asked = b.selp::<U32>(self.asked, 0, is_behind);
        b.set(self.run, run);
        b.set(self.asked, asked);
    }

    /// The ring has taken so many bytes.
    pub(super) fn taken(&self, b: &mut Builder, bytes: Val<U32>) {
        let all = b.max::<U32>(self.bytes, bytes);
        let left = b.sub::<U32>(all, bytes);
        b.set(self.bytes, left);
    }

    /// Asks for the next piece of `runs`, of whose first the ring has `done`, where less than `most` bytes are asked for.
    pub(super) fn ask(&self, b: &mut Builder, (done, most): (Val<U32>, Val<U32>), runs: &[Run]) {
        let mut of = |field: fn(&Run) -> Val<U32>| {
            (1..).zip(&runs[1..]).fold(field(&runs[0]), |chosen, (number, run)| {
                let is = b.setp_eq(self.run, number);
                b.selp::<U32>(field(run), chosen, is)
            })
        };
        let (first, bytes, count) = (of(|run| run.first), of(|run| run.bytes), of(|run| run.count));
        let is_own = b.setp_eq(self.run, 0);
        let passed = b.selp::<U32>(done, 0, is_own);
        let from = b.max::<U32>(self.asked, passed);
        let more = b.setp_lt(from, count);
        let room = b.setp_lt::<U32>(self.bytes, most);
        let asks = b.and_pred(more, room);
        b.if_(asks, |b| {
            let left = b.sub::<U32>(count, from);
            let piece = b.min::<U32>(left, PIECE);
            let next = b.add::<U32>(from, piece);
            b.set(self.asked, next);
            let number = b.add::<U32>(first, from);
            let data = (1..).zip(&runs[1..]).fold(runs[0].data, |chosen, (number, run)| {
                let is = b.setp_eq(self.run, number);
                b.selp::<U64>(run.data, chosen, is)
            });
            let data = b.mad_wide(number, bytes, data);
            let data = b.global_ptr::<U8>(data);
            let bytes = b.mul::<U32>(piece, bytes);
            let all = b.add::<U32>(self.bytes, bytes);
            b.set(self.bytes, all);
            b.cp_async_bulk_prefetch(data, bytes);
        });
        let last = b.setp_eq(self.run, runs.len() as u32 - 1);
        let ends = b.or_pred(more, last);
        let goes_on = b.not_pred(ends);
        b.if_(goes_on, |b| {
            let next = b.add::<U32>(self.run, 1);
            b.set(self.run, next);
            b.set(self.asked, 0);
        });
    }
}
