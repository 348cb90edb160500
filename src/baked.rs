//! What a bake yields: kernels as PTX with what the host has to know to launch them. kiln's own bake and anybody's are
//! equals.

use crate::shape::{ModelShape, TensorTypeSet};

/// The ways of running a decoder that kernels are baked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecoderPath {
    /// One launch for each fused kernel.
    Stream,
    /// One cooperative launch for whole sequences.
    Persistent,
}

/// How many blocks a kernel is launched with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grid {
    /// Exactly so many.
    Blocks(u32),
    /// Any number; more than so many have nothing to do.
    UpTo(u32),
    /// Any number; more than one for so many rows of an output whose length is a launch parameter have nothing to do.
    PerRows(u32),
    /// What the launching function says: it depends on lengths and batch.
    Launch,
}

/// A kernel in a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BakedKernel {
    /// The entry's name.
    pub name: &'static str,
    /// Threads per block.
    pub block: u32,
    /// How many blocks.
    pub grid: Grid,
    /// Bytes of static shared memory.
    pub static_shared: u32,
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// Bytes of each parameter, in order.
    pub params: &'static [u32],
}

/// PTX for one compute capability (and every later one that has the shared memory).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BakedModule {
    /// Compute capability: 90 for `sm_90`.
    pub sm: u32,
    /// The decoder path its kernels are for; `None` for single kernels.
    pub path: Option<DecoderPath>,
    /// The text, NUL-terminated as the driver wants it.
    pub ptx: &'static str,
    /// The kernels in it.
    pub kernels: &'static [BakedKernel],
}

/// Kernels for one model shape. Only [`BakedModel::new`] makes one: what a model runs has been vouched for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BakedModel {
    pub(crate) name: &'static str,
    pub(crate) shape: ModelShape,
    pub(crate) types: TensorTypeSet,
    pub(crate) modules: &'static [BakedModule],
}

impl BakedModel {
    /// Kernels under a name, for matrices of `types` in a model of `shape`. The file that a bake generates calls this.
    ///
    /// # Safety
    /// Each module is what `kiln_codegen::Bake` wrote for this shape and these types: the PTX of a kernel does what its
    /// name says, with the parameters, threads and shared memory listed.
    pub const unsafe fn new(
        name: &'static str,
        shape: ModelShape,
        types: TensorTypeSet,
        modules: &'static [BakedModule],
    ) -> BakedModel {
        BakedModel { name, shape, types, modules }
    }

    /// The name of the cargo feature, or what the bake called it.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The shape; of it, layers, vocabulary and the constants of the second group are taken from the file instead.
    pub const fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// The types that the model's matrices may have.
    pub const fn types(&self) -> TensorTypeSet {
        self.types
    }

    /// PTX per target and decoder path.
    pub const fn modules(&self) -> &'static [BakedModule] {
        self.modules
    }
}

/// Kernels that belong to no model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BakedKernels {
    /// PTX per target.
    pub modules: &'static [BakedModule],
}

include!(concat!(env!("OUT_DIR"), "/kiln_baked.rs"));
