//! A cache: which sectors it holds, and when each line's last came.

/// Bytes of a line, and of a sector.
pub(super) const LINE: u64 = 128;
pub(super) const SECTOR: u64 = 32;

/// A line: its tag, its sectors, those of them written, the clock at which the last of them comes, and its last
/// use.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    tag: u64,
    ready: u64,
    used: u32,
    sectors: u8,
    dirty: u8,
    /// Whether it goes before lines that were used longer ago.
    goes_first: bool,
}

/// What a look-up found.
pub(super) struct Found {
    /// Sectors of those asked for that were not there.
    pub(super) missing: u8,
    /// When those that were there come.
    pub(super) ready: u64,
    /// Written sectors of the line that had to go.
    pub(super) evicted: u32,
}

/// A set-associative cache that replaces the line used longest ago.
#[derive(Debug, Default)]
pub(super) struct Cache {
    entries: Vec<Entry>,
    ways: usize,
    uses: u32,
    /// Counts how often everything was forgotten; a part of tags.
    age: u64,
}

impl Cache {
    /// An empty cache of about `bytes`.
    pub(super) fn new(bytes: u64, ways: usize) -> Cache {
        let sets = (bytes / LINE / ways as u64).max(1) as usize;
        Cache { entries: vec![Entry::default(); sets * ways], ways, uses: 0, age: 0 }
    }

    fn tag(&self, line: u64) -> u64 {
        line + 1 + (self.age << 41)
    }

    fn set(&mut self, line: u64) -> &mut [Entry] {
        let sets = (self.entries.len() / self.ways) as u64;
        // Strides of powers of two spread over the sets.
        let set = (line ^ line >> 13 ^ line >> 21) % sets;
        &mut self.entries[set as usize * self.ways..][..self.ways]
    }

    /// Looks sectors of a line up, and takes those in that are missing.
    pub(super) fn look(&mut self, line: u64, sectors: u8, write: bool) -> Found {
        self.uses = self.uses.wrapping_add(1);
        let (now, tag) = (self.uses, self.tag(line));
        let set = self.set(line);
        let (mut missing, mut ready, mut evicted) = (sectors, 0, 0);
        let entry = match set.iter().position(|entry| entry.tag == tag) {
            Some(way) => {
                let entry = &mut set[way];
                missing = sectors & !entry.sectors;
                ready = if missing == sectors { 0 } else { entry.ready };
                entry
            }
            None => {
                let oldest = set
                    .iter_mut()
                    .min_by_key(|entry| (entry.tag != 0, !entry.goes_first, entry.used.wrapping_sub(now)));
                let Some(entry) = oldest else { return Found { missing, ready, evicted } };
                evicted = entry.dirty.count_ones();
                *entry = Entry { tag, ..Entry::default() };
                entry
            }
        };
        entry.used = now;
        entry.goes_first = false;
        entry.sectors |= sectors;
        entry.dirty |= if write { sectors } else { 0 };
        Found { missing, ready, evicted }
    }

    /// A line goes before others, unless it is used once more: it was read by the policy for what is read once.
    pub(super) fn give_up_first(&mut self, line: u64) {
        let tag = self.tag(line);
        if let Some(entry) = self.set(line).iter_mut().find(|entry| entry.tag == tag) {
            entry.goes_first = true;
        }
    }

    /// Notes when the missing sectors of a line come.
    pub(super) fn filled(&mut self, line: u64, ready: u64) {
        let tag = self.tag(line);
        if let Some(entry) = self.set(line).iter_mut().find(|entry| entry.tag == tag) {
            entry.ready = entry.ready.max(ready);
        }
    }

    /// Forgets everything that was read.
    pub(super) fn clear(&mut self) {
        self.age += 1;
    }

    /// Everything has come: clocks begin anew.
    pub(super) fn settle(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.ready = 0);
    }
}
