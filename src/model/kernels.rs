//! The kernels of a model on a device: loaded once, every function looked up before anything runs.

use super::launches::{
    Advance, Argmax, Attention, AttentionBatch, Choose, EmbeddingRow, Exchange, Gemm, GemmFloats, PersistentDecoder,
    Phase, QkNormRopeKvWrite, Quantise, Trace,
};
use super::{KvType, Numerics};
use crate::baked::{BakedKernel, BakedModel, BakedModule, DecoderPath, newest, no_module};
use crate::driver::{Device, TensorMap};
use crate::kernel::{Kernel, LoadedModule};
use crate::shape::mailbox::command::COLUMNS;
use crate::shape::ring::{self, Depth};
use crate::shape::sliced::Cut;
use crate::shape::{Units, WeightType, presets};
use crate::{Error, Result};
use once_cell::sync::OnceCell;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The kernels whose element type is the cache's.
pub(crate) struct CacheKernels {
    pub(crate) qk_norm_rope_kv_write: Kernel<QkNormRopeKvWrite<'static>>,
    pub(crate) attention: Kernel<Attention<'static>>,
    /// The cut of the cache, by which attention has its grid.
    pub(crate) units: Units,
}

impl CacheKernels {
    /// Those of a module for a cache of type `kv`; `of` stands before its name in theirs.
    fn find(
        loaded: &LoadedModule,
        baked: &'static BakedModel,
        numerics: Numerics,
        kv: KvType,
        of: &str,
    ) -> Result<CacheKernels> {
        let (suffix, setting) = (kv.suffix(), setting(baked, None));
        Ok(CacheKernels {
            qk_norm_rope_kv_write: loaded.find(&format!("qk_norm_rope_kv_write_{of}{suffix}"), &setting)?,
            attention: loaded.find(&format!("attention_{of}{suffix}"), &setting)?,
            units: Units::of(numerics, kv, baked.shape.kv_heads),
        })
    }
}

/// The kernels of the head and of the choice behind it, on a stream.
pub(crate) struct HeadKernels {
    pub(crate) head: Kernel<Phase<'static>>,
    pub(crate) argmax: Kernel<Argmax<'static>>,
    pub(crate) choose: Kernel<Choose<'static>>,
    /// In fast numerics its kernel of the head has all phases.
    loaded: LoadedModule,
}

impl HeadKernels {
    pub(crate) fn load(device: &Device, baked: &'static BakedModel, numerics: Numerics) -> Result<HeadKernels> {
        let setting = setting(baked, None);
        let load = |kernel| LoadedModule::new(device, choose(device, baked, DecoderPath::Stream, numerics, kernel)?);
        let head = match numerics {
            Numerics::Exact => "rmsnorm_head",
            Numerics::Fast => "products",
        };
        // First what has one name in both numerics: so the error says which are there.
        let of_choice = load("choose")?;
        let loaded = load(head)?;
        Ok(HeadKernels {
            head: loaded.find(head, &setting)?,
            argmax: of_choice.find("argmax", &setting)?,
            choose: of_choice.find("choose", &setting)?,
            loaded,
        })
    }
}

/// All kernels of the stream path.
pub(crate) struct Kernels {
    pub(crate) of_head: Arc<HeadKernels>,
    pub(crate) embedding_row: Kernel<EmbeddingRow<'static>>,
    pub(crate) qkv: Kernel<Phase<'static>>,
    pub(crate) attention_output: Kernel<Phase<'static>>,
    pub(crate) gate_up: Kernel<Phase<'static>>,
    pub(crate) down: Kernel<Phase<'static>>,
    pub(crate) advance: Kernel<Advance<'static>>,
    f16: CacheKernels,
    f32: CacheKernels,
}

impl Kernels {
    pub(crate) fn load(
        device: &Device,
        baked: &'static BakedModel,
        numerics: Numerics,
        of_head: Arc<HeadKernels>,
    ) -> Result<Kernels> {
        let module = choose(device, baked, DecoderPath::Stream, numerics, "embedding_row")?;
        let loaded = LoadedModule::new(device, module)?;
        let setting = setting(baked, None);
        let of_cache = |kv| CacheKernels::find(&loaded, baked, numerics, kv, "");
        let phase = |name: &str| match numerics {
            Numerics::Exact => loaded.find(name, &setting),
            Numerics::Fast => of_head.loaded.find("products", &setting),
        };
        Ok(Kernels {
            embedding_row: loaded.find("embedding_row", &setting)?,
            qkv: phase("rmsnorm_qkv")?,
            attention_output: phase("attention_output_residual")?,
            gate_up: phase("rmsnorm_gate_up_swiglu")?,
            down: phase("down_residual")?,
            advance: loaded.find("advance", &setting)?,
            f16: of_cache(KvType::F16)?,
            f32: of_cache(KvType::F32)?,
            of_head,
        })
    }

