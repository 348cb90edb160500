//! Modules: PTX text that was read, its functions, and the log that a failed load leaves.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::abi::{Handle, Outcome};
use super::chip::{Chip, REGISTERS, SHARED_PER_BLOCK, THREADS_PER_BLOCK};
use super::codes::Code;
use super::config::Call;
use super::context::Context;
use super::handles::{self, Object};
use super::lock;
use super::machine::{self, KernelInfo, Module};

/// A module in a context.
pub(crate) struct LoadedModule {
    pub(crate) context: Arc<Context>,
    pub(crate) module: Module,
    functions: Mutex<HashMap<String, Handle>>,
}

/// A kernel of a module.
pub(crate) struct Function {
    pub(crate) module: Arc<LoadedModule>,
    pub(crate) info: KernelInfo,
    /// What `cuFuncSetAttribute` allows beyond the static shared memory, in bytes.
    max_dynamic_shared: AtomicU32,
}

/// Why a load failed, for the log buffer.
pub(crate) struct LoadFailure {
    pub(crate) code: Code,
    pub(crate) log: String,
}

impl From<Code> for LoadFailure {
    fn from(code: Code) -> Self {
        LoadFailure { code, log: String::new() }
    }
}

/// Loads PTX text (without its NUL) into a context.
pub(crate) fn load(context: &Arc<Context>, image: &[u8]) -> Result<Handle, LoadFailure> {
    context.state().captures.refuse_unsafe()?;
    context.device.injected(Call::Load)?;
    context.drain("cuModuleLoadData")?;
    if image.starts_with(b"\x7fELF") || image.starts_with(&[0x50, 0xed, 0x55, 0xba]) {
        let log = "this device reads PTX text; the image is a binary for another one".into();
        return Err(LoadFailure { code: Code::NO_BINARY_FOR_GPU, log });
    }
    let text = std::str::from_utf8(image)
        .map_err(|error| LoadFailure { code: Code::INVALID_IMAGE, log: format!("not PTX text: {error}") })?;
    let module = machine::load(text, &context.memory, &context.device.config)?;
    let loaded = LoadedModule { context: context.clone(), module, functions: Mutex::default() };
    Ok(handles::insert(Object::Module(Arc::new(loaded))))
}

/// Unloads a module; its functions are gone with it.
pub(crate) fn unload(handle: Handle) -> Outcome {
    let module = handles::module(handle)?;
    module.context.state().captures.refuse_unsafe()?;
    let waited = module.context.wait_for_all("cuModuleUnload");
    for (_, function) in lock(&module.functions).drain() {
        handles::remove(function);
    }
    handles::remove(handle);
    machine::unload(&module.module, &module.context.memory);
    waited
}

impl LoadedModule {
    /// The kernel of that name, the same handle every time. The first look-up loads it, which may synchronise.
    pub(crate) fn function(self: &Arc<Self>, name: &str) -> Outcome<Handle> {
        if let Some(&handle) = lock(&self.functions).get(name) {
            return Ok(handle);
        }
        let info = machine::kernel(&self.module, name).ok_or(Code::NOT_FOUND)?;
        self.context.drain("cuModuleGetFunction")?;
        let mut functions = lock(&self.functions);
        let handle = functions.entry(name.to_owned()).or_insert_with(|| {
            let max_dynamic_shared = AtomicU32::new(SHARED_PER_BLOCK.saturating_sub(info.static_shared));
            handles::insert(Object::Function(Arc::new(Function { module: self.clone(), info, max_dynamic_shared })))
        });
        Ok(*handle)
    }
}

impl Function {
    pub(crate) fn chip(&self) -> Chip {
        Chip::of(self.module.context.device.config.sm)
    }

    /// Shared memory that a block may have at most, in bytes.
    fn shared_limit(&self) -> u32 {
        self.module.context.device.config.shared_per_block_optin.unwrap_or(self.chip().shared_per_block_optin)
    }

    pub(crate) fn max_dynamic_shared(&self) -> u32 {
        self.max_dynamic_shared.load(Ordering::Relaxed)
    }

    pub(crate) fn set_max_dynamic_shared(&self, bytes: i32) -> Outcome {
        let bytes = u32::try_from(bytes).map_err(|_| Code::INVALID_VALUE)?;
        if bytes > self.shared_limit().saturating_sub(self.info.static_shared) {
            return Err(Code::INVALID_VALUE);
        }
        self.max_dynamic_shared.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Threads per block at most, as the kernel declares them.
    pub(crate) fn max_threads(&self) -> u32 {
        let product = |dimensions: [u32; 3]| dimensions.iter().product::<u32>();
        let declared = self.info.reqntid.or(self.info.maxntid).map_or(THREADS_PER_BLOCK, product);
        declared.min(THREADS_PER_BLOCK)
    }

    /// Registers per thread. Register allocation is an assembler's business; the machine's own figure stands in for
    /// it, held to what an assembler would keep it to for the declared (or any) number of threads.
    pub(crate) fn registers(&self) -> u32 {
        let threads = self.max_threads().max(1).next_multiple_of(32) * self.info.min_blocks.unwrap_or(1).max(1);
        let most = (REGISTERS / threads / 8 * 8).clamp(16, 255);
        self.info.registers.clamp(16, most)
    }

    /// `cuFuncGetAttribute`.
    pub(crate) fn attribute(&self, number: u32) -> Outcome<i32> {
        let sm = self.module.context.device.config.sm;
        let value = match number {
            0 => self.max_threads(),
            1 => self.info.static_shared,
            2 => 0,                     // constant memory
            3 => self.info.local_bytes, // local memory per thread
            4 => self.registers(),
            5 => self.info.target_sm, // PTX version, as ten times the virtual architecture
            6 => sm.0 * 10 + sm.1,    // binary version
            7 => 0,                   // cached by ld.ca
            8 => self.max_dynamic_shared(),
            9 => return Ok(-1), // preferred carve-out: the driver's choice
            10..=15 => 0,
            _ => return Err(Code::INVALID_VALUE),
        };
        Ok(i32::try_from(value).unwrap_or(i32::MAX))
    }

    /// Blocks of this kernel that one multiprocessor holds at once.
    pub(crate) fn occupancy(&self, threads: u32, dynamic_shared: u32) -> u32 {
        let shared = self.info.static_shared.saturating_add(dynamic_shared);
        if threads > self.max_threads() || shared > self.shared_limit() {
            return 0;
        }
        self.chip().occupancy(threads, self.registers(), shared)
    }
}
