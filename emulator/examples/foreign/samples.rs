//! Kernels of NVIDIA's cuda-samples: name, file, run.

use crate::Case;
use crate::rig::{Grid, Noise, Params, Res, Rig, equal, near};

pub(crate) const CASES: &[Case] = &[
    ("vectorAdd", "vectorAdd", vector_add),
    ("MatrixMulCUDA", "matrixMul", matrix_mul),
    ("MatrixMulAsyncCopyMultiStageLargeChunk", "globalToShmemAsyncCopy", matrix_mul_async),
    ("mergeSortSharedKernel", "mergeSort", merge_sort),
    ("bitonicSortShared", "bitonicSort", bitonic_sort),
    ("histogram256", "histogram256", histogram),
    ("reduce6", "reduction_kernel", reduce),
    ("reduceSinglePass", "threadFenceReduction", reduce_single_pass),
    ("reduceSinglePassMultiBlockCG", "reductionMultiBlockCG", reduce_grid),
    ("normVecByDotProductAWBarrier", "simpleAWBarrier", norm_by_dot),
    ("scalarProdGPU", "scalarProd", scalar_products),
    ("scanExclusiveShared", "scan", scan),
    ("shfl_scan_test", "shfl_scan", shuffled_scan),
    ("fwtBatch1Kernel", "fastWalshTransform", walsh),
    ("dwtHaar1D", "dwtHaar1D", haar),
    ("transposeNoBankConflicts", "transpose", transpose),
];

fn vector_add(rig: &Rig) -> Res<()> {
    let n = 1000;
    let [a, b] = [3, 5].map(|seed| Noise(seed).floats(n));
    let c = rig.room(4 * n)?;
    let params = Params::default().and(&[rig.put(&a)?, rig.put(&b)?, c]).and(&[n as u32]);
    rig.launch("vectorAdd", Grid::new(4, 256), &params)?;
    near("sum", &rig.floats(c, n)?, 1e-6, |i| f64::from(a[i]) + f64::from(b[i]))
}

fn matrix_mul(rig: &Rig) -> Res<()> {
    let n = 64;
    let [a, b] = [3, 5].map(|seed| Noise(seed).floats(n * n));
    let c = rig.room(4 * n * n)?;
    let params = Params::default().and(&[c, rig.put(&a)?, rig.put(&b)?]).and(&[n as u32; 2]);
    rig.launch("MatrixMulCUDAILi16E", Grid::of([4, 4, 1], [16, 16, 1]), &params)?;
    let product = |i: usize| (0..n).map(|k| f64::from(a[i / n * n + k]) * f64::from(b[k * n + i % n])).sum();
    near("product", &rig.floats(c, n * n)?, 1e-5, product)
}

/// Of matrices that are full of one number, as in the sample: it takes tiles of B from where those of A lie.
fn matrix_mul_async(rig: &Rig) -> Res<()> {
    let n = 96;
    let [a, b] = [1f32, 0.01].map(|x| vec![x; n * n]);
    let c = rig.room(4 * n * n)?;
    let params = Params::default().and(&[c, rig.put(&a)?, rig.put(&b)?]).and(&[n as u32; 2]);
    rig.launch("MatrixMulAsyncCopyMultiStageLargeChunkILi16E", Grid::of([6, 6, 1], [16, 16, 1]), &params)?;
    near("product", &rig.floats(c, n * n)?, 1e-5, |_| 0.01 * n as f64)
}

/// Keys and values, 1024 of each to be sorted.
fn sort(rig: &Rig, kernel: &str, order: &[u32]) -> Res<()> {
    let (blocks, each) = (2, 1024);
    let keys = Noise(7).below(500, blocks * each);
    let values: Vec<u32> = (0..keys.len() as u32).collect();
    let (sorted, moved) = (rig.room(4 * keys.len())?, rig.room(4 * keys.len())?);
    let params = Params::default().and(&[sorted, moved, rig.put(&keys)?, rig.put(&values)?]).and(order);
    rig.launch(kernel, Grid::new(blocks as u32, each as u32 / 2), &params)?;
    let mut expected = keys.clone();
    expected.chunks_mut(each).for_each(<[u32]>::sort);
    equal("keys", &rig.words(sorted, keys.len())?, &expected)?;
    let of_values: Vec<u32> = rig.words(moved, keys.len())?.into_iter().map(|v| keys[v as usize]).collect();
    equal("values", &of_values, &expected)
}

