//! A CUDA device in software: runs PTX text on the CPU and checks it.

mod device;

pub use device::{
    Call, Code, DeviceConfig, FaultInjection, LaunchRecord, Leak, add_device, clear_reports, inject, last_fault, leaks,
    reports, resolve,
};
