//! The softmax of chunks that are put together from left to right, by a running maximum: `m' = max(m, m_c)`,
//! `l' = l e^(m - m') + l_c e^(m_c - m')`, and the sum of values as `l`. One of the two factors is 1.

use super::math;
use crate::ptx::{Builder, Compare, F32, Operand, Val, Var};

/// The chunks so far, without their sum of values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sums {
    pub(crate) max: Var<F32>,
    pub(crate) sum: Var<F32>,
}

/// Those with what lies to the right of them: what values so far and values that are added are multiplied with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Joined {
    pub(crate) old: Val<F32>,
    pub(crate) new: Val<F32>,
    pub(crate) max: Val<F32>,
    pub(crate) sum: Val<F32>,
}

impl Sums {
    /// No chunk yet.
    #[track_caller]
    pub(crate) fn none(b: &mut Builder) -> Sums {
        Sums { max: b.var(f32::NEG_INFINITY), sum: b.var(0.0) }
    }

    /// With what lies to the right of all so far.
    #[track_caller]
    pub(crate) fn joined(
        self,
        b: &mut Builder,
        max: impl Operand<F32> + Copy,
        sum: impl Operand<F32> + Copy,
    ) -> Joined {
        let difference = b.sub::<F32>(self.max, max);
        let distance = b.abs(difference);
        let below = b.neg(distance);
        let factor = math::exp(b, below);
        let stays = b.setp::<F32>(Compare::Ge, self.max, max);
        let (old, new) = (b.selp::<F32>(1.0, factor, stays), b.selp::<F32>(factor, 1.0, stays));
        let max = b.max::<F32>(self.max, max);
        Joined { old, new, max, sum: joined(b, self.sum, sum, [old, new]) }
    }
}

impl Joined {
    /// A value with what is added to it.
    #[track_caller]
    pub(crate) fn value(&self, b: &mut Builder, own: Val<F32>, added: Val<F32>) -> Val<F32> {
        joined(b, own, added, [self.old, self.new])
    }
}

fn joined(b: &mut Builder, own: impl Operand<F32>, added: impl Operand<F32>, [old, new]: [Val<F32>; 2]) -> Val<F32> {
    let added = b.mul::<F32>(added, new);
    b.fma(own, old, added)
}

/// The softmax of a value: 0 where nothing was added.
#[track_caller]
pub(crate) fn quotient(b: &mut Builder, value: impl Operand<F32>, sum: Val<F32>) -> Val<F32> {
    let empty = b.setp_eq(sum, 0.0);
    let value = b.div(value, sum);
    b.selp::<F32>(0.0, value, empty)
}

/// The chunks so far, and four neighbouring elements of their sum of values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Running {
    sums: Sums,
    values: [Var<F32>; 4],
}

/// A chunk's, or several chunks' put together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) max: Val<F32>,
    pub(crate) sum: Val<F32>,
    pub(crate) values: [Val<F32>; 4],
}

impl Running {
    /// No chunk yet.
    #[track_caller]
    pub(crate) fn none(b: &mut Builder) -> Running {
        Running { sums: Sums::none(b), values: std::array::from_fn(|_| b.var::<F32>(0.0)) }
    }

    /// Takes the first as it is.
    #[track_caller]
    pub(crate) fn begin(&self, b: &mut Builder, part: Part) {
        b.set(self.sums.max, part.max);
        b.set(self.sums.sum, part.sum);
        self.values.iter().zip(part.values).for_each(|(own, value)| b.set(*own, value));
    }

    /// Adds what lies to the right of all so far.
    #[track_caller]
    pub(crate) fn add(&self, b: &mut Builder, part: Part) {
        let joined = self.sums.joined(b, part.max, part.sum);
        b.set(self.sums.max, joined.max);
        b.set(self.sums.sum, joined.sum);
        for (own, added) in self.values.iter().zip(part.values) {
            let before = b.get(*own);
            let both = joined.value(b, before, added);
            b.set(*own, both);
        }
    }

    /// All of it.
    #[track_caller]
    pub(crate) fn part(&self, b: &mut Builder) -> Part {
        let Sums { max, sum } = self.sums;
        Part { max: b.get(max), sum: b.get(sum), values: self.values.map(|value| b.get(value)) }
    }
}

impl Part {
    /// The softmax: zeros where nothing was added.
    #[track_caller]
    pub(crate) fn divided(&self, b: &mut Builder) -> [Val<F32>; 4] {
        self.values.map(|value| quotient(b, value, self.sum))
    }
}
