//! The general kernels on one device: loaded once, every function resolved before anything runs.

use std::sync::Arc;

use crate::baked::{BATCH, BakedKernels, KERNELS};
use crate::driver::{Device, Stream};
use crate::kernel::{Kernel, Loaded};
use crate::launch::Launch;
use crate::{Error, Result};

/// The general kernels, loaded on one device.
#[derive(Debug)]
pub struct Ops {
    device: Device,
    /// For calls that block.
    pub(super) stream: Stream,
    kernels: Vec<Arc<Loaded>>,
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

    /// As [`Ops::open`], with the kernels for many columns at once: [`Ops::quantise`], [`Ops::gemm`] and
    /// [`Ops::causal_attention`].
    ///
    /// # Errors
    /// As [`Ops::open`]; those kernels are there from sm_80 on.
    pub fn open_for_columns(device: &Device) -> Result<Ops> {
        // SAFETY: kiln's own bake.
        unsafe { Ops::with_kernels(device, &[&KERNELS, &BATCH]) }
    }

    /// Loads kernels from several bakes, such as kiln's own [`KERNELS`] and one with other head sizes. Kernels are found
    /// by name and parameters, with their types; of two that are equal in all, the first is taken.
    ///
    /// # Errors
    /// As [`Ops::open`].
    ///
    /// # Safety
    /// Each is what `kiln_codegen::Bake` wrote: the PTX of a kernel does what its name says, with the parameters listed.
    pub unsafe fn with_kernels(device: &Device, bakes: &[&'static BakedKernels]) -> Result<Ops> {
        let mut kernels = Vec::new();
        for bake in bakes {
            let module = bake.module_for(device)?;
            let loaded = module.load(device)?;
            for baked in module.kernels {
                kernels.push(Arc::new(Loaded::find(&loaded, baked)?));
            }
        }
        Ok(Ops { device: device.clone(), stream: device.stream()?, kernels })
    }

    /// The device the kernels are loaded on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The kernel of that name with the fields of `L` as its parameters. `bake` goes into the error's advice.
    pub(super) fn find<L: Launch>(&self, name: &str, bake: &str) -> Result<Kernel<L>> {
        self.first(|found| found == name)?.ok_or_else(|| not_baked(name.to_owned(), bake))
    }

    /// As [`Ops::find`], for the kernel `family` followed by `_` and the head size.
    pub(super) fn find_for<L: Launch>(&self, family: &str, head_dim: u32, bake: &str) -> Result<Kernel<L>> {
        let found = self.first(|name| head_dim_of(name, family, "") == Some(head_dim))?;
        found.ok_or_else(|| not_baked(format!("{family}_{head_dim}"), bake))
    }

    /// The attention kernel of a family and head size for groups of `group` query heads, and the query heads of its block:
    /// 4, or 8 where `_group8` ends its name. A wider block computes in vain; a narrower one reads the cache again.
    pub(super) fn find_attention<L: Launch>(
        &self,
        family: &str,
        head_dim: u32,
        group: u32,
        bake: &str,
    ) -> Result<(Kernel<L>, u32)> {
        let (narrow, wide) = (("", 4), ("_group8", 8));
        for (suffix, heads) in if group > 4 { [wide, narrow] } else { [narrow, wide] } {
            if let Some(kernel) = self.first(|name| head_dim_of(name, family, suffix) == Some(head_dim))? {
                return Ok((kernel, heads));
            }
        }
        let wide = if group > 4 { ".with_wide_groups()" } else { "" };
        Err(not_baked(format!("{family}_{head_dim}"), &format!("{bake}{wide}")))
    }

    /// The first kernel of a name whose parameters are the fields of `L`: of another bake there may be one for fixed sizes.
    /// Where all of that name have others, the first one's difference.
    fn first<L: Launch>(&self, is: impl Fn(&str) -> bool) -> Result<Option<Kernel<L>>> {
        let mut refusal = None;
        for loaded in self.kernels.iter().filter(|loaded| is(loaded.name())) {
            match Kernel::of(loaded.clone()) {
                Ok(kernel) => return Ok(Some(kernel)),
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        refusal.map_or(Ok(None), Err)
    }
}

/// The head size in a kernel's name: between the family's name and `suffix`.
fn head_dim_of(name: &str, family: &str, suffix: &str) -> Option<u32> {
    name.strip_prefix(family)?.strip_prefix('_')?.strip_suffix(suffix)?.parse().ok()
}

#[cold]
fn not_baked(kernel: String, bake: &str) -> Error {
    let setting = format!("`Bake::kernel({bake})` in a build script, and `Ops::with_kernels`");
    Error::KernelNotBaked { kernel, setting }
}
