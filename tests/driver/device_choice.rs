//! The examples' choice of a device, which is theirs and not the library's.

#[path = "../../examples/common/mod.rs"]
mod common;

use common::{Wish, pick};
use kiln::driver::Driver;

#[test]
fn auto_takes_the_gpu_where_there_is_one_and_says_why() {
    let picked = pick(Some(Wish::Auto)).unwrap();
    assert_eq!(picked.emulated, Driver::load().is_err());
    assert!(picked.why.starts_with("auto: "), "{picked}");
}

#[test]
fn the_emulator_can_be_asked_for_anywhere() {
    let picked = pick(Some(Wish::Emulator)).unwrap();
    assert!(picked.emulated && picked.why.contains("--device"), "{picked}");
    assert!(picked.device.multiprocessors() > 0);
}

#[test]
fn asking_for_cuda_never_falls_back() {
    match pick(Some(Wish::Cuda)) {
        Ok(picked) => assert!(!picked.emulated),
        Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
    }
}

#[test]
fn devices_have_three_names() {
    for (name, wish) in [("cuda", Wish::Cuda), ("emulator", Wish::Emulator), ("auto", Wish::Auto)] {
        assert_eq!(name.parse(), Ok(wish));
    }
    assert!("gpu".parse::<Wish>().unwrap_err().contains("emulator"));
}
