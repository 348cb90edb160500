//! A block's part of `y = W x`: stages the vector, normalised or not, and walks over tiles of rows, a warp a tile.
//!
//! A vector too long for shared memory is staged in parts; the partial sums then wait in `y`, which the same lane reads
//! again, so no barrier is needed for them.

use super::along::Along;
use super::company::{Company, OfTurn, Regions, Turn};
use super::dot::{self, Matrix, Products, Rows, Tile, fitting, may_be_cut};
use super::exchange::Handed;
use super::fast::Values;
use super::ring::Consumer;
use super::slices::{InSlices, Slice, Slices};
use super::stage::{Factors, Forms, One, Source, Staged, Wanted};
use crate::formats::form;
use crate::ptx::{Builder, F32, Global, LoadKind, Pred, Shared, Size, U32, U64, Val};
use kiln_shape::{Numerics, ROWS_TOGETHER, STAGED_MAX, SUPER_BLOCK, WeightType};

/// The vector.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input {
    /// `[k]`.
    pub(crate) x: Global<F32>,
    /// For RMS normalisation: gamma `[k]` and epsilon.
    pub(crate) norm: Option<(Global<F32>, Val<F32>)>,
    /// Its length, a multiple of 32.
    pub(crate) k: Size,
    /// What loads of `x` may assume.
    pub(crate) kind: LoadKind,
}

/// What a vector is to be multiplied with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct With<'a> {
    pub(crate) numerics: Numerics,
    /// The types that the matrices may have.
    pub(crate) types: &'a [WeightType],
    /// The numbers of the types that they have, the same in the whole block; not read where they may have one type only.
    pub(crate) of: &'a [Val<U32>],
}

impl With<'_> {
    /// The forms in which a vector of `k` elements may be staged.
    fn forms(&self, k: Size) -> Forms {
        let mut all: Vec<_> = fitting(self.types, k).into_iter().map(|ty| form(ty, self.numerics)).collect();
        all.sort();
        all.dedup();
        Forms::new(all, if self.of.len() == 1 { One::Always } else { One::Never })
    }

    /// The forms that a launch wants.
    fn wanted(&self, b: &mut Builder, forms: &Forms) -> Wanted {
        let [first, others @ ..] = self.of else { return Wanted::All };
        if forms.all.len() == 1 {
            return Wanted::All;
        }
        let first = b.shl::<U32>(1, *first);
        Wanted::OfTypes(others.iter().fold(first, |bits, ty| {
            let bit = b.shl::<U32>(1, *ty);
            b.or::<U32>(bits, bit)
        }))
    }
}

/// The rows a block works on, dealt to its warps.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Share {
    /// Tiles of so many rows, one after another to the warps side by side.
    Tiles {
        /// The first row of tile 0.
        origin: Size,
        /// One past the last row.
        end: Size,
        /// The block's first tile, one past the last tile of all, and the distance between a warp's tiles.
        tiles: (Size, Size, Size),
        /// Rows of a tile.
        tile: u32,
    },
    /// A run of rows for each warp, in tiles of at most so many rows.
    Runs { first: Val<U32>, end: Val<U32>, tile: Size },
    /// The same where the block's warps may work together: each has a tile for every `tile` of `each` rows, be it without
    /// a row, so that a barrier of the block may stand in it. `block` are the rows of the block.
    Dealt {
        first: Val<U32>,
        end: Val<U32>,
        each: Val<U32>,
        tile: Size,
        block: (Val<U32>, Val<U32>),
        /// The slice that is staged, where the vector may be in slices, with which some of the rows are multiplied.
        slice: Option<Slice>,
    },
}

impl Share {
    /// All `rows`, dealt to the warps of the grid.
    #[track_caller]
    pub(crate) fn of_grid(b: &mut Builder, rows: Size, pass: &Pass) -> Share {
        match &pass.values {
            None => {
                let (block, grid, warps) = (b.ctaid_x(), b.nctaid_x(), b.warps());
                let (first, step) = (b.mul::<U32>(block, warps), b.mul::<U32>(grid, warps));
                let tile = pass.tile.rows();
                let count = b.size_div_ceil(rows, tile);
                let tiles = (Size::Reg(first), count, Size::Reg(step));
                Share::Tiles { origin: Size::Const(0), end: rows, tiles, tile }
            }
            Some(values) => {
                let (first, end) = Share::run_of_grid(b, rows);
                Share::Runs { first, end, tile: values.tile_rows() }
            }
        }
    }

