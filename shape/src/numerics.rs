//! How a decoder rounds what it multiplies weights with.

use crate::{ModelShape, WeightType};
use std::fmt;

/// Elements of a vector that products stage at once as floats: with the sums of squares they take 49 KB of shared memory, which
/// every target has.
pub const STAGED_MAX: u32 = 12288;

/// Rows that a warp works on at once in exact numerics, sharing the activations that it reads from shared memory.
pub const ROWS_TOGETHER: u32 = 2;

/// What a decoder's kernels make of the activations before they multiply them with quantised weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Numerics {
    /// Activations stay f32: the reference, the same bits on every chip.
    Exact,
    /// Activations are rounded to int8, with a scale for each block of them; tensor cores attend to an f16 cache, while an
    /// f32 cache has the attention of exact numerics. The same bits on chips that run the same target's text.
    #[default]
    Fast,
}

impl Numerics {
    /// Both.
    pub const ALL: [Numerics; 2] = [Numerics::Exact, Numerics::Fast];

    /// Whether kernels of a model of this shape take matrices of a type in these numerics. Fast ones take floats where no
    /// row of the model is longer than [`STAGED_MAX`]: a longer one has no place in shared memory beside what they have there.
    pub fn takes(self, ty: WeightType, shape: &ModelShape) -> bool {
        let longest = shape.ffn.max(shape.hidden).max(shape.q_dim());
        self == Numerics::Exact || ty.is_quantised() || longest <= STAGED_MAX
    }

    /// As it stands in the names of files and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Numerics::Exact => "exact",
            Numerics::Fast => "fast",
        }
    }
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
