//! A multiprocessor: four quarters that issue an instruction a clock each, their pipes, and the load and store unit.

use super::cache::Cache;
use super::calendar::Calendar;
use super::fold::Cost;
use super::opcodes::Pipe;
use crate::machine::chip::ChipFile;

/// Lanes of a warp.
const WARP: u32 = 32;
/// Quarters of a multiprocessor.
const QUARTERS: usize = 4;
/// Rows of a warp in a warpgroup's product.
const ROWS: u32 = 16;
/// Bytes of shared memory that are read in a clock.
const SHARED_BYTES: u32 = 128;

/// Issue slots and pipes of a quarter.
struct Quarter {
    issue: Calendar,
    fma: Calendar,
    heavy: Calendar,
    alu: Calendar,
    half: Calendar,
    double: Calendar,
    convert: Calendar,
    sixteen: Calendar,
    tensor: [Calendar; 2],
}

pub(super) struct Multiprocessor {
    quarters: [Quarter; QUARTERS],
    /// Warps that began here so far.
    begun: u32,
    /// Clocks of the load and store unit.
    unit: Calendar,
    /// Clocks of it that a request takes at least; a shuffle is one.
    request: u32,
    /// What a warpgroup's product of bytes takes of tensor cores, by what it takes by `mma`.
    faster: f64,
    pub(super) l1: Cache,
}

impl Multiprocessor {
    /// A multiprocessor whose L1 has what `shared` bytes leave of it.
    pub(super) fn new(chip: &ChipFile, shared: u64) -> Multiprocessor {
        let quarter = |rate: f64| Calendar::new(rate / QUARTERS as f64);
        // The chip's clock falls while tensor cores have all they can do.
        let slower = (chip.tensor_clock.value / chip.clock.value).min(1.0);
        let quarters = std::array::from_fn(|_| Quarter {
            issue: Calendar::new(1.0),
            fma: quarter(chip.fma.value),
            heavy: quarter(chip.heavy.value),
            alu: quarter(chip.alu.value),
            half: quarter(chip.half.value),
            double: quarter(chip.double.value),
            convert: quarter(chip.convert.unwrap_or(chip.sixteen).value),
            sixteen: quarter(chip.sixteen.value),
            tensor: [quarter(chip.tensor_half.value * slower), quarter(chip.tensor_int8.value * slower)],
        });
        let bytes = (chip.l1_bytes.value as u64).saturating_sub(shared).max(16 << 10);
        Multiprocessor {
            quarters,
            begun: 0,
            unit: Calendar::new(1.0),
            request: chip.request.value as u32,
            faster: chip.tensor_int8.value / chip.warpgroup_int8.unwrap_or(chip.tensor_int8).value,
            l1: Cache::new(bytes, 4),
        }
    }

    /// So many warps begin. Returns the first one's number: quarters have them in turn, whatever their blocks.
    pub(super) fn begin(&mut self, warps: u32) -> u32 {
        let first = self.begun;
        self.begun = first.wrapping_add(warps);
        first
    }

    /// Issues an instruction of the warp of that number from clock `at` on. Returns the clock at which its pipe begins with it.
    pub(super) fn issue(&mut self, warp: u32, cost: &Cost, at: u64) -> u64 {
        let quarter = &mut self.quarters[warp as usize % QUARTERS];
        let (slot, _) = quarter.issue.reserve(at, cost.count + cost.extra);
        if cost.extra > 0 {
            quarter.alu.reserve(slot, WARP * cost.extra);
        }
        let lanes = WARP * cost.count;
        let begins = match cost.pipe {
            Pipe::Folded | Pipe::Control | Pipe::Memory | Pipe::Warpgroup { .. } => slot,
            Pipe::Fma => quarter.fma.reserve(slot, lanes).0,
            Pipe::Heavy => {
                // It is part of the pipe for f32.
                let whole = quarter.fma.reserve(slot, lanes).0;
                quarter.heavy.reserve(whole, lanes).0
            }
            Pipe::Alu => quarter.alu.reserve(slot, lanes).0,
            Pipe::Double => quarter.double.reserve(slot, lanes).0,
            Pipe::Half => quarter.half.reserve(slot, lanes).0,
            Pipe::Convert => quarter.convert.reserve(slot, lanes).0,
            Pipe::Sixteen => quarter.sixteen.reserve(slot, lanes).0,
            Pipe::Shuffle => self.unit.reserve(slot, cost.count * self.request).0,
            Pipe::Tensor { products, int8 } => quarter.tensor[usize::from(int8)].reserve(slot, products).0,
        };
        begins.max(slot)
    }

    /// Takes the tensor cores of a warp's quarter for so many products of its warpgroup, from clock `at` on. Returns when
    /// they end. The quarters read the columns from shared memory together.
    pub(super) fn multiply(&mut self, warp: u32, products: u32, at: u64) -> u64 {
        let tensor = &mut self.quarters[warp as usize % QUARTERS].tensor[1];
        let (begin, end) = tensor.reserve(at, (f64::from(products) * self.faster) as u32);
        let columns = products / ROWS;
        self.unit.reserve(begin, columns.div_ceil(SHARED_BYTES * QUARTERS as u32));
        end
    }

    /// Takes the load and store unit for so many clocks from `at` on. Returns when it begins and ends.
    pub(super) fn unit(&mut self, at: u64, clocks: u32) -> (u64, u64) {
        self.unit.reserve(at, clocks)
    }

    /// Issue slots handed out.
    pub(super) fn issued(&self) -> f64 {
        self.quarters.iter().map(|quarter| quarter.issue.units()).sum()
    }
}
