//! The softmax of chunks that are put together from left to right, by a running maximum: `m' = max(m, m_c)`,
//! `l' = l e^(m - m') + l_c e^(m_c - m')`, and the sum of values as `l`. One of the two factors is 1.

use super::math;
use crate::ptx::{Builder, Compare, F32, Val, Var};

/// The chunks so far, and four neighbouring elements of their sum of values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Running {
    max: Var<F32>,
    sum: Var<F32>,
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
        let (max, sum) = (b.var::<F32>(f32::NEG_INFINITY), b.var::<F32>(0.0));
        Running { max, sum, values: std::array::from_fn(|_| b.var::<F32>(0.0)) }
    }

    /// Takes the first as it is.
    #[track_caller]
    pub(crate) fn begin(&self, b: &mut Builder, part: Part) {
        b.set(self.max, part.max);
        b.set(self.sum, part.sum);
        self.values.iter().zip(part.values).for_each(|(own, value)| b.set(*own, value));
    }

    /// Adds what lies to the right of all so far.
    #[track_caller]
    pub(crate) fn add(&self, b: &mut Builder, part: Part) {
        let difference = b.sub::<F32>(self.max, part.max);
        let distance = b.abs(difference);
        let below = b.neg(distance);
        let factor = math::exp(b, below);
        let stays = b.setp::<F32>(Compare::Ge, self.max, part.max);
        let (old, new) = (b.selp::<F32>(1.0, factor, stays), b.selp::<F32>(factor, 1.0, stays));
        let max = b.max::<F32>(self.max, part.max);
        b.set(self.max, max);
        let own = std::iter::once(self.sum).chain(self.values);
        for (own, added) in own.zip(std::iter::once(part.sum).chain(part.values)) {
            let added = b.mul(added, new);
            let both = b.fma(own, old, added);
            b.set(own, both);
        }
    }

    /// All of it.
    #[track_caller]
    pub(crate) fn part(&self, b: &mut Builder) -> Part {
        Part { max: b.get(self.max), sum: b.get(self.sum), values: self.values.map(|value| b.get(value)) }
    }
}

impl Part {
    /// The softmax: zeros where nothing was added.
    #[track_caller]
    pub(crate) fn divided(&self, b: &mut Builder) -> [Val<F32>; 4] {
        let empty = b.setp_eq(self.sum, 0.0);
        self.values.map(|value| {
            let value = b.div(value, self.sum);
            b.selp::<F32>(0.0, value, empty)
        })
    }
}
