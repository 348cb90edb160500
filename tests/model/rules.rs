//! Rules by chance, the same again from a clone.

use crate::random::Random;
use kiln::model::{Constraint, TokenSet};
use std::time::Duration;

/// Ids that may be banned beside [`Few`].
pub(crate) const BANNED: [u32; 3] = [5, 6, 7];

/// Allows a few ids at each position, of which one at least is not banned: now and then only that, and so several times in a
/// row. Sometimes it takes longer than a token.
#[derive(Debug, Clone)]
pub(crate) struct Few(pub(crate) Random);

impl Constraint for Few {
    fn restrict(&mut self, allowed: &mut TokenSet) -> kiln::Result<()> {
        let Few(random) = self;
        let some = 8 + random.below(allowed.vocab() - 8);
        let count = [0, 0, 1, 40][random.below(4) as usize];
        let kept: Vec<u32> = (0..count).map(|_| random.below(allowed.vocab())).chain([some]).chain(BANNED).collect();
        let kept = if count == 0 { &[some][..] } else { &kept };
        (0..allowed.vocab()).filter(|id| !kept.contains(id)).for_each(|id| allowed.remove(id));
        if random.below(6) == 0 {
            std::thread::sleep(Duration::from_millis(u64::from(random.below(40))));
        }
        Ok(())
    }

    fn accept(&mut self, _: u32) -> kiln::Result<()> {
        Ok(())
    }
}
