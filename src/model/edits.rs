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
    /// A bit for each id of the vocabulary.
    mask: Option<MappedBuffer<u32>>,
}

impl Edits {
    /// Writes a sampling's biases and bans, where its choice has them; gives the choice with their addresses.
    pub(crate) fn prepare(&mut self, model: &Inner, sampling: &Sampling, mut choice: Choice) -> Result<Choice> {
        let (device, vocab) = (&model.device, model.file.shape().vocab);
        let flags = choice[choice::FLAGS as usize];
        let mut put = |word: u32, value: u64| {
            choice[word as usize] = value as u32;
            choice[word as usize + 1] = (value >> 32) as u32;
        };
        let mut count = 0;
        if flags & choice::HAS_BIASES != 0 {
            let biases = sampling.biases();
            let pairs: Vec<u64> =
                biases.into_iter().map(|(id, bias)| u64::from(bias.to_bits()) << 32 | u64::from(id)).collect();
            count = pairs.len() as u32;
            let memory = match self.biases.take_if(|memory| memory.len() >= pairs.len()) {
                Some(memory) => self.biases.insert(memory),
                None => {
                    let _quiet = device.context().quiesce()?;
                    self.biases.insert(DeviceBuffer::zeroed(device, pairs.len().next_power_of_two())?)
                }
            };
            memory.copy_from_host(0, &pairs)?;
            put(choice::BIASES, memory.as_ptr().address());
        }
        if flags & choice::HAS_MASK != 0 {
            let mask = match self.mask.take() {
                Some(mask) => self.mask.insert(mask),
                None => {
                    let _quiet = device.context().quiesce()?;
                    self.mask.insert(MappedBuffer::zeroed(device, vocab.div_ceil(32) as usize)?)
                }
            };
            put(choice::MASK, mask.as_ptr().address());
            self.allow(&TokenSet::all(vocab), &sampling.banned);
        }
        choice[choice::BIAS_COUNT as usize] = count;
        Ok(choice)
    }

    /// Allows other ids to the next item: those of a set that are not banned.
    pub(crate) fn allow(&self, allowed: &TokenSet, banned: &[u32]) {
        let words = self.mask.as_ref().map(MappedBuffer::words).unwrap_or_default();
        for (word, bits) in words.iter().zip(allowed.words()) {
            word.store(*bits, Ordering::Relaxed);
        }
        for id in banned {
            if let Some(word) = words.get(*id as usize / 32) {
                word.fetch_and(!(1 << (id % 32)), Ordering::Relaxed);
            }
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
