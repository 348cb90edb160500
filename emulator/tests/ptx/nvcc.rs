//! Programs compiled by NVIDIA's own compiler (`nvcc/programs.cu`, by `nvcc/make.sh`) give what CUDA says they give, for
//! every target and under several schedules, with all checks on.

use crate::rig::Rig;
use kiln_emulator::Schedule;

const TEXTS: [(u32, &str); 3] = [
    (75, include_str!("../nvcc/programs.sm_75.ptx")),
    (80, include_str!("../nvcc/programs.sm_80.ptx")),
    (90, include_str!("../nvcc/programs.sm_90.ptx")),
];

/// The same numbers on every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }
    fn small(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| (self.next() % 33) as f32 / 8.0 - 2.0).collect()
    }
    fn ints(&mut self, n: usize, below: u32) -> Vec<u32> {
        (0..n).map(|_| self.next() % below).collect()
    }
}

fn half(v: f32) -> u16 {
    // Exact for the eighths used here.
    let b = v.to_bits();
    if v == 0.0 { 0 } else { ((b >> 16 & 0x8000) | ((b >> 23 & 0xff) - 112) << 10 | (b >> 13 & 0x3ff)) as u16 }
}

fn unhalf(h: u16) -> f32 {
    let e = i32::from(h >> 10 & 31);
    let m = f32::from(h & 0x3ff);
    let v = if e == 0 { m / 1024.0 * 2f32.powi(-14) } else { (1.0 + m / 1024.0) * 2f32.powi(e - 15) };
    if h >> 15 == 1 { -v } else { v }
}

