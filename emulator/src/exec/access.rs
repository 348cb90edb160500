//! Loads, stores and atomics: addresses to places in the host's memory, checked lane by lane.

use super::fault::{Fault, FaultKind};
use super::float::{self, BF16, F16, F32, F64, Format, Round};
use super::inst::*;
use super::lanes::Lanes;
use super::step::Next;
use super::warp::Warp;
use super::{At, Cpu, Exec, Site};
use crate::memory::{GLOBAL_BASE, LOCAL_BASE, PARAM_BASE, SHARED_BASE, WINDOW};
use crate::ptx::types::Ty;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// What an access does, for the checks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    /// Bytes of one element, and elements.
    pub(crate) bytes: u32,
    pub(crate) count: u32,
    pub(crate) write: bool,
    pub(crate) atomic: bool,
    pub(crate) sem: Sem,
    pub(crate) scope: Scope,
    pub(crate) nc: bool,
    /// Through the async proxy.
    pub(crate) proxy: bool,
    /// In flight until some wait.
    pub(crate) pending: bool,
    /// The instruction names constant memory.
    pub(crate) constant_space: bool,
}

impl Access {
    /// An ordinary one.
    pub(crate) fn new(bytes: u32, count: u32, write: bool) -> Access {
        let (atomic, nc, proxy, pending, constant_space) = (false, false, false, false, false);
        Access { bytes, count, write, atomic, sem: Sem::Weak, scope: Scope::Cta, nc, proxy, pending, constant_space }
    }
}

impl MemOp {
    /// Pieces of 64 bits.
    pub(crate) fn pieces(&self) -> u8 {
        (self.access.count * self.access.bytes).div_ceil(8) as u8
    }
}

/// Places of the lanes of one access that fall into the same space.
pub(crate) struct Places {
    pub(crate) ptr: [*mut u8; 32],
    pub(crate) addr: [u64; 32],
}

/// The space an address of the generic space lies in, and where that begins.
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

/// Reads an element.
#[inline(always)]
pub(crate) fn read(p: *mut u8, bytes: u32, acquire: bool) -> u64 {
    let o = if acquire { Ordering::Acquire } else { Ordering::Relaxed };
    match bytes {
        1 => u64::from(at!(AtomicU8, p).load(o)),
        2 => u64::from(at!(AtomicU16, p).load(o)),
        4 => u64::from(at!(AtomicU32, p).load(o)),
        _ => at!(AtomicU64, p).load(o),
    }
}

/// Writes an element.
#[inline(always)]
pub(crate) fn write(p: *mut u8, bytes: u32, v: u64, release: bool) {
    let o = if release { Ordering::Release } else { Ordering::Relaxed };
    match bytes {
        1 => at!(AtomicU8, p).store(v as u8, o),
        2 => at!(AtomicU16, p).store(v as u16, o),
        4 => at!(AtomicU32, p).store(v as u32, o),
        _ => at!(AtomicU64, p).store(v, o),
    }
}

