//! `Bake`: from models, kernels and targets to PTX files and the descriptors that include them. The one call that a
//! `build.rs` makes.

use crate::error::{Error, Result};
use crate::kernels::{
    self, Advance, Argmax, Attention, AttentionBatch, EmbeddingRow, EmbeddingRows, FlashDecodingChunk,
    FlashDecodingReduce, FusedRmsNormGateUp, FusedRmsNormQ4KGemv, FusedRmsNormQkv, Gemm, GemmTile, Grid,
    IncrementalAttention, Kernel, KvCacheScatter, PerHeadRmsNorm, PersistentDecoder, Phase, PhaseKernel, Products,
    QkNormRopeKvScatter, QkNormRopeKvWrite, Quantise, Repack, Saxpy,
};
use crate::ptx::{Builder, Dim, Module, Param, Text};
use crate::{KvType, Target};
pub use kiln_shape::DecoderPath;
use kiln_shape::{ModelShape, Numerics, ParamType, WeightType};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;

/// What the host has to know to launch a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// The entry's name.
    pub name: String,
    /// Threads per block.
    pub block: u32,
    /// How many blocks.
    pub grid: Grid,
    /// Bytes of static shared memory.
    pub static_shared: u32,
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// Whether a launch may begin before the launch before it ends.
    pub begins_early: bool,
    /// Its parameters, in order.
    pub params: Vec<Param>,
}

/// PTX for one target, with what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmittedModule {
    /// Its target.
    pub target: Target,
    /// The decoder that its kernels are; `None` for single kernels.
    pub decoder: Option<(DecoderPath, Numerics)>,
    /// The text.
    pub ptx: String,
    /// The kernels in it.
    pub kernels: Vec<Descriptor>,
}

/// Emits `kernels` as one module, its text in full.
///
/// # Errors
/// If a kernel cannot be built for `target`.
pub fn emit(
    target: Target,
    decoder: Option<(DecoderPath, Numerics)>,
    kernels: &[Box<dyn Kernel>],
) -> Result<EmittedModule> {
    emit_as(target, decoder, kernels, Text::Full)
}

/// Emits `kernels` as one module, its text as full as asked for.
///
/// # Errors
/// If a kernel cannot be built for `target`.
pub fn emit_as(
    target: Target,
    decoder: Option<(DecoderPath, Numerics)>,
    kernels: &[Box<dyn Kernel>],
    text: Text,
) -> Result<EmittedModule> {
    let module = build(target, decoder, kernels)?;
    Ok(EmittedModule { target, decoder, ptx: module.ptx_as(text), kernels: descriptors(&module, kernels) })
}

/// Emits `kernels` as a module for each of `targets`, its text as full as asked for. Kernels that do not look at their
/// target are built once.
///
/// # Errors
/// If a kernel cannot be built for one of the targets.
pub fn emit_for(
    targets: &[Target],
    decoder: Option<(DecoderPath, Numerics)>,
    kernels: &[Box<dyn Kernel>],
    text: Text,
) -> Result<Vec<EmittedModule>> {
    let Some(first) = targets.first() else {
        return Ok(Vec::new());
    };
    let module = build(*first, decoder, kernels)?;
    let Some(texts) = module.ptx_for(targets, text)? else {
        return targets.iter().map(|target| emit_as(*target, decoder, kernels, text)).collect();
    };
    let kernels = descriptors(&module, kernels);
    let emitted = targets.iter().zip(texts);
    Ok(emitted.map(|(target, ptx)| EmittedModule { target: *target, decoder, ptx, kernels: kernels.clone() }).collect())
}

