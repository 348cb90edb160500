//! mbarrier objects: phases that complete when all arrivals and all expected bytes have come.
//!
//! The object's 64 bits in shared memory are opaque; its state is kept beside them. A state token holds the phase in
//! its lower and the pending count in its upper half.

use super::access::Access;
use super::block::Common;
use super::copy;
use super::inst::*;
use super::lanes::Lanes;
use super::step::Next;
use super::warp::{State, Warp};
use super::{At, Cpu, Exec, FaultKind};
use std::sync::Arc;

/// What an instruction does with an mbarrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MbarrierKind {
    Init,
    Invalidate,
    Arrive,
    /// Adds to the bytes expected, then arrives.
    ArriveExpect,
    /// Arrives, for this and all later phases.
    Drop,
    Expect,
    Complete,
    WaitState,
    WaitParity,
}

/// An operation on an mbarrier object.
#[derive(Debug, Clone)]
pub(crate) struct MbarrierOp {
    pub(crate) kind: MbarrierKind,
    pub(crate) address: Address,
    pub(crate) space: MemSpace,
    /// Count, bytes, parity or state.
    pub(crate) value: R,
    pub(crate) wide: bool,
    pub(crate) d: R,
    pub(crate) p: P,
    pub(crate) sem: Sem,
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
    /// What those that arrived in this phase know, and in the last one.
    /// Who initialised it: warp, lane, clock.
    init: (u32, u32, u32),
    arriving: Option<Arc<crate::checks::Vc>>,
    pub(crate) passed: Option<Arc<crate::checks::Vc>>,
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
    pub(crate) fn tell(&mut self, vc: Option<Arc<crate::checks::Vc>>) {
        match (&mut self.arriving, vc) {
            (Some(a), Some(v)) => Arc::make_mut(a).join(&v),
            (slot @ None, v) => *slot = v,
            _ => {}
        }
    }

    /// Bytes have arrived.
    pub(crate) fn bytes_arrived(&mut self, bytes: i64, vc: Option<Arc<crate::checks::Vc>>) {
        self.tell(vc);
        self.tx -= bytes;
        self.complete();
    }

    /// The arrival that follows a thread's copies: counted, or, where it adds to the count itself, only told.
    pub(crate) fn arrive_after_copies(&mut self, counts: bool, vc: Option<Arc<crate::checks::Vc>>) -> bool {
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

    /// For messages.
    pub(crate) fn describe(&self) -> String {
        format!("phase {}, {} arrivals and {} bytes missing", self.phase, self.pending, self.tx)
    }
}

impl Cpu<'_> {
    /// Offsets of mbarriers in shared memory, checked.
    pub(crate) fn mbarrier_offsets(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        address: &Address,
        space: MemSpace,
        init: bool,
        m: u32,
        at: &At,
    ) -> Exec<[u64; 32]> {
        let mut addr = self.addresses(warp, address);
        if space == MemSpace::Generic {
            for l in Lanes(m) {
                let (kind, offset) = super::access::generic(addr[l]);
                if kind != MemSpace::Shared {
                    let mut f = self.fault(FaultKind::OutOfBounds, at, Some(l), "an mbarrier outside shared memory");
                    f.address = Some(addr[l]);
                    return Err(f);
                }
                addr[l] = offset;
            }
        }
        let access = Access {
            bytes: 8,
            count: 1,
            write: true,
            atomic: !init,
            sem: if init { Sem::Weak } else { Sem::Relaxed },
            scope: Scope::Cta,
            nc: false,
            proxy: false,
            pending: false,
            constant_space: false,
        };
        self.with_places(common, warp, MemSpace::Shared, addr, m, &access, at, |_, _, _, _| {})?;
        Ok(addr)
    }

