//! Who touched device memory: a cell for every four bytes, kept page by page.
//!
//! A page belongs to one launch at a time. While nothing else that is not ordered touches it, the launch finds its cells
//! without a lock. Operations that are not ordered against it keep cells of their own beside it; what is over, but not
//! over for everybody, is kept as bits; copies and fills are kept as ranges.

use super::clock::Vc;
use super::order::Operation;
use super::race::{Cell, Conflict, Record};
use crate::exec::access::Access;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PAGE: u64 = 4096;
const CELLS: usize = PAGE as usize / 4;
/// Operations that are over and of which a page keeps bits, ranges that an allocation keeps.
const KEPT: usize = 8;
const RANGES: usize = 64;

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Page {
    /// The launch that may use the cells without looking further; 0 if others must be looked at too.
    sole: AtomicU32,
    cells: [Cell; CELLS],
    rest: Mutex<Rest>,
}

#[derive(Default)]
struct Rest {
    /// Whose the page's cells are.
    owner: Option<Arc<Operation>>,
    /// Operations under way that are not ordered against the owner.
    sides: Vec<(Arc<Operation>, Box<[Cell]>)>,
    past: Vec<Past>,
}

type Bits = Box<[u64; PAGE as usize / 64]>;

/// What an operation that is over did to a page, a bit a byte: weak and strong reads, weak and strong writes.
struct Past {
    op: Arc<Operation>,
    bits: [Option<Bits>; 4],
}

/// Bytes that a copy or fill read or wrote.
struct Range {
    op: Arc<Operation>,
    from: u64,
    to: u64,
    write: bool,
}

/// Cells of one allocation.
pub(crate) struct GlobalShadow {
    pages: Vec<AtomicPtr<Page>>,
    ranges: Mutex<Vec<Range>>,
    range_count: AtomicUsize,
}

/// A conflict.
pub(crate) enum Found {
    /// With another thread of the launch.
    Within(Conflict),
    /// With another operation.
    Between(Between),
}

/// A conflict with another operation.
pub(crate) struct Between {
    pub(crate) earlier: Arc<Operation>,
    pub(crate) earlier_writes: bool,
    /// Offset of its first byte.
    pub(crate) offset: u64,
}

/// One access to a cell.
pub(crate) struct Touch<'a> {
    pub(crate) op: &'a Arc<Operation>,
    pub(crate) me: Record,
    pub(crate) access: &'a Access,
    pub(crate) vc: &'a Vc,
}

fn empty() -> [Cell; CELLS] {
    [const { Cell::empty() }; CELLS]
}

impl Past {
    fn of(op: Arc<Operation>, cells: &[Cell]) -> Option<Past> {
        let mut bits = [const { None::<Bits> }; 4];
        for (i, c) in cells.iter().enumerate() {
            for (record, write) in [(c.last_read(), 0), (c.last_write(), 2)] {
                if record.is_some() {
                    let map = bits[write + usize::from(record.strength() >= 2)]
                        .get_or_insert_with(|| Box::new([0; PAGE as usize / 64]));
                    map[i / 16] |= u64::from(record.bytes()) << (i % 16 * 4);
                }
            }
        }
        bits.iter().any(Option::is_some).then_some(Past { op, bits })
    }

    /// Whether it touched some bytes of a cell in a way that conflicts; if so, whether it wrote.
    fn conflicts(&self, cell: usize, bytes: u32, write: bool, strong: bool) -> Option<bool> {
        let touched = |i: usize| {
            let map = self.bits[i].as_ref();
            map.is_some_and(|map| map[cell / 16] >> (cell % 16 * 4) & u64::from(bytes) != 0)
        };
        if touched(2) || touched(3) && !strong {
            return Some(true);
        }
        (write && (touched(0) || touched(1) && !strong)).then_some(false)
    }
}

