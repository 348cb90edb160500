use super::phase::{Operands, Phase};
use super::{Grid, Kernel};
use crate::blocks::company::{Company, OfTurn};
use crate::blocks::dependent;
use crate::blocks::dot::{self, Matrix, Rows};
use crate::blocks::exchange::{self, Handed};
use crate::blocks::gemv::{self, AllRows, AnyInput, Kinds, Pass, Prepared, Share};
use crate::blocks::math;
use crate::blocks::places::{Places, Several, of_column};
use crate::blocks::ring::{Consumer, Deal, Producer, Records};
use crate::blocks::runs::Runs;
use crate::blocks::slices::{InSlices, Slices};
use crate::blocks::tensor::{Table, Tensor, vector_from_table};
use crate::blocks::together::Together;
use crate::formats::{Form, form};
use crate::ptx::{Builder, F32, Global, LINE, LoadKind, Pred, Shared, Size, U8, U32, U64, Val, Var};
use kiln_shape::table::{LAYER_SLOTS, MODEL_SLOTS};
use kiln_shape::{ModelShape, Numerics, SUPER_BLOCK, TensorRole, WeightType};

/// Every phase in fast numerics, in one text: which of them it is, a launch says. Any grid, a run of rows a warp.
///
/// The text of a dot product is long, and the same in every phase; what differs, lengths and where results go, is uniform.
#[derive(Debug, Clone, PartialEq)]
pub struct Products {
    /// The model. Its vocabulary and number of layers are launch parameters.
    pub shape: ModelShape,
    /// The types its matrices may have.
    types: Vec<WeightType>,
    /// Whether the FFN's vector comes in slices.
    has_slices: bool,
}

/// The longest row: 127 super-blocks.
const LONGEST: u32 = 127 * SUPER_BLOCK;

/// Operands of a phase that is chosen at run time.
#[derive(Clone, Copy)]
pub(crate) struct AnyOperands<'a> {
    /// The number of a [`Phase`], the same in the whole block.
    pub(crate) phase: Val<U32>,
    /// Those of the first column.
    pub(crate) of: Operands,
    /// The ring that weights come through, where there is one.
    pub(crate) ring: Option<Consumer>,
    /// Where vectors may come and go through the exchange.
    pub(crate) exchanged: Option<Exchanged>,
    /// The columns, where there may be several.
    pub(crate) company: Option<Company<'a>>,
    /// Where the address of device memory for vectors' second planes stands, where they have no shared memory.
    pub(crate) apart: Option<Shared<U64>>,
    /// What the whole block does besides while the vector is on its way.
    pub(crate) beside: Option<&'a dyn Fn(&mut Builder)>,
}

/// The vectors of a phase that come and go through the exchange: then their pointers are those of its words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchanged {
    /// The vector that is multiplied.
    pub(crate) x: Handed,
    /// Whether the result goes through it, and the residual came, the same in the whole block.
    pub(crate) y: Val<Pred>,
    pub(crate) residual: Val<Pred>,
}

impl Products {
    /// The products of a model for matrices of those of `types` that fast numerics have for it.
    pub fn new(shape: ModelShape, types: &[WeightType]) -> Products {
        let types = types.iter().copied().filter(|ty| Numerics::Fast.takes(*ty, &shape)).collect();
        Products { shape, types, has_slices: false }
    }

    /// The length of each phase's vector, and the number of matrices that it is multiplied with.
    fn widths(&self) -> [(u32, u32); 5] {
        let ModelShape { hidden, ffn, .. } = self.shape;
        [(hidden, 3), (self.shape.q_dim(), 1), (hidden, 2), (ffn, 1), (hidden, 1)]
    }

    /// Rows of a warp for which it is worth to stage the vector once more.
    const fn rows_per_warp(&self) -> u32 {
        let rows = 32 / self.shape.hidden.div_ceil(SUPER_BLOCK);
        if rows > 4 { rows } else { 4 }
    }

    /// Rows `first` to `end` of the phase, which may begin and end anywhere.
    pub(crate) fn run(&self, b: &mut Builder, operands: &AnyOperands<'_>, first: Val<U32>, end: Val<U32>) {
        let chosen = Chosen::new(b, &self.shape, operands.phase, operands.of.layer);
        self.of_rows(b, operands, &chosen, AllRows::OfBlock(first, end));
    }

