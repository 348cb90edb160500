//! Exported symbols: each jumps to the function that its slot holds, with all arguments where they are.
//!
//! So a symbol needs no signature here. The slots are filled when the library is loaded, before anybody can call.

use std::ffi::c_void;
use std::sync::atomic::AtomicPtr;

/// An exported function, as an address.
pub(crate) type Entry = unsafe extern "C" fn();

/// A symbol of the driver API.
pub(crate) struct Symbol {
    /// The name, version suffix included.
    pub(crate) name: &'static str,
    /// The CUDA version that brought it, 12080 for 12.8.
    pub(crate) since: u32,
    /// The exported function.
    pub(crate) entry: Entry,
    /// The function that the exported one jumps to.
    pub(crate) slot: &'static AtomicPtr<c_void>,
}

/// Exports functions by name and version, and lists them in `SYMBOLS`, sorted by name.
macro_rules! symbols {
    ($($name:ident $since:literal,)*) => {
        $(
            #[allow(non_snake_case)]
            mod $name {
                use std::ffi::c_void;
                use std::sync::atomic::AtomicPtr;

                pub(super) static SLOT: AtomicPtr<c_void> = AtomicPtr::new(missing as *mut c_void);

                extern "C" fn missing() -> u32 {
                    $crate::log::not_supported(stringify!($name))
                }
            }

            /// Jumps to what its slot holds.
            #[cfg(target_arch = "x86_64")]
            #[allow(non_snake_case)]
            // SAFETY: the name is the driver API's, which nothing else in the library exports.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                std::arch::naked_asm!("jmp qword ptr [rip + {slot}]", slot = sym $name::SLOT)
            }

            /// Jumps to what its slot holds.
            #[cfg(target_arch = "aarch64")]
            #[allow(non_snake_case)]
            // SAFETY: the name is the driver API's, which nothing else in the library exports.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                std::arch::naked_asm!(
                    "adrp x16, {slot}", "ldr x16, [x16, :lo12:{slot}]", "br x16", slot = sym $name::SLOT
                )
            }
        )*

        pub(crate) static SYMBOLS: &[$crate::entry::Symbol] = &[$($crate::entry::Symbol {
            name: stringify!($name), since: $since, entry: $name, slot: &$name::SLOT,
        },)*];
    };
}

pub(crate) use symbols;
