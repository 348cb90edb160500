//! Activations rounded to bytes, and what the integer dot products of quantised weights read.
//!
//! An activation of a super-block is `scale * (q + r / 254)`, `q` and `r` signed bytes. `q` is the first plane. `r`, what
//! rounding to `q` left, is the second; it is kept only where a few outliers set the scale, since the others have few bits
//! then. A dot product over a plane is exact in `i32` up to its scales: one f32 for each super-block and plane.
//!
//! | bytes of a super-block in a plane | what |
//! |---|---|
//! | 0..256 | activations |
//! | 256..272 | the sums of each 32, `i16` |
//!
//! | words beside them | with a scale for 256 | with a scale for each 32 |
//! |---|---|---|
//! | 0..8 | the sums of each 16, `i16` | the scales, f32 |
//! | 8 | the scale, f32 | 0 |
//! | 9 | planes behind it | planes behind it |
//! | 10..12 | 0 | 0 |
//!
//! A lane has a super-block of its own. Both strides are odd multiples of 16 bytes, and a plane lies a multiple of 128
//! bytes behind the first: so the lanes' reads of 16 bytes meet in no bank where their super-blocks follow each other.

use super::SuperBlock;
use super::plane::{Plane, StagedPlane};
use crate::ptx::{
    Builder, Element, F16, F32, Global, Half, LoadKind, Pred, Ptr, S32, Shared, Size, Space, U16, U32, U64, Val, Var,
    Work, space,
};
use kiln_shape::SUPER_BLOCK;

/// Bytes of a super-block in a plane.
pub(super) const PLANE_BYTES: u32 = 272;
/// Bytes beside them.
pub(super) const BESIDE_BYTES: u32 = 48;
/// Bytes from the scales of a super-block's first half to those of its second.
const BESIDE_OF_HALF: u32 = 16;
/// Where the sums of 32 begin in a plane's super-block.
pub(super) const SUMS_OF_32: u32 = 256;
/// The first of the four words beside a plane's super-block that lanes read for the scale or the planes behind it.
pub(super) const LAST_WORDS: u32 = 8;
/// All banks.
const BANKS_BYTES: u32 = 128;

/// The activations that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ScaleGroup {
    /// A super-block of 256, for formats whose sub-blocks have integer scales.
    Of256,
    /// A block of 32, for formats of such blocks.
    Of32,
}

/// The integer dot product of a format.
#[derive(Clone, Copy)]
pub(crate) struct Int8 {
    /// The scales of the activations that it takes.
    pub(crate) group: ScaleGroup,
    /// The sums of activations that it takes, where weights have mins or an offset.
    pub(super) sums: Option<Sums>,
    /// The dot product of a super-block with a plane of activations.
    pub(super) dot: Dot,
    /// The same by two lanes [`APART`], where the format has that: each has its half of the record, of the plane and of
    /// what stands beside it, and the second lane has the result.
    pub(super) by_two: Option<Dot>,
}

/// Sums of neighbouring activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sums {
    Of16,
    Of32,
}

type Dot = fn(&mut Builder, &Weights, &Plane) -> Val<F32>;

/// From the lane that has the first half of a super-block to the one that has the second.
pub(crate) const APART: u32 = 16;

impl Int8 {
    /// The dot product of a super-block with its activations: that of the first plane, plus that of the second where there
    /// is one.
    pub(crate) fn dot(
        &self,
        b: &mut Builder,
        weights: &Weights,
        x: &Quantised,
        super_block: Val<U32>,
        work: Work,
    ) -> Val<F32> {
        let first = x.at(b, super_block);
        if x.is_apart() {
            return self.dot_apart(b, weights, x, first);
        }
        let last = first.later(b);
        self.planes(b, self.dot, weights, (x, first, last), work)
    }

