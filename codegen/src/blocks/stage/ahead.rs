//! A lane's elements of the next super-blocks that its warp stages, on their way to registers.

use super::{Factors, Source, eight};
use crate::blocks::exchange::{FOURS, Handed, Words};
use crate::ptx::{Builder, F32, Global, LoadKind, Size, U32, Val, Var};
use kiln_shape::SUPER_BLOCK;

/// The elements that a warp has asked for, and how more are asked for.
pub(crate) struct Asked {
    ahead: Ahead,
    /// Factors of the elements. Those that are not given are 1, which changes no bit.
    factors: Option<Vec<Eight>>,
    source: Source,
    /// The lane's part of the factors.
    gamma: Option<Factors>,
    super_blocks: Size,
    together: u32,
}

enum Ahead {
    /// None: they are asked for where they are used.
    None,
    Floats(Vec<Eight>),
    /// Those that may come through the exchange.
    Words(Vec<Words>, Handed),
}

/// A lane's part of a vector: where its first element is, and its first word if the vector comes through the exchange.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    elements: Global<F32>,
    words: Option<Global<F32>>,
}

impl Asked {
    /// Nothing yet of `super_blocks` super-blocks, which a warp stages so many together.
    pub(super) fn none(b: &mut Builder, source: &Source, super_blocks: Size, together: u32) -> Asked {
        let lane = b.lane();
        let eights = |b: &mut Builder, value: f32| (0..together).map(|_| Eight::new(b, value)).collect();
        let ahead = match source.handed {
            None if together == 1 => Ahead::None,
            None => Ahead::Floats(eights(b, 0.0)),
            Some(handed) => Ahead::Words((0..together).map(|_| Words::new(b, 2, 4)).collect(), handed),
        };
        let gamma = source.gamma.map(|of| Factors { gamma: b.byte_index(of.gamma, lane, 32), ..of });
        let factors = gamma.map(|_| eights(b, 1.0));
        Asked { ahead, factors, source: *source, gamma, super_blocks, together }
    }

    /// The lane's part of a vector.
    pub(super) fn part(&self, b: &mut Builder, x: Global<F32>) -> Part {
        let lane = b.lane();
        let words = self.source.handed.map(|_| b.byte_index(x, lane, 16));
        Part { elements: b.byte_index(x, lane, 32), words }
    }

    /// Super-blocks that a warp stages together.
    pub(super) const fn together(&self) -> u32 {
        self.together
    }

    /// The super-blocks that are staged.
    pub(super) const fn super_blocks(&self) -> Size {
        self.super_blocks
    }

    /// The vector whose elements were asked for first.
    pub(super) const fn source(&self) -> &Source {
        &self.source
    }

    /// The first super-block of the warp's first round.
    pub(super) fn first(&self, b: &mut Builder) -> Val<U32> {
        let warp = b.warp_id();
        if self.source.handed.is_none() || b.warps() != 7 {
            return b.mul::<U32>(warp, self.together);
        }
        // Beside a producer the fourth of seven warps has a quarter of the multiprocessor for itself: it comes first.
        let (is_before, is_fourth) = (b.setp_lt::<U32>(warp, 3), b.setp_eq(warp, 3));
        let next = b.add::<U32>(warp, 1);
        let place = b.selp::<U32>(next, warp, is_before);
        let place = b.selp::<U32>(0, place, is_fourth);
        b.mul::<U32>(place, self.together)
    }

    /// Asks for the elements of the round that begins with super-block `sb`, if they are to be asked for before they are
    /// used. What a super-block behind the last one is made of does not matter: there is room for it, and nothing reads it.
    pub(super) fn ask(&self, b: &mut Builder, part: Part, sb: Val<U32>) {
        if matches!(self.ahead, Ahead::None) {
            return;
        }
        let of_x = b.byte_index(part.elements, sb, 4 * SUPER_BLOCK);
        let of_gamma = self.gamma_of(b, sb);
        for n in 0..self.together as usize {
            let number = if n == 0 { sb } else { b.add::<U32>(sb, n as u32) };
            let there = b.setp_lt::<U32>(number, self.super_blocks);
            let at = (sb, n);
            let ask = |b: &mut Builder| {
                let kind = self.source.kind;
                match &self.ahead {
                    Ahead::None => {}
                    Ahead::Floats(ahead) => {
                        let found = self.eight_of(b, of_x, at, kind);
                        ahead[n].set(b, &found);
                    }
                    Ahead::Words(ahead, handed) => b.if_else(
                        handed.is,
                        |b| {
                            let at = words_of(b, part, at);
                            ahead[n].ask(b, &at);
                        },
                        |b| {
                            let found = self.eight_of(b, of_x, at, kind);
                            ahead[n].set(b, &found);
                        },
                    ),
                }
                self.ask_factors(b, of_gamma, at);
            };
            b.if_(there, ask);
        }
    }

