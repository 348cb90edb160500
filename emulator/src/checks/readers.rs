//! Readers of a word since its last write, from the second one on.
//!
//! As in [FastTrack](https://doi.org/10.1145/1542476.1542490) all reads that are not ordered are kept, since a later
//! write must follow each of them. A set of readers is a list whose tail other sets share, and equal lists are one:
//! words that the same threads read in the same order cost a number each.

use super::record::{BLOCK, BYTES, CLOCK, LANE, PROXY, Record, SITE, STRENGTH, WARP};
use crate::machine::lanes::Lanes;
use crate::machine::lock::lock;
use crate::machine::mix::MixMap;
use std::sync::{Mutex, MutexGuard};

/// Most lists of a page or block; beyond, further readers are not kept.
const MOST: usize = 1 << 21;
/// Reads, latest first, among which a new one looks for those that it replaces.
const LATEST: usize = 256;
/// Additions that are remembered of a page of device memory, and of a block's shared memory, as powers of two.
const OF_PAGE: u32 = 8;
const OF_BLOCK: u32 = 12;

/// Reads by lanes of one warp at one clock, and the list of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Node {
    rest: u32,
    lanes: u32,
    /// Without its lane.
    read: Record,
}

/// The sets of readers of a page's or a block's words. A set's number is that of its first node; 0 is the empty one.
#[derive(Debug)]
pub(crate) struct Readers {
    nodes: Vec<Node>,
    /// Of each list the blocks that read, a bit for all whose numbers are alike modulo 64.
    blocks: Vec<u64>,
    known: MixMap<Node, u32>,
    /// A read, the set that it came to, and what became of it.
    recent: Vec<(Record, Record, Record)>,
    /// The last of these: words of a vector have the same.
    last: (Record, Record, Record),
    bits: u32,
}

impl Default for Readers {
    /// Those of a page of device memory.
    fn default() -> Readers {
        let (nodes, blocks, known, recent) = (Vec::new(), Vec::new(), MixMap::default(), Vec::new());
        Readers { nodes, blocks, known, recent, last: Default::default(), bits: OF_PAGE }
    }
}

impl Readers {
    /// Those of a block's shared memory.
    pub(crate) fn of_block() -> Readers {
        Readers { bits: OF_BLOCK, ..Readers::default() }
    }

    fn node(&self, set: u32) -> Option<Node> {
        (set as usize).checked_sub(1).and_then(|i| self.nodes.get(i)).copied()
    }

    fn nodes(&self, set: Record) -> impl Iterator<Item = Node> {
        std::iter::successors(self.node(set.set_number()), |node| self.node(node.rest))
    }

    fn blocks_of(&self, set: u32) -> u64 {
        (set as usize).checked_sub(1).and_then(|i| self.blocks.get(i)).copied().unwrap_or(0)
    }

    /// The list with a node in front. Where there are too many, the list as it is.
    fn push(&mut self, rest: u32, lanes: u32, read: Record) -> u32 {
        let node = Node { rest, lanes, read };
        if let Some(&number) = self.known.get(&node) {
            return number;
        }
        if self.nodes.len() >= MOST {
            return rest;
        }
        self.nodes.push(node);
        self.blocks.push(self.blocks_of(rest) | bit(read));
        let number = self.nodes.len() as u32;
        self.known.insert(node, number);
        number
    }

    /// The first read of a set for which something holds.
    pub(crate) fn find(&self, set: Record, holds: impl Fn(Record) -> bool) -> Option<Record> {
        let each = self.nodes(set).flat_map(|node| Lanes(node.lanes).map(move |l| node.read.with(LANE, l as u32)));
        each.into_iter().find(|read| holds(*read))
    }

    /// Adds a read to the reads since the last write, one or a set, without those that precede it: none of other blocks
    /// where it `knows_others` not.
    #[inline(always)]
    pub(crate) fn add(
        &mut self,
        reads: Record,
        me: Record,
        precedes: impl Fn(Record) -> bool,
        knows_others: impl Fn() -> bool,
    ) -> Record {
        if (self.last.0, self.last.1) == (me, reads) {
            return self.last.2;
        }
        let place = ((reads.0 ^ me.0.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - self.bits)) as usize;
        let after = match self.recent.get(place) {
            Some(&(read, before, after)) if (read, before) == (me, reads) => after,
            _ => self.extend_at(place, reads, me, precedes, knows_others()),
        };
        self.last = (me, reads, after);
        after
    }

    #[cold]
    #[inline(never)]
    fn extend_at(
        &mut self,
        place: usize,
        reads: Record,
        me: Record,
        precedes: impl Fn(Record) -> bool,
        knows_others: bool,
    ) -> Record {
        if self.recent.is_empty() {
            self.recent = vec![Default::default(); 1 << self.bits];
        }
        let after = self.extend(reads, me, precedes, knows_others);
        self.recent[place] = (me, reads, after);
        after
    }

    /// A copy in flight, one of the reads since the last write, has landed.
    pub(crate) fn land(&mut self, reads: Record, me: Record) -> Record {
        self.extend(reads, me, |read| read.is_in_flight() && read.is_by(me), false)
    }

