//! Records of a buffer's last uses: what a free or an access of the host has to wait for.
//!
//! Every buffer has a slot. It holds the last write and, per stream, the last read since. The rules:
//! 1. work that reads waits for the last write; work that writes waits for the last write and all reads;
//! 2. within a stream its order does that; across streams the later stream is told to wait, not the host;
//! 3. the host waits by the same rules before it touches or frees, and holds the slot's lock until it is through;
//! 4. a slot's lock is held from the check until the work has its ticket, so nobody enqueues in between.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::context::Context;
use super::resident::Claim;
use super::stream::{Stream, StreamInner};
use crate::{Error, Result};

/// One use of a buffer by work that is being enqueued: made by a buffer's `reads` and `writes`.
#[derive(Clone, Copy)]
pub struct Use<'a> {
    pub(crate) slot: &'a Slot,
    pub(crate) context: &'a Context,
    pub(crate) access: Access,
    pub(crate) name: &'static str,
}

/// The access of work to a buffer. A write may read as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A buffer's record.
#[derive(Default)]
pub(crate) struct Slot(Mutex<Record>);

#[derive(Default)]
pub(crate) struct Record {
    write: Option<Mark>,
    /// At most one per stream, all since `write`.
    reads: Vec<Mark>,
}

struct Mark {
    stream: Arc<StreamInner>,
    ticket: u64,
}

impl Slot {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    /// Blocks the host until it may do `access`.
    pub(crate) fn wait(&mut self, access: Access) -> Result<()> {
        if let Some(mark) = &self.write {
            mark.stream.wait_for(mark.ticket)?;
            self.write = None;
        }
        if access == Access::Write {
            for mark in &self.reads {
                mark.stream.wait_for(mark.ticket)?;
            }
            self.reads.clear();
        }
        Ok(())
    }

    /// Has the stream wait until it may do `access`.
    fn order(&self, stream: &Arc<StreamInner>, access: Access) -> Result<()> {
        if let Some(mark) = &self.write {
            stream.order_after(&mark.stream, mark.ticket)?;
        }
        if access == Access::Write {
            for mark in &self.reads {
                stream.order_after(&mark.stream, mark.ticket)?;
            }
        }
        Ok(())
    }

    /// Notes work that was ordered by `order`.
    pub(crate) fn note(&mut self, stream: &Arc<StreamInner>, ticket: u64, access: Access) {
        if access == Access::Write {
            // What came before is in front of this work now.
            self.reads.clear();
            match &mut self.write {
                Some(mark) if Arc::ptr_eq(&mark.stream, stream) => mark.ticket = ticket,
                write => *write = Some(Mark { stream: stream.clone(), ticket }),
            }
            return;
        }
        match self.reads.iter_mut().find(|mark| Arc::ptr_eq(&mark.stream, stream)) {
            Some(mark) => mark.ticket = ticket,
            None => {
                self.reads.retain(|mark| !mark.stream.is_done(mark.ticket));
                self.reads.push(Mark { stream: stream.clone(), ticket });
            }
        }
    }
}

