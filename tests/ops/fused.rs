//! What is fused to products, and to the write of keys and values, against float64: odd sizes, matrices of mixed types,
//! several schedules, all checks on, outputs poisoned.

use half::f16;
use kiln::driver::{Device, GpuTensor, Stream};
use kiln::ops::{CacheShape, Gemv, Index, Norm, Ops, QkNormRope, Qkv, RopeTables};
use kiln::shape::WeightType;
use kiln_emulator::{DeviceConfig, Schedule};

use crate::common;
use crate::compare::{assert_close, assert_close_sums};
use crate::quantised::Matrix;
use crate::random::Random;
use crate::rounding;
use crate::scene::Rounded;

/// A device with one way of interleaving warps and blocks.
struct Bench {
    device: Device,
    ops: Ops,
    stream: Stream,
    schedule: &'static str,
}

/// Runs `work` under several schedules; on a GPU once, under its own.
fn every_schedule(random: &mut Random, mut work: impl FnMut(&Bench, &mut Random)) {
    let schedules =
        [("round robin", Schedule::RoundRobin), ("random", Schedule::Random), ("adversarial", Schedule::Adversarial)];
    for (name, schedule) in schedules {
        let config = DeviceConfig { schedule, seed: random.next(), threads: 1, ..DeviceConfig::default() };
        let device = common::device_with(DeviceConfig { split_warps: name == "random", ..config });
        let (ops, stream) = (Ops::open(&device).unwrap(), device.stream().unwrap());
        work(&Bench { device, ops, stream, schedule: name }, random);
        if common::on_gpu() {
            return;
        }
    }
}

impl Bench {
    fn upload(&self, values: &[f32]) -> GpuTensor<f32> {
        GpuTensor::from_host(&self.device, values).unwrap()
    }

    fn poisoned(&self, len: usize) -> GpuTensor<f32> {
        self.upload(&vec![f32::NAN; len])
    }

    fn matrix(&self, matrix: &Matrix) -> kiln::ops::Matrix {
        self.ops.matrix(matrix.ty, matrix.n as u32, matrix.k as u32, &matrix.bytes).unwrap()
    }
}

fn widened(values: &[f32]) -> Vec<f64> {
    values.iter().map(|x| f64::from(*x)).collect()
}

fn normalised(x: &[f32], gamma: &[f32], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64;
    let inverse = (mean + f64::from(eps)).sqrt().recip();
    x.iter().zip(gamma).map(|(x, gamma)| f64::from(*x) * inverse * f64::from(*gamma)).collect()
}

/// One product with the addends that the bits of `combination` ask for: norm, bias, residual.
fn check_product(bench: &Bench, ty: WeightType, n: usize, k: usize, combination: u32, random: &mut Random) {
    let matrix = Matrix::random(ty, n, k, random);
    let (x, gamma, eps) = (random.floats(k, 1.0), random.floats(k, 1.0), 0.25);
    let [bias, residual] = [0, 1].map(|_| random.floats(n, 3.0));
    let (w, px, y) = (bench.matrix(&matrix), bench.upload(&x), bench.poisoned(n));
    let (pg, pb, pr) = (bench.upload(&gamma), bench.upload(&bias), bench.upload(&residual));
    let arguments = Gemv {
        w: &w,
        x: &px,
        norm: (combination & 1 != 0).then_some(Norm { gamma: &pg, eps }),
        bias: (combination & 2 != 0).then_some(&pb),
        residual: (combination & 4 != 0).then_some(&pr),
        y: &y,
    };
    bench.ops.gemv_with(&bench.stream, &arguments).unwrap();
    let x = if combination & 1 != 0 { normalised(&x, &gamma, eps) } else { widened(&x) };
    let (mut expected, mut magnitudes) = (matrix.times(&x), matrix.magnitudes(&x));
    for (bit, addend) in [(2, &bias), (4, &residual)] {
        for ((y, magnitude), addend) in expected.iter_mut().zip(&mut magnitudes).zip(addend) {
            if combination & bit != 0 {
                *y += f64::from(*addend);
                *magnitude += f64::from(addend.abs());
            }
        }
    }
    let what = format!("{ty}, n {n}, k {k}, combination {combination}, {}", bench.schedule);
    let bound = if combination & 1 != 0 { rounding::normalised_product(k) } else { rounding::product(k) };
    assert_close_sums(&what, &y.to_host().unwrap(), &expected, &magnitudes, bound);
}

