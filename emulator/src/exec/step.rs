//! The interpreter: runs the parts of one warp, instruction by instruction, on 32-lane arrays.
//!
//! One body, compiled twice: for processors with AVX2 and FMA, where the loops become vector instructions, and for any.

use super::block::{Common, Stop, set_index};
use super::fault::FaultKind;
use super::float::{self, Round, canonical, flush};
use super::inst::*;
use super::lanes::{Lanes, Slot, map1, map2, map3, test2};
use super::scalar;
use super::warp::{Part, State, Warp};
use super::{At, Cpu, Exec};

impl Cpu<'_> {
    /// Runs a warp until it stops; `budget` is what is left of its instructions.
    pub(crate) fn run_warp(&mut self, common: &mut Common, warp: &mut Warp, budget: &mut u32) -> Exec<Stop> {
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("fma")
            && std::is_x86_feature_detected!("f16c")
        {
            // SAFETY: the processor has these features.
            return unsafe { self.run_avx2(common, warp, budget) };
        }
        self.interpret::<false>(common, warp, budget)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt")]
    fn run_avx2(&mut self, common: &mut Common, warp: &mut Warp, budget: &mut u32) -> Exec<Stop> {
        self.interpret::<true>(common, warp, budget)
    }

    #[inline(always)]
    fn interpret<const FMA: bool>(&mut self, common: &mut Common, warp: &mut Warp, budget: &mut u32) -> Exec<Stop> {
        let code = self.cx.code;
        let insts = &code.insts[..];
        let regs = warp.regs.as_mut_ptr();
        let consts = code.consts.as_ptr();
        let split = self.cx.config.split_warps;
        let counting = self.cx.config.counters;
        // The decoder gives only slots inside the register file or the constant table, and targets inside the code.
        macro_rules! src {
            ($r:expr, $t:ty) => {{
                let r = $r;
                if r & CONST != 0 { consts.add((r & !CONST) as usize) } else { regs.add(r as usize).cast_const() }
                    .cast::<$t>()
            }};
        }
        macro_rules! dst {
            ($r:expr, $t:ty) => {
                regs.add($r as usize).cast::<$t>()
            };
        }
        macro_rules! f32s {
            ($m:expr, $d:expr, $a:expr, $b:expr, $f:expr) => {
                map2(dst!($d, u32), src!($a, u32), src!($b, u32), $m, |x: u32, y: u32| {
                    canonical($f(f32::from_bits(x), f32::from_bits(y)))
                })
            };
        }
        macro_rules! pred {
            ($p:expr) => {
                *warp.preds.get_unchecked(usize::from($p))
            };
        }
        macro_rules! set_pred {
            ($p:expr, $m:expr, $v:expr) => {{
                let p = warp.preds.get_unchecked_mut(usize::from($p));
                *p = *p & !$m | $v & $m;
            }};
        }
        loop {
            let Some((mut part, limit)) = warp.pick(split, self.granted, self.now()) else {
                return Ok(if warp.parts.is_empty() {
                    Stop::Exited
                } else if warp.parts.iter().any(|p| p.state == State::Turn) {
                    Stop::Turn
                } else {
                    self.check_members(common, warp)?;
                    Stop::Blocked
                });
            };
            let mut pc = part.pc;
            let all = part.mask;
            // A warp that has split gives its other parts a chance.
            let mut slice = if warp.parts.is_empty() { u32::MAX } else { 1024 };
            macro_rules! park {
                ($state:expr) => {{
                    part.pc = pc;
                    part.state = $state;
                    warp.park(part);
                }};
            }
            'part: loop {
                if *budget == 0 {
                    park!(State::Ready);
                    return Ok(Stop::Budget);
                }
                if pc >= limit || slice == 0 {
                    park!(State::Ready);
                    break 'part;
                }
                *budget -= 1;
                slice -= 1;
                self.steps += 1;
                // SAFETY: `pc` is a branch target or the successor of an instruction that is not the last, which exits.
                let inst = unsafe { insts.get_unchecked(pc as usize) };
                let mut m = all;
                if inst.guard != NO_PRED {
                    // SAFETY: the decoder's predicates are inside the file.
                    let p = unsafe { pred!(inst.guard) };
                    m &= if inst.negated { !p } else { p };
                    if m == 0 {
                        if counting {
                            self.counters.skipped(pc);
                        }
                        pc += 1;
                        continue 'part;
                    }
                }
                if inst.flags != 0 {
                    if inst.flags & TURN != 0 && !self.cx.free {
                        if !self.granted {
                            self.steps -= 1;
                            *budget += 1;
                            park!(State::Turn);
                            break 'part;
                        }
                        self.granted = false;
                        *budget = 0;
                    }
                    if !warp.set.is_empty() {
                        let at = At { pc, warp: warp.id, ctaid: common.ctaid };
                        if inst.flags & MAYBE_UNSET != 0 {
                            self.check_set(warp, all, m, &at)?;
                        }
                        if inst.flags & TRACKED != 0 {
                            for &w in &code.uses[pc as usize].writes {
                                warp.set[set_index(code.slots, w)] |= m;
                            }
                        }
                    }
                }
                if counting {
                    self.counters.ran(pc, m);
                }
                // SAFETY: slots and predicates as above; a destination is its source or apart from it (`map*`).
                unsafe {
                    match &inst.op {
                        Op::Nop => {}
                        Op::Mov32(d, a) => map1(dst!(*d, u32), src!(*a, u32), m, |x| x),
                        Op::Mov64(d, a) => map1(dst!(*d, u64), src!(*a, u64), m, |x| x),
                        Op::MovPred(d, a) => {
                            let v = pred!(*a);
                            set_pred!(*d, m, v);
                        }
                        Op::Un32(op, d, a) => {
                            let (d, a) = (dst!(*d, u32), src!(*a, u32));
                            match op {
                                U32::Not => map1(d, a, m, |x: u32| !x),
                                U32::Neg => map1(d, a, m, |x: u32| x.wrapping_neg()),
                                U32::Abs => map1(d, a, m, |x: u32| (x as i32).unsigned_abs()),
                                U32::NegF => map1(d, a, m, |x: u32| x ^ 0x8000_0000),
                                U32::AbsF => map1(d, a, m, |x: u32| x & 0x7fff_ffff),
                                U32::FromSigned => map1(d, a, m, |x: u32| (x as i32 as f32).to_bits()),
                                U32::FromUnsigned => map1(d, a, m, |x: u32| (x as f32).to_bits()),
                                U32::ToSigned => map1(d, a, m, |x: u32| f32::from_bits(x) as i32 as u32),
                                U32::FromF16 => map1(d, a, m, |x: u32| canonical(float::f16_to_f32(x))),
                                U32::ToF16 => map1(d, a, m, |x: u32| float::f32_to_f16(f32::from_bits(x))),
                                U32::FromBf16 => map1(d, a, m, |x: u32| canonical(f32::from_bits(x << 16))),
                                U32::Low8 => map1(d, a, m, |x: u32| x & 0xff),
                                U32::Low16 => map1(d, a, m, |x: u32| x & 0xffff),
                                U32::Ext8 => map1(d, a, m, |x: u32| x as i8 as u32),
                                U32::Ext16 => map1(d, a, m, |x: u32| x as i16 as u32),
                                U32::SqrtF => map1(d, a, m, |x: u32| canonical(f32::from_bits(x).sqrt())),
                                U32::RcpF => map1(d, a, m, |x: u32| canonical(1.0 / f32::from_bits(x))),
                                U32::Popc => map1(d, a, m, |x: u32| x.count_ones()),
                            }
                        }
                        Op::Bin32(op, d, a, b) => {
                            let (d, a, b) = (*d, *a, *b);
                            macro_rules! ints {
                                ($f:expr) => {
                                    map2(dst!(d, u32), src!(a, u32), src!(b, u32), m, $f)
                                };
                            }
                            match op {
                                B32::Add => ints!(|x: u32, y: u32| x.wrapping_add(y)),
                                B32::Sub => ints!(|x: u32, y: u32| x.wrapping_sub(y)),
                                B32::Mul => ints!(|x: u32, y: u32| x.wrapping_mul(y)),
                                B32::MulHiU => ints!(|x: u32, y: u32| ((u64::from(x) * u64::from(y)) >> 32) as u32),
                                B32::MulHiS => {
                                    ints!(|x: u32, y: u32| ((i64::from(x as i32) * i64::from(y as i32)) >> 32) as u32)
                                }
                                B32::And => ints!(|x: u32, y: u32| x & y),
                                B32::Or => ints!(|x: u32, y: u32| x | y),
                                B32::Xor => ints!(|x: u32, y: u32| x ^ y),
                                B32::Shl => ints!(|x: u32, y: u32| if y > 31 { 0 } else { x << (y & 31) }),
                                B32::ShrU => ints!(|x: u32, y: u32| if y > 31 { 0 } else { x >> (y & 31) }),
                                B32::ShrS => ints!(|x: u32, y: u32| (x as i32 >> y.min(31)) as u32),
                                B32::MinU => ints!(|x: u32, y: u32| x.min(y)),
                                B32::MinS => ints!(|x: u32, y: u32| (x as i32).min(y as i32) as u32),
                                B32::MaxU => ints!(|x: u32, y: u32| x.max(y)),
                                B32::MaxS => ints!(|x: u32, y: u32| (x as i32).max(y as i32) as u32),
                                B32::AddF => f32s!(m, d, a, b, |x, y| x + y),
                                B32::SubF => f32s!(m, d, a, b, |x, y| x - y),
                                B32::MulF => f32s!(m, d, a, b, |x, y| x * y),
                                B32::DivF => f32s!(m, d, a, b, |x, y| x / y),
                                B32::MinF => f32s!(m, d, a, b, float::min32),
                                B32::MaxF => f32s!(m, d, a, b, float::max32),
                                B32::AddFtz => f32s!(m, d, a, b, |x, y| flush(flush(x) + flush(y))),
                                B32::SubFtz => f32s!(m, d, a, b, |x, y| flush(flush(x) - flush(y))),
                                B32::MulFtz => f32s!(m, d, a, b, |x, y| flush(flush(x) * flush(y))),
                            }
                        }
                        Op::Tern32(op, d, a, b, c) => {
                            let (d, a, b, c) = (dst!(*d, u32), src!(*a, u32), src!(*b, u32), src!(*c, u32));
                            let fma = |x: u32, y: u32, z: u32| {
                                let (x, y, z) = (f32::from_bits(x), f32::from_bits(y), f32::from_bits(z));
                                if FMA { x.mul_add(y, z) } else { float::fma32(x, y, z, Round::Near) }
                            };
                            match op {
                                T32::Mad => {
                                    map3(d, a, b, c, m, |x: u32, y: u32, z: u32| x.wrapping_mul(y).wrapping_add(z))
                                }
                                T32::Fma => map3(d, a, b, c, m, |x, y, z| canonical(fma(x, y, z))),
                                T32::FmaFtz => map3(d, a, b, c, m, |x: u32, y: u32, z: u32| {
                                    let f = |v| flush(f32::from_bits(v)).to_bits();
                                    canonical(flush(fma(f(x), f(y), f(z))))
                                }),
                                T32::BfeU => map3(d, a, b, c, m, |x: u32, y: u32, z: u32| {
                                    let (pos, len) = (y & 0xff, z & 0xff);
                                    let v = if pos > 31 { 0 } else { x >> (pos & 31) };
                                    v & if len > 31 { u32::MAX } else { (1 << (len & 31)) - 1 }
                                }),
                                T32::Shfl => map3(d, a, b, c, m, |x: u32, y: u32, z: u32| {
                                    ((u64::from(y) << 32 | u64::from(x)) << (z & 31) >> 32) as u32
                                }),
                                T32::Shfr => map3(d, a, b, c, m, |x: u32, y: u32, z: u32| {
                                    ((u64::from(y) << 32 | u64::from(x)) >> (z & 31)) as u32
                                }),
                                T32::Prmt => map3(d, a, b, c, m, prmt),
                                T32::Dp4aSS => map3(d, a, b, c, m, |x: u32, y: u32, z: u32| {
                                    dot(x, y, z, |v| v as i8 as i32, |v| v as i8 as i32)
                                }),
                                T32::Dp4aUU => {
                                    map3(d, a, b, c, m, |x: u32, y: u32, z: u32| dot(x, y, z, i32::from, i32::from))
                                }
                                T32::Dp4aSU => map3(d, a, b, c, m, |x: u32, y: u32, z: u32| {
                                    dot(x, y, z, |v| v as i8 as i32, i32::from)
                                }),
                                T32::Dp4aUS => map3(d, a, b, c, m, |x: u32, y: u32, z: u32| {
                                    dot(x, y, z, i32::from, |v| v as i8 as i32)
                                }),
                            }
                        }
                        Op::Lop3(lut, d, a, b, c) => {
                            let (d, a, b, c) = (dst!(*d, u32), src!(*a, u32), src!(*b, u32), src!(*c, u32));
                            let bit = |i: u32| 0u32.wrapping_sub(u32::from(lut >> i & 1));
                            let t: [u32; 8] = std::array::from_fn(|i| bit(i as u32));
                            map3(d, a, b, c, m, |x: u32, y: u32, z: u32| {
                                let low = |i: usize| t[i] & !z | t[i + 1] & z;
                                let (n, p) = (low(0) & !y | low(2) & y, low(4) & !y | low(6) & y);
                                n & !x | p & x
                            });
                        }
                        Op::Bin64(op, d, a, b) => {
                            let (d, a, b) = (dst!(*d, u64), src!(*a, u64), src!(*b, u64));
                            let f = |g: fn(f64, f64) -> f64| {
                                move |x: u64, y: u64| g(f64::from_bits(x), f64::from_bits(y)).to_bits()
                            };
                            match op {
                                B64::Add => map2(d, a, b, m, |x: u64, y: u64| x.wrapping_add(y)),
                                B64::Sub => map2(d, a, b, m, |x: u64, y: u64| x.wrapping_sub(y)),
                                B64::Mul => map2(d, a, b, m, |x: u64, y: u64| x.wrapping_mul(y)),
                                B64::And => map2(d, a, b, m, |x: u64, y: u64| x & y),
                                B64::Or => map2(d, a, b, m, |x: u64, y: u64| x | y),
                                B64::Xor => map2(d, a, b, m, |x: u64, y: u64| x ^ y),
                                B64::AddF => map2(d, a, b, m, f(|x, y| x + y)),
                                B64::SubF => map2(d, a, b, m, f(|x, y| x - y)),
                                B64::MulF => map2(d, a, b, m, f(|x, y| x * y)),
                            }
                        }
                        Op::Fma64(d, a, b, c) => {
                            map3(
                                dst!(*d, u64),
                                src!(*a, u64),
                                src!(*b, u64),
                                src!(*c, u64),
                                m,
                                |x: u64, y: u64, z: u64| {
                                    f64::from_bits(x).mul_add(f64::from_bits(y), f64::from_bits(z)).to_bits()
                                },
                            );
                        }
                        Op::Shl64(d, a, b) => {
                            map2(dst!(*d, u64), src!(*a, u64), src!(*b, u32), m, |x: u64, y: u32| {
                                if y > 63 { 0 } else { x << (y & 63) }
                            });
                        }
                        Op::ShrU64(d, a, b) => {
                            map2(dst!(*d, u64), src!(*a, u64), src!(*b, u32), m, |x: u64, y: u32| {
                                if y > 63 { 0 } else { x >> (y & 63) }
                            });
                        }
                        Op::MulWide(signed, d, a, b) => {
                            let (d, a, b) = (dst!(*d, u64), src!(*a, u32), src!(*b, u32));
                            if *signed {
                                map2(d, a, b, m, |x: u32, y: u32| (i64::from(x as i32) * i64::from(y as i32)) as u64);
                            } else {
                                map2(d, a, b, m, |x: u32, y: u32| u64::from(x) * u64::from(y));
                            }
                        }
                        Op::MadWide(signed, d, a, b, c) => {
                            let (d, a, b, c) = (dst!(*d, u64), src!(*a, u32), src!(*b, u32), src!(*c, u64));
                            if *signed {
                                map3(d, a, b, c, m, |x: u32, y: u32, z: u64| {
                                    ((i64::from(x as i32) * i64::from(y as i32)) as u64).wrapping_add(z)
                                });
                            } else {
                                map3(d, a, b, c, m, |x: u32, y: u32, z: u64| {
                                    (u64::from(x) * u64::from(y)).wrapping_add(z)
                                });
                            }
                        }
                        Op::Mad64(d, a, b, c) => {
                            map3(
                                dst!(*d, u64),
                                src!(*a, u64),
                                src!(*b, u64),
                                src!(*c, u64),
                                m,
                                |x: u64, y: u64, z: u64| x.wrapping_mul(y).wrapping_add(z),
                            );
                        }
                        Op::Extend(signed, d, a) => {
                            let (d, a) = (dst!(*d, u64), src!(*a, u32));
                            if *signed {
                                map1(d, a, m, |x: u32| i64::from(x as i32) as u64);
                            } else {
                                map1(d, a, m, |x: u32| u64::from(x));
                            }
                        }
                        Op::Half(high, d, a) => {
                            let (d, a) = (dst!(*d, u32), src!(*a, u64));
                            if *high {
                                map1(d, a, m, |x: u64| (x >> 32) as u32);
                            } else {
                                map1(d, a, m, |x: u64| x as u32);
                            }
                        }
                        Op::Join(d, a, b) => {
                            map2(dst!(*d, u64), src!(*a, u32), src!(*b, u32), m, |x: u32, y: u32| {
                                u64::from(x) | u64::from(y) << 32
                            });
                        }
                        Op::Setp32(cmp, p, a, b) => {
                            let v = compare32(*cmp, src!(*a, u32), src!(*b, u32));
                            set_pred!(*p, m, v);
                        }
                        Op::Setp64(cmp, p, a, b) => {
                            let v = compare64(*cmp, src!(*a, u64), src!(*b, u64));
                            set_pred!(*p, m, v);
                        }
                        Op::SetpEx(x) => {
                            let (cmp, wide, a, b, dst) = &**x;
                            let v = if *wide {
                                compare64(*cmp, src!(*a, u64), src!(*b, u64))
                            } else {
                                compare32(*cmp, src!(*a, u32), src!(*b, u32))
                            };
                            set_both(warp, dst, v, m);
                        }
                        Op::Selp32(d, a, b, p) => {
                            let (d, a, b, p) = (dst!(*d, u32), src!(*a, u32), src!(*b, u32), pred!(*p));
                            select(d, a, b, p, m);
                        }
                        Op::Selp64(d, a, b, p) => {
                            let (d, a, b, p) = (dst!(*d, u64), src!(*a, u64), src!(*b, u64), pred!(*p));
                            select(d, a, b, p, m);
                        }
                        Op::PredBool(op, d, a, b) => {
                            let v = op.apply(pred!(*a), pred!(*b));
                            set_pred!(*d, m, v);
                        }
                        Op::PredNot(d, a) => {
                            let v = !pred!(*a);
                            set_pred!(*d, m, v);
                        }
                        Op::PredSet(d, v) => {
                            let v = if *v { u32::MAX } else { 0 };
                            set_pred!(*d, m, v);
                        }
                        Op::Bra(target) => {
                            if m == all {
                                pc = *target;
                                continue 'part;
                            }
                            part.mask = all & !m;
                            pc += 1;
                            warp.parts.push(Part {
                                pc: *target,
                                mask: m,
                                state: State::Ready,
                                last: part.last,
                                pieces: 0,
                            });
                            park!(State::Ready);
                            break 'part;
                        }
                        Op::Ld(op) => {
                            let at = At { pc, warp: warp.id, ctaid: common.ctaid };
                            if inst.flags & TURN != 0 && self.tears(op) {
                                let piece = op.piece(part.pieces, warp.random);
                                self.load(common, warp, &piece, m, &at)?;
                                part.pieces += 1;
                                if part.pieces < op.pieces() {
                                    park!(State::Turn);
                                    break 'part;
                                }
                                part.pieces = 0;
                                pc += 1;
                                continue 'part;
                            }
                            self.load(common, warp, op, m, &at)?;
                        }
                        Op::St(op) => {
                            let at = At { pc, warp: warp.id, ctaid: common.ctaid };
                            if inst.flags & TURN != 0 && self.tears(op) {
                                let piece = op.piece(part.pieces, warp.random);
                                self.store(common, warp, &piece, m, &at)?;
                                part.pieces += 1;
                                if part.pieces < op.pieces() {
                                    park!(State::Turn);
                                    break 'part;
                                }
                                part.pieces = 0;
                                pc += 1;
                                continue 'part;
                            }
                            self.store(common, warp, op, m, &at)?;
                        }
                        Op::Exit => {
                            warp.live &= !m;
                            part.mask = all & !m;
                            self.lanes_exited(common, warp);
                            if part.mask != 0 {
                                pc += 1;
                                park!(State::Ready);
                            }
                            if common.complete != 0 {
                                return Ok(Stop::Blocked);
                            }
                            break 'part;
                        }
                        _ => {
                            let at = At { pc, warp: warp.id, ctaid: common.ctaid };
                            match self.rare(common, warp, inst, m, all, &at)? {
                                Next::Step => {}
                                Next::Park(state) => {
                                    park!(state);
                                    if state == State::Ready {
                                        // Time passed: let others run.
                                        return Ok(Stop::Budget);
                                    }
                                    if common.complete != 0 {
                                        return Ok(Stop::Blocked);
                                    }
                                    break 'part;
                                }
                                Next::StepAndPark(state) => {
                                    pc += 1;
                                    park!(state);
                                    break 'part;
                                }
                                Next::Scatter => break 'part,
                            }
                        }
                    }
                }
                pc += 1;
            }
        }
    }

    /// Instructions that are not worth a place in the loop.
    #[inline(never)]
    fn rare(&mut self, common: &mut Common, warp: &mut Warp, inst: &Inst, m: u32, all: u32, at: &At) -> Exec<Next> {
        let code = self.cx.code;
        match &inst.op {
            Op::Lane(op) => {
                let seed = self.cx.config.perturb.then_some(self.cx.config.seed);
                for l in Lanes(m) {
                    let mut a = [0; 4];
                    for (v, s) in a.iter_mut().zip(&op.src[..usize::from(op.n)]) {
                        *v = warp.lane(code, *s, l);
                    }
                    let mut v = (op.f)(&op.ctl, a);
                    if op.approximate {
                        v = scalar::finish_approximate(&op.ctl, v, seed);
                    }
                    warp.set_lane(op.d, op.dw, l, v);
                }
            }
            Op::LanePred(op, dst) => {
                let mut v = 0;
                for l in Lanes(m) {
                    let mut a = [0; 4];
                    for (v, s) in a.iter_mut().zip(&op.src[..usize::from(op.n)]) {
                        *v = warp.lane(code, *s, l);
                    }
                    v |= ((op.f)(&op.ctl, a) as u32 & 1) << l;
                }
                set_both(warp, dst, v, m);
            }
            Op::Carry(op) => {
                let width = if op.wide { W::W64 } else { W::W32 };
                let limit = if op.wide { u64::MAX } else { u64::from(u32::MAX) };
                for l in Lanes(m) {
                    let (a, b) = (warp.lane(code, (op.a, width), l), warp.lane(code, (op.b, width), l));
                    let cin = u128::from(op.carry_in && warp.preds[usize::from(op.cc)] >> l & 1 == 1);
                    let (a, b) = (u128::from(a), u128::from(b));
                    let (v, out) = if op.subtract {
                        (a.wrapping_sub(b).wrapping_sub(cin), a < b + cin)
                    } else {
                        (a + b + cin, a + b + cin > u128::from(limit))
                    };
                    warp.set_lane(op.d, width, l, v as u64 & limit);
                    if op.carry_out {
                        warp.set_lane(u32::from(op.cc), W::Pred, l, u64::from(out));
                    }
                }
            }
            Op::Special(s, d, w) => {
                for l in Lanes(m) {
                    let v = self.special(common, warp, *s, l);
                    warp.set_lane(*d, *w, l, v);
                }
            }
            Op::BrxIdx(index, list) => {
                for l in Lanes(all & !m) {
                    add_part(warp, at.pc + 1, 1 << l);
                }
                for l in Lanes(m) {
                    let i = warp.lane32(code, *index, l) as usize;
                    let Some(&target) = list.get(i) else {
                        let message = format!("branch index {i}: the table has {} targets", list.len());
                        return Err(self.fault(FaultKind::IllegalInstruction, at, Some(l), message));
                    };
                    add_part(warp, target, 1 << l);
                }
                return Ok(Next::Scatter);
            }
            Op::Trap => {
                let lane = Some(m.trailing_zeros() as usize);
                return Err(self.fault(FaultKind::IllegalInstruction, at, lane, "the kernel executed a trap"));
            }
            Op::Atom(op) => self.atomic(common, warp, op, m, at)?,
            Op::Fence(sem, scope) => self.fence(common, warp, *sem, *scope, m, at),
            Op::FenceProxy(proxy) => self.fence_proxy(common, warp, *proxy, m, at),
            Op::Bar(op) => return self.bar(common, warp, op, m, all, at),
            Op::Warp(op) => return self.warp_wide(common, warp, op, m, all, at),
            Op::Async(op) => self.asynchronous(common, warp, op, m, at)?,
            Op::Mbarrier(op) => return self.mbarrier(common, warp, op, m, all, at),
            Op::GridControl(waits) => self.grid_control(common, warp, *waits, m),
            Op::ActiveMask(d) => {
                for l in Lanes(m) {
                    warp.set_lane(*d, W::W32, l, u64::from(m));
                }
            }
            Op::NanoSleep(r) => {
                let longest = Lanes(m).map(|l| warp.lane32(code, *r, l)).max().unwrap_or(0);
                if m == all {
                    return Ok(Next::StepAndPark(State::Sleep(self.now().wrapping_add(u64::from(longest.max(1))))));
                }
            }
            _ => {}
        }
        Ok(Next::Step)
    }

    fn special(&self, common: &Common, warp: &Warp, s: Special, lane: usize) -> u64 {
        let cx = self.cx;
        let launch = cx.launch;
        let now = self.now();
        u64::from(match s {
            Special::Tid(a) => cx.thread(warp.id, lane)[usize::from(a)],
            Special::Ntid(a) => launch.block[usize::from(a)],
            Special::Ctaid(a) => common.ctaid[usize::from(a)],
            Special::Nctaid(a) => launch.grid[usize::from(a)],
            Special::LaneId => lane as u32,
            Special::WarpId => warp.id,
            Special::NWarpId => cx.warps,
            Special::SmId => common.sm,
            Special::NSmId => cx.config.multiprocessors,
            Special::GridId | Special::Zero | Special::ClusterCtaid(_) | Special::ClusterRank => 0,
            Special::One | Special::ClusterNctaid(_) | Special::ClusterSize => 1,
            Special::LaneMaskEq => 1 << lane,
            Special::LaneMaskLt => (1 << lane) - 1,
            Special::LaneMaskLe => (2u32 << lane).wrapping_sub(1),
            Special::LaneMaskGe => !((1 << lane) - 1),
            Special::LaneMaskGt => !(2u32 << lane).wrapping_sub(1),
            Special::Clock => now as u32,
            Special::GlobalTimerLo => now as u32,
            Special::GlobalTimerHi => (now >> 32) as u32,
            Special::Clock64 | Special::GlobalTimer => return now,
            Special::DynamicShared => launch.dynamic_shared,
            Special::TotalShared => cx.shared,
        })
    }

    /// Whether the pieces of a vector access arrive one by one: only 64 bits are sure to arrive together.
    fn tears(&self, op: &MemOp) -> bool {
        !self.cx.free && self.cx.config.schedule != crate::launch::Schedule::RoundRobin && op.pieces() > 1
    }

    #[cold]
    fn check_set(&self, warp: &Warp, all: u32, m: u32, at: &At) -> Exec<()> {
        let code = self.cx.code;
        let inst = &code.insts[at.pc as usize];
        for &r in &code.uses[at.pc as usize].reads {
            let guard = inst.guard != NO_PRED && r == PRED_BASE + u32::from(inst.guard);
            let unset = if guard { all } else { m } & !warp.set[set_index(code.slots, r)];
            if unset != 0 {
                let name = code.reg_names.iter().find(|n| n.0 == r).map_or("?", |n| n.1.as_str());
                let lane = unset.trailing_zeros() as usize;
                let message = format!("{name} is read here but nothing on this path has written it");
                return Err(self.fault(FaultKind::UninitialisedRegister, at, Some(lane), message));
            }
        }
        Ok(())
    }
}

