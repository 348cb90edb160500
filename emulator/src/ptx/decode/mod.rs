//! Decoder: the syntax tree to programs. Names become slots, opcodes operations, calls are expanded in place.
//!
//! An opcode is read modifier by modifier, and a modifier that nothing reads is an error: nothing is guessed.

mod call;
mod convert;
mod copy;
mod flow;
mod logic;
mod matrix;
mod memory;
mod operands;
mod registers;
mod sync;
mod text;
mod values;
mod warp;

use super::ast::{Body, Function, Inst as Syntax, Stmt, Var};
use super::{PtxError, Res};
use crate::exec::inst::*;
use crate::exec::step::Flow;
use crate::exec::{Cpu, Site};
use crate::machine::fault::OrFault;
use crate::machine::origin::Origin;
use crate::machine::types::{Space, Ty};
use registers::Registers;
use std::collections::HashMap;
use std::sync::Arc;
use text::Text;

/// Most slots of a kernel before slots are shared.
const MAX_SLOTS: u32 = 1 << 20;
/// Most bytes of a thread's local memory.
const MAX_LOCAL: u32 = 1 << 30;
/// Most bytes of static shared memory, more than any device has.
const MAX_SHARED: u32 = 1 << 20;
/// Slots of the sink, which takes up to 128 bits.
const SINK: u32 = 4;

/// A register: its number in the `Uses` of the first pass, and its type.
type Register = (u32, Ty);

/// The entities of a scope, by name.
pub(crate) type Names = HashMap<String, Entity>;

#[derive(Debug, Clone)]
pub(crate) enum Entity {
    Register(Register),
    Var {
        space: Space,
        address: u64,
    },
    /// A shared variable of the module, placed in each kernel that names it.
    Shared(Var),
    Label(u32),
    /// Results and parameters of the functions that a call may have.
    Prototype(Arc<(Vec<Var>, Vec<Var>)>),
    /// Functions that a call may have, or labels of a branch by index.
    Targets(Arc<[String]>),
}

#[derive(Default)]
struct Decoder<'a> {
    functions: &'a [Function],
    /// Variables of the module.
    globals: Names,
    scopes: Vec<Names>,
    /// Registers by the first pass; `None` during it.
    plan: Option<Registers>,
    /// Offset of dynamic shared memory, behind the static memory that the first pass counts.
    dynamic_base: u64,
    code: Program,
    consts: HashMap<(u64, bool), R>,
    /// Instruction index of each label.
    labels: Vec<u32>,
    /// Number of slots of each register, by its first slot.
    widths: HashMap<u32, u32>,
    /// Labels of the ends of the functions being expanded, and their names.
    returns: Vec<u32>,
    calls: Vec<String>,
    // The instruction at hand:
    origin: Origin,
    guard: (P, bool),
    /// Its registers.
    uses: Uses,
}

/// Decodes a kernel's body in two passes, since only the whole body tells which registers can share slots.
pub(crate) fn kernel(body: &Body, params: &Names, functions: &[Function], globals: &Names) -> Res<Program> {
    let pass = |plan, dynamic_base| {
        // The second predicate is the carry.
        let code = Program { slots: SINK, preds: 2, shared_align: 16, ..Program::default() };
        let (globals, scopes) = (globals.clone(), vec![params.clone()]);
        let mut decoder = Decoder { functions, globals, scopes, plan, dynamic_base, code, ..Decoder::default() };
        decoder.block(body)?;
        decoder.start(Origin { opcode: "ret".into(), ..decoder.origin.clone() });
        decoder.push(Op::Exit);
        // Label numbers to places.
        for inst in &mut decoder.code.insts {
            if let Op::Bra(label) = &mut inst.op {
                *label = decoder.labels[*label as usize];
            }
        }
        Ok(decoder)
    };
    let Decoder { code: first, widths, .. } = pass(None, 0)?;
    let plan = registers::assign(&first, &widths);
    let slots = plan.total;
    let second = pass(Some(plan), first.shared.next_multiple_of(first.shared_align).into())?;
    Ok(Program { slots, ..second.code })
}

