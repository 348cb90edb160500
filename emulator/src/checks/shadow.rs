//! Who touched device memory: a cell for every four bytes, kept page by page.
//!
//! A page belongs to one launch at a time. While nothing else that is not ordered touches it, the launch finds its cells
//! without a lock. Operations that are not ordered against it keep cells of their own beside it; of what is over, but
//! not over for everybody, the bytes are kept; of copies and fills, their range.

use super::clock::Vc;
use super::order::Operation;
use super::race::{BYTES, Cell, Conflict, Marks, Record, sentence};
use crate::exec::access::Access;
use crate::exec::fault::{Fault, FaultKind};
use crate::memory::lock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

const PAGE: u64 = 4096;
const CELLS: usize = PAGE as usize / 4;
/// Operations of which a page remembers what they did, ranges that an allocation remembers.
const LAYERS: usize = 16;
const RANGES: usize = 64;

struct Page {
    /// The launch that may use the cells without looking further; 0 if others must be looked at too.
    sole: AtomicU32,
    cells: [Cell; CELLS],
    layers: Mutex<Vec<Layer>>,
}

/// What one operation did to a page.
struct Layer {
    op: Arc<Operation>,
    trace: Trace,
}

enum Trace {
    /// In the page's own cells.
    Here,
    /// In cells beside it.
    Beside(Box<[Cell; CELLS]>),
    /// It is over.
    Past(Box<[Marks; CELLS]>),
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
    pages: Vec<OnceLock<Box<Page>>>,
    ranges: Mutex<Vec<Range>>,
}

/// A conflict with another operation.
pub(crate) struct Between {
    earlier: Arc<Operation>,
    writes: bool,
    /// Offset of its first byte.
    pub(crate) offset: u64,
}

impl Between {
    pub(crate) fn sentence(&self, op: &Operation, write: bool, memory: &str) -> String {
        let (memory, who) = (format!("{memory} memory by {op}"), format!("by {}", self.earlier));
        sentence(write, memory, self.writes, who, op.missing_after(&self.earlier))
    }

    /// The report where the operation has no threads.
    pub(crate) fn fault(&self, op: &Operation, write: bool, memory: &str, base: u64) -> Box<Fault> {
        let mut fault = Fault::new(FaultKind::Race, &op.to_string(), self.sentence(op, write, memory));
        fault.address = Some(base + self.offset);
        Box::new(fault)
    }
}

/// One access to a cell.
#[derive(Clone, Copy)]
pub(crate) struct Touch<'a> {
    pub(crate) op: &'a Arc<Operation>,
    pub(crate) me: Record,
    pub(crate) access: &'a Access,
    pub(crate) vc: &'a Vc,
}

impl Touch<'_> {
    /// Compares with what another operation did to the cell, unless that is ordered before; whether it is so for every
    /// thread of this one.
    fn follows(&self, other: &Arc<Operation>, offset: u64, marks: impl FnOnce(u32) -> Marks) -> Result<bool, Between> {
        if self.op.thread_follows(other, self.vc.waited) {
            return Ok(self.op.thread_follows(other, false));
        }
        let strength = if self.op.is_host() || other.is_host() { 3 } else { 2 };
        match marks(strength).conflict(self.me, self.access.write, strength) {
            None => Ok(false),
            Some(writes) => Err(Between { earlier: other.clone(), writes, offset }),
        }
    }
}

impl Range {
    fn overlaps(&self, from: u64, to: u64) -> bool {
        self.from < to && from < self.to
    }

    /// Which of four bytes it holds, a bit each.
    fn bytes(&self, at: u64) -> u32 {
        let [first, end] = [self.from, self.to].map(|edge| edge.saturating_sub(at).min(4));
        (1 << end) - (1 << first)
    }
}

impl Layer {
    fn cells<'a>(&'a self, page: &'a Page) -> Option<&'a [Cell; CELLS]> {
        match &self.trace {
            Trace::Here => Some(&page.cells),
            Trace::Beside(cells) => Some(cells),
            Trace::Past(_) => None,
        }
    }

    /// What it did to a cell that a thread does not know of.
    fn marks(&self, page: &Page, cell: usize, vc: &Vc, strength: u32) -> Marks {
        let known = |r: Record| !r.is_in_flight() && vc.knows(self.op.id, r);
        match &self.trace {
            // Who learned anything of an operation through memory has its own reasons not to wait for it.
            Trace::Past(_) if vc.has_met(self.op.id) => Marks::default(),
            Trace::Past(marks) => marks[cell],
            Trace::Beside(cells) => cells[cell].marks(strength, known),
            Trace::Here => page.cells[cell].marks(strength, known),
        }
    }
}

fn empty() -> [Cell; CELLS] {
    std::array::from_fn(|_| Cell::default())
}