    /// The warp's run of all `rows` and the one behind its last, where the warps of the grid have a run each.
    #[track_caller]
    pub(crate) fn run_of_grid(b: &mut Builder, rows: Size) -> (Val<U32>, Val<U32>) {
        let (block, grid, warps, warp) = (b.ctaid_x(), b.nctaid_x(), b.warps(), b.warp_id());
        let (warp, all) = (b.mad::<U32>(block, warps, warp), b.mul::<U32>(grid, warps));
        let last = b.sub::<U32>(all, 1);
        let each = b.add::<U32>(last, rows);
        let each = b.div::<U32>(each, all);
        let first = b.mul::<U32>(warp, each);
        let end = b.add::<U32>(first, each);
        (first, b.min::<U32>(end, rows))
    }

    /// The run of rows from `first` to `end`, dealt to the warps of the block; none if `end` is not greater.
    #[track_caller]
    pub(crate) fn run(b: &mut Builder, first: Val<U32>, end: Val<U32>, pass: &Pass) -> Share {
        let end = b.max(end, first);
        let warps = b.warps();
        match &pass.values {
            None => {
                let rows = b.sub(end, first);
                let tile = pass.tile.rows();
                let count = b.size_div_ceil(Size::Reg(rows), tile);
                let tiles = (Size::Const(0), count, Size::Const(warps));
                Share::Tiles { origin: Size::Reg(first), end: Size::Reg(end), tiles, tile }
            }
            Some(values) => {
                let (first, end) = Share::run_of_warp(b, first, end);
                Share::Runs { first, end, tile: values.tile_rows() }
            }
        }
    }

    /// The warp's share of `rows`. `of` are a row at which another matrix begins, and whether there is one matrix: then warps of a
    /// block may work on its rows together.
    #[track_caller]
    fn of_values(
        b: &mut Builder,
        rows: AllRows,
        values: &mut Values,
        of: (Val<U32>, Val<Pred>),
        slice: Option<Slice>,
    ) -> Share {
        let tile = values.tile_rows();
        match rows {
            AllRows::OfGrid(rows) => {
                let (first, end) = Share::run_of_grid(b, Size::Reg(rows));
                Share::Runs { first, end, tile }
            }
            AllRows::OfBlock(first, end) => {
                let block = (first, b.max(end, first));
                match values.deal(b, block, of, slice) {
                    None => {
                        let (first, end) = Share::run_of_warp(b, block.0, block.1);
                        Share::Runs { first, end, tile }
                    }
                    Some(runs) => {
                        let warp = b.warp_id();
                        let (first, end) = runs.of_warp(b, warp);
                        Share::Dealt { first, end, each: runs.each(), tile, block, slice }
                    }
                }
            }
        }
    }

    /// The warp's run of the block's rows from `first` to `end`, and the one behind its last.
    #[track_caller]
    pub(crate) fn run_of_warp(b: &mut Builder, first: Val<U32>, end: Val<U32>) -> (Val<U32>, Val<U32>) {
        let rows = b.sub::<U32>(end, first);
        let each = rows_of_warp(b, rows, b.warps());
        let warp = b.warp_id();
        let first = b.mad::<U32>(warp, each, first);
        let last = b.add::<U32>(first, each);
        (first, b.min::<U32>(last, end))
    }

