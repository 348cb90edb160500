//! The library, built and loaded.

use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// `RTLD_NOW`
const NOW: c_int = 2;

/// The library's file. Cargo does not build a C library for its package's tests, so this does.
pub(crate) fn path() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "kiln-libcuda", "--message-format", "json"]);
        let out = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8(out.stdout).expect("JSON is Unicode");
        let mut strings = text.split('"').filter(|text| text.ends_with("libkiln_libcuda.so"));
        strings.next().expect("cargo names what it builds").into()
    })
}

/// Names and versions of the table of symbols, read from its text.
pub(crate) fn listed() -> BTreeSet<(String, u32)> {
    let text = include_str!("../../src/symbols.rs");
    let (_, rows) = text.split_once("symbols! {").expect("the table");
    let rows = rows.split([',', '}']).map(str::trim).filter(|row| !row.is_empty());
    rows.map(|row| {
        let (name, since) = row.split_once(' ').expect("a name and a version");
        (name.to_owned(), since.parse().expect("a version"))
    })
    .collect()
}

/// The loaded library; it stays for the life of the process.
pub(crate) struct Library(*mut c_void);

impl Library {
    pub(crate) fn open() -> Library {
        let path = CString::new(path().to_str().expect("a path in Unicode")).expect("a path has no NUL");
        // SAFETY: a path with a NUL; what the library runs on load is its own.
        let library = unsafe { dlopen(path.as_ptr(), NOW) };
        assert!(!library.is_null(), "the library can be loaded");
        Library(library)
    }

    /// The address of a symbol.
    pub(crate) fn address(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).expect("a name has no NUL");
        // SAFETY: the library is loaded, the name ends in NUL.
        let found = unsafe { dlsym(self.0, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?} is exported");
        found
    }

    /// A function.
    ///
    /// # Safety
    /// `F` is the function's type.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> F {
        assert_eq!(size_of::<F>(), size_of::<usize>());
        let address = self.address(name);
        // SAFETY: a pointer to a function, of the type that the caller vouches for.
        unsafe { std::mem::transmute_copy(&address) }
    }
}
