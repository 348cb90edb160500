//! `Bake`: from models, kernels and targets to PTX files and the descriptors that include them. The one call that a
//! `build.rs` makes.

mod source;

use crate::assembler::Assembler;
use crate::error::{Error, Result};
use crate::kernels::{
    self, Advance, Argmax, Attention, AttentionBatch, CausalAttention, Choose, EmbeddingRow, EmbeddingRows,
    FlashDecodingChunk, FlashDecodingReduce, FusedRmsNormGateUp, FusedRmsNormQ4KGemv, FusedRmsNormQkv, Gemm,
    GemmFloats, GemmSliced, GemmTile, GemmWarpgroups, Grid, IncrementalAttention, Kernel, KvCacheScatter,
    MatrixColumns, PerHeadRmsNorm, PersistentDecoder, Phase, PhaseKernel, Products, QkNormRopeKvScatter,
    QkNormRopeKvWrite, Quantise, Repack, RoundColumns, Saxpy,
};
use crate::ptx::{Builder, Dim, Module, Param, Text, is_identifier};
use crate::{KvType, ModelFile, Target, launches};
pub use kiln_shape::DecoderPath;
use kiln_shape::ring::ColumnMemory;
use kiln_shape::{ModelShape, Numerics, WeightType};
use source::{Source, identifier};
use std::collections::HashMap;
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
    /// Dynamic shared memory more for columns, where a launch may have several.
    pub column_shared: ColumnMemory,
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
            column_shared: function.column_shared(),
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
            let phase = |phase| -> Box<dyn Kernel> { Box::new(PhaseKernel { phase, shape, types: types.to_vec() }) };
            let mut all: Vec<Box<dyn Kernel>> = vec![Box::new(embedding)];
            if numerics == Numerics::Exact {
                all.extend(Phase::ALL.into_iter().filter(|of| *of != Phase::Head).map(phase));
            }
            for kv in [KvType::F16, KvType::F32] {
                all.push(Box::new(QkNormRopeKvWrite::new(shape, kv)));
                all.push(Box::new(Attention::new(shape, kv, numerics)));
            }
            all.push(Box::new(Advance));
            all.push(match numerics {
                Numerics::Exact => phase(Phase::Head),
                Numerics::Fast => Box::new(Products::new(shape, types)),
            });
            all.push(Box::new(Argmax));
            all.push(Box::new(Choose));
            all
        }
        DecoderPath::Persistent => {
            vec![Box::new(PersistentDecoder::for_shape(shape, types).with_numerics(numerics))]
        }
    }
}

/// The last kernels of the stream path: those that choose a token, whose text is the same for most targets.
const OF_CHOICE: usize = 2;

/// A decoder's kernels, module by module. The driver compiles all that is in a module: a session takes one of the persistent
/// kernels, and of the stream path's, where it takes others, those of the choice and of the head before it alone. In fast
/// numerics the kernel of the head has all phases.
pub fn parts(kernels: &[Box<dyn Kernel>], path: DecoderPath) -> Vec<&[Box<dyn Kernel>]> {
    match path {
        DecoderPath::Persistent => kernels.chunks(1).collect(),
        DecoderPath::Stream => {
            let (products, choice) = kernels.split_at(kernels.len().saturating_sub(OF_CHOICE));
            let (layers, head) = products.split_at(products.len().saturating_sub(1));
            vec![layers, head, choice]
        }
    }
}

/// The hidden size from which a bake has tiles of 128 columns beside those of 64.
const DOUBLE_TILES_FROM: u32 = 768;

/// The kernels of the stream path that take several tokens of a prompt at once, in fast numerics; none where these take no type.
pub fn columns(shape: ModelShape, types: &[WeightType], target: Target) -> Vec<Box<dyn Kernel>> {
    if target.is_own() {
        return of_own(shape, types, target);
    }
    let mut all = match Quantise::new(&shape, types).check() {
        Ok(()) => tiles(shape, types, target),
        Err(_) => Vec::new(),
    };
    let floats = GemmFloats::new(shape, types);
    if floats.check().is_ok() {
        all.push(Box::new(floats));
    }
    if all.is_empty() {
        return all;
    }
    all.push(Box::new(EmbeddingRows { hidden: shape.hidden, types: types.to_vec() }));
    all.push(Box::new(AttentionBatch::new(shape, types)));
    for kv in [KvType::F16, KvType::F32] {
        all.push(Box::new(QkNormRopeKvWrite::new(shape, kv).of_columns()));
        all.push(Box::new(Attention::new(shape, kv, Numerics::Fast).of_columns()));
    }
    let has = all.iter().all(|kernel| kernel.check().is_ok()) && have_room(&all, target, 0);
    if has { all } else { Vec::new() }
}

