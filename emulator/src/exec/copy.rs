//! Asynchronous copies: `cp.async`, and bulk copies with mbarriers or groups.
//!
//! A copy is in flight from its instruction to the wait that ends it; its bytes move at the last moment, so that whoever
//! does not wait sees old data. While in flight, any other access to its destination is a race.

use super::access::Access;
use super::block::Common;
use super::inst::*;
use super::lanes::Lanes;
use super::warp::Warp;
use super::{At, Cpu, Exec, FaultKind};
use crate::launch::Schedule;
use crate::memory::Allocation;
use std::sync::Arc;

/// An asynchronous copy or a wait for some.
#[derive(Debug, Clone)]
pub(crate) enum AsyncOp {
    /// `cp.async`; `source` holds the bytes to read, the rest is zero.
    Copy {
        dst: Address,
        src: Address,
        bytes: u32,
        source: R,
    },
    Commit {
        bulk: bool,
    },
    /// Waits for all groups but the last `keep`; bulk groups perhaps only until their source is read.
    Wait {
        bulk: bool,
        keep: u32,
        all: bool,
        read: bool,
    },
    /// `cp.async.mbarrier.arrive`
    Arrive {
        address: Address,
        space: MemSpace,
        noinc: bool,
    },
    /// Device to shared memory, completing on an mbarrier.
    BulkIn {
        dst: Address,
        src: Address,
        bytes: R,
        barrier: Address,
    },
    /// Shared to device memory, in a bulk group.
    BulkOut {
        dst: Address,
        src: Address,
        bytes: R,
    },
}

/// A copy in flight, by the lane that issued it.
pub(crate) struct Pending {
    pub(crate) lane: u32,
    /// Its group, once committed.
    pub(crate) group: Option<u32>,
    pub(crate) kind: Kind,
    pub(crate) pc: u32,
}

/// Where bytes go.
pub(crate) enum Kind {
    /// Into shared memory, at an offset.
    Shared { dst: u64, data: Vec<u8> },
    /// From shared to device memory.
    Device { src: u64, bytes: u64, to: Arc<Allocation>, offset: u64, read: bool },
}

/// A bulk copy into shared memory.
pub(crate) struct BulkIn {
    pub(crate) dst: u64,
    pub(crate) data: Vec<u8>,
    pub(crate) barrier: u64,
    pub(crate) warp: u32,
    pub(crate) lane: u32,
    pub(crate) pc: u32,
    pub(crate) told: Option<Arc<crate::checks::Vc>>,
    pub(crate) clock: u32,
}

/// Lets one bulk copy that an mbarrier waits for land.
pub(crate) fn land_one(cpu: &mut Cpu<'_>, common: &mut Common, barrier: u64) {
    let waiting: Vec<usize> = (0..common.bulk.len()).filter(|&i| common.bulk[i].barrier == barrier).collect();
    let Some(&first) = waiting.first() else { return };
    let i = match cpu.cx.config.schedule {
        Schedule::RoundRobin => first,
        _ => {
            common.random = common.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            waiting[(common.random >> 33) as usize % waiting.len()]
        }
    };
    let copy = common.bulk.remove(i);
    write_shared(common, copy.dst, &copy.data);
    crate::checks::landed_shared(
        common,
        copy.dst,
        copy.data.len() as u64,
        copy.warp,
        copy.lane,
        copy.clock,
        copy.pc,
        true,
    );
    if let Some(b) = common.mbarriers.get_mut(&barrier) {
        b.bytes_arrived(copy.data.len() as i64, copy.told);
    }
}

fn shared_bytes(common: &mut Common) -> &mut [u8] {
    let n = common.shared.len() * 8;
    // SAFETY: the words are contiguous and initialised; the block runs on this thread only.
    unsafe { std::slice::from_raw_parts_mut(common.shared.as_mut_ptr().cast::<u8>(), n) }
}

fn write_shared(common: &mut Common, at: u64, data: &[u8]) {
    shared_bytes(common)[at as usize..at as usize + data.len()].copy_from_slice(data);
}

