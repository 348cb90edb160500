//! The syntax tree to code: names become slots, opcodes become operations, calls are expanded in place.
//!
//! An opcode is read modifier by modifier, and whatever is left over at the end is an error: nothing is guessed.

mod arith;
mod asynchronous;
mod convert;
mod flow;
mod flow_graph;
mod matrix;
mod memory;
mod slots;
mod special;
mod sync;

use super::PtxError;
use super::ast::{Arg, Function, Inst as Syntax, Num, Stmt, Var};
use super::module::ParamInfo;
use super::types::{Space, Ty};
use crate::exec::float::Round;
use crate::exec::inst::*;
use crate::exec::lanes::Slot;
use std::collections::HashMap;
use std::rc::Rc;

type Res<T> = Result<T, PtxError>;
/// First slot and number of slots of every register.
type Widths = Vec<(u32, u32)>;

/// A module-scope variable.
pub(crate) enum Global {
    /// In device memory.
    Memory { address: u64, constant: bool },
    /// In shared memory: placed per kernel that names it.
    Shared(Var),
}

#[derive(Debug, Clone)]
enum Entity {
    /// A register: first slot (or predicate) and type.
    Reg(u32, Ty),
    /// `%r<n>`: first slot, slots per register, type, count.
    Family(u32, u32, Ty, u32),
    Var {
        space: Space,
        address: u64,
    },
    Label(usize),
    Targets(Vec<String>),
}

/// The pieces of an opcode after its name, consumed one by one.
pub(super) struct Mods<'a> {
    parts: Vec<&'a str>,
    line: u32,
}

impl<'a> Mods<'a> {
    /// Consumes a modifier if it is there.
    pub(super) fn take(&mut self, m: &str) -> bool {
        let at = self.parts.iter().position(|p| *p == m);
        at.map(|i| self.parts.remove(i)).is_some()
    }

