//! Rows of a format as a warpgroup's product has them: each weight times its sub-block's scale, in two planes of signed bytes.
//! Their products with a super-block's activations need no scales on the way: the sums are the integers of `int8`, and
//! the same floats come of them.
//!
//! Of two blocks of 32 a lane has 16 neighbouring weights of each of its two rows: with `t = lane % 4` the first or second
//! half, by `t % 2`, of the first block or the second, by `t / 2`. They meet the same activations as columns lie in
//! `kiln_shape::columns`, whose order within two blocks is that of fragments for lanes.

use super::mma::{Sums, Values};
use super::{Columns, Rows};
use crate::ptx::{Builder, U32, Val};

/// A lane's words of rows, as `wgmma` has them.
pub(crate) type Fragment = [Val<U32>; 4];

/// Gives of the first or second half of the depth of two blocks the fragments of both planes, the lower one first.
pub(crate) type Steps = Box<dyn Fn(&mut Builder, usize) -> [Fragment; 2]>;

/// Has two blocks read, by their number.
pub(crate) type Twos = Box<dyn Fn(&mut Builder, usize) -> Steps>;

/// A format's rows for products of warpgroups.
#[derive(Clone, Copy)]
pub(crate) struct Warpgroup {
    /// What a unit of the upper plane is in units of the lower one.
    pub(crate) upper: u32,
    /// Reads what a super-block has for all its blocks.
    pub(super) begin: fn(&mut Builder, &Rows) -> Twos,
    /// The values of a super-block for each eight of columns, of the sums over both planes.
    pub(super) values: fn(&mut Builder, &Rows, &Columns<'_>, &[Vec<Sums>]) -> Vec<Values>,
}

impl Warpgroup {
    pub(crate) fn begin(&self, b: &mut Builder, rows: &Rows) -> Twos {
        (self.begin)(b, rows)
    }

    pub(crate) fn values(&self, b: &mut Builder, rows: &Rows, columns: &Columns<'_>, dots: Vec<Sums>) -> Vec<Values> {
        (self.values)(b, rows, columns, &[dots])
    }
}

/// A lane's half and its block, of two blocks.
pub(super) fn own(b: &mut Builder) -> (Val<U32>, Val<U32>) {
    let lane = b.lane();
    (b.and::<U32>(lane, 1), b.bfe::<U32>(lane, 1, 1))
}

/// The fragments of a step, of the words of both rows, by what makes planes of a row's word.
pub(super) fn fragments(
    b: &mut Builder,
    quants: &[[Val<U32>; 4]; 2],
    step: usize,
    mut planes: impl FnMut(&mut Builder, usize, Val<U32>) -> [Val<U32>; 2],
) -> [Fragment; 2] {
    let words: [[Val<U32>; 2]; 4] = std::array::from_fn(|i| planes(b, i % 2, quants[i % 2][2 * step + i / 2]));
    [0, 1].map(|plane| words.map(|word| word[plane]))
}

/// What is added to two weights in half words before they are cut into bytes: the cut is signed by it.
pub(super) const RAISED: u32 = 0x8080_8080;
/// The unit of the upper of such bytes.
pub(super) const UPPER: u32 = 1 << 8;

/// Four quants, a byte each, times `scale`, plus an addend less [`RAISED`] in each half word: the lower and the upper byte of
/// each, signed, so that it is `lower + UPPER * upper`. It must fit 15 bits with its sign.
pub(super) fn cut(b: &mut Builder, quants: Val<U32>, scale: Val<U32>, addend: Val<U32>) -> [Val<U32>; 2] {
    let odd = b.shr::<U32>(quants, 8);
    let [even, odd] = [quants, odd].map(|word| {
        let two = b.and::<U32>(word, 0x00ff_00ff);
        b.mad::<U32>(two, scale, addend)
    });
    [0x6240, 0x7351].map(|bytes| {
        let word = b.prmt(even, odd, bytes);
        b.xor::<U32>(word, 0x8080_8080)
    })
}
