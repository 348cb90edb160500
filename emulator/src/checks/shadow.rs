//! Shadow of device memory: a cell for every four bytes, page by page.
//!
//! A page's own cells belong to one launch at a time, which finds them without a lock while no unordered operation
//! touches the page. Other operations have layers: cells of their own while they run, bytes and strength of each access
//! once they are over, a range for copies and fills. A layer goes when its operation happens before all that may still
//! come.

use super::clock::Vc;
use super::order::Operation;
use super::race::{Cell, Conflict, Touch};
use super::readers::{PageReaders, Readers};
use super::record::{BYTES, KEPT, Record};
use crate::machine::access::Access;
use crate::machine::lock::lock;
use std::array::from_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

const PAGE: u64 = 4096;
const CELLS: usize = PAGE as usize / 4;
/// Most layers of a page.
const LAYERS: usize = 16;

/// The cells of a page, and their readers.
struct Sheet {
    cells: [Cell; CELLS],
    readers: Mutex<Readers>,
}

type Cells = Arc<Sheet>;

#[derive(Default)]
struct Page {
    /// The launch that needs to compare with the page's own cells only, and which of its accesses do: of other accesses and
    /// launches layers must be compared too.
    sole: AtomicU64,
    cells: OnceLock<Cells>,
    layers: Mutex<Vec<Layer>>,
}

/// Accesses of one operation to a page.
struct Layer {
    op: Arc<Operation>,
    trace: Trace,
}

enum Trace {
    Cells(Cells),
    /// Of an operation that is over: the kept parts of each cell's read and write, and whether there is any write.
    Past(Box<[[u8; 2]; CELLS]>, bool),
    /// First byte, end, and whether the range was written.
    Range(u64, u64, bool),
}

/// Cells of one allocation.
pub(crate) struct GlobalShadow(Vec<Page>);

/// Of accesses that need to be compared with a page's own cells only: all of a launch.
const ALL: u64 = 1;
/// Those of threads that have waited for all that the launch follows, but non-coherent loads.
const WAITED: u64 = 2;
/// Reads.
const READS: u64 = 4;
/// Bits that these take, below the launch's number.
const SOLE_BITS: u32 = 3;

/// A record with the bytes of a cell that lie in a range.
fn whole(cell: usize, from: u64, to: u64) -> Record {
    let [first, end] = [from, to].map(|edge| edge.saturating_sub(4 * cell as u64).min(4));
    Record::default().with(BYTES, (1 << end) - (1 << first))
}

impl Layer {
    fn cells(&self) -> Option<&Cells> {
        match &self.trace {
            Trace::Cells(cells) => Some(cells),
            _ => None,
        }
    }

    /// Whether there is a write among its accesses, or may be one.
    fn writes(&self) -> bool {
        match self.trace {
            Trace::Cells(_) => true,
            Trace::Past(_, writes) | Trace::Range(_, _, writes) => writes,
        }
    }

    /// Compares an access with those to a cell.
    fn compare(&self, touch: &Touch<'_>, cell: usize) -> Result<(), Box<Conflict>> {
        let last = self.last(cell, touch.vc);
        match &self.trace {
            Trace::Cells(sheet) => touch.compare(Some(&self.op), last, &mut &sheet.readers),
            Trace::Past(..) | Trace::Range(..) => touch.compare(Some(&self.op), last, &mut &mut Readers::default()),
        }
    }

    /// The last read and write of a cell, as far as a thread is to compare with them.
    fn last(&self, cell: usize, vc: &Vc) -> [Record; 2] {
        let nothing = Record::default();
        match &self.trace {
            Trace::Cells(sheet) => sheet.cells[cell].last(),
            // Who learned anything of an operation through memory has its own reasons not to wait for it.
            Trace::Past(..) if vc.known.has_met(self.op.id) => [nothing; 2],
            Trace::Past(kept, _) => kept[cell].map(|kept| nothing.with(KEPT, kept.into())),
            &Trace::Range(from, to, false) => [whole(cell, from, to), nothing],
            &Trace::Range(from, to, true) => [nothing, whole(cell, from, to)],
        }
    }
}

impl Page {
    /// Whether an access by a thread of a launch needs to compare with the page's own cells only.
    #[inline(always)]
    fn is_sole(&self, op: &Operation, touch: &Touch<'_>) -> bool {
        let (sole, access) = (self.sole.load(Ordering::Acquire), touch.access);
        let waited = || !access.nc && Arc::ptr_eq(&touch.vc.over, &op.place.before);
        sole >> SOLE_BITS == u64::from(op.id)
            && (sole & ALL != 0 || sole & READS != 0 && !access.write || sole & WAITED != 0 && waited())
    }

