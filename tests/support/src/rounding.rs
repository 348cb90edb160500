//! How far a kernel's result may be from float64, by its arithmetic: a result of `n` roundings in a row is off by at most
//! `n u / (1 - n u)` of what it is a sum of (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).

/// Half the distance from 1 to the next number in f32.
const UNIT: f64 = 1.0 / (1 << 24) as f64;

/// The bound of `n` roundings, of the sum of the absolute values of the terms.
pub fn roundings(n: usize) -> f64 {
    n as f64 * UNIT / (1.0 - n as f64 * UNIT)
}

/// Roundings of an element of `W x` of rows of `k`: those that `blocks/dot.rs` lists, a sum for every further part that
/// the vector is staged in, and two addends.
fn product_roundings(k: usize) -> usize {
    15 + (k.div_ceil(12288) - 1) + 2
}

/// An element of `W x` with up to two addends.
pub fn product(k: usize) -> f64 {
    roundings(product_roundings(k))
}

/// The same where `x` is normalised: gamma, the factor, and what the factor is off.
pub fn normalised_product(k: usize) -> f64 {
    // Squares: eight of a lane, the lanes, the super-blocks one after another.
    let squares = 8 + 5 + k.div_ceil(256);
    roundings(product_roundings(k) + 2 + inverse_rms(squares))
}

/// An element of `W x` in fast numerics, of activations that are rounded already, normalised or not, with up to two
/// addends: of a super-block two planes, of each the scales and eight blocks of 32; then the super-blocks one after
/// another, the factor of the norm, and gamma.
pub fn fast_product(k: usize) -> f64 {
    let super_blocks = k.div_ceil(256);
    let squares = 8 + 5 + super_blocks;
    roundings(2 * (3 + 8) + super_blocks + 2 + 2 + inverse_rms(squares))
}

/// An element of SwiGLU of two normalised products: `silu`'s two products, sum and quotient, after the exponential.
pub fn swiglu(k: usize) -> f64 {
    // The exponential is 2 units off, in numerator and denominator alike, which cancels in part.
    normalised_product(k) + roundings(2 + 4)
}

/// An element of a head that is normalised: the factor, gamma, and what the factor is off.
pub fn normalised_head(head_dim: usize) -> f64 {
    roundings(2 + inverse_rms(head_dim / 32 + 5))
}

/// All elements of such a head together, turned: the table, and a product and a sum of two elements, whose absolute
/// values together have at most the root of 2 times the length of the two.
pub fn turned_head(head_dim: usize) -> f64 {
    std::f64::consts::SQRT_2 * (normalised_head(head_dim) + roundings(3))
}

/// What is rounded to f16.
pub fn in_f16(bound: f64) -> f64 {
    bound + (1.0 + bound) / (1 << 11) as f64
}

/// Roundings of `1 / sqrt(mean + eps)` where the sum of squares took `squares`: the root halves what came before it.
fn inverse_rms(squares: usize) -> usize {
    // A quotient and a sum before the root; the root and the reciprocal.
    (squares + 2).div_ceil(2) + 2
}
