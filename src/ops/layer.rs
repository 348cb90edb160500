//! The products of a transformer layer that share their vector: Q, K and V in one launch, gate, up and SwiGLU in one.

use super::check;
use super::kernels::Ops;
use super::matrix::Matrix;
use super::product::{Norm, ROWS_PER_WARP, address, grid};
use crate::Result;
use crate::driver::{GpuTensor, KernelParam, Stream};

/// The longest vector of [`Ops::fused_rmsnorm_gate_up`]: what shared memory holds at once.
const LONGEST_STAGED: u32 = 12288;

/// Arguments of the three projections in front of attention: `q = Wq norm(x) + q_bias`, and so for `k` and `v`.
#[derive(Debug, Clone, Copy)]
pub struct Qkv<'a> {
    /// `[q_rows, k]`. The three matrices may be of different types.
    pub wq: &'a Matrix,
    /// `[kv_rows, k]`.
    pub wk: &'a Matrix,
    /// `[kv_rows, k]`.
    pub wv: &'a Matrix,
    /// `[k]`.
    pub x: &'a GpuTensor<f32>,
    /// Gamma is `[k]`.
    pub norm: Norm<'a>,
    /// Added to Q `[q_rows]`, K `[kv_rows]` and V `[kv_rows]`.
    pub biases: Option<[&'a GpuTensor<f32>; 3]>,
    /// `[q_rows]`, written.
    pub q: &'a GpuTensor<f32>,
    /// `[kv_rows]`, written.
    pub k: &'a GpuTensor<f32>,
    /// `[kv_rows]`, written.
    pub v: &'a GpuTensor<f32>,
}

impl Ops {
    /// The norm and the projections to Q, K and V, in one launch.
    ///
    /// # Errors
    /// If a length is not the matrices', these do not go together, a tensor is on another device, or one that is written
    /// is also another argument.
    pub fn fused_rmsnorm_qkv(&self, stream: &Stream, arguments: &Qkv<'_>) -> Result<()> {
        let &Qkv { wq, wk, wv, x, norm, biases, q, k, v } = arguments;
        let columns = || format!("the columns of wq, {}", wq.k);
        check::number("columns of wk of QKV", wk.k, wk.k == wq.k, columns)?;
        check::number("columns of wv of QKV", wv.k, wv.k == wq.k, columns)?;
        check::number("rows of wv of QKV", wv.n, wv.n == wk.n, || format!("the rows of wk, {}", wk.n))?;
        check::tensor("x of QKV", x, &[("columns", wq.k)])?;
        check::tensor("gamma of QKV", norm.gamma, &[("columns", wq.k)])?;
        check::tensor("q of QKV", q, &[("rows of wq", wq.n)])?;
        check::tensor("k of QKV", k, &[("rows of wk", wk.n)])?;
        check::tensor("v of QKV", v, &[("rows of wv", wv.n)])?;
        if let Some([q_bias, k_bias, v_bias]) = biases {
            check::tensor("q_bias of QKV", q_bias, &[("rows of wq", wq.n)])?;
            check::tensor("k_bias of QKV", k_bias, &[("rows of wk", wk.n)])?;
            check::tensor("v_bias of QKV", v_bias, &[("rows of wv", wv.n)])?;
        }
        let sizes = [8, 8, 4, 8, 8, 4, 8, 8, 4, 8, 8, 8, 8, 8, 8, 8, 8, 4, 4, 4, 4];
        let kernel = self.find("fused_rmsnorm_qkv", &sizes, "FusedRmsNormQkv::general()")?;
        // No tile has rows of two matrices.
        let grid = grid(kernel, wq.n.div_ceil(ROWS_PER_WARP) + 2 * wk.n.div_ceil(ROWS_PER_WARP));
        let matrices = [wq, wk, wv];
        let blocks = matrices.map(|w| (w.data.as_ptr(), w.plane.as_ptr(), w.ty.id()));
        let (px, pg) = (x.as_ptr(), norm.gamma.as_ptr());
        let bias = [0, 1, 2].map(|i| address(biases.map(|biases| biases[i])));
        let outputs = [q, k, v].map(GpuTensor::as_ptr);
        let [(qd, qs, qt), (kd, ks, kt), (vd, vs, vt)] = &blocks;
        let params = [
            KernelParam::new(qd),
            KernelParam::new(qs),
            KernelParam::new(qt),
            KernelParam::new(kd),
            KernelParam::new(ks),
            KernelParam::new(kt),
            KernelParam::new(vd),
            KernelParam::new(vs),
            KernelParam::new(vt),
            KernelParam::new(&px),
            KernelParam::new(&pg),
            KernelParam::new(&bias[0]),
            KernelParam::new(&bias[1]),
            KernelParam::new(&bias[2]),
            KernelParam::new(&outputs[0]),
            KernelParam::new(&outputs[1]),
            KernelParam::new(&outputs[2]),
            KernelParam::new(&wq.k),
            KernelParam::new(&wq.n),
            KernelParam::new(&wk.n),
            KernelParam::new(&norm.eps),
        ];
        let [q_bias, k_bias, v_bias] = biases.map_or([x.reads("x"), x.reads("x"), x.reads("x")], |[q, k, v]| {
            [q.reads("q_bias"), k.reads("k_bias"), v.reads("v_bias")]
        });
        let uses = [
            wq.data.reads("wq"),
            wq.plane.reads("wq"),
            wk.data.reads("wk"),
            wk.plane.reads("wk"),
            wv.data.reads("wv"),
            wv.plane.reads("wv"),
            x.reads("x"),
            norm.gamma.reads("gamma"),
            q_bias,
            k_bias,
            v_bias,
            q.writes("q"),
            k.writes("k"),
            v.writes("v"),
        ];
        stream.enqueue(uses, |stream| {
            // SAFETY: the matrices have rows of k weights with their scales, x and gamma have k elements, outputs and
            // biases have as many as their matrix has rows; a bias that is null is not read.
            unsafe { kernel.launch(stream, [grid, 1, 1], &params) }
        })
    }