    /// Runs `body` for each of the warp's tiles.
    #[track_caller]
    pub(crate) fn each(&self, b: &mut Builder, body: impl FnOnce(&mut Builder, Rows)) {
        match *self {
            Share::Tiles { origin, end, tiles: (first, count, step), tile } => {
                let warp = b.warp_id();
                let first = b.add::<U32>(warp, first);
                b.for_range(first, count, step, |b, number| {
                    let first = b.mad::<U32>(number, tile, origin);
                    body(b, Rows { first, end });
                });
            }
            Share::Runs { first, end, tile } => b.for_range(first, end, tile, |b, first| {
                let last = b.add::<U32>(first, tile);
                let end = Size::Reg(b.min::<U32>(last, end));
                body(b, Rows { first, end });
            }),
            Share::Dealt { first, end, each, tile, slice, .. } => {
                let (begin, behind, end) = match slice {
                    None => (b.mov::<U32>(0), each, end),
                    Some(slice) => {
                        let (begin, behind) = slice.rows(b, each);
                        // A tile does not go beyond those rows.
                        let last = b.add::<U32>(first, behind);
                        (begin, behind, b.min::<U32>(last, end))
                    }
                };
                b.for_range(begin, behind, tile, |b, before| {
                    let first = b.add::<U32>(first, before);
                    let last = b.add::<U32>(first, tile);
                    let end = Size::Reg(b.min::<U32>(last, end));
                    body(b, Rows { first, end });
                });
            }
        }
    }
}

/// Of a block's rows those that each of its warps has in turn; the last warps have fewer, or none.
fn rows_of_warp(b: &mut Builder, rows: Val<U32>, warps: u32) -> Val<U32> {
    let each = b.add::<U32>(rows, warps - 1);
    b.div::<U32>(each, warps)
}

/// A vector in shared memory, or a part of one.
pub(crate) struct Pass {
    staged: Staged,
    tile: Tile,
    /// In fast numerics, the place of the values of super-blocks.
    values: Option<Values>,
    /// `1 / rms` of the whole vector, where it is to be normalised; correct in the last part only.
    pub(crate) scale: Option<Val<F32>>,
    /// Where there are several parts: whether this is the first, and whether it is the last.
    ends: Option<(Val<Pred>, Val<Pred>)>,
    /// The regions of columns, where there may be several: of each its `scale`.
    pub(crate) regions: Option<Regions>,
}

impl Pass {
    /// Products of a tile that each lane has.
    pub(crate) const fn sums_per_lane(&self) -> u32 {
        match &self.values {
            None => ROWS_TOGETHER,
            Some(_) => 1,
        }
    }

    /// The dot products of a tile of a matrix with a vector that is staged whole.
    #[track_caller]
    pub(crate) fn rows(&self, b: &mut Builder, matrix: Matrix<'_>, rows: Rows) -> Products {
        let zero = b.mov(0.0);
        self.rows_after(b, matrix, rows, zero)
    }

    /// The lane's first turn in a tile that begins with row `first`, where there may be several columns.
    #[track_caller]
    pub(crate) fn first_turn(&self, b: &mut Builder, first: Val<U32>) -> Option<Turn> {
        let (regions, values) = self.regions.as_ref().zip(self.values.as_ref())?;
        Some(values.first_turn(b, regions, first))
    }

    /// The dot products of a tile with the vector, or in turns with those of columns, for `body`; the norm's factor with them.
    #[track_caller]
    pub(crate) fn each_product(
        &self,
        b: &mut Builder,
        matrix: Matrix<'_>,
        rows: Rows,
        first: Option<&Turn>,
        body: impl FnOnce(&mut Builder, Option<OfTurn>, Products, Option<Val<F32>>),
    ) {
        match (&self.regions, &self.values, first) {
            (Some(regions), Some(values), Some(first)) => {
                let with = (&self.staged, self.tile);
                values.rows_of_columns(b, matrix, with, rows, (regions, first), |b, turn, products| {
                    let factor = regions.factor(b, turn.shift);
                    body(b, Some(turn), products, Some(factor));
                });
            }
            _ => {
                let products = self.rows(b, matrix, rows);
                body(b, None, products, self.scale);
            }
        }
    }

    /// The same for a part of a vector; in fast numerics each product is added to its lane's `before`.
    #[track_caller]
    fn rows_after(&self, b: &mut Builder, matrix: Matrix<'_>, rows: Rows, before: Val<F32>) -> Products {
        match &self.values {
            None => dot::rows(b, matrix, &self.staged, self.tile, rows),
            Some(values) => values.rows(b, matrix, &self.staged, self.tile, rows, before),
        }
    }
}

