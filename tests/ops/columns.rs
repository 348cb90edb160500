//! Many columns at once through the safe functions: against float64, and what does not fit is refused.

use half::f16;
use kiln::driver::{GpuTensor, Stream};
use kiln::ops::{CacheShape, CausalAttention, Columns, Gemm, Index, Norm, Ops};
use kiln::shape::WeightType;
use kiln::{Error, Result};

use crate::common;
use crate::common::table::calls_of;
use crate::compare::{assert_close, assert_close_sums, assert_same_bits};
use crate::int8;
use crate::quantised::Matrix;
use crate::random::Random;
use crate::rounding;

/// Weights are rounded to f16, and queries to two numbers of it, as in a model's attention.
const ATTENTION_BOUND: f64 = 4e-4;

fn quantised() -> impl Iterator<Item = WeightType> {
    WeightType::ALL.iter().copied().filter(|ty| ty.is_quantised())
}

fn floats(ops: &Ops, values: &[f32]) -> GpuTensor<f32> {
    GpuTensor::from_host(ops.device(), values).unwrap()
}

/// Results of all columns, one after the other.
fn run(
    ops: &Ops,
    stream: &Stream,
    matrix: &Matrix,
    x: &[f32],
    norm: Option<(&[f32], f32)>,
    addends: Option<(&[f32], &[f32])>,
) -> Vec<f32> {
    let (n, k) = (matrix.n as u32, matrix.k as u32);
    let w = ops.matrix(matrix.ty, n, k, &matrix.bytes).unwrap();
    let count = x.len() as u32 / k;
    let columns = ops.columns(matrix.ty, k, count).unwrap();
    let gamma = norm.map(|(gamma, eps)| (floats(ops, gamma), eps));
    let norm = gamma.as_ref().map(|(gamma, eps)| Norm { gamma, eps: *eps });
    ops.quantise(stream, &floats(ops, x), norm, &columns).unwrap();
    let addends = addends.map(|(bias, residual)| (floats(ops, bias), floats(ops, residual)));
    let y = floats(ops, &vec![f32::NAN; (n * count) as usize]);
    let (bias, residual) = (addends.as_ref().map(|of| &of.0), addends.as_ref().map(|of| &of.1));
    ops.gemm(stream, &Gemm { w: &w, x: &columns, bias, residual, y: &y }).unwrap();
    y.to_host().unwrap()
}

/// More columns and rows than a tile has, and rows that end within a super-block where the type has such.
#[test]
fn products_with_several_columns_match_float64_with_rounded_activations() {
    let mut random = Random::fresh();
    let device = common::device();
    let (ops, stream) = (Ops::open_for_columns(&device).unwrap(), device.stream().unwrap());
    for (number, ty) in quantised().enumerate() {
        let (n, k, count) = (135, if ty.block_len() == 32 { 288 } else { 512 }, if number == 0 { 67 } else { 3 });
        let matrix = Matrix::random(ty, n, k, &mut random);
        let (x, gamma) = (random.floats(count * k, 1.0), random.floats(k, 1.0));
        let (bias, residual) = (random.floats(n, 1.0), random.floats(n * count, 1.0));
        let (is_normalised, adds, eps) = (number % 2 == 0, number % 3 == 0, 0.125);
        let norm = is_normalised.then_some((&gamma[..], eps));
        let found = run(&ops, &stream, &matrix, &x, norm, adds.then_some((&bias[..], &residual[..])));
        for (column, (x, found)) in x.chunks(k).zip(found.chunks(n)).enumerate() {
            let scaled: Vec<f32> = match is_normalised {
                true => x.iter().zip(&gamma).map(|(x, gamma)| x * gamma).collect(),
                false => x.to_vec(),
            };
            let (rounded, _) = int8::rounded(&scaled, int8::group(ty).expect("a group"));
            let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / k as f64;
            let factor = if is_normalised { (mean + f64::from(eps)).sqrt().recip() } else { 1.0 };
            let mut expected: Vec<f64> = matrix.times(&rounded).into_iter().map(|y| y * factor).collect();
            if adds {
                for (row, y) in expected.iter_mut().enumerate() {
                    *y += f64::from(bias[row]) + f64::from(residual[column * n + row]);
                }
            }
            let magnitude = 5.0 * factor * rounded.iter().map(|x| x.abs()).sum::<f64>() + 4.0;
            let what = format!("{ty}, column {column}");
            assert_close_sums(&what, found, &expected, &vec![magnitude; n], rounding::fast_product(k));
        }
        // Alone each has the bits that it has among others.
        let last = &x[(count - 1) * k..];
        let residual = &residual[(count - 1) * n..];
        let alone = run(&ops, &stream, &matrix, last, norm, adds.then_some((&bias[..], residual)));
        assert_same_bits(&format!("{ty}, alone"), &alone, &found[(count - 1) * n..]);
    }
}

