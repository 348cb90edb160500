//! Kernels of a module, and launching them.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::module::{Module, ModuleInner, c_name};
use super::pointer::DeviceRepr;
use super::stream::Stream;
use super::sys;
use crate::{Error, Result};

/// Bytes of shared memory that a block can have without opting in, on every device.
const SHARED_WITHOUT_OPTIN: u32 = 48 * 1024;

/// A kernel. Keeps its module loaded.
pub struct Function {
    module: Arc<ModuleInner>,
    raw: sys::CUfunction,
    name: String,
    max_threads: u32,
    static_shared: u32,
    registers: u32,
    local: u32,
    /// Whether the limit of dynamic shared memory has been raised.
    opted_in: AtomicBool,
}

// SAFETY: the driver's functions may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// Geometry and kind of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory per block.
    pub dynamic_shared: u32,
    /// Whether all blocks must be resident together.
    pub cooperative: bool,
    /// Whether the kernel may begin before the kernel before it in the stream ends. Both execute `griddepcontrol`.
    pub programmatic: bool,
    /// Blocks per cluster in x, y, z, for kernels that have clusters.
    pub cluster: Option<[u32; 3]>,
}

impl LaunchConfig {
    /// An ordinary launch without dynamic shared memory.
    pub const fn new(grid: [u32; 3], block: [u32; 3]) -> LaunchConfig {
        LaunchConfig { grid, block, dynamic_shared: 0, cooperative: false, programmatic: false, cluster: None }
    }

    /// `blocks` blocks of `threads` threads.
    pub const fn linear(blocks: u32, threads: u32) -> LaunchConfig {
        LaunchConfig::new([blocks, 1, 1], [threads, 1, 1])
    }

    /// With dynamic shared memory.
    #[must_use]
    pub const fn with_dynamic_shared(mut self, bytes: u32) -> LaunchConfig {
        self.dynamic_shared = bytes;
        self
    }

    /// With all blocks resident together.
    #[must_use]
    pub const fn with_cooperative(mut self) -> LaunchConfig {
        self.cooperative = true;
        self
    }

    /// Programmatic dependent launch, sm_90 and later: the kernel may begin before the one before it ends.
    #[must_use]
    pub const fn with_programmatic(mut self) -> LaunchConfig {
        self.programmatic = true;
        self
    }

    /// With blocks in clusters, sm_90 and later.
    #[must_use]
    pub const fn with_cluster(mut self, cluster: [u32; 3]) -> LaunchConfig {
        self.cluster = Some(cluster);
        self
    }
}

/// One argument of a launch: a borrowed value, whose bytes are copied when the launch is enqueued.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct KernelParam<'a> {
    value: *const c_void,
    borrow: PhantomData<&'a ()>,
}

