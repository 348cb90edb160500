//! What llama.cpp launches between the products of q, k and v and that of the attention's output: norms and rope
//! of heads, writes to the cache, attention over [`POSITIONS`] positions, and its parts put together.

use crate::{Device, Noise, ONE, Params, Res, half};
use kiln_emulator::Timing;

/// Positions of the cache, all of which are attended to.
pub(crate) const POSITIONS: u32 = 512;
const HEADS: u32 = 32;
const KV_HEADS: u32 = 8;
const HEAD: u32 = 128;
/// llama.cpp's rule makes a block of each 128 positions, where blocks of one head do not fill the chip.
const PARTS: u32 = POSITIONS / 128;
const BASE: f64 = 1e6;
const EPS: f32 = 1e-6;
/// Exponentials and trigonometric functions are approximate.
const APPROXIMATE: f64 = 1e-3;

/// Bytes of K and V in f16 that attention reads.
pub(crate) const CACHE_BYTES: usize = (4 * POSITIONS * KV_HEADS * HEAD) as usize;

/// Vectors of the token, as the products left them, and the cache.
struct Attention {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Device {
    /// Launches in order: name, bytes of the cache, time.
    pub(crate) fn attention(&self, noise: &mut Noise) -> Res<Vec<(&'static str, usize, Timing)>> {
        let [q, k, v] = [HEADS, KV_HEADS, KV_HEADS].map(|heads| noise.floats(heads * HEAD));
        let cache = POSITIONS * KV_HEADS * HEAD;
        // Values that f16 has: multiples of 1 / 256.
        let mut halves = || noise.floats(cache).iter().map(|x| (x * 256.0).round() / 256.0).collect();
        let token = Attention { q, k, v, keys: halves(), values: halves() };
        let (keys, values) = (self.put(&f16(&token.keys))?, self.put(&f16(&token.values))?);
        let gamma = noise.floats(HEAD);
        let (q, of_q) = self.norm_rope(&token.q, &gamma, None)?;
        let (_, of_k) = self.norm_rope(&token.k, &gamma, Some(keys))?;
        let write = self.write_v(&token.v, values)?;
        let [attend, join] = self.attend(q, keys, values)?;
        Ok(vec![
            ("norm and rope of q", 0, of_q),
            ("norm and rope of k, into the cache", 0, of_k),
            ("v into the cache", 0, write),
            ("attention, 512 positions", CACHE_BYTES, attend),
            ("attention's parts together", 0, join),
        ])
    }

    /// Heads normalised and rotated at the last position; into that row of a cache in f16, if one is given.
    fn norm_rope(&self, x: &[f32], gamma: &[f32], cache: Option<u64>) -> Res<(u64, Timing)> {
        let (n, head) = (x.len() as u32, u64::from(HEAD));
        let (position, scale, heads) = (POSITIONS - 1, BASE.powf(-2.0 / f64::from(HEAD)), n / HEAD);
        let y = cache.map_or_else(|| self.memory.alloc(4 * u64::from(n)), Ok)?;
        let row = cache.map(|_| self.put(&u64::from(position).to_le_bytes())).transpose()?;
        let strides = |params: Params| params.long(head).long(n.into()).long(n.into());
        let params = strides(strides(Params::default().long(self.put(&f32s(x))?).long(y).words(&[HEAD])));
        let params = params.words(&[EPS.to_bits()]).long(self.put(&f32s(gamma))?).long(head).long(head).long(head);
        let params = params.words(&[1, HEAD.ilog2(), HEAD]).words(&[ONE; 3].concat()).words(&[HEAD]);
        // Scale of frequencies, no extrapolation, scale of the result, its two dimensions, the ratio of frequencies.
        let params = params
            .long(self.put(&position.to_le_bytes())?)
            .words(&[1.0, 0.0, 1.0, 0.0, 0.0, scale as f32].map(f32::to_bits));
        let stride = if cache.is_some() { n } else { 0 };
        let params = params.long(0).long(row.unwrap_or(0)).words(&[stride, 1]);
        let to = if cache.is_some() { "6__half" } else { "f" };
        let name = format!("rms_norm_mul_rope_f32ILi256ELb0E{to}E");
        let timing = self.launch_grid(&name, [heads, 1, 1], [256, 1, 1], 128, &params)?;
        let got = match cache {
            None => self.floats(y, n)?.iter().map(|&y| f64::from(y)).collect(),
            Some(cache) => self.halves(cache + 2 * u64::from(position * n), n)?,
        };
        for (i, &got) in got.iter().enumerate() {
            let (apart, k) = (HEAD as usize / 2, i % HEAD as usize);
            let head = &x[i - k..][..HEAD as usize];
            let mean = head.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / f64::from(HEAD);
            let normed = |i: usize| f64::from(head[i]) * f64::from(gamma[i]) / (mean + f64::from(EPS)).sqrt();
            let (a, b) = (normed(k % apart), normed(k % apart + apart));
            let angle = f64::from(position) * BASE.powf(-2.0 * (k % apart) as f64 / f64::from(HEAD));
            let expected =
                if k < apart { a * angle.cos() - b * angle.sin() } else { a * angle.sin() + b * angle.cos() };
            near("norm and rope of heads", i, got, expected, a.abs() + b.abs())?;
        }
        Ok((y, timing))
    }

