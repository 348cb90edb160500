use super::{Grid, Kernel};
use crate::blocks::dependent;
use crate::blocks::dot::{self, Matrix, Rows};
use crate::blocks::gemv::{self, Input, Output, Share, With};
use crate::blocks::swiglu;
use crate::blocks::tensor::{Table, Tensor, vector_from_table};
use crate::ptx::{Builder, F32, Global, LoadKind, Size, U8, U32, Val};
use kiln_shape::table::{LAYER_SLOTS, MODEL_SLOTS};
use kiln_shape::{ModelShape, Numerics, STAGED_MAX, TensorRole, WeightType};

/// The matrix-vector products of a layer and of the head: what lies between two grid-wide dependencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Phase {
    /// `qkv = Wqkv norm(x) + bias`, `[q_dim + 2 kv_dim]`.
    Qkv,
    /// `x += Wo attention`.
    AttentionOutput,
    /// `hidden = silu(Wgate norm(x)) * (Wup norm(x))`, `[ffn]`.
    GateUp,
    /// `x += Wdown hidden`.
    Down,
    /// `logits = Wout norm(x)`, `[vocab]`.
    Head,
}

impl Phase {
    /// All phases, in the order of use.
    pub const ALL: [Phase; 5] = [Phase::Qkv, Phase::AttentionOutput, Phase::GateUp, Phase::Down, Phase::Head];

    /// The kernel's entry name.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Qkv => "rmsnorm_qkv",
            Phase::AttentionOutput => "attention_output_residual",
            Phase::GateUp => "rmsnorm_gate_up_swiglu",
            Phase::Down => "down_residual",
            Phase::Head => "rmsnorm_head",
        }
    }
}

/// One phase in exact numerics as a kernel of its own: any grid, a warp a tile of rows.
#[derive(Debug, Clone, PartialEq)]
pub struct PhaseKernel {
    /// Which phase.
    pub phase: Phase,
    /// The model. Its vocabulary and number of layers are launch parameters.
    pub shape: ModelShape,
    /// The types its matrices may have.
    pub types: Vec<WeightType>,
}

/// Operands of a phase.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operands {
    pub(crate) table: Table,
    /// The first entry of the layer in the table.
    pub(crate) layer: Val<U32>,
    pub(crate) x: Global<F32>,
    pub(crate) y: Global<F32>,
    /// The residual stream that the phase adds its result to, where it has one.
    pub(crate) residual: Global<F32>,
    pub(crate) eps: Val<F32>,
    /// What loads of `x` may assume.
    pub(crate) kind: LoadKind,
}

impl Kernel for PhaseKernel {
    fn name(&self) -> &str {
        self.phase.name()
    }

    fn grid(&self) -> Grid {
        let rows_per_block = self.tile() * self.block() / 32;
        match self.rows_baked() {
            Some(rows) => Grid::UpTo(rows.div_ceil(rows_per_block)),
            None => Grid::PerRows(rows_per_block),
        }
    }

    fn check(&self) -> Result<(), String> {
        let widths = [("hidden", self.shape.hidden), ("ffn", self.shape.ffn), ("heads * head_dim", self.shape.q_dim())];
        for (name, width) in widths {
            if width == 0 || width % 32 != 0 {
                return Err(format!("{name} is {width}: needs a multiple of 32"));
            }
        }
        let (q_dim, kv_dim, tile) = (self.shape.q_dim(), self.shape.kv_dim(), self.tile());
        if !q_dim.is_multiple_of(tile) || !kv_dim.is_multiple_of(tile) {
            return Err(format!("Q has {q_dim} rows, K and V have {kv_dim}: needs multiples of {tile}"));
        }
        if self.shape.hidden > STAGED_MAX {
            return Err(format!("hidden is {}: at most {STAGED_MAX}", self.shape.hidden));
        }
        Ok(())
    }

