//! Sixteen rows' super-blocks times eights of columns, by tensor cores: the integers of `int8`, many at once, and the same
//! floats from them.
//!
//! A warp has the records of 16 rows in shared memory. With `g = lane / 4` and `t = lane % 4`, a lane has of rows `g` and
//! `g + 8` bytes `4t` to `4t + 4` of every 16, of column `g` the activations that these meet, and of the result rows `g`
//! and `g + 8` of columns `2t` and `2t + 1`: see [`Builder::mma_bytes_k32`].

use super::int8::LAST_WORDS;
use super::{ScaleGroup, StagedPlane};
use crate::matrix;
use crate::ptx::{
    AtomicOp, Builder, Element, F16, F32, Global, LoadKind, Pred, Ptr, S32, Scalar, Shared, Space, U8, U16, U32, Val,
    Var, Work,
};
use kiln_shape::columns::{
    BESIDE_BYTES, FRAGMENT_BYTES, LATER_OFFSET, OF_TWO, PLANE_BYTES, PLANES, SCALES_OFFSET, SUMS_OFFSET,
};

/// Twos of blocks of 32 of a super-block.
const TWOS: u32 = 4;

/// A lane's values of a super-block, in the order of the result's registers.
pub(crate) type Values = [Val<F32>; 4];