#[test]
fn norm_bias_and_residual_come_in_every_combination_with_every_type() {
    every_schedule(&mut Random::fresh(), |bench, random| {
        for (index, &ty) in WeightType::ALL.iter().enumerate() {
            for combination in 0..8 {
                let (n, k) = ([17, 1, 33][(index + combination) % 3], [256, 768, 1280][combination % 3]);
                check_product(bench, ty, n, k, combination as u32, random);
            }
        }
    });
}

#[test]
fn rows_staged_in_parts_take_bias_and_residual_once() {
    let mut random = Random::fresh();
    every_schedule(&mut random, |bench, random| {
        for combination in [6, 7] {
            check_product(bench, WeightType::Q4_K, 3, 12288 + 256, combination, random);
        }
    });
}

/// Types for the matrices of one launch, from a random place of the list on.
fn mixed(random: &mut Random) -> impl Iterator<Item = WeightType> + use<> {
    let first = random.below(WeightType::ALL.len() as u32) as usize;
    WeightType::ALL.iter().copied().cycle().skip(first)
}

#[test]
fn q_k_and_v_come_of_one_launch() {
    every_schedule(&mut Random::fresh(), |bench, random| {
        // Rows that are no whole tiles; a vector that is staged in two parts.
        for (q_rows, kv_rows, k, with_bias) in
            [(37, 5, 768, true), (64, 16, 512, false), (1, 1, 256, true), (9, 3, 12288 + 256, true)]
        {
            let rows = [q_rows, kv_rows, kv_rows];
            let mut types = mixed(random);
            let matrices = rows.map(|n| Matrix::random(types.next().unwrap(), n, k, random));
            let (x, gamma, eps) = (random.floats(k, 1.0), random.floats(k, 1.0), 0.125);
            let biases = rows.map(|n| random.floats(n, 3.0));
            let [wq, wk, wv] = matrices.each_ref().map(|matrix| bench.matrix(matrix));
            let (px, pg) = (bench.upload(&x), bench.upload(&gamma));
            let [q_bias, k_bias, v_bias] = biases.each_ref().map(|bias| bench.upload(bias));
            let [q, k_out, v] = rows.map(|n| bench.poisoned(n));
            let arguments = Qkv {
                wq: &wq,
                wk: &wk,
                wv: &wv,
                x: &px,
                norm: Norm { gamma: &pg, eps },
                biases: with_bias.then_some([&q_bias, &k_bias, &v_bias]),
                q: &q,
                k: &k_out,
                v: &v,
            };
            bench.ops.fused_rmsnorm_qkv(&bench.stream, &arguments).unwrap();
            let x = normalised(&x, &gamma, eps);
            for (((name, found), matrix), bias) in
                [("q", &q), ("k", &k_out), ("v", &v)].into_iter().zip(&matrices).zip(&biases)
            {
                let (mut expected, mut magnitudes) = (matrix.times(&x), matrix.magnitudes(&x));
                if with_bias {
                    expected.iter_mut().zip(bias).for_each(|(y, bias)| *y += f64::from(*bias));
                    magnitudes.iter_mut().zip(bias).for_each(|(m, bias)| *m += f64::from(bias.abs()));
                }
                let what = format!("{name} of {rows:?} x {k}, {}, {}", matrix.ty, bench.schedule);
                let bound = rounding::normalised_product(k);
                assert_close_sums(&what, &found.to_host().unwrap(), &expected, &magnitudes, bound);
            }
        }
    });
}