    /// The same with the FFN's vector in slices.
    pub(crate) fn with_slices(self) -> Products {
        Products { has_slices: true, ..self }
    }

    /// The slices of the FFN's vector, if a launch may have it so: it is the longest, and products are of bytes, each super-block's
    /// by itself.
    pub(crate) fn may_slice(&self) -> Option<InSlices> {
        let widths = self.widths().map(|(width, _)| width);
        let whole = widths.into_iter().all(|width| width.is_multiple_of(SUPER_BLOCK));
        let are_bytes = self.types.iter().all(|ty| form(*ty, Numerics::Fast) != Form::Float);
        let others = self.shape.hidden.max(self.shape.q_dim()) / SUPER_BLOCK;
        let of = InSlices { longest: self.shape.ffn / SUPER_BLOCK, others };
        (whole && are_bytes && of.are_several()).then_some(of)
    }

    fn slices(&self) -> Option<InSlices> {
        self.may_slice().filter(|_| self.has_slices)
    }

    /// Stages the phase's vector, and multiplies it with `rows`.
    fn of_rows(&self, b: &mut Builder, operands: &AnyOperands<'_>, chosen: &Chosen, rows: AllRows) {
        let Operands { table, x, eps, kind, .. } = operands.of;
        let gamma = chosen.gamma(b, table);
        let last = b.sub::<U32>(chosen.matrices, 1);
        let types = |b: &mut Builder| {
            let each = [0, 1, 2].map(|number| {
                let number = b.min::<U32>(last, number);
                let entry = b.add::<U32>(chosen.weight, number);
                Tensor::from_table(b, table, entry).ty
            });
            Kinds::new(b, each)
        };
        let one = b.setp_eq(chosen.matrices, 1);
        let border = |b: &mut Builder| match rows {
            AllRows::OfGrid(_) => b.mov::<U32>(0),
            AllRows::OfBlock(_, end) => chosen.border(b, &self.shape, end),
        };
        let input = AnyInput {
            x,
            norm: (gamma, eps),
            normalised: chosen.normalised,
            normalised_k: self.shape.hidden,
            k: chosen.k,
            kind,
            widths: &self.widths(),
            one,
            slices: self.slices(),
            border: &border,
            types: &self.types,
            of: &types,
            ring: operands.ring,
            handed: operands.exchanged.map(|exchanged| exchanged.x),
            company: operands.company,
            apart: operands.apart,
            beside: operands.beside,
            rows,
        };
        gemv::staged_any(b, &input, |b, pass, prepared| self.rows(b, operands, chosen, pass, *prepared));
    }

    /// Whether rows are whole super-blocks and some type's weights go through a ring.
    pub(crate) fn stream(&self) -> bool {
        let whole = self.widths().iter().all(|(width, _)| width.is_multiple_of(SUPER_BLOCK));
        whole && self.types.iter().any(|ty| form(*ty, Numerics::Fast) != Form::Float)
    }