/// The values of each eight of columns, of the first 16 rows, then of the next.
type Part = fn(&mut Builder, &[Rows], &Columns<'_>) -> Vec<Values>;

/// The product of a format's super-blocks by tensor cores.
#[derive(Clone, Copy)]
pub(crate) struct Mma {
    /// The scales of the activations that it takes.
    pub(crate) group: ScaleGroup,
    /// The dot products of the rows' super-blocks with a plane of each column: the floats of `Int8::dot`.
    pub(super) part: Part,
}

impl Mma {
    /// As [`Mma::part`], for each eight of columns, of the first 16 rows, then of the next.
    pub(crate) fn part(&self, b: &mut Builder, rows: &[Rows], columns: &Columns<'_>) -> Vec<Values> {
        (self.part)(b, rows, columns)
    }
}

/// Where a lane's 16 bytes of two blocks stand among those of its warp, by the number of either: in the pattern of 64 bytes by
/// which a warpgroup's product reads columns without conflicts.
fn place_of(b: &mut Builder, lane: Val<U32>) -> Val<U32> {
    let two = b.shr::<U32>(lane, 3);
    b.xor::<U32>(lane, two)
}

/// The super-blocks of 16 rows.
#[derive(Debug, Clone)]
pub(crate) struct Rows {
    /// The lane's row of `ldmatrix`: `lane % 16`, and the second half of 32 bytes for lanes from 16 on.
    matrix: Shared<U32>,
    /// The records of rows `g` and `g + 8`.
    own: [Shared<U32>; 2],
    plane: OfPlane,
}

/// The entries of the plane of a lane's two rows.
#[derive(Debug, Clone)]
pub(crate) enum OfPlane {
    /// 16 bytes each.
    Quads(Vec<[[Val<U32>; 4]; 2]>),
    /// In the records, behind so many bytes of data.
    Behind(u32),
    /// The f16 that is all of it.
    Half([Val<F16>; 2]),
}

impl OfPlane {
    /// Those at `planes`, so many bytes each.
    pub(crate) fn load(b: &mut Builder, planes: [Global<U8>; 2], bytes: u32) -> OfPlane {
        if bytes == 2 {
            return OfPlane::Half(planes.map(|plane| b.ld(plane.cast::<F16>(), LoadKind::Constant)));
        }
        let quad =
            |b: &mut Builder, quad| planes.map(|of| b.ld_vector(of.at(16 * quad).cast::<U32>(), LoadKind::Constant));
        OfPlane::Quads((0..bytes / 16).map(|at| quad(b, at)).collect())
    }
}

impl Rows {
    /// Records at `records`, so many bytes from one to the next.
    pub(crate) fn new(b: &mut Builder, of: (Shared<U32>, u32), plane: OfPlane) -> Rows {
        Rows::placed(b, of, 8, plane, |_, row| row)
    }

    /// The 16 rows whose records begin so many bytes behind these.
    pub(crate) fn after(&self, bytes: u32, plane: OfPlane) -> Rows {
        let bytes = i64::from(bytes);
        let [first, second] = self.own;
        let own = [first.byte_offset(bytes), second.byte_offset(bytes)];
        Rows { matrix: self.matrix.byte_offset(bytes), own, plane }
    }

    /// As [`Rows::new`] in another order, so that neighbouring lanes' rows are four records apart: of each eight row `i` of the
    /// fragments is record `i / 2`, or `4 + i / 2` where `i` is odd. Lanes that read 16 bytes of a record each, an odd number
    /// of pieces from one to the next, meet in no bank. The second eight's begin so many records behind the first's.
    pub(crate) fn apart(b: &mut Builder, of: (Shared<U32>, u32), further: u32, plane: OfPlane) -> Rows {
        Rows::placed(b, of, further, plane, |b, row| {
            let (even, odd, upper) = (b.bfe::<U32>(row, 1, 2), b.and::<U32>(row, 1), b.bfe::<U32>(row, 3, 1));
            let place = b.mad::<U32>(odd, 4, even);
            b.mad::<U32>(upper, further, place)
        })
    }

    fn placed(
        b: &mut Builder,
        (records, stride): (Shared<U32>, u32),
        further: u32,
        plane: OfPlane,
        place: impl Fn(&mut Builder, Val<U32>) -> Val<U32>,
    ) -> Rows {
        let lane = b.lane();
        let (row, second) = (b.and::<U32>(lane, 15), b.shr::<U32>(lane, 4));
        let row = place(b, row);
        let matrix = b.byte_index(records, row, stride);
        let matrix = b.byte_index(matrix, second, 16);
        let own = b.shr::<U32>(lane, 2);
        let own = place(b, own);
        let first = b.byte_index(records, own, stride);
        Rows { matrix, own: [first, first.byte_offset(i64::from(further * stride))], plane }
    }

    /// 16 bytes of the record of each of the lane's rows, `piece` times 16 behind `at`.
    pub(super) fn pieces(&self, b: &mut Builder, at: u32, piece: Val<U32>) -> [[Val<U32>; 4]; 2] {
        self.own.map(|record| {
            let from = b.byte_index(record, piece, 16);
            b.ld_vector(from.at(at / 4), LoadKind::Ordinary)
        })
    }

    /// The fragment of A that bytes `at` to `at + 32` of the records are.
    pub(super) fn fragment(&self, b: &mut Builder, at: u32) -> [Val<U32>; 4] {
        b.ldmatrix(self.matrix.at(at / 4))
    }

    /// The same so many bytes on for each two blocks, or each four, before these.
    pub(super) fn fragment_of(&self, b: &mut Builder, at: u32, place: Place) -> [Val<U32>; 4] {
        let from = place.after(b, self.matrix);
        b.ldmatrix(from.at(at / 4))
    }

    /// The word at `at` of the record of each of the lane's rows, and of later blocks so many bytes on.
    pub(super) fn word_of(&self, b: &mut Builder, at: u32, place: Place) -> [Val<U32>; 2] {
        self.own.map(|record| {
            let from = place.after(b, record);
            b.ld(from.at(at / 4), LoadKind::Ordinary)
        })
    }

    /// Words of the plane, where it stands in the records.
    pub(super) fn word_of_plane(&self, b: &mut Builder, at: u32, place: Place) -> [Val<U32>; 2] {
        match self.plane {
            OfPlane::Behind(data) => self.word_of(b, data + at, place),
            OfPlane::Quads(_) | OfPlane::Half(_) => [b.mov(0); 2],
        }
    }

    /// 16 bytes from `at` on of the record of each of the lane's rows.
    pub(super) fn quads(&self, b: &mut Builder, at: u32) -> [[Val<U32>; 4]; 2] {
        self.own.map(|record| b.ld_vector(record.at(at / 4), LoadKind::Ordinary))
    }

    /// 8 bytes from `at` on of the record of each of the lane's rows.
    pub(super) fn pairs(&self, b: &mut Builder, at: u32) -> [[Val<U32>; 2]; 2] {
        self.own.map(|record| b.ld_vector(record.at(at / 4), LoadKind::Ordinary))
    }

    /// The f16 that is the plane.
    pub(super) fn half(&self, b: &mut Builder) -> [Val<F32>; 2] {
        match self.plane {
            OfPlane::Half(halves) => halves.map(|half| b.cvt(half)),
            OfPlane::Quads(_) | OfPlane::Behind(_) => [b.mov(f32::NAN); 2],
        }
    }

    /// 16 bytes from `16 * quad` on of the plane.
    pub(super) fn plane(&self, b: &mut Builder, quad: usize) -> [[Val<U32>; 4]; 2] {
        match &self.plane {
            OfPlane::Quads(quads) => quads[quad],
            OfPlane::Behind(data) => self.quads(b, data + 16 * quad as u32),
            OfPlane::Half(_) => [[b.mov(0); 4]; 2],
        }
    }
}

/// Two blocks of 32 of a super-block, by their number: known where each two have text of their own, else counted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Two {
    Known(usize),
    Counted(Val<U32>),
}

