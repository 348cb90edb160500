//! Modules, functions, occupancy.

use std::ffi::{c_int, c_uint};

use crate::device::abi::{Handle, In, Out, Slots, Text, TextOut, in_context, initialised};
use crate::device::codes::Code;
use crate::device::handles;
use crate::device::machine;
use crate::device::module;

/// The `CUjit_option`s that are answered; the others tune a compiler that is not there.
mod option {
    pub(super) const WALL_TIME: u32 = 2;
    pub(super) const INFO_LOG: u32 = 3;
    pub(super) const INFO_LOG_SIZE: u32 = 4;
    pub(super) const ERROR_LOG: u32 = 5;
    pub(super) const ERROR_LOG_SIZE: u32 = 6;
}

#[derive(Default)]
struct Log {
    buffer: usize,
    size: Option<(usize, usize)>,
}

impl Log {
    fn write(&self, text: &str, values: Slots) -> Result<(), Code> {
        let Some((slot, size)) = self.size else { return Ok(()) };
        let written = TextOut::from_address(self.buffer).write(text, size & u32::MAX as usize);
        values.set(slot, if text.is_empty() { 0 } else { written })
    }
}

api! {
    fn cuModuleLoadData(handle: Out<Handle>, image: Text) => in_context(|context| {
        let image = image.get()?.to_bytes();
        handle.fill(|| module::load(context, image).map_err(|failure| failure.code))
    });

    /// Log sizes are passed in `values` themselves: the capacity goes in, the number of bytes written comes back.
    fn cuModuleLoadDataEx(handle: Out<Handle>, image: Text, count: c_uint, options: In<u32>, values: Slots) =>
        in_context(|context| {
            let image = image.get()?.to_bytes();
            let (mut info, mut error) = (Log::default(), Log::default());
            for index in 0..count as usize {
                match options.at(index)? {
                    option::INFO_LOG => info.buffer = values.get(index)?,
                    option::INFO_LOG_SIZE => info.size = Some((index, values.get(index)?)),
                    option::ERROR_LOG => error.buffer = values.get(index)?,
                    option::ERROR_LOG_SIZE => error.size = Some((index, values.get(index)?)),
                    option::WALL_TIME => values.set(index, 0)?,
                    _ => {}
                }
            }
            handle.fill(|| match module::load(context, image) {
                Ok(handle) => {
                    info.write("", values)?;
                    error.write("", values)?;
                    Ok(handle)
                }
                Err(failure) => {
                    info.write("", values)?;
                    error.write(&failure.log, values)?;
                    Err(failure.code)
                }
            })
        });

    fn cuModuleUnload(handle: Handle) => initialised(|| {
        let module = handles::module(handle)?;
        module::unload(handle)?;
        module.context.check()
    });

    fn cuModuleGetFunction(function: Out<Handle>, handle: Handle, name: Text) => in_context(|_| {
        let module = handles::module(handle)?;
        let name = name.get()?.to_str().map_err(|_| Code::NOT_FOUND)?;
        function.fill(|| module.function(name))
    });

    fn cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, handle: Handle, name: Text) => in_context(|_| {
        let module = handles::module(handle)?;
        let name = name.get()?.to_str().map_err(|_| Code::NOT_FOUND)?;
        let (found, size) = machine::global(&module.module, name).ok_or(Code::NOT_FOUND)?;
        address.offer(found);
        bytes.offer(size as usize);
        Ok(())
    });

    fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_uint, function: Handle) => in_context(|_| {
        let function = handles::function(function)?;
        value.fill(|| function.attribute(attribute))
    });

    fn cuFuncSetAttribute(function: Handle, attribute: c_uint, value: c_int) => in_context(|_| {
        let function = handles::function(function)?;
        match attribute {
            8 => function.set_max_dynamic_shared(value),
            9 if (-1..=100).contains(&value) => Ok(()), // preferred carve-out: a hint
            14 | 15 => Ok(()),                          // non-portable clusters, their scheduling: hints here
            _ => Err(Code::INVALID_VALUE),
        }
    });

    /// Loads a function ahead of its launch; [`cuModuleGetFunction`] has done that already.
    fn cuFuncLoad(function: Handle) => in_context(|_| handles::function(function).map(drop));

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>, function: Handle, block_size: c_int, dynamic_shared: usize
    ) => in_context(|_| {
        let function = handles::function(function)?;
        let threads = u32::try_from(block_size).ok().filter(|&n| n > 0).ok_or(Code::INVALID_VALUE)?;
        let shared = u32::try_from(dynamic_shared).unwrap_or(u32::MAX);
        blocks.fill(|| Ok(function.occupancy(threads, shared) as c_int))
    });

    /// Flag 1 asks for the figure without a caching override that these chips do not have.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int>, function: Handle, block_size: c_int, dynamic_shared: usize, flags: c_uint
    ) => match flags {
        0 | 1 => cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_size, dynamic_shared),
        _ => Code::INVALID_VALUE.raw(),
    };
}
