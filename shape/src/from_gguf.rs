//! A model's shape, and whether its tensors are whole, read from a file's header.

use std::collections::HashSet;
use std::fmt;

use crate::gguf::{Gguf, GgufError, TensorInfo};
use crate::{Family, GgmlType, ModelShape, WeightType, WeightTypes};

/// Why a well-formed GGUF file is not a model that kiln can decode.
#[derive(Debug)]
#[non_exhaustive]
pub enum ShapeError {
    /// The file is not well-formed, or a key or tensor is missing or of the wrong type.
    Gguf(GgufError),
    /// `general.architecture` is none of the known ones.
    UnsupportedArchitecture {
        /// What the file says.
        found: String,
    },
    /// A value that kiln cannot work with.
    Unsupported {
        /// Key, or the relation between keys.
        what: String,
        /// What the file says.
        found: String,
        /// What is needed.
        needed: String,
    },
    /// A tensor's dimensions are not those of the shape.
    TensorDims {
        /// Name of the tensor.
        tensor: String,
        /// Dimensions in the file, fastest first.
        found: Vec<u64>,
        /// Dimensions that the shape asks for.
        needed: Vec<u64>,
    },
    /// A tensor that models of this architecture do not have: leaving it out would change the result.
    UnexpectedTensor {
        /// Name of the tensor.
        tensor: String,
    },
    /// A tensor is stored in a type that there are no kernels for.
    TensorType {
        /// Name of the tensor.
        tensor: String,
        /// Its type.
        found: GgmlType,
        /// What it may be.
        needed: WeightTypes,
    },
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShapeError::Gguf(error) => error.fmt(f),
            ShapeError::UnsupportedArchitecture { found } => {
                write!(f, "general.architecture is `{found}`; kiln decodes `qwen2` and `qwen3`")
            }
            ShapeError::Unsupported { what, found, needed } => write!(f, "{what} is {found}; needed: {needed}"),
            ShapeError::TensorDims { tensor, found, needed } => {
                write!(f, "tensor `{tensor}` has dimensions {found:?}; the model's shape needs {needed:?}")
            }
            ShapeError::UnexpectedTensor { tensor } => {
                write!(
                    f,
                    "tensor `{tensor}` has no place in this architecture, and ignoring it would change the result"
                )
            }
            ShapeError::TensorType { tensor, found, needed } => {
                write!(
                    f,
                    "tensor `{tensor}` is stored as {found}; supported there: {needed}. Use a file in another quantisation"
                )
            }
        }
    }
}

impl std::error::Error for ShapeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ShapeError::Gguf(error) => error.source(),
            _ => None,
        }
    }
}

impl From<GgufError> for ShapeError {
    fn from(error: GgufError) -> ShapeError {
        ShapeError::Gguf(error)
    }
}

// Far above every published model, far below what would overflow 64 bits when multiplied.
const MAX_DIM: u32 = 1 << 24;
const MAX_LAYERS: u32 = 4096;
const MAX_HEADS: u32 = 4096;
const MAX_HEAD_DIM: u32 = 1024;

impl ModelShape {
    /// The shape that a file's metadata describes.
    ///
    /// Checks that the numbers fit together and that nothing is asked for that kiln does not do (RoPE scaling, heads
    /// of different sizes); [`ModelShape::check_tensors`] then checks that the tensors are those of the shape.
    pub fn from_gguf(gguf: &Gguf) -> Result<ModelShape, ShapeError> {
        if let Some(parts) = gguf.optional::<u32>("split.count")?.filter(|&parts| parts > 1) {
            let needed = "one file: merge the parts by `llama-gguf-split --merge`".into();
            return Err(unsupported("split.count".into(), parts, needed));
        }
        let architecture = gguf.str("general.architecture")?;
        let family = Family::from_architecture(architecture)
            .ok_or_else(|| ShapeError::UnsupportedArchitecture { found: architecture.into() })?;
        let key = |name: &str| format!("{architecture}.{name}");
        let number = |name: &str, limit: u32| -> Result<u32, ShapeError> {
            let value = gguf.u32(&key(name))?;
            within(&key(name), value, limit)
        };

        let hidden = number("embedding_length", MAX_DIM)?;
        let heads = number("attention.head_count", MAX_HEADS)?;
        let kv_heads = match gguf.optional::<u32>(&key("attention.head_count_kv"))? {
            Some(n) => within(&key("attention.head_count_kv"), n, MAX_HEADS)?,
            None => heads,
        };
        if !heads.is_multiple_of(kv_heads) {
            return Err(unsupported(
                key("attention.head_count"),
                heads,
                format!("a multiple of {}, which is {kv_heads}", key("attention.head_count_kv")),
            ));
        }
        let head_dim = match gguf.optional::<u32>(&key("attention.key_length"))? {
            Some(n) => n,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let needed = format!(
                    "a multiple of {}, which is {heads}, where {} is missing",
                    key("attention.head_count"),
                    key("attention.key_length")
                );
                return Err(unsupported(key("embedding_length"), hidden, needed));
            }
        };
        within(&key("attention.key_length"), head_dim, MAX_HEAD_DIM)?;
        for name in ["attention.value_length", "rope.dimension_count"] {
            if let Some(n) = gguf.optional::<u32>(&key(name))?.filter(|&n| n != head_dim) {
                return Err(unsupported(key(name), n, format!("{head_dim}, as attention.key_length")));
            }
        }
        check_unscaled(gguf, &key)?;
        check_generates(gguf, &key)?;

