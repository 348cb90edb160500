//! A model of the time per token, from bytes, instructions and latencies. A calculation, not a measurement: say so
//! wherever its figures are printed.
//!
//! A token is a sequence of [`phases`]. In each, every block waits for the phase before, takes the vector from the L2
//! cache and stages it, and then reads its share of the weights or of the KV cache and works on it:
//!
//! | part | seconds |
//! |---|---|
//! | hand-over | a launch, a node of a graph or a grid-wide barrier, as published |
//! | ramp | twice the latency of device memory: until the first bytes are there, and until the last block is done |
//! | exchange | the latency of the L2 cache, and every block's copy of the vector at the cache's bandwidth |
//! | staging | instructions for each element, by warps that issue one in four cycles at most |
//! | work | see below |
//!
//! Work has three rates: the bandwidth that reads reach; Little's law for the multiprocessor that has most of it, its
//! bytes in flight over the latency; and its busiest pipe. Where two of them are near each other a chip reaches neither:
//! times are put together as the root of the sum of their squares, which follows the published curve of an H800, bandwidth
//! by bytes in flight. No number is fitted to the time of a model; but the greatest of the three instead of the root would
//! have llama.cpp a third too fast on Hopper, so its published times are no blind test of that rule.
//!
//! With a ring in shared memory weights keep flowing through everything but work, and but for a token's end
//! the hand-over is a trip to the L2 cache, with four bytes an element that are empty before. It is built for fast
//! numerics from sm_80 on; for older chips its figures say what it would bring.
//!
//! Left out: the host; clocks that fall under load; activations' second planes.

mod chips;
mod counted;
mod phases;
mod predict;
mod prompt;

pub use chips::{CHIPS, Chip, Figure, Origin, chip};
pub use counted::Loop;
pub(crate) use phases::phases_of;
pub use phases::{Behind, Phase, phases};
pub use predict::{Bound, Prediction, bandwidth, predict, trivial};
pub use prompt::{FirstToken, first_token};

use crate::shape::Numerics;

/// A way of running a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// A launch for each fused kernel.
    Stream,
    /// The same kernels, captured once and replayed.
    Graph,
    /// One cooperative launch, a barrier for each dependency.
    Persistent,
    /// As that, with weights that flow into a ring in shared memory while blocks wait, most of them for words that are
    /// empty until then: from sm_80 on, in fast numerics.
    PersistentRing,
}

impl Way {
    /// Every way.
    pub const ALL: [Way; 4] = [Way::Stream, Way::Graph, Way::Persistent, Way::PersistentRing];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Way::Stream => "stream",
            Way::Graph => "graph",
            Way::Persistent => "persistent",
            Way::PersistentRing => "persistent + ring",
        }
    }

    /// Whether blocks stay on the device.
    pub const fn is_resident(self) -> bool {
        matches!(self, Way::Persistent | Way::PersistentRing)
    }
}

/// Whose kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Program {
    /// These.
    Kiln(Numerics),
    /// llama.cpp's, by what was counted of them: to see how far the model is off what was published.
    LlamaCpp,
}

impl Program {
    /// Every program.
    pub const ALL: [Program; 3] = [Program::Kiln(Numerics::Exact), Program::Kiln(Numerics::Fast), Program::LlamaCpp];
}