/// The kernels that round columns, and multiply them by tensor cores.
fn tiles(shape: ModelShape, types: &[WeightType], target: Target) -> Vec<Box<dyn Kernel>> {
    let mut all: Vec<Box<dyn Kernel>> =
        vec![Box::new(Quantise::new(&shape, types)), Box::new(Gemm::wide(shape, types))];
    // On sm_75 the text of tiles of eight columns would take a program beyond its size.
    let has_all_tiles = target.sm() >= 80;
    if has_all_tiles {
        all.insert(1, Box::new(Gemm::narrow(shape, types)));
        all.push(Box::new(GemmSliced::new(shape, types)));
    } else {
        all.push(Box::new(GemmTile::new(shape, types).by_more_warps()));
    }
    // A small model's matrices have too few rows for a chip's multiprocessors to share by such tiles.
    if has_all_tiles && shape.hidden >= DOUBLE_TILES_FROM {
        all.push(Box::new(GemmTile::new(shape, types).double()));
        all.push(Box::new(GemmSliced::new(shape, types).halved()));
    }
    all
}

/// Those of them that a chip has besides, by instructions of its own.
fn of_own(shape: ModelShape, types: &[WeightType], target: Target) -> Vec<Box<dyn Kernel>> {
    let all: Vec<Box<dyn Kernel>> = vec![Box::new(GemmWarpgroups::new(shape, types))];
    let has = shape.hidden >= DOUBLE_TILES_FROM && all[0].check().is_ok() && have_room(&all, target, 0);
    if has { all } else { Vec::new() }
}

/// Whether kernels of a shape can be baked for a target in these numerics: fast ones need a type that they take, and stage
/// a vector whole in the shared memory of that target and of each later one, which runs the text too.
pub fn fits(shape: &ModelShape, types: &[WeightType], target: Target, numerics: Numerics) -> bool {
    /// Bytes beside products in a persistent decoder.
    const BESIDE: u32 = 4 << 10;
    let products: [Box<dyn Kernel>; 1] = [Box::new(Products::new(*shape, types))];
    numerics == Numerics::Exact || products[0].check().is_ok() && have_room(&products, target, BESIDE)
}

/// Whether a target and each later one have the shared memory for these kernels, and so many bytes besides.
fn have_room(kernels: &[Box<dyn Kernel>], target: Target, beside: u32) -> bool {
    let module = match emit_as(target, None, kernels, Text::Light) {
        Ok(module) => module,
        // What cannot be emitted for another reason is not left out: whoever emits it says why.
        Err(error) => return !matches!(error, Error::SharedMemory { .. }),
    };
    let needed = module.kernels.iter().map(|kernel| kernel.static_shared + kernel.dynamic_shared).max();
    let later = Target::ALL.into_iter().filter(|later| *later >= target && !target.is_own()).chain([target]);
    needed.is_some_and(|needed| later.map(Target::shared_per_block).all(|has| needed + beside <= has))
}