/// A cache with queries of some columns.
struct Scene {
    ops: Ops,
    stream: Stream,
    heads: u32,
    columns: u32,
    shape: CacheShape,
    q: GpuTensor<f32>,
    caches: [GpuTensor<f16>; 2],
    out: GpuTensor<f32>,
    error: GpuTensor<u32>,
    /// Queries, keys and values as the device has them.
    values: [Vec<f32>; 3],
}

impl Scene {
    fn new(heads: u32, columns: u32, shape: CacheShape, random: &mut Random) -> Scene {
        let device = common::device();
        let ops = Ops::open_for_columns(&device).unwrap();
        let row = (columns * heads * shape.head_dim) as usize;
        let q = random.floats(row, 4.0);
        let mut cache = || -> Vec<f16> {
            let len = shape.kv_heads * shape.max_seq_len * shape.head_dim;
            random.floats(len as usize, 1.0).into_iter().map(f16::from_f32).collect()
        };
        let halves = [cache(), cache()];
        let [keys, values] = halves.each_ref().map(|of| of.iter().map(|x| x.to_f32()).collect());
        Scene {
            stream: device.stream().unwrap(),
            q: floats(&ops, &q),
            caches: halves.map(|of| GpuTensor::from_host(&device, &of).unwrap()),
            out: floats(&ops, &vec![f32::NAN; row]),
            error: GpuTensor::zeros(&device, 1).unwrap(),
            ops,
            heads,
            columns,
            shape,
            values: [q, keys, values],
        }
    }

    fn arguments<'a>(&'a self, position: Index<'a>) -> CausalAttention<'a> {
        let Scene { heads, columns, shape, q, caches: [k_cache, v_cache], out, error, .. } = self;
        let (heads, columns, shape) = (*heads, *columns, *shape);
        CausalAttention { heads, columns, shape, q, k_cache, v_cache, position, out, error }
    }

    fn expected(&self, position: u32) -> Vec<f64> {
        let [q, keys, values] = &self.values;
        let (heads, head_dim) = (self.heads as usize, self.shape.head_dim as usize);
        let group = heads / self.shape.kv_heads as usize;
        let mut all = Vec::new();
        for (number, q) in q.chunks(head_dim).enumerate() {
            let (column, head) = (number / heads, number % heads);
            let length = position as usize + column + 1;
            let row = |cache: &[f32], at: usize| -> Vec<f64> {
                let first = (head / group * self.shape.max_seq_len as usize + at) * head_dim;
                cache[first..first + head_dim].iter().map(|x| f64::from(*x)).collect()
            };
            let score = |at: usize| -> f64 {
                let dot: f64 = q.iter().zip(row(keys, at)).map(|(q, k)| f64::from(*q) * k).sum();
                dot / (head_dim as f64).sqrt()
            };
            let scores: Vec<f64> = (0..length).map(score).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            let rows: Vec<Vec<f64>> = (0..length).map(|at| row(values, at)).collect();
            all.extend(
                (0..head_dim)
                    .map(|dim| weights.iter().zip(&rows).map(|(weight, row)| weight * row[dim]).sum::<f64>() / total),
            );
        }
        all
    }
}

