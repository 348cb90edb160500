//! Products of several columns with weights that are floats: each column has the bits that it has alone.

use kiln_codegen::kernels::{GemmFloats, Phase};
use kiln_shape::{Family, WeightType};

use crate::compare::assert_same_bits;
use crate::gemm::{Case, EPS, LAYER, OnDevice};
use crate::phases::shape;
use crate::random::Random;
use crate::support::{Arg, Gpu, chips, every_schedule};

const FLOATS: [WeightType; 3] = [WeightType::F16, WeightType::BF16, WeightType::F32];
const PHASES: [Phase; 5] = [Phase::Qkv, Phase::AttentionOutput, Phase::GateUp, Phase::Down, Phase::Head];

/// All columns at once.
fn together(case: &Case, gpu: &Gpu, on: &OnDevice, count: usize, x: &[f32], y: &[f32]) -> Vec<f32> {
    let rows = case.rows() as u32;
    let (x, y) = (gpu.input(x), gpu.in_out(y));
    let args: Vec<Arg> = vec![
        (&on.table).into(),
        LAYER.into(),
        (case.phase as u32).into(),
        (&x).into(),
        (count as u32).into(),
        (&y).into(),
        EPS.into(),
        rows.into(),
    ];
    let kernel = gpu.load(GemmFloats::new(case.shape, &case.types));
    kernel.run([(count as u32).div_ceil(8), rows.div_ceil(16), 1], &args);
    y.read()
}

#[track_caller]
fn check(case: &Case, gpu: &Gpu, count: usize, random: &mut Random) {
    let on = case.on(gpu);
    let x = case.columns(count, random);
    let y = random.floats(count * case.rows(), 4.0);
    let what = format!("{:?}, {:?}, {count} columns, {gpu}", case.phase, case.types);
    assert_same_bits(&what, &together(case, gpu, &on, count, &x, &y), &case.alone(gpu, &x, &y));
}

/// Every phase and type, one type or several in a phase, whole parts of columns and others, and rows that end within a
/// super-block.
#[test]
fn a_column_of_floats_has_the_bits_it_has_alone() {
    let mut random = Random::fresh();
    for gpu in chips() {
        for (number, phase) in PHASES.into_iter().enumerate() {
            let (hidden, ffn) = if number % 2 == 0 { (1120, 288) } else { (512, 1312) };
            let shape = shape(Family::Qwen2, hidden, 4, 1, 64, ffn);
            let one = FLOATS[(number + random.below(3) as usize) % 3];
            check(&Case::new(phase, shape, &[one], &mut random), &gpu, 9, &mut random);
            // Matrices of several types in one phase.
            if matches!(phase, Phase::Qkv | Phase::GateUp) {
                check(&Case::new(phase, shape, &FLOATS, &mut random), &gpu, 3, &mut random);
            }
        }
    }
}

/// Blocks and warps in other orders, with all checks.
#[test]
fn columns_of_floats_do_not_depend_on_the_schedule() {
    let mut random = Random::fresh();
    let shape = shape(Family::Qwen3, 512, 4, 2, 64, 1280);
    let case = Case::new(Phase::GateUp, shape, &FLOATS[..2], &mut random);
    let mut inputs = Random::fresh();
    every_schedule(&mut random, |gpu| check(&case, gpu, 10, &mut inputs));
}
