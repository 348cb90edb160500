//! Random numbers for tests: fresh on every run, and the seed is in the output of a test that fails.
//!
//! All tests of a run draw from one seed, each from its beginning: `KILN_SEED=SEED cargo test --test FILE NAME` repeats
//! the inputs of any of them, in whatever order and on however many threads they run.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// SplitMix64: one addition and three multiplications a number, and every seed is a good one.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Numbers that differ from run to run, or those of the seed in `KILN_SEED`. Says which: shown where a test fails.
    pub fn fresh() -> Random {
        static SEED: OnceLock<u64> = OnceLock::new();
        let seed = *SEED.get_or_init(|| match std::env::var("KILN_SEED") {
            Ok(seed) => seed.parse().expect("KILN_SEED is a number"),
            Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64),
        });
        println!("random inputs: again with KILN_SEED={seed}");
        Random(seed)
    }

    /// Other numbers, which these decide.
    pub fn fork(&mut self) -> Random {
        Random(self.next())
    }

    #[allow(clippy::should_implement_trait)] // there is always a next one
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        (((self.next() >> 32) * u64::from(end)) >> 32) as u32
    }

    /// Uniform in -1 to 1.
    pub fn symmetric(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// `len` numbers, uniform in `-scale` to `scale`.
    pub fn floats(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| self.symmetric() * scale).collect()
    }

    /// So many of the cases, in their order, by chance; all with `KILN_TEST_LONG=1` or `KILN_TEST_ALL_CASES=1`. Says how many
    /// are left out.
    pub fn some_of<T>(&mut self, count: usize, cases: impl IntoIterator<Item = T>) -> Vec<T> {
        let mut cases: Vec<T> = cases.into_iter().collect();
        if ["KILN_TEST_LONG", "KILN_TEST_ALL_CASES"].iter().any(|name| std::env::var_os(name).is_some()) {
            return cases;
        }
        let all = cases.len();
        while cases.len() > count {
            cases.remove(self.below(cases.len() as u32) as usize);
        }
        println!("SKIPPED: {} of {all} cases, by chance; set KILN_TEST_ALL_CASES=1 to run all", all - cases.len());
        cases
    }

    /// Random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend(self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}
