use super::{Grid, Kernel};
use crate::blocks::dependent;
use crate::ptx::{Builder, Global, LoadKind, U32};

/// Moves a sequence to its next position after a prompt token without logits: one thread. `state` is `[position,
/// length, error]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Advance;

impl Kernel for Advance {
    fn name(&self) -> &str {
        "advance"
    }

    fn block(&self) -> u32 {
        32
    }

    fn grid(&self) -> Grid {
        Grid::Blocks(1)
    }

    fn build(&self, b: &mut Builder) {
        let state = b.param::<Global<U32>>("state"); // [3]
        dependent::wait(b);
        let lane = b.lane();
        let first = b.setp_eq(lane, 0);
        b.if_(first, |b| {
            let length = b.ld(state.at(1), LoadKind::Ordinary);
            b.st(state, length);
            let next = b.add(length, 1);
            b.st(state.at(1), next);
        });
    }
}
