//! The tiles of a phase's matrices, and a block's share of them.
//!
//! Tiles stand one behind the other: those of each matrix before those of the one before, and of the same rows those of all
//! columns. Of Q, K and V llama.cpp's mixes give the last the most bits: where each tile has a block, those that take longest
//! are begun first. Else blocks have equal shares of all super-blocks, and no multiprocessor rests while others do a last
//! tile. A tile on the border of two shares is begun by one block and ended by the next (`blocks/begun.rs`). A block does the
//! last tile of its share first and its first one last: where a share is at least a tile, what it takes over was left long
//! before.

use super::gemm::Launched;
use super::products::Chosen;
use crate::blocks::dependent;
use crate::blocks::gemm_tile::Matrices;
use crate::blocks::next_columns::Written;
use crate::blocks::tensor::{Tensor, map_from_table};
use crate::ptx::{Builder, F32, Global, LoadKind, Pred, Shared, Size, U8, U32, Val};
use kiln_shape::table::{LAYER_SLOTS, MODEL_SLOTS};
use kiln_shape::{ModelShape, SUPER_BLOCK};

/// Matrices of a phase, at most.
const MATRICES: u32 = 3;

/// Words of a matrix: its tiles of rows, rows of a tile, what a super-block of a tile takes, and its type.
const COUNT: u32 = 0;
const EACH: u32 = 1;
const COST: u32 = 2;
const TYPE: u32 = 3;
const WORDS: u32 = 4;

/// Pieces whose places are found at once.
const AT_ONCE: u32 = 16;

/// The phase that tiles are of.
pub(super) struct TiledPhase<'a> {
    shape: &'a ModelShape,
    table: Global<U8>,
    pub(super) chosen: Chosen,
    /// Rows of the phase.
    pub(super) rows: Val<U32>,
    /// Super-blocks of a row, and tiles of columns.
    pub(super) super_blocks: Val<U32>,
    groups: Val<U32>,
}

impl<'a> TiledPhase<'a> {
    /// The phase of a launch, in tiles of so many columns.
    pub(super) fn new(b: &mut Builder, shape: &'a ModelShape, launched: &Launched, width: u32) -> TiledPhase<'a> {
        let Launched { table, layer, phase, columns, vocab, .. } = *launched;
        let layer = b.mad::<U32>(layer, LAYER_SLOTS, MODEL_SLOTS);
        let chosen = Chosen::new(b, shape, phase, layer);
        let rows = chosen.rows(b, shape, Some(vocab));
        let [super_blocks, groups] = [(chosen.k, SUPER_BLOCK), (columns, width)].map(|(of, each)| {
            let size = b.size_div_ceil(Size::Reg(of), each);
            b.mov::<U32>(size)
        });
        TiledPhase { shape, table, chosen, rows, super_blocks, groups }
    }
}

/// What a type makes of a tile.
pub(super) struct Kind {
    pub(super) rows: Val<U32>,
    /// The time of a super-block, in any unit.
    pub(super) cost: Val<U32>,
}

/// The tiles of a phase, in shared memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiles {
    /// `[MATRICES, WORDS]`.
    matrices: Shared<U32>,
    /// The begin and the end of the block's share.
    share: Shared<U32>,
    /// `[Piece::WORDS, AT_ONCE]`: lanes that note a piece each meet in no bank.
    pieces: Shared<U32>,
}

/// Where a share begins, and where it ends.
struct Share {
    begin: Place,
    end: Place,
}

/// A tile's number, and a super-block of it.
struct Place {
    tile: Val<U32>,
    super_block: Val<U32>,
}

/// What a block does of a tile.
pub(super) struct Piece {
    pub(super) of: OfTile,
    /// The tile of columns.
    pub(super) group: Val<U32>,
    /// Super-blocks: the first, and the one behind them.
    pub(super) from: Val<U32>,
    pub(super) to: Val<U32>,
}

impl Piece {
    const WORDS: u32 = OfTile::WORDS + 3;
}

impl Tiles {
    /// Takes the shared memory.
    pub(super) fn new(b: &mut Builder) -> Tiles {
        Tiles {
            matrices: b.shared::<U32>("tiles", MATRICES * WORDS),
            share: b.shared::<U32>("share", 4),
            pieces: b.shared::<U32>("pieces", AT_ONCE * Piece::WORDS),
        }
    }

