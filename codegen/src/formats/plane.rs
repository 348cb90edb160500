//! A super-block of activations as a dot product reads it: from shared memory, or from registers, where a lane holds it as
//! long as it meets the same one again.

use super::int8::{BESIDE_BYTES, Int8, LAST_WORDS, PLANE_BYTES, Quantised, SUMS_OF_32, ScaleGroup, Sums, Weights};
use crate::ptx::{Builder, F32, LoadKind, Ptr, Space, U32, Val, Var, Work, space};
use kiln_shape::SUPER_BLOCK;

/// A super-block in a plane: what a dot product reads.
pub(crate) enum Plane {
    Shared(StagedPlane),
    Device(StagedPlane<space::Global>),
    Held(Words<Val<U32>>),
}

/// A super-block in a plane, in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StagedPlane<S = space::Shared> {
    pub(super) activations: Ptr<S, U32>,
    pub(super) beside: Ptr<S, U32>,
}

/// A super-block in a plane, in registers.
pub(crate) struct Words<T> {
    /// 16 activations each.
    quads: Vec<[T; 4]>,
    /// The sums that the format takes, two to a word.
    sums: Vec<T>,
    /// One scale, or eight.
    scales: Vec<T>,
}

impl<T: Copy> Words<T> {
    fn map<U>(&self, mut f: impl FnMut(T) -> U) -> Words<U> {
        Words {
            quads: self.quads.iter().map(|quad| quad.map(&mut f)).collect(),
            sums: self.sums.iter().map(|word| f(*word)).collect(),
            scales: self.scales.iter().map(|word| f(*word)).collect(),
        }
    }

    fn each(&self) -> impl Iterator<Item = T> {
        self.quads.iter().flatten().chain(&self.sums).chain(&self.scales).copied()
    }
}

impl Plane {
    /// Activations `16 * quad .. 16 * quad + 16`.
    pub(super) fn quad(&self, b: &mut Builder, quad: u32) -> [Val<U32>; 4] {
        match self {
            Plane::Shared(from) => from.quad(b, quad),
            Plane::Device(from) => from.quad(b, quad),
            Plane::Held(words) => words.quads[quad as usize],
        }
    }

    /// The sums of each 32, two to a word.
    pub(super) fn sums_of_32(&self, b: &mut Builder) -> [Val<U32>; 4] {
        match self {
            Plane::Shared(from) => from.sums_of_32(b),
            Plane::Device(from) => from.sums_of_32(b),
            Plane::Held(words) => std::array::from_fn(|i| words.sums[i]),
        }
    }

    /// The sums of each 16, two to a word.
    pub(super) fn sums_of_16(&self, b: &mut Builder) -> [Val<U32>; 8] {
        match self {
            Plane::Shared(from) => from.eight(b),
            Plane::Device(from) => from.eight(b),
            Plane::Held(words) => std::array::from_fn(|i| words.sums[i]),
        }
    }

    /// The scale of all 256.
    pub(super) fn scale(&self, b: &mut Builder) -> Val<F32> {
        let scale = match self {
            Plane::Shared(from) => from.last_words(b)[0],
            Plane::Device(from) => from.last_words(b)[0],
            Plane::Held(words) => words.scales[0],
        };
        b.mov_bits(scale)
    }

    /// The scales of each 32.
    pub(super) fn scales(&self, b: &mut Builder) -> [Val<F32>; 8] {
        let scales = match self {
            Plane::Shared(from) => from.eight(b),
            Plane::Device(from) => from.eight(b),
            Plane::Held(words) => std::array::from_fn(|i| words.scales[i]),
        };
        scales.map(|word| b.mov_bits(word))
    }

