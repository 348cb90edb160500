//! Models: weights on a device, sessions with a KV cache, and the generation of tokens.
//!
//! `file` opens and checks a GGUF file, `weights` brings it onto the device, `kernels` loads what was baked. A
//! `sequence` is a session's memory on the device. A `path` is a way of running it: `stream`, one launch for each fused
//! kernel, or `persistent`, one launch for whole sequences, whose shares `balance` computes. `session` and `generation`
//! are what a program uses. `cost` predicts how long a token takes.

mod balance;
pub mod cost;
mod file;
mod generation;
mod kernels;
mod path;
mod persistent;
mod sequence;
mod session;
mod stream;
#[cfg(feature = "trace")]
pub mod trace;
mod weights;

pub use file::ModelFile;
pub use generation::{CancelHandle, End, GenerateOptions, Generation};
pub use path::Work;
pub use session::{PathChoice, Session, SessionOptions};
pub use weights::{MemoryNeed, Progress};

use crate::Result;
use crate::baked::BakedModel;
use crate::driver::Device;
use crate::shape::{Gguf, ModelShape};
use kernels::Kernels;
use std::path::Path;
use std::sync::Arc;
use weights::Weights;

/// The type of cached keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KvType {
    /// Half precision.
    #[default]
    F16,
    /// Single precision: twice the memory, nothing rounded.
    F32,
}

impl KvType {
    /// Bytes of an element.
    pub const fn bytes(self) -> u32 {
        match self {
            KvType::F16 => 2,
            KvType::F32 => 4,
        }
    }

    const fn suffix(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::F32 => "f32",
        }
    }
}

/// A model on a device: weights and kernels. Cheap to clone; sessions share it.
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    device: Device,
    file: ModelFile,
    weights: Weights,
    kernels: Kernels,
    baked: &'static BakedModel,
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

    /// As [`Model::open`], for a file that was opened before, with a callback that sees how far it is.
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
        let kernels = Kernels::load(device, baked)?;
        let weights = Weights::upload(device, &file, progress)?;
        Ok(Model { inner: Arc::new(Inner { device: device.clone(), file, weights, kernels, baked }) })
    }

    /// A session with an empty cache.
    ///
    /// # Errors
    /// If its buffers do not fit the device's memory, or `options` ask for more positions than the model has.
    pub fn session(&self, options: SessionOptions) -> Result<Session> {
        Session::new(self, options)
    }

    /// A session on the persistent path whose blocks write down when they did what: up to `events` phases of each, five
    /// for each layer and token and one for a head. See [`Session::trace`].
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
