//! Kernels of llm.c in bf16: name, file, run.

use crate::Case;
use crate::rig::{Grid, Noise, Params, Res, Rig, brain, near};

pub(crate) const CASES: &[Case] = &[
    ("encoder_forward_kernel3", "llmc", encoder),
    ("wpe_backward_kernel", "llmc", positions_backward),
    ("wte_backward_kernel", "llmc", tokens_backward),
    ("layernorm_forward_kernel3", "llmc", norm_3),
    ("layernorm_forward_kernel6", "llmc", norm_6),
    ("fused_residual_forward_kernel5", "llmc", residual_norm),
    ("layernorm_backward_kernel10", "llmc", norm_backward),
    ("residual_forward_kernel", "llmc", residual),
    ("gelu_forward_kernel2", "llmc", gelu),
    ("softmax_forward_kernel5", "llmc", softmax),
    ("softmax_autoregressive_backward_inplace_kernel", "llmc", softmax_backward),
    ("permute_kernel", "llmc", permute),
    ("fused_classifier_kernel5", "llmc", classifier),
    ("global_norm_squared_kernel", "llmc", global_norm),
    ("adamw_kernel3", "llmc", adamw),
];

/// Share of a result that bf16 rounds away, and what f32 adds.
const ROUNDING: f64 = 0.0045;

fn brains(rig: &Rig, at: u64, n: usize) -> Res<Vec<f64>> {
    Ok(rig.shorts(at, n)?.into_iter().map(brain).collect())
}

/// bf16 numbers of a seed: their address and values.
fn given(rig: &Rig, seed: u64, n: usize) -> Res<(u64, Vec<f64>)> {
    let bits = Noise(seed).brains(n);
    Ok((rig.put(&bits)?, bits.into_iter().map(brain).collect()))
}

/// Batches, positions and channels.
const SHAPE: [usize; 3] = [2, 8, 256];

fn encoder(rig: &Rig) -> Res<()> {
    let [b, t, c] = SHAPE;
    let tokens = Noise(3).below(10, b * t);
    let ((of_tokens, wte), (of_positions, wpe)) = (given(rig, 5, 10 * c)?, given(rig, 7, t * c)?);
    let out = rig.room(2 * b * t * c)?;
    let params = Params::default().and(&[out, rig.put(&tokens)?, of_tokens, of_positions]);
    rig.launch("encoder_forward_kernel3", Grid::new(2, 256), &params.and(&SHAPE.map(|n| n as u32)))?;
    let sum = |i: usize| wte[tokens[i / c] as usize * c + i % c] + wpe[i % (t * c)];
    near("sum", &brains(rig, out, b * t * c)?, ROUNDING, sum)
}

fn positions_backward(rig: &Rig) -> Res<()> {
    let [b, t, c] = SHAPE;
    let ((dwpe, before), (dout, of_out)) = (given(rig, 5, t * c)?, given(rig, 7, b * t * c)?);
    let params = Params::default().and(&[dwpe, dout, rig.put(&[0u32; 16])?]).and(&SHAPE.map(|n| n as u32)).and(&[9u32]);
    rig.launch("wpe_backward_kernel", Grid::new(1, 256), &params)?;
    // Rounded stochastically: by up to a whole unit.
    let sum = |i: usize| before[i] + (0..b).map(|n| of_out[n * t * c + i]).sum::<f64>();
    near("gradient", &brains(rig, dwpe, t * c)?, 2.0 * ROUNDING, sum)
}

/// Each token's 256 channels are one bucket.
fn tokens_backward(rig: &Rig) -> Res<()> {
    let [b, t, c] = SHAPE;
    // The first token has more positions than a block has warps.
    let tokens: Vec<u32> = (0..16).map(|i| if i < 11 { 0 } else { i % 3 }).collect();
    let ((dwte, before), (dout, of_out)) = (given(rig, 5, 3 * c)?, given(rig, 7, b * t * c)?);
    let (mut order, mut buckets) = (Vec::new(), Vec::new());
    for token in 0..3 {
        let start = order.len();
        order.extend((0..16u32).filter(|&i| tokens[i as usize] == token));
        buckets.extend([start as u32, (order.len() - start) as u32, token, 0]);
    }
    let params =
        Params::default().and(&[dwte, rig.put(&buckets)?, rig.put(&order)?, dout, rig.put(&tokens)?]).and(&[9u32]);
    rig.launch("wte_backward_kernel", Grid::new(3, 256), &params.and(&SHAPE.map(|n| n as u32)))?;
    let tokens = &tokens;
    let of = |token: usize| (0..16).filter(move |&position| tokens[position] as usize == token);
    let sum = |i: usize| before[i] + of(i / c).map(|p| of_out[p * c + i % c]).sum::<f64>();
    near("gradient", &brains(rig, dwte, 3 * c)?, 2.0 * ROUNDING, sum)
}