/// Behind a prefix and without one, over the ends of chunks, positions given and in device memory.
#[test]
fn causal_attention_matches_float64() {
    let mut random = Random::fresh();
    for (heads, columns, kv_heads, head_dim, max_seq_len, position) in
        [(4, 21, 2, 64, 80, 30), (3, 1, 3, 128, 5, 0), (2, 34, 1, 64, 34, 0)]
    {
        let shape = CacheShape { kv_heads, max_seq_len, head_dim };
        let scene = Scene::new(heads, columns, shape, &mut random);
        let at = GpuTensor::from_host(scene.ops.device(), &[position]).unwrap();
        let results = [Index::Value(position), Index::Device(&at)].map(|index| {
            scene.ops.causal_attention(&scene.stream, &scene.arguments(index)).unwrap();
            scene.out.to_host().unwrap()
        });
        let what = format!("{heads}/{kv_heads} heads of {head_dim}, {columns} columns from {position}");
        assert_close(&what, &results[0], &scene.expected(position), ATTENTION_BOUND);
        assert_same_bits(&what, &results[1], &results[0]);
        assert_eq!(scene.error.to_host().unwrap(), [0]);
    }
}

/// Behind a prefix of thousands.
#[test]
fn causal_attention_over_thousands_of_positions_matches_float64() {
    let mut random = Random::fresh();
    for (heads, columns, kv_heads, head_dim, position) in [(2, 5, 1, 128, 4094), (6, 3, 3, 64, 4095)] {
        let shape = CacheShape { kv_heads, max_seq_len: 4100, head_dim };
        let scene = Scene::new(heads, columns, shape, &mut random);
        scene.ops.causal_attention(&scene.stream, &scene.arguments(Index::Value(position))).unwrap();
        let what = format!("{heads}/{kv_heads} heads of {head_dim}, {columns} columns from {position}");
        assert_close(&what, &scene.out.to_host().unwrap(), &scene.expected(position), ATTENTION_BOUND);
        assert_eq!(scene.error.to_host().unwrap(), [0]);
    }
}

#[test]
fn a_position_in_device_memory_beyond_the_cache_gives_zeros() {
    let shape = CacheShape { kv_heads: 1, max_seq_len: 9, head_dim: 64 };
    let scene = Scene::new(2, 4, shape, &mut Random::fresh());
    for position in [6, u32::MAX] {
        let at = GpuTensor::from_host(scene.ops.device(), &[position]).unwrap();
        scene.ops.causal_attention(&scene.stream, &scene.arguments(Index::Device(&at))).unwrap();
        assert!(scene.out.to_host().unwrap().iter().all(|value| *value == 0.0), "{position}");
        assert_eq!(scene.error.to_host().unwrap(), [3]);
    }
}

/// The message of a call that must be refused without a launch.
#[track_caller]
fn refused<R: std::fmt::Debug>(parts: &[&str], call: impl FnOnce() -> Result<R>) {
    let (result, calls) = calls_of(call);
    assert!(!calls.contains(&"cuLaunchKernel"), "{calls:?}");
    let error = result.unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    let message = error.to_string();
    assert!(parts.iter().all(|part| message.contains(part)), "{message}");
}

