//! Stop strings in text that comes in pieces.

use super::TextError;

/// Ends text at the first of several strings. What may be the beginning of one is held back until it is sure.
///
/// ```
/// # use kiln::text::StopStrings;
/// let mut stop = StopStrings::new(["\nUser:", "END"])?;
/// let mut shown = String::new();
/// assert_eq!(stop.push("one E", &mut shown), None);
/// assert_eq!(shown, "one ");
/// assert_eq!(stop.push("nough\nUs", &mut shown), None);
/// assert_eq!(shown, "one Enough");
/// assert_eq!(stop.push("er: two", &mut shown), Some(0));
/// assert_eq!(shown, "one Enough");
/// # Ok::<(), kiln::text::TextError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    strings: Vec<String>,
    held: String,
}

impl StopStrings {
    /// These strings; without any, nothing is held back.
    ///
    /// # Errors
    /// [`TextError::EmptyStopString`] for an empty one, which would end every text before it begins.
    pub fn new<S: Into<String>>(strings: impl IntoIterator<Item = S>) -> Result<StopStrings, TextError> {
        let strings: Vec<String> = strings.into_iter().map(Into::into).collect();
        match strings.iter().any(String::is_empty) {
            true => Err(TextError::EmptyStopString),
            false => Ok(StopStrings { strings, held: String::new() }),
        }
    }

    /// Takes text, and appends to `sure` what is now known to stand before any stop string. Gives the place, among the
    /// strings, of the one whose end came first, of several with that end the longest: it and what follows are dropped.
    pub fn push(&mut self, text: &str, sure: &mut String) -> Option<usize> {
        self.held.push_str(text);
        let ends = self.strings.iter().zip(0..).filter_map(|(string, index)| {
            let start = self.held.find(string)?;
            Some((start + string.len(), start, index))
        });
        if let Some((_, start, index)) = ends.min() {
            sure.push_str(&self.held[..start]);
            self.held.clear();
            return Some(index);
        }
        let waits = self.strings.iter().map(|string| overlap(&self.held, string)).max().unwrap_or(0);
        let done = self.held.len() - waits;
        sure.push_str(&self.held[..done]);
        self.held.drain(..done);
        None
    }

    /// Ends the text: what was held back is sure.
    pub fn finish(&mut self, sure: &mut String) {
        sure.push_str(&self.held);
        self.held.clear();
    }
}

/// Bytes at the end of `text` that `string` begins with, fewer than all of it. Both are UTF-8, so that they are whole
/// characters.
fn overlap(text: &str, string: &str) -> usize {
    let (text, string) = (text.as_bytes(), string.as_bytes());
    let longest = text.len().min(string.len() - 1);
    (1..=longest).rev().find(|len| text.ends_with(&string[..*len])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::StopStrings;

    /// The text before the stop string that a search of the whole text finds first, and its place.
    fn expected(text: &str, strings: &[&str]) -> (String, Option<usize>) {
        for end in 0..=text.len() {
            let found =
                strings.iter().zip(0..).filter(|(string, _)| text.as_bytes()[..end].ends_with(string.as_bytes()));
            if let Some((string, index)) = found.max_by_key(|(string, index)| (string.len(), -index)) {
                return (text[..end - string.len()].to_owned(), Some(index as usize));
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn however_text_is_cut_it_ends_at_the_same_place() {
        let sets: [&[&str]; 6] =
            [&["aab"], &["ab", "b"], &["ba", "aaab", "é"], &["aé", "éa"], &["abab", "bab"], &["日本", "本a"]];
        let mut state = 7u32;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as usize % below
        };
        let alphabet = ["a", "b", "é", "日", "本"];
        for round in 0..3000 {
            let strings = sets[round % sets.len()];
            let text: String = (0..random(12)).map(|_| alphabet[random(alphabet.len())]).collect();
            let mut stop = StopStrings::new(strings.iter().copied()).expect("none is empty");
            let (mut sure, mut found, mut piece) = (String::new(), None, String::new());
            for c in text.chars() {
                piece.push(c);
                if random(3) == 0 && found.is_none() {
                    found = stop.push(&piece, &mut sure);
                    piece.clear();
                    assert!(text.starts_with(&sure), "{text:?} {strings:?}: {sure:?}");
                }
            }
            if found.is_none() {
                found = stop.push(&piece, &mut sure);
            }
            if found.is_none() {
                stop.finish(&mut sure);
            }
            assert_eq!((sure, found), expected(&text, strings), "{text:?} {strings:?}");
        }
    }

    #[test]
    fn nothing_is_held_back_that_begins_no_stop_string() {
        let mut stop = StopStrings::new(["xyz"]).expect("it is not empty");
        let mut sure = String::new();
        for (text, shown) in [("abc", "abc"), ("x", "abc"), ("x", "abcx"), ("y", "abcx"), ("a", "abcxxya")] {
            assert_eq!(stop.push(text, &mut sure), None);
            assert_eq!(sure, shown);
        }
        assert!(StopStrings::new(["a", ""]).is_err());
    }
}