/// How far what belongs to some blocks stands behind what belongs to the first.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    Known(u32),
    Counted(Val<U32>, u32),
}

impl Two {
    /// So many bytes for each two before.
    pub(super) const fn times(self, bytes: u32) -> Place {
        match self {
            Two::Known(number) => Place::Known(number as u32 * bytes),
            Two::Counted(number) => Place::Counted(number, bytes),
        }
    }
}

impl Place {
    fn after<S: Space, T>(self, b: &mut Builder, from: Ptr<S, T>) -> Ptr<S, T> {
        match self {
            Place::Known(bytes) => from.byte_offset(i64::from(bytes)),
            Place::Counted(number, bytes) => b.byte_index(from, number, bytes),
        }
    }

    /// Two elements of each of two blocks, of which the first two's are at `from`.
    fn load_two<S: Space, T: Element>(
        self,
        b: &mut Builder,
        from: Ptr<S, T>,
        kind: LoadKind,
    ) -> [[Val<T::Loaded>; 2]; 2] {
        let from = self.after(b, from);
        let [low, high, next_low, next_high] = b.ld_vector(from, kind);
        [[low, high], [next_low, next_high]]
    }
}

/// A super-block of some eights of columns, in one plane.
pub(crate) struct Columns<'a> {
    eights: Vec<Eight>,
    /// Whether a loop goes through the blocks, whose text is shorter and has some instructions more.
    counted: bool,
    /// Bytes from the fragments of two blocks of 32 to those of the next two.
    apart: u32,
    /// What comes before the fragments of two blocks are read, by the numbers of the two and of the eight.
    before: Option<Before<'a>>,
}

/// Has two blocks of 32 of an eight, by their numbers, arrive in shared memory, and asks for others.
type Before<'a> = &'a dyn Fn(&mut Builder, u32, u32);

/// Columns in shared memory, and where the first eight has its fragments and what stands behind these in a plane.
pub(crate) struct InShared<'a> {
    pub(crate) fragments: Shared<U8>,
    pub(crate) beside: Shared<U8>,
    /// Bytes from the fragments of two blocks of 32 to those of the next two.
    pub(crate) apart: u32,
    /// Bytes from an eight's fragments of two blocks to the next eight's, and from what stands beside them.
    pub(crate) eights_apart: [u32; 2],
    pub(crate) before: Before<'a>,
}

/// What a lane reads of an eight: where its part of each begins.
#[derive(Debug, Clone, Copy)]
enum Eight {
    Global { fragments: Global<U8>, scales: Global<U8>, sums: Global<U8> },
    Shared { fragments: Shared<U8>, scales: Shared<U8>, sums: Shared<U8> },
}

