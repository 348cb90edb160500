//! Banks of shared memory.

use super::lanes::Lanes;

/// Passes that lanes take over 32 banks of 4 bytes, and those beyond the first. Accesses of 8 and 16 bytes are done for
/// halves and quarters of a warp.
pub(crate) fn passes(addr: &[u64; 32], m: u32, bytes: u64) -> (u32, u32) {
    let width = match bytes {
        0..=4 => 32,
        5..=8 => 16,
        _ => 8,
    };
    let (mut all, mut further, mut words) = (0, 0, Vec::with_capacity(32));
    for first in (0..32).step_by(width) {
        let mut banks = [0u8; 32];
        words.clear();
        for l in Lanes(m & (((1u64 << width) - 1) << first) as u32) {
            for word in addr[l] / 4..(addr[l] + bytes).div_ceil(4) {
                let bank = (word % 32) as usize;
                if banks[bank] == 0 || !words.contains(&word) {
                    banks[bank] += 1;
                    words.push(word);
                }
            }
        }
        let most = u32::from(banks.into_iter().max().unwrap_or(0));
        (all, further) = (all + most, further + most.saturating_sub(1));
    }
    (all.max(1), further)
}
