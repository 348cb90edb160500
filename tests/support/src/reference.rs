//! Qwen2 and Qwen3 in float64, straight from the definition: what every other path is measured against.
//!
//! Works on any file whose tensors have a supported type. Weights are dequantised row by row, so that a layer of a
//! large model needs no more memory than its file.

use std::path::Path;

use kiln_shape::{Gguf, ModelShape, TensorRole, WeightType};

use crate::dequantise::dequantise;

/// How K and V are kept between positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    F64,
    /// Rounded to float16, to nearest even.
    F16,
}

/// What a matrix of a role, layer and type is multiplied with instead of an activation vector.
pub type Activations = Box<dyn Fn(TensorRole, u32, WeightType, &[f64]) -> Vec<f64> + Sync>;

/// A model with its whole file in memory.
pub struct Reference {
    pub gguf: Gguf,
    pub shape: ModelShape,
    /// The vector itself, unless a test asks what rounding it would do.
    pub activations: Activations,
    file: Vec<u8>,
}

impl Reference {
    pub fn open(path: impl AsRef<Path>) -> Reference {
        let path = path.as_ref();
        let file = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Reference::from_bytes(file)
    }

    pub fn from_bytes(file: Vec<u8>) -> Reference {
        let gguf = Gguf::from_bytes(&file).expect("a GGUF file");
        let shape = ModelShape::from_gguf(&gguf).expect("a Qwen model");
        shape.check_tensors(&gguf).expect("all tensors");
        Reference { gguf, shape, activations: Box::new(|_, _, _, x| x.to_vec()), file }
    }

    /// Type and bytes of a tensor.
    pub fn tensor(&self, role: TensorRole, layer: u32) -> (WeightType, &[u8]) {
        let tensor = self.gguf.required_tensor(&role.tensor_name(layer)).expect("checked when opened");
        (
            WeightType::from_ggml(tensor.ty()).expect("it decodes"),
            &self.file[tensor.offset() as usize..][..tensor.bytes() as usize],
        )
    }

    /// A vector of weights.
    pub fn vector(&self, role: TensorRole, layer: u32) -> Vec<f64> {
        let (ty, bytes) = self.tensor(role, layer);
        dequantise(ty, bytes)
    }

    /// Row `row` of a matrix.
    pub fn row(&self, role: TensorRole, layer: u32, row: usize) -> Vec<f64> {
        let (ty, bytes) = self.tensor(role, layer);
        let row_bytes = ty.ggml().row_bytes(role.dims(&self.shape)[0]).expect("whole blocks") as usize;
        dequantise(ty, &bytes[row * row_bytes..][..row_bytes])
    }

    /// `W x` for each `x`, `[positions][K]` to `[positions][N]`.
    pub fn product(&self, role: TensorRole, layer: u32, xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let (k, n) = (role.dims(&self.shape)[0] as usize, role.dims(&self.shape)[1] as usize);
        assert!(xs.iter().all(|x| x.len() == k));
        let ty = self.tensor(role, layer).0;
        let xs: Vec<Vec<f64>> = xs.iter().map(|x| (self.activations)(role, layer, ty, x)).collect();
        let products = |row: usize| -> Vec<f64> {
            let weights = self.row(role, layer, row);
            xs.iter().map(|x| dot(&weights, x)).collect()
        };
        // By rows of W, over the machine's cores.
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(n);
        let by_row: Vec<Vec<f64>> = std::thread::scope(|scope| {
            let share = |worker: usize| worker * n / workers..(worker + 1) * n / workers;
            let spawn = |worker| scope.spawn(move || share(worker).map(products).collect::<Vec<_>>());
            let handles: Vec<_> = (0..workers).map(spawn).collect();
            handles.into_iter().flat_map(|handle| handle.join().expect("no panic in a product")).collect()
        });
        (0..xs.len()).map(|position| by_row.iter().map(|row| row[position]).collect()).collect()
    }

    /// `product` and the bias, where the family has one.
    fn projection(&self, role: TensorRole, bias: TensorRole, layer: u32, xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let mut ys = self.product(role, layer, xs);
        if self.shape.qkv_bias {
            let bias = self.vector(bias, layer);
            ys.iter_mut().for_each(|y| add(y, &bias));
        }
        ys
    }

    /// Logits `[positions][vocab]` of the tokens in `ids`, each seeing itself and those before it.
    pub fn logits(&self, ids: &[u32], cache: Cache) -> Vec<Vec<f64>> {
        let xs = self.hidden_states(ids, cache);
        let gamma = self.vector(TensorRole::OutputNorm, 0);
        let head = if self.shape.tied_head { TensorRole::TokenEmbedding } else { TensorRole::Output };
        self.product(head, 0, &self.normed(&xs, &gamma))
    }

    fn normed(&self, xs: &[Vec<f64>], gamma: &[f64]) -> Vec<Vec<f64>> {
        xs.iter().map(|x| rms_norm(x, gamma, self.shape.rms_eps.into())).collect()
    }