/// Mean and reciprocal deviation of each row.
fn moments(x: &[f64], c: usize) -> Vec<(f64, f64)> {
    let moment = |row: &[f64]| {
        let mean = row.iter().sum::<f64>() / c as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / c as f64;
        (mean, 1.0 / (variance + 1e-5).sqrt())
    };
    x.chunks(c).map(moment).collect()
}

fn norm(rig: &Rig, kernel: &str, grid: Grid, n: usize) -> Res<()> {
    let c = 256;
    let ((x, of_x), (w, of_w), (b, of_b)) = (given(rig, 3, n * c)?, given(rig, 5, c)?, given(rig, 7, c)?);
    let (out, mean, rstd) = (rig.room(2 * n * c)?, rig.room(4 * n)?, rig.room(4 * n)?);
    let params = Params::default().and(&[out, mean, rstd, x, w, b]).and(&[n as u32, c as u32]);
    rig.launch(kernel, grid, &params)?;
    let of_rows = moments(&of_x, c);
    near("mean", &rig.floats(mean, n)?, 1e-5, |i| of_rows[i].0)?;
    near("deviation", &rig.floats(rstd, n)?, 1e-5, |i| of_rows[i].1)?;
    let normed = |i: usize| (of_x[i] - of_rows[i / c].0) * of_rows[i / c].1 * of_w[i % c] + of_b[i % c];
    near("norm", &brains(rig, out, n * c)?, ROUNDING, normed)
}

fn norm_3(rig: &Rig) -> Res<()> {
    norm(rig, "layernorm_forward_kernel3", Grid::new(2, 256), 13)
}

fn norm_6(rig: &Rig) -> Res<()> {
    norm(rig, "layernorm_forward_kernel6", Grid::of([2, 1, 1], [32, 8, 1]).shared(10 * 512), 13)
}

/// 16 rows in blocks of 8, then 13, of which the results are not read: the launch ends at a row past them.
fn residual_norm(rig: &Rig) -> Res<()> {
    let c = 256;
    let ((w, of_w), (bias, of_bias)) = (given(rig, 7, c)?, given(rig, 9, c)?);
    let grid = Grid::of([2, 1, 1], [32, 8, 1]).shared(10 * 512);
    for n in [16, 13] {
        let ((a, of_a), (b, of_b)) = (given(rig, 3, n * c)?, given(rig, 5, n * c)?);
        let (sum, out) = (rig.room(2 * n * c)?, rig.room(2 * n * c)?);
        let params = Params::default().and(&[sum, out, rig.room(4 * n)?, rig.room(4 * n)?, a, b, w, bias]);
        rig.launch("fused_residual_forward_kernel5", grid, &params.and(&[n as u32, c as u32]))?;
        if n == 16 {
            let sums = brains(rig, sum, n * c)?;
            near("sum", &sums, ROUNDING, |i| of_a[i] + of_b[i])?;
            let of_rows = moments(&sums, c);
            let normed = |i: usize| (sums[i] - of_rows[i / c].0) * of_rows[i / c].1 * of_w[i % c] + of_bias[i % c];
            near("norm", &brains(rig, out, n * c)?, ROUNDING, normed)?;
        }
    }
    Ok(())
}