fn merge_sort(rig: &Rig) -> Res<()> {
    sort(rig, "mergeSortSharedKernelILj1E", &[1024])
}

fn bitonic_sort(rig: &Rig) -> Res<()> {
    sort(rig, "bitonicSortSharedPjS", &[1024, 1])
}

fn histogram(rig: &Rig) -> Res<()> {
    let (data, blocks) = (Noise(11).below(u32::MAX, 5000), 6);
    let (parts, bins) = (rig.room(4 * 256 * blocks as usize)?, rig.room(4 * 256)?);
    let params = Params::default().and(&[parts, rig.put(&data)?]).and(&[data.len() as u32]);
    rig.launch("histogram256Kernel", Grid::new(blocks, 192), &params)?;
    rig.launch("mergeHistogram256Kernel", Grid::new(256, 256), &Params::default().and(&[bins, parts]).and(&[blocks]))?;
    let mut expected = [0; 256];
    data.iter().flat_map(|word| word.to_le_bytes()).for_each(|byte| expected[usize::from(byte)] += 1);
    equal("bins", &rig.words(bins, 256)?, &expected)
}

fn sum(x: &[f32]) -> f64 {
    x.iter().map(|&x| f64::from(x)).sum()
}

fn reduce(rig: &Rig) -> Res<()> {
    let (n, blocks) = (4096, 4);
    let x = Noise(3).floats(n);
    let y = rig.room(16)?;
    let params = Params::default().and(&[rig.put(&x)?, y]).and(&[n as u32]);
    rig.launch("reduce6IfLj256ELb1EE", Grid::new(blocks, 256).shared(1024), &params)?;
    let got: f64 = rig.floats(y, blocks as usize)?.into_iter().sum();
    near("sum", &[got], 1e-5, |_| sum(&x))
}

fn reduce_single_pass(rig: &Rig) -> Res<()> {
    let (n, blocks) = (4096, 6);
    let x = Noise(3).floats(n);
    let y = rig.room(4 * blocks as usize)?;
    let params = Params::default().and(&[rig.put(&x)?, y]).and(&[n as u32]);
    rig.launch("reduceSinglePassILj128ELb1EE", Grid::new(blocks, 128).shared(512), &params)?;
    near("sum", &rig.floats(y, 1)?, 1e-5, |_| sum(&x))
}

fn reduce_grid(rig: &Rig) -> Res<()> {
    let (n, blocks) = (4000, 5);
    let x = Noise(3).floats(n);
    let y = rig.room(4 * blocks as usize)?;
    let params = Params::default().and(&[rig.put(&x)?, y]).and(&[n as u32]);
    rig.launch("reduceSinglePassMultiBlockCG", Grid::new(blocks, 128).shared(1024).cooperative(), &params)?;
    near("sum", &rig.floats(y, 1)?, 1e-5, |_| sum(&x))
}

fn norm_by_dot(rig: &Rig) -> Res<()> {
    let (n, blocks) = (2000, 4);
    let x: Vec<f32> = Noise(3).floats(n).iter().map(|x| x.abs() + 0.5).collect();
    let (a, b) = (rig.put(&x)?, rig.put(&x)?);
    let parts = rig.room(8 * blocks as usize)?;
    let params = Params::default().and(&[a, b, parts]).and(&[n as u32]);
    rig.launch("normVecByDotProductAWBarrier", Grid::new(blocks, 128).shared(40).cooperative(), &params)?;
    let norm = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    near("vector", &rig.floats(a, n)?, 1e-6, |i| f64::from(x[i]) / norm)
}

fn scalar_products(rig: &Rig) -> Res<()> {
    let (vectors, each) = (5, 1100);
    let [a, b] = [3, 5].map(|seed| Noise(seed).floats(vectors * each));
    let c = rig.room(4 * vectors)?;
    let params = Params::default().and(&[c, rig.put(&a)?, rig.put(&b)?]).and(&[vectors as u32, each as u32]);
    rig.launch("scalarProdGPU", Grid::new(2, 256), &params)?;
    let dot = |v: usize| (v * each..(v + 1) * each).map(|i| f64::from(a[i]) * f64::from(b[i])).sum();
    near("product", &rig.floats(c, vectors)?, 1e-5, dot)
}

