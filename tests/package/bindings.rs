//! The bindings that are checked in are what bindgen makes of the header.

/// Line ends and layout are rustfmt's, which may be missing where bindgen runs.
fn tokens(text: &str) -> String {
    text.split_whitespace().collect::<String>().replace(",)", ")").replace(",>", ">").replace(",}", "}")
}

/// Where bindgen could not run there is nothing to compare, and the test says so; `KILN_BINDINGS=generate` makes sure
/// that it did.
#[test]
fn checked_in_bindings_equal_generated_ones() {
    let built = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));
    let checked_in = include_str!("../../src/driver/bindings.rs");
    if env!("KILN_BINDINGS_ORIGIN") == "checked-in" {
        eprintln!("NOT COMPARED: libclang could not be loaded; build with KILN_BINDINGS=generate where it can");
    }
    assert!(built.contains("kiln_cu_api"));
    assert_eq!(tokens(built), tokens(checked_in), "copy OUT_DIR/bindings.rs to src/driver/bindings.rs");
}
