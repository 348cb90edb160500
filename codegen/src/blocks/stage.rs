//! The activation vector in shared memory, laid out for the dot products of `dot`.
//!
//! `formats::activations` says how its elements are arranged.

mod ahead;

use super::company::{Column, Regions};
use super::exchange::Handed;
use super::quantise::{self, Rare};
use super::warp;
use crate::formats::{self, Apart, Form, Quantised, ScaleGroup, swizzle};
use crate::ptx::{Builder, F32, Global, LoadKind, Pred, Shared, Size, U32, U64, Val, Work};
pub(crate) use ahead::Asked;
use ahead::Part;
use kiln_shape::{Numerics, SUPER_BLOCK, WeightType};

/// The staged vector, in each form that products with it may take.
#[derive(Debug, Clone)]
pub(crate) struct Staged {
    forms: Vec<(Form, Shared<F32>)>,
    /// Super-blocks for which there is room in each form: as many as warps stage together, or a multiple.
    super_blocks: Size,
    /// How many a warp stages together.
    together: u32,
    /// The shared memory that it takes, and its words.
    base: Shared<F32>,
    room: u32,
    /// `[k / 256]`: the sum of squares of the input (before gamma) of each super-block.
    squares: Shared<F32>,
    /// Where second planes are, if not behind the first.
    apart: Option<Apart>,
}

/// Words of shared memory that a super-block takes, and those that a vector takes besides.
const fn words(form: Form, apart: bool) -> (u32, u32) {
    match form {
        Form::Float => (SUPER_BLOCK, 0),
        Form::Int8(_) => formats::words_of_bytes(apart),
    }
}

/// The forms of a vector.
#[derive(Debug, Clone)]
pub(crate) struct Forms {
    /// Those that it may take, each once.
    pub(crate) all: Vec<Form>,
    /// Whether a launch wants one of them only, so that they may have the same place.
    pub(crate) one: One,
    /// Super-blocks that a warp stages together, for which there must be room: one, two or four.
    pub(crate) together: u32,
    /// Where the address of device memory for second planes stands, where these do not stand behind the first.
    pub(crate) apart: Option<Shared<U64>>,
}

/// When a launch wants one form only.
#[derive(Debug, Clone, Copy)]
pub(crate) enum One {
    Always,
    Never,
    /// The same in the whole block.
    When(Val<Pred>),
}

impl Forms {
    /// These, with two super-blocks together where they are rounded.
    pub(crate) fn new(all: Vec<Form>, one: One) -> Forms {
        let together = all.iter().map(|form| if *form == Form::Float { 1 } else { 2 }).max().unwrap_or(1);
        Forms { all, one, together, apart: None }
    }

    /// Super-blocks that are staged at once, at most: what every target has the shared memory for.
    pub(crate) fn part(&self) -> u32 {
        if self.all.contains(&Form::Float) { 48 } else { 76 }
    }

    /// Words of shared memory that a vector of so many super-blocks takes in one form, or in all of them.
    pub(crate) fn words(&self, super_blocks: u32, one: bool) -> u32 {
        let super_blocks = super_blocks.next_multiple_of(self.together);
        let sizes = self.all.iter().map(|form| {
            let (each, besides) = words(*form, self.apart.is_some());
            each * super_blocks + besides
        });
        if one { sizes.max().unwrap_or(0) } else { sizes.sum() }
    }
}

