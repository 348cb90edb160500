//! A chip during a launch: takes instructions and accesses in the order in which they are emulated, and gives each its
//! time.

use super::cache::{Cache, LINE, SECTOR};
use super::calendar;
use super::fold::{Cost, Kind, UNROLLED};
use super::hierarchy::Hierarchy;
use super::multiprocessor::Multiprocessor;
use super::opcodes::Pipe;
use super::report::{Stall, Stay, Timing};
use super::warps::BlockTime;
use crate::machine::access::Access;
use crate::machine::banks::passes;
use crate::machine::chip::ChipFile;
use crate::machine::lanes::Lanes;
use crate::machine::mix::MixMap;
use crate::machine::types::Space;

/// Marks words of shared memory among those of device memory.
const SHARED: u64 = 1 << 63;

/// Lines whose tags L1 looks up in a clock (NVIDIA's forum, thread 49571, of Volta and later).
const TAGS: u32 = 4;

/// A chip during a launch.
pub(crate) struct Timekeeper<'a> {
    chip: &'static ChipFile,
    costs: &'a [Cost],
    multiprocessors: Vec<Multiprocessor>,
    hierarchy: Hierarchy,
    /// When the last value of each eight-byte word that strong accesses share can be seen.
    words: MixMap<u64, u64>,
    /// The clock at which a warp gives way to others.
    pub(crate) horizon: u64,
    /// The lines of the access at hand.
    lines: Vec<(u64, u8)>,
    stays: Vec<Stay>,
    end: u64,
}

