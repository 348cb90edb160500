//! Targets: the chips that kiln emits for, and their limits.

use std::fmt;
use std::str::FromStr;

/// A PTX target: a compute capability. PTX for `sm_90` also runs on every later chip, within that chip's shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Compute capability as NVIDIA writes it: 75, 80, 86, 87, 89, 90, 100, 120.
    sm: u32,
    /// Whether it has the instructions of that chip's own, and so runs on no other: `sm_90a`.
    own: bool,
}

impl Target {
    /// Every target the test suite assembles, in ascending order.
    pub const ALL: [Target; 8] = [
        Target::of(75),
        Target::of(80),
        Target::of(86),
        Target::of(87),
        Target::of(89),
        Target::of(90),
        Target::of(100),
        Target::of(120),
    ];

    /// The targets baked by default. Their PTX covers every later chip.
    pub const DEFAULT: [Target; 3] = [Target::of(75), Target::of(80), Target::of(90)];

    const fn of(sm: u32) -> Target {
        Target { sm, own: false }
    }

    /// The same chip with the instructions of its own, where a kernel has a use for them.
    pub const fn own(self) -> Option<Target> {
        if self.sm == 90 { Some(Target { own: true, ..self }) } else { None }
    }

    /// Whether it is such a target, whose PTX no later chip runs.
    pub const fn is_own(self) -> bool {
        self.own
    }

    /// The target of compute capability `sm`, if kiln knows it.
    pub fn new(sm: u32) -> Option<Target> {
        Self::ALL.into_iter().find(|target| target.sm == sm)
    }

    /// Compute capability: 90 for `sm_90`.
    pub const fn sm(self) -> u32 {
        self.sm
    }

    /// Bytes of shared memory a block may have after opting in (dynamic shared memory).
    pub const fn shared_per_block(self) -> u32 {
        match self.sm {
            75 => 64 << 10,
            80 | 87 => 163 << 10,
            90 | 100 => 227 << 10,
            _ => 99 << 10,
        }
    }

    /// The least PTX ISA version that `ptxas` accepts for this target.
    pub const fn least_version(self) -> (u32, u32) {
        match self.sm {
            75 => (6, 3),
            80 => (7, 0),
            86 => (7, 1),
            87 => (7, 4),
            90 if self.own => (8, 0),
            89 | 90 => (7, 8),
            100 => (8, 6),
            _ => (8, 7),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.sm, if self.own { "a" } else { "" })
    }
}

/// A target name kiln does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownTarget(String);

impl fmt::Display for UnknownTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<String> = Target::ALL.iter().map(Target::to_string).collect();
        write!(f, "unknown target {:?}: use one of {}", self.0, known.join(", "))
    }
}

impl std::error::Error for UnknownTarget {}

impl FromStr for Target {
    type Err = UnknownTarget;

    fn from_str(name: &str) -> Result<Target, UnknownTarget> {
        name.strip_prefix("sm_")
            .and_then(|digits| digits.parse().ok())
            .and_then(Target::new)
            .ok_or_else(|| UnknownTarget(name.to_owned()))
    }
}
