//! Errors of making kernels.

use crate::target::Target;
use kiln_shape::ShapeError;
use std::fmt;
use std::io;
use std::panic::Location;

/// An error of building, verifying or baking kernels.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A kernel breaks a rule of the language.
    Kernel {
        /// Its entry name.
        kernel: String,
        /// Which rule, with what was found and needed.
        what: String,
        /// The line that wrote the offending instruction.
        source: &'static Location<'static>,
    },
    /// A kernel takes more shared memory than a block of the target has.
    SharedMemory {
        /// Its entry name.
        kernel: String,
        /// The bytes that it takes, and those that the target has.
        what: String,
        /// The line that begins it.
        source: &'static Location<'static>,
    },
    /// A dimension that a kernel cannot work with.
    Dimension {
        /// The kernel's entry name.
        kernel: String,
        /// The dimension's name, its value, and what is needed.
        what: String,
    },
    /// A model shape that no kernel fits.
    Shape {
        /// The model.
        model: String,
        /// What does not fit.
        what: String,
    },
    /// A file that no model can be baked from.
    ModelFile {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        fault: FileFault,
    },
    /// A file could not be written.
    Write {
        /// The file.
        path: std::path::PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// An assembler that cannot be run, or what it says against a text.
    Assembler {
        /// The program.
        program: std::path::PathBuf,
        /// What the system or the program says.
        what: String,
    },
    /// A bake without targets or with one twice.
    Targets(Vec<Target>),
    /// A model's name that cannot be a static's, or that another static has.
    ModelName {
        /// The name.
        model: String,
        /// What is wrong with it.
        what: String,
    },
    /// A kernel's name that cannot be an entry's.
    KernelName(String),
    /// A kernel's name that makes no struct for its launch, or one that another kernel's makes.
    LaunchName {
        /// The kernel's name.
        kernel: String,
        /// The struct's name.
        launch: String,
        /// The kernel that has it.
        other: Option<String>,
    },
    /// Two kernels of one bake with one entry name.
    KernelTwice {
        /// The name.
        kernel: String,
        /// The first kernel, as its `Debug` shows it.
        first: String,
        /// The second.
        second: String,
    },
}

/// A result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Kernel { kernel, what, source } | Error::SharedMemory { kernel, what, source } => {
                write!(f, "kernel {kernel}: {what} (at {source})")
            }
            Error::Dimension { kernel, what } => write!(f, "kernel {kernel}: {what}"),
            Error::Shape { model, what } => write!(f, "model {model}: {what}"),
            Error::ModelFile { path, fault } => write!(f, "model file {}: {fault}", path.display()),
            Error::Write { path, error } => write!(f, "writing {}: {error}", path.display()),
            Error::Assembler { program, what } => {
                write!(f, "assembler {}: {what}; KILN_PTXAS or `Assembler::find` names another", program.display())
            }
            Error::Targets(targets) => {
                let names: Vec<String> = targets.iter().map(Target::to_string).collect();
                write!(f, "targets [{}]: at least one is needed, each once", names.join(", "))
            }
            Error::ModelName { model, what } => write!(f, "model name {model:?}: {what}"),
            Error::KernelName(kernel) => {
                write!(f, "kernel name {kernel:?}: needs a letter or `_`, then letters, digits and `_`")
            }
            Error::LaunchName { kernel, launch, other } => {
                let whose =
                    other.as_ref().map_or("no name for a struct".to_owned(), |other| format!("that of `{other}`"));
                write!(
                    f,
                    "kernel name {kernel:?}: its launch would be `{launch}`, {whose}; bake it by `Bake::kernel_as`"
                )
            }
            Error::KernelTwice { kernel, first, second } => write!(
                f,
                "two kernels are named `{kernel}`, {first} and {second}: give one a name of its own by `Bake::kernel_as`"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Write { error, .. } | Error::ModelFile { fault: FileFault::Io(error), .. } => Some(error),
            Error::ModelFile { fault: FileFault::Header(error), .. } => Some(error),
            _ => None,
        }
    }
}

/// Why no model can be baked from a file.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileFault {
    /// The path begins nowhere: a build script has a folder of its own.
    Relative,
    /// The path has control characters or is no Unicode, and cargo, which watches the file, could not be told of it.
    Unprintable,
    /// The system's error.
    Io(io::Error),
    /// A folder, a device, a pipe.
    NotAFile,
    /// No GGUF file, or one of a model that kiln does not decode.
    Header(ShapeError),
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileFault::Relative => f.write_str(
                "the path is relative, and a build script has a folder of its own; give it from the root on",
            ),
            FileFault::Unprintable => f.write_str(
                "the path has control characters or is no Unicode, and cargo cannot watch it; link it to a plain one",
            ),
            FileFault::Io(error) => error.fmt(f),
            FileFault::NotAFile => f.write_str("it is no file; a GGUF file is needed"),
            FileFault::Header(error) => error.fmt(f),
        }
    }
}
