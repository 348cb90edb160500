//! The driver: finding one, modules and launches, work in flight.

#[path = "../common/bake.rs"]
mod bake;
#[path = "../common/mod.rs"]
mod common;

mod device_choice;
mod in_flight;
mod launch;
mod loading;
mod own_kernels;
mod programmatic;
