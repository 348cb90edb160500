use super::Kernel;
use super::fused_rmsnorm_gemv::check;
use super::fused_rmsnorm_qkv::matrix_params;
use crate::blocks::gemv::{self, Input, Share, With};
use crate::blocks::tensor::Tensor;
use crate::blocks::{dot, norm, swiglu};
use crate::ptx::{Builder, Dim, F32, Global, LoadKind, U8, U32, U64};
use kiln_shape::{Numerics, STAGED_MAX, WeightType};

/// `y = silu(Wgate norm(x)) * (Wup norm(x))` in one launch, with `norm(x) = x * rsqrt(mean(x^2) + eps) * gamma` and
/// `silu(g) = g / (1 + exp(-g))`: any grid, a warp a tile of the same rows of both matrices, whose types are launch
/// parameters. `x` is staged whole, so it has at most 12288 elements, as a launch parameter too.
#[derive(Debug, Clone, PartialEq)]
pub struct FusedRmsNormGateUp {
    /// Length of `x`: a multiple of 256 up to 12288.
    pub k: Dim,
    /// Rows of each matrix.
    pub n: Dim,
    /// Epsilon under the root; `None` makes it a launch parameter.
    pub epsilon: Option<f32>,
    /// The types that the matrices may have.
    pub types: Vec<WeightType>,
}

impl FusedRmsNormGateUp {
    /// The kernel for these sizes, with epsilon 1e-6, for every type of weights.
    pub fn new(k: u32, n: u32) -> FusedRmsNormGateUp {
        let [k, n] = [k, n].map(Dim::Baked);
        FusedRmsNormGateUp { k, n, epsilon: Some(1e-6), types: WeightType::ALL.to_vec() }
    }

    /// The kernel with sizes and epsilon as launch parameters.
    pub fn general() -> FusedRmsNormGateUp {
        let [k, n] = [Dim::Param; 2];
        FusedRmsNormGateUp { k, n, epsilon: None, types: WeightType::ALL.to_vec() }
    }

    /// Another epsilon.
    pub fn with_epsilon(self, epsilon: f32) -> FusedRmsNormGateUp {
        FusedRmsNormGateUp { epsilon: Some(epsilon), ..self }
    }

    /// For matrices of these types only.
    pub fn with_types(self, types: &[WeightType]) -> FusedRmsNormGateUp {
        FusedRmsNormGateUp { types: types.to_vec(), ..self }
    }
}

impl Kernel for FusedRmsNormGateUp {
    fn name(&self) -> &str {
        "fused_rmsnorm_gate_up"
    }

    fn check(&self) -> Result<(), String> {
        check(self.k, STAGED_MAX, &[("n", self.n)], &self.types)
    }

    fn build(&self, b: &mut Builder) {
        let [gate, up] = ["gate", "up"].map(|name| matrix_params(b, name));
        let x = b.param::<Global<F32>>("x"); // [k]
        let gamma = b.param::<Global<F32>>("gamma"); // [k]
        let y = b.param::<Global<F32>>("y"); // [n]
        let k = b.dim("k", self.k);
        dot::leave_registers(b, Numerics::Exact);
        let n = b.dim("n", self.n);
        let eps = norm::epsilon(b, self.epsilon);

        let input = Input { x, norm: Some((gamma, eps)), k, kind: LoadKind::Constant };
        let with = With { numerics: Numerics::Exact, types: &self.types, of: &[] };
        gemv::staged(b, &input, &with, |b, pass| {
            let share = Share::of_grid(b, n, pass);
            share.each(b, |b, rows| {
                swiglu::tile(b, &self.types, pass, rows, y, |b, is_gate| {
                    let mut choose = |gate: Global<U8>, up: Global<U8>| {
                        let (gate, up) = (b.address(gate), b.address(up));
                        let address = b.selp::<U64>(gate, up, is_gate);
                        b.global_ptr::<U8>(address)
                    };
                    let (data, plane) = (choose(gate.data, up.data), choose(gate.plane, up.plane));
                    Tensor { data, plane, ty: b.selp::<U32>(gate.ty, up.ty, is_gate) }
                });
            });
        });
    }
}