    /// Runs an operation on an mbarrier, lane after lane.
    pub(crate) fn mbarrier(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        op: &MbarrierOp,
        m: u32,
        all: u32,
        at: &At,
    ) -> Exec<Next> {
        let init = op.kind == MbarrierKind::Init;
        let clock = crate::checks::clock(common, warp.id);
        let addr = self.mbarrier_offsets(common, warp, &op.address, op.space, init, m, at)?;
        let code = self.cx.code;
        let mut waits = false;
        for l in Lanes(m) {
            let value = warp.lane(code, (op.value, if op.wide { W::W64 } else { W::W32 }), l);
            if init {
                if value == 0 || value >= 1 << 20 {
                    let message = format!("an mbarrier for {value} arrivals: 1 to 2^20 - 1 are possible");
                    return Err(self.fault(FaultKind::IllegalInstruction, at, Some(l), message));
                }
                let value = value as u32;
                let init = (warp.id, l as u32, clock);
                let b = Mbarrier { expected: value, pending: value, init, ..Default::default() };
                common.mbarriers.insert(addr[l], b);
                continue;
            }
            let vc = match op.kind {
                MbarrierKind::Arrive | MbarrierKind::ArriveExpect | MbarrierKind::Drop if op.sem != Sem::Relaxed => {
                    crate::checks::told(common, warp.id, 1 << l)
                }
                _ => None,
            };
            let Some(b) = common.mbarriers.get_mut(&addr[l]) else {
                let mut f = self.fault(FaultKind::InvalidSync, at, Some(l), "an mbarrier that was not initialised");
                f.address = Some(addr[l]);
                return Err(f);
            };
            let by = b.init;
            if !crate::checks::knows(common, warp.id, l, by) {
                let message = "the initialisation of this mbarrier by another thread is not ordered before this use: a barrier of the block between them is missing";
                let mut f = self.fault(FaultKind::Race, at, Some(l), message);
                f.address = Some(addr[l]);
                return Err(f);
            }
            let Some(b) = common.mbarriers.get_mut(&addr[l]) else { continue };
            let token = u64::from(b.phase) | u64::from(b.pending) << 32;
            match op.kind {
                MbarrierKind::Invalidate => {
                    common.mbarriers.remove(&addr[l]);
                }
                MbarrierKind::Arrive | MbarrierKind::ArriveExpect | MbarrierKind::Drop => {
                    let n = if op.kind == MbarrierKind::Arrive { value as u32 } else { 1 };
                    if n == 0 || n > b.pending {
                        let message =
                            format!("{n} arrivals at an mbarrier whose phase {} lacks only {}", b.phase, b.pending);
                        return Err(self.fault(FaultKind::InvalidSync, at, Some(l), message));
                    }
                    if op.kind == MbarrierKind::ArriveExpect {
                        b.tx += value as i64;
                    }
                    if op.kind == MbarrierKind::Drop {
                        b.expected -= n;
                    }
                    b.tell(vc);
                    b.pending -= n;
                    b.complete();
                    if op.d != NONE {
                        warp.set_lane(op.d, W::W64, l, token);
                    }
                }
                MbarrierKind::Expect => b.tx += value as i64,
                MbarrierKind::Complete => b.bytes_arrived(value as i64, None),
                MbarrierKind::WaitState | MbarrierKind::WaitParity => {
                    let done = |b: &Mbarrier| match op.kind {
                        MbarrierKind::WaitParity => u64::from(b.phase & 1) != value & 1,
                        _ => b.phase != value as u32,
                    };
                    let mut ok = done(b);
                    if !ok {
                        // Copies land as late as they may: when somebody looks for them in vain.
                        copy::land_one(self, common, addr[l]);
                        ok = false;
                        waits = true;
                    }
                    let p = &mut warp.preds[usize::from(op.p)];
                    *p = *p & !(1 << l) | u32::from(ok) << l;
                    if ok
                        && op.sem != Sem::Relaxed
                        && let Some(passed) = common.mbarriers.get(&addr[l]).and_then(|b| b.passed.clone())
                    {
                        crate::checks::learn(common, warp.id, 1 << l, &passed);
                    }
                }
                MbarrierKind::Init => {}
            }
        }
        if waits && m == all {
            // A wait in vain takes a while; others run meanwhile.
            return Ok(Next::StepAndPark(State::Sleep(self.now().wrapping_add(20))));
        }
        Ok(Next::Step)
    }
}
