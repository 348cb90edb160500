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
    let values = (0..head_dim / 32).map(|i| b.ld(x.at(32 * i), kind)).collect();
    turned(b, values, gamma, angles)
}

/// The same of a head whose elements a warp has.
#[track_caller]
pub(crate) fn turned(
    b: &mut Builder,
    mut values: Vec<Val<F32>>,
    gamma: Option<(Global<F32>, Val<F32>)>,
    angles: Angles,
) -> Vec<Val<F32>> {
    let lane = b.lane();
    if let Some((gamma, eps)) = gamma {
        let gamma = b.index(gamma, lane);
        values = norm::per_head(b, &values, gamma, eps);
    }
    let (cos, sin) = (b.index(angles.cos, lane), b.index(angles.sin, lane));
    rope::neox(b, &values, cos, sin)
}
