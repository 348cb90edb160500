//! calm's decoder in f16: name, file, run.

use crate::Case;
use crate::rig::{Grid, Noise, Params, Res, Rig, half, near};

pub(crate) const CASES: &[Case] = &[
    ("kernel_embed", "infer", embed),
    ("kernel_forward", "infer", forward),
    ("kernel_output", "infer", output),
    ("kernel_rotate_sink", "infer", rotate),
];

const DIM: usize = 128;
const HIDDEN: usize = 192;
const HEAD: usize = 32;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const LAYERS: usize = 2;
/// Positions of the cache.
const LENGTH: usize = 32;
const EPS: f32 = 1e-5;
const THETA_LOG2: f32 = 13.287_712;
const Q: usize = HEAD * HEADS;
const KV: usize = HEAD * KV_HEADS;

/// Values of f16 numbers.
fn values(bits: &[u16]) -> Vec<f64> {
    bits.iter().map(|&bits| half(bits)).collect()
}

fn embed(rig: &Rig) -> Res<()> {
    let (table, token) = (Noise(3).halves(10 * DIM), 7);
    let x = rig.room(4 * DIM)?;
    let params = Params::default().and(&[x, rig.put(&table)?]).and(&[token, DIM as u32]);
    rig.launch("kernel_embedI6__halfE", Grid::new(DIM as u32 / 32, 32), &params)?;
    near("embedding", &rig.floats(x, DIM)?, 0.0, |i| half(table[7 * DIM + i]))
}

/// `w` times `x`, scaled.
fn product(w: &[f64], x: &[f64], scale: f64) -> Vec<f64> {
    w.chunks(x.len()).map(|row| scale * row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>()).collect()
}

/// `x` times `weight`, and the reciprocal of its root mean square.
fn norm(x: &[f64], weight: &[f64]) -> (Vec<f64>, f64) {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    (x.iter().zip(weight).map(|(x, w)| x * w).collect(), 1.0 / (mean + f64::from(EPS)).sqrt())
}

/// One layer's weights.
struct Layer {
    att_norm: Vec<f32>,
    ffn_norm: Vec<f32>,
    /// q, k, v, attention output, w1, w2, w3.
    w: [Vec<u16>; 7],
}

impl Layer {
    fn new(noise: &mut Noise) -> Layer {
        let sizes = [Q * DIM, KV * DIM, KV * DIM, DIM * Q, HIDDEN * DIM, DIM * HIDDEN, HIDDEN * DIM];
        let norm = |noise: &mut Noise| noise.floats(DIM).iter().map(|x| 1.0 + 0.25 * x).collect();
        // Weights of 1/64 to 1/8.
        let small = |bits: u16| bits - (3 << 10);
        let w = sizes.map(|n| noise.halves(n).into_iter().map(small).collect());
        Layer { att_norm: norm(noise), ffn_norm: norm(noise), w }
    }

    /// Its place in the table of layers.
    fn put(&self, rig: &Rig) -> Res<Vec<u64>> {
        let [q, k, v, o, w1, w2, w3] = &self.w;
        let at = |w: &Vec<u16>| rig.put(w);
        let attention = [rig.put(&self.att_norm)?, at(q)?, at(k)?, at(v)?, at(o)?, 0];
        Ok([&attention[..], &[rig.put(&self.ffn_norm)?, 0, at(w1)?, at(w2)?, at(w3)?]].concat())
    }
}

/// Where the cache has a position's element of a layer: keys, and values.
fn places(layer: usize, position: usize, k: usize) -> [usize; 2] {
    let layer = layer * LENGTH * KV;
    [layer + position * 16 + LENGTH * (k / 16) * 16 + k % 16, layer + position + LENGTH * k]
}

/// The layers of one position in float64, from what the cache in f16 has of those before it.
fn reference(layers: &[Layer], x: &mut [f64], cache: &[Vec<f64>; 2], position: usize) {
    for (number, layer) in layers.iter().enumerate() {
        let w = layer.w.each_ref().map(|w| values(w));
        let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| x.into()).collect() };
        let (normed, scale) = norm(x, &wide(&layer.att_norm));
        let [mut q, mut k, v] = [0, 1, 2].map(|which: usize| product(&w[which], &normed, scale));
        for pair in q.chunks_mut(2).enumerate().chain(k.chunks_mut(2).enumerate()) {
            let frequency = (-f64::from(THETA_LOG2) * ((2 * pair.0 % HEAD) as f64) / HEAD as f64).exp2();
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            let [a, b] = [pair.1[0], pair.1[1]];
            (pair.1[0], pair.1[1]) = (a * cos - b * sin, a * sin + b * cos);
        }
        let cached = |which: usize, p: usize, i: usize, own: &[f64]| {
            if p == position { own[i] } else { cache[which][places(number, p, i)[which]] }
        };
        let mut mixed = vec![0.0; Q];
        for head in 0..HEADS {
            let (from, kv) = (head * HEAD, head / (HEADS / KV_HEADS) * HEAD);
            let dot = |p: usize| (0..HEAD).map(|i| q[from + i] * cached(0, p, kv + i, &k)).sum::<f64>();
            let weights: Vec<f64> = (0..=position).map(|p| (dot(p) / (HEAD as f64).sqrt()).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for i in 0..HEAD {
                let value = |(p, w): (usize, &f64)| w / sum * cached(1, p, kv + i, &v);
                mixed[from + i] = weights.iter().enumerate().map(value).sum();
            }
        }
        x.iter_mut().zip(product(&w[3], &mixed, 1.0)).for_each(|(x, y)| *x += y);
        let (normed, scale) = norm(x, &wide(&layer.ffn_norm));
        let (gate, up) = (product(&w[4], &normed, scale), product(&w[6], &normed, scale));
        let hidden: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        x.iter_mut().zip(product(&w[5], &hidden, 1.0)).for_each(|(x, y)| *x += y);
    }
}