impl<'a> KernelParam<'a> {
    /// The argument with this value, of the type of the kernel's parameter.
    pub const fn new<T: DeviceRepr>(value: &'a T) -> KernelParam<'a> {
        KernelParam { value: std::ptr::from_ref(value).cast(), borrow: PhantomData }
    }
}

impl Module {
    /// The kernel of that entry name, its code brought onto the device now where the driver can.
    pub fn function(&self, name: &str) -> Result<Function> {
        Function::find(self, name)
    }
}

impl Function {
    fn find(module: &Module, name: &str) -> Result<Function> {
        let device = module.device();
        let _quiet = device.context().quiesce()?;
        let c_name = c_name(name)?;
        let api = device.driver().api();
        // SAFETY: the module is live and its context current.
        let raw =
            unsafe { api.module_function(module.raw(), c_name.as_ptr()) }.map_err(|error| match error.code() {
                Some(sys::CUDA_ERROR_NOT_FOUND) => Error::KernelNotFound { kernel: name.to_owned() },
                _ => error,
            })?;
        // Drivers since CUDA 12.2 load code at its first launch, which may wait for the device. Now it may.
        // SAFETY: the function is live.
        match unsafe { api.function_load(raw) } {
            Ok(()) | Err(Error::MissingFunction { .. }) => {}
            Err(error) => return Err(error),
        }
        let read = |attribute| {
            // SAFETY: the function is live.
            let value = unsafe { api.function_attribute(attribute, raw) };
            value.map(|value| u32::try_from(value).unwrap_or(0))
        };
        Ok(Function {
            module: module.inner.clone(),
            raw,
            name: name.to_owned(),
            max_threads: read(sys::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            static_shared: read(sys::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            registers: read(sys::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local: read(sys::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            opted_in: AtomicBool::new(false),
        })
    }

    /// Entry name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Most threads that a block can have.
    pub fn max_threads_per_block(&self) -> u32 {
        self.max_threads
    }

    /// Bytes of static shared memory per block.
    pub fn static_shared(&self) -> u32 {
        self.static_shared
    }

    /// Registers per thread.
    pub fn registers(&self) -> u32 {
        self.registers
    }

    /// Bytes of local memory per thread: arrays, and registers that were spilled.
    pub fn local_bytes(&self) -> u32 {
        self.local
    }

    /// Bytes of dynamic shared memory that a block can have on this device.
    pub fn max_dynamic_shared(&self) -> u32 {
        self.module.device.shared_memory_per_block().saturating_sub(self.static_shared)
    }

    /// Number of blocks of that size that fit one multiprocessor together.
    pub fn blocks_per_multiprocessor(&self, threads: u32, dynamic_shared: u32) -> Result<u32> {
        self.opt_in(dynamic_shared)?;
        self.module.device.bind()?;
        let threads = i32::try_from(threads).map_err(|_| self.bad_block(u64::from(threads)))?;
        let api = self.module.device.driver().api();
        // SAFETY: the function is live.
        let blocks = unsafe { api.occupancy(self.raw, threads, dynamic_shared as usize)? };
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Number of blocks of that size that fit the device together: the largest cooperative grid.
    pub fn resident_blocks(&self, threads: u32, dynamic_shared: u32) -> Result<u32> {
        let blocks = self.blocks_per_multiprocessor(threads, dynamic_shared)?;
        Ok(blocks.saturating_mul(self.module.device.multiprocessors()))
    }

    /// Enqueues the kernel.
    ///
    /// [`cuLaunchKernel`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EXEC.html), or
    /// `cuLaunchCooperativeKernel`, or `cuLaunchKernelEx` for attributes of a launch.
    ///
    /// # Safety
    /// - `params` are the kernel's parameters: as many, in order, of the same types.
    /// - The kernel's accesses lie within buffers, and these live and have no other user until it is done, as
    ///   [`Stream::enqueue`] makes sure.
    /// - With `programmatic`, this kernel and every other of its chain executes `griddepcontrol.wait` before it touches
    ///   memory of earlier work.
    pub unsafe fn launch(&self, stream: &Stream, config: &LaunchConfig, params: &[KernelParam<'_>]) -> Result<()> {
        let device = &self.module.device;
        device.context().check_same(&stream.inner.context, "stream")?;
        self.check(config)?;
        self.opt_in(config.dynamic_shared)?;
        device.bind()?;
        let api = device.driver().api();
        let ([gx, gy, gz], [bx, by, bz], shared) = (config.grid, config.block, config.dynamic_shared);
        // Transparent over pointers, and only read.
        let params = params.as_ptr().cast_mut().cast::<*mut c_void>();
        let extra = std::ptr::null_mut();
        if config.programmatic || config.cluster.is_some() {
            let (attributes, count) = attributes(config);
            let full = sys::CUlaunchConfig {
                gridDimX: gx,
                gridDimY: gy,
                gridDimZ: gz,
                blockDimX: bx,
                blockDimY: by,
                blockDimZ: bz,
                sharedMemBytes: shared,
                hStream: stream.raw(),
                attrs: attributes.as_ptr().cast_mut(),
                numAttrs: count,
            };
            // SAFETY: handles are live and the attributes outlive the call; the rest is the caller's contract.
            return unsafe { api.launch_with(&full, self.raw, params, extra) };
        }
        // SAFETY: handles are live; the rest is the caller's contract.
        unsafe {
            if config.cooperative {
                api.launch_cooperative(self.raw, gx, gy, gz, bx, by, bz, shared, stream.raw(), params)
            } else {
                api.launch(self.raw, gx, gy, gz, bx, by, bz, shared, stream.raw(), params, extra)
            }
        }
    }

    /// The driver's handle, live as long as `self`.
    pub fn raw(&self) -> sys::CUfunction {
        self.raw
    }

    /// Refuses empty grids and blocks that are too large: the driver would not say why.
    fn check(&self, config: &LaunchConfig) -> Result<()> {
        let threads: u64 = config.block.iter().fold(1, |product, side| product.saturating_mul(u64::from(*side)));
        if threads == 0 || threads > u64::from(self.max_threads) {
            return Err(self.bad_block(threads));
        }
        if config.grid.contains(&0) {
            return Err(Error::InvalidArgument {
                what: format!("grid of `{}`", self.name),
                found: format!("{:?}", config.grid),
                expected: "at least one block in each dimension".to_owned(),
            });
        }
        Ok(())
    }

    #[cold]
    fn bad_block(&self, threads: u64) -> Error {
        Error::InvalidArgument {
            what: format!("block of `{}`", self.name),
            found: format!("{threads} threads"),
            expected: format!("1 to {} threads", self.max_threads),
        }
    }

    /// Raises the kernel's limit of dynamic shared memory to the device's, once it is needed. Threads need no lock for
    /// that: all of them set the same value.
    fn opt_in(&self, dynamic: u32) -> Result<()> {
        let needed = u64::from(self.static_shared) + u64::from(dynamic);
        if needed <= u64::from(SHARED_WITHOUT_OPTIN) || dynamic == 0 {
            return Ok(());
        }
        let limit = self.module.device.shared_memory_per_block();
        if needed > u64::from(limit) {
            let fixed = u64::from(self.static_shared);
            return Err(Error::SharedMemory { kernel: self.name.clone(), needed, fixed, limit: u64::from(limit) });
        }
        if self.opted_in.load(Ordering::Acquire) {
            return Ok(());
        }
        self.module.device.bind()?;
        let most = i32::try_from(self.max_dynamic_shared()).unwrap_or(i32::MAX);
        let attribute = sys::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is live.
        unsafe { self.module.device.driver().api().function_set_attribute(self.raw, attribute, most)? };
        self.opted_in.store(true, Ordering::Release);
        Ok(())
    }
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Function")
            .field("name", &self.name)
            .field("registers", &self.registers)
            .field("static_shared", &self.static_shared)
            .finish_non_exhaustive()
    }
}

/// Attributes of a launch: the list, and how many of it are set.
fn attributes(config: &LaunchConfig) -> ([sys::CUlaunchAttribute; 3], u32) {
    let attribute = |id, value| sys::CUlaunchAttribute { id, pad: [0; 4], value };
    let none = attribute(0, sys::CUlaunchAttributeValue { pad: [0; 64] });
    let mut list = [none; 3];
    let mut count = 0;
    let mut push = |id, set: &dyn Fn(&mut sys::CUlaunchAttributeValue)| {
        list[count].id = id;
        set(&mut list[count].value);
        count += 1;
    };
    if config.cooperative {
        push(sys::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &|value| value.cooperative = 1);
    }
    if config.programmatic {
        push(sys::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, &|value| {
            value.programmaticStreamSerializationAllowed = 1;
        });
    }
    if let Some([x, y, z]) = config.cluster {
        push(sys::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &|value| {
            value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
        });
    }
    (list, count as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NVIDIA's header gives these sizes on 64-bit platforms.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn launch_attributes_have_the_layout_of_the_abi() {
        assert_eq!(size_of::<sys::CUlaunchAttribute>(), 72);
        assert_eq!(std::mem::offset_of!(sys::CUlaunchAttribute, value), 8);
        assert_eq!(size_of::<sys::CUlaunchConfig>(), 56);
        assert_eq!(std::mem::offset_of!(sys::CUlaunchConfig, hStream), 32);
    }

    #[test]
    fn each_wish_of_a_launch_becomes_one_attribute() {
        let config = LaunchConfig::linear(4, 32);
        assert_eq!(attributes(&config).1, 0);
        let (list, count) = attributes(&config.with_cooperative().with_programmatic().with_cluster([2, 1, 1]));
        let ids: Vec<u32> = list[..count as usize].iter().map(|attribute| attribute.id).collect();
        assert_eq!(ids, [2, 6, 4]);
        // SAFETY: the third attribute was set to a cluster's dimensions.
        let cluster = unsafe { list[2].value.clusterDim };
        assert_eq!([cluster.x, cluster.y, cluster.z], [2, 1, 1]);
    }
}
