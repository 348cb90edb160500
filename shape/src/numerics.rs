//! How a decoder rounds what it multiplies weights with.

use std::fmt;

/// What a decoder's kernels make of the activations before they multiply them with quantised weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Numerics {
    /// Activations stay f32: the reference, the same bits on every chip.
    Exact,
    /// Activations are rounded to int8, with a scale for each block of them.
    #[default]
    Fast,
}

impl Numerics {
    /// Both.
    pub const ALL: [Numerics; 2] = [Numerics::Exact, Numerics::Fast];

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