/// Kernels of the stream path in fast numerics are a chain. In exact numerics one text serves all targets.
fn build(target: Target, decoder: Option<(DecoderPath, Numerics)>, kernels: &[Box<dyn Kernel>]) -> Result<Module> {
    let mut named: HashMap<&str, &dyn Kernel> = HashMap::new();
    for second in kernels {
        if let Some(first) = named.insert(second.name(), second.as_ref()) {
            let (first, second, kernel) = (format!("{first:?}"), format!("{second:?}"), second.name().to_owned());
            return Err(Error::KernelTwice { kernel, first, second });
        }
    }
    let module = Module::new(target);
    let is_chain = decoder == Some((DecoderPath::Stream, Numerics::Fast));
    let mut module = if is_chain { module.of_chain() } else { module };
    for kernel in kernels {
        kernels::add(&mut module, kernel.as_ref())?;
    }
    Ok(module)
}

fn descriptors(module: &Module, kernels: &[Box<dyn Kernel>]) -> Vec<Descriptor> {
    let functions = module.functions().zip(kernels);
    functions
        .map(|(function, kernel)| Descriptor {
            name: function.name().to_owned(),
            block: function.block(),
            grid: kernel.grid(),
            static_shared: function.static_shared(),
            dynamic_shared: function.dynamic_shared(),
            begins_early: function.begins_early(),
            params: function.params().to_vec(),
        })
        .collect()
}

/// The kernels of a decoder path for a model, in these numerics.
pub fn decoder(shape: ModelShape, types: &[WeightType], path: DecoderPath, numerics: Numerics) -> Vec<Box<dyn Kernel>> {
    match path {
        DecoderPath::Stream => {
            let embedding = EmbeddingRow { hidden: Dim::Baked(shape.hidden), types: types.to_vec() };
            let mut all: Vec<Box<dyn Kernel>> = vec![Box::new(embedding)];
            match numerics {
                Numerics::Exact => {
                    for phase in Phase::ALL {
                        all.push(Box::new(PhaseKernel { phase, shape, types: types.to_vec() }));
                    }
                }
                Numerics::Fast => all.push(Box::new(Products::new(shape, types))),
            }
            for kv in [KvType::F16, KvType::F32] {
                all.push(Box::new(QkNormRopeKvWrite::new(shape, kv)));
                all.push(Box::new(Attention::new(shape, kv, numerics)));
            }
            all.push(Box::new(Argmax));
            all.push(Box::new(Advance));
            all
        }
        DecoderPath::Persistent => {
            vec![Box::new(PersistentDecoder::for_shape(shape, types).with_numerics(numerics))]
        }
    }
}

/// The kernels of the stream path that take several tokens of a prompt at once, in fast numerics; none for a target without
/// their instructions, or where no type has them.
pub fn columns(shape: ModelShape, types: &[WeightType], target: Target) -> Vec<Box<dyn Kernel>> {
    let mut all: Vec<Box<dyn Kernel>> = vec![
        Box::new(Quantise::new(&shape, types)),
        Box::new(Gemm::narrow(shape, types)),
        Box::new(Gemm::wide(shape, types)),
        Box::new(GemmTile::new(shape, types)),
        Box::new(EmbeddingRows { hidden: shape.hidden, types: types.to_vec() }),
    ];
    all.push(Box::new(AttentionBatch { shape }));
    for kv in [KvType::F16, KvType::F32] {
        all.push(Box::new(QkNormRopeKvWrite::new(shape, kv).of_columns()));
        all.push(Box::new(Attention::new(shape, kv, Numerics::Fast).of_columns()));
    }
    let has = target.sm() >= 80 && all.iter().all(|kernel| kernel.check().is_ok()) && have_room(&all, target, 0);
    if has { all } else { Vec::new() }
}

/// Whether kernels of a shape can be baked for a target in these numerics: fast ones need a type that they take, and stage
/// a vector whole in the shared memory of that target and of each later one, which runs the text too.
pub fn fits(shape: &ModelShape, types: &[WeightType], target: Target, numerics: Numerics) -> bool {
    /// Bytes beside products in a persistent decoder.
    const BESIDE: u32 = 4 << 10;
    let products: [Box<dyn Kernel>; 1] = [Box::new(Products::new(*shape, types))];
    numerics == Numerics::Exact || have_room(&products, target, BESIDE)
}

