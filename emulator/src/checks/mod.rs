//! Checks: reports of what is wrong with a run even if its results are right. Each check is on or off by itself.
//!
//! State lives where its life ends: per block (`block`), per allocation (`allocation`), and per device beyond one
//! launch (`witness`). Counters are per host thread and launch (`counters`). Which events the interpreter reports
//! stands in `exec::checked`.

pub(crate) mod allocation;
pub(crate) mod block;
mod clock;
pub(crate) mod counters;
pub(crate) mod frontier;
pub(crate) mod order;
mod race;
mod readers;
mod record;
mod shadow;
pub(crate) mod witness;
