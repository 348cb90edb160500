//! Dot products of rows of weights with the staged vector, in f32: how rows are dealt to lanes, and how the parts of a row
//! are summed. What a lane does with its part of a super-block is its format's.

use super::stage::Staged;
use super::tensor::Tensor;
use crate::formats::{SuperBlock, format};
use crate::ptx::{Builder, F32, Global, LINE, LoadKind, Pred, Size, U8, U32, Val, Var, Work};
use kiln_shape::table::lane_groups;
use kiln_shape::{Numerics, SUPER_BLOCK, WeightType};

/// The rows of a tile: from `first` on, below `end`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) first: Val<U32>,
    pub(crate) end: Size,
}

/// Leaves the assembler registers: on its own it holds to 80, so that a lane waits for its weights two to four times in an
/// iteration, and spills in some kernels. In fast numerics a multiprocessor has one block, whose lanes carry their next
/// records in registers.
pub(crate) fn leave_registers(b: &mut Builder, numerics: Numerics) {
    b.blocks_per_sm(match numerics {
        Numerics::Exact => 2,
        Numerics::Fast => 1,
    });
}

/// Whether rows of that length may end within a super-block.
pub(crate) fn may_be_cut(k: Size) -> bool {
    !matches!(k, Size::Const(k) if k.is_multiple_of(SUPER_BLOCK))
}

/// Those of `types` that rows of that length can have.
pub(crate) fn fitting(types: &[WeightType], k: Size) -> Vec<WeightType> {
    let fits = |ty: &&WeightType| !matches!(k, Size::Const(k) if !k.is_multiple_of(ty.block_len()));
    types.iter().filter(fits).copied().collect()
}

/// The layout of a warp over rows: some lane groups, of eight lanes, side by side along `k`, the others on other rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tile {
    /// Weights in a row.
    k: Size,
    /// The first super-block that is staged.
    first: Size,
    /// How many are staged.
    staged: Size,
    /// Lane groups along `k`.
    split: u32,
    /// Rows that each lane works on at once, sharing its activations.
    rows_per_lane: u32,
}

impl Tile {
    /// The tile for rows of `k` weights, all staged: short rows are put side by side in a warp.
    pub(crate) fn new(b: &mut Builder, k: Size, rows_per_lane: u32) -> Tile {
        let staged = b.size_div_ceil(k, SUPER_BLOCK);
        Tile { k, first: Size::Const(0), staged, split: Tile::split(k), rows_per_lane }
    }

    /// Lane groups along rows of `k` weights.
    const fn split(k: Size) -> u32 {
        match k {
            Size::Const(k) => lane_groups(k.div_ceil(SUPER_BLOCK)),
            Size::Reg(_) => 4,
        }
    }

    /// Rows of the tile for rows of `k` weights.
    pub(crate) const fn rows_of(k: Size, rows_per_lane: u32) -> u32 {
        4 / Tile::split(k) * rows_per_lane
    }

    /// The same tile where only `staged` super-blocks from `first` on are in shared memory.
    pub(crate) fn part(self, first: Size, staged: Size) -> Tile {
        Tile { first, staged, ..self }
    }

    /// Weights in a row.
    pub(crate) const fn k(&self) -> Size {
        self.k
    }

    /// The first super-block that is staged.
    pub(crate) const fn first(&self) -> Size {
        self.first
    }

    /// How many super-blocks are staged.
    pub(crate) const fn staged(&self) -> Size {
        self.staged
    }

    /// Rows of a tile: what a warp works on at once.
    pub(crate) const fn rows(&self) -> u32 {
        4 / self.split * self.rows_per_lane
    }
}

/// A matrix to be multiplied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    /// Where it is.
    pub(crate) tensor: Tensor,
    /// The types it may have.
    pub(crate) types: &'a [WeightType],
    /// What loads of it may assume.
    pub(crate) kind: LoadKind,
}

/// The results of a tile as a lane sees them.
pub(crate) struct Products {
    /// The lane's rows, one for each of its sums.
    pub(crate) rows: Vec<Val<U32>>,
    /// Dot products, the same in every lane of a group.
    pub(crate) sums: Vec<Val<F32>>,
    /// Whether this lane is the one that writes its group's results.
    pub(crate) leader: Val<Pred>,
}

impl Products {
    /// Runs `body` with each row below `rows.end` and its product, in the lane that writes it.
    #[track_caller]
    pub(crate) fn each_inside(self, b: &mut Builder, rows: Rows, body: impl Fn(&mut Builder, Val<U32>, Val<F32>)) {
        for (row, sum) in self.rows.into_iter().zip(self.sums) {
            let inside = b.setp_lt::<U32>(row, rows.end);
            let writes = b.and_pred(inside, self.leader);
            b.if_(writes, |b| body(b, row, sum));
        }
    }
}

/// A sum whose error does not grow with the number of its terms (Kahan, <https://doi.org/10.1145/363707.363723>).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sum {
    pub(crate) total: Var<F32>,
    /// The error of the last rounding of `total`.
    excess: Var<F32>,
}

impl Sum {
    pub(crate) fn zero(b: &mut Builder) -> Sum {
        Sum { total: b.var(0.0), excess: b.var(0.0) }
    }

    /// Each becomes the other.
    pub(crate) fn exchange(&self, b: &mut Builder, other: &Sum) {
        for (one, other) in [(self.total, other.total), (self.excess, other.excess)] {
            let (first, second) = (b.get(one), b.get(other));
            b.set(one, second);
            b.set(other, first);
        }
    }

    pub(crate) fn add(&self, b: &mut Builder, term: Val<F32>) {
        let term = b.sub(term, self.excess);
        let next = b.add(self.total, term);
        let step = b.sub(next, self.total);
        let excess = b.sub(step, term);
        b.set(self.total, next);
        b.set(self.excess, excess);
    }
}