impl<'a> Columns<'a> {
    /// Of each of so many eights from `first` on super-block `super_block` of `of` in plane `plane`.
    pub(crate) fn new(
        b: &mut Builder,
        (eights, group): (u32, ScaleGroup),
        first: Global<U8>,
        [super_block, of]: [Val<U32>; 2],
        plane: Val<U32>,
    ) -> Columns<'a> {
        let at = b.mad::<U32>(super_block, PLANES, plane);
        let eight = b.byte_index(first, at, PLANE_BYTES);
        let (lane, pair) = Columns::lane(b);
        let own = place_of(b, lane);
        let eights = (0..eights).map(|number| {
            let before = b.mul::<U32>(of, number);
            let eight = b.byte_index(eight, before, PLANES * PLANE_BYTES);
            Eight::Global {
                fragments: b.byte_index(eight, own, 16),
                scales: b.byte_index(eight, pair, Columns::scales_apart(group)).at(SCALES_OFFSET),
                sums: b.byte_index(eight, lane, 8).at(SUMS_OFFSET),
            }
        });
        Columns { eights: eights.collect(), counted: false, apart: 512, before: None }
    }

    /// Of eights in shared memory.
    pub(crate) fn in_shared(b: &mut Builder, (eights, group): (u32, ScaleGroup), of: &InShared<'a>) -> Columns<'a> {
        let (lane, pair) = Columns::lane(b);
        let [of_fragments, of_beside] = of.eights_apart;
        let own = place_of(b, lane);
        let fragments = b.byte_index(of.fragments, own, 16);
        let scales = b.byte_index(of.beside, pair, Columns::scales_apart(group)).at(SCALES_OFFSET - FRAGMENT_BYTES);
        let sums = b.byte_index(of.beside, lane, 8).at(SUMS_OFFSET - FRAGMENT_BYTES);
        let eights = (0..eights).map(|number| Eight::Shared {
            fragments: fragments.at(number * of_fragments),
            scales: scales.at(number * of_beside),
            sums: sums.at(number * of_beside),
        });
        Columns { eights: eights.collect(), counted: false, apart: of.apart, before: Some(of.before) }
    }

    /// The same by a loop, if `counted`.
    pub(crate) fn counted(self, counted: bool) -> Columns<'a> {
        Columns { counted, ..self }
    }

    /// Goes through the blocks by twos, in order.
    pub(super) fn each_two(&self, b: &mut Builder, mut body: impl FnMut(&mut Builder, Two)) {
        if self.counted {
            b.for_range(0, TWOS, 1, |b, number| {
                b.each_iteration(Work::Rounds(TWOS));
                body(b, Two::Counted(number));
            });
            return;
        }
        for number in 0..TWOS {
            body(b, Two::Known(number as usize));
        }
    }

    fn lane(b: &mut Builder) -> (Val<U32>, Val<U32>) {
        let lane = b.lane();
        (lane, b.and::<U32>(lane, 3))
    }

    /// Bytes from the scales of two columns to those of the next two.
    const fn scales_apart(group: ScaleGroup) -> u32 {
        match group {
            ScaleGroup::Of256 => 8,
            ScaleGroup::Of32 => 16,
        }
    }

    /// How many eights they are.
    pub(crate) fn len(&self) -> usize {
        self.eights.len()
    }

    /// The fragments of B of two blocks of 32.
    pub(super) fn fragments(&self, b: &mut Builder, eight: usize, two: Two) -> [[Val<U32>; 2]; 2] {
        if let (Some(before), Two::Known(number)) = (self.before, two) {
            before(b, number as u32, eight as u32);
        }
        let place = two.times(self.apart);
        match self.eights[eight] {
            Eight::Global { fragments, .. } => {
                let kind = b.kind_of_earlier();
                place.load_two(b, fragments.cast::<U32>(), kind)
            }
            Eight::Shared { fragments, .. } => place.load_two(b, fragments.cast::<U32>(), LoadKind::Ordinary),
        }
    }

    /// The fragment of B of the sums of the 16 sixteens, in f16.
    pub(super) fn sums(&self, b: &mut Builder, eight: usize) -> [Val<U32>; 2] {
        match self.eights[eight] {
            Eight::Global { sums, .. } => {
                let kind = b.kind_of_earlier();
                b.ld_vector(sums.cast::<U32>(), kind)
            }
            Eight::Shared { sums, .. } => b.ld_vector(sums.cast::<U32>(), LoadKind::Ordinary),
        }
    }

    /// The scales of the lane's two columns, of all 256.
    pub(super) fn scales(&self, b: &mut Builder, eight: usize) -> [Val<F32>; 2] {
        match self.eights[eight] {
            Eight::Global { scales, .. } => {
                let kind = b.kind_of_earlier();
                b.ld_vector(scales.cast::<F32>(), kind)
            }
            Eight::Shared { scales, .. } => b.ld_vector(scales.cast::<F32>(), LoadKind::Ordinary),
        }
    }

    /// The scales of the lane's two columns of two blocks.
    fn scales_of_blocks(&self, b: &mut Builder, eight: usize, two: Two) -> [[Val<F32>; 2]; 2] {
        let place = two.times(64);
        match self.eights[eight] {
            Eight::Global { scales, .. } => {
                let kind = b.kind_of_earlier();
                place.load_two(b, scales.cast::<F32>(), kind)
            }
            Eight::Shared { scales, .. } => place.load_two(b, scales.cast::<F32>(), LoadKind::Ordinary),
        }
    }
}

/// The number of the last plane that any column of some eights has, from what the first plane says of each; at least `least`.
pub(crate) fn last_plane(b: &mut Builder, least: Val<U32>, words: &[[Val<U32>; 4]]) -> Val<U32> {
    let any = words.iter().flatten().fold(least, |any, word| b.or::<U32>(any, *word));
    if b.target().sm() < 80 {
        let is_any = b.setp_ne(any, 0);
        let is_any = b.vote_any(is_any);
        return b.selp::<U32>(1, 0, is_any);
    }
    let any = b.redux(AtomicOp::Or, any);
    b.min::<U32>(any, 1)
}

