//! Finding a driver and refusing what is none.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_int, c_uint, c_void};

use kiln::Error;
use kiln::driver::{Device, Driver, symbols};
use kiln_emulator::DeviceConfig;

unsafe extern "C" fn init(_flags: c_uint) -> c_uint {
    0
}

unsafe extern "C" fn no_device(_flags: c_uint) -> c_uint {
    100
}

unsafe extern "C" fn stub_library(_flags: c_uint) -> c_uint {
    34
}

unsafe extern "C" fn version(version: *mut c_int) -> c_uint {
    // SAFETY: the caller passes a place for it.
    unsafe { *version = 12_080 };
    0
}

/// Stands in for functions that these tests never call.
unsafe extern "C" fn never() -> c_uint {
    999
}

/// A driver that has everything but `missing`, and whose initialisation is `init`.
fn driver_without(missing: Option<&CStr>, init: unsafe extern "C" fn(c_uint) -> c_uint) -> Result<Driver, Error> {
    // SAFETY: what is called, initialisation and version, has its signature.
    unsafe {
        Driver::from_resolver(|name| match name.to_bytes() {
            _ if Some(name) == missing => std::ptr::null(),
            b"cuInit" => init as *const c_void,
            b"cuDriverGetVersion" => version as *const c_void,
            _ => never as *const c_void,
        })
    }
}

#[test]
fn a_missing_library_is_an_error_that_names_it() {
    // SAFETY: there is no such library.
    let error = unsafe { Driver::load_from("libdoesnotexist.so") }.unwrap_err();
    assert!(matches!(&error, Error::DriverNotFound { tried, .. } if tried == "libdoesnotexist.so"), "{error:?}");
    assert!(error.to_string().contains("libdoesnotexist.so"), "{error}");
    // SAFETY: as above.
    let nul = unsafe { Driver::load_from("lib\0cuda") }.unwrap_err();
    assert!(matches!(nul, Error::DriverNotFound { .. }), "{nul:?}");
}

#[test]
fn loading_without_a_driver_is_an_error_and_with_one_has_a_version() {
    match Driver::load() {
        Ok(driver) => assert!(driver.version().unwrap() >= (11, 0)),
        Err(Error::DriverNotFound { tried, .. }) => assert!(tried.contains("cuda"), "{tried}"),
        Err(Error::NoDevice { .. } | Error::Cuda { .. } | Error::DriverTooOld { .. }) => {}
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn a_library_that_is_no_driver_is_refused_by_symbol() {
    // SAFETY: the C library is loaded already.
    let error = unsafe { Driver::load_from("libc.so.6") };
    if cfg!(target_os = "linux") {
        assert!(matches!(error, Err(Error::DriverTooOld { symbol }) if symbol == "cuInit"));
    }
}

#[cfg(windows)]
#[test]
fn a_bare_name_is_no_library_beside_the_program() {
    let beside = std::env::current_exe().unwrap().with_file_name("planted.dll");
    std::fs::copy(r"C:\Windows\System32\version.dll", &beside).unwrap();
    // SAFETY: a library of Windows under another name, if it is found.
    let bare = unsafe { Driver::load_from("planted.dll") };
    assert!(matches!(bare, Err(Error::DriverNotFound { .. })), "{bare:?}");
    // SAFETY: as above.
    let by_path = unsafe { Driver::load_from(beside.to_str().unwrap()) };
    assert!(matches!(by_path, Err(Error::DriverTooOld { .. })), "{by_path:?}");
}

#[test]
fn every_function_is_asked_for_once_by_its_versioned_name() {
    let asked = RefCell::new(Vec::new());
    // SAFETY: nothing is found, so nothing is called.
    let refused = unsafe {
        Driver::from_resolver(|name| {
            asked.borrow_mut().push(CString::from(name));
            std::ptr::null()
        })
    };
    assert!(matches!(refused, Err(Error::DriverTooOld { symbol }) if symbol == "cuInit"));
    let listed: Vec<CString> = symbols().iter().map(|symbol| symbol.name.into()).collect();
    assert_eq!(*asked.borrow(), listed);
    let mut unique = listed.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), listed.len());
    // Bare names of functions that have versions are the old ABI, with 32-bit sizes.
    for old in
        [c"cuMemAlloc", c"cuMemFree", c"cuMemcpyHtoD", c"cuMemcpyDtoHAsync", c"cuStreamDestroy", c"cuEventDestroy"]
    {
        assert!(!listed.iter().any(|name| name.as_c_str() == old), "{old:?}");
    }
}

