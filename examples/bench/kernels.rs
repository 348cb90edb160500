//! What kiln does not have because it fuses it, and a plain read of memory: kernels to compare with.

use kiln_codegen::Kernel;
use kiln_codegen::ptx::{Builder, F32, Global, LoadKind, U32, Val};

/// `y[i] = x[i] * rsqrt(mean(x^2) + eps) * gamma[i]`, one block.
#[derive(Debug)]
pub(crate) struct RmsNorm;

impl Kernel for RmsNorm {
    fn name(&self) -> &str {
        "rmsnorm"
    }

    fn build(&self, b: &mut Builder) {
        let x = b.param::<Global<F32>>("x"); // [n]
        let gamma = b.param::<Global<F32>>("gamma"); // [n]
        let y = b.param::<Global<F32>>("y"); // [n]
        let n = b.param::<U32>("n");
        let eps = b.param::<F32>("eps");
        let (tid, threads, warp, lane) = (b.tid(), b.block(), b.warp_id(), b.lane());
        let squares = b.var::<F32>(0.0);
        b.for_range(tid, n, threads, |b, i| {
            let x = b.index(x, i);
            let x = b.ld(x, LoadKind::Constant);
            let sum = b.fma(x, x, squares);
            b.set(squares, sum);
        });
        let mut sum = b.get(squares);
        for distance in [16, 8, 4, 2, 1] {
            let other = b.shfl_bfly(sum, distance);
            sum = b.add(sum, other);
        }
        let by_warp = b.shared::<F32>("by_warp", threads / 32);
        let (mine, first) = (b.index(by_warp, warp), b.setp_eq(lane, 0));
        b.if_(first, |b| b.st(mine, sum));
        b.bar_sync(); // after this, every thread sees every warp's sum
        let mut total = b.ld(by_warp, LoadKind::Ordinary);
        for warp in 1..threads / 32 {
            let sum = b.ld(by_warp.at(warp), LoadKind::Ordinary);
            total = b.add(total, sum);
        }
        let count = b.cvt::<F32, U32>(n);
        let mean = b.div(total, count);
        let mean = b.add(mean, eps);
        let root = b.sqrt(mean);
        let inverse = b.rcp(root);
        b.for_range(tid, n, threads, |b, i| {
            let (x, gamma, y) = (b.index(x, i), b.index(gamma, i), b.index(y, i));
            let (x, gamma) = (b.ld(x, LoadKind::Constant), b.ld(gamma, LoadKind::Constant));
            let scaled = b.mul(x, inverse);
            let scaled = b.mul(scaled, gamma);
            b.st(y, scaled);
        });
    }
}

/// `y[i] = gate[i] / (1 + exp(-gate[i])) * up[i]`, any grid.
#[derive(Debug)]
pub(crate) struct SwiGlu;

impl Kernel for SwiGlu {
    fn name(&self) -> &str {
        "swiglu"
    }

    fn build(&self, b: &mut Builder) {
        let gate = b.param::<Global<F32>>("gate"); // [n]
        let up = b.param::<Global<F32>>("up"); // [n]
        let y = b.param::<Global<F32>>("y"); // [n]
        let n = b.param::<U32>("n");
        let (first, step) = linear(b);
        b.for_range(first, n, step, |b, i| {
            let (gate, up, y) = (b.index(gate, i), b.index(up, i), b.index(y, i));
            let (gate, up) = (b.ld(gate, LoadKind::Constant), b.ld(up, LoadKind::Constant));
            let exponent = b.mul(gate, -std::f32::consts::LOG2_E);
            let power = b.ex2_approx(exponent);
            let below = b.add(power, 1.0);
            let silu = b.div(gate, below);
            let silu = b.mul(silu, up);
            b.st(y, silu);
        });
    }
}

/// Reads `tiles` tiles of 16 KiB once, 16 bytes a lane at a time, and writes nothing if they are zero.
#[derive(Debug)]
pub(crate) struct ReadOnce;

impl ReadOnce {
    /// Bytes that a block reads before it goes on to its next tile.
    pub(crate) const TILE: u32 = 16 * 256 * LOADS;
}

/// Independent loads of a lane.
const LOADS: u32 = 4;

impl Kernel for ReadOnce {
    fn name(&self) -> &str {
        "read_once"
    }

    fn build(&self, b: &mut Builder) {
        let x = b.param::<Global<F32>>("x"); // [tiles, LOADS, 256, 4]
        let tiles = b.param::<U32>("tiles");
        let y = b.param::<Global<F32>>("y"); // [1], so that the loads are not for nothing
        let (block, grid, tid) = (b.ctaid_x(), b.nctaid_x(), b.tid());
        let x = b.byte_index(x, tid, 16);
        let total = b.var::<F32>(0.0);
        b.for_range(block, tiles, grid, |b, tile| {
            let x = b.byte_index(x, tile, ReadOnce::TILE);
            let loads: Vec<[Val<F32>; 4]> =
                (0..LOADS).map(|i| b.ld_vector(x.at(i * 256 * 4), LoadKind::Streaming)).collect();
            for value in loads.into_iter().flatten() {
                let sum = b.add(total, value);
                b.set(total, sum);
            }
        });
        let total = b.get(total);
        let never = b.setp_eq(total, 1.0);
        b.if_(never, |b| b.st(y, total));
    }
}

/// A thread's first element and the number of threads.
fn linear(b: &mut Builder) -> (Val<U32>, Val<U32>) {
    let (block, grid, threads, tid) = (b.ctaid_x(), b.nctaid_x(), b.block(), b.tid());
    (b.mad(block, threads, tid), b.mul(grid, threads))
}