/// Where the eight whose super-block is at `eight` says so.
pub(crate) fn later(eight: Global<U8>) -> Global<U32> {
    eight.at(LATER_OFFSET).cast()
}

/// [`last_plane`] of so many eights in shared memory, a power of two: the first has `beside` beside its fragments, the next
/// one has it so many bytes on.
pub(crate) fn last_plane_of(b: &mut Builder, beside: Shared<U8>, eights: (u32, u32)) -> Val<U32> {
    let (later, first) = (later_of_lane(b, beside, eights), b.mov::<U32>(0));
    last_plane(b, first, &[later])
}

/// Whether one of them has a second plane: that of the lane's number.
pub(crate) fn has_second_plane(b: &mut Builder, beside: Shared<U8>, eights: u32) -> Val<Pred> {
    let [w, x, y, z] = later_of_lane(b, beside, (eights, BESIDE_BYTES));
    let (low, high) = (b.or::<U32>(w, x), b.or::<U32>(y, z));
    let any = b.or::<U32>(low, high);
    b.setp_ne(any, 0)
}

/// What the first plane says of the columns of one of them, by the lane's number.
fn later_of_lane(b: &mut Builder, beside: Shared<U8>, (eights, apart): (u32, u32)) -> [Val<U32>; 4] {
    let lane = b.lane();
    let own = b.and::<U32>(lane, eights - 1);
    let later = b.byte_index(beside, own, apart).at(LATER_OFFSET - FRAGMENT_BYTES);
    b.ld_vector(later.cast::<U32>(), LoadKind::Ordinary)
}

/// Writes a super-block of a column, staged with scales for `group`, by a warp: `to` is that super-block of its eight, and
/// `column` the column's number there. A plane that the column does not have is zeros.
pub(crate) fn write(b: &mut Builder, to: Global<U8>, column: Val<U32>, group: ScaleGroup, planes: [StagedPlane; 2]) {
    let lane = b.lane();
    let later = planes[0].later(b);
    let has_second = b.setp_ne(later, 0);
    let always = b.setp_ge(lane, 0);
    for (number, (plane, there)) in planes.into_iter().zip([always, has_second]).enumerate() {
        let to = to.at(PLANE_BYTES * number as u32);
        // Lanes read words that follow each other: of the first two pairs of blocks, then of the others.
        let from = b.index(plane.activations, lane);
        let (pair, word, own) = (b.shr::<U32>(lane, 4), b.bfe::<U32>(lane, 2, 2), b.and::<U32>(lane, 3));
        let at = b.mad::<U32>(column, 4, own);
        let at = place_of(b, at);
        let to_lane = b.byte_index(to, pair, OF_TWO);
        let to_lane = b.byte_index(to_lane, at, 16).cast::<U32>();
        let to_lane = b.index(to_lane, word);
        for half in 0..2 {
            let bits = b.var::<U32>(0);
            b.if_(there, |b| {
                let read = b.ld(from.at(32 * half), LoadKind::Ordinary);
                b.set(bits, read);
            });
            b.st(to_lane.at(2 * OF_TWO / 4 * half), bits);
        }
        if group == ScaleGroup::Of256 {
            // A word has two sums; those of eight are a half of the fragment.
            let writes = b.setp_lt(lane, 8);
            b.if_(writes, |b| {
                let from = b.index(plane.beside, lane);
                let pair = b.var::<U32>(0);
                b.if_(there, |b| {
                    let sums = b.ld(from, LoadKind::Ordinary);
                    let sums = b.mov_bits::<S32, U32>(sums);
                    let [low, high] = [0, 16].map(|at| b.bfe::<S32>(sums, at, 16)).map(|sum| b.cvt::<F32, S32>(sum));
                    let halves = matrix::halves(b, low, high);
                    b.set(pair, halves);
                });
                let (half, own) = (b.shr::<U32>(lane, 2), b.and::<U32>(lane, 3));
                let at = b.mad::<U32>(column, 4, own);
                let to = b.byte_index(to.at(SUMS_OFFSET), at, 8);
                let to = b.index(to.cast::<U32>(), half);
                b.st(to, pair);
            });
        }
        // The first lanes write the scales: one, or one of each block.
        let scales = match group {
            ScaleGroup::Of256 => 1,
            ScaleGroup::Of32 => 8,
        };
        let writes = b.setp_lt(lane, scales);
        b.if_(writes, |b| {
            let to = to.at(SCALES_OFFSET);
            let (from, to) = match group {
                ScaleGroup::Of256 => (plane.beside.at(LAST_WORDS), b.index(to.cast::<U32>(), column)),
                ScaleGroup::Of32 => {
                    let (pair, second) = (b.shr::<U32>(lane, 1), b.and::<U32>(lane, 1));
                    let (two, odd) = (b.shr::<U32>(column, 1), b.and::<U32>(column, 1));
                    let to = b.byte_index(to, pair, 64);
                    let to = b.byte_index(to, two, 16);
                    let to = b.byte_index(to, second, 8);
                    (b.index(plane.beside, lane), b.index(to.cast::<U32>(), odd))
                }
            };
            let scale = b.var::<U32>(0);
            b.if_(there, |b| {
                let read = b.ld(from, LoadKind::Ordinary);
                b.set(scale, read);
            });
            b.st(to, scale);
        });
    }
    let writes = b.setp_eq(lane, 0);
    b.if_(writes, |b| {
        let to = b.index(to.at(LATER_OFFSET).cast::<U16>(), column);
        let later = b.cvt::<U16, U32>(later);
        b.st(to, later);
    });
}

