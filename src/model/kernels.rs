//! The kernels of a model on a device: loaded once, every function looked up before anything runs.

use super::KvType;
use crate::baked::{BakedKernel, BakedModel, BakedModule, DecoderPath, Grid, no_module};
use crate::driver::{Device, Function, KernelParam, LaunchConfig, Module, Stream};
use crate::{Error, Result};
use std::ffi::CStr;

/// A function with what its bake says of its launch.
pub(crate) struct Kernel {
    function: Function,
    baked: &'static BakedKernel,
    /// The most blocks that are of use on this device: those that fit it together.
    resident: u32,
}

impl Kernel {
    /// Finds the kernel in a loaded module.
    pub(crate) fn find(module: &Module, baked: &'static BakedModule, name: &str, setting: &str) -> Result<Kernel> {
        let not_baked = || Error::KernelNotBaked { kernel: name.to_owned(), setting: setting.to_owned() };
        let baked = baked.kernels.iter().find(|kernel| kernel.name == name).ok_or_else(not_baked)?;
        let function = module.function(name)?;
        let resident = function.resident_blocks(baked.block, baked.dynamic_shared)?;
        Ok(Kernel { function, baked, resident })
    }

    /// Launches with the grid of the bake; `rows` is the length of the output where the bake does not know it.
    ///
    /// # Safety
    /// As [`Function::launch`]; `params` are the kernel's.
    pub(crate) unsafe fn launch(&self, stream: &Stream, rows: u32, params: &[KernelParam<'_>]) -> Result<()> {
        let blocks = match self.baked.grid {
            Grid::Blocks(blocks) => blocks,
            Grid::UpTo(blocks) => blocks.min(self.resident),
            Grid::PerRows(each) => rows.div_ceil(each.max(1)).min(self.resident),
            Grid::Launch => rows,
        };
        // SAFETY: the caller's contract.
        unsafe { self.launch_grid(stream, [blocks, 1, 1], params) }
    }

    /// Launches with a grid of the caller's.
    ///
    /// # Safety
    /// As [`Function::launch`]; `params` are the kernel's.
    pub(crate) unsafe fn launch_grid(&self, stream: &Stream, grid: [u32; 3], params: &[KernelParam<'_>]) -> Result<()> {
        debug_assert_eq!(params.len(), self.baked.params.len(), "{}", self.baked.name);
        let config = LaunchConfig::new(grid.map(|blocks| blocks.max(1)), [self.baked.block, 1, 1])
            .with_dynamic_shared(self.baked.dynamic_shared);
        // SAFETY: the caller's contract.
        unsafe { self.function.launch(stream, &config, params) }
    }
}

impl Kernel {
    /// Blocks that fit the device together.
    pub(crate) const fn resident(&self) -> u32 {
        self.resident
    }

    /// Launches cooperatively: all blocks resident together.
    ///
    /// # Safety
    /// As [`Function::launch`]; `params` are the kernel's.
    pub(crate) unsafe fn launch_cooperative(
        &self,
        stream: &Stream,
        blocks: u32,
        params: &[KernelParam<'_>],
    ) -> Result<()> {
        debug_assert_eq!(params.len(), self.baked.params.len(), "{}", self.baked.name);
        let config = LaunchConfig::linear(blocks, self.baked.block)
            .with_dynamic_shared(self.baked.dynamic_shared)
            .with_cooperative();
        // SAFETY: the caller's contract.
        unsafe { self.function.launch(stream, &config, params) }
    }
}

/// The kernels whose element type is the cache's.
pub(crate) struct CacheKernels {
    pub(crate) qk_norm_rope_kv_write: Kernel,
    pub(crate) incremental_attention: Kernel,
    pub(crate) flash_decoding_chunk: Kernel,
}

/// All kernels of the stream path.
pub(crate) struct Kernels {
    pub(crate) embedding_row: Kernel,
    pub(crate) qkv: Kernel,
    pub(crate) attention_output: Kernel,
    pub(crate) gate_up: Kernel,
    pub(crate) down: Kernel,
    pub(crate) head: Kernel,
    pub(crate) flash_decoding_reduce: Kernel,
    pub(crate) argmax: Kernel,
    pub(crate) advance: Kernel,
    f16: CacheKernels,
    f32: CacheKernels,
}

impl Kernels {
    pub(crate) fn load(device: &Device, baked: &'static BakedModel) -> Result<Kernels> {
        let module = choose(device, baked.modules, Some(DecoderPath::Stream), baked.name)?;
        let loaded = load(device, module)?;
        let setting = format!("--features {}", baked.name);
        let find = |name: &str| Kernel::find(&loaded, module, name, &setting);
        let of_cache = |kv: KvType| -> Result<CacheKernels> {
            let suffix = kv.suffix();
            Ok(CacheKernels {
                qk_norm_rope_kv_write: find(&format!("qk_norm_rope_kv_write_{suffix}"))?,
                incremental_attention: find(&format!("incremental_attention_{suffix}"))?,
                flash_decoding_chunk: find(&format!("flash_decoding_chunk_{suffix}"))?,
            })
        };
        Ok(Kernels {
            embedding_row: find("embedding_row")?,
            qkv: find("rmsnorm_qkv")?,
            attention_output: find("attention_output_residual")?,
            gate_up: find("rmsnorm_gate_up_swiglu")?,
            down: find("down_residual")?,
            head: find("rmsnorm_head")?,
            flash_decoding_reduce: find("flash_decoding_reduce")?,
            argmax: find("argmax")?,
            advance: find("advance")?,
            f16: of_cache(KvType::F16)?,
            f32: of_cache(KvType::F32)?,
        })
    }

    /// The kernels for a cache of type `kv`.
    pub(crate) fn of_cache(&self, kv: KvType) -> &CacheKernels {
        match kv {
            KvType::F16 => &self.f16,
            KvType::F32 => &self.f32,
        }
    }
}

/// The kernel of the persistent path; each has a module of its own.
pub(crate) fn persistent(device: &Device, baked: &'static BakedModel, kv: KvType, traces: bool) -> Result<Kernel> {
    let (trace, feature) = if traces { ("_trace", ",trace") } else { ("", "") };
    let name = format!("persistent_decoder_{}{trace}", kv.suffix());
    let setting = format!("--features {}{feature}", baked.name());
    let has = |module: &&BakedModule| module.kernels.iter().any(|kernel| kernel.name == name);
    let modules = baked.modules.iter().filter(has);
    let Some(module) = newest(device, Some(DecoderPath::Persistent), modules) else {
        choose(device, baked.modules, Some(DecoderPath::Persistent), baked.name())?;
        return Err(Error::KernelNotBaked { kernel: name, setting });
    };
    Kernel::find(&load(device, module)?, module, &name, &setting)
}

/// Whether there are kernels of both paths for the device; none is loaded.
pub(crate) fn check(device: &Device, baked: &'static BakedModel) -> Result<()> {
    DecoderPath::ALL.into_iter().try_for_each(|path| choose(device, baked.modules, Some(path), baked.name).map(drop))
}

/// The module of `path` for the newest target that is not newer than the device.
pub(crate) fn choose(
    device: &Device,
    modules: &'static [BakedModule],
    path: Option<DecoderPath>,
    name: &str,
) -> Result<&'static BakedModule> {
    newest(device, path, modules.iter()).ok_or_else(|| no_module(name, device.sm()))
}

fn newest<'a>(
    device: &Device,
    path: Option<DecoderPath>,
    modules: impl Iterator<Item = &'a BakedModule>,
) -> Option<&'a BakedModule> {
    modules.filter(|module| module.path == path && module.sm <= device.sm()).max_by_key(|module| module.sm)
}

/// Loads a module's PTX.
pub(crate) fn load(device: &Device, module: &BakedModule) -> Result<Module> {
    match CStr::from_bytes_with_nul(module.ptx.as_bytes()) {
        Ok(ptx) => Module::from_ptx(device, ptx),
        // A bake of somebody's own may have forgotten the NUL.
        Err(_) => Module::from_ptx_str(device, module.ptx),
    }
}
