//! The bindings that bindgen makes of `cuda.h`, or their checked-in copy. Level one: nothing is checked here.

#![allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, unreachable_pub)]
#![allow(clippy::type_complexity)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
