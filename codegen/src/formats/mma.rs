//! Sixteen rows' super-blocks times eights of columns, by tensor cores: the integers of `int8`, many at once, and the same
//! floats from them.
//!
//! A warp has the records of 16 rows in shared memory. With `g = lane / 4` and `t = lane % 4`, a lane has of rows `g` and
//! `g + 8` bytes `4t` to `4t + 4` of every 16, of column `g` the activations that these meet, and of the result rows `g`
//! and `g + 8` of columns `2t` and `2t + 1`: see [`Builder::mma_bytes_k32`].

use super::int8::{LAST_WORDS, SUMS_OF_32, add_block};
use super::q4_k::subtract;
use super::{Plane, ScaleGroup};
use crate::ptx::{AtomicOp, Builder, F16, F32, Global, LoadKind, S32, Shared, U8, U32, Val};
use kiln_shape::columns::{LATER_OFFSET, PLANE_BYTES, PLANES, SCALES_OFFSET, SUMS_OFFSET};

/// A lane's values of a super-block, in the order of the result's registers.
pub(crate) type Values = [Val<F32>; 4];

/// The values of each eight of columns.
type Part = fn(&mut Builder, &Rows, &Columns) -> Vec<Values>;

/// The product of a format's super-blocks by tensor cores.
#[derive(Clone, Copy)]
pub(crate) struct Mma {
    /// The scales of the activations that it takes.
    pub(crate) group: ScaleGroup,
    /// The dot products of the rows' super-blocks with a plane of each column: the floats of `Int8::dot`.
    pub(super) part: Part,
}

impl Mma {
    /// As [`Mma::part`], for each eight of columns.
    pub(crate) fn part(&self, b: &mut Builder, rows: &Rows, columns: &Columns) -> Vec<Values> {
        (self.part)(b, rows, columns)
    }
}

/// The super-blocks of 16 rows.
#[derive(Debug, Clone)]
pub(crate) struct Rows {
    /// The lane's row of `ldmatrix`: `lane % 16`, and the second half of 32 bytes for lanes from 16 on.
    matrix: Shared<U32>,
    /// The records of rows `g` and `g + 8`.
    own: [Shared<U32>; 2],
    /// Their entries of the plane, 16 bytes each, or the f16 that is all of it.
    plane: Vec<[[Val<U32>; 4]; 2]>,
    half: Option<[Val<F16>; 2]>,
}

impl Rows {
    /// Records at `records`, so many bytes from one to the next; `planes` are the entries of the lane's two rows, so many
    /// bytes each.
    pub(crate) fn new(
        b: &mut Builder,
        (records, stride): (Shared<U32>, u32),
        (planes, bytes): ([Global<U8>; 2], u32),
    ) -> Rows {
        let quads = 0..bytes / 16;
        let quad =
            |b: &mut Builder, quad| planes.map(|of| b.ld_vector(of.at(16 * quad).cast::<U32>(), LoadKind::Constant));
        let plane = quads.map(|at| quad(b, at)).collect();
        let half = (bytes == 2).then(|| planes.map(|plane| b.ld(plane.cast::<F16>(), LoadKind::Constant)));
        let lane = b.lane();
        let (row, second) = (b.and::<U32>(lane, 15), b.shr::<U32>(lane, 4));
        let matrix = b.byte_index(records, row, stride);
        let matrix = b.byte_index(matrix, second, 16);
        let own = b.shr::<U32>(lane, 2);
        let first = b.byte_index(records, own, stride);
        let second = b.byte_index(first, 8, stride);
        Rows { matrix, own: [first, second], plane, half }
    }

    /// The fragment of A that bytes `at` to `at + 32` of the records are.
    pub(super) fn fragment(&self, b: &mut Builder, at: u32) -> [Val<U32>; 4] {
        b.ldmatrix(self.matrix.at(at / 4))
    }