/// What follows an instruction.
pub(crate) enum Next {
    /// The next one.
    Step,
    /// This one again, once the state allows.
    Park(State),
    /// The next one, once the state allows.
    StepAndPark(State),
    /// The lanes are in `parts` already.
    Scatter,
}

fn add_part(warp: &mut Warp, pc: u32, mask: u32) {
    match warp.parts.iter_mut().find(|p| p.pc == pc && p.state == State::Ready) {
        Some(p) => p.mask |= mask,
        None => warp.parts.push(Part { pc, mask, state: State::Ready, last: 0, pieces: 0 }),
    }
}

/// Combines a comparison and writes both destinations.
fn set_both(warp: &mut Warp, dst: &SetpDst, v: u32, m: u32) {
    let (mut p, mut q) = (v, !v);
    if let Some((op, c, negated)) = dst.combine {
        let c = warp.preds[usize::from(c)];
        let c = if negated { !c } else { c };
        (p, q) = (op.apply(p, c), op.apply(q, c));
    }
    for (d, v) in [(dst.p, p), (dst.q, q)] {
        let r = &mut warp.preds[usize::from(d)];
        *r = *r & !m | v & m;
    }
}

/// # Safety
/// As `map2`.
#[inline(always)]
unsafe fn select<T: Copy>(d: *mut T, a: *const T, b: *const T, p: u32, m: u32) {
    for i in 0..32 {
        // SAFETY: 32 elements each.
        unsafe {
            let v = if p >> i & 1 == 1 { *a.add(i) } else { *b.add(i) };
            if m >> i & 1 == 1 {
                *d.add(i) = v;
            }
        }
    }
}