    /// The same by two lanes, each with its half of the weights and of the vector; the second has the result.
    pub(crate) fn dot_by_two(
        &self,
        b: &mut Builder,
        weights: &Weights,
        (x, half): (&Quantised, &Quantised),
        super_block: Val<U32>,
        work: Work,
    ) -> Val<F32> {
        let last = x.at(b, super_block).later(b);
        let own = half.at(b, super_block);
        self.planes(b, self.by_two.unwrap_or(self.dot), weights, (x, own, last), work)
    }

    /// Whether two lanes may share a super-block.
    pub(crate) const fn has_by_two(&self) -> bool {
        self.by_two.is_some()
    }

    /// A loop of the whole warp, with a second round where any lane has a second plane. Its barrier has weights unpacked
    /// anew in that round, which the assembler would else keep in registers.
    fn planes(
        &self,
        b: &mut Builder,
        dot: Dot,
        weights: &Weights,
        (x, first, last): (&Quantised, StagedPlane, Val<U32>),
        work: Work,
    ) -> Val<F32> {
        let (plane, sum) = (b.var::<U32>(0), b.var::<F32>(0.0));
        b.do_while(|b| {
            b.each_iteration(work);
            b.bar_warp_sync();
            // A lane that has no further plane goes round with the last it has.
            let own = b.min::<U32>(plane, last);
            let at = x.plane(b, first, own);
            let part = dot(b, weights, &Plane::Shared(at));
            let is_own = b.setp_ge(last, plane);
            let next = b.add(sum, part);
            let next = b.selp::<F32>(next, sum, is_own);
            b.set(sum, next);
            let next = b.add(plane, 1);
            b.set(plane, next);
            let more = b.setp_ge(last, plane);
            b.vote_any(more)
        });
        b.get(sum)
    }
}

/// A vector in shared memory, rounded to bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quantised {
    activations: Shared<U32>,
    beside: Shared<U32>,
    later: Later,
}

/// Where second planes are.
#[derive(Debug, Clone, Copy)]
enum Later {
    /// So many bytes behind the first, and what stands beside them behind that of the first.
    Behind { plane: Size, beside: Size },
    /// In device memory.
    Apart(Apart),
}

/// Device memory of the block for second planes, which few super-blocks have: each word lies as far behind its begin as that of
/// the first plane lies behind `staged`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Apart {
    /// Where its address stands, which has no register.
    pub(crate) address: Shared<U64>,
    pub(crate) staged: Shared<F32>,
}

impl Apart {
    fn of<T: Element>(&self, b: &mut Builder, staged: Shared<T>) -> Global<T> {
        let (at, from) = (b.shared_address(staged), b.shared_address(self.staged));
        let behind = b.sub::<U32>(at, from);
        let region = b.ld(self.address, LoadKind::Ordinary);
        let region = b.global_ptr::<T>(region);
        b.byte_index(region, behind, 1)
    }
}

/// What a vector takes of shared memory, with second planes there or elsewhere: words of a super-block, and others.
pub(crate) const fn words(apart: bool) -> (u32, u32) {
    let planes = if apart { 1 } else { 2 };
    (planes * (PLANE_BYTES + BESIDE_BYTES) / 4, planes * 2 * BANKS_BYTES / 4)
}

impl Quantised {
    /// Words of shared memory that a super-block takes with both its planes, and those that a vector takes besides.
    pub(crate) const WORDS: u32 = words(false).0;
    pub(crate) const PADDING: u32 = words(false).1;

