//! Rows of weights as floats: what the embedding needs.

use super::dot;
use super::stage::SUPER_BLOCK;
use super::tensor::Tensor;
use crate::ptx::{Builder, F16, F32, Global, LoadKind, Operand, S8, Size, U8, U32, Val};
use kiln_shape::TensorType;

/// Rows of a matrix, to be written out as floats.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a> {
    /// The matrix.
    pub(crate) tensor: Tensor,
    /// The types it may have.
    pub(crate) types: &'a [TensorType],
    /// Super-blocks in a row.
    pub(crate) super_blocks: Size,
}

impl Row<'_> {
    /// Writes row `row` to `x`: this warp's super-blocks, from `first` on and `step` apart.
    #[track_caller]
    pub(crate) fn write(
        &self,
        b: &mut Builder,
        row: Val<U32>,
        x: Global<F32>,
        first: Val<U32>,
        step: impl Operand<U32> + Copy,
    ) {
        let row = b.mul::<U32>(row, self.super_blocks);
        let lane = b.lane();
        for ty in self.types {
            let is = b.setp_eq::<U32>(self.tensor.ty, ty.id());
            b.if_(is, |b| {
                b.for_range(first, self.super_blocks, step, |b, super_block| {
                    let from = b.add::<U32>(row, super_block);
                    let [v0, v1, v2, v3, v4, v5, v6, v7] = eight(b, *ty, self.tensor, from, LoadKind::Constant);
                    let to = b.byte_index(x, super_block, SUPER_BLOCK * 4);
                    let to = b.byte_index(to, lane, 32);
                    b.st_vector(to, [v0, v1, v2, v3]);
                    b.st_vector(to.at(4), [v4, v5, v6, v7]);
                });
            });
        }
    }
}