    /// Consumes the first of several that is there.
    pub(super) fn one_of(&mut self, list: &[&'static str]) -> Option<&'static str> {
        list.iter().copied().find(|m| self.take(m))
    }

    /// Consumes the next type.
    pub(super) fn ty(&mut self) -> Res<Ty> {
        let at = self.parts.iter().position(|p| Ty::parse(p).is_some());
        match at {
            Some(i) => Ok(Ty::parse(self.parts.remove(i)).unwrap_or(Ty::B32)),
            None => Err(PtxError::new(self.line, self.parts.join("."), "the instruction's type is missing")),
        }
    }

    /// Consumes a rounding modifier for floats.
    pub(super) fn round(&mut self) -> Option<Round> {
        let list = [("rn", Round::Near), ("rz", Round::Zero), ("rm", Round::Down), ("rp", Round::Up)];
        list.into_iter().find(|(m, _)| self.take(m)).map(|(_, r)| r)
    }

    /// Everything must have been consumed.
    pub(super) fn finish(&self) -> Res<()> {
        match self.parts.first() {
            None => Ok(()),
            Some(p) => {
                Err(PtxError::new(self.line, format!(".{p}"), "modifier that is not known for this instruction"))
            }
        }
    }
}

pub(super) struct Decoder<'a> {
    functions: &'a HashMap<String, Rc<Function>>,
    globals: &'a HashMap<String, Global>,
    scopes: Vec<HashMap<String, Entity>>,
    code: Code,
    consts: HashMap<(u64, bool), R>,
    opcodes: HashMap<String, u32>,
    labels: Vec<Option<u32>>,
    /// Instructions whose branch target is a label number.
    patches: Vec<usize>,
    /// Shared variables of the module that this kernel uses.
    shared: HashMap<String, u64>,
    /// Where dynamic shared memory begins, and whether the kernel names it.
    dynamic_base: u64,
    uses_dynamic: bool,
    /// First slot and number of slots of every register.
    widths: Widths,
    /// Calls being expanded.
    depth: u32,
    /// Label of the end of the function being expanded; `None` in the kernel itself.
    return_label: Option<usize>,
    // The instruction at hand:
    line: u32,
    source: u32,
    opcode: u32,
    guard: (P, bool),
    cur: Uses,
}

/// Decodes a kernel.
pub(crate) fn kernel(
    f: &Function,
    params: &[ParamInfo],
    functions: &HashMap<String, Rc<Function>>,
    globals: &HashMap<String, Global>,
) -> Res<Code> {
    let (mut code, mut widths, uses_dynamic) = pass(f, params, functions, globals, 0)?;
    let base = code.shared.next_multiple_of(code.shared_align);
    if uses_dynamic && base != 0 {
        (code, widths, _) = pass(f, params, functions, globals, u64::from(base))?;
    }
    let reads: Vec<_> = code.uses.iter().map(|u| u.reads.clone()).collect();
    let writes: Vec<_> = code.uses.iter().map(|u| u.writes.clone()).collect();
    let unset = flow_graph::mark_unset(&mut code);
    slots::assign(&mut code, &widths, &reads, &writes, &unset);
    Ok(code)
}

fn pass<'a>(
    f: &Function,
    params: &[ParamInfo],
    functions: &'a HashMap<String, Rc<Function>>,
    globals: &'a HashMap<String, Global>,
    dynamic_base: u64,
) -> Res<(Code, Widths, bool)> {
    let code = Code {
        insts: Vec::new(),
        origins: Vec::new(),
        opcode: Vec::new(),
        names: Vec::new(),
        first: Vec::new(),
        uses: Vec::new(),
        slots: 4, // the sink, up to 128 bits
        preds: 2, // the sink and the carry
        consts: Vec::new(),
        local: 0,
        shared: 0,
        shared_align: 16,
        takes_turns: false,
        reg_names: Vec::new(),
    };
    let mut d = Decoder {
        functions,
        globals,
        scopes: vec![HashMap::new()],
        code,
        consts: HashMap::new(),
        opcodes: HashMap::new(),
        labels: Vec::new(),
        patches: Vec::new(),
        shared: HashMap::new(),
        dynamic_base,
        uses_dynamic: false,
        widths: Vec::new(),
        depth: 0,
        return_label: None,
        line: f.line,
        source: 0,
        opcode: 0,
        guard: (NO_PRED, false),
        cur: Uses::default(),
    };
    for (p, info) in f.params.iter().zip(params) {
        d.declare(&p.name, Entity::Var { space: Space::Param, address: u64::from(info.offset) })?;
    }
    d.block(&f.body)?;
    d.set_opcode("ret");
    d.guard = (NO_PRED, false);
    d.push(Op::Exit);
    d.patch()?;
    Ok((d.code, d.widths, d.uses_dynamic))
}

impl<'a> Decoder<'a> {
    pub(super) fn fail<T>(&self, token: impl Into<String>, message: impl Into<String>) -> Res<T> {
        Err(PtxError::new(self.line, token, message))
    }

    fn declare(&mut self, name: &str, e: Entity) -> Res<()> {
        let line = self.line;
        match self.scopes.last_mut() {
            Some(scope) if !scope.contains_key(name) => {
                scope.insert(name.to_string(), e);
                Ok(())
            }
            _ => Err(PtxError::new(line, name, "name declared twice")),
        }
    }

    fn lookup(&self, name: &str) -> Option<Entity> {
        for scope in self.scopes.iter().rev() {
            match scope.get(name) {
                Some(Entity::Family(..)) | None => {}
                Some(e) => return Some(e.clone()),
            }
            let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
            if prefix.len() < name.len()
                && let Some(Entity::Family(first, step, ty, count)) = scope.get(prefix)
                && let Ok(i) = name[prefix.len()..].parse::<u32>()
                && i < *count
            {
                return Some(Entity::Reg(first + i * step, *ty));
            }
        }
        None
    }

