//! Loads, stores and atomics: translates addresses to places in the host's memory, and checks them lane by lane.

use super::float::{self, BF16, F16, F32, F64, Format, Round};
use super::inst::*;
use super::step::Flow;
use super::warp::Warp;
use super::{Cpu, Site};
use crate::machine::access::Access;
use crate::machine::config::Schedule;
use crate::machine::fault::{Fault, FaultKind, OrFault};
use crate::machine::lanes::{Lanes, lanes_where};
use crate::machine::layout::{At, RANK};
use crate::machine::types::{Space, Ty};
use crate::memory::{Allocation, GLOBAL_BASE, LOCAL_BASE, PARAM_BASE, SHARED_BASE, WINDOW};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

impl MemOp {
    /// Number of its pieces of 64 bits.
    pub(crate) fn pieces(&self) -> u8 {
        (self.access.count * self.access.bytes).div_ceil(8) as u8
    }
}

/// Memory that one access may reach.
struct Region {
    /// First address, and bytes from there on.
    base: u64,
    size: u64,
    data: *mut u8,
    /// Bytes between the memories of two lanes, for local memory.
    stride: usize,
}

/// The space that a generic address lies in, and its first address.
pub(crate) fn generic(address: u64) -> (Space, u64) {
    let windows = [(Space::Shared, SHARED_BASE), (Space::Local, LOCAL_BASE), (Space::Param, PARAM_BASE)];
    let found = windows.into_iter().find(|(_, base)| address.wrapping_sub(*base) < WINDOW);
    found.unwrap_or((Space::Global, 0))
}

macro_rules! at {
    ($t:ty, $p:expr) => {
        // SAFETY: the place was checked to hold this many bytes, aligned; all threads use atomics on it.
        unsafe { &*$p.cast::<$t>() }
    };
}

/// Reads an element with acquire, whatever the instruction asks for; ordering is the checks' business.
#[inline(always)]
pub(crate) fn read(p: *mut u8, bytes: u32) -> u64 {
    match bytes {
        1 => u64::from(at!(AtomicU8, p).load(Ordering::Acquire)),
        2 => u64::from(at!(AtomicU16, p).load(Ordering::Acquire)),
        4 => u64::from(at!(AtomicU32, p).load(Ordering::Acquire)),
        _ => at!(AtomicU64, p).load(Ordering::Acquire),
    }
}

/// Writes an element with release.
#[inline(always)]
pub(crate) fn write(p: *mut u8, bytes: u32, v: u64) {
    match bytes {
        1 => at!(AtomicU8, p).store(v as u8, Ordering::Release),
        2 => at!(AtomicU16, p).store(v as u16, Ordering::Release),
        4 => at!(AtomicU32, p).store(v as u32, Ordering::Release),
        _ => at!(AtomicU64, p).store(v, Ordering::Release),
    }
}