#[test]
fn a_driver_without_a_required_function_is_refused_by_name() {
    let required: Vec<_> = symbols().into_iter().filter(|symbol| symbol.required).collect();
    assert!(required.len() > 30);
    for symbol in required {
        let name = symbol.name.to_str().unwrap();
        match driver_without(Some(symbol.name), init) {
            Err(Error::DriverTooOld { symbol }) => assert_eq!(symbol, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_driver_without_an_optional_function_loads_and_errs_on_use() {
    for symbol in symbols().into_iter().filter(|symbol| !symbol.required) {
        driver_without(Some(symbol.name), init).unwrap();
    }
    let driver = driver_without(Some(c"cuFuncLoad"), init).unwrap();
    // SAFETY: there is no function to be called.
    let error = unsafe { driver.api().function_load(std::ptr::null_mut()) }.unwrap_err();
    assert!(matches!(error, Error::MissingFunction { call: "cuFuncLoad", .. }), "{error:?}");
    assert!(error.to_string().contains("12.4"), "{error}");
}

#[test]
fn a_driver_that_cannot_start_says_why() {
    assert!(matches!(driver_without(None, no_device), Err(Error::NoDevice { found: 0, .. })));
    let error = driver_without(None, stub_library).unwrap_err();
    assert!(
        matches!(error, Error::Cuda { call: "cuInit", code: 34, name: "CUDA_ERROR_STUB_LIBRARY", .. }),
        "{error:?}"
    );
    assert_eq!(driver_without(None, init).unwrap().version().unwrap(), (12, 8));
}

#[test]
fn a_resolver_that_panics_is_a_function_not_found() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    // SAFETY: nothing is found.
    let outcome = unsafe { Driver::from_resolver(|_| panic!("refuses")) };
    std::panic::set_hook(hook);
    assert!(matches!(outcome, Err(Error::DriverTooOld { .. })));
}

/// A part of a GPU by version 2, the GPU by version 1.
unsafe extern "C" fn uuid_of_part(uuid: *mut [u8; 16], _device: c_int) -> c_uint {
    // SAFETY: the caller passes a place for it.
    unsafe { *uuid = [7; 16] };
    0
}

#[test]
fn the_uuid_is_that_of_version_2_where_the_driver_has_it() {
    let ordinal = kiln_emulator::add_device(DeviceConfig::default());
    let uuid = |version_1: bool, version_2: bool| {
        // SAFETY: the emulator's functions have NVIDIA's signatures, and so has the one in its place.
        let driver = unsafe {
            Driver::from_resolver(|name| match name.to_bytes() {
                b"cuDeviceGetUuid" if !version_1 => std::ptr::null(),
                b"cuDeviceGetUuid_v2" if version_2 => uuid_of_part as *const c_void,
                b"cuDeviceGetUuid_v2" => std::ptr::null(),
                _ => kiln_emulator::resolve(name).map_or(std::ptr::null(), |found| found.as_ptr()),
            })
        };
        Device::open(&driver.expect("the emulator is a driver"), ordinal).expect("it was added").uuid()
    };
    assert_eq!(uuid(true, true).expect("version 2"), [7; 16]);
    assert_eq!(uuid(false, true).expect("version 2"), [7; 16]);
    assert_eq!(&uuid(true, false).expect("version 1")[..12], b"kiln emulate");
    let error = uuid(false, false).expect_err("neither");
    assert!(matches!(error, Error::MissingFunction { .. }), "{error}");
}
