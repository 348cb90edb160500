//! The one error type: what happened, what was found, what was needed, what to do.

/// Result of everything that can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The driver's library could not be opened.
    #[error(
        "no CUDA driver: tried {tried}; {reason}; install NVIDIA's driver, or add its folder to the library search path"
    )]
    DriverNotFound {
        /// Names that were tried.
        tried: String,
        /// What the platform's loader said of the last.
        reason: String,
    },

    /// The driver's library lacks a function that everything needs.
    #[error("the CUDA driver has no `{symbol}`; install a driver for CUDA 11.0 or later")]
    DriverTooOld {
        /// Versioned name of the function.
        symbol: String,
    },

    /// The driver's library lacks an optional function, and it was called.
    #[error("the CUDA driver has no `{call}`, which needs a driver for CUDA {since} or later")]
    MissingFunction {
        /// Name of the function.
        call: &'static str,
        /// First CUDA version that has it.
        since: &'static str,
    },

    /// There is no device of that ordinal.
    #[error("no CUDA device {ordinal}: the driver reports {found} device(s), counted from 0")]
    NoDevice {
        /// The ordinal that was asked for.
        ordinal: i32,
        /// How many devices there are.
        found: i32,
    },

    /// A driver call failed.
    #[error("{call} failed: {name} ({code}), {meaning}")]
    Cuda {
        /// Name of the call; after an asynchronous failure, the call that learned of it.
        call: &'static str,
        /// `CUresult`.
        code: u32,
        /// Name of the code in NVIDIA's header.
        name: &'static str,
        /// What the code means, and what to do.
        meaning: &'static str,
    },

    /// A driver call succeeded, but its address is null or misaligned.
    #[error(
        "{call} gave {found:#x} as the address of a {what}, which needs a multiple of {alignment} other than 0; take a device that maps host memory"
    )]
    InvalidAddress {
        /// Name of the call.
        call: &'static str,
        /// What was to lie there.
        what: &'static str,
        /// The address.
        found: u64,
        /// What it must be a multiple of.
        alignment: u64,
    },

    /// The driver refused a module's PTX.
    #[error("the driver's compiler refused the PTX: {name} ({code}), {meaning}; its log: {log}")]
    JitFailed {
        /// `CUresult`.
        code: u32,
        /// Name of the code in NVIDIA's header.
        name: &'static str,
        /// What the code means, and what to do.
        meaning: &'static str,
        /// The compiler's own words.
        log: String,
    },

    /// The driver is older than the PTX of a module.
    #[error("the CUDA driver does not know PTX {version}; install a driver for CUDA {cuda}")]
    PtxTooNew {
        /// The module's `.version`.
        version: String,
        /// The CUDA version whose driver knows it, such as "12.5 or later".
        cuda: &'static str,
    },

    /// A module has no kernel of that name.
    #[error("the module has no kernel `{kernel}`; its entry name must equal the one in the PTX")]
    KernelNotFound {
        /// Entry name that was asked for.
        kernel: String,
    },

    /// The program was built without that kernel.
    #[error("kernel `{kernel}` was not baked into this program; build with {setting}")]
    KernelNotBaked {
        /// Entry name of the kernel.
        kernel: String,
        /// Feature or variable that bakes it.
        setting: String,
    },

    /// A baked kernel has other parameters than its launch.
    #[error(
        "parameters of kernel `{kernel}` at `{parameter}`: found {found}, needed {needed}; bake it with the generator of this version of kiln"
    )]
    KernelParameter {
        /// Entry name of the kernel.
        kernel: String,
        /// The first parameter that differs.
        parameter: &'static str,
        /// What the kernel has there.
        found: String,
        /// What the launch has there.
        needed: String,
    },

    /// The device is older than every target that kernels are baked for.
    #[error("the device has compute capability sm_{sm}; kiln's kernels need sm_{needed} or later: take a newer device")]
    DeviceTooOld {
        /// Compute capability of the device.
        sm: u32,
        /// The least that kernels can be baked for.
        needed: u32,
    },

    /// Device or page-locked memory is used up.
    #[error(
        "out of memory for {what}: {needed} bytes needed, {free} of {total} free; free other buffers, or take a smaller model or context"
    )]
    OutOfMemory {
        /// What it was for.
        what: &'static str,
        /// Bytes asked for.
        needed: u64,
        /// Bytes free on the device.
        free: u64,
        /// Bytes of the device.
        total: u64,
    },

    /// A size does not fit the address space, or the 32 bits that a kernel counts in.
    #[error("the size of {what} overflows: {found}; it must stay below {limit}")]
    SizeOverflow {
        /// What was to be sized.
        what: &'static str,
        /// The factors.
        found: String,
        /// First size that does not fit.
        limit: u64,
    },

    /// An argument is outside what the call takes.
    #[error("{what}: found {found}, expected {expected}")]
    InvalidArgument {
        /// Which argument.
        what: String,
        /// What it was.
        found: String,
        /// What it must be.
        expected: String,
    },

    /// A buffer belongs to another device than the stream it was used on.
    #[error("{what} is on device {found}, the call is on device {expected}; copy it there first")]
    WrongDevice {
        /// Which argument.
        what: &'static str,
        /// Device of the buffer.
        found: i32,
        /// Device of the call.
        expected: i32,
    },

    /// An object was made by another driver than the one it was used with.
    #[error("{what} was made by another `Driver` than the one called; open all devices with clones of one `Driver`")]
    WrongDriver {
        /// Which object.
        what: &'static str,
    },

    /// A buffer that the call writes is also another argument of it.
    #[error("{output} and {other} are the same buffer, and {output} is written; give the call a buffer of its own")]
    Aliasing {
        /// The argument that is written.
        output: &'static str,
        /// The argument it coincides with.
        other: &'static str,
    },

    /// A launch asks for more shared memory than a block can have on that device.
    #[error(
        "kernel `{kernel}` wants {needed} bytes of shared memory a block ({fixed} static), the device has {limit}; take a kernel for a smaller target"
    )]
    SharedMemory {
        /// Entry name of the kernel.
        kernel: String,
        /// Static and dynamic bytes.
        needed: u64,
        /// Static bytes of these.
        fixed: u64,
        /// The device's limit with opting in.
        limit: u64,
    },

    /// The host has waited for longer than [`Limits::wait`](crate::driver::Limits) without any progress.
    #[error(
        "{what}: no progress for {} ms; the device may hang or be busy with other work; raise `Limits::wait` if work takes that long",
        waited.as_millis()
    )]
    Stalled {
        /// What was waited for.
        what: &'static str,
        /// How long.
        waited: std::time::Duration,
    },

    /// A block of a resident kernel has waited for the others for longer than
    /// [`Limits::device_wait`](crate::driver::Limits), and all have left.
    #[error(
        "block {block} of the resident decoder has waited for others for longer than `Limits::device_wait`; the sessions that ran on it have ended: make new ones"
    )]
    DecoderStalled {
        /// The first block that gave up.
        block: u32,
    },

    /// A file is not a model that kiln decodes.
    #[error("{}: {what}", path.display())]
    ModelFile {
        /// The file.
        path: std::path::PathBuf,
        /// What was found, and what was needed.
        what: String,
    },

    /// This program has no kernels for a model.
    #[error("{}: {what}; this program has {baked}; build with {setting}", path.display())]
    NotBaked {
        /// The model's file.
        path: std::path::PathBuf,
        /// The differences.
        what: String,
        /// The models that were baked.
        baked: String,
        /// What to build with.
        setting: String,
    },

    /// A file is not a session that this model can go on with.
    #[error("{}: {what}", path.display())]
    SessionFile {
        /// The file.
        path: std::path::PathBuf,
        /// What was found, and what to do.
        what: String,
    },

    /// A session has no room for more tokens.
    #[error(
        "the context is full: {used} tokens and {more} more do not fit {capacity} positions; shorten the prompt or truncate the session"
    )]
    ContextFull {
        /// Tokens in the session.
        used: usize,
        /// Tokens that were to be added.
        more: usize,
        /// Positions of the session.
        capacity: usize,
    },

    /// A session without tokens was asked for a token or logits.
    #[error("the session is empty, and nothing can follow nothing; append at least one token first")]
    EmptySession,

    /// The model computed logits that no token can be chosen from: one is NaN or +inf, or all are -inf.
    #[error(
        "the logits at position {position} are not finite: one is NaN or +inf, or all are -inf; the file's weights are damaged or overflow f32: compare its checksum, or take another quantisation; to go on, truncate the session to at most {position} tokens"
    )]
    LogitsNotFinite {
        /// The position whose token the logits follow, counted from 0.
        position: usize,
    },

    /// Bans leave no token to choose.
    #[error(
        "no token may be chosen at position {position}: all that the model can write are banned; allow at least one"
    )]
    NoTokenAllowed {
        /// The position of the token, counted from 0.
        position: usize,
    },

    /// A kernel refused what it read from device memory, and has done nothing outside its buffers.
    #[error("a kernel reported error {code}: {what}")]
    Kernel {
        /// What it refused.
        what: &'static str,
        /// The error word.
        code: u32,
    },

    /// What an answer's form was to be is no grammar, or takes too much work.
    #[cfg(feature = "grammar")]
    #[error("the grammar: {what}")]
    Grammar {
        /// What the grammar's compiler, or its matcher, said.
        what: String,
    },

    /// Text, tokens or a chat template.
    #[cfg(feature = "text")]
    #[error(transparent)]
    Text(#[from] crate::text::TextError),
}

impl Error {
    /// The `CUresult` behind this error, where there is one.
    pub fn code(&self) -> Option<u32> {
        match self {
            Error::Cuda { code, .. } | Error::JitFailed { code, .. } => Some(*code),
            _ => None,
        }
    }
}
