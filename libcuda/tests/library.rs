//! The library as a program finds it: built, then looked into with `nm`, and loaded with `dlopen`.

mod common;

use common::{Library, listed, path};
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::process::Command;

/// The program that lists or prints what an ELF file holds, run on the library.
fn told_by(program: &str, arguments: &[&str]) -> String {
    let out = Command::new(program).args(arguments).arg(path()).output().expect("binutils are installed");
    assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("names are ASCII")
}

#[test]
fn exports_are_the_table() {
    let text = told_by("nm", &["-D", "--defined-only"]);
    let exported: BTreeSet<&str> = text.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let listed = listed();
    assert!(listed.len() > 700, "{} symbols", listed.len());
    assert_eq!(exported, listed.iter().map(|(name, _)| name.as_str()).collect());
}

#[test]
fn name_is_that_of_nvidias_library() {
    let text = told_by("readelf", &["-d"]);
    assert!(text.lines().any(|line| line.contains("(SONAME)") && line.contains("[libcuda.so.1]")), "{text}");
}

#[test]
fn functions_that_are_not_implemented_say_so() {
    let library = Library::open();
    // SAFETY: without a function behind it a symbol touches no argument.
    unsafe {
        let texture = library.function::<extern "C" fn(*mut usize) -> u32>("cuTexRefCreate");
        assert_eq!(texture(std::ptr::null_mut()), 801);
        let table = library.function::<extern "C" fn(*mut usize, *const u8) -> u32>("cuGetExportTable");
        assert_eq!(table(std::ptr::null_mut(), std::ptr::null()), 801);
    }
}

type GetProcAddress = extern "C" fn(*const i8, *mut *mut c_void, c_int, u64, *mut c_int) -> u32;

#[test]
fn functions_are_found_by_name_and_version() {
    let library = Library::open();
    // SAFETY: the signature is that of NVIDIA's header.
    let get = unsafe { library.function::<GetProcAddress>("cuGetProcAddress_v2") };
    let find = |name: &std::ffi::CStr, version, flags| {
        let (mut found, mut status) = (std::ptr::null_mut(), -1);
        let code = get(name.as_ptr().cast(), &raw mut found, version, flags, &raw mut status);
        (code, (!found.is_null()).then_some(found), status)
    };
    let at = |name: &str| Some(library.address(name));
    assert_eq!(find(c"cuMemAlloc", 12000, 0), (0, at("cuMemAlloc_v2"), 0));
    assert_eq!(find(c"cuMemAlloc", 3000, 0), (0, at("cuMemAlloc"), 0));
    assert_eq!(find(c"cuCtxCreate", 11040, 0), (0, at("cuCtxCreate_v3"), 0));
    assert_eq!(find(c"cuCtxCreate", 12050, 0), (0, at("cuCtxCreate_v4"), 0));
    assert_eq!(find(c"cuStreamQuery", 12000, 2), (0, at("cuStreamQuery_ptsz"), 0));
    assert_eq!(find(c"cuStreamQuery", 12000, 1), (0, at("cuStreamQuery"), 0));
    // Without a form for per-thread streams it is the common one.
    assert_eq!(find(c"cuInit", 12000, 2), (0, at("cuInit"), 0));
    assert_eq!(find(c"cuNoSuch", 12000, 0), (0, None, 1));
    assert_eq!(find(c"cuMemAllocAsync", 11000, 0), (0, None, 2));
    assert_eq!(find(c"cuInit", 99000, 0).0, 1);
}