    /// The elements of the round that begins with super-block `sb`, once they are there.
    pub(super) fn take(&self, b: &mut Builder, part: Part, sb: Val<U32>) -> Vec<[Val<F32>; 8]> {
        match &self.ahead {
            Ahead::None => {
                let of_x = b.byte_index(part.elements, sb, 4 * SUPER_BLOCK);
                let of_gamma = self.gamma_of(b, sb);
                let rounds = 0..self.together as usize;
                let one = |n| {
                    self.ask_factors(b, of_gamma, (sb, n));
                    self.eight_of(b, of_x, (sb, n), self.source.kind)
                };
                rounds.map(one).collect()
            }
            Ahead::Floats(ahead) => ahead.iter().map(|ahead| ahead.get(b)).collect(),
            Ahead::Words(ahead, Handed { exchange, .. }) => {
                let mut found = Vec::new();
                // Before sm_90 registers are short.
                let at_once = if b.target().sm() >= 90 { 2 } else { 1 };
                for (number, words) in ahead.chunks(at_once).enumerate() {
                    let at = [0, 1].map(|n| words_of(b, part, (sb, at_once * number + n)));
                    let at = &at.as_flattened()[..2 * words.len()];
                    found.extend(exchange.wait_for(b, &Words::joined(words), at));
                }
                found.as_chunks::<8>().0.to_vec()
            }
        }
    }

    /// The factors of the elements that were taken last.
    pub(super) fn factors(&self, b: &mut Builder) -> Option<Vec<[Val<F32>; 8]>> {
        self.factors.as_ref().map(|factors| factors.iter().map(|factors| factors.get(b)).collect())
    }

    fn gamma_of(&self, b: &mut Builder, sb: Val<U32>) -> Option<Factors> {
        self.gamma.map(|of| Factors { gamma: b.byte_index(of.gamma, sb, 4 * SUPER_BLOCK), ..of })
    }

    fn ask_factors(&self, b: &mut Builder, of: Option<Factors>, at: (Val<U32>, usize)) {
        let (Some(Factors { gamma, given }), Some(factors)) = (of, &self.factors) else { return };
        let ask = |b: &mut Builder| {
            let found = self.eight_of(b, gamma, at, LoadKind::Constant);
            factors[at.1].set(b, &found);
        };
        match given {
            None => ask(b),
            Some(given) => b.if_(given, ask),
        }
    }

    /// A lane's eight of the `n`-th super-block of a round that begins with `sb`, whose first are at `of`.
    fn eight_of(&self, b: &mut Builder, of: Global<F32>, (sb, n): (Val<U32>, usize), kind: LoadKind) -> [Val<F32>; 8] {
        let lane = b.lane();
        let inside = self.source.left.map(|left| {
            let at = b.mul::<U32>(sb, SUPER_BLOCK);
            let at = b.mad::<U32>(lane, 8, at);
            let at = if n == 0 { at } else { b.add::<U32>(at, n as u32 * SUPER_BLOCK) };
            b.setp_lt(at, left)
        });
        eight(b, of.at(n as u32 * SUPER_BLOCK), inside, kind)
    }
}

/// The places of a lane's words of the `n`-th super-block of a round that begins with `sb`.
fn words_of(b: &mut Builder, part: Part, (sb, n): (Val<U32>, usize)) -> [Global<F32>; 2] {
    let first = part.words.unwrap_or(part.elements);
    let words = b.byte_index(first, sb, 4 * SUPER_BLOCK).at(n as u32 * SUPER_BLOCK);
    [words, words.at(FOURS)]
}

/// Eight elements of a lane.
#[derive(Debug, Clone, Copy)]
struct Eight([Var<F32>; 8]);

impl Eight {
    fn new(b: &mut Builder, value: f32) -> Eight {
        Eight([(); 8].map(|()| b.var::<F32>(value)))
    }

    fn set(&self, b: &mut Builder, values: &[Val<F32>]) {
        self.0.iter().zip(values).for_each(|(own, value)| b.set(*own, *value));
    }

    fn get(&self, b: &mut Builder) -> [Val<F32>; 8] {
        self.0.map(|own| b.get(own))
    }
}