    /// A vector of so many super-blocks in as many words as [`words`] says.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, memory: Shared<U32>, super_blocks: Size, apart: Option<Apart>) -> Quantised {
        let [plane, beside] = [PLANE_BYTES, BESIDE_BYTES].map(|bytes| {
            let bytes = b.size_mul(super_blocks, bytes);
            let banks = b.size_div_ceil(bytes, BANKS_BYTES);
            b.size_mul(banks, BANKS_BYTES)
        });
        let planes = if apart.is_some() { 1 } else { 2 };
        let at = b.byte_index(memory, plane, planes);
        let later = apart.map_or(Later::Behind { plane, beside }, Later::Apart);
        Quantised { activations: memory, beside: at, later }
    }

    /// Whether second planes are in device memory.
    pub(super) const fn is_apart(&self) -> bool {
        matches!(self.later, Later::Apart(_))
    }

    /// The half of each super-block that is the lane's, of two lanes [`APART`].
    pub(crate) fn half(&self, b: &mut Builder) -> Quantised {
        let lane = b.lane();
        let half = b.shr::<U32>(lane, APART.trailing_zeros());
        Quantised {
            activations: b.byte_index(self.activations, half, SUPER_BLOCK / 2),
            beside: b.byte_index(self.beside, half, BESIDE_OF_HALF),
            ..*self
        }
    }

    /// The vector so many bytes behind this one.
    #[track_caller]
    pub(crate) fn behind(&self, b: &mut Builder, bytes: Val<U32>) -> Quantised {
        let (activations, beside) = (b.byte_index(self.activations, bytes, 1), b.byte_index(self.beside, bytes, 1));
        Quantised { activations, beside, ..*self }
    }

    /// The first plane of a super-block.
    #[track_caller]
    pub(crate) fn at(&self, b: &mut Builder, super_block: Val<U32>) -> StagedPlane {
        StagedPlane {
            activations: b.byte_index(self.activations, super_block, PLANE_BYTES),
            beside: b.byte_index(self.beside, super_block, BESIDE_BYTES),
        }
    }

    /// The second plane of the super-block whose first one is `first`, in shared memory.
    #[track_caller]
    pub(crate) fn second(&self, b: &mut Builder, first: StagedPlane) -> StagedPlane {
        let one = b.mov::<U32>(1);
        self.plane(b, first, one)
    }

    /// The plane of that number of the super-block whose first one is `first`, in shared memory.
    #[track_caller]
    fn plane(&self, b: &mut Builder, first: StagedPlane, number: Val<U32>) -> StagedPlane {
        let Later::Behind { plane, beside } = self.later else {
            b.complain("second planes are in device memory".to_owned());
            return first;
        };
        StagedPlane {
            activations: b.mad_index(first.activations, number, plane),
            beside: b.mad_index(first.beside, number, beside),
        }
    }

    /// The second plane of the super-block whose first one is `first`; anything where `later` says that there is none.
    #[track_caller]
    pub(super) fn later(&self, b: &mut Builder, first: StagedPlane, later: Var<U32>) -> Plane {
        match self.later {
            Later::Behind { .. } => {
                let number = b.get(later);
                Plane::Shared(self.plane(b, first, number))
            }
            Later::Apart(apart) => Plane::Device(StagedPlane {
                activations: apart.of(b, first.activations),
                beside: apart.of(b, first.beside),
            }),
        }
    }

    /// Where a lane writes in super-block 0, or in the first two that are rounded `together`.
    #[track_caller]
    pub(crate) fn own(&self, b: &mut Builder, group: ScaleGroup, together: usize) -> Own {
        let lane = b.lane();
        let (pair, block) = (b.shr::<U32>(lane, 1), b.shr::<U32>(lane, 2));
        let (mut plane, mut beside) = (self.activations, self.beside);
        if together == 2 {
            let odd = b.and::<U32>(lane, 1);
            (plane, beside) = (b.byte_index(plane, odd, PLANE_BYTES), b.byte_index(beside, odd, BESIDE_BYTES));
        }
        Own {
            activations: b.byte_index(self.activations, lane, 8),
            sum_of_32: b.index(plane.at(SUMS_OF_32 / 4).cast::<U16>(), block),
            beside: match group {
                ScaleGroup::Of256 => b.byte_index(beside, pair, 2),
                ScaleGroup::Of32 => b.index(beside, block),
            },
            leads: match together {
                // The predicate that others have already: some kernels have no register to spare.
                1 => b.setp_eq(lane, 0),
                _ => b.setp_lt(lane, together as u32),
            },
        }
    }
}

