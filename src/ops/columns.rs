//! Products of a quantised matrix with many columns at once, by tensor cores: the columns are rounded to bytes once.

use super::check;
use super::kernels::Ops;
use super::matrix::Matrix;
use super::product::Norm;
use crate::driver::{GpuTensor, Stream};
use crate::launch::{In, Out, launch};
use crate::shape::WeightType;
use crate::shape::columns::{COLUMNS, TILE_EIGHTS, bytes, tile_rows};
use crate::{Error, Result};

launch! {
    /// `columns_of_256` and `columns_of_32`.
    struct RoundColumns<'a> {
        x: In<'a, f32>,
        gamma: In<'a, f32>,
        k: u32,
        eps: f32,
        columns: u32,
        to: Out<'a, u8>,
        inverse: Out<'a, f32>,
    }
}

launch! {
    /// The kernels for many columns: one for each quantised type.
    struct MatrixColumns<'a> {
        w: In<'a, u8>,
        w_scales: In<'a, u8>,
        x: In<'a, u8>,
        inverse: In<'a, f32>,
        bias: In<'a, f32>,
        residual: In<'a, f32>,
        y: Out<'a, f32>,
        k: u32,
        n: u32,
        columns: u32,
    }
}

/// Columns of a tile.
const WIDTH: u32 = TILE_EIGHTS * COLUMNS;
/// The longest column that a block rounds.
const LONGEST: u32 = 127 * 256;
/// Columns at most, and blocks along a grid's second dimension.
const MOST: u32 = 1 << 20;
const MOST_TILES: u32 = 65535;

/// Columns of activations rounded to bytes, with a scale for each 256 or for each 32: what [`Ops::gemm`] multiplies with.
/// Zeros until [`Ops::quantise`] has written them.
#[derive(Debug)]
pub struct Columns {
    /// 256 or 32.
    group: u32,
    k: u32,
    columns: u32,
    /// As [`kiln_shape::columns`](crate::shape::columns) lays them out, for whole tiles.
    data: GpuTensor<u8>,
    /// `[columns]`: what products are multiplied with.
    inverse: GpuTensor<f32>,
}

impl Columns {
    /// Activations of a column.
    pub fn activations(&self) -> u32 {
        self.k
    }

    /// How many columns.
    pub fn columns(&self) -> u32 {
        self.columns
    }
}

/// Arguments of a product with many columns: `y = W x + bias + residual`, of which the last two may be left out.
#[derive(Debug, Clone, Copy)]
pub struct Gemm<'a> {
    /// `[n, k]`, of a quantised type.
    pub w: &'a Matrix,
    /// `[columns, k]`, rounded for that type.
    pub x: &'a Columns,
    /// `[n]`, added to every column.
    pub bias: Option<&'a GpuTensor<f32>>,
    /// `[columns, n]`, added.
    pub residual: Option<&'a GpuTensor<f32>>,
    /// `[columns, n]`, written.
    pub y: &'a GpuTensor<f32>,
}

/// Activations that share a scale for weights of a type; none for weights that are floats.
fn group(ty: WeightType) -> Option<u32> {
    ty.is_quantised().then(|| ty.block_len())
}

impl Ops {
    /// Room for `columns` columns of `k` activations that are rounded for weights of type `ty`: about 2.3 bytes for each,
    /// of whole tiles of 64 columns.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for weights that are floats, for `k` that is no multiple of the type's block or beyond 32512,
    /// and for no column or more than 2^20; out of memory.
    pub fn columns(&self, ty: WeightType, k: u32, columns: u32) -> Result<Columns> {
        let Some(group) = group(ty) else {
            return Err(Error::InvalidArgument {
                what: "weights of columns".to_owned(),
                found: ty.to_string(),
                expected: "a quantised type".to_owned(),
            });
        };
        let fits = k > 0 && k <= LONGEST && k.is_multiple_of(group);
        check::number("activations of a column", k, fits, || {
            format!("a multiple of {group} up to {LONGEST} for {ty}")
        })?;
        check::number("columns", columns, (1..=MOST).contains(&columns), || format!("1 to {MOST}"))?;
        let size = bytes(k, columns.next_multiple_of(WIDTH));
        let size = usize::try_from(size).map_err(|_| Error::SizeOverflow {
            what: "columns",
            found: format!("{columns} columns of {k} activations"),
            limit: usize::MAX as u64,
        })?;
        let device = self.device();
        let (data, inverse) = (GpuTensor::zeros(device, size)?, GpuTensor::zeros(device, columns as usize)?);
        Ok(Columns { group, k, columns, data, inverse })
    }

