use super::epilogue::{Epilogue, ResultRow, Scaled};
use super::products::Chosen;
use super::{Gemm, Kernel};
use crate::blocks::dot::Sum;
use crate::blocks::stage::{self, Floats};
use crate::blocks::tensor::{Tensor, by_type};
use crate::blocks::{dependent, norm, warp};
use crate::formats::{SuperBlock, format, plain};
use crate::ptx::{Builder, F32, Global, LoadKind, Pred, Shared, Size, U8, U32, Val, Var};
use kiln_shape::columns::COLUMNS;
use kiln_shape::table::{LAYER_SLOTS, MODEL_SLOTS};
use kiln_shape::{ModelShape, Numerics, SUPER_BLOCK, WeightType};

/// The phases of a layer, and the head, for several columns at once where weights are floats, in one text: which phase it
/// is, a launch says. Grid `[columns / 8, rows / 16]`, rounded up: blocks of the same rows run beside each other and share
/// what they read of the weights. Each column has the bits that [`super::Products`] gives it.
#[derive(Debug, Clone, PartialEq)]
pub struct GemmFloats {
    shape: ModelShape,
    types: Vec<WeightType>,
}

/// Rows of a warp: each activation that a lane reads meets a weight of both.
const ROWS: u32 = 2;
/// Warps of a block, each of which stages a column.
const WARPS: u32 = COLUMNS;
/// Super-blocks of a column that are staged at once: one for each eight lanes of a warp.
const PART: u32 = 4;
/// Columns that are multiplied one behind another in a text.
const HALF: u32 = COLUMNS / 2;
/// Sums of squares of a column, and one more: lanes that read those of a column each meet in no bank.
const SQUARES: u32 = LONGEST.next_multiple_of(PART) + 1;
/// The most super-blocks of a row.
const LONGEST: u32 = 127;

impl GemmFloats {
    /// For a model with matrices of those of `types` that are floats.
    pub fn new(shape: ModelShape, types: &[WeightType]) -> GemmFloats {
        let types =
            types.iter().copied().filter(|ty| !ty.is_quantised() && Numerics::Fast.takes(*ty, &shape)).collect();
        GemmFloats { shape, types }
    }

    /// The products of a warp's rows of a matrix with all columns, of each row those of the columns one behind another; added
    /// up as [`crate::blocks::dot`] does it for one column: eight lanes a super-block, every fourth of them.
    fn sums(&self, b: &mut Builder, columns: &Columns, matrix: &Rows) -> Vec<Sum> {
        let sums: Vec<Sum> = (0..ROWS * COLUMNS).map(|_| Sum::zero(b)).collect();
        let lane = b.lane();
        let (group, g) = (b.shr::<U32>(lane, 3), b.and::<U32>(lane, 7));
        let own = b.byte_index(columns.staged, group, 4 * SUPER_BLOCK);
        let sizes = self.sizes(b, matrix.tensor.ty, own, g);
        let bytes = by_type(b, matrix.tensor.ty, &self.types, |ty| ty.layout().data);
        let row_bytes = b.mul::<U32>(columns.k, bytes);
        let row_bytes = b.div::<U32>(row_bytes, SUPER_BLOCK);
        let data = matrix.rows.iter().map(|row| {
            let data = b.address(matrix.tensor.data);
            let row = b.mad_wide(*row, row_bytes, data);
            b.global_ptr(row)
        });
        let data: Vec<Global<U8>> = data.collect();
        let words = self.types.iter().map(|ty| ty.layout().data / 32).max().unwrap_or(0);
        let words: Vec<Vec<Var<U32>>> = data.iter().map(|_| (0..words).map(|_| b.var::<U32>(0)).collect()).collect();
        let super_blocks = b.size_div_ceil(Size::Reg(columns.k), SUPER_BLOCK);
        b.for_range(0, super_blocks, PART, |b, first| {
            let super_block = b.add::<U32>(first, group);
            let has = b.setp_lt::<U32>(super_block, super_blocks);
            let before = b.mul::<U32>(super_block, bytes);
            // The weights are on their way while columns are staged.
            b.if_(has, |b| {
                let left = matrix.is_cut.then(|| b.sub::<U32>(row_bytes, before));
                for size in &sizes {
                    size.run(b, |b| {
                        for (data, words) in data.iter().zip(&words) {
                            let data = b.byte_index(*data, before, 1);
                            let block = SuperBlock { data, plane: data, left, kind: LoadKind::Constant };
                            let loaded = size.any().words(b, &block);
                            words.iter().zip(loaded).for_each(|(word, loaded)| b.set(*word, loaded));
                        }
                    });
                }
            });
            b.bar_sync(); // what was staged before has been read
            columns.stage(b, first);
            b.bar_sync(); // all columns are staged
            b.if_(has, |b| {
                for size in &sizes {
                    size.run(b, |b| size.multiply(b, &words, &sums));
                }
            });
        });
        sums
    }

