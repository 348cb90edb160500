//! Loaded modules and their functions.

use super::{Call, Code, Context, DeviceConfig, Handle, Leak, Outcome, handles, lock};
use crate::machine::config::SHARED_PER_BLOCK;
use crate::machine::fault::{Fault, FaultKind};
use crate::machine::kernel::KernelInfo;
use crate::ptx::{Module, PtxError};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// The newest `.version` that a driver of CUDA 13.0 reads.
const PTX_VERSION: (u32, u32) = (9, 0);

pub(crate) struct LoadedModule {
    pub(crate) context: Arc<Context>,
    pub(crate) module: Module,
    functions: Mutex<HashMap<String, Handle>>,
}

pub(crate) struct Function {
    pub(crate) module: Arc<LoadedModule>,
    pub(crate) info: KernelInfo,
    /// Most dynamic shared memory in bytes, as `cuFuncSetAttribute` sets it.
    pub(crate) max_dynamic_shared: AtomicU32,
    /// Attributes that tell a chip what the program prefers, and change nothing here.
    hints: Mutex<HashMap<u32, i32>>,
}

/// `CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT`, `_NON_PORTABLE_CLUSTER_SIZE_ALLOWED` and
/// `_CLUSTER_SCHEDULING_POLICY_PREFERENCE`, with their values unless set.
const HINTS: [(u32, i32); 3] = [(9, -1), (14, 0), (15, 0)];

/// The first argument of a directive in the module's head, outside comments.
fn directive<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or(""));
    let mut words = lines.flat_map(str::split_whitespace);
    words.find(|&word| word == name)?;
    words.next().map(|word| word.split(',').next().unwrap_or(word))
}

/// Why a load failed: the code, and the text for the log buffer.
type Refusal = (Code, String);

/// Refuses text of a newer version, as an older driver does whatever it holds, and text for another chip.
fn check_head(text: &str, config: &DeviceConfig) -> Result<(), Refusal> {
    let number = |digits: &str| digits.parse::<u32>().unwrap_or(0);
    let version = directive(text, ".version").unwrap_or("0.0");
    if version.split_once('.').is_some_and(|(major, minor)| (number(major), number(minor)) > PTX_VERSION) {
        let (major, minor) = PTX_VERSION;
        let log = format!("unsupported .version {version}; the newest that this driver reads is {major}.{minor}");
        return Err((Code::UNSUPPORTED_PTX_VERSION, log));
    }
    let Some(target) = directive(text, ".target").and_then(|target| target.strip_prefix("sm_")) else { return Ok(()) };
    let digits = target.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (wanted, own) = (number(digits), config.sm_number());
    let fits = match &target[digits.len()..] {
        "" => wanted <= own,
        "f" => wanted <= own && wanted / 10 == own / 10,
        _ => wanted == own,
    };
    let log = || format!(".target sm_{target} does not run on this device, an sm_{own}");
    if fits { Ok(()) } else { Err((Code::INVALID_PTX, log())) }
}

impl LoadedModule {
    /// Loads PTX text (without its NUL) into a context.
    pub(crate) fn load(context: &Arc<Context>, image: &[u8]) -> Result<Handle, Refusal> {
        context.settle("cuModuleLoadData", Call::Load).map_err(|code| (code, String::new()))?;
        if image.starts_with(b"\x7fELF") || image.starts_with(&[0x50, 0xed, 0x55, 0xba]) {
            let log = "this device reads PTX text; the image is a binary for another one".into();
            return Err((Code::NO_BINARY_FOR_GPU, log));
        }
        let text = std::str::from_utf8(image);
        let text = text.map_err(|error| (Code::INVALID_IMAGE, format!("not PTX text: {error}")))?;
        check_head(text, &context.device.config)?;
        let invalid = |log: String| (Code::INVALID_PTX, log);
        let module = Module::load(text, &context.memory).map_err(|PtxError { line, message, token }| {
            invalid(format!("ptx input, line {line}; error: {message} near '{token}'"))
        })?;
        if let Some((info, _)) = module.kernels.values().find(|(info, _)| info.static_shared > SHARED_PER_BLOCK) {
            module.unload(&context.memory);
            return Err(invalid(format!(
                "error: entry '{}' uses too much shared data: {} bytes, {SHARED_PER_BLOCK} at most; more is only to be \
                 had as dynamic shared memory",
                info.name, info.static_shared
            )));
        }
        let loaded = LoadedModule { context: context.clone(), module, functions: Mutex::default() };
        Ok(handles::insert(context.handle, Some(Leak::Module), loaded))
    }

    /// Unloads the module and its functions.
    pub(crate) fn unload(&self, handle: Handle) -> Outcome {
        self.context.state().captures.refuse_unsafe()?;
        let waited = self.context.wait_for_all("cuModuleUnload");
        handles::remove::<LoadedModule>(handle)?;
        for (_, function) in lock(&self.functions).drain() {
            handles::remove::<Function>(function)?;
        }
        self.module.unload(&self.context.memory);
        waited
    }

    /// The kernel of a name, with the same handle every time. The first look-up loads it, which may synchronise.
    pub(crate) fn function(self: &Arc<Self>, name: &str) -> Outcome<Handle> {
        if let Some(&handle) = lock(&self.functions).get(name) {
            return Ok(handle);
        }
        if let Some(error) = self.module.refusal(name) {
            let message = format!("the emulator does not understand it: {error}");
            return Err(self.context.device.note(Fault::new(FaultKind::Unsupported, name, message)));
        }
        let info = self.module.kernel(name).ok_or(Code::NOT_FOUND)?.clone();
        self.context.block("cuModuleGetFunction", &self.context.everything())?;
        let mut functions = lock(&self.functions);
        let handle = functions.entry(name.to_owned()).or_insert_with(|| {
            let max_dynamic_shared = AtomicU32::new(SHARED_PER_BLOCK.saturating_sub(info.static_shared));
            let hints = Mutex::new(HashMap::from(HINTS));
            let function = Function { module: self.clone(), info, max_dynamic_shared, hints };
            handles::insert(self.context.handle, None, function)
        });
        Ok(*handle)
    }
}

impl Function {
    /// `cuFuncSetAttribute`
    pub(crate) fn set_attribute(&self, number: u32, value: i32) -> Outcome {
        let most = self.module.context.device.config.shared_limit().saturating_sub(self.info.static_shared);
        match (number, u32::try_from(value)) {
            (8, Ok(bytes)) if bytes <= most => self.max_dynamic_shared.store(bytes, Ordering::Relaxed),
            // A carve-out in per cent, or the default.
            (9, _) if !(-1..=100).contains(&value) => return Err(Code::INVALID_VALUE),
            (9 | 14 | 15, _) => _ = lock(&self.hints).insert(number, value),
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }

    /// `cuFuncGetAttribute`
    pub(crate) fn attribute(&self, number: u32) -> Outcome<i32> {
        let value = match number {
            0 => self.info.max_threads(),
            1 => self.info.static_shared,
            3 => self.info.local_bytes,
            4 => self.info.device_registers(),
            8 => self.max_dynamic_shared.load(Ordering::Relaxed),
            // Bytes of constants, caching of global loads in L1.
            2 | 7 => 0,
            5 => self.info.target_sm,
            6 => self.module.context.device.config.sm_number(),
            10 => self.info.cluster.is_some().into(),
            11..=13 => self.info.cluster.map_or(0, |cluster| cluster[number as usize - 11]),
            _ => return lock(&self.hints).get(&number).copied().ok_or(Code::INVALID_VALUE),
        };
        Ok(value as i32)
    }
}
