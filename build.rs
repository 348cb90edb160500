//! Compiles the driver table's shim, makes its Rust bindings, and bakes the kernels of the chosen models.
//!
//! Variables read here:
//! - `CARGO_FEATURE_*`: the models to bake, a feature each; `float-weights` and `legacy-quants`, which add types of
//!   weights to all of them; and `trace`, which adds the kernels that trace.
//! - `KILN_TARGETS`: the compute capabilities to bake for, as `sm_80,sm_90`; unset means `sm_75,sm_80,sm_90`, which
//!   cover every later chip.
//! - `KILN_MODELS`: GGUF files whose models are baked besides, from their headers: whole paths, separated as those of
//!   `PATH`, each with `NAME=` before it where the model is not to have the file's name.
//! - `KILN_PROVENANCE`: `1` keeps the source line of every instruction, and the kernels' own names, in the PTX, for
//!   profilers and for the emulator's faults and counters; twice the bytes. Unset or `0` leaves them out.
//! - `KILN_CUBIN`: `1` keeps machine code for each target beside its PTX, made by the `ptxas` that `KILN_PTXAS` names, or
//!   the one in `PATH`. Unset or `0` needs none.
//! - `KILN_BINDINGS`: `generate` makes the bindings of `src/driver/cuda.h` with bindgen and fails where libclang cannot
//!   be loaded; `checked-in` takes the copy `src/driver/bindings.rs`; unset tries the first and falls back to the second.
//! - `LIBCLANG_PATH`, `LLVM_CONFIG_PATH`, `CLANG_PATH`, `BINDGEN_EXTRA_CLANG_ARGS`: where bindgen finds libclang, and what
//!   it passes to it.
//! - what `cc` reads to find the C compiler (`CC`, `CFLAGS`, ...).

