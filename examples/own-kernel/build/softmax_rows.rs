use kiln_codegen::Kernel;
use kiln_codegen::kernels::Grid;
use kiln_codegen::ptx::{AtomicOp, Builder, F32, Global, LoadKind, S32, U32, Val};
use std::f32::consts::LOG2_E;

/// `y[r, i] = exp(x[r, i] - m) / sum over j of exp(x[r, j] - m)` with `m = max(x[r])`, a warp a row. `x` is finite.
#[derive(Debug)]
pub struct SoftmaxRows;

impl Kernel for SoftmaxRows {
    fn name(&self) -> &str {
        "softmax_rows"
    }

    fn block(&self) -> u32 {
        128
    }

    fn grid(&self) -> Grid {
        Grid::PerRows(self.block() / 32)
    }

    fn build(&self, b: &mut Builder) {
        let x = b.param::<Global<F32>>("x"); // [rows, n]
        let y = b.param::<Global<F32>>("y"); // [rows, n], not x
        let rows = b.param::<U32>("rows");
        let n = b.param::<U32>("n"); // rows * n is at most 2^31

        let (block, blocks, warps, warp, lane) = (b.ctaid_x(), b.nctaid_x(), b.warps(), b.warp_id(), b.lane());
        let first = b.mad::<U32>(block, warps, warp);
        let step = b.mul::<U32>(blocks, warps);
        b.for_range(first, rows, step, |b, row| {
            let start = b.mul::<U32>(row, n);
            let (x, y) = (b.index(x, start), b.index(y, start));
            let greatest = b.var::<F32>(f32::NEG_INFINITY);
            b.for_range(lane, n, 32, |b, i| {
                let value = load(b, x, i);
                let known = b.get(greatest);
                let known = b.max::<F32>(known, value);
                b.set(greatest, known);
            });
            let greatest = b.get(greatest);
            let greatest = max_of_lanes(b, greatest);

            let sum = b.var::<F32>(0.0);
            b.for_range(lane, n, 32, |b, i| {
                let value = load(b, x, i);
                let value = exp_of_difference(b, value, greatest);
                let known = b.get(sum);
                let known = b.add::<F32>(known, value);
                b.set(sum, known);
            });
            let sum = b.get(sum);
            let sum = fold(b, sum, |b, a, other| b.add::<F32>(a, other));

            b.for_range(lane, n, 32, |b, i| {
                let value = load(b, x, i);
                let value = exp_of_difference(b, value, greatest);
                let share = b.div::<F32>(value, sum);
                let y = b.index(y, i);
                b.st(y, share);
            });
        });
    }
}

fn load(b: &mut Builder, x: Global<F32>, index: Val<U32>) -> Val<F32> {
    let x = b.index(x, index);
    b.ld(x, LoadKind::Constant)
}

/// `exp(a - b)`.
fn exp_of_difference(b: &mut Builder, of: Val<F32>, less: Val<F32>) -> Val<F32> {
    let difference = b.sub::<F32>(of, less);
    let exponent = b.mul::<F32>(difference, LOG2_E);
    b.ex2_approx(exponent)
}

/// The maximum over the lanes of a warp, in each of them. From sm_80 on one instruction does it, for integers.
fn max_of_lanes(b: &mut Builder, value: Val<F32>) -> Val<F32> {
    if b.target().sm() < 80 {
        return fold(b, value, |b, a, other| b.max::<F32>(a, other));
    }
    let ordered = in_order(b, value);
    let greatest = b.redux(AtomicOp::Max, ordered);
    let value = b.mov_bits::<F32, S32>(greatest);
    let back = in_order(b, value);
    b.mov_bits::<F32, S32>(back)
}

/// Bits of a float whose order as integers is that of the floats: of negative ones all but the sign is inverted. Twice is
/// the bits again.
fn in_order(b: &mut Builder, value: Val<F32>) -> Val<S32> {
    let bits = b.mov_bits::<S32, F32>(value);
    let negative = b.shr::<S32>(bits, 31);
    let inverted = b.and::<S32>(negative, i32::MAX);
    b.xor::<S32>(bits, inverted)
}

/// A value of all lanes of a warp, in each of them, as a butterfly.
fn fold(b: &mut Builder, value: Val<F32>, join: impl Fn(&mut Builder, Val<F32>, Val<F32>) -> Val<F32>) -> Val<F32> {
    [16, 8, 4, 2, 1].into_iter().fold(value, |value, distance| {
        let other = b.shfl_bfly(value, distance);
        join(b, value, other)
    })
}
