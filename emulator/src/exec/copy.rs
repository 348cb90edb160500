//! Asynchronous copies: `cp.async`, and bulk copies with mbarriers or groups.
//!
//! A copy is in flight from its issue to the wait that ends it. Its bytes move at the last moment, so that a kernel
//! without the wait reads old data. Any access to the destination of a copy in flight is a race.

use super::access::{read, write};
use super::block::Common;
use super::checked::CopyIssue;
use super::inst::*;
use super::step::Flow;
use super::{Cpu, Site};
use crate::machine::access::Access;
use crate::machine::config::Schedule;
use crate::machine::fault::{FaultKind, OrFault};
use crate::machine::lanes::{Lanes, groups, lanes_where};
use crate::machine::layout::{At, RANK};
use crate::machine::types::Space;
use crate::memory::Allocation;
use std::sync::Arc;

/// Most copies that have landed and are kept to be used again.
const SPARE: usize = 256;
/// Bytes of a line of L2.
const LINE: u64 = 128;

/// Copies in flight, of some lanes of a warp by one instruction.
pub(crate) struct Transfer {
    /// Place of their issue.
    at: At,
    lanes: u32,
    bytes: Bytes,
    /// The lanes' copy group that they belong to, once committed.
    group: Option<u32>,
    /// The mbarrier that it arrives at, if any.
    listener: Option<Listener>,
    /// When it lands in modelled time.
    lands: u64,
}

/// Source and destination.
enum Bytes {
    /// Of one lane into shared memory, at an offset.
    In { dst: u64, data: Vec<u8> },
    /// Of lanes that have committed equally many groups, into shared memory.
    Pieces(Box<Pieces>),
    /// From shared to device memory; `read` once the bytes have moved.
    Out { src: u64, bytes: u64, to: Arc<Allocation>, offset: u64, read: bool },
    /// Copies of lanes into shared memory that land together, and then arrive for each lane at an mbarrier.
    Arriving { mbarrier: u64, copies: Vec<Transfer>, issues: Vec<CopyIssue> },
    /// Nowhere: they have landed.
    Landed,
}

/// What each lane of `cp.async` copies, at most 16 bytes.
#[derive(Clone)]
pub(crate) struct Pieces {
    dst: [u64; 32],
    data: [[u8; 16]; 32],
    bytes: usize,
}

/// An mbarrier by its offset, and the copy at its issue.
struct Listener {
    mbarrier: u64,
    issue: CopyIssue,
}

impl Pieces {
    fn none() -> Box<Pieces> {
        Box::new(Pieces { dst: [0; 32], data: [[0; 16]; 32], bytes: 0 })
    }
}

impl Transfer {
    /// Whether it belongs to the copy groups of some lanes of a warp, bulk groups or others.
    fn is_of(&self, warp: u32, lanes: u32, bulk: bool) -> bool {
        let own = self.at.warp == warp && lanes & self.lanes != 0;
        own && self.listener.is_none() && matches!(self.bytes, Bytes::Out { .. }) == bulk
    }

    /// Bytes of a bulk copy into shared memory.
    fn bulk_bytes(&self) -> u64 {
        match &self.bytes {
            Bytes::In { data, .. } => data.len() as u64,
            Bytes::Pieces(_) | Bytes::Out { .. } | Bytes::Arriving { .. } | Bytes::Landed => 0,
        }
    }

    /// The lowest of its lanes.
    fn lane(&self) -> usize {
        self.lanes.trailing_zeros() as usize
    }

    /// Takes the copies of some lanes away, to stand before the others.
    fn split(&mut self, warp: u32, lanes: u32) -> Option<Transfer> {
        let Bytes::Pieces(pieces) = &self.bytes else { return None };
        let (taken, left) = (self.lanes & lanes, self.lanes & !lanes);
        if self.at.warp != warp || taken == 0 || left == 0 {
            return None;
        }
        self.lanes = left;
        Some(Transfer { lanes: taken, bytes: Bytes::Pieces(pieces.clone()), listener: None, ..*self })
    }
}

/// Bytes of shared memory.
pub(crate) fn shared_bytes(common: &mut Common, at: u64, bytes: usize) -> &mut [u8] {
    let (n, at) = (common.shared.len() * 8, at as usize);
    // SAFETY: the words are contiguous and initialised; the block runs on this thread only.
    let all = unsafe { std::slice::from_raw_parts_mut(common.shared.as_mut_ptr().cast::<u8>(), n) };
    &mut all[at..at + bytes]
}