impl Rest {
    /// Makes room for an operation: what is over becomes bits, or is forgotten if it is over for everybody.
    fn enter(&mut self, cells: &[Cell], op: &Arc<Operation>) {
        let known = |o: &Arc<Operation>| o.id == op.id;
        if self.owner.as_ref().is_some_and(known) || self.sides.iter().any(|s| known(&s.0)) {
            return;
        }
        let forget = |o: &Arc<Operation>| op.follows(o) && op.has_settled(o);
        self.past.retain(|p| !forget(&p.op));
        for (o, cells) in self.sides.extract_if(.., |s| s.0.is_done()) {
            self.past.extend((!forget(&o)).then(|| Past::of(o, &cells)).flatten());
        }
        if self.owner.as_ref().is_none_or(|o| o.is_done()) && !op.is_host() {
            if let Some(o) = self.owner.take() {
                self.past.extend((!forget(&o)).then(|| Past::of(o, cells)).flatten());
                cells.iter().for_each(Cell::clear);
            }
            self.owner = Some(op.clone());
        } else {
            self.sides.push((op.clone(), Box::new(empty())));
        }
        let excess = self.past.len().saturating_sub(KEPT);
        self.past.drain(..excess);
    }

    /// Cells of the operations under way other than `op`.
    fn others<'a>(
        &'a self,
        cells: &'a [Cell],
        op: &'a Operation,
        waited: bool,
    ) -> impl Iterator<Item = (&'a Arc<Operation>, &'a [Cell])> {
        let owner = self.owner.iter().map(move |o| (o, cells));
        let all = owner.chain(self.sides.iter().map(|(o, cells)| (o, &cells[..])));
        all.filter(move |(o, _)| o.id != op.id && !op.thread_follows(o, waited))
    }

    fn own<'a>(&'a self, cells: &'a [Cell], op: &Operation) -> &'a [Cell] {
        self.sides.iter().find(|s| s.0.id == op.id).map_or(cells, |s| &s.1)
    }
}

impl GlobalShadow {
    pub(crate) fn new(bytes: u64) -> GlobalShadow {
        let pages = (0..bytes.div_ceil(PAGE)).map(|_| AtomicPtr::default()).collect();
        GlobalShadow { pages, ranges: Mutex::default(), range_count: AtomicUsize::new(0) }
    }

    fn page(&self, index: usize) -> Option<&Page> {
        // SAFETY: a page is made once and lives as long as the shadow.
        unsafe { self.pages[index].load(Ordering::Acquire).as_ref() }
    }

    /// The cell of an offset, if nobody else needs to be looked at.
    #[inline(always)]
    pub(crate) fn cell(&self, offset: u64, launch: u32) -> Option<&Cell> {
        let page = self.page((offset / PAGE) as usize)?;
        (page.sole.load(Ordering::Acquire) == launch).then(|| &page.cells[(offset % PAGE / 4) as usize])
    }

