//! Launches of kernels and host functions.

use std::ffi::{c_int, c_uint, c_void};

use crate::device::abi::{Handle, HostFunction, In, Outcome, in_context, initialised};
use crate::device::codes::Code;
use crate::device::handles;
use crate::device::launch::{Extra, KernelLaunch, Parameters, parameters};
use crate::device::stream;
use crate::device::work::Work;

/// `CUlaunchAttribute`: a number, padding to 8 bytes, 64 bytes of value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Attribute {
    id: c_uint,
    padding: [u8; 4],
    value: [u32; 16],
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Config {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    dynamic_shared: c_uint,
    stream: Handle,
    attributes: In<Attribute>,
    attribute_count: c_uint,
}

fn launch(function: Handle, geometry: Geometry, stream: Handle, pointers: Parameters, extra: Extra) -> Outcome {
    let function = handles::function(function)?;
    let params = parameters(&function, pointers, extra)?;
    let Geometry { grid, block, dynamic_shared, cooperative, cluster, programmatic } = geometry;
    KernelLaunch { function, grid, block, dynamic_shared, params, cooperative, cluster, programmatic }.queue(stream)
}

#[derive(Default)]
struct Geometry {
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: u32,
    cooperative: bool,
    cluster: Option<[u32; 3]>,
    programmatic: bool,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelNodeParams {
    function: Handle,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    dynamic_shared: c_uint,
    pointers: Parameters,
    extra: Extra,
    kernel: Handle,
    context: Handle,
}

impl KernelNodeParams {
    /// The launch that they describe, validated.
    pub(super) fn launch(self) -> Outcome<KernelLaunch> {
        let function = handles::function(self.function)?;
        let params = parameters(&function, self.pointers, self.extra)?;
        let launch = KernelLaunch {
            function,
            grid: self.grid,
            block: self.block,
            dynamic_shared: self.dynamic_shared,
            params,
            cooperative: false,
            cluster: None,
            programmatic: false,
        };
        launch.validate()?;
        Ok(launch)
    }
}

const _: () = assert!(size_of::<Attribute>() == 72 && size_of::<c_int>() == 4);

api! {
    fn cuLaunchKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, dynamic_shared: c_uint, stream: Handle, pointers: Parameters, extra: Extra
    ) => in_context(|_| {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(function, Geometry { grid, block, dynamic_shared, ..Geometry::default() }, stream, pointers, extra)
    });

    fn cuLaunchCooperativeKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, dynamic_shared: c_uint, stream: Handle, pointers: Parameters
    ) => in_context(|_| {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let geometry = Geometry { grid, block, dynamic_shared, cooperative: true, ..Geometry::default() };
        launch(function, geometry, stream, pointers, Extra::null())
    });

    fn cuLaunchKernelEx(config: In<Config>, function: Handle, pointers: Parameters, extra: Extra) => in_context(|_| {
        let config = config.get()?;
        let mut geometry = Geometry {
            grid: config.grid,
            block: config.block,
            dynamic_shared: config.dynamic_shared,
            ..Geometry::default()
        };
        for index in 0..config.attribute_count as usize {
            let Attribute { id, value, .. } = config.attributes.at(index)?;
            match id {
                2 => geometry.cooperative = value[0] != 0,
                4 => geometry.cluster = Some([value[0], value[1], value[2]]),
                6 => geometry.programmatic = value[0] != 0,
                // Nothing, access policy, synchronisation policy, cluster scheduling, priority, memory domains,
                // preferred cluster and carve-out: hints that change no result.
                0 | 1 | 3 | 5 | 8..=11 | 14 => {}
                // Programmatic and launch-completion events, updatable nodes.
                7 | 12 | 13 => return Err(Code::NOT_SUPPORTED),
                _ => return Err(Code::INVALID_VALUE),
            }
        }
        launch(function, geometry, config.stream, pointers, extra)
    });

    fn cuLaunchHostFunc(stream: Handle, function: Option<extern "C" fn(*mut c_void)>, data: usize) => initialised(|| {
        let (context, id) = stream::resolve(stream)?;
        context.check()?;
        let function = function.ok_or(Code::INVALID_VALUE)?;
        context.enqueue(id, Work::Call(HostFunction { function, data }), Vec::new()).map(drop)
    });
}
