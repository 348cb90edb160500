//! How far results are from what they should be.

/// `|a - b| / |b|`, over all elements together.
pub fn relative_l2(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let difference: f64 = found.iter().zip(expected).map(|(f, e)| (f64::from(*f) - e).powi(2)).sum();
    let norm: f64 = expected.iter().map(|e| e * e).sum();
    if difference == 0.0 { 0.0 } else { (difference / norm).sqrt() }
}

/// The largest difference of an element, relative to the root mean square of what is expected.
pub fn relative_max(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let norm: f64 = expected.iter().map(|e| e * e).sum::<f64>() / expected.len().max(1) as f64;
    // `f64::max` drops a NaN; it must win here.
    let largest = found.iter().zip(expected).map(|(f, e)| (f64::from(*f) - e).abs());
    let largest = largest.fold(0.0, |a: f64, b| if a > b { a } else { b });
    if largest == 0.0 { 0.0 } else { largest / norm.sqrt() }
}

/// Panics unless both figures are small: `bound` for all elements together, 16 times that for any one.
#[track_caller]
pub fn assert_close(what: &str, found: &[f32], expected: &[f64], bound: f64) {
    let (l2, max) = (relative_l2(found, expected), relative_max(found, expected));
    if std::env::var_os("KILN_SHOW_ERRORS").is_some() {
        println!("error of {what}: {l2:.1e} together, {max:.1e} at most; bound {bound:.1e}");
    }
    if l2 <= bound && max <= 16.0 * bound {
        return;
    }
    let worst = found.iter().zip(expected).enumerate().max_by(|(_, (f, e)), (_, (g, h))| {
        let distance = |f: f32, e: f64| (f64::from(f) - e).abs();
        distance(**f, **e).total_cmp(&distance(**g, **h))
    });
    let worst = worst.map(|(index, (f, e))| format!("element {index} is {f}, expected {e}"));
    panic!(
        "{what}: relative error {l2:.2e} together and {max:.2e} at most, allowed {bound:.1e}; {}",
        worst.unwrap_or_default()
    );
}

/// Panics unless every element is as close as `bound` times its magnitude: the sum of the absolute values it is a sum of.
#[track_caller]
pub fn assert_close_sums(what: &str, found: &[f32], expected: &[f64], magnitudes: &[f64], bound: f64) {
    assert!(found.len() == expected.len() && found.len() == magnitudes.len());
    let errors = found.iter().zip(expected).zip(magnitudes).map(|((f, e), m)| {
        let error = (f64::from(*f) - e).abs();
        if error == 0.0 { 0.0 } else { error / m }
    });
    let worst = errors.enumerate().fold((0, 0.0), |a: (usize, f64), b| if a.1 > b.1 { a } else { b });
    let (index, error) = worst;
    if std::env::var_os("KILN_SHOW_ERRORS").is_some() {
        println!("error of {what}: {error:.1e} of the magnitude; bound {bound:.1e}");
    }
    assert!(
        error <= bound,
        "{what}: error {error:.2e} of the magnitude, allowed {bound:.1e}; element {index} is {}, expected {}",
        found[index],
        expected[index]
    );
}

/// Panics unless both are the same to the last bit.
#[track_caller]
pub fn assert_same_bits(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (f, e)) in found.iter().zip(expected).enumerate() {
        assert_eq!(f.to_bits(), e.to_bits(), "{what}: element {index} is {f:e} and {e:e}");
    }
}