/// Rows of an exact tile of rows of `k` weights.
pub(crate) const fn tile_rows(k: Size) -> u32 {
    Tile::rows_of(k, ROWS_TOGETHER)
}

/// Stages `input` and runs `body` on it, once for each part. Barriers stand around the staging: after it, every warp
/// sees the vector, and no warp still reads the part before.
pub(crate) fn staged(b: &mut Builder, input: &Input, with: &With<'_>, body: impl FnOnce(&mut Builder, &Pass)) {
    let Input { x, norm, k, kind } = *input;
    let gamma = norm.map(|(gamma, _)| Factors { gamma, given: None });
    let whole = Tile::new(b, k, ROWS_TOGETHER);
    let super_blocks = b.size_div_ceil(k, SUPER_BLOCK);
    let is_cut = may_be_cut(k);
    let forms = with.forms(k);
    let wanted = with.wanted(b, &forms);
    let part = forms.part();
    let most = match super_blocks {
        Size::Const(count) => count.min(part),
        Size::Reg(_) => part,
    };
    let room = forms.words(most, matches!(forms.one, One::Always));
    let staged = Staged::new(b, &forms, room, Size::Const(most), most);
    let is_whole = matches!(super_blocks, Size::Const(count) if count <= part);
    let values = match with.numerics {
        Numerics::Exact => None,
        Numerics::Fast => {
            let types = fitting(with.types, k);
            Some(Values::new(b, &types, &Along::constant(most), is_whole && !is_cut, staged.bytes(), (None, None)))
        }
    };
    if is_whole {
        let left = is_cut.then(|| b.mov::<U32>(k));
        let asked = staged.ask(b, &Source { x, gamma, left, kind, handed: None }, super_blocks);
        staged.fill(b, &asked, wanted);
        b.bar_sync();
        let scale = norm.map(|(_, eps)| staged.inverse_rms(b, super_blocks, k, eps));
        return body(b, &Pass { staged, tile: whole, values, scale, ends: None, regions: None });
    }
    // The sums of squares of all parts.
    let squares = b.dynamic_shared::<F32>(4 * STAGED_MAX / SUPER_BLOCK);
    b.for_range(0, super_blocks, part, |b, first| {
        let left = b.sub::<U32>(super_blocks, first);
        let count = b.min::<U32>(left, part);
        let part = staged.with_squares(b.index(squares, first));
        let x = b.byte_index(x, first, SUPER_BLOCK * 4);
        let gamma = gamma.map(|of| Factors { gamma: b.byte_index(of.gamma, first, SUPER_BLOCK * 4), ..of });
        let left = is_cut.then(|| {
            let before = b.mul::<U32>(first, SUPER_BLOCK);
            b.sub::<U32>(k, before)
        });
        b.bar_sync();
        let asked = part.ask(b, &Source { x, gamma, left, kind, handed: None }, Size::Reg(count));
        part.fill(b, &asked, wanted);
        b.bar_sync();
        let done = b.add(first, count);
        let all = staged.with_squares(squares);
        let scale = norm.map(|(_, eps)| {
            // Before the last part the result is not used, but squares not yet written must not be read.
            all.inverse_rms(b, Size::Reg(done), k, eps)
        });
        let ends = (b.setp_eq::<U32>(first, 0), b.setp_eq::<U32>(done, super_blocks));
        let tile = whole.part(Size::Reg(first), Size::Reg(count));
        body(b, &Pass { staged: staged.clone(), tile, values: values.clone(), scale, ends: Some(ends), regions: None });
    });
}

