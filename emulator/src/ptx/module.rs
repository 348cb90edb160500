//! A loaded module: its variables placed in memory, its kernels decoded.

use super::PtxError;
use super::ast::{Ast, Function, Init, Num, Var};
use super::decode::{self, Global};
use super::parser;
use super::types::{Space, Ty};
use crate::exec::inst::Code;
use crate::memory::Memory;
use std::collections::HashMap;
use std::rc::Rc;

/// A kernel's parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamInfo {
    /// Bytes from the start of the parameter buffer.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
    /// Alignment in bytes.
    pub align: u32,
}

/// What a launch has to know about a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelInfo {
    /// Entry name.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<ParamInfo>,
    /// Bytes of all parameters.
    pub param_bytes: u32,
    /// Bytes of static shared memory.
    pub static_shared: u32,
    /// Bytes of local memory per thread.
    pub local_bytes: u32,
    /// 32-bit registers per thread, as the emulator allots them; an assembler may need more or fewer.
    pub registers: u32,
    /// `.reqntid`
    pub reqntid: Option<[u32; 3]>,
    /// `.maxntid`
    pub maxntid: Option<[u32; 3]>,
    /// `.reqnctapercluster`
    pub cluster: Option<[u32; 3]>,
    /// `.minnctapersm`
    pub min_blocks: Option<u32>,
    /// The module's target: 75 for `sm_75`.
    pub target_sm: u32,
}

/// A module: parsed, decoded, its global variables allocated.
pub struct Module {
    pub(crate) kernels: HashMap<String, (KernelInfo, Code)>,
    pub(crate) sources: Vec<(String, u32)>,
    globals: Vec<(String, u64, u64)>,
    target_sm: u32,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module").field("kernels", &self.kernels.keys()).field("globals", &self.globals).finish()
    }
}

impl Module {
    /// Reads a module's text (a NUL ends it) and places its variables in device memory.
    pub fn load(text: &str, memory: &Memory) -> Result<Module, PtxError> {
        let ast = parser::parse(text)?;
        let mut globals = HashMap::new();
        let mut placed = Vec::new();
        let result = place(&ast, memory, &mut globals, &mut placed).and_then(|()| decode_all(&ast, &globals));
        match result {
            Ok(kernels) => Ok(Module { kernels, sources: ast.sources, globals: placed, target_sm: ast.sm }),
            Err(e) => {
                for (_, address, _) in placed {
                    let _ = memory.free(address);
                }
                Err(e)
            }
        }
    }

    /// A kernel by its entry name.
    pub fn kernel(&self, name: &str) -> Option<&KernelInfo> {
        self.kernels.get(name).map(|(info, _)| info)
    }

    /// Names of all kernels.
    pub fn kernel_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.kernels.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Address and size of a module-scope variable.
    pub fn global(&self, name: &str) -> Option<(u64, u64)> {
        self.globals.iter().find(|g| g.0 == name).map(|g| (g.1, g.2))
    }

    /// The module's target: 75 for `sm_75`.
    pub fn target_sm(&self) -> u32 {
        self.target_sm
    }

    /// Frees the module's variables.
    pub fn unload(&self, memory: &Memory) {
        for (_, address, _) in &self.globals {
            let _ = memory.free(*address);
        }
    }
}

fn place(
    ast: &Ast,
    memory: &Memory,
    globals: &mut HashMap<String, Global>,
    placed: &mut Vec<(String, u64, u64)>,
) -> Result<(), PtxError> {
    for v in &ast.vars {
        if v.space == Space::Shared {
            globals.insert(v.name.clone(), Global::Shared(v.clone()));
            continue;
        }
        if v.external {
            return Err(PtxError::new(v.line, &v.name, "external variable that nothing defines"));
        }
        let bytes = v.bytes();
        let address = memory.alloc(bytes.max(1)).map_err(|e| PtxError::new(v.line, &v.name, e.to_string()))?;
        placed.push((v.name.clone(), address, bytes));
        globals.insert(v.name.clone(), Global::Memory { address, constant: v.space == Space::Const });
    }
    for v in &ast.vars {
        if let Some(Global::Memory { address, .. }) = globals.get(&v.name) {
            let image = image(v, globals)?;
            memory.write(*address, &image).map_err(|e| PtxError::new(v.line, &v.name, e.to_string()))?;
        }
    }
    Ok(())
}

/// The initial bytes of a variable; what no value is given for is zero.
fn image(v: &Var, globals: &HashMap<String, Global>) -> Result<Vec<u8>, PtxError> {
    let size = v.ty.bytes() as usize;
    let mut out = Vec::with_capacity(v.bytes() as usize);
    for init in &v.init {
        let bits: u64 = match init {
            Init::Num(Num::Int(i)) => *i,
            Init::Num(Num::F32(b)) => u64::from(*b),
            Init::Num(Num::F64(d)) if v.ty == Ty::F32 => u64::from((*d as f32).to_bits()),
            Init::Num(Num::F64(d)) => d.to_bits(),
            Init::Address(name, offset) => match globals.get(name) {
                Some(Global::Memory { address, .. }) => address.wrapping_add_signed(*offset),
                _ => return Err(PtxError::new(v.line, name, "initial value names no variable in memory")),
            },
        };
        if size > 8 {
            return Err(PtxError::new(v.line, &v.name, "initial values of more than 64 bits are not supported"));
        }
        out.extend_from_slice(&bits.to_le_bytes()[..size]);
    }
    out.resize(v.bytes() as usize, 0);
    Ok(out)
}

fn decode_all(ast: &Ast, globals: &HashMap<String, Global>) -> Result<HashMap<String, (KernelInfo, Code)>, PtxError> {
    let functions: HashMap<String, Rc<Function>> = ast.functions.iter().map(|f| (f.name.clone(), f.clone())).collect();
    let mut kernels = HashMap::new();
    for f in ast.functions.iter().filter(|f| f.entry) {
        let mut params = Vec::new();
        let mut end = 0u32;
        for p in &f.params {
            let size = u32::try_from(p.bytes()).map_err(|_| PtxError::new(p.line, &p.name, "parameter too large"))?;
            let offset = end.next_multiple_of(p.align.max(1));
            end = offset + size;
            params.push(ParamInfo { offset, size, align: p.align });
        }
        let code = decode::kernel(f, &params, &functions, globals)?;
        let info = KernelInfo {
            name: f.name.clone(),
            params,
            param_bytes: end,
            static_shared: code.shared,
            local_bytes: code.local,
            registers: code.slots.clamp(16, 255),
            reqntid: f.reqntid,
            maxntid: f.maxntid,
            cluster: f.cluster,
            min_blocks: f.min_ctas,
            target_sm: ast.sm,
        };
        if kernels.insert(f.name.clone(), (info, code)).is_some() {
            return Err(PtxError::new(f.line, &f.name, "two kernels of one name"));
        }
    }
    Ok(kernels)
}
