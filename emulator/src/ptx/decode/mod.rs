//! The syntax tree to code: names become slots, opcodes become operations, calls are expanded in place.
//!
//! An opcode is read modifier by modifier, and whatever is left over at the end is an error: nothing is guessed.

mod convert;
mod flow;
mod logic;
mod matrix;
mod memory;
mod operands;
mod registers;
mod sync;
mod text;
mod values;

use super::PtxError;
use super::ast::{Function, Inst as Syntax, Stmt, Var};
use super::module::ParamInfo;
use super::types::{Space, Ty};
use crate::exec::inst::*;
use std::collections::HashMap;
use std::rc::Rc;
use text::Text;

/// Slots of a kernel before they are shared.
const MAX_SLOTS: u32 = 1 << 20;

type Res<T> = Result<T, PtxError>;

/// A module-scope variable.
pub(crate) enum Global {
    /// In device memory.
    Memory { address: u64, constant: bool },
    /// In shared memory: placed per kernel that names it.
    Shared(Var),
}

/// Functions and module-scope variables by name.
type Functions = HashMap<String, Rc<Function>>;
type Globals = HashMap<String, Global>;

#[derive(Debug, Clone)]
enum Entity {
    /// First slot (or predicate) and type.
    Register((u32, Ty)),
    Var {
        space: Space,
        address: u64,
    },
    Label(u32),
    Targets(Vec<String>),
}

/// What a first pass over a kernel tells the second.
#[derive(Debug, Default)]
struct Plan {
    /// Where dynamic shared memory begins: after all static shared memory.
    dynamic_base: u64,
    /// The slot of each slot of the first pass; registers that are never live together share one.
    slots: Vec<u32>,
}

struct Decoder<'a> {
    functions: &'a Functions,
    globals: &'a Globals,
    plan: Plan,
    scopes: Vec<HashMap<String, Entity>>,
    code: Code,
    consts: HashMap<(u64, bool), R>,
    opcodes: HashMap<String, u32>,
    /// Where each label stands.
    labels: Vec<u32>,
    /// Shared variables of the module that this kernel uses.
    shared: HashMap<String, u64>,
    /// First slot and number of slots of every register.
    widths: Vec<(u32, u32)>,
    /// Labels of the ends of the functions being expanded.
    returns: Vec<u32>,
    // The instruction at hand:
    origin: Origin,
    opcode: u32,
    guard: (P, bool),
    cur: Uses,
}

/// Decodes a kernel.
pub(crate) fn kernel(f: &Function, params: &[ParamInfo], functions: &Functions, globals: &Globals) -> Res<Code> {
    let pass = |plan| {
        let decoder = Decoder {
            functions,
            globals,
            plan,
            scopes: vec![HashMap::new()],
            // The sinks have up to 128 bits; the second predicate is the carry.
            code: Code { slots: 4, preds: 2, shared_align: 16, ..Default::default() },
            consts: HashMap::new(),
            opcodes: HashMap::new(),
            labels: Vec::new(),
            shared: HashMap::new(),
            widths: Vec::new(),
            returns: Vec::new(),
            origin: Origin { line: f.line, source: 0 },
            opcode: 0,
            guard: (NO_PRED, false),
            cur: Uses::default(),
        };
        decoder.kernel(f, params)
    };
    let Decoder { code: mut first, widths, .. } = pass(Plan::default())?;
    let unset = registers::unset(&first);
    let (slots, total) = registers::assign(&first, &widths, &unset.registers);
    let dynamic_base = first.shared.next_multiple_of(first.shared_align).into();
    let Decoder { mut code, plan, .. } = pass(Plan { dynamic_base, slots })?;
    let slot = |r: u32| if r >= PRED_BASE { r } else { plan.slots[r as usize] };
    // Kept: what has to be looked at when the instruction runs.
    let may_be_unset = |r: &u32| unset.registers[unset.index(*r)];
    for ((inst, uses), reads) in code.insts.iter_mut().zip(&mut first.uses).zip(&unset.reads) {
        uses.reads = reads.iter().map(|r| slot(*r)).collect();
        uses.writes = uses.writes.iter().copied().filter(may_be_unset).map(slot).collect();
        inst.flags |= if uses.reads.is_empty() { 0 } else { MAYBE_UNSET };
        inst.flags |= if uses.writes.is_empty() { 0 } else { TRACKED };
    }
    first.reg_names.retain(|(r, _)| may_be_unset(r));
    code.reg_names = first.reg_names.into_iter().map(|(r, name)| (slot(r), name)).collect();
    code.uses = first.uses;
    code.slots = total;
    Ok(code)
}

