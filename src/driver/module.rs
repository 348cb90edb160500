//! Modules: PTX text compiled by the driver when it is loaded, and machine code.

use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;
use std::time::Instant;

use super::codes;
use super::device::Device;
use super::pointer::{DevicePtr, DeviceRepr};
use super::sys;
use crate::{Error, Result};

/// Compiled kernels on one device. Cheap to clone; unloaded with the last clone and the last [`Function`](super::Function)
/// of it, which waits for the device.
#[derive(Clone)]
pub struct Module {
    pub(crate) inner: Arc<ModuleInner>,
}

pub(crate) struct ModuleInner {
    pub(crate) device: Device,
    raw: sys::CUmodule,
}

// SAFETY: the driver's modules may be used from any thread.
unsafe impl Send for ModuleInner {}
// SAFETY: as above.
unsafe impl Sync for ModuleInner {}

/// `CUDA_ERROR_UNSUPPORTED_PTX_VERSION`
const UNSUPPORTED_PTX_VERSION: u32 = 222;

/// Bytes for each of the compiler's logs; more is cut off by the driver.
const LOG_BYTES: usize = 8192;

impl Module {
    /// Compiles and loads PTX text. May wait for the device. On failure the error holds the compiler's log.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless the text begins with `.version`, after blanks and comments: the same call
    /// takes binaries, of which the driver would read as many bytes as their header says.
    pub fn from_ptx(device: &Device, ptx: &CStr) -> Result<Module> {
        check_text(ptx.to_bytes())?;
        // SAFETY: it is text, and ends with a NUL.
        match unsafe { Module::load(device, ptx.as_ptr().cast(), false) } {
            Err(Error::JitFailed { code: UNSUPPORTED_PTX_VERSION, .. }) => Err(too_new(ptx)),
            loaded => loaded,
        }
    }

    /// Loads machine code, which nothing compiles. May wait for the device.
    ///
    /// # Errors
    /// [`Error::JitFailed`] where the driver does not take it: it is for another chip, or newer than the driver.
    ///
    /// # Safety
    /// The image is a whole file that NVIDIA's assembler wrote: the driver reads as many bytes as its header says.
    pub unsafe fn from_machine_code(device: &Device, image: &[u8]) -> Result<Module> {
        // SAFETY: the caller's contract.
        unsafe { Module::load(device, image.as_ptr().cast(), true) }
    }

