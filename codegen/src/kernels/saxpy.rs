use super::Kernel;
use crate::ptx::{Builder, F32, Global, LoadKind, U32};

/// `y[i] += a * x[i]`, any `n`, any grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Saxpy;

impl Kernel for Saxpy {
    fn name(&self) -> &str {
        "saxpy"
    }

    fn build(&self, b: &mut Builder) {
        let x = b.param::<Global<F32>>("x"); // [n]
        let y = b.param::<Global<F32>>("y"); // [n]
        let a = b.param::<F32>("a");
        let n = b.param::<U32>("n"); // at most 2^31
        let (block, grid, threads, tid) = (b.ctaid_x(), b.nctaid_x(), b.block(), b.tid());
        let first = b.mad::<U32>(block, threads, tid);
        let step = b.mul::<U32>(grid, threads);
        b.for_range(first, n, step, |b, i| {
            let (x, y) = (b.index(x, i), b.index(y, i));
            let (x, old) = (b.ld(x, LoadKind::Constant), b.ld(y, LoadKind::Ordinary));
            let new = b.fma(a, x, old);
            b.st(y, new);
        });
    }
}
