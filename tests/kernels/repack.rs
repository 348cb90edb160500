//! Bringing blocks into the layout of the kernels.

use kiln_codegen::kernels::Repack;
use kiln_shape::WeightType;

use crate::quantised::Matrix;
use crate::random::Random;
use crate::support::{Arg, every_schedule};

/// Repacks random matrices on the device, in two parts, and on the host.
#[test]
fn repack_lays_blocks_out_as_the_host_does() {
    let mut random = Random::fresh();
    for &ty in WeightType::ALL {
        let Some(kernel) = Repack::new(ty) else { continue };
        every_schedule(&mut random.clone(), |gpu| {
            let kernel = gpu.load(kernel.clone());
            // Rows of whole super-blocks, and of parts of one.
            for (rows, row_blocks, grid) in [(0, 1, 1), (1, 1, 2), (3, 8, 1), (2, 16, 3), (3, 9, 2), (5, 3, 1)] {
                let k = row_blocks * ty.block_len() as usize;
                let matrix = Matrix::random(ty, rows, k, &mut random);
                let (data, plane) = matrix.planes();
                let (to, to_plane) = (gpu.output::<u8>(data.len()), gpu.in_out(&vec![0u8; plane.len()]));
                let count = rows * row_blocks;
                for part in [0..count / 3, count / 3..count] {
                    let from = gpu.input(&matrix.bytes[part.start * ty.block_bytes() as usize..]);
                    let (blocks, first) = (part.len() as u32, part.start as u32);
                    let args = [(&from).into(), (&to).into(), (&to_plane).into(), blocks.into(), first.into()];
                    kernel.run([grid, 1, 1], &[&args[..], &[Arg::from(row_blocks as u32)]].concat());
                }
                assert_eq!(to.read(), data, "{ty}, {rows} rows of {row_blocks}, grid {grid}, {gpu}");
                assert_eq!(to_plane.read(), plane, "{ty}, {rows} rows of {row_blocks}, grid {grid}, {gpu}");
            }
        });
    }
}