/// One of several vectors, for fast products: which one it is the launch decides.
pub(crate) struct AnyInput<'a> {
    /// `[k]`.
    pub(crate) x: Global<F32>,
    /// Gamma `[k]` and epsilon.
    pub(crate) norm: (Global<F32>, Val<F32>),
    /// Whether it is normalised, and how long it is then.
    pub(crate) normalised: Val<Pred>,
    pub(crate) normalised_k: u32,
    pub(crate) k: Val<U32>,
    /// What loads of `x` may assume.
    pub(crate) kind: LoadKind,
    /// The lengths that it may have, and with how many matrices it is then multiplied.
    pub(crate) widths: &'a [(u32, u32)],
    /// Whether it is multiplied with one matrix, and who finds a row at which another one begins: rows may still be on their way.
    pub(crate) one: Val<Pred>,
    /// Where the longest one comes in slices: products are of bytes, each super-block's by itself, and types are of one form.
    pub(crate) slices: Option<InSlices>,
    pub(crate) border: &'a dyn Fn(&mut Builder) -> Val<U32>,
    /// The types that matrices may have, and who looks up the numbers of those that these matrices have.
    pub(crate) types: &'a [WeightType],
    pub(crate) of: &'a dyn Fn(&mut Builder) -> Kinds,
    /// The ring that weights come through, where there is one.
    pub(crate) ring: Option<Consumer>,
    /// Where the vector may come through the exchange.
    pub(crate) handed: Option<Handed>,
    /// The columns that have such a vector each, where there may be several.
    pub(crate) company: Option<Company<'a>>,
    /// Where the address of device memory for second planes stands, where there is some.
    pub(crate) apart: Option<Shared<U64>>,
    /// What the whole block does besides while the first elements are on their way.
    pub(crate) beside: Option<&'a dyn Fn(&mut Builder)>,
    pub(crate) rows: AllRows,
}

/// The rows that are dealt to warps.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AllRows {
    /// So many, to those of the grid.
    OfGrid(Val<U32>),
    /// From the first to the second, which is not one of them, to those of the block.
    OfBlock(Val<U32>, Val<U32>),
}

/// The numbers of the types of up to three matrices that follow each other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kinds {
    each: [Val<U32>; 3],
    /// All of them, a byte each: one register.
    all: Val<U32>,
}

impl Kinds {
    /// Of these types.
    pub(crate) fn new(b: &mut Builder, each: [Val<U32>; 3]) -> Kinds {
        let [first, second, third] = each;
        let all = b.mad::<U32>(third, 1 << 8, second);
        Kinds { each, all: b.mad::<U32>(all, 1 << 8, first) }
    }

    /// The type of matrix `number`.
    pub(crate) fn of(&self, b: &mut Builder, number: Val<U32>) -> Val<U32> {
        let before = b.shl::<U32>(number, 3);
        let from = b.shr::<U32>(self.all, before);
        b.and::<U32>(from, 0xff)
    }
}

/// What is known of products before their vector is there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prepared {
    pub(crate) kinds: Kinds,
    /// The warp's rows.
    pub(crate) share: Share,
}

/// Stages one of several vectors, with barriers as in [`staged`], and runs `body` on it; where it comes in slices, on one after
/// another.
pub(crate) fn staged_any(b: &mut Builder, input: &AnyInput<'_>, body: impl FnOnce(&mut Builder, &Pass, &Prepared)) {
    let counts = input.widths.iter().map(|(k, _)| k.div_ceil(SUPER_BLOCK));
    let longest = counts.max().unwrap_or(0);
    let super_blocks = b.size_div_ceil(Size::Reg(input.k), SUPER_BLOCK);
    let Some((ring, of)) = input.ring.zip(input.slices) else {
        let (pass, prepared) = stage_any(b, input, (super_blocks, longest), None);
        return body(b, &pass, &prepared);
    };
    let slice = Slices::new(b, of, ring.records(), super_blocks).begin(b);
    // What is computed for a slice is computed in the loop: what is kept for the next one takes registers from products.
    b.do_while(|b| {
        let (pass, prepared) = stage_any(b, input, (super_blocks, longest), Some(slice));
        body(b, &pass, &prepared);
        let more = match prepared.share {
            Share::Dealt { each, .. } => slice.go_on(b, each),
            Share::Tiles { .. } | Share::Runs { .. } => b.setp_eq(1u32, 0u32),
        };
        b.if_(more, Builder::bar_sync); // no warp reads the slice before any more
        more
    });
}