    fn build(&self, b: &mut Builder) {
        let table = b.param::<Global<U8>>("table"); // the tensor table
        let layer = b.param::<U32>("layer"); // ignored by the head
        let x = b.param::<Global<F32>>("x"); // the phase's input
        let y = b.param::<Global<F32>>("y"); // its output
        let eps = b.param::<F32>("eps"); // of the norm, where there is one
        let vocab = b.param::<U32>("vocab"); // rows of the head
        b.param::<U32>("phase"); // which one this is, for kernels of several
        let layer = b.mad::<U32>(layer, LAYER_SLOTS, MODEL_SLOTS);
        let kind = dependent::wait(b);
        let operands = Operands { table: table.into(), layer, x, y, residual: y, eps, kind };
        dot::leave_registers(b, Numerics::Exact);
        let rows = self.rows_baked().map_or(Size::Reg(vocab), Size::Const);
        self.staged(b, &operands, |kernel, b, pass| {
            let share = Share::of_grid(b, rows, pass);
            kernel.rows(b, &operands, pass, share);
        });
    }
}

impl PhaseKernel {
    /// Length of the input vector.
    const fn k(&self) -> u32 {
        match self.phase {
            Phase::Qkv | Phase::GateUp | Phase::Head => self.shape.hidden,
            Phase::AttentionOutput => self.shape.q_dim(),
            Phase::Down => self.shape.ffn,
        }
    }

    /// Rows that a warp works on at once.
    const fn tile(&self) -> u32 {
        gemv::tile_rows(Size::Const(self.k()))
    }

    /// Rows of the phase: of one matrix after another, or of two that are worked on together. The head's are a launch
    /// parameter.
    fn rows_baked(&self) -> Option<u32> {
        match self.phase {
            Phase::Qkv => Some(self.shape.q_dim() + 2 * self.shape.kv_dim()),
            Phase::AttentionOutput | Phase::Down => Some(self.shape.hidden),
            Phase::GateUp => Some(self.shape.ffn),
            Phase::Head => None,
        }
    }

    /// Rows `first` to `end` of the phase, which may begin and end anywhere.
    pub(crate) fn run(&self, b: &mut Builder, operands: &Operands, first: Val<U32>, end: Val<U32>) {
        self.staged(b, operands, |kernel, b, pass| match kernel.phase {
            // No tile may lie across two matrices.
            Phase::Qkv => b.for_range(0, 3, 1, |b, matrix| {
                let (q, kv) = (kernel.shape.q_dim(), kernel.shape.kv_dim());
                let is_q = b.setp_eq(matrix, 0);
                let kv_first = b.mad::<U32>(matrix, kv, q - kv);
                let matrix_first = b.selp::<U32>(0, kv_first, is_q);
                let kv_end = b.add(kv_first, kv);
                let matrix_end = b.selp::<U32>(q, kv_end, is_q);
                let (first, end) = (b.max(first, matrix_first), b.min(end, matrix_end));
                let share = Share::run(b, first, end, pass);
                kernel.rows(b, operands, pass, share);
            }),
            _ => {
                let share = Share::run(b, first, end, pass);
                kernel.rows(b, operands, pass, share);
            }
        });
    }

    /// Stages the phase's vector and runs `body` on it.
    fn staged(&self, b: &mut Builder, operands: &Operands, body: impl FnOnce(&PhaseKernel, &mut Builder, &gemv::Pass)) {
        let Operands { table, layer, x, eps, kind, .. } = *operands;
        let norm = match self.phase {
            Phase::Qkv => Some(TensorRole::AttnNorm),
            Phase::GateUp => Some(TensorRole::FfnNorm),
            Phase::Head => Some(TensorRole::OutputNorm),
            Phase::AttentionOutput | Phase::Down => None,
        };
        let norm = norm.map(|role| {
            let entry = self.entry(b, layer, role);
            (vector_from_table::<F32>(b, table, entry), eps)
        });
        let input = Input { x, norm, k: Size::Const(self.k()), kind };
        let with = With { numerics: Numerics::Exact, types: &self.types, of: &[] };
        gemv::staged(b, &input, &with, |b, pass| body(self, b, pass));
    }

