//! Models: weights on a device, sessions with a KV cache, and the generation of tokens.
//!
//! `file` opens and checks a GGUF file, `weights` brings it onto the device, `kernels` loads what was baked. A
//! `sequence` is a session's memory on the device. A `path` is a way of running it: `stream`, the launches of each
//! `token` or `graphs` of them, or `persistent`, one launch for whole sequences, whose shares `balance` computes; `batches`
//! runs prompts on each, several tokens as `columns`. `session` and `generation` are what a program uses, `sampling` how
//! tokens are chosen, by the host or by its words for kernels, which `choosing` launches, `kept` sessions in files. `cost`
//! predicts how long a token takes, from which `auto` takes the path.

mod auto;
mod balance;
mod batches;
mod choosing;
mod columns;
pub mod cost;
mod edits;
mod file;
mod generation;
mod graphs;
mod kept;
mod kernels;
mod launches;
mod path;
mod persistent;
mod rotary;
mod sampling;
mod sequence;
mod session;
mod stream;
mod tiles;
mod token;
#[cfg(feature = "trace")]
pub mod trace;
mod weights;

pub use file::ModelFile;
#[cfg(feature = "text")]
pub(crate) use generation::Running;
pub use generation::{CancelHandle, GenerateOptions, Generation};
pub use path::{End, Work};
pub use sampling::{Constraint, Logprobs, Sampler, Sampling, TokenSet};
pub use session::{PathChoice, Session, SessionOptions};
pub use weights::{MemoryNeed, Progress};

use crate::Result;
use crate::baked::BakedModel;
use crate::driver::Device;
use crate::shape::{Gguf, ModelShape};
pub use crate::shape::{KvType, Numerics};
use kernels::{ColumnKernels, HeadKernels, Kernels, Persistent};
use once_cell::sync::OnceCell;
use rotary::Rotary;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use weights::Weights;

/// A model on a device: weights and kernels. Cheap to clone; sessions share it.
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    device: Device,
    file: ModelFile,
    weights: Weights,
    baked: &'static BakedModel,
    exact: Loaded,
    fast: Loaded,
    rotary: Mutex<Option<Arc<Rotary>>>,
    decoders: Mutex<Vec<(persistent::Key, Weak<persistent::Decoder>)>>,
    /// What the next prompt takes.
    spare: Arc<batches::Spare>,
}

/// A model's kernels in one numerics, each loaded by the first session that takes it.
#[derive(Default)]
struct Loaded {
    /// Kernels of the stream path and the graph path.
    stream: OnceCell<Arc<Kernels>>,
    /// Those of them that every path's prompts take too: of the head, and of the choice behind it.
    head: OnceCell<Arc<HeadKernels>>,
    /// Kernels of every path that take several tokens of a prompt at once, where there are any.
    columns: OnceCell<Option<Arc<ColumnKernels>>>,
    /// Kernels of the persistent path: one that only decodes, and one that traces.
    persistent: [OnceCell<Arc<Persistent>>; 2],
}

impl Inner {
    fn loaded(&self, numerics: Numerics) -> &Loaded {
        match numerics {
            Numerics::Exact => &self.exact,
            Numerics::Fast => &self.fast,
        }
    }

    fn stream_kernels(&self, numerics: Numerics) -> Result<Arc<Kernels>> {
        let load = || {
            let of_head = self.head_kernels(numerics)?;
            Kernels::load(&self.device, self.baked, numerics, of_head).map(Arc::new)
        };
        self.loaded(numerics).stream.get_or_try_init(load).cloned()
    }

    /// The kernels of the head and of the choice behind it.
    fn head_kernels(&self, numerics: Numerics) -> Result<Arc<HeadKernels>> {
        let load = || HeadKernels::load(&self.device, self.baked, numerics).map(Arc::new);
        self.loaded(numerics).head.get_or_try_init(load).cloned()
    }

