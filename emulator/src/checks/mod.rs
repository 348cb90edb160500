//! Checks: what a run may not do even if its result comes out right. Each is on or off by itself.
//!
//! The interpreter tells of events, here is kept what they mean: for a block (`block`), for an allocation
//! (`allocation`), and for a device's memory beyond one launch (`witness`); counters stand beside them.

pub(crate) mod allocation;
pub(crate) mod block;
mod clock;
pub(crate) mod counters;
pub(crate) mod frontier;
pub(crate) mod order;
mod race;
mod record;
mod shadow;
pub(crate) mod witness;