    /// The scales of the first four 32, of a half.
    pub(super) fn four_scales(&self, b: &mut Builder) -> [Val<F32>; 4] {
        let scales = match self {
            Plane::Shared(from) => b.ld_vector(from.beside, LoadKind::Ordinary),
            Plane::Device(from) => b.ld_vector(from.beside, LoadKind::Ordinary),
            Plane::Held(words) => std::array::from_fn(|i| words.scales[i]),
        };
        scales.map(|word: Val<U32>| b.mov_bits(word))
    }
}

impl<S: Space> StagedPlane<S> {
    /// The plane so many bytes further on.
    fn moved(self, b: &mut Builder, bytes: Val<U32>) -> StagedPlane<S> {
        StagedPlane {
            activations: b.byte_index(self.activations, bytes, 1),
            beside: b.byte_index(self.beside, bytes, 1),
        }
    }

    fn quad(&self, b: &mut Builder, quad: u32) -> [Val<U32>; 4] {
        b.ld_vector(self.activations.at(4 * quad), LoadKind::Ordinary)
    }

    fn sums_of_32(&self, b: &mut Builder) -> [Val<U32>; 4] {
        b.ld_vector(self.activations.at(SUMS_OF_32 / 4), LoadKind::Ordinary)
    }

    /// The sums of each 16, or the scales of each 32.
    fn eight(&self, b: &mut Builder) -> [Val<U32>; 8] {
        let low: [Val<U32>; 4] = b.ld_vector(self.beside, LoadKind::Ordinary);
        let high: [Val<U32>; 4] = b.ld_vector(self.beside.at(4), LoadKind::Ordinary);
        std::array::from_fn(|i| if i < 4 { low[i] } else { high[i - 4] })
    }

    /// The number of planes behind it.
    pub(super) fn later(&self, b: &mut Builder) -> Val<U32> {
        let [_, later, ..] = self.last_words(b);
        later
    }

    /// Four words, of which the scale of all 256 and the number of planes behind are wanted: lanes' single words would meet in
    /// banks.
    fn last_words(&self, b: &mut Builder) -> [Val<U32>; 4] {
        b.ld_vector(self.beside.at(LAST_WORDS), LoadKind::Ordinary)
    }
}

/// A lane's activations of a super-block in registers: they stay while its super-block does.
pub(crate) struct Held {
    of: Int8,
    words: Words<Var<U32>>,
    /// Planes behind the first.
    later: Var<U32>,
    /// The addresses of the first plane.
    at: [Var<U32>; 2],
}

impl Held {
    /// Takes those of the super-block so many further on, or back, and so many bytes behind that. Counted from the one before
    /// it, since the assembler would compute the vector's place anew from the phase's number.
    pub(crate) fn go_on(&self, b: &mut Builder, super_blocks: Val<U32>, bytes: Option<Val<U32>>) {
        for (at, each) in self.at.into_iter().zip([PLANE_BYTES, BESIDE_BYTES]) {
            let next = b.mad::<U32>(super_blocks, each, at);
            let next = bytes.map_or(next, |bytes| b.add::<U32>(next, bytes));
            b.set(at, next);
        }
        let first = self.first(b);
        let (words, later) = self.of.load(b, first);
        self.take(b, &words);
        b.set(self.later, later);
    }

    /// The first plane, in shared memory.
    fn first(&self, b: &mut Builder) -> StagedPlane {
        let [activations, beside] = self.at.map(|at| b.get(at)).map(|at| b.shared_ptr::<U32>(at));
        StagedPlane { activations, beside }
    }

    /// As [`Int8::dot`] of the super-block whose activations are held. Those of the second plane take their registers for a
    /// while.
    pub(crate) fn dot(&self, b: &mut Builder, weights: &Weights, x: &Quantised) -> Val<F32> {
        let second = |b: &mut Builder, weights: &Weights, round: Val<U32>| {
            let first = self.first(b).moved(b, round);
            let plane = x.later(b, first, self.later);
            (self.of.dot)(b, weights, &plane)
        };
        let second = self.of.of_second(b, weights, self.later, second);
        let first = (self.of.dot)(b, weights, &Plane::Held(self.words.map(Var::now)));
        self.of.both(b, first, second, self.later)
    }