/// A lane's sums, in the order of the result's registers.
pub(super) type Sums = [Val<S32>; 4];

/// Sums that grow.
pub(super) type Growing<T> = [Sum<T>; 4];

/// A value, or where it stays from one round of a loop to the next.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sum<T> {
    Known(Val<T>),
    Kept(Var<T>),
}

impl<T: Scalar> Sum<T> {
    fn get(self, b: &mut Builder) -> Val<T> {
        match self {
            Sum::Known(value) => value,
            Sum::Kept(var) => b.get(var),
        }
    }

    fn set(&mut self, b: &mut Builder, value: Val<T>) {
        match self {
            Sum::Known(known) => *known = value,
            Sum::Kept(var) => b.set(*var, value),
        }
    }
}

/// Zeros for each 16 rows and each eight, and those of one.
pub(super) fn zeros(b: &mut Builder, rows: &[Rows], columns: &Columns<'_>) -> (Vec<Vec<Growing<S32>>>, Sums) {
    let zero = b.mov::<S32>(0);
    let mut sum = |_| if columns.counted { Sum::Kept(b.var::<S32>(0)) } else { Sum::Known(zero) };
    let mut sums = || (0..columns.len()).map(|_| [(); 4].map(&mut sum)).collect();
    (rows.iter().map(|_| sums()).collect(), [zero; 4])
}

/// `sums + scale of the row * dot`.
pub(super) fn add_scaled(b: &mut Builder, sums: &mut Growing<S32>, scales: [Val<S32>; 2], dots: Sums) {
    for (i, sum) in sums.iter_mut().enumerate() {
        let next = match *sum {
            Sum::Known(sum) => b.mad::<S32>(scales[i / 2], dots[i], sum),
            Sum::Kept(sum) => b.mad::<S32>(scales[i / 2], dots[i], sum),
        };
        sum.set(b, next);
    }
}

/// What sums have come to.
pub(super) fn values(b: &mut Builder, sums: &[Vec<Growing<S32>>]) -> Vec<Vec<Sums>> {
    sums.iter().map(|sums| sums.iter().map(|sums| sums.map(|sum| sum.get(b))).collect()).collect()
}

/// Byte `at` of those in `words`.
pub(super) fn byte(b: &mut Builder, words: [Val<U32>; 2], at: usize) -> Val<S32> {
    let byte = b.prmt(words[at / 4], 0, 0x4440 | (at as u32 % 4));
    b.mov_bits(byte)
}

/// Bytes `2 * number` and `2 * number + 1` of those in `words`.
pub(super) fn two_bytes(b: &mut Builder, words: [Val<U32>; 2], number: Val<U32>) -> [Val<S32>; 2] {
    let is_second = b.setp_ge(number, 2);
    let word = b.selp::<U32>(words[1], words[0], is_second);
    let odd = b.and::<U32>(number, 1);
    let bits = b.shl::<U32>(odd, 4);
    let word = b.shr::<U32>(word, bits);
    [0, 8].map(|at| {
        let byte = b.bfe::<U32>(word, at, 8);
        b.mov_bits(byte)
    })
}

