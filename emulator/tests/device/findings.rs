//! Findings of a device: what the host gets undefined, races across operations, leaks.

use crate::kernels::KERNELS;
use crate::support::{Arg, Device, SUCCESS};
use kiln_emulator::FaultKind::{self, Leak, UninitialisedMemory};
use kiln_emulator::{Code, DeviceConfig, Output, findings, last_fault};

fn kinds(device: &Device) -> Vec<(FaultKind, u64)> {
    findings(device.ordinal).iter().map(|finding| (finding.example.kind, finding.count)).collect()
}

#[test]
fn what_the_host_gets_undefined_is_found_once_however_often() {
    let device = Device::new(DeviceConfig { fatal_findings: false, ..DeviceConfig::default() });
    let (nothing, words) = (device.alloc(64), device.upload(&[1u32; 32]));
    assert!(device.download::<u32>(words, 32).iter().all(|&word| word == 1));
    assert!(!kinds(&device).iter().any(|kind| kind.0 == UninitialisedMemory));
    // What a kernel adds to the undefined is undefined as well.
    let add = device.kernel(KERNELS, "add");
    assert_eq!(device.launch(add, 1, 16, 0, &[Arg::U64(nothing), Arg::U32(1)]), SUCCESS);
    (0..3).for_each(|_| drop(device.download::<u32>(nothing, 16)));
    let found = findings(device.ordinal);
    assert!(kinds(&device).contains(&(UninitialisedMemory, 3)), "{found}");
    assert!(last_fault(device.ordinal).is_none());
    // Live objects count as leaks, each kind and size once.
    assert!(kinds(&device).contains(&(Leak, 1)) && found.to_string().contains("device memory of 64 bytes"), "{found}");
    let silent = Device::new(DeviceConfig { silenced: vec![Leak], ..DeviceConfig::default() });
    silent.alloc(64);
    assert!(findings(silent.ordinal).is_empty());
}

#[test]
fn the_first_finding_is_fatal_unless_asked_otherwise() {
    let device = Device::new(DeviceConfig::default());
    let nothing = device.alloc(64);
    let mut word = 0u32;
    // SAFETY: the destination is a local of that size.
    let code = unsafe { (device.api.copy_out)((&raw mut word).cast(), nothing, 4) };
    assert_eq!(code, 719);
    assert_eq!(last_fault(device.ordinal).unwrap().kind, UninitialisedMemory);
    assert!(kinds(&device).contains(&(UninitialisedMemory, 1)));
}

/// As NVIDIA's compiler emits it, with the version that this driver reads.
fn system() -> String {
    include_str!("../nvcc/system.sm_75.ptx").replace(".version 9.5", ".version 9.0")
}

#[test]
fn kernels_print_where_the_configuration_says_before_the_host_has_waited() {
    let output = Output::kept();
    let device = Device::new(DeviceConfig { output: output.clone(), ..DeviceConfig::default() });
    let function = device.kernel(&system(), "says_who");
    assert_eq!(device.launch(function, 1, 2, 0, &[]), SUCCESS);
    assert_eq!(device.synchronize(), SUCCESS);
    assert_eq!(output.text(), "block 0 thread 1 of one\n");
}

#[test]
fn a_failed_assertion_loses_the_context() {
    let device = Device::new(DeviceConfig::default());
    let (function, values) = (device.kernel(&system(), "asserts"), device.upload(&[3u32, 9]));
    assert_eq!(device.launch(function, 1, 2, 0, &[Arg::U64(values), Arg::U32(5)]), SUCCESS);
    (0..2).for_each(|_| assert_eq!(device.synchronize(), Code::ASSERT.raw()));
    let fault = last_fault(device.ordinal).unwrap();
    assert_eq!((fault.kind, fault.thread), (FaultKind::Assertion, Some([1, 0, 0])));
    assert!(fault.message.contains("system.cu:32: void asserts(const int *, int)"), "{fault}");
}