    /// 16 bytes from `at` on of the record of each of the lane's rows.
    pub(super) fn quads(&self, b: &mut Builder, at: u32) -> [[Val<U32>; 4]; 2] {
        self.own.map(|record| b.ld_vector(record.at(at / 4), LoadKind::Ordinary))
    }

    /// The f16 that is the plane.
    pub(super) fn half(&self, b: &mut Builder) -> [Val<F32>; 2] {
        match self.half {
            Some(halves) => halves.map(|half| b.cvt(half)),
            None => [b.mov(f32::NAN); 2],
        }
    }

    /// 16 bytes from `16 * quad` on of the plane.
    pub(super) fn plane(&self, quad: usize) -> [[Val<U32>; 4]; 2] {
        self.plane[quad]
    }

    /// The eight f16 of 16 bytes of the plane.
    pub(super) fn halves(&self, b: &mut Builder, quad: usize) -> [[Val<F32>; 8]; 2] {
        self.plane[quad].map(|words| {
            let pairs = words.map(|word| b.unpack::<F16>(word).map(|half| b.cvt::<F32, F16>(half)));
            std::array::from_fn(|i| pairs[i / 2][i % 2])
        })
    }
}

/// A super-block of some eights of columns, in one plane.
#[derive(Debug, Clone)]
pub(crate) struct Columns {
    eights: Vec<Global<U8>>,
}

impl Columns {
    /// Of each of so many eights from `first` on super-block `super_block` of `of` in plane `plane`.
    pub(crate) fn new(
        b: &mut Builder,
        eights: u32,
        first: Global<U8>,
        [super_block, of]: [Val<U32>; 2],
        plane: Val<U32>,
    ) -> Columns {
        let at = b.mad::<U32>(super_block, PLANES, plane);
        let eight = b.byte_index(first, at, PLANE_BYTES);
        let eights = (0..eights).map(|number| {
            let before = b.mul::<U32>(of, number);
            b.byte_index(eight, before, PLANES * PLANE_BYTES)
        });
        Columns { eights: eights.collect() }
    }

    /// How many eights they are.
    pub(crate) fn len(&self) -> usize {
        self.eights.len()
    }

    /// The number of the last plane that any column has; asked of the first.
    pub(crate) fn last_plane(&self, b: &mut Builder) -> Val<U32> {
        let lane = b.lane();
        let column = b.and::<U32>(lane, 7);
        let words: Vec<Val<U32>> = (self.eights.iter())
            .map(|eight| {
                let at = b.index(eight.at(LATER_OFFSET).cast::<U32>(), column);
                b.ld(at, LoadKind::Constant)
            })
            .collect();
        let any = words[1..].iter().fold(words[0], |any, word| b.or::<U32>(any, *word));
        b.redux(AtomicOp::Or, any)
    }

    /// The fragments of B of blocks `2 * pair` and `2 * pair + 1` of 32.
    pub(super) fn fragments(&self, b: &mut Builder, eight: usize, pair: usize) -> [[Val<U32>; 2]; 2] {
        let lane = b.lane();
        let at = b.byte_index(self.eights[eight].at(512 * pair as u32), lane, 16);
        let [low, high, next_low, next_high] = b.ld_vector(at.cast::<U32>(), LoadKind::Constant);
        [[low, high], [next_low, next_high]]
    }

    /// The fragments of B of the sums of the eight 32, as their low and their high bytes; twice, since B has 16 rows.
    fn sums_of_32(&self, b: &mut Builder, eight: usize) -> [Val<U32>; 2] {
        let lane = b.lane();
        let (column, odd) = (b.shr::<U32>(lane, 2), b.and::<U32>(lane, 1));
        let at = b.byte_index(self.eights[eight].at(SUMS_OFFSET), column, 16);
        let at = b.byte_index(at, odd, 4).cast::<U32>();
        [at, at.at(2)].map(|at| b.ld(at, LoadKind::Constant))
    }