impl Page {
    /// Makes room for an operation: of what is over, only the marks are kept, or nothing if it is over for everybody.
    fn enter(&self, op: &Arc<Operation>) -> MutexGuard<'_, Vec<Layer>> {
        let mut layers = lock(&self.layers);
        if layers.iter().any(|l| l.op.id == op.id) {
            return layers;
        }
        layers.retain_mut(|l| {
            let here = matches!(l.trace, Trace::Here);
            // The host has no use for the page's own cells.
            if !l.op.is_done() || here && op.is_host() {
                return true;
            }
            let keep = !op.has_settled(&l.op);
            let marks = |cells: &[Cell; CELLS]| Box::new(std::array::from_fn(|i| cells[i].marks(2, |_| false)));
            if let Some(marks) = l.cells(self).filter(|_| keep).map(marks) {
                l.trace = Trace::Past(marks);
            }
            if here {
                self.cells.iter().for_each(Cell::clear);
            }
            keep
        });
        let taken = op.is_host() || layers.iter().any(|l| matches!(l.trace, Trace::Here));
        let trace = if taken { Trace::Beside(Box::new(empty())) } else { Trace::Here };
        layers.push(Layer { op: op.clone(), trace });
        while layers.len() > LAYERS
            && let Some(first) = layers.iter().position(|l| matches!(l.trace, Trace::Past(_)))
        {
            layers.remove(first);
        }
        layers
    }

    /// An operation's own cells, once it has entered.
    fn own<'a>(&'a self, layers: &'a [Layer], op: &Operation) -> &'a [Cell; CELLS] {
        layers.iter().find(|l| l.op.id == op.id).and_then(|l| l.cells(self)).unwrap_or(&self.cells)
    }
}

impl GlobalShadow {
    pub(crate) fn new(bytes: u64) -> GlobalShadow {
        let pages = (0..bytes.div_ceil(PAGE)).map(|_| OnceLock::new()).collect();
        GlobalShadow { pages, ranges: Mutex::default() }
    }

    fn page(&self, offset: u64) -> &Page {
        let new = || Box::new(Page { sole: AtomicU32::new(0), cells: empty(), layers: Mutex::default() });
        self.pages[(offset / PAGE) as usize].get_or_init(new)
    }

    /// An access by a thread, compared and noted.
    #[inline(always)]
    pub(crate) fn access(&self, offset: u64, touch: Touch<'_>) -> Result<(), Box<Conflict>> {
        match self.pages[(offset / PAGE) as usize].get() {
            Some(page) if page.sole.load(Ordering::Acquire) == touch.op.id => {
                page.cells[(offset % PAGE / 4) as usize].access(touch.me, touch.access, touch.vc)
            }
            _ => self.touch(offset, touch),
        }
    }

    /// An access to a page that is new to the operation, or that others use too.
    #[cold]
    pub(crate) fn touch(&self, offset: u64, touch: Touch<'_>) -> Result<(), Box<Conflict>> {
        let Touch { op, me, access, vc } = touch;
        let (page, cell) = (self.page(offset), (offset % PAGE / 4) as usize);
        let layers = page.enter(op);
        let mut sole = layers.iter().any(|l| l.op.id == op.id && matches!(l.trace, Trace::Here));
        for l in &*layers {
            sole &= touch.follows(&l.op, offset, |s| l.marks(page, cell, vc, s))?;
        }
        let start = offset / PAGE * PAGE;
        for r in lock(&self.ranges).iter().filter(|r| r.overlaps(start, start + PAGE)) {
            let marks = |_| Marks::new(r.bytes(offset & !3), r.write, false);
            sole &= touch.follows(&r.op, offset, marks)?;
        }
        page.sole.store(if sole { op.id } else { 0 }, Ordering::Release);
        page.own(&layers, op)[cell].access(me, access, vc)
    }

    /// A copy has arrived: from now on it counts as a write by the lane that issued it.
    pub(crate) fn landed(&self, op: &Arc<Operation>, offset: u64, bytes: u64, me: Record) {
        for offset in (offset..offset + bytes).step_by(4) {
            let page = self.page(offset);
            page.own(&page.enter(op), op)[(offset % PAGE / 4) as usize].landed(me, true);
        }
    }

    /// A copy or fill reads or writes bytes.
    pub(crate) fn range(&self, op: &Arc<Operation>, from: u64, to: u64, write: bool) -> Result<(), Between> {
        let mut ranges = lock(&self.ranges);
        let conflicts = |r: &&Range| r.overlaps(from, to) && (write || r.write) && !op.follows(&r.op);
        if let Some(r) = ranges.iter().find(conflicts) {
            return Err(Between { earlier: r.op.clone(), writes: r.write, offset: from.max(r.from) });
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
                    let me = Record::default().with(BYTES, range.bytes(at));
                    let touch = Touch { op, me, access: &access, vc: &vc };
                    touch.follows(&l.op, at, |s| l.marks(page, (at % PAGE / 4) as usize, &vc, s))?;
                }
            }
        }
        Ok(())
    }
}