    /// One block's rows.
    fn rows(&self, b: &mut Builder, operands: &Operands, pass: &gemv::Pass, share: Share) {
        let Operands { table, y, .. } = *operands;
        share.each(b, |b, rows| match self.phase {
            Phase::Qkv => self.qkv_tile(b, operands, pass, rows),
            Phase::GateUp => self.gate_up_tile(b, operands, pass, rows),
            Phase::AttentionOutput => self.residual_tile(b, operands, pass, rows, TensorRole::AttnOutput),
            Phase::Down => self.residual_tile(b, operands, pass, rows, TensorRole::FfnDown),
            Phase::Head => {
                let tensor = Tensor::from_table(b, table, TensorRole::Output.slot());
                let output = Output { y, bias: None, residual: None };
                gemv::store_tile(b, self.matrix(tensor), pass, rows, output);
            }
        });
    }

    fn matrix(&self, tensor: Tensor) -> Matrix<'_> {
        Matrix { tensor, types: &self.types, kind: LoadKind::Streaming }
    }

    fn entry(&self, b: &mut Builder, layer: Val<U32>, role: TensorRole) -> Size {
        match self.phase {
            Phase::Head => Size::Const(role.slot()),
            _ => b.size_add(Size::Reg(layer), role.slot()),
        }
    }

    /// A tile of Q, K or V; results lie one after another. No tile lies across two matrices, since their rows are whole
    /// tiles (`check`).
    fn qkv_tile(&self, b: &mut Builder, operands: &Operands, pass: &gemv::Pass, rows: Rows) {
        let Operands { table, layer, y, .. } = *operands;
        let (q_dim, kv_dim) = (self.shape.q_dim(), self.shape.kv_dim());
        let (after_q, after_k) = (b.setp_ge(rows.first, q_dim), b.setp_ge(rows.first, q_dim + kv_dim));
        let mut choose = |q: u32, k: u32, v: u32| {
            let kv = b.selp::<U32>(v, k, after_k);
            b.selp::<U32>(kv, q, after_q)
        };
        let weight = choose(TensorRole::AttnQ.slot(), TensorRole::AttnK.slot(), TensorRole::AttnV.slot());
        let bias = choose(TensorRole::AttnQBias.slot(), TensorRole::AttnKBias.slot(), TensorRole::AttnVBias.slot());
        let before = choose(0, q_dim, q_dim + kv_dim);
        let entry = b.add(layer, weight);
        let tensor = Tensor::from_table(b, table, entry);
        let bias = self.shape.qkv_bias.then(|| {
            let entry = b.add(layer, bias);
            vector_from_table::<F32>(b, table, entry)
        });
        let output = Output { y: b.index(y, before), bias, residual: None };
        let (first, end) = (b.sub(rows.first, before), b.sub::<U32>(rows.end, before));
        let rows = Rows { first, end: Size::Reg(end) };
        gemv::store_tile(b, self.matrix(tensor), pass, rows, output);
    }

    fn residual_tile(&self, b: &mut Builder, operands: &Operands, pass: &gemv::Pass, rows: Rows, role: TensorRole) {
        let Operands { table, layer, y, residual, .. } = *operands;
        let entry = b.add(layer, role.slot());
        let tensor = Tensor::from_table(b, table, entry);
        let output = Output { y, bias: None, residual: Some(residual) };
        gemv::store_tile(b, self.matrix(tensor), pass, rows, output);
    }

    fn gate_up_tile(&self, b: &mut Builder, operands: &Operands, pass: &gemv::Pass, rows: Rows) {
        let Operands { table, layer, y, .. } = *operands;
        let roles = [TensorRole::FfnGate, TensorRole::FfnUp].map(TensorRole::slot);
        swiglu::tile(b, &self.types, pass, rows, y, |b, is_gate| {
            let slot = b.selp::<U32>(roles[0], roles[1], is_gate);
            let entry = b.add(layer, slot);
            Tensor::from_table(b, table, entry)
        });
    }
}