    /// Goes through the pieces of the block's share of a phase, which is computed anew where it is needed, and takes no
    /// registers between; a type has tiles of that `kind`. `body` begins behind a barrier of the block, and finds its
    /// piece by [`Tiles::piece`] at the place that it is given. It is given the piece's number as well.
    pub(super) fn each<'a>(
        &self,
        b: &mut Builder,
        phase: impl Fn(&mut Builder) -> TiledPhase<'a>,
        kind: impl Fn(&mut Builder, Val<U32>) -> Kind,
        body: impl FnOnce(&mut Builder, Val<U32>, Val<U32>),
    ) {
        let warp = b.warp_id();
        let leads = b.setp_eq(warp, 0);
        b.if_(leads, |b| {
            let phase = phase(b);
            self.note_matrices(b, &phase, kind);
            b.bar_warp_sync(); // the matrices are noted
            self.note_share(b, &phase);
        });
        b.bar_sync(); // the share is noted
        dependent::wait(b);
        let (_, count) = self.share(b);
        b.for_range(0, count, 1, |b, before| {
            b.bar_sync(); // nothing of the pieces before is in use
            let place = b.and::<U32>(before, AT_ONCE - 1);
            let is_new = b.setp_eq(place, 0);
            b.if_(is_new, |b| {
                let warp = b.warp_id();
                let leads = b.setp_eq(warp, 0);
                b.if_(leads, |b| {
                    let phase = phase(b);
                    self.note_pieces(b, &phase, before);
                });
                b.bar_sync(); // some pieces are noted
            });
            body(b, place, before);
        });
    }

    /// Whether piece `number` goes on where the one before it ends: both are noted at once and of the same matrix, this one
    /// begins with its tile, and neither has less than `least` super-blocks. The one before always begins with its tile.
    pub(super) fn goes_on(&self, b: &mut Builder, number: Val<U32>, least: u32) -> Val<Pred> {
        let (Share { begin, .. }, count) = self.share(b);
        let place = b.and::<U32>(number, AT_ONCE - 1);
        let left = b.sub::<U32>(count, number);
        // The share's first tile comes last, and may be begun by another block.
        let is_whole = b.setp_eq(begin.super_block, 0);
        let least_left = b.selp::<U32>(1, 2, is_whole);
        let in_share = b.setp_lt(number, count);
        let is_whole = b.setp_ge(left, least_left);
        let is_behind = b.setp_ne(place, 0);
        let may = b.and_pred(in_share, is_whole);
        let may = b.and_pred(may, is_behind);
        let found = b.var::<U32>(0);
        b.if_(may, |b| {
            let at = b.index(self.pieces, place);
            let before = b.sub::<U32>(place, 1);
            let before = b.index(self.pieces, before);
            let [number, to] = [0, Piece::WORDS - 1]
                .map(|word| [before, at].map(|at| b.ld(at.at(AT_ONCE * word), LoadKind::Constant)));
            let same = b.setp_eq(number[0], number[1]);
            let shorter = b.min::<U32>(to[0], to[1]);
            let is_long = b.setp_ge(shorter, least);
            let goes_on = b.and_pred(same, is_long);
            let goes_on = b.selp::<U32>(1, 0, goes_on);
            b.set(found, goes_on);
        });
        b.setp_ne(found, 0)
    }

    /// The type of the phase's matrix of that number.
    pub(super) fn ty(&self, b: &mut Builder, matrix: Val<U32>) -> Val<U32> {
        let of = b.byte_index(self.matrices, matrix, 4 * WORDS);
        b.ld(of.at(TYPE), LoadKind::Constant)
    }

    /// Notes the block's only tile as the piece at place 0, where there are as many blocks as tiles, which all have so many
    /// rows. By the whole block; a barrier of it must follow.
    pub(super) fn note_own(&self, b: &mut Builder, phase: &TiledPhase<'_>, rows: Val<U32>) {
        self.note_matrices(b, phase, |b, _| Kind { rows, cost: b.mov(1) });
        b.bar_warp_sync(); // the matrices are noted
        let lane = b.lane();
        let leads = b.setp_eq(lane, 0);
        b.if_(leads, |b| {
            let block = b.ctaid_x();
            let tile = b.div::<U32>(block, phase.groups);
            let before = b.mul::<U32>(tile, phase.groups);
            let group = b.sub::<U32>(block, before);
            let of = self.find(b, phase, tile);
            let zero = b.mov::<U32>(0);
            let words = of.words().into_iter().chain([group, zero, phase.super_blocks]);
            words.zip(0..).for_each(|(word, number)| b.st(self.pieces.at(AT_ONCE * number), word));
        });
    }

    /// The piece at that place.
    pub(super) fn piece(&self, b: &mut Builder, place: Val<U32>) -> Piece {
        let at = b.index(self.pieces, place);
        let words = std::array::from_fn(|word| b.ld(at.at(AT_ONCE * word as u32), LoadKind::Constant));
        let [number, from, rows, first, rows_of_tile, group, begin, end] = words;
        let of = OfTile { number, from, rows, first, rows_of_tile };
        Piece { of, group, from: begin, to: end }
    }

    /// A lane a matrix.
    fn note_matrices(&self, b: &mut Builder, phase: &TiledPhase<'_>, kind: impl Fn(&mut Builder, Val<U32>) -> Kind) {
        let number = b.lane();
        let count = matrices(b, &phase.chosen);
        let is_one = b.setp_lt(number, count);
        b.if_(is_one, |b| {
            let (from, to) = phase.chosen.rows_of(b, phase.shape, number);
            let to = b.min::<U32>(to, phase.rows);
            let rows = b.sub::<U32>(to, from);
            let entry = b.add::<U32>(phase.chosen.weight, number);
            let ty = Tensor::from_table(b, phase.table, entry).ty;
            let Kind { rows: all, cost } = kind(b, ty);
            let half = b.shr::<U32>(all, 1);
            let each = b.selp::<U32>(half, all, phase.chosen.is_gate_up);
            let up = b.add::<U32>(rows, each);
            let up = b.sub::<U32>(up, 1);
            let count = b.div::<U32>(up, each);
            let to = b.byte_index(self.matrices, number, 4 * WORDS);
            let words = [(COUNT, count), (EACH, each), (COST, cost), (TYPE, ty)];
            words.into_iter().for_each(|(at, word)| b.st(to.at(at), word));
        });
    }

    /// Goes through the matrices, from the last to the first, given the number of each and its words.
    fn each_matrix(&self, b: &mut Builder, chosen: &Chosen, body: impl FnOnce(&mut Builder, Val<U32>, [Val<U32>; 3])) {
        let count = matrices(b, chosen);
        let last = b.sub::<U32>(count, 1);
        b.for_range(0, count, 1, |b, earlier| {
            let number = b.sub::<U32>(last, earlier);
            let of = b.byte_index(self.matrices, number, 4 * WORDS);
            let words = [COUNT, EACH, COST].map(|at| b.ld(of.at(at), LoadKind::Ordinary));
            body(b, number, words);
        });
    }

    /// A lane for the begin of the block's share, and one for its end, which is the next one's begin. As many blocks as there
    /// are tiles have one each.
    fn note_share(&self, b: &mut Builder, phase: &TiledPhase<'_>) {
        let (block, blocks, lane) = (b.ctaid_x(), b.nctaid_x(), b.lane());
        let (tiles, costs) = (b.var::<U32>(0), b.var::<U32>(0));
        self.each_matrix(b, &phase.chosen, |b, _, [count, _, cost]| {
            let count = b.mul::<U32>(count, phase.groups);
            let next = b.add::<U32>(tiles, count);
            b.set(tiles, next);
            let next = b.mad::<U32>(count, cost, costs);
            b.set(costs, next);
        });
        let one_each = b.setp_eq(blocks, tiles);
        let all = b.selp::<U32>(tiles, costs, one_each);
        let all = b.mul::<U32>(all, phase.super_blocks);
        // all * block / blocks, whose product may be longer than a word.
        let whole = b.div::<U32>(all, blocks);
        let of_whole = b.mul::<U32>(whole, blocks);
        let rest = b.sub::<U32>(all, of_whole);
        let block = b.add::<U32>(block, lane);
        let rest = b.mul::<U32>(block, rest);
        let rest = b.div::<U32>(rest, blocks);
        let at = b.mad::<U32>(block, whole, rest);
        // Costs from the begin of the matrix on that it is in, tiles before that, and what a super-block there takes.
        let (left, tile, cost_there) = (b.var::<U32>(at), b.var::<U32>(0), b.var::<U32>(1));
        let is_found = b.var::<U32>(0);
        self.each_matrix(b, &phase.chosen, |b, _, [count, _, cost]| {
            let count = b.mul::<U32>(count, phase.groups);
            let cost = b.selp::<U32>(1, cost, one_each);
            let all = b.mul::<U32>(count, cost);
            let all = b.mul::<U32>(all, phase.super_blocks);
            let searches = b.setp_eq(is_found, 0);
            b.if_(searches, |b| {
                b.set(cost_there, cost);
                let inside = b.setp_lt(left, all);
                let found = b.selp::<U32>(1, 0, inside);
                b.set(is_found, found);
                let (behind, more) = (b.sub::<U32>(left, all), b.add::<U32>(tile, count));
                let (left_there, tile_there) = (b.selp::<U32>(left, behind, inside), b.selp::<U32>(tile, more, inside));
                b.set(left, left_there);
                b.set(tile, tile_there);
            });
        });
        let each = b.mul::<U32>(cost_there, phase.super_blocks);
        let tiles = b.div::<U32>(left, each);
        let before = b.mul::<U32>(tiles, each);
        let rest = b.sub::<U32>(left, before);
        let super_block = b.div::<U32>(rest, cost_there);
        let tile = b.add::<U32>(tile, tiles);
        let writes = b.setp_lt(lane, 2);
        let to = b.byte_index(self.share, lane, 8);
        b.if_(writes, |b| {
            b.st_vector(to, [tile, super_block]);
        });
    }

    /// The block's share, and its pieces: a tile of which it has nothing is none.
    fn share(&self, b: &mut Builder) -> (Share, Val<U32>) {
        let [tile, super_block, end_tile, end_super_block] = b.ld_vector(self.share, LoadKind::Constant);
        let share =
            Share { begin: Place { tile, super_block }, end: Place { tile: end_tile, super_block: end_super_block } };
        let cut = b.setp_ne(end_super_block, 0);
        let cut = b.selp::<U32>(1, 0, cut);
        let count = b.sub::<U32>(end_tile, tile);
        (share, b.add::<U32>(count, cut))
    }

    /// A lane a piece, from the last tile on, behind so many.
    fn note_pieces(&self, b: &mut Builder, phase: &TiledPhase<'_>, before: Val<U32>) {
        let (Share { begin, end }, count) = self.share(b);
        let lane = b.lane();
        let number = b.add::<U32>(before, lane);
        let (some, there) = (b.setp_lt(lane, AT_ONCE), b.setp_lt(number, count));
        let there = b.and_pred(some, there);
        b.if_(there, |b| {
            let last = b.add::<U32>(begin.tile, count);
            let last = b.sub::<U32>(last, 1);
            let tile = b.sub::<U32>(last, number);
            let (is_first, is_last) = (b.setp_eq(tile, begin.tile), b.setp_eq(tile, end.tile));
            let from = b.selp::<U32>(begin.super_block, 0, is_first);
            let to = b.selp::<U32>(end.super_block, phase.super_blocks, is_last);
            let rows = b.div::<U32>(tile, phase.groups);
            let before = b.mul::<U32>(rows, phase.groups);
            let group = b.sub::<U32>(tile, before);
            let of = self.find(b, phase, rows);
            let words = of.words().into_iter().chain([group, from, to]);
            let at = b.index(self.pieces, lane);
            words.zip(0..).for_each(|(word, number)| b.st(at.at(AT_ONCE * number), word));
        });
    }

    /// The tile of rows of that number.
    fn find(&self, b: &mut Builder, phase: &TiledPhase<'_>, tile: Val<U32>) -> OfTile {
        let zero = b.mov::<U32>(0);
        let none = OfTile { number: zero, from: zero, rows: zero, first: zero, rows_of_tile: zero };
        let found = none.words().map(|word| b.var::<U32>(word));
        let own = b.var::<U32>(tile);
        self.each_matrix(b, &phase.chosen, |b, number, [count, each, _]| {
            let tile = b.get(own);
            // A tile before these wraps round.
            let is_own = b.setp_lt(tile, count);
            b.if_(is_own, |b| {
                let (from, to) = phase.chosen.rows_of(b, phase.shape, number);
                let to = b.min::<U32>(to, phase.rows);
                let rows = b.sub::<U32>(to, from);
                let first = b.mul::<U32>(tile, each);
                let of = OfTile { number, from, rows, first, rows_of_tile: each };
                found.iter().zip(of.words()).for_each(|(to, word)| b.set(*to, word));
            });
            let next = b.sub::<U32>(tile, count);
            b.set(own, next);
        });
        OfTile::of(found.map(|word| b.get(word)))
    }
}