/// Stages one of several vectors, or a slice of it.
fn stage_any(
    b: &mut Builder,
    input: &AnyInput<'_>,
    (super_blocks, most): (Size, u32),
    slice: Option<Slice>,
) -> (Pass, Prepared) {
    let AnyInput { x, norm: (gamma, _), normalised, k, kind, widths, one, types, of: kinds_of, .. } = *input;
    let AnyInput { ring, handed, company, beside, border, rows, .. } = *input;
    let is_cut = widths.iter().any(|(k, _)| !k.is_multiple_of(SUPER_BLOCK));
    let mut forms = forms_of_any(b, input);
    let words = widths.iter().map(|(k, matrices)| forms.words(k.div_ceil(SUPER_BLOCK), *matrices == 1));
    let words = words.max().unwrap_or(0);
    // Beside slices there is room for one form.
    let ((room, most), whole) = match input.slices {
        None => ((words, most), None),
        Some(of) => ((forms.words(of.room(), true), of.room()), Some(Staged::bytes_of(words, most))),
    };
    forms.one = if slice.is_some() { One::Always } else { One::When(one) };
    let before = b.dynamic_taken();
    let in_room = slice.map_or(super_blocks, |slice| slice.room(b));
    let staged = Staged::new(b, &forms, room, in_room, most);
    let left = is_cut.then_some(k);
    let gamma = Some(Factors { gamma, given: Some(normalised) });
    let further = |b: &mut Builder, x: Global<F32>| match slice {
        None => x,
        Some(slice) => {
            let first = slice.first(b);
            b.byte_index(x, first, 4 * SUPER_BLOCK)
        }
    };
    let x = further(b, x);
    let of_slice = slice.map_or(super_blocks, |slice| Size::Reg(slice.count(b)));
    let asked = staged.ask(b, &Source { x, gamma, left, kind, handed }, of_slice);
    // While the first elements are on their way: what the block does besides, and what products need besides the vector.
    match (beside, slice) {
        (Some(beside), None) => beside(b),
        (Some(beside), Some(slice)) => {
            let is_first = slice.is_first(b);
            b.if_(is_first, beside);
        }
        (None, _) => {}
    }
    let kinds = kinds_of(b);
    let wanted = With { numerics: Numerics::Fast, types, of: &kinds.each }.wanted(b, &forms);
    let along = along_any(b, in_room, widths, input.slices);
    let region = (staged.base(), before);
    let regions = company.map(|company| Regions::new(b, &company, normalised, region, (&along, whole)));
    let mut values = Values::new(b, types, &along, !is_cut, staged.bytes(), (ring, regions));
    let border = border(b);
    let share = Share::of_values(b, rows, &mut values, (border, one), slice);
    match (company, &regions) {
        (Some(company), Some(regions)) => {
            // The last warp has no more to stage than any other.
            let tid = b.tid();
            let keeps = b.setp_eq(tid, 32 * (b.warps() - 1));
            let x_of = |b: &mut Builder, number: Val<U32>| {
                let x = (company.vectors)(b, number).x;
                further(b, x)
            };
            staged.fill_columns(b, &asked, wanted, regions, x_of, |b, column| {
                b.if_(keeps, |b| {
                    let is_first = b.setp_eq(column.number, 0);
                    let begins = b.and_pred(is_first, normalised);
                    b.if_(begins, |b| company.ready.begin(b));
                    let vectors = (company.vectors)(b, column.number);
                    regions.set_result(b, column, &vectors);
                });
            });
        }
        _ => staged.fill(b, &asked, wanted),
    }
    if let Some(handed) = handed {
        handed.meet(b);
    }
    b.bar_sync();
    if let Some(handed) = handed {
        handed.leave_if_missed(b);
    }
    let scale = scale_of_any(b, input, &staged, regions.as_ref());
    let tile = Tile::new(b, Size::Reg(k), ROWS_TOGETHER);
    (Pass { staged, tile, values: Some(values), scale, ends: None, regions }, Prepared { kinds, share })
}