fn bytes16(v: &[u16]) -> Vec<u8> {
    v.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Runs `check` with a fresh rig for every target and schedule.
fn everywhere(check: impl Fn(&mut Rig)) {
    for (sm, text) in TEXTS {
        for (schedule, split_warps, seed) in
            [(Schedule::RoundRobin, false, 0), (Schedule::Random, true, 5), (Schedule::Adversarial, false, 9)]
        {
            let mut rig = Rig::new(text);
            assert_eq!(rig.module.kernel("reduce_shared").map(|kernel| kernel.target_sm), Some(sm));
            (rig.config.schedule, rig.config.split_warps, rig.config.seed) = (schedule, split_warps, seed);
            check(&mut rig);
        }
    }
}

/// Inputs and outputs as 32-bit words, one-dimensional.
fn words(kernel: &str, grid: u32, block: u32, n: u64, input: &[u32], out: usize, expected: &[u32]) {
    everywhere(|rig| {
        let (a, b) = (rig.u32s(input), rig.u32s(&vec![0; out]));
        rig.launch(kernel, grid, block, &[a, b, n]).unwrap_or_else(|f| panic!("{f}"));
        assert_eq!(rig.read_u32s(b, expected.len()), expected, "{kernel}");
    });
}

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn reductions() {
    let x = Numbers(1).small(1000);
    let sum: f32 = x.iter().sum(); // exact: eighths
    words("reduce_shared", 1, 256, 1000, &bits(&x), 1, &[sum.to_bits()]);
    let x = Numbers(2).small(1024);
    let sums: Vec<f32> = x.chunks(256).map(|c| c.iter().sum()).collect();
    words("reduce_shuffle", 4, 256, 1024, &bits(&x), 4, &bits(&sums));
    let x = Numbers(3).ints(1000, 1 << 20);
    words("reduce_atomic", 8, 128, 1000, &x, 1, &[x.iter().sum()]);
}

#[test]
fn scans() {
    let x = Numbers(4).ints(256, 1000);
    let scan = |x: &[u32]| {
        x.iter()
            .scan(0, |s, v| {
                *s += v;
                Some(*s)
            })
            .collect::<Vec<u32>>()
    };
    words("scan_block", 1, 256, 256, &x, 256, &scan(&x));
    words("scan_warp", 1, 32, 32, &x[..32], 32, &scan(&x[..32]));
}

#[test]
fn histogram_with_atomics() {
    let x = Numbers(5).ints(3000, 1 << 30);
    let mut h = vec![0; 64];
    x.iter().for_each(|v| h[(v & 63) as usize] += 1);
    words("histogram", 5, 128, 3000, &x, 64, &h);
}

#[test]
fn transpose_and_tiled_product() {
    everywhere(|rig| {
        let n = 64;
        let x = Numbers(6).small(n * n);
        let (a, b) = (rig.f32s(&x), rig.f32s(&vec![0.0; n * n]));
        rig.launch3("transpose", [4, 4, 1], [16, 16, 1], &[a, b, n as u64]).unwrap();
        let t = rig.read_f32s(b, n * n);
        assert!((0..n * n).all(|i| t[i] == x[i % n * n + i / n]));
        let n = 32;
        let x = Numbers(7).small(2 * n * n);
        let (a, b) = (rig.f32s(&x), rig.f32s(&vec![0.0; n * n]));
        rig.launch3("matmul_tiled", [2, 2, 1], [16, 16, 1], &[a, b, n as u64]).unwrap();
        let c = rig.read_f32s(b, n * n);
        for i in 0..n * n {
            let s: f32 = (0..n).map(|k| x[i / n * n + k] * x[n * n + k * n + i % n]).sum();
            assert_eq!(c[i], s);
        }
    });
}

#[test]
fn products_by_wmma_and_mma() {
    everywhere(|rig| {
        let x = Numbers(8).small(2 * 16 * 32);
        let h: Vec<u16> = x.iter().map(|&v| half(v)).collect();
        let (a, b) = (rig.buffer(&bytes16(&h)), rig.f32s(&[0.0; 256]));
        rig.launch("matmul_wmma_f16", 1, 32, &[a, b, 0]).unwrap();
        let c = rig.read_f32s(b, 256);
        for i in 0..256 {
            let s: f32 = (0..32).map(|k| x[i / 16 * 32 + k] * x[512 + i % 16 * 32 + k]).sum();
            assert_eq!(c[i], s);
        }
        let (a, b) = (rig.buffer(&bytes16(&h[..192])), rig.f32s(&[0.0; 128]));
        rig.launch("matmul_mma_f16", 1, 32, &[a, b, 0]).unwrap();
        let c = rig.read_f32s(b, 128);
        for i in 0..128 {
            let s: f32 = (0..8).map(|k| x[i / 8 * 8 + k] * x[128 + i % 8 * 8 + k]).sum();
            assert_eq!(c[i], s);
        }
        let q: Vec<u8> = Numbers(9).ints(512, 256).iter().map(|&v| v as u8).collect();
        let s8 = |i: usize| i32::from(q[i] as i8);
        let (a, b) = (rig.buffer(&q), rig.u32s(&[0; 256]));
        rig.launch("matmul_wmma_s8", 1, 32, &[a, b, 0]).unwrap();
        let c = rig.read_u32s(b, 256);
        for i in 0..256 {
            let s: i32 = (0..16).map(|k| s8(i / 16 * 16 + k) * s8(256 + i % 16 * 16 + k)).sum();
            assert_eq!(c[i] as i32, s);
        }
        let b = rig.u32s(&[0; 64]);
        rig.launch("matmul_mma_s8", 1, 32, &[a, b, 0]).unwrap();
        let c = rig.read_u32s(b, 64);
        for i in 0..64 {
            let s: i32 = (0..16).map(|k| s8(i / 8 * 16 + k) * s8(128 + i % 8 * 16 + k)).sum();
            assert_eq!(c[i] as i32, s);
        }
    });
}

#[test]
fn matrices_of_eight_rows_load_plain_and_transposed() {
    everywhere(|rig| {
        let h: Vec<u16> = (0..256).collect();
        let (a, b) = (rig.buffer(&bytes16(&h)), rig.u32s(&[0; 256]));
        rig.launch("load_matrices", 1, 32, &[a, b, 0]).unwrap();
        let out = rig.read_u32s(b, 256);
        for l in 0..32 {
            for j in 0..4 {
                let at = |r: usize, c: usize| u32::from(h[j * 64 + r * 8 + c]);
                let (r, c) = (l / 4, l % 4 * 2);
                assert_eq!(out[l * 8 + j], at(r, c) | at(r, c + 1) << 16);
                assert_eq!(out[l * 8 + 4 + j], at(c, r) | at(c + 1, r) << 16);
            }
        }
    });
}

#[test]
fn softmax_and_layer_norm() {
    everywhere(|rig| {
        let (rows, n) = (3, 77);
        let x = Numbers(10).small(rows * n);
        let (a, b) = (rig.f32s(&x), rig.f32s(&vec![0.0; rows * n]));
        rig.launch("softmax", rows as u32, 32, &[a, b, n as u64]).unwrap();
        let y = rig.read_f32s(b, rows * n);
        rig.launch("layer_norm", rows as u32, 32, &[a, b, n as u64]).unwrap();
        let z = rig.read_f32s(b, rows * n);
        for (r, row) in x.chunks(n).enumerate() {
            let m = row.iter().fold(f64::MIN, |m, &v| m.max(f64::from(v)));
            let s: f64 = row.iter().map(|&v| (f64::from(v) - m).exp()).sum();
            let mean = row.iter().map(|&v| f64::from(v)).sum::<f64>() / n as f64;
            let var = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / n as f64 - mean * mean;
            for (i, &v) in row.iter().enumerate() {
                let p = (f64::from(v) - m).exp() / s;
                assert!((f64::from(y[r * n + i]) - p).abs() < 1e-6 * p, "softmax");
                let q = (f64::from(v) - mean) / (var + 1e-5).sqrt();
                assert!((f64::from(z[r * n + i]) - q).abs() < 1e-5, "layer norm");
            }
        }
    });
}

#[test]
fn quantised_dot_product() {
    let x = Numbers(11).ints(200, u32::MAX);
    let quad = |w: u32, i: usize| i32::from((w >> (8 * i)) as i8);
    let s: i32 = (0..100).map(|i| (0..4).map(|k| quad(x[i], k) * quad(x[100 + i], k)).sum::<i32>()).sum();
    words("dot_q8", 1, 32, 100, &x, 1, &[s as u32]);
}

#[test]
fn calls_with_local_arrays() {
    let x = Numbers(12).ints(50, 1000);
    let expected: Vec<u32> = (0..64)
        .map(|t| {
            let mut v: Vec<u32> = (0..9).map(|i| x[(t * 7 + i * 5) % 50]).collect();
            v.sort_unstable();
            v[4]
        })
        .collect();
    words("median", 1, 64, 50, &x, 64, &expected);
}

#[test]
fn grids_that_communicate() {
    everywhere(|rig| {
        let n = 12;
        let x: Vec<u32> = (0..n).map(|i| i * i).collect();
        let (a, b) = (rig.u32s(&x), rig.u32s(&vec![0; 2 * n as usize]));
        rig.cooperative = true;
        rig.launch("grid_barrier", n, 64, &[a, b, u64::from(n)]).unwrap_or_else(|f| panic!("{f}"));
        let out = rig.read_u32s(b, 2 * n as usize);
        assert!((0..n as usize).all(|i| out[n as usize + i] == 3 * x[(i + 1) % n as usize]));
        let x = Numbers(23).ints(5 * 64, 1000);
        let (a, b) = (rig.u32s(&x), rig.u32s(&vec![0; x.len()]));
        rig.launch("grid_sync", 5, 64, &[a, b, 5]).unwrap_or_else(|f| panic!("{f}"));
        let next = |v: &[u32]| (0..v.len()).map(|i| v[i] + v[(i + 64) % v.len()]).collect::<Vec<u32>>();
        assert_eq!(rig.read_u32s(b, x.len()), next(&next(&next(&x))));
        rig.cooperative = false;
        if rig.module.kernel("cluster_neighbours").is_some() {
            let x = Numbers(24).ints(6 * 64, 1000);
            let (a, b) = (rig.u32s(&x), rig.u32s(&vec![0; x.len()]));
            rig.launch("cluster_neighbours", 6, 64, &[a, b, 0]).unwrap_or_else(|f| panic!("{f}"));
            let other: Vec<u32> = (0..x.len()).map(|i| x[((i / 64) ^ 1) * 64 + 63 - i % 64] + 2).collect();
            assert_eq!(rig.read_u32s(b, x.len()), other);
        }
        let v = Numbers(13).small(20);
        let (a, b) = (rig.f32s(&v), rig.f32s(&[0.0; 21]));
        rig.launch("last_block", 20, 64, &[a, b, 20]).unwrap_or_else(|f| panic!("{f}"));
        assert_eq!(rig.read_f32s(b, 1)[0], v.iter().map(|x| x + 1.0).sum::<f32>());
    });
}

#[test]
fn votes_and_bit_counts() {
    let x = Numbers(14).ints(32, 100);
    let odd: u32 = x.iter().enumerate().map(|(i, v)| (v & 1) << i).sum();
    let mut expected = vec![0; 96];
    for (i, &v) in x.iter().enumerate() {
        let rank = (odd & ((1u32 << i) - 1)).count_ones();
        expected[i] = if v & 1 == 1 { rank } else { u32::MAX };
        expected[32 + i] = u32::from(x.iter().any(|&v| v > 90)) * 2 + 1;
        let first = if v == 0 { 0 } else { v.trailing_zeros() + 1 };
        expected[64 + i] = v.leading_zeros() * 100 + first + v.reverse_bits() % 7;
    }
    words("votes", 1, 32, 32, &x, 96, &expected);
}

#[test]
fn wide_integers_and_doubles() {
    everywhere(|rig| {
        let mut r = Numbers(15);
        let x: Vec<u64> = (0..64).map(|i| (u64::from(r.next()) << 33 ^ u64::from(r.next())) >> (i % 40)).collect();
        let (a, b) = (rig.u64s(&x), rig.u64s(&[0; 128]));
        rig.launch("wide_integers", 1, 32, &[a, b, 32]).unwrap();
        let out = rig.read_u64s(b, 128);
        for t in 0..32 {
            let (p, q) = (x[t], x[32 + t]);
            let expected = [
                p.wrapping_mul(q),
                ((u128::from(p) * u128::from(q)) >> 64) as u64,
                (p / (q | 1)).wrapping_add(p % (q | 1)),
                ((p as i64) >> (q & 63)) as u64 ^ p << (q & 31),
            ];
            assert_eq!(out[4 * t..][..4], expected);
        }
        let d: Vec<f64> = (0..64).map(|_| f64::from(r.next()) / 1e6 + 0.5).collect();
        let (a, b) = (rig.u64s(&d.iter().map(|v| v.to_bits()).collect::<Vec<_>>()), rig.u64s(&[0; 96]));
        rig.launch("doubles", 1, 32, &[a, b, 32]).unwrap();
        let out: Vec<f64> = rig.read_u64s(b, 96).into_iter().map(f64::from_bits).collect();
        for t in 0..32 {
            let (p, q) = (d[t], d[32 + t]);
            // nvcc contracts a*a + b*b into a fused multiply-add, one way or the other.
            let roots = [p.mul_add(p, q * q).sqrt(), q.mul_add(q, p * p).sqrt()];
            assert!(roots.contains(&out[3 * t]));
            assert_eq!(out[3 * t + 1..][..2], [p / q, p.mul_add(q, p.floor())]);
        }
    });
}

#[test]
fn halves_and_bfloats() {
    everywhere(|rig| {
        let v = Numbers(16).small(128);
        let h: Vec<u16> = v.iter().map(|&x| half(x)).collect();
        let (a, b) = (rig.buffer(&bytes16(&h)), rig.u32s(&[0; 64]));
        rig.launch("halves", 1, 32, &[a, b, 32]).unwrap();
        let out = rig.read_u32s(b, 64);
        for t in 0..32 {
            let (x, y) = ([v[2 * t], v[2 * t + 1]], [v[64 + 2 * t], v[65 + 2 * t]]);
            let pair = |w: u32| [unhalf(w as u16), unhalf((w >> 16) as u16)];
            // Products of eighths below 4 have at most 11 bits: nothing is rounded.
            assert_eq!(pair(out[2 * t]), [x[0] * y[0] + x[0], x[1] * y[1] + x[1]]);
            assert_eq!(pair(out[2 * t + 1]), [x[0] * y[1], x[1] + y[0]]);
        }
        let f: Vec<u16> = v[..32].iter().map(|x| (x.to_bits() >> 16) as u16).collect();
        let (a, b) = (rig.buffer(&bytes16(&f)), rig.u32s(&[0; 16]));
        rig.launch("bfloats", 1, 32, &[a, b, 32]).unwrap();
        let out = rig.read_u32s(b, 16);
        for t in 0..32 {
            let got = f32::from_bits((out[t / 2] >> (16 * (t % 2)) & 0xffff) << 16);
            assert_eq!(got, v[t] * 1.5 + 0.25);
        }
    });
}

#[test]
fn branches_tables_and_conversions() {
    let x = Numbers(17).ints(32, 1 << 16);
    let expected: Vec<u32> = x
        .iter()
        .map(|&v| match v % 9 {
            0 => v + 1,
            1 => v.wrapping_mul(v),
            2 => v ^ 0x55,
            3 => v.wrapping_neg(),
            4 => v << 3,
            5 => v / 3,
            6 => !v,
            7 => v % 5,
            _ => 7,
        })
        .collect();
    words("cases", 1, 32, 32, &x, 32, &expected);
    let table = [3u32, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3];
    let bytes: Vec<u32> = Numbers(18).ints(8, u32::MAX);
    let expected: Vec<u32> = bytes
        .iter()
        .flat_map(|w| w.to_le_bytes())
        .map(|v| table[usize::from(v & 15)] | table[usize::from(v >> 4)] << 8 | (v as i8 as i32 as u32) << 16)
        .collect();
    words("nibbles", 1, 32, 32, &bytes, 32, &expected);
    let v: Vec<f32> = Numbers(19).small(32).iter().map(|v| v * 3.7).collect();
    let expected: Vec<u32> = v
        .iter()
        .flat_map(|&v| {
            let up = if f64::from(v) + 1e-9 > f64::from(v) { v.next_up() } else { v };
            [
                v.round_ties_even() as i32 as u32,
                v as i32 as u32,
                v.ceil() as i32 as u32,
                v.floor() as i32 as u32,
                if v == 0.0 { 1e-9f32.to_bits() } else { up.to_bits() },
                v.round_ties_even() as u32,
            ]
        })
        .collect();
    words("roundings", 1, 32, 32, &bits(&v), 192, &expected);
}

#[test]
fn functions_of_halves() {
    everywhere(|rig| {
        let x: Vec<f32> = (0..32).map(|i| [4.0, 0.25, 1.0, 16.0][i % 4]).collect();
        let input: Vec<u16> = x.iter().map(|&v| half(v)).collect();
        let (a, b) = (rig.buffer(&bytes16(&input)), rig.buffer(&[0; 256]));
        rig.launch("half_functions", 1, 32, &[a, b, 32]).unwrap_or_else(|f| panic!("{f}"));
        let out: Vec<u16> = rig.read_u32s(b, 64).iter().flat_map(|w| [*w as u16, (w >> 16) as u16]).collect();
        for (i, &x) in x.iter().enumerate() {
            // 2^0.25 to the nearest half; 2^16 is beyond the largest.
            let power = [0x4c00, 0x3cc2, 0x4000, 0x7c00][i % 4];
            assert_eq!(out[i], power, "2^{x}");
            assert_eq!([32, 64, 96].map(|k| unhalf(out[k + i])), [1.0 / x, x.sqrt(), x.ceil()], "{x}");
        }
    });
}

#[test]
fn sorting_pipelines_and_compare_and_swap() {
    let x = Numbers(20).ints(256, 1 << 30);
    let mut sorted = x.clone();
    sorted.sort_unstable();
    words("bitonic", 1, 256, 256, &x, 256, &sorted);
    let v = Numbers(21).small(5 * 64);
    let sums: Vec<f32> = (0..64).map(|t| (0..5).map(|k| v[k * 64 + 63 - t]).sum()).collect();
    words("pipeline", 1, 64, 5, &bits(&v), 64, &bits(&sums));
    let v: Vec<f32> = Numbers(22).small(256).iter().map(|x| x + 2.5).collect();
    let max = v.iter().fold(0f32, |m, &x| m.max(x));
    words("atomic_max_float", 4, 64, 256, &bits(&v), 1, &[max.to_bits()]);
}
