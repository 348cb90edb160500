//! Stream-ordered allocation, and the pools that it is said to come from: all are the device's memory.
#![allow(non_snake_case)]

use super::super::abi::{Handle, Outcome, Ptr, initialised};
use super::super::registry::{Device, device};
use super::super::{Code, handles, lock};
use super::{in_context, on_stream};
use std::collections::HashMap;
use std::ffi::{c_int, c_uint};
use std::sync::Mutex;

/// A pool of memory.
struct Pool {
    ordinal: i32,
    /// Whether the program made it.
    own: bool,
    /// Values of `CUmemPool_attribute` that were set.
    set: Mutex<HashMap<u32, u64>>,
}

fn create(ordinal: i32, own: bool) -> Handle {
    handles::insert(0, None, Pool { ordinal, own, set: Mutex::default() })
}

/// The device's pool, made when it is first asked for.
fn default_pool(device: &Device) -> Handle {
    *device.pool.get_or_init(|| create(device.ordinal, false))
}

/// Bytes of an attribute's value.
fn is_word(attribute: u32) -> bool {
    attribute <= 3
}

fn attribute(pool: &Pool, attribute: u32) -> Outcome<u64> {
    let used = || Ok(device(pool.ordinal)?.context().map_or(0, |context| context.memory.used()));
    match attribute {
        1..=3 => Ok(lock(&pool.set).get(&attribute).copied().unwrap_or(1)),
        4 => Ok(lock(&pool.set).get(&attribute).copied().unwrap_or(0)),
        // Reserved and used, now and at most: the most is not kept.
        5..=8 => used(),
        _ => Err(Code::INVALID_VALUE),
    }
}

api! {
    fn cuMemAllocAsync(address: Ptr<u64>, bytes: usize, stream: Handle) =>
        on_stream(stream, |stream| address.fill(|| stream.allocate(bytes)));

    fn cuMemAllocFromPoolAsync(address: Ptr<u64>, bytes: usize, pool: Handle, stream: Handle) =>
        on_stream(stream, |stream| {
            let pool = handles::get::<Pool>(pool)?;
            if pool.ordinal != stream.context.device.ordinal {
                return Err(Code::INVALID_VALUE);
            }
            address.fill(|| stream.allocate(bytes))
        });

    fn cuMemFreeAsync(address: u64, stream: Handle) => on_stream(stream, |stream| stream.free(address));

    fn cuDeviceGetDefaultMemPool(pool: Ptr<Handle>, ordinal: c_int) =>
        initialised(|| pool.fill(|| Ok(default_pool(&*device(ordinal)?))));
    fn cuDeviceGetMemPool(pool: Ptr<Handle>, ordinal: c_int) =>
        initialised(|| pool.fill(|| Ok(default_pool(&*device(ordinal)?))));

    /// Takes the default pool only: which one a stream allocates from can be told by nothing else.
    fn cuDeviceSetMemPool(ordinal: c_int, pool: Handle) => initialised(|| {
        handles::get::<Pool>(pool)?;
        if default_pool(&*device(ordinal)?) == pool { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
    });

    /// The properties begin with what is allocated, the handles that it can be exported by, and where it lies: a type and
    /// an ordinal.
    fn cuMemPoolCreate(pool: Ptr<Handle>, properties: Ptr<u32>) => initialised(|| {
        let [allocation, exported, place, ordinal] = [0, 1, 2, 3].map(|index| properties.get(index));
        if (allocation?, exported?, place?) != (1, 0, 1) {
            return Err(Code::NOT_SUPPORTED);
        }
        let device = device(ordinal? as i32)?;
        pool.fill(|| Ok(create(device.ordinal, true)))
    });

    fn cuMemPoolDestroy(pool: Handle) => initialised(|| {
        if !handles::get::<Pool>(pool)?.own {
            return Err(Code::INVALID_VALUE);
        }
        handles::remove::<Pool>(pool).map(drop)
    });

    fn cuMemPoolTrimTo(pool: Handle, _bytes: usize) => initialised(|| handles::get::<Pool>(pool).map(drop));

    fn cuMemPoolGetAttribute(pool: Handle, number: c_uint, value: usize) => initialised(|| {
        let found = attribute(&*handles::get::<Pool>(pool)?, number)?;
        match is_word(number) {
            true => Ptr::<u32>::from_address(value).set(0, found as u32),
            false => Ptr::<u64>::from_address(value).set(0, found),
        }
    });

    fn cuMemPoolSetAttribute(pool: Handle, number: c_uint, value: usize) => initialised(|| {
        let pool = handles::get::<Pool>(pool)?;
        let value = match is_word(number) {
            true => Ptr::<u32>::from_address(value).get(0)?.into(),
            false => Ptr::<u64>::from_address(value).get(0)?,
        };
        match number {
            1..=4 => _ = lock(&pool.set).insert(number, value),
            // The most so far may be set back to zero.
            6 | 8 if value == 0 => {}
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    });

    /// A pool's own device has access, and no other.
    fn cuMemPoolSetAccess(pool: Handle, access: Ptr<[u32; 3]>, count: usize) => in_context(|_| {
        let pool = handles::get::<Pool>(pool)?;
        (0..count).try_for_each(|index| match access.get(index)? {
            [1, ordinal, 3] if ordinal as i32 == pool.ordinal => Ok(()),
            [1, ordinal, 0] if ordinal as i32 != pool.ordinal => Ok(()),
            _ => Err(Code::NOT_SUPPORTED),
        })
    });
}
