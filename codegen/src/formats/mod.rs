//! Weight formats, a file each: layout of a super-block in device memory, repacking from a file's blocks, dequantising,
//! and a lane's part of a dot product in f32.
//!
//! Eight lanes share a super-block of 256 weights; each takes 32 of them. Each weight, or its quant, is a float of its
//! own before it is multiplied with its activation. If an offset were still in it, the product would round at the
//! offset's size, and a weight of zero would not give zero. A product goes through at most 15 roundings, however long
//! the row is:
//!
//! | roundings | where |
//! |---|---|
//! | 1 | the weight (types with mins), or the scale of a lane's chunk (the other quantised ones) |
//! | 4 | chains of four |
//! | 3 | the tree over the eight chains of a lane's two chunks |
//! | 2 | the compensated sum over super-blocks |
//! | 5 | the tree over the lanes |
//!
//! Nothing here knows how rows are dealt to warps and blocks: that is `blocks::dot`.

mod activations;
mod int8;
pub(crate) mod mma;
pub(crate) mod plain;
mod plane;
mod q4_0;
mod q4_k;
mod q5_0;
mod q5_k;
mod q6_k;
mod q8_0;
mod unpack;
mod warpgroup;

pub(crate) use activations::{Activations, Reader, swizzle};
pub(crate) use int8::{APART, Apart, Int8, Own, Quantised, ScaleGroup, Second, Weights, words as words_of_bytes};
pub(crate) use mma::{Columns, InShared, Mma, OfPlane, Rows};
pub(crate) use plane::{Plane, StagedPlane};
pub(crate) use warpgroup::Warpgroup;

use crate::ptx::{Builder, F16, F32, Global, LoadKind, Operand, Shared, U8, U32, Val};
use kiln_shape::{Numerics, WeightType};

/// The operations of a weight type.
pub(crate) trait Format {
    /// The moves from a block of a file to device memory; none where files have the device's layout.
    fn repack(&self) -> &'static [Move] {
        &[]
    }

    /// A lane's part of dot products with the vector staged at `x`. `lane` is the lane's number among the eight that share
    /// a super-block.
    fn dot(&self, b: &mut Builder, x: Shared<F32>, lane: Val<U32>) -> Dot;

    /// The dot product of a super-block with activations rounded to bytes; none for weights that are floats, whose
    /// activations stay f32.
    fn int8(&self) -> Option<Int8> {
        None
    }

    /// A lane's part of them as weights that several columns meet; none for quantised weights.
    fn pieces(&self, _: &mut Builder, _x: Shared<F32>, _lane: Val<U32>) -> Option<plain::Pieces> {
        None
    }

    /// Products with bytes for 16 rows and some eights of columns, by tensor cores; the same floats.
    fn mma(&self) -> Option<Mma> {
        None
    }

    /// The same for 64 rows and columns in shared memory, by products of warpgroups; none for formats whose blocks have scales
    /// that are no integers.
    fn warpgroup(&self) -> Option<Warpgroup> {
        None
    }

    /// Weights `8 * lane .. 8 * lane + 8` of a super-block, `lane` being the warp's.
    fn eight(&self, b: &mut Builder, super_block: &SuperBlock, lane: Val<U32>) -> [Val<F32>; 8];
}

/// The format of a type.
pub(crate) fn format(ty: WeightType) -> &'static dyn Format {
    match ty {
        WeightType::Q4_0 => &q4_0::Q4_0,
        WeightType::Q5_0 => &q5_0::Q5_0,
        WeightType::Q4_K => &q4_k::Q4K,
        WeightType::Q5_K => &q5_k::Q5K,
        WeightType::Q6_K => &q6_k::Q6K,
        WeightType::Q8_0 => &q8_0::Q8_0,
        WeightType::F16 => &plain::F16Weights,
        WeightType::BF16 => &plain::Bf16Weights,
        WeightType::F32 => &plain::F32Weights,
    }
}

/// The form in which a vector is staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Form {
    /// As f32.
    Float,
    /// Rounded to bytes with a scale for each such group.
    Int8(ScaleGroup),
}

/// The form that products with weights of a type take.
pub(crate) fn form(ty: WeightType, numerics: Numerics) -> Form {
    match (numerics, format(ty).int8()) {
        (Numerics::Fast, Some(int8)) => Form::Int8(int8.group),
        (Numerics::Fast, None) | (Numerics::Exact, _) => Form::Float,
    }
}

/// 16-bit words `from..to` of a file's block, and where they go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) place: Place,
}

/// A place in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The block's part of the data.
    Data,
    /// The plane's super-block: byte `at`, and `stride` more for each block before it.
    Plane { at: u32, stride: u32 },
}

/// A super-block of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SuperBlock {
    pub(crate) data: Global<U8>,
    pub(crate) plane: Global<U8>,
    /// Bytes of the row from `data` on, where it may end within the super-block.
    pub(crate) left: Option<Val<U32>>,
    /// The kind of loads of it.
    pub(crate) kind: LoadKind,
}

impl SuperBlock {
    /// The f16 number `number` of those from byte `first` of the plane on.
    #[track_caller]
    pub(crate) fn half_of_plane(&self, b: &mut Builder, first: u32, number: impl Operand<U32>) -> Val<F32> {
        let at = b.byte_index(self.plane.at(first), number, 2);
        let half = b.ld(at.cast::<F16>(), self.kind);
        b.cvt(half)
    }

    /// The 16 bytes at `at + further` of the data; zeros behind the end of the row.
    #[track_caller]
    pub(crate) fn quad(&self, b: &mut Builder, at: Val<U32>, further: u32) -> [Val<U32>; 4] {
        let from = b.byte_index(self.data.at(further), at, 1).cast::<U32>();
        let Some(left) = self.left else { return b.ld_vector(from, self.kind) };
        let words = [(); 4].map(|()| b.var::<U32>(0));
        let at = if further == 0 { at } else { b.add(at, further) };
        let inside = b.setp_lt(at, left);
        b.if_(inside, |b| {
            let loaded: [Val<U32>; 4] = b.ld_vector(from, self.kind);
            for (word, loaded) in words.iter().zip(loaded) {
                b.set(*word, loaded);
            }
        });
        words.map(|word| b.get(word))
    }
}

/// A lane's part of the dot products of one format.
pub(crate) struct Dot {
    /// Reads the activations that the lane's weights meet.
    pub(crate) reader: Reader,
    /// The sum of the lane's products in a super-block.
    pub(crate) part: Part,
}

/// The sum of a lane's products in a super-block.
pub(crate) type Part = Box<dyn Fn(&mut Builder, &SuperBlock, &Activations) -> Val<F32>>;