impl Staged {
    /// Takes `room` words of shared memory for so many super-blocks, `most` of them at most.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, forms: &Forms, room: u32, super_blocks: Size, most: u32) -> Staged {
        let squares = room.next_multiple_of(4);
        let room = Staged::bytes_of(room, most) / 4;
        let base = b.dynamic_shared::<F32>(room);
        let together = forms.together;
        let rounds = b.size_div_ceil(super_blocks, together);
        let super_blocks = b.size_mul(rounds, together);
        let mut before = Size::Const(0);
        let mut places = Vec::new();
        for form in &forms.all {
            let at = match (forms.one, before) {
                (One::Always, _) => Size::Const(0),
                (One::Never, at) | (One::When(_), at @ Size::Const(0)) => at,
                (One::When(one), at) => Size::Reg(b.selp::<U32>(0, at, one)),
            };
            places.push((*form, b.index(base, at)));
            let (each, besides) = words(*form, forms.apart.is_some());
            let own = b.size_mul(super_blocks, each);
            let own = b.size_add(own, besides);
            before = b.size_add(before, own);
        }
        let apart = forms.apart.map(|address| Apart { address, staged: base });
        Staged { forms: places, super_blocks, together, base, room, squares: base.at(squares), apart }
    }

    /// Bytes that one takes of `room` words and at most so many super-blocks.
    pub(crate) const fn bytes_of(room: u32, most: u32) -> u32 {
        4 * (room.next_multiple_of(4) + most.next_multiple_of(4))
    }

    /// The shared memory that it takes.
    pub(crate) const fn base(&self) -> Shared<F32> {
        self.base
    }

    /// Bytes of shared memory that it takes.
    pub(crate) fn bytes(&self) -> u32 {
        4 * self.room
    }

    /// The same vector's place, so many bytes behind this one.
    pub(crate) fn behind(&self, b: &mut Builder, bytes: Val<U32>) -> Staged {
        let forms = self.forms.iter().map(|(form, at)| (*form, b.byte_index(*at, bytes, 1))).collect();
        Staged { forms, squares: b.byte_index(self.squares, bytes, 1), ..*self }
    }

    /// The same with the sums of squares elsewhere.
    pub(crate) fn with_squares(&self, squares: Shared<F32>) -> Staged {
        Staged { squares, ..self.clone() }
    }

    /// The vector as f32, swizzled.
    #[track_caller]
    pub(crate) fn floats(&self, b: &mut Builder) -> Shared<F32> {
        self.place(b, Form::Float)
    }

    /// The vector rounded to bytes.
    #[track_caller]
    pub(crate) fn quantised(&self, b: &mut Builder, group: ScaleGroup) -> Quantised {
        let words = self.place(b, Form::Int8(group)).cast::<U32>();
        Quantised::new(b, words, self.super_blocks, self.apart)
    }

    #[track_caller]
    fn place(&self, b: &mut Builder, form: Form) -> Shared<F32> {
        let place = self.forms.iter().find(|(of, _)| *of == form);
        if place.is_none() {
            b.complain(format!("the vector is not staged as {form:?}"));
        }
        place.map_or(self.squares, |(_, at)| *at)
    }

    /// Asks for the first elements that each warp stages of `super_blocks` super-blocks of `from`, starting at its element 0.
    #[track_caller]
    pub(crate) fn ask(&self, b: &mut Builder, from: &Source, super_blocks: Size) -> Asked {
        let asked = Asked::none(b, from, super_blocks, self.together);
        let (part, first) = (asked.part(b, from.x), asked.first(b));
        asked.ask(b, part, first);
        asked
    }

    /// Stages what was asked for, times `gamma` where it is given, with the warps of the block, in the forms that are wanted. Of
    /// a vector that ends within the last super-block `left` elements are there; zeros are staged behind them. A barrier must
    /// follow.
    #[track_caller]
    pub(crate) fn fill(&self, b: &mut Builder, asked: &Asked, wanted: Wanted) {
        let part = asked.part(b, asked.source().x);
        self.rounds(b, asked, part, wanted);
    }

    /// The same for the vectors of all columns, which `x_of` finds; that of the first one was asked for. Runs `beside` for
    /// each of them.
    #[track_caller]
    pub(crate) fn fill_columns(
        &self,
        b: &mut Builder,
        asked: &Asked,
        wanted: Wanted,
        regions: &Regions,
        x_of: impl FnOnce(&mut Builder, Val<U32>) -> Global<F32>,
        beside: impl FnOnce(&mut Builder, Column),
    ) {
        let x = b.address(asked.source().x);
        let x = b.var::<U64>(x);
        regions.each(b, |b, column| {
            beside(b, column);
            let own = b.get(x);
            let own = b.global_ptr(own);
            let part = asked.part(b, own);
            self.behind(b, column.shift).rounds(b, asked, part, wanted);
            let (more, _) = regions.next(b, column);
            b.if_(more, |b| {
                let number = b.add::<U32>(column.number, 1);
                let next = x_of(b, number);
                let (part, first) = (asked.part(b, next), asked.first(b));
                asked.ask(b, part, first);
                let next = b.address(next);
                b.set(x, next);
            });
        });
    }

    /// Stages a lane's part of a vector by rounds, in which a warp stages super-blocks that follow each other. Where they are
    /// rounded, the next round's elements are asked for before that, and the chains of two super-blocks run beside each other.
    fn rounds(&self, b: &mut Builder, asked: &Asked, part: Part, wanted: Wanted) {
        let (lane, together) = (b.lane(), asked.together());
        // The persistent decoder, which has an exchange, has no register to spare.
        let rare = if asked.source().handed.is_none() { Rare::Apart } else { Rare::Within };
        // The lane that writes a sum of squares has an address of its own, which is no constant.
        let leaders = 32 / together.min(2);
        let number = b.div::<U32>(lane, leaders);
        let squares = b.index(self.squares, number);
        let place = b.and::<U32>(lane, leaders - 1);
        let leader = b.setp_eq(place, 0);
        let floats = self.forms.iter().find(|(form, _)| *form == Form::Float).map(|(_, at)| Floats::new(b, *at));
        let rounded: Vec<_> = self
            .forms
            .iter()
            .map(|(form, _)| match form {
                Form::Float => None,
                Form::Int8(group) => {
                    let to = self.quantised(b, *group);
                    let own = to.own(b, *group, together.min(2) as usize);
                    Some((*group, to, own))
                }
            })
            .collect();
        let (first, step) = (asked.first(b), b.warps() * together);
        b.for_range(first, asked.super_blocks(), step, |b, sb| {
            // Of several forms a launch wants some: no count would be that of any.
            if let [(form, _)] = self.forms[..] {
                match (form, rare) {
                    (Form::Float, _) => b.each_iteration(Work::Elements(8 * together)),
                    (Form::Int8(_), Rare::Apart) => b.each_iteration(Work::Rounded(8 * together)),
                    (Form::Int8(_), Rare::Within) => {}
                }
            }
            let mut values = asked.take(b, part, sb);
            let squares_of_lane = asked.factors(b).map(|factors| {
                let of_lane: Vec<_> = values.iter().map(|values| square_of_lane(b, values)).collect();
                for (values, factors) in values.iter_mut().zip(factors) {
                    *values = std::array::from_fn(|i| b.mul(values[i], factors[i]));
                }
                of_lane
            });
            let next = b.add::<U32>(sb, step);
            asked.ask(b, part, next);
            for ((form, _), rounded) in self.forms.iter().zip(&rounded) {
                let store = |b: &mut Builder| {
                    // Its chain of shuffles runs beside those of rounding. Of what is not normalised nothing reads the sum.
                    let sums: Vec<_> = squares_of_lane.iter().flat_map(|of_lane| of_lane.chunks(2)).collect();
                    let sum = |of_lane: &[Val<F32>]| match *of_lane {
                        [first, second] => warp::sum_two(b, [first, second]),
                        _ => warp::sum(b, of_lane[0], 32),
                    };
                    let sums: Vec<Val<F32>> = sums.into_iter().map(sum).collect();
                    match (rounded, floats) {
                        (None, Some(floats)) => {
                            for (n, values) in values.iter().enumerate() {
                                floats.store(b, (sb, n), *values);
                            }
                        }
                        (None, None) => {}
                        (Some((group, to, own)), _) => {
                            let own = own.at(b, sb);
                            // The chains of two pairs run beside each other as well.
                            match values[..] {
                                [one] => quantise::super_blocks(b, [one], to, own, *group, rare),
                                _ => {
                                    let begun: Vec<_> = values
                                        .chunks_exact(2)
                                        .enumerate()
                                        .map(|(pair, two)| {
                                            quantise::begin(b, [two[0], two[1]], own.further(2 * pair as u32), *group)
                                        })
                                        .collect();
                                    begun.iter().for_each(|begun| begun.finish(b, to, rare));
                                }
                            }
                        }
                    }
                    for (pair, square) in sums.into_iter().enumerate() {
                        let to = b.index(squares, sb).at(2 * pair as u32);
                        b.if_(leader, |b| b.st(to, square));
                    }
                };
                match wanted.of(b, *form) {
                    Some(wanted) => b.if_(wanted, store),
                    None => store(b),
                }
            }
        });
    }

    /// `1 / sqrt(mean(x^2) + eps)` of the staged vector of `k` elements, in every thread. The sums of its super-blocks are
    /// added from left to right. Needs a barrier between `fill` and itself.
    #[track_caller]
    pub(crate) fn inverse_rms(&self, b: &mut Builder, super_blocks: Size, k: Size, eps: Val<F32>) -> Val<F32> {
        let total = b.var::<F32>(0.0);
        let add = |b: &mut Builder, square: Val<F32>| {
            let next = b.add(total, square);
            b.set(total, next);
        };
        match super_blocks {
            Size::Const(count @ 0..=64) => {
                for first in (0..count / 4 * 4).step_by(4) {
                    let squares: [Val<F32>; 4] = b.ld_vector(self.squares.at(first), LoadKind::Ordinary);
                    squares.into_iter().for_each(|square| add(b, square));
                }
                for last in count / 4 * 4..count {
                    let square = b.ld(self.squares.at(last), LoadKind::Ordinary);
                    add(b, square);
                }
            }
            // The chain waits for shared memory once in eight.
            count => {
                let (all, mut done) = (b.mov::<U32>(count), b.mov::<U32>(0));
                for step in [8, 1] {
                    let whole = b.and::<U32>(all, !(step - 1));
                    b.for_range(done, whole, step, |b, sb| {
                        let at = b.index(self.squares, sb);
                        let squares: Vec<_> = (0..step).map(|i| b.ld(at.at(i), LoadKind::Ordinary)).collect();
                        squares.into_iter().for_each(|square| add(b, square));
                    });
                    done = whole;
                }
            }
        }
        let total = b.get(total);
        super::norm::inverse_rms(b, total, k, eps)
    }
}

