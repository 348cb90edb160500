//! Memory that both sides see, copies whose sides the addresses tell, and questions about addresses.
#![allow(non_snake_case)]

use super::super::abi::{Handle, Outcome, Ptr};
use super::super::command::{End, Origin, Side};
use super::super::context::Context;
use super::super::{Code, Stream};
use super::{in_context, on_stream};
use std::ffi::{c_int, c_uint, c_void};

/// Rows of a pitched allocation begin on multiples of this.
const PITCH: usize = 512;

/// The end of a copy that an address names: the device's memory if it lies there, else the host's.
fn end(stream: &Stream, address: u64, bytes: usize) -> End {
    match stream.context.memory.range(address, bytes as u64) {
        Ok(_) => End::Device(address),
        Err(_) => End::Host(address as usize),
    }
}

fn copy(stream: &Stream, to: u64, from: u64, bytes: usize, synchronous: bool) -> Outcome {
    let (to, from) = (end(stream, to, bytes), end(stream, from, bytes));
    stream.copy(to, from, bytes, synchronous)
}

/// A copy between contexts, which have memories of their own: only within one.
fn within_one(to: Handle, from: Handle) -> Outcome {
    if to == from { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
}

/// Checks a hint about managed memory. Hints change nothing: the memory is one.
fn check_managed(context: &Context, address: u64, bytes: usize) -> Outcome {
    let state = context.state();
    let (_, start, buffer) = state.holding(address).ok_or(Code::INVALID_VALUE)?;
    let fits = bytes <= buffer.bytes - (address - start) as usize;
    if buffer.origin == Origin::Managed && fits { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

/// The value of a `CUpointer_attribute`, written as the type that it has.
fn pointer_attribute(context: &Context, number: u32, out: usize, address: u64) -> Outcome {
    let (range, _) = match context.memory.range(address, 1) {
        Ok((range, _)) => (Some((range.base, range.size)), ()),
        Err(_) => (None, ()),
    };
    let state = context.state();
    let buffer = state.holding(address);
    if range.is_none() && buffer.is_none() {
        return Err(Code::INVALID_VALUE);
    }
    let (side, start, bytes, seen, origin) = match (buffer, range) {
        (Some((side, start, buffer)), _) => (side, start, buffer.bytes as u64, buffer.device, buffer.origin),
        (None, Some((base, size))) => (Side::Device, base, size, base, Origin::Allocated),
        (None, None) => return Err(Code::INVALID_VALUE),
    };
    // An address of either side lies in the allocation, at the same offset.
    let own = if side == Side::Host { start } else { seen };
    let offset = if address.wrapping_sub(own) < bytes { address - own } else { address - seen };
    let word = |value: u32| Ptr::from_address(out).set(0, value);
    let long = |value: u64| Ptr::from_address(out).set(0, value);
    match number {
        1 => long(context.handle as u64),
        2 => word(if side == Side::Host { 1 } else { 2 }),
        3 => long(seen + offset),
        4 if side == Side::Host || origin == Origin::Managed => long(start + offset),
        6 => word(0),
        7 => long(seen), // addresses are never used twice
        8 => word((origin == Origin::Managed).into()),
        9 => word(context.device.ordinal as u32),
        10 | 15 => word(0),
        11 => long(seen),
        12 => long(bytes),
        13 => word(1),
        _ => Err(Code::INVALID_VALUE),
    }
}

api! {
    fn cuMemAllocHost_v2(address: Ptr<u64>, bytes: usize) =>
        in_context(|context| address.fill(|| context.allocate("cuMemAllocHost", Side::Host, bytes, 0)));

    fn cuMemAllocPitch_v2(address: Ptr<u64>, pitch: Ptr<usize>, width: usize, height: usize, element: c_uint) =>
        in_context(|context| {
            if !matches!(element, 4 | 8 | 16) || width == 0 {
                return Err(Code::INVALID_VALUE);
            }
            let row = width.checked_next_multiple_of(PITCH).ok_or(Code::INVALID_VALUE)?;
            let bytes = row.checked_mul(height).ok_or(Code::INVALID_VALUE)?;
            pitch.set(0, row)?;
            address.fill(|| context.allocate("cuMemAllocPitch", Side::Device, bytes, 0))
        });

    fn cuMemHostGetFlags(flags: Ptr<c_uint>, host: u64) => in_context(|context| {
        let state = context.state();
        let (side, _, buffer) = state.holding(host).ok_or(Code::INVALID_VALUE)?;
        if side == Side::Host { flags.set(0, buffer.flags) } else { Err(Code::INVALID_VALUE) }
    });

    fn cuMemHostRegister_v2(host: usize, bytes: usize, flags: c_uint) => in_context(|context| match flags {
        0..=3 => context.register(host, bytes, flags),
        // Memory of other devices, read-only memory.
        4..=15 => Err(Code::NOT_SUPPORTED),
        16.. => Err(Code::INVALID_VALUE),
    });

    fn cuMemHostUnregister(host: usize) => in_context(|context| context.unregister(host));

    fn cuMemAllocManaged(address: Ptr<u64>, bytes: usize, flags: c_uint) => in_context(|context| match flags {
        1 | 2 => address.fill(|| context.allocate_managed(bytes, flags)),
        _ => Err(Code::INVALID_VALUE),
    });

    fn cuMemAdvise(address: u64, bytes: usize, _advice: c_uint, _device: c_int) =>
        in_context(|context| check_managed(context, address, bytes));
    /// The location is a structure of two words, passed as one long word.
    fn cuMemAdvise_v2(address: u64, bytes: usize, _advice: c_uint, _location: u64) =>
        in_context(|context| check_managed(context, address, bytes));
    fn cuMemPrefetchAsync(address: u64, bytes: usize, _device: c_int, stream: Handle) =>
        on_stream(stream, |stream| check_managed(&stream.context, address, bytes));
    fn cuMemPrefetchAsync_v2(address: u64, bytes: usize, _location: u64, flags: c_uint, stream: Handle) =>
        on_stream(stream, |stream| match flags {
            0 => check_managed(&stream.context, address, bytes),
            _ => Err(Code::INVALID_VALUE),
        });
    fn cuStreamAttachMemAsync(stream: Handle, address: u64, bytes: usize, flags: c_uint) =>
        on_stream(stream, |stream| match flags {
            1 | 2 | 4 => check_managed(&stream.context, address, bytes),
            _ => Err(Code::INVALID_VALUE),
        });

    fn cuMemcpy(to: u64, from: u64, bytes: usize) => on_stream(0, |stream| copy(stream, to, from, bytes, true));
    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) =>
        on_stream(stream, |stream| copy(stream, to, from, bytes, false));
    fn cuMemcpyPeer(to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize) =>
        on_stream(0, |stream| {
            within_one(to_context, from_context)?;
            stream.copy(End::Device(to), End::Device(from), bytes, true)
        });
    fn cuMemcpyPeerAsync(
        to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize, stream: Handle
    ) => on_stream(stream, |stream| {
        within_one(to_context, from_context)?;
        stream.copy(End::Device(to), End::Device(from), bytes, false)
    });

    /// Null is allowed for what is not asked for.
    fn cuMemGetAddressRange_v2(base: Ptr<u64>, bytes: Ptr<usize>, address: u64) => in_context(|context| {
        let (range, _) = context.memory.range(address, 1).map_err(|_| Code::NOT_FOUND)?;
        if !base.is_null() {
            base.set(0, range.base)?;
        }
        if bytes.is_null() { Ok(()) } else { bytes.set(0, range.size as usize) }
    });

    fn cuPointerGetAttribute(out: usize, attribute: c_uint, address: u64) =>
        in_context(|context| pointer_attribute(context, attribute, out, address));

    /// An attribute that the memory lacks is null, and no error.
    fn cuPointerGetAttributes(count: c_uint, attributes: Ptr<c_uint>, out: Ptr<*mut c_void>, address: u64) =>
        in_context(|context| {
            (0..count as usize).try_for_each(|index| {
                let (number, out) = (attributes.get(index)?, out.get(index)? as usize);
                let written = pointer_attribute(context, number, out, address);
                let is_word = matches!(number, 2 | 6 | 8 | 9 | 10 | 13 | 15);
                written.or_else(|_| match is_word {
                    true => Ptr::<u32>::from_address(out).set(0, 0),
                    false => Ptr::<u64>::from_address(out).set(0, 0),
                })
            })
        });
}
