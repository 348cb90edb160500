use super::Kernel;
use crate::blocks::dot::{self, Matrix};
use crate::blocks::gemv::{self, Addend, Input, Share, With};
use crate::blocks::norm;
use crate::blocks::tensor::Tensor;
use crate::ptx::{Builder, Dim, F32, Global, LoadKind, U8};
use kiln_shape::{Numerics, STAGED_MAX, SUPER_BLOCK, WeightType};

/// `y[n] = sum_k W[n, k] * x[k] * rsqrt(mean(x^2) + eps) * gamma[k]`, W `[n, k]` in Q4_K (or another supported type),
/// `x`, `gamma`, `y` in f32; any grid, a warp a tile of rows. The inverse RMS is a factor of the whole sum, so the norm
/// costs one pass over `x`, which each block reads once. `y` is NaN where the sum of squares is beyond f32.
#[derive(Debug, Clone, PartialEq)]
pub struct FusedRmsNormQ4KGemv {
    /// Length of `x`: a multiple of 256.
    pub k: Dim,
    /// Rows of `W`.
    pub n: Dim,
    /// Epsilon under the root; `None` makes it a launch parameter.
    pub epsilon: Option<f32>,
    /// The type of the weights.
    pub weights: WeightType,
    /// Whether `x` is normalised.
    pub norm: bool,
    /// Whether a bias `[n]` is added. With `n` a launch parameter, a bias that is not null is added in any case.
    pub bias: bool,
    /// Whether a residual `[n]` is added. With `n` a launch parameter, a residual that is not null is added in any
    /// case.
    pub residual: bool,
    /// The numerics of the products.
    pub numerics: Numerics,
    name: String,
}

impl FusedRmsNormQ4KGemv {
    /// The kernel for these sizes, with epsilon 1e-5.
    pub fn new(k: u32, n: u32) -> FusedRmsNormQ4KGemv {
        FusedRmsNormQ4KGemv {
            k: Dim::Baked(k),
            n: Dim::Baked(n),
            epsilon: Some(1e-5),
            weights: WeightType::Q4_K,
            norm: true,
            bias: false,
            residual: false,
            numerics: Numerics::Exact,
            name: String::new(),
        }
        .named()
    }

    /// The kernel with sizes and epsilon as launch parameters, and a bias and a residual where they are not null.
    pub fn general() -> FusedRmsNormQ4KGemv {
        FusedRmsNormQ4KGemv { k: Dim::Param, n: Dim::Param, epsilon: None, ..Self::new(SUPER_BLOCK, 1) }
    }

    /// Another epsilon.
    pub fn with_epsilon(self, epsilon: f32) -> FusedRmsNormQ4KGemv {
        FusedRmsNormQ4KGemv { epsilon: Some(epsilon), ..self }
    }

    /// Weights of another type.
    pub fn with_weights(self, weights: WeightType) -> FusedRmsNormQ4KGemv {
        FusedRmsNormQ4KGemv { weights, ..self }.named()
    }

    /// Without the norm: a plain matrix-vector product.
    pub fn without_norm(self) -> FusedRmsNormQ4KGemv {
        FusedRmsNormQ4KGemv { norm: false, ..self }.named()
    }

    /// With a bias added to the result.
    pub fn with_bias(self) -> FusedRmsNormQ4KGemv {
        FusedRmsNormQ4KGemv { bias: true, ..self }.named()
    }

    /// With a residual added to the result.
    pub fn with_residual(self) -> FusedRmsNormQ4KGemv {
        FusedRmsNormQ4KGemv { residual: true, ..self }.named()
    }

    /// With other numerics.
    pub fn with_numerics(self, numerics: Numerics) -> FusedRmsNormQ4KGemv {
        FusedRmsNormQ4KGemv { numerics, ..self }.named()
    }

    /// The name, by what the kernel does: `fused_rmsnorm_q4k_gemv`, `q6k_gemv_bias`, ...
    fn named(mut self) -> FusedRmsNormQ4KGemv {
        let (fused, plain) = self.weights.gemv_entries();
        let name = if self.norm { fused } else { plain };
        let bias = if self.bias { "_bias" } else { "" };
        let residual = if self.residual { "_residual" } else { "" };
        let numerics = match self.numerics {
            Numerics::Exact => "",
            Numerics::Fast => "_fast",
        };
        self.name = format!("{name}{bias}{residual}{numerics}");
        self
    }
}

impl Kernel for FusedRmsNormQ4KGemv {
    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Result<(), String> {
        check(self.k, 4 * STAGED_MAX, &[("n", self.n)], &[self.weights])
    }

    fn build(&self, b: &mut Builder) {
        let data = b.param::<Global<U8>>("w"); // [n, k]
        let plane = b.param::<Global<U8>>("w_scales"); // the plane of f16 scales of Q6_K and Q8_0, else not read
        let x = b.param::<Global<F32>>("x"); // [k]
        let gamma = b.param::<Global<F32>>("gamma"); // [k]; not read without the norm
        let bias = b.param::<Global<F32>>("bias"); // [n]; not read without a bias, or null
        let residual = b.param::<Global<F32>>("residual"); // [n]; not read without a residual, or null
        let y = b.param::<Global<F32>>("y"); // [n]
        let k = b.dim("k", self.k);
        dot::leave_registers(b, self.numerics);
        let n = b.dim("n", self.n);
        let eps = norm::epsilon(b, self.epsilon);

        let ty = b.mov(self.weights.id());
        let tensor = Tensor { data, plane, ty };
        let types = [self.weights];
        let matrix = Matrix { tensor, types: &types, kind: LoadKind::Streaming };
        let input = Input { x, norm: self.norm.then_some((gamma, eps)), k, kind: LoadKind::Constant };
        let general = self.n == Dim::Param;
        let mut addends = Vec::new();
        for (at, always) in [(bias, self.bias), (residual, self.residual)] {
            if always {
                addends.push(Addend { at, given: None });
            } else if general {
                addends.push(Addend::unless_null(b, at));
            }
        }
        let with = With { numerics: self.numerics, types: &types, of: &[] };
        gemv::staged(b, &input, &with, |b, pass| {
            let share = Share::of_grid(b, n, pass);
            share.each(b, |b, rows| gemv::store_sums(b, matrix, pass, rows, y, &addends));
        });
    }
}

/// Weights of the smallest block: rows are whole numbers of them.
const BLOCK: u32 = 32;

/// The check of sizes and types of a gemv: `k` up to `longest`, at least one row in each of `rows`.
pub(super) fn check(k: Dim, longest: u32, rows: &[(&str, Dim)], types: &[WeightType]) -> Result<(), String> {
    match k.baked() {
        Some(k) if k == 0 || k % BLOCK != 0 => return Err(format!("k is {k}: needs a multiple of {BLOCK}")),
        Some(k) if k > longest => return Err(format!("k is {k}: at most {longest}")),
        _ => {}
    }
    if let Some((name, _)) = rows.iter().find(|(_, rows)| *rows == Dim::Baked(0)) {
        return Err(format!("{name} is 0: needs at least one row"));
    }
    let fits = |ty: &WeightType| k.baked().is_none_or(|k| k.is_multiple_of(ty.block_len()));
    match types.first() {
        None => Err("no type of weights: needs at least one".to_owned()),
        Some(first) if !types.iter().any(fits) => {
            let needed = first.block_len();
            Err(format!("k is {}: {first} needs a multiple of {needed}", k.baked().unwrap_or(0)))
        }
        Some(_) => Ok(()),
    }
}