fn scan(rig: &Rig) -> Res<()> {
    let (blocks, size) = (2, 1024);
    let x = Noise(3).below(1000, blocks * size);
    let y = rig.room(4 * x.len())?;
    let params = Params::default().and(&[y, rig.put(&x)?]).and(&[size as u32]);
    rig.launch("scanExclusiveSharedP", Grid::new(blocks as u32, 256), &params)?;
    let before = |x: &[u32]| -> Vec<u32> { (0..x.len()).map(|i| x[..i].iter().sum()).collect() };
    let expected: Vec<u32> = x.chunks(size).flat_map(before).collect();
    equal("sums", &rig.words(y, x.len())?, &expected)
}

fn shuffled_scan(rig: &Rig) -> Res<()> {
    let (blocks, size) = (2, 256);
    let x = Noise(3).below(1000, blocks * size);
    let (data, parts) = (rig.put(&x)?, rig.room(4 * blocks)?);
    let params = Params::default().and(&[data]).and(&[32]).and(&[parts]);
    rig.launch("shfl_scan_test", Grid::new(blocks as u32, size as u32).shared(32), &params)?;
    let up_to = |x: &[u32]| -> Vec<u32> { (0..x.len()).map(|i| x[..=i].iter().sum()).collect() };
    let expected: Vec<u32> = x.chunks(size).flat_map(up_to).collect();
    equal("sums", &rig.words(data, x.len())?, &expected)
}

fn walsh(rig: &Rig) -> Res<()> {
    let log = 9;
    let n = 1 << log;
    let x = Noise(3).floats(2 * n);
    let y = rig.room(8 * n)?;
    let params = Params::default().and(&[y, rig.put(&x)?]).and(&[log]);
    rig.launch("fwtBatch1Kernel", Grid::new(2, n as u32 / 4).shared(4 * n as u32), &params)?;
    let signed = |i: usize, k: usize| if (i & k).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let transform = |i: usize| (0..n).map(|k| signed(i % n, k) * f64::from(x[i / n * n + k])).sum();
    near("transform", &rig.floats(y, 2 * n)?, 1e-5, transform)
}

fn haar(rig: &Rig) -> Res<()> {
    let (threads, levels) = (128, 8);
    let n = 2 * threads;
    let x = Noise(3).floats(n);
    let (y, top) = (rig.room(4 * n)?, rig.room(4)?);
    let params = Params::default().and(&[rig.put(&x)?, y, top]).and(&[levels, threads as u32, threads as u32]);
    let shared = 4 * (n + n / 16) as u32;
    rig.launch("dwtHaar1D", Grid::new(1, threads as u32).shared(shared), &params)?;
    let mut approximation: Vec<f64> = x.iter().map(|&x| x.into()).collect();
    while approximation.len() > 1 {
        let pairs = approximation.chunks(2);
        let details: Vec<f64> = pairs.clone().map(|pair| (pair[0] - pair[1]) / 2f64.sqrt()).collect();
        let half = details.len();
        near("details", &rig.floats(y + 4 * half as u64, half)?, 1e-5, |i| details[i])?;
        approximation = pairs.map(|pair| (pair[0] + pair[1]) / 2f64.sqrt()).collect();
    }
    near("approximation", &rig.floats(top, 1)?, 1e-5, |_| approximation[0])
}

fn transpose(rig: &Rig) -> Res<()> {
    let n = 64;
    let x = Noise(3).below(1000, n * n);
    let y = rig.room(4 * n * n)?;
    let params = Params::default().and(&[y, rig.put(&x)?]).and(&[n as u32; 2]);
    rig.launch("transposeNoBankConflicts", Grid::of([2, 2, 1], [32, 16, 1]), &params)?;
    let expected: Vec<u32> = (0..n * n).map(|i| x[i % n * n + i / n]).collect();
    equal("matrix", &rig.words(y, n * n)?, &expected)
}
