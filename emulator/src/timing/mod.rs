//! The model of a chip's time: when each instruction issues, and when its result is there.
//!
//! A warp's time runs by itself, in core clocks, and is joined with others' where warps synchronise. Within a basic block
//! an instruction issues as soon as its operands are there and its pipe is free, as an assembler that orders a block well
//! would have it; nothing moves over the ends of a block, over barriers, fences and ordered accesses, or, if it loads, over
//! a store before it. Pipes, caches and memory are [calendars](calendar), which fill gaps.
//!
//! An observer beside the counters and the race check: it changes no result. What is known of a chip stands in its
//! [file](chips), each value with its publisher; what an instruction of PTX is to an assembler stands in [`fold`].

mod cache;
mod calendar;
pub(crate) mod chips;
pub(crate) mod fold;
mod hierarchy;
mod multiprocessor;
mod opcodes;
pub(crate) mod report;
pub(crate) mod timekeeper;
pub(crate) mod warps;
