//! Rows of a format as a warpgroup's product has them: each weight times its sub-block's scale, in two planes of signed bytes.
//! Their products with a super-block's activations need no scales on the way: the sums are the integers of `int8`, and
//! the same floats come of them.
//!
//! Of two blocks of 32 a lane has 16 neighbouring weights of each of its two rows: with `t = lane % 4` the first or second
//! half, by `t % 2`, of the first block or the second, by `t / 2`. They meet the same activations as columns lie in
//! `kiln_shape::columns`, whose order within two blocks is that of fragments for lanes.

use super::mma::{Sums, Values};
use super::{Columns, Rows};
use crate::ptx::{Builder, S32, U32, Val, Var};

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
    /// The values of a super-block for each eight of columns.
    pub(super) values: fn(&mut Builder, &Rows, &Columns<'_>, &Dots<'_>) -> Vec<Values>,
}

/// Gives the integers of an eight, the sums over both planes.
pub(super) type Dots<'a> = dyn Fn(&mut Builder, usize) -> Sums + 'a;

impl Warpgroup {
    pub(crate) fn begin(&self, b: &mut Builder, rows: &Rows) -> Twos {
        (self.begin)(b, rows)
    }

    /// The values of a super-block for each eight of columns, of its sums in the lower and the upper plane.
    pub(crate) fn values(
        &self,
        b: &mut Builder,
        rows: &Rows,
        columns: &Columns<'_>,
        [lower, upper]: [&[[Var<S32>; 4]]; 2],
    ) -> Vec<Values> {
        let unit = self.upper as i32;
        let dots = |b: &mut Builder, eight: usize| -> Sums {
            std::array::from_fn(|i| b.mad::<S32>(upper[eight][i], unit, lower[eight][i]))
        };
        (self.values)(b, rows, columns, &dots)
    }
}

/// Eights by which the first and the second step of one come before its third.
const FAR: usize = 2;
const NEAR: usize = 1;

/// Goes through some eights in three steps each, of which later ones of an eight come behind earlier ones of those after it:
/// what the first two wait for is there when the next begins.
pub(super) fn in_steps<T: Clone, U: Clone>(
    b: &mut Builder,
    eights: usize,
    first: impl Fn(&mut Builder, usize) -> T,
    second: impl Fn(&mut Builder, usize, &T) -> U,
    third: impl Fn(&mut Builder, usize, &T, &U) -> Values,
) -> Vec<Values> {
    let (mut begun, mut half): (Vec<T>, Vec<U>) = (Vec::new(), Vec::new());
    let mut values = Vec::new();
    for eight in 0..eights + FAR {
        if eight < eights {
            begun.push(first(b, eight));
        }
        if let Some(before) = eight.checked_sub(FAR - NEAR).filter(|before| *before < eights) {
            half.push(second(b, before, &begun[before]));
        }
        if let Some(before) = eight.checked_sub(FAR) {
            values.push(third(b, before, &begun[before], &half[before]));
        }
    }
    values
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