    fn write_v(&self, v: &[f32], cache: u64) -> Res<Timing> {
        let n = v.len() as u32;
        let (row, position) = (u64::from(n), u64::from(POSITIONS - 1));
        let params = Params::default().long(self.put(&f32s(v))?).long(self.put(&position.to_le_bytes())?).long(cache);
        let params = [row, 1, 1, 1, 1, row, row, row, 1, 1, 1, row, row, row].iter().fold(params, |p, &n| p.long(n));
        let params = params.words(&[1, n.ilog2(), n]).words(&[ONE; 4].concat());
        let timing = self.launch_grid("k_set_rowsIfl6__half", [n / 256, 1, 1], [256, 1, 1], 0, &params)?;
        for (i, &got) in self.halves(cache + 2 * position * row, n)?.iter().enumerate() {
            near("v in the cache", i, got, v[i].into(), f64::from(v[i]).abs())?;
        }
        Ok(timing)
    }

    /// One query of each head over the whole cache, in [`PARTS`] blocks a head, and their parts put together.
    fn attend(&self, q: u64, keys: u64, values: u64) -> Res<[Timing; 2]> {
        let (n, scale) = (HEADS * HEAD, 1.0 / f64::from(HEAD).sqrt());
        let mask = self.put(&vec![0; 2 * POSITIONS as usize])?;
        let parts = self.memory.alloc(4 * u64::from(n * PARTS))?;
        let (meta, y) = (self.memory.alloc(8 * u64::from(HEADS * PARTS))?, self.memory.alloc(4 * u64::from(n))?);
        let params =
            Params::default().long(q).long(keys).long(values).long(mask).long(0).long(0).long(parts).long(meta);
        let params = params.words(&[(scale as f32).to_bits(), 0, 1f32.to_bits(), 1f32.to_bits(), HEADS, 0]);
        let params = params.words(&[HEAD]).words(&ONE).words(&[HEADS, 1, 4 * n, 4 * HEAD, 4 * n]);
        let params = params.words(&[HEAD, POSITIONS, KV_HEADS, 1]);
        let (row, all) = (2 * KV_HEADS * HEAD, 2 * u64::from(POSITIONS * KV_HEADS * HEAD));
        let params = params.words(&[row, 2 * HEAD]).long(all).words(&[row, 2 * HEAD]).long(all);
        let params = params.words(&[1, 1, 1, 2 * POSITIONS, 2 * POSITIONS]).long(2 * u64::from(POSITIONS));
        let attend = self.launch_grid("flash_attn_ext_vec", [1, PARTS, HEADS], [32, 4, 1], 0, &params)?;
        let params = Params::default().long(parts).long(meta).long(y).words(&[PARTS]);
        let join = self.launch_grid("flash_attn_combine_results", [1, HEADS, 1], [HEAD, 1, 1], 8 * PARTS, &params)?;
        let cache = POSITIONS * KV_HEADS * HEAD;
        let (q, k, v) = (self.floats(q, n)?, self.halves(keys, cache)?, self.halves(values, cache)?);
        let got = self.floats(y, n)?;
        let of = |cache: &[f64], p: u32, kv: u32, i: u32| cache[((p * KV_HEADS + kv) * HEAD + i) as usize];
        for head in 0..HEADS {
            let kv = head / (HEADS / KV_HEADS);
            let dot = |p| (0..HEAD).map(|i| f64::from(q[(head * HEAD + i) as usize]) * of(&k, p, kv, i)).sum::<f64>();
            let weights: Vec<f64> = (0..POSITIONS).map(|p| (scale * dot(p)).exp()).collect();
            let sum = weights.iter().sum::<f64>();
            for i in 0..HEAD {
                let terms = (0..POSITIONS).map(|p| weights[p as usize] / sum * of(&v, p, kv, i));
                let (expected, all) = terms.fold((0.0, 0.0), |(sum, all), term| (sum + term, all + term.abs()));
                near("attention", (head * HEAD + i) as usize, got[(head * HEAD + i) as usize].into(), expected, all)?;
            }
        }
        Ok([attend, join])
    }

    fn halves(&self, at: u64, n: u32) -> Res<Vec<f64>> {
        let mut bytes = vec![0; 2 * n as usize];
        self.memory.read(at, &mut bytes)?;
        Ok(bytes.chunks_exact(2).map(|b| half(u16::from_le_bytes([b[0], b[1]]))).collect())
    }
}

fn near(what: &str, at: usize, got: f64, expected: f64, terms: f64) -> Res<()> {
    let fine = (got - expected).abs() <= APPROXIMATE * terms.max(1e-30);
    if fine { Ok(()) } else { Err(format!("{what}: element {at} is {got}, not {expected}").into()) }
}

fn f32s(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Multiples of 1 / 256 below 1 in magnitude, or -1 or 1, as f16.
fn f16(x: &[f32]) -> Vec<u8> {
    let bits = |x: f32| match x.abs() {
        0.0 => 0,
        y => {
            let exponent = y.log2().floor();
            let mantissa = (y / exponent.exp2() - 1.0) * 1024.0;
            u16::from(x < 0.0) << 15 | ((exponent + 15.0) as u16) << 10 | mantissa as u16
        }
    };
    x.iter().flat_map(|&x| bits(x).to_le_bytes()).collect()
}