    /// Adds a read without those that it replaces, as far as these are among the latest: of other blocks only where
    /// `of_others`.
    fn extend(&mut self, reads: Record, me: Record, replaces: impl Fn(Record) -> bool, of_others: bool) -> Record {
        let all = match reads.is_set() {
            true => reads.set_number(),
            false => self.push(0, 1 << reads.get(LANE), reads.without(LANE)),
        };
        let lane = 1 << me.get(LANE);
        // The nodes down to the last that loses lanes, by number, and the list behind it.
        let (mut mine, mut dropped, mut rest) = (me, None, all);
        // What is left of the lanes of a node; none where the read is covered by it.
        let left = |node: &Node| {
            let mut lanes = node.lanes;
            if !of_others && node.read.get(BLOCK) != me.get(BLOCK) {
                return Some(lanes);
            }
            let now = node.read.0 >> WARP.0 == me.0 >> WARP.0 && node.read.get(CLOCK) == me.get(CLOCK);
            if now && lanes & lane != 0 && [STRENGTH, PROXY].iter().all(|&part| node.read.get(part) == me.get(part)) {
                if me.get(BYTES) & !node.read.get(BYTES) == 0 {
                    return None;
                }
                lanes &= !lane;
            }
            // Of the lanes that read together mostly none, or all, happen before; of those at this clock none does.
            for l in Lanes(if now { lanes & lane } else { lanes }) {
                if replaces(node.read.with(LANE, l as u32)) {
                    lanes &= !(1 << l);
                } else if !node.read.is_in_flight() {
                    break;
                }
            }
            Some(lanes)
        };
        for i in 1..=LATEST {
            // Mostly a block reads but once what others read as well.
            let ours = of_others || self.blocks_of(rest) & bit(me) != 0;
            let Some(node) = self.node(rest).filter(|_| ours) else { break };
            let Some(lanes) = left(&node) else { return Record::of_set(all, reads) };
            if node.lanes & !lanes & lane != 0 && node.read.with(LANE, me.get(LANE)).is_alike(me) {
                mine = me.without(BYTES).with(BYTES, me.get(BYTES) | node.read.get(BYTES));
            }
            rest = node.rest;
            if lanes != node.lanes {
                dropped = Some((i, rest));
            }
        }
        let mut set = all;
        if let Some((many, behind)) = dropped {
            let latest: Vec<Node> = self.nodes(Record::of_set(all, reads)).take(many).collect();
            let kept = latest.iter().rev().filter_map(|node| Some((node, left(node).filter(|lanes| *lanes != 0)?)));
            let kept: Vec<(&Node, u32)> = kept.collect();
            set = kept.into_iter().fold(behind, |set, (node, lanes)| self.push(set, lanes, node.read));
        }
        let read = mine.without(LANE);
        set = match self.node(set) {
            Some(first) if first.read.without(SITE) == read.without(SITE) => {
                self.push(first.rest, first.lanes | lane, first.read)
            }
            _ => self.push(set, lane, read),
        };
        let bytes = me.get(BYTES) | reads.get(BYTES);
        let strength = me.get(STRENGTH).min(reads.get(STRENGTH));
        Record::of_set(set, Record::default().with(BYTES, bytes).with(STRENGTH, strength))
    }
}

/// The bit of a read's block.
fn bit(read: Record) -> u64 {
    1 << (read.get(BLOCK) % 64)
}

/// Readers that one thread of the host uses, or several.
pub(crate) trait Held {
    /// Whether no other thread of the host changes cells or readers meanwhile.
    const ALONE: bool;
    fn with<T>(&mut self, f: impl FnOnce(&mut Readers) -> T) -> T;
}

impl Held for &mut Readers {
    const ALONE: bool = true;
    #[inline(always)]
    fn with<T>(&mut self, f: impl FnOnce(&mut Readers) -> T) -> T {
        f(self)
    }
}

/// The readers of a page, locked from their first use on.
#[derive(Default)]
pub(crate) struct PageReaders<'a> {
    of: Option<&'a Mutex<Readers>>,
    locked: Option<MutexGuard<'a, Readers>>,
}

impl<'a> PageReaders<'a> {
    /// Goes on to a page's readers, and leaves those of another page.
    #[inline(always)]
    pub(crate) fn go_to(&mut self, readers: &'a Mutex<Readers>) -> &mut PageReaders<'a> {
        if self.of.is_none_or(|of| !std::ptr::eq(of, readers)) {
            *self = PageReaders { of: Some(readers), locked: None };
        }
        self
    }
}

impl Held for &mut PageReaders<'_> {
    const ALONE: bool = false;
    #[inline(always)]
    fn with<T>(&mut self, f: impl FnOnce(&mut Readers) -> T) -> T {
        match self.of {
            Some(readers) => f(self.locked.get_or_insert_with(|| lock(readers))),
            None => f(&mut Readers::default()),
        }
    }
}

impl Held for &Mutex<Readers> {
    const ALONE: bool = false;
    fn with<T>(&mut self, f: impl FnOnce(&mut Readers) -> T) -> T {
        f(&mut lock(self))
    }
}

impl Record {
    /// A set of readers in the place of one: its number, with the bytes that any has read, and the least strength.
    fn of_set(number: u32, summary: Record) -> Record {
        let set = Record(u64::from(number)).with(BLOCK, SET);
        set.with(BYTES, summary.get(BYTES)).with(STRENGTH, summary.get(STRENGTH))
    }

    /// Whether it stands for a set of readers.
    #[inline(always)]
    pub(crate) fn is_set(self) -> bool {
        self.get(BLOCK) == SET
    }

    fn set_number(self) -> u32 {
        self.0 as u32
    }

    /// Whether it is by the same thread as another, at the same clock and with the same strength.
    fn is_alike(self, other: Record) -> bool {
        self.is_by(other) && [CLOCK, STRENGTH, PROXY].iter().all(|&part| self.get(part) == other.get(part))
    }

    /// Whether it is by the same thread as another.
    pub(crate) fn is_by(self, other: Record) -> bool {
        [BLOCK, WARP, LANE].iter().all(|&part| self.get(part) == other.get(part))
    }
}

/// The block that stands for a set: those that are checked have lower numbers.
const SET: u32 = super::record::MAX_BLOCK;