    /// Rounds `x`, `[columns, k]`, to bytes, each column normalised before where a norm is given.
    ///
    /// # Errors
    /// If a length differs or a tensor is on another device; [`Error::KernelNotBaked`] unless the kernels for many columns
    /// are loaded: see [`Ops::open_for_columns`].
    pub fn quantise(&self, stream: &Stream, x: &GpuTensor<f32>, norm: Option<Norm<'_>>, to: &Columns) -> Result<()> {
        let (name, bake) = match to.group {
            32 => ("columns_of_32", "RoundColumns::of_32()"),
            _ => ("columns_of_256", "RoundColumns::of_256()"),
        };
        let kernel = self.find::<RoundColumns<'_>>(name, bake)?;
        check::tensor("x of columns", x, &[("columns", to.columns), ("activations", to.k)])?;
        if let Some(norm) = norm {
            check::tensor("gamma of columns", norm.gamma, &[("activations", to.k)])?;
        }
        let launch = RoundColumns {
            x: x.into(),
            gamma: norm.map(|norm| norm.gamma).into(),
            k: to.k,
            eps: norm.map_or(0.0, |norm| norm.eps),
            columns: to.columns,
            to: (&to.data).into(),
            inverse: (&to.inverse).into(),
        };
        // SAFETY: x has columns of k elements, gamma has k or is null, and there is room for whole tiles of columns
        // rounded, a block each, and for a factor of each column.
        unsafe { kernel.enqueue(stream, [to.columns.next_multiple_of(WIDTH), 1, 1], &launch) }
    }

    /// `y[c, n] = sum_k W[n, k] * x[c, k] + bias[n] + residual[c, n]`, with `x` rounded to bytes: each column has the same
    /// bits whatever the others are and however many.
    ///
    /// # Errors
    /// If a length differs, the columns were not made for weights of this type, there are more than 6 million rows, a
    /// tensor is on another device, or `y` is also another argument; [`Error::KernelNotBaked`] as [`Ops::quantise`].
    pub fn gemm(&self, stream: &Stream, arguments: &Gemm<'_>) -> Result<()> {
        let &Gemm { w, x, bias, residual, y } = arguments;
        if group(w.ty) != Some(x.group) {
            return Err(Error::InvalidArgument {
                what: "columns of a product".to_owned(),
                found: format!("columns with a scale for each {}, weights of type {}", x.group, w.ty),
                expected: "columns made for weights of that type".to_owned(),
            });
        }
        let name = format!("gemm_{}", w.ty.in_entries());
        let kernel = self.find::<MatrixColumns<'_>>(&name, "MatrixColumns::new(..)")?;
        check::number("activations of a column", x.k, x.k == w.k, || format!("{}, the matrix's columns", w.k))?;
        let tiles = w.n.div_ceil(tile_rows(w.ty));
        check::number("rows of a product", w.n, tiles <= MOST_TILES, || {
            format!("at most {}", MOST_TILES * tile_rows(w.ty))
        })?;
        let all = [("columns", x.columns), ("rows", w.n)];
        check::tensor("y of a product", y, &all)?;
        bias.map_or(Ok(()), |bias| check::tensor("bias of a product", bias, &[("rows", w.n)]))?;
        residual.map_or(Ok(()), |residual| check::tensor("residual of a product", residual, &all))?;
        let launch = MatrixColumns {
            w: (&w.data).into(),
            w_scales: (&w.plane).into(),
            x: (&x.data).into(),
            inverse: (&x.inverse).into(),
            bias: bias.into(),
            residual: residual.into(),
            y: y.into(),
            k: w.k,
            n: w.n,
            columns: x.columns,
        };
        // SAFETY: the matrix has n rows of k weights, x has whole tiles of columns of k activations and a factor of each
        // that is there; y and the residual have as many columns of n, the bias has n; what is null is not read.
        unsafe { kernel.enqueue(stream, [x.columns.div_ceil(WIDTH), tiles, 1], &launch) }
    }
}
