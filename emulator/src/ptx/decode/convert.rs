//! Moves and conversions.

use super::super::ast::Arg;
use super::operands::width;
use super::values::ROUND;
use super::{Decoder, Res, Text};
use crate::exec::access::generic;
use crate::exec::float::Round;
use crate::exec::inst::*;
use crate::exec::scalar::{self, Ctl};
use crate::exec::step::Flow;
use crate::exec::values::{Piece, VALUES};
use crate::machine::fault::FaultKind;
use crate::machine::lanes::Lanes;
use crate::machine::layout::RANK;
use crate::machine::types::{Space, Ty};
use crate::memory::{LOCAL_BASE, PARAM_BASE, SHARED_BASE, WINDOW};

/// Rounding modes that give integral values.
const INTEGRAL: &[(&str, Round)] =
    &[("rni", Round::Near), ("rzi", Round::Zero), ("rmi", Round::Down), ("rpi", Round::Up)];

/// The untyped bits of a type's size, 32 at least.
pub(super) fn bits(ty: Ty) -> Ty {
    if ty.bytes() == 8 { Ty::B64 } else { Ty::B32 }
}

impl Decoder<'_> {
    pub(super) fn convert(&mut self, t: &mut Text<'_>) -> Res<bool> {
        match t.name {
            "mov" => self.mov(t)?,
            "cvta" => {
                let to = t.take("to");
                let base = match t.space() {
                    Space::Generic => return t.fail(t.name, "needs a state space"),
                    Space::Global | Space::Const => 0,
                    Space::Shared => SHARED_BASE,
                    Space::Local => LOCAL_BASE,
                    Space::Param => PARAM_BASE,
                };
                t.require("u64")?;
                t.arity(2)?;
                let (a, b) = (self.pointer(&t.args[1], Ty::U64)?, self.constant(base, true));
                let d = self.dst(t, Ty::U64)?;
                self.piece(if to { Piece::Sub } else { Piece::Add }, Ty::U64, &[d, a, b])?;
            }
            "mapa" => {
                t.skip("shared::cluster");
                let ty = t.expect(&[Ty::U32, Ty::U64])?;
                t.arity(3)?;
                let (a, rank) = (self.pointer(&t.args[1], ty)?, self.src(&t.args[2], Ty::U32)?);
                let d = self.dst(t, ty)?;
                self.effect(move |cpu, site| {
                    let (cx, base) = (cpu.cx, if ty == Ty::U64 { SHARED_BASE } else { 0 });
                    for l in Lanes(site.m) {
                        let (rank, ranks) = (site.warp.lane32(cx.code, rank, l), cx.layout.ranks);
                        if rank >= ranks {
                            let message = format!("rank {rank}: the cluster has {ranks} blocks");
                            return Err(cpu.fault(FaultKind::IllegalInstruction, &site.at, Some(l), message));
                        }
                        let address = site.warp.lane(cx.code, (a, width(ty)), l);
                        let Some(offset) = address.checked_sub(base).filter(|offset| *offset < WINDOW) else {
                            let message = "mapa of an address that is not one of shared memory";
                            return Err(cpu.fault_at(FaultKind::OutOfBounds, &site.at, l, address, message));
                        };
                        let v = base + cx.layout.in_cluster(rank, offset & ((1 << RANK) - 1));
                        site.warp.set_lane(d, width(ty), l, v);
                    }
                    Ok(Flow::Next)
                });
            }
            "getctarank" => {
                t.skip("shared::cluster");
                let ty = t.expect(&[Ty::U32, Ty::U64])?;
                t.arity(2)?;
                let (a, d) = (self.pointer(&t.args[1], ty)?, self.dst(t, Ty::U32)?);
                self.act(move |cpu, site| {
                    for l in Lanes(site.m) {
                        let address = site.warp.lane(cpu.cx.code, (a, width(ty)), l) as u32;
                        let rank = (address >> RANK).checked_sub(1).unwrap_or(site.at.warp / cpu.cx.layout.warps);
                        site.warp.set_lane(d, W::W32, l, rank.into());
                    }
                });
            }
            "isspacep" => {
                let space = t.space();
                t.ensure(space != Space::Generic, "needs a state space")?;
                let operands = self.operands(t, &[Ty::Pred, Ty::U64])?;
                self.lane(move |_, [address, ..]| (generic(address).0 == space).into(), operands);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn mov(&mut self, t: &mut Text<'_>) -> Res<()> {
        let ty = t.ty()?;
        t.arity(2)?;
        t.ensure(matches!(ty.bytes(), 2 | 4 | 8), "type that this instruction does not have")?;
        match (&t.args[0], &t.args[1]) {
            (_, Arg::Vector(parts)) if (parts.len(), ty.bytes()) == (4, 8) => {
                let parts = parts.iter().map(|part| self.src(part, Ty::B16)).collect::<Res<Vec<R>>>()?;
                let mut words = [0; 2];
                for (word, pair) in words.iter_mut().zip(parts.chunks(2)) {
                    let slots = |d| [d, pair[0], pair[1]];
                    *word = self.made(Ty::B32, |decoder, d| decoder.piece(Piece::Halves, Ty::B32, &slots(d)))?;
                }
                let [low, high] = words;
                let d = self.dst(t, ty)?;
                self.piece(Piece::Halves, Ty::B64, &[d, low, high])?;
            }
            (Arg::Vector(parts), whole) if (parts.len(), ty.bytes()) == (4, 8) => {
                let whole = self.src(whole, ty)?;
                let halves = [Piece::LowerHalf, Piece::UpperHalf];
                for (pair, half) in parts.chunks(2).zip(halves) {
                    let word = self.made(Ty::B32, |decoder, d| decoder.piece(half, Ty::B64, &[d, whole]))?;
                    for (part, half) in pair.iter().zip(halves) {
                        let d = self.element(part, Ty::B16, true)?;
                        self.piece(half, Ty::B32, &[d, word])?;
                    }
                }
            }
            (_, Arg::Vector(parts)) => {
                let (half, [low, high]) = self.halves(ty, parts)?;
                let (low, high) = (self.src(low, half)?, self.src(high, half)?);
                let d = self.dst(t, ty)?;
                self.piece(Piece::Halves, bits(ty), &[d, low, high])?;
            }
            (Arg::Vector(parts), whole) => {
                let (element, parts) = self.halves(ty, parts)?;
                let whole = self.src(whole, ty)?;
                // The source may be one of the destinations only as the last to be written; a copy avoids the question.
                let whole = self.made(ty, |decoder, d| decoder.copy(ty, d, whole))?;
                for (arg, half) in parts.iter().zip([Piece::LowerHalf, Piece::UpperHalf]) {
                    if !matches!(arg, Arg::Word(w) if w == "_") {
                        let d = self.element(arg, element, true)?;
                        self.piece(half, bits(ty), &[d, whole])?;
                    }
                }
            }
            (_, a) => {
                let a = self.pointer(a, ty)?;
                let d = self.dst(t, ty)?;
                self.copy(ty, d, a)?;
            }
        }
        Ok(())
    }

    /// The two halves of a value in braces, and their type.
    fn halves<'a>(&self, ty: Ty, parts: &'a [Arg]) -> Res<(Ty, &'a [Arg; 2])> {
        match (ty.bytes(), parts.try_into()) {
            (8, Ok(parts)) => Ok((Ty::B32, parts)),
            (4, Ok(parts)) => Ok((Ty::B16, parts)),
            _ => self.fail(Arg::Vector(parts.to_vec()).to_string(), "number of parts that this type does not have"),
        }
    }

    /// Pushes a move.
    pub(super) fn copy(&mut self, ty: Ty, d: R, a: R) -> Res<()> {
        self.piece(Piece::Move, bits(ty), &[d, a])
    }

    /// `cvt` between scalar types.
    pub(super) fn cvt(&mut self, t: &mut Text<'_>, to: Ty) -> Res<()> {
        let (integral, round) = (t.pick(INTEGRAL), t.pick(ROUND));
        let (ftz, sat) = (t.take("ftz"), t.take("sat"));
        let from = t.ty()?;
        let scalar_type = |t: Ty| t.integer() || (t.float() && t != Ty::TF32);
        t.ensure(scalar_type(to) && scalar_type(from), "conversion that is not known")?;
        let narrowing = to.bytes() < from.bytes() || to == Ty::BF16;
        let rounds = match (from.float(), to.float()) {
            (false, false) => round.is_none() && integral.is_none(),
            (true, false) => integral.is_some() && round.is_none(),
            (false, true) => round.is_some_and(|r| r != Round::Away) && integral.is_none(),
            (true, true) if to == from => round.is_none(),
            (true, true) => (round.is_some() || !narrowing) && integral.is_none(),
        };
        t.ensure(rounds, "rounding modifier is missing, or not one of this conversion")?;
        t.arity(2)?;
        let (a, source) = self.loose(&t.args[1], from, false)?;
        let (d, have) = self.loose(&t.args[0], to, true)?;
        // The vectorised forms are those without further modifiers, between registers of the types' own sizes (a source
        // may be wider within its slot).
        let exact = source.bytes() == from.bytes() || source.bytes() <= 4 && from.bytes() <= 4;
        if exact
            && have.bytes() == to.bytes()
            && let Some(value) = VALUES.get(&(t.opcode, to))
        {
            self.row(value, &[d, a]);
            return Ok(());
        }
        let (round, integral) = (integral.or(round).unwrap_or(Round::Near), integral.is_some());
        let c = Ctl { from, to, round, ftz, sat, relu: false, integral, seed: None };
        // A destination wider than the type is extended as the type says.
        let mask = u64::MAX >> (64 - have.bits());
        let a = (a, width(source));
        self.lane(move |_, a| scalar::cvt(&c, a) & mask, [(d, width(have)), a, a, a, a]);
        Ok(())
    }
}
