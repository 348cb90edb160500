//! The C functions, each under the versioned name that libcuda exports, and the resolver that finds them.
//!
//! A function here turns handles and pointers into values and calls the part that knows; it decides nothing.
#![allow(non_snake_case)]

/// The driver functions of a file, each with the C signature of NVIDIA's header, and the finder of them by name.
macro_rules! api {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) => $body:expr;)*) => {
        $($(#[$doc])* extern "C" fn $name($($arg: $type),*) -> u32 { $body })*

        pub(super) fn find(name: &str) -> Option<*const ()> {
            Some(match name {
                $(stringify!($name) => $name as *const (),)*
                _ => return None,
            })
        }

        #[cfg(test)]
        pub(super) const NAMES: &[&str] = &[$(stringify!($name),)*];
    };
}

mod context;
mod device;
mod event;
mod graph;
mod launch;
mod memory;
mod module;
mod stream;

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// The finder of one file's functions: all driver functions by their names.
type Find = fn(&str) -> Option<*const ()>;

const FILES: [Find; 8] =
    [context::find, device::find, event::find, graph::find, launch::find, memory::find, module::find, stream::find];

/// Finds a driver function by its versioned symbol name, such as `c"cuMemAlloc_v2"`; `None` for what this driver does not
/// have. The bare names of functions that have versions are the old ABI and not offered.
///
/// The pointer is that of an `extern "C"` function with the signature of NVIDIA's `cuda.h` 13.0.
pub fn resolve(name: &CStr) -> Option<NonNull<c_void>> {
    let name = name.to_str().ok()?;
    NonNull::new(FILES.iter().find_map(|find| find(name))? as *mut c_void)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn every_symbol_is_its_own_function() {
        let names = [
            context::NAMES,
            device::NAMES,
            event::NAMES,
            graph::NAMES,
            launch::NAMES,
            memory::NAMES,
            module::NAMES,
            stream::NAMES,
        ]
        .concat();
        let mut found: Vec<_> = names.iter().map(|name| resolve(&CString::new(*name).unwrap()).unwrap()).collect();
        found.sort();
        found.dedup();
        // Two pairs are the same function under both names, and the compiler may or may not merge them.
        assert!(found.len() + 2 >= names.len());
        assert_eq!(resolve(c"cuMemAlloc"), None, "the bare name is the old ABI");
    }
}
