//! The file that a bake generates: statics that include the texts and say how their kernels are launched.

use super::{Descriptor, EmittedModule};
use crate::Target;
use crate::assembler::{Assembler, Job};
use crate::ptx::Param;
use kiln_shape::{DecoderPath, ModelShape, Numerics, ParamType, WeightType};
use std::fmt::Write as _;

/// The generated Rust, and the files it includes.
pub(super) struct Source<'a> {
    pub(super) kiln: &'a str,
    pub(super) text: String,
    pub(super) files: Vec<(String, String)>,
    /// The lists of parameters of the static being written, and the constant that each is.
    pub(super) signatures: Vec<(String, Vec<Param>)>,
    /// What is baked for, ascending.
    pub(super) targets: &'a [Target],
    pub(super) assembler: Option<&'a Assembler>,
    /// Texts that become machine code.
    pub(super) jobs: Vec<Job>,
}

impl Source<'_> {
    /// One line. Writing to a `String` does not fail.
    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        let _ = self.text.write_fmt(text);
        self.text.push('\n');
    }

    pub(super) fn model(
        &mut self,
        name: &str,
        shape: &ModelShape,
        types: &[WeightType],
        modules: Vec<EmittedModule>,
    ) -> String {
        let (kiln, identifier) = (self.kiln, identifier(name));
        self.line(format_args!("/// Kernels for `{name}`."));
        self.line(format_args!("pub static {identifier}: {kiln}::baked::BakedModel = {{"));
        self.signatures(&modules);
        self.modules(["const MODULES: &[BakedModule] = &[", "];"], &stem(&identifier), modules);
        self.line(format_args!(
            "    // SAFETY: the modules were made for this shape and these types, with the launches listed."
        ));
        self.line(format_args!("    unsafe {{ {kiln}::baked::BakedModel::new("));
        self.line(format_args!("    {name:?},"));
        let ModelShape { qkv_bias, qk_norm, rope, hidden, ffn, heads, kv_heads, head_dim, .. } = *shape;
        let ModelShape { layers, vocab, tied_head, rope_theta, rms_eps, context, .. } = *shape;
        self.line(format_args!("    {kiln}::shape::ModelShape {{"));
        self.line(format_args!("        qkv_bias: {qkv_bias}, qk_norm: {qk_norm},"));
        self.line(format_args!("        rope: {kiln}::shape::RopePairing::{rope:?}, hidden: {hidden}, ffn: {ffn},"));
        self.line(format_args!("        heads: {heads}, kv_heads: {kv_heads}, head_dim: {head_dim},"));
        self.line(format_args!("        layers: {layers}, vocab: {vocab}, tied_head: {tied_head},"));
        self.line(format_args!("        rope_theta: {rope_theta:?}, rms_eps: {rms_eps:?}, context: {context},"));
        self.line(format_args!("    }},"));
        let types: Vec<String> = types.iter().map(|ty| format!("{kiln}::shape::WeightType::{ty:?}")).collect();
        self.line(format_args!("    {kiln}::shape::WeightTypes::of(&[{}]),", types.join(", ")));
        self.line(format_args!("    MODULES,"));
        self.line(format_args!(") }}\n}};\n"));
        identifier
    }

    pub(super) fn all_models(&mut self, statics: &[String]) {
        let kiln = self.kiln;
        let references: Vec<String> = statics.iter().map(|name| format!("&{name}")).collect();
        self.line(format_args!("/// Every baked model."));
        self.line(format_args!("#[allow(dead_code)] // a program may name its model and no list"));
        self.line(format_args!("pub static MODELS: &[&{kiln}::baked::BakedModel] = &[{}];\n", references.join(", ")));
    }

    pub(super) fn kernels(&mut self, what: &str, identifier: &str, modules: Vec<EmittedModule>) {
        let kiln = self.kiln;
        self.line(format_args!("/// {what}."));
        self.line(format_args!("#[allow(dead_code)] // a program of models may take none of them"));
        self.line(format_args!("pub static {identifier}: {kiln}::baked::BakedKernels = {{"));
        self.signatures(&modules);
        self.line(format_args!("    {kiln}::baked::BakedKernels {{"));
        self.modules(["modules: &[", "],"], &stem(identifier), modules);
        self.line(format_args!("}}\n}};"));
    }

    /// The lists of parameters, each once, under the name of the first kernel that has it.
    fn signatures(&mut self, modules: &[EmittedModule]) {
        let kiln = self.kiln;
        self.line(format_args!("    #[allow(unused_imports)] // of a few kernels some may be of no use"));
        self.line(format_args!(
            "    use {kiln}::baked::{{BakedKernel, BakedModule, ColumnMemory, DecoderPath, Grid, MachineCode, NumberType::*, Numerics, Param}};"
        ));
        self.signatures.clear();
        for Descriptor { name, params, .. } in modules.iter().flat_map(|module| &module.kernels) {
            if self.signatures.iter().any(|(_, known)| known == params) {
                continue;
            }
            // A kernel may take more on one target than on another.
            let (plain, further) = (identifier(name), format!("{}__", identifier(name)));
            let is_taken = |(known, _): &&(String, Vec<Param>)| *known == plain || known.starts_with(&further);
            let signature = match self.signatures.iter().filter(is_taken).count() {
                0 => plain.clone(),
                before => format!("{further}{before}"),
            };
            let params_text: Vec<String> = params.iter().map(param).collect();
            self.line(format_args!("    const {signature}: &[Param] = &[{}];", params_text.join(", ")));
            self.signatures.push((signature, params.clone()));
        }
    }

    /// Module by module, between the words that open and close the list.
    fn modules(&mut self, [open, close]: [&str; 2], stem: &str, modules: Vec<EmittedModule>) {
        self.line(format_args!("    {open}"));
        let mut bodies: Vec<(Option<(DecoderPath, Numerics)>, String)> = Vec::new();
        let mut all: Vec<(String, EmittedModule)> = Vec::new();
        for module in modules {
            let of = match (module.decoder, module.kernels.as_slice()) {
                (Some((DecoderPath::Persistent, numerics)), [kernel]) => format!("_{}_{numerics}", kernel.name),
                (Some((path, numerics)), _) => format!("_{}_{numerics}", path.name()),
                (None, _) => String::new(),
            };
            let mut file = format!("{stem}_{}{of}.ptx", module.target);
            // A decoder's second module is named after its first kernel too.
            if self.files.iter().any(|(known, _)| *known == file) {
                let first = module.kernels.first().map_or("", |kernel| &kernel.name);
                file = format!("{stem}_{}{of}_{first}.ptx", module.target);
            }
            let body = (module.decoder, body(&module.ptx).to_owned());
            if bodies.contains(&body) {
                self.files.push((file, module.ptx));
                continue;
            }
            bodies.push(body);
            all.push((file.clone(), module.clone()));
            self.files.push((file, module.ptx));
        }
        for (file, module) in &all {
            let decoder = match module.decoder {
                Some((path, numerics)) => format!("Some((DecoderPath::{path:?}, Numerics::{numerics:?}))"),
                None => "None".to_owned(),
            };
            self.line(format_args!("        BakedModule {{"));
            let (sm, only) = (module.target.sm(), module.target.is_own());
            self.line(format_args!("            sm: {sm}, only: {only}, decoder: {decoder},"));
            self.line(format_args!(
                "            ptx: concat!(include_str!(concat!(env!(\"OUT_DIR\"), \"/{file}\")), \"\\0\"),"
            ));
            self.line(format_args!("            kernels: &["));
            for kernel in &module.kernels {
                let Descriptor {
                    name,
                    block,
                    grid,
                    static_shared,
                    dynamic_shared,
                    column_shared,
                    begins_early,
                    params,
                } = kernel;
                let params = self.signatures.iter().find(|(_, known)| known == params);
                let params = params.map_or("&[]", |(signature, _)| signature);
                let launch = format!("name: {name:?}, block: {block}, grid: Grid::{grid:?}, params: {params},");
                self.line(format_args!("                BakedKernel {{ {launch}"));
                self.line(format_args!(
                    "                    static_shared: {static_shared}, dynamic_shared: {dynamic_shared}, \
                     column_shared: {column_shared:?}, begins_early: {begins_early},"
                ));
                self.line(format_args!("                }},"));
            }
            self.line(format_args!("            ],"));
            self.machine_code(file, module, &all);
            self.line(format_args!("        }},"));
        }
        self.line(format_args!("    {close}"));
    }
}