    /// The layers to compare an operation with. Its first access to the page drops layers that happen before all later
    /// work, and reduces those of operations that are over.
    fn layers(&self, op: &Operation) -> MutexGuard<'_, Vec<Layer>> {
        let mut layers = lock(&self.layers);
        if layers.iter().all(|l| l.op.id != op.id) {
            layers.retain(|l| !op.has_settled(&l.op));
            for l in layers.iter_mut().filter(|l| l.op.is_done()) {
                if let Trace::Cells(cells) = &l.trace {
                    let kept: Box<[[u8; 2]; CELLS]> =
                        Box::new(from_fn(|i| cells.cells[i].last().map(|r| r.get(KEPT) as u8)));
                    let is_written = kept.iter().any(|[_, write]| *write != 0);
                    l.trace = Trace::Past(kept, is_written);
                }
            }
            while layers.len() >= LAYERS
                && let Some(first) = layers.iter().position(|l| l.cells().is_none())
            {
                layers.remove(first);
            }
        }
        layers
    }

    /// An operation's own cells: the page's if they are free, but never for the host.
    fn own(&self, op: &Arc<Operation>, layers: &mut Vec<Layer>) -> Cells {
        if let Some(own) = layers.iter().find(|l| l.op.id == op.id).and_then(Layer::cells) {
            return own.clone();
        }
        let empty = || Arc::new(Sheet { cells: from_fn(|_| Cell::default()), readers: Mutex::default() });
        let page = self.cells.get_or_init(empty);
        let is_taken = op.is_host() || layers.iter().filter_map(Layer::cells).any(|cells| Arc::ptr_eq(cells, page));
        let own = if is_taken { empty() } else { page.clone() };
        own.cells.iter().for_each(Cell::clear);
        *lock(&own.readers) = Readers::default();
        layers.push(Layer { op: op.clone(), trace: Trace::Cells(own.clone()) });
        own
    }
}

impl GlobalShadow {
    pub(crate) fn new(bytes: u64) -> GlobalShadow {
        GlobalShadow((0..bytes.div_ceil(PAGE)).map(|_| Page::default()).collect())
    }

    /// Compares an access by a thread and notes it.
    #[inline(always)]
    pub(crate) fn access<'a>(
        &'a self,
        offset: u64,
        op: &Arc<Operation>,
        touch: &Touch<'_>,
        readers: &mut PageReaders<'a>,
    ) -> Result<(), Box<Conflict>> {
        let page = &self.0[(offset / PAGE) as usize];
        match page.cells.get() {
            Some(cells) if page.is_sole(op, touch) => {
                cells.cells[(offset % PAGE / 4) as usize].access(touch, readers.go_to(&cells.readers))
            }
            _ => {
                // Whoever looks at several layers locks them one by one.
                *readers = PageReaders::default();
                self.touch(offset, op, *touch)
            }
        }
    }

    /// Compares an access to a page that is new to the operation or shared with others.
    #[cold]
    pub(crate) fn touch(&self, offset: u64, op: &Arc<Operation>, touch: Touch<'_>) -> Result<(), Box<Conflict>> {
        let (page, cell) = (&self.0[(offset / PAGE) as usize], (offset % PAGE / 4) as usize);
        let mut layers = page.layers(op);
        let own = page.own(op, &mut layers);
        let has_own = page.cells.get().is_some_and(|cells| Arc::ptr_eq(cells, &own));
        let mut sole = if has_own { ALL | WAITED | READS } else { 0 };
        // A non-coherent load reads what nobody writes during the launch, which begins before its thread has waited.
        let over = if touch.access.nc { op.over() } else { &touch.vc.over };
        let mut compared = Ok(());
        for l in layers.iter() {
            if !op.thread_follows(&l.op, over) {
                compared = compared.and_then(|()| l.compare(&touch, cell));
            }
            if op.thread_follows(&l.op, op.over()) {
                continue; // every thread does
            }
            let follows = if op.follows(&l.op) { WAITED } else { 0 };
            sole &= follows | if l.writes() { 0 } else { READS };
        }
        page.sole.store(u64::from(op.id) << SOLE_BITS | sole, Ordering::Release);
        compared.and(own.cells[cell].access(&touch, &own.readers))
    }

    /// A copy has landed: it counts as a write by the issuing lane from now on.
    pub(crate) fn landed(&self, op: &Arc<Operation>, offset: u64, bytes: u64, me: Record) {
        for offset in (offset..offset + bytes).step_by(4) {
            let page = &self.0[(offset / PAGE) as usize];
            let own = page.own(op, &mut page.layers(op));
            own.cells[(offset % PAGE / 4) as usize].landed(me, true, &mut &own.readers);
        }
    }

    /// Compares a copy or fill of bytes and notes it. A conflict comes with the offset of its first byte.
    pub(crate) fn range(
        &self,
        op: &Arc<Operation>,
        from: u64,
        to: u64,
        write: bool,
    ) -> Result<(), (u64, Box<Conflict>)> {
        let (access, vc) = (Access::new(4, 1, write), op.first_knowledge(0, 1));
        let mut compared = Ok(());
        for start in (from / PAGE * PAGE..to).step_by(PAGE as usize) {
            let page = &self.0[(start / PAGE) as usize];
            let (first, end) = (from.max(start) - start, to.min(start + PAGE) - start);
            let mut layers = page.layers(op);
            for l in layers.iter().filter(|l| !op.follows(&l.op)) {
                for cell in first as usize / 4..end.div_ceil(4) as usize {
                    let touch = &Touch { me: whole(cell, first, end), access: &access, vc: &vc, every_reader: true };
                    let at = start + first.max(4 * cell as u64);
                    let meets = || l.compare(touch, cell).map_err(|conflict| (at, conflict));
                    compared = compared.and_then(|()| meets());
                }
            }
            layers.push(Layer { op: op.clone(), trace: Trace::Range(first, end, write) });
            // Whoever goes on after this finds the range.
            page.sole.store(0, Ordering::Release);
        }
        compared
    }
}