/// `(d * dots - dmin * sum of min * sum(x)) * scale of x` for each eight: the floats of `q4_k::scale_and_subtract`, where
/// `dots` are `unit` times those that are meant.
pub(super) fn scale_and_subtract(
    b: &mut Builder,
    columns: &Columns<'_>,
    rows: &[Mins],
    (dots, unit): (&[Vec<Sums>], f32),
) -> Vec<Values> {
    let rows: Vec<_> = rows.iter().map(|rows| rows.units(b, unit)).collect();
    let none = b.mov::<F32>(0.0);
    let mut values = vec![Vec::new(); rows.len()];
    for eight in 0..columns.len() {
        let (scales, sums) = (columns.scales(b, eight), columns.sums(b, eight));
        for (tile, (units, a)) in rows.iter().enumerate() {
            let offsets = matrix::halves_k16(b, *a, sums, [none; 4]);
            let dots = dots[tile][eight];
            values[tile].push(std::array::from_fn(|i| value(b, units[i / 2], (dots[i], offsets[i]), scales[i % 2])));
        }
    }
    values.concat()
}

/// `d` of a lane's two rows and what the sums of mins are multiplied with; and mins as the fragment of A.
pub(super) type Units = ([[Val<F32>; 2]; 2], [Val<U32>; 4]);

impl Mins {
    /// The same where dot products are `unit` times those that are meant.
    pub(super) fn units(&self, b: &mut Builder, unit: f32) -> Units {
        // As halves the mins are subnormal, multiples of 2^-24: their products with sums of 16 add up to less than 2^24 units,
        // exactly in f32. The ISA says nothing of subnormal numbers at `mma`; tensor cores of V100, T4 and A100 take them as
        // they are and multiply exactly (Fasi, Higham, Mikaitis, Pranesh: Numerical behavior of NVIDIA tensor cores, PeerJ
        // Computer Science 7:e330, 2021). `tests/kernels/mma.rs` tests it on whatever runs it.
        const HALF: f32 = (1 << 24) as f32;
        let lane = b.lane();
        let own = b.and::<U32>(lane, 3);
        // The lane's byte twice, each as a half.
        let select = b.mad::<U32>(own, 0x0101, 0x4040);
        let units = self.d_and_dmin.map(|word| {
            let [d, dmin] = b.unpack::<F16>(word).map(|half| b.cvt::<F32, F16>(half));
            let d = if unit == 1.0 { d } else { b.mul(d, 1.0 / unit) };
            [d, b.mul(dmin, -HALF)]
        });
        let [low, high] = [0, 1].map(|word| self.mins.map(|mins| b.prmt(mins[word], 0, select)));
        (units, [low[0], low[1], high[0], high[1]])
    }
}

/// `(d * dot + dmin * offset) * scale`.
pub(super) fn value(
    b: &mut Builder,
    [d, dmin]: [Val<F32>; 2],
    (dot, offset): (Val<S32>, Val<F32>),
    scale: Val<F32>,
) -> Val<F32> {
    let dot: Val<F32> = b.cvt(dot);
    let offset = b.mul(dmin, offset);
    let sum = b.fma(d, dot, offset);
    b.mul(sum, scale)
}

/// What the super-blocks of a lane's two rows have beside quants and scales.
pub(super) struct Mins {
    /// Both as halves of a word.
    pub(super) d_and_dmin: [Val<U32>; 2],
    /// The eight mins, a byte each.
    pub(super) mins: [[Val<U32>; 2]; 2],
}

/// Four words of the planes of some rows: all of them, or where a loop reads them.
pub(super) struct Halves {
    known: Option<Vec<[[Val<U32>; 4]; 2]>>,
    quad: usize,
}

impl Halves {
    /// Those from `16 * quad` on.
    pub(super) fn new(b: &mut Builder, rows: &[Rows], columns: &Columns<'_>, quad: usize) -> Halves {
        let known = (!columns.counted).then(|| rows.iter().map(|rows| rows.plane(b, quad)).collect());
        Halves { known, quad }
    }

    /// A word of each row for two blocks.
    pub(super) fn of(&self, b: &mut Builder, rows: &Rows, tile: usize, two: Two) -> [Val<U32>; 2] {
        match (&self.known, two) {
            (Some(known), Two::Known(number)) => known[tile].map(|words| words[number]),
            _ => rows.word_of_plane(b, 16 * self.quad as u32, two.times(4)),
        }
    }

    /// A word of each row for each of two blocks, of eight words.
    pub(super) fn both(b: &mut Builder, of: &[Halves; 2], rows: &Rows, tile: usize, two: Two) -> [[Val<U32>; 2]; 2] {
        [0, 1].map(|block| match (two, &of[0].known, &of[1].known) {
            (Two::Known(number), Some(low), Some(high)) => {
                let at = 2 * number + block;
                [low, high][at / 4][tile].map(|words| words[at % 4])
            }
            _ => rows.word_of_plane(b, 16 * of[0].quad as u32 + 4 * block as u32, two.times(8)),
        })
    }
}

