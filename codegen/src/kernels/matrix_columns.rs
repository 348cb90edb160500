use super::Kernel;
use crate::blocks::gemm_tile::{self, Matrices, Product, ROWS, Sums, Tile, Width};
use crate::blocks::tensor::Tensor;
use crate::ptx::{Builder, F32, Global, LoadKind, Size, U8, U32, U64, Val, Var};
use kiln_shape::columns::{COLUMNS, TILE_EIGHTS as EIGHTS, tile_rows};
use kiln_shape::{SUPER_BLOCK, WeightType};

/// `y[c, n] = sum_k W[n, k] * x[c, k] * inverse[c] + bias[n] + residual[c, n]` for many columns that
/// [`super::RoundColumns`] has rounded, by tensor cores, in tiles of [`tile_rows`] rows and 64 columns: grid
/// `[columns / 64, rows / tile_rows]`, rounded up.
#[derive(Debug, Clone, PartialEq)]
pub struct MatrixColumns {
    ty: WeightType,
    name: String,
}

impl MatrixColumns {
    /// For matrices of type `ty`, which must be quantised: `gemm_q4k`.
    pub fn new(ty: WeightType) -> MatrixColumns {
        MatrixColumns { ty, name: format!("gemm_{}", ty.in_entries()) }
    }

    /// The results of a lane, an eight of columns after the other.
    fn finish(&self, b: &mut Builder, of: &Operands, sums: &Sums) {
        let (warp, lane) = (b.warp_id(), b.lane());
        let (group, pair) = (b.shr::<U32>(lane, 2), b.and::<U32>(lane, 3));
        let row = b.mad::<U32>(warp, ROWS, of.first);
        let row = b.add::<U32>(row, group);
        let end = b.add::<U32>(of.first, tile_rows(self.ty));
        let end = b.min::<U32>(end, of.n);
        let first_column = b.mul::<U32>(of.first_eight, COLUMNS);
        let first_column = b.mad::<U32>(pair, 2, first_column);
        let [has_bias, has_residual] = [of.bias, of.residual].map(|at| {
            let address = b.address(at);
            b.setp_ne::<U64>(address, 0u64)
        });
        b.for_range(0, EIGHTS, 1, |b, eight| {
            let column = b.mad::<U32>(eight, COLUMNS, first_column);
            let sixteens: Vec<&[[Var<F32>; 4]]> = sums.chunks(EIGHTS as usize).collect();
            for (number, values) in sixteens.iter().enumerate() {
                for (i, sum) in values[0].iter().enumerate() {
                    let column = b.add::<U32>(column, i as u32 % 2);
                    let row = b.add::<U32>(row, 16 * number as u32 + 8 * (i as u32 / 2));
                    let in_columns = b.setp_lt(column, of.columns);
                    let in_rows = b.setp_lt(row, end);
                    let there = b.and_pred(in_columns, in_rows);
                    b.if_(there, |b| {
                        let inverse = b.index(of.inverse, column);
                        let inverse = b.ld(inverse, LoadKind::Constant);
                        let scaled = b.mul(*sum, inverse);
                        let value = b.var::<F32>(scaled);
                        let add = |b: &mut Builder, at: Global<F32>| {
                            let addend = b.ld(at, LoadKind::Constant);
                            let sum = b.add(value, addend);
                            b.set(value, sum);
                        };
                        b.if_(has_bias, |b| {
                            let at = b.index(of.bias, row);
                            add(b, at);
                        });
                        let before = b.mad_wide(column, of.n, 0u64);
                        let own = b.cvt(row);
                        let at = b.add::<U64>(before, own);
                        let bytes = b.shl::<U64>(at, 2);
                        let mut element = |base: Global<F32>| {
                            let base = b.address(base);
                            let at = b.add::<U64>(base, bytes);
                            b.global_ptr::<F32>(at)
                        };
                        let (residual, to) = (element(of.residual), element(of.y));
                        b.if_(has_residual, |b| add(b, residual));
                        b.st(to, value);
                    });
                }
            }
            for of in sixteens {
                let first = of[0].map(|sum| b.get(sum));
                gemm_tile::rotate(b, of, first);
            }
        });
    }
}

/// What a launch works on.
struct Operands {
    inverse: Global<F32>,
    bias: Global<F32>,
    residual: Global<F32>,
    y: Global<F32>,
    n: Val<U32>,
    columns: Val<U32>,
    /// The tile's first row, and the number of its first eight of columns.
    first: Val<U32>,
    first_eight: Val<U32>,
}

impl Kernel for MatrixColumns {
    fn name(&self) -> &str {
        &self.name
    }

    fn block(&self) -> u32 {
        32 * Width::Single.warps()
    }

    fn check(&self) -> Result<(), String> {
        if self.ty.is_quantised() {
            return Ok(());
        }
        Err(format!("weights are {}: tensor cores take quantised ones", self.ty))
    }

    fn build(&self, b: &mut Builder) {
        let w = b.param::<Global<U8>>("w"); // [n, k], as the type's layout says
        let w_scales = b.param::<Global<U8>>("w_scales"); // its plane
        let x = b.param::<Global<U8>>("x"); // [columns, k] rounded
        let inverse = b.param::<Global<F32>>("inverse"); // [columns]
        let bias = b.param::<Global<F32>>("bias"); // [n], or null
        let residual = b.param::<Global<F32>>("residual"); // [columns, n], or null
        let y = b.param::<Global<F32>>("y"); // [columns, n]
        let k = b.param::<U32>("k"); // a multiple of 32
        let n = b.param::<U32>("n");
        let columns = b.param::<U32>("columns"); // those that are there
        b.blocks_per_sm(1);
        let (group, tile) = (b.ctaid_x(), b.ctaid_y());
        let first_eight = b.mul::<U32>(group, EIGHTS);
        let first = b.mul::<U32>(tile, tile_rows(self.ty));
        let types = [self.ty];
        let tiles = Tile::new(b, &types, Width::Single);
        let tensor = Tensor { data: w, plane: w_scales, ty: b.mov::<U32>(self.ty.id()) };
        let is_pair = b.setp_lt::<U32>(n, 0u32); // rows are of one matrix
        let tensors = [tensor; 2];
        let of = Matrices { tensors, is_pair, first, rows: n };
        let (from, to) = (b.mov::<U32>(0), b.size_div_ceil(Size::Reg(k), SUPER_BLOCK));
        let to = b.mov::<U32>(to);
        let product = Product { of, k, from, to, is_cut: true, of_256: x, of_32: x, first_eight };
        let sums = tiles.zeros(b);
        tiles.add(b, &types, &product, &sums);
        self.finish(b, &Operands { inverse, bias, residual, y, n, columns, first, first_eight }, &sums);
    }
}
