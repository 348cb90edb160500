//! mbarrier objects: phases that complete when all arrivals and all expected bytes have come.
//!
//! The object's 64 bits in shared memory are opaque; its state is kept beside them. A state token holds the phase in
//! its lower and the pending count in its upper half.

use super::access::Access;
use super::copy;
use super::inst::*;
use super::lanes::Lanes;
use super::step::Next;
use super::warp::State;
use super::{Cpu, Exec, FaultKind, Site};
use crate::checks::{Record, Vc};
use std::sync::Arc;

/// What an instruction does with an mbarrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MbarrierKind {
    Init,
    Arrive,
    /// Adds to the bytes expected, then arrives.
    ArriveExpect,
    WaitState,
    WaitParity,
}

/// The state of an mbarrier.
#[derive(Debug, Default)]
pub(crate) struct Mbarrier {
    /// Arrivals a phase needs.
    expected: u32,
    pending: u32,
    /// Bytes expected less bytes arrived.
    tx: i64,
    phase: u32,
    /// Who initialised it.
    init: Record,
    /// What those that arrived in this phase know, and in the last one.
    arriving: Option<Arc<Vc>>,
    pub(crate) passed: Option<Arc<Vc>>,
}

impl Mbarrier {
    /// Ends the phase if nothing is missing.
    fn complete(&mut self) {
        if self.pending == 0 && self.tx == 0 {
            self.phase = self.phase.wrapping_add(1);
            self.pending = self.expected;
            self.passed = self.arriving.take();
        }
    }

    /// Adds to what the phase's end will tell.
    pub(crate) fn tell(&mut self, vc: Option<Arc<Vc>>) {
        match (&mut self.arriving, vc) {
            (Some(a), Some(v)) => Arc::make_mut(a).join(&v),
            (slot @ None, v) => *slot = v,
            _ => {}
        }
    }

    /// Bytes have arrived.
    pub(crate) fn bytes_arrived(&mut self, bytes: i64, vc: Option<Arc<Vc>>) {
        self.tell(vc);
        self.tx -= bytes;
        self.complete();
    }

    /// The arrival that follows a thread's copies: counted, or, where it adds to the count itself, only told.
    pub(crate) fn arrive_after_copies(&mut self, counts: bool, vc: Option<Arc<Vc>>) -> bool {
        self.tell(vc);
        if counts {
            if self.pending == 0 {
                return false;
            }
            self.pending -= 1;
            self.complete();
        }
        true
    }

    /// A thread that arrived for a phase last leaves for good.
    pub(crate) fn leave(&mut self, arrived_for: u32) {
        self.expected -= 1;
        self.pending -= u32::from(arrived_for <= self.phase);
        self.complete();
    }

    /// For messages.
    pub(crate) fn describe(&self) -> String {
        format!("phase {}, {} arrivals and {} bytes missing", self.phase, self.pending, self.tx)
    }
}

/// Where the barrier of a cluster is kept among the mbarriers of its only block.
pub(crate) const CLUSTER: u64 = u64::MAX;

