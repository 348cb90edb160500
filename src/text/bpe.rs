//! Byte-pair merging of one word, in `n log n` whatever the word.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use kiln_shape::gguf::Strings;

use super::{TextError, byte_level};

/// Longer words are cut, so that positions fit 32 bits. No text that is one word of this length has a right answer.
const LONGEST_WORD: usize = 1 << 30;

/// The merge rules, over symbols. A symbol is a token id, or, from `vocab` on, an intermediate text without an id.
#[derive(Debug)]
pub(super) struct Bpe {
    bytes: [u32; 256],
    merges: HashMap<(u32, u32), Merge>,
    vocab: u32,
    no_tokens: Vec<Vec<u8>>,
}

#[derive(Debug, Clone, Copy)]
struct Merge {
    rank: u32,
    merged: u32,
}

impl Bpe {
    /// The rules from the ids of all token texts and the file's merges, best first.
    pub(super) fn new(ids: &HashMap<&str, u32>, vocab: u32, merges: &Strings) -> Result<Bpe, TextError> {
        let mut bytes = [0; 256];
        for byte in 0..=255 {
            let text = byte_level::char_of(byte).to_string();
            let missing = TextError::MissingByte { byte };
            bytes[usize::from(byte)] = *ids.get(text.as_str()).ok_or(missing)?;
        }

        let mut bpe = Bpe { bytes, merges: HashMap::with_capacity(merges.len()), vocab, no_tokens: Vec::new() };
        let mut on_the_way: HashMap<String, u32> = HashMap::new();
        let mut symbol = |text: &str| match ids.get(text) {
            Some(&id) => id,
            None => *on_the_way.entry(text.into()).or_insert_with(|| {
                let mut spelled = Vec::new();
                byte_level::decode_into(text, &mut spelled);
                bpe.no_tokens.push(spelled);
                vocab + bpe.no_tokens.len() as u32 - 1
            }),
        };
        for (rank, rule) in merges.iter().enumerate() {
            // The left part is never empty, so a space in front belongs to it.
            let split = rule.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| rule.split_at(at));
            let Some((left, right)) = split.map(|(left, right)| (left, &right[1..])).filter(|(_, r)| !r.is_empty())
            else {
                return Err(TextError::InvalidMerge { index: rank, text: rule.into() });
            };
            let merge = Merge { rank: rank as u32, merged: symbol(&format!("{left}{right}")) };
            bpe.merges.entry((symbol(left), symbol(right))).or_insert(merge);
        }
        Ok(bpe)
    }

    /// The token of a single byte.
    pub(super) fn byte_token(&self, byte: u8) -> u32 {
        self.bytes[usize::from(byte)]
    }

    /// Appends the ids of `word`.
    pub(super) fn encode(&self, word: &[u8], work: &mut Work, out: &mut Vec<u32>) {
        if let [byte] = word {
            return out.push(self.byte_token(*byte));
        }
        for part in word.chunks(LONGEST_WORD) {
            work.merge(self, part);
            // Symbol 0 is never merged into another: the chain begins there.
            let mut at = 0;
            while let Some(piece) = work.pieces.get(at as usize) {
                match self.no_tokens.get(piece.symbol.wrapping_sub(self.vocab) as usize) {
                    Some(bytes) if piece.symbol >= self.vocab => out.extend(bytes.iter().map(|&b| self.byte_token(b))),
                    _ => out.push(piece.symbol),
                }
                at = piece.next;
            }
        }
    }
}

/// A part of the word: a link of a chain over the word's bytes.
#[derive(Debug, Clone, Copy)]
struct Piece {
    symbol: u32,
    previous: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;

/// A merge that was possible when it was found. Ordered by rank, then from left to right.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    symbols: (u32, u32),
    merged: u32,
}

/// Memory reused from word to word.
#[derive(Debug, Default)]
pub(super) struct Work {
    pieces: Vec<Piece>,
    candidates: BinaryHeap<Reverse<Candidate>>,
}

impl Work {
    fn merge(&mut self, bpe: &Bpe, word: &[u8]) {
        self.pieces.clear();
        self.pieces.extend(word.iter().enumerate().map(|(i, &byte)| Piece {
            symbol: bpe.byte_token(byte),
            previous: (i as u32).wrapping_sub(1),
            next: i as u32 + 1,
        }));
        if let Some(last) = self.pieces.last_mut() {
            last.next = NONE;
        }
        (0..self.pieces.len() as u32).for_each(|left| self.consider(bpe, left));

        while let Some(Reverse(Candidate { left, symbols, merged, .. })) = self.candidates.pop() {
            let piece = self.pieces[left as usize];
            let Some(&right) = self.pieces.get(piece.next as usize) else { continue };
            if (piece.symbol, right.symbol) != symbols {
                continue; // one of the two has been merged since
            }
            self.pieces[piece.next as usize].symbol = NONE;
            self.pieces[left as usize] = Piece { symbol: merged, next: right.next, ..piece };
            if let Some(after) = self.pieces.get_mut(right.next as usize) {
                after.previous = left;
            }
            self.consider(bpe, piece.previous);
            self.consider(bpe, left);
        }
    }

    /// Notes the merge of the piece at `left` with the one behind it, if there is a rule for it.
    fn consider(&mut self, bpe: &Bpe, left: u32) {
        let Some(piece) = self.pieces.get(left as usize) else { return };
        let Some(right) = self.pieces.get(piece.next as usize) else { return };
        let symbols = (piece.symbol, right.symbol);
        if let Some(&Merge { rank, merged }) = bpe.merges.get(&symbols) {
            self.candidates.push(Reverse(Candidate { rank, left, symbols, merged }));
        }
    }
}