#[test]
fn gate_up_and_swiglu_come_of_one_launch() {
    every_schedule(&mut Random::fresh(), |bench, random| {
        // The last is the longest vector that there is.
        for (n, k) in [(37, 512), (1, 256), (80, 1024), (3, 12288)] {
            let mut types = mixed(random);
            let [gate, up] = [0, 1].map(|_| Matrix::random(types.next().unwrap(), n, k, random));
            let (x, gamma, eps) = (random.floats(k, 1.0), random.floats(k, 1.0), 0.5);
            let (wg, wu) = (bench.matrix(&gate), bench.matrix(&up));
            let (px, pg, y) = (bench.upload(&x), bench.upload(&gamma), bench.poisoned(n));
            bench.ops.fused_rmsnorm_gate_up(&bench.stream, &wg, &wu, &px, Norm { gamma: &pg, eps }, &y).unwrap();
            let x = normalised(&x, &gamma, eps);
            let silu = |x: f64| x / (1.0 + (-x).exp());
            let (gates, ups) = (gate.times(&x), up.times(&x));
            let expected: Vec<f64> = gates.iter().zip(&ups).map(|(gate, up)| silu(*gate) * up).collect();
            // An error of either sum, as large as its terms let it be, through the product; SiLU is at most 1.1 steep.
            let terms = gate.magnitudes(&x).into_iter().zip(up.magnitudes(&x)).zip(gates.iter().zip(&ups));
            let magnitudes: Vec<f64> = terms
                .map(|((of_gate, of_up), (gate, up))| 1.1 * of_gate * up.abs() + silu(*gate).abs() * of_up)
                .collect();
            let what = format!("{n} x {k}, {} and {}, {}", gate.ty, up.ty, bench.schedule);
            assert_close_sums(&what, &y.to_host().unwrap(), &expected, &magnitudes, rounding::swiglu(k));
        }
    });
}

/// Heads of Q and K normalised, turned and written, at a position given by value or in memory.
fn check_rope<T: Rounded>(bench: &Bench, heads: u32, kv_heads: u32, dim: u32, with_norm: bool, random: &mut Random) {
    const THETA: f64 = 1e4;
    let (max_seq_len, eps) = (5 + random.below(200), 0.0625);
    let position = [0, max_seq_len - 1, random.below(max_seq_len)][random.below(3) as usize];
    let shape = CacheShape { kv_heads, max_seq_len, head_dim: dim };
    let [q, k, v] = [heads, kv_heads, kv_heads].map(|heads| random.floats((heads * dim) as usize, 2.0));
    let gammas = [0, 1].map(|_| random.floats(dim as usize, 1.5));
    let [pq, pk, pv] = [&q, &k, &v].map(|values| bench.upload(values));
    let [q_gamma, k_gamma] = gammas.each_ref().map(|gamma| bench.upload(gamma));
    let before = T::round(0.25);
    let empty = vec![before; (kv_heads * max_seq_len * dim) as usize];
    let [k_cache, v_cache] = [0, 1].map(|_| GpuTensor::from_host(&bench.device, &empty).unwrap());
    let error = GpuTensor::zeros(&bench.device, 1).unwrap();
    let at = GpuTensor::from_host(&bench.device, &[position]).unwrap();
    // Tables may be for more positions than the cache has.
    let tables = RopeTables::new(&bench.device, max_seq_len + random.below(3), dim, THETA).unwrap();
    let arguments = QkNormRope {
        heads,
        shape,
        q: &pq,
        k: &pk,
        v: &pv,
        norms: with_norm.then_some([Norm { gamma: &q_gamma, eps }, Norm { gamma: &k_gamma, eps }]),
        tables: &tables,
        k_cache: &k_cache,
        v_cache: &v_cache,
        position: if random.below(2) == 0 { Index::Value(position) } else { Index::Device(&at) },
        error: &error,
    };
    bench.ops.qk_norm_rope_kv_write(&bench.stream, &arguments).unwrap();
    let what = format!("{heads}/{kv_heads} heads of {dim}, norm {with_norm}, position {position}, {}", bench.schedule);
    assert_eq!(error.to_host().unwrap(), [0], "{what}");
    let half = dim as usize / 2;
    let turned = |head: &[f32], gamma: &[f32]| -> Vec<f64> {
        let head = if with_norm { normalised(head, gamma, eps) } else { widened(head) };
        let mut turned = head.clone();
        for pair in 0..half {
            let (sin, cos) = (f64::from(position) * THETA.powf(-2.0 * pair as f64 / f64::from(dim))).sin_cos();
            turned[pair] = head[pair] * cos - head[pair + half] * sin;
            turned[pair + half] = head[pair + half] * cos + head[pair] * sin;
        }
        turned
    };
    let all = |heads: &[f32], gamma: &[f32]| -> Vec<f64> {
        heads.chunks(dim as usize).flat_map(|head| turned(head, gamma)).collect()
    };
    let turned_bound = rounding::turned_head(dim as usize);
    let bound = if size_of::<T>() == 2 { rounding::in_f16(turned_bound) } else { turned_bound };
    assert_close(&format!("q: {what}"), &pq.to_host().unwrap(), &all(&q, &gammas[0]), turned_bound);
    assert_eq!((pk.to_host().unwrap(), pv.to_host().unwrap()), (k.clone(), v.clone()), "{what}");
    for (name, cache, expected) in [("k", &k_cache, all(&k, &gammas[1])), ("v", &v_cache, widened(&v))] {
        let mut found: Vec<f32> = cache.to_host().unwrap().into_iter().map(T::float).collect();
        for (head, expected) in expected.chunks(dim as usize).enumerate() {
            let row = &mut found[(head as u32 * max_seq_len + position) as usize * dim as usize..][..dim as usize];
            assert_close(&format!("{name}, head {head}: {what}"), row, expected, bound);
            row.fill(0.25);
        }
        assert!(found.iter().all(|x| *x == 0.25), "{name} written elsewhere: {what}");
    }
}

