//! What the interpreter tells the checks, event by event: the counters, which are each host thread's own, and the race
//! and initialisation checks, which are each block's.

use super::{Cpu, LaunchCx};
use crate::checks::block::{BlockChecks, Launched};
use crate::checks::witness::Witness;
use crate::machine::access::Access;
use crate::machine::fault::{FaultKind, OrFault};
use crate::machine::layout::At;
use crate::machine::types::Space;
use std::sync::{Arc, MutexGuard};

impl LaunchCx<'_> {
    /// What the race check has to know of the launch.
    pub(crate) fn launched(&self) -> Launched<'_> {
        Launched { layout: &self.layout, op: &self.op, origins: &self.code.origins }
    }
}

impl<'a> Cpu<'a> {
    /// An access of some lanes, before it happens. What comes back holds other launches and the host off, where the access
    /// may synchronise with them, until it is done.
    pub(crate) fn accesses(
        &mut self,
        checks: &mut BlockChecks,
        space: Space,
        named: &[u64; 32],
        m: u32,
        access: &Access,
        at: &At,
    ) -> OrFault<Option<MutexGuard<'a, Witness>>> {
        if self.cx.config.counters {
            self.counters.access(at.pc, space, named, m, access);
        }
        // Without an allocation it is the block's shared memory.
        let allocation = match space {
            Space::Shared => None,
            Space::Global | Space::Generic => self.table.live.get(self.site[at.pc as usize] as usize),
            _ => return Ok(None),
        };
        let layout = &self.cx.layout;
        let in_cluster = allocation.is_none() && layout.ranks > 1;
        let addr = if in_cluster { &named.map(|a| layout.shared_index(a)) } else { named };
        // SAFETY: `self.table` holds the allocation, and changes only between instructions. Counting the reference would
        // make the threads of the launch contend for it.
        let allocation = allocation.map(|a| unsafe { &(*Arc::as_ptr(a)).checks });
        if self.cx.config.checks.initcheck
            && let Some((lane, address)) = checks.mark(allocation, addr, m, access)
        {
            let message = format!("{} bytes are read that nothing has written", access.bytes.min(8));
            let address = named[lane] + (address - addr[lane]);
            return Err(self.fault_at(FaultKind::UninitialisedMemory, at, lane, address, message));
        }
        if !checks.race_checked() {
            return Ok(None);
        }
        let access = &Access { scope: layout.reach(access.scope), ..*access };
        let mut turn = (access.is_strong() && allocation.is_some()).then(|| self.cx.memory.witness());
        let compared = checks.access(self.cx.launched(), at, allocation, (addr, m), access, turn.as_deref_mut());
        match compared {
            Ok(()) => Ok(turn),
            Err(race) => {
                let address = named[race.lane] + u64::from(race.offset);
                Err(self.fault_at(race.kind, at, race.lane, address, race.message))
            }
        }
    }
}
