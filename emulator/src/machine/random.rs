//! Reproducible random numbers.

/// A xorshift generator.
pub(crate) struct Random(u64);

impl Random {
    /// The generator of one of a seed's streams.
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        Random((seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1)
    }

    /// The next number below `n`; `n` must not be zero.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}