/// The vector that is staged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    pub(crate) x: Global<F32>,
    /// Factors of its elements, where it is to be normalised.
    pub(crate) gamma: Option<Factors>,
    /// Its elements, where it may end within a super-block.
    pub(crate) left: Option<Val<U32>>,
    /// What loads of `x` may assume.
    pub(crate) kind: LoadKind,
    /// Where it may come through the exchange: then `x` is its first word.
    pub(crate) handed: Option<Handed>,
}

/// Factors of a vector's elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Factors {
    /// `[k]`.
    pub(crate) gamma: Global<F32>,
    /// Whether they are there, where the launch decides; the same in the whole block.
    pub(crate) given: Option<Val<Pred>>,
}

/// The forms that a launch wants.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted {
    /// Every one there is.
    All,
    /// Those of the types whose bits, by their numbers, are set; the same in the whole block.
    OfTypes(Val<U32>),
}

impl Wanted {
    /// Whether a form is wanted; none where it always is.
    #[track_caller]
    pub(crate) fn of(&self, b: &mut Builder, form: Form) -> Option<Val<Pred>> {
        let Wanted::OfTypes(bits) = *self else { return None };
        let of_form = WeightType::ALL.iter().filter(|ty| formats::form(**ty, Numerics::Fast) == form);
        let mask = of_form.fold(0, |mask, ty| mask | 1 << ty.id());
        let wanted = b.and::<U32>(bits, mask);
        Some(b.setp_ne(wanted, 0))
    }
}