    /// Lets a ring take the weights of rows `first` to `end` of the phase, as [`Products::run`] takes them where the launch has
    /// room for `several` columns or not. Runs `begins` with a phase's `step`, which is not 0, once all weights of the phases
    /// before it are in the ring.
    pub(crate) fn fill(
        &self,
        b: &mut Builder,
        ring: &Producer,
        table: Global<U8>,
        [phase, layer, step]: [Val<U32>; 3],
        ((first, end), several): ((Val<U32>, Val<U32>), Val<Pred>),
        begins: impl FnOnce(&mut Builder, Val<U32>),
    ) {
        let chosen = Chosen::new(b, &self.shape, phase, layer);
        let super_blocks = b.size_div_ceil(Size::Reg(chosen.k), SUPER_BLOCK);
        let along = b.mov::<U32>(super_blocks);
        let slices = self.slices().map(|of| Slices::new(b, of, ring.records(), super_blocks));
        let in_room = slices.map_or(super_blocks, |slices| slices.room(b));
        let of_row = gemv::along_any(b, in_room, &self.widths(), self.slices());
        let are = Some(several).filter(|_| slices.is_none());
        let several = Several { are, values: of_column(&of_row, slices.is_some()) };
        let tile = Places::new(b, &of_row, Some(several)).rows();
        let end = b.max(end, first);
        let alone = b.setp_eq(chosen.matrices, 1);
        let alone = slices.map_or(alone, |slices| {
            let are = slices.are(b);
            let whole = b.not_pred(are);
            b.and_pred(alone, whole)
        });
        let of = (ring.warps(), ring.records());
        let border = chosen.border(b, &self.shape, end);
        let runs = Runs::new(b, (first, end), border, &of_row, of);
        let together = Together::new(b, &runs, &of_row, tile, of, alone);
        let lane = b.lane();
        let part = together.of_warp(b, lane);
        let of_part = b.mad::<U32>(first, along, part.first);
        let [each, further] = [part.each, part.step].map(|of_part| b.selp::<U32>(of_part, ring.records(), together.is));
        let once = b.selp::<U32>(1, runs.each(), together.is);
        // Where there are no rows as well: what the ring was to take before must not wait for a phase that has some.
        let once = b.max::<U32>(once, 1);
        let block = (first, end);
        let (first, end) = runs.of_warp(b, lane);
        let pending = b.var::<U32>(step);
        let fill_rows = |b: &mut Builder, (first, end): (Val<U32>, Val<U32>), slice: Option<Val<U32>>| {
            b.for_range(0, chosen.matrices, 1, |b, number| {
                let (from, to) = chosen.rows_of(b, &self.shape, number);
                let first = b.max::<U32>(first, from);
                let end = b.min::<U32>(to, end);
                // A matrix of which the block has no rows would keep the producer waiting for its table entry. Of a phase without
                // any the last one is taken.
                let (of_block, behind) = (b.max::<U32>(block.0, from), b.min::<U32>(to, block.1));
                let has_rows = b.setp_lt(of_block, behind);
                let next = b.add::<U32>(number, 1);
                let (is_last, is_pending) = (b.setp_eq(next, chosen.matrices), b.setp_ne(pending, 0));
                let none_so_far = b.and_pred(is_last, is_pending);
                let takes = b.or_pred(has_rows, none_so_far);
                b.if_(takes, |b| {
                    let any = b.setp_lt(first, end);
                    let rows = b.sub::<U32>(end, first);
                    let rows = b.selp::<U32>(rows, 0, any);
                    let before = b.sub::<U32>(first, from);
                    let entry = b.add::<U32>(chosen.weight, number);
                    let tensor = Tensor::from_table(b, table, entry);
                    let (first, left) = (b.mul::<U32>(before, along), b.mul::<U32>(rows, along));
                    let first = b.selp::<U32>(of_part, first, together.is);
                    let left = b.selp::<U32>(part.left, left, together.is);
                    let deal = Deal { first, left, each, step: further };
                    let deal = match slices.zip(slice) {
                        None => deal,
                        Some((slices, slice)) => slices.deal(b, deal, slice),
                    };
                    let step = b.get(pending);
                    b.set(pending, 0);
                    ring.fill(b, &self.types, &Records { tensor, deal, begins: step }, begins);
                });
            });
        };
        let at_once = slices.map_or(tile, |slices| slices.rows(b, tile));
        b.for_range(0, once, at_once, |b, before| {
            let first = b.add::<U32>(first, before);
            let last = b.add::<U32>(first, at_once);
            let end = b.min::<U32>(last, end);
            match slices {
                None => fill_rows(b, (first, end), None),
                Some(slices) => {
                    let each = slices.each(b);
                    b.for_range(0, slices.all(), each, |b, slice| fill_rows(b, (first, end), Some(slice)));
                }
            }
        });
    }

    /// Asks for the first weights of each warp's rows, of all `rows` of the phase.
    fn ask_for(&self, b: &mut Builder, table: Global<U8>, chosen: &Chosen, rows: Val<U32>) {
        let rows = Share::run_of_grid(b, Size::Reg(rows));
        self.ask_for_rows(b, table, chosen, rows, dependent::ask_for);
    }

    /// Asks the L2 cache for the first weights of each warp's rows in a phase, of the block's rows from `first` to `end`;
    /// `layer` is the layer's first entry in the table.
    pub(super) fn ask_for_share(
        &self,
        b: &mut Builder,
        table: Global<U8>,
        (phase, layer): (Val<U32>, Val<U32>),
        (first, end): (Val<U32>, Val<U32>),
    ) {
        let chosen = Chosen::new(b, &self.shape, phase, layer);
        let rows = Share::run_of_warp(b, first, end);
        self.ask_for_rows(b, table, &chosen, rows, ask_for_lines);
    }

