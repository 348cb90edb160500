//! The choice of tokens on the stream and graph paths, where it is not plainly the greatest logit's.

use super::Inner;
use crate::Result;
use crate::driver::{DeviceBuffer, Use};
use crate::shape::choice::{self, Choice, memory, step};

/// The memory of a session's choices on a stream.
pub(crate) struct Choosing {
    /// The words of the choice, `[choice::WORDS]`.
    pub(crate) words: DeviceBuffer<u32>,
    /// What it adds up in, `[memory::words]`.
    pub(crate) memory: DeviceBuffer<u32>,
}

/// What a choice takes besides treating logits and settling on a token: launches are recorded by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Steps {
    weighs: bool,
    sifts: bool,
}

impl Steps {
    /// Those of a choice; none where the greatest logit is taken as it is.
    pub(crate) fn of(choice: &Choice) -> Option<Steps> {
        let flags = choice[choice::FLAGS as usize];
        let has = |flag| flags & flag != 0;
        (flags != 0).then(|| Steps { weighs: has(choice::FILTERS | choice::LOGPROB), sifts: has(choice::DRAWS) })
    }

    /// In their order.
    pub(crate) fn each(self) -> impl Iterator<Item = u32> {
        let all = [(true, step::TREAT), (self.weighs, step::WEIGH), (self.sifts, step::SIFT), (true, step::SETTLE)];
        all.into_iter().filter(|(runs, _)| *runs).map(|(_, step)| step)
    }
}

/// Words of the memory for a vocabulary.
const fn words(vocab: u32) -> u64 {
    memory::words(vocab.div_ceil(choice::ROWS), vocab)
}

impl Choosing {
    /// Has what an item's tokens are chosen with on the device, in `place`; gives the steps, where the choice is not plainly
    /// the greatest logit's.
    pub(crate) fn prepare(place: &mut Option<Choosing>, model: &Inner, choice: &Choice) -> Result<Option<Steps>> {
        let Some(steps) = Steps::of(choice) else { return Ok(None) };
        let choosing = match place {
            Some(choosing) => choosing,
            none => none.insert(Choosing::new(model)?),
        };
        choosing.words.copy_from_host(0, choice)?;
        Ok(Some(steps))
    }

    fn new(model: &Inner) -> Result<Choosing> {
        let device = &model.device;
        let _quiet = device.context().quiesce()?;
        Ok(Choosing {
            words: DeviceBuffer::zeroed(device, choice::WORDS as usize)?,
            memory: DeviceBuffer::zeroed(device, words(model.file.shape().vocab) as usize)?,
        })
    }

    /// Bytes of device memory that it takes.
    pub(crate) const fn bytes(vocab: u32) -> u64 {
        4 * (words(vocab) + choice::WORDS as u64)
    }

    /// The log-probability of the last token, where the choice wants one.
    pub(crate) fn logprob(&self) -> Result<f32> {
        let mut word = [0];
        self.memory.copy_to_host(memory::LOGPROB as usize, &mut word)?;
        Ok(f32::from_bits(word[0]))
    }

    pub(crate) fn uses(&self) -> impl Iterator<Item = Use<'_>> {
        [self.words.reads("words of the choice"), self.memory.writes("memory of the choice")].into_iter()
    }
}