#[inline(always)]
fn prmt(x: u32, y: u32, z: u32) -> u32 {
    let both = u64::from(y) << 32 | u64::from(x);
    let byte = |i: u32| {
        let s = z >> (4 * i);
        let v = (both >> (8 * (s & 7))) as u32 & 0xff;
        let v = if s & 8 != 0 { if v & 0x80 != 0 { 0xff } else { 0 } } else { v };
        v << (8 * i)
    };
    byte(0) | byte(1) | byte(2) | byte(3)
}

#[inline(always)]
fn dot(x: u32, y: u32, z: u32, f: impl Fn(u8) -> i32, g: impl Fn(u8) -> i32) -> u32 {
    let p = |i: u32| f((x >> (8 * i)) as u8) * g((y >> (8 * i)) as u8);
    (z as i32).wrapping_add(p(0) + p(1) + p(2) + p(3)) as u32
}

/// # Safety
/// As `test2`.
#[inline(always)]
unsafe fn compare32(cmp: Cmp, a: *const u32, b: *const u32) -> u32 {
    let f = f32::from_bits;
    // SAFETY: the caller's.
    unsafe {
        match cmp {
            Cmp::Eq => test2(a, b, |x, y| x == y),
            Cmp::Ne => test2(a, b, |x, y| x != y),
            Cmp::LtU => test2(a, b, |x, y| x < y),
            Cmp::LeU => test2(a, b, |x, y| x <= y),
            Cmp::GtU => test2(a, b, |x, y| x > y),
            Cmp::GeU => test2(a, b, |x, y| x >= y),
            Cmp::LtS => test2(a, b, |x, y| (x as i32) < y as i32),
            Cmp::LeS => test2(a, b, |x, y| x as i32 <= y as i32),
            Cmp::GtS => test2(a, b, |x, y| x as i32 > y as i32),
            Cmp::GeS => test2(a, b, |x, y| x as i32 >= y as i32),
            Cmp::EqF => test2(a, b, |x, y| f(x) == f(y)),
            Cmp::NeF => test2(a, b, |x, y| f(x) != f(y)),
            Cmp::LtF => test2(a, b, |x, y| f(x) < f(y)),
            Cmp::LeF => test2(a, b, |x, y| f(x) <= f(y)),
            Cmp::GtF => test2(a, b, |x, y| f(x) > f(y)),
            Cmp::GeF => test2(a, b, |x, y| f(x) >= f(y)),
        }
    }
}