    /// Asks for the first weights of a warp's rows by `ask`, which is given their address, their bytes, and whether there
    /// are any.
    fn ask_for_rows(
        &self,
        b: &mut Builder,
        table: Global<U8>,
        chosen: &Chosen,
        (first, end): (Val<U32>, Val<U32>),
        ask: impl FnOnce(&mut Builder, Val<U64>, Val<U32>, Val<Pred>),
    ) {
        b.for_range(0, chosen.matrices, 1, |b, number| {
            let (from, to) = chosen.rows_of(b, &self.shape, number);
            let (first, end) = (b.max::<U32>(first, from), b.min::<U32>(to, end));
            let any = b.setp_lt(first, end);
            let entry = b.add::<U32>(chosen.weight, number);
            let tensor = Tensor::from_table(b, table, entry);
            let row_bytes = self.row_bytes(b, chosen.k, tensor.ty);
            let (before, count) = (b.sub::<U32>(first, from), b.sub::<U32>(end, first));
            let data = b.address(tensor.data);
            let data = b.mad_wide(before, row_bytes, data);
            let bytes = b.mul::<U32>(count, row_bytes);
            ask(b, data, bytes, any);
        });
    }

    /// Bytes of a row of `k` weights.
    fn row_bytes(&self, b: &mut Builder, k: Val<U32>, ty: Val<U32>) -> Val<U32> {
        let blocks = b.shr::<U32>(k, 5);
        let none = b.mov::<U32>(0);
        let of_block = self.types.iter().fold(none, |bytes, known| {
            let is = b.setp_eq(ty, known.id());
            b.selp::<U32>(known.layout().data / 8, bytes, is)
        });
        b.mul::<U32>(blocks, of_block)
    }

    fn rows(
        &self,
        b: &mut Builder,
        operands: &AnyOperands<'_>,
        chosen: &Chosen,
        pass: &Pass,
        Prepared { kinds, share }: Prepared,
    ) {
        share.each(b, |b, rows| {
            let gate = b.var::<F32>(0.0);
            b.for_range(0, chosen.matrices, 1, |b, number| {
                let (from, to) = chosen.rows_of(b, &self.shape, number);
                let first = b.max::<U32>(rows.first, from);
                let end = b.min::<U32>(to, rows.end);
                // A barrier of the block may stand in a pass: where one can, a warp without rows goes through it.
                let (any, end) = match share {
                    Share::Dealt { block, .. } => {
                        let (begins, ends) = (b.max::<U32>(block.0, from), b.min::<U32>(to, block.1));
                        (b.setp_lt(begins, ends), b.max::<U32>(end, first))
                    }
                    _ => (b.setp_lt(first, end), end),
                };
                b.if_(any, |b| {
                    let entry = b.add::<U32>(chosen.weight, number);
                    let ty = kinds.of(b, number);
                    let tensor = Tensor::of_type(b, operands.of.table, entry, ty);
                    let matrix = Matrix { tensor, types: &self.types, kind: LoadKind::Streaming };
                    let (first, end) = (b.sub::<U32>(first, from), b.sub::<U32>(end, from));
                    let rows = Rows { first, end: Size::Reg(end) };
                    let addend = b.var::<F32>(0.0);
                    // That of the first turn is on its way beside the weights.
                    let first = pass.first_turn(b, rows.first);
                    let (row, shift) = match &first {
                        Some(first) => (first.row(b), Some(first.shift(b))),
                        None => {
                            let lane = b.lane();
                            (b.add::<U32>(rows.first, lane), None)
                        }
                    };
                    let of = (pass, number);
                    self.addend(b, (operands, chosen), of, (row, rows.end), shift, addend);
                    pass.each_product(b, matrix, rows, first.as_ref(), |b, turn, products, factor| {
                        if let Some(OfTurn { row, shift, is_first }) = turn {
                            let further = b.not_pred(is_first);
                            let shift = Some(shift);
                            let ask = |b: &mut Builder| {
                                self.addend(b, (operands, chosen), of, (row, rows.end), shift, addend);
                            };
                            b.if_(further, ask);
                        }
                        let (gate, y, of_column) = match (turn, &pass.regions) {
                            (Some(OfTurn { row, shift, .. }), Some(regions)) => {
                                let (y, writes) = regions.result(b, shift);
                                let of_tile = b.sub::<U32>(row, rows.first);
                                (Gate::Place(regions.gate(b, shift, of_tile)), y, Some(writes))
                            }
                            _ => (Gate::Own(gate), operands.of.y, None),
                        };
                        products.each_inside(b, rows, |b, row, sum| {
                            let scale = factor.unwrap_or(sum);
                            let scaled = b.mul(sum, scale);
                            let value = b.var::<F32>(scaled);
                            let adds = chosen.adds(b, &self.shape);
                            b.if_(adds, |b| {
                                let sum = b.add(value, addend);
                                b.set(value, sum);
                            });
                            let up_is_next = b.setp_lt(number, chosen.unwritten);
                            let is_up = b.not_pred(up_is_next);
                            let activates = b.and_pred(chosen.is_gate_up, is_up);
                            b.if_(activates, |b| {
                                let before = gate.get(b);
                                let activated = math::silu(b, before);
                                let product = b.mul(activated, scaled);
                                b.set(value, product);
                            });
                            gate.set(b, up_is_next, scaled);
                            let writes = b.not_pred(up_is_next);
                            let writes = match of_column {
                                None => writes,
                                Some(of_column) => b.and_pred(writes, of_column),
                            };
                            b.if_(writes, |b| {
                                let row = b.add::<U32>(row, from);
                                match operands.exchanged {
                                    None => {
                                        let to = b.index(y, row);
                                        b.st(to, value);
                                    }
                                    Some(exchanged) => exchanged.store(b, y, row, chosen.is_qkv, value),
                                }
                            });
                        });
                    });
                });
            });
        });
    }

