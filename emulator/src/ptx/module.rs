//! Loaded modules: variables in memory, decoded kernels.

use super::ast::{Arg, Ast, Body, Function, Num, Stmt, Var};
use super::decode::{self, Entity, Names};
use super::parser;
use super::{PtxError, Res};
use crate::exec::inst::Program;
use crate::machine::kernel::{KernelInfo, ParamInfo};
use crate::machine::lock::lock;
use crate::machine::types::{Space, Ty};
use crate::memory::{CODE_BASE, Memory};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};

/// Most bytes of parameters.
const MAX_PARAM_BYTES: u32 = 32_764;

/// A module's kernels by their entry names.
type Kernels = BTreeMap<String, (KernelInfo, Program)>;

/// Bytes of text whose kernels are remembered.
const REMEMBERED: usize = 8 << 20;

/// Kernels of texts read last, newest last: a program opens several devices, and loads the same modules on each.
static RECENT: Mutex<VecDeque<(String, Arc<Kernels>)>> = Mutex::new(VecDeque::new());

/// A loaded module: decoded kernels, and global variables in device memory.
#[derive(Debug, Default)]
pub struct Module {
    pub(crate) kernels: Arc<Kernels>,
    /// Why kernels are not understood.
    refused: BTreeMap<String, PtxError>,
    /// Global variables: name, address and size.
    globals: Vec<(String, u64, u64)>,
}

impl Module {
    /// Reads a module's text (a NUL ends it) and places its variables in device memory. Kernels that are not understood
    /// are [`Module::refused`]; if none is, the error is that of the first.
    pub fn load(text: &str, memory: &Memory) -> Res<Module> {
        if let Some((_, kernels)) = lock(&RECENT).iter().find(|(known, _)| known == text) {
            return Ok(Module { kernels: kernels.clone(), ..Module::default() });
        }
        let mut ast = parser::parse(text)?;
        address_functions(&mut ast, text);
        let mut module = Module::default();
        let globals = module.place(&ast, memory);
        let decoded = globals.and_then(|globals| decode(&ast, &globals));
        let (kernels, refused) = decoded.inspect_err(|_| module.unload(memory))?;
        (module.kernels, module.refused) = (Arc::new(kernels), refused);
        // Where there are variables, their addresses are in the kernels.
        if module.globals.is_empty() && module.refused.is_empty() && text.len() <= REMEMBERED {
            let mut recent = lock(&RECENT);
            recent.push_back((text.to_owned(), module.kernels.clone()));
            while recent.iter().map(|(text, _)| text.len()).sum::<usize>() > REMEMBERED {
                recent.pop_front();
            }
        }
        Ok(module)
    }

    /// A kernel by its entry name.
    pub fn kernel(&self, name: &str) -> Option<&KernelInfo> {
        self.kernels.get(name).map(|(info, _)| info)
    }

    /// Kernels that hold what the emulator does not understand, with the reason. They cannot be launched; the others can.
    pub fn refused(&self) -> impl Iterator<Item = (&str, &PtxError)> {
        self.refused.iter().map(|(name, error)| (name.as_str(), error))
    }

    /// Why a kernel cannot be launched.
    pub(crate) fn refusal(&self, name: &str) -> Option<&PtxError> {
        self.refused.get(name)
    }

    /// Names of all kernels that can be launched.
    pub fn kernel_names(&self) -> impl Iterator<Item = &str> {
        self.kernels.keys().map(String::as_str)
    }

    /// What an assembler is expected to make of a kernel, as the clock counts it: of each line of PTX that takes any
    /// instructions the pipe and their number.
    pub fn instructions(&self, kernel: &str) -> Vec<(u32, &'static str, u32)> {
        let Some((_, code)) = self.kernels.get(kernel) else { return Vec::new() };
        let costs = code.costs().iter().zip(&code.origins);
        let each = costs.flat_map(|(cost, origin)| cost.instructions().map(|(pipe, n)| (origin.line, pipe, n)));
        each.filter(|(.., n)| *n > 0).collect()
    }

    /// Address and size of a module-scope variable.
    pub fn global(&self, name: &str) -> Option<(u64, u64)> {
        self.globals.iter().find(|g| g.0 == name).map(|g| (g.1, g.2))
    }

    /// Frees the module's variables.
    pub fn unload(&self, memory: &Memory) {
        for (_, address, _) in &self.globals {
            let _ = memory.free(*address);
        }
    }

    /// Allocates variables, then writes their initial values, which may contain addresses.
    fn place(&mut self, ast: &Ast, memory: &Memory) -> Res<Names> {
        let mut names = Names::new();
        for v in &ast.vars {
            let entity = match v.space {
                Space::Shared => Entity::Shared(v.clone()),
                _ if v.count.is_none() => return Err(v.error("external variable that nothing defines")),
                space => {
                    let address = memory.alloc(v.bytes().max(1)).map_err(|e| v.error(e.to_string()))?;
                    self.globals.push((v.name.clone(), address, v.bytes()));
                    Entity::Var { space, address }
                }
            };
            if names.insert(v.name.clone(), entity).is_some() {
                return Err(v.error("name declared twice"));
            }
        }
        for v in &ast.vars {
            if let Some(Entity::Var { address, .. }) = names.get(&v.name) {
                let written = memory.write(*address, &image(v, &names, &ast.functions)?);
                written.map_err(|e| v.error(e.to_string()))?;
            }
        }
        Ok(names)
    }
}