    fn set_opcode(&mut self, name: &str) {
        let next = self.code.names.len() as u32;
        self.opcode = *self.opcodes.entry(name.to_string()).or_insert(next);
        if self.opcode == next {
            self.code.names.push(name.to_string());
        }
    }

    /// Appends an instruction with the registers collected so far.
    pub(super) fn push(&mut self, op: Op) {
        let uses = std::mem::take(&mut self.cur);
        self.push_with(op, uses, 0);
    }

    /// Appends an instruction that takes turns with other blocks.
    pub(super) fn push_turn(&mut self, op: Op) {
        let uses = std::mem::take(&mut self.cur);
        self.code.takes_turns = true;
        self.push_with(op, uses, TURN);
    }

    fn push_with(&mut self, op: Op, mut uses: Uses, flags: u8) {
        if self.guard.0 != NO_PRED {
            uses.reads.push(PRED_BASE + u32::from(self.guard.0));
        }
        self.code.insts.push(Inst { op, guard: self.guard.0, negated: self.guard.1, flags });
        self.code.origins.push(Origin { line: self.line, source: self.source });
        self.code.opcode.push(self.opcode);
        self.code.first.push(false);
        self.code.uses.push(uses);
    }

    /// A body or a nested block, in a scope of its own.
    fn block(&mut self, body: &[Stmt]) -> Res<()> {
        self.scopes.push(HashMap::new());
        for s in body {
            match s {
                Stmt::Label(name, line) => {
                    self.line = *line;
                    self.labels.push(None);
                    let label = self.labels.len() - 1;
                    self.declare(name, Entity::Label(label))?;
                }
                Stmt::Targets(name, list, line) => {
                    self.line = *line;
                    self.declare(name, Entity::Targets(list.clone()))?;
                }
                _ => {}
            }
        }
        for s in body {
            match s {
                Stmt::Label(name, _) => {
                    if let Some(Entity::Label(l)) = self.lookup(name) {
                        self.labels[l] = Some(self.code.insts.len() as u32);
                    }
                }
                Stmt::Inst(i) => self.inst(i)?,
                Stmt::Reg { ty, name, count, line } => {
                    self.line = *line;
                    self.register(*ty, name, *count)?;
                }
                Stmt::Var(v) => self.variable(v)?,
                Stmt::Block(b) => self.block(b)?,
                Stmt::Targets(..) => {}
            }
        }
        self.scopes.pop();
        Ok(())
    }

    fn register(&mut self, ty: Ty, name: &str, count: Option<u32>) -> Res<()> {
        let n = count.unwrap_or(1);
        if n > 1 << 20 {
            return self.fail(name, "more registers than the emulator allows");
        }
        let (first, step) = if ty == Ty::Pred {
            let first = self.code.preds;
            self.code.preds += n;
            if self.code.preds >= u32::from(NO_PRED) {
                return self.fail(name, "more predicates than the emulator allows");
            }
            (first, 1)
        } else {
            let step = ty.bytes().div_ceil(4).max(1);
            let first = self.code.slots;
            self.widths.extend((0..n).map(|i| (first + i * step, step)));
            self.code.slots += n * step;
            (first, step)
        };
        if self.code.slots > 1 << 24 {
            return self.fail(name, "more registers than the emulator allows");
        }
        let base = if ty == Ty::Pred { PRED_BASE } else { 0 };
        match count {
            None => {
                self.code.reg_names.push((base + first, name.to_string()));
                self.declare(name, Entity::Reg(first, ty))
            }
            Some(n) => {
                for i in 0..n {
                    self.code.reg_names.push((base + first + i * step, format!("{name}{i}")));
                }
                self.declare(name, Entity::Family(first, step, ty, n))
            }
        }
    }