/// Whether a target and each later one have the shared memory for these kernels, and so many bytes besides.
fn have_room(kernels: &[Box<dyn Kernel>], target: Target, beside: u32) -> bool {
    let Ok(module) = emit_as(target, None, kernels, Text::Light) else { return false };
    let needed = module.kernels.iter().map(|kernel| kernel.static_shared + kernel.dynamic_shared).max();
    let later = Target::ALL.into_iter().filter(|later| *later >= target);
    needed.is_some_and(|needed| later.map(Target::shared_per_block).all(|has| needed + beside <= has))
}

/// The persistent decoder of a model that writes down when each block did what.
pub fn tracing(shape: ModelShape, types: &[WeightType], numerics: Numerics) -> Vec<Box<dyn Kernel>> {
    vec![Box::new(PersistentDecoder::for_shape(shape, types).with_numerics(numerics).with_trace())]
}

/// The general kernels, whose sizes are launch parameters: useful without any model.
pub fn general() -> Vec<Box<dyn Kernel>> {
    let mut all = loading();
    all.push(Box::new(Saxpy));
    for head_dim in (32..=256).step_by(32) {
        all.push(Box::new(PerHeadRmsNorm::general(head_dim)));
    }
    for head_dim in [64, 80, 96, 128, 256] {
        all.push(Box::new(FlashDecodingReduce::general(head_dim)));
        for kv in [KvType::F16, KvType::F32] {
            let incremental = IncrementalAttention::general(head_dim, kv);
            all.push(Box::new(incremental.clone().with_wide_groups()));
            all.push(Box::new(incremental));
            let chunk = FlashDecodingChunk::general(head_dim, kv);
            all.push(Box::new(chunk.clone().with_wide_groups()));
            all.push(Box::new(chunk));
        }
    }
    for kv in [KvType::F16, KvType::F32] {
        all.push(Box::new(KvCacheScatter::general(kv)));
    }
    for weights in WeightType::ALL {
        let fused = FusedRmsNormQ4KGemv::general().with_weights(*weights);
        all.push(Box::new(fused.clone()));
        all.push(Box::new(fused.without_norm()));
    }
    for head_dim in [64, 128, 256] {
        for kv in [KvType::F16, KvType::F32] {
            all.push(Box::new(QkNormRopeKvScatter::general(head_dim, kv)));
        }
    }
    all.push(Box::new(FusedRmsNormQkv::general()));
    all.push(Box::new(FusedRmsNormGateUp::general()));
    all
}

/// What brings weights into the layout of the kernels, for any model.
pub fn loading() -> Vec<Box<dyn Kernel>> {
    let repack = WeightType::ALL.iter().filter_map(|ty| Repack::new(*ty));
    repack.map(|kernel| Box::new(kernel) as Box<dyn Kernel>).collect()
}

/// What to bake. Collects models, kernels and targets; [`Bake::write`] does it.
pub struct Bake {
    models: Vec<(String, ModelShape, Vec<WeightType>)>,
    kernels: Vec<Box<dyn Kernel>>,
    loading: bool,
    targets: Vec<Target>,
    kiln: Option<String>,
    tracing: bool,
    text: Text,
}

impl Default for Bake {
    /// [`Bake::new`].
    fn default() -> Bake {
        let (models, kernels, targets) = (Vec::new(), Vec::new(), Vec::new());
        Bake { models, kernels, loading: false, targets, kiln: None, tracing: false, text: Text::Light }
    }
}

impl std::fmt::Debug for Bake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kernels: Vec<&str> = self.kernels.iter().map(|kernel| kernel.name()).collect();
        f.debug_struct("Bake")
            .field("models", &self.models)
            .field("kernels", &kernels)
            .field("loading", &self.loading)
            .field("targets", &self.targets)
            .field("kiln", &self.kiln)
            .field("tracing", &self.tracing)
            .field("text", &self.text)
            .finish()
    }
}

impl Bake {
    /// Nothing, for no target.
    pub fn new() -> Bake {
        Bake::default()
    }

