//! Faults: why a launch stopped, and where.

use std::fmt;

/// Kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// A launch with a shape or parameters that the kernel or the device does not allow.
    InvalidLaunch,
    /// The launch needs more registers, threads or shared memory than a block may have.
    OutOfResources,
    /// A cooperative launch whose blocks cannot all be resident.
    CooperativeTooLarge,
    /// A cluster of a size that no device has.
    InvalidCluster,
    /// A launch with a feature that this device lacks.
    Unsupported,
    /// An access outside every allocation, or outside the space it names.
    OutOfBounds,
    /// An access to freed memory, or to shared memory of a block that has exited.
    UseAfterFree,
    /// An address that is not a multiple of the access's size.
    Misaligned,
    /// A write to read-only memory (parameters, constants).
    ReadOnly,
    /// Something depends on a register that no path has written.
    UninitialisedRegister,
    /// Something depends on memory that nothing has written, or the host gets it.
    UninitialisedMemory,
    /// A barrier that some of its lanes or warps never reach, or execute with other operands.
    DivergentBarrier,
    /// A warp-wide instruction with a member mask other than its lanes, a value from an inactive lane, or an mbarrier in
    /// the wrong state; or a programmatic launch that does not wait.
    InvalidSync,
    /// Two conflicting accesses, neither of which happens before the other.
    Race,
    /// Stores of the same value to the same bytes by lanes of one instruction.
    SameValueStore,
    /// A non-coherent read of data written during the launch.
    StaleRead,
    /// An object that the program did not give back.
    Leak,
    /// A launch in which no warp can make progress.
    Deadlock,
    /// A launch that reached its limit of instructions or of time.
    StepLimit,
    /// A `trap`, or an instruction with operands that it does not allow.
    IllegalInstruction,
    /// The end of a block with copies into or out of its memory in flight.
    CopyInFlight,
    /// A failed `assert` of device code.
    Assertion,
    /// A call of an address that is none of the call's functions, or a branch by an index without a label.
    InvalidTarget,
}

impl FaultKind {
    /// Whether it is a finding, after which a launch can go on: a race, something uninitialised, a leak.
    pub fn is_finding(self) -> bool {
        use FaultKind::*;
        matches!(self, UninitialisedRegister | UninitialisedMemory | Race | SameValueStore | StaleRead | Leak)
    }
}

/// A result, or the fault that ends the launch; rare and large, so boxed.
pub(crate) type OrFault<T> = Result<T, Box<Fault>>;

/// A fault, with its place and thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The kind.
    pub kind: FaultKind,
    /// What was found and needed, in a sentence.
    pub message: String,
    /// The kernel.
    pub kernel: String,
    /// Line of the PTX text, 1-based; 0 where no instruction is concerned.
    pub ptx_line: u32,
    /// Line of the earlier access or load that it is about; 0 where it is about none, or one of other work.
    pub earlier_line: u32,
    /// File and line of the source, from `.loc` or a `// file:line` comment.
    pub source: Option<(String, u32)>,
    /// Block index in the grid.
    pub block: Option<[u32; 3]>,
    /// Thread index in its block.
    pub thread: Option<[u32; 3]>,
    /// The address concerned.
    pub address: Option<u64>,
}

impl Fault {
    /// A fault of a whole launch.
    pub(crate) fn new(kind: FaultKind, kernel: &str, message: impl Into<String>) -> Fault {
        let (kernel, message) = (kernel.into(), message.into());
        let (ptx_line, earlier_line) = (0, 0);
        let (source, block, thread, address) = (None, None, None, None);
        Fault { kind, message, kernel, ptx_line, earlier_line, source, block, thread, address }
    }

    /// The driver's error code for this fault.
    pub fn cuda_code(&self) -> u32 {
        match self.kind {
            FaultKind::InvalidLaunch => 1,
            FaultKind::OutOfResources => 701,
            FaultKind::CooperativeTooLarge => 720,
            FaultKind::InvalidCluster => 912,
            FaultKind::Unsupported => 801,
            FaultKind::OutOfBounds | FaultKind::UseAfterFree => 700,
            FaultKind::Misaligned => 716,
            FaultKind::StepLimit | FaultKind::Deadlock => 702,
            FaultKind::IllegalInstruction => 715,
            FaultKind::Assertion => 710,
            FaultKind::InvalidTarget => 718,
            // What only a checker finds counts as a launch that failed.
            _ => 719,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in {}", self.kind, self.kernel)?;
        if self.ptx_line != 0 {
            write!(f, ", PTX line {}", self.ptx_line)?;
        }
        if let Some((file, line)) = &self.source {
            write!(f, " ({file}:{line})")?;
        }
        if let Some([x, y, z]) = self.block {
            write!(f, ", block ({x}, {y}, {z})")?;
        }
        if let Some([x, y, z]) = self.thread {
            write!(f, ", thread ({x}, {y}, {z})")?;
        }
        if let Some(a) = self.address {
            write!(f, ", address {a:#x}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for Fault {}
