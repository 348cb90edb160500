//! Shared by the tests of the driver layer: a table that records and fails, put between kiln and a driver.

#![allow(dead_code)]

pub mod table;