    /// Its types by their sizes: lanes share a super-block by other pieces where weights have another one.
    fn sizes(&self, b: &mut Builder, ty: Val<U32>, x: Shared<F32>, lane: Val<U32>) -> Vec<OfSize> {
        let mut sizes: Vec<u32> = self.types.iter().map(|ty| ty.layout().data).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let several = sizes.len() > 1;
        let of_size = sizes.into_iter().map(|size| {
            let types = self.types.iter().filter(|ty| ty.layout().data == size);
            let types: Vec<_> = types.filter_map(|own| Some((*own, format(*own).pieces(b, x, lane)?))).collect();
            let is = several.then(|| {
                let mask = types.iter().fold(0, |mask, (ty, _)| mask | 1 << ty.id());
                let bit = b.shl::<U32>(1u32, ty);
                let bit = b.and::<U32>(bit, mask);
                b.setp_ne(bit, 0)
            });
            OfSize { types, ty, is }
        });
        of_size.collect()
    }
}

/// Types whose weights have one size.
struct OfSize {
    types: Vec<(WeightType, plain::Pieces)>,
    /// The type of the matrix, and whether it is one of them, where there are others.
    ty: Val<U32>,
    is: Option<Val<Pred>>,
}

impl OfSize {
    /// Runs `body` for a matrix of one of them.
    fn run(&self, b: &mut Builder, body: impl FnOnce(&mut Builder)) {
        match self.is {
            Some(is) => b.if_(is, body),
            None => body(b),
        }
    }

    /// What is the same for all of them.
    fn any(&self) -> &plain::Pieces {
        &self.types[0].1
    }

    /// Adds the products of each row's words with all columns to `sums`.
    fn multiply(&self, b: &mut Builder, words: &[Vec<Var<U32>>], sums: &[Sum]) {
        let weights: Vec<_> = words.iter().map(|words| self.weights(b, words)).collect();
        // A program's text has half of the columns.
        b.for_range(0, COLUMNS, HALF, |b, first| {
            let before = b.mul::<U32>(first, PART);
            let reader = self.any().reader.behind(b, before);
            for column in 0..HALF {
                let x = reader.read_behind(b, PART * column);
                for (weights, sums) in weights.iter().zip(sums.chunks(COLUMNS as usize)) {
                    let part = plain::product(b, weights, &x);
                    sums[column as usize].add(b, part);
                }
            }
            // Each half comes by once.
            for of_row in sums.chunks(COLUMNS as usize) {
                let (first, last) = of_row.split_at(HALF as usize);
                first.iter().zip(last).for_each(|(one, other)| one.exchange(b, other));
            }
        });
    }

    /// The weights of a row's words.
    fn weights(&self, b: &mut Builder, words: &[Var<U32>]) -> [[Val<F32>; 16]; 2] {
        let own = self.types[0].0.layout().data / 32;
        let words: Vec<Val<U32>> = words.iter().take(own as usize).map(|word| b.get(*word)).collect();
        if let [(_, one)] = &self.types[..] {
            return one.floats(b, &words);
        }
        let floats = [(); 2].map(|()| [(); 16].map(|()| b.var::<F32>(0.0)));
        for (own, pieces) in &self.types {
            let is_own = b.setp_eq(self.ty, own.id());
            b.if_(is_own, |b| {
                let found = pieces.floats(b, &words);
                let found = found.as_flattened().iter();
                floats.as_flattened().iter().zip(found).for_each(|(float, found)| b.set(*float, *found));
            });
        }
        floats.map(|half| half.map(|float| b.get(float)))
    }
}

/// The columns of a block.
struct Columns {
    x: Global<F32>,
    /// Those that are there, and the first of the block's.
    count: Val<U32>,
    first: Val<U32>,
    k: Val<U32>,
    /// Factors of their elements, where they are normalised.
    gamma: stage::Factors,
    kind: LoadKind,
    /// `[columns, PART, 256]`.
    staged: Shared<F32>,
    /// `[columns, SQUARES]`: of each super-block the sum of its elements' squares.
    squares: Shared<F32>,
}

