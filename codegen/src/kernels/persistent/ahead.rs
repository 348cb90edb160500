//! Small things that are asked for ahead. While weights stream, a line that is not in the L2 cache comes behind them, after
//! microseconds; the weights have put it out since the layer or the token before.

use super::Decoder;
use crate::blocks::kv::{Cache, Half};
use crate::blocks::tensor::vector_from_table;
use crate::kernels::phase::Phase;
use crate::ptx::{Builder, F32, Global, LINE, Operand, Size, U32, U64, Val};
use kiln_shape::mailbox::item;
use kiln_shape::table::KV_CHUNK;
use kiln_shape::{KvType, ModelShape, TensorRole};

impl Decoder<'_> {
    /// Asks for the factors of norms and the biases of a phase whose weights are to follow, by the producer: each block for
    /// its part of the lines. `layer` is the layer's first entry in the table.
    pub(super) fn ask_for_vectors(&self, b: &mut Builder, phase: Val<U32>, layer: Val<U32>) {
        let shape = &self.kernel.shape;
        let (hidden, of_head) = (4 * shape.hidden, 4 * shape.head_dim);
        let of_layer = |b: &mut Builder, role: TensorRole| b.add::<U32>(layer, role.slot());
        let mut norm = b.mov::<U32>(TensorRole::OutputNorm.slot());
        for (of, role) in [(Phase::Qkv, TensorRole::AttnNorm), (Phase::GateUp, TensorRole::FfnNorm)] {
            let (is, entry) = (b.setp_eq(phase, of as u32), of_layer(b, role));
            norm = b.selp::<U32>(entry, norm, is);
        }
        let odd = b.and::<U32>(phase, 1);
        let has_norm = b.setp_eq(odd, 0);
        const { assert!(Phase::Qkv as u32 == 0 && Phase::GateUp as u32 == 2 && Phase::Head as u32 == 4) };
        b.if_(has_norm, |b| self.ask_for(b, norm, hidden));
        let is_qkv = b.setp_eq(phase, Phase::Qkv as u32);
        b.if_(is_qkv, |b| {
            let norms = [(TensorRole::AttnQNorm, of_head), (TensorRole::AttnKNorm, of_head)];
            let (q, kv) = (4 * shape.q_dim(), 4 * shape.kv_dim());
            let biases = [(TensorRole::AttnQBias, q), (TensorRole::AttnKBias, kv), (TensorRole::AttnVBias, kv)];
            let norms = norms.into_iter().filter(|_| shape.qk_norm);
            for (role, bytes) in norms.chain(biases.into_iter().filter(|_| shape.qkv_bias)) {
                let entry = of_layer(b, role);
                self.ask_for(b, entry, bytes);
            }
        });
    }

    fn ask_for(&self, b: &mut Builder, entry: Val<U32>, bytes: u32) {
        let vector = vector_from_table::<F32>(b, self.table, entry);
        self.ask_for_lines(b, vector, bytes.div_ceil(LINE));
    }

    /// Lane l of block i has line i, and every grid'th behind it in the next lanes.
    fn ask_for_lines<T>(&self, b: &mut Builder, vector: Global<T>, lines: impl Operand<U32>) {
        let lane = b.lane();
        let line = b.mad::<U32>(lane, self.barrier.blocks(), self.block);
        let is_line = b.setp_lt(line, lines);
        b.if_(is_line, |b| {
            let at = b.byte_index(vector, line, LINE);
            b.prefetch_l2(at);
        });
    }

    /// Asks for the angles of a column's position, the addresses of its chunks, and a share of its keys and values, before Q and K
    /// are there; by a warp of each block.
    pub(super) fn ask_for_place(&self, b: &mut Builder, (column, layer): (Val<U32>, Val<U32>)) {
        let position = self.columns.position(b, column);
        let half = self.kernel.shape.head_dim / 2;
        let before = b.mul::<U32>(position, half);
        for table in [item::COS, item::SIN] {
            let table = self.columns.pointer::<F32>(b, column, table);
            let row = b.index(table, before);
            self.ask_for_lines(b, row, (4 * half).div_ceil(LINE));
        }
        let of_line = KV_CHUNK * (LINE / 8);
        let before = b.shr::<U32>(position, of_line.trailing_zeros());
        let lines = b.add::<U32>(before, 1);
        let table = self.columns.pointer::<U64>(b, column, item::TABLE);
        self.ask_for_lines(b, table, lines);
        self.ask_for_cache(b, (table, layer), position);
    }

    /// Asks for a block's share of the first keys and values before a position: a lane a row of a KV head. That is about what
    /// blocks have one unit for each; more would come before the weights that are awaited first.
    fn ask_for_cache(&self, b: &mut Builder, (table, layer): (Global<U64>, Val<U32>), position: Val<U32>) {
        let ModelShape { kv_heads, head_dim, .. } = self.kernel.shape;
        let ty = b.selp::<U32>(KvType::F16.bytes(), KvType::F32.bytes(), self.half_cache);
        let row_bytes = b.mul::<U32>(ty, head_dim);
        let cache = Cache::Chunked { table, layer, kv_heads: Size::Const(kv_heads) };
        let lane = b.lane();
        let first = b.mad::<U32>(self.block, 32, lane);
        let all = b.mul::<U32>(position, kv_heads);
        let any = b.setp_lt(first, all);
        b.if_(any, |b| {
            let (position, kv_head) = (b.div::<U32>(first, kv_heads), b.rem::<U32>(first, kv_heads));
            for half in [Half::Keys, Half::Values] {
                let at = cache.row(b, half, kv_head, position, Size::Reg(row_bytes));
                b.for_range(0, row_bytes, LINE, |b, before| {
                    let line = b.byte_index(at, before, 1);
                    b.prefetch_l2(line);
                });
            }
        });
    }
}
