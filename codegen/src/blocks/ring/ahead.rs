use super::producer::Records;
use crate::ptx::{Builder, U8, U32, Val, Var};

/// How far a lane has asked the L2 cache for weights that the ring has no room for yet: it asks while the ring is full and
/// all of it there, since memory would rest then.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ahead {
    /// Super-blocks of the run that fills the ring, and of the one behind it, from their first on.
    asked: Var<U32>,
    behind: Var<U32>,
}

/// Super-blocks that a lane asks for at once: few, so that what others ask for meanwhile does not wait behind them.
const PIECE: u32 = 4;

/// A run as far as it matters here.
pub(super) struct Run<'a> {
    pub(super) of: &'a Records,
    /// Bytes of a super-block.
    pub(super) bytes: Val<U32>,
    /// Super-blocks that come through the ring.
    pub(super) count: Val<U32>,
}

impl Ahead {
    /// Nothing yet.
    pub(super) fn none(b: &mut Builder) -> Ahead {
        Ahead { asked: b.var::<U32>(0), behind: b.var::<U32>(0) }
    }

    /// The run behind becomes the one that fills the ring.
    pub(super) fn go_on(&self, b: &mut Builder) {
        let behind = b.get(self.behind);
        b.set(self.asked, behind);
        b.set(self.behind, 0);
    }

    /// Asks for the next piece, at most `most` super-blocks ahead of the `done` that the ring has.
    pub(super) fn ask(&self, b: &mut Builder, (done, most): (Val<U32>, Val<U32>), [own, behind]: [&Run<'_>; 2]) {
        let first = b.max::<U32>(self.asked, done);
        let left = b.sub::<U32>(own.count, done);
        let end = b.min::<U32>(left, most);
        let end = b.add::<U32>(done, end);
        let spare = b.sub::<U32>(most, left);
        let reaches = b.setp_lt(left, most);
        let spare = b.selp::<U32>(spare, 0, reaches);
        let spare = b.min::<U32>(spare, behind.count);
        let is_own = b.setp_lt(first, end);
        let from = b.selp::<U32>(first, self.behind, is_own);
        let end = b.selp::<U32>(end, spare, is_own);
        let asks = b.setp_lt(from, end);
        b.if_(asks, |b| {
            let left = b.sub::<U32>(end, from);
            let count = b.min::<U32>(left, PIECE);
            let next = b.add::<U32>(from, count);
            let asked = b.selp::<U32>(next, self.asked, is_own);
            let asked_behind = b.selp::<U32>(self.behind, next, is_own);
            b.set(self.asked, asked);
            b.set(self.behind, asked_behind);
            let number = b.selp::<U32>(own.of.first, behind.of.first, is_own);
            let number = b.add::<U32>(number, from);
            let bytes = b.selp::<U32>(own.bytes, behind.bytes, is_own);
            let data = b.select_ptr(own.of.tensor.data, behind.of.tensor.data, is_own);
            let data = b.address(data);
            let data = b.mad_wide(number, bytes, data);
            let data = b.global_ptr::<U8>(data);
            let bytes = b.mul::<U32>(count, bytes);
            b.cp_async_bulk_prefetch(data, bytes);
        });
    }
}