/// What an instruction belongs to, where the emulator has nothing of it.
fn absent(t: &Text<'_>) -> Option<&'static str> {
    Some(match t.name {
        "wgmma" if t.has("mma_async") && !is_of_bytes(t) => {
            "a product of a warpgroup but of bytes with rows in registers"
        }
        "tcgen05" => "an instruction of tensor memory",
        "tex" | "tld4" | "txq" => "an access to a texture",
        "suld" | "sust" | "sured" | "suq" => "an access to a surface",
        "tensormap" => "a change of a tensor map",
        "cp" | "prefetch" if t.has("tensor") && !is_of_tiles(t) || t.has("tensormap") => "a copy by a tensor map",
        "cp" if t.has("reduce") => "a copy that reduces",
        "multimem" => "an access to multicast memory",
        "alloca" | "stacksave" | "stackrestore" => "memory on the stack",
        "brkpt" => "a breakpoint",
        "clusterlaunchcontrol" => "a cancelled launch of a cluster",
        "setmaxnreg" => "a change of a warp's number of registers",
        "mma" if t.has("sp") || t.has("sp::ordered_metadata") => "a product of a sparse matrix",
        "mma" if t.has("block_scale") => "a product of scaled matrices",
        // The one of them that chips still have as an instruction of its own.
        "vabsdiff4" if t.has("add") => return None,
        name if is_video(name) => "a video instruction",
        _ => return None,
    })
}

/// Whether a product of a warpgroup is one of bytes whose rows are in registers.
fn is_of_bytes(t: &Text<'_>) -> bool {
    t.has("s32") && matches!(t.args, [_, super::ast::Arg::Vector(_), ..])
}

/// Whether a copy by a tensor map is one of tiles into shared memory of one block.
fn is_of_tiles(t: &Text<'_>) -> bool {
    let others = ["im2col", "multicast", "tile::gather4"];
    t.has("mbarrier::complete_tx::bytes")
        && !t.parts.iter().any(|part| others.iter().any(|other| part.starts_with(other)))
}

/// Whether an opcode is one of the video instructions, as `vadd`, `vadd2`, `vadd4`.
fn is_video(name: &str) -> bool {
    let stem = name.strip_prefix('v').map(|name| name.trim_end_matches(['2', '4']));
    stem.is_some_and(|stem| ["add", "sub", "absdiff", "min", "max", "avrg", "shl", "shr", "mad", "set"].contains(&stem))
}

impl Decoder<'_> {
    fn fail<T>(&self, token: impl Into<String>, message: impl Into<String>) -> Res<T> {
        Err(PtxError::new(self.origin.line, token, message))
    }

    fn declare(&mut self, name: &str, e: Entity) -> Res<()> {
        match self.scopes.last_mut().and_then(|scope| scope.insert(name.to_string(), e)) {
            Some(_) => self.fail(name, "name declared twice"),
            None => Ok(()),
        }
    }

    fn lookup(&self, name: &str) -> Option<Entity> {
        self.scopes.iter().rev().chain([&self.globals]).find_map(|scope| scope.get(name)).cloned()
    }

    /// Begins an instruction.
    fn start(&mut self, origin: Origin) {
        (self.origin, self.guard) = (origin, (NO_PRED, false));
        self.uses = Uses::default();
    }

    /// Appends an operation. It reads all registers noted for the instruction, and writes those noted since the last
    /// operation.
    fn push(&mut self, op: Op) {
        let uses = Uses { reads: self.uses.reads.clone(), writes: std::mem::take(&mut self.uses.writes) };
        self.code.insts.push(Inst { op, guard: self.guard.0, negated: self.guard.1, flags: 0 });
        self.code.origins.push(self.origin.clone());
        self.code.registers.push(uses);
        self.origin.first = false;
    }

    /// Pushes an effect.
    pub(super) fn effect(
        &mut self,
        run: impl Fn(&mut Cpu<'_>, &mut Site<'_>) -> OrFault<Flow> + Send + Sync + 'static,
    ) {
        self.push(Op::Effect(Box::new(run), None));
    }

    /// Pushes an effect that cannot fault.
    pub(super) fn act<T>(&mut self, run: impl Fn(&mut Cpu<'_>, &mut Site<'_>) -> T + Send + Sync + 'static) {
        self.effect(move |cpu, site| {
            run(cpu, site);
            Ok(Flow::Next)
        });
    }

    /// Sets a flag of the last operation.
    pub(super) fn flag(&mut self, flag: u8) {
        self.code.insts.iter_mut().next_back().into_iter().for_each(|inst| inst.flags |= flag);
    }

    /// Marks the last operation as one that takes turns, if `turn`.
    fn turn(&mut self, turn: bool) {
        if turn {
            self.flag(TURN);
            self.code.takes_turns = true;
        }
    }

    /// A body or a nested block, in a scope of its own.
    fn block(&mut self, body: &Body) -> Res<()> {
        self.scopes.push(Names::new());
        for (line, s) in body {
            self.origin.line = *line;
            match s {
                Stmt::Label(name) => {
                    let label = self.new_label();
                    self.declare(name, Entity::Label(label))?;
                }
                Stmt::Prototype(name, prototype) => self.declare(name, Entity::Prototype(prototype.clone()))?,
                Stmt::Targets(name, targets) => self.declare(name, Entity::Targets(targets.clone()))?,
                Stmt::Inst(_) | Stmt::Registers(..) | Stmt::Variables(_) | Stmt::Block(_) => {}
            }
        }
        for (line, s) in body {
            self.origin.line = *line;
            match s {
                Stmt::Label(name) => self.place_label(self.label(name)?),
                Stmt::Inst(i) => self.inst(i, *line)?,
                Stmt::Registers(ty, list) => list.iter().try_for_each(|(name, n)| self.register(*ty, name, *n))?,
                Stmt::Variables(list) => list.iter().try_for_each(|v| self.variable(v))?,
                Stmt::Block(b) => self.block(b)?,
                Stmt::Prototype(..) | Stmt::Targets(..) => {}
            }
        }
        self.scopes.pop();
        Ok(())
    }

    fn new_label(&mut self) -> u32 {
        self.labels.push(0);
        self.labels.len() as u32 - 1
    }

    /// Places a label at the next operation.
    fn place_label(&mut self, label: u32) {
        self.labels[label as usize] = self.code.insts.len() as u32;
    }

    /// `.reg .b32 name<count>`, or one name.
    fn register(&mut self, ty: Ty, name: &str, count: Option<u32>) -> Res<()> {
        for i in 0..count.unwrap_or(1) {
            let name = if count.is_some() { format!("{name}{i}") } else { name.to_string() };
            if self.code.slots > MAX_SLOTS {
                return self.fail(name, "more registers than the emulator allows");
            }
            let register = if ty == Ty::Pred { (PRED_BASE + self.temp_pred()?, ty) } else { self.temp(ty) };
            self.declare(&name, Entity::Register(register))?;
            let r = self.find(register);
            if self.plan.as_ref().is_some_and(|plan| plan.unset.contains(&register.0)) {
                self.code.unset.push(r);
                self.code.reg_names.push((r, name));
            }
        }
        Ok(())
    }

    fn variable(&mut self, v: &Var) -> Res<()> {
        let (space, address) = match v.space {
            Space::Shared => (Space::Shared, self.place_shared(v)?),
            // Parameters of calls live in local memory.
            Space::Local | Space::Param => (Space::Local, v.place(&mut self.code.local, MAX_LOCAL)?.into()),
            _ => return self.fail(&v.name, "variables of this state space stand at module scope"),
        };
        self.declare(&v.name, Entity::Var { space, address })
    }

    /// Places a shared variable; `.extern .shared x[]` behind all static shared memory.
    fn place_shared(&mut self, v: &Var) -> Res<u64> {
        if v.count.is_none() {
            self.code.shared_align = self.code.shared_align.max(v.align);
            return Ok(self.dynamic_base);
        }
        Ok(v.place(&mut self.code.shared, MAX_SHARED)?.into())
    }

    fn inst(&mut self, i: &Syntax, line: u32) -> Res<()> {
        self.start(Origin { line, source: i.source.clone(), opcode: i.op.clone(), first: true, rolled: i.rolled });
        if let Some((name, negated)) = &i.guard {
            let Some(guard @ (_, Ty::Pred)) = self.named(name) else {
                return self.fail(name, "guard that is not a predicate");
            };
            self.guard = (self.read(guard), *negated);
        }
        let t = &mut Text::new(i, line);
        if let Some(what) = absent(t) {
            return self.fail(t.opcode, format!("{what}, which the emulator does not have"));
        }
        let known = self.flow(t)?
            || self.logic(t)?
            || self.convert(t)?
            || self.memory(t)?
            || self.warp(t)?
            || self.sync(t)?
            || self.asynchronous(t)?
            || self.matrix(t)?
            || self.value(t)?;
        if !known {
            return self.fail(t.name, "instruction that is not known, or not with these operands");
        }
        t.finish()
    }
}