impl Decoder<'_> {
    /// One pass over a kernel.
    fn kernel(mut self, f: &Function, params: &[ParamInfo]) -> Res<Self> {
        for (p, info) in f.params.iter().zip(params) {
            self.declare(&p.name, Entity::Var { space: Space::Param, address: info.offset.into() })?;
        }
        self.block(&f.body)?;
        self.start("ret");
        self.push(Op::Exit);
        // Label numbers to places.
        let place = |label: &mut u32| *label = self.labels[*label as usize];
        for inst in &mut self.code.insts {
            match &mut inst.op {
                Op::Bra(label) => place(label),
                Op::BrxIdx(_, list) => list.iter_mut().for_each(place),
                _ => {}
            }
        }
        Ok(self)
    }

    fn fail<T>(&self, token: impl Into<String>, message: impl Into<String>) -> Res<T> {
        Err(PtxError::new(self.origin.line, token, message))
    }

    fn declare(&mut self, name: &str, e: Entity) -> Res<()> {
        match self.scopes.last_mut() {
            Some(scope) if !scope.contains_key(name) => {
                scope.insert(name.to_string(), e);
                Ok(())
            }
            _ => self.fail(name, "name declared twice"),
        }
    }

    fn lookup(&self, name: &str) -> Option<Entity> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name)).cloned()
    }

    /// Begins an instruction.
    fn start(&mut self, opcode: &str) {
        let next = self.code.names.len() as u32;
        self.opcode = *self.opcodes.entry(opcode.to_string()).or_insert(next);
        if self.opcode == next {
            self.code.names.push(opcode.to_string());
        }
        self.cur = Uses::default();
        self.guard = (NO_PRED, false);
    }

    /// Appends an operation; it reads what has been noted for the instruction and writes what has been noted since the
    /// operation before.
    fn push(&mut self, op: Op) {
        let mut uses = Uses { reads: self.cur.reads.clone(), writes: std::mem::take(&mut self.cur.writes) };
        if self.guard.0 != NO_PRED {
            uses.reads.push(PRED_BASE + self.guard.0);
        }
        self.code.insts.push(Inst { op, guard: self.guard.0, negated: self.guard.1, flags: 0 });
        self.code.origins.push(self.origin);
        self.code.opcode.push(self.opcode);
        self.code.first.push(false);
        self.code.uses.push(uses);
    }

    /// If `turn`, the last operation takes turns with other blocks.
    fn turn(&mut self, turn: bool) {
        if turn && let Some(inst) = self.code.insts.last_mut() {
            inst.flags = TURN;
            self.code.takes_turns = true;
        }
    }

    /// A body or a nested block, in a scope of its own.
    fn block(&mut self, body: &[Stmt]) -> Res<()> {
        self.scopes.push(HashMap::new());
        for s in body {
            let (name, line, entity) = match s {
                Stmt::Label(name, line) => (name, line, Entity::Label(self.new_label())),
                Stmt::Targets(name, list, line) => (name, line, Entity::Targets(list.clone())),
                _ => continue,
            };
            self.origin.line = *line;
            self.declare(name, entity)?;
        }
        for s in body {
            match s {
                Stmt::Label(name, _) => {
                    if let Some(Entity::Label(label)) = self.lookup(name) {
                        self.labels[label as usize] = self.code.insts.len() as u32;
                    }
                }
                Stmt::Inst(i) => self.inst(i)?,
                Stmt::Reg { ty, name, count, line } => {
                    self.origin.line = *line;
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

    fn new_label(&mut self) -> u32 {
        self.labels.push(0);
        self.labels.len() as u32 - 1
    }

    /// `.reg .b32 name<count>`, or one name.
    fn register(&mut self, ty: Ty, name: &str, count: Option<u32>) -> Res<()> {
        for i in 0..count.unwrap_or(1) {
            let name = if count.is_some() { format!("{name}{i}") } else { name.to_string() };
            if self.code.slots > MAX_SLOTS {
                return self.fail(name, "more registers than the emulator allows");
            }
            let register = if ty == Ty::Pred { (self.temp_pred()?, ty) } else { self.temp(ty) };
            self.declare(&name, Entity::Register(register))?;
            self.code.reg_names.push((register.0 | if ty == Ty::Pred { PRED_BASE } else { 0 }, name));
        }
        Ok(())
    }

    fn variable(&mut self, v: &Var) -> Res<()> {
        self.origin.line = v.line;
        let bytes = v.bytes();
        if bytes.saturating_add(self.code.local.into()) > 1 << 30 {
            return self.fail(&v.name, "variable too large");
        }
        let (space, address) = match v.space {
            Space::Shared => (Space::Shared, self.place_shared(v)?),
            // Parameters of calls live in local memory.
            Space::Local | Space::Param => {
                let at = self.code.local.next_multiple_of(v.align.max(1));
                self.code.local = at + bytes as u32;
                (Space::Local, u64::from(at))
            }
            _ => return self.fail(&v.name, "variables of this state space stand at module scope"),
        };
        self.declare(&v.name, Entity::Var { space, address })
    }

    /// `.extern .shared x[]` begins where static shared memory ends, which the first pass finds out.
    fn place_shared(&mut self, v: &Var) -> Res<u64> {
        if v.count.is_none() || v.external {
            self.code.shared_align = self.code.shared_align.max(v.align);
            return Ok(self.plan.dynamic_base);
        }
        let at = self.code.shared.next_multiple_of(v.align.max(1));
        let end = u64::from(at) + v.bytes();
        if end > 1 << 20 {
            return self.fail(&v.name, "more shared memory than any device has");
        }
        self.code.shared = end as u32;
        Ok(u64::from(at))
    }

    fn inst(&mut self, i: &Syntax) -> Res<()> {
        self.origin = Origin { line: i.line, source: i.source };
        self.start(&i.op);
        if let Some((name, negated)) = &i.guard {
            let Some((p, Ty::Pred)) = self.named(name) else {
                return self.fail(name, "guard that is not a predicate");
            };
            self.guard = (p, *negated);
        }
        let mut text = Text::new(&i.op, &i.args, i.line);
        let t = &mut text;
        let start = self.code.insts.len();
        let known = self.flow(t)?
            || self.logic(t)?
            || self.convert(t)?
            || self.memory(t)?
            || self.sync(t)?
            || self.matrix(t)?
            || self.value(t)?;
        if !known {
            return self.fail(t.name, "instruction that is not known");
        }
        if let Some(first) = self.code.first.get_mut(start) {
            *first = true;
        }
        t.finish()
    }
}
