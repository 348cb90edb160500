//! Maps whose keys are few words that nobody chooses with care: addresses, numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map with a hash that takes a multiplication a word.
pub(crate) type MixMap<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;

/// A hash of few words.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }
    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}
