//! The numbers that make one Qwen model different from another.

use std::fmt;

/// The architectures of files, by what their attention does besides the common part. A [`ModelShape`] says that itself:
/// only who reads or writes a file asks for the family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// Qwen2 and Qwen2.5: biases on Q, K and V; no norm per head.
    Qwen2,
    /// Qwen3: no biases; an RMS norm over each head of Q and K before RoPE.
    Qwen3,
}

impl Family {
    /// The value of `general.architecture`, which also prefixes the keys of the shape.
    pub const fn architecture(self) -> &'static str {
        match self {
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
        }
    }

    /// Whether Q, K and V have biases.
    pub const fn has_qkv_bias(self) -> bool {
        match self {
            Family::Qwen2 => true,
            Family::Qwen3 => false,
        }
    }

    /// Whether each head of Q and K is normalised before RoPE.
    pub const fn has_qk_norm(self) -> bool {
        match self {
            Family::Qwen2 => false,
            Family::Qwen3 => true,
        }
    }

    /// Which elements of a head turn together.
    pub const fn rope(self) -> RopePairing {
        match self {
            Family::Qwen2 | Family::Qwen3 => RopePairing::Halves,
        }
    }

    /// The family whose models are like this one, if there is one.
    pub fn of(shape: &ModelShape) -> Option<Family> {
        let like = |family: &Family| {
            (family.has_qkv_bias(), family.has_qk_norm(), family.rope()) == (shape.qkv_bias, shape.qk_norm, shape.rope)
        };
        [Family::Qwen2, Family::Qwen3].into_iter().find(like)
    }

    /// The family of a `general.architecture`, if it is one that kiln knows.
    pub fn from_architecture(name: &str) -> Option<Family> {
        [Family::Qwen2, Family::Qwen3].into_iter().find(|family| family.architecture() == name)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.architecture())
    }
}

/// Which two elements of a head turn together by a rotary angle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopePairing {
    /// Element i of the lower half with element i of the upper, as GPT-NeoX has it.
    Halves,
}

impl fmt::Display for RopePairing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RopePairing::Halves => f.write_str("halves"),
        }
    }
}

/// Dimensions and constants of a model.
///
/// The first group is baked into kernels; the second is handed over at load or launch, so a file may differ there.
/// [`ModelShape::baked_differences`] compares the first group only.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelShape {
    /// Whether Q, K and V have biases. Baked.
    pub qkv_bias: bool,
    /// Whether each head of Q and K is normalised before RoPE. Baked.
    pub qk_norm: bool,
    /// Which elements of a head turn together. Baked.
    pub rope: RopePairing,
    /// Width of the residual stream. Baked.
    pub hidden: u32,
    /// Width of the feed-forward layer: rows of gate and up, columns of down. Baked.
    pub ffn: u32,
    /// Query heads. Baked.
    pub heads: u32,
    /// Key and value heads; divides `heads`. Baked.
    pub kv_heads: u32,
    /// Elements per head, of queries, keys and values alike. Baked.
    pub head_dim: u32,

    /// Transformer layers.
    pub layers: u32,
    /// Rows of the embedding and of the head.
    pub vocab: u32,
    /// Whether the head is the embedding matrix (no `output.weight`).
    pub tied_head: bool,
    /// Base of the rotary frequencies `theta^(-2i / head_dim)`.
    pub rope_theta: f64,
    /// Epsilon under the root of every RMS norm.
    pub rms_eps: f32,
    /// Positions the model was trained for.
    pub context: u32,
}

impl ModelShape {
    /// Rows of the query projection: `heads * head_dim`. Not always `hidden`.
    pub const fn q_dim(&self) -> u32 {
        self.heads * self.head_dim
    }

    /// Rows of the key and of the value projection: `kv_heads * head_dim`.
    pub const fn kv_dim(&self) -> u32 {
        self.kv_heads * self.head_dim
    }

    /// Query heads that share one key and value head.
    pub const fn group(&self) -> u32 {
        self.heads / self.kv_heads
    }

    /// Bytes of keys and values one position takes over all layers, `element_bytes` for each number.
    pub const fn kv_bytes_per_token(&self, element_bytes: u32) -> u64 {
        2 * self.layers as u64 * self.kv_heads as u64 * self.head_dim as u64 * element_bytes as u64
    }

    /// Every baked value in which `file` differs from `self`, the shape that kernels were baked for.
    ///
    /// Empty means that kernels baked for `self` can run `file`. (The tensor types a file uses are baked as well:
    /// see [`WeightTypes`](crate::WeightTypes).)
    pub fn baked_differences(&self, file: &ModelShape) -> Vec<Difference> {
        let numbers = [
            ("hidden", self.hidden, file.hidden),
            ("ffn", self.ffn, file.ffn),
            ("heads", self.heads, file.heads),
            ("kv_heads", self.kv_heads, file.kv_heads),
            ("head_dim", self.head_dim, file.head_dim),
        ];
        let flags = [("qkv_bias", self.qkv_bias, file.qkv_bias), ("qk_norm", self.qk_norm, file.qk_norm)];
        let yes_no = |flag| if flag { "yes" } else { "no" }.to_string();
        let rope = ("rope", self.rope.to_string(), file.rope.to_string());
        numbers
            .into_iter()
            .map(|(name, baked, file)| (name, baked.to_string(), file.to_string()))
            .chain(flags.into_iter().map(|(name, baked, file)| (name, yes_no(baked), yes_no(file))))
            .chain([rope])
            .filter(|(_, baked, file)| baked != file)
            .map(|(name, baked, file)| Difference { name, baked, file })
            .collect()
    }
}

/// One baked value that a file contradicts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Name of the value, as the field of [`ModelShape`] is named.
    pub name: &'static str,
    /// What the kernels were baked with.
    pub baked: String,
    /// What the file has.
    pub file: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: baked {}, file {}", self.name, self.baked, self.file)
    }
}
