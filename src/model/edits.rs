//! What changes logits before a choice on the device, besides penalties: biases, and the mask of allowed ids.

use super::Inner;
use super::sampling::{Sampling, TokenSet};
use crate::Result;
use crate::driver::{DeviceBuffer, MappedBuffer, Use};
use crate::shape::choice::{self, Choice};
use std::sync::atomic::Ordering;

/// A session's memory for them, made for the first choice that has some. An item's choice has the addresses: nothing is
/// written while there is one.
#[derive(Default)]
pub(crate) struct Edits {
    /// An id in the lower half, a float in the upper one.
    biases: Option<DeviceBuffer<u64>>,
    /// As [`choice::mask`] has it.
    mask: Option<MappedBuffer<u32>>,
}

/// The position of a mask that is for no token: sequences end before it.
const NO_POSITION: u32 = u32::MAX;

impl Edits {
    /// Writes a sampling's biases and bans, where its choice has them; gives the choice with their addresses.
    pub(crate) fn prepare(&mut self, model: &Inner, sampling: &Sampling, mut choice: Choice) -> Result<Choice> {
        let (device, vocab) = (&model.device, model.file.shape().vocab);
        let flags = choice[choice::FLAGS as usize];
        if flags & choice::HAS_BIASES != 0 {
            let pair = |(id, bias): (u32, f32)| u64::from(bias.to_bits()) << 32 | u64::from(id);
            let pairs: Vec<u64> = sampling.biases().into_iter().map(pair).collect();
            if self.biases.as_ref().is_none_or(|memory| memory.len() < pairs.len()) {
                let _quiet = device.context().quiesce()?;
                self.biases = Some(DeviceBuffer::zeroed(device, pairs.len().next_power_of_two())?);
            }
            if let Some(memory) = &mut self.biases {
                memory.copy_from_host(0, &pairs)?;
                put_long(&mut choice, choice::BIASES, memory.as_ptr().address());
            }
            choice[choice::BIAS_COUNT as usize] = pairs.len() as u32;
        }
        if flags & choice::HAS_MASK != 0 {
            if self.mask.is_none() {
                let _quiet = device.context().quiesce()?;
                self.mask = Some(MappedBuffer::zeroed(device, (choice::mask::BITS + vocab.div_ceil(32)) as usize)?);
            }
            self.allow(&TokenSet::all(vocab), &sampling.banned, NO_POSITION);
            let address = self.mask.as_ref().map_or(0, |mask| mask.as_ptr().address());
            put_long(&mut choice, choice::MASK, address);
        }
        Ok(choice)
    }

    /// Allows other ids for a position: those of a set that are not banned. No token is being chosen by the mask meanwhile:
    /// either there is no item, or it awaits this one.
    pub(crate) fn allow(&self, allowed: &TokenSet, banned: &[u32], position: u32) {
        let words = self.mask.as_ref().map(MappedBuffer::words).unwrap_or_default();
        let Some((head, words)) = words.split_at_checked(choice::mask::BITS as usize) else { return };
        for (word, bits) in words.iter().zip(allowed.words()) {
            word.store(*bits, Ordering::Relaxed);
        }
        for id in banned {
            if let Some(word) = words.get(*id as usize / 32) {
                // The host alone writes it.
                let bits = word.load(Ordering::Relaxed) & !(1 << (id % 32));
                word.store(bits, Ordering::Relaxed);
            }
        }
        if let Some(word) = head.get(choice::mask::POSITION as usize) {
            word.store(position, Ordering::Release);
        }
    }

    /// Bytes of device memory that it takes at most.
    pub(crate) const fn bytes(vocab: u32) -> u64 {
        8 * vocab.next_power_of_two() as u64
    }

    pub(crate) fn uses(&self) -> impl Iterator<Item = Use<'_>> {
        let biases = self.biases.as_ref().map(|biases| biases.reads("biases"));
        biases.into_iter().chain(self.mask.as_ref().map(|mask| mask.reads("mask of allowed ids")))
    }
}

/// Puts 64 bits into a choice.
fn put_long(choice: &mut Choice, word: u32, value: u64) {
    choice[word as usize] = value as u32;
    choice[word as usize + 1] = (value >> 32) as u32;
}
