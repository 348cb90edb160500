use super::{Grid, Kernel};
use crate::blocks::{argmax, dependent};
use crate::ptx::{Builder, F32, Global, LoadKind, U32};

/// Greedy choice: the index of the greatest of `logits[vocab]`, the least such index, one block. Stores it as the token
/// after `state`'s position (if that is inside the `capacity` of `tokens`) and moves the sequence on.
/// `state` is `[position, length, error]`. Where the greatest logit is infinite or a logit is NaN the token is
/// [`NO_TOKEN`](kiln_shape::mailbox::NO_TOKEN).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Argmax;

impl Kernel for Argmax {
    fn name(&self) -> &str {
        "argmax"
    }

    fn block(&self) -> u32 {
        1024
    }

    fn grid(&self) -> Grid {
        Grid::Blocks(1)
    }

    fn build(&self, b: &mut Builder) {
        let logits = b.param::<Global<F32>>("logits"); // [vocab]
        let vocab = b.param::<U32>("vocab");
        let tokens = b.param::<Global<U32>>("tokens"); // [capacity]
        let capacity = b.param::<U32>("capacity");
        let state = b.param::<Global<U32>>("state"); // [3]
        let kind = dependent::wait(b);
        let scratch = argmax::Scratch::new(b);
        let best = argmax::of_block(b, scratch, logits, 0, vocab, kind);
        let tid = b.tid();
        let first = b.setp_eq(tid, 0);
        b.if_(first, |b| {
            let token = best.token(b);
            let length = b.ld(state.at(1), LoadKind::Ordinary);
            let inside = b.setp_lt(length, capacity);
            let to = b.index(tokens, length);
            b.if_(inside, |b| b.st(to, token));
            b.st(state, length);
            let next = b.add(length, 1);
            b.st(state.at(1), next);
        });
    }
}
