//! The tables of rotary angles.

/// Cosines and sines, `[positions, head_dim / 2]` each, of `position * theta^(-2i / head_dim)`. Angles are computed in
/// f64 and only the results rounded: an f32 frequency would be off by 3e-3 at position 32000.
pub(crate) fn tables(positions: u32, head_dim: u32, theta: f64) -> (Vec<f32>, Vec<f32>) {
    let half = head_dim / 2;
    let frequencies: Vec<f64> = (0..half).map(|i| theta.powf(-2.0 * f64::from(i) / f64::from(head_dim))).collect();
    let mut tables = (Vec::new(), Vec::new());
    for position in 0..positions {
        for frequency in &frequencies {
            let (sin, cos) = (f64::from(position) * frequency).sin_cos();
            tables.0.push(cos as f32);
            tables.1.push(sin as f32);
        }
    }
    tables
}

#[cfg(test)]
mod tests {
    #[test]
    fn angles_keep_their_precision_at_far_positions() {
        let (cos, sin) = super::tables(32001, 128, 1e6);
        let frequency = 1e6f64.powf(-2.0 / 128.0);
        let (expected_sin, expected_cos) = (32000.0 * frequency).sin_cos();
        assert!((f64::from(cos[32000 * 64 + 1]) - expected_cos).abs() < 1e-7);
        assert!((f64::from(sin[32000 * 64 + 1]) - expected_sin).abs() < 1e-7);
        // The same by f32 angles is visibly elsewhere, so the bound above means something.
        let rough = (32000.0f32 * frequency as f32).cos();
        assert!((f64::from(rough) - expected_cos).abs() > 1e-4);
    }
}