    /// Adds a model: its decoder for every path and numerics, for matrices of every type kiln supports. `name` becomes a static in
    /// capitals: `qwen3-8b` is `QWEN3_8B`.
    pub fn model(self, name: &str, shape: ModelShape) -> Bake {
        self.model_with_types(name, shape, WeightType::ALL)
    }

    /// As [`Bake::model`], for matrices of these types only: less PTX.
    pub fn model_with_types(mut self, name: &str, shape: ModelShape, types: &[WeightType]) -> Bake {
        self.models.push((name.to_owned(), shape, types.to_vec()));
        self
    }

    /// Adds a single kernel. All of them go into one static, `KERNELS`.
    pub fn kernel(mut self, kernel: impl Kernel + 'static) -> Bake {
        self.kernels.push(Box::new(kernel));
        self
    }

    /// Adds a single kernel under another entry name: for two sizes of one family.
    pub fn kernel_as(self, name: &str, kernel: impl Kernel + 'static) -> Bake {
        self.kernel(Renamed { name: name.to_owned(), kernel })
    }

    /// Adds the general kernels to the single ones, and those that loading a model needs once more in a static of their
    /// own, `LOADING`: a program that only runs models holds, and its driver translates, no others.
    pub fn general_kernels(mut self) -> Bake {
        self.kernels.extend(general());
        self.loading = true;
        self
    }

    /// Adds to each model's persistent path the kernels that trace: twice the PTX.
    pub fn tracing(mut self, tracing: bool) -> Bake {
        self.tracing = tracing;
        self
    }

    /// Keeps the source line of every instruction, and names as the kernels give them, in the PTX, which is light
    /// otherwise: profilers and the emulator then name lines of kernels, in twice as many bytes.
    pub fn provenance(mut self, provenance: bool) -> Bake {
        self.text = if provenance { Text::Full } else { Text::Light };
        self
    }

    /// Adds targets.
    pub fn targets(mut self, targets: impl IntoIterator<Item = Target>) -> Bake {
        self.targets.extend(targets);
        self
    }

    /// The path of the kiln crate in the generated code: `::kiln` unless said otherwise.
    pub fn kiln(mut self, path: &str) -> Bake {
        self.kiln = Some(path.to_owned());
        self
    }

    /// Whether each model's name makes a static of its own, and each kernel's an entry.
    fn check_names(&self) -> Result<()> {
        let mut taken = vec![("the list of models".to_owned(), "MODELS".to_owned())];
        taken.push(("the single kernels".to_owned(), "KERNELS".to_owned()));
        taken.push(("the kernels that load weights".to_owned(), "LOADING".to_owned()));
        for (model, ..) in &self.models {
            let fault = |what: String| Err(Error::ModelName { model: model.clone(), what });
            let name = identifier(model);
            if !is_identifier(&name) {
                return fault(format!(
                    "the static would be `{name}`; needs a letter, then letters, digits, `-`, `_` or `.`"
                ));
            }
            if let Some((owner, _)) = taken.iter().find(|(_, other)| *other == name) {
                return fault(format!("the static would be `{name}`, which is {owner}: each needs one of its own"));
            }
            taken.push((format!("model {model:?}"), name));
        }
        let fault = self.kernels.iter().find(|kernel| !is_identifier(kernel.name()));
        fault.map_or(Ok(()), |kernel| Err(Error::KernelName(kernel.name().to_owned())))
    }

