//! mbarrier objects: phases that complete when all arrivals and all expected bytes have come.
//!
//! The object's 64 bits in shared memory are opaque to PTX; the state is kept beside them. A state token holds the
//! phase in its lower and the pending count in its upper half.

use super::access::generic;
use super::block::Common;
use super::inst::*;
use super::step::Flow;
use super::warp::State;
use super::{Cpu, Site};
use crate::machine::access::{Access, Scope, Sem};
use crate::machine::fault::{FaultKind, OrFault};
use crate::machine::lanes::Lanes;
use crate::machine::types::Space;

/// Operation of an mbarrier instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MbarrierKind {
    Init,
    Invalidate,
    Arrive,
    /// Adds to the expected bytes, then arrives.
    ArriveExpect,
    /// Arrives, and is no longer expected in later phases.
    Drop,
    Expect,
    Complete,
    WaitState,
    WaitParity,
}

/// The state of an mbarrier.
#[derive(Debug, Default)]
pub(crate) struct Mbarrier {
    /// Arrivals per phase.
    expected: u32,
    pub(crate) pending: u32,
    /// Expected bytes minus landed bytes.
    tx: i64,
    phase: u32,
}

impl Mbarrier {
    fn new(expected: u32) -> Mbarrier {
        Mbarrier { expected, pending: expected, ..Mbarrier::default() }
    }

    /// Counts arrivals of threads, and expected bytes or, below zero, landed ones. Returns whether the phase completes.
    fn advance(&mut self, threads: u32, bytes: i64) -> bool {
        self.pending -= threads;
        self.tx += bytes;
        let over = self.pending == 0 && self.tx == 0;
        if over {
            self.phase = self.phase.wrapping_add(1);
            self.pending = self.expected;
        }
        over
    }

    /// Drops a thread whose last arrival was for a phase. Returns whether the phase completes.
    pub(crate) fn leave(&mut self, arrived_for: u32) -> bool {
        self.expected -= 1;
        self.advance(u32::from(arrived_for <= self.phase), 0)
    }

    /// The state in words, for messages.
    pub(crate) fn describe(&self) -> String {
        format!("phase {}, {} arrivals and {} bytes missing", self.phase, self.pending, self.tx)
    }
}

/// Duration of a failed wait.
const POLL: u64 = 20;
/// Key of the cluster's barrier among the mbarriers.
pub(crate) const CLUSTER: u64 = u64::MAX;

impl Common {
    /// Counts arrivals of threads at an mbarrier, and expected bytes or, below zero, landed ones.
    pub(crate) fn advance(&mut self, mbarrier: u64, threads: u32, bytes: i64) {
        self.moved = true;
        if self.mbarriers.get_mut(&mbarrier).is_some_and(|b| b.advance(threads, bytes)) {
            self.observers.mbarrier_complete(mbarrier);
        }
    }
}

