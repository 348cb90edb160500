//! Stamps of every phase, in a kernel that traces. Beside a ring most phases end without the grid's barrier: what their
//! blocks then wait for lies at the begin of the next phase.

use super::Decoder;
use crate::ptx::{Builder, Global, LoadKind, Operand, Pred, U32, U64, Val, Var};
use kiln_shape::mailbox::{state, trace};

/// Where records go (`kiln_shape::mailbox::trace`), how many were written, and when the phase at hand began.
pub(super) struct Trace {
    to: Global<U64>,
    capacity: Val<U32>,
    event: Var<U32>,
    begin: Var<U64>,
}

impl Trace {
    /// The trace's parameters.
    pub(super) fn new(b: &mut Builder) -> Trace {
        Trace {
            to: b.param::<Global<U64>>("trace"), // [trace_capacity, grid, trace::WORDS]
            capacity: b.param::<U32>("trace_capacity"),
            event: b.var::<U32>(0),
            begin: b.var::<U64>(0),
        }
    }
}

/// What ends a phase.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ends {
    /// The grid's barrier.
    Grid,
    /// The grid's barrier at a token's last phase, else the block's.
    Of { is_last: Val<Pred> },
    /// None: what follows begins with the block's barrier.
    Open,
}

impl Decoder<'_> {
    /// The grid's barrier at the end of a phase.
    pub(super) fn end_phase(&self, b: &mut Builder, phase: impl Operand<U32>, layer: Val<U32>) {
        self.end_step(b, phase, layer, Ends::Grid, None);
    }

    /// What ends a phase; `beside` is run while the grid is waited for.
    pub(super) fn end_step(
        &self,
        b: &mut Builder,
        phase: impl Operand<U32>,
        layer: Val<U32>,
        ends: Ends,
        beside: Option<&dyn Fn(&mut Builder)>,
    ) {
        let waits = |b: &mut Builder| match ends {
            Ends::Grid => match beside {
                Some(beside) => self.barrier.wait_beside(b, beside),
                None => self.barrier.wait(b),
            },
            // What the block has staged was read.
            Ends::Of { is_last } => b.if_else(is_last, |b| self.barrier.wait(b), |b| b.bar_sync()),
            Ends::Open => {}
        };
        let Some(trace) = &self.trace else { return waits(b) };
        let wait = b.globaltimer();
        waits(b);
        let end = b.globaltimer();
        let tid = b.tid();
        let first = b.setp_eq(tid, 0);
        let inside = b.setp_lt::<U32>(trace.event, trace.capacity);
        let writes = b.and_pred(first, inside);
        b.if_(writes, |b| {
            let record = b.mad::<U32>(trace.event, self.barrier.blocks(), self.block);
            let to = b.byte_index(trace.to, record, trace::WORDS * 8);
            let low = b.mad::<U32>(layer, 256, phase);
            let first = b.mov::<U32>(0);
            let position = self.columns.position(b, first);
            let what = b.pack64(low, position);
            b.st(to, what);
            b.st(to.at(1), trace.begin);
            b.st(to.at(2), wait);
            b.st(to.at(3), end);
        });
        let next = b.add::<U32>(trace.event, 1);
        b.set(trace.event, next);
        b.set(trace.begin, end);
    }

    /// Begins a token's first phase.
    pub(super) fn begin_trace(&self, b: &mut Builder) {
        let Some(trace) = &self.trace else { return };
        let now = b.globaltimer();
        b.set(trace.begin, now);
    }

    /// Goes on behind the records of the launches before.
    pub(super) fn resume_trace(&self, b: &mut Builder) {
        let Some(trace) = &self.trace else { return };
        // Nobody writes the word before the last barrier.
        let events = b.ld(self.state.at(state::EVENTS), LoadKind::Ordinary);
        b.set(trace.event, events);
    }

    /// Keeps the number of records; for the leader, at the launch's end.
    pub(super) fn keep_trace(&self, b: &mut Builder) {
        let Some(trace) = &self.trace else { return };
        b.st(self.kept.at(state::EVENTS), trace.event);
    }
}
