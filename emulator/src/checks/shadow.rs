//! Who touched device memory: a cell for every four bytes, kept page by page.
//!
//! A page's own cells belong to one launch at a time. While nothing else that is not ordered touches the page, the
//! launch finds them without a lock. Operations that are not ordered against it have cells of their own; of what is
//! over, but not over for everybody, bytes and strength are kept; of copies and fills, their range.

use super::clock::Vc;
use super::order::Operation;
use super::race::{BYTES, Cell, Conflict, KEPT, Record, Touch};
use crate::exec::access::Access;
use crate::memory::lock;
use std::array::from_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

const PAGE: u64 = 4096;
const CELLS: usize = PAGE as usize / 4;
/// Operations of which a page remembers what they did, ranges that an allocation remembers.
const LAYERS: usize = 16;
const RANGES: usize = 64;

type Cells = Arc<[Cell; CELLS]>;

struct Page {
    /// The launch that may use the page's own cells without looking further; 0 if others must be looked at too.
    sole: AtomicU32,
    cells: Cells,
    layers: Mutex<Vec<Layer>>,
}

/// What one operation did to a page.
struct Layer {
    op: Arc<Operation>,
    trace: Trace,
}

enum Trace {
    Cells(Cells),
    /// It is over: the last read and write of each cell, as far as they are kept.
    Past(Box<[[u8; 2]; CELLS]>),
}

/// Bytes that a copy or fill read or wrote.
#[derive(Clone)]
struct Range {
    op: Arc<Operation>,
    from: u64,
    to: u64,
    write: bool,
}

/// Cells of one allocation.
pub(crate) struct GlobalShadow {
    pages: Vec<OnceLock<Page>>,
    ranges: Mutex<Vec<Range>>,
}

impl Touch<'_> {
    /// Compares with what another operation did last to the cell, unless that is over for this thread; whether it is
    /// over for every thread of this operation.
    fn follows(&self, other: &Arc<Operation>, last: impl FnOnce() -> [Record; 2]) -> Result<bool, Box<Conflict>> {
        if self.op.thread_follows(other, &self.vc.over) {
            return Ok(self.op.thread_follows(other, self.op.over()));
        }
        self.compare(other, last()).map(|()| false)
    }
}

impl Range {
    fn overlaps(&self, from: u64, to: u64) -> bool {
        self.from < to && from < self.to
    }

    /// The access to four of the bytes, or fewer.
    fn record(&self, at: u64) -> Record {
        let [first, end] = [self.from, self.to].map(|edge| edge.saturating_sub(at).min(4));
        Record::default().with(BYTES, (1 << end) - (1 << first))
    }
}

impl Layer {
    fn cells(&self) -> Option<&Cells> {
        match &self.trace {
            Trace::Cells(cells) => Some(cells),
            Trace::Past(_) => None,
        }
    }

    /// The last read and write of a cell, for a thread to compare with.
    fn last(&self, cell: usize, vc: &Vc) -> [Record; 2] {
        match &self.trace {
            Trace::Cells(cells) => cells[cell].last(),
            // Who learned anything of an operation through memory has its own reasons not to wait for it.
            Trace::Past(_) if vc.known.has_met(self.op.id) => [Record::default(); 2],
            Trace::Past(kept) => kept[cell].map(|kept| Record::default().with(KEPT, kept.into())),
        }
    }
}

fn empty() -> Cells {
    Arc::new(from_fn(|_| Cell::default()))
}

impl Page {
    fn new() -> Page {
        Page { sole: AtomicU32::new(0), cells: empty(), layers: Mutex::default() }
    }

    /// Makes room for an operation: of what is over, only a little is kept, or nothing if it is over for everybody.
    fn enter(&self, op: &Arc<Operation>) -> MutexGuard<'_, Vec<Layer>> {
        let mut layers = lock(&self.layers);
        if layers.iter().any(|l| l.op.id == op.id) {
            return layers;
        }
        // The host, which has no use for the page's own cells, leaves things as they are.
        layers.retain_mut(|l| {
            if !l.op.is_done() || op.is_host() {
                return true;
            }
            let keep = !op.has_settled(&l.op);
            if keep && let Trace::Cells(cells) = &l.trace {
                l.trace = Trace::Past(Box::new(from_fn(|i| cells[i].last().map(|r| r.get(KEPT) as u8))));
            }
            keep
        });
        let is_free = !layers.iter().filter_map(Layer::cells).any(|cells| Arc::ptr_eq(cells, &self.cells));
        let cells = if is_free && !op.is_host() {
            self.cells.iter().for_each(Cell::clear);
            self.cells.clone()
        } else {
            empty()
        };
        layers.push(Layer { op: op.clone(), trace: Trace::Cells(cells) });
        while layers.len() > LAYERS
            && let Some(first) = layers.iter().position(|l| l.cells().is_none())
        {
            layers.remove(first);
        }
        layers
    }

    /// An operation's own cells, once it has entered.
    fn own<'a>(&'a self, layers: &'a [Layer], op: &Operation) -> &'a Cells {
        layers.iter().find(|l| l.op.id == op.id).and_then(Layer::cells).unwrap_or(&self.cells)
    }
}