/// # Safety
/// As `test2`.
#[inline(always)]
unsafe fn compare64(cmp: Cmp, a: *const u64, b: *const u64) -> u32 {
    let f = f64::from_bits;
    // SAFETY: the caller's.
    unsafe {
        match cmp {
            Cmp::Eq => test2(a, b, |x, y| x == y),
            Cmp::Ne => test2(a, b, |x, y| x != y),
            Cmp::LtU => test2(a, b, |x, y| x < y),
            Cmp::LeU => test2(a, b, |x, y| x <= y),
            Cmp::GtU => test2(a, b, |x, y| x > y),
            Cmp::GeU => test2(a, b, |x, y| x >= y),
            Cmp::LtS => test2(a, b, |x, y| (x as i64) < y as i64),
            Cmp::LeS => test2(a, b, |x, y| x as i64 <= y as i64),
            Cmp::GtS => test2(a, b, |x, y| x as i64 > y as i64),
            Cmp::GeS => test2(a, b, |x, y| x as i64 >= y as i64),
            Cmp::EqF => test2(a, b, |x, y| f(x) == f(y)),
            Cmp::NeF => test2(a, b, |x, y| f(x) != f(y)),
            Cmp::LtF => test2(a, b, |x, y| f(x) < f(y)),
            Cmp::LeF => test2(a, b, |x, y| f(x) <= f(y)),
            Cmp::GtF => test2(a, b, |x, y| f(x) > f(y)),
            Cmp::GeF => test2(a, b, |x, y| f(x) >= f(y)),
        }
    }
}

const _: () = assert!(size_of::<Slot>() == 128);
