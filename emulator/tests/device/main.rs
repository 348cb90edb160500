//! The driver's C functions, called as kiln calls them.

mod kernels;
mod support;

mod deferred;
mod findings;
mod graph;
mod grids;
mod launch;
mod objects;
mod order;
mod programs;
mod tensors;
