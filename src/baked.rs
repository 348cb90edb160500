//! Baked kernels: PTX, and the descriptors by which the host launches it. Those of kiln's own bake and of anybody's are
//! equals.

pub use crate::shape::ring::ColumnMemory;
use std::ffi::CStr;

use crate::driver::{Device, LaunchConfig, Module};
pub use crate::shape::{DecoderPath, Grid, NumberType, Numerics, Param, ParamType};
use crate::shape::{ModelShape, WeightTypes};
use crate::{Error, Result};

/// A kernel in a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BakedKernel {
    /// The entry's name.
    pub name: &'static str,
    /// Threads per block.
    pub block: u32,
    /// The number of blocks.
    pub grid: Grid,
    /// Bytes of static shared memory.
    pub static_shared: u32,
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// Dynamic shared memory more for columns, where a launch may have several.
    pub column_shared: ColumnMemory,
    /// Whether it may begin before the kernel before it in its stream ends: a launch
    /// [`with_programmatic`](LaunchConfig::with_programmatic) is right.
    pub begins_early: bool,
    /// Its parameters, in order.
    pub params: &'static [Param],
}

/// PTX for one compute capability, and every later one that has the shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BakedModule {
    /// Compute capability: 90 for `sm_90`.
    pub sm: u32,
    /// Whether only devices of exactly that capability run it, by instructions of their own: `sm_90a`.
    pub only: bool,
    /// The decoder that its kernels are; `None` for single kernels.
    pub decoder: Option<(DecoderPath, Numerics)>,
    /// The text, NUL-terminated as the driver wants it.
    pub ptx: &'static str,
    /// The kernels in it.
    pub kernels: &'static [BakedKernel],
    /// What an assembler made of the text, where the bake had one.
    pub machine_code: &'static [MachineCode],
}

/// Machine code for devices of one compute capability. Only [`MachineCode::new`] makes one, whose caller vouches for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MachineCode {
    sm: u32,
    image: &'static [u8],
}

impl MachineCode {
    /// The image for compute capability `sm`, as in `sm_90`. The file that a bake generates calls this.
    ///
    /// # Safety
    /// The image is a whole file that NVIDIA's assembler wrote, of the text of the module that it stands in: the driver
    /// reads as many bytes as its header says, and kernels do what the text's do.
    pub const unsafe fn new(sm: u32, image: &'static [u8]) -> MachineCode {
        MachineCode { sm, image }
    }

    /// The compute capability of the devices that run it.
    pub const fn sm(&self) -> u32 {
        self.sm
    }
}

impl std::fmt::Debug for MachineCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MachineCode").field("sm", &self.sm).field("bytes", &self.image.len()).finish()
    }
}

impl BakedKernel {
    /// A launch of so many blocks, with its threads and shared memory.
    pub const fn config(&self, grid: [u32; 3]) -> LaunchConfig {
        LaunchConfig::new(grid, [self.block, 1, 1]).with_dynamic_shared(self.dynamic_shared)
    }
}

impl BakedModule {
    /// What the bake says of the kernel `name`.
    pub fn kernel(&self, name: &str) -> Option<&'static BakedKernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// Brings it onto a device that runs its target. Compiles, unless there is machine code for exactly this device that
    /// its driver takes; may wait for the device.
    ///
    /// # Errors
    /// As [`Module::from_ptx`].
    pub fn load(&self, device: &Device) -> Result<Module> {
        if let Some(code) = self.machine_code.iter().find(|code| code.sm == device.sm()) {
            // SAFETY: whoever made it vouched for the image.
            match unsafe { Module::from_machine_code(device, code.image) } {
                // A driver older than the assembler, or one that reads text only, as kiln's emulator does.
                Err(Error::JitFailed { .. }) => {}
                loaded => return loaded,
            }
        }
        match CStr::from_bytes_with_nul(self.ptx.as_bytes()) {
            Ok(ptx) => Module::from_ptx(device, ptx),
            // One that no bake wrote may have no NUL, or several.
            Err(_) => Module::from_ptx_str(device, self.ptx),
        }
    }
}

/// Kernels for one model shape. Only [`BakedModel::new`] makes one, whose caller vouches for the text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BakedModel {
    pub(crate) name: &'static str,
    pub(crate) shape: ModelShape,
    pub(crate) types: WeightTypes,
    pub(crate) modules: &'static [BakedModule],
}