    /// What is added to the product of the lane's row of a tile, bias or residual: it is on its way beside the weights.
    fn addend(
        &self,
        b: &mut Builder,
        (operands, chosen): (&AnyOperands<'_>, &Chosen),
        (pass, number): (&Pass, Val<U32>),
        (row, end): (Val<U32>, Size),
        shift: Option<Val<U32>>,
        addend: Var<F32>,
    ) {
        let inside = b.setp_lt::<U32>(row, end);
        if self.shape.qkv_bias {
            let has_bias = b.and_pred(inside, chosen.is_qkv);
            b.if_(has_bias, |b| {
                let entry = b.add::<U32>(chosen.bias, number);
                let bias = vector_from_table::<F32>(b, operands.of.table, entry);
                load(b, addend, bias, row);
            });
        }
        let has_residual = b.and_pred(inside, chosen.has_residual);
        b.if_(has_residual, |b| {
            let residual = match (shift, &pass.regions) {
                (Some(shift), Some(regions)) => regions.residual(b, shift),
                _ => operands.of.residual,
            };
            match operands.exchanged {
                None => load(b, addend, residual, row),
                Some(exchanged) => exchanged.load(b, addend, residual, row),
            }
        });
    }
}

/// Where a lane keeps the product of the gate until that of up is there.
#[derive(Clone, Copy)]
enum Gate {
    Own(Var<F32>),
    /// In shared memory, for each column.
    Place(Shared<F32>),
}

impl Gate {
    /// The gate's product, beside up's.
    fn get(self, b: &mut Builder) -> Val<F32> {
        match self {
            Gate::Own(gate) => b.get(gate),
            Gate::Place(at) => b.ld(at, LoadKind::Ordinary),
        }
    }

    /// Keeps the gate's product.
    fn set(self, b: &mut Builder, up_is_next: Val<Pred>, scaled: Val<F32>) {
        match self {
            Gate::Own(gate) => b.set(gate, scaled),
            Gate::Place(at) => b.if_(up_is_next, |b| b.st(at, scaled)),
        }
    }
}

impl Exchanged {
    /// `at[row]`, where every thread has the vector since it was staged.
    fn load(&self, b: &mut Builder, addend: Var<F32>, at: Global<F32>, row: Val<U32>) {
        b.if_else(
            self.residual,
            |b| {
                let place = exchange::place(b, row);
                let at = b.index(at, place);
                let found = exchange::load_again(b, at);
                b.set(addend, found);
            },
            |b| load(b, addend, at, row),
        );
    }