/// The forms in which one of several vectors may be staged.
fn forms_of_any(b: &mut Builder, input: &AnyInput<'_>) -> Forms {
    let mut forms = With { numerics: Numerics::Fast, types: input.types, of: &[] }.forms(Size::Reg(input.k));
    forms.apart = input.apart;
    // Two pairs at a time take fewer rounds where vectors are long. A round of them is taken to be seven fifths as long: an
    // estimate by the assembler's stall counts and an allowance for waits. Before sm_90 there are no registers for that.
    let warps = b.warps();
    let of_one = |k: u32, together: u32| k.div_ceil(SUPER_BLOCK).div_ceil(together).div_ceil(warps);
    let rounds = |together: u32| input.widths.iter().map(|(k, _)| of_one(*k, together)).sum::<u32>();
    if input.handed.is_some() && forms.together == 2 && 7 * rounds(4) < 5 * rounds(2) && b.target().sm() >= 90 {
        forms.together = 4;
    }
    forms
}

/// The norm's factor of a vector that is staged; of several columns each has its own, in its region.
fn scale_of_any(b: &mut Builder, input: &AnyInput<'_>, staged: &Staged, regions: Option<&Regions>) -> Option<Val<F32>> {
    let AnyInput { norm: (_, eps), normalised, normalised_k, .. } = *input;
    let inverse = |b: &mut Builder, staged: &Staged| {
        let (count, k) = (Size::Const(normalised_k.div_ceil(SUPER_BLOCK)), Size::Const(normalised_k));
        staged.inverse_rms(b, count, k, eps)
    };
    match regions {
        None => {
            let scale = b.var::<F32>(1.0);
            b.if_(normalised, |b| {
                let inverse = inverse(b, staged);
                b.set(scale, inverse);
            });
            Some(b.get(scale))
        }
        Some(regions) => {
            let warp = b.warp_id();
            let is_last = b.setp_eq(warp, b.warps() - 1);
            let computes = b.and_pred(is_last, normalised);
            b.if_(computes, |b| {
                // A lane a column, so that several take no longer than one.
                let lane = b.lane();
                let own = regions.of(b, lane);
                let staged = staged.behind(b, own.shift);
                let inverse = inverse(b, &staged);
                regions.set_factor(b, own, inverse);
            });
            None
        }
    }
}

/// Super-blocks of a row, or those of a slice, as one of several vectors has them.
#[track_caller]
pub(crate) fn along_any(b: &mut Builder, size: Size, widths: &[(u32, u32)], slices: Option<InSlices>) -> Along {
    let whole = widths.iter().map(|(k, _)| k.div_ceil(SUPER_BLOCK));
    let whole = whole.filter(|count| slices.is_none_or(|of| *count != of.longest));
    Along::one_of(b, size, whole.chain(slices.iter().flat_map(|of| of.counts())))
}

/// Where results go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    /// `[n]`.
    pub(crate) y: Global<F32>,
    /// `[n]`, added to each result.
    pub(crate) bias: Option<Global<F32>>,
    /// `[n]`, added to each result; may be `y` where the vector is not normalised.
    pub(crate) residual: Option<Global<F32>>,
}

/// A vector that is added to results.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addend {
    /// `[n]`.
    pub(crate) at: Global<F32>,
    /// Whether the vector is there, where the launch decides; the same in the whole grid.
    pub(crate) given: Option<Val<Pred>>,
}

impl Addend {
    /// One that is there unless the pointer is null.
    #[track_caller]
    pub(crate) fn unless_null(b: &mut Builder, at: Global<F32>) -> Addend {
        let address = b.address(at);
        Addend { at, given: Some(b.setp_ne::<U64>(address, 0u64)) }
    }

    fn load(&self, b: &mut Builder, row: Val<U32>) -> Val<F32> {
        let at = b.index(self.at, row);
        let Some(given) = self.given else {
            return b.ld(at, LoadKind::Ordinary);
        };
        let value = b.var::<F32>(0.0);
        b.if_(given, |b| {
            let loaded = b.ld(at, LoadKind::Ordinary);
            b.set(value, loaded);
        });
        b.get(value)
    }
}

