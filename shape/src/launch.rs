//! Words that a bake and its host share about launches: which path a kernel is for, how many blocks it has, what it caches.

/// The ways of running a decoder that kernels are baked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DecoderPath {
    /// One launch for each fused kernel.
    Stream,
    /// One cooperative launch for whole sequences.
    Persistent,
}

impl DecoderPath {
    /// Every path.
    pub const ALL: [DecoderPath; 2] = [DecoderPath::Stream, DecoderPath::Persistent];

    /// As it stands in the names of files.
    pub const fn name(self) -> &'static str {
        match self {
            DecoderPath::Stream => "stream",
            DecoderPath::Persistent => "persistent",
        }
    }
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

    /// As it ends kernel names.
    pub const fn suffix(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::F32 => "f32",
        }
    }
}