    /// The scales of the lane's two columns: of block `block`, or of all 256.
    pub(super) fn scales(&self, b: &mut Builder, eight: usize, block: u32) -> [Val<F32>; 2] {
        let lane = b.lane();
        let pair = b.and::<U32>(lane, 3);
        let at = b.byte_index(self.eights[eight].at(SCALES_OFFSET + 32 * block), pair, 8);
        b.ld_vector(at.cast::<F32>(), LoadKind::Constant)
    }
}

/// Writes a super-block of a column, staged with scales for `group`, by a warp: `to` is that super-block of its eight, and
/// `column` the column's number there. A plane that the column does not have is zeros.
pub(crate) fn write(b: &mut Builder, to: Global<U8>, column: Val<U32>, group: ScaleGroup, planes: [Plane; 2]) {
    let lane = b.lane();
    let later = planes[0].later(b);
    let has_second = b.setp_ne(later, 0);
    let always = b.setp_ge(lane, 0);
    for (number, (plane, there)) in planes.into_iter().zip([always, has_second]).enumerate() {
        let to = to.at(PLANE_BYTES * number as u32);
        let words = |b: &mut Builder, read: &dyn Fn(&mut Builder) -> [Val<U32>; 4]| {
            let words = [(); 4].map(|()| b.var::<U32>(0));
            b.if_(there, |b| {
                let read = read(b);
                words.iter().zip(read).for_each(|(word, read)| b.set(*word, read));
            });
            words.map(|word| b.get(word))
        };
        let (pair, own) = (b.shr::<U32>(lane, 2), b.and::<U32>(lane, 3));
        let writes = b.setp_lt(lane, 16);
        b.if_(writes, |b| {
            let from = b.byte_index(plane.activations, pair, 64);
            let from = b.index(from, own);
            let words = words(b, &|b| [0, 4, 8, 12].map(|at| b.ld(from.at(at), LoadKind::Ordinary)));
            let to = b.byte_index(to, pair, 512);
            let at = b.mad::<U32>(column, 4, own);
            let to = b.byte_index(to, at, 16).cast::<U32>();
            b.st_vector(to, words);
        });
        let writes = b.setp_eq(lane, 16);
        b.if_(writes, |b| {
            let from = plane.activations.at(SUMS_OF_32 / 4);
            let words = words(b, &|b| b.ld_vector(from, LoadKind::Ordinary));
            // A sum is 256 times its high byte plus its low one, both signed: that one is rounded to the nearest.
            let rounded = words.map(|pair| {
                let (signs, rest) = (b.and::<U32>(pair, 0x8000_8000), b.and::<U32>(pair, 0x7fff_7fff));
                let rest = b.add::<U32>(rest, 0x0080_0080);
                b.xor::<U32>(rest, signs)
            });
            let bytes = [(words, 0x6420), (rounded, 0x7531)]
                .map(|([w0, w1, w2, w3], which)| [b.prmt(w0, w1, which), b.prmt(w2, w3, which)]);
            let to = b.byte_index(to.at(SUMS_OFFSET), column, 16).cast::<U32>();
            let [[low, next_low], [high, next_high]] = bytes;
            b.st_vector(to, [low, next_low, high, next_high]);
        });
        // The first lanes write the scales: one, or one of each block.
        let (scales, first) = match group {
            ScaleGroup::Of256 => (1, LAST_WORDS),
            ScaleGroup::Of32 => (8, 0),
        };
        let writes = b.setp_lt(lane, scales);
        b.if_(writes, |b| {
            let from = b.index(plane.beside.at(first), lane);
            let scale = b.var::<U32>(0);
            b.if_(there, |b| {
                let read = b.ld(from, LoadKind::Ordinary);
                b.set(scale, read);
            });
            let to = b.byte_index(to.at(SCALES_OFFSET), lane, 32);
            let to = b.index(to.cast::<U32>(), column);
            b.st(to, scale);
        });
    }
    let writes = b.setp_eq(lane, 0);
    b.if_(writes, |b| {
        let to = b.index(to.at(LATER_OFFSET).cast::<U32>(), column);
        b.st(to, later);
    });
}