impl Cpu<'_> {
    /// `barrier.cluster.arrive`
    pub(crate) fn cluster_arrive(&mut self, site: &mut Site<'_>, relaxed: bool) -> OrFault<Flow> {
        let threads: u32 = site.common.live.iter().map(|l| l.count_ones()).sum();
        for l in Lanes(site.m) {
            if !relaxed {
                site.common.observers.mbarrier_arrive(&site.at, l, CLUSTER, false);
            }
            let b = site.common.mbarriers.entry(CLUSTER).or_insert_with(|| Mbarrier::new(threads));
            if std::mem::replace(&mut site.warp.cluster[l], b.phase.wrapping_add(1)) != 0 {
                let message = "a second arrival at the cluster's barrier without a wait between them";
                return Err(self.fault(FaultKind::InvalidSync, &site.at, Some(l), message));
            }
            site.common.advance(CLUSTER, 1, 0);
        }
        Ok(Flow::Next)
    }

    /// `barrier.cluster.wait`
    pub(crate) fn cluster_wait(&mut self, site: &mut Site<'_>) -> OrFault<Flow> {
        let early = Lanes(site.m).find(|&l| site.warp.cluster[l] == 0);
        let (None, Some(b)) = (early, site.common.mbarriers.get(&CLUSTER)) else {
            let message = "a wait at the cluster's barrier without an arrival";
            return Err(self.fault(FaultKind::InvalidSync, &site.at, early, message));
        };
        if Lanes(site.m).any(|l| site.warp.cluster[l] > b.phase) {
            return Ok(Flow::Park(State::Cluster(self.now().wrapping_add(POLL)), 0));
        }
        Lanes(site.m).for_each(|l| site.warp.cluster[l] = 0);
        site.common.observers.mbarrier_wait(&site.at, site.m, CLUSTER, Scope::Cta);
        Ok(Flow::Next)
    }

    /// Cluster-wide shared addresses of all lanes.
    pub(crate) fn shared_offsets(&self, site: &Site<'_>, address: &Address) -> OrFault<[u64; 32]> {
        let mut addr = site.warp.addresses(address);
        let rank = site.at.warp / self.cx.layout.warps;
        for l in Lanes(if address.space == Space::Generic { site.m } else { 0 }) {
            let (space, base) = generic(addr[l]);
            if space != Space::Shared {
                let message = "this address must be one of shared memory";
                return Err(self.fault_at(FaultKind::OutOfBounds, &site.at, l, addr[l], message));
            }
            addr[l] -= base;
        }
        Ok(addr.map(|a| self.cx.layout.in_cluster(rank, a)))
    }

    /// Addresses of initialised mbarriers. Faults where one is not, or where its initialisation does not happen before.
    pub(crate) fn mbarriers(&mut self, site: &mut Site<'_>, address: &Address) -> OrFault<[u64; 32]> {
        let addr = self.shared_offsets(site, address)?;
        let access = Access { atomic: true, sem: Sem::Relaxed, scope: Scope::Cluster, ..Access::new(8, 1, true) };
        self.notes(site, Space::Shared, addr, site.m, &access)?;
        for l in Lanes(site.m) {
            let (kind, message) = match site.common.mbarriers.get(&addr[l]) {
                None => (FaultKind::InvalidSync, "an mbarrier that was not initialised"),
                Some(_) if site.common.observers.mbarrier_is_ready(&site.at, l, addr[l]) => continue,
                Some(_) => (
                    FaultKind::Race,
                    "the initialisation of this mbarrier by another thread is not ordered before this use: a barrier of the block between them is missing",
                ),
            };
            self.find(self.fault_at(kind, &site.at, l, addr[l], message))?;
        }
        Ok(addr)
    }

    /// Faults where a store or atomic touches an mbarrier that is in use.
    #[cold]
    pub(crate) fn spoils_mbarrier(
        &self,
        site: &Site<'_>,
        space: Space,
        addr: &[u64; 32],
        access: &Access,
    ) -> OrFault<()> {
        if !self.cx.config.checks.synccheck {
            return Ok(());
        }
        let rank = site.at.warp / self.cx.layout.warps;
        for l in Lanes(site.m) {
            let (space, base) = if space == Space::Generic { generic(addr[l]) } else { (space, 0) };
            if space != Space::Shared {
                continue;
            }
            let address = self.cx.layout.in_cluster(rank, addr[l].wrapping_sub(base));
            let end = address.wrapping_add((access.bytes * access.count).into());
            let (first, last) = site.common.mbarriers_in;
            if end <= first || last <= address {
                continue;
            }
            if let Some(at) = (address & !7..end).step_by(8).find(|at| site.common.mbarriers.contains_key(at)) {
                let message = format!(
                    "an ordinary store into the mbarrier at {at:#x}, which is in use: mbarrier.inval comes first"
                );
                return Err(self.fault_at(FaultKind::InvalidSync, &site.at, l, addr[l], message));
            }
        }
        Ok(())
    }

    /// `mbarrier.init`
    fn mbarrier_init(&mut self, site: &mut Site<'_>, address: &Address, count: (R, W)) -> OrFault<Flow> {
        let addr = self.shared_offsets(site, address)?;
        self.notes(site, Space::Shared, addr, site.m, &Access::new(8, 1, true))?;
        for l in Lanes(site.m) {
            let count = site.warp.lane(self.cx.code, count, l) as u32;
            if count == 0 || count >= 1 << 20 {
                let message = format!("an mbarrier for {count} arrivals: 1 to 2^20 - 1 are possible");
                return Err(self.fault(FaultKind::IllegalInstruction, &site.at, Some(l), message));
            }
            site.common.mbarriers.insert(addr[l], Mbarrier::new(count));
            let (begin, end) = &mut site.common.mbarriers_in;
            (*begin, *end) = ((*begin).min(addr[l]), (*end).max(addr[l] + 8));
            site.common.observers.mbarrier_init(&site.at, l, addr[l]);
        }
        Ok(Flow::Next)
    }

    /// Runs an mbarrier operation, lane after lane; relaxed without a scope. `value` is a count, bytes, a parity or a
    /// state. `d` receives the state before the operation, `p` whether a phase is over.
    pub(crate) fn mbarrier(
        &mut self,
        site: &mut Site<'_>,
        (kind, order): (MbarrierKind, Option<Scope>),
        address: &Address,
        value: (R, W),
        (d, p): (R, P),
    ) -> OrFault<Flow> {
        if kind == MbarrierKind::Init {
            return self.mbarrier_init(site, address, value);
        }
        let wrote = self.wrote;
        let addr = self.mbarriers(site, address)?;
        if matches!(kind, MbarrierKind::WaitState | MbarrierKind::WaitParity) {
            self.wrote = wrote;
        }
        let Site { common, warp, m, all, at } = site;
        let mut waits = false;
        for l in Lanes(*m) {
            let value = warp.lane(self.cx.code, value, l);
            let Some(b) = common.mbarriers.get_mut(&addr[l]) else { continue };
            let (phase, pending, remote) = (b.phase, b.pending, self.cx.layout.is_remote(warp.id, addr[l]));
            match kind {
                MbarrierKind::Init => {}
                MbarrierKind::Invalidate => drop(common.mbarriers.remove(&addr[l])),
                MbarrierKind::Expect => common.advance(addr[l], 0, value as i64),
                MbarrierKind::Complete => common.advance(addr[l], 0, -(value as i64)),
                MbarrierKind::Arrive | MbarrierKind::ArriveExpect | MbarrierKind::Drop => {
                    let expects = kind == MbarrierKind::ArriveExpect;
                    let (n, bytes) = if expects { (1, value as i64) } else { (value as u32, 0) };
                    if n == 0 || n > pending {
                        let message = format!("{n} arrivals at an mbarrier whose phase {phase} lacks only {pending}");
                        return Err(self.fault(FaultKind::InvalidSync, at, Some(l), message));
                    }
                    let tells = order.is_some_and(|scope| !remote || scope >= Scope::Cluster);
                    b.expected -= if kind == MbarrierKind::Drop { n.min(b.expected) } else { 0 };
                    if tells {
                        common.observers.mbarrier_arrive(at, l, addr[l], remote);
                    }
                    common.advance(addr[l], n, bytes);
                    if d != NONE {
                        warp.set_lane(d, W::W64, l, u64::from(phase) | u64::from(pending) << 32);
                    }
                }
                MbarrierKind::WaitState | MbarrierKind::WaitParity => {
                    let which = if kind == MbarrierKind::WaitParity { 1 } else { u32::MAX };
                    let done = phase & which != value as u32 & which;
                    warp.set_pred(p, u32::from(done) << l, 1 << l);
                    if !done {
                        // Copies land as late as they may: when somebody looks for them in vain.
                        self.land_one(common, addr[l]);
                        waits = true;
                    } else if let Some(scope) = order {
                        common.observers.mbarrier_wait(at, 1 << l, addr[l], scope);
                    }
                }
            }
        }
        if waits && m == all {
            // A wait in vain takes a while; others run meanwhile.
            return Ok(Flow::Park(State::Sleep(self.now().wrapping_add(POLL)), 1));
        }
        Ok(Flow::Next)
    }
}
