//! A cache with queries, for all tests of attention.

use half::f16;
use kiln::driver::{Device, GpuTensor, Stream};
use kiln::ops::{CacheShape, IncrementalAttention, Index, KvElement, Ops};

use crate::common;
use crate::random::Random;

pub(crate) struct Scene<T: KvElement> {
    pub(crate) device: Device,
    pub(crate) stream: Stream,
    pub(crate) ops: Ops,
    pub(crate) heads: u32,
    pub(crate) shape: CacheShape,
    pub(crate) q: GpuTensor<f32>,
    pub(crate) k: GpuTensor<f32>,
    pub(crate) v: GpuTensor<f32>,
    pub(crate) k_cache: GpuTensor<T>,
    pub(crate) v_cache: GpuTensor<T>,
    pub(crate) out: GpuTensor<f32>,
    pub(crate) error: GpuTensor<u32>,
    pub(crate) floats: Floats,
}

/// What is in the tensors.
pub(crate) struct Floats {
    pub(crate) q: Vec<f32>,
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
    pub(crate) keys: Vec<f32>,
    pub(crate) values: Vec<f32>,
}

/// Rounding to a cache's type.
pub(crate) trait Rounded: KvElement {
    fn round(value: f32) -> Self;
    fn float(self) -> f32;
}

impl Rounded for f32 {
    fn round(value: f32) -> f32 {
        value
    }
    fn float(self) -> f32 {
        self
    }
}

impl Rounded for f16 {
    fn round(value: f32) -> f16 {
        f16::from_f32(value)
    }
    fn float(self) -> f32 {
        self.to_f32()
    }
}

impl<T: Rounded> Scene<T> {
    pub(crate) fn new(heads: u32, kv_heads: u32, head_dim: u32, max_seq_len: u32, random: &mut Random) -> Scene<T> {
        Scene::on(common::device(), heads, kv_heads, head_dim, max_seq_len, random)
    }

    pub(crate) fn on(
        device: Device,
        heads: u32,
        kv_heads: u32,
        head_dim: u32,
        max_seq_len: u32,
        random: &mut Random,
    ) -> Scene<T> {
        let shape = CacheShape { kv_heads, max_seq_len, head_dim };
        let mut floats = |len: u32, scale: f32| -> Vec<f32> {
            random.floats(len as usize, scale).into_iter().map(|x| T::round(x).float()).collect()
        };
        let (row, all) = (kv_heads * head_dim, kv_heads * max_seq_len * head_dim);
        let floats = Floats {
            q: floats(heads * head_dim, 4.0),
            k: floats(row, 1.0),
            v: floats(row, 1.0),
            keys: floats(all, 1.0),
            values: floats(all, 1.0),
        };
        let cache = |values: &[f32]| {
            let rounded: Vec<T> = values.iter().map(|x| T::round(*x)).collect();
            GpuTensor::from_host(&device, &rounded).unwrap()
        };
        let upload = |values: &[f32]| GpuTensor::from_host(&device, values).unwrap();
        Scene {
            stream: device.stream().unwrap(),
            ops: Ops::open(&device).unwrap(),
            heads,
            shape,
            q: upload(&floats.q),
            k: upload(&floats.k),
            v: upload(&floats.v),
            k_cache: cache(&floats.keys),
            v_cache: cache(&floats.values),
            out: upload(&vec![f32::NAN; floats.q.len()]),
            error: GpuTensor::zeros(&device, 1).unwrap(),
            floats,
            device,
        }
    }

    pub(crate) fn attention<'a>(&'a self, length: Index<'a>) -> IncrementalAttention<'a, T> {
        let Scene { heads, shape, ref q, ref k_cache, ref v_cache, ref out, ref error, .. } = *self;
        IncrementalAttention { heads, shape, q, k_cache, v_cache, length, out, error }
    }

    pub(crate) fn scatter(&self, stream: &Stream, position: Index<'_>) -> kiln::Result<()> {
        let Scene { shape, k, v, k_cache, v_cache, error, .. } = self;
        self.ops.kv_cache_scatter(stream, *shape, k, v, k_cache, v_cache, position, error)
    }

    /// The attention of the first `length` positions in float64.
    pub(crate) fn expected(&self, length: u32) -> Vec<f64> {
        let CacheShape { kv_heads, max_seq_len, head_dim } = self.shape;
        let (dim, group) = (head_dim as usize, self.heads / kv_heads);
        let mut out = Vec::new();
        for (head, q) in self.floats.q.chunks(dim).enumerate() {
            let first = (head as u32 / group * max_seq_len) as usize;
            let row = |cache: &[f32], t: usize| -> Vec<f64> {
                cache[(first + t) * dim..][..dim].iter().map(|x| f64::from(*x)).collect()
            };
            let score = |t: usize| -> f64 {
                let key = row(&self.floats.keys, t);
                q.iter().zip(key).map(|(q, k)| f64::from(*q) * k).sum::<f64>() / (dim as f64).sqrt()
            };
            let weights: Vec<f64> = (0..length as usize).map(|t| score(t).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut total = vec![0.0; dim];
            for (t, weight) in weights.iter().enumerate() {
                let value = row(&self.floats.values, t);
                total.iter_mut().zip(value).for_each(|(total, v)| *total += weight / sum * v);
            }
            out.extend(total);
        }
        out
    }

    /// Does to the floats what the scatter does to the caches.
    pub(crate) fn write(&mut self, position: u32) {
        let CacheShape { kv_heads, max_seq_len, head_dim } = self.shape;
        let Floats { k, v, keys, values, .. } = &mut self.floats;
        for (cache, source) in [(keys, k), (values, v)] {
            for head in 0..kv_heads {
                let to = ((head * max_seq_len + position) * head_dim) as usize;
                let from = (head * head_dim) as usize;
                cache[to..to + head_dim as usize].copy_from_slice(&source[from..from + head_dim as usize]);
            }
        }
    }
}
