//! Drivers: NVIDIA's library, or other functions of the same names.

use once_cell::sync::OnceCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::api::Api;
use super::sys;
use crate::{Error, Result};

/// Names under which NVIDIA's driver is found: a bare one in System32 only, where its installer puts it.
#[cfg(windows)]
const LIBRARIES: &[&CStr] = &[c"nvcuda.dll"];
/// Names under which NVIDIA's driver is found; the last is where Windows puts it for Linux programs.
#[cfg(not(windows))]
const LIBRARIES: &[&CStr] = &[c"libcuda.so.1", c"libcuda.so", c"/usr/lib/wsl/lib/libcuda.so.1"];

/// A driver: the filled table, initialised. Cheap to clone.
#[derive(Clone)]
pub struct Driver {
    api: Arc<Api>,
}

impl Driver {
    /// Loads NVIDIA's driver, where one is installed; a program links to none. The library is never unloaded.
    pub fn load() -> Result<Driver> {
        let mut reason = String::new();
        for path in LIBRARIES {
            match open(path) {
                // SAFETY: the platform's own driver library has NVIDIA's functions under NVIDIA's names.
                Ok(library) => return unsafe { Driver::from_raw_resolver(Some(sys::kiln_cu_lookup), library) },
                Err(why) => reason = why,
            }
        }
        let tried: Vec<_> = LIBRARIES.iter().map(|path| path.to_string_lossy()).collect();
        Err(Error::DriverNotFound { tried: tried.join(", "), reason })
    }

    /// Loads a driver from a library of that name or path. Windows looks for a bare name in System32 only.
    ///
    /// # Safety
    /// The library's initialisers run, and its functions must have NVIDIA's signatures and behaviour.
    pub unsafe fn load_from(path: &str) -> Result<Driver> {
        let not_found = |reason| Error::DriverNotFound { tried: path.to_owned(), reason };
        let name = CString::new(path).map_err(|_| not_found("the name holds a NUL".to_owned()))?;
        let library = open(&name).map_err(not_found)?;
        // SAFETY: the caller vouches for the library.
        unsafe { Driver::from_raw_resolver(Some(sys::kiln_cu_lookup), library) }
    }

    /// A driver whose functions come from `resolve`, called with versioned names such as `cuMemAlloc_v2`; null means
    /// that there is no such function.
    ///
    /// # Safety
    /// The functions that `resolve` returns have NVIDIA's signature and behaviour for their names until the program ends.
    pub unsafe fn from_resolver(resolve: impl Fn(&CStr) -> *const c_void) -> Result<Driver> {
        /// Calls the closure behind `user`; a panic is a function not found, since it may not cross into C.
        unsafe extern "C" fn trampoline<F: Fn(&CStr) -> *const c_void>(
            name: *const c_char,
            user: *mut c_void,
        ) -> *mut c_void {
            // SAFETY: `user` is the closure that `from_resolver` keeps alive during the call.
            let resolve = unsafe { &*user.cast::<F>() };
            // SAFETY: the shim's names are NUL-terminated and static.
            let name = unsafe { CStr::from_ptr(name) };
            catch_unwind(AssertUnwindSafe(|| resolve(name))).unwrap_or(std::ptr::null()).cast_mut()
        }
        fn trampoline_of<F: Fn(&CStr) -> *const c_void>(_: &F) -> sys::kiln_cu_resolver {
            Some(trampoline::<F>)
        }
        let trampoline = trampoline_of(&resolve);
        let user = (&raw const resolve).cast_mut().cast();
        // SAFETY: the trampoline matches the closure behind `user`; the caller vouches for what it returns.
        unsafe { Driver::from_raw_resolver(trampoline, user) }
    }

    /// A driver over a filled table, such as one in between that records calls or makes them fail.
    ///
    /// # Safety
    /// As [`Api::new`]; required functions are not null.
    pub unsafe fn from_table(table: sys::kiln_cu_api) -> Result<Driver> {
        // SAFETY: passed on.
        let api = unsafe { Api::new(table) };
        // SAFETY: no arguments to get wrong.
        match unsafe { api.init(0) } {
            Ok(()) => Ok(Driver::known(api)),
            Err(error) if error.code() == Some(sys::CUDA_ERROR_NO_DEVICE) => {
                Err(Error::NoDevice { ordinal: 0, found: 0 })
            }
            Err(error) => Err(error),
        }
    }

