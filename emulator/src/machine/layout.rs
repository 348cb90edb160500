//! The layout of a launch's threads and shared memory over blocks, clusters and warps.

use super::access::Scope;

/// The bit of a shared address from which on it holds the rank plus one of a block in the cluster.
pub(crate) const RANK: u32 = 24;

/// The place of an instruction in a launch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(crate) pc: u32,
    /// Number among the warps of all blocks of the cluster.
    pub(crate) warp: u32,
    pub(crate) ctaid: [u32; 3],
}

/// The threads and the shared memory of a launch.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    /// Blocks in x, y, z.
    pub(crate) grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub(crate) block: [u32; 3],
    /// Number of threads, and of warps, of a block.
    pub(crate) threads: u32,
    pub(crate) warps: u32,
    /// Blocks of a cluster in x, y, z, and their number.
    pub(crate) cluster: [u32; 3],
    pub(crate) ranks: u32,
    /// Whether the kernel or the launch gives cluster dimensions.
    pub(crate) explicit_cluster: bool,
    /// Bytes of shared memory of a block: static and dynamic together, and dynamic alone.
    pub(crate) shared: u32,
    pub(crate) dynamic_shared: u32,
}

impl Layout {
    /// Index in the grid of block number `block`; numbers count through clusters and, within them, through ranks.
    pub(crate) fn ctaid(&self, block: u64) -> [u32; 3] {
        let place = |number: u64, [x, y, _]: [u32; 3]| {
            let (x, y) = (u64::from(x), u64::from(y));
            [number % x, number / x % y, number / x / y].map(|i| i as u32)
        };
        let clusters = std::array::from_fn(|k| self.grid[k] / self.cluster[k]);
        let cluster = place(block / u64::from(self.ranks), clusters);
        let within = place(block % u64::from(self.ranks), self.cluster);
        std::array::from_fn(|k| cluster[k] * self.cluster[k] + within[k])
    }

    /// The cluster-wide form of a shared address that block `rank` uses: without a rank it is the block's own.
    pub(crate) fn in_cluster(&self, rank: u32, address: u64) -> u64 {
        if self.ranks > 1 && address >> RANK == 0 { address | u64::from(rank + 1) << RANK } else { address }
    }

    /// Whether a cluster-wide shared address lies in another block than a warp's own.
    pub(crate) fn is_remote(&self, warp: u32, address: u64) -> bool {
        (address >> RANK).checked_sub(1).is_some_and(|rank| rank != u64::from(warp / self.warps))
    }

    /// The scope to check with: cluster scope counts as gpu scope for clusters of several blocks, as cta scope
    /// otherwise.
    pub(crate) fn reach(&self, scope: Scope) -> Scope {
        match scope {
            Scope::Cluster if self.ranks > 1 => Scope::Gpu,
            Scope::Cluster => Scope::Cta,
            _ => scope,
        }
    }

    /// Bytes of shared memory of all ranks, each padded to 16.
    pub(crate) fn cluster_shared(&self) -> usize {
        (self.ranks * self.shared.next_multiple_of(16)) as usize
    }

    /// Index of a cluster-wide shared address in the shared memory of all ranks.
    pub(crate) fn shared_index(&self, address: u64) -> u64 {
        let offset = address & ((1 << RANK) - 1);
        (address >> RANK).saturating_sub(1) * u64::from(self.shared.next_multiple_of(16)) + offset
    }

    /// Thread index of a lane.
    pub(crate) fn thread(&self, warp: u32, lane: usize) -> [u32; 3] {
        let t = warp % self.warps * 32 + lane as u32;
        let [x, y, _] = self.block;
        [t % x, t / x % y, t / x / y]
    }
}
