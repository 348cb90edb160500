//! The general kernels on one device: loaded once, every function resolved before anything runs.

use std::ffi::CStr;

use crate::baked::{BakedKernel, BakedKernels, BakedModule, KERNELS, no_module};
use crate::driver::{Device, Function, KernelParam, LaunchConfig, Module, Stream};
use crate::{Error, Result};

/// The general kernels, loaded on one device.
#[derive(Debug)]
pub struct Ops {
    device: Device,
    /// For calls that block.
    pub(super) stream: Stream,
    kernels: Vec<Loaded>,
}

/// A kernel that is loaded.
#[derive(Debug)]
pub(super) struct Loaded {
    function: Function,
    baked: &'static BakedKernel,
    /// Blocks that the device can hold at once.
    pub(super) resident: u32,
}

impl Ops {
    /// Loads the kernels that kiln itself bakes. Those whose text depends on the head size: the norm per head for every
    /// multiple of 32 up to 256, RoPE for 64, 128 and 256, attention for these, 80 and 96.
    ///
    /// # Errors
    /// [`Error::KernelNotBaked`] if nothing was baked for this device or an earlier one, [`Error::DeviceTooOld`] if
    /// nothing can be; what the driver says of the module.
    pub fn open(device: &Device) -> Result<Ops> {
        // SAFETY: kiln's own bake.
        unsafe { Ops::with_kernels(device, &[&KERNELS]) }
    }

    /// Loads kernels from several bakes, such as kiln's own [`KERNELS`] and one with other head sizes. Kernels are found
    /// by name and parameters; of two that are equal in both, the first is taken.
    ///
    /// # Errors
    /// As [`Ops::open`].
    ///
    /// # Safety
    /// Each is what `kiln_codegen::Bake` wrote: the PTX of a kernel does what its name says, with the parameters listed.
    pub unsafe fn with_kernels(device: &Device, bakes: &[&'static BakedKernels]) -> Result<Ops> {
        let mut kernels = Vec::new();
        for bake in bakes {
            let module = best(device, bake)?;
            let text = CStr::from_bytes_with_nul(module.ptx.as_bytes()).map_err(|error| Error::InvalidArgument {
                what: "PTX of a bake".to_owned(),
                found: error.to_string(),
                expected: "text with one NUL, at its end".to_owned(),
            })?;
            let loaded = Module::from_ptx(device, text)?;
            for baked in module.kernels {
                let function = loaded.function(baked.name)?;
                // Also opts in to the shared memory, which launches then need not do.
                let resident = function.resident_blocks(baked.block, baked.dynamic_shared)?;
                kernels.push(Loaded { function, baked, resident });
            }
        }
        Ok(Ops { device: device.clone(), stream: device.stream()?, kernels })
    }

    /// The device the kernels are loaded on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The kernel of that name whose parameters have these sizes. `bake` is what bakes it.
    pub(super) fn find(&self, name: &str, params: &[u32], bake: &str) -> Result<&Loaded> {
        let found = self.kernels.iter().find(|kernel| kernel.baked.name == name && kernel.baked.params == params);
        found.ok_or_else(|| not_baked(name.to_owned(), bake))
    }

    /// As [`Ops::find`], for the kernel `family` followed by `_` and the head size.
    pub(super) fn find_for(&self, family: &str, head_dim: u32, params: &[u32], bake: &str) -> Result<&Loaded> {
        let is = |name: &str| {
            let size = name.strip_prefix(family).and_then(|rest| rest.strip_prefix('_'));
            size.and_then(|size| size.parse().ok()) == Some(head_dim)
        };
        let found = self.kernels.iter().find(|kernel| is(kernel.baked.name) && kernel.baked.params == params);
        found.ok_or_else(|| not_baked(format!("{family}_{head_dim}"), bake))
    }

    /// The attention kernel `family` followed by `_` and the head size that suits groups of `group` query heads, and how
    /// many of them a block of it works on: 4, or 8 where `_group8` ends its name. A block that is too wide computes in
    /// vain; one that is too narrow has the cache read again by others.
    pub(super) fn find_attention(
        &self,
        family: &str,
        head_dim: u32,
        group: u32,
        params: &[u32],
        bake: &str,
    ) -> Result<(&Loaded, u32)> {
        let suited = |suffix: &str| {
            let is = |name: &str| {
                let size = name.strip_prefix(family).and_then(|rest| rest.strip_prefix('_'));
                let size = size.and_then(|size| size.strip_suffix(suffix));
                size.and_then(|size| size.parse().ok()) == Some(head_dim)
            };
            self.kernels.iter().find(|kernel| is(kernel.baked.name) && kernel.baked.params == params)
        };
        let narrow = || suited("").map(|kernel| (kernel, 4));
        let wide = || suited("_group8").map(|kernel| (kernel, 8));
        let found = if group > 4 { wide().or_else(narrow) } else { narrow().or_else(wide) };
        found.ok_or_else(|| {
            let wide = if group > 4 { ".with_wide_groups()" } else { "" };
            not_baked(format!("{family}_{head_dim}"), &format!("{bake}{wide}"))
        })
    }
}

#[cold]
fn not_baked(kernel: String, bake: &str) -> Error {
    let setting = format!("`Bake::kernel({bake})` in a build script, and `Ops::with_kernels`");
    Error::KernelNotBaked { kernel, setting }
}

/// The module for the device, or for the nearest one before it.
fn best(device: &Device, bake: &BakedKernels) -> Result<&'static BakedModule> {
    let runs = bake.modules.iter().filter(|module| module.sm <= device.sm());
    runs.max_by_key(|module| module.sm).ok_or_else(|| no_module("the general kernels", device.sm()))
}

impl Loaded {
    /// Threads of a block.
    pub(super) fn block(&self) -> u32 {
        self.baked.block
    }

    /// Enqueues it.
    ///
    /// # Safety
    /// As for [`Function::launch`].
    pub(super) unsafe fn launch(&self, stream: &Stream, grid: [u32; 3], params: &[KernelParam<'_>]) -> Result<()> {
        let config = LaunchConfig::new(grid, [self.baked.block, 1, 1]).with_dynamic_shared(self.baked.dynamic_shared);
        // SAFETY: the caller's contract.
        unsafe { self.function.launch(stream, &config, params) }
    }
}
