//! Driver calls that fail on purpose.

use super::codes::Code;

/// One call that fails on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultInjection {
    /// Which kind of call.
    pub call: Call,
    /// Which one of them, counted from 1 from when the injection was made.
    pub nth: u64,
    /// How it fails. A code that a kernel's or copy's execution would give, such as [`Code::ILLEGAL_ADDRESS`], comes as
    /// it would there: the launch or copy is accepted, then the context is lost.
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
