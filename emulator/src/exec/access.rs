//! Loads, stores and atomics: addresses to places in the host's memory, checked lane by lane.

use super::block::Common;
use super::fault::{Fault, FaultKind};
use super::float::{BF16, F16, Round};
use super::inst::*;
use super::lanes::Lanes;
use super::warp::Warp;
use super::{At, Cpu, Exec};
use crate::memory::{GLOBAL_BASE, LOCAL_BASE, PARAM_BASE, SHARED_BASE, WINDOW};
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

/// Places of the lanes of one access that fall into the same space.
pub(crate) struct Places {
    pub(crate) ptr: [*mut u8; 32],
    pub(crate) addr: [u64; 32],
}

/// The space an address of the generic space lies in, and the offset there.
pub(crate) fn generic(address: u64) -> (MemSpace, u64) {
    for (space, base) in [(MemSpace::Shared, SHARED_BASE), (MemSpace::Local, LOCAL_BASE), (MemSpace::Param, PARAM_BASE)]
    {
        if address.wrapping_sub(base) < WINDOW {
            return (space, address - base);
        }
    }
    (MemSpace::Global, address)
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
        if a.base != NONE {
            if a.wide {
                let p = warp.regs[a.base as usize..a.base as usize + 2].as_ptr().cast::<[u64; 32]>();
                // SAFETY: two slots are 32 values of 64 bits.
                let base = unsafe { &*p };
                for i in 0..32 {
                    out[i] = base[i].wrapping_add(a.offset as u64);
                }
            } else {
                let base = &warp.regs[a.base as usize].0;
                for i in 0..32 {
                    out[i] = u64::from(base[i].wrapping_add(a.offset as u32));
                }
            }
        }
        out
    }

    /// Runs `f` on the places of an access, once per space and allocation; faults where an address is not allowed.
    #[inline(always)]
    pub(crate) fn with_places(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        space: MemSpace,
        addr: [u64; 32],
        m: u32,
        access: &Access,
        at: &At,
        mut f: impl FnMut(&mut Self, &mut Warp, &[*mut u8; 32], u32),
    ) -> Exec<()> {
        let total = access.bytes * access.count;
        let low = if m == u32::MAX { addr.iter().fold(0, |a, b| a | b) } else { Lanes(m).fold(0, |a, l| a | addr[l]) };
        if low & u64::from(total - 1) != 0 {
            return Err(self.misaligned(&addr, m, total, at));
        }
        let mut places = Places { ptr: [std::ptr::null_mut(); 32], addr };
        let mut left = m;
        while left != 0 {
            let first = addr[left.trailing_zeros() as usize];
            let (kind, group) = if space == MemSpace::Generic {
                let kind = generic(first).0;
                (kind, Lanes(left).filter(|&l| generic(addr[l]).0 == kind).fold(0, |g, l| g | 1 << l))
            } else {
                (space, left)
            };
            let done = match kind {
                MemSpace::Global | MemSpace::Generic => self.global(&mut places, group, total, access, at)?,
                MemSpace::Shared => {
                    if space == MemSpace::Generic {
                        Lanes(group).for_each(|l| places.addr[l] -= SHARED_BASE);
                    }
                    self.shared(common, &mut places, group, total, at)?
                }
                MemSpace::Local => {
                    if space == MemSpace::Generic {
                        Lanes(group).for_each(|l| places.addr[l] -= LOCAL_BASE);
                    }
                    self.local(warp, &mut places, group, total, at)?
                }
                MemSpace::Param => {
                    if space == MemSpace::Generic {
                        Lanes(group).for_each(|l| places.addr[l] -= PARAM_BASE);
                    }
                    self.param(&mut places, group, total, access, at)?
                }
            };
            let mut turn = None;
            if self.cx.watched {
                turn = crate::checks::turn(self.cx, kind, access);
                self.check(common, kind, &places, done, access, at, turn.as_deref_mut())?;
            }
            f(self, warp, &places.ptr, done);
            drop(turn);
            if access.write && kind == MemSpace::Global {
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
        let mut f = self.fault(FaultKind::Misaligned, at, Some(lane), message);
        f.address = Some(addr[lane]);
        f
    }

    #[cold]
    fn outside(&self, addr: u64, lane: usize, total: u32, at: &At) -> Box<Fault> {
        let (kind, message) = if self.table.was_freed(addr) {
            (FaultKind::UseAfterFree, format!("{total} bytes are accessed in memory that was freed"))
        } else if let Some(a) = self.table.below(addr).filter(|a| addr - a.base < a.size + 4096) {
            let end = addr + u64::from(total) - a.base;
            (
                FaultKind::OutOfBounds,
                format!(
                    "{total} bytes are accessed up to byte {end} of an allocation of {} bytes at {:#x}",
                    a.size, a.base
                ),
            )
        } else if addr < GLOBAL_BASE {
            (FaultKind::OutOfBounds, format!("{total} bytes are accessed at an address that is no device address"))
        } else {
            (FaultKind::OutOfBounds, format!("{total} bytes are accessed outside every allocation"))
        };
        let mut f = self.fault(kind, at, Some(lane), message);
        f.address = Some(addr);
        f
    }

    /// Places in device memory of those lanes that fall into the allocation of the first.
    #[inline(always)]
    fn global(&mut self, p: &mut Places, group: u32, total: u32, access: &Access, at: &At) -> Exec<u32> {
        let first = group.trailing_zeros() as usize;
        let cached = self.site[at.pc as usize] as usize;
        let hit = |t: &crate::memory::Table, i: usize| {
            t.live.get(i).is_some_and(|a| p.addr[first].wrapping_sub(a.base) < a.size)
        };
        let i = if hit(&self.table, cached) {
            cached
        } else {
            match self.table.find(p.addr[first]) {
                Some(i) => {
                    self.site[at.pc as usize] = i as u32;
                    i
                }
                None => return Err(self.outside(p.addr[first], first, total, at)),
            }
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

    #[inline(always)]
    fn shared(&mut self, common: &mut Common, p: &mut Places, group: u32, total: u32, at: &At) -> Exec<u32> {
        let size = u64::from(common.shared_bytes);
        let data = common.shared.as_mut_ptr().cast::<u8>();
        for l in Lanes(group) {
            if p.addr[l] + u64::from(total) > size {
                let message =
                    format!("{total} bytes are accessed at {:#x} of {size} bytes of shared memory", p.addr[l]);
                let mut f = self.fault(FaultKind::OutOfBounds, at, Some(l), message);
                f.address = Some(p.addr[l]);
                return Err(f);
            }
            p.ptr[l] = data.wrapping_add(p.addr[l] as usize);
        }
        Ok(group)
    }

    fn local(&mut self, warp: &mut Warp, p: &mut Places, group: u32, total: u32, at: &At) -> Exec<u32> {
        let size = u64::from(self.cx.code.local);
        let stride = size.next_multiple_of(16) as usize;
        let data = warp.local.as_mut_ptr().cast::<u8>();
        for l in Lanes(group) {
            if p.addr[l].saturating_add(u64::from(total)) > size {
                let message = format!("{total} bytes are accessed at {:#x} of {size} bytes of local memory", p.addr[l]);
                let mut f = self.fault(FaultKind::OutOfBounds, at, Some(l), message);
                f.address = Some(p.addr[l]);
                return Err(f);
            }
            p.ptr[l] = data.wrapping_add(l * stride + p.addr[l] as usize);
        }
        Ok(group)
    }

    fn param(&mut self, p: &mut Places, group: u32, total: u32, access: &Access, at: &At) -> Exec<u32> {
        let size = u64::from(self.cx.info.param_bytes);
        let data = self.cx.params.as_ptr().cast::<u8>().cast_mut();
        for l in Lanes(group) {
            if access.write {
                return Err(self.fault(FaultKind::ReadOnly, at, Some(l), "kernel parameters are written"));
            }
            if p.addr[l].saturating_add(u64::from(total)) > size {
                let message = format!("{total} bytes are read at {:#x} of {size} bytes of parameters", p.addr[l]);
                let mut f = self.fault(FaultKind::OutOfBounds, at, Some(l), message);
                f.address = Some(p.addr[l]);
                return Err(f);
            }
            p.ptr[l] = data.wrapping_add(p.addr[l] as usize);
        }
        Ok(group)
    }

    /// `ld`
    #[inline(always)]
    pub(crate) fn load(&mut self, common: &mut Common, warp: &mut Warp, op: &MemOp, m: u32, at: &At) -> Exec<()> {
        let access = Access {
            bytes: u32::from(op.bytes),
            count: op.regs.len() as u32,
            write: false,
            atomic: false,
            sem: op.sem,
            scope: op.scope,
            nc: op.nc,
            proxy: false,
            pending: false,
            constant_space: false,
        };
        let addr = self.addresses(warp, &op.address);
        self.with_places(common, warp, op.space, addr, m, &access, at, |_, warp, ptr, group| {
            if op.sem == Sem::Weak && group == u32::MAX && op.bytes == 4 && op.regs.iter().all(|r| r.1 == W::W32) {
                for (v, (r, _)) in op.regs.iter().enumerate() {
                    let d = &mut warp.regs[*r as usize].0;
                    for l in 0..32 {
                        d[l] = at!(AtomicU32, ptr[l].wrapping_add(4 * v)).load(Ordering::Relaxed);
                    }
                }
                return;
            }
            let acquire = op.sem >= Sem::Acquire;
            for (v, &(r, w)) in op.regs.iter().enumerate() {
                for l in Lanes(group) {
                    let x = read(ptr[l].wrapping_add(v * usize::from(op.bytes)), u32::from(op.bytes), acquire);
                    let x = if op.signed {
                        let shift = 64 - 8 * u32::from(op.bytes);
                        ((x << shift) as i64 >> shift) as u64
                    } else {
                        x
                    };
                    warp.set_lane(r, w, l, x);
                }
            }
        })
    }

    /// `st`
    #[inline(always)]
    pub(crate) fn store(&mut self, common: &mut Common, warp: &mut Warp, op: &MemOp, m: u32, at: &At) -> Exec<()> {
        let access = Access {
            bytes: u32::from(op.bytes),
            count: op.regs.len() as u32,
            write: true,
            atomic: false,
            sem: op.sem,
            scope: op.scope,
            nc: false,
            proxy: false,
            pending: false,
            constant_space: op.constant,
        };
        let addr = self.addresses(warp, &op.address);
        let release = op.sem >= Sem::Release;
        self.with_places(common, warp, op.space, addr, m, &access, at, |cpu, warp, ptr, group| {
            for (v, &r) in op.regs.iter().enumerate() {
                for l in Lanes(group) {
                    let x = warp.lane(cpu.cx.code, r, l);
                    write(ptr[l].wrapping_add(v * usize::from(op.bytes)), u32::from(op.bytes), x, release);
                }
            }
        })
    }

    /// `atom` and `red`: lane after lane, lowest first.
    pub(crate) fn atomic(&mut self, common: &mut Common, warp: &mut Warp, op: &AtomOp, m: u32, at: &At) -> Exec<()> {
        let bytes = u32::from(op.bytes);
        let access = Access {
            bytes,
            count: 1,
            write: true,
            atomic: true,
            sem: op.sem,
            scope: op.scope,
            nc: false,
            proxy: false,
            pending: false,
            constant_space: false,
        };
        let addr = self.addresses(warp, &op.address);
        let progress = self.progress;
        let mut changed = false;
        self.with_places(common, warp, op.space, addr, m, &access, at, |cpu, warp, ptr, group| {
            for l in Lanes(group) {
                let b = warp.lane(cpu.cx.code, op.b, l);
                let c = warp.lane(cpu.cx.code, op.c, l);
                let old = atomic_update(ptr[l], bytes, |old| combine(op.kind, bytes, old, b, c));
                changed |= combine(op.kind, bytes, old, b, c) != old;
                if op.d != NONE {
                    warp.set_lane(op.d, op.dw, l, old);
                }
            }
        })?;
        // An atomic that leaves things as they were is a poll.
        self.progress = progress | changed;
        Ok(())
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

/// The new value of an atomic operation, or of a reduction.
pub(crate) fn combine(kind: AtomKind, bytes: u32, old: u64, b: u64, c: u64) -> u64 {
    let mask = if bytes == 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 };
    let signed = |v: u64| if bytes == 8 { v as i64 } else { i64::from(v as u32 as i32) };
    let half = |f: super::float::Format, x: u64, y: u64| {
        u64::from(f.round(f.value(x as u32 & 0xffff) + f.value(y as u32 & 0xffff), Round::Near, false))
    };
    let v = match kind {
        AtomKind::Add => old.wrapping_add(b),
        AtomKind::MinU => old.min(b),
        AtomKind::MaxU => old.max(b),
        AtomKind::MinS => signed(old).min(signed(b)) as u64,
        AtomKind::MaxS => signed(old).max(signed(b)) as u64,
        AtomKind::And => old & b,
        AtomKind::Or => old | b,
        AtomKind::Xor => old ^ b,
        AtomKind::Inc => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        AtomKind::Dec => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
        AtomKind::Exch => b,
        AtomKind::Cas => {
            if old == b {
                c
            } else {
                old
            }
        }
        // atom.add.f32 on global memory flushes no subnormals.
        AtomKind::AddF32 => u64::from(super::float::canonical(f32::from_bits(old as u32) + f32::from_bits(b as u32))),
        AtomKind::AddF64 => (f64::from_bits(old) + f64::from_bits(b)).to_bits(),
        AtomKind::AddF16 => half(F16, old, b),
        AtomKind::AddBf16 => half(BF16, old, b),
        AtomKind::AddF16x2 => half(F16, old, b) | half(F16, old >> 16, b >> 16) << 16,
        AtomKind::AddBf16x2 => half(BF16, old, b) | half(BF16, old >> 16, b >> 16) << 16,
    };
    v & mask
}