/// A warp's rows of a matrix.
struct Rows {
    tensor: Tensor,
    /// Those that are there twice where there are no more.
    rows: Vec<Val<U32>>,
    /// Whether rows may end within a super-block.
    is_cut: bool,
}

impl Columns {
    /// Stages super-blocks from `first` on, a column a warp, and notes their squares. What is behind the end of a column, or of
    /// a column that is not there, is zeros.
    fn stage(&self, b: &mut Builder, first: Val<U32>) {
        let (warp, lane) = (b.warp_id(), b.lane());
        let column = b.add::<U32>(self.first, warp);
        let is_there = b.setp_lt(column, self.count);
        let left = b.selp::<U32>(self.k, 0, is_there);
        let bytes = b.shl::<U32>(self.k, 2);
        let x = b.address(self.x);
        let x = b.mad_wide(column, bytes, x);
        let x = b.global_ptr::<F32>(x);
        let to = b.mul::<U32>(warp, PART);
        let staged = Floats::new(b, self.staged);
        let squares = b.mad::<U32>(warp, SQUARES, first);
        let squares = b.index(self.squares, squares);
        let leads = b.setp_eq(lane, 0);
        let element = b.mul::<U32>(first, SUPER_BLOCK);
        let element = b.mad::<U32>(lane, 8, element);
        let of_lane: Vec<_> = (0..PART)
            .map(|n| {
                let element = b.add::<U32>(element, n * SUPER_BLOCK);
                let inside = b.setp_lt(element, left);
                let at = b.index(x, element);
                let values = stage::eight(b, at, Some(inside), self.kind);
                let factors = [(); 8].map(|()| b.var::<F32>(1.0));
                let normalised = self.gamma.given.map_or(inside, |given| b.and_pred(inside, given));
                b.if_(normalised, |b| {
                    let at = b.index(self.gamma.gamma, element);
                    let found = stage::eight(b, at, None, LoadKind::Constant);
                    factors.iter().zip(found).for_each(|(factor, found)| b.set(*factor, found));
                });
                (values, factors)
            })
            .collect();
        for (n, (values, factors)) in of_lane.into_iter().enumerate() {
            let square = stage::square_of_lane(b, &values);
            let square = warp::sum(b, square, 32);
            b.if_(leads, |b| b.st(squares.at(n as u32), square));
            let values = std::array::from_fn(|i| b.mul(values[i], factors[i]));
            staged.store(b, (to, n), values);
        }
    }

    /// What the products of a column are multiplied with: `1 / sqrt(mean(x^2) + eps)` of it, or 1.
    fn factor(&self, b: &mut Builder, column: Val<U32>, hidden: u32, eps: Val<F32>) -> Val<F32> {
        let factor = b.var::<F32>(1.0);
        let normalise = |b: &mut Builder| {
            let total = b.var::<F32>(0.0);
            let first = b.mul::<U32>(column, SQUARES);
            let first = b.index(self.squares, first);
            b.for_range(0, hidden.div_ceil(SUPER_BLOCK), 1, |b, sb| {
                let at = b.index(first, sb);
                let square = b.ld(at, LoadKind::Ordinary);
                let sum = b.add(total, square);
                b.set(total, sum);
            });
            let inverse = norm::inverse_rms(b, total, Size::Const(hidden), eps);
            b.set(factor, inverse);
        };
        match self.gamma.given {
            Some(given) => b.if_(given, normalise),
            None => normalise(b),
        }
        b.get(factor)
    }
}

impl Kernel for GemmFloats {
    fn name(&self) -> &str {
        "gemm_floats"
    }

    fn block(&self) -> u32 {
        32 * WARPS
    }

    fn check(&self) -> Result<(), String> {
        let ModelShape { hidden, ffn, .. } = self.shape;
        let longest = hidden.max(ffn).max(self.shape.q_dim());
        if longest > LONGEST * SUPER_BLOCK {
            return Err(format!("a row has {longest} weights: at most {} have room", LONGEST * SUPER_BLOCK));
        }
        if self.types.is_empty() {
            return Err("no type of weights that are floats: needs at least one".to_owned());
        }
        Gemm::check_rows(&self.shape)
    }