impl GlobalShadow {
    pub(crate) fn new(bytes: u64) -> GlobalShadow {
        let pages = (0..bytes.div_ceil(PAGE)).map(|_| OnceLock::new()).collect();
        GlobalShadow { pages, ranges: Mutex::default() }
    }

    /// An access by a thread, compared and noted.
    #[inline(always)]
    pub(crate) fn access(&self, offset: u64, touch: Touch<'_>) -> Result<(), Box<Conflict>> {
        match self.pages[(offset / PAGE) as usize].get() {
            Some(page) if page.sole.load(Ordering::Acquire) == touch.op.id => {
                page.cells[(offset % PAGE / 4) as usize].access(touch)
            }
            _ => self.touch(offset, touch),
        }
    }

    /// An access to a page that is new to the operation, or that others use too.
    #[cold]
    pub(crate) fn touch(&self, offset: u64, touch: Touch<'_>) -> Result<(), Box<Conflict>> {
        let (op, cell) = (touch.op, (offset % PAGE / 4) as usize);
        let page = self.pages[(offset / PAGE) as usize].get_or_init(Page::new);
        let layers = page.enter(op);
        let own = page.own(&layers, op);
        let mut sole = Arc::ptr_eq(own, &page.cells);
        for l in layers.iter() {
            sole &= touch.follows(&l.op, || l.last(cell, touch.vc))?;
        }
        let start = offset / PAGE * PAGE;
        for r in lock(&self.ranges).iter().filter(|r| r.overlaps(start, start + PAGE)) {
            let mut last = [Record::default(); 2];
            last[usize::from(r.write)] = r.record(offset & !3);
            sole &= touch.follows(&r.op, || last)?;
        }
        page.sole.store(if sole { op.id } else { 0 }, Ordering::Release);
        own[cell].access(touch)
    }

    /// A copy has arrived: from now on it counts as a write by the lane that issued it.
    pub(crate) fn landed(&self, op: &Arc<Operation>, offset: u64, bytes: u64, me: Record) {
        for offset in (offset..offset + bytes).step_by(4) {
            let page = self.pages[(offset / PAGE) as usize].get_or_init(Page::new);
            page.own(&page.enter(op), op)[(offset % PAGE / 4) as usize].landed(me, true);
        }
    }

    /// A copy or fill reads or writes bytes. A conflict comes with the first byte's offset.
    pub(crate) fn range(
        &self,
        op: &Arc<Operation>,
        from: u64,
        to: u64,
        write: bool,
    ) -> Result<(), (u64, Box<Conflict>)> {
        let mut ranges = lock(&self.ranges);
        let conflicts = |r: &&Range| r.overlaps(from, to) && (write || r.write) && !op.follows(&r.op);
        if let Some(r) = ranges.iter().find(conflicts) {
            let conflict = Conflict { by: r.op.clone(), earlier: Record::default(), writes: r.write };
            return Err((from.max(r.from), Box::new(conflict)));
        }
        // An earlier range that the new one stands for is not needed: what is ordered after this is after that.
        let covers = |r: &Range| from <= r.from && r.to <= to && (write || !r.write);
        ranges.retain(|r| !(op.has_settled(&r.op) || covers(r) && op.follows(&r.op)));
        let excess = (ranges.len() + 1).saturating_sub(RANGES);
        ranges.drain(..excess);
        let range = Range { op: op.clone(), from, to, write };
        ranges.push(range.clone());
        drop(ranges);
        let (access, vc) = (Access::new(4, 1, write), op.first_knowledge(0, 1));
        for start in (from / PAGE * PAGE..to).step_by(PAGE as usize) {
            let Some(page) = self.pages[(start / PAGE) as usize].get() else { continue };
            let layers = lock(&page.layers);
            // Whoever goes on after this finds the range.
            page.sole.store(0, Ordering::Release);
            for l in layers.iter().filter(|l| !op.follows(&l.op)) {
                for at in (start.max(from & !3)..to.min(start + PAGE)).step_by(4) {
                    let touch = Touch { op, me: range.record(at), access: &access, vc: &vc };
                    let last = l.last((at % PAGE / 4) as usize, &vc);
                    touch.compare(&l.op, last).map_err(|conflict| (at, conflict))?;
                }
            }
        }
        Ok(())
    }
}
