//! Kernels of llama.cpp that the example `llama_layer` does not run: name, file, run.

use crate::Case;
use crate::rig::{Grid, Noise, Params, Res, Rig, half, near};

pub(crate) const CASES: &[Case] = &[
    ("rope_norm", "rope", rope_pairs),
    ("rope_neox", "rope", rope_halves),
    ("soft_max_f32<512>", "softmax", softmax_512),
    ("soft_max_f32<0>", "softmax", softmax_any),
    ("flash_attn_ext_vec", "fattn_vec", attention),
];

/// `use_fast_math`: approximate exponentials and divisions.
const FAST: f64 = 2e-5;

/// Heads of 64 elements at positions that are not in order, of which the first 48 are rotated in pairs that lie `apart`.
fn rope(rig: &Rig, kernel: &str, apart: usize) -> Res<()> {
    let (d, heads, rows, rotated, base) = (64usize, 3usize, 5usize, 48usize, 10_000f64);
    let x = Noise(3).floats(d * heads * rows);
    let positions = [7u32, 0, 100, 3, 41];
    let out = rig.room(4 * x.len())?;
    let theta_scale = base.powf(-2.0 / rotated as f64);
    let strides = [d, d * heads, d * heads * rows].map(|n| n as u32);
    let params = Params::default().and(&[rig.put(&x)?, out]).and(&[d, heads, rows].map(|n| n as u32));
    let params = params.and(&strides).and(&strides).and(&[rotated as u32, 0]).and(&[rig.put(&positions)?]);
    // Scale of frequencies, no extrapolation, scale of the result, its two dimensions, the ratio of frequencies.
    let params = params.and(&[1f32, 0.0, 1.0, 0.0, 0.0, theta_scale as f32]);
    let params = params.and(&[0u64, 0]).and(&[0u32]).and(&[0u8]);
    rig.launch(kernel, Grid::of([(heads * rows) as u32, 1, 1], [1, 256, 1]), &params)?;
    let turned = |i: usize| {
        let (row, k) = (i - i % d, i % d);
        if k >= rotated {
            return x[i].into();
        }
        let (first, pair) = if apart == 1 { (k - k % 2, k / 2) } else { (k % apart, k % apart) };
        let angle = f64::from(positions[i / (d * heads)]) * base.powf(-2.0 * pair as f64 / rotated as f64);
        let [a, b] = [first, first + apart].map(|k| f64::from(x[row + k]));
        if k == first { a * angle.cos() - b * angle.sin() } else { a * angle.sin() + b * angle.cos() }
    };
    // The f32 angles of a hundred positions.
    near("rotated", &rig.floats(out, x.len())?, 1e-4, turned)
}

fn rope_pairs(rig: &Rig) -> Res<()> {
    rope(rig, "rope_normILb1ELb0EffE", 1)
}

fn rope_halves(rig: &Rig) -> Res<()> {
    rope(rig, "rope_neoxILb1ELb0EffE", 24)
}

/// Rows of scores with a mask in f16, one head.
fn softmax(rig: &Rig, kernel: &str, columns: usize, threads: u32) -> Res<()> {
    let (rows, scale) = (4, 0.125f32);
    let x: Vec<f32> = Noise(3).floats(rows * columns).iter().map(|x| 40.0 * x).collect();
    let mask = Noise(5).halves(rows * columns);
    let out = rig.room(4 * x.len())?;
    let (n, c, mask_row) = (rows as u64, columns as u64, 2 * columns as u64);
    let params = Params::default().and(&[rig.put(&x)?, rig.put(&mask)?, 0, out]);
    let params =
        params.and(&[1u64]).and(&[1u32]).and(&[c, n, n, c, n, 1, 1, mask_row, n * mask_row, n * mask_row, 1, 1]);
    let params = params.and(&[scale, 0.0, 1.0, 1.0]);
    let grid = Grid::new(rows as u32, threads).shared(4 * (columns.next_multiple_of(32) + 32) as u32);
    rig.launch(kernel, grid, &params)?;
    let score = |i: usize| 0.125 * f64::from(x[i]) + half(mask[i]);
    let share = |i: usize| {
        let row = i - i % columns;
        score(i).exp() / (row..row + columns).map(|k| score(k).exp()).sum::<f64>()
    };
    near("softmax", &rig.floats(out, x.len())?, FAST, share)
}