/// Where a lane writes that has eight activations of a super-block, or of each of two that follow each other: then an even
/// lane has what stands beside those of the first, an odd lane what stands beside those of the second. Lanes' addresses
/// stand before the first super-block, so that each costs one instruction in the next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Own<S = space::Shared> {
    activations: Ptr<S, U32>,
    /// The sum of 32.
    pub(crate) sum_of_32: Ptr<S, U16>,
    /// The sum of 16, or the scale of the 32; of the lane that leads the first word in either case.
    beside: Ptr<S, U32>,
    /// Whether the lane is the first of its super-block.
    leads: Val<Pred>,
}

impl Own {
    /// The same so many super-blocks further on.
    pub(crate) fn further(self, super_blocks: u32) -> Own {
        Own {
            activations: self.activations.at(super_blocks * PLANE_BYTES / 4),
            sum_of_32: self.sum_of_32.at(super_blocks * PLANE_BYTES / 2),
            beside: self.beside.at(super_blocks * BESIDE_BYTES / 4),
            ..self
        }
    }

    /// The same in a super-block further on.
    #[track_caller]
    pub(crate) fn at(self, b: &mut Builder, super_block: Val<U32>) -> Own {
        Own {
            activations: b.byte_index(self.activations, super_block, PLANE_BYTES),
            sum_of_32: b.byte_index(self.sum_of_32, super_block, PLANE_BYTES),
            beside: b.byte_index(self.beside, super_block, BESIDE_BYTES),
            ..self
        }
    }

    /// The same in the second plane.
    #[track_caller]
    pub(crate) fn second(self, b: &mut Builder, of: &Quantised) -> Second {
        let Own { activations, sum_of_32, beside, leads } = self;
        match of.later {
            Later::Behind { plane, beside: more } => Second::Behind(Own {
                activations: b.byte_index(activations, plane, 1),
                sum_of_32: b.byte_index(sum_of_32, plane, 1),
                beside: b.byte_index(beside, more, 1),
                leads,
            }),
            Later::Apart(apart) => Second::Apart(Own {
                activations: apart.of(b, activations),
                sum_of_32: apart.of(b, sum_of_32),
                beside: apart.of(b, beside),
                leads,
            }),
        }
    }
}

/// Where a lane writes in the second plane.
pub(crate) enum Second {
    Behind(Own),
    Apart(Own<space::Global>),
}

impl<S: Space> Own<S> {
    /// The activations in the `n`-th of the super-blocks.
    pub(crate) fn activations(&self, n: usize) -> Ptr<S, U32> {
        self.activations.at(n as u32 * PLANE_BYTES / 4)
    }

    /// Where the sum of the 16 goes, with a scale for 256.
    pub(crate) fn sum_of_16(&self) -> Ptr<S, U16> {
        self.beside.cast()
    }

    /// Where the scale of the 32 goes, with a scale for each 32.
    pub(crate) fn scale_of_32(&self) -> Ptr<S, F32> {
        self.beside.cast()
    }

    /// Writes the last words of what stands beside a super-block: the scale of all 256, if there is one, and the number of
    /// planes behind.
    pub(crate) fn write_last(&self, b: &mut Builder, scale: Option<Val<F32>>, later: Val<U32>) {
        let zero = b.mov::<U32>(0);
        let scale = scale.map_or(zero, |scale| b.mov_bits(scale));
        b.if_(self.leads, |b| b.st_vector(self.beside.at(LAST_WORDS), [scale, later, zero, zero]));
    }
}

