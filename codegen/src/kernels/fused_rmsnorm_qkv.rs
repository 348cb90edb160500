use super::Kernel;
use super::fused_rmsnorm_gemv::check;
use crate::blocks::dot::{self, Matrix, Rows};
use crate::blocks::gemv::{self, Addend, Input, Share, With};
use crate::blocks::norm;
use crate::blocks::tensor::Tensor;
use crate::ptx::{Builder, Dim, F32, Global, LoadKind, Size, U8, U32};
use kiln_shape::{Numerics, STAGED_MAX, WeightType};

/// `q = Wq norm(x) + q_bias`, `k = Wk norm(x) + k_bias`, `v = Wv norm(x) + v_bias` in one launch, with
/// `norm(x) = x * rsqrt(mean(x^2) + eps) * gamma`: any grid, a warp a tile of rows of one of the matrices, whose types are
/// launch parameters. A bias that is null is none.
#[derive(Debug, Clone, PartialEq)]
pub struct FusedRmsNormQkv {
    /// Length of `x`: a multiple of 256.
    pub k: Dim,
    /// Rows of `Wq`.
    pub q_rows: Dim,
    /// Rows of `Wk`, and of `Wv`.
    pub kv_rows: Dim,
    /// Epsilon under the root; `None` makes it a launch parameter.
    pub epsilon: Option<f32>,
    /// The types that the matrices may have.
    pub types: Vec<WeightType>,
}

impl FusedRmsNormQkv {
    /// The kernel for these sizes, with epsilon 1e-6, for every type of weights.
    pub fn new(k: u32, q_rows: u32, kv_rows: u32) -> FusedRmsNormQkv {
        let [k, q_rows, kv_rows] = [k, q_rows, kv_rows].map(Dim::Baked);
        FusedRmsNormQkv { k, q_rows, kv_rows, epsilon: Some(1e-6), types: WeightType::ALL.to_vec() }
    }

    /// The kernel with sizes and epsilon as launch parameters.
    pub fn general() -> FusedRmsNormQkv {
        let [k, q_rows, kv_rows] = [Dim::Param; 3];
        FusedRmsNormQkv { k, q_rows, kv_rows, epsilon: None, types: WeightType::ALL.to_vec() }
    }

    /// Another epsilon.
    pub fn with_epsilon(self, epsilon: f32) -> FusedRmsNormQkv {
        FusedRmsNormQkv { epsilon: Some(epsilon), ..self }
    }

    /// For matrices of these types only.
    pub fn with_types(self, types: &[WeightType]) -> FusedRmsNormQkv {
        FusedRmsNormQkv { types: types.to_vec(), ..self }
    }
}

/// The parameters of a matrix: its blocks, the plane of scales, and its type.
#[track_caller]
pub(super) fn matrix_params(b: &mut Builder, name: &str) -> Tensor {
    let data = b.param::<Global<U8>>(name); // [rows, k]
    let plane = b.param::<Global<U8>>(&format!("{name}_scales")); // of Q6_K and Q8_0, else not read
    let ty = b.param::<U32>(&format!("{name}_type")); // GGML's number
    Tensor { data, plane, ty }
}

impl Kernel for FusedRmsNormQkv {
    fn name(&self) -> &str {
        "fused_rmsnorm_qkv"
    }

    fn check(&self) -> Result<(), String> {
        let rows = [("q_rows", self.q_rows), ("kv_rows", self.kv_rows)];
        check(self.k, 4 * STAGED_MAX, &rows, &self.types)
    }

    fn build(&self, b: &mut Builder) {
        let [wq, wk, wv] = ["wq", "wk", "wv"].map(|name| matrix_params(b, name));
        let x = b.param::<Global<F32>>("x"); // [k]
        let gamma = b.param::<Global<F32>>("gamma"); // [k]
        let [q_bias, k_bias, v_bias] = ["q_bias", "k_bias", "v_bias"].map(|name| b.param::<Global<F32>>(name)); // or null
        let [q, k, v] = ["q", "k", "v"].map(|name| b.param::<Global<F32>>(name)); // [q_rows], [kv_rows], [kv_rows]
        let width = b.dim("width", self.k);
        dot::leave_registers(b, Numerics::Exact);
        let q_rows = b.dim("q_rows", self.q_rows);
        let kv_rows = b.dim("kv_rows", self.kv_rows);
        let eps = norm::epsilon(b, self.epsilon);

        let input = Input { x, norm: Some((gamma, eps)), k: width, kind: LoadKind::Constant };
        let with = With { numerics: Numerics::Exact, types: &self.types, of: &[] };
        let tile = gemv::tile_rows(width);
        // Rows as the grid deals them out: those of each matrix filled up to whole tiles, so that no tile has two.
        let whole = |b: &mut Builder, rows: Size| {
            let tiles = b.size_div_ceil(rows, tile);
            b.size_mul(tiles, tile)
        };
        let (q_room, kv_room) = (whole(b, q_rows), whole(b, kv_rows));
        let v_first = b.size_add(q_room, kv_room);
        let all = b.size_add(v_first, kv_room);
        gemv::staged(b, &input, &with, |b, pass| {
            let share = Share::of_grid(b, all, pass);
            share.each(b, |b, rows| {
                let after_q = b.setp_ge::<U32>(rows.first, q_room);
                let after_k = b.setp_ge::<U32>(rows.first, v_first);
                macro_rules! choose {
                    ($ty:ty, $q:expr, $k:expr, $v:expr) => {{
                        let kv = b.selp::<$ty>($v, $k, after_k);
                        b.selp::<$ty>(kv, $q, after_q)
                    }};
                }
                let first = choose!(U32, 0, q_room, v_first);
                let end = choose!(U32, q_rows, kv_rows, kv_rows);
                let ty = choose!(U32, wq.ty, wk.ty, wv.ty);
                let mut pointer = |of: [Global<F32>; 3]| {
                    let [q, k, v] = of.map(|pointer| b.address(pointer));
                    let address = choose!(crate::ptx::U64, q, k, v);
                    b.global_ptr::<F32>(address)
                };
                let y = pointer([q, k, v]);
                let bias = pointer([q_bias, k_bias, v_bias]);
                let data = pointer([wq.data.cast(), wk.data.cast(), wv.data.cast()]).cast::<U8>();
                let plane = pointer([wq.plane.cast(), wk.plane.cast(), wv.plane.cast()]).cast::<U8>();
                let bias = Addend::unless_null(b, bias);
                let matrix =
                    Matrix { tensor: Tensor { data, plane, ty }, types: &self.types, kind: LoadKind::Streaming };
                let rows = Rows { first: b.sub::<U32>(rows.first, first), end: Size::Reg(end) };
                gemv::store_sums(b, matrix, pass, rows, y, &[bias]);
            });
        });
    }
}