    /// Writes `kiln_baked.rs`, to be included by `include!(concat!(env!("OUT_DIR"), "/kiln_baked.rs"))`, and the PTX
    /// files it includes, into `out_dir`. Unchanged files are left alone.
    ///
    /// # Errors
    /// [`Error::Targets`] without targets or with one twice, [`Error::ModelName`] for a name that cannot be a static's or
    /// stands twice, [`Error::Shape`] for a model no kernel fits, [`Error::KernelTwice`] for two kernels of one name,
    /// [`Error::Write`] if a file cannot be written.
    pub fn write(&self, out_dir: impl Into<PathBuf>) -> Result<()> {
        let out_dir = out_dir.into();
        let repeated = self.targets.iter().enumerate().any(|(i, target)| self.targets[..i].contains(target));
        if self.targets.is_empty() || repeated {
            return Err(Error::Targets(self.targets.clone()));
        }
        self.check_names()?;
        let mut targets = self.targets.clone();
        targets.sort();
        let kiln = self.kiln.as_deref().unwrap_or("::kiln");
        let mut source = Source { kiln, text: String::new(), files: Vec::new(), signatures: Vec::new() };
        let mut statics = Vec::new();
        for (name, shape, types) in &self.models {
            let mut modules = Vec::new();
            let decoders = DecoderPath::ALL.into_iter().flat_map(|path| Numerics::ALL.map(|numerics| (path, numerics)));
            for (path, numerics) in decoders {
                let having: Vec<Target> =
                    targets.iter().copied().filter(|t| fits(shape, types, *t, numerics)).collect();
                let mut kernels = decoder(*shape, types, path, numerics);
                if self.tracing && path == DecoderPath::Persistent {
                    kernels.extend(tracing(*shape, types, numerics));
                }
                // A session takes one of the persistent kernels, and the driver compiles what is in its module.
                let each = if path == DecoderPath::Persistent { 1 } else { kernels.len() };
                for part in kernels.chunks(each.max(1)) {
                    let emitted = emit_for(&having, Some((path, numerics)), part, self.text)
                        .map_err(|error| Error::Shape { model: name.clone(), what: error.to_string() })?;
                    modules.extend(emitted);
                }
            }
            // Its text for the first target that has them is that of all later ones.
            let with_columns = targets.iter().map(|target| (*target, columns(*shape, types, *target)));
            if let Some((target, kernels)) = with_columns.into_iter().find(|(_, kernels)| !kernels.is_empty()) {
                let emitted = emit_as(target, Some((DecoderPath::Stream, Numerics::Fast)), &kernels, self.text);
                modules.push(emitted.map_err(|error| Error::Shape { model: name.clone(), what: error.to_string() })?);
            }
            statics.push(source.model(name, shape, types, modules));
        }
        source.all_models(&statics);
        source.kernels("Single kernels", "KERNELS", emit_for(&targets, None, &self.kernels, self.text)?);
        if self.loading {
            source.kernels("Kernels that load weights", "LOADING", emit_for(&targets, None, &loading(), self.text)?);
        }
        let Source { text, mut files, .. } = source;
        files.push(("kiln_baked.rs".to_owned(), text));
        for (name, text) in files {
            let path = out_dir.join(name);
            if std::fs::read_to_string(&path).is_ok_and(|old| old == text) {
                continue;
            }
            std::fs::write(&path, text).map_err(|error| Error::Write { path, error })?;
        }
        Ok(())
    }
}

/// A kernel under another name.
#[derive(Debug)]
struct Renamed<K> {
    name: String,
    kernel: K,
}

impl<K: Kernel> Kernel for Renamed<K> {
    fn name(&self) -> &str {
        &self.name
    }

    fn block(&self) -> u32 {
        self.kernel.block()
    }

    fn grid(&self) -> Grid {
        self.kernel.grid()
    }

    fn check(&self) -> Result<(), String> {
        self.kernel.check()
    }

    fn build(&self, b: &mut Builder) {
        self.kernel.build(b);
    }
}

/// The generated Rust, and the files it includes.
struct Source<'a> {
    kiln: &'a str,
    text: String,
    files: Vec<(String, String)>,
    /// The lists of parameters of the static being written, and the constant that each is.
    signatures: Vec<(String, Vec<Param>)>,
}