/// Position 12 of two layers, in three blocks.
fn forward(rig: &Rig) -> Res<()> {
    let (position, mut noise) = (12, Noise(3));
    let layers: Vec<Layer> = (0..LAYERS).map(|_| Layer::new(&mut noise)).collect();
    let (table, _) = rig.global("cooplayers")?;
    for (number, layer) in layers.iter().enumerate() {
        let words: Vec<u8> = layer.put(rig)?.iter().flat_map(|word| word.to_le_bytes()).collect();
        rig.memory.write(table + (number * words.len()) as u64, &words)?;
    }
    let x = noise.floats(DIM);
    let cache = [noise.halves(LAYERS * LENGTH * KV), noise.halves(LAYERS * LENGTH * KV)];
    let at_x = rig.put(&x)?;
    let rooms = [rig.room(4 * HIDDEN)?, rig.room(4 * Q)?, rig.room(8 * HEADS * LENGTH)?];
    let params = Params::default().and(&[0u64, 0, at_x]).and(&rooms).and(&[rig.put(&cache[0])?, rig.put(&cache[1])?]);
    let sizes = [LAYERS, DIM, HIDDEN, HEAD, HEADS, KV_HEADS, 0, 1, LENGTH, HEAD].map(|n| n as u32);
    let params = params.and(&sizes).and(&[0u8, 0]).and(&[position as u32 + 1, position as u32, position as u32]);
    let params = params.and(&[EPS, THETA_LOG2, f32::MAX]);
    let grid = Grid::new(3, 1024).shared(4 * DIM as u32).cooperative();
    rig.launch("kernel_forwardI6__halfS0_fE", grid, &params.padded(8))?;
    let mut expected: Vec<f64> = x.iter().map(|&x| x.into()).collect();
    reference(&layers, &mut expected, &cache.map(|bits| values(&bits)), position);
    // Keys and values of the position are rounded to f16.
    near("x", &rig.floats(at_x, DIM)?, 2e-3, |i| expected[i])
}

fn output(rig: &Rig) -> Res<()> {
    let vocabulary = 256;
    let (x, weight, w) = (Noise(3).floats(DIM), Noise(5).floats(DIM), Noise(7).halves(vocabulary * DIM));
    let logits = rig.room(4 * vocabulary)?;
    let params = Params::default().and(&[0, logits, rig.put(&x)?, rig.put(&w)?, rig.put(&weight)?]);
    let params = params.and(&[DIM as u32, vocabulary as u32]).and(&[EPS]).and(&[0u8]);
    rig.launch("kernel_outputI6__halffE", Grid::new(3, 1024).shared(4 * DIM as u32), &params)?;
    let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| x.into()).collect() };
    let (normed, scale) = norm(&wide(&x), &wide(&weight));
    let expected = product(&values(&w), &normed, scale);
    near("logits", &rig.floats(logits, vocabulary)?, 1e-4, |i| expected[i])
}

/// Two positions go on by one, in each layer.
fn rotate(rig: &Rig) -> Res<()> {
    let (keys, sink) = (Noise(3).halves(LAYERS * LENGTH * KV), 2);
    let at = rig.put(&keys)?;
    let params = Params::default().and(&[0u64]).and(&[KV as u32]).and(&[at]).and(&[HEAD as u32, sink as u32]);
    let params = params.and(&[THETA_LOG2]).and(&[LENGTH as u32, HEAD as u32]);
    let grid = Grid::of([(sink * KV / 64) as u32, LAYERS as u32, 1], [32, 1, 1]);
    rig.launch("kernel_rotate_sinkI6__halfE", grid, &params)?;
    let mut expected = values(&keys);
    for (layer, position, k) in
        (0..LAYERS).flat_map(|l| (0..sink).flat_map(move |p| (0..KV).step_by(2).map(move |k| (l, p, k))))
    {
        let place = places(layer, position, k)[0];
        let (sin, cos) = (-f64::from(THETA_LOG2) * (k % HEAD) as f64 / HEAD as f64).exp2().sin_cos();
        let [a, b] = [expected[place], expected[place + 1]];
        (expected[place], expected[place + 1]) = (a * cos - b * sin, a * sin + b * cos);
    }
    let got = values(&rig.shorts(at, keys.len())?);
    near("keys", &got, 1e-3, |i| expected[i])
}