    /// Loads an image, and notes how long that took.
    ///
    /// # Safety
    /// The image is text that ends with a NUL, or a whole file of machine code.
    unsafe fn load(device: &Device, image: *const c_void, is_machine_code: bool) -> Result<Module> {
        let _quiet = device.context().quiesce()?;
        let begun = Instant::now();
        let (mut info, mut errors) = (vec![0u8; LOG_BYTES], vec![0u8; LOG_BYTES]);
        let mut options = [
            sys::CU_JIT_INFO_LOG_BUFFER,
            sys::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
            sys::CU_JIT_ERROR_LOG_BUFFER,
            sys::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // Sizes are passed in the pointers themselves.
        let size = std::ptr::without_provenance_mut(LOG_BYTES);
        let mut values: [*mut c_void; 4] = [info.as_mut_ptr().cast(), size, errors.as_mut_ptr().cast(), size];
        // SAFETY: the caller's contract; the options have their values, the buffers outlive the call.
        let loaded = unsafe {
            let api = device.driver().api();
            api.module_load(image, options.len() as u32, options.as_mut_ptr(), values.as_mut_ptr())
        };
        device.context().note_load(begun.elapsed(), loaded.is_ok().then_some(is_machine_code));
        match loaded {
            Ok(raw) => Ok(Module { inner: Arc::new(ModuleInner { device: device.clone(), raw }) }),
            Err(Error::Cuda { code, .. }) if code != sys::CUDA_ERROR_OUT_OF_MEMORY => {
                let (name, meaning) = codes::describe(code);
                let log = [errors, info].map(|bytes| text(&bytes));
                Err(Error::JitFailed { code, name, meaning, log: log.join("\n").trim().to_owned() })
            }
            Err(error) => Err(error),
        }
    }

    /// As [`from_ptx`](Module::from_ptx), for text with or without NULs at its end, which is copied.
    pub fn from_ptx_str(device: &Device, ptx: &str) -> Result<Module> {
        let ptx = CString::new(ptx.trim_end_matches('\0')).map_err(|error| Error::InvalidArgument {
            what: "PTX text".to_owned(),
            found: format!("a NUL at byte {}", error.nul_position()),
            expected: "text with NULs at its end only".to_owned(),
        })?;
        Module::from_ptx(device, &ptx)
    }

    /// Address and number of elements of a module's global variable, rounded down to whole elements.
    ///
    /// The memory there belongs to the module, and its uses are not tracked.
    pub fn global<T: DeviceRepr>(&self, name: &str) -> Result<(DevicePtr<T>, usize)> {
        let device = &self.inner.device;
        let _quiet = device.context().quiesce()?;
        let c_name = c_name(name)?;
        // SAFETY: the module is live and its context current.
        let (address, bytes) = unsafe { device.driver().api().module_global(self.inner.raw, &c_name)? };
        Ok((DevicePtr::new(address), bytes / size_of::<T>().max(1)))
    }

    /// The device it is loaded on.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The driver's handle, live as long as `self`.
    pub fn raw(&self) -> sys::CUmodule {
        self.inner.raw
    }
}

/// PTX versions and the CUDA versions that know each. Source: PTX ISA, "Release Notes".
const CUDA_OF_PTX: [((u32, u32), &str); 23] = [
    ((6, 3), "10.0 or later"),
    ((6, 4), "10.1 or later"),
    ((6, 5), "10.2 or later"),
    ((7, 0), "11.0 or later"),
    ((7, 1), "11.1 or later"),
    ((7, 2), "11.2 or later"),
    ((7, 3), "11.3 or later"),
    ((7, 4), "11.4 or later"),
    ((7, 5), "11.5 or later"),
    ((7, 6), "11.6 or later"),
    ((7, 7), "11.7 or later"),
    ((7, 8), "11.8 or later"),
    ((8, 0), "12.0 or later"),
    ((8, 1), "12.1 or later"),
    ((8, 2), "12.2 or later"),
    ((8, 3), "12.3 or later"),
    ((8, 4), "12.4 or later"),
    ((8, 5), "12.5 or later"),
    ((8, 6), "12.7 or later"),
    ((8, 7), "12.8 or later"),
    ((8, 8), "12.9 or later"),
    ((9, 0), "13.0 or later"),
    ((9, 1), "13.1 or later"),
];

/// The error for text too new for the driver: it names the CUDA version that the text's `.version` needs.
fn too_new(ptx: &CStr) -> Error {
    let text = ptx.to_string_lossy();
    let version = text.split_once(".version").and_then(|(_, rest)| rest.split_whitespace().next()).unwrap_or("?");
    let parsed = version.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let cuda = parsed.and_then(|parsed| CUDA_OF_PTX.iter().find(|(known, _)| *known >= parsed));
    Error::PtxTooNew { version: version.to_owned(), cuda: cuda.map_or("later than 13.1", |(_, cuda)| cuda) }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module").field("device", &self.inner.device.ordinal()).finish_non_exhaustive()
    }
}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        // Its kernels may still run. Where waiting fails they may go on, or the context is lost: then it stays loaded.
        let Ok(_quiet) = self.device.context().quiesce() else { return };
        if self.device.synchronize().is_ok() {
            // SAFETY: the last owner, and nothing runs.
            let _ = unsafe { self.device.driver().api().module_unload(self.raw) };
        }
    }
}

/// Refuses bytes that the driver might take for a binary.
fn check_text(bytes: &[u8]) -> Result<()> {
    let refuse = |found: String| {
        Err(Error::InvalidArgument {
            what: "PTX".to_owned(),
            found,
            expected: "text that begins with `.version`; binaries are not loaded".to_owned(),
        })
    };
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => return refuse(format!("a byte that is not UTF-8 at {}", error.valid_up_to())),
    };
    if let Some(at) = bytes.iter().position(|byte| byte.is_ascii_control() && !byte.is_ascii_whitespace()) {
        return refuse(format!("a control character at byte {at}"));
    }
    let first = after_comments(text).split_ascii_whitespace().next().unwrap_or("nothing");
    if first == ".version" { Ok(()) } else { refuse(first.chars().take(32).collect()) }
}

/// The text from its first directive on.
fn after_comments(mut text: &str) -> &str {
    loop {
        text = text.trim_ascii_start();
        let behind = if let Some(line) = text.strip_prefix("//") {
            line.split_once('\n')
        } else if let Some(comment) = text.strip_prefix("/*") {
            comment.split_once("*/")
        } else {
            return text;
        };
        text = behind.map_or("", |(_, rest)| rest);
    }
}

/// A name for C.
pub(crate) fn c_name(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| Error::InvalidArgument {
        what: "name in a module".to_owned(),
        found: format!("{name:?}"),
        expected: "a name without NUL".to_owned(),
    })
}

/// A log up to its NUL.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
