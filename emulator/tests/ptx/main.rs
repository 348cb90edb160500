//! PTX text, loaded and launched without a driver.

#![allow(clippy::needless_range_loop)]

mod rig;
#[path = "../table/mod.rs"]
mod table;

mod calls;
mod clock;
mod clusters;
mod definedness;
mod execution;
mod findings;
mod foreign;
mod memory;
mod nvcc;
mod points;
mod published;
mod races;
mod refused;
mod rounding;
mod system;
mod tensors;
mod text;
mod truth;
mod validation;
mod waits;
mod warpgroups;

/// The manifest says `test = false` of the library, so a unit test there would never run.
#[test]
fn the_library_has_no_unit_tests() {
    let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            files += 1;
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(!text.contains("#[test]") && !text.contains("cfg(test)"), "{}", path.display());
        }
    }
    assert!(files > 40, "{files} files");
}