/// What a lane asks the L2 cache for while its registers hold no more: a line of each row's next super-blocks. Two
/// iterations' weights are in flight then. To ask for three or four brought less by the emulator's clock.
struct NextLines {
    /// Bytes of the rows from the first that is staged on.
    bytes: Size,
    /// From a super-block to the lane's line among those of the next iteration's; behind every row for a lane without one.
    line: Val<U32>,
    data: u32,
}

impl NextLines {
    fn new(b: &mut Builder, shape: Tile, g: Val<U32>, data: u32, left: Option<Val<U32>>) -> NextLines {
        let line = b.mad::<U32>(g, LINE, shape.split * data);
        let is_behind = b.setp_ge::<U32>(g, data.div_ceil(LINE));
        let line = b.selp::<U32>(1 << 30, line, is_behind);
        NextLines { bytes: left.map_or_else(|| b.size_mul(shape.staged, data), Size::Reg), line, data }
    }

    fn ask_for(&self, b: &mut Builder, super_block: Val<U32>, rows: &[(Global<U8>, Global<U8>)]) {
        let line = b.mad::<U32>(super_block, self.data, self.line);
        let is_inside = b.setp_lt::<U32>(line, self.bytes);
        b.if_(is_inside, |b| {
            for (data, _) in rows {
                let line = b.byte_index(*data, line, 1);
                b.prefetch_l2(line);
            }
        });
    }
}

/// The dot products of a tile of a matrix. Those from `rows.end` on are of the row before it and must not be written.
pub(crate) fn rows(b: &mut Builder, matrix: Matrix<'_>, staged: &Staged, shape: Tile, rows: Rows) -> Products {
    let Matrix { tensor, types, kind } = matrix;
    let lane = b.lane();
    let group = b.shr(lane, 3);
    let first_super_block = b.and(group, shape.split - 1);
    let rows_before = b.shr(group, shape.split.trailing_zeros());
    let first = b.mad::<U32>(rows_before, shape.rows_per_lane, rows.first);
    let last = match rows.end {
        Size::Const(end) => Size::Const(end.saturating_sub(1)),
        Size::Reg(end) => Size::Reg(b.sub(end, 1)),
    };
    let rows: Vec<Val<U32>> = (0..shape.rows_per_lane).map(|row| b.add(first, row)).collect();
    let sums: Vec<Sum> = rows.iter().map(|_| Sum::zero(b)).collect();
    let g = b.and(lane, 7);
    let super_blocks = b.size_div_ceil(shape.k, SUPER_BLOCK);
    let floats = staged.floats(b);
    let one_type = |b: &mut Builder, ty: WeightType| {
        let layout = ty.layout();
        let dot = format(ty).dot(b, floats, g);
        let row_bytes = match shape.k {
            Size::Const(k) => Size::Const(k / 32 * (layout.data / 8)),
            Size::Reg(_) => {
                let blocks = b.size_div(shape.k, 32);
                b.size_mul(blocks, layout.data / 8)
            }
        };
        let plane_bytes = b.size_mul(super_blocks, layout.plane);
        let mut bases = Vec::new();
        for row in &rows {
            let row = b.min::<U32>(*row, last);
            let data = b.address(tensor.data);
            let data = b.mad_wide(row, row_bytes, data);
            let plane = b.address(tensor.plane);
            let plane = if layout.plane == 0 { plane } else { b.mad_wide(row, plane_bytes, plane) };
            let (data, plane) = (b.global_ptr::<U8>(data), b.global_ptr::<U8>(plane));
            let data = b.byte_index(data, shape.first, layout.data);
            bases.push((data, b.byte_index(plane, shape.first, layout.plane)));
        }
        let is_cut = may_be_cut(shape.k) && ty.block_len() < SUPER_BLOCK;
        let left = is_cut.then(|| {
            let before = b.size_mul(shape.first, layout.data);
            b.sub::<U32>(row_bytes, before)
        });
        // Those of floats are many bytes as they are.
        let ahead = format(ty).int8().map(|_| NextLines::new(b, shape, g, layout.data, left));
        b.for_range(first_super_block, shape.staged, shape.split, |b, super_block| {
            b.each_iteration(Work::Weights(ty, SUPER_BLOCK / 8 * shape.rows_per_lane));
            if let Some(ahead) = &ahead {
                ahead.ask_for(b, super_block, &bases);
            }
            let x = dot.reader.read(b, super_block);
            let left = left.map(|left| {
                let before = b.mul::<U32>(super_block, layout.data);
                b.sub::<U32>(left, before)
            });
            for ((data, plane), sum) in bases.iter().zip(&sums) {
                let data = b.byte_index(*data, super_block, layout.data);
                let plane = match layout.plane {
                    0 => *plane,
                    bytes => b.byte_index(*plane, super_block, bytes),
                };
                let part = (dot.part)(b, &SuperBlock { data, plane, left, kind }, &x);
                sum.add(b, part);
            }
        });
    };
    match fitting(types, shape.k)[..] {
        [ty] => one_type(b, ty),
        ref types => {
            for ty in types {
                let is = b.setp_eq::<U32>(tensor.ty, ty.id());
                b.if_(is, |b| one_type(b, *ty));
            }
        }
    }
    let width = 8 * shape.split;
    let sums = sums
        .into_iter()
        .map(|sum| {
            let sum = b.get(sum.total);
            super::warp::sum(b, sum, width)
        })
        .collect();
    let in_group = b.and(lane, width - 1);
    Products { rows, sums, leader: b.setp_eq(in_group, 0) }
}