impl Source<'_> {
    /// The machine code of a module, for each target whose devices take it of those that hold the same kernels.
    fn machine_code(&mut self, file: &str, module: &EmittedModule, all: &[(String, EmittedModule)]) {
        let Some(assembler) = self.assembler else {
            return self.line(format_args!("            machine_code: &[],"));
        };
        let alike = |other: &EmittedModule| {
            let first = |module: &EmittedModule| module.kernels.first().map(|kernel| kernel.name.clone());
            other.decoder == module.decoder && first(other) == first(module)
        };
        self.line(format_args!("            machine_code: &["));
        let own = Some(module.target).filter(|target| target.is_own());
        for target in own.iter().chain(self.targets.iter().filter(|_| own.is_none())) {
            let taken = all.iter().map(|(_, other)| other).filter(|other| other.target <= *target && alike(other));
            if taken.map(|other| other.target).max() != Some(module.target) {
                continue;
            }
            let cubin = assembler.file(file, *target, &module.ptx);
            let sm = target.sm();
            self.line(format_args!(
                "                // SAFETY: the assembler made it of the text above, for this target."
            ));
            self.line(format_args!("                unsafe {{"));
            self.line(format_args!(
                "                    MachineCode::new({sm}, include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{cubin}\")))"
            ));
            self.line(format_args!("                }},"));
            self.jobs.push(Job { file: cubin, target: *target, ptx: module.ptx.clone() });
        }
        self.line(format_args!("            ],"));
    }
}

/// The text without its version and target. Where that is the same for two targets, the older one's module serves both:
/// PTX runs on every later chip, and the program holds it once.
fn body(ptx: &str) -> &str {
    ptx.find(".address_size").map_or(ptx, |at| &ptx[at..])
}

/// A parameter as the generated file has it.
fn param(Param { name, ty, .. }: &Param) -> String {
    match ty {
        ParamType::Value(number) => format!("Param::value({name:?}, {number:?})"),
        ParamType::Read(number) => format!("Param::read({name:?}, {number:?})"),
        ParamType::Write(number) => format!("Param::write({name:?}, {number:?})"),
    }
}

/// What the names of a static's files begin with.
fn stem(identifier: &str) -> String {
    format!("kiln_{}", identifier.to_lowercase())
}

/// `qwen3-8b` as the name of a static: `QWEN3_8B`.
pub(super) fn identifier(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}
