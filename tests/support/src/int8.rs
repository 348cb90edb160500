//! Activations rounded to bytes, as fast numerics promise them: `scale * (q + r / 254)`, in f32 arithmetic.

use kiln_shape::WeightType;

/// Activations that share a scale in products with weights of a type; none for weights that are floats.
pub fn group(ty: WeightType) -> Option<usize> {
    match ty {
        WeightType::Q4_K | WeightType::Q5_K | WeightType::Q6_K => Some(256),
        WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q8_0 => Some(32),
        WeightType::F16 | WeightType::BF16 | WeightType::F32 => None,
    }
}

/// A vector as the products see it, and the super-blocks that have a second plane.
pub fn rounded(x: &[f32], group: usize) -> (Vec<f64>, usize) {
    rounded_with(x, group, true)
}

/// The same of a vector that has one plane only, which no kernel makes.
pub fn rounded_to_one_plane(x: &[f32], group: usize) -> Vec<f64> {
    rounded_with(x, group, false).0
}

fn rounded_with(x: &[f32], group: usize, seconds_allowed: bool) -> (Vec<f64>, usize) {
    let mut all = Vec::with_capacity(x.len());
    let mut seconds = 0;
    for super_block in x.chunks(256) {
        let groups: Vec<Group> = super_block.chunks(group).map(Group::of).collect();
        let second = seconds_allowed && groups.iter().any(|of| of.is_uneven(group));
        seconds += usize::from(second);
        all.extend(groups.iter().flat_map(|of| of.values(second)));
    }
    (all, seconds)
}

/// The integer nearest to a product that is rounded once.
fn rounded_product(x: f32, factor: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    x.mul_add(factor, MAGIC) - MAGIC
}

/// `1 / x` by two steps from a guess at the exponent.
fn reciprocal(x: f32) -> f32 {
    let guess = f32::from_bits(0x7ef3_d800 - x.to_bits());
    let error = (-x).mul_add(guess, 1.0);
    let guess = guess.mul_add(error.mul_add(error, error), guess);
    guess.mul_add((-x).mul_add(guess, 1.0), guess)
}

struct Group {
    x: Vec<f32>,
    inverse: f32,
    scale: f32,
    q: Vec<f32>,
}

impl Group {
    fn of(x: &[f32]) -> Group {
        let greatest = x.iter().fold(0.0f32, |greatest, x| greatest.max(x.abs()));
        let scale = greatest * (1.0 / 127.0);
        let inverse = reciprocal(scale.max(1e-32));
        let q = x.iter().map(|x| rounded_product(*x, inverse)).collect();
        Group { x: x.to_vec(), inverse, scale, q }
    }

    /// Whether a few elements are far larger than the others: magnitudes are less than 4, or 9 of any 32, on the mean.
    fn is_uneven(&self, group: usize) -> bool {
        let magnitudes: f32 = self.q.iter().map(|q| q.abs()).sum();
        magnitudes > 0.0 && magnitudes < (group * if group == 256 { 4 } else { 9 }) as f32
    }

    fn values(&self, second: bool) -> Vec<f64> {
        let value = |(x, q): (&f32, &f32)| {
            let residual = (-self.scale).mul_add(*q, *x);
            let r = if second { rounded_product(residual, self.inverse * 254.0) } else { 0.0 };
            let finer = self.scale * (1.0 / 254.0);
            f64::from(self.scale) * f64::from(*q) + f64::from(finer) * f64::from(r)
        };
        self.x.iter().zip(&self.q).map(value).collect()
    }
}