/// The products of eight blocks of 32, whose bytes are the weights' quants, as `int8::sum_of_blocks` sums them. Of some rows,
/// by their number, and two blocks `d` gives both f16 of each row, a word, and `quants` the fragments.
pub(super) fn sum_of_blocks(
    b: &mut Builder,
    rows: &[Rows],
    columns: &Columns<'_>,
    mut d: impl FnMut(&mut Builder, usize, Two) -> [Val<U32>; 2],
    mut quants: impl FnMut(&mut Builder, usize, Two) -> [[Val<U32>; 4]; 2],
) -> Vec<Values> {
    // Added to the bits of 1.5 * 2^23 an integer of up to 22 bits is one in the float's. Times an f16, whose product with
    // that constant is exact, and less that product: `d * dot` with its one rounding, in one instruction.
    const MAGIC: f32 = 12_582_912.0;
    let magic = [b.mov::<S32>(MAGIC.to_bits() as i32); 4];
    let kept = columns.counted.then(|| b.mov::<F32>(0.0));
    let mut sums: Vec<Vec<Option<Growing<F32>>>> = vec![vec![None; rows.len()]; columns.len()];
    if let Some(zero) = kept {
        sums.iter_mut().flatten().for_each(|sum| *sum = Some([(); 4].map(|()| Sum::Kept(b.var(zero)))));
    }
    columns.each_two(b, |b, two| {
        // Of each block and row.
        let d: Vec<[[[Val<F32>; 2]; 2]; 2]> = (0..rows.len())
            .map(|tile| {
                let words = d(b, tile, two);
                let rows = words.map(|word| b.unpack::<F16>(word).map(|half| b.cvt::<F32, F16>(half)));
                [0, 1].map(|half| {
                    rows.map(|d| {
                        let less = b.mul(d[half], -MAGIC);
                        [d[half], less]
                    })
                })
            })
            .collect();
        let quants: Vec<_> = (0..rows.len()).map(|tile| quants(b, tile, two)).collect();
        for (eight, sums) in sums.iter_mut().enumerate() {
            let x = columns.fragments(b, eight, two);
            let scales = columns.scales_of_blocks(b, eight, two);
            for (half, (tile, quants)) in (0..2).flat_map(|half| quants.iter().enumerate().map(move |of| (half, of))) {
                let dots = matrix::bytes_k32::<S32>(b, quants[half], x[half], magic);
                let dots: Values = std::array::from_fn(|i| {
                    let dot = b.mov_bits::<F32, S32>(dots[i]);
                    let [d, less] = d[tile][half][i / 2];
                    b.fma(d, dot, less)
                });
                match &mut sums[tile] {
                    None => {
                        let first = std::array::from_fn(|i| Sum::Known(b.mul(scales[half][i % 2], dots[i])));
                        sums[tile] = Some(first);
                    }
                    Some(sums) => {
                        for (i, sum) in sums.iter_mut().enumerate() {
                            let scale = scales[half][i % 2];
                            let next = match *sum {
                                Sum::Known(sum) => b.fma(scale, dots[i], sum),
                                Sum::Kept(sum) => b.fma(scale, dots[i], sum),
                            };
                            sum.set(b, next);
                        }
                    }
                }
            }
        }
    });
    let mut of_tile = |tile: usize| -> Vec<Values> {
        sums.iter().filter_map(|sums| sums[tile]).map(|sums| sums.map(|sum| sum.get(b))).collect()
    };
    (0..rows.len()).flat_map(&mut of_tile).collect()
}

/// Unsigned bytes less `offset`, as signed ones: neither carries into the next, since none exceeds 63.
pub(super) fn less(b: &mut Builder, words: [Val<U32>; 4], offset: u32) -> [Val<U32>; 4] {
    words.map(|word| {
        let raised = b.add::<U32>(word, 0x0101_0101 * (128 - offset));
        b.xor::<U32>(raised, 0x8080_8080)
    })
}

/// The low or high nibbles of bytes.
pub(super) fn nibbles(b: &mut Builder, words: [Val<U32>; 4], high: bool) -> [Val<U32>; 4] {
    words.map(|word| {
        let word = if high { b.shr::<U32>(word, 4) } else { word };
        b.and::<U32>(word, 0x0f0f_0f0f)
    })
}
