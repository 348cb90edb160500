//! Constraints: which tokens may come next.

use crate::{Error, Result};
use std::fmt::Debug;

/// Says, token by token, what a text may go on with: a grammar, or rules of one's own.
///
/// ```
/// use kiln::model::{Constraint, TokenSet};
///
/// /// Ids that rise.
/// #[derive(Debug)]
/// struct Rising(u32);
///
/// impl Constraint for Rising {
///     fn restrict(&mut self, allowed: &mut TokenSet) -> kiln::Result<()> {
///         (0..self.0).for_each(|id| allowed.remove(id));
///         Ok(())
///     }
///
///     fn accept(&mut self, id: u32) -> kiln::Result<()> {
///         self.0 = id + 1;
///         Ok(())
///     }
/// }
/// ```
pub trait Constraint: Debug + Send {
    /// Removes from `allowed`, which has the whole vocabulary, what may not come next. Where one id is left, the model need
    /// not be asked. On the persistent path the model is at work meanwhile: time that this takes counts where it is more
    /// than a token's.
    ///
    /// # Errors
    /// Its own; the generation ends with it.
    fn restrict(&mut self, allowed: &mut TokenSet) -> Result<()>;

    /// Takes the token that was chosen, one that it has allowed.
    ///
    /// # Errors
    /// Its own; the generation ends with it.
    fn accept(&mut self, id: u32) -> Result<()>;
}

/// Ids of a vocabulary, a bit each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSet {
    words: Vec<u32>,
    vocab: u32,
}

impl TokenSet {
    /// All ids of a vocabulary.
    pub fn all(vocab: u32) -> TokenSet {
        let mut all = TokenSet { words: vec![u32::MAX; vocab.div_ceil(32) as usize], vocab };
        all.trim();
        all
    }

    /// The size of the vocabulary.
    pub fn vocab(&self) -> u32 {
        self.vocab
    }

    /// Whether an id is among them.
    pub fn contains(&self, id: u32) -> bool {
        self.words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
    }

    /// Takes an id out.
    pub fn remove(&mut self, id: u32) {
        if let Some(word) = self.words.get_mut(id as usize / 32) {
            *word &= !(1 << (id % 32));
        }
    }

    /// Leaves those whose bits are set in `words`, 32 ids in each, the least in the lowest bit. Ids beyond the words are
    /// taken out.
    pub fn keep(&mut self, words: &[u32]) {
        let others = words.iter().copied().chain(std::iter::repeat(0));
        self.words.iter_mut().zip(others).for_each(|(word, other)| *word &= other);
    }

    /// Puts all ids back.
    pub(crate) fn fill(&mut self) {
        self.words.fill(u32::MAX);
        self.trim();
    }

    /// The id that is left, if it is the only one.
    pub fn only(&self) -> Option<u32> {
        let mut some = self.words.iter().zip(0u32..).filter(|(word, _)| **word != 0);
        let (word, index) = some.next()?;
        (word.count_ones() == 1 && some.next().is_none()).then(|| 32 * index + word.trailing_zeros())
    }

    /// Gives -inf to the logits, `[vocab]`, of ids that are not among them.
    pub fn mask(&self, logits: &mut [f32]) {
        let (full, least) = (u32::MAX, f32::NEG_INFINITY);
        let words = self.words.iter().chain(std::iter::repeat(&0));
        for (logits, word) in logits.chunks_mut(32).zip(words).filter(|(_, word)| **word != full) {
            let barred = logits.iter_mut().zip(0..).filter(|(_, bit)| word >> bit & 1 == 0);
            barred.for_each(|(logit, _)| *logit = least);
        }
    }

    /// A bit for each id, the least in the lowest bit of the first word.
    pub(crate) fn words(&self) -> &[u32] {
        &self.words
    }

    /// Clears the bits beyond the vocabulary.
    fn trim(&mut self) {
        if let (Some(last), rest @ 1..) = (self.words.last_mut(), self.vocab % 32) {
            *last &= (1 << rest) - 1;
        }
    }
}

/// A constraint, and the set that it is asked about.
#[derive(Debug)]
pub(crate) struct Constrained {
    rules: Box<dyn Constraint>,
    allowed: TokenSet,
}

impl Constrained {
    pub(crate) fn new(rules: Box<dyn Constraint>) -> Constrained {
        Constrained { rules, allowed: TokenSet::all(0) }
    }

    /// What may come at a position and is not banned.
    pub(crate) fn allowed(&mut self, vocab: u32, banned: &[u32], position: usize) -> Result<&TokenSet> {
        if self.allowed.vocab == vocab {
            self.allowed.fill();
        } else {
            self.allowed = TokenSet::all(vocab);
        }
        self.rules.restrict(&mut self.allowed)?;
        if self.allowed.vocab != vocab {
            // They have put another set in its place.
            let mut all = TokenSet::all(vocab);
            all.keep(&self.allowed.words);
            self.allowed = all;
        }
        banned.iter().for_each(|id| self.allowed.remove(*id));
        match self.allowed.words.iter().all(|word| *word == 0) {
            true => Err(Error::NoTokenAllowed { position }),
            false => Ok(&self.allowed),
        }
    }

    pub(crate) fn accept(&mut self, id: u32) -> Result<()> {
        self.rules.accept(id)
    }
}