    fn hidden_states(&self, ids: &[u32], cache: Cache) -> Vec<Vec<f64>> {
        use TensorRole::*;
        let shape = &self.shape;
        let head_dim = shape.head_dim as usize;
        let mut xs: Vec<Vec<f64>> = ids.iter().map(|&id| self.row(TokenEmbedding, 0, id as usize)).collect();
        for layer in 0..shape.layers {
            let input = self.normed(&xs, &self.vector(AttnNorm, layer));
            let mut q = self.projection(AttnQ, AttnQBias, layer, &input);
            let mut k = self.projection(AttnK, AttnKBias, layer, &input);
            let mut v = self.projection(AttnV, AttnVBias, layer, &input);
            for (heads, role) in [(&mut q, AttnQNorm), (&mut k, AttnKNorm)] {
                let gamma = shape.qk_norm.then(|| self.vector(role, layer));
                for (position, row) in heads.iter_mut().enumerate() {
                    for head in row.chunks_exact_mut(head_dim) {
                        if let Some(gamma) = &gamma {
                            head.copy_from_slice(&rms_norm(head, gamma, shape.rms_eps.into()));
                        }
                        rope(head, position, shape.rope_theta);
                    }
                }
            }
            if cache == Cache::F16 {
                k.iter_mut().chain(&mut v).flatten().for_each(|x| *x = round_to_f16(*x));
            }
            let mixed: Vec<Vec<f64>> =
                (0..ids.len()).map(|position| self.attention(&q[position], &k, &v, position)).collect();
            let output = self.product(AttnOutput, layer, &mixed);
            xs.iter_mut().zip(&output).for_each(|(x, y)| add(x, y));

            let input = self.normed(&xs, &self.vector(FfnNorm, layer));
            let (gate, up) = (self.product(FfnGate, layer, &input), self.product(FfnUp, layer, &input));
            let swiglu = |(gate, up): (&f64, &f64)| gate / (1.0 + (-gate).exp()) * up;
            let inner: Vec<Vec<f64>> =
                gate.iter().zip(&up).map(|(gate, up)| gate.iter().zip(up).map(swiglu).collect()).collect();
            let output = self.product(FfnDown, layer, &inner);
            xs.iter_mut().zip(&output).for_each(|(x, y)| add(x, y));
        }
        xs
    }

    /// Softmax-weighted values of positions `0..=position`, `[heads * head_dim]`.
    fn attention(&self, q: &[f64], k: &[Vec<f64>], v: &[Vec<f64>], position: usize) -> Vec<f64> {
        let (head_dim, group) = (self.shape.head_dim as usize, self.shape.group() as usize);
        let mut mixed = Vec::with_capacity(q.len());
        for (head, q) in q.chunks_exact(head_dim).enumerate() {
            let shared = head / group * head_dim..(head / group + 1) * head_dim;
            let score = |k: &Vec<f64>| dot(q, &k[shared.clone()]) / (head_dim as f64).sqrt();
            let scores: Vec<f64> = k[..=position].iter().map(score).collect();
            let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
            let total: f64 = weights.iter().sum();
            mixed.extend(shared.map(|i| weights.iter().zip(v).map(|(w, v)| w * v[i]).sum::<f64>() / total));
        }
        mixed
    }
}

/// By index, since tests are not optimised: iterators would take several times as long, and here the time goes.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (mut sum, mut i) = (0.0, 0);
    while i < a.len() {
        sum += a[i] * b[i];
        i += 1;
    }
    sum
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// `x / sqrt(mean(x^2) + eps) * gamma`
pub fn rms_norm(x: &[f64], gamma: &[f64], eps: f64) -> Vec<f64> {
    let scale = 1.0 / (dot(x, x) / x.len() as f64 + eps).sqrt();
    x.iter().zip(gamma).map(|(x, gamma)| x * scale * gamma).collect()
}

/// Rotates the pairs `(i, i + head_dim / 2)` by `position * theta^(-2i / head_dim)`.
pub fn rope(head: &mut [f64], position: usize, theta: f64) {
    let half = head.len() / 2;
    for i in 0..half {
        let angle = position as f64 * theta.powf(-(i as f64) / half as f64);
        let (sin, cos) = angle.sin_cos();
        (head[i], head[i + half]) = (head[i] * cos - head[i + half] * sin, head[i + half] * cos + head[i] * sin);
    }
}

/// The nearest float16, ties to even.
pub fn round_to_f16(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    // 11 significant bits, and no step below 2^-24.
    let step = (x.abs().log2().floor().max(-14.0) - 10.0).exp2();
    let rounded = (x / step).round_ties_even() * step;
    if rounded.abs() > 65504.0 { f64::INFINITY.copysign(x) } else { rounded }
}

/// `|a - b| / |b|`
pub fn relative_l2(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let distance: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
    (distance / dot(b, b)).sqrt()
}
