//! Bakes this program's kernels: one of its own, and those of a model that a file describes.

mod softmax_rows;

use kiln_codegen::{Bake, ModelFile, Target};
use softmax_rows::SoftmaxRows;
use std::env;
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build");
    // Only the header is read. The model could as well be a shape: `Bake::model("mine", ModelShape { .. })`.
    let path = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../data/demo.Q4_K_M.gguf");
    println!("cargo:rerun-if-changed={}", path.display());
    let demo = ModelFile::open(path)?.named("demo");

    Bake::new()
        .model_file(&demo)
        .kernel(SoftmaxRows)
        .targets(["sm_75".parse::<Target>()?, "sm_80".parse()?])
        .write(env::var("OUT_DIR")?)?;
    Ok(())
}
