//! Asynchronous copies: `cp.async`, and bulk copies with mbarriers or groups.
//!
//! A copy is in flight from its instruction to the wait that ends it; its bytes move at the last moment, so that whoever
//! does not wait sees old data. While in flight, any other access to its destination is a race.

use super::access::{Access, read, write};
use super::block::Common;
use super::inst::*;
use super::lanes::Lanes;
use super::step::Next;
use super::warp::Warp;
use super::{At, Cpu, Exec, FaultKind, Site};
use crate::checks::{PROXY, Record, Vc};
use crate::launch::Schedule;
use crate::memory::Allocation;
use std::sync::Arc;

/// A copy in flight that the lane which issued it waits for.
pub(crate) struct Pending {
    pub(crate) lane: u32,
    /// Its group, once committed.
    group: Option<u32>,
    kind: Kind,
    pub(crate) pc: u32,
}

/// Where bytes go.
enum Kind {
    /// Into shared memory, at an offset.
    Shared { dst: u64, data: Vec<u8> },
    /// From shared to device memory.
    Device { src: u64, bytes: u64, to: Arc<Allocation>, offset: u64, read: bool },
}

impl Pending {
    fn bulk(&self) -> bool {
        matches!(self.kind, Kind::Device { .. })
    }
}

/// Bytes on their way into shared memory that an mbarrier waits for.
pub(crate) struct BulkIn {
    dst: u64,
    data: Vec<u8>,
    barrier: u64,
    pub(crate) warp: u32,
    pub(crate) lane: u32,
    pub(crate) pc: u32,
    told: Option<Arc<Vc>>,
    by: Record,
}

/// Lets one bulk copy that an mbarrier waits for land.
pub(crate) fn land_one(cpu: &mut Cpu<'_>, common: &mut Common, barrier: u64) {
    let waiting: Vec<usize> = (0..common.bulk.len()).filter(|&i| common.bulk[i].barrier == barrier).collect();
    let Some(&first) = waiting.first() else { return };
    let i = match cpu.cx.config.schedule {
        Schedule::RoundRobin => first,
        _ => waiting[common.random.below(waiting.len())],
    };
    let copy = common.bulk.remove(i);
    let bytes = copy.data.len();
    shared_bytes(common, copy.dst, bytes).copy_from_slice(&copy.data);
    common.checks.landed(copy.dst, bytes as u64, copy.by, true);
    if let Some(b) = common.mbarriers.get_mut(&barrier) {
        b.bytes_arrived(bytes as i64, copy.told);
    }
}

/// Bytes of shared memory.
fn shared_bytes(common: &mut Common, at: u64, bytes: usize) -> &mut [u8] {
    let n = common.shared.len() * 8;
    // SAFETY: the words are contiguous and initialised; the block runs on this thread only.
    let all = unsafe { std::slice::from_raw_parts_mut(common.shared.as_mut_ptr().cast::<u8>(), n) };
    &mut all[at as usize..at as usize + bytes]
}

/// Reads words from a place.
fn fetch(from: *mut u8, data: &mut [u8]) {
    for (k, word) in data.chunks_exact_mut(4).enumerate() {
        word.copy_from_slice(&(read(from.wrapping_add(4 * k), 4, false) as u32).to_le_bytes());
    }
}

/// An access of `count` words by a copy.
fn words(count: u32, write: bool, proxy: bool, pending: bool) -> Access {
    Access { proxy, pending, ..Access::new(4, count, write) }
}

