use kiln_shape::{SUPER_BLOCK, WeightType};
use std::fmt;

/// Work of a lane in one iteration of a loop. Full text says it at the loop's top; the assembler's instructions are
/// counted by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Weights of that type.
    Weights(WeightType, u32),
    /// Weights of that type which another loop, around this one, has brought to shared memory. This one seldom goes round
    /// twice; what it costs is a part of what that one does.
    Shared(WeightType, u32),
    /// Products `m16n8k32` of a warp with weights of that type, which its block brings to shared memory: a lane's
    /// instructions for each are the warp's.
    Tile(WeightType, u32),
    /// What few iterations of the loop around this one come to: it does not count there.
    Few,
    /// What an iteration of the loop around this one does for each column: it counts there as for one.
    Columns,
    /// One of so many rounds of an iteration of the loop around this one, where all count.
    Rounds(u32),
    /// Elements of a vector.
    Elements(u32),
    /// Elements of a vector that are rounded to bytes.
    Rounded(u32),
    /// Elements of the cache, or logits.
    Read(u32),
}

/// The comment in full text, for a warp's 32 lanes: `2048 weights of Q4_K, 1152 bytes`, or `256 elements`.
impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Weights(ty, lane) => {
                let warp = 32 * lane;
                let layout = ty.layout();
                write!(f, "{warp} weights of {ty}, {} bytes", warp * (layout.data + layout.plane) / SUPER_BLOCK)
            }
            Work::Shared(ty, lane) => write!(f, "{} weights of {ty} in shared memory", 32 * lane),
            Work::Tile(ty, products) => write!(f, "{} products of {ty}", 32 * products),
            Work::Few => f.write_str("0 of few"),
            Work::Columns => f.write_str("0 of columns"),
            Work::Rounds(rounds) => write!(f, "0 of {rounds} rounds"),
            Work::Elements(lane) => write!(f, "{} elements", 32 * lane),
            Work::Rounded(lane) => write!(f, "{} elements rounded", 32 * lane),
            Work::Read(lane) => write!(f, "{} elements read", 32 * lane),
        }
    }
}
