//! What changes logits before a choice on the device, besides penalties: biases, and the mask of allowed ids.

use super::Inner;
use super::sampling::{Sampling, TokenSet};
use crate::Result;
use crate::driver::{DeviceBuffer, MappedBuffer, Use};
use crate::shape::choice::{self, Choice, mask};
use std::sync::atomic::Ordering;

/// A session's memory for them, made for the first choice that has some. An item's choice has the addresses: nothing but a
/// mask that it awaits is written while there is an item.
#[derive(Default)]
pub(crate) struct Edits {
    /// An id in the lower half, a float in the upper one.
    biases: Option<DeviceBuffer<u64>>,
    /// The mask of bans, as [`mask`] has it.
    bans: Option<DeviceBuffer<u32>>,
    /// The mask that the host writes for each token, as [`mask`] has it.
    allowed: Option<MappedBuffer<u32>>,
}

impl Edits {
    /// Writes a sampling's biases, and its bans where no constraint says what is allowed, if its choice has them; gives the
    /// choice with the addresses.
    pub(crate) fn prepare(
        &mut self,
        model: &Inner,
        sampling: &Sampling,
        constrained: bool,
        mut choice: Choice,
    ) -> Result<Choice> {
        let (device, vocab) = (&model.device, model.file.shape().vocab);
        let flags = choice[choice::FLAGS as usize];
        if flags & choice::HAS_BIASES != 0 {
            let pair = |(id, bias): (u32, f32)| u64::from(bias.to_bits()) << 32 | u64::from(id);
            let pairs: Vec<u64> = sampling.biases().into_iter().map(pair).collect();
            // A resident kernel does not wait for copies.
            let _quiet = device.context().quiesce()?;
            if self.biases.as_ref().is_none_or(|memory| memory.len() < pairs.len()) {
                self.biases = Some(DeviceBuffer::zeroed(device, pairs.len().next_power_of_two())?);
            }
            if let Some(memory) = &mut self.biases {
                memory.copy_from_host(0, &pairs)?;
                put_long(&mut choice, choice::BIASES, memory.as_ptr().address());
            }
            choice[choice::BIAS_COUNT as usize] = pairs.len() as u32;
        }
        if flags & choice::HAS_MASK == 0 {
            return Ok(choice);
        }
        let words = mask_words(vocab) as usize;
        if constrained {
            let allowed = match self.allowed.take() {
                Some(allowed) => allowed,
                None => {
                    let _quiet = device.context().quiesce()?;
                    MappedBuffer::zeroed(device, words)?
                }
            };
            put_long(&mut choice, choice::MASK, allowed.as_ptr().address());
            self.allowed = Some(allowed);
            return Ok(choice);
        }
        let mut left = TokenSet::all(vocab);
        sampling.banned.iter().for_each(|id| left.remove(*id));
        let _quiet = device.context().quiesce()?;
        if self.bans.is_none() {
            self.bans = Some(DeviceBuffer::zeroed(device, words)?);
        }
        if let Some(bans) = &mut self.bans {
            bans.copy_from_host(mask::BITS as usize, left.words())?;
            put_long(&mut choice, choice::MASK, bans.as_ptr().address());
        }
        Ok(choice)
    }

    /// Says which ids are allowed at a position. No token is being chosen by the mask meanwhile: either there is no item, or
    /// it awaits this one.
    pub(crate) fn allow(&self, allowed: &TokenSet, position: u32) {
        let words = self.allowed.as_ref().map(MappedBuffer::words).unwrap_or_default();
        let Some((head, words)) = words.split_at_checked(mask::BITS as usize) else { return };
        for (word, bits) in words.iter().zip(allowed.words()) {
            word.store(*bits, Ordering::Relaxed);
        }
        if let Some(word) = head.get(mask::POSITION as usize) {
            word.store(position, Ordering::Release);
        }
    }

    /// Bytes of device memory that it takes at most.
    pub(crate) const fn bytes(vocab: u32) -> u64 {
        8 * vocab.next_power_of_two() as u64 + 4 * mask_words(vocab) as u64
    }

    pub(crate) fn uses(&self) -> impl Iterator<Item = Use<'_>> {
        let biases = self.biases.as_ref().map(|biases| biases.reads("biases"));
        let bans = self.bans.as_ref().map(|bans| bans.reads("mask of bans"));
        let allowed = self.allowed.as_ref().map(|allowed| allowed.reads("mask of allowed ids"));
        [biases, bans, allowed].into_iter().flatten()
    }
}

/// Words of a mask.
const fn mask_words(vocab: u32) -> u32 {
    mask::BITS + vocab.div_ceil(32)
}

/// Puts 64 bits into a choice.
fn put_long(choice: &mut Choice, word: u32, value: u64) {
    choice[word as usize] = value as u32;
    choice[word as usize + 1] = (value >> 32) as u32;
}
