//! The time of a launch.

/// What a warp waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stall {
    /// Data from memory of any kind.
    Memory,
    /// An issue slot or a pipe.
    Issue,
    /// A result of arithmetic, or a branch.
    Dependency,
    /// A barrier, another warp's word, a fence.
    Barrier,
}

impl Stall {
    /// Every stall.
    pub const ALL: [Stall; 4] = [Stall::Memory, Stall::Issue, Stall::Dependency, Stall::Barrier];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Stall::Memory => "memory",
            Stall::Issue => "issue",
            Stall::Dependency => "dependency",
            Stall::Barrier => "barrier",
        }
    }
}

/// A block's stay on its multiprocessor.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stay {
    /// The block's number.
    pub block: u64,
    /// The number of its multiprocessor.
    pub multiprocessor: u32,
    /// Nanoseconds from the launch's beginning to the block's.
    pub begin: f64,
    /// Nanoseconds from the launch's beginning to the block's end.
    pub end: f64,
    /// Nanoseconds that its warps waited on the mean, in the order of [`Stall::ALL`].
    pub stalls: [f64; 4],
}

/// The time of a launch: modelled, not measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Timing {
    /// The chip file's name.
    pub chip: &'static str,
    /// Nanoseconds from the first block's beginning to the last one's end. What a launch costs around that is not in it.
    pub nanoseconds: f64,
    /// Bytes that L2 has served.
    pub l2_bytes: f64,
    /// Bytes that device memory has moved.
    pub dram_bytes: f64,
    /// The share of issue slots that were taken.
    pub issued: f64,
    /// Its blocks, in the order of their ends.
    pub blocks: Vec<Stay>,
}

impl Timing {
    /// The share of a block's time that its warps waited for each of [`Stall::ALL`], on the mean over blocks.
    pub fn stalls(&self) -> [f64; 4] {
        let time: f64 = self.blocks.iter().map(|stay| stay.end - stay.begin).sum();
        let share = |k: usize| self.blocks.iter().map(|stay| stay.stalls[k]).sum::<f64>() / time.max(1e-9);
        std::array::from_fn(share)
    }
}
