//! The products of a transformer layer that share their vector: Q, K and V in one launch, gate, up and SwiGLU in one.

use super::check;
use super::kernels::Ops;
use super::matrix::Matrix;
use super::product::{Norm, grid};
use crate::Result;
use crate::driver::{GpuTensor, Stream};
use crate::launch::{In, Out, launch};
use crate::shape::{ROWS_TOGETHER, STAGED_MAX};

launch! {
    struct Projections<'a> {
        wq: In<'a, u8>,
        wq_scales: In<'a, u8>,
        wq_type: u32,
        wk: In<'a, u8>,
        wk_scales: In<'a, u8>,
        wk_type: u32,
        wv: In<'a, u8>,
        wv_scales: In<'a, u8>,
        wv_type: u32,
        x: In<'a, f32>,
        gamma: In<'a, f32>,
        q_bias: In<'a, f32>,
        k_bias: In<'a, f32>,
        v_bias: In<'a, f32>,
        q: Out<'a, f32>,
        k: Out<'a, f32>,
        v: Out<'a, f32>,
        width: u32,
        q_rows: u32,
        kv_rows: u32,
        eps: f32,
    }
}

launch! {
    struct GateUp<'a> {
        gate: In<'a, u8>,
        gate_scales: In<'a, u8>,
        gate_type: u32,
        up: In<'a, u8>,
        up_scales: In<'a, u8>,
        up_type: u32,
        x: In<'a, f32>,
        gamma: In<'a, f32>,
        y: Out<'a, f32>,
        k: u32,
        n: u32,
        eps: f32,
    }
}

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
        let kernel = self.find::<Projections<'_>>("fused_rmsnorm_qkv", "FusedRmsNormQkv::general()")?;
        // No tile has rows of two matrices.
        let grid = grid(&kernel, wq.n.div_ceil(ROWS_TOGETHER) + 2 * wk.n.div_ceil(ROWS_TOGETHER));
        let [q_bias, k_bias, v_bias] = [0, 1, 2].map(|i| In::from(biases.map(|biases| biases[i])));
        let launch = Projections {
            wq: (&wq.data).into(),
            wq_scales: (&wq.plane).into(),
            wq_type: wq.ty.id(),
            wk: (&wk.data).into(),
            wk_scales: (&wk.plane).into(),
            wk_type: wk.ty.id(),
            wv: (&wv.data).into(),
            wv_scales: (&wv.plane).into(),
            wv_type: wv.ty.id(),
            x: x.into(),
            gamma: norm.gamma.into(),
            q_bias,
            k_bias,
            v_bias,
            q: q.into(),
            k: k.into(),
            v: v.into(),
            width: wq.k,
            q_rows: wq.n,
            kv_rows: wk.n,
            eps: norm.eps,
        };
        // SAFETY: the matrices have rows of k weights with their scales, x and gamma have k elements, outputs and biases
        // have as many as their matrix has rows; a bias that is null is not read.
        unsafe { kernel.enqueue(stream, [grid, 1, 1], &launch) }
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
        check::number("columns of gate", gate.k, gate.k <= STAGED_MAX, || format!("at most {STAGED_MAX}"))?;
        check::number("columns of up", up.k, up.k == gate.k, || format!("the columns of gate, {}", gate.k))?;
        check::number("rows of up", up.n, up.n == gate.n, || format!("the rows of gate, {}", gate.n))?;
        check::tensor("x of gate and up", x, &[("columns", gate.k)])?;
        check::tensor("gamma of gate and up", norm.gamma, &[("columns", gate.k)])?;
        check::tensor("y of gate and up", y, &[("rows", gate.n)])?;
        let kernel = self.find::<GateUp<'_>>("fused_rmsnorm_gate_up", "FusedRmsNormGateUp::general()")?;
        let grid = grid(&kernel, gate.n.div_ceil(ROWS_TOGETHER));
        let launch = GateUp {
            gate: (&gate.data).into(),
            gate_scales: (&gate.plane).into(),
            gate_type: gate.ty.id(),
            up: (&up.data).into(),
            up_scales: (&up.plane).into(),
            up_type: up.ty.id(),
            x: x.into(),
            gamma: norm.gamma.into(),
            y: y.into(),
            k: gate.k,
            n: gate.n,
            eps: norm.eps,
        };
        // SAFETY: both matrices have n rows of k weights with their scales, x and gamma have k elements, no more than the
        // kernel stages at once, and y has n.
        unsafe { kernel.enqueue(stream, [grid, 1, 1], &launch) }
    }
}