impl Cpu<'_> {
    /// [`Cpu::with_places`] by one text for all who call it: that one is long, and stands anew where it is called.
    #[inline(never)]
    pub(crate) fn by_places(
        &mut self,
        site: &mut Site<'_>,
        (space, addr, m): (Space, [u64; 32], u32),
        access: &Access,
        f: &mut dyn FnMut(&[*mut u8; 32], u32),
    ) -> OrFault<()> {
        self.with_places(site, space, addr, m, access, |_, _, places, lanes| f(places, lanes))
    }

    /// Checks and notes an access whose bytes move later.
    pub(crate) fn notes(
        &mut self,
        site: &mut Site<'_>,
        space: Space,
        addr: [u64; 32],
        m: u32,
        access: &Access,
    ) -> OrFault<()> {
        self.by_places(site, (space, addr, m), access, &mut |_, _| {})
    }

    /// Reads a lane's elements, one behind the other.
    pub(crate) fn read_lane(
        &mut self,
        site: &mut Site<'_>,
        (space, from): (Space, u64),
        lane: usize,
        access: &Access,
        to: &mut [u8],
    ) -> OrFault<()> {
        let each = access.bytes as usize;
        self.by_places(site, (space, [from; 32], 1 << lane), access, &mut |ptr, _| {
            for (k, element) in to.chunks_exact_mut(each).enumerate() {
                let value = read(ptr[lane].wrapping_add(each * k), access.bytes).to_le_bytes();
                element.copy_from_slice(&value[..each]);
            }
        })
    }

    /// Runs `f` on the places of an access, once per space and allocation. Faults where an address is misaligned or out
    /// of bounds.
    #[inline(always)]
    pub(crate) fn with_places(
        &mut self,
        site: &mut Site<'_>,
        space: Space,
        mut addr: [u64; 32],
        m: u32,
        access: &Access,
        mut f: impl FnMut(&mut Self, &mut Warp, &[*mut u8; 32], u32),
    ) -> OrFault<()> {
        let total = u64::from(access.bytes * access.count);
        let low = if m == u32::MAX { addr.iter().fold(0, |a, b| a | b) } else { Lanes(m).fold(0, |a, l| a | addr[l]) };
        if low & (total - 1) != 0 {
            let lane = Lanes(m).find(|&l| addr[l] & (total - 1) != 0).unwrap_or(0);
            let message = format!("{total} bytes are accessed at an address that is not a multiple of {total}");
            return Err(self.fault_at(FaultKind::Misaligned, &site.at, lane, addr[lane], message));
        }
        let mut ptr = [std::ptr::null_mut(); 32];
        let mut left = m;
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let (mut kind, mut group) = (space, left);
            let mut window = 0;
            if space == Space::Generic {
                let base;
                (kind, base) = generic(addr[first]);
                window = base;
                group = lanes_where(left, |l| generic(addr[l]).0 == kind);
                Lanes(group).for_each(|l| addr[l] -= base);
            }
            if kind == Space::Shared && self.cx.layout.ranks > 1 {
                let rank = site.at.warp / self.cx.layout.warps;
                Lanes(group).for_each(|l| addr[l] = self.cx.layout.in_cluster(rank, addr[l]));
            }
            let Region { base, size, data, stride } = self.region(site, kind, addr[first], access.write)?;
            let Some(last) = size.checked_sub(total) else {
                return Err(self.outside(kind, (first, addr[first]), total, &site.at));
            };
            let mut most = 0;
            for l in 0..32 {
                let offset = addr[l].wrapping_sub(base);
                ptr[l] = data.wrapping_add((l * stride).wrapping_add(offset as usize));
                most = offset.max(most);
            }
            let fits = |l: usize| addr[l].wrapping_sub(base) <= last;
            let done = if most <= last { group } else { lanes_where(group, fits) };
            // Lanes may be in another allocation or block, but not in none, nor over the end of this one.
            let wrong =
                |l: &usize| !matches!(kind, Space::Global | Space::Shared) || addr[*l].wrapping_sub(base) < size;
            if let Some(l) = Lanes(group & !done).find(wrong) {
                return Err(self.outside(kind, (l, addr[l]), total, &site.at));
            }
            let turn = if self.cx.observed {
                self.accesses((&mut site.common.observers, site.warp), kind, (&addr, done), access, &site.at)?
            } else {
                None
            };
            f(self, site.warp, &ptr, done);
            drop(turn);
            if access.write {
                self.progress |= kind == Space::Global;
                self.wrote = true;
            }
            left &= !done;
            Lanes(group & left).for_each(|l| addr[l] += window);
        }
        Ok(())
    }

    /// The memory that an address lies in; an empty region if none.
    #[inline(always)]
    fn region(&mut self, site: &mut Site<'_>, space: Space, address: u64, write: bool) -> OrFault<Region> {
        let (data, size, stride) = match space {
            Space::Shared => {
                let (base, index) = (address >> RANK << RANK, self.cx.layout.shared_index(address));
                let rank = (address >> RANK).saturating_sub(1);
                let inside = rank < self.cx.layout.ranks.into()
                    && (self.cx.layout.ranks > 1) == (base > 0)
                    && address - base < self.cx.layout.shared.into();
                if inside && self.cx.layout.is_remote(site.at.warp, address) {
                    self.is_there(site, rank, address)?;
                }
                let size = if inside { self.cx.layout.shared.into() } else { 0 };
                let data = site.common.shared.as_mut_ptr().cast::<u8>();
                let data = data.wrapping_add((index - (address - base)) as usize);
                return Ok(Region { base, size, data, stride: 0 });
            }
            Space::Local => {
                let size = self.cx.code.local;
                (site.warp.local.as_mut_ptr(), size, size.next_multiple_of(16) as usize)
            }
            Space::Param if write => {
                let lane = Some(site.m.trailing_zeros() as usize);
                return Err(self.fault(FaultKind::ReadOnly, &site.at, lane, "kernel parameters are written"));
            }
            Space::Param => (self.cx.params.as_ptr().cast_mut(), self.cx.info.param_bytes, 0),
            _ => {
                let mut i = self.site[site.at.pc as usize] as usize;
                let holds = |a: &Arc<Allocation>| address.wrapping_sub(a.base) < a.size;
                if !self.table.live.get(i).is_some_and(holds) {
                    let Some(found) = self.table.find(address) else {
                        return Ok(Region { base: 0, size: 0, data: std::ptr::null_mut(), stride: 0 });
                    };
                    i = found;
                    self.site[site.at.pc as usize] = i as u32;
                }
                let a = &self.table.live[i];
                if write && !self.cx.config.checks.initcheck {
                    a.checks.assume_written();
                }
                return Ok(Region { base: a.base, size: a.size, data: a.data, stride: 0 });
            }
        };
        Ok(Region { base: 0, size: size.into(), data: data.cast(), stride })
    }

    /// Faults where another block of the cluster has exited.
    #[cold]
    fn is_there(&self, site: &Site<'_>, rank: u64, address: u64) -> OrFault<()> {
        let warps = site.common.live.chunks(self.cx.layout.warps as usize).nth(rank as usize);
        if warps.is_some_and(|live| live.iter().any(|&l| l != 0)) {
            return Ok(());
        }
        let lane = site.m.trailing_zeros() as usize;
        let message =
            format!("shared memory of the cluster's block {rank}, which has exited, is accessed; let it wait");
        Err(self.fault_at(FaultKind::UseAfterFree, &site.at, lane, address, message))
    }

    #[cold]
    pub(super) fn outside(&self, space: Space, (lane, addr): (usize, u64), total: u64, at: &At) -> Box<Fault> {
        let window = |size: u32, name| format!("at {addr:#x} of {size} bytes of {name}");
        let near = self.table.below(addr).map(|i| &self.table.live[i]).filter(|a| addr - a.base < a.size + 4096);
        let freed = space == Space::Global && self.table.was_freed(addr);
        let place = match (space, near) {
            (Space::Shared, _) => window(self.cx.layout.shared, "shared memory"),
            (Space::Local, _) => window(self.cx.code.local, "local memory"),
            (Space::Param, _) => window(self.cx.info.param_bytes, "parameters"),
            _ if freed => "in memory that was freed".into(),
            (_, Some(a)) => {
                let end = addr + total - a.base;
                format!("up to byte {end} of an allocation of {} bytes at {:#x}", a.size, a.base)
            }
            _ if addr < GLOBAL_BASE => "at an address that is no device address".into(),
            _ => "outside every allocation".into(),
        };
        let kind = if freed { FaultKind::UseAfterFree } else { FaultKind::OutOfBounds };
        self.fault_at(kind, at, lane, addr, format!("{total} bytes are accessed {place}"))
    }

    /// `ld` and `st`
    pub(crate) fn access(&mut self, site: &mut Site<'_>, op: &MemOp) -> OrFault<()> {
        let (addr, m, bytes) = (site.warp.addresses(&op.address), site.m, op.access.bytes);
        if op.access.write && !site.common.mbarriers.is_empty() {
            self.spoils_mbarrier(site, op.address.space, &addr, &op.access)?;
        }
        if self.defines {
            self.undefined = self.elements(site.warp, op);
        }
        self.with_places(site, op.address.space, addr, m, &op.access, |cpu, warp, ptr, group| {
            for (v, &(r, w)) in op.regs.iter().enumerate() {
                let place = |l: usize| ptr[l].wrapping_add(v * bytes as usize);
                let is_plain = (group, bytes, w) == (u32::MAX, 4, W::W32);
                if op.access.write && is_plain {
                    let words = warp.words(cpu.cx.code, r);
                    (0..32).for_each(|l| write(place(l), 4, words[l].into()));
                } else if op.access.write {
                    Lanes(group).for_each(|l| write(place(l), bytes, warp.lane(cpu.cx.code, (r, w), l)));
                } else if is_plain {
                    let d = &mut warp.regs[r as usize].0;
                    (0..32).for_each(|l| d[l] = read(place(l), 4) as u32);
                } else {
                    let shift = if op.signed { 64 - 8 * bytes } else { 0 };
                    for l in Lanes(group) {
                        let x = read(place(l), bytes);
                        warp.set_lane(r, w, l, ((x << shift) as i64 >> shift) as u64);
                    }
                }
            }
        })?;
        if self.defines && !op.access.write && (self.undefined != [0; 4] || site.warp.defined.any()) {
            self.loaded(site.warp, op, m, site.at.pc, self.undefined_at);
        }
        Ok(())
    }

    /// Whether the pieces of a vector access are executed one by one, since only 64 bits are sure to arrive together. A
    /// load that may overwrite its own address stays whole.
    pub(crate) fn tears(&self, op: &MemOp) -> bool {
        let base = op.address.base..op.address.base.saturating_add(2);
        !self.cx.free
            && self.cx.config.schedule != Schedule::RoundRobin
            && op.pieces() > 1
            && (op.access.write || op.regs.iter().all(|r| !base.contains(&r.0) && !base.contains(&(r.0 + 1))))
    }

    /// Executes piece `k` of a vector access, from either end by the seed. Each piece is checked and ordered like a
    /// whole access.
    #[cold]
    pub(crate) fn torn(&mut self, site: &mut Site<'_>, op: &MemOp, k: u8) -> OrFault<()> {
        let bytes = op.access.bytes as usize;
        let order = self.cx.config.seed ^ u64::from(site.at.warp ^ site.at.ctaid[0]);
        let k = usize::from(if order & 1 == 1 { op.pieces() - 1 - k } else { k });
        let each = (8 / bytes).max(1);
        let regs = op.regs[each * k..(each * (k + 1)).min(op.regs.len())].to_vec();
        let offset = op.address.offset.wrapping_add((each * k * bytes) as i64);
        let access = Access { count: regs.len() as u32, ..op.access };
        self.access(site, &MemOp { regs, access, address: Address { offset, ..op.address }, ..*op })
    }

    /// `atom` and `red`, lane after lane, lowest first: memory becomes `f(old, b, c)`, register `d` the old value.
    pub(crate) fn atomic(
        &mut self,
        site: &mut Site<'_>,
        (address, access): (&Address, &Access),
        f: AtomFn,
        [d, b, c]: [R; 3],
    ) -> OrFault<Flow> {
        let (bytes, m) = (access.bytes, site.m);
        let w = if bytes == 8 { W::W64 } else { W::W32 };
        let mask = u64::MAX >> (64 - 8 * bytes);
        let addr = site.warp.addresses(address);
        let (progress, wrote) = (self.progress, self.wrote);
        let mut changed = false;
        if !site.common.mbarriers.is_empty() {
            self.spoils_mbarrier(site, address.space, &addr, access)?;
        }
        self.with_places(site, address.space, addr, m, access, |cpu, warp, ptr, group| {
            for l in Lanes(group) {
                let [b, c] = [b, c].map(|r| warp.lane(cpu.cx.code, (r, w), l));
                let old = atomic_update(ptr[l], bytes, |old| f(old, b, c));
                changed |= f(old, b, c) & mask != old;
                if d != NONE {
                    warp.set_lane(d, w, l, old);
                }
            }
        })?;
        // An atomic that leaves things as they were is a poll.
        (self.progress, self.wrote) = (progress | changed, wrote | changed);
        self.tried = Some(!changed);
        Ok(Flow::Next)
    }
}