    fn take(&self, b: &mut Builder, words: &Words<Val<U32>>) {
        self.words.each().zip(words.each()).for_each(|(to, word)| b.set(to, word));
    }
}

impl Int8 {
    /// The activations of a super-block, in registers of the lane.
    pub(crate) fn hold(&self, b: &mut Builder, x: &Quantised, super_block: Val<U32>) -> Held {
        let first = x.at(b, super_block);
        let (words, later) = self.load(b, first);
        let at = [b.shared_address(first.activations), b.shared_address(first.beside)];
        let at = at.map(|at| b.var::<U32>(at));
        Held { of: *self, words: words.map(|word| b.var(word)), later: b.var(later), at }
    }

    /// The dot product with the first plane, at `first`, plus that with the second.
    pub(super) fn dot_apart(&self, b: &mut Builder, weights: &Weights, x: &Quantised, first: StagedPlane) -> Val<F32> {
        let later = first.later(b);
        let later = b.var::<U32>(later);
        let second = self.of_second(b, weights, later, |b, weights, round| {
            let first = first.moved(b, round);
            let plane = x.later(b, first, later);
            (self.dot)(b, weights, &plane)
        });
        let first = (self.dot)(b, weights, &Plane::Shared(first));
        self.both(b, first, second, later)
    }

    /// What `dot` makes of the second plane, which few super-blocks have and which has a text of its own. It comes before that of
    /// the first, or the assembler would keep what it unpacks for it.
    fn of_second(
        &self,
        b: &mut Builder,
        weights: &Weights,
        later: Var<U32>,
        dot: impl FnOnce(&mut Builder, &Weights, Val<U32>) -> Val<F32>,
    ) -> Var<F32> {
        let has = b.setp_ne(later, 0);
        let any = b.vote_any(has);
        let second = b.var::<F32>(0.0);
        b.if_(any, |b| {
            // A loop of one round, which the assembler places apart and which is counted apart. Weights and addresses seem to
            // depend on the round, or it would do before what it can, and have no registers left.
            let round = b.var::<U32>(0);
            b.do_while(|b| {
                b.each_iteration(Work::Few);
                b.bar_warp_sync();
                let round_now = b.get(round);
                let weights = weights.changed_by(b, round_now);
                let part = dot(b, &weights, round_now);
                b.set(second, part);
                let next = b.add::<U32>(round, 1);
                b.set(round, next);
                let more = b.setp_lt(next, 1);
                b.vote_any(more)
            });
        });
        second
    }

    /// The sum of both planes' products, where there is a second one.
    fn both(&self, b: &mut Builder, first: Val<F32>, second: Var<F32>, later: Var<U32>) -> Val<F32> {
        let has = b.setp_ne(later, 0);
        let zero = b.mov::<F32>(0.0);
        let sum = b.add(zero, first);
        let both = b.add(sum, second);
        b.selp::<F32>(both, sum, has)
    }

    /// What a dot product takes of a plane: activations, sums, scales; and the number of planes behind it.
    fn load<S: Space>(&self, b: &mut Builder, from: StagedPlane<S>) -> (Words<Val<U32>>, Val<U32>) {
        let quads = (0..SUPER_BLOCK / 16).map(|quad| from.quad(b, quad)).collect();
        let sums = match self.sums {
            None => Vec::new(),
            Some(Sums::Of16) => from.eight(b).to_vec(),
            Some(Sums::Of32) => from.sums_of_32(b).to_vec(),
        };
        let [scale, later, ..] = from.last_words(b);
        let scales = match self.group {
            ScaleGroup::Of256 => vec![scale],
            ScaleGroup::Of32 => from.eight(b).to_vec(),
        };
        (Words { quads, sums, scales }, later)
    }
}
