//! Initialisation, error names, devices.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr::null;

use crate::device::abi::{Out, TextOut, always, initialised, mark_initialised};
use crate::device::attributes;
use crate::device::codes::Code;
use crate::device::registry::{device, device_count};

/// The CUDA release whose driver this behaves like, as `cuDriverGetVersion` says it.
const VERSION: c_int = 13000;

api! {
    fn cuInit(flags: c_uint) => always(|| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if device_count() == 0 {
            return Err(Code::NO_DEVICE);
        }
        mark_initialised();
        Ok(())
    });

    fn cuDriverGetVersion(version: Out<c_int>) => always(|| version.fill(|| Ok(VERSION)));

    fn cuGetErrorName(error: u32, text: Out<*const c_char>) => always(|| match Code::texts(error) {
        Some((name, _)) => text.fill(|| Ok(name.as_ptr())),
        None => text.fill(|| Ok(null())).and(Err(Code::INVALID_VALUE)),
    });

    fn cuGetErrorString(error: u32, text: Out<*const c_char>) => always(|| match Code::texts(error) {
        Some((_, sentence)) => text.fill(|| Ok(sentence.as_ptr())),
        None => text.fill(|| Ok(null())).and(Err(Code::INVALID_VALUE)),
    });

    fn cuDeviceGetCount(count: Out<c_int>) =>
        initialised(|| count.fill(|| Ok(c_int::try_from(device_count()).unwrap_or(c_int::MAX))));
    fn cuDeviceGet(handle: Out<c_int>, ordinal: c_int) =>
        initialised(|| handle.fill(|| device(ordinal).map(|device| device.ordinal)));

    fn cuDeviceGetName(name: TextOut, length: c_int, ordinal: c_int) => initialised(|| {
        let capacity = usize::try_from(length).map_err(|_| Code::INVALID_VALUE)?;
        if name.write(&device(ordinal)?.config.name, capacity) == 0 { Err(Code::INVALID_VALUE) } else { Ok(()) }
    });

    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, ordinal: c_int) => initialised(|| {
        let device = device(ordinal)?;
        value.fill(|| attributes::value(&device.config, ordinal, attribute).ok_or(Code::INVALID_VALUE))
    });

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, ordinal: c_int) =>
        initialised(|| bytes.fill(|| Ok(usize::try_from(device(ordinal)?.config.memory_bytes).unwrap_or(usize::MAX))));

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, ordinal: c_int) => initialised(|| {
        uuid.fill(|| {
            let mut bytes = *b"kiln emulate\0\0\0\0";
            bytes[12..].copy_from_slice(&device(ordinal)?.ordinal.to_be_bytes());
            Ok(bytes)
        })
    });

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, ordinal: c_int) => cuDeviceGetUuid(uuid, ordinal);
}
