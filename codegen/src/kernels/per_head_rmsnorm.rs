use super::Kernel;
use crate::blocks::norm;
use crate::ptx::{Builder, Dim, F32, Global, LoadKind};

/// `y[h, i] = x[h, i] * rsqrt(mean(x[h]^2) + eps) * gamma[i]`, a warp a head. NaN where the sum of squares is beyond f32.
#[derive(Debug, Clone, PartialEq)]
pub struct PerHeadRmsNorm {
    /// Elements per head, a multiple of 32 up to 256.
    pub head_dim: u32,
    /// Heads: rows of `x`.
    pub heads: Dim,
    /// Epsilon under the root; `None` makes it a launch parameter.
    pub epsilon: Option<f32>,
    name: String,
}

impl PerHeadRmsNorm {
    /// The kernel for rows of `head_dim` elements, with epsilon 1e-6.
    pub fn new(head_dim: u32, heads: u32) -> PerHeadRmsNorm {
        let name = "per_head_rmsnorm".to_owned();
        PerHeadRmsNorm { head_dim, heads: Dim::Baked(heads), epsilon: Some(1e-6), name }
    }

    /// The kernel with heads and epsilon as launch parameters: `per_head_rmsnorm_64` for head_dim 64.
    pub fn general(head_dim: u32) -> PerHeadRmsNorm {
        let name = format!("per_head_rmsnorm_{head_dim}");
        PerHeadRmsNorm { head_dim, heads: Dim::Param, epsilon: None, name }
    }

    /// Another epsilon.
    pub fn with_epsilon(self, epsilon: f32) -> PerHeadRmsNorm {
        PerHeadRmsNorm { epsilon: Some(epsilon), ..self }
    }
}

impl Kernel for PerHeadRmsNorm {
    fn name(&self) -> &str {
        &self.name
    }

    fn block(&self) -> u32 {
        128
    }

    fn check(&self) -> Result<(), String> {
        match self.head_dim {
            head_dim if head_dim > 0 && head_dim <= 256 && head_dim % 32 == 0 => Ok(()),
            head_dim => Err(format!("head_dim is {head_dim}: needs a multiple of 32 up to 256")),
        }
    }

    fn build(&self, b: &mut Builder) {
        let x = b.param::<Global<F32>>("x"); // [heads, head_dim]
        let gamma = b.param::<Global<F32>>("gamma"); // [head_dim], shared by the heads
        let y = b.param::<Global<F32>>("y"); // [heads, head_dim], may be x
        let heads = b.dim("heads", self.heads);
        let eps = norm::epsilon(b, self.epsilon);

        let (block, warp, lane, warps) = (b.ctaid_x(), b.warp_id(), b.lane(), b.warps());
        let head = b.mad(block, warps, warp);
        let inside = b.setp_lt(head, heads);
        b.if_(inside, |b| {
            let (x, y) = (b.byte_index(x, head, self.head_dim * 4), b.byte_index(y, head, self.head_dim * 4));
            let (x, y, gamma) = (b.index(x, lane), b.index(y, lane), b.index(gamma, lane));
            let row: Vec<_> = (0..self.head_dim / 32).map(|i| b.ld(x.at(32 * i), LoadKind::Ordinary)).collect();
            let gamma: Vec<_> = (0..self.head_dim / 32).map(|i| b.ld(gamma.at(32 * i), LoadKind::Constant)).collect();
            let normalised = norm::per_head(b, &row, &gamma, eps);
            for (i, value) in normalised.into_iter().enumerate() {
                b.st(y.at(32 * i as u32), value);
            }
        });
    }
}