fn norm_backward(rig: &Rig) -> Res<()> {
    let ([b, t, c], blocks) = (SHAPE, 3);
    let n = b * t;
    let ((dinp, before), (dw, dw_before), (db, db_before)) =
        (given(rig, 3, n * c)?, given(rig, 5, c)?, given(rig, 7, c)?);
    let ((dout, of_out), (x, of_x), (w, of_w)) = (given(rig, 9, n * c)?, given(rig, 11, n * c)?, given(rig, 13, c)?);
    let of_rows = moments(&of_x, c);
    let mean: Vec<f32> = of_rows.iter().map(|row| row.0 as f32).collect();
    let rstd: Vec<f32> = of_rows.iter().map(|row| row.1 as f32).collect();
    let scratch = rig.room(4 * (32 + 2 * c * blocks))?;
    rig.memory.write(scratch, &[0; 4])?;
    let params = Params::default().and(&[dinp, dw, db, scratch, dout, x, w, rig.put(&mean)?, rig.put(&rstd)?]);
    let grid = Grid::new(blocks as u32, 128).shared(4 * (2 * c + 2 * (128 - 32) * 4) as u32);
    rig.launch("layernorm_backward_kernel10", grid, &params.and(&SHAPE.map(|n| n as u32)))?;
    let scaled = |i: usize| (of_x[i] - of_rows[i / c].0) * of_rows[i / c].1;
    let over = |row: usize, term: &dyn Fn(usize) -> f64| (row * c..row * c + c).map(term).sum::<f64>() / c as f64;
    let means: Vec<[f64; 2]> = (0..n)
        .map(|row| {
            let first = over(row, &|i| of_w[i % c] * of_out[i]);
            [first, over(row, &|i| of_w[i % c] * of_out[i] * scaled(i))]
        })
        .collect();
    let gradient = |i: usize| {
        let [first, second] = means[i / c];
        before[i] + of_rows[i / c].1 * (of_w[i % c] * of_out[i] - first - scaled(i) * second)
    };
    near("input's gradient", &brains(rig, dinp, n * c)?, ROUNDING, gradient)?;
    let weight = |k: usize| dw_before[k] + (0..n).map(|row| of_out[row * c + k] * scaled(row * c + k)).sum::<f64>();
    near("weight's gradient", &brains(rig, dw, c)?, ROUNDING, weight)?;
    let bias = |k: usize| db_before[k] + (0..n).map(|row| of_out[row * c + k]).sum::<f64>();
    near("bias's gradient", &brains(rig, db, c)?, ROUNDING, bias)
}

fn residual(rig: &Rig) -> Res<()> {
    let n = 4096;
    let ((a, of_a), (b, of_b)) = (given(rig, 3, n)?, given(rig, 5, n)?);
    let out = rig.room(2 * n)?;
    rig.launch("residual_forward_kernel", Grid::new(2, 256), &Params::default().and(&[out, a, b]))?;
    near("sum", &brains(rig, out, n)?, ROUNDING, |i| of_a[i] + of_b[i])
}

fn gelu(rig: &Rig) -> Res<()> {
    let n = 4096;
    let (x, of_x) = given(rig, 3, n)?;
    let out = rig.room(2 * n)?;
    rig.launch("gelu_forward_kernel2", Grid::new(2, 256), &Params::default().and(&[out, x]))?;
    let inner = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    near("gelu", &brains(rig, out, n)?, ROUNDING, |i| 0.5 * of_x[i] * (1.0 + inner(of_x[i]).tanh()))
}

fn softmax(rig: &Rig) -> Res<()> {
    let (n, t, scale) = (3, 68, 0.25f32);
    let (x, of_x) = given(rig, 3, n * t * t)?;
    let out = rig.room(2 * n * t * t)?;
    rig.memory.fill(out, &[0, 0], (n * t * t) as u64)?;
    let params = Params::default().and(&[out]).and(&[scale]).and(&[x]).and(&[n as u32, t as u32]);
    rig.launch("softmax_forward_kernel5", Grid::new((n * t).div_ceil(8) as u32, 256), &params)?;
    let weight = |i: usize| (0.25 * of_x[i]).exp();
    let share = |i: usize| {
        let (row, own) = (i / t * t, i / t % t);
        if i % t > own { 0.0 } else { weight(i) / (row..=row + own).map(weight).sum::<f64>() }
    };
    near("softmax", &brains(rig, out, n * t * t)?, ROUNDING, share)
}

fn softmax_backward(rig: &Rig) -> Res<()> {
    let (n, t, scale) = (2, 64, 0.25f32);
    let ((datt, of_d), (att, of_att)) = (given(rig, 3, n * t * t)?, given(rig, 5, n * t * t)?);
    let params = Params::default().and(&[datt, att]).and(&[1, t as u32, 64]).and(&[scale]);
    let grid = Grid::of([t as u32 / 4, n as u32, 1], [256, 1, 1]);
    rig.launch("softmax_autoregressive_backward_inplace_kernel", grid, &params)?;
    let gradient = |i: usize| {
        let (row, own) = (i / t * t, i / t % t);
        let sum: f64 = (row..=row + own).map(|k| of_att[k] * of_d[k]).sum();
        if i % t > own { 0.0 } else { 0.25 * of_att[i] * (of_d[i] - sum) }
    };
    near("gradient", &brains(rig, datt, n * t * t)?, ROUNDING, gradient)
}

