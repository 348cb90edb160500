//! The machine's vocabulary: types, accesses, lanes, the layout of a launch, faults, kernels and devices. Nothing here
//! reads text, executes or checks.

pub(crate) mod access;
pub(crate) mod banks;
pub(crate) mod chip;
pub(crate) mod codes;
pub(crate) mod config;
pub(crate) mod fault;
pub(crate) mod finding;
pub(crate) mod format;
pub(crate) mod injection;
pub(crate) mod kernel;
pub(crate) mod lanes;
pub(crate) mod layout;
pub(crate) mod lock;
pub(crate) mod mix;
pub(crate) mod origin;
pub(crate) mod output;
pub(crate) mod random;
pub(crate) mod tensor;
pub(crate) mod types;