    fn variable(&mut self, v: &Var) -> Res<()> {
        self.line = v.line;
        let bytes = v.bytes();
        if bytes > 1 << 30 {
            return self.fail(&v.name, "variable too large");
        }
        let address = match v.space {
            Space::Shared => self.place_shared(v)?,
            Space::Local | Space::Param => {
                let at = self.code.local.next_multiple_of(v.align.max(1));
                self.code.local = at + bytes as u32;
                u64::from(at)
            }
            _ => return self.fail(&v.name, "variables of this state space stand at module scope"),
        };
        // Parameters of calls live in local memory.
        let space = if v.space == Space::Param { Space::Local } else { v.space };
        self.declare(&v.name, Entity::Var { space, address })
    }

    /// `.extern .shared x[]` begins where static shared memory ends, which the first of two passes finds out.
    fn place_shared(&mut self, v: &Var) -> Res<u64> {
        if v.count.is_none() || v.external {
            self.code.shared_align = self.code.shared_align.max(v.align);
            self.uses_dynamic = true;
            return Ok(self.dynamic_base);
        }
        let at = self.code.shared.next_multiple_of(v.align.max(1));
        let end = u64::from(at) + v.bytes();
        if end > 1 << 20 {
            return self.fail(&v.name, "more shared memory than any device has");
        }
        self.code.shared = end as u32;
        Ok(u64::from(at))
    }

    fn symbol(&mut self, name: &str) -> Res<Option<(Space, u64)>> {
        match self.lookup(name) {
            Some(Entity::Var { space, address }) => return Ok(Some((space, address))),
            Some(_) => return Ok(None),
            None => {}
        }
        match self.globals.get(name) {
            None => Ok(None),
            Some(Global::Memory { address, constant }) => {
                Ok(Some((if *constant { Space::Const } else { Space::Global }, *address)))
            }
            Some(Global::Shared(v)) => {
                if let Some(at) = self.shared.get(name) {
                    return Ok(Some((Space::Shared, *at)));
                }
                let at = self.place_shared(v)?;
                self.shared.insert(name.to_string(), at);
                Ok(Some((Space::Shared, at)))
            }
        }
    }

    // Operands.

    /// A constant, the same in all lanes.
    pub(super) fn constant(&mut self, bits: u64, wide: bool) -> R {
        let bits = if wide { bits } else { bits & 0xffff_ffff };
        if let Some(r) = self.consts.get(&(bits, wide)) {
            return *r;
        }
        let at = self.code.consts.len() as u32 | CONST;
        if wide {
            let mut s = [0u32; 64];
            for i in 0..32 {
                s[2 * i] = bits as u32;
                s[2 * i + 1] = (bits >> 32) as u32;
            }
            let (low, high) = s.split_at(32);
            for half in [low, high] {
                let mut slot = Slot([0; 32]);
                slot.0.copy_from_slice(half);
                self.code.consts.push(slot);
            }
        } else {
            self.code.consts.push(Slot([bits as u32; 32]));
        }
        self.consts.insert((bits, wide), at);
        at
    }

    fn number_bits(&self, n: Num, ty: Ty) -> Res<u64> {
        let bits = match (n, ty) {
            (Num::Int(i), _) if !ty.float() || matches!(ty, Ty::F16 | Ty::BF16) => i,
            (Num::F32(b), Ty::F32 | Ty::B32) => u64::from(b),
            (Num::F32(b), Ty::F64 | Ty::B64) => f64::from(f32::from_bits(b)).to_bits(),
            (Num::F64(v), Ty::F32) => u64::from((v as f32).to_bits()),
            (Num::F64(v), Ty::F64 | Ty::B64) => v.to_bits(),
            _ => return self.fail(format!("{n:?}"), "literal that does not fit the operand's type"),
        };
        Ok(if ty.bits() < 64 { bits & ((1u64 << ty.bits()) - 1) } else { bits })
    }

    fn width(ty: Ty) -> W {
        match ty.bytes() {
            0 => W::Pred,
            8 => W::W64,
            _ => W::W32,
        }
    }

    fn note(list: &mut Vec<u32>, slot: u32, ty: Ty) {
        if ty == Ty::Pred {
            list.push(PRED_BASE + slot);
        } else {
            list.extend((0..ty.bytes().div_ceil(4)).map(|i| slot + i));
        }
    }

