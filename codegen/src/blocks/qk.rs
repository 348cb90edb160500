//! What happens to a head of Q or K before attention: the norm per head, where the model has one, and RoPE.

use super::{norm, rope};
use crate::ptx::{Builder, F32, Global, LoadKind, U32, Val};

/// A position's row of the RoPE tables, `[head_dim / 2]` each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Angles {
    cos: Global<F32>,
    sin: Global<F32>,
}

impl Angles {
    /// The row of `position` in tables of `[positions, head_dim / 2]`.
    #[track_caller]
    pub(crate) fn at(b: &mut Builder, cos: Global<F32>, sin: Global<F32>, position: Val<U32>, head_dim: u32) -> Angles {
        let row = b.mul::<U32>(position, head_dim / 2);
        Angles { cos: b.index(cos, row), sin: b.index(sin, row) }
    }
}

/// What a head is turned with, and before that normalised where the model does: a lane's elements l, l + 32, ...
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    /// Gamma and epsilon.
    norm: Option<(Vec<Val<F32>>, Val<F32>)>,
    cos: Vec<Val<F32>>,
    sin: Vec<Val<F32>>,
}

impl Turn {
    /// Loads them, by a warp.
    #[track_caller]
    pub(crate) fn load(b: &mut Builder, head_dim: u32, gamma: Option<(Global<F32>, Val<F32>)>, angles: Angles) -> Turn {
        let lane = b.lane();
        let own = |b: &mut Builder, from: Global<F32>, elements: u32| -> Vec<Val<F32>> {
            let from = b.index(from, lane);
            (0..elements / 32).map(|i| b.ld(from.at(32 * i), LoadKind::Constant)).collect()
        };
        let norm = gamma.map(|(gamma, eps)| (own(b, gamma, head_dim), eps));
        Turn { norm, cos: own(b, angles.cos, head_dim / 2), sin: own(b, angles.sin, head_dim / 2) }
    }

    /// Normalises and turns a head whose elements the warp has.
    #[track_caller]
    pub(crate) fn apply(&self, b: &mut Builder, values: &[Val<F32>]) -> Vec<Val<F32>> {
        let normalised = self.norm.as_ref().map(|(gamma, eps)| norm::per_head(b, values, gamma, *eps));
        rope::neox(b, normalised.as_deref().unwrap_or(values), &self.cos, &self.sin)
    }
}

/// Loads the head at `x`, by one warp (lane l has elements l, l + 32, ...), normalises it with gamma and epsilon if they
/// are given, and turns it.
#[track_caller]
pub(crate) fn head(
    b: &mut Builder,
    head_dim: u32,
    x: Global<F32>,
    gamma: Option<(Global<F32>, Val<F32>)>,
    angles: Angles,
    kind: LoadKind,
) -> Vec<Val<F32>> {
    let lane = b.lane();
    let x = b.index(x, lane);
    let values: Vec<_> = (0..head_dim / 32).map(|i| b.ld(x.at(32 * i), kind)).collect();
    Turn::load(b, head_dim, gamma, angles).apply(b, &values)
}
