//! Rows of the embedding.

use kiln_codegen::kernels::EmbeddingRow;
use kiln_codegen::ptx::Dim;
use kiln_shape::{TensorRole, WeightType};

use crate::compare::assert_close_sums;
use crate::quantised::Matrix;
use crate::random::Random;
use crate::rounding::roundings;
use crate::support::{Arg, Gpu, Table, every_schedule};

/// The embedding of `tokens[position]`, and the error word.
fn embed(gpu: &Gpu, matrix: &Matrix, baked: bool, tokens: &[u32], position: u32, grid: u32) -> (Vec<f32>, u32) {
    let hidden = if baked { Dim::Baked(matrix.k as u32) } else { Dim::Param };
    let kernel = gpu.load(EmbeddingRow { hidden, types: WeightType::ALL.to_vec() });
    let weights = gpu.matrix(matrix);
    let mut table = Table::new(1);
    table.matrix(TensorRole::TokenEmbedding, 0, &weights);
    let (table, state) = (table.upload(gpu), gpu.in_out(&[position, 0, 0]));
    let x = gpu.output::<f32>(matrix.k);
    let (capacity, vocab) = (tokens.len() as u32, matrix.n as u32);
    let tokens = gpu.input(tokens);
    let mut args = vec![Arg::from(&table), Arg::from(&tokens), capacity.into(), vocab.into()];
    args.extend([Arg::from(&state), Arg::from(&x)]);
    if !baked {
        args.push(Arg::from(matrix.k as u32));
    }
    kernel.run([grid, 1, 1], &args);
    (x.read(), state.read()[2])
}

#[test]
fn embedding_rows_are_the_dequantised_weights() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        for &ty in WeightType::ALL {
            let whole = [(256, true, 1), (768, false, 2), (2304, true, 1)];
            let cut = [(96, true, 1), (96, false, 1), (896, true, 2), (1184, false, 1)];
            let cut = cut.into_iter().filter(|_| ty.block_len() <= 32);
            for (hidden, baked, grid) in whole.into_iter().chain(cut) {
                let matrix = Matrix::random(ty, 5, hidden, &mut random);
                let token = random.below(5);
                let (x, error) = embed(gpu, &matrix, baked, &[7, token, 9], 1, grid);
                assert_eq!(error, 0);
                let what = format!("{ty}, hidden {hidden}, {gpu}");
                // One multiplication or one fused multiply-add each.
                let expected = matrix.row(token as usize);
                let magnitudes: Vec<f64> = expected.iter().map(|weight| weight.abs()).collect();
                assert_close_sums(&what, &x, expected, &magnitudes, roundings(1));
            }
        }
    });
}

#[test]
fn a_token_or_position_out_of_range_sets_the_error_word_and_leaves_zeros() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        let matrix = Matrix::random(WeightType::Q4_K, 5, 512, &mut random);
        let cut = Matrix::random(WeightType::F16, 5, 288, &mut random);
        for (tokens, position) in [(&[5u32][..], 0), (&[u32::MAX], 0), (&[1, 1], 2), (&[1], u32::MAX)] {
            let (x, error) = embed(gpu, &cut, true, tokens, position, 2);
            assert_eq!((x, error), (vec![0.0; 288], 1), "{tokens:?} at {position}, {gpu}");
            let (x, error) = embed(gpu, &matrix, true, tokens, position, 2);
            assert_eq!(error, 1, "{tokens:?} at {position}, {gpu}");
            assert_eq!(x, [0.0; 512], "{tokens:?} at {position}, {gpu}");
        }
    });
}