impl Stream {
    /// Enqueues work and notes its buffers: they outlive it, and no other use comes in between.
    ///
    /// `work` enqueues on the given stream and returns without waiting. It may use the buffers named in `uses`, as named
    /// there; each is named once unless it is only read. It enqueues on no other stream, and by no other `enqueue`: the
    /// buffers are locked, and the turn on the device is this call's.
    ///
    /// A resident decoder on the device makes room first, within [`Limits::turn`] and a token. It goes on behind this
    /// work and the work that follows within a turn.
    ///
    /// [`Limits::turn`]: super::Limits::turn
    ///
    /// # Errors
    /// A buffer of another device or driver; a written buffer named twice; a stream under capture by another thread;
    /// [`Error::Stalled`] if the turn does not come within [`Limits::wait`](super::Limits::wait); what `work` returns.
    ///
    /// ```no_run
    /// # use kiln::driver::{DeviceBuffer, Function, KernelParam, LaunchConfig, Stream};
    /// # fn scale(stream: &Stream, function: &Function, x: &DeviceBuffer<f32>, y: &DeviceBuffer<f32>) -> kiln::Result<()> {
    /// let (config, px, py) = (LaunchConfig::new([1, 1, 1], [32, 1, 1]), x.as_ptr(), y.as_ptr());
    /// stream.enqueue([x.reads("x"), y.writes("y")], |stream| {
    ///     // SAFETY: the kernel reads 32 elements of x and writes 32 of y; both are that long.
    ///     unsafe { function.launch(stream, &config, &[KernelParam::new(&px), KernelParam::new(&py)]) }
    /// })
    /// # }
    /// ```
    pub fn enqueue<const N: usize>(
        &self,
        mut uses: [Use<'_>; N],
        work: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<()> {
        self.enqueue_locked(Some(Claim::Shared(self.inner.id)), &mut uses, &mut [const { None }; N], work)
    }

    /// As [`enqueue`](Stream::enqueue), for uses some of which are there.
    pub(crate) fn enqueue_noted<const N: usize>(
        &self,
        uses: [Option<Use<'_>>; N],
        work: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<()> {
        let Some(first) = uses.iter().flatten().next() else {
            return self.enqueue([], work);
        };
        let (mut noted, mut count) = ([*first; N], 0);
        for one in uses.iter().flatten() {
            noted[count] = *one;
            count += 1;
        }
        self.enqueue_locked(Some(Claim::Shared(self.inner.id)), &mut noted[..count], &mut [const { None }; N], work)
    }

    /// As [`enqueue`](Stream::enqueue), for copies and fills, which run beside resident work.
    pub(crate) fn enqueue_copy<const N: usize>(
        &self,
        mut uses: [Use<'_>; N],
        work: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<()> {
        self.enqueue_locked(None, &mut uses, &mut [const { None }; N], work)
    }

    /// As [`enqueue`](Stream::enqueue), for any number of uses. Allocates two small lists on the host.
    pub fn enqueue_many<'a>(
        &self,
        uses: impl IntoIterator<Item = Use<'a>>,
        work: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<()> {
        self.enqueue_listed(Some(Claim::Shared(self.inner.id)), uses, work)
    }

    /// As [`enqueue_many`](Stream::enqueue_many), for whoever has a turn on the device.
    #[cfg(feature = "gguf")]
    pub(crate) fn enqueue_in_turn<'a>(
        &self,
        uses: impl IntoIterator<Item = Use<'a>>,
        work: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<()> {
        self.enqueue_listed(None, uses, work)
    }

    fn enqueue_listed<'a>(
        &self,
        claim: Option<Claim>,
        uses: impl IntoIterator<Item = Use<'a>>,
        work: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<()> {
        let mut uses: Vec<Use<'a>> = uses.into_iter().collect();
        let mut records: Vec<_> = uses.iter().map(|_| None).collect();
        self.enqueue_locked(claim, &mut uses, &mut records, work)
    }

    /// Enqueues `work`; `records` has a place for the lock of each use. Without a claim, the work has its turn already
    /// or needs none.
    fn enqueue_locked<'a>(
        &self,
        claim: Option<Claim>,
        uses: &mut [Use<'a>],
        records: &mut [Option<MutexGuard<'a, Record>>],
        work: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<()> {
        for one in uses.iter() {
            self.inner.context.check_same(one.context, one.name)?;
        }
        // Before the locks: who has the turn may need them.
        self.inner.refuse_other_threads_capture()?;
        let claim = claim.filter(|_| !self.inner.is_capturing());
        let _turn = claim.map(|claim| self.inner.context.turn(claim)).transpose()?;
        // Locked in the order of their addresses, so that two threads cannot wait for each other.
        uses.sort_unstable_by_key(|one| address(one.slot));
        for pair in uses.windows(2) {
            if address(pair[0].slot) == address(pair[1].slot) {
                check_alias(&pair[0], &pair[1])?;
            }
        }
        for index in 0..uses.len() {
            let one = uses[index];
            // Locked already if the same buffer is read twice.
            if index == 0 || address(uses[index - 1].slot) != address(one.slot) {
                let record = one.slot.lock();
                record.order(&self.inner, one.access)?;
                records[index] = Some(record);
            }
        }
        self.inner.context.bind()?;
        let _noting = Noting { stream: &self.inner, uses, records };
        work(self)
    }
}

/// A guard that notes the uses when dropped: work that failed or panicked may have been enqueued in part.
struct Noting<'s, 'a> {
    stream: &'s Arc<StreamInner>,
    uses: &'s [Use<'a>],
    records: &'s mut [Option<MutexGuard<'a, Record>>],
}

impl Drop for Noting<'_, '_> {
    fn drop(&mut self) {
        let ticket = self.stream.issue();
        for (record, one) in self.records.iter_mut().zip(self.uses) {
            if let Some(record) = record {
                record.note(self.stream, ticket, one.access);
            }
        }
    }
}

fn address(slot: &Slot) -> usize {
    std::ptr::from_ref(slot).addr()
}

/// Refuses a buffer that is written and named twice.
fn check_alias(one: &Use<'_>, other: &Use<'_>) -> Result<()> {
    let (output, other) = match (one.access, other.access) {
        (Access::Read, Access::Read) => return Ok(()),
        (Access::Write, _) => (one.name, other.name),
        (_, Access::Write) => (other.name, one.name),
    };
    Err(Error::Aliasing { output, other })
}
