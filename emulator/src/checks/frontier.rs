//! Frontiers: the last work of each stream that is known to be done.

use std::collections::BTreeMap;

/// A stream: the handle of its context, and its number there.
pub(crate) type Stream = (usize, u64);

/// The position of a piece of work in its stream, and its node if a graph has that position.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) stream: Stream,
    pub(crate) number: u64,
    pub(crate) node: Option<usize>,
}

/// The last position that is known to be done, of each stream and of each node of the graphs in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Frontier(BTreeMap<(Stream, Option<usize>), u64>);

impl Frontier {
    /// Joins another frontier.
    pub(crate) fn join(&mut self, other: &Frontier) {
        for (&track, &number) in &other.0 {
            let known = self.0.entry(track).or_default();
            *known = number.max(*known);
        }
    }

    /// Adds one piece of work.
    pub(super) fn add(&mut self, done: Position) {
        self.0.insert((done.stream, done.node), done.number);
    }

    /// Whether another frontier lies nowhere beyond this one.
    pub(crate) fn includes(&self, other: &Frontier) -> bool {
        other.0.iter().all(|(track, number)| self.0.get(track).is_some_and(|known| known >= number))
    }

    /// Whether a piece of work lies within the frontier; a node does where its graph does.
    pub(crate) fn holds(&self, work: Position) -> bool {
        let reaches = |node| self.0.get(&(work.stream, node)).is_some_and(|&known| known >= work.number);
        reaches(None) || work.node.is_some() && reaches(work.node)
    }
}