/// `y[n] = scale * (W x)[n] + bias[n] + residual[n]` for one tile.
pub(crate) fn store_tile(b: &mut Builder, matrix: Matrix<'_>, pass: &Pass, rows: Rows, output: Output) {
    let addends = [output.bias, output.residual].into_iter().flatten().map(|at| Addend { at, given: None });
    let addends: Vec<Addend> = addends.collect();
    store_sums(b, matrix, pass, rows, output.y, &addends);
}

/// `y[n] = scale * (W x)[n]` plus all `addends[n]`, in their order, for one tile.
pub(crate) fn store_sums(
    b: &mut Builder,
    matrix: Matrix<'_>,
    pass: &Pass,
    rows: Rows,
    y: Global<F32>,
    addends: &[Addend],
) {
    match (&pass.values, pass.ends) {
        (None, Some(ends)) => store_exact_parts(b, matrix, pass, rows, y, addends, ends),
        (None, None) | (Some(_), None) => {
            let result = pass.rows(b, matrix, rows);
            result.each_inside(b, rows, |b, row, sum| {
                let y = b.index(y, row);
                let addends: Vec<Val<F32>> = addends.iter().map(|addend| addend.load(b, row)).collect();
                let sum = pass.scale.map_or(sum, |scale| b.mul(sum, scale));
                let total = addends.into_iter().fold(sum, |sum, addend| b.add(sum, addend));
                b.st(y, total);
            });
        }
        (Some(_), Some((first, last))) => {
            // The sum of a row goes on where the part before has left it. `y` may be what is added.
            let lane = b.lane();
            let row = b.add::<U32>(rows.first, lane);
            let inside = b.setp_lt::<U32>(row, rows.end);
            let before = b.var::<F32>(0.0);
            b.if_(inside, |b| {
                b.if_else(
                    first,
                    |b| {
                        if pass.scale.is_none() {
                            for addend in addends {
                                let addend = addend.load(b, row);
                                let sum = b.add(before, addend);
                                b.set(before, sum);
                            }
                        }
                    },
                    |b| {
                        let at = b.index(y, row);
                        let sum = b.ld(at, LoadKind::Ordinary);
                        b.set(before, sum);
                    },
                );
            });
            let before = b.get(before);
            let result = pass.rows_after(b, matrix, rows, before);
            result.each_inside(b, rows, |b, row, sum| {
                let y = b.index(y, row);
                let total = b.var(sum);
                if let Some(scale) = pass.scale {
                    b.if_(last, |b| {
                        let scaled = b.mul(sum, scale);
                        let addends: Vec<Val<F32>> = addends.iter().map(|addend| addend.load(b, row)).collect();
                        let sum = addends.into_iter().fold(scaled, |sum, addend| b.add(sum, addend));
                        b.set(total, sum);
                    });
                }
                b.st(y, total);
            });
        }
    }
}

/// Sums of a part of a vector in exact numerics, added to those of the parts before it.
fn store_exact_parts(
    b: &mut Builder,
    matrix: Matrix<'_>,
    pass: &Pass,
    rows: Rows,
    y: Global<F32>,
    addends: &[Addend],
    (first, last): (Val<Pred>, Val<Pred>),
) {
    let result = pass.rows(b, matrix, rows);
    result.each_inside(b, rows, |b, row, sum| {
        let y = b.index(y, row);
        let addends: Vec<Val<F32>> = addends.iter().map(|addend| addend.load(b, row)).collect();
        let total = b.var(sum);
        b.if_else(
            first,
            |b| {
                if pass.scale.is_none() {
                    let sum = addends.iter().fold(sum, |sum, addend| b.add(sum, *addend));
                    b.set(total, sum);
                }
            },
            |b| {
                let before = b.ld(y, LoadKind::Ordinary);
                let next = b.add(before, sum);
                b.set(total, next);
            },
        );
        if let Some(scale) = pass.scale {
            b.if_(last, |b| {
                let scaled = b.mul(total, scale);
                let next = addends.iter().fold(scaled, |sum, addend| b.add(sum, *addend));
                b.set(total, next);
            });
        }
        b.st(y, total);
    });
}