/// Matrices that have tiles of their own: of gate and up one.
fn matrices(b: &mut Builder, chosen: &Chosen) -> Val<U32> {
    b.selp::<U32>(MATRICES, 1, chosen.is_qkv)
}

/// A tile of rows of a matrix of the phase.
pub(super) struct OfTile {
    pub(super) number: Val<U32>,
    /// The matrix's first row in the phase, and its rows.
    pub(super) from: Val<U32>,
    pub(super) rows: Val<U32>,
    /// The tile's first row in the matrix, and its rows there.
    pub(super) first: Val<U32>,
    pub(super) rows_of_tile: Val<U32>,
}

impl OfTile {
    const WORDS: u32 = 5;

    /// The matrices of its rows: of gate and up both.
    pub(super) fn matrices(&self, b: &mut Builder, table: Global<U8>, chosen: &Chosen) -> Matrices {
        let tensors = self.entries(b, chosen).map(|entry| Tensor::from_table(b, table, entry));
        Matrices { tensors, is_pair: chosen.is_gate_up, first: self.first, rows: self.rows }
    }

    /// The tensor maps of its rows' matrices: of gate and up of both.
    pub(super) fn maps(&self, b: &mut Builder, table: Global<U8>, chosen: &Chosen) -> [Global<U8>; 2] {
        self.entries(b, chosen).map(|entry| map_from_table(b, table, entry))
    }