/// Reads, modifies and writes an element atomically.
fn atomic_update(p: *mut u8, bytes: u32, f: impl Fn(u64) -> u64) -> u64 {
    let (set, get) = (Ordering::AcqRel, Ordering::Acquire);
    match bytes {
        2 => u64::from(at!(AtomicU16, p).fetch_update(set, get, |v| Some(f(u64::from(v)) as u16)).unwrap_or(0)),
        4 => u64::from(at!(AtomicU32, p).fetch_update(set, get, |v| Some(f(u64::from(v)) as u32)).unwrap_or(0)),
        _ => at!(AtomicU64, p).fetch_update(set, get, |v| Some(f(v))).unwrap_or(0),
    }
}

/// The function of `atom`, `red` and `redux` for a type. Bits of its result above the type's are dropped.
pub(crate) fn atom_fn(name: &str, ty: Ty) -> Option<AtomFn> {
    use Ty::*;
    fn sum(f: Format, x: u64, y: u64) -> u64 {
        let low = |v: u64| f.value(v & (f.sign() << 1).wrapping_sub(1));
        f.round(float::add(low(x), low(y)), Round::Near, false)
    }
    Some(match (name, ty) {
        ("add", U32 | S32 | U64 | S64) => |old, b, _| old.wrapping_add(b),
        ("min", U32 | U64) => |old, b, _| old.min(b),
        ("max", U32 | U64) => |old, b, _| old.max(b),
        ("min", S32) => |old, b, _| (old as i32).min(b as i32) as u64,
        ("max", S32) => |old, b, _| (old as i32).max(b as i32) as u64,
        ("min", S64) => |old, b, _| (old as i64).min(b as i64) as u64,
        ("max", S64) => |old, b, _| (old as i64).max(b as i64) as u64,
        ("inc", U32) => |old, b, _| if old >= b { 0 } else { old + 1 },
        ("dec", U32) => |old, b, _| if old == 0 || old > b { b } else { old - 1 },
        ("and", B32 | B64) => |old, b, _| old & b,
        ("or", B32 | B64) => |old, b, _| old | b,
        ("xor", B32 | B64) => |old, b, _| old ^ b,
        ("exch", B32 | B64) => |_, b, _| b,
        ("cas", B16 | B32 | B64) => |old, b, c| if old == b { c } else { old },
        // Sums of f32 in global memory flush no subnormals.
        ("add", F32) => |old, b, _| sum(self::F32, old, b),
        ("add", F64) => |old, b, _| sum(self::F64, old, b),
        ("add", F16) => |old, b, _| sum(self::F16, old, b),
        ("add", BF16) => |old, b, _| sum(self::BF16, old, b),
        ("add", F16x2) => |old, b, _| sum(self::F16, old, b) | sum(self::F16, old >> 16, b >> 16) << 16,
        ("add", BF16x2) => |old, b, _| sum(self::BF16, old, b) | sum(self::BF16, old >> 16, b >> 16) << 16,
        _ => return None,
    })
}
