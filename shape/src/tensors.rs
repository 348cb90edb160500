//! The tensors a model of a given shape consists of.

use crate::ModelShape;

/// What a tensor is for. The discriminant has no meaning outside the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TensorRole {
    /// `token_embd.weight`, `[hidden, vocab]`.
    TokenEmbedding,
    /// `output_norm.weight`, `[hidden]`.
    OutputNorm,
    /// `output.weight`, `[hidden, vocab]`; absent where the head is tied to the embedding.
    Output,
    /// `blk.N.attn_norm.weight`, `[hidden]`.
    AttnNorm,
    /// `blk.N.attn_q.weight`, `[hidden, q_dim]`.
    AttnQ,
    /// `blk.N.attn_k.weight`, `[hidden, kv_dim]`.
    AttnK,
    /// `blk.N.attn_v.weight`, `[hidden, kv_dim]`.
    AttnV,
    /// `blk.N.attn_q.bias`, `[q_dim]`; with `qkv_bias`.
    AttnQBias,
    /// `blk.N.attn_k.bias`, `[kv_dim]`; with `qkv_bias`.
    AttnKBias,
    /// `blk.N.attn_v.bias`, `[kv_dim]`; with `qkv_bias`.
    AttnVBias,
    /// `blk.N.attn_q_norm.weight`, `[head_dim]`; with `qk_norm`.
    AttnQNorm,
    /// `blk.N.attn_k_norm.weight`, `[head_dim]`; with `qk_norm`.
    AttnKNorm,
    /// `blk.N.attn_output.weight`, `[q_dim, hidden]`.
    AttnOutput,
    /// `blk.N.ffn_norm.weight`, `[hidden]`.
    FfnNorm,
    /// `blk.N.ffn_gate.weight`, `[hidden, ffn]`.
    FfnGate,
    /// `blk.N.ffn_up.weight`, `[hidden, ffn]`.
    FfnUp,
    /// `blk.N.ffn_down.weight`, `[ffn, hidden]`.
    FfnDown,
}

use TensorRole::*;

const OF_MODEL: [TensorRole; 3] = [TokenEmbedding, OutputNorm, Output];
const OF_LAYER: [TensorRole; 14] = [
    AttnNorm, AttnQ, AttnQBias, AttnK, AttnKBias, AttnV, AttnVBias, AttnQNorm, AttnKNorm, AttnOutput, FfnNorm, FfnGate,
    FfnUp, FfnDown,
];

impl TensorRole {
    /// The tensor's name in a GGUF file; `layer` is ignored for tensors that belong to no layer.
    pub fn tensor_name(self, layer: u32) -> String {
        let stem = match self {
            TokenEmbedding => return "token_embd.weight".into(),
            OutputNorm => return "output_norm.weight".into(),
            Output => return "output.weight".into(),
            AttnNorm => "attn_norm.weight",
            AttnQ => "attn_q.weight",
            AttnK => "attn_k.weight",
            AttnV => "attn_v.weight",
            AttnQBias => "attn_q.bias",
            AttnKBias => "attn_k.bias",
            AttnVBias => "attn_v.bias",
            AttnQNorm => "attn_q_norm.weight",
            AttnKNorm => "attn_k_norm.weight",
            AttnOutput => "attn_output.weight",
            FfnNorm => "ffn_norm.weight",
            FfnGate => "ffn_gate.weight",
            FfnUp => "ffn_up.weight",
            FfnDown => "ffn_down.weight",
        };
        format!("blk.{layer}.{stem}")
    }

    /// Dimensions, fastest first: `[K, N]` for a matrix of N rows, `[N]` for a vector.
    pub fn dims(self, shape: &ModelShape) -> Vec<u64> {
        let (hidden, ffn, vocab) = (shape.hidden.into(), shape.ffn.into(), shape.vocab.into());
        let (q_dim, kv_dim, head_dim) = (shape.q_dim().into(), shape.kv_dim().into(), shape.head_dim.into());
        match self {
            TokenEmbedding | Output => vec![hidden, vocab],
            OutputNorm | AttnNorm | FfnNorm => vec![hidden],
            AttnQ => vec![hidden, q_dim],
            AttnK | AttnV => vec![hidden, kv_dim],
            AttnQBias => vec![q_dim],
            AttnKBias | AttnVBias => vec![kv_dim],
            AttnQNorm | AttnKNorm => vec![head_dim],
            AttnOutput => vec![q_dim, hidden],
            FfnGate | FfnUp => vec![hidden, ffn],
            FfnDown => vec![ffn, hidden],
        }
    }

    /// Whether it is a matrix of weights, in any supported type; the others are vectors in F32.
    pub fn is_matrix(self) -> bool {
        matches!(self, TokenEmbedding | Output | AttnQ | AttnK | AttnV | AttnOutput | FfnGate | FfnUp | FfnDown)
    }

    fn belongs_to(self, shape: &ModelShape) -> bool {
        match self {
            Output => !shape.tied_head,
            AttnQBias | AttnKBias | AttnVBias => shape.qkv_bias,
            AttnQNorm | AttnKNorm => shape.qk_norm,
            _ => true,
        }
    }
}

/// One tensor that a model must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name in the file.
    pub name: String,
    /// What it is for.
    pub role: TensorRole,
    /// Its layer, if it belongs to one.
    pub layer: Option<u32>,
    /// Dimensions, fastest first.
    pub dims: Vec<u64>,
}

impl ModelShape {
    /// Every tensor a model of this shape has: those of the model, then layer by layer in the order of use.
    pub fn tensors(&self) -> impl Iterator<Item = TensorSpec> + '_ {
        let of_model = OF_MODEL.into_iter().map(|role| (role, None));
        let of_layers = (0..self.layers).flat_map(|layer| OF_LAYER.into_iter().map(move |role| (role, Some(layer))));
        of_model.chain(of_layers).filter(|(role, _)| role.belongs_to(self)).map(|(role, layer)| TensorSpec {
            name: role.tensor_name(layer.unwrap_or(0)),
            role,
            layer,
            dims: role.dims(self),
        })
    }
}
