use super::{Grid, Kernel};
use crate::blocks::tensor::Tensor;
use crate::blocks::{dependent, dequantize, leader};
use crate::ptx::{Builder, Dim, F32, Global, Size, U8, U32, Val};
use kiln_shape::SUPER_BLOCK;
use kiln_shape::columns::STATE_BYTES;
use kiln_shape::{TensorRole, WeightType};

/// `x[i] = embedding[tokens[state[0]], i]`, dequantised, a warp a super-block. A token outside the vocabulary, or a
/// position outside `capacity`, sets `state[2]` to 1; `x` is zero then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingRow {
    /// Elements of a row, a multiple of 32.
    pub hidden: Dim,
    /// The types the embedding may have.
    pub types: Vec<WeightType>,
}

/// The same for several tokens, grid `[blocks, columns]`: of each its state, `[columns, 3]`, and its row of `x`,
/// `[columns, hidden]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingRows {
    /// Elements of a row, a multiple of 32.
    pub hidden: u32,
    /// The types the embedding may have.
    pub types: Vec<WeightType>,
}

impl Kernel for EmbeddingRow {
    fn name(&self) -> &str {
        "embedding_row"
    }

    fn grid(&self) -> Grid {
        match self.hidden {
            Dim::Baked(hidden) => Grid::UpTo(hidden.div_ceil(SUPER_BLOCK).div_ceil(self.block() / 32)),
            Dim::Param => Grid::PerRows(SUPER_BLOCK * self.block() / 32),
        }
    }

    fn build(&self, b: &mut Builder) {
        let operands = Operands::params(b);
        let hidden = b.dim("hidden", self.hidden);
        write(b, &self.types, hidden, &operands);
    }
}

impl Kernel for EmbeddingRows {
    fn name(&self) -> &str {
        "embedding_rows"
    }

    fn grid(&self) -> Grid {
        EmbeddingRow { hidden: Dim::Baked(self.hidden), types: Vec::new() }.grid()
    }

    fn build(&self, b: &mut Builder) {
        let operands = Operands::params(b);
        let column = b.ctaid_y();
        let state = b.byte_index(operands.state, column, STATE_BYTES);
        let x = b.byte_index(operands.x, column, self.hidden * 4);
        write(b, &self.types, Size::Const(self.hidden), &Operands { state, x, ..operands });
    }
}

/// What a token's embedding is looked up by, and where it goes.
#[derive(Debug, Clone, Copy)]
struct Operands {
    table: Global<U8>,
    tokens: Global<U32>,
    capacity: Val<U32>,
    vocab: Val<U32>,
    state: Global<U32>,
    x: Global<F32>,
}

impl Operands {
    #[track_caller]
    fn params(b: &mut Builder) -> Operands {
        // Without it ptxas keeps so few registers that some shapes spill.
        b.blocks_per_sm(4);
        Operands {
            table: b.param::<Global<U8>>("table"),    // the tensor table
            tokens: b.param::<Global<U32>>("tokens"), // [capacity]
            capacity: b.param::<U32>("capacity"),
            vocab: b.param::<U32>("vocab"),
            state: b.param::<Global<U32>>("state"), // [position, length, error]
            x: b.param::<Global<F32>>("x"),         // [hidden]
        }
    }
}

/// Writes a token's embedding.
fn write(b: &mut Builder, types: &[WeightType], hidden: Size, operands: &Operands) {
    let Operands { table, tokens, capacity, vocab, state, x } = *operands;
    let super_blocks = b.size_div_ceil(hidden, SUPER_BLOCK);

    let tensor = Tensor::from_table(b, table, TensorRole::TokenEmbedding.slot());
    let kind = dependent::wait(b);
    let position = b.ld(state, kind);
    let inside = b.setp_lt(position, capacity);
    let token = b.var::<U32>(u32::MAX);
    let token_at = b.index(tokens, position);
    b.if_(inside, |b| {
        let value = b.ld(token_at, kind);
        b.set(token, value);
    });
    let known = b.setp_lt::<U32>(token, vocab);
    let (block, grid, warp, lane, warps) = (b.ctaid_x(), b.nctaid_x(), b.warp_id(), b.lane(), b.warps());
    let first = b.mad::<U32>(block, warps, warp);
    let step = b.mul::<U32>(grid, warps);
    b.if_else(
        known,
        |b| {
            let token = b.get(token);
            let row = dequantize::Row { tensor, types, k: hidden };
            row.write(b, token, x, first, step);
        },
        |b| {
            b.for_range(first, super_blocks, step, |b, super_block| {
                let to = b.byte_index(x, super_block, SUPER_BLOCK * 4);
                let to = b.byte_index(to, lane, 32);
                dequantize::inside(b, hidden, super_block, |b| {
                    let zero = b.mov::<F32>(0.0);
                    b.st_vector(to, [zero; 4]);
                    b.st_vector(to.at(4), [zero; 4]);
                });
            });
            let tid = b.tid();
            let leader = leader::of_grid(b, tid, &[block]);
            b.if_(leader, |b| b.st(state.at(2), 1));
        },
    );
}