/// A lane's sums, in the order of the result's registers.
pub(super) type Sums = [Val<S32>; 4];

/// Zeros for each eight.
pub(super) fn zeros(b: &mut Builder, columns: &Columns) -> Vec<Sums> {
    let zero = b.mov::<S32>(0);
    vec![[zero; 4]; columns.len()]
}

/// `sums + scale of the row * dot`.
pub(super) fn add_scaled(b: &mut Builder, sums: &mut Sums, scales: [Val<S32>; 2], dots: Sums) {
    for (i, sum) in sums.iter_mut().enumerate() {
        *sum = b.mad::<S32>(scales[i / 2], dots[i], *sum);
    }
}

/// Byte `at` of those in `words`.
pub(super) fn byte(b: &mut Builder, words: [Val<U32>; 2], at: usize) -> Val<S32> {
    let byte = b.prmt(words[at / 4], 0, 0x4440 | (at as u32 % 4));
    b.mov_bits(byte)
}

/// `(d * dots - dmin * sum of min * sum(x)) * scale of x` for each eight: the floats of `q4_k::scale_and_subtract`.
pub(super) fn scale_and_subtract(
    b: &mut Builder,
    columns: &Columns,
    d_and_dmin: [Val<U32>; 2],
    dots: &[Sums],
    mins: [[Val<U32>; 2]; 2],
) -> Vec<Values> {
    let units = d_and_dmin.map(|word| b.unpack::<F16>(word).map(|half| b.cvt::<F32, F16>(half)));
    // Sums of 32 times mins are a product of matrices too: the lanes of the first half of A have the eight mins.
    let lane = b.lane();
    let (odd, second) = (b.and::<U32>(lane, 1), b.and::<U32>(lane, 2));
    let (odd, second) = (b.setp_ne(odd, 0), b.setp_ne(second, 0));
    let mins = mins.map(|[first, last]| {
        let own = b.selp::<U32>(last, first, odd);
        b.selp::<U32>(0, own, second)
    });
    let none = zeros(b, columns);
    let each = dots.iter().enumerate().map(|(eight, dots)| {
        let scales = columns.scales(b, eight, 0);
        let [low, high] = columns.sums_of_32(b, eight).map(|sums| b.mma_bytes_k16::<U32>(mins, sums, none[eight]));
        std::array::from_fn(|i| {
            let (row, column) = (i / 2, i % 2);
            let offsets = b.mad::<S32>(high[i], 256, low[i]);
            let sum = subtract(b, units[row], dots[i], offsets);
            b.mul(sum, scales[column])
        })
    });
    each.collect()
}

/// The products of eight blocks of 32, whose bytes are the weights' quants, as `int8::sum_of_blocks` sums them.
pub(super) fn sum_of_blocks(
    b: &mut Builder,
    columns: &Columns,
    d: [[Val<F32>; 8]; 2],
    mut pair: impl FnMut(&mut Builder, usize) -> [[Val<U32>; 4]; 2],
) -> Vec<Values> {
    let none = zeros(b, columns);
    let mut sums: Vec<Option<Values>> = vec![None; columns.len()];
    for number in 0..4 {
        let quants = pair(b, number);
        for (eight, sum) in sums.iter_mut().enumerate() {
            let x = columns.fragments(b, eight, number);
            for half in 0..2 {
                let block = 2 * number + half;
                let dots = b.mma_bytes_k32::<S32>(quants[half], x[half], none[eight]);
                let scales = columns.scales(b, eight, block as u32);
                let before = *sum;
                *sum = Some(std::array::from_fn(|i| {
                    let before = before.map(|before: Values| before[i]);
                    add_block(b, before, d[i / 2][block], scales[i % 2], dots[i])
                }));
            }
        }
    }
    sums.into_iter().flatten().collect()
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
