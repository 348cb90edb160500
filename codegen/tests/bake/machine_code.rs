//! Machine code beside text, by a program that stands in for NVIDIA's assembler: what it is asked, and what becomes of it.
#![cfg(unix)]

use kiln_codegen::kernels::Saxpy;
use kiln_codegen::{Assembler, Bake, Error, Target};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("code {name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a scratch folder");
    folder
}

/// A program that says this version, writes its target and its text's first line, notes each run, and then does `end`.
fn stand_in(folder: &Path, version: &str, end: &str) -> PathBuf {
    let program = folder.join("ptxas");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && {{ echo 'ptxas: {version}'; exit 0; }}\n\
         echo run >> '{folder}/runs'\n{end}\nprintf '%s ' \"$1\" > \"$3\"; head -n 1 \"$4\" >> \"$3\"\n",
        folder = folder.display()
    );
    fs::write(&program, script).expect("a script");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it may run");
    program
}

fn runs(folder: &Path) -> usize {
    fs::read_to_string(folder.join("runs")).map_or(0, |runs| runs.lines().count())
}

fn cubins(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.retain(|name| name.contains("cubin"));
    names.sort();
    names
}

fn bake(program: &Path, out: &Path) -> Result<String, Error> {
    let assembler = Assembler::find(Some(program.as_os_str()))?;
    Bake::new().kernel(Saxpy).targets(Target::DEFAULT).machine_code(assembler).write(out)?;
    Ok(fs::read_to_string(out.join("kiln_baked.rs")).expect("it is written"))
}

#[test]
fn each_target_has_machine_code_beside_the_text_that_serves_it() {
    let (tools, out) = (scratch("tools"), scratch("out"));
    let program = stand_in(&tools, "1", "");
    let text = bake(&program, &out).expect("it bakes");
    // One text serves all targets, each with code of its own.
    assert_eq!(text.matches("BakedModule {").count(), 1, "{text}");
    let names = cubins(&out);
    assert_eq!((names.len(), runs(&tools)), (3, 3), "{names:?}");
    for (sm, name) in [75, 80, 90].into_iter().zip(&names) {
        assert!(
            text.contains(&format!("MachineCode::new({sm}, include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}\")))"))
        );
        let written = fs::read_to_string(out.join(name)).expect("machine code");
        assert!(written.starts_with(&format!("-arch=sm_{sm} ")), "{written}");
    }
    // What is there is not made again, but by another version it is, and the old is gone.
    bake(&program, &out).expect("it bakes");
    assert_eq!((cubins(&out), runs(&tools)), (names.clone(), 3));
    bake(&stand_in(&tools, "2", ""), &out).expect("it bakes");
    assert_eq!(runs(&tools), 6);
    assert!(cubins(&out).len() == 3 && cubins(&out).iter().all(|name| !names.contains(name)));
    // Without an assembler there is none.
    Bake::new().kernel(Saxpy).targets(Target::DEFAULT).write(&out).expect("it bakes");
    assert!(!fs::read_to_string(out.join("kiln_baked.rs")).expect("text").contains("MachineCode::new"));
}

#[test]
fn an_assembler_that_is_missing_or_refuses_is_an_error() {
    let (tools, out) = (scratch("bad tools"), scratch("bad out"));
    let missing = bake(&tools.join("nowhere"), &out).expect_err("it is missing");
    assert!(matches!(&missing, Error::Assembler { program, .. } if program.ends_with("nowhere")), "{missing}");
    assert!(missing.to_string().contains("KILN_PTXAS"), "{missing}");
    let refusal = bake(&stand_in(&tools, "1", "echo 'line 7: no such instruction' >&2; exit 255"), &out);
    let refusal = refusal.expect_err("it refuses").to_string();
    assert!(refusal.contains("line 7") && refusal.contains("kiln_kernels_sm_75"), "{refusal}");
    assert!(cubins(&out).iter().all(|name| name.ends_with(".part")), "{:?}", cubins(&out));
    assert!(!out.join("kiln_baked.rs").exists(), "a refused bake writes nothing");
    let other = Assembler::find(Some("true".as_ref())).expect_err("it is no assembler");
    assert!(other.to_string().contains("no ptxas"), "{other}");
}