/// Gives functions their addresses, and finds those that are taken: named by an initial value or a `mov`.
///
/// Addresses follow from the text: two modules' functions differ, and a text's are the same on every run.
fn address_functions(ast: &mut Ast, text: &str) {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3); // FNV-1a
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    let mut names: HashSet<String> = HashSet::new();
    let mut take = |arg: &Arg| {
        if let Arg::Word(name) | Arg::Offset(name, _) = arg {
            names.insert(name.clone());
        }
    };
    ast.vars.iter().flat_map(|v| &v.init).for_each(&mut take);
    ast.functions.iter().for_each(|f| moved(&f.body, &mut take));
    for (address, f) in (CODE_BASE + ((hash >> 36) << 16)..).step_by(16).zip(&mut ast.functions) {
        (f.address, f.taken) = (address, names.contains(&f.info.name));
    }
}

/// The sources of all `mov` of a body.
fn moved(body: &Body, take: &mut impl FnMut(&Arg)) {
    for (_, statement) in body {
        match statement {
            Stmt::Block(inner) => moved(inner, take),
            Stmt::Inst(i) if i.op.starts_with("mov") => i.args.iter().skip(1).for_each(&mut *take),
            _ => {}
        }
    }
}

/// Decodes a module's kernels: those that are understood, and why others are not.
fn decode(ast: &Ast, globals: &Names) -> Res<(Kernels, BTreeMap<String, PtxError>)> {
    let (mut kernels, mut refused, mut first) = (Kernels::new(), BTreeMap::new(), None);
    for f in ast.functions.iter().filter(|f| f.entry) {
        let name = f.info.name.clone();
        if kernels.contains_key(&name) || refused.contains_key(&name) {
            return Err(PtxError::new(f.line, &name, "two kernels of one name"));
        }
        match entry(f, ast, globals) {
            Ok(kernel) => drop(kernels.insert(name, kernel)),
            Err(error) => {
                first.get_or_insert_with(|| error.clone());
                refused.insert(name, error);
            }
        }
    }
    match first {
        Some(error) if kernels.is_empty() => Err(error),
        _ => Ok((kernels, refused)),
    }
}

/// Decodes a kernel.
fn entry(f: &Function, ast: &Ast, globals: &Names) -> Res<(KernelInfo, Program)> {
    let (mut params, mut names, mut param_bytes) = (Vec::new(), Names::new(), 0);
    for p in &f.params {
        let offset = p.place(&mut param_bytes, MAX_PARAM_BYTES)?;
        params.push(ParamInfo { offset, size: p.bytes() as u32 });
        let param = Entity::Var { space: Space::Param, address: offset.into() };
        if names.insert(p.name.clone(), param).is_some() {
            return Err(p.error("name declared twice"));
        }
    }
    f.refused.clone().map_or(Ok(()), Err)?;
    let code = decode::kernel(&f.body, &names, &ast.functions, globals)?;
    let registers = code.slots.clamp(16, 255);
    let (static_shared, local_bytes, target_sm, info) = (code.shared, code.local, ast.sm, f.info.clone());
    let info = KernelInfo { params, param_bytes, static_shared, local_bytes, registers, target_sm, ..info };
    Ok((info, code))
}

/// The initial bytes of a variable, zero where no value is given.
fn image(v: &Var, names: &Names, functions: &[Function]) -> Res<Vec<u8>> {
    let function = |name: &str| functions.iter().find(|f| !f.entry && f.info.name == name).map(|f| f.address);
    let address = |name: &str| match names.get(name) {
        Some(Entity::Var { address, .. }) => Ok(*address),
        _ => function(name).ok_or_else(|| {
            PtxError::new(v.line, name, "initial value names no variable in memory, and no function with a body")
        }),
    };
    let size = v.ty.bytes() as usize;
    let mut image = vec![0; v.bytes() as usize];
    for (element, value) in image.chunks_mut(size.max(1)).zip(&v.init) {
        let bits = match value {
            Arg::Num(Num::Int(i)) if size <= 8 => *i,
            Arg::Num(Num::F32(bits)) if size == 4 => u64::from(*bits),
            Arg::Num(Num::F64(d)) if v.ty == Ty::F32 => u64::from((*d as f32).to_bits()),
            Arg::Num(Num::F64(d)) if size == 8 => d.to_bits(),
            Arg::Word(name) if size == 8 => address(name)?,
            Arg::Offset(name, offset) if size == 8 => address(name)?.wrapping_add_signed(*offset),
            _ => return Err(v.error("initial value that the variable's type does not have")),
        };
        element.copy_from_slice(&bits.to_le_bytes()[..size]);
    }
    Ok(image)
}