    /// A register by name, with its type.
    fn named(&self, name: &str) -> Option<(u32, Ty)> {
        match self.lookup(name)? {
            Entity::Reg(slot, ty) => Some((slot, ty)),
            _ => None,
        }
    }

    /// A source of exactly this type: a register, a literal or a special register.
    pub(super) fn src(&mut self, arg: &Arg, ty: Ty) -> Res<R> {
        match arg {
            Arg::Num(n) => {
                let bits = self.number_bits(*n, ty)?;
                Ok(self.constant(bits, ty.bytes() == 8))
            }
            Arg::Word(name) => {
                if let Some((slot, have)) = self.named(name) {
                    if !ty.accepts(have) {
                        return self.fail(name, format!("a {have:?} register where the instruction wants {ty:?}"));
                    }
                    Self::note(&mut self.cur.reads, slot, have);
                    return Ok(slot);
                }
                if let Some(s) = special::parse(name) {
                    return self.special(s, ty);
                }
                if name == "WARP_SZ" {
                    return Ok(self.constant(32, ty.bytes() == 8));
                }
                self.fail(name, "operand that is not declared")
            }
            _ => self.fail(format!("{arg:?}"), "operand form that this instruction does not have"),
        }
    }

    /// Reads a special register into a temporary.
    fn special(&mut self, s: Special, ty: Ty) -> Res<R> {
        if !matches!(ty.bytes(), 2 | 4 | 8) || ty.float() {
            return self.fail(format!("{s:?}"), "special registers are integers");
        }
        let slot = self.temp(ty);
        let mut saved = std::mem::take(&mut self.cur);
        Self::note(&mut self.cur.writes, slot, ty);
        self.push(Op::Special(s, slot, Self::width(ty)));
        Self::note(&mut saved.reads, slot, ty);
        self.cur = saved;
        Ok(slot)
    }

    /// A temporary register.
    pub(super) fn temp(&mut self, ty: Ty) -> R {
        let slot = self.code.slots;
        let width = ty.bytes().div_ceil(4).max(1);
        self.widths.push((slot, width));
        self.code.slots += width;
        slot
    }

    /// Notes that the next instruction reads a temporary.
    pub(super) fn reads(&mut self, slot: R, ty: Ty) {
        if slot & CONST == 0 {
            Self::note(&mut self.cur.reads, slot, ty);
        }
    }

    /// Notes that the next instruction writes a temporary.
    pub(super) fn writes(&mut self, slot: R, ty: Ty) {
        Self::note(&mut self.cur.writes, slot, ty);
    }

    /// A destination of exactly this type; `_` goes to the sink.
    pub(super) fn dst(&mut self, arg: &Arg, ty: Ty) -> Res<R> {
        let Arg::Word(name) = arg else {
            return self.fail(format!("{arg:?}"), "destination must be a register");
        };
        if name == "_" {
            return Ok(0);
        }
        match self.named(name) {
            Some((slot, have)) if ty.accepts(have) => {
                Self::note(&mut self.cur.writes, slot, have);
                Ok(slot)
            }
            Some((_, have)) => self.fail(name, format!("a {have:?} register where the instruction wants {ty:?}")),
            None => self.fail(name, "destination that is not a declared register"),
        }
    }

    /// A register at least as wide as the type, as loads, stores and conversions allow; with its own type.
    pub(super) fn loose(&mut self, arg: &Arg, ty: Ty, write: bool) -> Res<(R, W, Ty)> {
        match arg {
            Arg::Word(name) if name == "_" && write => Ok((0, Self::width(ty), ty)),
            Arg::Word(name) if self.named(name).is_some() => {
                let (slot, have) = self.named(name).unwrap_or((0, ty));
                let floats = |t: Ty| matches!(t, Ty::F32 | Ty::F64 | Ty::F16);
                let fits = if floats(ty) || floats(have) {
                    ty.accepts(have) || (have.bytes() >= ty.bytes() && !floats(have) && !floats(ty))
                } else {
                    have.bytes() >= ty.bytes()
                };
                // A float register may also hold a `.b` value of its own size.
                if have == Ty::Pred || !fits {
                    return self.fail(name, format!("a {have:?} register where the instruction wants {ty:?}"));
                }
                Self::note(if write { &mut self.cur.writes } else { &mut self.cur.reads }, slot, have);
                Ok((slot, Self::width(have), have))
            }
            _ if !write => Ok((self.src(arg, ty)?, Self::width(ty), ty)),
            _ => self.fail(format!("{arg:?}"), "destination that is not a declared register"),
        }
    }

