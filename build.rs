//! Bakes the kernels of the chosen models and makes the driver bindings.
fn main() {}