/// Where a lane writes its elements as floats: the first or last two quads of chunk `lane / 2`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floats {
    first: Shared<F32>,
    second: Shared<F32>,
}

impl Floats {
    /// In super-blocks from `to` on.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, to: Shared<F32>) -> Floats {
        let lane = b.lane();
        let chunk = b.shr(lane, 1);
        let odd = b.and(lane, 1);
        let swizzle = swizzle(b, chunk);
        let quad = b.shl::<U32>(odd, 1);
        let quad = b.xor::<U32>(quad, swizzle);
        let to = b.index(to, 0);
        let to = b.byte_index(to, chunk, 64);
        let first = b.byte_index(to, quad, 16);
        let quad = b.xor(quad, 1);
        Floats { first, second: b.byte_index(to, quad, 16) }
    }

    /// Stores those of the `n`-th super-block from `super_block` on.
    #[track_caller]
    pub(crate) fn store(&self, b: &mut Builder, (super_block, n): (Val<U32>, usize), values: [Val<F32>; 8]) {
        let [v0, v1, v2, v3, v4, v5, v6, v7] = values;
        let [first, second] = [self.first, self.second]
            .map(|at| b.byte_index(at, super_block, 4 * SUPER_BLOCK).at(n as u32 * SUPER_BLOCK));
        b.st_vector(first, [v0, v1, v2, v3]);
        b.st_vector(second, [v4, v5, v6, v7]);
    }
}

/// The sums of squares of two super-blocks, of which a lane has eight elements each, as [`warp::sum_two`] gives them.
pub(super) fn squares(b: &mut Builder, values: [[Val<F32>; 8]; 2]) -> Val<F32> {
    let squares = values.map(|values| square_of_lane(b, &values));
    warp::sum_two(b, squares)
}

/// What a lane's eight are of it.
pub(crate) fn square_of_lane(b: &mut Builder, values: &[Val<F32>; 8]) -> Val<F32> {
    let first = b.mul(values[0], values[0]);
    values[1..].iter().fold(first, |square, value| b.fma(*value, *value, square))
}

/// Eight floats from `at`, or zeros where they are not inside.
pub(crate) fn eight(b: &mut Builder, at: Global<F32>, inside: Option<Val<Pred>>, kind: LoadKind) -> [Val<F32>; 8] {
    let load = |b: &mut Builder| -> [Val<F32>; 8] {
        let low: [Val<F32>; 4] = b.ld_vector(at, kind);
        let high: [Val<F32>; 4] = b.ld_vector(at.at(4), kind);
        [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]]
    };
    let Some(inside) = inside else { return load(b) };
    let values = [(); 8].map(|()| b.var::<F32>(0.0));
    b.if_(inside, |b| {
        for (value, loaded) in values.iter().zip(load(b)) {
            b.set(*value, loaded);
        }
    });
    values.map(|value| b.get(value))
}