/// The weights of a super-block, where a lane reads them from.
#[derive(Clone)]
pub(crate) enum Weights {
    /// Device memory.
    Global(SuperBlock),
    /// Shared memory; the plane in registers.
    Shared {
        data: Shared<U32>,
        /// 16 bytes each.
        plane: Vec<[Val<U32>; 4]>,
        /// The plane, where that is a single f16.
        half: Option<Val<F16>>,
    },
    /// Registers.
    Held { quads: Vec<[Val<U32>; 4]>, plane: Vec<[Val<U32>; 4]>, half: Option<Val<F16>> },
}

impl Weights {
    /// Those in registers, every word of the data changed by the bits of `by`.
    pub(super) fn changed_by(&self, b: &mut Builder, by: Val<U32>) -> Weights {
        match self {
            Weights::Held { quads, plane, half } => {
                let quads = quads.iter().map(|quad| quad.map(|word| b.xor::<U32>(word, by))).collect();
                Weights::Held { quads, plane: plane.clone(), half: *half }
            }
            others => others.clone(),
        }
    }

    /// Bytes `16 * index .. 16 * index + 16` of the data.
    pub(super) fn quad(&self, b: &mut Builder, index: usize) -> [Val<U32>; 4] {
        let index = index as u32;
        match self {
            Weights::Global(from @ SuperBlock { left: Some(_), .. }) => {
                let zero = b.mov::<U32>(0);
                from.quad(b, zero, 16 * index)
            }
            Weights::Global(from) => b.ld_vector(from.data.at(16 * index).cast::<U32>(), from.kind),
            Weights::Shared { data, .. } => b.ld_vector(data.at(4 * index), LoadKind::Ordinary),
            Weights::Held { quads, .. } => quads[index as usize],
        }
    }

    /// The same of the plane.
    pub(super) fn plane(&self, b: &mut Builder, index: usize) -> [Val<U32>; 4] {
        match self {
            Weights::Global(from) => b.ld_vector(from.plane.at(16 * index as u32).cast::<U32>(), from.kind),
            Weights::Shared { plane, .. } | Weights::Held { plane, .. } => plane[index],
        }
    }

    /// The f16 that is the plane.
    pub(super) fn half(&self, b: &mut Builder) -> Val<F32> {
        let half = match self {
            Weights::Global(from) => Some(b.ld(from.plane.cast::<F16>(), from.kind)),
            Weights::Shared { half, .. } | Weights::Held { half, .. } => *half,
        };
        match half {
            Some(half) => b.cvt(half),
            None => b.mov(f32::NAN),
        }
    }

    /// The eight f16 of 16 bytes of the plane.
    pub(super) fn halves(&self, b: &mut Builder, index: usize) -> [Val<F32>; 8] {
        let pairs = self.plane(b, index).map(|word| b.unpack::<F16>(word).map(|half| b.cvt::<F32, F16>(half)));
        std::array::from_fn(|i| pairs[i / 2][i % 2])
    }
}

/// The dot product of the bits of `weights` that `mask` chooses, as unsigned bytes, with as many activations.
pub(super) fn masked_dot(b: &mut Builder, weights: &[[Val<U32>; 4]], mask: u32, x: &[[Val<U32>; 4]]) -> Val<S32> {
    let zero = b.mov::<S32>(0);
    weights.iter().zip(x).fold(zero, |sum, (words, x)| {
        words.iter().zip(x).fold(sum, |sum, (word, x)| {
            let bits = b.and::<U32>(*word, mask);
            b.dp4a::<U32>(bits, *x, sum)
        })
    })
}

/// `sum` plus the factor times the byte number `at` of those in `words`.
pub(super) fn add_times_byte(
    b: &mut Builder,
    words: [Val<U32>; 2],
    at: usize,
    factor: Val<S32>,
    sum: Val<S32>,
) -> Val<S32> {
    let byte = b.prmt(words[at / 4], 0, 0x4440 | (at as u32 % 4));
    let byte = b.mov_bits::<S32, U32>(byte);
    b.mad::<S32>(byte, factor, sum)
}