/// Elements `8 * lane .. 8 * lane + 8` of super-block `super_block` (counted from the tensor's start) of a tensor of
/// type `ty`.
pub(crate) fn eight(
    b: &mut Builder,
    ty: TensorType,
    tensor: Tensor,
    super_block: Val<U32>,
    kind: LoadKind,
) -> [Val<F32>; 8] {
    let lane = b.lane();
    let at = |b: &mut Builder, base: Global<U8>, bytes: u32| b.byte_index(base, super_block, bytes);
    match ty {
        TensorType::Q4_K => {
            let data = at(b, tensor.data, 144);
            let header = b.ld(data.cast::<U32>(), kind);
            let [d, dmin] = b.unpack::<F16>(header).map(|half| b.cvt::<F32, F16>(half));
            // Sub-block j has its scale and min in bytes j and j + 4, or (from 4 on) in pieces.
            let j = b.shr(lane, 2);
            let upper = b.setp_ge(j, 4);
            let scales = b.byte_index(data.at(4), j, 1);
            let (own, next) = (b.ld(scales, kind), b.ld(scales.at(4), kind));
            let back = b.selp::<U32>(4, 0, upper);
            let back = b.sub(j, back);
            let before = b.byte_index(data.at(4), back, 1);
            let before = b.ld(before, kind);
            let low = (b.and(own, 63), b.and(next, 63));
            let (scale_top, min_top) = (b.shr::<U32>(before, 2), b.shr::<U32>(own, 2));
            let (scale_low, min_low) = (b.and(next, 15), b.shr::<U32>(next, 4));
            let scale = b.and_or(scale_top, 0x30, scale_low);
            let min = b.and_or(min_top, 0x30, min_low);
            let scale = b.selp::<U32>(scale, low.0, upper);
            let min = b.selp::<U32>(min, low.1, upper);
            let (scale, min): (Val<F32>, Val<F32>) = (b.cvt(scale), b.cvt(min));
            let (scale, min) = (b.mul(d, scale), b.mul(dmin, min));
            let min = b.neg(min);
            // Chunk lane / 8 of 64 weights: bytes (lane % 4) * 8 on, low nibbles for its first half, then high ones.
            let chunk = b.shr(lane, 3);
            let piece = b.and(lane, 3);
            let from = b.byte_index(data.at(16), chunk, 32);
            let from = b.byte_index(from, piece, 8);
            let words: [Val<U32>; 2] = b.ld_vector(from.cast::<U32>(), kind);
            let second = b.and(lane, 4);
            let words = words.map(|word| b.shr::<U32>(word, second));
            std::array::from_fn(|i| {
                let quant = b.bfe::<U32>(words[i / 4], 8 * (i as u32 % 4), 4);
                let quant = b.cvt::<F32, U32>(quant);
                b.fma(scale, quant, min)
            })
        }
        TensorType::Q6_K => {
            let data = at(b, tensor.data, 208);
            let plane = at(b, tensor.plane, 2);
            let d = b.ld(plane.cast::<F16>(), kind);
            let d = b.cvt::<F32, F16>(d);
            let chunk = b.shr(lane, 1);
            let scale = b.byte_index(data.at(192), chunk, 1);
            let scale = b.ld(scale.cast::<S8>(), kind);
            let scale = b.cvt(scale);
            let scale = b.mul(d, scale);
            // Half lane / 16; quarter lane % 16 / 4 of 32 weights each: quarters 0 and 2 share the bytes of ql, and 1
            // and 3; qh gives each quarter two bits.
            let half = b.shr(lane, 4);
            let quarter = b.bfe::<U32>(lane, 2, 2);
            let piece = b.and(lane, 3);
            let odd = b.and(quarter, 1);
            let ql = b.byte_index(data, half, 64);
            let ql = b.byte_index(ql, odd, 32);
            let ql = b.byte_index(ql, piece, 8);
            let ql: [Val<U32>; 2] = b.ld_vector(ql.cast::<U32>(), kind);
            let qh = b.byte_index(data.at(128), half, 32);
            let qh = b.byte_index(qh, piece, 8);
            let qh: [Val<U32>; 2] = b.ld_vector(qh.cast::<U32>(), kind);
            let nibble = b.and(quarter, 2);
            let nibble = b.shl::<U32>(nibble, 1);
            let two = b.shl::<U32>(quarter, 1);
            let ql = ql.map(|word| b.shr::<U32>(word, nibble));
            let qh = qh.map(|word| b.shr::<U32>(word, two));
            std::array::from_fn(|i| {
                let byte = 8 * (i as u32 % 4);
                let low = b.bfe::<U32>(ql[i / 4], byte, 4);
                let high = b.bfe::<U32>(qh[i / 4], byte, 2);
                let quant = b.mad::<U32>(high, 16, low);
                let quant = b.cvt::<F32, U32>(quant);
                let quant = b.sub(quant, 32.0);
                b.mul(scale, quant)
            })
        }
        TensorType::Q8_0 => {
            let data = at(b, tensor.data, SUPER_BLOCK);
            let plane = at(b, tensor.plane, 16);
            let block = b.shr(lane, 2);
            let d = b.byte_index(plane, block, 2);
            let d = b.ld(d.cast::<F16>(), kind);
            let d = b.cvt::<F32, F16>(d);
            let from = b.byte_index(data, lane, 8);
            let words: [Val<crate::ptx::S32>; 2] = b.ld_vector(from.cast::<crate::ptx::S32>(), kind);
            std::array::from_fn(|i| {
                let quant = b.bfe(words[i / 4], 8 * (i as u32 % 4), 8);
                let quant = b.cvt::<F32, crate::ptx::S32>(quant);
                b.mul(d, quant)
            })
        }
        TensorType::F32 => {
            let data = at(b, tensor.data, 1024);
            let from = b.byte_index(data, lane, 32);
            let quads: [[Val<F32>; 4]; 2] =
                std::array::from_fn(|i| b.ld_vector(from.at(16 * i as u32).cast::<F32>(), kind));
            std::array::from_fn(|i| quads[i / 4][i % 4])
        }
        _ => {
            let data = at(b, tensor.data, 512);
            let from = b.byte_index(data, lane, 16);
            let words: [Val<U32>; 4] = b.ld_vector(from.cast::<U32>(), kind);
            let pairs = words.map(|word| dot::halves(b, ty, word));
            std::array::from_fn(|i| pairs[i / 2][i % 2])
        }
    }
}