impl Cpu<'_> {
    /// `commit_group`
    pub(crate) fn commit(&mut self, site: &mut Site<'_>, bulk: bool) {
        for l in Lanes(site.m) {
            let next = &mut site.warp.groups[usize::from(bulk)][l];
            let open = |p: &&mut Pending| p.lane == l as u32 && p.group.is_none() && p.bulk() == bulk;
            site.warp.copies.iter_mut().filter(open).for_each(|p| p.group = Some(*next));
            *next += 1;
        }
    }

    /// Waits for all groups but the last `keep` (without it, for what is in no group, too); bulk groups perhaps only
    /// until their source is read.
    pub(crate) fn wait_group(&mut self, site: &mut Site<'_>, bulk: bool, keep: Option<u32>, read: bool) {
        for l in Lanes(site.m) {
            let groups = site.warp.groups[usize::from(bulk)][l];
            let due = |p: &Pending| {
                let old = |keep: u32| p.group.is_some_and(|g| g.saturating_add(keep) < groups);
                p.lane == l as u32 && p.bulk() == bulk && keep.is_none_or(old)
            };
            self.land(site.common, site.warp, due, read);
        }
    }

    /// `cp.async`; `source` holds the bytes to read, the rest is zero.
    pub(crate) fn copy_async(
        &mut self,
        site: &mut Site<'_>,
        [dst, src]: [&Address; 2],
        bytes: u32,
        source: R,
    ) -> Exec<Next> {
        let (code, m) = (self.cx.code, site.m);
        let mut data: Vec<Vec<u8>> = vec![Vec::new(); 32];
        let (from, to) = (self.addresses(site.warp, src), self.addresses(site.warp, dst));
        let sizes: [u32; 32] =
            std::array::from_fn(|l| if source == NONE { bytes } else { site.warp.lane32(code, source, l) });
        // Lanes by how much they read: nearly always all alike.
        let mut left = m;
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let size = sizes[first];
            let group = Lanes(left).filter(|&l| sizes[l] == size).fold(0, |g, l| g | 1u32 << l);
            left &= !group;
            if size > bytes || (size != 0 && (!size.is_multiple_of(4) || !size.is_power_of_two())) {
                let message =
                    format!("{size} bytes are read for a copy of {bytes}: 0, 4, 8 or 16, not more, are possible");
                return Err(self.fault(FaultKind::IllegalInstruction, &site.at, Some(first), message));
            }
            Lanes(group).for_each(|l| data[l].resize(bytes as usize, 0));
            if size == 0 {
                continue;
            }
            if let Some(l) = Lanes(group).find(|&l| !from[l].is_multiple_of(u64::from(bytes))) {
                let message = format!("a copy of {bytes} bytes");
                return Err(self.fault_at(FaultKind::Misaligned, &site.at, l, from[l], message));
            }
            let access = words(size / 4, false, false, false);
            self.with_places(site, Space::Global, from, group, &access, |_, _, ptr, g| {
                Lanes(g).for_each(|l| fetch(ptr[l], &mut data[l][..size as usize]));
            })?;
        }
        self.with_places(site, Space::Shared, to, m, &words(bytes / 4, true, false, true), |_, _, _, _| {})?;
        for l in Lanes(m) {
            let kind = Kind::Shared { dst: to[l], data: std::mem::take(&mut data[l]) };
            site.warp.copies.push(Pending { lane: l as u32, group: None, kind, pc: site.at.pc });
        }
        Ok(Next::Step)
    }

    /// Ends copies: their bytes arrive.
    fn land(&mut self, common: &mut Common, warp: &mut Warp, due: impl Fn(&Pending) -> bool, read: bool) {
        let launch = &self.cx.op;
        let mut progress = false;
        warp.copies.retain_mut(|p| {
            if !due(p) {
                return true;
            }
            let by = common.checks.record(warp.id, p.lane as usize, p.pc);
            match &mut p.kind {
                Kind::Shared { dst, data } => {
                    shared_bytes(common, *dst, data.len()).copy_from_slice(data);
                    common.checks.landed(*dst, data.len() as u64, by, true);
                    false
                }
                Kind::Device { src, bytes, to, offset, read: done } => {
                    if !*done {
                        for (k, b) in shared_bytes(common, *src, *bytes as usize).chunks_exact(4).enumerate() {
                            let v = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                            write(to.data.wrapping_add(*offset as usize + 4 * k), 4, u64::from(v), false);
                        }
                        common.checks.landed(*src, *bytes, by, false);
                        (*done, progress) = (true, true);
                    }
                    if !read {
                        common.checks.landed_in(to, launch, *offset, *bytes, by);
                    }
                    // It may be that only the source may be used again.
                    read
                }
            }
        });
        self.progress |= progress;
    }

    /// Device to shared memory, completing on an mbarrier, or, without one, shared to device memory in a bulk group.
    pub(crate) fn bulk(
        &mut self,
        site: &mut Site<'_>,
        [dst, src]: [&Address; 2],
        bytes: R,
        barrier: Option<&Address>,
    ) -> Exec<Next> {
        let (to, from) = (self.addresses(site.warp, dst), self.addresses(site.warp, src));
        let barriers = barrier.map(|b| self.mbarrier_offsets(site, b, false)).transpose()?;
        for l in Lanes(site.m) {
            let n = site.warp.lane32(self.cx.code, bytes, l);
            if n == 0 || !n.is_multiple_of(16) || !to[l].is_multiple_of(16) || !from[l].is_multiple_of(16) {
                let message = format!(
                    "a bulk copy of {n} bytes between {:#x} and {:#x}: multiples of 16 are needed",
                    to[l], from[l]
                );
                return Err(self.fault_at(FaultKind::Misaligned, &site.at, l, to[l], message));
            }
            let mut data = vec![0; n as usize];
            if barriers.is_some_and(|b| !site.common.mbarriers.contains_key(&b[l])) {
                let message = "an mbarrier that was not initialised";
                return Err(self.fault(FaultKind::InvalidSync, &site.at, Some(l), message));
            }
            // The source is read at once into shared memory, but as late as possible out of it.
            let (source, target) = (words(4, false, true, barriers.is_none()), words(4, true, true, true));
            self.pieces(site, src.space, from[l], n, l, &source, |k, ptr| {
                if barriers.is_some() {
                    fetch(ptr, &mut data[k..k + 16]);
                }
            })?;
            self.pieces(site, dst.space, to[l], n, l, &target, |_, _| {})?;
            let (warp, lane, pc) = (site.at.warp, l as u32, site.at.pc);
            if let Some(b) = barriers {
                let by = site.common.checks.record(warp, l, pc).with(PROXY, 1);
                let told = site.common.checks.warp(warp, |w| w.gather(1 << l));
                site.common.bulk.push(BulkIn { dst: to[l], data, barrier: b[l], warp, lane, pc, told, by });
            } else if let Some(a) = self.table.find(to[l]).map(|i| self.table.live[i].clone()) {
                let offset = to[l] - a.base;
                let kind = Kind::Device { src: from[l], bytes: u64::from(n), offset, to: a, read: false };
                site.warp.copies.push(Pending { lane, group: None, kind, pc });
            }
        }
        Ok(Next::Step)
    }

    /// `st.async`: elements of `bytes` bytes into shared memory, completing on an mbarrier.
    pub(crate) fn store_async(
        &mut self,
        site: &mut Site<'_>,
        [dst, barrier]: [&Address; 2],
        regs: &[(R, W)],
        bytes: u32,
    ) -> Exec<Next> {
        let barriers = self.mbarrier_offsets(site, barrier, false)?;
        let mut to = self.addresses(site.warp, dst);
        let access = Access { pending: true, ..Access::new(bytes, regs.len() as u32, true) };
        self.with_places(site, dst.space, to, site.m, &access, |_, _, _, _| {})?;
        for l in Lanes(site.m) {
            if dst.space == Space::Generic {
                to[l] -= super::access::generic(to[l]).1;
            }
            let values = regs.iter().map(|r| site.warp.lane(self.cx.code, *r, l).to_le_bytes());
            let data = values.flat_map(|v| v.into_iter().take(bytes as usize)).collect();
            let (warp, lane, pc, barrier) = (site.at.warp, l as u32, site.at.pc, barriers[l]);
            let by = site.common.checks.record(warp, l, pc);
            let told = site.common.checks.warp(warp, |w| w.gather(1 << l));
            site.common.bulk.push(BulkIn { dst: to[l], data, barrier, warp, lane, pc, told, by });
        }
        Ok(Next::Step)
    }

    /// A range of one lane in pieces of 16 bytes, each checked as an access of its own.
    #[expect(clippy::too_many_arguments, reason = "a range, who accesses it how, and what happens to it")]
    fn pieces(
        &mut self,
        site: &mut Site<'_>,
        space: Space,
        start: u64,
        bytes: u32,
        lane: usize,
        access: &Access,
        mut f: impl FnMut(usize, *mut u8),
    ) -> Exec<()> {
        for k in (0..bytes).step_by(16) {
            let mut addr = [0; 32];
            addr[lane] = start + u64::from(k);
            self.with_places(site, space, addr, 1 << lane, access, |_, _, ptr, _| f(k as usize, ptr[lane]))?;
        }
        Ok(())
    }

    /// All threads of a block have exited: nothing may be in flight.
    pub(crate) fn block_exit(&mut self, common: &mut Common, warps: &mut [Warp]) -> Exec<()> {
        let waited = |p: &&Pending| !matches!(p.kind, Kind::Device { read: true, .. });
        let from_warp = warps.iter().find_map(|w| w.copies.iter().find(waited).map(|p| (w.id, p.lane, p.pc)));
        let in_flight = from_warp.or_else(|| common.bulk.first().map(|b| (b.warp, b.lane, b.pc)));
        if let Some((warp, lane, pc)) = in_flight.filter(|_| self.cx.config.checks.synccheck) {
            let at = At { pc, warp, ctaid: common.ctaid };
            let message = "the block ended while this copy was in flight; wait for it first";
            return Err(self.fault(FaultKind::CopyInFlight, &at, Some(lane as usize), message));
        }
        // A store whose source was waited for may land after the block: the launch ends with it.
        warps.iter_mut().for_each(|w| self.land(common, w, |_| true, false));
        Ok(())
    }
}