impl Source<'_> {
    /// One line. Writing to a `String` does not fail.
    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        let _ = self.text.write_fmt(text);
        self.text.push('\n');
    }

    fn model(&mut self, name: &str, shape: &ModelShape, types: &[WeightType], modules: Vec<EmittedModule>) -> String {
        let (kiln, identifier) = (self.kiln, identifier(name));
        self.line(format_args!("/// Kernels for `{name}`."));
        self.line(format_args!("pub static {identifier}: {kiln}::baked::BakedModel = {{"));
        self.signatures(&modules);
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
        self.modules("", &format!("kiln_{}", identifier.to_lowercase()), modules);
        self.line(format_args!(") }}\n}};\n"));
        identifier
    }

    fn all_models(&mut self, statics: &[String]) {
        let kiln = self.kiln;
        let references: Vec<String> = statics.iter().map(|name| format!("&{name}")).collect();
        self.line(format_args!("/// Every baked model."));
        self.line(format_args!("#[allow(dead_code)] // a program may name its model and no list"));
        self.line(format_args!("pub static MODELS: &[&{kiln}::baked::BakedModel] = &[{}];\n", references.join(", ")));
    }

    fn kernels(&mut self, what: &str, identifier: &str, modules: Vec<EmittedModule>) {
        let kiln = self.kiln;
        self.line(format_args!("/// {what}."));
        self.line(format_args!("#[allow(dead_code)] // a program of models may take none of them"));
        self.line(format_args!("pub static {identifier}: {kiln}::baked::BakedKernels = {{"));
        self.signatures(&modules);
        self.line(format_args!("    {kiln}::baked::BakedKernels {{"));
        self.modules("modules: ", &format!("kiln_{}", identifier.to_lowercase()), modules);
        self.line(format_args!("}}\n}};"));
    }

    /// The lists of parameters, each once, under the name of the first kernel that has it.
    fn signatures(&mut self, modules: &[EmittedModule]) {
        let kiln = self.kiln;
        self.line(format_args!("    #[allow(unused_imports)] // of a few kernels some may be of no use"));
        self.line(format_args!(
            "    use {kiln}::baked::{{BakedKernel, BakedModule, DecoderPath, Grid, NumberType::*, Numerics, Param}};"
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

    /// Module by module; `field` stands in front of the list.
    fn modules(&mut self, field: &str, stem: &str, modules: Vec<EmittedModule>) {
        self.line(format_args!("    {field}&["));
        let mut bodies: Vec<(Option<(DecoderPath, Numerics)>, String)> = Vec::new();
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
            let decoder = match module.decoder {
                Some((path, numerics)) => format!("Some((DecoderPath::{path:?}, Numerics::{numerics:?}))"),
                None => "None".to_owned(),
            };
            self.line(format_args!("        BakedModule {{"));
            self.line(format_args!("            sm: {}, decoder: {decoder},", module.target.sm()));
            self.line(format_args!(
                "            ptx: concat!(include_str!(concat!(env!(\"OUT_DIR\"), \"/{file}\")), \"\\0\"),"
            ));
            self.line(format_args!("            kernels: &["));
            for Descriptor { name, block, grid, static_shared, dynamic_shared, begins_early, params } in &module.kernels
            {
                let params = self.signatures.iter().find(|(_, known)| known == params);
                let params = params.map_or("&[]", |(signature, _)| signature);
                let launch = format!("name: {name:?}, block: {block}, grid: Grid::{grid:?}, params: {params},");
                self.line(format_args!("                BakedKernel {{ {launch}"));
                self.line(format_args!(
                    "                    static_shared: {static_shared}, dynamic_shared: {dynamic_shared}, \
                     begins_early: {begins_early},"
                ));
                self.line(format_args!("                }},"));
            }
            self.line(format_args!("            ],\n        }},"));
            self.files.push((file, module.ptx));
        }
        self.line(format_args!("    ],"));
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

/// `qwen3-8b` as the name of a static: `QWEN3_8B`.
fn identifier(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

/// Whether Rust and PTX take it as a name. No keyword of Rust is all capitals.
fn is_identifier(name: &str) -> bool {
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let named = name.starts_with(|c: char| c.is_ascii_alphabetic())
        || name.starts_with('_') && name.contains(|c: char| c.is_ascii_alphanumeric());
    plain && named
}