/// The persistent decoder of a model for launches whose columns have no room for the FFN's vector whole; none where a target has no
/// such one.
pub fn slices(shape: ModelShape, types: &[WeightType], target: Target) -> Option<Box<dyn Kernel>> {
    let decoder = PersistentDecoder::for_shape(shape, types).with_numerics(Numerics::Fast);
    let has = !target.is_own() && decoder.may_slice(target);
    has.then(|| Box::new(decoder.with_slices()) as Box<dyn Kernel>)
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

/// The general kernels for many columns at once, by tensor cores, from sm_80 on.
pub fn batch() -> Vec<Box<dyn Kernel>> {
    let mut all: Vec<Box<dyn Kernel>> = vec![Box::new(RoundColumns::of_256()), Box::new(RoundColumns::of_32())];
    for ty in WeightType::ALL.iter().filter(|ty| ty.is_quantised()) {
        all.push(Box::new(MatrixColumns::new(*ty)));
    }
    for head_dim in [64, 128] {
        all.push(Box::new(CausalAttention::new(head_dim)));
    }
    all
}

/// What brings weights into the layout of the kernels, for any model.
pub fn loading() -> Vec<Box<dyn Kernel>> {
    let repack = WeightType::ALL.iter().filter_map(|ty| Repack::new(*ty));
    repack.map(|kernel| Box::new(kernel) as Box<dyn Kernel>).collect()
}

/// A model of a bake.
#[derive(Debug)]
struct Model {
    name: String,
    shape: ModelShape,
    types: Vec<WeightType>,
    /// The file whose header described it.
    file: Option<PathBuf>,
}

/// What to bake. Collects models, kernels and targets; [`Bake::write`] does it.
pub struct Bake {
    models: Vec<Model>,
    kernels: Vec<Box<dyn Kernel>>,
    /// The names of those that the program launches itself.
    own: Vec<String>,
    loading: bool,
    targets: Vec<Target>,
    kiln: Option<String>,
    tracing: bool,
    text: Text,
    assembler: Option<Assembler>,
}

impl Default for Bake {
    /// [`Bake::new`].
    fn default() -> Bake {
        let (models, kernels, own, targets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Bake {
            models,
            kernels,
            own,
            loading: false,
            targets,
            kiln: None,
            tracing: false,
            text: Text::Light,
            assembler: None,
        }
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
            .field("assembler", &self.assembler)
            .finish()
    }
}

impl Bake {
    /// Nothing, for no target.
    pub fn new() -> Bake {
        Bake::default()
    }

    /// Adds a model: its decoder for every path and numerics, for matrices of every type kiln supports. `name` becomes a
    /// static in capitals: `qwen3-8b` is `QWEN3_8B`.
    pub fn model(self, name: &str, shape: ModelShape) -> Bake {
        self.model_with_types(name, shape, WeightType::ALL)
    }

    /// As [`Bake::model`], for matrices of these types only: less PTX.
    pub fn model_with_types(mut self, name: &str, shape: ModelShape, types: &[WeightType]) -> Bake {
        self.models.push(Model { name: name.to_owned(), shape, types: types.to_vec(), file: None });
        self
    }

    /// Adds the model of a file, for matrices of the types that the file has.
    pub fn model_file(mut self, file: &ModelFile) -> Bake {
        let (name, types) = (file.name().to_owned(), file.types().to_vec());
        self.models.push(Model { name, shape: file.shape(), types, file: Some(file.path().to_owned()) });
        self
    }

    /// Adds a single kernel. All of them go into one static, `KERNELS`; `softmax_rows` also gets a struct for its launch,
    /// `SoftmaxRows`, with a field for each parameter. A comment in its place says why where there can be none: without
    /// addresses, with more than 25 parameters, or with one whose name can be no field's.
    pub fn kernel(mut self, kernel: impl Kernel + 'static) -> Bake {
        self.own.push(kernel.name().to_owned());
        self.kernels.push(Box::new(kernel));
        self
    }

    /// Adds a single kernel under another entry name: for two sizes of one family.
    pub fn kernel_as(self, name: &str, kernel: impl Kernel + 'static) -> Bake {
        self.kernel(Renamed { name: name.to_owned(), kernel })
    }

    /// Adds the general kernels to the single ones, those that loading a model needs once more in a static of their own,
    /// `LOADING`, and those for many columns in another, `BATCH`: a program holds, and its driver translates, those that it
    /// names.
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

    /// Holds beside each text the machine code that an assembler makes of it for each of the targets that it serves. A
    /// device of exactly that target loads it; the text stays for all others, and for drivers older than the assembler.
    pub fn machine_code(mut self, assembler: Assembler) -> Bake {
        self.assembler = Some(assembler);
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
        let mut taken = vec![("the list of models".to_owned(), "MODELS".to_owned(), None)];
        taken.push(("the single kernels".to_owned(), "KERNELS".to_owned(), None));
        taken.push(("the kernels that load weights".to_owned(), "LOADING".to_owned(), None));
        taken.push(("the kernels for many columns".to_owned(), "BATCH".to_owned(), None));
        for Model { name: model, file, .. } in &self.models {
            // Where either is a file's, that one's can be changed.
            let fault = |mut what: String, other: Option<&PathBuf>| {
                if let Some(file) = file.as_ref().or(other) {
                    what += &format!(". It is that of {}: `NAME=PATH` gives the model another", file.display());
                }
                Err(Error::ModelName { model: model.clone(), what })
            };
            let name = identifier(model);
            if !is_identifier(&name) {
                let what =
                    format!("the static would be `{name}`; needs a letter, then letters, digits, `-`, `_` or `.`");
                return fault(what, None);
            }
            if let Some((owner, _, other)) = taken.iter().find(|(_, known, _)| *known == name) {
                let what = format!("the static would be `{name}`, which is {owner}: each needs one of its own");
                return fault(what, *other);
            }
            taken.push((format!("model {model:?}"), name, file.as_ref()));
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
    /// [`Error::LaunchName`] for two whose launches would have one, [`Error::Assembler`] if the assembler refuses a text, [`Error::Write`] if a file cannot be written.
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
        let mut source = Source {
            kiln,
            text: String::new(),
            files: Vec::new(),
            signatures: Vec::new(),
            targets: &targets,
            assembler: self.assembler.as_ref(),
            jobs: Vec::new(),
        };
        let mut statics = Vec::new();
        for Model { name, shape, types, .. } in &self.models {
            let mut modules = Vec::new();
            let refused = |error: Error| Error::Shape { model: name.clone(), what: error.to_string() };
            let decoders = DecoderPath::ALL.into_iter().flat_map(|path| Numerics::ALL.map(|numerics| (path, numerics)));
            for (path, numerics) in decoders {
                let having: Vec<Target> =
                    targets.iter().copied().filter(|t| fits(shape, types, *t, numerics)).collect();
                let mut kernels = decoder(*shape, types, path, numerics);
                if self.tracing && path == DecoderPath::Persistent {
                    kernels.extend(tracing(*shape, types, numerics));
                }
                for part in parts(&kernels, path) {
                    modules.extend(emit_for(&having, Some((path, numerics)), part, self.text).map_err(refused)?);
                }
                if (path, numerics) == (DecoderPath::Persistent, Numerics::Fast) {
                    for target in having {
                        let kernel = slices(*shape, types, target);
                        let emitted =
                            kernel.map(|kernel| emit_as(target, Some((path, numerics)), &[kernel], self.text));
                        modules.extend(emitted.transpose().map_err(refused)?);
                    }
                }
            }
            // Their text for the first target from sm_80 on is that of all later ones, and sm_75 has its own. From sm_90 on
            // launches may begin early: a model that is not small has a text that does.
            let begins_early = |target: &Target| target.sm() >= 90 && shape.hidden >= DOUBLE_TILES_FROM;
            let (early, late): (Vec<Target>, Vec<Target>) = targets.iter().partition(|target| target.sm() < 80);
            let (chained, late): (Vec<Target>, Vec<Target>) = late.into_iter().partition(begins_early);
            // A chip's own has no other's text.
            let own: Vec<Target> = targets.iter().filter_map(|target| target.own()).collect();
            for targets in [early, late, chained, own] {
                let with_columns = targets.into_iter().map(|target| (target, columns(*shape, types, target)));
                let Some((target, kernels)) = with_columns.into_iter().find(|(_, kernels)| !kernels.is_empty()) else {
                    continue;
                };
                let emitted = emit_as(target, Some((DecoderPath::Stream, Numerics::Fast)), &kernels, self.text);
                modules.push(emitted.map_err(refused)?);
            }
            statics.push(source.model(name, shape, types, modules));
        }
        source.all_models(&statics);
        let single = emit_for(&targets, None, &self.kernels, self.text)?;
        let own = single.first().map_or(&[][..], |module| &module.kernels).iter();
        let own = own.filter(|kernel| self.own.contains(&kernel.name));
        let own: Vec<(&str, &[Param])> = own.map(|kernel| (kernel.name.as_str(), &*kernel.params)).collect();
        source.text += &launches::launches(kiln, &own)?;
        source.kernels("Single kernels", "KERNELS", single);
        if self.loading {
            source.kernels("Kernels that load weights", "LOADING", emit_for(&targets, None, &loading(), self.text)?);
            let having: Vec<Target> = targets.iter().copied().filter(|target| target.sm() >= 80).collect();
            source.kernels("Kernels for many columns", "BATCH", emit_for(&having, None, &batch(), self.text)?);
        }
        let Source { text, mut files, jobs, .. } = source;
        if let Some(assembler) = &self.assembler {
            assembler.assemble(&jobs, &out_dir)?;
        }
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