/// Issues a copy into shared memory that arrives at an mbarrier.
fn deliver(site: &mut Site<'_>, lane: usize, (dst, data): (u64, Vec<u8>), mbarrier: u64, proxy: bool, lands: u64) {
    let Site { common, at, .. } = site;
    let listener = Some(Listener { mbarrier, issue: common.observers.copy_issue(at, lane, proxy, lands) });
    let bytes = Bytes::In { dst, data };
    common.transfers.push(Transfer { at: *at, lanes: 1 << lane, bytes, group: None, listener, lands });
}

/// Parts the copies of some lanes of a warp from those of others by the same instructions.
fn part(transfers: &mut Vec<Transfer>, warp: u32, lanes: u32) {
    let mut at = 0;
    while at < transfers.len() {
        if let Some(own) = transfers[at].split(warp, lanes) {
            transfers.insert(at, own);
        }
        at += 1;
    }
}

/// Reads words from a place.
fn fetch(from: *mut u8, data: &mut [u8]) {
    for (k, word) in data.chunks_exact_mut(4).enumerate() {
        word.copy_from_slice(&(read(from.wrapping_add(4 * k), 4) as u32).to_le_bytes());
    }
}

impl Cpu<'_> {
    /// Faults where an mbarrier lies in another block than the destination.
    fn same_block(&self, site: &Site<'_>, lane: usize, to: u64, mbarrier: u64) -> OrFault<()> {
        if to >> RANK == mbarrier >> RANK {
            return Ok(());
        }
        let message = "the mbarrier is in another block than the destination";
        Err(self.fault_at(FaultKind::InvalidSync, &site.at, lane, to, message))
    }

    /// Issues a bulk copy into shared memory that arrives at an mbarrier.
    pub(super) fn bulk_deliver(
        &mut self,
        site: &mut Site<'_>,
        lane: usize,
        (dst, data): (u64, Vec<u8>),
        mbarrier: u64,
        lands: u64,
    ) -> OrFault<()> {
        self.same_block(site, lane, dst, mbarrier)?;
        if !site.common.observers.mbarrier_is_shown(&site.at, lane, mbarrier) {
            let message = "the initialisation of this mbarrier was not made visible to the async proxy: a fence.proxy.async \
                 between it and the copy is missing";
            self.find(self.fault_at(FaultKind::Race, &site.at, lane, mbarrier, message))?;
        }
        deliver(site, lane, (dst, data), mbarrier, true, lands);
        if self.cx.config.counters {
            self.counters.under_way(site.common.transfers.iter().map(Transfer::bulk_bytes).sum());
        }
        Ok(())
    }

    /// `commit_group`
    pub(crate) fn commit(&mut self, site: &mut Site<'_>, bulk: bool) {
        let groups = &mut site.warp.groups[usize::from(bulk)];
        part(&mut site.common.transfers, site.at.warp, site.m);
        let open = |t: &&mut Transfer| t.group.is_none() && t.is_of(site.at.warp, site.m, bulk);
        site.common.transfers.iter_mut().filter(open).for_each(|t| t.group = Some(groups[t.lane()]));
        Lanes(site.m).for_each(|l| groups[l] += 1);
    }

    /// Waits for all groups but the last `keep`; without `keep`, for copies outside groups too. Given `read`, waits for
    /// the sources of bulk groups only.
    pub(crate) fn wait_group(&mut self, site: &mut Site<'_>, bulk: bool, keep: Option<u32>, read: bool) {
        let groups = &site.warp.groups[usize::from(bulk)];
        part(&mut site.common.transfers, site.at.warp, site.m);
        let due = |t: &Transfer| {
            let old = |keep: u32| t.group.is_some_and(|g| g.saturating_add(keep) < groups[t.lane()]);
            t.is_of(site.at.warp, site.m, bulk) && keep.is_none_or(old)
        };
        let lands = site.common.transfers.iter().filter(|t| due(t)).map(|t| t.lands).max().unwrap_or(0);
        site.common.observers.copies_awaited(site.at.warp, lands);
        self.land_all(site.common, read, due);
    }

    /// Lands the copies that are due.
    fn land_all(&mut self, common: &mut Common, read: bool, due: impl Fn(&Transfer) -> bool) {
        let mut transfers = std::mem::take(&mut common.transfers);
        transfers.retain_mut(|t| !due(t) || self.land(common, t, read));
        common.transfers = transfers;
    }

    /// Lands one of the copies that an mbarrier waits for.
    pub(crate) fn land_one(&mut self, common: &mut Common, mbarrier: u64) {
        let waited = |t: &Transfer| match &t.bytes {
            Bytes::Arriving { mbarrier: at, .. } => *at == mbarrier,
            _ => t.listener.as_ref().is_some_and(|l| l.mbarrier == mbarrier),
        };
        let among: Vec<usize> = (0..common.transfers.len()).filter(|&i| waited(&common.transfers[i])).collect();
        let i = match self.cx.config.schedule {
            _ if among.is_empty() => return,
            Schedule::RoundRobin => 0,
            _ => common.random.below(among.len()),
        };
        let mut transfer = common.transfers.remove(among[i]);
        self.land(common, &mut transfer, false);
    }

    /// Lands a copy. Given `read`, a store has only read its source. Returns whether the copy is still to be waited
    /// for.
    fn land(&mut self, common: &mut Common, t: &mut Transfer, read: bool) -> bool {
        let by = (&t.at, t.lane());
        self.wrote = true;
        match &mut t.bytes {
            Bytes::In { dst, data } => {
                let (bytes, dst) = (data.len() as u64, self.cx.layout.shared_index(*dst));
                shared_bytes(common, dst, data.len()).copy_from_slice(data);
                let listener = t.listener.as_ref();
                common.observers.copy_lands(by, dst, bytes, listener.map(|l| &l.issue));
                if let Some(Listener { mbarrier, issue }) = listener
                    && common.mbarriers.contains_key(mbarrier)
                {
                    let remote = self.cx.layout.is_remote(t.at.warp, *mbarrier);
                    common.observers.copy_arrive(issue, *mbarrier, remote);
                    common.advance(*mbarrier, 0, -(bytes as i64));
                }
                false
            }
            Bytes::Pieces(_) => {
                if let Bytes::Pieces(pieces) = std::mem::replace(&mut t.bytes, Bytes::Landed) {
                    self.land_pieces(common, (&t.at, t.lanes), pieces, |_| None);
                }
                false
            }
            Bytes::Landed => false,
            Bytes::Out { src, bytes, to, offset, read: done } => {
                if !*done {
                    let src = self.cx.layout.shared_index(*src);
                    for (k, b) in shared_bytes(common, src, *bytes as usize).chunks_exact(4).enumerate() {
                        let v = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                        write(to.data.wrapping_add(*offset as usize + 4 * k), 4, u64::from(v));
                    }
                    common.observers.copy_reads(by, src, *bytes);
                    (*done, self.progress) = (true, true);
                }
                if !read {
                    common.observers.copy_lands_in(self.cx, by, to, *offset, *bytes);
                }
                read
            }
            Bytes::Arriving { mbarrier, copies, issues } => {
                let issue = |lane: usize| issues.get((t.lanes & ((1 << lane) - 1)).count_ones() as usize);
                for copy in copies.drain(..) {
                    if let Bytes::Pieces(pieces) = copy.bytes {
                        self.land_pieces(common, (&copy.at, copy.lanes), pieces, issue);
                    }
                }
                let remote = self.cx.layout.is_remote(t.at.warp, *mbarrier);
                for issue in issues {
                    if common.mbarriers.get(mbarrier).is_some_and(|b| b.pending > 0) {
                        common.observers.copy_arrive(issue, *mbarrier, remote);
                        common.advance(*mbarrier, 1, 0);
                    }
                }
                false
            }
        }
    }

    /// Lands the copies of some lanes, which may have been issued with others that arrive at an mbarrier together.
    fn land_pieces<'i>(
        &self,
        common: &mut Common,
        (at, lanes): (&At, u32),
        pieces: Box<Pieces>,
        issue: impl Fn(usize) -> Option<&'i CopyIssue>,
    ) {
        for lane in Lanes(lanes) {
            let (dst, data) = (self.cx.layout.shared_index(pieces.dst[lane]), &pieces.data[lane]);
            match pieces.bytes {
                16 => shared_bytes(common, dst, 16).copy_from_slice(data),
                bytes => shared_bytes(common, dst, bytes).copy_from_slice(&data[..bytes]),
            }
            if self.cx.observed {
                common.observers.copy_lands((at, lane), dst, pieces.bytes as u64, issue(lane));
            }
        }
        if common.spare.len() < SPARE {
            common.spare.push(pieces);
        }
    }

    /// `cp.async.mbarrier.arrive`
    pub(crate) fn arrive_after_copies(&mut self, site: &mut Site<'_>, address: &Address, noinc: bool) -> OrFault<Flow> {
        let mbarriers = self.mbarriers(site, address)?;
        if noinc {
            let lacks = |l: &usize| site.common.mbarriers.get(&mbarriers[*l]).is_some_and(|b| b.pending == 0);
            if let Some(l) = Lanes(site.m).find(lacks) {
                let message = "an arrival at an mbarrier whose phase lacks none";
                return Err(self.fault(FaultKind::InvalidSync, &site.at, Some(l), message));
            }
            groups(site.m, |l| mbarriers[l]).for_each(|(mbarrier, lanes)| self.arrive_later(site, mbarrier, lanes));
            return Ok(Flow::Next);
        }
        let own = |t: &Transfer| t.is_of(site.at.warp, site.m, false);
        part(&mut site.common.transfers, site.at.warp, site.m);
        let lands = site.common.transfers.iter().filter(|t| own(t)).map(|t| t.lands).max().unwrap_or(0);
        // The arrival follows the copies; that they land now is one of the times they may.
        self.land_all(site.common, false, own);
        for l in Lanes(site.m) {
            // Not counted, since it adds to the count itself, only told.
            site.common.observers.mbarrier_arrive(&site.at, l, mbarriers[l], false);
            site.common.observers.arrival_after_copies(mbarriers[l], lands);
            site.common.advance(mbarriers[l], 0, 0);
        }
        Ok(Flow::Next)
    }

    /// Lets lanes' copies in flight land as late as they may, and each lane arrive with them. Copies that arrive elsewhere
    /// land now: their arrivals come before this one.
    fn arrive_later(&mut self, site: &mut Site<'_>, mbarrier: u64, lanes: u32) {
        let (warp, at) = (site.at.warp, site.at);
        let own = |t: &Transfer| t.is_of(warp, lanes, false);
        part(&mut site.common.transfers, warp, lanes);
        self.land_all(site.common, false, |t| own(t) && matches!(t.bytes, Bytes::Arriving { .. }));
        let (copies, others) = std::mem::take(&mut site.common.transfers).into_iter().partition::<Vec<_>, _>(own);
        site.common.transfers = others;
        let lands = copies.iter().map(|t| t.lands).max().unwrap_or(0);
        let issues = Lanes(lanes).map(|l| site.common.observers.copy_issue(&at, l, false, lands)).collect();
        let group = copies.iter().filter_map(|t| t.group).min();
        let bytes = Bytes::Arriving { mbarrier, copies, issues };
        site.common.transfers.push(Transfer { at, lanes, bytes, group, listener: None, lands });
    }

    /// `cp.async`; register `source` holds the number of bytes to read, the rest are zeros.
    pub(crate) fn copy_async(
        &mut self,
        site: &mut Site<'_>,
        [dst, src]: [&Address; 2],
        bytes: u32,
        source: R,
    ) -> OrFault<Flow> {
        let (from, to) = (site.warp.addresses(src), self.shared_offsets(site, dst)?);
        let mut pieces = site.common.spare.pop().unwrap_or_else(Pieces::none);
        (pieces.dst, pieces.bytes) = (to, bytes as usize);
        let size = |l| if source == NONE { bytes } else { site.warp.lane32(self.cx.code, source, l) };
        let sizes: Vec<_> = groups(site.m, size).collect();
        let mut undefined = [0; 4];
        for (size, group) in sizes {
            if size > bytes || !matches!(size, 0 | 4 | 8 | 16) {
                let message =
                    format!("{size} bytes are read for a copy of {bytes}: 0, 4, 8 or 16, not more, are possible");
                let lane = Some(group.trailing_zeros() as usize);
                return Err(self.fault(FaultKind::IllegalInstruction, &site.at, lane, message));
            }
            if size < bytes {
                Lanes(group).for_each(|l| pieces.data[l] = [0; 16]);
            }
            if size == 0 {
                continue;
            }
            if let Some(l) = Lanes(group).find(|&l| from[l] & u64::from(bytes - 1) != 0) {
                let message = format!("a copy of {bytes} bytes");
                return Err(self.fault_at(FaultKind::Misaligned, &site.at, l, from[l], message));
            }
            self.undefined = [0; 4];
            let access = Access { carries: true, ..Access::new(4, size / 4, false) };
            self.with_places(site, Space::Global, from, group, &access, |_, _, ptr, g| match size {
                16 => Lanes(g).for_each(|l| fetch(ptr[l], &mut pieces.data[l])),
                _ => Lanes(g).for_each(|l| fetch(ptr[l], &mut pieces.data[l][..size as usize])),
            })?;
            undefined.iter_mut().zip(self.undefined).for_each(|(all, lanes)| *all |= lanes);
        }
        self.undefined = undefined;
        let access = Access { pending: true, carries: true, ..Access::new(4, bytes / 4, true) };
        self.notes(site, Space::Shared, to, site.m, &access)?;
        let lands = site.common.observers.copies_land(site.at.warp);
        let bytes = Bytes::Pieces(pieces);
        let mut all = Transfer { at: site.at, lanes: site.m, bytes, group: None, listener: None, lands };
        let counts = &site.warp.groups[0];
        let transfers = &mut site.common.transfers;
        transfers.extend(groups(site.m, |l| counts[l]).filter_map(|(_, lanes)| all.split(site.at.warp, lanes)));
        transfers.push(all);
        Ok(Flow::Next)
    }

    /// `cp.async.bulk`: device to shared memory with an mbarrier, or shared to device memory in a bulk group.
    pub(crate) fn bulk(
        &mut self,
        site: &mut Site<'_>,
        [dst, src]: [&Address; 2],
        (bytes, policy): (R, Option<R>),
        mbarrier: Option<&Address>,
    ) -> OrFault<Flow> {
        let place = |cpu: &Self, site: &Site<'_>, a: &Address| match a.space {
            Space::Shared => cpu.shared_offsets(site, a),
            _ => Ok(site.warp.addresses(a)),
        };
        let (m, to, from) = (site.m, place(self, site, dst)?, place(self, site, src)?);
        let mbarriers = mbarrier.map(|b| self.mbarriers(site, b)).transpose()?;
        let mut sizes = [0; 32];
        let mut data: [Vec<u8>; 32] = Default::default();
        for l in Lanes(m) {
            let n = site.warp.lane32(self.cx.code, bytes, l);
            if n == 0 || !n.is_multiple_of(16) || !to[l].is_multiple_of(16) || !from[l].is_multiple_of(16) {
                let [to, from] = [to[l], from[l]];
                let message =
                    format!("a bulk copy of {n} bytes between {to:#x} and {from:#x}: multiples of 16 are needed");
                return Err(self.fault_at(FaultKind::Misaligned, &site.at, l, to, message));
            }
            sizes[l] = n;
        }
        // The source is read at once into shared memory, but as late as possible out of it.
        let carries = true;
        let source = Access { proxy: true, pending: mbarriers.is_none(), carries, ..Access::new(4, 4, false) };
        let target = Access { proxy: true, pending: true, carries, ..Access::new(4, 4, true) };
        for k in (0..sizes.into_iter().max().unwrap_or(0)).step_by(16) {
            let group = lanes_where(m, |l| k < sizes[l]);
            let [to, from] = [to, from].map(|start| start.map(|a| a.wrapping_add(k.into())));
            self.undefined = [0; 4];
            self.by_places(site, (src.space, from, group), &source, &mut |ptr, g| {
                for l in Lanes(if mbarriers.is_some() { g } else { 0 }) {
                    let mut piece = [0; 16];
                    fetch(ptr[l], &mut piece);
                    data[l].extend(piece);
                }
            })?;
            self.notes(site, dst.space, to, group, &target)?;
        }
        for l in Lanes(m) {
            let out = mbarriers.is_none();
            let device = (if out { to[l] } else { from[l] }, sizes[l].into());
            let is_last = policy.is_some_and(|policy| site.warp.lane(self.cx.code, (policy, W::W64), l) == EVICT_FIRST);
            let lands = self.bulk_issue(&mut site.common.observers, &site.at, device, (out, is_last));
            if let Some(mbarriers) = mbarriers {
                self.bulk_deliver(site, l, (to[l], std::mem::take(&mut data[l])), mbarriers[l], lands)?;
            } else if let Some(a) = self.table.find(to[l]).map(|i| self.table.live[i].clone()) {
                let (offset, bytes) = (to[l] - a.base, sizes[l].into());
                let bytes = Bytes::Out { src: from[l], bytes, to: a, offset, read: false };
                let (at, lanes) = (site.at, 1 << l);
                site.common.transfers.push(Transfer { at, lanes, bytes, group: None, listener: None, lands });
            }
        }
        Ok(Flow::Next)
    }

    /// `prefetch`: of no effect but in modelled time. What is not there is not asked for.
    pub(crate) fn prefetch_lines(&mut self, site: &mut Site<'_>, from: &Address) {
        let from = site.warp.addresses(from);
        let line = |l: usize| (from[l] / LINE * LINE, LINE);
        Lanes(site.m).for_each(|l| self.prefetches(&mut site.common.observers, &site.at, line(l)));
    }

    /// `cp.async.bulk.prefetch`: brings nothing here but in modelled time, and names memory that is there.
    pub(crate) fn prefetch(&mut self, site: &mut Site<'_>, from: &Address, bytes: R) -> OrFault<Flow> {
        let from = site.warp.addresses(from);
        for l in Lanes(site.m) {
            let (n, from) = (site.warp.lane32(self.cx.code, bytes, l), from[l]);
            if !n.is_multiple_of(16) || !from.is_multiple_of(16) {
                let message = format!("{n} bytes from {from:#x} are prefetched: multiples of 16 are needed");
                return Err(self.fault_at(FaultKind::Misaligned, &site.at, l, from, message));
            }
            let a = self.table.find(from).map(|i| &self.table.live[i]);
            if n > 0 && a.is_none_or(|a| from - a.base + u64::from(n) > a.size) {
                return Err(self.outside(Space::Global, (l, from), n.into(), &site.at));
            }
            self.prefetches(&mut site.common.observers, &site.at, (from, n.into()));
        }
        Ok(Flow::Next)
    }

    /// `st.async`: elements of `bytes` bytes into shared memory of a cluster, with an mbarrier.
    pub(crate) fn store_async(
        &mut self,
        site: &mut Site<'_>,
        [dst, mbarrier]: [&Address; 2],
        regs: &[(R, W)],
        bytes: u32,
    ) -> OrFault<Flow> {
        // The PTX ISA leaves it undefined where `%cluster_nctarank` is 1; in a launch without clusters an H200 with driver
        // 580 took it for an illegal instruction.
        if let Some(lane) = Lanes(site.m).next().filter(|_| self.cx.layout.ranks == 1) {
            let message = "st.async in a cluster of one block: it needs one of more";
            return Err(self.fault(FaultKind::IllegalInstruction, &site.at, Some(lane), message));
        }
        let mbarriers = self.mbarriers(site, mbarrier)?;
        let to = self.shared_offsets(site, dst)?;
        let access = Access { pending: true, ..Access::new(bytes, regs.len() as u32, true) };
        self.notes(site, Space::Shared, to, site.m, &access)?;
        for l in Lanes(site.m) {
            self.same_block(site, l, to[l], mbarriers[l])?;
            let values = regs.iter().map(|r| site.warp.lane(self.cx.code, *r, l).to_le_bytes());
            let data = values.flat_map(|v| v.into_iter().take(bytes as usize)).collect();
            let lands = site.common.observers.copies_land(site.at.warp);
            deliver(site, l, (to[l], data), mbarriers[l], false, lands);
        }
        Ok(Flow::Next)
    }

    /// All threads of a block have exited: faults on copies in flight, lands stores whose source was waited for.
    pub(crate) fn block_exit(&mut self, common: &mut Common) -> OrFault<()> {
        let waited = |t: &&Transfer| !matches!(t.bytes, Bytes::Out { read: true, .. });
        if let Some(t) = common.transfers.iter().find(waited).filter(|_| self.cx.config.checks.synccheck) {
            let message = "the block ended while this copy was in flight; wait for it first";
            return Err(self.fault(FaultKind::CopyInFlight, &t.at, Some(t.lane()), message));
        }
        // A store whose source was waited for may land after the block: the launch ends with it.
        self.land_all(common, false, |_| true);
        Ok(())
    }
}