impl Cpu<'_> {
    /// `barrier.cluster.arrive`, in a cluster of one block.
    pub(crate) fn cluster_arrive(&mut self, site: &mut Site<'_>, relaxed: bool) -> Exec<Next> {
        let threads: u32 = site.common.live.iter().map(|l| l.count_ones()).sum();
        for l in Lanes(site.m) {
            let warp = site.at.warp;
            let vc = if relaxed { None } else { site.common.checks.warp(warp, |w| w.gather(1 << l)) };
            let new = || Mbarrier { expected: threads, pending: threads, ..Default::default() };
            let b = site.common.mbarriers.entry(CLUSTER).or_insert_with(new);
            if std::mem::replace(&mut site.warp.cluster[l], b.phase.wrapping_add(1)) > b.phase {
                let message = "a second arrival at the cluster's barrier without a wait between them";
                return Err(self.fault(FaultKind::InvalidSync, &site.at, Some(l), message));
            }
            b.arrive_after_copies(true, vc);
        }
        Ok(Next::Step)
    }

    /// `barrier.cluster.wait`
    pub(crate) fn cluster_wait(&mut self, site: &mut Site<'_>) -> Exec<Next> {
        let Some(b) = site.common.mbarriers.get(&CLUSTER) else {
            return Err(self.fault(
                FaultKind::InvalidSync,
                &site.at,
                None,
                "a wait at the cluster's barrier before any arrival",
            ));
        };
        if Lanes(site.m).any(|l| site.warp.cluster[l] > b.phase) {
            return Ok(Next::Park(State::Sleep(self.now().wrapping_add(20))));
        }
        if let Some(passed) = b.passed.clone() {
            site.common.checks.warp(site.at.warp, |w| Lanes(site.m).for_each(|l| w.learn(l, &passed)));
        }
        Ok(Next::Step)
    }

    /// Offsets of mbarriers in shared memory, checked.
    pub(crate) fn mbarrier_offsets(&mut self, site: &mut Site<'_>, address: &Address, init: bool) -> Exec<[u64; 32]> {
        let mut addr = self.addresses(site.warp, address);
        if address.space == Space::Generic {
            for l in Lanes(site.m) {
                let (kind, base) = super::access::generic(addr[l]);
                if kind != Space::Shared {
                    let message = "an mbarrier outside shared memory";
                    return Err(self.fault_at(FaultKind::OutOfBounds, &site.at, l, addr[l], message));
                }
                addr[l] -= base;
            }
        }
        let sem = if init { Sem::Weak } else { Sem::Relaxed };
        let access = Access { atomic: !init, sem, ..Access::new(8, 1, true) };
        self.with_places(site, Space::Shared, addr, site.m, &access, |_, _, _, _| {})?;
        Ok(addr)
    }

    /// Runs an operation on an mbarrier, lane after lane; `value` is a count, bytes, a parity or a state. `d` receives the
    /// state before it, `p` whether a phase is over.
    pub(crate) fn mbarrier(
        &mut self,
        site: &mut Site<'_>,
        (kind, relaxed): (MbarrierKind, bool),
        address: &Address,
        value: (R, W),
        (d, p): (R, P),
    ) -> Exec<Next> {
        let addr = self.mbarrier_offsets(site, address, kind == MbarrierKind::Init)?;
        let Site { common, warp, m, all, at } = site;
        let mut waits = false;
        for l in Lanes(*m) {
            let value = warp.lane(self.cx.code, value, l);
            if kind == MbarrierKind::Init {
                if value == 0 || value >= 1 << 20 {
                    let message = format!("an mbarrier for {value} arrivals: 1 to 2^20 - 1 are possible");
                    return Err(self.fault(FaultKind::IllegalInstruction, at, Some(l), message));
                }
                let (value, init) = (value as u32, common.checks.record(warp.id, l, at.pc));
                let b = Mbarrier { expected: value, pending: value, init, ..Default::default() };
                common.mbarriers.insert(addr[l], b);
                continue;
            }
            let Some(by) = common.mbarriers.get(&addr[l]).map(|b| b.init) else {
                let message = "an mbarrier that was not initialised";
                return Err(self.fault_at(FaultKind::InvalidSync, at, l, addr[l], message));
            };
            if !common.checks.knows(warp.id, l, by) {
                let message = "the initialisation of this mbarrier by another thread is not ordered before this use: a barrier of the block between them is missing";
                return Err(self.fault_at(FaultKind::Race, at, l, addr[l], message));
            }
            let arrives = matches!(kind, MbarrierKind::Arrive | MbarrierKind::ArriveExpect);
            let vc = if arrives && !relaxed { common.checks.warp(warp.id, |w| w.gather(1 << l)) } else { None };
            let Some(b) = common.mbarriers.get_mut(&addr[l]) else { continue };
            let token = u64::from(b.phase) | u64::from(b.pending) << 32;
            match kind {
                MbarrierKind::Init => {}
                MbarrierKind::Arrive | MbarrierKind::ArriveExpect => {
                    let n = if kind == MbarrierKind::Arrive { value as u32 } else { 1 };
                    if n == 0 || n > b.pending {
                        let message =
                            format!("{n} arrivals at an mbarrier whose phase {} lacks only {}", b.phase, b.pending);
                        return Err(self.fault(FaultKind::InvalidSync, at, Some(l), message));
                    }
                    if kind == MbarrierKind::ArriveExpect {
                        b.tx += value as i64;
                    }
                    b.tell(vc);
                    b.pending -= n;
                    b.complete();
                    if d != NONE {
                        warp.set_lane(d, W::W64, l, token);
                    }
                }
                MbarrierKind::WaitState | MbarrierKind::WaitParity => {
                    let parity = kind == MbarrierKind::WaitParity;
                    let done = if parity { u64::from(b.phase & 1) != value & 1 } else { b.phase != value as u32 };
                    let passed = b.passed.clone().filter(|_| done && !relaxed);
                    if !done {
                        // Copies land as late as they may: when somebody looks for them in vain.
                        copy::land_one(self, common, addr[l]);
                        waits = true;
                    }
                    warp.set_pred(p, u32::from(done) << l, 1 << l);
                    if let Some(passed) = passed {
                        common.checks.warp(warp.id, |w| w.learn(l, &passed));
                    }
                }
            }
        }
        if waits && m == all {
            // A wait in vain takes a while; others run meanwhile.
            return Ok(Next::StepAndPark(State::Sleep(self.now().wrapping_add(20))));
        }
        Ok(Next::Step)
    }
}