    /// A predicate source, perhaps negated.
    pub(super) fn pred(&mut self, arg: &Arg) -> Res<(P, bool)> {
        let (name, negated) = match arg {
            Arg::Word(n) => (n, false),
            Arg::Not(n) => (n, true),
            Arg::Num(Num::Int(v)) => {
                // A constant predicate is a temporary that is set first.
                let p = self.temp_pred()?;
                let saved = std::mem::take(&mut self.cur);
                self.cur.writes.push(PRED_BASE + u32::from(p));
                self.push(Op::PredSet(p, *v != 0));
                self.cur = saved;
                self.cur.reads.push(PRED_BASE + u32::from(p));
                return Ok((p, false));
            }
            _ => return self.fail(format!("{arg:?}"), "expected a predicate"),
        };
        match self.named(name) {
            Some((p, Ty::Pred)) => {
                self.cur.reads.push(PRED_BASE + p);
                Ok((p as P, negated))
            }
            _ => self.fail(name, "expected a predicate"),
        }
    }

    fn temp_pred(&mut self) -> Res<P> {
        let p = self.code.preds;
        self.code.preds += 1;
        if p >= u32::from(NO_PRED) {
            self.fail("predicate", "more predicates than the emulator allows")
        } else {
            Ok(p as P)
        }
    }

    /// A predicate destination; `_` goes to the sink.
    pub(super) fn pred_dst(&mut self, arg: &Arg) -> Res<P> {
        match arg {
            Arg::Word(n) => self.pred_dst_name(&n.clone()),
            _ => self.fail(format!("{arg:?}"), "expected a predicate"),
        }
    }

    /// Likewise by name.
    pub(super) fn pred_dst_name(&mut self, name: &str) -> Res<P> {
        if name == "_" {
            return Ok(0);
        }
        match self.named(name) {
            Some((p, Ty::Pred)) => {
                self.cur.writes.push(PRED_BASE + p);
                Ok(p as P)
            }
            _ => self.fail(name, "expected a predicate"),
        }
    }

    /// Checks the number of operands.
    pub(super) fn arity(&self, args: &[Arg], n: usize) -> Res<()> {
        if args.len() == n {
            Ok(())
        } else {
            self.fail(format!("{} operands", args.len()), format!("the instruction takes {n} operands"))
        }
    }

    /// Default modifiers for a type.
    pub(super) fn ctl(&self, ty: Ty) -> Ctl {
        Ctl { from: ty, to: ty, round: Round::Near, ftz: false, sat: false, relu: false, nan: false, imm: 0 }
    }

    /// A scalar operation: destination of type `dt`, sources of types `st`.
    pub(super) fn lane(&mut self, f: LaneFn, ctl: Ctl, args: &[Arg], dt: Ty, st: &[Ty]) -> Res<()> {
        self.arity(args, 1 + st.len())?;
        let op = self.lane_op(f, ctl, &args[1..], st)?;
        let d = self.dst(&args[0], dt)?;
        self.push(Op::Lane(Box::new(LaneOp { d, dw: Self::width(dt), ..op })));
        Ok(())
    }