    fn build(&self, b: &mut Builder) {
        let table = b.param::<Global<U8>>("table"); // the tensor table
        let layer = b.param::<U32>("layer"); // ignored by the head
        let phase = b.param::<U32>("phase"); // which of them
        let x = b.param::<Global<F32>>("x"); // [columns, k]
        let count = b.param::<U32>("columns"); // those that are there
        let y = b.param::<Global<F32>>("y"); // [columns, rows of the phase]
        let eps = b.param::<F32>("eps"); // of the norm, where there is one
        let vocab = b.param::<U32>("vocab"); // rows of the head
        b.blocks_per_sm(1);
        let staged = b.shared::<F32>("staged", COLUMNS * PART * SUPER_BLOCK);
        let squares = b.shared::<F32>("squares", COLUMNS * SQUARES);
        let layer = b.mad::<U32>(layer, LAYER_SLOTS, MODEL_SLOTS);
        let chosen = Chosen::new(b, &self.shape, phase, layer);
        let ModelShape { hidden, ffn, .. } = self.shape;
        let q = self.shape.q_dim();
        let rows = chosen.rows(b, &self.shape, Some(vocab));
        let first_column = b.ctaid_x();
        let first_column = b.mul::<U32>(first_column, COLUMNS);
        let block_row = b.ctaid_y();
        let block_row = b.mul::<U32>(block_row, WARPS * ROWS);
        let warp = b.warp_id();
        let first_row = b.mad::<U32>(warp, ROWS, block_row);
        let last = b.sub::<U32>(rows, 1);
        let gamma = stage::Factors { gamma: chosen.gamma(b, table), given: Some(chosen.normalised) };
        let kind = dependent::wait(b);
        let columns = Columns { x, count, first: first_column, k: chosen.k, gamma, kind, staged, squares };
        // Lane `8 r + c` has the result of row r and column c.
        let lane = b.lane();
        let (own_row, own_column) = (b.shr::<U32>(lane, 3), b.and::<U32>(lane, COLUMNS - 1));
        let gate = b.var::<F32>(0.0);
        b.for_range(0, chosen.matrices, 1, |b, number| {
            let (from, to) = chosen.rows_of(b, &self.shape, number);
            let (above, below) = (b.setp_ge(block_row, from), b.setp_lt(block_row, to));
            let own = b.and_pred(above, below);
            b.if_(own, |b| {
                let entry = b.add::<U32>(chosen.weight, number);
                let tensor = Tensor::from_table(b, table, entry);
                let own_rows = (0..ROWS).map(|n| {
                    let row = b.add::<U32>(first_row, n);
                    let row = b.min::<U32>(row, last);
                    b.sub::<U32>(row, from)
                });
                let rows_of_warp = own_rows.collect();
                let is_cut = [hidden, ffn, q].iter().any(|k| !k.is_multiple_of(SUPER_BLOCK));
                let sums = self.sums(b, &columns, &Rows { tensor, rows: rows_of_warp, is_cut });
                let of_lane = b.var::<F32>(0.0);
                for (sum, place) in sums.iter().zip(0..) {
                    let sum = b.get(sum.total);
                    let sum = warp::sum(b, sum, 32);
                    let is_own = b.setp_eq(lane, place);
                    let sum = b.selp::<F32>(sum, of_lane, is_own);
                    b.set(of_lane, sum);
                }
                // A row's chain begins with zero.
                let sum = b.add(of_lane, 0.0);
                let factor = columns.factor(b, own_column, hidden, eps);
                let scaled = b.mul(sum, factor);
                let row = b.add::<U32>(first_row, own_row);
                let column = b.add::<U32>(first_column, own_column);
                let is_row = b.setp_lt(row, rows);
                let is_column = b.setp_lt(column, count);
                let has = b.setp_lt(lane, ROWS * COLUMNS);
                let writes = b.setp_ge(number, chosen.unwritten);
                let there = [is_column, has, writes].into_iter().fold(is_row, |all, one| b.and_pred(all, one));
                let place = ResultRow::new(b, y, rows, row).of(b, column);
                let row = b.sub::<U32>(row, from);
                let value = b.var::<F32>(scaled);
                let epilogue = Epilogue { table, chosen: &chosen, number, qkv_bias: self.shape.qkv_bias };
                epilogue.write(b, &[Scaled { row, place, there, value, pair: Some((gate, scaled)) }]);
                b.set(gate, scaled);
            });
        });
    }
}
