use super::Kernel;
use crate::formats::{Move, Place, format};
use crate::ptx::{Builder, Global, LoadKind, U8, U16, U32, Val};
use kiln_shape::{SUPER_BLOCK, WeightType};

/// Brings blocks of a GGUF file into the layout that kernels read: pieces of 16 bytes into `data`, the rest into `plane`.
///
/// `blocks` are `count` blocks of a matrix of rows of `row_blocks` blocks, from its block `first` on; `data` and `plane`
/// are the whole matrix's. What a cut super-block leaves of the plane stays as it is. Any grid; nothing may overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repack {
    ty: WeightType,
    name: String,
}

impl Repack {
    /// The kernel for weights of that type; none where files have the layout already.
    pub fn new(ty: WeightType) -> Option<Repack> {
        let name = format!("repack_{}", ty.in_entries());
        (!format(ty).repack().is_empty()).then_some(Repack { ty, name })
    }
}

impl Kernel for Repack {
    fn name(&self) -> &str {
        &self.name
    }

    fn build(&self, b: &mut Builder) {
        let blocks = b.param::<Global<U8>>("blocks");
        let data = b.param::<Global<U8>>("data");
        let plane = b.param::<Global<U8>>("plane");
        let count = b.param::<U32>("count"); // blocks
        let before = b.param::<U32>("first"); // blocks of the matrix before them
        let row_blocks = b.param::<U32>("row_blocks"); // blocks of a row
        let (ty, layout) = (self.ty, self.ty.layout());
        // Blocks of a super-block.
        let each = SUPER_BLOCK / ty.block_len();
        let (block, grid, warp, warps) = (b.ctaid_x(), b.nctaid_x(), b.warp_id(), b.warps());
        let first = b.mad::<U32>(block, warps, warp);
        let step = b.mul::<U32>(grid, warps);
        let super_blocks = b.add(row_blocks, each - 1);
        let super_blocks = b.shr::<U32>(super_blocks, each.trailing_zeros());
        // A warp a block: sizes in bytes of a whole tensor may exceed 32 bits, sizes in blocks do not.
        b.for_range(first, count, step, |b, i| {
            let from = b.byte_index(blocks, i, ty.block_bytes()).cast::<U16>();
            let number = b.add(before, i);
            let row = b.div(number, row_blocks);
            let in_row = b.mul::<U32>(row, row_blocks);
            let in_row = b.sub(number, in_row);
            let super_block = b.shr::<U32>(in_row, each.trailing_zeros());
            let super_block = b.mad::<U32>(row, super_blocks, super_block);
            let in_super_block = b.and(in_row, each - 1);
            let data = b.byte_index(data, number, layout.data / each);
            let plane = b.byte_index(plane, super_block, layout.plane);
            for part in format(ty).repack() {
                let to = match part.place {
                    Place::Data => data,
                    Place::Plane { at, stride } => b.byte_index(plane.at(at), in_super_block, stride),
                };
                copy(b, from, to.cast::<U16>(), part);
            }
        });
    }
}

/// Moves words of a block, a lane a word.
fn copy(b: &mut Builder, from: Global<U16>, to: Global<U16>, part: &Move) {
    let lane: Val<U32> = b.lane();
    b.for_range(lane, part.to - part.from, 32, |b, word| {
        let from = b.index(from.at(part.from), word);
        let value = b.ld(from, LoadKind::Constant);
        let to = b.index(to, word);
        b.st(to, value);
    });
}