    /// The driver of that table. Tables of the same functions share one, and with it the open devices.
    fn known(api: Api) -> Driver {
        static KNOWN: OnceCell<Mutex<Vec<Weak<Api>>>> = OnceCell::new();
        let mut known = KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|api| api.strong_count() > 0);
        if let Some(api) = known.iter().filter_map(Weak::upgrade).find(|other| other.has_same_functions(&api)) {
            return Driver { api };
        }
        let api = Arc::new(api);
        known.push(Arc::downgrade(&api));
        Driver { api }
    }

    /// # Safety
    /// `user` is what `resolve` takes; what it returns has NVIDIA's signatures and behaviour.
    unsafe fn from_raw_resolver(resolve: sys::kiln_cu_resolver, user: *mut c_void) -> Result<Driver> {
        // SAFETY: a table of null pointers is a value of its type.
        let mut table: sys::kiln_cu_api = unsafe { std::mem::zeroed() };
        // SAFETY: the table is writable, resolver and user match.
        let missing = unsafe { sys::kiln_cu_fill(&mut table, resolve, user) };
        if !missing.is_null() {
            // SAFETY: names in the shim's list are NUL-terminated and static.
            let symbol = unsafe { CStr::from_ptr(missing) }.to_string_lossy().into_owned();
            return Err(Error::DriverTooOld { symbol });
        }
        // SAFETY: passed on, and no required function is missing.
        unsafe { Driver::from_table(table) }
    }

    /// Level two: the table with checked results.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Major and minor CUDA version that the driver supports.
    pub fn version(&self) -> Result<(i32, i32)> {
        // SAFETY: no arguments to get wrong.
        let version = unsafe { self.api.driver_version()? };
        Ok((version / 1000, version % 1000 / 10))
    }

    /// Number of devices.
    pub fn device_count(&self) -> Result<i32> {
        // SAFETY: no arguments to get wrong.
        unsafe { self.api.device_count() }
    }

    /// Whether both are clones of one driver, so that objects of one are known to the other.
    pub(crate) fn same_as(&self, other: &Driver) -> bool {
        Arc::ptr_eq(&self.api, &other.api)
    }

    /// Refuses another driver.
    pub(crate) fn check_same(&self, other: &Driver, what: &'static str) -> Result<()> {
        if self.same_as(other) { Ok(()) } else { Err(Error::WrongDriver { what }) }
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("version", &self.version().ok()).finish_non_exhaustive()
    }
}

/// One function of the driver table's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// Versioned name.
    pub name: &'static CStr,
    /// Whether a driver without it is refused.
    pub required: bool,
}

/// Every function that a driver is asked for.
pub fn symbols() -> Vec<Symbol> {
    let mut count = 0;
    // SAFETY: writes the length of the static list and returns it.
    let list = unsafe { std::slice::from_raw_parts(sys::kiln_cu_symbols(&mut count), count) };
    list.iter()
        .map(|symbol| Symbol {
            // SAFETY: names in the shim's list are NUL-terminated and static.
            name: unsafe { CStr::from_ptr(symbol.name) },
            required: symbol.need == sys::KILN_CU_REQUIRED,
        })
        .collect()
}

/// Opens a library; the error is the loader's reason.
fn open(path: &CStr) -> Result<*mut c_void, String> {
    let mut reason = [0u8; 256];
    // SAFETY: the path is NUL-terminated, the reason's length its own. The loader runs the library's initialisers, which
    // the callers of this function answer for.
    let library = unsafe { sys::kiln_cu_open(path.as_ptr(), reason.as_mut_ptr().cast(), reason.len()) };
    if library.is_null() {
        return Err(CStr::from_bytes_until_nul(&reason).unwrap_or_default().to_string_lossy().into_owned());
    }
    Ok(library)
}
