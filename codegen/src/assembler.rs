//! NVIDIA's assembler, where a bake is to hold machine code beside its text.

use crate::Target;
use crate::error::{Error, Result};
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A `ptxas` that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assembler {
    program: PathBuf,
    /// What it says of itself: other versions make other code.
    version: String,
}

/// Text that is to become machine code for a target, and the file that is to hold it.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) file: String,
    pub(crate) target: Target,
    pub(crate) ptx: String,
}

impl Assembler {
    /// The program of this path, or where none is named `ptxas` in the folders of `PATH`.
    ///
    /// # Errors
    /// [`Error::Assembler`] if it cannot be run.
    pub fn find(named: Option<&OsStr>) -> Result<Assembler> {
        let program = PathBuf::from(named.unwrap_or("ptxas".as_ref()));
        let fail = |what: String| Error::Assembler { program: program.clone(), what };
        let output = Command::new(&program).arg("--version").output().map_err(|error| fail(error.to_string()))?;
        let version = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() && version.contains("ptx") {
            true => Ok(Assembler { program, version }),
            false => Err(fail("it is no ptxas: it does not say its version".to_owned())),
        }
    }

    /// The name of a file of machine code: what it is made of is in it, so that one that exists need not be made again.
    pub(crate) fn file(&self, module: &str, target: Target, ptx: &str) -> String {
        let mut hasher = DefaultHasher::new();
        (&self.version, target, ptx).hash(&mut hasher);
        format!("{}_{target}_{:016x}.cubin", module.trim_end_matches(".ptx"), hasher.finish())
    }

    /// Makes the files that are missing, several at once, and removes those of an earlier bake.
    pub(crate) fn assemble(&self, jobs: &[Job], folder: &Path) -> Result<()> {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_ours = name.starts_with("kiln_") && name.ends_with(".cubin");
            if is_ours && !jobs.iter().any(|job| job.file == name) {
                let _ = fs::remove_file(entry.path());
            }
        }
        let missing: Vec<&Job> = jobs.iter().filter(|job| !folder.join(&job.file).exists()).collect();
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(missing.len());
        let next = AtomicUsize::new(0);
        let work = || -> Result<()> {
            while let Some(job) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.run(job, folder)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let done = running.into_iter().map(|thread| thread.join().unwrap_or(Ok(())));
            done.collect::<Vec<Result<()>>>().into_iter().collect()
        })
    }

    fn run(&self, job: &Job, folder: &Path) -> Result<()> {
        let at = |name: &str| folder.join(format!("{}.{name}", job.file));
        let (source, part) = (at("ptx"), at("part"));
        fs::write(&source, &job.ptx).map_err(|error| Error::Write { path: source.clone(), error })?;
        let arch = format!("-arch={}", job.target);
        let output = Command::new(&self.program).arg(arch).arg("-o").arg(&part).arg(&source).output();
        let _ = fs::remove_file(&source);
        let fail = |what: String| Error::Assembler { program: self.program.clone(), what };
        let output = output.map_err(|error| fail(error.to_string()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(fail(format!("{} for {}: {}", job.file, job.target, said.trim())));
        }
        // Whole, or not there at all.
        let path = folder.join(&job.file);
        fs::rename(&part, &path).map_err(|error| Error::Write { path, error })
    }
}