impl<'a> Timekeeper<'a> {
    /// A chip at rest whose multiprocessors give `shared` bytes of their L1 away; `l2` is what its L2 holds.
    pub(crate) fn new(chip: &'static ChipFile, costs: &'a [Cost], shared: u64, l2: Option<L2>) -> Timekeeper<'a> {
        Timekeeper {
            chip,
            costs,
            multiprocessors: (0..chip.multiprocessors).map(|_| Multiprocessor::new(chip, shared)).collect(),
            hierarchy: Hierarchy::new(chip, l2.filter(|l2| l2.chip == chip.name).map(|l2| l2.cache)),
            words: MixMap::default(),
            horizon: 0,
            lines: Vec::new(),
            stays: Vec::new(),
            end: 0,
        }
    }

    /// A block of so many ranks whose first begins at clock `begin` on a multiprocessor.
    pub(crate) fn block(&mut self, first: u32, (ranks, warps): (u32, u32), registers: usize, begin: u64) -> BlockTime {
        let places = (0..ranks).map(|rank| (first + rank) % self.chip.multiprocessors);
        let places = places.map(|place| (place, self.multiprocessors[place as usize].begin(warps))).collect();
        BlockTime::new(places, warps, registers, begin, self.chip.barrier.map(|clocks| clocks.value as u64))
    }

    /// Clocks of a time in nanoseconds, and the reverse.
    pub(crate) fn clocks(&self, nanoseconds: u64) -> u64 {
        self.chip.clocks(nanoseconds as f64)
    }

    pub(crate) fn nanoseconds(&self, clocks: u64) -> u64 {
        self.chip.nanoseconds(clocks) as u64
    }

    /// A warp issues an instruction. Returns whether it should give way.
    pub(crate) fn issue(&mut self, block: &mut BlockTime, warp: u32, pc: u32) -> bool {
        let (cost, place, number, seen) =
            (&self.costs[pc as usize], block.place(warp), block.number(warp), block.stores);
        let time = &mut block.warps[warp as usize];
        let jumped = cost.leads && pc != time.before.wrapping_add(1);
        if cost.leads {
            let turns = if cost.again == Some(time.before) { time.turns + 1 } else { 0 };
            time.turns = turns % UNROLLED;
        }
        time.before = pc;
        if cost.leads && time.turns == 0 || cost.ordered {
            let after = if jumped { time.latest + self.chip.branch.value as u64 } else { time.latest };
            time.floor = time.floor.max(after);
        }
        let (mut at, mut stall) = (time.floor, Stall::Dependency);
        for &r in &cost.reads {
            let (ready, by) = time.ready[r as usize];
            if ready > at {
                (at, stall) = (ready, by);
            }
        }
        if cost.kind == Kind::Load && !cost.constant {
            at = at.max(time.stored);
        }
        if cost.near {
            at = at.max(time.far_back());
        }
        if cost.releases && cost.kind != Kind::Fence {
            (at, stall) = (seen.max(at + self.hierarchy.fence), Stall::Barrier);
        }
        if cost.pipe == Pipe::Folded {
            time.now = at;
            cost.writes.iter().for_each(|&r| time.ready[r as usize] = (at, stall));
            return false;
        }
        let begins = if time.asks { at } else { self.multiprocessors[place].issue(number, cost, at) };
        if begins > time.latest {
            // An instruction a clock is no waiting.
            let waited = at.saturating_sub(time.latest + 1);
            time.stalls[stall as usize] += waited;
            time.stalls[Stall::Issue as usize] += begins.saturating_sub(at.max(time.latest + 1));
            time.latest = begins;
        }
        time.now = begins;
        time.issued(begins);
        match cost.kind {
            Kind::Copy => time.copied = 0,
            Kind::Fence => {
                time.wait(seen.max(begins + self.hierarchy.fence), Stall::Barrier);
                self.multiprocessors[place].l1.clear();
            }
            _ if cost.ordered => time.floor = time.floor.max(begins),
            _ => {}
        }
        let chip = self.chip;
        let latency = match cost.pipe {
            Pipe::Folded | Pipe::Control | Pipe::Memory => 1.0,
            Pipe::Fma | Pipe::Heavy | Pipe::Alu | Pipe::Half | Pipe::Double | Pipe::Convert => chip.latency.value,
            Pipe::Sixteen => chip.sixteen_latency.value,
            Pipe::Shuffle => chip.shuffle_latency.value,
            Pipe::Tensor { .. } => chip.tensor_latency.value,
            Pipe::Warpgroup { products } => {
                let end = self.multiprocessors[place].multiply(number, products, begins.max(time.products_begin));
                time.products_begin = end;
                time.product = end + chip.tensor_latency.value as u64;
                1.0
            }
        };
        // Those around it hang together.
        let ready = begins + (latency + chip.latency.value * f64::from(cost.extra)) as u64;
        cost.writes.iter().for_each(|&r| time.ready[r as usize] = (ready, Stall::Dependency));
        time.latest > self.horizon
    }

    /// Lanes of a warp access memory by the instruction that it has just issued.
    pub(crate) fn access(
        &mut self,
        block: &mut BlockTime,
        (warp, pc): (u32, u32),
        space: Space,
        (addr, m): (&[u64; 32], u32),
        access: &Access,
        is_host: bool,
    ) {
        let (cost, place) = (&self.costs[pc as usize], block.place(warp));
        let bytes = u64::from(access.bytes * access.count);
        let time = &mut block.warps[warp as usize];
        if access.pending && cost.kind == Kind::Copy && space == Space::Shared {
            // What a copy brings is written when it lands.
            self.multiprocessors[place].unit(time.copied.max(time.now), passes(addr, m, bytes).0);
        }
        if access.pending || cost.kind == Kind::Bulk || space == Space::Param {
            return;
        }
        let (done, stall) = match space {
            Space::Shared => {
                let (passes, _) = passes(addr, m, bytes);
                let least = self.chip.request.value as u32;
                let (begin, _) = self.multiprocessors[place].unit(time.now, passes.max(least));
                let wide = match bytes {
                    0..=4 => 0,
                    5..=8 => 1,
                    _ => 2,
                };
                let latency = self.chip.shared[wide].value;
                let conflicts = passes.saturating_sub((bytes / 4).max(1) as u32);
                let mut done = begin + latency as u64 + u64::from(conflicts);
                let key = |l: usize| SHARED | (place as u64) << 32 | addr[l] >> 3;
                let strong = access.is_strong() && !matches!(cost.kind, Kind::Mbarrier | Kind::Look);
                if cost.kind == Kind::Look || strong && !access.write {
                    let at = time.looks(look(pc, addr, m), &cost.writes);
                    done = at + latency as u64;
                    let seen = Lanes(m).filter_map(|l| self.words.get(&key(l)).copied()).max();
                    (seen.map_or(done, |seen| done.max(seen + latency as u64)), Stall::Barrier)
                } else {
                    if access.write {
                        time.acts();
                        time.stored = time.stored.max(time.now);
                    }
                    if strong {
                        self.words.extend(Lanes(m).map(|l| (key(l), done)));
                    }
                    (done, Stall::Memory)
                }
            }
            Space::Local => {
                let (begin, _) = self.multiprocessors[place].unit(time.now, bytes.div_ceil(4).max(2) as u32);
                (begin + self.chip.l1.value as u64, Stall::Memory)
            }
            _ if is_host => return self.host(block, (warp, pc), (addr, m), access),
            _ => return self.device(block, (warp, pc), (addr, m), access),
        };
        if !access.write || access.atomic {
            time.brings(&cost.writes, done, stall);
        }
    }

    /// An access to device memory.
    fn device(&mut self, block: &mut BlockTime, (warp, pc): (u32, u32), (addr, m): (&[u64; 32], u32), access: &Access) {
        let (cost, place) = (&self.costs[pc as usize], block.place(warp));
        let bytes = u64::from(access.bytes * access.count);
        let time = &mut block.warps[warp as usize];
        lines(addr, m, bytes, &mut self.lines);
        let lines = self.lines.len() as u32;
        // A copy past L1 has nothing in its banks.
        let past = cost.kind == Kind::Copy && cost.bypasses;
        let clocks = if past { lines.div_ceil(TAGS) } else { stages(addr, m, bytes, lines) };
        let clocks = clocks.max(self.chip.request.value as u32);
        let (begin, _) = self.multiprocessors[place].unit(time.now, clocks);
        let (mut done, mut stall) = (begin, Stall::Memory);
        if access.atomic {
            time.acts();
            let (mut there, mut back) = (begin, 0);
            for &(line, sectors) in &self.lines {
                let (came, known) = self.hierarchy.write(place, line, sectors, begin);
                (there, back) = (there.max(came), back.max(known - came));
            }
            for l in Lanes(m) {
                // Warps are emulated a little out of their order: the last operation is the latest.
                let seen = self.words.entry(addr[l] >> 3).or_default();
                *seen = self.hierarchy.operate(addr[l] / LINE, there).max(*seen + self.chip.atomic.value as u64);
                done = done.max(*seen + back);
            }
            block.stores = block.stores.max(done);
        } else if access.write {
            time.acts();
            time.stored = time.stored.max(time.now);
            for &(line, sectors) in &self.lines {
                let (there, known) = self.hierarchy.write(place, line, sectors, begin);
                block.stores = block.stores.max(known);
                done = done.max(there);
            }
            if access.is_strong() {
                self.words.extend(Lanes(m).map(|l| (addr[l] >> 3, done)));
            }
        } else if access.is_strong() {
            let looked = time.polls.len();
            let trip = self.lines.iter().map(|line| self.hierarchy.trip(place, line.0)).max().unwrap_or(0);
            let key = look(pc, addr, m);
            let at = time.looks(key, &cost.writes);
            done = at + trip;
            if time.polls.len() > looked {
                for &(line, sectors) in &self.lines {
                    done = done.max(self.hierarchy.read(place, line, (sectors, 0), begin));
                }
            }
            for l in Lanes(m) {
                if let Some(seen) = self.words.get(&(addr[l] >> 3)) {
                    // A look that just missed it, and the way back of the next one.
                    (done, stall) = (done.max(seen + trip), Stall::Barrier);
                }
            }
            // Looks in vain move the same bytes, each behind the one before. A load that is not repeated is no look in vain.
            if let Some(poll) = time.polls.iter_mut().find(|poll| poll.key == key && poll.last.is_some()) {
                let period = trip + poll.between;
                let mut next = (poll.charged + period).max(done.saturating_sub(calendar::REACH));
                while next + trip <= done {
                    poll.charged = next;
                    let read = |line: &(u64, u8)| self.hierarchy.read(place, line.0, (line.1, 0), poll.charged);
                    next = self.lines.iter().map(read).fold(next + period, u64::max);
                }
            }
            if cost.acquires {
                time.wait(done, stall);
                self.multiprocessors[place].l1.clear();
            }
        } else {
            for &(line, sectors) in &self.lines {
                let hit = begin + self.chip.l1.value as u64;
                if cost.bypasses {
                    done = done.max(self.hierarchy.read(place, line, (sectors, cost.fetches), begin));
                    continue;
                }
                let l1 = &mut self.multiprocessors[place].l1;
                let found = l1.look(line, sectors, false);
                done = done.max(hit.max(found.ready));
                if found.missing != 0 {
                    let came = self.hierarchy.read(place, line, (found.missing, cost.fetches), begin);
                    l1.filled(line, came);
                    done = done.max(came);
                }
            }
        }
        if cost.kind == Kind::Copy {
            time.copied = time.copied.max(done);
        }
        if !access.write || access.atomic {
            time.brings(&cost.writes, done, stall);
        }
    }

    /// An access to the host's memory. A look that comes again has waited for the host's answer.
    fn host(&mut self, block: &mut BlockTime, (warp, pc): (u32, u32), (addr, m): (&[u64; 32], u32), access: &Access) {
        let cost = &self.costs[pc as usize];
        let time = &mut block.warps[warp as usize];
        let mut done = time.now + self.chip.clocks(self.chip.host.value);
        if access.write {
            time.acts();
            time.stored = time.stored.max(time.now);
            block.stores = block.stores.max(done);
        } else if access.is_strong() {
            let key = look(pc, addr, m);
            done = time.looks(key, &cost.writes) + self.chip.clocks(self.chip.host.value);
            if time.polls.iter().any(|poll| poll.key == key && poll.last.is_some()) {
                time.asks = true;
                done += self.chip.clocks(1e3 * self.chip.answer.value);
            }
            if cost.acquires {
                time.wait(done, Stall::Barrier);
            }
        }
        if !access.write || access.atomic {
            let stall = if access.is_strong() { Stall::Barrier } else { Stall::Memory };
            time.brings(&cost.writes, done, stall);
        }
    }

    /// A warp asks L2 for `bytes` bytes at an address; nothing waits for them.
    pub(crate) fn prefetch(&mut self, block: &mut BlockTime, warp: u32, (from, bytes): (u64, u64)) {
        let (place, at) = (block.place(warp), block.warps[warp as usize].now);
        for (line, sectors) in sectors(from, bytes) {
            self.hierarchy.ask(place, line, sectors, at);
        }
    }

    /// A warp issues a bulk copy between shared memory and `bytes` at an address; whether it is the last to want them.
    /// Returns when it has landed.
    pub(crate) fn bulk(
        &mut self,
        block: &mut BlockTime,
        warp: u32,
        (from, bytes): (u64, u64),
        (write, is_last): (bool, bool),
    ) -> u64 {
        let place = block.place(warp);
        let time = &mut block.warps[warp as usize];
        let at = time.now + self.chip.bulk.value as u64;
        let mut done = at;
        for (line, sectors) in sectors(from, bytes) {
            done = done.max(match write {
                true => self.hierarchy.write(place, line, sectors, at).1,
                false => self.hierarchy.read(place, line, (sectors, 0), at),
            });
            if is_last {
                self.hierarchy.l2.give_up_first(line);
            }
        }
        time.acts();
        time.copied = done;
        if write {
            block.stores = block.stores.max(done);
        }
        done
    }

    /// A block has come to its end. Returns when the next one can begin.
    pub(crate) fn finish(&mut self, number: u64, block: &BlockTime) -> u64 {
        // Nobody waits for a block's stores but who comes after the launch.
        let end = block.end();
        let nanoseconds = |clocks| self.chip.nanoseconds(clocks);
        for (rank, &(multiprocessor, _)) in block.places.iter().enumerate() {
            self.stays.push(Stay {
                block: number + rank as u64,
                multiprocessor,
                begin: nanoseconds(block.begin),
                end: nanoseconds(end),
                stalls: block.stalls().map(|clocks| clocks / self.chip.clock.value),
            });
        }
        self.end = self.end.max(end).max(block.stores);
        end + self.chip.clocks(self.chip.turn.value)
    }

    /// The launch's time, and what L2 holds after it.
    pub(crate) fn report(self) -> (Timing, L2) {
        let [l2_bytes, dram_bytes] = self.hierarchy.moved();
        let slots = 4.0 * self.multiprocessors.len() as f64 * self.end.max(1) as f64;
        let issued: f64 = self.multiprocessors.iter().map(Multiprocessor::issued).sum();
        let timing = Timing {
            chip: self.chip.name,
            nanoseconds: self.chip.nanoseconds(self.end),
            l2_bytes,
            dram_bytes,
            issued: issued / slots,
            blocks: self.stays,
        };
        (timing, L2 { chip: self.chip.name, cache: self.hierarchy.l2 })
    }
}