fn softmax_512(rig: &Rig) -> Res<()> {
    softmax(rig, "soft_max_f32ILb1ELi512ELi512E6__half", 512, 512)
}

fn softmax_any(rig: &Rig) -> Res<()> {
    softmax(rig, "soft_max_f32ILb1ELi0ELi0E6__half", 300, 160)
}

/// One query of 4 heads over 2 heads of keys and values in f16, with a mask; in one block and in two that each leave a
/// part, its maximum and its sum.
fn attention(rig: &Rig) -> Res<()> {
    let (d, heads, kv_heads, positions, scale) = (128usize, 4usize, 2usize, 512usize, 0.08838835f32);
    let q = Noise(3).floats(d * heads);
    let [k, v] = [5, 7].map(|seed| Noise(seed).halves(d * kv_heads * positions));
    let mask = Noise(9).halves(positions);
    let [at_q, at_k, at_v, at_mask] = [rig.put(&q)?, rig.put(&k)?, rig.put(&v)?, rig.put(&mask)?];
    let score = |head: usize, p: usize| {
        let key = &k[(head / 2 * positions + p) * d..][..d];
        let dot: f64 = key.iter().zip(&q[head * d..]).map(|(&k, &q)| half(k) * f64::from(q)).sum();
        f64::from(scale) * dot + half(mask[p])
    };
    let expected = |i: usize| {
        let head = i / d;
        let weights: Vec<f64> = (0..positions).map(|p| score(head, p).exp()).collect();
        let value = |p: usize| half(v[(head / 2 * positions + p) * d + i % d]);
        weights.iter().enumerate().map(|(p, w)| w * value(p)).sum::<f64>() / weights.iter().sum::<f64>()
    };
    let expected: Vec<f64> = (0..d * heads).map(expected).collect();
    for parts in [1, 2] {
        let (out, meta) = (rig.room(4 * d * heads * parts)?, rig.room(8 * heads * parts)?);
        let params = Params::default().and(&[at_q, at_k, at_v, at_mask, 0, 0, out, meta]);
        let params = params.and(&[scale, 0.0, 1.0, 1.0]).and(&[1u32]).and(&[0f32]);
        // Elements, queries as a division by one, heads, sequences; bytes of a query, a head, a sequence.
        let params = params.and(&[d as u32, 1, 0, 1, heads as u32, 1]);
        let params = params.and(&[4 * d, 4 * d, 4 * d * heads].map(|n| n as u32));
        let params = params.and(&[d, positions, kv_heads, 1].map(|n| n as u32));
        let (row, head, all) = (2 * d, 2 * d * positions, 2 * d * positions * kv_heads);
        let params = params.and(&[row as u32, head as u32]).and(&[all as u64]);
        let params = params.and(&[row as u32, head as u32]).and(&[all as u64]);
        let params = params.and(&[1u32, 1, 1]).and(&[2 * positions as u32; 2]).and(&[2 * positions as u64]);
        rig.launch("flash_attn_ext_vec", Grid::of([1, parts as u32, heads as u32], [32, 4, 1]), &params)?;
        let got = rig.floats(out, d * heads * parts)?;
        // One part leaves neither.
        let meta = if parts == 1 { Vec::new() } else { rig.floats(meta, 2 * heads * parts)? };
        let joined = |i: usize| {
            let head = i / d;
            let of = |part: usize| [meta[2 * (head * parts + part)], meta[2 * (head * parts + part) + 1]];
            let most = (0..parts).map(|part| of(part)[0]).fold(f64::MIN, f64::max);
            let weight = |part: usize| (of(part)[0] - most).exp();
            let sum: f64 = (0..parts).map(|part| weight(part) * of(part)[1]).sum();
            (0..parts).map(|part| weight(part) * got[(head * parts + part) * d + i % d]).sum::<f64>() / sum
        };
        let got: Vec<f64> = if parts == 1 { got.clone() } else { (0..d * heads).map(joined).collect() };
        near("attention", &got, 2e-3, |i| expected[i])?;
    }
    Ok(())
}
