//! The activation vector in shared memory, laid out for the dot products of `dot`.
//!
//! `formats::activations` says how its elements are arranged.

use super::warp;
use crate::formats::swizzle;
use crate::ptx::{Builder, F32, Global, LoadKind, Pred, Shared, Size, U32, Val, Work};
use kiln_shape::SUPER_BLOCK;

/// The staged vector.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Staged {
    /// `[k]`, swizzled.
    pub(crate) x: Shared<F32>,
    /// `[k / 256]`: the sum of squares of the input (before gamma) of each super-block.
    pub(crate) squares: Shared<F32>,
}

/// Floats of shared memory that `k` elements take.
pub(crate) const fn floats(k: u32) -> u32 {
    k + (k / SUPER_BLOCK).next_multiple_of(4)
}

impl Staged {
    /// Takes the shared memory for up to `k` elements.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, k: u32) -> Staged {
        let base = b.dynamic_shared::<F32>(floats(k));
        Staged { x: base, squares: base.at(k) }
    }

    /// Stages `super_blocks` super-blocks of `x` (times `gamma`, if given), starting at element 0 of both, with the
    /// warps of the block. Of a vector that ends within the last one `left` elements are there; zeros are staged behind
    /// them. A barrier must follow.
    #[track_caller]
    pub(crate) fn fill(
        &self,
        b: &mut Builder,
        x: Global<F32>,
        gamma: Option<Global<F32>>,
        super_blocks: Size,
        left: Option<Val<U32>>,
        kind: LoadKind,
    ) {
        let (warp, lane, warps) = (b.warp_id(), b.lane(), b.warps());
        // Lane l stages elements 8l .. 8l + 8: the first or last two quads of chunk l / 2.
        let chunk = b.shr(lane, 1);
        let odd = b.and(lane, 1);
        let swizzle = swizzle(b, chunk);
        let quad = b.shl::<U32>(odd, 1);
        let quad = b.xor::<U32>(quad, swizzle);
        let to = b.index(self.x, 0);
        let to = b.byte_index(to, chunk, 64);
        let first = b.byte_index(to, quad, 16);
        let quad = b.xor(quad, 1);
        let second = b.byte_index(to, quad, 16);
        let x = b.byte_index(x, lane, 32);
        let gamma = gamma.map(|gamma| b.byte_index(gamma, lane, 32));
        let leader = b.setp_eq(lane, 0);
        b.for_range(warp, super_blocks, warps, |b, sb| {
            b.each_iteration(Work::Elements(8));
            let inside = left.map(|left| {
                let at = b.mul::<U32>(sb, SUPER_BLOCK);
                let at = b.mad::<U32>(lane, 8, at);
                b.setp_lt(at, left)
            });
            let x = b.byte_index(x, sb, 1024);
            let mut values = eight(b, x, inside, kind);
            let mut square = b.mul(values[0], values[0]);
            for value in &values[1..] {
                square = b.fma(*value, *value, square);
            }
            let square = warp::sum(b, square, 32);
            if let Some(gamma) = gamma {
                let gamma = b.byte_index(gamma, sb, 1024);
                let gamma = eight(b, gamma, inside, LoadKind::Constant);
                for (value, gamma) in values.iter_mut().zip(gamma) {
                    *value = b.mul(*value, gamma);
                }
            }
            let [v0, v1, v2, v3, v4, v5, v6, v7] = values;
            let (first, second) = (b.byte_index(first, sb, 1024), b.byte_index(second, sb, 1024));
            b.st_vector(first, [v0, v1, v2, v3]);
            b.st_vector(second, [v4, v5, v6, v7]);
            let square_to = b.index(self.squares, sb);
            b.if_(leader, |b| b.st(square_to, square));
        });
    }

    /// `1 / sqrt(mean(x^2) + eps)` of the staged vector of `k` elements, in every thread. Needs a barrier between `fill`
    /// and itself.
    #[track_caller]
    pub(crate) fn inverse_rms(&self, b: &mut Builder, super_blocks: Size, k: Size, eps: Val<F32>) -> Val<F32> {
        let lane = b.lane();
        let total = b.var::<F32>(0.0);
        b.for_range(lane, super_blocks, 32, |b, sb| {
            let at = b.index(self.squares, sb);
            let square = b.ld(at, LoadKind::Ordinary);
            let next = b.add(total, square);
            b.set(total, next);
        });
        let total = b.get(total);
        let total = warp::sum(b, total, 32);
        let count = match k {
            Size::Const(count) => b.mov(count as f32),
            Size::Reg(count) => b.cvt(count),
        };
        super::norm::inverse_rms(b, total, count, eps)
    }
}

/// Eight floats from `at`, or zeros where they are not inside.
fn eight(b: &mut Builder, at: Global<F32>, inside: Option<Val<Pred>>, kind: LoadKind) -> [Val<F32>; 8] {
    let load = |b: &mut Builder| -> [Val<F32>; 8] {
        let low: [Val<F32>; 4] = b.ld_vector(at, kind);
        let high: [Val<F32>; 4] = b.ld_vector(at.at(4), kind);
        [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]]
    };
    let Some(inside) = inside else { return load(b) };
    let values = [(); 8].map(|()| b.var::<F32>(0.0));
    b.if_(inside, |b| {
        for (value, loaded) in values.iter().zip(load(b)) {
            b.set(*value, loaded);
        }
    });
    values.map(|value| b.get(value))
}