/// `sum of bytes[j] * sums[j]` over the `i16` of `sums`, two to a word, and the bytes of `bytes`, four to a word.
pub(super) fn of_sums<T: crate::ptx::Integer + crate::ptx::Bits32>(
    b: &mut Builder,
    sums: &[Val<U32>],
    bytes: &[Val<T>],
) -> Val<S32> {
    let mut total = b.mov::<S32>(0);
    for (index, pair) in sums.iter().enumerate() {
        let half = if index % 2 == 0 { Half::Low } else { Half::High };
        total = b.dp2a::<T>(half, *pair, bytes[index / 2], total);
    }
    total
}

/// `sum over eight blocks of 32 of scale of x * (d * dot)`, from left to right. Tensor cores' sums take the same two
/// roundings a block: see `mma::sum_of_blocks`.
pub(super) fn sum_of_blocks(b: &mut Builder, d: [Val<F32>; 8], x: &Plane, dots: [Val<S32>; 8]) -> Val<F32> {
    let scales = x.scales(b);
    let blocks = d.into_iter().zip(scales).zip(dots);
    let sum = blocks.fold(None, |sum, ((d, scale), dot)| Some(add_block(b, sum, d, scale, dot)));
    sum.unwrap_or_else(|| b.mov(0.0))
}

/// The dot products of so many blocks of 32 signed bytes.
pub(super) fn dots_of_blocks<const N: usize>(b: &mut Builder, weights: &Weights, x: &Plane) -> [Val<S32>; N] {
    std::array::from_fn(|block| {
        let zero = b.mov::<S32>(0);
        (2 * block..2 * block + 2).fold(zero, |sum, quad| {
            let words = weights.quad(b, quad).into_iter().zip(x.quad(b, quad as u32));
            words.fold(sum, |sum, (word, x)| {
                let word = b.mov_bits::<S32, U32>(word);
                b.dp4a::<S32>(word, x, sum)
            })
        })
    })
}

/// As [`sum_of_blocks`] by two lanes with four blocks each: the second goes on from the first's sum, which is a step of the
/// same order. In the first lane it is nothing.
pub(super) fn sum_by_two(b: &mut Builder, d: [Val<F32>; 4], x: &Plane, dots: [Val<S32>; 4]) -> Val<F32> {
    let scales = x.four_scales(b);
    let terms: Vec<[Val<F32>; 2]> = (0..4)
        .map(|block| {
            let dot = b.cvt::<F32, S32>(dots[block]);
            [scales[block], b.mul(d[block], dot)]
        })
        .collect();
    let [scale, dot] = terms[0];
    let first = b.mul(scale, dot);
    let first = terms[1..].iter().fold(first, |sum, [scale, dot]| b.fma(*scale, *dot, sum));
    let before = b.shfl_bfly(first, APART);
    terms.iter().fold(before, |sum, [scale, dot]| b.fma(*scale, *dot, sum))
}

/// `sum + scale * (d * dot)`; without a sum, the product.
fn add_block(b: &mut Builder, sum: Option<Val<F32>>, d: Val<F32>, scale: Val<F32>, dot: Val<S32>) -> Val<F32> {
    let dot = b.cvt::<F32, S32>(dot);
    let dot = b.mul(d, dot);
    match sum {
        None => b.mul(scale, dot),
        Some(sum) => b.fma(scale, dot, sum),
    }
}

/// `dots[j] - offset * sum(x)` of each block of 32.
pub(super) fn without_offset(b: &mut Builder, dots: [Val<S32>; 8], offset: i32, x: &Plane) -> [Val<S32>; 8] {
    let sums = x.sums_of_32(b);
    std::array::from_fn(|block| {
        let pair = b.mov_bits::<S32, U32>(sums[block / 2]);
        let sum = b.bfe::<S32>(pair, 16 * (block as u32 % 2), 16);
        b.mad::<S32>(sum, -offset, dots[block])
    })
}