        let embedding = gguf.required_tensor("token_embd.weight")?;
        let vocab = match embedding.dims() {
            &[_, rows] if (1..=u64::from(MAX_DIM)).contains(&rows) => rows as u32,
            dims => return Err(dims_error(embedding, dims, vec![hidden.into(), u64::from(vocab_hint(gguf))])),
        };
        if let Some(n) = gguf.optional::<u32>(&key("vocab_size"))?.filter(|&n| n != vocab) {
            return Err(unsupported(key("vocab_size"), n, format!("{vocab}, the rows of token_embd.weight")));
        }

        let rope_theta = match gguf.optional::<f32>(&key("rope.freq_base"))? {
            Some(theta) if theta.is_finite() && theta > 0.0 => f64::from(theta),
            Some(theta) => return Err(unsupported(key("rope.freq_base"), theta, "a positive number".into())),
            None => 10_000.0, // what the format says where the key is absent
        };
        let rms_eps = gguf.f32(&key("attention.layer_norm_rms_epsilon"))?;
        if !(rms_eps.is_finite() && rms_eps >= 0.0) {
            return Err(unsupported(key("attention.layer_norm_rms_epsilon"), rms_eps, "a number >= 0".into()));
        }

        Ok(ModelShape {
            qkv_bias: family.has_qkv_bias(),
            qk_norm: family.has_qk_norm(),
            rope: family.rope(),
            hidden,
            ffn: number("feed_forward_length", MAX_DIM)?,
            heads,
            kv_heads,
            head_dim,
            layers: number("block_count", MAX_LAYERS)?,
            vocab,
            tied_head: gguf.tensor("output.weight").is_none(),
            rope_theta,
            rms_eps,
            context: number("context_length", u32::MAX)?,
        })
    }

    /// Checks that every tensor of the shape is in the file, with the right dimensions, in a type that kiln decodes.
    /// Gives the set of types that the matrices use, which kernels have to be baked for.
    pub fn check_tensors(&self, gguf: &Gguf) -> Result<WeightTypes, ShapeError> {
        let mut used = WeightTypes::EMPTY;
        for spec in self.tensors() {
            let tensor = gguf.required_tensor(&spec.name)?;
            if tensor.dims() != spec.dims {
                return Err(dims_error(tensor, tensor.dims(), spec.dims));
            }
            let needed = match spec.role.is_matrix() {
                true => WeightTypes::ALL,
                false => WeightTypes::of(&[WeightType::F32]),
            };
            let Some(ty) = WeightType::from_ggml(tensor.ty()).filter(|&ty| needed.contains(ty)) else {
                return Err(ShapeError::TensorType { tensor: spec.name, found: tensor.ty(), needed });
            };
            if spec.role.is_matrix() {
                used = used.with(ty);
            }
        }
        let specs: HashSet<String> = self.tensors().map(|spec| spec.name).collect();
        match gguf.tensors().iter().find(|tensor| !specs.contains(tensor.name())) {
            Some(tensor) => Err(ShapeError::UnexpectedTensor { tensor: tensor.name().into() }),
            None => Ok(used),
        }
    }
}

/// Refuses angles of RoPE other than those of its base, whichever way a file asks for them.
fn check_unscaled(gguf: &Gguf, key: &impl Fn(&str) -> String) -> Result<(), ShapeError> {
    let kind = gguf.optional::<&str>(&key("rope.scaling.type"))?;
    if let Some(scaling) = kind.filter(|&kind| kind != "none") {
        return Err(unsupported(key("rope.scaling.type"), format!("`{scaling}`"), "none".into()));
    }
    // Without a type a factor means linear scaling; 0 stands for none. Older files have it under another key.
    let factors: &[&str] = if kind.is_none() { &["rope.scaling.factor", "rope.scale_linear"] } else { &[] };
    for name in factors {
        if let Some(factor) = gguf.optional::<f32>(&key(name))?.filter(|&factor| factor != 0.0 && factor != 1.0) {
            return Err(unsupported(key(name), factor, "1, no scaling".into()));
        }
    }
    let attention = "rope.scaling.attn_factor";
    match gguf.optional::<f32>(&key(attention))?.filter(|&factor| factor != 1.0) {
        Some(factor) => Err(unsupported(key(attention), factor, "1, no scaling".into())),
        None => Ok(()),
    }
}

/// Refuses models that make something else than the next token: embeddings of a text, or a view of all of it.
fn check_generates(gguf: &Gguf, key: &impl Fn(&str) -> String) -> Result<(), ShapeError> {
    if let Some(pooling) = gguf.optional::<u32>(&key("pooling_type"))?.filter(|&pooling| pooling != 0) {
        let needed = "0: kiln generates text, and this model makes one vector of it".into();
        return Err(unsupported(key("pooling_type"), pooling, needed));
    }
    match gguf.optional::<bool>(&key("attention.causal"))? {
        Some(false) => Err(unsupported(key("attention.causal"), false, "true: each token sees those before it".into())),
        _ => Ok(()),
    }
}

fn within(what: &str, value: u32, limit: u32) -> Result<u32, ShapeError> {
    match value {
        1.. if value <= limit => Ok(value),
        _ => Err(unsupported(what.into(), value, format!("1 to {limit}"))),
    }
}

fn unsupported(what: String, found: impl fmt::Display, needed: String) -> ShapeError {
    ShapeError::Unsupported { what, found: found.to_string(), needed }
}

fn dims_error(tensor: &TensorInfo, found: &[u64], needed: Vec<u64>) -> ShapeError {
    ShapeError::TensorDims { tensor: tensor.name().into(), found: found.into(), needed }
}

/// The vocabulary by the tokenizer's own count, for an error message only.
fn vocab_hint(gguf: &Gguf) -> u32 {
    gguf.strings("tokenizer.ggml.tokens").map_or(0, |tokens| tokens.len() as u32)
}