#[test]
fn heads_are_normalised_turned_and_written_in_one_launch() {
    every_schedule(&mut Random::fresh(), |bench, random| {
        for (heads, kv_heads, dim, with_norm) in
            [(5, 1, 64, true), (6, 3, 128, false), (2, 2, 256, true), (1, 1, 128, true)]
        {
            check_rope::<f16>(bench, heads, kv_heads, dim, with_norm, random);
            check_rope::<f32>(bench, heads, kv_heads, dim, with_norm, random);
        }
    });
}

#[test]
fn a_position_in_device_memory_beyond_the_caches_sets_the_error_word_and_writes_nothing() {
    every_schedule(&mut Random::fresh(), |bench, random| {
        let shape = CacheShape { kv_heads: 1, max_seq_len: 6, head_dim: 64 };
        let values = random.floats(64, 1.0);
        let [q, k, v] = [0; 3].map(|_| bench.upload(&values));
        let [k_cache, v_cache] = [0; 2].map(|_| bench.upload(&[0.5; 6 * 64]));
        let tables = RopeTables::new(&bench.device, 6, 64, 1e6).unwrap();
        for position in [6, u32::MAX] {
            let error = GpuTensor::zeros(&bench.device, 1).unwrap();
            let at = GpuTensor::from_host(&bench.device, &[position]).unwrap();
            let arguments = QkNormRope {
                heads: 1,
                shape,
                q: &q,
                k: &k,
                v: &v,
                norms: None,
                tables: &tables,
                k_cache: &k_cache,
                v_cache: &v_cache,
                position: Index::Device(&at),
                error: &error,
            };
            bench.ops.qk_norm_rope_kv_write(&bench.stream, &arguments).unwrap();
            assert_eq!(error.to_host().unwrap(), [2], "{}", bench.schedule);
            assert_eq!(q.to_host().unwrap(), values);
            assert!([&k_cache, &v_cache].iter().all(|cache| cache.to_host().unwrap() == [0.5; 6 * 64]));
        }
    });
}
