//! Driver calls that fail on purpose.

use super::codes::Code;

/// A driver call that fails on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultInjection {
    /// The kind of call.
    pub call: Call,
    /// The number of the call among those of its kind after the injection, from 1.
    pub nth: u64,
    /// The code it fails with. One that the execution of a kernel or copy would give, such as
    /// [`Code::ILLEGAL_ADDRESS`], is not returned by the call: the launch or copy is accepted, then the context is
    /// lost.
    pub code: Code,
}

/// The kinds of calls that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// Device and page-locked host allocations.
    Allocate,
    /// Copies and fills, synchronous or not.
    Copy,
    /// Kernel and graph launches.
    Launch,
    /// Module loads.
    Load,
}