    /// `y = silu(Wgate norm(x)) * (Wup norm(x))`, with `silu(g) = g / (1 + exp(-g))`, in one launch: `gate` and `up` are
    /// `[n, k]`, of any types, `x` and gamma `[k]` with k up to 12288, `y` `[n]`.
    ///
    /// # Errors
    /// If a length is not the matrices', these do not go together or their rows are too long, a tensor is on another
    /// device, or `y` is also another argument.
    pub fn fused_rmsnorm_gate_up(
        &self,
        stream: &Stream,
        gate: &Matrix,
        up: &Matrix,
        x: &GpuTensor<f32>,
        norm: Norm<'_>,
        y: &GpuTensor<f32>,
    ) -> Result<()> {
        check::number("columns of gate", gate.k, gate.k <= LONGEST_STAGED, || format!("at most {LONGEST_STAGED}"))?;
        check::number("columns of up", up.k, up.k == gate.k, || format!("the columns of gate, {}", gate.k))?;
        check::number("rows of up", up.n, up.n == gate.n, || format!("the rows of gate, {}", gate.n))?;
        check::tensor("x of gate and up", x, &[("columns", gate.k)])?;
        check::tensor("gamma of gate and up", norm.gamma, &[("columns", gate.k)])?;
        check::tensor("y of gate and up", y, &[("rows", gate.n)])?;
        let sizes = [8, 8, 4, 8, 8, 4, 8, 8, 8, 4, 4, 4];
        let kernel = self.find("fused_rmsnorm_gate_up", &sizes, "FusedRmsNormGateUp::general()")?;
        let grid = grid(kernel, gate.n.div_ceil(ROWS_PER_WARP));
        let blocks = [gate, up].map(|w| (w.data.as_ptr(), w.plane.as_ptr(), w.ty.id()));
        let [(gd, gs, gt), (ud, us, ut)] = &blocks;
        let (px, pg, py) = (x.as_ptr(), norm.gamma.as_ptr(), y.as_ptr());
        let params = [
            KernelParam::new(gd),
            KernelParam::new(gs),
            KernelParam::new(gt),
            KernelParam::new(ud),
            KernelParam::new(us),
            KernelParam::new(ut),
            KernelParam::new(&px),
            KernelParam::new(&pg),
            KernelParam::new(&py),
            KernelParam::new(&gate.k),
            KernelParam::new(&gate.n),
            KernelParam::new(&norm.eps),
        ];
        let uses = [
            gate.data.reads("gate"),
            gate.plane.reads("gate"),
            up.data.reads("up"),
            up.plane.reads("up"),
            x.reads("x"),
            norm.gamma.reads("gamma"),
            y.writes("y"),
        ];
        stream.enqueue(uses, |stream| {
            // SAFETY: both matrices have n rows of k weights with their scales, x and gamma have k elements, no more than
            // the kernel stages at once, and y has n.
            unsafe { kernel.launch(stream, [grid, 1, 1], &params) }
        })
    }
}