    /// The kernels for several tokens of a prompt at once; none in exact numerics.
    fn column_kernels(&self, numerics: Numerics) -> Result<Option<Arc<ColumnKernels>>> {
        if numerics == Numerics::Exact {
            return Ok(None);
        }
        let load = || Ok(ColumnKernels::load(&self.device, self.baked)?.map(Arc::new));
        self.loaded(numerics).columns.get_or_try_init(load).cloned()
    }

    fn persistent_kernel(&self, numerics: Numerics, traces: bool) -> Result<Arc<Persistent>> {
        let [plain, tracing] = &self.loaded(numerics).persistent;
        let types: Vec<_> = self.weights.types().collect();
        let load = || Persistent::load(&self.device, self.baked, numerics, traces, &types).map(Arc::new);
        if traces { tracing } else { plain }.get_or_try_init(load).cloned()
    }

    /// Tables of angles for at least so many positions.
    fn rotary(&self, positions: u32) -> Result<Arc<Rotary>> {
        let mut rotary = self.rotary.lock().unwrap_or_else(PoisonError::into_inner);
        match &*rotary {
            Some(known) if known.positions >= positions => Ok(known.clone()),
            _ => Ok(rotary.insert(Arc::new(Rotary::new(&self.device, self.file.shape(), positions)?)).clone()),
        }
    }

    fn decoders(&self) -> MutexGuard<'_, Vec<(persistent::Key, Weak<persistent::Decoder>)>> {
        self.decoders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Model {
    /// Opens a GGUF file and brings it onto `device`, to be run by the kernels of `baked`.
    ///
    /// # Errors
    /// If the file is not a model that kiln decodes, differs from what was baked, or does not fit the device's memory;
    /// and what the driver reports.
    pub fn open(device: &Device, baked: &'static BakedModel, path: impl AsRef<Path>) -> Result<Model> {
        Model::load(device, baked, ModelFile::open(path)?, |_| {})
    }

    /// As [`Model::open`], for a file that was opened before, with a callback for progress.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn load(
        device: &Device,
        baked: &'static BakedModel,
        file: ModelFile,
        progress: impl FnMut(Progress),
    ) -> Result<Model> {
        file.check_baked(baked)?;
        weights::check_memory(device, &file)?;
        kernels::check(device, baked)?;
        let weights = Weights::upload(device, &file, progress)?;
        let inner = Inner {
            device: device.clone(),
            file,
            weights,
            baked,
            exact: Loaded::default(),
            fast: Loaded::default(),
            rotary: Mutex::default(),
            decoders: Mutex::default(),
            spare: Arc::default(),
        };
        let keeper: Weak<batches::Spare> = Arc::downgrade(&inner.spare);
        device.context().add_keeper(keeper);
        Ok(Model { inner: Arc::new(inner) })
    }

    /// A session with an empty cache.
    ///
    /// # Errors
    /// If its buffers do not fit the device's memory, or `options` ask for more positions than the model has.
    pub fn session(&self, options: SessionOptions) -> Result<Session> {
        Session::new(self, options)
    }

    /// A session on the persistent path whose blocks stamp their phases, up to `events` of each: five for each layer
    /// and token, and one for a head. See [`Session::trace`].
    ///
    /// # Errors
    /// As [`Model::session`]; [`Error::KernelNotBaked`](crate::Error::KernelNotBaked) without the kernels of the `trace`
    /// feature.
    #[cfg(feature = "trace")]
    pub fn tracing_session(&self, options: SessionOptions, events: u32) -> Result<Session> {
        Session::tracing(self, options, events)
    }

    /// The shape, as the file has it.
    pub fn shape(&self) -> &ModelShape {
        self.inner.file.shape()
    }

    /// The file's header: metadata for a tokenizer, and tensors.
    pub fn gguf(&self) -> &Gguf {
        self.inner.file.gguf()
    }

    /// The device it is on.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Device memory that the weights and tables take.
    pub fn memory(&self) -> MemoryNeed {
        self.inner.weights.memory()
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("shape", self.shape()).field("device", &self.inner.device.ordinal()).finish()
    }
}