impl BakedModel {
    /// The kernels of model `name`, of `shape`, with matrices of `types`. The file that a bake generates calls this.
    ///
    /// # Safety
    /// Each module is what `kiln_codegen::Bake` wrote for this shape and these types: the PTX of a kernel does what its
    /// name says, with the parameters, threads and shared memory listed.
    pub const unsafe fn new(
        name: &'static str,
        shape: ModelShape,
        types: WeightTypes,
        modules: &'static [BakedModule],
    ) -> BakedModel {
        BakedModel { name, shape, types, modules }
    }

    /// The name of the cargo feature, or the bake's own name for the model.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The shape. Only its first group is baked; layers, vocabulary and the other constants are taken from the file.
    pub const fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// The types that the model's matrices may have.
    pub const fn types(&self) -> WeightTypes {
        self.types
    }

    /// PTX per target, decoder path and numerics.
    pub const fn modules(&self) -> &'static [BakedModule] {
        self.modules
    }
}

/// Kernels that belong to no model.
///
/// For those of one's own a bake also writes the struct of their launch, here of `saxpy`:
/// ```no_run
/// # use kiln::{baked::KERNELS, driver::{Device, GpuTensor}, launch::{Entry, In, Out, launch}};
/// # launch! { struct Saxpy<'a> { x: In<'a, f32>, y: Out<'a, f32>, a: f32, n: u32, } }
/// # impl Entry for Saxpy<'_> { const NAME: &'static str = "saxpy"; }
/// # fn f(device: &Device, x: &GpuTensor<f32>, y: &GpuTensor<f32>) -> kiln::Result<()> {
/// let saxpy = KERNELS.load(device)?.kernel::<Saxpy<'_>>()?;
/// let launch = Saxpy { x: x.into(), y: y.into(), a: 3.0, n: x.len() as u32 };
/// // SAFETY: x and y have n elements.
/// unsafe { saxpy.enqueue(&device.stream()?, saxpy.grid(8), &launch) }
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BakedKernels {
    /// PTX per target.
    pub modules: &'static [BakedModule],
}

impl BakedKernels {
    /// The module for a device: that of the newest target which is not newer than it.
    ///
    /// # Errors
    /// [`Error::KernelNotBaked`] if all targets are newer, [`Error::DeviceTooOld`] if there is none for the device.
    pub fn module_for(&self, device: &Device) -> Result<&'static BakedModule> {
        newest(device, self.modules).ok_or_else(|| no_module("kernels", device.sm()))
    }
}

/// Of some modules the one of the newest target that is not newer than the device.
pub(crate) fn newest(
    device: &Device,
    modules: impl IntoIterator<Item = &'static BakedModule>,
) -> Option<&'static BakedModule> {
    let runs = |module: &&BakedModule| module.sm == device.sm() || module.sm < device.sm() && !module.only;
    modules.into_iter().filter(runs).max_by_key(|module| module.sm)
}

/// Compute capabilities that can be baked for, ascending. A function: any name in capitals may be a model's.
const fn targets() -> [u32; 8] {
    [75, 80, 86, 87, 89, 90, 100, 120]
}

/// The error for a device of compute capability `sm` that none of the modules of `kernels` runs on.
pub(crate) fn no_module(kernels: &str, sm: u32) -> Error {
    match targets().iter().rfind(|target| **target <= sm) {
        Some(target) => Error::KernelNotBaked {
            kernel: format!("{kernels} for sm_{sm}"),
            setting: format!("KILN_TARGETS including sm_{target} or an older one"),
        },
        None => Error::DeviceTooOld { sm, needed: targets()[0] },
    }
}

include!(concat!(env!("OUT_DIR"), "/kiln_baked.rs"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_those_of_the_generator() {
        assert_eq!(targets(), kiln_codegen::Target::ALL.map(kiln_codegen::Target::sm));
    }

    #[test]
    fn advice_for_a_device_can_be_followed() {
        for (sm, target) in [(75, "sm_75"), (79, "sm_75"), (88, "sm_87"), (90, "sm_90"), (121, "sm_120")] {
            let error = no_module("tiny", sm);
            assert!(
                matches!(&error, Error::KernelNotBaked { setting, .. } if setting.contains(target)),
                "{sm}: {error}"
            );
        }
        for sm in [35, 70, 72] {
            let error = no_module("tiny", sm);
            assert!(matches!(error, Error::DeviceTooOld { needed: 75, .. }), "{sm}: {error}");
        }
    }
}
