//! The recorded tokens of the graph path: a token's launches as one graph, valid for all tokens of a length class.
//!
//! A token's id and position are in device memory, so that its launches differ from another token's in one thing: the
//! blocks of attention, for each unit of the cache. A class has those of its longest sequence.

use super::choosing::Steps;
use super::sequence::Sequence;
use super::token::{Launches, Then};
use crate::Result;
use crate::driver::{Graph, GraphExec, Stream};
use crate::shape::table::KV_CHUNK;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Graphs of one sequence's tokens.
pub(crate) struct Graphs {
    stream: Stream,
    /// What is in each of them as it was when they were recorded: the sequence's buffers, by its number, and its room.
    memory: (u64, u32),
    /// By the longest length of the class, by what follows the layers, and by how a token is chosen.
    recorded: BTreeMap<(u32, Then, Option<Steps>), GraphExec>,
    captures: u64,
}

impl Graphs {
    /// No graphs yet, to be recorded on this stream.
    pub(crate) fn new(stream: Stream) -> Graphs {
        Graphs { stream, memory: (0, 0), recorded: BTreeMap::new(), captures: 0 }
    }

    /// The number of graphs recorded.
    pub(crate) fn captures(&self) -> u64 {
        self.captures
    }

    /// The graph for a token with these launches, recorded if there is none. It may allocate and wait: it is asked for
    /// before work is enqueued, not within.
    pub(crate) fn of(&mut self, launches: Launches<'_>) -> Result<&GraphExec> {
        let memory = (launches.sequence.number, launches.sequence.room());
        if self.memory != memory {
            self.forget();
            self.memory = memory;
        }
        let length = longest(launches.length, launches.sequence);
        let steps = launches.choosing.map(|(_, steps)| steps);
        match self.recorded.entry((length, launches.then, steps)) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                // What is resident parks once. Nobody waits for all streams meanwhile, which a capture would not survive.
                let _quiet = self.stream.inner.context.quiesce()?;
                let launches = Launches { length, ..launches };
                let graph = Graph::capture(&self.stream, |stream| launches.launch(stream).map(drop))?;
                let exec = graph.instantiate()?;
                self.captures += 1;
                Ok(place.insert(exec))
            }
        }
    }

    /// Drops all graphs. Launches of them that are under way go on.
    fn forget(&mut self) {
        if !self.recorded.is_empty() {
            // What is resident parks once for all of them.
            let _quiet = self.stream.inner.context.quiesce();
            self.recorded.clear();
        }
    }
}

impl Drop for Graphs {
    fn drop(&mut self) {
        self.forget();
    }
}

/// The longest length of a length's class: a power of two of chunks, but no more than the sequence has room for.
fn longest(length: u32, sequence: &Sequence) -> u32 {
    length.div_ceil(KV_CHUNK).next_power_of_two().saturating_mul(KV_CHUNK).min(sequence.room())
}

#[cfg(all(test, feature = "tiny"))]
mod tests;