fn permute(rig: &Rig) -> Res<()> {
    let [b, n, heads, d] = [2, 5, 3, 16];
    let (x, of_x) = given(rig, 3, 3 * b * n * heads * d)?;
    let each = b * n * heads * d;
    let [q, k, v] = [rig.room(2 * each)?, rig.room(2 * each)?, rig.room(2 * each)?];
    let params = Params::default().and(&[q, k, v, x]).and(&[b, n, heads, d].map(|n| n as u32));
    rig.launch("permute_kernelP", Grid::new(each.div_ceil(256) as u32, 256), &params)?;
    for (which, at) in [q, k, v].into_iter().enumerate() {
        let from = |i: usize| {
            let [batch, head, row, channel] = [i / (heads * n * d), i / (n * d) % heads, i / d % n, i % d];
            of_x[((batch * n + row) * 3 + which) * heads * d + head * d + channel]
        };
        near("permuted", &brains(rig, at, each)?, 0.0, from)?;
    }
    Ok(())
}

/// A vocabulary that is no multiple of 8: results of the last elements are not compared, since several threads update
/// each.
fn classifier(rig: &Rig) -> Res<()> {
    // Of fewer than 8192 elements the first threads would look for theirs for ever.
    let (rows, v, padded, dloss) = (2, 8195, 8320, 0.5f32);
    let (logits, before) = given(rig, 3, rows * padded)?;
    let targets = [5, 600];
    let losses = rig.put(&[0f32; 2])?;
    let params = Params::default().and(&[logits, losses, 0]).and(&[dloss]).and(&[rig.put(&targets)?]);
    let params = params.and(&[1, rows as u32, v as u32, padded as u32]).and(&[0u8]);
    rig.launch("fused_classifier_kernel5ILb1ELb0E", Grid::new(rows as u32, 1024), &params)?;
    let share = |row: usize, k: usize| {
        let row = &before[row * padded..][..v];
        row[k].exp() / row.iter().map(|x| x.exp()).sum::<f64>()
    };
    near("loss", &rig.floats(losses, rows)?, 1e-5, |row| -share(row, targets[row] as usize).ln())?;
    for (row, &target) in targets.iter().enumerate() {
        let got = brains(rig, logits + (2 * row * padded) as u64, v & !7)?;
        let indicator = |k: usize| if k == target as usize { 1.0 } else { 0.0 };
        near("gradient", &got, ROUNDING, |k| 0.5 * (share(row, k) - indicator(k)))?;
    }
    Ok(())
}

fn global_norm(rig: &Rig) -> Res<()> {
    let (n, blocks) = (5000, 4);
    let (x, of_x) = given(rig, 3, n)?;
    let out = rig.put(&vec![0f32; blocks])?;
    let params = Params::default().and(&[out, x, n as u64, 0]);
    rig.launch("global_norm_squared_kernel", Grid::new(blocks as u32, 512), &params)?;
    rig.launch("global_norm_aggregate_kernel", Grid::new(1, 1024), &Params::default().and(&[out, blocks as u64]))?;
    near("norm", &rig.floats(out, 1)?, 1e-5, |_| of_x.iter().map(|x| x * x).sum())
}

fn adamw(rig: &Rig) -> Res<()> {
    let (n, rate, decay) = (1000, 0.01f32, 0.1f32);
    let ((p, _), (g, grad)) = (given(rig, 3, n)?, given(rig, 5, n)?);
    let [master, m] = [7, 9].map(|seed| Noise(seed).floats(n));
    let v: Vec<f32> = Noise(11).floats(n).iter().map(|v| v.abs()).collect();
    let (at_master, at_m, at_v) = (rig.put(&master)?, rig.put(&m)?, rig.put(&v)?);
    let params = Params::default().and(&[p, at_master, g, at_m, at_v, n as u64, 0, 0, 0]);
    let params = params.and(&[rate, 0.9, 0.95, 0.5, 0.25, 1e-8, decay, 2.0]).and(&[3u32]);
    rig.launch("adamw_kernel3", Grid::new(2, 512), &params)?;
    let first = |i: usize| 0.1 * 2.0 * grad[i] + 0.9 * f64::from(m[i]);
    let second = |i: usize| 0.05 * (2.0 * grad[i]).powi(2) + 0.95 * f64::from(v[i]);
    near("first moment", &rig.floats(at_m, n)?, 1e-6, first)?;
    near("second moment", &rig.floats(at_v, n)?, 1e-6, second)?;
    let step = |i: usize| first(i) / 0.5 / ((second(i) / 0.25).sqrt() + 1e-8);
    let updated = |i: usize| f64::from(master[i]) - 0.01 * (step(i) + 0.1 * f64::from(master[i]));
    near("parameters", &rig.floats(at_master, n)?, 1e-6, updated)?;
    near("rounded parameters", &brains(rig, p, n)?, 2.0 * ROUNDING, updated)
}