/// What a chip's L2 holds between two launches.
#[derive(Debug)]
pub(crate) struct L2 {
    chip: &'static str,
    cache: Cache,
}

/// A look's key: the instruction and its addresses.
fn look(pc: u32, addr: &[u64; 32], m: u32) -> u64 {
    let mix = |key: u64, value: u64| (key.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Lanes(m).fold(mix(u64::from(pc), u64::from(m)), |key, l| mix(key, addr[l]))
}

/// The lines of a range of bytes, each with its sectors.
fn sectors(from: u64, bytes: u64) -> impl Iterator<Item = (u64, u8)> {
    let (first, last) = (from / SECTOR, (from + bytes).div_ceil(SECTOR));
    let per_line = LINE / SECTOR;
    (first / per_line..last.div_ceil(per_line)).map(move |line| {
        let range = first.max(line * per_line)..last.min((line + 1) * per_line);
        (line, range.fold(0u8, |all, sector| all | 1 << (sector % per_line)))
    })
}

/// The lines that lanes touch, with their sectors.
fn lines(addr: &[u64; 32], m: u32, bytes: u64, found: &mut Vec<(u64, u8)>) {
    found.clear();
    for l in Lanes(m) {
        for sector in addr[l] / SECTOR..(addr[l] + bytes).div_ceil(SECTOR) {
            let (line, bit) = (sector / (LINE / SECTOR), 1 << (sector % (LINE / SECTOR)));
            match found.iter_mut().rev().find(|entry| entry.0 == line) {
                Some(entry) => entry.1 |= bit,
                None => found.push((line, bit)),
            }
        }
    }
}

/// Clocks of an access in L1: its tags are looked up, its data lie in the banks of shared memory.
fn stages(addr: &[u64; 32], m: u32, bytes: u64, lines: u32) -> u32 {
    if u64::from(lines) * LINE <= bytes * u64::from(m.count_ones()) {
        return lines;
    }
    passes(addr, m, bytes).0.max(lines.div_ceil(TAGS))
}
