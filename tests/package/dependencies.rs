//! What kiln makes its users compile, counted by `cargo tree` on this machine's platform, kiln's own crates included.

use std::collections::BTreeSet;
use std::process::Command;

/// The dependencies that only examples have.
const OF_EXAMPLES: &[&str] = &["clap"];
/// Those of the feature `grammar`, whose crates are its own affair.
const OF_GRAMMARS: &[&str] = &["llguidance", "serde_json"];

/// Each crate once, as `name vN.N.N`. Cargo fetches those of features that the build of this test leaves out.
fn tree(arguments: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--package", "kiln", "--prefix", "none", "--locked"])
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("names are text");
    let name = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    text.lines().filter(|line| !line.is_empty()).map(name).collect()
}

fn holds(tree: &BTreeSet<String>, name: &str) -> bool {
    tree.iter().any(|package| package.split(' ').next() == Some(name))
}

#[track_caller]
fn at_most(budget: usize, tree: &BTreeSet<String>) {
    assert!(tree.len() <= budget, "{} crates, the budget is {budget}: {tree:#?}", tree.len());
}

/// Kernels are made while the crate is compiled, and checked by tests: a program holds neither maker nor checker.
#[test]
fn a_program_links_neither_codegen_nor_emulator() {
    let program = tree(&["--edges", "normal", "--all-features"]);
    assert!(holds(&program, "kiln-shape"), "{program:?}");
    assert!(!holds(&program, "kiln-codegen") && !holds(&program, "kiln-emulator"), "{program:#?}");
    let compiled = tree(&["--edges", "normal,build", "--all-features"]);
    assert!(holds(&compiled, "kiln-codegen") && !holds(&compiled, "kiln-emulator"), "{compiled:#?}");
}

/// Linked into a program that uses driver and ops alone. Procedural macros run in the compiler and are counted below.
#[test]
fn a_program_of_kernels_alone_links_at_most_12_crates() {
    at_most(12, &tree(&["--edges", "normal,no-proc-macro", "--no-default-features"]));
}

#[test]
fn building_kernels_alone_takes_at_most_32_crates() {
    at_most(32, &tree(&["--edges", "normal,build", "--no-default-features"]));
}

#[test]
fn everything_but_examples_and_grammars_takes_at_most_40_crates() {
    let mut arguments = vec!["--edges", "normal,build,dev", "--all-features"];
    arguments.extend(OF_EXAMPLES.iter().chain(OF_GRAMMARS).flat_map(|name| ["--prune", name]));
    let everything = tree(&arguments);
    assert!(holds(&everything, "kiln-emulator"), "{everything:#?}");
    at_most(40, &everything);
    let default = tree(&["--edges", "normal,build,dev"]);
    assert!(OF_GRAMMARS.iter().all(|name| !holds(&default, name)), "{default:#?}");
}