    /// A scalar operation without its destination.
    pub(super) fn lane_op(&mut self, f: LaneFn, ctl: Ctl, args: &[Arg], st: &[Ty]) -> Res<LaneOp> {
        let mut src = [(0, W::W32); 4];
        for (i, (arg, ty)) in args.iter().zip(st).enumerate() {
            src[i] = if *ty == Ty::Pred {
                let (p, _) = self.pred(arg)?;
                (u32::from(p), W::Pred)
            } else {
                (self.src(arg, *ty)?, Self::width(*ty))
            };
        }
        Ok(LaneOp { f, ctl, d: 0, dw: W::W32, src, n: st.len() as u8, approximate: false })
    }

    /// Vectorised two-operand operations on 32 bits.
    pub(super) fn bin32(&mut self, op: B32, args: &[Arg], ty: Ty, bty: Ty) -> Res<()> {
        self.arity(args, 3)?;
        let (a, b) = (self.src(&args[1], ty)?, self.src(&args[2], bty)?);
        let d = self.dst(&args[0], ty)?;
        self.push(Op::Bin32(op, d, a, b));
        Ok(())
    }

    /// Vectorised two-operand operations on 64 bits.
    pub(super) fn bin64(&mut self, op: B64, args: &[Arg], ty: Ty) -> Res<()> {
        self.arity(args, 3)?;
        let (a, b) = (self.src(&args[1], ty)?, self.src(&args[2], ty)?);
        let d = self.dst(&args[0], ty)?;
        self.push(Op::Bin64(op, d, a, b));
        Ok(())
    }

    /// Vectorised three-operand operations on 32 bits.
    pub(super) fn tern32(&mut self, op: T32, args: &[Arg], ty: Ty, cty: Ty) -> Res<()> {
        self.arity(args, 4)?;
        let (a, b, c) = (self.src(&args[1], ty)?, self.src(&args[2], ty)?, self.src(&args[3], cty)?);
        let d = self.dst(&args[0], ty)?;
        self.push(Op::Tern32(op, d, a, b, c));
        Ok(())
    }

    /// Vectorised one-operand operations on 32 bits.
    pub(super) fn un32(&mut self, op: U32, args: &[Arg], dt: Ty, st: Ty) -> Res<()> {
        self.arity(args, 2)?;
        let a = self.src(&args[1], st)?;
        let d = self.dst(&args[0], dt)?;
        self.push(Op::Un32(op, d, a));
        Ok(())
    }

    fn inst(&mut self, i: &Syntax) -> Res<()> {
        self.line = i.line;
        self.source = i.source;
        self.set_opcode(&i.op);
        self.cur = Uses::default();
        self.guard = (NO_PRED, false);
        if let Some((name, negated)) = &i.guard {
            match self.named(name) {
                Some((p, Ty::Pred)) => self.guard = (p as P, *negated),
                _ => return self.fail(name, "guard that is not a predicate"),
            }
        }
        let mut parts = i.op.split('.');
        let name = parts.next().unwrap_or("");
        let mut m = Mods { parts: parts.collect(), line: i.line };
        let args = &i.args[..];
        let start = self.code.insts.len();
        let known = self.flow_inst(name, &mut m, args)?
            || self.arith(name, &mut m, args)?
            || self.convert(name, &mut m, args)?
            || self.memory(name, &mut m, args)?
            || self.sync(name, &mut m, args)?
            || self.asynchronous(name, &mut m, args)?
            || self.matrix(name, &mut m, args)?;
        if !known {
            return self.fail(name, "instruction that is not known");
        }
        if let Some(first) = self.code.first.get_mut(start) {
            *first = true;
        }
        m.finish()
    }

    fn patch(&mut self) -> Res<()> {
        let target = |labels: &[Option<u32>], l: u32| labels[l as usize];
        for &at in &self.patches {
            match &mut self.code.insts[at].op {
                Op::Bra(l) => *l = target(&self.labels, *l).unwrap_or(0),
                Op::BrxIdx(_, list) => list.iter_mut().for_each(|l| *l = target(&self.labels, *l).unwrap_or(0)),
                _ => {}
            }
        }
        Ok(())
    }
}