    /// The kernels for a cache of type `kv`.
    pub(crate) fn of_cache(&self, kv: KvType) -> &CacheKernels {
        match kv {
            KvType::F16 => &self.f16,
            KvType::F32 => &self.f32,
        }
    }
}

/// The kernels that round columns and multiply them by tensor cores.
pub(crate) struct TileKernels {
    pub(crate) quantise: Kernel<Quantise<'static>>,
    /// Tiles of 16 columns, and of 64; from sm_80 on the latter by slices, and also those of eight, and, but for small
    /// models, of 128.
    pub(crate) wide: Kernel<Gemm<'static>>,
    pub(crate) narrow: Option<Kernel<Gemm<'static>>>,
    pub(crate) tile: Option<Kernel<Gemm<'static>>>,
    pub(crate) sliced: Option<Kernel<(Gemm<'static>, Cut)>>,
    /// By slices whose warps have half of the columns, beside those of 128.
    pub(crate) halved: Option<Kernel<(Gemm<'static>, Cut)>>,
    pub(crate) double: Option<Kernel<Gemm<'static>>>,
    /// Tiles of 128 columns by products of warpgroups, where the device has these, for matrices of some types.
    pub(crate) warpgroups: Option<Kernel<Gemm<'static>>>,
}

/// The kernels that take several tokens of a prompt at once: a state each, and a row of each vector.
pub(crate) struct ColumnKernels {
    pub(crate) embedding_rows: Kernel<EmbeddingRow<'static>>,
    f16: CacheKernels,
    f32: CacheKernels,
    /// Products of quantised weights, and of floats.
    pub(crate) tiles: Option<TileKernels>,
    pub(crate) floats: Option<Kernel<GemmFloats<'static>>>,
    /// Attention of neighbouring positions over an f16 cache.
    pub(crate) attention_batch: Kernel<AttentionBatch<'static>>,
}

impl TileKernels {
    /// Those of a module.
    fn find(
        loaded: &LoadedModule,
        module: &BakedModule,
        device: &Device,
        baked: &'static BakedModel,
    ) -> Result<TileKernels> {
        let setting = setting(baked, None);
        let gemm = |name| module.kernel(name).map(|kernel| loaded.find(kernel.name, &setting)).transpose();
        let sliced = |name| module.kernel(name).map(|kernel| loaded.find(kernel.name, &setting)).transpose();
        Ok(TileKernels {
            quantise: loaded.find("quantise", &setting)?,
            narrow: gemm("gemm_8")?,
            wide: loaded.find("gemm_16", &setting)?,
            tile: gemm("gemm_tile")?,
            sliced: sliced("gemm_sliced")?,
            halved: sliced("gemm_sliced_2")?,
            double: gemm("gemm_tile_128")?,
            warpgroups: own(device, baked)?,
        })
    }
}

impl ColumnKernels {
    /// Loads them; none where a bake has none for the device, as a text for later chips only.
    pub(crate) fn load(device: &Device, baked: &'static BakedModel) -> Result<Option<ColumnKernels>> {
        let Ok(module) = choose(device, baked, DecoderPath::Stream, Numerics::Fast, "embedding_rows") else {
            return Ok(None);
        };
        let (loaded, setting) = (LoadedModule::new(device, module)?, setting(baked, None));
        let of_cache = |kv| CacheKernels::find(&loaded, baked, Numerics::Fast, kv, "columns_");
        let floats = module.kernel("gemm_floats").map(|kernel| loaded.find(kernel.name, &setting)).transpose()?;
        let rounds = module.kernel("quantise").is_some();
        let tiles = rounds.then(|| TileKernels::find(&loaded, module, device, baked)).transpose()?;
        Ok(Some(ColumnKernels {
            embedding_rows: loaded.find("embedding_rows", &setting)?,
            f16: of_cache(KvType::F16)?,
            f32: of_cache(KvType::F32)?,
            tiles,
            floats,
            attention_batch: loaded.find("attention_batch_f16", &setting)?,
        }))
    }

    /// The kernels for a cache of type `kv`.
    pub(crate) fn of_cache(&self, kv: KvType) -> &CacheKernels {
        match kv {
            KvType::F16 => &self.f16,
            KvType::F32 => &self.f32,
        }
    }
}

/// The tiles of the device's own instructions; none where the bake has none, or a driver is too old for the text or for
/// tensor maps.
fn own(device: &Device, baked: &'static BakedModel) -> Result<Option<Kernel<Gemm<'static>>>> {
    let name = "gemm_warpgroups";
    if !TensorMap::is_supported(device) {
        return Ok(None);
    }
    let Ok(module) = choose(device, baked, DecoderPath::Stream, Numerics::Fast, name) else { return Ok(None) };
    match LoadedModule::new(device, module) {
        Err(Error::JitFailed { .. } | Error::PtxTooNew { .. }) => Ok(None),
        loaded => loaded?.find(name, &setting(baked, None)).map(Some),
    }
}

/// A launch with a ring and the exchange.
pub(crate) type Ringed<L> = ((L, Depth), Exchange<'static>);

/// A kernel of the persistent path.
pub(crate) enum Persistent {
    /// One that only decodes.
    Plain(Kernel<PersistentDecoder<'static>>),
    /// One that also traces.
    Tracing(Kernel<(PersistentDecoder<'static>, Trace<'static>)>),
    /// One that only decodes, with weights that come through a ring: one of that depth for each number of columns.
    Ring(Kernel<Ringed<PersistentDecoder<'static>>>, Vec<Depth>, Option<InSlices>),
    /// One that also traces, with such weights.
    TracingRing(Kernel<Ringed<(PersistentDecoder<'static>, Trace<'static>)>>, Vec<Depth>),
}

/// The kernel for launches with more columns than have room for the FFN's vector whole: it has that in slices.
pub(crate) struct InSlices {
    module: &'static BakedModule,
    /// Its rings, for so many columns more than the other kernel has, one, two and so on.
    depths: Vec<Depth>,
    /// Bytes of shared memory that its launches give besides.
    more: u32,
    /// Loaded for the first session that may need it; none where the driver refuses the text, or has room for fewer blocks: then
    /// sessions take turns.
    kernel: OnceCell<Option<Kernel<Ringed<PersistentDecoder<'static>>>>>,
}

impl InSlices {
    const NAME: &'static str = "persistent_decoder_slices";

    /// The newest one whose ring a device has room for beside more than `whole` columns, of which there is one at least.
    fn find(device: &Device, baked: &'static BakedModel, whole: u32, types: &[WeightType]) -> Option<InSlices> {
        if !ring::may_slice(types.iter().copied()) {
            return None;
        }
        let depths = |kernel| rings(device, kernel, types, whole + 1..=COLUMNS);
        let has_room = |module: &&'static BakedModule| {
            module.kernel(InSlices::NAME).is_some_and(|kernel| !depths(kernel).is_empty())
        };
        let module = newest(device, of(baked, DecoderPath::Persistent, Numerics::Fast).filter(has_room))?;
        let kernel = module.kernel(InSlices::NAME)?;
        let depths = depths(kernel);
        let more = shared(kernel, &depths, whole + 1);
        Some(InSlices { module, depths, more, kernel: OnceCell::new() })
    }

    /// Loads it, for as many blocks as are `resident` with the other kernel.
    fn load(&self, device: &Device, baked: &'static BakedModel, resident: u32) -> Result<()> {
        let load = || match LoadedModule::new(device, self.module) {
            Err(Error::JitFailed { .. } | Error::PtxTooNew { .. }) => Ok(None),
            loaded => {
                let kernel: Kernel<_> = loaded?.find_with(InSlices::NAME, &setting(baked, None), self.more)?;
                Ok(Some(kernel).filter(|kernel| kernel.resident() >= resident))
            }
        };
        self.kernel.get_or_try_init(load).map(drop)
    }

    fn loaded(&self) -> Option<&Kernel<Ringed<PersistentDecoder<'static>>>> {
        self.kernel.get()?.as_ref()
    }

    /// The kernel, if it is loaded, and the ring of launches with so many columns more than the other kernel has, and one.
    pub(crate) fn of(&self, more: usize) -> Option<(&Kernel<Ringed<PersistentDecoder<'static>>>, Depth)> {
        self.loaded().zip(self.depths.get(more).copied())
    }
}

impl Persistent {
    /// Finds it; each has a module of its own. A ring is as deep as the device has shared memory for it beside the rest,
    /// for weights of `types`; where that is too little, an older target's kernel is taken.
    pub(crate) fn load(
        device: &Device,
        baked: &'static BakedModel,
        numerics: Numerics,
        traces: bool,
        types: &[WeightType],
    ) -> Result<Persistent> {
        let (trace, feature) = if traces { ("_trace", Some("trace")) } else { ("", None) };
        let name = format!("persistent_decoder{trace}");
        let setting = setting(baked, feature);
        let fitting = Persistent::fitting(device, baked, numerics, &name, types);
        let module = fitting.map_or_else(|| choose(device, baked, DecoderPath::Persistent, numerics, &name), Ok);
        let module = module.map_err(|error| {
            match choose(device, baked, DecoderPath::Persistent, numerics, "persistent_decoder") {
                Ok(_) => Error::KernelNotBaked { kernel: name.clone(), setting: setting.clone() },
                Err(_) => error,
            }
        })?;
        let loaded = LoadedModule::new(device, module)?;
        let ring = module.kernel(&name).filter(|kernel| has_ring(kernel));
        Ok(match (ring, traces) {
            (None, false) => Persistent::Plain(loaded.find(&name, &setting)?),
            (None, true) => Persistent::Tracing(loaded.find(&name, &setting)?),
            (Some(kernel), traces) => {
                let mut rings = rings(device, kernel, types, 1..=COLUMNS);
                if rings.is_empty() {
                    // The least ring: its launch says how much is missing.
                    rings.push(Depth::LEAST);
                }
                let more = shared(kernel, &rings, 1);
                match traces {
                    false => {
                        let in_slices = InSlices::find(device, baked, rings.len() as u32, types);
                        Persistent::Ring(loaded.find_with(&name, &setting, more)?, rings, in_slices)
                    }
                    true => Persistent::TracingRing(loaded.find_with(&name, &setting, more)?, rings),
                }
            }
        })
    }

    /// Whether the decoder that the device would load takes weights through a ring.
    pub(crate) fn takes_ring(
        device: &Device,
        baked: &'static BakedModel,
        numerics: Numerics,
        types: &[WeightType],
    ) -> bool {
        let name = "persistent_decoder";
        let module = Persistent::fitting(device, baked, numerics, name, types);
        module.and_then(|module| module.kernel(name)).is_some_and(has_ring)
    }

    /// The module for the newest target whose ring, if it has one, the device has shared memory for.
    fn fitting(
        device: &Device,
        baked: &'static BakedModel,
        numerics: Numerics,
        name: &str,
        types: &[WeightType],
    ) -> Option<&'static BakedModule> {
        let fits = |module: &&'static BakedModule| {
            let kernel = module.kernel(name);
            kernel.is_some_and(|kernel| !has_ring(kernel) || !rings(device, kernel, types, 1..=1).is_empty())
        };
        newest(device, of(baked, DecoderPath::Persistent, numerics).filter(fits))
    }

    /// Whether its weights come through a ring.
    pub(crate) const fn has_ring(&self) -> bool {
        matches!(self, Persistent::Ring(..) | Persistent::TracingRing(..))
    }

    /// Columns that launches may have, by what is loaded.
    pub(crate) fn columns(&self) -> u32 {
        match self {
            Persistent::Plain(_) | Persistent::Tracing(_) => 1,
            Persistent::Ring(_, rings, in_slices) => {
                let in_slices = in_slices.as_ref().filter(|of| of.loaded().is_some());
                (rings.len() + in_slices.map_or(0, |of| of.depths.len())) as u32
            }
            Persistent::TracingRing(_, rings) => rings.len() as u32,
        }
    }

    /// The columns that they may have once all is loaded.
    pub(crate) fn most_columns(&self) -> u32 {
        match self {
            Persistent::Ring(_, rings, Some(in_slices)) => (rings.len() + in_slices.depths.len()) as u32,
            _ => self.columns(),
        }
    }

    /// Loads what launches with so many columns need, if there is anything.
    pub(crate) fn make_room(&self, device: &Device, baked: &'static BakedModel, columns: usize) -> Result<()> {
        match self {
            Persistent::Ring(kernel, rings, Some(in_slices)) if columns > rings.len() => {
                in_slices.load(device, baked, kernel.resident())
            }
            _ => Ok(()),
        }
    }

    /// Blocks that fit the device together.
    pub(crate) fn resident(&self) -> u32 {
        match self {
            Persistent::Plain(kernel) => kernel.resident(),
            Persistent::Tracing(kernel) => kernel.resident(),
            Persistent::Ring(kernel, ..) => kernel.resident(),
            Persistent::TracingRing(kernel, _) => kernel.resident(),
        }
    }
}

/// What bakes a model anew, with a feature besides.
fn setting(baked: &BakedModel, feature: Option<&str>) -> String {
    match presets::by_name(baked.name) {
        Some(preset) => {
            let features: Vec<&str> = std::iter::once(preset.feature).chain(feature).collect();
            format!("--features {}", features.join(","))
        }
        None => {
            let feature = feature.map_or(String::new(), |feature| format!(", with --features {feature}"));
            format!("a new bake of `{}`{feature}", baked.name)
        }
    }
}

/// Whether a decoder's weights come through a ring.
fn has_ring(kernel: &BakedKernel) -> bool {
    kernel.params.iter().any(|param| param.name == "ring_units")
}

/// The warps that take weights from a ring: all but the one that fills it.
const fn consumers(kernel: &BakedKernel) -> u32 {
    kernel.block / 32 - 1
}

/// The rings of a decoder on a device, for launches with so many columns.
fn rings(device: &Device, kernel: &BakedKernel, types: &[WeightType], columns: RangeInclusive<u32>) -> Vec<Depth> {
    // Dynamic shared memory begins at a multiple of 128 bytes.
    let taken = kernel.static_shared.next_multiple_of(128).checked_add(kernel.dynamic_shared);
    let left = taken.and_then(|taken| device.shared_memory_per_block().checked_sub(taken));
    let columns = (kernel.column_shared, columns);
    left.map_or(Vec::new(), |left| Depth::for_columns(left, columns, consumers(kernel), types.iter().copied()))
}

/// The most bytes of shared memory that launches with these rings give besides what the kernel takes; the first of them has so many
/// columns.
fn shared(kernel: &BakedKernel, rings: &[Depth], first: u32) -> u32 {
    let of = |(ring, columns): (&Depth, u32)| {
        kernel.column_shared.bytes(columns)?.checked_add(ring.bytes(consumers(kernel)))
    };
    rings.iter().zip(first..).filter_map(of).max().unwrap_or(0)
}

/// Whether there are kernels of both paths for the device, in some numerics; none is loaded.
pub(crate) fn check(device: &Device, baked: &'static BakedModel) -> Result<()> {
    DecoderPath::ALL.into_iter().try_for_each(|path| {
        let found = Numerics::ALL.into_iter().find_map(|numerics| newest(device, of(baked, path, numerics)));
        found.map(drop).ok_or_else(|| no_module(baked.name, device.sm()))
    })
}

/// The modules of a decoder, by target and, on the persistent path, by kernel.
fn of(baked: &'static BakedModel, path: DecoderPath, numerics: Numerics) -> impl Iterator<Item = &'static BakedModule> {
    baked.modules.iter().filter(move |module| module.decoder == Some((path, numerics)))
}

/// The module of a decoder that has a kernel, for the newest target that is not newer than the device.
fn choose(
    device: &Device,
    baked: &'static BakedModel,
    path: DecoderPath,
    numerics: Numerics,
    kernel: &str,
) -> Result<&'static BakedModule> {
    let found = |numerics| newest(device, of(baked, path, numerics).filter(|module| module.kernel(kernel).is_some()));
    found(numerics).ok_or_else(|| {
        // The other numerics, where only these are missing.
        match Numerics::ALL.into_iter().find(|other| found(*other).is_some()) {
            Some(other) => Error::KernelNotBaked {
                kernel: format!("{} in {numerics} numerics", baked.name),
                setting: format!("a target whose blocks have the shared memory for them, or take {other} numerics"),
            },
            None => no_module(baked.name, device.sm()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{ModelShape, WeightTypes};

    #[test]
    fn advice_names_features_of_presets_only() {
        let shape: ModelShape = presets::PRESETS[0].shape;
        let of = |name| BakedModel { name, shape, types: WeightTypes::ALL, modules: &[] };
        assert_eq!(setting(&of("qwen3-8b"), None), "--features qwen3-8b");
        assert_eq!(setting(&of("qwen3-8b"), Some("trace")), "--features qwen3-8b,trace");
        assert_eq!(setting(&of("mine.Q8_0"), Some("trace")), "a new bake of `mine.Q8_0`, with --features trace");
    }
}