#[test]
fn columns_of_other_lengths_or_types_are_refused() {
    let mut random = Random::fresh();
    let device = common::device();
    let (ops, stream) = (Ops::open_for_columns(&device).unwrap(), device.stream().unwrap());
    let tensor = |len: usize| GpuTensor::<f32>::zeros(&device, len).unwrap();
    let matrix = Matrix::random(WeightType::Q4_K, 3, 256, &mut random);
    let w = ops.matrix(WeightType::Q4_K, 3, 256, &matrix.bytes).unwrap();
    let x: Columns = ops.columns(WeightType::Q4_K, 256, 5).unwrap();

    refused(&["weights of columns", "F16", "a quantised type"], || ops.columns(WeightType::F16, 256, 5));
    refused(&["found 288", "a multiple of 256"], || ops.columns(WeightType::Q4_K, 288, 5));
    refused(&["found 33024", "up to 32512"], || ops.columns(WeightType::Q8_0, 33024, 5));
    refused(&["columns", "found 0", "1 to 1048576"], || ops.columns(WeightType::Q8_0, 32, 0));

    let short = tensor(5 * 256 - 1);
    refused(&["x of columns", "1279 elements", "5 columns * 256 activations"], || {
        ops.quantise(&stream, &short, None, &x)
    });
    let (all, gamma) = (tensor(5 * 256), tensor(255));
    refused(&["gamma of columns", "255 elements", "256 activations"], || {
        ops.quantise(&stream, &all, Some(Norm { gamma: &gamma, eps: 0.0 }), &x)
    });

    let y = tensor(15);
    let gemm = |x: &Columns, bias, residual, y| ops.gemm(&stream, &Gemm { w: &w, x, bias, residual, y });
    let others = ops.columns(WeightType::Q8_0, 256, 5).unwrap();
    refused(&["a scale for each 32", "Q4_K"], || gemm(&others, None, None, &y));
    let long = ops.columns(WeightType::Q6_K, 512, 5).unwrap();
    refused(&["activations of a column", "found 512", "256"], || gemm(&long, None, None, &y));
    let wrong = tensor(14);
    refused(&["y of a product", "14 elements", "5 columns * 3 rows"], || gemm(&x, None, None, &wrong));
    refused(&["bias of a product", "14 elements", "3 rows"], || gemm(&x, Some(&wrong), None, &y));
    refused(&["residual of a product", "14 elements"], || gemm(&x, None, Some(&wrong), &y));
    gemm(&x, None, None, &y).unwrap();
    assert_eq!(y.to_host().unwrap(), [0.0; 15], "columns are zeros until they are written");
}

#[test]
fn causal_attention_beyond_the_cache_or_of_other_lengths_is_refused() {
    let shape = CacheShape { kv_heads: 2, max_seq_len: 9, head_dim: 64 };
    let scene = Scene::new(4, 5, shape, &mut Random::fresh());
    let attend = |change: &dyn Fn(&mut CausalAttention<'_>)| {
        let mut arguments = scene.arguments(Index::Value(4));
        change(&mut arguments);
        scene.ops.causal_attention(&scene.stream, &arguments)
    };
    for position in [5, u32::MAX] {
        refused(&["position of attention", &position.to_string(), "max_seq_len, 9"], || {
            attend(&|of| of.position = Index::Value(position))
        });
    }
    refused(&["columns of attention", "found 0"], || attend(&|of| of.columns = 0));
    refused(&["heads of attention", "found 3", "kv_heads, 2"], || attend(&|of| of.heads = 3));
    refused(&["q of attention", "1280 elements", "1024 elements"], || attend(&|of| of.columns = 4));
    refused(&["k_cache of attention"], || attend(&|of| of.shape = CacheShape { max_seq_len: 10, ..shape }));
    attend(&|_| ()).unwrap();
    let other = Scene::new(4, 5, CacheShape { head_dim: 96, ..shape }, &mut Random::fresh());
    refused(&["head_dim of attention", "found 96", "a multiple of 64 up to 256"], || {
        other.ops.causal_attention(&other.stream, &other.arguments(Index::Value(4)))
    });
}

#[test]
fn kernels_for_several_columns_are_loaded_where_they_are_asked_for() {
    let device = common::device();
    let (ops, stream) = (Ops::open(&device).unwrap(), device.stream().unwrap());
    let x = GpuTensor::<f32>::zeros(&device, 256).unwrap();
    let columns = ops.columns(WeightType::Q4_K, 256, 1).unwrap();
    let found = ops.quantise(&stream, &x, None, &columns);
    assert!(matches!(&found, Err(Error::KernelNotBaked { kernel, .. }) if kernel == "columns_of_256"), "{found:?}");
}
