//! Splitting blocks into planes.

use kiln_codegen::Kernel;
use kiln_codegen::kernels::{RepackQ6K, RepackQ8_0};
use kiln_shape::TensorType;

use crate::quantised::Matrix;
use crate::random::Random;
use crate::support::{Arg, every_schedule};

/// Splits random blocks on the device and on the host.
fn splits_as_the_host_does(ty: TensorType, kernel: impl Kernel + Copy + 'static) {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        let kernel = gpu.load(kernel);
        for (blocks, grid) in [(0usize, 1), (1, 2), (7, 1), (8, 1), (33, 3)] {
            let matrix = Matrix::random(ty, blocks, ty.block_len() as usize, &mut random);
            let (records, scales) = matrix.planes();
            let from = gpu.input(&matrix.bytes);
            let (to, plane) = (gpu.output::<u8>(records.len()), gpu.output::<u8>(scales.len()));
            let args = [Arg::from(&from), Arg::from(&to), Arg::from(&plane), Arg::from(blocks as u32)];
            kernel.run([grid, 1, 1], &args);
            assert_eq!(to.read(), records, "{blocks} blocks, grid {grid}, {gpu}");
            assert_eq!(plane.read(), scales, "{blocks} blocks, grid {grid}, {gpu}");
        }
    });
}

#[test]
fn repack_q6k_splits_as_the_host_does() {
    splits_as_the_host_does(TensorType::Q6_K, RepackQ6K);
}

#[test]
fn repack_q8_0_splits_as_the_host_does() {
    splits_as_the_host_does(TensorType::Q8_0, RepackQ8_0);
}
