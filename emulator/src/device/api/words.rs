//! Names and sentences of results, and what has nothing to do here: profilers and peers.
#![allow(non_snake_case)]

use super::super::abi::{Ptr, always, initialised};
use super::super::registry::device;
use super::super::{Code, Outcome};
use std::ffi::{CStr, c_char, c_int, c_uint};

/// Writes one of a result's texts, or null and an error for a number that is none.
fn text(
    result: u32,
    out: Ptr<*const c_char>,
    which: impl Fn((&'static CStr, &'static CStr)) -> &'static CStr,
) -> Outcome {
    match Code::texts(result) {
        Some(texts) => out.set(0, which(texts).as_ptr()),
        None => out.set(0, std::ptr::null()).and(Err(Code::INVALID_VALUE)),
    }
}

api! {
    fn cuGetErrorName(result: c_uint, name: Ptr<*const c_char>) => always(|| text(result, name, |texts| texts.0));
    fn cuGetErrorString(result: c_uint, sentence: Ptr<*const c_char>) =>
        always(|| text(result, sentence, |texts| texts.1));

    fn cuProfilerStart() => initialised(|| Ok(()));
    fn cuProfilerStop() => initialised(|| Ok(()));

    fn cuDeviceComputeCapability(major: Ptr<c_int>, minor: Ptr<c_int>, ordinal: c_int) => initialised(|| {
        let (x, y) = device(ordinal)?.config.sm;
        major.set(0, x as c_int)?;
        minor.set(0, y as c_int)
    });

    /// Emulated devices have memories of their own.
    fn cuDeviceCanAccessPeer(can: Ptr<c_int>, ordinal: c_int, peer: c_int) => initialised(|| {
        device(ordinal)?;
        device(peer)?;
        can.set(0, 0)
    });
}