impl Cpu<'_> {
    /// Addresses of all lanes.
    #[inline(always)]
    pub(crate) fn addresses(&self, warp: &Warp, a: &Address) -> [u64; 32] {
        let mut out = [a.offset as u64; 32];
        if a.base != NONE && a.wide {
            let p = warp.regs[a.base as usize..a.base as usize + 2].as_ptr().cast::<[u64; 32]>();
            // SAFETY: two slots are 32 values of 64 bits.
            let base = unsafe { &*p };
            for i in 0..32 {
                out[i] = base[i].wrapping_add(a.offset as u64);
            }
        } else if a.base != NONE {
            let base = &warp.regs[a.base as usize].0;
            for i in 0..32 {
                out[i] = u64::from(base[i].wrapping_add(a.offset as u32));
            }
        }
        out
    }

    /// Runs `f` on the places of an access, once per space and allocation; faults where an address is not allowed.
    #[inline(always)]
    pub(crate) fn with_places(
        &mut self,
        site: &mut Site<'_>,
        space: Space,
        addr: [u64; 32],
        m: u32,
        access: &Access,
        mut f: impl FnMut(&mut Self, &mut Warp, &[*mut u8; 32], u32),
    ) -> Exec<()> {
        let total = access.bytes * access.count;
        let low = if m == u32::MAX { addr.iter().fold(0, |a, b| a | b) } else { Lanes(m).fold(0, |a, l| a | addr[l]) };
        if low & u64::from(total - 1) != 0 {
            return Err(self.misaligned(&addr, m, total, &site.at));
        }
        let mut places = Places { ptr: [std::ptr::null_mut(); 32], addr };
        let mut left = m;
        while left != 0 {
            let (mut kind, mut group) = (space, left);
            if space == Space::Generic {
                let base;
                (kind, base) = generic(addr[left.trailing_zeros() as usize]);
                group = Lanes(left).filter(|&l| generic(addr[l]).0 == kind).fold(0, |g, l| g | 1 << l);
                if kind != Space::Global {
                    Lanes(group).for_each(|l| places.addr[l] -= base);
                }
            }
            let done = match kind {
                Space::Global | Space::Generic => self.global(&mut places, group, total, access, &site.at)?,
                _ => self.windowed(site, kind, &mut places, group, total, access)?,
            };
            let turn = if self.cx.watched {
                self.check(&mut site.common.checks, kind, &places.addr, done, access, &site.at)?
            } else {
                None
            };
            f(self, site.warp, &places.ptr, done);
            drop(turn);
            if access.write && kind == Space::Global {
                self.progress = true;
            }
            left &= !done;
        }
        Ok(())
    }

    #[cold]
    fn misaligned(&self, addr: &[u64; 32], m: u32, total: u32, at: &At) -> Box<Fault> {
        let lane = Lanes(m).find(|&l| addr[l] & u64::from(total - 1) != 0).unwrap_or(0);
        let message = format!("{total} bytes are accessed at an address that is not a multiple of {total}");
        self.fault_at(FaultKind::Misaligned, at, lane, addr[lane], message)
    }

    #[cold]
    fn outside(&self, addr: u64, lane: usize, total: u32, at: &At) -> Box<Fault> {
        let near = self.table.below(addr).filter(|a| addr - a.base < a.size + 4096);
        let (kind, place) = if self.table.was_freed(addr) {
            (FaultKind::UseAfterFree, "in memory that was freed".into())
        } else if let Some(a) = near {
            let end = addr + u64::from(total) - a.base;
            let text = format!("up to byte {end} of an allocation of {} bytes at {:#x}", a.size, a.base);
            (FaultKind::OutOfBounds, text)
        } else if addr < GLOBAL_BASE {
            (FaultKind::OutOfBounds, "at an address that is no device address".into())
        } else {
            (FaultKind::OutOfBounds, "outside every allocation".into())
        };
        self.fault_at(kind, at, lane, addr, format!("{total} bytes are accessed {place}"))
    }

    /// Places in device memory of those lanes that fall into the allocation of the first.
    #[inline(always)]
    fn global(&mut self, p: &mut Places, group: u32, total: u32, access: &Access, at: &At) -> Exec<u32> {
        let first = group.trailing_zeros() as usize;
        let cached = self.site[at.pc as usize] as usize;
        let i = if self.table.live.get(cached).is_some_and(|a| p.addr[first].wrapping_sub(a.base) < a.size) {
            cached
        } else {
            let Some(i) = self.table.find(p.addr[first]) else {
                return Err(self.outside(p.addr[first], first, total, at));
            };
            self.site[at.pc as usize] = i as u32;
            i
        };
        let a = &self.table.live[i];
        let (base, data) = (a.base, a.data);
        let Some(last) = a.size.checked_sub(u64::from(total)) else {
            return Err(self.outside(p.addr[first], first, total, at));
        };
        let mut inside = 0u32;
        if group == u32::MAX {
            let mut worst = 0u64;
            for l in 0..32 {
                worst |= u64::from(p.addr[l].wrapping_sub(base) > last);
            }
            if worst == 0 {
                for l in 0..32 {
                    p.ptr[l] = data.wrapping_add(p.addr[l].wrapping_sub(base) as usize);
                }
                inside = u32::MAX;
            }
        }
        if inside == 0 {
            for l in Lanes(group) {
                let offset = p.addr[l].wrapping_sub(base);
                if offset <= last {
                    p.ptr[l] = data.wrapping_add(offset as usize);
                    inside |= 1 << l;
                } else if offset < a.size {
                    return Err(self.outside(p.addr[l], l, total, at));
                }
            }
        }
        if access.write && !self.cx.config.checks.initcheck && !a.assumed.load(Ordering::Relaxed) {
            a.assumed.store(true, Ordering::Relaxed);
        }
        if access.write && access.constant_space {
            return Err(self.fault(FaultKind::ReadOnly, at, Some(first), "constant memory is written"));
        }
        Ok(inside)
    }

    /// Places in shared, local or parameter memory.
    #[inline(always)]
    fn windowed(
        &self,
        site: &mut Site<'_>,
        space: Space,
        p: &mut Places,
        group: u32,
        total: u32,
        access: &Access,
    ) -> Exec<u32> {
        // Local memory lies lane after lane.
        let (data, size, stride, name) = match space {
            Space::Shared => (site.common.shared.as_mut_ptr(), site.common.shared_bytes, 0, "shared memory"),
            Space::Local => {
                let size = self.cx.code.local;
                (site.warp.local.as_mut_ptr(), size, size.next_multiple_of(16) as usize, "local memory")
            }
            _ => (self.cx.params.as_ptr().cast_mut(), self.cx.info.param_bytes, 0, "parameters"),
        };
        if access.write && space == Space::Param {
            let lane = Some(group.trailing_zeros() as usize);
            return Err(self.fault(FaultKind::ReadOnly, &site.at, lane, "kernel parameters are written"));
        }
        for l in Lanes(group) {
            let a = p.addr[l];
            if a.saturating_add(u64::from(total)) > u64::from(size) {
                let message = format!("{total} bytes are accessed at {a:#x} of {size} bytes of {name}");
                return Err(self.fault_at(FaultKind::OutOfBounds, &site.at, l, a, message));
            }
            p.ptr[l] = data.cast::<u8>().wrapping_add(l * stride + a as usize);
        }
        Ok(group)
    }

    /// `ld` and `st`
    #[inline(always)]
    pub(crate) fn access(&mut self, site: &mut Site<'_>, op: &MemOp) -> Exec<()> {
        let (addr, m, bytes) = (self.addresses(site.warp, &op.address), site.m, op.access.bytes);
        if op.access.write {
            let release = op.access.sem >= Sem::Release;
            return self.with_places(site, op.address.space, addr, m, &op.access, |cpu, warp, ptr, group| {
                for (v, &r) in op.regs.iter().enumerate() {
                    for l in Lanes(group) {
                        let x = warp.lane(cpu.cx.code, r, l);
                        write(ptr[l].wrapping_add(v * bytes as usize), bytes, x, release);
                    }
                }
            });
        }
        let acquire = op.access.sem >= Sem::Acquire;
        self.with_places(site, op.address.space, addr, m, &op.access, |_, warp, ptr, group| {
            let plain = op.access.sem == Sem::Weak && group == u32::MAX && bytes == 4;
            if plain && op.regs.iter().all(|r| r.1 == W::W32) {
                for (v, (r, _)) in op.regs.iter().enumerate() {
                    let d = &mut warp.regs[*r as usize].0;
                    for l in 0..32 {
                        d[l] = at!(AtomicU32, ptr[l].wrapping_add(4 * v)).load(Ordering::Relaxed);
                    }
                }
                return;
            }
            for (v, &(r, w)) in op.regs.iter().enumerate() {
                for l in Lanes(group) {
                    let x = read(ptr[l].wrapping_add(v * bytes as usize), bytes, acquire);
                    let shift = if op.signed { 64 - 8 * bytes } else { 0 };
                    warp.set_lane(r, w, l, ((x << shift) as i64 >> shift) as u64);
                }
            }
        })
    }

    /// Whether the pieces of a vector access arrive one by one: only 64 bits are sure to arrive together.
    pub(crate) fn tears(&self, op: &MemOp) -> bool {
        !self.cx.free && self.cx.config.schedule != crate::launch::Schedule::RoundRobin && op.pieces() > 1
    }

    /// Piece `k` of a vector access, in one of two orders; a later one is checked and ordered like the first.
    #[cold]
    pub(crate) fn torn(&mut self, site: &mut Site<'_>, op: &MemOp, k: u8) -> Exec<()> {
        let bytes = op.access.bytes as usize;
        let order = self.cx.config.seed ^ u64::from(site.at.warp ^ site.at.ctaid[0]);
        let k = usize::from(if order & 1 == 1 { op.pieces() - 1 - k } else { k });
        let each = (8 / bytes).max(1);
        let regs = op.regs[each * k..(each * (k + 1)).min(op.regs.len())].to_vec();
        let offset = op.address.offset.wrapping_add((each * k * bytes) as i64);
        let access = Access { count: regs.len() as u32, ..op.access };
        self.access(site, &MemOp { regs, access, address: Address { offset, ..op.address }, ..*op })
    }

    /// `atom` and `red`, lane after lane, lowest first: `f` of what is there, b and c; d receives the old value.
    pub(crate) fn atomic(
        &mut self,
        site: &mut Site<'_>,
        (address, access): (&Address, &Access),
        f: AtomFn,
        [d, b, c]: [R; 3],
    ) -> Exec<Next> {
        let (bytes, m) = (access.bytes, site.m);
        let w = if bytes == 8 { W::W64 } else { W::W32 };
        let mask = u64::MAX >> (64 - 8 * bytes);
        let addr = self.addresses(site.warp, address);
        let progress = self.progress;
        let mut changed = false;
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
        self.progress = progress | changed;
        Ok(Next::Step)
    }
}

/// Read, modify, write as one: other threads of the host may be at it too.
fn atomic_update(p: *mut u8, bytes: u32, f: impl Fn(u64) -> u64) -> u64 {
    let (set, get) = (Ordering::AcqRel, Ordering::Acquire);
    match bytes {
        2 => u64::from(at!(AtomicU16, p).fetch_update(set, get, |v| Some(f(u64::from(v)) as u16)).unwrap_or(0)),
        4 => u64::from(at!(AtomicU32, p).fetch_update(set, get, |v| Some(f(u64::from(v)) as u32)).unwrap_or(0)),
        _ => at!(AtomicU64, p).fetch_update(set, get, |v| Some(f(v))).unwrap_or(0),
    }
}

/// The function of `atom`, `red` and `redux` on a type; bits above the type's are dropped from its result.
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