    /// Stores a result: those of Q, K and V in their own order, those of a vector that is staged in the order of lanes.
    fn store(&self, b: &mut Builder, y: Global<F32>, row: Val<U32>, is_qkv: Val<Pred>, value: Var<F32>) {
        let value = b.get(value);
        b.if_else(
            self.y,
            |b| {
                let place = exchange::place(b, row);
                let place = b.selp::<U32>(row, place, is_qkv);
                let to = b.index(y, place);
                exchange::store(b, to, value);
            },
            |b| {
                let to = b.index(y, row);
                b.st(to, value);
            },
        );
    }
}

/// Asks the L2 cache for the first of `bytes` bytes of weights at address `from`, a line a lane, where `there` is true.
fn ask_for_lines(b: &mut Builder, from: Val<U64>, bytes: Val<U32>, there: Val<Pred>) {
    let lane = b.lane();
    let before = b.mul::<U32>(lane, LINE);
    let is_line = b.setp_lt(before, bytes);
    let asks = b.and_pred(is_line, there);
    let from = b.global_ptr::<U8>(from);
    b.if_(asks, |b| {
        let line = b.byte_index(from, lane, LINE);
        b.prefetch_l2(line);
    });
}

/// `at[row]`.
fn load(b: &mut Builder, addend: Var<F32>, at: Global<F32>, row: Val<U32>) {
    let at = b.index(at, row);
    let found = b.ld(at, LoadKind::Ordinary);
    b.set(addend, found);
}

/// What the phase decides.
pub(super) struct Chosen {
    pub(super) k: Val<U32>,
    /// The entry of its norm's gamma; of any where it has none.
    norm: Val<U32>,
    pub(super) normalised: Val<Pred>,
    /// The entry of its first matrix, and how many follow each other.
    pub(super) weight: Val<U32>,
    pub(super) matrices: Val<U32>,
    /// The entry of its first bias.
    pub(super) bias: Val<U32>,
    pub(super) is_qkv: Val<Pred>,
    pub(super) is_gate_up: Val<Pred>,
    pub(super) is_head: Val<Pred>,
    pub(super) has_residual: Val<Pred>,
    /// The number of matrices whose products are not written: the gate.
    pub(super) unwritten: Val<U32>,
}

impl Chosen {
    /// Of a phase by its number; `layer` is the layer's first entry in the table.
    pub(super) fn new(b: &mut Builder, of: &ModelShape, phase: Val<U32>, layer: Val<U32>) -> Chosen {
        let mut is = |which: Phase| b.setp_eq(phase, which as u32);
        let (is_qkv, is_gate_up, is_head) = (is(Phase::Qkv), is(Phase::GateUp), is(Phase::Head));
        let (is_output, is_down) = (is(Phase::AttentionOutput), is(Phase::Down));
        let has_residual = b.or_pred(is_output, is_down);
        let normalised = b.not_pred(has_residual);
        let ModelShape { hidden, ffn, .. } = *of;
        let k = b.selp::<U32>(of.q_dim(), hidden, is_output);
        let k = b.selp::<U32>(ffn, k, is_down);
        let mut slot = |qkv: TensorRole, output, gate_up, down| {
            let slot = b.mov::<U32>(qkv.slot());
            let slot = b.selp::<U32>(TensorRole::slot(output), slot, is_output);
            let slot = b.selp::<U32>(TensorRole::slot(gate_up), slot, is_gate_up);
            b.selp::<U32>(TensorRole::slot(down), slot, is_down)
        };
        use TensorRole::{AttnNorm, AttnOutput, AttnQ, AttnQBias, FfnDown, FfnGate, FfnNorm};
        let weight = slot(AttnQ, AttnOutput, FfnGate, FfnDown);
        let norm = slot(AttnNorm, AttnNorm, FfnNorm, FfnNorm);
        let (weight, norm) = (b.add::<U32>(weight, layer), b.add::<U32>(norm, layer));
        let matrices = b.selp::<U32>(3, 1, is_qkv);
        Chosen {
            k,
            norm: b.selp::<U32>(TensorRole::OutputNorm.slot(), norm, is_head),
            normalised,
            weight: b.selp::<U32>(TensorRole::Output.slot(), weight, is_head),
            matrices: b.selp::<U32>(2, matrices, is_gate_up),
            bias: b.add::<U32>(layer, AttnQBias.slot()),
            is_qkv,
            is_gate_up,
            is_head,
            has_residual,
            unwritten: b.selp::<U32>(1, 0, is_gate_up),
        }
    }