fn access(count: u32, write: bool, proxy: bool, pending: bool) -> Access {
    Access {
        bytes: 4,
        count,
        write,
        atomic: false,
        sem: Sem::Weak,
        scope: Scope::Cta,
        nc: false,
        proxy,
        pending,
        constant_space: false,
    }
}

impl Cpu<'_> {
    /// Runs an instruction of the asynchronous copies.
    pub(crate) fn asynchronous(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        op: &AsyncOp,
        m: u32,
        at: &At,
    ) -> Exec<()> {
        match op {
            AsyncOp::Copy { dst, src, bytes, source } => {
                self.copy_async(common, warp, dst, src, *bytes, *source, m, at)
            }
            AsyncOp::Commit { bulk } => {
                for l in Lanes(m) {
                    let next = warp.groups[usize::from(*bulk)][l];
                    for p in warp.copies.iter_mut().filter(|p| p.lane == l as u32 && p.group.is_none()) {
                        if p.bulk() == *bulk {
                            p.group = Some(next);
                        }
                    }
                    warp.groups[usize::from(*bulk)][l] += 1;
                }
                Ok(())
            }
            AsyncOp::Wait { bulk, keep, all, read } => {
                for l in Lanes(m) {
                    let groups = warp.groups[usize::from(*bulk)][l];
                    let due = |p: &Pending| {
                        p.lane == l as u32
                            && p.bulk() == *bulk
                            && (*all || p.group.is_some_and(|g| g.saturating_add(*keep) < groups))
                    };
                    self.land(common, warp, due, *read);
                }
                Ok(())
            }
            AsyncOp::Arrive { address, space, noinc } => {
                let addr = self.mbarrier_offsets(common, warp, address, *space, false, m, at)?;
                for l in Lanes(m) {
                    // The arrival follows the copies; that they land now is one of the times they may.
                    self.land(common, warp, |p| p.lane == l as u32 && !p.bulk(), false);
                    let told = crate::checks::told(common, warp.id, 1 << l);
                    let Some(b) = common.mbarriers.get_mut(&addr[l]) else {
                        return Err(self.fault(
                            FaultKind::InvalidSync,
                            at,
                            Some(l),
                            "an mbarrier that was not initialised",
                        ));
                    };
                    if !b.arrive_after_copies(*noinc, told) {
                        let message = "an arrival at an mbarrier whose phase lacks none";
                        return Err(self.fault(FaultKind::InvalidSync, at, Some(l), message));
                    }
                }
                Ok(())
            }
            AsyncOp::BulkIn { dst, src, bytes, barrier } => {
                self.bulk_in(common, warp, dst, src, *bytes, barrier, m, at)
            }
            AsyncOp::BulkOut { dst, src, bytes } => self.bulk_out(common, warp, dst, src, *bytes, m, at),
        }
    }

    fn copy_async(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        dst: &Address,
        src: &Address,
        bytes: u32,
        source: R,
        m: u32,
        at: &At,
    ) -> Exec<()> {
        let code = self.cx.code;
        let mut data: Vec<Vec<u8>> = vec![Vec::new(); 32];
        let from = self.addresses(warp, src);
        let to = self.addresses(warp, dst);
        // Lanes by how much they read: nearly always all alike.
        let mut left = m;
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let n = |warp: &Warp, l: usize| if source == NONE { bytes } else { warp.lane32(code, source, l) };
            let size = n(warp, first);
            let group = Lanes(left).filter(|&l| n(warp, l) == size).fold(0, |g, l| g | 1u32 << l);
            left &= !group;
            if size > bytes || (size != 0 && (size % 4 != 0 || !size.is_power_of_two())) {
                let message =
                    format!("{size} bytes are read for a copy of {bytes}: 0, 4, 8 or 16, not more, are possible");
                return Err(self.fault(FaultKind::IllegalInstruction, at, Some(first), message));
            }
            Lanes(group).for_each(|l| data[l].resize(bytes as usize, 0));
            if size == 0 {
                continue;
            }
            if let Some(l) = Lanes(group).find(|&l| !from[l].is_multiple_of(u64::from(bytes))) {
                let mut f = self.fault(FaultKind::Misaligned, at, Some(l), format!("a copy of {bytes} bytes"));
                f.address = Some(from[l]);
                return Err(f);
            }
            self.with_places(
                common,
                warp,
                MemSpace::Global,
                from,
                group,
                &access(size / 4, false, false, false),
                at,
                |_, _, ptr, g| {
                    for l in Lanes(g) {
                        for k in 0..size as usize / 4 {
                            let v = super::access::read(ptr[l].wrapping_add(4 * k), 4, false) as u32;
                            data[l][4 * k..4 * k + 4].copy_from_slice(&v.to_le_bytes());
                        }
                    }
                },
            )?;
        }
        self.with_places(
            common,
            warp,
            MemSpace::Shared,
            to,
            m,
            &access(bytes / 4, true, false, true),
            at,
            |_, _, _, _| {},
        )?;
        for l in Lanes(m) {
            let kind = Kind::Shared { dst: to[l], data: std::mem::take(&mut data[l]) };
            warp.copies.push(Pending { lane: l as u32, group: None, kind, pc: at.pc });
        }
        Ok(())
    }

    /// Ends copies: their bytes arrive.
    fn land(&mut self, common: &mut Common, warp: &mut Warp, due: impl Fn(&Pending) -> bool, read: bool) {
        let clock = crate::checks::clock(common, warp.id);
        let mut i = 0;
        while i < warp.copies.len() {
            if !due(&warp.copies[i]) {
                i += 1;
                continue;
            }
            let mut p = warp.copies.remove(i);
            match &mut p.kind {
                Kind::Shared { dst, data } => {
                    write_shared(common, *dst, data);
                    crate::checks::landed_shared(common, *dst, data.len() as u64, warp.id, p.lane, clock, p.pc, false);
                }
                Kind::Device { src, bytes, to, offset, read: done } => {
                    if !*done {
                        let from = shared_bytes(common)[*src as usize..(*src + *bytes) as usize].to_vec();
                        for (k, b) in from.chunks_exact(4).enumerate() {
                            let v = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                            super::access::write(
                                to.data.wrapping_add(*offset as usize + 4 * k),
                                4,
                                u64::from(v),
                                false,
                            );
                        }
                        crate::checks::source_read(common, *src, *bytes, warp.id, p.lane, clock, p.pc);
                        *done = true;
                        self.progress = true;
                    }
                    if read {
                        // Only the source may be used again.
                        warp.copies.insert(i, p);
                        i += 1;
                    } else {
                        crate::checks::landed_global(
                            &self.cx.op,
                            common,
                            to,
                            *offset,
                            *bytes,
                            warp.id,
                            p.lane,
                            clock,
                            p.pc,
                        );
                    }
                }
            }
        }
    }

    /// Size and alignment of a bulk copy.
    fn bulk_size(&self, warp: &Warp, bytes: R, a: u64, b: u64, l: usize, at: &At) -> Exec<u32> {
        let n = warp.lane32(self.cx.code, bytes, l);
        if n == 0 || !n.is_multiple_of(16) || !a.is_multiple_of(16) || !b.is_multiple_of(16) {
            let message = format!("a bulk copy of {n} bytes between {a:#x} and {b:#x}: multiples of 16 are needed");
            let mut f = self.fault(FaultKind::Misaligned, at, Some(l), message);
            f.address = Some(a);
            return Err(f);
        }
        Ok(n)
    }

    fn bulk_in(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        dst: &Address,
        src: &Address,
        bytes: R,
        barrier: &Address,
        m: u32,
        at: &At,
    ) -> Exec<()> {
        let (to, from) = (self.addresses(warp, dst), self.addresses(warp, src));
        let barriers = self.mbarrier_offsets(common, warp, barrier, MemSpace::Shared, false, m, at)?;
        for l in Lanes(m) {
            let n = self.bulk_size(warp, bytes, to[l], from[l], l, at)?;
            if !common.mbarriers.contains_key(&barriers[l]) {
                return Err(self.fault(FaultKind::InvalidSync, at, Some(l), "an mbarrier that was not initialised"));
            }
            let mut data = vec![0; n as usize];
            self.pieces(
                common,
                warp,
                MemSpace::Global,
                from[l],
                n,
                l,
                &access(4, false, true, false),
                at,
                |at, ptr| {
                    for k in 0..4 {
                        let v = super::access::read(ptr.wrapping_add(4 * k), 4, false) as u32;
                        data[at + 4 * k..at + 4 * k + 4].copy_from_slice(&v.to_le_bytes());
                    }
                },
            )?;
            self.pieces(common, warp, MemSpace::Shared, to[l], n, l, &access(4, true, true, true), at, |_, _| {})?;
            let clock = crate::checks::clock(common, warp.id);
            let told = crate::checks::told(common, warp.id, 1 << l);
            common.bulk.push(BulkIn {
                dst: to[l],
                data,
                barrier: barriers[l],
                warp: warp.id,
                lane: l as u32,
                pc: at.pc,
                told,
                clock,
            });
        }
        Ok(())
    }

    fn bulk_out(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        dst: &Address,
        src: &Address,
        bytes: R,
        m: u32,
        at: &At,
    ) -> Exec<()> {
        let (to, from) = (self.addresses(warp, dst), self.addresses(warp, src));
        for l in Lanes(m) {
            let n = self.bulk_size(warp, bytes, to[l], from[l], l, at)?;
            self.pieces(common, warp, MemSpace::Shared, from[l], n, l, &access(4, false, true, true), at, |_, _| {})?;
            self.pieces(common, warp, MemSpace::Global, to[l], n, l, &access(4, true, true, true), at, |_, _| {})?;
            let Some(a) = self.table.find(to[l]).map(|i| self.table.live[i].clone()) else { continue };
            let kind = Kind::Device { src: from[l], bytes: u64::from(n), offset: to[l] - a.base, to: a, read: false };
            warp.copies.push(Pending { lane: l as u32, group: None, kind, pc: at.pc });
        }
        Ok(())
    }

    /// A range of one lane in pieces of 16 bytes, each checked as an access of its own.
    fn pieces(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        space: MemSpace,
        start: u64,
        bytes: u32,
        lane: usize,
        access: &Access,
        at: &At,
        mut f: impl FnMut(usize, *mut u8),
    ) -> Exec<()> {
        for k in (0..bytes).step_by(16) {
            let mut addr = [0; 32];
            addr[lane] = start + u64::from(k);
            self.with_places(common, warp, space, addr, 1 << lane, access, at, |_, _, ptr, _| {
                f(k as usize, ptr[lane])
            })?;
        }
        Ok(())
    }

    /// All threads of a block have exited: nothing may be in flight.
    pub(crate) fn block_exit(&mut self, common: &mut Common, warps: &mut [Warp]) -> Exec<()> {
        let from_warp =
            warps.iter().find_map(|w| w.copies.iter().find(|p| !p.source_is_free()).map(|p| (w.id, p.lane, p.pc)));
        let in_flight = from_warp.or_else(|| common.bulk.first().map(|b| (b.warp, b.lane, b.pc)));
        if let Some((warp, lane, pc)) = in_flight.filter(|_| self.cx.config.checks.synccheck) {
            let at = At { pc, warp, ctaid: common.ctaid };
            let message = "the block ended while this copy was in flight; wait for it first";
            return Err(self.fault(FaultKind::CopyInFlight, &at, Some(lane as usize), message));
        }
        // A store whose source was waited for may land after the block: the launch ends with it.
        for w in warps {
            self.land(common, w, |_| true, false);
        }
        Ok(())
    }
}

impl Pending {
    /// A store that has read its source.
    fn source_is_free(&self) -> bool {
        matches!(self.kind, Kind::Device { read: true, .. })
    }

    fn bulk(&self) -> bool {
        matches!(self.kind, Kind::Device { .. })
    }
}
