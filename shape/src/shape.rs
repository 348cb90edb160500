//! The numbers that make one Qwen model different from another.

use std::fmt;

/// The two architectures, by what their attention does besides the common part.
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

/// Dimensions and constants of a model.
///
/// The first group is baked into kernels; the second is handed over at load or launch, so a file may differ there.
/// [`ModelShape::baked_differences`] compares the first group only.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelShape {
    /// Architecture: decides QKV biases and the norm per head. Baked.
    pub family: Family,
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

    /// Whether Q, K and V have biases.
    pub const fn qkv_bias(&self) -> bool {
        matches!(self.family, Family::Qwen2)
    }

    /// Whether each head of Q and K is normalised before RoPE.
    pub const fn qk_norm(&self) -> bool {
        matches!(self.family, Family::Qwen3)
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
        let flags = [("qkv bias", self.qkv_bias(), file.qkv_bias()), ("qk-norm", self.qk_norm(), file.qk_norm())];
        let yes_no = |flag| if flag { "yes" } else { "no" }.to_string();
        numbers
            .into_iter()
            .map(|(name, baked, file)| (name, baked.to_string(), file.to_string()))
            .chain(flags.into_iter().map(|(name, baked, file)| (name, yes_no(baked), yes_no(file))))
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