    /// The norm's gamma; any where it has none.
    pub(super) fn gamma(&self, b: &mut Builder, table: impl Into<Table>) -> Global<F32> {
        vector_from_table::<F32>(b, table, self.norm)
    }

    /// The rows of the phase, of all its matrices but that gate and up have the same; `vocab` of them where it may be the head.
    pub(super) fn rows(&self, b: &mut Builder, of: &ModelShape, vocab: Option<Val<U32>>) -> Val<U32> {
        let rows = b.selp::<U32>(of.q_dim() + 2 * of.kv_dim(), of.hidden, self.is_qkv);
        let rows = b.selp::<U32>(of.ffn, rows, self.is_gate_up);
        vocab.map_or(rows, |vocab| b.selp::<U32>(vocab, rows, self.is_head))
    }

    /// Whether something is added to its products.
    fn adds(&self, b: &mut Builder, of: &ModelShape) -> Val<Pred> {
        if of.qkv_bias { b.or_pred(self.is_qkv, self.has_residual) } else { self.has_residual }
    }

    /// Where a block's rows of another matrix begin, whose last row is before `end`: V's if it has some, else K's, which may lie
    /// outside. 0 where all matrices have the same rows.
    fn border(&self, b: &mut Builder, shape: &ModelShape, end: Val<U32>) -> Val<U32> {
        let (k, v) = (shape.q_dim(), shape.q_dim() + shape.kv_dim());
        let has_v = b.setp_lt::<U32>(v, end);
        let border = b.selp::<U32>(v, k, has_v);
        b.selp::<U32>(border, 0, self.is_qkv)
    }

    /// The rows, among the phase's, of its matrix `number`, and the one behind them: Q, K and V have rows of their own,
    /// gate and up the same.
    pub(super) fn rows_of(&self, b: &mut Builder, shape: &ModelShape, number: Val<U32>) -> (Val<U32>, Val<U32>) {
        let (q, kv) = (shape.q_dim(), shape.kv_dim());
        let first_of_kv = b.mad::<U32>(number, kv, q - kv);
        let is_q = b.setp_eq(number, 0);
        let from = b.selp::<U32>(0, first_of_kv, is_q);
        let to = b.add::<U32>(first_of_kv, kv);
        (b.selp::<U32>(from, 0, self.is_qkv), b.selp::<U32>(to, u32::MAX, self.is_qkv))
    }
}

impl Kernel for Products {
    fn name(&self) -> &str {
        "products"
    }

    fn grid(&self) -> Grid {
        Grid::PerRows(self.rows_per_warp() * self.block() / 32)
    }

    fn check(&self) -> Result<(), String> {
        if let Some((width, _)) = self.widths().into_iter().find(|(width, _)| *width == 0 || width % 32 != 0) {
            return Err(format!("a row has {width} weights: needs a multiple of 32"));
        }
        if let Some((width, _)) = self.widths().into_iter().find(|(width, _)| *width > LONGEST) {
            return Err(format!(
                "a row has {width} weights: at most {LONGEST}, whose values fit a warp's shared memory"
            ));
        }
        if self.types.is_empty() {
            return Err("no type of weights: needs at least one that fast numerics have".to_owned());
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
        let phase = b.param::<U32>("phase"); // which of them
        dot::leave_registers(b, Numerics::Fast);
        let layer = b.mad::<U32>(layer, LAYER_SLOTS, MODEL_SLOTS);
        let chosen = Chosen::new(b, &self.shape, phase, layer);
        let rows = chosen.rows(b, &self.shape, Some(vocab));
        if b.begins_early() {
            self.ask_for(b, table, &chosen, rows);
        }
        let kind = dependent::wait(b);
        let of = Operands { table: table.into(), layer, x, y, residual: y, eps, kind };
        let operands = AnyOperands { phase, of, ring: None, exchanged: None, company: None, apart: None, beside: None };
        self.of_rows(b, &operands, &chosen, AllRows::OfGrid(rows));
    }
}
