//! Random numbers.

/// Random numbers that a seed decides (xorshift).
pub(crate) struct Random(u64);

impl Random {
    /// Every `stream` of a seed is a sequence of its own.
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        Random((seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1)
    }

    /// A number below `n`, which is not zero.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}
