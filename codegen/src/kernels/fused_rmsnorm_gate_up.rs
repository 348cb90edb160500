use super::Kernel;
use super::fused_rmsnorm_gemv::{ROWS_PER_LANE, check};
use super::fused_rmsnorm_qkv::matrix_params;
use crate::blocks::dot::{self, Matrix, Tile};
use crate::blocks::gemv::{self, Input, Share};
use crate::blocks::math;
use crate::blocks::norm;
use crate::blocks::tensor::Tensor;
use crate::ptx::{Builder, Dim, F32, Global, LoadKind, U8, U32, U64, Var};
use kiln_shape::WeightType;

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
        check(self.k, gemv::STAGED_MAX, &[("n", self.n)], &self.types)
    }

    fn build(&self, b: &mut Builder) {
        let [gate, up] = ["gate", "up"].map(|name| matrix_params(b, name));
        let x = b.param::<Global<F32>>("x"); // [k]
        let gamma = b.param::<Global<F32>>("gamma"); // [k]
        let y = b.param::<Global<F32>>("y"); // [n]
        let k = b.dim("k", self.k);
        dot::leave_registers(b, &self.types, k);
        let n = b.dim("n", self.n);
        let eps = norm::epsilon(b, self.epsilon);

        let tile = Tile::new(b, k, ROWS_PER_LANE);
        let share = Share::of_grid(b, n, tile.rows());
        let input = Input { x, norm: Some((gamma, eps)), k, kind: LoadKind::Constant };
        gemv::staged(b, &input, ROWS_PER_LANE, |b, pass| {
            share.each(b, |b, rows| {
                // One loop over both matrices instead of the text for every type twice: after it, `older` has the sums of
                // the gate and `newer` those of up.
                let zeros = |b: &mut Builder| -> Vec<Var<F32>> { (0..ROWS_PER_LANE).map(|_| b.var(0.0)).collect() };
                let (older, newer) = (zeros(b), zeros(b));
                let mut products = None;
                b.for_range(0, 2, 1, |b, which| {
                    let is_gate = b.setp_eq(which, 0);
                    let mut choose = |gate: Global<U8>, up: Global<U8>| {
                        let (gate, up) = (b.address(gate), b.address(up));
                        let address = b.selp::<U64>(gate, up, is_gate);
                        b.global_ptr::<U8>(address)
                    };
                    let (data, plane) = (choose(gate.data, up.data), choose(gate.plane, up.plane));
                    let tensor = Tensor { data, plane, ty: b.selp::<U32>(gate.ty, up.ty, is_gate) };
                    let matrix = Matrix { tensor, types: &self.types, kind: LoadKind::Streaming };
                    let found = dot::rows(b, matrix, &pass.staged, pass.tile, rows);
                    for ((older, newer), sum) in older.iter().zip(&newer).zip(&found.sums) {
                        let before = b.get(*newer);
                        b.set(*older, before);
                        b.set(*newer, *sum);
                    }
                    products = Some(found);
                });
                let Some(products) = products else { return };
                for ((row, gate), up) in products.rows.into_iter().zip(older).zip(newer) {
                    let inside = b.setp_lt::<U32>(row, rows.end);
                    let writes = b.and_pred(inside, products.leader);
                    b.if_(writes, |b| {
                        let (mut gate, mut up) = (b.get(gate), b.get(up));
                        if let Some(scale) = pass.scale {
                            (gate, up) = (b.mul(gate, scale), b.mul(up, scale));
                        }
                        let activated = math::silu(b, gate);
                        let value = b.mul(activated, up);
                        let to = b.index(y, row);
                        b.st(to, value);
                    });
                }
            });
        });
    }
}