    fn made(&self, index: usize) -> &Page {
        if let Some(page) = self.page(index) {
            return page;
        }
        let page = Page { sole: AtomicU32::new(0), cells: empty(), rest: Mutex::default() };
        let new = Box::into_raw(Box::new(page));
        let slot = &self.pages[index];
        match slot.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just made, and now owned by the shadow.
            Ok(_) => unsafe { &*new },
            Err(other) => {
                // SAFETY: nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: made by another thread, owned by the shadow.
                unsafe { &*other }
            }
        }
    }

    /// Runs `f` on the operation's own cell of an offset.
    pub(crate) fn with_cell<T>(&self, offset: u64, op: &Arc<Operation>, f: impl FnOnce(&Cell) -> T) -> T {
        if let Some(cell) = self.cell(offset, op.id) {
            return f(cell);
        }
        let page = self.made((offset / PAGE) as usize);
        let mut rest = lock(&page.rest);
        rest.enter(&page.cells, op);
        f(&rest.own(&page.cells, op)[(offset % PAGE / 4) as usize])
    }

    /// An access to a page that is new to the launch, or that others use too.
    #[cold]
    pub(crate) fn touch(&self, offset: u64, touch: &Touch<'_>) -> Option<Found> {
        let Touch { op, me, access, vc } = *touch;
        let (index, cell) = ((offset / PAGE) as usize, (offset % PAGE / 4) as usize);
        let page = self.made(index);
        let mut rest = lock(&page.rest);
        let rest = &mut *rest;
        rest.enter(&page.cells, op);
        let (write, strong) = (access.write, me.strength() >= 2);
        let between = |earlier: &Arc<Operation>, earlier_writes| {
            Found::Between(Between { earlier: earlier.clone(), earlier_writes, offset })
        };
        let mut crowded = false;
        for (o, cells) in rest.others(&page.cells, op, vc.waited) {
            crowded = true;
            if let Some(writes) = cells[cell].foreign(o.id, me, write, o.is_host() || op.is_host(), vc) {
                return Some(between(o, writes));
            }
        }
        // Who learned anything of an operation through memory has its own reasons not to wait for it.
        for p in rest.past.iter().filter(|p| !op.thread_follows(&p.op, vc.waited) && !vc.has_met(p.op.id)) {
            crowded = true;
            if let Some(writes) = p.conflicts(cell, me.bytes(), write, strong) {
                return Some(between(&p.op, writes));
            }
        }
        if self.range_count.load(Ordering::Acquire) > 0 {
            let start = index as u64 * PAGE;
            let at = start + 4 * cell as u64 + u64::from(me.bytes().trailing_zeros());
            let end = start + 4 * cell as u64 + u64::from(32 - me.bytes().leading_zeros());
            let ranges = lock(&self.ranges);
            for r in
                ranges.iter().filter(|r| r.from < start + PAGE && r.to > start && !op.thread_follows(&r.op, vc.waited))
            {
                crowded = true;
                if r.from < end && r.to > at && (write || r.write) {
                    return Some(between(&r.op, r.write));
                }
            }
        }
        // Another thread of a programmatic launch may not have waited yet.
        crowded |= vc.waited && rest.past.iter().any(|p| !op.thread_follows(&p.op, false));
        let sole = !crowded && rest.owner.as_ref().is_some_and(|o| o.id == op.id);
        page.sole.store(if sole { op.id } else { 0 }, Ordering::Release);
        rest.own(&page.cells, op)[cell].access(me, write, access, vc).map(Found::Within)
    }

    /// A copy or fill reads or writes bytes.
    pub(crate) fn range(&self, op: &Arc<Operation>, from: u64, to: u64, write: bool) -> Option<Between> {
        let between = |earlier: &Arc<Operation>, earlier_writes, offset| {
            Some(Between { earlier: earlier.clone(), earlier_writes, offset })
        };
        let mut ranges = lock(&self.ranges);
        for r in ranges.iter().filter(|r| r.from < to && r.to > from && !op.follows(&r.op)) {
            if write || r.write {
                return between(&r.op, r.write, from.max(r.from));
            }
        }
        // An earlier range that the new one stands for is not needed: what is ordered after this is after that.
        ranges.retain(|r| {
            let covered = from <= r.from && r.to <= to && (write || !r.write);
            !(op.follows(&r.op) && (covered || op.has_settled(&r.op)))
        });
        let excess = (ranges.len() + 1).saturating_sub(RANGES);
        ranges.drain(..excess);
        ranges.push(Range { op: op.clone(), from, to, write });
        self.range_count.store(ranges.len(), Ordering::Release);
        drop(ranges);
        for index in (from / PAGE) as usize..to.div_ceil(PAGE) as usize {
            let Some(page) = self.page(index) else { continue };
            let rest = lock(&page.rest);
            // Whoever goes on after this finds the range.
            page.sole.store(0, Ordering::Release);
            let start = index as u64 * PAGE;
            let inside = (from.max(start) - start, to.min(start + PAGE) - start);
            for cell in (inside.0 / 4) as usize..inside.1.div_ceil(4) as usize {
                let at = 4 * cell as u64;
                let first = inside.0.saturating_sub(at).min(4);
                let last = (inside.1 - at).min(4);
                let bytes = ((1u32 << last) - 1) & !((1u32 << first) - 1);
                let me = Record::anonymous(bytes);
                for (o, cells) in rest.others(&page.cells, op, true) {
                    let writes = match (o.is_host(), op.told_by_host()) {
                        (true, Some(vc)) => cells[cell].foreign(o.id, me, write, true, vc),
                        _ => cells[cell].touched(bytes, write),
                    };
                    if let Some(writes) = writes {
                        return between(o, writes, start + at);
                    }
                }
                for p in rest.past.iter().filter(|p| !op.follows(&p.op)) {
                    if let Some(writes) = p.conflicts(cell, bytes, write, false) {
                        return between(&p.op, writes, start + at);
                    }
                }
            }
        }
        None
    }
}

impl Drop for GlobalShadow {
    fn drop(&mut self) {
        for p in &mut self.pages {
            let p = *p.get_mut();
            if !p.is_null() {
                // SAFETY: made by `made`, dropped once.
                drop(unsafe { Box::from_raw(p) });
            }
        }
    }
}