    /// The entries of its rows' matrices: of gate and up both.
    fn entries(&self, b: &mut Builder, chosen: &Chosen) -> [Val<U32>; 2] {
        let entry = b.add::<U32>(chosen.weight, self.number);
        let further = b.selp::<U32>(1, 0, chosen.is_gate_up);
        [entry, b.add::<U32>(entry, further)]
    }

    /// What is written of the phase when its results of tile `tile` of columns, so many, are.
    pub(super) fn written(&self, b: &mut Builder, of: &Operands, tile: Val<U32>, width: u32) -> Written {
        let end = b.add::<U32>(self.first, self.rows_of_tile);
        let end = b.min::<U32>(end, self.rows);
        let (first, end) = (b.add::<U32>(self.from, self.first), b.add::<U32>(self.from, end));
        Written { y: of.y, columns: of.columns, rows: of.rows, first, end, tile, width }
    }

    const fn words(&self) -> [Val<U32>; 5] {
        [self.number, self.from, self.rows, self.first, self.rows_of_tile]
    }

    const fn of([number, from, rows, first, rows_of_tile]: [Val<U32>; 5]) -> OfTile {
        OfTile { number, from, rows, first, rows_of_tile }
    }
}

/// What a launch works on.
pub(super) struct Operands {
    pub(super) table: Global<U8>,
    pub(super) inverse: Global<F32>,
    pub(super) y: Global<F32>,
    /// Columns that are there.
    pub(super) columns: Val<U32>,
    /// Rows of the phase, from a column's results to the next column's.
    pub(super) rows: Val<U32>,
    pub(super) first_eight: Val<U32>,
}

impl Operands {
    /// For a piece of a tile of so many eights of columns.
    pub(super) fn new(
        b: &mut Builder,
        launched: &Launched,
        phase: &TiledPhase<'_>,
        (piece, eights): (&Piece, u32),
    ) -> Operands {
        let Launched { table, inverse, y, columns, .. } = *launched;
        let first_eight = b.mul::<U32>(piece.group, eights);
        Operands { table, inverse, y, columns, rows: phase.rows, first_eight }
    }
}