use kiln_codegen::{Assembler, Bake, ModelFile, Target};
use kiln_shape::{WeightType, presets};
use std::env;
use std::error::Error;
use std::fs;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=build.rs");
    compile_shim();
    match make_bindings().and_then(|()| bake()) {
        Ok(()) => ExitCode::SUCCESS,
        // In words: what `main` returns is shown as the program has it.
        Err(error) => {
            println!("cargo::error={}", error.to_string().replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

/// Writes the PTX of every model whose feature is on or whose file is named, and of the general kernels, with their
/// descriptors.
fn bake() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-env-changed=KILN_TARGETS");
    let targets = match env::var("KILN_TARGETS") {
        Ok(names) => {
            let targets: Result<Vec<Target>, _> = names.split(',').map(|name| name.trim().parse()).collect();
            targets.map_err(|error| format!("KILN_TARGETS is `{names}`: {error}"))?
        }
        Err(_) => Target::DEFAULT.to_vec(),
    };
    let is_on = |feature: &str| {
        let feature = feature.to_uppercase().replace('-', "_");
        env::var_os(format!("CARGO_FEATURE_{feature}")).is_some()
    };
    let chosen = presets::all().filter(|preset| is_on(preset.feature));
    println!("cargo:rerun-if-env-changed=KILN_MODELS");
    let files = ModelFile::list(&env::var_os("KILN_MODELS").unwrap_or_default())
        .map_err(|error| format!("KILN_MODELS: {error}"))?;
    for file in &files {
        println!("cargo:rerun-if-changed={}", file.path().display());
    }
    let provenance = switch("KILN_PROVENANCE")?;
    let bake =
        Bake::new().kiln("crate").targets(targets).general_kernels().tracing(is_on("trace")).provenance(provenance);
    println!("cargo:rerun-if-env-changed=KILN_PTXAS");
    let bake = match switch("KILN_CUBIN")? {
        true => bake.machine_code(Assembler::find(env::var_os("KILN_PTXAS").as_deref())?),
        false => bake,
    };
    // First, so that a file is run by what was baked for it.
    let bake = files.iter().fold(bake, Bake::model_file);
    let bake = chosen.fold(bake, |bake, preset| {
        let is_baked = |ty: &WeightType| preset.types.contains(*ty) || presets::feature_of(*ty).is_some_and(is_on);
        let types: Vec<WeightType> = WeightType::ALL.iter().copied().filter(is_baked).collect();
        bake.model_with_types(preset.feature, preset.shape, &types)
    });
    Ok(bake.write(env::var("OUT_DIR")?)?)
}

/// Whether a variable is `1`.
fn switch(variable: &str) -> Result<bool, String> {
    println!("cargo:rerun-if-env-changed={variable}");
    match env::var(variable).as_deref() {
        Ok("1") => Ok(true),
        Ok("0" | "") | Err(_) => Ok(false),
        Ok(other) => Err(format!("{variable} is `{other}`; it takes `1` or `0`")),
    }
}

/// `src/driver/shim.c` becomes a static library; nothing of CUDA is linked.
fn compile_shim() {
    println!("cargo:rerun-if-changed=src/driver/shim.c");
    println!("cargo:rerun-if-changed=src/driver/cuda.h");
    cc::Build::new().file("src/driver/shim.c").warnings(true).extra_warnings(true).compile("kiln_shim");
}

/// Writes `OUT_DIR/bindings.rs`, and tells the tests by `KILN_BINDINGS_ORIGIN` where it came from.
fn make_bindings() -> Result<(), Box<dyn Error>> {
    for variable in ["KILN_BINDINGS", "LIBCLANG_PATH", "LLVM_CONFIG_PATH", "CLANG_PATH", "BINDGEN_EXTRA_CLANG_ARGS"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let checked_in = Path::new("src/driver/bindings.rs");
    println!("cargo:rerun-if-changed={}", checked_in.display());
    let out = PathBuf::from(env::var("OUT_DIR")?).join("bindings.rs");

    let wish = env::var("KILN_BINDINGS").unwrap_or_default();
    let origin = match wish.as_str() {
        "generate" => {
            fs::write(&out, generate_bindings()?)?;
            "generated"
        }
        "checked-in" => {
            fs::copy(checked_in, &out)?;
            "checked-in"
        }
        "" => match generate_bindings() {
            Ok(text) => {
                fs::write(&out, text)?;
                "generated"
            }
            Err(reason) => {
                // The first clause says it; the rest is the list of names that were tried.
                let reason = reason.split([':', '\n']).next().unwrap_or_default();
                // Not a warning: nothing is wrong. It stands in the build script's output, as `cargo build -vv` shows it.
                println!("bindgen could not run ({reason}); the checked-in bindings are used instead");
                fs::copy(checked_in, &out)?;
                "checked-in"
            }
        },
        other => return Err(format!("KILN_BINDINGS is `{other}`; it takes `generate` or `checked-in`").into()),
    };
    println!("cargo:rustc-env=KILN_BINDINGS_ORIGIN={origin}");
    Ok(())
}

/// bindgen's output for `cuda.h`. Where libclang cannot be loaded bindgen panics; that becomes an error here.
fn generate_bindings() -> Result<String, String> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let outcome = panic::catch_unwind(|| {
        bindgen::Builder::default()
            .header("src/driver/cuda.h")
            .allowlist_file(".*cuda\\.h")
            .layout_tests(false)
            .default_macro_constant_type(bindgen::MacroTypeVariation::Unsigned)
            .disable_header_comment()
            .merge_extern_blocks(true)
            .raw_line("// What bindgen makes of cuda.h; made again with `KILN_BINDINGS=generate`.")
            .rust_edition(bindgen::RustEdition::Edition2024)
            .rust_target(bindgen::RustTarget::stable(88, 0).unwrap_or_default())
            .generate()
    });
    panic::set_hook(hook);
    match outcome {
        Ok(Ok(bindings)) => Ok(bindings.to_string()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(panic) => Err(panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("libclang could not be loaded")
            .to_owned()),
    }
}
