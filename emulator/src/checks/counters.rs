//! Counters of a launch: exact, the same on every run.

/// Counts per instruction.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    warps: Vec<u64>,
    lanes: Vec<u64>,
}

impl Counts {
    pub(crate) fn new(instructions: usize) -> Counts {
        Counts { warps: vec![0; instructions], lanes: vec![0; instructions] }
    }

    /// An instruction ran for some lanes.
    #[inline(always)]
    pub(crate) fn ran(&mut self, pc: u32, m: u32) {
        self.warps[pc as usize] += 1;
        self.lanes[pc as usize] += u64::from(m.count_ones());
    }

    /// An instruction was issued with its guard false in all lanes.
    #[inline(always)]
    pub(crate) fn skipped(&mut self, pc: u32) {
        self.warps[pc as usize] += 1;
    }
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        if self.warps.len() < other.warps.len() {
            self.warps.resize(other.warps.len(), 0);
            self.lanes.resize(other.lanes.len(), 0);
        }
        self.warps.iter_mut().zip(&other.warps).for_each(|(a, b)| *a += b);
        self.lanes.iter_mut().zip(&other.lanes).for_each(|(a, b)| *a += b);
    }
}

/// Counters of a launch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counters {
    /// Instructions, counted per warp.
    pub warp_instructions: u64,
    /// Instructions, counted per active lane.
    pub lane_instructions: u64,
}

impl Counters {
    pub(crate) fn new(_cx: &crate::exec::LaunchCx<'_>, c: &Counts) -> Counters {
        Counters { warp_instructions: c.warps.iter().sum(), lane_instructions: c.lanes.iter().sum() }
    }
}
