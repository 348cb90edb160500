//! What is known of a chip: figures of the kind that microbenchmarks publish, each with its origin.

/// Where a figure is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Published, by whom.
    Published(&'static str),
    /// From published figures, how.
    Derived(&'static str),
    /// Nobody's figure, why this one.
    Guess(&'static str),
}

/// A figure of a chip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// What it is.
    pub value: f64,
    /// Where it is from.
    pub origin: Origin,
}

/// A figure from an origin.
pub(crate) const fn of(value: f64, origin: Origin) -> Figure {
    Figure { value, origin }
}

/// What the clock knows of a chip. Lanes are of a multiprocessor, in a core clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChipFile {
    /// The file's name.
    pub name: &'static str,
    /// Compute capability, `(9, 0)` for sm_90.
    pub sm: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Core clock in GHz while tokens are decoded.
    pub clock: Figure,
    /// As that, while tensor cores have all they can do.
    pub tensor_clock: Figure,
    /// Lanes of f32 products and sums.
    pub fma: Figure,
    /// Lanes of integer products.
    pub heavy: Figure,
    /// Lanes of integer sums, logic and comparisons.
    pub alu: Figure,
    /// Lanes of f64 products and sums.
    pub double: Figure,
    /// Lanes of pairs of f16.
    pub half: Figure,
    /// Lanes of conversions to floating point, if not `alu`'s.
    pub convert: Option<Figure>,
    /// Lanes of other conversions, of transcendental functions, of bit counts.
    pub sixteen: Figure,
    /// Products of f16 that tensor cores make and add, by `mma.sync`.
    pub tensor_half: Figure,
    /// As that, of int8.
    pub tensor_int8: Figure,
    /// The same of a warpgroup's products, where it has them.
    pub warpgroup_int8: Option<Figure>,
    /// Clocks from an instruction of `fma`, `heavy`, `alu` or `half` to one that needs its result.
    pub latency: Figure,
    /// As that, of `sixteen`.
    pub sixteen_latency: Figure,
    /// As that, of exchanges between lanes.
    pub shuffle_latency: Figure,
    /// As that, of tensor cores.
    pub tensor_latency: Figure,
    /// Clocks from a branch to what follows it.
    pub branch: Figure,
    /// Clocks from a barrier's last arrival to what follows it, and besides for each of its warps.
    pub barrier: [Figure; 2],
    /// Nanoseconds of a fence, alone or as part of a release, if not those of a trip to L2.
    pub fence: Option<Figure>,
    /// Nanoseconds from a block's end to the next one's beginning on its multiprocessor.
    pub turn: Figure,
    /// Clocks between two requests of a multiprocessor's load and store unit.
    pub request: Figure,
    /// Clocks of a load from shared memory of 4, 8 and 16 bytes a lane.
    pub shared: [Figure; 3],
    /// Bytes of L1 cache and shared memory of a multiprocessor together.
    pub l1_bytes: Figure,
    /// Clocks of a load that hits L1.
    pub l1: Figure,
    /// Bytes a clock from L2 to a multiprocessor.
    pub port: Figure,
    /// Bytes of L2.
    pub l2_bytes: Figure,
    /// Nanoseconds of a load that hits L2, in the half that is nearer and in the other.
    pub l2: [Figure; 2],
    /// GB/s that reads from L2 reach.
    pub l2_bandwidth: Figure,
    /// Slices of L2.
    pub slices: Figure,
    /// Nanoseconds of a load from device memory.
    pub dram: Figure,
    /// GB/s that reads from device memory reach.
    pub dram_bandwidth: Figure,
    /// GB/s of device memory on paper.
    pub dram_peak: Figure,
    /// Channels of device memory.
    pub channels: Figure,
    /// Clocks of a bulk copy beyond a load.
    pub bulk: Figure,
    /// Clocks of a slice of L2 from an atomic operation to the next.
    pub atomic: Figure,
    /// Nanoseconds of a load from the host's memory.
    pub host: Figure,
    /// Microseconds from a look at the host's memory that finds nothing new to the host's answer.
    pub answer: Figure,
    /// Microseconds from a kernel of a stream to the next, for the smallest kernel.
    pub launch: Figure,
    /// As that, of a graph's nodes.
    pub node: Figure,
    /// As that, of a graph's programmatic launches; as of nodes before sm_90.
    pub programmatic: Figure,
    /// Microseconds of the smallest copy between the host and the device.
    pub copy: Figure,
    /// GB/s of copies between them, on paper.
    pub link: Figure,
}

impl ChipFile {
    /// Its figures by name.
    pub fn figures(&self) -> Vec<(&'static str, Figure)> {
        let mut all = vec![
            ("clock, GHz", self.clock),
            ("clock of tensor cores, GHz", self.tensor_clock),
            ("fma, lanes", self.fma),
            ("heavy, lanes", self.heavy),
            ("alu, lanes", self.alu),
            ("double, lanes", self.double),
            ("half, lanes", self.half),
            ("sixteen, lanes", self.sixteen),
            ("tensor f16, products", self.tensor_half),
            ("tensor int8, products", self.tensor_int8),
            ("latency, clocks", self.latency),
            ("sixteen latency, clocks", self.sixteen_latency),
            ("shuffle latency, clocks", self.shuffle_latency),
            ("tensor latency, clocks", self.tensor_latency),
            ("branch, clocks", self.branch),
            ("barrier, clocks", self.barrier[0]),
            ("barrier, clocks a warp", self.barrier[1]),
            ("turn of blocks, ns", self.turn),
            ("request, clocks", self.request),
            ("shared load of 4 bytes, clocks", self.shared[0]),
            ("shared load of 8 bytes, clocks", self.shared[1]),
            ("shared load of 16 bytes, clocks", self.shared[2]),
            ("L1 and shared, bytes", self.l1_bytes),
            ("L1 load, clocks", self.l1),
            ("port, bytes a clock", self.port),
            ("L2, bytes", self.l2_bytes),
            ("near L2 load, ns", self.l2[0]),
            ("far L2 load, ns", self.l2[1]),
            ("L2 bandwidth, GB/s", self.l2_bandwidth),
            ("L2 slices", self.slices),
            ("memory load, ns", self.dram),
            ("memory bandwidth, GB/s", self.dram_bandwidth),
            ("memory peak, GB/s", self.dram_peak),
            ("memory channels", self.channels),
            ("bulk copy, clocks", self.bulk),
            ("atomic, clocks", self.atomic),
            ("launch, us", self.launch),
            ("graph node, us", self.node),
            ("programmatic launch, us", self.programmatic),
            ("host's answer, us", self.answer),
            ("host's memory, ns", self.host),
            ("copy, us", self.copy),
            ("link to the host, GB/s", self.link),
        ];
        all.extend(self.warpgroup_int8.map(|products| ("tensor int8 of warpgroups, products", products)));
        all.extend(self.convert.map(|convert| ("convert, lanes", convert)));
        all.extend(self.fence.map(|fence| ("fence, ns", fence)));
        all
    }

    /// Clocks of a time in nanoseconds.
    pub(crate) fn clocks(&self, nanoseconds: f64) -> u64 {
        (nanoseconds * self.clock.value).round() as u64
    }

    /// Nanoseconds of a number of clocks.
    pub(crate) fn nanoseconds(&self, clocks: u64) -> f64 {
        clocks as f64 / self.clock.value
    }
}
